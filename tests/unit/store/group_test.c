/* Boundaries: who goes with a part that is evicted, and who stays. */
#include "util.h"

#define PAGE 4096u

static const char *const policies[] = {
#define POLICY_NAME(name) #name,
    STORE_POLICIES(POLICY_NAME)
#undef POLICY_NAME
};

static void put_part(struct store *s, const char *key, const char *boundary) {
    struct store_put_options o = {
        .replicas = 1, .group = span_str(boundary), .boundary = boundary[0] != '\0'};
    CHECK_EQ(util_put_with(s, key, PAGE, &o), TARN_OK);
}

static const char *part(const char *kind, int i) {
    static char at[8][32];
    static unsigned turn;
    char *k = at[turn++ % 8];
    snprintf(k, sizeof(at[0]), "%s%d", kind, i);
    return k;
}

/* The parts of the boundary that are there. */
static int parts(struct store *s, int i) {
    return util_has(s, part("full", i)) + util_has(s, part("window", i)) +
           util_has(s, part("state", i));
}

static void put_parts(struct store *s, int i) {
    put_part(s, part("full", i), part("b", i));
    put_part(s, part("window", i), part("b", i));
    put_part(s, part("state", i), part("b", i));
}

static uint64_t evict(struct store *s, uint64_t objects) {
    struct store_evict_job job = {.want_objects = objects};
    unsigned budget = 1000;
    CHECK(store_evict_step(s, &job, &budget));
    store_check(s);
    return job.objects;
}

static struct store_stats stats(struct store *s) {
    struct store_stats st;
    store_get_stats(s, &st);
    return st;
}

TEST(parts_of_one_boundary_go_together) {
    for (unsigned k = 0; k < ARRAY_LEN(policies); k++) {
        struct store *s = util_store(policies[k], 40, NULL, NULL);
        for (int i = 0; i < 10; i++) {
            put_parts(s, i);
            util_tick(s, 5000);
        }
        CHECK_EQ(stats(s).boundaries, 10u);
        CHECK_EQ(stats(s).groups, 0u);
        util_tick(s,
                  20000); /* chain may begin with the youngest: seconds tell its parts' use, too */
        for (int n = 9; n >= 5; n--) {
            CHECK_EQ(evict(s, 1), 3u);
            for (int i = 0; i < 10; i++) CHECK(parts(s, i) == 0 || parts(s, i) == 3);
            CHECK_EQ(stats(s).boundaries, (uint64_t)n);
        }
        CHECK_EQ(stats(s).evicted_boundary, 10u);
        CHECK_EQ(stats(s).evicted_group, 0u);
        store_destroy(&s);
    }
}

TEST(what_was_used_since_stays) {
    for (unsigned k = 0; k < ARRAY_LEN(policies); k++) {
        struct store *s = util_store(policies[k], 40, NULL, NULL);
        put_part(s, "window", "b");
        put_part(s, "full", "b");
        put_part(s, "state", "b");
        util_tick(s, 30000);
        CHECK(util_read(s, "full"));
        util_tick(s, 30000);
        CHECK_EQ(evict(s, 1), 2u);
        CHECK(util_has(s, "full") && !util_has(s, "window") && !util_has(s, "state"));
        /* what is left of a boundary is one */
        put_part(s, "state", "b");
        util_tick(s, 1000);
        CHECK_EQ(evict(s, 2), 2u);
        CHECK_EQ(stats(s).objects + stats(s).boundaries, 0u);
        store_destroy(&s);
    }
}

TEST(what_the_policy_has_seen_used_more_stays) {
    struct store *s = util_store("s3fifo", 40, NULL, NULL);
    put_part(s, "full", "b");
    put_part(s, "other", "");
    CHECK(util_read(s, "full"));
    CHECK_EQ(evict(s, 1), 1u); /* the other one: the block has moved to the main queue */
    CHECK(util_has(s, "full") && !util_has(s, "other"));
    put_part(s, "window", "b");
    put_part(s, "state", "b");
    util_tick(s, 60000);
    CHECK_EQ(evict(s, 1), 2u);
    CHECK(util_has(s, "full"));
    store_destroy(&s);
}

