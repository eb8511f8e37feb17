#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"

enum { KIND_SHM, KIND_TCP }; /* the order of preference */

void engine_config_init(struct engine_config *c) {
    *c = (struct engine_config){
        .transport = ENGINE_AUTO,
        .streams = 4,
        .stripe_min = 8u << 20,
        .connect_timeout_ms = 5000,
        .idle_close_ms = 60000,
        .verify = true,
    };
}

static tarn_status kind_open(struct engine *e, enum engine_transport name, const char *scheme) {
    struct engine_kind *k = &e->kinds[e->n_kinds];
    k->name = name;
    k->ops = transport_find(scheme);
    TARN_ASSERT(k->ops != NULL);
    LIST_INIT(&k->targets);
    struct transport_domain_config config = {0};
    tarn_status s = k->ops->domain_open(&config, &k->domain);
    if (s != TARN_OK) return s;
    k->ops->domain_query(k->domain, &k->limits);
    e->n_kinds++;
    return TARN_OK;
}

tarn_status engine_create(const struct engine_config *config, struct engine **engine_p) {
    if (config->streams == 0 || config->streams > ENGINE_STREAMS_MAX || config->connect_timeout_ms == 0) {
        return TARN_EINVAL;
    }
    transport_register_builtin();
    struct engine *e = xcalloc(1, sizeof(*e));
    e->magic = ENGINE_MAGIC;
    e->config = *config;
    htab_init(&e->segments);
    tarn_status s = kind_open(e, ENGINE_SHM, "shm");
    if (s == TARN_OK) s = kind_open(e, ENGINE_TCP, "tcp");
    if (s != TARN_OK) {
        engine_destroy(&e);
        return s;
    }
    *engine_p = e;
    return TARN_OK;
}

/* --- segments --- */

static bool seg_eq(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, const struct engine_seg, node)->id == *(const uint32_t *)key;
}

struct engine_seg *engine_find(const struct engine *e, uint32_t id) {
    struct htab_node *node = htab_find(&e->segments, hash_u64(id), seg_eq, &id);
    return node != NULL ? CONTAINER_OF(node, struct engine_seg, node) : NULL;
}

struct seg_walk {
    struct engine *e;
    struct engine_seg *list;
};

static void forget_session(void *arg, struct htab_node *node) {
    struct seg_walk *w = arg;
    struct engine_seg *seg = CONTAINER_OF(node, struct engine_seg, node);
    seg->current = false;
    for (unsigned i = 0; i < w->e->n_kinds; i++) {
        engine_route_close_key(w->e, seg, i, true);
        seg->routes[i].may_attach[0] = seg->routes[i].may_attach[1] = false;
    }
}

static void collect(void *arg, struct htab_node *node) {
    struct seg_walk *w = arg;
    struct engine_seg *seg = CONTAINER_OF(node, struct engine_seg, node);
    seg->next_free = w->list;
    w->list = seg;
}

static void walk(struct engine *e, void (*fn)(void *arg, struct htab_node *node), struct seg_walk *w) {
    uint64_t cursor = 0;
    do {
        cursor = htab_scan(&e->segments, cursor, fn, w);
    } while (cursor != 0);
}

void engine_destroy(struct engine **engine_p) {
    struct engine *e = *engine_p;
    if (e == NULL) return;
    MAGIC_CHECK(e, ENGINE_MAGIC);
    *engine_p = NULL;
    struct seg_walk w = {.e = e};
    walk(e, collect, &w);
    while (w.list != NULL) {
        struct engine_seg *seg = w.list;
        w.list = seg->next_free;
        for (unsigned i = 0; i < e->n_kinds; i++) engine_route_clear(e, seg, i);
        free(seg);
    }
    engine_route_free_retired(e);
    for (unsigned i = 0; i < e->n_kinds; i++) {
        TARN_ASSERT(LIST_EMPTY(&e->kinds[i].targets));
        e->kinds[i].ops->domain_close(&e->kinds[i].domain);
    }
    htab_free(&e->segments);
    e->magic = 0;
    free(e);
}

static void make_uris(const struct engine_segment *s, char *tcp, char *shm, size_t size) {
    tcp[0] = shm[0] = '\0';
    if (s->tcp_host != NULL && s->tcp_host[0] != '\0' && s->tcp_port != 0) {
        bool brackets = strchr(s->tcp_host, ':') != NULL && s->tcp_host[0] != '[';
        snprintf(tcp, size, brackets ? "tcp://[%s]:%u" : "tcp://%s:%u", s->tcp_host, s->tcp_port);
    }
    if (s->shm_path != NULL && s->shm_path[0] != '\0') snprintf(shm, size, "shm://%s", s->shm_path);
}

