/* EXPLAIN: who was chosen and why the others were not, of requests that were refused, too. */
#include <math.h>
#include "util.h"

static struct route_explained explained(struct route *r, const char *id) {
    struct route_explained e;
    CHECK_EQ(route_explain(r, span_str(id), &e), TARN_OK);
    return e;
}

typedef void part_fn(const struct route *r, const struct route_explained *e, uint32_t i,
                     struct route_explained_candidate *out);

/* What is said of that engine, in one of the lists. */
static struct route_explained_candidate said(struct route *r, const struct route_explained *e,
                                             part_fn *part, uint32_t count, const char *engine) {
    struct route_explained_candidate c;
    for (uint32_t i = 0; i < count; i++) {
        part(r, e, i, &c);
        if (c.engine != NULL && strcmp(c.engine, engine) == 0) return c;
    }
    CHECK(false);
    return c;
}
#define SAID(r, e, engine)   said(r, e, route_explain_candidate, (e)->count, engine)
#define DECODE(r, e, engine) said(r, e, route_explain_decode, (e)->decode_count, engine)
#define PASSED(r, e, engine) said(r, e, route_explain_passed, (e)->passed_count, engine)

/* --- those that were served --- */

TEST(each_decision_can_be_explained) {
    struct route *r = util_route("tarn", 3);
    struct util_prompt p;
    util_prompt(&p, 1, 60);
    util_stored(r, "e1", &p, 60, ROUTE_TIER_DEVICE);
    struct route_request q = util_prompt_request("x", &p);
    struct route_decision d;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "e1");
    struct route_explained e;
    CHECK_EQ(route_explain(r, SPAN("y"), &e), TARN_ENOTFOUND);
    CHECK_EQ(route_explain(r, SPAN("x"), &e), TARN_OK);
    CHECK_STR(e.policy, "tarn");
    CHECK_EQ(e.count, 3);
    for (uint32_t i = 0; i < e.count; i++) {
        struct route_explained_candidate c;
        route_explain_candidate(r, &e, i, &c);
        bool chosen = i == e.chosen;
        CHECK_EQ(c.hit_tokens, chosen ? 960 : 0);
        CHECK(chosen ? strcmp(c.why, "chosen") == 0 : strstr(c.why, "own us") != NULL);
    }
    CHECK_EQ(route_engine_remove(r, SPAN("e1"), UTIL_BEGIN), TARN_OK);
    struct route_explained_candidate c;
    route_explain_candidate(r, &e, e.chosen, &c);
    CHECK(c.engine == NULL);
    route_destroy(&r);
}

/* All of them, the latest first, of those that were refused, too; and the same again by number. */
TEST(the_last_decisions_are_listed) {
    struct route_options o = route_options_default;
    o.decisions_max = 3;
    o.workers_max = 8;
    struct route *r = route_create(&o);
    struct route_explained e;
    uint64_t number = 0;
    CHECK(!route_explain_next(r, &number, &e) && number == 0);
    struct route_engine_spec s = util_spec("e0");
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    struct util_prompt p;
    util_prompt(&p, 1, 10);
    util_stored(r, "e0", &p, 4, ROUTE_TIER_DEVICE);
    util_stored(r, "e0", &p, 6, ROUTE_TIER_HOST);
    for (int i = 0; i < 4; i++) {
        char id[2] = {(char)('a' + i), '\0'};
        struct route_request q = util_prompt_request(id, &p);
        struct route_decision d;
        if (i == 3) q.model = SPAN("nobody's");
        CHECK_EQ(route_decide(r, &q, UTIL_BEGIN + (uint64_t)i, &d),
                 i < 3 ? TARN_OK : TARN_ENOTFOUND);
    }
    CHECK(route_explain_next(r, &number, &e) && number == 4);
    CHECK(span_eq(e.request, SPAN("d")) && span_eq(e.model, SPAN("nobody's")));
    CHECK(e.refused != NULL && e.chosen == ROUTE_NOBODY && e.hit_tokens[0] == 0);
    CHECK_EQ(route_explain_second(r, &e), ROUTE_NOBODY);
    CHECK(route_explain_next(r, &number, &e) && number == 3);
    CHECK(span_eq(e.request, SPAN("c")) && e.refused == NULL);
    CHECK_EQ(e.prompt_tokens, 160);
    CHECK(e.hit_tokens[ROUTE_TIER_DEVICE] == 64 && e.hit_tokens[ROUTE_TIER_HOST] == 32);
    CHECK_EQ(route_explain_second(r, &e), ROUTE_NOBODY);
    CHECK(route_explain_next(r, &number, &e) && number == 2);
    CHECK(!route_explain_next(r, &number, &e));
    for (number = 4; number > 2;)
        CHECK(route_explain_next(r, &number, &e) &&
              span_eq(e.request, span_of(&"abcd"[number - 1], 1)));
    number = 1000;
    CHECK(route_explain_next(r, &number, &e) && number == 4);
    struct route_engine_view v;
    uint32_t at = 0;
    CHECK(route_engine_next(r, &at, UTIL_BEGIN, &v));
    CHECK(v.prompt_tokens == 480 && v.hit_tokens == 288);
    const struct route_figures *f = route_figures_get(r);
    CHECK(f->route_device_tokens == 192 && f->route_host_tokens == 96 && f->route_disk_tokens == 0);
    CHECK_EQ(f->route_hit_tokens, 288);
    route_destroy(&r);
}

