/* An engine: prompts wait, are computed chunk by chunk beside those that decode, and then decode.
 * Where nothing but decoding is to be done, many steps are one event, which ends early when
 * something new comes; where nothing decodes, a prompt is one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "simulate/run.h"

#define LOOK_AHEAD 64u   /* prompts in the queue that may be passed while one is being loaded */
#define RUN_MAX    4096u /* steps in one event */
#define LOG_ROWS   4096u /* from where on rows of the log are looked for that nobody needs */

static void device_evicted(void *arg, uint32_t id) {
    struct sim_engine *e = arg;
    bool kept = e->host.capacity > 0;
    if (kept) cache_keep(&e->host, id);
    router_moved_down(e->sim->router, e->number, id, kept);
}

static void host_evicted(void *arg, uint32_t id) {
    struct sim_engine *e = arg;
    router_dropped(e->sim->router, e->number, ROUTE_TIER_HOST, id);
}

void engine_open(struct sim *s, struct sim_engine *e, uint32_t number, uint32_t blocks,
                 uint32_t host_blocks) {
    *e = (struct sim_engine){.number = number, .sim = s};
    cache_open(&e->device, blocks);
    cache_open(&e->host, host_blocks);
    e->device.evicted = device_evicted;
    e->host.evicted = host_evicted;
    e->device.arg = e->host.arg = e;
    e->batch = xcalloc(s->config->batch_max, sizeof(*e->batch));
}

void engine_close(struct sim_engine *e) {
    cache_close(&e->device);
    cache_close(&e->host);
    free(e->batch);
    free(e->log);
}

/* --- decoding --- */

static uint32_t call_tokens(const struct sim_engine *e, const struct call *c) {
    return c->generated + (uint32_t)(e->steps - c->join_steps);
}
static uint32_t call_context(const struct sim *s, const struct sim_engine *e,
                             const struct call *c) {
    return call_request(s, c)->input + call_tokens(e, c);
}

/* What its steps in the batch took goes to its own list. */
static void take_gaps(struct sim_engine *e, struct call *c) {
    for (size_t i = (size_t)(c->join_log - e->log_base); i < e->n_log; i++) {
        uint32_t n = e->log[i].n;
        if (c->waited > 0) {
            gaps_add(&c->gaps, (double)e->log[i].s + c->waited, 1);
            c->waited = 0;
            n--;
        }
        gaps_add(&c->gaps, (double)e->log[i].s, n);
    }
    c->generated = call_tokens(e, c);
    c->join_steps = e->steps;
    c->join_log = e->log_base + e->n_log;
}

static void log_trim(const struct sim *s, struct sim_engine *e) {
    uint64_t least = e->log_base + e->n_log;
    for (uint32_t i = 0; i < e->n_batch; i++)
        least = min_u64(least, s->calls[e->batch[i]].join_log);
    size_t unused = (size_t)(least - e->log_base);
    memmove(e->log, e->log + unused, (e->n_log - unused) * sizeof(*e->log));
    e->n_log -= unused;
    e->log_base = least;
}

static void log_steps(struct sim *s, struct sim_engine *e, double each_s, uint32_t n) {
    if (e->n_log >= LOG_ROWS) log_trim(s, e);
    ARRAY_GROW(e->log, e->n_log, e->cap_log);
    e->log[e->n_log++] = (struct gap){(float)each_s, n};
    uint32_t late = 0;
    for (uint32_t i = 0; i < e->n_batch; i++) {
        const struct call *c = &s->calls[e->batch[i]];
        if (c->join_steps != e->steps || c->waited <= 0) continue;
        spread_add(s->gaps, each_s + c->waited, 1);
        late++;
    }
    spread_add(s->gaps, each_s, (uint64_t)n * e->n_batch - late);
    e->steps += n;
}

/* Those that have all their tokens leave. */
static void batch_finish(struct sim *s, struct sim_engine *e) {
    for (uint32_t i = 0; i < e->n_batch;) {
        struct call *c = &s->calls[e->batch[i]];
        if (call_tokens(e, c) < call_request(s, c)->output) {
            i++;
            continue;
        }
        take_gaps(e, c);
        c->last_token = s->now;
        e->batch[i] = e->batch[--e->n_batch];
        call_leave(s, c, e);
        call_finish(s, c);
    }
}

