/* Reads a value, or a range of one, from its replicas: piece by piece, a window of pieces at a
 * time, in order, each verified before it is handed out. A replica that fails, also in the middle,
 * is left for the next one (engine/placed.h).
 *
 *   open ─> [waits for its claim] ─> next: piece, piece, ... ─> next: the end ─> close
 *                                      │ TARN_EAGAIN: ready() tells           ^
 *                                      └─ no replica is left: the error ──────┘
 *
 * One that hands out no pieces, since its bytes go elsewhere or nowhere, runs to its end by itself:
 *
 *   open ─> [waits for its claim, reads] ─> done() ─> close
 *              └─ cancel ─────────────────────^
 *
 * How it verifies: objects of more than a MiB by their CRC per MiB; smaller ones by their CRC, for
 * which all of them is read; larger ones that have only one CRC are read twice, the first time to
 * sum them up. Objects without a CRC are taken as they are.
 *
 * The object is held from open to close, so that its memory replicas stay as they are whatever
 * becomes of the key. What is lent or under way when the reader is closed goes when it comes
 * back. */
#ifndef TARN_INBAND_VALUE_READ_H
#define TARN_INBAND_VALUE_READ_H

#include <sys/uio.h>
#include "front/cmd.h"
#include "inband/remote.h"

struct value_read;

struct value_read_options {
    uint64_t from, len; /* len > 0 */
    uint32_t only;      /* only the replica in this segment; STORE_SEGMENT_ANY */
    /* bytes go here; from and len are those of the whole value. At most STORE_EXTENTS_MAX; copied.
     * NULL: into buffers */
    const struct iovec *into;
    size_t n_into;
    bool sum; /* bytes are verified and dropped */
    /* granted, and large enough; borrowed. NULL: the reader makes its own */
    struct remote_claim *claim;
    uint64_t client;          /* who is to take the pieces; 0 */
    void (*ready)(void *arg); /* ask value_read_next again. Not from inside open and next */
    /* With into and sum, in place of ready: all is there and right, or why not, as value_read_next
     * says it. Once, and nothing of it is under way then. Not from inside open and cancel */
    void (*done)(void *arg, tarn_status status);
    void *arg;
};

/* o is not in the books. */
struct value_read *value_read_open(struct object *o, const struct value_read_options *options);
struct value_piece {
    struct span bytes;
    void *token; /* for value_read_give_back; NULL: there is nothing to give back */
};
/* TARN_OK: the next bytes; len 0: that was all. TARN_EAGAIN. Else no replica is left: why the last
 * one failed (TARN_ECORRUPT, TARN_ECLOSED, ...; TARN_ENOTFOUND: its file is not there;
 * TARN_ENOSEGMENT: there was none to try). */
tarn_status value_read_next(struct value_read *r, struct value_piece *piece_p);
/* What value_read_next would answer, without taking the piece. */
tarn_status value_read_peek(struct value_read *r);
/* The bytes of a piece are no longer needed. In any order, also after close. */
void value_read_give_back(void *token);
void value_read_close(struct value_read **r_p);
/* done comes all the same, soon: TARN_ECANCELED, unless it was over. */
void value_read_cancel(struct value_read *r);

#endif
