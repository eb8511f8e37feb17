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

void engine_config_init(struct engine_config *c) {
    *c = (struct engine_config){
        .streams = 4,
        .stripe_min = 8u << 20,
        .connect_timeout_ms = 5000,
        .attach_timeout_ms = 1000,
        .idle_close_ms = 60000,
    };
}

/* --- the caller's memory --- */

static void memory_tell(struct engine_memory *m, struct engine_kind *k) {
    const struct engine_buffer *b = &m->buffer;
    if ((k->flags & TRANSPORT_REGISTERS) == 0 || (b->device && b->fd < 0)) return;
    struct transport_memory_config config = {.addr = b->address,
                                             .length = b->len,
                                             .fd = b->device ? b->fd : -1,
                                             .fd_read = -1,
                                             .dmabuf = b->device,
                                             .dmabuf_offset = b->offset,
                                             .identity = b->identity};
    tarn_status s = k->ops->memory_register(k->domain, &config, &m->at[k->slot]);
    if (s != TARN_OK)
        log_warning("%zu bytes could not be registered with %s: %s", b->len, k->ops->scheme,
                    tarn_status_text(s));
}

static void memory_forget(struct engine *e, struct engine_memory *m) {
    for (unsigned i = 0; i < e->n_open; i++) {
        struct engine_kind *k = e->open[i];
        if (m->at[k->slot] != NULL) k->ops->memory_deregister(&m->at[k->slot]);
    }
    if (m->buffer.device) {
        e->devices--;
        if (m->buffer.fd >= 0) close(m->buffer.fd);
    }
    LIST_REMOVE(m, link);
    free(m);
}

/* --- kinds --- */

static void kind_insert(struct engine *e, struct engine_kind *k) {
    unsigned at = e->n_open++;
    for (; at > 0 && e->open[at - 1]->ops->cost > k->ops->cost; at--) e->open[at] = e->open[at - 1];
    e->open[at] = k;
}

/* NULL: it may not be used, or its module is not loaded, or cannot serve. */
static struct engine_kind *kind_get(struct engine *e, unsigned slot) {
    struct engine_kind *k = &e->kinds[slot];
    const char *scheme = transport_name(slot), *only = e->config.transport;
    if (k->ops != NULL) return k;
    if (only != NULL && strcmp(only, scheme) != 0) return NULL;
    struct transport_domain_config config = {.tls = e->config.tls};
    if (transport_open(scheme, &config, &k->ops, &k->domain) != TARN_OK) return NULL;
    k->slot = slot;
    k->flags = k->ops->flags;
    kind_insert(e, k);
    struct engine_memory *m;
    LIST_FOREACH(m, &e->memories, link) memory_tell(m, k);
    return k;
}