/* Room for so many tokens more of each. false: there is none, nothing changed. */
static bool batch_grow(struct sim *s, struct sim_engine *e, uint32_t steps) {
    uint32_t block = s->trace->block;
    for (unsigned pass = 0; pass < 2; pass++) {
        uint64_t more = 0;
        for (uint32_t i = 0; i < e->n_batch; i++) {
            struct call *c = &s->calls[e->batch[i]];
            uint32_t want = (call_context(s, e, c) + steps + block - 1) / block;
            uint32_t has = c->held + c->private;
            if (want <= has) continue;
            more += want - has;
            if (pass == 1) c->private += want - has;
        }
        if (pass == 0 && (more > UINT32_MAX || !cache_reserve(&e->device, (uint32_t)more)))
            return false;
    }
    return true;
}

/* Its KV goes, and it waits to be computed again, before all others. */
static void batch_preempt(struct sim *s, struct sim_engine *e) {
    uint32_t last = 0;
    for (uint32_t i = 1; i < e->n_batch; i++)
        if (s->calls[e->batch[i]].order > s->calls[e->batch[last]].order) last = i;
    uint32_t number = e->batch[last];
    struct call *c = &s->calls[number];
    e->batch[last] = e->batch[--e->n_batch];
    take_gaps(e, c);
    c->last_token = s->now;
    call_leave(s, c, e);
    c->prompt = call_request(s, c)->input + c->generated;
    c->decode = c->engine;
    c->load_to = c->host_to = c->near = 0;
    c->state = CALL_QUEUED;
    s->result->preempted++;
    queue_push_front(s, &e->queue, number);
}

/* As many steps as there is room for; at least one, for as many as can make it. */
static uint32_t batch_make_room(struct sim *s, struct sim_engine *e, uint32_t steps) {
    if (batch_grow(s, e, steps)) return steps;
    while (e->n_batch > 0 && !batch_grow(s, e, 1)) batch_preempt(s, e);
    return 1;
}

static void batch_join(struct sim *s, struct sim_engine *e) {
    uint32_t block = s->trace->block;
    while (e->ready.n > 0 && e->n_batch < s->config->batch_max) {
        struct call *c = &s->calls[e->ready.first];
        if (c->held + c->private == 0) {
            uint32_t blocks = (call_request(s, c)->input + c->generated + block - 1) / block;
            if (!cache_reserve(&e->device, blocks)) return;
            c->private = blocks;
        }
        c->state = CALL_DECODE;
        c->join_steps = e->steps;
        c->join_log = e->log_base + e->n_log;
        c->waited = s->now - c->last_token;
        e->batch[e->n_batch++] = e->ready.first;
        queue_remove(s, &e->ready, e->ready.first, CALL_NONE);
    }
}

static double batch_context(const struct sim *s, const struct sim_engine *e) {
    double sum = 0;
    for (uint32_t i = 0; i < e->n_batch; i++) sum += call_context(s, e, &s->calls[e->batch[i]]);
    return sum;
}

/* --- runs of steps in which nothing but decoding is done --- */

static double run_time(const struct sim_engine *e, double steps) {
    return steps * e->first_s + e->growth_s * steps * (steps - 1) / 2;
}

static void engine_until(struct sim *s, struct sim_engine *e, double at) {
    events_add(&s->events, at, EVENT_STEP, e->number, ++e->generation);
}

static void run_begin(struct sim *s, struct sim_engine *e) {
    uint32_t steps = RUN_MAX;
    for (uint32_t i = 0; i < e->n_batch; i++) {
        const struct call *c = &s->calls[e->batch[i]];
        uint32_t left = call_request(s, c)->output - call_tokens(e, c);
        if (left < steps) steps = left;
    }
    steps = batch_make_room(s, e, steps);
    if (e->n_batch == 0) return;
    e->work = ENGINE_RUN;
    e->began = s->now;
    e->run = steps;
    e->first_s = sim_step_s(&s->config->speed, 0, 0, e->n_batch, batch_context(s, e));
    e->growth_s = e->n_batch * sim_context_s(&s->config->speed);
    engine_until(s, e, s->now + run_time(e, steps));
}

/* It ends with the step that is under way. */
static void run_cut(struct sim *s, struct sim_engine *e) {
    double passed = s->now - e->began - 1e-9;
    double a = e->growth_s / 2, b = e->first_s - a;
    double at = a > 0 ? (sqrt(b * b + 4 * a * fmax(passed, 0)) - b) / (2 * a) : passed / b;
    double steps = fmax(1, ceil(at - 1e-9));
    if (steps >= e->run) return;
    e->run = (uint32_t)steps;
    engine_until(s, e, fmax(e->began + run_time(e, steps), s->now));
}

