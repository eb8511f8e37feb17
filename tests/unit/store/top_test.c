/* The largest names against counting all of them. */
#include "../test.h"
#include "base/buf.h"
#include "base/rng.h"
#include "store/top.h"

static struct span top_name(unsigned i) {
    static char text[32];
    return span_of(text, (size_t)snprintf(text, sizeof(text), "model-%u", i));
}

static uint64_t count_of(const struct top *t, struct span name, uint64_t *error_p) {
    static struct top_entry e[TOP_SLOTS];
    size_t n = top_get(t, e, TOP_SLOTS);
    for (size_t i = 0; i < n; i++) {
        if (e[i].name_len != name.len || memcmp(e[i].name, name.data, name.len) != 0) continue;
        *error_p = e[i].error;
        return e[i].count;
    }
    return 0;
}

TEST(few_names_are_counted_exactly_and_the_largest_is_first) {
    struct top *t = top_create();
    struct top_entry e[4];
    top_add(t, SPAN("a"), 3, 1);
    top_add(t, SPAN("b"), 5, 1);
    top_add(t, SPAN("c"), 1, 1);
    top_add(t, SPAN("a"), 4, 1);
    top_add(t, SPAN("none"), 0, 1);
    CHECK_EQ(top_get(t, e, 4), 3);
    CHECK(e[0].name[0] == 'a' && e[0].count == 7 && e[1].count == 5 && e[2].count == 1);
    CHECK(e[0].error == 0);
    CHECK_EQ(top_get(t, e, 2), 2);
    CHECK_EQ(top_total(t), 13);
    top_destroy(&t);
}

TEST(many_names_keep_the_bounds_of_space_saving) {
    enum { NAMES = 5000, EVENTS = 200000 };
    static uint64_t really[NAMES];
    memset(really, 0, sizeof(really));
    struct rng r;
    rng_seed(&r, 4);
    struct top *t = top_create();
    uint64_t total = 0;
    for (unsigned i = 0; i < EVENTS; i++) {
        /* the product of two is skewed towards the low ones */
        unsigned k = (unsigned)(rng_below(&r, 1000) * rng_below(&r, 1000) * NAMES / 1000000);
        uint64_t n = 1 + rng_below(&r, 8);
        really[k] += n;
        total += n;
        top_add(t, top_name(k), n, 1);
    }
    CHECK_EQ(top_total(t), total);
    unsigned held = 0;
    for (unsigned k = 0; k < NAMES; k++) {
        uint64_t error = 0, count = count_of(t, top_name(k), &error);
        held += count > 0;
        if (count == 0) {
            CHECK(really[k] <= total / TOP_SLOTS);
            continue;
        }
        CHECK(really[k] <= count && count - error <= really[k] && error <= total / TOP_SLOTS);
    }
    CHECK_EQ(held, TOP_SLOTS);
    top_destroy(&t);
}

TEST(what_is_over_makes_room) {
    struct top *t = top_create();
    uint64_t error = 0;
    top_add(t, SPAN("old"), 1000, 1000);
    top_add(t, SPAN("new"), 10, 1000 + TOP_HALF_MS);
    CHECK_EQ(count_of(t, SPAN("old"), &error), 500);
    top_add(t, SPAN("new"), 10, 1000 + 40 * TOP_HALF_MS);
    CHECK_EQ(count_of(t, SPAN("old"), &error), 1);
    CHECK_EQ(count_of(t, SPAN("new"), &error), 11);
    top_add(t, SPAN("new"), 1, 1000 + 4000 * (uint64_t)TOP_HALF_MS);
    CHECK(count_of(t, SPAN("new"), &error) == 2 && top_total(t) == 1);
    top_destroy(&t);
}

TEST(long_and_empty_names_and_a_reset) {
    struct top *t = top_create();
    struct top_entry e[2];
    char text[100];
    memset(text, 'x', sizeof(text));
    top_add(t, span_of(text, 100), 1, 1);
    top_add(t, span_of(text, 65), 1, 1);
    top_add(t, span_of(text, 0), 5, 1);
    CHECK_EQ(top_get(t, e, 2), 2);
    CHECK(e[0].name_len == 0 && e[0].count == 5);
    CHECK(e[1].name_len == TOP_NAME_MAX && e[1].count == 2);
    top_reset(t);
    CHECK(top_get(t, e, 2) == 0 && top_total(t) == 0);
    top_add(t, SPAN("a"), 2, 1);
    CHECK(top_get(t, e, 2) == 1 && e[0].count == 2);
    top_destroy(&t);
}

TEST_MAIN()
