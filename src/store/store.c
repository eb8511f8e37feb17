#include "store/books.h"
#include "store/batch.h"

#include <stdlib.h>
#include <string.h>

/* --- life cycle --------------------------------------------------------------------------------------------------------- */

void store_config_init(struct store_config *c) {
    *c = (struct store_config){
        .max_leases_per_session = 1000000,
        .max_puts_per_session = 1000000,
        .max_lease_ms = 10000,
        .soft_pin_ms = 30 * 60 * 1000,
        .put_timeout_ms = 30000,
        .put_timeout_rate = 100000000,
        .put_release_timeout_ms = 10 * 60 * 1000,
        .high_watermark = 0.9,
        .eviction_ratio = 0.05,
        .lfu_log_factor = 10,
        .lfu_decay_minutes = 1,
    };
}

struct store *store_create(const struct store_config *c, const struct store_events *events,
                           const char *policy, const char *allocator, uint64_t mono_ms, uint64_t wall_ms) {
    const struct policy_ops *ops = policy_find(policy);
    if (!ops) return NULL;
    struct store *s = xcalloc(1, sizeof(*s));
    s->magic = STORE_MAGIC;
    s->config = *c;
    if (events) s->events = *events;
    s->now_ms = mono_ms;
    s->wall_ms = wall_ms;
    s->policy = ops;
    s->next_version = 1;
    if (!records_init(&s->records) || !space_init(&s->space, allocator)) {
        records_free(&s->records);
        space_free_all(&s->space);
        free(s);
        return NULL;
    }
    index_init(&s->index, &s->records);
    struct htab *tables[] = {&s->extras,   &s->groups, &s->refs,   &s->leases,
                             &s->sessions, &s->puts,   &s->zombies};
    for (size_t i = 0; i < ARRAY_LEN(tables); i++) htab_init(tables[i]);
    s->lease_wheel = wheel_create(mono_ms);
    s->pin_wheel = wheel_create(mono_ms);
    s->put_wheel = wheel_create(mono_ms);
    s->ttl_wheel = wheel_create(wall_ms);
    rng_seed(&s->rng, mono_ms ^ (uintptr_t)s);
    domain_open(s, 0);
    return s;
}

static void free_object(void *arg, struct object *o) {
    struct store *s = arg;
    extra_drop(s, o);
}

void store_destroy(struct store **store_p) {
    struct store *s = *store_p;
    if (!s) return;
    MAGIC_CHECK(s, STORE_MAGIC);
    lease_free_all(s);
    put_free_all(s);
    uint64_t cursor = 0;
    do cursor = index_scan(&s->index, cursor, free_object, s);
    while (cursor);
    quota_free_all(s);
    struct htab *tables[] = {&s->extras,   &s->groups, &s->refs,   &s->leases,
                             &s->sessions, &s->puts,   &s->zombies};
    for (size_t i = 0; i < ARRAY_LEN(tables); i++) htab_free(tables[i]);
    wheel_destroy(&s->lease_wheel);
    wheel_destroy(&s->pin_wheel);
    wheel_destroy(&s->put_wheel);
    wheel_destroy(&s->ttl_wheel);
    index_free(&s->index);
    space_free_all(&s->space);
    records_free(&s->records);
    s->magic = 0;
    free(s);
    *store_p = NULL;
}

struct store_config *store_config(struct store *s) {
    return &s->config;
}

void store_tick(struct store *s, uint64_t mono_ms, uint64_t wall_ms) {
    if (mono_ms > s->now_ms) s->now_ms = mono_ms;
    s->wall_ms = wall_ms;
}

/* --- segments -------------------------------------------------------------------------------------------------------------- */

tarn_status store_segment_add(struct store *s, const char *name, uint32_t epoch, uint64_t size,
                              uint32_t *id_p) {
    struct store_segment_info info;
    if (store_segment_by_name(s, span_str(name), &info)) return TARN_EEXISTS;
    return space_segment_add(&s->space, name, epoch, size, id_p);
}

size_t store_segment_count(const struct store *s) {
    return s->space.n_segments;
}

