/* What is known of an object. */
#include "store/books.h"

uint64_t store_hash(struct span key) {
    return hash_bytes(key.data, key.len);
}

struct span store_object_key(const struct object *o) {
    return span_of(o->data, object_key_len(o));
}

uint64_t store_object_version(const struct object *o) {
    return object_version(o);
}

uint32_t store_object_depth(const struct object *o) {
    return object_depth(o);
}

uint32_t store_object_request(const struct store *s, const struct object *o) {
    return book_request(s, o);
}

bool store_object_crc(const struct object *o, uint32_t *crc_p) {
    if (!(o->bits & OBJECT_CRC)) return false;
    *crc_p = o->crc;
    return true;
}

void store_object_set_crc(struct store *s, struct object *o, uint32_t crc) {
    if (o->bits & OBJECT_CRC) return;
    object_set_crc(o, crc);
    effect_object(s, o);
}

bool store_object_inline(const struct object *o, struct span *value_p) {
    if (!(o->bits & OBJECT_INLINE)) return false;
    *value_p = span_of(o->data + object_key_len(o), object_slack(o));
    return true;
}

size_t book_record_size(const struct object *o) {
    return sizeof(*o) + object_key_len(o) + (o->bits & OBJECT_INLINE ? object_slack(o) : 0);
}

const block_id *book_blocks(const struct store *s, const struct object *o, uint32_t *n_p) {
    if (o->bits & OBJECT_INLINE) {
        *n_p = 0;
        return NULL;
    }
    if (o->bits & OBJECT_PLACES) return places_blocks(s, o, n_p);
    *n_p = 1;
    return &o->block;
}

uint64_t blocks_units(const struct store *s, const block_id *blocks, uint32_t n) {
    uint64_t units = 0;
    for (uint32_t i = 0; i < n; i++) units += block_get(&s->space, blocks[i])->len;
    return units;
}

uint64_t book_units(const struct store *s, const struct object *o) {
    uint32_t n;
    const block_id *blocks = book_blocks(s, o, &n);
    return blocks_units(s, blocks, n);
}

uint64_t store_object_size(const struct store *s, const struct object *o) {
    if (o->bits & OBJECT_INLINE) return object_slack(o);
    if (o->bits & OBJECT_PLACES) return places_size(s, o);
    return (uint64_t)block_get(&s->space, o->block)->len * UNIT - object_slack(o);
}

uint64_t book_charge(const struct store *s, const struct object *o) {
    if (!(o->bits & OBJECT_PLACES)) return store_object_size(s, o);
    struct places p;
    places_read(s, o, &p);
    return p.size * p.n_memory;
}

void book_count_evictable(struct store *s, const struct object *o, int sign) {
    bool awaits = (o->bits & OBJECT_AWAITS) != 0;
    if (!awaits && book_protected(s, o)) return;
    uint32_t n;
    const block_id *blocks = book_blocks(s, o, &n);
    for (uint32_t i = 0; i < n; i++) {
        const struct block *b = block_get(&s->space, blocks[i]);
        struct segment *seg = s->space.segments[block_segment(b)];
        uint64_t units = (uint64_t)sign * b->len;
        if (awaits)
            seg->awaiting_units += units;
        else
            space_evictable_add(&s->space, seg, units);
        *(awaits ? &s->awaiting_units : &s->evictable_units) += units;
    }
}

const uint32_t *store_object_crcs(const struct store *s, const struct object *o, size_t *n_p) {
    const struct extra *x = extra_find(s, o);
    if (!x || !x->n_crcs) return NULL;
    *n_p = x->n_crcs;
    return x->crcs;
}

uint64_t store_object_expire(const struct store *s, const struct object *o) {
    const struct extra *x = extra_find(s, o);
    return x ? x->expire : 0;
}

uint64_t store_object_idle_ms(const struct store *s, const struct object *o) {
    return (uint64_t)(((uint32_t)(s->now_ms / 1000) - object_atime(o)) & 0xffffff) * 1000;
}

unsigned store_object_freq(const struct store *s, const struct object *o) {
    return s->policy->freq ? s->policy->freq(&s->domains[0].policy[0], o) : 0;
}

bool store_policy_counts(const struct store *s) {
    return s->policy->freq != NULL;
}

uint64_t store_object_memory(const struct store *s, const struct object *o) {
    uint32_t n;
    book_blocks(s, o, &n);
    uint64_t bytes = record_round(book_record_size(o)) + sizeof(struct index_bucket) / INDEX_LOAD +
                     n * sizeof(struct block);
    const struct extra *x = extra_find(s, o);
    if (x) bytes += sizeof(*x) + x->n_crcs * sizeof(uint32_t);
    if (o->bits & OBJECT_PLACES) bytes += places_memory(s, o);
    return bytes;
}

unsigned store_object_far_hits(const struct object *o) {
    return book_far_only(o) ? object_freq(o) : 0;
}

unsigned store_object_refs(const struct store *s, const struct object *o) {
    return o->bits & OBJECT_REFS ? refs_find(s, object_version(o))->count : 0;
}

unsigned book_domain(const struct store *s, const struct object *o) {
    if (o->bits & OBJECT_INLINE) return o->block;
    return o->block ? block_domain(block_get(&s->space, o->block)) : places_domain(s, o);
}
