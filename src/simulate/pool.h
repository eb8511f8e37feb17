/* The pool: the real books (store/store.h) with the real policies, of which time is an argument. A
 * block is an object of one page here, whatever its KV takes; the bytes are the network's. Each
 * host lends the pool an equal part of it. */
#ifndef TARN_SIMULATE_POOL_H
#define TARN_SIMULATE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "store/store.h"

struct sim_pool {
    struct store *store;
    uint32_t hosts;
    uint32_t *segments; /* id of each host's */
    uint32_t *host_of;  /* of each segment's id, POOL_SEGMENTS_MAX */
    uint32_t *epochs;   /* of each host's */
    uint64_t host_blocks;
    double now_s;
};
#define POOL_SEGMENTS_MAX 65536u

/* blocks: of all hosts together, at least one each. policy: a name of STORE_POLICIES; NULL comes
 * back when it has no such name. */
struct sim_pool *pool_open(uint32_t hosts, uint64_t blocks, const char *policy);
void pool_close(struct sim_pool **pool_p);
void pool_time(struct sim_pool *p, double now_s);
/* How many of the first ids it has; nobody has read them yet. */
uint32_t pool_match(struct sim_pool *p, const uint64_t *ids, uint32_t n);
/* A prompt's blocks are read as far as they are there; the books are told of all of it, also of
 * what an engine has itself, as they are by an engine that asks how long the prefix is. hosts[k]
 * becomes the host that has block k. Returns how many there are. chain: zeroed, of this prompt
 * alone. */
uint32_t pool_read(struct sim_pool *p, struct store_chain *chain, const uint64_t *ids, uint32_t n,
                   uint32_t *hosts);
/* A prompt of n blocks was computed on that host, of which the first `had` were there: puts the
 * others. */
void pool_write(struct sim_pool *p, struct store_chain *chain, const uint64_t *ids, uint32_t n,
                uint32_t had, uint32_t host);
/* A host is gone with what it had; and is back, empty. */
void pool_host_gone(struct sim_pool *p, uint32_t host);
void pool_host_back(struct sim_pool *p, uint32_t host);

#endif
