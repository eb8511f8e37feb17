/* Rules of a pool of many segments and hosts, one at a time. model_test.c mixes them. */
#include "util.h"

static uint32_t gone_id = UINT32_MAX;
static unsigned far_gone;

static void on_segment_gone(void *arg, uint32_t id) {
    gone_id = id;
}
static void on_far_gone(void *arg, struct span key, uint64_t version, uint32_t segment,
                        uint64_t offset) {
    far_gone++;
}

/* Pages of a memory segment on each host; s0 is on host 0. */
static struct store *pool(unsigned hosts, uint64_t pages) {
    struct store_events ev = {.segment_gone = on_segment_gone, .far_gone = on_far_gone};
    struct store *s = util_store("lru", pages, NULL, &ev);
    gone_id = UINT32_MAX;
    far_gone = 0;
    for (unsigned i = 1; i < hosts; i++) {
        char name[16];
        uint32_t id;
        sprintf(name, "s%u", i);
        struct store_segment_config c = {
            .name = name, .epoch = 1 + i, .size = pages * 4096, .host = i};
        CHECK(store_segment_add(s, &c, &id) == TARN_OK && id == i);
    }
    return s;
}

static uint32_t add_far(struct store *s, enum store_tier tier, uint32_t host) {
    uint32_t id;
    struct store_segment_config c = {
        .name = "far", .epoch = 9, .tier = tier, .size = 1 << 30, .host = host};
    CHECK_EQ(store_segment_add(s, &c, &id), TARN_OK);
    return id;
}

static struct store_layout layout_of(struct store *s, const char *key) {
    struct store_layout l = {0};
    struct object *o = store_find(s, span_str(key));
    if (o) store_object_layout(s, o, &l);
    return l;
}

static tarn_status put_to(struct store *s, const char *key, uint32_t replicas, uint32_t host) {
    struct store_put_options o = {.replicas = replicas, .host = host};
    return util_put_with(s, key, 4096, &o);
}

TEST(two_replicas_never_share_a_host) {
    struct store *s = pool(3, 16);
    struct store_put_options o = {.replicas = 2};
    struct store_batch b;
    struct store_put *p;
    unsigned budget = 1000;
    for (int i = 0; i < 12; i++) {
        char key[16];
        sprintf(key, "k%d", i);
        CHECK_EQ(put_to(s, key, 2, STORE_HOST_NONE), TARN_OK);
        struct store_layout l = layout_of(s, key);
        CHECK_EQ(l.replicas, 2u);
        CHECK(l.replica[0].extent[0].segment != l.replica[1].extent[0].segment);
    }
    o.replicas = 5; /* there are three hosts: as many as there are, and it is said */
    store_batch_begin(s, &b, NULL, STORE_BATCH_PUT, 1);
    CHECK_EQ(store_put_start(s, &b, SPAN("wide"), 4096, &o, 1, &budget, &p), TARN_OK);
    CHECK_EQ(store_put_missing(p), 2u);
    CHECK_EQ(store_put_end(s, SPAN("wide"), store_put_token(p), 1, 0, NULL, 0, NULL), TARN_OK);
    CHECK_EQ(layout_of(s, "wide").replicas, 3u);
    store_check(s);
    store_destroy(&s);
}

TEST(writers_get_space_of_their_own_host_first_and_of_others_when_it_is_full) {
    struct store *s = pool(3, 4);
    unsigned on_host[3] = {0};
    for (int i = 0; i < 12; i++) {
        char key[16];
        sprintf(key, "k%d", i);
        CHECK_EQ(put_to(s, key, 1, 2), TARN_OK);
        uint32_t segment = layout_of(s, key).replica[0].extent[0].segment;
        if (i < 4) CHECK_EQ(segment, 2u);
        on_host[segment]++;
    }
    CHECK(on_host[0] == 4 && on_host[1] == 4 && on_host[2] == 4); /* nothing was evicted */
    store_destroy(&s);
}

/* Of many segments not all are tried before something is evicted, but all before NOSPACE. */
TEST(room_in_one_of_a_thousand_segments_is_found_when_nothing_can_be_evicted) {
    enum { HOSTS = 1000, LAST = 700 };
    struct store *s = pool(HOSTS, 1);
    struct store_put_options hard = {.replicas = 1, .pin = STORE_PIN_HARD};
    char key[16], name[16];
    for (int i = 0; i < HOSTS; i++) {
        struct span prefer = span_of(name, (size_t)sprintf(name, "s%d", i));
        sprintf(key, "k%d", i);
        hard.prefer = &prefer;
        hard.prefers = 1;
        if (i != LAST) CHECK_EQ(util_put_with(s, key, 4096, &hard), TARN_OK);
    }
    CHECK_EQ(util_put(s, "a", 4096), TARN_OK);
    CHECK_EQ(layout_of(s, "a").replica[0].extent[0].segment, (uint32_t)LAST);
    CHECK_EQ(util_put(s, "b", 4096), TARN_OK); /* in place of a */
    CHECK(!util_has(s, "a") && util_has(s, "b"));
    hard.prefers = 0;
    CHECK_EQ(util_put_with(s, "c", 4096, &hard), TARN_OK);
    CHECK_EQ(util_put(s, "d", 4096), TARN_ENOSPACE);
    store_check(s);
    store_destroy(&s);
}

