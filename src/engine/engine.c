#include "engine/engine.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"

enum { KIND_SHM, KIND_RDMA, KIND_TCP, KINDS }; /* the order of preference */

void engine_config_init(struct engine_config *c) {
    *c = (struct engine_config){
        .transport = ENGINE_AUTO,
        .streams = 4,
        .stripe_min = 8u << 20,
        .connect_timeout_ms = 5000,
        .attach_timeout_ms = 1000,
        .idle_close_ms = 60000,
        .verify = true,
    };
}

/* --- the caller's memory --- */

static void memory_tell(struct engine *e, struct engine_memory *m, unsigned kind) {
    struct engine_kind *k = &e->kinds[kind];
    const struct engine_buffer *b = &m->buffer;
    if ((k->flags & TRANSPORT_REGISTERS) == 0 || (b->device && b->fd < 0)) return;
    struct transport_memory_config config = {.addr = b->addr,
                                             .length = b->len,
                                             .fd = b->device ? b->fd : -1,
                                             .fd_read = -1,
                                             .dmabuf = b->device,
                                             .dmabuf_offset = b->offset,
                                             .identity = b->identity};
    tarn_status s = k->ops->memory_register(k->domain, &config, &m->at[kind]);
    if (s != TARN_OK)
        log_warning("%zu bytes could not be registered with %s: %s", b->len, k->ops->scheme,
                    tarn_status_text(s));
}

static void memory_forget(struct engine *e, struct engine_memory *m) {
    for (unsigned i = 0; i < e->n_kinds; i++) {
        if (m->at[i] != NULL) e->kinds[i].ops->memory_deregister(&m->at[i]);
    }
    if (m->buffer.device) {
        e->devices--;
        if (m->buffer.fd >= 0) close(m->buffer.fd);
    }
    LIST_REMOVE(m, link);
    free(m);
}

/* --- kinds --- */

static const char *const kind_scheme[KINDS] = {"shm", "rdma", "tcp"};

/* TARN_ENOTSUP: its module is not loaded. */
static tarn_status kind_open(struct engine *e, unsigned kind) {
    struct engine_kind *k = &e->kinds[kind];
    struct transport_domain_config config = {.tls = e->config.tls};
    tarn_status s = transport_open(kind_scheme[kind], &config, &k->ops, &k->domain);
    if (s != TARN_OK) return s;
    k->flags = k->ops->flags;
    struct engine_memory *m;
    LIST_FOREACH(m, &e->memories, link) memory_tell(e, m, kind);
    return TARN_OK;
}

