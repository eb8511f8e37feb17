/* Values on nodes and their disks, read whole: from the next replica where one fails, and never
 * a wrong byte. */
#include "values.h"

static const size_t sizes[] = {1, 64, 65, 1000, 4096, 65536, 1048576, 1048577, 5242880 + 77};

TEST(values_of_all_sizes_on_a_node) {
    begin(0);
    pool_add_node(0, 32 * MB);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        char *v = make(sizes[i], (unsigned)i);
        ask("SET k%d %b", (int)i, v, sizes[i]);
        check_ok();
        free(v);
    }
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        char *v = make(sizes[i], (unsigned)i);
        ask("GET k%d", (int)i);
        check_value(v, sizes[i]);
        ask("STRLEN k%d", (int)i);
        check_int((long long)sizes[i]);
        size_t from = sizes[i] / 3, to = sizes[i] - sizes[i] / 7 - 1;
        if (to >= from) {
            ask("GETRANGE k%d %d %d", (int)i, (int)from, (int)to);
            check_value(v + from, to - from + 1);
        }
        ask("GETRANGE k%d -1 -1", (int)i);
        check_value(v + sizes[i] - 1, 1);
        free(v);
    }
    struct look l = look("k8");
    CHECK(l.there);
    CHECK_EQ(l.layout.replica[0].extent[0].segment, pool.node[0].segment);
    CHECK(figures().stats.inband_writes > 0 && figures().stats.inband_reads > 0);
    CHECK_EQ(figures().stats.inband_failures, 0);
    CHECK(nothing_claimed());
    end();
}

TEST(shared_memory_of_a_node_on_this_machine) {
    begin(0);
    struct pool_node_config n = {.number = 0, .size = 16 * MB, .own_machine = true};
    pool_call(pool_node_up, &n);
    char *v = make(3 * MB, 3);
    ask("SET k %b", v, 3 * MB);
    check_ok();
    ask("GET k");
    check_value(v, 3 * MB);
    struct host_stats s;
    host_get_stats(pool.node[0].host, &s);
    CHECK(s.shm_attaches >= 2);
    CHECK_EQ(s.bytes_read + s.bytes_written, 0);
    free(v);
    end();
}

TEST(many_values_at_once) {
    begin(4 * MB);
    pool_add_node(0, 64 * MB);
    enum { N = 60 };
    char *v[N];
    for (int i = 0; i < N; i++) {
        size_t len = i % 5 == 0 ? 20 : 1000 + (size_t)i * 20000;
        v[i] = make(len, (unsigned)i);
        v[i][0] = (char)('a' + i % 26);
        ask("SET m%d %b", i, v[i], len);
        check_ok();
    }
    if (reply != NULL) freeReplyObject(reply);
    const char *argv[N + 2];
    size_t lens[N + 2];
    char names[N + 1][16];
    argv[0] = "MGET";
    lens[0] = 4;
    for (int i = 0; i <= N; i++) {
        snprintf(names[i], sizeof(names[i]), i == N ? "none" : "m%d", i);
        argv[i + 1] = names[i];
        lens[i + 1] = strlen(names[i]);
    }
    reply = redisCommandArgv(c, N + 2, argv, lens);
    CHECK(reply != NULL);
    CHECK_EQ(reply->elements, (size_t)N + 1);
    for (int i = 0; i < N; i++) {
        size_t len = i % 5 == 0 ? 20 : 1000 + (size_t)i * 20000;
        CHECK_EQ(reply->element[i]->len, len);
        CHECK(memcmp(reply->element[i]->str, v[i], len) == 0);
        free(v[i]);
    }
    CHECK_EQ(reply->element[N]->type, REDIS_REPLY_NIL);
    end();
}

TEST(a_replica_that_fails_is_left_for_the_next) {
    begin(0);
    pool_add_node(0, 32 * MB);
    size_t len = 6 * MB;
    char *v = make(len, 4);
    ask("SET k %b", v, len);
    check_ok();
    ask("SET alone %b", v, 2 * MB);
    check_ok();
    pool_add_node(1, 32 * MB);
    add_replica("k", 1);
    pool_kill(0);
    for (int i = 0; i < 3; i++) {
        ask("GET k");
        check_value(v, len);
    }
    CHECK(figures().stats.inband_failovers > 0 || figures().stats.inband_failures == 0);
    ask("GET alone"); /* its host is not known to be down: a miss, not an error */
    check_nil();
    ask("EXISTS alone");
    check_int(1);
    ask("APPEND alone x");
    CHECK_EQ(reply->type, REDIS_REPLY_ERROR);
    CHECK(strncmp(reply->str, "TRYAGAIN", 8) == 0);
    free(v);
    end();
}

