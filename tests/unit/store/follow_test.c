/* Books that follow others by their records are the same books, and can lead. */
#include "base/crc32c.h"
#include "base/rng.h"
#include "store/effect_codec.h"
#include "util.h"

static struct buf stream;

static void note(void *arg, const void *record, size_t len) {
    (void)arg;
    buf_append(&stream, record, len);
}

static struct store *follower(void) {
    struct store_config c;
    store_config_init(&c);
    c.high_watermark = 1;
    struct store *s = store_create(&c, NULL, "lru", "offset", util_now, 5000000 + util_now - 1000);
    store_follow(s);
    return s;
}

/* One that tells of itself from the first change on. */
static struct store *leader(const char *allocator, uint64_t pages) {
    struct store_config c;
    store_config_init(&c);
    c.high_watermark = 1;
    util_now = 1000;
    struct store_events events = {.effect = note};
    struct store *s = store_create(&c, &events, "lru", allocator, util_now, 5000000);
    store_tell(s, true);
    uint32_t id;
    struct store_segment_config seg = {.name = "s0", .epoch = 1, .size = pages * 4096};
    if (pages > 0) CHECK_EQ(store_segment_add(s, &seg, &id), TARN_OK);
    return s;
}

static void apply(struct store *s, struct span data) {
    while (data.len > 0) {
        enum effect_kind kind;
        struct span record;
        const char *why = "";
        CHECK_EQ(effect_next(data, &kind, &record), TARN_OK);
        CHECK(store_effects_prefetch(s, data) >= 1);
        tarn_status st = store_effect_apply(s, record, &why);
        if (st != TARN_OK) fprintf(stderr, "%s\n", why);
        CHECK_EQ(st, TARN_OK);
        data = span_of(data.data + record.len, data.len - record.len);
    }
}

static void catch_up(struct store *s) {
    apply(s, span_of(stream.data, stream.len));
    buf_clear(&stream);
}

static void digest(struct store *s, uint8_t out[16]) {
    struct store_digest d = {0};
    unsigned budget = 7;
    while (!store_digest_step(s, &d, &budget)) budget = 7;
    memcpy(out, d.sum, 16);
}

static bool same(struct store *a, struct store *b) {
    uint8_t x[16], y[16];
    digest(a, x);
    digest(b, y);
    return memcmp(x, y, 16) == 0 && store_count(a) == store_count(b);
}

static void tick_both(struct store *a, struct store *b, uint64_t ms) {
    util_tick(a, ms);
    store_tick(b, util_now, 5000000 + util_now - 1000);
    unsigned budget = 100000;
    while (store_background(b, &budget)) budget = 100000;
}

static void lead(struct store *s, uint64_t first_version, struct store_lead_stats *stats) {
    struct store_lead_options o = {.first_version = first_version, .alive = 0};
    store_lead(s, &o, stats);
    store_check(s);
}

TEST(one_of_each) {
    struct store *s = leader("offset", 64), *f = follower();
    struct store_put_options o = {
        .replicas = 1, .pin = STORE_PIN_SOFT, .pin_ms = 7000, .expire_wall_ms = 6000000};
    o.group = span_str("g");
    struct store_put_options part = {.replicas = 1, .group = span_str("g"), .boundary = true};
    CHECK_EQ(util_put(s, "small", 10), TARN_OK);
    CHECK_EQ(util_put(s, "large", 10000), TARN_OK);
    CHECK_EQ(util_put_with(s, "rich", 5000, &o), TARN_OK);
    CHECK_EQ(util_put_with(s, "part", 5000, &part), TARN_OK);
    CHECK_EQ(store_quota_set(s, span_str("q:"), 40960), TARN_OK);
    CHECK_EQ(util_put(s, "q:1", 4096), TARN_OK);
    catch_up(f);
    CHECK(same(s, f));
    store_check(f);
    CHECK_EQ(store_object_expire(f, store_find(f, span_str("rich"))), 6000000);
    CHECK(object_pin(f, store_find(f, span_str("rich"))) == STORE_PIN_SOFT);
    struct store_quota q;
    CHECK(store_quota_get(f, span_str("q:"), &q));
    CHECK_EQ(q.used, 4096);
    struct store_layout x, y;
    store_object_layout(s, store_find(s, span_str("large")), &x);
    store_object_layout(f, store_find(f, span_str("large")), &y);
    CHECK(memcmp(&x.replica[0], &y.replica[0], sizeof(x.replica[0].extent[0]) + 8) == 0);
    CHECK(store_remove(s, span_str("large")));
    store_expire(s, store_find(s, span_str("rich")), 0);
    CHECK_EQ(store_pin(s, span_str("rich"), STORE_PIN_HARD, 0), TARN_OK);
    CHECK(store_quota_del(s, span_str("q:")));
    CHECK(!same(s, f));
    catch_up(f);
    CHECK(same(s, f));
    CHECK(!util_has(f, "large"));
    store_flush(s);
    catch_up(f);
    CHECK_EQ(store_count(f), 0);
    tick_both(s, f, 1);
    CHECK_EQ(util_put(s, "after", 100), TARN_OK);
    catch_up(f);
    CHECK(same(s, f));
    CHECK_EQ(store_count(f), 1);
    store_check(f);
    store_destroy(&s);
    store_destroy(&f);
}

