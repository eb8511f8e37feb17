/* What lies where in the memory of the pool, for people: each memory segment cut into equal
 * buckets, and how much of each is free, used, leased, in quarantine, or being written.
 *
 * Nothing is counted for it when objects come and go. It is made when somebody asks, by a look at
 * the blocks in the order of their numbers, which lie side by side, then at what is leased. Where
 * there are more than blocks_max blocks only every second, third, ... is looked at and counts so
 * many times: a bucket then is an estimate.
 *
 *   create ─> step ─> ... ─> step, true: it is made ─> row, as often as one likes ─> destroy
 *
 * Steps are slices, between which the books may change: what comes or goes meanwhile is counted as
 * it was, or not at all. The map keeps no pointer to the books. */
#ifndef TARN_STORE_MAP_H
#define TARN_STORE_MAP_H

#include <stdbool.h>
#include <stdint.h>
#include "store/store.h"

enum { MAP_BLOCKS = 1 << 21, MAP_SEGMENTS_MAX = 1024, MAP_BUCKETS_MAX = 128 };

enum map_kind {
    MAP_USED,        /* objects */
    MAP_LEASED,      /* ... under a lease, or on their way to a client */
    MAP_QUARANTINED, /* of objects that are gone, for their last readers */
    MAP_WRITTEN,     /* of puts and copies under way, and of writers that are awaited */
    MAP_KINDS
};

struct store_map;

struct store_map *store_map_create(const struct store *s, uint64_t blocks_max);
void store_map_destroy(struct store_map **m_p);
/* About `budget` blocks more. true: that was the last. */
bool store_map_step(struct store_map *m, const struct store *s, unsigned budget);
/* One block in so many was looked at. */
unsigned store_map_one_in(const struct store_map *m);
/* Of that segment: how many buckets, 0: there is no map of it. share, of at least MAP_BUCKETS_MAX:
 * of each bucket, in 255ths, rounded up. *bytes_p: of all. */
unsigned store_map_row(const struct store_map *m, uint32_t id, uint32_t epoch, enum map_kind kind,
                       uint8_t *share, uint64_t *bytes_p);

#endif
