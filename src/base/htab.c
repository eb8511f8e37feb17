/* Linear hashing (Litwin 1980) in segments, so that neither growing nor shrinking ever copies a
 * bucket array.
 *
 * With mask = 2^level - 1, buckets [0, split) and [mask + 1, mask + 1 + split) are addressed with
 * one bit more than the rest: they are what became of the first `split` buckets. Growing splits
 * bucket `split` in two; shrinking merges the last bucket back into the one it came from. Load
 * stays in [1/4, 1].
 *
 * htab_scan counts its cursor in reversed bits, as SCAN does in Redis. Read that way a bucket of n
 * address bits is an interval of reversed hashes, splits and merges only cut and join intervals,
 * and the cursor is a point that moves from the end of one interval to the next: whatever lies
 * before it was seen, whatever the table did meanwhile. */
#include "base/htab.h"

#include <stdlib.h>
#include <string.h>

#include <sodium.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/assert.h"
#include "base/buf.h"

#define SEGMENT_BITS    12
#define SEGMENT_BUCKETS ((size_t)1 << SEGMENT_BITS)
#define MIN_BUCKETS     ((size_t)16)
/* Load 1/4 is kept by merging four buckets per node that goes; one more makes up for rounding. */
#define MERGES_PER_REMOVE 5

struct htab_segment {
    struct htab_node *bucket[1];
};

static uint64_t hash_seed;

__attribute__((constructor)) static void seed_hash(void) {
    randombytes_buf(&hash_seed, sizeof(hash_seed));
}

void hash_set_seed(uint64_t seed) {
    hash_seed = seed;
}

uint64_t hash_bytes(const void *data, size_t len) {
    return XXH3_64bits_withSeed(data, len, hash_seed);
}

uint64_t hash_u64(uint64_t v) {
    return XXH3_64bits_withSeed(&v, sizeof(v), hash_seed);
}

static struct htab_node **htab_bucket_at(const struct htab *t, size_t i) {
    return &t->dir[i >> SEGMENT_BITS]->bucket[i & (SEGMENT_BUCKETS - 1)];
}

static size_t bucket_index(const struct htab *t, uint64_t hash) {
    size_t i = hash & t->mask;
    if (i < t->split) i = hash & (t->mask * 2 + 1);
    return i;
}

static size_t segment_bytes(size_t buckets) {
    return buckets * sizeof(struct htab_node *);
}

/* Small tables are many: the first segment starts with 16 buckets and doubles until it is like the
 * others. Its size follows from `buckets`: the next power of two. */
static void resize_first_segment(struct htab *t, size_t from, size_t to) {
    t->dir[0] = xrealloc(t->dir[0], segment_bytes(to));
    if (to > from) memset(&t->dir[0]->bucket[from], 0, segment_bytes(to - from));
}

static void first_buckets(struct htab *t) {
    t->dir_cap = 1;
    t->dir = xmalloc(sizeof(*t->dir));
    t->dir[0] = xcalloc(1, segment_bytes(MIN_BUCKETS));
    t->buckets = MIN_BUCKETS;
    t->mask = MIN_BUCKETS - 1;
    t->split = 0;
}

static void add_bucket_memory(struct htab *t) {
    size_t i = t->buckets;
    if (i < SEGMENT_BUCKETS) {
        if ((i & (i - 1)) == 0) resize_first_segment(t, i, i * 2);
        return;
    }
    if ((i & (SEGMENT_BUCKETS - 1)) != 0) return;
    size_t seg = i >> SEGMENT_BITS;
    if (seg == t->dir_cap) {
        t->dir_cap *= 2;
        t->dir = xrealloc(t->dir, t->dir_cap * sizeof(*t->dir));
    }
    t->dir[seg] = xcalloc(1, segment_bytes(SEGMENT_BUCKETS));
}

static void drop_bucket_memory(struct htab *t) {
    size_t i = t->buckets; /* the bucket that has just gone */
    if (i < SEGMENT_BUCKETS) {
        if ((i & (i - 1)) == 0 && i >= MIN_BUCKETS) resize_first_segment(t, i * 2, i);
        return;
    }
    if ((i & (SEGMENT_BUCKETS - 1)) != 0) return;
    size_t seg = i >> SEGMENT_BITS;
    free(t->dir[seg]);
    t->dir[seg] = NULL;
    if (t->dir_cap > 64 && seg < t->dir_cap / 4) {
        t->dir_cap /= 2;
        t->dir = xrealloc(t->dir, t->dir_cap * sizeof(*t->dir));
    }
}

