/* Making room for a replica: guarantee 2.
 *
 * In this order, stopping at the first that does:
 *   1. Free space: one run, then up to 8, in the segments that placement.c names, in its order; of
 *      thousands not all, unless nothing can be evicted.
 *   2. The objects that are next to go (policy order), up to VICTIMS of them: do they, with the
 *      free space around them, make the value's room? Nothing is evicted before the answer is yes,
 *      and then only those whose space is used. Those that have a copy on a disk are taken before
 *      those that would be lost.
 *   3. A window (window.c): a walk over a segment in address order, starting at the coldest object,
 *      looks for a run of space that is free or may be freed, large enough for the value, and takes
 *      the coldest it saw in its first slice that found any. If the walk ends without one, the 8
 *      longest runs may do. First without soft-pinned objects, then with them.
 * Only then it is NOSPACE: no 8 runs of free, or unleased and not hard-pinned, space hold the
 * value.
 *
 * What is brought ahead of its readers (ahead_ms), or back from a disk by a policy that knows what
 * it is worth, gets no further than step 2.
 *
 * Steps 1 and 2 are one call. Step 3 goes in slices; one put at a time (the planner) may be in it,
 * others wait for their turn. While it clears a window, nothing else is allocated, and the objects
 * in the window are gone for look-ups, so that no new lease can stand in the way. */
#include <stdlib.h>
#include <string.h>
#include "store/books.h"
#include "store/room.h"

#define VICTIMS        64u
#define SEGMENTS_TRIED 64u /* for free space, before something is evicted */
#define COPIED_MAX     16u /* the next to go are searched so far for one with a copy on a disk */

/* --- limits --- */

static struct object *oldest_far(struct store *s, int domain) {
    struct object *best = NULL;
    for (unsigned i = domain < 0 ? 0 : (unsigned)domain; i < s->n_domains; i++) {
        if (!s->domains[i].used) continue;
        struct object *o = list_back(&s->records, s->domains[i].far);
        if (o && !book_protected(s, o) &&
            (!best || store_object_idle_ms(s, o) > store_object_idle_ms(s, best)))
            best = o;
        if (domain >= 0) break;
    }
    return best;
}

/* Evicts from domain (< 0: all) whoever goes first: with space in memory, in the books, and (books:
 * what is wanted is room in the books) only on disk. */
static bool evict_any(struct store *s, int domain, bool books, unsigned *budget) {
    struct object *o = book_pop(s, domain, 0, true, false, budget),
                  *other = book_pop(s, domain, 1, true, false, budget);
    struct object *far = books ? oldest_far(s, domain) : NULL;
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
    if (far && (!o || store_object_idle_ms(s, far) >= store_object_idle_ms(s, o))) {
        if (o) book_give_back(s, o);
        o = far;
        book_unlink(s, o);
    }
    if (!o) return false;
    bool stays = books && !book_far_only(o) && (o->bits & OBJECT_PLACES);
    book_evict(s, o, budget);
    /* it may have left memory only: the next round may take it */
    if (stays && *budget > 0) --*budget;
    return true;
}

static bool evict_for(struct store *s, enum store_eviction cause, int domain, unsigned *budget) {
    room_evicts(s);
    s->evicting_for = cause;
    bool some = evict_any(s, domain, cause == STORE_EVICTION_MAXMEMORY, budget);
    s->evicting_for = STORE_EVICTION_PUT;
    return some;
}

static bool over_limits(const struct store *s, unsigned coming) {
    if (s->config.max_objects && s->index.count + s->puts.count + coming > s->config.max_objects)
        return true;
    return s->config.max_memory && store_memory(s) > s->config.max_memory;
}

tarn_status room_limits(struct store *s, unsigned domain, uint64_t bytes, unsigned coming,
                        unsigned *budget) {
    while (UNLIKELY(over_limits(s, coming))) {
        if (s->policy->keeps) return TARN_EOOM;
        if (*budget == 0) return TARN_EAGAIN;
        if (!evict_for(s, STORE_EVICTION_MAXMEMORY, -1, budget)) {
            if (*budget == 0) return TARN_EAGAIN;
            /* no copy makes room in the books */
            if (!await_let_go_any(s, budget)) return TARN_EOOM;
            continue;
        }
        s->stat.evicted_limits++;
    }
    struct domain *d = &s->domains[domain];
    if (LIKELY(d->limit == 0)) return TARN_OK;
    if (bytes > d->limit) return TARN_EQUOTA;
    while (d->bytes + bytes > d->limit) {
        if (s->policy->keeps) return TARN_EQUOTA;
        if (*budget == 0) return TARN_EAGAIN;
        if (!evict_for(s, STORE_EVICTION_QUOTA, (int)domain, budget))
            return *budget ? TARN_EQUOTA : TARN_EAGAIN;
        s->stat.evicted_quota++;
    }
    return TARN_OK;
}

