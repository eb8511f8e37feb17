/* Between memory and disks: what is stored when, what comes back when, and what nodes report of
 * their disks by themselves. */
#include "util.h"
#include "store/figures.h"

static struct util_node n1, n2;
static struct cluster_work w;
static uint32_t mem1, mem2, ssd1;

static void patient(struct cluster_config *c) {
    c->node_timeout_ms = 1000000;
}

static void second(struct cluster_config *c) {
    c->offload = CLUSTER_OFFLOAD_SECOND_HIT;
    c->node_timeout_ms = 1000000;
}

static void none(struct cluster_config *c) {
    c->offload = CLUSTER_OFFLOAD_NONE;
    c->node_timeout_ms = 1000000;
}

static void begin(void (*change)(struct cluster_config *c)) {
    n1 = (struct util_node){.name = "n1", .machine = "alpha"};
    n2 = (struct util_node){.name = "n2", .machine = "beta"};
    util_begin(change);
    mem1 = util_up_with(&n1, 1, 10, 64, 1);
    mem2 = util_up_with(&n2, 1, 11, 64, 1);
    ssd1 = util_mount(&n1, "n1.ssd", STORE_TIER_SSD, 1 << 24, 2).id;
}

static bool next_work(struct util_node *u) {
    util_run();
    return util_work(u, &w);
}

/* Puts key into n1's memory and onto its disk, at that offset. */
static void stored(const char *key, uint64_t size, uint64_t offset) {
    CHECK_EQ(util_put(key, size, "n1.0"), TARN_OK);
    CHECK(next_work(&n1));
    CHECK_EQ(w.kind, CLUSTER_WORK_STORE);
    CHECK(cluster_task_done(n1.n, w.task, TARN_OK, offset, -1));
}

/* The same, and it has left memory. */
static void far_only(const char *key, uint64_t size, uint64_t offset) {
    stored(key, size, offset);
    CHECK_EQ(store_replica_drop(util_store, util_find(key), mem1, false), TARN_OK);
    CHECK_STR(util_where(key), "n1.ssd");
}

TEST(what_was_put_is_stored_by_the_node_that_has_it) {
    begin(patient);
    CHECK_EQ(util_put("a", 10000, "n1.0"), TARN_OK);
    CHECK(next_work(&n1));
    CHECK_EQ(w.kind, CLUSTER_WORK_STORE);
    CHECK(span_eq(w.key, SPAN("a")));
    CHECK_EQ(w.version, util_version("a"));
    CHECK_EQ(w.size, 10000);
    CHECK_EQ(w.crc, 7);
    CHECK_EQ(w.n_crcs, 0);
    CHECK_EQ(w.far, ssd1);
    CHECK_EQ(w.at.extent[0].segment, mem1);
    CHECK(cluster_task_done(n1.n, w.task, TARN_OK, 4096, -1));
    CHECK_STR(util_where("a"), "n1.0+n1.ssd");
    struct store_layout l;
    store_object_layout(util_store, util_find("a"), &l);
    CHECK_EQ(l.replica[1].extent[0].offset, 4096);
    /* A node without a disk stores nothing. */
    CHECK_EQ(util_put("b", 10000, "n2.0"), TARN_OK);
    CHECK(!next_work(&n1));
    CHECK(!next_work(&n2));
    util_end();
}

TEST(objects_with_a_ttl_stay_in_memory) {
    begin(patient);
    CHECK_EQ(util_put("a", 4096, "n1.0"), TARN_OK);
    store_expire(util_store, store_find(util_store, SPAN("a")), 1000000000);
    CHECK(!next_work(&n1));
    util_end();
}

TEST(a_file_tier_is_stored_to_as_well) {
    begin(patient);
    uint32_t file = util_mount(&n1, "n1.file", STORE_TIER_FILE, 1 << 24, 3).id;
    CHECK_EQ(util_put("a", 10000, "n1.0"), TARN_OK);
    CHECK(next_work(&n1));
    CHECK_EQ(w.far, ssd1);
    CHECK(!util_work(&n1, &(struct cluster_work){.kind = CLUSTER_WORK_FENCE}));
    CHECK(cluster_task_done(n1.n, w.task, TARN_OK, 1, -1));
    CHECK(!store_object_awaits(util_find("a"))); /* one copy is enough to be evicted */
    CHECK(next_work(&n1));
    CHECK_EQ(w.far, file);
    CHECK(cluster_task_done(n1.n, w.task, TARN_OK, 2, -1));
    struct store_layout l;
    store_object_layout(util_store, util_find("a"), &l);
    CHECK_EQ(l.replicas, 3);
    util_end();
}

