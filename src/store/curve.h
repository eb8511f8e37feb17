/* The curve of hit ratio over pool size: what share of the look-ups would have hit if the pool were
 * 1/4, 1/2, 1, 2 and 4 times as large, under lru and under the policy in use.
 *
 * Keys are sampled by hash, so that all events of a key are seen or none, and the sample is played
 * through small pools with the policies' own code: the miniature simulation of Waldspurger et al.,
 * "Cache Modeling and Optimization using Miniature Simulations" (USENIX ATC 2017). A share R of the
 * keys in R times the space behaves like all keys in all of it. Look-ups of keys that are so hot
 * that the sample got more or fewer of them than its share are set right as SHARDS-adj does it
 * (Waldspurger et al., FAST 2015): they hit at every size.
 *
 * Bounded: the sample is halved when it has more than keys_max keys, or gets more than events_max
 * events in a second; those that leave go a few with each later event. It never grows again, except
 * by a new curve.
 *
 * Of a policy that looks at chains (chain) the sample, in which each key is alone, says nothing:
 * then there is lru's curve only.
 *
 * What it does not know: a pool of another size has its first gap elsewhere, so engines would ask
 * for other keys; leases and pins; keys whose life ends while only a larger pool has them; how the
 * allocator's rounding differs. Small pools of few sampled keys are coarse for policies with parts
 * (s3fifo was 0.04 too low at 31 keys), which the stated error does not have in it. Counts are
 * halved every CURVE_HALF_MS: what is shown is the recent past.
 *
 * One thread. Time is an argument. */
#ifndef TARN_STORE_CURVE_H
#define TARN_STORE_CURVE_H

#include <stdbool.h>
#include <stdint.h>

#define CURVE_SIZES   5u
#define CURVE_HALF_MS 600000u

enum curve_order { CURVE_LRU, CURVE_POLICY, CURVE_ORDERS };

extern const double curve_scales[CURVE_SIZES]; /* 0.25 ... 4, of the pool */

struct policy_ops;
struct store_config;

struct curve_limits {
    uint32_t keys_max;   /* in the sample: about 700 bytes each, 0: CURVE_KEYS_MAX */
    uint32_t events_max; /* of the sample in a second, 0: CURVE_EVENTS_MAX */
};
#define CURVE_KEYS_MAX   8192u
#define CURVE_EVENTS_MAX 4096u

/* The head of every curve: what look-ups of other keys need, without a call. */
struct curve {
    uint64_t limit; /* keys whose hash is not above it are in the sample */
    uint64_t looks; /* of all keys, since they were last set against the sample */
};

struct curve_point {
    double scale;     /* of the pool's size */
    double hit_ratio; /* 0 to 1 */
    double error;     /* the true value is within so much of it in 95 of 100 cases */
    bool filled;      /* had to evict: until then a larger pool would not be better */
};

struct curve_figures {
    uint64_t keys;         /* in the sample now */
    uint64_t sample;       /* one key in so many */
    double looks;          /* sampled look-ups that count now; 0: nothing is known */
    uint64_t memory_bytes; /* of the curve itself */
    bool policy_known;     /* else the points of CURVE_POLICY say nothing */
    struct curve_point point[CURVE_ORDERS][CURVE_SIZES];
};

/* config is borrowed, ops is the policy in use. NULL: no memory. */
struct curve *curve_create(const struct policy_ops *ops, const struct store_config *config,
                           const struct curve_limits *limits);
void curve_destroy(struct curve **curve_p);
/* The pool's size in bytes; 0: nothing is simulated. At once, but for what has to go when it
 * shrinks, which goes with later events, a few each. */
void curve_set_pool(struct curve *c, uint64_t bytes);

/* A look-up that counts as a hit or miss. size: of the object in the pool, 0: it missed. */
void curve_look_sampled(struct curve *c, uint64_t hash, uint64_t size, uint64_t now_ms);
static inline void curve_look(struct curve *c, uint64_t hash, uint64_t size, uint64_t now_ms) {
    if (__builtin_expect(hash <= c->limit, 0)) curve_look_sampled(c, hash, size, now_ms);
    c->looks++; /* behind it: what it halves was before this one */
}
/* An object of so many bytes (more than 0) was put. */
void curve_put_sampled(struct curve *c, uint64_t hash, uint64_t size, uint64_t now_ms);
static inline void curve_put(struct curve *c, uint64_t hash, uint64_t size, uint64_t now_ms) {
    if (__builtin_expect(hash <= c->limit, 0)) curve_put_sampled(c, hash, size, now_ms);
}
/* It was removed, replaced or has expired: gone in a pool of any size. Not for evicted ones. */
void curve_remove_sampled(struct curve *c, uint64_t hash);
static inline void curve_remove(struct curve *c, uint64_t hash) {
    if (__builtin_expect(hash <= c->limit, 0)) curve_remove_sampled(c, hash);
}

void curve_get(struct curve *c, struct curve_figures *figures);
/* Counts begin anew; the simulated pools keep what they have. */
void curve_reset(struct curve *c);

#endif
