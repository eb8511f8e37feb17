/* Which engine serves a request: the room's entry.
 *
 * A route holds the engines, what they have (index.h), how loaded they are, how fast (model.h).
 * route_decide picks by one of the cost functions (cost.h), admits or says OVERLOADED, and
 * reserves: the load counts from that moment, so that a burst does not all go to one engine.
 *
 *   decide ─> PREFILL ── first ──> DECODE ── done ──> gone
 *               │  │                 │ └─ decide again: the decode engine is chosen anew
 *               │  └─ decide again: given back, chosen anew (EXCLUDE: elsewhere)
 *               └── lease ends, engine removed, done ──> given back, exactly once
 *
 * Pure: no sockets, files, threads or clock. Time is an argument in microseconds of any monotonic
 * clock that starts well above nothing; a time that steps back counts as the last one. One thread.
 * Nothing blocks. What is borrowed says for how long. Memory is bounded by the options: requests,
 * engines, tenants and kept decisions have a most, and what is over it gets TARN_ELIMIT
 * (engines, requests) or pushes out the oldest (the others).
 *
 * Words: an engine (vLLM, SGLang) has one or more ranks of data parallelism; a rank is what has its
 * own cache and queue, and what a decision is about. A worker is the number of such a rank in this
 * route. */
#ifndef TARN_ROUTE_ROUTE_H
#define TARN_ROUTE_ROUTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/figures.h"
#include "route/index.h"
#include "tarn_status.h"

#define ROUTE_NAME_MAX    128u /* of ids and names, in bytes */
#define ROUTE_URL_MAX     512u
#define ROUTE_RANKS_MAX   64u
#define ROUTE_EXCLUDE_MAX 16u
#define ROUTE_POOLS_MAX   4u         /* ways of calling blocks in the pool, for one request */
#define ROUTE_TOKENS_MAX  (1u << 28) /* of a prompt, and of an answer */
#define ROUTE_NO_WORKER   UINT32_MAX
#define ROUTE_NOBODY      UINT32_MAX /* among candidates */

enum route_role { ROUTE_BOTH, ROUTE_PREFILL, ROUTE_DECODE };

/* How far bytes have to go. */
enum route_place { ROUTE_SAME_HOST, ROUTE_SAME_RACK, ROUTE_FAR, ROUTE_PLACES };

/* How long things take, where nothing has been observed yet; what is 0 is filled from
 * route_prior_default. Times in microseconds. */
struct route_prior {
    /* Prefill of n new tokens behind a prefix of p: start + token * n + pair * n * (n + 2 p). */
    double prefill_start_us, prefill_token_us, prefill_pair_us;
    /* One decode step of b sequences with c tokens of context in all: step + sequence * b +
     * context * c. */
    double decode_step_us, decode_sequence_us, decode_context_us;
    /* Moving n bytes of KV: latency + n / rate, by place; what comes from a disk has disk_rate at
     * most. Bytes per microsecond, which is MB/s. */
    double latency_us[ROUTE_PLACES], rate[ROUTE_PLACES], disk_rate;
};
/* An 8B model on one H100, 100 Gbit/s between hosts. */
extern const struct route_prior route_prior_default;

struct route_options {
    const char *policy; /* a name of route_policies; NULL: "tarn" */
    uint64_t seed;      /* of random choices */

    uint32_t workers_max;   /* ranks of all engines */
    uint32_t requests_max;  /* reserved at a time */
    uint32_t tenants_max;   /* remembered */
    uint32_t sessions_max;  /* likewise */
    uint32_t decisions_max; /* kept for route_explain */
    uint64_t index_bytes;   /* of the index */
    uint64_t index_seed;    /* of its hashes (hash.h) */

    uint32_t lease_ms;       /* a reservation ends so long after the time it was estimated to end */
    uint32_t silent_ms;      /* engines that reported once and then nothing for so long get nothing;
                                0: silence does not matter */
    uint32_t backoff_ms;     /* after failures in a row an engine gets nothing for so long, doubled
                                by each further one */
    uint32_t backoff_max_ms; /* at most */

    double ttft_ms, tbt_ms;  /* admission where a request asks for nothing; 0: everything */
    uint32_t tenant_wait_ms; /* from this wait on tenants are held to their shares; 0: never */
    uint32_t output_tokens;  /* expected of a request, before any was seen */

