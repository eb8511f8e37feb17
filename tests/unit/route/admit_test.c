/* Times that are kept or refused, tenants and their shares, priorities. */
#include "util.h"

static tarn_status decide(struct route *r, struct route_request *q, uint64_t now_us,
                          struct route_decision *d) {
    static unsigned number;
    static char id[16]; /* the caller tells of it by q->id */
    snprintf(id, sizeof(id), "r%u", number++);
    q->id = span_str(id);
    tarn_status status = route_decide(r, q, now_us, d);
    route_check(r);
    return status;
}

/* 11 ms each: the third in the queue of one engine has its first token after 33 ms. */
TEST(ttft_refuses_and_says_when) {
    struct route *r = util_route("tarn", 1);
    struct route_request q = util_request("", 1000);
    struct route_decision d;
    q.ttft_ms = 25.5;
    CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_ELATER);
    CHECK_EQ(d.retry_ms, 8);
    CHECK(strstr(route_error(r), "8 ms") != NULL);
    CHECK_EQ(decide(r, &q, UTIL_BEGIN + 7 * UTIL_MS, &d), TARN_ELATER);
    CHECK_EQ(decide(r, &q, UTIL_BEGIN + 9 * UTIL_MS, &d), TARN_OK);
    CHECK_EQ(route_figures_get(r)->route_overloaded, 2);
    q.ttft_ms = 5;
    CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_ELATER);
    CHECK_EQ(d.retry_ms, 0);
    route_destroy(&r);
}

TEST(who_keeps_the_time_is_preferred) {
    struct route *r = util_route("prefix-tree", 2);
    struct util_prompt p;
    struct route_decision d;
    util_prompt(&p, 1, 60);
    util_stored(r, "e0", &p, 60, ROUTE_TIER_DEVICE);
    struct route_request q = util_prompt_request("", &p);
    CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "e0");
    for (int i = 0; i < 20; i++) CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "e0");
    q.ttft_ms = 15; /* 21 before it there, of 1 ms each; 10.6 ms on the idle one */
    CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "e1");
    route_destroy(&r);
}

TEST(low_priorities_are_refused_first) {
    struct route *r = util_route("tarn", 1);
    struct route_request q = util_request("", 1000);
    struct route_decision d;
    q.ttft_ms = 40;
    CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    q.priority = -1; /* has 20 ms, and would take 22 */
    CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_ELATER);
    q.priority = 0;
    CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    route_destroy(&r);
}

/* A step is 10 ms and 100 us a sequence. */
TEST(tbt_refuses_and_says_when) {
    struct route *r = util_route("tarn", 0);
    struct route_engine_spec s = util_spec("e0");
    s.prior.decode_sequence_us = 100;
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    struct route_request q = util_request("", 100);
    struct route_decision d;
    uint64_t now = UTIL_BEGIN;
    q.tbt_ms = 11;
    int running = 0;
    while (decide(r, &q, now, &d) == TARN_OK) {
        CHECK_EQ(route_first(r, q.id, now + 2 * UTIL_MS), TARN_OK);
        now += 2000 * UTIL_MS; /* a low load of prefills */
        running++;
        CHECK(running <= 12);
    }
    CHECK(running >= 8);
    CHECK(d.retry_ms > 0);
    CHECK(strstr(route_error(r), "TBT") != NULL);
    route_destroy(&r);
}

/* Where a request asks for nothing. */
TEST(the_options_hold_for_who_does_not_ask) {
    struct route_options o = route_options_default;
    o.ttft_ms = 25.5;
    struct route *r = route_create(&o);
    struct route_request q = util_request("", 1000);
    struct route_decision d;
    util_add(r, "e0");
    CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_ELATER);
    q.ttft_ms = 100;
    CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    route_destroy(&r);
}

/* The engine that decodes has to keep the TBT, the one that prefills has none. With a step of 10 ms
 * and 1 ms a sequence, 3 fit into 13 ms; then one has to end, which takes a third of 100 steps. */
TEST(tbt_is_of_the_engine_that_decodes) {
    struct route_options o = route_options_default;
    o.output_tokens = 100;
    struct route *r = route_create(&o);
    struct route_request q = util_request("", 100);
    struct route_decision d;
    for (int i = 0; i < 2; i++) {
        struct route_engine_spec s = util_spec(i == 0 ? "p" : "d");
        s.role = i == 0 ? ROUTE_PREFILL : ROUTE_DECODE;
        s.prior.decode_step_us = i == 0 ? 1000000 : 10000;
        s.prior.decode_sequence_us = 1000;
        CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    }
    q.tbt_ms = 13.5;
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
        CHECK(d.tbt_ms > 10.9 + i && d.tbt_ms < 11.1 + i);
        CHECK_EQ(route_first(r, q.id, UTIL_BEGIN), TARN_OK);
    }
    CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_ELATER);
    CHECK(d.retry_ms > 460 && d.retry_ms < 475); /* 100 steps of 14 ms, by 3 */
    q.tbt_ms = 10;
    CHECK_EQ(decide(r, &q, UTIL_BEGIN, &d), TARN_ELATER);
    CHECK_EQ(d.retry_ms, 0); /* one alone takes 11 */
    route_destroy(&r);
}

