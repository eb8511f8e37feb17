/* Random calls, and a naive model of what must hold whatever the costs are: a request is reserved
 * on one engine for each part, what is reserved is given back exactly once, an engine that is gone,
 * drains, is excluded or belongs to another tenant gets nothing. */
#include "util.h"
#include "base/assert.h"
#include "base/rng.h"

#define ENGINES  8
#define REQUESTS 64

/* As the model knows it. */
struct plain_engine {
    bool there, drains;
    enum route_role role;
};
struct plain_request {
    bool reserved, decoding;
    int prefill, decode; /* engines; -1: none */
    uint32_t tokens;
};
struct plain {
    struct route *r;
    struct rng rng;
    uint64_t now_us;
    struct plain_engine engines[ENGINES];
    struct plain_request requests[REQUESTS];
};

static struct span name_of(char out[8], char kind, int number) {
    snprintf(out, 8, "%c%d", kind, number);
    return span_str(out);
}

static int engine_of(const char *id) {
    return id == NULL ? -1 : id[1] - '0';
}

static void plain_release(struct plain_request *q) {
    q->reserved = q->decoding = false;
    q->prefill = q->decode = -1;
}

static void engine_comes(struct plain *p, int i) {
    char name[8];
    struct route_engine_spec s = util_spec("");
    s.id = name_of(name, 'e', i);
    s.role = (enum route_role)rng_below(&p->rng, 3);
    s.kv_blocks = 200;
    s.batch_max = 4;
    tarn_status status = route_engine_add(p->r, &s, p->now_us);
    CHECK_EQ(status, p->engines[i].there ? TARN_EEXISTS : TARN_OK);
    if (status == TARN_OK) p->engines[i] = (struct plain_engine){.there = true, .role = s.role};
}

static void engine_goes(struct plain *p, int i) {
    char name[8];
    tarn_status status = route_engine_remove(p->r, name_of(name, 'e', i), p->now_us);
    CHECK_EQ(status, p->engines[i].there ? TARN_OK : TARN_ENOTFOUND);
    p->engines[i].there = false;
    for (int k = 0; k < REQUESTS; k++) {
        struct plain_request *q = &p->requests[k];
        if (!q->reserved) continue;
        bool prefills = !q->decoding && q->prefill == i;
        if (prefills || (q->decoding && q->decode == i)) plain_release(q);
        if (q->reserved && q->decode == i) q->decode = -1;
        if (q->reserved && q->prefill == i) q->prefill = -1;
    }
}

static void engine_drains(struct plain *p, int i) {
    char name[8];
    bool drains = rng_below(&p->rng, 2);
    if (route_engine_drain(p->r, name_of(name, 'e', i), drains, p->now_us) == TARN_OK)
        p->engines[i].drains = drains;
}

static void engine_reports(struct plain *p, int i) {
    char name[8];
    struct route_load load = {.prefill_tokens = rng_below(&p->rng, 5000),
                              .waiting = rng_below(&p->rng, 9),
                              .running = rng_below(&p->rng, 9),
                              .kv_blocks_used = rng_below(&p->rng, 200),
                              .kv_blocks = ROUTE_UNKNOWN};
    if (rng_below(&p->rng, 8) == 0) load.prefill_tokens = load.waiting = UINT64_MAX - 1;
    tarn_status status = route_engine_load(p->r, name_of(name, 'e', i), 0, &load, p->now_us);
    CHECK_EQ(status, p->engines[i].there ? TARN_OK : TARN_ENOTFOUND);
}

static void may_have(const struct plain *p, int engine, int excluded) {
    CHECK(engine >= 0 && engine < ENGINES && engine != excluded);
    CHECK(p->engines[engine].there && !p->engines[engine].drains);
}

static void request_decided(struct plain *p, struct plain_request *q,
                            const struct route_decision *d, int excluded, uint32_t tokens) {
    int prefill = engine_of(d->prefill), decode = engine_of(d->decode);
    bool anew = !(q->reserved && q->decoding && q->prefill >= 0);
    if (anew) {
        may_have(p, prefill, excluded);
        CHECK(p->engines[prefill].role != ROUTE_DECODE);
        *q = (struct plain_request){.reserved = true, .tokens = tokens};
    } else {
        CHECK_EQ(prefill, q->prefill);
    }
    CHECK_EQ(p->engines[prefill].role == ROUTE_BOTH, decode < 0);
    if (decode >= 0) may_have(p, decode, excluded);
    if (decode >= 0) CHECK_EQ(p->engines[decode].role, ROUTE_DECODE);
    q->prefill = prefill;
    q->decode = decode >= 0 ? decode : prefill;
}

static const struct span tenants[] = {{"", 0}, {"a", 1}, {"b", 1}};

