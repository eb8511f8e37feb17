/* Who could serve a request, and how long it would take there. */
#include <math.h>
#include "route/judge.h"
#include "route/plan.h"

enum engine_verdict engine_judge_names(const struct route_request *q,
                                       const struct route_engine *e) {
    if (e->of_tenant && !span_eq(span_str(e->tenant), q->tenant)) return ENGINE_OF_TENANT;
    for (uint32_t i = 0; i < q->exclude_count; i++)
        if (span_eq(span_str(e->id), q->exclude[i])) return ENGINE_EXCLUDED;
    return ENGINE_MAY;
}

/* May it compute the prompt? */
__attribute__((always_inline)) static inline enum engine_verdict
prefill_judge(const struct cost_case *c, const struct route_engine *e) {
    enum engine_verdict verdict = engine_judge(c, e);
    return verdict != ENGINE_OF_OTHERS && e->role == ROUTE_DECODE ? ENGINE_DECODES : verdict;
}

static tarn_status nobody_may(const struct cost_case *c) {
    struct route *r = c->route;
    const struct route_request *q = c->request;
    uint32_t n[VERDICTS] = {0};
    for (uint32_t i = 0; i < r->workers_used; i++) n[prefill_judge(c, r->workers[i].engine)]++;
    uint32_t served = r->workers_used - n[ENGINE_OF_OTHERS];
    if (served == 0)
        return route_fail(r, TARN_ENOTFOUND, "no engine serves model '%.*s'%s%.*s",
                          (int)q->model.len, q->model.data, q->lora.len > 0 ? " with adapter " : "",
                          (int)q->lora.len, q->lora.data);
    return route_fail(r, TARN_ENOTFOUND,
                      "none of the %u ranks that serve model '%.*s' may take it: %u excluded, %u "
                      "draining, %u silent, %u failing, %u of another tenant, %u only decode",
                      served, (int)q->model.len, q->model.data, n[ENGINE_EXCLUDED],
                      n[ENGINE_DRAINS], n[ENGINE_SILENT], n[ENGINE_BACKS_OFF], n[ENGINE_OF_TENANT],
                      n[ENGINE_DECODES]);
}

static tarn_status nothing_fits(const struct cost_case *c) {
    return route_fail(c->route, TARN_EINVAL,
                      "the prompt is hashed in blocks of %u tokens, those of engine %s have %u",
                      c->request->chains[0].block, c->candidates[0].engine->id,
                      c->candidates[0].engine->block_tokens);
}

const struct route_chain *chain_of(const struct route_request *q, const struct route_engine *e) {
    for (uint32_t i = 0; i < q->chain_count; i++)
        if (q->chains[i].block == e->block_tokens) return &q->chains[i];
    return NULL;
}

/* What is estimated and weighed is written then: to clear all of it would take a tenth of a
 * decision. */
static inline void candidate_init(const struct route *r, struct candidate *a, uint32_t worker) {
    const struct worker *w = &r->workers[worker];
    a->worker = worker;
    a->engine = w->engine;
    a->hit_tokens = a->ahead_tokens = 0;
    memset(a->tier_tokens, 0, sizeof(a->tier_tokens));
    a->pool = 0;
    while (a->pool < r->pools_count && r->pools[a->pool].keys != a->engine->keys) a->pool++;
    a->pool_tokens = a->pool < r->pools_count ? r->pools[a->pool].tokens : 0;
    a->waiting = (uint32_t)worker_waiting(w);
    a->running = (uint32_t)worker_running(w);
    a->queued_tokens = real(worker_prefill_tokens(w));
    a->context_tokens = real(worker_context(w));
    a->wait_us = worker_wait_us(r, w);
    a->link_us = worker_link_us(r, w);
}

/* What lies between two decisions, events above all, has pushed engines out of the near caches: the
 * next ones are fetched while this one is looked at. always_inline: as route_table_prefetch. */
