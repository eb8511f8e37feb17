/* A small fast generator (xoshiro256**, Blackman and Vigna 2018) for choices that need no secrecy.
 * Secrets come from libsodium's randombytes. */
#ifndef TARN_BASE_RNG_H
#define TARN_BASE_RNG_H

#include <stdint.h>

struct rng {
    uint64_t s[4];
};

void rng_seed(struct rng *r, uint64_t seed);
uint64_t rng_next(struct rng *r);
/* Uniform in [0, n); n > 0. */
uint64_t rng_below(struct rng *r, uint64_t n);

/* splitmix64's step and finalizer (Steele, Lea, Flood 2014): a number that looks random, the same
 * for the same x everywhere. No two have the same. */
static inline uint64_t mix64(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

#endif
