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
        .prefill_rate = 512 << 20,
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
    if (!records_init(&s->records) || !index_init(&s->index, &s->records) ||
        !space_init(&s->space, allocator)) {
        index_free(&s->index);
        records_free(&s->records);
        space_free_all(&s->space);
        free(s);
        return NULL;
    }
    s->placement = placement_find("local-first");
    for (unsigned i = 0; i < WHEELS; i++) s->wheel[i] = wheel_create(mono_ms);
    s->ttl_wheel = wheel_create(wall_ms);
    story_init(s);
    rng_seed(&s->rng, s->config.seed != 0 ? s->config.seed : mono_ms ^ (uintptr_t)s);
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
    story_deinit(&s->story);
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
    if (s->now_ms >= s->story.pool_due_ms) story_tick(s);
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
    story_came(s, o, hash);
    together_came(s, store_object_key(o), hash);
}

/* NONE: another value comes in its place, or a flush has told of it. */
static void story_of_gone(struct store *s, const struct object *o, uint64_t hash,
                          enum store_news_kind why) {
    bool flushed = s->stale > 0 && book_stale(s, o);
    enum store_miss miss = flushed                     ? STORE_MISS_REMOVED
                           : why == STORE_NEWS_EVICTED ? STORE_MISS_EVICTED
                           : why == STORE_NEWS_EXPIRED ? STORE_MISS_EXPIRED
                           : why == STORE_NEWS_REMOVED ? STORE_MISS_REMOVED
                           : why == STORE_NEWS_LOST    ? STORE_MISS_AWAY
                                                       : STORE_MISS_NEVER;
    story_gone(s, o, hash, miss);
}

void book_remove(struct store *s, struct object *o, enum store_news_kind why) {
    struct span key = store_object_key(o);
    uint64_t hash = book_hash(s, o);
    effect_gone(s, o);
    news_object(s, why, o);
    together_gone(s, key, why);
    story_of_gone(s, o, hash, why);
    index_remove(&s->index, o, hash);
    if (book_stale(s, o)) s->stale--;
    book_unlink(s, o);
    if (o->bits & OBJECT_AWAITS) await_leave(s, o);
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
    /* A miss because its hosts are away, or because its space is being cleared: it must not come
     * back with them, or as its copy on a disk. */
    if (!found && (s->hidden || s->planner)) {
        o = index_find(&s->index, key, hash);
        bool clearing = o && s->planner && room_clearing(s, o);
        /* a miss for another reason, which removes it */
        if (o && (book_stale(s, o) || (is_here(s, o) && !clearing))) o = NULL;
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
    for (size_t i = 0; i < n; i++) index_prefetch_object(&s->index, hashes[i], keys[i].len);
}

/* The keys of a batch were mostly put together, so that this lies side by side, and costs more than
 * it saves. */
void store_prefetch_single(struct store *s, const struct span *keys, size_t n, uint64_t *hashes) {
    const struct object *hit[STORE_PREFETCH_MAX];
    size_t hits = 0;
    TARN_ASSERT(n <= STORE_PREFETCH_MAX);
    store_prefetch(s, keys, n, hashes);
    for (size_t i = 0; i < n; i++) {
        const struct object *o = index_likely(&s->index, hashes[i]);
        if (o == NULL || o->block == 0 || o->bits & OBJECT_INLINE) continue;
        __builtin_prefetch(block_get(&s->space, o->block), 1);
        hit[hits++] = o;
    }
    for (size_t i = 0; i < hits; i++) {
        const struct policy *p = order_policy(s, hit[i]);
        /* what was pinned when the policy changed has none */
        if (p->ops != NULL && p->ops->near != NULL) p->ops->near(p, hit[i]);
    }
}

struct object *book_seen(struct store *s, struct object *o) {
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

struct object *store_find_hashed(struct store *s, struct span key, uint64_t hash) {
    return book_seen(s, index_find(&s->index, key, hash));
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

static bool book_visible(const struct store *s, const struct object *o) {
    return !(s->stale && book_stale(s, o)) && !(s->planner && room_clearing(s, o)) &&
           !(s->hidden && !is_here(s, o)) && !((o->bits & OBJECT_EXTRA) && extra_expired(s, o));
}

struct object *store_random(struct store *s) {
    for (unsigned tries = 0; tries < 256 && s->index.count > 0; tries++) {
        struct object *o = index_sample(&s->index, rng_next(&s->rng));
        if (o && book_visible(s, o)) return o;
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
    if (book_visible(a->s, o)) a->fn(a->arg, o);
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

static void (*const over[WHEELS])(struct store *s, struct wheel_node *node) = {
    [WHEEL_GHOST] = ghost_over, [WHEEL_LEASE] = lease_over, [WHEEL_GUARD] = guard_over,
    [WHEEL_LOT] = lot_over,     [WHEEL_PUT] = put_over,     [WHEEL_PIN] = extra_pin_over,
};

bool store_background(struct store *s, unsigned *budget) {
    store_settle(s);
    bool more = false;
    struct wheel_node *n;
    for (unsigned i = 0; i < (s->following ? WHEEL_GHOST + 1 : WHEELS); i++)
        for (; *budget > 0 && (n = wheel_pop(s->wheel[i], s->now_ms, budget, &more)); --*budget)
            over[i](s, n);
    if (*budget == 0) return true;
    bool left = !s->following && !s->config.expire_apart && extra_due(s, budget);
    left |= sweep_flushed(s, budget);
    left |= quota_recount(s, budget);
    left |= order_migrate(s, budget); /* who is next is not what followers are told */
    if (!s->following && s->leaving) left |= segment_sweep(s, budget);
    if (!s->following) left |= evict_background(s, budget);
    return left || more || *budget == 0;
}

uint64_t store_next_ms(const struct store *s, uint64_t limit_ms) {
    if (s->stale || s->recount || s->migrating) return 0;
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
