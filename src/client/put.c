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
        uint32_t failed = u->failed != 0 ? (uint32_t)__builtin_popcount(u->failed) : 0;
        p->b.items[i].replicas = u->place.replicas - failed;
        COUNT(p->b.lane, put_replicas_failed, failed);
        p->stored++;
        COUNT(p->b.lane, put_stored, 1);
        COUNT(p->b.lane, bytes_written, u->size);
    } else if (status == TARN_EEXISTS) {
        COUNT(p->b.lane, put_existed, 1);
    } else {
        COUNT(p->b.lane, put_failures, 1);
    }
}

/* --- options --- */

/* One for each item; NULL: one for all, or none. */
static const tarn_key *put_ids(const tarn_put_options *o) {
    return o->groups != NULL ? o->groups : o->boundaries;
}

tarn_status put_options_check(const tarn_put_options *o, size_t i) {
    const tarn_key *ids = put_ids(o);
    if (o->prefers > WIRE_PREFERS)
        return fail(TARN_EINVAL, "prefer may name at most %d segments", WIRE_PREFERS);
    if ((o->group != NULL) + (o->groups != NULL) + (o->boundaries != NULL) > 1)
        return fail(TARN_EINVAL, "group, groups and boundaries exclude each other");
    if ((ids != NULL ? ids[i].len : o->group_len) > WIRE_KEY_MAX)
        return fail(TARN_EINVAL, "the id of a group has at most %u bytes", WIRE_KEY_MAX);
    return hint_check(HINT_OF(o));
}

struct call_spread put_spread(const tarn_put_options *o, size_t n) {
    uint32_t deepest = 0;
    for (size_t i = 0; o->depths != NULL && i < n; i++)
        if (o->depths[i] > deepest) deepest = o->depths[i];
    return (struct call_spread){o->depths, (size_t)deepest + 1};
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
    put->ttl_ms = o->ttl_ms;
    put->replace = o->replace;
    put->moving = o->moving;
    hint_fill(r, HINT_OF(o), &put->hint);
    put->avoid.n = (uint32_t)outage_names(lane, since_ms, away, WIRE_PREFERS);
    for (size_t i = 0; i < put->avoid.n; i++) put->avoid.at[i] = request_str(r, away[i]);
}

void put_together_one(struct lane *lane, const tarn_put_options *o, size_t i,
                      struct wire_put *put) {
    const tarn_key *ids = put_ids(o);
    tarn_key id = ids != NULL ? ids[i] : (tarn_key){o->group, o->group != NULL ? o->group_len : 0};
    if (id.len == 0) return;
    *(o->boundaries != NULL ? &put->boundary : &put->group) =
        request_word(&lane->request, id.data, id.len);
}

/* What each of n items goes together with. */
static void put_together_each(struct putting *p, const size_t *order, size_t n,
                              struct wire_put *put) {
    const tarn_put_options *o = p->options;
    const tarn_key *ids = put_ids(o);
    struct ctl_request *r = &p->b.lane->request;
    if (ids == NULL) {
        put_together_one(p->b.lane, o, 0, put);
        return;
    }
    *(o->boundaries != NULL ? &put->boundaries : &put->groups) = request_next(r);
    for (size_t k = 0; k < n; k++) request_word(r, ids[order[k]].data, ids[order[k]].len);
}

static void key_append(struct putting *p, size_t i, uint64_t number) {
    request_word(&p->b.lane->request, p->b.items[i].key, p->b.items[i].key_len);
    request_number(&p->b.lane->request, (int64_t)number);
}

/* --- requests --- */

/* Most puts of a chunk share a request; the others, which come behind them, have one each. kind: 1
 * shares, 0 has its own, -1 is left out. */
static struct chunk chunk_split(struct putting *p, const struct chunk *c,
                                int (*kind)(const struct put *u)) {
    size_t shared = 0;
    while (shared < c->n && kind(&p->puts[c->order[shared]]) == 1) shared++;
    if (shared == c->n) return (struct chunk){.order = c->order, .n = shared, .plain = shared};
    size_t *order = arena_alloc(&p->b.lane->arena, c->n * sizeof(*order));
    struct chunk split = {.order = order};
    for (int k = 1; k >= 0; k--) {
        for (size_t i = 0; i < c->n; i++)
            if (kind(&p->puts[c->order[i]]) == k) order[split.n++] = c->order[i];
        if (k == 1) split.plain = split.n;
    }
    return split;
}

