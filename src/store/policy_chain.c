/* chain: prefix caches hold chains, in which a block is worth nothing once one before it is gone,
 * and of which three quarters are never asked for again. What a request has used and added becomes
 * runs (chain.h); from what came back, and when, and from what did not, chain_value.c learns what a
 * run is worth; the one worth least loses its last block.
 *
 * What tells runs apart is in the requests themselves: which blocks were there before, how many
 * were new, how often this prompt went on, whether it left another one. A request begins another
 * prompt, if it leaves one where others did before it: what it shares with them is no turn of
 * it. */
#include <stdlib.h>
#include "base/assert.h"
#include "base/buf.h"
#include "store/chain_request.h"

#define OUT_LOOKS 64u /* as many as are popped at a time (room.c) */

/* Only policies that objects come to need it. */
static struct chain_policy *state_made(struct policy *p) {
    struct chain_policy *s = chain_state(p);
    if (LIKELY(s != NULL)) return s;
    s = xcalloc(1, sizeof(*s));
    struct chain_books *c = &s->chain;
    size_t cells = (size_t)CHAIN_SORTS * CHAIN_SLOTS * sizeof(struct chain_cell);
    bool reserved = page_arena_init(&c->arena, (size_t)CHAIN_RUNS_MAX * sizeof(struct chain_run),
                                    PAGES_AHEAD) &&
                    page_arena_init(&c->cells.arena, cells, PAGES_AHEAD);
    TARN_ASSERT(reserved);
    c->runs = 1;
    chain_value_init(&c->value);
    chain_cells_age(c, 0);
    c->ghosts.cap = 2 * CHAIN_GHOSTS;
    c->ghosts.ring = xcalloc(c->ghosts.cap, sizeof(uint32_t));
    c->ghosts.prints = 2 * c->ghosts.cap;
    c->ghosts.by_print = xcalloc(c->ghosts.prints, sizeof(uint32_t));
    s->fit_in = CHAIN_FIT_MIN;
    *(struct chain_policy **)p->state = s;
    return s;
}

static void chain_open(struct policy *p) {}

static void parked_free(void *arg, struct htab_node *node) {
    free(CONTAINER_OF(node, struct chain_parked, node));
}

static void chain_close(struct policy *p) {
    struct chain_policy *s = chain_state(p);
    if (!s) return;
    page_arena_free(&s->chain.arena);
    page_arena_free(&s->chain.cells.arena);
    free(s->chain.ghosts.ring);
    free(s->chain.ghosts.by_print);
    free(s->chain.out);
    htab_each(&s->chain.parked, parked_free, NULL);
    htab_free(&s->chain.parked);
    free(s);
}

/* --- look-ups --- */

/* Runs that came in parts are one behind the other, as a request has used them. */
static void run_follow(struct policy *p, uint32_t parent, uint32_t i) {
    struct chain_books *c = &chain_state(p)->chain;
    uint32_t before = chain_run(c, i)->parent;
    if (before == parent || chain_run(c, parent)->children >= CHAIN_CHILDREN) return;
    unsigned n = 0;
    for (uint32_t up = parent; up; up = chain_run(c, up)->parent)
        if (up == i || ++n == CHAIN_ANCESTORS) return;
    chain_run(c, i)->parent = parent;
    chain_run(c, i)->cut = 0;
    chain_run(c, parent)->children++;
    chain_relink(c, parent);
    if (before) chain_run_less(p, before);
}

/* A get after the look-up: it uses what it had found. */
static void request_unlook(struct policy *p, struct chain_request *q) {
    if (!q->looked) return;
    q->looked = false;
    const struct chain_books *c = &chain_state(p)->chain;
    bool has_run = chain_request_has_run(c, q);
    if (has_run && chain_run(c, q->run)->blocks > 0) return;
    uint32_t i = has_run ? q->run : 0;
    q->run = 0;
    q->made = q->branched = q->shared = false;
    q->top = 0;
    q->turn = 0;
    if (i) chain_run_settle(p, i);
}

