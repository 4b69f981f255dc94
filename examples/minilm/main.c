/* Embeds two sentences with all-MiniLM-L6-v2 and prints the cosine similarity of the embeddings. An embedding is
 * the mean of the model's last hidden states over the tokens that the mask keeps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "minilm.h"

enum { TOKENS = MINILM_INPUT_IDS_DIM1, WIDTH = MINILM_OUTPUT_H_DIM2 };

/* The WordPiece tokens of the sentences, with [CLS] and [SEP]; the rest is padding, masked out. */
static const int64_t first[] = {101, 1996, 4937, 7719, 2006, 1996, 4010, 3332, 9033, 3363, 1012, 102};
static const int64_t second[] = {101, 1037, 18401, 2003, 8345, 2011, 1996, 11559, 3332, 1012, 102};

/* Returns an onnxc_status. */
static int32_t embed(const int64_t *tokens, size_t count, float *embedding, void *workspace) {
    static float hidden[TOKENS * WIDTH];
    int64_t ids[TOKENS] = {0};
    int64_t mask[TOKENS] = {0};
    for (size_t i = 0; i < count; i++) {
        ids[i] = tokens[i];
        mask[i] = 1;
    }
    int32_t status = minilm_predict(ids, mask, hidden, workspace);
    for (size_t j = 0; status == ONNXC_OK && j < WIDTH; j++) {
        double sum = 0;
        for (size_t i = 0; i < count; i++) {
            sum += (double)hidden[i * WIDTH + j];
        }
        embedding[j] = (float)(sum / (double)count);
    }
    return status;
}

static double dot(const float *a, const float *b) {
    double sum = 0;
    for (size_t j = 0; j < WIDTH; j++) {
        sum += (double)a[j] * (double)b[j];
    }
    return sum;
}

int main(void) {
    static float a[WIDTH], b[WIDTH];
    /* Room to move the start to the alignment that a run asks for. */
    char *memory = malloc(MINILM_WORKSPACE_BYTES + MINILM_WORKSPACE_ALIGNMENT);
    if (memory == NULL) {
        fprintf(stderr, "no memory\n");
        return EXIT_FAILURE;
    }
    void *workspace = memory + (MINILM_WORKSPACE_ALIGNMENT - (uintptr_t)memory % MINILM_WORKSPACE_ALIGNMENT);
    int32_t status = embed(first, sizeof first / sizeof *first, a, workspace);
    if (status == ONNXC_OK) {
        status = embed(second, sizeof second / sizeof *second, b, workspace);
    }
    free(memory);
    if (status != ONNXC_OK) {
        fprintf(stderr, "the model failed with status %d\n", (int)status);
        return EXIT_FAILURE;
    }
    printf("The cat sits on the warm window sill.\nA kitten is resting by the sunny window.\n");
    printf("cosine similarity %.7f\n", dot(a, b) / sqrt(dot(a, a) * dot(b, b)));
    return EXIT_SUCCESS;
}
