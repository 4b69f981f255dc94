/* Prints what is said in recordings, each word as it is found: ./speech [--ids] [--threads N] FILE.wav ... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "speech.h"
#include "tokens.h"
#include "wav.h"

_Static_assert((int)TOKENS_COUNT == (int)SPEECH_TOKENS, "one text for each token of the model");

/* Most tokens of a text; the caches have room for that number. */
enum { MOST = 16 };

int main(int argc, char **argv) {
    int ids = 0, at = 1;
    long threads = 1;
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        char *end = "no number";
        if (strcmp(argv[at], "--ids") == 0) {
            ids = 1;
            end = "";
        } else if (strcmp(argv[at], "--threads") == 0 && at + 1 < argc) {
            threads = strtol(argv[++at], &end, 10);
        }
        if (*end != '\0' || threads < 0) {
            argc = 0;
        }
    }
    if (at >= argc) {
        fprintf(stderr, "usage: speech [--ids] [--threads N] FILE.wav ...\n"
                        "  --ids      print the numbers of the tokens\n"
                        "  --threads  threads to compute on, 0: one per processor\n");
        return EXIT_FAILURE;
    }
    speech *speech = speech_open(threads);
    static float samples[SPEECH_SAMPLES];
    for (; at < argc; at++) {
        const char *problem = wav_read(argv[at], SPEECH_RATE, samples, SPEECH_SAMPLES);
        if (problem != NULL) {
            fprintf(stderr, "speech: %s: %s\n", argv[at], problem);
            return EXIT_FAILURE;
        }
        speech_listen(speech, samples);
        int64_t token = TOKENS_START;
        for (int count = 0; count < MOST; count++) {
            token = speech_next(speech, token);
            if (ids) {
                printf("%s%lld", count == 0 ? "" : " ", (long long)token);
            } else if (token != TOKENS_END) {
                printf("%s%s", count == 0 ? "" : " ", tokens[token]);
            }
            fflush(stdout);
            if (token == TOKENS_END) {
                break;
            }
        }
        printf("\n");
    }
    speech_close(speech);
    return EXIT_SUCCESS;
}
