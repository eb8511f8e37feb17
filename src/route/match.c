/* What is there of a prompt, or will be: by the index, and by what is on its way. */
#include "route/internal.h"

/* What is told by tiers and all faster ones, of whole blocks of the prompt. */
static inline void candidate_hit(struct candidate *a, const struct route_hit *h) {
    a->hit_tokens = h->tokens[ROUTE_TIERS - 1];
    a->tier_tokens[0] = h->tokens[0];
    for (unsigned t = 1; t < ROUTE_TIERS; t++) a->tier_tokens[t] = h->tokens[t] - h->tokens[t - 1];
}

/* Also who has most of it. */
static void match_index(struct cost_case *c) {
    const struct route *r = c->route;
    const struct route_request *q = c->request;
    uint32_t most = 0, best = 0;
    size_t n =
        route_index_match(r->index, q->chains, q->chain_count, r->hits, r->options.workers_max);
    for (const struct route_hit *h = r->hits, *end = h + n; h < end; h++) {
        struct candidate *a = candidate_of(c, r->worker_of[h->holder]);
        if (a == NULL) continue;
        candidate_hit(a, h);
        uint32_t place = (uint32_t)(a - c->candidates);
        if (a->hit_tokens < most || (a->hit_tokens == most && place > best)) continue;
        most = a->hit_tokens;
        best = place;
    }
    c->best = best;
}

/* The group that begins with block `at` of the chain is on its way to the workers of its set, as
 * far as their prompts agree with this one; it counts for those that have or will have all blocks
 * before it. The longest prefix that somebody has then. */
static uint32_t match_ahead_group(struct cost_case *c, const struct route_chain *chain, uint32_t at,
                                  uint32_t longest) {
    const struct route *r = c->route;
    uint64_t now_ms = r->now_us / 1000;
    struct ahead_group group;
    ahead_group_of(chain, at, &group);
    const struct ahead_set *set = ahead_set_of(&r->ahead, group.first);
    for (const struct ahead_entry *e = set->way, *end = e + AHEAD_WAYS; e < end; e++) {
        uint32_t common = ahead_common(&e->group, &group);
        if (common == 0 || !ahead_live(e, now_ms) || !worker_still(r, e->worker, e->birth))
            continue;
        struct candidate *a = candidate_of(c, e->worker);
        if (a == NULL || a->engine->block_tokens != chain->block) continue;
        uint32_t there = a->hit_tokens + a->ahead_tokens, reach = (at + common) * chain->block;
        if (there < at * chain->block || there >= reach) continue;
        a->ahead_tokens = reach - a->hit_tokens;
        if (reach > longest) longest = reach;
    }
    return longest;
}

/* always_inline: see route_table_prefetch. */
__attribute__((always_inline)) static inline void ahead_prefetch(const struct ahead_set *set) {
    for (unsigned i = 0; i < AHEAD_WAYS; i++) __builtin_prefetch(&set->way[i], 1);
}

static uint32_t ahead_blocks(const struct route_chain *chain) {
    return chain->n < AHEAD_BLOCKS_MAX ? chain->n : AHEAD_BLOCKS_MAX;
}

/* Behind the longest prefix that somebody has, nothing can follow. Sets lie anywhere, so they are
 * fetched two groups before they are looked at. */
static void match_ahead(struct cost_case *c, const struct route_chain *chain) {
    const struct ahead *table = &c->route->ahead;
    uint32_t n = ahead_blocks(chain), near = 2 * AHEAD_GROUP;
    uint32_t longest = c->candidates[c->best].hit_tokens;
    for (uint32_t at = 0; at < n && at < near; at += AHEAD_GROUP)
        ahead_prefetch(ahead_set_of(table, chain_name(chain, at)));
    for (uint32_t at = 0; at < n && at * chain->block <= longest; at += AHEAD_GROUP) {
        if (at + near < n) ahead_prefetch(ahead_set_of(table, chain_name(chain, at + near)));
        longest = match_ahead_group(c, chain, at, longest);
    }
}

void match_candidates(struct cost_case *c) {
    const struct route_request *q = c->request;
    c->best = 0;
    if (q->chain_count == 0) return;
    match_index(c);
    for (uint32_t k = 0; k < q->chain_count; k++) match_ahead(c, &q->chains[k]);
}

