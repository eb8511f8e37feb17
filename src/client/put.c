/* Puts: chunks of keys are opened, written and ended. While the bytes of one chunk move, the next
 * one is being opened. */
#include "client/put.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/errors.h"

#define CHUNK_BYTES (UINT64_C(1) << 30) /* opened at once: well within put-timeout at 100 MB/s */

void put_finish(struct putting *p, size_t i, tarn_status status) {
    struct put *u = &p->puts[i];
    batch_finish(&p->b, i, status, u->size);
    if (status == TARN_OK) {
        p->b.items[i].replicas = (uint32_t)__builtin_popcount(put_alive(u));
        COUNT(p->b.lane, put_replicas_failed, __builtin_popcount(u->failed));
        p->stored++;
        COUNT(p->b.lane, put_stored, 1);
        COUNT(p->b.lane, bytes_written, u->size);
    } else if (status == TARN_EEXISTS) {
        COUNT(p->b.lane, put_existed, 1);
    } else {
        COUNT(p->b.lane, put_failures, 1);
    }
}

const struct iovec *item_iov(const tarn_item *item, struct iovec *one, size_t *n_p) {
    if (item->n_iov > 0) {
        *n_p = item->n_iov;
        return item->iov;
    }
    *one = (struct iovec){item->buffer, item->buffer_len};
    *n_p = item->buffer_len > 0 ? 1 : 0;
    return one;
}

/* --- PUTSTART --- */

tarn_status put_options_check(const tarn_put_options *o) {
    return o->prefers > WIRE_PREFERS
               ? fail(TARN_EINVAL, "prefer may name at most %d segments", WIRE_PREFERS)
               : TARN_OK;
}

void put_options_fill(struct lane *lane, const tarn_put_options *o, uint64_t since_ms,
                      struct wire_put *put) {
    struct ctl_request *r = &lane->request;
    const char *away[WIRE_PREFERS];
    put->replicas = o->replicas;
    put->prefer.n = (uint32_t)o->prefers;
    for (size_t i = 0; i < o->prefers; i++) put->prefer.at[i] = request_str(r, o->prefer[i]);
    put->pin = o->pin == TARN_PIN_SOFT   ? WIRE_PIN_SOFT
               : o->pin == TARN_PIN_HARD ? WIRE_PIN_HARD
                                         : 0;
    put->pin_ms = o->pin_ms == 0 ? 1800000 : o->pin_ms;
    if (o->group != NULL && o->group_len > 0) put->group = request_word(r, o->group, o->group_len);
    put->ttl_ms = o->ttl_ms;
    put->replace = o->replace;
    put->avoid.n = (uint32_t)outage_names(lane, since_ms, away, WIRE_PREFERS);
    for (size_t i = 0; i < put->avoid.n; i++) put->avoid.at[i] = request_str(r, away[i]);
}

static void key_append(struct putting *p, size_t i, uint64_t number) {
    request_word(&p->b.lane->request, p->b.items[i].key, p->b.items[i].key_len);
    request_number(&p->b.lane->request, (int64_t)number);
}

/* In one request, but for those that take the place of another put: they have one each. */
static tarn_status start_send(struct putting *p, struct chunk *c) {
    struct lane *lane = p->b.lane;
    tarn_status status = TARN_OK;
    c->plain = 0;
    for (size_t k = 0; k < c->n; k++) c->plain += p->puts[c->order[k]].instead == 0;
    if (c->plain > 0) {
        request_begin(&lane->request);
        struct wire_put put = {.keys = {request_next(&lane->request), (uint32_t)c->plain},
                               .packed = true};
        for (size_t k = 0; k < c->n; k++) {
            const struct put *u = &p->puts[c->order[k]];
            if (u->instead == 0) key_append(p, c->order[k], u->size);
        }
        put_options_fill(lane, p->options, p->avoid_since_ms, &put);
        request_build(&lane->request, WIRE_mputstart, &put);
        status = lane_send(lane, false);
    }
    for (size_t k = 0; k < c->n && status == TARN_OK; k++) {
        const struct put *u = &p->puts[c->order[k]];
        if (u->instead == 0) continue;
        request_begin(&lane->request);
        struct wire_put put = {.keys = {request_next(&lane->request), 1}, .instead = u->instead};
        key_append(p, c->order[k], u->size);
        put_options_fill(lane, p->options, p->avoid_since_ms, &put);
        request_build(&lane->request, WIRE_putstart, &put);
        status = lane_send(lane, false);
    }
    return status;
}

