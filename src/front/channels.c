#include "front/channels.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/htab.h"
#include "base/glob.h"

/* Lives as long as somebody listens. */
struct channel {
    struct htab_node node;
    struct subscriptions subscriptions; /* oldest first */
    size_t subscribers;
    struct glob *glob;         /* of a pattern */
    TAILQ_ENTRY(channel) link; /* patterns, oldest first */
    enum channel_kind kind;
    size_t len;
    char name[];
};

struct subscription {
    struct channel *channel;
    struct subscriber *subscriber;
    TAILQ_ENTRY(subscription) link, own; /* of the channel, of the subscriber */
    struct htab_node by_pair;
};

static struct htab channels[CHANNEL_KINDS]; /* of struct channel */
static struct htab pairs;                   /* of struct subscription: who listens to what */
static TAILQ_HEAD(, channel) patterns = TAILQ_HEAD_INITIALIZER(patterns);

static struct span channel_name(const struct channel *ch) {
    return span_of(ch->name, ch->len);
}

static bool channel_is(const struct htab_node *node, const void *key) {
    return span_eq(channel_name(CONTAINER_OF(node, const struct channel, node)),
                   *(const struct span *)key);
}

static struct channel *channel_find(enum channel_kind kind, struct span name, uint64_t hash) {
    struct htab_node *node = htab_find(&channels[kind], hash, channel_is, &name);
    return node ? CONTAINER_OF(node, struct channel, node) : NULL;
}

struct subscription_pair {
    const struct channel *channel;
    const struct subscriber *subscriber;
};

static bool subscription_is(const struct htab_node *node, const void *arg) {
    const struct subscription *s = CONTAINER_OF(node, const struct subscription, by_pair);
    const struct subscription_pair *p = arg;
    return s->channel == p->channel && s->subscriber == p->subscriber;
}

static uint64_t pair_hash(const struct channel *ch, const struct subscriber *s) {
    return ch->node.hash ^ hash_u64((uintptr_t)s + (uintptr_t)ch->kind);
}

static struct subscription *find_pair(const struct channel *ch, const struct subscriber *s) {
    struct htab_node *node =
        htab_find(&pairs, pair_hash(ch, s), subscription_is, &(struct subscription_pair){ch, s});
    return node ? CONTAINER_OF(node, struct subscription, by_pair) : NULL;
}

/* --- coming and going --- */

static struct channel *channel_create(enum channel_kind kind, struct span name, uint64_t hash) {
    struct channel *ch = xcalloc(1, sizeof(*ch) + name.len);
    ch->kind = kind;
    ch->len = name.len;
    if (name.len) memcpy(ch->name, name.data, name.len);
    TAILQ_INIT(&ch->subscriptions);
    htab_insert(&channels[kind], &ch->node, hash);
    if (kind != CHANNEL_PATTERN) return ch;
    ch->glob = glob_create(channel_name(ch), false);
    TAILQ_INSERT_TAIL(&patterns, ch, link);
    return ch;
}

static void channel_destroy(struct channel *ch) {
    htab_remove(&channels[ch->kind], &ch->node);
    if (ch->kind == CHANNEL_PATTERN) {
        glob_destroy(&ch->glob);
        TAILQ_REMOVE(&patterns, ch, link);
    }
    if (channels[ch->kind].count == 0) htab_free(&channels[ch->kind]);
    free(ch);
}

static size_t subscription_cost(const struct channel *ch) {
    return sizeof(struct subscription) + sizeof(*ch) + ch->len;
}

static size_t subscriber_total(const struct subscriber *s) {
    return s->count[CHANNEL_PLAIN] + s->count[CHANNEL_PATTERN] + s->count[CHANNEL_SHARD];
}