static void chain_access(struct policy *p, struct object *o, const struct policy_event *e) {
    struct chain_policy *s = chain_state(p);
    struct chain_books *c = &s->chain;
    struct chain_request *q = chain_request_of(p, e);
    object_ref ref = record_ref(p->records, o);
    request_unlook(p, q);
    if (q->reading && q->run == o->request) {
        if (o->prev != q->at || q->at == ref) return;
        q->used++;
    } else {
        if (chain_run(c, o->request)->born == e->request) return;
        if (s->open && s->open != q) chain_request_finish(p, s->open);
        chain_request_leave_run(p, q);
        if (o->prev != ref) chain_run_split(p, o->request, record_get(p->records, o->prev));
        if (chain_request_has_run(c, q)) {
            run_follow(p, q->run, o->request);
            /* what it has used so far is not to be found from the next run */
            if (chain_run(c, o->request)->parent != q->run) chain_request_finish(p, q);
        }
        s->open = q;
        q->reading = true;
        q->run = o->request;
        q->used = 1;
    }
    q->came++;
    q->at = ref;
    q->known = q->read = e->depth + 1;
}

static void chain_near(const struct policy *p, const struct object *o) {
    const struct chain_policy *s = chain_state(p);
    if (s != NULL) __builtin_prefetch(chain_run(&s->chain, o->request), 1);
}

static void chain_prefix_done(struct policy *p, const struct policy_event *e) {
    struct chain_policy *s = chain_state(p);
    struct chain_request *q = s ? chain_request_find(s, e->request) : NULL;
    if (!q) return;
    (void)chain_request_of(p, e); /* how long it is */
    if (s->open == q || e->put) chain_request_finish(p, q);
    if (e->put || q->made || q->known >= q->length || !chain_request_has_run(&s->chain, q)) return;
    chain_request_await(&s->chain, q, q->run);
}

/* --- in memory, but in no order --- */

static bool same_parked(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, struct chain_parked, node)->object == *(const object_ref *)key;
}

/* NULL: it is not parked. */
static struct chain_parked *parked_find(const struct policy *p, const struct object *o) {
    const struct chain_policy *s = chain_state(p);
    if (LIKELY(!s || s->chain.parked.count == 0)) return NULL;
    object_ref ref = record_ref(p->records, o);
    struct htab_node *n = htab_find(&s->chain.parked, hash_u64(ref), same_parked, &ref);
    return n ? CONTAINER_OF(n, struct chain_parked, node) : NULL;
}

static void parked_drop(struct chain_books *c, struct chain_parked *k) {
    htab_remove(&c->parked, &k->node);
    free(k);
}

/* A block that counted as its child. */
static void run_child_gone(struct policy *p, uint32_t i) {
    const struct chain_run *r = chain_run(&chain_state(p)->chain, i);
    if (!r->last && r->children == 1) chain_run_change_hands(chain_state(p), i, r->parent);
    chain_run_less(p, i);
}

/* A child of run i is one of its blocks again, or one of what it was cut from: nobody knows what
 * else is to come back, so it stays in i only if it lies behind what is there. */
static void run_regain(struct policy *p, uint32_t i, struct object *o) {
    struct chain_books *c = &chain_state(p)->chain;
    uint32_t at = i;
    for (unsigned n = 0; chain_run(c, at)->cut && n < CHAIN_ANCESTORS; n++) {
        const struct chain_run *r = chain_run(c, at);
        if (r->last && object_depth(chain_run_first(p, r)) < object_depth(o)) break;
        at = r->parent;
    }
    chain_run_add(p, at, o);
    run_child_gone(p, i);
}

static bool parked_back(struct policy *p, struct object *o) {
    struct chain_parked *k = parked_find(p, o);
    if (!k) return false;
    uint32_t i = k->run;
    parked_drop(&chain_state(p)->chain, k);
    run_regain(p, i, o);
    return true;
}

/* The blocks of a run up to one of its own, or (held, parked) up to where that was, as a run. 0:
 * there is none. */
static uint32_t run_up_to(struct policy *p, uint32_t i, struct object *o, bool in_order) {
    const struct chain_run *r = chain_run(&chain_state(p)->chain, i);
    if (!r->last) return i;
    struct object *last = chain_run_last(p, r), *at = o;
    if (!in_order) {
        const struct object *first = chain_run_first(p, r);
        for (at = last; at != first && object_depth(at) > object_depth(o);)
            at = record_get(p->records, at->prev);
        if (object_depth(at) > object_depth(o)) return r->parent;
    }
    return at == last ? i : chain_run_split(p, i, at);
}

