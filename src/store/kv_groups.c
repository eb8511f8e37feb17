#include "store/kv_groups.h"

#include <stdlib.h>
#include "base/assert.h"

static uint64_t aligned(uint64_t tokens, uint32_t alignment) {
    return tokens - tokens % alignment;
}

const char *kv_group_fault(const struct kv_group *g, uint32_t alignment) {
    if (g->block == 0 || g->unit == 0 || g->block % g->unit != 0)
        return "the unit of a KV group must divide its block, and both be above 0";
    if (alignment == 0 || alignment % g->unit != 0)
        return "the alignment must be a multiple of each KV group's unit";
    if (g->kind == KV_GROUP_WINDOW && (g->window < 2 || g->unit != g->block))
        return "a KV group with a window has one above 1, and puts whole blocks";
    if (g->kind == KV_GROUP_STATE && g->drops_last) return "a KV group of states drops nothing";
    return NULL;
}

/* --- how far a group is served, at most up to a boundary --- */

/* What is there without a gap, and then of the unfinished block. A shorter prefix is served, too. */
static uint64_t full_below(const struct kv_group *g, uint32_t alignment, uint64_t boundary) {
    uint32_t per_block = g->block / g->unit, at = 0, tail;
    while (per_block <= g->places - at && g->run[at + per_block - 1] > 0) at += per_block;
    tail = (uint32_t)min_u64(per_block - 1, g->places - at);
    while (tail > 0 && g->run[at + tail - 1] == 0) tail--;
    uint64_t reach = (uint64_t)(at + tail) * g->unit;
    uint64_t drop = g->drops_last ? min_u64(alignment, g->block) : 0;
    return aligned(min_u64(boundary, reach - min_u64(reach, drop)), alignment);
}

static uint32_t window_blocks(const struct kv_group *g) {
    return (uint32_t)(((uint64_t)g->window - 1 + g->block - 1) / g->block);
}

static uint64_t window_below(const struct kv_group *g, uint32_t alignment, uint64_t boundary) {
    uint64_t need = window_blocks(g) + g->drops_last, end, run;
    for (; boundary > 0;
         boundary = aligned((end - min_u64(end, g->drops_last)) * g->block, alignment)) {
        end = boundary / g->block + g->drops_last;
        if (end > g->places) {
            end = g->places;
            continue;
        }
        run = g->run[end - 1];
        if (run >= min_u64(need, end)) return boundary;
        end -= run + 1; /* that one is missing, and whatever ends behind it needs it */
    }
    return 0;
}

static uint64_t state_below(const struct kv_group *g, uint32_t alignment, uint64_t boundary) {
    uint64_t last = aligned((uint64_t)g->places * g->unit, alignment);
    for (boundary = min_u64(boundary, last); boundary > 0; boundary -= alignment)
        if (g->run[boundary / g->unit - 1] > 0) return boundary;
    return 0;
}

uint64_t kv_groups_boundary(const struct kv_group *groups, size_t n, uint32_t alignment) {
    uint64_t boundary = n > 0 ? aligned(UINT64_MAX, alignment) : 0, before;
    for (size_t i = 0; i < n; i++)
        if (groups[i].kind == KV_GROUP_FULL) boundary = full_below(&groups[i], alignment, boundary);
    do {
        before = boundary;
        for (size_t i = 0; i < n; i++)
            if (groups[i].kind == KV_GROUP_WINDOW)
                boundary = window_below(&groups[i], alignment, boundary);
            else if (groups[i].kind == KV_GROUP_STATE)
                boundary = state_below(&groups[i], alignment, boundary);
    } while (boundary != before);
    return boundary;
}

/* --- what is read --- */

/* A block is only ever appended to: any of its places at or behind the boundary will do. */
static uint32_t tail_place(const struct kv_group *g, uint64_t boundary) {
    if (boundary % g->block == 0) return KV_GROUP_NO_TAIL;
    uint32_t at = (uint32_t)(boundary / g->unit - 1);
    while (g->run[at] == 0) at++;
    TARN_ASSERT(at < g->places && at / (g->block / g->unit) == boundary / g->block);
    return at;
}

struct kv_group_parts kv_group_parts(const struct kv_group *g, uint64_t boundary) {
    uint32_t blocks = (uint32_t)(boundary / g->block), per_block = g->block / g->unit;
    if (boundary == 0) return (struct kv_group_parts){.tail = KV_GROUP_NO_TAIL};
    switch (g->kind) {
    case KV_GROUP_FULL:
        return (struct kv_group_parts){.first = per_block - 1,
                                       .stride = per_block,
                                       .n = blocks,
                                       .tail = tail_place(g, boundary)};
    case KV_GROUP_WINDOW: {
        uint32_t n = (uint32_t)min_u64(window_blocks(g), blocks);
        return (struct kv_group_parts){
            .first = blocks - n, .stride = 1, .n = n, .tail = KV_GROUP_NO_TAIL};
    }
    case KV_GROUP_STATE:
        return (struct kv_group_parts){.first = (uint32_t)(boundary / g->unit - 1),
                                       .stride = 1,
                                       .n = 1,
                                       .tail = KV_GROUP_NO_TAIL};
    }
    abort();
}
