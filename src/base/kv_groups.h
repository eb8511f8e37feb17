/* How long a prefix is for a model whose layers keep several kinds of KV cache. Pure: no store, no
 * keys; it says which part it wants to know of next, and is told whether that is there.
 *
 * A KV group is a set of layers with blocks of one size and one kind (vLLM's kv_cache_groups). What
 * of it must be there for a prefix of `boundary` tokens to be used again depends on the kind:
 *
 *     full     ████████████████|       every block from the start
 *     state                   █|       the one snapshot of a recurrent layer
 *     window           ████████|       the last blocks, as far as the next token looks back
 *                           boundary
 *
 * A boundary is served when every KV group has what it needs there. The search goes downwards from
 * the longest one, full groups first: whatever lies behind their first gap nobody needs to look at.
 * No part is asked for twice, and nothing is kept of them but two numbers for each group.
 *
 * Parts are named by their places: place p of a group ends at token (p + 1) * unit. A group whose
 * blocks are put whole has unit == block. One that also puts the last, unfinished block of a prompt
 * (vLLM's partial hits) has a place for each hash inside a block, of which few are ever there.
 *
 * The rules are those of vLLM's kv_cache_coordinator.py and single_type_kv_cache_manager.py. */
#ifndef TARN_BASE_KV_GROUPS_H
#define TARN_BASE_KV_GROUPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each rank's part of a KV group is one of its own. */
#define KV_GROUPS_MAX 1024u
/* Places of all groups of one search together: what it may have to look for. */
#define KV_PLACES_MAX (UINT64_C(1) << 24)

/* In the order of the search. */
enum kv_group_kind { KV_GROUP_FULL, KV_GROUP_STATE, KV_GROUP_WINDOW };

struct kv_group {
    enum kv_group_kind kind;
    /* Speculative decoding that reads hidden states (EAGLE, MTP) computes the last part of a hit
     * again: that part must be there, too, and the boundary lies before it. Not for states. */
    bool drops_last;
    uint32_t block;  /* tokens */
    uint32_t unit;   /* tokens from place to place; divides block */
    uint32_t window; /* tokens; KV_GROUP_WINDOW only */
    uint32_t places;
    /* Private. FULL: so many whole blocks are there, and behind them of an unfinished block what
     * ends with place tail - 1, once that is settled. STATE: the place that is there. WINDOW: the
     * places from there to where the boundary needs them are. */
    uint32_t known, tail;
    bool settled;
};

struct kv_search {
    struct kv_group *groups; /* borrowed */
    size_t n;
    uint32_t alignment;
    uint64_t boundary; /* nothing longer is served; when it is over: the longest that is */
    uint64_t steps;    /* so many groups it has looked at so far: its work beside the look-ups */
    /* private: where in the round over the kinds, and how many of it are served in a row */
    size_t at, served;
};

/* A place of a group; the next ones, `step` further each, are likely to be asked for after it. */
struct kv_want {
    size_t group;
    uint32_t place;
    int32_t step;
    uint32_t row; /* at least 1 */
};

/* What is read for a boundary, or awaited: blocks by number, of which block b ends at token
 * (b + 1) * block, and one part that ends elsewhere: of the block behind them, or a state. */
struct kv_parts {
    uint32_t first, blocks;
    uint64_t tail; /* its last token, 0: none */
};

/* NULL, or what is wrong with it (static). alignment: tokens; boundaries are multiples of it. */
const char *kv_group_fault(const struct kv_group *g, uint32_t alignment);

/* The boundary when all parts are there, in tokens; 0: none. */
uint64_t kv_groups_longest(const struct kv_group *groups, size_t n, uint32_t alignment);

/* For boundaries up to limit. */
void kv_search_begin(struct kv_search *s, struct kv_group *groups, size_t n, uint32_t alignment,
                     uint64_t limit);
/* false: it is over. Else that place has to be told of, by kv_search_tell. */
bool kv_search_next(struct kv_search *s, struct kv_want *want_p);
void kv_search_tell(struct kv_search *s, bool there);

/* What is read of group g once the search is over; nothing when its boundary is 0. */
struct kv_parts kv_search_parts(const struct kv_search *s, size_t g);
/* What has to be there for that boundary, with what is dropped. */
struct kv_parts kv_group_needs(const struct kv_group *g, uint32_t alignment, uint64_t boundary);

static inline uint32_t kv_parts_count(const struct kv_parts *p) {
    return p->blocks + (p->tail > 0);
}
/* Of part i: the blocks in order, then the tail. */
static inline uint32_t kv_parts_place(const struct kv_group *g, const struct kv_parts *p,
                                      uint32_t i) {
    uint64_t end = i < p->blocks ? ((uint64_t)p->first + i + 1) * g->block : p->tail;
    return (uint32_t)(end / g->unit - 1);
}

#endif
