/* Segments and nodes that are emptied: nothing is lost, nothing is moved twice, and what cannot be
 * moved stays. */
#include "util.h"

static struct util_node n1, n2, n3;
static struct cluster_work w;

static void begin(void) {
    n1 = (struct util_node){.name = "n1", .machine = "alpha"};
    n2 = (struct util_node){.name = "n2", .machine = "beta"};
    n3 = (struct util_node){.name = "n3", .machine = "gamma"};
    util_begin(NULL);
    util_up_with(&n1, 1, 10, 256, 1);
    util_up_with(&n2, 1, 11, 256, 1);
}

static uint32_t id_of(const char *segment) {
    struct store_segment_info info;
    CHECK(store_segment_by_name(util_store, span_str(segment), &info));
    return info.id;
}

/* The node does what it is asked for; every fails-th copy goes wrong (0: none). Returns how many it
 * made. */
static unsigned serve(struct util_node *u, unsigned fails) {
    unsigned done = 0;
    if (!util_beat(u)) return 0;
    while (util_work(u, &w)) {
        if (w.kind != CLUSTER_WORK_COPY && w.kind != CLUSTER_WORK_STORE) continue;
        bool bad = fails != 0 && ++done % fails == 0;
        cluster_task_done(u->n, w.task, bad ? TARN_EIO : TARN_OK, w.task * 4096, -1);
        done += fails == 0;
    }
    return done;
}

static void serve_all(unsigned rounds, unsigned fails) {
    for (unsigned i = 0; i < rounds; i++) {
        serve(&n1, fails);
        serve(&n2, fails);
        if (n3.n != NULL) serve(&n3, fails);
        util_tick(200);
    }
}

static void put_many(int n, const char *segment) {
    char key[16];
    for (int i = 0; i < n; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(util_put(key, 4096, segment), TARN_OK);
    }
}

static void check_all(int n, const char *where) {
    char key[16];
    for (int i = 0; i < n; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_STR(util_where(key), where);
    }
}

TEST(a_segment_is_drained_into_others_and_goes) {
    begin();
    put_many(150, "n1.0");
    uint32_t id = id_of("n1.0");
    struct cluster_segment g;
    CHECK_EQ(cluster_segment_drain(id, true), TARN_OK);
    CHECK_EQ(cluster_segment_drain(id, true), TARN_EEXISTS);
    CHECK_EQ(util_put("new", 4096, "n1.0"), TARN_OK);
    CHECK_STR(util_where("new"), "n2.0");
    util_run();
    CHECK(cluster_segment_get(id, &g));
    CHECK(g.draining && g.waiting > 0 && g.waiting <= 64);
    check_all(150, "n1.0"); /* readable all the time */
    serve(&n2, 0);
    CHECK(cluster_segment_get(id, &g));
    CHECK(g.moved_objects > 0);
    for (int i = 0; i < 60; i++) {
        serve(&n2, 0);
        util_run();
    }
    util_tick(100);
    serve_all(20, 0);
    check_all(150, "n2.0");
    CHECK(!cluster_segment_get(id, &g));
    CHECK(util_beat(&n1));
    CHECK_EQ(util_figures().drained_objects, 150);
    CHECK(cluster_node_find(SPAN("n1")) != NULL); /* a segment only */
    util_end();
}

TEST(what_can_be_read_elsewhere_is_dropped) {
    begin();
    CHECK_EQ(util_put_n("two", 4096, 2, NULL, 7), TARN_OK);
    CHECK_EQ(cluster_segment_drain(id_of("n1.0"), true), TARN_OK);
    util_run();
    util_tick(100);
    CHECK_STR(util_where("two"), "n2.0");
    CHECK_EQ(util_figures().drain_dropped, 1);
    CHECK_EQ(util_figures().tasks_created[CLUSTER_BY_DRAIN], 0);
    util_end();
}

