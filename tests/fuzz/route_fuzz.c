/* Calls of a route in any order, with any content: a byte says which, the next ones with what. Ids
 * are few, so that requests and engines meet again. Whatever comes, all sums must be those of their
 * parts, and estimates must be times. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "route/hash.h"
#include "route/route.h"

#define BLOCKS 40u

struct reader {
    const uint8_t *at, *end;
};

static uint8_t take_byte(struct reader *r) {
    return r->at < r->end ? *r->at++ : 0;
}

static uint64_t take_number(struct reader *r) {
    uint64_t v = 0;
    for (unsigned n = take_byte(r) % 9; n > 0; n--) v = v << 8 | take_byte(r);
    return v;
}

static double take_double(struct reader *r) {
    uint64_t bits = take_number(r);
    double v;
    memcpy(&v, &bits, sizeof(v));
    return take_byte(r) & 1 ? v : (double)(bits % 1000);
}

/* "a" to "h", now and then nothing or something odd. */
static struct span take_name(struct reader *r) {
    static const char names[] = "abcdefgh \n\xff";
    uint8_t v = take_byte(r);
    return span_of(&names[v % 11], v < 250);
}

/* None, one, or any. */
static struct span take_lora(struct reader *r) {
    static const struct span loras[] = {{"", 0}, {"a", 1}, {"*", 1}};
    return loras[take_byte(r) % 3];
}

static void one_engine(struct route *route, struct reader *r, uint64_t now_us) {
    struct route_engine_spec s = {.id = take_name(r), .model = SPAN("m")};
    uint8_t what = take_byte(r);
    s.role = (enum route_role)(what % 4);
    s.block_tokens = what & 16 ? 16 : what & 32 ? 48 : take_byte(r);
    s.ranks = what >> 5;
    s.rank = s.ranks == 0 ? take_byte(r) % 8 : 0;
    s.kv_blocks = (uint32_t)take_number(r);
    s.bytes_per_token = (uint32_t)take_number(r);
    s.batch_max = take_byte(r);
    s.tenant = what & 8 ? take_name(r) : SPAN("");
    s.host = take_name(r);
    s.rack = s.host;
    s.lora = what & 64 ? take_lora(r) : SPAN("");
    if (what & 4) s.prior.prefill_token_us = take_double(r);
    if (what & 4) s.prior.rate[ROUTE_FAR] = take_double(r);
    route_engine_add(route, &s, now_us);
}

/* Of an engine, or of one rank of it, which may come back. */
static void one_removal(struct route *route, struct reader *r, uint64_t now_us) {
    struct span id = take_name(r);
    uint8_t what = take_byte(r);
    uint32_t rank = what % 8;
    if (what < 128)
        route_engine_remove(route, id, now_us);
    else if (what < 192)
        route_rank_remove(route, id, rank, now_us);
    else
        route_rank_add(route, id, rank, now_us);
}

static uint64_t take_report(struct reader *r) {
    uint64_t v = take_number(r);
    return v == 0 ? ROUTE_UNKNOWN : v;
}

/* Which may be taken back. */
static void one_report(struct route *route, struct reader *r, uint64_t now_us) {
    struct span id = take_name(r);
    uint8_t what = take_byte(r);
    uint32_t rank = what % 4;
    struct route_load load = {take_report(r), take_report(r), take_report(r), take_report(r),
                              take_report(r)};
    route_engine_load(route, id, rank, &load, now_us);
    if (what >= 224) route_load_forget(route, id, rank, now_us);
}

static void decision_sane(const struct route_decision *d) {
    TARN_ASSERT(d->prefill != NULL && d->lease_ms > 0);
    TARN_ASSERT(isfinite(d->ttft_ms) && d->ttft_ms >= 0);
    TARN_ASSERT(isfinite(d->tbt_ms) && d->tbt_ms >= 0);
}

