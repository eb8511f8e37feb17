#include "store/books.h"

#include <stdlib.h>
#include <string.h>

/* --- life cycle --- */

void store_config_init(struct store_config *c) {
    *c = (struct store_config){
        .max_leases_per_session = 1000000,
        .max_puts_per_session = 1000000,
        .max_lease_ms = 10000,
        .soft_pin_ms = 30 * 60 * 1000,
        .hard_pin_ratio = 1,
        .hard_pin_user_ratio = 1,
        .put_timeout_ms = 30000,
        .put_timeout_rate = 100000000,
        .put_release_timeout_ms = 10 * 60 * 1000,
        .high_watermark = 0.9,
        .eviction_ratio = 0.05,
        .lfu_log_factor = 10,
        .lfu_decay_minutes = 1,
    };
}

#define TABLE(name) &s->name

struct store *store_create(const struct store_config *c, const struct store_events *events,
                           const char *policy, const char *allocator, uint64_t mono_ms,
                           uint64_t wall_ms) {
    const struct policy_ops *ops = policy_find(policy);
    if (!ops) return NULL;
    struct store *s = xcalloc(1, sizeof(*s));
    s->magic = STORE_MAGIC;
    s->config = *c;
    if (events) s->events = *events;
    s->now_ms = mono_ms;
    s->wall_ms = wall_ms;
    s->policy = ops;
    s->next_version = c->first_version ? c->first_version : 1;
    s->far_silent = STORE_SEGMENT_ANY;
    if (!records_init(&s->records) || !space_init(&s->space, allocator)) {
        records_free(&s->records);
        space_free_all(&s->space);
        free(s);
        return NULL;
    }
    index_init(&s->index, &s->records);
    s->placement = placement_find("local-first");
    for (unsigned i = 0; i < WHEELS; i++) s->wheel[i] = wheel_create(mono_ms);
    s->ttl_wheel = wheel_create(wall_ms);
    rng_seed(&s->rng, mono_ms ^ (uintptr_t)s);
    domain_open(s, 0);
    s->empty_memory = store_memory(s);
    return s;
}

static void free_object(void *arg, struct object *o) {
    struct store *s = arg;
    extra_drop(s, o);
    places_drop(s, o);
}