bool store_segment_get(const struct store *s, uint32_t id, struct store_segment_info *info_p) {
    if (id >= s->space.n_segments) return false;
    const struct segment *seg = s->space.segments[id];
    *info_p = (struct store_segment_info){
        .id = id,
        .epoch = seg->epoch,
        .size = seg->units * UNIT,
        .used = (seg->units - seg->free_units) * UNIT,
        .free_runs = seg->free_runs,
    };
    memcpy(info_p->name, seg->name, sizeof(info_p->name));
    info_p->largest_free = space_largest((struct space *)&s->space, id) * UNIT;
    if (id == 0) info_p->quarantined = s->quarantine_units * UNIT;
    info_p->used -= info_p->quarantined;
    return true;
}

bool store_segment_by_name(const struct store *s, struct span name, struct store_segment_info *info_p) {
    for (uint32_t i = 0; i < s->space.n_segments; i++)
        if (span_eq(span_str(s->space.segments[i]->name), name)) return store_segment_get(s, i, info_p);
    return false;
}

/* --- what an object is -------------------------------------------------------------------------------------------------------- */

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

uint32_t store_object_request(const struct object *o) {
    return o->request;
}

bool store_object_crc(const struct object *o, uint32_t *crc_p) {
    if (!(o->bits & OBJECT_CRC)) return false;
    *crc_p = o->crc;
    return true;
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
    if (o->bits & OBJECT_MULTI) {
        const struct extra *x = extra_find(s, o);
        *n_p = x->n_blocks;
        return x->blocks;
    }
    *n_p = 1;
    return &o->block;
}

uint64_t book_units(const struct store *s, const struct object *o) {
    uint32_t n;
    uint64_t units = 0;
    const block_id *blocks = book_blocks(s, o, &n);
    for (uint32_t i = 0; i < n; i++) units += block_get(&s->space, blocks[i])->len;
    return units;
}

uint64_t store_object_size(const struct store *s, const struct object *o) {
    return o->bits & OBJECT_INLINE ? object_slack(o) : book_units(s, o) * UNIT - object_slack(o);
}

const uint32_t *store_object_crcs(const struct store *s, const struct object *o, size_t *n_p) {
    const struct extra *x = extra_find(s, o);
    if (!x || !x->n_crcs) return NULL;
    *n_p = x->n_crcs;
    return x->crcs;
}

void store_object_layout(const struct store *s, const struct object *o, struct store_layout *layout_p) {
    uint32_t n;
    const block_id *blocks = book_blocks(s, o, &n);
    layout_p->replicas = 1;
    struct store_replica *r = &layout_p->replica[0];
    r->tier = STORE_TIER_MEMORY;
    r->extents = n;
    uint64_t left = n > 1 ? store_object_size(s, o) : 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct block *b = block_get(&s->space, blocks[i]);
        uint64_t len = (uint64_t)b->len * UNIT, used = n == 1 ? len - object_slack(o) : min_u64(len, left);
        r->extent[i] = (struct store_extent){block_segment(b), s->space.segments[block_segment(b)]->epoch,
                                             block_offset(b) * UNIT, used};
        left -= n == 1 ? 0 : used;
    }
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

uint64_t store_object_memory(const struct store *s, const struct object *o) {
    uint32_t n;
    book_blocks(s, o, &n);
    uint64_t bytes = record_round(book_record_size(o)) + sizeof(object_ref) + n * sizeof(struct block);
    const struct extra *x = extra_find(s, o);
    if (x) bytes += sizeof(*x) + x->n_blocks * sizeof(block_id) + x->n_crcs * sizeof(uint32_t);
    return bytes;
}

unsigned store_object_refs(const struct store *s, const struct object *o) {
    return o->bits & OBJECT_REFS ? refs_find(s, object_version(o))->count : 0;
}

unsigned book_domain(const struct store *s, const struct object *o) {
    if (o->bits & OBJECT_INLINE) return o->block;
    uint32_t n;
    return block_domain(block_get(&s->space, book_blocks(s, o, &n)[0]));
}

/* --- protection and order --------------------------------------------------------------------------------------------------------- */

bool book_protected(const struct store *s, const struct object *o) {
    return (o->bits & OBJECT_REFS) || object_pin(s, o) == STORE_PIN_HARD;
}

