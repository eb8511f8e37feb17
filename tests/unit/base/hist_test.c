#include "base/hist.h"

#include <stdlib.h>

#include "../test.h"
#include "base/buf.h"
#include "base/rng.h"

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

TEST(hist_empty) {
    struct hist h;
    hist_init(&h);
    CHECK_EQ(hist_percentile(&h, 0.5), 0);
    CHECK_EQ(hist_mean(&h), 0.0);
    CHECK_EQ(hist_count_upto(&h, UINT64_MAX), 0);
}

TEST(hist_small_values_are_exact) {
    struct hist h;
    hist_init(&h);
    for (uint64_t v = 0; v < 32; v++) hist_add(&h, v);
    CHECK_EQ(hist_percentile(&h, 0.5), 15);
    CHECK_EQ(hist_percentile(&h, 1), 31);
    CHECK_EQ(hist_percentile(&h, 0), 0);
    CHECK_EQ(hist_count_upto(&h, 9), 10);
    CHECK_EQ(hist_mean(&h), 15.5);
}

TEST(hist_percentiles_are_within_a_32nd) {
    enum { N = 20000 };
    struct hist h;
    struct rng r;
    uint64_t *v = xmalloc(N * sizeof(*v));
    rng_seed(&r, 6);
    hist_init(&h);
    for (int i = 0; i < N; i++) {
        v[i] = rng_next(&r) >> (24 + rng_below(&r, 40));
        hist_add(&h, v[i]);
    }
    qsort(v, N, sizeof(*v), by_value);
    for (int i = 1; i <= 1000; i++) {
        uint64_t exact = v[(size_t)i * N / 1000 - 1], got = hist_percentile(&h, i / 1000.0);
        CHECK(got >= exact || got == v[N - 1]);
        CHECK(got <= exact + exact / 32 + 1);
    }
    CHECK_EQ(h.min, v[0]);
    CHECK_EQ(h.max, v[N - 1]);
    free(v);
}

TEST(hist_takes_values_beyond_its_range) {
    struct hist h;
    hist_init(&h);
    hist_add(&h, UINT64_MAX);
    hist_add(&h, 1ull << 50);
    CHECK_EQ(h.count, 2);
    CHECK_EQ(hist_percentile(&h, 0.99), UINT64_MAX);
    CHECK_EQ(hist_count_upto(&h, UINT64_MAX), 2);
}

TEST(hist_merge_is_adding_both) {
    struct hist a, b, both;
    struct rng r;
    rng_seed(&r, 7);
    hist_init(&a);
    hist_init(&b);
    hist_init(&both);
    hist_merge(&a, &b); /* empty into empty */
    CHECK_EQ(a.count, 0);
    for (int i = 0; i < 1000; i++) {
        uint64_t v = 100 + rng_below(&r, 1000000);
        hist_add(i % 3 ? &a : &b, v);
        hist_add(&both, v);
    }
    hist_merge(&a, &b);
    CHECK(memcmp(&a, &both, sizeof(a)) == 0);
}

TEST(hist_add_many_is_adding_each) {
    struct hist one, many;
    hist_init(&one);
    hist_init(&many);
    hist_add_many(&many, 5, 0); /* of none there is no smallest */
    CHECK_EQ(many.count, 0);
    for (int i = 0; i < 7; i++) hist_add(&one, 1234);
    hist_add_many(&many, 1234, 7);
    CHECK(memcmp(&one, &many, sizeof(one)) == 0);
}

TEST(hist_bounds_ascend_and_end) {
    const uint64_t *b = hist_latency_bounds_us;
    for (; b[1] != 0; b++) CHECK(b[0] < b[1]);
}

TEST_MAIN()
