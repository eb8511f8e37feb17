/* Looking prompts up: the way through the runs, and how far each holder goes along. */
#include "route/index_run.h"

/* How many blocks of the run are the prompt's, of which `left` follow; its first one is. */
static uint32_t run_agrees(const struct route_run *r, const uint64_t *rolling, uint64_t scope,
                           uint32_t left) {
    uint32_t n = (uint32_t)min_u64(r->len, left), low = 1;
    if (route_run_hash(r, n - 1) == (rolling[n - 1] ^ scope)) return n;
    /* block `low` - 1 agrees, block `n` - 1 does not */
    while (n - low > 1) {
        uint32_t middle = low + (n - low) / 2;
        if (r->hash[middle - 1] == (rolling[middle - 1] ^ scope))
            low = middle;
        else
            n = middle;
    }
    return low;
}

void route_path_walk(struct route_index *ix, const struct route_chain *chain,
                     struct route_path *path) {
    path->chain = chain;
    path->steps = path->blocks = 0;
    while (path->blocks < chain->n && path->steps < PATH_RUNS) {
        uint32_t at = path->blocks;
        uint32_t id = route_run_find(ix, chain->rolling[at] ^ chain->scope);
        if (id == 0) break;
        struct route_run *r = route_run_at(ix, id);
        if (r->lanes > 2) __builtin_prefetch(r->out);
        uint32_t n = run_agrees(r, chain->rolling + at, chain->scope, chain->n - at);
        r->stamp = ix->tick;
        path->step[path->steps++] = (struct route_step){r, id, at, n};
        path->blocks += n;
    }
}

/* --- holders with one full KV group: how far they come, a run at a time --- */

struct row_writer {
    struct route_hit *hits;
    size_t cap, n;
    uint32_t epoch, first_epoch; /* of this chain, and of this look-up */
    uint32_t block;
    uint32_t several; /* lives with several KV groups */
};

/* Blocks in front of the first that is missing, of a run of which so many are asked for. */
static uint32_t bits_leading(uint64_t bits, uint32_t blocks) {
    uint64_t missing = ~bits & route_mask(blocks);
    return missing == 0 ? blocks : (uint32_t)__builtin_ctzll(missing);
}

/* The row of a life that has `bits` of the run; NULL: it has nothing from the start, or there is no
 * room. */
static struct route_hit *row_find(struct row_writer *w, struct route_brief *b, uint32_t at,
                                  uint64_t bits) {
    if (b->epoch != w->epoch) {
        if (at > 0 || !(bits & 1)) return NULL;
        b->epoch = w->epoch;
        b->row = (uint32_t)w->n++;
        if (b->row < w->cap) w->hits[b->row] = (struct route_hit){.holder = b->holder};
    }
    return b->row < w->cap ? &w->hits[b->row] : NULL;
}

/* The lanes of one life, nearest tier first: what one tier lacks another may have. */
static void row_extend(struct row_writer *w, struct route_brief *b, const struct route_step *step,
                       const struct route_lane *lane, const struct route_lane *end) {
    uint64_t bits = 0;
    for (const struct route_lane *l = lane; l < end; l++) bits |= lane_bits(l);
    struct route_hit *hit = row_find(w, b, step->at, bits);
    if (hit == NULL) return;
    bits = 0;
    for (uint32_t t = 0; t < ROUTE_TIERS; t++) {
        for (; lane < end && (lane->key & 0xff) == t; lane++) bits |= lane_bits(lane);
        if (hit->tokens[t] == step->at) hit->tokens[t] += bits_leading(bits, step->blocks);
    }
}

static void several_add(struct route_index *ix, struct row_writer *w, struct route_brief *b) {
    if (b->epoch - w->first_epoch < ROUTE_CHAINS_MAX) return;
    b->epoch = w->epoch;
    ix->several[w->several++] = (uint16_t)(b - ix->brief);
}

