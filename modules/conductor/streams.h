/* The engines' event streams: who is followed, and what became of it. Registrations say which
 * streams there are (kept.c brings them here, on the master and on replicas alike); src/kvevents
 * follows them in a thread of its own; what it decoded is taken on the server's loop, for a moment
 * each turn, and fed to the index (feed.h).
 *
 * A stream belongs to a worker of the route, and goes before it does. */
#ifndef TARN_CONDUCTOR_STREAMS_H
#define TARN_CONDUCTOR_STREAMS_H

#include "conductor/engines.h"
#include "conductor/feed.h"
#include "kvevents/follow.h"

/* From load() and unload(): up to so many workers. */
void streams_open(uint32_t workers_max);
void streams_close(void);

/* Is that what a registration may have? */
bool streams_endpoint_valid(struct span endpoint);
/* The worker of that registration, if there is one, follows what it says, and nothing else. Where
 * that cannot be done now, it is tried again. */
void streams_follow(const struct registration *x);
/* That worker is about to go, or to be another. ROUTE_NO_WORKER: nothing. */
void streams_leave(uint32_t worker);
/* From the timer. */
void streams_tick(void);

/* One stream as it is now. */
struct streams_view {
    const char *events, *replay; /* "": none; borrowed until the stream goes */
    const char *state;           /* "none", or as kvevents_state_name */
    bool partial;                /* the engine may have more than is known of it */
    struct kvevents_info info;
    const struct feed *feed; /* NULL: it has no stream */
    char why[KVEVENTS_WHY];  /* it is not followed, or partial; "": it is neither */
};
void streams_get(uint32_t worker, struct streams_view *v);

/* All of them, and of counts those that went, too. */
#define STREAMS_FIGURES(X)                                                                         \
    X(GAUGE, conductor_streams, "event streams of engines that are followed")                      \
    X(GAUGE, conductor_streams_connected, "... to which there is a connection")                    \
    X(GAUGE, conductor_streams_partial, "... of whose engines not all blocks are known")           \
    X(GAUGE, conductor_streams_refused, "... that cannot be followed now")
struct streams_sum {
    STREAMS_FIGURES(FIGURE_MEMBER)
    struct kvevents_figures events;
    struct feed_figures feeds;
    char why_decode[KVEVENTS_WHY]; /* one of the last batches that could not be decoded; "": none */
};
void streams_sum(struct streams_sum *sum);

#endif
