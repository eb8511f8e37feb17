/* Puts: chunks of keys are opened, written and ended. While the bytes of one chunk move, the next
 * one is being opened. */
#include "client/put.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/assert.h"
#include "base/errors.h"
#include "client/answer.h"
#include "client/arena.h"
#include "client/client.h"
#include "client/ctl.h"
#include "client/error.h"
#include "client/lane.h"
#include "client/outage.h"
#include "client/placement.h"
#include "engine/engine.h"

#define CHUNK_BYTES (UINT64_C(1) << 30) /* opened at once: well within put-timeout at 100 MB/s */

struct chunk {
    const size_t *order;
    size_t n;
    size_t plain; /* opened by MPUTSTART */
};

void put_finish(struct putting *p, size_t i, tarn_status status) {
    struct put *u = &p->puts[i];
    TARN_ASSERT(u->state != PUT_FINISHED);
    u->state = PUT_FINISHED;
    p->unfinished--;
    p->items[i].status = status;
    p->items[i].got = status == TARN_OK ? u->size : 0;
    if (status == TARN_OK) {
        p->items[i].replicas = (uint32_t)__builtin_popcount(put_alive(u));
        COUNT(p->lane, put_replicas_failed, __builtin_popcount(u->failed));
        p->stored++;
        COUNT(p->lane, put_stored, 1);
        COUNT(p->lane, bytes_written, u->size);
    } else if (status == TARN_EEXISTS) {
        COUNT(p->lane, put_existed, 1);
    } else {
        COUNT(p->lane, put_failures, 1);
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
    request_word(&p->lane->request, p->items[i].key, p->items[i].key_len);
    request_number(&p->lane->request, (int64_t)number);
}

/* In one request, but for those that take the place of another put: they have one each. */
static tarn_status send_start(struct putting *p, struct chunk *c) {
    struct lane *lane = p->lane;
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

/* What this batch itself may stand in the way of, with room that it holds or a key that it has
 * twice, is tried again once some of it is stored; what is only not now, when it is time. */
static bool held_up(struct putting *p, tarn_status status, const struct answer *a) {
    enum error_act act = error_act(status);
    if (act == ERROR_LATER) {
        p->later++;
        p->later_ms = max_u64(p->later_ms, answer_later_ms(a));
    }
    return act == ERROR_LATER || act == ERROR_TURN;
}

static bool waits(const struct put *u) {
    return u->state != PUT_FINISHED && u->held_up && error_act(u->reason) == ERROR_LATER;
}

static void started(struct putting *p, size_t i, const struct answer *a) {
    struct put *u = &p->puts[i];
    tarn_status status = placement_of_put(&p->lane->arena, a, u->size, &u->place);
    if (status == TARN_EBUSY && u->instead != 0) {
        put_finish(p, i, u->reason); /* still by our own first attempt */
        return;
    }
    u->reason = status;
    u->held_up = held_up(p, status, a);
    if (status == TARN_ENOSPACE) snprintf(p->no_room, sizeof(p->no_room), "%s", tarn_last_error());
    if (u->held_up) return;
    if (status != TARN_OK) {
        put_finish(p, i, status);
        return;
    }
    u->state = PUT_OPEN;
    u->pos = 0;
    u->failed = 0;
    u->instead = 0;
    u->loose = false;
    u->crc = 0;
    u->receipts = placement_receipts(&p->lane->arena, &u->place, &u->n_receipts);
    if (u->size > CRC_BLOCK && u->crcs == NULL && !u->device) {
        u->crcs =
            arena_alloc(&p->lane->arena, (u->size + CRC_BLOCK - 1) / CRC_BLOCK * sizeof(uint32_t));
    }
}

static tarn_status receive_array(struct putting *p, size_t n, const char *what,
                                 struct answer **a_p) {
    tarn_status status = lane_receive(p->lane, a_p, p->deadline);
    if (status == TARN_OK) status = lane_check(p->lane, *a_p, what);
    if (status == TARN_OK && ((*a_p)->type != ANSWER_ARRAY || (*a_p)->len != n)) {
        status =
            fail(TARN_EPROTO, "%s: asked for %zu keys, got another number of answers", what, n);
    }
    return status;
}

static tarn_status receive_start(struct putting *p, const struct chunk *c) {
    struct answer *a = NULL;
    tarn_status status = TARN_OK;
    size_t at = 0;
    if (c->plain > 0) status = receive_array(p, c->plain, "MPUTSTART", &a);
    for (size_t k = 0; k < c->n && status == TARN_OK; k++) {
        if (p->puts[c->order[k]].instead == 0) started(p, c->order[k], &a->element[at++]);
    }
    return status;
}

static tarn_status receive_instead(struct putting *p, const struct chunk *c) {
    struct answer *a;
    tarn_status status = TARN_OK;
    for (size_t k = 0; k < c->n && status == TARN_OK; k++) {
        if (p->puts[c->order[k]].instead == 0) continue;
        status = lane_receive(p->lane, &a, p->deadline);
        if (status == TARN_OK) started(p, c->order[k], a);
    }
    return status;
}

static tarn_status ensure_segments(struct putting *p, const struct chunk *c) {
    for (size_t k = 0; k < c->n; k++) {
        if (p->puts[c->order[k]].state != PUT_OPEN) continue;
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
    const struct iovec *iov = item_iov(&p->items[i], &one, &n);
    char *copy = arena_alloc(&p->lane->arena, INLINE_MAX);
    size_t len = u->place.replicas == 0 ? (size_t)u->size : 0, at = 0;
    for (size_t k = 0; k < n && at < len; k++) {
        size_t take = iov[k].iov_len < len - at ? iov[k].iov_len : len - at;
        memcpy(copy + at, iov[k].iov_base, take);
        at += take;
    }
    request_word(&p->lane->request, copy, len);
}

static void arg_receipts(struct putting *p, size_t i) {
    const struct put *u = &p->puts[i];
    request_word(&p->lane->request, u->receipts != NULL ? (const char *)u->receipts : "",
                 u->n_receipts * GRANT_RECEIPT_SIZE);
}

/* Empty values can only be given to the single command: in a list, empty means none. */
static tarn_status end_empty(struct putting *p, size_t i) {
    struct ctl_request *r = &p->lane->request;
    request_begin(r);
    struct wire_end end = {.keys = {request_next(r), 1}};
    key_append(p, i, p->puts[i].place.token);
    request_number(r, p->puts[i].crc);
    end.values = request_word(r, "", 0);
    request_build(r, WIRE_putend, &end);
    return lane_send(p->lane, false);
}

/* The items of a chunk that are WRITTEN: one MPUTEND, and a PUTEND for each that is empty. */
struct ends {
    size_t *full, *empty;
    size_t n_full, n_empty;
};

static struct ends written(struct putting *p, const struct chunk *c) {
    struct ends e = {0};
    e.full = arena_alloc(&p->lane->arena, c->n * sizeof(size_t));
    e.empty = arena_alloc(&p->lane->arena, c->n * sizeof(size_t));
    for (size_t k = 0; k < c->n; k++) {
        const struct put *u = &p->puts[c->order[k]];
        if (u->state != PUT_WRITTEN) continue;
        if (u->size > 0) {
            e.full[e.n_full++] = c->order[k];
        } else {
            e.empty[e.n_empty++] = c->order[k];
        }
    }
    return e;
}

static tarn_status send_end(struct putting *p, const struct ends *e) {
    struct lane *lane = p->lane;
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
    for (size_t k = 0; k < e->n_empty && status == TARN_OK; k++) status = end_empty(p, e->empty[k]);
    return status;
}

static void ended(struct putting *p, size_t i, const struct answer *a) {
    struct put *u = &p->puts[i];
    tarn_status status = answer_check(a, "PUTEND");
    bool lost = status == TARN_ETOKEN || status == TARN_ESTALE;
    if (lost && u->tries < p->lane->client->options.retries) {
        /* The server lost the put (restart, put-timeout) or its space (segments that left): the
         * bytes are still here, so once more from the start. */
        u->tries++;
        u->state = PUT_WANTED;
        COUNT(p->lane, retries, 1);
        return;
    }
    put_finish(p, i, status);
}

static tarn_status receive_end(struct putting *p, const struct ends *e) {
    struct answer *a;
    tarn_status status = TARN_OK;
    if (e->n_full > 0) status = receive_array(p, e->n_full, "MPUTEND", &a);
    for (size_t k = 0; k < e->n_full && status == TARN_OK; k++)
        ended(p, e->full[k], &a->element[k]);
    for (size_t k = 0; k < e->n_empty && status == TARN_OK; k++) {
        status = lane_receive(p->lane, &a, p->deadline);
        if (status == TARN_OK) ended(p, e->empty[k], a);
    }
    return status;
}

/* Gives back what was opened and will not be ended. The answers do not matter: an unknown token is
 * over anyway. */
static tarn_status send_revokes(struct putting *p, const size_t *order, size_t n) {
    size_t count = 0;
    for (size_t k = 0; k < n; k++) count += p->puts[order[k]].revoke;
    if (count == 0) return TARN_OK;
    struct ctl_request *r = &p->lane->request;
    request_begin(r);
    struct wire_end end = {.keys = {request_next(r), (uint32_t)count}};
    for (size_t k = 0; k < n; k++)
        if (p->puts[order[k]].revoke) key_append(p, order[k], p->puts[order[k]].place.token);
    request_build(r, WIRE_mputrevoke, &end);
    tarn_status status = lane_send(p->lane, true);
    for (size_t k = 0; k < n && status == TARN_OK; k++) {
        struct put *u = &p->puts[order[k]];
        if (!u->revoke) continue;
        u->revoke = false;
        if (u->state == PUT_WANTED && u->last) put_finish(p, order[k], u->reason);
    }
    return status;
}

/* --- passes --- */

/* What a broken connection left behind is ended, or revoked, before anything is started anew. */
static tarn_status recover(struct putting *p, const size_t *order, size_t n) {
    size_t limit = p->lane->client->options.batch_keys;
    for (size_t at = 0; at < n; at += limit) {
        struct chunk c = {.order = order + at, .n = n - at < limit ? n - at : limit};
        for (size_t k = 0; k < c.n; k++) {
            struct put *u = &p->puts[c.order[k]];
            if (u->state != PUT_OPEN) continue;
            u->state = PUT_WANTED;
            u->revoke = true;
            u->reason = TARN_ECLOSED;
            /* not this put's fault; the connection's attempts are counted elsewhere */
            u->last = false;
        }
        struct ends e = written(p, &c);
        tarn_status status = send_end(p, &e);
        if (status == TARN_OK) status = receive_end(p, &e);
        if (status == TARN_OK) status = send_revokes(p, c.order, c.n);
        if (status != TARN_OK) return status;
    }
    return TARN_OK;
}

/* When its connection is closed the server has the session cut off, and gets back the space that
 * its bytes may still be on their way to. Whatever was sent is to arrive before that. */
static void leave_session(struct putting *p) {
    p->new_session = false;
    if (p->lane->ctl.fd < 0) return;
    (void)lane_ping(p->lane, p->deadline);
    ctl_close(&p->lane->ctl);
    if (p->lane->ref->writers == 0)
        engine_session_changed(p->lane->engine); /* or hosts would wait for our mappings */
}

static bool next_chunk(const struct putting *p, const size_t *order, size_t n, size_t *at,
                       struct chunk *c) {
    *c = (struct chunk){.order = order + *at};
    uint64_t bytes = 0;
    size_t limit = lane_chunk_keys(p->lane, p->n);
    while (*at < n && c->n < limit) {
        uint64_t size = p->puts[order[*at]].size;
        if (c->n > 0 && bytes + size > CHUNK_BYTES) break;
        bytes += size;
        c->n++;
        ++*at;
    }
    return c->n > 0;
}

static size_t collect(const struct putting *p, size_t *order) {
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        if (p->puts[i].state != PUT_FINISHED) order[n++] = i;
    }
    return n;
}

/* On the wire: START(a) | START(b) END(a) REVOKE(a) | START(c) END(b) REVOKE(b) ...: answers come
 * in that order. */
static tarn_status pass(struct putting *p) {
    size_t *order = arena_alloc(&p->lane->arena, p->n * sizeof(*order));
    size_t n = collect(p, order), at = 0;
    tarn_status status = lane_ready(p->lane, p->deadline);
    if (status == TARN_OK) status = recover(p, order, n);
    n = collect(p, order);
    struct chunk now, next;
    struct ends ends = {0};
    bool more = status == TARN_OK && next_chunk(p, order, n, &at, &now);
    if (more) status = send_start(p, &now);
    while (more && status == TARN_OK) {
        status = receive_start(p, &now);
        if (status == TARN_OK) status = receive_instead(p, &now);
        if (status == TARN_OK) status = receive_end(p, &ends);
        ends = (struct ends){0};
        if (status == TARN_OK) status = ensure_segments(p, &now);
        if (status != TARN_OK) break;
        more = next_chunk(p, order, n, &at, &next);
        if (more) status = send_start(p, &next);
        /* also when the connection broke: END goes out over the next one */
        put_write(p, now.order, now.n);
        if (status != TARN_OK) break;
        ends = written(p, &now);
        status = send_end(p, &ends);
        if (status == TARN_OK) status = send_revokes(p, now.order, now.n);
        now = next;
    }
    if (status == TARN_OK) status = receive_end(p, &ends);
    if (status != TARN_OK) ctl_abandon(&p->lane->ctl);
    if (p->new_session) leave_session(p);
    return status;
}

/* One that could be opened and is tried again, so many times at most. */
static bool tried_again(const struct put *u) {
    return u->state != PUT_FINISHED && !u->held_up;
}

/* What failed once more in a pass that stored nothing is final; but those that are tried again, and
 * had the room and the keys meanwhile, come first. */
static void settle(struct putting *p) {
    bool nothing = p->stored == 0;
    for (size_t i = 0; i < p->n && nothing; i++) nothing = !tried_again(&p->puts[i]);
    for (size_t i = 0; i < p->n && nothing; i++) {
        struct put *u = &p->puts[i];
        if (u->state == PUT_FINISHED || waits(u)) continue;
        if (u->reason == TARN_ENOSPACE) fail(u->reason, "%s", p->no_room);
        put_finish(p, i, u->reason);
    }
}

static tarn_status prepare(struct putting *p) {
    p->puts = arena_alloc(&p->lane->arena, p->n * sizeof(*p->puts));
    memset(p->puts, 0, p->n * sizeof(*p->puts));
    for (size_t i = 0; i < p->n; i++) {
        tarn_item *item = &p->items[i];
        item->value_size = item->version = 0;
        item->replicas = 0;
        tarn_status status = client_check_key(item->key, item->key_len);
        p->puts[i].size = item->n_iov > 0 ? iov_total(item->iov, item->n_iov) : item->buffer_len;
        if (status == TARN_OK && p->puts[i].size > VALUE_MAX) {
            status = fail(TARN_EINVAL, "values are at most 2^40 bytes");
        }
        if (status == TARN_OK) status = put_options_check(p->options);
        struct iovec one;
        size_t n_iov;
        const struct iovec *iov = item_iov(item, &one, &n_iov);
        p->puts[i].device = client_is_device(p->lane->client, iov, n_iov);
        if (status == TARN_OK && p->puts[i].device && p->puts[i].size <= INLINE_MAX)
            status =
                fail(TARN_ENOTSUP, "values of up to %u bytes do not come from memory of a device",
                     INLINE_MAX);
        if (status != TARN_OK) put_finish(p, i, status);
    }
    return TARN_OK;
}

/* Those whose room or readiness did not come within the call's time. */
static void give_up(struct putting *p) {
    for (size_t i = 0; i < p->n; i++) {
        struct put *u = &p->puts[i];
        if (!waits(u)) continue;
        fail(u->reason, "the server did not take %" PRIu64 " bytes within the call's time (%s): %s",
             u->size, error_code(u->reason), tarn_status_text(u->reason));
        put_finish(p, i, u->reason);
    }
}

tarn_status put_run(struct lane *lane, tarn_item *items, size_t n, const tarn_put_options *options,
                    uint64_t deadline) {
    struct putting *p = arena_alloc(&lane->arena, sizeof(*p));
    *p = (struct putting){.lane = lane,
                          .items = items,
                          .n = n,
                          .options = options,
                          .deadline = deadline,
                          .unfinished = n,
                          .began_ms = now_ms()};
    COUNT(lane, puts, n);
    tarn_status status = prepare(p);
    struct attempts attempts = {0};
    unsigned waited = 0;
    while (p->unfinished > 0 && status == TARN_OK) {
        /* Where all there is has been out of reach, the server gives out what is to be avoided.
         * After that it is told only of what this call itself has tried, or it would be the same
         * place again. */
        p->avoid_since_ms = p->most_tries > 1 ? p->began_ms : 0;
        p->stored = 0;
        p->most_tries = 0;
        p->later = p->later_ms = 0;
        status = pass(p);
        if (status == TARN_OK) settle(p);
        if (status == TARN_OK && p->later > 0 && !lane_later(lane, waited++, p->later_ms, deadline))
            give_up(p);
        /* The second time at once, since it will be another host; then the pool is given a little
         * time. */
        if (status == TARN_OK && p->unfinished > 0 && p->most_tries > 1)
            (void)lane_pause(lane, p->most_tries - 2, deadline);
        if (status != TARN_OK && lane_retry(lane, &attempts, status, deadline)) status = TARN_OK;
        if (status == TARN_OK && p->unfinished > 0 && now_ms() >= deadline) {
            status = fail(TARN_ETIMEOUT, "the deadline passed before all puts were done");
            COUNT(lane, timeouts, 1);
        }
    }
    for (size_t i = 0; i < n && status != TARN_OK; i++) {
        if (p->puts[i].state != PUT_FINISHED) put_finish(p, i, status);
    }
    return status;
}
