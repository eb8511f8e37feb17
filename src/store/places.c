/* Where an object lies when that is not simply one block: several extents, several replicas, copies
 * on disks. One packed record beside the object, so that all the others pay nothing; OBJECT_PLACES
 * says whether to look.
 *
 *                PUTEND, one extent                      PUTEND, replicas or extents;
 *                                                        far copy; further replica
 *   (nothing) ──────────────────> object.block only <────> packed places
 *                                                            │ memory goes, a far replica stays
 *                                                            v
 *                                          far only: object.block 0, in domain.far
 *                                          instead of a policy */
#include <stdlib.h>
#include <string.h>
#include "store/books.h"

struct packed {
    struct htab_node node; /* by object reference */
    uint64_t size;
    object_ref object;
    uint8_t n_memory, n_far, n_blocks, domain;
    uint8_t extents[STORE_REPLICAS_MAX];
    struct far far[]; /* n_far; behind them n_blocks block numbers */
};

static bool packed_is_of(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, struct packed, node)->object == *(const object_ref *)key;
}

static struct packed *packed_find(const struct store *s, const struct object *o) {
    object_ref ref = record_ref(&s->records, o);
    struct htab_node *n = htab_find(&s->places, hash_u64(ref), packed_is_of, &ref);
    TARN_ASSERT(n != NULL);
    return CONTAINER_OF(n, struct packed, node);
}

static block_id *packed_blocks(struct packed *x) {
    return (block_id *)(void *)(x->far + x->n_far);
}

static size_t packed_size(unsigned n_far, unsigned n_blocks) {
    return sizeof(struct packed) + n_far * sizeof(struct far) + n_blocks * sizeof(block_id);
}

uint64_t places_size(const struct store *s, const struct object *o) {
    return packed_find(s, o)->size;
}

uint64_t places_memory(const struct store *s, const struct object *o) {
    const struct packed *x = packed_find(s, o);
    return packed_size(x->n_far, x->n_blocks);
}

unsigned places_domain(const struct store *s, const struct object *o) {
    return packed_find(s, o)->domain;
}

void places_set_domain(struct store *s, struct object *o, unsigned domain) {
    packed_find(s, o)->domain = (uint8_t)domain;
}

const block_id *places_blocks(const struct store *s, const struct object *o, uint32_t *n_p) {
    struct packed *x = packed_find(s, o);
    *n_p = x->n_blocks;
    return packed_blocks(x);
}

void places_read(const struct store *s, const struct object *o, struct places *p) {
    TARN_ASSERT(!(o->bits & OBJECT_INLINE));
    p->size = store_object_size(s, o);
    p->domain = book_domain(s, o);
    if (!(o->bits & OBJECT_PLACES)) {
        p->n_memory = p->n_blocks = p->extents[0] = 1;
        p->block[0] = o->block;
        p->n_far = 0;
        return;
    }
    struct packed *x = packed_find(s, o);
    p->n_memory = x->n_memory;
    p->n_far = x->n_far;
    p->n_blocks = x->n_blocks;
    memcpy(p->extents, x->extents, sizeof(p->extents));
    memcpy(p->far, x->far, x->n_far * sizeof(struct far));
    memcpy(p->block, packed_blocks(x), x->n_blocks * sizeof(block_id));
}

static void count_far(struct store *s, const struct places *p, int sign) {
    for (uint32_t i = 0; i < p->n_far; i++) {
        struct segment *seg = s->space.segments[p->far[i].segment];
        seg->far_replicas += (uint64_t)sign;
        seg->far_bytes += (uint64_t)sign * p->size;
    }
    s->far_replicas += (uint64_t)sign * p->n_far;
}

static void places_unpack(struct store *s, struct object *o) {
    if (!(o->bits & OBJECT_PLACES)) return;
    struct packed *x = packed_find(s, o);
    htab_remove(&s->places, &x->node);
    s->places_bytes -= packed_size(x->n_far, x->n_blocks);
    free(x);
    o->bits &= ~(uint32_t)OBJECT_PLACES;
}