/* It is not used, so it gets no younger; but what is put behind it is not to be put in vain. */
static void chain_found(struct policy *p, struct object *o, bool parked,
                        const struct policy_event *e) {
    if (!chain_state(p) || e->request == 0) return;
    struct chain_books *c = &chain_state(p)->chain;
    struct chain_request *q = chain_request_of(p, e);
    if (q->run || q->last) return;
    const struct chain_parked *k = parked ? parked_find(p, o) : NULL;
    if (parked && !k) return;
    uint32_t i = k ? k->run : o->request, u = run_up_to(p, i, o, !parked && list_linked(o));
    if (u == 0) return;
    const struct chain_run *r = chain_run(c, u);
    q->known = e->depth;
    q->turn = chain_turn_after(r);
    q->branched = u != i;
    q->shared = u == i && r->grown;
    chain_request_await(c, q, u);
    q->looked = true;
}

static __attribute__((noinline)) void insert_any(struct policy *p, struct object *o,
                                                 const struct policy_event *e) {
    (void)state_made(p);
    if (!parked_back(p, o)) chain_put(p, o, e);
}

static void chain_insert(struct policy *p, struct object *o, const struct policy_event *e) {
    struct chain_policy *s = chain_state(p);
    if (UNLIKELY(!s || !chain_puts_next(p, &s->puts, o, e))) insert_any(p, o, e);
}

/* --- on disks --- */

/* What is there was here before, so it is a return, also of those behind it. Its ghost stays, as a
 * run of this request, since the next one may find it on the disk again. Returns how many. */
static uint32_t ghost_used(struct policy *p, struct chain_request *q, uint32_t i) {
    struct chain_books *c = &chain_state(p)->chain;
    struct chain_run *g = chain_run(c, i);
    unsigned lost = g->blocks;
    if (!g->ghost) {
        unsigned left = chain_run_count(p, g);
        return lost > left ? lost - left : 1;
    }
    if (g->list != CHAIN_NOWHERE) chain_run_returned(c, g, lost);
    q->turn = chain_turn_after(g);
    q->shared = g->grown;
    chain_unlink(c, g);
    if (g->kind != CHAIN_SHARED) g->kind = CHAIN_REUSED;
    g->born = q->number;
    chain_run_describe(c, q, i, q->turn, false);
    return lost;
}

static void chain_far_access(struct policy *p, const struct policy_event *e) {
    struct chain_policy *s = state_made(p);
    if (e->request == 0) return;
    struct chain_request *q = chain_request_of(p, e);
    if (s->open) chain_request_finish(p, s->open);
    if (e->depth < q->known) return;
    uint32_t i = chain_ghost_find(&s->chain, e->hash);
    q->known = e->depth + (i ? ghost_used(p, q, i) : 1);
    if (q->turn == 0) q->turn = 2; /* what it was is forgotten */
}

static float chain_far_worth(struct policy *p, uint32_t request, bool again) {
    struct chain_policy *s = chain_state(p);
    if (!s || request == 0) return -1;
    const struct chain_request *q = chain_request_find(s, request);
    struct chain_value *v = &s->chain.value;
    int32_t age = (int32_t)(s->chain.clock - request);
    struct chain_bin at = chain_bin_at(v, age > 0 ? (uint32_t)age : 0);
    if (!q) {
        const struct chain_traits of_kind = {.kind = again ? CHAIN_REUSED : CHAIN_NEW};
        return chain_worth(v, chain_sort_find(v, &of_kind), at);
    }
    struct chain_traits t = {.kind = CHAIN_REUSED,
                             .turn = q->turn ? q->turn : 1,
                             .length = chain_length_class(q->length),
                             .growth = chain_growth_class(q->known, q->length),
                             .branched = q->branched};
    return chain_worth(v, chain_sort_find(v, &t), at);
}

/* --- going --- */

