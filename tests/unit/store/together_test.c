/* Keys that go together, and values in the books that go with what is as cold in the pool. */
#include "util.h"

static void suffixes(struct store *s, const char *a, const char *b) {
    struct store_config *c = store_config(s);
    c->n_together = 2;
    const char *text[] = {a, b};
    for (unsigned i = 0; i < 2; i++) {
        c->together[i].len = (unsigned)strlen(text[i]);
        memcpy(c->together[i].text, text[i], c->together[i].len);
    }
}

static struct store *pairs(const char *policy, uint64_t pages) {
    struct store *s = util_store(policy, pages, NULL, NULL);
    suffixes(s, "-bytes", "-meta");
    return s;
}

static tarn_status set(struct store *s, const char *key) {
    struct store_batch b;
    struct store_put_options o = {.replicas = 1, .replace = true};
    unsigned budget = 1000;
    store_batch_begin(s, &b, NULL, STORE_BATCH_PUT, 1);
    return store_set_inline(s, &b, span_str(key), SPAN("0123456789"), 7, &o, &budget);
}

static const char *name(int i, const char *suffix) {
    static char at[4][64];
    static unsigned turn;
    char *k = at[turn++ % 4];
    snprintf(k, sizeof(at[0]), "k%d%s", i, suffix);
    return k;
}

/* How many of the first n have both, only the payload, only the metadata. */
static void count(struct store *s, int n, int counts[3]) {
    memset(counts, 0, 3 * sizeof(counts[0]));
    for (int i = 0; i < n; i++) {
        bool bytes = util_has(s, name(i, "-bytes")), meta = util_has(s, name(i, "-meta"));
        counts[0] += bytes && meta;
        counts[1] += bytes && !meta;
        counts[2] += !bytes && meta;
    }
}

TEST(guarantee_1_a_pair_is_evicted_together_whoever_chooses) {
    static const char *const policies[] = {"lru", "fifo", "lfu", "sieve", "s3fifo", "chain"};
    for (size_t p = 0; p < ARRAY_LEN(policies); p++) {
        struct store *s = pairs(policies[p], 16);
        for (int i = 0; i < 100; i++) {
            CHECK_EQ(util_put(s, name(i, "-bytes"), 4096), TARN_OK);
            store_settle(s);
            CHECK_EQ(set(s, name(i, "-meta")), TARN_OK);
            store_settle(s);
        }
        int n[3];
        count(s, 100, n);
        CHECK_EQ(n[0], 16);
        CHECK_EQ(n[1], 0);
        CHECK_EQ(n[2], 0);
        store_check(s);
        store_destroy(&s);
    }
}

TEST(guarantee_1_a_pair_evicted_between_its_two_puts_leaves_no_half) {
    struct store *s = pairs("lru", 4);
    CHECK_EQ(util_put(s, "a-bytes", 4096), TARN_OK);
    for (int i = 0; i < 4; i++) CHECK_EQ(util_put(s, name(i, ""), 4096), TARN_OK);
    store_settle(s);
    CHECK(!util_has(s, "a-bytes"));
    CHECK_EQ(set(s, "a-meta"), TARN_OK); /* of a put that began before */
    store_settle(s);
    CHECK(!util_has(s, "a-meta"));
    /* Who begins anew, with the payload, has both. */
    CHECK_EQ(util_put(s, "a-bytes", 4096), TARN_OK);
    CHECK_EQ(set(s, "a-meta"), TARN_OK);
    store_settle(s);
    CHECK(util_has(s, "a-bytes") && util_has(s, "a-meta"));
    /* It is for the put that was under way: later, a value may stand alone. */
    CHECK_EQ(util_put(s, "b-bytes", 4096), TARN_OK);
    for (int i = 10; i < 14; i++) CHECK_EQ(util_put(s, name(i, ""), 4096), TARN_OK);
    store_settle(s);
    util_tick(s, 61000);
    CHECK_EQ(set(s, "b-meta"), TARN_OK);
    store_settle(s);
    CHECK(util_has(s, "b-meta"));
    store_destroy(&s);
}

