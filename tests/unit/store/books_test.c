/* Rules of the books, one at a time. */
#include "util.h"

static uint64_t fenced;
static char completed[64];

static void on_fence(void *arg, uint64_t session) {
    fenced = session;
}
static void on_complete(void *arg, struct span key) {
    sprintf(completed, "%.*s", (int)key.len, key.data);
}

TEST(tokens_and_visibility) {
    struct store_events ev = {.complete = on_complete};
    struct store *s = util_store("lru", 16, NULL, &ev);
    struct store_put_options o = {.replicas = 1};
    uint64_t token, other;
    CHECK_EQ(util_put_as(s, "a", 5000, &o, 1, &token), TARN_OK);
    CHECK(!util_has(s, "a"));
    CHECK_EQ(util_put_as(s, "a", 5000, &o, 2, &other), TARN_EBUSY);
    CHECK_EQ(store_put_end(s, SPAN("a"), token + 1, 5, 0, NULL, 0, NULL), TARN_ETOKEN);
    CHECK_EQ(store_put_end(s, SPAN("a"), token, 5, 0, NULL, 0, NULL), TARN_OK);
    CHECK(util_has(s, "a") && strcmp(completed, "a") == 0);
    CHECK_EQ(store_put_end(s, SPAN("a"), token, 5, 0, NULL, 0, NULL), TARN_OK);
    CHECK_EQ(util_put_as(s, "a", 5000, &o, 2, &other), TARN_EEXISTS);
    o.replace = true;
    CHECK_EQ(util_put_as(s, "a", 100, &o, 2, &other), TARN_OK);
    /* the old value, until PUTEND */
    CHECK_EQ(store_object_size(s, store_find(s, SPAN("a"))), 5000u);
    CHECK_EQ(store_put_end(s, SPAN("a"), other, -1, 0, NULL, 0, NULL), TARN_OK);
    CHECK_EQ(store_object_size(s, store_find(s, SPAN("a"))), 100u);
    CHECK_EQ(store_put_end(s, SPAN("a"), token, 5, 0, NULL, 0, NULL), TARN_ETOKEN);
    CHECK_EQ(store_put_revoke(s, SPAN("a"), other), TARN_ETOKEN);
    store_check(s);
    store_destroy(&s);
}

TEST(a_put_in_which_every_replica_failed_is_revoked) {
    struct store *s = util_store("lru", 16, NULL, NULL);
    struct store_put_options o = {.replicas = 1};
    uint64_t token;
    CHECK_EQ(util_put_as(s, "a", 5000, &o, 1, &token), TARN_OK);
    CHECK_EQ(store_put_end(s, SPAN("a"), token, 5, 2, NULL, 0, NULL),
             TARN_EINVAL); /* there is no replica 1 */
    CHECK_EQ(store_put_end(s, SPAN("a"), token, 5, 1, NULL, 0, NULL), TARN_EIO);
    CHECK(!util_has(s, "a"));
    CHECK_EQ(util_put(s, "a", 100), TARN_OK);
    store_destroy(&s);
}

TEST(guarantee_2_no_space_at_once_when_all_is_leased_and_room_when_one_ends) {
    struct store *s = util_store("lru", 4, NULL, NULL);
    static const char *const keys[] = {"a", "b", "c", "d"};
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(util_put(s, keys[i], 4096), TARN_OK);
        CHECK(util_lease(s, keys[i], 7, 100 + (uint64_t)i * 100));
    }
    CHECK_EQ(util_put(s, "e", 4096), TARN_ENOSPACE);
    struct object *c = store_find(s, SPAN("c"));
    CHECK(!store_release(s, SPAN("c"), 8, store_object_version(c), false)); /* another's */
    /* another version */
    CHECK(!store_release(s, SPAN("c"), 7, store_object_version(c) + 1, false));
    CHECK(store_release(s, SPAN("c"), 7, store_object_version(c), false));
    CHECK(!store_release(s, SPAN("c"), 7, store_object_version(c), false)); /* twice */
    CHECK_EQ(util_put(s, "e", 4096), TARN_OK);
    CHECK(!util_has(s, "c") && util_has(s, "a"));
    CHECK(util_lease(s, "e", 7, 5000));
    util_tick(s, 99);
    CHECK_EQ(util_put(s, "f", 4096), TARN_ENOSPACE);
    util_tick(s, 1);
    CHECK_EQ(util_put(s, "f", 4096), TARN_OK);
    CHECK(!util_has(s, "a"));
    store_check(s);
    store_destroy(&s);
}

TEST(removed_space_waits_for_its_leases) {
    struct store *s = util_store("lru", 2, NULL, NULL);
    CHECK_EQ(util_put(s, "a", 8192), TARN_OK);
    uint64_t version = store_object_version(store_find(s, SPAN("a")));
    CHECK(util_lease(s, "a", 1, 1000) && util_lease(s, "a", 2, 500));
    CHECK(store_remove(s, SPAN("a")) && !store_remove(s, SPAN("a")));
    CHECK_EQ(util_put(s, "b", 4096), TARN_ENOSPACE);
    util_tick(s, 500);
    CHECK_EQ(util_put(s, "b", 4096), TARN_ENOSPACE);
    CHECK(store_release(s, SPAN("a"), 1, version, false));
    CHECK_EQ(util_put(s, "b", 8192), TARN_OK);
    store_check(s);
    store_destroy(&s);
}

