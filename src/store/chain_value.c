#include "store/chain_value.h"

#include <math.h>
#include <string.h>
#include "base/assert.h"

#define AGE_BINS_OCTAVE 3
#define AGE_UNIT        9.0 /* requests: ages below it are hardly told apart */
#define LEVELS_OCTAVE   3
#define LEVEL_ONE       10
#define LEVEL_KEY_BITS  9 /* of CHAIN_CURVES */
_Static_assert(1u << LEVEL_KEY_BITS == CHAIN_CURVES, "one for each key of so many bits");

/* Expected returns, and returns, that are added to what was seen. */
#define PRIOR_USES  0.1 /* of all kinds: uses in an e-fold of age; only its shape lasts */
#define PRIOR_ALL   0.5
#define PRIOR_SCALE 0.1 /* little: that nothing returns is soon seen, and then no age is worse */
#define PRIOR_KIND  4.0
#define PRIOR_RATIO 8.0
#define RATIO_MAX   20.0
#define RATIOS_MAX  50.0f /* their product */
#define RATIO_STEP  0.5f  /* ratios are fitted at the same time: a whole step would be too far */
#define FADE        0.99  /* at each fit */

static uint8_t class_of(uint32_t n, const uint32_t *bound, size_t bounds) {
    uint8_t c = 0;
    while (c < bounds && n >= bound[c]) c++;
    return c;
}

uint8_t chain_length_class(uint32_t blocks) {
    static const uint32_t bound[] = {3, 5, 9, 17, 33, 65, 129};
    return class_of(blocks, bound, ARRAY_LEN(bound));
}

uint8_t chain_growth_class(uint32_t known, uint32_t blocks) {
    static const uint32_t bound[] = {1, 2, 3, 5, 9, 17};
    if (known == 0) return 0;
    return 1 + class_of(blocks > known ? blocks - known : 0, bound, ARRAY_LEN(bound));
}

static unsigned zone_of(unsigned bin) {
    unsigned zone = bin / (2 * AGE_BINS_OCTAVE);
    return zone < CHAIN_ZONES ? zone : CHAIN_ZONES - 1;
}

uint8_t chain_return_class(const struct chain_value *v, uint32_t requests) {
    return (uint8_t)zone_of(chain_age_bin(v, requests));
}

void chain_value_init(struct chain_value *v) {
    memset(v, 0, sizeof(*v));
    for (unsigned b = 0; b <= CHAIN_AGES; b++)
        v->start[b] = (uint32_t)(AGE_UNIT * (exp2((double)b / AGE_BINS_OCTAVE) - 1));
    for (unsigned l = 0; l < CHAIN_LEVELS; l++)
        v->times[l] = (float)exp2(((double)l - LEVEL_ONE) / LEVELS_OCTAVE);
    struct chain_ratio *x = &v->ratio[0][0][0][0];
    for (size_t i = 0; i < sizeof(v->ratio) / sizeof(*x); i++) x[i].ratio = 1;
    chain_value_fit(v);
}

