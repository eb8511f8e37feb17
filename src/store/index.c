#include "store/index.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include "base/assert.h"
#include "base/htab.h"

#define TAG_SHIFT   10u
#define MIN_BUCKETS (UINT64_C(1) << TAG_SHIFT)
#define MAX_BUCKETS (UINT64_C(1) << (TAG_SHIFT + 16)) /* tags say no more of a hash */
#define SPARE       ((uint64_t)2 << 20)               /* bytes */

_Static_assert(sizeof(struct index_bucket) == 64, "a cache line");

static uint64_t bucket_count(const struct index *x) {
    return x->mask + 1 + x->split;
}

static struct index_bucket *bucket_at(const struct index *x, uint64_t n) {
    return (struct index_bucket *)(void *)x->arena.base + n;
}

/* The bucket of a hash: its low bits, one more of them where the bucket was split already. */
static uint64_t bucket_of(const struct index *x, uint64_t hash) {
    uint64_t n = hash & x->mask;
    return n < x->split ? hash & (2 * x->mask + 1) : n;
}

/* The bits that buckets are split by, and those above. */
static uint16_t tag_of(uint64_t hash) {
    return (uint16_t)(hash >> TAG_SHIFT);
}

bool index_init(struct index *x, struct records *records) {
    *x = (struct index){.records = records, .mask = MIN_BUCKETS - 1, .more = 1};
    return page_arena_init(&x->arena, MAX_BUCKETS * sizeof(struct index_bucket),
                           PAGES_HUGE | PAGES_AHEAD) &&
           page_arena_init(&x->more_arena, MAX_BUCKETS * sizeof(struct index_bucket),
                           PAGES_HUGE | PAGES_AHEAD) &&
           page_arena_grow(&x->arena, MIN_BUCKETS * sizeof(struct index_bucket));
}

void index_free(struct index *x) {
    page_arena_free(&x->arena);
    page_arena_free(&x->more_arena);
    *x = (struct index){0};
}

/* --- chains of buckets --- */

static struct index_bucket *more_at(const struct index *x, uint32_t n) {
    return (struct index_bucket *)(void *)x->more_arena.base + n;
}

static uint32_t more_new(struct index *x) {
    uint32_t n = x->spare;
    if (n != 0) {
        x->spare = more_at(x, n)->more;
    } else {
        n = x->more++;
        bool ready = page_arena_grow(&x->more_arena, x->more * sizeof(struct index_bucket));
        TARN_ASSERT(ready); /* records, of which each bucket has some, run out before */
    }
    *more_at(x, n) = (struct index_bucket){0};
    x->more_live++;
    return n;
}

static void more_free(struct index *x, uint32_t n) {
    more_at(x, n)->more = x->spare;
    x->spare = n;
    x->more_live--;
}

/* A bit for each slot with that tag, and perhaps for some that nobody has. */
static unsigned bucket_matches(const struct index_bucket *b, uint16_t tag) {
    unsigned bits = 0;
#ifdef __SSE2__
    const char *at = (const char *)b; /* the second load has the last tags in front */
    __m128i wanted = _mm_set1_epi16((short)tag),
            first = _mm_load_si128((const __m128i *)(const void *)at),
            second = _mm_load_si128((const __m128i *)(const void *)(at + sizeof(first)));
    bits = (unsigned)_mm_movemask_epi8(
        _mm_packs_epi16(_mm_cmpeq_epi16(first, wanted), _mm_cmpeq_epi16(second, wanted)));
#else
    for (unsigned i = 0; i < INDEX_SLOTS; i++) bits |= (unsigned)(b->tag[i] == tag) << i;
#endif
    return bits & ((1u << INDEX_SLOTS) - 1);
}

static unsigned bucket_used(const struct index_bucket *b) {
    unsigned n = 0;
    while (n < INDEX_SLOTS && b->ref[n] != 0) n++;
    return n;
}

static void bucket_add(struct index *x, struct index_bucket *b, uint16_t tag, object_ref ref) {
    while (b->ref[INDEX_SLOTS - 1] != 0) {
        if (b->more == 0) b->more = more_new(x);
        b = more_at(x, b->more);
    }
    unsigned i = bucket_used(b);
    b->tag[i] = tag;
    b->ref[i] = ref;
}

