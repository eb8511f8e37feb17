#include "../test.h"

#include <sched.h>
#include <time.h>

#include "base/clock.h"
#include "base/spin.h"

#define LIMIT_US 5000u /* long: what is short here is so on a busy machine, too */
#define LONG_US  60000u

static void pass(uint64_t us) {
    struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    nanosleep(&t, NULL);
}

/* A wait that lasts so long. Returns whether it looked. */
static bool wait_for(struct spin *s, uint64_t us) {
    bool looks = spin_begin(s);
    if (us > 0) pass(us);
    spin_end(s);
    return looks;
}

static void one_processor_only(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) == 1)
        SKIP("with one processor nobody looks");
}

TEST(who_was_not_told_to_never_looks) {
    struct spin s = {0};
    for (int i = 0; i < 100; i++) CHECK(!wait_for(&s, 0));
    CHECK_EQ(s.spins, 0);
}

TEST(short_waits_are_looked_out_and_long_ones_are_not) {
    one_processor_only();
    struct spin s = {0};
    spin_set(&s, LIMIT_US);
    CHECK(!wait_for(&s, 0)); /* nothing is known */
    for (int i = 0; i < 100; i++) (void)wait_for(&s, 0);
    CHECK(wait_for(&s, 0));
    CHECK(s.hits > 0 && s.hits <= s.spins);
    for (int i = 0; i < 20; i++) (void)wait_for(&s, LONG_US);
    uint64_t before = s.spins;
    for (int i = 0; i < 5; i++) CHECK(!wait_for(&s, LONG_US));
    CHECK_EQ(s.spins, before);
    spin_set(&s, 0);
    for (int i = 0; i < 100; i++) CHECK(!wait_for(&s, 0));
}

/* A copy and the request behind it, one after the other. */
TEST(waits_that_take_turns_are_told_apart) {
    one_processor_only();
    struct spin s = {0};
    spin_set(&s, LIMIT_US);
    unsigned looked = 0, in_vain = 0;
    for (int i = 0; i < 60; i++) {
        bool after = i >= 40, is_short = wait_for(&s, 0), is_long = wait_for(&s, LONG_US);
        looked += after && is_short;
        in_vain += after && is_long;
    }
    CHECK(looked >= 15);
    CHECK(in_vain <= 5);
}

TEST(looking_ends_by_itself) {
    one_processor_only();
    struct spin s = {0};
    spin_set(&s, LIMIT_US);
    for (int i = 0; i < 100; i++) (void)wait_for(&s, 0);
    CHECK(spin_begin(&s));
    uint64_t began_ns = clock_mono_ns();
    while (spin_again(&s)) CHECK(clock_mono_ns() - began_ns < UINT64_C(10000000000));
    CHECK(spin_begin(&s));
    pass(LONG_US); /* others had the processor */
    CHECK(!spin_again(&s));
    spin_end(&s);
}

/* One processor: whoever is awaited cannot run meanwhile. */
TEST(on_one_processor_nobody_looks) {
    cpu_set_t all, one;
    CHECK_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    int first = 0;
    while (!CPU_ISSET(first, &all)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    CHECK_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    struct spin s = {0};
    spin_set(&s, LIMIT_US);
    for (int i = 0; i < 100; i++) CHECK(!wait_for(&s, 0));
    CHECK_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

TEST_MAIN()
