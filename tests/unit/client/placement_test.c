/* What the server answers, decoded: good answers, and answers that make no sense. */
#include <hiredis/read.h>

#include "base/assert.h"
#include "base/crc32c.h"
#include "client/answer.h"
#include "client/arena.h"
#include "client/client.h"
#include "client/placement.h"
#include "client/put.h"
#include "engine/engine.h"
#include "engine/placed.h"

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
static const char good[] =
    "*7\r\n:9\r\n:128\r\n:5000\r\n:4294967295\r\n*1\r\n*2\r\n$6\r\nmemory\r\n*2\r\n"
    "*5\r\n:1\r\n:7\r\n:4096\r\n:100\r\n$40\r\n" GRANT "\r\n"
    "*5\r\n:2\r\n:7\r\n:0\r\n:28\r\n$40\r\n" GRANT "\r\n$-1\r\n$-1\r\n";

TEST(two_extents) {
    struct placement p;
    CHECK_EQ(placement_of_get(&arena, decode(good, sizeof(good) - 1), false, 10000000000, &p),
             TARN_OK);
    CHECK_EQ(p.version, 9);
    CHECK_EQ(p.size, 128);
    CHECK_EQ(p.crc, 4294967295);
    CHECK_EQ(p.replicas, 1);
    const struct engine_part *parts = p.replica->parts;
    CHECK_EQ(p.replica->n_parts, 2);
    CHECK_EQ(parts[1].extent.segment, 2);
    CHECK_EQ(parts[0].extent.offset, 4096);
    CHECK_EQ(p.lease_end, 10000 + 5000 - 6); /* 1 ms and 0.1 % less */
    struct engine_part out[EXTENTS_MAX];
    CHECK_EQ(placed_parts(parts, 2, 90, 20, out), 2);
    CHECK_EQ(out[0].sub_offset, 90);
    CHECK_EQ(out[0].sub_length, 10);
    CHECK_EQ(out[1].sub_offset, 0);
    CHECK_EQ(out[1].sub_length, 10);
    CHECK_EQ(placed_parts(parts, 2, 100, 28, out), 1);
    CHECK_EQ(out[0].extent.segment, 2);
}

/* 88 bytes: number 9, lease 5000, a CRC, extent 1:7 4096+100, grant. */
#define PACKED(lease, flags, zero, length)                                                         \
    "$88\r\n\x09\0\0\0\0\0\0\0" lease flags "\xff\xff\xff\xff" zero                                \
    "\x01\0\0\0\x07\0\0\0\0\x10\0\0\0\0\0\0" length GRANT "\r\n"
#define LEASE  "\x88\x13\0\0"
#define ONE    "\x01\0\0\0"
#define ZERO   "\0\0\0\0"
#define LENGTH "\x64\0\0\0\0\0\0\0"

TEST(the_short_form) {
    static const char text[] = PACKED(LEASE, ONE, ZERO, LENGTH),
                      plain[] = PACKED(LEASE, ZERO, ZERO, LENGTH);
    struct placement p;
    CHECK_EQ(placement_of_get(&arena, decode(text, sizeof(text) - 1), false, 10000000000, &p),
             TARN_OK);
    CHECK(p.version == 9 && p.size == 100 && p.crc == 4294967295 && p.replicas == 1 &&
          p.value == NULL);
    CHECK_EQ(p.lease_end, 10000 + 5000 - 6);
    const struct placed_replica *r = p.replica;
    CHECK(r->tier == REPLICA_MEMORY && r->n_parts == 1);
    const struct grant_extent *x = &r->parts[0].extent;
    CHECK(x->segment == 1 && x->segment_epoch == 7 && x->offset == 4096 && x->length == 100);
    CHECK(r->parts[0].sub_length == 100 && memcmp(r->parts[0].grant, GRANT, GRANT_SIZE) == 0);
    CHECK_EQ(placement_of_get(&arena, decode(plain, sizeof(plain) - 1), false, 0, &p), TARN_OK);
    CHECK_EQ(p.crc, -1);
    CHECK_EQ(placement_of_put(&arena, decode(text, sizeof(text) - 1), false, 100, &p), TARN_OK);
    CHECK(p.token == 9 && p.replicas == 1);
    CHECK_EQ(placement_of_put(&arena, decode(text, sizeof(text) - 1), false, 101, &p), TARN_EPROTO);
    CHECK_EQ(p.replicas, 0);
    static const char zero[] = PACKED(LEASE, ONE, ONE, LENGTH),
                      flags[] = PACKED(LEASE, LEASE, ZERO, LENGTH),
                      empty[] = PACKED(LEASE, ONE, ZERO, ZERO ZERO),
                      huge[] = PACKED(LEASE, ONE, ZERO, ZERO "\0\0\x01\0"),
                      small[] = "$3\r\nabc\r\n";
    CHECK_EQ(placement_of_get(&arena, decode(zero, sizeof(zero) - 1), false, 0, &p), TARN_EPROTO);
    CHECK_EQ(placement_of_get(&arena, decode(flags, sizeof(flags) - 1), false, 0, &p), TARN_EPROTO);
    CHECK_EQ(placement_of_get(&arena, decode(empty, sizeof(empty) - 1), false, 0, &p), TARN_EPROTO);
    CHECK_EQ(placement_of_get(&arena, decode(huge, sizeof(huge) - 1), false, 0, &p), TARN_EPROTO);
    CHECK_EQ(placement_of_get(&arena, decode(small, sizeof(small) - 1), false, 0, &p), TARN_EPROTO);
}