static void one_decision(struct route *route, struct reader *r, uint64_t now_us) {
    uint64_t rolling[BLOCKS];
    struct span exclude = take_name(r);
    uint8_t what = take_byte(r), seed = take_byte(r);
    /* The same by two sizes of blocks, where an engine has one of 48 tokens. */
    struct route_chain chain[2] = {{.block = 16, .rolling = rolling},
                                   {.block = 48, .rolling = rolling}};
    chain[0].n = take_byte(r) % BLOCKS;
    chain[1].n = chain[0].n / 3;
    for (uint32_t i = 0; i < chain[0].n; i++) rolling[i] = seed % 3 + i;
    struct route_pool_run run[2];
    for (int i = 0; i < 2; i++) {
        run[i] = (struct route_pool_run){.begin = take_byte(r),
                                         .tokens = (uint32_t)take_number(r),
                                         .tier = (enum route_tier)((seed + i) % 3),
                                         .host = take_name(r),
                                         .bytes = take_number(r)};
        run[i].rack = run[i].host;
    }
    struct route_request q = {.id = take_name(r),
                              .model = SPAN("m"),
                              .tenant = take_name(r),
                              .session = span_of(&"abcdefgh"[seed % 8], seed % 3 != 0),
                              .chains = chain,
                              .chain_count = what & 1 ? 1 + seed % 2 : 0,
                              .exclude = &exclude,
                              .exclude_count = what >> 1 & 1,
                              .pools = {{.runs = run, .run_count = what & 4 ? 1 + seed % 2 : 0}},
                              .priority = (int8_t)take_byte(r)};
    q.lora = seed & 64 ? take_lora(r) : SPAN("");
    q.policy = what & 8 ? route_policies[take_byte(r) % 9] : NULL;
    q.length_tokens = (uint32_t)take_number(r);
    q.output_tokens = (uint32_t)take_number(r);
    q.pools[0].tokens = what & 4 ? (uint32_t)take_number(r) : 0;
    /* Now and then they are longer than the prompt, which is refused. */
    for (int i = 0; i < 2 && !(what & 64); i++)
        chain[i].n = (uint32_t)min_u64(chain[i].n, q.length_tokens / chain[i].block);
    if (!(what & 128)) q.pools[0].tokens = (uint32_t)min_u64(q.pools[0].tokens, q.length_tokens);
    if (what & 16) q.ttft_ms = take_double(r);
    if (what & 32) q.tbt_ms = take_double(r);
    struct route_decision d;
    struct route_explained e;
    struct route_matched m[4];
    if (route_decide(route, &q, now_us, &d) == TARN_OK) decision_sane(&d);
    route_match(route, &q, m, 4);
    if (route_explain(route, q.id, &e) != TARN_OK) return;
    struct route_explained_candidate c;
    do {
        for (uint32_t i = 0; i < e.count; i++) route_explain_candidate(route, &e, i, &c);
        for (uint32_t i = 0; i < e.decode_count; i++) route_explain_decode(route, &e, i, &c);
        for (uint32_t i = 0; i < e.passed_count; i++) route_explain_passed(route, &e, i, &c);
        TARN_ASSERT(e.chosen == ROUTE_NOBODY || e.chosen < e.count);
        TARN_ASSERT(e.decode_chosen == ROUTE_NOBODY || e.decode_chosen < e.decode_count);
    } while (route_explain_before(route, &e));
}

static void one_event(struct route *route, struct reader *r) {
    uint64_t rolling[BLOCKS];
    uint8_t seed = take_byte(r);
    struct route_stored e = {.holder = take_byte(r),
                             .n = take_byte(r) % BLOCKS,
                             .rolling = rolling,
                             .tier = (enum route_tier)(seed % 3)};
    for (uint32_t i = 0; i < e.n; i++) rolling[i] = seed % 3 + i;
    route_index_stored(route_index(route), &e);
}

static void one_learnt(struct route *route, struct reader *r) {
    uint8_t bytes[ROUTE_LEARNT_SIZE];
    struct span id = take_name(r);
    if (route_learnt_export(route, id, bytes) != TARN_OK) return;
    for (unsigned n = take_byte(r) % 8; n > 0; n--)
        bytes[take_byte(r) % ROUTE_LEARNT_SIZE] = take_byte(r);
    route_learnt_import(route, id, bytes);
}

