/* SET and what makes new values of old ones, where the room is on other machines. */
#include "values.h"

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

TEST_MAIN()
