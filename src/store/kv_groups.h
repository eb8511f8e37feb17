/* How long a prefix is for a model whose layers keep several kinds of KV cache. Pure: no store, no
 * keys, only which parts are there.
 *
 * A KV group is a set of layers with blocks of one size and one kind (vLLM's kv_cache_groups). What
 * of it must be there for a prefix of `boundary` tokens to be used again depends on the kind:
 *
 *     full     ████████████████|       every block from the start
 *     window           ████████|       the last blocks, as far as the next token looks back
 *     state                   █|       the one snapshot of a recurrent layer
 *                           boundary
 *
 * Parts are named by their places: place p of a group ends at token (p + 1) * unit. A group whose
 * blocks are put whole has unit == block. One that also puts the last, unfinished block of a prompt
 * (vLLM's partial hits) has a place for each hash inside a block, of which few are ever there.
 *
 * The rules are those of vLLM's kv_cache_coordinator.py and single_type_kv_cache_manager.py. */
#ifndef TARN_STORE_KV_GROUPS_H
#define TARN_STORE_KV_GROUPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KV_GROUPS_MAX 64u

enum kv_group_kind { KV_GROUP_FULL, KV_GROUP_WINDOW, KV_GROUP_STATE };

struct kv_group {
    enum kv_group_kind kind;
    /* Speculative decoding that reads hidden states (EAGLE, MTP) computes the last part of a hit
     * again: that part must be there, too, and the boundary lies before it. Not for states. */
    bool drops_last;
    uint32_t block;  /* tokens */
    uint32_t unit;   /* tokens from place to place; divides block */
    uint32_t window; /* tokens; KV_GROUP_WINDOW only */
    uint32_t places;
    /* For each place: how many in a row, up to it, are there; 0: it is not. */
    const uint32_t *run;
};

/* The parts to be read for a boundary: `n` places from `first` on, each `stride` further than the
 * last, and the unfinished block at `tail`. */
struct kv_group_parts {
    uint32_t first, stride, n;
    uint32_t tail; /* KV_GROUP_NO_TAIL: none */
};
#define KV_GROUP_NO_TAIL UINT32_MAX

/* NULL, or what is wrong with it (static). alignment: tokens; boundaries are multiples of it. */
const char *kv_group_fault(const struct kv_group *g, uint32_t alignment);

/* The longest boundary at which every group has what it needs, in tokens; 0: none. */
uint64_t kv_groups_boundary(const struct kv_group *groups, size_t n, uint32_t alignment);

/* Boundary: one that kv_groups_boundary gave, or 0. */
struct kv_group_parts kv_group_parts(const struct kv_group *g, uint64_t boundary);

#endif
