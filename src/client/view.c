/* Leased views. All of them live on the client's direct lane: its connection holds their leases, its engine their
 * mappings. The connection has one lease per version however many views of it are open; the last one ends it. */
#include <stdatomic.h>
#include <stdlib.h>

#include "base/crc32c.h"
#include "base/log.h"
#include "client/internal.h"

#define VIEW_MAGIC 0x7a12e1eeu

struct tarn_view {
    uint32_t magic;
    struct tarn_client *client;
    struct engine_ref *ref;        /* whose mappings the pieces are, NULL: a copy */
    struct tarn_view *prev, *next; /* client->views, under direct_mutex */
    char *key;
    size_t key_len;
    uint64_t version, size;
    uint64_t lease_end; /* UINT64_MAX: a copy that needs no lease (values that live in the books) */
    int64_t crc;
    struct iovec pieces[EXTENTS_MAX];
    size_t n_pieces;
    uint32_t segment[EXTENTS_MAX], epoch[EXTENTS_MAX];
    char value[INLINE_MAX];
};

/* --- leases, on the locked direct lane --------------------------------------------------------------------------------- */

static tarn_status locate(struct lane *lane, const void *key, size_t key_len, uint64_t lease_ms,
                          uint64_t deadline, struct placement *place) {
    struct answer *a;
    lane_begin(lane, "GETREPLICAS");
    lane_arg(lane, key, key_len);
    lane_arg_str(lane, "LEASE");
    lane_arg_u64(lane, lease_ms);
    uint64_t sent_ns = clock_boot_ns();
    tarn_status status = lane_send(lane, false);
    if (status == TARN_OK) status = lane_receive(lane, &a, deadline);
    if (status == TARN_OK) status = placement_of_get(&lane->arena, a, sent_ns, 0, place);
    if (status == TARN_ENOTFOUND) return fail(status, "no such key");
    if (status == TARN_OK && place->value == NULL && place->lease_end == 0) {
        return fail(TARN_ELEASE, "the server gave no lease (its leases or this connection's are used up)");
    }
    if (status == TARN_OK) COUNT(lane, leases, 1);
    return status;
}

static bool shared(const struct tarn_client *client, const struct tarn_view *view) {
    for (const struct tarn_view *v = client->views; v != NULL; v = v->next) {
        bool same = v->version == view->version && v->key_len == view->key_len &&
                    memcmp(v->key, view->key, view->key_len) == 0;
        if (v != view && same) return true;
    }
    return false;
}

static void end_lease(struct lane *lane, const struct tarn_view *view) {
    if (lane->ctl.fd < 0 || view->lease_end == UINT64_MAX || shared(view->client, view)) return;
    tarn_status status = TARN_EAGAIN;
    for (int i = 0; i < 2 && status == TARN_EAGAIN; i++) {
        lane_begin(lane, "RELEASE");
        lane_arg_str(lane, "1");
        lane_arg(lane, view->key, view->key_len);
        lane_arg_u64(lane, view->version);
        status = lane_send(lane, true);
        if (status != TARN_EAGAIN) break;
        struct answer *a; /* many unread answers: read them */
        lane_begin(lane, "PING");
        lane_call(lane, &a, client_deadline(view->client, 0, 0));
    }
}

/* --- opening -------------------------------------------------------------------------------------------------------------- */

static tarn_status map_pieces(struct lane *lane, struct tarn_view *view, const struct placement *place,
                              uint64_t deadline) {
    if (place->value != NULL) {
        memcpy(view->value, place->value, place->size);
        view->pieces[0] = (struct iovec){view->value, place->size};
        view->n_pieces = place->size > 0;
        view->lease_end = UINT64_MAX;
        return TARN_OK;
    }
    for (size_t i = 0; i < place->n_parts; i++) {
        const struct grant_extent *e = &place->parts[i].extent;
        tarn_status status = segment_ensure(lane, e->segment, e->segment_epoch, false, deadline);
        if (status != TARN_OK) return status;
        void *p = engine_map(lane->engine, e->segment, e->segment_epoch, e->offset, e->length, false);
        if (p == NULL) {
            return fail(TARN_ESTALE,
                        "the bytes cannot be mapped here (another machine, or shm not allowed): use a get");
        }
        view->pieces[i] = (struct iovec){p, e->length};
        view->segment[i] = e->segment;
        view->epoch[i] = e->segment_epoch;
    }
    view->n_pieces = place->n_parts;
    view->lease_end = place->lease_end;
    view->ref = lane->ref;
    view->ref->users++;
    return TARN_OK;
}

