/* The pool: the real books (store/store.h) with the real policies, of which time is an argument. A
 * block is an object of one page here, whatever its KV takes; the bytes are the network's. Each
 * host lends the pool an equal part of it, and of that each master an equal part.
 *
 * Several masters have a stretch of a prompt's blocks each, as by the hash tags of tarn.chain. Of a
 * prompt all that have some of it are asked at once; a prefix ends at the first block that its
 * master does not have, or whose master is away. */
#ifndef TARN_SIMULATE_POOL_H
#define TARN_SIMULATE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "simulate/sim.h"
#include "store/store.h"

struct pool_master {
    struct store *store;
    uint32_t *segments; /* id of each host's */
    uint32_t *host_of;  /* of each segment's id, POOL_SEGMENTS_MAX */
    uint32_t away;      /* so many failures of it are not over */
    double busy_until;  /* answering what came before */
};
struct sim_pool {
    struct pool_master master[SIM_MASTERS_MAX];
    uint32_t masters, hosts;
    uint32_t *epochs;     /* of each host */
    uint64_t host_blocks; /* that a host lends a master */
    double now_s;
};
#define POOL_SEGMENTS_MAX 65536u

/* blocks: of all hosts together, at least one of each for each master. policy: a name of
 * STORE_POLICIES; NULL comes back when it has no such name. */
struct sim_pool *pool_open(uint32_t masters, uint32_t hosts, uint64_t blocks, const char *policy);
void pool_close(struct sim_pool **pool_p);
void pool_time(struct sim_pool *p, double now_s);
/* How many of the first ids it has; nobody has read them yet. */
uint32_t pool_match(struct sim_pool *p, const uint64_t *ids, uint32_t n);
/* A prompt's blocks are read as far as they are there; the books are told of all of it, also of
 * what an engine has itself, as they are by an engine that asks how long the prefix is. hosts[k]
 * becomes the host that has block k. Returns how many there are. chain: of each master, zeroed, of
 * this prompt alone. */
uint32_t pool_read(struct sim_pool *p, struct store_chain *chain, const uint64_t *ids, uint32_t n,
                   uint32_t *hosts);
/* A prompt of n blocks was computed on that host, of which the first `had` were there: puts the
 * others. */
void pool_write(struct sim_pool *p, struct store_chain *chain, const uint64_t *ids, uint32_t n,
                uint32_t had, uint32_t host);
/* What a look-up of these keys takes that is asked now: a message there and back takes rtt_s, a
 * key key_s of its master, which answers one message after the other. */
double pool_lookup_s(struct sim_pool *p, const uint64_t *ids, uint32_t n, double now, double rtt_s,
                     double key_s);
/* A prompt of n keys, of which the first `had` are there: each master puts those of the others that
 * are its own. */
void pool_put_load(struct sim_pool *p, const uint64_t *ids, uint32_t n, uint32_t had, double now,
                   double key_s);
/* A master is away with its part of the books; and its replica has been promoted. */
void pool_master_gone(struct sim_pool *p, uint32_t master);
void pool_master_back(struct sim_pool *p, uint32_t master);
uint64_t pool_count(const struct sim_pool *p);
uint64_t pool_evictions(const struct sim_pool *p);
/* A host is gone with what it had; and is back, empty. */
void pool_host_gone(struct sim_pool *p, uint32_t host);
void pool_host_back(struct sim_pool *p, uint32_t host);

#endif
