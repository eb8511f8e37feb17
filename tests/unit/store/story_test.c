/* Why look-ups missed, against who keeps it all. */
#include "util.h"

static void missed_are(struct store *s, uint64_t never, uint64_t evicted, uint64_t expired,
                       uint64_t removed, uint64_t away) {
    struct store_stats st;
    store_get_stats(s, &st);
    CHECK_EQ(st.missed[STORE_MISS_NEVER], never);
    CHECK_EQ(st.missed[STORE_MISS_EVICTED], evicted);
    CHECK_EQ(st.missed[STORE_MISS_EXPIRED], expired);
    CHECK_EQ(st.missed[STORE_MISS_REMOVED], removed);
    CHECK_EQ(st.missed[STORE_MISS_AWAY], away);
}

TEST(each_reason) {
    struct store *s = util_store("lru", 4, NULL, NULL);
    struct store_story story;
    CHECK(!util_read(s, "a"));
    missed_are(s, 1, 0, 0, 0, 0);
    for (const char *key = "abcd"; *key != '\0'; key++) {
        char text[2] = {*key, '\0'};
        CHECK_EQ(util_put(s, text, 4096), TARN_OK);
        util_tick(s, 1000);
    }
    CHECK_EQ(util_put(s, "e", 4096), TARN_OK); /* a goes, unused for 4 s */
    util_tick(s, 60000);
    CHECK(!util_read(s, "a"));
    missed_are(s, 1, 1, 0, 0, 0);
    store_get_story(s, &story);
    CHECK_EQ(story.one_in, 1);
    CHECK_EQ(story.idle->count, 1);
    CHECK(story.idle->max >= 3000 && story.idle->max <= 5000);
    CHECK_EQ(story.asked_again->max, 60000);
    CHECK(store_remove(s, span_str("b")));
    CHECK(!util_read(s, "b") && !util_read(s, "b"));
    missed_are(s, 1, 1, 0, 2, 0);
    struct store_put_options o = {.replicas = 1, .expire_wall_ms = 5000000 + util_now};
    CHECK_EQ(util_put_with(s, "x", 4096, &o), TARN_OK);
    util_tick(s, 2000);
    CHECK(!util_read(s, "x"));
    missed_are(s, 1, 1, 1, 2, 0);
    /* what came back, and went for another reason */
    CHECK_EQ(util_put(s, "a", 4096), TARN_OK);
    CHECK(util_read(s, "a") && store_remove(s, span_str("a")) && !util_read(s, "a"));
    missed_are(s, 1, 1, 1, 3, 0);
    store_flush(s);
    CHECK(!util_read(s, "e")); /* still in the index */
    missed_are(s, 1, 1, 1, 4, 0);
    util_tick(s, 1);
    CHECK(!util_read(s, "e"));
    missed_are(s, 1, 1, 1, 5, 0);
    store_stats_reset(s);
    missed_are(s, 0, 0, 0, 0, 0);
    CHECK_EQ(story.idle->count + story.asked_again->count, 0);
    CHECK(!util_read(s, "e")); /* what is known stays */
    missed_are(s, 0, 0, 0, 1, 0);
    store_check(s);
    store_destroy(&s);
}

TEST(what_is_away_or_was_lost) {
    struct store *s = util_store("lru", 16, NULL, NULL);
    CHECK_EQ(util_put(s, "a", 4096), TARN_OK);
    store_segment_set_state(s, 0, SEGMENT_DOWN);
    CHECK(!util_read(s, "a") && !util_read(s, "b"));
    missed_are(s, 1, 0, 0, 0, 1);
    store_segment_set_state(s, 0, SEGMENT_UP);
    CHECK(util_read(s, "a"));
    store_batch_gap(s, 7);
    struct store_stats st;
    store_get_stats(s, &st);
    CHECK_EQ(st.missed[STORE_MISS_GAP], 7);
    store_destroy(&s);
}

static void fill_store(struct store *s, unsigned from, unsigned to) {
    char key[16];
    for (unsigned i = from; i < to; i++) {
        snprintf(key, sizeof(key), "f%u", i);
        CHECK_EQ(util_put(s, key, 4096), TARN_OK);
    }
}

