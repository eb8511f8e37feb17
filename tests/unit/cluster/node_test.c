/* Who is in the pool: joining, dying, coming back with and without content, leaving. */
#include "util.h"

static struct util_node n1, n2;
static char why_text[256];

static void begin(void) {
    n1 = (struct util_node){.name = "n1", .machine = "alpha"};
    n2 = (struct util_node){.name = "n2", .machine = "beta"};
    util_begin(NULL);
}

static tarn_status join_named(const char *name, const char *machine) {
    struct cluster_node *n;
    const char *why = "";
    struct cluster_join j = {
        .name = span_str(name), .machine = span_str(machine), .address = "10.0.0.9", .session = 77};
    tarn_status st = cluster_node_join(&j, &n, &why);
    snprintf(why_text, sizeof(why_text), "%s", why);
    return st;
}

TEST(a_node_joins_and_its_segments_are_used_when_it_is_up) {
    begin();
    CHECK_EQ(util_join_as(&n1, 1, 10), TARN_OK);
    struct cluster_mounted m = util_mount(&n1, "n1.0", STORE_TIER_MEMORY, 16 * 4096, 1);
    CHECK(!m.kept);
    CHECK(m.epoch > 100);
    CHECK_EQ(util_state(m.id), SEGMENT_DOWN);
    CHECK_EQ(util_put("a", 4096, NULL), TARN_ENOSPACE);
    CHECK_EQ(cluster_node_up(n1.n), TARN_OK);
    CHECK_EQ(util_state(m.id), SEGMENT_UP);
    CHECK_EQ(util_put("a", 4096, NULL), TARN_OK);
    CHECK_STR(util_where("a"), "n1.0");
    CHECK(cluster_grant_key(m.id) != NULL);
    struct cluster_segment g;
    CHECK(cluster_segment_get(m.id, &g));
    CHECK_STR(g.endpoints[0], "tcp://10.0.0.1:7000");
    CHECK_EQ(g.wildcard_port[0], 7000);
    CHECK_STR(g.endpoints[1], "shm:///run/x.sock");
    CHECK_STR(g.node, "n1");
    CHECK_STR(g.machine, "alpha");
    CHECK_STR(g.rack, "rack-a");
    CHECK_EQ(cluster_host_of(SPAN("alpha")), g.host);
    CHECK_EQ(cluster_host_of(SPAN("master")), 0);
    CHECK_EQ(cluster_host_of(SPAN("nowhere")), STORE_HOST_NONE);
    util_end();
}

TEST(names_and_labels_are_checked) {
    begin();
    CHECK_EQ(join_named("", "m"), TARN_EINVAL);
    CHECK_EQ(join_named("a b", "m"), TARN_EINVAL);
    CHECK_EQ(join_named("local", "m"), TARN_EINVAL);
    CHECK_EQ(join_named("0123456789012345678901234567890123456789012345678", "m"), TARN_EINVAL);
    CHECK_EQ(join_named("n", ""), TARN_EINVAL);
    CHECK_EQ(join_named("n", "a\nb"), TARN_EINVAL);
    CHECK(why_text[0] != '\0');
    CHECK_EQ(join_named("n", "m"), TARN_OK);
    util_end();
}