/* All of a bucket, to one of two by a bit of their tags. */
static void bucket_move(struct index *x, struct index_bucket *from, struct index_bucket *zero,
                        struct index_bucket *one, uint16_t bit) {
    struct index_bucket b = *from;
    *from = (struct index_bucket){0};
    for (;;) {
        for (unsigned i = 0; i < INDEX_SLOTS && b.ref[i] != 0; i++)
            bucket_add(x, b.tag[i] & bit ? one : zero, b.tag[i], b.ref[i]);
        uint32_t more = b.more;
        if (more == 0) return;
        b = *more_at(x, more);
        more_free(x, more);
    }
}

/* The last one of the chain comes in its place. */
static void bucket_remove(struct index *x, struct index_bucket *b, object_ref ref) {
    struct index_bucket *in = b, *last = b;
    uint32_t *link = NULL; /* to last */
    unsigned i = 0;
    while (in->ref[i] != ref) {
        if (++i < INDEX_SLOTS) continue;
        TARN_ASSERT(in->more != 0);
        in = more_at(x, in->more);
        i = 0;
    }
    while (last->more != 0) {
        link = &last->more;
        last = more_at(x, last->more);
    }
    unsigned n = bucket_used(last) - 1;
    in->tag[i] = last->tag[n];
    in->ref[i] = last->ref[n];
    last->ref[n] = 0;
    if (n > 0 || !link) return;
    more_free(x, *link);
    *link = 0;
}

/* --- the table --- */

static const struct index_bucket *bucket_next(const struct index *x, const struct index_bucket *b) {
    return b->more != 0 ? more_at(x, b->more) : NULL;
}

static bool has_key(const struct object *o, struct span key) {
    return object_key_len(o) == key.len && memcmp(o->data, key.data, key.len) == 0;
}

struct object *index_find(const struct index *x, struct span key, uint64_t hash) {
    const struct index_bucket *b = bucket_at(x, bucket_of(x, hash));
    for (; b != NULL; b = bucket_next(x, b))
        for (unsigned bits = bucket_matches(b, tag_of(hash)); bits != 0; bits &= bits - 1) {
            struct object *o = record_get(x->records, b->ref[__builtin_ctz(bits)]);
            if (o != NULL && has_key(o, key)) return o;
        }
    return NULL;
}

struct object *index_find_hash(const struct index *x, uint64_t hash) {
    const struct index_bucket *b = bucket_at(x, bucket_of(x, hash));
    for (; b != NULL; b = bucket_next(x, b))
        for (unsigned bits = bucket_matches(b, tag_of(hash)); bits != 0; bits &= bits - 1) {
            struct object *o = record_get(x->records, b->ref[__builtin_ctz(bits)]);
            if (o != NULL && hash_bytes(o->data, object_key_len(o)) == hash) return o;
        }
    return NULL;
}

/* Without memory buckets just get longer. */
static void split_one(struct index *x) {
    uint64_t bit = x->mask + 1, n = bit + x->split;
    if (n >= MAX_BUCKETS || !page_arena_grow(&x->arena, (n + 1) * sizeof(struct index_bucket)))
        return;
    struct index_bucket *from = bucket_at(x, x->split);
    bucket_move(x, from, from, bucket_at(x, n), tag_of(bit));
    if (++x->split > x->mask) {
        x->mask = 2 * x->mask + 1;
        x->split = 0;
    }
}

static void merge_one(struct index *x) {
    if (x->split == 0) {
        x->mask /= 2;
        x->split = x->mask + 1;
    }
    x->split--;
    uint64_t n = x->mask + 1 + x->split, end = n * sizeof(struct index_bucket) + SPARE;
    struct index_bucket *into = bucket_at(x, x->split);
    bucket_move(x, bucket_at(x, n), into, into, 0);
    /* Memory goes once SPARE of it lies unused behind the last bucket, so that growth and shrinkage
     * do not flap. */
    if (end % SPARE == 0 && end + SPARE <= x->arena.ready)
        page_arena_discard(&x->arena, end, SPARE);
}

