/* Engines that come, go and fail: what is of one is not of the next with its number. */
#include "util.h"

static void replace(struct route *r, const char *old, const char *new) {
    CHECK_EQ(route_engine_remove(r, span_str(old), UTIL_BEGIN), TARN_OK);
    uint32_t before = route_figures_get(r)->route_workers;
    util_add(r, new);
    CHECK_EQ(route_figures_get(r)->route_workers, before + 1);
}

TEST(numbers_are_given_again_the_lowest_first) {
    struct route_options o = route_options_default;
    o.workers_max = 4;
    struct route *r = route_create(&o);
    const char *const ids[] = {"a", "b", "c", "d"};
    for (int i = 0; i < 4; i++) util_add(r, ids[i]);
    for (uint32_t i = 0; i < 3000; i++) {
        const char *id = ids[i % 3];
        CHECK_EQ(route_engine_remove(r, span_str(id), UTIL_BEGIN), TARN_OK);
        CHECK_EQ(route_worker_find(r, span_str(id), 0), ROUTE_NO_WORKER);
        while (route_tick(r, UTIL_BEGIN) == 0) continue;
        util_add(r, id);
        CHECK_EQ(route_worker_find(r, span_str(id), 0), i % 3);
        route_check(r);
    }
    route_destroy(&r);
}

TEST(what_one_was_about_to_compute_its_successor_is_not) {
    struct route *r = util_route("tarn", 1);
    struct util_prompt p;
    struct route_decision d;
    util_prompt(&p, 1, 20);
    struct route_request q = util_prompt_request("x", &p);
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    q.id = SPAN("y");
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_EQ(d.ahead_tokens, 20 * UTIL_BLOCK);
    replace(r, "e0", "other");
    CHECK_EQ(route_worker_find(r, SPAN("other"), 0), 0);
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_EQ(d.ahead_tokens, 0);
    CHECK_EQ(route_figures_get(r)->route_removals, 2);
    route_destroy(&r);
}

/* Nobody takes, or gives, in the place of who left: an order is of both as they were. */
TEST(who_left_gives_no_copy_and_nobody_in_its_place) {
    struct route *r = util_route("prefix-tree", 2);
    struct util_prompt p;
    struct route_copy copy;
    struct route_decision d;
    uint64_t now = UTIL_BEGIN;
    util_prompt(&p, 1, 48);
    util_stored(r, "e0", &p, 48, ROUTE_TIER_DEVICE);
    struct route_request q = util_prompt_request("x", &p);
    q.length_tokens += 256;
    for (int i = 0; i < 2000; i++, now += 4 * UTIL_MS) {
        CHECK_EQ(route_decide(r, &q, now, &d), TARN_OK);
        CHECK_EQ(route_done(r, q.id, 1, false, now), TARN_OK);
    }
    CHECK_EQ(route_figures_get(r)->route_copies, 1);
    replace(r, "e0", "other");
    CHECK_EQ(route_worker_find(r, SPAN("other"), 0), 0);
    CHECK(!route_copy_take(r, &copy));
    route_destroy(&r);
}

/* Nor has it its blocks; what is of a holder that left does not keep its number. */
TEST(blocks_go_with_their_engine) {
    struct route *r = util_route("tarn", 1);
    struct util_prompt p;
    struct route_matched m;
    util_prompt(&p, 1, 20);
    struct route_request q = util_prompt_request("x", &p);
    for (int i = 0; i < 3000; i++) {
        util_stored(r, "e0", &p, 20, ROUTE_TIER_DEVICE);
        CHECK_EQ(route_match(r, &q, &m, 1), 1);
        replace(r, "e0", "e0");
        CHECK_EQ(route_match(r, &q, &m, 1), 0);
        while (route_tick(r, UTIL_BEGIN) == 0) continue;
    }
    CHECK_EQ(route_index_stats(route_index(r)).route_holders, 1);
    route_index_check(route_index(r));
    route_destroy(&r);
}

/* p computes, d decodes. */
static struct route *apart(void) {
    struct route *r = util_route("tarn", 0);
    for (int i = 0; i < 2; i++) {
        struct route_engine_spec s = util_spec(i == 0 ? "p" : "d");
        s.role = i == 0 ? ROUTE_PREFILL : ROUTE_DECODE;
        CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    }
    return r;
}

