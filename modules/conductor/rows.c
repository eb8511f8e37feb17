/* Lists for whoever looks, as rows of figures (module.h: rows): "engines" (their ranks),
 * "decisions" (the last ones, the latest first), "candidates/N" (all who were looked at for the
 * decision N), "prefixes" (the hottest first). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/assert.h"
#include "base/clock.h"
#include "conductor/asked.h"
#include "conductor/conductor.h"
#include "conductor/kept.h"
#include "conductor/metrics.h"
#include "conductor/streams.h"
#include "route/hash.h"

enum { ENGINES_A_CALL = 32, DECISIONS_A_CALL = 8, CANDIDATES_A_CALL = 64, PREFIXES = 32 };

typedef char engine_label[ROUTE_NAME_MAX + 16];

/* "e1", of several ranks "e1.2". */
static void label_make(engine_label out, const char *id, uint32_t rank, uint32_t ranks) {
    bool one = ranks == 1 && rank == 0;
    snprintf(out, sizeof(engine_label), one ? "%s" : "%s.%u", id, rank);
}

/* "" where it is gone. */
static void label_of(engine_label out, const struct route_explained_candidate *a) {
    struct route_engine_view v;
    uint32_t at;
    out[0] = '\0';
    if (a->engine == NULL) return;
    at = route_worker_find(conductor_route, span_str(a->engine), a->rank);
    if (at != ROUTE_NO_WORKER && route_engine_next(conductor_route, &at, 0, &v))
        label_make(out, a->engine, a->rank, v.ranks);
}

/* --- engines --- */

static void engine_about(struct figure_walk *f, const struct route_engine_view *v) {
    struct registration x;
    char url[ROUTE_URL_MAX + 1];
    bool kept = kept_registration(span_str(v->id), v->rank, &x);
    span_to_text(kept ? x.field[ENGINE_URL] : span_str(v->url), url, sizeof(url));
    FIGURE(f, TEXT, id, "as it is registered", v->id);
    FIGURE(f, GAUGE, rank, "of data parallelism", v->rank);
    FIGURE(f, TEXT, role, "both, prefill, decode", conductor_role_name(v->role));
    FIGURE(f, TEXT, model, "that it serves", v->model);
    FIGURE(f, TEXT, lora, "adapter that it serves, * any", v->lora);
    FIGURE(f, TEXT, tenant, "that it serves alone", v->tenant);
    FIGURE(f, TEXT, host, "it is on", v->host);
    FIGURE(f, TEXT, rack, "it is in", v->rack);
    FIGURE(f, TEXT, url, "where gateways reach it", (const char *)url);
    FIGURE(f, TEXT, state, "up, draining, drained, silent, failing", conductor_state_name(v));
}

static void engine_load(struct figure_walk *f, const struct route_engine_view *v, uint64_t now_us) {
    uint64_t own = (v->context_tokens + v->block_tokens - 1) / v->block_tokens;
    FIGURE(f, MS, silent, "since it, or its agent, was heard; -1: not yet",
           v->heard_us == 0 ? UINT64_MAX : (now_us - v->heard_us) / 1000);
    FIGURE(f, GAUGE, prefills, "requests without a first token", v->prefills);
    FIGURE(f, GAUGE, prefill_tokens, "... their tokens, and those that reports had beyond",
           v->prefill_tokens + v->foreign_prefill_tokens);
    FIGURE(f, MS, wait, "until these are done", (uint64_t)(v->prefill_wait_us / 1000));
    FIGURE(f, GAUGE, decodes, "sequences that it decodes", v->decodes);
    FIGURE(f, GAUGE, kv_used, "blocks in device memory that are reserved, or reported beyond that",
           own + v->foreign_kv_blocks);
    FIGURE(f, GAUGE, kv_blocks, "... of so many; 0: unknown", v->kv_blocks);
    FIGURE(f, COUNTER, routed, "requests sent there", v->routed);
    FIGURE(f, COUNTER, failed, "requests that failed there, of all its ranks", v->failed);
    FIGURE(f, COUNTER, prompt_tokens, "tokens of the prompts that were sent there",
           v->prompt_tokens);
    FIGURE(f, COUNTER, hit_tokens, "... that it had", v->hit_tokens);
    FIGURE(f, US_MEAN, prefill_token, "it takes for a token of a prompt, as learnt",
           v->prefill_token_us);
    FIGURE(f, US_MEAN, decode_step, "it takes for a step of decoding, as learnt",
           v->decode_step_us);
}

