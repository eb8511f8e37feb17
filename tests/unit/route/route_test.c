/* Decisions, reservations and who is alive. */
#include "util.h"

TEST(options_out_of_range_make_no_route) {
    struct route_options o = route_options_default;
    o.policy = "no-such";
    CHECK(route_create(&o) == NULL);
    o = route_options_default;
    o.workers_max = 0;
    CHECK(route_create(&o) == NULL);
    o = route_options_default;
    o.tree_rate = 0.0 / 0.0;
    CHECK(route_create(&o) == NULL);
    o = route_options_default;
    o.lease_ms = UINT32_MAX; /* and the time that the prefill takes */
    CHECK(route_create(&o) == NULL);
    o = route_options_default;
    o.workers_max = ROUTE_HOLDERS_MAX;
    o.index_bytes = ROUTE_INDEX_BYTES_MIN; /* which they alone would take */
    CHECK(route_create(&o) == NULL);
}

TEST(engines_have_names_and_bounds) {
    struct route_options o = route_options_default;
    o.workers_max = 3;
    struct route *r = route_create(&o);
    struct route_engine_spec s = util_spec("a");
    s.ranks = 2;
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_EEXISTS);
    s.id = SPAN("b");
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_ELIMIT);
    s.id = SPAN("with space");
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_EINVAL);
    s.id = SPAN("c");
    s.block_tokens = 0;
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_EINVAL);
    CHECK_EQ(route_engine_remove(r, SPAN("c"), UTIL_BEGIN), TARN_ENOTFOUND);
    CHECK_EQ(route_engine_remove(r, SPAN("a"), UTIL_BEGIN), TARN_OK);
    route_check(r);
    route_destroy(&r);
}

/* Each may come and go by itself, as data-parallel ranks of one engine start one by one. */
TEST(ranks_come_and_go_one_by_one) {
    struct route_options o = route_options_default;
    o.workers_max = 3;
    struct route *r = route_create(&o);
    struct route_engine_spec s = util_spec("a");
    s.rank = 2;
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(util_decide(r, "x", 100, UTIL_BEGIN).prefill_rank, 2);
    CHECK_EQ(route_worker_find(r, s.id, 0), ROUTE_NO_WORKER);
    CHECK_EQ(route_rank_add(r, s.id, 2, UTIL_BEGIN), TARN_EEXISTS);
    CHECK_EQ(route_rank_add(r, s.id, ROUTE_RANKS_MAX, UTIL_BEGIN), TARN_EINVAL);
    CHECK_EQ(route_rank_add(r, SPAN("b"), 0, UTIL_BEGIN), TARN_ENOTFOUND);
    CHECK_EQ(route_rank_add(r, s.id, 63, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_rank_add(r, s.id, 0, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_rank_add(r, s.id, 1, UTIL_BEGIN), TARN_ELIMIT);
    CHECK_EQ(util_view(r, "a").ranks, 3);
    struct route_load load = {1, 1, 1, 1, 1};
    CHECK_EQ(route_engine_load(r, s.id, 1, &load, UTIL_BEGIN), TARN_ENOTFOUND);
    CHECK_EQ(route_engine_load(r, s.id, 63, &load, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_rank_remove(r, s.id, 1, UTIL_BEGIN), TARN_ENOTFOUND);
    CHECK_EQ(route_rank_remove(r, s.id, 2, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_first(r, SPAN("x"), UTIL_BEGIN), TARN_ENOTFOUND); /* it was there */
    route_check(r);
    CHECK_EQ(route_rank_remove(r, s.id, 63, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_rank_remove(r, s.id, 0, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_rank_add(r, s.id, 0, UTIL_BEGIN), TARN_ENOTFOUND); /* gone with its last */
    CHECK_EQ(route_figures_get(r)->route_engines, 0);
    route_check(r);
    route_destroy(&r);
}

TEST(errors_name_what_is_wrong) {
    struct route *r = util_route("round-robin", 1);
    struct route_request q = util_request("x", 100);
    struct route_decision d;
    q.model = SPAN("other");
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_ENOTFOUND);
    CHECK(strstr(route_error(r), "'other'") != NULL);
    q.model = SPAN("m");
    struct util_prompt p;
    util_prompt(&p, 1, 4);
    p.chain.block = 512;
    q.chains = &p.chain;
    q.chain_count = 1;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_EINVAL);
    CHECK(strstr(route_error(r), "4 blocks of 512") != NULL);
    q.length_tokens = 4 * 512;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_EINVAL);
    CHECK(strstr(route_error(r), "512") != NULL && strstr(route_error(r), "16") != NULL);
    q.chain_count = 0;
    q.pools[0].tokens = 4 * 512 + 1;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_EINVAL);
    q.pools[0].tokens = 0;
    q.exclude = &SPAN("e0");
    q.exclude_count = 1;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_ENOTFOUND);
    CHECK(strstr(route_error(r), "1 excluded") != NULL);
    q.exclude_count = 0;
    q.policy = "none";
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_EINVAL);
    q.policy = NULL;
    q.length_tokens = 0;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_EINVAL);
    CHECK_EQ(route_figures_get(r)->route_unserved, 7);
    route_destroy(&r);
}