TEST(wrong_bytes_are_never_sent_and_their_replica_goes) {
    begin(0);
    pool_add_node(0, 32 * MB);
    size_t len = 4 * MB + 10;
    char *v = make(len, 6);
    ask("SET k %b", v, len);
    check_ok();
    ask("SET alone %b", v, (size_t)1000);
    check_ok();
    ask("SET whole %b", v, 3 * MB);
    check_ok();
    pool_add_node(1, 32 * MB);
    add_replica("k", 1);
    damage("k", 0, 3 * MB + 5); /* in the middle of the reply */
    for (int i = 0; i < 8; i++) {
        ask("GET k");
        check_value(v, len);
    }
    ask("GETRANGE k %d %d", (int)(3 * MB), (int)(3 * MB + 9));
    check_value(v + 3 * MB, 10);
    struct look l = look("k");
    ask("REPLICA REPORT k %lld", (long long)l.version);
    CHECK(reply->type == REDIS_REPLY_INTEGER &&
          reply->integer <= 1); /* a reader may have seen to it already */
    l = look("k");
    CHECK_EQ(l.layout.replicas, 1);
    CHECK_EQ(l.layout.replica[0].extent[0].segment, pool.node[1].segment);
    ask("GET k");
    check_value(v, len);

    damage("alone", 0, 999);
    ask("GET alone");
    check_nil();
    for (unsigned i = 0; i < TEST_PATIENCE_MS && look("alone").there; i++) usleep(1000);
    CHECK(!look("alone").there);

    /* The rest of a value that is damaged, where there is no other replica: the connection ends. */
    damage("whole", 0, 3 * MB - 1);
    if (reply != NULL) freeReplyObject(reply);
    reply = redisCommand(c, "GET whole");
    CHECK(reply == NULL);
    CHECK_EQ(figures().stats.inband_broken, 1);
    for (unsigned i = 0; i < TEST_PATIENCE_MS && look("whole").there; i++) usleep(1000);
    CHECK(!look("whole").there);
    redisFree(c);
    c = pool_connect();
    ask("GET whole");
    check_nil();
    free(v);
    end();
}

TEST(reports_of_what_is_right) {
    begin(4 * MB);
    pool_add_node(0, 32 * MB);
    char *v = make(2 * MB, 6);
    ask("SET here %b", v, 2 * MB);
    check_ok();
    ask("SET here2 %b", v, 1 * MB);
    check_ok();
    ask("SET there %b", v, 3 * MB / 2);
    check_ok();
    CHECK_EQ(look("there").layout.replica[0].extent[0].segment, pool.node[0].segment);
    ask("REPLICA REPORT here %lld", (long long)look("here").version);
    check_int(0);
    ask("REPLICA REPORT there %lld", (long long)look("there").version);
    check_int(0);
    ask("REPLICA REPORT there 1");
    check_int(0);
    ask("GET there");
    check_value(v, 3 * MB / 2);
    damage("there", 0, 100);
    ask("REPLICA REPORT there %lld", (long long)look("there").version);
    check_int(1);
    ask("EXISTS there here");
    check_int(1);
    free(v);
    end();
}

