/* Latency histograms: log-linear buckets (1/32 precision) over 0 .. 2^40, one writer, any
 * reader. */
#ifndef TARN_BASE_HIST_H
#define TARN_BASE_HIST_H

#include <stdint.h>

#define HIST_BUCKETS 1184

struct hist {
    uint64_t count, sum, min, max;
    uint64_t bucket[HIST_BUCKETS];
};

void hist_init(struct hist *h); /* empty; as zeroed memory is */
void hist_add(struct hist *h, uint64_t value);
void hist_add_many(struct hist *h, uint64_t value, uint64_t times); /* as often as that */
void hist_merge(struct hist *into, const struct hist *from);
/* The value below which a share of p (0..1) lies; 0 when empty. */
uint64_t hist_percentile(const struct hist *h, double p);
double hist_mean(const struct hist *h);
/* How many values were <= bound (within the precision). */
uint64_t hist_count_upto(const struct hist *h, uint64_t bound);
/* The bounds in microseconds that users of the peers know from their dashboards; ends with 0. */
extern const uint64_t hist_latency_bounds_us[];

#endif
