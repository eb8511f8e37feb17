/* PREFETCH: what comes to memory before it is read, in which turn, and what goes for it. */
#include "util.h"
#include "store/figures.h"

static struct util_node n1, n2;
static struct cluster_work w;
static uint32_t mem1, mem2;

static void patient(struct cluster_config *c) {
    c->node_timeout_ms = 1000000;
}

static void few_at_a_time(struct cluster_config *c) {
    c->node_timeout_ms = 1000000;
    c->tasks_per_node = 2;
}

/* n1 has a disk beside its memory of so many pages. */
static void begin(void (*change)(struct cluster_config *c), uint64_t pages) {
    n1 = (struct util_node){.name = "n1", .machine = "alpha"};
    n2 = (struct util_node){.name = "n2", .machine = "beta"};
    util_begin(change);
    mem1 = util_up_with(&n1, 1, 10, pages, 1);
    mem2 = util_up_with(&n2, 1, 11, 64, 1);
    util_mount(&n1, "n1.ssd", STORE_TIER_SSD, 1 << 24, 2);
}

static bool next_work(struct util_node *u) {
    util_run();
    return util_work(u, &w);
}

static void stored(const char *key, uint64_t size, uint64_t offset) {
    CHECK_EQ(util_put(key, size, "n1.0"), TARN_OK);
    CHECK(next_work(&n1));
    CHECK_EQ(w.kind, CLUSTER_WORK_STORE);
    CHECK(cluster_task_done(n1.n, w.task, TARN_OK, offset, -1));
}

static void far_only(const char *key, uint64_t size, uint64_t offset) {
    stored(key, size, offset);
    CHECK_EQ(store_replica_drop(util_store, util_find(key), mem1, false), TARN_OK);
    CHECK_STR(util_where(key), "n1.ssd");
}

static enum cluster_prefetch prefetch(const char *key) {
    return cluster_prefetch(util_find(key), STORE_SEGMENT_ANY, 0);
}

static enum cluster_prefetch prefetch_to(const char *key, uint32_t segment) {
    struct store_segment_info info;
    CHECK(store_segment_get(util_store, segment, &info));
    return cluster_prefetch(util_find(key), segment, info.epoch);
}

/* The next copy that u is asked for is of that key, and arrives. */
static void comes(struct util_node *u, const char *key) {
    CHECK(next_work(u));
    CHECK_EQ(w.kind, CLUSTER_WORK_COPY);
    CHECK(span_eq(w.key, span_str(key)));
    CHECK(cluster_task_done(u->n, w.task, TARN_OK, 0, 7));
}

static struct store_stats stats(void) {
    struct store_stats s;
    store_get_stats(util_store, &s);
    return s;
}

TEST(what_lies_on_a_disk_comes_to_memory_beside_it) {
    begin(patient, 64);
    far_only("a", 10000, 0);
    CHECK_EQ(prefetch("a"), CLUSTER_PREFETCH_TAKEN);
    CHECK_EQ(prefetch("a"), CLUSTER_PREFETCH_THERE); /* on its way */
    CHECK_EQ(util_figures().prefetch_waiting, 1);
    comes(&n1, "a");
    CHECK_STR(util_where("a"), "n1.0+n1.ssd");
    CHECK_EQ(prefetch("a"), CLUSTER_PREFETCH_THERE);
    CHECK_EQ(prefetch("none"), CLUSTER_PREFETCH_UNKNOWN);
    CHECK(!next_work(&n1));
    struct cluster_figures f = util_figures();
    CHECK_EQ(f.prefetch_asked, 4);
    CHECK_EQ(f.prefetch_there, 2);
    CHECK_EQ(f.prefetch_unknown, 1);
    CHECK_EQ(f.prefetch_refused, 0);
    CHECK_EQ(f.prefetch_waiting, 0);
    CHECK_EQ(f.tasks_done[CLUSTER_BY_PREFETCH], 1);
    util_end();
}

TEST(a_segment_gets_a_copy_unless_its_machine_has_one) {
    begin(patient, 64);
    stored("a", 10000, 0);
    CHECK_EQ(prefetch("a"), CLUSTER_PREFETCH_THERE);
    CHECK_EQ(prefetch_to("a", mem1), CLUSTER_PREFETCH_THERE);
    CHECK_EQ(prefetch_to("a", mem2), CLUSTER_PREFETCH_TAKEN);
    comes(&n2, "a");
    CHECK_STR(util_where("a"), "n1.0+n2.0+n1.ssd");
    CHECK_EQ(prefetch_to("a", mem2), CLUSTER_PREFETCH_THERE);
    far_only("b", 10000, 20000);
    CHECK_EQ(prefetch_to("b", mem2), CLUSTER_PREFETCH_TAKEN);
    comes(&n2, "b");
    CHECK_STR(util_where("b"), "n2.0+n1.ssd");
    util_end();
}

TEST(a_segment_that_is_another_now_refuses) {
    begin(patient, 64);
    far_only("a", 10000, 0);
    CHECK_EQ(cluster_prefetch(util_find("a"), mem2, 1), CLUSTER_PREFETCH_REFUSED);
    CHECK_EQ(cluster_prefetch(util_find("a"), 77, 1), CLUSTER_PREFETCH_REFUSED);
    CHECK_EQ(util_figures().prefetch_refused, 2);
    CHECK(!next_work(&n1));
    util_end();
}

TEST(no_more_than_a_bound_wait) {
    begin(patient, 64);
    char key[16];
    unsigned taken = 0;
    for (int i = 0; i < 1100; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        far_only(key, 128, (uint64_t)i * 4096);
    }
    for (int i = 0; i < 1100; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        taken += prefetch(key) == CLUSTER_PREFETCH_TAKEN;
    }
    CHECK_EQ(taken, 1024);
    CHECK_EQ(util_figures().prefetch_waiting, 1024);
    CHECK_EQ(util_figures().prefetch_refused, 76);
    util_end();
}

