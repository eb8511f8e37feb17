#include "store/index.h"

#include <stdlib.h>
#include "base/assert.h"
#include "base/htab.h"

#define SEGMENT     65536u
#define MIN_BUCKETS 1024u

static uint64_t bucket_count(const struct index *x) {
    return x->mask + 1 + x->split;
}

static object_ref *bucket_at(const struct index *x, uint64_t n) {
    return &x->dir[n / SEGMENT][n % SEGMENT];
}

/* The bucket of a hash: its low bits, one more of them where the bucket was split already. */
static uint64_t bucket_of(const struct index *x, uint64_t hash) {
    uint64_t n = hash & x->mask;
    return n < x->split ? hash & (2 * x->mask + 1) : n;
}

void index_init(struct index *x, struct records *records) {
    *x = (struct index){.records = records, .mask = MIN_BUCKETS - 1, .dir_cap = 16};
    x->dir = xcalloc(x->dir_cap, sizeof(*x->dir));
    x->dir[0] = xcalloc(SEGMENT, sizeof(object_ref));
    x->dir_len = 1;
}

void index_free(struct index *x) {
    for (uint32_t i = 0; i < x->dir_len; i++) free(x->dir[i]);
    free(x->dir);
    *x = (struct index){0};
}

struct object *index_find(const struct index *x, struct span key, uint64_t hash) {
    struct object *o = record_get(x->records, *bucket_at(x, bucket_of(x, hash)));
    for (; o; o = record_get(x->records, o->hash_next))
        if (object_key_len(o) == key.len && memcmp(o->data, key.data, key.len) == 0) return o;
    return NULL;
}

static void ensure_segment(struct index *x, uint64_t n) {
    uint32_t segment = (uint32_t)(n / SEGMENT);
    if (segment < x->dir_len) return;
    if (segment == x->dir_cap) {
        x->dir_cap *= 2;
        x->dir = xrealloc(x->dir, x->dir_cap * sizeof(*x->dir));
    }
    x->dir[x->dir_len++] = xcalloc(SEGMENT, sizeof(object_ref));
}

static uint64_t object_hash(const struct object *o) {
    return hash_bytes(o->data, object_key_len(o));
}

struct object *index_find_hash(const struct index *x, uint64_t hash) {
    struct object *o = record_get(x->records, *bucket_at(x, bucket_of(x, hash)));
    while (o != NULL && object_hash(o) != hash) o = record_get(x->records, o->hash_next);
    return o;
}

static void split_one(struct index *x) {
    uint64_t from = x->split, to = x->mask + 1 + x->split, bit = x->mask + 1;
    ensure_segment(x, to);
    object_ref ref = *bucket_at(x, from), stay = 0, move = 0;
    while (ref) {
        struct object *o = record_get(x->records, ref);
        object_ref next = o->hash_next, *head = object_hash(o) & bit ? &move : &stay;
        o->hash_next = *head;
        *head = ref;
        ref = next;
    }
    *bucket_at(x, from) = stay;
    *bucket_at(x, to) = move;
    if (++x->split > x->mask) {
        x->mask = 2 * x->mask + 1;
        x->split = 0;
    }
    /* The next split comes with the next insertion or so. */
    __builtin_prefetch(record_get(x->records, *bucket_at(x, x->split)));
}

static void merge_one(struct index *x) {
    if (x->split == 0) {
        x->mask /= 2;
        x->split = x->mask + 1;
    }
    x->split--;
    uint64_t into = x->split, from = x->mask + 1 + x->split;
    object_ref *tail = bucket_at(x, into);
    while (*tail) tail = &record_get(x->records, *tail)->hash_next;
    *tail = *bucket_at(x, from);
    *bucket_at(x, from) = 0;
    /* Segments go once a whole one lies unused behind the last bucket, so that growth and shrinkage
     * do not flap. */
    if (x->dir_len > from / SEGMENT + 2) free(x->dir[--x->dir_len]);
}

void index_insert(struct index *x, struct object *o, uint64_t hash) {
    if (++x->count > bucket_count(x)) split_one(x);
    object_ref *head = bucket_at(x, bucket_of(x, hash));
    o->hash_next = *head;
    *head = record_ref(x->records, o);
}