TEST(bytes_that_left_their_place_meanwhile_are_not_accepted) {
    begin(patient);
    CHECK_EQ(util_put("a", 10000, "n1.0"), TARN_OK);
    CHECK(next_work(&n1));
    CHECK(store_remove(util_store, SPAN("a")));
    CHECK_EQ(util_put("b", 10000, "n1.0"), TARN_OK); /* lies where a lay */
    CHECK(!cluster_task_done(n1.n, w.task, TARN_OK, 4096, -1));
    CHECK_EQ(util_put("a", 10000, "n2.0"), TARN_OK);
    CHECK_STR(util_where("a"), "n2.0");
    util_end();
}

TEST(an_object_without_a_crc_stays_where_it_is_meanwhile) {
    begin(patient);
    CHECK_EQ(util_put_n("a", 10000, 1, "n1.0", -1), TARN_OK);
    CHECK(next_work(&n1));
    CHECK_EQ(w.crc, -1);
    uint64_t bytes, task = w.task;
    CHECK(!store_evict_object(util_store, util_find("a"), &bytes));
    CHECK(cluster_task_done(n1.n, task, TARN_OK, 4096, 77));
    uint32_t crc;
    CHECK(store_object_crc(util_find("a"), &crc) &&
          crc == 77); /* so that nothing else is taken for it later */
    CHECK(store_evict_object(util_store, util_find("a"), &bytes));
    CHECK_STR(util_where("a"), "n1.ssd");
    struct store_stats s;
    store_get_stats(util_store, &s);
    CHECK_EQ(s.holds, 0);
    util_end();
}

TEST(eviction_keeps_what_is_on_disk) {
    begin(patient);
    CHECK_EQ(cluster_node_maintenance(n2.n, true), TARN_OK);
    char key[16];
    for (int i = 0; i < 200; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        stored(key, 4096, (uint64_t)i * 4096);
    }
    CHECK(store_count(util_store) == 200);
    CHECK_STR(util_where("k0"), "n1.ssd");
    CHECK_STR(util_where("k199"), "n1.0+n1.ssd");
    util_end();
}

TEST(second_hit_stores_what_is_used_again) {
    begin(second);
    CHECK_EQ(util_put("a", 10000, "n1.0"), TARN_OK);
    CHECK(!next_work(&n1));
    CHECK(util_read("a") != NULL);
    CHECK(!next_work(&n1));
    CHECK(util_read("a") != NULL);
    CHECK(next_work(&n1));
    CHECK_EQ(w.kind, CLUSTER_WORK_STORE);
    CHECK(cluster_task_done(n1.n, w.task, TARN_OK, 0, 7));
    for (int i = 0; i < 4; i++) CHECK(util_read("a") != NULL);
    CHECK(!next_work(&n1)); /* it is there */
    util_end();
}

TEST(none_stores_nothing) {
    begin(none);
    CHECK_EQ(util_put("a", 10000, "n1.0"), TARN_OK);
    for (int i = 0; i < 4; i++) CHECK(util_read("a") != NULL);
    CHECK(!next_work(&n1));
    util_end();
}

TEST(the_queue_of_a_second_far_tier_is_bounded) {
    begin(patient);
    cluster_config()->offload_queue = 100;
    util_mount(&n1, "n1.file", STORE_TIER_FILE, 1 << 24, 3);
    char key[16];
    for (int i = 0; i < 700; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(util_put(key, 128, "n1.0"), TARN_OK);
    }
    unsigned n = 0;
    util_run();
    for (; util_work(&n1, &w); n++) {
        if (w.far != ssd1) continue; /* the files take nothing */
        CHECK(cluster_task_done(n1.n, w.task, TARN_OK, 4096 * (1 + n), -1));
        util_run();
    }
    struct cluster_figures f = util_figures();
    CHECK_EQ(f.offload_waiting, 100);
    CHECK_EQ(f.offload_overflow, 700 - 100 - STORE_TAKEN_MAX);
    util_end();
}

/* --- what has no copy yet --- */

/* A prompt: n blocks of a page, put as one batch. How many there was room for. */
static int put_prompt(const char *prefix, int from, int n) {
    struct store_batch b;
    struct span name = SPAN("n1.0");
    struct store_put_options o = {
        .replicas = 1, .prefer = &name, .prefers = 1, .host = STORE_HOST_NONE};
    store_batch_begin(util_store, &b, NULL, STORE_BATCH_PUT, (uint32_t)n);
    for (int i = from; i < from + n; i++) {
        char key[16];
        unsigned budget = 1000000;
        struct store_put *put;
        snprintf(key, sizeof(key), "%s%d", prefix, i);
        tarn_status st = store_put_start(util_store, &b, span_str(key), 4096, &o, 1, &budget, &put);
        CHECK(st == TARN_OK || st == TARN_ELATER);
        if (st == TARN_ELATER) return i - from;
        CHECK_EQ(
            store_put_end(util_store, span_str(key), store_put_token(put), 7, 0, NULL, 0, NULL),
            TARN_OK);
    }
    return n;
}

static int leading(const char *prefix) {
    for (int i = 0;; i++) {
        char key[16];
        snprintf(key, sizeof(key), "%s%d", prefix, i);
        if (util_find(key) == NULL) return i;
    }
}

