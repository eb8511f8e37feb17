/* GET, SET and their kin, where the values live on other machines. */
#include "pool.h"

#define KB UINT64_C(1024)
#define MB (1024 * KB)

static redisContext *c;
static redisReply *reply;

static void begin(uint64_t own) {
    pool_begin(own);
    c = pool_connect();
    CHECK(c != NULL && c->err == 0);
}

static void end(void) {
    if (reply != NULL) freeReplyObject(reply);
    reply = NULL;
    redisFree(c);
    pool_end();
}

static void ask(const char *fmt, ...) {
    va_list ap;
    if (reply != NULL) freeReplyObject(reply);
    va_start(ap, fmt);
    reply = redisvCommand(c, fmt, ap);
    va_end(ap);
}

static void check_value(const char *value, size_t len) {
    CHECK(reply != NULL);
    if (reply->type == REDIS_REPLY_ERROR) CHECK_STR(reply->str, "a value");
    CHECK_EQ(reply->type, REDIS_REPLY_STRING);
    CHECK_EQ(reply->len, len);
    CHECK(memcmp(reply->str, value, len) == 0);
}

static void check_ok(void) {
    CHECK(reply != NULL);
    CHECK(reply->type == REDIS_REPLY_STATUS || reply->type == REDIS_REPLY_ERROR);
    CHECK_STR(reply->str, "OK");
}

static void check_nil(void) {
    CHECK(reply != NULL);
    CHECK_EQ(reply->type, REDIS_REPLY_NIL);
}

static void check_int(long long v) {
    CHECK(reply != NULL);
    CHECK_EQ(reply->type, REDIS_REPLY_INTEGER);
    CHECK_EQ(reply->integer, v);
}

static char *make(size_t len, unsigned seed) {
    char *data = xmalloc(len + 1);
    for (size_t i = 0; i < len; i++)
        data[i] = (char)((i * 2654435761u + seed * 97 + i / 4096) >> 7);
    data[len] = 0;
    return data;
}

/* --- looking at the books, from the server's thread --- */

struct figures {
    struct remote_figures now;
    struct remote_stats stats;
};

static void get_figures(void *arg) {
    struct figures *f = arg;
    remote_get_figures(&f->now);
    f->stats = remote_stats;
}

static struct figures figures(void) {
    struct figures f;
    pool_call(get_figures, &f);
    return f;
}

/* All that was lent has come back. */
static bool nothing_claimed(void) {
    for (int i = 0; i < 30000; i++) {
        struct figures f = figures();
        if (f.now.claimed + f.now.claims + f.now.sessions == 0) return true;
        usleep(1000);
    }
    return false;
}

struct look {
    const char *key;
    struct store_layout layout;
    uint64_t version, size;
    bool there;
};

static void look_at(void *arg) {
    struct look *l = arg;
    struct object *o = store_find(server.store, span_str(l->key));
    struct span value;
    l->there = o != NULL;
    if (o == NULL) return;
    l->version = store_object_version(o);
    l->size = store_object_size(server.store, o);
    if (!store_object_inline(o, &value)) store_object_layout(server.store, o, &l->layout);
}

static struct look look(const char *key) {
    struct look l = {.key = key};
    pool_call(look_at, &l);
    return l;
}

static struct pool_node *node_of(const struct store_replica *r) {
    for (unsigned i = 0; i < POOL_NODES; i++)
        if (pool.node[i].host != NULL && pool.node[i].segment == r->extent[0].segment)
            return &pool.node[i];
    return NULL;
}

/* A second replica, which nobody asks for in-band: the test is the task that copies it. */
struct copying {
    const char *key;
    uint32_t to;
};