/* Until twice its estimate and some more, for the event that tells of them. */
#define AHEAD_GRACE_MS 2000u

void match_ahead_put(const struct cost_case *c, const struct candidate *a) {
    struct route *r = c->route;
    const struct worker *w = &r->workers[a->worker];
    const struct route_chain *chain = chain_of(c->request, a->engine);
    if (chain == NULL) return;
    uint64_t now_ms = r->now_us / 1000;
    uint64_t until_ms = now_ms + AHEAD_GRACE_MS + (uint64_t)least_of(a->plan.ttft_us / 500, 3.6e6);
    uint32_t n = ahead_blocks(chain), first = a->hit_tokens / chain->block;
    first -= first % AHEAD_GROUP;
    for (uint32_t at = first; at < n; at += AHEAD_GROUP)
        ahead_prefetch(ahead_set_of(&r->ahead, chain_name(chain, at)));
    for (uint32_t at = first; at < n; at += AHEAD_GROUP) {
        struct ahead_group group;
        ahead_group_of(chain, at, &group);
        ahead_put(&r->ahead, &group, (uint16_t)a->worker, w->birth, now_ms, until_ms);
    }
}

/* The request's matches so far. */
struct matching {
    const struct route_request *request;
    const struct route_name *model, *lora;
    const struct route_name *keys[ROUTE_POOLS_MAX]; /* NULL: nothing is in the pool by these */
    struct route_matched *out;
    size_t found, cap;
};

/* Keys are long texts: they are looked up once, not compared for each engine. false: the pool has
 * nothing. */
static bool matching_pools(const struct route *r, struct matching *m) {
    const struct route_pool *pools = m->request->pools;
    bool any = false;
    for (uint32_t i = 0; i < ROUTE_POOLS_MAX; i++) {
        m->keys[i] = pools[i].tokens > 0 ? name_find(r, pools[i].keys) : NULL;
        any |= m->keys[i] != NULL;
    }
    return any;
}

static uint32_t pool_tokens_of(const struct matching *m, const struct route_engine *e) {
    for (uint32_t i = 0; i < ROUTE_POOLS_MAX; i++)
        if (m->keys[i] == e->keys) return m->request->pools[i].tokens;
    return 0;
}

static bool matching_serves(const struct matching *m, const struct route_engine *e) {
    return e != NULL && e->model == m->model && (e->lora == m->lora || e->any_lora);
}

static void matching_add(struct route *r, struct matching *m, const struct worker *w,
                         const struct route_hit *hit) {
    uint32_t worker = (uint32_t)(w - r->workers);
    uint32_t pool = pool_tokens_of(m, w->engine);
    if (hit == NULL && pool == 0) return;
    size_t at = m->found++;
    if (at >= m->cap) return;
    r->place_of[worker] = (uint32_t)at;
    m->out[at] = (struct route_matched){
        .engine = w->engine->id, .rank = w->rank, .worker = worker, .pool_tokens = pool};
    if (hit != NULL) memcpy(m->out[at].tokens, hit->tokens, sizeof(m->out[at].tokens));
}

static bool matching_has(const struct route *r, const struct matching *m, uint32_t worker) {
    uint32_t place = r->place_of[worker];
    return place < m->found && place < m->cap && m->out[place].worker == worker;
}

size_t route_match(struct route *r, const struct route_request *q, struct route_matched *out,
                   size_t cap) {
    struct matching m = {.request = q,
                         .model = name_find(r, q->model),
                         .lora = name_find(r, q->lora),
                         .out = out,
                         .cap = cap};
    bool pooled = matching_pools(r, &m);
    size_t n = 0;
    if (q->chain_count > 0 && q->chain_count <= ROUTE_CHAINS_MAX)
        n = route_index_match(r->index, q->chains, q->chain_count, r->hits, r->options.workers_max);
    for (size_t i = 0; i < n; i++) {
        const struct worker *w = &r->workers[r->worker_of[r->hits[i].holder]];
        if (matching_serves(&m, w->engine)) matching_add(r, &m, w, &r->hits[i]);
    }
    for (uint32_t i = 0; pooled && m.model != NULL && i < r->workers_used; i++) {
        const struct worker *w = &r->workers[i];
        if (matching_serves(&m, w->engine) && !matching_has(r, &m, i)) matching_add(r, &m, w, NULL);
    }
    return m.found;
}
