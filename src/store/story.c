/* Why look-ups missed: keys that went are remembered for a while, with the reason and the time.
 *
 *   book_remove ─> story_gone: a ghost          a miss ─> story_miss: which ghost is it?
 *
 * Ghosts lie in a table of fixed size, in sets of eight of which the oldest gives way. So that it
 * reaches back for about four times as many keys as there are objects, only one key in `one_in` is
 * followed, chosen by its hash: either everything of a key is seen, or nothing. What is counted
 * counts for as many keys. (Sampling by hash: Waldspurger et al., SHARDS, FAST 2015.)
 *
 * The same events feed the curve of hit ratio over pool size (curve.h), which is of the pool's
 * memory: values that lie in the books hit at every size, and a disk below does not count. One
 * look-up in TOP_EVERY, on average, feeds the lists of names that are asked for most (top.h). */
#include "store/story.h"

#include <stdlib.h>
#include "store/books.h"

enum { TOP_EVERY = 128, TOP_HASH_MIN = 12, POOL_EVERY_MS = 1000 };
enum { WAYS = 8, SETS = STORY_GHOSTS / WAYS, ONE_IN_MAX = 1 << 16, REACH = 4 };

struct story_ghost {
    uint64_t hash;
    uint64_t gone_ms : 56, why : 8; /* of enum store_miss; STORE_MISS_NEVER: nobody lies here */
};

static struct story_ghost *set_of(const struct story *t, uint64_t hash) {
    return &t->ghosts[hash % SETS * WAYS];
}

static void curve_open(struct store *s) {
    struct story *t = &s->story;
    t->curve = curve_create(s->policy, &s->config, NULL);
    if (t->curve == NULL) t->curve = &t->no_curve;
    t->pool_units = t->pool_due_ms = 0; /* it knows nothing of the pool */
}

static bool curve_there(const struct story *t) {
    return t->curve != &t->no_curve;
}

static void curve_close(struct story *t) {
    if (curve_there(t)) curve_destroy(&t->curve);
}

void story_init(struct store *s) {
    struct story *t = &s->story;
    *t = (struct story){.one_in = 1, .ghosts = xcalloc(STORY_GHOSTS, sizeof(*t->ghosts))};
    curve_open(s);
    t->top_wait = 1;
    for (unsigned i = 0; i < STORE_TOPS; i++) t->top[i] = top_create();
}

void story_deinit(struct story *t) {
    curve_close(t);
    for (unsigned i = 0; i < STORE_TOPS; i++) top_destroy(&t->top[i]);
    free(t->ghosts);
    t->ghosts = NULL;
}

uint64_t story_memory(const struct story *t) {
    return STORY_GHOSTS * sizeof(*t->ghosts) + STORE_TOPS * top_memory();
}

void story_policy(struct store *s) {
    curve_close(&s->story);
    curve_open(s);
}

/* So few keys are followed that the ghosts reach back as far as they should. */
static void story_reach(struct store *s) {
    struct story *t = &s->story;
    while (s->index.count * REACH / t->one_in > STORY_GHOSTS && t->one_in < ONE_IN_MAX)
        t->one_in *= 2;
}

/* Asked for now and then, rather than told by all that adds, resizes and takes away segments. */
void story_tick(struct store *s) {
    uint64_t units = 0;
    s->story.pool_due_ms = s->now_ms + POOL_EVERY_MS;
    story_reach(s);
    for (const struct segment *seg = NULL; (seg = space_next(&s->space, seg));)
        if (seg->tier == STORE_TIER_MEMORY && segment_readable(seg)) units += seg->units;
    if (curve_there(&s->story) && units != s->story.pool_units) {
        curve_set_pool(s->story.curve, units * UNIT);
        s->story.pool_units = units;
    }
}

/* --- names --- */

enum { OTHER, HEX, SEPARATOR };
static const uint8_t kinds[256] = {
    ['0' ... '9'] = HEX, ['a' ... 'f'] = HEX, ['A' ... 'F'] = HEX, ['{'] = HEX,
    ['}'] = HEX,         ['@'] = SEPARATOR,   [':'] = SEPARATOR,   ['/'] = SEPARATOR,
    ['|'] = SEPARATOR,   ['#'] = SEPARATOR};

/* What the keys of one engine have in common: all up to the first part of TOP_HASH_MIN or more
 * hexadecimal digits, some of which may be in braces, which is a block's hash; without one all up
 * to the last separator. */
static struct span name_of_key(struct span key) {
    size_t part = 0, last = 0;
    bool hex = true; /* the part has nothing else so far */
    for (size_t i = 0; i <= key.len; i++) {
        uint8_t kind = i < key.len ? kinds[(uint8_t)key.data[i]] : SEPARATOR;
        if (kind != SEPARATOR) {
            hex &= kind == HEX;
            continue;
        }
        if (hex && i - part >= TOP_HASH_MIN) return span_of(key.data, part);
        if (i < key.len) last = i + 1;
        part = i + 1;
        hex = true;
    }
    return span_of(key.data, last);
}

