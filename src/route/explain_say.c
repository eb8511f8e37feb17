/* Kept decisions in words: who was chosen, and why the others were not. */
#include <math.h>
#include <stdio.h>
#include "route/explain.h"

static const char *const decode_terms[] = {"transfer us", "steps us", "others us", NULL};

static const struct kept_candidate *kept_at(const struct route *r, uint64_t number) {
    return &r->kept_candidates[number % r->kept_candidates_max];
}

static double bound_ms(double us) {
    return isfinite(us) ? us / 1000 : 0;
}

/* The place among those that decode. */
static uint32_t decode_place(const struct route *r, const struct kept_decision *k) {
    for (uint32_t i = 0; k->decode != ROUTE_NO_WORKER && i < k->decodes; i++)
        if (kept_at(r, k->first + k->count + i)->worker == k->decode) return i;
    return ROUTE_NOBODY;
}

void explain_say(const struct route *r, const struct kept_decision *k, struct route_explained *e) {
    static const char *const none[] = {NULL};
    *e = (struct route_explained){.request = span_of(k->id, k->id_len),
                                  .model = span_of(k->model, k->model_len),
                                  .prompt_tokens = k->prompt_tokens,
                                  .refused = k->refused[0] != '\0' ? k->refused : NULL,
                                  .retry_ms = k->retry_ms,
                                  .at_us = k->at_us,
                                  .ttft_ms = bound_ms(k->ttft_bound_us),
                                  .tbt_ms = bound_ms(k->tbt_bound_us),
                                  .policy = k->ops != NULL ? k->ops->name : NULL,
                                  .terms = k->ops != NULL ? k->ops->terms : none,
                                  .count = k->count,
                                  .chosen = k->chosen,
                                  .decode_terms = decode_terms,
                                  .decode_count = k->decodes,
                                  .decode_chosen = decode_place(r, k),
                                  .passed_count = k->passed};
    memcpy(e->hit_tokens, k->hit_tokens, sizeof(e->hit_tokens));
}

/* --- why one lost --- */

struct words {
    char *text;
    size_t size;
};

/* The term by which it lost the most; NULL: there is none. */
static const char *lost_by(const struct kept_candidate *k, const struct kept_candidate *best,
                           const char *const *terms) {
    const char *name = NULL;
    float most = 0;
    for (unsigned i = 0; terms[i] != NULL; i++) {
        float by = k->term[i] - best->term[i];
        if (by > most) most = by, name = terms[i];
    }
    return name;
}

/* sums: the cost is the sum of the terms. */
static void say_cost(struct words w, const struct kept_candidate *k,
                     const struct kept_candidate *best, const char *const *terms, bool sums) {
    const char *term = sums ? lost_by(k, best, terms) : NULL;
    if (k->cost <= best->cost)
        snprintf(w.text, w.size, "as good, and not drawn");
    else if (term == NULL)
        snprintf(w.text, w.size, "cost %g against %g", (double)k->cost, (double)best->cost);
    else
        snprintf(w.text, w.size, "cost %g against %g, most of it by %s", (double)k->cost,
                 (double)best->cost, term);
}

static void say_late(struct words w, const struct route_explained *e,
                     const struct kept_candidate *k) {
    double ttft_ms = (double)k->ttft_us / 1000, tbt_ms = (double)k->tbt_us / 1000;
    if (e->ttft_ms > 0 && ttft_ms > e->ttft_ms)
        snprintf(w.text, w.size, "its first token would take %.4g ms, and %.4g are asked for",
                 ttft_ms, e->ttft_ms);
    else
        snprintf(w.text, w.size, "its tokens would take %.4g ms each, and %.4g are asked for",
                 tbt_ms, e->tbt_ms);
}

static const struct kept_decision *decision_of(const struct route *r,
                                               const struct route_explained *e) {
    return &r->kept[e->number % r->options.decisions_max];
}

static void say_prefill(const struct route *r, const struct route_explained *e, uint32_t i,
                        const struct kept_candidate *k, struct words w) {
    const struct kept_decision *d = decision_of(r, e);
    if (k->late)
        say_late(w, e, k);
    else if (i == e->chosen)
        snprintf(w.text, w.size, e->refused == NULL ? "chosen" : "the best, but it was refused");
    else if (d->decoders && k->what == KEPT_COMPUTES)
        snprintf(w.text, w.size, "nobody would decode in time what it computes");
    else if (e->chosen == ROUTE_NOBODY)
        snprintf(w.text, w.size, "the request was refused");
    else
        say_cost(w, k, kept_at(r, d->first + e->chosen), e->terms, d->ops->sums);
}

