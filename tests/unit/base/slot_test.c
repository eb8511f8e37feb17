#include "base/slot.h"

#include <stdio.h>

#include "../test.h"
#include "base/assert.h"

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

/* Whatever came before. */
TEST(of_the_next_key) {
    static const char *const parts[] = {"",
                                        "a",
                                        "foo",
                                        "{",
                                        "}",
                                        "{}",
                                        "{a}",
                                        "{b}",
                                        "{a",
                                        "b}",
                                        "0123456789012345678901234567890123456789"};
    enum { N = ARRAY_LEN(parts) };
    struct slot_last last = {0};
    char key[256];
    for (unsigned i = 0; i < 20 * N * N * N; i++) {
        unsigned mix = i * 2654435761u >> 8;
        snprintf(key, sizeof(key), "%s%s%s", parts[i / (7 * N) % N], parts[mix % N],
                 parts[mix / N % N]);
        CHECK_EQ(slot_of_next(&last, span_str(key)), slot_of_key(span_str(key)));
    }
}

TEST_MAIN()