TEST(a_name_is_free_again_once_its_segment_leaves) {
    struct store *s = pool(3, 4);
    struct store_segment_info info;
    struct store_segment_config again = {.name = "s1", .epoch = 9, .size = 4096, .host = 1};
    uint32_t id;
    CHECK_EQ(store_segment_add(s, &again, &id), TARN_EEXISTS);
    CHECK_EQ(put_to(s, "k", 1, 1), TARN_OK);
    CHECK(store_lease(s, store_find(s, SPAN("k")), 1, 1000, &(uint64_t){0}) == TARN_OK);
    store_segment_set_state(s, 1, SEGMENT_LEAVING);
    CHECK(!store_segment_by_name(s, SPAN("s1"), &info));
    CHECK_EQ(store_segment_add(s, &again, &id), TARN_OK);
    CHECK(id != 1 && store_segment_by_name(s, SPAN("s1"), &info) && info.id == id);
    util_tick(s, 2000); /* the first one goes, and takes nothing of the second */
    CHECK_EQ(gone_id, 1u);
    CHECK(store_segment_by_name(s, SPAN("s1"), &info) && info.id == id);
    store_check(s);
    store_destroy(&s);
}

TEST(preferred_and_avoided_segments) {
    struct store *s = pool(3, 4);
    struct span name = SPAN("s1");
    struct store_put_options o = {.replicas = 1, .prefer = &name, .prefers = 1, .host = 2};
    CHECK_EQ(util_put_with(s, "a", 4096, &o), TARN_OK);
    CHECK_EQ(layout_of(s, "a").replica[0].extent[0].segment, 1u);
    o = (struct store_put_options){.replicas = 3, .avoid = &name, .avoids = 1};
    CHECK_EQ(util_put_with(s, "b", 4096, &o), TARN_OK);
    CHECK_EQ(layout_of(s, "b").replicas, 3u); /* another host is worth more than avoiding one */
    o.replicas = 2;
    CHECK_EQ(util_put_with(s, "c", 4096, &o), TARN_OK);
    struct store_layout l = layout_of(s, "c");
    CHECK(l.replica[0].extent[0].segment != 1 && l.replica[1].extent[0].segment != 1);
    struct span none = SPAN("nobody");
    o = (struct store_put_options){.replicas = 1, .prefer = &none, .prefers = 1};
    CHECK_EQ(util_put_with(s, "d", 4096, &o), TARN_ENOSEGMENT);
    store_destroy(&s);
}

TEST(strategies_spread_by_capacity) {
    static const char *const names[] = {"random", "free-ratio-first", "local-first"};
    for (int n = 0; n < 3; n++) {
        struct store *s = pool(2, 100);
        uint32_t id;
        struct store_segment_config big = {
            .name = "big", .epoch = 7, .size = 300 * 4096, .host = 7};
        CHECK_EQ(store_segment_add(s, &big, &id), TARN_OK);
        CHECK_EQ(store_set_placement(s, names[n]), TARN_OK);
        for (int i = 0; i < 250; i++) {
            char key[16];
            sprintf(key, "k%d", i);
            CHECK_EQ(put_to(s, key, 1, STORE_HOST_NONE), TARN_OK);
        }
        struct store_segment_info info;
        CHECK(store_segment_get(s, id, &info));
        CHECK(info.used > 90 * 4096 && info.used < 210 * 4096); /* three fifths, more or less */
        store_destroy(&s);
    }
}

TEST(a_failed_replica_is_left_out) {
    struct store *s = pool(2, 8);
    struct store_put_options o = {.replicas = 2};
    uint64_t token;
    CHECK_EQ(util_put_as(s, "a", 5000, &o, 1, &token), TARN_OK);
    CHECK_EQ(store_put_end(s, SPAN("a"), token, 5, 4, NULL, 0, NULL), TARN_EINVAL);
    CHECK_EQ(store_put_end(s, SPAN("a"), token, 5, 1, NULL, 0, NULL), TARN_OK);
    CHECK_EQ(layout_of(s, "a").replicas, 1u);
    CHECK_EQ(util_put_as(s, "b", 5000, &o, 1, &token), TARN_OK);
    CHECK_EQ(store_put_end(s, SPAN("b"), token, 5, 3, NULL, 0, NULL), TARN_EIO);
    CHECK(!util_has(s, "b"));
    store_check(s);
    store_destroy(&s);
}

