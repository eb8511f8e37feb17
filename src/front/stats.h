/* What the server counts, for INFO. */
#ifndef TARN_FRONT_STATS_H
#define TARN_FRONT_STATS_H

#include "base/figures.h"

#define STATS_SAMPLES 16u

struct stats_rate {
    uint64_t last_count, last_ms;
    uint64_t sample[STATS_SAMPLES];
    unsigned next;
};

#define STATS_FIGURES(X)                                                                           \
    X(COUNTER, loop_turns, "turns of the event loop")                                              \
    X(COUNTER, total_connections_received, "clients that connected")                               \
    X(COUNTER, total_commands_processed, "commands that ran")                                      \
    X(COUNTER_BYTES, total_net_input_bytes, "received from clients")                               \
    X(COUNTER_BYTES, total_net_output_bytes, "sent to clients")                                    \
    X(COUNTER, rejected_connections, "... beyond maxclients")                                      \
    X(COUNTER, denied_connections, "... in protected mode, from other machines")                   \
    X(COUNTER, tls_handshakes_failed, "of clients")                                                \
    X(COUNTER, idle_connections_closed, "silent for longer than timeout")                          \
    X(COUNTER, sync_full, "snapshots for replicas")                                                \
    X(COUNTER, sync_partial_ok, "replicas that went on where they had been")                       \
    X(COUNTER, sync_partial_err, "replicas that could not, and got a snapshot")                    \
    X(COUNTER, expired_time_cap_reached_count, "periods too short for all expired keys")           \
    X(COUNTER, total_auth_failures, "wrong names or passwords")                                    \
    X(COUNTER, total_protocol_errors, "clients closed: what they sent is no request")              \
    X(COUNTER, total_reads_processed, "reads from sockets")                                        \
    X(COUNTER, io_threaded_reads_processed, "values that io-threads received")                     \
    X(COUNTER, io_threaded_writes_processed, "values that io-threads sent")                        \
    X(COUNTER, total_writes_processed, "writes to sockets")                                        \
    X(COUNTER_BYTES, total_big_argument_bytes, "values received straight to their place")          \
    X(COUNTER, client_query_buffer_limit_disconnections, "clients closed: too much input")         \
    X(COUNTER, evicted_clients, "clients closed beyond maxmemory-clients")                         \
    X(COUNTER, client_output_buffer_limit_disconnections, "clients closed: they do not read")      \
    X(COUNTER, unauthenticated_disconnections, "clients closed: too much before AUTH")             \
    X(COUNTER, inband_hold_timeouts, "clients closed: they took too long to read a value")         \
    X(COUNTER, jobs_started, "commands that took more than one slice, or waited")                  \
    X(COUNTER, job_slices, "their slices")                                                         \
    X(COUNTER, quota_yields, "clients that had to let others go first")                            \
    X(COUNTER, postponed_commands, "by CLIENT PAUSE")                                              \
    X(COUNTER, grants_sealed, "rights to an extent, or to attach a segment, given out")            \
    X(COUNTER, replica_reports, "damaged replicas that clients reported")                          \
    X(COUNTER, replicas_bad, "... and that were damaged")                                          \
    X(COUNTER, aof_unwritten_replies, "clients not told OK: the file could not be written")

struct stats {
    STATS_FIGURES(FIGURE_MEMBER)
    uint64_t start_mono_ms;
    uint64_t peak_memory;
    uint64_t active_ns; /* of the loop, asleep not counted */
    uint64_t longest_turn_ns;
    uint64_t expire_cycle_ns; /* of the loop's time */
    /* of the keys with a time, those that are past it: a running mean of samples */
    double expired_stale_percent;
    struct stats_rate ops, in, out;
};
extern const struct figure stats_figures[];
extern struct stats stats;

/* Every 100 ms or so. */
void stats_sample(void);
uint64_t stats_rate(const struct stats_rate *r);
void stats_reset(void);
/* Bytes on the heap, the books included. */
uint64_t stats_used_memory(void);

#endif
