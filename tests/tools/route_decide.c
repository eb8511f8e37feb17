/* How many decisions a core makes: docs/BENCHMARKS.md has its numbers.
 *
 *     route_decide [ENGINES [DECISIONS [POLICY [BLOCKS [pool]]]]]          200 300000 tarn 128
 *
 * Prompts of so many blocks, given as hashes, of 20,000 conversations that all begin with one of
 * eight system prompts; the further a conversation is, the more of its prompt was there before.
 * With `pool` the pool has that part, in two runs on two of the engines' hosts. A request is told
 * of as first 50 ms after its decision, when its engine tells of its blocks, and as done after 1 s.
 * Twice: as fast as it goes, and at a steady 25,000 a second, where the time of a decision is
 * counted from when it was due. Times are CPU time of the thread, of the route's functions alone.
 *
 * The hash of all decisions tells whether a change of the code has changed any of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/hist.h"
#include "base/rng.h"
#include "route/hash.h"
#include "route/route.h"

#define BLOCK      16u
#define BLOCKS_MAX 1024u
#define SYSTEMS    8u
#define SESSIONS   20000u
#define TURNS      12u
#define GAP_US     500u  /* 2,000 a second are a load that 200 engines bear */
#define FIRST      100u  /* requests between a decision and its first token */
#define OPEN       2000u /* and its end */
#define PACE       25000u

struct open_request {
    char id[16];
    uint32_t session, turn, worker;
    bool used;
};

static struct route *route;
static struct rng rng;
static struct open_request ring[OPEN];
static uint64_t scope, simulated_us = 1000000, decisions_hash = 1;
static uint32_t engines = 200, blocks = 128;
static const char *policy = "tarn";
static bool pool;

/* Blocks that all conversations with this system prompt have, and that this one had before. */
static uint32_t blocks_common(void) {
    return blocks * 3 / 16;
}
static uint32_t blocks_before(uint32_t turn) {
    return blocks_common() + turn * blocks / 16;
}

static void prompt_of(const struct open_request *o, uint64_t *rolling) {
    uint64_t session = o->session, turn = o->turn;
    for (uint64_t i = 0; i < blocks; i++)
        rolling[i] = i < blocks_common()          ? session % SYSTEMS << 32 | i
                     : i < blocks_before(o->turn) ? session << 32 | i
                                                  : (session << 32 | i) ^ turn << 16;
    route_hash_chain(NULL, rolling, blocks, 0, rolling);
}

/* Eight engines are on a host, eight hosts in a rack. */
struct place {
    char host[16], rack[16];
};
static struct place place_of(uint32_t engine) {
    struct place p;
    snprintf(p.host, sizeof(p.host), "h%u", engine / 8);
    snprintf(p.rack, sizeof(p.rack), "k%u", engine / 64);
    return p;
}

static void engines_add(void) {
    for (uint32_t i = 0; i < engines; i++) {
        char id[16];
        struct place p = place_of(i);
        snprintf(id, sizeof(id), "e%u", i);
        struct route_engine_spec s = {.id = span_str(id),
                                      .model = SPAN("m"),
                                      .host = span_str(p.host),
                                      .rack = span_str(p.rack),
                                      .block_tokens = BLOCK,
                                      .kv_blocks = 30000,
                                      .bytes_per_token = 131072};
        TARN_ASSERT(route_engine_add(route, &s, simulated_us) == TARN_OK);
    }
    scope = route_hash_scope(SPAN("m"), SPAN(""), SPAN(""), SPAN(""), BLOCK);
}

/* --- a request's life; each part returns the nanoseconds that the route took for it --- */

