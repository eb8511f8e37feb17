/* The last events, numbered from 1 on without a gap: a ring of bytes in pieces, of which the oldest
 * goes when there is no room. Bytes only; what an event says is kv_events.c's. One thread. */
#ifndef TARN_HA_EVENT_RING_H
#define TARN_HA_EVENT_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

#define EVENT_RING_PIECE (UINT32_C(64) << 10) /* bytes that go at once */
#define EVENT_RING_EVENT (UINT32_C(8) << 10)  /* of one event at most */

struct event_ring;

/* Room for so many bytes of events with 4 of overhead each, rounded up to pieces, two at least.
 * Memory is taken as it is used. */
struct event_ring *event_ring_create(uint64_t bytes);
void event_ring_destroy(struct event_ring **ring_p); /* NULL inside is fine */
/* Another size from now on; the oldest go if they do not fit any more. */
void event_ring_resize(struct event_ring *r, uint64_t bytes);

/* Numbers it; len is 1 to EVENT_RING_EVENT. */
uint64_t event_ring_add(struct event_ring *r, const void *event, size_t len);
uint64_t event_ring_last(const struct event_ring *r); /* 0: there never was one */
/* the oldest one that is there; last + 1: none is */
uint64_t event_ring_first(const struct event_ring *r);
uint64_t event_ring_bytes(const struct event_ring *r); /* of memory in use */

/* A place between events; of no use after the next change of the ring. */
struct event_cursor {
    uint64_t seq; /* of the next one */
    size_t piece, at;
};
/* At event seq, or behind the last one. false: that one is not there. */
bool event_ring_seek(const struct event_ring *r, uint64_t seq, struct event_cursor *cursor_p);
/* The next event, borrowed until the ring changes. false: that was the last one. */
bool event_ring_next(const struct event_ring *r, struct event_cursor *cursor, struct span *event_p);

#endif