TEST(a_host_that_is_away_makes_misses_and_loses_nothing) {
    struct store *s = pool(2, 8);
    CHECK(put_to(s, "both", 2, STORE_HOST_NONE) == TARN_OK && put_to(s, "one", 1, 1) == TARN_OK);
    store_segment_set_state(s, 1, SEGMENT_DOWN);
    CHECK(util_has(s, "both") && !util_has(s, "one"));
    CHECK_EQ(layout_of(s, "both").replicas, 1u);
    CHECK_EQ(layout_of(s, "both").replica[0].extent[0].segment, 0u);
    store_segment_set_state(s, 1, SEGMENT_UP);
    CHECK(util_has(s, "one") && layout_of(s, "both").replicas == 2);
    store_segment_set_state(s, 1, SEGMENT_DOWN);
    CHECK_EQ(put_to(s, "one", 1, 1), TARN_OK); /* put again meanwhile: the new one counts */
    CHECK_EQ(layout_of(s, "one").replica[0].extent[0].segment, 0u);
    store_segment_set_state(s, 1, SEGMENT_UP);
    CHECK(layout_of(s, "one").replicas == 1 &&
          layout_of(s, "one").replica[0].extent[0].segment == 0);
    store_check(s);
    store_destroy(&s);
}

TEST(what_is_removed_while_its_host_is_away_does_not_come_back) {
    struct store *s = pool(2, 8);
    CHECK(put_to(s, "one", 1, 1) == TARN_OK && put_to(s, "other", 1, 1) == TARN_OK);
    store_segment_set_state(s, 1, SEGMENT_DOWN);
    CHECK(!store_remove(s, SPAN("one")) && !store_remove(s, SPAN("none"))); /* a miss is a miss */
    store_segment_set_state(s, 1, SEGMENT_UP);
    CHECK(!util_has(s, "one") && util_has(s, "other"));
    CHECK(store_remove(s, SPAN("other")));
    store_check(s);
    store_destroy(&s);
}

/* A slice of making room may end between what is gone for look-ups and what is evicted: to a disk,
 * from where it would come back. */
TEST(what_is_removed_while_its_space_is_cleared_does_not_come_back) {
    enum { N = 1024 };
    struct store *s = pool(1, N);
    uint32_t ssd = add_far(s, STORE_TIER_SSD, 0);
    char key[N][8];
    bool removed[N] = {false};
    for (int i = 0; i < N; i++) {
        sprintf(key[i], "k%d", i);
        CHECK_EQ(put_to(s, key[i], 1, 0), TARN_OK);
        CHECK_EQ(store_far_add(s, store_find(s, span_str(key[i])), ssd, 4096u * (unsigned)i),
                 TARN_OK);
        if (i % 100 == 50) CHECK(util_lease(s, key[i], 1, 5000));
    }
    struct store_batch b;
    struct store_put *put;
    struct store_put_options o = {.replicas = 1};
    unsigned budget = 5, n = 0;
    store_batch_begin(s, &b, NULL, STORE_BATCH_PUT, 1);
    tarn_status st = store_put_start(s, &b, SPAN("big"), 700 * 4096, &o, 1, &budget, &put);
    for (; st == TARN_EAGAIN; budget = 5, st = store_put_continue(s, put, &budget))
        for (int i = 0; i < N && n < 20; i++)
            if (!util_has(s, key[i])) {
                CHECK(!store_remove(s, span_str(key[i])));
                removed[i] = true;
                n++;
            }
    CHECK(st == TARN_OK && n == 20);
    for (int i = 0; i < N; i++) CHECK_EQ(util_has(s, key[i]), !removed[i]);
    store_check(s);
    store_destroy(&s);
}

TEST(objects_of_a_host_that_is_away_do_not_stand_in_the_way_of_eviction) {
    struct store *s = pool(2, 100);
    char key[16];
    for (int i = 0; i < 100; i++) {
        sprintf(key, "away%d", i);
        CHECK_EQ(put_to(s, key, 1, 1), TARN_OK); /* the coldest of all */
    }
    store_segment_set_state(s, 1, SEGMENT_DOWN);
    for (int i = 0; i < 300; i++) {
        sprintf(key, "k%d", i);
        CHECK_EQ(put_to(s, key, 1, 0), TARN_OK);
    }
    store_segment_set_state(s, 1, SEGMENT_UP);
    for (int i = 0; i < 100; i++) {
        sprintf(key, "away%d", i);
        CHECK(util_has(s, key));
    }
    store_check(s);
    store_destroy(&s);
}

TEST(readonly_segments_are_read_and_not_written) {
    struct store *s = pool(2, 8);
    CHECK_EQ(put_to(s, "a", 1, 1), TARN_OK);
    store_segment_set_state(s, 1, SEGMENT_READONLY);
    CHECK(util_has(s, "a"));
    CHECK_EQ(put_to(s, "b", 2, 1), TARN_OK);
    CHECK(layout_of(s, "b").replicas == 1 && layout_of(s, "b").replica[0].extent[0].segment == 0);
    store_destroy(&s);
}

