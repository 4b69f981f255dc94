/* sampler.h: draws a token from the logits of a language model, the same on every machine.
 *
 * 1. Each token gets the weight exp((logit - greatest logit) / temperature), in double precision.
 * 2. Tokens are put in order by logit, the greatest first, and equal ones by number. The first `top_k` stay.
 * 3. Of these the fewest stay, from the first one, that have `top_p` of the weight of all (Holtzman et al. 2020, section 3.1).
 * 4. A number from 0 to less than the total weight of what stays is drawn; the first token is chosen for which the sum of the
 *    weights up to it exceeds that number.
 *
 * Random numbers are those of SplitMix64 (Steele, Lea and Flood 2014); a draw is the upper 53 bits of one as a fraction. */
#ifndef SAMPLER_H
#define SAMPLER_H

#include <stddef.h>
#include <stdint.h>

typedef struct sampler {
    /* 0 takes the greatest logit, and draws nothing. */
    double temperature;
    /* 0 for all. */
    int64_t top_k;
    /* 1 for all. */
    double top_p;
    /* The seed, and what follows from it. */
    uint64_t state;
} sampler;

/* A token among those that may be drawn. */
typedef struct sampler_candidate {
    /* Its logit, then its weight. */
    double weight;
    int64_t token;
} sampler_candidate;

/* The next token: a number below `count`, or -1 where a logit is NaN or the greatest is not finite. `room` is for `count`
 * candidates. */
int64_t sampler_next(sampler *sampler, const float *logits, int64_t count, sampler_candidate *room);

#endif
