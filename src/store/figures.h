/* What the books count: figures for INFO and metrics, why look-ups missed, who was asked for most,
 * and what is in the segments. */
#ifndef TARN_STORE_FIGURES_H
#define TARN_STORE_FIGURES_H

#include "base/figures.h"
#include "store/store.h"

/* In the order of INFO. Those that are counted are so since the start or store_stats_reset. */
#define STORE_FIGURES(X)                                                                           \
    X(BYTES, mem_books, "the books: maxmemory bounds them")                                        \
    X(BYTES, mem_books_records, "... of objects")                                                  \
    X(BYTES, mem_books_blocks, "... of the pool's space")                                          \
    X(BYTES, mem_books_tables, "... hash tables")                                                  \
    X(BYTES, mem_books_leases, "... of leases and sessions")                                       \
    X(BYTES, mem_books_extras, "... of pins, groups, replicas, puts and the policy")               \
    X(BYTES, mem_books_spare, "held for records and blocks to come, not in mem_books")             \
    X(SIZE, pool_size, "memory of segments that can be read: used, free and quarantined")          \
    X(SIZE, pool_used, "in objects and open puts")                                                 \
    X(BYTES, pool_free, "that nobody uses")                                                        \
    X(BYTES, pool_largest_free, "the largest free run where new objects may go")                   \
    X(BYTES, pool_down, "of segments that are down or leaving")                                    \
    X(BYTES, pool_quarantined, "of objects that are gone, for their last readers")                 \
    X(BYTES, pool_ghosts, "of pool_used: what leases of a former master may protect")              \
    X(BYTES, pool_zombie, "of puts that ended while their writers may still write")                \
    X(BYTES, pool_evictable, "of pool_used: what an eviction could free now")                      \
    X(GAUGE, objects, "that can be read")                                                          \
    X(GAUGE, max_objects, "bound of objects, 0: none (max-objects)")                               \
    X(GAUGE, inline_objects, "values of up to 64 bytes, which lie in the books")                   \
    X(GAUGE, expires, "objects that have a time to live")                                          \
    X(GAUGE, soft_pins, "objects that are evicted last")                                           \
    X(GAUGE, hard_pins, "objects that are not evicted")                                            \
    X(BYTES, hard_pinned_bytes, "... their bytes in the pool")                                     \
    X(BYTES, hard_pinned_books, "... their bytes in the books")                                    \
    X(GAUGE, hard_pin_owners, "users who have hard pins")                                          \
    X(COUNTER, hard_pins_refused, "hard pins beyond hard-pin-ratio or hard-pin-user-ratio")        \
    X(GAUGE, groups, "groups of objects that are evicted together")                                \
    X(GAUGE, boundaries, "boundaries: what is unused of one goes together")                        \
    X(COUNTER, hits, "look-ups that found the object")                                             \
    X(COUNTER, misses, "look-ups that did not")                                                    \
    X(COUNTER, requests, "batches, which the eviction policy takes as one")                        \
    X(GAUGE, puts_open, "puts under way")                                                          \
    X(GAUGE, puts_zombie, "puts that are over, whose writers may still write")                     \
    X(GAUGE, max_puts_per_client, "bound of puts_open, each client (max-puts-per-client)")         \
    X(COUNTER, put_starts, "puts begun")                                                           \
    X(COUNTER, put_ends, "puts that made an object")                                               \
    X(COUNTER, put_revokes, "puts that their writers gave up")                                     \
    X(COUNTER, put_timeouts, "puts that took longer than put-timeout")                             \
    X(COUNTER, put_exists, "puts refused: the object was there")                                   \
    X(COUNTER, put_busy, "puts refused: another put of the key was under way")                     \
    X(COUNTER, put_later, "puts told to come again in a moment")                                   \
    X(COUNTER, put_nospace, "puts refused: no room, and nothing to evict")                         \
    X(COUNTER, put_delayed, "... as a disk is to take first what goes")                            \
    X(COUNTER, put_superseded, "puts that another put of the key ended")                           \
    X(COUNTER, bad_tokens, "tokens that were not of a put under way")                              \
    X(GAUGE, leases, "leases that readers hold")                                                   \
    X(GAUGE, holds, "objects that replies are being sent from")                                    \
    X(GAUGE, leased_objects, "objects with a lease or hold")                                       \
    X(GAUGE, guarded_objects, "objects whose read grants have not expired, leases or not")         \
    X(GAUGE, max_leases_per_client, "bound of leases, each client (max-leases-per-client)")        \
    X(COUNTER, leases_granted, "new leases")                                                       \
    X(COUNTER, leases_extended, "leases made longer")                                              \
    X(COUNTER, leases_released, "leases given back")                                               \
    X(COUNTER, leases_expired, "leases that ended by themselves")                                  \
    X(COUNTER, removed, "objects that somebody removed")                                           \
    X(COUNTER, replaced, "objects that a new value replaced")                                      \
    X(COUNTER, expired, "objects whose time to live was over")                                     \
    X(COUNTER, fences, "sessions that hosts were asked to cut off")                                \
    X(GAUGE, migrating_objects, "objects not yet in the order of a new eviction policy")           \
    X(GAUGE, sweep_objects, "objects flushed, whose space is not free yet")                        \
    X(COUNTER, evicted_objects, "objects evicted")                                                 \
    X(COUNTER_BYTES, evicted_bytes, "... their bytes")                                             \
    X(COUNTER, evicted_inline, "... with their value in the books")                                \
    X(COUNTER, evicted_soft_pinned, "... with a soft pin")                                         \
    X(COUNTER, evicted_group, "... because their group went")                                      \
    X(COUNTER, evicted_boundary, "... because a part of their boundary went, unused since")        \
    X(COUNTER, evicted_together, "... or removed: the other part of the pair had gone")            \
    X(COUNTER, evicted_background, "... above eviction-high-watermark")                            \
    X(COUNTER, evicted_quota, "... for a tenant's quota")                                          \
    X(COUNTER, evicted_limits, "... for max-objects or maxmemory")                                 \
    X(COUNTER, evict_command, "... by the command EVICT")                                          \
    X(COUNTER, room_direct, "puts that found free space")                                          \
    X(COUNTER, room_policy, "puts that evicted in the policy's order")                             \
    X(COUNTER, room_window, "puts that evicted neighbours")                                        \
    X(COUNTER, room_slices, "slices of work of puts that evicted much")                            \
    X(COUNTER, room_gave_up, "puts that stopped looking for room")                                 \
    X(COUNTER, put_short, "puts that got fewer replicas than they asked for")                      \
    X(GAUGE, far_objects, "objects on ssd or file only")                                           \
    X(GAUGE, far_replicas, "replicas on ssd or file")                                              \
    X(COUNTER, far_added, "replicas put there")                                                    \
    X(COUNTER, far_dropped, "replicas gone from there")                                            \
    X(COUNTER, evicted_to_far, "objects that left memory but can be read from ssd or file")        \
    X(GAUGE, copies_open, "replicas being made")                                                   \
    X(COUNTER, replicas_dropped, "replicas gone while their object stayed")                        \
    X(GAUGE, awaiting_objects, "objects in memory that wait for their copy on a disk")             \
    X(BYTES, awaiting_bytes, "... their bytes")                                                    \
    X(COUNTER, evicted_before_copy, "... evicted while they waited")                               \
    X(COUNTER, prefetch_brought, "copies that came to memory before anybody read them")            \
    X(COUNTER_BYTES, prefetch_bytes, "... their bytes")                                            \
    X(COUNTER, prefetch_read, "... read afterwards")                                               \
    X(COUNTER, prefetch_in_vain, "... evicted or removed before anybody read them")                \
    X(GAUGE, prefetch_unread, "... that are there, and wait for their reader")