unsigned chain_age_bin(const struct chain_value *v, uint32_t age) {
    unsigned low = 0, high = CHAIN_AGES - 1;
    while (low < high) {
        unsigned mid = (low + high + 1) / 2;
        if (age >= v->start[mid])
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

static struct chain_ratio *trait_ratio(struct chain_value *v, const struct chain_traits *t,
                                       unsigned trait, unsigned zone) {
    const uint8_t class[CHAIN_TRAITS] = {t->turn, t->length, t->growth, t->branched};
    return &v->ratio[t->kind][trait][class[trait]][zone];
}

static float traits_ratio(struct chain_value *v, const struct chain_traits *t, unsigned zone) {
    float r = 1;
    for (unsigned i = 0; i < CHAIN_TRAITS; i++) r *= trait_ratio(v, t, i, zone)->ratio;
    return r < 1 / RATIOS_MAX ? 1 / RATIOS_MAX : r > RATIOS_MAX ? RATIOS_MAX : r;
}

void chain_exposed(struct chain_value *v, const struct chain_traits *t, float weight, unsigned bin,
                   uint32_t to) {
    for (uint32_t from = v->start[bin]; from < to;) {
        unsigned zone = zone_of(bin);
        float ratio = traits_ratio(v, t, zone);
        float expected = 0;
        for (; from < to && zone_of(bin) == zone; bin++) {
            uint32_t end = bin + 1 < CHAIN_AGES && v->start[bin + 1] < to ? v->start[bin + 1] : to;
            float time = weight * (float)(end - from);
            v->exposure[t->kind][bin] += time * ratio;
            v->all_exposure[bin] += time;
            expected += time * ratio * v->hazard[t->kind][bin];
            from = end;
        }
        for (unsigned i = 0; i < CHAIN_TRAITS; i++) trait_ratio(v, t, i, zone)->lately += expected;
    }
}

void chain_returned(struct chain_value *v, const struct chain_traits *t, float weight,
                    uint32_t age) {
    unsigned b = chain_age_bin(v, age), zone = zone_of(b);
    v->returns[t->kind][b] += weight;
    v->all_returns[b] += weight;
    for (unsigned i = 0; i < CHAIN_TRAITS; i++) trait_ratio(v, t, i, zone)->returns += weight;
}

/* --- fitting --- */

static double bin_width(const struct chain_value *v, unsigned b) {
    return v->start[b + 1] - v->start[b];
}

static void fit_ratios(struct chain_value *v) {
    struct chain_ratio *x = &v->ratio[0][0][0][0];
    for (size_t i = 0; i < sizeof(v->ratio) / sizeof(*x); i++, x++) {
        x->expected += x->lately / x->ratio;
        x->lately = 0;
        if (x->expected == 0 && x->returns == 0) continue;
        double r = (x->returns + PRIOR_RATIO) / (x->expected + PRIOR_RATIO);
        r = fmin(fmax(r, 1 / RATIO_MAX), RATIO_MAX);
        x->ratio *= powf((float)r / x->ratio, RATIO_STEP);
        x->returns *= FADE;
        x->expected *= FADE;
    }
}

static double age_of(const struct chain_value *v, unsigned b) {
    return v->start[b] + bin_width(v, b) / 2;
}

/* Ages are measured by how much returns of all that lru would expect. Where nothing ever returns
 * that is next to nothing at any age, and the oldest go first: to have seen most of the young ones,
 * as one always has, is no reason to think less of them. */
static double prior_scale(const struct chain_value *v) {
    double returns = 0, expected = 0;
    for (unsigned b = 0; b < CHAIN_AGES; b++) {
        returns += v->all_returns[b];
        expected += v->all_exposure[b] * PRIOR_USES / (age_of(v, b) + AGE_UNIT);
    }
    return (returns + PRIOR_SCALE) / (expected + PRIOR_SCALE);
}

static void fit_hazards(struct chain_value *v) {
    double scale = prior_scale(v);
    for (unsigned b = 0; b < CHAIN_AGES; b++) {
        double prior = scale * PRIOR_USES / (age_of(v, b) + AGE_UNIT);
        double all = (v->all_returns[b] + PRIOR_ALL) / (v->all_exposure[b] + PRIOR_ALL / prior);
        v->all_returns[b] *= FADE;
        v->all_exposure[b] *= FADE;
        for (unsigned k = 0; k < CHAIN_KINDS; k++) {
            v->hazard[k][b] =
                (float)((v->returns[k][b] + PRIOR_KIND) / (v->exposure[k][b] + PRIOR_KIND / all));
            v->returns[k][b] *= FADE;
            v->exposure[k][b] *= FADE;
        }
    }
}

/* The index at the start of each bin, from the last to the first: the bins that follow are pooled
 * with one as long as they are worth more. A cell's runs are somewhere between its bin's start and
 * the next: the mean of both. */
static void index_curve(const struct chain_value *v, const float hazard[CHAIN_AGES],
                        float out[CHAIN_AGES]) {
    struct stretch {
        float chance, time, stays;
    } stack[CHAIN_AGES] = {{0}};
    unsigned n = 0;
    for (unsigned b = CHAIN_AGES; b-- > 0;) {
        float chance = -expm1f(-hazard[b] * (float)bin_width(v, b));
        struct stretch s = {chance, chance / hazard[b], 1 - chance};
        while (n > 0 && stack[n - 1].chance * s.time > s.chance * stack[n - 1].time) {
            const struct stretch *next = &stack[--n];
            s.chance += s.stays * next->chance;
            s.time += s.stays * next->time;
            s.stays *= next->stays;
        }
        stack[n++] = s;
        out[b] = s.chance / s.time;
    }
    for (unsigned b = 0; b + 1 < CHAIN_AGES; b++) out[b] = (out[b] + out[b + 1]) / 2;
}

void chain_value_fit(struct chain_value *v) {
    fit_ratios(v);
    fit_hazards(v);
    for (unsigned k = 0; k < CHAIN_KINDS; k++) index_curve(v, v->hazard[k], v->value[k]);
    v->fits++;
}

static uint8_t level_of(float times) {
    float l = rintf(log2f(times) * LEVELS_OCTAVE) + LEVEL_ONE;
    return l < 0 ? 0 : l >= CHAIN_LEVELS ? CHAIN_LEVELS - 1 : (uint8_t)l;
}

unsigned chain_level(struct chain_value *v, const struct chain_traits *t, unsigned bin) {
    uint32_t key = (((t->kind * 8u + t->turn) * 8 + t->length) * 8 + t->growth) * 2 + t->branched;
    struct chain_curve *c = &v->curve[key * 2654435761u >> (32 - LEVEL_KEY_BITS)];
    if (c->key != key || c->fit != v->fits) {
        float hazard[CHAIN_AGES], value[CHAIN_AGES];
        for (unsigned b = 0; b < CHAIN_AGES; b++)
            hazard[b] = v->hazard[t->kind][b] * traits_ratio(v, t, zone_of(b));
        index_curve(v, hazard, value);
        for (unsigned b = 0; b < CHAIN_AGES; b++)
            c->level[b] = level_of(value[b] / v->value[t->kind][b]);
        c->key = key;
        c->fit = v->fits;
    }
    return c->level[bin];
}