TEST(a_large_put_clears_a_window_around_leased_objects) {
    struct store *s = util_store("lru", 1024, NULL, NULL);
    char key[16];
    for (int i = 0; i < 1024; i++) {
        sprintf(key, "k%d", i);
        CHECK_EQ(util_put(s, key, 4096), TARN_OK);
        if (i % 100 == 50) CHECK(util_lease(s, key, 1, 5000));
    }
    CHECK_EQ(util_put(s, "big", 99 * 4096), TARN_OK);
    uint32_t n;
    book_blocks(s, store_find(s, SPAN("big")), &n);
    CHECK_EQ(n, 1u);
    CHECK_EQ(util_put(s, "bigger", 700 * 4096), TARN_OK); /* 8 runs of up to 99 pages */
    book_blocks(s, store_find(s, SPAN("bigger")), &n);
    CHECK_EQ(n, 8u);
    CHECK_EQ(util_put(s, "too big", 900 * 4096), TARN_ENOSPACE);
    CHECK(util_has(s, "bigger")); /* nothing was evicted for it */
    CHECK(util_has(s, "k50") && util_has(s, "k950"));
    store_check(s);
    store_destroy(&s);
}

/* Space is taken in the middle of the run that the walk began in, after so many slices. */
static tarn_status put_while_another_takes_a_page(unsigned slices, bool *walked_p) {
    enum { N = 220 };
    struct store *s = util_store("lru", N, NULL, NULL);
    char key[N][8];
    for (int i = 0; i < N; i++) {
        sprintf(key[i], "k%d", i);
        CHECK_EQ(util_put(s, key[i], 4096), TARN_OK);
        if (i >= 180) CHECK(util_lease(s, key[i], 1, 5000));
    }
    for (int i = 100; i < 180; i++) CHECK(store_remove(s, span_str(key[i])));
    for (int i = 0; i < 100; i++) CHECK(i == 90 || util_read(s, key[i])); /* k90 goes first */
    struct store_batch b;
    struct store_put *put;
    struct store_put_options o = {.replicas = 1};
    unsigned budget = 10, i = 0;
    uint64_t token;
    store_batch_begin(s, &b, NULL, STORE_BATCH_PUT, 1);
    tarn_status st = store_put_start(s, &b, SPAN("big"), 175 * 4096, &o, 1, &budget, &put);
    for (; st == TARN_EAGAIN; i++) {
        /* while the run is cleared nobody is given space */
        if (i == slices) (void)util_put_as(s, "page", 4096, &o, 1, &token);
        budget = 10;
        st = store_put_continue(s, put, &budget);
        *walked_p |= s->planner != NULL;
    }
    store_check(s);
    store_destroy(&s);
    return st;
}

TEST(room_is_found_although_another_put_takes_some_of_it_meanwhile) {
    bool walked = false;
    for (unsigned slices = 0; slices < 60; slices++)
        CHECK_EQ(put_while_another_takes_a_page(slices, &walked), TARN_OK);
    CHECK(walked);
}

TEST(soft_pins_go_last_and_hard_pins_never) {
    struct store *s = util_store("lru", 3, NULL, NULL);
    struct store_put_options soft = {.replicas = 1, .pin = STORE_PIN_SOFT, .pin_ms = 1000};
    struct store_put_options hard = {.replicas = 1, .pin = STORE_PIN_HARD};
    CHECK_EQ(util_put_with(s, "hard", 4096, &hard), TARN_OK);
    CHECK_EQ(util_put_with(s, "soft", 4096, &soft), TARN_OK);
    for (int i = 0; i < 5; i++) {
        char key[16];
        sprintf(key, "k%d", i);
        CHECK_EQ(util_put(s, key, 4096), TARN_OK);
    }
    CHECK(util_has(s, "hard") && util_has(s, "soft") && util_has(s, "k4") && !util_has(s, "k3"));
    CHECK_EQ(util_put(s, "two", 8192), TARN_OK); /* needs the soft-pinned one too */
    CHECK(util_has(s, "hard") && !util_has(s, "soft") && !util_has(s, "k4"));
    CHECK_EQ(util_put(s, "three", 3 * 4096), TARN_ENOSPACE);
    CHECK(util_has(s, "two"));
    CHECK_EQ(store_pin(s, SPAN("hard"), STORE_PIN_NONE, 0), TARN_OK);
    CHECK_EQ(util_put(s, "three", 3 * 4096), TARN_OK);
    CHECK_EQ(store_pin(s, SPAN("hard"), STORE_PIN_HARD, 0), TARN_ENOTFOUND);
    store_check(s);
    store_destroy(&s);
}

TEST(a_soft_pin_ends_and_a_read_renews_it) {
    struct store *s = util_store("lru", 2, NULL, NULL);
    struct store_put_options soft = {.replicas = 1, .pin = STORE_PIN_SOFT, .pin_ms = 1000};
    CHECK_EQ(util_put_with(s, "a", 4096, &soft), TARN_OK);
    util_tick(s, 600);
    CHECK(util_read(s, "a"));
    util_tick(s, 600);
    CHECK_EQ(object_pin(s, store_find(s, SPAN("a"))), STORE_PIN_SOFT);
    util_tick(s, 500);
    CHECK_EQ(object_pin(s, store_find(s, SPAN("a"))), STORE_PIN_NONE);
    store_destroy(&s);
}

