#include "sampler.h"

#include <math.h>

/* From 0 to less than 1. */
static double uniform(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static int before(sampler_candidate a, sampler_candidate b) {
    return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
}

static void swap(sampler_candidate *a, sampler_candidate *b) {
    sampler_candidate kept = *a;
    *a = *b;
    *b = kept;
}

/* Moves the candidate at `at` down until none of the heap's comes before its parent. */
static void sift(sampler_candidate *heap, int64_t count, int64_t at) {
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && before(heap[child + 1], heap[child])) {
            child++;
        }
        if (before(heap[at], heap[child])) {
            return;
        }
        swap(&heap[at], &heap[child]);
    }
}

/* Puts the first `kept` candidates in order, the very first one at the end. Time is linear in `count` where `kept` is small. */
static void order(sampler_candidate *heap, int64_t count, int64_t kept) {
    for (int64_t at = count / 2; at-- > 0;) {
        sift(heap, count, at);
    }
    for (int64_t left = count; left-- > count - kept;) {
        swap(&heap[0], &heap[left]);
        sift(heap, left, 0);
    }
}

int64_t sampler_next(sampler *sampler, const float *logits, int64_t count, sampler_candidate *room) {
    int64_t best = 0;
    for (int64_t token = 0; token < count; token++) {
        if (isnan(logits[token])) {
            return -1;
        }
        best = logits[token] > logits[best] ? token : best;
        room[token] = (sampler_candidate){logits[token], token};
    }
    if (count == 0 || !isfinite(logits[best])) {
        return -1;
    }
    if (sampler->temperature <= 0) {
        return best;
    }
    int64_t kept = sampler->top_k > 0 && sampler->top_k < count ? sampler->top_k : count;
    order(room, count, kept);
    double total = 0, sum = 0, reached = 0;
    sampler_candidate *end = room + count;
    for (int64_t at = 1; at <= kept; at++) {
        total += end[-at].weight = exp((end[-at].weight - (double)logits[best]) / sampler->temperature);
    }
    int64_t nucleus = 0;
    do {
        sum += end[-++nucleus].weight;
    } while (nucleus < kept && sum < sampler->top_p * total);
    double drawn = uniform(&sampler->state) * sum;
    for (int64_t at = 1; at < nucleus; at++) {
        reached += end[-at].weight;
        if (reached > drawn) {
            return end[-at].token;
        }
    }
    return end[-nucleus].token;
}
