/* Which engine decodes what another has computed: each reason by itself, in cases where it alone
 * decides. A step takes 10 ms, and what the engine's spec adds. */
#include "util.h"

static struct route_engine_spec decodes(const char *id) {
    struct route_engine_spec s = util_spec(id);
    s.role = ROUTE_DECODE;
    return s;
}

/* p computes, d0 and d1 decode as their specs say. */
static struct route *apart(const struct route_engine_spec *d0, const struct route_engine_spec *d1) {
    struct route_options o = route_options_default;
    o.output_tokens = 100;
    struct route *r = route_create(&o);
    struct route_engine_spec p = util_spec("p");
    p.role = ROUTE_PREFILL;
    CHECK_EQ(route_engine_add(r, &p, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_engine_add(r, d0, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_engine_add(r, d1, UTIL_BEGIN), TARN_OK);
    return r;
}

static const char *decides(struct route *r, const char *id, uint32_t output) {
    struct route_request q = util_request(id, 1000);
    struct route_decision d;
    q.output_tokens = output;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    route_check(r);
    return d.decode;
}

static void runs_on(struct route *r, const char *other, const char *id) {
    util_decide_without(r, id, 1000, other, UTIL_BEGIN);
    CHECK_EQ(route_first(r, span_str(id), UTIL_BEGIN), TARN_OK);
}

/* d1's steps are 1 ms longer, the KV takes 20 ms longer to d0: 20 tokens are as good there. */
TEST(a_long_answer_goes_where_steps_are_short) {
    struct route_engine_spec d0 = decodes("d0"), d1 = decodes("d1");
    d0.prior.latency_us[ROUTE_FAR] = 20100;
    d1.prior.decode_step_us = 11000;
    struct route *r = apart(&d0, &d1);
    CHECK_STR(decides(r, "x", 15), "d1");
    CHECK_STR(decides(r, "y", 25), "d0");
    route_destroy(&r);
}

/* Those that decode there, too. On d0 four run, whose steps this one makes 1 ms longer, for half a
 * mean answer: 200 ms. d1 runs none, and its KV takes 100 or 300 ms longer to come. */
TEST(whom_it_would_slow_down_counts) {
    for (int i = 0; i < 2; i++) {
        struct route_engine_spec d0 = decodes("d0"), d1 = decodes("d1");
        d0.prior.decode_step_us = 5000; /* and 5 of 1 ms: own steps are as long on both */
        d0.prior.decode_sequence_us = 1000;
        d1.prior.latency_us[ROUTE_FAR] = i == 0 ? 100000 : 300000;
        struct route *r = apart(&d0, &d1);
        for (int k = 0; k < 4; k++) {
            char id[16];
            snprintf(id, sizeof(id), "%d", k);
            runs_on(r, "d1", id);
        }
        CHECK_STR(decides(r, "x", 100), i == 0 ? "d1" : "d0");
        route_destroy(&r);
    }
}

/* An answer of 5 tokens slows the others for 5 steps only: 20 ms. */
TEST(a_short_answer_slows_nobody_for_long) {
    struct route_engine_spec d0 = decodes("d0"), d1 = decodes("d1");
    d0.prior.decode_step_us = 5000;
    d0.prior.decode_sequence_us = 1000;
    d1.prior.latency_us[ROUTE_FAR] = 50000;
    struct route *r = apart(&d0, &d1);
    for (int k = 0; k < 4; k++) {
        char id[16];
        snprintf(id, sizeof(id), "%d", k);
        runs_on(r, "d1", id);
    }
    CHECK_STR(decides(r, "x", 5), "d0");
    route_destroy(&r);
}

/* Those that were promised will be in the batch when this one is. */
TEST(who_was_promised_counts_as_running) {
    struct route_engine_spec d0 = decodes("d0"), d1 = decodes("d1");
    d0.prior.decode_sequence_us = 1000;
    d1.prior.decode_step_us = 12300;
    struct route *r = apart(&d0, &d1);
    struct route_decision d = util_decide(r, "x", 1000, UTIL_BEGIN);
    CHECK_STR(d.decode, "d0");
    d = util_decide(r, "y", 1000, UTIL_BEGIN); /* 12 ms there, and 0.5 for the other one */
    CHECK_STR(d.decode, "d1");
    CHECK(d.tbt_ms > 12.2 && d.tbt_ms < 12.4);
    route_destroy(&r);
}

/* d0 is the better one, and has two places. */
TEST(a_batch_has_so_many_places) {
    for (int others = 0; others <= 1; others++) {
        struct route_engine_spec d0 = decodes("d0"), d1 = decodes("d1");
        d0.batch_max = 2;
        d1.prior.decode_step_us = 20000;
        struct route *r = apart(&d0, &d1);
        struct route_load load = {0, 0, (uint64_t)others, 0, ROUTE_UNKNOWN};
        CHECK_EQ(route_engine_load(r, SPAN("d0"), 0, &load, UTIL_BEGIN), TARN_OK);
        CHECK_STR(decides(r, "x", 100), "d0");
        CHECK_STR(decides(r, "y", 100), others ? "d1" : "d0");
        CHECK_STR(decides(r, "z", 100), "d1");
        route_destroy(&r);
    }
}

/* Reported blocks and their number count, too: 1050 tokens are 66 blocks. */
TEST(kv_that_is_in_use_is_no_room) {
    struct route_engine_spec d0 = decodes("d0"), d1 = decodes("d1");
    d0.kv_blocks = 0; /* unknown before it reports */
    d1.prior.decode_step_us = 20000;
    struct route *r = apart(&d0, &d1);
    struct route_load load = {0, 0, 0, 40, 200};
    CHECK_EQ(route_engine_load(r, SPAN("d0"), 0, &load, UTIL_BEGIN), TARN_OK);
    CHECK_STR(decides(r, "x", 100), "d0");
    CHECK_STR(decides(r, "y", 100), "d0");
    CHECK_STR(decides(r, "z", 100), "d1");
    route_destroy(&r);
}

/* The one that keeps the time is better than one that costs less. */
TEST(who_keeps_the_tbt_decodes) {
    struct route_engine_spec d0 = decodes("d0"), d1 = decodes("d1");
    d0.prior.decode_step_us = 15000;
    d1.prior.latency_us[ROUTE_FAR] = 3000000;
    struct route *r = apart(&d0, &d1);
    struct route_request q = util_request("x", 1000);
    struct route_decision d;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.decode, "d0");
    q.tbt_ms = 12;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.decode, "d1");
    /* Asked again after the first token, too. */
    q.tbt_ms = 0;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_EQ(route_first(r, q.id, UTIL_BEGIN), TARN_OK);
    q.tbt_ms = 12;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.decode, "d1");
    route_check(r);
    route_destroy(&r);
}

/* Another model's, and another adapter's, decode nothing of it; one that takes any does. */
TEST(decode_is_by_the_same_model_and_adapter) {
    struct route_engine_spec d0 = decodes("d0"), d1 = decodes("d1");
    d0.model = SPAN("other");
    d1.lora = SPAN("a");
    struct route *r = apart(&d0, &d1);
    struct route_request q = util_request("x", 1000);
    struct route_decision d;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_ENOTFOUND);
    struct route_engine_spec any = decodes("any");
    any.lora = SPAN("*");
    any.prior.decode_step_us = 20000;
    CHECK_EQ(route_engine_add(r, &any, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.decode, "any");
    /* It is the request's adapter that counts, not that of whoever computed it. */
    struct route_engine_spec p = util_spec("pany");
    p.role = ROUTE_PREFILL;
    p.lora = SPAN("*");
    CHECK_EQ(route_engine_add(r, &p, UTIL_BEGIN), TARN_OK);
    q.lora = SPAN("a");
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "pany");
    CHECK_STR(d.decode, "d1");
    q.lora = SPAN("b");
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.decode, "any");
    route_destroy(&r);
}

TEST_MAIN()
