/* Copies and moves: who makes them, what happens when something goes wrong on the way. */
#include "util.h"

static struct util_node n1, n2, n3;
static struct cluster_work w;

static void begin(void) {
    n1 = (struct util_node){.name = "n1", .machine = "alpha"};
    n2 = (struct util_node){.name = "n2", .machine = "beta"};
    n3 = (struct util_node){.name = "n3", .machine = "gamma"};
    util_begin(NULL);
    util_up_with(&n1, 1, 10, 64, 1);
    util_up_with(&n2, 1, 11, 64, 1);
    CHECK_EQ(util_put("a", 10000, "n1.0"), TARN_OK);
}

static uint32_t id_of(const char *segment) {
    struct store_segment_info info;
    CHECK(store_segment_by_name(util_store, span_str(segment), &info));
    return info.id;
}

static uint64_t copy(const char *key, const char *to) {
    uint64_t task = 0;
    CHECK_EQ(
        cluster_replica_copy(util_find(key), to != NULL ? id_of(to) : STORE_SEGMENT_ANY, &task),
        TARN_OK);
    util_run();
    return task;
}

static uint64_t free_bytes(const char *segment) {
    struct store_segment_info info;
    CHECK(store_segment_get(util_store, id_of(segment), &info));
    return info.size - info.used - info.quarantined;
}

TEST(a_copy_is_made_by_the_node_that_gets_it) {
    begin();
    uint64_t task = copy("a", NULL);
    CHECK_EQ(util_task(task).state, CLUSTER_TASK_ROOM);
    CHECK(!util_work(&n1, &w));
    CHECK(util_work(&n2, &w));
    CHECK_EQ(w.kind, CLUSTER_WORK_COPY);
    CHECK_EQ(w.task, task);
    CHECK(span_eq(w.key, SPAN("a")));
    CHECK_EQ(w.version, util_version("a"));
    CHECK_EQ(w.size, 10000);
    CHECK_EQ(w.at.extent[0].segment, id_of("n2.0"));
    CHECK_EQ(w.at.extent[0].length, 10000);
    CHECK_EQ(util_task(task).state, CLUSTER_TASK_SENT);
    CHECK(!cluster_task_done(n1.n, task, TARN_OK, 0, -1)); /* not its task */
    CHECK_STR(util_where("a"), "n1.0");
    CHECK(cluster_task_done(n2.n, task, TARN_OK, 0, -1));
    CHECK_STR(util_where("a"), "n1.0+n2.0");
    CHECK_EQ(util_task(task).state, CLUSTER_TASK_DONE);
    CHECK(!cluster_task_done(n2.n, task, TARN_OK, 0, -1)); /* once */
    util_end();
}

TEST(a_move_leaves_nothing_behind) {
    begin();
    uint64_t task, free1 = free_bytes("n1.0");
    CHECK_EQ(cluster_replica_move(util_find("a"), id_of("n1.0"), STORE_SEGMENT_ANY, &task),
             TARN_OK);
    util_run();
    CHECK(util_work(&n2, &w));
    CHECK(cluster_task_done(n2.n, task, TARN_OK, 0, -1));
    CHECK_STR(util_where("a"), "n2.0");
    CHECK(free_bytes("n1.0") > free1);
    util_end();
}

TEST(what_makes_no_sense_is_refused) {
    begin();
    uint64_t task;
    struct object *o = util_find("a");
    CHECK_EQ(cluster_replica_copy(o, id_of("n1.0"), &task), TARN_EEXISTS);
    CHECK_EQ(cluster_replica_copy(o, 99, &task), TARN_ENOSEGMENT);
    CHECK_EQ(cluster_replica_move(o, id_of("n2.0"), STORE_SEGMENT_ANY, &task), TARN_ENOTFOUND);
    CHECK_EQ(cluster_replica_move(o, id_of("n1.0"), id_of("n1.0"), &task), TARN_EINVAL);
    util_end();
}