static void run_end(struct sim *s, struct sim_engine *e) {
    log_steps(s, e, run_time(e, e->run) / e->run, e->run);
    batch_finish(s, e);
}

/* --- prompts --- */

/* The blocks that it can use: on the device, and what was loaded if that still follows. */
static uint32_t usable_blocks(const struct call *c, uint32_t match) {
    return match >= c->near && c->load_to > match ? c->load_to : match;
}

static void prefill_count(struct sim *s, const struct call *c, uint32_t match, uint32_t prefix) {
    if (c->started) return;
    double block = s->trace->block;
    double near = fmin(match * block, prefix);
    double host = fmax(0, fmin(c->host_to * block, prefix) - near);
    s->prompt_tokens += c->prompt;
    s->device_tokens += near;
    s->host_tokens += host;
    s->pool_tokens += prefix - near - host;
    s->result->saved_s += sim_chunk_s(&s->config->speed, prefix, 0);
}

/* Takes its blocks. false: there is no room for them now. */
static bool prefill_begin(struct sim *s, struct sim_engine *e, struct call *c) {
    const struct trace_request *q = call_request(s, c);
    const uint64_t *ids = call_ids(s, c);
    uint32_t block = s->trace->block, total = (c->prompt + block - 1) / block;
    uint32_t match = cache_match(&e->device, ids, q->n);
    for (uint32_t k = 0; k < match; k++) cache_hold(&e->device, (uint32_t)ids[k]);
    c->held = c->found = match;
    if (!cache_reserve(&e->device, total - match)) {
        c->private = 0;
        call_leave(s, c, e);
        return false;
    }
    c->private = total - match;
    uint64_t prefix = (uint64_t)usable_blocks(c, match) * block;
    c->done = prefix < c->prompt ? (uint32_t)prefix : c->prompt - 1;
    c->computed = c->prompt - c->done;
    c->state = CALL_PREFILL;
    prefill_count(s, c, match, c->done);
    return true;
}

/* Its blocks are those of others, too, from the step on that computes the last of them: who begins
 * in that step finds them, as in vLLM, where a block is known once it is scheduled. Asked for where
 * the rest of all prompts in hand fits into a chunk: what decodes take of that is neglected. */
static void prefill_publish(struct sim *s, struct sim_engine *e, struct call *c) {
    const uint64_t *ids = call_ids(s, c);
    uint32_t n = call_request(s, c)->n;
    cache_prefetch(&e->device, ids + c->held, n - c->held);
    for (; c->held < n; c->held++, c->private --) cache_publish(&e->device, (uint32_t)ids[c->held]);
}

/* Of the queue the first whose blocks are there; without one that decodes no more than one prompt
 * at a time. */
static void prefill_admit(struct sim *s, struct sim_engine *e) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < e->n_active; i++)
        tokens += s->calls[e->active[i]].prompt - s->calls[e->active[i]].done;
    uint32_t before = CALL_NONE, at = e->queue.first, looked = 0;
    while (e->n_active < (e->n_batch > 0 ? ENGINE_PARTS : 1) && tokens < s->config->speed.chunk &&
           looked < LOOK_AHEAD && looked < e->queue.n) {
        struct call *c = &s->calls[at];
        uint32_t next = c->next;
        for (uint32_t i = 0; i < e->n_active; i++) prefill_publish(s, e, &s->calls[e->active[i]]);
        if (c->state == CALL_QUEUED) call_look_again(s, c);
        if (c->state != CALL_QUEUED) {
            before = at;
            at = next;
            looked++;
            continue;
        }
        if (!prefill_begin(s, e, c)) return;
        queue_remove(s, &e->queue, at, before);
        e->active[e->n_active++] = at;
        tokens += c->prompt - c->done;
        at = next;
    }
}

static void step_whole(struct sim *s, struct sim_engine *e) {
    struct call *c = &s->calls[e->active[0]];
    memset(e->part, 0, sizeof(e->part));
    e->part[0] = c->prompt - c->done;
    double time = sim_prefill_s(&s->config->speed, e->part[0], c->done);
    s->result->prefill_s += time;
    engine_until(s, e, s->now + time);
}

