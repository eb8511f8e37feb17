/* The latency monitor's series. */
#include "front/latency.h"

#include "../test.h"
#include "front/cmd.h"
#include "config/config.h"

#define MS 1000000u

static void monitor(int64_t threshold_ms) {
    static struct config values;
    values.latency_monitor_threshold_ms = threshold_ms;
    config = &values;
    latency_apply_config();
}

TEST(below_the_threshold_nothing_is_noted) {
    const struct latency_series *s = latency_series(LATENCY_COMMAND);
    monitor(0);
    latency_note(LATENCY_COMMAND, UINT64_MAX - 1);
    CHECK_EQ(latency_begin(), 0);
    latency_end(LATENCY_COMMAND, 0);
    CHECK_EQ(s->n, 0);
    monitor(5);
    latency_note(LATENCY_COMMAND, 5 * MS - 1);
    CHECK_EQ(s->n, 0);
    latency_note(LATENCY_COMMAND, 5 * MS);
    CHECK(s->n == 1 && s->max_ms == 5);
    CHECK(latency_begin() != 0);
    CHECK(latency_reset(s) && !latency_reset(s) && s->n == 0 && s->max_ms == 0);
}

/* The clock may go on by a second between any two of them. */
TEST(a_second_keeps_its_worst) {
    const struct latency_series *s = latency_series(LATENCY_AOF_WRITE);
    monitor(1);
    for (unsigned i = 1; i <= 1000; i++)
        latency_note(LATENCY_AOF_WRITE, (uint64_t)(i % 500 + 1) * MS);
    CHECK(s->n >= 1 && s->n <= 3 && s->max_ms == 500);
    uint64_t worst = 0;
    for (size_t i = 0; i < s->n; i++) {
        struct latency_sample sample = latency_sample(s, i);
        worst = max_u64(worst, sample.ms);
        if (i > 0) CHECK(sample.wall_s > latency_sample(s, i - 1).wall_s);
    }
    CHECK_EQ(worst, 500);
    CHECK(latency_reset(s));
}

TEST(names) {
    for (unsigned e = 0; e < LATENCY_EVENTS; e++) {
        const struct latency_series *s = latency_series((enum latency_event)e);
        CHECK(s->name != NULL && latency_find(span_str(s->name)) == s);
    }
    CHECK(latency_find(SPAN("EXPIRE-CYCLE")) == latency_series(LATENCY_EXPIRE_CYCLE));
    CHECK(latency_find(SPAN("expire")) == NULL && latency_find(SPAN("")) == NULL);
}

TEST(the_oldest_sample_makes_room) {
    const struct latency_series *s = latency_series(LATENCY_COMMAND);
    monitor(1);
    for (uint64_t i = 0; i < LATENCY_SAMPLES + 10; i++)
        latency_add_at(LATENCY_COMMAND, (i + 1) * MS, 1000 + i);
    CHECK(s->n == LATENCY_SAMPLES && s->max_ms == LATENCY_SAMPLES + 10);
    CHECK(latency_sample(s, 0).wall_s == 1010 && latency_sample(s, 0).ms == 11);
    CHECK(latency_sample(s, s->n - 1).wall_s == 1000 + LATENCY_SAMPLES + 9);
    latency_reset(s);
}

TEST_MAIN()