TEST(a_failed_try_is_repeated_and_gives_its_room_back) {
    begin();
    uint64_t before = free_bytes("n2.0"), task = copy("a", "n2.0");
    for (int try = 1; try <= 4; try++) {
        CHECK(util_work(&n2, &w));
        CHECK_EQ(w.task, task);
        CHECK(free_bytes("n2.0") < before);
        CHECK(!cluster_task_done(n2.n, task, TARN_EIO, 0, -1));
        CHECK_EQ(free_bytes("n2.0"), before);
        CHECK_EQ(util_task(task).tries, try);
        CHECK_EQ(util_task(task).error, TARN_EIO);
        CHECK_EQ(util_task(task).state, try < 4 ? CLUSTER_TASK_QUEUED : CLUSTER_TASK_FAILED);
        CHECK(!util_work(&n2, &w)); /* not before its pause is over */
        CHECK(util_beat(&n1) && util_beat(&n2));
        util_tick(8000);
    }
    CHECK_STR(util_where("a"), "n1.0");
    CHECK_EQ(util_figures().tasks_retried, 3);
    util_end();
}

TEST(an_object_that_goes_meanwhile_ends_its_task) {
    begin();
    uint64_t before = free_bytes("n2.0"), task = copy("a", NULL);
    CHECK(store_remove(util_store, SPAN("a")));
    CHECK(!util_work(&n2, &w)); /* planned, not sent: not worth it any more */
    CHECK_EQ(util_task(task).state, CLUSTER_TASK_FAILED);
    CHECK_EQ(util_task(task).error, TARN_ENOTFOUND);
    CHECK_EQ(util_put("a", 10000, "n1.0"), TARN_OK);
    task = copy("a", NULL);
    CHECK(util_work(&n2, &w));
    CHECK(store_remove(util_store, SPAN("a")));
    CHECK(!cluster_task_done(n2.n, task, TARN_OK, 0, -1));
    CHECK_EQ(util_task(task).state, CLUSTER_TASK_FAILED);
    CHECK_EQ(free_bytes("n2.0"), before);
    /* Another value under the key is another object. */
    CHECK_EQ(util_put("a", 10000, "n1.0"), TARN_OK);
    task = copy("a", NULL);
    CHECK(util_work(&n2, &w));
    CHECK(store_remove(util_store, SPAN("a")));
    CHECK_EQ(util_put("a", 10000, "n1.0"), TARN_OK);
    CHECK(!cluster_task_done(n2.n, task, TARN_OK, 0, -1));
    CHECK_STR(util_where("a"), "n1.0");
    util_end();
}

TEST(a_node_that_dies_in_the_middle_gives_no_space_out_until_it_is_back) {
    begin();
    uint64_t before = free_bytes("n2.0"), task = copy("a", NULL);
    CHECK(util_work(&n2, &w));
    util_now += 9000;
    CHECK(util_beat(&n1));
    util_up_with(&n3, 1, 12, 64, 1);
    cluster_tick(util_now);
    CHECK(util_beat(&n1) && util_beat(&n3));
    util_tick(9000);
    CHECK(!util_beat(&n2));
    /* It may be a stopped process in the middle of its write. */
    CHECK_EQ(util_state(id_of("n2.0")), SEGMENT_DOWN);
    CHECK(util_work(&n3, &w)); /* meanwhile another one does it */
    CHECK_EQ(w.task, task);
    CHECK(cluster_task_done(n3.n, task, TARN_OK, 0, -1));
    CHECK_STR(util_where("a"), "n1.0+n3.0");
    CHECK_EQ(util_join_as(&n2, 1, 13), TARN_OK); /* joining means: it writes no more */
    CHECK(util_mount(&n2, "n2.0", STORE_TIER_MEMORY, 64 * 4096, 1).kept);
    CHECK_EQ(cluster_node_up(n2.n), TARN_OK);
    CHECK_EQ(free_bytes("n2.0"), before);
    CHECK(!cluster_task_done(n2.n, task, TARN_OK, 0, -1));
    util_end();
}

