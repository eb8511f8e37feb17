/* Batches of metadata commands (meta.c): also what `nodes` loads its master with. */
#ifndef TARN_BENCHMARK_META_H
#define TARN_BENCHMARK_META_H

#include "benchmark/bench.h"

struct slot_map;

#define META_DIGITS 16 /* of a key's number, in hex, at its end */
#define META_TAG    6  /* a hash tag before it, {1a2b} */

enum meta_op { META_PUT, META_GET, META_EXISTS, META_PREFIX };
extern const char *const meta_op_names[]; /* ends with NULL */

struct meta {
    const struct bench *b;
    enum meta_op op;
    uint64_t batch, keys, value_size, key_size, replicas, clients, threads, pipeline, lease_ms;
    uint64_t stretch; /* so many keys in a row have a hash tag in common; 0: there is none */
    uint64_t puts;    /* of 100 batches: so many are puts, whatever the operation is */
    double rate;      /* batches a second of all connections, 0: as fast as it goes */
    bool random;      /* at random times, not evenly spaced */
    bool no_grants;   /* puts and look-ups ask for places without them */
    double seconds;
    /* By meta_masters_open, or one that is b. owner: the number of each slot's, where there are
     * several */
    const struct bench *masters;
    unsigned n_masters;
    uint8_t *owner;
    struct slot_map *map; /* NULL: there is none */
    uint64_t run;         /* makes the keys of this run fresh */
    uint64_t next_put;    /* batches handed out, over all threads */
    struct bench_crew all;
};
struct meta_result {
    struct hist hist; /* of batches, in us */
    uint64_t done_keys, hits, requests, errors;
    struct hist put_hist; /* of the puts among others, and what they stored */
    uint64_t put_keys;
    /* With a rate: how late this program itself was to send a batch, from when it was due and its
     * connection had room for it. What a server can be blamed for is beyond that. */
    struct hist late_hist;
    double seconds;
    double client_cpu_s, servers_cpu_s; /* processor time, the latter 0 where INFO is refused */
};

/* Finds the masters of the pool that b's server belongs to. */
void meta_masters_open(struct meta *m);
void meta_masters_close(struct meta *m);
/* A number of INFO, 0 where INFO is refused: the sum of all masters, the highest of any. */
double meta_masters_sum(const struct meta *m, const char *section, const char *field);
double meta_masters_most(const struct meta *m, const char *section, const char *field);
/* What all of them have taken since they started. */
double meta_masters_cpu_s(const struct meta *m);
/* A request in RESP, to all; an error ends the program. */
void meta_masters_tell(const struct meta *m, const char *request);
/* Puts keys 0 .. keys-1, whatever the operation is. */
void meta_fill(const struct meta *m);
/* The operation for so many seconds, on `threads` threads of `clients` clients each. */
void meta_measure(struct meta *m, struct meta_result *result_p);

#endif