/* Only n1, with room for 64 blocks; two prompts fill it. */
static void begin_full(void) {
    begin(patient);
    CHECK_EQ(cluster_node_maintenance(n2.n, true), TARN_OK);
    CHECK_EQ(put_prompt("a", 0, 32), 32);
    CHECK_EQ(put_prompt("b", 0, 32), 32);
}

static struct store_stats stats(void) {
    struct store_stats s;
    store_get_stats(util_store, &s);
    return s;
}

TEST(guarantee_2_what_has_no_copy_yet_is_not_evicted) {
    begin_full();
    CHECK_EQ(put_prompt("c", 0, 32), 0);
    CHECK(store_later_ms(util_store) > 0);
    CHECK_EQ(stats().put_delayed, 1);
    CHECK_EQ(stats().awaiting_objects, 64);
    CHECK_EQ(stats().awaiting_bytes, 64 * 4096);
    util_tick(100); /* nor by the background, nor when somebody asks for it */
    struct store_evict_job job = {.want_objects = 10};
    unsigned budget = 1000;
    CHECK(store_evict_step(util_store, &job, &budget));
    CHECK_EQ(job.objects, 0);
    for (int i = 0; i < 10; i++) { /* copied oldest first, head first */
        char key[16];
        snprintf(key, sizeof(key), "a%d", i);
        CHECK(next_work(&n1));
        CHECK(span_eq(w.key, span_str(key)));
        CHECK(cluster_task_done(n1.n, w.task, TARN_OK, 4096 * (1 + (uint64_t)i), -1));
    }
    CHECK_EQ(put_prompt("c", 0, 32), 10);
    CHECK_EQ(leading("a"), 32);
    CHECK_EQ(leading("b"), 32);
    CHECK_STR(util_where("a9"), "n1.ssd");
    CHECK_EQ(stats().evicted_before_copy, 0);
    util_end();
}

TEST(guarantee_2_a_disk_that_stands_still_costs_the_tail_of_one_prompt) {
    begin_full();
    unsigned asked = 0;
    for (; put_prompt("c", 0, 1) == 0; asked++) util_tick(500);
    CHECK_EQ(asked, 10); /* offload-wait is 5 s */
    util_tick(1000);
    CHECK_EQ(put_prompt("c", 1, 9), 9); /* nobody waits for it any more */
    CHECK_EQ(leading("a"), 32 - 10);
    CHECK_EQ(leading("b"), 32);
    CHECK_EQ(leading("c"), 10);
    CHECK_EQ(stats().evicted_before_copy, 10);
    /* It goes on: with what is left, and what was asked of it before and is gone means nothing. */
    unsigned n = 0, kept = 0;
    for (; next_work(&n1) && n < 1000; n++)
        kept += cluster_task_done(n1.n, w.task, TARN_OK, 4096 * (1 + (uint64_t)n), -1);
    CHECK_EQ(kept, 64);
    CHECK_EQ(stats().awaiting_objects, 0);
    CHECK_EQ(put_prompt("d", 0, 64), 64);
    CHECK_EQ(leading("a") + leading("b") + leading("c") + leading("d"), 22 + 32 + 10 + 64);
    util_end();
}

TEST(guarantee_2_a_disk_that_fails_rests_and_nobody_waits_for_it) {
    begin_full();
    uint64_t failed = 0;
    for (; util_figures().offload_rests == 0 && failed < 10000; failed++) {
        if (!next_work(&n1))
            util_tick(1000);
        else
            CHECK(!cluster_task_done(n1.n, w.task, TARN_EIO, 0, -1));
    }
    CHECK_EQ(util_figures().offload_rests, 1);
    CHECK_EQ(stats().awaiting_objects, 64);
    CHECK_EQ(put_prompt("c", 0, 40), 40); /* at once, and tails go first still */
    CHECK_EQ(leading("a"), 0);
    CHECK_EQ(leading("b"), 24);
    CHECK_EQ(leading("c"), 40);
    util_tick(60000); /* it is tried again */
    unsigned n = 0;
    for (; next_work(&n1) && n < 1000; n++)
        cluster_task_done(n1.n, w.task, TARN_OK, 4096 * (1 + (uint64_t)n), -1);
    CHECK_EQ(stats().awaiting_objects, 0);
    CHECK_EQ(leading("b") + leading("c"), 64);
    CHECK_STR(util_where("b0"), "n1.0+n1.ssd");
    util_end();
}

TEST(what_the_disk_cannot_hold_does_not_wait_for_it) {
    begin_full();
    for (int i = 0; i < 64; i++) {
        CHECK(next_work(&n1));
        CHECK(!cluster_task_done(n1.n, w.task, i % 2 ? TARN_ENOSPACE : TARN_OK,
                                 4096 * (1 + (uint64_t)i), -1) == i % 2);
    }
    CHECK_EQ(stats().awaiting_objects, 0);
    CHECK_EQ(put_prompt("c", 0, 32), 32);
    util_end();
}