static uint64_t now_ns(void) {
    return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

static uint64_t request_first(struct open_request *o) {
    uint64_t rolling[BLOCKS_MAX], start = now_ns();
    if (!o->used) return 0;
    TARN_ASSERT(route_first(route, span_str(o->id), simulated_us) == TARN_OK);
    uint64_t took = now_ns() - start;
    prompt_of(o, rolling);
    struct route_stored e = {.holder = route_worker_holder(route, o->worker),
                             .scope = scope,
                             .n = blocks,
                             .rolling = rolling};
    route_index_stored(route_index(route), &e);
    return took;
}

static uint64_t request_done(struct open_request *o) {
    uint64_t start = now_ns();
    if (!o->used) return 0;
    TARN_ASSERT(route_done(route, span_str(o->id), 100, false, simulated_us) == TARN_OK);
    return now_ns() - start;
}

static void pool_fill(const struct open_request *o, const struct place at[2],
                      struct route_pool_run run[2], struct route_request *q) {
    q->pools[0].tokens = blocks_before(o->turn) * BLOCK;
    q->pools[0].runs = run;
    q->pools[0].run_count = 2;
    run[0].tokens = run[1].begin = blocks_common() * BLOCK;
    run[1].tokens = q->pools[0].tokens - run[1].begin;
    for (unsigned i = 0; i < 2; i++) {
        run[i].tier = ROUTE_TIER_HOST;
        run[i].host = span_str(at[i].host);
        run[i].rack = span_str(at[i].rack);
    }
}

static uint64_t request_decide(struct open_request *o) {
    uint64_t rolling[BLOCKS_MAX];
    struct place at[2] = {place_of(o->session % SYSTEMS * 8 % engines),
                          place_of(o->session % engines)};
    struct route_pool_run run[2] = {0};
    prompt_of(o, rolling);
    struct route_chain chain = {scope, BLOCK, blocks, rolling};
    struct route_request q = {.id = span_str(o->id),
                              .model = SPAN("m"),
                              .policy = policy,
                              .chains = &chain,
                              .chain_count = 1,
                              .length_tokens = blocks * BLOCK + 5,
                              .output_tokens = 100};
    if (pool) pool_fill(o, at, run, &q);
    struct route_decision d;
    struct route_copy copy;
    uint64_t start = now_ns();
    TARN_ASSERT(route_decide(route, &q, simulated_us, &d) == TARN_OK);
    uint64_t took = now_ns() - start;
    while (route_copy_take(route, &copy)) continue;
    o->worker = d.prefill_worker;
    decisions_hash = mix64(decisions_hash ^ d.prefill_worker ^ (uint64_t)d.fetch_worker << 16);
    decisions_hash = mix64(decisions_hash ^ d.load_tokens ^ (uint64_t)(d.ttft_ms * 1000) << 32);
    return took;
}

/* The nanoseconds of a decision; in *rest_p those of the first token and the end of others. */
static uint64_t one_request(uint32_t number, uint64_t *rest_p) {
    struct open_request *o = &ring[number % OPEN];
    *rest_p = request_done(o) + request_first(&ring[(number + OPEN - FIRST) % OPEN]);
    snprintf(o->id, sizeof(o->id), "r%u", number);
    o->session = (uint32_t)rng_below(&rng, SESSIONS);
    o->turn = (uint32_t)rng_below(&rng, TURNS);
    o->used = true;
    simulated_us += GAP_US;
    return request_decide(o);
}

/* --- runs --- */

static void print_times(const struct hist *times) {
    printf("median %.1f us, p99 %.1f us, most %.0f us\n",
           (double)hist_percentile(times, 0.5) / 1000, (double)hist_percentile(times, 0.99) / 1000,
           (double)times->max / 1000);
}

static void run_fast(uint32_t from, uint32_t n) {
    static struct hist times;
    uint64_t decisions_ns = 0, rest_ns = 0;
    hist_init(&times);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t rest, took = one_request(from + i, &rest);
        hist_add(&times, took);
        decisions_ns += took;
        rest_ns += rest;
    }
    printf("decisions   %.0f a second (with first and done %.0f); ", n * 1e9 / (double)decisions_ns,
           n * 1e9 / (double)(decisions_ns + rest_ns));
    print_times(&times);
}

/* A decision that is late makes the next ones wait. The events between them are not in its time:
 * what they took is taken off the clock. */
static void run_paced(uint32_t from, uint32_t n) {
    static struct hist times;
    uint64_t free_ns = 0;
    hist_init(&times);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t rest, due = (uint64_t)i * (1000000000ull / PACE);
        uint64_t took = one_request(from + i, &rest);
        uint64_t begun = free_ns > due ? free_ns : due;
        hist_add(&times, begun + took - due);
        free_ns = begun + took + rest;
    }
    printf("at %u/s  ", PACE);
    print_times(&times);
}

int main(int argc, char **argv) {
    if (argc > 1) engines = (uint32_t)atoi(argv[1]);
    uint32_t decisions = argc > 2 ? (uint32_t)atoi(argv[2]) : 300000;
    if (argc > 3) policy = argv[3];
    if (argc > 4) blocks = (uint32_t)atoi(argv[4]);
    pool = argc > 5 && strcmp(argv[5], "pool") == 0;
    struct route_options options = route_options_default;
    options.index_bytes = 1ull << 30;
    route = route_create(&options);
    if (route == NULL || engines == 0 || decisions == 0 || blocks == 0 || blocks > BLOCKS_MAX)
        return 1;
    rng_seed(&rng, 1);
    engines_add();
    run_fast(0, decisions); /* fills the caches */
    run_fast(decisions, decisions);
    run_paced(2 * decisions, decisions);
    const struct route_figures *f = route_figures_get(route);
    double prompts = (double)f->route_prompt_tokens;
    printf("hits        %.2f of the prompts' tokens, %.2f ahead, %.2f loaded, %.2f fetched; "
           "%.0f MiB\n",
           (double)f->route_hit_tokens / prompts, (double)f->route_ahead_tokens / prompts,
           (double)f->route_load_tokens / prompts, (double)f->route_fetch_tokens / prompts,
           (double)route_memory(route) / 1048576);
    printf("all         %016llx\n", (unsigned long long)decisions_hash);
    route_destroy(&route);
    return 0;
}
