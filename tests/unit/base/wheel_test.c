#include "base/wheel.h"

#include <stdlib.h>

#include "../test.h"
#include "base/buf.h"
#include "base/rng.h"

#define YEAR_MS (UINT64_C(365) * 24 * 3600 * 1000)

static struct wheel_node *pop(struct wheel *w, uint64_t now) {
    unsigned budget = 1000000000;
    bool more;
    struct wheel_node *n = wheel_pop(w, now, &budget, &more);
    CHECK(!more);
    return n;
}

TEST(wheel_fires_on_the_millisecond) {
    static const uint64_t dues[] = {1,        2,        63,       64,      65,
                                    127,      2047,     2048,     2049,    65535,
                                    65536,    100000,   2097151,  2097152, 67108863,
                                    67108864, 67108865, 1u << 31, YEAR_MS, 5 * YEAR_MS};
    for (uint64_t start = 0; start < 3000; start += 61) {
        for (size_t i = 0; i < sizeof(dues) / sizeof(dues[0]); i++) {
            struct wheel *w = wheel_create(start);
            struct wheel_node n = {0};
            uint64_t due = start + dues[i];
            wheel_set(w, &n, due);
            CHECK(wheel_pending(&n));
            CHECK(pop(w, start) == NULL);
            CHECK(pop(w, due - 1) == NULL);
            CHECK(wheel_next_ms(w, due - 1, 1000) <= 1);
            CHECK(pop(w, due) == &n);
            CHECK(!wheel_pending(&n));
            CHECK_EQ(wheel_count(w), 0);
            wheel_destroy(&w);
            CHECK(w == NULL);
        }
    }
}

TEST(wheel_past_dues_fire_at_once) {
    struct wheel *w = wheel_create(1000);
    struct wheel_node a = {0}, b = {0};
    wheel_set(w, &a, 5);
    wheel_set(w, &b, 1000);
    CHECK_EQ(wheel_next_ms(w, 1000, 50), 0);
    CHECK(pop(w, 1000) != NULL && pop(w, 1000) != NULL && pop(w, 1000) == NULL);
    wheel_destroy(&w);
    wheel_destroy(&w);
}

TEST(wheel_next_is_a_lower_bound) {
    struct wheel *w = wheel_create(12345);
    struct wheel_node a = {0};
    CHECK_EQ(wheel_next_ms(w, 12345, 777), 777);
    wheel_set(w, &a, 12345 + 40);
    CHECK_EQ(wheel_next_ms(w, 12345, 777), 40);
    CHECK_EQ(wheel_next_ms(w, 12345 + 100, 777), 0);
    wheel_set(w, &a, 12345 + 100000);
    CHECK_EQ(wheel_next_ms(w, 12345, 777), 777);
    CHECK(wheel_next_ms(w, 12345, UINT64_MAX) <= 100000);
    wheel_remove(w, &a);
    wheel_remove(w, &a);
    CHECK_EQ(wheel_next_ms(w, 12345, 777), 777);
    wheel_destroy(&w);
}

TEST(wheel_takes_the_end_of_time) {
    struct wheel *w = wheel_create(0);
    struct wheel_node a = {0};
    wheel_set(w, &a, UINT64_MAX);
    CHECK(pop(w, 200 * YEAR_MS) == NULL);
    CHECK_EQ(wheel_count(w), 1);
    wheel_remove(w, &a);
    wheel_destroy(&w);
}

TEST(wheel_keeps_to_its_budget) {
    enum { N = 10000 };
    struct wheel *w = wheel_create(0);
    struct wheel_node *nodes = xcalloc(N, sizeof(*nodes));
    /* all cascade together, four times */
    for (int i = 0; i < N; i++) wheel_set(w, &nodes[i], 100000);
    unsigned calls = 0, fired = 0;
    bool more = true;
    while (more || fired < N) {
        unsigned budget = 100;
        CHECK(++calls < 2000);
        if (wheel_pop(w, 100000, &budget, &more) != NULL) fired++;
        if (more) CHECK_EQ(budget, 0u);
        if (more) CHECK_EQ(wheel_next_ms(w, 100000, 1000), 0);
        while (wheel_pop(w, 100000, &budget, &more) != NULL) fired++;
    }
    CHECK(calls > N / 100);
    CHECK_EQ(fired, (unsigned)N);
    free(nodes);
    wheel_destroy(&w);
}

