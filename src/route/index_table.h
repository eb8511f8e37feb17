/* A compact hash table from 32-bit fingerprints to 32-bit values, 8 bytes an entry at a load of
 * 0.62 to 0.75, which two tables of the index are: of the first blocks of runs, and of a holder's
 * own hashes. Keys are the caller's: several entries may have one fingerprint, and only the caller
 * can tell which is meant.
 *
 * It is in shards by the upper bits of the fingerprint, so that growing (by a fifth at a time)
 * moves some thousand entries and never all of them. A shard is one array in ascending order of the
 * fingerprints, with gaps: an entry is at its home, which grows with the fingerprint, or as near
 * behind it as there was room. So a search ends at the first entry that is greater, a new array is
 * filled from left to right, and nothing needs the whole key ever again. */
#ifndef TARN_ROUTE_INDEX_TABLE_H
#define TARN_ROUTE_INDEX_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/page_arena.h"

/* Memory of an index, all of it. What malloc adds is estimated. */
struct route_memory {
    uint64_t bytes, max;
    bool starved; /* something was refused since somebody last looked */
};
/* NULL: there is no room. */
void *route_memory_get(struct route_memory *m, size_t size);
void route_memory_put(struct route_memory *m, void *p, size_t size);
/* Memory from elsewhere, in bytes. false: there is no room. */
bool route_memory_take(struct route_memory *m, uint64_t bytes);
void route_memory_give(struct route_memory *m, uint64_t bytes);
uint64_t route_memory_size(size_t size); /* with what malloc adds */

struct route_shard {
    uint64_t *slot; /* fingerprint << 32 | value; 0: empty */
    uint32_t homes; /* behind them are a few slots more */
    uint32_t n;
};
struct route_table {
    struct route_shard *shard;
    uint32_t bits; /* 2^bits shards */
    uint64_t n;
    uint32_t base_homes;    /* of each shard, to begin with; 0: there is no base */
    struct page_arena base; /* all shards as they are then */
};
/* A place in a table; until the next change of it. */
struct route_spot {
    struct route_shard *shard;
    uint32_t at;
};

/* For about that many entries; more are fine. false: no room. */
bool route_table_init(struct route_table *t, struct route_memory *m, uint64_t expected);
/* An empty table gets slots for as many at once, side by side: what is read all the time has few
 * pages then. false: no room. */
bool route_table_lay_base(struct route_table *t, struct route_memory *m, uint64_t expected,
                          bool huge);
void route_table_deinit(struct route_table *t, struct route_memory *m);
/* value > 0. Equal entries are not looked for. false: no room. */
bool route_table_add(struct route_table *t, struct route_memory *m, uint32_t print, uint32_t value);
void route_table_remove(struct route_table *t, struct route_memory *m, struct route_spot place);
uint64_t route_table_memory(const struct route_table *t);

/* Slots of a shard; the last ones are never a home. */
static inline uint32_t route_shard_slots(const struct route_shard *s) {
    return s->homes + s->homes / 32 + 8;
}
static inline struct route_shard *route_table_shard(const struct route_table *t, uint32_t print) {
    return &t->shard[(uint64_t)print << t->bits >> 32];
}
static inline uint32_t route_shard_home(const struct route_table *t, const struct route_shard *s,
                                        uint32_t print) {
    return (uint32_t)((uint64_t)(uint32_t)((uint64_t)print << t->bits) * s->homes >> 32);
}

/* The values of that fingerprint, one after the other; 0: no further one. Starts with
 * route_table_find. */
static inline uint32_t route_table_value(const struct route_spot *p, uint32_t print) {
    uint64_t slot = p->shard->slot[p->at];
    return slot >> 32 == print ? (uint32_t)slot : 0;
}
static inline uint32_t route_table_find(const struct route_table *t, uint32_t print,
                                        struct route_spot *place_p) {
    struct route_shard *s = route_table_shard(t, print);
    *place_p = (struct route_spot){s, 0};
    if (s->n == 0) return 0;
    uint32_t at = route_shard_home(t, s, print), end = route_shard_slots(s);
    while (at < end && s->slot[at] != 0 && s->slot[at] >> 32 < print) at++;
    if (at == end) return 0;
    place_p->at = at;
    return route_table_value(place_p, print);
}
static inline uint32_t route_table_next(struct route_spot *place, uint32_t print) {
    if (++place->at == route_shard_slots(place->shard)) return 0;
    return route_table_value(place, print);
}
/* gcc takes a function that does nothing but fetch for one without effect, and drops the calls of
 * it, unless there is something in it that it cannot know. */
static inline void route_prefetch(const void *p) {
    __builtin_prefetch(p);
    __asm__ volatile("");
}
static inline void route_table_prefetch(const struct route_table *t, uint32_t print) {
    const struct route_shard *s = route_table_shard(t, print);
    if (s->n == 0) return;
    const uint64_t *slot = &s->slot[route_shard_home(t, s, print)];
    route_prefetch(slot);
    if (((uintptr_t)slot & 63) >= 40) route_prefetch(slot + 3); /* probably reaches it */
}

#endif