TEST(groups_go_together) {
    struct store *s = util_store("lru", 6, NULL, NULL);
    struct store_put_options o = {.replicas = 1, .group = SPAN("g")};
    CHECK_EQ(util_put_with(s, "g1", 4096, &o), TARN_OK);
    CHECK_EQ(util_put(s, "x", 4096), TARN_OK);
    CHECK_EQ(util_put_with(s, "g2", 4096, &o), TARN_OK);
    CHECK_EQ(util_put_with(s, "g3", 4096, &o), TARN_OK);
    CHECK(util_lease(s, "g2", 1, 100));
    CHECK_EQ(util_put(s, "big", 3 * 4096), TARN_OK);
    CHECK(!util_has(s, "g1") && !util_has(s, "g3") && util_has(s, "g2"));
    /* A lease on one renews the session's leases on the others. */
    CHECK_EQ(util_put_with(s, "g4", 4096, &o), TARN_OK);
    CHECK(util_lease(s, "g4", 1, 5000));
    util_tick(s, 1000);
    CHECK_EQ(store_object_refs(s, store_find(s, SPAN("g2"))), 1u);
    store_check(s);
    store_destroy(&s);
}

TEST(a_quota_evicts_among_its_own) {
    struct store *s = util_store("lru", 16, NULL, NULL);
    CHECK_EQ(util_put(s, "t1:old", 4096), TARN_OK);
    CHECK_EQ(util_put(s, "other", 4096), TARN_OK);
    CHECK_EQ(store_quota_set(s, SPAN("t1:"), 3 * 4096), TARN_OK);
    util_tick(s, 1);
    struct store_quota q;
    CHECK(store_quota_get(s, SPAN("t1:"), &q) && !q.counting);
    CHECK_EQ(q.used, 4096u);
    CHECK_EQ(util_put(s, "t1:a", 4096), TARN_OK);
    CHECK_EQ(util_put(s, "t1:b", 4096), TARN_OK);
    CHECK_EQ(util_put(s, "t1:c", 4096), TARN_OK);
    CHECK(!util_has(s, "t1:old") && util_has(s, "other") && util_has(s, "t1:a"));
    CHECK_EQ(util_put(s, "t1:big", 4 * 4096), TARN_EQUOTA);
    /* the longest prefix counts */
    CHECK_EQ(store_quota_set(s, SPAN("t1:sub:"), 100 * 4096), TARN_OK);
    CHECK_EQ(util_put(s, "t1:sub:big", 4 * 4096), TARN_OK);
    CHECK(store_quota_del(s, SPAN("t1:")) && !store_quota_del(s, SPAN("t1:")));
    util_tick(s, 1);
    CHECK_EQ(util_put(s, "t1:big", 4 * 4096), TARN_OK);
    CHECK_EQ(store_quota_list(s, &q, 1), 1u);
    store_check(s);
    store_destroy(&s);
}

TEST(a_dead_writers_space_waits_for_the_fence) {
    struct store_config c;
    store_config_init(&c);
    c.high_watermark = 1;
    struct store_events ev = {.fence = on_fence};
    struct store *s = util_store("lru", 2, &c, &ev);
    struct store_put_options o = {.replicas = 1};
    uint64_t token, again;
    fenced = 0;
    CHECK_EQ(util_put_as(s, "a", 8192, &o, 9, &token), TARN_OK);
    store_session_closed(s, 9);
    util_tick(s, c.put_timeout_ms - 1);
    CHECK_EQ(util_put_as(s, "a", 4096, &o, 1, &again), TARN_EBUSY);
    CHECK_EQ(fenced, 0u);
    util_tick(s, 2);
    CHECK_EQ(fenced, 9u);
    CHECK_EQ(util_put(s, "b", 4096), TARN_ENOSPACE); /* the key is free, the space is not */
    CHECK_EQ(util_put(s, "a", 40), TARN_OK);
    store_session_fenced(s, 9);
    CHECK_EQ(util_put(s, "b", 8192), TARN_OK);
    CHECK_EQ(store_put_end(s, SPAN("a"), token, 5, 0, NULL, 0, NULL), TARN_ETOKEN);
    store_check(s);
    store_destroy(&s);
}

/* The key is anybody's at once; the space waits, as anybody's does. */
TEST(a_dead_movers_put_gives_way) {
    struct store_config c;
    store_config_init(&c);
    c.high_watermark = 1;
    struct store_events ev = {.fence = on_fence};
    struct store *s = util_store("lru", 2, &c, &ev);
    struct store_put_options o = {.replicas = 1, .moves = true}, user = {.replicas = 1};
    uint64_t token, again;
    bool moves;
    fenced = 0;
    CHECK_EQ(util_put_as(s, "a", 4096, &o, 9, &token), TARN_OK);
    CHECK_EQ(util_put_as(s, "a", 4096, &o, 8, &again), TARN_EBUSY);
    CHECK(store_put_under_way(s, SPAN("a"), &moves) && moves);
    store_session_closed(s, 9);
    CHECK(store_put_under_way(s, SPAN("a"), &moves) && !moves);
    CHECK_EQ(util_put_as(s, "a", 4096, &o, 8, &again), TARN_OK);
    CHECK_EQ(fenced, 9u);
    CHECK_EQ(store_put_end(s, SPAN("a"), token, 5, 0, NULL, 0, NULL), TARN_ETOKEN);
    CHECK_EQ(util_put_as(s, "a", 4096, &user, 1, &token), TARN_EBUSY);
    store_session_closed(s, 8);
    CHECK_EQ(util_put_as(s, "a", 40, &user, 1, &token), TARN_OK);
    CHECK_EQ(fenced, 8u);
    store_check(s);
    store_destroy(&s);
}

