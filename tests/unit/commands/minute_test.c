/* What alarms know of the last minute, second by second. */
#include "commands/minute.h"

#include "../test.h"

TEST(what_is_longer_ago_does_not_count) {
    struct minute m = {0};
    struct minute_counts total = {0}, minute = {0};
    /* an hour of old ones, then young ones that are few beside them */
    for (int s = 0; s < 3600; s++) {
        total.evicted += 10;
        total.aged += 10;
        minute = minute_until(&m, total);
    }
    CHECK(minute.evicted == 600 && minute.aged == 600 && minute.young == 0);
    for (int s = 0; s < 40; s++) {
        total.evicted += 10;
        total.aged += 10;
        total.young += 10;
        minute = minute_until(&m, total);
    }
    CHECK(minute.aged == 600 && minute.young == 400);
    for (int s = 0; s < MINUTE_SECONDS; s++) minute = minute_until(&m, total);
    CHECK(minute.evicted == 0 && minute.aged == 0 && minute.young == 0);
}

TEST(how_long_ago_what_was_evicted_had_been_used) {
    struct minute m = {0};
    struct minute_counts total = {0};
    CHECK_EQ(minute_evicted_idle(&m, 10), -1);
    for (int s = 0; s < 100; s++) {
        total.aged += 2;
        total.idle_ms += s < 50 ? 20000 : 2000;
        (void)minute_until(&m, total);
    }
    CHECK_EQ(minute_evicted_idle(&m, 10), 1000);
    for (int s = 0; s < 9; s++) (void)minute_until(&m, total);
    CHECK_EQ(minute_evicted_idle(&m, 10), 1000);
    (void)minute_until(&m, total);
    CHECK_EQ(minute_evicted_idle(&m, 10), -1); /* longer ago */
}

TEST(the_first_look_gains_nothing) {
    struct minute m = {0};
    CHECK_EQ(minute_until(&m, (struct minute_counts){.hits = 7}).hits, 0);
    CHECK_EQ(minute_until(&m, (struct minute_counts){.hits = 9}).hits, 2);
}

TEST(counters_that_begin_anew) {
    struct minute m = {0};
    (void)minute_until(&m, (struct minute_counts){.hits = 5, .young = 9});
    (void)minute_until(&m, (struct minute_counts){.hits = 6, .young = 9});
    CHECK_EQ(minute_until(&m, (struct minute_counts){.hits = 6, .young = 1}).young, 0);
    CHECK_EQ(minute_until(&m, (struct minute_counts){.hits = 6, .young = 3}).young, 2);
}

TEST_MAIN()
