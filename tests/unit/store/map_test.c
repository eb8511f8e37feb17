/* The map of segments: every byte is in one kind, and the sums are those of the books. */
#include "store/map.h"

#include "util.h"

static struct store_map *made(const struct store *s, unsigned budget, unsigned *steps_p) {
    struct store_map *m = store_map_create(s, MAP_BLOCKS);
    *steps_p = 1;
    while (!store_map_step(m, s, budget)) ++*steps_p;
    return m;
}

static uint64_t map_bytes(const struct store_map *m, enum map_kind kind) {
    uint8_t share[MAP_BUCKETS_MAX];
    uint64_t bytes;
    CHECK(store_map_row(m, 0, 1, kind, share, &bytes) > 0);
    return bytes;
}

TEST(sums_are_those_of_the_books) {
    struct store *s = util_store("lru", 256, NULL, NULL);
    struct store_put_options o = {.replicas = 1};
    uint64_t token;
    unsigned steps;
    for (unsigned i = 0; i < 40; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%u", i);
        CHECK(util_put(s, key, 4096 + i % 3 * 4096) == TARN_OK);
        if (i < 10) CHECK(util_lease(s, key, 7, 5000));
    }
    /* three of those that are leased go, and one that nobody reads */
    static const char *const going[] = {"k0", "k1", "k2", "k20"};
    for (size_t i = 0; i < ARRAY_LEN(going); i++) CHECK(store_remove(s, span_str(going[i])));
    CHECK(util_put_as(s, "open", 100000, &o, 1, &token) == TARN_OK);
    struct store_segment_info info;
    CHECK(store_segment_get(s, 0, &info));
    struct store_map *m = made(s, 8, &steps);
    CHECK(steps > 5); /* slices */
    CHECK(store_map_one_in(m) == 1);
    CHECK(map_bytes(m, MAP_QUARANTINED) == info.quarantined && info.quarantined == 6 * 4096);
    CHECK(map_bytes(m, MAP_WRITTEN) == 25 * 4096);
    CHECK(map_bytes(m, MAP_LEASED) == 13 * 4096); /* k3 to k9 */
    CHECK(map_bytes(m, MAP_USED) + map_bytes(m, MAP_LEASED) + map_bytes(m, MAP_WRITTEN) ==
          info.used);
    CHECK(map_bytes(m, MAP_USED) == info.evictable);
    store_map_destroy(&m);
    CHECK(m == NULL);
    store_destroy(&s);
}

TEST(buckets_show_where) {
    struct store *s = util_store("lru", 1024, NULL, NULL);
    uint8_t share[MAP_BUCKETS_MAX];
    uint64_t bytes;
    unsigned steps;
    CHECK(util_put(s, "a", 512 * 4096) == TARN_OK); /* half of it, across buckets */
    struct store_map *m = made(s, 1000, &steps);
    CHECK(store_map_row(m, 0, 1, MAP_USED, share, &bytes) == MAP_BUCKETS_MAX);
    unsigned full = 0, none = 0;
    for (unsigned i = 0; i < MAP_BUCKETS_MAX; i++) {
        full += share[i] == 255;
        none += share[i] == 0;
    }
    CHECK(full == MAP_BUCKETS_MAX / 2 && none == MAP_BUCKETS_MAX / 2);
    CHECK(bytes == 512 * 4096);
    /* another epoch, another segment: no map */
    CHECK(store_map_row(m, 0, 2, MAP_USED, share, &bytes) == 0);
    CHECK(store_map_row(m, 1, 1, MAP_USED, share, &bytes) == 0);
    store_map_destroy(&m);
    store_destroy(&s);
}

/* Of more blocks than are looked at, one in so many counts for its neighbours. */
TEST(many_blocks_are_estimated) {
    struct store *s = util_store("lru", 4096, NULL, NULL);
    unsigned steps;
    for (unsigned i = 0; i < 3000; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%u", i);
        CHECK(util_put(s, key, 4096) == TARN_OK);
    }
    struct store_map *m = store_map_create(s, 700);
    for (steps = 1; !store_map_step(m, s, 100); steps++) CHECK(steps < 100);
    CHECK_EQ(store_map_one_in(m), 5);
    CHECK(steps >= 6); /* 600 of them were looked at */
    uint64_t bytes = map_bytes(m, MAP_USED), all = 3000 * 4096;
    CHECK(bytes > all - all / 20 && bytes < all + all / 20);
    CHECK_EQ(map_bytes(m, MAP_WRITTEN), 0);
    store_map_destroy(&m);
    store_destroy(&s);
}

/* A segment comes, another goes, and objects come and go between the slices. */
TEST(books_that_change_meanwhile) {
    struct store *s = util_store("lru", 64, NULL, NULL);
    uint32_t id;
    struct store_segment_config more = {.name = "s1", .epoch = 1, .size = 64 * 4096};
    CHECK(store_segment_add(s, &more, &id) == TARN_OK);
    struct store_map *m = store_map_create(s, MAP_BLOCKS);
    for (unsigned i = 0; !store_map_step(m, s, 1); i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%u", i);
        CHECK(util_put(s, key, 8192) == TARN_OK);
        if (i == 3) store_segment_set_state(s, id, SEGMENT_LEAVING);
        if (i == 5) {
            more.name = "s2";
            more.epoch = 9;
            CHECK(store_segment_add(s, &more, &id) == TARN_OK);
        }
        util_tick(s, 1);
        CHECK(i < 10000);
    }
    uint8_t share[MAP_BUCKETS_MAX];
    uint64_t bytes, sum = 0;
    for (int kind = 0; kind < MAP_KINDS; kind++) {
        CHECK(store_map_row(m, 0, 1, (enum map_kind)kind, share, &bytes) > 0);
        sum += bytes;
    }
    CHECK(sum <= 64 * 4096);
    store_map_destroy(&m);
    store_destroy(&s);
}

TEST_MAIN()
