/* Segments: their states, the sweep that empties those that leave, and walks over what lies in
 * one. */
#include <stdlib.h>
#include <string.h>
#include "store/books.h"

#define SWEEPS_MAX 8u /* at a time: each has a cursor */

tarn_status store_segment_add(struct store *s, const struct store_segment_config *config,
                              uint32_t *id_p) {
    struct store_segment_info info;
    if (store_segment_by_name(s, span_str(config->name), &info)) return TARN_EEXISTS;
    uint32_t id = space_segment_free_id(&s->space);
    tarn_status st = space_segment_add(&s->space, config, id);
    if (st != TARN_OK) return st;
    if (config->tier != STORE_TIER_MEMORY) far_remember(s);
    effect_segment(s, s->space.segments[id]);
    placement_changed(s);
    s->room_changes++;
    *id_p = id;
    return TARN_OK;
}

void store_segment_set_state(struct store *s, uint32_t id, enum store_segment_state state) {
    struct segment *seg = space_segment(&s->space, id);
    TARN_ASSERT(seg);
    if (seg->state == state) return;
    TARN_ASSERT(seg->state != SEGMENT_LEAVING);
    bool was_readable = segment_readable(seg);
    s->hidden += segment_hides(state) - segment_hides(seg->state);
    space_segment_set_state(&s->space, seg, state);
    effect_segment(s, seg);
    if (was_readable != segment_readable(seg))
        news_segment(s, was_readable ? STORE_NEWS_SEGMENT_DOWN : STORE_NEWS_SEGMENT_UP, id);
    s->room_changes++;
    placement_changed(s);
    if (state != SEGMENT_LEAVING) return;
    s->leaving++;
    seg->swept = false;
}

void store_segment_set_host(struct store *s, uint32_t id, uint32_t host) {
    struct segment *seg = space_segment(&s->space, id);
    TARN_ASSERT(seg);
    if (seg->host == host) return;
    seg->host = host;
    effect_segment(s, seg);
    placement_changed(s);
}

uint32_t store_segment_limit(const struct store *s) {
    return s->space.n_segments;
}

size_t store_segment_count(const struct store *s) {
    size_t n = 0;
    for (uint32_t i = 0; i < s->space.n_segments; i++) n += s->space.segments[i] != NULL;
    return n;
}

static void info_memory(const struct store *s, const struct segment *seg,
                        struct store_segment_info *i) {
    i->quarantined = seg->quarantine_units * UNIT;
    i->used = (seg->units - segment_share(seg).free) * UNIT - i->quarantined;
    i->evictable = seg->evictable_units * UNIT;
    i->free_runs = seg->free_runs;
    i->largest_free = space_largest((struct space *)&s->space, seg->id) * UNIT;
    i->replicas = seg->blocks_in_objects;
}

bool store_segment_get(const struct store *s, uint32_t id, struct store_segment_info *info_p) {
    const struct segment *seg = space_segment(&s->space, id);
    if (!seg) return false;
    *info_p = (struct store_segment_info){.id = id,
                                          .epoch = seg->epoch,
                                          .host = seg->host,
                                          .tier = seg->tier,
                                          .state = seg->state,
                                          .size = seg->units * UNIT};
    memcpy(info_p->name, seg->name, sizeof(info_p->name));
    if (seg->tier == STORE_TIER_MEMORY) {
        info_memory(s, seg, info_p);
    } else {
        info_p->used = seg->far_bytes;
        info_p->replicas = seg->far_replicas;
    }
    return true;
}

bool store_segment_label(const struct store *s, uint32_t id, const char **name_p,
                         enum store_tier *tier_p, uint32_t *epoch_p, bool *readable_p) {
    const struct segment *seg = space_segment(&s->space, id);
    if (!seg) return false;
    *name_p = seg->name;
    *tier_p = seg->tier;
    *epoch_p = seg->epoch;
    *readable_p = segment_readable(seg);
    return true;
}

bool store_segment_by_name(const struct store *s, struct span name,
                           struct store_segment_info *info_p) {
    const struct segment *seg = space_segment_named(&s->space, name);
    return seg && store_segment_get(s, seg->id, info_p);
}

