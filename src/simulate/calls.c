/* Requests on their way through the engines: where each goes, what is loaded for it, what becomes
 * of its blocks. */
#include <stdlib.h>

#include "base/assert.h"
#include "simulate/run.h"

#define LOOK_AGAIN_S 0.05 /* what the pool had so long ago is still what it has */
#define PUT_KEYS     4.2  /* look-ups that a master answers in the time of a put (BENCHMARKS.md) */

/* --- queues --- */

void queue_push(struct sim *s, struct call_queue *q, uint32_t call) {
    s->calls[call].next = CALL_NONE;
    if (q->n++ == 0)
        q->first = call;
    else
        s->calls[q->last].next = call;
    q->last = call;
}

void queue_push_front(struct sim *s, struct call_queue *q, uint32_t call) {
    s->calls[call].next = q->n > 0 ? q->first : CALL_NONE;
    if (q->n++ == 0) q->last = call;
    q->first = call;
}

void queue_remove(struct sim *s, struct call_queue *q, uint32_t call, uint32_t before) {
    if (before == CALL_NONE)
        q->first = s->calls[call].next;
    else
        s->calls[before].next = s->calls[call].next;
    if (q->last == call) q->last = before;
    q->n--;
}

/* --- slots --- */

static struct call *call_take(struct sim *s) {
    uint32_t i = s->free_call;
    if (i != CALL_NONE) {
        s->free_call = s->calls[i].next;
    } else {
        ARRAY_GROW(s->calls, s->n_calls, s->cap_calls);
        i = (uint32_t)s->n_calls++;
        s->calls[i] = (struct call){0};
    }
    struct gaps gaps = s->calls[i].gaps;
    gaps.n = 0;
    s->calls[i] = (struct call){.live = true, .gaps = gaps};
    return &s->calls[i];
}

static void call_settle(struct sim *s, struct call *c) {
    if (c->live || c->flows > 0) return;
    c->next = s->free_call;
    s->free_call = call_number(s, c);
}

static void call_end(struct sim *s, struct call *c) {
    c->live = false;
    call_settle(s, c);
}

static void flow_start(struct sim *s, struct call *c, enum flow_kind kind, uint32_t from,
                       uint32_t to, double bytes) {
    c->flows++;
    if (kind == FLOW_LOAD) c->loads++;
    network_start(&s->network, s->now, from, to, bytes, call_number(s, c) * FLOW_KINDS + kind);
}

/* --- where it goes --- */

/* Bytes of blocks [from, to), by the host that has them. */
static void load_from_pool(struct sim *s, struct call *c, uint32_t from, uint32_t to) {
    for (uint32_t k = from; k < to; k++) s->host_bytes[s->hosts[k]] += s->block_bytes;
    for (uint32_t k = from; k < to; k++) {
        uint32_t host = s->hosts[k];
        if (s->host_bytes[host] > 0)
            flow_start(s, c, FLOW_LOAD, host, c->engine, s->host_bytes[host]);
        s->host_bytes[host] = 0;
    }
}

/* What the engine has of it, and what is loaded beyond: from its own host memory, from the pool, or
 * from another engine, as was decided. */
static void call_load(struct sim *s, struct call *c, const struct router_choice *choice) {
    struct sim_engine *e = &s->engines[c->engine];
    const struct trace_request *q = call_request(s, c);
    const uint64_t *ids = call_ids(s, c);
    c->near = cache_match(&e->device, ids, q->n);
    c->host_to = c->near;
    while (e->host.capacity > 0 && c->host_to < q->n &&
           (cache_has(&e->host, (uint32_t)ids[c->host_to]) ||
            cache_has(&e->device, (uint32_t)ids[c->host_to])))
        c->host_to++;
    c->load_to = c->host_to;
    if (c->host_to > c->near)
        flow_start(s, c, FLOW_LOAD, e->number, e->number, (c->host_to - c->near) * s->block_bytes);
    if (choice->fetch != ROUTER_NONE && choice->fetch != c->engine) {
        uint32_t there = cache_match(&s->engines[choice->fetch].device, ids, q->n);
        if (there <= c->load_to) return;
        flow_start(s, c, FLOW_LOAD, choice->fetch, e->number,
                   (there - c->load_to) * s->block_bytes);
        c->load_to = there;
    } else if (choice->load_tokens > 0 && c->pooled > c->load_to) {
        load_from_pool(s, c, c->load_to, c->pooled);
        c->load_to = c->pooled;
    }
}

/* How long the masters take for it, those that are there. */
static double call_lookup_s(struct sim *s, const struct call *c) {
    return pool_lookup_s(s->pool, call_ids(s, c), call_request(s, c)->n, s->now,
                         s->config->lookup_s, s->config->key_s);
}

/* When it waited, the pool may have more of it by now: that is loaded if it is faster than
 * computing it, by what the links have left. */