TEST(two_drains_at_once_lose_nothing) {
    begin();
    util_up_with(&n3, 1, 12, 256, 1);
    char key[16];
    for (int i = 0; i < 50; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        struct span avoid = SPAN("n3.0");
        struct store_batch b;
        struct store_put *put;
        struct store_put_options o = {
            .replicas = 2, .avoid = &avoid, .avoids = 1, .host = STORE_HOST_NONE};
        unsigned budget = 100000;
        store_batch_begin(util_store, &b, NULL, STORE_BATCH_PUT, 1);
        CHECK_EQ(store_put_start(util_store, &b, span_str(key), 4096, &o, 1, &budget, &put),
                 TARN_OK);
        CHECK_EQ(
            store_put_end(util_store, span_str(key), store_put_token(put), 7, 0, NULL, 0, NULL),
            TARN_OK);
    }
    CHECK_EQ(cluster_node_drain(n1.n, true), TARN_OK);
    CHECK_EQ(cluster_node_drain(n2.n, true), TARN_OK);
    serve_all(30, 0);
    check_all(50, "n3.0");
    CHECK_EQ(util_figures().nodes_by_state[CLUSTER_NODE_LEFT], 2);
    util_end();
}

TEST(a_node_that_is_drained_leaves) {
    begin();
    util_mount(&n1, "n1.1", STORE_TIER_MEMORY, 64 * 4096, 2);
    put_many(40, "n1.0");
    struct cluster_node_info info;
    CHECK_EQ(cluster_node_drain(n1.n, true), TARN_OK);
    cluster_node_get(n1.n, &info);
    CHECK(info.draining);
    for (int i = 0; i < 20; i++) {
        serve(&n2, 0);
        CHECK(util_beat(&n1));
        util_tick(200);
    }
    CHECK(util_beat(&n1));
    cluster_node_get(n1.n, &info);
    CHECK_EQ(info.state, CLUSTER_NODE_LEFT);
    CHECK(util_work(&n1, &w));
    CHECK_EQ(w.kind, CLUSTER_WORK_LEAVE);
    check_all(40, "n2.0");
    util_end();
}

TEST(a_drain_without_room_loses_nothing_and_says_why) {
    begin();
    put_many(200, "n1.0");
    char key[16];
    for (int i = 0; i < 60; i++) { /* so much of n2 cannot be evicted */
        snprintf(key, sizeof(key), "p%d", i);
        CHECK_EQ(util_put(key, 4 * 4096, "n2.0"), TARN_OK);
        CHECK_EQ(store_pin(util_store, span_str(key), STORE_PIN_HARD, 0), TARN_OK);
    }
    uint32_t id = id_of("n1.0");
    struct cluster_segment g;
    for (int i = 0; i < 200; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(store_pin(util_store, span_str(key), STORE_PIN_HARD, 0), TARN_OK);
    }
    CHECK_EQ(cluster_segment_drain(id, true), TARN_OK);
    serve_all(60, 0);
    CHECK(cluster_segment_get(id, &g));
    CHECK(g.draining);
    CHECK_STR(g.drain_error, tarn_status_text(TARN_ENOSPACE));
    for (int i = 0; i < 200; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK(util_find(key) != NULL);
    }
    CHECK_EQ(util_state(id), SEGMENT_READONLY);
    CHECK_EQ(cluster_segment_drain(id, false), TARN_OK); /* canceled: as before */
    CHECK_EQ(util_state(id), SEGMENT_UP);
    serve_all(5, 0);
    CHECK_EQ(util_figures().drains, 0);
    /* Room comes, and it goes on where it stopped. */
    CHECK_EQ(cluster_segment_drain(id, true), TARN_OK);
    util_up_with(&n3, 1, 12, 256, 1);
    serve_all(60, 0);
    CHECK(!cluster_segment_get(id, &g));
    util_end();
}

TEST(copies_that_fail_are_made_by_later_passes) {
    begin();
    cluster_config()->task_retries = 0;
    put_many(100, "n1.0");
    CHECK_EQ(cluster_node_drain(n1.n, true), TARN_OK);
    serve_all(200, 3);
    check_all(100, "n2.0");
    CHECK(util_figures().tasks_failed[CLUSTER_BY_DRAIN] > 10);
    CHECK_EQ(util_figures().nodes_by_state[CLUSTER_NODE_LEFT], 1);
    util_end();
}