TEST(a_wait_of_0_is_none) {
    begin(patient);
    cluster_config()->offload_wait_ms = 0;
    CHECK_EQ(cluster_node_maintenance(n2.n, true), TARN_OK);
    CHECK_EQ(put_prompt("a", 0, 40), 40);
    CHECK_EQ(put_prompt("b", 0, 40), 40);
    CHECK_EQ(leading("a"), 24);
    CHECK_EQ(stats().put_delayed, 0);
    util_end();
}

TEST(what_waits_for_a_disk_that_goes_waits_no_more) {
    begin_full();
    CHECK_EQ(put_prompt("c", 0, 1), 0);
    CHECK_EQ(cluster_segment_unmount(ssd1), TARN_OK);
    util_run();
    CHECK_EQ(stats().awaiting_objects, 0);
    CHECK(!util_there(ssd1, 0));
    CHECK_EQ(put_prompt("c", 0, 32), 32);
    /* And comes back: what is put from now on waits. */
    ssd1 = util_mount(&n1, "n1.ssd", STORE_TIER_SSD, 1 << 24, 3).id;
    CHECK_EQ(put_prompt("d", 0, 32), 32);
    CHECK_EQ(stats().awaiting_objects, 32);
    util_end();
}

TEST(pins_quotas_leases_ttl_and_removal_of_what_waits) {
    begin(patient);
    CHECK_EQ(cluster_node_maintenance(n2.n, true), TARN_OK);
    CHECK_EQ(store_quota_set(util_store, SPAN("q"), 8 * 4096), TARN_OK);
    CHECK_EQ(put_prompt("q", 0, 8), 8);
    CHECK_EQ(put_prompt("q", 8, 1), 0); /* a full quota waits as well */
    uint64_t granted;
    CHECK_EQ(store_lease(util_store, util_find("q0"), 5, 1000, &granted), TARN_OK);
    CHECK_EQ(store_pin(util_store, SPAN("q1"), STORE_PIN_HARD, 0), TARN_OK);
    CHECK_EQ(store_pin(util_store, SPAN("q2"), STORE_PIN_SOFT, 1000), TARN_OK);
    store_expire(util_store, util_find("q3"), 1000000000);
    CHECK(store_remove(util_store, SPAN("q4")));
    store_check(util_store);
    CHECK_EQ(stats().awaiting_objects, 6);
    CHECK_EQ(put_prompt("q", 9, 2), 2); /* in place of q4; of q3, which waits for nothing */
    CHECK(util_find("q3") == NULL);
    CHECK_EQ(store_quota_del(util_store, SPAN("q")), true);
    util_run();
    for (unsigned n = 0; next_work(&n1); n++)
        CHECK(cluster_task_done(n1.n, w.task, TARN_OK, 4096 * (1 + (uint64_t)n), -1));
    CHECK_EQ(stats().awaiting_objects, 0);
    store_check(util_store);
    CHECK_EQ(put_prompt("r", 0, 62), 62); /* all but what is leased or pinned hard */
    CHECK_EQ(put_prompt("s", 0, 1), 0);
    CHECK_EQ(store_pin(util_store, SPAN("q1"), STORE_PIN_NONE, 0), TARN_OK);
    CHECK_EQ(put_prompt("s", 0, 1), 1);
    util_end();
}

/* One who is not trusted leases and releases for as long as it takes. */
static void guard(const char *key) {
    uint64_t ms;
    struct object *o = util_find(key);
    CHECK_EQ(store_lease(util_store, o, 77, 5000, &ms), TARN_OK);
    CHECK(store_release(util_store, span_str(key), 77, store_object_version(o), true));
}

TEST(guarantee_2_guards_do_not_hide_that_what_waits_could_go) {
    begin_full();
    cluster_config()->offload_wait_ms = 0;
    guard("a0");
    struct store_put *put;
    CHECK_EQ(util_open_put("c", 4096, 1, "n1.0", 1, &put), TARN_OK);
    util_end();
}

TEST(guarantee_2_a_guard_on_what_never_goes_promises_nothing) {
    begin(none);
    CHECK_EQ(cluster_node_maintenance(n2.n, true), TARN_OK);
    CHECK_EQ(put_prompt("a", 0, 64), 64);
    for (int i = 0; i < 64; i++) {
        char key[16];
        snprintf(key, sizeof(key), "a%d", i);
        CHECK_EQ(store_pin(util_store, span_str(key), STORE_PIN_HARD, 0), TARN_OK);
    }
    guard("a0");
    struct store_put *put;
    CHECK_EQ(util_open_put("c", 4096, 1, "n1.0", 1, &put), TARN_ENOSPACE);
    util_end();
}

