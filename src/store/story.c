/* Why look-ups missed: keys that went are remembered for a while, with the reason and the time.
 *
 *   book_remove ─> story_gone: a ghost          a miss ─> story_miss: which ghost is it?
 *
 * Ghosts lie in a table of fixed size, in sets of eight of which the oldest gives way. So that it
 * reaches back for about four times as many keys as there are objects, only one key in `one_in` is
 * followed, chosen by its hash: either everything of a key is seen, or nothing. What is counted
 * counts for as many keys. (Sampling by hash: Waldspurger et al., SHARDS, FAST 2015.) */
#include "store/story.h"

#include <stdlib.h>
#include "store/books.h"

enum { WAYS = 8, SETS = STORY_GHOSTS / WAYS, ONE_IN_MAX = 1 << 16, REACH = 4 };

struct story_ghost {
    uint64_t hash;
    uint64_t gone_ms : 56, why : 8; /* of enum store_miss; STORE_MISS_NEVER: nobody lies here */
};

/* Other bits than those that choose the set. */
static bool is_followed(const struct story *t, uint64_t hash) {
    return (hash >> 40 & (t->one_in - 1)) == 0;
}

static struct story_ghost *set_of(const struct story *t, uint64_t hash) {
    return &t->ghosts[hash % SETS * WAYS];
}

void story_init(struct story *t) {
    *t = (struct story){.one_in = 1, .ghosts = xcalloc(STORY_GHOSTS, sizeof(*t->ghosts))};
}

void story_deinit(struct story *t) {
    free(t->ghosts);
    t->ghosts = NULL;
}

uint64_t story_memory(const struct story *t) {
    return STORY_GHOSTS * sizeof(*t->ghosts);
}

void story_gone(struct store *s, const struct object *o, uint64_t hash, enum store_miss why) {
    struct story *t = &s->story;
    while (s->index.count * REACH / t->one_in > STORY_GHOSTS && t->one_in < ONE_IN_MAX)
        t->one_in *= 2;
    if (!is_followed(t, hash)) return;
    struct story_ghost *set = set_of(t, hash), *place = &set[0];
    for (unsigned i = 0; i < WAYS; i++) {
        if (set[i].hash == hash || set[i].why == STORE_MISS_NEVER) {
            place = &set[i];
            break;
        }
        if (set[i].gone_ms < place->gone_ms) place = &set[i];
    }
    *place = (struct story_ghost){.hash = hash, .gone_ms = s->now_ms, .why = why};
    if (why == STORE_MISS_EVICTED) hist_add(&t->idle, store_object_idle_ms(s, o));
}

/* It is in the books, but look-ups do not see it: why. false: it is not there. */
static bool story_hidden(struct store *s, uint64_t hash, enum store_miss *why_p) {
    if (s->hidden == 0 && s->stale == 0 && !s->following && !s->keeps_expired) return false;
    const struct object *o = index_find_hash(&s->index, hash);
    if (o == NULL) return false;
    bool expired = (o->bits & OBJECT_EXTRA) && extra_expired(s, o);
    *why_p = s->stale > 0 && book_stale(s, o) ? STORE_MISS_REMOVED
             : expired                        ? STORE_MISS_EXPIRED
                                              : STORE_MISS_AWAY;
    return true;
}

void story_miss(struct store *s, uint64_t hash) {
    struct story *t = &s->story;
    enum store_miss why = STORE_MISS_NEVER;
    if (!is_followed(t, hash)) return;
    if (!story_hidden(s, hash, &why)) {
        const struct story_ghost *set = set_of(t, hash);
        for (unsigned i = 0; i < WAYS; i++) {
            if (set[i].hash != hash || set[i].why == STORE_MISS_NEVER) continue;
            why = (enum store_miss)set[i].why;
            if (why == STORE_MISS_EVICTED) hist_add(&t->asked_again, s->now_ms - set[i].gone_ms);
        }
    }
    s->stat.missed[why] += t->one_in;
}

void story_reset(struct story *t) {
    hist_init(&t->idle);
    hist_init(&t->asked_again);
}

void store_get_story(const struct store *s, struct store_story *story_p) {
    *story_p = (struct store_story){
        .idle = &s->story.idle, .asked_again = &s->story.asked_again, .one_in = s->story.one_in};
}

const char *store_miss_name(enum store_miss why) {
    static const char *const names[STORE_MISSES] = {
        [STORE_MISS_NEVER] = "never",     [STORE_MISS_EVICTED] = "evicted",
        [STORE_MISS_EXPIRED] = "expired", [STORE_MISS_REMOVED] = "removed",
        [STORE_MISS_AWAY] = "away",       [STORE_MISS_GAP] = "gap"};
    return names[why];
}