TEST(what_went_waits_for_leases_that_are_not_known) {
    struct store *s = leader("offset", 4), *f = follower();
    CHECK_EQ(util_put(s, "a", 3 * 4096), TARN_OK);
    catch_up(f);
    CHECK(store_remove(s, span_str("a")));
    catch_up(f);
    tick_both(s, f, 4000);
    struct store_lead_stats stats;
    lead(f, UINT64_C(1) << 30, &stats);
    CHECK_EQ(util_put(f, "b", 2 * 4096), TARN_ELATER); /* somebody may read it still */
    CHECK_EQ(util_put(f, "c", 4096), TARN_OK);
    CHECK_EQ(util_put(f, "d", 4096), TARN_ELATER); /* nor is anything evicted */
    CHECK(util_has(f, "c"));
    CHECK(!store_object_suspect(f, store_find(f, span_str("c"))));
    tick_both(s, f, 6000);
    CHECK_EQ(util_put(f, "b", 2 * 4096), TARN_OK);
    tick_both(s, f, 4000);
    CHECK_EQ(util_put(f, "e", 4 * 4096), TARN_OK);
    store_check(f);
    store_destroy(&s);
    store_destroy(&f);
}

static void append(void *arg, const void *record, size_t len) {
    (void)arg;
    buf_append(&stream, record, len);
}

/* What a server that dies under a lease leaves, to one that begins with its file. */
static void after_a_crash(uint64_t clock_id, bool told, tarn_status three_pages) {
    struct store *s = leader("offset", 4), *f = follower();
    struct store_snapshot x = {0};
    unsigned budget = 1000;
    uint64_t ms;
    store_config(s)->clock_id = 7;
    store_config(f)->clock_id = clock_id;
    while (!store_snapshot_step(s, &x, append, NULL, &budget)) budget = 1000;
    CHECK_EQ(util_put(s, "never leased", 4096), TARN_OK);
    CHECK_EQ(util_put(s, "leased", 4096), TARN_OK);
    CHECK(store_remove(s, span_str("never leased")));
    size_t before = stream.len;
    CHECK_EQ(store_lease(s, store_find(s, span_str("leased")), 1, 3000, &ms), TARN_OK);
    size_t promised = stream.len;
    CHECK(promised > before);
    tick_both(s, f, 900);
    CHECK_EQ(store_lease(s, store_find(s, span_str("leased")), 2, 10000, &ms), TARN_OK);
    CHECK_EQ(stream.len, promised); /* the promise covers it */
    tick_both(s, f, 200);
    CHECK_EQ(store_lease(s, store_find(s, span_str("leased")), 3, 10000, &ms), TARN_OK);
    CHECK(stream.len > promised);
    CHECK(store_remove(s, span_str("leased")));
    catch_up(f);
    struct store_lead_options o = {
        .first_version = UINT64_C(1) << 30, .alive = 0, .leases_told = told};
    struct store_lead_stats stats;
    store_lead(f, &o, &stats);
    store_check(f);
    CHECK_EQ(util_put(f, "x", 3 * 4096), three_pages);
    if (clock_id == 7) CHECK_EQ(util_put(f, "all", 4 * 4096), TARN_ELATER);
    if (clock_id == 7) CHECK(store_later_ms(f) <= 11000);
    tick_both(s, f, 11001);
    CHECK_EQ(util_put(f, "all", 4 * 4096), TARN_OK);
    store_check(f);
    store_destroy(&s);
    store_destroy(&f);
}

TEST(guarantee_1_only_what_a_lease_may_cover_is_a_ghost) {
    after_a_crash(7, true, TARN_OK);
}
TEST(guarantee_1_a_file_that_lacks_promises_makes_all_of_it_ghosts) {
    after_a_crash(7, false, TARN_ELATER);
}
TEST(guarantee_2_after_another_start_of_the_machine_nobody_has_it_mapped) {
    after_a_crash(8, true, TARN_OK);
}

