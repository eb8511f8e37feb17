/* Clients that leave in the middle of a value, or do not read it: what was lent to them comes
 * back. */
#include "values.h"

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
    CLIENTS_EACH(c) {
        if (f.claims_waiting == 0) break;
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
