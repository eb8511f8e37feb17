#include "front/waiters.h"

#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include "base/assert.h"
#include "base/htab.h"

/* A key that someone waits for; lives as long as there is one. */
struct awaited {
    struct htab_node node;
    LIST_HEAD(, waiter) waiters;
    size_t len;
    char key[];
};

struct waiter {
    struct awaited *awaited;
    LIST_ENTRY(waiter) link;
    struct job *job;
};

static struct htab table; /* of struct awaited */
static size_t waiting;

static bool awaited_is(const struct htab_node *node, const void *key) {
    const struct awaited *a = CONTAINER_OF(node, const struct awaited, node);
    return span_eq(span_of(a->key, a->len), *(const struct span *)key);
}

static struct awaited *awaited_find(struct span key, uint64_t hash) {
    struct htab_node *node = htab_find(&table, hash, awaited_is, &key);
    return node ? CONTAINER_OF(node, struct awaited, node) : NULL;
}

struct waiter *waiter_add(struct job *job, struct span key) {
    uint64_t hash = hash_bytes(key.data, key.len);
    struct awaited *a = awaited_find(key, hash);
    if (!a) {
        a = xmalloc(sizeof(*a) + key.len);
        LIST_INIT(&a->waiters);
        a->len = key.len;
        memcpy(a->key, key.data, key.len);
        htab_insert(&table, &a->node, hash);
    }
    struct waiter *w = xmalloc(sizeof(*w));
    *w = (struct waiter){.awaited = a, .job = job};
    LIST_INSERT_HEAD(&a->waiters, w, link);
    waiting++;
    return w;
}

void waiter_remove(struct waiter **waiter_p) {
    struct waiter *w = *waiter_p;
    if (!w) return;
    struct awaited *a = w->awaited;
    LIST_REMOVE(w, link);
    if (LIST_EMPTY(&a->waiters)) {
        htab_remove(&table, &a->node);
        free(a);
    }
    free(w);
    waiting--;
    *waiter_p = NULL;
}

/* Runs inside the books: waking only marks a job, which looks again in its own turn. */
void waiters_notify(void *arg, struct span key) {
    if (waiting == 0) return;
    struct awaited *a = awaited_find(key, hash_bytes(key.data, key.len));
    if (!a) return;
    struct waiter *w;
    LIST_FOREACH(w, &a->waiters, link) job_wake(w->job);
}

static void wake_key(void *arg, struct htab_node *node) {
    const struct awaited *a = CONTAINER_OF(node, const struct awaited, node);
    struct waiter *w;
    LIST_FOREACH(w, &a->waiters, link) job_wake(w->job);
}

void waiters_wake_all(void) {
    if (waiting > 0) htab_each(&table, wake_key, NULL);
}

size_t waiters_count(void) {
    return waiting;
}
