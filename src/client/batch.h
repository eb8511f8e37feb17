/* What gets and puts of many keys have in common: chunks of keys in one request each, passes over
 * what is not finished until all of it is, or trying again is of no use, and groups of pieces that
 * the engine moves at once. */
#ifndef TARN_CLIENT_BATCH_H
#define TARN_CLIENT_BATCH_H

#include "base/assert.h"
#include "client/client.h"

/* get.h and put.h have the charts. */
enum item_state { ITEM_WANTED, ITEM_PLACED, ITEM_WRITTEN, ITEM_FINISHED };

/* What a batch keeps of each item, at the beginning of what its owner keeps. */
struct batch_item {
    enum item_state state;
    tarn_status later; /* the server said that it cannot be had now; else TARN_OK */
};

struct item_batch {
    struct lane *lane;
    tarn_item *items;
    size_t n;
    char *of; /* by item, item_size bytes each, struct batch_item first; in the lane's arena */
    size_t item_size;
    uint64_t deadline, began_ms;
    size_t unfinished;
    uint64_t later, later_ms; /* how many were told to come later in this pass, and when */
    /* The last segment that batch_ensure found in order: mostly it is the next one's, too. */
    struct batch_segment {
        bool any; /* to be reset before a chunk */
        uint32_t id, epoch;
    } ensured;
};
/* All are WANTED, and their results cleared. */
void batch_init(struct item_batch *b, struct lane *lane, tarn_item *items, size_t n,
                size_t item_size, uint64_t deadline);
static inline struct batch_item *batch_item(const struct item_batch *b, size_t i) {
    return (struct batch_item *)(void *)(b->of + i * b->item_size);
}
static inline void batch_finish(struct item_batch *b, size_t i, tarn_status status,
                                uint64_t bytes) {
    struct batch_item *item = batch_item(b, i);
    TARN_ASSERT(item->state != ITEM_FINISHED);
    item->state = ITEM_FINISHED;
    b->unfinished--;
    b->items[i].status = status;
    b->items[i].got = status == TARN_OK ? bytes : 0;
}
/* Is it only not now? Then it is noted when to come again. */
bool batch_note_later(struct item_batch *b, size_t i, tarn_status status, const struct answer *a);
static inline bool batch_is_later(struct item_batch *b, size_t i, tarn_status status,
                                  const struct answer *a) {
    batch_item(b, i)->later = TARN_OK;
    return status != TARN_OK && batch_note_later(b, i, status, a);
}

typedef void (*batch_finish_fn)(struct item_batch *b, size_t i, tarn_status status);
/* pass tries all that are not finished once; not TARN_OK: the control connection failed. finish
 * gives one up. */
tarn_status batch_run(struct item_batch *b, tarn_status (*pass)(struct item_batch *b),
                      batch_finish_fn finish);

/* Gives up all that are left. */
void batch_fail(struct item_batch *b, tarn_status status, batch_finish_fn finish);

/* --- chunks --- */

struct chunk {
    const size_t *order; /* of items */
    size_t n;
    uint64_t sent_ns; /* gets: when it was asked for */
    /* gets, when it was located: bytes to read, bytes of values with a lease, and how many items of
     * the batch were not finished before */
    uint64_t bytes, leased;
    size_t unfinished;
    bool batched;   /* ... with its leases, or puts, as a batch */
    bool no_grant;  /* ... without grants */
    uint64_t batch; /* its id, 0: none; puts that are ended: by it */
    size_t plain;   /* puts: so many were opened by MPUTSTART, */
    size_t opened;  /* ... and so many of these have a token */
};
/* Those that are not finished, in the lane's arena. */
struct chunk batch_rest(const struct item_batch *b);
/* The next ones of rest, from *at on. false: no more. */
bool batch_chunk(const struct item_batch *b, const struct chunk *rest, size_t *at, struct chunk *c);
/* The answer to a request for n of them: an element for each, or so many. */
tarn_status batch_receive(struct item_batch *b, size_t n, const char *what, struct answer **a_p);
/* The same for one that has been received. */
tarn_status batch_check(struct item_batch *b, const struct answer *a, size_t n, const char *what);

tarn_status batch_ensure_other(struct item_batch *b, const struct placed_replica *r, bool write);
/* It lies in the segment of the one before. */
static inline bool batch_is_ensured(const struct item_batch *b, const struct placed_replica *r) {
    const struct batch_segment *last = &b->ensured;
    return r->n_parts == 1 && last->any && last->id == r->parts[0].extent.segment &&
           last->epoch == r->parts[0].extent.segment_epoch;
}
/* replica_ensure of many in turn. */
static inline tarn_status batch_ensure(struct item_batch *b, const struct placed_replica *r,
                                       bool write) {
    return batch_is_ensured(b, r) ? TARN_OK : batch_ensure_other(b, r, write);
}

/* --- groups --- */

/* One engine_run: at most one piece per item, a put's to all of its replicas. */
struct group {
    struct engine_op *ops;
    size_t *items;      /* by op */
    unsigned *replicas; /* by op; puts only */
    size_t n;
    uint64_t bytes;
    size_t last; /* position in the order of the last item */
};
struct group group_of(struct lane *lane, size_t ops);
/* Each operation has its own status afterwards. */
void batch_move(struct item_batch *b, const struct group *group);
/* An item of several pieces stays PLACED: it is the last of its group, and the next group begins
 * there again. */
static inline size_t group_next(const struct item_batch *b, const struct group *group, size_t k) {
    return batch_item(b, group->items[group->n - 1])->state == ITEM_PLACED ? group->last : k;
}

#endif