static tarn_status open_on(struct lane *lane, struct tarn_view *view, uint64_t lease_ms, uint64_t deadline) {
    struct placement place;
    tarn_status status = lane_ready(lane, deadline);
    if (status == TARN_OK) status = locate(lane, view->key, view->key_len, lease_ms, deadline, &place);
    if (status != TARN_OK) return status;
    view->version = place.version;
    view->size = place.size;
    view->crc = place.crc;
    status = map_pieces(lane, view, &place, deadline);
    if (status != TARN_OK && lane->ctl.fd >= 0) end_lease(lane, view);
    return status;
}

static void link_view(struct tarn_view *view) {
    struct tarn_client *client = view->client;
    view->next = client->views;
    if (view->next != NULL) view->next->prev = view;
    client->views = view;
    __atomic_add_fetch(&client->n_views, 1, __ATOMIC_RELAXED);
}

static void unlink_view(struct tarn_view *view) {
    struct tarn_client *client = view->client;
    if (view->prev != NULL) view->prev->next = view->next;
    if (view->next != NULL) view->next->prev = view->prev;
    if (client->views == view) client->views = view->next;
    __atomic_sub_fetch(&client->n_views, 1, __ATOMIC_RELAXED);
}

static void free_view(struct tarn_view *view) {
    view->magic = 0;
    free(view->key);
    free(view);
}

tarn_status tarn_view_open(tarn_client *client, const void *key, size_t key_len, const tarn_call *call_in,
                           tarn_view **view_p) {
    tarn_status status = client_usable(client);
    if (status == TARN_OK) status = client_check_key(key, key_len);
    if (status != TARN_OK) return status;
    tarn_call call;
    client_call_copy(&call, call_in);
    if (call.wait_ms > 0) {
        status = tarn_wait(client, key, key_len, call.wait_ms); /* through another lane: this one is shared */
        if (status == TARN_ETIMEOUT) return fail(TARN_ENOTFOUND, "the key did not come within the time");
        if (status != TARN_OK) return status;
    }
    uint64_t deadline = client_deadline(client, call.timeout_ms, 0);
    uint64_t lease_ms = call.lease_ms == 0 ? client->options.lease_ms : call.lease_ms;
    struct lane *lane;
    status = direct_take(client, deadline, &lane);
    if (status != TARN_OK) return status;
    struct tarn_view *view = xcalloc(1, sizeof(*view));
    *view = (struct tarn_view){
        .magic = VIEW_MAGIC, .client = client, .key = xmemdup(key, key_len), .key_len = key_len};
    struct attempts attempts = {0};
    do {
        status = open_on(lane, view, lease_ms, deadline);
        /* "elsewhere" does not change by trying again */
    } while (status != TARN_OK && status != TARN_ESTALE && lane_retry(lane, &attempts, status, deadline));
    if (status == TARN_OK) link_view(view);
    direct_give(client);
    if (status == TARN_OK && client->options.verify && view->crc >= 0) {
        status = tarn_view_verify(view);
        if (status != TARN_OK) tarn_view_release(&view);
        if (status == TARN_OK) *view_p = view;
        return status;
    }
    if (status == TARN_OK) {
        *view_p = view;
    } else {
        free_view(view);
    }
    return status;
}

/* --- using ------------------------------------------------------------------------------------------------------------------- */

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

