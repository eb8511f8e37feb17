/* Parts of KV groups (kv_groups.h) in the books: a part's key is the name of its group and the hash
 * at its end. Parts that are likely to be asked for next have their cache lines on the way. */
#ifndef TARN_STORE_KV_FIND_H
#define TARN_STORE_KV_FIND_H

#include "base/kv_groups.h"
#include "store/store.h"

#define KV_FIND_AHEAD 16u

struct kv_finder {
    const struct kv_group *groups;
    /* Of the first group; names lie names_step bytes apart. */
    const struct span *names;
    size_t names_step;
    /* hash i ends at token (i + 1) * hash_unit */
    const struct span *hashes;
    uint32_t hash_unit;
    /* Makes the first n hashes, before they are read. NULL: they are there. */
    void (*make)(void *arg, size_t n);
    void *arg;
    /* private: the next parts; 0 at first */
    struct kv_want ahead;
    uint32_t ahead_n;
    uint64_t hash[KV_FIND_AHEAD];
};

/* Every name with every hash must fit into STORE_KEY_MAX. */
struct span kv_find_key(const struct kv_finder *f, size_t group, uint32_t place,
                        char out[STORE_KEY_MAX]);
/* The readable object, or NULL; its key (until the next call) and store_hash. No access. */
struct object *kv_find_part(struct kv_finder *f, struct store *s, const struct kv_want *w,
                            struct span *key_p, uint64_t *hash_p);

#endif
