/* Which engine has which block of which prompt, in which tier, as the engines' event streams tell.
 *
 * A holder is whoever has a cache of its own: an engine, or one of its data-parallel ranks. Its
 * cache is in KV groups (docs/engines/HYBRID.md), each with blocks of one size, and in tiers.
 * Blocks are known by two names: the standard rolling hash (hash.h), by which prompts are looked
 * up, and the holder's own hash of the block, by which its later events speak of it. The second is
 * read from `stored` events, kept as 32 bits, and never compared between holders.
 *
 *     stored(parent, own hashes, local hashes)     the blocks hang where the parent is
 *     removed(own hashes)                          of that tier and KV group
 *     clear, remove                                at once for look-ups; what they leave behind is
 *                                                  swept in slices
 *
 * It is a hint, and errs to one side: it may have lost what an engine still has, it never makes a
 * prefix of blocks that were not told of as one. So an event whose parent is unknown is counted and
 * dropped, and two own hashes of one holder that look alike in 32 bits are both given up when one
 * of them is removed.
 *
 * Bounded: max_bytes is never exceeded, all memory of the index included. When it is full, or a
 * holder has as many blocks as it may have, the least recently matched ones are forgotten: of that
 * holder, or of the one that has the most. A forgotten block is a lost hint. So a holder that tells
 * of more than it can have, or of prompts that never repeat, pushes out nothing but its own.
 *
 * One thread at a time; nothing blocks. Time is counted in look-ups and events. */
#ifndef TARN_ROUTE_INDEX_H
#define TARN_ROUTE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/figures.h"

/* From near to far. Of the engine itself: the pool is no holder. */
enum route_tier { ROUTE_TIER_DEVICE, ROUTE_TIER_HOST, ROUTE_TIER_DISK, ROUTE_TIERS };

#define ROUTE_GROUPS_MAX  16u   /* KV groups of a holder */
#define ROUTE_CHAINS_MAX  4u    /* sizes of blocks in one look-up */
#define ROUTE_HOLDERS_MAX 4096u /* what config.holders_max may be */
#define ROUTE_HOLDER_NONE 0u

enum route_group_kind { ROUTE_GROUP_FULL, ROUTE_GROUP_WINDOW, ROUTE_GROUP_STATE };

struct route_group {
    enum route_group_kind kind;
    uint32_t block;  /* tokens; above 0 */
    uint32_t window; /* tokens, above 1; ROUTE_GROUP_WINDOW only, else 0 */
};

struct route_index_config {
    uint64_t max_bytes;   /* at least ROUTE_INDEX_BYTES_MIN */
    uint64_t seed;        /* of the hashes (hash.h) */
    uint32_t holders_max; /* 1 to ROUTE_HOLDERS_MAX */
};
#define ROUTE_INDEX_BYTES_MIN (UINT64_C(1) << 20)

#define ROUTE_INDEX_FIGURES(X)                                                                     \
    X(BYTES, route_index_bytes, "memory of the index of the engines' blocks, all of it")           \
    X(BYTES, route_index_max_bytes, "what that memory may grow to")                                \
    X(GAUGE, route_holders, "engines and ranks of engines whose blocks are in the index")          \
    X(GAUGE, route_blocks, "different blocks in the index")                                        \
    X(GAUGE, route_pairs, "blocks by holder: one that two engines have counts twice")              \
    X(GAUGE, route_runs, "runs of blocks in the index, which are looked up as one")                \
    X(GAUGE, route_ghosts,                                                                         \
      "of the pairs those of engines that left or were cleared, not yet swept")                    \
    X(COUNTER, route_matches, "prompts that were looked up")                                       \
    X(COUNTER, route_stored, "blocks that events said are there now, by tier and KV group")        \
    X(COUNTER, route_removed, "blocks that events said are gone, by tier and KV group")            \
    X(COUNTER, route_cleared, "holders that began anew")                                           \
    X(COUNTER, route_repeated, "blocks that events said are there, and were")                      \
    X(COUNTER, route_unknown, "blocks that events said are gone, and were not there")              \
    X(COUNTER, route_orphans, "blocks that were dropped because nothing is known of their parent") \
    X(COUNTER, route_strays, "blocks that were dropped as of an unknown holder or KV group")       \
    X(COUNTER, route_forgotten, "pairs that were forgotten to make room")                          \
    X(COUNTER, route_refused, "blocks that were dropped for lack of room")                         \
    X(COUNTER, route_alike, "own hashes that could not be told apart, and were given up")

struct route_index_figures {
    ROUTE_INDEX_FIGURES(FIGURE_MEMBER)
};
extern const struct figure route_index_figures[];

struct route_index;

/* NULL: the configuration is out of its bounds, or holders_max alone takes half of max_bytes. */
struct route_index *route_index_create(const struct route_index_config *config);
void route_index_destroy(struct route_index **ix_p);
struct route_index_figures route_index_stats(const struct route_index *ix);

/* --- holders --- */

/* blocks_max: how many blocks its caches can hold in all tiers (KVBLOCKS and what its host memory
 * and disk add), which is what may be known of it; it is cut to what the index has room for. 0: not
 * known, 65536. The holder starts with one KV group, number 0, kind FULL, of blocks of `block`
 * tokens (above 0). ROUTE_HOLDER_NONE: there are holders_max. */
uint32_t route_holder_add(struct route_index *ix, uint32_t block, uint64_t blocks_max);
/* It can hold so many blocks, as it says itself: if that is more, so many may be known. Unknown
 * ones are ignored. */