bool store_shrink(struct store *s, unsigned *budget) {
    if (s->policy->keeps || s->following) return false;
    while (*budget > 0 && over_limits(s, 0)) {
        if (!evict_for(s, STORE_EVICTION_MAXMEMORY, -1, budget)) return *budget == 0;
        s->stat.evicted_limits++;
    }
    return *budget == 0;
}

/* --- 1: free space --- */

bool room_may_use(const struct room_want *w, const struct segment *seg) {
    if (seg->tier != STORE_TIER_MEMORY || seg->state != SEGMENT_UP || seg->id == w->never)
        return false;
    if (w->only != STORE_SEGMENT_ANY && seg->id != w->only) return false;
    for (unsigned i = 0; i < w->n_taken; i++)
        if (seg->host == w->taken[i]) return false;
    for (unsigned i = 0; i < w->n_avoid; i++)
        if (seg->id == w->avoid[i]) return false;
    return true;
}

bool room_could_fit(const struct store *s, const struct room_want *w, uint32_t id) {
    const struct segment *seg = space_segment(&s->space, id);
    return seg && room_may_use(w, seg) && seg->free_units + seg->evictable_units >= w->units;
}

static bool room_direct(struct store *s, struct room_want *w, uint32_t most) {
    if ((int64_t)s->space.free_units < (int64_t)w->units) return false; /* full, as pools are */
    for (int many = w->units > UINT32_MAX; many < 2; many++) {
        struct placement_iter it;
        uint32_t id;
        placement_begin(s, most, &it);
        while (placement_next(s, w, &it, &id))
            if ((w->n_blocks = space_alloc(&s->space, id, w->units, space_align(w->units),
                                           many ? STORE_EXTENTS_MAX : 1, w->blocks)))
                return true;
    }
    return false;
}

/* --- 2: who is next to go --- */

struct victims {
    struct object *object[VICTIMS];
    unsigned n;
};

static bool free_or_victim(const struct store *s, const struct block *b) {
    if (block_state(b) == BLOCK_FREE) return true;
    return block_state(b) == BLOCK_OBJECT &&
           (record_get(&s->records, b->owner)->bits & OBJECT_VICTIM);
}

static struct run run_around(const struct store *s, block_id id) {
    const struct space *sp = &s->space;
    block_id first = id, last = id, n;
    while ((n = block_get(sp, first)->prev) && free_or_victim(s, block_get(sp, n))) first = n;
    while ((n = block_get(sp, last)->next) && free_or_victim(s, block_get(sp, n))) last = n;
    uint64_t start = block_offset(block_get(sp, first));
    return (struct run){start, block_offset(block_get(sp, last)) + block_len(sp, last) - start,
                        first};
}

/* Runs that a longer one contains now are dropped. */
static void add_run(struct run *runs, unsigned *n, struct run r) {
    unsigned kept = 0;
    for (unsigned i = 0; i < *n; i++)
        if (runs[i].start < r.start || runs[i].start >= r.start + r.len) runs[kept++] = runs[i];
    runs[kept++] = r;
    *n = kept;
}

static void victim_spare(struct store *s, struct object *o) {
    o->bits &= ~(uint32_t)OBJECT_VICTIM;
    book_give_back(s, o);
}

/* What lies behind one that goes has no use of its own: it goes as well, unless that one stays
 * readable on a disk and it would not. */
static void choose_behind(struct store *s, const struct victims *v, bool *chosen) {
    for (unsigned i = 0; i < v->n; i++)
        for (unsigned k = i + 1; k < v->n && !chosen[i]; k++)
            chosen[i] = chosen[k] && book_behind(s, v->object[i], v->object[k]) &&
                        (object_has_far(s, v->object[i]) || !object_has_far(s, v->object[k]));
}

