/* Writes one value into the space of its put: takes its bytes in order and sums them. In this
 * process' own memory they are where they belong then. To another process they go piece by piece, a
 * window of pieces at a time, out of buffers of its own, so that the caller may go away at any
 * time; only when all have arrived does the put end.
 *
 *   open ─> add ... add ─> status: TARN_OK ─> end: the object is there
 *     └────────┴─────────────┴─> abort: bytes that may still arrive keep their space until their
 *                                session is fenced
 *
 * A put may be superseded between two slices by another SET of the key. Being local, its space
 * stays its own until end or abort say that nobody writes there any more. */
#ifndef TARN_INBAND_VALUE_WRITE_H
#define TARN_INBAND_VALUE_WRITE_H

#include "inband/remote.h"

struct value_write;

/* How bytes reach another process. */
struct value_way {
    struct remote_session *session; /* the put was opened in it; taken over (its id is 0 then) */
    struct remote_claim *claim;     /* granted, remote_window(size) of it for this */
    bool hurry;
    void (*ready)(void *arg); /* ask again, not from inside add */
    void *arg;
};

/* Options of a put of size bytes whose writer is this process; the embedded segment comes first. */
struct store_put_options value_write_options(uint64_t size, uint64_t expire_wall_ms);
/* put is open, of one replica, not inline. NULL: its space is in another process, and way is NULL
 * or the put was opened as local. */
struct value_write *value_write_open(const struct store_put *put, struct span key, uint64_t size,
                                     const struct value_way *way);
bool value_write_is_local(const struct value_write *w);
uint64_t value_write_size(const struct value_write *w);
uint64_t value_write_left(const struct value_write *w); /* bytes that were not taken yet */
/* Takes bytes (data NULL: zeroes), as many as it has room for; returns how many. 0: later, or it
 * has failed. */
size_t value_write_add(struct value_write *w, const char *data, size_t len);
/* Local: where the next bytes belong, how many pieces; and that they are there. The latter touches
 * nothing but w and that memory: in any thread. */
size_t value_write_next(const struct value_write *w, struct iovec iov[STORE_EXTENTS_MAX]);
void value_write_filled(struct value_write *w, size_t len);
/* TARN_OK: all bytes are there. TARN_EAGAIN: they are awaited, or some are missing. Else it has
 * failed. */
tarn_status value_write_status(const struct value_write *w);
uint32_t value_write_segment(const struct value_write *w);
/* After TARN_OK: the object becomes visible. TARN_ETOKEN: the put was superseded or flushed
 * meanwhile. It is over either way. */
tarn_status value_write_end(struct value_write **w_p);
/* NULL is fine. */
void value_write_abort(struct value_write **w_p);

#endif
