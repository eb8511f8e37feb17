#include "route/hot.h"
#include <math.h>
#include <stdlib.h>
#include "route/internal.h"

#define FADE_US  60e6
#define LEAST_US 5e6 /* shares of a shorter time say little */
/* A copy takes effect when its events have come; until then there is no other. */
#define AGAIN_US 10000000ull

void hot_init(struct hot_prefixes *h) {
    h->entries = xcalloc(HOT_LINES * HOT_WAYS, sizeof(*h->entries));
}

void hot_deinit(struct hot_prefixes *h) {
    free(h->entries);
    h->entries = NULL;
}

static double hot_faded(const struct hot_entry *e, uint64_t now_us) {
    return e->work_us * exp(-(double)(now_us - e->at_us) / FADE_US);
}

static struct hot_entry *hot_entry_of(struct hot_prefixes *h, uint64_t hash, uint64_t now_us) {
    struct hot_entry *line = &h->entries[(hash ^ hash >> 32) % HOT_LINES * HOT_WAYS];
    struct hot_entry *least = line;
    for (unsigned i = 0; i < HOT_WAYS; i++) {
        if (line[i].hash == hash && line[i].begun_us > 0) return &line[i];
        if (hot_faded(&line[i], now_us) < hot_faded(least, now_us)) least = &line[i];
    }
    *least = (struct hot_entry){.hash = hash, .at_us = now_us, .begun_us = now_us};
    return least;
}

struct hot_entry *hot_add(struct hot_prefixes *h, uint64_t hash, double work_us, uint64_t now_us,
                          double *share_p) {
    struct hot_entry *e = hot_entry_of(h, hash, now_us);
    e->work_us = hot_faded(e, now_us) + work_us;
    e->at_us = now_us;
    double seen = (double)(now_us - e->begun_us);
    double window = FADE_US * (1 - exp(-seen / FADE_US));
    *share_p = seen < LEAST_US ? 0 : e->work_us / window;
    return e;
}

/* --- orders --- */

static void order_put(struct route *r, const struct route_copy *copy) {
    if (r->orders_count == HOT_ORDERS) return; /* nobody takes them */
    r->orders[(r->orders_head + r->orders_count++) % HOT_ORDERS] = (struct hot_order){
        *copy, r->workers[copy->from_worker].birth, r->workers[copy->to_worker].birth};
    r->figures.route_copies++;
}

/* The holder that has the least to do gives, the one without it that has the least to do takes;
 * both have blocks of one size. */
static bool order_ends(const struct cost_case *c, uint32_t block, uint32_t tokens,
                       uint32_t *holders_p, const struct candidate **from_p,
                       const struct candidate **to_p) {
    *from_p = *to_p = NULL;
    *holders_p = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        const struct candidate *a = &c->candidates[i];
        if (c->route->workers[a->worker].engine->block_tokens != block) continue;
        bool has = a->hit_tokens >= tokens;
        const struct candidate **best = has ? from_p : to_p;
        /* What is about to be computed is a copy on its way. */
        *holders_p += has || a->hit_tokens + a->ahead_tokens >= tokens;
        if (*best == NULL || a->wait_us < (*best)->wait_us) *best = a;
    }
    return *from_p != NULL && *to_p != NULL;
}

/* A prefix of so many blocks takes so much of one engine. true: a copy was ordered. */
static bool order_copy(struct cost_case *c, const struct route_chain *chain, uint32_t blocks,
                       struct hot_entry *e, double share) {
    struct route *r = c->route;
    const struct candidate *from, *to;
    uint32_t holders;
    if (e->ordered_us > 0 && r->now_us - e->ordered_us < AGAIN_US) return true;
    if (!order_ends(c, chain->block, blocks * chain->block, &holders, &from, &to)) return false;
    if (share <= r->options.copy_share * holders) return false;
    e->ordered_us = r->now_us;
    order_put(r, &(struct route_copy){.hash = chain->rolling[blocks - 1],
                                      .scope = chain->scope,
                                      .tokens = blocks * chain->block,
                                      .from_worker = from->worker,
                                      .to_worker = to->worker});
    return true;
}

void hot_count(struct cost_case *c, const struct candidate *a) {
    struct route *r = c->route;
    const struct route_request *q = c->request;
    const struct route_engine *e = r->workers[a->worker].engine;
    if (r->options.copy_share <= 0 || c->count < 2) return;
    const struct route_chain *chain = chain_of(q, e);
    if (chain == NULL || chain->n == 0) return;
    struct hot_entry *entry[32];
    double share[32];
    unsigned n = 0;
    for (uint32_t blocks = 1; blocks <= chain->n && n < 32; blocks *= 2, n++)
        entry[n] =
            hot_add(&r->hot, chain_name(chain, blocks - 1), a->prefill_us, r->now_us, &share[n]);
    while (n-- > 0) {
        if (share[n] <= r->options.copy_share) continue;
        if (order_copy(c, chain, 1u << n, entry[n], share[n])) return;
    }
}

bool route_copy_take(struct route *r, struct route_copy *order_p) {
    while (r->orders_count > 0) {
        const struct hot_order *o = &r->orders[r->orders_head];
        r->orders_head = (r->orders_head + 1) % HOT_ORDERS;
        r->orders_count--;
        if (!worker_still(r, o->copy.from_worker, o->from_birth) ||
            !worker_still(r, o->copy.to_worker, o->to_birth))
            continue;
        const struct worker *from = &r->workers[o->copy.from_worker];
        const struct worker *to = &r->workers[o->copy.to_worker];
        *order_p = o->copy;
        order_p->from = from->engine->id;
        order_p->from_rank = from->rank;
        order_p->to = to->engine->id;
        order_p->to_rank = to->rank;
        return true;
    }
    return false;
}