TEST(what_was_put_to_use_again_frees_no_other) {
    struct store *s = leader("offset", 2), *f = follower();
    CHECK_EQ(util_put(s, "a", 4096), TARN_OK);
    CHECK_EQ(util_put(s, "b", 4096), TARN_OK);
    uint64_t ms;
    CHECK_EQ(store_lease(s, store_find(s, span_str("a")), 1, 10000, &ms), TARN_OK);
    CHECK(store_remove(s, span_str("a")));
    CHECK(store_remove(s, span_str("b")));
    CHECK_EQ(util_put(s, "d", 4096), TARN_OK); /* where b was: a is being read */
    CHECK(store_remove(s, span_str("d")));
    CHECK_EQ(util_put(s, "e", 4096), TARN_OK); /* where d was */
    catch_up(f);
    struct store_lead_stats stats;
    lead(f, UINT64_C(1) << 30, &stats);
    CHECK_EQ(stats.overlapping, 0);
    CHECK(util_has(f, "e"));
    CHECK_EQ(util_put(f, "x", 4096), TARN_ELATER);
    tick_both(s, f, 10001);
    CHECK_EQ(util_put(f, "x", 4096), TARN_OK);
    store_check(f);
    store_destroy(&s);
    store_destroy(&f);
}

TEST(figures_of_memory_that_is_down_are_apart) {
    struct store *s = leader("offset", 2), *f = follower();
    struct store_lead_stats lead_stats;
    struct store_stats stats;
    uint64_t ms;
    CHECK_EQ(util_put(s, "a", 4096), TARN_OK);
    CHECK_EQ(store_lease(s, store_find(s, span_str("a")), 1, 10000, &ms), TARN_OK);
    CHECK(store_remove(s, span_str("a")));
    catch_up(f);
    lead(f, UINT64_C(1) << 30, &lead_stats);
    store_get_stats(f, &stats);
    CHECK_EQ(stats.pool_ghosts, 4096);
    CHECK(stats.pool_used >= stats.pool_ghosts);
    store_segment_set_state(f, 0, SEGMENT_DOWN);
    store_get_stats(f, &stats);
    CHECK_EQ(stats.pool_down, 2 * 4096);
    CHECK_EQ(stats.pool_used, 0);
    CHECK_EQ(stats.pool_ghosts, 0);
    store_destroy(&s);
    store_destroy(&f);
}

/* The leader uses space again at once; to followers it is a ghost, and another, and an object. */
TEST(figures_of_a_follower_never_tell_of_more_than_there_is) {
    struct store *s = leader("offset", 4), *f = follower();
    struct store_stats stats;
    struct store_segment_info info;
    for (int i = 0; i < 100; i++) {
        char key[16];
        sprintf(key, "k%d", i);
        CHECK_EQ(util_put(s, key, 4096), TARN_OK);
        CHECK(i % 3 || store_remove(s, span_str(key)));
    }
    catch_up(f);
    store_get_stats(f, &stats);
    CHECK_EQ(stats.objects, store_count(s));
    CHECK_EQ(stats.pool_size, 4 * 4096);
    CHECK(stats.pool_used <= stats.pool_size && stats.pool_ghosts <= stats.pool_size);
    CHECK_EQ(stats.pool_used + stats.pool_free, 4 * 4096);
    CHECK(stats.pool_used >= stats.objects * 4096);
    CHECK_EQ(stats.pool_ghosts, stats.pool_used - stats.objects * 4096);
    CHECK(store_segment_get(f, 0, &info));
    CHECK_EQ(info.used, stats.pool_used);
    struct store_room room;
    store_get_room(f, &room);
    CHECK_EQ(room.used, stats.pool_used);
    store_destroy(&s);
    store_destroy(&f);
}

TEST(what_a_new_leader_drops_it_tells) {
    struct store *s = leader("offset", 16), *f = follower(), *later = follower();
    uint64_t token;
    struct store_put_options o = {.replicas = 1};
    CHECK_EQ(util_put_as(s, "bare", 4096, &o, 1, &token), TARN_OK);
    CHECK_EQ(store_put_end(s, span_str("bare"), token, -1, 0, NULL, 0, NULL), TARN_OK);
    CHECK_EQ(util_put(s, "sealed", 4096), TARN_OK);
    apply(later, span_of(stream.data, stream.len));
    catch_up(f);
    struct store_events events = {.effect = note};
    f->events = events;
    store_tell(f, true);
    struct store_lead_stats stats;
    lead(f, 1 << 20, &stats);
    CHECK_EQ(stats.unverifiable, 1);
    catch_up(later);
    CHECK(same(f, later));
    store_destroy(&s);
    store_destroy(&f);
    store_destroy(&later);
}