TEST(puts_that_are_open_are_waited_for) {
    begin();
    struct store_put *put;
    CHECK_EQ(util_open_put("late", 4096, 1, "n1.0", 1, &put), TARN_OK);
    CHECK_EQ(cluster_node_drain(n1.n, true), TARN_OK);
    serve_all(10, 0);
    CHECK_EQ(util_figures().nodes_by_state[CLUSTER_NODE_LEFT], 0);
    CHECK_EQ(store_put_end(util_store, SPAN("late"), util_token, 7, 0, NULL, 0, NULL), TARN_OK);
    CHECK_STR(util_where("late"), "n1.0");
    serve_all(20, 0);
    CHECK_STR(util_where("late"), "n2.0");
    CHECK_EQ(util_figures().nodes_by_state[CLUSTER_NODE_LEFT], 1);
    util_end();
}

TEST(a_drain_survives_the_death_of_its_node) {
    begin();
    put_many(100, "n1.0");
    CHECK_EQ(cluster_node_drain(n1.n, true), TARN_OK);
    serve(&n2, 0);
    util_run();
    cluster_session_closed(10);
    util_tick(1001);
    CHECK_EQ(util_state(id_of("n1.0")), SEGMENT_DOWN);
    serve_all(10, 0);
    util_up_with(&n1, 2, 20, 256, 1);
    CHECK_EQ(util_state(id_of("n1.0")), SEGMENT_READONLY);
    serve_all(40, 0);
    check_all(100, "n2.0");
    util_end();
}

TEST(far_objects_go_through_memory) {
    begin();
    uint32_t ssd = util_mount(&n1, "n1.ssd", STORE_TIER_SSD, 1 << 20, 3).id;
    CHECK_EQ(util_put("a", 5000, "n1.0"), TARN_OK);
    util_run();
    CHECK(util_work(&n1, &w));
    CHECK_EQ(w.kind, CLUSTER_WORK_STORE);
    CHECK(cluster_task_done(n1.n, w.task, TARN_OK, 0, -1));
    CHECK_STR(util_where("a"), "n1.0+n1.ssd");
    CHECK_EQ(store_replica_drop(util_store, util_find("a"), id_of("n1.0"), false), TARN_OK);
    CHECK_STR(util_where("a"), "n1.ssd");
    CHECK_EQ(cluster_node_drain(n1.n, true), TARN_OK);
    bool dropped = false;
    for (int i = 0; i < 20; i++) {
        serve(&n2, 0);
        CHECK(util_beat(&n1));
        while (util_work(&n1, &w)) {
            if (w.kind != CLUSTER_WORK_DROP) continue;
            dropped = true; /* so that its disk does not bring it up again one day */
            CHECK_EQ(w.far, ssd);
            CHECK_EQ(w.n_drops, 1);
        }
        util_tick(200);
    }
    CHECK(dropped);
    CHECK_STR(util_where("a"), "n2.0");
    CHECK_EQ(util_figures().nodes_by_state[CLUSTER_NODE_LEFT], 1);
    util_end();
}

TEST(the_embedded_segment_is_emptied_and_stays) {
    static const struct cluster_local_ops ops = {.fence = NULL};
    static const uint8_t key[16];
    uint32_t id;
    struct cluster_segment g;
    begin();
    struct store_segment_config config = {.name = "local", .epoch = 100, .size = 64 * 4096};
    CHECK_EQ(store_segment_add(util_store, &config, &id), TARN_OK);
    cluster_local_segment(id, key, &ops);
    CHECK_EQ(util_put("a", 4096, "local"), TARN_OK);
    CHECK_EQ(cluster_segment_drain(id, true), TARN_OK);
    serve_all(10, 0);
    CHECK(util_where("a")[0] == 'n');
    CHECK(cluster_segment_get(id, &g));
    CHECK(g.drained && g.embedded);
    CHECK_EQ(util_state(id), SEGMENT_READONLY);
    CHECK_EQ(cluster_segment_drain(id, false), TARN_OK);
    CHECK_EQ(util_state(id), SEGMENT_UP);
    util_end();
}

int main(int argc, char **argv) {
    log_set_level(LOG_LEVEL_NOTHING);
    return test_main(argc, argv);
}