/* What is only not now is waited for. */
static bool put_waits(const struct put *u) {
    return u->is.state != ITEM_FINISHED && u->is.later != TARN_OK;
}

static void put_started(struct putting *p, size_t i, const struct answer *a) {
    struct put *u = &p->puts[i];
    tarn_status status = placement_of_put(&p->b.lane->arena, a, u->size, &u->place);
    if (status == TARN_EBUSY && u->instead != 0) {
        put_finish(p, i, u->reason); /* still by our own first attempt */
        return;
    }
    u->reason = status;
    /* What this batch itself may stand in the way of, with room that it holds or a key that it has
     * twice, is tried again once some of it is stored; what is only not now, when it is time. */
    u->held_up = batch_is_later(&p->b, i, status, a) || error_act(status) == ERROR_TURN;
    if (status == TARN_ENOSPACE) snprintf(p->no_room, sizeof(p->no_room), "%s", tarn_last_error());
    if (u->held_up) return;
    if (status != TARN_OK) {
        put_finish(p, i, status);
        return;
    }
    u->is.state = ITEM_PLACED;
    u->pos = 0;
    u->failed = 0;
    u->instead = 0;
    u->loose = false;
    u->crc = 0;
    u->receipts = placement_receipts(&p->b.lane->arena, &u->place, &u->n_receipts);
    if (u->size > CRC_BLOCK && u->crcs == NULL && !u->device) {
        u->crcs = arena_alloc(&p->b.lane->arena,
                              (u->size + CRC_BLOCK - 1) / CRC_BLOCK * sizeof(uint32_t));
    }
}

static tarn_status start_receive(struct putting *p, const struct chunk *c) {
    struct answer *a = NULL;
    tarn_status status = TARN_OK;
    size_t at = 0;
    if (c->plain > 0) status = batch_receive(&p->b, c->plain, "MPUTSTART", &a);
    for (size_t k = 0; k < c->n && status == TARN_OK; k++) {
        if (p->puts[c->order[k]].instead == 0) put_started(p, c->order[k], &a->element[at++]);
    }
    return status;
}

static tarn_status instead_receive(struct putting *p, const struct chunk *c) {
    struct answer *a;
    tarn_status status = TARN_OK;
    for (size_t k = 0; k < c->n && status == TARN_OK; k++) {
        if (p->puts[c->order[k]].instead == 0) continue;
        status = lane_receive(p->b.lane, &a, p->b.deadline);
        if (status == TARN_OK) put_started(p, c->order[k], a);
    }
    return status;
}

static tarn_status put_chunk_ensure(struct putting *p, const struct chunk *c) {
    for (size_t k = 0; k < c->n; k++) {
        if (p->puts[c->order[k]].is.state != ITEM_PLACED) continue;
        tarn_status status = put_ensure(p, c->order[k]);
        if (status != TARN_OK) return status;
    }
    return TARN_OK;
}

/* --- PUTEND, PUTREVOKE --- */

static void arg_value(struct putting *p, size_t i) {
    const struct put *u = &p->puts[i];
    struct iovec one;
    size_t n;
    const struct iovec *iov = item_iov(&p->b.items[i], &one, &n);
    char *copy = arena_alloc(&p->b.lane->arena, INLINE_MAX);
    size_t len = u->place.replicas == 0 ? (size_t)u->size : 0, at = 0;
    for (size_t k = 0; k < n && at < len; k++) {
        size_t take = iov[k].iov_len < len - at ? iov[k].iov_len : len - at;
        memcpy(copy + at, iov[k].iov_base, take);
        at += take;
    }
    request_word(&p->b.lane->request, copy, len);
}

static void arg_receipts(struct putting *p, size_t i) {
    const struct put *u = &p->puts[i];
    request_word(&p->b.lane->request, u->receipts != NULL ? (const char *)u->receipts : "",
                 u->n_receipts * GRANT_RECEIPT_SIZE);
}