/* Runs behind i of which all is popped. */
static unsigned popped_children(const struct chain_books *c, uint32_t i) {
    unsigned n = 0;
    for (uint32_t k = 0; k < c->n_out; k++) {
        uint32_t j = c->out[k], first = 0;
        const struct chain_run *r = chain_run(c, j);
        if (r->parent != i || r->last) continue;
        while (c->out[first] != j) first++;
        n += first == k && popped_children(c, j) == r->children;
    }
    return n;
}

/* That of out[k] was that of a later one. */
static bool parent_again(const struct chain_books *c, uint32_t k) {
    uint32_t i = chain_run(c, c->out[k])->parent;
    while (++k < c->n_out)
        if (chain_run(c, c->out[k])->parent == i) return true;
    return false;
}

/* No leaf is left: then what is before those that are popped, if there is such. */
static uint32_t run_before_popped(const struct chain_books *c) {
    for (uint32_t k = c->n_out; k > 0 && k + OUT_LOOKS > c->n_out; k--) {
        uint32_t i = chain_run(c, c->out[k - 1])->parent;
        if (!i || !chain_run(c, i)->last || parent_again(c, k - 1)) continue;
        if (popped_children(c, i) == chain_run(c, i)->children) return i;
    }
    return 0;
}

static void out_push(struct chain_books *c, uint32_t i) {
    if (UNLIKELY(c->n_out == c->cap_out)) {
        c->cap_out = c->cap_out ? 2 * c->cap_out : 64;
        c->out = xrealloc(c->out, c->cap_out * sizeof(*c->out));
    }
    c->out[c->n_out++] = i;
}

/* The last block of a run leaves. Victims lie anywhere. The one after the next was brought near by
 * the last call, so its link costs nothing. */
static inline void last_pop(struct policy *p, struct chain_run *r, struct object *o) {
    struct object *before = record_get(p->records, o->prev);
    const char *later = (const char *)record_get(p->records, before->prev);
    __builtin_prefetch(later);
    __builtin_prefetch(later + 64);
    r->last = before != o ? o->prev : 0;
    before->next = o->next;
    o->prev = o->next = 0;
    p->count--;
}

static __attribute__((noinline)) struct object *pop_any(struct policy *p) {
    struct chain_policy *s = chain_state(p);
    if (p->count == 0) return NULL;
    if (s->open) chain_request_finish(p, s->open);
    struct chain_books *c = &s->chain;
    uint32_t i = chain_cells_next(c);
    if (UNLIKELY(c->cells.goes == 0) && s->puts.room > 0) { /* what is put is better than these */
        chain_puts_over(s);
        i = chain_cells_next(c);
    }
    TARN_ASSERT(i != 0);
    if (UNLIKELY(chain_run(c, i)->children > 0) && c->n_out > 0) {
        uint32_t before = run_before_popped(c);
        if (before) i = before;
    }
    out_push(c, i);
    struct chain_run *r = chain_run(c, i);
    struct object *o = chain_run_last(p, r);
    last_pop(p, r, o);
    if (!r->last) chain_relink(c, i);
    return o;
}

static struct object *chain_pop(struct policy *p, uint64_t now_ms) {
    struct chain_policy *s = chain_state(p);
    if (UNLIKELY(!s || s->open)) return pop_any(p);
    struct chain_books *c = &s->chain;
    if (UNLIKELY(c->cells.goes == 0 || c->n_out == c->cap_out)) return pop_any(p);
    uint32_t i = c->cells.goes;
    struct chain_run *r = chain_run(c, i);
    struct object *o = chain_run_last(p, r);
    if (UNLIKELY(o->next == r->last)) return pop_any(p);
    c->out[c->n_out++] = i;
    last_pop(p, r, o);
    return o;
}

/* Of one run the end is popped first. */
static bool chain_behind(const struct policy *p, const struct object *o,
                         const struct object *other) {
    const struct chain_books *c = &chain_state(p)->chain;
    uint32_t i = o->request;
    if (i == other->request) return object_depth(o) > object_depth(other);
    for (unsigned n = 0; i && i != other->request && n < CHAIN_ANCESTORS; n++)
        i = chain_run(c, i)->parent;
    return i == other->request;
}