TEST(a_node_that_joins_again_is_asked_again) {
    begin();
    uint64_t task = copy("a", "n2.0");
    CHECK(util_work(&n2, &w));
    CHECK_EQ(util_join_as(&n2, 1, 13), TARN_OK);
    util_run();
    CHECK(!util_work(&n2, &w)); /* not before it is up */
    CHECK(util_mount(&n2, "n2.0", STORE_TIER_MEMORY, 64 * 4096, 1).kept);
    CHECK_EQ(cluster_node_up(n2.n), TARN_OK);
    util_run();
    CHECK(util_work(&n2, &w));
    CHECK_EQ(w.task, task);
    CHECK(cluster_task_done(n2.n, task, TARN_OK, 0, -1));
    CHECK_STR(util_where("a"), "n1.0+n2.0");
    util_end();
}

TEST(a_task_that_takes_too_long_is_canceled_and_tried_again) {
    begin();
    cluster_config()->task_timeout_ms = 1000;
    cluster_config()->task_rate = 1000000;
    uint64_t before = free_bytes("n2.0"), task = copy("a", NULL);
    CHECK(util_work(&n2, &w));
    util_tick(1001);
    CHECK(util_work(&n2, &w));
    CHECK_EQ(w.kind, CLUSTER_WORK_CANCEL);
    CHECK_EQ(w.task, task);
    CHECK(!util_work(&n2, &w));
    CHECK(free_bytes("n2.0") < before); /* until it says that it writes no more */
    CHECK(!cluster_task_done(n2.n, task, TARN_ECANCELED, 0, -1));
    CHECK_EQ(free_bytes("n2.0"), before);
    CHECK_EQ(util_task(task).error, TARN_ETIMEOUT);
    util_tick(1000);
    CHECK(util_work(&n2, &w));
    CHECK_EQ(w.kind, CLUSTER_WORK_COPY);
    util_tick(1001);
    CHECK(cluster_task_done(n2.n, task, TARN_OK, 0, -1)); /* late, but whole */
    CHECK_STR(util_where("a"), "n1.0+n2.0");
    CHECK_EQ(util_figures().tasks_timed_out, 2);
    CHECK(!util_work(&n2, &w)); /* nothing to cancel any more */
    util_end();
}

TEST(tasks_can_be_canceled_at_any_time) {
    begin();
    uint64_t before = free_bytes("n2.0"), task;
    CHECK_EQ(cluster_replica_copy(util_find("a"), STORE_SEGMENT_ANY, &task), TARN_OK);
    CHECK(cluster_task_cancel(task));
    CHECK_EQ(util_task(task).state, CLUSTER_TASK_CANCELED);
    CHECK(!cluster_task_cancel(task));
    task = copy("a", NULL);
    CHECK(cluster_task_cancel(task)); /* room was made */
    CHECK_EQ(free_bytes("n2.0"), before);
    CHECK(!util_work(&n2, &w));
    task = copy("a", NULL);
    CHECK(util_work(&n2, &w));
    CHECK(cluster_task_cancel(task));
    CHECK(cluster_task_cancel(task));
    CHECK_EQ(util_task(task).state, CLUSTER_TASK_SENT);
    CHECK(util_work(&n2, &w));
    CHECK_EQ(w.kind, CLUSTER_WORK_CANCEL);
    CHECK(!util_work(&n2, &w));
    CHECK(!cluster_task_done(n2.n, task, TARN_ECANCELED, 0, -1));
    CHECK_EQ(util_task(task).state, CLUSTER_TASK_CANCELED);
    CHECK_EQ(free_bytes("n2.0"), before);
    util_end();
}

TEST(a_node_makes_only_so_many_at_a_time) {
    begin();
    char key[16];
    for (int i = 0; i < 12; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(util_put(key, 5000, "n1.0"), TARN_OK);
        copy(key, NULL);
    }
    uint64_t first = 0;
    for (int i = 0; i < 4; i++) {
        CHECK(util_work(&n2, &w));
        if (first == 0) first = w.task;
    }
    CHECK(!util_work(&n2, &w));
    CHECK(cluster_task_done(n2.n, first, TARN_OK, 0, -1));
    util_run();
    CHECK(util_work(&n2, &w));
    CHECK(!util_work(&n2, &w));
    util_end();
}