TEST(the_second_best_is_the_cheapest_that_could_keep_the_times) {
    struct route *r = util_route("tarn", 4);
    struct util_prompt p;
    util_prompt(&p, 1, 60);
    util_stored(r, "e1", &p, 60, ROUTE_TIER_DEVICE);
    util_stored(r, "e3", &p, 30, ROUTE_TIER_DEVICE);
    struct route_request q = util_prompt_request("x", &p);
    struct route_explained_candidate c;
    struct route_decision d;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    struct route_explained e = explained(r, "x");
    route_explain_candidate(r, &e, route_explain_second(r, &e), &c);
    CHECK_STR(c.engine, "e3");
    /* where only the chosen one keeps them, one of the others all the same */
    q = util_prompt_request("y", &p);
    q.ttft_ms = d.ttft_ms * 1.5;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN + 10000000, &d), TARN_OK);
    e = explained(r, "y");
    route_explain_candidate(r, &e, route_explain_second(r, &e), &c);
    CHECK(strcmp(c.engine, d.prefill) != 0);
    CHECK(strstr(c.why, "are asked for") != NULL);
    route_destroy(&r);
}

/* What is kept of a decision is what was decided. */
TEST(an_explanation_has_the_decision_s_numbers) {
    struct route *r = util_route("mooncake", 2);
    struct util_prompt p, other;
    struct route_decision d;
    struct route_explained e;
    struct route_explained_candidate c;
    util_prompt(&p, 1, 60);
    struct route_request q = util_prompt_request("x", &p);
    struct route_pool_run run = {.tokens = 800, .tier = ROUTE_TIER_HOST};
    q.pools[0].runs = &run;
    q.pools[0].run_count = 1;
    q.pools[0].tokens = 800;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_EQ(route_explain(r, q.id, &e), TARN_OK);
    route_explain_candidate(r, &e, e.chosen, &c);
    CHECK_STR(c.engine, d.prefill);
    CHECK_EQ(c.load_tokens, 800);
    CHECK_EQ(c.new_tokens, 160);
    CHECK(fabs(c.ttft_ms - d.ttft_ms) < 0.001 && fabs(c.tbt_ms - d.tbt_ms) < 0.001);
    CHECK(fabs(c.cost - c.ttft_ms * 1000) < 1);
    util_prompt(&other, 100, 60);
    util_stored(r, "e0", &other, 60, ROUTE_TIER_DEVICE);
    q = util_prompt_request("y", &other);
    q.length_tokens += 500;
    q.ttft_ms = 8; /* 6 ms and a wait of 3.5, of which 0.9 for bytes; 7.1 with what is fetched */
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_EQ(route_explain(r, q.id, &e), TARN_OK);
    CHECK_STR(d.prefill, "e1");
    CHECK_STR(d.fetch, "e0");
    route_explain_candidate(r, &e, e.chosen, &c);
    CHECK_EQ(c.fetch_tokens, 960);
    route_explain_candidate(r, &e, 1 - e.chosen, &c);
    CHECK_STR(c.why, "its first token would take 9.5 ms, and 8 are asked for");
    route_destroy(&r);
}

