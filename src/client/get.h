/* A batch of gets in the making: shared by get.c (where the bytes lie, leases) and get_read.c (the bytes). */
#ifndef TARN_CLIENT_GET_H
#define TARN_CLIENT_GET_H

#include "client/internal.h"

/*   WANTED ──MGETREPLICAS LEASE──> PLACED ──read, verified──> FINISHED
 *     ^                              │                           ^
 *     └─── lease over, moved, ... ───┘ (bounded by tries)        │
 *     └─── missing, inline, failed for good ─────────────────────┘ */
enum want_state { WANTED, PLACED, FINISHED };
enum want_check { CHECK_NONE, CHECK_WHOLE, CHECK_BLOCKS };

struct want {
    enum want_state state;
    enum want_check check;
    bool leased;      /* RELEASE it when it is finished */
    bool last_of_key; /* no later item of this call shares its lease */
    bool own_memory;  /* item->buffer was allocated here */
    bool prepared;    /* the fields below belong to place.version */
    bool mismatched;  /* its CRC was wrong once: not again */
    unsigned tries;   /* since the last piece that worked */
    struct placement place;
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
    bool new_session;  /* the data path says that our session is cut off */
    void *scratch[64]; /* freed at the end */
    size_t n_scratch;
    uint64_t scratch_bytes;
};

void get_finish(struct getting *g, size_t i, tarn_status status);
/* An item that did not work out this time: it is wanted again, up to limit times, or finished with status. */
void get_again(struct getting *g, size_t i, tarn_status status, unsigned limit);
/* After a placement: checks sizes, finds memory, delivers inline values. The item is PLACED or FINISHED afterwards. */
void get_prepare(struct getting *g, size_t i);
/* Reads the PLACED items among order[0..n). Those whose lease gets short are WANTED afterwards. */
void get_read(struct getting *g, const size_t *order, size_t n);

#endif
