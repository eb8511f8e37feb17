/* What the server answers, decoded: good answers, and answers that make no sense. */
#include <hiredis/read.h>

#include "client/internal.h"
#include "client/put.h"
#include "base/crc32c.h"

#include "../test.h"

static struct arena arena;

static const struct answer *decode(const char *text, size_t len) {
    static redisReader *reader;
    if (reader != NULL) redisReaderFree(reader);
    reader = answer_reader_create();
    answer_reader_set_arena(reader, &arena);
    void *reply = NULL;
    redisReaderFeed(reader, text, len);
    return redisReaderGetReply(reader, &reply) == REDIS_OK ? reply : NULL;
}

#define GRANT "0123456789012345678901234567890123456789"
/* [version, size, lease, crc, [["memory", [[1,7,4096,100,grant],[2,7,0,28,grant]]]], nil, nil] */
static const char good[] = "*7\r\n:9\r\n:128\r\n:5000\r\n:4294967295\r\n*1\r\n*2\r\n$6\r\nmemory\r\n*2\r\n"
                           "*5\r\n:1\r\n:7\r\n:4096\r\n:100\r\n$40\r\n" GRANT "\r\n"
                           "*5\r\n:2\r\n:7\r\n:0\r\n:28\r\n$40\r\n" GRANT "\r\n$-1\r\n$-1\r\n";

TEST(two_extents) {
    struct placement p;
    CHECK_EQ(placement_of_get(&arena, decode(good, sizeof(good) - 1), 10000000000, 0, &p), TARN_OK);
    CHECK_EQ(p.version, 9);
    CHECK_EQ(p.size, 128);
    CHECK_EQ(p.crc, 4294967295);
    CHECK_EQ(p.n_parts, 2);
    CHECK_EQ(p.parts[1].extent.segment, 2);
    CHECK_EQ(p.parts[0].extent.offset, 4096);
    CHECK_EQ(p.lease_end, 10000 + 5000 - 6); /* 1 ms and 0.1 % less */
    struct engine_part out[EXTENTS_MAX];
    CHECK_EQ(placement_slice(p.parts, 2, 90, 20, out), 2);
    CHECK_EQ(out[0].sub_offset, 90);
    CHECK_EQ(out[0].sub_length, 10);
    CHECK_EQ(out[1].sub_offset, 0);
    CHECK_EQ(out[1].sub_length, 10);
    CHECK_EQ(placement_slice(p.parts, 2, 100, 28, out), 1);
    CHECK_EQ(out[0].extent.segment, 2);
}

TEST(leases_never_end_late) {
    CHECK_EQ(placement_lease_end(5000000, 1), 0);
    CHECK_EQ(placement_lease_end(5999999, 50), 5 + 50 - 2);
    CHECK_EQ(placement_lease_end(0, 10000), 10000 - 11);
}

TEST(inline_values) {
    static const char text[] = "*7\r\n:1\r\n:3\r\n:0\r\n:-1\r\n*0\r\n$3\r\nabc\r\n$-1\r\n";
    struct placement p;
    CHECK_EQ(placement_of_get(&arena, decode(text, sizeof(text) - 1), 0, 0, &p), TARN_OK);
    CHECK_EQ(p.crc, -1);
    CHECK_BYTES(p.value, p.size, "abc");
}

TEST(a_miss_and_errors) {
    struct placement p;
    CHECK_EQ(placement_of_get(&arena, decode("$-1\r\n", 5), 0, 0, &p), TARN_ENOTFOUND);
    static const char busy[] = "-PUTBUSY later\r\n";
    CHECK_EQ(placement_of_put(&arena, decode(busy, sizeof(busy) - 1), 100, &p), TARN_EBUSY);
    CHECK_EQ(placement_of_put(&arena, decode("*-1\r\n", 5), 100, &p), TARN_EEXISTS);
    CHECK_EQ(answer_error_status("NOSPACE x"), TARN_ENOSPACE);
    CHECK_EQ(answer_error_status("BADTOKEN"), TARN_ETOKEN);
    CHECK_EQ(answer_error_status("ERR unknown command 'X'"), TARN_EPROTO);
    CHECK_EQ(answer_error_status("ERR other"), TARN_ERR);
}

/* Every answer with one byte changed or cut is taken or refused, never trusted blindly: sizes always add up. */
TEST(damaged_answers) {
    char text[sizeof(good)];
    for (size_t i = 0; i + 1 < sizeof(good); i++) {
        for (int bit = 0; bit < 8; bit++) {
            memcpy(text, good, sizeof(good));
            text[i] = (char)(text[i] ^ (1 << bit));
            const struct answer *a = decode(text, sizeof(good) - 1);
            struct placement p;
            if (a == NULL || placement_of_get(&arena, a, 0, 0, &p) != TARN_OK) continue;
            uint64_t total = 0;
            for (size_t k = 0; k < p.n_parts; k++) total += p.parts[k].extent.length;
            CHECK(p.value != NULL || (total == p.size && p.n_parts <= EXTENTS_MAX));
        }
        arena_reset(&arena);
    }
}

TEST(slices_of_iovecs) {
    char a[10], b[20];
    struct iovec iov[] = {{a, 10}, {NULL, 0}, {b, 20}}, out[3];
    CHECK_EQ(iov_slice(iov, 3, 5, 10, out), 2);
    CHECK(out[0].iov_base == a + 5 && out[0].iov_len == 5 && out[1].iov_base == b && out[1].iov_len == 5);
    CHECK_EQ(iov_slice(iov, 3, 10, 20, out), 1);
    CHECK_EQ(iov_slice(iov, 3, 0, 0, out), 0);
    CHECK_EQ(iov_total(iov, 3), 30);
}

TEST(crcs_per_block) {
    size_t size = 2 * CRC_BLOCK + 100;
    char *data = xmalloc(size);
    for (size_t i = 0; i < size; i++) data[i] = (char)(i * 31 + i / 4096);
    struct iovec iov[] = {
        {data, 1000}, {data + 1000, CRC_BLOCK}, {data + 1000 + CRC_BLOCK, size - 1000 - CRC_BLOCK}};
    uint32_t crcs[3];
    CHECK_EQ(put_crc(iov, 3, size, crcs), crc32c(0, data, size));
    CHECK_EQ(crcs[0], crc32c(0, data, CRC_BLOCK));
    CHECK_EQ(crcs[2], crc32c(0, data + 2 * CRC_BLOCK, 100));
    CHECK_EQ(put_crc(iov, 1, 1000, NULL), crc32c(0, data, 1000));
    free(data);
}

TEST_MAIN()
