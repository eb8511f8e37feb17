/* Loading from the pool, decode engines, matches, copies, what is learnt. */
#include <math.h>
#include "util.h"

/* 960 tokens of 1000 bytes at 1 GB/s and 0.1 ms: 1.06 ms instead of 9.6. */
TEST(the_pool_is_loaded_where_that_is_faster) {
    struct route *r = util_route("tarn", 1);
    struct util_prompt p;
    struct route_decision d;
    util_prompt(&p, 1, 60);
    struct route_request q = util_prompt_request("x", &p);
    struct route_pool_run run = {.tokens = 960, .tier = ROUTE_TIER_HOST};
    q.pools[0].runs = &run;
    q.pools[0].run_count = 1;
    q.pools[0].tokens = 960;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_EQ(d.load_tokens, 960);
    CHECK_EQ(d.pool_tokens, 960);
    CHECK(d.ttft_ms > 2.06 && d.ttft_ms < 2.08); /* 1 ms and the last token */
    CHECK_EQ(route_done(r, q.id, 0, true, UTIL_BEGIN), TARN_OK);
    run.bytes = 960 * 100000; /* 96 ms */
    uint64_t later = UTIL_BEGIN + 100000 * UTIL_MS;
    CHECK_EQ(route_decide(r, &q, later, &d), TARN_OK);
    CHECK_EQ(d.load_tokens, 0);
    CHECK(d.ttft_ms > 10.5 && d.ttft_ms < 10.7);
    route_destroy(&r);
}

TEST(only_what_is_missing_is_loaded) {
    struct route *r = util_route("tarn", 1);
    struct util_prompt p;
    struct route_decision d;
    util_prompt(&p, 1, 60);
    util_stored(r, "e0", &p, 30, ROUTE_TIER_DEVICE);
    struct route_request q = util_prompt_request("x", &p);
    struct route_pool_run runs[2] = {{.tokens = 640, .tier = ROUTE_TIER_HOST},
                                     {.begin = 640, .tokens = 160, .tier = ROUTE_TIER_DISK}};
    q.pools[0].runs = runs;
    q.pools[0].run_count = 2;
    q.pools[0].tokens = 800;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_EQ(d.hit_tokens[ROUTE_TIER_DEVICE], 480);
    CHECK_EQ(d.load_tokens, 320);
    /* 0.1 ms and 320 kB; 1 ms and 160 tokens */
    CHECK(d.ttft_ms > 3.01 && d.ttft_ms < 3.03);
    route_destroy(&r);
}

/* One request of each kind; the figures are the sums of what was decided. Rank 1 of e0 has what is
 * fetched; what is on its way there is ahead of the next. */
TEST(figures_are_sums_of_decisions) {
    struct route *r = util_route("mooncake", 0);
    struct route_engine_spec s = util_spec("e0");
    struct util_prompt p, pooled;
    struct route_decision d;
    uint64_t hit = 0, ahead = 0, load = 0, fetch = 0, prompt = 0;
    s.ranks = 2;
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    util_prompt(&p, 1, 60);
    uint32_t holder = route_worker_holder(r, route_worker_find(r, s.id, 1));
    struct route_stored e = {.holder = holder, .scope = p.chain.scope, .n = 40};
    e.rolling = p.rolling;
    CHECK_EQ(route_index_stored(route_index(r), &e), 40);
    util_prompt(&pooled, 1000, 60);
    struct route_pool_run run = {.tokens = 800, .tier = ROUTE_TIER_HOST};
    bool fetched = false;
    for (int i = 0; i < 40; i++) {
        char id[16];
        snprintf(id, sizeof(id), "%d", i);
        struct route_request q = util_prompt_request(id, i % 4 == 3 ? &pooled : &p);
        if (i % 4 == 3) q.pools[0].runs = &run, q.pools[0].run_count = 1, q.pools[0].tokens = 800;
        if (i % 4 < 3) q.length_tokens += 100 * (uint32_t)i;
        CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
        for (int t = 0; t < ROUTE_TIERS; t++) hit += d.hit_tokens[t];
        ahead += d.ahead_tokens, load += d.load_tokens, fetch += d.fetch_tokens;
        prompt += q.length_tokens;
        if (d.fetch == NULL) continue;
        fetched = true;
        CHECK_EQ(d.fetch_rank, 1);
        CHECK_EQ(d.fetch_worker, route_worker_find(r, s.id, 1));
        CHECK_EQ(d.prefill_rank, 0);
    }
    const struct route_figures *f = route_figures_get(r);
    CHECK(fetched && hit > 0 && ahead > 0 && load > 0);
    CHECK(f->route_hit_tokens == hit && f->route_ahead_tokens == ahead);
    CHECK(f->route_load_tokens == load && f->route_fetch_tokens == fetch);
    CHECK(f->route_decisions == 40 && f->route_prompt_tokens == prompt);
    route_destroy(&r);
}