/* --- taking replicas away --- */

static int memory_index(const struct store *s, const struct places *p, uint32_t segment) {
    const block_id *b = p->block;
    for (uint32_t i = 0; i < p->n_memory; b += p->extents[i++])
        if (replica_segment(s, *b) == segment) return (int)i;
    return -1;
}

/* One of several replicas of o; the others stay. */
static void drop_memory(struct store *s, struct object *o, struct places *p, uint32_t replica) {
    uint32_t first = 0, n = p->extents[replica];
    block_id blocks[STORE_EXTENTS_MAX];
    for (uint32_t i = 0; i < replica; i++) first += p->extents[i];
    memcpy(blocks, p->block + first, n * sizeof(blocks[0]));
    places_drop_memory(p, replica);
    places_write(s, o, p);
    s->stat.replicas_dropped++;
    if (o->bits & OBJECT_REFS) {
        refs_replica_gone(s, o, blocks, n);
    } else {
        space_part(s, blocks, n);
    }
}

static void drop_far(struct store *s, struct object *o, struct places *p, uint32_t index,
                     bool tell) {
    struct far far = p->far[index];
    places_drop_far(p, index);
    places_write(s, o, p);
    s->stat.far_dropped++;
    if (!tell) return;
    store_far_supersede(s, store_object_key(o), object_version(o));
    if (s->events.far_gone)
        s->events.far_gone(s->events.arg, store_object_key(o), object_version(o), far.segment,
                           far.offset);
}

/* true: o is still there. */
static bool drop_in(struct store *s, struct object *o, uint32_t segment, bool tell) {
    struct places p;
    places_read(s, o, &p);
    int replica = memory_index(s, &p, segment);
    if (replica >= 0 && p.n_memory + p.n_far > 1) {
        drop_memory(s, o, &p, (uint32_t)replica);
        return true;
    }
    for (uint32_t i = 0; i < p.n_far && replica < 0; i++) {
        if (p.far[i].segment != segment) continue;
        if (p.n_memory + p.n_far > 1) {
            drop_far(s, o, &p, i, tell);
            return true;
        }
        replica = 0;
    }
    if (replica < 0) return true;
    s->stat.removed++;
    if (!tell) s->far_silent = segment;
    book_remove(s, o, STORE_NEWS_LOST);
    s->far_silent = STORE_SEGMENT_ANY;
    return false;
}

static bool readable_elsewhere(const struct store *s, const struct object *o, uint32_t segment,
                               bool *here_p) {
    struct store_layout all;
    bool elsewhere = false;
    *here_p = false;
    store_object_replicas(s, o, &all);
    for (uint32_t i = 0; i < all.replicas; i++) {
        uint32_t id = all.replica[i].extent[0].segment;
        *here_p = *here_p || id == segment;
        elsewhere = elsewhere || (id != segment && segment_readable(s->space.segments[id]));
    }
    return elsewhere;
}

tarn_status store_replica_drop(struct store *s, struct object *o, uint32_t segment, bool force) {
    bool here;
    if (o->bits & OBJECT_INLINE) return TARN_ENOTFOUND;
    bool elsewhere = readable_elsewhere(s, o, segment, &here);
    if (!here) return TARN_ENOTFOUND;
    if (!elsewhere && !force) return TARN_EBUSY;
    drop_in(s, o, segment, true);
    return TARN_OK;
}

/* --- another size --- */

struct beyond { /* objects with a replica that does not lie below units of a segment wholly */
    struct store *s;
    uint32_t segment;
    uint64_t units, objects;
    bool drop;
};

static void look_beyond(void *arg, struct object *o) {
    struct beyond *w = arg;
    uint32_t n = 0;
    const block_id *blocks = o->bits & OBJECT_INLINE ? NULL : book_blocks(w->s, o, &n);
    bool here = false;
    for (uint32_t i = 0; i < n; i++) {
        const struct block *b = block_get(&w->s->space, blocks[i]);
        here |= block_segment(b) == w->segment && block_offset(b) + b->len > w->units;
    }
    if (!here) return;
    w->objects++;
    if (w->drop) drop_in(w->s, o, w->segment, false);
}