__attribute__((always_inline)) static inline void engine_prefetch(const struct worker *w) {
    const char *engine = (const char *)w->engine;
    if (engine == NULL) return;
    __builtin_prefetch(engine);
    __builtin_prefetch(engine + offsetof(struct route_engine, prefill));
    __builtin_prefetch(engine + offsetof(struct route_engine, decode));
}
#define ENGINES_NEAR 4u

tarn_status candidates_find(struct cost_case *c) {
    struct route *r = c->route;
    const struct route_request *q = c->request;
    bool fits = q->chain_count == 0;
    uint32_t count = 0, used = r->workers_used;
    c->model = name_find(r, q->model);
    c->lora = name_find(r, q->lora);
    c->candidates = r->candidates;
    transfer_find_pools(c);
    double shortest_us = INFINITY;
    r->passed_count = 0;
    for (uint32_t i = 0; i < used; i++) {
        const struct route_engine *e = r->workers[i].engine;
        if (i + ENGINES_NEAR < used) engine_prefetch(&r->workers[i + ENGINES_NEAR]);
        enum engine_verdict verdict = prefill_judge(c, e);
        if (verdict > ENGINE_DECODES) engine_passed(r, i, verdict);
        if (verdict != ENGINE_MAY) continue;
        struct candidate *a = &c->candidates[count];
        fits = fits || chain_of(q, e) != NULL;
        candidate_init(r, a, i);
        shortest_us = least_of(shortest_us, a->wait_us);
        r->place_of[i] = count++;
    }
    c->count = count;
    r->passed_prefills = r->passed_count;
    c->shortest_wait_us = shortest_us;
    if (count == 0) return nobody_may(c);
    if (!fits) return nothing_fits(c);
    c->traffic = traffic_of(&c->model->traffic, r->now_us, count);
    match_candidates(c);
    session_match(c);
    return TARN_OK;
}

/* Who will decode is not known yet: its KV goes as far as the last one's did. */
static void candidate_hand_over(const struct cost_case *c, struct candidate *a) {
    const struct route_engine *e = a->engine;
    const struct worker *w = &c->route->workers[a->worker];
    double bytes = (double)c->prompt_tokens * e->bytes_per_token;
    a->send_us = worker_send_us(c->route, w);
    a->hand_us = model_predict_one(&e->transfer[w->sends_to], bytes, 0);
}

/* From the pool what is not there, if that is faster than computing it. Bytes that come while the
 * request waits cost nothing. */
void candidates_estimate(struct cost_case *c) {
    double growth = c->prompt_tokens + c->output_tokens / 2.0;
    for (struct candidate *a = c->candidates, *end = a + c->count; a < end; a++) {
        const double *each = a->engine->decode.each;
        bool alone = a->engine->role == ROUTE_PREFILL;
        a->beside_us = alone ? 0 : each[1] * a->running + each[2] * a->context_tokens;
        if (alone) candidate_hand_over(c, a);
        plan_compute(c, a, &a->plan);
        if (a->pool_tokens > candidate_there(a)) {
            struct prefill_plan loading;
            plan_load(c, a, &loading);
            if (loading.ttft_us < a->plan.ttft_us) plan_set(&a->plan, &loading);
        }
        /* Prefills on the same engine take their share of the time. */
        double stretch = a->engine->role == ROUTE_BOTH ? c->traffic.stretch : 1;
        a->tbt_us = step_us(a->engine, a->running + 1.0, a->context_tokens + growth) * stretch;
    }
}

struct transfer candidate_transfer(const struct cost_case *c, const struct candidate *a) {
    const struct prefill_plan *p = &a->plan;
    if (p->fetch_tokens > 0)
        return transfer_between(c->route->workers[p->fetch_worker].engine, a->engine,
                                p->fetch_tokens);
    if (p->load_tokens > 0) return transfer_from_pool(c, a, candidate_there(a));
    return (struct transfer){0};
}