tarn_status engine_create(const struct engine_config *config, struct engine **engine_p) {
    if (config->streams == 0 || config->streams > ENGINE_STREAMS_MAX ||
        config->connect_timeout_ms == 0 || config->attach_timeout_ms == 0) {
        return TARN_EINVAL;
    }
    transport_register_builtin();
    struct engine *e = xcalloc(1, sizeof(*e));
    e->magic = ENGINE_MAGIC;
    e->config = *config;
    htab_init(&e->segments);
    LIST_INIT(&e->memories);
    static const enum engine_transport names[KINDS] = {ENGINE_SHM, ENGINE_RDMA, ENGINE_TCP};
    static_assert(KINDS <= ENGINE_KINDS_MAX, "kinds");
    e->n_kinds = KINDS;
    for (unsigned i = 0; i < KINDS; i++) {
        e->kinds[i].name = names[i];
        LIST_INIT(&e->kinds[i].targets);
    }
    tarn_status s = kind_open(e, KIND_SHM);
    if (s == TARN_OK) s = kind_open(e, KIND_TCP);
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

const uint8_t *engine_content(const struct engine_seg *seg) {
    static const uint8_t not_known[SEGMENT_CONTENT_SIZE];
    return memcmp(seg->content, not_known, sizeof(not_known)) != 0 ? seg->content : NULL;
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

static void walk(struct engine *e, void (*fn)(void *arg, struct htab_node *node),
                 struct seg_walk *w) {
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
    while (!LIST_EMPTY(&e->memories)) memory_forget(e, LIST_FIRST(&e->memories));
    for (unsigned i = 0; i < e->n_kinds; i++) {
        TARN_ASSERT(LIST_EMPTY(&e->kinds[i].targets));
        if (e->kinds[i].ops != NULL) transport_close(e->kinds[i].ops, &e->kinds[i].domain);
    }
    htab_free(&e->segments);
    e->magic = 0;
    free(e);
}

static void make_uris(const struct engine *e, const struct engine_segment *s, char *tcp, char *shm,
                      size_t size) {
    bool reached = !s->tcp_tls || e->config.tls != NULL;
    tcp[0] = shm[0] = '\0';
    if (s->tcp_host != NULL && s->tcp_host[0] != '\0' && s->tcp_port != 0 && reached) {
        bool brackets = strchr(s->tcp_host, ':') != NULL && s->tcp_host[0] != '[';
        snprintf(tcp, size, brackets ? "%s://[%s]:%u" : "%s://%s:%u", s->tcp_tls ? "tcps" : "tcp",
                 s->tcp_host, s->tcp_port);
    }
    if (s->shm_path != NULL && s->shm_path[0] != '\0') snprintf(shm, size, "shm://%s", s->shm_path);
}

/* Masters make their epochs of the time: two that were started at the same time, or after a clock
 * was set back, may give out the same one. Memory that was mapped of a process that is gone never
 * changes, so its header cannot tell. */
static bool is_other_content(const struct engine_seg *seg, const struct engine_segment *segment) {
    return segment->content != NULL &&
           memcmp(seg->content, segment->content, sizeof(seg->content)) != 0;
}

tarn_status engine_segment_set(struct engine *e, const struct engine_segment *segment) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    char tcp[400], shm[400];
    make_uris(e, segment, tcp, shm, sizeof(tcp));
    struct engine_seg *seg = engine_find(e, segment->id);
    if (seg == NULL) {
        seg = xcalloc(1, sizeof(*seg));
        seg->id = segment->id;
        htab_insert(&e->segments, &seg->node, hash_u64(seg->id));
    } else if (seg->epoch != segment->epoch || seg->size != segment->size ||
               is_other_content(seg, segment)) {
        for (unsigned i = 0; i < e->n_kinds; i++) engine_route_clear(e, seg, i);
    }
    seg->epoch = segment->epoch;
    seg->size = segment->size;
    seg->current = true;
    if (segment->content != NULL) memcpy(seg->content, segment->content, sizeof(seg->content));
    struct engine_way way = {.uri = shm[0] != '\0' ? shm : NULL,
                             .attach = {segment->attach_read, segment->attach_write}};
    engine_route_set(e, seg, KIND_SHM, &way);
    way.uri = segment->rdma_uri;
    for (int w = 0; w < 2; w++) {
        way.packed[w] = segment->rdma_key[w];
        way.packed_len[w] = segment->rdma_key_len[w];
        if (way.packed[w] == NULL || way.packed_len[w] == 0) way.attach[w] = NULL;
    }
    if (way.uri != NULL && e->kinds[KIND_RDMA].ops == NULL) (void)kind_open(e, KIND_RDMA);
    if (e->kinds[KIND_RDMA].ops != NULL) engine_route_set(e, seg, KIND_RDMA, &way);
    engine_route_set(e, seg, KIND_TCP, &(struct engine_way){.uri = tcp[0] != '\0' ? tcp : NULL});
    return TARN_OK;
}

bool engine_segment_known(const struct engine *e, uint32_t id, uint32_t epoch) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    const struct engine_seg *seg = engine_find(e, id);
    return seg != NULL && seg->current && seg->epoch == epoch;
}

static bool leads_to(const struct engine_seg *seg, unsigned kind, const char *uri) {
    const struct engine_target *t = seg->routes[kind].target;
    return t != NULL ? strcmp(t->uri, uri) == 0 : uri[0] == '\0';
}