/* The prefill has ended on an engine that left; another one has its number. It is chosen anew. */
TEST(a_prefill_is_of_the_engine_that_computed_it) {
    struct route *r = apart();
    util_decide(r, "x", 1000, UTIL_BEGIN);
    CHECK_EQ(route_first(r, SPAN("x"), UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_engine_remove(r, SPAN("p"), UTIL_BEGIN), TARN_OK);
    struct route_engine_spec s = util_spec("p2");
    s.role = ROUTE_PREFILL;
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_worker_find(r, SPAN("p2"), 0), 0);
    struct route_decision d = util_decide(r, "x", 1000, UTIL_BEGIN);
    CHECK_STR(d.prefill, "p2");
    CHECK(d.ttft_ms > 10); /* it is computed again */
    CHECK_EQ(util_view(r, "p2").prefills, 1);
    CHECK_EQ(util_view(r, "d").decodes, 0);
    route_check(r);
    route_destroy(&r);
}

TEST(an_explanation_names_no_successor) {
    struct route *r = util_route("tarn", 2);
    struct route_explained e;
    struct route_explained_candidate c;
    util_decide(r, "x", 100, UTIL_BEGIN);
    replace(r, "e0", "other");
    CHECK_EQ(route_explain(r, SPAN("x"), &e), TARN_OK);
    int gone = 0;
    for (uint32_t i = 0; i < e.count; i++) {
        route_explain_candidate(r, &e, i, &c);
        CHECK(c.engine == NULL || strcmp(c.engine, "e1") == 0);
        gone += c.engine == NULL;
    }
    CHECK_EQ(gone, 1);
    route_destroy(&r);
}

/* --- failures count against who had the request --- */

static void request(struct route *r, bool first, bool failed) {
    util_decide(r, "x", 100, UTIL_BEGIN);
    if (first) CHECK_EQ(route_first(r, SPAN("x"), UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_done(r, SPAN("x"), 10, failed, UTIL_BEGIN), TARN_OK);
}

TEST(a_failure_before_the_first_token_is_the_prefill_s) {
    struct route *r = apart();
    request(r, false, true);
    request(r, false, true);
    CHECK_EQ(util_view(r, "p").state, ROUTE_BACKS_OFF);
    CHECK_EQ(util_view(r, "p").failed, 2);
    CHECK_EQ(util_view(r, "d").state, ROUTE_UP);
    CHECK_EQ(util_view(r, "d").failed, 0);
    route_destroy(&r);
}

TEST(a_failure_behind_it_is_the_decode_s_and_an_end_ends_the_row) {
    struct route *r = apart();
    request(r, true, true);
    request(r, true, false);
    request(r, true, true);
    CHECK_EQ(util_view(r, "d").state, ROUTE_UP);
    request(r, true, true);
    CHECK_EQ(util_view(r, "d").state, ROUTE_BACKS_OFF);
    CHECK_EQ(util_view(r, "p").state, ROUTE_UP);
    route_destroy(&r);
}

/* --- whom an engine serves --- */

/* Adapters: of e0 none, of e1 "a", of e2 any. */
TEST(matches_and_sizes_are_of_the_adapter) {
    struct route *r = util_route("tarn", 1);
    struct util_prompt p;
    struct route_matched m[3];
    uint32_t sizes[ROUTE_CHAINS_MAX];
    struct route_decision d;
    for (int i = 1; i < 3; i++) {
        struct route_engine_spec s = util_spec(i == 1 ? "e1" : "e2");
        s.lora = i == 1 ? SPAN("a") : SPAN("*");
        s.block_tokens = i == 1 ? UTIL_BLOCK : 4 * UTIL_BLOCK;
        CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    }
    util_prompt(&p, 1, 20);
    util_stored(r, "e0", &p, 20, ROUTE_TIER_DEVICE);
    util_stored(r, "e1", &p, 10, ROUTE_TIER_DEVICE);
    struct route_request q = util_prompt_request("x", &p);
    CHECK_EQ(route_match(r, &q, m, 3), 1);
    CHECK_STR(m[0].engine, "e0");
    q.lora = SPAN("a");
    CHECK_EQ(route_match(r, &q, m, 3), 1);
    CHECK_STR(m[0].engine, "e1");
    CHECK_EQ(route_block_sizes(r, SPAN("m"), SPAN("a"), sizes), 2);
    CHECK_EQ(route_block_sizes(r, SPAN("m"), SPAN("b"), sizes), 1);
    CHECK_EQ(sizes[0], 4 * UTIL_BLOCK);
    CHECK_EQ(route_block_sizes(r, SPAN("other"), SPAN(""), sizes), 0);
    q = util_request("x", 100);
    for (int i = 0; i < 20; i++) {
        q.lora = i % 2 == 0 ? SPAN("a") : SPAN("b");
        CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
        CHECK(strcmp(d.prefill, "e0") != 0);
        if (i % 2 == 1) CHECK_STR(d.prefill, "e2");
    }
    route_destroy(&r);
}

/* "default" is everybody's. */
TEST(the_default_tenant_s_engines_serve_all) {
    struct route *r = util_route("tarn", 0);
    struct route_engine_spec s = util_spec("e0");
    struct route_request q = util_request("x", 100);
    struct route_decision d;
    s.tenant = SPAN("default");
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    q.tenant = SPAN("t");
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    route_destroy(&r);
}

/* Each of several ids that are excluded is, with all its ranks. */
TEST(all_that_are_excluded_are) {
    struct route *r = util_route("round-robin", 4);
    struct route_engine_spec s = util_spec("wide");
    struct route_decision d;
    s.ranks = 3;
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    struct route_request q = util_request("x", 100);
    q.exclude = (struct span[]){SPAN("e0"), SPAN("nobody"), SPAN("wide"), SPAN("e3")};
    q.exclude_count = 4;
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
        CHECK(strcmp(d.prefill, "e1") == 0 || strcmp(d.prefill, "e2") == 0);
    }
    route_destroy(&r);
}

