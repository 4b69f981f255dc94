/* The sampler of examples/chat. Reads cases: temperature, top_k, top_p, seed, a count and that number of logits; prints eight draws of
 * each in a line. */
#include <stdio.h>

#include "sampler.h"

enum { MOST = 64, DRAWS = 8 };

int main(void) {
    double temperature, top_p;
    long long top_k;
    unsigned long long seed;
    int count;
    while (scanf("%lf %lld %lf %llu %d", &temperature, &top_k, &top_p, &seed, &count) == 5 && count <= MOST) {
        float logits[MOST];
        sampler_candidate room[MOST];
        for (int at = 0; at < count; at++) {
            if (scanf("%f", &logits[at]) != 1) {
                return 1;
            }
        }
        sampler sampler = {temperature, top_k, top_p, seed};
        for (int draw = 0; draw < DRAWS; draw++) {
            printf("%lld ", (long long)sampler_next(&sampler, logits, count, room));
        }
        printf("\n");
    }
    return 0;
}
