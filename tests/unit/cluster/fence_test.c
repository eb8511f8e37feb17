/* A writer that must not write any more: its space is free when every host has confirmed, and not
 * before. */
#include "util.h"
#include "store/figures.h"

static struct util_node n1, n2;

static void quick(struct cluster_config *c) {
    c->node_timeout_ms = 1000000; /* nobody goes away by silence here */
    c->heartbeat_ms = 100;
}

static void begin(void) {
    n1 = (struct util_node){.name = "n1", .machine = "alpha"};
    n2 = (struct util_node){.name = "n2", .machine = "beta"};
    util_begin(quick);
}

static uint64_t held(void) {
    struct store_stats s;
    store_get_stats(util_store, &s);
    return s.puts_zombie;
}

/* A put of that session whose writer is gone and which has timed out. */
static void abandon_put(const char *key, const char *segment, uint64_t session) {
    struct store_put *put;
    CHECK_EQ(util_open_put(key, 4096, 1, segment, session, &put), TARN_OK);
    store_session_closed(util_store, session);
    util_tick(31000);
}

TEST(space_is_free_when_every_host_has_confirmed) {
    begin();
    struct cluster_work w;
    util_up_with(&n1, 1, 10, 4, 1);
    util_up_with(&n2, 1, 11, 4, 1);
    abandon_put("a", "n1.0", 500);
    CHECK_EQ(held(), 1);
    CHECK(util_work(&n1, &w));
    CHECK_EQ(w.kind, CLUSTER_WORK_FENCE);
    CHECK_EQ(w.session, 500);
    CHECK(!util_work(&n1, &w));
    cluster_node_fenced(n2.n, 500); /* it was not asked yet: that says nothing */
    cluster_node_fenced(n1.n, 500);
    util_run();
    CHECK_EQ(held(), 1);
    CHECK(util_work(&n2, &w));
    cluster_node_fenced(n2.n, 501);
    cluster_node_fenced(n2.n, 500);
    util_run();
    CHECK_EQ(held(), 0);
    CHECK_EQ(util_figures().node_fences_pending, 0);
    util_end();
}

TEST(without_a_host_that_could_hold_a_write_it_is_over_at_once) {
    begin();
    cluster_on_fence(77);
    CHECK_EQ(util_figures().node_fences_pending, 1);
    util_run();
    CHECK_EQ(util_figures().node_fences_pending, 0);
    util_end();
}

static uint64_t asked;
static void fence_local(void *arg, uint64_t session) {
    asked = session;
}

TEST(the_embedded_host_is_one_of_them) {
    static const struct cluster_local_ops ops = {.fence = fence_local};
    static const uint8_t key[16] = {1};
    uint32_t id;
    begin();
    struct store_segment_config config = {.name = "local", .epoch = 100, .size = 4 * 4096};
    CHECK_EQ(store_segment_add(util_store, &config, &id), TARN_OK);
    cluster_local_segment(id, key, &ops);
    asked = 0;
    abandon_put("a", "local", 500);
    CHECK_EQ(asked, 500);
    CHECK_EQ(held(), 1);
    cluster_local_fenced(500);
    util_run();
    CHECK_EQ(held(), 0);
    CHECK(memcmp(cluster_grant_key(id), key, 16) == 0);
    CHECK_EQ(cluster_segment_unmount(id), TARN_EPERM);
    util_end();
}

TEST(a_node_that_is_down_confirms_before_it_is_up_again) {
    begin();
    struct cluster_work w;
    uint32_t id = util_up_with(&n1, 1, 10, 4, 1);
    abandon_put("a", "n1.0", 500);
    CHECK(util_work(&n1, &w)); /* handed out, never done */
    cluster_session_closed(10);
    util_tick(200);
    CHECK_EQ(util_state(id), SEGMENT_DOWN);
    CHECK_EQ(util_join_as(&n1, 2, 11), TARN_OK);
    CHECK(util_mount(&n1, "n1.0", STORE_TIER_MEMORY, 4 * 4096, 1).kept);
    CHECK_EQ(cluster_node_up(n1.n), TARN_EAGAIN);
    CHECK(util_work(&n1, &w)); /* a joining node gets it, too */
    CHECK_EQ(w.kind, CLUSTER_WORK_FENCE);
    CHECK_EQ(held(), 1);
    cluster_node_fenced(n1.n, 500);
    CHECK_EQ(cluster_node_up(n1.n), TARN_OK);
    util_run();
    CHECK_EQ(held(), 0);
    util_end();
}

TEST(fences_that_come_while_it_joins_do_not_hold_it_up) {
    begin();
    util_up_with(&n1, 1, 10, 4, 1);
    CHECK_EQ(util_join_as(&n1, 1, 11), TARN_OK);
    cluster_on_fence(500);
    CHECK_EQ(cluster_node_up(n1.n), TARN_OK);
    CHECK_EQ(util_figures().node_fences_pending, 1);
    util_end();
}

TEST(a_node_that_is_given_up_confirms_by_that) {
    begin();
    util_up_with(&n1, 1, 10, 4, 1);
    util_up_with(&n2, 1, 11, 4, 1);
    abandon_put("a", "n2.0", 500);
    cluster_session_closed(10);
    util_tick(200);
    struct cluster_work w;
    CHECK(util_work(&n2, &w));
    cluster_node_fenced(n2.n, 500);
    util_run();
    CHECK_EQ(util_figures().node_fences_pending, 1);
    cluster_node_leave(cluster_node_find(SPAN("n1")));
    util_run();
    CHECK_EQ(util_figures().node_fences_pending, 0);
    CHECK_EQ(held(), 0);
    util_end();
}

TEST(fences_of_one_node_are_bounded) {
    begin();
    util_up_with(&n1, 1, 10, 4, 1);
    for (uint64_t session = 1; session <= 65537; session++) cluster_on_fence(session);
    CHECK_EQ(util_figures().node_fences_pending, 65537);
    util_run();
    CHECK(cluster_node_find(SPAN("n1")) == NULL);
    CHECK_EQ(util_figures().node_fences_pending, 0);
    util_end();
}

int main(int argc, char **argv) {
    log_set_level(LOG_LEVEL_NOTHING);
    return test_main(argc, argv);
}
