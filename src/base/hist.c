/* Log-linear histograms: values below 32 have a bucket each, every power of two above is cut in 32
 * equal buckets. One thread writes; the count comes last and is read first, so that a reader never
 * counts a value that it does not find in the buckets, the sum and the limits. (On arm64 plain
 * stores overtake each other.) */
#include "base/hist.h"

#include <string.h>

#include "base/assert.h"

#define SUB_BITS 5
#define SUB      (1u << SUB_BITS)

/* Mooncake's latency metrics use the same bounds: dashboards made for one read the other. */
const uint64_t hist_latency_bounds_us[] = {
    50,     75,     125,     150,     200,     250,      300,      400,   500,   750,
    1000,   1500,   2000,    3000,    5000,    7000,     15000,    20000, 50000, 100000,
    200000, 500000, 1000000, 2000000, 5000000, 10000000, 20000000, 0};

static unsigned hist_bucket_of(uint64_t v) {
    if (v < SUB) return (unsigned)v;
    unsigned exp = 63u - (unsigned)__builtin_clzll(v);
    unsigned shift = exp - SUB_BITS;
    unsigned i = (shift + 1) * SUB + (unsigned)((v >> shift) & (SUB - 1));
    return i < HIST_BUCKETS ? i : HIST_BUCKETS - 1;
}

/* The largest value that falls into bucket i. */
static uint64_t bucket_top(unsigned i) {
    if (i < SUB) return i;
    if (i == HIST_BUCKETS - 1) return UINT64_MAX;
    unsigned shift = i / SUB - 1;
    return (((uint64_t)(SUB + i % SUB) + 1) << shift) - 1;
}

static uint64_t hist_load_count(const struct hist *h) {
    return __atomic_load_n(&h->count, __ATOMIC_ACQUIRE);
}
static void hist_store_count(struct hist *h, uint64_t v) {
    __atomic_store_n(&h->count, v, __ATOMIC_RELEASE);
}
static uint64_t hist_load(const uint64_t *p) {
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}
static void hist_store(uint64_t *p, uint64_t v) {
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}

void hist_init(struct hist *h) {
    memset(h, 0, sizeof(*h));
}

void hist_add(struct hist *h, uint64_t value) {
    hist_add_many(h, value, 1);
}

void hist_add_many(struct hist *h, uint64_t value, uint64_t times) {
    uint64_t *b = &h->bucket[hist_bucket_of(value)];
    if (times == 0) return;
    hist_store(b, *b + times);
    if (h->count == 0 || value < h->min) hist_store(&h->min, value);
    if (value > h->max) hist_store(&h->max, value);
    hist_store(&h->sum, h->sum + value * times);
    hist_store_count(h, h->count + times);
}

void hist_merge(struct hist *into, const struct hist *from) {
    uint64_t count = hist_load_count(from), min = hist_load(&from->min),
             max = hist_load(&from->max);
    if (count == 0) return;
    for (unsigned i = 0; i < HIST_BUCKETS; i++) {
        uint64_t n = hist_load(&from->bucket[i]);
        if (n != 0) hist_store(&into->bucket[i], into->bucket[i] + n);
    }
    if (into->count == 0 || min < into->min) hist_store(&into->min, min);
    if (max > into->max) hist_store(&into->max, max);
    hist_store(&into->sum, into->sum + hist_load(&from->sum));
    hist_store_count(into, into->count + count);
}

uint64_t hist_percentile(const struct hist *h, double p) {
    uint64_t count = hist_load_count(h);
    if (count == 0) return 0;
    if (p <= 0) return hist_load(&h->min);
    uint64_t max = hist_load(&h->max);
    if (p >= 1) return max;
    double exact = p * (double)count;
    uint64_t rank = (uint64_t)exact;
    /* Upwards, but not for what the product of 0.07 and 20000 has too much. */
    if (exact - (double)rank > 1e-9 * (double)count || rank == 0) rank++;
    uint64_t seen = 0;
    for (unsigned i = 0; i < HIST_BUCKETS; i++) {
        seen += hist_load(&h->bucket[i]);
        if (seen >= rank) return max_u64(min_u64(bucket_top(i), max), hist_load(&h->min));
    }
    return max;
}

double hist_mean(const struct hist *h) {
    uint64_t count = hist_load_count(h);
    return count == 0 ? 0 : (double)hist_load(&h->sum) / (double)count;
}

uint64_t hist_count_upto(const struct hist *h, uint64_t bound) {
    uint64_t seen = 0;
    for (unsigned i = 0, last = hist_bucket_of(bound); i <= last; i++)
        seen += hist_load(&h->bucket[i]);
    return seen;
}
