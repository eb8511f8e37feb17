/* Hot objects: who is found to be hot, what they get, and that they lose it again. */
#include "util.h"

#include "store/books.h"

static struct util_node n1, n2, n3;
static struct cluster_work w;

static void hot(struct cluster_config *c) {
    c->hot_replicas = 3;
    c->hot_threshold = 100;
    c->hot_window_ms = 1000;
    c->node_timeout_ms = 1000000;
}

static void begin(void) {
    n1 = (struct util_node){.name = "n1", .machine = "alpha"};
    n2 = (struct util_node){.name = "n2", .machine = "beta"};
    n3 = (struct util_node){.name = "n3", .machine = "gamma"};
    util_begin(hot);
    util_up_with(&n1, 1, 10, 256, 1);
    util_up_with(&n2, 1, 11, 256, 1);
    util_up_with(&n3, 1, 12, 256, 1);
    CHECK_EQ(util_put("a", 4096, "n1.0"), TARN_OK);
}

static void use(const char *key, int times) {
    for (int i = 0; i < times; i++) CHECK(util_read(key) != NULL);
}

static unsigned serve(void) {
    struct util_node *all[] = {&n1, &n2, &n3};
    unsigned done = 0;
    util_run();
    for (int i = 0; i < 3; i++)
        while (util_work(all[i], &w)) {
            CHECK_EQ(w.kind, CLUSTER_WORK_COPY);
            CHECK(cluster_task_done(all[i]->n, w.task, TARN_OK, 0, -1));
            done++;
        }
    util_run();
    return done;
}

static unsigned replicas(const char *key) {
    struct store_layout l;
    struct object *o = util_find(key);
    CHECK(o != NULL);
    store_object_layout(util_store, o, &l);
    return l.replicas;
}

TEST(a_hot_object_gets_replicas_and_loses_them_when_it_cools) {
    begin();
    use("a", 99);
    CHECK_EQ(serve(), 0);
    use("a", 1);
    CHECK_EQ(serve(), 1);
    CHECK_EQ(replicas("a"), 2);
    use("a", 99);
    CHECK_EQ(serve(), 0);
    use("a", 1); /* twice as hot */
    CHECK_EQ(serve(), 1);
    CHECK_EQ(replicas("a"), 3);
    use("a", 1000);
    CHECK_EQ(serve(), 0); /* that is the limit */
    CHECK_EQ(util_figures().hot_objects, 1);
    util_tick(1001);
    CHECK_EQ(replicas("a"), 3);
    use("a", 60); /* less, but not cold */
    util_tick(1001);
    CHECK_EQ(replicas("a"), 3);
    use("a", 40);
    util_tick(1001);
    CHECK_STR(util_where("a"), "n1.0");
    CHECK_EQ(util_figures().hot_objects, 0);
    util_end();
}

TEST(what_others_made_is_left_alone) {
    begin();
    uint64_t task;
    CHECK_EQ(cluster_replica_copy(util_find("a"), STORE_SEGMENT_ANY, &task), TARN_OK);
    CHECK_EQ(serve(), 1);
    CHECK_EQ(replicas("a"), 2);
    use("a", 200);
    CHECK_EQ(serve(), 1);
    CHECK_EQ(replicas("a"), 3);
    util_tick(1001);
    util_tick(1001);
    CHECK_EQ(replicas("a"), 2);
    util_end();
}

TEST(a_copy_that_comes_too_late_is_taken_away) {
    begin();
    use("a", 100);
    util_run();
    struct util_node *to = util_work(&n2, &w) ? &n2 : &n3;
    if (to == &n3) CHECK(util_work(&n3, &w));
    util_tick(1001);
    util_tick(1001);
    CHECK_EQ(util_figures().hot_objects, 0);
    CHECK(cluster_task_done(to->n, w.task, TARN_OK, 0, -1));
    CHECK_STR(util_where("a"), "n1.0");
    util_end();
}

TEST(an_object_that_is_replaced_takes_its_heat_along) {
    begin();
    use("a", 100);
    CHECK_EQ(serve(), 1);
    CHECK(store_remove(util_store, SPAN("a")));
    CHECK_EQ(util_put("a", 4096, "n1.0"), TARN_OK);
    util_tick(1001);
    util_tick(1001);
    CHECK_STR(util_where("a"), "n1.0");
    CHECK_EQ(util_figures().hot_objects, 0);
    util_end();
}

TEST(the_last_replica_is_never_taken) {
    begin();
    use("a", 100);
    CHECK_EQ(serve(), 1);
    CHECK_EQ(cluster_segment_unmount(0), TARN_OK); /* where it was put */
    util_run();
    CHECK_EQ(replicas("a"), 1);
    util_tick(1001);
    util_tick(1001);
    CHECK_EQ(replicas("a"), 1);
    util_end();
}

TEST(switched_off_it_takes_all_back) {
    begin();
    use("a", 300);
    CHECK(serve() > 0);
    CHECK(replicas("a") > 1);
    cluster_config()->hot_replicas = 0;
    cluster_config_changed();
    util_run();
    CHECK_STR(util_where("a"), "n1.0");
    use("a", 1000);
    serve(); /* one may have been on its way */
    CHECK_STR(util_where("a"), "n1.0");
    util_end();
}

TEST(the_hottest_are_found_among_many) {
    begin();
    struct rng r;
    char key[16];
    rng_seed(&r, 7);
    for (int i = 0; i < 200; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(util_put(key, 128, NULL), TARN_OK);
    }
    /* 100,000 hashes of objects that come once, and one that comes every 200th time. */
    struct object *o = util_find("k77");
    for (int i = 0; i < 100000; i++) {
        heat_hit(i % 200 == 0 ? o : util_find("k3"), i % 200 == 0 ? 99 : rng_next(&r));
    }
    CHECK_EQ(util_figures().hot_objects, 1);
    util_run();
    bool found = false;
    struct util_node *all[] = {&n1, &n2, &n3};
    for (int i = 0; i < 3; i++)
        while (util_work(all[i], &w)) found |= span_eq(w.key, SPAN("k77"));
    CHECK(found);
    util_end();
}

TEST(no_room_is_no_reason_to_evict) {
    begin();
    cluster_config()->hot_replicas = 2;
    char key[16];
    for (int i = 0; i < 3 * 256 - 1; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(util_put(key, 4096, NULL), TARN_OK);
    }
    use("a", 100);
    CHECK_EQ(serve(), 0);
    CHECK_EQ(store_count(util_store), 3 * 256);
    util_end();
}

TEST(what_is_next_to_go_gets_no_replica) {
    begin();
    CHECK_EQ(store_set_policy(util_store, "chain"), TARN_OK);
    util_run();
    char key[16];
    for (int i = 0; i < 3 * 256 - 40; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(util_put(key, 4096, NULL), TARN_OK);
    }
    unsigned budget = 1000;
    struct object *next = book_pop(util_store, -1, 0, false, false, &budget);
    book_give_back(util_store, next);
    for (int i = 0; i < 100; i++) heat_hit(next, store_hash(store_object_key(next)));
    CHECK_EQ(serve(), 0);
    /* while memory is empty there is no harm in it */
    for (int i = 0; i < 3 * 256 - 40; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        struct object *o = util_find(key);
        if (o != next && i % 2) CHECK(store_remove(util_store, span_str(key)));
    }
    util_tick(1001);
    for (int i = 0; i < 100; i++) heat_hit(next, store_hash(store_object_key(next)));
    CHECK_EQ(serve(), 1);
    util_end();
}

int main(int argc, char **argv) {
    log_set_level(LOG_LEVEL_NOTHING);
    return test_main(argc, argv);
}
