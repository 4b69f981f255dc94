/* Prints the sizes that onnxc.h reads from texts: DIMS_TEXTS of dims.h, for each row of DIMS_VALUES of the symbols DIMS_NAMES. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "dims.h"
#include "onnxc.h"

#define SYMBOLS 3

int main(void) {
    static const char *const names[SYMBOLS] = DIMS_NAMES;
    static const char *const texts[] = DIMS_TEXTS;
    static const int64_t values[][SYMBOLS] = DIMS_VALUES;
    /* A model with nothing but names of symbols. */
    static struct {
        onnxc_model model;
        int32_t names[SYMBOLS];
        char bytes[SYMBOLS][32];
    } description;
    size_t row, text;
    int32_t symbol;
    const char *start = (const char *)&description;
    description.model.symbol_count = SYMBOLS;
    description.model.symbols_at = (int32_t)((const char *)description.names - start);
    for (symbol = 0; symbol < SYMBOLS; symbol++) {
        strcpy(description.bytes[symbol], names[symbol]);
        description.names[symbol] = (int32_t)(description.bytes[symbol] - start);
    }
    for (row = 0; row < sizeof values / sizeof values[0]; row++) {
        for (text = 0; text < sizeof texts / sizeof texts[0]; text++) {
            onnxc_dim_reader reader = {&description.model, values[row], texts[text], 0};
            const int64_t size = onnxc_dim_sum(&reader);
            if (reader.failed || *reader.at != 0) {
                printf("cannot be read at `%s`\n", reader.at);
            } else {
                printf("%lld\n", (long long)size);
            }
        }
    }
    return 0;
}
