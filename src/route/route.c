/* Life, time, figures. */
#include "route/route.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "route/internal.h"

#define WORKERS_MOST  ROUTE_HOLDERS_MAX
#define REQUESTS_MOST (1u << 24)
#define KEPT_MOST     (1u << 20)
/* Reservations that one call ends at most. */
#define TICK_LEASES 64u
#define TICK_STEPS  256u
#define TICK_PAIRS  256u /* of holders that left */

const struct route_options route_options_default = {
    .policy = "tarn",
    .seed = 1,
    .workers_max = 1024,
    .requests_max = 65536,
    .tenants_max = 1024,
    .sessions_max = 65536,
    .decisions_max = 256,
    .index_bytes = 256u << 20,
    .lease_ms = 60000,
    .silent_ms = 15000,
    .backoff_ms = 1000,
    .backoff_max_ms = 60000,
    .tenant_wait_ms = 1000,
    .output_tokens = 256,
    .tree_rate = 0.5,
    .tree_ratio = 1.5,
    .tree_gap = 64,
    .dynamo_scale = 1,
    .dynamo_credit = {1, 0.75, 0.25},
    .mooncake_threshold = 1.25,
    .score_hit = 0.6,
    .score_load = 0.4,
    .fetch = true,
    .copy_share = 0.5,
};

/* 16 GFLOP a token and 0.5 MFLOP a pair of tokens at half of 989 TFLOPS; 16 GB of weights and 128
 * KiB of context a token at 80 % of 3.35 TB/s. */
const struct route_prior route_prior_default = {
    .prefill_start_us = 8000,
    .prefill_token_us = 32,
    .prefill_pair_us = 0.001,
    .decode_step_us = 6000,
    .decode_sequence_us = 10,
    .decode_context_us = 0.05,
    .latency_us = {50, 200, 1000},
    .rate = {20000, 12500, 12500},
    .disk_rate = 3000,
};

#define ROW(...) FIGURE_ROW(struct route_figures, __VA_ARGS__)
const struct figure route_figures[] = {ROUTE_FIGURES(ROW){.name = NULL}};

static bool bounded(double v, double least, double most) {
    return isfinite(v) && v >= least && v <= most;
}

static bool credits_bounded(const struct route_options *o) {
    for (unsigned t = 0; t < ROUTE_TIERS; t++)
        if (!bounded(o->dynamo_credit[t], 0, 1)) return false;
    return true;
}

static bool options_bounded(const struct route_options *o) {
    return o->workers_max >= 1 && o->workers_max <= WORKERS_MOST && o->requests_max >= 1 &&
           o->requests_max <= REQUESTS_MOST && o->tenants_max >= 1 && o->tenants_max <= KEPT_MOST &&
           o->sessions_max >= 1 && o->sessions_max <= KEPT_MOST && o->decisions_max <= KEPT_MOST &&
           o->index_bytes >= ROUTE_INDEX_BYTES_MIN && o->lease_ms >= 1 &&
           o->lease_ms <= LEASE_MS_MOST && bounded(o->ttft_ms, 0, 1e9) &&
           bounded(o->tbt_ms, 0, 1e9) && bounded(o->tree_rate, 0, 1) &&
           bounded(o->tree_ratio, 1, 1e6) && bounded(o->dynamo_scale, 0, 1e6) &&
           bounded(o->dynamo_temperature, 0, 1e6) && credits_bounded(o) &&
           bounded(o->mooncake_threshold, 1, 1e6) && bounded(o->score_hit, 0, 1e6) &&
           bounded(o->score_load, 0, 1e6) && bounded(o->copy_share, 0, 1e6) &&
           o->output_tokens >= 1;
}

struct route *route_create(const struct route_options *options) {
    if (options == NULL) options = &route_options_default;
    const char *name = options->policy == NULL ? route_options_default.policy : options->policy;
    const struct cost_ops *policy = cost_find(name);
    if (policy == NULL || !options_bounded(options)) return NULL;
    struct route_index *index =
        route_index_create(&(struct route_index_config){.max_bytes = options->index_bytes,
                                                        .seed = options->index_seed,
                                                        .holders_max = options->workers_max});
    if (index == NULL) return NULL;
    struct route *r = xcalloc(1, sizeof(*r));
    r->index = index;
    r->options = *options;
    r->options.policy = policy->name;
    r->policy = policy;
    rng_seed(&r->rng, options->seed);
    size_t size = options->workers_max * sizeof(*r->workers);
    r->workers = aligned_alloc(_Alignof(struct worker), size);
    if (r->workers == NULL) abort();
    memset(r->workers, 0, size);
    r->candidates = xcalloc(options->workers_max, sizeof(*r->candidates));
    r->output_mean = options->output_tokens;
    r->leases = wheel_create(0);
    r->hits = xcalloc(options->workers_max, sizeof(*r->hits));
    r->worker_of = xcalloc(options->workers_max + 1, sizeof(*r->worker_of));
    r->place_of = xcalloc(options->workers_max, sizeof(*r->place_of));
    r->passed = xcalloc(options->workers_max, sizeof(*r->passed));
    ahead_init(&r->ahead, options->requests_max);
    tenants_init(&r->tenants, options->tenants_max);
    sessions_init(&r->sessions);
    hot_init(&r->hot);
    explain_init(r);
    return r;
}

