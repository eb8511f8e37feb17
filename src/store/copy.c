/* Further replicas of objects that are there: copies for safety, for hot objects, out of segments
 * that are drained, and from disk back to memory. The books make the room and attach what somebody
 * else has filled. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "store/books.h"

static struct object *copied_object(const struct store *s, struct span key, uint64_t version) {
    struct object *o = store_find_version(s, key, version);
    return o && !(o->bits & OBJECT_INLINE) ? o : NULL;
}

static void store_copy_free(struct store *s, struct store_copy *c) {
    room_abandon(s, &c->want);
    LIST_REMOVE(c, link);
    s->put_bytes -= sizeof(*c) + c->key_len;
    s->copies_open--;
    free(c);
}

void copy_free_all(struct store *s) {
    while (!LIST_EMPTY(&s->copies)) store_copy_free(s, LIST_FIRST(&s->copies));
}

/* The hosts that have it in memory already, on segments that count: a replica on a segment that
 * leaves is as good as gone. */
static void take_hosts(const struct store *s, const struct object *o, uint32_t from,
                       struct room_want *w) {
    struct places p;
    places_read(s, o, &p);
    const block_id *b = p.block;
    for (uint32_t i = 0; i < p.n_memory; b += p.extents[i++]) {
        const struct segment *seg = s->space.segments[replica_segment(s, *b)];
        if (seg->id == from || seg->state == SEGMENT_LEAVING) continue;
        w->taken[w->n_taken++] = seg->host;
    }
}

static tarn_status copy_check(const struct store *s, const struct object *o,
                              const struct store_copy_options *options, const struct room_want *w) {
    struct places p;
    places_read(s, o, &p);
    if (p.n_memory + p.n_far >= STORE_REPLICAS_MAX) return TARN_EEXISTS;
    if (options->segment == STORE_SEGMENT_ANY) return TARN_OK;
    const struct segment *seg = space_segment(&s->space, options->segment);
    if (!seg || seg->tier != STORE_TIER_MEMORY || seg->state != SEGMENT_UP) return TARN_ENOSEGMENT;
    if (seg->id == options->from) return TARN_EEXISTS;
    return room_may_use(w, seg) ? TARN_OK : TARN_EEXISTS;
}

tarn_status store_copy_start(struct store *s, struct span key, uint64_t version,
                             const struct store_copy_options *options, unsigned *budget,
                             struct store_copy **copy_p) {
    struct object *o = copied_object(s, key, version);
    if (!o) return TARN_ENOTFOUND;
    struct room_want w = {.units = space_units(store_object_size(s, o)),
                          .only = options->segment,
                          .host = options->host,
                          .never = options->from,
                          .free_only = !options->evict,
                          .ahead_ms = options->ahead_ms};
    if (options->by_worth && book_far_only(o)) w.worth = fmaxf(book_far_worth(s, o), 0);
    take_hosts(s, o, options->from, &w);
    tarn_status st = copy_check(s, o, options, &w);
    if (st != TARN_OK) return st;
    struct store_copy *c = xcalloc(1, sizeof(*c) + key.len);
    c->want = w;
    c->version = version;
    c->from = options->from;
    c->key_len = (uint32_t)key.len;
    memcpy(c->key, key.data, key.len);
    LIST_INSERT_HEAD(&s->copies, c, link);
    s->put_bytes += sizeof(*c) + c->key_len;
    s->copies_open++;
    s->stat.copies_started++;
    st = store_copy_continue(s, c, budget);
    if (st == TARN_OK || st == TARN_EAGAIN) *copy_p = c;
    return st;
}

tarn_status store_copy_continue(struct store *s, struct store_copy *c, unsigned *budget) {
    TARN_ASSERT(!c->open);
    tarn_status st = TARN_ENOTFOUND;
    if (copied_object(s, span_of(c->key, c->key_len), c->version))
        st = room_make(s, &c->want, budget);
    if (st == TARN_EAGAIN) return st;
    if (st == TARN_OK) {
        c->open = true;
        return st;
    }
    s->stat.copies_failed++;
    store_copy_free(s, c);
    return st;
}

void store_copy_layout(const struct store *s, const struct store_copy *c,
                       struct store_replica *replica_p) {
    TARN_ASSERT(c->open);
    struct object *o = copied_object(s, span_of(c->key, c->key_len), c->version);
    struct spot spot = {.n_blocks = c->want.n_blocks};
    memcpy(spot.blocks, c->want.blocks, sizeof(spot.blocks));
    uint64_t units = blocks_units(s, spot.blocks, spot.n_blocks);
    places_fill_spot(s, &spot, o ? store_object_size(s, o) : units * UNIT, replica_p);
}

/* Another copy may have come to that host meanwhile. */
static bool still_wanted(const struct store *s, const struct object *o, const struct store_copy *c,
                         const struct segment *seg, const struct places *p) {
    const block_id *b = p->block;
    for (uint32_t i = 0; i < p->n_memory; b += p->extents[i++]) {
        const struct segment *other = s->space.segments[replica_segment(s, *b)];
        if (other->host == seg->host && other->id != c->from && other->state != SEGMENT_LEAVING)
            return false;
        if (other->id == seg->id) return false;
    }
    return p->n_memory + p->n_far < STORE_REPLICAS_MAX;
}

static tarn_status copy_attach(struct store *s, struct store_copy *c) {
    struct object *o = copied_object(s, span_of(c->key, c->key_len), c->version);
    if (!o) return TARN_ENOTFOUND;
    const struct segment *seg = s->space.segments[replica_segment(s, c->want.blocks[0])];
    if (seg->state == SEGMENT_LEAVING) return TARN_ENOSEGMENT;
    struct places p;
    places_read(s, o, &p);
    if (!still_wanted(s, o, c, seg, &p)) return TARN_EEXISTS;
    for (uint32_t i = 0; i < c->want.n_blocks; i++) {
        block_assign(&s->space, c->want.blocks[i], BLOCK_OBJECT, record_ref(&s->records, o),
                     p.domain);
        p.block[p.n_blocks++] = c->want.blocks[i];
    }
    p.extents[p.n_memory++] = (uint8_t)c->want.n_blocks;
    c->want.n_blocks = 0;
    places_write(s, o, &p);
    return TARN_OK;
}

tarn_status store_copy_end(struct store *s, struct store_copy **copy_p, bool ok) {
    struct store_copy *c = *copy_p;
    *copy_p = NULL;
    tarn_status st = TARN_OK;
    if (ok) {
        TARN_ASSERT(c->open);
        st = copy_attach(s, c);
    }
    if (ok && st == TARN_OK && c->want.ahead_ms > 0)
        extra_brought(s, copied_object(s, span_of(c->key, c->key_len), c->version));
    if (ok && st == TARN_OK)
        s->stat.copies_ended++;
    else
        s->stat.copies_failed++;
    store_copy_free(s, c);
    return st;
}
