/* A static model: typed wrapper, macros, descriptor. */
#include "check.h"
#include "plus_iota.h"

int main(void) {
    const int32_t x[6] = {10, 20, 30, 40, 50, 60};
    int32_t y[6] = {0};
    int32_t at;
    const onnxc_model *model = plus_iota_model();
    onnxc_value_info info;

    CHECK(PLUS_IOTA_WORKSPACE_BYTES == 0 && PLUS_IOTA_INPUT_X_BYTES == 24 && PLUS_IOTA_OUTPUT_Y_RANK == 2);
    CHECK(PLUS_IOTA_INPUT_X_DTYPE == ONNXC_INT32 && PLUS_IOTA_INPUT_X_DIM1 == 3);
    CHECK(PLUS_IOTA_INPUT_COUNT == 1 && PLUS_IOTA_OUTPUT_COUNT == 1 && PLUS_IOTA_OUTPUT_Y_INDEX == 0);
    CHECK(plus_iota_predict(x, y, NULL) == ONNXC_OK);
    for (at = 0; at < 6; at++) {
        CHECK(y[at] == x[at] + at);
    }
    CHECK(plus_iota_workspace(NULL, 0) == 0);
    {
        int64_t symbols[1] = {1};
        CHECK(plus_iota_workspace(symbols, 1) == -ONNXC_BAD_COUNT);
    }

    CHECK(model->abi_version == ONNXC_ABI_VERSION);
    CHECK(strcmp(onnxc_model_name(model), "plus_iota") == 0);
    CHECK(model->input_count == 1 && model->output_count == 1 && model->symbol_count == 0);
    CHECK(model->workspace_bytes == 0 && model->workspace_alignment == ONNXC_WORKSPACE_ALIGNMENT);
    info = onnxc_model_input(model, 0);
    CHECK(strcmp(info.name, "x") == 0 && info.dtype == ONNXC_INT32 && info.rank == 2 && !info.has_default);
    CHECK(info.dims[0] == 2 && info.dims[1] == 3 && info.element_bytes == 4);
    CHECK(onnxc_value_dim_text(&info, 0) == NULL);
    info = onnxc_model_output(model, 0);
    CHECK(strcmp(info.name, "y") == 0);
    CHECK(model->metadata_count == 1);
    CHECK(strcmp(onnxc_model_metadata_key(model, 0), "author") == 0);
    CHECK(strcmp(onnxc_model_metadata_value(model, 0), "nobody") == 0);

    /* The entry points are also reached through the descriptor. */
    {
        onnxc_tensor in = onnxc_make_tensor(x, sizeof x, info.dtype, 2, info.dims);
        onnxc_tensor out = onnxc_make_tensor(y, sizeof y, info.dtype, 2, info.dims);
        memset(y, 0, sizeof y);
        CHECK(onnxc_model_run(model) == plus_iota_run && onnxc_model_workspace(model) == plus_iota_workspace);
        CHECK(onnxc_model_run(model)(&in, 1, &out, 1, NULL, 0, NULL) == ONNXC_OK);
        CHECK(y[5] == 65);
    }
    puts("ok");
    return 0;
}