static bool closes;
static unsigned asked;
static bool on_put_close(void *arg, const struct store_put *put, const struct store_extent *x) {
    (void)arg, (void)x;
    CHECK(store_put_once(put));
    asked++;
    return closes;
}

/* Guarantee 6: whatever ends a put whose grants were not sealed, its space is nobody's until they
 * are worth nothing. */
TEST(space_of_puts_that_were_not_sealed) {
    struct store_config c;
    store_config_init(&c);
    struct store_events ev = {.fence = on_fence, .put_close = on_put_close};
    struct store *s = util_store("lru", 2, &c, &ev);
    struct store_put_options o = {.replicas = 1, .once = true},
                             taker = {.replicas = 1, .supersede = true};
    uint64_t token, late = 1001, other;
    closes = false;
    asked = 0;
    fenced = 0;
    for (int how = 0; how < 4; how++) {
        CHECK_EQ(util_put_as(s, "a", 8192, &o, 9, &token), TARN_OK);
        if (how == 0) CHECK_EQ(store_put_revoke(s, SPAN("a"), token), TARN_OK);
        if (how == 1) CHECK_EQ(store_put_end(s, SPAN("a"), token, 5, 1, NULL, 0, NULL), TARN_EIO);
        if (how == 2) CHECK_EQ(util_put_as(s, "a", 40, &taker, 1, &other), TARN_OK);
        if (how == 2) CHECK_EQ(store_put_revoke(s, SPAN("a"), other), TARN_OK);
        if (how == 3) util_tick(s, c.put_timeout_ms);
        CHECK_EQ(asked, (unsigned)how + 1);
        CHECK_EQ(util_put(s, "b", 4096), TARN_ELATER);
        struct store_stats st;
        store_get_stats(s, &st);
        CHECK_EQ(st.pool_zombie, 8192);
        CHECK_EQ(st.puts_open, 0);
        store_check(s);
        if (how < 3) util_tick(s, c.put_timeout_ms);
        CHECK_EQ(util_put(s, "b", 4096), TARN_ELATER);
        util_tick(s, late);
        CHECK_EQ(util_put(s, "b", 4096), TARN_OK);
        CHECK(store_remove(s, SPAN("b")));
    }
    closes = true; /* the host says so at once */
    CHECK_EQ(util_put_as(s, "a", 8192, &o, 9, &token), TARN_OK);
    CHECK_EQ(store_put_revoke(s, SPAN("a"), token), TARN_OK);
    CHECK_EQ(util_put_as(s, "a", 8192, &o, 9, &token), TARN_OK);
    closes = false; /* or said so before */
    store_put_sealed(store_put_find(s, SPAN("a"), store_hash(SPAN("a")), token));
    CHECK_EQ(store_put_revoke(s, SPAN("a"), token), TARN_OK);
    CHECK_EQ(util_put(s, "b", 8192), TARN_OK);
    CHECK_EQ(fenced, 0u);
    store_check(s);
    store_destroy(&s);
}

TEST(a_released_lease_is_guarded_to_its_time) {
    struct store *s = util_store("lru", 2, NULL, NULL);
    CHECK_EQ(util_put(s, "a", 8192), TARN_OK);
    uint64_t version = store_object_version(store_find(s, SPAN("a")));
    CHECK(util_lease(s, "a", 1, 500) && util_lease(s, "a", 2, 200));
    CHECK(store_release(s, SPAN("a"), 1, version, true) &&
          store_release(s, SPAN("a"), 2, version, true));
    struct store_stats st;
    store_get_stats(s, &st);
    CHECK(st.leases == 0 && st.guarded_objects == 1);
    CHECK_EQ(util_put(s, "b", 4096), TARN_ELATER);
    CHECK(store_remove(s, SPAN("a")));
    store_check(s);
    util_tick(s, 499);
    CHECK_EQ(util_put(s, "b", 4096), TARN_ELATER);
    util_tick(s, 1);
    CHECK_EQ(util_put(s, "b", 4096), TARN_OK);
    store_check(s);
    store_destroy(&s);
}

static uint64_t leases(const struct store *s) {
    struct store_stats st;
    store_get_stats(s, &st);
    return st.leases;
}

static bool lease_in(struct store *s, const char *key, uint64_t batch, uint64_t ms) {
    uint64_t granted;
    struct object *o = store_find(s, span_str(key));
    return o && store_lease_in(s, o, 1, batch, ms, &granted) == TARN_OK && granted == ms;
}

static uint64_t release_all(struct store *s, uint64_t session, uint64_t batch) {
    unsigned budget = 1000;
    return store_release_batch(s, session, batch, false, &budget);
}