TEST(other_copies_come_first) {
    begin(few_at_a_time, 64);
    char key[16];
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        far_only(key, 128, (uint64_t)i * 4096);
    }
    for (int i = 0; i < 18; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(prefetch(key), CLUSTER_PREFETCH_TAKEN);
    }
    util_run();                          /* the first have their room */
    cluster_hit(util_find("k15"), true); /* is among those that wait */
    cluster_hit(util_find("k18"), true); /* what was used last comes first */
    CHECK_EQ(prefetch("k18"), CLUSTER_PREFETCH_THERE);
    comes(&n1, "k18");
    comes(&n1, "k15");
    comes(&n1, "k0");
    CHECK_EQ(util_figures().tasks_created[CLUSTER_BY_USE], 1);
    CHECK_EQ(stats().prefetch_brought, 1); /* k15 was asked for by a reader in the end */
    util_end();
}

TEST(what_is_read_afterwards_was_not_in_vain) {
    begin(patient, 64);
    for (int i = 0; i < 4; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", i);
        far_only(key, 10000, (uint64_t)i * 20000);
        CHECK_EQ(prefetch(key), CLUSTER_PREFETCH_TAKEN);
        comes(&n1, key);
    }
    CHECK_EQ(stats().prefetch_brought, 4);
    CHECK_EQ(stats().prefetch_bytes, 40000);
    CHECK_EQ(stats().prefetch_unread, 4);
    CHECK(util_read("k0") != NULL);
    CHECK(util_read("k0") != NULL);
    CHECK_EQ(stats().prefetch_read, 1);
    uint64_t bytes;
    CHECK(store_evict_object(util_store, util_find("k0"), &bytes)); /* has been read */
    CHECK(store_evict_object(util_store, util_find("k1"), &bytes)); /* to its disk */
    CHECK(store_remove(util_store, SPAN("k1")));                    /* is no second time */
    CHECK(store_remove(util_store, SPAN("k2")));
    CHECK_EQ(stats().prefetch_read, 1);
    CHECK_EQ(stats().prefetch_in_vain, 2);
    CHECK_EQ(stats().prefetch_unread, 1);
    CHECK_EQ(util_put("k3", 10000, "n1.0"), TARN_EEXISTS); /* its writer has not read it */
    store_flush(util_store);
    util_run();
    CHECK_EQ(stats().prefetch_in_vain, 3);
    CHECK_EQ(stats().prefetch_unread, 0);
    util_end();
}

TEST(a_look_up_is_no_read) {
    begin(patient, 64);
    far_only("a", 10000, 0);
    CHECK_EQ(prefetch("a"), CLUSTER_PREFETCH_TAKEN);
    comes(&n1, "a");
    struct store_batch b;
    store_batch_begin(util_store, &b, NULL, STORE_BATCH_LOOK, 1);
    store_batch_hit(util_store, &b, util_find("a"), store_hash(SPAN("a")));
    CHECK_EQ(stats().prefetch_read, 0);
    CHECK_EQ(stats().prefetch_unread, 1);
    util_end();
}

/* Memory of n1 full of n objects of a page each: m0, m1, ... in the order of their use. */
static void fill(int n) {
    for (int i = 0; i < n; i++) {
        char key[16];
        snprintf(key, sizeof(key), "m%d", i);
        stored(key, 4096, 1000000 + (uint64_t)i * 4096);
    }
}

TEST(what_was_next_to_go_goes_for_it) {
    begin(patient, 8);
    CHECK_EQ(cluster_node_maintenance(n2.n, true), TARN_OK); /* no room elsewhere */
    far_only("a", 4096, 0);
    fill(8);
    util_tick(5000);
    CHECK(util_read("m0") != NULL);
    CHECK_EQ(prefetch("a"), CLUSTER_PREFETCH_TAKEN);
    comes(&n1, "a");
    CHECK_STR(util_where("m1"), "n1.ssd");
    CHECK_STR(util_where("m0"), "n1.0+n1.ssd");
    util_end();
}

TEST(what_is_in_use_stays) {
    begin(patient, 8);
    CHECK_EQ(cluster_node_maintenance(n2.n, true), TARN_OK);
    far_only("a", 4096, 0);
    far_only("b", 4096, 4096);
    fill(8);
    CHECK_EQ(store_pin(util_store, SPAN("m0"), STORE_PIN_SOFT, 0), TARN_OK);
    CHECK_EQ(prefetch("a"), CLUSTER_PREFETCH_TAKEN);
    CHECK_EQ(prefetch("b"), CLUSTER_PREFETCH_TAKEN);
    util_now += 3000;
    store_tick(util_store, util_now, 5000000 + util_now);
    for (int i = 2; i < 8; i++) {
        char key[16];
        snprintf(key, sizeof(key), "m%d", i);
        CHECK(util_read(key) != NULL);
    }
    comes(&n1, "a"); /* for m1, which nobody has used since */
    CHECK_STR(util_where("m1"), "n1.ssd");
    CHECK(!next_work(&n1)); /* a is not read yet, m0 is pinned */
    CHECK_STR(util_where("b"), "n1.ssd");
    CHECK_STR(util_where("m0"), "n1.0+n1.ssd");
    CHECK_EQ(util_figures().tasks_failed[CLUSTER_BY_PREFETCH], 1);
    CHECK_EQ(stats().prefetch_unread, 1);
    util_end();
}

int main(int argc, char **argv) {
    log_set_level(LOG_LEVEL_NOTHING);
    return test_main(argc, argv);
}