    double tree_rate, tree_ratio; /* prefix-tree: match rate, imbalance */
    uint32_t tree_gap;            /* prefix-tree: imbalance in requests */
    double dynamo_scale, dynamo_temperature, dynamo_credit[ROUTE_TIERS];
    double mooncake_threshold; /* best match / own match: fetch it */
    double score_hit, score_load;
    bool fetch; /* engines can load a prefix from each other */
    double
        copy_share; /* a prefix is copied when it alone takes this share of an engine; 0: never */
};
extern const struct route_options route_options_default;

/* NULL-terminated names of the cost functions. */
extern const char *const route_policies[];

struct route;

/* options NULL: the defaults; borrowed during the call. NULL comes back when an option is out of
 * range, the policy has no such name, or the index has no room for so many workers. */
struct route *route_create(const struct route_options *options);
void route_destroy(struct route **route_p);

/* What is wrong, of the last call that did not return TARN_OK: a sentence without a full stop,
 * valid until the next call. */
const char *route_error(const struct route *r);

/* --- engines --- */

/* All spans are borrowed during the call; empty ones and zeroes mean the default. */
struct route_engine_spec {
    struct span id, url; /* id: a name of up to ROUTE_NAME_MAX bytes */
    enum route_role role;
    struct span model;
    struct span lora;   /* serves this adapter; "*": any, and none */
    struct span tenant; /* serves this tenant alone; empty or "default": everybody */
    struct span salt;   /* of its hashes: shown, and compared by whoever hashes */
    struct span host, rack;
    uint32_t block_tokens;    /* tokens of a block */
    uint32_t ranks;           /* those from 0 on; 0: only the one below */
    uint32_t rank;            /* others may follow (route_rank_add) */
    uint32_t kv_blocks;       /* in device memory of one rank; 0: unknown */
    uint64_t cache_blocks;    /* in all tiers of one rank; 0: kv_blocks, or unknown */
    uint32_t bytes_per_token; /* of KV; 0: unknown, transfers then cost their latency */
    uint32_t batch_max;       /* sequences decoded at a time; 0: unknown */
    struct route_prior prior;
};

/* TARN_EEXISTS: the id is there already, TARN_EINVAL: out of range (the error says what),
 * TARN_ELIMIT: workers_max. */
tarn_status route_engine_add(struct route *r, const struct route_engine_spec *spec,
                             uint64_t now_us);
/* One rank more of an engine, as those that it has. TARN_ENOTFOUND: no such engine; TARN_EEXISTS,
 * TARN_EINVAL, TARN_ELIMIT as above. */
tarn_status route_rank_add(struct route *r, struct span id, uint32_t rank, uint64_t now_us);
/* The engine goes with its last rank. TARN_ENOTFOUND: no such engine or rank. */
tarn_status route_rank_remove(struct route *r, struct span id, uint32_t rank, uint64_t now_us);
/* Its reservations are given back, its requests forgotten, its blocks leave the index.
 * TARN_ENOTFOUND: no such engine. */
tarn_status route_engine_remove(struct route *r, struct span id, uint64_t now_us);
/* Gets nothing new while it drains; on false it takes part again. TARN_ENOTFOUND. */
tarn_status route_engine_drain(struct route *r, struct span id, bool drain, uint64_t now_us);
/* How the engine calls its blocks in the pool: a text of the caller's, which means nothing here but
 * that engines with the same one share blocks. Empty, as at first: it has none. TARN_ENOTFOUND,
 * TARN_EINVAL: the text is too long, or has a NUL in it. */
#define ROUTE_KEYS_MAX 49152u
tarn_status route_engine_keys(struct route *r, struct span id, struct span keys, uint64_t now_us);

/* A report; what is ROUTE_UNKNOWN was not reported. */
#define ROUTE_UNKNOWN UINT64_MAX
struct route_load {
    uint64_t prefill_tokens; /* queued and running */
    uint64_t waiting;        /* requests without a first token, or those that have not begun */
    uint64_t running;        /* sequences in the decode batch, or all that have begun */
    uint64_t kv_blocks_used;
    uint64_t kv_blocks;
};
/* Also the engine's heartbeat. What the report has beyond the route's own reservations (the most
 * they were since the last report, as the report may be that old) is load from elsewhere, and stays
 * until the next one. Where it has waiting requests, but not their tokens, these are taken to be as
 * long as what the route sends to that model. TARN_ENOTFOUND: no such engine or rank. */
