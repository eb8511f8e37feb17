/* How long a candidate would take, by where it gets the prompt's prefix from. Here, and not behind
 * calls, because a decision asks each of hundreds of candidates for it. */
#ifndef TARN_ROUTE_PLAN_H
#define TARN_ROUTE_PLAN_H

#include <math.h>
#include "route/internal.h"

/* Tokens of the prefix that it has, or will have before its turn comes. */
static inline uint32_t candidate_there(const struct candidate *a) {
    return a->hit_tokens + a->ahead_tokens;
}

/* In each step of a prefill those that decode have their part, too. Prompts are computed in chunks
 * of so many tokens: vLLM's default. With chunks of a quarter, or of four times that, decisions are
 * as good: what a step takes by itself is learnt. */
#define CHUNK_TOKENS 2048

static inline double plan_beside_us(const struct candidate *a, double tokens) {
    return a->beside_us * (1 + tokens / CHUNK_TOKENS);
}

static inline double plan_prefill_us(const struct candidate *a, double tokens, double prefix) {
    return model_predict_one(&a->engine->prefill, tokens, tokens * (tokens + 2 * prefix)) +
           plan_beside_us(a, tokens);
}

/* Of a plan that says what is loaded or fetched, and how long that takes, the rest. */
static inline void plan_estimate(const struct cost_case *c, const struct candidate *a,
                                 struct prefill_plan *p) {
    uint32_t prefix = candidate_there(a) + p->load_tokens + p->fetch_tokens;
    /* The last token is computed in any case: its result is the first one of the answer. */
    if (prefix >= c->prompt_tokens) prefix = c->prompt_tokens - 1;
    p->new_tokens = c->prompt_tokens - prefix;
    p->prefill_us = plan_prefill_us(a, p->new_tokens, prefix);
    p->ttft_us = most_of(a->wait_us, p->load_us) + p->prefill_us;
}

/* It computes all that is not there. */
static inline void plan_compute(const struct cost_case *c, const struct candidate *a,
                                struct prefill_plan *p) {
    p->load_tokens = p->fetch_tokens = 0;
    p->fetch_worker = ROUTE_NO_WORKER;
    p->load_us = 0;
    plan_estimate(c, a, p);
}

/* It loads what the pool has beyond that. */
static inline void plan_load(const struct cost_case *c, const struct candidate *a,
                             struct prefill_plan *p) {
    uint32_t there = candidate_there(a);
    p->load_tokens = a->pool_tokens - there;
    p->fetch_tokens = 0;
    p->fetch_worker = ROUTE_NO_WORKER;
    p->load_us = a->link_us + transfer_pool_us(c, a, there);
    plan_estimate(c, a, p);
}

/* It fetches what another one has beyond that. */
static inline void plan_fetch(const struct cost_case *c, const struct candidate *a,
                              const struct candidate *from, struct prefill_plan *p) {
    p->load_tokens = 0;
    p->fetch_tokens = from->hit_tokens - candidate_there(a);
    p->fetch_worker = from->worker;
    p->load_us = a->link_us + transfer_between(from->engine, a->engine, p->fetch_tokens).us;
    plan_estimate(c, a, p);
}
/* How long it keeps its engine from those that come later: also while bytes are not there. */
static inline double plan_busy_us(const struct candidate *a, const struct prefill_plan *p) {
    return p->ttft_us - a->wait_us;
}
/* How long after its first token its KV is with who decodes. The link sends in the order in which
 * prompts are computed, each from when that began: layers go while later ones are computed. */
static inline double plan_hand_us(const struct candidate *a, const struct prefill_plan *p) {
    double waits = most_of(a->send_us - most_of(a->wait_us, p->load_us), 0);
    return most_of(waits + a->hand_us - p->prefill_us, 0);
}
static inline bool plan_may_fetch(const struct candidate *a, const struct candidate *from) {
    return from->hit_tokens > candidate_there(a) && from->worker != a->worker;
}

/* Member by member: as a whole it would be read in wide words just after it was written in narrow
 * ones, for which the processor waits longer than the estimate took. */
static inline void plan_set(struct prefill_plan *to, const struct prefill_plan *p) {
    to->load_tokens = p->load_tokens;
    to->fetch_tokens = p->fetch_tokens;
    to->fetch_worker = p->fetch_worker;
    to->new_tokens = p->new_tokens;
    to->load_us = p->load_us;
    to->prefill_us = p->prefill_us;
    to->ttft_us = p->ttft_us;
}

/* Tokens that it could compute before they push other blocks out: what events told of it, and what
 * is on its way, has taken the rest. */
static inline double candidate_room(const struct cost_case *c, const struct candidate *a) {
    const struct route_engine *e = a->engine;
    if (e->kv_blocks == 0) return INFINITY;
    uint64_t used = route_holder_blocks(c->route->index, c->route->workers[a->worker].holder);
    return ((double)e->kv_blocks - real(used)) * e->block_tokens - a->queued_tokens;
}

#endif