/* More puts of pairs at a time than connections that an engine has. */
TEST(guarantee_1_of_many_pairs_evicted_between_their_puts_no_half_is_left) {
    struct store *s = pairs("lru", 600);
    for (int i = 0; i < 500; i++) CHECK_EQ(util_put(s, name(i, "-bytes"), 4096), TARN_OK);
    for (int i = 0; i < 600; i++) CHECK_EQ(util_put(s, name(i, ""), 4096), TARN_OK);
    store_settle(s);
    for (int i = 0; i < 500; i++) {
        CHECK_EQ(set(s, name(i, "-meta")), TARN_OK);
        store_settle(s);
        CHECK(!util_has(s, name(i, "-meta")));
    }
    store_destroy(&s);
}

TEST(guarantee_1_a_pair_is_removed_and_expires_together_in_both_directions) {
    struct store *s = pairs("lru", 64);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(util_put(s, name(i, "-bytes"), 4096), TARN_OK);
        CHECK_EQ(set(s, name(i, "-meta")), TARN_OK);
    }
    CHECK(store_remove(s, span_str("k0-bytes")));
    CHECK(store_remove(s, span_str("k1-meta")));
    store_expire(s, store_find(s, span_str("k2-bytes")), 5000000 + util_now - 1000 + 10);
    store_settle(s);
    CHECK(!util_has(s, "k0-meta") && !util_has(s, "k1-bytes"));
    util_tick(s, 20);
    store_settle(s);
    CHECK(!util_has(s, "k2-meta") && !util_has(s, "k2-bytes"));
    CHECK(util_has(s, "k3-bytes") && util_has(s, "k3-meta"));
    /* Replaced is not gone, nor is what was put again before anybody could look. */
    CHECK_EQ(util_put_with(s, "k3-bytes", 8192,
                           &(struct store_put_options){.replicas = 1, .replace = true}),
             TARN_OK);
    store_settle(s);
    CHECK(util_has(s, "k3-meta"));
    CHECK(store_remove(s, span_str("k3-bytes")));
    CHECK_EQ(util_put(s, "k3-bytes", 4096), TARN_OK);
    store_settle(s);
    CHECK(util_has(s, "k3-meta"));
    store_check(s);
    store_destroy(&s);
}

TEST(guarantee_1_one_part_is_as_away_as_the_other) {
    struct store *s = pairs("lru", 64);
    CHECK_EQ(util_put(s, "a-bytes", 4096), TARN_OK);
    CHECK_EQ(set(s, "a-meta"), TARN_OK);
    CHECK_EQ(set(s, "b-meta"), TARN_OK);
    store_segment_set_state(s, 0, SEGMENT_DOWN);
    CHECK(!util_has(s, "a-meta") && store_is_away(s, span_str("a-meta")));
    CHECK(util_has(s, "b-meta"));
    store_segment_set_state(s, 0, SEGMENT_UP);
    CHECK(util_has(s, "a-meta") && util_has(s, "a-bytes"));
    store_segment_set_state(s, 0, SEGMENT_DOWN);
    /* it does not come back, nor does the other part */
    CHECK(!store_remove(s, span_str("a-meta")));
    store_settle(s);
    store_segment_set_state(s, 0, SEGMENT_UP);
    CHECK(!util_has(s, "a-meta") && !util_has(s, "a-bytes"));
    store_destroy(&s);
}

TEST(guarantee_1_who_steps_down_or_waits_removes_nothing) {
    struct store *s = pairs("lru", 64);
    CHECK_EQ(util_put(s, "a-bytes", 4096), TARN_OK);
    CHECK_EQ(set(s, "a-meta"), TARN_OK);
    CHECK(store_remove(s, span_str("a-bytes")));
    store_keep_expired(s, true); /* CLIENT PAUSE */
    store_settle(s);
    CHECK(util_has(s, "a-meta"));
    store_keep_expired(s, false);
    store_step_down(s);
    store_settle(s);
    CHECK(util_has(s, "a-meta")); /* the new leader says what becomes of it */
    store_destroy(&s);
}

