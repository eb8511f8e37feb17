/* Looking prompts up: the way through the runs, and how far each holder goes along. */
#include <string.h>

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

/* --- the way ---
 *
 * What is not in a near cache is a miss for the entry of a run, which only its first block leads
 * to, and one for the run. A prompt probably goes on behind 64 blocks, as most runs are full but
 * for the last: that entry, and its run, come along with the one before. */

static uint32_t path_print(const struct route_path *path, uint32_t at) {
    return route_print(path->chain->rolling[at] ^ path->chain->scope);
}

static void path_expect_entries(const struct route_index *ix, const struct route_path *path,
                                uint32_t at) {
    for (uint32_t i = 0; i < 2 && at < path->chain->n; i++, at += RUN_BLOCKS)
        route_table_prefetch(&ix->firsts, path_print(path, at));
}

/* Of entries that have come. */
static void path_expect_runs(const struct route_index *ix, const struct route_path *path) {
    struct route_spot place;
    uint32_t at = path->blocks;
    for (uint32_t i = 0; i < 2 && at < path->chain->n && !path->over; i++, at += RUN_BLOCKS) {
        uint32_t id = route_table_find(&ix->firsts, path_print(path, at), &place);
        if (id != 0) route_prefetch(route_run_at(ix, id));
    }
}

static void path_begin(const struct route_index *ix, const struct route_chain *chain,
                       struct route_path *path) {
    path->chain = chain;
    path->steps = path->blocks = 0;
    path->over = chain->n == 0;
    path_expect_entries(ix, path, 0);
}

/* Into the next run; false: the way ends here. */
static bool path_step(struct route_index *ix, struct route_path *path) {
    const struct route_chain *chain = path->chain;
    uint32_t at = path->blocks, id;
    if (path->over || path->steps == PATH_RUNS) return false;
    if (at > 0) path_expect_runs(ix, path);
    if ((id = route_run_find(ix, chain->rolling[at] ^ chain->scope)) == 0) return false;
    struct route_run *r = route_run_at(ix, id);
    if (r->lanes > 2) route_prefetch(r->out);
    uint32_t n = run_agrees(r, chain->rolling + at, chain->scope, chain->n - at);
    r->stamp = ix->tick;
    path->step[path->steps++] = (struct route_step){r, id, at, n};
    path->blocks += n;
    bool goes_on = ix->loose > 0 || (r->children > 0 && n - 1 <= r->fork);
    path->over = path->blocks == chain->n || !goes_on;
    if (!path->over) path_expect_entries(ix, path, path->blocks);
    return true;
}

/* --- holders with one full KV group: how far they come, a run at a time ---
 *
 * Who has nothing of a prompt's first run has nothing. So rows are made there, in the order of the
 * lanes, which is that of the lives; lanes of later runs find theirs by it. */

struct row_writer {
    struct route_hit *hits;
    size_t cap, n;
    uint16_t *life; /* of the rows from `first` on */
    size_t first, end;
    uint32_t block;
    uint32_t mark, several; /* lives with several KV groups */
};

/* What of a run counts. */
struct run_part {
    uint64_t beyond; /* bits of blocks that do not */
    uint32_t block, at_tokens;
};

/* Tokens in front of the first block that is missing. */
static inline uint32_t bits_leading(uint64_t bits, const struct run_part *p) {
    uint64_t missing = ~bits | p->beyond;
    return (missing == 0 ? RUN_BLOCKS : (uint32_t)__builtin_ctzll(missing)) * p->block;
}

/* The lanes of one life, nearest tier first: what one tier lacks another may have. */
static inline void row_extend(struct route_hit *hit, const struct run_part *p,
                              const struct route_lane *lane, const struct route_lane *end) {
    uint64_t bits = 0;
    for (uint32_t t = 0; t < ROUTE_TIERS; t++) {
        for (; lane < end && (lane->key & 0xff) == t; lane++) bits |= lane_bits(lane);
        if (hit->tokens[t] == p->at_tokens) hit->tokens[t] += bits_leading(bits, p);
    }
}

static void row_make(struct row_writer *w, uint32_t life, uint32_t holder, const struct run_part *p,
                     const struct route_lane *lane, const struct route_lane *end) {
    uint64_t bits = 0;
    for (const struct route_lane *l = lane; l < end; l++) bits |= lane_bits(l);
    if (!(bits & 1) || w->n++ >= w->cap) return;
    w->life[w->end - w->first] = (uint16_t)life;
    struct route_hit *hit = &w->hits[w->end++];
    *hit = (struct route_hit){.holder = holder};
    row_extend(hit, p, lane, end);
}

/* Rows for those that have one lane, from `lane` on, as far as all do and there is room: a system
 * prompt has hundreds of them, and whatever is not kept in a register here is the time of the
 * look-up. Returns where it stopped. */
