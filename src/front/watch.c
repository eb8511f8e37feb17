#include "front/watch.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/htab.h"

/* A key that somebody watches; lives as long as one does. */
struct watched {
    struct htab_node node;
    LIST_HEAD(, watch) watches;
    size_t len;
    char key[];
};

/*       key A      key B
 *   w1    o ──────── o        a client's watches, by own
 *         │
 *   w2    o                   a key's watches, by peer */
struct watch {
    struct watched *watched;
    LIST_ENTRY(watch) own, peer;
    struct watcher *watcher;
    struct htab_node by_pair; /* the same watcher and the same key */
    uint64_t version;
};

static struct htab keys, pairs; /* of struct watched, struct watch */
size_t watch_count;

static bool watched_is(const struct htab_node *node, const void *key) {
    const struct watched *k = CONTAINER_OF(node, const struct watched, node);
    return span_eq(span_of(k->key, k->len), *(const struct span *)key);
}

static struct watched *watched_find(struct span key, uint64_t hash) {
    struct htab_node *node = htab_find(&keys, hash, watched_is, &key);
    return node ? CONTAINER_OF(node, struct watched, node) : NULL;
}

struct watch_pair {
    const struct watched *watched;
    const struct watcher *watcher;
};

static bool watch_is(const struct htab_node *node, const void *arg) {
    const struct watch *w = CONTAINER_OF(node, const struct watch, by_pair);
    const struct watch_pair *p = arg;
    return w->watched == p->watched && w->watcher == p->watcher;
}

enum watch_result watch_add(struct watcher *w, struct span key, uint64_t version) {
    uint64_t hash = hash_bytes(key.data, key.len), both = hash ^ hash_u64((uintptr_t)w);
    struct watched *k = watched_find(key, hash);
    if (k && htab_find(&pairs, both, watch_is, &(struct watch_pair){k, w})) return WATCH_KNOWN;
    if (w->count == WATCHES_MAX) return WATCH_FULL;
    if (!k) {
        k = xmalloc(sizeof(*k) + key.len);
        LIST_INIT(&k->watches);
        k->len = key.len;
        if (key.len) memcpy(k->key, key.data, key.len);
        htab_insert(&keys, &k->node, hash);
    }
    struct watch *n = xmalloc(sizeof(*n));
    *n = (struct watch){.watched = k, .watcher = w, .version = version};
    LIST_INSERT_HEAD(&k->watches, n, peer);
    LIST_INSERT_HEAD(&w->watches, n, own);
    htab_insert(&pairs, &n->by_pair, both);
    w->count++;
    w->bytes += sizeof(*n) + sizeof(*k) + key.len;
    watch_count++;
    return WATCH_ADDED;
}

static void watch_forget(struct watch *n) {
    struct watched *k = n->watched;
    struct watcher *w = n->watcher;
    w->count--;
    w->bytes -= sizeof(*n) + sizeof(*k) + k->len;
    LIST_REMOVE(n, own);
    LIST_REMOVE(n, peer);
    htab_remove(&pairs, &n->by_pair);
    if (LIST_EMPTY(&k->watches)) {
        htab_remove(&keys, &k->node);
        free(k);
    }
    free(n);
    if (--watch_count > 0) return;
    htab_free(&keys);
    htab_free(&pairs);
}

void watch_clear(struct watcher *w) {
    while (!LIST_EMPTY(&w->watches)) watch_forget(LIST_FIRST(&w->watches));
    w->touched = false;
}

bool watch_differs(const struct watcher *w, uint64_t (*fn)(struct span key)) {
    const struct watch *n;
    LIST_FOREACH(n, &w->watches, own)
        if (fn(span_of(n->watched->key, n->watched->len)) != n->version) return true;
    return false;
}

void watch_touch_key(struct span key, bool gone) {
    struct watched *k = watched_find(key, hash_bytes(key.data, key.len));
    for (struct watch *n = k ? LIST_FIRST(&k->watches) : NULL, *next; n; n = next) {
        next = LIST_NEXT(n, peer); /* the last one takes k along */
        if (n->watcher->tell) {
            n->watcher->tell(n->watcher, key);
            watch_forget(n);
        } else if (!gone) {
            n->watcher->touched = true;
        }
    }
}
