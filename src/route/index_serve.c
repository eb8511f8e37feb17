/* How long a prefix a holder with several KV groups can take up: where all of them have what they
 * need. The rules are those of src/base/kv_groups.h, on bits instead of keys: full groups first,
 * down to their first gap; then windows and states lower the boundary in turn, until none does. */
#include "route/index_run.h"

/* One KV group, looked at from the right; it only ever moves left. */
struct group_view {
    const struct route_path *path; /* in blocks of its size */
    uint32_t lane, tier;
    uint32_t step;
    uint64_t bits; /* of that step's run; when `known` */
    bool known;
};

static struct group_view view_of(const struct route_path *path, uint32_t lane, uint32_t tier) {
    struct group_view v = {.path = path, .lane = lane, .tier = tier};
    v.step = path->steps > 0 ? path->steps - 1 : 0;
    return v;
}

/* What the group has of a run, in the tiers that count. */
static uint64_t view_bits(const struct group_view *v, const struct route_run *r) {
    const struct route_lane *lane = route_run_lanes(r);
    uint64_t bits = 0;
    for (uint32_t i = route_lane_find(r, v->lane); i < r->lanes && lane[i].key <= v->lane + v->tier;
         i++)
        bits |= lane_bits(&lane[i]);
    return bits;
}

/* Blocks are asked for in descending order. */
static bool view_has(struct group_view *v, uint64_t block) {
    if (block >= v->path->blocks) return false;
    while (v->path->step[v->step].at > block) {
        v->step--;
        v->known = false;
    }
    const struct route_step *s = &v->path->step[v->step];
    if (!v->known) v->bits = view_bits(v, s->run);
    v->known = true;
    return v->bits >> (block - s->at) & 1;
}

static uint64_t tokens_aligned(uint64_t tokens, uint64_t alignment) {
    return tokens - tokens % alignment;
}

/* Blocks from the start without a gap. */
static uint64_t full_leading(const struct group_view *v) {
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < v->path->steps; i++) {
        const struct route_step *s = &v->path->step[i];
        uint64_t missing = ~view_bits(v, s->run) & route_mask(s->blocks);
        if (missing != 0) return blocks + (uint64_t)__builtin_ctzll(missing);
        blocks += s->blocks;
    }
    return blocks;
}

static uint64_t state_lower(struct group_view *v, const struct route_group *g, uint64_t boundary,
                            uint64_t alignment) {
    while (boundary > 0 && !view_has(v, boundary / g->block - 1)) boundary -= alignment;
    return boundary;
}

/* The last blocks before the boundary, as far as the next token looks back. */
static uint64_t window_lower(struct group_view *v, const struct route_group *g, uint64_t boundary,
                             uint64_t alignment) {
    uint64_t need = ((uint64_t)g->window - 1 + g->block - 1) / g->block;
    uint64_t end = boundary / g->block;
    for (uint64_t at = end; at > 0 && end - at < need;) {
        if (view_has(v, --at)) continue;
        boundary = tokens_aligned(at * g->block, alignment);
        at = end = boundary / g->block;
    }
    return boundary;
}

static const struct route_path *path_of(const struct route_path *paths, size_t n, uint32_t block) {
    for (size_t i = 0; i < n; i++)
        if (paths[i].chain->block == block) return &paths[i];
    return NULL;
}

static uint64_t blocks_common(uint64_t a, uint64_t b) {
    uint64_t x = a, y = b;
    while (y != 0) {
        uint64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

/* The multiple that all groups' blocks have in common, and a boundary that no group passes: where
 * what is known of the prompt ends, and full groups have a gap. 0, 0: none. */
static uint64_t boundary_of_full(const struct route_holder *h, uint32_t groups, uint32_t tier,
                                 const struct route_path *paths, size_t n, uint64_t *alignment_p) {
    uint64_t boundary = UINT64_MAX, alignment = 1;
    for (uint32_t g = 0; g < ROUTE_GROUPS_MAX; g++) {
        const struct route_group *what = &h->group[g];
        if (what->block == 0 || (groups >> g & 1) == 0) continue;
        const struct route_path *path = path_of(paths, n, what->block);
        alignment = blocks_common(alignment, what->block);
        if (path == NULL || alignment > UINT32_MAX) return 0;
        struct group_view v = view_of(path, LANE_KEY(h->life, g, 0), tier);
        uint64_t blocks = what->kind == ROUTE_GROUP_FULL ? full_leading(&v) : path->blocks;
        boundary = min_u64(boundary, blocks * what->block);
    }
    *alignment_p = alignment;
    return boundary == UINT64_MAX ? 0 : tokens_aligned(boundary, alignment);
}

static uint64_t group_lower(const struct route_holder *h, uint32_t g, uint32_t tier,
                            const struct route_path *path, uint64_t boundary, uint64_t alignment) {
    const struct route_group *what = &h->group[g];
    struct group_view v = view_of(path, LANE_KEY(h->life, g, 0), tier);
    return what->kind == ROUTE_GROUP_STATE ? state_lower(&v, what, boundary, alignment)
                                           : window_lower(&v, what, boundary, alignment);
}

uint32_t route_serve(const struct route_holder *h, uint32_t groups, enum route_tier tier,
                     const struct route_path *paths, size_t n) {
    uint64_t alignment, boundary = boundary_of_full(h, groups, tier, paths, n, &alignment), before;
    do {
        before = boundary;
        for (uint32_t g = 0; g < ROUTE_GROUPS_MAX && boundary > 0; g++) {
            const struct route_group *what = &h->group[g];
            if (what->block == 0 || (groups >> g & 1) == 0 || what->kind == ROUTE_GROUP_FULL)
                continue;
            const struct route_path *path = path_of(paths, n, what->block);
            boundary = group_lower(h, g, tier, path, boundary, alignment);
        }
    } while (boundary < before && boundary > 0);
    return (uint32_t)min_u64(boundary, UINT32_MAX);
}
