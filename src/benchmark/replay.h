/* What the files of `replay` share. */
#ifndef TARN_BENCHMARK_REPLAY_H
#define TARN_BENCHMARK_REPLAY_H

#include "benchmark/bench.h"
#include "benchmark/kv_plan.h"
#include "trace/trace.h"

#define REPLAY_KEY_SIZE 64

struct replay {
    const struct bench *b;
    struct trace trace;
    struct kv_plan plan; /* n 0: of a model with blocks of one kind */
    const char *transport;
    const char *together; /* what parts are put as: boundaries, groups, nothing */
    uint64_t block_size, threads, lease_ms, limit;
    double speed;
    bool hints;  /* the trace's sessions are sent */
    size_t next; /* request, over all threads */
    uint64_t start_ms;
    struct bench_crew all;
};

struct replay_figures {
    uint64_t requests, blocks, hit_blocks, bytes_read, bytes_written, mismatched_blocks,
        failed_puts, busy_puts, existing_puts, lost_hits, failed_lookups, tokens, hit_tokens,
        round_trips, group_blocks[KV_PLAN_GROUPS]; /* that were read, by KV group */
    struct hist prefix, get, put;
};

struct replay_worker {
    struct bench_thread t;
    struct replay *r;
    tarn_client *client;
    struct replay_figures f;
    char session[12]; /* of the request, "": none */
    tarn_key *keys;
    tarn_item *items;
    char (*names)[REPLAY_KEY_SIZE + 1]; /* of the items */
    char *memory;
    /* of a model with KV groups: the hashes that keys point to, what the bytes of each item follow
     * from, and its boundary */
    char (*hashes)[REPLAY_KEY_SIZE + 1];
    uint64_t *seeds;
    tarn_key *boundaries;
};

void replay_note(struct replay_worker *k, const char *what);
/* Of its look-ups and gets. */
tarn_call replay_call(const struct replay_worker *k);
/* n items, whose bytes follow from seeds: those that are there are checked. */
void replay_get(struct replay_worker *k, const uint64_t *seeds, size_t n);
void replay_put(struct replay_worker *k, size_t n, tarn_put_options *options);

/* --- replay_kv.c --- */

/* Sets the option of puts for these ids; options NULL: only says whether there is such a way. */
bool replay_kv_together(const char *way, const tarn_key *ids, tarn_put_options *options);
void replay_kv_open(struct replay_worker *k);
void replay_kv_close(struct replay_worker *k);
void replay_kv_request(struct replay_worker *k, const struct trace_request *q);

#endif
