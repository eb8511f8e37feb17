/* Who could serve a request, what is there of it, and how long it would take. */
#include "route/internal.h"

static bool worker_excluded(const struct route_engine *e, const struct route_request *q) {
    for (uint32_t i = 0; i < q->exclude_count; i++)
        if (span_eq(span_str(e->id), q->exclude[i])) return true;
    return false;
}

/* Why engines were passed over, for the error. */
struct passed_over {
    uint32_t served, excluded, drains, silent, backs_off, tenant, role;
};

static bool engine_may(const struct route *r, const struct route_engine *e,
                       const struct route_request *q, struct passed_over *why) {
    why->served++;
    if (e->role == ROUTE_DECODE) return why->role++, false;
    if (e->of_tenant && !span_eq(span_str(e->tenant), q->tenant)) return why->tenant++, false;
    if (q->exclude_count > 0 && worker_excluded(e, q)) return why->excluded++, false;
    switch (engine_state(r, e)) {
    case ROUTE_UP: return true;
    case ROUTE_DRAINS: return why->drains++, false;
    case ROUTE_SILENT: return why->silent++, false;
    case ROUTE_BACKS_OFF: return why->backs_off++, false;
    }
    return false;
}

static tarn_status nobody_may(struct route *r, const struct route_request *q,
                              const struct passed_over *why) {
    if (why->served == 0)
        return route_fail(r, TARN_ENOTFOUND, "no engine serves model '%.*s'%s%.*s",
                          (int)q->model.len, q->model.data, q->lora.len > 0 ? " with adapter " : "",
                          (int)q->lora.len, q->lora.data);
    return route_fail(r, TARN_ENOTFOUND,
                      "none of the %u ranks that serve model '%.*s' may take it: %u excluded, %u "
                      "draining, %u silent, %u failing, %u of another tenant, %u only decode",
                      why->served, (int)q->model.len, q->model.data, why->excluded, why->drains,
                      why->silent, why->backs_off, why->tenant, why->role);
}

static void estimate_prefill(struct cost_case *c, struct candidate *a) {
    const struct worker *w = &c->route->workers[a->worker];
    uint32_t prefix = a->hit_tokens + a->ahead_tokens + a->load_tokens + a->fetch_tokens;
    /* The last token is computed in any case: its result is the first one of the answer. */
    if (prefix >= c->prompt_tokens) prefix = c->prompt_tokens - 1;
    a->new_tokens = c->prompt_tokens - prefix;
    double n = a->new_tokens, p = prefix;
    a->prefill_us =
        model_predict(&w->engine->prefill, (double[MODEL_TERMS]){1, n, n * (n + 2 * p)});
    a->ttft_us = most_of(a->wait_us, a->load_us) + a->prefill_us;
}

/* From the pool what is not there, if that is faster than computing it. Bytes that come while the
 * request waits cost nothing. */
static void estimate_load(struct cost_case *c, struct candidate *a) {
    const struct route_request *q = c->request;
    uint32_t there = a->hit_tokens + a->ahead_tokens;
    if (q->pool_tokens <= there) return;
    struct candidate loaded = *a;
    loaded.load_tokens = q->pool_tokens - there;
    loaded.load_us = transfer_from_pool(c->route, c->route->workers[a->worker].engine, q, there).us;
    estimate_prefill(c, &loaded);
    if (loaded.ttft_us < a->ttft_us) *a = loaded;
}

void candidate_estimate(struct cost_case *c, struct candidate *a) {
    const struct worker *w = &c->route->workers[a->worker];
    estimate_prefill(c, a);
    estimate_load(c, a);
    /* Prefills on the same engine take their share of the time. */
    double stretch = w->engine->role == ROUTE_BOTH ? c->traffic.stretch : 1;
    a->tbt_us = step_us(w->engine, a->running + 1.0,
                        (double)a->context_tokens + c->prompt_tokens + c->output_tokens / 2.0) *
                stretch;
}

const struct candidate *candidate_best_hit(const struct cost_case *c) {
    const struct candidate *best = &c->candidates[0];
    for (uint32_t i = 1; i < c->count; i++)
        if (c->candidates[i].hit_tokens > best->hit_tokens) best = &c->candidates[i];
    return best;
}

void candidate_fetch(struct cost_case *c, struct candidate *a, const struct candidate *from) {
    const struct worker *w = c->route->workers;
    uint32_t there = a->hit_tokens + a->ahead_tokens;
    if (from->hit_tokens <= there || from->worker == a->worker) return;
    a->load_tokens = 0;
    a->fetch_tokens = from->hit_tokens - there;
    a->fetch_worker = from->worker;
    a->load_us = transfer_between(w[from->worker].engine, w[a->worker].engine, a->fetch_tokens).us;
    estimate_prefill(c, a);
}

