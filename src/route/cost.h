/* The cost functions: which of the engines that could serve a request should. Several
 * implementations behind one interface; each fills in the cost of every candidate, and the lowest
 * wins. Ties are broken by chance, so that equal engines share. */
#ifndef TARN_ROUTE_COST_H
#define TARN_ROUTE_COST_H

#include <stdbool.h>
#include <stdint.h>
#include "route/route.h"
#include "route/traffic.h"

struct route;
struct worker;
struct route_engine;
struct route_name;

#define COST_TERMS ROUTE_TERMS_MAX

/* What a worker would do for the request: one may load from the pool, fetch from another, or
 * neither. Times in microseconds. */
struct prefill_plan {
    uint32_t load_tokens;  /* behind what is there, from the pool */
    uint32_t fetch_tokens; /* likewise from fetch_worker */
    uint32_t fetch_worker;
    uint32_t new_tokens; /* to be computed */
    double load_us;      /* the transfer, beside the waiting */
    double prefill_us;
    double ttft_us; /* of all that */
};

/* A worker that could serve the request, and what is known of it there. */
struct candidate {
    uint32_t worker;
    uint32_t hit_tokens; /* leading, that it has in any tier */
    uint32_t tier_tokens[ROUTE_TIERS];
    uint32_t ahead_tokens; /* behind those, that earlier requests compute there, or that are
                              probably there (session.h) */
    uint32_t waiting;      /* requests without a first token */
    uint32_t running;      /* sequences being decoded */
    const struct route_engine *engine;
    uint32_t pool;         /* number of what the pool has for it; ROUTE_POOLS_MAX: nothing */
    uint32_t pool_tokens;  /* of that */
    double queued_tokens;  /* of prefill */
    double context_tokens; /* of KV in use */
    double wait_us;        /* until it could begin */
    double link_us;        /* until what is being loaded for it is there */
    double hand_us;        /* where it does not decode: of the prompt to who does */
    double send_us;        /* likewise, until its link has sent what is to go before that */
    double beside_us;      /* by which those that decode make a step of a prefill longer */
    struct prefill_plan plan;
    double tbt_us;
    double term[COST_TERMS]; /* of the cost, as the policy names them */
    double cost;
    bool late; /* cannot keep the times asked for */
};

/* A decision that is being made. */
struct cost_case {
    struct route *route;
    const struct route_request *request;
    struct route_name *model, *lora;
    uint32_t prompt_tokens;
    uint32_t output_tokens;             /* expected */
    double ttft_bound_us, tbt_bound_us; /* to be kept; INFINITY: none */
    struct traffic_now traffic;         /* of the model, for each candidate */
    struct candidate *candidates;
    uint64_t session;                        /* fingerprint; 0: it is of none */
    uint32_t session_worker, session_tokens; /* what only that tells of, there */
    uint32_t count;                          /* at least 1 */
    uint32_t late;                           /* how many of them are */
    uint32_t best;           /* the one that has most of the prompt; of equal ones the first */
    double shortest_wait_us; /* of all */
};

struct cost_ops {
    const char *name;
    const char *terms[COST_TERMS + 1]; /* names of candidate.term, NULL behind the last */
    bool sums;                         /* the cost is the sum of the terms */
    /* Sets cost and terms of each candidate. May change its plan. */
    void (*weigh)(struct cost_case *c);
    double (*temperature)(const struct route *r); /* of a softmax over costs; NULL: the least */
    void (*chosen)(struct route *r, const struct candidate *a); /* NULL: it does not matter */
};

#define COST_POLICIES(X)                                                                           \
    X(tarn, "tarn")                                                                                \
    X(round_robin, "round-robin")                                                                  \
    X(least_loaded, "least-loaded")                                                                \
    X(random, "random")                                                                            \
    X(prefix_tree, "prefix-tree")                                                                  \
    X(dynamo, "dynamo")                                                                            \
    X(mooncake, "mooncake")                                                                        \
    X(score, "score")                                                                              \
    X(lmetric, "lmetric")
#define COST_DECLARE(c_name, name) extern const struct cost_ops cost_##c_name;
COST_POLICIES(COST_DECLARE)
#undef COST_DECLARE

/* NULL: there is none of that name. */
const struct cost_ops *cost_find(const char *name);
/* The chosen one's place, by the costs that were weighed; of those that are late none, while there
 * are others. */
uint32_t cost_choose(struct cost_case *c, const struct cost_ops *ops);

#endif
