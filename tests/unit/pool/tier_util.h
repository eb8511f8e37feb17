/* What the tests of tiers share: a directory of their own, values that can be told from one
 * another, calls that wait. TIER_KIND says which tier: "ssd". */
#ifndef TARN_TESTS_POOL_TIER_UTIL_H
#define TARN_TESTS_POOL_TIER_UTIL_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../test.h"
#include "base/assert.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/rng.h"
#include "pool/tier.h"

#define UNUSED __attribute__((unused))
#define MIB    (1ull << 20)

/* Sanitizers are slow; what counts is counted down there. */
#ifdef TARN_SANITIZER
#define ROUNDS(n) ((n) / 5 + 1)
#else
#define ROUNDS(n) (n)
#endif

static char test_dir[256];

UNUSED static void remove_tree(const char *path) {
    char command[600];
    snprintf(command, sizeof(command), "rm -rf '%s'", path);
    if (system(command) != 0) fprintf(stderr, "%s is left behind\n", path);
}

static void remove_test_dir(void) {
    if (test_dir[0] != '\0') remove_tree(test_dir);
    test_dir[0] = '\0';
}

/* A fresh directory; that of the test before is gone. */
UNUSED static const char *fresh_dir(void) {
    static pid_t owner;
    log_set_level(getenv("TEST_LOG") != NULL ? LOG_LEVEL_DEBUG : LOG_LEVEL_NOTHING);
    if (owner == 0) atexit(remove_test_dir);
    owner = getpid();
    remove_test_dir();
    const char *tmp = getenv("TMPDIR");
    snprintf(test_dir, sizeof(test_dir), "%s/tier-XXXXXX", tmp != NULL ? tmp : "/tmp");
    CHECK(mkdtemp(test_dir) != NULL);
    return test_dir;
}

UNUSED static struct tier *open_tier(const struct tier_config *c) {
    struct tier *t = NULL;
    const char *why = "";
    tarn_status s = tier_open(TIER_KIND, c, &t, &why);
    if (s != TARN_OK) fprintf(stderr, "%s\n", why);
    CHECK_EQ(s, TARN_OK);
    return t;
}

UNUSED static struct tier *reopen(struct tier *t, const struct tier_config *c) {
    tier_close(&t);
    return open_tier(c);
}

/* --- values --- */

/* Every value follows from its key and version. */
UNUSED static void fill_value(char *to, uint64_t size, uint64_t id, uint64_t version) {
    struct rng r;
    rng_seed(&r, id * 1000003 + version);
    for (uint64_t at = 0; at < size; at += 8) {
        uint64_t v = rng_next(&r);
        memcpy(to + at, &v, size - at < 8 ? size - at : 8);
    }
}
UNUSED static char *make_value(uint64_t size, uint64_t id, uint64_t version) {
    char *v = xmalloc(size + 1);
    fill_value(v, size, id, version);
    return v;
}
UNUSED static void make_key(char key[64], uint64_t id) {
    snprintf(key, 64, "key-%llu", (unsigned long long)id);
}
UNUSED static uint64_t key_id(struct span key) {
    char text[64] = "";
    memcpy(text, key.data, key.len < 63 ? key.len : 63);
    return strtoull(text + 4, NULL, 10);
}

