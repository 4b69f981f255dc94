/* Learns to read handwritten digits, from nothing, on the machine that it runs on: digits [DATA [EPOCHS [SEED]]].
 *
 * The first three quarters of the images train the network, the rest tests it. Afterwards the program saves what it has learnt,
 * restores it into another block of memory, and reads a digit with that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "digits.h"

enum { PIXELS = 64, RECORD = 33, CLASSES = 10, BATCH = 32 };

typedef struct images {
    float *pixels;
    int64_t *labels;
    int64_t count;
} images;

static void stop(const char *what, const char *why) {
    fprintf(stderr, "digits: %s%s%s\n", what, *why ? ": " : "", why);
    exit(1);
}

/* Memory at a multiple of 64, which lasts as long as the program. */
static void *aligned(int64_t bytes) {
    char *memory = bytes < 0 ? NULL : malloc((size_t)bytes + 64);
    if (memory == NULL) {
        stop("no memory", "");
    }
    return memory + (64 - (size_t)(uintptr_t)memory % 64) % 64;
}

static images read_images(const char *path) {
    unsigned char record[RECORD];
    images all = {NULL, NULL, 0};
    int64_t room = 0;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        stop("cannot read", path);
    }
    while (fread(record, 1, RECORD, file) == RECORD) {
        int at;
        if (all.count == room) {
            room = room == 0 ? 1024 : 2 * room;
            all.pixels = realloc(all.pixels, (size_t)room * PIXELS * sizeof(float));
            all.labels = realloc(all.labels, (size_t)room * sizeof(int64_t));
            if (all.pixels == NULL || all.labels == NULL) {
                stop("no memory", "");
            }
        }
        for (at = 0; at < PIXELS; at++) {
            all.pixels[all.count * PIXELS + at] = (float)(record[1 + at / 2] >> at % 2 * 4 & 15) / 15.0f;
        }
        all.labels[all.count++] = record[0];
    }
    fclose(file);
    if (all.count < 8) {
        stop("too few images in", path);
    }
    return all;
}

/* The model's programs share one block; this is what calls of them have in common. */
typedef struct learner {
    void *state;
    int64_t state_bytes;
    void *workspace;
    int64_t workspace_bytes;
    char message[256];
} learner;

static void check(learner *own, int32_t status, const char *what) {
    if (status != ONNXC_OK) {
        stop(what, own->message);
    }
}

static onnxc_options options_of(learner *own, uint64_t seed) {
    onnxc_options options = ONNXC_OPTIONS_INIT;
    options.message = own->message;
    options.message_capacity = sizeof(own->message);
    options.seed = seed;
    own->message[0] = 0;
    return options;
}

static onnxc_tensor state_of(learner *own) {
    return onnxc_make_tensor(own->state, (size_t)own->state_bytes, ONNXC_UINT8, 1, &own->state_bytes);
}

static learner make_learner(int64_t rows) {
    learner own;
    int64_t initialize = digits_train_initialize_workspace(NULL, 0), step = digits_train_step_workspace_for(rows);
    memset(&own, 0, sizeof(own));
    own.state_bytes = digits_state_bytes_for(rows);
    own.workspace_bytes = digits_workspace_for(rows);
    if (own.workspace_bytes < step) {
        own.workspace_bytes = step;
    }
    if (own.workspace_bytes < initialize) {
        own.workspace_bytes = initialize;
    }
    own.state = aligned(own.state_bytes);
    own.workspace = aligned(own.workspace_bytes);
    check(&own, digits_state_reset_for(own.state, (size_t)own.state_bytes, rows), "no state");
    return own;
}

/* Random weights. */
static void initialize(learner *own, uint64_t seed) {
    onnxc_options options = options_of(own, seed);
    onnxc_tensor state = state_of(own);
    check(own, digits_train_initialize(&state, 1, NULL, 0, own->workspace, (size_t)own->workspace_bytes, &options), "initialize");
}

/* Trains on `rows` images; gives the loss before that. */
static float train(learner *own, float *pixels, int64_t *labels, int64_t rows, float rate) {
    float loss = 0, probabilities[BATCH * CLASSES];
    int64_t shape[4] = {rows, 1, 8, 8}, by_class[2] = {rows, CLASSES};
    onnxc_options options = options_of(own, 0);
    onnxc_tensor inputs[DIGITS_TRAIN_STEP_INPUT_COUNT], outputs[DIGITS_TRAIN_STEP_OUTPUT_COUNT];
    inputs[DIGITS_TRAIN_STEP_INPUT_IMAGES_INDEX] =
        onnxc_make_tensor(pixels, (size_t)rows * PIXELS * sizeof(float), ONNXC_FLOAT, 4, shape);
    inputs[DIGITS_TRAIN_STEP_INPUT_LABELS_INDEX] =
        onnxc_make_tensor(labels, (size_t)rows * sizeof(int64_t), ONNXC_INT64, 1, shape);
    inputs[DIGITS_TRAIN_STEP_INPUT_RATE_INDEX] = onnxc_make_tensor(&rate, sizeof(rate), ONNXC_FLOAT, 0, NULL);
    inputs[DIGITS_TRAIN_STEP_INPUT_STATE_INDEX] = state_of(own);
    outputs[DIGITS_TRAIN_STEP_OUTPUT_PROBABILITIES_INDEX] =
        onnxc_make_tensor(probabilities, (size_t)rows * CLASSES * sizeof(float), ONNXC_FLOAT, 2, by_class);
    outputs[DIGITS_TRAIN_STEP_OUTPUT_LOSS_INDEX] = onnxc_make_tensor(&loss, sizeof(loss), ONNXC_FLOAT, 0, NULL);
    check(own,
          digits_train_step(inputs, DIGITS_TRAIN_STEP_INPUT_COUNT, outputs, DIGITS_TRAIN_STEP_OUTPUT_COUNT, own->workspace,
                            (size_t)own->workspace_bytes, &options),
          "a step");
    return loss;
}

