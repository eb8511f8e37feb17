/* A duration as a linear function of a few terms, learnt on line.
 *
 * Recursive least squares with forgetting (Plackett 1950; Ljung, System Identification, ch. 11) on
 * relative errors: a request of 100 tokens teaches as much as one of 100,000. The terms are in
 * units of the prior, so that a model that has seen nothing is the prior, with weights of 1, and a
 * weight says how many times slower than assumed that part is.
 *
 * Nothing that is observed can spoil it: what is no positive finite time below an hour is refused,
 * an error counts as three times the usual one at most (Huber 1964), weights stay within 1/64 and
 * 64 times the prior, and what was learnt fades within some 100 observations. */
#ifndef TARN_ROUTE_MODEL_H
#define TARN_ROUTE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MODEL_TERMS 3u
/* of model_export, a model */
#define MODEL_EXPORT_SIZE 44u

struct model {
    double each[MODEL_TERMS];               /* prior times weight: what a look needs */
    double prior[MODEL_TERMS];              /* microseconds for each unit of a term */
    double weight[MODEL_TERMS];             /* times the prior */
    double cover[MODEL_TERMS][MODEL_TERMS]; /* how uncertain the weights are */
    double noise;                           /* mean of the absolute relative errors */
    uint64_t seen;
};

/* A prior that is not positive and finite counts as next to nothing. */
void model_init(struct model *m, const double prior[MODEL_TERMS]);
/* Microseconds, never negative; terms are never negative. */
static inline double model_predict(const struct model *m, const double term[MODEL_TERMS]) {
    double sum = 0;
    for (unsigned i = 0; i < MODEL_TERMS; i++) sum += m->each[i] * term[i];
    return sum;
}
/* Of terms of which the first is 1. */
static inline double model_predict_one(const struct model *m, double second, double third) {
    return m->each[0] + m->each[1] * second + m->each[2] * third;
}
/* One observation. false: nobody can learn from it, and nothing has changed. */
bool model_learn(struct model *m, const double term[MODEL_TERMS], double observed_us);
/* What it has learnt, as bytes of the same meaning on every machine; they fit a model of any prior.
 * false: they are none, and nothing has changed. */
void model_export(const struct model *m, uint8_t out[MODEL_EXPORT_SIZE]);
bool model_import(struct model *m, const uint8_t in[MODEL_EXPORT_SIZE]);

#endif
