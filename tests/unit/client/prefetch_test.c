/* tarn_prefetch: what goes over the wire, and what answers are taken for. */
#include "pool.h"

#define KEYS 3
static const tarn_key keys[KEYS] = {{"a", 1}, {"b", 1}, {"c", 1}};

TEST(counts_are_those_of_the_server) {
    tarn_prefetched sum;
    begin("");
    pool_script("PREFETCH", 0, POOL_SAY, "*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n");
    pool_script("PREFETCH", 0, POOL_SAY, "*4\r\n:3\r\n:0\r\n:0\r\n:0\r\n");
    CHECK_EQ(tarn_prefetch(client, keys, KEYS, NULL, NULL, &sum), TARN_OK);
    CHECK_EQ(sum.taken, 1);
    CHECK_EQ(sum.there, 2);
    CHECK_EQ(sum.unknown, 3);
    CHECK_EQ(sum.refused, 4);
    CHECK_EQ(tarn_prefetch(client, keys, KEYS, "n1.0", NULL, NULL), TARN_OK);
    CHECK_EQ(pool_count("PREFETCH 3 a b c"), 1);
    CHECK_EQ(pool_count("PREFETCH 3 a b c SEGMENT n1.0"), 1);
    end();
}

TEST(nothing_is_asked_for_no_keys) {
    tarn_prefetched sum = {.taken = 7};
    begin("");
    CHECK_EQ(tarn_prefetch(client, keys, 0, NULL, NULL, &sum), TARN_OK);
    CHECK_EQ(sum.taken, 0);
    CHECK_EQ(pool_count("PREFETCH*"), 0);
    end();
}

TEST(other_answers_are_no_counts) {
    static const char *const answers[] = {":3\r\n", "*0\r\n", "*3\r\n:1\r\n:1\r\n:1\r\n",
                                          "*4\r\n:1\r\n:1\r\n:1\r\n+x\r\n",
                                          "*4\r\n:1\r\n:1\r\n:1\r\n:-1\r\n"};
    begin("");
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        tarn_prefetched sum = {.taken = 7};
        pool_script("PREFETCH", 0, POOL_SAY, answers[i]);
        CHECK_EQ(tarn_prefetch(client, keys, KEYS, NULL, NULL, &sum), TARN_EPROTO);
        CHECK_EQ(sum.taken, 7);
    }
    pool_script("PREFETCH", 0, POOL_SAY, "-ERR unknown command 'PREFETCH'\r\n");
    CHECK_EQ(tarn_prefetch(client, keys, KEYS, NULL, NULL, NULL), TARN_EPROTO);
    pool_script("PREFETCH", 0, POOL_SAY, "-NOSEGMENT no such segment: 'x'\r\n");
    CHECK_EQ(tarn_prefetch(client, keys, KEYS, "x", NULL, NULL), TARN_ENOSEGMENT);
    end();
}

TEST(a_broken_connection_is_made_anew) {
    tarn_prefetched sum;
    begin("");
    pool_script("PREFETCH", 0, POOL_DROP, NULL);
    pool_script("PREFETCH", 0, POOL_SAY, "*4\r\n:3\r\n:0\r\n:0\r\n:0\r\n");
    CHECK_EQ(tarn_prefetch(client, keys, KEYS, NULL, NULL, &sum), TARN_OK);
    CHECK_EQ(sum.taken, 3);
    end();
}

TEST(keys_are_checked_before) {
    const tarn_key empty = {"", 0};
    begin("");
    CHECK_EQ(tarn_prefetch(client, &empty, 1, NULL, NULL, NULL), TARN_EINVAL);
    CHECK_EQ(pool_count("PREFETCH*"), 0);
    end();
}

TEST_MAIN()
