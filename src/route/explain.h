/* How decisions are kept for EXPLAIN. */
#ifndef TARN_ROUTE_EXPLAIN_H
#define TARN_ROUTE_EXPLAIN_H

#include "route/internal.h"

#define EXPLAIN_REFUSED_MAX 256u

/* kept_candidate.what, of who computes and of who decodes; of who was passed over it is an
 * engine_verdict. */
#define KEPT_COMPUTES 1u /* and does not decode */
#define KEPT_NO_ROOM  1u

/* Two hundred of them are written by a decision, so they are one line of the caches each. */
struct kept_candidate {
    uint16_t worker, birth;
    uint32_t hit_tokens, ahead_tokens, load_tokens, fetch_tokens, new_tokens;
    float ttft_us, tbt_us, cost, term[COST_TERMS];
    bool late;
    uint8_t what, pool; /* pool: candidate.pool */
};
static_assert(sizeof(struct kept_candidate) == 64, "a line of the processor's caches");

/* Its candidates lie one after the other: those that compute, those that decode, and who was passed
 * over. */
struct kept_decision {
    char id[ROUTE_NAME_MAX], model[ROUTE_NAME_MAX];
    uint32_t id_len, model_len;
    uint32_t prompt_tokens, hit_tokens[ROUTE_TIERS]; /* of who was chosen */
    uint32_t pool_tokens[ROUTE_POOLS_MAX + 1];
    const struct cost_ops *ops; /* NULL: the decode engine alone was chosen */
    uint64_t at_us, first;      /* first: number of its first candidate */
    uint32_t count, decodes, passed;
    uint32_t chosen; /* among those that compute; ROUTE_NOBODY */
    uint32_t decode; /* worker; ROUTE_NO_WORKER */
    uint32_t retry_ms;
    uint32_t session_worker, session_tokens; /* of that candidate's ahead_tokens */
    double ttft_bound_us, tbt_bound_us;
    bool decoders; /* nobody decodes in time what another one has computed */
    char refused[EXPLAIN_REFUSED_MAX];
};

/* explain_say.c: all but its number. */
void explain_say(const struct route *r, const struct kept_decision *k, struct route_explained *e);

#endif
