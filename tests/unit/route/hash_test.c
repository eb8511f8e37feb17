/* The standard hashes, against known answers, which another implementation computed from hash.h's
 * definition: the package python3-xxhash 3.0.0 of Debian, over struct.pack("<16I", ...). */
#include "../test.h"

#include "base/buf.h"
#include "route/hash.h"

TEST(known_answers) {
    static const struct {
        uint64_t seed;
        uint32_t block;
        uint64_t second_local, third_rolling;
    } known[] = {
        {0ull, 1, 0x5db9f9508e6a2a0bull, 0xda67d3428dc99cabull},
        {0ull, 4, 0x6531f841e655d90bull, 0xc965fe56c408f4d5ull},
        {0ull, 16, 0x6a048b89b2e6addeull, 0x8b6aa7da78797e9aull},
        {0ull, 64, 0x48d4674a07ca511aull, 0x42dfa636c4bf415full},
        {0ull, 512, 0x65b89aca446e2638ull, 0x3925af134850c53cull},
        {1337ull, 1, 0x24ad77ac1f9f2f2bull, 0x2da6333e97787648ull},
        {1337ull, 4, 0x07fcec0937c6502aull, 0x955e47415ecb1037ull},
        {1337ull, 16, 0x2141e82cc06b2197ull, 0xccc94c7040b5bfcdull},
        {1337ull, 64, 0x0cee126ff79a4f60ull, 0xc5e6e5886ff5b159ull},
        {1337ull, 512, 0xa3cdaeee408ef284ull, 0xaddfffc9b0c74752ull},
        {18446744073709551615ull, 1, 0x9a3f63313c8222fbull, 0x9c2808106e1b7dd9ull},
        {18446744073709551615ull, 4, 0xd38e260d8f8aa541ull, 0x26a2b1749ce56538ull},
        {18446744073709551615ull, 16, 0x128cd199344db7a5ull, 0x3cbb856e4bbadd79ull},
        {18446744073709551615ull, 64, 0xd3879221b3f3b9f0ull, 0xf4c78ce811ff0dc7ull},
        {18446744073709551615ull, 512, 0x8b26285d314516a0ull, 0xcd7ae7c6bfaa9273ull},
    };
    static uint32_t tokens[3 * 512];
    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
        uint32_t block = known[k].block;
        uint64_t local[3], rolling[4], in_place[3];
        for (uint32_t i = 0; i < 3 * block; i++)
            tokens[i] = (uint32_t)(i * UINT64_C(2654435761) + known[k].seed);
        for (size_t i = 0; i < 3; i++)
            local[i] = in_place[i] =
                route_hash_local(tokens + i * block, block, NULL, 0, known[k].seed);
        CHECK_EQ(local[1], known[k].second_local);
        route_hash_chain(NULL, in_place, 3, known[k].seed, in_place);
        CHECK_EQ(in_place[0], local[0]);
        CHECK_EQ(in_place[2], known[k].third_rolling);
        route_hash_chain(&in_place[0], local + 1, 2, known[k].seed, rolling);
        CHECK_EQ(rolling[1], known[k].third_rolling);
        CHECK_EQ(route_hash_prompt(tokens, 3 * block, block, NULL, 0, known[k].seed, rolling, 4),
                 3);
        CHECK_EQ(rolling[2], known[k].third_rolling);
    }
}

static void add_extra(struct buf *b, uint32_t block, const char *bytes) {
    uint32_t len = (uint32_t)strlen(bytes);
    buf_append(b, &block, sizeof(block));
    buf_append(b, &len, sizeof(len));
    buf_append(b, bytes, len);
}

TEST(extra_changes_its_block_and_those_behind) {
    static const struct {
        uint64_t seed, rolling[3];
    } known[] = {
        {0, {0xd2e217905d2bda1d, 0x405396e9e052a9e6, 0xa2ff3b04d65944d1}},
        {42, {0x996e0ade0c87c9c2, 0x40ca755d8e13834, 0xb9245f05f8c27388}},
    };
    uint32_t tokens[50];
    struct buf extra = {0};
    uint64_t rolling[3], plain[3];
    for (uint32_t i = 0; i < 50; i++) tokens[i] = i + 1;
    add_extra(&extra, 1, "image:cat@3");
    add_extra(&extra, 7, "behind the end");
    CHECK(route_extra_valid(extra.data, extra.len));
    for (size_t k = 0; k < 2; k++) {
        CHECK_EQ(
            route_hash_prompt(tokens, 50, 16, extra.data, extra.len, known[k].seed, rolling, 3), 3);
        for (size_t i = 0; i < 3; i++) CHECK_EQ(rolling[i], known[k].rolling[i]);
        CHECK_EQ(route_hash_prompt(tokens, 50, 16, NULL, 0, known[k].seed, plain, 3), 3);
        CHECK(plain[0] == rolling[0] && plain[1] != rolling[1] && plain[2] != rolling[2]);
    }
    buf_free(&extra);
}

TEST(extra_that_is_none) {
    struct buf b = {0};
    CHECK(route_extra_valid(NULL, 0));
    add_extra(&b, 3, "three");
    add_extra(&b, 4, "four");
    size_t whole = b.len, one = 8 + 5;
    for (size_t len = 0; len <= whole; len++)
        CHECK_EQ(route_extra_valid(b.data, len), len == 0 || len == one || len == whole);
    add_extra(&b, 4, "again");
    CHECK(!route_extra_valid(b.data, b.len));
    buf_clear(&b);
    add_extra(&b, 4, "");
    CHECK(!route_extra_valid(b.data, b.len));
    buf_clear(&b);
    add_extra(&b, UINT32_MAX, "x");
    CHECK(route_extra_valid(b.data, b.len));
    memset(b.data + 4, 0xff, 4);
    CHECK(!route_extra_valid(b.data, b.len));
    buf_free(&b);
}

TEST(only_whole_blocks_and_no_more_than_asked_for) {
    uint32_t tokens[64] = {0};
    uint64_t rolling[4] = {0};
    CHECK_EQ(route_hash_prompt(tokens, 15, 16, NULL, 0, 0, rolling, 4), 0);
    CHECK_EQ(route_hash_prompt(tokens, 47, 16, NULL, 0, 0, rolling, 4), 2);
    CHECK_EQ(rolling[2], 0);
    CHECK_EQ(route_hash_prompt(tokens, 64, 16, NULL, 0, 0, rolling, 3), 3);
    CHECK_EQ(rolling[3], 0);
}

TEST(scopes_differ_in_each_part) {
    struct span a = SPAN("a"), b = SPAN("b"), none = SPAN("");
    uint64_t scope[] = {
        route_hash_scope(a, none, none, none, 16),
        route_hash_scope(a, none, none, none, 32),
        route_hash_scope(b, none, none, none, 16),
        route_hash_scope(a, a, none, none, 16),
        route_hash_scope(a, none, a, none, 16),
        route_hash_scope(a, none, none, a, 16),
        route_hash_scope(none, a, none, none, 16),
        route_hash_scope(SPAN("aa"), none, none, none, 16),
    };
    size_t n = sizeof(scope) / sizeof(scope[0]);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) CHECK(scope[i] != scope[j]);
    CHECK_EQ(scope[0], route_hash_scope(a, none, none, none, 16));
    CHECK_EQ(route_hash_name("abc", 3), UINT64_C(0x78af5f94892f3950));
}

TEST_MAIN()
