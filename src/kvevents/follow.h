/* Following the event streams of engines, all of them in one thread of its own.
 *
 *     engine    PUB      [topic, number (8 bytes, big-endian), batch]
 *               ROUTER   asked with a number: [number, batch] or [topic, number, batch] from there
 *                        on, then a last one with the number -1
 *
 * Never a silent hole: numbers are checked, and what is missing is asked for. After each new
 * connection, and when an engine has been quiet for a while, a replay is asked to begin with the
 * last batch that is known: when it comes back as it was, nothing was missed; when it is another or
 * none, the engine started anew. A replay that began with nothing known may have met a later life
 * than the one that is heard: the first message that would follow upon it must be in a replay as it
 * was heard, or the engine started anew. What cannot be had again is LOST: all that was taken of
 * that stream counts for nothing any more, and the stream is partial until it is whole, which is
 * when everything since the engine's start, or since it cleared its cache, is known. (A replay of
 * nothing at all says that there was no batch, unless the publisher was seen to keep none.) LOST is
 * also what a batch leads to that cannot be decoded, and a new connection that no replay can vouch
 * for.
 *
 * Batches wait in a queue of each stream, bounded in bytes; when it is full nothing more is read,
 * libzmq's few places fill up, and the rest waits at the publisher. What that drops is a gap.
 * Bounded so: a message by message_max_bytes, what libzmq holds of a stream by KVEVENTS_HWM
 * messages in each of two sockets. (Of one message in many frames libzmq bounds each frame.)
 *
 * From one thread, but kvevents_follow_fd's descriptor may be watched by any. Nothing but destroy
 * waits for anything. */
#ifndef TARN_KVEVENTS_FOLLOW_H
#define TARN_KVEVENTS_FOLLOW_H

#include "base/figures.h"
#include "kvevents/decode.h"

#define KVEVENTS_HWM      32
#define KVEVENTS_WHY      160 /* bytes of a reason */
#define KVEVENTS_ENDPOINT 256 /* bytes of an endpoint or topic, at most */

struct kvevents_follow_config {
    uint64_t seed;              /* of the local hashes */
    size_t message_max_bytes;   /* of a batch as it is sent; above 0 */
    size_t queue_max_bytes;     /* decoded batches of a stream that wait to be taken; above 0. One
                                   batch may exceed it */
    uint32_t streams_max;       /* above 0 */
    uint32_t replay_timeout_ms; /* an engine that is asked and says nothing; above 0 */
    uint32_t replay_tries;      /* until what is missing counts as lost; above 0 */
    uint32_t replay_pause_ms;   /* between two replays of a stream; doubles with each try */
    uint32_t broken_ms;         /* how long an engine that did not answer is not asked again */
    uint32_t verify_ms;         /* of quiet after which the last batch is asked for */
    uint32_t reconnect_max_ms;  /* between tries to connect, which begin with a tenth of that */
};
/* 4 MiB a message, 16 MiB a queue, 1,024 streams, 5 s and 3 tries a replay, ... */
void kvevents_follow_defaults(struct kvevents_follow_config *config);

/* Counts of a stream. */
#define KVEVENTS_FIGURES(X)                                                                        \
    X(COUNTER, kvevents_messages, "messages of an engine, whatever became of them")                \
    X(COUNTER_BYTES, kvevents_bytes, "... their bytes, replays included")                          \
    X(COUNTER, kvevents_batches, "batches of events that were decoded and handed over")            \
    X(COUNTER, kvevents_events, "... the events in them")                                          \
    X(COUNTER, kvevents_blocks, "... the blocks these were about")                                 \
    X(COUNTER, kvevents_unknown, "events of kinds that are unknown here")                          \
    X(COUNTER, kvevents_left_out, "stored events that made no sense, and were left out")           \
    X(COUNTER, kvevents_decode_errors, "batches that could not be decoded")                        \
    X(COUNTER, kvevents_bad_messages, "messages of another form than number and batch")            \
    X(COUNTER, kvevents_known, "batches that came again, and were passed over")                    \
    X(COUNTER, kvevents_gaps, "times that numbers were missing")                                   \
    X(COUNTER, kvevents_missed, "... batches that were missing, before any replay")                \
    X(COUNTER, kvevents_replays, "times that an engine was asked for batches again")               \
    X(COUNTER, kvevents_replayed, "... batches that came of it")                                   \
    X(COUNTER, kvevents_replay_errors, "... times that it failed")                                 \
    X(COUNTER, kvevents_lost, "times that all that was known of an engine was dropped")            \
    X(COUNTER, kvevents_restarts, "times that an engine was seen to have started anew")            \
    X(COUNTER, kvevents_connects, "times that a connection came about")                            \
    X(COUNTER, kvevents_stalls, "times that nothing more was read, as the queue was full")         \
    X(BYTES, kvevents_queued_bytes, "decoded batches that wait to be taken")
