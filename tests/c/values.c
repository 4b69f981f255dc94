/* Values other than tensors, in C: the model appends `x` to the sequence `s`, and gives whether the optional `o` has an
 * element. */
#include "check.h"
#include "onnxc.h"

extern const onnxc_model *values_model(void);
extern int32_t values_run(const onnxc_tensor *inputs, size_t input_count, onnxc_tensor *outputs, size_t output_count,
                          void *workspace, size_t workspace_bytes, const onnxc_options *options);

static char workspace_memory[4096 + ONNXC_WORKSPACE_ALIGNMENT];

static void is_part(onnxc_value_info info, const char *name, const char *value, onnxc_part part) {
    CHECK(strcmp(info.name, name) == 0 && strcmp(info.value, value) == 0 && info.part == (int32_t)part);
}

int main(void) {
    static const int64_t shapes[] = {2, 0}, shapes_dims[] = {2, 1}, data_dims[] = {2};
    static const float data[] = {1, 2}, x[] = {3, 4, 5}, element[] = {9, 9};
    static const int64_t x_dims[] = {3}, element_dims[] = {2};
    static const unsigned char yes = 1;
    static int64_t out_shapes[3], out_shapes_dims[2], out_data_dims[1];
    static float out_data[5];
    static unsigned char has;
    const onnxc_model *model = values_model();
    onnxc_tensor in[5], out[3], view;
    onnxc_sequence_walk walk;
    char *workspace = workspace_memory;
    workspace += ONNXC_WORKSPACE_ALIGNMENT - (uintptr_t)workspace % ONNXC_WORKSPACE_ALIGNMENT;

    CHECK(model->input_count == 5 && model->output_count == 3);
    is_part(onnxc_model_input(model, 0), "s.shapes", "s", ONNXC_PART_SHAPES);
    is_part(onnxc_model_input(model, 1), "s.data", "s", ONNXC_PART_DATA);
    is_part(onnxc_model_input(model, 2), "x", "x", ONNXC_PART_WHOLE);
    is_part(onnxc_model_input(model, 3), "o.present", "o", ONNXC_PART_PRESENT);
    is_part(onnxc_model_input(model, 4), "o.element", "o", ONNXC_PART_ELEMENT);
    is_part(onnxc_model_output(model, 0), "t.shapes", "t", ONNXC_PART_SHAPES);
    is_part(onnxc_model_output(model, 1), "t.data", "t", ONNXC_PART_DATA);
    is_part(onnxc_model_output(model, 2), "h", "h", ONNXC_PART_WHOLE);

    in[0] = onnxc_make_tensor(shapes, sizeof shapes, ONNXC_INT64, 2, shapes_dims);
    in[1] = onnxc_make_tensor(data, sizeof data, ONNXC_FLOAT, 1, data_dims);
    in[2] = onnxc_make_tensor(x, sizeof x, ONNXC_FLOAT, 1, x_dims);
    in[3] = onnxc_make_tensor(&yes, 1, ONNXC_BOOL, 0, NULL);
    in[4] = onnxc_make_tensor(element, sizeof element, ONNXC_FLOAT, 1, element_dims);
    out_shapes_dims[0] = 3;
    out_shapes_dims[1] = 1;
    out_data_dims[0] = 5;
    out[0] = onnxc_make_tensor(out_shapes, sizeof out_shapes, ONNXC_INT64, 2, out_shapes_dims);
    out[1] = onnxc_make_tensor(out_data, sizeof out_data, ONNXC_FLOAT, 1, out_data_dims);
    out[2] = onnxc_make_tensor(&has, 1, ONNXC_BOOL, 0, NULL);
    CHECK(values_run(in, 5, out, 3, workspace, 4096, NULL) == ONNXC_OK);
    CHECK(has == 1 && onnxc_sequence_length(&out[0]) == 3);

    walk = onnxc_sequence_begin(&out[0], &out[1]);
    CHECK(onnxc_sequence_next(&walk, &view) && view.rank == 1 && view.dims[0] == 2);
    CHECK(view.data == (void *)out_data && view.bytes == 8 && view.dtype == ONNXC_FLOAT);
    CHECK(onnxc_sequence_next(&walk, &view) && view.dims[0] == 0 && view.bytes == 0);
    CHECK(onnxc_sequence_next(&walk, &view) && view.dims[0] == 3 && ((float *)view.data)[2] == 5);
    CHECK(!onnxc_sequence_next(&walk, &view));
    CHECK(onnxc_sequence_at(&out[0], &out[1], 2, &view) && ((float *)view.data)[0] == 3);
    CHECK(!onnxc_sequence_at(&out[0], &out[1], 3, &view) && !onnxc_sequence_at(&out[0], &out[1], -1, &view));

    /* Elements of several ranks: -1 stands for an axis that is not there. */
    {
        static const int64_t rows[] = {-1, -1, 2, -1, 1, 2}, rows_dims[] = {3, 2};
        const onnxc_tensor mixed = onnxc_make_tensor(rows, sizeof rows, ONNXC_INT64, 2, rows_dims);
        CHECK(onnxc_sequence_at(&mixed, &out[1], 0, &view) && view.rank == 0 && view.bytes == 4);
        CHECK(onnxc_sequence_at(&mixed, &out[1], 1, &view) && view.rank == 1 && view.bytes == 8);
        CHECK(onnxc_sequence_at(&mixed, &out[1], 2, &view) && view.rank == 2 && ((float *)view.data)[1] == 5);
    }
    printf("good\n");
    return 0;
}
