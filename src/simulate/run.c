/* One run: events in the order of their times, and what is summed up of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "simulate/run.h"

void sim_config_init(struct sim_config *c) {
    *c = (struct sim_config){.engines = 8,
                             .batch_max = 256,
                             .eviction = "lru",
                             .lookup_s = 200e-6,
                             .key_s = 0.3e-6,
                             .nic = 12.5e9,
                             .local = 40e9,
                             .rack_s = 200e-6,
                             .far_s = 1e-3,
                             .overlap = true,
                             .route = "round-robin",
                             .slo_ttft_s = 30,
                             .slo_tbt_s = 0.3,
                             .pace = 1,
                             .seed = 1};
    sim_speed_init(&c->speed);
}

/* Of all engines: what is known of them then takes some GiB. */
#define BLOCKS_MAX (UINT64_C(1) << 28)

static uint64_t device_blocks(const struct sim_config *c, const struct trace *t) {
    if (c->kv_blocks > 0) return c->kv_blocks;
    double tokens = sim_kv_tokens(&c->speed);
    return tokens < t->block ? 0 : (uint64_t)(tokens / t->block);
}

const char *sim_config_check(const struct sim_config *c, const struct trace *t) {
    const char *why = NULL;
    uint32_t n = sim_engines(c);
    uint64_t blocks = device_blocks(c, t);
    if (n == 0 || n > SIM_ENGINES_MAX)
        status_fail(TARN_EINVAL, &why, "engines: 1 to %u", SIM_ENGINES_MAX);
    else if ((c->prefill == 0) != (c->decode == 0))
        status_fail(TARN_EINVAL, &why, "--prefill and --decode go together");
    else if (sim_kv_tokens(&c->speed) < 1 && c->kv_blocks == 0)
        status_fail(TARN_EINVAL, &why, "%s does not fit into %u x %s (--gpus, --gpu)",
                    c->speed.model->name, c->speed.gpus, c->speed.gpu->name);
    else if (blocks == 0)
        status_fail(TARN_EINVAL, &why, "beside %s no block of %u tokens fits into %u x %s",
                    c->speed.model->name, t->block, c->speed.gpus, c->speed.gpu->name);
    else if (blocks + c->host_blocks > BLOCKS_MAX / n)
        status_fail(TARN_EINVAL, &why,
                    "%u engines of %llu blocks: they may have %llu in all (--engines, --kv-blocks, "
                    "--host-blocks, a larger --block)",
                    n, (unsigned long long)(blocks + c->host_blocks),
                    (unsigned long long)BLOCKS_MAX);
    for (size_t i = 0; why == NULL && i < c->n_failures; i++) {
        const struct sim_failure *f = &c->failures[i];
        bool master = f->what == SIM_FAILS_MASTER;
        if (f->who >= (master ? sim_masters(c) : n))
            status_fail(TARN_EINVAL, &why, "--fail: there is no %s %u, they are 0 to %u",
                        master ? "master" : "engine", f->who, (master ? sim_masters(c) : n) - 1);
    }
    return why;
}

static void sim_open(struct sim *s, const struct sim_config *c, const struct trace *t, uint64_t ids,
                     struct sim_result *result) {
    uint32_t n = sim_engines(c), blocks = (uint32_t)device_blocks(c, t);
    *s = (struct sim){.config = c, .trace = t, .n_engines = n, .result = result};
    *result = (struct sim_result){0};
    const struct network_config network = {.hosts = n,
                                           .rack_hosts = c->rack_hosts,
                                           .nic = c->nic,
                                           .local = c->local,
                                           .rack_s = c->rack_s,
                                           .far_s = c->far_s};
    network_open(&s->network, &network, &s->events);
    s->router = router_open(c, t, ids, blocks, blocks + c->host_blocks);
    TARN_ASSERT(s->router != NULL);
    if (c->pool_blocks > 0) s->pool = pool_open(sim_masters(c), n, c->pool_blocks, c->eviction);
    s->engines = xcalloc(n, sizeof(*s->engines));
    for (uint32_t e = 0; e < n; e++)
        engine_open(s, &s->engines[e], e, blocks, (uint32_t)c->host_blocks);
    s->free_call = s->free_copy = CALL_NONE;
    s->hosts = xcalloc(t->longest + 1, sizeof(*s->hosts));
    s->host_bytes = xcalloc(n, sizeof(*s->host_bytes));
    s->gaps = xcalloc(1, sizeof(*s->gaps));
    s->block_bytes = c->speed.model->kv_bytes * t->block;
    for (size_t i = 0; i < c->n_failures; i++)
        events_add(&s->events, c->failures[i].at_s, EVENT_FAIL, (uint32_t)i, 0);
}

static void sim_close(struct sim *s) {
    for (uint32_t e = 0; e < s->n_engines; e++) engine_close(&s->engines[e]);
    for (size_t i = 0; i < s->n_calls; i++) free(s->calls[i].gaps.v);
    if (s->pool != NULL) pool_close(&s->pool);
    router_close(&s->router);
    network_close(&s->network);
    events_free(&s->events);
    samples_free(&s->ttft);
    samples_free(&s->tbt);
    samples_free(&s->lookup);
    free(s->engines);
    free(s->calls);
    free(s->copies);
    free(s->hosts);
    free(s->host_bytes);
    free(s->gaps);
}

