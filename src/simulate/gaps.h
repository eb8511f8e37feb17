/* Times that are measured: percentiles, and the gaps between a request's tokens. */
#ifndef TARN_SIMULATE_GAPS_H
#define TARN_SIMULATE_GAPS_H

#include <stddef.h>
#include <stdint.h>
#include "simulate/sim.h"

/* So many gaps in a row, of one length. */
struct gap {
    float s;
    uint32_t n;
};
struct gaps {
    struct gap *v;
    size_t n, cap;
};
void gaps_add(struct gaps *g, double s, uint32_t n);
/* The mean of the longest tenth; 0: there are none. Reorders them. */
double gaps_worst_tenth(struct gaps *g);

/* Times of one kind, all kept. */
struct samples {
    float *v;
    size_t n, cap;
};
void samples_add(struct samples *s, double x);
/* Sorts them. */
struct sim_times samples_times(struct samples *s);
void samples_free(struct samples *s);

/* Many times, by their logarithm: within 1 %. */
#define SPREAD_BUCKETS 2048u
struct spread {
    double sum;
    uint64_t n, bucket[SPREAD_BUCKETS];
};
void spread_add(struct spread *s, double x, uint64_t n);
struct sim_times spread_times(const struct spread *s);

#endif