/* --- tenants --- */

struct share {
    struct route *r;
    uint64_t now_us;
    int admitted[3];
};

/* Everybody asks for so much in each millisecond, for a while; an engine computes what it has in
 * its time. */
static void share_run(struct share *s, const int asks[3], int ms) {
    static char ids[4096][16];
    static unsigned begun, ended;
    const struct span names[3] = {{"a", 1}, {"b", 1}, {"c", 1}};
    begun = ended = 0;
    for (int t = 0; t < ms; t++, s->now_us += UTIL_MS) {
        for (int i = 0; i < 3; i++)
            for (int k = 0; k < asks[i]; k++) {
                struct route_request q = util_request("", 400); /* 5 ms */
                struct route_decision d;
                q.tenant = names[i];
                snprintf(ids[begun % 4096], 16, "%d-%u", t, begun);
                q.id = span_str(ids[begun % 4096]);
                if (route_decide(s->r, &q, s->now_us, &d) != TARN_OK) {
                    CHECK(d.retry_ms > 0);
                    continue;
                }
                s->admitted[i]++;
                begun++;
            }
        CHECK(begun - ended < 4096);
        if (t % 5 == 4 && ended < begun) {
            CHECK_EQ(route_first(s->r, span_str(ids[ended % 4096]), s->now_us), TARN_OK);
            CHECK_EQ(route_done(s->r, span_str(ids[ended++ % 4096]), 1, false, s->now_us), TARN_OK);
        }
    }
    route_check(s->r);
}

static struct share share_begin(uint32_t wait_ms) {
    struct route_options o = route_options_default;
    o.tenant_wait_ms = wait_ms;
    struct share s = {.r = route_create(&o), .now_us = UTIL_BEGIN};
    util_add(s.r, "e0");
    return s;
}

TEST(one_tenant_alone_may_fill_the_queues) {
    struct share s = share_begin(50);
    share_run(&s, (int[3]){1, 0, 0}, 1000);
    CHECK_EQ(s.admitted[0], 1000);
    route_destroy(&s.r);
}

/* b asks for a tenth of the engine, and gets all of it; a floods, and gets the rest. */
TEST(a_flood_takes_nothing_from_others) {
    struct share s = share_begin(50);
    struct route_request q = util_request("first", 10);
    struct route_decision d;
    q.tenant = SPAN("b");
    CHECK_EQ(route_decide(s.r, &q, s.now_us, &d), TARN_OK);
    CHECK_EQ(route_done(s.r, q.id, 1, false, s.now_us), TARN_OK);
    int asked = 0;
    for (int i = 0; i < 60; i++) {
        share_run(&s, (int[3]){3, 0, 0}, 50);
        share_run(&s, (int[3]){0, 1, 0}, 1);
        asked++;
        struct route_engine_view v = util_view(s.r, "e0");
        CHECK(v.prefill_wait_us < 1000 * (50 + 5 + 5 + 5));
        for (int k = 0; k < 400 && util_view(s.r, "e0").prefills > 0; k++) s.now_us += UTIL_MS;
        /* what is left over of the round's bookkeeping ends with its leases */
        s.now_us += 200 * 1000 * UTIL_MS;
        while (route_tick(s.r, s.now_us) == 0) continue;
        CHECK_EQ(route_decide(s.r, &q, s.now_us, &d), TARN_OK);
        CHECK_EQ(route_done(s.r, q.id, 1, false, s.now_us), TARN_OK);
    }
    CHECK_EQ(s.admitted[1], asked);
    CHECK(route_figures_get(s.r)->route_over_share > 1000);
    route_destroy(&s.r);
}

