/* A decision, from the request to the reservation. */
#include <math.h>
#include <stdlib.h>
#include "route/internal.h"

#define TOKENS_MOST (1u << 28)

static tarn_status request_check(struct route *r, const struct route_request *q) {
    if (q->id.len == 0 || q->id.len > ROUTE_NAME_MAX)
        return route_fail(r, TARN_EINVAL, "a request's id has 1 to %u bytes", ROUTE_NAME_MAX);
    if (q->model.len > ROUTE_NAME_MAX || q->lora.len > ROUTE_NAME_MAX ||
        q->tenant.len > ROUTE_NAME_MAX || q->session.len > ROUTE_NAME_MAX)
        return route_fail(r, TARN_EINVAL, "a model, adapter, tenant or session has up to %u bytes",
                          ROUTE_NAME_MAX);
    if (q->length_tokens == 0 || q->length_tokens > TOKENS_MOST || q->output_tokens > TOKENS_MOST)
        return route_fail(r, TARN_EINVAL, "a prompt has 1 to %u tokens, an answer up to as many",
                          TOKENS_MOST);
    if (q->chain_count > ROUTE_CHAINS_MAX)
        return route_fail(r, TARN_EINVAL, "a request is hashed by up to %u sizes of blocks",
                          ROUTE_CHAINS_MAX);
    if (q->exclude_count > ROUTE_EXCLUDE_MAX)
        return route_fail(r, TARN_EINVAL, "up to %u engines can be excluded", ROUTE_EXCLUDE_MAX);
    if (!(q->ttft_ms >= 0) || !(q->tbt_ms >= 0))
        return route_fail(r, TARN_EINVAL, "a TTFT or TBT is not negative");
    return TARN_OK;
}

static struct request *request_make(const struct cost_case *c, const struct candidate *a) {
    struct span id = c->request->id;
    struct request *q = xcalloc(1, sizeof(*q) + id.len);
    memcpy(q->id, id.data, id.len);
    q->id_len = id.len;
    q->prefill = q->decode = a->worker;
    q->prompt_tokens = c->prompt_tokens;
    q->new_tokens = a->new_tokens;
    q->prefix_tokens = c->prompt_tokens - a->new_tokens;
    q->output_tokens = c->output_tokens;
    q->load_tokens = a->load_tokens + a->fetch_tokens;
    q->decided_us = c->route->now_us;
    q->prefill_us = a->prefill_us;
    q->load_us = a->load_us;
    double n = q->new_tokens, p = q->prefix_tokens;
    q->term[0] = 1;
    q->term[1] = n;
    q->term[2] = n * (n + 2 * p);
    return q;
}

/* Until the estimated end, and what the options grant on top of that. */
static uint32_t lease_ms_of(const struct route *r, const struct candidate *a) {
    double ms = a->ttft_us / 1000;
    return r->options.lease_ms + (uint32_t)(ms < 3.6e6 ? ms : 3.6e6);
}

static void decision_fill(const struct cost_case *c, const struct candidate *a,
                          const struct request *q, struct route_decision *d) {
    const struct worker *w = &c->route->workers[q->prefill];
    *d = (struct route_decision){.prefill = w->engine->id,
                                 .prefill_rank = w->rank,
                                 .prefill_worker = q->prefill,
                                 .decode_worker = q->decode,
                                 .ahead_tokens = a->ahead_tokens,
                                 .load_tokens = a->load_tokens,
                                 .fetch_tokens = a->fetch_tokens,
                                 .fetch_worker = a->fetch_worker,
                                 .ttft_ms = a->ttft_us / 1000,
                                 .tbt_ms = a->tbt_us / 1000,
                                 .lease_ms = lease_ms_of(c->route, a)};
    memcpy(d->hit_tokens, a->tier_tokens, sizeof(d->hit_tokens));
}

static void figures_count(struct route *r, const struct cost_case *c, const struct candidate *a) {
    r->figures.route_decisions++;
    r->figures.route_prompt_tokens += c->prompt_tokens;
    r->figures.route_hit_tokens += a->hit_tokens;
    r->figures.route_ahead_tokens += a->ahead_tokens;
    r->figures.route_load_tokens += a->load_tokens;
    r->figures.route_fetch_tokens += a->fetch_tokens;
}

static tarn_status case_begin(struct route *r, const struct route_request *q, struct cost_case *c,
                              const struct cost_ops **ops_p) {
    *c = (struct cost_case){.route = r, .request = q, .prompt_tokens = q->length_tokens};
    *ops_p = q->policy == NULL ? r->policy : cost_find(q->policy);
    if (*ops_p == NULL) return route_fail(r, TARN_EINVAL, "there is no policy '%.64s'", q->policy);
    c->output_tokens = q->output_tokens > 0 ? q->output_tokens : (uint32_t)fmax(r->output_mean, 1);
    tarn_status status = candidates_find(r, q, c);
    for (uint32_t i = 0; status == TARN_OK && i < c->count; i++)
        candidate_estimate(c, &c->candidates[i]);
    return status;
}

static tarn_status decide_anew(struct route *r, const struct route_request *q,
                               struct route_decision *d) {
    struct cost_case c;
    const struct cost_ops *ops;
    tarn_status status = case_begin(r, q, &c, &ops);
    if (status != TARN_OK) return status;
    if (r->figures.route_reserved >= r->options.requests_max)
        return route_fail(r, TARN_ELIMIT, "%u requests are reserved, which is the most",
                          r->options.requests_max);
    const struct candidate *a = &c.candidates[cost_choose(&c, ops)];
    struct request *made = request_make(&c, a);
    request_reserve(r, made);
    decision_fill(&c, a, made, d);
    request_lease(r, made, d->lease_ms);
    figures_count(r, &c, a);
    return TARN_OK;
}

tarn_status route_decide(struct route *r, const struct route_request *q, uint64_t now_us,
                         struct route_decision *d) {
    route_tick(r, now_us);
    tarn_status status = request_check(r, q);
    struct request *old = status == TARN_OK ? request_find(r, q->id) : NULL;
    if (old != NULL) request_release(r, &old);
    if (status == TARN_OK) status = decide_anew(r, q, d);
    if (status != TARN_OK && status != TARN_ELATER) r->figures.route_unserved++;
    return status;
}
