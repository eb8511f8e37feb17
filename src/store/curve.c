#include "store/curve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/buf.h"
#include "base/htab.h"
#include "store/policy.h"

const double curve_scales[CURVE_SIZES] = {0.25, 0.5, 1, 2, 4};

#define CACHES    (CURVE_ORDERS * CURVE_SIZES)
#define GROUPS    8u   /* of keys, by which the error is known */
#define STUDENT   2.36 /* 95 % of a t distribution of GROUPS - 1 degrees of freedom */
#define SHIFT_MAX 32u
#define CLEAR_MAX 32u /* buckets in one event */
#define EVICT_MAX 64u /* in one event and cache: a pool that shrank gets small over several */

/* A key of the sample, as long as one of the caches has it. */
struct curve_key {
    struct htab_node node;
    uint64_t size;
    object_ref at[CACHES];
};

struct curve_cache {
    struct policy policy;
    uint64_t used, capacity; /* bytes, of the sample's share */
    bool filled;             /* had to evict */
};

struct curve_state {
    struct curve head;
    struct curve_limits limits;
    struct records records;
    struct htab keys;
    unsigned shift; /* one key in 2^shift */
    /* A halved sample is cleared in slices. Until that is over the pools keep the space they had:
     * those that are to leave are still in it. */
    bool clearing;
    uint64_t clear_cursor;
    unsigned space_shift; /* that the capacities are for */
    uint64_t pool_bytes;
    unsigned caches; /* all, or lru's */
    struct curve_cache cache[CACHES];
    uint64_t second, events; /* of the sample in this second */
    uint64_t halved_ms;      /* when counts were halved last */
    double expected;         /* look-ups that the sample's share of all would have been */
    double looks[GROUPS];
    double hits[CACHES][GROUPS];
};

/* What a simulated object is named by: policies that remember keys hash it again. */
struct curve_name {
    uint64_t hash;
};

static struct curve_state *state_of(struct curve *c) {
    return CONTAINER_OF(c, struct curve_state, head);
}

static uint64_t hash_of(const struct object *o) {
    return store_hash(span_of(o->data, sizeof(struct curve_name)));
}

static uint64_t name_of(const struct object *o) {
    struct curve_name name;
    memcpy(&name, o->data, sizeof(name));
    return name.hash;
}

static bool key_is(const struct htab_node *node, const void *key) {
    return node->hash == *(const uint64_t *)key;
}

static struct curve_key *key_find(const struct curve_state *c, uint64_t hash) {
    struct htab_node *node = htab_find(&c->keys, hash, key_is, &hash);
    return node ? CONTAINER_OF(node, struct curve_key, node) : NULL;
}

static struct policy_event curve_event(const struct object *o, uint64_t now_ms, bool put) {
    return (struct policy_event){.now_ms = now_ms, .hash = hash_of(o), .length = 1, .put = put};
}

/* --- one simulated pool --- */

static void cache_drop(struct curve_state *c, unsigned i, struct curve_key *k) {
    c->cache[i].used -= k->size;
    record_free(&c->records, record_get(&c->records, k->at[i]),
                sizeof(struct object) + sizeof(struct curve_name));
    k->at[i] = 0;
}

static void key_free_unused(struct curve_state *c, struct curve_key *k) {
    for (unsigned i = 0; i < c->caches; i++)
        if (k->at[i]) return;
    htab_remove(&c->keys, &k->node);
    free(k);
}

/* `but` stays in the table: its event goes on. */
static void cache_make_room(struct curve_state *c, unsigned i, uint64_t size, uint64_t now_ms,
                            const struct curve_key *but) {
    struct curve_cache *cache = &c->cache[i];
    struct policy *p = &cache->policy;
    for (unsigned n = 0; cache->used + size > cache->capacity && n < EVICT_MAX; n++) {
        struct object *o = p->ops->pop(p, now_ms);
        if (!o) return;
        cache->filled = true;
        p->ops->evicted(p, o, hash_of(o));
        struct curve_key *k = key_find(c, name_of(o));
        TARN_ASSERT(k != NULL && k->at[i] == record_ref(&c->records, o));
        cache_drop(c, i, k);
        if (k != but) key_free_unused(c, k);
    }
}