/* Why a look-up did not find its key. */
enum store_miss {
    STORE_MISS_NEVER, /* it was not there before, or longer ago than is remembered */
    STORE_MISS_EVICTED,
    STORE_MISS_EXPIRED,
    STORE_MISS_REMOVED,
    STORE_MISS_AWAY, /* its node or segment is away, or gone with it */
    STORE_MISS_GAP,  /* not looked at: it is behind the first miss of a prefix, which misses does
                        not count */
    STORE_MISSES
};
const char *store_miss_name(enum store_miss why); /* "never" */

/* What an object was evicted for. */
enum store_eviction {
    STORE_EVICTION_PUT,       /* room for another object */
    STORE_EVICTION_WATERMARK, /* eviction-high-watermark */
    STORE_EVICTION_QUOTA,
    STORE_EVICTION_MAXMEMORY, /* or max-objects */
    STORE_EVICTION_COMMAND,
    STORE_EVICTIONS
};
const char *store_eviction_name(enum store_eviction cause); /* "put" */

struct hist;
/* What the reasons rest on. One key in one_in is followed, and counts for as many. */
struct store_story {
    const struct hist *idle, *asked_again; /* ms */
    const struct hist *evicting;           /* ns that puts spent on it, those that had to */
    uint64_t one_in;
};

struct store_stats {
    STORE_FIGURES(FIGURE_MEMBER)
    uint64_t missed[STORE_MISSES], evicted_for[STORE_EVICTIONS];
    uint64_t copies_started, copies_ended, copies_failed;
};
extern const struct figure store_figures[];
void store_get_stats(const struct store *s, struct store_stats *stats_p);
void store_stats_reset(struct store *s);
void store_get_story(const struct store *s, struct store_story *story_p); /* borrowed */

/* The keys of a quota, or (the first, with prefix "") those without one. misses are the sum of
 * missed, in which keys behind a gap are not; see store_story for how those are known. */
struct store_tenant {
    struct store_quota quota;
    uint64_t hits, misses, missed[STORE_MISSES], evicted;
};
size_t store_tenants(const struct store *s, struct store_tenant *tenants,
                     size_t cap); /* returns how many there are */

/* The hit ratio that pools of other sizes would have (store/curve.h). false: no memory for it. */
struct curve_figures;
bool store_get_curve(struct store *s, struct curve_figures *figures_p);
/* The names with the most look-ups that hit, that missed, and bytes of those that hit
 * (store/top.h); counted for one look-up in 128. A name is what the keys of one engine have in
 * common: all up to the first part of 12 or more hexadecimal digits, else up to the last of
 * "@:/|#". */
enum store_top { STORE_TOP_HITS, STORE_TOP_MISSES, STORE_TOP_BYTES, STORE_TOPS };
const char *store_top_name(enum store_top which); /* "hits" */
struct top_entry;
size_t store_get_top(const struct store *s, enum store_top which, struct top_entry *entries,
                     size_t max);
uint64_t store_top_total(const struct store *s, enum store_top which);

/* What is in the memory segments, for words to whoever gets no room there. */
struct store_room {
    uint32_t up, others; /* segments that take new objects, and that do not */
    /* Of those that are up, in bytes. used: as of store_segment_info. best: free or evictable, in
     * the one that has most of it. */
    uint64_t size, used, free, quarantined, evictable, awaiting, ghosts, largest, best;
};
void store_get_room(const struct store *s, struct store_room *room_p);

#endif