static void copy_replica(void *arg) {
    const struct copying *k = arg;
    struct object *o = store_find(server.store, span_str(k->key));
    struct store_layout layout;
    struct store_copy_options options = {
        .segment = k->to, .host = STORE_HOST_NONE, .from = STORE_SEGMENT_ANY, .evict = true};
    struct store_copy *copy;
    struct store_replica to;
    unsigned budget = 100000;
    store_object_layout(server.store, o, &layout);
    TARN_ASSERT(store_copy_start(server.store, span_str(k->key), store_object_version(o), &options,
                                 &budget, &copy) == TARN_OK);
    store_copy_layout(server.store, copy, &to);
    const struct store_replica *from = &layout.replica[0];
    TARN_ASSERT(from->extents == 1 && to.extents == 1);
    char *src = host_segment_base(node_of(from)->host, from->extent[0].segment);
    char *dst = host_segment_base(node_of(&to)->host, k->to);
    memcpy(dst + to.extent[0].offset, src + from->extent[0].offset, from->extent[0].length);
    TARN_ASSERT(store_copy_end(server.store, &copy, true) == TARN_OK);
}

static void add_replica(const char *key, unsigned node) {
    struct copying k = {key, pool.node[node].segment};
    pool_call(copy_replica, &k);
}

struct damage {
    const char *key;
    unsigned node;
    uint64_t at; /* of the value */
};

static void do_damage(void *arg) {
    const struct damage *d = arg;
    struct object *o = store_find(server.store, span_str(d->key));
    struct store_layout layout;
    store_object_layout(server.store, o, &layout);
    for (uint32_t i = 0; i < layout.replicas; i++) {
        const struct store_extent *x = &layout.replica[i].extent[0];
        if (x->segment != pool.node[d->node].segment) continue;
        char *base = host_segment_base(pool.node[d->node].host, x->segment);
        base[x->offset + d->at] ^= 1;
        return;
    }
    TARN_ASSERT(0);
}

static void damage(const char *key, unsigned node, uint64_t at) {
    struct damage d = {key, node, at};
    pool_call(do_damage, &d);
}

/* --- tests --- */

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

TEST(without_room) {
    begin(0);
    char *v = make(100, 1);
    ask("SET k %b", v, (size_t)100);
    CHECK(strstr(reply->str, "OOM no room for 100 bytes: no node is up yet") == reply->str);
    ask("SET k small");
    check_ok();
    pool_add_node(0, 1 * MB);
    free(v);
    v = make(2 * MB, 1);
    ask("SET k %b", v, 2 * MB);
    CHECK_EQ(reply->type, REDIS_REPLY_ERROR);
    CHECK(
        strstr(
            reply->str,
            "OOM no room for 2097152 bytes: a value lies in one segment, and the largest of 1 ") ==
        reply->str);
    ask("GET k");
    check_value("small", 5);
    free(v);
    end();
}

