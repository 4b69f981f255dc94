/* wav.h: recordings in files. */
#ifndef WAV_H
#define WAV_H

#include <stdint.h>

/* Reads a WAV file of one channel of 16 bits at `rate` Hz into `samples`, f32 from -1 to 1, with zeros behind the recording. Returns
 * NULL, or says what is wrong with the file, such as a recording of more than `count` samples. */
const char *wav_read(const char *path, int32_t rate, float *samples, int64_t count);

#endif