TEST(a_full_quota_takes_of_its_own_only) {
    begin(patient);
    cluster_config()->offload_wait_ms = 0;
    CHECK_EQ(cluster_node_maintenance(n2.n, true), TARN_OK);
    CHECK_EQ(put_prompt("a", 0, 32), 32);
    CHECK_EQ(store_quota_set(util_store, SPAN("q"), 8 * 4096), TARN_OK);
    CHECK_EQ(put_prompt("q", 0, 8), 8);
    CHECK_EQ(put_prompt("q", 8, 1), 1);
    CHECK_EQ(stats().awaiting_objects, 40);
    CHECK_EQ(leading("a"), 32);
    util_end();
}

TEST(what_is_read_is_not_the_next_to_go) {
    begin(patient);
    CHECK_EQ(cluster_node_maintenance(n2.n, true), TARN_OK);
    char key[16];
    for (int i = 0; i < 64; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        stored(key, 4096, (uint64_t)(i + 1) * 4096);
    }
    CHECK(util_read("k40") != NULL);
    CHECK_EQ(util_put("x", 4096, "n1.0"), TARN_OK);
    CHECK_STR(util_where("k40"), "n1.0+n1.ssd");
    util_end();
}

TEST(guarantee_2_two_replicas_that_wait_for_one_disk) {
    begin(patient);
    util_mount(&n2, "n2.ssd", STORE_TIER_SSD, 1 << 24, 4);
    cluster_config()->offload_wait_ms = 0;
    char key[16];
    for (int i = 0; i < 64; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(util_put_n(key, 4096, 2, "n2.0", 7), TARN_OK);
    }
    CHECK_EQ(util_put_n("x", 4096, 1, NULL, 7), TARN_OK);
    CHECK_EQ(util_put_n("y", 4096, 1, "n1.0", 7), TARN_OK);
    CHECK_EQ(util_put_n("z", 4096, 2, "n1.0", 7), TARN_OK);
    util_end();
}

static void quick(struct cluster_config *c) {
    c->node_timeout_ms = 3000;
}

TEST(what_was_being_copied_when_its_node_was_away_waits_no_longer) {
    begin(quick);
    CHECK_EQ(cluster_node_maintenance(n2.n, true), TARN_OK);
    CHECK_EQ(put_prompt("a", 0, 64), 64);
    util_run();
    for (int i = 0; i < 5; i++) util_tick(1000);
    CHECK_EQ(util_state(mem1), SEGMENT_DOWN);
    CHECK_EQ(util_join_as(&n1, 1, 20), TARN_OK);
    CHECK(util_mount(&n1, "n1.0", STORE_TIER_MEMORY, 64 * 4096, 1).kept);
    util_mount(&n1, "n1.ssd", STORE_TIER_SSD, 1 << 24, 2);
    CHECK_EQ(cluster_node_up(n1.n), TARN_OK);
    unsigned n = 0;
    for (; next_work(&n1) && n < 1000; n++)
        if (w.kind == CLUSTER_WORK_STORE)
            cluster_task_done(n1.n, w.task, TARN_OK, 4096 * (1 + (uint64_t)n), 1);
    CHECK_EQ(stats().awaiting_objects, 0);
    CHECK_EQ(leading("a"), 64);
    CHECK_EQ(put_prompt("c", 0, 1), 1);
    util_end();
}

TEST(a_full_queue_of_the_node_is_tried_again_other_failures_are_not) {
    begin(patient);
    CHECK_EQ(util_put("a", 10000, "n1.0"), TARN_OK);
    CHECK(next_work(&n1));
    CHECK(!cluster_task_done(n1.n, w.task, TARN_EAGAIN, 0, -1));
    CHECK(!next_work(&n1));
    util_tick(1000);
    CHECK(next_work(&n1));
    CHECK(!cluster_task_done(n1.n, w.task, TARN_ENOSPACE, 0, -1));
    util_tick(10000);
    CHECK(!next_work(&n1));
    CHECK_STR(util_where("a"), "n1.0");
    CHECK_EQ(util_figures().tasks_failed[CLUSTER_BY_OFFLOAD], 1);
    util_end();
}

TEST(a_far_object_comes_back_on_its_second_use) {
    begin(patient);
    far_only("a", 10000, 0);
    CHECK(util_read("a") != NULL);
    CHECK(!next_work(&n1));
    CHECK(util_read("a") != NULL);
    CHECK(util_read("a") != NULL); /* once is enough */
    CHECK(next_work(&n1));         /* to where it is */
    CHECK_EQ(w.kind, CLUSTER_WORK_COPY);
    CHECK(!util_work(&n2, &(struct cluster_work){.kind = CLUSTER_WORK_FENCE}));
    CHECK(cluster_task_done(n1.n, w.task, TARN_OK, 0, 7));
    CHECK_STR(util_where("a"), "n1.0+n1.ssd");
    CHECK(util_read("a") != NULL);
    CHECK(!next_work(&n1));
    CHECK_EQ(util_figures().tasks_done[CLUSTER_BY_USE], 1);
    util_end();
}

