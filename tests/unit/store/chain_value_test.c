/* What the chain policy learns: values by age, against curves worked out by hand. */
#include "../test.h"

#include <math.h>
#include "store/chain_value.h"

static struct chain_value v;

static struct chain_traits traits(enum chain_kind kind) {
    return (struct chain_traits){.kind = (uint8_t)kind, .turn = 1};
}

/* n runs of a kind, of which every other one is used at that age. */
static void teach(enum chain_kind kind, unsigned n, uint32_t age) {
    struct chain_traits t = traits(kind);
    for (unsigned i = 0; i < n; i++) {
        chain_exposed(&v, &t, 1, 0, i % 2 ? age : 100 * age);
        if (i % 2) chain_returned(&v, &t, 1, age);
        if (i % 50 == 49) chain_value_fit(&v);
    }
}

static float worth(enum chain_kind kind, uint32_t age) {
    struct chain_traits t = traits(kind);
    unsigned bin = chain_age_bin(&v, age);
    return chain_worth(&v, kind, chain_level(&v, &t, bin), bin);
}

TEST(ages_are_in_bins_three_in_an_octave) {
    chain_value_init(&v);
    CHECK_EQ(v.start[0], 0u);
    for (unsigned b = 0; b < CHAIN_AGES; b++) {
        CHECK(v.start[b] < v.start[b + 1]);
        CHECK_EQ(chain_age_bin(&v, v.start[b]), b);
        if (b + 1 < CHAIN_AGES) CHECK_EQ(chain_age_bin(&v, v.start[b + 1] - 1), b);
    }
    CHECK_EQ(chain_age_bin(&v, UINT32_MAX), CHAIN_AGES - 1);
    CHECK_WITHIN((v.start[33] + 9.0) / (v.start[30] + 9.0), 1.99, 2.01);
}

TEST(what_knows_nothing_orders_as_lru_does) {
    chain_value_init(&v);
    for (unsigned k = 0; k < CHAIN_KINDS; k++)
        for (unsigned b = 0; b + 2 < CHAIN_AGES; b++) {
            CHECK(v.value[k][b] > v.value[k][b + 1]);
            CHECK(v.value[k][b] == v.value[0][b]);
        }
}

/* They return at 200 requests or never: of more worth the nearer that is, least once it is over. */
TEST(what_comes_back_at_an_age_is_kept_until_then) {
    chain_value_init(&v);
    teach(CHAIN_REUSED, 2000, 200);
    CHECK(worth(CHAIN_REUSED, 150) > worth(CHAIN_REUSED, 60));
    CHECK(worth(CHAIN_REUSED, 60) > worth(CHAIN_REUSED, 10));
    CHECK(worth(CHAIN_REUSED, 150) > 10 * worth(CHAIN_REUSED, 1000));
    /* The index at first: half of them in 200 requests, which were kept for them. */
    CHECK_WITHIN(worth(CHAIN_REUSED, 0) * 200, 0.25, 1.0);
    /* a hazard alone would see nothing there */
    CHECK(v.hazard[CHAIN_REUSED][chain_age_bin(&v, 10)] * 3 < worth(CHAIN_REUSED, 10));
}

TEST(a_kind_that_never_comes_back_goes_first) {
    chain_value_init(&v);
    struct chain_traits t = traits(CHAIN_NEW);
    teach(CHAIN_REUSED, 500, 100);
    for (int i = 0; i < 500; i++) chain_exposed(&v, &t, 1, 0, 2000);
    chain_value_fit(&v);
    for (uint32_t age = 0; age < 100; age += 10)
        CHECK(worth(CHAIN_NEW, age) * 5 < worth(CHAIN_REUSED, age));
}

/* Uses of turn 5 ten times those of turn 1: told apart by a ratio. */
TEST(a_trait_is_worth_its_ratio) {
    chain_value_init(&v);
    struct chain_traits one = traits(CHAIN_REUSED), five = one;
    five.turn = 5;
    for (unsigned i = 0; i < 4000; i++) {
        chain_exposed(&v, &one, 1, 0, 100);
        chain_exposed(&v, &five, 1, 0, 100);
        if (i % 2) chain_returned(&v, &five, 1, 50);
        if (i % 20 == 0) chain_returned(&v, &one, 1, 50);
        if (i % 50 == 0) chain_value_fit(&v);
    }
    unsigned bin = chain_age_bin(&v, 40), low = chain_level(&v, &one, bin),
             high = chain_level(&v, &five, bin);
    CHECK_WITHIN((double)v.times[high] / (double)v.times[low], 3, 20);
}

/* Whatever a client makes of ages and traits: finite, positive values. */
TEST(values_stay_numbers) {
    chain_value_init(&v);
    static const uint32_t ages[] = {0, 1, 2, 254, 65535, 65536, 1u << 31, UINT32_MAX};
    for (unsigned round = 0; round < 200; round++) {
        for (unsigned i = 0; i < sizeof(ages) / sizeof(ages[0]); i++) {
            struct chain_traits t = {.kind = (uint8_t)((round + i) % CHAIN_KINDS),
                                     .turn = (uint8_t)(round % 7),
                                     .length = (uint8_t)(i % CHAIN_CLASSES),
                                     .growth = (uint8_t)(round % CHAIN_CLASSES),
                                     .branched = (uint8_t)(i % 2)};
            chain_exposed(&v, &t, round % 3 ? 16 : 1e-3f, 0, ages[i]);
            chain_exposed(&v, &t, 1, chain_age_bin(&v, ages[i]), ages[i]);
            if (round % 2) chain_returned(&v, &t, 16, ages[i]);
            CHECK(chain_level(&v, &t, chain_age_bin(&v, ages[i])) < CHAIN_LEVELS);
        }
        chain_value_fit(&v);
    }
    for (unsigned k = 0; k < CHAIN_KINDS; k++)
        for (unsigned b = 0; b < CHAIN_AGES; b++)
            CHECK(isfinite(v.value[k][b]) && v.value[k][b] > 0 && isfinite(v.hazard[k][b]));
}

TEST(classes_have_ends) {
    CHECK_EQ(chain_length_class(0), 0);
    CHECK_EQ(chain_length_class(UINT32_MAX), CHAIN_CLASSES - 1);
    CHECK_EQ(chain_growth_class(0, UINT32_MAX), 0);
    CHECK_EQ(chain_growth_class(9, 3), 1);
    CHECK_EQ(chain_growth_class(1, UINT32_MAX), CHAIN_CLASSES - 1);
    chain_value_init(&v);
    CHECK_EQ(chain_return_class(&v, 0), 0);
    CHECK_EQ(chain_return_class(&v, UINT32_MAX), CHAIN_ZONES - 1);
}

TEST_MAIN()