TEST(segments_are_checked) {
    begin();
    CHECK_EQ(util_join_as(&n1, 1, 10), TARN_OK);
    CHECK_EQ(util_join_as(&n2, 1, 11), TARN_OK);
    util_mount(&n2, "shared", STORE_TIER_MEMORY, 4096, 1);
    struct cluster_mounted mounted;
    const char *why;
    struct span bad[] = {SPAN("tcp://"),        SPAN("tcp//x:1"), SPAN("tcp://h:0"),
                         SPAN("tcp://h:65536"), SPAN("tcp://h"),  SPAN("x y://h:1"),
                         SPAN("shm:///")};
    struct cluster_mount good = {.name = SPAN("n1.0"), .size = 4096, .n_endpoints = 0}, m;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        m = good;
        m.endpoints = &bad[i];
        m.n_endpoints = 1;
        CHECK_EQ(cluster_segment_mount(n1.n, &m, &mounted, &why), TARN_EINVAL);
    }
    m = good;
    m.name = SPAN("a/b");
    CHECK_EQ(cluster_segment_mount(n1.n, &m, &mounted, &why), TARN_EINVAL);
    m = good;
    m.size = 1;
    CHECK_EQ(cluster_segment_mount(n1.n, &m, &mounted, &why), TARN_EINVAL);
    m = good;
    m.tier = STORE_TIER_FILE;
    CHECK_EQ(cluster_segment_mount(n1.n, &m, &mounted, &why), TARN_EINVAL);
    m.directory = SPAN("relative");
    CHECK_EQ(cluster_segment_mount(n1.n, &m, &mounted, &why), TARN_EINVAL);
    m = good;
    m.name = SPAN("shared");
    CHECK_EQ(cluster_segment_mount(n1.n, &m, &mounted, &why), TARN_EBUSY);
    CHECK_EQ(cluster_segment_mount(n1.n, &good, &mounted, &why), TARN_OK);
    char name[16];
    for (unsigned i = 1; i < CLUSTER_NODE_SEGMENTS; i++) {
        snprintf(name, sizeof(name), "n1.%u", i);
        m.name = span_str(name);
        CHECK_EQ(cluster_segment_mount(n1.n, &m, &mounted, &why), TARN_OK);
    }
    m.name = SPAN("n1.64");
    CHECK_EQ(cluster_segment_mount(n1.n, &m, &mounted, &why), TARN_ELIMIT);
    util_end();
}

static void few_nodes(struct cluster_config *c) {
    c->max_nodes = 1;
}

TEST(nodes_are_bounded) {
    util_begin(few_nodes);
    CHECK_EQ(join_named("n1", "m"), TARN_OK);
    CHECK_EQ(join_named("n2", "m"), TARN_ELIMIT);
    util_end();
}

TEST(a_silent_node_is_down_and_comes_back_with_its_content) {
    begin();
    uint32_t id = util_up_with(&n1, 1, 10, 16, 5);
    struct cluster_segment before, after;
    CHECK(cluster_segment_get(id, &before));
    CHECK_EQ(util_put("a", 4096, NULL), TARN_OK);
    util_tick(9000);
    CHECK(util_beat(&n1));
    util_tick(9999);
    CHECK_STR(util_where("a"), "n1.0");
    util_tick(2);
    CHECK_EQ(util_state(id), SEGMENT_DOWN);
    CHECK_STR(util_where("a"), "");
    CHECK(!util_beat(&n1)); /* it woke up again: it has to join */
    CHECK_EQ(util_join_as(&n1, 1, 10), TARN_OK);
    CHECK(util_beat(&n1));
    struct cluster_mounted m = util_mount(&n1, "n1.0", STORE_TIER_MEMORY, 16 * 4096, 5);
    CHECK(m.kept);
    CHECK_EQ(m.id, id);
    CHECK_EQ(m.epoch, before.epoch);
    CHECK_STR(util_where("a"), "");
    CHECK_EQ(cluster_node_up(n1.n), TARN_OK);
    CHECK_STR(util_where("a"), "n1.0");
    CHECK(cluster_segment_get(id, &after));
    CHECK_EQ(util_figures().node_downs, 1);
    util_end();
}

TEST(a_shorter_node_timeout_counts_at_once) {
    begin();
    uint32_t id = util_up_with(&n1, 1, 10, 16, 5);
    util_tick(1000);
    cluster_config()->node_timeout_ms = 500;
    cluster_config_changed();
    util_tick(1);
    CHECK_EQ(util_state(id), SEGMENT_DOWN);
    util_end();
}

TEST(other_content_under_the_name_is_a_new_segment) {
    begin();
    uint32_t id = util_up_with(&n1, 1, 10, 16, 5);
    struct cluster_segment before;
    CHECK(cluster_segment_get(id, &before));
    uint8_t old_key[16];
    memcpy(old_key, cluster_grant_key(id), 16);
    CHECK_EQ(util_put("a", 4096, NULL), TARN_OK);
    cluster_session_closed(10);
    CHECK_EQ(util_join_as(&n1, 2, 11), TARN_OK);
    CHECK_STR(util_where("a"), ""); /* the process that had it is gone */
    struct cluster_mounted m = util_mount(&n1, "n1.0", STORE_TIER_MEMORY, 16 * 4096, 6);
    CHECK(!m.kept);
    CHECK(m.epoch > before.epoch);
    CHECK_EQ(cluster_node_up(n1.n), TARN_OK);
    util_run();
    CHECK_STR(util_where("a"), "");
    CHECK(!util_there(before.id, before.epoch));
    CHECK(memcmp(old_key, cluster_grant_key(m.id), 16) != 0);
    CHECK_EQ(util_put("a", 4096, NULL), TARN_OK);
    util_end();
}

