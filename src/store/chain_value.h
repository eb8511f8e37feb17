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
 * rests before it comes back. That of a run beside that of its kind is rounded to a level, so that
 * the runs of one kind, level and age are equal, and a table of values by kind and age is all that
 * changes with what is learnt.
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

#define CHAIN_AGES   48u
#define CHAIN_ZONES  8u /* of six ages each, the last of all further ones */
#define CHAIN_LEVELS 16u
#define CHAIN_CURVES 512u

struct chain_ratio {
    double returns, expected; /* without this ratio */
    float ratio, lately;      /* lately: expected since the last fit, with it */
};
struct chain_value {
    uint32_t start[CHAIN_AGES + 1]; /* of each bin, requests */
    double returns[CHAIN_KINDS][CHAIN_AGES], all_returns[CHAIN_AGES];
    double exposure[CHAIN_KINDS][CHAIN_AGES], all_exposure[CHAIN_AGES];
    struct chain_ratio ratio[CHAIN_KINDS][CHAIN_TRAITS][CHAIN_CLASSES][CHAIN_ZONES];
    float hazard[CHAIN_KINDS][CHAIN_AGES];
    float value[CHAIN_KINDS][CHAIN_AGES]; /* of a run all of whose ratios are 1 */
    float times[CHAIN_LEVELS];
    uint32_t fits;
    /* levels that were computed since the last fit */
    struct chain_curve {
        uint32_t key, fit;
        uint8_t level[CHAIN_AGES];
    } curve[CHAIN_CURVES];
};

void chain_value_init(struct chain_value *v);
uint8_t chain_length_class(uint32_t blocks);
/* Of a prompt of so many blocks, the first of which (known) had been seen before. */
uint8_t chain_growth_class(uint32_t known, uint32_t blocks);
uint8_t chain_return_class(const struct chain_value *v, uint32_t requests);
unsigned chain_age_bin(const struct chain_value *v, uint32_t age);
unsigned chain_level(struct chain_value *v, const struct chain_traits *t, unsigned bin);
/* Expected uses per request for which it is kept. */
static inline float chain_worth(const struct chain_value *v, unsigned kind, unsigned level,
                                unsigned bin) {
    return v->value[kind][bin] * v->times[level];
}
/* It was not used from the start of a bin up to that age. */
void chain_exposed(struct chain_value *v, const struct chain_traits *t, float weight, unsigned bin,
                   uint32_t to);
/* It was used at that age. */
void chain_returned(struct chain_value *v, const struct chain_traits *t, float weight,
                    uint32_t age);
/* Computes the values anew from what was counted: some 10 us. */
void chain_value_fit(struct chain_value *v);

#endif
