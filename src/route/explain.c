/* The last decisions: every candidate with each term of its cost, who was passed over, and what was
 * answered to those that were refused. Two rings of fixed size: of decisions, and of all that were
 * looked at for them; what falls out of either is forgotten. What they say is in explain_say.c. */
#include "route/explain.h"
#include <stdlib.h>

void explain_init(struct route *r) {
    if (r->options.decisions_max == 0) return;
    r->kept = xcalloc(r->options.decisions_max, sizeof(*r->kept));
    uint64_t most = (uint64_t)r->options.decisions_max * r->options.workers_max;
    r->kept_candidates_max = min_u64(most, EXPLAIN_CANDIDATES);
    r->kept_candidates = xcalloc(r->kept_candidates_max, sizeof(*r->kept_candidates));
}

void explain_deinit(struct route *r) {
    free(r->kept);
    free(r->kept_candidates);
}

size_t explain_memory(const struct route *r) {
    return r->options.decisions_max == 0 ? 0
                                         : r->options.decisions_max * sizeof(*r->kept) +
                                               r->kept_candidates_max * sizeof(*r->kept_candidates);
}

/* The one that is being made. */
static struct kept_decision *kept_last(struct route *r) {
    return &r->kept[(r->kept_count - 1) % r->options.decisions_max];
}

static_assert(COST_TERMS == 6, "those below; what a policy has not is never shown");
static inline void kept_fill(struct kept_candidate *k, const struct candidate *a, uint16_t birth) {
    const double *term = a->term;
    *k = (struct kept_candidate){.worker = (uint16_t)a->worker,
                                 .birth = birth,
                                 .hit_tokens = a->hit_tokens,
                                 .ahead_tokens = a->ahead_tokens,
                                 .load_tokens = a->plan.load_tokens,
                                 .fetch_tokens = a->plan.fetch_tokens,
                                 .new_tokens = a->plan.new_tokens,
                                 .ttft_us = (float)a->plan.ttft_us,
                                 .tbt_us = (float)a->tbt_us,
                                 .cost = (float)a->cost,
                                 .term = {(float)term[0], (float)term[1], (float)term[2],
                                          (float)term[3], (float)term[4], (float)term[5]},
                                 .late = a->late,
                                 .pool = (uint8_t)(a->pool_tokens > 0 ? a->pool : ROUTE_POOLS_MAX),
                                 .what = a->engine->role == ROUTE_PREFILL ? KEPT_COMPUTES : 0};
}

/* Each goes to memory that was written long ago: it is fetched some candidates before. */
static void candidates_keep(const struct cost_case *c) {
    struct route *r = c->route;
    const struct worker *workers = r->workers;
    struct kept_candidate *ring = r->kept_candidates, *ring_end = ring + r->kept_candidates_max;
    struct kept_candidate *k = ring + r->kept_candidates_count % r->kept_candidates_max;
    for (const struct candidate *a = c->candidates, *end = a + c->count; a < end; a++) {
        __builtin_prefetch(k + 16, 1);
        kept_fill(k, a, workers[a->worker].birth);
        if (++k == ring_end) k = ring;
    }
    r->kept_candidates_count += c->count;
}

static uint32_t kept_name(char to[ROUTE_NAME_MAX], struct span name) {
    TARN_ASSERT(name.len <= ROUTE_NAME_MAX);
    if (name.len > 0) memcpy(to, name.data, name.len);
    return (uint32_t)name.len;
}

void explain_begin(const struct cost_case *c, const struct cost_ops *ops) {
    struct route *r = c->route;
    if (r->kept == NULL) return;
    r->kept_count++;
    struct kept_decision *k = kept_last(r);
    k->id_len = kept_name(k->id, c->request->id);
    k->model_len = kept_name(k->model, c->request->model);
    k->prompt_tokens = c->prompt_tokens;
    k->ops = ops;
    k->at_us = r->now_us;
    k->ttft_bound_us = c->ttft_bound_us;
    k->tbt_bound_us = c->tbt_bound_us;
    k->session_worker = c->session_worker;
    k->session_tokens = c->session_tokens;
    memset(k->pool_tokens, 0, sizeof(k->pool_tokens));
    for (uint32_t i = 0; i < r->pools_count; i++) k->pool_tokens[i] = r->pools[i].tokens;
    k->first = r->kept_candidates_count;
    k->count = c->count;
    k->decodes = k->passed = 0;
    k->decoders = false;
    if (c->count > 0) candidates_keep(c);
}

