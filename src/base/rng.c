/* xoshiro256** 1.0, seeded through splitmix64 as its authors advise. Written from the papers:
 * Blackman and Vigna, "Scrambled linear pseudorandom number generators" (2018); Lemire, "Fast
 * random integer generation in an interval" (2019). */
#include "base/rng.h"

#include "base/assert.h"

static uint64_t rng_rotl(uint64_t x, int k) {
    return (x << k) | (x >> (64 - k));
}

void rng_seed(struct rng *r, uint64_t seed) {
    for (int i = 0; i < 4; i++) r->s[i] = mix64(seed + (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15));
}

uint64_t rng_next(struct rng *r) {
    uint64_t *s = r->s;
    uint64_t result = rng_rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rng_rotl(s[3], 45);
    return result;
}

uint64_t rng_below(struct rng *r, uint64_t n) {
    TARN_ASSERT(n > 0);
    unsigned __int128 m = (unsigned __int128)rng_next(r) * n;
    if ((uint64_t)m < n) {
        /* The 2^64 mod n lowest fractions would be one draw too many for some results. */
        uint64_t unfair = -n % n;
        while ((uint64_t)m < unfair) m = (unsigned __int128)rng_next(r) * n;
    }
    return (uint64_t)(m >> 64);
}
