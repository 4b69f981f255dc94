/* The texts of the tokens, by number; written by train.py. */
#ifndef TOKENS_H
#define TOKENS_H

enum { TOKENS_END = 0, TOKENS_START = 1, TOKENS_COUNT = 18 };

static const char *const tokens[TOKENS_COUNT] = {
    "<|endoftext|>",
    "<|startoftranscript|>",
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "plus",
    "minus",
    "times",
    "equals",
    "point",
};

#endif