static void request_asks(struct plain *p, int k) {
    char id[8], out[8];
    int excluded = (int)rng_below(&p->rng, 2 * ENGINES);
    struct route_request q = util_request("", 1 + (uint32_t)rng_below(&p->rng, 3000));
    struct route_decision d;
    struct span exclude = name_of(out, 'e', excluded % 10);
    struct util_prompt prompt;
    if (excluded >= ENGINES) excluded = -1;
    q.id = name_of(id, 'r', k);
    q.exclude = &exclude;
    q.exclude_count = excluded >= 0;
    q.policy = route_policies[rng_below(&p->rng, 9)];
    q.ttft_ms = rng_below(&p->rng, 4) == 0 ? 20 : 0;
    q.tbt_ms = rng_below(&p->rng, 4) == 0 ? 11 : 0;
    uint64_t blocks = 1 + rng_below(&p->rng, 60);
    util_prompt(&prompt, rng_below(&p->rng, 5),
                (uint32_t)min_u64(blocks, q.length_tokens / UTIL_BLOCK));
    if (rng_below(&p->rng, 2)) q.chains = &prompt.chain, q.chain_count = 1;
    q.tenant = tenants[rng_below(&p->rng, 3)];
    struct plain_request *known = &p->requests[k];
    bool keeps = known->reserved && known->decoding && known->prefill >= 0;
    tarn_status status = route_decide(p->r, &q, p->now_us, &d);
    if (status == TARN_OK)
        request_decided(p, known, &d, excluded, q.length_tokens);
    else if (!keeps) /* what was reserved before is given back in any case */
        plain_release(known);
}

static void request_is_told(struct plain *p, int k) {
    char id[8];
    struct plain_request *q = &p->requests[k];
    bool first = rng_below(&p->rng, 2);
    tarn_status status =
        first ? route_first(p->r, name_of(id, 'r', k), p->now_us)
              : route_done(p->r, name_of(id, 'r', k), (uint32_t)rng_below(&p->rng, 100),
                           rng_below(&p->rng, 16) == 0, p->now_us);
    CHECK_EQ(status, q->reserved ? TARN_OK : TARN_ENOTFOUND);
    if (first && q->reserved) q->decoding = true;
    if (!first) plain_release(q);
}

/* What each engine has is what the model's requests have there. */
static void compare(struct plain *p) {
    uint32_t cursor = 0, reserved = 0;
    struct route_engine_view v;
    while (route_engine_next(p->r, &cursor, p->now_us, &v)) {
        uint32_t prefills = 0, decodes = 0;
        for (int k = 0; k < REQUESTS; k++) {
            const struct plain_request *q = &p->requests[k];
            prefills += q->reserved && !q->decoding && q->prefill == engine_of(v.id);
            decodes += q->reserved && q->decoding && q->decode == engine_of(v.id);
        }
        CHECK_EQ(v.prefills, prefills);
        CHECK_EQ(v.decodes - v.foreign_decodes, decodes);
    }
    for (int k = 0; k < REQUESTS; k++) reserved += p->requests[k].reserved;
    CHECK_EQ(route_figures_get(p->r)->route_reserved, reserved);
    route_check(p->r);
}

static void random_call(struct plain *p) {
    int engine = (int)rng_below(&p->rng, ENGINES), request = (int)rng_below(&p->rng, REQUESTS);
    uint64_t which = rng_below(&p->rng, 100);
    p->now_us += rng_below(&p->rng, 3000);
    if (which < 5) return engine_comes(p, engine);
    if (which < 7) return engine_goes(p, engine);
    if (which < 10) return engine_drains(p, engine);
    if (which < 20) return engine_reports(p, engine);
    if (which < 60) return request_asks(p, request);
    request_is_told(p, request);
}

TEST(reservations_are_as_a_naive_model_has_them) {
    for (uint64_t seed = 0; seed < (uint64_t)test_rounds(20); seed++) {
        struct route_options o = route_options_default;
        o.silent_ms = 0;
        o.backoff_ms = 0; /* the model knows nothing of rests */
        struct plain p = {.r = route_create(&o), .now_us = UTIL_BEGIN};
        rng_seed(&p.rng, seed);
        for (int k = 0; k < REQUESTS; k++) plain_release(&p.requests[k]);
        for (int i = 0; i < 2000; i++) {
            random_call(&p);
            compare(&p);
        }
        for (int i = 0; i < ENGINES; i++) engine_goes(&p, i);
        compare(&p);
        route_destroy(&p.r);
    }
}

/* Nobody tells of anything: leases end all of it, and nothing is left. */
TEST(leases_give_all_back) {
    struct route *r = util_route("tarn", 4);
    for (int i = 0; i < 5000; i++) {
        char id[16];
        snprintf(id, sizeof(id), "%d", i);
        util_decide(r, id, 1000, UTIL_BEGIN + (uint64_t)i);
    }
    CHECK_EQ(route_figures_get(r)->route_reserved, 5000);
    for (int i = 0; i < 100000 && route_figures_get(r)->route_reserved > 0; i++)
        route_tick(r, UTIL_BEGIN + 3600000 * UTIL_MS);
    CHECK_EQ(route_figures_get(r)->route_lease_ends, 5000);
    CHECK_EQ(util_view(r, "e0").prefill_tokens, 0);
    route_check(r);
    route_destroy(&r);
}

TEST(memory_is_bounded_by_the_options) {
    struct route_options o = route_options_default;
    o.requests_max = 1000;
    o.tenants_max = 100;
    struct route *r = route_create(&o);
    util_add(r, "e0");
    size_t at_first = route_memory(r);
    for (int i = 0; i < 20000; i++) {
        char id[16];
        struct route_request q = util_request("", 100);
        struct route_decision d;
        snprintf(id, sizeof(id), "%d", i);
        q.id = q.tenant = span_str(id);
        tarn_status status = route_decide(r, &q, UTIL_BEGIN, &d);
        CHECK(status == TARN_OK || status == TARN_ELIMIT);
    }
    CHECK_EQ(route_figures_get(r)->route_reserved, 1000);
    CHECK(route_memory(r) < at_first + 1000 * 1024);
    route_destroy(&r);
}

TEST_MAIN()