static void places_pack(struct store *s, struct object *o, const struct places *p) {
    if (p->n_memory == 1 && p->n_blocks == 1 && p->n_far == 0) return;
    size_t size = packed_size(p->n_far, p->n_blocks);
    struct packed *x = xcalloc(1, size);
    x->size = p->size;
    x->object = record_ref(&s->records, o);
    x->n_memory = (uint8_t)p->n_memory;
    x->n_far = (uint8_t)p->n_far;
    x->n_blocks = (uint8_t)p->n_blocks;
    x->domain = (uint8_t)p->domain;
    memcpy(x->extents, p->extents, sizeof(x->extents));
    memcpy(x->far, p->far, p->n_far * sizeof(struct far));
    memcpy(packed_blocks(x), p->block, p->n_blocks * sizeof(block_id));
    htab_insert(&s->places, &x->node, hash_u64(x->object));
    s->places_bytes += size;
    o->bits |= OBJECT_PLACES;
}

static uint64_t first_replica_units(const struct store *s, const struct places *p) {
    uint64_t units = 0;
    for (uint32_t i = 0; i < p->extents[0]; i++) units += block_get(&s->space, p->block[i])->len;
    return units;
}

/* An object enters or leaves the ranks of those without memory. */
static void change_ranks(struct store *s, struct object *o, bool far_only) {
    book_unlink(s, o);
    s->far_objects += far_only ? 1 : (uint64_t)-1;
    if (far_only) extra_in_vain(s, o);
    object_set_freq(o, 0);
    o->bits &= ~(uint32_t)OBJECT_Q1;
}

void places_write(struct store *s, struct object *o, const struct places *p) {
    struct places old;
    places_read(s, o, &old);
    struct domain *d = &s->domains[old.domain];
    bool was_far = book_far_only(o), is_far = p->n_memory == 0;
    TARN_ASSERT(p->n_memory + p->n_far > 0);
    if ((o->bits & OBJECT_AWAITS) && p->n_far > 0) await_end(s, o);
    book_count_evictable(s, o, -1);
    count_far(s, &old, -1);
    d->bytes -= book_charge(s, o);
    if (was_far != is_far) change_ranks(s, o, is_far);
    places_unpack(s, o);
    places_pack(s, o, p);
    o->block = is_far ? 0 : p->block[0];
    object_set_slack(o, is_far ? 0 : (uint32_t)(first_replica_units(s, p) * UNIT - p->size));
    d->bytes += book_charge(s, o);
    count_far(s, p, 1);
    book_count_evictable(s, o, 1);
    s->room_changes++;
    if (was_far != is_far) {
        struct policy_event e = order_event(s, o);
        book_enter_order(s, o, &e);
    }
    effect_object(s, o);
    news_places(s, o, &old, p);
}

void places_first(struct store *s, struct object *o, const struct places *p) {
    places_pack(s, o, p);
    o->block = p->n_memory ? p->block[0] : 0;
    if (p->n_memory) object_set_slack(o, (uint32_t)(first_replica_units(s, p) * UNIT - p->size));
    if (p->n_memory == 0) s->far_objects++;
    count_far(s, p, 1);
}

void places_drop(struct store *s, struct object *o) {
    if (!(o->bits & OBJECT_PLACES)) return;
    struct places p;
    places_read(s, o, &p);
    count_far(s, &p, -1);
    if (p.n_memory == 0) s->far_objects--;
    places_unpack(s, o);
}

void places_drop_memory(struct places *p, uint32_t replica) {
    uint32_t first = 0;
    for (uint32_t i = 0; i < replica; i++) first += p->extents[i];
    uint32_t n = p->extents[replica];
    memmove(&p->block[first], &p->block[first + n], (p->n_blocks - first - n) * sizeof(block_id));
    memmove(&p->extents[replica], &p->extents[replica + 1], p->n_memory - replica - 1);
    p->n_memory--;
    p->extents[p->n_memory] = 0;
    p->n_blocks -= n;
}

void places_drop_far(struct places *p, uint32_t index) {
    memmove(&p->far[index], &p->far[index + 1], (p->n_far - index - 1) * sizeof(struct far));
    p->n_far--;
}

/* --- what others see of it --- */

/* Files lie on a file system of their own: every client reads them, whether the node that wrote
 * them is there or not. */
bool segment_readable(const struct segment *seg) {
    switch (seg->state) {
    case SEGMENT_UP:
    case SEGMENT_READONLY: return true;
    case SEGMENT_DOWN: return seg->tier == STORE_TIER_FILE;
    case SEGMENT_LEAVING: break;
    }
    return false;
}

