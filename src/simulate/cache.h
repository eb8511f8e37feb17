/* The blocks of KV in one memory of an engine: those that running requests hold, and those that are
 * only kept for others, of which the least recently used goes when room is needed.
 *
 *   private (a request's own, not for others) ── publish ──> held ── drop ──> kept ── evicted
 *                                                             ^─── hold ───────┘
 *
 * capacity >= private + held + kept at all times. */
#ifndef TARN_SIMULATE_CACHE_H
#define TARN_SIMULATE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cache_block {
    uint32_t id;
    uint32_t holds;
    uint32_t prev, next; /* of the kept ones; of free ones next alone */
};
struct cache_slot {
    uint32_t id, block; /* block 0: free */
};
struct cache {
    struct cache_block *blocks; /* capacity + 1; number 0 is the ends of the list of the kept */
    struct cache_slot *table;   /* by id; open, a power of two */
    uint32_t mask, shift;       /* of its places */
    uint32_t free, n;           /* n: held and kept */
    uint32_t capacity, private, kept;
    /* Told of each block that is evicted; NULL: nobody cares. */
    void (*evicted)(void *arg, uint32_t id);
    void *arg;
};

void cache_open(struct cache *c, uint32_t capacity);
void cache_close(struct cache *c);
/* All blocks are gone, nothing is told. */
void cache_clear(struct cache *c);
bool cache_has(const struct cache *c, uint32_t id);
/* How many of the first ids are there. */
uint32_t cache_match(const struct cache *c, const uint64_t *ids, uint32_t n);
/* Brings near what is about to be looked for. */
void cache_prefetch(const struct cache *c, const uint64_t *ids, uint32_t n);
/* Held once more; it must be there. */
void cache_hold(struct cache *c, uint32_t id);
/* Once less; the last one leaves it kept, as the most recently used. */
void cache_drop(struct cache *c, uint32_t id);
/* Room for so many private blocks, evicting what is kept. false: there is none; nothing changed. */
bool cache_reserve(struct cache *c, uint32_t blocks);
void cache_unreserve(struct cache *c, uint32_t blocks);
/* A private block becomes one for others, held once. false: such a one was there; it is held, and
 * the private one is gone. */
bool cache_publish(struct cache *c, uint32_t id);
/* Kept, as the most recently used, evicting for it; true: it was not there. */
bool cache_keep(struct cache *c, uint32_t id);
/* Blocks that a reservation could get. */
uint32_t cache_room(const struct cache *c);

#endif
