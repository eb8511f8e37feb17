/* Batches of metadata commands (meta.c): also what `nodes` loads its master with. */
#ifndef TARN_BENCHMARK_META_H
#define TARN_BENCHMARK_META_H

#include "benchmark/bench.h"

enum meta_op { META_PUT, META_GET, META_EXISTS, META_PREFIX };

struct meta {
    const struct bench *b;
    enum meta_op op;
    uint64_t batch, keys, value_size, key_size, replicas, clients, threads, pipeline, lease_ms;
    double seconds;
    uint64_t run;      /* makes the keys of this run fresh */
    uint64_t next_put; /* batches handed out, over all threads */
    struct bench_crew all;
};
struct meta_result {
    struct hist hist; /* of batches, in us */
    uint64_t done_keys, hits, requests, errors;
    double seconds;
};

/* Puts keys 0 .. keys-1, whatever the operation is. */
void meta_fill(const struct meta *m);
/* The operation for so many seconds, on `threads` threads of `clients` connections each. */
void meta_measure(struct meta *m, struct meta_result *result_p);

#endif