enum channel_result channel_subscribe(struct subscriber *s, enum channel_kind kind,
                                      struct span name) {
    if (name.len > (kind == CHANNEL_PATTERN ? CHANNEL_PATTERN_MAX : CHANNEL_NAME_MAX))
        return CHANNEL_TOO_LONG;
    uint64_t hash = hash_bytes(name.data, name.len);
    struct channel *ch = channel_find(kind, name, hash);
    if (ch && find_pair(ch, s)) return CHANNEL_KNOWN;
    if (subscriber_total(s) == CHANNEL_PER_SUBSCRIBER) return CHANNEL_FULL;
    if (!ch && kind == CHANNEL_PATTERN && channels[kind].count == CHANNEL_PATTERNS_MAX)
        return CHANNEL_FULL;
    if (!ch) ch = channel_create(kind, name, hash);
    struct subscription *n = xmalloc(sizeof(*n));
    *n = (struct subscription){.channel = ch, .subscriber = s};
    TAILQ_INSERT_TAIL(&ch->subscriptions, n, link);
    ch->subscribers++;
    if (s->count[kind]++ == 0) TAILQ_INIT(&s->own[kind]);
    TAILQ_INSERT_TAIL(&s->own[kind], n, own);
    s->bytes += subscription_cost(ch);
    htab_insert(&pairs, &n->by_pair, pair_hash(ch, s));
    return CHANNEL_ADDED;
}

static void subscription_drop(struct subscription *n) {
    struct channel *ch = n->channel;
    struct subscriber *s = n->subscriber;
    htab_remove(&pairs, &n->by_pair);
    if (pairs.count == 0) htab_free(&pairs);
    TAILQ_REMOVE(&ch->subscriptions, n, link);
    TAILQ_REMOVE(&s->own[ch->kind], n, own);
    s->count[ch->kind]--;
    s->bytes -= subscription_cost(ch);
    free(n);
    if (--ch->subscribers == 0) channel_destroy(ch);
}

bool channel_unsubscribe(struct subscriber *s, enum channel_kind kind, struct span name) {
    struct channel *ch = channel_find(kind, name, hash_bytes(name.data, name.len));
    struct subscription *n = ch ? find_pair(ch, s) : NULL;
    if (n) subscription_drop(n);
    return n != NULL;
}

bool channel_first(const struct subscriber *s, enum channel_kind kind, struct span *name_p) {
    if (!TAILQ_FIRST(&s->own[kind])) return false;
    *name_p = channel_name(TAILQ_FIRST(&s->own[kind])->channel);
    return true;
}

void channel_each(const struct subscriber *s, enum channel_kind kind,
                  void (*fn)(void *arg, struct span name), void *arg) {
    const struct subscription *n;
    TAILQ_FOREACH(n, &s->own[kind], own) fn(arg, channel_name(n->channel));
}

void channel_clear(struct subscriber *s) {
    for (int kind = 0; kind < CHANNEL_KINDS; kind++)
        while (s->count[kind] > 0) subscription_drop(TAILQ_FIRST(&s->own[kind]));
}

/* --- messages --- */

static size_t channel_tell_all(const struct channel *ch, struct span pattern, channel_fn fn,
                               void *arg) {
    const struct subscription *n;
    TAILQ_FOREACH(n, &ch->subscriptions, link) fn(arg, n->subscriber, pattern);
    return ch->subscribers;
}

size_t channel_publish(enum channel_kind kind, struct span name, channel_fn fn, void *arg) {
    size_t told = 0;
    const struct channel *ch =
        channels[kind].count ? channel_find(kind, name, hash_bytes(name.data, name.len)) : NULL;
    if (ch) told = channel_tell_all(ch, span_of(NULL, 0), fn, arg);
    if (kind != CHANNEL_PLAIN) return told;
    const struct channel *p;
    TAILQ_FOREACH(p, &patterns, link)
        if (glob_match(p->glob, name, NULL)) told += channel_tell_all(p, channel_name(p), fn, arg);
    return told;
}

/* --- what there is --- */

size_t channel_count(enum channel_kind kind) {
    return channels[kind].count;
}

size_t channel_subscribers(enum channel_kind kind, struct span name) {
    const struct channel *ch = channel_find(kind, name, hash_bytes(name.data, name.len));
    return ch ? ch->subscribers : 0;
}

struct channel_scan {
    void (*fn)(void *arg, struct span name);
    void *arg;
};

static void scan_node(void *arg, struct htab_node *node) {
    const struct channel_scan *s = arg;
    s->fn(s->arg, channel_name(CONTAINER_OF(node, const struct channel, node)));
}

uint64_t channel_scan(enum channel_kind kind, uint64_t cursor,
                      void (*fn)(void *arg, struct span name), void *arg) {
    return htab_scan(&channels[kind], cursor, scan_node, &(struct channel_scan){fn, arg});
}
