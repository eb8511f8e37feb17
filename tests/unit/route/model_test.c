/* The linear model: that it converges, follows a drift, and cannot be spoilt. */
#include "../test.h"
#include <math.h>
#include "base/draw.h"
#include "route/model.h"

static const double prior[MODEL_TERMS] = {8000, 32, 0.001};

/* Prompts of 100 to 20,000 new tokens behind 0 to 20,000. */
static void draw_terms(struct rng *r, double term[MODEL_TERMS]) {
    double n = 100 * exp(draw_unit(r) * log(200)), p = draw_unit(r) * 20000;
    term[0] = 1;
    term[1] = n;
    term[2] = n * (n + 2 * p);
}

static double truth(const double term[MODEL_TERMS], const double times[MODEL_TERMS]) {
    double us = 0;
    for (unsigned i = 0; i < MODEL_TERMS; i++) us += prior[i] * times[i] * term[i];
    return us;
}

/* Observations with +-20 % of noise. */
static void teach(struct model *m, struct rng *r, const double times[MODEL_TERMS], int n) {
    for (int i = 0; i < n; i++) {
        double term[MODEL_TERMS];
        draw_terms(r, term);
        CHECK(model_learn(m, term, truth(term, times) * (0.8 + 0.4 * draw_unit(r))));
    }
}

/* The mean of relative errors on fresh requests. */
static double error_of(const struct model *m, struct rng *r, const double times[MODEL_TERMS]) {
    double sum = 0;
    for (int i = 0; i < 200; i++) {
        double term[MODEL_TERMS];
        draw_terms(r, term);
        sum += fabs(model_predict(m, term) / truth(term, times) - 1);
    }
    return sum / 200;
}

TEST(unseen_it_is_the_prior) {
    struct model m;
    model_init(&m, prior);
    double term[MODEL_TERMS] = {1, 1000, 1000000};
    CHECK_EQ(model_predict(&m, term), 8000 + 32000 + 1000);
}

TEST(it_converges_on_noisy_times) {
    const double times[][MODEL_TERMS] = {{1, 1, 1}, {2, 3, 0.5}, {0.2, 0.3, 4}, {5, 0.1, 10}};
    struct rng r;
    rng_seed(&r, 1);
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        struct model m;
        model_init(&m, prior);
        teach(&m, &r, times[i], 400);
        CHECK(error_of(&m, &r, times[i]) < 0.08);
        CHECK_EQ(m.seen, 400);
    }
}

TEST(few_observations_already_help) {
    const double times[MODEL_TERMS] = {4, 4, 4};
    struct rng r;
    rng_seed(&r, 2);
    struct model m;
    model_init(&m, prior);
    teach(&m, &r, times, 10);
    CHECK(error_of(&m, &r, times) < 0.25);
}

TEST(it_follows_a_drift) {
    const double before[MODEL_TERMS] = {1, 1, 1}, after[MODEL_TERMS] = {3, 2.5, 3};
    struct rng r;
    rng_seed(&r, 3);
    struct model m;
    model_init(&m, prior);
    teach(&m, &r, before, 2000);
    teach(&m, &r, after, 400);
    CHECK(error_of(&m, &r, after) < 0.15);
}

TEST(what_is_no_time_changes_nothing) {
    const double odd[] = {0, -1, NAN, INFINITY, -INFINITY, 1e300, 3.7e9};
    double term[MODEL_TERMS] = {1, 1000, 1000000};
    struct model m;
    model_init(&m, prior);
    struct model before = m;
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) CHECK(!model_learn(&m, term, odd[i]));
    const double nothing[MODEL_TERMS] = {0}, never[MODEL_TERMS] = {INFINITY, 0, 0};
    CHECK(!model_learn(&m, nothing, 100));
    CHECK(!model_learn(&m, never, 100));
    CHECK(memcmp(&m, &before, sizeof(m)) == 0);
}

/* Sequences and their tokens go together: in a decode that takes time for the latter alone, the
 * weight of the former is at its bound. When all becomes twice as fast, what that weight cannot
 * give must come from the other, and not be put on top of it. */
