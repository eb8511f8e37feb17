/* How hosts are reached: who is shown which way, and where a node that came over the loopback is
 * for others. */
#include "front.h"
#include "front/reach.h"

static struct client *c;
static int fd;
static uint32_t segment;
static bool direct, may_read, may_write;
static void (*shown)(struct client *c, const struct cluster_segment *g);

static void show_endpoints(struct client *client, const struct cluster_segment *g) {
    reach_reply_endpoints(client, g, direct);
}
static void show_keys(struct client *client, const struct cluster_segment *g) {
    reach_reply_keys(client, g, direct, may_read, may_write);
}
static void show_transports(struct client *client, const struct cluster_segment *g) {
    reach_reply_transports(client, g, direct);
}

static void run_show(struct client *client) {
    struct cluster_segment g;
    CHECK(cluster_segment_get(segment, &g));
    shown(client, &g);
}
static const char *show(void (*how)(struct client *c, const struct cluster_segment *g)) {
    shown = how;
    return say(fd, "PING");
}

/* A node with a segment, two ways to it that need no key, one that does. */
static struct cluster_node *mount(const char *address) {
    struct span endpoints[] = {SPAN("tcp://*:7001"), SPAN("shm:///run/n.sock")};
    struct cluster_key_told keys[] = {
        {.uri = SPAN("far://*:9"), .key = {SPAN("to-read"), SPAN("to-write")}}};
    struct cluster_join join = {.name = SPAN("n1"),
                                .machine = SPAN("m1"),
                                .rack = SPAN(""),
                                .version = SPAN("test"),
                                .address = address,
                                .session = client_next_id()};
    struct cluster_mount mount = {.name = SPAN("n1.0"),
                                  .tier = STORE_TIER_MEMORY,
                                  .size = 1 << 20,
                                  .backing = SPAN("memfd"),
                                  .numa_node = -1,
                                  .endpoints = endpoints,
                                  .n_endpoints = 2,
                                  .keys = keys,
                                  .n_keys = 1};
    struct cluster_mounted mounted;
    struct cluster_node *node;
    const char *why = "";
    tarn_status status = cluster_node_join(&join, &node, &why);
    if (status != TARN_OK) printf("# %s\n", why);
    CHECK_EQ(status, TARN_OK);
    CHECK_EQ(cluster_segment_mount(node, &mount, &mounted, &why), TARN_OK);
    CHECK_EQ(cluster_node_up(node), TARN_OK);
    segment = mounted.id;
    return node;
}

static void begin(void) {
    front_functions[WIRE_ping] = run_show;
    front_begin();
    fd = call(&c);
    direct = may_read = may_write = true;
}

static void end(void) {
    close(fd);
    front_end();
}

TEST(who_may_see_which_way) {
    begin();
    mount("10.0.0.7");
    CHECK_STR(show(show_endpoints), "*2 $19 tcp://10.0.0.7:7001 $17 shm:///run/n.sock");
    CHECK_STR(show(show_keys), "*1 *3 $16 far://10.0.0.7:9 $7 to-read $8 to-write");
    may_write = false;
    CHECK_STR(show(show_keys), "*1 *3 $16 far://10.0.0.7:9 $7 to-read $0 ");
    direct = false; /* what takes a grant for each access, and nothing else */
    CHECK_STR(show(show_endpoints), "*1 $19 tcp://10.0.0.7:7001");
    CHECK_STR(show(show_keys), "*0");
    end();
}

TEST(a_node_that_came_over_the_loopback) {
    begin();
    mount("127.0.0.1");
    CHECK_STR(show(show_endpoints), "*2 $20 tcp://127.0.0.1:7001 $17 shm:///run/n.sock");
    free(front_values.announce_host);
    front_values.announce_host = xstrdup("pool.example");
    CHECK_STR(show(show_endpoints), "*2 $23 tcp://pool.example:7001 $17 shm:///run/n.sock");
    CHECK_STR(show(show_keys), "*1 *3 $20 far://pool.example:9 $7 to-read $8 to-write");
    end();
}

TEST(transports_by_what_was_reported) {
    const char *why = "";
    begin();
    struct cluster_node *node = mount("10.0.0.7");
    CHECK_STR(show(show_transports), "*0");
    CHECK_EQ(cluster_node_report(node, SPAN("far"), SPAN("a device"), &why), TARN_OK);
    CHECK_EQ(cluster_node_report(node, SPAN("near"), SPAN("none"), &why), TARN_OK);
    CHECK_STR(show(show_transports), "*2 $3 far $4 near");
    direct = false;
    CHECK_STR(show(show_transports), "*0");
    end();
}

/* --- for modules --- */

static unsigned told;

static bool see_segment(void *arg, const struct tarn_segment *s) {
    told++;
    CHECK_STR(s->uri, "far://10.0.0.7:9");
    CHECK(strcmp(s->name, "n1.0") == 0 && strcmp(s->node, "n1") == 0 && s->size == 1 << 20);
    CHECK(span_eq(s->key[0], SPAN("to-read")) && span_eq(s->key[1], SPAN("to-write")));
    return false;
}
static bool see_report(void *arg, const char *node, const char *machine, uint64_t age_ms,
                       struct span report) {
    told++;
    CHECK(strcmp(node, "n1") == 0 && strcmp(machine, "m1") == 0);
    CHECK(span_eq(report, SPAN("a device")));
    return true;
}

TEST(walks_over_what_is_of_a_scheme) {
    const char *why = "";
    begin();
    struct cluster_node *node = mount("10.0.0.7");
    told = 0;
    reach_each_segment("near", see_segment, NULL);
    CHECK_EQ(told, 0);
    reach_each_segment("far", see_segment, NULL);
    CHECK_EQ(told, 1);
    reach_each_report("far", see_report, NULL);
    CHECK_EQ(told, 1);
    CHECK_EQ(cluster_node_report(node, SPAN("far"), SPAN("a device"), &why), TARN_OK);
    reach_each_report("far", see_report, NULL);
    CHECK_EQ(told, 2);
    end();
}

TEST_MAIN()
