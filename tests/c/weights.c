/* A model with its weights apart, and files in all states. `weights FILE OTHER CUT DAMAGED` names its own file, one of another model, one
 * that is cut off and a changed one; prints the results of a run. `hold FILE` maps the file, says so and waits;
 * `pages FILE` prints the kilobytes of the mapping that are shared with others, and that are private. */
#include "net.h"

#include "check.h"

static unsigned char memory[NET_WORKSPACE_BYTES + 64], block[ONNXC_WEIGHTS_HEADER + 64];
static float image[NET_INPUT_IMAGE_BYTES / 4], results[NET_OUTPUT_PROBABILITIES_BYTES / 4];
static char message[512];

static unsigned char *aligned(unsigned char *bytes) {
    return bytes + (64 - (uintptr_t)bytes % 64) % 64;
}

static int32_t run(const onnxc_options *options) {
    size_t at;
    for (at = 0; at < sizeof image / sizeof *image; at++) {
        image[at] = (float)(at % 7) / 8;
    }
    message[0] = 0;
    return net_predict((void *)image, (void *)results, aligned(memory), options);
}

static int says(const char *text) {
    if (strstr(message, text) == NULL) {
        fprintf(stderr, "the message is `%s`, without `%s`\n", message, text);
        return 0;
    }
    return 1;
}

/* Statuses of what is not a file of this model. */
static void refused(const char *other, const char *cut, const char *damaged, const onnxc_weights *own) {
    unsigned char *copy = aligned(block);
    onnxc_options options = ONNXC_OPTIONS_INIT;
    onnxc_weights weights;
    options.message = message;
    options.message_capacity = sizeof message;
    CHECK(run(NULL) == ONNXC_NEEDS_WEIGHTS);
    CHECK(run(&options) == ONNXC_NEEDS_WEIGHTS && says("`net` has its weights in a file"));
    /* A struct that ends before the fields has none. */
    options.weights = own->data;
    options.weights_bytes = own->bytes;
    options.struct_size = offsetof(onnxc_options, weights);
    CHECK(run(&options) == ONNXC_NEEDS_WEIGHTS);
    options.struct_size = sizeof options;
    CHECK(run(&options) == ONNXC_OK);
    options.weights = (const char *)own->data + 4;
    CHECK(run(&options) == ONNXC_MISALIGNED && says("64"));
    options.weights = own->data;
    options.weights_bytes = NET_WEIGHTS_BYTES - 1;
    CHECK(run(&options) == ONNXC_BAD_WEIGHTS && says("`net` needs"));
    options.weights_bytes = 17;
    CHECK(run(&options) == ONNXC_BAD_WEIGHTS && says("17 bytes"));
    memset(copy, 0, ONNXC_WEIGHTS_HEADER);
    options.weights = copy;
    options.weights_bytes = NET_WEIGHTS_BYTES;
    CHECK(run(&options) == ONNXC_BAD_WEIGHTS && says("not a file of weights"));
    memcpy(copy, own->data, ONNXC_WEIGHTS_HEADER);
    copy[8 * 7] ^= 1;
    CHECK(run(&options) == ONNXC_OTHER_WEIGHTS && says("layout number"));

    CHECK(onnxc_weights_map(other, net_model(), &weights, message, sizeof message) == ONNXC_OTHER_WEIGHTS);
    CHECK(weights.data == NULL && says("`other`") && says("`net`") && says(other));
    CHECK(onnxc_weights_map(cut, net_model(), &weights, message, sizeof message) == ONNXC_BAD_WEIGHTS);
    CHECK(says("bytes"));
    CHECK(onnxc_weights_map(damaged, net_model(), &weights, message, sizeof message) == ONNXC_BAD_WEIGHTS);
    CHECK(says("damaged"));
    CHECK(onnxc_weights_map("/no/such/file", net_model(), &weights, NULL, 0) == ONNXC_BAD_WEIGHTS);
    CHECK(onnxc_weights_map(NULL, net_model(), &weights, message, sizeof message) == ONNXC_NULL_POINTER);

    options.weights = NULL;
    CHECK(net_bind_weights(&options, NULL, 0) == ONNXC_NULL_POINTER);
    CHECK(net_bind_weights(&options, (const char *)own->data + 4, own->bytes) == ONNXC_MISALIGNED);
    CHECK(net_bind_weights(&options, own->data, NET_WEIGHTS_BYTES - 1) == ONNXC_BAD_WEIGHTS && says("`net`"));
    CHECK(net_bind_weights(&options, copy, NET_WEIGHTS_BYTES) == ONNXC_OTHER_WEIGHTS && says("with the layout"));
    CHECK(options.weights == NULL);
    options.message_capacity = 9;
    CHECK(net_bind_weights(&options, copy, NET_WEIGHTS_BYTES) == ONNXC_OTHER_WEIGHTS);
    CHECK(strcmp(message, "the weig") == 0);
}

/* Pages of the mapping of a file, as the system counts them. */
static void pages(const char *path) {
    char line[512];
    long shared = 0, kilobytes = 0, other = 0;
    int is_own = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) {
        if (strchr(line, '-') != NULL && strchr(line, ':') != NULL && strstr(line, "kB") == NULL) {
            is_own = strstr(line, path) != NULL;
        } else if (is_own && sscanf(line, "Shared_Clean: %ld kB", &kilobytes) == 1) {
            shared += kilobytes;
        } else if (is_own && (sscanf(line, "Private_Clean: %ld kB", &kilobytes) == 1 ||
                              sscanf(line, "Private_Dirty: %ld kB", &kilobytes) == 1 ||
                              sscanf(line, "Shared_Dirty: %ld kB", &kilobytes) == 1)) {
            other += kilobytes;
        }
    }
    fclose(maps);
    printf("%ld %ld\n", shared, other);
}

int main(int count, char **arguments) {
    onnxc_options options = ONNXC_OPTIONS_INIT;
    onnxc_weights weights;
    size_t at;
    CHECK(count >= 3);
    if (onnxc_weights_map(arguments[2], net_model(), &weights, message, sizeof message) != ONNXC_OK) {
        fprintf(stderr, "%s\n", message);
        return 1;
    }
    if (strcmp(arguments[1], "weights") == 0) {
        CHECK(count == 6);
        refused(arguments[3], arguments[4], arguments[5], &weights);
    }
    CHECK(net_bind_weights(&options, weights.data, weights.bytes) == ONNXC_OK);
    CHECK(options.weights == weights.data && options.weights_bytes == weights.bytes);
    CHECK(run(&options) == ONNXC_OK);
    if (strcmp(arguments[1], "hold") == 0) {
        puts("ready");
        fflush(stdout);
        getchar();
    } else if (strcmp(arguments[1], "pages") == 0) {
        pages(arguments[2]);
    } else {
        for (at = 0; at < sizeof results / sizeof *results; at++) {
            uint32_t bits;
            memcpy(&bits, &results[at], sizeof bits);
            printf("%08x ", (unsigned)bits);
        }
        puts("");
    }
    onnxc_weights_unmap(&weights);
    onnxc_weights_unmap(&weights);
    CHECK(weights.data == NULL && weights.bytes == 0);
    return 0;
}
