/* Large values of SET and its kin on their way from the socket to where they will stay: above.h
 * says when each of these is called, and value_write_next. */
#ifndef TARN_INBAND_BIG_SINK_H
#define TARN_INBAND_BIG_SINK_H

#include "front/above.h"
#include "inband/value_write.h"

struct value_write *big_sink_begin(struct client *c, const struct span *argv, size_t argc_so_far,
                                   size_t big_len);
void big_sink_filled(struct value_write *sink, size_t n);
void big_sink_abort(struct value_write *sink);

#endif
