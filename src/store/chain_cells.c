/* Runs in cells by what they are worth: who goes next is in the cell worth least. */
#include "store/chain.h"

#include <math.h>
#include "base/assert.h"

struct chain_traits chain_run_traits(const struct chain_run *r) {
    struct chain_traits t = {.kind = (uint8_t)r->kind};
    switch (r->kind) {
    case CHAIN_SHARED: break;
    case CHAIN_LEFT:
    case CHAIN_LAST: t.turn = r->turn > 1 ? 2 : 1; break;
    default:
        t.turn = (uint8_t)r->turn;
        t.length = (uint8_t)r->length;
        t.growth = (uint8_t)r->growth;
        t.branched = (uint8_t)r->branched;
    }
    return t;
}

#define WEIGHT_MAX 31u

unsigned chain_weight(uint32_t blocks) {
    unsigned w = 0;
    while (w < WEIGHT_MAX && (uint64_t)blocks * blocks > UINT64_C(1) << w) w++;
    return w;
}

float chain_run_weight(const struct chain_run *r, unsigned blocks) {
    static const float quarter[4] = {1, 0.840896428f, 0.707106769f, 0.594603539f};
    return (float)blocks * quarter[r->weight % 4] / (float)(1u << r->weight / 4);
}

/* --- lists --- */

static unsigned cell_of_bin(const struct chain_run *r) {
    return r->kind * CHAIN_LEVELS + r->level;
}

static float cell_worth(const struct chain_books *c, unsigned cell) {
    unsigned in = cell % BIN_CELLS;
    return chain_worth(&c->value, in / CHAIN_LEVELS, in % CHAIN_LEVELS, cell / BIN_CELLS);
}

void chain_unlink(struct chain_books *c, struct chain_run *r) {
    if (r->list == CHAIN_NOWHERE) return;
    unsigned in = cell_of_bin(r), cell = r->bin * BIN_CELLS + in;
    struct chain_ends *l = &c->cells.list[r->list][cell];
    *(r->prev ? &chain_run(c, r->prev)->next : &l->first) = r->next;
    *(r->next ? &chain_run(c, r->next)->prev : &l->last) = r->prev;
    if (l->first == 0) {
        c->cells.used[r->list][r->bin][in / 64] &= ~(UINT64_C(1) << in % 64);
        if (r->list == CHAIN_LEAVES && c->cells.next == cell) c->cells.next = CELLS;
    }
    r->list = CHAIN_NOWHERE;
    r->prev = r->next = 0;
}

static unsigned list_for(const struct chain_run *r) {
    return !r->first ? CHAIN_BARE : r->children > 0 ? CHAIN_INNER : CHAIN_LEAVES;
}

/* The oldest of a cell are in front: the first to become older, and to go. */
static void run_enter(struct chain_books *c, uint32_t i, bool front) {
    struct chain_run *r = chain_run(c, i);
    TARN_ASSERT(r->list == CHAIN_NOWHERE);
    r->list = list_for(r);
    unsigned in = cell_of_bin(r), cell = r->bin * BIN_CELLS + in;
    struct chain_ends *l = &c->cells.list[r->list][cell];
    r->prev = front ? 0 : l->last;
    r->next = front ? l->first : 0;
    *(r->prev ? &chain_run(c, r->prev)->next : &l->first) = i;
    *(r->next ? &chain_run(c, r->next)->prev : &l->last) = i;
    c->cells.used[r->list][r->bin][in / 64] |= UINT64_C(1) << in % 64;
    if (r->list == CHAIN_LEAVES && c->cells.next != CELLS &&
        cell_worth(c, cell) < cell_worth(c, c->cells.next))
        c->cells.next = cell;
}

void chain_link(struct chain_books *c, uint32_t i) {
    struct chain_run *r = chain_run(c, i);
    uint32_t age = chain_age(c, r);
    struct chain_traits t = chain_run_traits(r);
    r->bin = chain_age_bin(&c->value, age);
    r->level = chain_level(&c->value, &t, r->bin);
    run_enter(c, i, age > 0);
}