bool book_evictable(const struct store *s, const struct object *o) {
    return !book_protected(s, o);
}

void book_protect(struct store *s, struct object *o, bool was_protected) {
    bool is = book_protected(s, o);
    if (is == was_protected) return;
    if (is) {
        s->evictable_units -= book_units(s, o);
        return;
    }
    s->evictable_units += book_units(s, o);
    s->room_changes++;
    /* It was taken out of the order when eviction met it: its turn is still now. */
    if (!list_linked(o)) book_relink(s, o);
}

static struct policy *policy_of(struct store *s, const struct object *o) {
    return &s->domains[book_domain(s, o)].policy[(o->bits & OBJECT_INLINE) != 0];
}

static bool is_legacy(const struct store *s, const struct object *o) {
    return (o->bits & OBJECT_GEN) != s->gen;
}

void book_unlink(struct store *s, struct object *o) {
    if (!list_linked(o)) return;
    if (object_pin(s, o) == STORE_PIN_SOFT) {
        list_unlink(&s->records, o);
    } else if (is_legacy(s, o)) {
        list_unlink(&s->records, o);
        s->legacy_count--;
    } else {
        struct policy *p = policy_of(s, o);
        p->ops->unlink(p, o);
    }
}

static void set_gen(struct store *s, struct object *o) {
    o->bits = (o->bits & ~(uint32_t)OBJECT_GEN) | s->gen;
}

void book_relink(struct store *s, struct object *o) {
    TARN_ASSERT(!list_linked(o));
    struct domain *d = &s->domains[book_domain(s, o)];
    int inl = (o->bits & OBJECT_INLINE) != 0;
    switch (object_pin(s, o)) {
    case STORE_PIN_HARD: return;
    case STORE_PIN_SOFT: list_push_back(&s->records, d->soft[inl], o); return;
    case STORE_PIN_NONE: break;
    }
    if (is_legacy(s, o)) {
        o->bits &= ~(uint32_t)(OBJECT_Q1 | OBJECT_Q2);
        object_set_freq(o, 0);
        set_gen(s, o);
    }
    d->policy[inl].ops->give_back(&d->policy[inl], o);
}

void book_access(struct store *s, struct object *o, const struct policy_event *e) {
    if (o->bits & OBJECT_EXTRA) extra_renew_pin(s, o);
    enum store_pin pin = object_pin(s, o);
    if (pin == STORE_PIN_SOFT && list_linked(o)) {
        list_unlink(&s->records, o);
        list_push_front(&s->records, s->domains[book_domain(s, o)].soft[(o->bits & OBJECT_INLINE) != 0], o);
    } else if (pin == STORE_PIN_NONE) {
        if (list_linked(o) && is_legacy(s, o)) book_unlink(s, o);
        if (!list_linked(o)) book_relink(s, o);
        struct policy *p = policy_of(s, o);
        p->ops->access(p, o, e);
    }
    object_set_atime(o, (uint32_t)(s->now_ms / 1000));
}

/* --- coming and going ----------------------------------------------------------------------------------------------------------------- */

bool book_stale(const struct store *s, const struct object *o) {
    return object_version(o) <= s->flush_version;
}

void book_insert(struct store *s, struct object *o, uint64_t hash, const struct policy_event *e) {
    index_insert(&s->index, o, hash);
    struct domain *d = &s->domains[book_domain(s, o)];
    int inl = (o->bits & OBJECT_INLINE) != 0;
    d->bytes += store_object_size(s, o);
    d->objects++;
    s->inline_count += (unsigned)inl;
    s->evictable_units += book_units(s, o);
    s->room_changes++;
    set_gen(s, o);
    object_set_atime(o, (uint32_t)(s->now_ms / 1000));
    d->policy[inl].ops->insert(&d->policy[inl], o, e);
}

