/* Runs of blocks, and the ghosts of those that were evicted. */
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/buf.h"
#include "store/chain.h"

#define SEARCH_UNIT  256u /* runs that are looked through for one unit of a budget */
#define SEARCH_DEPTH 64u
#define SEARCH_BARE  4u /* runs without blocks, between two */

/* --- ghosts --- */

static uint32_t *print_slots(const struct chain_books *c, uint32_t print) {
    return &c->ghosts.by_print[print * 2654435761u & (c->ghosts.prints - CHAIN_PRINT_WAYS)];
}

/* A run, and what its fingerprint ends with: others need not be looked at. */
static uint32_t print_slot(uint32_t print, uint32_t i) {
    return print << CHAIN_RUN_BITS | i;
}

uint32_t chain_ghost_find(const struct chain_books *c, uint64_t hash) {
    uint32_t print = chain_print_of(hash);
    if (c->printed && chain_run(c, c->printed)->print == print) return c->printed;
    const uint32_t *slot = print_slots(c, print);
    for (unsigned k = 0; k < CHAIN_PRINT_WAYS; k++) {
        uint32_t i = slot[k] & (CHAIN_RUNS_MAX - 1);
        if (i && slot[k] == print_slot(print, i) && chain_run(c, i)->print == print) return i;
    }
    return 0;
}

void chain_ghost_forget(struct chain_books *c, uint32_t i) {
    struct chain_run *r = chain_run(c, i);
    if (!r->print) return;
    if (c->printed == i) c->printed = 0;
    uint32_t *slot = print_slots(c, r->print), mine = print_slot(r->print, i);
    for (unsigned k = 0; k < CHAIN_PRINT_WAYS; k++)
        if (slot[k] == mine) slot[k] = 0;
    r->print = 0;
}

static void print_enter(struct chain_books *c, uint32_t i) {
    uint32_t print = chain_run(c, i)->print, *slot = print_slots(c, print);
    unsigned k = 0;
    while (k < CHAIN_PRINT_WAYS && slot[k]) k++;
    slot[k < CHAIN_PRINT_WAYS ? k : i % CHAIN_PRINT_WAYS] = print_slot(print, i);
}

/* A run that loses its last block most often loses the one before next. */
void chain_ghost_print_first(struct chain_books *c, uint32_t i) {
    if (c->printed) print_enter(c, c->printed);
    chain_ghost_forget(c, i);
    c->printed = i;
}

static void run_free(struct chain_books *c, uint32_t i) {
    chain_ghost_forget(c, i);
    struct chain_run *r = chain_run(c, i);
    chain_unlink(c, r);
    *r = (struct chain_run){.next = c->free_run, .list = CHAIN_NOWHERE};
    c->free_run = i;
}

/* The oldest ghost has not come back. */
static void ghost_expire(struct chain_books *c) {
    struct chain_ghosts *g = &c->ghosts;
    uint32_t i = g->ring[g->head];
    g->head = (g->head + 1) & (g->cap - 1);
    g->n--;
    const struct chain_run *r = chain_run(c, i);
    if (r->list != CHAIN_NOWHERE) chain_run_exposed(c, r);
    run_free(c, i);
}

/* Twice the room. Fingerprints that are entered later are found; of those before, what is in the
 * ring. */
static void ghosts_grow(struct chain_books *c) {
    struct chain_ghosts *g = &c->ghosts;
    uint32_t cap = g->cap * 2, *ring = xcalloc(cap, sizeof(*ring));
    for (uint32_t k = 0; k < g->n; k++) ring[k] = g->ring[(g->head + k) % g->cap];
    free(g->ring);
    free(g->by_print);
    g->ring = ring;
    g->cap = cap;
    g->head = 0;
    g->prints = 2 * cap;
    g->by_print = xcalloc(g->prints, sizeof(*g->by_print));
    for (uint32_t k = 0; k < g->n; k++)
        if (chain_run(c, ring[k])->print && ring[k] != c->printed) print_enter(c, ring[k]);
}

static void ghost_enter(struct policy *p, struct chain_books *c, uint32_t i) {
    struct chain_ghosts *g = &c->ghosts;
    uint64_t limit = CHAIN_GHOSTS + p->count / 8;
    while (g->n > 0 && g->n >= limit) ghost_expire(c);
    if (g->n == g->cap) ghosts_grow(c);
    g->ring[(g->head + g->n++) & (g->cap - 1)] = i;
    chain_run(c, i)->ghost = 1;
    chain_relink(c, i);
}

/* --- the forest --- */

static struct chain_books *chain_of(const struct policy *p) {
    return *(struct chain_books **)p->state;
}

uint32_t chain_run_new(struct chain_books *c, uint32_t parent) {
    uint32_t i = c->free_run;
    if (i) {
        c->free_run = chain_run(c, i)->next;
    } else {
        TARN_ASSERT(page_arena_grow(&c->arena, (size_t)(c->runs + 1) * sizeof(struct chain_run)));
        i = c->runs++;
    }
    *chain_run(c, i) = (struct chain_run){.parent = parent, .list = CHAIN_NOWHERE};
    if (parent) {
        chain_run(c, parent)->children++;
        chain_relink(c, parent);
    }
    return i;
}

static bool is_out(const struct chain_books *c, uint32_t i) {
    for (uint32_t k = 0; k < c->n_out; k++)
        if (c->out[k] == i) return true;
    return false;
}