TEST(floods_share_by_weight) {
    struct share s = share_begin(50);
    CHECK_EQ(route_tenant_weight(s.r, SPAN("a"), 3, s.now_us), TARN_OK);
    CHECK_EQ(route_tenant_weight(s.r, SPAN("a"), 0, s.now_us), TARN_EINVAL);
    share_run(&s, (int[3]){1, 4, 0}, 5000);
    double ratio = (double)s.admitted[0] / s.admitted[1];
    CHECK(ratio > 2.4 && ratio < 3.6);
    route_destroy(&s.r);
    s = share_begin(50); /* and whoever asks first has nothing of it */
    CHECK_EQ(route_tenant_weight(s.r, SPAN("b"), 3, s.now_us), TARN_OK);
    share_run(&s, (int[3]){4, 1, 0}, 5000);
    ratio = (double)s.admitted[1] / s.admitted[0];
    CHECK(ratio > 2.4 && ratio < 3.6);
    route_destroy(&s.r);
}

/* Whoever asked a minute ago is not there, and nobody is held back for him. */
TEST(who_went_has_no_share) {
    struct share s = share_begin(50);
    share_run(&s, (int[3]){3, 1, 0}, 100);
    CHECK(route_figures_get(s.r)->route_over_share > 0);
    s.now_us += 61 * 1000 * UTIL_MS;
    uint64_t before = route_figures_get(s.r)->route_over_share;
    share_run(&s, (int[3]){3, 0, 0}, 100);
    CHECK_EQ(route_figures_get(s.r)->route_over_share, before);
    route_destroy(&s.r);
}

TEST(refusals_are_counted_and_weights_kept) {
    struct route_options o = route_options_default;
    o.tenants_max = 3;
    o.tenant_wait_ms = 50;
    struct share s = {.r = route_create(&o), .now_us = UTIL_BEGIN};
    struct route_tenant_view v;
    struct route_request q = util_request("x", 10);
    struct route_decision d;
    util_add(s.r, "e0");
    share_run(&s, (int[3]){1, 1, 0}, 300);
    CHECK_EQ(route_tenant_weight(s.r, SPAN("a"), 5, s.now_us), TARN_OK); /* while it waits */
    route_check(s.r);
    uint64_t refused = 0;
    for (const void *at = NULL; route_tenant_next(s.r, &at, &v);) refused += v.refused;
    CHECK(refused > 0 && refused == route_figures_get(s.r)->route_over_share);
    s.now_us += 600 * 1000 * UTIL_MS;
    while (route_tick(s.r, s.now_us) == 0) continue;
    for (int i = 0; i < 10; i++) {
        char name[16];
        snprintf(name, sizeof(name), "t%d", i);
        q.tenant = span_str(name);
        CHECK_EQ(route_decide(s.r, &q, s.now_us, &d), TARN_OK);
    }
    bool kept = false;
    for (const void *at = NULL; route_tenant_next(s.r, &at, &v);)
        kept |= span_eq(v.name, SPAN("a")) && v.weight == 5;
    CHECK(kept);
    route_destroy(&s.r);
}

TEST(priority_passes_the_shares) {
    struct share s = share_begin(20);
    share_run(&s, (int[3]){1, 1, 0}, 200);
    struct route_request q = util_request("", 400);
    struct route_decision d;
    q.tenant = SPAN("a");
    tarn_status status = TARN_OK;
    for (int i = 0; i < 100 && status == TARN_OK; i++) status = decide(s.r, &q, s.now_us, &d);
    CHECK_EQ(status, TARN_ELATER);
    CHECK(strstr(route_error(s.r), "share") != NULL);
    q.priority = 1;
    CHECK_EQ(decide(s.r, &q, s.now_us, &d), TARN_OK);
    route_destroy(&s.r);
}

TEST(no_name_is_the_default_tenant) {
    struct route *r = util_route("tarn", 1);
    struct route_tenant_view v;
    const void *cursor = NULL;
    CHECK_EQ(route_tenant_weight(r, SPAN(""), 2, UTIL_BEGIN), TARN_OK);
    util_decide(r, "x", 10, UTIL_BEGIN);
    CHECK(route_tenant_next(r, &cursor, &v));
    CHECK(span_eq(v.name, SPAN("default")) && v.weight == 2 && v.admitted == 1);
    CHECK(!route_tenant_next(r, &cursor, &v));
    route_destroy(&r);
}

TEST(tenants_are_bounded) {
    struct route_options o = route_options_default;
    o.tenants_max = 8;
    struct route *r = route_create(&o);
    util_add(r, "e0");
    for (int i = 0; i < 100; i++) {
        char name[16];
        struct route_request q = util_request("x", 10);
        struct route_decision d;
        snprintf(name, sizeof(name), "t%d", i);
        q.tenant = span_str(name);
        CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    }
    const void *cursor = NULL;
    struct route_tenant_view v;
    int n = 0;
    while (route_tenant_next(r, &cursor, &v)) n++;
    CHECK_EQ(n, 8);
    route_destroy(&r);
}

TEST_MAIN()
