#include "base/slot.h"

#include "../test.h"
#include "base/rng.h"

/* By the definition: bit by bit. */
static uint16_t crc16_plain(struct span s) {
    unsigned crc = 0;
    for (size_t i = 0; i < s.len; i++) {
        crc ^= (unsigned)(unsigned char)s.data[i] << 8;
        for (int bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1;
        crc &= 0xffff;
    }
    return (uint16_t)crc;
}

TEST(crc16_known) {
    CHECK_EQ(crc16(SPAN("123456789")), 0x31C3); /* as the catalogues of CRCs have it */
    CHECK_EQ(crc16(span_of(NULL, 0)), 0);
}

TEST(crc16_is_its_definition) {
    char bytes[64];
    struct rng r;
    rng_seed(&r, 7);
    for (int round = 0; round < 2000; round++) {
        size_t n = rng_next(&r) % (sizeof(bytes) + 1);
        for (size_t i = 0; i < n; i++) bytes[i] = (char)rng_next(&r);
        CHECK_EQ(crc16(span_of(bytes, n)), crc16_plain(span_of(bytes, n)));
    }
}

/* What Redis 7.0 answers to CLUSTER KEYSLOT. */
TEST(slots_are_those_of_redis) {
    CHECK_EQ(slot_of_key(SPAN("foo")), 12182);
    CHECK_EQ(slot_of_key(SPAN("bar")), 5061);
    CHECK_EQ(slot_of_key(SPAN("somekey")), 11058);
    CHECK_EQ(slot_of_key(SPAN("foo{hash_tag}")), 2515);
    CHECK_EQ(slot_of_key(SPAN("hash_tag")), 2515);
}

TEST(tags) {
    CHECK(span_eq(slot_tag(SPAN("{user1000}.following")), SPAN("user1000")));
    CHECK(span_eq(slot_tag(SPAN("foo{}{bar}")), SPAN("foo{}{bar}")));
    CHECK(span_eq(slot_tag(SPAN("foo{{bar}}zap")), SPAN("{bar")));
    CHECK(span_eq(slot_tag(SPAN("foo{bar}{zap}")), SPAN("bar")));
    CHECK(span_eq(slot_tag(SPAN("foo{bar")), SPAN("foo{bar")));
    CHECK(span_eq(slot_tag(SPAN("foo}bar{")), SPAN("foo}bar{")));
    CHECK_EQ(slot_of_key(SPAN("")), 0);
}

TEST_MAIN()
