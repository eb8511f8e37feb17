/* Books that follow: records in, objects, segments and quotas out; and what it takes to lead with
 * them.
 *
 * While they follow, blocks of memory segments are not linked with their neighbours and no free
 * space is known (space_detach): records say where things lie, in any order. store_lead sorts the
 * blocks of each segment and finds the space between. */
#include "store/effect.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "store/books.h"
#include "store/effect_codec.h"

/* --- ghosts --- */

static void ghost_count(struct store *s, const struct ghost *g, int sign) {
    for (uint32_t i = 0; i < g->n_blocks; i++) {
        const struct block *b = block_get(&s->space, g->blocks[i]);
        if (g->written) {
            s->written_units += (uint64_t)sign * b->len;
            continue;
        }
        s->ghost_units += (uint64_t)sign * b->len;
        s->space.segments[block_segment(b)]->ghost_units += (uint64_t)sign * b->len;
    }
}

static void ghost_free(struct store *s, struct ghost *g, bool release) {
    wheel_remove(s->wheel[WHEEL_GHOST], &g->wheel);
    LIST_REMOVE(g, link);
    ghost_count(s, g, -1);
    s->ghosts_read -= !g->written;
    for (uint32_t i = 0; i < g->n_blocks && release; i++) space_release(&s->space, g->blocks[i]);
    s->put_bytes -= sizeof(*g) + g->n_blocks * sizeof(block_id);
    s->room_changes++;
    free(g);
}

static void ghost_new(struct store *s, const block_id *blocks, uint32_t n, uint64_t until_ms,
                      bool written) {
    struct ghost *g = xcalloc(1, sizeof(*g) + n * sizeof(block_id));
    g->n_blocks = n;
    g->told_ms = s->told_ms;
    g->written = written;
    s->ghosts_read += !written;
    memcpy(g->blocks, blocks, n * sizeof(block_id));
    if (++s->ghost_age == 0) s->ghost_age = 1;
    for (uint32_t i = 0; i < n; i++)
        block_assign(&s->space, blocks[i], BLOCK_HELD, s->ghost_age, 0);
    ghost_count(s, g, 1);
    LIST_INSERT_HEAD(&s->ghosts, g, link);
    s->put_bytes += sizeof(*g) + n * sizeof(block_id);
    wheel_set(s->wheel[WHEEL_GHOST], &g->wheel, until_ms);
}

void space_hold_written(struct store *s, const block_id *blocks, uint32_t n, uint64_t until_ms) {
    if (n > 0) ghost_new(s, blocks, n, until_ms, true);
}

void ghost_over(struct store *s, struct wheel_node *node) {
    ghost_free(s, CONTAINER_OF(node, struct ghost, wheel), true);
}

bool ghosts_hold(const struct store *s) {
    return s->ghosts_read > 0 || s->now_ms < s->ghost_until_ms;
}

void ghosts_free_all(struct store *s) {
    while (!LIST_EMPTY(&s->ghosts)) ghost_free(s, LIST_FIRST(&s->ghosts), false);
}

void space_part(struct store *s, const block_id *blocks, uint32_t n) {
    if (n == 0) return;
    if (s->following) {
        ghost_new(s, blocks, n, s->now_ms + s->config.max_lease_ms, false);
    } else if (s->now_ms < s->ghost_until_ms) {
        ghost_new(s, blocks, n, s->ghost_until_ms, false);
    } else {
        for (uint32_t i = 0; i < n; i++) space_release(&s->space, blocks[i]);
        s->room_changes++;
    }
}

/* Blocks of that segment: all of them, it is gone and its memory with it, or those that were
 * marked. */
static void ghosts_leave(struct store *s, uint32_t segment, bool all) {
    struct ghost *g, *next;
    LIST_FOREACH_SAFE(g, &s->ghosts, link, next) {
        uint32_t kept = 0, n = g->n_blocks;
        ghost_count(s, g, -1);
        for (uint32_t i = 0; i < n; i++) {
            if (replica_segment(s, g->blocks[i]) == segment &&
                (all || block_get(&s->space, g->blocks[i])->owner == 0))
                space_release(&s->space, g->blocks[i]);
            else
                g->blocks[kept++] = g->blocks[i];
        }
        s->put_bytes -= (n - kept) * sizeof(block_id);
        g->n_blocks = kept;
        ghost_count(s, g, 1);
        if (kept == 0) ghost_free(s, g, false);
    }
}

