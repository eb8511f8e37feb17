/* Engines and requests for tests of the route. */
#ifndef TARN_TESTS_ROUTE_UTIL_H
#define TARN_TESTS_ROUTE_UTIL_H

#include "../test.h"
#include "route/hash.h"
#include "route/route.h"

#define UTIL_BLOCK 16u
#define UTIL_MS    1000ull
#define UTIL_BEGIN 1000000ull /* the first microsecond of a test */

/* Numbers that are easy to reckon with: prefill 1 ms and 10 us a new token, a step of decoding 10
 * ms, 1 us a sequence. */
#define UTIL_PRIOR                                                                                 \
    {                                                                                              \
        .prefill_start_us = 1000, .prefill_token_us = 10, .prefill_pair_us = 1e-9,                 \
        .decode_step_us = 10000, .decode_sequence_us = 1, .decode_context_us = 1e-9,               \
        .latency_us = {100, 100, 100}, .rate = {1000, 1000, 1000}, .disk_rate = 1e9                \
    }

static inline struct route_engine_spec util_spec(const char *id) {
    return (struct route_engine_spec){.id = span_str(id),
                                      .model = SPAN("m"),
                                      .block_tokens = UTIL_BLOCK,
                                      .kv_blocks = 100000,
                                      .bytes_per_token = 1000,
                                      .prior = UTIL_PRIOR};
}

__attribute__((unused)) static inline void util_add(struct route *r, const char *id) {
    struct route_engine_spec s = util_spec(id);
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
}

__attribute__((unused)) static inline struct route *util_route(const char *policy, int engines) {
    struct route_options o = route_options_default;
    o.policy = policy;
    struct route *r = route_create(&o);
    CHECK(r != NULL);
    for (int i = 0; i < engines; i++) {
        char id[16];
        snprintf(id, sizeof(id), "e%d", i);
        util_add(r, id);
    }
    return r;
}

static inline struct route_request util_request(const char *id, uint32_t tokens) {
    return (struct route_request){
        .id = span_str(id), .model = SPAN("m"), .length_tokens = tokens, .output_tokens = 100};
}

/* The engine that was chosen. */
__attribute__((unused)) static inline struct route_decision
util_decide(struct route *r, const char *id, uint32_t tokens, uint64_t now_us) {
    struct route_request q = util_request(id, tokens);
    struct route_decision d;
    CHECK_EQ(route_decide(r, &q, now_us, &d), TARN_OK);
    return d;
}

/* On another engine than that one. */
__attribute__((unused)) static inline struct route_decision
util_decide_without(struct route *r, const char *id, uint32_t tokens, const char *engine,
                    uint64_t now_us) {
    struct route_request q = util_request(id, tokens);
    struct route_decision d;
    const struct span other = span_str(engine);
    q.exclude = &other;
    q.exclude_count = 1;
    CHECK_EQ(route_decide(r, &q, now_us, &d), TARN_OK);
    return d;
}

__attribute__((unused)) static inline struct route_engine_view util_view(struct route *r,
                                                                         const char *id) {
    struct route_engine_view v;
    uint32_t cursor = 0;
    while (route_engine_next(r, &cursor, 0, &v))
        if (strcmp(v.id, id) == 0) return v;
    CHECK(false);
    return v;
}

/* Blocks 1 to n of a prompt, by the numbers of its blocks; the prompt's beginning is `from`. */
#define UTIL_BLOCKS_MAX 256u
struct util_prompt {
    uint64_t rolling[UTIL_BLOCKS_MAX];
    struct route_chain chain;
};
__attribute__((unused)) static inline void util_prompt(struct util_prompt *p, uint64_t from,
                                                       uint32_t blocks) {
    CHECK(blocks <= UTIL_BLOCKS_MAX);
    for (uint32_t i = 0; i < blocks; i++) p->rolling[i] = from + i;
    route_hash_chain(NULL, p->rolling, blocks, 0, p->rolling);
    p->chain = (struct route_chain){
        .scope = route_hash_scope(SPAN("m"), SPAN(""), SPAN(""), SPAN(""), UTIL_BLOCK),
        .block = UTIL_BLOCK,
        .n = blocks,
        .rolling = p->rolling};
}
__attribute__((unused)) static inline struct route_request
util_prompt_request(const char *id, const struct util_prompt *p) {
    struct route_request q = util_request(id, p->chain.n * UTIL_BLOCK);
    q.chains = &p->chain;
    q.chain_count = 1;
    return q;
}
/* The engine has its first n blocks. */
__attribute__((unused)) static inline void util_stored(struct route *r, const char *engine,
                                                       const struct util_prompt *p, uint32_t n,
                                                       enum route_tier tier) {
    uint32_t holder = route_worker_holder(r, route_worker_find(r, span_str(engine), 0));
    struct route_stored e = {
        .holder = holder, .tier = tier, .scope = p->chain.scope, .n = n, .rolling = p->rolling};
    CHECK_EQ(route_index_stored(route_index(r), &e), n);
}

/* A prompt of 960 tokens that the pool has, for e0, which is in rack r0 on host h0; the last token
 * is computed, which takes a start and a token. */
struct util_loads {
    struct route *r;
    struct util_prompt prompt;
    struct route_pool_run run[2];
    struct route_request q;
    struct route_decision d;
};
__attribute__((unused)) static inline void util_loads_begin(struct util_loads *l,
                                                            const struct route_prior *prior) {
    struct route_engine_spec s = util_spec("e0");
    l->r = util_route("tarn", 0);
    s.host = SPAN("h0");
    s.rack = SPAN("r0");
    s.prior = *prior;
    CHECK_EQ(route_engine_add(l->r, &s, UTIL_BEGIN), TARN_OK);
    util_prompt(&l->prompt, 1, 60);
    l->run[0] = (struct route_pool_run){.tokens = 960, .tier = ROUTE_TIER_HOST};
    l->q = util_prompt_request("x", &l->prompt);
    l->q.pools[0].tokens = 960;
    l->q.pools[0].runs = l->run;
    l->q.pools[0].run_count = 1;
}

#endif
