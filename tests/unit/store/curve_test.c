/* The curve against what pools of those sizes, with the books' own code, really hit. */
#include <math.h>
#include "util.h"
#include "base/draw.h"
#include "base/htab.h"
#include "store/curve.h"

#define KEYS  20000u
#define PAGES 1000u
#define LOOKS 30000u
#define BLOCK 4096u

/* A trace: popular keys by Zipf's law, and now and then a scan of keys that do not come back. */
static uint32_t *trace_make(uint64_t seed, double skew) {
    hash_set_seed(1); /* which keys are in the sample */
    static double sum[KEYS];
    static uint32_t trace[LOOKS];
    struct rng r;
    rng_seed(&r, seed);
    draw_zipf_init(sum, KEYS, skew);
    for (uint32_t i = 0; i < LOOKS; i++)
        trace[i] = i % 8000 < 1000 ? KEYS + i : (uint32_t)draw_zipf(&r, sum, KEYS);
    return trace;
}

static const char *trace_key(uint32_t k) {
    static char name[32];
    snprintf(name, sizeof(name), "key%u", k);
    return name;
}

/* What a pool of that size hits. c, if not NULL, is told. */
static double pool_hits(const uint32_t *trace, const char *policy, double scale, struct curve *c) {
    struct store *s = util_store(policy, (uint64_t)(PAGES * scale), NULL, NULL);
    uint64_t hits = 0;
    for (uint32_t i = 0; i < LOOKS; i++) {
        const char *key = trace_key(trace[i]);
        uint64_t hash = store_hash(span_str(key));
        bool hit = util_read(s, key);
        hits += hit;
        if (c) curve_look(c, hash, hit ? BLOCK : 0, util_now);
        if (!hit) {
            CHECK_EQ(util_put(s, key, BLOCK), TARN_OK);
            if (c) curve_put(c, hash, BLOCK, util_now);
        }
        if (i % 100 == 99) util_tick(s, 50);
    }
    store_destroy(&s);
    return (double)hits / LOOKS;
}

static struct curve *curve_fresh(const char *policy, uint32_t keys, uint32_t events) {
    static struct store_config config;
    store_config_init(&config);
    struct curve *c = curve_create(policy_find(policy), &config,
                                   &(struct curve_limits){.keys_max = keys, .events_max = events});
    CHECK(c != NULL);
    curve_set_pool(c, (uint64_t)PAGES * BLOCK);
    return c;
}

static void compare(const char *policy, double skew, uint64_t seed, uint32_t keys, double slack) {
    const uint32_t *trace = trace_make(seed, skew);
    struct curve *c = curve_fresh(policy, keys, UINT32_MAX);
    pool_hits(trace, policy, 1, c);
    struct curve_figures f;
    curve_get(c, &f);
    CHECK(f.keys <= keys && f.looks > 0);
    CHECK(f.memory_bytes < (uint64_t)keys * 1000 + 2000000);
    for (unsigned o = 0; o < CURVE_ORDERS; o++) {
        const char *name = o == CURVE_LRU ? "lru" : policy;
        for (unsigned i = 0; i < CURVE_SIZES; i++) {
            const struct curve_point *p = &f.point[o][i];
            double exact = pool_hits(trace, name, curve_scales[i], NULL);
            double off = fabs(exact - p->hit_ratio);
            if (getenv("CURVE_SHOW") || off > p->error + slack)
                printf("  %s (pool %s) skew %.1f x%.2f: %.4f, really %.4f, error %.4f, 1 in %llu\n",
                       name, policy, skew, p->scale, p->hit_ratio, exact, p->error,
                       (unsigned long long)f.sample);
            CHECK(off <= p->error + slack);
        }
    }
    curve_destroy(&c);
}

TEST(with_every_key_in_the_sample_the_curve_is_exact) {
    compare("sieve", 0.9, 1, 1u << 20, 0.0001);
    compare("fifo", 0.9, 2, 1u << 20, 0.0001);
}

TEST(with_every_key_policies_that_toss_coins_or_remember_prints_are_near) {
    compare("s3fifo", 0.9, 3, 1u << 20, 0.005);
    compare("lfu", 0.9, 4, 1u << 20, 0.01);
}

/* 0.01: what small queues and the policies' own state differ by, beside the sample. */
TEST(a_sample_is_within_its_stated_error) {
    for (uint64_t seed = 10; seed < 12; seed++) {
        compare("sieve", 0.7, seed, 1000, 0.01);
        compare("lru", 1.1, seed, 1000, 0.01);
        compare("s3fifo", 0.9, seed, 1000, 0.01);
    }
}

TEST(too_many_events_in_a_second_halve_the_sample) {
    struct curve *c = curve_fresh("lru", 0, 100);
    struct curve_figures f;
    for (uint64_t i = 0; i < 100; i++) curve_put(c, hash_u64(i), BLOCK, 1000);
    curve_get(c, &f);
    CHECK_EQ(f.sample, 1);
    curve_put(c, hash_u64(100), BLOCK, 1000);
    curve_get(c, &f);
    CHECK_EQ(f.sample, 2);
    for (uint64_t i = 0; i < 40; i++) curve_look(c, hash_u64(i), 0, 1500);
    curve_get(c, &f);
    CHECK(f.keys > 25 && f.keys < 75); /* the others have left by now */
    for (uint64_t i = 0; i < 90; i++) curve_put(c, hash_u64(200 + i), BLOCK, 2000);
    curve_get(c, &f);
    CHECK_EQ(f.sample, 2); /* another second */
    curve_destroy(&c);
}