TEST(leases_of_a_batch_end_together) {
    struct store *s = util_store("lru", 4, NULL, NULL);
    static const char *const keys[] = {"a", "b", "c", "d"};
    uint64_t batch = store_batch_id(s);
    for (int i = 0; i < 4; i++) CHECK_EQ(util_put(s, keys[i], 4096), TARN_OK);
    for (int i = 0; i < 3; i++) CHECK(lease_in(s, keys[i], batch, 1000));
    CHECK(lease_in(s, "a", batch, 1000)); /* twice: the same one */
    CHECK(util_lease(s, "b", 2, 1000));   /* another session's */
    CHECK_EQ(leases(s), 4);
    uint64_t b = store_object_version(store_find(s, SPAN("b")));
    CHECK(store_remove(s, SPAN("c"))); /* gone, and still read */
    CHECK_EQ(release_all(s, 2, batch), 0);
    CHECK_EQ(release_all(s, 1, batch + 1), 0);
    CHECK_EQ(release_all(s, 1, 0), 0);
    CHECK(store_release(s, SPAN("b"), 1, b, false)); /* a part of it */
    store_check(s);
    unsigned budget = 1;
    CHECK_EQ(store_release_batch(s, 1, batch, false, &budget), 1);
    CHECK_EQ(budget, 0u);
    CHECK_EQ(release_all(s, 1, batch), 1);
    CHECK_EQ(release_all(s, 1, batch), 0);
    CHECK_EQ(leases(s), 1);
    CHECK_EQ(util_put(s, "e", 8192), TARN_OK); /* not in the place of b */
    CHECK(store_release(s, SPAN("b"), 2, b, false));
    store_check(s);
    store_destroy(&s);
}

TEST(a_lease_is_of_the_last_batch_that_asked_for_it) {
    struct store *s = util_store("lru", 2, NULL, NULL);
    uint64_t first = store_batch_id(s), second = store_batch_id(s);
    CHECK_EQ(util_put(s, "a", 4096), TARN_OK);
    CHECK_EQ(util_put(s, "b", 4096), TARN_OK);
    CHECK(lease_in(s, "a", first, 1000) && lease_in(s, "b", first, 1000));
    CHECK(lease_in(s, "a", second, 100)); /* for no longer: it holds as long as before */
    CHECK_EQ(leases(s), 2);
    CHECK_EQ(release_all(s, 1, first), 1);
    util_tick(s, 999);
    CHECK_EQ(leases(s), 1);
    CHECK_EQ(util_put(s, "c", 8192), TARN_ENOSPACE);
    util_tick(s, 1);
    CHECK_EQ(leases(s), 0);
    CHECK_EQ(release_all(s, 1, second), 0);
    CHECK_EQ(util_put(s, "c", 8192), TARN_OK);
    store_check(s);
    store_destroy(&s);
}

static struct store_put *put_in(struct store *s, const char *key, uint64_t batch, uint32_t place) {
    struct store_put_options o = {.replicas = 1};
    uint64_t token = 0;
    CHECK_EQ(util_put_as(s, key, 4096, &o, 7, &token), TARN_OK);
    struct store_put *p = store_put_find(s, span_str(key), store_hash(span_str(key)), token);
    store_put_join(s, p, batch, place);
    return p;
}

TEST(puts_of_a_batch_are_found_by_their_place_while_they_are_open) {
    struct store_events ev = {.fence = on_fence};
    struct store *s = util_store("lru", 64, NULL, &ev);
    uint64_t batch = store_batch_id(s), over = store_batch_id(s);
    struct store_put *put[40];
    for (uint32_t i = 0; i < 40; i++) { /* more than there is memory for at first */
        char key[8];
        snprintf(key, sizeof(key), "k%u", i);
        put[i] = put_in(s, key, batch, i);
    }
    CHECK_EQ(store_put_batch_size(s, 7, batch), 40u);
    CHECK_EQ(store_put_batch_size(s, 8, batch), 0u); /* another session's */
    CHECK_EQ(store_put_batch_size(s, 7, over), 0u);
    CHECK(store_put_at(s, 7, batch, 39) == put[39]);
    CHECK(store_put_at(s, 8, batch, 39) == NULL);
    CHECK(store_put_at(s, 7, batch, 40) == NULL);
    CHECK(span_eq(store_put_key(put[3]), SPAN("k3")));
    CHECK_EQ(store_put_end_found(s, put[3], -1, 0, NULL, 0, NULL), TARN_OK);
    CHECK(store_find(s, SPAN("k3")) != NULL);
    CHECK(store_put_at(s, 7, batch, 3) == NULL);
    CHECK_EQ(store_put_batch_size(s, 7, batch), 40u);
    store_check(s);
    /* Their time is over: what is asked for is told to be quiet, and its space is free. */
    struct store_stats before, after;
    util_tick(s, store_config(s)->put_timeout_ms + 1);
    store_get_stats(s, &before);
    CHECK(store_put_at(s, 7, batch, 5) == NULL);
    store_get_stats(s, &after);
    CHECK_EQ(before.pool_zombie - after.pool_zombie, 4096u);
    CHECK_EQ(store_put_batch_size(s, 7, batch), 40u);
    store_session_closed(s, 7);
    store_session_fenced(s, 7);
    CHECK_EQ(store_put_batch_size(s, 7, batch), 0u);
    store_check(s);
    store_destroy(&s);
}

