/* What nodes tell of transports of modules: keys of segments, reports; how long they are known, and
 * how much of it. */
#include "util.h"

static struct util_node n1, n2;
static char why_text[256];

static uint32_t begin(void) {
    n1 = (struct util_node){.name = "n1", .machine = "alpha"};
    n2 = (struct util_node){.name = "n2", .machine = "beta"};
    util_begin(NULL);
    return util_up(&n1, 16);
}

static uint64_t told(void) {
    struct cluster_figures f;
    cluster_get_figures(&f);
    return f.keys_and_reports_bytes;
}

static tarn_status keys(struct util_node *u, const char *segment, const char *uri,
                        const char *read_key, const char *write_key) {
    struct cluster_key_told k = {.uri = span_str(uri),
                                 .key = {span_str(read_key), span_str(write_key)}};
    const char *why = "";
    tarn_status s = cluster_segment_keys_set(u->n, span_str(segment), &k, uri[0] != '\0', &why);
    snprintf(why_text, sizeof(why_text), "%s", why);
    return s;
}

TEST(keys_are_known_and_replaced_as_a_whole) {
    uint32_t id = begin();
    const struct cluster_key *k[CLUSTER_KEYS_MAX];
    CHECK_EQ(cluster_segment_keys(id, k), 0);
    CHECK_EQ(keys(&n1, "n1.0", "rdma://10.9.0.1:33333", "read", "write"), TARN_OK);
    CHECK_EQ(cluster_segment_keys(id, k), 1);
    CHECK_STR(k[0]->uri, "rdma://10.9.0.1:33333");
    CHECK_EQ(k[0]->wildcard_port, 0);
    CHECK(span_eq(k[0]->key[0], SPAN("read")));
    CHECK(span_eq(k[0]->key[1], SPAN("write")));
    CHECK(cluster_segment_key(id, "rdma") == k[0]);
    CHECK(cluster_segment_key(id, "rdm") == NULL);
    CHECK(cluster_segment_key(id, "rdmax") == NULL);
    CHECK_EQ(keys(&n1, "n1.0", "other://10.9.0.1:5", "r", ""), TARN_OK);
    CHECK(cluster_segment_key(id, "rdma") == NULL);
    CHECK(span_eq(cluster_segment_key(id, "other")->key[0], SPAN("r")));
    CHECK_EQ(cluster_segment_key(id, "other")->key[1].len, 0);
    CHECK_EQ(keys(&n1, "n1.0", "", "", ""), TARN_OK);
    CHECK_EQ(cluster_segment_keys(id, k), 0);
    CHECK_EQ(told(), 0);
    CHECK_EQ(cluster_segment_keys(9999, k), 0);
    CHECK(cluster_segment_key(9999, "rdma") == NULL);
    util_end();
}

TEST(a_wildcard_host_is_where_the_node_comes_from) {
    uint32_t id = begin();
    static const char *const hosts[] = {"*", "0.0.0.0", "[::]", "::", ""};
    for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
        char uri[64];
        snprintf(uri, sizeof(uri), "rdma://%s:18515", hosts[i]);
        CHECK_EQ(keys(&n1, "n1.0", uri, "r", "w"), TARN_OK);
        CHECK_STR(cluster_segment_key(id, "rdma")->uri, "rdma://10.0.0.1:18515");
        CHECK_EQ(cluster_segment_key(id, "rdma")->wildcard_port, 18515);
    }
    util_end();
}

