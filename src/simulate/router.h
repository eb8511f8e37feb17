/* What a simulation asks of the real routing (route/route.h): engines are numbers here, blocks the
 * numbers of a trace. */
#ifndef TARN_SIMULATE_ROUTER_H
#define TARN_SIMULATE_ROUTER_H

#include <stdbool.h>
#include <stdint.h>
#include "route/route.h"
#include "simulate/sim.h"

#define ROUTER_NONE UINT32_MAX

struct router {
    struct route *route;
    const struct sim_config *config;
    uint32_t block; /* tokens */
    uint64_t kv_blocks, cache_blocks;
    uint64_t scope;
    uint32_t *parents; /* of each block in the trace: the one before it, plus 1; 0: none */
    uint64_t *hashes;  /* of the request that is asked about */
    uint32_t hashes_cap;
    uint32_t *engine_of; /* of each worker */
    uint32_t holders[SIM_ENGINES_MAX];
    struct route_pool_run runs[ROUTE_POOL_RUNS_MAX];
    uint32_t n_runs;
    uint64_t gone[64]; /* blocks of one engine and tier that the index is to forget */
    size_t n_gone;
    uint32_t gone_engine;
    enum route_tier gone_tier;
    char (*names)[16]; /* of hosts */
    char (*racks)[16];
};
/* What is to be done with a request. */
struct router_choice {
    uint32_t prefill, decode;     /* engines; decode the same one when it goes on there */
    uint32_t load_tokens;         /* from the pool, beyond what the engine has */
    uint32_t fetch, fetch_tokens; /* from another engine; ROUTER_NONE */
};

/* The first blocks of the prompt that was asked about last go to one more engine. */
struct router_copy {
    uint32_t from, to, blocks;
};

/* NULL: there is no such policy. kv_blocks: of an engine's device, cache_blocks: with its host
 * memory. */
struct router *router_open(const struct sim_config *c, const struct trace *t, uint64_t ids,
                           uint64_t kv_blocks, uint64_t cache_blocks);
void router_close(struct router **router_p);
void router_engine_up(struct router *r, uint32_t engine, double now);
void router_engine_gone(struct router *r, uint32_t engine, double now);
/* An engine has blocks ids[from .. to) of a prompt now. */
void router_stored(struct router *r, uint32_t engine, enum route_tier tier, const uint64_t *ids,
                   uint32_t from, uint32_t to);
/* A block has left its device memory; kept: for its host memory. */
void router_moved_down(struct router *r, uint32_t engine, uint32_t id, bool kept);
void router_dropped(struct router *r, uint32_t engine, enum route_tier tier, uint32_t id);
/* A request with that number; hosts: of its first `pooled` blocks, which the pool has; NULL: its
 * prompt is computed, and it is only about where it decodes. TARN_ELATER:
 * refused. TARN_ENOTFOUND: nobody is there for it. */
tarn_status router_ask(struct router *r, uint64_t number, const struct trace_request *q,
                       const uint64_t *ids, const uint32_t *hosts, uint32_t pooled, double now,
                       struct router_choice *choice);
/* Copies that were ordered by then: after each router_ask until there is none. */
bool router_copy_take(struct router *r, struct router_copy *order);
void router_first(struct router *r, uint64_t number, double now);
void router_done(struct router *r, uint64_t number, uint32_t output, bool failed, double now);

#endif