/* e1 has nothing in use, where e0 has 30 blocks, and lost by 20 to compute and 20 to keep. */
TEST(what_a_loser_had_less_of_is_not_why) {
    struct route *r = util_route("dynamo", 2);
    struct util_prompt p;
    struct route_decision d;
    struct route_explained e;
    struct route_explained_candidate c;
    util_decide_without(r, "busy", 430, "e1", UTIL_BEGIN);
    CHECK_EQ(route_first(r, SPAN("busy"), UTIL_BEGIN), TARN_OK);
    util_prompt(&p, 1, 20);
    util_stored(r, "e0", &p, 20, ROUTE_TIER_DEVICE);
    struct route_request q = util_prompt_request("x", &p);
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "e0");
    CHECK_EQ(route_explain(r, SPAN("x"), &e), TARN_OK);
    route_explain_candidate(r, &e, 1 - e.chosen, &c);
    CHECK_STR(c.why, "cost 40 against 30, most of it by prefill blocks");
    route_destroy(&r);
}

/* A product has no part that is most of it. */
TEST(costs_that_are_no_sums_have_no_greatest_part) {
    struct route *r = util_route("lmetric", 2);
    struct route_explained e;
    struct route_explained_candidate c;
    util_decide(r, "x", 100, UTIL_BEGIN);
    util_decide(r, "y", 100, UTIL_BEGIN);
    CHECK_EQ(route_explain(r, SPAN("y"), &e), TARN_OK);
    route_explain_candidate(r, &e, 1 - e.chosen, &c);
    CHECK_STR(c.why, "cost 200 against 100");
    route_destroy(&r);
}

TEST(only_the_last_decisions_are_kept) {
    struct route_options o = route_options_default;
    o.decisions_max = 4;
    struct route *r = route_create(&o);
    util_add(r, "e0");
    const char *const ids[] = {"a", "b", "c", "d", "e", "f"};
    for (int i = 0; i < 6; i++) util_decide(r, ids[i], 10, UTIL_BEGIN);
    struct route_explained e;
    CHECK_EQ(route_explain(r, SPAN("b"), &e), TARN_ENOTFOUND);
    CHECK_EQ(route_explain(r, SPAN("c"), &e), TARN_OK);
    route_destroy(&r);
}

/* 65,536 candidates are kept: with 1,000 engines those of 65 decisions. */
TEST(a_decision_without_all_its_candidates_is_not_kept) {
    struct route *r = util_route("tarn", 1000);
    struct route_explained e;
    for (int i = 0; i < 66; i++) {
        char id[16];
        snprintf(id, sizeof(id), "%d", i);
        util_decide(r, id, 10, UTIL_BEGIN);
    }
    CHECK_EQ(route_explain(r, SPAN("0"), &e), TARN_ENOTFOUND);
    CHECK_EQ(route_explain(r, SPAN("1"), &e), TARN_OK);
    route_destroy(&r);
}

/* --- those that were refused --- */