static struct object *chain_pop_behind(struct policy *p, const struct object *o, unsigned *budget) {
    struct chain_policy *s = chain_state(p);
    struct chain_books *c = &s->chain;
    chain_puts_over(s);
    if (s->open) chain_request_finish(p, s->open);
    uint32_t i = chain_run_behind(c, o->request, budget);
    struct chain_run *r = chain_run(c, i);
    if (!r->last) return NULL;
    struct object *last = chain_run_last(p, r);
    if (last == o || (i == o->request && object_depth(last) < object_depth(o))) return NULL;
    out_push(c, i);
    last_pop(p, r, last);
    if (!r->last) chain_relink(c, i);
    return last;
}

static struct object *chain_peek(struct policy *p) {
    struct chain_policy *s = chain_state(p);
    if (UNLIKELY(!s || p->count == 0)) return NULL;
    uint32_t i = s->chain.cells.goes;
    if (UNLIKELY(i == 0)) {
        if (s->open) return NULL; /* what goes is known when that is over */
        i = chain_cells_look(&s->chain);
        if (i == 0) return NULL;
    }
    return chain_run_last(p, chain_run(&s->chain, i));
}

static void out_drop(struct chain_books *c, uint32_t i) {
    uint32_t k = c->n_out;
    do {
        TARN_ASSERT(k > 0);
    } while (c->out[--k] != i);
    c->out[k] = c->out[--c->n_out];
}

/* The flag bit: it is held, a child of its run. */
static void chain_held(struct policy *p, struct object *o) {
    struct chain_books *c = &chain_state(p)->chain;
    out_drop(c, o->request);
    o->bits |= OBJECT_Q1;
    chain_run(c, o->request)->children++;
    chain_relink(c, o->request);
}

static void chain_give_back(struct policy *p, struct object *o) {
    struct chain_books *c = &chain_state(p)->chain;
    uint32_t i = o->request;
    bool held = (o->bits & OBJECT_Q1) != 0;
    o->bits &= ~(uint32_t)OBJECT_Q1;
    if (held) {
        run_regain(p, i, o);
    } else {
        chain_run_add(p, i, o);
        out_drop(c, i);
    }
}

/* Whatever it was. Returns its run, which is still there. */
static uint32_t object_take(struct policy *p, struct object *o) {
    struct chain_policy *s = chain_state(p);
    chain_puts_over(s);
    if (s->open) chain_request_finish(p, s->open);
    uint32_t i = o->request;
    if (list_linked(o)) {
        chain_run_take(p, i, o);
    } else if (!(o->bits & OBJECT_Q1)) {
        out_drop(&s->chain, i);
    }
    o->request = chain_run(&s->chain, i)->born;
    return i;
}

/* Returns the run that is left of it, or before it; 0: none. */
static uint32_t object_left(struct policy *p, struct object *o, uint32_t i) {
    struct chain_run *r = chain_run(&chain_state(p)->chain, i);
    if (!r->last && r->children == 0) chain_run_change_hands(chain_state(p), i, r->parent);
    if (o->bits & OBJECT_Q1) r->children--;
    o->bits &= ~(uint32_t)OBJECT_Q1;
    return chain_run_settle(p, i);
}

static void chain_unlinked(struct policy *p, struct object *o) {
    uint32_t i = object_take(p, o);
    object_left(p, o, i);
}

static __attribute__((noinline)) void evicted_any(struct policy *p, struct object *o,
                                                  uint64_t hash) {
    struct chain_books *c = &chain_state(p)->chain;
    uint32_t i = object_take(p, o);
    chain_ghost_print(c, i, hash);
    chain_cells_near(c, object_left(p, o, i));
}

/* Most often the one block that is popped, of the run that has lost the last one and keeps others.
 */
static void chain_evicted(struct policy *p, struct object *o, uint64_t hash) {
    struct chain_policy *s = chain_state(p);
    struct chain_books *c = &s->chain;
    uint32_t i = o->request;
    struct chain_run *r = chain_run(c, i);
    if (LIKELY(c->printed == i && c->near == i && r->last && !s->open && !list_linked(o) &&
               !(o->bits & OBJECT_Q1) && c->n_out > 0 && c->out[c->n_out - 1] == i)) {
        c->n_out--;
        o->request = r->born;
        r->print = chain_print_of(hash);
        return;
    }
    evicted_any(p, o, hash);
}