/* Reads one image. */
static int predict(learner *own, float *pixels, float *certainty) {
    float probabilities[CLASSES];
    int64_t shape[4] = {1, 1, 8, 8}, by_class[2] = {1, CLASSES};
    int best = 0, at;
    onnxc_options options = options_of(own, 0);
    onnxc_tensor inputs[DIGITS_INPUT_COUNT], output;
    inputs[DIGITS_INPUT_IMAGES_INDEX] = onnxc_make_tensor(pixels, PIXELS * sizeof(float), ONNXC_FLOAT, 4, shape);
    inputs[DIGITS_INPUT_STATE_INDEX] = state_of(own);
    output = onnxc_make_tensor(probabilities, sizeof(probabilities), ONNXC_FLOAT, 2, by_class);
    check(own,
          digits_run(inputs, DIGITS_INPUT_COUNT, &output, DIGITS_OUTPUT_COUNT, own->workspace, (size_t)own->workspace_bytes, &options),
          "inference");
    for (at = 1; at < CLASSES; at++) {
        if (probabilities[at] > probabilities[best]) {
            best = at;
        }
    }
    *certainty = probabilities[best];
    return best;
}

static double accuracy(learner *own, const images *all, int64_t from) {
    int64_t at, right = 0;
    float certainty;
    for (at = from; at < all->count; at++) {
        right += predict(own, all->pixels + at * PIXELS, &certainty) == all->labels[at];
    }
    return (double)right / (double)(all->count - from);
}

/* Numbers in no order, the same on every machine. */
static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static void save(const learner *own, const char *path) {
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(own->state, 1, (size_t)own->state_bytes, file) != (size_t)own->state_bytes || fclose(file) != 0) {
        stop("cannot write", path);
    }
}

static void restore(learner *own, const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fread(own->state, 1, (size_t)own->state_bytes, file) != (size_t)own->state_bytes) {
        stop("cannot read", path);
    }
    fclose(file);
}

int main(int argc, char **argv) {
    images all = read_images(argc > 1 ? argv[1] : "digits.bin");
    int epochs = argc > 2 ? atoi(argv[2]) : 12, epoch;
    uint64_t seed = argc > 3 ? (uint64_t)atoi(argv[3]) : 1, random = seed;
    int64_t trained = all.count * 3 / 4, at, *order = aligned(trained * (int64_t)sizeof(int64_t));
    learner own = make_learner(BATCH), other;
    const char *path = "digits.state";
    float certainty;
    int found;

    printf("%ld images to train on, %ld to test with; a state of %ld bytes\n", (long)trained, (long)(all.count - trained),
           (long)own.state_bytes);
    initialize(&own, seed);
    printf("before: accuracy %.1f%%\n", 100 * accuracy(&own, &all, trained));
    for (at = 0; at < trained; at++) {
        order[at] = at;
    }
    for (epoch = 1; epoch <= epochs; epoch++) {
        double sum = 0;
        int64_t steps = 0, last = trained / BATCH;
        printf("epoch %2d of %d  [", epoch, epochs);
        for (at = trained - 1; at > 0; at--) {
            int64_t with = next_random(&random) % (at + 1), kept = order[at];
            order[at] = order[with];
            order[with] = kept;
        }
        for (steps = 0; steps < last; steps++) {
            float pixels[BATCH * PIXELS];
            int64_t labels[BATCH];
            for (at = 0; at < BATCH; at++) {
                int64_t image = order[steps * BATCH + at];
                memcpy(pixels + at * PIXELS, all.pixels + image * PIXELS, PIXELS * sizeof(float));
                labels[at] = all.labels[image];
            }
            sum += train(&own, pixels, labels, BATCH, 3e-3f);
            if (20 * (steps + 1) / last > 20 * steps / last) {
                putchar('#');
                fflush(stdout);
            }
        }
        printf("]  loss %.4f  accuracy %.1f%%\n", sum / (double)last, 100 * accuracy(&own, &all, trained));
    }

    save(&own, path);
    other = make_learner(BATCH);
    restore(&other, path);
    printf("saved and restored: accuracy %.1f%%\n", 100 * accuracy(&other, &all, trained));
    for (at = 0; at < PIXELS; at++) {
        printf("%c%s", " .:-=+*#%@"[(int)(all.pixels[trained * PIXELS + at] * 9)], at % 8 == 7 ? "\n" : " ");
    }
    found = predict(&other, all.pixels + trained * PIXELS, &certainty);
    printf("this is a %d (%.1f%%); it is labelled %d\n", found, 100 * (double)certainty, (int)all.labels[trained]);
    return found == all.labels[trained] ? 0 : 1;
}
