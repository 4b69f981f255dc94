/* Classifies one image of a handwritten digit with the model that digits.h and digits.o were compiled from. */
#include <stdio.h>
#include <stdlib.h>

#include "digits.h"
#include "sample.h"

int main(void) {
    /* Room to move the start to the alignment that a run asks for. */
    static unsigned char memory[DIGITS_WORKSPACE_BYTES + DIGITS_WORKSPACE_ALIGNMENT];
    uintptr_t start = (uintptr_t)memory + DIGITS_WORKSPACE_ALIGNMENT - 1;
    void *workspace = memory + (start / DIGITS_WORKSPACE_ALIGNMENT * DIGITS_WORKSPACE_ALIGNMENT - (uintptr_t)memory);

    float probabilities[DIGITS_OUTPUT_PROBABILITIES_DIM1];
    int32_t status = digits_predict(sample_image, probabilities, workspace);
    if (status != ONNXC_OK) {
        fprintf(stderr, "the model failed with status %d\n", (int)status);
        return EXIT_FAILURE;
    }
    int predicted = 0;
    for (int digit = 1; digit < DIGITS_OUTPUT_PROBABILITIES_DIM1; digit++) {
        if (probabilities[digit] > probabilities[predicted]) {
            predicted = digit;
        }
    }
    printf("predicted %d (probability %.3f), label %d\n", predicted, (double)probabilities[predicted], sample_label);
    return predicted == sample_label ? EXIT_SUCCESS : EXIT_FAILURE;
}
