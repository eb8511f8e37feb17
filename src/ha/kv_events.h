/* KV events: what a router must know to say where which block is, in order, with numbers, kept in a
 * ring for those who ask (KVEVENTS, docs/EVENTS.md). Off, and one branch in the books, while
 * kv-events-size is 0.
 *
 *   books lead ─> epoch begins, seq 1, 2, 3 ... ─> books follow another master, the process ends,
 *                                                  or kv-events-size 0
 *
 * An epoch is one history without a gap: who knows a seq of it and all events behind has
 * everything. What was before its first event is in the books: a walk tells. */
#ifndef TARN_HA_KV_EVENTS_H
#define TARN_HA_KV_EVENTS_H

#include "base/buf.h"
#include "base/queue.h"
#include "cluster/cluster.h"
#include "front/cmd.h"
#include "ha/event_ring.h"

/* kv-events-size has changed. */
void kv_events_apply(void);
void kv_events_begin(void);
void kv_events_end(void);
bool kv_events_listens(void);
void kv_events_news(const struct store_news *news);
void kv_events_node(const char *event, const char *name);
void info_kv_events(struct figure_walk *f);

/* --- for the commands --- */

#define KV_EPOCH_LEN 16u /* hex digits */

const struct event_ring *kv_events_ring(void); /* NULL: off */
const char *kv_events_epoch(void);
size_t kv_events_sleepers(void);

/* Woken once (job_wake) by the next event, or when there will be none any more; it is out of the
 * list then. */
struct kv_sleeper {
    struct job *job;
    LIST_ENTRY(kv_sleeper) link;
};
void kv_events_sleep(struct kv_sleeper *s);
void kv_events_unlist(struct kv_sleeper *s);

/* One event, taken apart. Spans are borrowed from the ring. */
struct kv_event {
    const char *kind;
    uint64_t wall_ms, size;
    struct span key; /* empty: it concerns none */
    unsigned places;
    struct span rest; /* private: the places */
};
void kv_event_read(struct span bytes, struct kv_event *event_p);

/* Where a replica is. Names are borrowed. */
struct kv_place {
    /* "memory", "ssd", "file"; "books": the value lies in the books; "": of a node */
    const char *tier;
    struct span node, segment;
    uint32_t epoch; /* of the segment: one that comes later under the same name has another */
};
/* The next one of e->places. */
void kv_event_place(struct kv_event *e, struct kv_place *place_p);
/* Of a segment that is there, and whether it can be read; false: it is not there. Valid until the
 * books change. */
bool kv_place_of(uint32_t segment, struct kv_place *place_p, bool *up_p);
#define KV_TIER_BOOKS "books"

#endif