static void engine_stream(struct figure_walk *f, const struct route_engine_view *v) {
    struct streams_view s;
    streams_get(v->worker, &s);
    FIGURE(f, GAUGE, blocks, "of its cache that are known",
           route_holder_blocks(route_index(conductor_route),
                               route_worker_holder(conductor_route, v->worker)));
    FIGURE(f, TEXT, events, "none, connecting, replaying, live", s.state);
    FIGURE(f, GAUGE, connected, "to its event stream", s.info.connected);
    FIGURE(f, GAUGE, partial, "1: it may have blocks that its stream did not tell of", s.partial);
    FIGURE(f, TEXT, partial_why, "... why", (const char *)s.why);
    FIGURE(f, COUNTER, gaps, "times that events were missing", s.info.figures.kvevents_gaps);
    FIGURE(f, COUNTER, decode_errors, "batches that could not be decoded",
           s.info.figures.kvevents_decode_errors);
    FIGURE(f, TEXT, decode_why, "... why the last one could not", (const char *)s.info.why_decode);
}

static void engine_metrics(struct figure_walk *f, const struct route_engine_view *v) {
    struct metrics_view m;
    metrics_get(v->worker, &m);
    FIGURE(f, TEXT, metrics, "of its /metrics: none, paused, asking, up, failing", m.state);
    FIGURE(f, TEXT, metrics_why, "... why it fails", (const char *)m.why);
}

static enum tarn_rows rows_of_engines(uint64_t *from, struct figure_walk *f) {
    struct route_engine_view v;
    uint64_t now_us = conductor_now_us();
    uint32_t at = (uint32_t)min_u64(*from, UINT32_MAX);
    for (unsigned n = 0; n < ENGINES_A_CALL; n++) {
        engine_label name;
        if (!route_engine_next(conductor_route, &at, now_us, &v)) return TARN_ROWS_OVER;
        label_make(name, v.id, v.rank, v.ranks);
        figures_group(f, "engine", "engine", name);
        engine_about(f, &v);
        engine_load(f, &v, now_us);
        engine_stream(f, &v);
        engine_metrics(f, &v);
        figures_group_end(f);
        *from = at;
    }
    return TARN_ROWS_MORE;
}

/* --- decisions --- */

/* A request's name may have any bytes. */
static void show_name(struct figure_walk *f, const struct figure *figure, struct span name) {
    char text[ROUTE_NAME_MAX + 1];
    size_t n = min_u64(name.len, ROUTE_NAME_MAX);
    for (size_t i = 0; i < n; i++) text[i] = name.data[i] != '\0' ? name.data[i] : '\x01';
    text[n] = '\0';
    f->show(f, figure, figure_text(text));
}

static void decision_about(struct figure_walk *f, const struct route_explained *e) {
    static const struct figure request = {"request", "its name", FIGURE_TEXT, 0},
                               model = {"model", "that it is for", FIGURE_TEXT, 0};
    FIGURE(f, MS, age, "of the decision", (conductor_now_us() - e->at_us) / 1000);
    show_name(f, &request, e->request);
    show_name(f, &model, e->model);
    FIGURE(f, TEXT, policy, "by which it was decided; empty: who decodes alone was chosen anew",
           e->policy != NULL ? e->policy : "");
    FIGURE(f, GAUGE, tokens, "of its prompt", e->prompt_tokens);
    FIGURE(f, TEXT, refused, "what was answered where it was refused",
           e->refused != NULL ? e->refused : "");
    FIGURE(f, MS, retry, "when to ask again; 0: never, or it was not refused", e->retry_ms);
    FIGURE(f, US, ttft_asked, "to its first token, that had to be kept; 0: none",
           (uint64_t)(e->ttft_ms * 1000));
    FIGURE(f, US, tbt_asked, "between its tokens, likewise", (uint64_t)(e->tbt_ms * 1000));
    FIGURE(f, GAUGE, candidates, "who could compute it", e->count);
    FIGURE(f, GAUGE, passed_over, "who serves the model, and could not be asked", e->passed_count);
}