TEST(what_is_used_a_moment_later_is_used_with_it) {
    struct store *s = util_store("lru", 40, NULL, NULL);
    put_part(s, "rank0", "b");
    put_part(s, "rank1", "b");
    util_tick(s, 100000);
    CHECK(util_read(s, "rank0"));
    util_tick(s, 4000);
    CHECK(util_read(s, "rank1")); /* by another process, in a request of its own */
    util_tick(s, 60000);
    CHECK_EQ(evict(s, 1), 2u);
    put_part(s, "rank0", "b");
    util_tick(s, 5000);
    put_part(s, "rank1", "b");
    util_tick(s, 60000);
    CHECK_EQ(evict(s, 1), 1u);
    CHECK(util_has(s, "rank1"));
    store_destroy(&s);
}

TEST(a_group_of_that_name_is_something_else) {
    struct store *s = util_store("lru", 40, NULL, NULL);
    struct store_put_options o = {.replicas = 1, .group = SPAN("b")};
    put_part(s, "part", "b");
    CHECK_EQ(util_put_with(s, "member", PAGE, &o), TARN_OK);
    CHECK_EQ(stats(s).groups, 1u);
    CHECK_EQ(stats(s).boundaries, 1u);
    util_tick(s, 60000);
    CHECK_EQ(evict(s, 1), 1u);
    CHECK(util_has(s, "member"));
    char name[STORE_KEY_MAX + 2];
    memset(name, 'x', sizeof(name));
    o.group = span_of(name, STORE_KEY_MAX + 1); /* no replica would take it */
    CHECK_EQ(util_put_with(s, "k", PAGE, &o), TARN_EINVAL);
    store_destroy(&s);
}

TEST(leases_and_pins_keep_a_part) {
    struct store *s = util_store("lru", 40, NULL, NULL);
    put_parts(s, 0);
    put_part(s, "hard", "b0");
    put_part(s, "soft", "b0");
    CHECK_EQ(store_pin(s, SPAN("hard"), STORE_PIN_HARD, 0), TARN_OK);
    CHECK_EQ(store_pin(s, SPAN("soft"), STORE_PIN_SOFT, 1000000), TARN_OK);
    util_tick(s, 60000);
    CHECK(util_lease(s, "window0", 1, 5000));
    CHECK_EQ(evict(s, 1), 2u);
    CHECK(util_has(s, "window0") && util_has(s, "hard") && util_has(s, "soft"));
    /* a lease on one part is none on the others */
    put_part(s, "full0", "b0");
    CHECK(util_lease(s, "full0", 1, 8000));
    util_tick(s, 5001);
    CHECK_EQ(store_object_refs(s, store_find(s, SPAN("window0"))), 0u);
    /* soft-pinned ones only with one that was */
    CHECK_EQ(evict(s, 1), 1u);
    CHECK(util_has(s, "soft") && !util_has(s, "window0"));
    put_part(s, "soft2", "b0");
    CHECK_EQ(store_pin(s, SPAN("soft2"), STORE_PIN_SOFT, 1000000), TARN_OK);
    util_tick(s, 1);
    CHECK(util_read(s, "soft"));
    CHECK_EQ(evict(s, 1), 1u); /* soft2; the other was used since */
    util_tick(s, 100000);
    CHECK_EQ(evict(s, 10), 2u);
    CHECK(util_has(s, "hard") && store_count(s) == 1);
    store_destroy(&s);
}

TEST(what_stays_on_a_disk_takes_nobody_along) {
    struct store *s = util_store("lru", 40, NULL, NULL);
    uint32_t disk;
    struct store_segment_config c = {
        .name = "d0", .epoch = 1, .tier = STORE_TIER_SSD, .size = 1u << 20};
    CHECK_EQ(store_segment_add(s, &c, &disk), TARN_OK);
    put_parts(s, 0);
    CHECK_EQ(store_far_add(s, store_find(s, SPAN("full0")), disk, 0), TARN_OK);
    util_tick(s, 60000);
    CHECK_EQ(evict(s, 1), 1u);
    CHECK_EQ(parts(s, 0), 3);
    CHECK_EQ(stats(s).evicted_to_far, 1u);
    CHECK_EQ(evict(s, 1), 2u); /* nobody has these */
    CHECK_EQ(parts(s, 0), 1);
    store_destroy(&s);
}

