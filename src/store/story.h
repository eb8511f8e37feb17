/* Why look-ups missed: see story.c. */
#ifndef TARN_STORE_STORY_H
#define TARN_STORE_STORY_H

#include "base/hist.h"
#include "store/store.h"

#define STORY_GHOSTS 8192u

struct object;
struct story_ghost;

struct story {
    struct story_ghost *ghosts;
    uint64_t one_in;         /* a power of two */
    struct hist idle;        /* ms, of evicted objects: since their last use */
    struct hist asked_again; /* ms, of misses: since the key was evicted */
};

void story_init(struct story *t);
void story_deinit(struct story *t);
void story_reset(struct story *t); /* CONFIG RESETSTAT; what is known of keys stays */
uint64_t story_memory(const struct story *t);
/* o is about to go. */
void story_gone(struct store *s, const struct object *o, uint64_t hash, enum store_miss why);
/* A look-up that counts did not find the key. */
void story_miss(struct store *s, uint64_t hash);

#endif
