#include "store/chain_value.h"

#include <math.h>
#include <string.h>
#include "base/assert.h"

#define AGE_BINS_OCTAVE 3
#define AGE_UNIT        9u /* requests: ages below it are hardly told apart */

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

_Static_assert(CHAIN_AGES == CHAIN_ZONES * 2 * AGE_BINS_OCTAVE, "zones of two octaves");
static unsigned zone_of(unsigned bin) {
    return bin / (2 * AGE_BINS_OCTAVE);
}

uint8_t chain_return_class(const struct chain_value *v, uint32_t requests) {
    return (uint8_t)zone_of(chain_age_bin(v, requests));
}

/* --- sorts --- */

static uint32_t key_of(const struct chain_traits *t) {
    return (((t->kind * 8u + t->turn) * 8 + t->length) * 8 + t->growth) * 2 + t->branched;
}

/* Of all zones. */
static struct chain_ratio *trait_ratios(struct chain_value *v, const struct chain_traits *t,
                                        unsigned trait) {
    const uint8_t class[CHAIN_TRAITS] = {t->turn, t->length, t->growth, t->branched};
    v->classes[t->kind][trait] |= (uint8_t)(1u << class[trait]);
    return v->ratio[t->kind][trait][class[trait]];
}

static void sort_ratios(struct chain_value *v, struct chain_sort *x) {
    const struct chain_ratio *of[CHAIN_TRAITS];
    for (unsigned i = 0; i < CHAIN_TRAITS; i++) of[i] = trait_ratios(v, &x->traits, i);
    for (unsigned zone = 0; zone < CHAIN_ZONES; zone++) {
        float r = 1;
        for (unsigned i = 0; i < CHAIN_TRAITS; i++) r *= of[i][zone].ratio;
        x->ratio[zone] = r < 1 / RATIOS_MAX ? 1 / RATIOS_MAX : r > RATIOS_MAX ? RATIOS_MAX : r;
    }
}

/* What it has counted goes to its traits. */
static void sort_flush(struct chain_value *v, struct chain_sort *x) {
    for (unsigned i = 0; i < CHAIN_TRAITS; i++) {
        struct chain_ratio *of = trait_ratios(v, &x->traits, i);
        for (unsigned zone = 0; zone < CHAIN_ZONES; zone++) of[zone].lately += x->lately[zone];
    }
    memset(x->lately, 0, sizeof(x->lately));
}

static unsigned sort_enter(struct chain_value *v, unsigned s, const struct chain_traits *t) {
    v->sort[s] = (struct chain_sort){.traits = *t, .fit = v->fits - 1};
    sort_ratios(v, &v->sort[s]);
    v->by_key[key_of(t)] = (uint8_t)s;
    return s;
}

/* One that no run is of; 0: there is none. */
static unsigned sort_unused(struct chain_value *v) {
    if (v->sorts < CHAIN_SORTS) return v->sorts++;
    for (unsigned n = 0; n < CHAIN_SORTS; n++) {
        unsigned s = v->hand = (v->hand + 1) % CHAIN_SORTS;
        if (s <= CHAIN_KINDS || v->sort[s].runs > 0) continue;
        sort_flush(v, &v->sort[s]);
        v->by_key[key_of(&v->sort[s].traits)] = 0;
        return s;
    }
    return 0;
}

unsigned chain_sort_known(const struct chain_value *v, const struct chain_traits *t) {
    return v->by_key[key_of(t)];
}

unsigned chain_sort_find(struct chain_value *v, const struct chain_traits *t) {
    unsigned s = chain_sort_known(v, t);
    if (s) return s;
    s = sort_unused(v);
    return s ? sort_enter(v, s, t) : 1u + t->kind;
}

void chain_value_init(struct chain_value *v) {
    memset(v, 0, sizeof(*v));
    for (unsigned b = 0; b <= CHAIN_AGES; b++)
        v->start[b] = (uint32_t)((double)AGE_UNIT * (exp2((double)b / AGE_BINS_OCTAVE) - 1));
    struct chain_ratio *x = &v->ratio[0][0][0][0];
    for (size_t i = 0; i < sizeof(v->ratio) / sizeof(*x); i++) x[i].ratio = 1;
    v->sorts = 1;
    for (unsigned k = 0; k < CHAIN_KINDS; k++) /* of these there is always one */
        (void)sort_enter(v, v->sorts++, &(struct chain_traits){.kind = (uint8_t)k});
    chain_value_fit(v);
}

unsigned chain_age_bin(const struct chain_value *v, uint32_t age) {
    uint64_t units = ((uint64_t)age + AGE_UNIT) / AGE_UNIT;
    unsigned bin = AGE_BINS_OCTAVE * (63u - (unsigned)__builtin_clzll(units));
    if (bin >= CHAIN_AGES) return CHAIN_AGES - 1;
    while (bin + 1 < CHAIN_AGES && age >= v->start[bin + 1]) bin++;
    return bin;
}