/* It may have been used just now, and what belongs to it be in use by others. */
TEST(what_is_only_in_the_way_takes_nobody_along) {
    struct store *s = util_store("lru", 400, NULL, NULL);
    for (int i = 0; i < 400; i++) put_part(s, part("k", i), part("b", i % 200));
    util_tick(s, 60000);
    for (int i = 0; i < 400; i += 2) CHECK(util_read(s, part("k", i)));
    util_tick(s, 60000);
    /* no few of those that are next to go lie side by side */
    CHECK_EQ(util_put(s, "large", 20 * PAGE), TARN_OK);
    CHECK_EQ(stats(s).room_window, 1u);
    CHECK_EQ(stats(s).evicted_objects, 20u);
    CHECK_EQ(stats(s).evicted_boundary, 0u);
    store_check(s);
    store_destroy(&s);
}

TEST(values_in_the_books_go_with_the_others) {
    struct store *s = util_store("lru", 40, NULL, NULL);
    struct store_put_options o = {.replicas = 1, .group = SPAN("b0"), .boundary = true};
    put_parts(s, 0);
    CHECK_EQ(util_put_with(s, "small", 10, &o), TARN_OK);
    util_tick(s, 60000);
    CHECK_EQ(evict(s, 1), 4u);
    CHECK_EQ(store_count(s), 0u);
    store_destroy(&s);
}

/* Prompts of which only the full blocks are read again, as by one that goes on behind them. */
TEST(windows_that_nobody_looks_at_go_before_blocks_that_are_used) {
    for (unsigned k = 0; k < ARRAY_LEN(policies); k++) {
        struct store *s = util_store(policies[k], 60, NULL, NULL);
        for (int i = 0; i < 10; i++) put_parts(s, i);
        for (int turn = 0; turn < 3; turn++) {
            util_tick(s, 20000);
            for (int i = 0; i < 10; i++) CHECK(util_read(s, part("full", i)));
        }
        /* fifo does not ask whether something is used, and still takes these first */
        for (int i = 10; i < 19; i++) {
            util_tick(s, 2000);
            put_parts(s, i);
        }
        for (int i = 20; i < 22; i++) CHECK_EQ(util_put(s, part("other", i), PAGE), TARN_OK);
        int full = 0, rest = 0;
        for (int i = 0; i < 10; i++) {
            full += util_has(s, part("full", i));
            rest += parts(s, i) - util_has(s, part("full", i));
        }
        CHECK(strcmp(policies[k], "fifo") == 0 ? full > 0 : full == 10);
        CHECK(rest <= 20);
        store_check(s);
        store_destroy(&s);
    }
}

#define CROWD 5000

/* Each eviction looks at those that go, and at few others. */
TEST(a_boundary_of_thousands_costs_what_goes) {
    struct store *s = util_store("lru", CROWD + 8, NULL, NULL);
    for (int i = 0; i < CROWD; i++) put_part(s, part("k", i), "crowd");
    for (int i = 0; i < CROWD; i++) { /* each was used later than the one before */
        util_tick(s, 1);
        CHECK(util_read(s, part("k", i)));
    }
    for (int i = 0; i < 100; i++) {
        struct store_evict_job job = {.want_objects = 1};
        unsigned budget = 10;
        CHECK(store_evict_step(s, &job, &budget));
        CHECK_EQ(job.objects, 1u);
        CHECK(budget >= 8);
    }
    /* used together they go so far as the slice goes, and the rest when it is their turn */
    util_tick(s, 200000);
    struct store_evict_job job = {.want_objects = 1};
    unsigned budget = 1000;
    CHECK(store_evict_step(s, &job, &budget));
    CHECK_EQ(job.objects, 1000u);
    CHECK_EQ(budget, 0u);
    CHECK_EQ(store_count(s), CROWD - 1100u);
    /* leased ones in the way are passed over, not all of them each time */
    for (int i = 1100; i < CROWD - 1; i++) CHECK(util_lease(s, part("k", i), 1, 5000));
    budget = 100000;
    job = (struct store_evict_job){.want_objects = 1};
    CHECK(store_evict_step(s, &job, &budget));
    CHECK_EQ(job.objects, 1u);
    store_check(s);
    store_destroy(&s);
}

/* However little is left of the slice. */
TEST(a_boundary_of_usual_size_goes_whole) {
    struct store *s = util_store("lru", 100, NULL, NULL);
    for (int i = 0; i < 60; i++) put_part(s, part("k", i), "b");
    util_tick(s, 100000);
    struct store_evict_job job = {.want_objects = 1};
    unsigned budget = 1;
    CHECK(store_evict_step(s, &job, &budget));
    CHECK_EQ(job.objects, 60u);
    store_destroy(&s);
}