TEST(a_batch_of_puts_goes_with_its_last_and_may_begin_again) {
    struct store *s = util_store("lru", 64, NULL, NULL);
    uint64_t batch = store_batch_id(s);
    struct store_put *a = put_in(s, "a", batch, 0);
    CHECK_EQ(store_put_revoke(s, SPAN("a"), store_put_token(a)), TARN_OK);
    CHECK_EQ(store_put_batch_size(s, 7, batch), 0u);
    struct store_put *b = put_in(s, "b", batch, 1); /* of the same request, which goes on */
    CHECK_EQ(store_put_batch_size(s, 7, batch), 2u);
    CHECK(store_put_at(s, 7, batch, 0) == NULL);
    CHECK(store_put_at(s, 7, batch, 1) == b);
    store_check(s);
    store_destroy(&s); /* with one open */
}

TEST(a_batch_that_is_over_ends_in_slices_and_may_begin_again) {
    struct store *s = util_store("lru", 64, NULL, NULL);
    uint64_t batch = store_batch_id(s);
    char key[16];
    for (int i = 0; i < 64; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(util_put(s, key, 4096), TARN_OK);
        CHECK(lease_in(s, key, batch, 100));
    }
    util_now += 100;
    store_tick(s, util_now, 0);
    unsigned budget = 10;
    CHECK(store_background(s, &budget));
    CHECK(leases(s) < 64 && leases(s) >= 54);
    uint64_t left = leases(s);
    CHECK(lease_in(s, "k0", batch, 500)); /* then what is left of it goes on */
    util_tick(s, 100);
    CHECK(leases(s) == left || leases(s) == left + 1);
    CHECK(release_all(s, 1, batch) >= left);
    CHECK_EQ(leases(s), 0);
    CHECK_EQ(release_all(s, 1, batch), 0);
    CHECK(lease_in(s, "k1", batch, 100)); /* its name is not used up */
    CHECK_EQ(release_all(s, 1, batch), 1);
    store_check(s);
    store_destroy(&s);
}

TEST(a_live_writer_is_fenced_late_and_may_give_up_itself) {
    struct store_config c;
    store_config_init(&c);
    struct store_events ev = {.fence = on_fence};
    struct store *s = util_store("lru", 4, &c, &ev);
    struct store_put_options o = {.replicas = 1};
    uint64_t token, token2;
    fenced = 0;
    CHECK_EQ(util_put_as(s, "a", 8192, &o, 9, &token), TARN_OK);
    CHECK_EQ(util_put_as(s, "b", 8192, &o, 9, &token2), TARN_OK);
    util_tick(s, c.put_timeout_ms + 1);
    CHECK_EQ(fenced, 0u);
    CHECK_EQ(store_put_revoke(s, SPAN("b"), token2),
             TARN_ETOKEN); /* too late, but now nothing is in flight */
    CHECK_EQ(util_put(s, "c", 8192), TARN_OK);
    util_tick(s, c.put_release_timeout_ms);
    CHECK_EQ(fenced, 9u);
    store_session_fenced(s, 9);
    CHECK_EQ(util_put(s, "d", 8192), TARN_OK);
    store_check(s);
    store_destroy(&s);
}

TEST(flush_is_at_once_and_swept_later) {
    struct store *s = util_store("lru", 64, NULL, NULL);
    struct store_put_options o = {.replicas = 1};
    uint64_t token;
    char key[16];
    for (int i = 0; i < 64; i++) {
        sprintf(key, "k%d", i);
        CHECK_EQ(util_put(s, key, i % 2 ? 2000 : 10), TARN_OK);
    }
    CHECK_EQ(util_put_as(s, "open", 100, &o, 1, &token), TARN_OK);
    store_flush(s);
    CHECK(store_count(s) == 0 && !util_has(s, "k5") && store_flush_pending(s));
    CHECK_EQ(util_put(s, "k5", 100), TARN_OK);
    CHECK_EQ(store_put_end(s, SPAN("open"), token, 1, 0, NULL, 0, NULL), TARN_ETOKEN);
    unsigned budget = 10;
    while (store_background(s, &budget)) budget = 10;
    CHECK(!store_flush_pending(s) && store_count(s) == 1 && util_has(s, "k5"));
    store_check(s);
    store_destroy(&s);
}

TEST(limits_evict) {
    struct store_config c;
    store_config_init(&c);
    c.max_objects = 10;
    struct store *s = util_store("lru", 64, &c, NULL);
    char key[16];
    for (int i = 0; i < 50; i++) {
        sprintf(key, "k%d", i);
        CHECK_EQ(util_put(s, key, i % 3 ? 4096 : 20), TARN_OK);
    }
    CHECK(store_count(s) <= 10 && util_has(s, "k49"));
    store_destroy(&s);
}

/* Whoever goes leaves room in pages and tables that others still use; that counts, too. */
TEST(a_limit_a_little_below_what_is_used_takes_a_little) {
    enum { OBJECTS = 20000 };
    struct store *s = util_store("lru", OBJECTS, NULL, NULL);
    struct store_stats st;
    char key[16];
    for (int i = 0; i < OBJECTS; i++) {
        sprintf(key, "k%d", i);
        CHECK_EQ(util_put(s, key, i % 2 ? 4096 : 20), TARN_OK);
    }
    /* The order of eviction is not that of the records. */
    for (unsigned i = 0; i < OBJECTS; i++) {
        sprintf(key, "k%u", i * 7919u % OBJECTS);
        CHECK(util_read(s, key));
    }
    store_get_stats(s, &st);
    uint64_t before = st.mem_books, spare = st.mem_books_spare;
    store_config(s)->max_memory = before - before / 25;
    unsigned budget = OBJECTS;
    CHECK(!store_shrink(s, &budget));
    store_get_stats(s, &st);
    CHECK(st.mem_books <= before - before / 25);
    CHECK(st.objects < OBJECTS && st.objects > OBJECTS * 9 / 10);
    CHECK(st.mem_books_spare >= spare + (before - st.mem_books) / 2);
    store_check(s);
    store_destroy(&s);
}

