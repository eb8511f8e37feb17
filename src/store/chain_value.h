/* What the chain policy has learnt: how likely the blocks of a run (chain.h) are used again, by
 * what the run is and for how long it was not used, and what that is worth. Knows no store.
 *
 * Age is counted in requests, not in seconds: what competes for the pool comes with them. Ages are
 * in bins, three in an octave. The hazard of a run (uses per request of age) is that of its kind at
 * its age, learnt as returns over exposure, times a learnt ratio for each of its traits, one in two
 * octaves of age. What little was seen says is drawn to what more of it says: a kind to all kinds,
 * these to one over the age (which orders as lru does) by as much as there is of all ages, a ratio
 * to 1. What was seen long ago fades.
 *
 * The value of a run is its Gittins index: the largest, over all times to come, of (chance that it
 * is used until then) / (requests for which it is kept until then). A hazard alone would drop what
 * rests before it comes back.
 *
 * Runs of equal kind and traits are of one sort, and all that is counted and computed is so of a
 * sort. There are at most CHAIN_SORTS; where more were needed, the traits of some are not told
 * apart.
 *
 * A run of n blocks counts as the square root of n, in returns and exposure.
 *
 * From hazard-based caching (Beckmann and Cidon's LHD, NSDI 2018), the index from Gittins (1979);
 * categories whose reuse is learnt, from Wang et al. (ATC 2025). */
#ifndef TARN_STORE_CHAIN_VALUE_H
#define TARN_STORE_CHAIN_VALUE_H

#include <stdint.h>

enum chain_kind {
    CHAIN_NEW,      /* came with the last request that used it */
    CHAIN_LAST,     /* of these the last block, often one that is not full */
    CHAIN_REUSED,   /* had been there before that request */
    CHAIN_BRANCHED, /* the same, and behind it the request left the prompt that was there */
    CHAIN_SHARED,   /* several prompts begin with it */
    CHAIN_LEFT,     /* what such a request left behind; and what came without a request */
    CHAIN_AWAITED,  /* its client has said when it comes back */
    CHAIN_KINDS
};

#define CHAIN_TRAITS  4u
#define CHAIN_CLASSES 8u
/* What else is known of a run, in classes; 0 where it says nothing of that kind. */
struct chain_traits {
    uint8_t kind;   /* enum chain_kind */
    uint8_t turn;   /* how many requests went on with its prompt: 1 to CHAIN_TURN_MAX */
    uint8_t length; /* of the whole prompt; AWAITED: requests until it comes back */
    uint8_t growth; /* blocks that were new in it */
    uint8_t branched;
};
#define CHAIN_TURN_MAX 6u

#define CHAIN_AGES  48u
#define CHAIN_ZONES 8u   /* of six ages each */
#define CHAIN_SORTS 256u /* with number 0, which is none */
#define CHAIN_KEYS  (1u << 13)

struct chain_age {
    uint32_t until, zone; /* the last one has no end */
    double returns, exposure;
};
struct chain_kind_age {
    double returns, exposure;
    float hazard;
};
struct chain_ratio {
    double returns, expected; /* without this ratio */
    float ratio, lately;      /* lately: expected since the last fit, with it */
};
struct chain_sort {
    struct chain_traits traits;
    uint8_t class[CHAIN_TRAITS]; /* where its ratios are in chain_value's */
    uint32_t runs;               /* that are of it now; the caller counts */
    uint32_t fit, ratios_fit;    /* that its values, its ratios are of */
    float ratio[CHAIN_ZONES];    /* of its hazard to that of its kind */
    float lately[CHAIN_ZONES];   /* uses expected since the last fit */
    float value[CHAIN_AGES + 1];
};
struct chain_value {
    uint32_t start[CHAIN_AGES + 1];   /* of each bin, requests */
    struct chain_age age[CHAIN_AGES]; /* of all kinds */
    struct chain_kind_age kind[CHAIN_KINDS][CHAIN_AGES];
    struct chain_ratio ratio[CHAIN_KINDS * CHAIN_TRAITS * CHAIN_CLASSES][CHAIN_ZONES];
    uint8_t classes[CHAIN_KINDS * CHAIN_TRAITS]; /* a bit for each of which there were runs */
    double scale;                                /* of the prior: how much returns at all */
    uint32_t fits;
    unsigned sorts, hand; /* ever used; where the next one without runs is looked for */
    struct chain_sort sort[CHAIN_SORTS];
    uint8_t by_key[CHAIN_KEYS];
};

void chain_value_init(struct chain_value *v);
uint8_t chain_length_class(uint32_t blocks);
/* Of a prompt of so many blocks, the first of which (known) had been seen before. */
uint8_t chain_growth_class(uint32_t known, uint32_t blocks);
uint8_t chain_return_class(const struct chain_value *v, uint32_t requests);
unsigned chain_age_bin(const struct chain_value *v, uint32_t age);
static inline uint32_t chain_sort_key(const struct chain_traits *t) {
    return (((t->kind * 8u + t->turn) * 8 + t->length) * 8 + t->growth) * 2 + t->branched;
}
/* 0: there is none. */
static inline unsigned chain_sort_known(const struct chain_value *v, const struct chain_traits *t) {
    return v->by_key[chain_sort_key(t)];
}
unsigned chain_sort_new(struct chain_value *v, struct chain_traits t);
/* Runs of it are to be counted before the next call: those of which there are none may go. */
static inline unsigned chain_sort_find(struct chain_value *v, const struct chain_traits *t) {
    unsigned s = chain_sort_known(v, t);
    return s ? s : chain_sort_new(v, *t);
}
/* An age between two bins' starts, share of the way from the first. */
struct chain_bin {
    unsigned bin;
    float share;
};
struct chain_bin chain_bin_at(const struct chain_value *v, uint32_t age);
/* Its values, from hazards and ratios as they are now. */
void chain_sort_fit(struct chain_value *v, struct chain_sort *x);
/* Expected uses per request for which it is kept. */
static inline float chain_worth(struct chain_value *v, unsigned sort, struct chain_bin at) {
    struct chain_sort *x = &v->sort[sort];
    if (x->fit != v->fits) chain_sort_fit(v, x);
    return x->value[at.bin] + at.share * (x->value[at.bin + 1] - x->value[at.bin]);
}
/* What weighs so much was not used between two ages; bin: chain_age_bin of the first. */
void chain_exposed(struct chain_value *v, unsigned sort, float weight, uint32_t from, unsigned bin,
                   uint32_t to);
/* It was used at that age. */
void chain_returned(struct chain_value *v, unsigned sort, float weight, uint32_t age);
/* What was counted makes new hazards and ratios; a sort's values follow when it is asked for. */
void chain_value_fit(struct chain_value *v);

#endif
