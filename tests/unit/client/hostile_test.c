/* A master that means harm, or was taken over: what it says is used as lengths and places by every
 * call, and must cost the call and nothing else (guarantees 1 and 6).
 * tests/fuzz/client_server_fuzz.c says more of it, at random. */
#include <sys/resource.h>

#include "pool.h"
#include "client/client.h"

#define MIB (1u << 20)

static uint64_t version_of(const char *key, size_t len) {
    char *buffer = malloc(len);
    tarn_item item = {.key = key, .key_len = strlen(key), .buffer = buffer, .buffer_len = len};
    CHECK_EQ(tarn_get_many(client, &item, 1, NULL, NULL), TARN_OK);
    CHECK_EQ(item.status, TARN_OK);
    free(buffer);
    return item.version;
}

/* [version, size, lease, crc, no replicas, the value] */
static void inline_value(char *out, size_t cap, const char *before, uint64_t version, size_t len) {
    int n = snprintf(out, cap, "%s*6\r\n:%llu\r\n:%zu\r\n:5000\r\n:-1\r\n*0\r\n$%zu\r\n", before,
                     (unsigned long long)version, len, len);
    memset(out + n, 'x', len);
    snprintf(out + n + len, cap - (size_t)n - len, "\r\n");
}

TEST(guarantee_6_a_long_inline_value_and_a_view) {
    begin("");
    static char text[512];
    tarn_view *view = NULL;
    static const size_t lens[] = {64, 65, 150};
    for (size_t i = 0; i < 3; i++) {
        size_t len = lens[i];
        inline_value(text, sizeof(text), "", 9, len);
        pool_script("GETREPLICAS", 0, POOL_SAY, text);
        CHECK_EQ(tarn_view_open(client, "k", 1, NULL, &view), len <= 64 ? TARN_OK : TARN_EPROTO);
        if (len > 64) continue;
        CHECK_EQ(tarn_view_size(view), 64);
        tarn_view_release(&view);
    }
    end();
}

/* The first look-up brings a CRC for each MiB, the next one, of the same version, does not. */
TEST(guarantee_6_the_second_look_up_has_no_crcs) {
    begin("piece_bytes=1048576");
    CHECK_EQ(put_n("k", 5 * MIB, 1), TARN_OK);
    pool_crcs_times("k", 1);
    pool_mood(0, POOL_FENCED, 1);
    CHECK_EQ(get_range("k", 5 * MIB, MIB + 5, 3 * MIB), TARN_OK);
    CHECK(pool_count("MGETREPLICAS *") >= 2);
    end();
}

/* The same version is shorter in the middle of a get, and lies in the books: what was made for the
 * long one is of no use. */
TEST(guarantee_1_the_second_look_up_has_another_value) {
    begin("piece_bytes=1048576");
    static char text[512], buffer[3 * MIB];
    CHECK_EQ(put_n("k", 3 * MIB, 1), TARN_OK);
    inline_value(text, sizeof(text), "*1\r\n", version_of("k", 3 * MIB), 60);
    pool_mood(0, POOL_FENCED, 1);
    pool_script("MGETREPLICAS", 1, POOL_SAY, text);
    size_t n = 0;
    tarn_status status = tarn_get(client, "k", 1, buffer, sizeof(buffer), &n, NULL);
    CHECK(status != TARN_OK || (n == 60 && buffer[0] == 'x' && buffer[59] == 'x'));
    end();
}

/* An array of which only the length comes costs no memory. */
TEST(guarantee_6_an_array_that_never_comes) {
    begin("timeout_ms=300&retries=0");
    pool_script("PING", 0, POOL_SAY, "*50000000\r\n*50000000\r\n*50000000\r\n:1\r\n");
    CHECK(tarn_ping(client) != TARN_OK);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    CHECK(used.ru_maxrss < 1 << 20); /* KiB */
    end();
}

/* What it claims to have removed. */
TEST(guarantee_6_more_was_removed_than_asked_for) {
    begin("");
    pool_script("DEL", 0, POOL_SAY, ":9223372036854775807\r\n");
    tarn_key keys[2] = {{"a", 1}, {"b", 1}};
    size_t removed = 77;
    CHECK_EQ(tarn_remove_many(client, keys, 2, &removed), TARN_OK);
    CHECK_EQ(removed, 2);
    end();
}

TEST_MAIN()
