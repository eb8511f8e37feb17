/* Ways to a segment: which transport, which connection, which mapping. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"

#define BAD_MS       5000u      /* a way that failed is not tried for so long while there is another */
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
                               uint64_t now_ms) {
    if (s->endpoint != NULL) {
        tarn_status status = t->kind->ops->endpoint_status(s->endpoint);
        if (status == TARN_OK) s->was_up = true;
        if (status == TARN_OK || status == TARN_EAGAIN) return TARN_OK;
        engine_stream_close(t->kind, s);
    }
    e->stats.connects++;
    tarn_status status =
        t->kind->ops->connect(t->kind->domain, t->uri, now_ms + e->config.connect_timeout_ms, &s->endpoint);
    if (status != TARN_OK) e->stats.connect_failures++;
    return status;
}

/* Slices of one large transfer go to one stream each. Everything else stays on a stream until that has enough to do: small
 * operations want to be in few system calls, not on many connections. */
tarn_status engine_route_stream(struct engine *e, struct engine_target *t, bool spread, uint64_t bytes,
                                uint64_t now_ms, struct engine_stream **stream_p) {
    unsigned n = (t->kind->limits.flags & TRANSPORT_STREAMS) != 0 ? e->config.streams : 1;
    struct engine_stream *s = &t->streams[t->next % n];
    if (spread || s->outstanding_bytes + bytes > SPREAD_BYTES) {
        for (unsigned i = 0; i < n; i++) {
            if (t->streams[i].outstanding_bytes < s->outstanding_bytes) s = &t->streams[i];
        }
        t->next = (unsigned)(s - t->streams);
    }
    tarn_status status = stream_open(e, t, s, now_ms);
    if (status != TARN_OK) return status;
    s->used_ms = now_ms;
    *stream_p = s;
    return TARN_OK;
}

static void stream_reap(struct engine *e, struct engine_kind *k, struct engine_stream *s, uint64_t now_ms,
                        uint64_t idle_ms) {
    if (s->endpoint == NULL || s->outstanding > 0) return;
    tarn_status status = k->ops->endpoint_status(s->endpoint);
    if (status == TARN_OK) s->was_up = true;
    bool failed = status != TARN_OK && status != TARN_EAGAIN;
    bool idle = idle_ms != 0 && now_ms - s->used_ms >= idle_ms && (k->limits.flags & TRANSPORT_STREAMS) != 0;
    if (failed && !s->was_up) e->stats.connect_failures++;
    if (failed || idle) engine_stream_close(k, s);
}

void engine_route_reap(struct engine *e, uint64_t now_ms, uint64_t idle_ms) {
    for (unsigned i = 0; i < e->n_kinds; i++) {
        struct engine_kind *k = &e->kinds[i];
        struct engine_target *t;
        LIST_FOREACH(t, &k->targets, link) {
            /* An endpoint that keys hang on must outlive them, and a failed one only means: no more keys. */
            if ((k->limits.flags & TRANSPORT_GRANTED) == 0) continue;
            for (unsigned s = 0; s < e->config.streams; s++)
                stream_reap(e, k, &t->streams[s], now_ms, idle_ms);
        }
    }
}

/* --- keys --- */

/* A view may still look at read-only memory, whatever became of its epochs; so that stays until the engine goes. */
static void retire(struct engine *e, struct engine_kind *k, struct engine_target *t,
                   struct transport_key **key_p) {
    struct engine_retired *r = xcalloc(1, sizeof(*r));
    *r = (struct engine_retired){.next = e->retired, .kind = k, .key = *key_p, .target = t};
    t->users++;
    e->retired = r;
    *key_p = NULL;
}

void engine_route_close_key(struct engine *e, struct engine_seg *seg, unsigned kind, bool writable) {
    struct engine_route *r = &seg->routes[kind];
    struct engine_kind *k = &e->kinds[kind];
    if (r->keys[writable] == NULL) return;
    if (!writable && (k->limits.flags & TRANSPORT_MAP) != 0)
        retire(e, k, r->target, &r->keys[writable]);
    else
        k->ops->key_close(&r->keys[writable]);
}

void engine_route_free_retired(struct engine *e) {
    while (e->retired != NULL) {
        struct engine_retired *r = e->retired;
        e->retired = r->next;
        r->kind->ops->key_close(&r->key);
        target_put(&r->target);
        free(r);
    }
}

