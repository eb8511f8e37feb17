#include "../test.h"

#include "base/rng.h"
#include "transport/grant.h"

static const uint8_t key[GRANT_KEY_SIZE] = {1, 2, 3, 4};
static const struct grant_extent extent = {7, 5, 8192, 4096};
static const struct grant good = {GRANT_READ, 3, 42, 1000, 0};

static enum grant_verdict check(const uint8_t in[GRANT_SIZE], const struct grant_extent *x,
                                enum grant_op op, uint64_t offset, uint64_t length,
                                uint64_t now_ms) {
    struct grant g;
    return grant_check(key, in, x, op, offset, length, 3, 5, now_ms, &g);
}

TEST(a_grant_comes_back_as_it_was) {
    uint8_t wire[GRANT_SIZE];
    struct grant g;
    grant_seal(key, &good, &extent, wire);
    CHECK_EQ(grant_check(key, wire, &extent, GRANT_READ, 0, 4096, 3, 5, 999, &g), GRANT_OK);
    CHECK_EQ(g.op, GRANT_READ);
    CHECK_EQ(g.session, 42);
    CHECK_EQ(g.master_epoch, 3);
    CHECK_EQ(g.expiry_ms, 1000);
    CHECK_EQ(grant_claimed_epoch(wire), 3);
}

/* Each MAC is libsodium's, which checks it. */
TEST(one_sealer_for_many_extents) {
    struct grant_sealer s;
    struct grant g;
    uint8_t at_once[GRANT_SIZE], wire[GRANT_SIZE];
    grant_sealer_init(&s, key, &good);
    for (uint64_t i = 0; i < 10000; i++) {
        struct grant_extent x = {(uint32_t)mix64(i), 5, mix64(~i), mix64(i << 20)};
        grant_sealer_seal(&s, &x, wire);
        CHECK_EQ(grant_check(key, wire, &x, GRANT_READ, 0, 0, 3, 5, 999, &g), GRANT_OK);
        CHECK_EQ(g.session, 42);
        grant_seal(key, &good, &x, at_once);
        CHECK(memcmp(at_once, wire, sizeof(wire)) == 0);
    }
}