TEST(what_is_reserved_is_given_back_once) {
    struct route *r = util_route("round-robin", 2);
    CHECK_STR(util_decide(r, "x", 1000, UTIL_BEGIN).prefill, "e0");
    CHECK_EQ(util_view(r, "e0").prefill_tokens, 1000);
    CHECK_EQ(route_first(r, SPAN("x"), UTIL_BEGIN + 11 * UTIL_MS), TARN_OK);
    CHECK_EQ(route_first(r, SPAN("x"), UTIL_BEGIN + 11 * UTIL_MS), TARN_OK);
    route_check(r);
    CHECK_EQ(util_view(r, "e0").prefill_tokens, 0);
    CHECK_EQ(util_view(r, "e0").decodes, 1);
    CHECK_EQ(route_done(r, SPAN("x"), 10, false, UTIL_BEGIN + 200 * UTIL_MS), TARN_OK);
    CHECK_EQ(route_done(r, SPAN("x"), 10, false, UTIL_BEGIN + 200 * UTIL_MS), TARN_ENOTFOUND);
    CHECK_EQ(util_view(r, "e0").decodes, 0);
    CHECK_EQ(util_view(r, "e0").context_tokens, 0);
    route_check(r);
    route_destroy(&r);
}

TEST(a_lease_that_ends_gives_back) {
    struct route *r = util_route("round-robin", 1);
    struct route_decision d = util_decide(r, "x", 1000, UTIL_BEGIN);
    CHECK_EQ(d.lease_ms, route_options_default.lease_ms + 11); /* of the prefill */
    uint64_t end = UTIL_BEGIN + (d.lease_ms + 1) * UTIL_MS;
    route_tick(r, end - 2 * UTIL_MS);
    CHECK_EQ(route_figures_get(r)->route_reserved, 1);
    while (route_tick(r, end) == 0) continue;
    CHECK_EQ(route_figures_get(r)->route_reserved, 0);
    CHECK_EQ(route_figures_get(r)->route_lease_ends, 1);
    /* A first token begins a new one. */
    d = util_decide(r, "x", 1000, end);
    end += d.lease_ms * UTIL_MS;
    CHECK_EQ(route_first(r, SPAN("x"), end - 2 * UTIL_MS), TARN_OK);
    while (route_tick(r, end + 2 * UTIL_MS) == 0) continue;
    CHECK_EQ(route_figures_get(r)->route_reserved, 1);
    CHECK_EQ(route_done(r, SPAN("x"), 0, false, end), TARN_OK);
    CHECK_EQ(util_view(r, "e0").prefill_tokens, 0);
    route_check(r);
    route_destroy(&r);
}

/* Asked again after its first token: 100 steps of 10 ms, and the lease's time on top of that. */
TEST(the_lease_of_a_decode_is_as_told) {
    struct route *r = util_route("round-robin", 1);
    uint64_t now = UTIL_BEGIN + 11 * UTIL_MS;
    util_decide(r, "x", 1000, UTIL_BEGIN);
    CHECK_EQ(route_first(r, SPAN("x"), now), TARN_OK);
    struct route_decision d = util_decide(r, "x", 1000, now);
    CHECK_EQ(d.lease_ms, route_options_default.lease_ms + 1000);
    CHECK(d.tbt_ms > 9.9 && d.tbt_ms < 10.1);
    now += d.lease_ms * UTIL_MS;
    route_tick(r, now - UTIL_MS);
    CHECK_EQ(route_figures_get(r)->route_reserved, 1);
    while (route_tick(r, now + UTIL_MS) == 0) continue;
    CHECK_EQ(route_figures_get(r)->route_reserved, 0);
    route_destroy(&r);
}