TEST(a_segment_that_is_not_mounted_again_is_lost) {
    begin();
    uint32_t id = util_up_with(&n1, 1, 10, 16, 5);
    struct cluster_segment before;
    CHECK(cluster_segment_get(id, &before));
    CHECK_EQ(util_put("a", 4096, NULL), TARN_OK);
    util_tick(10001);
    CHECK_EQ(util_join_as(&n1, 1, 11), TARN_OK);
    CHECK_EQ(cluster_node_up(n1.n), TARN_OK);
    util_run();
    CHECK(!util_there(id, before.epoch));
    CHECK(util_find("a") == NULL);
    util_end();
}

TEST(a_connection_that_closes_is_noticed_within_a_heartbeat) {
    begin();
    uint32_t id = util_up_with(&n1, 1, 10, 16, 5);
    cluster_session_closed(10);
    util_tick(999);
    CHECK_EQ(util_state(id), SEGMENT_UP);
    util_tick(2);
    CHECK_EQ(util_state(id), SEGMENT_DOWN);
    util_end();
}

TEST(a_new_connection_of_the_same_process_loses_nothing) {
    begin();
    uint32_t id = util_up_with(&n1, 1, 10, 16, 5);
    CHECK_EQ(util_put("a", 4096, NULL), TARN_OK);
    cluster_session_closed(10);
    util_tick(500);
    CHECK_EQ(util_join_as(&n1, 1, 11), TARN_OK);
    CHECK_STR(util_where("a"), "n1.0"); /* its process is there: no reason to miss */
    CHECK(util_mount(&n1, "n1.0", STORE_TIER_MEMORY, 16 * 4096, 5).kept);
    CHECK_EQ(cluster_node_up(n1.n), TARN_OK);
    CHECK_STR(util_where("a"), "n1.0");
    util_tick(5000);
    CHECK_EQ(util_state(id), SEGMENT_UP);
    util_end();
}

TEST(a_name_is_taken_while_its_node_lives) {
    begin();
    util_up_with(&n1, 1, 10, 16, 5);
    struct util_node other = n1;
    CHECK_EQ(util_join_as(&other, 2, 11), TARN_EBUSY);
    CHECK(util_beat(&n1));
    util_tick(10001); /* it stopped: taken over, though its connection is open still */
    CHECK_EQ(util_join_as(&other, 2, 11), TARN_OK);
    CHECK(!util_beat(&n1));
    CHECK(util_beat(&other));
    util_end();
}

TEST(a_node_that_stays_away_is_forgotten) {
    begin();
    uint32_t id = util_up_with(&n1, 1, 10, 16, 5);
    struct cluster_segment before;
    CHECK(cluster_segment_get(id, &before));
    CHECK_EQ(util_put("a", 4096, NULL), TARN_OK);
    util_tick(10001);
    util_tick(3600001);
    CHECK(cluster_node_find(SPAN("n1")) == NULL);
    CHECK(!util_there(id, before.epoch));
    CHECK_EQ(util_figures().nodes_forgotten, 1);
    CHECK_EQ(cluster_host_of(SPAN("alpha")), STORE_HOST_NONE);
    CHECK_EQ(store_segment_count(util_store), 0);
    util_end();
}

TEST(maintenance_stays_readable_and_gets_nothing_new) {
    begin();
    util_up_with(&n1, 1, 10, 16, 5);
    CHECK_EQ(util_put("a", 4096, NULL), TARN_OK);
    CHECK_EQ(cluster_node_maintenance(n1.n, true), TARN_OK);
    CHECK_STR(util_where("a"), "n1.0");
    CHECK_EQ(util_put("b", 4096, NULL), TARN_ENOSPACE);
    /* It survives that the node is started anew, which is what it is for. */
    cluster_session_closed(10);
    util_up_with(&n1, 2, 11, 16, 5);
    CHECK_STR(util_where("a"), "n1.0");
    CHECK_EQ(util_put("b", 4096, NULL), TARN_ENOSPACE);
    CHECK_EQ(cluster_node_maintenance(n1.n, false), TARN_OK);
    CHECK_EQ(util_put("b", 4096, NULL), TARN_OK);
    util_end();
}

