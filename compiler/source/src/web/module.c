/* What a module of WebAssembly exports beside its memory: for the ES module that comes with it. */
#include "onnxc.h"
#include "MODEL.h"

#define EXPORTED(name) __attribute__((export_name(#name)))

/* ---- Functions of a C library that compilers call by themselves. ---- */

#undef memcpy
#undef memmove
#undef memset

#if defined(__wasm_bulk_memory__)
void *memcpy(void *to, const void *from, size_t bytes) {
    return __builtin_memcpy(to, from, bytes);
}

void *memmove(void *to, const void *from, size_t bytes) {
    return __builtin_memmove(to, from, bytes);
}

void *memset(void *to, int value, size_t bytes) {
    return __builtin_memset(to, value, bytes);
}
#else
/* Accesses to volatile memory do not become calls of these functions again. */
void *memcpy(void *to, const void *from, size_t bytes) {
    unsigned char *target = (unsigned char *)to;
    const unsigned char *source = (const unsigned char *)from;
    size_t at = 0;
    if ((((uintptr_t)target | (uintptr_t)source) & 3) == 0) {
        for (; at + 4 <= bytes; at += 4) {
            *(volatile uint32_t *)(void *)(target + at) = *(const uint32_t *)(const void *)(source + at);
        }
    }
    for (; at < bytes; at++) {
        *(volatile unsigned char *)(target + at) = source[at];
    }
    return to;
}

void *memmove(void *to, const void *from, size_t bytes) {
    unsigned char *target = (unsigned char *)to;
    const unsigned char *source = (const unsigned char *)from;
    if (target <= source || target >= source + bytes) {
        return memcpy(to, from, bytes);
    }
    while (bytes > 0) {
        bytes--;
        *(volatile unsigned char *)(target + bytes) = source[bytes];
    }
    return to;
}

void *memset(void *to, int value, size_t bytes) {
    unsigned char *target = (unsigned char *)to;
    size_t at;
    for (at = 0; at < bytes; at++) {
        *(volatile unsigned char *)(target + at) = (unsigned char)value;
    }
    return to;
}
#endif

/* A product of 128 bits, by which compilers find out whether one of 64 bits is too large. */
__int128 __multi3(__int128 a, __int128 b);

__int128 __multi3(__int128 a, __int128 b) {
    const uint64_t low_a = (uint64_t)a, low_b = (uint64_t)b;
    const uint64_t high_a = (uint64_t)((unsigned __int128)a >> 64), high_b = (uint64_t)((unsigned __int128)b >> 64);
    const uint64_t a0 = low_a & 0xffffffffu, a1 = low_a >> 32, b0 = low_b & 0xffffffffu, b1 = low_b >> 32;
    const uint64_t low = a0 * b0, middle = a1 * b0 + (low >> 32), rest = a0 * b1 + (middle & 0xffffffffu);
    const uint64_t high = a1 * b1 + (middle >> 32) + (rest >> 32) + low_a * high_b + high_a * low_b;
    return (__int128)((unsigned __int128)high << 64 | (rest << 32 | (low & 0xffffffffu)));
}

/* ---- Memory: multiples of 64 bytes. Free blocks lie in a list in the order of their addresses, none beside another. ---- */

typedef struct block {
    struct block *next;
    size_t bytes;
} block;

#define GRAIN 64u
#define PAGE 65536u

/* The linker has this where its own memory ends. */
extern unsigned char __heap_base;

static block *free_blocks;

/* Behind all blocks; 0 before the first. It may be 2^32. */
static uint64_t heap_end;

static uint64_t whole_grains(size_t bytes) {
    return ((uint64_t)(bytes > 0 ? bytes : 1) + (GRAIN - 1)) / GRAIN * GRAIN;
}