void book_remove(struct store *s, struct object *o) {
    struct span key = store_object_key(o);
    index_remove(&s->index, o, store_hash(key));
    if (book_stale(s, o)) s->stale--;
    book_unlink(s, o);
    struct domain *d = &s->domains[book_domain(s, o)];
    d->bytes -= store_object_size(s, o);
    d->objects--;
    s->inline_count -= (o->bits & OBJECT_INLINE) != 0;
    if (!book_protected(s, o)) s->evictable_units -= book_units(s, o);
    if (object_pin(s, o) != STORE_PIN_NONE) s->room_changes++;
    block_id blocks[STORE_EXTENTS_MAX];
    uint32_t n;
    const block_id *b = book_blocks(s, o, &n);
    if (n) memcpy(blocks, b, n * sizeof(*b));
    if (o->bits & OBJECT_REFS) {
        refs_object_gone(s, o, blocks, n);
    } else {
        for (uint32_t i = 0; i < n; i++) space_release(&s->space, blocks[i]);
    }
    extra_drop(s, o);
    record_free(&s->records, o, book_record_size(o));
}

void store_remove_object(struct store *s, struct object *o) {
    s->stat.removed++;
    book_remove(s, o);
}

bool store_remove(struct store *s, struct span key) {
    struct object *o = store_find(s, key);
    if (!o) return false;
    store_remove_object(s, o);
    return true;
}

void store_flush(struct store *s) {
    /* Versions are given out by PUTSTART, so puts under way are over too: see put_flushed. */
    s->flush_version = s->next_version - 1;
    s->stale = s->index.count;
    s->sweep_cursor = 0;
}

bool store_flush_pending(const struct store *s) {
    return s->stale > 0;
}

/* --- look-ups ----------------------------------------------------------------------------------------------------------------------------- */

void store_prefetch(const struct store *s, const struct span *keys, size_t n, uint64_t *hashes) {
    for (size_t i = 0; i < n; i++) {
        hashes[i] = store_hash(keys[i]);
        index_prefetch_bucket(&s->index, hashes[i]);
    }
    for (size_t i = 0; i < n; i++) index_prefetch_head(&s->index, hashes[i]);
}

struct object *store_find_hashed(struct store *s, struct span key, uint64_t hash) {
    struct object *o = index_find(&s->index, key, hash);
    if (!o) return NULL;
    if (UNLIKELY(s->stale && book_stale(s, o))) return NULL;
    if (UNLIKELY(s->planner && room_clearing(s, o))) return NULL;
    if (UNLIKELY((o->bits & OBJECT_EXTRA) && extra_expired(s, o))) {
        s->stat.expired++;
        book_remove(s, o);
        return NULL;
    }
    return o;
}

struct object *store_find(struct store *s, struct span key) {
    return store_find_hashed(s, key, store_hash(key));
}

static bool visible(const struct store *s, const struct object *o) {
    return !(s->stale && book_stale(s, o)) && !(s->planner && room_clearing(s, o)) &&
           !((o->bits & OBJECT_EXTRA) && extra_expired(s, o));
}

struct object *store_random(struct store *s) {
    for (unsigned tries = 0; tries < 256 && s->index.count > 0; tries++) {
        struct object *o = index_sample(&s->index, rng_next(&s->rng));
        if (o && visible(s, o)) return o;
    }
    return NULL;
}

struct scan_arg {
    const struct store *s;
    void (*fn)(void *arg, struct object *o);
    void *arg;
};

static void scan_visible(void *arg, struct object *o) {
    struct scan_arg *a = arg;
    if (visible(a->s, o)) a->fn(a->arg, o);
}

uint64_t store_scan(struct store *s, uint64_t cursor, void (*fn)(void *arg, struct object *o), void *arg) {
    struct scan_arg a = {s, fn, arg};
    return index_scan(&s->index, cursor, scan_visible, &a);
}

void store_expire(struct store *s, struct object *o, uint64_t wall_ms) {
    extra_set_expire(s, o, wall_ms);
}

bool store_pin(struct store *s, struct span key, enum store_pin kind, uint64_t ms) {
    struct object *o = store_find(s, key);
    if (!o) return false;
    extra_set_pin(s, o, kind, ms);
    return true;
}

/* --- batches --------------------------------------------------------------------------------------------------------------------------------- */

void store_batch_begin(struct store *s, struct store_batch *b, struct store_chain *chain,
                       enum store_batch_kind kind, uint32_t length) {
    *b = (struct store_batch){.chain = chain, .kind = kind, .length = length, .open = true};
}

