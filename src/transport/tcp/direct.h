/* Reads of what is not memory by this process itself, which needs no connection: what turns of a
 * connection do for a peer (reads.c), the thread that asks does, and waits. It has a stager of its
 * own meanwhile, so it shares buffers, their bound, and what they keep, with all others. */
#ifndef TARN_TRANSPORT_TCP_DIRECT_H
#define TARN_TRANSPORT_TCP_DIRECT_H

#include "transport/tcp/stage.h"
#include "transport/transport.h"

/* As listener_read of transport.h. Blocks. counters: the caller's own. */
tarn_status tcp_direct_read(struct tcp_stage_pool *pool, const struct transport_gate *gate,
                            struct transport_listener_stats *counters, struct transport_op *op,
                            uint64_t deadline_boot_ms);

#endif
