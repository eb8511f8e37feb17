/* Each cost function against cases worked out by hand. Engines compute 1 ms and 10 us a token. */
#include "util.h"

#define ENGINES 3

/* e0 has 40 of 60 blocks of the prompt and two requests of 1000 tokens; e1 has 10 and one; e2 is
 * empty and idle. */
struct hand {
    struct route *r;
    struct util_prompt prompt;
    struct route_request q;
    struct route_decision d;
};

static void hand_load(struct hand *h, const char *engine, const char *id) {
    static const struct span engines[ENGINES] = {{"e0", 2}, {"e1", 2}, {"e2", 2}};
    struct span others[ENGINES];
    struct route_request q = util_request(id, 1000);
    for (int i = 0; i < ENGINES; i++)
        if (!span_eq(engines[i], span_str(engine))) others[q.exclude_count++] = engines[i];
    q.exclude = others;
    CHECK_EQ(route_decide(h->r, &q, UTIL_BEGIN, &h->d), TARN_OK);
    CHECK_STR(h->d.prefill, engine);
}

static void hand_begin(struct hand *h, const struct route_options *o) {
    h->r = route_create(o);
    CHECK(h->r != NULL);
    util_add(h->r, "e0");
    util_add(h->r, "e1");
    util_add(h->r, "e2");
    util_prompt(&h->prompt, 1, 60);
    util_stored(h->r, "e0", &h->prompt, 40, ROUTE_TIER_DEVICE);
    util_stored(h->r, "e1", &h->prompt, 10, ROUTE_TIER_DEVICE);
    hand_load(h, "e0", "a");
    hand_load(h, "e0", "b");
    hand_load(h, "e1", "c");
    h->q = util_prompt_request("x", &h->prompt);
}

static const char *hand_decide(struct hand *h, const char *policy) {
    h->q.policy = policy;
    CHECK_EQ(route_decide(h->r, &h->q, UTIL_BEGIN, &h->d), TARN_OK);
    CHECK_EQ(route_done(h->r, h->q.id, 0, false, UTIL_BEGIN), TARN_OK);
    route_check(h->r);
    return h->d.prefill;
}

static void hand_decode(struct route *r, const char *id, uint32_t tokens) {
    util_decide(r, id, tokens, UTIL_BEGIN);
    CHECK_EQ(route_first(r, span_str(id), UTIL_BEGIN), TARN_OK);
}

TEST(least_loaded_takes_the_idle_one) {
    struct hand h;
    hand_begin(&h, NULL);
    CHECK_STR(hand_decide(&h, "least-loaded"), "e2");
    route_destroy(&h.r);
}

TEST(round_robin_takes_turns) {
    struct hand h;
    hand_begin(&h, NULL);
    const char *first = hand_decide(&h, "round-robin");
    const char *second = hand_decide(&h, "round-robin");
    const char *third = hand_decide(&h, "round-robin");
    CHECK(first != second && second != third && third != first);
    CHECK(hand_decide(&h, "round-robin") == first);
    route_destroy(&h.r);
}

/* The turn goes on behind whoever was chosen; a request that was refused takes none. */
TEST(round_robin_goes_on_behind_the_chosen_one) {
    struct route *r = util_route("round-robin", 3);
    struct route_request q = util_request("y", 1000);
    struct route_decision d;
    CHECK_STR(util_decide(r, "x", 10, UTIL_BEGIN).prefill, "e0");
    q.exclude = &SPAN("e1");
    q.exclude_count = 1;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "e2");
    q.ttft_ms = 1;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_ELATER);
    CHECK_STR(util_decide(r, "x", 10, UTIL_BEGIN).prefill, "e0");
    /* e1 has 11 ms to do, and cannot keep 5. */
    CHECK_STR(util_decide(r, "z", 1000, UTIL_BEGIN).prefill, "e1");
    CHECK_STR(util_decide(r, "x", 10, UTIL_BEGIN).prefill, "e2");
    CHECK_STR(util_decide(r, "x", 10, UTIL_BEGIN).prefill, "e0");
    q = util_request("y", 100);
    q.ttft_ms = 5;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "e2");
    CHECK_STR(util_decide(r, "x", 10, UTIL_BEGIN).prefill, "e0");
    route_destroy(&r);
}

TEST(random_takes_each_as_often) {
    struct hand h;
    hand_begin(&h, NULL);
    int seen[ENGINES] = {0};
    for (int i = 0; i < 3000; i++) seen[hand_decide(&h, "random")[1] - '0']++;
    for (int i = 0; i < ENGINES; i++) CHECK(seen[i] > 900 && seen[i] < 1100);
    route_destroy(&h.r);
}

/* 40 of 60 is more than half: the match, whatever waits there, until the imbalance is too large. */
TEST(prefix_tree_follows_a_good_match) {
    struct route_options o = route_options_default;
    struct hand h;
    hand_begin(&h, &o);
    CHECK_STR(hand_decide(&h, "prefix-tree"), "e0");
    route_destroy(&h.r);
    o.tree_rate = 0.7;
    hand_begin(&h, &o);
    CHECK_STR(hand_decide(&h, "prefix-tree"), "e2");
    route_destroy(&h.r);
    o = route_options_default;
    o.tree_gap = 1;
    hand_begin(&h, &o);
    CHECK_STR(hand_decide(&h, "prefix-tree"), "e2");
    route_destroy(&h.r);
}

