/* CONDUCTOR.EXPLAIN: every candidate of a decision, each term of its cost, and why it lost; of a
 * request that was refused, too. */
#include "conductor/command.h"

static size_t terms_count(const char *const *terms) {
    size_t n = 0;
    while (n < ROUTE_TERMS_MAX && terms[n] != NULL) n++;
    return n;
}

static void reply_engine(struct tarn_call_context *c, const struct route_explained_candidate *a) {
    conductor_services->reply_text(c, SPAN("id"));
    if (a->engine != NULL)
        conductor_services->reply_text(c, span_str(a->engine));
    else
        conductor_services->reply_null(c);
    field_int(c, "rank", a->rank);
    field_text(c, "why", a->why);
}

static void reply_cost(struct tarn_call_context *c, const char *const *names,
                       const struct route_explained_candidate *a) {
    size_t terms = terms_count(names);
    field_double(c, "cost", a->cost);
    conductor_services->reply_text(c, SPAN("terms"));
    conductor_services->reply_map(c, terms);
    for (size_t t = 0; t < terms; t++) field_double(c, names[t], a->term[t]);
    field_double(c, "tbt-ms", a->tbt_ms);
}

/* --- the lists: who computes, who decodes, who was passed over --- */

static void reply_candidates(struct tarn_call_context *c, const struct route_explained *e) {
    struct route_explained_candidate a;
    conductor_services->reply_text(c, SPAN("candidates"));
    conductor_services->reply_array(c, e->count);
    for (uint32_t i = 0; i < e->count; i++) {
        route_explain_candidate(conductor_route, e, i, &a);
        conductor_services->reply_map(c, 14);
        reply_engine(c, &a);
        reply_cost(c, e->terms, &a);
        field_double(c, "ttft-ms", a.ttft_ms);
        field_int(c, "hit-tokens", a.hit_tokens);
        field_int(c, "ahead-tokens", a.ahead_tokens);
        field_int(c, "session-tokens", a.session_tokens);
        field_int(c, "pool-tokens", a.pool_tokens);
        field_int(c, "load-tokens", a.load_tokens);
        field_int(c, "fetch-tokens", a.fetch_tokens);
        field_int(c, "new-tokens", a.new_tokens);
    }
}

static void reply_decoders(struct tarn_call_context *c, const struct route_explained *e) {
    struct route_explained_candidate a;
    conductor_services->reply_text(c, SPAN("decode-candidates"));
    conductor_services->reply_array(c, e->decode_count);
    for (uint32_t i = 0; i < e->decode_count; i++) {
        route_explain_decode(conductor_route, e, i, &a);
        conductor_services->reply_map(c, 6);
        reply_engine(c, &a);
        reply_cost(c, e->decode_terms, &a);
    }
}

static void reply_passed(struct tarn_call_context *c, const struct route_explained *e) {
    struct route_explained_candidate a;
    conductor_services->reply_text(c, SPAN("passed-over"));
    conductor_services->reply_array(c, e->passed_count);
    for (uint32_t i = 0; i < e->passed_count; i++) {
        route_explain_passed(conductor_route, e, i, &a);
        conductor_services->reply_map(c, 3);
        reply_engine(c, &a);
    }
}

/* --- a decision, and the one before it --- */

static void field_text_or_null(struct tarn_call_context *c, const char *name, const char *text) {
    conductor_services->reply_text(c, span_str(name));
    if (text != NULL)
        conductor_services->reply_text(c, span_str(text));
    else
        conductor_services->reply_null(c);
}

static void reply_decision(struct tarn_call_context *c, const struct route_explained *e,
                           size_t more) {
    conductor_services->reply_map(c, 9 + more);
    field_text_or_null(c, "policy", e->policy);
    field_int(c, "age-ms", (conductor_now_us() - e->at_us) / 1000);
    field_text_or_null(c, "refused", e->refused);
    field_int(c, "retry-ms", e->retry_ms);
    field_double(c, "ttft-ms", e->ttft_ms);
    field_double(c, "tbt-ms", e->tbt_ms);
    reply_candidates(c, e);
    reply_decoders(c, e);
    reply_passed(c, e);
}

void cmd_explain(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct conductor_told args = {0};
    struct route_explained e;
    if (!conductor_bind(c, CONDUCTOR_EXPLAIN, argv, argc, &args)) return;
    tarn_status status = route_explain(conductor_route, argv[args.request], &e);
    if (status != TARN_OK) {
        conductor_fail_route(c, status);
        return;
    }
    reply_decision(c, &e, 1);
    conductor_services->reply_text(c, SPAN("before"));
    if (route_explain_before(conductor_route, &e))
        reply_decision(c, &e, 0);
    else
        conductor_services->reply_null(c);
}
