/* Writes one value into a segment of another process: takes its bytes in order, sums them, and
 * sends them piece by piece, a window of pieces at a time. Only when all have arrived does the put
 * end.
 *
 *   open ─> add ... add ─> status: TARN_OK ─> end: the object is there
 *     └────────┴─────────────┴─> abort: bytes that may still arrive keep their space until their
 *                                session is fenced
 *
 * Buffers are its own: the caller may go away at any time. */
#ifndef TARN_INBAND_REMOTE_WRITE_H
#define TARN_INBAND_REMOTE_WRITE_H

#include "front/cmd.h"
#include "inband/remote.h"

struct remote_write;

/* put is open, of one replica, was not opened as local, and was opened in this session, which is
 * taken over (its id is 0 then). claim: granted, remote_window(size) of it for this. ready(arg):
 * ask again, not from inside add. */
struct remote_write *remote_write_open(const struct store_put *put, struct span key, uint64_t size,
                                       struct remote_session *session, struct remote_claim *claim,
                                       bool hurry, void (*ready)(void *arg), void *arg);
/* Takes bytes (data NULL: zeroes), as many as it has room for; returns how many. 0: later, or it
 * has failed. */
size_t remote_write_add(struct remote_write *w, const char *data, size_t len);
/* TARN_OK: all bytes have arrived. TARN_EAGAIN: they are awaited, or some are missing. Else it has
 * failed. */
tarn_status remote_write_status(const struct remote_write *w);
uint32_t remote_write_segment(const struct remote_write *w);
/* After TARN_OK: the object becomes visible. TARN_ETOKEN: the put was superseded or flushed
 * meanwhile. It is over either way. */
tarn_status remote_write_end(struct remote_write **w_p);
/* NULL is fine. */
void remote_write_abort(struct remote_write **w_p);

#endif
