/* tokenizer.h: texts to tokens and back, by the library `tokenizers` of Hugging Face. For byte-level BPE. */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* May be used by several threads at once. */
typedef struct tokenizer tokenizer;

/* From the text of a tokenizer.json. NULL if it is none, or not of byte-level BPE; what is wrong is then written to `message`,
 * zero-terminated and cut to message_bytes. `message` may be NULL. Give it back with tokenizer_close. */
tokenizer *tokenizer_open(const void *json, size_t bytes, char *message, size_t message_bytes);

/* NULL is allowed. */
void tokenizer_close(tokenizer *tokenizer);

/* Writes the tokens of a text of UTF-8, at most `capacity` of them, and returns how many there are; -1 if the text is not UTF-8. There are
 * never more than bytes. Special tokens that the text spells out are recognized; none is added. */
int64_t tokenizer_encode(const tokenizer *tokenizer, const char *text, size_t bytes, int64_t *tokens, size_t capacity);

/* The bytes of a token, not zero-terminated, and how many. One token may hold a part of a character. A special token, or a number that is
 * not a token, has none. They live as long as the tokenizer. */
const char *tokenizer_bytes(const tokenizer *tokenizer, int64_t token, size_t *bytes);

/* The number of a token by its zero-terminated name, such as `<|endoftext|>`; -1 if there is none. */
int64_t tokenizer_token(const tokenizer *tokenizer, const char *name);

#ifdef __cplusplus
}
#endif

#endif
