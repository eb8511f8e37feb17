/* Making room for a put: guarantee 2.
 *
 * In this order, stopping at the first that does:
 *   1. Free space: one run, then up to 8.
 *   2. The objects that are next to go (policy order), up to VICTIMS of them: do they, with the free space around them, make
 *      the value's room? Nothing is evicted before the answer is yes, and then only those whose space is used.
 *   3. A window: a walk over the segment in address order, starting at the coldest object, looks for a run of space that is
 *      free or may be freed, large enough for the value, and takes the coldest it saw in its first slice that found any. If
 *      the walk ends without one, the 8 longest runs may do. First without soft-pinned objects, then with them.
 * Only then it is NOSPACE: no 8 runs of free, or unleased and not hard-pinned, space hold the value.
 *
 * Steps 1 and 2 are one call. Step 3 goes in slices; one put at a time (the planner) may be in it, others wait for their turn.
 * While it clears a window, nothing else is allocated, and the objects in the window are gone for look-ups, so that no new
 * lease can stand in the way. */
#include <stdlib.h>
#include <string.h>
#include "store/books.h"

#define VICTIMS 64u
#define ROUNDS_MAX                                                                                           \
    16u /* a plan that was overtaken by events so often gives up: NOSPACE, counted as room_gave_up */

/* --- limits ---------------------------------------------------------------------------------------------------------------- */

/* Evicts from domain (< 0: all) whoever goes first, space and books alike. */
static bool evict_any(struct store *s, int domain, unsigned *budget) {
    struct object *o = book_pop(s, domain, 0, true, budget), *other = book_pop(s, domain, 1, true, budget);
    if (o && other) {
        if (store_object_idle_ms(s, other) > store_object_idle_ms(s, o)) {
            struct object *t = o;
            o = other;
            other = t;
        }
        book_give_back(s, other);
    } else if (!o) {
        o = other;
    }
    if (!o) return false;
    book_evict(s, o, budget);
    return true;
}

static bool over_limits(const struct store *s, unsigned coming) {
    if (s->config.max_objects && s->index.count + s->puts.count + coming > s->config.max_objects) return true;
    return s->config.max_memory && store_memory(s) > s->config.max_memory;
}

tarn_status room_limits(struct store *s, unsigned domain, uint64_t bytes, unsigned coming, unsigned *budget) {
    while (UNLIKELY(over_limits(s, coming))) {
        if (*budget == 0) return TARN_EAGAIN;
        if (!evict_any(s, -1, budget)) return *budget ? TARN_EOOM : TARN_EAGAIN;
        s->stat.evicted_limits++;
    }
    struct domain *d = &s->domains[domain];
    if (LIKELY(d->limit == 0)) return TARN_OK;
    if (bytes > d->limit) return TARN_EQUOTA;
    while (d->bytes + bytes > d->limit) {
        if (*budget == 0) return TARN_EAGAIN;
        if (!evict_any(s, (int)domain, budget)) return *budget ? TARN_EQUOTA : TARN_EAGAIN;
        s->stat.evicted_quota++;
    }
    return TARN_OK;
}

/* --- runs ------------------------------------------------------------------------------------------------------------------ */

static uint64_t usable(const struct run *r, uint32_t align, uint64_t *start_p) {
    return run_usable(r->start, r->len, align, start_p);
}

/* The block that contains address at, looking onwards from block id, whose offset is not behind it; 0: the books have
 * changed too much. */
static block_id block_at(const struct store *s, block_id id, uint64_t at) {
    if (!id || block_offset(block_get(&s->space, id)) > at) return 0;
    while (id && block_offset(block_get(&s->space, id)) + block_len(&s->space, id) <= at)
        id = block_get(&s->space, id)->next;
    return id;
}

