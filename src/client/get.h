/* A batch of gets in the making: shared by get.c (where the bytes lie, leases), get_replica.c
 * (which replica is read, and what comes after one that failed), get_read.c (the bytes) and
 * get_file.c (those on a shared file system). */
#ifndef TARN_CLIENT_GET_H
#define TARN_CLIENT_GET_H

#include "client/internal.h"

/*   WANTED ──MGETREPLICAS LEASE──> PLACED ──read, verified──> FINISHED
 *     ^                             │  ^ │                      ^
 *     │                             │  └─┘ next replica         │
 *     └─ lease over, none left, ... ┘ (bounded by tries)        │
 *     └─── missing, inline, failed for good ────────────────────┘
 *
 * A replica that failed is not asked again under the same lease. Where the next one has what is
 * missing, the read goes on in the middle: every byte is checked anyhow, by its MiB's CRC or in the
 * end by the value's. */
enum want_state { WANTED, PLACED, FINISHED };
enum want_check { CHECK_NONE, CHECK_WHOLE, CHECK_BLOCKS };

struct want {
    enum want_state state;
    enum want_check check;
    bool leased;      /* RELEASE it when it is finished */
    bool last_of_key; /* no later item of this call shares its lease */
    bool own_memory;  /* item->buffer was allocated here */
    bool prepared;    /* the fields below belong to place.version */
    bool reported;    /* the server knows that a replica is bad */
    /* the bytes of a suspect are looked at in memory before they go to a device */
    bool proving;
    /* the buffers are a device's: leases and epochs are checked, bytes cannot be */
    bool device;
    unsigned mismatches; /* how often a CRC was wrong */
    unsigned tries;      /* since the last piece that worked */
    struct placement place;
    uint32_t given_up; /* bit i: replica i, under this lease */
    uint32_t sources;  /* bit i: bytes of replica i are counted in crc */
    uint64_t chosen;   /* outages_changes when place.at was chosen */
    tarn_status why;   /* the last replica failed */
    tarn_status later; /* the look-up said that it cannot be had now; else TARN_OK */
    uint64_t len;      /* bytes to deliver */
    uint64_t from, to; /* bytes to read, whole CRC blocks where those are checked */
    uint64_t pos;      /* read and counted in crc so far */
    uint32_t crc;
    struct iovec *iov; /* exactly from..to: scratch before, the caller's pieces, scratch behind */
    size_t n_iov;
};

struct getting {
    struct lane *lane;
    tarn_item *items;
    struct want *wants;
    size_t n;
    const struct get_options *options;
    uint64_t deadline;
    size_t unfinished;
    uint64_t began_ms;
    uint64_t later, later_ms; /* how many, in this pass; and when to come again */
    bool new_session;         /* the data path says that our session is cut off */
    uint64_t turns;           /* to another replica, so far */
    void *scratch[64];        /* freed at the end */
    size_t n_scratch;
    uint64_t scratch_bytes;
};

void get_finish(struct getting *g, size_t i, tarn_status status);
/* An item that did not work out this time: it is wanted again, up to limit times, or finished with
 * status. */
void get_again(struct getting *g, size_t i, tarn_status status, unsigned limit);
/* After a placement: checks sizes, finds memory, delivers inline values. The item is PLACED or
 * FINISHED afterwards. */
void get_prepare(struct getting *g, size_t i);

/* Fetches what the engine must know of the replicas' segments, and chooses one. Nothing may be
 * unanswered on the lane. Not TARN_OK: the control connection failed. */
tarn_status get_replica_ensure(struct getting *g, size_t i);
/* Before a piece: to another replica if the host of this one has been found out of reach
 * meanwhile. */
void get_replica_refresh(struct getting *g, size_t i);
/* How long the present one is waited for (patience_ms and sole of op): there are others, or not. */
void get_replica_bound(struct getting *g, size_t i, struct engine_op *op);
/* The present one failed with status, which fail() has noted: the item stays PLACED on the next
 * one, or is tried again with a new lease, or is finished. */
void get_replica_failed(struct getting *g, size_t i, tarn_status status);
/* Its bytes do not match. The same, but the server is told, and what cannot be told from bad bytes
 * is read anew. */
void get_replica_bad(struct getting *g, size_t i);
/* It served. */
void get_replica_worked(struct getting *g, size_t i);
static inline const struct replica *get_replica(const struct want *w) {
    return placement_now(&w->place);
}

/* A piece was read: checks it, finishes the item with its last one. op->iov, crc and crcs count. */
void get_piece_done(struct getting *g, size_t i, const struct engine_op *op);
/* Reads as much as the lease allows. The item is FINISHED, or PLACED: on another replica, or
 * because the lease is short. */
void get_file_read(struct getting *g, size_t i);
/* Not long enough for another piece. */
bool get_lease_is_short(const struct placement *p);
/* Reads the PLACED items among order[0..n). Those whose lease gets short are WANTED afterwards. */
void get_read(struct getting *g, const size_t *order, size_t n);

#endif
