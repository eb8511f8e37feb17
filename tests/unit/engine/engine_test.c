/* What the engine does without a host; all that needs one is in tests/transport. */
#include "../test.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"

static struct engine *make(void) {
    log_set_level(LOG_LEVEL_NOTHING);
    struct engine_config c;
    engine_config_init(&c);
    struct engine *e;
    CHECK_EQ(engine_create(&c, &e), TARN_OK);
    return e;
}

TEST(configurations) {
    struct engine_config c;
    engine_config_init(&c);
    struct engine *e;
    c.streams = 0;
    CHECK_EQ(engine_create(&c, &e), TARN_EINVAL);
    c.streams = 1000;
    CHECK_EQ(engine_create(&c, &e), TARN_EINVAL);
}

TEST(segments_are_known_until_something_changes) {
    struct engine *e = make();
    struct engine_segment s = {.id = 4, .epoch = 2, .size = 4096};
    CHECK(engine_segment_way(&s, "tcp://127.0.0.1:1") != NULL);
    CHECK(!engine_segment_known(e, 4, 2));
    CHECK_EQ(engine_segment_set(e, &s), TARN_OK);
    CHECK(engine_segment_known(e, 4, 2));
    CHECK(!engine_segment_known(e, 4, 3));
    CHECK_EQ(engine_check(e, 4, 2, &s), TARN_ESTALE); /* nothing of it is mapped */
    CHECK_EQ(engine_check(e, 4, 3, &s), TARN_ESTALE);
    CHECK(!engine_attach(e, 4, 2, false));
    engine_session_changed(e);
    CHECK(!engine_segment_known(e, 4, 2));
    s.epoch = 3;
    CHECK_EQ(engine_segment_set(e, &s), TARN_OK);
    CHECK(engine_segment_known(e, 4, 3));
    CHECK(engine_map(e, 4, 3, 0, 1, false) == NULL);
    engine_destroy(&e);
    CHECK(e == NULL);
}

/* What is offered and what is of use here. */
TEST(ways_of_a_segment) {
    struct engine *e = make();
    struct engine_segment s = {.id = 4, .epoch = 2, .size = 4096};
    CHECK(engine_segment_way(&s, "shm:///nowhere") == NULL); /* another machine's */
    s.same_host = true;
    CHECK(engine_segment_way(&s, "shm:///nowhere") != NULL);
    CHECK(engine_segment_way(&s, "shm:///elsewhere") == NULL); /* the first counts */
    CHECK(engine_segment_way(&s, "rdma://127.0.0.1:1") == NULL);
    CHECK(engine_segment_way(&s, "tcps://127.0.0.1:1") != NULL);
    CHECK(engine_segment_way(&s, "tcp://127.0.0.1:1") == NULL);
    CHECK_EQ(engine_segment_set(e, &s), TARN_OK);
    CHECK(engine_segment_same(e, &s));
    struct engine_segment less = s;
    less.way[transport_slot(&transport_shm)].uri = NULL;
    CHECK(!engine_segment_same(e, &less));
    CHECK_EQ(engine_segment_set(e, &less), TARN_OK);
    CHECK(engine_segment_same(e, &less) && !engine_segment_same(e, &s));
    engine_destroy(&e);
}

/* With a segment, at whose address nobody is. */
static struct engine *make_alone(void) {
    struct engine *e = make();
    struct engine_segment s = {.id = 4, .epoch = 2, .size = 4096};
    CHECK(engine_segment_way(&s, "tcp://127.0.0.1:1") != NULL);
    CHECK_EQ(engine_segment_set(e, &s), TARN_OK);
    return e;
}