TEST(a_leaving_segment_waits_for_its_readers) {
    struct store *s = pool(2, 8);
    struct store_segment_info info;
    CHECK(put_to(s, "a", 1, 1) == TARN_OK && put_to(s, "b", 2, 1) == TARN_OK);
    CHECK(util_lease(s, "a", 1, 1000));
    store_segment_set_state(s, 1, SEGMENT_LEAVING);
    CHECK(!util_has(s, "a") && layout_of(s, "b").replicas == 1);
    CHECK(!store_segment_by_name(s, SPAN("s1"), &info)); /* the name is free for a new one */
    util_tick(s, 500);
    CHECK(store_segment_get(s, 1, &info) && info.quarantined == 4096 && gone_id == UINT32_MAX);
    util_tick(s, 500);
    CHECK(!store_segment_get(s, 1, &info) && gone_id == 1);
    CHECK(util_has(s, "b"));
    store_check(s);
    uint32_t id;
    struct store_segment_config c = {.name = "s1", .epoch = 50, .size = 8 * 4096, .host = 1};
    CHECK(store_segment_add(s, &c, &id) == TARN_OK && id == 1); /* the number, too */
    store_destroy(&s);
}

/* Its client may be held back: until its next slice there is nothing to do. */
TEST(a_leaving_segment_waits_for_the_put_that_looks_for_room_in_it) {
    struct store *s = pool(1, 256);
    char key[256][8];
    for (int i = 0; i < 256; i++) {
        sprintf(key[i], "k%d", i);
        CHECK_EQ(put_to(s, key[i], 1, 0), TARN_OK);
    }
    struct store_batch b;
    struct store_put *put;
    struct store_put_options o = {.replicas = 1};
    unsigned budget = 80;
    store_batch_begin(s, &b, NULL, STORE_BATCH_PUT, 1);
    CHECK_EQ(store_put_start(s, &b, SPAN("big"), 200 * 4096, &o, 1, &budget, &put), TARN_EAGAIN);
    CHECK(s->planner);
    for (int i = 0; i < 256; i++) store_remove(s, span_str(key[i]));
    store_segment_set_state(s, 0, SEGMENT_LEAVING);
    util_tick(s, 10);
    CHECK_EQ(gone_id, UINT32_MAX);
    CHECK_EQ(store_next_ms(s, 1000), 1000);
    budget = 80;
    CHECK_EQ(store_put_continue(s, put, &budget), TARN_ENOSPACE);
    CHECK_EQ(store_next_ms(s, 1000), 0);
    util_tick(s, 10);
    CHECK_EQ(gone_id, 0);
    store_check(s);
    store_destroy(&s);
}

TEST(a_put_loses_the_replica_whose_segment_leaves) {
    struct store *s = pool(2, 8);
    struct store_put_options o = {.replicas = 2};
    uint64_t both, one;
    CHECK_EQ(util_put_as(s, "both", 5000, &o, 1, &both), TARN_OK);
    o = (struct store_put_options){.replicas = 1, .host = 1};
    CHECK_EQ(util_put_as(s, "one", 5000, &o, 1, &one), TARN_OK);
    store_segment_set_state(s, 1, SEGMENT_LEAVING);
    util_tick(s, 10);
    CHECK_EQ(store_put_end(s, SPAN("both"), both, 5, 0, NULL, 0, NULL), TARN_OK);
    CHECK_EQ(layout_of(s, "both").replicas, 1u);
    CHECK_EQ(store_put_end(s, SPAN("one"), one, 5, 0, NULL, 0, NULL), TARN_EIO);
    util_tick(s, 10);
    CHECK_EQ(gone_id, 1u);
    store_check(s);
    store_destroy(&s);
}

TEST(eviction_keeps_what_a_disk_has_and_takes_it_first) {
    struct store *s = pool(1, 4);
    uint32_t ssd = add_far(s, STORE_TIER_SSD, 0);
    static const char *const keys[] = {"a", "b", "c", "d"};
    for (int i = 0; i < 4; i++) CHECK_EQ(put_to(s, keys[i], 1, 0), TARN_OK);
    CHECK_EQ(store_far_add(s, store_find(s, SPAN("b")), ssd, 77), TARN_OK);
    CHECK_EQ(store_far_add(s, store_find(s, SPAN("b")), ssd, 78), TARN_EEXISTS);
    CHECK_EQ(put_to(s, "e", 1, 0), TARN_OK); /* not "a", which would be lost */
    CHECK(util_has(s, "a") && util_has(s, "b"));
    struct store_layout l = layout_of(s, "b");
    CHECK(l.replicas == 1 && l.replica[0].tier == STORE_TIER_SSD &&
          l.replica[0].extent[0].offset == 77);
    CHECK_EQ(l.replica[0].extent[0].length, 4096u);
    CHECK(!store_object_in_memory(s, store_find(s, SPAN("b"))));
    CHECK_EQ(put_to(s, "f", 1, 0), TARN_OK);
    CHECK(!util_has(s, "a")); /* had no copy */
    CHECK(util_read(s, "b") && util_read(s, "b"));
    CHECK_EQ(store_object_far_hits(store_find(s, SPAN("b"))), 2u);
    store_check(s);
    CHECK(store_remove(s, SPAN("b")));
    CHECK_EQ(far_gone, 1u);
    store_check(s);
    store_destroy(&s);
}

