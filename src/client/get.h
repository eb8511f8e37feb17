/* A batch of gets in the making: get.c decides what becomes of each item; get_read.c (memory,
 * pieces and their bytes) and get_replica.c (which replica is read, and what comes after one that
 * failed) say what they found. What is to be verified, and where a read goes on, knows
 * engine/placed.h. */
#ifndef TARN_CLIENT_GET_H
#define TARN_CLIENT_GET_H

#include "client/batch.h"

/*   WANTED ──MGETREPLICAS LEASE──> PLACED ──read, verified──> FINISHED
 *     ^                             │  ^ │                      ^
 *     │                             │  └─┘ next replica         │
 *     └─ lease over, none left, ... ┘ (bounded by tries)        │
 *     └─── missing, inline, failed for good ────────────────────┘
 *
 * A replica that failed is not asked again under the same lease. */
struct want {
    struct batch_item is; /* its state is get.c's alone */
    bool leased;          /* RELEASE it when it is finished */
    bool last_of_key;     /* no later item of this call shares its lease; once knows_last */
    bool own_memory;      /* item->buffer was allocated here */
    bool prepared;        /* the fields from read on belong to place.version */
    bool damaged;         /* bytes of it were not right before */
    bool reported;        /* the server knows that a replica is bad */
    /* the bytes of a suspect are looked at in memory before they go to a device */
    bool proving;
    /* the buffers are a device's: leases and epochs are checked, bytes cannot be */
    bool device;
    unsigned tries; /* since the last piece that worked */
    struct placement place;
    uint64_t chosen; /* outages_changes when the replica was chosen */
    tarn_status why; /* the last replica failed */
    struct placed_read read;
    uint64_t len; /* bytes to deliver */
    struct iovec
        *iov; /* exactly what is read: scratch before, the caller's pieces, scratch behind */
    size_t n_iov;
    struct iovec one; /* where iov is that */
};

struct getting {
    struct item_batch b;
    struct want *wants;
    const struct get_options *options;
    const struct get_located *located; /* as in the options, until the first pass is over */
    bool new_session;                  /* the data path says that our session is cut off */
    bool knows_last;                   /* what wants say of last_of_key */
    uint64_t turns;                    /* to another replica, so far */
    void *scratch[64];                 /* freed at the end */
    size_t n_scratch;
    uint64_t scratch_bytes;
};

/* What was found of an item. */
struct get_result {
    enum get_next {
        GET_ON,     /* it stays PLACED */
        GET_TURNED, /* the same, and begins at another place or replica */
        GET_AGAIN,  /* to be looked up again, up to limit times; after that it is over */
        GET_GRANTS, /* to be looked up again, with a grant: that is no failure */
        GET_OVER,
    } next;
    tarn_status status; /* why; TARN_OK: all is there */
    unsigned limit;
};
static inline struct get_result get_over(tarn_status status) {
    return (struct get_result){.next = GET_OVER, .status = status};
}
static inline struct get_result get_again(tarn_status status, unsigned limit) {
    return (struct get_result){.next = GET_AGAIN, .status = status, .limit = limit};
}

/* After a placement: checks sizes, finds memory, delivers inline values. */
struct get_result get_prepare(struct getting *g, size_t i);
/* The next piece, as far as the lane's window. op's arrays live in the lane's arena. */
void get_piece(struct getting *g, size_t i, uint64_t len, struct engine_op *op);
/* It was moved, or was not. */
struct get_result get_piece_result(struct getting *g, size_t i, const struct engine_op *op);
/* Reads a replica in a file: a piece after the other, until there is something to decide, or the
 * lease is short. */
struct get_result get_file(struct getting *g, size_t i);
/* Does its replica lie on a disk of our own process? Then get_home reads it, likewise. */
bool get_is_home(const struct getting *g, size_t i);
struct get_result get_home(struct getting *g, size_t i);
/* Not long enough for another piece. */
bool get_lease_is_short(const struct placement *p);

/* Fetches what the engine must know of the replicas' segments, and chooses one. Nothing may be
 * unanswered on the lane. Not TARN_OK: the control connection failed. */
tarn_status get_replica_ensure(struct getting *g, size_t i, struct get_result *result_p);
/* There is one, in the segment of the one before, which has not failed: it is chosen. */
static inline bool get_replica_is_sole(const struct getting *g, struct want *w) {
    return w->place.replicas == 1 && w->tries == 0 &&
           batch_is_ensured(&g->b, &w->place.replica[0]) && placed_read_choose_sole(&w->read, 1);
}
/* Before a piece of a value that has several: to another replica if the host of this one has been
 * found out of reach meanwhile. */
void get_replica_refresh(struct getting *g, size_t i);
/* How long the present one is waited for (patience_ms and sole of op): there are others, or not. */
void get_replica_bound(struct getting *g, size_t i, struct engine_op *op);
static inline void get_replica_bound_last(const struct getting *g, struct engine_op *op) {
    op->patience_ms = 3 * g->b.lane->client->options.failover_ms;
    op->sole = true;
}
/* The present one failed with status. */
struct get_result get_replica_failed(struct getting *g, size_t i, tarn_status status);
/* Its bytes do not match: the server is told. */
struct get_result get_replica_bad(struct getting *g, size_t i);
static inline const struct placed_replica *get_replica(const struct want *w) {
    return &w->place.replica[w->read.at];
}

#endif