static void step_mixed(struct sim *s, struct sim_engine *e) {
    const struct sim_speed *speed = &s->config->speed;
    uint32_t left = speed->chunk > e->n_batch ? speed->chunk - e->n_batch : 1, tokens = 0;
    double chunks_s = 0;
    for (uint32_t i = 0; i < e->n_active; i++) {
        const struct call *c = &s->calls[e->active[i]];
        uint32_t n = c->prompt - c->done < left ? c->prompt - c->done : left;
        e->part[i] = n;
        left -= n;
        tokens += n;
        chunks_s += sim_chunk_s(speed, n, c->done);
    }
    s->result->prefill_s += chunks_s;
    double time = sim_step_s(speed, chunks_s, tokens, e->n_batch, batch_context(s, e));
    engine_until(s, e, s->now + time);
}

static void step_begin(struct sim *s, struct sim_engine *e) {
    e->work = ENGINE_STEP;
    e->began = s->now;
    if (e->n_batch > 0) batch_make_room(s, e, 1);
    if (e->n_batch > 0)
        step_mixed(s, e);
    else
        step_whole(s, e);
}

/* All its blocks are there for others now. */
static void prefill_end(struct sim *s, struct sim_engine *e, struct call *c) {
    const uint64_t *ids = call_ids(s, c);
    uint32_t n = call_request(s, c)->n, whole = call_request(s, c)->input / s->trace->block;
    prefill_publish(s, e, c);
    router_stored(s->router, e->number, ROUTE_TIER_DEVICE, ids, c->found, n < whole ? n : whole);
    call_started(s, c);
}

/* With overlap a prompt may be computed before its prefix is there; its last layer is not. */
static bool step_waits(const struct sim *s, const struct sim_engine *e) {
    for (uint32_t i = 0; i < e->n_active; i++) {
        const struct call *c = &s->calls[e->active[i]];
        if (c->loads > 0 && c->done + e->part[i] >= c->prompt) return true;
    }
    return false;
}

static void step_end(struct sim *s, struct sim_engine *e) {
    if (step_waits(s, e)) {
        e->work = ENGINE_STALLED;
        return;
    }
    e->work = ENGINE_STEP;
    if (e->n_batch > 0) {
        log_steps(s, e, s->now - e->began, 1);
        batch_finish(s, e);
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < e->n_active; i++) {
        struct call *c = &s->calls[e->active[i]];
        c->done += e->part[i];
        if (c->done < c->prompt)
            e->active[kept++] = e->active[i];
        else
            prefill_end(s, e, c);
    }
    e->n_active = kept;
}

/* --- what next --- */

static void engine_next(struct sim *s, struct sim_engine *e) {
    e->work = ENGINE_IDLE;
    batch_join(s, e);
    prefill_admit(s, e);
    if (e->n_active > 0) {
        step_begin(s, e);
        return;
    }
    if (e->n_batch > 0) run_begin(s, e);
    /* All of the batch was preempted: one of them is computed again. */
    if (e->work != ENGINE_IDLE || e->queue.n == 0) return;
    prefill_admit(s, e);
    if (e->n_active > 0) step_begin(s, e);
}

void engine_wake(struct sim *s, struct sim_engine *e) {
    switch (e->work) {
    case ENGINE_IDLE: engine_next(s, e); break;
    case ENGINE_RUN: run_cut(s, e); break;
    case ENGINE_STALLED:
        if (step_waits(s, e)) return;
        step_end(s, e);
        engine_next(s, e);
        break;
    case ENGINE_STEP:
    case ENGINE_GONE: break;
    }
}

void engine_event(struct sim *s, struct sim_engine *e, uint32_t generation) {
    if (generation != e->generation) return;
    if (e->work == ENGINE_RUN) {
        run_end(s, e);
    } else {
        TARN_ASSERT(e->work == ENGINE_STEP);
        step_end(s, e);
    }
    if (e->work != ENGINE_STALLED) engine_next(s, e);
}

void engine_fail(struct sim *s, struct sim_engine *e) {
    for (uint32_t i = 0; i < e->n_batch; i++) take_gaps(e, &s->calls[e->batch[i]]);
    e->n_batch = e->n_active = 0;
    e->n_log = 0;
    e->queue = e->ready = (struct call_queue){0};
    cache_clear(&e->device);
    cache_clear(&e->host);
    e->generation++;
    e->work = ENGINE_GONE;
}