static uint64_t segment_beyond(struct store *s, uint32_t segment, uint64_t units, bool drop) {
    struct beyond w = {.s = s, .segment = segment, .units = units, .drop = drop};
    index_each(&s->index, look_beyond, &w);
    return w.objects;
}

tarn_status segment_resize(struct store *s, struct segment *seg, uint64_t units, bool force,
                           uint64_t *objects_p) {
    *objects_p = 0;
    if (units < seg->units) {
        *objects_p = segment_beyond(s, seg->id, units, false);
        if (*objects_p > 0 && (!force || !s->following)) return TARN_EBUSY;
        if (*objects_p > 0) segment_beyond(s, seg->id, units, true);
        if (s->following) ghosts_beyond(s, seg->id, units); /* nothing is put there any more */
    }
    if (!space_segment_resize(&s->space, seg->id, units)) return TARN_EBUSY;
    effect_segment(s, seg);
    placement_changed(s);
    s->room_changes++;
    return TARN_OK;
}

tarn_status store_segment_resize(struct store *s, uint32_t id, uint64_t size, bool force,
                                 uint64_t *objects_p) {
    struct segment *seg = space_segment(&s->space, id);
    uint64_t units = size / 4096 * PAGE_UNITS;
    *objects_p = 0;
    if (!seg || seg->tier != STORE_TIER_MEMORY || seg->state == SEGMENT_LEAVING || units == 0)
        return TARN_EINVAL;
    if (seg->units == units) return TARN_OK;
    s->leading = s->following; /* who follows us, and the file, have these objects, too */
    tarn_status st = segment_resize(s, seg, units, force, objects_p);
    s->leading = false;
    return st;
}

/* --- walks --- */

#define WALKS_MAX 8u

struct store_walk {
    LIST_ENTRY(store_walk) link;
    uint32_t segment, epoch;
    bool memory, begun;
    block_id block;  /* memory: the next one */
    uint64_t cursor; /* far: of the walk over all objects */
};

static struct store_walk *walk_new(struct store *s, const struct segment *seg) {
    struct store_walk *w = xcalloc(1, sizeof(*w));
    w->segment = seg->id;
    w->epoch = seg->epoch;
    w->memory = seg->tier == STORE_TIER_MEMORY;
    w->block = seg->first;
    if (w->memory) space_cursor_add(&s->space, &w->block);
    return w;
}

static void walk_free(struct store *s, struct store_walk **walk_p) {
    if ((*walk_p)->memory) space_cursor_remove(&s->space, &(*walk_p)->block);
    free(*walk_p);
    *walk_p = NULL;
}

static bool being_walked(const struct store *s, uint32_t id) {
    const struct store_walk *w;
    LIST_FOREACH(w, &s->walks, link) {
        if (w->segment == id && w->memory && w->block) return true;
    }
    return false;
}

struct store_walk *store_walk_begin(struct store *s, uint32_t segment) {
    const struct segment *seg = space_segment(&s->space, segment);
    unsigned n = 0;
    struct store_walk *w;
    LIST_FOREACH(w, &s->walks, link) n++;
    if (n == WALKS_MAX || !seg) return NULL;
    w = walk_new(s, seg);
    LIST_INSERT_HEAD(&s->walks, w, link);
    return w;
}

/* The first block of a replica stands for it; the cursor is on the next block before fn may change
 * this one. */
static bool walk_blocks(struct store *s, struct store_walk *w, index_fn fn, void *arg,
                        unsigned *budget) {
    while (w->block) {
        if (*budget == 0) return false;
        --*budget;
        const struct block *b = block_get(&s->space, w->block);
        block_id here = w->block;
        w->block = b->next;
        if (block_state(b) != BLOCK_OBJECT) continue;
        struct object *o = record_get(&s->records, b->owner);
        uint32_t n;
        const block_id *blocks = book_blocks(s, o, &n);
        bool first = true;
        for (uint32_t i = 0; i < n && blocks[i] != here; i++)
            if (replica_segment(s, blocks[i]) == w->segment) first = false;
        if (first) fn(arg, o);
    }
    return true;
}

