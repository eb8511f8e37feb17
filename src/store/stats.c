/* Figures, and the check that everything adds up. */
#include <stdlib.h>
#include <string.h>
#include "store/books.h"

#define TABLE_MEMORY(name) htab_memory(&s->name)

static uint64_t tables_memory(const struct store *s) {
    const uint64_t bytes[] = {STORE_TABLES(TABLE_MEMORY)};
    uint64_t sum = index_memory(&s->index);
    for (size_t i = 0; i < ARRAY_LEN(bytes); i++) sum += bytes[i];
    return sum;
}

static uint64_t lease_memory(const struct store *s) {
    return s->lease_pool * sizeof(struct lease) + s->refs_pool * sizeof(struct refs) +
           s->batch_count * sizeof(struct lease_batch) + s->lots.count * sizeof(struct lot) +
           s->sessions.count * sizeof(struct session);
}

static uint64_t policy_bytes(const struct policy *p, bool mapped) {
    if (!p->ops) return 0;
    return !mapped ? p->ops->memory(p) : p->ops->mapped ? p->ops->mapped(p) : 0;
}

static uint64_t policy_memory(const struct store *s, bool mapped) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < s->n_domains; i++)
        for (int inl = 0; inl < 2; inl++)
            bytes += policy_bytes(&s->domains[i].policy[inl], mapped) +
                     policy_bytes(&s->domains[i].legacy[inl], mapped);
    return bytes;
}

uint64_t store_memory(const struct store *s) {
    return sizeof(*s) + records_memory(&s->records) + space_memory(&s->space) + tables_memory(s) +
           lease_memory(s) + policy_memory(s, false) + story_memory(&s->story) + s->extra_bytes +
           s->places_bytes + s->put_bytes;
}

uint64_t store_mapped_memory(const struct store *s) {
    return records_memory(&s->records) + index_memory(&s->index) + space_memory(&s->space) +
           policy_memory(s, true);
}

uint64_t store_evictions(const struct store *s) {
    return s->stat.evicted_objects;
}

uint64_t store_count(const struct store *s) {
    return s->index.count - s->stale;
}

/* Of those in memory that are UP. Whoever asks does so for many figures at a time. */
static uint64_t largest_free(const struct store *s) {
    struct space *sp = (struct space *)&s->space; /* what it has found out stays */
    if (sp->largest_at == sp->changes) return sp->largest;
    sp->largest = 0;
    for (const struct segment *seg = NULL; (seg = space_next(sp, seg));)
        if (segment_counts_up(seg)) sp->largest = max_u64(sp->largest, space_largest(sp, seg->id));
    sp->largest_at = sp->changes;
    return sp->largest;
}

static void pool_stats(const struct store *s, struct store_stats *st) {
    for (const struct segment *seg = NULL; (seg = space_next(&s->space, seg));) {
        if (seg->tier != STORE_TIER_MEMORY) continue;
        if (!segment_readable(seg)) {
            st->pool_down += seg->units * UNIT;
            continue;
        }
        st->pool_size += seg->units * UNIT;
        struct segment_share share = segment_share(seg);
        st->pool_free += share.free * UNIT;
        st->pool_quarantined += seg->quarantine_units * UNIT;
        st->pool_evictable += seg->evictable_units * UNIT;
        st->pool_ghosts += share.ghosts * UNIT;
    }
    st->pool_largest_free = largest_free(s) * UNIT;
    st->pool_used = st->pool_size - st->pool_free - st->pool_quarantined;
    st->pool_zombie = (s->zombie_units + s->written_units) * UNIT;
}

static void add_room(const struct segment *seg, struct store_room *room) {
    struct segment_share share = segment_share(seg);
    uint64_t size = seg->units * UNIT, free = share.free * UNIT,
             quarantined = seg->quarantine_units * UNIT, evictable = seg->evictable_units * UNIT;
    room->up++;
    room->size += size;
    room->free += free;
    room->quarantined += quarantined;
    room->used += size - free - quarantined;
    room->evictable += evictable;
    room->awaiting += seg->awaiting_units * UNIT;
    room->ghosts += share.ghosts * UNIT;
    room->largest = max_u64(room->largest, size);
    room->best = max_u64(room->best, free + evictable);
}

void store_get_room(const struct store *s, struct store_room *room_p) {
    *room_p = (struct store_room){0};
    for (const struct segment *seg = NULL; (seg = space_next(&s->space, seg));) {
        if (seg->tier != STORE_TIER_MEMORY) continue;
        if (seg->state == SEGMENT_UP)
            add_room(seg, room_p);
        else
            room_p->others++;
    }
}

#define ROW(...) FIGURE_ROW(struct store_stats, __VA_ARGS__)
const struct figure store_figures[] = {STORE_FIGURES(ROW){.name = NULL}};

