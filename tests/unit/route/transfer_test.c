/* How long KV takes from where it lies: by place, tier, bytes, and what is there already. Prompts
 * of 960 tokens; the last one is computed, which takes 1.01 ms. */
#include "util.h"

/* Loading must always be worth it: a token takes 1 ms to compute. */
static void begin(struct util_loads *l) {
    struct route_prior prior = UTIL_PRIOR;
    prior.prefill_token_us = 1000;
    prior.latency_us[ROUTE_SAME_HOST] = 10;
    prior.latency_us[ROUTE_SAME_RACK] = 200;
    prior.latency_us[ROUTE_FAR] = 3000;
    prior.rate[ROUTE_SAME_HOST] = 4000;
    prior.rate[ROUTE_SAME_RACK] = 2000;
    prior.rate[ROUTE_FAR] = 1000;
    prior.disk_rate = 500;
    util_loads_begin(l, &prior);
}

/* Microseconds beyond the last token's; those of what others are to compute are over. */
static int loads_us(struct util_loads *l) {
    static uint64_t now_us = UTIL_BEGIN;
    now_us += 100000 * UTIL_MS;
    CHECK_EQ(route_decide(l->r, &l->q, now_us, &l->d), TARN_OK);
    CHECK_EQ(route_done(l->r, l->q.id, 0, false, now_us), TARN_OK);
    return (int)(l->d.ttft_ms * 1000 - 2000 + 0.5);
}

TEST(it_is_nearer_from_the_same_host_or_rack) {
    struct util_loads l;
    begin(&l);
    l.run[0].host = SPAN("h0");
    l.run[0].rack = SPAN("r0");
    CHECK_EQ(loads_us(&l), 10 + 960000 / 4000);
    l.run[0].host = SPAN("h1");
    CHECK_EQ(loads_us(&l), 200 + 960000 / 2000);
    l.run[0].rack = SPAN("r1");
    CHECK_EQ(loads_us(&l), 3000 + 960000 / 1000);
    l.run[0].host = l.run[0].rack = SPAN("");
    CHECK_EQ(loads_us(&l), 3000 + 960000 / 1000);
    route_destroy(&l.r);
}

/* Nobody said where an engine is, or where the bytes are: that is no place they share. */
TEST(no_name_is_no_place) {
    struct util_loads l;
    begin(&l);
    struct route_engine_spec s = util_spec("e1");
    s.prior.latency_us[ROUTE_FAR] = 5000;
    s.prior.prefill_token_us = 1000;
    CHECK_EQ(route_engine_remove(l.r, SPAN("e0"), UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_engine_add(l.r, &s, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(loads_us(&l), 5000 + 960000 / 1000);
    route_destroy(&l.r);
}

/* Two runs of one place have its latency once; those of two come one after the other. */
TEST(runs_add_up_by_place) {
    struct util_loads l;
    begin(&l);
    l.run[0] = (struct route_pool_run){.tokens = 320, .tier = ROUTE_TIER_HOST};
    l.run[1] = (struct route_pool_run){.begin = 320, .tokens = 640, .tier = ROUTE_TIER_HOST};
    l.q.pools[0].run_count = 2;
    CHECK_EQ(loads_us(&l), 3000 + 960000 / 1000);
    l.run[1].host = SPAN("h0");
    CHECK_EQ(loads_us(&l), 3000 + 320000 / 1000 + 10 + 640000 / 4000);
    /* What is of the first run, or ends within the other one, is not loaded again. */
    util_stored(l.r, "e0", &l.prompt, 30, ROUTE_TIER_DEVICE);
    CHECK_EQ(loads_us(&l), 10 + 480000 / 4000);
    CHECK_EQ(l.d.load_tokens, 480);
    route_destroy(&l.r);
}

TEST(a_disk_has_its_own_rate) {
    struct util_loads l;
    begin(&l);
    l.run[0].tier = ROUTE_TIER_DISK;
    l.run[0].host = SPAN("h0");
    CHECK_EQ(loads_us(&l), 10 + 960000 / 4000 + 960000 / 500);
    route_destroy(&l.r);
}

/* A run's own bytes, which are not the engine's tokens': compressed, of one KV group. */
TEST(a_run_s_bytes_are_its_own) {
    struct util_loads l;
    begin(&l);
    l.run[0].bytes = 96000;
    CHECK_EQ(loads_us(&l), 3000 + 96000 / 1000);
    util_stored(l.r, "e0", &l.prompt, 30, ROUTE_TIER_DEVICE);
    CHECK_EQ(loads_us(&l), 3000 + 48000 / 1000);
    route_destroy(&l.r);
}

/* However odd the sizes, they end in a time, and nothing overflows. */
TEST(odd_sizes_are_bounded) {
    struct util_loads l;
    begin(&l);
    l.q.policy = "mooncake";
    for (int i = 0; i < 2; i++)
        l.run[i] = (struct route_pool_run){.tokens = UINT32_MAX, .bytes = UINT64_MAX};
    l.q.pools[0].run_count = 2;
    CHECK_EQ(loads_us(&l), 960 * 1000 + 1000 - 2000); /* it is computed */
    CHECK_EQ(l.d.load_tokens, 0);
    /* Where even that would take longer: 2 PiB at 1 GB/s are 26 days. */
    struct route_engine_spec s = util_spec("slow");
    s.prior.prefill_token_us = 1e18;
    CHECK_EQ(route_engine_remove(l.r, SPAN("e0"), UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_engine_add(l.r, &s, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_decide(l.r, &l.q, UTIL_BEGIN, &l.d), TARN_OK);
    CHECK_EQ(l.d.load_tokens, 960);
    CHECK_EQ(route_first(l.r, l.q.id, UTIL_BEGIN), TARN_OK);
    route_destroy(&l.r);
}

/* Where no size is known, a transfer takes its latency. */
TEST(unknown_bytes_take_the_latency) {
    struct util_loads l;
    begin(&l);
    struct route_engine_spec s = util_spec("e1");
    s.prior.latency_us[ROUTE_FAR] = 5000;
    s.prior.prefill_token_us = 1000;
    s.bytes_per_token = 0;
    CHECK_EQ(route_engine_remove(l.r, SPAN("e0"), UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_engine_add(l.r, &s, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(loads_us(&l), 5000);
    route_destroy(&l.r);
}

/* From engine to engine, too: e1 fetches e0's 640 tokens within the rack, and computes 320. */
TEST(engines_fetch_by_place) {
    struct route *r = util_route("mooncake", 0);
    struct util_prompt p;
    struct route_decision d;
    for (int i = 0; i < 2; i++) {
        struct route_engine_spec s = util_spec(i == 0 ? "e0" : "e1");
        s.rack = SPAN("r0");
        s.prior.latency_us[ROUTE_FAR] = 7000;
        s.prior.latency_us[ROUTE_SAME_RACK] = 200;
        s.prior.rate[ROUTE_SAME_RACK] = 500;
        CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    }
    util_prompt(&p, 1, 60);
    util_stored(r, "e0", &p, 40, ROUTE_TIER_DEVICE);
    util_decide_without(r, "busy", 2000, "e1", UTIL_BEGIN);
    struct route_request q = util_prompt_request("x", &p);
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "e1");
    CHECK_STR(d.fetch, "e0");
    CHECK_EQ((int)(d.ttft_ms * 1000 + 0.5), 200 + 640000 / 500 + 1000 + 3200);
    route_destroy(&r);
}

TEST_MAIN()
