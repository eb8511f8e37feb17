/* What an engine has to do, as time passes and reports come. Prefills take 1 ms and 10 us a new
 * token, so 1000 tokens 11 ms and 100 tokens 2 ms. */
#include "util.h"

static double wait_ms(struct route *r, uint64_t now_us) {
    struct route_engine_view v;
    uint32_t cursor = 0;
    CHECK(route_engine_next(r, &cursor, now_us, &v));
    return v.prefill_wait_us / 1000;
}
#define CHECK_MS(r, at, ms)                                                                        \
    do {                                                                                           \
        double got = wait_ms(r, UTIL_BEGIN + (at)*UTIL_MS);                                        \
        CHECK(got > (ms)-0.01 && got < (ms) + 0.01);                                               \
    } while (0)

static void gone(struct route *r, const char *id, uint64_t at_ms) {
    CHECK_EQ(route_done(r, span_str(id), 0, false, UTIL_BEGIN + at_ms * UTIL_MS), TARN_OK);
}

/* --- waits --- */

/* However long the first one takes, those behind it have all of their own before them. */
TEST(the_first_counts_as_much_as_it_was_estimated_to_take) {
    struct route *r = util_route("tarn", 1);
    util_decide(r, "x", 1000, UTIL_BEGIN);
    util_decide(r, "y", 100, UTIL_BEGIN);
    CHECK_MS(r, 0, 13);
    CHECK_MS(r, 5, 8);
    CHECK_MS(r, 30, 2);
    CHECK_EQ(route_first(r, SPAN("x"), UTIL_BEGIN + 30 * UTIL_MS), TARN_OK);
    CHECK_MS(r, 30, 2);
    CHECK_MS(r, 31, 1);
    CHECK_MS(r, 40, 0);
    route_destroy(&r);
}

TEST(who_is_first_next_begins_when_the_first_goes) {
    struct route *r = util_route("tarn", 1);
    util_decide(r, "x", 100, UTIL_BEGIN);
    util_decide(r, "y", 1000, UTIL_BEGIN);
    util_decide(r, "z", 1000, UTIL_BEGIN);
    CHECK_MS(r, 1, 23);
    gone(r, "z", 1); /* x goes on meanwhile */
    CHECK_MS(r, 2, 11);
    gone(r, "x", 8);
    CHECK_MS(r, 8, 11);
    CHECK_MS(r, 10, 9);
    CHECK_MS(r, 30, 0);
    gone(r, "y", 30);
    CHECK_MS(r, 30, 0);
    util_decide(r, "w", 100, UTIL_BEGIN + 40 * UTIL_MS);
    CHECK_MS(r, 40, 2);
    CHECK_MS(r, 41, 1);
    route_destroy(&r);
}

/* A prompt whose length is all that is known is computed like any other, and is done some time. */
TEST(work_from_elsewhere_gets_done_too) {
    struct route *r = util_route("tarn", 1);
    struct route_load load = {1000, 1, ROUTE_UNKNOWN, ROUTE_UNKNOWN, ROUTE_UNKNOWN};
    CHECK_EQ(route_engine_load(r, SPAN("e0"), 0, &load, UTIL_BEGIN), TARN_OK);
    CHECK_MS(r, 0, 11);
    CHECK_MS(r, 5, 6);
    util_decide(r, "x", 100, UTIL_BEGIN + 10 * UTIL_MS);
    CHECK_MS(r, 10, 3);
    CHECK_MS(r, 20, 0);
    route_destroy(&r);
}

/* What comes while the request waits costs nothing: 1.06 ms of loading beside 11 ms of waiting. */
TEST(loading_and_waiting_overlap) {
    struct route *r = util_route("tarn", 1);
    struct util_prompt p;
    struct route_decision d;
    util_prompt(&p, 1, 60);
    util_decide(r, "x", 1000, UTIL_BEGIN);
    struct route_request q = util_prompt_request("y", &p);
    struct route_pool_run run = {.tokens = 960, .tier = ROUTE_TIER_HOST};
    q.pools[0].runs = &run;
    q.pools[0].run_count = 1;
    q.pools[0].tokens = 960;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_EQ(d.load_tokens, 960);
    CHECK(d.ttft_ms > 12.00 && d.ttft_ms < 12.02); /* and 1.01 for the last token */
    route_destroy(&r);
}

/* --- reports --- */

static void report(struct route *r, const struct route_load *load, uint64_t at_ms) {
    CHECK_EQ(route_engine_load(r, SPAN("e0"), 0, load, UTIL_BEGIN + at_ms * UTIL_MS), TARN_OK);
}

