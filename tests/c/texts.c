/* Texts in and out: where the run allocates, and in memory of the caller's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxc.h"

extern int32_t texts_run(const onnxc_tensor *inputs, size_t input_count, onnxc_tensor *outputs, size_t output_count,
                         void *workspace, size_t workspace_bytes, const onnxc_options *options);

static char message[256];

static int32_t join(const onnxc_string *x, onnxc_string *y, void *data, size_t bytes, onnxc_tensor *z,
                    int64_t *dims, onnxc_options *options) {
    static unsigned char memory[(1 << 16) + 64];
    unsigned char *room = memory + (64 - (uintptr_t)memory % 64);
    int64_t two[] = {2};
    onnxc_tensor inputs[2];
    int32_t status;
    dims[0] = 2;
    inputs[0] = onnxc_make_tensor(x, 2 * sizeof *x, ONNXC_STRING, 1, two);
    inputs[1] = onnxc_make_tensor(y, 2 * sizeof *y, ONNXC_STRING, 1, two);
    *z = onnxc_make_tensor(data, bytes, ONNXC_STRING, 1, dims);
    status = texts_run(inputs, 2, z, 1, room, 1 << 16, options);
    return status;
}

static int is(const onnxc_string *string, const char *text) {
    return string->size == strlen(text) && memcmp(string->data, text, string->size) == 0;
}

#define CHECK(condition)                                              \
    if (!(condition)) {                                               \
        printf("line %d: %s (%s)\n", __LINE__, #condition, message);  \
        return 1;                                                     \
    }

int main(void) {
    onnxc_options options = ONNXC_OPTIONS_INIT;
    onnxc_string x[] = {{"gr\xc3\xbc", 4}, {NULL, 0}}, y[] = {{"n", 1}, {"a\0b", 3}};
    onnxc_string room[2 + 1], *strings;
    onnxc_tensor z, again;
    int64_t dims[1], more[1];
    options.message = message;
    options.message_capacity = sizeof message;

    CHECK(join(x, y, NULL, 0, &z, dims, &options) == ONNXC_NEEDS_ALLOCATOR);
    options.allocate = onnxc_allocate;
    options.release = onnxc_release;
    CHECK(join(x, y, NULL, 0, &z, dims, &options) == ONNXC_OK);
    strings = z.data;
    CHECK(z.bytes == 2 * sizeof *strings + 8);
    CHECK(is(&strings[0], "gr\xc3\xbcn"));
    CHECK(strings[1].size == 3 && memcmp(strings[1].data, "a\0b", 3) == 0);

    /* What a run gives, a run takes. */
    CHECK(join(x, strings, NULL, 0, &again, more, &options) == ONNXC_OK);
    CHECK(is(again.data, "gr\xc3\xbcgr\xc3\xbcn"));
    onnxc_release(NULL, again.data, again.bytes, ONNXC_WORKSPACE_ALIGNMENT);
    onnxc_release(NULL, z.data, z.bytes, ONNXC_WORKSPACE_ALIGNMENT);

    /* Eight bytes of text behind two elements. */
    CHECK(join(x, y, room, 2 * sizeof *room + 8, &z, dims, &options) == ONNXC_OK);
    CHECK(z.data == room && is(room, "gr\xc3\xbcn"));
    CHECK(join(x, y, room, 2 * sizeof *room + 7, &z, dims, &options) == ONNXC_BAD_BYTES);
    CHECK(strstr(message, "39 bytes, needs 40") != NULL);

    /* A text that is not there. */
    x[1].size = 2;
    CHECK(join(x, y, NULL, 0, &z, dims, &options) == ONNXC_NULL_POINTER);
    CHECK(z.data == NULL && z.bytes == 0);
    puts("good");
    return 0;
}