TEST(other_keys_stand_alone) {
    struct store *s = pairs("lru", 64);
    static const char *const keys[] = {"-bytes", "-meta", "x-meta", "y-bytes", "x-met", "xbytes"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) CHECK_EQ(set(s, keys[i]), TARN_OK);
    CHECK(store_remove(s, span_str("-bytes"))); /* nothing before the suffix */
    CHECK(store_remove(s, span_str("xbytes")));
    CHECK(store_remove(s, span_str("y-bytes")));
    store_settle(s);
    CHECK(util_has(s, "-meta") && util_has(s, "x-meta") && util_has(s, "x-met"));
    store_config(s)->n_together = 0;
    CHECK_EQ(util_put(s, "z-bytes", 4096), TARN_OK);
    CHECK_EQ(set(s, "z-meta"), TARN_OK);
    CHECK(store_remove(s, span_str("z-bytes")));
    store_settle(s);
    CHECK(util_has(s, "z-meta"));
    store_destroy(&s);
}

TEST(an_eviction_takes_nobody_along_who_is_leased_or_pinned) {
    struct store *s = pairs("lru", 5);
    CHECK_EQ(util_put(s, "a-bytes", 4096), TARN_OK);
    CHECK_EQ(util_put(s, "a-meta", 4096), TARN_OK); /* more than the books take */
    CHECK(util_lease(s, "a-meta", 1, 5000));
    CHECK_EQ(util_put(s, "b-bytes", 4096), TARN_OK);
    CHECK_EQ(set(s, "b-meta"), TARN_OK);
    CHECK_EQ(store_pin(s, span_str("b-meta"), STORE_PIN_HARD, 0), TARN_OK);
    for (int i = 0; i < 4; i++) CHECK_EQ(util_put(s, name(i, ""), 4096), TARN_OK);
    store_settle(s);
    CHECK(!util_has(s, "a-bytes") && util_has(s, "a-meta"));
    CHECK(!util_has(s, "b-bytes") && util_has(s, "b-meta"));
    CHECK_EQ(set(s, "b-bytes"), TARN_OK);
    CHECK(store_remove(s, span_str("b-bytes"))); /* a removal is no eviction */
    store_settle(s);
    CHECK(!util_has(s, "b-meta"));
    store_check(s);
    store_destroy(&s);
}

TEST(small_values_take_part_in_eviction) {
    static const char *const policies[] = {"lru", "fifo", "lfu", "sieve", "s3fifo", "chain"};
    for (size_t p = 0; p < ARRAY_LEN(policies); p++) {
        struct store *s = util_store(policies[p], 16, NULL, NULL);
        for (int i = 0; i < 40; i++) CHECK_EQ(set(s, name(i, "cold")), TARN_OK);
        util_tick(s, 10000);
        for (int i = 0; i < 16; i++) CHECK_EQ(util_put(s, name(i, ""), 4096), TARN_OK);
        for (int i = 0; i < 40; i++) CHECK_EQ(set(s, name(i, "warm")), TARN_OK);
        util_tick(s, 10000);
        for (int i = 100; i < 116; i++) CHECK_EQ(util_put(s, name(i, ""), 4096), TARN_OK);
        struct store_stats st;
        store_get_stats(s, &st);
        int cold = 0, warm = 0;
        for (int i = 0; i < 40; i++) {
            cold += util_has(s, name(i, "cold"));
            warm += util_has(s, name(i, "warm"));
        }
        CHECK_EQ(cold, 0); /* unused for longer than anything that made room */
        CHECK_EQ(warm, 40);
        CHECK_EQ(st.evicted_inline, 40);
        store_check(s);
        store_destroy(&s);
    }
}

TEST_MAIN()