/* Of a batch: one answer for all, or one for each. */
static tarn_status ends_receive(struct putting *p, size_t n, const char *what,
                                struct answer **a_p) {
    tarn_status status = lane_receive(p->b.lane, a_p, p->b.deadline);
    if (status != TARN_OK) return status;
    const struct answer *a = *a_p;
    if (a->type == ANSWER_SIMPLE) return TARN_OK;
    if (a->type == ANSWER_ERROR && answer_error_status(a->str) == TARN_ETOKEN) return TARN_OK;
    return batch_check(&p->b, a, n, what);
}

/* request builds one for n of them. */
static tarn_status chunk_send(struct putting *p, const struct chunk *c,
                              void (*request)(struct putting *p, const size_t *order, size_t n)) {
    tarn_status status = TARN_OK;
    for (size_t k = 0; k < c->n && status == TARN_OK;) {
        size_t n = k < c->plain ? c->plain : 1;
        request_begin(&p->b.lane->request);
        request(p, c->order + k, n);
        status = lane_send(p->b.lane, false);
        k += n;
    }
    return status;
}

/* The batch that its puts are, behind their answers. */
static tarn_status chunk_number(struct chunk *c, const struct answer *all) {
    if (!answer_u64(&all->element[c->plain], &c->batch))
        return fail(TARN_EPROTO, "MPUTSTART: the batch is no number");
    for (size_t k = 0; k < c->plain; k++)
        c->opened += all->element[k].type == ANSWER_ARRAY || all->element[k].type == ANSWER_STRING;
    return TARN_OK;
}

static tarn_status chunk_receive(struct putting *p, struct chunk *c, const char *what,
                                 void (*answered)(struct putting *p, size_t i,
                                                  const struct answer *a)) {
    struct answer *all = NULL, *a;
    tarn_status status = TARN_OK;
    if (c->plain > 0 && c->batch != 0)
        status = ends_receive(p, c->plain, what, &all);
    else if (c->plain > 0)
        status = batch_receive(&p->b, c->plain + c->batched, what, &all);
    if (status == TARN_OK && c->plain > 0 && c->batched) status = chunk_number(c, all);
    for (size_t k = 0; k < c->n && status == TARN_OK; k++) {
        if (k < c->plain)
            a = all->type == ANSWER_ARRAY ? &all->element[k] : all;
        else
            status = lane_receive(p->b.lane, &a, p->b.deadline);
        if (status == TARN_OK) answered(p, c->order[k], a);
    }
    return status;
}

/* --- PUTSTART --- */

static int start_kind(const struct put *u) {
    return u->instead == 0; /* else it takes the place of another put */
}

static void start_request(struct putting *p, const size_t *order, size_t n) {
    struct ctl_request *r = &p->b.lane->request;
    uint64_t instead = p->puts[order[0]].instead;
    struct wire_put put = {.keys = {request_next(r), (uint32_t)n},
                           .packed = instead == 0,
                           .no_grant = lane_no_grant(p->b.lane),
                           .instead = instead,
                           .batch = instead == 0 && p->b.lane->numbers.puts};
    for (size_t k = 0; k < n; k++) {
        key_append(p, order[k], p->puts[order[k]].size);
        p->puts[order[k]].no_grant = put.no_grant;
    }
    put_options_fill(p->b.lane, p->options, p->avoid_since_ms, &put);
    if (instead != 0)
        put_together_one(p->b.lane, p->options, order[0], &put);
    else
        put_together_each(p, order, n, &put);
    if (instead == 0) spread_fill(r, &p->spread, order, n, &put.spread);
    request_build(r, instead == 0 ? WIRE_mputstart : WIRE_putstart, &put);
}

/* What is only not now is waited for. */
static bool put_waits(const struct put *u) {
    return u->is.state != ITEM_FINISHED && u->is.later != TARN_OK;
}

static void put_started(struct putting *p, size_t i, const struct answer *a) {
    struct put *u = &p->puts[i];
    tarn_status status = placement_of_put(&p->b.lane->arena, a, u->no_grant, u->size, &u->place);
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
    u->loose = u->needs_grant = false;
    u->crc = 0;
    u->receipts = NULL;
    u->n_receipts = 0;
    if (placement_is_once(&u->place))
        u->receipts = placement_receipts(&p->b.lane->arena, &u->place, &u->n_receipts);
    if (u->size > CRC_BLOCK && u->crcs == NULL && !u->device) {
        u->crcs = arena_alloc(&p->b.lane->arena,
                              (u->size + CRC_BLOCK - 1) / CRC_BLOCK * sizeof(uint32_t));
    }
}