TEST(tasks_are_bounded_and_users_have_a_part_to_themselves) {
    begin();
    cluster_config()->max_tasks = 8;
    uint64_t task;
    struct cluster_task *t;
    char key[16];
    for (int i = 0; i < 7; i++) {
        snprintf(key, sizeof(key), "x%d", i);
        CHECK_EQ(util_put(key, 5000, "n1.0"), TARN_OK);
        CHECK_EQ(task_create(CLUSTER_TASK_COPY, CLUSTER_BY_HEAT, util_find(key), STORE_SEGMENT_ANY,
                             STORE_SEGMENT_ANY, &t),
                 i < 6 ? TARN_OK : TARN_ELIMIT);
        CHECK(store_remove(util_store, span_str(key)));
    }
    CHECK_EQ(cluster_replica_copy(util_find("a"), STORE_SEGMENT_ANY, &task), TARN_OK);
    CHECK_EQ(cluster_replica_copy(util_find("a"), STORE_SEGMENT_ANY, &task), TARN_OK);
    CHECK_EQ(cluster_replica_copy(util_find("a"), STORE_SEGMENT_ANY, &task), TARN_ELIMIT);
    util_run(); /* those of what is gone come to nothing */
    util_end();
}

TEST(no_room_is_waited_for) {
    begin();
    uint64_t granted;
    char key[16];
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof(key), "f%d", i);
        CHECK_EQ(util_put(key, 4 * 4096, "n2.0"), TARN_OK);
        CHECK_EQ(store_lease(util_store, util_find(key), 5, 9000, &granted), TARN_OK);
    }
    uint64_t task = copy("a", "n2.0");
    CHECK_EQ(util_task(task).error, TARN_ENOSPACE);
    CHECK_EQ(util_task(task).state, CLUSTER_TASK_QUEUED);
    cluster_config()->task_retries = 100;
    for (int i = 0; i < 10; i++) {
        CHECK(util_beat(&n1) && util_beat(&n2));
        util_tick(2000);
    }
    CHECK(util_work(&n2, &w)); /* the leases are over: something was evicted */
    CHECK(cluster_task_done(n2.n, task, TARN_OK, 0, -1));
    CHECK_STR(util_where("a"), "n1.0+n2.0");
    util_end();
}

/* --- the embedded segment --- */

static uint64_t started, canceled;
static tarn_status answer;
static tarn_status start(void *arg, uint64_t task, struct span key, uint64_t version, uint64_t size,
                         const struct store_replica *to) {
    started = task;
    return answer;
}
static void cancel(void *arg, uint64_t task) {
    canceled = task;
}

TEST(copies_to_the_embedded_segment_are_made_by_callbacks) {
    static const struct cluster_local_ops ops = {.start_copy = start, .cancel = cancel};
    static const uint8_t key[16];
    uint32_t id;
    begin();
    struct store_segment_config config = {.name = "local", .epoch = 100, .size = 64 * 4096};
    CHECK_EQ(store_segment_add(util_store, &config, &id), TARN_OK);
    cluster_local_segment(id, key, &ops);
    answer = TARN_EAGAIN;
    started = canceled = 0;
    uint64_t task = copy("a", "local");
    CHECK_EQ(started, task);
    started = 0;
    util_tick(19);
    CHECK_EQ(started, 0);
    answer = TARN_OK;
    util_tick(2);
    CHECK_EQ(started, task);
    CHECK_EQ(util_task(task).state, CLUSTER_TASK_SENT);
    cluster_local_done(task, TARN_OK);
    CHECK_STR(util_where("a"), "n1.0+local");
    CHECK_EQ(util_put("b", 4096, "n1.0"), TARN_OK);
    task = copy("b", "local");
    CHECK(cluster_task_cancel(task));
    CHECK_EQ(canceled, task);
    cluster_local_done(task, TARN_ECANCELED);
    CHECK_EQ(util_task(task).state, CLUSTER_TASK_CANCELED);
    cluster_local_done(task, TARN_OK); /* of a task that is over */
    CHECK_STR(util_where("b"), "n1.0");
    answer = TARN_EIO;
    task = copy("b", "local");
    CHECK_EQ(util_task(task).state, CLUSTER_TASK_QUEUED);
    CHECK_EQ(util_task(task).error, TARN_EIO);
    util_end();
}

int main(int argc, char **argv) {
    log_set_level(LOG_LEVEL_NOTHING);
    return test_main(argc, argv);
}