TEST(operations_that_make_no_sense) {
    struct engine *e = make_alone();
    char data[100];
    uint8_t grant[GRANT_SIZE] = {0};
    struct iovec iov = {data, 100};
    struct engine_part part = {{4, 2, 0, 100}, grant, 0, 100};
    struct engine_op op = {.parts = &part, .n_parts = 1, .iov = &iov, .n_iov = 1};
    struct engine_op ops[6] = {op, op, op, op, op, op};
    struct engine_part parts[6] = {part, part, part, part, part, part};
    for (int i = 0; i < 6; i++) ops[i].parts = &parts[i];
    parts[0].sub_length = 99;          /* not what the iov holds */
    parts[1].sub_offset = 1;           /* past the extent */
    parts[2].extent.segment = 5;       /* unknown */
    parts[3].extent.segment_epoch = 1; /* another epoch */
    ops[4].lease_end_boot_ms = 1;      /* long over */
    ops[5].n_parts = 0;
    CHECK_EQ(engine_run(e, ops, 6, clock_boot_ms() + 60000), TARN_OK);
    CHECK_EQ(ops[0].status, TARN_EINVAL);
    CHECK_EQ(ops[1].status, TARN_EINVAL);
    CHECK_EQ(ops[2].status, TARN_ENOSEGMENT);
    CHECK_EQ(ops[3].status, TARN_ESTALE);
    CHECK_EQ(ops[4].status, TARN_ELEASE);
    CHECK_EQ(ops[5].status, TARN_EINVAL);
    struct engine_stats st;
    engine_get_stats(e, &st);
    CHECK_EQ(st.lease_misses, 1);
    CHECK_EQ(engine_run(e, &op, 1, clock_boot_ms() + 150),
             TARN_OK); /* nobody there: tries, until the deadline */
    CHECK(op.status == TARN_ETIMEOUT || op.status == TARN_ECLOSED);
    engine_destroy(&e);
}

/* Nobody who wants a grant is asked without one: at once, and what has one goes on by itself. */
TEST(a_part_without_a_grant_goes_no_way_that_wants_one) {
    struct engine *e = make_alone();
    char data[100];
    uint8_t grant[GRANT_SIZE] = {0};
    struct iovec iov = {data, 100};
    struct engine_part none = {{4, 2, 0, 100}, NULL, 0, 100}, one = {{4, 2, 0, 100}, grant, 0, 100};
    struct engine_op op = {.iov = &iov, .n_iov = 1, .n_parts = 1, .patience_ms = 10};
    for (int write = 0; write < 2; write++) {
        struct engine_op ops[4] = {op, op, op, op};
        for (int i = 0; i < 4; i++) {
            ops[i].write = write;
            ops[i].parts = i % 2 ? &one : &none;
        }
        CHECK_EQ(engine_run(e, ops, 1, 0), TARN_OK);
        CHECK_EQ(ops[0].status, TARN_EGRANT_EXPIRED);
        CHECK_EQ(engine_run(e, ops, 4, clock_boot_ms() + 60000), TARN_OK);
        for (int i = 0; i < 4; i += 2)
            CHECK(ops[i].status == TARN_EGRANT_EXPIRED && ops[i].settled);
        for (int i = 1; i < 4; i += 2) CHECK_EQ(ops[i].status, TARN_ECLOSED);
    }
    engine_destroy(&e);
}

TEST(runs_end_when_another_thread_says_so) {
    bool stop = true;
    struct engine_config c;
    engine_config_init(&c);
    c.stop = &stop;
    struct engine *e;
    CHECK_EQ(engine_create(&c, &e), TARN_OK);
    struct engine_segment s = {.id = 4, .epoch = 2, .size = 4096};
    CHECK(engine_segment_way(&s, "tcp://127.0.0.1:1") != NULL);
    CHECK_EQ(engine_segment_set(e, &s), TARN_OK);
    char data[100];
    uint8_t grant[GRANT_SIZE] = {0};
    struct iovec iov = {data, 100};
    struct engine_part part = {{4, 2, 0, 100}, grant, 0, 100};
    struct engine_op op = {.parts = &part, .n_parts = 1, .iov = &iov, .n_iov = 1};
    uint64_t start = clock_mono_ms();
    CHECK_EQ(engine_run(e, &op, 1, 0), TARN_OK);
    CHECK_EQ(op.status, TARN_ECANCELED); /* it would have been tried again and again */
    CHECK(clock_mono_ms() - start < 30000);
    engine_destroy(&e);
}

TEST_MAIN()
