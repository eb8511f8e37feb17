/* A batch of puts in the making: shared by put.c (PUTSTART, PUTEND, PUTREVOKE), put_replica.c
 * (replicas that fail, and trying again elsewhere) and put_write.c (the bytes). */
#ifndef TARN_CLIENT_PUT_H
#define TARN_CLIENT_PUT_H

#include "client/batch.h"

/*   WANTED ──MPUTSTART──> PLACED ──bytes──> WRITTEN ──MPUTEND──> FINISHED
 *     ^                    │                  │ connection broke: MPUTEND again, the same token
 *     │                    │                  └─ token unknown, space gone: again from the start
 *     ├──MPUTREVOKE────────┤ no replica is whole, and nothing is on its way
 *     └──new session───────┘ bytes may still be on their way: PUTSTART INSTEAD of that token
 *
 * A put with one whole replica is stored; MPUTEND names the others. But nothing is ended or revoked
 * while bytes of it may be in flight, because the space of what failed, or was revoked, is given to
 * others at once. Such a put begins anew in another place; its old space stays where it is until
 * the host has cut the old session off. */
struct put {
    struct batch_item is;
    /* place.token is open at the server and must be revoked before the key is tried again */
    bool revoke;
    bool last;        /* it will not be tried again: finished with reason once it is revoked */
    bool loose;       /* bytes may be on their way */
    bool no_grant;    /* its places were asked for without grants, */
    bool needs_grant; /* ... of which it needs some */
    /* PUTSTART had no room for it yet, or met another put of the key: maybe one of this batch */
    bool held_up;
    bool device; /* its memory is a device's: nobody can compute its CRC */
    unsigned tries;
    uint64_t size;
    uint64_t instead; /* token of the one that bytes may be on their way to, 0: none */
    struct placement place;
    uint64_t pos; /* written so far */
    uint32_t crc;
    uint32_t *crcs;  /* one per CRC_BLOCK, NULL for sizes up to one */
    uint32_t failed; /* bit i: replica i */
    /* its grants are to be sealed: their hosts' word, for PUTEND, replica by replica; NULL: they
     * are not */
    uint8_t *receipts;
    size_t n_receipts;
    int64_t piece_crc;  /* of the last piece, the same for every replica; -1: none was written */
    tarn_status reason; /* why it must be tried again */
};

struct putting {
    struct item_batch b;
    struct put *puts;
    /* What was done before the first pass, for all items: they were asked for; or were written,
     * too, and are being ended. */
    enum put_ahead { PUT_NOTHING, PUT_ASKED, PUT_WRITTEN } ahead;
    struct chunk now, ends;
    const tarn_put_options *options;
    struct call_spread spread;
    size_t stored;       /* since the pass began */
    unsigned most_tries; /* of a put that has to be tried again, in this pass */
    uint64_t avoid_since_ms;
    uint64_t batch;    /* that is being ended */
    bool new_session;  /* the present one has bytes on their way */
    char no_room[512]; /* what the server said of the last NOSPACE */
};

void put_finish(struct putting *p, size_t i, tarn_status status);
/* A PLACED put without a whole replica, or with one in doubt (loose): it is WANTED again, or
 * FINISHED now or when it is revoked. */
void put_again(struct putting *p, size_t i, tarn_status reason);
/* Bits of the replicas that have not failed. */
static inline uint32_t put_alive(const struct put *u) {
    uint64_t all = (UINT64_C(1) << u->place.replicas) - 1;
    return (uint32_t)all & ~u->failed;
}
/* Writes the PLACED items among order[0..n); they are WRITTEN, FINISHED, or WANTED afterwards. */
void put_write(struct putting *p, const size_t *order, size_t n);
/* Fetches what the engine must know of the segments of a PLACED put; replicas that cannot be had
 * have failed. Nothing may be unanswered on the lane. Not TARN_OK: the control connection
 * failed. */
tarn_status put_ensure(struct putting *p, size_t i);
/* It has one replica, in the segment of the one before, and no host is out of reach: there is
 * nothing to fetch. */
static inline bool put_is_ensured(const struct putting *p, const struct put *u) {
    return u->place.replicas == 1 && u->failed == 0 &&
           batch_is_ensured(&p->b, &u->place.replica[0]) &&
           !outages_any(&p->b.lane->client->outages);
}
/* A replica's host failed to take it. Notes who is out of reach. */
void put_replica_failed(struct putting *p, size_t i, unsigned replica, tarn_status status);
/* Nothing was written to that place, and nothing will be: NULL, or what PUTREVOKE is shown so that
 * its space is free at once. */
uint8_t *put_seal_unwritten(struct lane *lane, const struct placement *place, uint64_t deadline,
                            size_t *n_p);
/* The CRC of a value in memory, and per block when crcs is not NULL. */
uint32_t put_crc(const struct iovec *iov, size_t n_iov, uint64_t size, uint32_t *crcs);

#endif
