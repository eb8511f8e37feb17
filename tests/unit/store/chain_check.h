/* The chain policy's books (store/chain.h), checked from outside. */
#ifndef TARN_TESTS_STORE_CHAIN_CHECK_H
#define TARN_TESTS_STORE_CHAIN_CHECK_H

#include "../test.h"

#include <stdlib.h>
#include "store/books.h"
#include "store/chain.h"

#define CHAIN_WAITING 258u /* look-ups that may wait for their puts */

struct chain_checked {
    const struct store *s;
    const struct policy *p;
    const struct chain_books *c;
    uint32_t *children; /* of each run, counted */
    uint8_t *seen;      /* it is free; it was met in a list */
    uint64_t linked, held;
};
enum { SEEN_FREE = 1, SEEN_LISTED = 2, SEEN_GHOST = 4 };

static inline const struct chain_books *chain_books_of(const struct policy *p) {
    return *(struct chain_books *const *)p->state;
}

static inline unsigned chain_check_list(struct chain_checked *k, unsigned list, unsigned cell) {
    const struct chain_ends *l = &k->c->cells.list[list][cell];
    uint32_t before = 0;
    unsigned n = 0;
    for (uint32_t i = l->first; i; before = i, i = chain_run(k->c, i)->next, n++) {
        const struct chain_run *r = chain_run(k->c, i);
        CHECK(i < k->c->runs && !(k->seen[i] & (SEEN_FREE | SEEN_LISTED)));
        k->seen[i] |= SEEN_LISTED;
        CHECK_EQ(r->prev, before);
        CHECK(r->list == list);
        CHECK_EQ(r->bin * BIN_CELLS + r->kind * CHAIN_LEVELS + r->level, cell);
        CHECK(list == (!r->first ? CHAIN_BARE : r->children > 0 ? CHAIN_INNER : CHAIN_LEAVES));
    }
    CHECK_EQ(l->last, before);
    return n;
}

static inline void chain_check_cells(struct chain_checked *k) {
    for (unsigned list = 0; list < CHAIN_LISTS; list++)
        for (unsigned cell = 0; cell < CELLS; cell++) {
            unsigned in = cell % BIN_CELLS, n = chain_check_list(k, list, cell);
            bool used = k->c->cells.used[list][cell / BIN_CELLS][in / 64] >> in % 64 & 1;
            CHECK_EQ(used, n > 0);
        }
    CHECK(k->c->cells.next <= CELLS);
    if (k->c->cells.next < CELLS) CHECK(k->c->cells.list[CHAIN_LEAVES][k->c->cells.next].first);
}

static inline void chain_check_ring(struct chain_checked *k, uint32_t i) {
    const struct chain_run *r = chain_run(k->c, i);
    object_ref ref = r->first, before = record_get(&k->s->records, ref)->prev;
    do {
        const struct object *o = record_get(&k->s->records, ref);
        CHECK_EQ(o->request, i);
        CHECK_EQ(o->prev, before);
        CHECK(!(o->bits & OBJECT_Q1));
        before = ref;
        ref = o->next;
        k->linked++;
    } while (ref != r->first);
}

static inline void chain_check_ghosts(struct chain_checked *k) {
    const struct chain_ghosts *g = &k->c->ghosts;
    CHECK(g->n <= g->cap);
    for (uint32_t n = 0; n < g->n; n++) {
        uint32_t i = g->ring[(g->head + n) % g->cap];
        CHECK(i > 0 && i < k->c->runs && !(k->seen[i] & (SEEN_FREE | SEEN_GHOST)));
        k->seen[i] |= SEEN_GHOST;
        const struct chain_run *r = chain_run(k->c, i);
        CHECK(r->ghost && !r->first && r->children == 0);
    }
    for (uint32_t n = 0; n < g->prints; n++)
        if (g->by_print[n]) CHECK(chain_run(k->c, g->by_print[n])->print != 0);
}

static inline void chain_check_run(struct chain_checked *k, uint32_t i, unsigned *waiting,
                                   unsigned *nowhere) {
    const struct chain_run *r = chain_run(k->c, i);
    CHECK(r->children == k->children[i]);
    CHECK(r->ghost == ((k->seen[i] & SEEN_GHOST) != 0));
    CHECK_EQ(r->list != CHAIN_NOWHERE, (k->seen[i] & SEEN_LISTED) != 0);
    if (r->first) chain_check_ring(k, i);
    *waiting += !r->first && r->children == 0 && !r->ghost;
    *nowhere += r->list == CHAIN_NOWHERE && r->first;
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

/* What of a run nobody describes can have blocks: that of the look-up that goes on. */
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
    if (!s->batch_open) CHECK_EQ(nowhere, 0u);
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
