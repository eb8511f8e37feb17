/* The last decisions, with every candidate and each term of its cost. Two rings of fixed size: of
 * decisions, and of their candidates; what falls out of either is forgotten. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "route/internal.h"

/* Two hundred of them are written by a decision, so they are one line of the caches each. */
struct kept_candidate {
    uint16_t worker, birth;
    uint32_t hit_tokens, ahead_tokens, load_tokens, fetch_tokens, new_tokens;
    float ttft_us, tbt_us, cost, term[COST_TERMS];
    bool late;
};
static_assert(sizeof(struct kept_candidate) == 64, "a line of the processor's caches");

struct kept_decision {
    char id[ROUTE_NAME_MAX];
    size_t id_len;
    const struct cost_ops *ops;
    uint64_t at_us, first; /* first: number of its first candidate */
    uint32_t count, chosen;
};

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
                                 .late = a->late};
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

void explain_keep(const struct cost_case *c, const struct cost_ops *ops, uint32_t chosen) {
    struct route *r = c->route;
    if (r->kept == NULL) return;
    struct kept_decision *k = &r->kept[r->kept_count++ % r->options.decisions_max];
    memcpy(k->id, c->request->id.data, c->request->id.len);
    k->id_len = c->request->id.len;
    k->ops = ops;
    k->at_us = r->now_us;
    k->first = r->kept_candidates_count;
    k->count = c->count;
    k->chosen = chosen;
    candidates_keep(c);
}

static const struct kept_decision *kept_find(const struct route *r, struct span id) {
    uint64_t n = r->kept == NULL ? 0 : min_u64(r->kept_count, r->options.decisions_max);
    for (uint64_t i = 1; i <= n; i++) {
        const struct kept_decision *k = &r->kept[(r->kept_count - i) % r->options.decisions_max];
        if (r->kept_candidates_count - k->first > r->kept_candidates_max) return NULL;
        if (span_eq(span_of(k->id, k->id_len), id)) return k;
    }
    return NULL;
}

tarn_status route_explain(struct route *r, struct span request, struct route_explained *e) {
    const struct kept_decision *k = kept_find(r, request);
    if (k == NULL) return route_fail(r, TARN_ENOTFOUND, "this decision is not kept any more");
    *e = (struct route_explained){.policy = k->ops->name,
                                  .terms = k->ops->terms,
                                  .at_us = k->at_us,
                                  .count = k->count,
                                  .chosen = k->chosen,
                                  .first = k->first};
    return TARN_OK;
}

static const struct kept_candidate *kept_at(const struct route *r, uint64_t number) {
    return &r->kept_candidates[number % r->kept_candidates_max];
}

/* The term by which it lost the most; NULL: there is none, or costs are no sums of terms. */
static const char *lost_by(const struct kept_candidate *k, const struct kept_candidate *best,
                           const struct cost_ops *ops) {
    const char *name = NULL;
    float most = 0;
    for (unsigned i = 0; ops->sums && ops->terms[i] != NULL; i++) {
        float by = k->term[i] - best->term[i];
        if (by > most) most = by, name = ops->terms[i];
    }
    return name;
}

static void explain_why(const struct route_explained *e, const struct kept_candidate *k,
                        const struct kept_candidate *best, char *why, size_t size) {
    const char *term = lost_by(k, best, cost_find(e->policy));
    if (k == best)
        snprintf(why, size, "chosen");
    else if (k->late)
        snprintf(why, size, "could not keep the times asked for");
    else if (k->cost <= best->cost)
        snprintf(why, size, "as good, and not drawn");
    else if (term == NULL)
        snprintf(why, size, "cost %g against %g", (double)k->cost, (double)best->cost);
    else
        snprintf(why, size, "cost %g against %g, most of it by %s", (double)k->cost,
                 (double)best->cost, term);
}

void route_explain_candidate(const struct route *r, const struct route_explained *e, uint32_t i,
                             struct route_explained_candidate *out) {
    TARN_ASSERT(i < e->count);
    const struct kept_candidate *k = kept_at(r, e->first + i);
    const struct worker *w = &r->workers[k->worker];
    bool there = worker_still(r, k->worker, k->birth);
    *out = (struct route_explained_candidate){.engine = there ? w->engine->id : NULL,
                                              .rank = there ? w->rank : 0,
                                              .hit_tokens = k->hit_tokens,
                                              .ahead_tokens = k->ahead_tokens,
                                              .load_tokens = k->load_tokens,
                                              .fetch_tokens = k->fetch_tokens,
                                              .new_tokens = k->new_tokens,
                                              .ttft_ms = (double)k->ttft_us / 1000,
                                              .tbt_ms = (double)k->tbt_us / 1000,
                                              .cost = (double)k->cost};
    for (unsigned t = 0; e->terms[t] != NULL; t++) out->term[t] = (double)k->term[t];
    explain_why(e, k, kept_at(r, e->first + e->chosen), out->why, sizeof(out->why));
}