/* The first key tells whether this batch goes on with the connection's last look-up: a get of exactly its hits, or the
 * puts that begin with its first miss. */
void batch_number(struct store *s, struct store_batch *b, uint64_t hash) {
    if (b->numbered) return;
    b->numbered = true;
    struct store_chain *c = b->chain;
    if (c && c->request && b->kind == STORE_BATCH_PUT && c->next_hash == hash) {
        b->request = c->request;
        b->extends = c->extends;
        b->base_depth = c->hits;
        return;
    }
    if (c && c->request && b->kind == STORE_BATCH_READ && c->hits == b->length && c->first_hash == hash) {
        b->request = c->request;
        b->extends = c->extends;
        return;
    }
    if (++s->next_request == 0) s->next_request = 1;
    b->request = s->next_request;
    s->stat.requests++;
    if (c && b->kind != STORE_BATCH_PUT) *c = (struct store_chain){.request = b->request, .first_hash = hash};
}

struct policy_event batch_event(const struct store *s, const struct store_batch *b) {
    return (struct policy_event){
        .now_ms = s->now_ms,
        .request = b->request,
        .extends = b->extends,
        .position = b->pos,
        .length = b->length,
        .depth = b->base_depth + b->pos,
        .hits = b->hits,
        .put = b->kind == STORE_BATCH_PUT,
    };
}

static void batch_step(struct store *s, struct store_batch *b, const struct policy_event *e) {
    if (++b->pos != b->length || b->kind == STORE_BATCH_PUT) return;
    for (unsigned i = 0; i < s->n_domains; i++)
        for (int inl = 0; inl < 2; inl++)
            if (s->domains[i].used) s->policy->prefix_done(&s->domains[i].policy[inl], e);
}

void store_batch_hit(struct store *s, struct store_batch *b, struct object *o) {
    if (!b->numbered) batch_number(s, b, b->length == 1 && !b->chain ? 0 : store_hash(store_object_key(o)));
    uint32_t previous = o->request;
    if (b->open) {
        b->hits++;
        if (previous != b->request) b->extends = previous;
        if (b->chain && b->kind != STORE_BATCH_PUT && b->chain->request == b->request &&
            b->chain->hits < b->hits) {
            b->chain->hits = b->hits;
            b->chain->extends = b->extends;
        }
    }
    struct policy_event e = batch_event(s, b);
    e.previous = previous;
    s->stat.hits++;
    if (b->chain) object_set_depth(o, e.depth);
    o->request = b->request;
    if (b->kind != STORE_BATCH_LOOK) book_access(s, o, &e);
    batch_step(s, b, &e);
}

void store_batch_miss(struct store *s, struct store_batch *b, uint64_t hash) {
    batch_number(s, b, hash);
    if (b->open && b->chain && b->chain->request == b->request) b->chain->next_hash = hash;
    b->open = false;
    s->stat.misses++;
    struct policy_event e = batch_event(s, b);
    batch_step(s, b, &e);
}

/* --- eviction ---------------------------------------------------------------------------------------------------------------------------------- */

static struct object *pop_from(struct store *s, struct domain *d, int inl, bool soft) {
    struct object *o = list_back(&s->records, d->legacy[inl]);
    if (o) {
        book_unlink(s, o);
        return o;
    }
    if ((o = d->policy[inl].ops->pop(&d->policy[inl], s->now_ms))) return o;
    if (soft && (o = list_back(&s->records, d->soft[inl]))) list_unlink(&s->records, o);
    return o;
}

/* Protected objects that come up are left unlinked: book_protect links them again when the protection ends. */
static struct object *pop_free(struct store *s, struct domain *d, int inl, bool soft, unsigned *budget) {
    while (*budget > 0) {
        struct object *o = pop_from(s, d, inl, soft);
        if (!o || book_evictable(s, o)) return o;
        --*budget;
    }
    return NULL;
}

