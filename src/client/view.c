/* Leased views. All of them live on the client's direct lane: its connection holds their leases,
 * its engine their mappings. The connection has one lease per version however many views of it are
 * open; the last one ends it. */
#include <stdatomic.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "client/client.h"
#include "client/shards.h"

#define VIEW_MAGIC    0x7a12e1eeu
#define MAPPING_MAGIC 0x7a12a11eu

struct tarn_view {
    uint32_t magic;
    struct tarn_client *client;
    struct engine_ref *ref; /* whose mappings the pieces are, NULL: a copy */
    LIST_ENTRY(tarn_view) link;
    char *key;
    size_t key_len;
    uint64_t version, size;
    uint64_t lease_ms;     /* to ask for */
    struct call_hint hint; /* while it is being opened */
    bool asking;           /* its slot was moving to this master */
    uint64_t lease_end; /* UINT64_MAX: a copy that needs no lease (values that live in the books) */
    int64_t crc;
    bool elsewhere; /* where it cannot be mapped: trying again does not change that */
    bool suspect;   /* verified once, before it is handed out */
    struct iovec pieces[EXTENTS_MAX];
    size_t n_pieces;
    uint32_t segment[EXTENTS_MAX], epoch[EXTENTS_MAX];
    uint64_t offset[EXTENTS_MAX];
    char value[INLINE_MAX];
};

struct tarn_mapping {
    uint32_t magic;
    struct tarn_client *client;
    struct engine_ref *ref; /* counts as a user: what it has mapped stays */
    LIST_ENTRY(tarn_mapping) link;
    uint32_t segment;
    const void *address;
    size_t len;
};

/* --- leases, on the locked direct lane --- */

static tarn_status view_locate(struct lane *lane, const struct tarn_view *view, uint64_t deadline,
                               struct placement *place) {
    struct answer *a;
    struct ctl_request *r = &lane->request;
    request_begin(r);
    struct wire_look look = {.keys = {request_word(r, view->key, view->key_len), 1},
                             .lease_ms = view->lease_ms,
                             .no_grant = lane->numbers.no_grant}; /* it maps, or fails */
    hint_fill(r, view->hint, &look.hint);
    lane->ctl.asking = view->asking;
    request_build(r, WIRE_getreplicas, &look);
    lane->ctl.asking = false;
    uint64_t sent_ns = clock_boot_ns();
    tarn_status status = lane_send(lane, false);
    if (status == TARN_OK) status = lane_receive(lane, &a, deadline);
    if (status == TARN_OK) lane->later_ms = answer_later_ms(a);
    if (status == TARN_OK)
        status = placement_of_get(&lane->arena, a, look.no_grant, sent_ns, place);
    if (status == TARN_ENOTFOUND) return fail(status, "no such key");
    if (status == TARN_OK && place->value == NULL && place->lease_end == 0) {
        return fail(TARN_ELEASE, "the server gave no lease");
    }
    if (status == TARN_OK) COUNT(lane, leases, 1);
    return status;
}

static bool lease_is_shared(const struct tarn_view *view) {
    const struct tarn_view *v;
    LIST_FOREACH(v, &view->client->views, link) {
        if (v != view && v->version == view->version && v->key_len == view->key_len &&
            memcmp(v->key, view->key, view->key_len) == 0)
            return true;
    }
    return false;
}

static void view_end_lease(struct lane *lane, const struct tarn_view *view) {
    if (lane->ctl.fd < 0 || view->lease_end == UINT64_MAX || lease_is_shared(view)) return;
    tarn_status status = TARN_EAGAIN;
    for (int i = 0; i < 2 && status == TARN_EAGAIN; i++) {
        struct ctl_request *r = &lane->request;
        request_begin(r);
        struct wire_release ends = {.keys = {request_word(r, view->key, view->key_len), 1}};
        request_number(r, (int64_t)view->version);
        request_build(r, WIRE_release, &ends);
        status = lane_send(lane, true);
        if (status == TARN_EAGAIN) /* many unread answers: read them */
            (void)lane_ping(lane, client_deadline(view->client, 0, 0));
    }
}

