/* Puts: which run of its request a block belongs to. */
#include "store/chain_request.h"

#include "base/assert.h"

#define YOUNG_SHARE 4u /* one of so many objects that were put last is young */

/* --- where a block belongs --- */

/* What was evicted and comes again is a return, and the blocks behind it may be, too. */
static void request_probe(struct policy *p, struct chain_request *q, const struct policy_event *e) {
    struct chain_books *c = &chain_state(p)->chain;
    uint32_t i = chain_ghost_find(c, e->hash);
    q->unknown = i == 0;
    if (i == 0) return;
    struct chain_run *g = chain_run(c, i);
    chain_ghost_forget(c, i);
    unsigned lost = g->blocks;
    if (g->ghost) {
        if (g->list != CHAIN_NOWHERE) chain_run_returned(c, g, lost);
        chain_unlink(c, g);
        q->turn = chain_turn_after(g);
        q->shared = g->grown;
    } else { /* the end of a run whose beginning this request has found */
        unsigned left = chain_run_count(p, g);
        lost = lost > left ? lost - left : 1;
        chain_run_size(c, g, left);
        q->shared = false;
    }
    q->known = e->depth + lost;
}

static uint32_t run_of_put(struct policy *p, struct chain_request *q, enum chain_kind kind) {
    struct chain_books *c = &chain_state(p)->chain;
    uint32_t parent = chain_request_has_run(c, q) ? q->run : 0;
    if (parent && chain_run(c, parent)->children >= CHAIN_CHILDREN) parent = 0;
    uint32_t i = chain_run_new(c, parent);
    struct chain_run *r = chain_run(c, i);
    r->kind = kind;
    r->born = q->number;
    if (kind == CHAIN_LAST) {
        q->last = i;
        if (!q->top) q->top = i;
    } else {
        if (parent) chain_run(c, parent)->grown = 1;
        q->run = i;
        if (!q->made || !parent) q->top = i;
        q->made = true;
    }
    return i;
}

/* The run of the request that a block of that kind and depth belongs to; 0: a new one. */
static uint32_t run_for_put(struct policy *p, struct chain_request *q, enum chain_kind kind,
                            uint32_t depth) {
    struct chain_books *c = &chain_state(p)->chain;
    if (kind == CHAIN_LAST) return 0;
    if (q->last) { /* it was not the last */
        struct chain_run *last = chain_run(c, q->last);
        if (last->born != q->number || last->ghost) {
            q->last = 0;
        } else if (!last->last || object_depth(chain_run_last(p, last)) < depth) {
            chain_unlink(c, last);
            last->kind = kind;
            q->run = q->last;
            q->last = 0;
            q->made = true;
            if (last->parent) chain_run(c, last->parent)->grown = 1;
        }
    }
    if (!q->made || !chain_request_has_run(c, q)) return 0;
    struct chain_run *r = chain_run(c, q->run);
    if (r->blocks == CHAIN_RUN_BLOCKS) return 0;
    if (r->blocks == 0) {
        chain_unlink(c, r);
        r->kind = kind;
        if (r->parent) chain_run(c, r->parent)->grown = 1;
    }
    return r->kind == kind || r->kind == CHAIN_AWAITED ? q->run : 0;
}

static uint32_t first_depth(const struct policy *p, const struct chain_run *r) {
    return object_depth(chain_run_first(p, r));
}

/* What is in i or behind it, down to found, and comes back into its order, may belong before it. */
static void runs_cut(struct chain_books *c, uint32_t found, uint32_t i) {
    for (; found && found != i; found = chain_run(c, found)->parent) chain_run(c, found)->cut = 1;
}

/* The first run of the request's prompt that has blocks deeper than that, or may have, as they are
 * parked or held; 0: none, as where puts end in the order of their prompt. Of runs that it has read
 * what is deeper than it has read is not its own. */