void chain_relink(struct chain_books *c, uint32_t i) {
    struct chain_run *r = chain_run(c, i);
    if (r->list == CHAIN_NOWHERE || r->list == list_for(r)) return;
    chain_unlink(c, r);
    run_enter(c, i, true);
}

/* --- age --- */

void chain_expose(struct chain_books *c, const struct chain_run *r) {
    struct chain_traits t = chain_run_traits(r);
    chain_exposed(&c->value, &t, chain_run_weight(r, r->blocks), r->bin, chain_age(c, r));
}

static void run_older(struct chain_books *c, uint32_t i) {
    struct chain_run *r = chain_run(c, i);
    __builtin_prefetch(chain_run(c, r->next));
    struct chain_traits t = chain_run_traits(r);
    uint32_t age = chain_age(c, r);
    unsigned bin = r->bin;
    while (bin + 1 < CHAIN_AGES && age >= c->value.start[bin + 1]) bin++;
    chain_exposed(&c->value, &t, chain_run_weight(r, r->blocks), r->bin, c->value.start[bin]);
    chain_unlink(c, r);
    r->bin = bin;
    r->level = chain_level(&c->value, &t, bin);
    run_enter(c, i, false);
}

static void bin_older(struct chain_books *c, unsigned bin) {
    uint32_t end = c->value.start[bin + 1];
    for (unsigned l = 0; l < CHAIN_LISTS; l++)
        for (unsigned w = 0; w < BIN_WORDS; w++)
            for (uint64_t bits = c->cells.used[l][bin][w]; bits; bits &= bits - 1) {
                unsigned in = w * 64 + (unsigned)__builtin_ctzll(bits);
                const struct chain_ends *ends = &c->cells.list[l][bin * BIN_CELLS + in];
                while (ends->first && chain_age(c, chain_run(c, ends->first)) >= end)
                    run_older(c, ends->first);
            }
}

#define LOOKS       8u /* at a bin, in the requests that it spans */
#define GRAIN_MAX   64u
#define GRAIN_SHARE 32768u

static uint32_t next_multiple(uint32_t of, uint32_t after) {
    return (after / of + 1) * of;
}

void chain_cells_begin(struct chain_books *c) {
    c->cells.due_first = c->clock;
    for (unsigned b = 0; b < CHAIN_AGES; b++) c->cells.due[b] = c->clock;
}

void chain_cells_age(struct chain_books *c, uint64_t objects) {
    struct chain_cells *x = &c->cells;
    if ((int32_t)(c->clock - x->due_first) < 0) return;
    uint32_t grain = (uint32_t)min_u64(max_u64(objects / GRAIN_SHARE, 1), GRAIN_MAX);
    x->due_first = next_multiple(grain, c->clock);
    for (unsigned b = 0; b + 1 < CHAIN_AGES; b++) {
        if ((int32_t)(c->clock - x->due[b]) < 0) continue;
        uint32_t every = (c->value.start[b + 1] - c->value.start[b]) / LOOKS;
        x->due[b] = next_multiple(every > grain ? every : grain, c->clock);
        bin_older(c, b);
    }
}

/* --- who goes --- */

static unsigned least_cell(const struct chain_books *c, unsigned list) {
    unsigned best = CELLS;
    float least = INFINITY;
    for (unsigned b = 0; b < CHAIN_AGES; b++)
        for (unsigned w = 0; w < BIN_WORDS; w++)
            for (uint64_t bits = c->cells.used[list][b][w]; bits; bits &= bits - 1) {
                unsigned cell = b * BIN_CELLS + w * 64 + (unsigned)__builtin_ctzll(bits);
                float worth = cell_worth(c, cell);
                if (worth < least) {
                    least = worth;
                    best = cell;
                }
            }
    return best;
}

uint32_t chain_cells_next(struct chain_books *c) {
    if (c->cells.next == CELLS) c->cells.next = least_cell(c, CHAIN_LEAVES);
    if (c->cells.next != CELLS) return c->cells.list[CHAIN_LEAVES][c->cells.next].first;
    unsigned inner = least_cell(c, CHAIN_INNER);
    return inner == CELLS ? 0 : c->cells.list[CHAIN_INNER][inner].first;
}