/* The short form without a grant, and the long one, where they were asked for so. */
TEST(places_without_grants) {
    static const char text[] = "$48\r\n\x09\0\0\0\0\0\0\0" LEASE ONE "\xff\xff\xff\xff" ZERO
                               "\x01\0\0\0\x07\0\0\0\0\x10\0\0\0\0\0\0" LENGTH "\r\n",
                      with[] = PACKED(LEASE, ONE, ZERO, LENGTH),
                      small[] = "$47\r\n" GRANT "1234567\r\n";
    struct placement p;
    CHECK_EQ(placement_of_get(&arena, decode(text, sizeof(text) - 1), false, 0, &p), TARN_EPROTO);
    CHECK_EQ(placement_of_get(&arena, decode(text, sizeof(text) - 1), true, 0, &p), TARN_OK);
    CHECK(p.version == 9 && p.size == 100 && p.crc == 4294967295 && p.replicas == 1);
    CHECK(replica_lacks_grant(p.replica) && p.replica->parts[0].extent.offset == 4096);
    CHECK_EQ(placement_of_put(&arena, decode(text, sizeof(text) - 1), true, 100, &p), TARN_OK);
    size_t n;
    CHECK(p.token == 9 && replica_lacks_grant(p.replica) && !placement_is_once(&p));
    CHECK(placement_receipts(&arena, &p, &n) == NULL);
    CHECK_EQ(placement_of_put(&arena, decode(text, sizeof(text) - 1), false, 100, &p), TARN_EPROTO);
    CHECK_EQ(placement_of_get(&arena, decode(small, sizeof(small) - 1), true, 0, &p), TARN_EPROTO);
    /* A server may give grants all the same. */
    CHECK_EQ(placement_of_get(&arena, decode(with, sizeof(with) - 1), true, 0, &p), TARN_OK);
    CHECK(!replica_lacks_grant(p.replica));
}

#define BARE(segment, length) "*5\r\n:" segment "\r\n:7\r\n:0\r\n:" length "\r\n$0\r\n\r\n"
#define LONG(extents)                                                                              \
    "*7\r\n:9\r\n:128\r\n:5000\r\n:7\r\n*1\r\n*2\r\n$6\r\nmemory\r\n*2\r\n" extents "$-1\r\n$-"    \
    "1\r\n"

TEST(long_places_without_grants) {
    static const char bare[] = LONG(BARE("1", "100") BARE("2", "28")),
                      some[] = LONG(BARE("1", "100") "*5\r\n:2\r\n:7\r\n:0\r\n:28\r\n$40\r\n" GRANT
                                                     "\r\n");
    struct placement p;
    CHECK_EQ(placement_of_get(&arena, decode(bare, sizeof(bare) - 1), false, 0, &p), TARN_EPROTO);
    CHECK_EQ(placement_of_get(&arena, decode(bare, sizeof(bare) - 1), true, 0, &p), TARN_OK);
    CHECK(p.replica->n_parts == 2 && replica_lacks_grant(p.replica));
    CHECK(p.replica->parts[1].grant == NULL);
    CHECK_EQ(placement_of_get(&arena, decode(some, sizeof(some) - 1), true, 0, &p), TARN_EPROTO);
}

TEST(leases_never_end_late) {
    CHECK_EQ(placement_lease_end(5000000, 1), 0);
    CHECK_EQ(placement_lease_end(5999999, 50), 5 + 50 - 2);
    CHECK_EQ(placement_lease_end(0, 10000), 10000 - 11);
}

TEST(inline_values) {
    static const char text[] = "*7\r\n:1\r\n:3\r\n:0\r\n:-1\r\n*0\r\n$3\r\nabc\r\n$-1\r\n";
    struct placement p;
    CHECK_EQ(placement_of_get(&arena, decode(text, sizeof(text) - 1), false, 0, &p), TARN_OK);
    CHECK_EQ(p.crc, -1);
    CHECK_BYTES(p.value, p.size, "abc");
}

#define EXTENT(segment, length)                                                                    \
    "*5\r\n:" segment "\r\n:7\r\n:0\r\n:" length "\r\n$40\r\n" GRANT "\r\n"