void route_holder_raise(struct route_index *ix, uint32_t holder, uint64_t blocks_max);
/* What it holds is out of all look-ups at once, and swept later. Unknown ones are ignored. */
void route_holder_remove(struct route_index *ix, uint32_t holder);
/* The same, but it stays (AllBlocksCleared; a new start; a gap in its events). */
void route_holder_clear(struct route_index *ix, uint32_t holder);
/* What KV group `group` is. One that was something else before clears the holder. false: no such
 * holder, number or group; nothing changes then. */
bool route_holder_group(struct route_index *ix, uint32_t holder, uint32_t group,
                        const struct route_group *what);
/* Pairs of that holder; 0 for unknown ones. */
uint64_t route_holder_blocks(const struct route_index *ix, uint32_t holder);

/* --- events --- */

struct route_stored {
    uint32_t holder;
    uint32_t group;
    enum route_tier tier;
    uint64_t scope; /* route_hash_scope, with the block of the group */
    bool has_parent;
    uint64_t parent; /* own hash of the block before the first */
    size_t n;
    const uint64_t *own; /* own hashes; NULL: the rolling ones */
    /* One of both, the other NULL. Both NULL: these are blocks of which the holder has told before,
     * from any tier or KV group with blocks of the same size, called by their own names alone, as
     * engines do that offload; own is not NULL, the parent and the scope are of no matter. */
    const uint64_t *local, *rolling;
};

/* Consecutive blocks are there now. The parent may be known from any KV group of the holder with
 * blocks of the same size. Returns how many are known now, counted from the first: less than n when
 * the parent is unknown (0), or there is no room; of blocks called by their names, how many of
 * these are known. Linear in n. */
size_t route_index_stored(struct route_index *ix, const struct route_stored *e);

/* Returns how many of them were there. Names that are unknown are counted, and of no matter. */
size_t route_index_removed(struct route_index *ix, uint32_t holder, uint32_t group,
                           enum route_tier tier, const uint64_t *own, size_t n);

/* Of what is removed, holder, group, tier and own are of use; own is not NULL. */
struct route_event {
    bool removed;
    struct route_stored what;
};
/* One after the other, as the functions above do it, and the faster the more there are: what later
 * ones need is fetched while earlier ones are applied. Engines tell of what one step of theirs
 * changed in one message, mostly of single blocks. */
void route_index_apply(struct route_index *ix, const struct route_event *events, size_t n);

/* Looks at up to `budget` pairs of holders that left or were cleared, and forgets them. true: there
 * are more. */
bool route_index_sweep(struct route_index *ix, size_t budget);

/* --- look-ups --- */

/* A prompt, hashed in blocks of one size. */
struct route_chain {
    uint64_t scope; /* route_hash_scope, with this block */
    uint32_t block; /* tokens */
    uint32_t n;
    const uint64_t *rolling;
};

/* What a holder has of a prompt: the tokens of its longest prefix that it can take up, from the
 * device alone, from device and host memory, from these and its disk. */
struct route_hit {
    uint32_t holder;
    uint32_t tokens[ROUTE_TIERS]; /* does not fall */
};

/* For each holder that has at least a block's worth of the prompt, in no particular order. Engines
 * with blocks of different sizes, and KV groups of different sizes in one engine, each need the
 * chain of their size; a group whose size is not among them has nothing. chains: up to
 * ROUTE_CHAINS_MAX, sizes differ.
 *
 * A holder with several KV groups can take up a prompt where all of them have what they need: a
 * full one all blocks from the start, a window its last blocks, a state the one that ends there
 * (src/base/kv_groups.h has the same rules; here the boundary is a multiple of all block sizes).
 *
 * Returns how many there are; when that is more than `cap`, the first cap are in `hits`. The work
 * is bounded: behind 1,024 runs of a prompt nothing is looked for. Allocates nothing. */
size_t route_index_match(struct route_index *ix, const struct route_chain *chains, size_t chains_n,
                         struct route_hit *hits, size_t cap);

struct route_group_hit {
    uint32_t group;
    struct route_group what;
    uint32_t tokens[ROUTE_TIERS]; /* the longest prefix that this KV group alone would allow */
};
/* Of one holder, KV group by KV group: where a prefix ends, and why. Returns the number of its
 * groups, 0 for unknown holders; fills in as many. */
size_t route_index_match_groups(struct route_index *ix, const struct route_chain *chains,
                                size_t chains_n, uint32_t holder,
                                struct route_group_hit groups[ROUTE_GROUPS_MAX]);

/* --- hot prefixes --- */

#define ROUTE_HOT_MAX 128u

/* A run of blocks through which many look-ups went, of a sample of them. */
struct route_hot {
    uint64_t scope;
    uint64_t last;    /* rolling hash of the last block of the prefix that ends with the run */
    uint32_t block;   /* tokens */
    uint32_t blocks;  /* of the whole prefix */
    uint32_t holders; /* that have its last block */
    uint64_t matches; /* estimated; halved now and then, so that what was hot grows cold */
};
/* The hottest first. Returns how many, at most cap. */
size_t route_index_hot(const struct route_index *ix, struct route_hot *hot, size_t cap);
/* The rolling hashes of that prefix, from the first: what a look-up of it takes, to see who has how
 * much of it. Returns their number, blocks; 0: it is no longer known from its start, or longer than
 * cap. */
size_t route_index_hot_chain(const struct route_index *ix, const struct route_hot *hot,
                             uint64_t *rolling, size_t cap);

/* For tests and fuzzers: asserts all that must hold, and returns the memory, counted anew. */
uint64_t route_index_check(const struct route_index *ix);

#endif
