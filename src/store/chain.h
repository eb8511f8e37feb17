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
 * A cell holds the runs of one sort (chain_value.h) that were last used in one window of requests,
 * in two lists: leaves, whose last block may go, and runs with children. Runs without blocks are
 * only counted. What ages are the windows, by none of their runs being touched: they become fewer
 * and wider with age, two at a time into one of twice their width, as in an exponential histogram
 * (Datar et al., SODA 2002).
 *
 *   levels:  2 ─────────────┬ 1 ─────┬ 0 ─┐
 *           │       │       │   │   │  │ ││  now
 */
#ifndef TARN_STORE_CHAIN_H
#define TARN_STORE_CHAIN_H

#include "base/assert.h"
#include "base/htab.h"
#include "base/page_arena.h"
#include "store/chain_value.h"
#include "store/policy.h"

#define CHAIN_RUN_BLOCKS 255u
#define CHAIN_RUN_BITS   27
#define CHAIN_RUNS_MAX   (UINT32_C(1) << CHAIN_RUN_BITS)
#define CHAIN_GHOSTS     1024u
#define CHAIN_SEARCHED   (UINT32_C(1) << 16) /* 2 MiB of runs */

#define CHAIN_WINDOW_BITS 1u
#define CHAIN_WINDOW      (1u << CHAIN_WINDOW_BITS) /* requests, of the narrowest window */
#define CHAIN_WINDOWS     8u                        /* of a level, at most */
#define CHAIN_LEVELS      16u
#define CHAIN_SLOTS       (CHAIN_LEVELS * CHAIN_WINDOWS)
#define SORT_WORDS        (CHAIN_SORTS / 64)
#define CHAIN_NEXT        32u /* cells that are looked for at a time */

enum { CHAIN_LEAVES, CHAIN_INNER, CHAIN_BARE, CHAIN_LISTS, CHAIN_NOWHERE = CHAIN_LISTS };

struct chain_run {
    /* the deepest of its blocks, 0: it has none. Each one's prev is the one before it, next the one
     * behind it; the shallowest has itself before it, and the deepest has that one behind it */
    object_ref last;
    uint32_t parent;
    uint32_t prev,
        next;       /* in its list, at the ends its cell; of a free one next is the next such */
    uint32_t born;  /* the request that used it last */
    uint32_t print; /* of the first of its blocks that were evicted; 0: none */
    uint32_t children : 24, blocks : 8; /* blocks: with those that were evicted */
    uint32_t kind : 3, turn : 3, length : 3, growth : 3, branched : 1;
    uint32_t sort : 8, list : 2; /* sort: where it is in a list */
    uint32_t weight : 5;         /* of a block: 2 to the power of -weight/4 */
    uint32_t ghost : 1;
    uint32_t grown : 1; /* more than a last block was put behind it */
    uint32_t cut : 1;   /* its parent has blocks that were its own, or have come between */
};
_Static_assert(sizeof(struct chain_run) == 32, "32 bytes for a segment of a chain");

struct chain_cell {
    struct chain_ends {
        uint32_t first, last;
    } list[CHAIN_BARE];
    uint32_t bare;  /* how many runs without blocks */
    int64_t weight; /* of its runs */
};
struct chain_window {
    uint32_t counted;                       /* clock up to which its exposure is */
    uint64_t used[CHAIN_LISTS][SORT_WORDS]; /* sorts of which there are such runs */
};
struct chain_cells {
    uint32_t goes;           /* the run that is next, until something changes; 0: it is not known */
    struct page_arena arena; /* cells, CHAIN_SLOTS for each sort */
    struct chain_window window[CHAIN_SLOTS];
    uint32_t from[CHAIN_LEVELS]; /* first request of the oldest window of each level */
    uint32_t end;                /* and of the one to come */
    uint32_t middle;             /* of the first window that the clock is not half through */
    struct chain_next {          /* cells whose leaves go next, the first of these last */
        float worth;
        uint32_t cell;
    } next[CHAIN_NEXT];
    unsigned n_next;
    uint64_t next_in[CHAIN_SLOTS / 64]; /* the slots of these cells, and perhaps others */
    uint32_t look_at;                   /* clock: the rest of next is not true any more */
};

struct chain_ghosts {
    uint32_t *ring;        /* in the order of their becoming ghosts */
    uint32_t cap, head, n; /* cap: a power of two */
    uint32_t *by_print;    /* runs by fingerprint, CHAIN_PRINT_WAYS in a row; the newest wins */
    uint32_t prints;       /* a power of two */
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
    uint32_t near;    /* the run that lost a block last, or the one before it; 0: none */
    uint32_t printed; /* the run whose fingerprint is not in by_print yet; 0: none */
    uint32_t n_out, cap_out;
    uint32_t *out;  /* runs of the blocks that are popped, once for each */
    uint32_t clock; /* number of the latest request */
    uint32_t young; /* single blocks that came with this request or later are young */
    struct chain_cells cells;
    struct chain_ghosts ghosts;
    struct htab parked;
    struct chain_value value;
};

