#include "base/kv_groups.h"

#include "base/assert.h"

#define PLACE_NONE UINT32_MAX

static uint64_t aligned(uint64_t tokens, uint32_t alignment) {
    return tokens - tokens % alignment;
}

const char *kv_group_fault(const struct kv_group *g, uint32_t alignment) {
    if (g->block == 0 || g->unit == 0 || g->block % g->unit != 0)
        return "unit must divide block, and both be above 0";
    if (alignment == 0 || alignment % g->unit != 0) return "ALIGN must be a multiple of unit";
    if (g->kind == KV_GROUP_WINDOW && g->window < 2)
        return "window must be above 1 where kind is WINDOW";
    if (g->kind == KV_GROUP_WINDOW && g->unit != g->block)
        return "unit must be block where kind is WINDOW";
    if (g->kind != KV_GROUP_WINDOW && g->window != 0)
        return "window must be 0 where kind is not WINDOW";
    if (g->kind == KV_GROUP_STATE && g->drops_last) return "drop must be 0 where kind is STATE";
    return NULL;
}

/* Tokens behind the boundary that must be there as well. */
static uint64_t dropped(const struct kv_group *g, uint32_t alignment) {
    if (!g->drops_last) return 0;
    return g->kind == KV_GROUP_FULL ? min_u64(alignment, g->block) : g->block;
}

static uint64_t below(uint64_t tokens, uint64_t drop, uint32_t alignment) {
    return aligned(tokens - min_u64(tokens, drop), alignment);
}

uint64_t kv_groups_longest(const struct kv_group *groups, size_t n, uint32_t alignment) {
    uint64_t longest = n > 0 ? UINT64_MAX : 0;
    for (size_t i = 0; i < n; i++) {
        const struct kv_group *g = &groups[i];
        uint64_t all = (uint64_t)g->places * g->unit;
        longest = min_u64(longest, below(all, dropped(g, alignment), alignment));
    }
    return longest;
}

static uint32_t window_blocks(const struct kv_group *g) {
    return (uint32_t)(((uint64_t)g->window - 1 + g->block - 1) / g->block);
}

struct kv_parts kv_group_needs(const struct kv_group *g, uint32_t alignment, uint64_t boundary) {
    uint64_t end = boundary + dropped(g, alignment);
    uint32_t blocks = (uint32_t)(end / g->block);
    struct kv_parts p = {.blocks = blocks, .tail = end % g->block != 0 ? end : 0};
    if (boundary == 0) return (struct kv_parts){0, 0, 0};
    if (g->kind == KV_GROUP_WINDOW)
        p.blocks = (uint32_t)min_u64((uint64_t)window_blocks(g) + g->drops_last, blocks);
    else if (g->kind == KV_GROUP_STATE)
        p.blocks = p.tail == 0;
    p.first = blocks - p.blocks;
    return p;
}

/* --- the search: each kind's step says what it wants to know, or that it is served --- */

static void boundary_lower(struct kv_search *s, uint64_t boundary) {
    if (boundary >= s->boundary) return;
    s->boundary = boundary;
    s->served = 0;
}

/* Whole blocks from the start, as far as the boundary needs them. Of the first that is not whole
 * its places from the last on: a block is only ever appended to, so the furthest says it all. */
static bool full_wants(const struct kv_search *s, struct kv_group *g, struct kv_want *w) {
    uint64_t end = s->boundary + dropped(g, s->alignment), whole = (uint64_t)g->known * g->block;
    uint32_t per_block = g->block / g->unit, at = g->known * per_block;
    if (g->settled || whole >= end) return false;
    if (g->tail == PLACE_NONE && per_block > g->places - at) g->tail = g->places;
    if (g->tail != PLACE_NONE) {
        *w = (struct kv_want){.place = g->tail - 1, .step = -1, .row = g->tail - at};
        return true;
    }
    w->place = at + per_block - 1;
    w->step = (int32_t)per_block;
    w->row = (uint32_t)((end - whole + g->block - 1) / g->block);
    return true;
}

static void full_tell(struct kv_search *s, struct kv_group *g, bool there) {
    uint32_t per_block = g->block / g->unit, at = g->known * per_block;
    if (there && g->tail == PLACE_NONE) {
        g->known++;
        return;
    }
    if (!there) g->tail = (g->tail == PLACE_NONE ? at + per_block : g->tail) - 1;
    g->settled = there || g->tail == at;
    if (g->settled)
        boundary_lower(s,
                       below((uint64_t)g->tail * g->unit, dropped(g, s->alignment), s->alignment));
}

