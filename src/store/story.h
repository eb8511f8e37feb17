/* What look-ups found, and why they missed: see story.c. */
#ifndef TARN_STORE_STORY_H
#define TARN_STORE_STORY_H

#include "base/hist.h"
#include "store/curve.h"
#include "store/figures.h"
#include "store/top.h"

#define STORY_GHOSTS 8192u

struct object;
struct story_ghost;

struct story {
    struct story_ghost *ghosts;
    uint64_t one_in;         /* a power of two */
    struct hist idle;        /* ms, of evicted objects: since their last use */
    struct hist asked_again; /* ms, of misses: since the key was evicted */
    struct hist evicting;    /* ns, of puts: spent on making room by eviction */
    struct curve *curve;     /* &no_curve: there was no memory for one */
    struct curve no_curve;
    uint64_t pool_units, pool_due_ms; /* what it knows of the pool's size, and until when */
    struct top *top[STORE_TOPS];
    uint64_t top_wait; /* look-ups until the next that top counts; 0: it is this one */
};

void story_init(struct store *s);
void story_deinit(struct story *t);
void story_reset(struct story *t); /* CONFIG RESETSTAT; what is known of keys stays */
/* Without the curve, which is bounded by itself and no eviction makes smaller. */
uint64_t story_memory(const struct story *t);
/* The policy is another one. */
void story_policy(struct store *s);
/* A second, at least, has gone by. */
void story_tick(struct store *s);
/* Does a look-up of that key concern more than a count? */
static inline bool story_follows(const struct story *t, uint64_t hash) {
    return (hash >> 40 & (t->one_in - 1)) ==
           0; /* other bits than those that choose a ghost's set */
}
static inline bool story_notes(struct story *t, uint64_t hash) {
    t->top_wait--;
    return t->top_wait == 0 || hash <= t->curve->limit;
}
/* o has come. */
void story_came(struct store *s, const struct object *o, uint64_t hash);
/* o is about to go. STORE_MISS_NEVER: another value comes in its place. */
void story_gone(struct store *s, const struct object *o, uint64_t hash, enum store_miss why);
/* A look-up that counts has found it, or did not find the key; only for those that story_notes or,
 * for misses, story_follows, or when there are tenants. */
void story_hit(struct store *s, const struct object *o, uint64_t hash);
void story_miss(struct store *s, struct span key, uint64_t hash);

#endif
