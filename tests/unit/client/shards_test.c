/* Batches cut apart by slot: any map, any keys. What whole masters do with the parts is in
 * tests/integration/shards_test.py. */
#include "base/assert.h"
#include "base/rng.h"
#include "client/shards.h"

#include "../test.h"

enum { KEYS_MAX = 3000, TRIES = 60 };

static struct rng rng;
static char bytes[KEYS_MAX][12];
static tarn_key keys[KEYS_MAX];
static uint32_t todo[KEYS_MAX];
static uint8_t asks[KEYS_MAX];

/* Runs of slots of random owners; some of nobody, some on their way. */
static struct slot_map *any_map(unsigned shards) {
    struct slot_map *m = calloc(1, sizeof(*m));
    m->shards = shards;
    for (uint32_t slot = 0; slot < SLOT_COUNT;) {
        uint32_t end = slot + 1 + (uint32_t)rng_below(&rng, 700);
        uint8_t owner = (uint8_t)rng_below(&rng, shards), target = SLOT_NOBODY;
        if (rng_below(&rng, 9) == 0) owner = SLOT_NOBODY;
        if (owner != SLOT_NOBODY && shards > 1 && rng_below(&rng, 4) == 0)
            target = (uint8_t)((owner + 1) % shards);
        for (; slot < end && slot < SLOT_COUNT; slot++) {
            m->owner[slot] = owner;
            m->target[slot] = target;
        }
    }
    return m;
}

static size_t any_keys(void) {
    size_t n = rng_below(&rng, KEYS_MAX + 1);
    for (size_t i = 0; i < n; i++) {
        int len = snprintf(bytes[i], sizeof(bytes[i]), "%s%u",
                           rng_below(&rng, 5) == 0 ? "{t}" : "k", (unsigned)rng_below(&rng, 5000));
        keys[i] = (tarn_key){bytes[i], (size_t)len};
        asks[i] = rng_below(&rng, 3) == 0;
        todo[i] = (uint32_t)i;
    }
    return n;
}

/* Where a key goes, said in another way than the code does. */
static unsigned expected(const struct slot_map *m, size_t key, bool ask, bool singles) {
    uint32_t slot = slot_of_key(span_of(keys[key].data, keys[key].len));
    if (ask && m->target[slot] != SLOT_NOBODY) return m->target[slot] * 3u + 2;
    if (m->owner[slot] == SLOT_NOBODY) return SPLIT_NOBODY;
    return m->owner[slot] * 3u + (singles && m->target[slot] != SLOT_NOBODY);
}

static void check_split(const struct slot_map *m, const struct split *s, size_t n, bool asked,
                        bool singles) {
    static uint8_t seen[KEYS_MAX];
    memset(seen, 0, sizeof(seen));
    CHECK_EQ(s->begin[0], 0);
    CHECK_EQ(s->begin[SPLIT_NOBODY + 1], n);
    for (unsigned b = 0; b <= SPLIT_NOBODY; b++) {
        CHECK(s->begin[b] <= s->begin[b + 1]);
        for (uint32_t i = s->begin[b]; i < s->begin[b + 1]; i++) {
            uint32_t key = s->order[i];
            CHECK_EQ(expected(m, key, asked && asks[key], singles), b);
            CHECK(i == s->begin[b] || s->order[i - 1] < key); /* in the caller's order */
            seen[key]++;
        }
    }
    size_t once = 0;
    for (size_t i = 0; i < KEYS_MAX; i++) once += seen[i] == 1;
    CHECK_EQ(once, n);
}

TEST(each_key_goes_once_where_the_map_says_in_order) {
    rng_seed(&rng, 20);
    for (unsigned t = 0; t < TRIES; t++) {
        struct slot_map *m = any_map(1 + (unsigned)rng_below(&rng, t % 2 ? 8 : SLOT_SHARDS_MAX));
        size_t n = any_keys();
        for (unsigned how = 0; how < 4; how++) {
            struct split s;
            bool asked = how & 1, singles = how & 2;
            split_init(&s, m, (struct keys_of){keys, sizeof(*keys)}, NULL, asked ? asks : NULL, n,
                       singles);
            check_split(m, &s, n, asked, singles);
            split_free(&s);
        }
        free(m);
    }
}

TEST(only_some_of_the_keys) {
    rng_seed(&rng, 21);
    struct slot_map *m = any_map(5);
    size_t n = any_keys(), some = 0;
    static uint8_t asks_some[KEYS_MAX];
    for (size_t i = 0; i < n; i += 3) {
        asks_some[some] = asks[i];
        todo[some++] = (uint32_t)i;
    }
    struct split s;
    split_init(&s, m, (struct keys_of){keys, sizeof(*keys)}, todo, asks_some, some, false);
    for (unsigned b = 0; b <= SPLIT_NOBODY; b++) {
        for (uint32_t i = s.begin[b]; i < s.begin[b + 1]; i++) {
            CHECK_EQ(s.order[i] % 3, 0);
            CHECK_EQ(expected(m, s.order[i], asks[s.order[i]], false), b);
        }
    }
    CHECK_EQ(s.begin[SPLIT_NOBODY + 1], some);
    split_free(&s);
    free(m);
}

TEST(a_call_on_one_masters_keys_is_known) {
    struct slot_map *m = calloc(1, sizeof(*m));
    struct split s;
    m->shards = 2;
    memset(m->owner, 1, sizeof(m->owner));
    memset(m->target, SLOT_NOBODY, sizeof(m->target));
    rng_seed(&rng, 22);
    size_t n = any_keys() + 0;
    split_init(&s, m, (struct keys_of){keys, sizeof(*keys)}, NULL, NULL, n, true);
    CHECK_EQ(split_only(&s), split_bucket(1, SPLIT_PLAIN));
    split_free(&s);
    m->owner[slot_of_key(span_of(keys[7].data, keys[7].len))] = 0;
    split_init(&s, m, (struct keys_of){keys, sizeof(*keys)}, NULL, NULL, n, true);
    CHECK_EQ(split_only(&s), SPLIT_NOBODY);
    split_free(&s);
    split_init(&s, m, (struct keys_of){keys, sizeof(*keys)}, NULL, NULL, 0, true);
    CHECK_EQ(split_only(&s), SPLIT_NOBODY);
    split_free(&s);
    free(m);
}

/* Items begin as keys do, and those that cannot be keys are passed on to be refused. */
TEST(items_are_split_as_keys) {
    tarn_item items[] = {{.key = "a", .key_len = 1}, {.key = NULL, .key_len = 9}, {.key_len = 0}};
    struct keys_of of = {items, sizeof(items[0])};
    CHECK_EQ(keys_at(of, 0).len, 1);
    CHECK_EQ(keys_at(of, 1).len, 0);
    CHECK_EQ(keys_at(of, 2).len, 0);
    items[2] = (tarn_item){.key = "a", .key_len = TARN_KEY_MAX + 1};
    CHECK_EQ(keys_at(of, 2).len, TARN_KEY_MAX);
}

TEST_MAIN()
