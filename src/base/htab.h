/* An intrusive hash table that grows and shrinks one bucket at a time (linear hashing, Litwin
 * 1980): no operation ever moves more than a few short chains. Keys and equality are the caller's;
 * nodes are embedded in the caller's structs. */
#ifndef TARN_BASE_HTAB_H
#define TARN_BASE_HTAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct htab_node {
    struct htab_node *next;
    uint64_t hash;
};

struct htab_segment;
struct htab {
    struct htab_segment **dir; /* segments of buckets */
    size_t dir_cap;
    size_t count;   /* nodes */
    size_t buckets; /* in use: mask + 1 + split */
    size_t mask;    /* 2^level - 1 */
    size_t split;   /* next bucket to split */
};

typedef bool (*htab_eq_fn)(const struct htab_node *node, const void *key);

/* Zeroed is empty. */
void htab_free(struct htab *t); /* frees buckets, never nodes */
struct htab_node *htab_find(const struct htab *t, uint64_t hash, htab_eq_fn eq, const void *key);
/* no check for duplicates */
void htab_insert(struct htab *t, struct htab_node *node, uint64_t hash);
void htab_remove(struct htab *t, struct htab_node *node); /* must be in it */
size_t htab_memory(const struct htab *t);
/* Cursor walk as SCAN's: start with 0, ends when 0 comes back; every node that is there during the
 * whole walk is seen, some twice if the table shrinks meanwhile. One call visits one bucket. fn may
 * remove the node it is given, nothing else. */
uint64_t htab_scan(const struct htab *t, uint64_t cursor,
                   void (*fn)(void *arg, struct htab_node *node), void *arg);
/* The whole walk. */
void htab_each(const struct htab *t, void (*fn)(void *arg, struct htab_node *node), void *arg);

/* xxHash3, seeded at start with random bits against collision attacks. */
uint64_t hash_bytes(const void *data, size_t len);
uint64_t hash_u64(uint64_t v);
/* For tests that are to run the same way again; before the first table. */
void hash_set_seed(uint64_t seed);

#endif
