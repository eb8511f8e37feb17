/* Inside of the index: runs, positions, lanes, and the whole struct.
 *
 * A run is up to 64 consecutive blocks of prompts, looked up as one. Rolling hashes name whole
 * prefixes, so:
 *
 * - a block is in one run only, and follows there, or begins a run, whatever came before it. Runs
 * are
 *   found by the hash of their first block; nothing points from a run to those that follow. A
 * prompt
 *   that leaves a run in its middle goes on in another one: runs are never split or joined.
 * - when a prompt's hash agrees with a run's last block, it agrees with all of them. A look-up
 *   reads the run's one cache line, and searches the hashes of its blocks only where it leaves.
 *
 *     q[0..7) ─┬─ run A, 7 blocks ── q[7..40): run B, 33 of 64 blocks ── q[40..]: not known
 *              └─ its lanes: 64 bits for each (holder, KV group, tier) that has any of its blocks
 *
 * Hashes are kept xor the scope, so scopes need no room.
 *
 * A run knows how many others go on from one of its blocks, and the index how many lost the run
 * that they went on from (they are `loose`: told of by somebody who lost the head before the tail).
 * Where neither is, a new block need not be looked for before it is appended, which saves a cache
 * miss.
 *
 * The life of a run: made by the first event that tells of its first block; longer as events tell
 * of what follows its last one; shorter when nobody has its last blocks any more; gone when nobody
 * has any. Of a block in its middle that nobody has, the hash stays; and of one that others hang
 * on.
 *
 * A holder's own hashes lead to positions, through a table for each holder (index_table.h). An
 * entry may be left over from a name that an engine gave the same block before: it leads to a block
 * that the holder does not have, and is nothing. Every block that a holder has, has an entry. */
#ifndef TARN_ROUTE_INDEX_RUN_H
#define TARN_ROUTE_INDEX_RUN_H

#include "base/assert.h"
#include "route/index.h"
#include "route/index_table.h"

#define RUN_BLOCKS   64u
#define RUN_ID_MAX   ((UINT32_C(1) << 26) - 1)
#define CHUNK_RUNS   64u
#define CHUNK_BYTES  (CHUNK_RUNS * sizeof(struct route_run))
#define PATH_RUNS    1024u /* of a look-up */
#define PIECE_BLOCKS 64u   /* of an event, which are placed before the next are */

/* run << 6 | number of the block in it; 0: none */
typedef uint32_t route_pos;

struct route_lane {
    uint32_t key; /* incarnation << 16 | group << 8 | tier: lanes of a run are in that order */
    uint32_t bits[2];
};
static inline uint64_t lane_bits(const struct route_lane *l) {
    return (uint64_t)l->bits[1] << 32 | l->bits[0];
}
#define LANE_KEY(life, group, tier) ((uint32_t)(life) << 16 | (uint32_t)(group) << 8 | (tier))

struct route_run {
    uint64_t first, last; /* hashes */
    uint64_t *hash;       /* all of them; NULL while there are no more than two */
    union {
        struct route_lane in[2];
        struct route_lane *out; /* when there are more */
    };
    uint8_t len, cap;
    uint16_t lanes;
    uint32_t stamp;        /* of the last look-up or event */
    route_pos parent;      /* the block before the first, as it was then */
    uint16_t parent_check; /* lower bits of its hash: positions are used again */
    uint8_t children;      /* runs whose parent is in this one; UINT8_MAX: so many, or more */
    uint8_t fork;          /* none of them hangs behind that block */
};
static_assert(sizeof(struct route_run) == 64, "one cache line");

struct route_chunk {
    uint64_t free;       /* bits; all of them: there is no memory either */
    uint32_t next, prev; /* among those that have both free runs and others; 0: none */
};

/* What a holder is between two times that it is cleared. The number of one is in lanes, and is
 * given again only when all that was of it is swept. */
struct route_life {
    uint32_t holder; /* 0: nobody's */
    bool dead;       /* and to be swept */
    uint32_t quota;
    struct route_table names;
    uint32_t hand_shard, hand_slot; /* of forgetting and sweeping */
};

/* What a look-up needs of a life. */
struct route_brief {
    uint32_t holder; /* 0: dead or nobody's */
    uint32_t block;  /* of its only KV group, which is a full one; 0: it has others */
    uint32_t mark;   /* of the last look-up that met it, when it has others */
};

struct route_holder {
    uint32_t life; /* 0: no such holder */
    uint32_t groups;
    struct route_group group[ROUTE_GROUPS_MAX]; /* block 0: none */
};

/* A prompt's way through the runs. */
struct route_step {
    struct route_run *run;
    uint32_t id, at, blocks;
};
struct route_path {
    const struct route_chain *chain;
    struct route_step *step;
    uint32_t steps, blocks;
    bool over; /* nothing can follow */
};

struct route_hot_run {
    uint32_t run, at, block; /* 0: nothing; its first block is number `at` of the prompt */
    uint32_t count;
    uint64_t first, scope;
};

