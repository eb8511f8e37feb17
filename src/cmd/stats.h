/* What the server counts, for INFO. */
#ifndef TARN_CMD_STATS_H
#define TARN_CMD_STATS_H

#include <stdint.h>

#define STATS_SAMPLES 16u

struct stats_rate {
    uint64_t last_count, last_ms;
    uint64_t sample[STATS_SAMPLES];
    unsigned next;
};

struct stats {
    uint64_t start_mono_ms;
    uint64_t connections, rejected_connections, denied_connections, idle_closed;
    uint64_t commands, net_in, net_out;
    uint64_t evicted_clients, hold_closed;
    uint64_t query_buffer_closed, output_buffer_closed, protocol_errors;
    /* clients that were not told OK: the append-only file could not be written */
    uint64_t unwritten_replies;
    uint64_t strangers_dropped; /* clients over the limits of those who have not authenticated */
    uint64_t tls_failures;      /* handshakes */
    uint64_t auth_failures;
    uint64_t replica_reports, replicas_bad; /* REPLICA REPORT: heard, found true */
    uint64_t postponed, quota_yields, job_slices, turns;
    uint64_t jobs_started;
    uint64_t reads, writes, reads_big, bytes_big;
    uint64_t threaded_reads, threaded_writes; /* values that io-threads moved */
    uint64_t peak_memory;
    uint64_t active_ns; /* of the loop, asleep not counted */
    uint64_t longest_turn_ns;
    struct stats_rate ops, in, out;
};
extern struct stats stats;

/* Every 100 ms or so. */
void stats_sample(void);
uint64_t stats_rate(const struct stats_rate *r);
void stats_reset(void);
/* Bytes on the heap, the books included. */
uint64_t stats_used_memory(void);
/* Pages of this process alone: without the pool and program files. */
uint64_t stats_resident_memory(void);

#endif