TEST(a_copy_brings_it_back_to_memory) {
    struct store *s = pool(1, 4);
    uint32_t ssd = add_far(s, STORE_TIER_SSD, 0);
    struct store_copy *copy;
    struct store_replica r;
    unsigned budget = 1000;
    uint64_t bytes;
    CHECK_EQ(put_to(s, "a", 1, 0), TARN_OK);
    struct object *o = store_find(s, SPAN("a"));
    uint64_t version = store_object_version(o);
    CHECK_EQ(store_far_add(s, o, ssd, 77), TARN_OK);
    CHECK(store_evict_object(s, o, &bytes) && !store_object_in_memory(s, store_find(s, SPAN("a"))));
    struct store_copy_options options = {.segment = STORE_SEGMENT_ANY,
                                         .host = STORE_HOST_NONE,
                                         .from = STORE_SEGMENT_ANY,
                                         .evict = true};
    CHECK_EQ(store_copy_start(s, SPAN("a"), version + 1, &options, &budget, &copy), TARN_ENOTFOUND);
    CHECK_EQ(store_copy_start(s, SPAN("a"), version, &options, &budget, &copy), TARN_OK);
    store_copy_layout(s, copy, &r);
    CHECK(r.tier == STORE_TIER_MEMORY && r.extent[0].length == 4096);
    CHECK_EQ(store_copy_end(s, &copy, true), TARN_OK);
    CHECK(store_object_in_memory(s, store_find(s, SPAN("a"))));
    CHECK_EQ(layout_of(s, "a").replicas, 2u);
    CHECK_EQ(store_copy_start(s, SPAN("a"), version, &options, &budget, &copy),
             TARN_ENOSPACE); /* no other host */
    store_check(s);
    store_destroy(&s);
}

TEST(a_move_leaves_its_host_and_readers_of_the_old_place_are_waited_for) {
    struct store *s = pool(2, 4);
    struct store_copy *copy;
    unsigned budget = 1000;
    CHECK_EQ(put_to(s, "a", 1, 0), TARN_OK);
    struct object *o = store_find(s, SPAN("a"));
    CHECK(util_lease(s, "a", 1, 1000));
    struct store_copy_options options = {
        .segment = STORE_SEGMENT_ANY, .host = STORE_HOST_NONE, .from = 0, .evict = true};
    CHECK_EQ(store_copy_start(s, SPAN("a"), store_object_version(o), &options, &budget, &copy),
             TARN_OK);
    CHECK_EQ(store_copy_end(s, &copy, true), TARN_OK);
    CHECK_EQ(store_replica_drop(s, o, 0, false), TARN_OK);
    CHECK_EQ(store_replica_drop(s, o, 0, false), TARN_ENOTFOUND);
    CHECK_EQ(store_replica_drop(s, o, 1, false), TARN_EBUSY); /* the last one */
    struct store_segment_info info;
    CHECK(store_segment_get(s, 0, &info) && info.quarantined == 4096 && info.used == 0);
    CHECK(util_lease(s, "a", 1, 5000)); /* of the new place: does not keep the old one */
    util_tick(s, 999);
    CHECK(store_segment_get(s, 0, &info) && info.quarantined == 4096);
    util_tick(s, 1);
    CHECK(store_segment_get(s, 0, &info) && info.quarantined == 0);
    CHECK_EQ(layout_of(s, "a").replica[0].extent[0].segment, 1u);
    store_check(s);
    store_destroy(&s);
}

TEST(readers_that_say_they_are_done_are_not_waited_for) {
    struct store *s = pool(2, 4);
    struct store_segment_info info;
    CHECK_EQ(put_to(s, "a", 2, 0), TARN_OK);
    struct object *o = store_find(s, SPAN("a"));
    uint64_t version = store_object_version(o);
    CHECK(util_lease(s, "a", 1, 5000) && util_lease(s, "a", 2, 5000));
    struct store_hold *hold = store_hold(s, o);
    CHECK_EQ(store_replica_drop(s, o, 0, false), TARN_OK);
    CHECK(util_lease(s, "a", 3, 5000)); /* came later */
    CHECK(store_release(s, SPAN("a"), 1, version, false) &&
          store_release(s, SPAN("a"), 2, version, false));
    CHECK(store_segment_get(s, 0, &info) && info.quarantined == 4096);
    store_unhold(s, &hold);
    CHECK(store_segment_get(s, 0, &info) && info.quarantined == 0);
    store_check(s);
    store_destroy(&s);
}

