#include "base/htab.h"

#include <stdlib.h>

#include "../test.h"
#include "base/buf.h"
#include "base/rng.h"

struct item {
    struct htab_node node;
    uint64_t key;
    unsigned seen;
    bool in, stays;
};

static bool key_eq(const struct htab_node *node, const void *key) {
    return ((const struct item *)(const void *)node)->key == *(const uint64_t *)key;
}

static struct item *find(struct htab *t, uint64_t key) {
    return (struct item *)(void *)htab_find(t, hash_u64(key), key_eq, &key);
}

static void put(struct htab *t, struct item *i) {
    htab_insert(t, &i->node, hash_u64(i->key));
    i->in = true;
}

static void take(struct htab *t, struct item *i) {
    htab_remove(t, &i->node);
    i->in = false;
}

static void note(void *arg, struct htab_node *node) {
    ((struct item *)(void *)node)->seen++;
    if (arg != NULL) ++*(size_t *)arg;
}

TEST(htab_empty) {
    struct htab t = {0};
    CHECK(find(&t, 1) == NULL);
    CHECK_EQ(htab_scan(&t, 0, note, NULL), 0);
    CHECK_EQ(htab_memory(&t), 0);
    htab_free(&t);
}

TEST(htab_finds_what_was_put) {
    enum { N = 100000 };
    struct htab t = {0};
    struct item *items = xcalloc(N, sizeof(*items));
    for (uint64_t i = 0; i < N; i++) {
        items[i].key = i * i;
        put(&t, &items[i]);
        if (i % 1000 == 0) {
            for (uint64_t k = 0; k <= i; k++) CHECK(find(&t, k * k) == &items[k]);
        }
    }
    CHECK_EQ(t.count, (size_t)N);
    CHECK(t.buckets >= N);
    CHECK(htab_memory(&t) < N * 16);
    CHECK(find(&t, 2) == NULL);
    for (uint64_t i = 0; i < N; i++) {
        take(&t, &items[i]);
        CHECK(find(&t, i * i) == NULL);
        CHECK(i + 1 == N || find(&t, (N - 1) * (uint64_t)(N - 1)) != NULL);
        CHECK(t.buckets <= 16 || t.count >= t.buckets / 4);
    }
    CHECK(htab_memory(&t) < 1024);
    htab_free(&t);
    free(items);
}

TEST(htab_equal_hashes_are_told_apart) {
    struct htab t = {0};
    struct item items[50] = {0};
    for (uint64_t i = 0; i < 50; i++) {
        items[i].key = i;
        htab_insert(&t, &items[i].node, 42);
    }
    for (uint64_t i = 0; i < 50; i++) CHECK(htab_find(&t, 42, key_eq, &i) == &items[i].node);
    for (uint64_t i = 0; i < 50; i += 2) htab_remove(&t, &items[i].node);
    for (uint64_t i = 0; i < 50; i++)
        CHECK((htab_find(&t, 42, key_eq, &i) != NULL) == (i % 2 == 1));
    htab_free(&t);
}

TEST(htab_random_puts_and_takes) {
    enum { N = 20000 };
    struct htab t = {0};
    struct rng r;
    struct item *items = xcalloc(N, sizeof(*items));
    for (uint64_t i = 0; i < N; i++) items[i].key = i;
    rng_seed(&r, 9);
    size_t count = 0;
    for (int step = 0; step < 400000; step++) {
        struct item *i = &items[rng_below(&r, N)];
        bool grow = step / 50000 % 2 == 0;
        CHECK_EQ(find(&t, i->key) != NULL, i->in);
        if (!i->in && (grow || rng_below(&r, 20) == 0)) {
            put(&t, i);
            count++;
        } else if (i->in && (!grow || rng_below(&r, 20) == 0)) {
            take(&t, i);
            count--;
        }
        CHECK_EQ(t.count, count);
        CHECK(t.count <= t.buckets);
    }
    htab_free(&t);
    free(items);
}