struct object *book_pop(struct store *s, int domain, int inl, bool soft, unsigned *budget) {
    if (domain >= 0) return pop_free(s, &s->domains[domain], inl, soft, budget);
    if (s->n_domains == 1) return pop_free(s, &s->domains[0], inl, soft, budget);
    /* The candidate that was unused for longest, of those that the domains would give. */
    struct object *best = NULL;
    uint64_t best_idle = 0;
    for (unsigned i = 0; i < s->n_domains; i++) {
        if (!s->domains[i].used) continue;
        struct object *o = pop_free(s, &s->domains[i], inl, soft, budget);
        if (!o) continue;
        uint64_t idle = store_object_idle_ms(s, o) + (object_pin(s, o) == STORE_PIN_NONE);
        if (best && idle <= best_idle) {
            book_relink(s, o);
            continue;
        }
        if (best) book_relink(s, best);
        best = o;
        best_idle = idle;
    }
    return best;
}

void book_give_back(struct store *s, struct object *o) {
    book_relink(s, o);
}

static void count_evicted(struct store *s, struct object *o) {
    s->stat.evicted_objects++;
    s->stat.evicted_bytes += store_object_size(s, o);
    if (o->bits & OBJECT_INLINE) s->stat.evicted_inline++;
    if (object_pin(s, o) == STORE_PIN_SOFT) s->stat.evicted_soft_pinned++;
}

static void evict_one(struct store *s, struct object *o) {
    count_evicted(s, o);
    book_unlink(s, o);
    struct policy *p = policy_of(s, o);
    p->ops->evicted(p, o, store_hash(store_object_key(o)));
    book_remove(s, o);
}

/* A group goes together as far as the budget and the others' leases let it. */
void book_evict(struct store *s, struct object *o, unsigned *budget) {
    const struct extra *x = extra_find(s, o);
    struct group *g = x ? x->group : NULL;
    if (g) g->count++; /* keep it while its members go */
    evict_one(s, o);
    if (*budget > 0) --*budget;
    if (!g) return;
    for (struct extra *m = g->members; m && *budget > 0;) {
        struct extra *next = m->group_next;
        struct object *other = record_get(&s->records, m->object);
        --*budget;
        if (book_evictable(s, other) && !(other->bits & OBJECT_VICTIM)) {
            s->stat.evicted_group++;
            evict_one(s, other);
        }
        m = next;
    }
    group_unref(s, g);
}

bool store_evict_object(struct store *s, struct object *o, uint64_t *bytes_p) {
    if (!book_evictable(s, o)) return false;
    *bytes_p = store_object_size(s, o);
    s->stat.evict_command++;
    evict_one(s, o);
    return true;
}

/* Evicts whoever is next, with space first. false: nobody, or the budget is used up. */
static bool evict_next(struct store *s, unsigned *budget, uint64_t *objects_p, uint64_t *bytes_p) {
    uint64_t objects = s->stat.evicted_objects, bytes = s->stat.evicted_bytes;
    struct object *o = book_pop(s, -1, 0, true, budget);
    if (!o) o = book_pop(s, -1, 1, true, budget);
    if (!o) return false;
    book_evict(s, o, budget);
    *objects_p += s->stat.evicted_objects - objects;
    *bytes_p += s->stat.evicted_bytes - bytes;
    return true;
}

bool store_evict_step(struct store *s, struct store_evict_job *job, unsigned *budget) {
    while ((job->want_objects && job->objects < job->want_objects) ||
           (job->want_bytes && job->bytes < job->want_bytes)) {
        if (*budget == 0) return false;
        uint64_t before = job->objects;
        if (!evict_next(s, budget, &job->objects, &job->bytes)) return *budget > 0;
        s->stat.evict_command += job->objects - before;
    }
    return true;
}

static bool above_watermark(const struct store *s) {
    uint64_t size = 0, used = 0;
    for (uint32_t i = 0; i < s->space.n_segments; i++) {
        size += s->space.segments[i]->units;
        used += s->space.segments[i]->units - s->space.segments[i]->free_units;
    }
    return size > 0 && s->evictable_units > 0 && (double)used > s->config.high_watermark * (double)size;
}

/* Above the watermark a pass frees eviction_ratio of the objects; another follows while that was not enough. */
static bool background_evict(struct store *s, unsigned *budget) {
    while (*budget > 0) {
        if (!s->evict_left) {
            if (!above_watermark(s)) return false;
            s->evict_left =
                (uint64_t)((double)(s->index.count - s->inline_count) * s->config.eviction_ratio) + 1;
        }
        struct object *o = book_pop(s, -1, 0, false, budget);
        if (!o) {
            if (*budget > 0) s->evict_left = 0; /* only soft-pinned objects are left */
            return *budget == 0;
        }
        s->stat.evicted_background++;
        s->evict_left--;
        book_evict(s, o, budget);
    }
    return true;
}

