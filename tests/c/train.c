/* Trains the perceptron of tests/training_info.rs: train FROM TO IN OUT runs its steps FROM to TO on the state of the file IN (`-`: that of
 * a reset), and writes the state to OUT. */
#include <stdio.h>
#include <stdlib.h>

#include "net.h"

enum { ROWS = 8, INPUTS = 7, CLASSES = 5 };

static float number(size_t at, size_t salt) {
    return (float)((at * 7919 + salt * 104729 + 17) % 2003) / 1001.5f - 1.0f;
}

/* Memory at a multiple of 64, which lasts as long as the program. */
static void *aligned(size_t bytes) {
    char *memory = malloc(bytes + 63);
    return memory == NULL ? NULL : memory + (64 - (size_t)(uintptr_t)memory % 64) % 64;
}

static int fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    return 1;
}

int main(int argc, char **argv) {
    const onnxc_model *model = net_model(), *step = onnxc_model_next(model);
    int64_t bytes = net_state_bytes_for(ROWS);
    int64_t workspace_bytes = net_train_step_workspace_for(ROWS);
    void *state = aligned((size_t)bytes), *workspace = aligned((size_t)workspace_bytes);
    size_t from, to;
    FILE *file;
    if (argc != 5 || state == NULL || workspace == NULL) {
        return fail("train FROM TO IN OUT");
    }
    if (step == NULL || strcmp(onnxc_model_name(step), "net_train_step") != 0 || onnxc_model_next(step) != NULL ||
        onnxc_model_run(step) != net_train_step || step != net_train_step_model() || step->state_count != model->state_count) {
        return fail("the model does not list its step");
    }
    if (onnxc_model_state_bytes(step)((const int64_t[]){ROWS}, 1) != bytes) {
        return fail("the step has another state");
    }
    /* The step's description resets the same block to the same values. */
    if (onnxc_model_state_reset(step)(state, (size_t)bytes, (const int64_t[]){ROWS}, 1) != ONNXC_OK) {
        return fail("no reset by the step");
    } else {
        void *other = aligned((size_t)bytes);
        if (other == NULL || net_state_reset_for(other, (size_t)bytes, ROWS) != ONNXC_OK ||
            memcmp(state, other, (size_t)bytes) != 0) {
            return fail("two kinds of reset differ");
        }
    }
    if (strcmp(argv[3], "-") != 0) {
        file = fopen(argv[3], "rb");
        if (file == NULL || fread(state, 1, (size_t)bytes, file) != (size_t)bytes) {
            return fail("cannot read the state");
        }
        fclose(file);
    }
    to = (size_t)atoi(argv[2]);
    for (from = (size_t)atoi(argv[1]); from < to; from++) {
        float x[ROWS * INPUTS], scores[ROWS * CLASSES], loss;
        int64_t labels[ROWS], x_dims[] = {ROWS, INPUTS}, label_dims[] = {ROWS}, scores_dims[] = {ROWS, CLASSES}, count;
        char message[256] = "";
        onnxc_options options = ONNXC_OPTIONS_INIT;
        onnxc_tensor inputs[NET_TRAIN_STEP_INPUT_COUNT], outputs[NET_TRAIN_STEP_OUTPUT_COUNT];
        size_t at;
        options.message = message;
        options.message_capacity = sizeof(message);
        for (at = 0; at < ROWS * INPUTS; at++) {
            x[at] = number(at, from);
        }
        for (at = 0; at < ROWS; at++) {
            labels[at] = (int64_t)((at * 3 + from) % CLASSES);
            x[at * INPUTS + (size_t)labels[at]] += 1.5f;
        }
        inputs[NET_TRAIN_STEP_INPUT_X_INDEX] = onnxc_make_tensor(x, sizeof(x), ONNXC_FLOAT, 2, x_dims);
        inputs[NET_TRAIN_STEP_INPUT_LABELS_INDEX] = onnxc_make_tensor(labels, sizeof(labels), ONNXC_INT64, 1, label_dims);
        count = bytes;
        inputs[NET_TRAIN_STEP_INPUT_STATE_INDEX] = onnxc_make_tensor(state, (size_t)bytes, ONNXC_UINT8, 1, &count);
        outputs[NET_TRAIN_STEP_OUTPUT_SCORES_INDEX] =
            onnxc_make_tensor(scores, sizeof(scores), ONNXC_FLOAT, 2, scores_dims);
        outputs[NET_TRAIN_STEP_OUTPUT_LOSS_INDEX] = onnxc_make_tensor(&loss, sizeof(loss), ONNXC_FLOAT, 0, NULL);
        if (net_train_step(inputs, NET_TRAIN_STEP_INPUT_COUNT, outputs, NET_TRAIN_STEP_OUTPUT_COUNT, workspace,
                           (size_t)workspace_bytes, &options) != ONNXC_OK) {
            return fail(message);
        }
        printf("%zu %.9g\n", from, (double)loss);
    }
    file = fopen(argv[4], "wb");
    if (file == NULL || fwrite(state, 1, (size_t)bytes, file) != (size_t)bytes || fclose(file) != 0) {
        return fail("cannot write the state");
    }
    return 0;
}