/* Empty values can only be given to the single command: in a list, empty means none. */
static tarn_status end_send_empty(struct putting *p, size_t i) {
    struct ctl_request *r = &p->b.lane->request;
    request_begin(r);
    struct wire_end end = {.keys = {request_next(r), 1}};
    key_append(p, i, p->puts[i].place.token);
    request_number(r, p->puts[i].crc);
    end.values = request_word(r, "", 0);
    request_build(r, WIRE_putend, &end);
    return lane_send(p->b.lane, false);
}

/* The items of a chunk that are WRITTEN: one MPUTEND, and a PUTEND for each that is empty. */
struct ends {
    size_t *full, *empty;
    size_t n_full, n_empty;
};

static struct ends put_chunk_written(struct putting *p, const struct chunk *c) {
    struct ends e = {0};
    e.full = arena_alloc(&p->b.lane->arena, c->n * sizeof(size_t));
    e.empty = arena_alloc(&p->b.lane->arena, c->n * sizeof(size_t));
    for (size_t k = 0; k < c->n; k++) {
        const struct put *u = &p->puts[c->order[k]];
        if (u->is.state != ITEM_WRITTEN) continue;
        if (u->size > 0) {
            e.full[e.n_full++] = c->order[k];
        } else {
            e.empty[e.n_empty++] = c->order[k];
        }
    }
    return e;
}

static tarn_status end_send(struct putting *p, const struct ends *e) {
    struct lane *lane = p->b.lane;
    tarn_status status = TARN_OK;
    bool values = false, crcs = false, faileds = false, receipts = false;
    if (e->n_full > 0) {
        struct ctl_request *r = &lane->request;
        request_begin(r);
        struct wire_end end = {.keys = {request_next(r), (uint32_t)e->n_full}};
        for (size_t k = 0; k < e->n_full; k++) {
            const struct put *u = &p->puts[e->full[k]];
            key_append(p, e->full[k], u->place.token);
            request_number(r, u->device ? -1 : (int64_t)u->crc);
            values = values || u->place.replicas == 0;
            crcs = crcs || u->crcs != NULL;
            faileds = faileds || u->failed != 0;
            receipts = receipts || u->receipts != NULL;
        }
        if (values) end.values = request_next(r);
        for (size_t k = 0; k < e->n_full && values; k++) arg_value(p, e->full[k]);
        if (crcs) end.crcs = request_next(r);
        for (size_t k = 0; k < e->n_full && crcs; k++) {
            const struct put *u = &p->puts[e->full[k]];
            request_crcs(r, u->crcs, u->crcs == NULL ? 0 : (u->size + CRC_BLOCK - 1) / CRC_BLOCK);
        }
        if (faileds) end.faileds = request_next(r);
        for (size_t k = 0; k < e->n_full && faileds; k++)
            request_number(r, p->puts[e->full[k]].failed);
        if (receipts) end.receipts = request_next(r);
        for (size_t k = 0; k < e->n_full && receipts; k++) arg_receipts(p, e->full[k]);
        request_build(r, WIRE_mputend, &end);
        status = lane_send(lane, false);
    }
    for (size_t k = 0; k < e->n_empty && status == TARN_OK; k++)
        status = end_send_empty(p, e->empty[k]);
    return status;
}

static void put_ended(struct putting *p, size_t i, const struct answer *a) {
    struct put *u = &p->puts[i];
    tarn_status status = answer_check(a, "PUTEND");
    bool lost = status == TARN_ETOKEN || status == TARN_ESTALE;
    if (lost && u->tries < p->b.lane->client->options.retries) {
        /* The server lost the put (restart, put-timeout) or its space (segments that left): the
         * bytes are still here, so once more from the start. */
        u->tries++;
        u->is.state = ITEM_WANTED;
        COUNT(p->b.lane, retries, 1);
        return;
    }
    put_finish(p, i, status);
}