static void sim_back_at(struct sim *s, const struct sim_failure *f, double for_s) {
    events_add(&s->events, s->now + for_s, EVENT_BACK, (uint32_t)(f - s->config->failures), 0);
}

static void sim_fail_master(struct sim *s, const struct sim_failure *f) {
    if (s->pool == NULL) return;
    pool_master_gone(s->pool, f->who);
    sim_back_at(s, f, f->for_s > 0 ? f->for_s : SIM_PROMOTION_S);
}

/* Requests on an engine that is gone, and those that were to decode there. */
static void sim_fail(struct sim *s, const struct sim_failure *f) {
    if (f->what == SIM_FAILS_MASTER) {
        sim_fail_master(s, f);
        return;
    }
    struct sim_engine *e = &s->engines[f->who];
    if (e->work == ENGINE_GONE) return;
    engine_fail(s, e);
    copies_fail(s, f->who);
    router_engine_gone(s->router, f->who, s->now);
    if (f->what == SIM_FAILS_HOST && s->pool != NULL) pool_host_gone(s->pool, f->who);
    for (size_t i = 0, n = s->n_calls; i < n; i++) {
        struct call *c = &s->calls[i];
        if (!c->live) continue;
        if (c->engine == f->who) {
            c->held = c->private = 0;
            call_restart(s, c);
        } else if (c->decode == f->who && c->state == CALL_HANDOVER) {
            struct sim_engine *prefill = &s->engines[c->engine];
            call_leave(s, c, prefill);
            call_restart(s, c);
            engine_wake(s, prefill); /* there is room again */
        } else if (c->decode == f->who) {
            c->decode = CALL_NONE; /* which is chosen anew when its prompt is computed */
        }
    }
    if (f->for_s > 0) sim_back_at(s, f, f->for_s);
}

static void sim_back(struct sim *s, const struct sim_failure *f) {
    if (f->what == SIM_FAILS_MASTER) {
        pool_master_back(s->pool, f->who);
        return;
    }
    s->engines[f->who].work = ENGINE_IDLE;
    router_engine_up(s->router, f->who, s->now);
    if (f->what == SIM_FAILS_HOST && s->pool != NULL) pool_host_back(s->pool, f->who);
}

static void sim_event(struct sim *s) {
    struct event x = events_take(&s->events);
    uint32_t owner;
    s->now = x.at;
    switch (x.kind) {
    case EVENT_STEP: engine_event(s, &s->engines[x.who], x.generation); break;
    case EVENT_FLOW:
        if (network_ended(&s->network, s->now, x.who, x.generation, &owner))
            call_flow_ended(s, owner);
        break;
    case EVENT_FAIL: sim_fail(s, &s->config->failures[x.who]); break;
    case EVENT_LOOKED_UP: call_looked_up(s, x.who); break;
    case EVENT_BACK: sim_back(s, &s->config->failures[x.who]); break;
    }
}

static void sim_sum_up(struct sim *s) {
    struct sim_result *r = s->result;
    TARN_ASSERT(r->done + r->refused + r->too_long + r->lost == r->requests);
    r->ttft = samples_times(&s->ttft);
    r->tbt = samples_times(&s->tbt);
    r->lookup = samples_times(&s->lookup);
    r->gap = spread_times(s->gaps);
    r->span_s = s->arrival_end;
    r->goodput = r->span_s > 0 ? (double)r->kept / r->span_s : 0;
    r->tokens_s = s->end > 0 ? r->tokens_s / s->end : 0;
    r->prompt_tokens = s->prompt_tokens;
    double all = s->prompt_tokens > 0 ? s->prompt_tokens : 1;
    r->device = s->device_tokens / all;
    r->host = s->host_tokens / all;
    r->pool = s->pool_tokens / all;
    r->moved_bytes = s->network.moved;
    r->local_bytes = s->network.local;
    if (s->pool == NULL) return;
    r->pool_blocks = pool_count(s->pool);
    r->pool_evicted = pool_evictions(s->pool);
}

void sim_run(const struct sim_config *c, const struct trace *t, uint64_t ids,
             const struct sim_progress *progress, struct sim_result *result) {
    struct sim s;
    sim_open(&s, c, t, ids, result);
    uint64_t zero_ms = t->requests[0].timestamp_ms, each = t->n / 1000 + 1;
    for (size_t i = 0; i < t->n; i++) {
        double at = (double)(t->requests[i].timestamp_ms - zero_ms) / 1e3 / c->pace;
        while (events_first(&s.events) != NULL && events_first(&s.events)->at <= at) sim_event(&s);
        s.now = s.arrival_end = at;
        if (s.pool != NULL) pool_time(s.pool, at);
        call_arrive(&s, i);
        if (progress != NULL && i % each == 0) progress->tell(progress->arg, i, t->n);
    }
    while (events_first(&s.events) != NULL) sim_event(&s);
    sim_sum_up(&s);
    sim_close(&s);
}