TEST(a_prefix_that_is_about_to_be_read_comes_at_once) {
    begin(patient);
    far_only("a", 10000, 0);
    cluster_hit(util_find("a"), true);
    CHECK(next_work(&n1));
    CHECK_EQ(w.kind, CLUSTER_WORK_COPY);
    util_end();
}

TEST(promotions_are_bounded) {
    begin(patient);
    char key[16];
    for (int i = 0; i < 1100; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        stored(key, 128, (uint64_t)i * 4096);
        CHECK_EQ(store_replica_drop(util_store, util_find(key), mem1, false), TARN_OK);
    }
    for (int i = 0; i < 1100; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        cluster_hit(util_find(key), true);
    }
    CHECK_EQ(util_figures().promote_waiting, 1024);
    CHECK_EQ(util_figures().promote_overflow, 76);
    util_end();
}

/* Who reads them waits for the same disk, and the bytes of those that were used last are still in
 * their node's buffers. */
TEST(large_promotions_come_a_few_at_a_time_the_newest_first) {
    begin(patient);
    struct util_node n3 = {.name = "n3", .machine = "gamma"};
    mem1 = util_up_with(&n3, 1, 12, 2048, 1);
    util_mount(&n3, "n3.ssd", STORE_TIER_SSD, 1 << 24, 2);
    char key[16];
    uint64_t task[6];
    int sent = 0;
    for (int i = 0; i < 6; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(util_put(key, 1200 << 10, "n3.0"), TARN_OK);
        CHECK(next_work(&n3));
        CHECK(cluster_task_done(n3.n, w.task, TARN_OK, (uint64_t)i << 21, -1));
        CHECK_EQ(store_replica_drop(util_store, util_find(key), mem1, false), TARN_OK);
    }
    for (int i = 0; i < 6; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        cluster_hit(util_find(key), true);
    }
    cluster_hit(util_find("k2"), true); /* waits already, and is used again */
    for (; next_work(&n3); task[sent++] = w.task) CHECK_EQ(w.key.data[1], "254"[sent]);
    CHECK_EQ(sent, 3); /* 1 MiB for each of three nodes, and what begins below that; not 4 */
    for (int i = 0; i < sent; i++) CHECK(cluster_task_done(n3.n, task[i], TARN_OK, 0, 7));
    for (sent = 0; next_work(&n3); sent++) task[sent] = w.task;
    CHECK_EQ(sent, 3);
    CHECK_EQ(cluster_task_cancel(task[0]), true);
    CHECK_EQ(util_figures().tasks_done[CLUSTER_BY_USE], 3);
    util_end();
}

TEST(what_the_books_forget_is_dropped_on_disk) {
    begin(patient);
    far_only("a", 10000, 4096);
    far_only("b", 10000, 8192);
    uint64_t va = util_version("a"), vb = util_version("b");
    CHECK(store_remove(util_store, SPAN("a")));
    CHECK(store_remove(util_store, SPAN("b")));
    CHECK(next_work(&n1));
    CHECK_EQ(w.kind, CLUSTER_WORK_DROP);
    CHECK_EQ(w.far, ssd1);
    CHECK_EQ(w.n_drops, 2);
    CHECK_EQ(w.drops[0].version, va);
    CHECK_EQ(w.drops[0].offset, 4096);
    CHECK_EQ(w.drops[1].version, vb);
    CHECK(!util_work(&n1, &w));
    util_end();
}

TEST(drops_wait_for_a_node_that_is_away) {
    begin(patient);
    far_only("a", 10000, 4096);
    cluster_session_closed(10);
    util_tick(1001);
    CHECK(util_find("a") == NULL);
    CHECK(store_remove(util_store, SPAN("a")) || true);
    CHECK_EQ(util_join_as(&n1, 2, 20), TARN_OK);
    CHECK(util_mount(&n1, "n1.ssd", STORE_TIER_SSD, 1 << 24, 2).kept);
    CHECK(!util_work(&n1, &w)); /* it does not know the segment by its number yet */
    CHECK_EQ(cluster_node_up(n1.n), TARN_OK);
    bool found = false;
    util_run();
    while (util_work(&n1, &w)) found |= w.kind == CLUSTER_WORK_DROP;
    CHECK(found || util_find("a") != NULL);
    util_end();
}

TEST(many_drops_come_in_pieces) {
    begin(patient);
    for (uint64_t i = 0; i < 2000; i++) cluster_on_far_gone(SPAN("x"), i + 1, ssd1, i * 4096);
    uint64_t next = 1;
    while (util_work(&n1, &w)) {
        CHECK(w.n_drops > 0 && w.n_drops <= CLUSTER_DROPS_PER_ITEM);
        for (size_t i = 0; i < w.n_drops; i++) CHECK_EQ(w.drops[i].version, next++);
        if (next < 1500)
            for (uint64_t k = 0; k < 100; k++)
                cluster_on_far_gone(SPAN("x"), 10000, 77, 0); /* no such segment */
    }
    CHECK_EQ(next, 2001);
    for (uint64_t i = 0; i < 1000010; i++) cluster_on_far_gone(SPAN("x"), i + 1, ssd1, 0);
    CHECK_EQ(util_figures().drops_lost, 10);
    util_end();
}