/* Each of the figures, beyond what is reserved: a prefill of 1000, a context of 1050. */
TEST(reports_count_beyond_the_reservations) {
    struct route *r = util_route("least-loaded", 1);
    util_decide(r, "x", 1000, UTIL_BEGIN);
    report(r, &(struct route_load){1600, 3, 2, 100, 5000}, 1);
    struct route_engine_view v = util_view(r, "e0");
    CHECK_EQ(v.foreign_prefill_tokens, 600);
    CHECK_EQ(v.foreign_decodes, 2);
    CHECK_EQ(v.foreign_kv_blocks, (100 * 16 - 1050) / 16);
    CHECK_EQ(v.kv_blocks, 5000);
    CHECK_EQ(v.reports, 1);
    /* What a report does not say has not changed. */
    report(r,
           &(struct route_load){ROUTE_UNKNOWN, ROUTE_UNKNOWN, ROUTE_UNKNOWN, ROUTE_UNKNOWN,
                                ROUTE_UNKNOWN},
           2);
    v = util_view(r, "e0");
    CHECK_EQ(v.foreign_prefill_tokens, 600);
    CHECK_EQ(v.foreign_decodes, 2);
    CHECK_EQ(v.foreign_kv_blocks, 34);
    CHECK_EQ(v.kv_blocks, 5000);
    report(r, &(struct route_load){1000, 1, 0, 20, 4000}, 3);
    v = util_view(r, "e0");
    CHECK_EQ(v.foreign_prefill_tokens + v.foreign_decodes + v.foreign_kv_blocks, 0);
    CHECK_EQ(v.kv_blocks, 4000);
    route_destroy(&r);
}

/* The most that was reserved since a report explains the next one, and no later one. */
TEST(what_has_ended_explains_one_report_more) {
    struct route *r = util_route("least-loaded", 1);
    struct route_load load = {1000, 1, 0, 0, ROUTE_UNKNOWN};
    util_decide(r, "x", 1000, UTIL_BEGIN);
    report(r, &load, 1);
    gone(r, "x", 2);
    report(r, &load, 3);
    CHECK_EQ(util_view(r, "e0").foreign_prefill_tokens, 0);
    report(r, &load, 4);
    CHECK_EQ(util_view(r, "e0").foreign_prefill_tokens, 1000);
    route_destroy(&r);
}

/* Two requests of others wait on e0, as it says: e1 has less to do. */
TEST(others_requests_count_as_load) {
    for (int i = 0; i < 10; i++) {
        struct route *r = util_route("least-loaded", 2);
        report(r, &(struct route_load){ROUTE_UNKNOWN, 2, 0, 0, ROUTE_UNKNOWN}, 0);
        CHECK_STR(util_decide(r, "x", 100, UTIL_BEGIN).prefill, "e1");
        CHECK_STR(util_decide(r, "y", 100, UTIL_BEGIN).prefill, "e1");
        route_destroy(&r);
    }
}

/* Others' prompts of which only the number is known are as long as ours are, once there were any;
 * those that the engine itself tells of are as long as it says, for a while. */
TEST(waiting_requests_have_prompts) {
    struct route *r = util_route("tarn", 1);
    struct route_load load = {ROUTE_UNKNOWN, 3, 0, 0, ROUTE_UNKNOWN};
    report(r, &load, 0);
    CHECK_EQ(util_view(r, "e0").foreign_prefill_tokens, 3 * 512);
    CHECK_MS(r, 0, 3 * (1 + 5.12));
    util_decide(r, "x", 1000, UTIL_BEGIN);
    util_decide(r, "y", 200, UTIL_BEGIN);
    gone(r, "x", 10);
    gone(r, "y", 10);
    load.waiting = 0;
    report(r, &load, 11);
    load.waiting = 3;
    report(r, &load, 12);
    CHECK_EQ(util_view(r, "e0").foreign_prefill_tokens, 3 * 600);
    CHECK_MS(r, 12, 3 * (1 + 6.0));
    CHECK_MS(r, 15, 3 * (1 + 6.0) - 3); /* it gets done, too */
    util_decide(r, "z", 1000, UTIL_BEGIN + 100 * UTIL_MS);
    report(r, &load, 100); /* one of the three is ours */
    CHECK_EQ(util_view(r, "e0").foreign_prefill_tokens, 2 * 733);
    load.waiting = 0;
    report(r, &load, 101);
    CHECK_EQ(util_view(r, "e0").foreign_prefill_tokens, 0);
    CHECK_MS(r, 101, 10);
    gone(r, "z", 102);
    report(r, &(struct route_load){5200, 1, 0, 0, ROUTE_UNKNOWN}, 1000);
    CHECK_EQ(util_view(r, "e0").foreign_prefill_tokens, 4000);
    load.waiting = 1;
    report(r, &load, 2000);
    CHECK_EQ(util_view(r, "e0").foreign_prefill_tokens, 4000);
    report(r, &load, 7000);
    CHECK_EQ(util_view(r, "e0").foreign_prefill_tokens, 733);
    route_check(r);
    route_destroy(&r);
}

/* An engine counts a prefill that is under way among its running requests: one of ours is no
 * sequence of others. */
