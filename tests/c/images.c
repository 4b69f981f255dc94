/* An image that a model decodes, in memory of the run and of the caller; streams that are none, and one that is too large. */
#include <stdio.h>
#include <string.h>

#include "onnxc.h"

extern int32_t images_run(const onnxc_tensor *inputs, size_t input_count, onnxc_tensor *outputs, size_t output_count,
                          void *workspace, size_t workspace_bytes, const onnxc_options *options);

static char message[256];
static int blocks;

static void *allocate(void *allocator, size_t bytes, size_t alignment) {
    blocks++;
    return onnxc_allocate(allocator, bytes, alignment);
}

static void release(void *allocator, void *memory, size_t bytes, size_t alignment) {
    blocks--;
    onnxc_release(allocator, memory, bytes, alignment);
}

static int32_t decode(const char *stream, size_t size, void *data, size_t bytes, onnxc_tensor *image, int64_t *dims,
                      const onnxc_options *options) {
    static unsigned char memory[(1 << 16) + 64];
    unsigned char *room = memory + (64 - (uintptr_t)memory % 64);
    int64_t length[1];
    onnxc_tensor input;
    length[0] = (int64_t)size;
    input = onnxc_make_tensor(stream, size, ONNXC_UINT8, 1, length);
    *image = onnxc_make_tensor(data, bytes, ONNXC_UINT8, 3, dims);
    return images_run(&input, 1, image, 1, room, 1 << 16, options);
}

#define CHECK(condition)                                              \
    if (!(condition)) {                                               \
        printf("line %d: %s (%s)\n", __LINE__, #condition, message);  \
        return 1;                                                     \
    }

int main(void) {
    static const char pixels[] = "P6 2 1 255\nabcxyz", none[] = "no image", large[] = "P6 99999 99999 255\n";
    onnxc_options options = ONNXC_OPTIONS_INIT;
    onnxc_tensor image;
    int64_t dims[3] = {1, 2, 3};
    char room[6];
    options.message = message;
    options.message_capacity = sizeof message;

    CHECK(decode(pixels, 17, room, 6, &image, dims, &options) == ONNXC_NEEDS_ALLOCATOR);
    options.allocate = allocate;
    options.release = release;
    CHECK(decode(pixels, 17, room, 6, &image, dims, &options) == ONNXC_OK);
    CHECK(memcmp(room, "cbazyx", 6) == 0 && blocks == 0);
    CHECK(decode(pixels, 17, NULL, 0, &image, dims, &options) == ONNXC_OK);
    CHECK(dims[0] == 1 && dims[1] == 2 && dims[2] == 3 && image.bytes == 6);
    CHECK(memcmp(image.data, "cbazyx", 6) == 0 && blocks == 1);
    release(NULL, image.data, image.bytes, ONNXC_WORKSPACE_ALIGNMENT);

    CHECK(decode(none, sizeof none, NULL, 0, &image, dims, &options) == ONNXC_OK);
    CHECK(dims[0] == 0 && dims[1] == 0 && dims[2] == 3 && image.bytes == 0);
    if (image.data != NULL) {
        release(NULL, image.data, image.bytes, ONNXC_WORKSPACE_ALIGNMENT);
    }
    CHECK(decode(large, sizeof large, NULL, 0, &image, dims, &options) == ONNXC_OUT_OF_MEMORY);
    CHECK(strstr(message, "the image needs more memory") != NULL && image.data == NULL && blocks == 0);
    puts("good");
    return 0;
}