tarn_status engine_segment_set(struct engine *e, const struct engine_segment *segment) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    char tcp[400], shm[400];
    make_uris(segment, tcp, shm, sizeof(tcp));
    struct engine_seg *seg = engine_find(e, segment->id);
    if (seg == NULL) {
        seg = xcalloc(1, sizeof(*seg));
        seg->id = segment->id;
        htab_insert(&e->segments, &seg->node, hash_u64(seg->id));
    } else if (seg->epoch != segment->epoch || seg->size != segment->size) {
        for (unsigned i = 0; i < e->n_kinds; i++) engine_route_clear(e, seg, i);
    }
    seg->epoch = segment->epoch;
    seg->size = segment->size;
    seg->current = true;
    engine_route_set(e, seg, KIND_SHM, shm[0] != '\0' ? shm : NULL, segment->attach_read,
                     segment->attach_write);
    engine_route_set(e, seg, KIND_TCP, tcp[0] != '\0' ? tcp : NULL, NULL, NULL);
    return TARN_OK;
}

bool engine_segment_known(const struct engine *e, uint32_t id, uint32_t epoch) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    const struct engine_seg *seg = engine_find(e, id);
    return seg != NULL && seg->current && seg->epoch == epoch;
}

void engine_session_changed(struct engine *e) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    struct seg_walk w = {.e = e};
    walk(e, forget_session, &w);
    /* A connection belongs to the session whose grants it showed. */
    for (unsigned i = 0; i < e->n_kinds; i++) {
        struct engine_kind *k = &e->kinds[i];
        if ((k->limits.flags & TRANSPORT_GRANTED) == 0) continue;
        struct engine_target *t;
        LIST_FOREACH(t, &k->targets, link) {
            for (unsigned s = 0; s < ENGINE_STREAMS_MAX; s++) engine_stream_close(k, &t->streams[s]);
        }
    }
}

/* --- direct access --- */

void *engine_map(struct engine *e, uint32_t segment, uint32_t segment_epoch, uint64_t offset, uint64_t length,
                 bool writable) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    struct engine_seg *seg = engine_find(e, segment);
    if (seg == NULL || seg->epoch != segment_epoch || e->config.transport == ENGINE_TCP) return NULL;
    uint64_t now_ms = clock_boot_ms();
    for (unsigned i = 0; i < e->n_kinds; i++) {
        struct engine_kind *k = &e->kinds[i];
        struct engine_route *r = &seg->routes[i];
        if ((k->limits.flags & TRANSPORT_MAP) == 0 || r->target == NULL || r->bad_until_ms > now_ms) continue;
        struct transport_key *key;
        tarn_status s = engine_route_key(e, seg, i, writable, 0, &key);
        if (s == TARN_OK && k->ops->key_check(key) == TARN_OK) return k->ops->key_map(key, offset, length);
        engine_route_failed(e, seg, i, s == TARN_OK ? TARN_ESTALE : s, now_ms);
    }
    return NULL;
}

tarn_status engine_check_epoch(struct engine *e, uint32_t segment, uint32_t segment_epoch) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    struct engine_seg *seg = engine_find(e, segment);
    if (seg == NULL || seg->epoch != segment_epoch) return TARN_ESTALE;
    for (unsigned i = 0; i < e->n_kinds; i++) {
        for (int w = 0; w < 2; w++) {
            struct transport_key *key = seg->routes[i].keys[w];
            if (key == NULL || e->kinds[i].ops->key_check(key) == TARN_OK) continue;
            engine_route_failed(e, seg, i, TARN_ESTALE, clock_boot_ms());
            e->stats.epoch_misses++;
            return TARN_ESTALE;
        }
    }
    return TARN_OK;
}

tarn_status engine_register(struct engine *e, void *addr, size_t len) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    return addr != NULL && len > 0 ? TARN_OK : TARN_EINVAL; /* nothing that is built in gains by it */
}

tarn_status engine_unregister(struct engine *e, void *addr) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    return addr != NULL ? TARN_OK : TARN_EINVAL;
}

void engine_get_stats(const struct engine *e, struct engine_stats *stats_p) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    *stats_p = e->stats;
}