TEST(without_a_crc_nobody_can_tell) {
    struct store *s = leader("offset", 16), *f = follower();
    uint64_t token;
    struct store_put_options o = {.replicas = 1};
    CHECK_EQ(util_put_as(s, "bare", 4096, &o, 1, &token), TARN_OK);
    CHECK_EQ(store_put_end(s, span_str("bare"), token, -1, 0, NULL, 0, NULL), TARN_OK);
    CHECK_EQ(util_put(s, "sealed", 4096), TARN_OK);
    catch_up(f);
    struct store_lead_stats stats;
    lead(f, 1 << 20, &stats);
    CHECK_EQ(stats.unverifiable, 1);
    CHECK_EQ(stats.objects, 1);
    CHECK(store_object_suspect(f, store_find(f, span_str("sealed"))));
    store_destroy(&s);
    store_destroy(&f);
}

TEST(two_objects_in_one_place) {
    struct store *s = follower();
    struct store *a = leader("offset", 16);
    CHECK_EQ(util_put(a, "one", 4096), TARN_OK);
    CHECK_EQ(util_put(a, "two", 8192), TARN_OK);
    catch_up(s);
    struct store *b = leader("offset", 16);
    CHECK_EQ(util_put(b, "three", 4096 * 2), TARN_OK); /* from 0 on, over both */
    catch_up(s);
    struct store_lead_stats stats;
    CHECK_EQ(store_count(s), 3);
    lead(s, 1 << 20, &stats);
    CHECK(stats.overlapping >= 1);
    CHECK_EQ(store_count(s), 3 - stats.overlapping);
    store_destroy(&a);
    store_destroy(&b);
    store_destroy(&s);
}

/* The space of what went would not come back by it. */
TEST(nothing_is_evicted_before_leases_have_ended) {
    struct store *s = leader("offset", 16), *f = follower();
    char key[16];
    for (int i = 0; i < 12; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(util_put(s, key, 4096), TARN_OK);
    }
    catch_up(f);
    struct store_lead_stats stats;
    lead(f, UINT64_C(1) << 30, &stats);
    store_config(f)->high_watermark = 0.5;
    tick_both(s, f, store_config(f)->max_lease_ms - 1);
    CHECK_EQ(store_count(f), 12);
    tick_both(s, f, 1);
    CHECK_EQ(store_count(f), 8);
    store_check(f);
    store_destroy(&s);
    store_destroy(&f);
}

/* --- stepping down --- */

static void step_down(struct store *s) {
    struct store_digest before = {0}, after = {0};
    uint64_t objects = store_count(s);
    unsigned budget = 1000000;
    CHECK(store_digest_step(s, &before, &budget));
    store_step_down(s);
    CHECK(store_digest_step(s, &after, &budget));
    CHECK(memcmp(before.sum, after.sum, sizeof(before.sum)) == 0);
    CHECK_EQ(store_count(s), objects);
    store_check(s);
}

TEST(books_that_step_down_stay) {
    static const char *const allocators[] = {"offset", "slab"};
    for (int k = 0; k < 2; k++) {
        struct store *s = leader(allocators[k], 16);
        struct store_put_options o = {
            .replicas = 1, .pin = STORE_PIN_SOFT, .pin_ms = 7000, .expire_wall_ms = 5000500};
        uint64_t open, zombie;
        o.group = span_str("g");
        CHECK_EQ(util_put(s, "small", 10), TARN_OK);
        CHECK_EQ(util_put(s, "large", 2 * 4096), TARN_OK);
        CHECK_EQ(util_put_with(s, "brief", 4096, &o), TARN_OK);
        CHECK_EQ(util_put(s, "leased", 4096), TARN_OK);
        CHECK_EQ(util_put(s, "gone", 3 * 4096), TARN_OK);
        CHECK(util_lease(s, "leased", 5, 9000) && util_lease(s, "leased", 6, 100) &&
              util_lease(s, "gone", 5, 9000));
        CHECK(store_remove(s, span_str("gone")));
        o = (struct store_put_options){.replicas = 1};
        CHECK_EQ(util_put_as(s, "open", 2 * 4096, &o, 7, &open), TARN_OK);
        CHECK_EQ(util_put_as(s, "zombie", 4096, &o, 8, &zombie), TARN_OK);
        store_config(s)->put_timeout_ms = 1;
        store_session_closed(s, 8);
        buf_clear(&stream);
        step_down(s);
        CHECK_EQ(stream.len, 0); /* nothing has changed */
        CHECK(util_has(s, "leased") && util_has(s, "small") && !util_has(s, "gone") &&
              !util_has(s, "open"));
        util_tick(s, 1000);
        CHECK(!util_has(s, "brief"));
        CHECK_EQ(store_count(s), 4); /* but it is for others to say that it goes */
        CHECK_EQ(stream.len, 0);
        CHECK_EQ(store_put_end(s, span_str("open"), open, 1, 0, NULL, 0, NULL), TARN_ETOKEN);
        struct store_lead_stats stats;
        lead(s, UINT64_C(1) << 30, &stats);
        CHECK_EQ(stats.objects, 4);
        util_tick(s, 1);
        CHECK_EQ(store_count(s), 3);
        /* 16 pages: 3 in objects, 1 that is gone for less than max-lease, 3 of what was under a
         * lease; the puts' are free. */
        CHECK_EQ(util_put(s, "a", 9 * 4096), TARN_OK);
        CHECK_EQ(util_put(s, "b", 4096), TARN_ELATER);
        util_tick(s, store_config(s)->max_lease_ms);
        CHECK_EQ(util_put(s, "b", 4 * 4096), TARN_OK);
        CHECK_EQ(util_put(s, "c", 16 * 4096), TARN_OK);
        CHECK_EQ(store_count(s), 1); /* "small" was colder than what made room */
        store_check(s);
        buf_free(&stream);
        store_destroy(&s);
    }
}

