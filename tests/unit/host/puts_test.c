/* Grants for one put, from the side of the host: what is written, who is writing, and when it is
 * over. */
#include "../test.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/rng.h"
#include "host/host_internal.h"

static const uint8_t key[GRANT_KEY_SIZE] = {1, 2, 3};
static const struct grant_extent extent = {1, 5, 4096, 1000};
static struct host *host;

static struct grant put(uint64_t number) {
    return (struct grant){GRANT_WRITE_ONCE, 3, 8, clock_mono_ms() + 60000, number};
}

static void begin(void) {
    struct host_config config = {.threads = 1};
    TARN_ASSERT(host_create(&config, &host) == TARN_OK);
    host_set_authority(host, key, 3);
}

static enum grant_verdict write_to(const struct grant *g, uint64_t from, uint64_t length) {
    void *p;
    enum grant_verdict v = host_puts_begin(&host->gate, g, &extent, &p);
    if (v == GRANT_OK) host_puts_end(&host->gate, p, from, length);
    return v;
}

/* 1: sealed and whole, 0: sealed and not whole, -1: not sealed. */
static int seal(const struct grant *g) {
    uint8_t receipt[GRANT_RECEIPT_SIZE];
    if (host_puts_seal(&host->gate, g, &extent, receipt) != GRANT_OK) return -1;
    bool whole = grant_receipt_check(key, g, &extent, true, receipt);
    CHECK(whole || grant_receipt_check(key, g, &extent, false, receipt));
    return whole;
}

TEST(sealed_is_sealed) {
    begin();
    struct grant g = put(1), other = put(2);
    CHECK_EQ(write_to(&g, 0, 1000), GRANT_OK);
    CHECK_EQ(write_to(&g, 500, 10), GRANT_OK); /* again, as a retry does */
    CHECK_EQ(seal(&g), 1);
    CHECK_EQ(write_to(&g, 0, 1000), GRANT_OVER);
    CHECK_EQ(seal(&g), 1);
    CHECK_EQ(write_to(&other, 0, 999), GRANT_OK); /* another put of the same space */
    CHECK_EQ(seal(&other), 0);
    struct grant unwritten = put(3);
    CHECK_EQ(seal(&unwritten), 0);
    CHECK_EQ(write_to(&unwritten, 0, 1000), GRANT_OVER);
    host_destroy(&host);
}

TEST(nothing_is_sealed_under_a_writer) {
    begin();
    struct grant g = put(1);
    void *a, *b;
    CHECK_EQ(host_puts_begin(&host->gate, &g, &extent, &a), GRANT_OK);
    CHECK_EQ(host_puts_begin(&host->gate, &g, &extent, &b), GRANT_OK);
    CHECK_EQ(seal(&g), -1);
    host_puts_end(&host->gate, a, 0, 1000);
    CHECK_EQ(seal(&g), -1);
    CHECK(!host_put_close(host, &g, &extent)); /* the put is over, and one is still at it */
    CHECK_EQ(write_to(&g, 0, 1000), GRANT_OVER);
    host_puts_end(&host->gate, b, 0, 0);
    CHECK(host_put_close(host, &g, &extent));
    host_destroy(&host);
}

TEST(closed_before_it_was_ever_seen) {
    begin();
    struct grant g = put(1);
    CHECK(host_put_close(host, &g, &extent));
    CHECK_EQ(write_to(&g, 0, 1000), GRANT_OVER);
    CHECK_EQ(seal(&g), 0);
    host_set_authority(host, key, 4);
    CHECK_EQ(seal(&g), -1); /* of a master that is no more */
    host_destroy(&host);
}

/* Against a map of bytes. */
TEST(whole_means_every_byte) {
    struct rng rng;
    begin();
    rng_seed(&rng, 7);
    for (uint64_t round = 0; round < 300; round++) {
        struct grant g = put(round + 1);
        char there[1000] = {0};
        unsigned writes = 1 + (unsigned)rng_below(&rng, 60);
        for (unsigned i = 0; i < writes; i++) {
            uint64_t from = rng_below(&rng, 1000), length = 1 + rng_below(&rng, 1000 - from);
            if (round % 2) length = min_u64(length, 100);
            CHECK_EQ(write_to(&g, from, length), GRANT_OK);
            memset(there + from, 1, length);
        }
        CHECK_EQ(seal(&g), memchr(there, 0, sizeof(there)) == NULL);
    }
    struct grant g = put(1000); /* more pieces than are kept in mind: never whole, never wrong */
    for (uint64_t i = 0; i < 1000; i += 2) CHECK_EQ(write_to(&g, i, 1), GRANT_OK);
    for (uint64_t i = 1; i < 1000; i += 2) CHECK_EQ(write_to(&g, i, 1), GRANT_OK);
    CHECK_EQ(seal(&g), 0);
    host_destroy(&host);
}

TEST(the_table_is_bounded) {
    begin();
    struct grant g = put(0);
    for (uint64_t i = 1; i <= HOST_PUTS_MAX; i++) {
        g.put = i;
        CHECK_EQ(write_to(&g, 0, 1), GRANT_OK);
    }
    g.put = HOST_PUTS_MAX + 1;
    CHECK_EQ(write_to(&g, 0, 1), GRANT_LATER);
    CHECK_EQ(seal(&g), -1);
    CHECK(!host_put_close(host, &g, &extent));
    g.put = 1;
    CHECK_EQ(write_to(&g, 0, 1000), GRANT_OK); /* who is in goes on */
    CHECK_EQ(seal(&g), 1);
    struct host_stats s;
    host_get_stats(host, &s);
    CHECK_EQ(s.puts, HOST_PUTS_MAX);
    host_destroy(&host);
}

TEST_MAIN()