void call_look_again(struct sim *s, struct call *c) {
    if (s->pool == NULL || s->now - c->looked < LOOK_AGAIN_S) return;
    const struct sim_engine *e = &s->engines[c->engine];
    const struct trace_request *q = call_request(s, c);
    const uint64_t *ids = call_ids(s, c);
    uint32_t match = cache_match(&e->device, ids, q->n), block = s->trace->block;
    uint32_t has = match >= c->near && c->load_to > match ? c->load_to : match;
    c->looked = s->now;
    if (s->config->masters > 0) call_lookup_s(s, c); /* they answer it, and nobody waits */
    if (pool_match(s->pool, ids, q->n) <= has) return;
    uint32_t pooled = pool_read(s->pool, c->chain, ids, q->n, s->hosts);
    double bytes = (pooled - has) * s->block_bytes;
    double load_s = bytes / network_share(&s->network, s->hosts[has], c->engine);
    if (load_s > sim_chunk_s(&s->config->speed, (pooled - has) * block, has * block)) return;
    if (has == match) c->near = c->host_to = match;
    load_from_pool(s, c, has, pooled);
    c->load_to = c->pooled = pooled;
    if (!s->config->overlap) c->state = CALL_LOADING;
}

static void call_queue_up(struct sim *s, struct call *c, bool front) {
    struct sim_engine *e = &s->engines[c->engine];
    bool waits = c->loads > 0 && !s->config->overlap;
    c->state = waits ? CALL_LOADING : CALL_QUEUED;
    (front ? queue_push_front : queue_push)(s, &e->queue, call_number(s, c));
    if (!waits) engine_wake(s, e);
}

static void call_route(struct sim *s, struct call *c) {
    const struct trace_request *q = call_request(s, c);
    const uint64_t *ids = call_ids(s, c);
    struct router_choice choice;
    if (s->pool != NULL) c->pooled = pool_read(s->pool, c->chain, ids, q->n, s->hosts);
    tarn_status status =
        router_ask(s->router, c->number, q, ids, s->hosts, c->pooled, s->now, &choice);
    copies_begin(s, c->number);
    if (status != TARN_OK) {
        (*(status == TARN_ELATER ? &s->result->refused : &s->result->lost))++;
        call_end(s, c);
        return;
    }
    c->looked = s->now;
    c->engine = choice.prefill;
    c->decode = choice.decode;
    call_load(s, c, &choice);
    call_queue_up(s, c, false);
}

void call_looked_up(struct sim *s, uint32_t call) {
    call_route(s, &s->calls[call]);
}

/* The pool is asked first; no engine has it until then. */
static void call_send(struct sim *s, struct call *c) {
    if (s->pool == NULL || s->config->masters == 0) {
        call_route(s, c);
        return;
    }
    double takes = call_lookup_s(s, c);
    samples_add(&s->lookup, takes);
    c->state = CALL_LOOKUP;
    c->engine = c->decode = CALL_NONE;
    events_add(&s->events, s->now + takes, EVENT_LOOKED_UP, call_number(s, c), 0);
}

void call_arrive(struct sim *s, uint64_t number) {
    const struct trace_request *q = &s->trace->requests[number];
    s->result->requests++;
    uint64_t blocks = ((uint64_t)q->input + q->output) / s->trace->block + 1;
    if (blocks > s->engines[0].device.capacity) {
        s->result->too_long++;
        return;
    }
    struct call *c = call_take(s);
    c->number = number;
    c->prompt = q->input;
    c->arrived = c->last_token = s->now;
    c->order = s->order++;
    call_send(s, c);
}

/* With a new slot: flows of the old one may still come. */
void call_restart(struct sim *s, struct call *old) {
    uint32_t number = call_number(s, old);
    s->result->restarted++;
    struct call *c = call_take(s);
    old = &s->calls[number];
    struct gaps gaps = c->gaps;
    *c = (struct call){.live = true,
                       .number = old->number,
                       .prompt = call_request(s, old)->input + old->generated,
                       .generated = old->generated,
                       .arrived = old->arrived,
                       .last_token = old->last_token,
                       .ttft = old->ttft,
                       .started = old->started,
                       .order = old->order,
                       .gaps = old->gaps};
    old->gaps = gaps;
    call_end(s, old);
    call_send(s, c);
}

/* --- what becomes of it --- */

/* From the tail to the head, so that the tail is the first to go. */
void call_leave(struct sim *s, struct call *c, struct sim_engine *e) {
    const uint64_t *ids = call_ids(s, c);
    cache_prefetch(&e->device, ids, c->held);
    for (uint32_t k = c->held; k > 0; k--) cache_drop(&e->device, (uint32_t)ids[k - 1]);
    cache_unreserve(&e->device, c->private);
    c->held = c->private = 0;
}

