/* Who could serve a request, what is there of it, and how long it would take. */
#include <math.h>
#include "route/internal.h"

static bool worker_excluded(const struct engine *e, const struct route_request *q) {
    for (uint32_t i = 0; i < q->exclude_count; i++)
        if (span_eq(span_str(e->id), q->exclude[i])) return true;
    return false;
}

/* Why engines were passed over, for the error. */
struct passed_over {
    uint32_t served, excluded, drains, silent, backs_off, tenant, role;
};

static bool engine_may(const struct route *r, const struct engine *e, const struct route_request *q,
                       struct passed_over *why) {
    why->served++;
    if (e->role == ROUTE_DECODE) return why->role++, false;
    if (e->tenant[0] != '\0' && !span_eq(span_str(e->tenant), q->tenant))
        return why->tenant++, false;
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

void candidate_estimate(struct cost_case *c, struct candidate *a) {
    const struct worker *w = &c->route->workers[a->worker];
    uint32_t prefix = a->hit_tokens + a->ahead_tokens + a->load_tokens + a->fetch_tokens;
    /* The last token is computed in any case: its result is the first one of the answer. */
    if (prefix >= c->prompt_tokens) prefix = c->prompt_tokens - 1;
    a->new_tokens = c->prompt_tokens - prefix;
    double n = a->new_tokens, p = prefix;
    a->prefill_us =
        model_predict(&w->engine->prefill, (double[MODEL_TERMS]){1, n, n * (n + 2 * p)});
    a->ttft_us = fmax(a->wait_us, a->load_us) + a->prefill_us;
    a->tbt_us = step_us(w->engine, a->running + 1.0,
                        (double)a->context_tokens + c->prompt_tokens + c->output_tokens / 2.0);
}

static void candidate_init(struct cost_case *c, struct candidate *a, uint32_t worker) {
    const struct worker *w = &c->route->workers[worker];
    *a = (struct candidate){.worker = worker,
                            .fetch_worker = ROUTE_NO_WORKER,
                            .waiting = (uint32_t)worker_waiting(w),
                            .running = (uint32_t)worker_running(w),
                            .queued_tokens = worker_prefill_tokens(w),
                            .context_tokens = worker_context(w),
                            .wait_us = worker_wait_us(c->route, w)};
}

/* Does the request come with hashes by the engine's size of blocks? */
static bool chain_fits(const struct route_request *q, const struct engine *e) {
    for (uint32_t i = 0; i < q->chain_count; i++)
        if (q->chains[i].block == e->block_tokens) return true;
    return false;
}

static tarn_status nothing_fits(struct route *r, const struct route_request *q) {
    const struct engine *e = r->workers[r->candidates[0].worker].engine;
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

static void candidates_match(struct cost_case *c) {
    struct route *r = c->route;
    const struct route_request *q = c->request;
    if (q->chain_count == 0) return;
    size_t n =
        route_index_match(r->index, q->chains, q->chain_count, r->hits, r->options.workers_max);
    for (uint32_t i = 0; i < c->count; i++)
        r->candidate_of[r->workers[c->candidates[i].worker].holder] = i + 1;
    for (size_t i = 0; i < n; i++) {
        uint32_t place = r->candidate_of[r->hits[i].holder];
        if (place > 0) candidate_hit(&c->candidates[place - 1], &r->hits[i]);
    }
    for (uint32_t i = 0; i < c->count; i++)
        r->candidate_of[r->workers[c->candidates[i].worker].holder] = 0;
}

tarn_status candidates_find(struct route *r, const struct route_request *q, struct cost_case *c) {
    const struct name *model = name_find(r, q->model), *lora = name_find(r, q->lora);
    struct passed_over why = {0};
    bool fits = q->chain_count == 0;
    c->candidates = r->candidates;
    c->count = 0;
    for (uint32_t i = 0; model != NULL && i < r->workers_used; i++) {
        const struct engine *e = r->workers[i].engine;
        if (e == NULL || e->model != model || (e->lora != lora && !e->any_lora)) continue;
        if (!engine_may(r, e, q, &why)) continue;
        fits = fits || chain_fits(q, e);
        candidate_init(c, &c->candidates[c->count++], i);
    }
    if (c->count == 0) return nobody_may(r, q, &why);
    if (!fits) return nothing_fits(r, q);
    candidates_match(c);
    return TARN_OK;
}
