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

#endif