TEST(what_a_disk_offers_again) {
    struct store *s = pool(1, 4);
    uint32_t ssd = add_far(s, STORE_TIER_SSD, 0);
    uint64_t version = 0, again = 0;
    CHECK_EQ(store_far_offer(s, SPAN("new"), 9000, 5, NULL, 0, 3, ssd, 11, &version), TARN_OK);
    CHECK(util_has(s, "new") && version != 3);
    CHECK_EQ(layout_of(s, "new").replica[0].extent[0].length, 9000u);
    CHECK_EQ(store_far_offer(s, SPAN("new"), 9000, 5, NULL, 0, 3, ssd, 11, &again), TARN_OK);
    CHECK_EQ(again, version); /* the answer was lost */
    CHECK_EQ(store_far_offer(s, SPAN("new"), 9000, 5, NULL, 0, 3, ssd, 19, &again), TARN_EEXISTS);
    CHECK_EQ(store_far_offer(s, SPAN("new"), 9000, 6, NULL, 0, version, ssd, 12, &again),
             TARN_EEXISTS); /* other bytes */
    CHECK_EQ(store_far_offer(s, SPAN("new"), 9000, 5, NULL, 0, version, ssd, 12, &again), TARN_OK);
    CHECK(again == version && layout_of(s, "new").replica[0].extent[0].offset == 12);
    CHECK_EQ(store_far_offer(s, SPAN("x"), 9000, 5, NULL, 0, 3, 0, 11, &version),
             TARN_ENOSEGMENT); /* memory */
    CHECK_EQ(store_far_offer(s, SPAN(""), 9000, 5, NULL, 0, 3, ssd, 11, &version), TARN_EINVAL);
    CHECK(store_far_drop(s, SPAN("new"), version, ssd));
    CHECK(!util_has(s, "new") && far_gone == 0); /* the host knows */
    store_check(s);
    store_destroy(&s);
}

TEST(a_disk_offers_the_key_of_a_put_under_way) {
    struct store *s = pool(1, 4);
    uint32_t ssd = add_far(s, STORE_TIER_SSD, 0);
    struct store_put_options o = {.replicas = 1};
    uint64_t version = 0, token = 0;
    CHECK_EQ(util_put_as(s, "new", 4096, &o, 1, &token), TARN_OK);
    CHECK_EQ(store_far_offer(s, SPAN("new"), 9000, 5, NULL, 0, 3, ssd, 11, &version), TARN_OK);
    CHECK(util_has(s, "new"));
    CHECK_EQ(store_put_end(s, SPAN("new"), token, 7, 0, NULL, 0, NULL), TARN_OK);
    CHECK_EQ(store_object_version(store_find(s, SPAN("new"))), token);
    CHECK(store_remove(s, SPAN("new")) && !util_has(s, "new"));
    store_check(s);
    store_destroy(&s);
}

/* An object of this process' life with a copy on the disk at offset. */
static uint64_t put_far(struct store *s, const char *key, uint32_t ssd, uint64_t offset) {
    CHECK_EQ(put_to(s, key, 1, 0), TARN_OK);
    CHECK_EQ(store_far_add(s, store_find(s, span_str(key)), ssd, offset), TARN_OK);
    return store_object_version(store_find(s, span_str(key)));
}

static tarn_status offer(struct store *s, const char *key, uint64_t version, uint32_t ssd) {
    uint64_t v;
    return store_far_offer(s, span_str(key), 9000, 5, NULL, 0, version, ssd, 77, &v);
}

TEST(what_was_superseded_is_not_taken_from_a_disk) {
    struct store *s = pool(1, 100);
    uint32_t ssd = add_far(s, STORE_TIER_SSD, 0);
    uint64_t bytes, removed = put_far(s, "removed", ssd, 1),
                    replaced = put_far(s, "replaced", ssd, 2), lost = put_far(s, "lost", ssd, 4),
                    dropped = put_far(s, "dropped", ssd, 5);
    CHECK(store_remove(s, SPAN("removed")));
    struct store_put_options again = {.replicas = 1, .replace = true};
    CHECK_EQ(util_put_with(s, "replaced", 5000, &again), TARN_OK);
    CHECK(store_far_drop(s, SPAN("dropped"), dropped, ssd));
    CHECK(store_evict_object(s, store_find(s, SPAN("dropped")), &bytes));
    store_far_supersede(s, SPAN("orphan"), 900);
    CHECK(!store_remove(s, SPAN("unknown")));
    CHECK(store_evict_object(s, store_find(s, SPAN("lost")), &bytes));
    CHECK(store_evict_object(s, store_find(s, SPAN("replaced")), &bytes));
    /* The host comes back with its disk damaged, so all of it is offered. */
    store_segment_set_state(s, ssd, SEGMENT_LEAVING);
    util_tick(s, 1);
    CHECK(!util_has(s, "lost") && !util_has(s, "replaced"));
    ssd = add_far(s, STORE_TIER_SSD, 0);
    CHECK_EQ(offer(s, "removed", removed, ssd), TARN_EEXISTS);
    CHECK_EQ(offer(s, "replaced", replaced, ssd), TARN_EEXISTS);
    CHECK_EQ(offer(s, "dropped", dropped, ssd), TARN_EEXISTS);
    CHECK_EQ(offer(s, "orphan", 900, ssd), TARN_EEXISTS);
    CHECK_EQ(offer(s, "unknown", 1, ssd), TARN_EEXISTS);
    CHECK_EQ(offer(s, "lost", lost, ssd), TARN_OK);
    store_flush(s);
    CHECK_EQ(offer(s, "never seen", lost, ssd), TARN_EEXISTS);
    store_check(s);
    store_destroy(&s);
}

