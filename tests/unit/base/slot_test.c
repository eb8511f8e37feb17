#include "base/slot.h"

#include "../test.h"

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
