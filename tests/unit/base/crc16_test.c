#include "base/crc16.h"

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

static void check_all(const char *impl) {
    char bytes[200];
    struct rng r;
    rng_seed(&r, 7);
    if (!crc16_force(impl)) return;
    CHECK_EQ(crc16(SPAN("123456789")), 0x31C3); /* as the catalogues of CRCs have it */
    CHECK_EQ(crc16(span_of(NULL, 0)), 0);
    for (size_t n = 0; n <= sizeof(bytes); n++)
        for (int round = 0; round < 50; round++) {
            char *at = bytes + (n < sizeof(bytes) ? rng_next(&r) % (sizeof(bytes) - n) : 0);
            for (size_t i = 0; i < n; i++) at[i] = (char)rng_next(&r);
            CHECK_EQ(crc16(span_of(at, n)), crc16_plain(span_of(at, n)));
        }
}

TEST(table_is_the_definition) {
    CHECK(crc16_force("table"));
    CHECK(!crc16_force("none"));
    check_all("table");
}

TEST(products_are_the_definition) {
    check_all("clmul");
}

TEST_MAIN()