/* One more that was looked at. */
static struct kept_candidate *kept_add(struct route *r, uint32_t worker) {
    struct kept_candidate *k =
        &r->kept_candidates[r->kept_candidates_count++ % r->kept_candidates_max];
    k->worker = (uint16_t)worker;
    k->birth = r->workers[worker].birth;
    return k;
}

void explain_decodes_begin(struct route *r) {
    if (r->kept == NULL) return;
    struct kept_decision *k = kept_last(r);
    r->kept_candidates_count -= k->decodes;
    k->decodes = 0;
}

void explain_decode(struct route *r, uint32_t worker, const struct decode_cost *cost) {
    if (r->kept == NULL) return;
    struct kept_candidate *k = kept_add(r, worker);
    k->tbt_us = (float)cost->tbt_us;
    k->term[0] = (float)cost->transfer_us;
    k->term[1] = (float)cost->steps_us;
    k->term[2] = (float)cost->others_us;
    k->cost = k->term[0] + k->term[1] + k->term[2];
    k->late = cost->late;
    k->what = cost->no_room ? KEPT_NO_ROOM : 0;
    kept_last(r)->decodes++;
}

void explain_decoders(struct route *r) {
    if (r->kept != NULL) kept_last(r)->decoders = true;
}

void explain_end(struct route *r, uint32_t prefill, uint32_t decode, tarn_status status,
                 uint32_t retry_ms) {
    if (r->kept == NULL) return;
    struct kept_decision *k = kept_last(r);
    k->chosen = prefill;
    k->decode = decode;
    k->retry_ms = retry_ms;
    memset(k->hit_tokens, 0, sizeof(k->hit_tokens));
    if (prefill != ROUTE_NOBODY)
        memcpy(k->hit_tokens, r->candidates[prefill].tier_tokens, sizeof(k->hit_tokens));
    k->refused[0] = '\0';
    if (status != TARN_OK) {
        size_t len = min_u64(strlen(r->error), sizeof(k->refused) - 1);
        memcpy(k->refused, r->error, len);
        k->refused[len] = '\0';
    }
    for (uint32_t i = 0; i < r->passed_count; i++)
        kept_add(r, r->passed[i].worker)->what = (uint8_t)r->passed[i].why;
    k->passed = r->passed_count;
}

/* --- finding them again --- */

/* The latest one before *number_p. */
static const struct kept_decision *kept_before(const struct route *r, uint64_t *number_p) {
    if (r->kept == NULL) return NULL;
    uint64_t oldest = r->kept_count - min_u64(r->kept_count, r->options.decisions_max);
    if (*number_p <= oldest) return NULL;
    uint64_t number = --*number_p;
    const struct kept_decision *k = &r->kept[number % r->options.decisions_max];
    return r->kept_candidates_count - k->first > r->kept_candidates_max ? NULL : k;
}

/* Likewise, of that request. */
static const struct kept_decision *kept_find(const struct route *r, struct span id,
                                             uint64_t *number_p) {
    const struct kept_decision *k;
    do {
        k = kept_before(r, number_p);
    } while (k != NULL && !span_eq(span_of(k->id, k->id_len), id));
    return k;
}

tarn_status route_explain(struct route *r, struct span request, struct route_explained *e) {
    uint64_t number = r->kept_count;
    const struct kept_decision *k = kept_find(r, request, &number);
    if (k == NULL) return route_fail(r, TARN_ENOTFOUND, "this decision is not kept any more");
    explain_say(r, k, e);
    e->number = number;
    return TARN_OK;
}

bool route_explain_before(const struct route *r, struct route_explained *e) {
    uint64_t number = e->number;
    const struct kept_decision *k = &r->kept[number % r->options.decisions_max];
    k = kept_find(r, span_of(k->id, k->id_len), &number);
    if (k == NULL) return false;
    explain_say(r, k, e);
    e->number = number;
    return true;
}

bool route_explain_next(const struct route *r, uint64_t *number_p, struct route_explained *e) {
    uint64_t number = *number_p == 0 ? r->kept_count : min_u64(*number_p - 1, r->kept_count);
    const struct kept_decision *k = kept_before(r, &number);
    if (k == NULL) return false;
    explain_say(r, k, e);
    e->number = number;
    *number_p = number + 1;
    return true;
}