TEST(the_same_request_again_is_reserved_once) {
    struct route *r = util_route("round-robin", 2);
    CHECK_STR(util_decide(r, "x", 1000, UTIL_BEGIN).prefill, "e0");
    CHECK_STR(util_decide(r, "x", 1000, UTIL_BEGIN).prefill, "e1");
    CHECK_EQ(util_view(r, "e0").prefill_tokens, 0);
    CHECK_EQ(util_view(r, "e1").prefill_tokens, 1000);
    CHECK_EQ(route_figures_get(r)->route_reserved, 1);
    route_check(r);
    route_destroy(&r);
}

TEST(a_burst_does_not_go_to_one_engine) {
    struct route *r = util_route("least-loaded", 4);
    for (int i = 0; i < 40; i++) {
        char id[16];
        snprintf(id, sizeof(id), "x%d", i);
        util_decide(r, id, 1000, UTIL_BEGIN);
    }
    for (int i = 0; i < 4; i++) {
        char id[16];
        snprintf(id, sizeof(id), "e%d", i);
        CHECK_EQ(util_view(r, id).prefills, 10);
    }
    route_destroy(&r);
}

TEST(an_engine_that_is_gone_gets_nothing) {
    struct route *r = util_route("round-robin", 2);
    util_decide(r, "x", 1000, UTIL_BEGIN);
    CHECK_EQ(route_engine_remove(r, SPAN("e0"), UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_first(r, SPAN("x"), UTIL_BEGIN), TARN_ENOTFOUND);
    for (int i = 0; i < 3; i++) CHECK_STR(util_decide(r, "y", 10, UTIL_BEGIN).prefill, "e1");
    CHECK_EQ(route_engine_drain(r, SPAN("e1"), true, UTIL_BEGIN), TARN_OK);
    struct route_request q = util_request("z", 100);
    struct route_decision d;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_ENOTFOUND);
    CHECK(strstr(route_error(r), "1 draining") != NULL);
    route_check(r);
    route_destroy(&r);
}

/* Whoever looks after a long quiet sees what is then. */
TEST(a_view_is_of_its_time) {
    struct route *r = util_route("round-robin", 1);
    struct route_engine_view v;
    uint32_t cursor = 0;
    util_decide(r, "x", 1000, UTIL_BEGIN);
    CHECK_EQ(route_engine_beat(r, SPAN("e0"), UTIL_BEGIN), TARN_OK);
    uint64_t later = UTIL_BEGIN + (route_options_default.silent_ms + 1) * UTIL_MS;
    CHECK(route_engine_next(r, &cursor, later, &v));
    CHECK_EQ(v.state, ROUTE_SILENT);
    CHECK(v.prefill_wait_us < 1);
    route_destroy(&r);
}

TEST(silence_and_failures_keep_requests_away) {
    struct route *r = util_route("round-robin", 2);
    uint64_t now = UTIL_BEGIN;
    CHECK_EQ(route_engine_beat(r, SPAN("e0"), now), TARN_OK);
    now += (route_options_default.silent_ms + 1) * UTIL_MS;
    for (int i = 0; i < 3; i++) CHECK_STR(util_decide(r, "x", 10, now).prefill, "e1");
    CHECK_EQ(util_view(r, "e0").state, ROUTE_SILENT);
    CHECK_EQ(route_engine_beat(r, SPAN("e0"), now), TARN_OK);
    for (int i = 0; i < 2; i++) {
        struct route_request q = util_request("x", 10);
        struct route_decision d;
        q.exclude = &SPAN("e0");
        q.exclude_count = 1;
        CHECK_EQ(route_decide(r, &q, now, &d), TARN_OK);
        CHECK_EQ(route_done(r, SPAN("x"), 0, true, now), TARN_OK);
    }
    CHECK_EQ(util_view(r, "e1").state, ROUTE_BACKS_OFF);
    CHECK_STR(util_decide(r, "x", 10, now).prefill, "e0");
    now += (route_options_default.backoff_ms + 1) * UTIL_MS;
    CHECK_EQ(route_engine_beat(r, SPAN("e0"), now), TARN_OK);
    CHECK_EQ(util_view(r, "e1").state, ROUTE_UP);
    route_destroy(&r);
}

static enum route_state fail(struct route *r, uint64_t now_us) {
    util_decide(r, "x", 10, now_us);
    CHECK_EQ(route_done(r, SPAN("x"), 0, true, now_us), TARN_OK);
    return util_view(r, "e0").state;
}

/* From the second failure in a row on, twice as long each time, up to a bound; a first token ends
 * the row. */