void ghosts_beyond(struct store *s, uint32_t segment, uint64_t units) {
    const struct ghost *g;
    LIST_FOREACH(g, &s->ghosts, link) {
        for (uint32_t i = 0; i < g->n_blocks; i++) {
            const struct block *b = block_get(&s->space, g->blocks[i]);
            if (block_segment(b) == segment && block_offset(b) + b->len > units)
                block_assign(&s->space, g->blocks[i], BLOCK_HELD, 0, 0);
        }
    }
    ghosts_leave(s, segment, false);
}

/* Versions have 48 bits, and whoever leads gives out later ones: half of them cannot come from
 * others. */
#define VERSION_END (UINT64_C(1) << 47)

/* --- records of objects --- */

struct told { /* of an object, checked */
    uint64_t version, size;
    unsigned flags;
    uint32_t crc;
    struct span key, value, group, crcs;
    enum store_pin pin;
    uint64_t pin_ms, expire;
    uint32_t n_memory, n_far, n_extents;
    uint8_t extents[STORE_REPLICAS_MAX];
    uint32_t segment[STORE_REPLICAS_MAX];
    struct {
        uint64_t offset;
        uint32_t len;
    } extent[PLACES_BLOCKS_MAX];
    struct far far[STORE_REPLICAS_MAX];
};

static const char *read_memory(const struct store *s, struct reader *r, struct told *t) {
    t->n_memory = take_u8(r);
    if (t->n_memory > STORE_REPLICAS_MAX) return "an object has too many replicas";
    for (uint32_t i = 0; i < t->n_memory; i++) {
        unsigned n = take_u8(r);
        t->segment[i] = take_u32(r);
        const struct segment *seg = space_segment(&s->space, t->segment[i]);
        if (r->bad || n == 0 || n > STORE_EXTENTS_MAX)
            return "a replica has no extents, or too many";
        if (!seg || seg->tier != STORE_TIER_MEMORY) return "a replica lies in no memory segment";
        t->extents[i] = (uint8_t)n;
        uint64_t units = 0;
        for (unsigned k = 0; k < n; k++) {
            uint64_t offset = take_u64(r);
            uint32_t len = take_u32(r);
            if (len == 0 || offset > seg->units || len > seg->units - offset)
                return "an extent lies outside of its segment";
            t->extent[t->n_extents].offset = offset;
            t->extent[t->n_extents++].len = len;
            units += len;
        }
        if (units != space_units(t->size))
            return "the extents of a replica are not as long as the object";
    }
    return NULL;
}

static const char *read_places(const struct store *s, struct reader *r, struct told *t) {
    if (t->size == 0 || t->size > STORE_SIZE_MAX) return "an object has an impossible size";
    const char *why = read_memory(s, r, t);
    if (why) return why;
    t->n_far = take_u8(r);
    if (t->n_memory + t->n_far == 0 || t->n_memory + t->n_far > STORE_REPLICAS_MAX)
        return "an object has no replicas, or too many";
    for (uint32_t i = 0; i < t->n_far; i++) {
        t->far[i].segment = take_u32(r);
        t->far[i].offset = take_u64(r);
        const struct segment *seg = space_segment(&s->space, t->far[i].segment);
        if (!seg || seg->tier == STORE_TIER_MEMORY) return "a far replica lies in no far segment";
    }
    return NULL;
}

static const char *read_extra(struct reader *r, struct told *t) {
    unsigned pin = take_u8(r);
    t->pin_ms = take_u64(r);
    t->expire = take_u64(r);
    t->group = take_span(r);
    uint32_t n = take_u32(r);
    if (pin > STORE_PIN_HARD) return "an object has an unknown pin";
    if (t->group.len > STORE_KEY_MAX) return "the name of a group is too long";
    if (!crcs_fit(t->size, n)) return "an object has a wrong number of CRCs";
    t->pin = (enum store_pin)pin;
    t->crcs = span_of(take_bytes(r, (size_t)n * sizeof(uint32_t)), n);
    return NULL;
}

/* NULL: told, and good to take. */
static const char *read_object(const struct store *s, struct reader *r, struct told *t) {
    const char *why = NULL;
    t->version = take_u64(r);
    t->size = take_u64(r);
    t->flags = take_u8(r);
    t->crc = take_u32(r);
    t->key = take_span(r);
    if (t->key.len == 0 || t->key.len > STORE_KEY_MAX) return "a key has no bytes, or too many";
    if (t->version == 0 || t->version >= VERSION_END) return "an object has an impossible version";
    if (t->flags & CODEC_INLINE) {
        t->value = take_span(r);
        if (t->value.len > STORE_INLINE_MAX || t->value.len != t->size)
            return "an inline value is too long";
    } else {
        why = read_places(s, r, t);
    }
    if (!why && (t->flags & CODEC_EXTRA)) why = read_extra(r, t);
    if (!why && (r->bad || r->at != r->end)) why = "the record of an object has a wrong length";
    return why;
}