/* Returns the parent, which has one child less, if it has gone. */
static uint32_t run_end(struct policy *p, struct chain_books *c, uint32_t i) {
    struct chain_run *r = chain_run(c, i);
    uint32_t parent = r->parent;
    r->parent = 0;
    if (r->print && r->list != CHAIN_NOWHERE)
        ghost_enter(p, c, i);
    else
        run_free(c, i);
    return parent;
}

uint32_t chain_run_settle(struct policy *p, uint32_t i) {
    struct chain_books *c = chain_of(p);
    for (;;) {
        struct chain_run *r = chain_run(c, i);
        if (r->last || r->children > 0 || is_out(c, i)) break;
        if (!(i = run_end(p, c, i))) return 0;
        r = chain_run(c, i);
        TARN_ASSERT(r->children > 0);
        r->children--;
    }
    chain_relink(c, i);
    return i;
}

static bool run_is_behind(const struct chain_books *c, uint32_t i, uint32_t other) {
    for (unsigned n = 0; i && i != other && n < SEARCH_DEPTH; n++) i = chain_run(c, i)->parent;
    return i == other;
}

/* One with blocks behind i, and none between them. No run knows its children. */
static uint32_t run_next(const struct chain_books *c, uint32_t i) {
    for (uint32_t k = 1; k < c->runs; k++) {
        if (!chain_run(c, k)->last) continue;
        uint32_t up = chain_run(c, k)->parent;
        for (unsigned n = 0; up && up != i && !chain_run(c, up)->last && n < SEARCH_BARE; n++)
            up = chain_run(c, up)->parent;
        if (up == i) return k;
    }
    return 0;
}

uint32_t chain_run_behind(const struct chain_books *c, uint32_t i, unsigned *budget) {
    if (chain_run(c, i)->children == 0 || c->runs > CHAIN_SEARCHED) return i;
    /* where the last one came from */
    if (c->near && chain_run(c, c->near)->last && run_is_behind(c, c->near, i)) i = c->near;
    for (uint32_t next; chain_run(c, i)->children > 0 && (next = run_next(c, i)); i = next)
        *budget -= (unsigned)min_u64(*budget, c->runs / SEARCH_UNIT);
    return i;
}

void chain_run_less(struct policy *p, uint32_t i) {
    struct chain_run *r = chain_run(chain_of(p), i);
    TARN_ASSERT(r->children > 0);
    r->children--;
    chain_run_settle(p, i);
}

/* --- blocks --- */

unsigned chain_run_count(const struct policy *p, const struct chain_run *r) {
    unsigned n = 0;
    for (object_ref ref = r->last, at = 0; ref != at; n++) {
        at = ref;
        ref = record_get(p->records, at)->prev;
    }
    return n;
}

/* Before the last one. */
static void run_insert(struct policy *p, const struct chain_run *r, struct object *o) {
    object_ref ref = record_ref(p->records, o);
    struct object *behind = chain_run_last(p, r);
    for (;;) {
        struct object *before = record_get(p->records, behind->prev);
        if (before == behind) { /* it is the first */
            o->prev = ref;
            o->next = behind->prev;
            behind->prev = chain_run_last(p, r)->next = ref;
            return;
        }
        if (object_depth(before) <= object_depth(o)) break;
        behind = before;
    }
    o->prev = behind->prev;
    o->next = record_get(p->records, o->prev)->next;
    behind->prev = record_get(p->records, o->prev)->next = ref;
}

void chain_run_add(struct policy *p, uint32_t i, struct object *o) {
    struct chain_run *r = chain_run(chain_of(p), i);
    object_ref ref = record_ref(p->records, o);
    o->request = i;
    o->bits &= ~(uint32_t)OBJECT_Q1; /* another policy's, where it comes from one */
    p->count++;
    if (!r->last) {
        o->prev = o->next = r->last = ref;
    } else if (object_depth(chain_run_last(p, r)) <= object_depth(o)) {
        chain_run_append(p, r, o);
    } else {
        run_insert(p, r, o);
    }
    chain_relink(chain_of(p), i);
}

void chain_run_take(struct policy *p, uint32_t i, struct object *o) {
    struct chain_run *r = chain_run(chain_of(p), i);
    object_ref ref = record_ref(p->records, o);
    bool first = o->prev == ref;
    if (first)
        chain_run_last(p, r)->next = o->next;
    else
        record_get(p->records, o->prev)->next = o->next;
    if (r->last == ref)
        r->last = first ? 0 : o->prev;
    else
        record_get(p->records, o->next)->prev = first ? o->next : o->prev;
    o->prev = o->next = 0;
    p->count--;
    chain_relink(chain_of(p), i);
}

uint32_t chain_run_split(struct policy *p, uint32_t i, struct object *at) {
    struct chain_books *c = chain_of(p);
    uint32_t u = chain_run_new(c, 0);
    struct chain_run *r = chain_run(c, i), *up = chain_run(c, u);
    struct object *last = chain_run_last(p, r), *rest = record_get(p->records, at->next);
    TARN_ASSERT(at != last);
    *up = *r;
    up->list = CHAIN_NOWHERE;
    up->prev = up->next = up->print = 0;
    unsigned n = 0;
    for (struct object *o = at; o; n++) {
        o->request = u;
        struct object *before = record_get(p->records, o->prev);
        o = before != o ? before : NULL;
    }
    up->last = rest->prev;
    rest->prev = at->next;
    at->next = last->next;
    last->next = rest->prev;
    r->parent = u;
    r->cut = 1;
    chain_run_size(c, r, r->blocks > n ? r->blocks - n : 1);
    up->blocks = n;
    up->children = 1;
    up->grown = 1;
    if (r->list != CHAIN_NOWHERE) chain_link(c, u);
    return u;
}