TEST(keys_that_make_no_sense_are_refused_and_change_nothing) {
    uint32_t id = begin();
    char uri[400], *big = xcalloc(1, CLUSTER_KEY_MAX + 2);
    CHECK_EQ(keys(&n1, "n1.0", "rdma://h:1", "r", "w"), TARN_OK);
    uint64_t before = told();
    static const char *const bad[] = {"rdma",           "rdma:/h:1",     "rdma://h", "rdma://h:0",
                                      "rdma://h:65536", "rdma://h:1x",   "://h:1",   "RDMA://h:1",
                                      "rdma://h h:1",   "rdma://h\n:1",  "rdma://",  "rdma:///",
                                      "rd-ma://h:1",    "rdma://\x80h:1"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        CHECK_EQ(keys(&n1, "n1.0", bad[i], "r", "w"), TARN_EINVAL);
        CHECK(strstr(why_text, "uri") != NULL);
    }
    snprintf(uri, sizeof(uri), "rdma://%0300d:1", 7);
    CHECK_EQ(keys(&n1, "n1.0", uri, "r", "w"), TARN_EINVAL);
    memset(big, 'k', CLUSTER_KEY_MAX + 1);
    CHECK_EQ(keys(&n1, "n1.0", "rdma://h:1", big, "w"), TARN_EINVAL);
    CHECK(strstr(why_text, "65536") != NULL);
    CHECK_EQ(keys(&n1, "n1.0", "rdma://h:1", "r", big), TARN_EINVAL);
    struct cluster_key_told two[2] = {{.uri = SPAN("rdma://h:1")}, {.uri = SPAN("rdma://i:1")}};
    const char *why = "";
    CHECK_EQ(cluster_segment_keys_set(n1.n, SPAN("n1.0"), two, 2, &why), TARN_EINVAL);
    CHECK(strstr(why, "one scheme") != NULL);
    two[1].uri = SPAN("other://i:1");
    CHECK_EQ(told(), before);
    CHECK(span_eq(cluster_segment_key(id, "rdma")->key[0], SPAN("r")));
    CHECK_EQ(cluster_segment_keys_set(n1.n, SPAN("n1.0"), two, 2, &why), TARN_OK);
    const struct cluster_key *k[CLUSTER_KEYS_MAX];
    CHECK_EQ(cluster_segment_keys(id, k), 2);
    big[CLUSTER_KEY_MAX] = '\0';
    CHECK_EQ(keys(&n1, "n1.0", "rdma://h:1", big, big), TARN_OK);
    CHECK_EQ(cluster_segment_key(id, "rdma")->key[1].len, CLUSTER_KEY_MAX);
    free(big);
    util_end();
}

TEST(keys_belong_to_mounted_memory_of_that_node) {
    begin();
    uint32_t id2 = util_up_with(&n2, 2, 77, 16, 2);
    CHECK_EQ(keys(&n1, "n2.0", "rdma://h:1", "r", "w"), TARN_ENOSEGMENT);
    CHECK_EQ(keys(&n1, "nowhere", "rdma://h:1", "r", "w"), TARN_ENOSEGMENT);
    CHECK_EQ(keys(&n1, "", "rdma://h:1", "r", "w"), TARN_ENOSEGMENT);
    util_mount(&n1, "n1.ssd", STORE_TIER_SSD, 1 << 20, 3);
    CHECK_EQ(keys(&n1, "n1.ssd", "rdma://h:1", "r", "w"), TARN_ENOSEGMENT);
    CHECK(cluster_segment_key(id2, "rdma") == NULL);
    CHECK_EQ(told(), 0);
    util_end();
}

TEST(keys_of_a_mount_take_the_place_of_the_former) {
    uint32_t id = begin();
    CHECK_EQ(keys(&n1, "n1.0", "rdma://h:1", "old", "old"), TARN_OK);
    struct cluster_key_told k = {.uri = SPAN("rdma://h:2"), .key = {SPAN("new"), SPAN("new")}};
    struct cluster_mount m = {.name = SPAN("n1.0"),
                              .tier = STORE_TIER_MEMORY,
                              .size = 16 * 4096,
                              .numa_node = -1,
                              .keys = &k,
                              .n_keys = 1};
    memset(m.content, 1, sizeof(m.content));
    struct cluster_mounted mounted;
    const char *why = "";
    CHECK_EQ(cluster_segment_mount(n1.n, &m, &mounted, &why), TARN_OK);
    CHECK(mounted.kept && mounted.id == id);
    CHECK(span_eq(cluster_segment_key(id, "rdma")->key[0], SPAN("new")));
    m.n_keys = 0;
    CHECK_EQ(cluster_segment_mount(n1.n, &m, &mounted, &why), TARN_OK);
    CHECK(cluster_segment_key(id, "rdma") == NULL);
    m.n_keys = 1;
    m.tier = STORE_TIER_SSD;
    m.name = SPAN("n1.ssd");
    CHECK_EQ(cluster_segment_mount(n1.n, &m, &mounted, &why), TARN_EINVAL);
    CHECK(strstr(why, "KEYS") != NULL);
    util_end();
}

