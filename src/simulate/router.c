#include "simulate/router.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/htab.h"
#include "base/rng.h"
#include "route/hash.h"

#define MODEL SPAN("model")

/* A clock that starts well above nothing, as route.h wants it. */
static uint64_t now_us(double now) {
    return UINT64_C(3600000000) + (uint64_t)(now * 1e6);
}

/* A trace's id stands for all tokens up to the end of its block, as a rolling hash does. */
static uint64_t hash_of_id(uint64_t id) {
    return mix64(id);
}

static struct route_prior prior_of(const struct sim_config *c) {
    const struct sim_speed *s = &c->speed;
    double start = sim_step_s(s, 0, 0, 0, 0), one = sim_chunk_s(s, 1024, 0) / 1024,
           behind = (sim_chunk_s(s, 1024, 8192) - sim_chunk_s(s, 1024, 0)) / (2.0 * 1024 * 8192);
    return (struct route_prior){
        .prefill_start_us = start * 1e6,
        .prefill_token_us = (one - behind * 1024) * 1e6,
        .prefill_pair_us = behind * 1e6,
        .decode_step_us = start * 1e6,
        .decode_sequence_us = sim_sequence_s(s) * 1e6,
        .decode_context_us = sim_context_s(s) * 1e6,
        .latency_us = {1, c->rack_s * 1e6, c->far_s * 1e6},
        .rate = {c->local / 1e6, c->nic / 1e6, c->nic / 1e6},
        .disk_rate = c->nic / 1e6,
    };
}

static void names_init(struct router *r) {
    uint32_t n = sim_engines(r->config), rack = r->config->rack_hosts;
    r->names = xcalloc(n, sizeof(*r->names));
    r->racks = xcalloc(n, sizeof(*r->racks));
    for (uint32_t i = 0; i < n; i++) {
        snprintf(r->names[i], sizeof(r->names[i]), "host%u", i);
        snprintf(r->racks[i], sizeof(r->racks[i]), "rack%u", rack > 0 ? i / rack : 0);
    }
}

static void parents_init(struct router *r, const struct trace *t, uint64_t ids) {
    r->parents = xcalloc(ids + 1, sizeof(*r->parents));
    for (size_t i = 0; i < t->n; i++) {
        const uint64_t *id = t->ids + t->requests[i].first;
        for (uint32_t k = 1; k < t->requests[i].n; k++) r->parents[id[k]] = (uint32_t)id[k - 1] + 1;
    }
}

/* Bytes of the index for all blocks that the engines could have, with room to spare. */
static uint64_t index_bytes(uint32_t engines, uint64_t blocks) {
    return (UINT64_C(64) << 20) + (uint64_t)engines * blocks * 96;
}

struct router *router_open(const struct sim_config *c, const struct trace *t, uint64_t ids,
                           uint64_t kv_blocks, uint64_t cache_blocks) {
    uint32_t n = sim_engines(c);
    struct route_options o = route_options_default;
    o.policy = c->route;
    o.seed = c->seed;
    o.workers_max = n;
    o.requests_max = UINT32_C(1) << 20;
    o.decisions_max = 1;
    o.index_bytes = index_bytes(n, cache_blocks);
    o.silent_ms = 0;
    if (!c->copies) o.copy_share = 0;
    o.ttft_ms = c->admit ? c->slo_ttft_s * 1e3 : 0;
    o.tbt_ms = c->admit ? c->slo_tbt_s * 1e3 : 0;
    o.tenant_wait_ms = 0;
    hash_set_seed(1);
    struct route *route = route_create(&o);
    if (route == NULL) return NULL;
    struct router *r = xcalloc(1, sizeof(*r));
    r->route = route;
    r->config = c;
    r->block = t->block;
    r->scope = route_hash_scope(MODEL, SPAN(""), SPAN(""), SPAN(""), t->block);
    r->hashes_cap = (uint32_t)t->longest + 1;
    r->hashes = xcalloc(r->hashes_cap, sizeof(*r->hashes));
    r->engine_of = xcalloc(n, sizeof(*r->engine_of));
    names_init(r);
    parents_init(r, t, ids);
    r->kv_blocks = kv_blocks;
    r->cache_blocks = cache_blocks;
    for (uint32_t e = 0; e < n; e++) router_engine_up(r, e, 0);
    return r;
}

void router_close(struct router **router_p) {
    struct router *r = *router_p;
    route_destroy(&r->route);
    free(r->parents);
    free(r->hashes);
    free(r->engine_of);
    free(r->names);
    free(r->racks);
    free(r);
    *router_p = NULL;
}

void router_engine_up(struct router *r, uint32_t engine, double now) {
    const struct sim_config *c = r->config;
    struct route_engine_spec spec = {
        .id = span_str(r->names[engine]),
        .role = c->prefill == 0       ? ROUTE_BOTH
                : engine < c->prefill ? ROUTE_PREFILL
                                      : ROUTE_DECODE,
        .model = MODEL,
        .host = span_str(r->names[engine]),
        .rack = span_str(r->racks[engine]),
        .block_tokens = r->block,
        .kv_blocks = (uint32_t)r->kv_blocks,
        .cache_blocks = r->cache_blocks,
        .bytes_per_token = (uint32_t)c->speed.model->kv_bytes,
        .batch_max = c->batch_max,
        .prior = prior_of(c),
    };
    tarn_status status = route_engine_add(r->route, &spec, now_us(now));
    TARN_ASSERT(status == TARN_OK);
    uint32_t worker = route_worker_find(r->route, spec.id, 0);
    r->engine_of[worker] = engine;
    r->holders[engine] = route_worker_holder(r->route, worker);
}

/* Blocks go in rows, and are told together, as engines do: before anybody asks, or anything else is
 * told. */