TEST(htab_scan_of_a_still_table_sees_each_once) {
    for (size_t n = 1; n < 20000; n = n * 3 + 1) {
        struct htab t = {0};
        struct item *items = xcalloc(n, sizeof(*items));
        for (size_t i = 0; i < n; i++) {
            items[i].key = i;
            put(&t, &items[i]);
        }
        uint64_t cursor = 0;
        size_t calls = 0;
        do {
            cursor = htab_scan(&t, cursor, note, NULL);
            calls++;
        } while (cursor != 0);
        CHECK_EQ(calls, t.buckets);
        for (size_t i = 0; i < n; i++) CHECK_EQ(items[i].seen, 1u);
        htab_free(&t);
        free(items);
    }
}

/* What stays during the whole walk is seen, whatever comes and goes meanwhile. */
TEST(htab_scan_guarantee_while_growing_and_shrinking) {
    enum { N = 12000 };
    struct item *items = xcalloc(N, sizeof(*items));
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct htab t = {0};
        struct rng r;
        rng_seed(&r, seed);
        memset(items, 0, N * sizeof(*items));
        size_t staying = 1 + rng_below(&r, 500), at_start = rng_below(&r, N);
        for (uint64_t i = 0; i < N; i++) {
            items[i].key = i;
            items[i].stays = i < staying;
            if (i < staying || i < at_start) put(&t, &items[i]);
        }
        uint64_t cursor = 0, per_call = 1 + rng_below(&r, 40), calls = 0;
        bool growing = rng_below(&r, 2), turns = rng_below(&r, 2);
        do {
            cursor = htab_scan(&t, cursor, note, NULL);
            CHECK(++calls < 100000);
            if (turns && rng_below(&r, 300) == 0) growing = !growing;
            for (uint64_t k = 0; k < per_call; k++) {
                struct item *i = &items[staying + rng_below(&r, N - staying)];
                if (growing && !i->in) put(&t, i);
                if (!growing && i->in) take(&t, i);
            }
        } while (cursor != 0);
        for (size_t i = 0; i < staying; i++) CHECK(items[i].seen > 0);
        htab_free(&t);
    }
    free(items);
}

static struct htab *walked;
static void take_it(void *arg, struct htab_node *node) {
    ++*(size_t *)arg;
    take(walked, (struct item *)(void *)node);
}

TEST(htab_scan_may_take_what_it_sees) {
    enum { N = 50000 };
    struct htab t = {0};
    struct item *items = xcalloc(N, sizeof(*items));
    for (uint64_t i = 0; i < N; i++) {
        items[i].key = i;
        put(&t, &items[i]);
    }
    size_t taken = 0;
    uint64_t cursor = 0;
    walked = &t;
    do cursor = htab_scan(&t, cursor, take_it, &taken);
    while (cursor != 0);
    CHECK_EQ(taken, (size_t)N);
    CHECK_EQ(t.count, 0);
    htab_free(&t);
    free(items);
}

TEST(htab_grows_over_segments_and_back) {
    enum { N = 600000 };
    struct htab t = {0};
    struct item *items = xcalloc(N, sizeof(*items));
    for (int turn = 0; turn < 2; turn++) {
        for (uint64_t i = 0; i < N; i++) {
            items[i].key = i;
            put(&t, &items[i]);
        }
        for (uint64_t i = 0; i < N; i += 37) CHECK(find(&t, i) == &items[i]);
        for (uint64_t i = 0; i < N; i++) take(&t, &items[i]);
        CHECK(htab_memory(&t) < 2048);
    }
    htab_free(&t);
    free(items);
}

TEST(hashes_spread) {
    unsigned low[16] = {0};
    for (uint64_t i = 0; i < 16000; i++) low[hash_u64(i) & 15]++;
    for (int i = 0; i < 16; i++) CHECK(low[i] > 800 && low[i] < 1200);
    CHECK(hash_bytes("a", 1) != hash_bytes("b", 1));
    CHECK(hash_bytes("a", 1) == hash_bytes("a", 1));
}

TEST_MAIN()
