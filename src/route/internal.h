/* The types inside this room. */
#ifndef TARN_ROUTE_INTERNAL_H
#define TARN_ROUTE_INTERNAL_H

#include <sys/queue.h>
#include "base/assert.h"
#include "base/htab.h"
#include "base/queue.h"
#include "base/rng.h"
#include "base/wheel.h"
#include "route/ahead.h"
#include "route/cost.h"
#include "route/hot.h"
#include "route/model.h"
#include "route/route.h"
#include "route/session.h"
#include "route/tenant.h"
#include "route/traffic.h"

/* --- names: models and adapters, each once, so that equal ones compare in one step --- */

struct route_name {
    struct htab_node node;
    uint32_t uses;
    struct traffic traffic; /* of the requests for it, where it is a model's */
    char text[];
};

/* --- engines --- */

/* How much of something is reserved, and the most it was since the engine's last report. */
struct level {
    uint64_t now, most;
};

struct route_reservation;
TAILQ_HEAD(request_list, route_reservation);

/* A rank of an engine. What a decision reads of each stands first, in few cache lines. */
struct worker {
    struct route_engine *engine; /* NULL: this number is free */
    uint32_t holder, rank;
    uint16_t birth;            /* counts whom this number was given to */
    bool followed;             /* the index hears of what it has */
    uint8_t sends_to;          /* enum route_place: where its last prefill is to decode */
    uint32_t decodes_reserved; /* running ones, and those that will */
    double prefill_us;         /* what its prefills were estimated to take */
    double head_prefill_us;    /* of that, the first one's */
    uint64_t head_us;          /* since when that one is served */
    double foreign_us;         /* of prefill that the last report had beyond those, at report_us */
    uint64_t report_us;
    uint64_t link_until_us; /* when what is being loaded for it is estimated to be there */
    double send_us;         /* what its prefills' KV takes to those that decode, behind them */
    uint64_t send_until_us; /* when all that it has computed is estimated to be with them */
    struct level prefill_tokens, waiting, running, context_tokens;
    uint64_t alone_tokens; /* of context_tokens, what was not there when it was reserved */
    uint64_t foreign_prefill_tokens, foreign_waiting, foreign_running, foreign_kv_blocks;

    /* Prefills that have no first token yet, as they were reserved, which is the order in which
     * they are served. */
    struct request_list prefills;
    struct request_list decodes; /* all with a decode reservation here */

    /* Of time: for the means over a decode. */
    double running_area, context_area, busy_area;
    uint64_t area_us;

    /* An observed prefill that may have shared its batch with the next one. */
    double batch_term[MODEL_TERMS], batch_us, batch_beside_us;
    bool batch_open, batch_spoilt;

    uint64_t routed, reports, prompt_tokens, hit_tokens;
    uint64_t taken_tokens;    /* that it computed or decoded, ever, or is about to */
    uint64_t foreign_prompts; /* that foreign_prefill_tokens are of */
    uint64_t told_us;         /* when a report had prefill tokens; 0: never */
} __attribute__((aligned(64)));

/* Likewise. */
struct route_engine {
    struct route_name *model, *lora, *host, *rack, *keys;
    uint32_t block_tokens, kv_blocks, bytes_per_token;
    enum route_role role;
    bool any_lora, drains, of_tenant;
    uint64_t heard_us, back_until_us;
    struct model prefill, decode, transfer[ROUTE_PLACES];

    struct htab_node node; /* by id */
    char *id, *url, *tenant, *salt;
    uint32_t ranks, batch_max;
    uint64_t cache_blocks;
    uint32_t workers[ROUTE_RANKS_MAX]; /* by rank; ROUTE_NO_WORKER: there is none */
    struct route_prior prior;
    uint64_t failed;
    uint32_t failed_in_row, rests;
};

static inline double least_of(double a, double b) {
    return a < b ? a : b;
}
static inline double most_of(double a, double b) {
    return a > b ? a : b;
}

/* --- requests --- */

enum request_state { REQUEST_PREFILL, REQUEST_DECODE };

/* decide ─> PREFILL ─ first ─> DECODE ─ done, lease, removal ─> freed
 *              └─────────── done, lease, removal ─────────────────┘
 * In PREFILL it is in its prefill worker's list, and in its decode worker's, always. In DECODE only
 * in the latter. */