/* 11 ms each; e0 has two, e1 three. What is asked for is said beside what it would take. */
TEST(why_nobody_keeps_the_times) {
    struct route *r = util_route("tarn", 2);
    struct route_decision d;
    for (int i = 0; i < 5; i++) {
        const char *const ids[] = {"a", "b", "c", "d", "e"};
        util_decide_without(r, ids[i], 1000, i < 2 ? "e1" : "e0", UTIL_BEGIN);
    }
    struct route_request q = util_request("x", 1000);
    q.ttft_ms = 29.5;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_ELATER);
    char text[256];
    snprintf(text, sizeof(text), "%s", route_error(r));
    struct route_explained e = explained(r, "x");
    CHECK_STR(e.refused, text);
    CHECK_EQ(e.retry_ms, d.retry_ms);
    CHECK(e.retry_ms == 4 && e.ttft_ms == 29.5 && e.tbt_ms == 0);
    CHECK(e.count == 2 && e.chosen == ROUTE_NOBODY && e.decode_count == 0);
    struct route_explained_candidate c = SAID(r, &e, "e0");
    CHECK_STR(c.why, "its first token would take 33 ms, and 29.5 are asked for");
    CHECK(fabs(c.term[0] - 33000) < 10); /* what it would have cost is there all the same */
    CHECK_STR(SAID(r, &e, "e1").why, "its first token would take 44 ms, and 29.5 are asked for");
    q.ttft_ms = 0;
    q.tbt_ms = 5;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_ELATER);
    e = explained(r, "x");
    CHECK_STR(e.refused, "no engine can keep the TTFT or TBT, not even an idle one");
    CHECK_STR(SAID(r, &e, "e0").why, "its tokens would take 10 ms each, and 5 are asked for");
    CHECK_EQ(route_figures_get(r)->route_reserved, 5);
    route_destroy(&r);
}

TEST(why_it_is_not_a_tenant_s_turn) {
    struct route_options o = route_options_default;
    o.tenant_wait_ms = 10;
    struct route *r = route_create(&o);
    struct route_request q = util_request("x", 1000);
    struct route_decision d;
    util_add(r, "e0");
    q.tenant = SPAN("b");
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    q.tenant = SPAN("a");
    tarn_status status = TARN_OK;
    for (int i = 0; status == TARN_OK; i++) {
        char id[16];
        snprintf(id, sizeof(id), "%d", i);
        q.id = span_str(id);
        status = route_decide(r, &q, UTIL_BEGIN, &d);
        if (status == TARN_OK) continue;
        struct route_explained e = explained(r, id);
        CHECK(strstr(e.refused, "the tenant has more waiting than its share") != NULL);
        CHECK_EQ(e.retry_ms, d.retry_ms);
        struct route_explained_candidate c = SAID(r, &e, "e0");
        CHECK_STR(c.why, "the request was refused");
        CHECK(c.ttft_ms > 20 && c.cost > 20000);
    }
    CHECK_EQ(status, TARN_ELATER);
    route_destroy(&r);
}

/* None of six: each has its own reason. The other model's is none of them. */
TEST(why_no_engine_may_serve_it) {
    struct route *r = util_route("tarn", 3);
    struct route_decision d;
    const char *const ids[] = {"e3", "e4", "e5", "other"};
    for (int i = 0; i < 4; i++) {
        struct route_engine_spec s = util_spec(ids[i]);
        if (i == 0) s.tenant = SPAN("t");
        if (i == 1) s.role = ROUTE_DECODE;
        if (i == 3) s.model = SPAN("other");
        CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    }
    uint64_t now = UTIL_BEGIN + (route_options_default.silent_ms + 1) * UTIL_MS;
    CHECK_EQ(route_engine_beat(r, SPAN("e1"), UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_engine_drain(r, SPAN("e0"), true, now), TARN_OK);
    struct route_request q = util_request("x", 1000);
    q.exclude = &SPAN("e5");
    q.exclude_count = 1;
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(route_decide(r, &q, now, &d), TARN_OK);
        CHECK_STR(d.prefill, "e2");
        CHECK_EQ(route_done(r, q.id, 0, true, now), TARN_OK);
    }
    CHECK_EQ(route_decide(r, &q, now, &d), TARN_ENOTFOUND);
    struct route_explained e = explained(r, "x");
    CHECK(e.count == 0 && e.chosen == ROUTE_NOBODY && e.passed_count == 5);
    CHECK_STR(PASSED(r, &e, "e0").why, "it drains");
    CHECK_STR(PASSED(r, &e, "e1").why, "it has not been heard of for too long");
    CHECK_STR(PASSED(r, &e, "e2").why, "it rests after failures");
    CHECK_STR(PASSED(r, &e, "e3").why, "it is another tenant's");
    CHECK_STR(PASSED(r, &e, "e5").why, "the request excludes it");
    CHECK(strstr(e.refused, "none of the 6 ranks") != NULL);
    CHECK_STR(e.refused, route_error(r));
    route_destroy(&r);
}

