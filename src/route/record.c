/* A reservation as bytes, little-endian, for whoever keeps it through a restart or hands it to
 * another server:
 *
 *     u8 version, u8 state, u32 lease left (ms), u32 tokens of prompt, prefix, answer, transfer,
 *     u64 estimated prefill (ns), then the prefill's engine, the decode's and the tenant: u8
 *     length, the name, and of engines u8 rank
 *
 * Its times are not among them: what was observed by another clock, or not at all, teaches
 * nothing. */
#include <endian.h>
#include <math.h>
#include <stdlib.h>
#include "route/internal.h"

#define RECORD_VERSION 1u
static_assert(ROUTE_NAME_MAX <= UINT8_MAX && ROUTE_RANKS_MAX <= UINT8_MAX, "a byte each");
static_assert(ROUTE_RECORD_MAX >= 2 + 5 * 4 + 8 + 3 * (1 + ROUTE_NAME_MAX) + 2, "all of it");

/* --- writing --- */

static void put_u8(struct buf *out, uint32_t v) {
    buf_append_char(out, (char)v);
}

static void put_u32(struct buf *out, uint64_t v) {
    uint32_t le = htole32((uint32_t)min_u64(v, UINT32_MAX));
    buf_append(out, &le, sizeof(le));
}

static void put_name(struct buf *out, struct span name) {
    put_u8(out, (uint32_t)name.len);
    buf_append(out, name.data, name.len);
}

static void put_worker(struct buf *out, const struct worker *w) {
    put_name(out, w == NULL ? SPAN("") : span_str(w->engine->id));
    put_u8(out, w == NULL ? 0 : w->rank);
}

tarn_status route_request_export(struct route *r, struct span request, struct buf *out) {
    const struct route_reservation *q = request_find(r, request);
    if (q == NULL) return route_fail(r, TARN_ENOTFOUND, "no such request, or its lease has ended");
    uint64_t now_ms = r->now_us / 1000, ns = htole64((uint64_t)(1000 * q->prefill_us));
    bool prefill = request_prefill_there(r, q);
    put_u8(out, RECORD_VERSION);
    put_u8(out, q->state);
    put_u32(out, q->lease.due > now_ms ? q->lease.due - now_ms : 0);
    put_u32(out, q->prompt_tokens);
    put_u32(out, q->prefix_tokens);
    put_u32(out, q->output_tokens);
    put_u32(out, q->load_tokens);
    buf_append(out, &ns, sizeof(ns));
    put_worker(out, prefill ? &r->workers[q->prefill] : NULL);
    put_worker(out, q->decode != ROUTE_NO_WORKER ? &r->workers[q->decode] : NULL);
    put_name(out, q->tenant != NULL ? span_of(q->tenant->name, q->tenant->name_len) : SPAN(""));
    return TARN_OK;
}

/* --- reading: what is cut off, or odd, is no record --- */

struct record {
    uint32_t state, lease_ms, prompt, prefix, output, load;
    uint64_t prefill_ns;
    struct span prefill, decode, tenant;
    uint32_t prefill_rank, decode_rank;
};

static bool take(struct span *in, void *out, size_t n) {
    if (in->len < n) return false;
    memcpy(out, in->data, n);
    *in = span_of(in->data + n, in->len - n);
    return true;
}

static bool take_u8(struct span *in, uint32_t *v) {
    uint8_t byte;
    if (!take(in, &byte, 1)) return false;
    *v = byte;
    return true;
}

static bool take_u32(struct span *in, uint32_t *v) {
    if (!take(in, v, sizeof(*v))) return false;
    *v = le32toh(*v);
    return true;
}

static bool take_name(struct span *in, struct span *name) {
    uint32_t len;
    if (!take_u8(in, &len) || len > ROUTE_NAME_MAX || in->len < len) return false;
    *name = span_of(in->data, len);
    *in = span_of(in->data + len, in->len - len);
    return true;
}

static bool record_read(struct span in, struct record *x) {
    uint32_t version;
    if (!take_u8(&in, &version) || version != RECORD_VERSION || !take_u8(&in, &x->state) ||
        !take_u32(&in, &x->lease_ms) || !take_u32(&in, &x->prompt) || !take_u32(&in, &x->prefix) ||
        !take_u32(&in, &x->output) || !take_u32(&in, &x->load) ||
        !take(&in, &x->prefill_ns, sizeof(x->prefill_ns)) || !take_name(&in, &x->prefill) ||
        !take_u8(&in, &x->prefill_rank) || !take_name(&in, &x->decode) ||
        !take_u8(&in, &x->decode_rank) || !take_name(&in, &x->tenant) || in.len > 0)
        return false;
    x->prefill_ns = le64toh(x->prefill_ns);
    return x->state <= REQUEST_DECODE && x->prompt > 0 && x->prompt <= ROUTE_TOKENS_MAX &&
           x->prefix < x->prompt && x->output <= ROUTE_TOKENS_MAX && x->load <= x->prefix &&
           x->prefill_ns < UINT64_C(3600000000000) && x->lease_ms <= LEASE_MS_MOST;
}

static struct route_reservation *record_reservation(struct route *r, struct span id,
                                                    const struct record *x) {
    struct route_reservation *q = xcalloc(1, sizeof(*q) + id.len);
    memcpy(q->id, id.data, id.len);
    q->id_len = id.len;
    q->state = (enum request_state)x->state;
    q->untaught = true;
    q->prompt_tokens = x->prompt;
    q->prefix_tokens = x->prefix;
    q->new_tokens = x->prompt - x->prefix;
    q->output_tokens = x->output;
    q->load_tokens = x->load;
    q->decided_us = q->decode_us = r->now_us;
    q->prefill_us = (double)x->prefill_ns / 1000;
    q->prefill = route_worker_find(r, x->prefill, x->prefill_rank);
    q->decode = route_worker_find(r, x->decode, x->decode_rank);
    if (q->state == REQUEST_PREFILL && x->tenant.len > 0) q->tenant = tenant_named(r, x->tenant);
    return q;
}

tarn_status route_request_import(struct route *r, struct span request, struct span record,
                                 uint64_t elapsed_ms, uint64_t now_us) {
    struct record x;
    route_tick(r, now_us);
    if (request.len == 0 || request.len > ROUTE_NAME_MAX || !record_read(record, &x))
        return route_fail(r, TARN_EPROTO, "this is no reservation");
    struct route_reservation *old = request_find(r, request);
    if (old != NULL) request_release(r, &old);
    if (elapsed_ms >= x.lease_ms) return route_fail(r, TARN_ENOTFOUND, "its lease has ended");
    if (r->figures.route_reserved >= r->options.requests_max)
        return route_fail(r, TARN_ELIMIT, "%u requests are reserved, which is the most",
                          r->options.requests_max);
    struct route_reservation *q = record_reservation(r, request, &x);
    if (q->prefill != ROUTE_NO_WORKER) {
        q->prefill_birth = r->workers[q->prefill].birth;
    } else if (q->state == REQUEST_PREFILL) {
        free(q);
        return route_fail(r, TARN_ENOTFOUND, "the engine that has it is not there");
    }
    request_reserve(r, q);
    request_lease(r, q, (uint32_t)(x.lease_ms - elapsed_ms));
    return TARN_OK;
}