TEST(a_weight_at_its_bound_drives_no_other_away) {
    const double step[MODEL_TERMS] = {10000, 1000, 1};
    struct rng r;
    rng_seed(&r, 8);
    struct model m;
    model_init(&m, step);
    for (int i = 0; i < 2000; i++) {
        double b = i < 200 ? 1 + 30 * draw_unit(&r) : 30 + 6 * draw_unit(&r);
        double term[MODEL_TERMS] = {1, b, b * (1600 + 80 * draw_unit(&r))};
        double us = (5000 + 1.3 * term[2]) / (i < 200 ? 1 : 2) * (0.95 + 0.1 * draw_unit(&r));
        CHECK(model_learn(&m, term, us));
        if (i > 400) CHECK(fabs(model_predict(&m, term) / us - 1) < 0.25);
    }
}

/* One in ten is a lie of a factor of up to a thousand. */
TEST(lies_do_not_spoil_it) {
    const double times[MODEL_TERMS] = {2, 2, 2};
    struct rng r;
    rng_seed(&r, 4);
    struct model m;
    model_init(&m, prior);
    for (int i = 0; i < 200; i++) {
        teach(&m, &r, times, 9);
        double term[MODEL_TERMS];
        draw_terms(&r, term);
        model_learn(&m, term, fmin(truth(term, times) * (i % 2 ? 1000 : 0.001), 3e9));
    }
    CHECK(error_of(&m, &r, times) < 0.2);
}

TEST(weights_stay_within_bounds) {
    struct rng r;
    rng_seed(&r, 5);
    struct model m;
    model_init(&m, prior);
    for (int i = 0; i < 20000; i++) {
        double term[MODEL_TERMS];
        draw_terms(&r, term);
        model_learn(&m, term, exp(draw_unit(&r) * 22));
        double us = model_predict(&m, term);
        CHECK(isfinite(us) && us > 0);
        for (unsigned k = 0; k < MODEL_TERMS; k++)
            CHECK(m.weight[k] >= 1.0 / 64 && m.weight[k] <= 64 && m.cover[k][k] >= 0);
    }
}

TEST(what_was_learnt_comes_back_from_bytes) {
    const double times[MODEL_TERMS] = {2, 3, 0.5};
    struct rng r;
    rng_seed(&r, 6);
    struct model m, again;
    model_init(&m, prior);
    teach(&m, &r, times, 400);
    uint8_t bytes[MODEL_EXPORT_SIZE];
    model_export(&m, bytes);
    model_init(&again, prior);
    CHECK(model_import(&again, bytes));
    CHECK_EQ(again.seen, 400);
    double term[MODEL_TERMS] = {1, 5000, 25e6};
    CHECK(fabs(model_predict(&again, term) / model_predict(&m, term) - 1) < 1e-5);
    CHECK(error_of(&again, &r, times) < 0.08);
}

/* Whatever the bytes: refused, or a model that is as sound as any. */
TEST(any_bytes_are_safe) {
    struct rng r;
    rng_seed(&r, 7);
    struct model m;
    model_init(&m, prior);
    uint8_t good[MODEL_EXPORT_SIZE], bytes[MODEL_EXPORT_SIZE];
    model_export(&m, good);
    int taken = 0;
    for (int i = 0; i < test_rounds(20000); i++) {
        memcpy(bytes, good, sizeof(bytes));
        for (uint64_t n = rng_below(&r, 6); n > 0; n--)
            bytes[rng_below(&r, sizeof(bytes))] = (uint8_t)rng_next(&r);
        model_init(&m, prior);
        taken += model_import(&m, bytes);
        teach(&m, &r, (double[MODEL_TERMS]){1, 1, 1}, 3);
        double us = model_predict(&m, (double[MODEL_TERMS]){1, 1000, 1e6});
        CHECK(isfinite(us) && us > 0);
    }
    CHECK(taken > 0);
}

TEST_MAIN()
