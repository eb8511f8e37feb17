#include "route/model.h"
#include <math.h>
#include <string.h>
#include "base/assert.h"

#define FORGET 0.99
/* In squares of a usual error of 20 %: a prior may be wrong by its own size. What is not observed
 * does not become less certain than that. */
#define COVER_FIRST  25.0
#define COVER_MAX    COVER_FIRST
#define NOISE_FIRST  1.0
#define NOISE_LEAST  0.02
#define NOISE_SHARE  0.05 /* of a new error in the mean */
#define CLIP         3.0  /* errors beyond so many usual ones are cut off */
#define WEIGHT_MOST  64.0
#define WEIGHT_LEAST (1 / WEIGHT_MOST)
#define HOUR_US      3.6e9
#define PRIOR_LEAST  1e-9

void model_init(struct model *m, const double prior[MODEL_TERMS]) {
    memset(m, 0, sizeof(*m));
    for (unsigned i = 0; i < MODEL_TERMS; i++) {
        m->prior[i] = isfinite(prior[i]) && prior[i] > PRIOR_LEAST ? prior[i] : PRIOR_LEAST;
        m->weight[i] = 1;
        m->each[i] = m->prior[i];
        m->cover[i][i] = COVER_FIRST;
    }
    m->noise = NOISE_FIRST;
}

static double weight_bounded(double w) {
    return w < WEIGHT_LEAST ? WEIGHT_LEAST : w > WEIGHT_MOST ? WEIGHT_MOST : w;
}

static void weight_set(struct model *m, unsigned i, double w) {
    m->weight[i] = weight_bounded(w);
    m->each[i] = m->prior[i] * m->weight[i];
}

/* One that is beyond its bound goes back to it, and the others to where they are likely then: what
 * it may not explain is theirs (least squares with that weight held; its row and column of the
 * matrix are 0 then). Just cut off, terms that go together drove each other away without end: one
 * took back at its bound what the other had added. */
static void weights_hold(double weight[MODEL_TERMS], double cover[MODEL_TERMS][MODEL_TERMS],
                         unsigned held) {
    double self = cover[held][held], along[MODEL_TERMS];
    double beyond = weight[held] - weight_bounded(weight[held]);
    for (unsigned i = 0; i < MODEL_TERMS; i++) along[i] = self > 0 ? cover[i][held] / self : 0;
    for (unsigned i = 0; i < MODEL_TERMS; i++) {
        weight[i] = i == held ? weight_bounded(weight[i]) : weight[i] - along[i] * beyond;
        for (unsigned j = 0; j < MODEL_TERMS; j++) cover[i][j] -= along[i] * along[j] * self;
    }
    for (unsigned i = 0; i < MODEL_TERMS; i++) cover[held][i] = cover[i][held] = 0;
}

static void weights_bound(double weight[MODEL_TERMS], const struct model *m) {
    double cover[MODEL_TERMS][MODEL_TERMS];
    memcpy(cover, m->cover, sizeof(cover));
    for (unsigned round = 0; round < MODEL_TERMS; round++)
        for (unsigned i = 0; i < MODEL_TERMS; i++)
            if (weight[i] != weight_bounded(weight[i])) weights_hold(weight, cover, i);
}

/* Forgetting lets the uncertainty of what is not observed grow; beyond its bound the whole matrix
 * is scaled, which keeps it one of a covariance. */
static void cover_bound(struct model *m) {
    double most = 0;
    for (unsigned i = 0; i < MODEL_TERMS; i++) most = fmax(most, m->cover[i][i]);
    if (most <= COVER_MAX) return;
    for (unsigned i = 0; i < MODEL_TERMS; i++)
        for (unsigned j = 0; j < MODEL_TERMS; j++) m->cover[i][j] *= COVER_MAX / most;
}

/* The gain of each weight for a row; the matrix afterwards is that of after the observation. */
static void cover_update(struct model *m, const double row[MODEL_TERMS], double gain[MODEL_TERMS]) {
    double along[MODEL_TERMS], spread = FORGET;
    for (unsigned i = 0; i < MODEL_TERMS; i++) {
        along[i] = 0;
        for (unsigned j = 0; j < MODEL_TERMS; j++) along[i] += m->cover[i][j] * row[j];
        spread += row[i] * along[i];
    }
    for (unsigned i = 0; i < MODEL_TERMS; i++) gain[i] = along[i] / spread;
    for (unsigned i = 0; i < MODEL_TERMS; i++)
        for (unsigned j = 0; j < MODEL_TERMS; j++)
            m->cover[i][j] = (m->cover[i][j] - gain[i] * along[j]) / FORGET;
    cover_bound(m);
}

