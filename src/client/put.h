/* A batch of puts in the making: shared by put.c (PUTSTART, PUTEND, PUTREVOKE) and put_write.c (the bytes). */
#ifndef TARN_CLIENT_PUT_H
#define TARN_CLIENT_PUT_H

#include "client/internal.h"

/*   WANTED ──MPUTSTART──> OPEN ──bytes──> WRITTEN ──MPUTEND──> FINISHED
 *     ^                    │ refused         │ connection broke: MPUTEND again, with the same token
 *     └──MPUTREVOKE────────┘                 └─ token unknown: once more from the start
 *
 * Nothing is ended or revoked while bytes may be in flight: when a write was given up in the middle, the put is left to
 * the server, which takes the space back once the host has cut this session off. */
enum put_state { PUT_WANTED, PUT_OPEN, PUT_WRITTEN, PUT_FINISHED };

struct put {
    enum put_state state;
    bool revoke; /* place.token is open at the server and must be revoked before the key is tried again */
    unsigned tries;
    uint64_t size;
    struct placement place;
    uint64_t pos; /* written so far */
    uint32_t crc;
    uint32_t *crcs;     /* one per CRC_BLOCK, NULL for sizes up to one */
    uint32_t failed;    /* bit i: replica i */
    tarn_status reason; /* why it must be revoked */
};

struct putting {
    struct lane *lane;
    tarn_item *items;
    struct put *puts;
    size_t n;
    const tarn_put_options *options;
    uint64_t deadline;
    size_t unfinished, stored; /* stored: since the pass began */
};

void put_finish(struct putting *p, size_t i, tarn_status status);
/* Writes the OPEN items among order[0..n); they are WRITTEN, FINISHED, or WANTED with revoke afterwards. */
void put_write(struct putting *p, const size_t *order, size_t n);
/* The CRC of a value in memory, and per block when crcs is not NULL. */
uint32_t put_crc(const struct iovec *iov, size_t n_iov, uint64_t size, uint32_t *crcs);
const struct iovec *put_item_iov(const tarn_item *item, struct iovec *one, size_t *n_p);

#endif