/* --- background work ------------------------------------------------------------------------------------------------------------------------------ */

struct sweep {
    struct store *s;
    struct object *found[64];
    unsigned n;
};

static void collect_stale(void *arg, struct object *o) {
    struct sweep *w = arg;
    if (book_stale(w->s, o) && w->n < ARRAY_LEN(w->found)) w->found[w->n++] = o;
}

static bool sweep_flushed(struct store *s, unsigned *budget) {
    while (s->stale > 0 && *budget > 0) {
        struct sweep w = {.s = s};
        s->sweep_cursor = index_scan(&s->index, s->sweep_cursor, collect_stale, &w);
        for (unsigned i = 0; i < w.n; i++) {
            s->stat.removed++;
            book_remove(s, w.found[i]);
        }
        *budget -= *budget > w.n + 1 ? w.n + 1 : *budget;
    }
    return s->stale > 0;
}

/* What the previous policy left goes behind everything the new one knows, the next to go last. */
static bool migrate(struct store *s, unsigned *budget) {
    for (unsigned i = 0; i < s->n_domains && s->legacy_count > 0; i++) {
        struct domain *d = &s->domains[i];
        for (int inl = 0; d->used && inl < 2; inl++) {
            object_ref head = d->legacy[inl];
            while (*budget > 0 && record_get(&s->records, head)->next != head) {
                struct object *o = record_get(&s->records, record_get(&s->records, head)->next);
                book_unlink(s, o);
                book_relink(s, o);
                --*budget;
            }
        }
    }
    return s->legacy_count > 0;
}

bool store_background(struct store *s, unsigned *budget) {
    bool more = false;
    struct wheel_node *n;
    while (*budget > 0 && (n = wheel_pop(s->lease_wheel, s->now_ms, budget, &more))) lease_over(s, n);
    while (*budget > 0 && (n = wheel_pop(s->put_wheel, s->now_ms, budget, &more))) put_over(s, n);
    while (*budget > 0 && (n = wheel_pop(s->pin_wheel, s->now_ms, budget, &more))) extra_pin_over(s, n);
    if (*budget == 0) return true;
    bool left = extra_due(s, budget);
    left |= sweep_flushed(s, budget);
    left |= quota_recount(s, budget);
    left |= migrate(s, budget);
    left |= background_evict(s, budget);
    return left || more || *budget == 0;
}

uint64_t store_next_ms(const struct store *s, uint64_t limit_ms) {
    if (s->stale || s->recount || s->legacy_count || s->evict_left) return 0;
    uint64_t next = wheel_next_ms(s->lease_wheel, s->now_ms, limit_ms);
    next = wheel_next_ms(s->put_wheel, s->now_ms, next);
    next = wheel_next_ms(s->pin_wheel, s->now_ms, next);
    return wheel_next_ms(s->ttl_wheel, s->wall_ms, next);
}

tarn_status store_set_policy(struct store *s, const char *name) {
    const struct policy_ops *ops = policy_find(name);
    if (!ops) return TARN_EINVAL;
    if (ops == s->policy) return TARN_OK;
    if (s->legacy_count > 0) return TARN_EBUSY;
    s->gen ^= OBJECT_GEN;
    s->policy = ops;
    for (unsigned i = 0; i < s->n_domains; i++) {
        struct domain *d = &s->domains[i];
        for (int inl = 0; d->used && inl < 2; inl++) {
            s->legacy_count += d->policy[inl].count;
            d->policy[inl].ops->drain(&d->policy[inl], d->legacy[inl]);
            policy_close(&d->policy[inl]);
            policy_open(&d->policy[inl], ops, &s->records, &s->config);
        }
    }
    return TARN_OK;
}

const char *store_policy_name(const struct store *s) {
    return s->policy->name;
}

const char *store_policy_names(void) {
    return "lru fifo lfu sieve s3fifo";
}
