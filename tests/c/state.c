/* Tensors in a state block: set, read, and where their elements lie.
 *
 * The model: `past.key` and `past.value` f32[batch, 2, past, 4] grow, `past.cross.key` and `past.cross.value` f32[batch, 2, frames, 4]
 * are only read; keys lie in panels. */
#include "check.h"
#include "state.h"

enum { BATCH = 2, HEADS = 2, FRAMES = 21, CAPACITY = 9, SIZE = 4, PAST = 5 };

static float tensor[BATCH * HEADS * FRAMES * SIZE], read[BATCH * HEADS * FRAMES * SIZE];
static double memory[4096];

static int32_t symbol(const char *name) {
    int32_t at;
    for (at = 0; at < state_model()->symbol_count; at++) {
        if (strcmp(onnxc_model_symbol(state_model(), at), name) == 0) {
            return at;
        }
    }
    CHECK(!"the model has the symbol");
    return -1;
}

static void check(void *state, const char *name, size_t room, size_t count) {
    int32_t at = onnxc_state_index(state_model(), name);
    size_t row, column, bytes = BATCH * HEADS * count * SIZE * sizeof(float);
    onnxc_state_info info;
    const float *there;
    CHECK(at >= 0);
    info = onnxc_model_state(state_model(), at);
    for (row = 0; row < BATCH * HEADS * count * SIZE; row++) {
        tensor[row] = (float)row + (float)at / 8;
        read[row] = -1;
    }
    CHECK(onnxc_state_tensor_bytes(state_model(), state, at) == bytes);
    onnxc_state_set(state_model(), state, at, tensor);
    onnxc_state_get(state_model(), state, at, read);
    CHECK(memcmp(tensor, read, bytes) == 0);
    there = (const float *)onnxc_state_data(state_model(), state, at);
    for (row = 0; row < BATCH * HEADS * count; row++) {
        for (column = 0; column < SIZE; column++) {
            size_t before = row / count, i = row % count, panel = (size_t)info.panel, place;
            if (panel == 0) {
                place = (before * room + i) * SIZE + column;
            } else {
                place = ((before * ((room + panel - 1) / panel) + i / panel) * SIZE + column) * panel + i % panel;
            }
            CHECK(there[place] == tensor[row * SIZE + column]);
        }
    }
}

int main(void) {
    static const char *const keys[] = {"past.key", "past.cross.key"};
    int64_t symbols[16] = {0}, bytes;
    size_t count = (size_t)state_model()->symbol_count;
    char *state = (char *)memory + (64 - (uintptr_t)memory % 64) % 64;
    int32_t at;
    CHECK(count <= 16);
    symbols[symbol("batch")] = BATCH;
    symbols[symbol("frames")] = FRAMES;
    symbols[symbol("past.capacity")] = CAPACITY;
    bytes = state_state_bytes(symbols, count);
    CHECK(bytes > 0 && (size_t)bytes + 64 <= sizeof memory);
    CHECK(state_state_reset(state, (size_t)bytes, symbols, count) == ONNXC_OK);
    onnxc_state_set_symbol(state, symbol("past"), PAST);
    for (at = 0; at < 2; at++) {
        onnxc_state_info info = onnxc_model_state(state_model(), onnxc_state_index(state_model(), keys[at]));
        CHECK(info.axis == 2 && info.panel > 0 && (info.size_symbol < 0) == (at == 1));
    }
    CHECK(onnxc_state_index(state_model(), "x") == -1);
    /* Twice: none wrote into another. */
    for (at = 0; at < 2; at++) {
        check(state, "past.key", CAPACITY, PAST);
        check(state, "past.cross.value", FRAMES, FRAMES);
        check(state, "past.cross.key", FRAMES, FRAMES);
        check(state, "past.value", CAPACITY, PAST);
    }
    printf("ok");
    return 0;
}