bool model_learn(struct model *m, const double term[MODEL_TERMS], double observed_us) {
    if (!isfinite(observed_us) || observed_us <= 0 || observed_us > HOUR_US) return false;
    double predicted = model_predict(m, term);
    if (!isfinite(predicted) || predicted <= 0) return false;
    double row[MODEL_TERMS], gain[MODEL_TERMS], weight[MODEL_TERMS];
    for (unsigned i = 0; i < MODEL_TERMS; i++) row[i] = m->prior[i] * term[i] / predicted;
    double error = observed_us / predicted - 1;
    double most = CLIP * fmax(m->noise, NOISE_LEAST);
    double clipped = error > most ? most : error < -most ? -most : error;
    cover_update(m, row, gain);
    for (unsigned i = 0; i < MODEL_TERMS; i++) weight[i] = m->weight[i] + gain[i] * clipped;
    weights_bound(weight, m);
    for (unsigned i = 0; i < MODEL_TERMS; i++) weight_set(m, i, weight[i]);
    /* Twice what is believed at most: noise grows when the world has changed, and lets it in. */
    m->noise += NOISE_SHARE * (fmin(fabs(error), 2 * most) - m->noise);
    m->seen++;
    return true;
}

/* --- as bytes: big-endian words; the version and how many were seen, up to 2^24 - 1, then the
 * weights, the upper half of the matrix and the noise as floats --- */

#define EXPORT_VERSION 1u
static_assert(MODEL_EXPORT_SIZE == 4 * (1 + MODEL_TERMS + MODEL_TERMS * (MODEL_TERMS + 1) / 2 + 1),
              "a word for each");

static void word_put(uint8_t **at, uint32_t v) {
    for (int shift = 24; shift >= 0; shift -= 8) *(*at)++ = (uint8_t)(v >> shift);
}

static uint32_t word_get(const uint8_t **at) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) v = v << 8 | *(*at)++;
    return v;
}

static void float_put(uint8_t **at, double v) {
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    word_put(at, bits);
}

static double float_get(const uint8_t **at) {
    uint32_t bits = word_get(at);
    float f;
    memcpy(&f, &bits, sizeof(f));
    return (double)f;
}

void model_export(const struct model *m, uint8_t out[MODEL_EXPORT_SIZE]) {
    uint32_t seen = (uint32_t)min_u64(m->seen, (1u << 24) - 1);
    word_put(&out, EXPORT_VERSION << 24 | seen);
    for (unsigned i = 0; i < MODEL_TERMS; i++) float_put(&out, m->weight[i]);
    for (unsigned i = 0; i < MODEL_TERMS; i++)
        for (unsigned j = i; j < MODEL_TERMS; j++) float_put(&out, m->cover[i][j]);
    float_put(&out, m->noise);
}

/* Every 2 x 2 of a covariance has a determinant that is not negative. */
static bool cover_sane(const struct model *m) {
    for (unsigned i = 0; i < MODEL_TERMS; i++) {
        double self = m->cover[i][i];
        if (!isfinite(self) || self < 0 || self > 2 * COVER_MAX) return false;
        for (unsigned j = 0; j < i; j++) {
            double both = m->cover[i][j];
            if (!isfinite(both) || both * both > self * m->cover[j][j] * 1.001 + 1e-12)
                return false;
        }
    }
    return true;
}

bool model_import(struct model *m, const uint8_t in[MODEL_EXPORT_SIZE]) {
    struct model made = *m;
    uint32_t head = word_get(&in);
    if (head >> 24 != EXPORT_VERSION) return false;
    made.seen = head & ((1u << 24) - 1);
    for (unsigned i = 0; i < MODEL_TERMS; i++) {
        double weight = float_get(&in);
        if (!isfinite(weight)) return false;
        weight_set(&made, i, weight);
    }
    for (unsigned i = 0; i < MODEL_TERMS; i++)
        for (unsigned j = i; j < MODEL_TERMS; j++)
            made.cover[i][j] = made.cover[j][i] = float_get(&in);
    made.noise = float_get(&in);
    if (!isfinite(made.noise) || made.noise < 0 || made.noise > WEIGHT_MOST || !cover_sane(&made))
        return false;
    *m = made;
    return true;
}