static void cache_insert(struct curve_state *c, unsigned i, struct curve_key *k, uint64_t now_ms) {
    struct curve_cache *cache = &c->cache[i];
    struct policy *p = &cache->policy;
    if (k->at[i]) return;
    if (p->ops->keeps && cache->used + k->size > cache->capacity) {
        cache->filled = true;
        return;
    }
    if (k->size > cache->capacity) return;
    cache_make_room(c, i, k->size, now_ms, k);
    struct object *o = record_alloc(&c->records, sizeof(struct object) + sizeof(struct curve_name));
    if (!o) return;
    memset(o, 0, sizeof(*o));
    o->bits = sizeof(struct curve_name);
    memcpy(o->data, &(struct curve_name){.hash = k->node.hash}, sizeof(struct curve_name));
    object_set_atime(o, (uint32_t)(now_ms / 1000) & 0xffffff);
    k->at[i] = record_ref(&c->records, o);
    cache->used += k->size;
    struct policy_event e = curve_event(o, now_ms, true);
    p->ops->insert(p, o, &e);
}

static void cache_access(struct curve_state *c, unsigned i, struct curve_key *k, uint64_t now_ms) {
    struct policy *p = &c->cache[i].policy;
    struct object *o = record_get(&c->records, k->at[i]);
    struct policy_event e = curve_event(o, now_ms, false);
    p->ops->access(p, o, &e);
    object_set_atime(o, (uint32_t)(now_ms / 1000) & 0xffffff);
}

/* --- the sample --- */

static void key_leave(struct curve_state *c, struct curve_key *k) {
    for (unsigned i = 0; i < c->caches; i++) {
        if (!k->at[i]) continue;
        struct policy *p = &c->cache[i].policy;
        p->ops->unlink(p, record_get(&c->records, k->at[i]));
        cache_drop(c, i, k);
    }
    key_free_unused(c, k);
}

/* Look-ups up to now were sampled at the rate of now. */
static void looks_settle(struct curve_state *c) {
    c->expected += ldexp((double)c->head.looks, -(int)c->shift);
    c->head.looks = 0;
}

/* Without a pool nothing was sampled. */
static void looks_of_pool(struct curve_state *c) {
    if (c->pool_bytes == 0) c->head.looks = 0;
    looks_settle(c);
}

static void capacities_set(struct curve_state *c) {
    for (unsigned i = 0; i < c->caches; i++)
        c->cache[i].capacity = (uint64_t)ldexp(
            (double)c->pool_bytes * curve_scales[i % CURVE_SIZES], -(int)c->space_shift);
}

static void key_leave_above(void *arg, struct htab_node *node) {
    struct curve_state *c = arg;
    if (node->hash > c->head.limit) key_leave(c, CONTAINER_OF(node, struct curve_key, node));
}

static void sample_clear(struct curve_state *c) {
    for (unsigned n = 0; c->clearing && n < CLEAR_MAX; n++) {
        c->clear_cursor = htab_scan(&c->keys, c->clear_cursor, key_leave_above, c);
        if (c->clear_cursor != 0) continue;
        c->clearing = false;
        c->space_shift = c->shift;
        capacities_set(c);
    }
}

static void sample_halve(struct curve_state *c) {
    if (c->shift == SHIFT_MAX) return;
    looks_settle(c);
    c->shift++;
    c->head.limit = UINT64_MAX >> c->shift;
    c->clearing = true;
    c->clear_cursor = 0;
    /* As many look-ups weigh half as much from now on: what was seen before counts as the sample
     * of now would have seen it. */
    c->expected /= 2;
    for (unsigned g = 0; g < GROUPS; g++) {
        c->looks[g] /= 2;
        for (unsigned i = 0; i < c->caches; i++) c->hits[i][g] /= 2;
    }
}