static const struct route_lane *rows_make(struct row_writer *w, const struct route_brief *brief,
                                          const struct run_part *p, const struct route_lane *lane,
                                          const struct route_lane *end) {
    const struct run_part part = *p;
    const uint32_t whole = bits_leading(UINT64_MAX, &part);
    const size_t room = w->cap - w->end;
    const struct route_lane *most = (size_t)(end - lane) > room ? lane + room : end;
    struct route_hit *const begin = w->hits + w->end, *hit = begin;
    uint16_t *life_p = w->life + (w->end - w->first);
    for (; lane < most; lane++) {
        uint32_t key = lane->key, life = key >> 16, tier = key & 0xff;
        uint64_t bits = lane_bits(lane);
        const struct route_brief *b = &brief[life];
        if (b->block != part.block || (lane + 1 < end && lane[1].key >> 16 == life)) break;
        if (UNLIKELY(!(bits & 1))) continue;
        uint32_t leading = (bits | part.beyond) == UINT64_MAX ? whole : bits_leading(bits, &part);
        *hit = (struct route_hit){b->holder, {leading, leading, leading}};
        if (UNLIKELY(tier > 0)) hit->tokens[0] = 0;
        if (UNLIKELY(tier > 1)) hit->tokens[1] = 0;
        hit++;
        *life_p++ = (uint16_t)life;
    }
    w->end += (size_t)(hit - begin);
    w->n += (size_t)(hit - begin);
    return lane;
}

/* From `at` on the row of that life, or of the first behind it. */
static size_t row_find(const struct row_writer *w, size_t at, uint32_t life) {
    size_t n = w->end - at;
    while (n > 0) {
        size_t half = n / 2;
        if (w->life[at + half - w->first] < life) {
            at += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return at;
}

static void several_add(struct route_index *ix, struct row_writer *w, struct route_brief *b) {
    if (b->holder == 0 || b->mark == w->mark) return;
    b->mark = w->mark;
    ix->several[w->several++] = (uint16_t)(b - ix->brief);
}

static void step_match(struct route_index *ix, struct row_writer *w, const struct route_step *step,
                       const struct route_lane *lane, const struct route_lane *end) {
    const struct run_part part = {
        .beyond = ~route_mask(step->blocks), .block = w->block, .at_tokens = step->at * w->block};
    size_t row = w->first;
    for (const struct route_lane *next; lane < end; lane = next) {
        if (step->at == 0) lane = rows_make(w, ix->brief, &part, lane, end);
        if (lane == end) break;
        uint32_t life = lane->key >> 16;
        struct route_brief *b = &ix->brief[life];
        for (next = lane + 1; next < end && next->key >> 16 == life;) next++;
        if (b->block != w->block) {
            if (b->block == 0) several_add(ix, w, b);
        } else if (step->at == 0) {
            row_make(w, life, b->holder, &part, lane, next);
        } else {
            if (row < w->end && w->life[row - w->first] != life) row = row_find(w, row, life);
            if (row == w->end || w->life[row - w->first] != life) continue;
            row_extend(&w->hits[row++], &part, lane, next);
        }
    }
}

/* All steps of a way but the first are misses, and all that there is to compute is in the first,
 * when many have a system prompt. So that is done meanwhile, in two parts, each as long as a miss:
 * one for the entry of the second run, one for the run itself. */
static void path_match(struct route_index *ix, struct row_writer *w, struct route_path *path) {
    w->block = path->chain->block;
    w->first = w->end;
    if (!path_step(ix, path)) return;
    const struct route_run *r = path->step[0].run;
    const struct route_lane *lane = route_run_lanes(r), *middle = lane + r->lanes / 2;
    while (middle > lane && middle[-1].key >> 16 == middle->key >> 16) middle--;
    step_match(ix, w, &path->step[0], lane, middle);
    path_expect_runs(ix, path);
    step_match(ix, w, &path->step[0], middle, lane + r->lanes);
    for (uint32_t i = 1; path_step(ix, path); i++) {
        r = path->step[i].run;
        lane = route_run_lanes(r);
        step_match(ix, w, &path->step[i], lane, lane + r->lanes);
    }
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
        if (w->n++ < w->cap) w->hits[w->end++] = hit;
    }
}

/* A number with which this look-up marks the holders that it has met. */
static uint32_t mark_next(struct route_index *ix) {
    if (++ix->mark == 0) {
        for (uint32_t i = 0; i < ix->lives; i++) ix->brief[i].mark = 0;
        ix->mark = 1;
    }
    return ix->mark;
}

/* The ways of the prompt's chains, before their first steps. */
static void paths_begin(struct route_index *ix, const struct route_chain *chains, size_t n,
                        struct route_path *paths) {
    TARN_ASSERT(n <= ROUTE_CHAINS_MAX);
    ix->tick++;
    for (size_t i = 0; i < n; i++) {
        TARN_ASSERT(chains[i].block > 0);
        paths[i].step = ix->step + i * PATH_RUNS;
        path_begin(ix, &chains[i], &paths[i]);
    }
}

size_t route_index_match(struct route_index *ix, const struct route_chain *chains, size_t chains_n,
                         struct route_hit *hits, size_t cap) {
    struct route_path paths[ROUTE_CHAINS_MAX];
    struct row_writer w = {.hits = hits, .cap = cap, .life = ix->row_life, .mark = mark_next(ix)};
    ix->figures.route_matches++;
    paths_begin(ix, chains, chains_n, paths);
    for (uint32_t i = 0; i < chains_n; i++) path_match(ix, &w, &paths[i]);
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
    paths_begin(ix, chains, chains_n, paths);
    for (size_t i = 0; i < chains_n; i++)
        while (path_step(ix, &paths[i])) continue;
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