TEST(a_node_leaves_when_its_last_lease_is_over) {
    begin();
    uint32_t id = util_up_with(&n1, 1, 10, 16, 5);
    uint64_t granted;
    struct cluster_work w;
    CHECK_EQ(util_put("a", 4096, NULL), TARN_OK);
    CHECK_EQ(store_lease(util_store, util_find("a"), 5, 5000, &granted), TARN_OK);
    cluster_node_leave(n1.n);
    util_run();
    CHECK(util_find("a") == NULL);
    CHECK(util_beat(&n1));
    CHECK(!util_work(&n1, &w));
    CHECK_EQ(util_state(id), SEGMENT_LEAVING);
    util_tick(5001);
    CHECK(util_beat(&n1));
    CHECK(util_work(&n1, &w));
    CHECK_EQ(w.kind, CLUSTER_WORK_LEAVE);
    CHECK(!util_work(&n1, &w));
    cluster_session_closed(10);
    util_tick(1001);
    CHECK(cluster_node_find(SPAN("n1")) == NULL);
    util_end();
}

TEST(a_node_that_left_hears_it_again_when_it_lost_its_connection) {
    begin();
    util_up_with(&n1, 1, 10, 16, 5);
    struct cluster_work w;
    cluster_node_leave(n1.n);
    util_run();
    cluster_session_closed(10);
    CHECK_EQ(util_join_as(&n1, 1, 11), TARN_OK);
    util_mount(&n1, "n1.0", STORE_TIER_MEMORY, 16 * 4096, 5);
    CHECK_EQ(cluster_node_up(n1.n), TARN_EAGAIN);
    util_run();
    CHECK(util_beat(&n1));
    CHECK(util_work(&n1, &w));
    CHECK_EQ(w.kind, CLUSTER_WORK_LEAVE);
    /* Another process under that name is a new start. */
    cluster_session_closed(11);
    util_up_with(&n1, 2, 12, 16, 6);
    CHECK_EQ(util_put("a", 4096, NULL), TARN_OK);
    util_end();
}

TEST(unmount_waits_for_leases_and_tells_the_node) {
    begin();
    uint32_t id = util_up_with(&n1, 1, 10, 16, 5);
    struct cluster_segment before;
    uint64_t granted;
    struct cluster_work w;
    CHECK(cluster_segment_get(id, &before));
    CHECK_EQ(util_put("a", 4096, NULL), TARN_OK);
    CHECK_EQ(store_lease(util_store, util_find("a"), 5, 5000, &granted), TARN_OK);
    CHECK_EQ(cluster_segment_unmount(id), TARN_OK);
    util_run();
    CHECK(util_there(id, before.epoch));
    CHECK(!util_work(&n1, &w));
    util_tick(5001);
    CHECK(!util_there(id, before.epoch));
    CHECK(util_work(&n1, &w));
    CHECK_EQ(w.kind, CLUSTER_WORK_UNMOUNT);
    CHECK_EQ(w.segment, id);
    CHECK_EQ(w.epoch, before.epoch);
    CHECK_EQ(cluster_segment_unmount(id), TARN_ENOSEGMENT);
    /* An id that is used again is not unmounted by an old order. */
    struct cluster_mounted m = util_mount(&n1, "n1.1", STORE_TIER_MEMORY, 16 * 4096, 7);
    CHECK_EQ(m.id, id);
    CHECK_EQ(cluster_segment_unmount(m.id), TARN_OK);
    util_run();
    m = util_mount(&n1, "n1.2", STORE_TIER_MEMORY, 16 * 4096, 8);
    CHECK_EQ(m.id, id);
    CHECK(!util_work(&n1, &w));
    util_end();
}