/* Whoever was passed over is told beside those that were asked. */
TEST(a_decision_has_those_that_were_passed_over) {
    struct route *r = util_route("tarn", 3);
    CHECK_EQ(route_engine_drain(r, SPAN("e1"), true, UTIL_BEGIN), TARN_OK);
    util_decide(r, "x", 100, UTIL_BEGIN);
    struct route_explained e = explained(r, "x");
    CHECK(e.count == 2 && e.passed_count == 1 && e.refused == NULL);
    CHECK_STR(PASSED(r, &e, "e1").why, "it drains");
    CHECK_EQ(route_engine_drain(r, SPAN("e1"), false, UTIL_BEGIN), TARN_OK);
    util_decide(r, "y", 100, UTIL_BEGIN);
    CHECK_EQ(explained(r, "y").passed_count, 0);
    route_destroy(&r);
}

/* --- who decodes --- */

/* d1 is far, d2 full, d3 too slow, d4 drains. */
static struct route *apart(void) {
    struct route *r = util_route("tarn", 0);
    const char *const ids[] = {"p", "d0", "d1", "d2", "d3", "d4"};
    for (int i = 0; i < 6; i++) {
        struct route_engine_spec s = util_spec(ids[i]);
        s.role = i == 0 ? ROUTE_PREFILL : ROUTE_DECODE;
        s.rack = i == 2 ? SPAN("r1") : SPAN("r0");
        s.prior.rate[ROUTE_FAR] = 100;
        s.kv_blocks = i == 3 ? 10 : 1000;
        if (i == 4) s.prior.decode_step_us = 30000;
        CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    }
    CHECK_EQ(route_engine_drain(r, SPAN("d4"), true, UTIL_BEGIN), TARN_OK);
    return r;
}

TEST(why_each_engine_decodes_or_not) {
    struct route *r = apart();
    struct route_request q = util_request("x", 1000);
    struct route_decision d;
    q.tbt_ms = 20;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.decode, "d0");
    struct route_explained e = explained(r, "x");
    CHECK(e.count == 1 && e.decode_count == 4 && e.passed_count == 1);
    CHECK_STR(e.decode_terms[0], "transfer us");
    struct route_explained_candidate c;
    route_explain_decode(r, &e, e.decode_chosen, &c);
    CHECK_STR(c.engine, "d0");
    CHECK_STR(c.why, "chosen");
    CHECK(fabs(c.term[0] - 1100) < 1 && fabs(c.term[1] - 1000100) < 10 && c.term[2] == 0);
    CHECK(fabs(c.cost - 1001200) < 10 && fabs(c.tbt_ms - d.tbt_ms) < 0.001);
    c = DECODE(r, &e, "d1");
    CHECK_STR(c.why, "cost 1.0102e+06 against 1.0012e+06, most of it by transfer us");
    c = DECODE(r, &e, "d2");
    CHECK_STR(c.why, "no room for its context, or no place in the batch");
    c = DECODE(r, &e, "d3");
    CHECK_STR(c.why, "its tokens would take 30 ms each, and 20 are asked for");
    CHECK_STR(PASSED(r, &e, "d4").why, "it drains");
    route_destroy(&r);
}

/* Chosen anew: that is the last decision, and the one before is kept beside it. */
TEST(the_decision_of_the_decode_engine_has_the_first_one_before_it) {
    struct route *r = apart();
    util_decide(r, "x", 1000, UTIL_BEGIN);
    CHECK_EQ(route_first(r, SPAN("x"), UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_engine_drain(r, SPAN("d0"), true, UTIL_BEGIN), TARN_OK);
    util_decide(r, "y", 10, UTIL_BEGIN + 1);
    CHECK_STR(util_decide(r, "x", 1000, UTIL_BEGIN + 2).decode, "d1");
    struct route_explained e = explained(r, "x");
    CHECK(e.policy == NULL && e.count == 0 && e.terms[0] == NULL && e.refused == NULL);
    CHECK_EQ(e.decode_count, 3);
    CHECK_EQ(e.passed_count, 2); /* d0, d4 */
    CHECK_STR(DECODE(r, &e, "d1").why, "chosen");
    CHECK_STR(PASSED(r, &e, "d0").why, "it drains");
    CHECK(route_explain_before(r, &e));
    CHECK_STR(e.policy, "tarn");
    CHECK_EQ(e.at_us, UTIL_BEGIN);
    CHECK_STR(DECODE(r, &e, "d0").why, "chosen");
    CHECK(!route_explain_before(r, &e));
    /* And refused. */
    CHECK_EQ(route_engine_drain(r, SPAN("d1"), true, UTIL_BEGIN), TARN_OK);
    struct route_request q = util_request("x", 1000);
    struct route_decision d;
    q.tbt_ms = 5;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN + 3, &d), TARN_ELATER);
    e = explained(r, "x");
    CHECK(strstr(e.refused, "TBT") != NULL);
    CHECK(strstr(DECODE(r, &e, "d3").why, "and 5 are asked for") != NULL);
    route_destroy(&r);
}

