/* How long it takes to load KV from where it lies. */
#include "route/internal.h"

/* No run of a prompt has so many bytes; it keeps sums of nonsense within their type. */
#define RUN_BYTES_MOST 0x1p50

/* Bytes to load by place; what comes from one place comes one after the other, and all of them
 * through the engine's own link. */
struct transfer_sum {
    double bytes[ROUTE_PLACES], disk_bytes[ROUTE_PLACES];
};

static void pool_take(const struct route *r, const struct route_pool *from, struct pool_there *p) {
    p->tokens = from->tokens;
    p->count = 0;
    for (uint32_t i = 0; i < from->run_count; i++) {
        const struct route_pool_run *run = &from->runs[i];
        if (run->tokens == 0) continue;
        p->run[p->count++] =
            (struct pool_run){.begin = run->begin,
                              .end = (int64_t)run->begin + run->tokens,
                              .host = name_or_none(name_find(r, run->host)),
                              .rack = name_or_none(name_find(r, run->rack)),
                              .token_bytes = run->bytes > 0 ? (double)run->bytes / run->tokens : 0,
                              .disk = run->tier == ROUTE_TIER_DISK};
    }
}

void transfer_find_pools(struct cost_case *c) {
    struct route *r = c->route;
    r->pools_count = 0;
    for (uint32_t i = 0; i < ROUTE_POOLS_MAX; i++) {
        const struct route_pool *from = &c->request->pools[i];
        const struct route_name *keys = from->tokens > 0 ? name_find(r, from->keys) : NULL;
        if (keys == NULL) continue;
        struct pool_there *p = &r->pools[r->pools_count++];
        p->keys = keys;
        pool_take(r, from, p);
    }
}

/* Of the runs' tokens from `begin` on. */
static inline void pool_sum(const struct route *r, const struct candidate *a, uint32_t begin,
                            struct transfer_sum *s) {
    const struct route_engine *e = a->engine;
    const struct pool_there *there = &r->pools[a->pool];
    TARN_ASSERT(a->pool < r->pools_count);
    for (uint32_t i = 0; i < there->count; i++) {
        const struct pool_run *run = &there->run[i];
        if (run->end <= begin) continue;
        double tokens = (double)(run->end - (begin > run->begin ? begin : run->begin));
        double bytes = tokens * (run->token_bytes > 0 ? run->token_bytes : e->bytes_per_token);
        bytes = least_of(bytes, RUN_BYTES_MOST);
        enum route_place place = engine_place(e, run->host, run->rack);
        /* Something, so that it has its latency where sizes are unknown. */
        s->bytes[place] += bytes > 0 ? bytes : 1;
        if (run->disk) s->disk_bytes[place] += bytes;
    }
}

static inline double place_us(const struct route_engine *e, const struct transfer_sum *s,
                              unsigned place) {
    return model_predict_one(&e->transfer[place], s->bytes[place], s->disk_bytes[place]);
}

double transfer_pool_us(const struct cost_case *c, const struct candidate *a, uint32_t begin) {
    struct transfer_sum s = {0};
    double us = 0;
    pool_sum(c->route, a, begin, &s);
    for (unsigned p = 0; p < ROUTE_PLACES; p++)
        if (s.bytes[p] > 0) us += place_us(a->engine, &s, p);
    return us;
}

struct transfer transfer_from_pool(const struct cost_case *c, const struct candidate *a,
                                   uint32_t begin) {
    struct transfer_sum s = {0};
    struct transfer t = {.place = ROUTE_PLACES};
    pool_sum(c->route, a, begin, &s);
    for (unsigned p = 0; p < ROUTE_PLACES; p++) {
        if (s.bytes[p] <= 0) continue;
        t.mixed = t.place != ROUTE_PLACES;
        if (!t.mixed) t.place = (enum route_place)p;
        t.disk |= s.disk_bytes[p] > 0;
        t.bytes += (uint64_t)s.bytes[p];
        t.us += place_us(a->engine, &s, p);
    }
    if (t.place == ROUTE_PLACES) t.place = ROUTE_SAME_HOST;
    return t;
}