static void random_key(struct rng *r, char out[32]) {
    snprintf(out, 32, "%s%u", rng_below(r, 4) == 0 ? "q:" : "k", (unsigned)rng_below(r, 300));
}

/* Anything that may happen to books, by chance. */
static void random_step(struct store *s, struct rng *r, unsigned step) {
    char key[32];
    random_key(r, key);
    struct store_put_options o = {.replicas = 1 + (unsigned)rng_below(r, 2),
                                  .replace = rng_below(r, 2)};
    switch (rng_below(r, 12)) {
    case 0: store_remove(s, span_str(key)); break;
    case 1: {
        struct object *found = store_find(s, span_str(key));
        if (found) store_expire(s, found, rng_below(r, 2) ? s->wall_ms + rng_below(r, 500) : 0);
        break;
    }
    case 2:
        store_pin(s, span_str(key), (enum store_pin)rng_below(r, 3), 1 + rng_below(r, 300));
        break;
    case 3: util_lease(s, key, 1 + rng_below(r, 5), 1 + rng_below(r, 100)); break;
    case 4: util_tick(s, rng_below(r, 40)); break;
    case 5:
        if (step % 97 == 0) store_flush(s);
        if (step % 31 == 0) store_quota_set(s, span_str("q:"), 100000 + rng_below(r, 200000));
        if (step % 41 == 0) store_quota_del(s, span_str("q:"));
        break;
    case 6: {
        struct store_evict_job job = {.want_objects = 1 + rng_below(r, 3)};
        unsigned budget = 1000;
        store_evict_step(s, &job, &budget);
        break;
    }
    default:
        if (rng_below(r, 10) == 0) o.group = span_str("group");
        o.boundary = o.group.len > 0 && rng_below(r, 2);
        if (rng_below(r, 10) == 0) o.expire_wall_ms = s->wall_ms + rng_below(r, 1000);
        if (rng_below(r, 20) == 0) o.pin = (enum store_pin)(1 + rng_below(r, 2)), o.pin_ms = 100;
        (void)util_put_with(s, key, rng_below(r, 3) ? 1 + rng_below(r, 30000) : rng_below(r, 65),
                            &o);
    }
}

static void add_segment(struct store *s, const char *name, uint32_t host, enum store_tier tier) {
    uint32_t id;
    struct store_segment_config c = {
        .name = name, .epoch = 3 + host, .size = 1u << 20, .host = host, .tier = tier};
    CHECK_EQ(store_segment_add(s, &c, &id), TARN_OK);
}