TEST(failures_in_a_row_rest_an_engine_longer) {
    struct route_options o = route_options_default;
    struct route_request q = util_request("y", 10);
    struct route_decision d;
    o.backoff_max_ms = 5000;
    struct route *r = route_create(&o);
    util_add(r, "e0");
    uint64_t now = UTIL_BEGIN;
    CHECK_EQ(fail(r, now), ROUTE_UP);
    const uint32_t rests_ms[] = {1000, 2000, 4000, 5000, 5000};
    for (size_t i = 0; i < 5; i++) {
        CHECK_EQ(fail(r, now), ROUTE_BACKS_OFF);
        CHECK_EQ(route_decide(r, &q, now + (rests_ms[i] - 1) * UTIL_MS, &d), TARN_ENOTFOUND);
        now += rests_ms[i] * UTIL_MS;
    }
    util_decide(r, "z", 10, now);
    CHECK_EQ(route_first(r, SPAN("z"), now), TARN_OK);
    CHECK_EQ(fail(r, now), ROUTE_UP);
    CHECK_EQ(route_figures_get(r)->route_failures, 7);
    route_destroy(&r);
}

/* Its own tenant's requests alone, and those for its adapter, whether it prefills or decodes. */
TEST(engines_are_for_their_tenant_and_adapter) {
    struct route *r = util_route("tarn", 0);
    struct route_request q = util_request("x", 100);
    struct route_decision d;
    const enum route_role roles[] = {ROUTE_PREFILL, ROUTE_DECODE};
    const char *const ids[] = {"p", "d"};
    for (int i = 0; i < 2; i++) {
        struct route_engine_spec s = util_spec(ids[i]);
        s.role = roles[i];
        s.tenant = SPAN("t");
        CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    }
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_ENOTFOUND);
    CHECK(strstr(route_error(r), "1 of another tenant, 1 only decode") != NULL);
    q.tenant = SPAN("t");
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    struct route_engine_spec s = util_spec("all");
    s.role = ROUTE_PREFILL;
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    q.tenant = SPAN("u");
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_ENOTFOUND);
    CHECK(strstr(route_error(r), "none that decodes") != NULL);
    s = util_spec("adapted");
    s.role = ROUTE_DECODE;
    s.lora = SPAN("a");
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_ENOTFOUND);
    route_destroy(&r);
}

TEST(reports_add_what_is_not_reserved_here) {
    struct route *r = util_route("least-loaded", 2);
    util_decide(r, "x", 1000, UTIL_BEGIN);
    const char *mine = util_view(r, "e0").prefills == 1 ? "e0" : "e1";
    struct route_load load = {.prefill_tokens = 1500,
                              .waiting = 2,
                              .running = 3,
                              .kv_blocks_used = ROUTE_UNKNOWN,
                              .kv_blocks = ROUTE_UNKNOWN};
    CHECK_EQ(route_engine_load(r, span_str(mine), 0, &load, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(util_view(r, mine).foreign_prefill_tokens, 500);
    CHECK_EQ(util_view(r, mine).foreign_decodes, 3);
    /* Ended since: the next report may still count it, and does not make it another's. */
    CHECK_EQ(route_done(r, SPAN("x"), 0, false, UTIL_BEGIN + 1), TARN_OK);
    load.prefill_tokens = 1000;
    load.running = 0;
    CHECK_EQ(route_engine_load(r, span_str(mine), 0, &load, UTIL_BEGIN + 2), TARN_OK);
    CHECK_EQ(util_view(r, mine).foreign_prefill_tokens, 0);
    CHECK_EQ(util_view(r, mine).foreign_decodes, 0);
    CHECK_EQ(route_engine_load(r, span_str(mine), 1, &load, UTIL_BEGIN), TARN_ENOTFOUND);
    route_check(r);
    route_destroy(&r);
}

TEST(hits_are_told_by_tier) {
    struct route *r = util_route("round-robin", 1);
    struct util_prompt p;
    util_prompt(&p, 1, 10);
    util_stored(r, "e0", &p, 4, ROUTE_TIER_DEVICE);
    util_stored(r, "e0", &p, 6, ROUTE_TIER_HOST);
    struct route_request q = util_request("x", 165);
    struct route_decision d;
    q.chains = &p.chain;
    q.chain_count = 1;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_EQ(d.hit_tokens[ROUTE_TIER_DEVICE], 4 * UTIL_BLOCK);
    CHECK_EQ(d.hit_tokens[ROUTE_TIER_HOST], 2 * UTIL_BLOCK);
    CHECK_EQ(util_view(r, "e0").prefill_tokens, 165 - 6 * UTIL_BLOCK);
    /* 1 ms and 10 us for each of 69 tokens */
    CHECK(d.ttft_ms > 1.68 && d.ttft_ms < 1.70);
    route_destroy(&r);
}

TEST_MAIN()