TEST(books_of_a_part_stay_small) {
    uint64_t n = 60000;
    struct store *s = util_store("lru", n, NULL, NULL);
    uint64_t before = stats(s).mem_books;
    for (uint64_t i = 0; i < n; i++) {
        char key[80], boundary[40];
        snprintf(key, sizeof(key), "model@tp4.%lu@%064lx", i % 6, i / 6);
        snprintf(boundary, sizeof(boundary), "%032lx", i / 6);
        put_part(s, key, boundary);
    }
    CHECK_EQ(stats(s).boundaries, n / 6);
    CHECK((stats(s).mem_books - before) / n <= 320);
    store_destroy(&s);
}

/* --- by chance, against the words of the rule --- */

#define KEYS       40
#define BOUNDARIES 5

struct known {
    bool there;
    int boundary; /* BOUNDARIES: none */
    uint64_t turn, used_s, leased_ms;
};

static uint64_t turns; /* of the rule: what is used in one is used together */

static void known_use(struct store *s, struct known *all, struct rng *r) {
    struct store_batch b;
    unsigned n = 1 + (unsigned)rng_below(r, 4);
    turns++;
    store_batch_begin(s, &b, NULL, STORE_BATCH_READ, n);
    for (unsigned i = 0; i < n; i++) {
        int k = (int)rng_below(r, KEYS);
        struct object *o = store_find(s, span_str(part("k", k)));
        CHECK_EQ(o != NULL, all[k].there);
        if (!o) continue;
        store_batch_hit(s, &b, o, store_hash(store_object_key(o)));
        all[k].turn = turns;
        all[k].used_s = util_now / 1000;
        if (rng_below(r, 6)) continue;
        uint64_t granted;
        CHECK_EQ(store_lease(s, o, 1, 4000, &granted), TARN_OK);
        all[k].leased_ms = util_now + granted;
    }
}

static void known_put(struct store *s, struct known *all, struct rng *r) {
    int k = (int)rng_below(r, KEYS);
    if (all[k].there) return;
    int boundary = (int)rng_below(r, BOUNDARIES + 1);
    put_part(s, part("k", k), boundary == BOUNDARIES ? "" : part("b", boundary));
    all[k] = (struct known){true, boundary, ++turns, util_now / 1000, 0};
}

/* Would it go with v? */
static bool known_follows(const struct known *all, int k, int v) {
    const struct known *a = &all[k], *b = &all[v];
    if (!a->there || a->leased_ms > util_now || a->boundary != b->boundary) return false;
    if (a->boundary == BOUNDARIES) return k == v;
    if (a->turn <= b->turn) return true;
    uint64_t moment = (util_now / 1000 - b->used_s) / 16;
    return moment >= 1 && a->used_s - b->used_s <= moment;
}

TEST(by_chance_as_the_rule_says) {
    struct rng r = {.s = {5, 6, 7, 8}};
    for (int run = 0; run < 20; run++) {
        struct known all[KEYS] = {{0}};
        struct store *s = util_store("lru", 2 * KEYS, NULL, NULL);
        uint64_t together = 0;
        for (int step = 0; step < 2000; step++) {
            util_tick(s, rng_below(&r, 10) ? rng_below(&r, 1500) : rng_below(&r, 40000));
            if (rng_below(&r, 2)) known_put(s, all, &r);
            if (rng_below(&r, 2)) known_use(s, all, &r);
            if (rng_below(&r, 4)) continue;
            uint64_t gone = evict(s, 1), explained = 0, left = 0;
            bool went[KEYS];
            for (int k = 0; k < KEYS; k++) {
                went[k] = all[k].there && !util_has(s, part("k", k));
                left += went[k];
            }
            CHECK_EQ(gone, left);
            for (int v = 0; v < KEYS && gone > 0; v++) {
                bool same = went[v];
                for (int k = 0; k < KEYS && same; k++) same = went[k] == known_follows(all, k, v);
                explained += same;
            }
            CHECK(gone == 0 || explained > 0);
            together += gone > 1;
            for (int k = 0; k < KEYS; k++) all[k].there &= !went[k];
        }
        CHECK(together > 20);
        store_destroy(&s);
    }
}

TEST_MAIN()
