/* The chain policy's books (policy_chain.c): runs, in a forest and in cells.
 *
 * A run is what one request added to a chain: consecutive blocks, 32 bytes for up to
 * CHAIN_RUN_BLOCKS of them, split where another request left them. Its parent holds the block
 * before its first. Blocks go from the end of runs without children as long as there are such, so
 * that nobody stays behind a gap; blocks that are popped and in use, that are pinned or wait for
 * their copy on a disk, and a request whose puts are still to come, count as children.
 *
 *   run_new ─> has blocks ──the last one is evicted──> ghost ──too many ghosts, used again──> free
 *                  └──its last one leaves otherwise───────────────────────────────────────────^
 *
 * A ghost is a run without blocks, found by the fingerprint of its first one: from it the policy
 * learns who came back too late. So is the rest of a run that has lost a part. There are at most
 * CHAIN_GHOSTS + an eighth of the objects, at 44 bytes.
 *
 * A cell holds the runs of one kind, level and age (chain_value.h) in three lists: leaves, whose
 * last block may go; runs with children; runs without blocks. */
#ifndef TARN_STORE_CHAIN_H
#define TARN_STORE_CHAIN_H

#include "base/htab.h"
#include "base/page_arena.h"
#include "store/chain_value.h"
#include "store/policy.h"

#define CHAIN_RUN_BLOCKS 255u
#define CHAIN_GHOSTS     1024u

#define BIN_CELLS (CHAIN_KINDS * CHAIN_LEVELS)
#define BIN_WORDS ((BIN_CELLS + 63) / 64)
#define CELLS     (CHAIN_AGES * BIN_CELLS)

enum { CHAIN_LEAVES, CHAIN_INNER, CHAIN_BARE, CHAIN_LISTS, CHAIN_NOWHERE = CHAIN_LISTS };

struct chain_run {
    /* its ring of blocks: the shallowest, before which is the deepest. 0: it has none */
    object_ref first;
    uint32_t parent;
    uint32_t prev, next;                /* in its list; next of a free one: the next free one */
    uint32_t born;                      /* the request that used it last */
    uint32_t print;                     /* of the first of its blocks that were evicted; 0: none */
    uint32_t children : 24, blocks : 8; /* blocks: with those that were evicted */
    uint32_t kind : 3, turn : 3, length : 3, growth : 3, branched : 1;
    uint32_t level : 4, bin : 6, list : 2;
    uint32_t weight : 5; /* of a block: 2 to the power of -weight/4 */
    uint32_t ghost : 1;
    uint32_t grown : 1; /* more than a last block was put behind it */
};
_Static_assert(sizeof(struct chain_run) == 32, "32 bytes for a segment of a chain");

struct chain_cells {
    struct chain_ends {
        uint32_t first, last;
    } list[CHAIN_LISTS][CELLS];
    uint64_t used[CHAIN_LISTS][CHAIN_AGES][BIN_WORDS]; /* lists that are not empty */
    uint32_t next; /* the cell whose leaf goes next, CELLS: to be looked for */
    uint32_t due[CHAIN_AGES], due_first; /* clock of the next look for runs to become older */
};

struct chain_ghosts {
    uint32_t *ring; /* in the order of their becoming ghosts */
    uint32_t cap, head, n;
    uint32_t *by_print; /* runs by fingerprint, CHAIN_PRINT_WAYS in a row; the newest wins */
    uint32_t prints;    /* a power of two */
};
#define CHAIN_PRINT_WAYS 4u

/* A block that is in memory, and in no order: pinned, or waiting for a disk. */
struct chain_parked {
    struct htab_node node; /* by object */
    object_ref object;
    uint32_t run;
};

struct chain_books {
    struct page_arena arena; /* runs */
    uint32_t runs;           /* ever used, with number 0, which is none */
    uint32_t free_run;
    uint32_t clock; /* number of the latest request */
    struct chain_value value;
    struct chain_cells cells;
    struct chain_ghosts ghosts;
    uint32_t *out; /* runs of the blocks that are popped, once for each */
    uint32_t n_out, cap_out;
    struct htab parked;
};

static inline struct chain_run *chain_run(const struct chain_books *c, uint32_t i) {
    return (struct chain_run *)(void *)(c->arena.base + (size_t)i * sizeof(struct chain_run));
}
static inline uint32_t chain_age(const struct chain_books *c, const struct chain_run *r) {
    int32_t age = (int32_t)(c->clock - r->born);
    return age > 0 ? (uint32_t)age : 0;
}

/* --- chain_cells.c --- */

struct chain_traits chain_run_traits(const struct chain_run *r);
float chain_run_weight(const struct chain_run *r, unsigned blocks);
/* For runs of a prompt's part of so many blocks. */
unsigned chain_weight(uint32_t blocks);
/* Into the cell of its kind, traits and age. */
void chain_link(struct chain_books *c, uint32_t i);
void chain_unlink(struct chain_books *c, struct chain_run *r);
/* Its blocks or children have changed: into the list of its cell where it belongs now. */
void chain_relink(struct chain_books *c, uint32_t i);
/* Its exposure, from when its bin began until now. */
void chain_expose(struct chain_books *c, const struct chain_run *r);
/* The clock has its first time, which may be any. */
void chain_cells_begin(struct chain_books *c);
/* Moves runs that have become older to the cells of their age: of each bin in an eighth of the
 * requests that it spans, and the later the more objects there are: a few requests are nothing in
 * what a large pool sees before it evicts a run. */
void chain_cells_age(struct chain_books *c, uint64_t objects);
/* The least worthy leaf, else the run least worthy of those with children (their blocks are behind
 * a block in use); 0: there is none. */
uint32_t chain_cells_next(struct chain_books *c);

/* --- chain_runs.c --- */

uint32_t chain_run_new(struct chain_books *c, uint32_t parent);
/* A child has gone, or a block that was in use. */
void chain_run_less(struct policy *p, uint32_t i);
/* If it has neither blocks nor children, and none of its blocks is popped: it becomes a ghost where
 * some of it were evicted, else it goes; so may its parent. */
void chain_run_settle(struct policy *p, uint32_t i);
/* By depth. */
void chain_run_add(struct policy *p, uint32_t i, struct object *o);
void chain_run_take(struct policy *p, uint32_t i, struct object *o);
struct object *chain_run_last(const struct policy *p, const struct chain_run *r);
unsigned chain_run_count(const struct policy *p, const struct chain_run *r);
/* The blocks up to at, not the last, become a run of their own, which is returned: the parent of
 * the rest, which stays what it is. */
uint32_t chain_run_split(struct policy *p, uint32_t i, struct object *at);

/* The run whose first lost block has that hash; 0: none is known. */
uint32_t chain_ghost_find(const struct chain_books *c, uint64_t hash);
void chain_ghost_print(struct chain_books *c, uint32_t i, uint64_t hash);
void chain_ghost_forget(struct chain_books *c, uint32_t i);

#endif