struct chain_bin chain_bin_at(const struct chain_value *v, uint32_t age) {
    unsigned b = chain_age_bin(v, age);
    float share = (float)(age - v->start[b]) / (float)(v->start[b + 1] - v->start[b]);
    return (struct chain_bin){b, share < 1 ? share : 1};
}

void chain_exposed(struct chain_value *v, unsigned sort, float weight, uint32_t from, unsigned bin,
                   uint32_t to) {
    struct chain_sort *x = &v->sort[sort];
    double *of_kind = v->exposure[x->traits.kind];
    const float *hazard = v->hazard[x->traits.kind];
    for (; from < to; bin++) {
        uint32_t end = bin + 1 < CHAIN_AGES && v->start[bin + 1] < to ? v->start[bin + 1] : to;
        unsigned zone = zone_of(bin);
        float time = weight * (float)(int32_t)(end - from), weighed = time * x->ratio[zone];
        of_kind[bin] += weighed;
        v->all_exposure[bin] += time;
        x->lately[zone] += weighed * hazard[bin];
        from = end;
    }
}

void chain_returned(struct chain_value *v, unsigned sort, float weight, uint32_t age) {
    const struct chain_traits *t = &v->sort[sort].traits;
    unsigned b = chain_age_bin(v, age), zone = zone_of(b);
    v->returns[t->kind][b] += weight;
    v->all_returns[b] += weight;
    for (unsigned i = 0; i < CHAIN_TRAITS; i++) trait_ratios(v, t, i)[zone].returns += weight;
}

/* --- fitting --- */

static double bin_width(const struct chain_value *v, unsigned b) {
    return v->start[b + 1] - v->start[b];
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

static void fit_class(struct chain_ratio *x, double rescale) {
    for (const struct chain_ratio *end = x + CHAIN_ZONES; x < end; x++) {
        if (x->expected == 0 && x->returns == 0 && x->lately == 0) continue;
        x->expected = (x->expected + x->lately / x->ratio) * rescale;
        x->lately = 0;
        double r = (x->returns + PRIOR_RATIO) / (x->expected + PRIOR_RATIO);
        r = fmin(fmax(r, 1 / RATIO_MAX), RATIO_MAX);
        x->ratio *= powf((float)r / x->ratio, RATIO_STEP);
        x->returns *= FADE;
        x->expected *= FADE;
    }
}

/* What is expected is so by what is known now of how much returns: else what was to come back
 * before it was known that nothing does would speak against the kinds that came first. */
static void fit_ratios(struct chain_value *v) {
    double scale = prior_scale(v), rescale = v->scale > 0 ? scale / v->scale : 1;
    v->scale = scale;
    for (unsigned row = 0; row < CHAIN_KINDS * CHAIN_TRAITS; row++)
        for (unsigned bits = (&v->classes[0][0])[row]; bits; bits &= bits - 1)
            fit_class((&v->ratio[0][0])[row][__builtin_ctz(bits)], rescale);
}

static void fit_hazards(struct chain_value *v) {
    for (unsigned b = 0; b < CHAIN_AGES; b++) {
        double prior = v->scale * PRIOR_USES / (age_of(v, b) + AGE_UNIT);
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
 * with one as long as they are worth more. */
void chain_sort_fit(struct chain_value *v, struct chain_sort *x) {
    struct stretch {
        float chance, time, stays;
    } stack[CHAIN_AGES] = {{0}};
    unsigned n = 0;
    for (unsigned b = CHAIN_AGES; b-- > 0;) {
        float hazard = v->hazard[x->traits.kind][b] * x->ratio[zone_of(b)];
        float chance = -expm1f(-hazard * (float)bin_width(v, b));
        struct stretch s = {chance, chance / hazard, 1 - chance};
        while (n > 0 && stack[n - 1].chance * s.time > s.chance * stack[n - 1].time) {
            const struct stretch *next = &stack[--n];
            s.chance += s.stays * next->chance;
            s.time += s.stays * next->time;
            s.stays *= next->stays;
        }
        stack[n++] = s;
        x->value[b] = s.chance / s.time;
    }
    x->value[CHAIN_AGES] = x->value[CHAIN_AGES - 1];
    x->fit = v->fits;
}

void chain_value_fit(struct chain_value *v) {
    for (unsigned s = 1; s < v->sorts; s++) sort_flush(v, &v->sort[s]);
    fit_ratios(v);
    fit_hazards(v);
    for (unsigned s = 1; s < v->sorts; s++) sort_ratios(v, &v->sort[s]);
    v->fits++;
}