TEST(keys_and_reports_go_with_the_node_that_told_them) {
    uint32_t id = begin();
    const char *why = "";
    struct cluster_report r;
    for (int way = 0; way < 5; way++) {
        CHECK_EQ(keys(&n1, "n1.0", "rdma://h:1", "r", "w"), TARN_OK);
        CHECK_EQ(cluster_node_report(n1.n, SPAN("rdma"), SPAN("device name=a\n"), &why), TARN_OK);
        CHECK(told() > 0);
        switch (way) {
        case 0: /* joins anew: the same process */
            CHECK_EQ(util_join_as(&n1, 1, 500), TARN_OK);
            CHECK_EQ(keys(&n1, "n1.0", "rdma://h:1", "r", "w"),
                     TARN_ENOSEGMENT); /* not mounted in this join */
            break;
        case 1: /* silent for too long */
            util_tick(20000);
            CHECK_EQ(util_state(id), SEGMENT_DOWN);
            break;
        case 2: /* closes, and another process has its name */
            cluster_session_closed(n1.session);
            CHECK_EQ(util_join_as(&n1, 2, 501), TARN_OK);
            break;
        case 3:
            cluster_session_closed(n1.session);
            util_tick(2000);
            break;
        case 4: cluster_node_leave(n1.n); break;
        }
        CHECK(cluster_segment_key(id, "rdma") == NULL);
        if (way == 4) break;
        CHECK(!cluster_node_report_get(cluster_node_find(SPAN("n1")), 0, &r));
        CHECK_EQ(told(), 0);
        cluster_session_closed(n1.session);
        id = util_up_with(&n1, (uint8_t)(3 + way), 600 + (uint64_t)way, 16, 1);
    }
    util_tick(1);
    util_end();
}

TEST(an_unmounted_segment_has_no_keys) {
    uint32_t id = begin();
    CHECK_EQ(util_put("a", 4096, NULL), TARN_OK);
    CHECK_EQ(keys(&n1, "n1.0", "rdma://h:1", "r", "w"), TARN_OK);
    CHECK_EQ(cluster_segment_unmount(id), TARN_OK);
    CHECK(cluster_segment_key(id, "rdma") == NULL);
    CHECK_EQ(keys(&n1, "n1.0", "rdma://h:1", "r", "w"), TARN_ENOSEGMENT);
    util_end();
}

TEST(who_holds_a_key_may_look_at_it_longer) {
    uint32_t id = begin();
    CHECK_EQ(keys(&n1, "n1.0", "rdma://h:1", "r1", "w1"), TARN_OK);
    struct cluster_key *held = cluster_key_ref(cluster_segment_key(id, "rdma"));
    CHECK_EQ(keys(&n1, "n1.0", "rdma://h:2", "r2", "w2"), TARN_OK);
    CHECK_EQ(cluster_segment_unmount(id), TARN_OK);
    CHECK_STR(held->uri, "rdma://h:1");
    CHECK(span_eq(held->key[1], SPAN("w1")));
    CHECK(told() > 0);
    cluster_key_unref(&held);
    CHECK(held == NULL);
    cluster_key_unref(&held);
    CHECK_EQ(told(), 0);
    util_end();
}

/* --- reports --- */

static bool collect(void *arg, const struct cluster_report *r) {
    struct buf *out = arg;
    buf_printf(out, "%s@%s %llu %.*s;", r->node, r->machine, (unsigned long long)r->age_ms,
               (int)r->text.len, r->text.data);
    return out->len < 1000;
}

TEST(the_last_report_of_a_scheme_is_kept_with_its_time) {
    begin();
    util_up_with(&n2, 2, 77, 16, 2);
    const char *why = "";
    struct buf out = {NULL, 0, 0};
    CHECK_EQ(cluster_node_report(n1.n, SPAN("rdma"), SPAN("old\n"), &why), TARN_OK);
    CHECK_EQ(cluster_node_report(n1.n, SPAN("rdma"), SPAN("a=1\nb=2\n"), &why), TARN_OK);
    CHECK_EQ(cluster_node_report(n2.n, SPAN("other"), SPAN("x\n"), &why), TARN_OK);
    CHECK_EQ(cluster_node_report(n2.n, SPAN("rdma"), SPAN("c=3\n"), &why), TARN_OK);
    util_tick(70);
    cluster_each_report("rdma", collect, &out);
    buf_append_char(&out, '\0');
    CHECK_STR(out.data, "n1@alpha 70 a=1\nb=2\n;n2@beta 70 c=3\n;");
    CHECK_EQ(cluster_node_report(n1.n, SPAN("rdma"), span_of(NULL, 0), &why), TARN_OK);
    buf_clear(&out);
    cluster_each_report("rdma", collect, &out);
    buf_append_char(&out, '\0');
    CHECK_STR(out.data, "n2@beta 70 c=3\n;");
    buf_free(&out);
    util_end();
}