static void counts_fade(struct curve_state *c, uint64_t now_ms) {
    if (c->halved_ms == 0) c->halved_ms = now_ms;
    for (unsigned n = 0; now_ms - c->halved_ms >= CURVE_HALF_MS && n < 64; n++) {
        looks_settle(c);
        c->halved_ms += CURVE_HALF_MS;
        c->expected /= 2;
        for (unsigned g = 0; g < GROUPS; g++) {
            c->looks[g] /= 2;
            for (unsigned i = 0; i < c->caches; i++) c->hits[i][g] /= 2;
        }
    }
    if (now_ms - c->halved_ms >= CURVE_HALF_MS) c->halved_ms = now_ms; /* nothing is left */
}

/* false: the key is not in the sample any more. */
static bool event_begin(struct curve_state *c, uint64_t hash, uint64_t now_ms) {
    counts_fade(c, now_ms);
    if (now_ms / 1000 != c->second) {
        c->second = now_ms / 1000;
        c->events = 0;
    }
    if (++c->events > c->limits.events_max) {
        c->events = 0;
        sample_halve(c);
    }
    sample_clear(c);
    return hash <= c->head.limit;
}

static struct curve_key *key_add(struct curve_state *c, uint64_t hash, uint64_t size) {
    if (c->keys.count >= c->limits.keys_max && !c->clearing) {
        sample_halve(c);
        sample_clear(c);
    }
    if (hash > c->head.limit || c->keys.count >= c->limits.keys_max) return NULL;
    struct curve_key *k = xcalloc(1, sizeof(*k));
    k->size = size;
    htab_insert(&c->keys, &k->node, hash);
    return k;
}

/* In each pool that does not have it: the engine would have put it there. */
static void key_enter(struct curve_state *c, struct curve_key *k, uint64_t now_ms) {
    for (unsigned i = 0; i < c->caches; i++) cache_insert(c, i, k, now_ms);
    key_free_unused(c, k);
}

/* --- public --- */

struct curve *curve_create(const struct policy_ops *ops, const struct store_config *config,
                           const struct curve_limits *limits) {
    struct curve_state *c = xcalloc(1, sizeof(*c));
    c->limits = (struct curve_limits){CURVE_KEYS_MAX, CURVE_EVENTS_MAX};
    if (limits && limits->keys_max) c->limits.keys_max = limits->keys_max;
    if (limits && limits->events_max) c->limits.events_max = limits->events_max;
    c->head.limit = UINT64_MAX;
    c->caches = ops->chains ? CURVE_SIZES : CACHES;
    if (!records_init(&c->records)) {
        free(c);
        return NULL;
    }
    for (unsigned i = 0; i < c->caches; i++)
        policy_open(&c->cache[i].policy, i < CURVE_SIZES ? &policy_lru : ops, &c->records, config);
    return &c->head;
}

static void key_leave_any(void *arg, struct htab_node *node) {
    key_leave(arg, CONTAINER_OF(node, struct curve_key, node));
}

void curve_destroy(struct curve **curve_p) {
    if (!*curve_p) return;
    struct curve_state *c = state_of(*curve_p);
    htab_each(&c->keys, key_leave_any, c);
    htab_free(&c->keys);
    for (unsigned i = 0; i < c->caches; i++) policy_close(&c->cache[i].policy);
    records_free(&c->records);
    free(c);
    *curve_p = NULL;
}

void curve_set_pool(struct curve *curve, uint64_t bytes) {
    struct curve_state *c = state_of(curve);
    looks_of_pool(c);
    c->pool_bytes = bytes;
    capacities_set(c);
}