static uint32_t run_behind(const struct policy *p, const struct chain_request *q, uint32_t depth) {
    struct chain_books *c = &chain_state(p)->chain;
    const struct chain_run *last = chain_run(c, q->last);
    bool has_last = q->last && last->born == q->number && !last->ghost, own = q->top != 0;
    uint32_t found = 0, i = has_last ? q->last : chain_request_has_run(c, q) ? q->run : 0;
    for (unsigned n = 0; i && n < CHAIN_ANCESTORS && (own || depth < q->read); n++) {
        const struct chain_run *r = chain_run(c, i);
        if (r->last && object_depth(chain_run_last(p, r)) <= depth) break;
        if (r->last || (own && q->deepest > depth)) {
            runs_cut(c, found, i);
            found = i;
        }
        if (r->last && first_depth(p, r) <= depth) break;
        own = own && (i != q->top || r->cut);
        i = r->parent;
    }
    return found;
}

static bool run_takes(const struct chain_books *c, const struct chain_request *q, uint32_t i,
                      enum chain_kind kind) {
    const struct chain_run *r = chain_run(c, i);
    return i && kind != CHAIN_LAST && r->born == q->number && r->kind == kind && r->blocks > 0 &&
           r->blocks < CHAIN_RUN_BLOCKS;
}

/* Its puts do not end in order: into the runs that are there, or a new one between them. */
static uint32_t run_between(struct policy *p, struct chain_request *q, uint32_t behind,
                            enum chain_kind kind, uint32_t depth) {
    struct chain_books *c = &chain_state(p)->chain;
    struct chain_run *r = chain_run(c, behind);
    if (r->last && first_depth(p, r) <= depth) {
        if (r->blocks < CHAIN_RUN_BLOCKS) return behind;
        struct object *at = chain_run_last(p, r);
        do {
            at = record_get(p->records, at->prev);
        } while (object_depth(at) > depth);
        return chain_run_split(p, behind, at);
    }
    if (run_takes(c, q, behind, kind)) return behind;
    if (run_takes(c, q, r->parent, kind)) return r->parent;
    uint32_t i = chain_run_new(c, r->parent);
    struct chain_run *between = chain_run(c, i);
    r = chain_run(c, behind);
    if (r->parent) chain_run(c, r->parent)->children--;
    r->parent = i;
    between->cut = r->cut;
    r->cut = 1;
    between->children = 1;
    between->grown = 1;
    between->kind = kind;
    between->born = q->number;
    if (q->top == behind) q->top = i;
    return i;
}

/* --- those that come one after the other --- */

static void puts_note(struct chain_policy *s) {
    struct chain_puts *n = &s->puts;
    struct chain_run *r = chain_run(&s->chain, n->run);
    chain_run_size(&s->chain, r, r->blocks + n->came);
    struct chain_request *q = &s->recent[n->request % CHAIN_RECENT];
    if (q->deepest < n->depth) q->deepest = n->depth;
    chain_request_came(q, 0, n->came);
    s->unmarked += n->came;
    n->room = n->came = 0;
}

/* A run with blocks comes into a list, unless puts go on with it. */
static void run_appear(struct chain_policy *s, const struct chain_request *q, uint32_t i) {
    if (chain_run(&s->chain, i)->list != CHAIN_NOWHERE) return;
    if (s->puts.room > 0 && s->puts.run == i) return;
    chain_run_describe(&s->chain, q, i, q->turn ? q->turn : 1, false);
}

void chain_puts_end(struct chain_policy *s) {
    puts_note(s);
    run_appear(s, &s->recent[s->puts.request % CHAIN_RECENT], s->puts.run);
}

/* A block of the request has come into its run. */
static void puts_begin(const struct policy *p, const struct chain_request *q,
                       const struct object *o, const struct policy_event *e) {
    struct chain_policy *s = chain_state(p);
    uint32_t i = o->request;
    const struct chain_run *r = chain_run(&s->chain, i);
    if (q->run != i || !q->made || q->last || !q->unknown || r->kind != CHAIN_NEW) return;
    if (q == &s->late) return;
    if (!e->put || s->chain.parked.count > 0 || chain_run_last(p, r) != o) return;
    s->puts = (struct chain_puts){.request = q->number,
                                  .run = i,
                                  .depth = e->depth + 1,
                                  .end = q->length,
                                  .session = q->session,
                                  .room = CHAIN_RUN_BLOCKS - r->blocks};
}