/* Into its run's children, if it is not one already; its request is the books' again. */
static void run_park(struct chain_books *c, uint32_t i, struct object *o) {
    if (!(o->bits & OBJECT_Q1)) {
        chain_run(c, i)->children++;
        chain_relink(c, i);
    }
    o->bits &= ~(uint32_t)OBJECT_Q1;
}

static void chain_park(struct policy *p, struct object *o) {
    struct chain_books *c = &chain_state(p)->chain;
    uint32_t i = object_take(p, o);
    if (chain_run(c, i)->children >= CHAIN_CHILDREN) {
        object_left(p, o, i);
        return;
    }
    run_park(c, i, o);
    struct chain_parked *k = xcalloc(1, sizeof(*k));
    k->object = record_ref(p->records, o);
    k->run = i;
    htab_insert(&c->parked, &k->node, hash_u64(k->object));
}

/* For the time of the access it is a block of its run, and in no list of the books'. */
static void chain_parked_access(struct policy *p, struct object *o, const struct policy_event *e) {
    struct chain_parked *k = parked_find(p, o);
    if (!k || e->request == 0) return;
    uint32_t request = o->request;
    object_ref prev = o->prev, next = o->next;
    run_regain(p, k->run, o);
    chain_access(p, o, e);
    k->run = object_take(p, o);
    run_park(&chain_state(p)->chain, k->run, o);
    o->request = request;
    o->prev = prev;
    o->next = next;
}

static void chain_forget(struct policy *p, const struct object *o) {
    struct chain_parked *k = parked_find(p, o);
    if (!k) return;
    uint32_t i = k->run;
    parked_drop(&chain_state(p)->chain, k);
    run_child_gone(p, i);
}

static uint32_t chain_object_request(const struct policy *p, const struct object *o) {
    return chain_run(&chain_state(p)->chain, o->request)->born;
}

static float chain_object_worth(const struct policy *p, const struct object *o) {
    struct chain_books *c = &chain_state(p)->chain;
    chain_puts_over(chain_state(p));
    return chain_run_worth(c, chain_run(c, o->request));
}

static uint64_t chain_mapped(const struct policy *p) {
    const struct chain_policy *s = chain_state(p);
    if (!s) return 0;
    const struct chain_books *c = &s->chain;
    return (uint64_t)c->runs * sizeof(struct chain_run) +
           (uint64_t)c->value.sorts * CHAIN_SLOTS * sizeof(struct chain_cell);
}

static uint64_t chain_memory(const struct policy *p) {
    const struct chain_policy *s = chain_state(p);
    if (!s) return sizeof(s);
    const struct chain_books *c = &s->chain;
    return sizeof(s) + sizeof(*s) + chain_mapped(p) +
           ((uint64_t)c->ghosts.cap + c->ghosts.prints + c->cap_out) * sizeof(uint32_t) +
           htab_memory(&c->parked) + c->parked.count * sizeof(struct chain_parked);
}

const struct policy_ops policy_chain = {
    .name = "chain",
    .state_size = sizeof(struct chain_policy *),
    .open = chain_open,
    .close = chain_close,
    .insert = chain_insert,
    .access = chain_access,
    .near = chain_near,
    .unlink = chain_unlinked,
    .park = chain_park,
    .parked_access = chain_parked_access,
    .forget = chain_forget,
    .pop = chain_pop,
    .behind = chain_behind,
    .pop_behind = chain_pop_behind,
    .peek = chain_peek,
    .held = chain_held,
    .give_back = chain_give_back,
    .evicted = chain_evicted,
    .prefix_done = chain_prefix_done,
    .request = chain_object_request,
    .worth = chain_object_worth,
    .far_access = chain_far_access,
    .found = chain_found,
    .far_worth = chain_far_worth,
    .memory = chain_memory,
    .mapped = chain_mapped,
    .for_small = &policy_lru,
    .chains = true,
};