TEST(of_two_disks_from_before_a_restart_the_later_put_wins) {
    struct store_config c;
    store_config_init(&c);
    c.first_version = 1000;
    struct store *s = util_store("lru", 4, &c, NULL);
    uint32_t ssd = add_far(s, STORE_TIER_SSD, 0);
    uint64_t version = 0, now;
    CHECK_EQ(store_far_offer(s, SPAN("k"), 9000, 5, NULL, 0, 30, ssd, 11, &version), TARN_OK);
    CHECK_EQ(version, 30u);
    CHECK_EQ(store_far_offer(s, SPAN("k"), 9000, 6, NULL, 0, 29, ssd, 12, &version), TARN_EEXISTS);
    CHECK_EQ(store_far_offer(s, SPAN("k"), 8000, 7, NULL, 0, 31, ssd, 13, &version), TARN_OK);
    CHECK_EQ(store_object_size(s, store_find(s, SPAN("k"))), 8000u);
    CHECK_EQ(store_far_offer(s, SPAN("k"), 9000, 5, NULL, 0, 30, ssd, 11, &version), TARN_EEXISTS);
    CHECK_EQ(put_to(s, "k", 1, 0), TARN_EEXISTS);
    struct store_put_options replace = {.replicas = 1, .replace = true};
    CHECK_EQ(util_put_with(s, "k", 4096, &replace), TARN_OK);
    now = store_object_version(store_find(s, SPAN("k")));
    CHECK_EQ(store_far_offer(s, SPAN("k"), 8000, 7, NULL, 0, 999, ssd, 14, &version), TARN_EEXISTS);
    CHECK(store_object_version(store_find(s, SPAN("k"))) == now && now >= 1000);
    store_check(s);
    store_destroy(&s);
}

TEST(a_ttl_takes_it_off_the_disk) {
    struct store *s = pool(1, 4);
    uint32_t ssd = add_far(s, STORE_TIER_SSD, 0);
    CHECK_EQ(put_to(s, "a", 1, 0), TARN_OK);
    struct object *o = store_find(s, SPAN("a"));
    CHECK_EQ(store_far_add(s, o, ssd, 5), TARN_OK);
    store_expire(s, o, 9000000);
    CHECK(far_gone == 1 && layout_of(s, "a").replicas == 1);
    store_check(s);
    store_destroy(&s);
}

/* A disk holds much more than memory: passes must not be as large as that. */
TEST(a_pass_frees_a_share_of_what_is_in_memory) {
    struct store *s = pool(1, 100);
    uint32_t ssd = add_far(s, STORE_TIER_SSD, 0);
    char key[24];
    for (int i = 0; i < 2000; i++) {
        sprintf(key, "far%d", i);
        CHECK_EQ(offer(s, key, 3, ssd), TARN_OK);
    }
    store_config(s)->high_watermark = 0.8;
    for (int i = 0; i < 95; i++) {
        sprintf(key, "k%d", i);
        CHECK_EQ(put_to(s, key, 1, 0), TARN_OK);
    }
    util_tick(s, 1);
    struct store_segment_info info;
    CHECK(store_segment_get(s, 0, &info));
    CHECK(info.used <= 80 * 4096 && info.used >= 74 * 4096);
    store_check(s);
    store_destroy(&s);
}

TEST(files_are_read_also_when_their_writer_is_away) {
    struct store *s = pool(1, 4);
    uint32_t files = add_far(s, STORE_TIER_FILE, 3);
    uint64_t bytes;
    CHECK_EQ(put_to(s, "a", 1, 0), TARN_OK);
    CHECK_EQ(store_far_add(s, store_find(s, SPAN("a")), files, 5), TARN_OK);
    CHECK(store_evict_object(s, store_find(s, SPAN("a")), &bytes));
    store_segment_set_state(s, files, SEGMENT_DOWN);
    CHECK(util_has(s, "a"));
    store_segment_set_state(s, files, SEGMENT_LEAVING);
    CHECK(!util_has(s, "a"));
    util_tick(s, 10);
    CHECK(gone_id == files && far_gone == 0);
    store_check(s);
    store_destroy(&s);
}

/* Sizes at random, while it is used; with every size all of it can be used, and nothing that is
 * there moves. */
