/* KV groups of a replay: how they are said, and what of them is put. */
#include "benchmark/kv_plan.h"

#include "../test.h"

static struct kv_plan plan;

static const char *said(const char *spec) {
    return kv_plan_parse(&plan, spec, 0);
}

TEST(groups_as_they_are_said) {
    CHECK(kv_plan_parse(&plan, "full:16:32k,window:48:1m:128,state:544:3", 1000) == NULL);
    CHECK_EQ(plan.n, 3);
    CHECK_EQ(plan.unit, 16);
    CHECK_EQ(plan.align, 1632);
    CHECK_EQ(plan.interval, 1632);
    CHECK_EQ(plan.group[0].kind, TARN_KV_FULL);
    CHECK_EQ(plan.group[1].kind, TARN_KV_WINDOW);
    CHECK_EQ(plan.group[1].window, 128);
    CHECK_EQ(plan.group[2].kind, TARN_KV_STATE);
    CHECK_EQ(plan.group[2].block, 544);
    CHECK_EQ(plan.bytes[0], 32768);
    CHECK_EQ(plan.bytes[2], 3);
    CHECK_STR(plan.group[1].name, "replay@window1.48@");
    CHECK_EQ(kv_plan_boundary(&plan, 4000), 3264);
}

TEST(groups_that_are_none) {
    static const char *const bad[] = {
        "",
        "full",
        "full:16",
        "full:16:",
        "FULL:16:4k",
        "full:0:4k",
        "full:1048577:4k",
        "full:16:2g",
        "full:16:4k:7",
        "full:16:4k,",
        "window:16:4k",
        "window:16:4k:1",
        "window:16:4k:9:9",
        "state:16:4k:9",
        "full:1048575:1,full:1048573:1",
        "full:1:1,full:1:1,full:1:1,full:1:1,full:1:1,full:1:1,full:1:1,full:1:1,full:1:1",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) CHECK(said(bad[i]) != NULL);
    CHECK(said("full:1:1,full:1:1,full:1:1,full:1:1,full:1:1,full:1:1,full:1:1,full:1:1") == NULL);
}

/* Their ends of that group, up to the boundary. */
static const char *puts_of(size_t g, uint64_t boundary) {
    static char text[200];
    int n = 0;
    text[0] = '\0';
    for (uint64_t end = 1; end <= boundary + 64; end++)
        if (kv_plan_puts(&plan, g, end, boundary))
            n += snprintf(text + n, sizeof(text) - (size_t)n, " %d", (int)end);
    return text;
}

TEST(what_is_put) {
    CHECK(kv_plan_parse(&plan, "full:32:1,window:16:1:34,state:32:1", 0) == NULL);
    CHECK_STR(puts_of(0, 128), " 32 64 96 128");
    CHECK_STR(puts_of(1, 128), " 96 112 128");
    CHECK_STR(puts_of(1, 32), " 16 32");
    CHECK_STR(puts_of(2, 128), " 128");
    CHECK(kv_plan_parse(&plan, "full:32:1,window:16:1:33,state:32:1", 64) == NULL);
    CHECK_STR(puts_of(1, 160), " 48 64 112 128 144 160");
    CHECK_STR(puts_of(2, 160), " 64 128 160");
    CHECK_STR(puts_of(2, 128), " 64 128");
    CHECK_STR(puts_of(0, 0), "");
}

TEST_MAIN()