/* --- calls that wait --- */

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    unsigned waiting;
    tarn_status status; /* the last that was not TARN_OK */
    uint64_t offset;
};
UNUSED static void waiter_init(struct waiter *w) {
    *w = (struct waiter){.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
}
UNUSED static void waiter_add(struct waiter *w) {
    pthread_mutex_lock(&w->lock);
    w->waiting++;
    pthread_mutex_unlock(&w->lock);
}
UNUSED static void on_put(void *arg, tarn_status status, uint64_t offset) {
    struct waiter *w = arg;
    pthread_mutex_lock(&w->lock);
    if (status != TARN_OK) w->status = status;
    w->offset = offset;
    w->waiting--;
    pthread_cond_broadcast(&w->cond);
    pthread_mutex_unlock(&w->lock);
}
UNUSED static void on_read(void *arg, tarn_status status) {
    on_put(arg, status, 0);
}
UNUSED static tarn_status waiter_wait(struct waiter *w) {
    pthread_mutex_lock(&w->lock);
    while (w->waiting > 0) pthread_cond_wait(&w->cond, &w->lock);
    pthread_mutex_unlock(&w->lock);
    return w->status;
}

static uint32_t util_prompt; /* of what is put */

UNUSED static tarn_status put_start(struct tier *t, uint64_t id, uint64_t version, uint64_t size,
                                    struct waiter *w) {
    char key[64], *value = make_value(size, id, version);
    make_key(key, id);
    struct tier_item item = {.key = span_str(key),
                             .version = version,
                             .size = size,
                             .crc = crc32c(0, value, size),
                             .prompt = util_prompt};
    /* In pieces, as values lie in extents. */
    uint64_t cut = size / 3;
    struct iovec iov[] = {{value, cut}, {value + cut, size - cut}};
    waiter_add(w);
    tarn_status s = tier_put(t, &item, true, iov, 2, on_put, w);
    if (s != TARN_OK) {
        pthread_mutex_lock(&w->lock);
        w->waiting--;
        pthread_mutex_unlock(&w->lock);
    } else if (size > tier_get_info(t)->copy_max) {
        waiter_wait(w); /* the bytes are read until then */
    }
    free(value);
    return s;
}

/* Puts and waits. TARN_EAGAIN is the caller's to deal with. */
UNUSED static tarn_status put(struct tier *t, uint64_t id, uint64_t version, uint64_t size,
                              uint64_t *offset_p) {
    struct waiter w;
    waiter_init(&w);
    tarn_status s = put_start(t, id, version, size, &w);
    if (s == TARN_OK) s = waiter_wait(&w);
    if (s == TARN_OK && offset_p != NULL) *offset_p = w.offset;
    return s;
}

UNUSED static tarn_status read_range(struct tier *t, uint64_t offset, uint64_t length, void *to) {
    struct waiter w;
    waiter_init(&w);
    w.waiting = 1;
    tarn_status s = tier_read(t, offset, length, to, on_read, &w);
    return s == TARN_OK ? waiter_wait(&w) : s;
}

/* Is this value there, byte for byte? */
UNUSED static bool holds(struct tier *t, uint64_t offset, uint64_t id, uint64_t version,
                         uint64_t size) {
    char *value = make_value(size, id, version), *got = xmalloc(size + 1);
    bool same = read_range(t, offset, size, got) == TARN_OK && memcmp(value, got, size) == 0;
    free(value);
    free(got);
    return same;
}

/* --- what is there --- */

struct listed {
    uint64_t id, version, size, offset;
    uint32_t crc;
    size_t n_crcs;
    uint32_t crcs_crc; /* of the checksums */
};
struct list {
    struct listed *items;
    size_t n, cap;
};
UNUSED static void list_add(void *arg, const struct tier_item *item) {
    struct list *l = arg;
    if (l->n == l->cap) {
        l->cap = l->cap == 0 ? 64 : 2 * l->cap;
        l->items = xrealloc(l->items, l->cap * sizeof(*l->items));
    }
    l->items[l->n++] = (struct listed){key_id(item->key),
                                       item->version,
                                       item->size,
                                       item->offset,
                                       item->crc,
                                       item->n_crcs,
                                       crc32c(0, item->crcs != NULL ? (const char *)item->crcs : "",
                                              item->n_crcs * sizeof(uint32_t))};
}
UNUSED static struct list list_tier(struct tier *t) {
    struct list l = {0};
    tier_each(t, list_add, &l);
    return l;
}
UNUSED static const struct listed *list_find(const struct list *l, uint64_t id) {
    for (size_t i = 0; i < l->n; i++) {
        if (l->items[i].id == id) return &l->items[i];
    }
    return NULL;
}

/* How many entries of the list cannot be read back as what they were. */
UNUSED static size_t count_wrong(struct tier *t, const struct list *l) {
    size_t wrong = 0;
    for (size_t i = 0; i < l->n; i++) {
        const struct listed *e = &l->items[i];
        wrong += !holds(t, e->offset, e->id, e->version, e->size);
    }
    return wrong;
}

/* Hands back all tickets there are; how many entries went. */
UNUSED static size_t evict_all(struct tier *t, struct list *l) {
    uint64_t ticket;
    size_t before = l->n;
    while ((ticket = tier_poll_evict(t, list_add, l)) != 0) tier_evicted(t, ticket);
    return l->n - before;
}

/* A put that evicts until there is room. */
UNUSED static tarn_status put_evicting(struct tier *t, uint64_t id, uint64_t version, uint64_t size,
                                       uint64_t *offset_p, struct list *evicted) {
    for (;;) {
        tarn_status s = put(t, id, version, size, offset_p);
        if (s != TARN_EAGAIN) return s;
        if (evict_all(t, evicted) == 0) usleep(1000);
    }
}

/* Values of that size, numbered from `from` on, until the disk is full; how many. */
UNUSED static size_t fill(struct tier *t, uint64_t from, uint64_t size) {
    size_t n = 0;
    struct waiter w;
    waiter_init(&w);
    for (;;) {
        if (put_start(t, from + n, 1, size, &w) == TARN_OK) {
            n++;
            continue;
        }
        pthread_mutex_lock(&w.lock);
        bool idle = w.waiting == 0;
        pthread_mutex_unlock(&w.lock);
        CHECK_EQ(waiter_wait(&w), TARN_OK);
        if (idle) return n;
    }
}

/* The same with eviction, for n values. */
UNUSED static void churn(struct tier *t, uint64_t from, size_t n, uint64_t size,
                         struct list *evicted) {
    struct waiter w;
    waiter_init(&w);
    for (size_t i = 0; i < n; i++) {
        while (put_start(t, from + i, 1, size, &w) != TARN_OK) {
            CHECK_EQ(waiter_wait(&w), TARN_OK);
            if (evict_all(t, evicted) == 0) usleep(500);
        }
    }
    CHECK_EQ(waiter_wait(&w), TARN_OK);
}

#endif