void curve_look_sampled(struct curve *curve, uint64_t hash, uint64_t size, uint64_t now_ms) {
    struct curve_state *c = state_of(curve);
    if (c->pool_bytes == 0 || !event_begin(c, hash, now_ms)) return;
    unsigned group = hash % GROUPS;
    c->looks[group]++;
    struct curve_key *k = key_find(c, hash);
    for (unsigned i = 0; k && i < c->caches; i++) {
        if (!k->at[i]) continue;
        c->hits[i][group]++;
        cache_access(c, i, k, now_ms);
    }
    if (size == 0) return; /* it misses here, too, and a put may follow */
    if (!k && !(k = key_add(c, hash, size))) return;
    key_enter(c, k, now_ms);
}

void curve_put_sampled(struct curve *curve, uint64_t hash, uint64_t size, uint64_t now_ms) {
    struct curve_state *c = state_of(curve);
    TARN_ASSERT(size > 0);
    if (c->pool_bytes == 0 || !event_begin(c, hash, now_ms)) return;
    struct curve_key *k = key_find(c, hash);
    if (!k && !(k = key_add(c, hash, size))) return;
    key_enter(c, k, now_ms);
}

void curve_remove_sampled(struct curve *curve, uint64_t hash) {
    struct curve_state *c = state_of(curve);
    struct curve_key *k = key_find(c, hash);
    if (k) key_leave(c, k);
}

static double share_of(double hits, double looks, double expected) {
    if (expected <= 0) return 0;
    double share = (hits + expected - looks) / expected;
    return share < 0 ? 0 : share > 1 ? 1 : share;
}

/* The error by leaving out one group of keys after another (the jackknife): the look-ups of one key
 * are alike, so that their mere number would promise too much. */
static void point_of(const struct curve_state *c, unsigned i, struct curve_point *p) {
    double hits = 0, looks = 0, without[GROUPS], mean = 0, sum = 0;
    for (unsigned g = 0; g < GROUPS; g++) {
        hits += c->hits[i][g];
        looks += c->looks[g];
    }
    for (unsigned g = 0; g < GROUPS; g++) {
        without[g] = share_of(hits - c->hits[i][g], looks - c->looks[g],
                              c->expected * (GROUPS - 1) / GROUPS);
        mean += without[g] / GROUPS;
    }
    for (unsigned g = 0; g < GROUPS; g++) sum += (without[g] - mean) * (without[g] - mean);
    p->scale = curve_scales[i % CURVE_SIZES];
    p->hit_ratio = share_of(hits, looks, c->expected);
    p->error = c->shift == 0 ? 0 : STUDENT * sqrt(sum * (GROUPS - 1) / GROUPS);
    p->filled = c->cache[i].filled;
}

static uint64_t memory_of_curve(const struct curve_state *c) {
    uint64_t bytes = sizeof(*c) + records_memory(&c->records) + records_spare(&c->records) +
                     htab_memory(&c->keys) + c->keys.count * sizeof(struct curve_key);
    for (unsigned i = 0; i < c->caches; i++)
        bytes += c->cache[i].policy.ops->memory(&c->cache[i].policy);
    return bytes;
}

void curve_get(struct curve *curve, struct curve_figures *f) {
    struct curve_state *c = state_of(curve);
    looks_of_pool(c);
    *f = (struct curve_figures){.keys = c->keys.count,
                                .sample = UINT64_C(1) << c->shift,
                                .policy_known = c->caches == CACHES};
    for (unsigned g = 0; g < GROUPS; g++) f->looks += c->looks[g];
    f->memory_bytes = memory_of_curve(c);
    for (unsigned i = 0; i < CACHES; i++) /* of one that is not played: its scale */
        point_of(c, i, &f->point[i / CURVE_SIZES][i % CURVE_SIZES]);
}

void curve_reset(struct curve *curve) {
    struct curve_state *c = state_of(curve);
    c->head.looks = 0;
    c->expected = 0;
    memset(c->looks, 0, sizeof(c->looks));
    memset(c->hits, 0, sizeof(c->hits));
}
