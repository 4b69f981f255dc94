/* Continues a text by a language model and prints each token as it is drawn: ./chat [options] PROMPT ...
 * Without PROMPT the text is read from the standard input. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sampler.h"
#include "session.h"
#include "tokenizer.h"

/* tokenizer.json, written by the Makefile. */
static const unsigned char vocabulary[] = {
#include "vocabulary.h"
};

/* Stands before each text that the model was trained on. */
static const char end_of_text[] = "<|endoftext|>";

typedef struct option {
    const char *name;
    double value, least, most;
    const char *what;
} option;

enum { TEMPERATURE, TOP_K, TOP_P, SEED, TOKENS, CONTEXT, THREADS, ENDLESS, IDS, OPTIONS };

static option options[OPTIONS] = {
    [TEMPERATURE] = {"--temperature", 0.8, 0, 1e6, "0 takes the most probable token each time"},
    [TOP_K] = {"--top-k", 40, 0, 1e9, "draw from this many of the most probable tokens, 0: from all"},
    [TOP_P] = {"--top-p", 0.95, 0, 1, "of these draw from the most probable, which have this share of the probability"},
    [SEED] = {"--seed", 1, 0, 0x1p53, "the same one draws the same text"},
    [TOKENS] = {"--tokens", 200, 0, 1e9, "most tokens to generate"},
    [CONTEXT] = {"--context", 512, 2, 1 << 20, "most tokens that the model looks back upon"},
    [THREADS] = {"--threads", 1, 0, 1024, "threads to compute on, 0: one per processor"},
    [ENDLESS] = {"--endless", 0, 0, 1, "1: go on behind the end of a text"},
    [IDS] = {"--ids", 0, 0, 1, "1: print the numbers of the generated tokens instead, one a line"},
};

_Noreturn static void fail(const char *message) {
    fprintf(stderr, "chat: %s\n", message);
    exit(EXIT_FAILURE);
}

/* Returns the number of the first argument that does not belong to an option. */
static int parse(int argc, char **argv) {
    int at = 1;
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        int own = 0;
        while (own < OPTIONS && strcmp(argv[at], options[own].name) != 0) {
            own++;
        }
        char *end = NULL;
        double value = own < OPTIONS && at + 1 < argc ? strtod(argv[at + 1], &end) : 0;
        if (end == NULL || end == argv[at + 1] || *end != '\0' || !(value >= options[own].least && value <= options[own].most)) {
            fprintf(stderr, "usage: chat [options] PROMPT ...\n");
            for (own = 0; own < OPTIONS; own++) {
                fprintf(stderr, "  %-14s %g to %g, else %g: %s\n", options[own].name, options[own].least, options[own].most,
                        options[own].value, options[own].what);
            }
            exit(EXIT_FAILURE);
        }
        options[own].value = value;
    }
    return at;
}

/* The arguments with spaces between them, or the standard input; not zero-terminated. */
static char *read_prompt(int count, char **arguments, size_t *bytes) {
    size_t capacity = 1 << 16, used = 0;
    for (int at = 0; at < count; at++) {
        capacity += strlen(arguments[at]) + 1;
    }
    char *text = malloc(capacity);
    for (int at = 0; text != NULL && at < count; at++) {
        used += (size_t)sprintf(text + used, at == 0 ? "%s" : " %s", arguments[at]);
    }
    for (size_t more = 1; text != NULL && count == 0 && more > 0; used += more) {
        if (used == capacity) {
            text = realloc(text, capacity *= 2);
        }
        more = text == NULL ? 0 : fread(text + used, 1, capacity - used, stdin);
    }
    if (text == NULL) {
        fail("too little memory");
    }
    *bytes = used;
    return text;
}

static double seconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void print(const tokenizer *tokenizer, int64_t token) {
    size_t bytes;
    const char *text = tokenizer_bytes(tokenizer, token, &bytes);
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
}

int main(int argc, char **argv) {
    int first = parse(argc, argv);
    char message[256];
    tokenizer *tokenizer = tokenizer_open(vocabulary, sizeof vocabulary, message, sizeof message);
    if (tokenizer == NULL) {
        fail(message);
    }
    size_t bytes;
    char *prompt = read_prompt(argc - first, argv + first, &bytes);
    int64_t context = (int64_t)options[CONTEXT].value, wanted = (int64_t)options[TOKENS].value;
    int64_t *tokens = malloc((bytes + (size_t)wanted + 1) * sizeof *tokens);
    sampler_candidate *room = malloc(SESSION_VOCABULARY * sizeof *room);
    if (tokens == NULL || room == NULL) {
        fail("too little memory");
    }
    tokens[0] = tokenizer_token(tokenizer, end_of_text);
    int64_t prompted = 1 + tokenizer_encode(tokenizer, prompt, bytes, tokens + 1, bytes), count = prompted;
    if (prompted == 0) {
        fail("the prompt is not UTF-8");
    }
    for (int64_t at = 0; at < prompted && options[IDS].value == 0; at++) {
        print(tokenizer, tokens[at]);
    }

    session *text = session_open(context, (int64_t)options[THREADS].value);
    sampler sampler = {options[TEMPERATURE].value, (int64_t)options[TOP_K].value, options[TOP_P].value,
                       (uint64_t)options[SEED].value};
    double start = seconds();
    int64_t fed = count < context ? count : context;
    const float *logits = session_feed(text, tokens + count - fed, fed);
    double prefilled = seconds();
    while (count < prompted + wanted) {
        int64_t token = sampler_next(&sampler, logits, SESSION_VOCABULARY, room);
        if (token < 0) {
            fail("the model's logits are not finite");
        }
        tokens[count++] = token;
        if (options[IDS].value != 0) {
            printf("%lld\n", (long long)token);
        } else {
            print(tokenizer, token);
        }
        if (token == tokens[0] && options[ENDLESS].value == 0) {
            break;
        }
        /* A text that is as long as the context goes on from its later half. */
        fed = 1;
        if (session_length(text) == context) {
            session_forget(text);
            fed = context / 2;
        }
        logits = session_feed(text, tokens + count - fed, fed);
    }
    double ended = seconds();
    fprintf(stderr, "\nprompt: %lld tokens in %.1f ms; then %.0f tokens per second\n", (long long)prompted,
            1e3 * (prefilled - start), (double)(count - prompted) / (ended - prefilled));
    session_close(text);
    tokenizer_close(tokenizer);
    free(tokens);
    free(room);
    free(prompt);
    return EXIT_SUCCESS;
}
