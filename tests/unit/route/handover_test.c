/* What those that only compute have to hand over to who decodes: the links against a model of them,
 * and what follows for a decision. Engines compute 1 ms and 10 us a token, send a token's KV in 20
 * us, and tell of first tokens when they are estimated to be there, so that nothing is learnt. */
#include <math.h>
#include "base/rng.h"
#include "util.h"

#define ENGINES  2u
#define REQUESTS 400u

static struct route_engine_spec spec(const char *id, enum route_role role) {
    struct route_engine_spec s = util_spec(id);
    s.role = role;
    for (unsigned i = 0; i < ROUTE_PLACES; i++) s.prior.rate[i] = 50, s.prior.latency_us[i] = 100;
    return s;
}

static struct route *apart(void) {
    struct route *r = util_route("tarn", 0);
    struct route_engine_spec p0 = spec("p0", ROUTE_PREFILL), p1 = spec("p1", ROUTE_PREFILL),
                             d = spec("d", ROUTE_DECODE);
    CHECK_EQ(route_engine_add(r, &p0, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_engine_add(r, &p1, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_engine_add(r, &d, UTIL_BEGIN), TARN_OK);
    return r;
}

static double computes_us(uint32_t tokens) {
    return 1000 + 10.0 * tokens;
}
static double sends_us(uint32_t tokens) {
    return 100 + 20.0 * tokens;
}

/* A prompt that an engine computes, or has computed. */
struct prompt {
    char id[16];
    uint32_t tokens;
    uint64_t begins, ends;
    bool told;
};
struct engine {
    struct prompt prompt[REQUESTS];
    uint32_t n;
    double sent; /* when its link is through with what was told of */
};

static struct prompt *next_of(struct engine *e) {
    uint32_t i = 0;
    while (i < e->n && e->prompt[i].told) i++;
    return i < e->n ? &e->prompt[i] : NULL;
}

static void tell(struct route *r, struct engine *e, struct prompt *p) {
    CHECK_EQ(route_first(r, span_str(p->id), p->ends), TARN_OK);
    CHECK_EQ(route_done(r, span_str(p->id), 0, false, p->ends), TARN_OK);
    e->sent = fmax(e->sent, (double)p->begins) + sends_us(p->tokens);
    p->told = true;
}

/* The first tokens that are there by then, in their order: clocks do not go back. */
static void tell_all(struct route *r, struct engine e[ENGINES], uint64_t now) {
    for (;;) {
        struct prompt *a = next_of(&e[0]), *b = next_of(&e[1]);
        bool second = a == NULL || (b != NULL && b->ends < a->ends);
        struct prompt *p = second ? b : a;
        if (p == NULL || p->ends > now) return;
        tell(r, &e[second], p);
    }
}

static double late_us(const struct engine *e, uint32_t tokens, uint64_t now) {
    double sends = fmax(e->sent - (double)now, 0);
    double waits = e->n == 0 ? 0 : fmax((double)e->prompt[e->n - 1].ends - (double)now, 0);
    for (uint32_t i = 0; i < e->n; i++)
        if (!e->prompt[i].told) sends += sends_us(e->prompt[i].tokens);
    return fmax(fmax(sends - waits, 0) + sends_us(tokens) - computes_us(tokens), 0);
}

static double term(struct route *r, const char *id, const char *engine, const char *name) {
    struct route_explained x;
    struct route_explained_candidate c;
    CHECK_EQ(route_explain(r, span_str(id), &x), TARN_OK);
    for (uint32_t i = 0; i < x.count; i++) {
        route_explain_candidate(r, &x, i, &c);
        for (uint32_t k = 0; x.terms[k] != NULL; k++)
            if (strcmp(c.engine, engine) == 0 && strcmp(x.terms[k], name) == 0) return c.term[k];
    }
    CHECK(false);
    return 0;
}

TEST(a_link_sends_one_after_the_other) {
    static struct engine e[ENGINES];
    static const char *const names[ENGINES] = {"p0", "p1"};
    struct route *r = apart();
    struct rng rng;
    rng_seed(&rng, 7);
    uint64_t now = UTIL_BEGIN;
    uint32_t late = 0, in_time = 0;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        char id[16];
        uint32_t tokens = 50 + (uint32_t)rng_below(&rng, 2000);
        now += rng_below(&rng, i % 100 < 60 ? 10000 : 60000);
        snprintf(id, sizeof(id), "r%u", i);
        tell_all(r, e, now);
        struct route_decision d = util_decide(r, id, tokens, now);
        for (uint32_t k = 0; k < ENGINES; k++) {
            double us = late_us(&e[k], tokens, now);
            CHECK(fabs(term(r, id, names[k], "decodes us") - 0.1 * us) < 1);
            *(us > sends_us(tokens) - computes_us(tokens) + 1 ? &late : &in_time) += 1;
        }
        struct engine *to = &e[d.prefill[1] - '0'];
        struct prompt *p = &to->prompt[to->n];
        p->tokens = tokens;
        p->begins = to->n == 0 ? now : to->prompt[to->n - 1].ends;
        if (p->begins < now) p->begins = now;
        p->ends = p->begins + (uint64_t)computes_us(tokens);
        memcpy(p->id, id, sizeof(id));
        to->n++;
        route_check(r);
    }
    CHECK(late > 50 && in_time > 50);
    route_destroy(&r);
}

/* All of a prompt is on p0, and its link is busy for so long that p1 is done with all before. */
TEST(who_has_much_to_send_is_late) {
    for (int busy = 0; busy < 2; busy++) {
        struct route *r = apart();
        struct util_prompt p;
        util_prompt(&p, 1, 20);
        util_stored(r, "p0", &p, 20, ROUTE_TIER_DEVICE);
        uint64_t now = UTIL_BEGIN;
        if (busy) {
            CHECK_STR(util_decide_without(r, "big", 20000, "p1", now).prefill, "p0");
            now += (uint64_t)computes_us(20000);
            CHECK_EQ(route_first(r, SPAN("big"), now), TARN_OK);
            CHECK_EQ(route_done(r, SPAN("big"), 0, false, now), TARN_OK);
        }
        struct route_request q = util_prompt_request("x", &p);
        struct route_decision d;
        CHECK_EQ(route_decide(r, &q, now, &d), TARN_OK);
        CHECK_STR(d.prefill, busy ? "p1" : "p0");
        route_destroy(&r);
    }
}

/* What ends before its first token is not sent. */
TEST(what_is_not_computed_is_not_sent) {
    struct route *r = apart();
    CHECK_STR(util_decide_without(r, "big", 20000, "p1", UTIL_BEGIN).prefill, "p0");
    util_decide(r, "x", 1000, UTIL_BEGIN);
    CHECK(term(r, "x", "p0", "decodes us") > 15000);
    CHECK_EQ(route_done(r, SPAN("big"), 0, true, UTIL_BEGIN + 1), TARN_OK);
    CHECK_EQ(route_done(r, SPAN("x"), 0, true, UTIL_BEGIN + 1), TARN_OK);
    util_decide(r, "y", 1000, UTIL_BEGIN + 1);
    CHECK(term(r, "y", "p0", "decodes us") < 1000);
    route_check(r);
    route_destroy(&r);
}

TEST_MAIN()
