/* Large values of SET and its kin on their way from the socket to where they will stay: above.h
 * says when each of the first four is called. */
#ifndef TARN_INBAND_BIG_SINK_H
#define TARN_INBAND_BIG_SINK_H

#include "front/above.h"

struct big_sink *big_sink_begin(struct client *c, const struct span *argv, size_t argc_so_far,
                                size_t big_len);
size_t big_sink_next(struct big_sink *sink, struct iovec iov[BIG_PIECES]);
void big_sink_filled(struct big_sink *sink, size_t n);
void big_sink_abort(struct big_sink *sink);
uint64_t big_sink_size(const struct big_sink *sink);
/* Makes it the value of its key, which must be the one it was begun with. Frees the sink.
 * TARN_ETOKEN: superseded. */
tarn_status big_sink_commit(struct big_sink **sink_p, struct span key);

#endif
