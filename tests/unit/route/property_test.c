/* Random calls, and a naive model of what must hold whatever the costs are: a request is reserved
 * on one engine for each part, what is reserved is given back exactly once, be it by its end, its
 * lease's or its engine's, and an engine that is gone, drains, rests, is silent, is excluded or
 * belongs to another tenant gets nothing; but where somebody may serve it, somebody does. */
#include <malloc.h>
#include "util.h"
#include "base/assert.h"
#include "base/rng.h"

#define ENGINES  8
#define REQUESTS 64

/* As the model knows it. */
struct plain_engine {
    bool there, drains, of_a; /* of_a: serves tenant a alone */
    enum route_role role;
    uint32_t failed_in_row;
    uint64_t rests_until_us, heard_us;
};
struct plain_request {
    bool reserved, decoding;
    int prefill, decode; /* engines; -1: none */
    uint32_t tokens;
    uint64_t lease_end_ms;
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
    s.tenant = rng_below(&p->rng, 4) == 0 ? SPAN("a") : SPAN("");
    s.ranks = 1 + (uint32_t)i % 2;
    s.kv_blocks = 200;
    s.batch_max = 4;
    tarn_status status = route_engine_add(p->r, &s, p->now_us);
    CHECK_EQ(status, p->engines[i].there ? TARN_EEXISTS : TARN_OK);
    if (status != TARN_OK) return;
    p->engines[i] = (struct plain_engine){.there = true, .role = s.role, .of_a = s.tenant.len > 0};
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
    p->engines[i].heard_us = p->now_us;
}

#define SILENT_MS      15000u
#define BACKOFF_MS     1000u
#define BACKOFF_MAX_MS 4000u

static void engine_fails(struct plain *p, int i) {
    struct plain_engine *e = &p->engines[i];
    if (++e->failed_in_row < 2) return;
    uint64_t ms = BACKOFF_MAX_MS;
    if (e->failed_in_row < 5) ms = min_u64(ms, BACKOFF_MS << (e->failed_in_row - 2));
    e->rests_until_us = p->now_us + ms * UTIL_MS;
}

/* May a request of this tenant go there now? */
static bool engine_may(const struct plain *p, int i, int excluded, struct span tenant) {
    const struct plain_engine *e = &p->engines[i];
    if (!e->there || e->drains || i == excluded || p->now_us < e->rests_until_us) return false;
    if (e->heard_us > 0 && p->now_us - e->heard_us > SILENT_MS * UTIL_MS) return false;
    return !e->of_a || span_eq(tenant, SPAN("a"));
}

/* By itself, or one that computes and one that decodes. */
static bool somebody_may(const struct plain *p, int excluded, struct span tenant) {
    bool computes = false, decodes = false;
    for (int i = 0; i < ENGINES; i++) {
        if (!engine_may(p, i, excluded, tenant)) continue;
        computes |= p->engines[i].role != ROUTE_DECODE;
        decodes |= p->engines[i].role != ROUTE_PREFILL;
        if (p->engines[i].role == ROUTE_BOTH) return true;
    }
    return computes && decodes;
}

/* What is left of its lease stands in its record. */
static void lease_look(struct plain *p, int k) {
    char id[8];
    struct buf record = {NULL, 0, 0};
    CHECK_EQ(route_request_export(p->r, name_of(id, 'r', k), &record), TARN_OK);
    const uint8_t *at = (const uint8_t *)record.data + 2;
    uint32_t left_ms = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
    buf_free(&record);
    p->requests[k].lease_end_ms = p->now_us / 1000 + left_ms;
}

/* Leases that end meanwhile give back. */
static void time_passes(struct plain *p) {
    p->now_us += rng_below(&p->rng, 100) == 0 ? rng_below(&p->rng, 90000) * UTIL_MS
                                              : rng_below(&p->rng, 3000);
    while (route_tick(p->r, p->now_us) == 0) continue;
    for (int k = 0; k < REQUESTS; k++)
        if (p->requests[k].reserved && p->requests[k].lease_end_ms <= p->now_us / 1000)
            plain_release(&p->requests[k]);
}

static void may_have(const struct plain *p, int engine, int excluded, struct span tenant) {
    CHECK(engine >= 0 && engine < ENGINES);
    CHECK(engine_may(p, engine, excluded, tenant));
}

static void request_decided(struct plain *p, struct plain_request *q,
                            const struct route_decision *d, int excluded,
                            const struct route_request *asked) {
    int prefill = engine_of(d->prefill), decode = engine_of(d->decode);
    bool anew = !(q->reserved && q->decoding && q->prefill >= 0);
    if (anew) {
        may_have(p, prefill, excluded, asked->tenant);
        CHECK(p->engines[prefill].role != ROUTE_DECODE);
        *q = (struct plain_request){.reserved = true, .tokens = asked->length_tokens};
    } else {
        CHECK_EQ(prefill, q->prefill);
    }
    CHECK_EQ(p->engines[prefill].role == ROUTE_BOTH, decode < 0);
    if (decode >= 0) may_have(p, decode, excluded, asked->tenant);
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
        request_decided(p, known, &d, excluded, &q);
    else if (!keeps) /* what was reserved before is given back in any case */
        plain_release(known);
    if (status == TARN_OK) lease_look(p, k);
    CHECK(status == TARN_OK || status == TARN_ELATER || status == TARN_ENOTFOUND);
    if (!keeps && q.ttft_ms == 0 && q.tbt_ms == 0 && status == TARN_ENOTFOUND)
        CHECK(!somebody_may(p, excluded, q.tenant));
}