EXPORTED(allocate)
void *onnxc_module_allocate(size_t bytes) {
    const uint64_t wanted = whole_grains(bytes), room = (uint64_t)__builtin_wasm_memory_size(0) * PAGE;
    block **at;
    uintptr_t start;
    for (at = &free_blocks; *at != NULL; at = &(*at)->next) {
        block *const found = *at;
        if (found->bytes == wanted) {
            *at = found->next;
            return found;
        }
        if (found->bytes > wanted) {
            block *const rest = (block *)(void *)((unsigned char *)found + (size_t)wanted);
            rest->next = found->next;
            rest->bytes = found->bytes - (size_t)wanted;
            *at = rest;
            return found;
        }
    }
    if (heap_end == 0) {
        heap_end = ((uint64_t)(uintptr_t)&__heap_base + (GRAIN - 1)) / GRAIN * GRAIN;
    }
    if (heap_end + wanted > room) {
        const uint64_t pages = (heap_end + wanted - room + (PAGE - 1)) / PAGE;
        if (pages > 65535 || __builtin_wasm_memory_grow(0, (size_t)pages) == (size_t)-1) {
            return NULL;
        }
    }
    start = (uintptr_t)heap_end;
    heap_end += wanted;
    return (void *)start;
}

EXPORTED(release)
void onnxc_module_release(void *memory, size_t bytes) {
    block **at = &free_blocks, **before = NULL;
    block *given = (block *)memory;
    if (memory == NULL) {
        return;
    }
    while (*at != NULL && (uintptr_t)*at < (uintptr_t)memory) {
        before = at;
        at = &(*at)->next;
    }
    given->bytes = (size_t)whole_grains(bytes);
    given->next = *at;
    *at = given;
    if (given->next != NULL && (uintptr_t)given + given->bytes == (uintptr_t)given->next) {
        given->bytes += given->next->bytes;
        given->next = given->next->next;
    }
    if (before != NULL && (uintptr_t)*before + (*before)->bytes == (uintptr_t)given) {
        (*before)->bytes += given->bytes;
        (*before)->next = given->next;
        at = before;
        given = *before;
    }
    if ((uint64_t)(uintptr_t)given + given->bytes == heap_end) {
        heap_end = (uintptr_t)given;
        *at = NULL;
    }
}

static void *allocate_for_run(void *allocator, size_t bytes, size_t alignment) {
    (void)allocator;
    (void)alignment;
    return onnxc_module_allocate(bytes);
}

static void release_of_run(void *allocator, void *memory, size_t bytes, size_t alignment) {
    (void)allocator;
    (void)alignment;
    onnxc_module_release(memory, bytes);
}

/* ---- The model. ---- */

/* The description of a program, the model's own first; NULL behind the last. */
EXPORTED(program)
const onnxc_model *onnxc_module_program(int32_t number) {
    const onnxc_model *model = MODEL_model();
    for (; model != NULL && number > 0; number--) {
        model = onnxc_model_next(model);
    }
    return model;
}

EXPORTED(workspace)
int64_t onnxc_module_workspace(const onnxc_model *model, const onnxc_tensor *inputs, int64_t *symbols) {
    return onnxc_model_workspace_for(model, inputs, (size_t)model->input_count, symbols);
}

EXPORTED(output_dim)
int64_t onnxc_module_output_dim(const onnxc_model *model, int32_t output, int32_t axis, const int64_t *symbols) {
    const onnxc_value_info info = onnxc_model_output(model, output);
    return onnxc_value_dim(&info, axis, symbols);
}

EXPORTED(run)
int32_t onnxc_module_run(const onnxc_model *model, const onnxc_tensor *inputs, onnxc_tensor *outputs, void *memory, size_t bytes,
                         uint64_t seed, char *message, size_t capacity) {
    onnxc_options options = ONNXC_OPTIONS_INIT;
    options.allocate = allocate_for_run;
    options.release = release_of_run;
    options.message = message;
    options.message_capacity = capacity;
    options.seed = seed;
    return onnxc_model_run(model)(inputs, (size_t)model->input_count, outputs, (size_t)model->output_count, memory, bytes, &options);
}

EXPORTED(state_bytes)
int64_t onnxc_module_state_bytes(const onnxc_model *model, const int64_t *symbols) {
    return onnxc_model_state_bytes(model)(symbols, (size_t)model->symbol_count);
}

EXPORTED(state_reset)
int32_t onnxc_module_state_reset(const onnxc_model *model, void *state, size_t bytes, const int64_t *symbols) {
    return onnxc_model_state_reset(model)(state, bytes, symbols, (size_t)model->symbol_count);
}

/* Copies a tensor of a state block; gives its bytes, also where there is nothing to copy from or to. */
EXPORTED(state_move)
size_t onnxc_module_state_move(const onnxc_model *model, void *state, int32_t index, const void *from, void *to) {
    return onnxc_state_move(model, state, index, from, to);
}