tarn_status engine_create(const struct engine_config *config, struct engine **engine_p) {
    if (config->streams == 0 || config->streams > ENGINE_STREAMS_MAX ||
        config->connect_timeout_ms == 0 || config->attach_timeout_ms == 0) {
        return TARN_EINVAL;
    }
    struct engine *e = xcalloc(1, sizeof(*e));
    e->magic = ENGINE_MAGIC;
    e->config = *config;
    spin_set(&e->spin, config->busy_poll_us);
    LIST_INIT(&e->memories);
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

static void clear_routes(struct engine *e, struct engine_seg *seg) {
    for (unsigned i = 0; i < e->n_open; i++) engine_route_clear(e, seg, e->open[i]);
}

void engine_destroy(struct engine **engine_p) {
    struct engine *e = *engine_p;
    if (e == NULL) return;
    MAGIC_CHECK(e, ENGINE_MAGIC);
    *engine_p = NULL;
    struct engine_seg *seg;
    while ((seg = LIST_TAKE(&e->segs, link)) != NULL) {
        clear_routes(e, seg);
        free(seg);
    }
    engine_views_left(e, NULL, NULL);
    while (!LIST_EMPTY(&e->memories)) memory_forget(e, LIST_FIRST(&e->memories));
    for (unsigned i = 0; i < e->n_open; i++) {
        TARN_ASSERT(LIST_EMPTY(&e->open[i]->targets));
        transport_close(e->open[i]->ops, &e->open[i]->domain);
    }
    htab_free(&e->segments);
    e->magic = 0;
    free(e);
}

struct engine_way *engine_segment_way(struct engine_segment *s, const char *uri) {
    const struct transport_ops *t = transport_find(uri);
    if (t == NULL || (!s->same_host && (t->flags & TRANSPORT_REMOTE) == 0)) return NULL;
    struct engine_way *way = &s->way[transport_slot(t)];
    if (way->uri != NULL) return NULL;
    way->uri = uri;
    return way;
}

/* Opens it where that is due. NULL: the segment is not reached by it from here. */
static struct engine_kind *kind_of_way(struct engine *e, const struct engine_segment *s,
                                       unsigned slot) {
    const char *uri = s->way[slot].uri;
    if (uri == NULL || (e->config.tls == NULL && transport_is_secure(uri))) return NULL;
    return kind_get(e, slot);
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
    struct engine_seg *seg = engine_find(e, segment->id);
    if (seg == NULL) {
        seg = xcalloc(1, sizeof(*seg));
        seg->id = segment->id;
        htab_insert(&e->segments, &seg->node, hash_u64(seg->id));
        LIST_INSERT_HEAD(&e->segs, seg, link);
    } else if (seg->epoch != segment->epoch || seg->size != segment->size ||
               is_other_content(seg, segment)) {
        clear_routes(e, seg);
    }
    seg->epoch = segment->epoch;
    seg->size = segment->size;
    seg->current = true;
    if (segment->content != NULL) memcpy(seg->content, segment->content, sizeof(seg->content));
    for (int w = 0; w < 2; w++) {
        seg->may_attach[w] = segment->attach[w] != NULL;
        if (segment->attach[w] != NULL) memcpy(seg->attach[w], segment->attach[w], GRANT_SIZE);
    }
    for (unsigned slot = 0; slot < TRANSPORTS_MAX; slot++) {
        struct engine_kind *k = kind_of_way(e, segment, slot);
        if (k != NULL)
            engine_route_set(e, seg, k, &segment->way[slot]);
        else if (seg->routes[slot].target != NULL)
            engine_route_clear(e, seg, &e->kinds[slot]);
    }
    return TARN_OK;
}

bool engine_segment_known(const struct engine *e, uint32_t id, uint32_t epoch) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    const struct engine_seg *seg = engine_find(e, id);
    return seg != NULL && seg->current && seg->epoch == epoch;
}

bool engine_segment_same(struct engine *e, const struct engine_segment *segment) {
    if (!engine_segment_known(e, segment->id, segment->epoch)) return false;
    const struct engine_seg *seg = engine_find(e, segment->id);
    if (seg->size != segment->size) return false;
    for (unsigned slot = 0; slot < TRANSPORTS_MAX; slot++) {
        const struct engine_route *r = &seg->routes[slot];
        const struct engine_way *way = &segment->way[slot];
        bool leads = kind_of_way(e, segment, slot) != NULL;
        if (leads != (r->target != NULL)) return false;
        if (!leads) continue;
        if (strcmp(r->target->uri, way->uri) != 0) return false;
        for (int w = 0; w < 2; w++)
            if (!span_eq(span_of(r->packed[w], r->packed_len[w]), way->key[w])) return false;
    }
    return true;
}

void engine_session_changed(struct engine *e) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    struct engine_seg *seg;
    LIST_FOREACH(seg, &e->segs, link) {
        seg->current = seg->may_attach[0] = seg->may_attach[1] = false;
        for (unsigned i = 0; i < e->n_open; i++) engine_route_close_key(e, seg, e->open[i], true);
    }
    /* A connection belongs to the session whose grants it showed. */
    for (unsigned i = 0; i < e->n_open; i++) {
        struct engine_kind *k = e->open[i];
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
                                        struct engine_kind **kind_p) {
    uint64_t now_ms = clock_boot_ms();
    for (unsigned i = 0; i < e->n_open; i++) {
        struct engine_kind *k = e->open[i];
        struct engine_route *r = &seg->routes[k->slot];
        if ((k->flags & TRANSPORT_MAP) == 0 || r->target == NULL || r->bad_until_ms > now_ms)
            continue;
        struct transport_key *key;
        tarn_status s = engine_route_key(e, seg, k, writable, true, 0, &key);
        *kind_p = k;
        if (s == TARN_OK && k->ops->key_check(key) == TARN_OK) return key;
        engine_route_failed(e, seg, k, s == TARN_OK ? TARN_ESTALE : s, now_ms);
    }
    return NULL;
}

static struct engine_seg *find_current(struct engine *e, uint32_t segment, uint32_t segment_epoch) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    struct engine_seg *seg = engine_find(e, segment);
    return seg != NULL && seg->epoch == segment_epoch ? seg : NULL;
}