TEST(no_bit_can_be_changed) {
    uint8_t wire[GRANT_SIZE];
    for (unsigned bit = 0; bit < 8 * GRANT_SIZE; bit++) {
        grant_seal(key, &good, &extent, wire);
        wire[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK_EQ(check(wire, &extent, GRANT_READ, 0, 1, 0), GRANT_BAD_MAC);
    }
    grant_seal(key, &good, &extent, wire);
    for (unsigned bit = 0; bit < 8 * sizeof(extent); bit++) {
        struct grant_extent x = extent;
        ((uint8_t *)&x)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK_EQ(check(wire, &x, GRANT_READ, 0, 1, 0), GRANT_BAD_MAC);
    }
    struct grant g;
    uint8_t other[GRANT_KEY_SIZE] = {1, 2, 3, 5};
    CHECK_EQ(grant_check(other, wire, &extent, GRANT_READ, 0, 1, 3, 5, 0, &g), GRANT_BAD_MAC);
}

TEST(a_grant_for_one_put) {
    static const struct grant once = {GRANT_WRITE_ONCE, 3, 42, 1000, GRANT_PUT_MASK - 5};
    uint8_t wire[GRANT_SIZE];
    struct grant g;
    grant_seal(key, &once, &extent, wire);
    CHECK(grant_is_once(wire));
    CHECK_EQ(grant_check(key, wire, &extent, GRANT_WRITE, 0, 4096, 3, 5, 999, &g), GRANT_OK);
    CHECK_EQ(g.op, GRANT_WRITE_ONCE);
    CHECK_EQ(g.put, GRANT_PUT_MASK - 5);
    CHECK_EQ(g.expiry_ms, 1000);
    CHECK_EQ(check(wire, &extent, GRANT_WRITE, 0, 1, 1000), GRANT_EXPIRED);
    CHECK_EQ(check(wire, &extent, GRANT_READ, 0, 1, 0), GRANT_BAD_OP);
    CHECK_EQ(check(wire, &extent, GRANT_ATTACH_WRITE, 0, 1, 0), GRANT_BAD_OP);
    struct grant never = once;
    never.expiry_ms = UINT64_MAX;
    grant_seal(key, &never, &extent, wire);
    CHECK_EQ(grant_check(key, wire, &extent, GRANT_WRITE, 0, 1, 3, 5, UINT64_C(1) << 43, &g),
             GRANT_OK);
    CHECK_EQ(g.put, once.put);
}

TEST(a_receipt_is_for_one_put_and_says_one_thing) {
    static const struct grant once = {GRANT_WRITE_ONCE, 3, 42, 1000, 17};
    uint8_t receipt[GRANT_RECEIPT_SIZE], wire[GRANT_SIZE];
    grant_receipt(key, &once, &extent, true, receipt);
    CHECK(grant_receipt_check(key, &once, &extent, true, receipt));
    CHECK(!grant_receipt_check(key, &once, &extent, false, receipt));
    static const struct grant others[] = {
        {GRANT_WRITE_ONCE, 3, 42, 1000, 18},
        {GRANT_WRITE_ONCE, 3, 42, 1001, 17},
        {GRANT_WRITE_ONCE, 3, 43, 1000, 17},
        {GRANT_WRITE_ONCE, 4, 42, 1000, 17},
        {GRANT_WRITE_ONCE, 3, 42, 1000, 17 + (UINT64_C(1) << 16)}};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        CHECK(!grant_receipt_check(key, &others[i], &extent, true, receipt));
    struct grant_extent x = extent;
    x.offset += 4096;
    CHECK(!grant_receipt_check(key, &once, &x, true, receipt));
    for (unsigned bit = 0; bit < 8 * sizeof(receipt); bit++) {
        receipt[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(!grant_receipt_check(key, &once, &extent, true, receipt));
        receipt[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    /* The MAC of the grant, which its holder has, is none. */
    grant_seal(key, &once, &extent, wire);
    CHECK(!grant_receipt_check(key, &once, &extent, true, wire + GRANT_SIZE - GRANT_RECEIPT_SIZE));
    CHECK(!grant_receipt_check(key, &once, &extent, false, wire + GRANT_SIZE - GRANT_RECEIPT_SIZE));
}

TEST(every_other_verdict) {
    uint8_t wire[GRANT_SIZE];
    struct grant g;
    grant_seal(key, &good, &extent, wire);
    CHECK_EQ(check(wire, &extent, GRANT_WRITE, 0, 1, 0), GRANT_BAD_OP);
    CHECK_EQ(check(wire, &extent, GRANT_ATTACH_READ, 0, 1, 0), GRANT_BAD_OP);
    CHECK_EQ(grant_check(key, wire, &extent, GRANT_READ, 0, 1, 4, 5, 0, &g), GRANT_BAD_EPOCH);
    CHECK_EQ(grant_check(key, wire, &extent, GRANT_READ, 0, 1, 3, 6, 0, &g), GRANT_BAD_EPOCH);
    CHECK_EQ(check(wire, &extent, GRANT_READ, 0, 1, 1000), GRANT_EXPIRED);
    CHECK_EQ(check(wire, &extent, GRANT_READ, 0, 4097, 0), GRANT_BAD_RANGE);
    CHECK_EQ(check(wire, &extent, GRANT_READ, 4096, 1, 0), GRANT_BAD_RANGE);
    CHECK_EQ(check(wire, &extent, GRANT_READ, 1, UINT64_MAX, 0), GRANT_BAD_RANGE);
    CHECK_EQ(check(wire, &extent, GRANT_READ, UINT64_MAX, 1, 0), GRANT_BAD_RANGE);
    CHECK_EQ(check(wire, &extent, GRANT_READ, 4096, 0, 0), GRANT_OK);
    for (int v = 0; v < GRANT_VERDICTS; v++)
        CHECK(strcmp(grant_verdict_name((enum grant_verdict)v), "unknown") != 0);
}

TEST_MAIN()
