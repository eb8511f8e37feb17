/* Between memory and disks: what is stored when, what comes back when, and what nodes report of their disks by themselves. */
#include "util.h"

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
    uint64_t first = w.task;
    uint32_t first_far = w.far;
    CHECK(util_work(&n1, &w));
    CHECK(first_far != w.far);
    CHECK(w.far == file || first_far == file);
    CHECK(cluster_task_done(n1.n, w.task, TARN_OK, 1, -1));
    CHECK(cluster_task_done(n1.n, first, TARN_OK, 2, -1));
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

TEST(the_queue_of_a_slow_disk_is_bounded) {
    begin(patient);
    cluster_config()->offload_queue = 100;
    char key[16];
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(util_put(key, 128, "n1.0"), TARN_OK);
    }
    util_run();
    struct cluster_figures f = util_figures();
    CHECK_EQ(f.offload_waiting, 100);
    CHECK_EQ(f.offload_overflow, 300 - 100 - 64);
    unsigned n = 0;
    while (util_work(&n1, &w)) n++;
    CHECK_EQ(n, 32); /* so many at a time */
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
    struct cluster_offer o = {.key = SPAN("old"), .version = 999, .size = 5000, .offset = 4096, .crc = 5};
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

int main(int argc, char **argv) {
    log_set_level(LOG_LEVEL_NOTHING);
    return test_main(argc, argv);
}
