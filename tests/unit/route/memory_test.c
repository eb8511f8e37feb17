/* What a request costs those that come later by the KV memory that it holds: against a model of
 * what is held, and what follows for a decision. Engines tell of first tokens when they are
 * estimated to be there, and say no lengths of answers, so that nothing is learnt. */
#include <math.h>
#include "base/rng.h"
#include "util.h"

#define ENGINES  3u /* the last one tells of no KV memory: what it costs there is the rest */
#define BLOCKS   250u
#define LIVE     30u
#define OUTPUT   100u
#define REQUESTS 300u

struct live {
    char id[16];
    uint32_t tokens, there;
    uint32_t engine;
    bool on;
};

static struct route *engines(uint32_t blocks) {
    struct route_options o = route_options_default;
    o.output_tokens = OUTPUT;
    struct route *r = route_create(&o);
    for (uint32_t i = 0; i < ENGINES; i++) {
        char id[16];
        snprintf(id, sizeof(id), "e%u", i);
        struct route_engine_spec s = util_spec(id);
        s.kv_blocks = i == ENGINES - 1 ? 0 : blocks;
        s.prior.rate[ROUTE_FAR] = 1e-3; /* fetching takes too long for anybody */
        CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    }
    return r;
}

static double held(const struct live live[LIVE], uint32_t engine) {
    double sum = 0;
    for (uint32_t i = 0; i < LIVE; i++)
        if (live[i].on && live[i].engine == engine)
            sum += live[i].tokens - live[i].there / 2.0 + OUTPUT / 2.0;
    return sum;
}

static struct route_explained_candidate of(struct route *r, const char *id, uint32_t engine) {
    struct route_explained x;
    struct route_explained_candidate c;
    char name[16];
    snprintf(name, sizeof(name), "e%u", engine);
    CHECK_EQ(route_explain(r, span_str(id), &x), TARN_OK);
    CHECK_STR(x.terms[0], "own us");
    CHECK_STR(x.terms[1], "later us");
    for (uint32_t i = 0; i < x.count; i++) {
        route_explain_candidate(r, &x, i, &c);
        if (strcmp(c.engine, name) == 0) return c;
    }
    CHECK(false);
    return c;
}

/* Of all arrivals alike, twice what a unit of work costs later ones by its square. */
static double memory(const struct live live[LIVE], const struct route_explained_candidate *c,
                     uint32_t engine, uint32_t tokens) {
    double all = BLOCKS * UTIL_BLOCK,
           needs = tokens - (c->hit_tokens + c->ahead_tokens) + OUTPUT / 2.0;
    double over = held(live, engine) + needs - all, hold = c->tbt_ms * 1000 * OUTPUT / all;
    return over <= 0 ? 0 : needs * hold * (2 * over * hold + needs * hold);
}

/* Each decision is made while all prompts are computed. */
TEST(full_memory_is_a_queue) {
    static struct live live[LIVE];
    struct route *r = engines(BLOCKS);
    struct util_prompt p[4];
    struct rng rng;
    rng_seed(&rng, 3);
    for (uint32_t i = 0; i < 4; i++) {
        util_prompt(&p[i], 1 + 1000 * i, 40);
        util_stored(r, i % 2 == 0 ? "e0" : "e1", &p[i], 10 + 10 * i, ROUTE_TIER_DEVICE);
    }
    uint64_t now = UTIL_BEGIN;
    uint32_t full = 0, room = 0;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct live *l = &live[rng_below(&rng, LIVE)];
        if (l->on) CHECK_EQ(route_done(r, span_str(l->id), 0, false, now), TARN_OK);
        l->on = false;
        snprintf(l->id, sizeof(l->id), "r%u", i);
        now += 100000;
        struct route_request q = util_prompt_request(l->id, &p[rng_below(&rng, 4)]);
        struct route_decision d;
        q.output_tokens = 0;
        q.length_tokens += (uint32_t)rng_below(&rng, 300);
        CHECK_EQ(route_decide(r, &q, now, &d), TARN_OK);
        struct route_explained_candidate rest = of(r, l->id, ENGINES - 1);
        double unit = rest.term[1] / (rest.term[0] * rest.term[0]);
        for (uint32_t k = 0; i > 10 && k < ENGINES - 1; k++) {
            struct route_explained_candidate c = of(r, l->id, k);
            double more = memory(live, &c, k, q.length_tokens);
            double later = unit * (c.term[0] * c.term[0] + more);
            CHECK(fabs(c.term[1] - later) <= 1e-6 * later);
            *(more > 0 ? &full : &room) += 1;
        }
        *l = (struct live){.tokens = q.length_tokens, .engine = (uint32_t)(d.prefill[1] - '0')};
        snprintf(l->id, sizeof(l->id), "r%u", i);
        l->there = d.hit_tokens[ROUTE_TIER_DEVICE] + d.ahead_tokens;
        if (l->there == l->tokens) l->there--; /* the last one is computed */
        l->on = true;
        now += (uint64_t)(d.ttft_ms * 1000);
        CHECK_EQ(route_first(r, span_str(l->id), now), TARN_OK);
        route_check(r);
    }
    CHECK(full > 50 && room > 50);
    route_destroy(&r);
}

/* e0 has a prefix that is shared, and is busy for longer than that would take to compute. Idle
 * memory is no reason to wait for it; where all is held, it is. */
TEST(full_engines_are_for_those_who_share) {
    for (int full = 0; full < 2; full++) {
        struct route *r = engines(full ? BLOCKS : 100000);
        struct util_prompt p;
        uint64_t now = UTIL_BEGIN;
        util_prompt(&p, 1, 60);
        util_stored(r, "e0", &p, 60, ROUTE_TIER_DEVICE);
        CHECK_EQ(route_engine_remove(r, SPAN("e2"), now), TARN_OK);
        for (uint32_t i = 0; i < 14; i++) {
            char id[16];
            snprintf(id, sizeof(id), "r%u", i);
            util_decide_without(r, id, 900, i % 2 ? "e0" : "e1", now);
            now += 100000;
            CHECK_EQ(route_first(r, span_str(id), now), TARN_OK);
        }
        util_decide_without(r, "before", 6000, "e1", now);
        struct route_request q = util_prompt_request("x", &p);
        struct route_decision d;
        CHECK_EQ(route_decide(r, &q, now, &d), TARN_OK);
        CHECK_STR(d.prefill, full ? "e0" : "e1");
        route_destroy(&r);
    }
}

TEST_MAIN()
