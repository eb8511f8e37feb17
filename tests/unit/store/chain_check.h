/* The chain policy's books (store/chain.h), checked from outside. */
#ifndef TARN_TESTS_STORE_CHAIN_CHECK_H
#define TARN_TESTS_STORE_CHAIN_CHECK_H

#include "../test.h"

#include <math.h>
#include <stdlib.h>
#include "store/books.h"
#include "store/chain_request.h"

/* Request numbers have come out of any order: what cells weigh is off. */
static bool chain_check_wild;

#define CHAIN_WAITING 258u /* look-ups that may wait for their puts */

struct chain_checked {
    const struct store *s;
    const struct policy *p;
    const struct chain_books *c;
    uint32_t *children; /* of each run, counted */
    uint8_t *seen;      /* it is free; it was met in a list */
    uint32_t of_sort[CHAIN_SORTS];
    uint64_t linked, held;
    uint32_t bare, bare_met; /* runs without blocks; those of cells that are in use */
};
/* What the runs without blocks of each cell are and weigh; zero between checks. */
static struct {
    uint32_t runs;
    double weight;
} chain_check_bare[CHAIN_SORTS * CHAIN_SLOTS];
enum { SEEN_FREE = 1, SEEN_LISTED = 2, SEEN_GHOST = 4 };

static inline const struct chain_books *chain_books_of(const struct policy *p) {
    return *(struct chain_books *const *)p->state;
}

#define CHAIN_END (1u << 31) /* prev of the first, next of the last: their cell */

static inline double chain_check_weight(const struct chain_run *r) {
    return r->blocks * exp2(-(double)r->weight / 4) * 4096;
}

/* Which cell a run without blocks is counted in. */
static inline uint32_t chain_check_cell_of(const struct chain_cells *x, const struct chain_run *r) {
    unsigned level = CHAIN_LEVELS - 1;
    uint32_t born = r->born;
    if ((int32_t)(born - x->from[level]) < 0) born = x->from[level];
    if ((int32_t)(born - x->end) >= 0) born = x->end - 1;
    while (level > 0 && (int32_t)(born - x->from[level - 1]) >= 0) level--;
    uint32_t slot = level * CHAIN_WINDOWS + born / (CHAIN_WINDOW << level) % CHAIN_WINDOWS;
    return r->sort * CHAIN_SLOTS + slot;
}

static inline void chain_check_count_bare(struct chain_checked *k) {
    for (uint32_t i = 1; i < k->c->runs; i++) {
        const struct chain_run *r = chain_run(k->c, i);
        if (k->seen[i] == SEEN_FREE || r->list != CHAIN_BARE) continue;
        CHECK(!r->last && r->prev == 0 && r->next == 0);
        uint32_t cell = chain_check_cell_of(&k->c->cells, r);
        chain_check_bare[cell].runs++;
        chain_check_bare[cell].weight += chain_check_weight(r);
        k->seen[i] |= SEEN_LISTED;
        k->of_sort[r->sort]++;
        k->bare++;
    }
}

/* Returns what its runs weigh. */
static inline double chain_check_list(struct chain_checked *k, unsigned list, uint32_t cell) {
    const struct chain_cell *at = (const struct chain_cell *)(void *)k->c->cells.arena.base + cell;
    const struct chain_ends *l = &at->list[list];
    uint32_t before = CHAIN_END | cell;
    double weight = 0;
    for (uint32_t i = l->first; i && !(i & CHAIN_END); before = i, i = chain_run(k->c, i)->next) {
        const struct chain_run *r = chain_run(k->c, i);
        CHECK(i < k->c->runs && !(k->seen[i] & (SEEN_FREE | SEEN_LISTED)));
        k->seen[i] |= SEEN_LISTED;
        k->of_sort[r->sort]++;
        CHECK_EQ(r->prev, before);
        CHECK(r->list == list);
        CHECK(r->sort == cell / CHAIN_SLOTS);
        CHECK(r->kind == k->c->value.sort[r->sort].traits.kind);
        CHECK(r->last && list == (r->children > 0 ? CHAIN_INNER : CHAIN_LEAVES));
        weight += chain_check_weight(r);
    }
    CHECK_EQ(l->last, before & CHAIN_END ? 0 : before);
    if (l->last) CHECK_EQ(chain_run(k->c, l->last)->next, CHAIN_END | cell);
    return weight;
}