/* The first pass over a value that has one CRC for all of it. */
static void forget_crcs(void *arg) {
    const char *key = arg;
    struct object *o = store_find(books, span_str(key));
    struct store_layout layout;
    uint32_t crc;
    TARN_ASSERT(store_object_crc(o, &crc));
    uint64_t size = store_object_size(books, o);
    store_object_layout(books, o, &layout);
    const struct store_extent *x = &layout.replica[0].extent[0];
    char *bytes = host_segment_base(pool.node[0].host, x->segment);
    struct store_put_options options = {
        .replicas = 1, .host = STORE_HOST_NONE, .replace = true, .supersede = true};
    struct store_batch batch;
    struct store_put *put;
    unsigned budget = 10000;
    char *copy = xmemdup(bytes + x->offset, size);
    store_batch_begin(books, &batch, NULL, STORE_BATCH_PUT, 1);
    TARN_ASSERT(store_put_start(books, &batch, span_str(key), size, &options, 99999, &budget,
                                &put) == TARN_OK);
    store_put_layout(books, put, &layout);
    memcpy((char *)host_segment_base(pool.node[0].host, layout.replica[0].extent[0].segment) +
               layout.replica[0].extent[0].offset,
           copy, size);
    free(copy);
    TARN_ASSERT(store_put_end(books, span_str(key), store_put_token(put), crc, 0, NULL, 0, NULL) ==
                TARN_OK);
}

TEST(values_with_a_single_crc) {
    begin(0);
    pool_add_node(0, 64 * MB);
    size_t len = 7 * MB + 3;
    char *v = make(len, 8);
    ask("SET k %b", v, len);
    check_ok();
    pool_call(forget_crcs, (void *)(uintptr_t) "k");
    ask("GET k");
    check_value(v, len);
    ask("GETRANGE k 5000000 5000009");
    check_value(v + 5000000, 10);
    pool_add_node(1, 32 * MB);
    add_replica("k", 1);
    damage("k", 0, len - 1);
    for (int i = 0; i < 4; i++) {
        ask("GET k");
        check_value(v, len);
    }
    damage("k", 1, 5);
    ask("GET k");
    check_nil();
    for (unsigned i = 0; i < TEST_PATIENCE_MS && look("k").there; i++) usleep(1000);
    CHECK(!look("k").there);
    free(v);
    end();
}

/* As a node that copied the value to its disk would have it. */
static void to_disk(void *arg) {
    const char *key = arg;
    struct object *o = store_find(books, span_str(key));
    struct store_layout layout;
    struct pool_node *n = &pool.node[0];
    store_object_layout(books, o, &layout);
    const struct store_extent *x = &layout.replica[0].extent[0];
    memcpy(n->disk_bytes + 8192, (char *)host_segment_base(n->host, x->segment) + x->offset,
           x->length);
    TARN_ASSERT(store_far_add(books, o, n->disk, 8192) == TARN_OK);
    TARN_ASSERT(store_replica_drop(books, o, n->segment, false) == TARN_OK);
}

static void damage_disk(void *arg) {
    pool.node[0].disk_bytes[8192 + *(uint64_t *)arg] ^= 1;
}

TEST(values_on_a_disk) {
    begin(0);
    struct pool_node_config n = {.number = 0, .size = 32 * MB, .disk = 32 * MB};
    pool_call(pool_node_up, &n);
    size_t len = 5 * MB + 1;
    char *v = make(len, 7);
    ask("SET k %b", v, len);
    check_ok();
    pool_call(to_disk, (void *)(uintptr_t) "k");
    CHECK_EQ(look("k").layout.replica[0].tier, STORE_TIER_SSD);
    ask("GET k");
    check_value(v, len);
    ask("GETRANGE k 3000000 3000099");
    check_value(v + 3000000, 100);
    uint64_t at = 0;
    pool_call(damage_disk, &at);
    ask("GET k");
    check_nil();
    for (unsigned i = 0; i < TEST_PATIENCE_MS && look("k").there; i++) usleep(1000);
    CHECK(!look("k").there);
    free(v);
    end();
}

/* What a node has read once it may give to the reader who reports it and to the master. */
TEST(one_wrong_reading_of_a_disk_is_no_proof) {
    begin(0);
    struct pool_node_config n = {.number = 0, .size = 8 * MB, .disk = 8 * MB};
    pool_call(pool_node_up, &n);
    char *v = make(1000, 7);
    ask("SET k %b", v, (size_t)1000);
    check_ok();
    pool_call(to_disk, (void *)(uintptr_t) "k");
    for (unsigned wrong = 1; wrong <= 2; wrong++) {
        __atomic_store_n(&pool.node[0].disk_errs, wrong, __ATOMIC_RELAXED);
        ask("REPLICA REPORT k %lld", (long long)look("k").version);
        check_int(wrong == 2);
        CHECK_EQ(look("k").there, wrong == 1);
    }
    free(v);
    end();
}

TEST_MAIN()