struct route_index {
    struct route_index_config config;
    struct route_memory memory;
    uint64_t fixed_bytes;      /* of the struct and its arrays */
    struct route_table firsts; /* of runs */
    struct page_arena runs;
    struct route_chunk *chunk; /* of runs; number 0 is none */
    uint32_t chunks, chunks_max, chunk_unused, chunk_partly;
    uint64_t runs_free; /* in chunks that are there */
    uint64_t loose;     /* runs whose parents are gone; at least as many as there are */
    struct route_life *life;
    struct route_brief *brief;
    struct route_holder *holder;
    uint32_t lives; /* of both, number 0 is none */
    uint32_t lives_dead;
    uint32_t tick;           /* look-ups and events */
    uint32_t mark;           /* of the last look-up */
    struct route_step *step; /* PATH_RUNS for each chain of a look-up */
    uint16_t *several;       /* lives with several KV groups that a look-up met */
    uint16_t *row_life;      /* of a look-up's rows */
    uint32_t hot_samples;
    struct route_hot_run hot[ROUTE_HOT_MAX];
    struct route_index_figures figures;
};

/* --- index_run.c --- */

static inline struct route_run *route_run_at(const struct route_index *ix, uint32_t id) {
    return (struct route_run *)(void *)ix->runs.base + id;
}
/* NULL: there is no such run any more. */
static inline struct route_run *route_run_live(const struct route_index *ix, uint32_t id) {
    return (ix->chunk[id / CHUNK_RUNS].free >> id % CHUNK_RUNS & 1) == 0 ? route_run_at(ix, id)
                                                                         : NULL;
}
static inline uint64_t route_run_hash(const struct route_run *r, uint32_t i) {
    return i == 0 ? r->first : i + 1 == r->len ? r->last : r->hash[i];
}
static inline const struct route_lane *route_run_lanes(const struct route_run *r) {
    return r->lanes > 2 ? r->out : r->in;
}
static inline uint64_t route_mask(uint32_t blocks) {
    return blocks < 64 ? (UINT64_C(1) << blocks) - 1 : UINT64_MAX;
}
/* 32 bits of a hash that may be any number (Murmur's finalizer): clients name what they like. */
static inline uint32_t route_print(uint64_t hash) {
    hash = (hash ^ hash >> 33) * UINT64_C(0xff51afd7ed558ccd);
    hash = (hash ^ hash >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return (uint32_t)(hash >> 32);
}
/* Of a holder's own hash of a block of so many tokens. */
static inline uint32_t route_name_print(uint64_t own, uint32_t block) {
    return route_print(own ^ block * UINT64_C(0x9e3779b97f4a7c15));
}

/* The run that begins with that block; 0: none. */
uint32_t route_run_find(const struct route_index *ix, uint64_t first);
/* false, 0: no room. */
uint32_t route_run_make(struct route_index *ix, uint64_t first, route_pos parent);
/* It goes on from that block again, if it was loose. */
void route_run_adopt(struct route_index *ix, struct route_run *r, route_pos parent);
/* The run of its parent, if that is still there. */
struct route_run *route_run_parent(const struct route_index *ix, const struct route_run *r);
bool route_run_append(struct route_index *ix, struct route_run *r, uint64_t hash);
/* Room for that many blocks in all. */
bool route_run_reserve(struct route_index *ix, struct route_run *r, uint32_t len);
bool route_run_mark(struct route_index *ix, struct route_run *r, uint32_t key, uint64_t mask,
                    uint64_t *new_p);
/* The lane of that key, or the first behind it. */
uint32_t route_lane_find(const struct route_run *r, uint32_t key);
uint64_t route_lane_bits(const struct route_run *r, uint32_t key);
/* Of all lanes of the life but that one (0: of all). */
uint64_t route_life_bits(const struct route_run *r, uint32_t life, uint32_t but_key);
/* Out of a lane, or of all lanes of the life; what nobody has any more goes. The run may be gone
 * then. */
void route_run_unmark(struct route_index *ix, uint32_t id, uint32_t key, uint64_t mask);
void route_run_unmark_life(struct route_index *ix, uint32_t id, uint32_t life, uint64_t mask);
/* Gone when nobody has any of its blocks. */
void route_run_trim(struct route_index *ix, uint32_t id);
uint64_t route_run_memory(const struct route_run *r);
void route_runs_free(struct route_index *ix); /* with all that is in them */

/* --- index_forget.c --- */

/* Some room for what comes, if need be at somebody's cost. */
void route_forget_for(struct route_index *ix);
/* About `want` of what that life has and nobody has asked for for long; false: nothing. */
bool route_forget_of(struct route_index *ix, uint32_t life, uint32_t want);
/* Up to that many entries of a dead life; true: it is over. */
bool route_life_sweep(struct route_index *ix, uint32_t life, size_t *budget_p);

/* --- index_match.c, index_serve.c, index_hot.c --- */

/* Tokens that the groups (bits) of a holder allow, from the tiers up to that one. */
uint32_t route_serve(const struct route_holder *h, uint32_t groups, enum route_tier tier,
                     const struct route_path *paths, size_t n);
void route_hot_touch(struct route_index *ix, const struct route_path *path);

#endif