static void chance(uint64_t seed, const char *allocator) {
    struct rng r;
    rng_seed(&r, seed);
    struct store *s = leader(allocator, 0);
    struct store *f = follower(), *late = NULL;
    struct store_snapshot snap = {0};
    add_segment(s, "a", 1, STORE_TIER_MEMORY);
    add_segment(s, "b", 2, STORE_TIER_MEMORY);
    add_segment(s, "disk", 2, STORE_TIER_SSD);
    struct buf held = {0};
    for (unsigned i = 0; i < 6000; i++) {
        if (i == 3000) store_segment_set_state(s, 1, SEGMENT_LEAVING);
        random_step(s, &r, i);
        if (i % 50 == 17) {
            char key[32];
            random_key(&r, key);
            struct object *o = store_find(s, span_str(key));
            if (o) (void)store_far_add(s, o, 2, i);
        }
        /* A snapshot in slices, with what happens in between. */
        if (i == 2000)
            late = follower(); /* what has happened so far is in the snapshot */
        else
            buf_append(&held, stream.data, stream.len);
        catch_up(f);
        if (late != NULL) {
            apply(late, span_of(held.data, held.len));
            unsigned budget = 3;
            store_snapshot_step(s, &snap, note, NULL, &budget);
            catch_up(late);
        }
        buf_clear(&held);
        if (i % 500 == 499) {
            tick_both(s, f, 1);
            if (late != NULL) buf_append(&held, stream.data, stream.len); /* for its next turn */
            catch_up(f);
            tick_both(s, f, 0);
            CHECK(same(s, f));
            store_check(f);
        }
    }
    util_tick(s, 20000);
    buf_append(&held, stream.data, stream.len);
    catch_up(f);
    apply(late, span_of(held.data, held.len));
    CHECK_EQ(snap.phase, 3);
    tick_both(s, f, 0);
    tick_both(s, late, 0);
    CHECK(same(s, f));
    CHECK(same(s, late));
    struct store_lead_stats stats;
    uint8_t before[16], after[16];
    digest(f, before);
    struct store_lead_options o = {
        .first_version = UINT64_C(1) << 40, .keep_unverifiable = true, .alive = 0};
    store_lead(f, &o, &stats);
    CHECK_EQ(stats.overlapping, 0);
    store_check(f);
    digest(f, after);
    CHECK(memcmp(before, after, 16) == 0);
    for (unsigned i = 0; i < 1000; i++) {
        random_step(f, &r, i);
        if (i % 200 == 0) store_check(f);
    }
    util_tick(f, 20000);
    store_check(f);
    buf_free(&held);
    buf_free(&stream);
    store_destroy(&s);
    store_destroy(&f);
    store_destroy(&late);
}

TEST(by_chance) {
    for (uint64_t seed = 1; seed <= 12; seed++) chance(seed, seed % 2 ? "offset" : "slab");
}

/* There and back, at any moment, in whatever state; what it told makes the same books. */
static void there_and_back(uint64_t seed, const char *allocator) {
    struct rng r;
    rng_seed(&r, seed);
    struct store *s = leader(allocator, 0), *f = follower();
    add_segment(s, "a", 1, STORE_TIER_MEMORY);
    add_segment(s, "b", 2, STORE_TIER_MEMORY);
    add_segment(s, "disk", 2, STORE_TIER_SSD);
    for (unsigned round = 0; round < 20; round++) {
        if (round == 10) store_segment_set_state(s, 1, SEGMENT_LEAVING);
        for (unsigned i = 0, n = (unsigned)rng_below(&r, 300); i < n; i++) {
            char key[32];
            uint64_t token;
            struct store_put_options o = {.replicas = 1};
            random_step(s, &r, i);
            random_key(&r, key);
            if (i % 20 == 3)
                (void)util_put_as(s, key, 1 + rng_below(&r, 30000), &o, 1 + rng_below(&r, 9),
                                  &token);
            if (i % 50 == 7) store_session_closed(s, 1 + rng_below(&r, 9));
        }
        catch_up(f);
        step_down(s);
        if (round % 3 == 0) util_tick(s, rng_below(&r, 20000));
        struct store_lead_options o = {.first_version = (round + 1) * (UINT64_C(1) << 30),
                                       .keep_unverifiable = true,
                                       .alive = 0};
        struct store_lead_stats stats;
        store_lead(s, &o, &stats);
        CHECK_EQ(stats.overlapping, 0);
        store_check(s);
        const struct segment *second = space_segment(&s->space, 1);
        if (second && second->state == SEGMENT_DOWN) store_segment_set_state(s, 1, SEGMENT_UP);
        catch_up(f);
        CHECK(same(s, f));
    }
    util_tick(s, 30000);
    store_check(s);
    struct store_segment_info info;
    CHECK(store_segment_get(s, 0, &info) && info.quarantined == 0);
    buf_free(&stream);
    store_destroy(&s);
    store_destroy(&f);
}

TEST(there_and_back_by_chance) {
    for (uint64_t seed = 1; seed <= 12; seed++) there_and_back(seed, seed % 2 ? "offset" : "slab");
}

/* Records from anywhere: an error, or nothing that store_check minds. */
static tarn_status apply_versioned(struct store *s, enum effect_kind kind, size_t at,
                                   uint64_t version) {
    const char *why = "";
    char record[64] = {0};
    uint32_t len = (uint32_t)at + 8 - 4;
    memcpy(record, &len, sizeof(len));
    record[4] = (char)kind;
    memcpy(record + at, &version, sizeof(version));
    return store_effect_apply(s, span_of(record, at + 8), &why);
}