/* Who computes it, and what is there of it. */
static void decision_chosen(struct figure_walk *f, const struct route_explained *e) {
    struct route_explained_candidate a;
    engine_label name;
    if (e->chosen == ROUTE_NOBODY) return;
    route_explain_candidate(conductor_route, e, e->chosen, &a);
    label_of(name, &a);
    FIGURE(f, TEXT, engine, "that was chosen, or is the best; empty: it is gone",
           (const char *)name);
    FIGURE(f, GAUGE, device, "tokens that it has in device memory",
           e->hit_tokens[ROUTE_TIER_DEVICE]);
    FIGURE(f, GAUGE, host, "... in host memory", e->hit_tokens[ROUTE_TIER_HOST]);
    FIGURE(f, GAUGE, disk, "... on disk", e->hit_tokens[ROUTE_TIER_DISK]);
    FIGURE(f, GAUGE, ahead, "... that it is about to have", a.ahead_tokens);
    FIGURE(f, GAUGE, session, "... that it probably has, by the session", a.session_tokens);
    FIGURE(f, GAUGE, pool, "tokens that the pool has for it", a.pool_tokens);
    FIGURE(f, GAUGE, load, "... that it loads from the pool", a.load_tokens);
    FIGURE(f, GAUGE, fetch, "... that it fetches from another engine", a.fetch_tokens);
    FIGURE(f, GAUGE, computed, "tokens that it has to compute", a.new_tokens);
    FIGURE(f, US, ttft, "estimated, to the first token", (uint64_t)(a.ttft_ms * 1000));
    FIGURE(f, US, tbt, "estimated, between tokens", (uint64_t)(a.tbt_ms * 1000));
    FIGURE(f, MEAN, cost, "by which it won", a.cost);
}

static void decision_second(struct figure_walk *f, const struct route_explained *e) {
    struct route_explained_candidate a;
    engine_label name;
    uint32_t second = route_explain_second(conductor_route, e);
    if (second == ROUTE_NOBODY) return;
    route_explain_candidate(conductor_route, e, second, &a);
    label_of(name, &a);
    FIGURE(f, TEXT, second, "the next best engine; empty: it is gone", (const char *)name);
    FIGURE(f, MEAN, second_cost, "... its cost", a.cost);
    FIGURE(f, TEXT, second_why, "... why it lost", (const char *)a.why);
}

static void decision_decode(struct figure_walk *f, const struct route_explained *e) {
    struct route_explained_candidate a;
    engine_label name;
    if (e->decode_chosen == ROUTE_NOBODY) return;
    route_explain_decode(conductor_route, e, e->decode_chosen, &a);
    label_of(name, &a);
    FIGURE(f, TEXT, decode_engine, "that decodes it, where that is another one",
           (const char *)name);
}

static enum tarn_rows rows_of_decisions(uint64_t *from, struct figure_walk *f) {
    struct route_explained e;
    char number[24];
    for (unsigned n = 0; n < DECISIONS_A_CALL; n++) {
        if (!route_explain_next(conductor_route, from, &e)) return TARN_ROWS_OVER;
        snprintf(number, sizeof(number), "%" PRIu64, *from);
        figures_group(f, "decision", "decision", number);
        decision_about(f, &e);
        decision_chosen(f, &e);
        decision_second(f, &e);
        decision_decode(f, &e);
        figures_group_end(f);
    }
    return TARN_ROWS_MORE;
}

/* --- candidates of one decision --- */

static void candidate_cost(struct figure_walk *f, const char *const *terms,
                           const struct route_explained_candidate *a) {
    FIGURE(f, MEAN, cost, "the lowest wins", a->cost);
    for (unsigned t = 0; t < ROUTE_TERMS_MAX && terms[t] != NULL; t++)
        FIGURE_OF(f, MEAN, term_, "a part of the cost", "term", terms[t], a->term[t]);
    FIGURE(f, US, tbt, "estimated, between tokens", (uint64_t)(a->tbt_ms * 1000));
}

static void candidate_plan(struct figure_walk *f, const struct route_explained_candidate *a) {
    FIGURE(f, US, ttft, "estimated, to the first token", (uint64_t)(a->ttft_ms * 1000));
    FIGURE(f, GAUGE, hit, "tokens that it has", a->hit_tokens);
    FIGURE(f, GAUGE, ahead, "... that it is about to have", a->ahead_tokens);
    FIGURE(f, GAUGE, session, "... that it probably has, by the session", a->session_tokens);
    FIGURE(f, GAUGE, pool, "tokens that the pool has for it", a->pool_tokens);
    FIGURE(f, GAUGE, load, "... that it loads from the pool", a->load_tokens);
    FIGURE(f, GAUGE, fetch, "... that it fetches from another engine", a->fetch_tokens);
    FIGURE(f, GAUGE, computed, "tokens that it has to compute", a->new_tokens);
}

