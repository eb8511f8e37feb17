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

static void sort_ratios(struct chain_value *v, struct chain_sort *x) {
    for (unsigned zone = 0; zone < CHAIN_ZONES; zone++) {
        float r = 1;
        for (unsigned i = 0; i < CHAIN_TRAITS; i++) r *= v->ratio[x->class[i]][zone].ratio;
        x->ratio[zone] = r < 1 / RATIOS_MAX ? 1 / RATIOS_MAX : r > RATIOS_MAX ? RATIOS_MAX : r;
    }
    x->ratios_fit = v->fits;
}

/* What it has counted since the last fit goes to its traits. */
static void sort_flush(struct chain_value *v, struct chain_sort *x) {
    if (x->ratios_fit != v->fits) return;
    for (unsigned i = 0; i < CHAIN_TRAITS; i++) {
        struct chain_ratio *of = v->ratio[x->class[i]];
        for (unsigned zone = 0; zone < CHAIN_ZONES; zone++) of[zone].lately += x->lately[zone];
    }
    memset(x->lately, 0, sizeof(x->lately));
}

static unsigned sort_enter(struct chain_value *v, unsigned s, struct chain_traits t) {
    struct chain_sort *x = &v->sort[s];
    *x = (struct chain_sort){.traits = t, .fit = v->fits - 1, .ratios_fit = v->fits - 1};
    const uint8_t class[CHAIN_TRAITS] = {t.turn, t.length, t.growth, t.branched};
    for (unsigned i = 0; i < CHAIN_TRAITS; i++) {
        unsigned trait = t.kind * CHAIN_TRAITS + i;
        v->classes[trait] |= (uint8_t)(1u << class[i]);
        x->class[i] = (uint8_t)(trait * CHAIN_CLASSES + class[i]);
    }
    v->by_key[chain_sort_key(&t)] = (uint8_t)s;
    return s;
}

/* One that no run is of; 0: there is none. */
static unsigned sort_unused(struct chain_value *v) {
    if (v->sorts < CHAIN_SORTS) return v->sorts++;
    for (unsigned n = 0; n < CHAIN_SORTS; n++) {
        unsigned s = v->hand = (v->hand + 1) % CHAIN_SORTS;
        if (s <= CHAIN_KINDS || v->sort[s].runs > 0) continue;
        sort_flush(v, &v->sort[s]);
        v->by_key[chain_sort_key(&v->sort[s].traits)] = 0;
        return s;
    }
    return 0;
}

unsigned chain_sort_new(struct chain_value *v, struct chain_traits t) {
    unsigned s = sort_unused(v);
    return s ? sort_enter(v, s, t) : 1u + t.kind;
}

void chain_value_init(struct chain_value *v) {
    memset(v, 0, sizeof(*v));
    for (unsigned b = 0; b <= CHAIN_AGES; b++)
        v->start[b] = (uint32_t)((double)AGE_UNIT * (exp2((double)b / AGE_BINS_OCTAVE) - 1));
    for (unsigned b = 0; b < CHAIN_AGES; b++) {
        v->age[b].until = b + 1 < CHAIN_AGES ? v->start[b + 1] : UINT32_MAX;
        v->age[b].zone = zone_of(b);
    }
    struct chain_ratio *x = &v->ratio[0][0];
    for (size_t i = 0; i < sizeof(v->ratio) / sizeof(*x); i++) x[i].ratio = 1;
    v->sorts = 1;
    for (unsigned k = 0; k < CHAIN_KINDS; k++) /* of these there is always one */
        (void)sort_enter(v, v->sorts++, (struct chain_traits){.kind = (uint8_t)k});
    chain_value_fit(v);
}

unsigned chain_age_bin(const struct chain_value *v, uint32_t age) {
    uint64_t units = ((uint64_t)age + AGE_UNIT) / AGE_UNIT;
    unsigned bin = AGE_BINS_OCTAVE * (63u - (unsigned)__builtin_clzll(units));
    if (bin > CHAIN_AGES - AGE_BINS_OCTAVE) return CHAIN_AGES - 1;
    return bin + (age >= v->start[bin + 1]) + (age >= v->start[bin + 2]);
}

struct chain_bin chain_bin_at(const struct chain_value *v, uint32_t age) {
    unsigned b = chain_age_bin(v, age);
    float share = (float)(age - v->start[b]) / (float)(v->start[b + 1] - v->start[b]);
    return (struct chain_bin){b, share < 1 ? share : 1};
}

