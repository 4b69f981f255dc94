/* Adapts a language model to a text: adapt TEXT [EPOCHS [PROMPT]].
 *
 * The weights of the model stay as they are. Beside each lie two small factors (LoRA), which learn to continue the text; they are all that
 * there is to save. The program continues a prompt before and after that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapter.h"
#include "tokenizer.h"

/* tokenizer.json, written by the Makefile. */
static const unsigned char vocabulary[] = {
#include "vocabulary.h"
};

enum { LENGTH = ADAPTER_OUTPUT_LOGITS_DIM1, WORDS = ADAPTER_OUTPUT_LOGITS_DIM2 };
enum { CACHE = ADAPTER_OUTPUT_PRESENT_0_KEY_BYTES / 4, SHOWN = 40 };

/* Positions 0, 1, 2 and so on, and ones: all tokens count. */
static int64_t positions[LENGTH], mask[LENGTH];
static float logits[LENGTH * WORDS];
/* Texts begin with nothing before them, and nothing reads the caches. */
static const float past[1];
static float present[8][CACHE];
static void *state, *workspace;

_Noreturn static void fail(const char *what, const char *why) {
    fprintf(stderr, "adapt: %s%s\n", what, why);
    exit(EXIT_FAILURE);
}

static void check(int32_t status, const char *what) {
    if (status != ONNXC_OK) {
        fprintf(stderr, "adapt: %s: status %d\n", what, (int)status);
        exit(EXIT_FAILURE);
    }
}

/* Memory at a multiple of 64, which lasts as long as the program. */
static void *aligned(size_t bytes) {
    char *memory = malloc(bytes + 64);
    if (memory == NULL) {
        fail("too little memory", "");
    }
    return memory + (64 - (size_t)(uintptr_t)memory % 64) % 64;
}

/* Trains on a window; gives the loss before that. */
static float learn(const int64_t *tokens) {
    float loss;
    check(adapter_train_step_predict(tokens, mask, positions, past, past, past, past, past, past, past, past, tokens + 1, state, logits,
                                     present[0], present[1], present[2], present[3], present[4], present[5], present[6], present[7],
                                     &loss, workspace),
          "a step");
    return loss;
}

/* The most probable token behind `count` ones. */
static int64_t next(const int64_t *tokens, int64_t count) {
    int64_t window[LENGTH], first = count > LENGTH ? count - LENGTH : 0, at, best = 0;
    const float *scores = logits + (count - first - 1) * WORDS;
    for (at = 0; at < LENGTH; at++) {
        /* What follows has no influence on what is before it. */
        window[at] = first + at < count ? tokens[first + at] : 0;
    }
    check(adapter_predict(window, mask, positions, past, past, past, past, past, past, past, past, state, logits, present[0], present[1],
                          present[2], present[3], present[4], present[5], present[6], present[7], workspace),
          "inference");
    for (at = 1; at < WORDS; at++) {
        if (scores[at] > scores[best]) {
            best = at;
        }
    }
    return best;
}

static void go_on(const tokenizer *tokenizer, const char *prompt) {
    int64_t tokens[512 + SHOWN], count, at;
    tokens[0] = tokenizer_token(tokenizer, "<|endoftext|>");
    count = 1 + tokenizer_encode(tokenizer, prompt, strlen(prompt), tokens + 1, 511);
    if (count == 0 || count > 512) {
        fail("the prompt is not UTF-8, or too long", "");
    }
    printf("%s|", prompt);
    for (at = 0; at < SHOWN; at++) {
        size_t bytes;
        const char *text;
        tokens[count] = next(tokens, count);
        text = tokenizer_bytes(tokenizer, tokens[count++], &bytes);
        fwrite(text, 1, bytes, stdout);
    }
    printf("\n");
}

int main(int argc, char **argv) {
    char message[256], text[1 << 16];
    tokenizer *tokenizer = tokenizer_open(vocabulary, sizeof vocabulary, message, sizeof message);
    const char *prompt = argc > 3 ? argv[3] : "Monday. Wind from";
    int epochs = argc > 2 ? atoi(argv[2]) : 10, epoch;
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
    size_t workspace_bytes = ADAPTER_WORKSPACE_BYTES;
    if (tokenizer == NULL) {
        fail("", message);
    }
    if (file == NULL) {
        fail("usage: adapt TEXT [EPOCHS [PROMPT]]", "");
    }
    size_t bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    int64_t *tokens = malloc((bytes + 1) * sizeof *tokens);
    if (tokens == NULL) {
        fail("too little memory", "");
    }
    tokens[0] = tokenizer_token(tokenizer, "<|endoftext|>");
    int64_t count = 1 + tokenizer_encode(tokenizer, text, bytes, tokens + 1, bytes), at;
    if (count <= LENGTH) {
        fail("the text is not UTF-8, or too short: ", argv[1]);
    }
    if (workspace_bytes < ADAPTER_TRAIN_STEP_WORKSPACE_BYTES) {
        workspace_bytes = ADAPTER_TRAIN_STEP_WORKSPACE_BYTES;
    }
    if (workspace_bytes < ADAPTER_TRAIN_INITIALIZE_WORKSPACE_BYTES) {
        workspace_bytes = ADAPTER_TRAIN_INITIALIZE_WORKSPACE_BYTES;
    }
    state = aligned(ADAPTER_INPUT_STATE_BYTES);
    workspace = aligned(workspace_bytes);
    for (at = 0; at < LENGTH; at++) {
        positions[at] = at;
        mask[at] = 1;
    }
    check(adapter_state_reset_for(state, ADAPTER_INPUT_STATE_BYTES), "no state");
    check(adapter_train_initialize_predict(state, workspace), "the initialization");
    printf("%lld tokens to learn; a state of %d bytes\n", (long long)count, ADAPTER_INPUT_STATE_BYTES);
    go_on(tokenizer, prompt);
    for (epoch = 1; epoch <= epochs; epoch++) {
        double sum = 0;
        int64_t steps = 0;
        /* Windows that overlap by half, the last one at the end. */
        for (at = 0; at < count - LENGTH; at += LENGTH / 2, steps++) {
            sum += learn(tokens + at);
        }
        sum += learn(tokens + count - LENGTH - 1);
        printf("epoch %2d of %d: loss %.4f\n", epoch, epochs, sum / (double)(steps + 1));
        fflush(stdout);
    }
    go_on(tokenizer, prompt);
    tokenizer_close(tokenizer);
    free(tokens);
    return EXIT_SUCCESS;
}