TEST(own_memory_first_then_elsewhere) {
    begin(8 * MB);
    pool_add_node(0, 64 * MB);
    char *v = make(3 * MB, 5);
    for (int i = 0; i < 6;
         i++) { /* what does not fit here goes there, though nothing had to be evicted */
        ask("SET k%d %b", i, v, 3 * MB);
        check_ok();
    }
    unsigned there = 0;
    for (int i = 0; i < 6; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", i);
        struct look l = look(key);
        CHECK(l.there);
        there += l.layout.replica[0].extent[0].segment == pool.node[0].segment;
        ask("GET k%d", i);
        check_value(v, 3 * MB);
    }
    CHECK_EQ(there, 4);
    ask("DEL k0 k1 k2 k3 k4 k5");
    check_int(6);
    ask("SET again %b", v, 3 * MB);
    check_ok();
    ask("SET again %b", v, 3 * MB);
    check_ok();
    CHECK_EQ(look("again").layout.replica[0].extent[0].segment, 0u);
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

TEST(new_values_made_of_old_ones) {
    begin(0);
    pool_add_node(0, 64 * MB);
    size_t len = 3 * MB + 500;
    char *v = make(len + 2 * MB, 9), *tail = v + len;
    ask("SET k %b", v, len);
    check_ok();
    ask("APPEND k %b", tail, 2 * MB);
    check_int((long long)(len + 2 * MB));
    ask("GET k");
    check_value(v, len + 2 * MB);
    memset(v + 1000000, 'x', 200000);
    ask("SETRANGE k 1000000 %b", v + 1000000, (size_t)200000);
    check_int((long long)(len + 2 * MB));
    ask("GET k");
    check_value(v, len + 2 * MB);
    ask("GETSET k %b", v, (size_t)100);
    check_value(v, len + 2 * MB);
    ask("SET k %b GET", v, (size_t)200);
    check_value(v, 100);
    ask("SET k other NX GET");
    check_value(v, 200);
    ask("SET k tiny GET");
    check_value(v, 200);
    ask("GETDEL k");
    check_value("tiny", 4);
    ask("SET k %b", v, len);
    check_ok();
    ask("GETEX k EX 100");
    check_value(v, len);
    ask("TTL k");
    CHECK(reply->integer > 90 && reply->integer <= 100);
    ask("GETDEL k");
    check_value(v, len);
    ask("GET k");
    check_nil();
    ask("MSET a %b b %b c small", v, (size_t)5000, v + 1, (size_t)70000);
    check_ok();
    ask("GET b");
    check_value(v + 1, 70000);
    /* A number with so many zeroes in front that it is not in the books. */
    char zeroes[130];
    memset(zeroes, ' ', 100);
    ask("SET n %b", zeroes, (size_t)100);
    ask("INCR n");
    CHECK_EQ(reply->type, REDIS_REPLY_ERROR);
    snprintf(zeroes, sizeof(zeroes), "%0100d", 0);
    zeroes[0] = '1';
    zeroes[1] = '.';
    ask("SET n %b", zeroes, (size_t)100);
    ask("INCRBYFLOAT n 2");
    check_value("3", 1);
    CHECK(nothing_claimed());
    free(v);
    end();
}

TEST(options_and_times_of_values_that_are_elsewhere) {
    begin(0);
    pool_add_node(0, 32 * MB);
    char *v = make(2 * MB, 9);
    ask("SETEX k 100 %b", v, 2 * MB);
    check_ok();
    ask("APPEND k tail");
    check_int(2 * MB + 4);
    ask("TTL k");
    CHECK(reply->integer > 90 && reply->integer <= 100);
    ask("SETNX k %b", v, (size_t)100);
    check_int(0);
    ask("SET k %b NX", v, (size_t)100);
    check_nil();
    ask("SET k2 %b XX", v, (size_t)100);
    check_nil();
    ask("SETNX k2 %b", v, (size_t)100000);
    check_int(1);
    ask("SET k2 %b XX EX 50", v + 1, (size_t)100000);
    check_ok();
    ask("GET k2");
    check_value(v + 1, 100000);
    ask("SET k2 %b KEEPTTL", v, (size_t)70);
    check_ok();
    ask("TTL k2");
    CHECK(reply->integer > 40 && reply->integer <= 50);
    ask("GETEX k2 PERSIST");
    check_value(v, 70);
    ask("TTL k2");
    check_int(-1);
    ask("GETEX k2 PXAT 1");
    check_value(v, 70);
    ask("EXISTS k2");
    check_int(0);
    ask("MSETNX a %b b %b", v, (size_t)1000, v, (size_t)2000);
    check_int(1);
    ask("MSETNX c %b b %b", v, (size_t)1000, v, (size_t)2000);
    check_int(0);
    free(v);
    end();
}

TEST(replies_that_nobody_wants) {
    begin(0);
    pool_add_node(0, 32 * MB);
    char *v = make(9 * MB, 9);
    ask("SET k %b", v, 9 * MB);
    check_ok();
    redisAppendCommand(c, "CLIENT REPLY OFF");
    redisAppendCommand(c, "GET k");
    redisAppendCommand(c, "MGET k k");
    redisAppendCommand(c, "CLIENT REPLY ON");
    redisAppendCommand(c, "PING");
    redisReply *r = NULL;
    CHECK_EQ(redisGetReply(c, (void **)&r), REDIS_OK);
    CHECK_STR(r->str, "OK");
    freeReplyObject(r);
    CHECK_EQ(redisGetReply(c, (void **)&r), REDIS_OK);
    CHECK_STR(r->str, "PONG");
    freeReplyObject(r);
    CHECK(nothing_claimed());
    ask("GET k");
    check_value(v, 9 * MB);
    free(v);
    end();
}

/* Each takes its turn; none is told to try again. */
TEST(many_writers_of_one_key) {
    enum { CLIENTS = 8, EACH = 20 };
    begin(0);
    pool_add_node(0, 64 * MB);
    redisContext *other[CLIENTS];
    char *v = make(200 * KB, 3);
    for (int i = 0; i < CLIENTS; i++) {
        other[i] = pool_connect();
        for (int k = 0; k < EACH; k++) {
            redisAppendCommand(other[i], "SET same %b", v, 200 * KB - (size_t)i);
            redisAppendCommand(other[i], "APPEND grows %b", v, (size_t)100);
        }
        int done = 0;
        while (!done) redisBufferWrite(other[i], &done);
    }
    for (int i = 0; i < CLIENTS; i++) {
        for (int k = 0; k < 2 * EACH; k++) {
            redisReply *r = NULL;
            CHECK_EQ(redisGetReply(other[i], (void **)&r), REDIS_OK);
            if (r->type == REDIS_REPLY_ERROR) CHECK_STR(r->str, "");
            freeReplyObject(r);
        }
        redisFree(other[i]);
    }
    ask("STRLEN grows");
    check_int(CLIENTS * EACH * 100);
    ask("GET grows");
    for (size_t at = 0; at < reply->len; at += 100) CHECK(memcmp(reply->str + at, v, 100) == 0);
    ask("GET same");
    check_value(v, reply->len);
    CHECK(reply->len > 200 * KB - CLIENTS);
    CHECK(nothing_claimed());
    free(v);
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
    struct object *o = store_find(server.store, span_str(key));
    struct store_layout layout;
    uint32_t crc;
    TARN_ASSERT(store_object_crc(o, &crc));
    uint64_t size = store_object_size(server.store, o);
    store_object_layout(server.store, o, &layout);
    const struct store_extent *x = &layout.replica[0].extent[0];
    char *bytes = host_segment_base(pool.node[0].host, x->segment);
    struct store_put_options options = {
        .replicas = 1, .host = STORE_HOST_NONE, .replace = true, .supersede = true};
    struct store_batch batch;
    struct store_put *put;
    unsigned budget = 10000;
    char *copy = xmemdup(bytes + x->offset, size);
    store_batch_begin(server.store, &batch, NULL, STORE_BATCH_PUT, 1);
    TARN_ASSERT(store_put_start(server.store, &batch, span_str(key), size, &options, 99999, &budget,
                                &put) == TARN_OK);
    store_put_layout(server.store, put, &layout);
    memcpy((char *)host_segment_base(pool.node[0].host, layout.replica[0].extent[0].segment) +
               layout.replica[0].extent[0].offset,
           copy, size);
    free(copy);
    TARN_ASSERT(store_put_end(server.store, span_str(key), store_put_token(put), crc, 0, NULL, 0,
                              NULL) == TARN_OK);
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
    struct object *o = store_find(server.store, span_str(key));
    struct store_layout layout;
    struct pool_node *n = &pool.node[0];
    store_object_layout(server.store, o, &layout);
    const struct store_extent *x = &layout.replica[0].extent[0];
    memcpy(n->disk_bytes + 8192, (char *)host_segment_base(n->host, x->segment) + x->offset,
           x->length);
    TARN_ASSERT(store_far_add(server.store, o, n->disk, 8192) == TARN_OK);
    TARN_ASSERT(store_replica_drop(server.store, o, n->segment, false) == TARN_OK);
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

/* --- copies to the embedded segment --- */

struct own_copy {
    const char *key;
    uint64_t task;
    tarn_status status;
    bool canceled;
};

static void copy_here(void *arg) {
    struct own_copy *k = arg;
    struct object *o = store_find(server.store, span_str(k->key));
    k->status = cluster_replica_copy(o, 0, &k->task);
}

static bool here(const char *key) {
    struct look l = look(key);
    for (uint32_t i = 0; i < l.layout.replicas; i++)
        if (l.layout.replica[i].extent[0].segment == 0) return true;
    return false;
}

static void own_bytes(void *arg) {
    char **data = arg;
    struct object *o = store_find(server.store, SPAN("k"));
    struct store_layout layout;
    store_object_layout(server.store, o, &layout);
    for (uint32_t i = 0; i < layout.replicas; i++)
        if (replica_is_local(&layout.replica[i]))
            *data = extent_memory(&layout.replica[i].extent[0]);
}

TEST(copies_to_the_embedded_segment) {
    begin(8 * MB);
    pool_add_node(0, 32 * MB);
    size_t len = 5 * MB + 9;
    char *v = make(len, 7), *mine = NULL;
    ask("SET filler %b", v, 5 * MB);
    check_ok();
    ask("SET k %b", v, len);
    check_ok();
    CHECK(!here("k"));
    ask("DEL filler");
    struct own_copy k = {.key = "k"};
    pool_call(copy_here, &k);
    CHECK_EQ(k.status, TARN_OK);
    for (unsigned i = 0; i < TEST_PATIENCE_MS && !here("k"); i++) usleep(1000);
    CHECK(here("k"));
    pool_call(own_bytes, &mine);
    CHECK(mine != NULL && memcmp(mine, v, len) == 0);
    pool_kill(0);
    ask("GET k");
    check_value(v, len);
    CHECK_EQ(figures().stats.inband_failures, 0);
    free(v);
    end();
}

TEST(a_write_whose_host_dies_goes_to_another) {
    begin(0);
    pool_add_node(0, 32 * MB);
    pool_add_node(1, 32 * MB);
    char *v = make(5 * MB, 2);
    pool_kill(0);
    for (int i = 0; i < 4; i++) {
        ask("SET k%d %b", i, v, 5 * MB);
        check_ok();
        ask("GET k%d", i);
        check_value(v, 5 * MB);
        CHECK_EQ(look("k0").layout.replica[0].extent[0].segment, pool.node[1].segment);
    }
    pool_kill(1);
    ask("SET k9 %b", v, 5 * MB);
    CHECK_EQ(reply->type, REDIS_REPLY_ERROR);
    CHECK(strncmp(reply->str, "TRYAGAIN", 8) == 0);
    ask("GET k9");
    check_nil();
    ask("SET k9 small");
    check_ok();
    free(v);
    end();
}

TEST(clients_that_leave_in_the_middle) {
    begin(0);
    /* room for all the APPENDs: who has said all of one may leave, it is done */
    pool_add_node(0, 128 * MB);
    size_t len = 12 * MB;
    char *v = make(len, 3);
    ask("SET k %b", v, len);
    check_ok();
    for (int i = 0; i < 30; i++) {
        redisContext *other = pool_connect();
        if (i % 3 == 0)
            redisAppendCommand(other, "GET k");
        else if (i % 3 == 1)
            redisAppendCommand(other, "APPEND k2 %b", v, 3 * MB);
        else
            redisAppendCommand(other, "MGET k k2 k k2");
        int done = 0;
        while (!done) redisBufferWrite(other, &done);
        if (i % 2) usleep(500u * (unsigned)i);
        redisFree(other);
    }
    ask("GET k");
    check_value(v, len);
    CHECK(nothing_claimed());
    free(v);
    end();
}

static redisContext *asks(const char *command) {
    redisContext *c = pool_connect();
    redisAppendCommand(c, command);
    int done = 0;
    while (!done) redisBufferWrite(c, &done);
    return c;
}

static void small_buffers(void *arg) {
    pool.config.inband_buffer = 16 * MB;
    pool.config.inband_stall_timeout_ms = arg != NULL ? 2000 : 3600000;
}

/* More than the buffers hold at a time; those who do not read what they asked for do not stop the
 * others. */
TEST(bounded_buffers) {
    begin(0);
    pool_call(small_buffers, NULL);
    pool_add_node(0, 64 * MB);
    size_t len = 12 * MB;
    char *v = make(len, 3);
    ask("SET k %b", v, len);
    check_ok();
    redisContext *other[8];
    for (int i = 0; i < 8; i++) other[i] = asks("GET k");
    for (unsigned i = 0; i < TEST_PATIENCE_MS && figures().now.claims_waiting < 4; i++)
        usleep(1000);
    struct figures f = figures();
    CHECK_EQ(f.now.claims, 4);
    CHECK_EQ(f.now.claims_waiting, 4);
    CHECK(f.now.claimed <= 16 * MB);
    for (int i = 0; i < 8; i++) {
        redisReply *r = NULL;
        CHECK_EQ(redisGetReply(other[i], (void **)&r), REDIS_OK);
        CHECK_EQ(r->len, len);
        CHECK(memcmp(r->str, v, len) == 0);
        freeReplyObject(r);
        redisFree(other[i]);
    }
    CHECK(figures().stats.inband_waits >= 4);
    free(v);
    end();
}

/* Values that are still being fetched, and those of which all is there. */
static void do_not_read(size_t len) {
    begin(0);
    pool_call(small_buffers, &pool);
    pool_add_node(0, 64 * MB);
    char *v = make(len, 3);
    ask("SET k %b", v, len);
    check_ok();
    redisContext *other[4];
    for (int i = 0; i < 4; i++) other[i] = asks("GET k");
    for (unsigned i = 0; i < TEST_PATIENCE_MS && figures().now.claims < 4; i++) usleep(1000);
    ask("GET k"); /* waits for one of them to be closed */
    check_value(v, len);
    CHECK(figures().stats.inband_stalled_clients >= 1);
    for (int i = 0; i < 4; i++) redisFree(other[i]);
    CHECK(nothing_claimed());
    free(v);
    end();
}

TEST(who_does_not_read_makes_room_for_others) {
    do_not_read(12 * MB);
}

TEST(who_does_not_read_what_has_arrived_makes_room_too) {
    do_not_read(4 * MB);
}

/* A value of it is waited for, and another one waits for room. */
static void close_mget(void *arg) {
    struct remote_figures f;
    remote_get_figures(&f);
    for (struct client *c = clients.head; c != NULL && f.claims_waiting > 0; c = c->io->all.next) {
        bool *closed = arg, mget = c->job != NULL && span_eq(c->argv[0], SPAN("MGET"));
        if (mget) client_close_soon(c);
        *closed |= mget;
    }
}

TEST(who_leaves_gives_back_what_another_part_of_it_waits_for) {
    begin(0);
    pool_call(small_buffers, NULL);
    pool_add_node(0, 64 * MB);
    char *v = make(12 * MB, 3);
    ask("SET k %b", v, 12 * MB);
    ask("MSET a %b b %b", v, 3 * MB, v, 3 * MB);
    redisContext *other[3];
    for (int i = 0; i < 3; i++) other[i] = asks("GET k"); /* leave room for one of the two */
    for (unsigned i = 0; i < TEST_PATIENCE_MS && figures().now.claims < 3; i++) usleep(1000);
    CHECK_EQ(figures().now.claims, 3);
    for (int i = 0; i < 500; i++) { /* some come in time */
        redisContext *mget = asks("MGET a b");
        bool closed = false;
        for (int k = 0; k < 2000000 && !closed; k++) pool_call(close_mget, &closed);
        CHECK(closed);
        redisFree(mget);
    }
    for (int i = 0; i < 3; i++) redisFree(other[i]);
    CHECK(nothing_claimed());
    free(v);
    end();
}

TEST_MAIN()