struct far_walk {
    const struct store *s;
    uint32_t segment;
    index_fn fn;
    void *arg;
};

static void walk_far_one(void *arg, struct object *o) {
    struct far_walk *f = arg;
    if ((o->bits & OBJECT_PLACES) && object_lies_in(f->s, o, f->segment)) f->fn(f->arg, o);
}

bool store_walk_step(struct store *s, struct store_walk *w, index_fn fn, void *arg,
                     unsigned *budget) {
    const struct segment *seg = space_segment(&s->space, w->segment);
    if (!seg || seg->epoch != w->epoch) return true;
    if (w->memory) return walk_blocks(s, w, fn, arg, budget);
    struct far_walk f = {s, w->segment, fn, arg};
    if (w->begun && w->cursor == 0) return true;
    w->begun |= *budget > 0;
    return index_walk(&s->index, &w->cursor, walk_far_one, &f, budget);
}

void store_walk_end(struct store *s, struct store_walk **walk_p) {
    if (!*walk_p) return;
    LIST_REMOVE(*walk_p, link);
    walk_free(s, walk_p);
}

void segment_free_walks(struct store *s) {
    for (struct store_walk *w; (w = LIST_TAKE(&s->walks, link));) walk_free(s, &w);
    segment_end_sweeps(s);
}

/* --- the sweep of segments that leave --- */

struct segment_sweep {
    struct store *s;
    const struct segment *seg;
};

static void sweep_object(void *arg, struct object *o) {
    const struct segment_sweep *w = arg;
    drop_in(w->s, o, w->seg->id, false);
}

/* A machine that is lost takes many segments along: they take turns. */
static void segment_sweep_one(struct store *s, struct segment *seg, unsigned *budget) {
    struct segment_sweep w = {s, seg};
    if (seg->tier != STORE_TIER_MEMORY && !await_sweep(s, seg, budget)) return;
    if (!seg->sweep) {
        if (s->sweeps >= SWEEPS_MAX) return;
        s->sweeps++;
        seg->sweep = walk_new(s, seg);
    }
    if (!store_walk_step(s, seg->sweep, sweep_object, &w, budget)) return;
    seg->swept = true;
    s->sweeps--;
    walk_free(s, &seg->sweep);
}

static bool segment_is_empty(const struct segment *seg) {
    return seg->swept && (seg->tier == STORE_TIER_MEMORY ? seg->free_units == seg->units
                                                         : seg->far_replicas == 0);
}

/* Its last reader and writer are gone. A walk and the planner, in whose hands it may be, see its
 * state in their next slice. */
static bool segment_may_go(const struct store *s, const struct segment *seg) {
    return segment_is_empty(seg) && !being_walked(s, seg->id) &&
           !(s->planner && s->planner->plan->segment == seg->id);
}

bool segment_sweeping(const struct store *s) {
    for (const struct segment *seg = NULL; (seg = space_next(&s->space, seg));) {
        if (seg->state == SEGMENT_LEAVING && (!seg->swept || segment_may_go(s, seg))) return true;
    }
    return false;
}

bool segment_sweep(struct store *s, unsigned *budget) {
    bool more = false;
    for (uint32_t i = 0; i < s->space.n_segments; i++) {
        struct segment *seg = s->space.segments[i];
        if (!seg || seg->state != SEGMENT_LEAVING) continue;
        if (!seg->swept) segment_sweep_one(s, seg, budget);
        more = more || !seg->swept;
        if (!segment_may_go(s, seg)) continue;
        s->leaving--;
        s->hidden--;
        news_segment(s, STORE_NEWS_SEGMENT_GONE, i);
        await_segment_gone(s, seg);
        space_segment_remove(&s->space, i);
        placement_changed(s);
        effect_segment_gone(s, i);
        if (s->events.segment_gone) s->events.segment_gone(s->events.arg, i);
    }
    return more;
}

/* Who leads sweeps; store_lead begins anew. */
void segment_end_sweeps(struct store *s) {
    for (struct segment *seg = NULL; (seg = space_next(&s->space, seg));) {
        if (seg->sweep) walk_free(s, &seg->sweep);
    }
    s->sweeps = 0;
    s->leaving = 0;
}
