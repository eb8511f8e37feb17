/* How long it takes to load KV from where it lies. */
#include "route/internal.h"

/* Bytes to load by place; what comes from one place comes one after the other, and all of them
 * through the engine's own link. */
struct transfer_sum {
    double bytes[ROUTE_PLACES], disk_bytes[ROUTE_PLACES];
};

static struct transfer transfer_of(const struct route_engine *e, const struct transfer_sum *s) {
    struct transfer t = {.place = ROUTE_PLACES};
    for (unsigned p = 0; p < ROUTE_PLACES; p++) {
        if (s->bytes[p] <= 0) continue;
        t.mixed = t.place != ROUTE_PLACES;
        if (!t.mixed) t.place = (enum route_place)p;
        t.disk |= s->disk_bytes[p] > 0;
        t.bytes += (uint64_t)s->bytes[p];
        t.us +=
            model_predict(&e->transfer[p], (double[MODEL_TERMS]){1, s->bytes[p], s->disk_bytes[p]});
    }
    if (t.place == ROUTE_PLACES) t.place = ROUTE_SAME_HOST;
    return t;
}

void transfer_find_runs(struct route *r, const struct route_request *q) {
    for (uint32_t i = 0; i < q->pool_count; i++) {
        r->run_host[i] = name_find(r, q->pool[i].host);
        r->run_rack[i] = name_find(r, q->pool[i].rack);
    }
}

struct transfer transfer_from_pool(const struct route *r, const struct route_engine *e,
                                   const struct route_request *q, uint32_t begin) {
    struct transfer_sum s = {0};
    for (uint32_t i = 0; i < q->pool_count; i++) {
        const struct route_pool_run *run = &q->pool[i];
        uint64_t end = (uint64_t)run->begin + run->tokens;
        if (run->tokens == 0 || end <= begin) continue;
        double tokens = (double)(end - (begin > run->begin ? begin : run->begin));
        double each = run->bytes > 0 ? (double)run->bytes / run->tokens : e->bytes_per_token;
        enum route_place place = engine_place(e, r->run_host[i], r->run_rack[i]);
        /* Something, so that it has its latency where sizes are unknown. */
        s.bytes[place] += each > 0 ? tokens * each : 1;
        if (run->tier == ROUTE_TIER_DISK) s.disk_bytes[place] += tokens * each;
    }
    return transfer_of(e, &s);
}

struct transfer transfer_between(const struct route_engine *from, const struct route_engine *to,
                                 uint32_t tokens) {
    double bytes = most_of((double)tokens * from->bytes_per_token, 1);
    enum route_place place = engine_place(to, from->host, from->rack);
    return (struct transfer){
        .us = model_predict(&to->transfer[place], (double[MODEL_TERMS]){1, bytes, 0}),
        .bytes = (uint64_t)bytes,
        .place = place};
}
