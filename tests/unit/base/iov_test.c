#include "base/iov.h"

#include "../test.h"
#include "base/buf.h"
#include "base/rng.h"

static char memory[26];
static const struct iovec pieces[] = {{memory, 3},      {NULL, 0}, {memory + 3, 10},
                                      {memory + 13, 1}, {NULL, 0}, {memory + 14, 12}};
#define PIECES ARRAY_LEN(pieces)

static void write_alphabet(void) {
    for (size_t i = 0; i < sizeof(memory); i++) memory[i] = (char)('a' + i);
}

TEST(here_skips_what_is_empty) {
    struct iov_cursor c = iov_cursor(pieces, PIECES);
    CHECK(iov_here(&c).iov_base == memory);
    iov_advance(&c, 3);
    CHECK(iov_here(&c).iov_base == memory + 3);
    CHECK_EQ(iov_here(&c).iov_len, 10);
    iov_advance(&c, 10);
    iov_advance(&c, 2);
    CHECK(iov_here(&c).iov_base == memory + 15);
    iov_advance(&c, 11);
    CHECK_EQ(iov_here(&c).iov_len, 0);
    CHECK_EQ(iov_here(&c).iov_len, 0);
    c = iov_cursor(NULL, 0);
    CHECK_EQ(iov_here(&c).iov_len, 0);
}

TEST(slices_and_sums) {
    struct iovec out[PIECES];
    CHECK_EQ(iov_total(pieces, PIECES), 26);
    CHECK_EQ(iov_slice(pieces, PIECES, 2, 12, out), 3);
    CHECK(out[0].iov_base == memory + 2 && out[0].iov_len == 1);
    CHECK(out[1].iov_base == memory + 3 && out[1].iov_len == 10);
    CHECK(out[2].iov_base == memory + 13 && out[2].iov_len == 1);
    CHECK_EQ(iov_slice(pieces, PIECES, 0, 0, out), 0);
    CHECK_EQ(iov_slice(pieces, PIECES, 26, 5, out), 0);
    struct iovec huge[] = {{NULL, SIZE_MAX}, {NULL, 2}};
    CHECK_EQ(iov_total(huge, 2), UINT64_MAX);
}

TEST(gather_counts_and_is_bounded) {
    struct iov_cursor c = iov_cursor(pieces, PIECES);
    struct iovec out[2];
    CHECK_EQ(iov_gather(c, 20, NULL, PIECES), 4);
    CHECK_EQ(iov_gather(c, 100, NULL, PIECES), 4);
    CHECK_EQ(iov_gather(c, 20, out, 2), 2);
    CHECK_EQ(out[1].iov_len, 10);
    CHECK_EQ(c.offset, 0);
}

TEST(copies_of_any_length) {
    struct rng r;
    rng_seed(&r, 7);
    for (int round = 0; round < 200; round++) {
        char to[40] = {0};
        size_t n = 0, k;
        write_alphabet();
        struct iov_cursor c = iov_cursor(pieces, PIECES);
        while ((k = iov_copy_out(&c, to + n, 1 + rng_below(&r, 9))) > 0) n += k;
        CHECK_BYTES(to, n, "abcdefghijklmnopqrstuvwxyz");
        c = iov_cursor(pieces, PIECES);
        iov_advance(&c, 1);
        CHECK_EQ(iov_copy_in(&c, "0123456789", 10), 10);
        CHECK_EQ(iov_copy_in(&c, "", 0), 0);
        CHECK_BYTES(memory, 13, "a0123456789lm");
    }
}

TEST(small_pieces_are_put_together) {
    char room[4];
    write_alphabet();
    struct iov_cursor c = iov_cursor(pieces, PIECES);
    struct iovec v = iov_take_together(&c, room, sizeof(room), 8);
    CHECK(v.iov_base == room);
    CHECK_BYTES(v.iov_base, v.iov_len, "abcd");
    v = iov_take_together(&c, room, sizeof(room), 8);
    CHECK(v.iov_base == memory + 4 && v.iov_len == 8);
    v = iov_take_together(&c, room, sizeof(room), 8);
    CHECK(v.iov_base == room);
    CHECK_BYTES(v.iov_base, v.iov_len, "mnop");
    v = iov_take_together(&c, room, sizeof(room), 8);
    CHECK(v.iov_base == memory + 16 && v.iov_len == 8);
    v = iov_take_together(&c, room, sizeof(room), 8);
    CHECK(v.iov_base == memory + 24 && v.iov_len == 2); /* the last: no need to copy it */
    CHECK_EQ(iov_take_together(&c, room, sizeof(room), 8).iov_len, 0);
}

TEST_MAIN()