/* --- opening --- */

/* TARN_ESTALE: it cannot be mapped here, or is not there any more. */
static tarn_status view_map_replica(struct lane *lane, struct tarn_view *view,
                                    const struct placed_replica *r, uint64_t deadline) {
    tarn_status status = replica_ensure(lane, r, false, deadline);
    if (status != TARN_OK) return lane->ctl.fd < 0 ? status : TARN_ESTALE;
    if (!replica_map(lane, r, false, view->pieces)) return TARN_ESTALE;
    for (size_t i = 0; i < r->n_parts; i++) {
        const struct grant_extent *e = &r->parts[i].extent;
        view->segment[i] = e->segment;
        view->offset[i] = e->offset;
        view->epoch[i] = e->segment_epoch;
    }
    view->n_pieces = r->n_parts;
    return TARN_OK;
}

static tarn_status view_map_pieces(struct lane *lane, struct tarn_view *view,
                                   const struct placement *place, uint64_t deadline) {
    if (place->value != NULL) {
        memcpy(view->value, place->value, place->size);
        view->pieces[0] = (struct iovec){view->value, place->size};
        view->n_pieces = place->size > 0;
        view->lease_end = UINT64_MAX;
        return TARN_OK;
    }
    tarn_status status = TARN_ESTALE;
    const char *name = "?";
    for (unsigned i = 0; i < place->replicas && status == TARN_ESTALE; i++) {
        if (place->replica[i].tier != REPLICA_MEMORY) continue;
        status = view_map_replica(lane, view, &place->replica[i], deadline);
        name = segment_name(lane, place->replica[i].parts[0].extent.segment);
    }
    if (status == TARN_ESTALE) {
        return fail(status,
                    "segment %s cannot be mapped here: its host offers this process no shared "
                    "memory now. Use a get",
                    name);
    }
    if (status != TARN_OK) return status;
    view->lease_end = place->lease_end;
    view->ref = lane->ref;
    view->ref->users++;
    return TARN_OK;
}

static tarn_status view_open(struct lane *lane, void *arg, uint64_t deadline) {
    struct tarn_view *view = arg;
    struct placement place;
    tarn_status status = view_locate(lane, view, deadline, &place);
    if (status != TARN_OK) return status;
    view->version = place.version;
    view->size = place.size;
    view->crc = place.crc;
    view->suspect = place.suspect;
    status = view_map_pieces(lane, view, &place, deadline);
    if (status == TARN_OK) {
        LIST_INSERT_HEAD(&view->client->views, view, link);
        __atomic_add_fetch(&view->client->n_views, 1, __ATOMIC_RELAXED);
    } else if (lane->ctl.fd >= 0) {
        view_end_lease(lane, view);
    }
    view->elsewhere = status == TARN_ESTALE;
    return view->elsewhere ? TARN_OK : status;
}

static void view_free(struct tarn_view *view) {
    view->magic = 0;
    free(view->key);
    free(view);
}

/* What a view opens with: its CRC is computed once, where it is to be. */
static tarn_status view_prove(struct tarn_view *view, struct call_trace *trace) {
    if ((!view->client->options.verify && !view->suspect) || view->crc < 0) return TARN_OK;
    if (LIKELY(!trace->on || !trace->spans)) return tarn_view_verify(view);
    uint64_t began_ns = clock_mono_ns();
    tarn_status status = tarn_view_verify(view);
    struct trace_stage *stage = trace_stage_of(trace, "verify", began_ns);
    if (stage == NULL) return status;
    stage->status = status;
    stage->bytes = view->size;
    return status;
}

struct view_opening {
    const void *key;
    size_t key_len;
    const tarn_call *call;
    tarn_view **view_p;
};