/* What can be read stays, in the server's order; what makes no sense to us is left out. */
TEST(replicas_of_all_tiers) {
    static const char text[] =
        "*7\r\n:1\r\n:100\r\n:5000\r\n:7\r\n*5\r\n"
        "*2\r\n$4\r\nfile\r\n*1\r\n*2\r\n$6\r\n/d/k.1\r\n:100\r\n"
        "*2\r\n$6\r\nmemory\r\n*1\r\n" EXTENT("1", "99") /* of another size */
        "*2\r\n$4\r\ntape\r\n*1\r\n:1\r\n"
        "*2\r\n$3\r\nssd\r\n*1\r\n" EXTENT("3", "100") "*2\r\n$6\r\nmemory\r\n*2\r\n" EXTENT(
            "4", "60") EXTENT("5", "40") "$-1\r\n$-1\r\n";
    struct placement p;
    CHECK_EQ(placement_of_get(&arena, decode(text, sizeof(text) - 1), false, 0, &p), TARN_OK);
    CHECK_EQ(p.replicas, 3);
    CHECK_EQ(p.replica[0].tier, REPLICA_FILE);
    CHECK_STR(p.replica[0].path, "/d/k.1");
    CHECK_EQ(p.replica[1].tier, REPLICA_SSD);
    CHECK_EQ(p.replica[1].parts[0].extent.segment, 3);
    CHECK_EQ(p.replica[2].tier, REPLICA_MEMORY);
    CHECK_EQ(p.replica[2].n_parts, 2);
}

TEST(more_replicas_than_anybody_has) {
    struct buf text = {0};
    buf_printf(&text, "*7\r\n:1\r\n:100\r\n:5000\r\n:7\r\n*40\r\n");
    for (int i = 0; i < 40; i++) buf_printf(&text, "*2\r\n$3\r\nssd\r\n*1\r\n" EXTENT("3", "100"));
    buf_printf(&text, "$-1\r\n$-1\r\n");
    struct placement p;
    CHECK_EQ(placement_of_get(&arena, decode(text.data, text.len), false, 0, &p), TARN_OK);
    CHECK_EQ(p.replicas, REPLICAS_MAX);
    buf_clear(&text);
    buf_printf(&text, "*2\r\n:1\r\n*40\r\n");
    for (int i = 0; i < 40; i++)
        buf_printf(&text, "*2\r\n$6\r\nmemory\r\n*1\r\n" EXTENT("3", "100"));
    CHECK_EQ(placement_of_put(&arena, decode(text.data, text.len), false, 100, &p), TARN_EPROTO);
    buf_free(&text);
}

TEST(files_lie_where_they_should) {
    static const char *const bad[] = {"relative", "/a/../b", "/../etc", ""};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct buf text = {0};
        buf_printf(&text,
                   "*7\r\n:1\r\n:100\r\n:5000\r\n:7\r\n*1\r\n*2\r\n$4\r\nfile\r\n*1\r\n*2\r\n$%"
                   "zu\r\n%s\r\n:"
                   "100\r\n$-1\r\n$-1"
                   "\r\n",
                   strlen(bad[i]), bad[i]);
        struct placement p;
        CHECK_EQ(placement_of_get(&arena, decode(text.data, text.len), false, 0, &p), TARN_EPROTO);
        buf_free(&text);
    }
}

TEST(a_miss_and_errors) {
    struct placement p;
    CHECK_EQ(placement_of_get(&arena, decode("$-1\r\n", 5), false, 0, &p), TARN_ENOTFOUND);
    static const char busy[] = "-PUTBUSY later\r\n";
    CHECK_EQ(placement_of_put(&arena, decode(busy, sizeof(busy) - 1), false, 100, &p), TARN_EBUSY);
    CHECK_EQ(placement_of_put(&arena, decode("*-1\r\n", 5), false, 100, &p), TARN_EEXISTS);
    CHECK_EQ(answer_error_status("NOSPACE x"), TARN_ENOSPACE);
    CHECK_EQ(answer_error_status("BADTOKEN"), TARN_ETOKEN);
    CHECK_EQ(answer_error_status("ERR unknown command 'X'"), TARN_EPROTO);
    CHECK_EQ(answer_error_status("ERR other"), TARN_ERR);
}

/* Every answer with one byte changed or cut is taken or refused, never trusted blindly: sizes
 * always add up. */
TEST(damaged_answers) {
    char text[sizeof(good)];
    for (size_t i = 0; i + 1 < sizeof(good); i++) {
        for (int bit = 0; bit < 8; bit++) {
            memcpy(text, good, sizeof(good));
            text[i] = (char)(text[i] ^ (1 << bit));
            const struct answer *a = decode(text, sizeof(good) - 1);
            struct placement p;
            if (a == NULL || placement_of_get(&arena, a, bit & 1, 0, &p) != TARN_OK) continue;
            if (p.value != NULL) continue;
            const struct placed_replica *r = p.replica;
            uint64_t total = 0;
            for (size_t k = 0; k < r->n_parts; k++) total += r->parts[k].extent.length;
            CHECK(total == p.size && r->n_parts <= EXTENTS_MAX);
        }
        arena_reset(&arena);
    }
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