tarn_status tarn_view_check(tarn_view *view) {
    if (view == NULL || view->magic != VIEW_MAGIC) return fail(TARN_EINVAL, "this is not an open view");
    if (view->lease_end == UINT64_MAX) return TARN_OK;
    /* What the caller read, it read before the epochs and the clock are read here. */
    atomic_thread_fence(memory_order_seq_cst);
    struct tarn_client *client = view->client;
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    pthread_mutex_lock(&client->direct_mutex);
    for (size_t i = 0; i < view->n_pieces && status == TARN_OK; i++) {
        status = engine_check_epoch(view->ref->engine, view->segment[i], view->epoch[i]);
        if (status != TARN_OK) COUNT(client->direct, epoch_misses, 1);
    }
    bool over = now_ms() >= view->lease_end;
    if (status == TARN_OK && over) COUNT(client->direct, lease_misses, 1);
    pthread_mutex_unlock(&client->direct_mutex);
    if (status != TARN_OK) return fail(status, "the segment's content was replaced: open the view again");
    if (over) return fail(TARN_ELEASE, "the view's lease is over: renew earlier, or ask for a longer one");
    return TARN_OK;
}

tarn_status tarn_view_verify(tarn_view *view) {
    if (view == NULL || view->magic != VIEW_MAGIC) return fail(TARN_EINVAL, "this is not an open view");
    uint32_t crc = 0;
    for (size_t i = 0; i < view->n_pieces; i++)
        crc = crc32c(crc, view->pieces[i].iov_base, view->pieces[i].iov_len);
    tarn_status status = tarn_view_check(view);
    if (status != TARN_OK || view->crc < 0 || crc == (uint32_t)view->crc) return status;
    pthread_mutex_lock(&view->client->direct_mutex);
    if (view->client->direct != NULL) COUNT(view->client->direct, crc_mismatches, 1);
    pthread_mutex_unlock(&view->client->direct_mutex);
    log_warning("a view of version %llu: the bytes do not match their CRC",
                (unsigned long long)view->version);
    return fail(TARN_ECORRUPT, "the bytes do not match their CRC");
}

static tarn_status renew_on(struct lane *lane, struct tarn_view *view, uint64_t lease_ms, uint64_t deadline) {
    struct placement place;
    tarn_status status = lane_ready(lane, deadline);
    if (status == TARN_OK) status = locate(lane, view->key, view->key_len, lease_ms, deadline, &place);
    if (status != TARN_OK) return status;
    if (place.version != view->version)
        return fail(TARN_ENOTFOUND, "the key has another value now; open a new view");
    view->lease_end = max_u64(view->lease_end, place.lease_end);
    COUNT(lane, lease_renewals, 1);
    return TARN_OK;
}

tarn_status tarn_view_renew(tarn_view *view, uint64_t lease_ms) {
    if (view == NULL || view->magic != VIEW_MAGIC) return fail(TARN_EINVAL, "this is not an open view");
    if (view->lease_end == UINT64_MAX) return TARN_OK;
    struct tarn_client *client = view->client;
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    if (now_ms() >= view->lease_end) {
        /* The version may still be current, but what was read in the gap could not be told from what was overwritten and
         * the caller would believe that it had been protected all along. */
        return fail(TARN_ELEASE, "the view's lease is over already: open a new view");
    }
    if (lease_ms == 0) lease_ms = client->options.lease_ms;
    uint64_t deadline = client_deadline(client, 0, 0);
    struct lane *lane;
    status = direct_take(client, deadline, &lane);
    if (status != TARN_OK) return status;
    struct attempts attempts = {0};
    do {
        status = renew_on(lane, view, lease_ms, deadline);
    } while (status != TARN_OK && lane_retry(lane, &attempts, status, deadline));
    direct_give(client);
    return status;
}

void tarn_view_release(tarn_view **view_p) {
    if (view_p == NULL || *view_p == NULL) return;
    struct tarn_view *view = *view_p;
    TARN_ASSERT(view->magic == VIEW_MAGIC);
    *view_p = NULL;
    struct tarn_client *client = view->client;
    if (client_usable(client) == TARN_OK) {
        pthread_mutex_lock(&client->direct_mutex);
        end_lease(client->direct, view);
        unlink_view(view);
        engine_ref_drop(&view->ref);
        arena_reset(&client->direct->arena);
        pthread_mutex_unlock(&client->direct_mutex);
    }
    free_view(view);
}