TEST(reports_are_bounded_text) {
    begin();
    const char *why = "";
    char *big = xcalloc(1, CLUSTER_REPORT_MAX + 1);
    memset(big, 'x', CLUSTER_REPORT_MAX + 1);
    static const char *const schemes[] = {"", "Rdma", "rd ma", "rdma1", "abcdefghijklmnop"};
    for (size_t i = 0; i < ARRAY_LEN(schemes); i++)
        CHECK_EQ(cluster_node_report(n1.n, span_str(schemes[i]), SPAN("x\n"), &why), TARN_EINVAL);
    static const char *const texts[] = {"a\x1b[2J", "a\tb\n", "a\r\n", "\x80"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        CHECK_EQ(cluster_node_report(n1.n, SPAN("rdma"), span_str(texts[i]), &why), TARN_EINVAL);
    CHECK_EQ(cluster_node_report(n1.n, SPAN("rdma"), span_of(big, CLUSTER_REPORT_MAX + 1), &why),
             TARN_EINVAL);
    CHECK(strstr(why, "32768") != NULL);
    CHECK_EQ(told(), 0);
    CHECK_EQ(cluster_node_report(n1.n, SPAN("a"), span_of(big, CLUSTER_REPORT_MAX), &why), TARN_OK);
    CHECK_EQ(cluster_node_report(n1.n, SPAN("b"), SPAN("x\n"), &why), TARN_OK);
    CHECK_EQ(cluster_node_report(n1.n, SPAN("c"), SPAN("x\n"), &why), TARN_OK);
    CHECK_EQ(cluster_node_report(n1.n, SPAN("d"), SPAN("x\n"), &why), TARN_OK);
    CHECK_EQ(cluster_node_report(n1.n, SPAN("e"), SPAN("x\n"), &why), TARN_EINVAL);
    CHECK_EQ(cluster_node_report(n1.n, SPAN("b"), span_of(NULL, 0), &why), TARN_OK);
    CHECK_EQ(cluster_node_report(n1.n, SPAN("e"), SPAN("x\n"), &why), TARN_OK);
    free(big);
    util_end();
}

TEST(all_of_it_together_is_bounded) {
    begin();
    enum { NODES = 2000 };
    const char *why = "";
    char *big = xcalloc(1, CLUSTER_KEY_MAX + 1);
    memset(big, 'k', CLUSTER_KEY_MAX);
    cluster_config()->max_nodes = NODES + 1;
    tarn_status last = TARN_OK;
    uint64_t taken = 0;
    for (unsigned i = 0; i < NODES && last == TARN_OK; i++) {
        char name[32], segment[40];
        snprintf(name, sizeof(name), "m%u", i);
        snprintf(segment, sizeof(segment), "%s.0", name);
        struct util_node u = {.name = name, .machine = "many"};
        util_up_with(&u, 9, 10000 + i, 1, 9);
        last = keys(&u, segment, "rdma://h:1", big, big);
        taken += last == TARN_OK;
        if (last != TARN_OK) { /* nor reports, but that is no reason to lose a node */
            struct cluster_report r;
            memset(big, 'x', CLUSTER_KEY_MAX);
            CHECK(strstr(why_text, "128 MiB") != NULL);
            struct cluster_key_told k = {.uri = SPAN("rdma://h:1"),
                                         .key = {span_of(big, 60000), span_of(big, 60000)}};
            struct cluster_mount m = {.name = span_str(segment),
                                      .tier = STORE_TIER_MEMORY,
                                      .size = 4096,
                                      .keys = &k,
                                      .n_keys = 1};
            struct cluster_mounted mounted;
            CHECK_EQ(cluster_segment_mount(u.n, &m, &mounted, &why), TARN_OK);
            CHECK(cluster_segment_key(mounted.id, "rdma") == NULL);
            for (const char *c = "abcd"; *c != '\0'; c++)
                CHECK_EQ(
                    cluster_node_report(u.n, span_of(c, 1), span_of(big, CLUSTER_REPORT_MAX), &why),
                    TARN_OK);
            struct cluster_figures f;
            cluster_get_figures(&f);
            CHECK(f.node_reports_dropped > 0);
            CHECK_EQ(f.segment_keys_dropped, 1);
            CHECK(!cluster_node_report_get(u.n, 3, &r));
        }
    }
    CHECK_EQ(last, TARN_ELIMIT);
    CHECK_EQ(taken, 1023);
    CHECK(told() <= CLUSTER_TOLD_MAX);
    free(big);
    util_end();
}

int main(int argc, char **argv) {
    log_set_level(LOG_LEVEL_NOTHING);
    return test_main(argc, argv);
}
