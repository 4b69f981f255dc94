/* The inputs of the model are input_ids i64[1, count], attention_mask i64[1, length + count], position_ids i64[1, count] and the
 * state block, in which the caches of all layers lie; its output is logits f32[1, count, vocabulary]. */
#include "session.h"

#include <stdio.h>
#include <stdlib.h>

_Static_assert(CHAT_OUTPUT_LOGITS_DTYPE == ONNXC_FLOAT, "logits are read as f32");

typedef struct memory {
    void *data;
    size_t bytes;
} memory;

struct session {
    onnxc_options options;
    char message[256];
    int64_t context;
    /* 0, 1, 2 and so on; and ones. */
    memory positions, mask;
    memory state, logits, workspace;
    /* Values of the model's symbols that the caches are made with, then room for those of a run. */
    int64_t *symbols;
};

_Noreturn static void fail(const char *message) {
    fprintf(stderr, "chat: %s\n", message);
    exit(EXIT_FAILURE);
}

/* Makes `memory` at least `bytes` large. What it held is lost where it grows. */
static void *reserve(memory *memory, int64_t bytes) {
    if (bytes < 0) {
        fail("the model takes no text of this length");
    }
    if (memory->bytes < (size_t)bytes) {
        onnxc_release(NULL, memory->data, memory->bytes, ONNXC_WORKSPACE_ALIGNMENT);
        memory->bytes = (size_t)bytes;
        memory->data = onnxc_allocate(NULL, memory->bytes, ONNXC_WORKSPACE_ALIGNMENT);
        if (memory->data == NULL) {
            fail("too little memory");
        }
    }
    return memory->data;
}

static void release(memory *memory) {
    onnxc_release(NULL, memory->data, memory->bytes, ONNXC_WORKSPACE_ALIGNMENT);
}

session *session_open(int64_t context, int64_t threads) {
    session *text = calloc(1, sizeof *text);
    onnxc_pool *pool = onnxc_pool_create(threads);
    size_t symbols = (size_t)chat_model()->symbol_count;
    if (text == NULL || pool == NULL || (text->symbols = calloc(2 * symbols, sizeof(int64_t))) == NULL) {
        fail("too little memory");
    }
    text->options = (onnxc_options)ONNXC_OPTIONS_INIT;
    text->options.parallel_for = onnxc_pool_parallel_for;
    text->options.pool = pool;
    text->options.threads = onnxc_pool_threads(pool);
    text->options.message = text->message;
    text->options.message_capacity = sizeof text->message;
    text->context = context;
    int64_t *positions = reserve(&text->positions, context * (int64_t)sizeof(int64_t));
    int64_t *mask = reserve(&text->mask, context * (int64_t)sizeof(int64_t));
    for (int64_t at = 0; at < context; at++) {
        positions[at] = at;
        mask[at] = 1;
    }
    /* Caches of one text, with room for the whole context. */
    for (int32_t at = 0; at < chat_model()->state_count; at++) {
        onnxc_state_info cache = onnxc_model_state(chat_model(), at);
        for (int32_t axis = 0; axis < cache.tensor.rank; axis++) {
            if (cache.tensor.symbols[axis] >= 0) {
                text->symbols[cache.tensor.symbols[axis]] = axis == cache.axis ? context : 1;
            }
        }
    }
    reserve(&text->state, chat_state_bytes(text->symbols, symbols));
    session_forget(text);
    return text;
}

void session_close(session *text) {
    onnxc_pool_destroy(text->options.pool);
    release(&text->positions);
    release(&text->mask);
    release(&text->state);
    release(&text->logits);
    release(&text->workspace);
    free(text->symbols);
    free(text);
}

int64_t session_length(const session *text) {
    return onnxc_state_symbol(text->state.data, onnxc_model_state(chat_model(), 0).size_symbol);
}

void session_forget(session *text) {
    int32_t status = chat_state_reset(text->state.data, text->state.bytes, text->symbols, (size_t)chat_model()->symbol_count);
    if (status != ONNXC_OK) {
        fail("the state cannot be reset");
    }
}

const float *session_feed(session *text, const int64_t *tokens, int64_t count) {
    int64_t length = session_length(text), end = length + count;
    if (end > text->context) {
        fail("the text is longer than the context");
    }
    int64_t dims[] = {1, count}, mask_dims[] = {1, end}, logits_dims[] = {1, count, SESSION_VOCABULARY};
    int64_t state_dims[] = {(int64_t)text->state.bytes};
    size_t bytes = (size_t)count * sizeof *tokens, logits_bytes = (size_t)(count * SESSION_VOCABULARY) * sizeof(float);
    float *logits = reserve(&text->logits, (int64_t)logits_bytes);
    onnxc_tensor inputs[CHAT_INPUT_COUNT], output = onnxc_make_tensor(logits, logits_bytes, ONNXC_FLOAT, 3, logits_dims);
    inputs[CHAT_INPUT_INPUT_IDS_INDEX] = onnxc_make_tensor(tokens, bytes, ONNXC_INT64, 2, dims);
    inputs[CHAT_INPUT_ATTENTION_MASK_INDEX] =
        onnxc_make_tensor(text->mask.data, (size_t)end * sizeof(int64_t), ONNXC_INT64, 2, mask_dims);
    inputs[CHAT_INPUT_POSITION_IDS_INDEX] =
        onnxc_make_tensor((int64_t *)text->positions.data + length, bytes, ONNXC_INT64, 2, dims);
    inputs[CHAT_INPUT_STATE_INDEX] =
        onnxc_make_tensor(text->state.data, text->state.bytes, ONNXC_UINT8, 1, state_dims);
    int64_t *symbols = text->symbols + chat_model()->symbol_count;
    reserve(&text->workspace, onnxc_model_workspace_for(chat_model(), inputs, CHAT_INPUT_COUNT, symbols));
    int32_t status = chat_run(inputs, CHAT_INPUT_COUNT, &output, 1, text->workspace.data, text->workspace.bytes,
                              &text->options);
    if (status != ONNXC_OK) {
        fail(text->message);
    }
    return logits + (count - 1) * SESSION_VOCABULARY;
}