/* Whoever leads with these books counts on from the last one. */
TEST(versions_that_leave_no_room_for_others) {
    struct store *f = follower();
    CHECK_EQ(apply_versioned(f, EFFECT_FLUSH, 5, UINT64_MAX), TARN_EPROTO);
    CHECK_EQ(apply_versioned(f, EFFECT_FLUSH, 5, UINT64_C(1) << 47), TARN_EPROTO);
    CHECK_EQ(apply_versioned(f, EFFECT_SUPERSEDED, 9, UINT64_MAX), TARN_EPROTO);
    CHECK_EQ(apply_versioned(f, EFFECT_FLUSH, 5, (UINT64_C(1) << 47) - 1), TARN_OK);
    struct store_lead_stats stats;
    uint32_t id;
    lead(f, 1, &stats);
    struct store_segment_config seg = {.name = "s0", .epoch = 1, .size = 64 * 4096};
    CHECK_EQ(store_segment_add(f, &seg, &id), TARN_OK);
    CHECK_EQ(util_put(f, "a", 5000), TARN_OK);
    CHECK(util_has(f, "a"));
    store_check(f);
    store_destroy(&f);
}

TEST(names_that_would_break_a_list) {
    struct store *f = follower();
    static const char *const names[] = {"a\r\nb", "a b", "\x7f", "\xc3\xa9", ""};
    for (unsigned i = 0; i <= ARRAY_LEN(names); i++) {
        const char *why = "", *name = i < ARRAY_LEN(names) ? names[i] : "n1.0";
        struct buf b = {0};
        put_u32(&b, 0);
        put_u8(&b, EFFECT_SEGMENT);
        for (unsigned k = 0; k < 3; k++) put_u32(&b, 1); /* id, epoch, host */
        put_u8(&b, STORE_TIER_MEMORY);
        put_u8(&b, SEGMENT_UP);
        put_u64(&b, 64 * PAGE_UNITS);
        put_span(&b, span_str(name));
        uint32_t len = (uint32_t)b.len - 4;
        memcpy(b.data, &len, sizeof(len));
        CHECK_EQ(store_effect_apply(f, span_of(b.data, b.len), &why),
                 i < ARRAY_LEN(names) ? TARN_EPROTO : TARN_OK);
        buf_free(&b);
    }
    CHECK_EQ(store_segment_count(f), 1);
    store_destroy(&f);
}

/* Files and streams of older servers hold these bytes. */
static void set(struct store *s, const char *key, const char *value, uint64_t expire_wall_ms) {
    struct store_put_options o = {.replicas = 1, .replace = true, .expire_wall_ms = expire_wall_ms};
    struct store_batch b;
    unsigned budget = 1000;
    store_batch_begin(s, &b, NULL, STORE_BATCH_PUT, 1);
    CHECK_EQ(store_set_inline(s, &b, span_str(key), span_str(value),
                              crc32c(0, value, strlen(value)), &o, &budget),
             TARN_OK);
}

/* Where the new value fits it is written over the old one, here and there; else another record
 * comes in its place. Both keep the same books. */
TEST(values_that_are_set_again) {
    static const char *const values[] = {
        "one", "two", "", "a value that needs a record of another size altogether, surely",
        "three"};
    struct store *a = leader("offset", 0), *f = follower();
    uint64_t version = 0;
    for (size_t i = 0; i < 2 * ARRAY_LEN(values); i++) {
        const char *value = values[i % ARRAY_LEN(values)];
        set(a, "k", value, i % 4 == 3 ? 9000000 : 0);
        set(a, "other", "stays", 0);
        catch_up(f);
        struct object *o = store_find(f, SPAN("k")), *of_a = store_find(a, SPAN("k"));
        struct span got;
        uint32_t crc;
        CHECK(o != NULL && store_object_inline(o, &got) && span_eq(got, span_str(value)));
        CHECK(store_object_crc(o, &crc) && crc == crc32c(0, value, strlen(value)));
        CHECK_EQ(store_object_version(o), store_object_version(of_a));
        CHECK_EQ(store_object_expire(f, o), store_object_expire(a, of_a));
        CHECK(store_object_version(o) > version);
        version = store_object_version(o);
        CHECK_EQ(store_count(f), 2);
        CHECK(same(a, f));
        store_check(f);
    }
    struct store_lead_stats stats;
    lead(f, 1 << 20, &stats);
    set(f, "k", "mine", 0);
    CHECK(store_object_version(store_find(f, SPAN("k"))) > version);
    store_destroy(&f);
    store_destroy(&a);
    buf_free(&stream);
}

TEST(as_many_records_are_looked_at_ahead_as_are_whole) {
    struct store *a = leader("offset", 0);
    char key[16];
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        set(a, key, "value", 0);
    }
    CHECK_EQ(store_effects_prefetch(a, span_of(stream.data, stream.len)), EFFECTS_AHEAD);
    uint32_t first;
    memcpy(&first, stream.data, sizeof(first));
    CHECK_EQ(store_effects_prefetch(a, span_of(stream.data, first + 3)), 0);
    CHECK_EQ(store_effects_prefetch(a, span_of(stream.data, first + 4)), 1);
    CHECK_EQ(store_effects_prefetch(a, span_of(stream.data, first + 7)), 1);
    store_destroy(&a);
    buf_free(&stream);
}