/* Keeps the n longest (by what is usable of them), longest first. */
static void keep_longest(struct run *best, unsigned *n, struct run r, uint32_t align) {
    uint64_t start, len = usable(&r, align, &start);
    if (len == 0) return;
    unsigned i = *n;
    while (i > 0 && usable(&best[i - 1], align, &start) < len) i--;
    if (i == STORE_EXTENTS_MAX) return;
    if (*n < STORE_EXTENTS_MAX) ++*n;
    memmove(&best[i + 1], &best[i], (*n - i - 1) * sizeof(*best));
    best[i] = r;
}

static uint64_t total(const struct run *best, unsigned n, uint32_t align) {
    uint64_t start, sum = 0;
    for (unsigned i = 0; i < n; i++) sum += usable(&best[i], align, &start);
    return sum;
}

/* Cuts the runs down to exactly units. Returns how many are used. */
static unsigned cut_to(struct run *best, unsigned n, uint32_t align, uint64_t units) {
    unsigned used = 0;
    for (; used < n && units > 0; used++) {
        uint64_t start, len = min_u64(usable(&best[used], align, &start), units);
        best[used].start = start;
        best[used].len = len;
        units -= len;
    }
    return used;
}

/* Takes a run that is all free by now. 0: no memory for the block. */
static block_id take_run(struct store *s, const struct run *r) {
    block_id id = block_at(s, r->block, r->start);
    TARN_ASSERT(id && block_state(block_get(&s->space, id)) == BLOCK_FREE);
    uint64_t end = block_offset(block_get(&s->space, id)) + block_len(&s->space, id);
    block_id held =
        space_carve(&s->space, id, r->start, (uint32_t)(min_u64(end, r->start + r->len) - r->start));
    if (!held) return 0;
    while (block_get(&s->space, held)->len < r->len) space_absorb(&s->space, held);
    return space_trim(&s->space, held, r->start, (uint32_t)r->len);
}

/* --- 1: free space ------------------------------------------------------------------------------------------------------------ */

static bool direct(struct store *s, struct store_put *p) {
    uint32_t align = space_align(p->units);
    for (uint32_t seg = 0; seg < s->space.n_segments && p->units <= UINT32_MAX; seg++)
        if ((p->blocks[0] = space_alloc(&s->space, seg, (uint32_t)p->units, align))) {
            p->n_blocks = 1;
            return true;
        }
    for (uint32_t seg = 0; seg < s->space.n_segments; seg++)
        if ((p->n_blocks = space_alloc_many(&s->space, seg, p->units, align, p->blocks))) return true;
    return false;
}

/* --- 2: who is next to go --------------------------------------------------------------------------------------------------------- */

struct victims {
    struct object *object[VICTIMS];
    unsigned n;
};

static bool free_or_victim(const struct store *s, const struct block *b) {
    if (block_state(b) == BLOCK_FREE) return true;
    return block_state(b) == BLOCK_OBJECT && (record_get(&s->records, b->owner)->bits & OBJECT_VICTIM);
}

static struct run run_around(const struct store *s, block_id id) {
    const struct space *sp = &s->space;
    block_id first = id, last = id, n;
    while ((n = block_get(sp, first)->prev) && free_or_victim(s, block_get(sp, n))) first = n;
    while ((n = block_get(sp, last)->next) && free_or_victim(s, block_get(sp, n))) last = n;
    uint64_t start = block_offset(block_get(sp, first));
    return (struct run){start, block_offset(block_get(sp, last)) + block_len(sp, last) - start, first};
}

/* Runs that a longer one contains now are dropped. */
static void add_run(struct run *runs, unsigned *n, struct run r) {
    unsigned kept = 0;
    for (unsigned i = 0; i < *n; i++)
        if (runs[i].start < r.start || runs[i].start >= r.start + r.len) runs[kept++] = runs[i];
    runs[kept++] = r;
    *n = kept;
}

static bool in_runs(const struct store *s, const struct object *o, uint32_t segment, const struct run *runs,
                    unsigned n) {
    uint32_t n_blocks;
    const block_id *blocks = book_blocks(s, o, &n_blocks);
    for (uint32_t i = 0; i < n_blocks; i++) {
        const struct block *b = block_get(&s->space, blocks[i]);
        if (block_segment(b) != segment) continue;
        for (unsigned k = 0; k < n; k++)
            if (block_offset(b) < runs[k].start + runs[k].len && block_offset(b) + b->len > runs[k].start)
                return true;
    }
    return false;
}