TEST(prefills_under_way_are_nobody_elses) {
    struct route *r = util_route("least-loaded", 1);
    struct route_load load = {ROUTE_UNKNOWN, 2, 1, 0, ROUTE_UNKNOWN};
    util_decide(r, "x", 1000, UTIL_BEGIN);
    util_decide(r, "y", 1000, UTIL_BEGIN);
    util_decide(r, "z", 1000, UTIL_BEGIN);
    report(r, &load, 1);
    struct route_engine_view v = util_view(r, "e0");
    CHECK_EQ(v.foreign_prefill_tokens + v.foreign_decodes, 0);
    load.running = 5;
    report(r, &load, 2);
    CHECK_EQ(util_view(r, "e0").foreign_decodes, 4);
    load.waiting = 4;
    report(r, &load, 3);
    v = util_view(r, "e0");
    CHECK_EQ(v.foreign_decodes, 5);
    CHECK_EQ(v.foreign_prefill_tokens, 1000);
    route_destroy(&r);
}

/* A report is a sign of life as a beat is one. */
TEST(who_reports_is_alive) {
    struct route *r = util_route("tarn", 1);
    struct route_load load = {0, 0, 0, 0, ROUTE_UNKNOWN};
    struct route_request q = util_request("x", 10);
    struct route_decision d;
    uint64_t silent_ms = route_options_default.silent_ms;
    report(r, &load, 0);
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN + silent_ms * UTIL_MS, &d), TARN_OK);
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN + (silent_ms + 1) * UTIL_MS, &d), TARN_ENOTFOUND);
    report(r, &load, silent_ms + 1);
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN + (silent_ms + 1) * UTIL_MS, &d), TARN_OK);
    route_destroy(&r);
}

/* An engine is waited for as long as any of its ranks has reported. */
TEST(reports_that_are_taken_back_count_no_more) {
    struct route *r = util_route("tarn", 1);
    struct route_engine_view v;
    uint32_t cursor = 0;
    const struct route_load load = {1600, 3, 2, 100, 5000};
    CHECK_EQ(route_rank_add(r, SPAN("e0"), 1, UTIL_BEGIN), TARN_OK);
    report(r, &load, 0);
    CHECK_EQ(route_engine_load(r, SPAN("e0"), 1, &load, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_load_forget(r, SPAN("e0"), 2, UTIL_BEGIN), TARN_ENOTFOUND);
    CHECK_EQ(route_load_forget(r, SPAN("e0"), 0, UTIL_BEGIN), TARN_OK);
    CHECK(route_engine_next(r, &cursor, UTIL_BEGIN, &v));
    CHECK_EQ(v.foreign_prefill_tokens + v.foreign_decodes + v.foreign_kv_blocks + v.reports, 0);
    CHECK_MS(r, 0, 0);
    CHECK(v.heard_us > 0);
    CHECK(route_engine_next(r, &cursor, UTIL_BEGIN, &v));
    CHECK_EQ(v.foreign_prefill_tokens, 1600);
    CHECK_EQ(route_load_forget(r, SPAN("e0"), 1, UTIL_BEGIN), TARN_OK);
    cursor = 0;
    CHECK(route_engine_next(r, &cursor, UTIL_BEGIN, &v));
    CHECK_EQ(v.heard_us, 0);
    route_destroy(&r);
}

/* --- what comes in --- */

/* 100 a second of 5 ms on one engine is half of its time: whoever decodes there has steps twice as
 * long. On two engines it is a quarter of it; after some minutes of quiet it is forgotten. */
TEST(prefills_make_steps_longer_by_their_load) {
    for (int engines = 1; engines <= 2; engines++) {
        struct route *r = util_route("round-robin", engines);
        uint64_t now = UTIL_BEGIN;
        double tbt_ms = 0;
        for (int i = 0; i < 20000; i++, now += 10 * UTIL_MS) {
            tbt_ms = util_decide(r, "x", 400, now).tbt_ms;
            CHECK_EQ(route_done(r, SPAN("x"), 0, false, now), TARN_OK);
        }
        CHECK(engines == 1 ? tbt_ms > 19.5 && tbt_ms < 20.5 : tbt_ms > 13.1 && tbt_ms < 13.6);
        tbt_ms = util_decide(r, "x", 400, now + 600000 * UTIL_MS).tbt_ms;
        CHECK(tbt_ms > 10 && tbt_ms < 10.1);
        route_destroy(&r);
    }
}

/* However much comes in, nobody waits for ever. */
TEST(what_overload_makes_longer_is_bounded) {
    struct route *r = util_route("round-robin", 1);
    double tbt_ms = 0;
    for (uint64_t i = 0; i < 2000; i++) {
        tbt_ms = util_decide(r, "x", 400, UTIL_BEGIN + i * UTIL_MS).tbt_ms;
        CHECK_EQ(route_done(r, SPAN("x"), 0, false, UTIL_BEGIN + i * UTIL_MS), TARN_OK);
    }
    CHECK(tbt_ms > 190 && tbt_ms < 210); /* as if a twentieth was left */
    route_destroy(&r);
}

TEST_MAIN()