static void say_decode(const struct route *r, const struct route_explained *e, uint32_t i,
                       const struct kept_candidate *k, struct words w) {
    const struct kept_decision *d = decision_of(r, e);
    if (i == e->decode_chosen && e->refused == NULL)
        snprintf(w.text, w.size, "chosen");
    else if (k->what == KEPT_NO_ROOM)
        snprintf(w.text, w.size, "no room for its context, or no place in the batch");
    else if (k->late)
        snprintf(w.text, w.size, "its tokens would take %.4g ms each, and %.4g are asked for",
                 (double)k->tbt_us / 1000, e->tbt_ms);
    else if (e->decode_chosen == ROUTE_NOBODY || e->refused != NULL)
        snprintf(w.text, w.size, "the request was refused");
    else
        say_cost(w, k, kept_at(r, d->first + d->count + e->decode_chosen), decode_terms, true);
}

static void say_passed(const struct kept_candidate *k, struct words w) {
    static const char *const words[VERDICTS] = {
        [ENGINE_OF_TENANT] = "it is another tenant's",
        [ENGINE_EXCLUDED] = "the request excludes it",
        [ENGINE_DRAINS] = "it drains",
        [ENGINE_SILENT] = "it has not been heard of for too long",
        [ENGINE_BACKS_OFF] = "it rests after failures",
    };
    TARN_ASSERT(k->what < VERDICTS && words[k->what] != NULL);
    snprintf(w.text, w.size, "%s", words[k->what]);
}

/* --- showing one --- */

static void fill_engine(const struct route *r, const struct kept_candidate *k,
                        struct route_explained_candidate *out) {
    const struct worker *w = &r->workers[k->worker];
    *out = (struct route_explained_candidate){.engine = NULL};
    if (!worker_still(r, k->worker, k->birth)) return;
    out->engine = w->engine->id;
    out->rank = w->rank;
}

static void fill_cost(const struct kept_candidate *k, const char *const *terms,
                      struct route_explained_candidate *out) {
    out->tbt_ms = (double)k->tbt_us / 1000;
    out->cost = (double)k->cost;
    for (unsigned t = 0; terms[t] != NULL; t++) out->term[t] = (double)k->term[t];
}

void route_explain_candidate(const struct route *r, const struct route_explained *e, uint32_t i,
                             struct route_explained_candidate *out) {
    TARN_ASSERT(i < e->count);
    const struct kept_decision *d = decision_of(r, e);
    const struct kept_candidate *k = kept_at(r, d->first + i);
    fill_engine(r, k, out);
    fill_cost(k, e->terms, out);
    out->hit_tokens = k->hit_tokens;
    out->session_tokens = k->worker == d->session_worker ? d->session_tokens : 0;
    out->ahead_tokens = k->ahead_tokens - out->session_tokens;
    out->pool_tokens = d->pool_tokens[k->pool];
    out->load_tokens = k->load_tokens;
    out->fetch_tokens = k->fetch_tokens;
    out->new_tokens = k->new_tokens;
    out->ttft_ms = (double)k->ttft_us / 1000;
    say_prefill(r, e, i, k, (struct words){out->why, sizeof(out->why)});
}

void route_explain_decode(const struct route *r, const struct route_explained *e, uint32_t i,
                          struct route_explained_candidate *out) {
    TARN_ASSERT(i < e->decode_count);
    const struct kept_decision *d = decision_of(r, e);
    const struct kept_candidate *k = kept_at(r, d->first + d->count + i);
    fill_engine(r, k, out);
    fill_cost(k, decode_terms, out);
    say_decode(r, e, i, k, (struct words){out->why, sizeof(out->why)});
}

uint32_t route_explain_second(const struct route *r, const struct route_explained *e) {
    const struct kept_candidate *second = NULL;
    uint64_t first = decision_of(r, e)->first;
    uint32_t at = ROUTE_NOBODY;
    if (e->chosen == ROUTE_NOBODY) return ROUTE_NOBODY;
    for (uint32_t i = 0; i < e->count; i++) {
        const struct kept_candidate *k = kept_at(r, first + i);
        if (i == e->chosen) continue;
        if (second != NULL &&
            (k->late > second->late || (k->late == second->late && k->cost >= second->cost)))
            continue;
        second = k;
        at = i;
    }
    return at;
}

void route_explain_passed(const struct route *r, const struct route_explained *e, uint32_t i,
                          struct route_explained_candidate *out) {
    TARN_ASSERT(i < e->passed_count);
    const struct kept_decision *d = decision_of(r, e);
    const struct kept_candidate *k = kept_at(r, d->first + d->count + d->decodes + i);
    fill_engine(r, k, out);
    say_passed(k, (struct words){out->why, sizeof(out->why)});
}