tarn_status route_engine_load(struct route *r, struct span id, uint32_t rank,
                              const struct route_load *load, uint64_t now_us);
/* What that rank has reported counts no more. An engine of which no rank has reported is not waited
 * for. TARN_ENOTFOUND: no such engine or rank. */
tarn_status route_load_forget(struct route *r, struct span id, uint32_t rank, uint64_t now_us);
/* A sign of life without figures. */
tarn_status route_engine_beat(struct route *r, struct span id, uint64_t now_us);

enum route_state { ROUTE_UP, ROUTE_DRAINS, ROUTE_SILENT, ROUTE_BACKS_OFF };
/* Strings are borrowed until the next call that adds or removes an engine. */
struct route_engine_view {
    const char *id, *url, *model, *lora, *tenant, *salt, *host, *rack, *keys;
    enum route_role role;
    enum route_state state;
    uint32_t rank, ranks, worker, block_tokens, kv_blocks, bytes_per_token;
    uint32_t prefills, prefill_tokens; /* reserved here and not first yet */
    double prefill_wait_us;            /* until those are done, foreign ones included */
    uint32_t decodes;                  /* in the decode batch, foreign ones included */
    uint64_t context_tokens;           /* of all that is reserved */
    uint64_t foreign_prefill_tokens, foreign_decodes, foreign_kv_blocks;
    uint64_t routed, failed, reports;
    uint64_t prompt_tokens, hit_tokens; /* of all that was routed there, and found there */
    uint64_t heard_us;                  /* the last sign of life; 0: none yet */
    /* as learnt so far */
    double prefill_token_us, prefill_error, decode_step_us, decode_error;
    uint64_t prefill_seen, decode_seen;
};
/* The ranks of all engines, one after the other: of *cursor_p 0 the first; false: there is none
 * left. Engines may not come or go between the calls. */
bool route_engine_next(struct route *r, uint32_t *cursor_p, uint64_t now_us,
                       struct route_engine_view *view_p);
/* ROUTE_NO_WORKER: no such engine or rank. */
uint32_t route_worker_find(const struct route *r, struct span id, uint32_t rank);
/* The sizes of blocks of the engines that serve this model and adapter: what a request's tokens are
 * hashed by. Returns how many there are, up to ROUTE_CHAINS_MAX. */
uint32_t route_block_sizes(const struct route *r, struct span model, struct span lora,
                           uint32_t sizes[ROUTE_CHAINS_MAX]);
/* Likewise how they call blocks in the pool, those of engines that only decode aside. Borrowed
 * until engines come, go or are given others. */
uint32_t route_keys(const struct route *r, struct span model, struct span lora,
                    struct span keys[ROUTE_POOLS_MAX]);
/* What the engines have; its holders come and go with the engines. Owned by the route. Its events
 * are told to it directly. */
struct route_index *route_index(struct route *r);
/* From now on the index hears of what that worker has, or does not; at first it does not. No such
 * worker: nothing. */
void route_worker_followed(struct route *r, uint32_t worker, bool followed);
/* The holder of that worker in the index; ROUTE_HOLDER_NONE: no such worker. */
uint32_t route_worker_holder(const struct route *r, uint32_t worker);

/* --- requests --- */

/* Bytes of the pool that have to be loaded for its part of a prefix, of one KV group. */
struct route_pool_run {
    uint32_t begin, tokens; /* which tokens of the prompt they are of */
    enum route_tier tier;   /* ROUTE_TIER_HOST: memory, ROUTE_TIER_DISK: disk or file */
    struct span host, rack; /* where they lie */
    uint64_t bytes;         /* 0: tokens * the engine's bytes_per_token */
};
#define ROUTE_POOL_RUNS_MAX 64u

/* What the pool has of a prompt under one way of calling blocks there. */
struct route_pool {
    struct span keys; /* engines with the same load it (route_engine_keys); empty: those without */
    uint32_t tokens;  /* leading, in all KV groups; 0: nothing */
    const struct route_pool_run *runs; /* of those; what an engine has itself is not loaded */
    uint32_t run_count;                /* up to ROUTE_POOL_RUNS_MAX */
};