static tarn_status view_open_at(struct tarn_client *client, bool asking, uint64_t deadline,
                                void *arg) {
    const struct view_opening *o = arg;
    const tarn_call *call = o->call;
    struct tarn_view *view = xcalloc(1, sizeof(*view));
    *view = (struct tarn_view){.magic = VIEW_MAGIC,
                               .client = client,
                               .key = xmemdup(o->key, o->key_len),
                               .key_len = o->key_len,
                               .hint = HINT_OF(call),
                               .asking = asking,
                               .lease_ms =
                                   call->lease_ms == 0 ? client->options.lease_ms : call->lease_ms};
    struct call_trace trace;
    trace_begin(&trace, client, "view_open", 1);
    tarn_status status = direct_run(client, &trace, deadline, view_open, view);
    view->hint = (struct call_hint){0};
    if (status == TARN_OK && view->elsewhere) status = TARN_ESTALE;
    if (status != TARN_OK)
        view_free(view);
    else if ((status = view_prove(view, &trace)) != TARN_OK)
        tarn_view_release(&view);
    else
        *o->view_p = view;
    trace_end(&trace, status, status == TARN_OK, status == TARN_OK ? (*o->view_p)->size : 0);
    return status;
}

tarn_status tarn_view_open(tarn_client *client, const void *key, size_t key_len,
                           const tarn_call *call_in, tarn_view **view_p) {
    tarn_status status = client_usable(client);
    if (status == TARN_OK) status = client_check_key(key, key_len);
    if (status != TARN_OK) return status;
    tarn_call call;
    client_call_copy(&call, call_in);
    status = hint_check(HINT_OF(&call));
    if (status != TARN_OK) return status;
    if (call.wait_ms > 0) {
        /* through another lane: this one is shared */
        status = tarn_wait(client, key, key_len, call.wait_ms);
        if (status == TARN_ETIMEOUT)
            return fail(TARN_ENOTFOUND, "the key did not come within the time");
        if (status != TARN_OK) return status;
    }
    uint64_t deadline = client_deadline(client, call.timeout_ms, 0);
    struct view_opening o = {key, key_len, &call, view_p};
    return client->shards == NULL ? view_open_at(client, false, deadline, &o)
                                  : shards_one(client, key, key_len, deadline, view_open_at, &o);
}

/* --- using --- */

uint64_t tarn_view_size(const tarn_view *view) {
    return view->size;
}

uint64_t tarn_view_version(const tarn_view *view) {
    return view->version;
}

const void *tarn_view_data(const tarn_view *view) {
    if (view->n_pieces == 0) return view->value;
    return view->n_pieces == 1 ? view->pieces[0].iov_base : NULL;
}

size_t tarn_view_pieces(const tarn_view *view, const struct iovec **pieces_p) {
    *pieces_p = view->pieces;
    return view->n_pieces;
}

uint64_t tarn_view_valid_ms(const tarn_view *view) {
    if (view->lease_end == UINT64_MAX) return UINT64_MAX;
    uint64_t now = now_ms();
    return now < view->lease_end ? view->lease_end - now : 0;
}

static tarn_status view_usable(const struct tarn_view *view) {
    if (view == NULL || view->magic != VIEW_MAGIC)
        return fail(TARN_EINVAL, "this is not an open view");
    return client_usable(view->client);
}

tarn_status tarn_view_check(tarn_view *view) {
    tarn_status status = view_usable(view);
    if (status != TARN_OK || view->lease_end == UINT64_MAX) return status;
    /* What the caller read, it read before the epochs and the clock are read here. */
    atomic_thread_fence(memory_order_seq_cst);
    struct tarn_client *client = view->client;
    pthread_mutex_lock(&client->direct_mutex);
    for (size_t i = 0; i < view->n_pieces && status == TARN_OK; i++) {
        status = engine_check(view->ref->engine, view->segment[i], view->epoch[i],
                              view->pieces[i].iov_base);
        if (status != TARN_OK) COUNT(client->direct, epoch_misses, 1);
    }
    bool over = now_ms() >= view->lease_end;
    if (status == TARN_OK && over) COUNT(client->direct, lease_misses, 1);
    pthread_mutex_unlock(&client->direct_mutex);
    if (status != TARN_OK)
        return fail(status, "the segment's content was replaced: open the view again");
    if (over)
        return fail(TARN_ELEASE,
                    "the view's lease is over: renew earlier, or ask for a longer one");
    return TARN_OK;
}

