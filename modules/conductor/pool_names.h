/* How an engine calls its blocks in the pool, as CONDUCTOR.KEYS says it: by which hashes, and of
 * each KV group the name that stands before them. As text it is one line, words with blanks between
 * them, by which the route tells engines apart:
 *
 *     TARN|SGLANG unit align -|=revision (name FULL|WINDOW|STATE block unit window drop)...
 *
 * Pure. */
#ifndef TARN_CONDUCTOR_POOL_NAMES_H
#define TARN_CONDUCTOR_POOL_NAMES_H

#include "base/buf.h"
#include "conductor/pool_hash.h"
#include "module.h"

struct pool_names {
    enum pool_hashing hashing;
    struct span revision; /* of the chain; data NULL: none */
    uint32_t unit, align; /* tokens from hash to hash, from boundary to boundary */
    size_t n;             /* KV groups; with several ranks, each rank's part of one */
    struct span *name;
    struct tarn_pool_group *group;
    size_t room;
};

void pool_names_write(const struct pool_names *x, struct buf *out);
/* x, whose memory is used again, borrows text. false: it is no such text. */
bool pool_names_read(struct span text, struct pool_names *x);
/* One KV group more; returns its number. */
size_t pool_names_add(struct pool_names *x, struct span name, struct tarn_pool_group group);
void pool_names_free(struct pool_names *x);

/* "FULL" ... -1: no kind. */
int pool_kind_of(struct span word);

#endif