TEST(what_the_disk_lets_go_is_known_no_more) {
    begin(patient);
    far_only("a", 10000, 4096);
    stored("b", 10000, 8192);
    uint64_t va = util_version("a"), vb = util_version("b");
    CHECK(!cluster_far_evicted(n2.n, ssd1, SPAN("a"), va)); /* not its disk */
    CHECK(!cluster_far_evicted(n1.n, ssd1, SPAN("a"), va + 1));
    CHECK(!cluster_far_evicted(n1.n, mem1, SPAN("a"), va));
    CHECK(cluster_far_evicted(n1.n, ssd1, SPAN("a"), va));
    CHECK(cluster_far_evicted(n1.n, ssd1, SPAN("b"), vb));
    CHECK(!cluster_far_evicted(n1.n, ssd1, SPAN("b"), vb));
    CHECK(util_find("a") == NULL);
    CHECK_STR(util_where("b"), "n1.0");
    CHECK(!next_work(&n1)); /* it knows itself */
    util_end();
}

TEST(what_a_disk_has_after_a_restart_is_offered) {
    begin(patient);
    struct cluster_offer o = {
        .key = SPAN("old"), .version = 999, .size = 5000, .offset = 4096, .crc = 5};
    CHECK_EQ(cluster_far_offered(n2.n, ssd1, &o), 0);
    CHECK_EQ(cluster_far_offered(n1.n, mem1, &o), 0);
    uint64_t version = cluster_far_offered(n1.n, ssd1, &o);
    CHECK(version != 0);
    CHECK_EQ(util_version("old"), version);
    CHECK_STR(util_where("old"), "n1.ssd");
    o.version = version; /* again, by its new name */
    CHECK_EQ(cluster_far_offered(n1.n, ssd1, &o), version);
    o.version = version + 1;
    CHECK_EQ(cluster_far_offered(n1.n, ssd1, &o),
             version); /* the same place and bytes: the answer was lost */
    o.offset = 8192;
    CHECK_EQ(cluster_far_offered(n1.n, ssd1, &o), 0); /* the key has another value */
    o.key = SPAN("");
    CHECK_EQ(cluster_far_offered(n1.n, ssd1, &o), 0);
    o.key = SPAN("bad");
    o.crc = INT64_C(1) << 33;
    CHECK_EQ(cluster_far_offered(n1.n, ssd1, &o), 0);
    util_end();
}

TEST(another_disk_under_the_name_is_empty) {
    begin(patient);
    far_only("a", 10000, 4096);
    CHECK_EQ(util_join_as(&n1, 2, 20), TARN_EBUSY);
    cluster_session_closed(10);
    CHECK_EQ(util_join_as(&n1, 2, 20), TARN_OK);
    CHECK(!util_mount(&n1, "n1.ssd", STORE_TIER_SSD, 1 << 24, 9).kept);
    CHECK_EQ(cluster_node_up(n1.n), TARN_OK);
    util_run();
    CHECK(util_find("a") == NULL);
    CHECK(!next_work(&n1) || w.kind != CLUSTER_WORK_DROP); /* nothing to drop there */
    util_end();
}

/* --- under a policy that knows what objects are worth --- */

/* A request of n blocks: a look-up of what is there, and puts of the rest, the last of which
 * wait. */
static void ask(const char *prefix, int n) {
    struct store_batch b;
    struct store_chain c = {0};
    struct span name = SPAN("n1.0");
    struct store_put_options o = {
        .replicas = 1, .prefer = &name, .prefers = 1, .host = STORE_HOST_NONE};
    char key[32];
    int i = 0;
    util_tick(1000);
    store_batch_begin(util_store, &b, &c, STORE_BATCH_READ, (uint32_t)n);
    for (; i < n; i++) {
        snprintf(key, sizeof(key), "%s%d", prefix, i);
        struct object *found = util_find(key);
        if (!found) {
            store_batch_miss(util_store, &b, span_str(key), store_hash(span_str(key)));
            break;
        }
        store_batch_hit(util_store, &b, found, store_hash(span_str(key)));
        cluster_hit(found, false);
    }
    if (i == n) return;
    store_batch_begin(util_store, &b, &c, STORE_BATCH_PUT, (uint32_t)(n - i));
    for (; i < n; i++) {
        unsigned budget = 1000000;
        struct store_put *put;
        snprintf(key, sizeof(key), "%s%d", prefix, i);
        CHECK_EQ(store_put_start(util_store, &b, span_str(key), 4096, &o, 1, &budget, &put),
                 TARN_OK);
        CHECK_EQ(
            store_put_end(util_store, span_str(key), store_put_token(put), 7, 0, NULL, 0, NULL),
            TARN_OK);
    }
}

