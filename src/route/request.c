/* Reservations: what a request takes on its engines, and that it is given back exactly once. What
 * its times teach is in learn.c. */
#include <stdlib.h>
#include "route/internal.h"

/* Of nonsense, an hour. */
#define SEND_US_MOST 3.6e9

static bool request_same(const struct htab_node *node, const void *key) {
    const struct route_reservation *q = CONTAINER_OF(node, const struct route_reservation, node);
    return span_eq(span_of(q->id, q->id_len), *(const struct span *)key);
}

struct route_reservation *request_find(const struct route *r, struct span id) {
    struct htab_node *node =
        htab_find(&r->requests, hash_bytes(id.data, id.len), request_same, &id);
    return node == NULL ? NULL : CONTAINER_OF(node, struct route_reservation, node);
}

/* --- the prefill's part --- */

/* Where the KV goes when it is computed. */
static void send_plan(struct route *r, struct route_reservation *q) {
    if (q->decode == ROUTE_NO_WORKER || q->decode == q->prefill) return;
    struct worker *w = &r->workers[q->prefill];
    struct transfer t = transfer_between(w->engine, r->workers[q->decode].engine, q->prompt_tokens);
    q->send_us = least_of(t.us, SEND_US_MOST);
    w->sends_to = (uint8_t)t.place;
}

/* It has gone since the prefill began, behind what the link had to send, and layer by layer. */
static void send_begin(struct route *r, const struct route_reservation *q) {
    if (q->send_us == 0) return;
    struct worker *w = &r->workers[q->prefill];
    double computed = least_of(q->prefill_us, real(r->now_us - q->decided_us));
    w->send_until_us =
        max_u64(w->send_until_us, r->now_us - (uint64_t)computed) + (uint64_t)q->send_us;
}

static void prefill_take(struct route *r, struct route_reservation *q) {
    struct worker *w = &r->workers[q->prefill];
    worker_clock(r, w);
    send_plan(r, q);
    if (TAILQ_EMPTY(&w->prefills)) w->head_us = r->now_us;
    TAILQ_INSERT_TAIL(&w->prefills, q, prefill_link);
    w->head_prefill_us = TAILQ_FIRST(&w->prefills)->prefill_us;
    w->prefill_us += q->prefill_us;
    w->send_us += q->send_us;
    level_add(&w->prefill_tokens, q->new_tokens);
    level_add(&w->waiting, 1);
    w->routed++;
    w->taken_tokens += q->new_tokens;
    if (q->tenant != NULL) tenant_admit(&r->tenants, q->tenant, q->prefill_us);
}

static void prefill_give(struct route *r, struct route_reservation *q) {
    struct worker *w = &r->workers[q->prefill];
    worker_clock(r, w);
    if (TAILQ_FIRST(&w->prefills) == q) w->head_us = r->now_us;
    TAILQ_REMOVE(&w->prefills, q, prefill_link);
    const struct route_reservation *head = TAILQ_FIRST(&w->prefills);
    w->head_prefill_us = head == NULL ? 0 : head->prefill_us;
    /* Sums of fractions do not come back to 0 by themselves. */
    w->prefill_us = head == NULL ? 0 : w->prefill_us - q->prefill_us;
    w->send_us = head == NULL ? 0 : w->send_us - q->send_us;
    level_sub(&w->prefill_tokens, q->new_tokens);
    level_sub(&w->waiting, 1);
    if (q->tenant != NULL) tenant_done(&r->tenants, q->tenant, q->prefill_us);
    q->tenant = NULL;
}

/* --- the decode's part: from the decision on the context has its place there; a sequence runs
 * from its first token on --- */

static uint64_t decode_context(const struct route_reservation *q) {
    return (uint64_t)q->prompt_tokens + q->output_tokens / 2;
}

/* Elsewhere than where it is computed it shares nothing. */
static uint64_t decode_alone(const struct route_reservation *q) {
    if (q->decode != q->prefill) return decode_context(q);
    return (uint64_t)q->new_tokens + q->load_tokens + q->output_tokens / 2;
}

static void decode_take(struct route *r, struct route_reservation *q) {
    if (q->decode == ROUTE_NO_WORKER) return;
    struct worker *w = &r->workers[q->decode];
    worker_clock(r, w);
    TAILQ_INSERT_TAIL(&w->decodes, q, decode_link);
    w->decodes_reserved++;
    level_add(&w->context_tokens, decode_context(q));
    w->alone_tokens += decode_alone(q);
    if (q->state == REQUEST_DECODE) level_add(&w->running, 1);
}

static void decode_give(struct route *r, struct route_reservation *q) {
    if (q->decode == ROUTE_NO_WORKER) return;
    struct worker *w = &r->workers[q->decode];
    worker_clock(r, w);
    TAILQ_REMOVE(&w->decodes, q, decode_link);
    w->decodes_reserved--;
    level_sub(&w->context_tokens, decode_context(q));
    w->alone_tokens -= decode_alone(q);
    if (q->state == REQUEST_DECODE) level_sub(&w->running, 1);
}

