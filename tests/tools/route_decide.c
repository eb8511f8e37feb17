/* How many decisions a core makes: docs/BENCHMARKS.md has its numbers.
 *
 *     route_decide [ENGINES [DECISIONS [POLICY]]]          200 300000 tarn
 *
 * Prompts of 128 blocks, given as hashes, of 20,000 conversations that all begin with one of eight
 * system prompts of 24 blocks; an engine tells of what it computed, and a request is told of as
 * first and done some time after. Twice: as fast as it goes, and at a steady 25,000 a second, where
 * the time of a decision is counted from when it was due. Times are CPU time of the thread. */
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

#define BLOCK    16u
#define PROMPT   128u
#define SYSTEM   24u
#define SYSTEMS  8u
#define SESSIONS 20000u
#define OPEN     2000u /* requests under way */
#define PACE     25000u

struct open_request {
    char id[16];
    bool used;
};

static struct route *route;
static struct rng rng;
static struct open_request ring[OPEN];
static uint64_t scope, simulated_us = 1000000;

static void prompt_of(uint64_t session, uint64_t turn, uint64_t *rolling) {
    uint64_t known = SYSTEM + 8 * (turn % 12);
    for (uint64_t i = 0; i < PROMPT; i++)
        rolling[i] = i < SYSTEM  ? session % SYSTEMS << 32 | i
                     : i < known ? session << 32 | i
                                 : (session << 32 | i) ^ turn << 16;
    route_hash_chain(NULL, rolling, PROMPT, 0, rolling);
}

static void engines_add(uint32_t engines) {
    for (uint32_t i = 0; i < engines; i++) {
        char id[16];
        snprintf(id, sizeof(id), "e%u", i);
        struct route_engine_spec s = {.id = span_str(id),
                                      .model = SPAN("m"),
                                      .block_tokens = BLOCK,
                                      .kv_blocks = 30000,
                                      .bytes_per_token = 131072};
        TARN_ASSERT(route_engine_add(route, &s, simulated_us) == TARN_OK);
    }
    scope = route_hash_scope(SPAN("m"), SPAN(""), SPAN(""), SPAN(""), BLOCK);
}

static void request_ends(struct open_request *o) {
    if (!o->used) return;
    TARN_ASSERT(route_first(route, span_str(o->id), simulated_us) == TARN_OK);
    TARN_ASSERT(route_done(route, span_str(o->id), 100, false, simulated_us) == TARN_OK);
}

/* One request from its decision to its end, which is OPEN requests later; the nanoseconds of the
 * decision, of all else that a route does for a request (not of the index's events) in *rest_p. */
static uint64_t one_request(uint32_t number, const uint64_t *rolling, const char *policy,
                            uint64_t *rest_p) {
    struct open_request *o = &ring[number % OPEN];
    uint64_t start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    request_ends(o);
    *rest_p = clock_ns(CLOCK_THREAD_CPUTIME_ID) - start;
    snprintf(o->id, sizeof(o->id), "r%u", number);
    o->used = true;
    struct route_chain chain = {scope, BLOCK, PROMPT, rolling};
    struct route_request q = {.id = span_str(o->id),
                              .model = SPAN("m"),
                              .policy = policy,
                              .chains = &chain,
                              .chain_count = 1,
                              .length_tokens = PROMPT * BLOCK + 5,
                              .output_tokens = 100};
    struct route_decision d;
    start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    TARN_ASSERT(route_decide(route, &q, simulated_us, &d) == TARN_OK);
    uint64_t took = clock_ns(CLOCK_THREAD_CPUTIME_ID) - start;
    struct route_stored e = {.holder = route_worker_holder(route, d.prefill_worker),
                             .scope = scope,
                             .n = PROMPT,
                             .rolling = rolling};
    route_index_stored(route_index(route), &e);
    return took;
}

static void draw_prompt(uint64_t *rolling) {
    prompt_of(rng_below(&rng, SESSIONS), rng_below(&rng, 12), rolling);
    simulated_us += 500; /* 2,000 a second are a load that 200 engines bear */
}

static void run_fast(uint32_t from, uint32_t n, const char *policy) {
    static struct hist times;
    uint64_t rolling[PROMPT], decisions_ns = 0, rest_ns = 0;
    hist_init(&times);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t rest;
        draw_prompt(rolling);
        uint64_t took = one_request(from + i, rolling, policy, &rest);
        hist_add(&times, took);
        decisions_ns += took;
        rest_ns += rest;
    }
    printf(
        "decisions   %.0f a second (with first and done %.0f); median %.1f us, p99 %.1f us, most "
        "%.0f us\n",
        n * 1e9 / (double)decisions_ns, n * 1e9 / (double)(decisions_ns + rest_ns),
        (double)hist_percentile(&times, 0.5) / 1000, (double)hist_percentile(&times, 0.99) / 1000,
        (double)times.max / 1000);
}

/* A decision that is late makes the next ones wait. The events between them are not in its time:
 * what they took is taken off the clock. */
static void run_paced(uint32_t from, uint32_t n, const char *policy) {
    static struct hist times;
    uint64_t rolling[PROMPT], free_ns = 0;
    hist_init(&times);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t rest, due = (uint64_t)i * (1000000000ull / PACE);
        draw_prompt(rolling);
        uint64_t took = one_request(from + i, rolling, policy, &rest);
        uint64_t begun = free_ns > due ? free_ns : due;
        hist_add(&times, begun + took - due);
        free_ns = begun + took + rest;
    }
    printf("at %u/s  median %.1f us, p99 %.1f us, most %.0f us\n", PACE,
           (double)hist_percentile(&times, 0.5) / 1000,
           (double)hist_percentile(&times, 0.99) / 1000, (double)times.max / 1000);
}

int main(int argc, char **argv) {
    uint32_t engines = argc > 1 ? (uint32_t)atoi(argv[1]) : 200;
    uint32_t decisions = argc > 2 ? (uint32_t)atoi(argv[2]) : 300000;
    const char *policy = argc > 3 ? argv[3] : "tarn";
    struct route_options options = route_options_default;
    options.index_bytes = 1ull << 30;
    route = route_create(&options);
    if (route == NULL || engines == 0 || decisions == 0) return 1;
    rng_seed(&rng, 1);
    engines_add(engines);
    run_fast(0, decisions, policy); /* fills the caches */
    run_fast(decisions, decisions, policy);
    run_paced(2 * decisions, decisions, policy);
    const struct route_figures *f = route_figures_get(route);
    double prompts = (double)f->route_prompt_tokens;
    printf("hits        %.2f of the prompts' tokens, %.2f fetched; %.0f MiB\n",
           (double)f->route_hit_tokens / prompts, (double)f->route_fetch_tokens / prompts,
           (double)route_memory(route) / 1048576);
    route_destroy(&route);
    return 0;
}
