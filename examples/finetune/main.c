/* Teaches a model new classes from a few samples: finetune [DATA [SAMPLES [STEPS]]].
 *
 * The model has learnt to read the digits 0 to 5. Its layers stay as they are; the last one, new and of zeros, learns the digits 6 to 9
 * from SAMPLES images of each. All other images of these digits test it. */
#include <stdio.h>
#include <stdlib.h>

#include "learner.h"

enum { PIXELS = 64, RECORD = 33, FIRST = 6, CLASSES = 4, MOST = 1024 };

/* Images of the new classes: first the samples, then those that test. */
static float pixels[MOST * PIXELS];
static int64_t labels[MOST];

static void stop(const char *what, const char *why) {
    fprintf(stderr, "finetune: %s%s%s\n", what, *why ? ": " : "", why);
    exit(1);
}

/* Memory at a multiple of 64, which lasts as long as the program. */
static void *aligned(int64_t bytes) {
    char *found = bytes < 0 ? NULL : malloc((size_t)bytes + 64);
    if (found == NULL) {
        stop("no memory", "");
    }
    return found + (64 - (size_t)(uintptr_t)found % 64) % 64;
}

/* Reads the images; gives how many are samples, and how many there are. */
static int64_t read_images(const char *path, int64_t samples, int64_t *count) {
    int pass, at, seen[CLASSES];
    int64_t first = 0;
    *count = 0;
    for (pass = 0; pass < 2; pass++) {
        unsigned char record[RECORD];
        FILE *file = fopen(path, "rb");
        if (file == NULL) {
            stop("cannot read", path);
        }
        for (at = 0; at < CLASSES; at++) {
            seen[at] = 0;
        }
        while (*count < MOST && fread(record, 1, RECORD, file) == RECORD) {
            int label = record[0] - FIRST;
            if (label < 0 || label >= CLASSES || (seen[label]++ < samples) != (pass == 0)) {
                continue;
            }
            for (at = 0; at < PIXELS; at++) {
                pixels[*count * PIXELS + at] = (float)(record[1 + at / 2] >> at % 2 * 4 & 15) / 15.0f;
            }
            labels[(*count)++] = label;
        }
        fclose(file);
        if (pass == 0) {
            first = *count;
        }
    }
    if (first == 0 || *count == first) {
        stop("too few images in", path);
    }
    return first;
}

int main(int argc, char **argv) {
    int64_t count, samples = read_images(argc > 1 ? argv[1] : "digits.bin", argc > 2 ? atoi(argv[2]) : 10, &count);
    int64_t tested = count - samples;
    int steps = argc > 3 ? atoi(argv[3]) : 100, step, at;
    int64_t bytes = learner_state_bytes_for(samples), dims = bytes;
    int64_t needs = learner_workspace_for(tested), training = learner_train_step_workspace_for(samples);
    int64_t workspace_bytes = needs > training ? needs : training;
    int64_t shape[4] = {samples, 1, 8, 8}, by_class[2] = {samples, CLASSES};
    int64_t all[4] = {tested, 1, 8, 8}, all_by_class[2] = {tested, CLASSES};
    float *probabilities = aligned(count * CLASSES * (int64_t)sizeof(float)), loss = 0;
    void *state = aligned(bytes), *workspace = aligned(workspace_bytes);
    char message[256] = "";
    onnxc_options options = ONNXC_OPTIONS_INIT;
    onnxc_tensor block = onnxc_make_tensor(state, (size_t)bytes, ONNXC_UINT8, 1, &dims);
    options.message = message;
    options.message_capacity = sizeof(message);
    if (learner_state_reset_for(state, (size_t)bytes, samples) != ONNXC_OK) {
        stop("no state", "");
    }
    printf("%ld samples of %d new classes, %ld images to test with; a state of %ld bytes\n", (long)samples, CLASSES, (long)tested,
           (long)bytes);
    for (step = 0; step <= steps; step++) {
        onnxc_tensor inputs[LEARNER_TRAIN_STEP_INPUT_COUNT], outputs[LEARNER_TRAIN_STEP_OUTPUT_COUNT];
        if (step % 20 == 0 || step == steps) {
            onnxc_tensor given[LEARNER_INPUT_COUNT], output;
            int64_t image, right = 0;
            given[LEARNER_INPUT_IMAGES_INDEX] = onnxc_make_tensor(pixels + samples * PIXELS, (size_t)(tested * PIXELS) * sizeof(float),
                                                                  ONNXC_FLOAT, 4, all);
            given[LEARNER_INPUT_STATE_INDEX] = block;
            output = onnxc_make_tensor(probabilities, (size_t)(tested * CLASSES) * sizeof(float), ONNXC_FLOAT, 2, all_by_class);
            if (learner_run(given, LEARNER_INPUT_COUNT, &output, LEARNER_OUTPUT_COUNT, workspace, (size_t)workspace_bytes, &options)
                != ONNXC_OK) {
                stop("inference", message);
            }
            for (image = 0; image < tested; image++) {
                int best = 0;
                for (at = 1; at < CLASSES; at++) {
                    if (probabilities[image * CLASSES + at] > probabilities[image * CLASSES + best]) {
                        best = at;
                    }
                }
                right += best == labels[samples + image];
            }
            printf("after %3d steps: accuracy %.1f%%\n", step, 100.0 * (double)right / (double)tested);
        }
        if (step == steps) {
            break;
        }
        inputs[LEARNER_TRAIN_STEP_INPUT_IMAGES_INDEX] =
            onnxc_make_tensor(pixels, (size_t)(samples * PIXELS) * sizeof(float), ONNXC_FLOAT, 4, shape);
        inputs[LEARNER_TRAIN_STEP_INPUT_TARGET_INDEX] =
            onnxc_make_tensor(labels, (size_t)samples * sizeof(int64_t), ONNXC_INT64, 1, shape);
        inputs[LEARNER_TRAIN_STEP_INPUT_STATE_INDEX] = block;
        outputs[LEARNER_TRAIN_STEP_OUTPUT_PROBABILITIES_INDEX] =
            onnxc_make_tensor(probabilities, (size_t)(samples * CLASSES) * sizeof(float), ONNXC_FLOAT, 2, by_class);
        outputs[LEARNER_TRAIN_STEP_OUTPUT_LOSS_INDEX] = onnxc_make_tensor(&loss, sizeof(loss), ONNXC_FLOAT, 0, NULL);
        if (learner_train_step(inputs, LEARNER_TRAIN_STEP_INPUT_COUNT, outputs, LEARNER_TRAIN_STEP_OUTPUT_COUNT, workspace,
                               (size_t)workspace_bytes, &options)
            != ONNXC_OK) {
            stop("a step", message);
        }
    }
    printf("loss %.4f\n", (double)loss);
    return 0;
}
