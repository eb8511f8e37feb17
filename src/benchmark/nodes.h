/* What the nodes subcommand measures (nodes.c), and how it is shown (nodes_print.c). */
#ifndef TARN_BENCHMARK_NODES_H
#define TARN_BENCHMARK_NODES_H

#include "benchmark/meta.h"

struct beat_figures {
    double per_s;
    struct hist hist;
};

struct nodes_figures {
    uint64_t nodes, replicas, objects;
    uint64_t heartbeat_ms, timeout_ms; /* of the master */
    double join_ms;                    /* of all: join, mount, up */
    double put_seconds;                /* of all objects */
    double bytes_per_object;           /* of books */
    struct meta_result gets;
    struct beat_figures beats_loading, beats_reading;
    /* From a node's death to the last look-up that found what only it had: its connection closed,
     * it fell silent. */
    double closed_ms, silent_ms;
    double back_ms; /* from its return to its objects being readable */
};
void nodes_print(const struct bench *b, const struct nodes_figures *f);

#endif
