/* The hash index over object records: linear hashing (Litwin 1980), four bytes a bucket, chains
 * through the records. It grows and shrinks one bucket per operation and never pauses. */
#ifndef TARN_STORE_INDEX_H
#define TARN_STORE_INDEX_H

#include "store/record.h"

struct index {
    struct records *records;
    object_ref **dir; /* segments of INDEX_SEGMENT buckets */
    uint32_t dir_len, dir_cap;
    uint64_t mask, split; /* buckets in use: mask + 1 + split */
    uint64_t count;
};

void index_init(struct index *x, struct records *records);
void index_free(struct index *x);
struct object *index_find(const struct index *x, struct span key, uint64_t hash);
/* By the hash alone, which is slower; two keys have the same once in 2^64. */
struct object *index_find_hash(const struct index *x, uint64_t hash);
void index_insert(struct index *x, struct object *o, uint64_t hash); /* key must not be in it */
void index_remove(struct index *x, struct object *o, uint64_t hash);
/* In this order, each when the one before has had some time: where the hash stands; the first
 * object there; for a look-up, the end of its key. */
void index_prefetch_bucket(const struct index *x, uint64_t hash);
void index_prefetch_head(const struct index *x, uint64_t hash);
void index_prefetch_key(const struct index *x, uint64_t hash, size_t key_len);
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