static inline struct chain_run *chain_run(const struct chain_books *c, uint32_t i) {
    return (struct chain_run *)(void *)(c->arena.base + (size_t)i * sizeof(struct chain_run));
}
static inline uint32_t chain_age(const struct chain_books *c, const struct chain_run *r) {
    int32_t age = (int32_t)(c->clock - r->born);
    return age > 0 ? (uint32_t)age : 0;
}

/* --- chain_cells.c --- */

/* For runs of a prompt's part of so many blocks. */
unsigned chain_weight(uint32_t blocks);
#define CHAIN_WEIGHT_ONE 4096.0f
extern const float chain_weights[];
/* Into the cell of its sort and of the request that used it last. */
void chain_link(struct chain_books *c, uint32_t i);
void chain_unlink(struct chain_books *c, struct chain_run *r);
/* What it is may have changed, and what it weighs; it need not be in a list. */
void chain_describe(struct chain_books *c, uint32_t i, unsigned weight);
/* Its blocks or children have changed: into the list of its cell where it belongs now. */
void chain_move(struct chain_books *c, uint32_t i);
static inline unsigned chain_list_of(const struct chain_run *r) {
    return !r->last ? CHAIN_BARE : r->children > 0 ? CHAIN_INNER : CHAIN_LEAVES;
}
static inline void chain_relink(struct chain_books *c, uint32_t i) {
    const struct chain_run *r = chain_run(c, i);
    if (r->list != CHAIN_NOWHERE && r->list != chain_list_of(r)) chain_move(c, i);
}
/* It has come to so many blocks. */
void chain_run_size(struct chain_books *c, struct chain_run *r, unsigned blocks);
/* It was not used up to now; it is used, so many blocks of it. It is in a list. */
void chain_run_exposed(struct chain_books *c, const struct chain_run *r);
void chain_run_returned(struct chain_books *c, const struct chain_run *r, unsigned blocks);
float chain_run_worth(struct chain_books *c, const struct chain_run *r);
/* The clock has its first time, which may be any. */
void chain_cells_begin(struct chain_books *c);
/* What all of them are worth has changed. */
void chain_cells_changed(struct chain_books *c);
/* The clock has moved. */
void chain_cells_age(struct chain_books *c, uint64_t objects);
/* The least worthy leaf that is not young, or the one that is near if that is hardly worth more;
 * else the least worthy that is young; else the run least worthy of those with children (their
 * blocks are behind a block in use); 0: there is none. */
uint32_t chain_cells_look(struct chain_books *c);
static inline uint32_t chain_cells_next(struct chain_books *c) {
    return LIKELY(c->cells.goes != 0) ? c->cells.goes : chain_cells_look(c);
}
/* A block of it, or behind it, has gone. */
static inline void chain_cells_near(struct chain_books *c, uint32_t i) {
    c->near = i;
}

/* --- chain_runs.c --- */

uint32_t chain_run_new(struct chain_books *c, uint32_t parent);
/* A child has gone, or a block that was in use. */
void chain_run_less(struct policy *p, uint32_t i);
/* If it has neither blocks nor children, and none of its blocks is popped: it becomes a ghost where
 * some of it were evicted, else it goes; so may its parent. Returns the first that stays, or 0. */
uint32_t chain_run_settle(struct policy *p, uint32_t i);
/* A run behind that one with nothing behind it; itself, if there is none, or if there are more than
 * CHAIN_SEARCHED runs to look through. */
uint32_t chain_run_behind(const struct chain_books *c, uint32_t i, unsigned *budget);
/* By depth. */
void chain_run_add(struct policy *p, uint32_t i, struct object *o);
void chain_run_take(struct policy *p, uint32_t i, struct object *o);
static inline struct object *chain_run_last(const struct policy *p, const struct chain_run *r) {
    return record_get(p->records, r->last);
}
static inline struct object *chain_run_first(const struct policy *p, const struct chain_run *r) {
    return record_get(p->records, chain_run_last(p, r)->next);
}
/* Behind all that are there, of which there are some. */
static inline void chain_run_append(struct policy *p, struct chain_run *r, struct object *o) {
    struct object *last = chain_run_last(p, r);
    o->prev = r->last;
    o->next = last->next;
    r->last = last->next = record_ref(p->records, o);
}
unsigned chain_run_count(const struct policy *p, const struct chain_run *r);
/* The blocks up to at, not the last, become a run of their own, which is returned: the parent of
 * the rest, which stays what it is. */
uint32_t chain_run_split(struct policy *p, uint32_t i, struct object *at);

/* The run whose first lost block has that hash; 0: none is known. */
uint32_t chain_ghost_find(const struct chain_books *c, uint64_t hash);
static inline uint32_t chain_print_of(uint64_t hash) {
    return (uint32_t)(hash >> 32) | 1;
}
void chain_ghost_print_first(struct chain_books *c, uint32_t i);
static inline void chain_ghost_print(struct chain_books *c, uint32_t i, uint64_t hash) {
    if (c->printed != i) chain_ghost_print_first(c, i);
    chain_run(c, i)->print = chain_print_of(hash);
}
void chain_ghost_forget(struct chain_books *c, uint32_t i);

#endif
