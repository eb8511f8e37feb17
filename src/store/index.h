/* The hash index over object records: linear hashing (Litwin 1980). A bucket is a cache line of up
 * to ten objects with 16 bits of the hash of each: neither a key that is not there nor the split of
 * a bucket touches records. More objects are in further buckets behind it. It grows and shrinks one
 * bucket per operation and never pauses. */
#ifndef TARN_STORE_INDEX_H
#define TARN_STORE_INDEX_H

#include "store/record.h"

#define INDEX_SLOTS 10u
#define INDEX_LOAD  9u /* objects of a bucket, on average; chains are shorter with less */

struct index_bucket {
    uint16_t tag[INDEX_SLOTS];
    object_ref ref[INDEX_SLOTS]; /* from the first slot on without gaps; 0: nobody */
    uint32_t more;               /* the bucket behind it, 0: none */
};

struct index {
    struct records *records;
    struct page_arena arena;      /* the buckets; those that are not in use are zero */
    uint64_t mask, split;         /* buckets in use: mask + 1 + split */
    uint64_t count;               /* objects */
    struct page_arena more_arena; /* the buckets behind others */
    uint32_t more, more_live;     /* of these, ever used; in use */
    uint32_t spare;               /* of those that are not, the first; linked by more */
};

bool index_init(struct index *x, struct records *records); /* false: no memory */
void index_free(struct index *x);
struct object *index_find(const struct index *x, struct span key, uint64_t hash);
/* By the hash alone, which is slower; two keys have the same once in 2^64. */
struct object *index_find_hash(const struct index *x, uint64_t hash);
void index_insert(struct index *x, struct object *o, uint64_t hash); /* key must not be in it */
void index_remove(struct index *x, struct object *o, uint64_t hash);
/* Where the hash stands comes near; then, when that has had some time, an object that may be looked
 * up there, with a key of that length. */
void index_prefetch_bucket(const struct index *x, uint64_t hash);
/* What is behind a bucket that has come. */
void index_prefetch_more(const struct index *x, uint64_t hash);
void index_prefetch_object(const struct index *x, uint64_t hash, size_t key_len);
/* The first of those objects; NULL: there is none. */
const struct object *index_likely(const struct index *x, uint64_t hash);
typedef void (*index_fn)(void *arg, struct object *o);
/* Visits the buckets of one step. fn may remove the object it is given. */
uint64_t index_scan(struct index *x, uint64_t cursor, index_fn fn, void *arg);
/* The same in slices: a unit of work for each object and each step. true: the round is over. */
bool index_walk(struct index *x, uint64_t *cursor, index_fn fn, void *arg, unsigned *budget);
void index_each(struct index *x, index_fn fn, void *arg); /* a whole round */
/* An object of a bucket chosen by random, or of one a little behind it; NULL when those are
 * empty. */
struct object *index_sample(const struct index *x, uint64_t random);
uint64_t index_memory(const struct index *x);

#endif