void store_get_stats(const struct store *s, struct store_stats *st) {
    *st = s->stat;
    st->objects = store_count(s);
    st->max_objects = s->config.max_objects;
    st->max_puts_per_client = s->config.max_puts_per_session;
    st->max_leases_per_client = s->config.max_leases_per_session;
    st->inline_objects = s->inline_count;
    st->puts_open = s->puts.count;
    st->puts_zombie = s->zombies.count;
    st->leases = s->lease_count;
    st->leased_objects = s->refs.count;
    st->guarded_objects = wheel_count(s->wheel[WHEEL_GUARD]);
    st->far_objects = s->far_objects;
    st->far_replicas = s->far_replicas;
    st->copies_open = s->copies_open;
    st->awaiting_objects = s->awaiting;
    st->awaiting_bytes = s->awaiting_units * UNIT;
    st->prefetch_unread = s->unread;
    st->holds = s->hold_count;
    st->expires = s->expires;
    st->soft_pins = s->soft_pins;
    st->hard_pins = s->hard_pins;
    st->hard_pinned_bytes = s->hard.pool;
    st->hard_pinned_books = s->hard.books;
    st->hard_pin_owners = s->hard_owners.count;
    st->groups = s->groups.count - s->boundaries;
    st->boundaries = s->boundaries;
    st->sweep_objects = s->stale;
    st->migrating_objects = s->legacy_count;
    pool_stats(s, st);
    st->mem_books_records = records_memory(&s->records);
    st->mem_books_blocks = space_memory(&s->space);
    st->mem_books_tables = tables_memory(s);
    st->mem_books_leases = lease_memory(s);
    st->mem_books_extras = s->extra_bytes + s->places_bytes + s->put_bytes +
                           policy_memory(s, false) + story_memory(&s->story);
    st->mem_books = store_memory(s);
    st->mem_books_spare = records_spare(&s->records) + space_spare(&s->space);
}

const char *store_eviction_name(enum store_eviction cause) {
    static const char *const names[STORE_EVICTIONS] = {[STORE_EVICTION_PUT] = "put",
                                                       [STORE_EVICTION_WATERMARK] = "watermark",
                                                       [STORE_EVICTION_QUOTA] = "quota",
                                                       [STORE_EVICTION_MAXMEMORY] = "maxmemory",
                                                       [STORE_EVICTION_COMMAND] = "command"};
    return names[cause];
}

void store_stats_reset(struct store *s) {
    memset(&s->stat, 0, sizeof(s->stat));
    story_reset(&s->story);
    quota_stats_reset(s);
}

/* --- check --- */

struct check {
    const struct store *s;
    uint64_t objects, evictable, inl, stale, blocks_units, far;
    uint64_t bytes[DOMAINS], count[DOMAINS], awaiting, awaiting_units;
    uint64_t linked[DOMAINS][2][2], out[DOMAINS][2][2]; /* by kind, and whether it is legacy */
};

/* Each memory replica is whole, in one segment, and no two are on one host. */
static void check_places(const struct store *s, const struct object *o) {
    struct places p;
    places_read(s, o, &p);
    uint32_t at = 0;
    TARN_ASSERT(p.n_memory + p.n_far > 0);
    for (uint32_t i = 0; i < p.n_memory; i++) {
        uint64_t units = 0;
        TARN_ASSERT(p.extents[i] > 0 && p.extents[i] <= STORE_EXTENTS_MAX);
        for (uint32_t k = 0; k < p.extents[i]; k++, at++) {
            const struct block *b = block_get(&s->space, p.block[at]);
            units += b->len;
            TARN_ASSERT(replica_segment(s, p.block[at]) == replica_segment(s, p.block[at - k]));
        }
        TARN_ASSERT(units * UNIT - p.size == object_slack(o));
    }
    TARN_ASSERT(at == p.n_blocks);
}

static void check_object(void *arg, struct object *o) {
    struct check *c = arg;
    const struct store *s = c->s;
    unsigned d = book_domain(s, o);
    TARN_ASSERT(s->domains[d].used && !(o->bits & OBJECT_VICTIM));
    TARN_ASSERT(index_find(&s->index, store_object_key(o), store_hash(store_object_key(o))) == o);
    c->objects++;
    c->bytes[d] += book_charge(s, o);
    c->count[d]++;
    c->inl += (o->bits & OBJECT_INLINE) != 0;
    if (book_stale(s, o)) c->stale++;
    if (o->bits & OBJECT_AWAITS) {
        c->awaiting++;
        c->awaiting_units += book_units(s, o);
        TARN_ASSERT(list_linked(o) && !book_far_only(o) && !store_object_expire(s, o));
    } else if (!book_protected(s, o)) {
        c->evictable += book_units(s, o);
        TARN_ASSERT(list_linked(o));
    }
    if (!(o->bits & OBJECT_AWAITS) && !book_far_only(o) && object_pin(s, o) == STORE_PIN_NONE) {
        bool inl = o->bits & OBJECT_INLINE, legacy = (o->bits & OBJECT_GEN) != s->gen;
        list_linked(o) ? c->linked[d][inl][legacy]++ : c->out[d][inl][legacy]++;
    }
    c->far += book_far_only(o);
    if (o->bits & OBJECT_PLACES) check_places(s, o);
    if (!(o->bits & OBJECT_INLINE)) TARN_ASSERT(o->block || (o->bits & OBJECT_PLACES));
    if (object_pin(s, o) == STORE_PIN_HARD)
        TARN_ASSERT(!list_linked(o) || (o->bits & OBJECT_AWAITS));
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
    c->blocks_units += blocks_units(c->s, r->blocks, r->n_blocks);
}