TEST(a_segment_becomes_larger_and_smaller) {
    static const char *const allocators[] = {"offset", "slab"};
    for (unsigned a = 0; a < 2; a++) {
        struct store_config c;
        struct store_events ev = {0};
        uint32_t id;
        uint64_t objects, pages = 256;
        store_config_init(&c);
        c.high_watermark = 1;
        util_now = 1000;
        struct store *s = store_create(&c, &ev, "lru", allocators[a], util_now, 5000000);
        CHECK_EQ(store_segment_add(
                     s,
                     &(struct store_segment_config){.name = "s0", .epoch = 1, .size = pages * 4096},
                     &id),
                 TARN_OK);
        struct rng rng;
        rng_seed(&rng, 7 + a);
        unsigned grown = 0, shrunk = 0, refused = 0;
        for (unsigned step = 0; step < 3000; step++) {
            char key[16];
            sprintf(key, "k%u", (unsigned)rng_below(&rng, 40));
            struct store_put_options o = {.replicas = 1, .replace = true};
            if (rng_below(&rng, 3) == 0)
                (void)store_remove(s, span_str(key));
            else
                CHECK_EQ(util_put_with(s, key, 100 + rng_below(&rng, 30000), &o), TARN_OK);
            if (step % 10 != 0) continue;
            uint64_t want = 64 + rng_below(&rng, 400), before = store_count(s);
            tarn_status st = store_segment_resize(s, id, want * 4096, false, &objects);
            CHECK_EQ(store_count(s), before);
            CHECK(st == TARN_OK || (st == TARN_EBUSY && want < pages && objects > 0));
            refused += st != TARN_OK;
            grown += st == TARN_OK && want > pages;
            shrunk += st == TARN_OK && want < pages;
            if (st == TARN_OK) pages = want;
            struct store_segment_info info;
            CHECK(store_segment_get(s, id, &info) && info.size == pages * 4096);
            store_check(s);
        }
        CHECK(grown > 2 && shrunk > 2 && refused > 10);
        store_flush(s);
        util_tick(s, 100000);
        CHECK_EQ(util_put(s, "all", pages * 4096), TARN_OK);
        store_destroy(&s);
    }
}

TEST(objects_on_disk_count_against_max_objects) {
    struct store *s = pool(1, 64);
    uint32_t ssd = add_far(s, STORE_TIER_SSD, 0);
    store_config(s)->max_objects = 10;
    char key[16];
    uint64_t version;
    for (uint64_t i = 0; i < 30; i++) {
        sprintf(key, "f%lu", (unsigned long)i);
        /* Newer than what was evicted under a key whose hash is alike. */
        CHECK_EQ(store_far_offer(s, span_str(key), 9000, 5, NULL, 0, 1000 + i, ssd, i, &version),
                 TARN_OK);
        util_tick(s, 1000);
    }
    CHECK(store_count(s) <= 10 && util_has(s, "f29") && !util_has(s, "f0"));
    CHECK_EQ(put_to(s, "a", 1, 0), TARN_OK);
    CHECK(store_count(s) <= 10 && util_has(s, "a"));
    store_check(s);
    store_destroy(&s);
}

/* Those that are away are next to go, and all others are soft-pinned: these go in the end, instead
 * of a search among the former that never ends. */
TEST(objects_of_a_host_that_is_away_keep_no_put_waiting) {
    struct store *s = pool(2, 8);
    struct store_put_options there = {.replicas = 1, .host = 1};
    struct store_put_options here = {.replicas = 1, .host = 0, .pin = STORE_PIN_SOFT};
    for (int i = 0; i < 8; i++) {
        char key[16];
        sprintf(key, "away%d", i);
        CHECK_EQ(util_put_with(s, key, 4096, &there), TARN_OK);
        sprintf(key, "here%d", i);
        CHECK_EQ(util_put_with(s, key, 4096, &here), TARN_OK);
    }
    store_segment_set_state(s, 1, SEGMENT_DOWN);
    struct store_put_options new = {.replicas = 1, .host = 0};
    struct store_batch b;
    struct store_put *p = NULL;
    for (unsigned quota = 1; quota <= 1000; quota *= 10) {
        char key[16];
        unsigned budget = quota;
        sprintf(key, "new%u", quota);
        store_batch_begin(s, &b, NULL, STORE_BATCH_PUT, 1);
        tarn_status st = store_put_start(s, &b, span_str(key), 4096, &new, 1, &budget, &p);
        for (int i = 0; i < 1000 && st == TARN_EAGAIN; i++) {
            budget = quota;
            st = store_put_continue(s, p, &budget);
        }
        CHECK_EQ(st, TARN_OK);
        CHECK_EQ(store_put_end(s, span_str(key), store_put_token(p), 1, 0, NULL, 0, NULL), TARN_OK);
        CHECK_EQ(store_pin(s, span_str(key), STORE_PIN_SOFT, 0), TARN_OK);
    }
    store_check(s);
    store_destroy(&s);
}

TEST_MAIN()