tarn_status engine_route_key(struct engine *e, struct engine_seg *seg, unsigned kind, bool write,
                             uint64_t deadline_boot_ms, struct transport_key **key_p) {
    struct engine_kind *k = &e->kinds[kind];
    struct engine_route *r = &seg->routes[kind];
    *key_p = NULL;
    if ((k->limits.flags & TRANSPORT_GRANTED) != 0) return TARN_OK;
    if (!write && r->keys[0] == NULL && r->keys[1] != NULL) { /* what may be written may be read */
        *key_p = r->keys[1];
        return TARN_OK;
    }
    if (r->keys[write] == NULL) {
        if (!r->may_attach[write]) return TARN_EPERM;
        uint64_t now_ms = clock_boot_ms();
        struct transport_key_config config = {
            .segment = seg->id,
            .segment_epoch = seg->epoch,
            .size = seg->size,
            .writable = write,
            .packed = r->attach[write],
            .packed_len = GRANT_SIZE,
            .deadline_boot_ms = now_ms + e->config.connect_timeout_ms,
        };
        if (deadline_boot_ms != 0)
            config.deadline_boot_ms = min_u64(config.deadline_boot_ms, deadline_boot_ms);
        tarn_status status = TARN_ECLOSED;
        /* Twice: the first may only find out that the host was restarted. */
        for (int tries = 0; tries < 2 && status == TARN_ECLOSED; tries++) {
            struct engine_stream *s;
            status = engine_route_stream(e, r->target, false, 0, now_ms, &s);
            if (status == TARN_OK) status = k->ops->key_unpack(s->endpoint, &config, &r->keys[write]);
        }
        if (status != TARN_OK) return status;
    }
    *key_p = r->keys[write];
    return TARN_OK;
}

/* --- routes --- */

void engine_route_failed(struct engine *e, struct engine_seg *seg, unsigned kind, tarn_status status,
                         uint64_t now_ms) {
    struct engine_route *r = &seg->routes[kind];
    if (status == TARN_ESTALE || status == TARN_EGRANT_EXPIRED)
        seg->current = false; /* the owner should ask again */
    if (status == TARN_ESTALE) {
        for (int w = 0; w < 2; w++) engine_route_close_key(e, seg, kind, w);
    } else {
        r->bad_until_ms = now_ms + BAD_MS;
    }
    log_verbose("Segment %u by %s: %s", seg->id, e->kinds[kind].ops->scheme, tarn_status_text(status));
}

void engine_route_clear(struct engine *e, struct engine_seg *seg, unsigned kind) {
    struct engine_route *r = &seg->routes[kind];
    for (int w = 0; w < 2; w++) engine_route_close_key(e, seg, kind, w);
    target_put(&r->target);
    *r = (struct engine_route){0};
}

void engine_route_set(struct engine *e, struct engine_seg *seg, unsigned kind, const char *uri,
                      const uint8_t *attach_read, const uint8_t *attach_write) {
    struct engine_route *r = &seg->routes[kind];
    if (r->target == NULL || uri == NULL || strcmp(r->target->uri, uri) != 0) {
        engine_route_clear(e, seg, kind);
        if (uri == NULL) return;
        r->target = target_get(&e->kinds[kind], uri);
    }
    const uint8_t *const attach[2] = {attach_read, attach_write};
    for (int w = 0; w < 2; w++) {
        r->may_attach[w] = attach[w] != NULL;
        if (attach[w] != NULL) memcpy(r->attach[w], attach[w], GRANT_SIZE);
        /* A mapping from before a failover, or of a host that is no more, is attached again. */
        if (r->keys[w] != NULL && e->kinds[kind].ops->key_check(r->keys[w]) != TARN_OK) {
            engine_route_close_key(e, seg, kind, w);
        }
    }
    r->bad_until_ms = 0;
}

static bool route_usable(const struct engine *e, const struct engine_route *r, unsigned kind, bool write) {
    if (r->target == NULL) return false;
    if ((e->kinds[kind].limits.flags & TRANSPORT_GRANTED) != 0) return true;
    return r->keys[write] != NULL || r->may_attach[write] || (!write && r->keys[1] != NULL);
}

unsigned engine_route_choose(const struct engine *e, const struct engine_seg *seg, bool write,
                             uint64_t now_ms) {
    unsigned last_resort = e->n_kinds;
    for (unsigned i = 0; i < e->n_kinds; i++) {
        const struct engine_route *r = &seg->routes[i];
        if (e->config.transport != ENGINE_AUTO && e->config.transport != e->kinds[i].name) continue;
        if (!route_usable(e, r, i, write)) continue;
        if (r->bad_until_ms <= now_ms) return i;
        last_resort = i;
    }
    return last_resort;
}
