/* speech.h: the two models that encoder.o and decoder.o were compiled from, as one that listens and speaks. */
#ifndef SPEECH_H
#define SPEECH_H

#include <stdint.h>

#include "decoder.h"
#include "encoder.h"

enum { SPEECH_RATE = 8000, SPEECH_SAMPLES = ENCODER_INPUT_SAMPLES_DIM1, SPEECH_TOKENS = DECODER_OUTPUT_LOGITS_DIM2 };

typedef struct speech speech;

/* Computes on `threads` threads, 0: one per processor. Ends the program where there is too little memory, as the functions below do
 * where a model fails. */
speech *speech_open(int64_t threads);
void speech_close(speech *speech);

/* Runs the encoder on SPEECH_SAMPLES samples at SPEECH_RATE Hz, and forgets what was said of others. */
void speech_listen(speech *speech, const float *samples);

/* Runs the decoder on the next token of the text; returns the most probable one behind it. */
int64_t speech_next(speech *speech, int64_t token);

#endif