void request_move_decode(struct route *r, struct route_reservation *q, uint32_t worker) {
    decode_give(r, q);
    q->decode = worker;
    decode_take(r, q);
}

/* --- the whole --- */

void request_reserve(struct route *r, struct route_reservation *q) {
    htab_insert(&r->requests, &q->node, hash_bytes(q->id, q->id_len));
    r->figures.route_reserved++;
    if (q->state == REQUEST_PREFILL) prefill_take(r, q);
    decode_take(r, q);
}

void request_release(struct route *r, struct route_reservation **q_p) {
    struct route_reservation *q = *q_p;
    *q_p = NULL;
    if (q->state == REQUEST_PREFILL) prefill_give(r, q);
    decode_give(r, q);
    wheel_remove(r->leases, &q->lease);
    htab_remove(&r->requests, &q->node);
    r->figures.route_reserved--;
    if (r->ended != NULL) r->ended(r->ended_arg, span_of(q->id, q->id_len));
    free(q);
}

void request_lease(struct route *r, struct route_reservation *q, uint32_t lease_ms) {
    wheel_set(r->leases, &q->lease, r->now_us / 1000 + lease_ms);
}

void route_ended_set(struct route *r, void (*ended)(void *arg, struct span request), void *arg) {
    r->ended = ended;
    r->ended_arg = arg;
}

/* --- what is told of it --- */

static tarn_status request_told(struct route *r, struct span id, uint64_t now_us,
                                struct route_reservation **q_p) {
    route_tick(r, now_us);
    *q_p = request_find(r, id);
    return *q_p != NULL ? TARN_OK
                        : route_fail(r, TARN_ENOTFOUND, "no such request, or its lease has ended");
}

/* From now on it has as long as its output should take at its worker's pace, and the lease's time
 * on top of that. */
uint32_t request_lease_decode(struct route *r, struct route_reservation *q) {
    double step = 0;
    if (q->decode != ROUTE_NO_WORKER) {
        const struct worker *w = &r->workers[q->decode];
        step = step_us(w->engine, (double)worker_running(w), (double)worker_context(w));
    }
    double ms = step * q->output_tokens / 1000;
    uint32_t lease_ms = r->options.lease_ms + (uint32_t)least_of(ms, 3.6e6);
    request_lease(r, q, lease_ms);
    return lease_ms;
}

tarn_status route_first(struct route *r, struct span request, uint64_t now_us) {
    struct route_reservation *q;
    tarn_status status = request_told(r, request, now_us, &q);
    if (status != TARN_OK) return status;
    r->figures.route_firsts++;
    if (q->state == REQUEST_DECODE) return TARN_OK; /* told twice, or by two */
    learn_first(r, q);
    session_told(r, q, 0);
    send_begin(r, q);
    prefill_give(r, q);
    uint32_t decode = q->decode;
    request_move_decode(r, q, ROUTE_NO_WORKER);
    q->state = REQUEST_DECODE;
    request_move_decode(r, q, decode);
    learn_decode_begins(r, q);
    request_lease_decode(r, q);
    return TARN_OK;
}

/* decode: of its engines the one that was to decode it, where it has two. */
static void request_failed(struct route *r, const struct route_reservation *q, bool decode) {
    bool prefill = q->state == REQUEST_PREFILL && !(decode && q->decode != ROUTE_NO_WORKER);
    uint32_t at = prefill ? q->prefill : q->decode;
    r->figures.route_failures++;
    if (at == ROUTE_NO_WORKER) return;
    engine_failed(r, r->workers[at].engine);
    session_failed(r, q, at);
}

static void request_served(struct route *r, struct route_reservation *q, uint32_t output_tokens) {
    uint32_t made = output_tokens > 0 ? output_tokens : q->output_tokens;
    if (q->decode != ROUTE_NO_WORKER) r->workers[q->decode].taken_tokens += made;
    session_told(r, q, output_tokens);
    learn_done(r, q, output_tokens);
}

tarn_status route_done(struct route *r, struct span request, uint32_t output_tokens, bool failed,
                       uint64_t now_us) {
    struct route_reservation *q;
    tarn_status status = request_told(r, request, now_us, &q);
    if (status != TARN_OK) return status;
    r->figures.route_dones++;
    if (failed)
        request_failed(r, q, false);
    else
        request_served(r, q, output_tokens);
    request_release(r, &q);
    return TARN_OK;
}

tarn_status route_failed_decode(struct route *r, struct span request, uint64_t now_us) {
    struct route_reservation *q;
    tarn_status status = request_told(r, request, now_us, &q);
    if (status != TARN_OK) return status;
    r->figures.route_dones++;
    request_failed(r, q, true);
    request_release(r, &q);
    return TARN_OK;
}