TEST(the_background_pass_keeps_below_the_watermark) {
    struct store_config c;
    store_config_init(&c);
    c.high_watermark = 0.5;
    c.eviction_ratio = 0.1;
    struct store *s = util_store("lru", 100, &c, NULL);
    char key[16];
    for (int i = 0; i < 80; i++) {
        sprintf(key, "k%d", i);
        CHECK_EQ(util_put(s, key, 4096), TARN_OK);
    }
    util_tick(s, 1);
    CHECK(store_count(s) <= 50 && store_count(s) > 40);
    CHECK(!util_has(s, "k0") && util_has(s, "k79"));
    store_destroy(&s);
}

TEST(a_slice_never_works_more_than_its_budget) {
    struct store_config c;
    store_config_init(&c);
    c.high_watermark = 1;
    struct store *s = util_store("lru", 20000, &c, NULL);
    char key[16];
    for (int i = 0; i < 20000; i++) {
        sprintf(key, "k%d", i);
        CHECK_EQ(util_put(s, key, 4096), TARN_OK);
    }
    struct store_put_options o = {.replicas = 1};
    struct store_batch b;
    struct store_put *p;
    store_batch_begin(s, &b, NULL, STORE_BATCH_PUT, 1);
    unsigned budget = 500, slices = 0;
    uint64_t before = s->stat.evicted_objects;
    tarn_status st = store_put_start(s, &b, SPAN("big"), 15000 * 4096, &o, 1, &budget, &p);
    for (; st == TARN_EAGAIN; slices++) {
        CHECK(s->stat.evicted_objects - before <= 500);
        before = s->stat.evicted_objects;
        budget = 500;
        st = store_put_continue(s, p, &budget);
    }
    CHECK(st == TARN_OK && slices > 30);
    CHECK_EQ(p->spots[0].n_blocks, 1u);
    CHECK_EQ(store_put_revoke(s, SPAN("big"), store_put_token(p)), TARN_OK);
    store_check(s);
    store_destroy(&s);
}

/* Bytes of books for each of many objects that are put one by one. */
static uint64_t bytes_of_each(const char *policy) {
    uint64_t n = 200000;
    struct store *s = util_store(policy, n, NULL, NULL);
    uint64_t before = store_memory(s), mapped = store_mapped_memory(s);
    char key[80];
    for (uint64_t i = 0; i < n; i++) {
        sprintf(key, "vllm@meta-llama/Llama-3-70B@4@0@%016lx@layer.00%017lu",
                i * 0x9e3779b97f4a7c15u, i);
        key[64] = 0;
        CHECK_EQ(util_put(s, key, 4096), TARN_OK);
    }
    struct store_stats st;
    store_get_stats(s, &st);
    CHECK_EQ(st.objects, n);
    uint64_t more = st.mem_books - before;
    CHECK(more - (store_mapped_memory(s) - mapped) < n); /* next to none by the allocator */
    store_destroy(&s);
    return more / n;
}

TEST(books_of_one_object_stay_small) {
    CHECK(bytes_of_each("lru") <= 138);
    CHECK(bytes_of_each("chain") <= 138 + 33); /* each is a prompt's part by itself */
}

static void count_k(void *arg, struct object *o) {
    *(int *)arg += store_object_key(o).data[0] == 'k';
}

TEST(scan_sees_everything_that_stays) {
    struct store *s = util_store("lru", 16, NULL, NULL);
    char key[16];
    for (int i = 0; i < 3000; i++) {
        sprintf(key, "k%d", i);
        CHECK_EQ(util_put(s, key, 8), TARN_OK);
    }
    int n = 0;
    uint64_t cursor = 0;
    int steps = 0;
    do {
        cursor = store_scan(s, cursor, count_k, &n);
        sprintf(key, "x%d", steps++);
        CHECK_EQ(util_put(s, key, 8), TARN_OK); /* the table grows meanwhile */
    } while (cursor);
    CHECK(n >= 3000);
    store_destroy(&s);
}

/* Memory of puts that are over is used again, whatever they were; some keys are too long for it. */
static void remove_seen(void *arg, struct object *o) {
    store_remove_object(arg, o);
}

TEST(a_walk_that_removes_all_it_sees_leaves_nothing_and_its_memory_is_used_again) {
    struct store *s = util_store("lru", 100, NULL, NULL);
    uint64_t most = 0, cursor = 0;
    char key[32];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 60000; i++) {
            sprintf(key, "%d-%d", round, i);
            CHECK_EQ(util_put(s, key, 1), TARN_OK);
        }
        store_check(s);
        if (round == 0) most = index_memory(&s->index);
        CHECK(index_memory(&s->index) < most * 11 / 10);
        do cursor = store_scan_all(s, cursor, remove_seen, s);
        while (cursor != 0);
        CHECK_EQ(store_count(s), 0u);
        CHECK(index_memory(&s->index) < most / 4);
        store_check(s);
    }
    store_destroy(&s);
}

