/* A simulation: what is set, what comes out, and one run. */
#ifndef TARN_SIMULATE_SIM_H
#define TARN_SIMULATE_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "simulate/hardware.h"
#include "trace/trace.h"

#define SIM_ENGINES_MAX  4096u
#define SIM_FAILURES_MAX 64u
#define SIM_MASTERS_MAX  16u

/* An engine alone; its host with its part of the pool; a master of the pool. */
enum sim_failing { SIM_FAILS_ENGINE, SIM_FAILS_HOST, SIM_FAILS_MASTER };
struct sim_failure {
    double at_s, for_s; /* for_s 0: it does not come back; a master: SIM_PROMOTION_S */
    enum sim_failing what;
    uint32_t who;
};
#define SIM_PROMOTION_S 1.7 /* from the kill of a master to the first answers of its replica */

struct sim_config {
    struct sim_speed speed;
    uint32_t engines;         /* that do both */
    uint32_t prefill, decode; /* or so many of each; both 0: none are apart */
    uint32_t batch_max;       /* sequences decoded at a time */
    uint64_t kv_blocks;       /* of an engine's device memory, 0: as many as fit */
    uint64_t host_blocks;     /* of its own host memory, 0: it has none */
    uint64_t pool_blocks;     /* of all hosts together, 0: no pool */
    const char *eviction;     /* of the pool */
    uint32_t masters;         /* of the pool; 0: one whose look-ups take no time */
    double lookup_s, key_s;   /* of a look-up: there and back, and of a master for each key */
    double nic, local;        /* bytes a second: of a host's card; between its memory and devices */
    double rack_s, far_s;     /* latency within a rack, and between two */
    uint32_t rack_hosts;      /* 0: one rack */
    bool overlap;             /* layers are computed while later ones are loaded */
    const char *route;
    bool copies; /* of hot prefixes, as routing orders them */
    double slo_ttft_s, slo_tbt_s;
    bool admit;  /* requests that cannot keep these are refused */
    double pace; /* how much faster than in the trace requests come */
    uint64_t seed;
    struct sim_failure failures[SIM_FAILURES_MAX];
    size_t n_failures;
};
void sim_config_init(struct sim_config *c);
static inline uint32_t sim_engines(const struct sim_config *c) {
    return c->prefill > 0 ? c->prefill + c->decode : c->engines;
}
static inline uint32_t sim_masters(const struct sim_config *c) {
    return c->masters > 0 ? c->masters : 1;
}
/* NULL, or why such a simulation cannot be; the text is this thread's own until the next call. */
const char *sim_config_check(const struct sim_config *c, const struct trace *t);

struct sim_times { /* seconds */
    double mean, p50, p90, p99;
};
/* Requests are refused (admission), too long for an engine, lost (no engine was left), or done. */
struct sim_result {
    uint64_t requests, done, refused, too_long, lost, restarted, preempted;
    struct sim_times ttft; /* of those that are done */
    struct sim_times tbt;  /* of each the mean of the longest tenth of its gaps between tokens */
    struct sim_times gap;  /* of all gaps of all of them */
    uint64_t kept;         /* done within both limits */
    double span_s;         /* from the first request to the last */
    double goodput;        /* kept in a second of that */
    double tokens_s;       /* tokens of answers in a second, until the last request was done */
    double prompt_tokens;  /* of those that began */
    double device, host, pool;          /* shares of these that were found there */
    double saved_s;                     /* of prefill, by what was found */
    double prefill_s;                   /* that engines spent on prefills */
    uint64_t copies;                    /* of hot prefixes */
    double copied_bytes;                /* by them */
    double moved_bytes;                 /* between hosts, copies among them */
    double local_bytes;                 /* between a host's memory and its devices */
    struct sim_times lookup;            /* of look-ups in the pool, with masters */
    uint64_t pool_blocks, pool_evicted; /* in it at the end; evicted from it */
};

/* t is sorted and numbered; its ids are less than `ids`. progress is told of each thousandth
 * request; NULL: nobody. The same arguments give the same result. */
struct sim_progress {
    void (*tell)(void *arg, uint64_t done, uint64_t total);
    void *arg;
};
void sim_run(const struct sim_config *c, const struct trace *t, uint64_t ids,
             const struct sim_progress *progress, struct sim_result *result);

/* The pace at which round-robin can just keep 9 of 10 requests within both limits, colocated and
 * apart as c says; 0: it cannot at any; INFINITY: these are too few requests to tell, as at that
 * pace all would come within the time that TTFT may take, and a queue has no time to grow. At most
 * limit requests are tried (0: all). */
#define SIM_KEPT_SHARE 0.9
double sim_pace_limit(const struct sim_config *c, const struct trace *t, uint64_t ids,
                      uint64_t limit);

#endif
