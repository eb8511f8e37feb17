/* One stream: its sockets, and what is to be done about what comes from them. Only the thread of
 * follow.c calls these, but for stream_create. */
#ifndef TARN_KVEVENTS_STREAM_H
#define TARN_KVEVENTS_STREAM_H

#include <pthread.h>

#include "base/queue.h"
#include "kvevents/follow.h"
#include "kvevents/sequence.h"

struct stream_item {
    struct kvevents_item item;
    STAILQ_ENTRY(stream_item) link;
};

struct kvevents_stream {
    uint32_t id;
    struct kvevents_follow *follow;
    char *endpoint, *replay, *topic; /* replay NULL: there is none */

    /* --- the thread's --- */
    void *sub, *monitor; /* monitor tells of the connection of sub */
    void *dealer;        /* NULL but while a replay is under way */
    unsigned subscribed; /* how often sub was made */
    uint64_t remake_ms;  /* when it is made anew; 0: it is connected */
    uint64_t pause_ms;   /* before that */
    struct sequence sequence;
    struct kvevents_info info; /* at work; shown is a copy for others */
    bool handed_over;          /* something since the last LOST */
    uint64_t ask_ms;           /* when the replay that is due begins; 0: it is under way, or none */
    uint64_t patience_ms;      /* until when the replay under way may say nothing */
    uint64_t broken_ms;        /* until when the engine is not asked again */
    uint64_t verify_ms;        /* when the last batch is asked for; 0: no need */
    uint64_t asked_ms;         /* the last replay ended; 0: never */
    unsigned tries;            /* of the replay that is due or under way */
    bool settles;              /* the connection is new */
    bool unproven;             /* ... and what is known may be of a life before */
    bool forgetful;            /* a replay lacked what this connection had heard */
    bool doubted;              /* a replay brought what may be of a later life than sub's */
    bool was_full;
    uint64_t asked_last; /* the last batch when it was asked for; 0: there was none */
    bool proving;        /* its first answer is to be the last batch */
    bool answered;       /* it had one */
    bool held;           /* a message that waits for the replay */
    uint64_t held_number;
    char *held_batch;
    size_t held_len;
    TAILQ_ENTRY(kvevents_stream) link; /* follow->streams; changed under the lock */

    /* --- under follow's lock --- */
    STAILQ_HEAD(, stream_item) items;
    size_t queued_bytes;
    bool full;    /* nothing is read until half of it is taken */
    bool removed; /* the thread destroys it */
    struct kvevents_info shown;
    TAILQ_ENTRY(kvevents_stream) ready; /* while there are items */
};

/* NULL, and *rc_p, where it fails: no form of an endpoint, no descriptors. */
struct kvevents_stream *stream_create(struct kvevents_follow *f, uint32_t id,
                                      const struct kvevents_source *source, tarn_status *rc_p);
/* Nothing waits to be taken. */
void stream_destroy(struct kvevents_stream **s_p);

/* Takes what has come, some messages at most, and does what is due. */
void stream_serve(struct kvevents_stream *s, uint64_t now_ms);
/* When it wants to be served even if nothing comes; UINT64_MAX: never. */
uint64_t stream_due(const struct kvevents_stream *s);
/* From which it reads; NULL: from none, as its queue is full or it only waits. */
void *stream_socket(const struct kvevents_stream *s);
struct kvevents_info stream_info(const struct kvevents_stream *s);

/* --- what follow.c does for it --- */

void *follow_context(struct kvevents_follow *f);
const struct kvevents_follow_config *follow_config(const struct kvevents_follow *f);
/* Its queue is full. */
bool follow_full(const struct kvevents_stream *s);
tarn_status follow_decode(struct kvevents_stream *s, struct span payload,
                          struct kvevents_batch **batch_p, const char **why_p);
/* Takes the batch. Whoever takes it on sees the stream as it is now, or later. */
void follow_hand_over(struct kvevents_stream *s, uint64_t number, struct kvevents_batch *batch);
/* In place of all that waits to be taken. */
void follow_lost(struct kvevents_stream *s, const char *why);

#endif
