/* Random numbers of some shapes, from base/rng.h. */
#ifndef TARN_BASE_DRAW_H
#define TARN_BASE_DRAW_H

#include <math.h>
#include <stddef.h>
#include "base/rng.h"

static inline double draw_unit(struct rng *r) { /* in (0, 1) */
    return ((double)(rng_next(r) >> 11) + 0.5) * 0x1p-53;
}
static inline double draw_exponential(struct rng *r, double mean) {
    return -mean * log(draw_unit(r));
}
/* Box and Muller (1958). */
static inline double draw_normal(struct rng *r) {
    double radius = sqrt(-2 * log(draw_unit(r)));
    return radius * cos(2 * 3.14159265358979323846 * draw_unit(r));
}
/* sigma: of the logarithm. */
static inline double draw_lognormal(struct rng *r, double median, double sigma) {
    return median * exp(sigma * draw_normal(r));
}
/* 1, 2 ...: each of them the last with a chance of 1/mean. */
static inline unsigned draw_geometric(struct rng *r, double mean, unsigned max) {
    unsigned n = 1;
    while (n < max && draw_unit(r) > 1 / mean) n++;
    return n;
}

/* Zipf's law over n things: the k-th (from 0) has weight (k + 1)^-exponent. sums has n numbers. */
static inline void draw_zipf_init(double *sums, size_t n, double exponent) {
    double sum = 0;
    for (size_t k = 0; k < n; k++) sums[k] = sum += pow((double)(k + 1), -exponent);
}
static inline size_t draw_zipf(struct rng *r, const double *sums, size_t n) {
    double at = draw_unit(r) * sums[n - 1];
    size_t low = 0, high = n - 1;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (sums[middle] < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

#endif