static bool evict_runs(struct store *s, struct store_put *p, struct victims *v, uint32_t segment,
                       struct run *runs, unsigned n, unsigned *budget) {
    for (unsigned k = 0; k < n; k++) space_cursor_add(&s->space, &runs[k].block);
    bool chosen[VICTIMS];
    for (unsigned i = 0; i < v->n; i++) chosen[i] = in_runs(s, v->object[i], segment, runs, n);
    for (unsigned i = v->n; i-- > 0;) {
        v->object[i]->bits &= ~(uint32_t)OBJECT_VICTIM;
        if (!chosen[i]) book_give_back(s, v->object[i]);
    }
    for (unsigned i = 0; i < v->n; i++)
        if (chosen[i]) {
            v->object[i]->bits |= OBJECT_VICTIM; /* not to be taken along by its group */
        }
    for (unsigned i = 0; i < v->n; i++)
        if (chosen[i]) book_evict(s, v->object[i], budget);
    bool ok = true;
    for (unsigned k = 0; k < n && ok; k++) {
        block_id id = take_run(s, &runs[k]);
        if (id)
            p->blocks[p->n_blocks++] = id;
        else
            ok = false;
    }
    for (unsigned k = 0; k < n; k++) space_cursor_remove(&s->space, &runs[k].block);
    v->n = 0;
    if (ok) return true;
    while (p->n_blocks > 0) space_release(&s->space, p->blocks[--p->n_blocks]);
    return false;
}

static void give_back_all(struct store *s, struct victims *v) {
    while (v->n > 0) {
        struct object *o = v->object[--v->n];
        o->bits &= ~(uint32_t)OBJECT_VICTIM;
        book_give_back(s, o);
    }
}

/* Runs are looked at in the segment of the first victim; victims elsewhere do not count. */
static bool by_policy(struct store *s, struct store_put *p, unsigned *budget) {
    struct victims v = {.n = 0};
    struct run runs[VICTIMS * STORE_EXTENTS_MAX + 2], best[STORE_EXTENTS_MAX];
    unsigned n_runs = 0;
    uint32_t align = space_align(p->units), segment = 0;
    bool soft = true; /* soft-pinned ones only when there is nothing else at all */
    while (v.n<VICTIMS && * budget> 0) {
        struct object *o = book_pop(s, -1, 0, soft, budget);
        if (!o) break;
        soft = object_pin(s, o) == STORE_PIN_SOFT;
        o->bits |= OBJECT_VICTIM;
        v.object[v.n++] = o;
        uint32_t n_blocks;
        const block_id *blocks = book_blocks(s, o, &n_blocks);
        if (v.n == 1) {
            segment = block_segment(block_get(&s->space, blocks[0]));
            block_id id = s->space.ops->largest(&s->space, s->space.segments[segment]);
            if (id) add_run(runs, &n_runs, run_around(s, id));
        }
        for (uint32_t i = 0; i < n_blocks; i++)
            if (block_segment(block_get(&s->space, blocks[i])) == segment)
                add_run(runs, &n_runs, run_around(s, blocks[i]));
        unsigned n_best = 0;
        for (unsigned i = 0; i < n_runs; i++) keep_longest(best, &n_best, runs[i], align);
        if (total(best, n_best, align) < p->units) continue;
        n_best = cut_to(best, n_best, align, p->units);
        if (n_best == 1 || v.n >= VICTIMS / 8 || p->units <= PAGE_UNITS) {
            s->stat.room_policy++;
            return evict_runs(s, p, &v, segment, best, n_best, budget);
        }
        /* Several runs would do. A few more victims may make it one. */
    }
    unsigned n_best = 0;
    for (unsigned i = 0; i < n_runs; i++) keep_longest(best, &n_best, runs[i], align);
    if (v.n > 0 && total(best, n_best, align) >= p->units) {
        n_best = cut_to(best, n_best, align, p->units);
        s->stat.room_policy++;
        return evict_runs(s, p, &v, segment, best, n_best, budget);
    }
    give_back_all(s, &v);
    return false;
}

