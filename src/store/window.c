/* The third way to room: a window that is cleared. See room.c. One plan at a time, in slices
 * between which the books change. */
#include <stdlib.h>
#include <string.h>
#include "store/room.h"

#define VICTIMS 64u /* protected ones that a look at the next to go passes over */
/* A plan that was overtaken by events so often gives up: NOSPACE, counted as room_gave_up. */
#define ROUNDS_MAX 16u

static void plan_cursors(struct store *s, struct plan *plan,
                         void (*fn)(struct space *sp, block_id *cursor)) {
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
    struct object *o = book_pop(s, -1, 0, plan->soft, true, &budget);
    if (o) {
        uint32_t n;
        const block_id *blocks = book_blocks(s, o, &n);
        for (uint32_t i = 0; i < n; i++)
            if (replica_segment(s, blocks[i]) == plan->segment) plan->cursor = blocks[i];
        book_give_back(s, o);
    }
    plan->stop = block_offset(block_get(&s->space, plan->cursor));
}

/* The next segment of this round that might do, from the one at step on; false: that was all. */
static bool choose_segment(const struct store *s, const struct room_want *w, struct plan *plan) {
    for (; plan->step < s->space.n_segments; plan->step++) {
        plan->segment = (plan->first + plan->step) % s->space.n_segments;
        if (room_could_fit(s, w, plan->segment)) return true;
    }
    return false;
}

/* Where the object lies that is next to go. */
static uint32_t coldest_segment(struct store *s) {
    unsigned budget = VICTIMS;
    uint32_t n, id = 0;
    struct object *o = book_pop(s, -1, 0, false, true, &budget);
    if (!o) return 0;
    id = replica_segment(s, book_blocks(s, o, &n)[0]);
    book_give_back(s, o);
    return id;
}

static bool plan_begin(struct store *s, struct room_want *w) {
    struct plan *plan = w->plan = xcalloc(1, sizeof(*plan));
    plan->changes = s->room_changes;
    plan->first = coldest_segment(s);
    if (!choose_segment(s, w, plan)) {
        free(plan);
        w->plan = NULL;
        return false;
    }
    s->planner = w;
    plan_cursors(s, plan, space_cursor_add);
    scan_begin(s, plan);
    return true;
}

static void plan_end(struct store *s, struct room_want *w) {
    plan_cursors(s, w->plan, space_cursor_remove);
    free(w->plan);
    w->plan = NULL;
    s->planner = NULL;
}

void room_abandon(struct store *s, struct room_want *w) {
    if (w->plan) {
        if (w->plan->reserved) space_release(&s->space, w->plan->reserved);
        plan_end(s, w);
    }
    s->room_changes += w->n_blocks;
    while (w->n_blocks > 0) space_release(&s->space, w->blocks[--w->n_blocks]);
}

static bool may_clear(const struct store *s, const struct plan *plan, const struct block *b) {
    if (block_state(b) != BLOCK_OBJECT) return false;
    const struct object *o = record_get(&s->records, b->owner);
    return !book_protected(s, o) && (plan->soft || object_pin(s, o) != STORE_PIN_SOFT);
}

/* How much would be lost: recently used bytes count up to 256 times as much as old ones. */
static uint64_t heat_of(const struct store *s, const struct block *b, uint64_t len) {
    if (block_state(b) != BLOCK_OBJECT) return 0; /* free, or taken since an earlier slice saw it */
    uint64_t idle = store_object_idle_ms(s, record_get(&s->records, b->owner)) / 1000;
    return len * (1 + 255 / (1 + idle));
}

/* A window inside one run that is long enough: while the run grows on the right, blocks leave on
 * the left. */
struct window {
    block_id left;
    uint64_t heat;
    bool found;
    struct run best;
    uint64_t best_heat;
};