static inline void chain_check_cell(struct chain_checked *k, uint32_t cell) {
    const struct chain_cells *x = &k->c->cells;
    unsigned sort = cell / CHAIN_SLOTS;
    const struct chain_cell *at = (const struct chain_cell *)(void *)x->arena.base + cell;
    double weight = chain_check_bare[cell].weight;
    for (unsigned list = 0; list < CHAIN_LISTS; list++) {
        const struct chain_window *w = &x->window[cell % CHAIN_SLOTS];
        bool some = list == CHAIN_BARE ? at->bare > 0 : at->list[list].first != 0;
        CHECK_EQ(w->used[list][sort / 64] >> sort % 64 & 1, some);
        if (list != CHAIN_BARE) weight += chain_check_list(k, list, cell);
    }
    if (!chain_check_wild) {
        CHECK_EQ(at->bare, chain_check_bare[cell].runs);
        CHECK_WITHIN((double)at->weight, weight * 0.99 - 1000, weight * 1.01 + 1000);
    }
    k->bare_met += chain_check_bare[cell].runs;
    memset(&chain_check_bare[cell], 0, sizeof(chain_check_bare[cell]));
}

/* Of one window, and so many sorts. Unused cells are looked at for runs that nobody would find,
 * those of some sorts at a time. */
static inline void chain_check_window(struct chain_checked *k, unsigned slot, unsigned word,
                                      unsigned sorts, unsigned turn) {
    const struct chain_cell *all = (const struct chain_cell *)(void *)k->c->cells.arena.base;
    const struct chain_window *w = &k->c->cells.window[slot];
    const uint64_t used = w->used[0][word] | w->used[1][word] | w->used[2][word];
    for (uint64_t bits = used; bits; bits &= bits - 1)
        chain_check_cell(k, (word * 64 + (unsigned)__builtin_ctzll(bits)) * CHAIN_SLOTS + slot);
    for (unsigned sort = word * 64 + turn % 8; sort < sorts && sort < word * 64 + 64; sort += 8) {
        const struct chain_cell *cell = &all[sort * CHAIN_SLOTS + slot];
        uint32_t stray = cell->list[0].first | cell->list[1].first | cell->bare;
        CHECK(stray == 0 || used >> sort % 64 & 1);
    }
}

static inline void chain_check_cells(struct chain_checked *k) {
    const struct chain_cells *x = &k->c->cells;
    uint32_t to_middle = x->middle - k->c->clock;
    CHECK(k->c->clock == 0 || (to_middle > 0 && to_middle <= CHAIN_WINDOW));
    size_t there = x->arena.ready / sizeof(struct chain_cell) / CHAIN_SLOTS;
    unsigned sorts = k->c->value.sorts < there ? k->c->value.sorts : (unsigned)there;
    static unsigned turn;
    turn++;
    chain_check_count_bare(k);
    for (unsigned slot = 0; slot < CHAIN_SLOTS; slot++)
        for (unsigned word = 0; word < SORT_WORDS; word++)
            chain_check_window(k, slot, word, sorts, turn);
    if (chain_check_wild)
        memset(chain_check_bare, 0, sizeof(chain_check_bare));
    else
        CHECK_EQ(k->bare_met, k->bare);
    for (unsigned s = 0; s < CHAIN_SORTS; s++) CHECK_EQ(k->c->value.sort[s].runs, k->of_sort[s]);
    for (unsigned l = 0; l < CHAIN_LEVELS; l++) {
        uint32_t width = CHAIN_WINDOW << l, end = l ? x->from[l - 1] : x->end;
        CHECK_EQ(x->from[l] % width, 0u);
        CHECK(end - x->from[l] <= CHAIN_WINDOWS * width);
    }
    CHECK(x->n_next <= CHAIN_NEXT);
    CHECK(x->goes == 0 || chain_run(k->c, x->goes)->list == CHAIN_LEAVES);
    for (unsigned n = 1; n < x->n_next; n++) CHECK(x->next[n - 1].worth >= x->next[n].worth);
}

static inline void chain_check_blocks(struct chain_checked *k, uint32_t i) {
    const struct chain_run *r = chain_run(k->c, i);
    object_ref ref = record_get(&k->s->records, r->last)->next, before = ref;
    for (;;) {
        const struct object *o = record_get(&k->s->records, ref);
        CHECK_EQ(o->request, i);
        CHECK_EQ(o->prev, before);
        CHECK(!(o->bits & OBJECT_Q1));
        k->linked++;
        if (ref == r->last) break;
        before = ref;
        ref = o->next;
    }
}

static inline void chain_check_ghosts(struct chain_checked *k) {
    const struct chain_ghosts *g = &k->c->ghosts;
    CHECK(g->n <= g->cap);
    for (uint32_t n = 0; n < g->n; n++) {
        uint32_t i = g->ring[(g->head + n) % g->cap];
        CHECK(i > 0 && i < k->c->runs && !(k->seen[i] & (SEEN_FREE | SEEN_GHOST)));
        k->seen[i] |= SEEN_GHOST;
        const struct chain_run *r = chain_run(k->c, i);
        CHECK(r->ghost && !r->last && r->children == 0);
    }
    for (uint32_t n = 0; n < g->prints; n++)
        if (g->by_print[n])
            CHECK(chain_run(k->c, g->by_print[n] & (CHAIN_RUNS_MAX - 1))->print != 0);
}