static void check_lot(void *arg, struct htab_node *node) {
    struct check *c = arg;
    const struct lot *lot = CONTAINER_OF(node, struct lot, node);
    TARN_ASSERT(lot->holds > 0 || (!lot->over && (lot->leases > 0 || lot->guarded)));
    c->blocks_units += blocks_units(c->s, lot->blocks, lot->n_blocks);
}

static void check_want(struct check *c, const struct room_want *w) {
    c->blocks_units += blocks_units(c->s, w->blocks, w->n_blocks);
    if (w->plan && w->plan->reserved)
        c->blocks_units += block_get(&c->s->space, w->plan->reserved)->len;
}

/* All puts of a session: making room, open, zombie, and those that were superseded and do not know
 * it yet. */
static void check_session(void *arg, struct htab_node *node) {
    struct check *c = arg;
    uint64_t n = 0;
    const struct session *ss = CONTAINER_OF(node, struct session, node);
    const struct store_put *p;
    LIST_FOREACH(p, &ss->list, link) {
        n++;
        for (uint32_t k = 0; k < p->n_spots; k++)
            c->blocks_units += blocks_units(c->s, p->spots[k].blocks, p->spots[k].n_blocks);
        check_want(c, &p->want);
        if ((p->state == PUT_ROOM || p->state == PUT_OPEN) && p->vacant)
            TARN_ASSERT(!index_find(&c->s->index, span_of(p->key, p->key_len), p->node.hash));
    }
    TARN_ASSERT(n == ss->puts);
}

/* An object is its policy's, linked or out, and of one only. */
static void check_policies(const struct store *s, const struct check *c) {
    uint64_t legacy = 0;
    for (unsigned i = 0; i < DOMAINS; i++)
        for (int inl = 0; inl < 2; inl++) {
            const struct policy *p[2] = {&s->domains[i].policy[inl], &s->domains[i].legacy[inl]};
            for (int old = 0; old < 2; old++)
                TARN_ASSERT(c->linked[i][inl][old] == p[old]->count &&
                            c->out[i][inl][old] == p[old]->out);
            legacy += p[1]->count + p[1]->out;
        }
    TARN_ASSERT(legacy == s->legacy_count);
}

static void check_segment_units(const struct store *s, const struct segment *seg,
                                uint64_t *evictable_p, uint64_t *held_p) {
    if (seg->tier != STORE_TIER_MEMORY) return;
    uint64_t objects = s->space.detached ? seg->blocks_in_objects : 0;
    for (block_id id = seg->first; id; id = block_get(&s->space, id)->next)
        objects += block_state(block_get(&s->space, id)) == BLOCK_OBJECT;
    TARN_ASSERT(objects == seg->blocks_in_objects);
    *evictable_p += seg->evictable_units;
    *held_p += seg->quarantine_units;
}

void store_check(const struct store *s) {
    if (!s->space.detached) space_check(&s->space);
    struct check *c = xcalloc(1, sizeof(*c));
    c->s = s;
    index_each((struct index *)&s->index, check_object, c);
    TARN_ASSERT(c->awaiting == s->awaiting && c->awaiting_units == s->awaiting_units);
    TARN_ASSERT(c->objects == s->index.count && c->evictable == s->evictable_units &&
                c->inl == s->inline_count);
    if (s->stale) TARN_ASSERT(c->stale == s->stale);
    for (unsigned i = 0; i < DOMAINS; i++)
        TARN_ASSERT(c->bytes[i] == s->domains[i].bytes && c->count[i] == s->domains[i].objects);
    check_policies(s, c);
    htab_each(&s->refs, check_held, c);
    htab_each(&s->lots, check_lot, c);
    const struct store_copy *copy;
    LIST_FOREACH(copy, &s->copies, link) check_want(c, &copy->want);
    uint64_t ghosts = 0;
    const struct ghost *g;
    LIST_FOREACH(g, &s->ghosts, link) ghosts += blocks_units(s, g->blocks, g->n_blocks);
    c->blocks_units += ghosts;
    TARN_ASSERT(ghosts == s->ghost_units + s->written_units);
    htab_each(&s->sessions, check_session, c);
    uint64_t used = 0, evictable = 0, held = 0;
    for (const struct segment *seg = NULL; (seg = space_next(&s->space, seg));) {
        if (seg->tier == STORE_TIER_MEMORY) used += seg->units - seg->free_units;
        check_segment_units(s, seg, &evictable, &held);
    }
    TARN_ASSERT(evictable == s->evictable_units && held == s->quarantine_units &&
                c->far == s->far_objects);
    TARN_ASSERT(c->blocks_units == used);
    free(c);
}