/* An object that is told of again: its blocks are, too, or their readers are owed some time. */
static void forget_object(struct store *s, struct object *o, bool same) {
    uint32_t n;
    const block_id *blocks = book_blocks(s, o, &n);
    block_id kept[PLACES_BLOCKS_MAX];
    if (n) memcpy(kept, blocks, n * sizeof(kept[0]));
    bool stays = s->following;
    book_remove(s, o, STORE_NEWS_NONE); /* its blocks are a ghost now */
    if (!same || n == 0) return;
    struct ghost *g = LIST_FIRST(&s->ghosts);
    TARN_ASSERT(stays && g->n_blocks == n && g->blocks[0] == kept[0]);
    ghost_free(s, g, true);
}

static tarn_status take_places(struct store *s, struct object *o, const struct told *t) {
    struct places p = {.size = t->size,
                       .domain = quota_domain(s, t->key),
                       .n_memory = t->n_memory,
                       .n_far = t->n_far};
    unsigned k = 0;
    for (uint32_t i = 0; i < t->n_memory; i++) {
        p.extents[i] = t->extents[i];
        for (unsigned n = 0; n < t->extents[i]; n++, k++) {
            block_id b =
                space_detached(&s->space, t->segment[i], t->extent[k].offset, t->extent[k].len);
            if (!b) {
                while (p.n_blocks > 0) space_release(&s->space, p.block[--p.n_blocks]);
                return TARN_ENOMEM;
            }
            block_assign(&s->space, b, BLOCK_OBJECT, record_ref(&s->records, o), p.domain);
            p.block[p.n_blocks++] = b;
        }
    }
    memcpy(p.far, t->far, t->n_far * sizeof(t->far[0]));
    places_first(s, o, &p);
    return TARN_OK;
}

static void take_extra(struct store *s, struct object *o, const struct told *t) {
    if (t->crcs.len) {
        uint32_t *crcs =
            xmemdup(t->crcs.data, t->crcs.len * sizeof(uint32_t)); /* the record may lie anywhere */
        object_set_crcs(s, o, crcs, t->crcs.len);
        free(crcs);
    }
    if (t->group.len) group_join(s, o, group_get(s, t->group));
    if (t->expire) extra_set_expire(s, o, t->expire);
    if (t->pin != STORE_PIN_NONE) extra_set_pin(s, o, t->pin, t->pin_ms);
}

static tarn_status apply_object(struct store *s, struct reader *r, const char **why_p) {
    struct told t = {0};
    static const struct policy_event e;
    if ((*why_p = read_object(s, r, &t)) != NULL) return TARN_EPROTO;
    if (t.version <= s->flush_version) return TARN_OK; /* it went before it came */
    uint64_t hash = store_hash(t.key);
    bool in_books = (t.flags & CODEC_INLINE) != 0;
    struct object *o = record_new(s, t.key, in_books ? &t.value : NULL, t.version, &e);
    if (!o) return TARN_ENOMEM;
    struct object *old = index_find(&s->index, t.key, hash);
    if (old) forget_object(s, old, object_version(old) == t.version);
    tarn_status st = TARN_OK;
    if (in_books)
        o->block = quota_domain(s, t.key);
    else
        st = take_places(s, o, &t);
    if (st != TARN_OK) {
        record_free(&s->records, o, book_record_size(o));
        return st;
    }
    if (t.flags & CODEC_CRC) object_set_crc(o, t.crc);
    book_insert(s, o, hash, &e);
    take_extra(s, o, &t);
    if (t.version >= s->next_version) s->next_version = t.version + 1;
    return TARN_OK;
}

static tarn_status apply_gone(struct store *s, struct reader *r, const char **why_p) {
    uint64_t version = take_u64(r);
    struct span key = take_span(r);
    *why_p = "the record of a removal has a wrong length";
    if (r->bad || r->at != r->end) return TARN_EPROTO;
    struct object *o = index_find(&s->index, key, store_hash(key));
    if (o && object_version(o) == version) forget_object(s, o, false);
    return TARN_OK;
}

static void count_stale(void *arg, struct object *o) {
    struct store *s = arg;
    s->stale += book_stale(s, o);
}