struct transfer candidate_transfer(const struct cost_case *c, const struct candidate *a) {
    const struct worker *w = c->route->workers;
    const struct route_engine *e = w[a->worker].engine;
    if (a->fetch_tokens > 0) return transfer_between(w[a->fetch_worker].engine, e, a->fetch_tokens);
    if (a->load_tokens > 0)
        return transfer_from_pool(c->route, e, c->request, a->hit_tokens + a->ahead_tokens);
    return (struct transfer){0};
}

/* What is estimated, weighed and admitted is written then: to clear all of it would take a tenth of
 * a decision. */
static void candidate_init(struct cost_case *c, struct candidate *a, uint32_t worker) {
    const struct worker *w = &c->route->workers[worker];
    a->worker = worker;
    a->hit_tokens = a->ahead_tokens = a->load_tokens = a->fetch_tokens = 0;
    memset(a->tier_tokens, 0, sizeof(a->tier_tokens));
    a->fetch_worker = ROUTE_NO_WORKER;
    a->load_us = 0;
    a->waiting = (uint32_t)worker_waiting(w);
    a->running = (uint32_t)worker_running(w);
    a->queued_tokens = worker_prefill_tokens(w);
    a->context_tokens = worker_context(w);
    a->wait_us = worker_wait_us(c->route, w);
}

/* What events told of it, and what is on its way. */
bool cache_full(const struct cost_case *c, const struct candidate *a) {
    const struct worker *w = &c->route->workers[a->worker];
    const struct route_engine *e = w->engine;
    if (e->kv_blocks == 0) return false;
    uint64_t used = route_holder_blocks(c->route->index, w->holder) * e->block_tokens;
    uint64_t most = (uint64_t)e->kv_blocks * e->block_tokens;
    return used + a->queued_tokens + a->new_tokens >= most;
}

const struct route_chain *chain_of(const struct route_request *q, const struct route_engine *e) {
    for (uint32_t i = 0; i < q->chain_count; i++)
        if (q->chains[i].block == e->block_tokens) return &q->chains[i];
    return NULL;
}

static tarn_status nothing_fits(struct route *r, const struct route_request *q) {
    const struct route_engine *e = r->workers[r->candidates[0].worker].engine;
    return route_fail(r, TARN_EINVAL,
                      "the prompt is hashed in blocks of %u tokens, those of engine %s have %u",
                      q->chains[0].block, e->id, e->block_tokens);
}

/* What is told by tiers and all faster ones, of whole blocks of the prompt. */
static void candidate_hit(struct candidate *a, const struct route_hit *h) {
    a->hit_tokens = h->tokens[ROUTE_TIERS - 1];
    a->tier_tokens[0] = h->tokens[0];
    for (unsigned t = 1; t < ROUTE_TIERS; t++) a->tier_tokens[t] = h->tokens[t] - h->tokens[t - 1];
}

static void match_index(struct cost_case *c) {
    struct route *r = c->route;
    const struct route_request *q = c->request;
    size_t n =
        route_index_match(r->index, q->chains, q->chain_count, r->hits, r->options.workers_max);
    for (size_t i = 0; i < n; i++) {
        uint32_t place = r->place_of[r->worker_of[r->hits[i].holder]];
        if (place > 0) candidate_hit(&c->candidates[place - 1], &r->hits[i]);
    }
}

/* Block i of the chain is on its way to the workers of its line; it counts for those that have or
 * will have all blocks before it. The longest prefix that somebody has then. */
static uint32_t match_ahead_block(struct cost_case *c, const struct route_chain *chain, uint32_t i,
                                  uint32_t longest) {
    struct route *r = c->route;
    uint64_t now_ms = r->now_us / 1000;
    const struct ahead_line *line = ahead_line_of(&r->ahead, chain_name(chain, i));
    for (unsigned way = 0; way < AHEAD_WAYS; way++) {
        const struct ahead_entry *e = &line->way[way];
        if (!ahead_live(e, chain_name(chain, i), now_ms)) continue;
        uint32_t place = r->place_of[e->worker];
        if (place == 0 || !worker_still(r, e->worker, e->birth)) continue;
        struct candidate *a = &c->candidates[place - 1];
        if (r->workers[a->worker].engine->block_tokens != chain->block ||
            a->hit_tokens + a->ahead_tokens != i * chain->block)
            continue;
        a->ahead_tokens += chain->block;
        if (a->hit_tokens + a->ahead_tokens > longest) longest = a->hit_tokens + a->ahead_tokens;
    }
    return longest;
}

/* Behind the longest prefix that somebody has, nothing can follow. Lines lie anywhere, so they are
 * fetched some blocks before they are looked at. */