TEST(wheel_cascading_nodes_may_move_and_go) {
    struct wheel *w = wheel_create(0);
    struct wheel_node n[3] = {0};
    for (int i = 0; i < 3; i++) wheel_set(w, &n[i], 64 + (uint64_t)i);
    unsigned budget = 1;
    bool more;
    /* the slot was taken over, nothing placed yet */
    CHECK(wheel_pop(w, 64, &budget, &more) == NULL && more);
    wheel_remove(w, &n[0]);
    wheel_set(w, &n[1], 1000);
    CHECK(pop(w, 66) == &n[2]);
    CHECK(pop(w, 999) == NULL);
    CHECK(pop(w, 1000) == &n[1]);
    CHECK_EQ(wheel_count(w), 0);
    wheel_destroy(&w);
}

TEST(wheel_follows_a_clock_that_steps_back) {
    struct wheel *w = wheel_create(5000000);
    struct wheel_node a = {0}, b = {0}, c = {0};
    wheel_set(w, &a, 5000500);
    wheel_set(w, &b, 4500000); /* due */
    CHECK(pop(w, 4000000) == NULL);
    wheel_set(w, &c, 4000010);
    CHECK_EQ(wheel_next_ms(w, 4000000, 1000), 10);
    CHECK(pop(w, 4000009) == NULL);
    CHECK(pop(w, 4000010) == &c);
    CHECK(pop(w, 4499999) == NULL);
    CHECK(pop(w, 4500000) == &b);
    CHECK(pop(w, 5000499) == NULL);
    CHECK(pop(w, 5000500) == &a);
    wheel_set(w, &a, 5000450); /* a step of 100 ms only: late perhaps, early never */
    CHECK(pop(w, 5000400) == NULL);
    CHECK_EQ(wheel_next_ms(w, 5000400, 1000), 50);
    CHECK(pop(w, 5000450) == &a);
    wheel_destroy(&w);
}

/* Against the plainest model there is: an array of dues. */
TEST(wheel_agrees_with_a_list) {
    enum { N = 300 };
    struct wheel_node nodes[N];
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct rng r;
        rng_seed(&r, seed);
        uint64_t now = rng_next(&r) >> (20 + rng_below(&r, 44));
        struct wheel *w = wheel_create(now);
        memset(nodes, 0, sizeof(nodes));
        uint64_t due[N] = {0};
        bool in[N] = {false};
        for (int step = 0; step < 4000; step++) {
            size_t i = rng_below(&r, N);
            uint64_t far = rng_next(&r) >> (64 - rng_below(&r, seed % 2 ? 12 : 40) - 1);
            switch (rng_below(&r, 4)) {
            case 0:
            case 1:
                due[i] = rng_below(&r, 10) ? now + far : now - rng_below(&r, now + 1);
                in[i] = true;
                wheel_set(w, &nodes[i], due[i]);
                break;
            case 2:
                in[i] = false;
                wheel_remove(w, &nodes[i]);
                break;
            default: {
                now += rng_below(&r, 3) ? rng_below(&r, 200) : far / 4;
                uint64_t first = UINT64_MAX;
                bool more = true;
                struct wheel_node *n;
                while (more) {
                    unsigned budget = 1 + (unsigned)rng_below(&r, 20);
                    while ((n = wheel_pop(w, now, &budget, &more)) != NULL) {
                        size_t k = (size_t)(n - nodes);
                        CHECK(k < N && in[k] && due[k] <= now);
                        in[k] = false;
                    }
                }
                for (size_t k = 0; k < N; k++) {
                    if (!in[k]) continue;
                    CHECK(due[k] > now);
                    if (due[k] < first) first = due[k];
                }
                CHECK(first == UINT64_MAX || wheel_next_ms(w, now, UINT64_MAX) <= first - now);
                CHECK(first == UINT64_MAX || wheel_next_ms(w, now, UINT64_MAX) > 0);
            }
            }
            size_t count = 0;
            for (size_t k = 0; k < N; k++) {
                count += in[k];
                CHECK_EQ(wheel_pending(&nodes[k]), in[k]);
            }
            CHECK_EQ(wheel_count(w), count);
        }
        wheel_destroy(&w);
    }
}

TEST(wheel_catches_up_with_a_long_sleep_in_few_steps) {
    struct wheel *w = wheel_create(1);
    struct wheel_node a = {0};
    wheel_set(w, &a, 3 * YEAR_MS);
    unsigned budget = 3000; /* a year has 470 turns of the last level */
    bool more;
    CHECK(wheel_pop(w, 3 * YEAR_MS, &budget, &more) == &a);
    wheel_destroy(&w);
}

TEST_MAIN()