static bool evict_runs(struct store *s, struct room_want *w, struct victims *v, uint32_t segment,
                       struct run *runs, unsigned n, unsigned *budget) {
    for (unsigned k = 0; k < n; k++) space_cursor_add(&s->space, &runs[k].block);
    bool chosen[VICTIMS];
    for (unsigned i = 0; i < v->n; i++) chosen[i] = runs_hold(s, v->object[i], segment, runs, n);
    choose_behind(s, v, chosen);
    for (unsigned i = v->n; i-- > 0;) {
        struct object *o = v->object[i];
        o->bits |= OBJECT_VICTIM; /* not to be taken along by its group */
        if (!chosen[i]) victim_spare(s, o);
    }
    for (unsigned i = 0; i < v->n; i++)
        if (chosen[i]) book_evict_space(s, v->object[i], true, budget);
    bool ok = true;
    for (unsigned k = 0; k < n && ok; k++) {
        block_id id = run_take(s, &runs[k]);
        if (id)
            w->blocks[w->n_blocks++] = id;
        else
            ok = false;
    }
    for (unsigned k = 0; k < n; k++) space_cursor_remove(&s->space, &runs[k].block);
    v->n = 0;
    if (ok) return true;
    while (w->n_blocks > 0) space_release(&s->space, w->blocks[--w->n_blocks]);
    return false;
}

static void give_back_all(struct store *s, struct victims *v) {
    while (v->n > 0) victim_spare(s, v->object[--v->n]);
}

/* Which of its replicas lies where w may go; STORE_SEGMENT_ANY: none. */
static uint32_t useful_segment(const struct store *s, const struct room_want *w,
                               const struct object *o) {
    uint32_t n;
    const block_id *blocks = book_blocks(s, o, &n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = replica_segment(s, blocks[i]);
        if ((i == 0 || id != replica_segment(s, blocks[i - 1])) && room_could_fit(s, w, id))
            return id;
    }
    return STORE_SEGMENT_ANY;
}

struct choice {
    struct victims v;
    uint32_t segment; /* STORE_SEGMENT_ANY: not chosen yet */
    struct run runs[VICTIMS * STORE_EXTENTS_MAX + 2];
    unsigned n_runs;
};

/* o does count: its space, and what is free around it. */
static void victim_choose(struct store *s, struct choice *c, struct object *o) {
    uint32_t n;
    const block_id *blocks = book_blocks(s, o, &n);
    o->bits |= OBJECT_VICTIM;
    for (uint32_t i = 0; i < n; i++)
        if (replica_segment(s, blocks[i]) == c->segment)
            add_run(c->runs, &c->n_runs, run_around(s, blocks[i]));
}

/* Runs are looked at in one segment, that of the first victim that helps; victims elsewhere do not
 * count. */
static void victim_consider(struct store *s, const struct room_want *w, struct choice *c,
                            struct object *o, bool copied) {
    if (copied && !object_has_far(s, o)) return;
    if (c->segment == STORE_SEGMENT_ANY) {
        c->segment = useful_segment(s, w, o);
        if (c->segment == STORE_SEGMENT_ANY) return;
        block_id id = s->space.ops->largest(&s->space, s->space.segments[c->segment]);
        if (id) add_run(c->runs, &c->n_runs, run_around(s, id));
    }
    if (object_lies_in(s, o, c->segment)) victim_choose(s, c, o);
}

static unsigned best_runs(const struct choice *c, uint32_t align, struct run *best) {
    unsigned n = 0;
    for (unsigned i = 0; i < c->n_runs; i++) runs_keep_longest(best, &n, c->runs[i], align);
    return n;
}

/* What nobody reads yet (ahead_ms) is worth what was next to go when somebody asked for it, and no
 * other that came in the same way. */
static bool in_use_since(const struct store *s, const struct object *o, uint64_t ahead_ms) {
    uint64_t asked_s = ahead_ms / 1000, now_s = s->now_ms / 1000;
    uint64_t used_s = now_s - store_object_idle_ms(s, o) / 1000;
    return extra_unread(s, o) ? used_s >= asked_s : used_s > asked_s;
}