static unsigned serve_disk(void) {
    static uint64_t at;
    unsigned copies = 0;
    for (unsigned n = 0; next_work(&n1) && n < 10000; n++) {
        CHECK(cluster_task_done(n1.n, w.task, TARN_OK,
                                w.kind == CLUSTER_WORK_STORE ? at += 4096 : 0, -1));
        copies += w.kind == CLUSTER_WORK_COPY;
    }
    return copies;
}

static int leading_in_memory(const char *prefix, int n) {
    int lead = 0;
    bool gap = false;
    for (int i = 0; i < n; i++) {
        char key[16];
        snprintf(key, sizeof(key), "%s%d", prefix, i);
        bool in = store_object_in_memory(util_store, util_find(key));
        CHECK(!(in && gap)); /* tail before head */
        lead += in;
        gap = gap || !in;
    }
    return lead;
}

static void begin_chain(void) {
    begin(patient);
    CHECK_EQ(store_set_policy(util_store, "chain"), TARN_OK);
    CHECK_EQ(cluster_node_maintenance(n2.n, true), TARN_OK);
}

/* So many requests of conversations, five of each in turn, and after each one a prompt that never
 * comes again. */
static void talk(int asked) {
    for (int i = 0; i < asked; i++) {
        char key[32];
        snprintf(key, sizeof(key), "%c", 'a' + i / 5);
        ask(key, 4 * (i % 5 + 1));
        serve_disk();
        snprintf(key, sizeof(key), "once%d.", i);
        ask(key, 4);
        serve_disk();
    }
}

static void let_all_go(void) {
    struct store_evict_job job = {.want_objects = 1000};
    unsigned budget = 10000;
    store_evict_step(util_store, &job, &budget);
}

TEST(one_read_brings_back_what_is_worth_more_than_what_would_go) {
    begin_chain();
    talk(4 * 5);
    let_all_go();
    CHECK_EQ(leading_in_memory("a", 20), 0);
    for (int i = 0; i < 8; i++) {
        char prefix[] = {'s' + (char)i, '\0'};
        ask(prefix, 8);
        serve_disk();
    }
    ask("a", 20);
    CHECK_EQ(serve_disk(), 20);
    CHECK_EQ(leading_in_memory("a", 20), 20);
    util_end();
}

static double rate_when_told(uint64_t bytes, uint64_t us) {
    struct cluster_stat stats[] = {{.name = "ssd-read-bytes", .value = bytes},
                                   {.name = "ssd-read-us", .value = us}};
    cluster_node_stats(n1.n, stats, 2);
    return store_config(util_store)->disk_read_rate;
}

TEST(how_fast_disks_are_read_is_what_nodes_say) {
    begin(patient);
    CHECK(store_config(util_store)->disk_read_rate == 0);
    CHECK(rate_when_told(1000000, 1000) == 1e9);
    CHECK(rate_when_told(1000000, 1000) == 1e9);
    CHECK(rate_when_told(2000000, 3000) == 1e9 - 5e8 / 16);
    CHECK(rate_when_told(10, 1) == 1e9 - 5e8 / 16); /* it has begun anew */
    util_end();
}

static int64_t lost(const char *key) {
    return cluster_far_worth(n1.n, ssd1, span_str(key), util_version(key));
}

TEST(what_is_lost_with_a_copy_on_a_disk) {
    begin_chain();
    talk(5 * 5 - 2);
    /* in memory as well: a conversation that goes on before what came once; the tail before the
     * head */
    CHECK(lost("e5") > lost("once19.0") && lost("once19.0") > 0);
    CHECK(lost("e0") > lost("e3"));
    /* on the disk alone, as long as the request is among the latest, and longer */
    let_all_go();
    CHECK(lost("once19.0") > lost("once19.1") && lost("once19.1") > 0);
    int64_t before = lost("once19.0");
    for (int i = 0; i < 600; i++) {
        char prefix[16];
        snprintf(prefix, sizeof(prefix), "x%d.", i);
        ask(prefix, 1);
        serve_disk();
    }
    CHECK(lost("once19.0") > 0 && lost("once19.0") < before);
    /* what is not there, under another number, or on another disk, is nothing */
    CHECK_EQ(cluster_far_worth(n1.n, ssd1, SPAN("none"), 1), 0);
    CHECK_EQ(cluster_far_worth(n1.n, ssd1, SPAN("a0"), util_version("a0") + 1), 0);
    CHECK_EQ(cluster_far_worth(n1.n, mem1, SPAN("a0"), util_version("a0")), 0);
    CHECK_EQ(store_set_policy(util_store, "lru"), TARN_OK);
    util_run();
    CHECK_EQ(lost("a0"), -1);
    util_end();
}

int main(int argc, char **argv) {
    log_set_level(LOG_LEVEL_NOTHING);
    return test_main(argc, argv);
}
