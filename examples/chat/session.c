/* The inputs of the model are input_ids i64[1, count], attention_mask i64[1, past + count], position_ids i64[1, count], and for
 * each layer past_key_values.N.key and .value [1, heads, past, head size]; its outputs are logits f32[1, count, vocabulary],
 * present.N.key and .value [1, heads, past + count, head size]. */
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CACHE = CHAT_INPUT_POSITION_IDS_INDEX + 1, CACHES = CHAT_INPUT_COUNT - FIRST_CACHE };
_Static_assert(CHAT_OUTPUT_LOGITS_DTYPE == ONNXC_FLOAT, "logits are read as f32");

typedef struct memory {
    void *data;
    size_t bytes;
} memory;

struct session {
    onnxc_options options;
    char message[256];
    int64_t context, past;
    /* 0, 1, 2 and so on; and ones. */
    memory positions, mask;
    /* Of each cache, one half is read and the other written; `side` is the half that is read next. */
    memory caches[CACHES][2];
    int side;
    memory logits, workspace;
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
    if (text == NULL || pool == NULL) {
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
    return text;
}

void session_close(session *text) {
    onnxc_pool_destroy(text->options.pool);
    for (int at = 0; at < CACHES; at++) {
        release(&text->caches[at][0]);
        release(&text->caches[at][1]);
    }
    release(&text->positions);
    release(&text->mask);
    release(&text->logits);
    release(&text->workspace);
    free(text);
}

int64_t session_length(const session *text) {
    return text->past;
}

const float *session_feed(session *text, const int64_t *tokens, int64_t count) {
    int64_t end = text->past + count;
    if (end > text->context) {
        fail("the text is longer than the context");
    }
    int64_t dims[] = {1, count}, mask_dims[] = {1, end}, logits_dims[] = {1, count, SESSION_VOCABULARY};
    size_t bytes = (size_t)count * sizeof *tokens, logits_bytes = (size_t)(count * SESSION_VOCABULARY) * sizeof(float);
    onnxc_tensor inputs[CHAT_INPUT_COUNT], outputs[CHAT_OUTPUT_COUNT];
    inputs[CHAT_INPUT_INPUT_IDS_INDEX] = onnxc_make_tensor(tokens, bytes, ONNXC_INT64, 2, dims);
    inputs[CHAT_INPUT_ATTENTION_MASK_INDEX] =
        onnxc_make_tensor(text->mask.data, (size_t)end * sizeof(int64_t), ONNXC_INT64, 2, mask_dims);
    inputs[CHAT_INPUT_POSITION_IDS_INDEX] =
        onnxc_make_tensor((int64_t *)text->positions.data + text->past, bytes, ONNXC_INT64, 2, dims);
    float *logits = reserve(&text->logits, (int64_t)logits_bytes);
    outputs[CHAT_OUTPUT_LOGITS_INDEX] = onnxc_make_tensor(logits, logits_bytes, ONNXC_FLOAT, 3, logits_dims);

    int64_t past_dims[CACHES][4], present_dims[CACHES][4];
    for (int at = 0; at < CACHES; at++) {
        onnxc_value_info info = onnxc_model_input(chat_model(), FIRST_CACHE + at);
        int64_t row = info.dims[1] * info.dims[3] * info.element_bytes;
        memcpy(past_dims[at], (int64_t[]){1, info.dims[1], text->past, info.dims[3]}, sizeof past_dims[at]);
        memcpy(present_dims[at], (int64_t[]){1, info.dims[1], end, info.dims[3]}, sizeof present_dims[at]);
        void *past = reserve(&text->caches[at][text->side], text->context * row);
        void *present = reserve(&text->caches[at][!text->side], text->context * row);
        inputs[FIRST_CACHE + at] = onnxc_make_tensor(past, (size_t)(text->past * row), info.dtype, 4, past_dims[at]);
        outputs[1 + at] = onnxc_make_tensor(present, (size_t)(end * row), info.dtype, 4, present_dims[at]);
    }

    int64_t symbols[8];
    int64_t workspace = onnxc_model_workspace_for(chat_model(), inputs, CHAT_INPUT_COUNT, symbols);
    reserve(&text->workspace, workspace);
    int32_t status = chat_run(inputs, CHAT_INPUT_COUNT, outputs, CHAT_OUTPUT_COUNT, text->workspace.data,
                              text->workspace.bytes, &text->options);
    if (status != ONNXC_OK) {
        fail(text->message);
    }
    text->past = end;
    text->side = !text->side;
    return logits + (count - 1) * SESSION_VOCABULARY;
}

void session_forget(session *text) {
    text->past = 0;
}