/* copied: only those that have a copy on a disk. */
static bool by_policy(struct store *s, struct room_want *w, bool copied, unsigned *budget) {
    struct choice c; /* its lists are some 12 KiB, of which little is used */
    c.segment = STORE_SEGMENT_ANY;
    c.v.n = c.n_runs = 0;
    struct run best[STORE_EXTENTS_MAX];
    uint32_t align = space_align(w->units);
    /* soft-pinned ones only when there is nothing else at all */
    bool soft = !copied && w->ahead_ms == 0 && w->worth == 0;
    unsigned limit = copied ? COPIED_MAX : VICTIMS, n_best = 0;
    bool enough = false;
    while (c.v.n<limit && * budget> 0) {
        struct object *o = book_pop(s, -1, 0, soft, true, budget);
        if (!o) break;
        soft = soft && object_pin(s, o) == STORE_PIN_SOFT;
        c.v.object[c.v.n++] = o;
        if (w->ahead_ms > 0 && in_use_since(s, o, w->ahead_ms)) break;
        if (w->worth > 0 && !evict_worth_less(s, o, w->worth)) break;
        victim_consider(s, w, &c, o, copied);
        n_best = best_runs(&c, align, best);
        enough = runs_total(best, n_best, align) >= w->units;
        if (!enough) continue;
        n_best = runs_cut(best, n_best, align, w->units);
        if (n_best == 1 || c.v.n >= VICTIMS / 8 || w->units <= PAGE_UNITS) break;
        /* Several runs would do. A few more victims may make it one. */
    }
    if (!enough) {
        give_back_all(s, &c.v);
        return false;
    }
    s->stat.room_policy++;
    bool ok = evict_runs(s, w, &c.v, c.segment, best, n_best, budget);
    evict_ahead(s);
    return ok;
}

/* --- all of it --- */

/* Somewhere, when what may be evicted has gone, and so many units besides; ghosts: and these. */
static bool could_fit(const struct store *s, const struct room_want *w, bool ghosts,
                      uint64_t besides) {
    for (const struct segment *seg = NULL; (seg = space_next(&s->space, seg));) {
        if (!room_may_use(w, seg) || seg->units < w->units) continue;
        if (seg->free_units + (s->policy->keeps ? 0 : seg->evictable_units) +
                (ghosts ? seg->ghost_units : 0) + besides >=
            w->units)
            return true;
    }
    return false;
}

static tarn_status room_try(struct store *s, struct room_want *w, unsigned *budget) {
    if (w->plan) {
        room_evicts(s);
        return window_step(s, w, budget);
    }
    if (s->planner && s->planner->plan->phase == PLAN_CLEAR) return TARN_EAGAIN;
    bool evicts = !w->free_only && !s->policy->keeps && !ghosts_hold(s);
    if (room_direct(s, w, evicts ? SEGMENTS_TRIED : UINT32_MAX)) {
        s->stat.room_direct++;
        return TARN_OK;
    }
    if (w->free_only) return TARN_ENOSPACE;
    /* What is evicted before ghosts have gone would become one, and a key have gone for nothing. */
    if (UNLIKELY(ghosts_hold(s))) return could_fit(s, w, true, 0) ? TARN_ELATER : TARN_ENOSPACE;
    if (s->policy->keeps || !could_fit(s, w, false, 0)) return TARN_ENOSPACE;
    room_evicts(s);
    if (s->far_replicas > 0 && by_policy(s, w, true, budget)) return TARN_OK;
    if (by_policy(s, w, false, budget)) return TARN_OK;
    if (room_direct(s, w, UINT32_MAX)) {
        s->stat.room_direct++;
        return TARN_OK;
    }
    if (w->ahead_ms > 0 || w->worth > 0) return *budget == 0 ? TARN_EAGAIN : TARN_ENOSPACE;
    if (*budget == 0 || s->planner) return TARN_EAGAIN;
    return window_begin(s, w, budget);
}

#define UNGRANTED_MS 1000u /* other room may come before */

tarn_status room_make(struct store *s, struct room_want *w, unsigned *budget) {
    tarn_status st = room_try(s, w, budget);
    if ((st == TARN_ENOSPACE || st == TARN_ELATER) && w->n_avoid > 0) {
        w->n_avoid = 0; /* where nothing else has room, even there */
        st = room_try(s, w, budget);
    }
    /* of leases that were released, and of puts that are over: hosts still honour their grants */
    uint64_t granted = s->guarded_units + s->written_units;
    if (st != TARN_ENOSPACE || granted == 0 || w->free_only || !could_fit(s, w, false, granted))
        return st;
    s->later_for_disk = false;
    s->later_ms = wheel_next_ms(s->wheel[WHEEL_GHOST], s->now_ms,
                                wheel_next_ms(s->wheel[WHEEL_GUARD], s->now_ms, UNGRANTED_MS));
    return TARN_ELATER;
}
