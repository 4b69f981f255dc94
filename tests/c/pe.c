/* Runs a model out of a DLL for Windows on a system that is none: maps the image, which imports nothing and needs no
 * relocation, and calls what it exports. Arguments: the DLL, and the name of the model's function. Prints the class with the
 * greatest probability for the image of the digits example. */
#define _GNU_SOURCE
#include <onnxc.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sample.h"

static uint32_t u32(const unsigned char *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint32_t u16(const unsigned char *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8;
}

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* The image as it is in memory: sections at their addresses. */
static unsigned char *load(const char *path) {
    static unsigned char file[1 << 22];
    FILE *from = fopen(path, "rb");
    size_t bytes = from == NULL ? 0 : fread(file, 1, sizeof file, from);
    const unsigned char *header = file + u32(file + 0x3c), *optional = header + 24, *section;
    uint32_t sections = u16(header + 6), at;
    unsigned char *image;
    if (bytes < 1024 || memcmp(header, "PE\0\0", 4) != 0 || u16(optional) != 0x20b) {
        fail("no image of 64 bits");
    }
    /* Data directories 1 and 5 are imports and relocations. */
    if (u32(optional + 112 + 8) != 0 || u32(optional + 112 + 8 * 5) != 0) {
        fail("the image imports functions or needs relocations");
    }
    image = mmap(NULL, u32(optional + 56), PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (image == MAP_FAILED) {
        fail("no memory");
    }
    memcpy(image, file, u32(optional + 60));
    section = optional + u16(header + 20);
    for (at = 0; at < sections; at++, section += 40) {
        uint32_t size = u32(section + 16) < u32(section + 8) ? u32(section + 16) : u32(section + 8);
        memcpy(image + u32(section + 12), file + u32(section + 20), size);
    }
    __builtin___clear_cache((char *)image, (char *)image + u32(optional + 56));
    return image;
}

static void *exported(unsigned char *image, const char *name) {
    const unsigned char *optional = image + u32(image + 0x3c) + 24, *table = image + u32(optional + 112);
    uint32_t names = u32(table + 24), at;
    for (at = 0; at < names; at++) {
        const unsigned char *text = image + u32(image + u32(table + 32) + 4 * at);
        if (strcmp((const char *)text, name) == 0) {
            uint32_t number = u16(image + u32(table + 36) + 2 * at);
            return image + u32(image + u32(table + 28) + 4 * number);
        }
    }
    fail("no such export");
    return NULL;
}

int main(int argc, char **argv) {
    static float probabilities[10];
    const onnxc_model *(*function)(void);
    const onnxc_model *model;
    onnxc_value_info in, out;
    onnxc_tensor input, output;
    void *address, *workspace;
    int32_t status, best = 0, at;
    if (argc < 3) {
        fail("a DLL and a name");
    }
    address = exported(load(argv[1]), argv[2]);
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
    return 0;
}