struct route_reservation {
    struct htab_node node;
    struct wheel_node lease;
    TAILQ_ENTRY(route_reservation) prefill_link, decode_link;
    enum request_state state;
    uint32_t prefill, decode; /* workers */
    uint16_t prefill_birth;
    struct tenant *tenant; /* in PREFILL; NULL: there are too many */
    uint32_t prompt_tokens, prefix_tokens, new_tokens, output_tokens, load_tokens;
    uint64_t session;               /* 0: it is of none */
    uint64_t decided_us, decode_us; /* decode_us: since when the worker of now decodes it */
    double prefill_us, send_us;     /* estimated; send_us: of its KV to who decodes, else 0 */
    double beside_us;               /* of that, by those that decode there */
    double term[MODEL_TERMS];
    double load_us; /* estimated, of its transfer */
    uint64_t load_bytes;
    enum route_place load_place;
    bool load_disk, load_mixed; /* mixed: of several places, or behind other loads */
    bool guessed;               /* its prefix is, by its session */
    bool untaught;              /* it was imported: its times are not known here */
    double running_area, context_area, busy_area; /* of the decode worker, at decode_us */
    size_t id_len;
    char id[];
};

struct hot_order {
    struct route_copy copy;
    uint16_t from_birth, to_birth;
};

/* What a request has in the pool, as every candidate looks at it. */
struct pool_run {
    const struct route_name *host, *rack; /* NULL: of no name */
    int64_t begin, end;                   /* tokens of the prompt */
    double token_bytes;                   /* 0: the engine's */
    bool disk;
};

struct pool_there {
    const struct route_name *keys; /* of the engines that load it */
    uint32_t tokens, count;
    struct pool_run run[ROUTE_POOL_RUNS_MAX];
};

struct kept_decision;
struct kept_candidate;
#define EXPLAIN_CANDIDATES 65536u

/* May an engine take part in serving a request; if not, why not? */
enum engine_verdict {
    ENGINE_MAY,
    ENGINE_OF_OTHERS, /* it has another model or adapter, or there is none */
    ENGINE_DECODES,   /* only */
    ENGINE_OF_TENANT,
    ENGINE_EXCLUDED,
    ENGINE_DRAINS,
    ENGINE_SILENT,
    ENGINE_BACKS_OFF,
    VERDICTS
};
/* One that serves the model, but may not take part. */
struct passed_over {
    uint32_t worker;
    enum engine_verdict why;
};
#define LEASE_MS_MOST 86400000u

struct route {
    struct route_options options;
    const struct cost_ops *policy;
    struct rng rng;
    uint64_t now_us;
    struct htab names, engines, requests;
    struct worker *workers; /* workers_max of them */
    uint32_t workers_used;  /* up to the highest number ever used */
    struct wheel *leases;
    struct route_index *index;
    struct candidate *candidates; /* of the decision that is being made */
    uint32_t *place_of;           /* by worker: its place in them, if it is among them */
    struct passed_over *passed;   /* of the decision, too; workers_max of them */
    uint32_t passed_count;
    uint32_t passed_prefills;                 /* the first of those: who could have computed it */
    struct pool_there pools[ROUTE_POOLS_MAX]; /* of its request */
    uint32_t pools_count;
    struct route_hit *hits; /* workers_max of them */
    uint32_t *worker_of;    /* by holder */
    struct ahead ahead;
    struct tenants tenants;
    struct sessions sessions;
    struct hot_prefixes hot;
    struct hot_order orders[HOT_ORDERS]; /* a ring */
    uint32_t orders_head, orders_count;
    struct kept_decision *kept; /* decisions_max, a ring; NULL: none are kept */
    struct kept_candidate *kept_candidates;
    uint64_t kept_candidates_max;
    uint64_t kept_count, kept_candidates_count; /* ever */
    uint32_t turn;                              /* round-robin's */
    double output_mean;                         /* tokens, learnt */
    struct route_figures figures;
    void (*ended)(void *arg, struct span request); /* NULL: nobody wants to know */
    void *ended_arg;
    char error[512];
};

/* Is it the one that this number had been given to? */
static inline bool worker_still(const struct route *r, uint32_t worker, uint16_t birth) {
    return r->workers[worker].engine != NULL && r->workers[worker].birth == birth;
}

/* An imported one has none where its engine was not there. */
static inline bool request_prefill_there(const struct route *r, const struct route_reservation *q) {
    return q->prefill != ROUTE_NO_WORKER && worker_still(r, q->prefill, q->prefill_birth);
}

