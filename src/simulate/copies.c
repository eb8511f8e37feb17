/* Copies of hot prefixes: routing orders them, engines carry them out. */
#include <stdlib.h>

#include "base/assert.h"
#include "simulate/run.h"

/* How many of the first blocks are in its memories. */
static uint32_t blocks_there(const struct sim_engine *e, const uint64_t *ids, uint32_t n) {
    uint32_t k = 0;
    while (k < n && (cache_has(&e->device, (uint32_t)ids[k]) ||
                     (e->host.capacity > 0 && cache_has(&e->host, (uint32_t)ids[k]))))
        k++;
    return k;
}

static uint32_t copy_take(struct sim *s) {
    uint32_t i = s->free_copy;
    if (i != CALL_NONE) {
        s->free_copy = s->copies[i].next;
        return i;
    }
    ARRAY_GROW(s->copies, s->n_copies, s->cap_copies);
    return (uint32_t)s->n_copies++;
}

static void copy_begin(struct sim *s, uint64_t number, const struct router_copy *order) {
    const uint64_t *ids = s->trace->ids + s->trace->requests[number].first;
    uint32_t blocks = blocks_there(&s->engines[order->from], ids, order->blocks);
    uint32_t has = blocks_there(&s->engines[order->to], ids, blocks);
    if (blocks <= has) return;
    uint32_t i = copy_take(s);
    double bytes = (blocks - has) * s->block_bytes;
    s->copies[i] = (struct sim_copy){
        .live = true, .from = order->from, .to = order->to, .ids = ids, .blocks = blocks};
    s->result->copies++;
    s->result->copied_bytes += bytes;
    network_start(&s->network, s->now, order->from, order->to, bytes, i * FLOW_KINDS + FLOW_COPY);
}

void copies_begin(struct sim *s, uint64_t number) {
    struct router_copy order;
    while (router_copy_take(s->router, &order)) copy_begin(s, number, &order);
}

/* Its blocks are held until all are there, so that none pushes out another one. */
static void copy_arrive(struct sim *s, const struct sim_copy *c) {
    struct cache *device = &s->engines[c->to].device;
    uint32_t n = 0;
    for (; n < c->blocks; n++) {
        cache_keep(device, (uint32_t)c->ids[n]);
        if (!cache_has(device, (uint32_t)c->ids[n])) break; /* all else is in use */
        cache_hold(device, (uint32_t)c->ids[n]);
    }
    router_stored(s->router, c->to, ROUTE_TIER_DEVICE, c->ids, 0, n);
    while (n > 0) cache_drop(device, (uint32_t)c->ids[--n]);
}

void copy_ended(struct sim *s, uint32_t copy) {
    struct sim_copy *c = &s->copies[copy];
    if (c->live) copy_arrive(s, c);
    c->live = false;
    c->next = s->free_copy;
    s->free_copy = copy;
}

void copies_fail(struct sim *s, uint32_t engine) {
    for (size_t i = 0; i < s->n_copies; i++)
        if (s->copies[i].from == engine || s->copies[i].to == engine) s->copies[i].live = false;
}
