/* Runs code out of a library for macOS on a system that is none: maps its segments, fills in what the loader fills in, and calls
 * what it exports. Arguments: the library, and the name of a function. That of the digits example gives the model, and the program
 * prints the class with the greatest probability for its image; `total` is a function of a number, and the program prints the
 * results of two calls. */
#define _GNU_SOURCE
#include <onnxc.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sample.h"

static unsigned char file[1 << 22];

typedef struct segment {
    unsigned char *memory;
    uint64_t bytes;
    uint32_t protection;
} segment;

static segment segments[8];
static const unsigned char *info;

static uint32_t u32(const unsigned char *at) {
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static uint64_t u64(const unsigned char *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static uint64_t number(const unsigned char **at) {
    uint64_t value = 0;
    unsigned shift = 0;
    do {
        value |= (uint64_t)(**at & 0x7f) << shift;
        shift += 7;
    } while (*(*at)++ & 0x80);
    return value;
}

/* The same with a sign. */
static int64_t difference(const unsigned char **at) {
    const unsigned char *end = *at;
    uint64_t value = number(at);
    unsigned bits = 7 * (unsigned)(*at - end);
    return bits < 64 && (*at)[-1] & 0x40 ? (int64_t)(value | ~UINT64_C(0) << bits) : (int64_t)value;
}

static int64_t outside(void) {
    return 5;
}

static int64_t numbers[2] = {100, 2000};

static uint64_t address_of(const char *name) {
    if (strcmp(name, "_memcpy") == 0) {
        return (uint64_t)(uintptr_t)memcpy;
    }
    if (strcmp(name, "_outside") == 0) {
        return (uint64_t)(uintptr_t)outside;
    }
    if (strcmp(name, "_numbers") == 0) {
        return (uint64_t)(uintptr_t)numbers;
    }
    fail("a symbol that nothing has");
    return 0;
}

static void store(uint64_t value, unsigned char *at) {
    memcpy(at, &value, sizeof value);
}

/* Opcodes of addresses that move with the library. */
static void move(uint64_t slide) {
    const unsigned char *at = file + u32(info + 8), *end = at + u32(info + 12);
    unsigned char *place = NULL;
    while (at < end) {
        unsigned opcode = *at & 0xf0u, value = *at & 0xfu;
        at++;
        if (opcode == 0x00 || opcode == 0x10) {
            continue;
        }
        if (opcode == 0x20) {
            place = segments[value].memory + number(&at);
        } else if (opcode == 0x50) {
            for (; value > 0; value--, place += 8) {
                store(u64(place) + slide, place);
            }
        } else {
            fail("an opcode that is not known");
        }
    }
}

/* Opcodes of addresses of symbols outside. */
static void bind(void) {
    const unsigned char *at = file + u32(info + 16), *end = at + u32(info + 20);
    unsigned char *place = NULL;
    const char *name = NULL;
    int64_t addend = 0;
    while (at < end) {
        unsigned opcode = *at & 0xf0u, value = *at & 0xfu;
        at++;
        switch (opcode) {
        case 0x00:
        case 0x10:
        case 0x30:
        case 0x50:
            break;
        case 0x40:
            name = (const char *)at;
            at += strlen(name) + 1;
            break;
        case 0x60:
            addend = difference(&at);
            break;
        case 0x70:
            place = segments[value].memory + number(&at);
            break;
        case 0x90:
            store(address_of(name) + (uint64_t)addend, place);
            place += 8;
            break;
        default:
            fail("an opcode that is not known");
        }
    }
}

static unsigned char *load(const char *path) {
    FILE *from = fopen(path, "rb");
    size_t bytes = from == NULL ? 0 : fread(file, 1, sizeof file, from);
    const unsigned char *command = file + 32;
    uint32_t commands = u32(file + 16), count = 0, at;
    unsigned char *image;
    if (bytes < 1024 || bytes == sizeof file || u32(file) != 0xfeedfacf || u32(file + 12) != 6) {
        fail("no library of 64 bits");
    }
    image = mmap(NULL, 1 << 23, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (image == MAP_FAILED) {
        fail("no memory");
    }
    for (at = 0; at < commands; at++, command += u32(command + 4)) {
        if (u32(command) == 0x80000022) {
            info = command;
        }
        if (u32(command) != 0x19) {
            continue;
        }
        if (count == 8 || u64(command + 24) + u64(command + 32) > 1 << 23 || u64(command + 40) + u64(command + 48) > bytes) {
            fail("a segment that is too large");
        }
        segments[count].memory = image + u64(command + 24);
        segments[count].bytes = u64(command + 32);
        segments[count].protection = u32(command + 60) | (u32(command + 68) & 0x10 ? 0x100 : 0);
        memcpy(segments[count].memory, file + u64(command + 40), u64(command + 48));
        count++;
    }
    if (info == NULL) {
        fail("nothing for the loader");
    }
    move((uint64_t)(uintptr_t)image);
    bind();
    __builtin___clear_cache((char *)image, (char *)image + (1 << 23));
    for (at = 0; at < count; at++) {
        uint32_t wanted = segments[at].protection;
        int protection = PROT_READ | (wanted & 4 ? PROT_EXEC : 0) | ((wanted & 0x102) == 2 ? PROT_WRITE : 0);
        if (mprotect(segments[at].memory, segments[at].bytes, protection) != 0) {
            fail("no protection");
        }
    }
    return image;
}

/* Walks down the tree of names, by the edge that the rest of the name begins with. */
static void *exported(unsigned char *image, const char *name) {
    const unsigned char *tree = file + u32(info + 40), *node = tree;
    for (;;) {
        uint64_t terminal = number(&node);
        const unsigned char *children = node + terminal;
        unsigned left = *children++;
        if (*name == '\0') {
            if (terminal == 0 || number(&node) != 0) {
                fail("no such export");
            }
            return image + number(&node);
        }
        for (node = NULL; left > 0 && node == NULL; left--) {
            const char *edge = (const char *)children;
            uint64_t to;
            children += strlen(edge) + 1;
            to = number(&children);
            if (strncmp(edge, name, strlen(edge)) == 0) {
                name += strlen(edge);
                node = tree + to;
            }
        }
        if (node == NULL) {
            fail("no such export");
        }
    }
}

static void predict(void *address) {
    static float probabilities[10];
    const onnxc_model *(*function)(void);
    const onnxc_model *model;
    onnxc_value_info in, out;
    onnxc_tensor input, output;
    void *workspace;
    int32_t status, best = 0, at;
    memcpy(&function, &address, sizeof address);
    model = function();
    in = onnxc_model_input(model, 0);
    out = onnxc_model_output(model, 0);
    workspace = aligned_alloc(64, ((size_t)model->workspace_bytes + 63) / 64 * 64 + 64);
    input.data = (void *)sample_image;
    input.bytes = sizeof sample_image;
    input.dtype = in.dtype;
    input.rank = in.rank;
    input.dims = (int64_t *)in.dims;
    output.data = probabilities;
    output.bytes = sizeof probabilities;
    output.dtype = out.dtype;
    output.rank = out.rank;
    output.dims = (int64_t *)out.dims;
    status = onnxc_model_run(model)(&input, 1, &output, 1, workspace, (size_t)model->workspace_bytes, NULL);
    if (status != ONNXC_OK) {
        fail("the run failed");
    }
    for (at = 1; at < 10; at++) {
        best = probabilities[at] > probabilities[best] ? at : best;
    }
    printf("predicted %d (probability %.3f), label %d\n", (int)best, (double)probabilities[best], sample_label);
}

int main(int argc, char **argv) {
    char name[256];
    void *address;
    if (argc < 3) {
        fail("a library and a name");
    }
    snprintf(name, sizeof name, "_%s", argv[2]);
    address = exported(load(argv[1]), name);
    if (strcmp(argv[2], "total") == 0) {
        int64_t (*total)(int64_t), first;
        memcpy(&total, &address, sizeof address);
        first = total(7);
        printf("%" PRId64 " %" PRId64 "\n", first, total(7));
    } else {
        predict(address);
    }
    return 0;
}
