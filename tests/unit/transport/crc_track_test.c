#include "../test.h"

#include "base/rng.h"
#include "transport/crc_track.h"

/* Whatever the pieces, and wherever the blocks begin: each CRC is that of its block. */
TEST(pieces_and_blocks_do_not_matter) {
    static uint8_t data[5000], copy[5000];
    struct rng r;
    rng_seed(&r, 1);
    for (size_t i = 0; i < sizeof(data); i++) data[i] = (uint8_t)rng_next(&r);
    for (int round = 0; round < 500; round++) {
        uint64_t len = 1 + rng_below(&r, sizeof(data)),
                 block = round % 5 ? 1 + rng_below(&r, 900) : 0;
        uint64_t first = block != 0 ? 1 + rng_below(&r, block) : 0;
        uint32_t crcs[5002];
        struct transport_op op = {.crcs = crcs, .crc_block = block, .crc_first = first};
        struct crc_track t;
        crc_track_init(&t, &op);
        memset(copy, 0, sizeof(copy));
        for (uint64_t at = 0; at < len;) {
            uint64_t n = min_u64(len - at, 1 + rng_below(&r, 700));
            crc_track_feed(&t, &op, round % 2 ? copy + at : NULL, data + at, n);
            at += n;
        }
        if (round % 2) CHECK(memcmp(copy, data, len) == 0);
        uint64_t at = 0, size = block != 0 ? first : len;
        for (size_t i = 0; at < len; i++, at += size, size = block) {
            CHECK_EQ(crcs[i], crc32c(0, data + at, min_u64(size, len - at)));
        }
    }
}

TEST_MAIN()