static void match_ahead(struct cost_case *c, const struct route_chain *chain) {
    const struct ahead *table = &c->route->ahead;
    uint32_t n = chain->n < AHEAD_BLOCKS_MAX ? chain->n : AHEAD_BLOCKS_MAX, near = 8, longest = 0;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->candidates[i].hit_tokens > longest) longest = c->candidates[i].hit_tokens;
    for (uint32_t i = 0; i < n && i < near; i++)
        __builtin_prefetch(ahead_line_of(table, chain_name(chain, i)));
    for (uint32_t i = 0; i < n && i * chain->block <= longest; i++) {
        if (i + near < n) __builtin_prefetch(ahead_line_of(table, chain_name(chain, i + near)));
        longest = match_ahead_block(c, chain, i, longest);
    }
}

static void candidates_match(struct cost_case *c) {
    struct route *r = c->route;
    const struct route_request *q = c->request;
    if (q->chain_count == 0) return;
    for (uint32_t i = 0; i < c->count; i++) r->place_of[c->candidates[i].worker] = i + 1;
    match_index(c);
    for (uint32_t k = 0; k < q->chain_count; k++) match_ahead(c, &q->chains[k]);
    for (uint32_t i = 0; i < c->count; i++) r->place_of[c->candidates[i].worker] = 0;
}

/* Until twice its estimate and some more, for the event that tells of them. */
#define AHEAD_GRACE_MS 2000u

void candidate_ahead_put(const struct cost_case *c, const struct candidate *a) {
    struct route *r = c->route;
    const struct worker *w = &r->workers[a->worker];
    const struct route_chain *chain = chain_of(c->request, w->engine);
    if (chain == NULL) return;
    uint64_t now_ms = r->now_us / 1000;
    uint64_t until_ms = now_ms + AHEAD_GRACE_MS + (uint64_t)least_of(a->ttft_us / 500, 3.6e6);
    uint32_t n = chain->n < AHEAD_BLOCKS_MAX ? chain->n : AHEAD_BLOCKS_MAX;
    for (uint32_t i = a->hit_tokens / chain->block; i < n; i++)
        __builtin_prefetch(ahead_line_of(&r->ahead, chain_name(chain, i)), 1);
    for (uint32_t i = a->hit_tokens / chain->block; i < n; i++)
        ahead_put(&r->ahead, chain_name(chain, i), (uint16_t)a->worker, w->birth, now_ms, until_ms);
}

/* What lies between two decisions, events above all, has pushed the workers out of the near caches:
 * those that come next are fetched while this one is looked at. */
static void worker_prefetch(const struct route *r, uint32_t i) {
    if (i + 8 >= r->workers_used) return;
    const char *later = (const char *)&r->workers[i + 8], *engine;
    for (unsigned line = 0; line < 3; line++) __builtin_prefetch(later + 64 * line);
    engine = (const char *)r->workers[i + 4].engine;
    if (engine == NULL) return;
    __builtin_prefetch(engine);
    __builtin_prefetch(engine + offsetof(struct route_engine, prefill));
    __builtin_prefetch(engine + offsetof(struct route_engine, decode));
    __builtin_prefetch(&r->candidates[i + 4], 1);
}

tarn_status candidates_find(struct route *r, const struct route_request *q, struct cost_case *c) {
    struct route_name *model = name_find(r, q->model), *lora = name_find(r, q->lora);
    struct passed_over why = {0};
    bool fits = q->chain_count == 0;
    c->model = model;
    c->candidates = r->candidates;
    c->count = 0;
    for (uint32_t i = 0; model != NULL && i < r->workers_used; i++) {
        const struct route_engine *e = r->workers[i].engine;
        worker_prefetch(r, i);
        if (e == NULL || e->model != model || (e->lora != lora && !e->any_lora)) continue;
        if (!engine_may(r, e, q, &why)) continue;
        fits = fits || chain_of(q, e) != NULL;
        candidate_init(c, &c->candidates[c->count++], i);
    }
    if (c->count == 0) return nobody_may(r, q, &why);
    if (!fits) return nothing_fits(r, q);
    c->traffic = traffic_of(&model->traffic, r->now_us, c->count);
    transfer_find_runs(r, q);
    candidates_match(c);
    return TARN_OK;
}

size_t route_match(struct route *r, const struct route_request *q, struct route_matched *out,
                   size_t cap) {
    const struct route_name *model = name_find(r, q->model), *lora = name_find(r, q->lora);
    size_t found = 0, n = 0;
    if (q->chain_count > 0 && q->chain_count <= ROUTE_CHAINS_MAX)
        n = route_index_match(r->index, q->chains, q->chain_count, r->hits, r->options.workers_max);
    for (size_t i = 0; i < n; i++) {
        const struct worker *w = &r->workers[r->worker_of[r->hits[i].holder]];
        const struct route_engine *e = w->engine;
        if (e == NULL || e->model != model || (e->lora != lora && !e->any_lora)) continue;
        if (found < cap) {
            out[found] = (struct route_matched){
                .engine = e->id, .rank = w->rank, .worker = (uint32_t)(w - r->workers)};
            memcpy(out[found].tokens, r->hits[i].tokens, sizeof(out[found].tokens));
        }
        found++;
    }
    return found;
}
