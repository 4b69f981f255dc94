/* The encoder's outputs are what the decoder's layers attend to, `present_key_cross_N` and `present_value_cross_N` for each layer. The
 * decoder has them as state that its runs only read, `past_key_cross_N` and `past_value_cross_N`, beside the caches of its own tokens,
 * to which they append. */
#include "speech.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(DECODER_OUTPUT_LOGITS_DTYPE == ONNXC_FLOAT, "logits are read as f32");

struct speech {
    onnxc_options options;
    char message[256];
    /* The encoder's outputs. */
    onnxc_tensor heard[ENCODER_OUTPUT_COUNT];
    void *encoder_workspace, *decoder_workspace, *state;
    int64_t encoder_workspace_bytes, decoder_workspace_bytes, state_bytes;
    int64_t *symbols;
    float logits[SPEECH_TOKENS];
};

_Noreturn static void fail(const char *message) {
    fprintf(stderr, "speech: %s\n", message);
    exit(EXIT_FAILURE);
}

static void *allocate(int64_t bytes) {
    void *memory = bytes < 0 ? NULL : onnxc_allocate(NULL, (size_t)bytes, ONNXC_WORKSPACE_ALIGNMENT);
    if (memory == NULL) {
        fail("too little memory");
    }
    return memory;
}

static void release(void *memory, int64_t bytes) {
    onnxc_release(NULL, memory, (size_t)bytes, ONNXC_WORKSPACE_ALIGNMENT);
}

/* The inputs of a run of the decoder on one token. */
static void token_inputs(speech *speech, const int64_t *token, onnxc_tensor *inputs) {
    static const int64_t one[] = {1, 1};
    inputs[DECODER_INPUT_INPUT_IDS_INDEX] = onnxc_make_tensor(token, sizeof *token, ONNXC_INT64, 2, one);
    inputs[DECODER_INPUT_STATE_INDEX] =
        onnxc_make_tensor(speech->state, (size_t)speech->state_bytes, ONNXC_UINT8, 1, &speech->state_bytes);
}

speech *speech_open(int64_t threads) {
    speech *made = calloc(1, sizeof *made);
    onnxc_pool *pool = onnxc_pool_create(threads);
    size_t symbols = (size_t)decoder_model()->symbol_count;
    if (made == NULL || pool == NULL || (made->symbols = calloc(symbols + 1, sizeof(int64_t))) == NULL) {
        fail("too little memory");
    }
    made->options = (onnxc_options)ONNXC_OPTIONS_INIT;
    made->options.parallel_for = onnxc_pool_parallel_for;
    made->options.pool = pool;
    made->options.threads = onnxc_pool_threads(pool);
    made->options.message = made->message;
    made->options.message_capacity = sizeof made->message;

    for (int32_t at = 0; at < ENCODER_OUTPUT_COUNT; at++) {
        onnxc_value_info output = onnxc_model_output(encoder_model(), at);
        int64_t bytes = output.element_bytes;
        for (int32_t axis = 0; axis < output.rank; axis++) {
            bytes *= output.dims[axis];
        }
        made->heard[at] = onnxc_make_tensor(allocate(bytes), (size_t)bytes, output.dtype, output.rank, output.dims);
    }
    made->encoder_workspace_bytes = encoder_workspace(NULL, 0);
    made->encoder_workspace = allocate(made->encoder_workspace_bytes);

    made->state_bytes = decoder_state_bytes(made->symbols, symbols);
    made->state = allocate(made->state_bytes);
    if (decoder_state_reset(made->state, (size_t)made->state_bytes, made->symbols, symbols) != ONNXC_OK) {
        fail("the state cannot be reset");
    }
    /* The longest runs are of one token when the cache is full but for that token. */
    onnxc_tensor inputs[DECODER_INPUT_COUNT];
    int64_t token = 0;
    onnxc_state_info cache = onnxc_model_state(decoder_model(), 0);
    onnxc_state_set_symbol(made->state, cache.size_symbol, cache.tensor.dims[cache.axis] - 1);
    token_inputs(made, &token, inputs);
    made->decoder_workspace_bytes =
        onnxc_model_workspace_for(decoder_model(), inputs, DECODER_INPUT_COUNT, made->symbols);
    made->decoder_workspace = allocate(made->decoder_workspace_bytes);
    return made;
}

void speech_close(speech *speech) {
    for (int32_t at = 0; at < ENCODER_OUTPUT_COUNT; at++) {
        release(speech->heard[at].data, (int64_t)speech->heard[at].bytes);
    }
    release(speech->encoder_workspace, speech->encoder_workspace_bytes);
    release(speech->decoder_workspace, speech->decoder_workspace_bytes);
    release(speech->state, speech->state_bytes);
    onnxc_pool_destroy(speech->options.pool);
    free(speech->symbols);
    free(speech);
}

void speech_listen(speech *speech, const float *samples) {
    static const int64_t dims[] = {1, SPEECH_SAMPLES};
    onnxc_tensor input = onnxc_make_tensor(samples, SPEECH_SAMPLES * sizeof *samples, ONNXC_FLOAT, 2, dims);
    if (encoder_run(&input, 1, speech->heard, ENCODER_OUTPUT_COUNT, speech->encoder_workspace,
                    (size_t)speech->encoder_workspace_bytes, &speech->options) != ONNXC_OK) {
        fail(speech->message);
    }
    for (int32_t at = 0; at < ENCODER_OUTPUT_COUNT; at++) {
        char name[64];
        snprintf(name, sizeof name, "past%s", onnxc_model_output(encoder_model(), at).name + strlen("present"));
        int32_t cache = onnxc_state_index(decoder_model(), name);
        if (cache < 0 || onnxc_state_tensor_bytes(decoder_model(), speech->state, cache) != speech->heard[at].bytes) {
            fail("the models do not belong together");
        }
        onnxc_state_set(decoder_model(), speech->state, cache, speech->heard[at].data);
    }
    /* No tokens yet. */
    onnxc_state_set_symbol(speech->state, onnxc_model_state(decoder_model(), 0).size_symbol, 0);
}

int64_t speech_next(speech *speech, int64_t token) {
    /* A run writes the dims of its outputs. */
    int64_t dims[] = {1, 1, SPEECH_TOKENS};
    onnxc_tensor inputs[DECODER_INPUT_COUNT];
    onnxc_tensor output = onnxc_make_tensor(speech->logits, sizeof speech->logits, ONNXC_FLOAT, 3, dims);
    token_inputs(speech, &token, inputs);
    if (decoder_run(inputs, DECODER_INPUT_COUNT, &output, 1, speech->decoder_workspace,
                    (size_t)speech->decoder_workspace_bytes, &speech->options) != ONNXC_OK) {
        fail(speech->message);
    }
    int64_t best = 0;
    for (int64_t other = 1; other < SPEECH_TOKENS; other++) {
        best = speech->logits[other] > speech->logits[best] ? other : best;
    }
    return best;
}