/* Also those that no worker has: their prefill is over, and the engine that was to decode left. */
static void request_drop(void *arg, struct htab_node *node) {
    struct route_reservation *q = CONTAINER_OF(node, struct route_reservation, node);
    request_release(arg, &q);
}

void route_requests_clear(struct route *r) {
    htab_each(&r->requests, request_drop, r);
}

void route_destroy(struct route **route_p) {
    struct route *r = *route_p;
    if (r == NULL) return;
    *route_p = NULL;
    r->ended = NULL;
    route_requests_clear(r);
    for (uint32_t i = 0; i < r->workers_used; i++) {
        if (r->workers[i].engine == NULL) continue;
        route_engine_remove(r, span_str(r->workers[i].engine->id), r->now_us);
    }
    route_index_destroy(&r->index);
    wheel_destroy(&r->leases);
    htab_free(&r->names);
    htab_free(&r->engines);
    htab_free(&r->requests);
    free(r->candidates);
    free(r->hits);
    free(r->worker_of);
    free(r->place_of);
    free(r->passed);
    ahead_deinit(&r->ahead);
    tenants_deinit(&r->tenants);
    sessions_deinit(&r->sessions);
    hot_deinit(&r->hot);
    explain_deinit(r);
    free(r->workers);
    free(r);
}

struct route_index *route_index(struct route *r) {
    return r->index;
}

const char *route_error(const struct route *r) {
    return r->error;
}

tarn_status route_fail(struct route *r, tarn_status status, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->error, sizeof(r->error), fmt, ap);
    va_end(ap);
    return status;
}

uint64_t route_clock(struct route *r, uint64_t now_us) {
    r->now_us = max_u64(r->now_us, now_us);
    return r->now_us;
}

uint64_t route_tick(struct route *r, uint64_t now_us) {
    unsigned budget = TICK_STEPS;
    bool more = false;
    uint64_t now_ms = route_clock(r, now_us) / 1000;
    for (unsigned i = 0; i < TICK_LEASES; i++) {
        struct wheel_node *node = wheel_pop(r->leases, now_ms, &budget, &more);
        if (node == NULL) break;
        struct route_reservation *q = CONTAINER_OF(node, struct route_reservation, lease);
        r->figures.route_lease_ends++;
        request_release(r, &q);
        more = i + 1 == TICK_LEASES;
    }
    more |= route_index_sweep(r->index, TICK_PAIRS);
    return more ? 0 : 1000 * wheel_next_ms(r->leases, now_ms, 1000);
}

const struct route_figures *route_figures_get(const struct route *r) {
    return &r->figures;
}

size_t route_memory(const struct route *r) {
    return sizeof(*r) +
           r->options.workers_max *
               (sizeof(*r->workers) + sizeof(*r->candidates) + sizeof(*r->hits) +
                sizeof(*r->worker_of) + sizeof(*r->place_of) + sizeof(*r->passed)) +
           ahead_memory(&r->ahead) + HOT_BYTES + explain_memory(r) + sessions_memory(&r->sessions) +
           htab_memory(&r->tenants.table) +
           r->tenants.table.count * (sizeof(struct tenant) + ROUTE_NAME_MAX) +
           route_index_stats(r->index).route_index_bytes + htab_memory(&r->names) +
           htab_memory(&r->engines) + htab_memory(&r->requests) +
           r->figures.route_engines * sizeof(struct route_engine) +
           r->figures.route_reserved * sizeof(struct route_reservation);
}

tarn_status route_tenant_weight(struct route *r, struct span tenant, double weight,
                                uint64_t now_us) {
    route_tick(r, now_us);
    if (tenant.len > ROUTE_NAME_MAX)
        return route_fail(r, TARN_EINVAL, "a tenant has up to %u bytes", ROUTE_NAME_MAX);
    if (!bounded(weight, 1e-6, 1e6))
        return route_fail(r, TARN_EINVAL, "a weight is from 0.000001 to 1000000");
    struct tenant *who = tenant_named(r, tenant);
    if (who == NULL)
        return route_fail(r, TARN_ELIMIT, "there are %u tenants at most", r->options.tenants_max);
    tenant_set_weight(&r->tenants, who, weight);
    return TARN_OK;
}

bool route_tenant_next(const struct route *r, const void **cursor_p,
                       struct route_tenant_view *view_p) {
    const struct tenant *who = *cursor_p;
    who = who == NULL ? TAILQ_FIRST(&r->tenants.by_use) : TAILQ_NEXT(who, by_use);
    if (who == NULL) return false;
    *cursor_p = who;
    *view_p = (struct route_tenant_view){.name = span_of(who->name, who->name_len),
                                         .weight = who->weight,
                                         .admitted = who->admitted,
                                         .refused = who->refused,
                                         .waiting = who->waiting,
                                         .waiting_ms = who->waiting_us / 1000};
    return true;
}