tarn_status tarn_view_verify(tarn_view *view) {
    tarn_status status = view_usable(view);
    if (status != TARN_OK) return status;
    uint32_t crc = 0;
    for (size_t i = 0; i < view->n_pieces; i++)
        crc = crc32c(crc, view->pieces[i].iov_base, view->pieces[i].iov_len);
    status = tarn_view_check(view);
    if (status != TARN_OK || view->crc < 0 || crc == (uint32_t)view->crc) return status;
    pthread_mutex_lock(&view->client->direct_mutex);
    COUNT(view->client->direct, crc_mismatches, 1);
    lane_report(view->client->direct, view->key, view->key_len, view->version);
    arena_reset(&view->client->direct->arena);
    pthread_mutex_unlock(&view->client->direct_mutex);
    log_warning("a view of version %llu: the bytes do not match their CRC",
                (unsigned long long)view->version);
    return fail(TARN_ECORRUPT, "the bytes do not match their CRC");
}

/* The lease is on what the object consists of now: a replica that was dropped or moved away since
 * is not renewed. */
static bool is_still_there(const struct placement *place, const struct tarn_view *view) {
    for (unsigned r = 0; r < place->replicas; r++) {
        const struct placed_replica *replica = &place->replica[r];
        bool same = replica->n_parts == view->n_pieces;
        for (size_t i = 0; same && i < replica->n_parts; i++) {
            const struct grant_extent *now = &replica->parts[i].extent;
            same = now->segment == view->segment[i] && now->segment_epoch == view->epoch[i] &&
                   now->offset == view->offset[i];
        }
        if (same) return true;
    }
    return place->replicas == 0; /* in the books: a copy of our own */
}

static tarn_status view_renew(struct lane *lane, void *arg, uint64_t deadline) {
    struct tarn_view *view = arg;
    struct placement place;
    tarn_status status = view_locate(lane, view, deadline, &place);
    if (status == TARN_EMOVED)
        return fail(TARN_ENOTFOUND, "the value is another master's now; open a new view");
    if (status != TARN_OK) return status;
    if (place.version != view->version)
        return fail(TARN_ENOTFOUND, "the key has another value now; open a new view");
    if (!is_still_there(&place, view))
        return fail(TARN_ENOTFOUND, "the value has moved; open a new view");
    view->lease_end = max_u64(view->lease_end, place.lease_end);
    COUNT(lane, lease_renewals, 1);
    return TARN_OK;
}

tarn_status tarn_view_renew(tarn_view *view, uint64_t lease_ms) {
    tarn_status status = view_usable(view);
    if (status != TARN_OK || view->lease_end == UINT64_MAX) return status;
    struct tarn_client *client = view->client;
    if (now_ms() >= view->lease_end) {
        /* The version may still be current, but what was read in the gap could not be told from
         * what was overwritten and the caller would believe that it had been protected all
         * along. */
        return fail(TARN_ELEASE, "the view's lease is over already: open a new view");
    }
    view->lease_ms = lease_ms == 0 ? client->options.lease_ms : lease_ms;
    struct call_trace trace;
    trace_begin(&trace, client, "view_renew", 1);
    status = direct_run(client, &trace, client_deadline(client, 0, 0), view_renew, view);
    trace_end(&trace, status, status == TARN_OK, 0);
    return status;
}

/* Does a view or a mapping that is open lie there? */
static bool view_lies_in(void *arg, const void *start, uint64_t size) {
    const struct tarn_client *client = arg;
    const char *from = start;
    const struct tarn_view *v;
    const struct tarn_mapping *m;
    LIST_FOREACH(v, &client->views, link) {
        for (size_t i = 0; i < v->n_pieces; i++) {
            const char *at = v->pieces[i].iov_base;
            if (at >= from && (uint64_t)(at - from) < size) return true;
        }
    }
    LIST_FOREACH(m, &client->mappings, link) {
        if (m->address == start) return true;
    }
    return false;
}

/* Somebody has stopped looking. What was mapped before a host was restarted, or a master replaced,
 * goes with the last one. */
