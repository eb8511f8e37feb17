/* Ways to a segment: which transport, which connection, which mapping. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"

#define BAD_MS       5000u /* a way that failed is not tried for so long while there is another */
#define SPREAD_BYTES (1u << 20) /* on one stream before the next gets something */

/* --- targets and streams --- */

static struct engine_target *target_get(struct engine_kind *k, const char *uri) {
    struct engine_target *t;
    LIST_FOREACH(t, &k->targets, link) {
        if (strcmp(t->uri, uri) == 0) {
            t->users++;
            return t;
        }
    }
    t = xcalloc(1, sizeof(*t));
    t->kind = k;
    t->uri = xstrdup(uri);
    t->users = 1;
    LIST_INSERT_HEAD(&k->targets, t, link);
    return t;
}

void engine_stream_close(struct engine_kind *k, struct engine_stream *s) {
    while (s->endpoint != NULL) {
        k->ops->endpoint_close(&s->endpoint);
        if (s->endpoint != NULL) k->ops->progress(k->domain, 1);
    }
    s->was_up = false;
}

static void target_put(struct engine_target **target_p) {
    struct engine_target *t = *target_p;
    *target_p = NULL;
    if (t == NULL || --t->users > 0) return;
    for (unsigned i = 0; i < ENGINE_STREAMS_MAX; i++) engine_stream_close(t->kind, &t->streams[i]);
    LIST_REMOVE(t, link);
    free(t->uri);
    free(t);
}

static tarn_status stream_open(struct engine *e, struct engine_target *t, struct engine_stream *s,
                               uint64_t patience_ms, uint64_t now_ms) {
    if (s->endpoint != NULL) {
        tarn_status status = t->kind->ops->endpoint_status(s->endpoint);
        if (status == TARN_OK) s->was_up = true;
        if (status == TARN_OK || status == TARN_EAGAIN) return TARN_OK;
        engine_stream_close(t->kind, s);
    }
    e->stats.connects++;
    uint64_t limit_ms = e->config.connect_timeout_ms;
    if (patience_ms != 0) limit_ms = min_u64(limit_ms, patience_ms);
    tarn_status status =
        t->kind->ops->connect(t->kind->domain, t->uri, now_ms + limit_ms, &s->endpoint);
    if (status != TARN_OK) e->stats.connect_failures++;
    return status;
}

/* Slices of one large transfer go to one stream each. Everything else stays on a stream until that
 * has enough to do: small operations want to be in few system calls, not on many connections. */
tarn_status engine_route_stream(struct engine *e, struct engine_target *t, bool spread,
                                uint64_t bytes, uint64_t patience_ms, uint64_t now_ms,
                                struct engine_stream **stream_p) {
    unsigned n = (t->kind->flags & TRANSPORT_STREAMS) != 0 ? e->config.streams : 1;
    struct engine_stream *s = &t->streams[t->next % n];
    if (spread || s->outstanding_bytes + bytes > SPREAD_BYTES) {
        for (unsigned i = 0; i < n; i++) {
            if (t->streams[i].outstanding_bytes < s->outstanding_bytes) s = &t->streams[i];
        }
        t->next = (unsigned)(s - t->streams);
    }
    tarn_status status = stream_open(e, t, s, patience_ms, now_ms);
    if (status != TARN_OK) return status;
    s->used_ms = now_ms;
    *stream_p = s;
    return TARN_OK;
}

static void stream_reap(struct engine *e, struct engine_kind *k, struct engine_stream *s,
                        uint64_t now_ms, uint64_t idle_ms) {
    if (s->endpoint == NULL || s->outstanding > 0) return;
    tarn_status status = k->ops->endpoint_status(s->endpoint);
    if (status == TARN_OK) s->was_up = true;
    bool failed = status != TARN_OK && status != TARN_EAGAIN;
    bool idle =
        idle_ms != 0 && now_ms - s->used_ms >= idle_ms && (k->flags & TRANSPORT_STREAMS) != 0;
    if (failed && !s->was_up) e->stats.connect_failures++;
    if (failed || idle) engine_stream_close(k, s);
}

void engine_route_reap(struct engine *e, uint64_t now_ms, uint64_t idle_ms) {
    for (unsigned i = 0; i < e->n_open; i++) {
        struct engine_kind *k = e->open[i];
        struct engine_target *t;
        LIST_FOREACH(t, &k->targets, link) {
            /* An endpoint that keys hang on must outlive them, and a failed one only means: no more
             * keys. */
            if ((k->flags & TRANSPORT_GRANTED) == 0) continue;
            for (unsigned s = 0; s < e->config.streams; s++)
                stream_reap(e, k, &t->streams[s], now_ms, idle_ms);
        }
    }
}

/* --- keys --- */