/* Bytes of a reservation, some of them others, taken up again. */
static void one_record(struct route *route, struct reader *r, uint64_t now_us) {
    struct buf record = {NULL, 0, 0};
    struct span id = take_name(r);
    if (route_request_export(route, id, &record) == TARN_OK) {
        TARN_ASSERT(record.len <= ROUTE_RECORD_MAX);
        for (unsigned n = take_byte(r) % 8; n > 0; n--)
            record.data[take_byte(r) % record.len] = (char)take_byte(r);
        route_request_import(route, take_name(r), span_of(record.data, record.len), take_byte(r),
                             now_us);
    }
    buf_free(&record);
}

static void one_call(struct route *route, struct reader *r, uint64_t now_us) {
    struct route_copy copy;
    uint8_t what = take_byte(r);
    switch (what % 16) {
    case 0: one_engine(route, r, now_us); break;
    case 1: one_removal(route, r, now_us); break;
    case 2: route_engine_drain(route, take_name(r), what & 16, now_us); break;
    case 3: one_report(route, r, now_us); break;
    case 4: route_engine_beat(route, take_name(r), now_us); break;
    case 5: one_event(route, r); break;
    case 6: one_learnt(route, r); break;
    case 7: route_tenant_weight(route, take_name(r), take_double(r), now_us); break;
    case 8: route_tick(route, now_us); break;
    case 9:
        while (route_copy_take(route, &copy)) TARN_ASSERT(copy.tokens > 0);
        break;
    case 10:
        if ((what & 48) == 48)
            route_failed_decode(route, take_name(r), now_us);
        else
            route_done(route, take_name(r), take_byte(r), what & 16, now_us);
        break;
    case 11:
    case 12: one_record(route, r, now_us); break;
    case 13: route_first(route, take_name(r), now_us); break;
    default: one_decision(route, r, now_us);
    }
}

/* As whoever shows them does. */
static void look(struct route *route, uint64_t now_us) {
    struct route_engine_view v;
    struct route_tenant_view t;
    const void *at = NULL;
    for (uint32_t cursor = 0; route_engine_next(route, &cursor, now_us, &v);) {
        TARN_ASSERT(isfinite(v.prefill_wait_us) && v.prefill_wait_us >= 0);
        TARN_ASSERT(v.prefill_token_us > 0 && v.decode_step_us > 0);
    }
    while (route_tenant_next(route, &at, &t)) TARN_ASSERT(t.weight > 0 && t.waiting_ms >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct reader r = {data, data + size};
    struct route_options o = route_options_default;
    uint8_t odd = size > 0 ? data[size - 1] : 0; /* which options are */
    if (odd & 1) o.copy_share = 0.001;
    if (odd & 2) o.dynamo_temperature = 0.5;
    if (odd & 4) o.ttft_ms = 500, o.tbt_ms = 50;
    if (odd & 8) o.tenant_wait_ms = 1;
    if (odd & 16) o.fetch = false;
    if (odd & 32) o.silent_ms = 0;
    if (odd & 64) o.decisions_max = 0;
    o.workers_max = 8;
    o.requests_max = 6;
    o.tenants_max = 4;
    o.sessions_max = 3;
    o.decisions_max = 4;
    o.index_bytes = ROUTE_INDEX_BYTES_MIN;
    struct route *route = route_create(&o);
    TARN_ASSERT(route != NULL);
    uint64_t now_us = 1000000;
    while (r.at < r.end) {
        one_call(route, &r, now_us);
        uint8_t passed = take_byte(&r);
        now_us += passed < 250 ? passed * 100u : passed * 1000000ull;
        if (passed % 8 == 0) route_check(route);
        if (passed % 16 == 0) look(route, now_us);
    }
    route_check(route);
    route_destroy(&route);
    return 0;
}