/* --- prefill here, decode there --- */

static struct route *apart(void) {
    struct route *r = util_route("tarn", 0);
    const char *const ids[] = {"p0", "d0", "d1"};
    for (int i = 0; i < 3; i++) {
        struct route_engine_spec s = util_spec(ids[i]);
        s.role = i == 0 ? ROUTE_PREFILL : ROUTE_DECODE;
        s.rack = i == 2 ? SPAN("r1") : SPAN("r0");
        s.kv_blocks = 1000;
        s.prior.rate[ROUTE_FAR] = 100;
        CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    }
    return r;
}

TEST(decode_is_near_the_prefill_and_has_room) {
    struct route *r = apart();
    struct route_decision d = util_decide(r, "x", 1000, UTIL_BEGIN);
    CHECK_STR(d.prefill, "p0");
    CHECK_STR(d.decode, "d0"); /* 1 MB at 1 GB/s in the rack, at 0.1 GB/s beyond it */
    CHECK_EQ(util_view(r, "p0").prefills, 1);
    CHECK_EQ(util_view(r, "d0").context_tokens, 1050);
    util_decide(r, "y", 14000, UTIL_BEGIN);
    route_check(r);
    CHECK_EQ(util_view(r, "d0").context_tokens, 1050 + 14050);
    CHECK_STR(util_decide(r, "z", 1000, UTIL_BEGIN).decode, "d1"); /* d0 has 16,000 */
    route_destroy(&r);
}

TEST(ranks_are_told) {
    struct route *r = util_route("round-robin", 0);
    struct route_engine_spec s = util_spec("p");
    s.ranks = 2;
    s.role = ROUTE_PREFILL;
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    s = util_spec("d");
    s.ranks = 2;
    s.role = ROUTE_DECODE;
    s.batch_max = 1;
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    struct route_decision d = util_decide(r, "x", 1000, UTIL_BEGIN);
    CHECK_EQ(d.prefill_rank, 0);
    CHECK_EQ(d.decode_rank, 0);
    d = util_decide(r, "y", 1000, UTIL_BEGIN);
    CHECK_EQ(d.prefill_rank, 1);
    CHECK_EQ(d.decode_rank, 1);
    CHECK_EQ(d.prefill_worker, route_worker_find(r, SPAN("p"), 1));
    CHECK_EQ(d.decode_worker, route_worker_find(r, SPAN("d"), 1));
    route_destroy(&r);
}

TEST(decode_is_chosen_anew_when_the_prefill_ended) {
    struct route *r = apart();
    CHECK_STR(util_decide(r, "x", 1000, UTIL_BEGIN).decode, "d0");
    CHECK_EQ(route_first(r, SPAN("x"), UTIL_BEGIN + 11 * UTIL_MS), TARN_OK);
    CHECK_EQ(route_engine_drain(r, SPAN("d0"), true, UTIL_BEGIN), TARN_OK);
    struct route_decision d = util_decide(r, "x", 1000, UTIL_BEGIN + 12 * UTIL_MS);
    CHECK_STR(d.prefill, "p0");
    CHECK_STR(d.decode, "d1");
    CHECK_EQ(util_view(r, "p0").prefills, 0);
    CHECK_EQ(util_view(r, "d0").decodes, 0);
    CHECK_EQ(util_view(r, "d1").decodes, 1);
    CHECK_EQ(route_figures_get(r)->route_redecisions, 1);
    route_check(r);
    /* Where the prefill's engine is gone, all of it is. */
    CHECK_EQ(route_engine_remove(r, SPAN("p0"), UTIL_BEGIN), TARN_OK);
    struct route_request q = util_request("x", 1000);
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN + 13 * UTIL_MS, &d), TARN_ENOTFOUND);
    CHECK_EQ(util_view(r, "d1").decodes, 0);
    route_check(r);
    route_destroy(&r);
}

