/* Sizes, patterns. */
#include "benchmark/bench.h"

#include "../test.h"

TEST(block_sizes) {
    uint64_t v;
    CHECK(parse_block_size("4k", 2, &v) && v == 4096);
    CHECK(parse_block_size("64MB", 4, &v) && v == 64 << 20);
    CHECK(parse_block_size("17", 2, &v) && v == 17);
    CHECK(!parse_block_size("", 0, &v));
    CHECK(!parse_block_size("k", 1, &v));
    CHECK(!parse_block_size("-1", 2, &v));
    CHECK(!parse_block_size("4x", 2, &v));
    char text[24];
    CHECK_STR(size_text(1536, text), "1536");
    CHECK_STR(size_text(4096, text), "4k");
    CHECK_STR(size_text(64 << 20, text), "64m");
}

TEST(patterns_differ_and_show_every_bit) {
    unsigned char data[1000];
    for (size_t len = 0; len < 40; len++) {
        pattern_fill(7, data, len);
        CHECK(pattern_check(7, data, len));
        CHECK(len == 0 || !pattern_check(8, data, len));
    }
    pattern_fill(9, data, sizeof(data));
    for (size_t i = 0; i < sizeof(data); i += 37) {
        data[i] ^= 1;
        CHECK(!pattern_check(9, data, sizeof(data)));
        data[i] ^= 1;
    }
}

TEST_MAIN()
