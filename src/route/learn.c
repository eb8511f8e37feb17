/* What the times of requests teach: each engine's models of prefill, decode and transfer. */
#include "route/internal.h"

/* Prefills of one batch end at the same time: what is told within this share of the time that the
 * first of them took belongs to it. */
#define BATCH_SHARE 0.02
/* Of an observed prefill, whatever those that decode beside it are estimated to take. */
#define OWN_SHARE_LEAST 0.1
/* A decode that was shorter says more of its ends than of its steps. */
#define DECODE_TOKENS_LEAST 8u
#define OUTPUT_SHARE        0.01 /* of a new request in the mean of outputs */

static void learn_from(struct route *r, struct model *m, const double term[MODEL_TERMS],
                       double us) {
    if (!model_learn(m, term, us)) r->figures.route_odd_times++;
}

static void batch_close(struct route *r, struct worker *w) {
    if (w->batch_open && !w->batch_spoilt)
        learn_from(r, &w->engine->prefill, w->batch_term,
                   most_of(w->batch_us - w->batch_beside_us, OWN_SHARE_LEAST * w->batch_us));
    w->batch_open = w->batch_spoilt = false;
    memset(w->batch_term, 0, sizeof(w->batch_term));
    w->batch_us = w->batch_beside_us = 0;
}

/* Work is conserved: while there was something to do, the time from one first token to the next is
 * what the latter took. What waited for bytes, or ran beside work that the route knows nothing of,
 * teaches nothing of computing, nor does what may not have been computed. */
static void learn_prefill(struct route *r, struct route_reservation *q) {
    struct worker *w = &r->workers[q->prefill];
    double us = (double)(r->now_us - max_u64(w->head_us, q->decided_us));
    bool same = w->batch_open && us <= BATCH_SHARE * w->batch_us;
    if (!same) batch_close(r, w);
    w->batch_open = true;
    w->batch_spoilt |= w->foreign_prefill_tokens > 0 || q->load_tokens > 0 || q->guessed;
    w->batch_us += us;
    w->batch_beside_us += q->beside_us;
    for (unsigned i = 0; i < MODEL_TERMS; i++) w->batch_term[i] += q->term[i];
    w->head_us = r->now_us;
}

/* A transfer is seen where it must have been what took the time: on a worker with nothing else to
 * do, as what is left after the computing. */
static void learn_transfer(struct route *r, struct route_reservation *q) {
    struct worker *w = &r->workers[q->prefill];
    if (q->load_bytes == 0 || q->load_mixed || q->guessed) return;
    if (w->waiting.now > 1 || w->foreign_prefill_tokens > 0) return;
    double us = (double)(r->now_us - q->decided_us) - model_predict(&w->engine->prefill, q->term) -
                q->beside_us;
    if (us <= 0) return;
    double bytes = (double)q->load_bytes;
    learn_from(r, &w->engine->transfer[q->load_place],
               (double[MODEL_TERMS]){1, bytes, q->load_disk ? bytes : 0}, us);
}

void learn_first(struct route *r, struct route_reservation *q) {
    r->workers[q->prefill].engine->failed_in_row = 0;
    if (q->untaught) {
        batch_close(r, &r->workers[q->prefill]);
        return;
    }
    learn_transfer(r, q);
    learn_prefill(r, q);
}

void learn_decode_begins(struct route *r, struct route_reservation *q) {
    if (q->decode == ROUTE_NO_WORKER) return;
    const struct worker *w = &r->workers[q->decode];
    q->decode_us = r->now_us;
    q->running_area = w->running_area;
    q->context_area = w->context_area;
    q->busy_area = w->busy_area;
}

/* A step's time from the mean time between tokens: prefills on the same worker stop the decode, so
 * their share of the time is taken off. */
static void learn_steps(struct route *r, struct route_reservation *q, uint32_t output_tokens) {
    struct worker *w = &r->workers[q->decode];
    worker_clock(r, w);
    double passed = (double)(r->now_us - q->decode_us);
    if (passed <= 0) return;
    double free = 1 - (w->busy_area - q->busy_area) / passed;
    if (free < 0.1) return;
    double term[MODEL_TERMS] = {1, (w->running_area - q->running_area) / passed,
                                (w->context_area - q->context_area) / passed};
    learn_from(r, &w->engine->decode, term, passed * free / (output_tokens - 1));
}

void learn_done(struct route *r, struct route_reservation *q, uint32_t output_tokens) {
    if (output_tokens == 0) return;
    r->output_mean += OUTPUT_SHARE * (least_of(output_tokens, 1e6) - r->output_mean);
    if (q->state == REQUEST_PREFILL || q->decode == ROUTE_NO_WORKER) return;
    r->workers[q->decode].engine->failed_in_row = 0;
    if (!q->untaught && output_tokens >= DECODE_TOKENS_LEAST) learn_steps(r, q, output_tokens);
}

/* --- as bytes --- */

#define LEARNT_MODELS (2 + ROUTE_PLACES)
static_assert(ROUTE_LEARNT_SIZE == LEARNT_MODELS * MODEL_EXPORT_SIZE, "one after the other");

static void models_of(struct route_engine *e, struct model *models[LEARNT_MODELS]) {
    models[0] = &e->prefill;
    models[1] = &e->decode;
    for (unsigned i = 0; i < ROUTE_PLACES; i++) models[2 + i] = &e->transfer[i];
}

tarn_status route_learnt_export(struct route *r, struct span id, uint8_t out[ROUTE_LEARNT_SIZE]) {
    struct route_engine *e = engine_find(r, id);
    struct model *models[LEARNT_MODELS];
    if (e == NULL) return route_fail(r, TARN_ENOTFOUND, "no such engine");
    models_of(e, models);
    for (unsigned i = 0; i < LEARNT_MODELS; i++)
        model_export(models[i], out + i * MODEL_EXPORT_SIZE);
    return TARN_OK;
}

tarn_status route_learnt_import(struct route *r, struct span id,
                                const uint8_t in[ROUTE_LEARNT_SIZE]) {
    struct route_engine *e = engine_find(r, id);
    struct model *models[LEARNT_MODELS], made[LEARNT_MODELS];
    if (e == NULL) return route_fail(r, TARN_ENOTFOUND, "no such engine");
    models_of(e, models);
    for (unsigned i = 0; i < LEARNT_MODELS; i++) {
        made[i] = *models[i];
        if (!model_import(&made[i], in + i * MODEL_EXPORT_SIZE))
            return route_fail(r, TARN_EPROTO, "this is not what an engine's models have learnt");
    }
    for (unsigned i = 0; i < LEARNT_MODELS; i++) *models[i] = made[i];
    return TARN_OK;
}