static void request_is_told(struct plain *p, int k) {
    char id[8];
    struct plain_request *q = &p->requests[k];
    bool first = rng_below(&p->rng, 2), failed = rng_below(&p->rng, 4) == 0;
    bool decode = failed && rng_below(&p->rng, 2);
    uint32_t output = (uint32_t)rng_below(&p->rng, 100);
    struct span name = name_of(id, 'r', k);
    tarn_status status = first    ? route_first(p->r, name, p->now_us)
                         : decode ? route_failed_decode(p->r, name, p->now_us)
                                  : route_done(p->r, name, output, failed, p->now_us);
    CHECK_EQ(status, q->reserved ? TARN_OK : TARN_ENOTFOUND);
    if (!q->reserved) return;
    if (first) {
        if (!q->decoding) p->engines[q->prefill].failed_in_row = 0;
        q->decoding = true;
        lease_look(p, k);
        return;
    }
    int at = q->decoding || (decode && q->decode >= 0) ? q->decode : q->prefill;
    if (failed && at >= 0) engine_fails(p, at);
    if (!failed && output > 0 && q->decoding && at >= 0) p->engines[at].failed_in_row = 0;
    plain_release(q);
}

/* What each engine has is what the model's requests have there. */
static void compare(struct plain *p) {
    uint32_t cursor = 0, reserved = 0;
    int prefills[ENGINES] = {0}, decodes[ENGINES] = {0};
    struct route_engine_view v;
    while (route_engine_next(p->r, &cursor, p->now_us, &v)) {
        prefills[engine_of(v.id)] += (int)v.prefills;
        decodes[engine_of(v.id)] += (int)(v.decodes - v.foreign_decodes);
    }
    for (int k = 0; k < REQUESTS; k++) {
        const struct plain_request *q = &p->requests[k];
        if (q->reserved && !q->decoding) prefills[q->prefill]--;
        if (q->reserved && q->decoding && q->decode >= 0) decodes[q->decode]--;
    }
    for (int i = 0; i < ENGINES; i++) CHECK(prefills[i] == 0 && decodes[i] == 0);
    for (int k = 0; k < REQUESTS; k++) reserved += p->requests[k].reserved;
    CHECK_EQ(route_figures_get(p->r)->route_reserved, reserved);
    route_check(p->r);
}

static void random_call(struct plain *p) {
    int engine = (int)rng_below(&p->rng, ENGINES), request = (int)rng_below(&p->rng, REQUESTS);
    uint64_t which = rng_below(&p->rng, 100);
    time_passes(p);
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
        o.silent_ms = SILENT_MS;
        o.backoff_ms = BACKOFF_MS;
        o.backoff_max_ms = BACKOFF_MAX_MS;
        o.lease_ms = 20000;
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

/* What the process has got from malloc; 0: this build does not tell. */
static size_t got_bytes(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
    return 0;
#else
    struct mallinfo2 m = mallinfo2(); /* what is mapped is told apart */
    return m.uordblks + m.hblkhd;
#endif
}

/* Nothing comes twice: ids, tenants, models, adapters, prompts, engines. What the route says it
 * has is what was taken for it, and after the first rounds it takes no more. */
TEST(memory_is_bounded_by_the_options) {
    struct route_options o = route_options_default;
    size_t before = got_bytes(), early = 0, early_got = 0, estimated = 0;
    o.workers_max = 16;
    o.requests_max = 1000;
    o.tenants_max = 100;
    o.decisions_max = 64;
    o.index_bytes = 2 << 20;
    struct route *r = route_create(&o);
    util_add(r, "steady");
    for (uint32_t i = 0; i < 60000; i++) {
        char id[16];
        struct util_prompt p;
        struct route_decision d;
        snprintf(id, sizeof(id), "n%u", i);
        struct route_request q = util_request(id, 20 * UTIL_BLOCK);
        util_prompt(&p, 1000ull * i, 20);
        q.tenant = span_str(id);
        q.chains = &p.chain;
        q.chain_count = 1;
        tarn_status status = route_decide(r, &q, UTIL_BEGIN, &d);
        CHECK(status == TARN_OK || status == TARN_ELIMIT || status == TARN_ELATER);
        if (i % 3 == 0) route_done(r, q.id, 1, false, UTIL_BEGIN);
        util_stored(r, "steady", &p, 20, ROUTE_TIER_DEVICE);
        if (i % 16 == 0) {
            struct route_engine_spec s = util_spec(id);
            s.model = s.lora = s.host = s.rack = s.url = span_str(id);
            CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
            q.model = q.lora = span_str(id);
            q.tenant = SPAN("");
            status = route_decide(r, &q, UTIL_BEGIN, &d);
            CHECK(status == TARN_OK || status == TARN_ELIMIT);
            CHECK_EQ(route_engine_remove(r, s.id, UTIL_BEGIN), TARN_OK);
            while (route_tick(r, UTIL_BEGIN) == 0) continue;
        }
        CHECK(route_memory(r) < 8 << 20);
        if (i != 20000) continue;
        early = route_memory(r), early_got = got_bytes();
        estimated = early - route_index_stats(route_index(r)).route_index_bytes;
    }
    CHECK_EQ(route_figures_get(r)->route_reserved, 1000);
    CHECK(route_memory(r) < early + early / 50);
    CHECK(got_bytes() <= early_got + early / 50);
    /* The index counts each byte; what names and malloc take of the rest is estimated. */
    if (early_got > 0) CHECK(early_got - before < early + estimated / 10);
    route_check(r);
    route_destroy(&r);
    CHECK(got_bytes() <= before + (256 << 10)); /* what malloc keeps at hand */
}

TEST_MAIN()
