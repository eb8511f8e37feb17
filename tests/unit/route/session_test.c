/* Sessions: where nobody knows a prefix the next turn goes where the last one was, and where the
 * index knows, they change nothing. */
#include "util.h"
#include "base/rng.h"
#include "route/internal.h"

#define MINUTE (60000 * UTIL_MS)

static struct route_request of_session(const char *id, const char *session, uint32_t tokens) {
    struct route_request q = util_request(id, tokens);
    q.session = span_str(session);
    return q;
}

static struct route_decision decide(struct route *r, const struct route_request *q,
                                    uint64_t now_us) {
    struct route_decision d;
    CHECK_EQ(route_decide(r, q, now_us, &d), TARN_OK);
    return d;
}

/* A whole turn, of 100 tokens of answer. */
static struct route_decision turn(struct route *r, const char *session, uint32_t tokens,
                                  uint64_t now_us) {
    struct route_request q = of_session("turn", session, tokens);
    struct route_decision d = decide(r, &q, now_us);
    CHECK_EQ(route_first(r, q.id, now_us), TARN_OK);
    CHECK_EQ(route_done(r, q.id, 100, false, now_us), TARN_OK);
    route_check(r);
    return d;
}

/* What a turn of 10,000 tokens would find; it is not told of. */
static uint32_t found(struct route *r, const char *session, uint64_t now_us) {
    struct route_request q = of_session("look", session, 10000);
    struct route_decision d = decide(r, &q, now_us);
    CHECK_EQ(route_done(r, q.id, 0, true, now_us), TARN_OK);
    return d.session_tokens;
}

TEST(a_session_stays_where_it_was) {
    struct route *r = util_route("tarn", 8);
    char engine[20][16], name[20][16];
    for (int i = 0; i < 20; i++) {
        snprintf(name[i], sizeof(name[i]), "s%d", i);
        struct route_decision d = turn(r, name[i], 1000, UTIL_BEGIN);
        CHECK_EQ(d.session_tokens, 0);
        snprintf(engine[i], sizeof(engine[i]), "%s", d.prefill);
    }
    for (int i = 0; i < 20; i++) {
        struct route_decision d = turn(r, name[i], 1200, UTIL_BEGIN);
        CHECK_STR(d.prefill, engine[i]);
        CHECK_EQ(d.session_tokens, 1088); /* of 1100 the whole blocks */
        CHECK_WITHIN(d.ttft_ms, 2.11, 2.13);
        CHECK_EQ(d.hit_tokens[0] + d.hit_tokens[1] + d.hit_tokens[2] + d.ahead_tokens, 0);
        CHECK_EQ(turn(r, name[i], 1310, UTIL_BEGIN).session_tokens, 1280); /* 1200 and 100 */
    }
    CHECK_EQ(route_figures_get(r)->route_session_tokens, 20 * (1088 + 1280));
    CHECK_EQ(route_figures_get(r)->route_ahead_tokens, 0);
    CHECK_EQ(route_figures_get(r)->route_sessions, 20);
    route_destroy(&r);
}

TEST(it_is_no_more_than_the_prompt) {
    struct route *r = util_route("tarn", 2);
    turn(r, "s", 1000, UTIL_BEGIN);
    CHECK_EQ(turn(r, "s", 500, UTIL_BEGIN).session_tokens, 480); /* 500 less a block, in blocks */
    CHECK_EQ(turn(r, "s", 1000, UTIL_BEGIN).session_tokens, 976);
    CHECK_EQ(turn(r, "s", 16, UTIL_BEGIN).session_tokens, 0);
    CHECK_EQ(found(r, "s", UTIL_BEGIN), 1088); /* nor do short ones shorten it */
    struct route_request q = of_session("x", "s", 1000);
    static char text[ROUTE_NAME_MAX + 1];
    struct route_decision d;
    q.session = span_of(text, sizeof(text));
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_EINVAL);
    route_destroy(&r);
}