/* --- all others --- */

/* One that comes from another policy, or had no turn here: with others of the request that used it
 * last, in whatever order they come. */
static void insert_loose(struct policy *p, struct object *o, const struct policy_event *e) {
    struct chain_policy *s = chain_state(p);
    struct chain_books *c = &s->chain;
    uint32_t *loose = &s->loose[e->request % CHAIN_RECENT];
    const struct chain_run *of = chain_run(c, *loose);
    bool joins = *loose && of->kind == CHAIN_LEFT && of->last && of->born == e->request &&
                 e->request != 0 && of->blocks < CHAIN_RUN_BLOCKS;
    if (!joins) {
        *loose = chain_run_new(c, 0);
        struct chain_run *r = chain_run(c, *loose);
        r->kind = CHAIN_LEFT;
        r->turn = 1;
        r->born = e->request;
        chain_clock_reach(p, r->born);
        chain_link(c, *loose);
    }
    struct chain_run *r = chain_run(c, *loose);
    chain_run_size(c, r, r->blocks + 1);
    chain_run_add(p, *loose, o);
}

/* It is back from a disk. */
static void ghost_over(struct chain_books *c, uint64_t hash) {
    uint32_t i = chain_ghost_find(c, hash);
    if (i == 0 || !chain_run(c, i)->ghost) return;
    chain_ghost_forget(c, i);
    chain_unlink(c, chain_run(c, i));
}

/* One block more was put. What a request puts says what it is worth, by all that is around it; a
 * block that is all of its request says nothing, and whoever put it may come for it at once. So the
 * last of these stay, whatever has been learnt. */
static void young_note(struct policy *p, struct chain_policy *s) {
    uint64_t parts = min_u64(max_u64(p->count / YOUNG_SHARE, 1), CHAIN_YOUNG_MARKS);
    if (++s->unmarked < max_u64(p->count / (YOUNG_SHARE * CHAIN_YOUNG_MARKS), 1)) return;
    s->unmarked = 0;
    s->mark[s->marks++ % CHAIN_YOUNG_MARKS] = s->chain.clock;
    s->chain.young = s->mark[(s->marks - parts) % CHAIN_YOUNG_MARKS];
}

void chain_put(struct policy *p, struct object *o, const struct policy_event *e) {
    struct chain_policy *s = chain_state(p);
    uint32_t goes_on = 0;
    if (s->puts.room > 0 && s->puts.request == e->request && e->depth >= s->puts.depth) {
        goes_on = s->puts.run;
        puts_note(s);
    }
    chain_puts_over(s);
    if (e->next || e->request == 0) {
        insert_loose(p, o, e);
        return;
    }
    if (!e->put) ghost_over(&s->chain, e->hash);
    struct chain_request *q = chain_request_of(p, e);
    if (s->open) chain_request_finish(p, s->open);
    if (!q->made && q->known < e->depth) q->known = e->depth;
    if (!q->unknown && e->depth >= q->known) request_probe(p, q, e);
    enum chain_kind kind = e->depth < q->known ? CHAIN_REUSED : CHAIN_NEW;
    if (kind == CHAIN_NEW && e->put && e->depth > 0 && e->depth + 1 == q->length) kind = CHAIN_LAST;
    uint32_t behind = run_behind(p, q, e->depth);
    uint32_t i =
        behind ? run_between(p, q, behind, kind, e->depth) : run_for_put(p, q, kind, e->depth);
    if (i == 0) i = run_of_put(p, q, kind);
    struct chain_run *r = chain_run(&s->chain, i);
    chain_run_size(&s->chain, r, r->blocks + 1);
    chain_run_add(p, i, o);
    young_note(p, s);
    if (q->deepest <= e->depth) q->deepest = e->depth + 1;
    chain_request_came(q, e->length > 0 ? e->depth - e->position : 0, 1);
    if (e->depth + 1 == q->length)
        chain_request_finish(p, q);
    else
        puts_begin(p, q, o, e);
    run_appear(s, q, i);
    if (goes_on) run_appear(s, q, goes_on);
}
