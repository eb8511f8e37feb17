#include "base/rng.h"

#include "../test.h"

TEST(rng_same_seed_same_numbers) {
    struct rng a, b, c;
    rng_seed(&a, 1);
    rng_seed(&b, 1);
    rng_seed(&c, 2);
    unsigned same = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t v = rng_next(&a);
        CHECK_EQ(rng_next(&b), v);
        same += rng_next(&c) == v;
    }
    CHECK_EQ(same, 0u);
}

TEST(rng_first_numbers_of_xoshiro256starstar) {
    /* From the recurrence by hand, state {1, 2, 3, 4}. */
    struct rng r = {{1, 2, 3, 4}};
    CHECK_EQ(rng_next(&r), 11520u);
    CHECK_EQ(rng_next(&r), 0u);
    CHECK_EQ(rng_next(&r), 1509978240u);
}

TEST(rng_below_is_uniform_and_below) {
    struct rng r;
    rng_seed(&r, 3);
    unsigned seen[7] = {0};
    for (int i = 0; i < 70000; i++) {
        uint64_t v = rng_below(&r, 7);
        CHECK(v < 7);
        seen[v]++;
    }
    for (int i = 0; i < 7; i++) CHECK(seen[i] > 9500 && seen[i] < 10500);
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(rng_below(&r, 1), 0u);
        CHECK(rng_below(&r, (1ull << 63) + 1) <= 1ull << 63);
    }
}

TEST_MAIN()