bool object_lies_in(const struct store *s, const struct object *o, uint32_t segment) {
    uint32_t n;
    const block_id *blocks = book_blocks(s, o, &n);
    for (uint32_t i = 0; i < n; i++)
        if (replica_segment(s, blocks[i]) == segment) return true;
    const struct packed *x = o->bits & OBJECT_PLACES ? packed_find(s, o) : NULL;
    for (unsigned i = 0; x && i < x->n_far; i++)
        if (x->far[i].segment == segment) return true;
    return false;
}

bool object_has_far(const struct store *s, const struct object *o) {
    return (o->bits & OBJECT_PLACES) && packed_find(s, o)->n_far > 0;
}

bool book_readable(const struct store *s, const struct object *o) {
    if (o->bits & OBJECT_INLINE) return true;
    if (!(o->bits & OBJECT_PLACES))
        return segment_readable(s->space.segments[replica_segment(s, o->block)]);
    struct packed *x = packed_find(s, o);
    const block_id *b = packed_blocks(x);
    for (unsigned i = 0; i < x->n_memory; b += x->extents[i++])
        if (segment_readable(s->space.segments[replica_segment(s, *b)])) return true;
    for (unsigned i = 0; i < x->n_far; i++)
        if (segment_readable(s->space.segments[x->far[i].segment])) return true;
    return false;
}

bool store_object_in_memory(const struct store *s, const struct object *o) {
    if (o->bits & OBJECT_INLINE) return true;
    if (book_far_only(o)) return false;
    if (!s->hidden) return true;
    struct places p;
    places_read(s, o, &p);
    const block_id *b = p.block;
    for (unsigned i = 0; i < p.n_memory; b += p.extents[i++])
        if (segment_readable(s->space.segments[replica_segment(s, *b)])) return true;
    return false;
}

static void fill_memory(const struct store *s, const block_id *blocks, uint32_t n, uint64_t size,
                        struct store_replica *r) {
    r->tier = STORE_TIER_MEMORY;
    r->extents = n;
    for (uint32_t i = 0; i < n; i++) {
        const struct block *b = block_get(&s->space, blocks[i]);
        uint64_t len = min_u64((uint64_t)b->len * UNIT, size);
        r->extent[i] =
            (struct store_extent){block_segment(b), s->space.segments[block_segment(b)]->epoch,
                                  block_offset(b) * UNIT, len};
        size -= len;
    }
}

static void places_layout(const struct store *s, const struct object *o, bool all,
                          struct store_layout *out) {
    out->replicas = 0;
    if (o->bits & OBJECT_INLINE) {
        out->replicas = 1;
        out->replica[0].tier = STORE_TIER_MEMORY;
        out->replica[0].extents = 0;
        return;
    }
    if (LIKELY(!(o->bits & OBJECT_PLACES))) {
        uint64_t size = (uint64_t)block_get(&s->space, o->block)->len * UNIT - object_slack(o);
        if (!all && s->hidden && !segment_readable(s->space.segments[replica_segment(s, o->block)]))
            return;
        fill_memory(s, &o->block, 1, size, &out->replica[out->replicas++]);
        return;
    }
    struct packed *x = packed_find(s, o);
    const block_id *b = packed_blocks(x);
    for (unsigned i = 0; i < x->n_memory; b += x->extents[i++])
        if (all || segment_readable(s->space.segments[replica_segment(s, *b)]))
            fill_memory(s, b, x->extents[i], x->size, &out->replica[out->replicas++]);
    for (unsigned i = 0; i < x->n_far; i++) {
        const struct segment *seg = s->space.segments[x->far[i].segment];
        if (!all && !segment_readable(seg)) continue;
        struct store_replica *r = &out->replica[out->replicas++];
        r->tier = seg->tier;
        r->extents = 1;
        r->extent[0] = (struct store_extent){seg->id, seg->epoch, x->far[i].offset, x->size};
    }
}

void store_object_layout(const struct store *s, const struct object *o,
                         struct store_layout *layout_p) {
    places_layout(s, o, false, layout_p);
}

void store_object_replicas(const struct store *s, const struct object *o,
                           struct store_layout *layout_p) {
    places_layout(s, o, true, layout_p);
}

void places_fill_spot(const struct store *s, const struct spot *spot, uint64_t size,
                      struct store_replica *r) {
    fill_memory(s, spot->blocks, spot->n_blocks, size, r);
}
