/* Blocks that requests on their way are about to compute, before any event tells of them: two
 * requests with one system prompt in a burst belong to one engine.
 *
 * A table of fixed size that forgets: what falls on a full line pushes out what would end first,
 * and each entry ends by itself some time after its prefill should have. It is a hint as the index
 * is one: what it forgets costs a hit, not more. */
#ifndef TARN_ROUTE_AHEAD_H
#define TARN_ROUTE_AHEAD_H

#include <stddef.h>
#include <stdint.h>
#include "base/assert.h"

#define AHEAD_LINES_MAX  32768u
#define AHEAD_WAYS       4u
#define AHEAD_BLOCKS_MAX 1024u /* of a prompt that are looked at */

struct ahead_entry {
    uint64_t hash;
    uint16_t worker, birth; /* birth: of the worker's number, which may be given anew */
    uint32_t until_ms;      /* wraps */
};
struct ahead_line {
    struct ahead_entry way[AHEAD_WAYS];
};
static_assert(sizeof(struct ahead_line) == 64, "a line of the processor's caches");

struct ahead {
    struct ahead_line *lines;
    uint64_t mask; /* lines - 1 */
};

/* requests: that are under way at most; a line for each, within bounds. */
void ahead_init(struct ahead *a, uint64_t requests);
void ahead_deinit(struct ahead *a);
size_t ahead_memory(const struct ahead *a);
void ahead_put(struct ahead *a, uint64_t hash, uint16_t worker, uint16_t birth, uint64_t now_ms,
               uint64_t until_ms);
/* The line where a hash is, if it is anywhere. */
static inline const struct ahead_line *ahead_line_of(const struct ahead *a, uint64_t hash) {
    return &a->lines[(hash ^ hash >> 32) & a->mask];
}
static inline int ahead_live(const struct ahead_entry *e, uint64_t hash, uint64_t now_ms) {
    return e->hash == hash && (int32_t)(e->until_ms - (uint32_t)now_ms) > 0;
}

#endif