/* The next comes after 1 to 2 * TOP_EVERY - 1 look-ups, so that no rhythm of keys escapes. */
static bool top_counts(struct store *s) {
    if (s->story.top_wait > 0) return false;
    s->story.top_wait = 1 + rng_below(&s->rng, 2 * TOP_EVERY - 1);
    return true;
}

static void top_count(struct store *s, enum store_top which, struct span name, uint64_t n) {
    top_add(s->story.top[which], name, n * TOP_EVERY, s->now_ms);
}

void story_gone(struct store *s, const struct object *o, uint64_t hash, enum store_miss why) {
    struct story *t = &s->story;
    if (why != STORE_MISS_EVICTED && curve_there(t)) curve_remove(t->curve, hash);
    if (why == STORE_MISS_NEVER) return;
    story_reach(s);
    if (!story_follows(t, hash)) return;
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

void story_came(struct store *s, const struct object *o, uint64_t hash) {
    struct curve *c = s->story.curve;
    if (hash > c->limit || !curve_there(&s->story)) return;
    uint64_t size = book_units(s, o) * UNIT;
    if (size > 0) curve_put_sampled(c, hash, size, s->now_ms);
}

void story_hit(struct store *s, const struct object *o, uint64_t hash) {
    struct curve *c = s->story.curve;
    if (hash <= c->limit && !(o->bits & OBJECT_INLINE) && curve_there(&s->story))
        curve_look_sampled(c, hash, book_units(s, o) * UNIT, s->now_ms);
    if (s->n_domains > 1) s->domains[book_domain(s, o)].hits++;
    if (!top_counts(s)) return;
    struct span name = name_of_key(store_object_key(o));
    top_count(s, STORE_TOP_HITS, name, 1);
    top_count(s, STORE_TOP_BYTES, name, store_object_size(s, o));
}

void story_miss(struct store *s, struct span key, uint64_t hash) {
    struct story *t = &s->story;
    enum store_miss why = STORE_MISS_NEVER;
    if (hash <= t->curve->limit && curve_there(t)) curve_look_sampled(t->curve, hash, 0, s->now_ms);
    if (top_counts(s)) top_count(s, STORE_TOP_MISSES, name_of_key(key), 1);
    if (!story_follows(t, hash)) return;
    if (!story_hidden(s, hash, &why)) {
        const struct story_ghost *set = set_of(t, hash);
        for (unsigned i = 0; i < WAYS; i++) {
            if (set[i].hash != hash || set[i].why == STORE_MISS_NEVER) continue;
            why = (enum store_miss)set[i].why;
            if (why == STORE_MISS_EVICTED) hist_add(&t->asked_again, s->now_ms - set[i].gone_ms);
        }
    }
    s->stat.missed[why] += t->one_in;
    if (s->n_domains > 1) s->domains[quota_domain(s, key)].missed[why] += t->one_in;
}

void story_reset(struct story *t) {
    if (curve_there(t)) curve_reset(t->curve);
    for (unsigned i = 0; i < STORE_TOPS; i++) top_reset(t->top[i]);
    hist_init(&t->idle);
    hist_init(&t->asked_again);
    hist_init(&t->evicting);
}

bool store_get_curve(struct store *s, struct curve_figures *figures_p) {
    if (!curve_there(&s->story)) return false;
    curve_get(s->story.curve, figures_p);
    return true;
}

size_t store_get_top(const struct store *s, enum store_top which, struct top_entry *entries,
                     size_t max) {
    return top_get(s->story.top[which], entries, max);
}

uint64_t store_top_total(const struct store *s, enum store_top which) {
    return top_total(s->story.top[which]);
}

void store_get_story(const struct store *s, struct store_story *story_p) {
    *story_p = (struct store_story){.idle = &s->story.idle,
                                    .asked_again = &s->story.asked_again,
                                    .evicting = &s->story.evicting,
                                    .one_in = s->story.one_in};
}

const char *store_top_name(enum store_top which) {
    static const char *const names[STORE_TOPS] = {
        [STORE_TOP_HITS] = "hits", [STORE_TOP_MISSES] = "misses", [STORE_TOP_BYTES] = "bytes"};
    return names[which];
}

const char *store_miss_name(enum store_miss why) {
    static const char *const names[STORE_MISSES] = {
        [STORE_MISS_NEVER] = "never",     [STORE_MISS_EVICTED] = "evicted",
        [STORE_MISS_EXPIRED] = "expired", [STORE_MISS_REMOVED] = "removed",
        [STORE_MISS_AWAY] = "away",       [STORE_MISS_GAP] = "gap"};
    return names[why];
}