void index_insert(struct index *x, struct object *o, uint64_t hash) {
    if (++x->count > bucket_count(x) * INDEX_LOAD) split_one(x);
    bucket_add(x, bucket_at(x, bucket_of(x, hash)), tag_of(hash), record_ref(x->records, o));
}

void index_remove(struct index *x, struct object *o, uint64_t hash) {
    bucket_remove(x, bucket_at(x, bucket_of(x, hash)), record_ref(x->records, o));
    if (--x->count < bucket_count(x) * INDEX_LOAD / 4 && bucket_count(x) > MIN_BUCKETS)
        merge_one(x);
}

void index_prefetch_bucket(const struct index *x, uint64_t hash) {
    __builtin_prefetch(bucket_at(x, bucket_of(x, hash)));
}

void index_prefetch_more(const struct index *x, uint64_t hash) {
    const struct index_bucket *b = bucket_at(x, bucket_of(x, hash));
    if (b->more != 0) __builtin_prefetch(more_at(x, b->more));
}

void index_prefetch_object(const struct index *x, uint64_t hash, size_t key_len) {
    const struct index_bucket *b = bucket_at(x, bucket_of(x, hash));
    if (b->more != 0) __builtin_prefetch(more_at(x, b->more));
    for (unsigned bits = bucket_matches(b, tag_of(hash)); bits != 0; bits &= bits - 1) {
        const struct object *o = record_get(x->records, b->ref[__builtin_ctz(bits)]);
        if (o == NULL) continue;
        __builtin_prefetch(o);
        __builtin_prefetch((const char *)o + 64);
        __builtin_prefetch(o->data + key_len - 1);
    }
}

const struct object *index_likely(const struct index *x, uint64_t hash) {
    const struct index_bucket *b = bucket_at(x, bucket_of(x, hash));
    unsigned bits = bucket_matches(b, tag_of(hash));
    return bits != 0 ? record_get(x->records, b->ref[__builtin_ctz(bits)]) : NULL;
}

static uint64_t reverse_bits(uint64_t v) {
    uint64_t r = 0;
    for (int i = 0; i < 64; i++, v >>= 1) r = r << 1 | (v & 1);
    return r;
}

/* The whole chain is copied before fn removes anything. */
static unsigned bucket_visit(struct index *x, const struct index_bucket *at, index_fn fn,
                             void *arg) {
    struct index_bucket b = *at;
    unsigned seen = b.more != 0 ? bucket_visit(x, more_at(x, b.more), fn, arg) : 0;
    for (unsigned i = 0; i < INDEX_SLOTS && b.ref[i] != 0; i++, seen++)
        fn(arg, record_get(x->records, b.ref[i]));
    return seen;
}

/* The cursor counts with its bits reversed (Pieter Noordhuis' scheme for Redis' SCAN), so that a
 * bucket's later halves come right after it whatever the table's size is by then. Buckets already
 * split are visited with their other half. */
static uint64_t scan_step(struct index *x, uint64_t cursor, index_fn fn, void *arg,
                          unsigned *seen_p) {
    uint64_t mask = x->mask, n = cursor & mask, halves = n < x->split;
    *seen_p = bucket_visit(x, bucket_at(x, n), fn, arg);
    /* fn may have removed objects and so merged the halves: then the other one is part of this
     * bucket now. */
    if (halves) {
        uint64_t other = x->mask == mask && n < x->split ? n + mask + 1 : bucket_of(x, n);
        *seen_p += bucket_visit(x, bucket_at(x, other), fn, arg);
    }
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
    while (bucket_at(x, n)->ref[0] == 0) {
        if (--steps == 0) return NULL;
        n = (n + 1) % bucket_count(x);
    }
    unsigned length = 0;
    for (const struct index_bucket *b = bucket_at(x, n); b != NULL; b = bucket_next(x, b))
        length += bucket_used(b);
    TARN_ASSERT(length > 0);
    unsigned skip = (unsigned)((random >> 40) % length);
    const struct index_bucket *b = bucket_at(x, n);
    for (; skip >= INDEX_SLOTS; skip -= INDEX_SLOTS) b = bucket_next(x, b);
    return record_get(x->records, b->ref[skip]);
}

uint64_t index_memory(const struct index *x) {
    return (bucket_count(x) + x->more_live) * sizeof(struct index_bucket);
}