TEST(a_put_has_nothing_of_those_before_it) {
    enum { PUTS = 700, LONG = 300 };
    struct store *s = util_store("lru", 4096, NULL, NULL);
    static uint64_t token[PUTS];
    char key[LONG + 16];
    uint64_t memory = 0;
    for (unsigned round = 0; round < 4; round++) {
        bool odd = round % 2 == 0;
        struct store_put_options plain = {.replicas = 1}, other = {.replicas = 1};
        other.expire_wall_ms = 6000000;
        other.pin = STORE_PIN_SOFT;
        other.group = SPAN("group");
        other.replace = other.moves = true;
        for (unsigned i = 0; i < PUTS; i++) {
            snprintf(key, sizeof(key), "%0*u", i % 3 == 0 && odd ? LONG : 8, i);
            CHECK_EQ(util_put_as(s, key, 8192, odd ? &other : &plain, 1 + i % 2, &token[i]),
                     TARN_OK);
        }
        for (unsigned i = 0; i < PUTS; i++) {
            snprintf(key, sizeof(key), "%0*u", i % 3 == 0 && odd ? LONG : 8, i);
            CHECK_EQ(store_put_end(s, span_str(key), token[i], 1, 0, NULL, 0, NULL), TARN_OK);
            struct object *o = store_find(s, span_str(key));
            CHECK(o != NULL && store_object_size(s, o) == 8192);
            CHECK_EQ(store_object_expire(s, o), odd ? 6000000u : 0u);
            CHECK(store_remove(s, span_str(key)));
        }
        store_check(s);
        if (round == 1) memory = store_memory(s);
    }
    CHECK_EQ(store_memory(s), memory);
    store_destroy(&s);
    CHECK(s == NULL);
}

static block_id space_take(struct space *sp, uint64_t len) {
    block_id b = 0;
    CHECK_EQ(space_alloc(sp, 0, len, 1, 1, &b), 1u);
    return b;
}

/* Behind others of its bin, which all are too short. */
TEST(a_free_run_that_grows_is_found) {
    enum { OTHERS = 40 };
    struct store_segment_config c = {.name = "m", .size = 64u << 20};
    struct space sp;
    CHECK(space_init(&sp, "offset"));
    CHECK_EQ(space_segment_add(&sp, &c, 0), TARN_OK);
    block_id others[OTHERS], found;
    (void)space_take(&sp, 10);
    block_id run = space_take(&sp, 990), beside = space_take(&sp, 20);
    for (unsigned i = 0; i < OTHERS; i++) {
        (void)space_take(&sp, 10);
        others[i] = space_take(&sp, 970);
    }
    for (uint64_t left; (left = space_largest(&sp, 0)) > 0;) (void)space_take(&sp, left);
    space_release(&sp, run);
    for (unsigned i = 0; i < OTHERS; i++) space_release(&sp, others[i]);
    CHECK_EQ(space_alloc(&sp, 0, 1000, 1, 1, &found), 0u);
    space_release(&sp, beside);
    CHECK_EQ(space_alloc(&sp, 0, 1000, 1, 1, &found), 1u);
    space_free_all(&sp);
}

/* What is taken from the front of a free run leaves it in its bin, but shorter. */
TEST(the_largest_free_run_is_told_as_it_is) {
    struct store *s = util_store("lru", 1024, NULL, NULL);
    struct store_stats st;
    for (unsigned i = 0; i < 4; i++) {
        char key[8];
        store_get_stats(s, &st);
        CHECK_EQ(st.pool_largest_free, st.pool_free);
        snprintf(key, sizeof(key), "%u", i);
        CHECK_EQ(util_put(s, key, 8192), TARN_OK);
    }
    store_get_stats(s, &st);
    CHECK_EQ(st.pool_largest_free, st.pool_free);
    store_destroy(&s);
}

/* Of sessions without anything only the latest is kept, until its connection closes. */
TEST(sessions_come_and_go) {
    struct store *s = util_store("lru", 4, NULL, NULL);
    struct store_stats one, many, closed;
    CHECK_EQ(util_put(s, "a", 8192), TARN_OK);
    uint64_t version = store_object_version(store_find(s, SPAN("a")));
    store_session_closed(s, 1);
    for (uint64_t session = 2; session < 1000; session++) {
        CHECK(util_lease(s, "a", session, 1000));
        CHECK_EQ(store_session_leases(s, session), 1u);
        CHECK(store_release(s, SPAN("a"), session, version, false));
        CHECK_EQ(store_session_leases(s, session), 0u);
        if (session == 2) store_get_stats(s, &one);
    }
    store_check(s);
    store_get_stats(s, &many);
    CHECK_EQ(many.mem_books_leases, one.mem_books_leases);
    store_session_closed(s, 999);
    store_get_stats(s, &closed);
    CHECK(closed.mem_books_leases < many.mem_books_leases);
    CHECK(util_lease(s, "a", 3, 1000) && util_lease(s, "a", 4, 1000));
    store_session_closed(s, 4);
    CHECK(store_release(s, SPAN("a"), 4, version, false));
    CHECK(store_release(s, SPAN("a"), 3, version, false));
    store_session_closed(s, 3);
    store_check(s);
    store_destroy(&s);
}

TEST_MAIN()
