/* Which hosts are left alone, by whom, and for how long. */
#include "base/assert.h"
#include "client/arena.h"
#include "client/client.h"
#include "client/lane.h"
#include "client/outage.h"

#include "../test.h"

static struct tarn_client client = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                                    .options = {.failover_ms = 60000}};

/* A lane that has met these segments: home and name by id. */
static void lane_init(struct lane *lane, size_t segments) {
    *lane = (struct lane){.client = &client, .segments = segments};
    lane->segment = xcalloc(segments, sizeof(*lane->segment));
}

static void met(struct lane *lane, uint32_t id, uint64_t home, const char *name) {
    lane->segment[id].home = home;
    snprintf(lane->segment[id].name, sizeof(lane->segment[id].name), "%s", name);
}

static void lane_deinit(struct lane *lane) {
    free(lane->segment);
    arena_free(&lane->arena);
    client.outages = (struct outages){0};
}

TEST(all_segments_of_a_host_for_all_lanes) {
    struct lane one, two;
    lane_init(&one, 4);
    lane_init(&two, 4);
    met(&one, 0, 77, "a.0");
    met(&two, 0, 77, "a.0");
    met(&two, 1, 77, "a.1");
    met(&two, 2, 88, "b.0");
    CHECK(!outages_any(&client.outages));
    uint64_t changes = outages_changes(&client.outages);
    outage_note(&one, 0);
    CHECK(outages_any(&client.outages));
    CHECK(outages_changes(&client.outages) != changes);
    CHECK(outage_listed(&one, 0));
    CHECK(outage_listed(&two, 0));
    CHECK(outage_listed(&two, 1));
    CHECK(!outage_listed(&two, 2));
    CHECK(!outage_listed(&two, 3));  /* never met */
    CHECK(!outage_listed(&two, 99)); /* out of range */
    const char *names[8];
    CHECK_EQ(outage_names(&one, 0, names, 8), 2); /* both that were asked for */
    CHECK_STR(names[0], "a.0");
    CHECK_STR(names[1], "a.1");
    CHECK_EQ(outage_names(&one, 0, names, 1), 1);
    CHECK_EQ(outage_names(&one, now_ms() + 1, names, 8), 0); /* since then: none */
    outage_over(&two, 2);                                    /* of another host */
    CHECK(outage_listed(&one, 0));
    outage_over(&two, 1);
    CHECK(!outage_listed(&one, 0));
    CHECK(!outages_any(&client.outages));
    outage_note(&one, 3); /* nobody knows who that is */
    CHECK(!outages_any(&client.outages));
    lane_deinit(&one);
    lane_deinit(&two);
}

TEST(one_at_a_time_tries_again) {
    struct lane lane;
    lane_init(&lane, 1);
    met(&lane, 0, 77, "a.0");
    outage_note(&lane, 0);
    CHECK(outage_probe(&lane, 0));
    client.outages.list[0].until_ms = 0;
    const char *names[8];
    CHECK(!outage_listed(&lane, 0));
    CHECK_EQ(outage_names(&lane, 0, names, 8), 0);
    CHECK(!outage_probe(&lane, 0)); /* this one may */
    CHECK(outage_probe(&lane, 0));  /* the others wait for what it finds out */
    CHECK(outage_listed(&lane, 0));
    lane_deinit(&lane);
}

TEST(the_longer_it_stays_away_the_rarer_it_is_tried) {
    struct lane lane;
    lane_init(&lane, 1);
    met(&lane, 0, 77, "a.0");
    const struct outage *o = &client.outages.list[0];
    static const uint64_t pauses[] = {300000, 600000, 1200000, 2400000, 2400000};
    for (size_t i = 0; i < ARRAY_LEN(pauses); i++) {
        uint64_t before = now_ms();
        outage_note(&lane, 0);
        outage_note(&lane, 0); /* the same failure, met by another */
        CHECK(o->until_ms >= before + pauses[i] && o->until_ms <= now_ms() + pauses[i]);
        client.outages.list[0].until_ms = 0;
    }
    CHECK_EQ(client.outages.n, 1);
    lane_deinit(&lane);
}

TEST(the_list_is_bounded) {
    struct lane lane;
    lane_init(&lane, OUTAGES_MAX + 6);
    for (uint32_t i = 0; i < OUTAGES_MAX + 6; i++) {
        met(&lane, i, 1000 + i, "x");
        outage_note(&lane, i);
        /* the first ones are over first */
        if (i < OUTAGES_MAX) client.outages.list[i].until_ms += i + 1;
    }
    CHECK_EQ(client.outages.n, OUTAGES_MAX);
    CHECK(!outage_listed(&lane, 0));
    CHECK(outage_listed(&lane, OUTAGES_MAX - 1));
    CHECK(outage_listed(&lane, OUTAGES_MAX + 5));
    for (uint32_t i = 0; i < 2 * OUTAGE_NAMES_MAX; i++) {
        char name[16];
        snprintf(name, sizeof(name), "y%u", (unsigned)i);
        met(&lane, 0, 1000 + OUTAGES_MAX + 5, name);
        CHECK(outage_listed(&lane, 0));
    }
    lane_deinit(&lane);
}

TEST_MAIN()