static void views_left(struct tarn_client *client) {
    engine_views_left(client->direct->engine, view_lies_in, client);
}

void tarn_view_release(tarn_view **view_p) {
    if (view_p == NULL || *view_p == NULL) return;
    struct tarn_view *view = *view_p;
    TARN_ASSERT(view->magic == VIEW_MAGIC);
    *view_p = NULL;
    struct tarn_client *client = view->client;
    if (client_usable(client) == TARN_OK) {
        pthread_mutex_lock(&client->direct_mutex);
        lane_tell_trace(client->direct); /* it is done for nobody in particular */
        view_end_lease(client->direct, view);
        LIST_REMOVE(view, link);
        __atomic_sub_fetch(&client->n_views, 1, __ATOMIC_RELAXED);
        engine_ref_drop(&view->ref);
        views_left(client);
        arena_reset(&client->direct->arena);
        pthread_mutex_unlock(&client->direct_mutex);
    }
    view_free(view);
}

/* --- the memory that views lie in --- */

tarn_status tarn_mapping_open(const tarn_view *view, size_t piece, tarn_mapping **mapping_p) {
    tarn_status status = view_usable(view);
    if (status != TARN_OK) return status;
    if (piece >= view->n_pieces)
        return fail(TARN_EINVAL, "the view has %zu pieces, counted from 0", view->n_pieces);
    if (view->ref == NULL)
        return fail(TARN_ENOTSUP, "a value this small is a copy of the view's own, in no segment");
    struct tarn_client *client = view->client;
    struct tarn_mapping *m = xcalloc(1, sizeof(*m));
    *m = (struct tarn_mapping){.magic = MAPPING_MAGIC,
                               .client = client,
                               .ref = view->ref,
                               .segment = view->segment[piece]};
    uint64_t size = 0;
    bool current;
    pthread_mutex_lock(&client->direct_mutex);
    bool found = engine_lent(m->ref->engine, m->segment, view->pieces[piece].iov_base, &m->address,
                             &size, &current);
    if (found) {
        m->ref->users++;
        m->len = size;
        LIST_INSERT_HEAD(&client->mappings, m, link);
    }
    pthread_mutex_unlock(&client->direct_mutex);
    if (found) {
        *mapping_p = m;
        return TARN_OK;
    }
    free(m);
    return fail(TARN_ENOTSUP,
                "the view reads through what this client writes with, which does not last");
}

const void *tarn_mapping_address(const tarn_mapping *mapping) {
    return mapping->address;
}

size_t tarn_mapping_size(const tarn_mapping *mapping) {
    return mapping->len;
}

tarn_status tarn_mapping_check(tarn_mapping *mapping) {
    if (mapping == NULL || mapping->magic != MAPPING_MAGIC)
        return fail(TARN_EINVAL, "this is not an open mapping");
    struct tarn_client *client = mapping->client;
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    const void *start;
    uint64_t size;
    bool current = false;
    pthread_mutex_lock(&client->direct_mutex);
    bool same = mapping->ref == client->direct->ref;
    same = same && engine_lent(mapping->ref->engine, mapping->segment, mapping->address, &start,
                               &size, &current);
    pthread_mutex_unlock(&client->direct_mutex);
    if (same && current) return TARN_OK;
    return fail(TARN_ESTALE,
                "the segment is mapped anew elsewhere: close this mapping when its views are");
}

void tarn_mapping_close(tarn_mapping **mapping_p) {
    if (mapping_p == NULL || *mapping_p == NULL) return;
    struct tarn_mapping *m = *mapping_p;
    TARN_ASSERT(m->magic == MAPPING_MAGIC);
    *mapping_p = NULL;
    struct tarn_client *client = m->client;
    if (client_usable(client) == TARN_OK) {
        pthread_mutex_lock(&client->direct_mutex);
        LIST_REMOVE(m, link);
        engine_ref_drop(&m->ref);
        views_left(client);
        pthread_mutex_unlock(&client->direct_mutex);
    }
    m->magic = 0;
    free(m);
}
