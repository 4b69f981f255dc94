#include "wav.h"

#include <stdio.h>
#include <string.h>

static uint32_t little(const unsigned char *bytes, int count) {
    uint32_t value = 0;
    while (count-- > 0) {
        value = value << 8 | bytes[count];
    }
    return value;
}

static const char *read(FILE *file, int32_t rate, float *samples, int64_t count) {
    unsigned char head[12], format[16] = {0};
    if (fread(head, 1, 12, file) != 12 || memcmp(head, "RIFF", 4) != 0 || memcmp(head + 8, "WAVE", 4) != 0) {
        return "not a WAV file";
    }
    /* Chunks: a name, the bytes of what follows, and that, filled up to an even number. */
    while (fread(head, 1, 8, file) == 8) {
        uint32_t bytes = little(head + 4, 4);
        if (memcmp(head, "data", 4) == 0) {
            if (little(format, 2) != 1 || little(format + 2, 2) != 1 || little(format + 14, 2) != 16) {
                return "not PCM of one channel and 16 bits";
            }
            if (little(format + 4, 4) != (uint32_t)rate) {
                return "another rate than the model's";
            }
            int64_t at = 0;
            for (unsigned char sample[2]; bytes >= 2 && fread(sample, 1, 2, file) == 2; bytes -= 2, at++) {
                if (at == count) {
                    return "longer than the model's window";
                }
                samples[at] = (float)(int16_t)little(sample, 2) / 32768;
            }
            return NULL;
        }
        uint32_t kept = memcmp(head, "fmt ", 4) != 0 ? 0 : bytes < 16 ? bytes : 16;
        if (fread(format, 1, kept, file) != kept || fseek(file, (long)(bytes - kept + (bytes & 1)), SEEK_CUR) != 0) {
            return "the file ends early";
        }
    }
    return "no recording in the file";
}

const char *wav_read(const char *path, int32_t rate, float *samples, int64_t count) {
    memset(samples, 0, (size_t)count * sizeof *samples);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return "cannot be opened";
    }
    const char *problem = read(file, rate, samples, count);
    fclose(file);
    return problem;
}