struct route_request {
    struct span id; /* up to ROUTE_NAME_MAX bytes */
    struct span model, lora;
    struct span tenant;  /* empty: "default" */
    struct span session; /* whose next turn it is; empty: of none. Where an engine's blocks are told
                            of (route_worker_followed), and the request has chains, it changes
                            nothing */
    const char *policy;  /* NULL: the route's */
    /* Its whole blocks, hashed by each size of block that its engines have (index.h); none: nothing
     * is known to be anywhere. */
    const struct route_chain *chains;
    uint32_t chain_count;       /* up to ROUTE_CHAINS_MAX */
    uint32_t length_tokens;     /* of the prompt */
    uint32_t output_tokens;     /* expected; 0: unknown */
    int32_t priority;           /* below 0: refused before others are; above: tenants' shares do not
                               hold it back */
    double ttft_ms, tbt_ms;     /* that it must keep; 0: the options' */
    const struct span *exclude; /* ids of engines */
    uint32_t exclude_count;
    struct route_pool pools[ROUTE_POOLS_MAX];
};

/* Ids are borrowed until engines come or go. */
struct route_decision {
    const char *prefill, *decode; /* decode NULL: the same engine and rank goes on */
    uint32_t prefill_rank, decode_rank;
    uint32_t prefill_worker, decode_worker; /* decode_worker is prefill_worker where decode is
                                               NULL */
    uint32_t hit_tokens[ROUTE_TIERS];       /* there, each by its fastest tier */
    uint32_t ahead_tokens;                  /* that earlier requests are about to compute there */
    uint32_t session_tokens;                /* behind those, probably there by its session */
    uint32_t pool_tokens;                   /* that the pool has for it, leading */
    uint32_t load_tokens;                   /* to be loaded from the pool beyond what is there */
    const char *fetch;                      /* loaded from this engine instead; NULL: from none */
    uint32_t fetch_rank, fetch_worker, fetch_tokens;
    double ttft_ms, tbt_ms; /* estimates */
    uint32_t lease_ms;
    uint32_t retry_ms; /* OVERLOADED: ask again then */
};

/* Decides and reserves.
 *
 * TARN_OK; TARN_ELATER: OVERLOADED, no engine can keep the TTFT or TBT, or the tenant is over its
 * share while others wait: only retry_ms is written; TARN_ENOTFOUND: no engine serves this model,
 * adapter or tenant, or all that do are excluded, draining, silent or failing; TARN_EINVAL: the
 * request cannot be right (no id, lengths, blocks of a size that no engine has, an unknown policy);
 * TARN_ELIMIT: requests_max. The error says which.
 *
 * The same id again: before route_first all is chosen anew. After it, the decode engine is; hits
 * and ttft_ms are 0 then. */
tarn_status route_decide(struct route *r, const struct route_request *q, uint64_t now_us,
                         struct route_decision *d);
/* Its first token is there: the prefill is given back, and teaches the model. TARN_ENOTFOUND: no
 * such request, or its lease has ended. */
tarn_status route_first(struct route *r, struct span request, uint64_t now_us);
/* It is over, all is given back. output_tokens 0: unknown. failed: counts against the engine that
 * has it, and teaches nothing else. TARN_ENOTFOUND as above. */
tarn_status route_done(struct route *r, struct span request, uint32_t output_tokens, bool failed,
                       uint64_t now_us);
/* The same, failed by the engine that was to decode it, although its prefill may not be over. */
tarn_status route_failed_decode(struct route *r, struct span request, uint64_t now_us);
/* Called for each request whose reservation ends, whatever the reason, also before it is decided
 * anew; inside it nothing of the route may be called. NULL: nobody is told. */
void route_ended_set(struct route *r, void (*ended)(void *arg, struct span request), void *arg);
/* A reservation as bytes that another route may take up, on any machine: appended. TARN_ENOTFOUND
 * as above. */