/* A lone snapshot, often far from the end. */
static bool state_wants(const struct kv_search *s, struct kv_group *g, struct kv_want *w) {
    w->place = (uint32_t)(s->boundary / g->unit - 1);
    w->step = -(int32_t)(s->alignment / g->unit);
    w->row = 4;
    return g->known != w->place;
}

static void state_tell(struct kv_search *s, struct kv_group *g, bool there) {
    if (there)
        g->known = (uint32_t)(s->boundary / g->unit - 1);
    else
        boundary_lower(s, s->boundary - s->alignment);
}

/* From the right. What is known to be there in a row serves shorter boundaries, too. */
static bool window_wants(const struct kv_search *s, struct kv_group *g, struct kv_want *w) {
    uint32_t end = (uint32_t)(s->boundary / g->block) + g->drops_last;
    uint64_t need = min_u64((uint64_t)window_blocks(g) + g->drops_last, end);
    if (g->known >= end) g->known = end;
    if (end - g->known >= need) return false;
    w->place = g->known - 1;
    w->step = -1;
    w->row = (uint32_t)need - (end - g->known);
    return true;
}

static void window_tell(struct kv_search *s, struct kv_group *g, bool there) {
    g->known--;
    if (there) return;
    /* that one is missing, and whatever ends behind it needs it */
    boundary_lower(s, below((uint64_t)g->known * g->block, dropped(g, s->alignment), s->alignment));
}

/* --- the round: all groups of a kind, then of the next; states and windows until none of them
 * lowers the boundary any more --- */

static struct kv_group *group_at(const struct kv_search *s) {
    struct kv_group *g = &s->groups[s->at % s->n];
    return s->at / s->n == (size_t)g->kind ? g : NULL;
}

void kv_search_begin(struct kv_search *s, struct kv_group *groups, size_t n, uint32_t alignment,
                     uint64_t limit) {
    uint64_t longest = kv_groups_longest(groups, n, alignment);
    *s = (struct kv_search){.groups = groups,
                            .n = n,
                            .alignment = alignment,
                            .boundary = aligned(min_u64(longest, limit), alignment)};
    for (size_t i = 0; i < n; i++) {
        groups[i].known = groups[i].kind == KV_GROUP_FULL ? 0 : PLACE_NONE;
        groups[i].tail = PLACE_NONE;
        groups[i].settled = false;
    }
}

bool kv_search_next(struct kv_search *s, struct kv_want *want_p) {
    static bool (*const wants[])(const struct kv_search *, struct kv_group *, struct kv_want *) = {
        [KV_GROUP_FULL] = full_wants,
        [KV_GROUP_STATE] = state_wants,
        [KV_GROUP_WINDOW] = window_wants,
    };
    while (s->boundary > 0 && s->served < 3 * s->n) {
        struct kv_group *g = group_at(s);
        if (g != NULL && wants[g->kind](s, g, want_p)) {
            want_p->group = s->at % s->n;
            return true;
        }
        s->served++;
        s->steps++;
        s->at = (s->at + 1) % (3 * s->n);
    }
    return false;
}

void kv_search_tell(struct kv_search *s, bool there) {
    static void (*const tell[])(struct kv_search *, struct kv_group *, bool) = {
        [KV_GROUP_FULL] = full_tell,
        [KV_GROUP_STATE] = state_tell,
        [KV_GROUP_WINDOW] = window_tell,
    };
    struct kv_group *g = group_at(s);
    TARN_ASSERT(g != NULL && s->boundary > 0);
    tell[g->kind](s, g, there);
}

struct kv_parts kv_search_parts(const struct kv_search *s, size_t i) {
    const struct kv_group *g = &s->groups[i];
    struct kv_group undropped = *g;
    undropped.drops_last = false;
    struct kv_parts p = kv_group_needs(&undropped, s->alignment, s->boundary);
    /* Of the block in which the boundary lies what was found of it. */
    if (g->kind == KV_GROUP_FULL && p.tail > 0)
        p.tail =
            p.blocks < g->known ? ((uint64_t)p.blocks + 1) * g->block : (uint64_t)g->tail * g->unit;
    return p;
}
