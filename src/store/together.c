/* Keys that go together: X with one of the suffixes of the configuration, X with another. LMCache's
 * redis:// connector puts a chunk as two values, Xkv_bytes and then Xmetadata, and takes a metadata
 * that is there for a chunk that is there.
 *
 *   Xkv_bytes goes (evicted, expired, removed, lost) ──> noted ── store_settle
 *     ├─> it is there again: nothing
 *     ├─> Xmetadata goes the same way
 *     └─> there is none yet: lone
 *   Xmetadata comes and is lone ──> noted, as if Xkv_bytes had gone only now
 *
 * While a part is on a host that is away, the others are as away as it is.
 *
 * It is noted first because those who remove hold other objects in their hands. Leased, held and
 * hard-pinned objects are not taken along by an eviction. Books that follow are told of each object
 * by itself. */
#include <string.h>
#include "store/books.h"

#define LONE_MS 60000u /* so long a put of two values may take between the first and the second */

struct note { /* and the key behind it */
    uint16_t key_len;
    uint8_t suffix; /* which of the configuration's it ends with */
    uint8_t why;
};

/* Which suffix the key ends with: the longest, and something must be before it. < 0: none. */
static int together_suffix(const struct store *s, struct span key) {
    int found = -1;
    for (unsigned i = 0; i < s->config.n_together; i++) {
        const struct store_suffix *x = &s->config.together[i];
        if (key.len <= x->len || key.data[key.len - 1] != x->text[x->len - 1] ||
            memcmp(key.data + key.len - x->len, x->text, x->len) != 0)
            continue;
        if (found < 0 || x->len > s->config.together[found].len) found = (int)i;
    }
    return found;
}

/* The key with suffix `to` in place of `from`, in at. Empty: it would be too long. */
static struct span together_key(const struct store *s, struct span key, unsigned from, unsigned to,
                                char at[STORE_KEY_MAX]) {
    const struct store_suffix *x = &s->config.together[to];
    size_t stem = key.len - s->config.together[from].len;
    if (stem + x->len > STORE_KEY_MAX) return span_of(at, 0);
    memcpy(at, key.data, stem);
    memcpy(at + stem, x->text, x->len);
    return span_of(at, stem + x->len);
}

static struct lone *lone_set(struct store *s, uint64_t hash) {
    return s->together.lone[hash % LONE_SETS];
}

/* NULL: it is not. */
static struct lone *lone_find(struct store *s, uint64_t hash) {
    struct lone *set = lone_set(s, hash);
    for (unsigned i = 0; i < LONE_WAYS; i++)
        if (set[i].hash == hash && set[i].until_ms > s->now_ms) return &set[i];
    return NULL;
}

static void lone_end(struct store *s, uint64_t hash) {
    struct lone *l = lone_find(s, hash);
    if (l) *l = (struct lone){0};
}

/* In place of the one that ends first, which may be none. */
static void lone_enter(struct store *s, uint64_t hash, unsigned missing) {
    struct lone *set = lone_set(s, hash), *at = lone_find(s, hash);
    if (!at) at = set;
    for (unsigned i = 0; i < LONE_WAYS && at->hash != hash; i++)
        if (set[i].until_ms < at->until_ms) at = &set[i];
    s->together.until_ms = s->now_ms + LONE_MS;
    *at = (struct lone){hash, s->together.until_ms, missing};
}

static void together_note(struct store *s, struct span key, unsigned suffix,
                          enum store_news_kind why) {
    struct note n = {.key_len = (uint16_t)key.len, .suffix = (uint8_t)suffix, .why = (uint8_t)why};
    buf_append(&s->together.notes, &n, sizeof(n));
    buf_append(&s->together.notes, key.data, key.len);
}

void together_gone(struct store *s, struct span key, enum store_news_kind why) {
    if (s->config.n_together < 2 || s->together.settling || (s->following && !s->leading)) return;
    if (s->leading) why = STORE_NEWS_LOST; /* who begins to lead drops without a word */
    if (why == STORE_NEWS_NONE) return;
    int suffix = together_suffix(s, key);
    if (suffix >= 0) together_note(s, key, (unsigned)suffix, why);
}

void together_came(struct store *s, struct span key, uint64_t hash) {
    if (LIKELY(s->together.until_ms <= s->now_ms) || s->following) return;
    if (s->config.n_together < 2) return;
    int suffix = together_suffix(s, key);
    if (suffix < 0) return;
    char other[STORE_KEY_MAX];
    const struct lone *mine = lone_find(s, hash);
    if (mine && mine->missing < s->config.n_together)
        together_note(s, together_key(s, key, (unsigned)suffix, mine->missing, other),
                      mine->missing, STORE_NEWS_EVICTED);
    for (unsigned i = 0; i < s->config.n_together; i++)
        lone_end(s, store_hash(together_key(s, key, (unsigned)suffix, i, other)));
}

bool together_away(const struct store *s, const struct object *o) {
    if (s->config.n_together < 2) return false;
    struct span key = store_object_key(o);
    int suffix = together_suffix(s, key);
    for (unsigned i = 0; suffix >= 0 && i < s->config.n_together; i++) {
        char at[STORE_KEY_MAX];
        struct span other = together_key(s, key, (unsigned)suffix, i, at);
        if (i == (unsigned)suffix || other.len == 0) continue;
        const struct object *x = index_find(&s->index, other, store_hash(other));
        if (x && !book_stale(s, x) && !book_readable(s, x)) return true;
    }
    return false;
}

static void settle_one(struct store *s, struct span key, const struct note *n) {
    struct object *o = index_find(&s->index, key, store_hash(key));
    if (o && !book_stale(s, o)) return;
    bool evicted = n->why == STORE_NEWS_EVICTED || n->why == STORE_NEWS_LOST;
    for (unsigned i = 0; i < s->config.n_together; i++) {
        char at[STORE_KEY_MAX];
        struct span other = together_key(s, key, n->suffix, i, at);
        if (i == n->suffix || other.len == 0) continue;
        uint64_t hash = store_hash(other);
        o = index_find(&s->index, other, hash);
        if (!o && evicted) lone_enter(s, hash, n->suffix);
        if (o && !book_stale(s, o) && (n->why != STORE_NEWS_EVICTED || !book_protected(s, o))) {
            s->stat.evicted_together++;
            book_drop(s, o, (enum store_news_kind)n->why);
        }
    }
}

void store_settle(struct store *s) {
    if (LIKELY(s->together.notes.len == 0) || s->keeps_expired) return;
    struct buf *notes = &s->together.notes;
    if (s->following && !s->leading) return buf_clear(notes); /* who leads now says what goes */
    s->together.settling = true;                              /* what is taken along takes nobody */
    for (size_t at = 0; at < notes->len;) {
        struct note n;
        memcpy(&n, notes->data + at, sizeof(n));
        at += sizeof(n);
        if (n.suffix < s->config.n_together)
            settle_one(s, span_of(notes->data + at, n.key_len), &n);
        at += n.key_len;
    }
    s->together.settling = false;
    buf_clear(notes);
}
