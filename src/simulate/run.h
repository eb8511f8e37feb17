/* What the files of a run share: requests, engines, and the whole.
 *
 * Life of a request:
 *
 *   arrives ─> LOADING ─> QUEUED ─> PREFILL ─ first token ─┬────────────────────> DECODE ─> over
 *      ^         (what the pool or another engine has)     └─> HANDOVER ─> READY ───┘
 *      │                                                       (to the engine that decodes)
 *      └── its engine failed: from the start, with the tokens that it has as part of its prompt
 *
 * Where the pool's masters take time, LOOKUP comes before LOADING. DECODE goes back to QUEUED, at
 * the head, when its engine runs out of KV (preempted). */
#ifndef TARN_SIMULATE_RUN_H
#define TARN_SIMULATE_RUN_H

#include "simulate/cache.h"
#include "simulate/events.h"
#include "simulate/gaps.h"
#include "simulate/network.h"
#include "simulate/pool.h"
#include "simulate/router.h"
#include "simulate/sim.h"

#define CALL_NONE UINT32_MAX

enum call_state {
    CALL_LOOKUP,
    CALL_LOADING,
    CALL_QUEUED,
    CALL_PREFILL,
    CALL_HANDOVER,
    CALL_READY,
    CALL_DECODE
};

/* A request that is under way. Its slot is used again when it is over and all flows of it are. */
struct call {
    bool live;
    enum call_state state;
    uint32_t flows, loads;   /* under way: all, and those it waits for */
    uint64_t number;         /* in the trace */
    uint32_t engine, decode; /* decode CALL_NONE: that one failed */
    uint32_t prompt;    /* tokens to be there before it goes on: input, and what it has of output */
    uint32_t generated; /* tokens of output */
    double arrived, last_token, ttft;
    double looked; /* when the pool was asked for it */
    bool started;  /* its first token is there */
    /* blocks: the prefix on the device when it arrived; up to where that continues in host memory,
     * then in the pool or on another engine, once that is loaded */
    uint32_t near, host_to, load_to;
    uint32_t pooled; /* blocks that the pool had */
    uint32_t found;  /* on the device when its prefill began */
    uint32_t held;   /* leading blocks of the trace that it holds in the cache */
    uint32_t private;
    uint32_t done;     /* tokens of the prompt that are there, while it is in prefill */
    uint32_t computed; /* that were not there when it began */
    uint32_t put_host; /* where what it computed is put into the pool */
    uint64_t join_steps, join_log;
    double waited; /* before its first step of decoding */
    uint64_t order;
    struct gaps gaps;
    uint32_t next; /* in a list: of free ones, or of one that waits */
    struct store_chain chain[SIM_MASTERS_MAX];
};

struct call_queue {
    uint32_t first, last, n;
};

/* What an engine does now. */
enum engine_work { ENGINE_IDLE, ENGINE_STEP, ENGINE_RUN, ENGINE_STALLED, ENGINE_GONE };
#define ENGINE_PARTS 16u /* prompts of which a step has a part */

struct sim_engine {
    uint32_t number;
    struct sim *sim;
    struct cache device, host;
    enum engine_work work;
    uint32_t generation; /* of its next event */
    struct call_queue queue, ready;
    uint32_t active[ENGINE_PARTS]; /* in prefill, in their order */
    uint32_t part[ENGINE_PARTS];   /* tokens of this step */
    uint32_t n_active;
    uint32_t *batch; /* that decode */
    uint32_t n_batch;
    double began, first_s, growth_s; /* of a run of steps: the first one, and how each is longer */
    uint32_t run;                    /* steps */
    uint64_t steps, log_base;        /* done so far; number of the first row of log */
    struct gap *log;                 /* gaps of its steps */
    size_t n_log, cap_log;
};

/* A hot prefix on its way to one more engine. */
struct sim_copy {
    bool live; /* false: over, or one of both failed */
    uint32_t from, to;
    const uint64_t *ids; /* of the trace */
    uint32_t blocks;
    uint32_t next; /* in the list of free ones */
};

/* Who waits for a flow: its owner is number * FLOW_KINDS + kind, the number that of a call or copy.
 */
enum flow_kind { FLOW_LOAD, FLOW_HANDOVER, FLOW_WRITE, FLOW_COPY, FLOW_KINDS };

struct sim {
    const struct sim_config *config;
    const struct trace *trace;
    struct events events;
    struct network network;
    struct sim_pool *pool; /* NULL: none */
    struct router *router;
    struct sim_engine *engines;
    uint32_t n_engines;
    struct call *calls;
    size_t n_calls, cap_calls;
    uint32_t free_call;
    struct sim_copy *copies;
    size_t n_copies, cap_copies;
    uint32_t free_copy;
    uint32_t *hosts;    /* of a prompt's blocks */
    double *host_bytes; /* by host, of one load */
    double now, block_bytes, arrival_end, end;
    uint64_t order;
    double prompt_tokens, device_tokens, host_tokens, pool_tokens;
    struct samples ttft, tbt, lookup;
    struct spread *gaps;
    struct sim_result *result;
};

/* --- calls.c: requests --- */

static inline const struct trace_request *call_request(const struct sim *s, const struct call *c) {
    return &s->trace->requests[c->number];
}
static inline const uint64_t *call_ids(const struct sim *s, const struct call *c) {
    return s->trace->ids + call_request(s, c)->first;
}
static inline uint32_t call_number(const struct sim *s, const struct call *c) {
    return (uint32_t)(c - s->calls);
}
/* A new request of the trace. */
void call_arrive(struct sim *s, uint64_t number);
/* The pool's masters have answered. */
void call_looked_up(struct sim *s, uint32_t call);
/* What it does on its engine ends: its blocks are left to others. */
void call_leave(struct sim *s, struct call *c, struct sim_engine *e);
/* Its turn has come. It may be LOADING behind. */
void call_look_again(struct sim *s, struct call *c);
void call_started(struct sim *s, struct call *c); /* its prompt is computed, a token is there */
void call_finish(struct sim *s, struct call *c);
/* Its engine failed. */
void call_restart(struct sim *s, struct call *c);
void call_flow_ended(struct sim *s, uint32_t owner);

void queue_push(struct sim *s, struct call_queue *q, uint32_t call);
void queue_push_front(struct sim *s, struct call_queue *q, uint32_t call);
void queue_remove(struct sim *s, struct call_queue *q, uint32_t call, uint32_t before);

/* --- copies.c --- */

/* Those that were ordered when that request was sent. */
void copies_begin(struct sim *s, uint64_t number);
void copy_ended(struct sim *s, uint32_t copy);
/* That engine is gone. */
void copies_fail(struct sim *s, uint32_t engine);

/* --- engine.c --- */

void engine_open(struct sim *s, struct sim_engine *e, uint32_t number, uint32_t blocks,
                 uint32_t host_blocks);
void engine_close(struct sim_engine *e);
/* Something new is there for it: looks whether it can begin with that. */
void engine_wake(struct sim *s, struct sim_engine *e);
/* Its event. */
void engine_event(struct sim *s, struct sim_engine *e, uint32_t generation);
/* All that it was doing is over, all its blocks are gone. */
void engine_fail(struct sim *s, struct sim_engine *e);

#endif