/* The first time since a fit. */
static __attribute__((noinline)) void exposed_first(struct chain_value *v, unsigned sort,
                                                    float weight, uint32_t from, unsigned bin,
                                                    uint32_t to) {
    sort_ratios(v, &v->sort[sort]);
    chain_exposed(v, sort, weight, from, bin, to);
}

void chain_exposed(struct chain_value *v, unsigned sort, float weight, uint32_t from, unsigned bin,
                   uint32_t to) {
    struct chain_sort *x = &v->sort[sort];
    if (UNLIKELY(x->ratios_fit != v->fits)) {
        exposed_first(v, sort, weight, from, bin, to);
        return;
    }
    struct chain_age *of_all = &v->age[bin];
    struct chain_kind_age *of_kind = &v->kind[x->traits.kind][bin];
    for (; from < to; of_all++, of_kind++) {
        uint32_t end = of_all->until < to ? of_all->until : to, zone = of_all->zone;
        float time = weight * (float)(int32_t)(end - from), weighed = time * x->ratio[zone];
        of_kind->exposure += weighed;
        of_all->exposure += time;
        x->lately[zone] += weighed * of_kind->hazard;
        from = end;
    }
}

void chain_returned(struct chain_value *v, unsigned sort, float weight, uint32_t age) {
    const struct chain_sort *x = &v->sort[sort];
    unsigned b = chain_age_bin(v, age), zone = zone_of(b);
    v->kind[x->traits.kind][b].returns += weight;
    v->age[b].returns += weight;
    for (unsigned i = 0; i < CHAIN_TRAITS; i++) v->ratio[x->class[i]][zone].returns += weight;
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
        returns += v->age[b].returns;
        expected += v->age[b].exposure * PRIOR_USES / (age_of(v, b) + AGE_UNIT);
    }
    return (returns + PRIOR_SCALE) / (expected + PRIOR_SCALE);
}

static void fit_class(struct chain_ratio *x, double rescale) {
    for (const struct chain_ratio *end = x + CHAIN_ZONES; x < end; x++) {
        if (x->expected == 0 && x->returns == 0 && x->lately == 0) continue;
        x->expected = (x->expected + x->lately / x->ratio) * rescale;
        x->lately = 0;
        double r = (x->returns + PRIOR_RATIO) / (x->expected + PRIOR_RATIO);
        r = r < 1 / RATIO_MAX ? 1 / RATIO_MAX : r > RATIO_MAX ? RATIO_MAX : r;
        x->ratio *= sqrtf((float)r / x->ratio); /* all are fitted at once: a step is too far */
        x->returns *= FADE;
        x->expected *= FADE;
    }
}

/* What is expected is so by what is known now of how much returns: else what was to come back
 * before it was known that nothing does would speak against the kinds that came first. */
static void fit_ratios(struct chain_value *v) {
    double scale = prior_scale(v), rescale = v->scale > 0 ? scale / v->scale : 1;
    v->scale = scale;
    for (unsigned trait = 0; trait < CHAIN_KINDS * CHAIN_TRAITS; trait++)
        for (unsigned bits = v->classes[trait]; bits; bits &= bits - 1)
            fit_class(v->ratio[trait * CHAIN_CLASSES + (unsigned)__builtin_ctz(bits)], rescale);
}

static void fit_hazards(struct chain_value *v) {
    for (unsigned b = 0; b < CHAIN_AGES; b++) {
        double prior = v->scale * PRIOR_USES / (age_of(v, b) + AGE_UNIT);
        struct chain_age *of_all = &v->age[b];
        double all = (of_all->returns + PRIOR_ALL) / (of_all->exposure + PRIOR_ALL / prior);
        of_all->returns *= FADE;
        of_all->exposure *= FADE;
        double little = PRIOR_KIND / all;
        for (unsigned k = 0; k < CHAIN_KINDS; k++) {
            struct chain_kind_age *x = &v->kind[k][b];
            x->hazard = (float)((x->returns + PRIOR_KIND) / (x->exposure + little));
            x->returns *= FADE;
            x->exposure *= FADE;
        }
    }
}

/* The index at the start of each bin, from the last to the first: the bins that follow are pooled
 * with one as long as they are worth more. */
void chain_sort_fit(struct chain_value *v, struct chain_sort *x) {
    if (x->ratios_fit != v->fits) sort_ratios(v, x);
    struct stretch {
        float chance, time, stays;
    } stack[CHAIN_AGES] = {{0}};
    unsigned n = 0;
    for (unsigned b = CHAIN_AGES; b-- > 0;) {
        float hazard = v->kind[x->traits.kind][b].hazard * x->ratio[zone_of(b)];
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
    v->fits++;
}
