/* Blocks that requests on their way are about to compute, before any event tells of them: two
 * requests with one system prompt in a burst belong to one engine.
 *
 * Kept and looked up by groups of 16 blocks of a prompt: a group's first block says where, and 16
 * bits of each one's hash how far two prompts agree.
 *
 * A table of fixed size that forgets: what falls on a full set pushes out what would end first,
 * and each entry ends by itself some time after its prefill should have. It is a hint as the index
 * is one: what it forgets or takes for another costs a hit, not more. */
#ifndef TARN_ROUTE_AHEAD_H
#define TARN_ROUTE_AHEAD_H

#include <stddef.h>
#include <stdint.h>
#include "base/assert.h"
#include "route/index.h"

#define AHEAD_SETS_MAX   8192u
#define AHEAD_WAYS       4u
#define AHEAD_GROUP      16u
#define AHEAD_BLOCKS_MAX 1024u /* of a prompt that are looked at */

struct ahead_group {
    uint64_t first; /* name of its first block */
    uint32_t n;     /* blocks; 0: nothing */
    uint16_t mark[AHEAD_GROUP];
};
struct ahead_entry {
    struct ahead_group group;
    uint16_t worker, birth; /* birth: of the worker's number, which may be given anew */
    uint32_t until_ms;      /* wraps */
} __attribute__((aligned(64)));
static_assert(sizeof(struct ahead_entry) == 64, "a line of the processor's caches");
struct ahead_set {
    struct ahead_entry way[AHEAD_WAYS];
};

struct ahead {
    struct ahead_set *sets;
    uint64_t mask; /* sets - 1 */
};

/* requests: that are under way at most; a set for each, within bounds. */
void ahead_init(struct ahead *a, uint64_t requests);
void ahead_deinit(struct ahead *a);
size_t ahead_memory(const struct ahead *a);
void ahead_put(struct ahead *a, const struct ahead_group *group, uint16_t worker, uint16_t birth,
               uint64_t now_ms, uint64_t until_ms);

/* What a block is known by: one hash stands for other KV in another scope. */
static inline uint64_t chain_name(const struct route_chain *c, uint32_t block) {
    return c->rolling[block] ^ c->scope;
}
/* Where the group is, if it is anywhere, that begins with the block of that name. */
static inline struct ahead_set *ahead_set_of(const struct ahead *a, uint64_t first) {
    return &a->sets[(first ^ first >> 32) & a->mask];
}
/* The prompt's group that begins with block `at`. */
static inline void ahead_group_of(const struct route_chain *c, uint32_t at,
                                  struct ahead_group *group) {
    group->first = chain_name(c, at);
    group->n = c->n - at < AHEAD_GROUP ? c->n - at : AHEAD_GROUP;
    for (uint32_t i = 0; i < group->n; i++)
        group->mark[i] = (uint16_t)(chain_name(c, at + i) >> 48);
}
/* How many blocks of both agree, from the first. */
static inline uint32_t ahead_common(const struct ahead_group *a, const struct ahead_group *b) {
    uint32_t n = a->n < b->n ? a->n : b->n, i = 0;
    if (a->first != b->first) return 0;
    while (i < n && a->mark[i] == b->mark[i]) i++;
    return i;
}
static inline int ahead_live(const struct ahead_entry *e, uint64_t now_ms) {
    return (int32_t)(e->until_ms - (uint32_t)now_ms) > 0;
}

#endif