TEST(records_keep_their_bytes) {
    struct buf b = {0};
#define SAME(...)                                                                                  \
    do {                                                                                           \
        static const unsigned char want_[] = {__VA_ARGS__};                                        \
        CHECK_EQ(b.len, sizeof(want_));                                                            \
        CHECK(memcmp(b.data, want_, sizeof(want_)) == 0);                                          \
    } while (0)
    put_gone_record(&b, &(struct gone_record){.version = 0x0102030405, .key = SPAN("k1")});
    SAME(15, 0, 0, 0, 2, 5, 4, 3, 2, 1, 0, 0, 0, 2, 0, 0, 0, 'k', '1');
    put_flush_record(&b, &(struct flush_record){.version = 7});
    SAME(9, 0, 0, 0, 3, 7, 0, 0, 0, 0, 0, 0, 0);
    put_segment_record(&b, &(struct segment_record){.id = 1,
                                                    .epoch = 2,
                                                    .host = 3,
                                                    .tier = 1,
                                                    .state = 2,
                                                    .units = 0x100,
                                                    .name = SPAN("s")});
    SAME(28, 0, 0, 0, 4, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 1, 2, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0,
         0, 's');
    put_segment_gone_record(&b, &(struct segment_gone_record){.id = 0x0a0b});
    SAME(5, 0, 0, 0, 5, 0x0b, 0x0a, 0, 0);
    put_quota_record(&b, &(struct quota_record){.bytes = 0x0201, .prefix = SPAN("p:")});
    SAME(15, 0, 0, 0, 6, 1, 2, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 'p', ':');
    put_superseded_record(&b, &(struct superseded_record){.slot = 9, .version = 8});
    SAME(13, 0, 0, 0, 7, 9, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0);
    put_leases_record(&b, &(struct leases_record){.clock_id = 1, .until_ms = 2});
    SAME(17, 0, 0, 0, 8, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0);
#undef SAME
    buf_free(&b);
}

/* While a file is loaded no time goes by in which those that went are cleared away. */
TEST(quotas_that_came_and_went) {
    struct store *s = leader("offset", 0), *f = follower();
    for (int i = 0; i < 1000; i++) {
        char prefix[16];
        snprintf(prefix, sizeof(prefix), "q%d:", i);
        CHECK_EQ(store_quota_set(s, span_str(prefix), 4096), TARN_OK);
        CHECK(store_quota_del(s, span_str(prefix)));
        util_tick(s, 1);
    }
    CHECK_EQ(store_quota_set(s, span_str("q:"), 4096), TARN_OK);
    CHECK_EQ(util_put(s, "q:1", 10), TARN_OK);
    catch_up(f);
    CHECK(same(s, f));
    struct store_quota q;
    CHECK(store_quota_get(f, span_str("q:"), &q));
    store_check(f);
    buf_free(&stream);
    store_destroy(&s);
    store_destroy(&f);
}

TEST(damaged_records) {
    struct rng r;
    rng_seed(&r, 5);
    struct store *s = leader("offset", 64);
    struct store_put_options o = {.replicas = 1, .pin = STORE_PIN_SOFT, .expire_wall_ms = 6000000};
    CHECK_EQ(util_put_with(s, "rich", 5000, &o), TARN_OK);
    CHECK_EQ(util_put(s, "small", 10), TARN_OK);
    store_quota_set(s, span_str("q:"), 40960);
    store_remove(s, span_str("small"));
    for (int round = 0; round < 1000; round++) {
        struct store *f = follower();
        struct span data = span_of(stream.data, stream.len);
        struct buf one = {0};
        while (data.len > 0) {
            enum effect_kind kind;
            struct span record;
            const char *why;
            CHECK_EQ(effect_next(data, &kind, &record), TARN_OK);
            buf_clear(&one);
            buf_append(&one, record.data, record.len);
            if (rng_below(&r, 2))
                one.data[5 + rng_below(&r, one.len - 5)] ^= (char)(1u << rng_below(&r, 8));
            if (rng_below(&r, 8) == 0) one.len -= rng_below(&r, one.len - 5);
            (void)store_effects_prefetch(f, span_of(one.data, one.len));
            (void)store_effect_apply(f, span_of(one.data, one.len), &why);
            data = span_of(data.data + record.len, data.len - record.len);
        }
        store_check(f);
        struct store_lead_stats stats;
        lead(f, 1 << 20, &stats);
        buf_free(&one);
        store_destroy(&f);
    }
    buf_free(&stream);
    store_destroy(&s);
}

TEST_MAIN()