/* Layers are sent while later ones are computed: what is left when the prefill ends is at least the
 * last one. */
static double handover_bytes(const struct sim *s, const struct call *c) {
    double bytes = c->prompt * s->config->speed.model->kv_bytes;
    if (!s->config->overlap) return bytes;
    double sent =
        sim_chunk_s(&s->config->speed, c->computed, c->prompt - c->computed) * s->config->nic;
    double least = bytes / s->config->speed.model->layers;
    return bytes - sent > least ? bytes - sent : least;
}

/* The one that it was to go to is gone, and there is no other. */
static void call_lose(struct sim *s, struct call *c) {
    s->result->lost++;
    router_done(s->router, c->number, c->generated, true, s->now);
    call_leave(s, c, &s->engines[c->engine]);
    call_end(s, c);
}

static void call_hand_over(struct sim *s, struct call *c) {
    struct router_choice choice;
    const struct trace_request *q = call_request(s, c);
    if (router_ask(s->router, c->number, q, call_ids(s, c), NULL, 0, s->now, &choice) == TARN_OK)
        c->decode = choice.decode;
    if (c->decode == CALL_NONE) {
        call_lose(s, c);
        return;
    }
    c->state = CALL_HANDOVER;
    flow_start(s, c, FLOW_HANDOVER, c->engine, c->decode, handover_bytes(s, c));
}

static void call_put(struct sim *s, struct call *c) {
    uint32_t n = call_request(s, c)->n;
    if (s->pool == NULL || c->pooled >= n) return;
    c->put_host = c->engine;
    flow_start(s, c, FLOW_WRITE, c->engine, c->engine, (n - c->pooled) * s->block_bytes);
}

void call_started(struct sim *s, struct call *c) {
    bool again = c->started;
    if (!again) {
        c->ttft = s->now - c->arrived;
        c->started = true;
    } else {
        gaps_add(&c->gaps, s->now - c->last_token, 1);
        spread_add(s->gaps, s->now - c->last_token, 1);
    }
    c->last_token = s->now;
    c->generated++;
    router_first(s->router, c->number, s->now);
    call_put(s, c);
    if (c->generated >= call_request(s, c)->output) {
        call_leave(s, c, &s->engines[c->engine]);
        call_finish(s, c);
    } else if (c->decode != c->engine) {
        call_hand_over(s, c);
    } else {
        c->state = CALL_READY;
        /* Who was preempted has room here again, for which those behind it may wait. */
        (again ? queue_push_front : queue_push)(s, &s->engines[c->engine].ready, call_number(s, c));
    }
}

void call_finish(struct sim *s, struct call *c) {
    struct sim_result *r = s->result;
    double tbt = gaps_worst_tenth(&c->gaps);
    r->done++;
    samples_add(&s->ttft, c->ttft);
    if (c->gaps.n > 0) samples_add(&s->tbt, tbt);
    r->kept += c->ttft <= s->config->slo_ttft_s && tbt <= s->config->slo_tbt_s;
    s->end = s->now;
    r->tokens_s += c->generated;
    router_done(s->router, c->number, c->generated, false, s->now);
    call_end(s, c);
}

/* --- flows --- */

static void load_ended(struct sim *s, struct call *c) {
    if (--c->loads > 0) return;
    if (c->state == CALL_LOADING) c->state = CALL_QUEUED;
    engine_wake(s, &s->engines[c->engine]);
}

static void handover_ended(struct sim *s, struct call *c) {
    call_leave(s, c, &s->engines[c->engine]);
    engine_wake(s, &s->engines[c->engine]); /* there is room again */
    c->engine = c->decode;
    c->state = CALL_READY;
    queue_push(s, &s->engines[c->engine].ready, call_number(s, c));
    engine_wake(s, &s->engines[c->engine]);
}

/* It counts as under way until all is done that follows of it: the slot stays. */
void call_flow_ended(struct sim *s, uint32_t owner) {
    enum flow_kind kind = (enum flow_kind)(owner % FLOW_KINDS);
    if (kind == FLOW_COPY) {
        copy_ended(s, owner / FLOW_KINDS);
        return;
    }
    struct call *c = &s->calls[owner / FLOW_KINDS];
    if (kind == FLOW_WRITE && s->engines[c->put_host].work != ENGINE_GONE) {
        const struct trace_request *q = call_request(s, c);
        if (s->config->masters > 0)
            pool_put_load(s->pool, call_ids(s, c), q->n, c->pooled, s->now,
                          PUT_KEYS * s->config->key_s);
        pool_write(s->pool, c->chain, call_ids(s, c), q->n, c->pooled, c->put_host);
    }
    if (c->live && kind == FLOW_LOAD) load_ended(s, c);
    if (c->live && kind == FLOW_HANDOVER) handover_ended(s, c);
    c->flows--;
    call_settle(s, c);
}