TEST(however_often_it_is_chosen_anew_each_is_passed_over_once) {
    struct route *r = apart();
    util_decide(r, "x", 1000, UTIL_BEGIN);
    CHECK_EQ(route_first(r, SPAN("x"), UTIL_BEGIN), TARN_OK);
    for (int i = 0; i < 2000; i++) /* workers_max is 1024 */
        util_decide(r, "x", 1000, UTIL_BEGIN + i);
    struct route_explained e = explained(r, "x");
    CHECK(e.decode_count == 4 && e.passed_count == 1);
    route_destroy(&r);
}

/* Nobody decodes in time what p computes, and e decodes itself. */
TEST(who_decodes_itself_serves_where_no_other_decodes_in_time) {
    struct route *r = apart();
    struct route_request q = util_request("x", 1000);
    struct route_decision d;
    util_add(r, "e");
    struct route_load busy = {20000, 20, 0, 0, ROUTE_UNKNOWN};
    CHECK_EQ(route_engine_load(r, SPAN("e"), 0, &busy, UTIL_BEGIN), TARN_OK);
    for (int i = 0; i < 3; i++) { /* all that decode are at 30 ms */
        const char *const ids[] = {"d0", "d1", "d2"};
        CHECK_EQ(route_engine_drain(r, span_str(ids[i]), true, UTIL_BEGIN), TARN_OK);
    }
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "p");
    q.tbt_ms = 20;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "e");
    CHECK(d.decode == NULL);
    struct route_explained e = explained(r, "x");
    CHECK_STR(SAID(r, &e, "e").why, "chosen");
    CHECK_STR(SAID(r, &e, "p").why, "nobody would decode in time what it computes");
    CHECK(strstr(DECODE(r, &e, "d3").why, "and 20 are asked for") != NULL);
    CHECK_EQ(e.decode_chosen, ROUTE_NOBODY);
    /* e will keep 100 ms when of its 201 and the request's 11 so much is left. */
    q.ttft_ms = 100;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_ELATER);
    CHECK(d.retry_ms > 111 && d.retry_ms < 114);
    e = explained(r, "x");
    CHECK_STR(SAID(r, &e, "e").why, "its first token would take 212 ms, and 100 are asked for");
    q.ttft_ms = 0;
    CHECK_EQ(route_engine_drain(r, SPAN("d3"), true, UTIL_BEGIN), TARN_OK); /* nobody at all */
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "e");
    CHECK_EQ(route_engine_drain(r, SPAN("e"), true, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_ENOTFOUND);
    e = explained(r, "x");
    CHECK(strstr(e.refused, "engine p only computes prompts") != NULL);
    CHECK_STR(SAID(r, &e, "p").why, "the best, but it was refused");
    route_check(r);
    route_destroy(&r);
}

/* Explanations that are not kept cost nothing, and nothing is found. */
TEST(none_are_kept_where_the_option_says_so) {
    struct route_options o = route_options_default;
    o.decisions_max = 0;
    struct route *r = route_create(&o);
    struct route_explained e;
    util_add(r, "e0");
    util_decide(r, "x", 100, UTIL_BEGIN);
    CHECK_EQ(route_explain(r, SPAN("x"), &e), TARN_ENOTFOUND);
    route_destroy(&r);
}

TEST_MAIN()