#define ROUTE_RECORD_MAX 512u
tarn_status route_request_export(struct route *r, struct span request, struct buf *out);
/* Instead of one of that name. elapsed_ms: since it was exported. TARN_EPROTO: these are no such
 * bytes, nothing has changed; TARN_ENOTFOUND: its lease has ended, or its engine is not there;
 * TARN_ELIMIT: requests_max. Its times are of another clock: they teach nothing. */
tarn_status route_request_import(struct route *r, struct span request, struct span record,
                                 uint64_t elapsed_ms, uint64_t now_us);
/* Gives all reservations back, and forgets the requests. */
void route_requests_clear(struct route *r);
/* How often a tenant's turn comes beside the others'; 1 where nothing was set. TARN_EINVAL: it is
 * not above 0 and finite, or the name is too long; TARN_ELIMIT: tenants_max. */
tarn_status route_tenant_weight(struct route *r, struct span tenant, double weight,
                                uint64_t now_us);
struct route_tenant_view {
    struct span name; /* borrowed until the next decision */
    double weight;
    uint64_t admitted, refused;
    uint32_t waiting; /* requests without a first token */
    double waiting_ms;
};
/* Of *cursor_p NULL the one that asked last; false: there is none left. */
bool route_tenant_next(const struct route *r, const void **cursor_p,
                       struct route_tenant_view *view_p);

/* What engines have of a prompt: leading tokens, by their tier and all faster ones. */
struct route_matched {
    const char *engine;
    uint32_t rank, worker;
    uint32_t tokens[ROUTE_TIERS];
    uint32_t pool_tokens; /* that the pool has for it */
};
/* Of all engines that serve the request's model, whatever their state; in no order. Returns how
 * many have anything, or the pool has something for them; when that is more than cap, the first cap
 * are written. */
size_t route_match(struct route *r, const struct route_request *q, struct route_matched *out,
                   size_t cap);

/* --- why --- */

#define ROUTE_TERMS_MAX 6u
struct route_explained {
    struct span request, model; /* these are borrowed until the next decision, and so is: */
    const char *refused;        /* NULL: it was not */
    uint32_t retry_ms;          /* where it was refused for now */
    uint64_t at_us;
    double ttft_ms, tbt_ms; /* that had to be kept; 0: none */
    /* Who could compute the prompt, and which of them was chosen, or ROUTE_NOBODY. */
    const char *policy;       /* NULL: the decode engine alone was chosen anew */
    const char *const *terms; /* names of the costs' parts, NULL behind the last */
    uint32_t count, chosen;
    uint32_t prompt_tokens,
        hit_tokens[ROUTE_TIERS]; /* hits: of who was chosen, as in its decision */
    /* Likewise who could decode it, where that is another engine. */
    const char *const *decode_terms;
    uint32_t decode_count, decode_chosen;
    uint32_t passed_count; /* those that serve the model, and could not be asked */
    uint64_t number;       /* for the functions below */
};
struct route_explained_candidate {
    const char *engine; /* NULL: gone since */
    uint32_t rank;
    uint32_t hit_tokens, ahead_tokens, session_tokens, load_tokens, fetch_tokens, new_tokens;
    uint32_t pool_tokens; /* that the pool has for it */
    double ttft_ms, tbt_ms, cost, term[ROUTE_TERMS_MAX];
    char why[160]; /* it lost, or "chosen" */
};
/* The last decision of that request, or why it was refused, while it is kept: of the latest
 * decisions_max those whose candidates are among the latest 65,536. TARN_ENOTFOUND. What it returns
 * holds until the next decision. */
tarn_status route_explain(struct route *r, struct span request, struct route_explained *e);
/* The decision of the same request before this one, in its place; false: none is kept. */
bool route_explain_before(const struct route *r, struct route_explained *e);
/* All that are kept, the latest first. They have numbers from 1 on: the latest one below *number_p
 * (0: of all), which is its number then. false: there is none left. */
bool route_explain_next(const struct route *r, uint64_t *number_p, struct route_explained *e);
/* Of who computes the one that was next to the chosen one, by cost; of those that are late one
 * only where there are no others. ROUTE_NOBODY: nobody was chosen, or there was no other. */
uint32_t route_explain_second(const struct route *r, const struct route_explained *e);
/* Of who computes: all of it. */
void route_explain_candidate(const struct route *r, const struct route_explained *e, uint32_t i,
                             struct route_explained_candidate *out);
