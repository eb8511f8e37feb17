/* A cluster on real books, driven by hand: time is a number, nodes are what the test says they
 * are. */
#ifndef TARN_TESTS_CLUSTER_UTIL_H
#define TARN_TESTS_CLUSTER_UTIL_H

#include "../test.h"

#include "base/log.h"
#include "cluster/internal.h"

static struct store *util_store;
static uint64_t util_now, util_token;

static inline void util_awaits(void *arg, uint32_t far) {
    cluster_on_awaits(far);
}
static inline uint64_t util_disk_wait(void *arg, uint32_t far, uint64_t hash, uint64_t bytes) {
    return cluster_disk_wait(far, hash, bytes);
}
static inline void util_fence(void *arg, uint64_t session) {
    cluster_on_fence(session);
}
static inline void util_far_gone(void *arg, struct span key, uint64_t version, uint32_t segment,
                                 uint64_t offset) {
    cluster_on_far_gone(key, version, segment, offset);
}
static inline void util_segment_gone(void *arg, uint32_t id) {
    cluster_on_segment_gone(id);
}

static inline void util_begin(void (*change)(struct cluster_config *c)) {
    static const struct store_events events = {.awaits = util_awaits,
                                               .disk_wait = util_disk_wait,
                                               .fence = util_fence,
                                               .far_gone = util_far_gone,
                                               .segment_gone = util_segment_gone};
    struct store_config sc;
    struct cluster_config cc;
    store_config_init(&sc);
    sc.high_watermark = 1;
    util_now = 1000;
    util_store = store_create(&sc, &events, "lru", "offset", util_now, 5000000);
    CHECK(util_store != NULL);
    cluster_config_init(&cc);
    if (change != NULL) change(&cc);
    struct cluster_options options = {
        .store = util_store, .master_epoch = 100, .machine = "master", .mono_ms = util_now};
    cluster_init(&options, &cc);
}

static inline void util_end(void) {
    store_check(util_store);
    cluster_check();
    cluster_deinit();
    store_destroy(&util_store);
}

/* All that is due, in small slices, as the loop would do it. */
static inline void util_run(void) {
    bool more = true;
    for (int i = 0; more; i++) {
        unsigned a = 50, b = 50;
        CHECK(i < 100000);
        more = store_background(util_store, &a);
        more |= cluster_background(&b);
        more |= store_next_ms(util_store, 1) == 0 || cluster_next_ms(1) == 0;
    }
    cluster_check();
}

static inline void util_tick(uint64_t ms) {
    /* Not in one leap: heartbeats come in between. */
    util_now += ms;
    store_tick(util_store, util_now, 5000000 + util_now);
    cluster_tick(util_now);
    util_run();
}

/* --- nodes --- */

struct util_node {
    const char *name, *machine;
    uint8_t instance[16];
    uint64_t session;
    struct cluster_node *n;
};

static inline tarn_status util_join_as(struct util_node *u, uint8_t instance, uint64_t session) {
    const char *why = "";
    memset(u->instance, instance, sizeof(u->instance));
    u->session = session;
    struct cluster_join j = {.name = span_str(u->name),
                             .machine = span_str(u->machine),
                             .rack = span_str(u->machine[0] == 'a' ? "rack-a" : ""),
                             .address = "10.0.0.1",
                             .session = session};
    memcpy(j.instance, u->instance, sizeof(j.instance));
    return cluster_node_join(&j, &u->n, &why);
}

static inline struct cluster_mounted util_mount(struct util_node *u, const char *name,
                                                enum store_tier tier, uint64_t size,
                                                uint8_t content) {
    static const struct span endpoints[] = {{"tcp://*:7000", 12}, {"shm:///run/x.sock", 17}};
    const char *why = "";
    struct cluster_mounted mounted;
    struct cluster_mount m = {.name = span_str(name),
                              .tier = tier,
                              .size = size,
                              .backing = SPAN("memfd"),
                              .numa_node = -1,
                              .endpoints = endpoints,
                              .n_endpoints = 2};
    if (tier == STORE_TIER_FILE) m.directory = SPAN("/mnt/pool");
    memset(m.content, content, sizeof(m.content));
    CHECK_EQ(cluster_segment_mount(u->n, &m, &mounted, &why), TARN_OK);
    return mounted;
}

