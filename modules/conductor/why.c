/* CONDUCTOR.EXPLAIN: every candidate of a decision, each term of its cost, and why it lost. */
#include "conductor/command.h"

static size_t terms_count(const char *const *terms) {
    size_t n = 0;
    while (n < ROUTE_TERMS_MAX && terms[n] != NULL) n++;
    return n;
}

static void reply_candidate(struct tarn_call_context *c, const struct route_explained *e,
                            uint32_t i) {
    struct route_explained_candidate a;
    size_t terms = terms_count(e->terms);
    route_explain_candidate(conductor_route, e, i, &a);
    conductor_services->reply_map(c, 12);
    conductor_services->reply_text(c, SPAN("id"));
    if (a.engine != NULL)
        conductor_services->reply_text(c, span_str(a.engine));
    else
        conductor_services->reply_null(c);
    field_int(c, "rank", a.rank);
    field_text(c, "why", a.why);
    field_double(c, "cost", a.cost);
    conductor_services->reply_text(c, SPAN("terms"));
    conductor_services->reply_map(c, terms);
    for (size_t t = 0; t < terms; t++) field_double(c, e->terms[t], a.term[t]);
    field_int(c, "hit-tokens", a.hit_tokens);
    field_int(c, "ahead-tokens", a.ahead_tokens);
    field_int(c, "load-tokens", a.load_tokens);
    field_int(c, "fetch-tokens", a.fetch_tokens);
    field_int(c, "new-tokens", a.new_tokens);
    field_double(c, "ttft-ms", a.ttft_ms);
    field_double(c, "tbt-ms", a.tbt_ms);
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
    conductor_services->reply_map(c, 3);
    field_text(c, "policy", e.policy);
    field_int(c, "age-ms", (conductor_now_us() - e.at_us) / 1000);
    conductor_services->reply_text(c, SPAN("candidates"));
    conductor_services->reply_array(c, e.count);
    for (uint32_t i = 0; i < e.count; i++) reply_candidate(c, &e, i);
}