void index_remove(struct index *x, struct object *o, uint64_t hash) {
    object_ref ref = record_ref(x->records, o), *link = bucket_at(x, bucket_of(x, hash));
    while (*link != ref) {
        TARN_ASSERT(*link != 0);
        link = &record_get(x->records, *link)->hash_next;
    }
    *link = o->hash_next;
    if (--x->count < bucket_count(x) / 4 && bucket_count(x) > MIN_BUCKETS) merge_one(x);
}

void index_prefetch_bucket(const struct index *x, uint64_t hash) {
    __builtin_prefetch(bucket_at(x, bucket_of(x, hash)));
}

void index_prefetch_head(const struct index *x, uint64_t hash) {
    const char *o = (const char *)record_get(x->records, *bucket_at(x, bucket_of(x, hash)));
    if (!o) return;
    __builtin_prefetch(o);
    __builtin_prefetch(o + 64);
}

void index_prefetch_key(const struct index *x, uint64_t hash, size_t key_len) {
    const struct object *o = record_get(x->records, *bucket_at(x, bucket_of(x, hash)));
    if (o) __builtin_prefetch(o->data + key_len - 1);
}

static uint64_t reverse_bits(uint64_t v) {
    uint64_t r = 0;
    for (int i = 0; i < 64; i++, v >>= 1) r = r << 1 | (v & 1);
    return r;
}

static unsigned bucket_visit(struct index *x, uint64_t n, index_fn fn, void *arg) {
    unsigned seen = 0;
    for (object_ref ref = *bucket_at(x, n); ref; seen++) {
        struct object *o = record_get(x->records, ref);
        ref = o->hash_next;
        fn(arg, o);
    }
    return seen;
}

/* The cursor counts with its bits reversed (Pieter Noordhuis' scheme for Redis' SCAN), so that a
 * bucket's later halves come right after it whatever the table's size is by then. Buckets already
 * split are visited with their other half. */
static uint64_t scan_step(struct index *x, uint64_t cursor, index_fn fn, void *arg,
                          unsigned *seen_p) {
    uint64_t mask = x->mask, n = cursor & mask, halves = n < x->split;
    *seen_p = bucket_visit(x, n, fn, arg);
    /* fn may have removed objects and so merged the halves: then the other one is part of this
     * bucket now. */
    if (halves)
        *seen_p += bucket_visit(x, x->mask == mask && n < x->split ? n + mask + 1 : bucket_of(x, n),
                                fn, arg);
    cursor |= ~mask;
    return reverse_bits(reverse_bits(cursor) + 1);
}

uint64_t index_scan(struct index *x, uint64_t cursor, index_fn fn, void *arg) {
    unsigned seen;
    return scan_step(x, cursor, fn, arg, &seen);
}

bool index_walk(struct index *x, uint64_t *cursor, index_fn fn, void *arg, unsigned *budget) {
    unsigned seen;
    do {
        if (*budget == 0) return false;
        *cursor = scan_step(x, *cursor, fn, arg, &seen);
        *budget -= (unsigned)min_u64(*budget, seen + 1);
    } while (*cursor);
    return true;
}

void index_each(struct index *x, index_fn fn, void *arg) {
    uint64_t cursor = 0;
    do cursor = index_scan(x, cursor, fn, arg);
    while (cursor);
}

struct object *index_sample(const struct index *x, uint64_t random) {
    /* From an empty bucket on to the next ones, so that a small table is not searched in vain. */
    uint64_t n = random % bucket_count(x), steps = 64;
    while (*bucket_at(x, n) == 0) {
        if (--steps == 0) return NULL;
        n = (n + 1) % bucket_count(x);
    }
    unsigned length = 0;
    for (object_ref ref = *bucket_at(x, n); ref; ref = record_get(x->records, ref)->hash_next)
        length++;
    object_ref ref = *bucket_at(x, n);
    for (unsigned skip = (unsigned)((random >> 40) % length); skip; skip--)
        ref = record_get(x->records, ref)->hash_next;
    return record_get(x->records, ref);
}

uint64_t index_memory(const struct index *x) {
    return (uint64_t)x->dir_len * SEGMENT * sizeof(object_ref) + x->dir_cap * sizeof(*x->dir);
}