void store_destroy(struct store **store_p) {
    struct store *s = *store_p;
    if (!s) return;
    MAGIC_CHECK(s, STORE_MAGIC);
    lease_free_all(s);
    copy_free_all(s);
    put_free_all(s);
    await_end_all(s);
    index_each(&s->index, free_object, s);
    ghosts_free_all(s);
    quota_free_all(s);
    segment_free_walks(s);
    placement_free(s);
    struct htab *tables[] = {STORE_TABLES(TABLE)};
    for (size_t i = 0; i < ARRAY_LEN(tables); i++) htab_free(tables[i]);
    for (unsigned i = 0; i < WHEELS; i++) wheel_destroy(&s->wheel[i]);
    buf_free(&s->record);
    buf_free(&s->together.notes);
    wheel_destroy(&s->ttl_wheel);
    free(s->superseded);
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

/* --- what an object is --- */

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
        *(awaits ? &seg->awaiting_units : &seg->evictable_units) += units;
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
    uint64_t bytes =
        record_round(book_record_size(o)) + sizeof(object_ref) + n * sizeof(struct block);
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

/* --- protection and order --- */

bool book_protected(const struct store *s, const struct object *o) {
    return (o->bits & (OBJECT_REFS | OBJECT_AWAITS)) || object_pin(s, o) == STORE_PIN_HARD;
}

void book_protect(struct store *s, struct object *o, bool was_protected) {
    bool is = book_protected(s, o);
    if (is == was_protected) return;
    uint32_t n;
    const block_id *blocks = book_blocks(s, o, &n);
    for (uint32_t i = 0; i < n; i++) {
        const struct block *b = block_get(&s->space, blocks[i]);
        uint64_t units = is ? -(uint64_t)b->len : b->len;
        s->space.segments[block_segment(b)]->evictable_units += units;
        s->evictable_units += units;
    }
    if (is) return;
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
    if (!list_linked(o) || (o->bits & OBJECT_AWAITS)) return;
    if (book_far_only(o) || object_pin(s, o) == STORE_PIN_SOFT) {
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
    if (o->bits & OBJECT_AWAITS) return;
    TARN_ASSERT(!list_linked(o));
    struct domain *d = &s->domains[book_domain(s, o)];
    int inl = (o->bits & OBJECT_INLINE) != 0;
    if (book_far_only(o)) {
        if (object_pin(s, o) != STORE_PIN_HARD) list_push_back(&s->records, d->far, o);
        return;
    }
    switch (object_pin(s, o)) {
    case STORE_PIN_HARD: return;
    case STORE_PIN_SOFT: list_push_back(&s->records, d->soft[inl], o); return;
    case STORE_PIN_NONE: break;
    }
    if (is_legacy(s, o)) {
        o->bits &= ~(uint32_t)OBJECT_Q1;
        object_set_freq(o, 0);
        set_gen(s, o);
    }
    d->policy[inl].ops->give_back(&d->policy[inl], o);
}

void book_enter_order(struct store *s, struct object *o, const struct policy_event *e) {
    bool waits =
        UNLIKELY(s->copying) && s->config.copies_all && !book_far_only(o) && await_enter(s, o);
    if (!waits) book_enter_policy(s, o, e);
}

void book_enter_policy(struct store *s, struct object *o, const struct policy_event *e) {
    struct domain *d = &s->domains[book_domain(s, o)];
    int inl = (o->bits & OBJECT_INLINE) != 0;
    enum store_pin pin = object_pin(s, o);
    TARN_ASSERT(!list_linked(o));
    set_gen(s, o);
    if (pin == STORE_PIN_HARD) return;
    if (book_far_only(o))
        list_push_front(&s->records, d->far, o);
    else if (pin == STORE_PIN_SOFT)
        list_push_front(&s->records, d->soft[inl], o);
    else
        d->policy[inl].ops->insert(&d->policy[inl], o, e);
}

/* Being read again and again is what brings it back to memory. */
static void far_access(struct store *s, struct object *o) {
    if (object_freq(o) < 255) object_set_freq(o, object_freq(o) + 1);
    if (!list_linked(o)) return;
    list_unlink(&s->records, o);
    list_push_front(&s->records, s->domains[book_domain(s, o)].far, o);
}

void book_access(struct store *s, struct object *o, const struct policy_event *e) {
    if (o->bits & OBJECT_EXTRA) extra_renew_pin(s, o);
    enum store_pin pin = object_pin(s, o);
    if (o->bits & OBJECT_AWAITS) {
        /* it comes into the order when it has its copy */
    } else if (book_far_only(o)) {
        far_access(s, o);
    } else if (pin == STORE_PIN_SOFT && list_linked(o)) {
        list_unlink(&s->records, o);
        list_push_front(&s->records,
                        s->domains[book_domain(s, o)].soft[(o->bits & OBJECT_INLINE) != 0], o);
    } else if (pin == STORE_PIN_NONE) {
        if (list_linked(o) && is_legacy(s, o)) book_unlink(s, o);
        if (!list_linked(o)) book_relink(s, o);
        struct policy *p = policy_of(s, o);
        p->ops->access(p, o, e);
    }
    object_set_atime(o, (uint32_t)(s->now_ms / 1000));
}

/* --- coming and going --- */

bool book_stale(const struct store *s, const struct object *o) {
    return object_version(o) <= s->flush_version;
}

void book_insert(struct store *s, struct object *o, uint64_t hash, const struct policy_event *e) {
    index_insert(&s->index, o, hash);
    struct domain *d = &s->domains[book_domain(s, o)];
    d->bytes += book_charge(s, o);
    d->objects++;
    s->inline_count += (o->bits & OBJECT_INLINE) != 0;
    book_count_evictable(s, o, 1);
    s->room_changes++;
    object_set_atime(o, (uint32_t)(s->now_ms / 1000));
    book_enter_order(s, o, e);
    together_came(s, store_object_key(o), hash);
}

void book_remove(struct store *s, struct object *o, enum store_news_kind why) {
    struct span key = store_object_key(o);
    effect_gone(s, o);
    news_object(s, why, o);
    together_gone(s, key, why);
    index_remove(&s->index, o, store_hash(key));
    if (book_stale(s, o)) s->stale--;
    if (o->bits & OBJECT_AWAITS) await_leave(s, o);
    book_unlink(s, o);
    struct domain *d = &s->domains[book_domain(s, o)];
    d->bytes -= book_charge(s, o);
    d->objects--;
    s->inline_count -= (o->bits & OBJECT_INLINE) != 0;
    book_count_evictable(s, o, -1);
    if (object_pin(s, o) != STORE_PIN_NONE) s->room_changes++;
    if (o->bits & OBJECT_PLACES) far_announce_gone(s, o);
    block_id blocks[PLACES_BLOCKS_MAX];
    uint32_t n;
    const block_id *b = book_blocks(s, o, &n);
    if (n) memcpy(blocks, b, n * sizeof(*b));
    places_drop(s, o);
    if (o->bits & OBJECT_REFS) {
        refs_object_gone(s, o, blocks, n);
    } else {
        space_part(s, blocks, n);
    }
    extra_drop(s, o);
    record_free(&s->records, o, book_record_size(o));
}

void book_drop(struct store *s, struct object *o, enum store_news_kind why) {
    if (why == STORE_NEWS_EVICTED)
        book_count_evicted(s, o);
    else if (why == STORE_NEWS_EXPIRED)
        s->stat.expired++;
    else
        s->stat.removed++;
    store_far_supersede(s, store_object_key(o), object_version(o));
    book_remove(s, o, why);
}

void store_remove_object(struct store *s, struct object *o) {
    book_drop(s, o, STORE_NEWS_REMOVED);
}

/* Some replica of it can be read, and of all that it goes together with. Only asked while
 * store.hidden. */
static bool is_here(const struct store *s, const struct object *o) {
    return book_readable(s, o) && !together_away(s, o);
}

bool store_remove(struct store *s, struct span key) {
    uint64_t hash = store_hash(key);
    struct object *o = store_find_hashed(s, key, hash);
    bool found = o != NULL;
    /* A miss because its hosts are away: it must not come back with them. */
    if (!found && s->hidden) {
        o = index_find(&s->index, key, hash);
        bool gone = o && (is_here(s, o) || book_stale(s, o) || (s->planner && room_clearing(s, o)));
        if (gone) o = NULL; /* a miss for another reason, which removes it */
    }
    if (o) store_remove_object(s, o);
    /* what no host has told of yet */
    else
        store_far_supersede(s, key, s->next_version - 1);
    return found;
}

void store_flush(struct store *s) {
    /* Versions are given out by PUTSTART, so puts under way are over too: see put_flushed. */
    s->flush_version = s->next_version - 1;
    s->stale = s->index.count;
    s->sweep_cursor = 0;
    effect_flush(s);
    news_object(s, STORE_NEWS_FLUSHED, NULL);
}

bool store_object_flushed(const struct store *s, const struct object *o) {
    return s->stale > 0 && book_stale(s, o);
}

bool store_flush_pending(const struct store *s) {
    return s->stale > 0;
}

/* --- look-ups --- */

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
    if (UNLIKELY(s->hidden && !is_here(s, o))) return NULL;
    if (UNLIKELY((o->bits & OBJECT_EXTRA) && extra_expired(s, o))) {
        if (s->following || s->keeps_expired) return NULL; /* who leads says when it goes */
        book_drop(s, o, STORE_NEWS_EXPIRED);
        return NULL;
    }
    return o;
}

bool store_is_away(const struct store *s, struct span key) {
    if (!s->hidden) return false;
    const struct object *o = index_find(&s->index, key, store_hash(key));
    return o && !is_here(s, o) && !book_stale(s, o) &&
           !((o->bits & OBJECT_EXTRA) && extra_expired(s, o));
}

struct object *store_find(struct store *s, struct span key) {
    return store_find_hashed(s, key, store_hash(key));
}

struct object *store_find_version(const struct store *s, struct span key, uint64_t version) {
    struct object *o = index_find(&s->index, key, store_hash(key));
    return o && object_version(o) == version && !book_stale(s, o) ? o : NULL;
}

static bool visible(const struct store *s, const struct object *o) {
    return !(s->stale && book_stale(s, o)) && !(s->planner && room_clearing(s, o)) &&
           !(s->hidden && !is_here(s, o)) && !((o->bits & OBJECT_EXTRA) && extra_expired(s, o));
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

uint64_t store_scan(struct store *s, uint64_t cursor, void (*fn)(void *arg, struct object *o),
                    void *arg) {
    struct scan_arg a = {s, fn, arg};
    return index_scan(&s->index, cursor, scan_visible, &a);
}

uint64_t store_scan_all(struct store *s, uint64_t cursor, void (*fn)(void *arg, struct object *o),
                        void *arg) {
    return index_scan(&s->index, cursor, fn, arg);
}

bool store_takes_nothing(const struct store *s) {
    return s->config.max_memory && s->config.max_memory < s->empty_memory;
}

void store_keep_expired(struct store *s, bool keep) {
    s->keeps_expired = keep;
}

void store_expire(struct store *s, struct object *o, uint64_t wall_ms) {
    if (wall_ms) far_leave(s, o);
    extra_set_expire(s, o, wall_ms);
    effect_object(s, o);
}

tarn_status store_pin(struct store *s, struct span key, enum store_pin kind, uint64_t ms) {
    struct object *o = store_find(s, key);
    if (!o) return TARN_ENOTFOUND;
    if (kind == STORE_PIN_HARD) {
        struct hard_sum sum = hard_of(s, o);
        if (object_pin(s, o) == STORE_PIN_HARD) return TARN_OK;
        if (!hard_allowed(s, ms, &sum)) {
            s->stat.hard_pins_refused++;
            return TARN_EQUOTA;
        }
    }
    extra_set_pin(s, o, kind, ms);
    effect_object(s, o);
    return TARN_OK;
}

/* --- eviction --- */

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

/* An object whose only space is on a host that is away makes no room: its turn comes again when all
 * others had theirs. */
static bool set_aside(struct store *s, struct object *o) {
    if (!s->hidden || (o->bits & OBJECT_INLINE) || store_object_in_memory(s, o)) return false;
    if (object_pin(s, o) != STORE_PIN_NONE) return false;
    struct policy_event e = {.now_ms = s->now_ms};
    book_enter_order(s, o, &e);
    return true;
}

/* Protected objects that come up are left unlinked: book_protect links them again when the
 * protection ends. */
static struct object *pop_free(struct store *s, struct domain *d, int inl, bool soft, bool space,
                               unsigned *budget) {
    while (*budget > 0) {
        struct object *o = pop_from(s, d, inl, soft);
        if (!o || (!book_protected(s, o) && !(space && set_aside(s, o)))) return o;
        --*budget;
    }
    return NULL;
}

struct object *book_pop(struct store *s, int domain, int inl, bool soft, bool space,
                        unsigned *budget) {
    if (domain >= 0) return pop_free(s, &s->domains[domain], inl, soft, space, budget);
    if (s->n_domains == 1) return pop_free(s, &s->domains[0], inl, soft, space, budget);
    /* The candidate that was unused for longest, of those that the domains would give. */
    struct object *best = NULL;
    uint64_t best_idle = 0;
    for (unsigned i = 0; i < s->n_domains; i++) {
        if (!s->domains[i].used) continue;
        struct object *o = pop_free(s, &s->domains[i], inl, soft, space, budget);
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

void book_count_evicted(struct store *s, const struct object *o) {
    s->stat.evicted_objects++;
    s->stat.evicted_bytes += store_object_size(s, o);
    if (o->bits & OBJECT_INLINE) s->stat.evicted_inline++;
    if (object_pin(s, o) == STORE_PIN_SOFT) s->stat.evicted_soft_pinned++;
}

/* Leaves memory, but stays readable from a disk. false: there is no copy that could be read. */
static bool demote(struct store *s, struct object *o) {
    if (!(o->bits & OBJECT_PLACES)) return false;
    struct places p;
    places_read(s, o, &p);
    bool readable = false;
    for (uint32_t i = 0; i < p.n_far; i++)
        readable = readable || segment_readable(s->space.segments[p.far[i].segment]);
    if (!readable) return false;
    block_id blocks[PLACES_BLOCKS_MAX];
    uint32_t n = p.n_blocks;
    memcpy(blocks, p.block, n * sizeof(blocks[0]));
    p.n_memory = p.n_blocks = 0;
    memset(p.extents, 0, sizeof(p.extents));
    places_write(s, o, &p);
    o->bits &= ~(uint32_t)OBJECT_VICTIM;
    space_part(s, blocks, n);
    s->stat.evicted_to_far++;
    return true;
}

static void evict_one(struct store *s, struct object *o) {
    book_count_evicted(s, o);
    book_unlink(s, o);
    if (!book_far_only(o)) {
        struct policy *p = policy_of(s, o);
        p->ops->evicted(p, o, store_hash(store_object_key(o)));
        if (demote(s, o)) return;
        if (UNLIKELY(s->copying) && s->config.copies_all && await_disk(s, o) != STORE_SEGMENT_ANY)
            s->stat.evicted_before_copy++;
    }
    book_remove(s, o, STORE_NEWS_EVICTED);
}

#define COLDER_MAX 4u

/* A group goes together as far as the budget and the others' leases let it. */
void book_evict(struct store *s, struct object *o, unsigned *budget) {
    const struct extra *x = extra_find(s, o);
    struct group *g = x ? x->group : NULL;
    if (g) g->count++; /* keep it while its members go */
    evict_one(s, o);
    if (*budget > 0) --*budget;
    if (!g) return;
    struct extra *m, *next;
    LIST_FOREACH_SAFE(m, &g->members, of_group, next) {
        if (*budget == 0) break;
        struct object *other = record_get(&s->records, m->object);
        --*budget;
        if (!book_protected(s, other) && !(other->bits & OBJECT_VICTIM) && !book_far_only(other)) {
            s->stat.evicted_group++;
            evict_one(s, other);
        }
    }
    group_unref(s, g);
}

/* Values in the books make no room in the pool, but what is colder than what goes from there has
 * had its time as well. A few at a time: as many as go from the pool, and more where they are
 * behind. */
static void evict_colder_small(struct store *s, uint64_t idle_ms, unsigned *budget) {
    for (unsigned n = 0; n < COLDER_MAX && s->inline_count > 0 && *budget > 0; n++) {
        struct object *o = book_pop(s, -1, 1, false, false, budget);
        if (!o) return;
        if (store_object_idle_ms(s, o) <= idle_ms) {
            book_relink(s, o);
            return;
        }
        book_evict(s, o, budget);
    }
}

void book_evict_space(struct store *s, struct object *o, unsigned *budget) {
    uint64_t idle_ms = store_object_idle_ms(s, o), to_far = s->stat.evicted_to_far;
    book_evict(s, o, budget);
    if (s->stat.evicted_to_far > to_far)
        return; /* it has its time on a disk, and what belongs to it has no copy there */
    evict_colder_small(s, idle_ms, budget);
}

bool store_evict_object(struct store *s, struct object *o, uint64_t *bytes_p) {
    if (book_protected(s, o) || book_far_only(o)) return false;
    *bytes_p = store_object_size(s, o);
    s->stat.evict_command++;
    evict_one(s, o);
    return true;
}

/* Evicts whoever is next, with space first. false: nobody, or the budget is used up. */
static bool evict_next(struct store *s, unsigned *budget, uint64_t *objects_p, uint64_t *bytes_p) {
    uint64_t objects = s->stat.evicted_objects, bytes = s->stat.evicted_bytes;
    struct object *o = book_pop(s, -1, 0, true, false, budget);
    if (!o) o = book_pop(s, -1, 1, true, false, budget);
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
    uint64_t size = 0, used = 0, evictable = 0;
    for (uint32_t i = 0; i < s->space.n_segments; i++) {
        const struct segment *seg = s->space.segments[i];
        if (!seg || seg->tier != STORE_TIER_MEMORY || seg->state != SEGMENT_UP) continue;
        size += seg->units;
        used += seg->units - seg->free_units;
        evictable += seg->evictable_units;
    }
    return size > 0 && evictable > 0 && (double)used > s->config.high_watermark * (double)size;
}

#define EVICT_AHEAD 8u

/* The next few victims, with the chains of the index that they will be taken out of on their way to
 * the cache: most of what an eviction costs is waiting for these. */
static unsigned pop_ahead(struct store *s, struct object *next[EVICT_AHEAD], unsigned *budget) {
    uint64_t hash[EVICT_AHEAD], most = min_u64(min_u64(EVICT_AHEAD, s->evict_left), *budget);
    unsigned n = 0;
    while (n < most) {
        struct object *o = book_pop(s, -1, 0, false, true, budget);
        if (!o) break;
        o->bits |= OBJECT_VICTIM; /* not to be taken along by the group of another */
        hash[n] = store_hash(store_object_key(o));
        index_prefetch_bucket(&s->index, hash[n]);
        next[n++] = o;
    }
    for (unsigned i = 0; i < n; i++) index_prefetch_head(&s->index, hash[i]);
    return n;
}

/* Above the watermark a pass frees eviction_ratio of the objects in memory; another follows while
 * that was not enough. Not while what goes stays unusable (store_lead): it would be never
 * enough. */
static bool background_evict(struct store *s, unsigned *budget) {
    if (ghosts_hold(s) || s->keeps_expired) return false;
    if (s->policy->keeps) {
        s->evict_left = 0;
        return false;
    }
    while (*budget > 0) {
        if (!s->evict_left) {
            if (!above_watermark(s)) return false;
            uint64_t in_memory = s->index.count - s->inline_count - s->far_objects;
            s->evict_left = (uint64_t)((double)in_memory * s->config.eviction_ratio) + 1;
        }
        struct object *next[EVICT_AHEAD];
        unsigned n = pop_ahead(s, next, budget);
        if (n == 0) {
            if (*budget > 0) s->evict_left = 0; /* only soft-pinned objects are left */
            return *budget == 0;
        }
        s->stat.evicted_background += n;
        s->evict_left -= n;
        for (unsigned i = 0; i < n; i++) book_evict_space(s, next[i], budget);
    }
    return true;
}

/* --- background work --- */

static void remove_stale(void *arg, struct object *o) {
    struct store *s = arg;
    if (!book_stale(s, o)) return;
    s->stat.removed++;
    book_remove(s, o, STORE_NEWS_NONE); /* a flush was told */
}

static bool sweep_flushed(struct store *s, unsigned *budget) {
    while (s->stale > 0 && *budget > 0)
        index_walk(&s->index, &s->sweep_cursor, remove_stale, s, budget);
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

static void (*const over[WHEELS])(struct store *s, struct wheel_node *node) = {
    [WHEEL_GHOST] = ghost_over, [WHEEL_LEASE] = lease_over, [WHEEL_GUARD] = guard_over,
    [WHEEL_LOT] = lot_over,     [WHEEL_PUT] = put_over,     [WHEEL_PIN] = extra_pin_over,
};

bool store_background(struct store *s, unsigned *budget) {
    store_settle(s);
    bool more = false;
    struct wheel_node *n;
    for (unsigned i = 0; i < (s->following ? WHEEL_GHOST + 1 : WHEELS); i++)
        while (*budget > 0 && (n = wheel_pop(s->wheel[i], s->now_ms, budget, &more))) over[i](s, n);
    if (*budget == 0) return true;
    bool left = !s->following && !s->config.expire_apart && extra_due(s, budget);
    left |= sweep_flushed(s, budget);
    left |= quota_recount(s, budget);
    left |= migrate(s, budget); /* who is next is not what followers are told */
    if (!s->following && s->leaving) left |= segment_sweep(s, budget);
    if (!s->following) left |= background_evict(s, budget);
    return left || more || *budget == 0;
}

uint64_t store_next_ms(const struct store *s, uint64_t limit_ms) {
    if (s->stale || s->recount || s->legacy_count) return 0;
    if (s->following) return wheel_next_ms(s->wheel[WHEEL_GHOST], s->now_ms, limit_ms);
    if (s->evict_left || (s->leaving && segment_sweeping(s))) return 0;
    for (unsigned i = 0; i < WHEELS; i++)
        limit_ms = wheel_next_ms(s->wheel[i], s->now_ms, limit_ms);
    return s->config.expire_apart ? limit_ms : wheel_next_ms(s->ttl_wheel, s->wall_ms, limit_ms);
}

bool store_expire_due(struct store *s, unsigned *budget) {
    return !s->following && !s->keeps_expired && extra_due(s, budget);
}

uint64_t store_expire_next_ms(const struct store *s, uint64_t limit_ms) {
    if (s->following || s->keeps_expired) return limit_ms;
    return wheel_next_ms(s->ttl_wheel, s->wall_ms, limit_ms);
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

bool store_policy_keeps(const struct store *s) {
    return s->policy->keeps;
}