/* Blocks of 16. e0: (2000 + 960 - 640) / 16 = 145, 3 contexts of 1050... of two: 2100 / 16 =
 * 131.25, new 20: 296.25. e1: (1000 + 960 - 160) / 16 = 112.5, 65.6, 50: 228.1. e2: 60, 0, 60:
 * 120. With a scale of 0 and nothing active but the cache: e0's 131.25 + 20, e1's 65.6 + 50, e2's
 * 60. */
TEST(dynamo_adds_blocks) {
    struct route_options o = route_options_default;
    struct hand h;
    hand_begin(&h, &o);
    CHECK_STR(hand_decide(&h, "dynamo"), "e2");
    CHECK_EQ(route_done(h.r, SPAN("c"), 0, false, UTIL_BEGIN), TARN_OK);
    hand_load(&h, "e2", "d"); /* e1: 50 + 50, e2: 122.5 + 65.6 + 60 */
    CHECK_STR(hand_decide(&h, "dynamo"), "e1");
    route_destroy(&h.r);
}

TEST(dynamo_at_a_temperature_spreads) {
    struct route_options o = route_options_default;
    o.dynamo_temperature = 100;
    struct hand h;
    hand_begin(&h, &o);
    int seen[ENGINES] = {0};
    for (int i = 0; i < 3000; i++) seen[hand_decide(&h, "dynamo")[1] - '0']++;
    for (int i = 0; i < ENGINES; i++) CHECK(seen[i] > 900 && seen[i] < 1100);
    route_destroy(&h.r);
}

/* e0: 22 ms of queue and 1 + 3.2 ms. e1: 11 ms and 1 + 8 ms. e2: idle, 1 + 9.6 ms; with the prefix
 * of e0 fetched, 640 kB at 1 GB/s and 0.1 ms: 0.74 + 1 + 3.2 ms. */
TEST(mooncake_fetches_from_the_best_holder) {
    struct route_options o = route_options_default;
    struct hand h;
    hand_begin(&h, &o);
    CHECK_STR(hand_decide(&h, "mooncake"), "e2");
    CHECK(h.d.fetch != NULL);
    CHECK_STR(h.d.fetch, "e0");
    CHECK_EQ(h.d.fetch_tokens, 640);
    CHECK(h.d.ttft_ms > 4.9 && h.d.ttft_ms < 5.0);
    route_destroy(&h.r);
    o.fetch = false;
    hand_begin(&h, &o);
    CHECK_STR(hand_decide(&h, "mooncake"), "e2");
    CHECK(h.d.fetch == NULL);
    CHECK(h.d.ttft_ms > 10.5 && h.d.ttft_ms < 10.7);
    route_destroy(&h.r);
}

/* 0.6 * hit / total + 0.4 * (1 - load): e0 0.4 + 0, e1 0.1 + 0.2, e2 0 + 0.4; a little more weight
 * on hits decides. */
TEST(score_weighs_hits_and_idleness) {
    struct route_options o = route_options_default;
    o.score_hit = 0.61;
    struct hand h;
    hand_begin(&h, &o);
    CHECK_STR(hand_decide(&h, "score"), "e0");
    route_destroy(&h.r);
    o.score_hit = 0.59;
    hand_begin(&h, &o);
    CHECK_STR(hand_decide(&h, "score"), "e2");
    route_destroy(&h.r);
}

/* e0: 320 tokens * 3, e1: 800 * 2, e2: 960 * 1: a tie of e0 and e2; one request less tips it. */
TEST(lmetric_multiplies) {
    int seen[ENGINES] = {0};
    struct hand h;
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct route_options o = route_options_default;
        o.seed = seed;
        hand_begin(&h, &o);
        seen[hand_decide(&h, "lmetric")[1] - '0']++;
        route_destroy(&h.r);
    }
    CHECK(seen[0] > 5 && seen[1] == 0 && seen[2] > 5);
    hand_begin(&h, NULL);
    CHECK_EQ(route_done(h.r, SPAN("b"), 0, false, UTIL_BEGIN), TARN_OK);
    CHECK_STR(hand_decide(&h, "lmetric"), "e0");
    route_destroy(&h.r);
}

/* No arrivals are known that few requests tell of, the caches are not full: own time alone, which
 * is 22 + 4.2, 11 + 4.2 and 0.7 + 4.2 ms, where the others fetch what e0 has. One that decodes on
 * e2 counts for a tenth of 4.2 ms: 26 are more than what is between e2 and e1. One that waits there
 * is, too. */
