/* An allocator for tests. Copies of it in one program would each count their own. */
#ifndef HEAP_H
#define HEAP_H

#include "check.h"

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

#endif