/* --- a flood, in whole --- */

/* Four engines; a sends a hundred times what b does, who has a tenth of them. b is never refused,
 * and waits no longer than tenants may fill the queues, and for the prefills in hand. */
TEST(whom_a_flood_does_not_touch) {
    struct route_options o = route_options_default;
    o.tenant_wait_ms = 50;
    struct route *r = route_create(&o);
    struct route_decision d;
    for (int i = 0; i < 4; i++) util_add(r, i == 0 ? "e0" : i == 1 ? "e1" : i == 2 ? "e2" : "e3");
    static char ids[4][4096][16];
    uint32_t begun[4] = {0}, ended[4] = {0}, number = 0, floods = 0;
    double worst_ms = 0;
    for (uint64_t ms = 0; ms < 3000; ms++) {
        uint64_t now = UTIL_BEGIN + ms * UTIL_MS;
        /* Each engine computes one of 5 ms after the other. */
        for (int i = 0; ms % 5 == 4 && i < 4; i++) {
            if (ended[i] == begun[i]) continue;
            struct span id = span_str(ids[i][ended[i]++ % 4096]);
            CHECK_EQ(route_first(r, id, now), TARN_OK);
            CHECK_EQ(route_done(r, id, 1, false, now), TARN_OK);
        }
        for (uint32_t k = 0; k < 9; k++) { /* a: 8 in each millisecond, b: one in 12 */
            struct route_request q = util_request("", 400);
            char id[16];
            bool flood = k < 8;
            if (!flood && ms % 12 != 0) continue;
            snprintf(id, sizeof(id), "%u", number++);
            q.id = span_str(id);
            q.tenant = flood ? SPAN("a") : SPAN("b");
            tarn_status status = route_decide(r, &q, now, &d);
            CHECK(flood || status == TARN_OK);
            if (status != TARN_OK) continue;
            floods += flood;
            if (!flood && d.ttft_ms > worst_ms) worst_ms = d.ttft_ms;
            CHECK(begun[d.prefill_worker] - ended[d.prefill_worker] < 4096);
            snprintf(ids[d.prefill_worker][begun[d.prefill_worker]++ % 4096], 16, "%s", id);
        }
    }
    CHECK(worst_ms < 50 + 5 + 3 * 5);
    CHECK(floods > 1800); /* and a has what is left: 2400 fit in all, 250 are b's */
    route_check(r);
    route_destroy(&r);
}

/* While one engine is idle nobody is held back, however much one has waiting on the others. */
TEST(nobody_waits_while_an_engine_is_idle) {
    struct route_options o = route_options_default;
    o.tenant_wait_ms = 10;
    struct route *r = route_create(&o);
    struct route_request q = util_request("", 1000);
    struct route_decision d;
    const struct span other = SPAN("e1");
    util_add(r, "e0");
    util_add(r, "e1");
    q.id = SPAN("first"), q.tenant = SPAN("b"), q.priority = 1;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_EQ(route_done(r, q.id, 1, false, UTIL_BEGIN), TARN_OK);
    q.tenant = SPAN("a");
    for (int i = 0; i < 20; i++) {
        char id[16];
        snprintf(id, sizeof(id), "%d", i);
        q.id = span_str(id);
        q.exclude = &other;
        q.exclude_count = 1;
        CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    }
    q.id = SPAN("x"), q.exclude_count = 0, q.priority = 0;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "e1");
    q.id = SPAN("y"), q.exclude_count = 1;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_ELATER);
    route_destroy(&r);
}

TEST_MAIN()