/* One event lets few go, so that none takes long; and not one key more than allowed comes in. */
TEST(a_halved_sample_is_cleared_in_slices) {
    struct curve *c = curve_fresh("lru", 2048, UINT32_MAX);
    struct curve_figures f;
    uint64_t before = 0, halvings = 0, sample = 1;
    curve_set_pool(c, 100000 * (uint64_t)BLOCK);
    for (uint64_t i = 0; i < 40000; i++) {
        curve_put(c, hash_u64(i), BLOCK, 1000);
        curve_get(c, &f);
        CHECK(f.keys <= 2048 && f.keys + 200 > before);
        halvings += f.sample != sample;
        sample = f.sample;
        before = f.keys;
    }
    CHECK(halvings >= 4 && f.keys > 500);
    curve_destroy(&c);
}

TEST(what_is_removed_is_gone_at_every_size) {
    struct curve *c = curve_fresh("lru", 0, 0);
    struct curve_figures f;
    curve_put(c, 7, BLOCK, 1000);
    curve_look(c, 7, BLOCK, 1000);
    curve_remove(c, 7);
    curve_remove(c, 7);
    curve_look(c, 7, 0, 1000);
    curve_get(c, &f);
    CHECK_EQ(f.keys, 0);
    for (unsigned i = 0; i < CURVE_SIZES; i++)
        CHECK(fabs(f.point[CURVE_POLICY][i].hit_ratio - 0.5) < 1e-9);
    curve_destroy(&c);
}

TEST(old_look_ups_count_less_and_less) {
    struct curve *c = curve_fresh("lru", 0, 0);
    struct curve_figures f;
    for (int i = 0; i < 8; i++) curve_look(c, 7, 0, 1000);
    curve_put(c, 7, BLOCK, 1000);
    curve_look(c, 7, BLOCK, 1000 + 3 * CURVE_HALF_MS);
    curve_get(c, &f);
    CHECK(fabs(f.looks - 2) < 1e-9); /* 8 / 8 + 1 */
    CHECK(fabs(f.point[CURVE_LRU][0].hit_ratio - 0.5) < 1e-9);
    curve_destroy(&c);
}

TEST(a_pool_without_memory_says_nothing_and_one_that_shrinks_lets_go) {
    struct curve *c = curve_fresh("lru", 0, 0);
    struct curve_figures f;
    curve_set_pool(c, 0);
    curve_put(c, 7, BLOCK, 1000);
    curve_look(c, 7, 0, 1000);
    curve_get(c, &f);
    CHECK(f.keys == 0 && f.looks == 0 && f.point[CURVE_LRU][0].hit_ratio == 0);
    curve_look(c, 7, 0, 1000);
    curve_set_pool(c, 100 * BLOCK);
    for (uint64_t i = 0; i < 400; i++) curve_put(c, hash_u64(i), BLOCK, 1000);
    curve_get(c, &f);
    CHECK_EQ(f.keys, 400);
    curve_look(c, hash_u64(9999), 0, 1000);
    curve_get(c, &f);
    CHECK(f.looks == 1 && f.point[CURVE_LRU][0].hit_ratio == 0);
    CHECK(f.point[CURVE_LRU][0].filled && !f.point[CURVE_LRU][CURVE_SIZES - 1].filled);
    curve_set_pool(c, 10 * BLOCK);
    for (uint64_t i = 0; i < 20; i++) curve_put(c, hash_u64(1000 + i), BLOCK, 1000);
    curve_get(c, &f);
    CHECK_EQ(f.keys, 40);
    curve_destroy(&c);
}

TEST(larger_than_a_simulated_pool_goes_into_the_larger_ones_only) {
    struct curve *c = curve_fresh("lru", 0, 0);
    struct curve_figures f;
    curve_set_pool(c, 10 * BLOCK);
    curve_put(c, 7, 8 * BLOCK, 1000);
    curve_look(c, 7, 8 * BLOCK, 1000);
    curve_get(c, &f);
    CHECK(f.point[CURVE_LRU][0].hit_ratio < 0.5 && f.point[CURVE_LRU][2].hit_ratio > 0.5);
    curve_destroy(&c);
}

TEST(a_policy_that_keeps_all_takes_nothing_more_when_full) {
    struct curve *c = curve_fresh("noeviction", 0, 0);
    struct curve_figures f;
    curve_set_pool(c, 4 * BLOCK);
    for (uint64_t i = 0; i < 4; i++) curve_put(c, hash_u64(i), BLOCK, 1000);
    for (uint64_t i = 0; i < 4; i++) curve_look(c, hash_u64(i), BLOCK, 1000);
    curve_get(c, &f);
    CHECK(fabs(f.point[CURVE_POLICY][0].hit_ratio - 0.25) < 1e-9);
    CHECK(fabs(f.point[CURVE_POLICY][2].hit_ratio - 1) < 1e-9);
    curve_destroy(&c);
}

TEST(of_a_policy_that_looks_at_chains_it_says_nothing) {
    struct curve *c = curve_fresh("chain", 0, 0);
    struct curve_figures f;
    curve_put(c, 7, BLOCK, 1000);
    curve_look(c, 7, BLOCK, 1000);
    curve_get(c, &f);
    CHECK(!f.policy_known && f.point[CURVE_LRU][0].hit_ratio == 1);
    CHECK(f.memory_bytes < 1000000); /* without the policy's own books */
    curve_destroy(&c);
}

TEST_MAIN()