static tarn_status end_receive(struct putting *p, const struct ends *e) {
    struct answer *a;
    tarn_status status = TARN_OK;
    if (e->n_full > 0) status = batch_receive(&p->b, e->n_full, "MPUTEND", &a);
    for (size_t k = 0; k < e->n_full && status == TARN_OK; k++)
        put_ended(p, e->full[k], &a->element[k]);
    for (size_t k = 0; k < e->n_empty && status == TARN_OK; k++) {
        status = lane_receive(p->b.lane, &a, p->b.deadline);
        if (status == TARN_OK) put_ended(p, e->empty[k], a);
    }
    return status;
}

/* Gives back what was opened and will not be ended. The answers do not matter: an unknown token is
 * over anyway. */
static tarn_status revokes_send(struct putting *p, const size_t *order, size_t n) {
    size_t count = 0;
    for (size_t k = 0; k < n; k++) count += p->puts[order[k]].revoke;
    if (count == 0) return TARN_OK;
    struct ctl_request *r = &p->b.lane->request;
    request_begin(r);
    struct wire_end end = {.keys = {request_next(r), (uint32_t)count}};
    for (size_t k = 0; k < n; k++)
        if (p->puts[order[k]].revoke) key_append(p, order[k], p->puts[order[k]].place.token);
    request_build(r, WIRE_mputrevoke, &end);
    tarn_status status = lane_send(p->b.lane, true);
    for (size_t k = 0; k < n && status == TARN_OK; k++) {
        struct put *u = &p->puts[order[k]];
        if (!u->revoke) continue;
        u->revoke = false;
        if (u->is.state == ITEM_WANTED && u->last) put_finish(p, order[k], u->reason);
    }
    return status;
}

/* --- passes --- */

/* What a broken connection left behind is ended, or revoked, before anything is started anew. */
static tarn_status put_recover(struct putting *p, const size_t *order, size_t n) {
    size_t limit = p->b.lane->client->options.batch_keys;
    for (size_t at = 0; at < n; at += limit) {
        struct chunk c = {.order = order + at, .n = n - at < limit ? n - at : limit};
        for (size_t k = 0; k < c.n; k++) {
            struct put *u = &p->puts[c.order[k]];
            if (u->is.state != ITEM_PLACED) continue;
            u->is.state = ITEM_WANTED;
            u->revoke = true;
            u->reason = TARN_ECLOSED;
            /* not this put's fault; the connection's attempts are counted elsewhere */
            u->last = false;
        }
        struct ends e = put_chunk_written(p, &c);
        tarn_status status = end_send(p, &e);
        if (status == TARN_OK) status = end_receive(p, &e);
        if (status == TARN_OK) status = revokes_send(p, c.order, c.n);
        if (status != TARN_OK) return status;
    }
    return TARN_OK;
}

/* When its connection is closed the server has the session cut off, and gets back the space that
 * its bytes may still be on their way to. Whatever was sent is to arrive before that. */
static void session_leave(struct putting *p) {
    p->new_session = false;
    if (p->b.lane->ctl.fd < 0) return;
    (void)lane_ping(p->b.lane, p->b.deadline);
    ctl_close(&p->b.lane->ctl);
    if (p->b.lane->ref->writers == 0)
        engine_session_changed(p->b.lane->engine); /* or hosts would wait for our mappings */
}

static bool put_chunk(const struct putting *p, const struct chunk *rest, size_t *at,
                      struct chunk *c) {
    bool any = batch_chunk(&p->b, rest, at, c);
    uint64_t bytes = 0;
    for (size_t k = 0; k < c->n; k++) {
        bytes = add_sat(bytes, p->puts[c->order[k]].size);
        if (k == 0 || bytes <= CHUNK_BYTES) continue;
        *at -= c->n - k;
        c->n = k;
    }
    return any;
}

/* On the wire: START(a) | START(b) END(a) REVOKE(a) | START(c) END(b) REVOKE(b) ...: answers come
 * in that order. */
