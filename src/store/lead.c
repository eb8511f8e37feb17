/* From following to leading, and back. Who begins to lead drops what nobody can vouch for, finds
 * the free space between the extents, and waits for the leases of the one before. */
#include <string.h>
#include "store/books.h"

void store_follow(struct store *s) {
    TARN_ASSERT(s->index.count == 0 && store_segment_count(s) == 0 && !s->following);
    s->following = true;
    s->space.detached = true;
    s->told_ms = UINT64_MAX;
}

void store_step_down(struct store *s) {
    TARN_ASSERT(!s->following && LIST_EMPTY(&s->walks) && LIST_EMPTY(&s->copies) && !s->listening);
    s->following = true; /* what was leased and is gone is a ghost */
    s->told_ms = UINT64_MAX;
    lease_end_all(s);
    put_end_all(s); /* who leads next has their writers cut off before it gives out space */
    await_end_all(s);
    segment_end_sweeps(s);
    s->evict_left = 0;
    space_detach(&s->space);
}

bool store_object_suspect(const struct store *s, const struct object *o) {
    return object_version(o) < s->suspect_below;
}

void store_trust(struct store *s) {
    s->suspect_below = 0;
}

uint64_t store_suspect_below(const struct store *s) {
    return s->suspect_below;
}

struct unverifiable { /* objects that cannot stay */
    struct store *s;
    uint64_t below, dropped; /* below: of versions */
};

static void drop_if_unverifiable(void *arg, struct object *o) {
    struct unverifiable *u = arg;
    if (object_version(o) >= u->below || (o->bits & (OBJECT_CRC | OBJECT_INLINE))) return;
    book_forget(u->s, o, false);
    u->dropped++;
}

static uint64_t drop_unverifiable(struct store *s, uint64_t below) {
    uint64_t cursor = 0;
    struct unverifiable u = {.s = s, .below = below};
    do {
        cursor = index_scan(&s->index, cursor, drop_if_unverifiable, &u);
        store_settle(s);
    } while (cursor);
    return u.dropped;
}

/* One of two blocks that overlap, at least one of them a ghost's: space that was put to use again
 * is nobody's quarantine any more, neither under an object nor under a later ghost. All other
 * ghosts stay. */
static void ghost_yields(struct store *s, block_id a, block_id b) {
    const struct block *x = block_get(&s->space, a), *y = block_get(&s->space, b);
    bool first =
        block_state(y) == BLOCK_OBJECT || (block_state(x) != BLOCK_OBJECT && x->owner < y->owner);
    block_assign(&s->space, first ? a : b, BLOCK_HELD, 0, 0);
}

static bool is_marked(const struct block *b) {
    return block_state(b) != BLOCK_OBJECT && b->owner == 0;
}

/* Objects that claim what another has claimed, the later one; ghosts give way. Not 0: look again at
 * what is left. */
static unsigned drop_overlapping(struct store *s, uint32_t segment, const struct used_blocks *used,
                                 uint64_t *objects_p) {
    object_ref found[256];
    unsigned n = 0;
    bool ghosts = false;
    for (size_t i = 1; i < used->n && n < ARRAY_LEN(found); i++) {
        const struct used_block *x = &used->block[i - 1], *y = &used->block[i];
        if (x->offset + x->len <= y->offset) continue;
        const struct block *a = block_get(&s->space, x->id), *b = block_get(&s->space, y->id);
        if (is_marked(a)) continue;
        if (block_state(a) == BLOCK_OBJECT && block_state(b) == BLOCK_OBJECT) {
            found[n++] = b->owner, i++;
        } else {
            ghost_yields(s, x->id, y->id);
            ghosts = true;
        }
    }
    if (ghosts) ghosts_leave(s, segment, false);
    for (unsigned i = 0; i < n; i++) {
        struct object *o = record_get(&s->records, found[i]);
        bool twice = false;
        for (unsigned k = 0; k < i; k++) twice |= found[k] == found[i];
        if (twice) continue;
        book_forget(s, o, true);
        ++*objects_p;
    }
    return n + ghosts;
}

/* What went in the meantime is free, though its number may be that of a gap in another segment by
 * now. */
static void keep_used(const struct store *s, struct used_blocks *used) {
    size_t n = 0;
    for (size_t i = 0; i < used->n; i++) {
        if (block_state(block_get(&s->space, used->block[i].id)) != BLOCK_FREE)
            used->block[n++] = used->block[i];
    }
    used->n = n;
}

/* The space between the blocks of memory segments is free. The number of objects that lay in
 * others' places. */
static uint64_t find_free_space(struct store *s) {
    struct used_blocks *used = space_used(&s->space);
    uint64_t objects = 0;
    bool changed = false; /* since: objects have blocks in several segments */
    for (const struct segment *seg = NULL; (seg = space_next(&s->space, seg));) {
        if (seg->tier != STORE_TIER_MEMORY) continue;
        if (changed) keep_used(s, &used[seg->id]);
        while (drop_overlapping(s, seg->id, &used[seg->id], &objects) > 0) {
            keep_used(s, &used[seg->id]);
            changed = true;
        }
        space_attach(&s->space, seg->id, &used[seg->id]);
    }
    space_used_free(&s->space, &used);
    s->space.detached = false;
    return objects;
}

static void hide_segments(struct store *s, uint32_t alive) {
    for (struct segment *seg = NULL; (seg = space_next(&s->space, seg));) {
        if (seg->state == SEGMENT_LEAVING) continue;
        store_segment_set_state(s, seg->id, seg->id == alive ? SEGMENT_UP : SEGMENT_DOWN);
    }
}

/* Memory segments besides that one. */
static bool others_have_memory(const struct store *s, uint32_t alive) {
    for (const struct segment *seg = NULL; (seg = space_next(&s->space, seg));) {
        if (seg->tier == STORE_TIER_MEMORY && seg->id != alive) return true;
    }
    return false;
}

/* Until when leases of the one before may be in force. */
static uint64_t former_leases_end(const struct store *s, const struct store_lead_options *options) {
    uint64_t longest = s->now_ms + s->config.max_lease_ms;
    if (!options->leases_told) return longest;
    if (!s->told_elsewhere) return s->told_ms == UINT64_MAX ? longest : s->told_ms;
    return options->alive == STORE_SEGMENT_ANY || others_have_memory(s, options->alive) ? longest
                                                                                        : s->now_ms;
}

void store_lead(struct store *s, const struct store_lead_options *options,
                struct store_lead_stats *stats_p) {
    TARN_ASSERT(s->following);
    struct store_lead_stats stats = {0};
    s->leading = true; /* who follows us has these objects, too */
    uint64_t former_ms = former_leases_end(s, options);
    if (options->leases_told) ghosts_told(s, former_ms);
    uint64_t suspect_below = options->handed_over ? options->suspect_below : UINT64_MAX;
    if (!options->keep_unverifiable) stats.unverifiable = drop_unverifiable(s, suspect_below);
    stats.overlapping = find_free_space(s);
    s->following = s->leading = false;
    s->next_version = max_u64(s->next_version, options->first_version);
    s->config.first_version = options->first_version;
    s->suspect_below = min_u64(suspect_below, s->next_version);
    s->ghost_until_ms = former_ms;
    s->lease_promise_ms = max_u64(former_ms, s->now_ms);
    effect_leases(s);
    s->room_changes++;
    for (struct segment *seg = NULL; (seg = space_next(&s->space, seg));) {
        if (seg->state != SEGMENT_LEAVING) continue;
        s->leaving++;
        seg->swept = false;
    }
    hide_segments(s, options->alive);
    stats.objects = s->index.count;
    *stats_p = stats;
}
