/* Time-outs that the caller sees to (expire_apart), and samples of what is left. */
#include "util.h"

static void put(struct store *s, unsigned i, uint64_t expire_wall_ms) {
    char key[16];
    snprintf(key, sizeof(key), "k%u", i);
    struct store_put_options o = {.replicas = 1, .expire_wall_ms = expire_wall_ms};
    CHECK_EQ(util_put_with(s, key, i % 2 ? 8 : 5000, &o), TARN_OK);
}

static struct store *apart(void) {
    struct store_config c;
    store_config_init(&c);
    c.high_watermark = 1;
    c.expire_apart = true;
    return util_store("lru", 4096, &c, NULL);
}

TEST(background_leaves_them_to_the_caller) {
    struct store *s = apart();
    struct store_stats st;
    for (unsigned i = 0; i < 100; i++) put(s, i, 5000100);
    put(s, 100, 0);
    CHECK_EQ(store_expire_next_ms(s, 1000) > 0, 1);
    util_tick(s, 200);
    CHECK_EQ(store_count(s), 101);
    CHECK_EQ(store_expire_next_ms(s, 1000), 0);
    CHECK_EQ(store_next_ms(s, 1000), 1000);
    CHECK(!util_has(s, "k1")); /* nobody sees it, and who looks removes it */
    CHECK_EQ(store_count(s), 100);
    unsigned budget = 30, slices = 1;
    while (store_expire_due(s, &budget)) {
        CHECK(store_count(s) + 30 * slices >= 100);
        budget = 30;
        slices++;
    }
    CHECK(slices >= 4); /* a budget is a bound */
    CHECK(util_has(s, "k100") && store_count(s) == 1);
    store_get_stats(s, &st);
    CHECK(st.expired == 100 && st.expires == 0);
    CHECK_EQ(store_expire_next_ms(s, 1000), 1000);
    store_check(s);
    store_destroy(&s);
}

TEST(who_follows_removes_nothing) {
    struct store *s = apart();
    unsigned budget = 100;
    put(s, 1, 5000100);
    s->following = true;
    util_tick(s, 200);
    CHECK(!store_expire_due(s, &budget) && budget == 100);
    CHECK_EQ(store_expire_next_ms(s, 1000), 1000);
    CHECK_EQ(store_count(s), 1);
    store_destroy(&s);
}

TEST(samples) {
    struct store *s = apart();
    struct store_ttl_sample t;
    store_sample_ttl(s, 20, &t);
    CHECK_EQ(t.seen, 0);
    for (unsigned i = 0; i < 1000; i++) put(s, i, 0);
    store_sample_ttl(s, 20, &t);
    CHECK_EQ(t.seen, 0);
    for (unsigned i = 0; i < 1000; i++) put(s, 1000 + i, 5000000 + (i < 500 ? 100 : 10000));
    store_sample_ttl(s, 20, &t);
    CHECK(t.seen >= 5 && t.seen <= 40 && t.stale == 0);
    CHECK(t.left_ms >= 100 * t.seen && t.left_ms <= 10000 * t.seen);
    util_tick(s, 200);
    uint64_t seen = 0, stale = 0;
    for (unsigned i = 0; i < 200; i++) {
        store_sample_ttl(s, 20, &t);
        seen += t.seen;
        stale += t.stale;
        CHECK(t.stale <= t.seen && t.left_ms == 9800 * (t.seen - t.stale));
    }
    CHECK(stale * 10 > seen * 4 && stale * 10 < seen * 6); /* half of them */
    store_destroy(&s);
}

TEST(evictions_are_counted) {
    struct store *s = util_store("lru", 4, NULL, NULL);
    for (unsigned i = 0; i < 10; i++) put(s, 2 * i, 0);
    CHECK(store_evictions(s) > 0);
    struct store_stats st;
    store_get_stats(s, &st);
    CHECK_EQ(store_evictions(s), st.evicted_objects);
    CHECK(!store_policy_counts(s));
    CHECK_EQ(store_set_policy(s, "lfu"), TARN_OK);
    CHECK(store_policy_counts(s));
    store_destroy(&s);
}

TEST_MAIN()