/* All of it lies in the segment that was ensured last: the server need not be asked. */
static bool chunk_is_ensured(const struct putting *p, const struct chunk *c) {
    for (size_t k = 0; k < c->n; k++) {
        const struct put *u = &p->puts[c->order[k]];
        if (u->is.state == ITEM_PLACED && !put_is_ensured(p, u)) return false;
    }
    return true;
}

static tarn_status put_chunk_ensure(struct putting *p, const struct chunk *c) {
    for (size_t k = 0; k < c->n; k++) {
        const struct put *u = &p->puts[c->order[k]];
        if (u->is.state != ITEM_PLACED || put_is_ensured(p, u)) continue;
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

/* Those that are WRITTEN. Empty values can only be given to the single command: in a list, empty
 * means none. */
static int end_kind(const struct put *u) {
    return u->is.state == ITEM_WRITTEN ? u->size > 0 : -1;
}

static void end_request(struct putting *p, const size_t *order, size_t n) {
    struct ctl_request *r = &p->b.lane->request;
    struct wire_end end = {.keys = {request_next(r), (uint32_t)n}};
    bool values = false, crcs = false, faileds = false, receipts = false;
    for (size_t k = 0; k < n; k++) {
        const struct put *u = &p->puts[order[k]];
        key_append(p, order[k], u->place.token);
        request_number(r, u->device ? -1 : (int64_t)u->crc);
        values = values || u->place.replicas == 0;
        crcs = crcs || u->crcs != NULL;
        faileds = faileds || u->failed != 0;
        receipts = receipts || u->receipts != NULL;
    }
    if (values) end.values = request_next(r);
    for (size_t k = 0; k < n && values; k++) arg_value(p, order[k]);
    if (crcs) end.crcs = request_next(r);
    for (size_t k = 0; k < n && crcs; k++) {
        const struct put *u = &p->puts[order[k]];
        request_crcs(r, u->crcs, u->crcs == NULL ? 0 : (u->size + CRC_BLOCK - 1) / CRC_BLOCK);
    }
    if (faileds) end.faileds = request_next(r);
    for (size_t k = 0; k < n && faileds; k++) request_number(r, p->puts[order[k]].failed);
    if (receipts) end.receipts = request_next(r);
    for (size_t k = 0; k < n && receipts; k++) arg_receipts(p, order[k]);
    request_build(r, p->puts[order[0]].size > 0 ? WIRE_mputend : WIRE_putend, &end);
}

/* The puts of a batch that are all ended alike. */
static void end_batch_request(struct putting *p, const size_t *order, size_t n) {
    struct ctl_request *r = &p->b.lane->request;
    struct wire_end end = {.keys = {request_next(r), 0}, .batch = p->batch};
    uint32_t *crcs = arena_alloc(&p->b.lane->arena, n * sizeof(*crcs));
    for (size_t k = 0; k < n; k++) crcs[k] = p->puts[order[k]].crc;
    if (!p->puts[order[0]].device) end.batch_crcs = request_crcs(r, crcs, n);
    request_build(r, WIRE_mputend, &end);
}

/* Can all that was opened with `started` be ended by the batch that it is? */
static bool ends_by_batch(const struct putting *p, const struct chunk *started,
                          const struct chunk *ends) {
    if (started->batch == 0 || started->n > started->plain || ends->n == 0 ||
        ends->n > ends->plain || ends->n != started->opened)
        return false;
    for (size_t k = 0; k < ends->n; k++) {
        const struct put *u = &p->puts[ends->order[k]];
        if (u->failed != 0 || u->receipts != NULL || u->crcs != NULL || u->place.replicas == 0 ||
            u->device != p->puts[ends->order[0]].device)
            return false;
    }
    return true;
}

/* Those of `started` that are WRITTEN. */
static tarn_status ends_send(struct putting *p, const struct chunk *started, struct chunk *ends) {
    *ends = chunk_split(p, started, end_kind);
    if (ends_by_batch(p, started, ends)) ends->batch = p->batch = started->batch;
    return chunk_send(p, ends, ends->batch != 0 ? end_batch_request : end_request);
}

static void put_ended(struct putting *p, size_t i, const struct answer *a) {
    struct put *u = &p->puts[i];
    tarn_status status = answer_check(a, "PUTEND");
    /* What moves has left its source, and somebody else may have put the key since. */
    bool lost = (status == TARN_ETOKEN || status == TARN_ESTALE) && !p->options->moving;
    if (lost && u->tries < p->b.lane->client->options.retries) {
        /* The server lost the put (restart, put-timeout) or its space (segments that left): the
         * bytes are still here, so once more from the start. */
        u->tries++;
        u->is.state = ITEM_WANTED;
        COUNT(p->b.lane, retries, 1);
        return;
    }
    /* it is put elsewhere, and this one would be in the way when its slot comes back */
    u->revoke = status == TARN_EMOVED;
    put_finish(p, i, status);
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

/* The answer to ends, of which nothing is awaited any more then, and what follows from it. */
static tarn_status ends_answered(struct putting *p, struct chunk *ends) {
    struct chunk c = *ends;
    *ends = (struct chunk){.n = 0};
    tarn_status status = chunk_receive(p, &c, "MPUTEND", put_ended);
    return status == TARN_OK ? revokes_send(p, c.order, c.n) : status;
}

/* Whoever wants to know is asked which of those that are WRITTEN are to be ended. */
static void put_ask(struct putting *p, const size_t *order, size_t n) {
    const tarn_put_options *o = p->options;
    if (o->written == NULL || n == 0) return;
    const tarn_item **items = arena_alloc(&p->b.lane->arena, n * sizeof(tarn_item *));
    int *keep = arena_alloc(&p->b.lane->arena, n * sizeof(*keep));
    size_t asked = 0, at = 0;
    for (size_t k = 0; k < n; k++) {
        if (p->puts[order[k]].is.state != ITEM_WRITTEN) continue;
        keep[asked] = 1;
        items[asked++] = &p->b.items[order[k]];
    }
    if (asked > 0) o->written(o->written_arg, items, asked, keep);
    for (size_t k = 0; k < n; k++) {
        struct put *u = &p->puts[order[k]];
        if (u->is.state != ITEM_WRITTEN || keep[at++] != 0) continue;
        u->is.state = ITEM_WANTED;
        u->revoke = u->last = true;
        u->reason = TARN_ECANCELED;
    }
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
        struct chunk ends; /* that batch was the former connection's */
        tarn_status status = ends_send(p, &c, &ends);
        if (status == TARN_OK) status = chunk_receive(p, &ends, "MPUTEND", put_ended);
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

static bool put_chunk(struct putting *p, const struct chunk *rest, size_t *at, struct chunk *c) {
    bool any = batch_chunk(&p->b, rest, at, c);
    uint64_t bytes = 0;
    for (size_t k = 0; k < c->n; k++) {
        bytes = add_sat(bytes, p->puts[c->order[k]].size);
        if (k == 0 || bytes <= CHUNK_BYTES) continue;
        *at -= c->n - k;
        c->n = k;
    }
    *c = chunk_split(p, c, start_kind);
    c->batched = p->b.lane->numbers.puts;
    return any;
}

/* The first chunk of what is left. false: there is none, or it could not be asked for. */
static bool put_all_begin(struct putting *p, struct chunk *rest, size_t *at,
                          tarn_status *status_p) {
    *rest = batch_rest(&p->b);
    *status_p = lane_ready(p->b.lane, p->b.deadline);
    if (*status_p == TARN_OK) *status_p = put_recover(p, rest->order, rest->n);
    *rest = batch_rest(&p->b);
    p->ends = (struct chunk){.n = 0};
    if (*status_p != TARN_OK || !put_chunk(p, rest, at, &p->now)) return false;
    *status_p = chunk_send(p, &p->now, start_request);
    return *status_p == TARN_OK;
}

/* On the wire: START(a) | START(b) END(a) REVOKE(a) | START(c) END(b) REVOKE(b) ...: answers come
 * in that order. While a chunk is written the server ends the one before; only who has to ask it
 * for segments awaits that first. */
static tarn_status put_all(struct putting *p) {
    struct chunk rest = {.n = 0}, next;
    size_t at = 0;
    tarn_status status = TARN_OK;
    bool more = p->ahead == PUT_ASKED;
    if (p->ahead == PUT_NOTHING) more = put_all_begin(p, &rest, &at, &status);
    p->ahead = PUT_NOTHING;
    struct chunk now = p->now, ends = p->ends;
    p->b.ensured.any = false;
    while (more && status == TARN_OK) {
        status = chunk_receive(p, &now, "MPUTSTART", put_started);
        if (status == TARN_OK && !chunk_is_ensured(p, &now)) {
            status = ends_answered(p, &ends);
            if (status == TARN_OK) status = put_chunk_ensure(p, &now);
        }
        if (status != TARN_OK) break;
        more = put_chunk(p, &rest, &at, &next);
        if (more) status = chunk_send(p, &next, start_request);
        /* also when the connection broke: END goes out over the next one */
        put_write(p, now.order, now.n);
        put_ask(p, now.order, now.n);
        if (status == TARN_OK) status = ends_answered(p, &ends);
        if (status != TARN_OK) break;
        status = ends_send(p, &now, &ends);
        if (status == TARN_OK) status = revokes_send(p, now.order, now.n);
        now = next;
    }
    if (status == TARN_OK) status = ends_answered(p, &ends);
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
    if (p->ahead == PUT_NOTHING) {
        p->avoid_since_ms = p->most_tries > 1 ? b->began_ms : 0;
        if (p->most_tries > 1) (void)lane_pause(b->lane, p->most_tries - 2, b->deadline);
        p->stored = 0;
        p->most_tries = 0;
    }
    tarn_status status = put_all(p);
    if (status == TARN_OK) put_settle(p);
    return status;
}

/* options: what is wrong with them, if they are the same for all. */
static tarn_status put_check(struct putting *p, size_t i, tarn_status options) {
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
    if (status == TARN_OK)
        status = put_ids(p->options) != NULL ? put_options_check(p->options, i) : options;
    if (status == TARN_OK && u->device && u->size <= INLINE_MAX)
        status = fail(TARN_ENOTSUP, "values of up to %u bytes do not come from memory of a device",
                      INLINE_MAX);
    return status;
}

static void put_give_up(struct item_batch *b, size_t i, tarn_status status) {
    put_finish(CONTAINER_OF(b, struct putting, b), i, status);
}

struct putting *put_open(struct lane *lane, tarn_item *items, size_t n,
                         const tarn_put_options *options, struct call_spread spread,
                         uint64_t deadline) {
    struct putting *p = arena_alloc(&lane->arena, sizeof(*p));
    *p = (struct putting){.options = options, .spread = spread};
    batch_init(&p->b, lane, items, n, sizeof(struct put), deadline);
    p->puts = (struct put *)(void *)p->b.of;
    COUNT(lane, puts, n);
    tarn_status same = put_ids(options) == NULL ? put_options_check(options, 0) : TARN_OK;
    for (size_t i = 0; i < n; i++) {
        tarn_status status = put_check(p, i, same);
        if (status != TARN_OK) put_finish(p, i, status);
    }
    return p;
}

/* The connection broke, or cannot be trusted: the first pass begins with that. */
static bool put_ahead_set(struct putting *p, enum put_ahead done, tarn_status status) {
    p->ahead = status == TARN_OK ? done : PUT_NOTHING;
    if (status != TARN_OK) ctl_abandon(&p->b.lane->ctl);
    return status == TARN_OK;
}

bool put_ask_ahead(struct putting *p) {
    struct chunk rest = batch_rest(&p->b);
    size_t at = 0;
    if (!put_chunk(p, &rest, &at, &p->now) || at < rest.n) return false;
    return put_ahead_set(p, PUT_ASKED, chunk_send(p, &p->now, start_request));
}

bool put_write_ahead(struct putting *p) {
    if (p->ahead != PUT_ASKED) return false;
    tarn_status status = chunk_receive(p, &p->now, "MPUTSTART", put_started);
    if (status == TARN_OK) status = put_chunk_ensure(p, &p->now);
    if (status == TARN_OK) {
        put_write(p, p->now.order, p->now.n);
        put_ask(p, p->now.order, p->now.n);
        status = ends_send(p, &p->now, &p->ends);
    }
    if (status == TARN_OK) status = revokes_send(p, p->now.order, p->now.n);
    return put_ahead_set(p, PUT_WRITTEN, status) && p->ends.n > 0;
}

bool put_is_over(const struct putting *p) {
    return p->b.unfinished == 0;
}

tarn_status put_run(struct putting *p) {
    tarn_status status = batch_run(&p->b, put_pass, put_give_up);
    if (p->new_session) session_leave(p); /* there was no pass: all was over before */
    return status;
}