static void htab_split_one(struct htab *t) {
    add_bucket_memory(t);
    struct htab_node **stay = htab_bucket_at(t, t->split), **move = htab_bucket_at(t, t->buckets);
    size_t bit = t->mask + 1;
    for (struct htab_node *n = *stay; n != NULL; n = n->next) {
        if (n->hash & bit) {
            *move = n;
            move = &n->next;
        } else {
            *stay = n;
            stay = &n->next;
        }
    }
    *stay = *move = NULL;
    t->buckets++;
    if (++t->split > t->mask) {
        t->mask = t->mask * 2 + 1;
        t->split = 0;
    }
}

static void htab_merge_one(struct htab *t) {
    if (t->split == 0) {
        t->mask >>= 1;
        t->split = t->mask + 1;
    }
    t->split--;
    t->buckets--;
    struct htab_node *chain = *htab_bucket_at(t, t->buckets);
    if (chain != NULL) {
        struct htab_node **end = htab_bucket_at(t, t->split);
        while (*end != NULL) end = &(*end)->next;
        *end = chain;
    }
    drop_bucket_memory(t);
}

void htab_free(struct htab *t) {
    for (size_t i = 0; i << SEGMENT_BITS < t->buckets; i++) free(t->dir[i]);
    free(t->dir);
    *t = (struct htab){0};
}

struct htab_node *htab_find(const struct htab *t, uint64_t hash, htab_eq_fn eq, const void *key) {
    if (t->count == 0) return NULL;
    struct htab_node *n = *htab_bucket_at(t, bucket_index(t, hash));
    while (n != NULL && !(n->hash == hash && eq(n, key))) n = n->next;
    return n;
}

void htab_insert(struct htab *t, struct htab_node *node, uint64_t hash) {
    if (UNLIKELY(t->buckets == 0)) first_buckets(t);
    node->hash = hash;
    struct htab_node **head = htab_bucket_at(t, bucket_index(t, hash));
    node->next = *head;
    *head = node;
    if (++t->count > t->buckets) htab_split_one(t);
}

void htab_remove(struct htab *t, struct htab_node *node) {
    TARN_ASSERT(t->count > 0);
    struct htab_node **p = htab_bucket_at(t, bucket_index(t, node->hash));
    while (*p != node) {
        TARN_ASSERT(*p != NULL);
        p = &(*p)->next;
    }
    *p = node->next;
    node->next = NULL;
    t->count--;
    for (int i = 0; i < MERGES_PER_REMOVE && t->buckets > MIN_BUCKETS && t->count < t->buckets / 4;
         i++)
        htab_merge_one(t);
}

size_t htab_memory(const struct htab *t) {
    if (t->buckets == 0) return 0;
    size_t buckets = t->buckets;
    if (buckets >= SEGMENT_BUCKETS) {
        buckets = (buckets + SEGMENT_BUCKETS - 1) & ~(SEGMENT_BUCKETS - 1);
    } else {
        size_t pow2 = MIN_BUCKETS;
        while (pow2 < buckets) pow2 *= 2;
        buckets = pow2;
    }
    return t->dir_cap * sizeof(*t->dir) + segment_bytes(buckets);
}

static uint64_t htab_reverse_bits(uint64_t v) {
    v = ((v >> 1) & 0x5555555555555555u) | ((v & 0x5555555555555555u) << 1);
    v = ((v >> 2) & 0x3333333333333333u) | ((v & 0x3333333333333333u) << 2);
    v = ((v >> 4) & 0x0F0F0F0F0F0F0F0Fu) | ((v & 0x0F0F0F0F0F0F0F0Fu) << 4);
    return __builtin_bswap64(v);
}

uint64_t htab_scan(const struct htab *t, uint64_t cursor,
                   void (*fn)(void *arg, struct htab_node *node), void *arg) {
    if (t->count == 0) return 0;
    uint64_t mask = (cursor & t->mask) < t->split ? t->mask * 2 + 1 : t->mask;
    struct htab_node *n = *htab_bucket_at(t, cursor & mask), *next;
    for (; n != NULL; n = next) {
        next = n->next; /* fn may remove n */
        fn(arg, n);
    }
    return htab_reverse_bits(htab_reverse_bits(cursor | ~mask) + 1);
}

void htab_each(const struct htab *t, void (*fn)(void *arg, struct htab_node *node), void *arg) {
    uint64_t cursor = 0;
    do cursor = htab_scan(t, cursor, fn, arg);
    while (cursor != 0);
}
