/* What an eviction policy is worth: traces against the real books, request by request, as
 * tarn-benchmark replay does it with one thread, and beside them what foresight could reach. */
#ifndef TARN_SIMULATE_EVICT_H
#define TARN_SIMULATE_EVICT_H

#include "base/buf.h"
#include "simulate/hardware.h"
#include "simulate/lists.h"
#include "trace/trace.h"

/* A prefix is what is found up to the first gap. */
struct evict_score {
    uint64_t hits;  /* blocks of prefixes that were found */
    double saved_s; /* of prefill, by them */
    uint64_t evictions;
};

/* The request found `hits` blocks. */
void evict_count(struct evict_score *score, const struct sim_speed *speed, const struct trace *t,
                 const struct trace_request *q, uint32_t hits);

/* --- evict_replay.c --- */

/* Each request asks how long the prefix is, under leases, gets it, which ends them, and puts the
 * other blocks, in the batches that libtarn makes of them. The pool has room for that many blocks,
 * of one size, and all of it is used. hints: requests say which session they belong to, where the
 * trace tells it. t is sorted. */
void evict_replay(const struct trace *t, const char *policy, uint64_t blocks, bool hints,
                  const struct sim_speed *speed, struct evict_score *score);

/* --- belady.c --- */

/* What a policy could reach that knows all requests to come: who goes is the block whose next use
 * is furthest, of one request's the tail first, and it may be a block that has just come. A block
 * whose next use lies behind a gap is worth nothing: it cannot be found then, and is put again.
 *
 * Where an id stands behind the same ids always, which is so wherever a hash covers the prefix, no
 * policy finds more blocks: each use of a block is one of all before it, so their next use is not
 * later, no gap is made, and what is left is Belady's MIN, which is optimal (Mattson et al., 1970).
 * t is sorted and numbered; its ids are less than `ids`. */
void evict_belady(const struct trace *t, uint64_t ids, uint64_t blocks,
                  const struct sim_speed *speed, struct evict_score *score);
/* Nobody goes. */
void evict_unlimited(const struct trace *t, uint64_t ids, const struct sim_speed *speed,
                     struct evict_score *score);

/* --- evict.c --- */

struct evict_row {
    const char *policy;
    uint64_t blocks;
    struct evict_score score;
};
/* A trace as it is replayed, and what came of it: a row for each policy and size, policies first;
 * "belady" is the last of them. */
struct evict_sheet {
    const char *name;
    enum trace_transform transform;
    uint64_t requests, blocks, ids;
    double span_s, prefill_s; /* without any cache */
    struct evict_score unlimited;
    struct evict_row *rows;
};
struct evict_plan {
    struct names policies, traces, kinds, transforms;
    struct numbers sizes;
    struct sim_speed speed;
    struct trace_options how;
    double rate; /* requests a second of made traces */
    bool hints, json;
    struct evict_sheet *sheets;
    size_t n;
};
static inline size_t evict_rows(const struct evict_plan *p) {
    return (p->policies.n + 1) * p->sizes.n;
}
static inline double evict_ratio(const struct evict_sheet *s, const struct evict_score *score) {
    return s->blocks > 0 ? (double)score->hits / (double)s->blocks : 0;
}

/* tarn-simulate evict; the arguments behind that. */
int evict_main(int argc, char **argv);

/* --- evict_report.c --- */

void evict_text(const struct evict_plan *p, struct buf *out);
void evict_json(const struct evict_plan *p, struct buf *out);

#endif
