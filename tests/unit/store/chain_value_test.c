/* What the chain policy learns: values by age, against curves worked out by hand. */
#include "../test.h"

#include <math.h>
#include "store/chain_value.h"

static struct chain_value v;

static unsigned sort_of(enum chain_kind kind) {
    return chain_sort_find(&v, &(struct chain_traits){.kind = (uint8_t)kind, .turn = 1});
}

/* n runs of a kind, of which every other one is used at that age. */
static void teach(enum chain_kind kind, unsigned n, uint32_t age) {
    unsigned sort = sort_of(kind);
    for (unsigned i = 0; i < n; i++) {
        chain_exposed(&v, sort, 1, 0, 0, i % 2 ? age : 100 * age);
        if (i % 2) chain_returned(&v, sort, 1, age);
        if (i % 50 == 49) chain_value_fit(&v);
    }
}

static float worth(enum chain_kind kind, uint32_t age) {
    return chain_worth(&v, sort_of(kind), chain_bin_at(&v, age));
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
            CHECK(worth(k, v.start[b]) > worth(k, v.start[b + 1]));
            CHECK(worth(k, v.start[b]) == worth(0, v.start[b]));
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
    CHECK(v.kind[CHAIN_REUSED][chain_age_bin(&v, 10)].hazard * 3 < worth(CHAIN_REUSED, 10));
}

TEST(a_kind_that_never_comes_back_goes_first) {
    chain_value_init(&v);
    teach(CHAIN_REUSED, 500, 100);
    for (int i = 0; i < 500; i++) chain_exposed(&v, sort_of(CHAIN_NEW), 1, 0, 0, 2000);
    chain_value_fit(&v);
    for (uint32_t age = 0; age < 100; age += 10)
        CHECK(worth(CHAIN_NEW, age) * 5 < worth(CHAIN_REUSED, age));
}

/* Uses of turn 5 ten times those of turn 1: told apart by a ratio. */
TEST(a_trait_is_worth_its_ratio) {
    chain_value_init(&v);
    const struct chain_traits turn_five = {.kind = CHAIN_REUSED, .turn = 5};
    unsigned one = sort_of(CHAIN_REUSED), five = chain_sort_find(&v, &turn_five);
    for (unsigned i = 0; i < 4000; i++) {
        chain_exposed(&v, one, 1, 0, 0, 100);
        chain_exposed(&v, five, 1, 0, 0, 100);
        if (i % 2) chain_returned(&v, five, 1, 50);
        if (i % 20 == 0) chain_returned(&v, one, 1, 50);
        if (i % 50 == 0) chain_value_fit(&v);
    }
    struct chain_bin at = chain_bin_at(&v, 40);
    CHECK_WITHIN((double)chain_worth(&v, five, at) / (double)chain_worth(&v, one, at), 3, 20);
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
            unsigned sort = chain_sort_find(&v, &t);
            chain_exposed(&v, sort, round % 3 ? 16 : 1e-3f, 0, 0, ages[i]);
            chain_exposed(&v, sort, 1, ages[i], chain_age_bin(&v, ages[i]), ages[i]);
            if (round % 2) chain_returned(&v, sort, 16, ages[i]);
            float w = chain_worth(&v, sort, chain_bin_at(&v, ages[i]));
            CHECK(isfinite(w) && w > 0);
        }
        chain_value_fit(&v);
    }
    for (unsigned k = 0; k < CHAIN_KINDS; k++)
        for (unsigned b = 0; b < CHAIN_AGES; b++)
            CHECK(worth(k, v.start[b]) > 0 && isfinite(v.kind[k][b].hazard));
}

static struct chain_traits nth_traits(unsigned n) {
    return (struct chain_traits){.kind = CHAIN_REUSED,
                                 .turn = (uint8_t)(1 + n % 6),
                                 .length = (uint8_t)(n / 6 % 8),
                                 .growth = (uint8_t)(n / 48 % 8)};
}

/* More than there is room for: those in use stay, the others are one. */
TEST(sorts_are_bounded) {
    chain_value_init(&v);
    unsigned used = 0, room = CHAIN_SORTS - 1 - CHAIN_KINDS;
    for (unsigned n = 0; n < 384; n++) {
        struct chain_traits t = nth_traits(n);
        unsigned s = chain_sort_find(&v, &t);
        CHECK(s > 0 && s < CHAIN_SORTS);
        CHECK_EQ(v.sort[s].traits.kind, CHAIN_REUSED);
        if (n < room) CHECK_EQ(v.sort[s].traits.length, t.length);
        if (n >= room) CHECK_EQ(s, 1u + CHAIN_REUSED);
        v.sort[s].runs++;
        used = s;
    }
    struct chain_traits first = nth_traits(0), late = nth_traits(383);
    unsigned s = chain_sort_find(&v, &first);
    chain_exposed(&v, s, 1, 0, 0, 100);
    v.sort[s].runs = 0; /* its place is free, what it has counted is not lost */
    CHECK_EQ(chain_sort_find(&v, &late), s);
    v.sort[s].runs = 1;
    CHECK_EQ(v.sort[s].traits.turn, late.turn);
    CHECK(v.ratio[CHAIN_REUSED * CHAIN_TRAITS * CHAIN_CLASSES + first.turn][0].lately > 0);
    CHECK_EQ(chain_sort_find(&v, &first), 1u + CHAIN_REUSED);
    CHECK_EQ(used, 1u + CHAIN_REUSED);
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