TEST(evictions_by_cause) {
    struct store_config c;
    store_config_init(&c);
    c.high_watermark = 1;
    struct store *s = util_store("lru", 20, &c, NULL);
    struct store_stats st;
    fill_store(s, 0, 25);
    struct store_evict_job job = {.want_objects = 3};
    unsigned budget = 1000;
    CHECK(store_evict_step(s, &job, &budget));
    uint64_t bytes;
    CHECK(store_evict_object(s, store_find(s, span_str("f24")), &bytes));
    store_config(s)->max_objects = 14; /* of 16 */
    CHECK(!store_shrink(s, &budget));
    store_config(s)->max_objects = 0;
    store_get_stats(s, &st);
    CHECK_EQ(st.evicted_for[STORE_EVICTION_PUT], 5);
    CHECK_EQ(st.evicted_for[STORE_EVICTION_COMMAND], 4);
    CHECK_EQ(st.evicted_for[STORE_EVICTION_MAXMEMORY], 2);
    store_config(s)->high_watermark = 0.5;
    store_config(s)->eviction_ratio = 0.1;
    util_tick(s, 10);
    store_get_stats(s, &st);
    CHECK(st.evicted_for[STORE_EVICTION_WATERMARK] >= 4);
    CHECK_EQ(st.evicted_for[STORE_EVICTION_QUOTA], 0);
    uint64_t sum = 0;
    for (int i = 0; i < STORE_EVICTIONS; i++) sum += st.evicted_for[i];
    CHECK_EQ(sum, st.evicted_objects);
    store_check(s);
    store_destroy(&s);
}

/* Everything of a key is known: with fewer keys than the table has ghosts, nothing may be
 * wrong. */
TEST(as_brute_force_says) {
    enum { KEYS = 500, STEPS = 200000 };
    static enum store_miss fate[KEYS];
    static bool there[KEYS];
    uint64_t want[STORE_MISSES] = {0};
    struct store *s = util_store("lru", 100, NULL, NULL);
    struct store_stats st;
    struct rng r;
    rng_seed(&r, 17);
    for (int i = 0; i < KEYS; i++) fate[i] = STORE_MISS_NEVER;
    for (int step = 0; step < STEPS; step++) {
        char key[16];
        unsigned k = (unsigned)rng_below(&r, KEYS);
        snprintf(key, sizeof(key), "k%u", k);
        unsigned what = (unsigned)rng_below(&r, 100);
        bool has = util_has(s, key);
        if (there[k] && !has) fate[k] = STORE_MISS_EVICTED; /* nothing else happens by itself */
        there[k] = has;
        if (what < 40) {
            if (!util_read(s, key)) want[fate[k]]++;
        } else if (what < 45) {
            if (store_remove(s, span_str(key))) fate[k] = STORE_MISS_REMOVED;
            there[k] = false;
        } else if (!has) {
            CHECK_EQ(util_put(s, key, 4096), TARN_OK);
            there[k] = true;
        }
        if (step % 100 == 0) util_tick(s, 10);
    }
    store_get_stats(s, &st);
    CHECK(want[STORE_MISS_EVICTED] > 1000 && want[STORE_MISS_REMOVED] > 1000);
    for (int i = 0; i < STORE_MISSES; i++) CHECK_EQ(st.missed[i], want[i]);
    store_destroy(&s);
}

/* Keys of one engine's blocks, of whole ones and of their layers, are one name. */
TEST(names_end_at_the_hash) {
    static const char *const forms[] = {"m/x@tp1.0@%064x", "m/x@tp1.0@{25ff}%060x",
                                        "m/x@tp1.0@%064x@l7", "m/x@tp1.0@{25ff}%060x@l7"};
    static struct top_entry top[TOP_SLOTS];
    struct store *s = util_store("lru", 4, NULL, NULL);
    for (unsigned f = 0; f < ARRAY_LEN(forms); f++) {
        store_stats_reset(s);
        for (unsigned i = 0; i < 4000; i++) {
            char key[128];
            snprintf(key, sizeof(key), forms[f], i);
            CHECK(!util_read(s, key));
        }
        CHECK_EQ(store_get_top(s, STORE_TOP_MISSES, top, TOP_SLOTS), 1);
        CHECK(span_eq(span_of(top[0].name, top[0].name_len), SPAN("m/x@tp1.0@")));
    }
    store_destroy(&s);
}

/* More objects than are followed: the counts are those of a sample. */
TEST(a_sample_is_near) {
    enum { KEYS = 60000 };
    struct store *s = util_store("fifo", KEYS / 2, NULL, NULL);
    struct store_stats st;
    struct store_story story;
    char key[16];
    for (unsigned i = 0; i < KEYS; i++) {
        snprintf(key, sizeof(key), "k%u", i);
        CHECK_EQ(util_put(s, key, 4096), TARN_OK);
    }
    for (unsigned i = 0; i < 2 * KEYS; i++) { /* the first quarter is evicted, half was never put */
        snprintf(key, sizeof(key), "k%u", i);
        util_read(s, key);
    }
    store_get_stats(s, &st);
    store_get_story(s, &story);
    CHECK(story.one_in == 16);
    CHECK_EQ(st.misses, KEYS + KEYS / 2);
    CHECK(st.missed[STORE_MISS_NEVER] > 0.9 * KEYS && st.missed[STORE_MISS_NEVER] < 1.1 * KEYS);
    CHECK(st.missed[STORE_MISS_EVICTED] > 0.43 * KEYS &&
          st.missed[STORE_MISS_EVICTED] < 0.57 * KEYS);
    store_destroy(&s);
}

TEST_MAIN()