/* It saves 10.88 ms, and goes elsewhere where it would wait for longer; from then on it is there.
 * A short request beside it, which goes elsewhere, does not take it along. */
TEST(load_counts_all_the_same) {
    struct route *r = util_route("tarn", 2);
    char there[16];
    snprintf(there, sizeof(there), "%s", turn(r, "s", 1000, UTIL_BEGIN).prefill);
    const char *other = strcmp(there, "e0") == 0 ? "e1" : "e0";
    util_decide_without(r, "busy", 3000, other, UTIL_BEGIN);
    CHECK_STR(turn(r, "s", 100, UTIL_BEGIN).prefill, other);
    struct route_decision d = turn(r, "s", 1200, UTIL_BEGIN);
    CHECK_STR(d.prefill, other);
    CHECK_EQ(d.session_tokens, 0);
    CHECK_EQ(route_done(r, SPAN("busy"), 0, false, UTIL_BEGIN), TARN_OK);
    d = turn(r, "s", 1400, UTIL_BEGIN);
    CHECK_STR(d.prefill, other);
    CHECK_EQ(d.session_tokens, 1296);
    route_destroy(&r);
}

TEST(it_is_one_of_a_tenant_a_model_and_an_adapter) {
    struct route *r = util_route("tarn", 0);
    struct route_engine_spec s = util_spec("e0");
    s.lora = SPAN("*");
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    s = util_spec("e1");
    s.model = SPAN("other");
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    turn(r, "s", 1000, UTIL_BEGIN);
    for (int i = 0; i < 5; i++) {
        struct route_request q = of_session("x", i == 0 ? "t" : "s", i == 3 ? 5000 : 1200);
        q.tenant = i == 1 ? SPAN("t") : i == 4 ? SPAN("default") : SPAN("");
        if (i == 2) q.lora = SPAN("l");
        if (i == 3) q.model = SPAN("other");
        CHECK_EQ(decide(r, &q, UTIL_BEGIN).session_tokens, i == 4 ? 1088 : 0);
        CHECK_EQ(route_done(r, q.id, 0, i != 3, UTIL_BEGIN), TARN_OK);
        turn(r, "none", 1, UTIL_BEGIN); /* a success: failures are not in a row */
    }
    route_destroy(&r);
}

/* --- how it ends --- */

/* A cache of 200 blocks. What is taken in pushes the end out first, then all of it. */
TEST(a_cache_holds_what_it_holds) {
    for (int how = 0; how < 2; how++) {
        struct route *r = util_route("tarn", 0);
        struct route_engine_spec s = util_spec("e0");
        struct route_load load = {.kv_blocks = 200};
        s.kv_blocks = how == 0 ? 200 : 0;
        CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
        if (how == 1) CHECK_EQ(route_engine_load(r, SPAN("e0"), 0, &load, UTIL_BEGIN), TARN_OK);
        turn(r, "s", 1500, UTIL_BEGIN);
        CHECK_EQ(turn(r, "", 1000, UTIL_BEGIN).session_tokens, 0);
        CHECK_EQ(turn(r, "s", 1700, UTIL_BEGIN).session_tokens, 1600); /* 1100 have come */
        for (int i = 0; i < 2; i++) turn(r, "", 1000, UTIL_BEGIN);
        CHECK_EQ(turn(r, "s", 1900, UTIL_BEGIN).session_tokens, 992); /* 3200 less 2200 */
        for (int i = 0; i < 3; i++) turn(r, "", 1000, UTIL_BEGIN);
        CHECK_EQ(turn(r, "s", 1900, UTIL_BEGIN).session_tokens, 0);
        route_destroy(&r);
    }
}