void *engine_map(struct engine *e, uint32_t segment, uint32_t segment_epoch, uint64_t offset,
                 uint64_t length, bool writable) {
    struct engine_kind *k;
    struct engine_seg *seg = find_current(e, segment, segment_epoch);
    struct transport_key *key = seg != NULL ? mapped_key(e, seg, writable, &k) : NULL;
    void *at = key != NULL ? k->ops->key_map(key, offset, length) : NULL;
    if (at == NULL) return NULL;
    struct engine_route *r = &seg->routes[k->slot];
    r->lent[key == r->keys[1]] = (const char *)at - offset;
    return at;
}

bool engine_attach(struct engine *e, uint32_t segment, uint32_t segment_epoch, bool writable) {
    struct engine_kind *k;
    struct engine_seg *seg = find_current(e, segment, segment_epoch);
    if (seg == NULL) return false;
    if (mapped_key(e, seg, writable, &k) != NULL) return true;
    /* Attach grants do not last: what else wants one takes it now. */
    uint64_t now_ms = clock_boot_ms();
    k = engine_route_choose(e, seg, writable, NULL, now_ms);
    if (k == NULL || (k->flags & (TRANSPORT_GRANTED | TRANSPORT_MAP)) != 0) return false;
    struct transport_key *key;
    tarn_status s = engine_route_key(e, seg, k, writable, false, 0, &key);
    if (s != TARN_OK) engine_route_failed(e, seg, k, s, now_ms);
    return false;
}

tarn_status engine_check(struct engine *e, uint32_t segment, uint32_t segment_epoch,
                         const void *at) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    struct engine_seg *seg = find_current(e, segment, segment_epoch);
    if (seg == NULL) return TARN_ESTALE;
    struct engine_lent m;
    bool there = engine_route_at(e, seg, at, &m);
    if (there && m.kind->ops->key_check(m.key) == TARN_OK) return TARN_OK;
    e->stats.epoch_misses++;
    if (there && !m.retired) engine_route_failed(e, seg, m.kind, TARN_ESTALE, clock_boot_ms());
    return TARN_ESTALE;
}

bool engine_lent(const struct engine *e, uint32_t segment, const void *at, const void **start_p,
                 uint64_t *size_p, bool *current_p) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    const struct engine_seg *seg = engine_find(e, segment);
    struct engine_lent m;
    if (seg == NULL || !engine_route_at(e, seg, at, &m)) return false;
    *start_p = m.start;
    *size_p = m.size;
    *current_p = !m.retired;
    return true;
}

struct engine_memory *engine_memory_at(const struct engine *e, const void *addr, size_t len) {
    struct engine_memory *m;
    LIST_FOREACH(m, &e->memories, link) {
        if (engine_buffer_meets(&m->buffer, addr, len)) return m;
    }
    return NULL;
}

tarn_status engine_register(struct engine *e, const struct engine_buffer *b) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    if (b->address == NULL || b->len == 0 || (uintptr_t)b->address + b->len < (uintptr_t)b->address)
        return TARN_EINVAL;
    if (engine_memory_at(e, b->address, b->len) != NULL) return TARN_EEXISTS;
    struct engine_memory *m = xcalloc(1, sizeof(*m));
    m->buffer = *b;
    if (b->device) {
        m->buffer.fd = fcntl(b->fd, F_DUPFD_CLOEXEC, 0); /* -1: no kind can have it */
        e->devices++;
        /* No other way is good for it: these need not wait for a segment that offers them. */
        const struct transport_ops *t;
        for (size_t i = 0; (t = transport_at(i)) != NULL; i++)
            if ((t->flags & TRANSPORT_REGISTERS) != 0) (void)kind_get(e, transport_slot(t));
    }
    LIST_INSERT_HEAD(&e->memories, m, link);
    bool any = false;
    for (unsigned i = 0; i < e->n_open; i++) {
        memory_tell(m, e->open[i]);
        any |= m->at[e->open[i]->slot] != NULL;
    }
    /* A device's stays known even so: the CPU must not touch it, and operations on it have to
     * fail. */
    return any || !b->device ? TARN_OK : TARN_ENOTSUP;
}

tarn_status engine_unregister(struct engine *e, void *address) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    struct engine_memory *m = address != NULL ? engine_memory_at(e, address, 1) : NULL;
    if (m == NULL || m->buffer.address != address) return TARN_ENOTFOUND;
    memory_forget(e, m);
    return TARN_OK;
}

void engine_rest(struct engine *e) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    engine_route_reap(e, clock_boot_ms(), e->config.idle_close_ms);
    for (unsigned i = 0; i < e->n_open; i++) {
        struct engine_kind *k = e->open[i];
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
