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
    for (unsigned i = 0; i < HOT_WAYS; i++)
        if (line[i].hash == hash && line[i].begun_us > 0) return &line[i];
    for (unsigned i = 1; i < HOT_WAYS; i++)
        if (hot_faded(&line[i], now_us) < hot_faded(least, now_us)) least = &line[i];
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

/* Depths are powers of 2 blocks. */
#define DEPTHS 32u

/* How many candidates have a prefix of each depth, or are about to: that is a copy on its way. */
static void holders_count(const struct cost_case *c, uint32_t block, uint32_t holders[DEPTHS]) {
    memset(holders, 0, DEPTHS * sizeof(*holders));
    for (uint32_t i = 0; i < c->count; i++) {
        const struct candidate *a = &c->candidates[i];
        uint32_t tokens = a->hit_tokens + a->ahead_tokens;
        if (tokens < block || a->engine->block_tokens != block) continue;
        holders[31 - __builtin_clz(tokens / block)]++;
    }
    for (unsigned n = DEPTHS - 1; n-- > 0;) holders[n] += holders[n + 1];
}

/* The holder that has the least to do gives, the one without it that has the least to do takes;
 * both have blocks of one size. */
static bool order_ends(const struct cost_case *c, uint32_t block, uint32_t tokens,
                       const struct candidate **from_p, const struct candidate **to_p) {
    *from_p = *to_p = NULL;
    for (uint32_t i = 0; i < c->count; i++) {
        const struct candidate *a = &c->candidates[i];
        if (a->engine->block_tokens != block) continue;
        const struct candidate **best = a->hit_tokens >= tokens ? from_p : to_p;
        if (*best == NULL || a->wait_us < (*best)->wait_us) *best = a;
    }
    return *from_p != NULL && *to_p != NULL;
}

static bool ordered_lately(const struct route *r, const struct hot_entry *e) {
    return e->ordered_us > 0 && r->now_us - e->ordered_us < AGAIN_US;
}

/* A prefix of so many blocks is too much for those who have it. false: nobody can be given it. */
static bool order_copy(struct cost_case *c, const struct route_chain *chain, uint32_t blocks,
                       struct hot_entry *e) {
    struct route *r = c->route;
    const struct candidate *from, *to;
    if (!order_ends(c, chain->block, blocks * chain->block, &from, &to)) return false;
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
    const struct route_engine *e = r->workers[a->worker].engine;
    if (r->options.copy_share <= 0 || c->count < 2) return;
    const struct route_chain *chain = chain_of(c->request, e);
    if (chain == NULL || chain->n == 0) return;
    struct hot_entry *entry[DEPTHS];
    double share[DEPTHS], most = 0;
    uint32_t holders[DEPTHS];
    unsigned n = 0;
    for (uint32_t blocks = 1; blocks <= chain->n && n < DEPTHS; blocks *= 2, n++) {
        entry[n] = hot_add(&r->hot, chain_name(chain, blocks - 1), a->plan.prefill_us, r->now_us,
                           &share[n]);
        most = most_of(most, share[n]);
    }
    if (most <= r->options.copy_share) return;
    holders_count(c, chain->block, holders);
    while (n-- > 0) {
        if (share[n] <= r->options.copy_share) continue;
        if (ordered_lately(r, entry[n])) return;
        if (share[n] <= r->options.copy_share * holders[n]) continue;
        if (order_copy(c, chain, 1u << n, entry[n])) return;
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