/* --- 3: windows ------------------------------------------------------------------------------------------------------------------- */

static void plan_cursors(struct store *s, struct plan *plan, void (*fn)(struct space *sp, block_id *cursor)) {
    fn(&s->space, &plan->cursor);
    fn(&s->space, &plan->run.block);
    for (unsigned i = 0; i < STORE_EXTENTS_MAX; i++) fn(&s->space, &plan->best[i].block);
}

/* Begins a scan of the plan's segment at the object that is next to go, if it lies there. */
static void scan_begin(struct store *s, struct plan *plan) {
    unsigned budget = VICTIMS;
    struct segment *seg = s->space.segments[plan->segment];
    plan->phase = PLAN_SCAN;
    plan->wrapped = false;
    plan->run.len = 0;
    plan->n_best = 0;
    plan->cursor = seg->first;
    struct object *o = book_pop(s, -1, 0, plan->soft, &budget);
    if (o) {
        uint32_t n;
        block_id id = book_blocks(s, o, &n)[0];
        if (block_segment(block_get(&s->space, id)) == plan->segment) plan->cursor = id;
        book_give_back(s, o);
    }
    plan->stop = block_offset(block_get(&s->space, plan->cursor));
}

static void plan_begin(struct store *s, struct store_put *p) {
    struct plan *plan = p->plan = xcalloc(1, sizeof(*plan));
    s->planner = p;
    plan->changes = s->room_changes;
    plan_cursors(s, plan, space_cursor_add);
    scan_begin(s, plan);
}

static void plan_end(struct store *s, struct store_put *p) {
    plan_cursors(s, p->plan, space_cursor_remove);
    free(p->plan);
    p->plan = NULL;
    s->planner = NULL;
}

void room_abandon(struct store *s, struct store_put *p) {
    if (!p->plan) return;
    if (p->plan->reserved) space_release(&s->space, p->plan->reserved);
    plan_end(s, p);
}

static bool may_clear(const struct store *s, const struct plan *plan, const struct block *b) {
    if (block_state(b) != BLOCK_OBJECT) return false;
    const struct object *o = record_get(&s->records, b->owner);
    return book_evictable(s, o) && (plan->soft || object_pin(s, o) != STORE_PIN_SOFT);
}

/* How much would be lost: recently used bytes count up to 256 times as much as old ones. */
static uint64_t heat_of(const struct store *s, const struct block *b, uint64_t len) {
    if (block_state(b) != BLOCK_OBJECT) return 0; /* free, or taken since an earlier slice saw it */
    uint64_t idle = store_object_idle_ms(s, record_get(&s->records, b->owner)) / 1000;
    return len * (1 + 255 / (1 + idle));
}

/* A window inside one run that is long enough: while the run grows on the right, blocks leave on the left. */
struct window {
    block_id left;
    uint64_t heat;
    bool found;
    struct run best;
    uint64_t best_heat;
};

static void window_grow(const struct store *s, struct window *w, const struct run *run, uint64_t units,
                        uint32_t align) {
    for (;;) {
        const struct block *b = block_get(&s->space, w->left);
        uint64_t from = block_offset(b), start;
        struct run r = {from, run->start + run->len - from, w->left};
        if (usable(&r, align, &start) < units) return;
        if (!w->found || w->heat < w->best_heat) {
            w->found = true;
            w->best_heat = w->heat;
            w->best = (struct run){start, units, w->left};
        }
        uint64_t len = block_len(&s->space, w->left), heat = heat_of(s, b, len);
        w->heat -= heat < w->heat ? heat : w->heat;
        if (from + len >= run->start + run->len || !b->next) return;
        w->left = b->next;
    }
}