bool engine_segment_same(const struct engine *e, const struct engine_segment *segment) {
    char tcp[400], shm[400];
    if (!engine_segment_known(e, segment->id, segment->epoch)) return false;
    const struct engine_seg *seg = engine_find(e, segment->id);
    make_uris(e, segment, tcp, shm, sizeof(tcp));
    if (seg->size != segment->size || !leads_to(seg, KIND_SHM, shm) ||
        !leads_to(seg, KIND_TCP, tcp))
        return false;
    const struct engine_route *r = &seg->routes[KIND_RDMA];
    if (segment->rdma_uri == NULL || transport_find("rdma") == NULL) return r->target == NULL;
    if (!leads_to(seg, KIND_RDMA, segment->rdma_uri)) return false;
    for (int w = 0; w < 2; w++) {
        size_t len = segment->rdma_key[w] != NULL ? segment->rdma_key_len[w] : 0;
        if (r->packed_len[w] != len ||
            (len > 0 && memcmp(r->packed[w], segment->rdma_key[w], len) != 0))
            return false;
    }
    return true;
}

void engine_session_changed(struct engine *e) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    struct seg_walk w = {.e = e};
    walk(e, forget_session, &w);
    /* A connection belongs to the session whose grants it showed. */
    for (unsigned i = 0; i < e->n_kinds; i++) {
        struct engine_kind *k = &e->kinds[i];
        if ((k->flags & TRANSPORT_GRANTED) == 0) continue;
        struct engine_target *t;
        LIST_FOREACH(t, &k->targets, link) {
            for (unsigned s = 0; s < ENGINE_STREAMS_MAX; s++)
                engine_stream_close(k, &t->streams[s]);
        }
    }
}

/* --- direct access --- */

/* The mapping of the best transport that has one. NULL: none does. */
static struct transport_key *mapped_key(struct engine *e, struct engine_seg *seg, bool writable,
                                        unsigned *kind_p) {
    uint64_t now_ms = clock_boot_ms();
    for (unsigned i = 0; i < e->n_kinds; i++) {
        struct engine_kind *k = &e->kinds[i];
        struct engine_route *r = &seg->routes[i];
        if ((k->flags & TRANSPORT_MAP) == 0 || r->target == NULL || r->bad_until_ms > now_ms)
            continue;
        struct transport_key *key;
        tarn_status s = engine_route_key(e, seg, i, writable, true, 0, &key);
        *kind_p = i;
        if (s == TARN_OK && k->ops->key_check(key) == TARN_OK) return key;
        engine_route_failed(e, seg, i, s == TARN_OK ? TARN_ESTALE : s, now_ms);
    }
    return NULL;
}

static struct engine_seg *find_mappable(struct engine *e, uint32_t segment,
                                        uint32_t segment_epoch) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    struct engine_seg *seg = engine_find(e, segment);
    bool may = e->config.transport == ENGINE_AUTO || e->config.transport == ENGINE_SHM;
    return seg != NULL && seg->epoch == segment_epoch && may ? seg : NULL;
}

void *engine_map(struct engine *e, uint32_t segment, uint32_t segment_epoch, uint64_t offset,
                 uint64_t length, bool writable) {
    unsigned kind;
    struct engine_seg *seg = find_mappable(e, segment, segment_epoch);
    struct transport_key *key = seg != NULL ? mapped_key(e, seg, writable, &kind) : NULL;
    void *at = key != NULL ? e->kinds[kind].ops->key_map(key, offset, length) : NULL;
    if (at == NULL) return NULL;
    struct engine_route *r = &seg->routes[kind];
    r->lent[key == r->keys[1]] = (const char *)at - offset;
    return at;
}

bool engine_attach(struct engine *e, uint32_t segment, uint32_t segment_epoch, bool writable) {
    unsigned kind;
    struct engine_seg *seg = find_mappable(e, segment, segment_epoch);
    if (seg != NULL && mapped_key(e, seg, writable, &kind) != NULL) return true;
    /* Attach grants do not last: what else wants one takes it now. */
    uint64_t now_ms = clock_boot_ms();
    seg = engine_find(e, segment);
    if (seg == NULL || seg->epoch != segment_epoch) return false;
    kind = engine_route_choose(e, seg, writable, NULL, now_ms);
    if (kind == e->n_kinds || (e->kinds[kind].flags & (TRANSPORT_GRANTED | TRANSPORT_MAP)) != 0)
        return false;
    struct transport_key *key;
    tarn_status s = engine_route_key(e, seg, kind, writable, false, 0, &key);
    if (s != TARN_OK) engine_route_failed(e, seg, kind, s, now_ms);
    return false;
}