static tarn_status apply_flush(struct store *s, struct reader *r, const char **why_p) {
    uint64_t version = take_u64(r);
    *why_p = "the record of a flush makes no sense";
    if (r->bad || r->at != r->end || version >= VERSION_END) return TARN_EPROTO;
    if (version <= s->flush_version) return TARN_OK;
    s->flush_version = version;
    s->sweep_cursor = s->stale = 0;
    if (version + 1 >= s->next_version) { /* as it is when it comes from who leads */
        s->next_version = version + 1;
        s->stale = s->index.count;
        return TARN_OK;
    }
    index_each(&s->index, count_stale, s);
    return TARN_OK;
}

/* --- records of the rest --- */

/* It is shown in lists. */
static bool is_name(struct span s, size_t max) {
    for (size_t i = 0; i < s.len; i++)
        if (s.data[i] < '!' || s.data[i] > '~') return false;
    return s.len > 0 && s.len <= max;
}

static tarn_status apply_segment(struct store *s, struct reader *r, const char **why_p) {
    char name[sizeof(((struct segment *)0)->name)];
    uint32_t id = take_u32(r), epoch = take_u32(r), host = take_u32(r);
    unsigned tier = take_u8(r), state = take_u8(r);
    uint64_t units = take_u64(r);
    struct span told = take_span(r);
    *why_p = "the record of a segment makes no sense";
    if (r->bad || r->at != r->end || id >= STORE_SEGMENTS_MAX || tier > STORE_TIER_FILE ||
        state > SEGMENT_LEAVING || !is_name(told, sizeof(name) - 1) || units == 0 ||
        units > (UINT64_C(1) << 50))
        return TARN_EPROTO;
    memcpy(name, told.data, told.len);
    name[told.len] = '\0';
    struct segment *seg = space_segment(&s->space, id);
    if (seg) seg->host = host;
    bool resized =
        seg && seg->units != units && tier == STORE_TIER_MEMORY && seg->state != SEGMENT_LEAVING;
    if (seg && (seg->epoch != epoch || seg->tier != tier || (seg->units != units && !resized) ||
                strcmp(seg->name, name) != 0)) {
        *why_p = "a segment comes under the number of another one";
        return TARN_EPROTO;
    }
    uint64_t objects;
    if (resized &&
        (units % PAGE_UNITS != 0 || segment_resize(s, seg, units, true, &objects) != TARN_OK))
        return TARN_EPROTO;
    if (!seg) {
        struct store_segment_config config = {.name = name,
                                              .epoch = epoch,
                                              .tier = (enum store_tier)tier,
                                              .size = units * UNIT,
                                              .host = host};
        tarn_status st = space_segment_add(&s->space, &config, id);
        if (st != TARN_OK) return st;
        seg = space_segment(&s->space, id);
        if (tier != STORE_TIER_MEMORY) far_remember(s);
    }
    s->hidden += segment_hides((enum store_segment_state)state) - segment_hides(seg->state);
    seg->state = (enum store_segment_state)state;
    placement_changed(s);
    return TARN_OK;
}

struct dwellers { /* objects that still have something in a segment */
    struct store *s;
    uint32_t segment;
};

static void forget_dweller(void *arg, struct object *o) {
    struct dwellers *w = arg;
    if (object_lies_in(w->s, o, w->segment)) forget_object(w->s, o, false);
}

/* Who leads has told of every object before; a snapshot that was cut may not have. */
static void segment_empty(struct store *s, const struct segment *seg) {
    struct dwellers w = {s, seg->id};
    while (seg->blocks_in_objects + seg->far_replicas > 0)
        index_each(&s->index, forget_dweller, &w);
    ghosts_leave(s, seg->id, true);
}

static tarn_status apply_segment_gone(struct store *s, struct reader *r, const char **why_p) {
    uint32_t id = take_u32(r);
    *why_p = "the record of a segment's end has a wrong length";
    if (r->bad || r->at != r->end) return TARN_EPROTO;
    struct segment *seg = space_segment(&s->space, id);
    if (!seg) return TARN_OK;
    segment_empty(s, seg);
    s->hidden -= segment_hides(seg->state);
    space_segment_remove(&s->space, id);
    placement_changed(s);
    if (s->events.segment_gone) s->events.segment_gone(s->events.arg, id);
    return TARN_OK;
}

static tarn_status apply_quota(struct store *s, struct reader *r, const char **why_p) {
    uint64_t bytes = take_u64(r);
    struct span prefix = take_span(r);
    *why_p = "the record of a quota makes no sense";
    if (r->bad || r->at != r->end || prefix.len == 0 || prefix.len > STORE_KEY_MAX)
        return TARN_EPROTO;
    if (bytes == 0) {
        store_quota_del(s, prefix);
        return TARN_OK;
    }
    tarn_status st = store_quota_set(s, prefix, bytes);
    if (st == TARN_ELIMIT) {
        /* Those that went wait for the background, which does not run while a file is loaded. */
        unsigned budget = UINT_MAX;
        while (quota_recount(s, &budget)) budget = UINT_MAX;
        st = store_quota_set(s, prefix, bytes);
    }
    return st == TARN_ELIMIT ? TARN_EPROTO : st;
}