static void gone_tell(struct router *r) {
    if (r->n_gone == 0) return;
    route_index_removed(route_index(r->route), r->holders[r->gone_engine], 0, r->gone_tier, r->gone,
                        r->n_gone);
    r->n_gone = 0;
}

void router_engine_gone(struct router *r, uint32_t engine, double now) {
    gone_tell(r);
    route_engine_remove(r->route, span_str(r->names[engine]), now_us(now));
}

void router_stored(struct router *r, uint32_t engine, enum route_tier tier, const uint64_t *ids,
                   uint32_t from, uint32_t to) {
    if (from >= to) return;
    gone_tell(r);
    TARN_ASSERT(to - from <= r->hashes_cap);
    for (uint32_t k = from; k < to; k++) r->hashes[k - from] = hash_of_id(ids[k]);
    uint32_t parent = r->parents[ids[from]];
    const struct route_stored e = {.holder = r->holders[engine],
                                   .tier = tier,
                                   .scope = r->scope,
                                   .has_parent = parent != 0,
                                   .parent = parent != 0 ? hash_of_id(parent - 1) : 0,
                                   .n = to - from,
                                   .rolling = r->hashes};
    route_index_stored(route_index(r->route), &e);
}

void router_dropped(struct router *r, uint32_t engine, enum route_tier tier, uint32_t id) {
    if (r->n_gone == ARRAY_LEN(r->gone) || r->gone_engine != engine || r->gone_tier != tier)
        gone_tell(r);
    r->gone_engine = engine;
    r->gone_tier = tier;
    r->gone[r->n_gone++] = hash_of_id(id);
}

void router_moved_down(struct router *r, uint32_t engine, uint32_t id, bool kept) {
    uint64_t ids[1] = {id};
    if (kept) router_stored(r, engine, ROUTE_TIER_HOST, ids, 0, 1);
    router_dropped(r, engine, ROUTE_TIER_DEVICE, id);
}

/* Blocks that lie together, in the order of the prompt; where these are too many, the prefix ends
 * there. Returns its tokens. */
static uint32_t runs_make(struct router *r, const uint32_t *hosts, uint32_t pooled,
                          uint32_t tokens) {
    uint32_t end = 0;
    r->n_runs = 0;
    for (uint32_t k = 0, to = 0; k < pooled && r->n_runs < ROUTE_POOL_RUNS_MAX; k = to) {
        while (to < pooled && hosts[to] == hosts[k]) to++;
        end = to * r->block < tokens ? to * r->block : tokens;
        r->runs[r->n_runs++] = (struct route_pool_run){.begin = k * r->block,
                                                       .tokens = end - k * r->block,
                                                       .tier = ROUTE_TIER_HOST,
                                                       .host = span_str(r->names[hosts[k]]),
                                                       .rack = span_str(r->racks[hosts[k]])};
    }
    return end;
}

static struct span number_text(uint64_t number, char out[24]) {
    return span_of(out, u64_to_dec(number, out));
}

/* Whoever asks for limits gives up what is estimated to be beyond them, whether the policy did or
 * not. */
static bool router_admits(const struct sim_config *c, const struct route_decision *d) {
    return !c->admit || (d->ttft_ms <= c->slo_ttft_s * 1e3 && d->tbt_ms <= c->slo_tbt_s * 1e3);
}

tarn_status router_ask(struct router *r, uint64_t number, const struct trace_request *q,
                       const uint64_t *ids, const uint32_t *hosts, uint32_t pooled, double now,
                       struct router_choice *choice) {
    char text[24];
    uint32_t whole = q->n < q->input / r->block ? q->n : q->input / r->block;
    for (uint32_t k = 0; k < whole; k++) r->hashes[k] = hash_of_id(ids[k]);
    uint32_t pool_tokens = runs_make(r, hosts, pooled, q->input);
    const struct route_chain chain = {
        .scope = r->scope, .block = r->block, .n = whole, .rolling = r->hashes};
    struct route_request ask = {
        .id = number_text(number, text),
        .model = MODEL,
        .chains = &chain,
        .chain_count = whole > 0,
        .length_tokens = q->input,
        .pools = {{.tokens = pool_tokens, .runs = r->runs, .run_count = r->n_runs}}};
    struct route_decision d;
    gone_tell(r);
    tarn_status status = route_decide(r->route, &ask, now_us(now), &d);
    if (status != TARN_OK) return status;
    if (hosts != NULL && !router_admits(r->config, &d)) {
        route_done(r->route, ask.id, 0, false, now_us(now));
        return TARN_ELATER;
    }
    *choice = (struct router_choice){
        .prefill = r->engine_of[d.prefill_worker],
        .decode = r->engine_of[d.decode_worker],
        .load_tokens = d.load_tokens,
        .fetch = d.fetch != NULL ? r->engine_of[d.fetch_worker] : ROUTER_NONE,
        .fetch_tokens = d.fetch_tokens,
    };
    return TARN_OK;
}

bool router_copy_take(struct router *r, struct router_copy *order) {
    struct route_copy copy;
    if (!r->config->copies || !route_copy_take(r->route, &copy)) return false;
    *order = (struct router_copy){.from = r->engine_of[copy.from_worker],
                                  .to = r->engine_of[copy.to_worker],
                                  .blocks = copy.tokens / r->block};
    TARN_ASSERT(copy.hash == r->hashes[order->blocks - 1]);
    return true;
}

void router_first(struct router *r, uint64_t number, double now) {
    char text[24];
    route_first(r->route, number_text(number, text), now_us(now));
}

void router_done(struct router *r, uint64_t number, uint32_t output, bool failed, double now) {
    char text[24];
    route_done(r->route, number_text(number, text), output, failed, now_us(now));
}