static tarn_status put_all(struct putting *p) {
    struct chunk rest = batch_rest(&p->b);
    size_t at = 0;
    tarn_status status = lane_ready(p->b.lane, p->b.deadline);
    if (status == TARN_OK) status = put_recover(p, rest.order, rest.n);
    rest = batch_rest(&p->b);
    struct chunk now, next;
    struct ends ends = {0};
    bool more = status == TARN_OK && put_chunk(p, &rest, &at, &now);
    if (more) status = start_send(p, &now);
    while (more && status == TARN_OK) {
        status = start_receive(p, &now);
        if (status == TARN_OK) status = instead_receive(p, &now);
        if (status == TARN_OK) status = end_receive(p, &ends);
        ends = (struct ends){0};
        if (status == TARN_OK) status = put_chunk_ensure(p, &now);
        if (status != TARN_OK) break;
        more = put_chunk(p, &rest, &at, &next);
        if (more) status = start_send(p, &next);
        /* also when the connection broke: END goes out over the next one */
        put_write(p, now.order, now.n);
        if (status != TARN_OK) break;
        ends = put_chunk_written(p, &now);
        status = end_send(p, &ends);
        if (status == TARN_OK) status = revokes_send(p, now.order, now.n);
        now = next;
    }
    if (status == TARN_OK) status = end_receive(p, &ends);
    if (status != TARN_OK) ctl_abandon(&p->b.lane->ctl);
    if (p->new_session) session_leave(p);
    return status;
}

/* One that could be opened and is tried again, so many times at most. */
static bool put_is_tried_again(const struct put *u) {
    return u->is.state != ITEM_FINISHED && !u->held_up;
}

/* What failed once more in a pass that stored nothing is final; but those that are tried again, and
 * had the room and the keys meanwhile, come first. */
static void put_settle(struct putting *p) {
    bool nothing = p->stored == 0;
    for (size_t i = 0; i < p->b.n && nothing; i++) nothing = !put_is_tried_again(&p->puts[i]);
    for (size_t i = 0; i < p->b.n && nothing; i++) {
        struct put *u = &p->puts[i];
        if (u->is.state == ITEM_FINISHED || put_waits(u)) continue;
        if (u->reason == TARN_ENOSPACE) fail(u->reason, "%s", p->no_room);
        put_finish(p, i, u->reason);
    }
}

static tarn_status put_pass(struct item_batch *b) {
    struct putting *p = CONTAINER_OF(b, struct putting, b);
    /* Where all there is has been out of reach, the server gives out what is to be avoided. After
     * that it is told only of what this call itself has tried, or it would be the same place
     * again: the second time at once, since it will be another host; then the pool is given a
     * little time. */
    p->avoid_since_ms = p->most_tries > 1 ? b->began_ms : 0;
    if (p->most_tries > 1) (void)lane_pause(b->lane, p->most_tries - 2, b->deadline);
    p->stored = 0;
    p->most_tries = 0;
    tarn_status status = put_all(p);
    if (status == TARN_OK) put_settle(p);
    return status;
}

static tarn_status put_check(struct putting *p, size_t i) {
    const tarn_item *item = &p->b.items[i];
    struct put *u = &p->puts[i];
    struct iovec one;
    size_t n_iov;
    const struct iovec *iov = item_iov(item, &one, &n_iov);
    u->size = iov_total(iov, n_iov);
    u->device = client_is_device(p->b.lane->client, iov, n_iov);
    tarn_status status = client_check_key(item->key, item->key_len);
    if (status == TARN_OK && u->size > VALUE_MAX)
        status = fail(TARN_EINVAL, "values are at most 2^40 bytes");
    if (status == TARN_OK) status = put_options_check(p->options);
    if (status == TARN_OK && u->device && u->size <= INLINE_MAX)
        status = fail(TARN_ENOTSUP, "values of up to %u bytes do not come from memory of a device",
                      INLINE_MAX);
    return status;
}

static void put_give_up(struct item_batch *b, size_t i, tarn_status status) {
    put_finish(CONTAINER_OF(b, struct putting, b), i, status);
}

tarn_status put_run(struct lane *lane, tarn_item *items, size_t n, const tarn_put_options *options,
                    uint64_t deadline) {
    struct putting *p = arena_alloc(&lane->arena, sizeof(*p));
    *p = (struct putting){.options = options};
    batch_init(&p->b, lane, items, n, sizeof(struct put), deadline);
    p->puts = (struct put *)(void *)p->b.of;
    COUNT(lane, puts, n);
    for (size_t i = 0; i < n; i++) {
        tarn_status status = put_check(p, i);
        if (status != TARN_OK) put_finish(p, i, status);
    }
    return batch_run(&p->b, put_pass, put_give_up);
}