TEST(segments_of_one_machine_never_hold_two_replicas) {
    begin();
    struct util_node n3 = {.name = "n3", .machine = "alpha"};
    util_up_with(&n1, 1, 10, 16, 1);
    util_up_with(&n3, 1, 12, 16, 1);
    struct store_put *put;
    CHECK_EQ(util_open_put("a", 4096, 2, NULL, 1, &put), TARN_OK);
    CHECK_EQ(store_put_missing(put), 1);
    CHECK_EQ(store_put_revoke(util_store, SPAN("a"), util_token), TARN_OK);
    util_up_with(&n2, 1, 11, 16, 1);
    CHECK_EQ(util_open_put("a", 4096, 2, NULL, 1, &put), TARN_OK);
    CHECK_EQ(store_put_missing(put), 0);
    CHECK_EQ(store_put_revoke(util_store, SPAN("a"), util_token), TARN_OK);
    util_end();
}

TEST(near_replicas_come_first) {
    begin();
    struct util_node n3 = {.name = "n3", .machine = "a-third"}; /* in the rack of alpha */
    uint32_t a = util_up_with(&n1, 1, 10, 16, 1), b = util_up_with(&n2, 1, 11, 16, 1);
    uint32_t c = util_up_with(&n3, 1, 12, 16, 1);
    uint32_t ssd = util_mount(&n1, "n1.ssd", STORE_TIER_SSD, 1 << 20, 2).id;
    struct store_layout l = {.replicas = 4};
    uint32_t ids[] = {ssd, b, c, a};
    for (int i = 0; i < 4; i++) {
        l.replica[i].tier = ids[i] == ssd ? STORE_TIER_SSD : STORE_TIER_MEMORY;
        l.replica[i].extents = 1;
        l.replica[i].extent[0].segment = ids[i];
    }
    cluster_order(&l, cluster_host_of(SPAN("alpha")), SPAN("rack-a"));
    CHECK_EQ(l.replica[0].extent[0].segment, a);
    CHECK_EQ(l.replica[1].extent[0].segment, c);
    CHECK_EQ(l.replica[2].extent[0].segment, b);
    CHECK_EQ(l.replica[3].extent[0].segment, ssd);
    /* Equal ones take turns. */
    unsigned first_a = 0;
    for (int i = 0; i < 300; i++) {
        cluster_order(&l, STORE_HOST_NONE, SPAN(""));
        CHECK_EQ(l.replica[3].extent[0].segment, ssd);
        first_a += l.replica[0].extent[0].segment == a;
    }
    CHECK(first_a > 50 && first_a < 150);
    util_end();
}

TEST(many_segments_are_lost_at_once) {
    static struct util_node many[100];
    static char names[100][16];
    util_begin(NULL);
    for (int i = 0; i < 100; i++) {
        snprintf(names[i], sizeof(names[i]), "m%d", i);
        many[i] = (struct util_node){.name = names[i], .machine = names[i]};
        util_up_with(&many[i], 1, 100 + (uint64_t)i, 4, 1);
    }
    for (int i = 0; i < 300; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(util_put(key, 4096, NULL), TARN_OK);
    }
    util_tick(10001);
    CHECK_EQ(util_figures().nodes_by_state[CLUSTER_NODE_DOWN], 100);
    util_tick(3600001);
    CHECK_EQ(util_figures().nodes, 0);
    CHECK_EQ(store_segment_count(util_store), 0);
    CHECK_EQ(store_count(util_store), 0);
    util_end();
}

static unsigned wakes;
static void count_wake(struct cluster_waiter *w) {
    wakes++;
}

TEST(a_waiting_heartbeat_is_woken_by_work_and_by_the_end) {
    begin();
    uint32_t id = util_up_with(&n1, 1, 10, 16, 5);
    struct cluster_waiter w = {.wake = count_wake}, w2 = {.wake = count_wake};
    wakes = 0;
    cluster_wait(n1.n, &w);
    cluster_wait(n1.n, &w2); /* takes its place */
    CHECK_EQ(wakes, 1);
    CHECK(w.node == NULL);
    CHECK_EQ(cluster_segment_unmount(id), TARN_OK);
    util_run();
    CHECK_EQ(wakes, 2);
    cluster_wait(n1.n, &w);
    util_tick(10001);
    CHECK_EQ(wakes, 3);
    CHECK(w.node == NULL);
    util_end();
}

int main(int argc, char **argv) {
    log_set_level(LOG_LEVEL_NOTHING);
    return test_main(argc, argv);
}