/* The run that the scan began in comes twice: first its end, then, after the wrap, all of it. */
static void run_over(struct plan *plan, uint32_t align) {
    const struct run *r = &plan->run;
    if (r->len == 0) return;
    unsigned kept = 0;
    for (unsigned i = 0; i < plan->n_best; i++)
        if (plan->best[i].start < r->start || plan->best[i].start >= r->start + r->len)
            plan->best[kept++] = plan->best[i];
    plan->n_best = kept;
    keep_longest(plan->best, &plan->n_best, plan->run, align);
    plan->run.len = 0;
}

/* Blocks may have been cut or merged since the last slice: the open run ends where the next block begins now. */
static void resume_run(const struct store *s, struct plan *plan, uint32_t align) {
    struct run *r = &plan->run;
    if (!plan->cursor || r->len == 0) return;
    uint64_t at = block_offset(block_get(&s->space, plan->cursor));
    if (at > r->start + r->len)
        run_over(plan, align);
    else
        r->len = at > r->start ? at - r->start : 0;
}

static bool scan_over(const struct store *s, const struct plan *plan) {
    if (!plan->cursor) return true;
    return plan->wrapped && plan->run.len == 0 &&
           block_offset(block_get(&s->space, plan->cursor)) >= plan->stop;
}

/* One slice of the walk. true: decided, plan->best is what to clear (n_best 0: this segment has no room). */
static bool scan(struct store *s, struct store_put *p, unsigned *budget) {
    struct plan *plan = p->plan;
    uint32_t align = space_align(p->units);
    resume_run(s, plan, align);
    struct window w = {.left = plan->run.len ? plan->run.block : 0};
    for (; *budget > 0; --*budget) {
        if (scan_over(s, plan)) {
            run_over(plan, align);
            if (!plan->cursor && !plan->wrapped) {
                plan->wrapped = true;
                plan->cursor = s->space.segments[plan->segment]->first;
                continue;
            }
            if (w.found) break;
            if (total(plan->best, plan->n_best, align) < p->units)
                plan->n_best = 0;
            else
                plan->n_best = cut_to(plan->best, plan->n_best, align, p->units);
            return true;
        }
        const struct block *b = block_get(&s->space, plan->cursor);
        uint64_t len = block_len(&s->space, plan->cursor);
        if (block_state(b) == BLOCK_FREE || may_clear(s, plan, b)) {
            if (plan->run.len == 0) {
                plan->run.start = block_offset(b);
                plan->run.block = w.left = plan->cursor;
                w.heat = 0;
            }
            plan->run.len += len;
            w.heat += heat_of(s, b, len);
            window_grow(s, &w, &plan->run, p->units, align);
        } else {
            run_over(plan, align);
        }
        plan->cursor = b->next;
    }
    if (!w.found) return false;
    plan->best[0] = w.best;
    plan->n_best = 1;
    return true;
}

bool room_clearing(const struct store *s, const struct object *o) {
    const struct plan *plan = s->planner->plan;
    return plan->phase == PLAN_CLEAR &&
           in_runs(s, o, plan->segment, plan->best + plan->clearing, plan->n_best - plan->clearing);
}

/* One slice of clearing best[clearing]. TARN_ESTALE: something stands in the way now. */
static tarn_status clear(struct store *s, struct store_put *p, unsigned *budget) {
    struct plan *plan = p->plan;
    struct space *sp = &s->space;
    while (plan->clearing < plan->n_best) {
        struct run *r = &plan->best[plan->clearing];
        uint64_t end = r->start + r->len;
        block_id next;
        if (plan->reserved) {
            const struct block *b = block_get(sp, plan->reserved);
            if (block_offset(b) + b->len >= end) {
                p->blocks[p->n_blocks++] = space_trim(sp, plan->reserved, r->start, (uint32_t)r->len);
                plan->reserved = 0;
                plan->clearing++;
                continue;
            }
            next = b->next;
        } else {
            next = r->block = block_at(s, r->block, r->start);
        }
        if (!next) return TARN_ESTALE;
        if (*budget == 0) return TARN_EAGAIN;
        --*budget;
        const struct block *b = block_get(sp, next);
        if (block_state(b) == BLOCK_FREE) {
            uint64_t block_end = block_offset(b) + block_len(sp, next);
            if (plan->reserved)
                space_absorb(sp, plan->reserved);
            else if (!(plan->reserved =
                           space_carve(sp, next, r->start, (uint32_t)(min_u64(block_end, end) - r->start))))
                return TARN_EOOM;
        } else if (may_clear(s, plan, b)) {
            book_evict(s, record_get(&s->records, b->owner), budget);
        } else {
            return TARN_ESTALE;
        }
    }
    return TARN_OK;
}