static tarn_status apply_superseded(struct store *s, struct reader *r, const char **why_p) {
    uint32_t slot = take_u32(r);
    uint64_t version = take_u64(r);
    *why_p = "the record of a superseded version makes no sense";
    if (r->bad || r->at != r->end || slot >= SUPERSEDED_SLOTS || version >= VERSION_END)
        return TARN_EPROTO;
    far_remember(s);
    if (s->superseded[slot] < version) s->superseded[slot] = version;
    return TARN_OK;
}

static tarn_status apply_leases(struct store *s, struct reader *r, const char **why_p) {
    uint64_t clock_id = take_u64(r), until_ms = take_u64(r);
    *why_p = "the record of leases has a wrong length";
    if (r->bad || r->at != r->end) return TARN_EPROTO;
    s->told_elsewhere = clock_id != s->config.clock_id || clock_id == 0;
    s->told_ms = s->told_elsewhere ? UINT64_MAX : until_ms;
    return TARN_OK;
}

tarn_status store_effect_apply(struct store *s, struct span record, const char **why_p) {
    TARN_ASSERT(s->following);
    if (record.len < 5) {
        *why_p = "a record has no kind";
        return TARN_EPROTO;
    }
    struct reader r = {record.data + 5, record.data + record.len, false};
    switch ((uint8_t)record.data[4]) {
    case EFFECT_OBJECT: return apply_object(s, &r, why_p);
    case EFFECT_GONE: return apply_gone(s, &r, why_p);
    case EFFECT_FLUSH: return apply_flush(s, &r, why_p);
    case EFFECT_SEGMENT: return apply_segment(s, &r, why_p);
    case EFFECT_SEGMENT_GONE: return apply_segment_gone(s, &r, why_p);
    case EFFECT_QUOTA: return apply_quota(s, &r, why_p);
    case EFFECT_SUPERSEDED: return apply_superseded(s, &r, why_p);
    case EFFECT_LEASES: return apply_leases(s, &r, why_p);
    default: *why_p = "a record is of an unknown kind"; return TARN_EPROTO;
    }
}

/* --- leading --- */

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
    forget_object(u->s, o, false);
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
        forget_object(s, o, true);
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
    for (uint32_t i = 0; i < s->space.n_segments; i++) {
        const struct segment *seg = s->space.segments[i];
        if (!seg || seg->tier != STORE_TIER_MEMORY) continue;
        if (changed) keep_used(s, &used[i]);
        while (drop_overlapping(s, i, &used[i], &objects) > 0) {
            keep_used(s, &used[i]);
            changed = true;
        }
        space_attach(&s->space, i, &used[i]);
    }
    space_used_free(&s->space, &used);
    s->space.detached = false;
    return objects;
}

static void hide_segments(struct store *s, uint32_t alive) {
    for (uint32_t i = 0; i < s->space.n_segments; i++) {
        struct segment *seg = s->space.segments[i];
        if (!seg || seg->state == SEGMENT_LEAVING) continue;
        store_segment_set_state(s, i, i == alive ? SEGMENT_UP : SEGMENT_DOWN);
    }
}

/* Memory segments besides that one. */
static bool others_have_memory(const struct store *s, uint32_t alive) {
    for (uint32_t i = 0; i < s->space.n_segments; i++) {
        const struct segment *seg = s->space.segments[i];
        if (seg && seg->tier == STORE_TIER_MEMORY && i != alive) return true;
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

/* What went before a promise that is over by now is nobody's any more. Promises grow, and whoever
 * leads begins with one for what it does not know: the last one covers all. */
static void ghosts_told(struct store *s, uint64_t end_ms) {
    struct ghost *g, *next;
    LIST_FOREACH_SAFE(g, &s->ghosts, link, next) {
        uint64_t until_ms = min_u64(g->told_ms, end_ms);
        if (until_ms <= s->now_ms)
            ghost_free(s, g, true);
        else
            wheel_set(s->wheel[WHEEL_GHOST], &g->wheel, until_ms);
    }
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
    for (uint32_t i = 0; i < s->space.n_segments; i++) {
        struct segment *seg = s->space.segments[i];
        if (!seg || seg->state != SEGMENT_LEAVING) continue;
        s->leaving++;
        seg->swept = false;
    }
    hide_segments(s, options->alive);
    stats.objects = s->index.count;
    *stats_p = stats;
}
