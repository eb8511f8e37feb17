/* A client of a pool of many masters: one client of today's kind for each shard (a master and its
 * replicas), behind which nothing knows of the others, and a map that says which of them has a key.
 *
 *   tarn_client (front) ── shards ──┬── map ── by slot, which of
 *                                   └── shard ── tarn_client ── lanes ...
 *
 * A call takes the map as it is (shards_take), cuts its keys apart by it, asks all shards that have
 * some at once, and puts the answers together in the caller's order. Keys that a master calls
 * another's (TARN_EMOVED) are asked for again, by a newer map or at the target of their slot. A
 * shard that is away costs its share of the keys, and the time for it once: while it is, calls are
 * told so at once, but for one of them now and then.
 *
 * Locks: shards.fetching, shards.mutex, then those of clients. */
#ifndef TARN_CLIENT_SHARDS_H
#define TARN_CLIENT_SHARDS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/crew.h"
#include "base/queue.h"
#include "client/client.h"
#include "client/lookup.h"
#include "slots/map.h"

struct shard {
    struct slot_shard row; /* as it was when the client was made */
    struct tarn_client *client;
    TAILQ_ENTRY(shard) link;
    unsigned maps; /* of those that are in use; under mutex, as what follows */
    /* It failed, so often since it last answered; calls are told so until then. */
    unsigned failures;
    uint64_t away_until_ms;
    tarn_status away;
};

struct shard_map {
    unsigned users; /* calls, and being the present one; under mutex */
    struct slot_map *slots;
    struct shard *shard[SLOT_SHARDS_MAX]; /* by its number in slots */
};

struct shards {
    pthread_mutex_t fetching; /* a newer map is being asked for */
    uint64_t fetched_ms;      /* when one was, for shards that failed; under fetching */
    pthread_mutex_t mutex;    /* of what follows */
    struct shard_map *map;
    TAILQ_HEAD(, shard) all;
    tarn_stats past;                             /* of shards that are no more */
    struct hist past_requests, hist[TARN_HISTS]; /* whole calls; requests are their masters' */
    struct crew crew; /* for parts of batches; threads NULL: not needed yet */
};

/* Connects a client that is prepared. Where the server has a map, shards is set, and no lane is
 * kept. */
tarn_status shards_connect(struct tarn_client *client);
void shards_close(struct tarn_client *client);
/* What is registered with the front is registered with each. */
void shards_sync_registered(struct tarn_client *front);

/* fn of the client of each. */
void shards_each(struct tarn_client *front, void (*fn)(struct tarn_client *client, void *arg),
                 void *arg);

/* The present map, for shards_give. */
struct shard_map *shards_take(struct tarn_client *front);
void shards_give(struct tarn_client *front, struct shard_map **map_p);
/* Gives *map_p back and takes a newer one: asked for at first, which has refused keys (NULL: of any
 * that answers), unless others have done so meanwhile. false: there is none. */
bool shards_renew(struct tarn_client *front, struct shard_map **map_p, struct shard *first,
                  uint64_t deadline);

/* TARN_OK: the shard may be asked, until the deadline (which may come earlier than the call's, for
 * one that has failed). bytes: that are to be moved. Then shard_used. */
tarn_status shard_use(struct tarn_client *front, struct shard *shard, uint64_t bytes,
                      uint64_t *deadline_p);
/* What came of it, after what began then. */
void shard_used(struct tarn_client *front, struct shard *shard, tarn_status status,
                uint64_t began_ms);

/* It did not answer. */
static inline bool status_is_lost(tarn_status status) {
    return status == TARN_EIO || status == TARN_ECLOSED || status == TARN_ETIMEOUT;
}

/* --- going on where a map was wrong --- */

struct rounds {
    struct tarn_client *front;
    struct shard_map *map;
    uint64_t deadline;
    unsigned made;
    struct shard *said; /* refused keys for which the map knows no other place; NULL: none has */
    bool turned;        /* some are asked for at their target next */
    bool later;         /* some are only not now */
};
void rounds_begin(struct rounds *r, struct tarn_client *front, uint64_t deadline);
/* A shard refused a key of that slot, asked for as it was (asking: at the target). Returns whether
 * it is to be asked for at the target next. */