TEST(a_quarter_of_an_hour_is_long) {
    struct route *r = util_route("tarn", 2);
    turn(r, "s", 1000, UTIL_BEGIN);
    CHECK_EQ(turn(r, "s", 1200, UTIL_BEGIN + 14 * MINUTE).session_tokens, 1088);
    CHECK_EQ(turn(r, "s", 1400, UTIL_BEGIN + 28 * MINUTE).session_tokens, 1296);
    CHECK_EQ(turn(r, "s", 1600, UTIL_BEGIN + 44 * MINUTE).session_tokens, 0);
    route_destroy(&r);
}

TEST(it_ends_with_its_engine) {
    struct route *r = util_route("tarn", 0);
    struct route_engine_spec spec = util_spec("e0");
    spec.kv_blocks = 0;
    CHECK_EQ(route_engine_add(r, &spec, UTIL_BEGIN), TARN_OK);
    turn(r, "s", 1000, UTIL_BEGIN);
    util_add(r, "e1");
    CHECK_EQ(route_engine_drain(r, SPAN("e0"), true, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(found(r, "s", UTIL_BEGIN), 0);
    CHECK_EQ(route_engine_drain(r, SPAN("e0"), false, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(turn(r, "s", 1200, UTIL_BEGIN).session_tokens, 1088);
    CHECK_EQ(route_engine_remove(r, SPAN("e0"), UTIL_BEGIN), TARN_OK);
    spec.id = SPAN("e2");
    CHECK_EQ(route_engine_add(r, &spec, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_worker_find(r, spec.id, 0), 0); /* its number */
    CHECK_EQ(found(r, "s", UTIL_BEGIN), 0);
    route_destroy(&r);
}

/* A session ends by its own failure, all of an engine's by failures in a row; not by one that was
 * another engine's. */
TEST(it_ends_by_failures) {
    struct route *r = util_route("tarn", 1);
    uint64_t now = UTIL_BEGIN;
    turn(r, "s", 1000, now);
    turn(r, "t", 1000, now);
    CHECK_EQ(found(r, "s", now), 1088);
    CHECK_EQ(turn(r, "s", 1200, now).session_tokens, 0);
    CHECK_EQ(route_figures_get(r)->route_sessions, 2);
    CHECK_EQ(turn(r, "t", 1200, now).session_tokens, 1088);
    util_decide(r, "x", 100, now);
    CHECK_EQ(route_done(r, SPAN("x"), 0, true, now), TARN_OK);
    util_decide(r, "x", 100, now);
    CHECK_EQ(route_done(r, SPAN("x"), 0, true, now), TARN_OK);
    now += MINUTE / 2; /* its rest is over */
    CHECK_EQ(turn(r, "t", 1400, now).session_tokens, 0);
    CHECK_EQ(turn(r, "t", 1600, now).session_tokens, 1488);
    util_add(r, "e1");
    struct route_request q = of_session("x", "t", 1800);
    q.exclude = &SPAN("e0");
    q.exclude_count = 1;
    CHECK_STR(decide(r, &q, now).prefill, "e1");
    CHECK_EQ(route_done(r, q.id, 0, true, now), TARN_OK);
    CHECK_EQ(turn(r, "t", 1800, now).session_tokens, 1696);
    route_destroy(&r);
}

/* --- who has what --- */

/* Who computes prompts alone has no answers; who is not told of has what was told of. */
TEST(an_answer_is_where_it_was_decoded) {
    struct route *r = util_route("tarn", 0);
    for (int i = 0; i < 2; i++) {
        struct route_engine_spec s = util_spec(i == 0 ? "p" : "d");
        s.role = i == 0 ? ROUTE_PREFILL : ROUTE_DECODE;
        CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    }
    turn(r, "s", 1000, UTIL_BEGIN);
    CHECK_EQ(found(r, "s", UTIL_BEGIN), 992);
    route_destroy(&r);
    r = util_route("tarn", 1);
    struct route_request q = of_session("x", "s", 1000);
    decide(r, &q, UTIL_BEGIN);
    CHECK_EQ(route_figures_get(r)->route_sessions, 0);
    decide(r, &q, UTIL_BEGIN); /* once more: it has not computed it for itself */
    CHECK_EQ(route_first(r, q.id, UTIL_BEGIN), TARN_OK);
    q = of_session("y", "s", 1000);
    CHECK_EQ(decide(r, &q, UTIL_BEGIN).session_tokens, 976); /* beside it */
    route_destroy(&r);
}

/* Prefill of 1 ms and 10 us a token; what was guessed may have been computed. */
TEST(guesses_teach_nothing) {
    struct route *r = util_route("tarn", 1);
    for (uint64_t i = 0; i < 6; i++) {
        uint64_t now = UTIL_BEGIN + i * 1000 * UTIL_MS;
        struct route_request q = of_session("x", i < 3 ? "" : "s", 1000);
        decide(r, &q, now);
        CHECK_EQ(route_first(r, q.id, now + 11 * UTIL_MS), TARN_OK);
        CHECK_EQ(route_done(r, q.id, 0, false, now + 11 * UTIL_MS), TARN_OK);
    }
    /* The first of the session is none; it is learnt when the next one comes. */
    CHECK_EQ(util_view(r, "e0").prefill_seen, 4);
    CHECK_WITHIN(util_view(r, "e0").prefill_token_us, 9.99, 10.01);
    route_destroy(&r);
}

TEST(it_is_explained_apart) {
    struct route *r = util_route("tarn", 2);
    struct route_explained e;
    struct route_explained_candidate c;
    turn(r, "s", 1000, UTIL_BEGIN);
    turn(r, "s", 1200, UTIL_BEGIN);
    CHECK_EQ(route_explain(r, SPAN("turn"), &e), TARN_OK);
    CHECK_EQ(e.count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        route_explain_candidate(r, &e, i, &c);
        CHECK_EQ(c.session_tokens, i == e.chosen ? 1088 : 0);
        CHECK_EQ(c.hit_tokens + c.ahead_tokens, 0);
        CHECK_EQ(c.new_tokens, i == e.chosen ? 112 : 1200);
    }
    route_destroy(&r);
}

/* --- where the index knows --- */

struct twin {
    struct route *r;
    struct route_decision d;
};

static void twin_begin(struct twin *t, const char *policy) {
    struct route_options o = route_options_default;
    o.policy = policy;
    o.decisions_max = 0;
    t->r = route_create(&o);
    for (uint32_t i = 0; i < 4; i++) {
        char id[16];
        snprintf(id, sizeof(id), "e%u", i);
        util_add(t->r, id);
        route_worker_followed(t->r, i, true);
    }
}

static void twin_step(struct twin *t, const struct route_request *q, uint32_t what,
                      const struct util_prompt *p, uint64_t now_us) {
    t->d = decide(t->r, q, now_us);
    if (what < 12) CHECK_EQ(route_first(t->r, q->id, now_us), TARN_OK);
    if (what < 8) util_stored(t->r, t->d.prefill, p, p->chain.n, ROUTE_TIER_DEVICE);
    if (what < 15) CHECK_EQ(route_done(t->r, q->id, 50, what == 14, now_us), TARN_OK);
}

/* One is told of sessions, the other is not: all that they decide is the same, by each policy. */
TEST(where_the_index_knows_it_changes_nothing) {
    struct rng rng;
    rng_seed(&rng, 7);
    for (const char *const *policy = route_policies; *policy != NULL; policy++) {
        struct twin with, without;
        uint64_t now = UTIL_BEGIN;
        twin_begin(&with, *policy);
        twin_begin(&without, *policy);
        for (uint32_t i = 0; i < 1500; i++) {
            char id[16], session[16];
            struct util_prompt p;
            uint32_t who = (uint32_t)rng_below(&rng, 20), what = (uint32_t)rng_below(&rng, 16);
            snprintf(id, sizeof(id), "%u", i % 64);
            snprintf(session, sizeof(session), "s%u", who);
            util_prompt(&p, 1000 * (1 + who), 1 + (uint32_t)rng_below(&rng, 60));
            struct route_request q = util_prompt_request(id, &p);
            q.length_tokens += (uint32_t)rng_below(&rng, UTIL_BLOCK);
            now += rng_below(&rng, 20) * UTIL_MS;
            twin_step(&without, &q, what, &p, now);
            q.session = span_str(session);
            twin_step(&with, &q, what, &p, now);
            CHECK_STR(with.d.prefill, without.d.prefill);
            CHECK(with.d.ttft_ms == without.d.ttft_ms && with.d.tbt_ms == without.d.tbt_ms);
            CHECK_EQ(with.d.ahead_tokens, without.d.ahead_tokens);
            CHECK_EQ(with.d.session_tokens, 0);
        }
        CHECK(route_figures_get(with.r)->route_sessions > 10); /* failures end some */
        /* But where there are no hashes nobody knows. */
        struct route_request q = of_session("x", "s1", 10000);
        CHECK(strcmp(*policy, "tarn") != 0 || decide(with.r, &q, now).session_tokens > 0);
        route_destroy(&with.r);
        route_destroy(&without.r);
    }
}

TEST(without_a_stream_nobody_knows) {
    struct route *r = util_route("tarn", 1);
    struct util_prompt p;
    util_prompt(&p, 1, 60);
    struct route_request q = util_prompt_request("x", &p);
    q.session = SPAN("s");
    turn(r, "s", 800, UTIL_BEGIN);
    for (int i = 0; i < 3; i++) {
        route_worker_followed(r, 0, i == 1);
        uint64_t now = UTIL_BEGIN + (1 + (uint64_t)i) * MINUTE; /* nothing is ahead any more */
        CHECK_EQ(decide(r, &q, now).session_tokens, i == 0 ? 896 : i == 1 ? 0 : 944);
        CHECK_EQ(route_done(r, q.id, 0, false, now), TARN_OK);
        turn(r, "s", 800, now);
    }
    /* Beyond what is known of it, or on its way, only. */
    util_stored(r, "e0", &p, 10, ROUTE_TIER_DEVICE);
    struct route_decision d = decide(r, &q, UTIL_BEGIN + 10 * MINUTE);
    CHECK_EQ(d.hit_tokens[0], 160);
    CHECK_EQ(d.session_tokens, 944 - 160);
    q.id = SPAN("y");
    d = decide(r, &q, UTIL_BEGIN + 10 * MINUTE);
    CHECK_EQ(d.ahead_tokens, 960 - 160);
    CHECK_EQ(d.session_tokens, 0);
    route_destroy(&r);
}

/* --- the bound --- */

#define KEPT     8
#define SESSIONS 24

/* Those that were asked for last are known, as a list has it. */
TEST(the_longest_unused_goes) {
    struct route_options o = route_options_default;
    struct rng rng;
    uint32_t list[KEPT], n = 0;
    o.sessions_max = KEPT;
    o.policy = "round-robin";
    struct route *r = route_create(&o);
    rng_seed(&rng, 3);
    util_add(r, "e0");
    for (int i = 0; i < 20000; i++) {
        char name[16];
        uint32_t who = (uint32_t)rng_below(&rng, rng_below(&rng, 2) ? SESSIONS : KEPT), at = 0;
        snprintf(name, sizeof(name), "s%u", who);
        while (at < n && list[at] != who) at++;
        bool there = at < n;
        CHECK_EQ(turn(r, name, 160, UTIL_BEGIN).session_tokens > 0, there);
        if (!there) at = n < KEPT ? n++ : KEPT - 1;
        memmove(list + 1, list, at * sizeof(*list));
        list[0] = who;
        CHECK_EQ(route_figures_get(r)->route_sessions, n);
    }
    CHECK_EQ(n, KEPT);
    route_destroy(&r);
    o.sessions_max = 0;
    CHECK(route_create(&o) == NULL);
}

TEST_MAIN()