TEST(tarn_counts_what_all_lose) {
    struct hand h;
    hand_begin(&h, NULL);
    CHECK_STR(hand_decide(&h, "tarn"), "e2");
    route_destroy(&h.r);
    hand_begin(&h, NULL);
    hand_load(&h, "e2", "d");
    CHECK_EQ(route_first(h.r, SPAN("d"), UTIL_BEGIN), TARN_OK);
    CHECK_STR(hand_decide(&h, "tarn"), "e2");
    route_destroy(&h.r);
    hand_begin(&h, NULL);
    for (int i = 0; i < 26; i++) {
        char id[2] = {(char)('A' + i), '\0'};
        hand_load(&h, "e2", id);
        CHECK_EQ(route_first(h.r, span_str(id), UTIL_BEGIN), TARN_OK);
    }
    CHECK_STR(hand_decide(&h, "tarn"), "e1");
    route_destroy(&h.r);
    hand_begin(&h, NULL);
    hand_load(&h, "e2", "d");
    CHECK_STR(hand_decide(&h, "tarn"), "e1");
    route_destroy(&h.r);
}

/* e0 has 100 of 128 blocks, and decodes two contexts of 5000: each step of a prefill takes 2 + 10
 * ms longer by them. 448 there: 1 + 4.48 + 12 * (1 + 448 / 2048) = 20.1 ms; all of the prompt
 * on e1, which is idle: 1 + 20.48. With one of 50,000 more on e0, that is the better one. */
TEST(those_that_decode_make_a_prefill_longer) {
    struct route_options o = route_options_default;
    o.policy = "mooncake";
    o.fetch = false;
    struct route *r = route_create(&o);
    struct route_engine_spec s = util_spec("e0");
    struct util_prompt p;
    struct route_decision d;
    s.prior.decode_sequence_us = 1000;
    s.prior.decode_context_us = 1;
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    hand_decode(r, "a", 4950);
    hand_decode(r, "b", 4950);
    s.id = SPAN("e1");
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    util_prompt(&p, 1, 128);
    util_stored(r, "e0", &p, 100, ROUTE_TIER_DEVICE);
    struct route_request q = util_prompt_request("x", &p);
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "e0");
    CHECK_WITHIN(d.ttft_ms, 20.10, 20.11);
    CHECK_EQ(route_done(r, q.id, 0, false, UTIL_BEGIN), TARN_OK);
    util_decide_without(r, "c", 49950, "e1", UTIL_BEGIN);
    CHECK_EQ(route_first(r, SPAN("c"), UTIL_BEGIN), TARN_OK);
    /* Later, when it is forgotten that e0 was about to compute the rest. */
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN + 5000 * UTIL_MS, &d), TARN_OK);
    CHECK_STR(d.prefill, "e1");
    CHECK_WITHIN(d.ttft_ms, 21.47, 21.49);
    route_destroy(&r);
}

/* 24,000 tokens of 1000 bytes at 1 GB/s and 0.1 ms: 24.1 ms, then 100 to compute: 2. Who comes at
 * the same time has its bytes behind those, and the engine is not free before. */
TEST(loads_share_the_link_of_their_engine) {
    struct route *r = util_route("tarn", 1);
    struct route_pool_run run = {.tokens = 24000, .tier = ROUTE_TIER_HOST};
    struct route_decision d;
    struct route_request q = util_request("x", 24100);
    q.pools[0].runs = &run;
    q.pools[0].run_count = 1;
    q.pools[0].tokens = 24000;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK); /* 24.1 + 1 + 1 ms */
    CHECK_EQ(d.load_tokens, 24000);
    CHECK_WITHIN(d.ttft_ms, 26.09, 26.11);
    CHECK_WITHIN(util_view(r, "e0").prefill_wait_us, 26090, 26110);
    q.id = SPAN("y");
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK); /* 48.2 + 2 */
    CHECK_WITHIN(d.ttft_ms, 50.19, 50.21);
    CHECK_WITHIN(util_view(r, "e0").prefill_wait_us, 50190, 50210);
    CHECK_EQ(route_first(r, SPAN("x"), UTIL_BEGIN + 26100), TARN_OK);
    CHECK_EQ(route_first(r, SPAN("y"), UTIL_BEGIN + 50200), TARN_OK);
    q.id = SPAN("z");
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN + 60 * UTIL_MS, &d), TARN_OK); /* it is free again */
    CHECK_WITHIN(d.ttft_ms, 25.9, 26.3);
    route_destroy(&r);
}

/* Two adapters of one engine: what it is about to compute for one is of no use to the other. */
TEST(what_is_ahead_is_of_its_scope) {
    struct route *r = util_route("tarn", 0);
    struct route_engine_spec s = util_spec("e0");
    struct util_prompt p;
    struct route_decision d;
    s.lora = SPAN("*");
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    util_prompt(&p, 1, 10);
    struct route_request q = util_prompt_request("", &p);
    for (int i = 0; i < 3; i++) {
        q.id = i == 0 ? SPAN("x") : i == 1 ? SPAN("y") : SPAN("z");
        q.lora = i == 2 ? SPAN("b") : SPAN("a");
        p.chain.scope = route_hash_scope(SPAN("m"), q.lora, SPAN(""), SPAN(""), UTIL_BLOCK);
        CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
        CHECK_EQ(d.ahead_tokens, i == 1 ? 10 * UTIL_BLOCK : 0);
    }
    route_destroy(&r);
}

TEST_MAIN()