bool rounds_refused(struct rounds *r, struct shard *shard, uint32_t slot, bool asking);
/* Before the next round, of keys that were refused, are only not now, or of shards that failed: a
 * newer map, or a pause. false: it would be no better, or the time is over. */
bool rounds_next(struct rounds *r);
void rounds_end(struct rounds *r);
#define ROUNDS_OVER "the masters do not agree on which of them has the key: its slot is being moved"

/* --- shards_split.c --- */

/* Keys of a call: what begins with a pointer and a length. */
struct keys_of {
    const void *first;
    size_t stride;
};
static inline struct span keys_at(struct keys_of k, size_t i) {
    const tarn_key *key = (const void *)((const char *)k.first + i * k.stride);
    /* those that are none are refused by whoever gets them */
    return key->data == NULL ? span_of("", 0) : span_of(key->data, min_u64(key->len, TARN_KEY_MAX));
}

/* Where a key goes: to the shard that owns its slot, to that one alone (while the slot moves, only
 * single keys have answers that are clear), or to the target. */
enum split_kind { SPLIT_PLAIN, SPLIT_SINGLE, SPLIT_ASKING, SPLIT_KINDS };
#define SPLIT_NOBODY 0xffu /* the bucket of slots that nobody owns */

struct split {
    size_t n;
    uint8_t *bucket; /* by position in the caller's list; shard * SPLIT_KINDS + kind */
    uint32_t *order; /* positions in the call, bucket after bucket, each in the caller's order */
    uint32_t begin[SPLIT_NOBODY + 2]; /* of each bucket, in order */
};
static inline unsigned split_bucket(unsigned shard, enum split_kind kind) {
    return shard * SPLIT_KINDS + (unsigned)kind;
}
static_assert(SLOT_SHARDS_MAX * SPLIT_KINDS < SPLIT_NOBODY, "buckets fit a byte");
/* n keys: those at todo[] (NULL: the first n), asks[i] (NULL: none) of todo[i] at the target.
 * singles: what moves is asked for alone. */
void split_init(struct split *s, const struct slot_map *map, struct keys_of keys,
                const uint32_t *todo, const uint8_t *asks, size_t n, bool singles);
void split_free(struct split *s);
/* The bucket that all of them are in; SPLIT_NOBODY: they are in several, or in none. */
unsigned split_only(const struct split *s);

/* As client_get, and as puts of one master. */
tarn_status shards_get(struct tarn_client *front, tarn_item *items, size_t n,
                       const struct get_options *o);
tarn_status shards_put(struct tarn_client *front, tarn_item *items, size_t n,
                       const tarn_put_options *o, uint64_t deadline);
void shards_timing(struct tarn_client *front, int kind, size_t n, uint64_t started_us);
/* Jobs of one call at the same time: the first by this thread, by here, and after it those that no
 * other thread has begun with, by job->run. Returns when all are done. */
void shards_together(struct tarn_client *front, struct crew_job **jobs, size_t n,
                     void (*here)(struct crew_job *job));

/* --- shards_look.c --- */

/* As lookup_call, of keys that were checked. found (NULL: not wanted): of each key. */
tarn_status shards_lookup(struct tarn_client *front, const struct lookup *l, uint64_t deadline,
                          uint8_t *found, size_t *count_p);
/* fn at the shard that has the key, again where it says TARN_EMOVED. */
typedef tarn_status (*shard_fn)(struct tarn_client *client, bool asking, uint64_t deadline,
                                void *arg);
tarn_status shards_one(struct tarn_client *front, const void *key, size_t key_len,
                       uint64_t deadline, shard_fn fn, void *arg);
/* fn at one that answers. */
tarn_status shards_any(struct tarn_client *front, uint64_t deadline, shard_fn fn, void *arg);

#endif