static inline void chain_check_run(struct chain_checked *k, uint32_t i, unsigned *waiting,
                                   unsigned *nowhere) {
    const struct chain_run *r = chain_run(k->c, i);
    CHECK(r->children == k->children[i]);
    CHECK(!r->cut || r->parent || r->ghost);
    CHECK(r->ghost == ((k->seen[i] & SEEN_GHOST) != 0));
    CHECK_EQ(r->list != CHAIN_NOWHERE, (k->seen[i] & SEEN_LISTED) != 0);
    if (r->last) chain_check_blocks(k, i);
    *waiting += !r->last && r->children == 0 && !r->ghost;
    *nowhere += r->list == CHAIN_NOWHERE && r->last;
    unsigned up = 0;
    for (uint32_t at = r->parent; at; at = chain_run(k->c, at)->parent) {
        CHECK(at != i && ++up < k->c->runs);
        CHECK(!(k->seen[at] & (SEEN_FREE | SEEN_GHOST)));
    }
}

struct chain_held {
    struct chain_checked *k;
    struct store *s;
};

static inline void chain_count_held(void *arg, struct object *o) {
    struct chain_checked *k = arg;
    if ((o->bits & OBJECT_AWAITS) || book_far_only(o)) return;
    if (object_pin(k->s, o) != STORE_PIN_NONE || list_linked(o)) return;
    if (order_policy((struct store *)k->s, o) != k->p) return;
    CHECK(o->bits & OBJECT_Q1);
    CHECK(o->request > 0 && o->request < k->c->runs);
    CHECK(!(k->seen[o->request] & SEEN_FREE));
    k->children[o->request]++;
    k->held++;
}

static inline void chain_count_parked(void *arg, struct htab_node *node) {
    struct chain_checked *k = arg;
    const struct chain_parked *x = CONTAINER_OF(node, struct chain_parked, node);
    const struct object *o = record_get(&k->s->records, x->object);
    CHECK((o->bits & OBJECT_AWAITS) || object_pin(k->s, o) != STORE_PIN_NONE);
    CHECK(!book_far_only(o));
    CHECK(x->run > 0 && x->run < k->c->runs && !(k->seen[x->run] & SEEN_FREE));
    k->children[x->run]++;
}

/* Puts go on with it, and it comes into a list when they are over. */
static inline bool chain_check_made(const struct policy *p) {
    const struct chain_puts *n = &chain_state(p)->puts;
    return n->room > 0 && chain_run(chain_books_of(p), n->run)->list == CHAIN_NOWHERE;
}

/* What of a run nobody describes can have blocks: that of the look-up or the puts that go on. */
static inline void chain_check_policy(const struct store *s, const struct policy *p) {
    const struct chain_books *c = chain_books_of(p);
    if (!c) {
        CHECK_EQ(p->count, 0u);
        return;
    }
    struct chain_checked k = {.s = s, .p = p, .c = c};
    k.children = calloc(c->runs, sizeof(*k.children));
    k.seen = calloc(c->runs, 1);
    for (uint32_t i = c->free_run; i; i = chain_run(c, i)->next) {
        CHECK(i < c->runs && !k.seen[i]);
        k.seen[i] = SEEN_FREE;
    }
    for (uint32_t i = 1; i < c->runs; i++) {
        uint32_t parent = chain_run(c, i)->parent;
        if (k.seen[i] != SEEN_FREE && parent) k.children[parent]++;
    }
    index_each((struct index *)&s->index, chain_count_held, &k);
    htab_each(&c->parked, chain_count_parked, &k);
    chain_check_cells(&k);
    chain_check_ghosts(&k);
    unsigned waiting = 0, nowhere = 0;
    for (uint32_t i = 1; i < c->runs; i++)
        if (k.seen[i] != SEEN_FREE) chain_check_run(&k, i, &waiting, &nowhere);
    CHECK(waiting <= CHAIN_WAITING);
    if (!s->batch_open) CHECK_EQ(nowhere, (unsigned)chain_check_made(p));
    CHECK_EQ(c->n_out, 0u);
    CHECK_EQ(k.linked, p->count);
    CHECK_EQ(k.held, p->out);
    free(k.children);
    free(k.seen);
}

/* All of the books' that are of this kind. */
static inline void chain_check(const struct store *s) {
    for (unsigned i = 0; i < s->n_domains; i++)
        for (int inl = 0; s->domains[i].used && inl < 2; inl++) {
            const struct domain *d = &s->domains[i];
            if (d->policy[inl].ops == &policy_chain) chain_check_policy(s, &d->policy[inl]);
            if (d->legacy[inl].ops == &policy_chain) chain_check_policy(s, &d->legacy[inl]);
        }
}

#endif
