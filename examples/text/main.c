/* Reads a line and prints which of scikit-learn's data sets it is about, by the model that text.h and text.o were compiled
 * from: ./text < line, or with the line as arguments' only one: ./text "petals and sepals of iris plants". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

int main(int argc, char **argv) {
    static char buffer[1 << 16];
    static _Alignas(TEXT_WORKSPACE_ALIGNMENT) unsigned char room[1 << 20];
    const char *line = buffer;
    if (argc > 1) {
        line = argv[1];
    } else if (fgets(buffer, sizeof buffer, stdin) == NULL) {
        fprintf(stderr, "no line\n");
        return EXIT_FAILURE;
    }

    /* The model refers to the text where it is, and copies none of it. */
    onnxc_string text = {line, strcspn(line, "\n")};
    int64_t line_dims[] = {1, 1}, label_dims[] = {1}, probability_dims[] = {1, TEXT_OUTPUT_PROBABILITIES_DIM1};
    float probabilities[TEXT_OUTPUT_PROBABILITIES_DIM1];
    onnxc_tensor inputs[TEXT_INPUT_COUNT], outputs[TEXT_OUTPUT_COUNT];
    inputs[TEXT_INPUT_LINE_INDEX] = onnxc_make_tensor(&text, sizeof text, ONNXC_STRING, 2, line_dims);
    /* The run allocates the label: only the run knows the length of its text. */
    outputs[TEXT_OUTPUT_LABEL_INDEX] = onnxc_make_tensor(NULL, 0, ONNXC_STRING, 1, label_dims);
    outputs[TEXT_OUTPUT_PROBABILITIES_INDEX] =
        onnxc_make_tensor(probabilities, sizeof probabilities, ONNXC_FLOAT, 2, probability_dims);

    char message[256] = "";
    onnxc_options options = ONNXC_OPTIONS_INIT;
    options.allocate = onnxc_allocate;
    options.release = onnxc_release;
    options.message = message;
    options.message_capacity = sizeof message;
    int64_t needed = text_workspace_for(1);
    if (needed < 0 || needed > (int64_t)sizeof room) {
        fprintf(stderr, "a workspace of %lld bytes\n", (long long)needed);
        return EXIT_FAILURE;
    }
    int32_t status = text_run(inputs, TEXT_INPUT_COUNT, outputs, TEXT_OUTPUT_COUNT, room, sizeof room, &options);
    if (status != ONNXC_OK) {
        fprintf(stderr, "the model failed with status %d: %s\n", (int)status, message);
        return EXIT_FAILURE;
    }
    const onnxc_tensor *label = &outputs[TEXT_OUTPUT_LABEL_INDEX];
    const onnxc_string *name = label->data;
    float best = 0;
    for (int at = 0; at < TEXT_OUTPUT_PROBABILITIES_DIM1; at++) {
        best = probabilities[at] > best ? probabilities[at] : best;
    }
    printf("%.*s (probability %.3f)\n", (int)name->size, name->data, (double)best);
    options.release(options.allocator, label->data, label->bytes, ONNXC_WORKSPACE_ALIGNMENT);
    return EXIT_SUCCESS;
}