static void window_grow(const struct store *s, struct window *w, const struct run *run,
                        uint64_t units, uint32_t align) {
    for (;;) {
        const struct block *b = block_get(&s->space, w->left);
        uint64_t from = block_offset(b), start;
        struct run r = {from, run->start + run->len - from, w->left};
        if (run_aligned(&r, align, &start) < units) return;
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

/* The run that the scan began in comes twice: first its end, then, after the wrap, all of it; or
 * only up to what was allocated in it since. What was behind that stays, as it was: if it is not
 * there any more, clearing finds out. */
static void run_over(struct plan *plan, uint32_t align) {
    const struct run r = plan->run;
    struct run rest = {.len = 0};
    if (r.len == 0) return;
    uint64_t end = r.start + r.len;
    unsigned kept = 0;
    for (unsigned i = 0; i < plan->n_best; i++) {
        const struct run b = plan->best[i];
        if (b.start < r.start || b.start >= end)
            plan->best[kept++] = b;
        else if (b.start + b.len > end)
            rest = (struct run){end, b.start + b.len - end, b.block};
    }
    plan->n_best = kept;
    runs_keep_longest(plan->best, &plan->n_best, r, align);
    if (rest.len > 0) runs_keep_longest(plan->best, &plan->n_best, rest, align);
    plan->run.len = 0;
}

/* Blocks may have been cut or merged since the last slice: the open run ends where the next block
 * begins now. */
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

/* One slice of the walk. true: decided, plan->best is what to clear (n_best 0: this segment has no
 * room). */
static bool window_scan(struct store *s, struct room_want *w, unsigned *budget) {
    struct plan *plan = w->plan;
    uint32_t align = space_align(w->units);
    resume_run(s, plan, align);
    struct window win = {.left = plan->run.len ? plan->run.block : 0};
    for (; *budget > 0; --*budget) {
        if (scan_over(s, plan)) {
            run_over(plan, align);
            if (!plan->cursor && !plan->wrapped) {
                plan->wrapped = true;
                plan->cursor = s->space.segments[plan->segment]->first;
                continue;
            }
            if (win.found) break;
            if (runs_total(plan->best, plan->n_best, align) < w->units)
                plan->n_best = 0;
            else
                plan->n_best = runs_cut(plan->best, plan->n_best, align, w->units);
            return true;
        }
        const struct block *b = block_get(&s->space, plan->cursor);
        uint64_t len = block_len(&s->space, plan->cursor);
        if (block_state(b) == BLOCK_FREE || may_clear(s, plan, b)) {
            if (plan->run.len == 0) {
                plan->run.start = block_offset(b);
                plan->run.block = win.left = plan->cursor;
                win.heat = 0;
            }
            plan->run.len += len;
            win.heat += heat_of(s, b, len);
            window_grow(s, &win, &plan->run, w->units, align);
        } else {
            run_over(plan, align);
        }
        plan->cursor = b->next;
    }
    if (!win.found) return false;
    plan->best[0] = win.best;
    plan->n_best = 1;
    return true;
}

bool room_clearing(const struct store *s, const struct object *o) {
    const struct plan *plan = s->planner->plan;
    return plan->phase == PLAN_CLEAR && runs_hold(s, o, plan->segment, plan->best + plan->clearing,
                                                  plan->n_best - plan->clearing);
}

/* What lies behind it goes before, the last one first: it would be kept in vain, unless this one
 * stays readable on a disk. */
static void clear_object(struct store *s, struct object *o, unsigned *budget) {
    struct object *last = object_has_far(s, o) ? NULL : book_pop_behind(s, o, budget);
    if (last && book_protected(s, last))
        book_hold(s, last);
    else
        book_evict_space(s, last ? last : o, false, budget);
}

/* One slice of clearing best[clearing]. TARN_ESTALE: something stands in the way now. */
static tarn_status window_clear(struct store *s, struct room_want *w, unsigned *budget) {
    struct plan *plan = w->plan;
    struct space *sp = &s->space;
    while (plan->clearing < plan->n_best) {
        struct run *r = &plan->best[plan->clearing];
        uint64_t end = r->start + r->len;
        block_id next;
        if (plan->reserved) {
            const struct block *b = block_get(sp, plan->reserved);
            if (block_offset(b) + b->len >= end) {
                w->blocks[w->n_blocks++] =
                    space_trim(sp, plan->reserved, r->start, (uint32_t)r->len);
                plan->reserved = 0;
                plan->clearing++;
                continue;
            }
            next = b->next;
        } else {
            next = r->block = run_block_at(s, r->block, r->start);
        }
        if (!next) return TARN_ESTALE;
        if (*budget == 0) return TARN_EAGAIN;
        --*budget;
        const struct block *b = block_get(sp, next);
        if (block_state(b) == BLOCK_FREE) {
            uint64_t block_end = block_offset(b) + block_len(sp, next);
            if (plan->reserved)
                space_absorb(sp, plan->reserved);
            else if (!(plan->reserved = space_carve(
                           sp, next, r->start, (uint32_t)(min_u64(block_end, end) - r->start))))
                return TARN_EOOM;
        } else if (may_clear(s, plan, b)) {
            clear_object(s, record_get(&s->records, b->owner), budget);
        } else {
            return TARN_ESTALE;
        }
    }
    return TARN_OK;
}

static void give_up_cleared(struct store *s, struct room_want *w) {
    if (w->plan->reserved) space_release(&s->space, w->plan->reserved);
    w->plan->reserved = 0;
    w->plan->clearing = 0;
    while (w->n_blocks > 0) space_release(&s->space, w->blocks[--w->n_blocks]);
}

/* The next segment, or all of them again with soft-pinned objects, or because the books changed.
 * false: that was all. */
static bool next_scan(struct store *s, struct room_want *w) {
    struct plan *plan = w->plan;
    plan->step++;
    while (!choose_segment(s, w, plan)) {
        plan->step = 0;
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

static tarn_status no_room(struct store *s, struct room_want *w) {
    if (w->plan->rounds >= ROUNDS_MAX) s->stat.room_gave_up++;
    plan_end(s, w);
    return TARN_ENOSPACE;
}

/* The segment's host may have gone since the last slice. */
static bool still_usable(const struct store *s, const struct room_want *w) {
    const struct segment *seg = space_segment(&s->space, w->plan->segment);
    return seg && room_may_use(w, seg);
}

tarn_status window_step(struct store *s, struct room_want *w, unsigned *budget) {
    struct plan *plan = w->plan;
    for (;;) {
        if (!still_usable(s, w)) {
            give_up_cleared(s, w);
            if (!next_scan(s, w)) return no_room(s, w);
        }
        if (plan->phase == PLAN_SCAN) {
            if (!window_scan(s, w, budget)) return TARN_EAGAIN;
            if (plan->n_best == 0) {
                if (next_scan(s, w)) continue;
                return no_room(s, w);
            }
            plan->phase = PLAN_CLEAR;
            plan->clearing = 0;
        }
        tarn_status st = window_clear(s, w, budget);
        if (st == TARN_EAGAIN) return st;
        if (st == TARN_ESTALE && ++plan->rounds < ROUNDS_MAX) {
            give_up_cleared(s, w);
            scan_begin(s, plan);
            continue;
        }
        if (st != TARN_OK) give_up_cleared(s, w);
        plan_end(s, w);
        if (st == TARN_OK) s->stat.room_window++;
        if (st == TARN_ESTALE) s->stat.room_gave_up++;
        return st == TARN_ESTALE ? TARN_ENOSPACE : st;
    }
}

tarn_status window_begin(struct store *s, struct room_want *w, unsigned *budget) {
    return plan_begin(s, w) ? window_step(s, w, budget) : TARN_ENOSPACE;
}