TEST(without_a_decode_engine_nothing_is_reserved) {
    struct route *r = apart();
    CHECK_EQ(route_engine_remove(r, SPAN("d0"), UTIL_BEGIN), TARN_OK);
    struct route_decision d = util_decide(r, "x", 1000, UTIL_BEGIN);
    CHECK_STR(d.decode, "d1");
    /* The decode engine goes while the prefill runs: the prefill stays, and asks anew. */
    CHECK_EQ(route_engine_remove(r, SPAN("d1"), UTIL_BEGIN), TARN_OK);
    CHECK_EQ(util_view(r, "p0").prefills, 1);
    route_check(r);
    struct route_request q = util_request("y", 1000);
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_ENOTFOUND);
    CHECK(strstr(route_error(r), "none that decodes") != NULL);
    CHECK_EQ(route_figures_get(r)->route_reserved, 1);
    route_destroy(&r);
}

/* Its prefill is over, and nobody decodes it: no engine has it, and it ends with the route. */
TEST(a_request_without_an_engine_is_not_lost) {
    struct route *r = apart();
    CHECK_EQ(route_engine_remove(r, SPAN("d0"), UTIL_BEGIN), TARN_OK);
    util_decide(r, "x", 1000, UTIL_BEGIN);
    CHECK_EQ(route_engine_remove(r, SPAN("d1"), UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_first(r, SPAN("x"), UTIL_BEGIN + 11 * UTIL_MS), TARN_OK);
    CHECK_EQ(route_figures_get(r)->route_reserved, 1);
    route_check(r);
    route_destroy(&r); /* a leak, if it was (SANITIZER=address) */
}

/* --- what is there --- */

TEST(matches_are_told_by_engine) {
    struct route *r = util_route("tarn", 3);
    struct util_prompt p;
    util_prompt(&p, 1, 60);
    util_stored(r, "e0", &p, 20, ROUTE_TIER_DEVICE);
    util_stored(r, "e0", &p, 30, ROUTE_TIER_DISK);
    util_stored(r, "e2", &p, 60, ROUTE_TIER_HOST);
    struct route_request q = util_prompt_request("x", &p);
    struct route_matched m[4];
    CHECK_EQ(route_match(r, &q, m, 4), 2);
    int zero = strcmp(m[0].engine, "e0") == 0 ? 0 : 1;
    CHECK_STR(m[1 - zero].engine, "e2");
    CHECK_EQ(m[zero].tokens[ROUTE_TIER_DEVICE], 320);
    CHECK_EQ(m[zero].tokens[ROUTE_TIER_HOST], 320);
    CHECK_EQ(m[zero].tokens[ROUTE_TIER_DISK], 480);
    CHECK_EQ(m[1 - zero].tokens[ROUTE_TIER_HOST], 960);
    q.model = SPAN("other");
    CHECK_EQ(route_match(r, &q, m, 4), 0);
    route_destroy(&r);
}

/* --- copies --- */

/* One system prompt, more of it than one engine can compute the rest of. */
TEST(a_hot_prefix_is_copied) {
    struct route *r = util_route("prefix-tree", 3);
    struct util_prompt p;
    uint64_t now = UTIL_BEGIN;
    util_prompt(&p, 1, 64);
    util_stored(r, "e0", &p, 48, ROUTE_TIER_DEVICE);
    struct route_copy copy;
    for (int i = 0; i < 4000; i++) {
        char id[16];
        struct route_decision d;
        util_prompt(&p, 1, 48);
        struct route_request q = util_prompt_request(id, &p);
        snprintf(id, sizeof(id), "x%d", i);
        q.id = span_str(id);
        q.length_tokens = 48 * UTIL_BLOCK + 256; /* 3.56 ms each, one every 4 ms */
        CHECK_EQ(route_decide(r, &q, now, &d), TARN_OK);
        now += 4 * UTIL_MS;
        CHECK_EQ(route_first(r, q.id, now), TARN_OK);
        CHECK_EQ(route_done(r, q.id, 1, false, now), TARN_OK);
        if (i == 1000) CHECK(!route_copy_take(r, &copy)); /* 4 s tell little */
    }
    CHECK(route_copy_take(r, &copy));
    CHECK_STR(copy.from, "e0");
    CHECK(strcmp(copy.to, "e0") != 0);
    CHECK_EQ(copy.tokens, 32 * UTIL_BLOCK);
    CHECK_EQ(copy.hash, p.rolling[31]);
    route_destroy(&r);
}

/* As a_hot_prefix_is_copied, for so many milliseconds. How many copies were ordered then. */
static uint64_t heat(struct route *r, uint64_t *now_p, int ms) {
    struct util_prompt p;
    uint64_t before = route_figures_get(r)->route_copies;
    util_prompt(&p, 1, 48);
    util_stored(r, "e0", &p, 48, ROUTE_TIER_DEVICE);
    for (int i = 0; i < ms; i += 4) {
        struct route_decision d;
        struct route_request q = util_prompt_request("x", &p);
        q.length_tokens = 48 * UTIL_BLOCK + 256;
        CHECK_EQ(route_decide(r, &q, *now_p, &d), TARN_OK);
        *now_p += 4 * UTIL_MS;
        CHECK_EQ(route_done(r, q.id, 1, false, *now_p), TARN_OK);
    }
    return route_figures_get(r)->route_copies - before;
}

/* So that its events can come before there is another; and nobody has to take them. */
TEST(copies_of_one_prefix_have_a_pause) {
    struct route *r = util_route("prefix-tree", 3);
    struct route_copy copy;
    uint64_t now = UTIL_BEGIN;
    CHECK_EQ(heat(r, &now, 4900), 0); /* that tells little */
    CHECK_EQ(heat(r, &now, 200), 1);
    CHECK_EQ(heat(r, &now, 9700), 0);
    CHECK_EQ(heat(r, &now, 1000), 1);
    for (int i = 0; i < 70; i++) heat(r, &now, 10100);
    int waiting = 0;
    while (route_copy_take(r, &copy)) waiting++;
    CHECK_EQ(waiting, 64);
    route_destroy(&r);
}

/* What was hot long ago is not. */
TEST(heat_fades) {
    struct route *r = util_route("prefix-tree", 3);
    uint64_t now = UTIL_BEGIN;
    CHECK_EQ(heat(r, &now, 4900), 0);
    now += 600 * 1000 * UTIL_MS;
    CHECK_EQ(heat(r, &now, 5000), 0);
    route_destroy(&r);
}

/* Two that share 0.89 of one engine's time have 0.45 each, be it that the second one is about to
 * compute it. One alone gives to the idlest. */
TEST(enough_holders_need_no_copy) {
    for (int holders = 1; holders <= 3; holders++) {
        struct route *r = util_route("prefix-tree", 4);
        struct util_prompt p;
        struct route_copy copy;
        uint64_t now = UTIL_BEGIN;
        for (int i = 1; i < 3; i++) { /* 20 s for e1 and e2 */
            struct route_request q = util_request(i == 1 ? "busy" : "too", 2000000);
            const struct span others[] = {SPAN("e0"), i == 1 ? SPAN("e2") : SPAN("e1"), SPAN("e3")};
            struct route_decision d;
            q.exclude = others;
            q.exclude_count = 3;
            CHECK_EQ(route_decide(r, &q, now, &d), TARN_OK);
        }
        util_prompt(&p, 1, 48);
        if (holders == 2) util_stored(r, "e1", &p, 48, ROUTE_TIER_DEVICE);
        if (holders == 3) {
            const struct span others[] = {SPAN("e0"), SPAN("e2"), SPAN("e3")};
            struct route_request q = util_prompt_request("ahead", &p);
            struct route_decision d;
            q.exclude = others;
            q.exclude_count = 3;
            CHECK_EQ(route_decide(r, &q, now, &d), TARN_OK);
        }
        CHECK_EQ(heat(r, &now, 8000), holders == 1);
        CHECK_EQ(route_copy_take(r, &copy), holders == 1);
        if (holders == 1) CHECK_STR(copy.to, "e3");
        route_destroy(&r);
    }
}

TEST(who_left_takes_no_copy_and_nobody_in_its_place) {
    struct route *r = util_route("prefix-tree", 2);
    struct route_copy copy;
    uint64_t now = UTIL_BEGIN;
    CHECK_EQ(heat(r, &now, 8000), 1);
    CHECK_EQ(route_engine_remove(r, SPAN("e1"), UTIL_BEGIN), TARN_OK);
    struct route_engine_spec s = util_spec("stranger");
    s.model = SPAN("other");
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    CHECK(!route_copy_take(r, &copy));
    route_destroy(&r);
}

TEST(blocks_of_another_size_are_not_copied) {
    struct route *r = util_route("prefix-tree", 1);
    uint64_t now = UTIL_BEGIN;
    struct route_engine_spec s = util_spec("wide");
    s.block_tokens = 4 * UTIL_BLOCK;
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(heat(r, &now, 8000), 0);
    route_destroy(&r);
}

TEST(cold_prefixes_are_not_copied) {
    struct route *r = util_route("tarn", 3);
    uint64_t now = UTIL_BEGIN;
    for (int i = 0; i < 3000; i++) {
        char id[16];
        struct util_prompt p;
        struct route_decision d;
        util_prompt(&p, 1000 * (uint64_t)i, 16);
        struct route_request q = util_prompt_request(id, &p);
        snprintf(id, sizeof(id), "x%d", i);
        q.id = span_str(id);
        CHECK_EQ(route_decide(r, &q, now, &d), TARN_OK);
        now += 4 * UTIL_MS;
        CHECK_EQ(route_first(r, q.id, now), TARN_OK);
        CHECK_EQ(route_done(r, q.id, 1, false, now), TARN_OK);
    }
    struct route_copy copy;
    CHECK(!route_copy_take(r, &copy));
    route_destroy(&r);
}

/* --- learning --- */

/* An engine that is three times slower than its prior, told of by firsts and dones only. */
TEST(times_teach_the_models) {
    struct route *r = util_route("tarn", 1);
    uint64_t now = UTIL_BEGIN;
    for (int i = 0; i < 300; i++) {
        uint32_t tokens = 200 + 37 * (i % 50);
        struct route_decision d = util_decide(r, "x", tokens, now);
        CHECK(d.decode == NULL);
        now += 3 * (1000 + 10 * tokens);
        CHECK_EQ(route_first(r, SPAN("x"), now), TARN_OK);
        now += 50 * 20000; /* steps of 20 ms */
        CHECK_EQ(route_done(r, SPAN("x"), 51, false, now), TARN_OK);
    }
    struct route_engine_view v = util_view(r, "e0");
    CHECK(v.prefill_seen > 290 && v.decode_seen == 300);
    struct route_decision d = util_decide(r, "x", 1000, now);
    CHECK(fabs(d.ttft_ms - 33) < 1.5);
    CHECK(fabs(d.tbt_ms - 20) < 2);
    /* The same from its bytes, in another route. */
    uint8_t learnt[ROUTE_LEARNT_SIZE];
    struct route *other = util_route("tarn", 1);
    CHECK_EQ(route_learnt_export(r, SPAN("e0"), learnt), TARN_OK);
    CHECK_EQ(route_learnt_import(other, SPAN("e0"), learnt), TARN_OK);
    CHECK(fabs(util_decide(other, "x", 1000, UTIL_BEGIN).ttft_ms - 33) < 1.5);
    learnt[0] = 99;
    CHECK_EQ(route_learnt_import(other, SPAN("e0"), learnt), TARN_EPROTO);
    route_destroy(&r);
    route_destroy(&other);
}

/* Prefills of a busy engine: the time between first tokens is what each took. */
TEST(a_busy_engine_teaches_too) {
    struct route *r = util_route("tarn", 1);
    uint64_t now = UTIL_BEGIN, end = UTIL_BEGIN;
    char ids[400][16];
    for (int i = 0; i < 400; i++) {
        snprintf(ids[i], sizeof(ids[i]), "%d", i);
        util_decide(r, ids[i], 500 + 100 * (i % 7), now);
    }
    for (int i = 0; i < 400; i++) {
        end += 2 * (1000 + 10 * (500 + 100 * (uint64_t)(i % 7)));
        CHECK_EQ(route_first(r, span_str(ids[i]), end), TARN_OK);
        CHECK_EQ(route_done(r, span_str(ids[i]), 1, false, end), TARN_OK);
    }
    CHECK(fabs(util_decide(r, "x", 1000, end).ttft_ms - 22) < 1);
    route_destroy(&r);
}

/* Prefills that ran in one batch have their first tokens at once. */
TEST(a_batch_teaches_as_a_whole) {
    struct route *r = util_route("tarn", 1);
    uint64_t now = UTIL_BEGIN;
    for (int i = 0; i < 100; i++) {
        char ids[4][16];
        for (int k = 0; k < 4; k++) {
            snprintf(ids[k], sizeof(ids[k]), "%d", k);
            util_decide(r, ids[k], 1000, now);
        }
        now += 4 * 11 * UTIL_MS;
        for (int k = 0; k < 4; k++) {
            CHECK_EQ(route_first(r, span_str(ids[k]), now), TARN_OK);
            CHECK_EQ(route_done(r, span_str(ids[k]), 1, false, now), TARN_OK);
        }
    }
    CHECK(fabs(util_decide(r, "x", 1000, now).ttft_ms - 11) < 1);
    route_destroy(&r);
}

TEST_MAIN()
