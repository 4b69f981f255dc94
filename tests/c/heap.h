/* An allocator for tests, and runs that use it. Copies of it in one program would each count their own. */
#ifndef HEAP_H
#define HEAP_H

#include "check.h"

#include <onnxc.h>

#include <stdint.h>

/* The flag that cancels runs. */
static int32_t cancel;

/* What it counts; it may fail or cancel at its n-th call. */
static struct { int live, calls, fail_at, cancel_at; size_t bytes; } heap;

static void *take(void *allocator, size_t bytes, size_t alignment) {
    char *memory;
    CHECK(allocator == &heap && bytes > 0 && alignment == 64);
    heap.calls++;
    if (heap.calls == heap.fail_at) {
        return NULL;
    }
    if (heap.calls == heap.cancel_at) {
        cancel = 1;
    }
    memory = (char *)malloc(bytes + 128);
    CHECK(memory != NULL);
    heap.live++;
    heap.bytes += bytes;
    {
        char *aligned = memory + 64 + (64 - (uintptr_t)memory % 64) % 64;
        memcpy(aligned - sizeof memory, &memory, sizeof memory);
        return aligned;
    }
}

static void give(void *allocator, void *aligned, size_t bytes, size_t alignment) {
    char *memory;
    CHECK(allocator == &heap && aligned != NULL && alignment == 64);
    memcpy(&memory, (char *)aligned - sizeof memory, sizeof memory);
    heap.live--;
    heap.bytes -= bytes;
    free(memory);
}

static onnxc_options options;
static char message[300];

/* An empty heap, and options that use it. */
static void fresh_options(void) {
    onnxc_options init = ONNXC_OPTIONS_INIT;
    memset(&heap, 0, sizeof heap);
    memset(message, 0, sizeof message);
    cancel = 0;
    options = init;
    options.message = message;
    options.message_capacity = sizeof message;
    options.cancel = &cancel;
    options.allocate = take;
    options.release = give;
    options.allocator = &heap;
}

/* The first address for a workspace in memory that has 64 bytes more. */
static inline char *workspace_in(int64_t *memory) {
    char *start = (char *)memory;
    return start + (64 - (uintptr_t)start % 64) % 64;
}

/* Lets the run allocate outputs. */
static void without_data(onnxc_tensor *out, int outputs) {
    int at;
    for (at = 0; at < outputs; at++) {
        out[at].data = NULL;
    }
}

static void give_outputs(const onnxc_tensor *out, int outputs) {
    int at;
    for (at = 0; at < outputs; at++) {
        give(&heap, out[at].data, out[at].bytes, 64);
    }
}

/* Every allocation of a run that makes `calls`, each in turn: it fails, or the run is cancelled with blocks live; after
 * the last `unpolled` ones nothing looks at the flag. */
static inline void fail_each_allocation(
    int calls, int unpolled, onnxc_tensor *out, int outputs, int32_t (*run)(void), void (*reset)(void)
) {
    int at, output;
    for (at = 1; at <= calls; at++) {
        without_data(out, outputs);
        heap.fail_at = at;
        CHECK(run() == ONNXC_OUT_OF_MEMORY && strstr(message, "the allocator has no") != NULL);
        for (output = 0; output < outputs; output++) {
            CHECK(out[output].data == NULL);
        }
        CHECK(heap.live == 0 && heap.bytes == 0);
        reset();
    }
    for (at = 1; at <= calls; at++) {
        int32_t status;
        without_data(out, outputs);
        heap.cancel_at = at;
        status = run();
        CHECK(status == ONNXC_CANCELLED || (status == ONNXC_OK && at > calls - unpolled));
        if (status == ONNXC_OK) {
            give_outputs(out, outputs);
        }
        CHECK(heap.live == 0 && heap.bytes == 0);
        reset();
    }
}

#endif