static void key_put_aside(struct engine_retired_list *list, const struct engine_seg *seg,
                          struct engine_route *route, bool writable) {
    struct engine_retired *r = xcalloc(1, sizeof(*r));
    *r = (struct engine_retired){.target = route->target,
                                 .key = route->keys[writable],
                                 .lent = route->lent[writable],
                                 .size = seg->size};
    route->target->users++;
    SLIST_INSERT_HEAD(list, r, link);
}

void engine_route_close_key(struct engine *e, struct engine_seg *seg, struct engine_kind *k,
                            bool writable) {
    struct engine_route *r = &seg->routes[k->slot];
    if (r->keys[writable] == NULL) return;
    if (!writable && r->lent[0] != NULL) /* a view may look at it, whatever its epochs */
        key_put_aside(&e->retired, seg, r, writable);
    else if (k->outstanding > 0)
        key_put_aside(&e->doomed, seg, r, writable);
    else
        k->ops->key_close(&r->keys[writable]);
    r->keys[writable] = NULL;
    r->lent[writable] = NULL;
}

static bool is_inside(const char *start, uint64_t size, const void *at) {
    return start != NULL && (const char *)at >= start &&
           (uint64_t)((const char *)at - start) < size;
}

bool engine_route_at(const struct engine *e, const struct engine_seg *seg, const void *at,
                     struct engine_lent *lent_p) {
    for (unsigned i = 0; i < e->n_open; i++) {
        struct engine_kind *k = e->open[i];
        const struct engine_route *r = &seg->routes[k->slot];
        for (int w = 0; w < 2; w++) {
            if (!is_inside(r->lent[w], seg->size, at)) continue;
            *lent_p = (struct engine_lent){k, r->keys[w], r->lent[w], seg->size, false};
            return true;
        }
    }
    const struct engine_retired *r;
    SLIST_FOREACH(r, &e->retired, link) {
        if (!is_inside(r->lent, r->size, at)) continue;
        *lent_p = (struct engine_lent){r->target->kind, r->key, r->lent, r->size, true};
        return true;
    }
    return false;
}

static void retired_free(struct engine_retired_list *list, struct engine_retired *r) {
    SLIST_REMOVE(list, r, engine_retired, link);
    r->target->kind->ops->key_close(&r->key);
    target_put(&r->target);
    free(r);
}

void engine_views_left(struct engine *e, bool (*used)(void *arg, const void *start, uint64_t size),
                       void *arg) {
    struct engine_retired *r, *next;
    MAGIC_CHECK(e, ENGINE_MAGIC);
    SLIST_FOREACH_SAFE(r, &e->retired, link, next) {
        if (used == NULL || !used(arg, r->lent, r->size)) retired_free(&e->retired, r);
    }
}

void engine_route_free_doomed(struct engine *e) {
    while (!SLIST_EMPTY(&e->doomed)) retired_free(&e->doomed, SLIST_FIRST(&e->doomed));
}

unsigned engine_routes(const struct engine *e, const struct engine_seg *seg) {
    unsigned n = 0;
    for (unsigned i = 0; i < e->n_open; i++) n += seg->routes[e->open[i]->slot].target != NULL;
    return n;
}

/* A host that is stopped does not answer; by another transport it may, or its bytes are
 * elsewhere. */
static uint64_t attach_limit_ms(const struct engine *e, const struct engine_seg *seg) {
    if (engine_routes(e, seg) < 2) return e->config.connect_timeout_ms;
    return min_u64(e->config.attach_timeout_ms, e->config.connect_timeout_ms);
}

/* The right to attach, and what that takes. */
static bool may_attach(const struct engine_seg *seg, const struct engine_kind *k, bool write) {
    const struct engine_route *r = &seg->routes[k->slot];
    return seg->may_attach[write] &&
           (r->packed_len[write] > 0 || (k->flags & TRANSPORT_ANNOUNCES) == 0);
}