/* Of who decodes: TBT, cost and its terms. */
void route_explain_decode(const struct route *r, const struct route_explained *e, uint32_t i,
                          struct route_explained_candidate *out);
/* Of who was passed over: why. */
void route_explain_passed(const struct route *r, const struct route_explained *e, uint32_t i,
                          struct route_explained_candidate *out);

/* --- copies --- */

/* A prefix that its holders cannot serve alone. The caller has it copied, or forgets about it; that
 * it arrived is told by the events of the engine that has it then. */
struct route_copy {
    uint64_t hash, scope; /* rolling hash of its last block */
    uint32_t tokens;
    const char *from, *to; /* borrowed until engines come or go */
    uint32_t from_rank, to_rank, from_worker, to_worker;
};
/* The next order; false: there is none. 64 wait at most. */
bool route_copy_take(struct route *r, struct route_copy *order_p);

/* --- what was learnt --- */

/* What one engine's models have learnt: prefill, decode, transfer by place. */
#define ROUTE_LEARNT_SIZE 220u
/* TARN_ENOTFOUND: no such engine. */
tarn_status route_learnt_export(struct route *r, struct span id, uint8_t out[ROUTE_LEARNT_SIZE]);
/* TARN_EPROTO: these are no such bytes; nothing has changed. */
tarn_status route_learnt_import(struct route *r, struct span id,
                                const uint8_t in[ROUTE_LEARNT_SIZE]);

/* Ends leases whose time has come; bounded work a call, which every other call with a time does,
 * too. Returns when to call again, in microseconds from now_us. */
uint64_t route_tick(struct route *r, uint64_t now_us);

/* --- figures --- */

#define ROUTE_FIGURES(X)                                                                           \
    X(COUNTER, route_decisions, "decisions that chose an engine")                                  \
    X(COUNTER, route_redecisions, "decode engines chosen anew after the prefill")                  \
    X(COUNTER, route_overloaded, "requests refused because no engine could keep their times")      \
    X(COUNTER, route_over_share, "requests refused because their tenant was over its share")       \
    X(COUNTER, route_unserved, "requests that no engine may serve, or that were wrong")            \
    X(COUNTER, route_firsts, "first tokens reported")                                              \
    X(COUNTER, route_dones, "requests reported as done")                                           \
    X(COUNTER, route_failures, "requests reported as failed")                                      \
    X(COUNTER, route_lease_ends, "reservations given back because nobody reported in time")        \
    X(COUNTER, route_removals, "reservations given back because their engine was removed")         \
    X(COUNTER, route_prompt_tokens, "tokens of the prompts of decisions")                          \
    X(COUNTER, route_hit_tokens, "of those, found at the engine that was chosen")                  \
    X(COUNTER, route_device_tokens, "... of these, in device memory")                              \
    X(COUNTER, route_host_tokens, "... in host memory")                                            \
    X(COUNTER, route_disk_tokens, "... on disk")                                                   \
    X(COUNTER, route_ahead_tokens, "of those, about to be computed there by others")               \
    X(COUNTER, route_session_tokens, "of those, probably there, by their sessions alone")          \
    X(COUNTER, route_pool_tokens, "of those, that the pool has for that engine")                   \
    X(COUNTER, route_load_tokens, "of those, to be loaded from the pool")                          \
    X(COUNTER, route_fetch_tokens, "of those, to be fetched from another engine")                  \
    X(COUNTER, route_copies, "copies of hot prefixes that were ordered")                           \
    X(COUNTER, route_odd_times, "observed times that no model can learn from")                     \
    X(GAUGE, route_engines, "engines")                                                             \
    X(GAUGE, route_workers, "their ranks")                                                         \
    X(GAUGE, route_reserved, "requests with a reservation")                                        \
    X(GAUGE, route_sessions, "sessions that are remembered")
struct route_figures {
    ROUTE_FIGURES(FIGURE_MEMBER)
};
extern const struct figure route_figures[];
const struct route_figures *route_figures_get(const struct route *r);

/* Bytes of all that the route holds. */
size_t route_memory(const struct route *r);
/* Asserts that all sums are what their parts add up to; for tests, slow. */
void route_check(const struct route *r);

#endif
