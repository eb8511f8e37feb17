/* Figures, and the check that everything adds up. */
#include <stdlib.h>
#include <string.h>
#include "store/books.h"

static uint64_t tables_memory(const struct store *s) {
    return index_memory(&s->index) + htab_memory(&s->extras) + htab_memory(&s->groups) +
           htab_memory(&s->refs) + htab_memory(&s->leases) + htab_memory(&s->sessions) +
           htab_memory(&s->puts) + htab_memory(&s->zombies);
}

static uint64_t lease_memory(const struct store *s) {
    return s->lease_pool * sizeof(struct lease) + s->refs.count * sizeof(struct refs) +
           s->sessions.count * sizeof(struct session);
}

static uint64_t policy_memory(const struct store *s) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < s->n_domains; i++)
        for (int inl = 0; s->domains[i].used && inl < 2; inl++)
            bytes += s->domains[i].policy[inl].ops->memory(&s->domains[i].policy[inl]);
    return bytes;
}

uint64_t store_memory(const struct store *s) {
    return sizeof(*s) + records_memory(&s->records) + space_memory(&s->space) + tables_memory(s) +
           lease_memory(s) + policy_memory(s) + s->extra_bytes + s->put_bytes;
}

uint64_t store_count(const struct store *s) {
    return s->index.count - s->stale;
}

void store_get_stats(const struct store *s, struct store_stats *st) {
    *st = s->stat;
    st->objects = store_count(s);
    st->inline_objects = s->inline_count;
    st->puts_open = s->puts.count;
    st->puts_zombie = s->zombies.count;
    st->leases = s->leases.count;
    st->leased_objects = s->refs.count;
    st->holds = s->hold_count;
    st->expires = s->expires;
    st->soft_pins = s->soft_pins;
    st->hard_pins = s->hard_pins;
    st->groups = s->groups.count;
    st->sweep_objects = s->stale;
    st->migrating_objects = s->legacy_count;
    for (uint32_t i = 0; i < s->space.n_segments; i++) {
        const struct segment *seg = s->space.segments[i];
        st->pool_size += seg->units * UNIT;
        st->pool_free += seg->free_units * UNIT;
        st->largest_free = max_u64(st->largest_free, space_largest((struct space *)&s->space, i) * UNIT);
    }
    st->pool_used = st->pool_size - st->pool_free;
    st->pool_quarantined = s->quarantine_units * UNIT;
    st->pool_zombie = s->zombie_units * UNIT;
    st->pool_evictable = s->evictable_units * UNIT;
    st->memory_records = records_memory(&s->records);
    st->memory_blocks = space_memory(&s->space);
    st->memory_tables = tables_memory(s);
    st->memory_leases = lease_memory(s);
    st->memory_extras = s->extra_bytes + s->put_bytes + policy_memory(s);
    st->memory = store_memory(s);
}

void store_stats_reset(struct store *s) {
    memset(&s->stat, 0, sizeof(s->stat));
}

/* --- check ---------------------------------------------------------------------------------------------------------------- */

struct check {
    const struct store *s;
    uint64_t objects, evictable, inl, stale, blocks_units;
    uint64_t bytes[DOMAINS], count[DOMAINS], linked;
};

static void check_object(void *arg, struct object *o) {
    struct check *c = arg;
    const struct store *s = c->s;
    unsigned d = book_domain(s, o);
    TARN_ASSERT(s->domains[d].used && !(o->bits & OBJECT_VICTIM));
    c->objects++;
    c->bytes[d] += store_object_size(s, o);
    c->count[d]++;
    c->inl += (o->bits & OBJECT_INLINE) != 0;
    if (book_stale(s, o)) c->stale++;
    if (!book_protected(s, o)) {
        c->evictable += book_units(s, o);
        TARN_ASSERT(list_linked(o));
    }
    if (object_pin(s, o) == STORE_PIN_HARD) TARN_ASSERT(!list_linked(o));
    if (o->bits & OBJECT_REFS)
        TARN_ASSERT(refs_find(s, object_version(o))->object == record_ref(&s->records, o));
    uint32_t n;
    const block_id *blocks = book_blocks(s, o, &n);
    for (uint32_t i = 0; i < n; i++) {
        const struct block *b = block_get(&s->space, blocks[i]);
        TARN_ASSERT(block_state(b) == BLOCK_OBJECT && b->owner == record_ref(&s->records, o) &&
                    block_domain(b) == d);
        c->blocks_units += b->len;
    }
}

static void check_held(void *arg, struct htab_node *node) {
    struct check *c = arg;
    const struct refs *r = CONTAINER_OF(node, struct refs, node);
    TARN_ASSERT(r->count > 0);
    for (uint32_t i = 0; i < r->n_blocks; i++) c->blocks_units += block_get(&c->s->space, r->blocks[i])->len;
}

static void check_put(void *arg, struct htab_node *node) {
    struct check *c = arg;
    const struct store_put *p = CONTAINER_OF(node, struct store_put, node);
    for (uint32_t i = 0; i < p->n_blocks; i++) c->blocks_units += block_get(&c->s->space, p->blocks[i])->len;
    if (p->plan && p->plan->reserved) c->blocks_units += block_get(&c->s->space, p->plan->reserved)->len;
}

void store_check(const struct store *s) {
    space_check(&s->space);
    struct check *c = xcalloc(1, sizeof(*c));
    c->s = s;
    uint64_t cursor = 0;
    do cursor = index_scan((struct index *)&s->index, cursor, check_object, c);
    while (cursor);
    TARN_ASSERT(c->objects == s->index.count && c->evictable == s->evictable_units &&
                c->inl == s->inline_count);
    if (s->stale) TARN_ASSERT(c->stale == s->stale);
    for (unsigned i = 0; i < DOMAINS; i++)
        TARN_ASSERT(c->bytes[i] == s->domains[i].bytes && c->count[i] == s->domains[i].objects);
    do cursor = htab_scan(&s->refs, cursor, check_held, c);
    while (cursor);
    do cursor = htab_scan(&s->puts, cursor, check_put, c);
    while (cursor);
    do cursor = htab_scan(&s->zombies, cursor, check_put, c);
    while (cursor);
    uint64_t used = 0;
    for (uint32_t i = 0; i < s->space.n_segments; i++)
        used += s->space.segments[i]->units - s->space.segments[i]->free_units;
    TARN_ASSERT(c->blocks_units == used);
    free(c);
}
