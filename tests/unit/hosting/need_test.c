/* Which master gives memory to which. */
#include "hosting/shares.h"

#include "../test.h"

static struct share_need need[SLOT_SHARDS_MAX];
static unsigned from, to;

static void prepare(void) {
    memset(need, 0, sizeof(need));
    for (unsigned i = 0; i < 3; i++)
        need[i] = (struct share_need){
            .up = true, .chunks = 10, .bytes = 1000, .used = 500, .idle_ms = -1};
}

TEST(who_evicts_nothing_needs_nothing) {
    prepare();
    CHECK(!need_choose(need, &from, &to));
}

TEST(the_roomiest_gives) {
    prepare();
    need[1].idle_ms = 5000;
    need[2].used = 400;
    CHECK(need_choose(need, &from, &to));
    CHECK(from == 2 && to == 1);
    need[2].chunks = 1; /* it keeps one */
    CHECK(need_choose(need, &from, &to));
    CHECK(from == 0 && to == 1);
    need[0].up = false;
    CHECK(!need_choose(need, &from, &to));
}

TEST(of_those_who_evict_the_one_whose_are_the_oldest) {
    prepare();
    need[0].idle_ms = 10000;
    need[1].idle_ms = 90000;
    need[2].idle_ms = 30000;
    CHECK(need_choose(need, &from, &to));
    CHECK(from == 1 && to == 0);
    need[2].idle_ms = -1; /* it has room */
    CHECK(need_choose(need, &from, &to));
    CHECK(from == 2 && to == 0);
}

TEST(a_little_older_is_not_enough) {
    prepare();
    need[0].idle_ms = 10000;
    need[1].idle_ms = 20000;
    need[2].idle_ms = 15000;
    CHECK(!need_choose(need, &from, &to));
    need[1].idle_ms = 20001;
    CHECK(need_choose(need, &from, &to));
    CHECK(from == 1 && to == 0);
}

TEST(ages_without_end_are_as_old_as_each_other) {
    prepare();
    for (unsigned i = 0; i < 3; i++) need[i].idle_ms = INT64_MAX;
    CHECK(!need_choose(need, &from, &to));
}

TEST(who_is_away_or_full_of_segments_gets_none) {
    prepare();
    need[0].idle_ms = 1000;
    need[0].up = false;
    CHECK(!need_choose(need, &from, &to));
    need[0].up = true;
    need[0].chunks = HOSTED_MAX - FARS_MAX;
    CHECK(!need_choose(need, &from, &to));
    need[0].chunks--;
    CHECK(need_choose(need, &from, &to));
}

TEST_MAIN()