/* route.c */
uint64_t route_clock(struct route *r, uint64_t now_us); /* never steps back */
tarn_status route_fail(struct route *r, tarn_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* NULL: all that there may be have work outstanding. */
static inline struct tenant *tenant_named(struct route *r, struct span name) {
    return tenant_get(&r->tenants, name.len == 0 ? SPAN("default") : name, r->now_us);
}

/* names.c */
struct route_name *name_get(struct route *r, struct span text); /* takes a use */
void name_put(struct route *r, struct route_name **name_p);
struct route_name *name_find(const struct route *r, struct span text);

/* engine.c */
struct route_engine *engine_find(const struct route *r, struct span id);
void engine_failed(struct route *r, struct route_engine *e);
static inline void engine_passed(struct route *r, uint32_t worker, enum engine_verdict why) {
    TARN_ASSERT(r->passed_count < r->options.workers_max);
    r->passed[r->passed_count++] = (struct passed_over){worker, why};
}

/* Here and inline is what a decision asks of each engine. */
static inline enum route_state engine_state(const struct route *r, const struct route_engine *e) {
    uint64_t now_us = r->now_us, silent_us = 1000ull * r->options.silent_ms;
    if (e->drains) return ROUTE_DRAINS;
    if (now_us < e->back_until_us) return ROUTE_BACKS_OFF;
    if (e->heard_us > 0 && silent_us > 0 && now_us - e->heard_us > silent_us) return ROUTE_SILENT;
    return ROUTE_UP;
}
/* NULL: it has no name, or one that no engine has. */
static inline const struct route_name *name_or_none(const struct route_name *name) {
    return name != NULL && name->text[0] != '\0' ? name : NULL;
}
static inline enum route_place engine_place(const struct route_engine *e,
                                            const struct route_name *host,
                                            const struct route_name *rack) {
    return host == e->host ? ROUTE_SAME_HOST : rack == e->rack ? ROUTE_SAME_RACK : ROUTE_FAR;
}

/* What a worker has to do; likewise. */
static inline double step_us(const struct route_engine *e, double running, double context) {
    return model_predict_one(&e->decode, running, context);
}
/* A number that is nowhere near 2^63: of one without a sign it would be two ways and a branch. */
static inline double real(uint64_t n) {
    return (double)(int64_t)n;
}
/* What the first in the queue has done already counts for as much as it was estimated to take. */
static inline double worker_wait_us(const struct route *r, const struct worker *w) {
    double wait = w->prefill_us - least_of(w->head_prefill_us, real(r->now_us - w->head_us));
    double foreign = w->foreign_us - real(r->now_us - w->report_us);
    return most_of(wait, 0) + most_of(foreign, 0);
}
/* Until what is being loaded for it is there: a link is shared, so that what comes next is there
 * last. */
static inline double worker_link_us(const struct route *r, const struct worker *w) {
    return w->link_until_us > r->now_us ? real(w->link_until_us - r->now_us) : 0;
}
/* Until its link has sent what was reserved there to those that decode. */
static inline double worker_send_us(const struct route *r, const struct worker *w) {
    return w->send_us + (w->send_until_us > r->now_us ? real(w->send_until_us - r->now_us) : 0);
}
static inline uint64_t worker_running(const struct worker *w) {
    return w->running.now + w->foreign_running;
}
static inline uint64_t worker_waiting(const struct worker *w) {
    return w->waiting.now + w->foreign_waiting;
}
static inline uint64_t worker_prefill_tokens(const struct worker *w) {
    return w->prefill_tokens.now + w->foreign_prefill_tokens;
}
static inline uint64_t worker_context(const struct worker *w) {
    return w->context_tokens.now + w->foreign_kv_blocks * w->engine->block_tokens;
}
/* Tokens whose KV requests hold. Prefixes that they share are there once: of what was there when a
 * request came, which others may hold or nobody, half counts. */
static inline double worker_held(const struct worker *w) {
    return (real(w->alone_tokens) + real(w->context_tokens.now)) / 2 +
           real(w->foreign_kv_blocks * w->engine->block_tokens);
}

/* load.c */
void level_add(struct level *l, uint64_t n);
void level_sub(struct level *l, uint64_t n);
void worker_clock(struct route *r, struct worker *w); /* the areas, up to now */

/* request.c: reservations. */
struct route_reservation *request_find(const struct route *r, struct span id);
void request_reserve(struct route *r, struct route_reservation *q);
void request_release(struct route *r,
                     struct route_reservation **q_p); /* gives all back, and frees it */
void request_move_decode(struct route *r, struct route_reservation *q, uint32_t worker);
void request_lease(struct route *r, struct route_reservation *q, uint32_t lease_ms);
uint32_t request_lease_decode(struct route *r, struct route_reservation *q); /* milliseconds */

/* learn.c */
void learn_first(struct route *r,
                 struct route_reservation *q); /* before its prefill is given back */
void learn_decode_begins(struct route *r, struct route_reservation *q);
void learn_done(struct route *r, struct route_reservation *q, uint32_t output_tokens);

/* The prompt by the engine's size of blocks; NULL: it was not hashed by that. */
const struct route_chain *chain_of(const struct route_request *q, const struct route_engine *e);
/* transfer.c: loading KV. */
struct transfer {
    double us; /* estimated */
    uint64_t bytes;
    enum route_place place; /* of the first bytes */
    bool disk, mixed;       /* from a disk; from several places */
};
/* What the request has in the pool, for the two below. */
void transfer_find_pools(struct cost_case *c);
/* Its tokens from `begin` on. */
struct transfer transfer_from_pool(const struct cost_case *c, const struct candidate *a,
                                   uint32_t begin);
double transfer_pool_us(const struct cost_case *c, const struct candidate *a, uint32_t begin);
static inline struct transfer transfer_between(const struct route_engine *from,
                                               const struct route_engine *to, uint32_t tokens) {
    double bytes = most_of((double)tokens * from->bytes_per_token, 1);
    enum route_place place = engine_place(to, name_or_none(from->host), name_or_none(from->rack));
    return (struct transfer){.us = model_predict_one(&to->transfer[place], bytes, 0),
                             .bytes = (uint64_t)bytes,
                             .place = place};
}

/* decode.c: the worker that is to decode what this one has computed: itself, or one that only
 * decodes. ROUTE_NO_WORKER: there is none. */
struct decode_choice {
    uint32_t worker;
    double tbt_us;
};
struct decode_choice decode_choose(struct cost_case *c, uint32_t prefill);
/* What the system loses where it decodes there, in microseconds. */
struct decode_cost {
    double transfer_us, steps_us, others_us;
    double tbt_us;
    bool late, no_room; /* cannot keep the TBT; would preempt somebody */
};

/* admit.c */
double bound_us(double asked_ms, double otherwise_ms, int32_t priority);
/* Marks those that are late. false: all are; in how many microseconds one will not be, INFINITY:
 * none ever. */
bool admit_candidates(struct cost_case *c, double *retry_us_p);
/* 0: the decode engine keeps its time; INFINITY: never, or there is none. */
double admit_decode_retry_us(const struct cost_case *c, uint32_t prefill,
                             const struct decode_choice *to);
/* Nobody decodes in time what another one has computed: who only computes is late. false: all are;
 * in how many microseconds one that decodes itself will not be. */
bool admit_decoders(struct cost_case *c, double *retry_us_p);
uint32_t admit_retry_ms(double us); /* 0: never */

/* hot.c: counts the prefixes of a request that was sent there, and orders copies. */
void hot_count(struct cost_case *c, const struct candidate *a);

/* explain.c */
void explain_init(struct route *r);
void explain_deinit(struct route *r);
size_t explain_memory(const struct route *r);
/* The candidates as they are weighed, if there are any; ops NULL: the decode engine alone is
 * chosen. */
void explain_begin(const struct cost_case *c, const struct cost_ops *ops);
/* Those that could decode are looked at, perhaps for the second time. */
void explain_decodes_begin(struct route *r);
/* One of them. */
void explain_decode(struct route *r, uint32_t worker, const struct decode_cost *cost);
/* As admit_decoders has it. */
void explain_decoders(struct route *r);
/* The place among the candidates of who computes, ROUTE_NOBODY: nobody; the worker that decodes.
 * Where the request was refused, why is in r->error. */
void explain_end(struct route *r, uint32_t prefill, uint32_t decode, tarn_status status,
                 uint32_t retry_ms);

/* candidate.c: those that may serve the request, in r->candidates, and what they have of it.
 * TARN_OK: there is one. */
tarn_status candidates_find(struct cost_case *c);
/* Each one's plan, without fetching: that is for a policy to weigh. */
void candidates_estimate(struct cost_case *c);
/* The transfer that a candidate begins with. */
struct transfer candidate_transfer(const struct cost_case *c, const struct candidate *a);

/* NULL: that worker may not serve the request. */
static inline struct candidate *candidate_of(const struct cost_case *c, uint32_t worker) {
    uint32_t place = c->route->place_of[worker];
    struct candidate *a = &c->candidates[place];
    return place < c->count && a->worker == worker ? a : NULL;
}

/* match.c: what is there of a prompt, or will be. */
void match_candidates(struct cost_case *c);
/* The candidate's blocks will be there when the prefill has ended. */
void match_ahead_put(const struct cost_case *c, const struct candidate *a);

/* session.c: what probably is there; behind match_candidates. */
void session_match(struct cost_case *c);
/* Of the candidate's ahead_tokens, those. */
static inline uint32_t session_tokens(const struct cost_case *c, const struct candidate *a) {
    return a->worker == c->session_worker ? c->session_tokens : 0;
}
/* The prompt is computed, and so many tokens of the answer are. */
void session_told(struct route *r, const struct route_reservation *q, uint32_t output_tokens);
void session_failed(struct route *r, const struct route_reservation *q, uint32_t worker);

#endif