/* Joins, mounts "name.0" with that content, comes up. */
static inline uint32_t util_up_with(struct util_node *u, uint8_t instance, uint64_t session,
                                    uint64_t pages, uint8_t content) {
    char segment[64];
    snprintf(segment, sizeof(segment), "%.60s.0", u->name);
    CHECK_EQ(util_join_as(u, instance, session), TARN_OK);
    uint32_t id = util_mount(u, segment, STORE_TIER_MEMORY, pages * 4096, content).id;
    CHECK_EQ(cluster_node_up(u->n), TARN_OK);
    return id;
}

static inline uint32_t util_up(struct util_node *u, uint64_t pages) {
    static uint64_t session = 1000;
    return util_up_with(u, 1, session++, pages, 1);
}

static inline bool util_beat(struct util_node *u) {
    u->n = cluster_node_alive(span_str(u->name), u->instance);
    return u->n != NULL;
}

static inline bool util_work(struct util_node *u, struct cluster_work *w) {
    unsigned budget = 1000;
    return cluster_work_next(u->n, w, &budget);
}

static inline enum store_segment_state util_state(uint32_t id) {
    struct store_segment_info info;
    CHECK(store_segment_get(util_store, id, &info));
    return info.state;
}

static inline bool util_there(uint32_t id, uint32_t epoch) {
    struct cluster_segment g;
    return cluster_segment_get(id, &g) && g.epoch == epoch;
}

/* --- objects --- */

static inline tarn_status util_open_put(const char *key, uint64_t size, uint32_t replicas,
                                        const char *prefer, uint64_t session,
                                        struct store_put **put_p) {
    struct store_batch b;
    struct span name = span_str(prefer != NULL ? prefer : "");
    struct store_put_options o = {
        .replicas = replicas, .prefer = &name, .prefers = prefer != NULL, .host = STORE_HOST_NONE};
    unsigned budget = 1000000;
    store_batch_begin(util_store, &b, NULL, STORE_BATCH_PUT, 1);
    tarn_status st =
        store_put_start(util_store, &b, span_str(key), size, &o, session, &budget, put_p);
    if (st == TARN_OK) util_token = store_put_token(*put_p);
    return st;
}

static inline tarn_status util_put_n(const char *key, uint64_t size, uint32_t replicas,
                                     const char *prefer, int64_t crc) {
    struct store_put *put;
    tarn_status st = util_open_put(key, size, replicas, prefer, 1, &put);
    if (st != TARN_OK) return st;
    return store_put_end(util_store, span_str(key), util_token, crc, 0, NULL, 0, NULL);
}

static inline tarn_status util_put(const char *key, uint64_t size, const char *prefer) {
    return util_put_n(key, size, 1, prefer, 7);
}

static inline struct object *util_find(const char *key) {
    return store_find(util_store, span_str(key));
}

/* "n1.0+n2.0" in the order of the books; "" for a miss. */
static inline const char *util_where(const char *key) {
    static char text[512];
    struct store_layout l;
    struct object *o = util_find(key);
    text[0] = '\0';
    if (o == NULL) return text;
    store_object_layout(util_store, o, &l);
    for (uint32_t i = 0; i < l.replicas; i++) {
        struct store_segment_info info;
        if (l.replica[i].extents == 0) continue;
        CHECK(store_segment_get(util_store, l.replica[i].extent[0].segment, &info));
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", text[0] ? "+" : "",
                 info.name);
    }
    return text;
}

static inline struct object *util_read(const char *key) {
    struct store_batch b;
    store_batch_begin(util_store, &b, NULL, STORE_BATCH_READ, 1);
    struct object *o = util_find(key);
    if (o == NULL) return NULL;
    store_batch_hit(util_store, &b, o, store_hash(store_object_key(o)));
    cluster_hit(o, false);
    return o;
}

static inline uint64_t util_version(const char *key) {
    struct object *o = util_find(key);
    CHECK(o != NULL);
    return store_object_version(o);
}

static inline struct cluster_figures util_figures(void) {
    struct cluster_figures f;
    cluster_get_figures(&f);
    return f;
}

/* What the list says of a task. */
struct util_task {
    uint64_t id;
    bool found;
    struct cluster_task_info info;
};
static inline bool util_task_fn(void *arg, const struct cluster_task_info *info) {
    struct util_task *t = arg;
    if (info->id != t->id) return true;
    t->info = *info;
    t->found = true;
    return false;
}
static inline struct cluster_task_info util_task(uint64_t id) {
    struct util_task t = {.id = id};
    cluster_tasks_each(0, util_task_fn, &t);
    CHECK(t.found);
    return t.info;
}

#endif