static void show_candidate(struct figure_walk *f, const struct route_explained *e, uint32_t i) {
    struct route_explained_candidate a;
    engine_label name;
    char number[24];
    bool computes = i < e->count, decodes = !computes && i < e->count + e->decode_count;
    if (computes)
        route_explain_candidate(conductor_route, e, i, &a);
    else if (decodes)
        route_explain_decode(conductor_route, e, i - e->count, &a);
    else
        route_explain_passed(conductor_route, e, i - e->count - e->decode_count, &a);
    label_of(name, &a);
    snprintf(number, sizeof(number), "%u", i);
    figures_group(f, "candidate", "candidate", number);
    FIGURE(f, TEXT, part, "computes, decodes, passed over",
           computes  ? "computes"
           : decodes ? "decodes"
                     : "passed over");
    FIGURE(f, TEXT, engine, "empty: it is gone", (const char *)name);
    FIGURE(f, TEXT, why, "it lost, or chosen", (const char *)a.why);
    if (computes || decodes) candidate_cost(f, computes ? e->terms : e->decode_terms, &a);
    if (computes) candidate_plan(f, &a);
    figures_group_end(f);
}

static enum tarn_rows rows_of_candidates(const char *text, uint64_t *from, struct figure_walk *f) {
    struct route_explained e;
    uint64_t number, before;
    if (!span_to_u64(span_str(text), &number) || number == 0 || number == UINT64_MAX)
        return TARN_ROWS_NO_TABLE;
    before = number + 1;
    if (!route_explain_next(conductor_route, &before, &e) || before != number)
        return TARN_ROWS_NO_TABLE;
    uint32_t all = e.count + e.decode_count + e.passed_count;
    uint32_t i = (uint32_t)min_u64(*from, all), end = (uint32_t)min_u64(i + CANDIDATES_A_CALL, all);
    for (; i < end; i++) show_candidate(f, &e, i);
    *from = end;
    return end < all ? TARN_ROWS_MORE : TARN_ROWS_OVER;
}

/* --- hot prefixes --- */

/* Which of the models and adapters that were asked for lately; NULL: none of them. */
static const struct asked *asked_of(const struct route_hot *hot) {
    const struct asked *a;
    for (size_t i = 0; (a = asked_at(i)) != NULL; i++)
        if (route_hash_scope(span_str(a->model), span_str(a->lora), SPAN(""), span_str(a->salt),
                             hot->block) == hot->scope)
            return a;
    return NULL;
}

static enum tarn_rows rows_of_prefixes(uint64_t *from, struct figure_walk *f) {
    struct route_hot hot[PREFIXES];
    size_t n = route_index_hot(route_index(conductor_route), hot, PREFIXES);
    for (size_t i = (size_t)min_u64(*from, n); i < n; i++) {
        const struct asked *a = asked_of(&hot[i]);
        char hash[24];
        snprintf(hash, sizeof(hash), "%016" PRIx64, hot[i].last);
        figures_group(f, "prefix", "prefix", hash);
        FIGURE(f, TEXT, model, "that it is of; empty: not known any more",
               a != NULL ? (const char *)a->model : "");
        FIGURE(f, TEXT, lora, "its adapter", a != NULL ? (const char *)a->lora : "");
        FIGURE(f, GAUGE, tokens, "of the prefix", (uint64_t)hot[i].blocks * hot[i].block);
        FIGURE(f, GAUGE, asked, "requests that began with it, estimated, halved now and then",
               hot[i].matches);
        FIGURE(f, GAUGE, engines, "that have all of it", hot[i].holders);
        figures_group_end(f);
    }
    *from = n;
    return TARN_ROWS_OVER;
}

enum tarn_rows conductor_rows(const char *table, uint64_t *from, struct figure_walk *walk) {
    static const char candidates[] = "candidates/";
    if (strcmp(table, "engines") == 0) return rows_of_engines(from, walk);
    if (strcmp(table, "decisions") == 0) return rows_of_decisions(from, walk);
    if (strcmp(table, "prefixes") == 0) return rows_of_prefixes(from, walk);
    if (strncmp(table, candidates, sizeof(candidates) - 1) == 0)
        return rows_of_candidates(table + sizeof(candidates) - 1, from, walk);
    return TARN_ROWS_NO_TABLE;
}