static void step_match(struct route_index *ix, struct row_writer *w,
                       const struct route_step *step) {
    const struct route_lane *lane = route_run_lanes(step->run), *end = lane + step->run->lanes;
    for (const struct route_lane *next; lane < end; lane = next) {
        struct route_brief *b = &ix->brief[lane->key >> 16];
        for (next = lane + 1; next < end && (next->key ^ lane->key) >> 16 == 0;) next++;
        if (b->holder == 0) continue;
        if (b->block == w->block)
            row_extend(w, b, step, lane, next);
        else if (b->block == 0)
            several_add(ix, w, b);
    }
}

static void path_match(struct route_index *ix, struct row_writer *w,
                       const struct route_path *path) {
    size_t first = min_u64(w->n, w->cap);
    w->block = path->chain->block;
    for (uint32_t i = 0; i < path->steps; i++) step_match(ix, w, &path->step[i]);
    for (size_t i = first; i < w->n && i < w->cap; i++)
        for (uint32_t t = 0; t < ROUTE_TIERS; t++) w->hits[i].tokens[t] *= w->block;
}

/* --- and those with others --- */

static void several_match(struct route_index *ix, struct row_writer *w,
                          const struct route_path *paths, size_t n) {
    for (uint32_t i = 0; i < w->several; i++) {
        struct route_hit hit = {.holder = ix->life[ix->several[i]].holder};
        const struct route_holder *h = &ix->holder[hit.holder];
        for (uint32_t t = 0; t < ROUTE_TIERS; t++)
            hit.tokens[t] = route_serve(h, UINT32_MAX, (enum route_tier)t, paths, n);
        if (hit.tokens[ROUTE_TIERS - 1] == 0) continue;
        if (w->n < w->cap) w->hits[w->n] = hit;
        w->n++;
    }
}

/* Numbers with which this look-up marks the holders that it has met, one for each chain. */
static uint32_t epochs_take(struct route_index *ix) {
    if (ix->epoch > UINT32_MAX - 2 * ROUTE_CHAINS_MAX) {
        for (uint32_t i = 0; i < ix->lives; i++) ix->brief[i].epoch = 0;
        ix->epoch = 0;
    }
    uint32_t first = ix->epoch + ROUTE_CHAINS_MAX;
    ix->epoch = first;
    return first;
}

static void paths_walk(struct route_index *ix, const struct route_chain *chains, size_t n,
                       struct route_path *paths) {
    TARN_ASSERT(n <= ROUTE_CHAINS_MAX);
    ix->tick++;
    for (size_t i = 0; i < n; i++) {
        TARN_ASSERT(chains[i].block > 0);
        paths[i].step = ix->step + i * PATH_RUNS;
        route_path_walk(ix, &chains[i], &paths[i]);
    }
}

size_t route_index_match(struct route_index *ix, const struct route_chain *chains, size_t chains_n,
                         struct route_hit *hits, size_t cap) {
    struct route_path paths[ROUTE_CHAINS_MAX];
    struct row_writer w = {.hits = hits, .cap = cap};
    ix->figures.route_matches++;
    paths_walk(ix, chains, chains_n, paths);
    w.first_epoch = epochs_take(ix);
    for (uint32_t i = 0; i < chains_n; i++) {
        w.epoch = w.first_epoch + i;
        path_match(ix, &w, &paths[i]);
    }
    several_match(ix, &w, paths, chains_n);
    for (uint32_t i = 0; i < chains_n; i++) route_hot_touch(ix, &paths[i]);
    return w.n;
}

size_t route_index_match_groups(struct route_index *ix, const struct route_chain *chains,
                                size_t chains_n, uint32_t holder,
                                struct route_group_hit groups[ROUTE_GROUPS_MAX]) {
    struct route_path paths[ROUTE_CHAINS_MAX];
    size_t n = 0;
    if (holder == 0 || holder > ix->config.holders_max) return 0;
    const struct route_holder *h = &ix->holder[holder];
    paths_walk(ix, chains, chains_n, paths);
    for (uint32_t g = 0; h->life != 0 && g < ROUTE_GROUPS_MAX; g++) {
        if (h->group[g].block == 0) continue;
        groups[n].group = g;
        groups[n].what = h->group[g];
        for (uint32_t t = 0; t < ROUTE_TIERS; t++)
            groups[n].tokens[t] = route_serve(h, 1u << g, (enum route_tier)t, paths, chains_n);
        n++;
    }
    return n;
}