tarn_status engine_route_key(struct engine *e, struct engine_seg *seg, struct engine_kind *k,
                             bool write, bool to_lend, uint64_t deadline_boot_ms,
                             struct transport_key **key_p) {
    struct engine_route *r = &seg->routes[k->slot];
    *key_p = NULL;
    if ((k->flags & TRANSPORT_GRANTED) != 0) return TARN_OK;
    if (!write && r->keys[0] == NULL && r->keys[1] != NULL && !to_lend) {
        /* What may be written may be read. But a view is to outlive the session's right to write,
         * and its host. */
        *key_p = r->keys[1];
        return TARN_OK;
    }
    if (r->keys[write] == NULL) {
        if (!may_attach(seg, k, write)) return TARN_EPERM;
        uint64_t now_ms = clock_boot_ms();
        struct transport_key_config config = {
            .segment = seg->id,
            .segment_epoch = seg->epoch,
            .size = seg->size,
            .content = engine_content(seg),
            .writable = write,
            .grant = seg->attach[write],
            .packed = r->packed[write],
            .packed_len = r->packed_len[write],
            .deadline_boot_ms = now_ms + attach_limit_ms(e, seg),
        };
        if (deadline_boot_ms != 0)
            config.deadline_boot_ms = min_u64(config.deadline_boot_ms, deadline_boot_ms);
        tarn_status status = TARN_ECLOSED;
        /* Twice: the first may only find out that the host was restarted. */
        for (int tries = 0; tries < 2 && status == TARN_ECLOSED; tries++) {
            struct engine_stream *s;
            status = engine_route_stream(e, r->target, false, 0, 0, now_ms, &s);
            if (status == TARN_OK)
                status = k->ops->key_unpack(s->endpoint, &config, &r->keys[write]);
        }
        if (status != TARN_OK) return status;
    }
    *key_p = r->keys[write];
    return TARN_OK;
}

/* --- routes --- */

void engine_route_failed(struct engine *e, struct engine_seg *seg, struct engine_kind *k,
                         tarn_status status, uint64_t now_ms) {
    struct engine_route *r = &seg->routes[k->slot];
    bool packed = engine_route_has_packed(r);
    if (status == TARN_ESTALE || status == TARN_EGRANT_EXPIRED || packed)
        seg->current = false; /* the owner should ask again */
    r->doubtful = packed && status != TARN_EGRANT_EXPIRED;
    if (status == TARN_ESTALE || status == TARN_EGRANT_EXPIRED) {
        for (int w = 0; w < 2; w++) engine_route_close_key(e, seg, k, w);
    }
    /* Until it is set again, too. */
    if (status != TARN_ESTALE || packed) r->bad_until_ms = now_ms + BAD_MS;
    log_verbose("Segment %u by %s: %s", seg->id, k->ops->scheme, tarn_status_text(status));
}

void engine_route_clear(struct engine *e, struct engine_seg *seg, struct engine_kind *k) {
    struct engine_route *r = &seg->routes[k->slot];
    for (int w = 0; w < 2; w++) engine_route_close_key(e, seg, k, w);
    target_put(&r->target);
    for (int w = 0; w < 2; w++) free(r->packed[w]);
    *r = (struct engine_route){0};
}

/* What was unpacked from something else leads nowhere. false: it is the same. */
static bool set_packed(struct engine *e, struct engine_seg *seg, struct engine_kind *k, int w,
                       struct span key) {
    struct engine_route *r = &seg->routes[k->slot];
    if (span_eq(span_of(r->packed[w], r->packed_len[w]), key)) return false;
    engine_route_close_key(e, seg, k, w);
    free(r->packed[w]);
    r->packed[w] = key.len > 0 ? xmemdup(key.data, key.len) : NULL;
    r->packed_len[w] = key.len;
    return true;
}

void engine_route_set(struct engine *e, struct engine_seg *seg, struct engine_kind *k,
                      const struct engine_way *way) {
    struct engine_route *r = &seg->routes[k->slot];
    if (r->target == NULL || strcmp(r->target->uri, way->uri) != 0) {
        engine_route_clear(e, seg, k);
        r->target = target_get(k, way->uri);
    }
    for (int w = 0; w < 2; w++) {
        if (set_packed(e, seg, k, w, way->key[w])) r->doubtful = false;
        /* A mapping from before a failover, or of a host that is no more, is attached again. */
        if (r->keys[w] != NULL && k->ops->key_check(r->keys[w]) != TARN_OK)
            engine_route_close_key(e, seg, k, w);
    }
    if (!r->doubtful) r->bad_until_ms = 0; /* else the owner knows no better than before */
}

static bool route_usable(const struct engine_seg *seg, const struct engine_kind *k, bool write) {
    const struct engine_route *r = &seg->routes[k->slot];
    if (r->target == NULL) return false;
    if ((k->flags & TRANSPORT_GRANTED) != 0) return true;
    return r->keys[write] != NULL || may_attach(seg, k, write) || (!write && r->keys[1] != NULL);
}

struct engine_kind *engine_route_choose(const struct engine *e, const struct engine_seg *seg,
                                        bool write, const struct engine_memory *device,
                                        uint64_t now_ms) {
    struct engine_kind *last_resort = NULL;
    for (unsigned i = 0; i < e->n_open; i++) {
        struct engine_kind *k = e->open[i];
        if (!route_usable(seg, k, write) || (device != NULL && device->at[k->slot] == NULL))
            continue;
        if (seg->routes[k->slot].bad_until_ms <= now_ms) return k;
        last_resort = k;
    }
    return last_resort;
}