tarn_status engine_check(struct engine *e, uint32_t segment, uint32_t segment_epoch,
                         const void *at) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    struct engine_seg *seg = engine_find(e, segment);
    if (seg == NULL || seg->epoch != segment_epoch) return TARN_ESTALE;
    const struct engine_kind *k;
    bool retired;
    struct transport_key *key = engine_route_key_at(e, seg, at, &k, &retired);
    if (key != NULL && k->ops->key_check(key) == TARN_OK) return TARN_OK;
    e->stats.epoch_misses++;
    if (key != NULL && !retired)
        engine_route_failed(e, seg, (unsigned)(k - e->kinds), TARN_ESTALE, clock_boot_ms());
    return TARN_ESTALE;
}

bool engine_lent(const struct engine *e, uint32_t segment, const void *at, const void **start_p,
                 uint64_t *size_p, bool *current_p) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    const struct engine_seg *seg = engine_find(e, segment);
    bool retired = false;
    uint64_t size = 0;
    const void *start = seg != NULL ? engine_route_lent(e, seg, at, &size, &retired) : NULL;
    if (start == NULL) return false;
    *start_p = start;
    *size_p = size;
    *current_p = !retired;
    return true;
}

void engine_views_left(struct engine *e, bool (*used)(void *arg, const void *start, uint64_t size),
                       void *arg) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    engine_route_free_unused(e, used, arg);
}

struct engine_memory *engine_memory_at(const struct engine *e, const void *addr, size_t len) {
    struct engine_memory *m;
    LIST_FOREACH(m, &e->memories, link) {
        const char *at = m->buffer.addr;
        if ((const char *)addr < at + m->buffer.len && at < (const char *)addr + len) return m;
    }
    return NULL;
}

tarn_status engine_register(struct engine *e, const struct engine_buffer *b) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    if (b->addr == NULL || b->len == 0 || (uintptr_t)b->addr + b->len < (uintptr_t)b->addr)
        return TARN_EINVAL;
    if (engine_memory_at(e, b->addr, b->len) != NULL) return TARN_EEXISTS;
    struct engine_memory *m = xcalloc(1, sizeof(*m));
    m->buffer = *b;
    if (b->device) {
        m->buffer.fd = fcntl(b->fd, F_DUPFD_CLOEXEC, 0); /* -1: no kind can have it */
        e->devices++;
        /* There is no other way for it: the module need not wait for a segment that offers it. */
        if (e->kinds[KIND_RDMA].ops == NULL) (void)kind_open(e, KIND_RDMA);
    }
    LIST_INSERT_HEAD(&e->memories, m, link);
    bool any = false;
    for (unsigned i = 0; i < e->n_kinds; i++) {
        if (e->kinds[i].ops != NULL && m->at[i] == NULL) memory_tell(e, m, i);
        any |= m->at[i] != NULL;
    }
    /* A device's stays known even so: the CPU must not touch it, and operations on it have to
     * fail. */
    return any || !b->device ? TARN_OK : TARN_ENOTSUP;
}

tarn_status engine_unregister(struct engine *e, void *addr) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    struct engine_memory *m = addr != NULL ? engine_memory_at(e, addr, 1) : NULL;
    if (m == NULL || m->buffer.addr != addr) return TARN_ENOTFOUND;
    memory_forget(e, m);
    return TARN_OK;
}

void engine_rest(struct engine *e) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    engine_route_reap(e, clock_boot_ms(), e->config.idle_close_ms);
    for (unsigned i = 0; i < e->n_kinds; i++) {
        struct engine_kind *k = &e->kinds[i];
        /* Connections that a transport keeps behind its keys are closed by itself, when they are
         * idle or lost. */
        bool own = (k->flags & (TRANSPORT_REMOTE | TRANSPORT_GRANTED)) == TRANSPORT_REMOTE;
        if (own && k->outstanding == 0) (void)k->ops->progress(k->domain, 1);
    }
}

void engine_get_stats(const struct engine *e, struct engine_stats *stats_p) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    *stats_p = e->stats;
}