static void give_up_cleared(struct store *s, struct store_put *p) {
    if (p->plan->reserved) space_release(&s->space, p->plan->reserved);
    p->plan->reserved = 0;
    p->plan->clearing = 0;
    while (p->n_blocks > 0) space_release(&s->space, p->blocks[--p->n_blocks]);
}

/* The next segment, or all of them again with soft-pinned objects, or because the books changed. false: that was all. */
static bool next_scan(struct store *s, struct plan *plan) {
    if (++plan->segment == s->space.n_segments) {
        plan->segment = 0;
        if (!plan->soft && s->soft_pins > 0) {
            plan->soft = true;
        } else if (plan->changes != s->room_changes && ++plan->rounds < ROUNDS_MAX) {
            plan->soft = false;
            plan->changes = s->room_changes;
        } else {
            return false;
        }
    }
    scan_begin(s, plan);
    return true;
}

static tarn_status by_window(struct store *s, struct store_put *p, unsigned *budget) {
    struct plan *plan = p->plan;
    for (;;) {
        if (plan->phase == PLAN_SCAN) {
            if (!scan(s, p, budget)) return TARN_EAGAIN;
            if (plan->n_best == 0) {
                if (next_scan(s, plan)) continue;
                if (plan->rounds >= ROUNDS_MAX) s->stat.room_gave_up++;
                plan_end(s, p);
                return TARN_ENOSPACE;
            }
            plan->phase = PLAN_CLEAR;
            plan->clearing = 0;
        }
        tarn_status st = clear(s, p, budget);
        if (st == TARN_EAGAIN) return st;
        if (st == TARN_ESTALE && ++plan->rounds < ROUNDS_MAX) {
            give_up_cleared(s, p);
            scan_begin(s, plan);
            continue;
        }
        if (st != TARN_OK) give_up_cleared(s, p);
        plan_end(s, p);
        if (st == TARN_OK) s->stat.room_window++;
        if (st == TARN_ESTALE) s->stat.room_gave_up++;
        return st == TARN_ESTALE ? TARN_ENOSPACE : st;
    }
}

/* --- all of it ------------------------------------------------------------------------------------------------------------------------ */

tarn_status room_make(struct store *s, struct store_put *p, unsigned *budget) {
    if (p->plan) return by_window(s, p, budget);
    tarn_status st = room_limits(s, quota_domain(s, span_of(p->key, p->key_len)), p->size, 0, budget);
    if (st != TARN_OK || p->in_line) return st;
    uint64_t size = 0, available = s->evictable_units;
    for (uint32_t i = 0; i < s->space.n_segments; i++) {
        size = max_u64(size, s->space.segments[i]->units);
        available += s->space.segments[i]->free_units;
    }
    if (p->units > size || p->units > available) return TARN_ENOSPACE;
    if (s->planner && s->planner->plan->phase == PLAN_CLEAR) return TARN_EAGAIN;
    if (direct(s, p)) {
        s->stat.room_direct++;
        return TARN_OK;
    }
    if (by_policy(s, p, budget)) return TARN_OK;
    if (*budget == 0 || s->planner) return TARN_EAGAIN;
    plan_begin(s, p);
    return by_window(s, p, budget);
}
