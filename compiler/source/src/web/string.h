/* The functions of a C library's string.h that models need. */
#ifndef ONNXC_STRING_H
#define ONNXC_STRING_H

#include <stddef.h>

void *memcpy(void *to, const void *from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);

/* Without a C library compilers know these by other names only, and copy a few bytes without a call. */
#define memcpy(to, from, bytes) __builtin_memcpy(to, from, bytes)
#define memmove(to, from, bytes) __builtin_memmove(to, from, bytes)
#define memset(to, value, bytes) __builtin_memset(to, value, bytes)

static inline int strcmp(const char *a, const char *b) {
    for (; *a != 0 && *a == *b; b++) {
        a++;
    }
    return (int)(unsigned char)*a - (int)(unsigned char)*b;
}

#endif