struct kvevents_figures {
    KVEVENTS_FIGURES(FIGURE_MEMBER)
};
extern const struct figure kvevents_figures[];

enum kvevents_state {
    KVEVENTS_CONNECTING, /* nobody is there, or not again */
    KVEVENTS_REPLAYING,  /* asks for what is missing, or is about to */
    KVEVENTS_LIVE,
};
const char *kvevents_state_name(enum kvevents_state state);

struct kvevents_info {
    enum kvevents_state state;
    bool connected;
    bool begun;                      /* last is a number */
    bool whole;                      /* all is known that the engine knows; false: partial */
    uint64_t last;                   /* number of the last batch */
    uint64_t message_ms;             /* when something came last, by clock_mono_ms; 0: never */
    char why_partial[KVEVENTS_WHY];  /* "": it is whole, or nothing has come yet */
    char why_decode[KVEVENTS_WHY];   /* the last batch that could not be decoded; "": none */
    char why_left_out[KVEVENTS_WHY]; /* the last event that was left out; "": none */
    char why_replay[KVEVENTS_WHY];   /* the last replay that failed; "": none */
    struct kvevents_figures figures;
};

struct kvevents_source {
    const char *endpoint; /* of the PUB socket: tcp://HOST:PORT, ipc://PATH */
    const char *replay;   /* of the ROUTER; NULL or "": there is none */
    const char *topic;    /* what topics begin with; NULL: any */
};

/* tcp://HOST:PORT or ipc://PATH, of less than KVEVENTS_ENDPOINT bytes. */
bool kvevents_endpoint_valid(const char *endpoint);

struct kvevents_follow;
/* Starts the thread. TARN_ENOMEM, TARN_EIO: no descriptors, no thread. */
tarn_status kvevents_follow_create(const struct kvevents_follow_config *config,
                                   struct kvevents_follow **f_p);
/* Waits for the thread. */
void kvevents_follow_destroy(struct kvevents_follow **f_p);

/* TARN_EINVAL: an endpoint of another form; TARN_ELIMIT: streams_max, or no descriptors left.
 * *id_p: above 0, never used again. */
tarn_status kvevents_follow_add(struct kvevents_follow *f, const struct kvevents_source *source,
                                uint32_t *id_p);
/* Nothing of it is taken any more. Unknown ones are ignored. */
void kvevents_follow_remove(struct kvevents_follow *f, uint32_t id);
/* false: unknown. */
bool kvevents_follow_info(struct kvevents_follow *f, uint32_t id, struct kvevents_info *info);

/* What happened to a stream, in its order. */
struct kvevents_item {
    uint32_t id;
    uint64_t number; /* of the batch */
    struct kvevents_batch
        *batch;             /* the taker's; NULL: LOST. What was taken counts for nothing; what
                                     follows stands without it */
    char why[KVEVENTS_WHY]; /* LOST only */
};
/* One of the next streams that have something, in turn. false: there is nothing, and the descriptor
 * is quiet until there is. */
bool kvevents_follow_take(struct kvevents_follow *f, struct kvevents_item *item);
/* Readable while there is something to take; it is only watched, not read. */
int kvevents_follow_fd(const struct kvevents_follow *f);

#endif
