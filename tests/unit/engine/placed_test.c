/* Reading a value from replicas that fail, or are not what was put: what is read, from where, and
 * what is believed. The engine is faked: a replica is a pattern with some bytes changed, or none at
 * all. */
#include "../test.h"

#include <stdio.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "engine/placed.h"

#define MIB PLACED_BLOCK
enum { SIZE_MAX_BLOCKS = 4, REPLICAS = 3, NONE = 99 };

static char bytes[SIZE_MAX_BLOCKS << 20];
static uint32_t crcs[SIZE_MAX_BLOCKS];

struct fake {
    struct placed_read r;
    bool dead[REPLICAS], avoided[REPLICAS];
    uint64_t damaged[REPLICAS]; /* a byte that is wrong there; UINT64_MAX: none */
    uint64_t moved;             /* bytes, of all pieces */
    unsigned tries, asked;
};

static struct placed_value value_of(uint64_t size, bool blocks) {
    for (size_t i = 0; i < size; i++) bytes[i] = (char)(i * 31 + i / 4096);
    for (size_t b = 0; b * MIB < size; b++)
        crcs[b] = crc32c(0, bytes + b * MIB, min_u64(MIB, size - b * MIB));
    return (struct placed_value){
        .version = 7, .size = size, .crc = crc32c(0, bytes, size), .crcs = blocks ? crcs : NULL};
}

static void begin(struct fake *f, uint64_t size, bool blocks) {
    struct placed_value v = value_of(size, blocks);
    *f = (struct fake){.damaged = {UINT64_MAX, UINT64_MAX, UINT64_MAX}};
    placed_read_init(&f->r, &v);
}

static bool is_avoided(void *arg, unsigned replica) {
    struct fake *f = arg;
    f->asked++;
    return f->avoided[replica];
}

static unsigned choose(struct fake *f) {
    unsigned i = placed_read_choose(&f->r, placed_in_order, REPLICAS, is_avoided, f);
    return i < REPLICAS ? i : (unsigned)NONE;
}

static uint32_t sum(const struct fake *f, unsigned replica, uint64_t from, uint64_t len) {
    uint32_t crc = crc32c(0, bytes + from, len);
    bool wrong = f->damaged[replica] >= from && f->damaged[replica] - from < len;
    return wrong ? ~crc : crc;
}

/* One piece of at most max bytes. */
static enum placed_next step(struct fake *f, uint64_t max) {
    struct placed_read *r = &f->r;
    uint64_t len = min_u64(max, r->to - r->pos), at = r->pos;
    unsigned replica = r->at;
    uint32_t got[SIZE_MAX_BLOCKS];
    f->tries++;
    if (f->dead[replica]) {
        placed_read_failed(r, replica);
        return PLACED_MORE;
    }
    f->moved += len;
    if (r->check == PLACED_BLOCKS) {
        for (uint64_t b = 0; b * MIB < len; b++)
            got[b] = sum(f, replica, at + b * MIB, min_u64(MIB, len - b * MIB));
    } else {
        got[0] = sum(f, replica, at, len);
    }
    return placed_read_took(r, replica, len, got);
}

/* To the end. true: all of it was verified. */
static bool read_all(struct fake *f, uint64_t max) {
    while (f->tries < 100 && choose(f) != NONE) {
        if (step(f, max) == PLACED_DONE) return true;
    }
    CHECK(f->tries < 100);
    return false;
}

/* --- what is read --- */

static void check_range(struct fake *f, uint64_t from, uint64_t len, unsigned how,
                        enum placed_check check, uint64_t first, uint64_t end) {
    placed_read_range(&f->r, from, len, how);
    CHECK_EQ(f->r.check, check);
    CHECK_EQ(f->r.from, first);
    CHECK_EQ(f->r.to, end);
    CHECK_EQ(f->r.pos, first);
}

TEST(ranges_go_out_to_the_borders_of_their_crcs) {
    struct fake f;
    const uint64_t size = 3 * MIB + 5;
    begin(&f, size, true);
    check_range(&f, 10, 20, 0, PLACED_UNCHECKED, 10, 30);
    check_range(&f, 10, 20, PLACED_IN_PIECES, PLACED_UNCHECKED, 10, 30);
    check_range(&f, 10, 20, PLACED_VERIFY, PLACED_BLOCKS, 0, MIB);
    check_range(&f, MIB - 1, 2, PLACED_VERIFY, PLACED_BLOCKS, 0, 2 * MIB);
    check_range(&f, MIB, MIB, PLACED_VERIFY, PLACED_BLOCKS, MIB, 2 * MIB);
    check_range(&f, size - 1, 1, PLACED_VERIFY, PLACED_BLOCKS, 3 * MIB, size);
    check_range(&f, 0, size, PLACED_VERIFY, PLACED_WHOLE, 0, size);
    check_range(&f, 0, size, PLACED_VERIFY | PLACED_IN_PIECES, PLACED_BLOCKS, 0, size);
    begin(&f, size, false);
    check_range(&f, 10, 20, PLACED_VERIFY, PLACED_WHOLE, 0, size);
    check_range(&f, 10, 20, PLACED_VERIFY | PLACED_IN_PIECES, PLACED_WHOLE, 0, size);
    begin(&f, MIB, false);
    check_range(&f, 10, 20, PLACED_VERIFY | PLACED_IN_PIECES, PLACED_WHOLE, 0, MIB);
    f.r.value.crc = -1;
    check_range(&f, 10, 20, PLACED_VERIFY, PLACED_UNCHECKED, 10, 30);
    f.r.value.crcs = crcs; /* without one of the whole */
    check_range(&f, 10, 20, PLACED_VERIFY, PLACED_BLOCKS, 0, MIB);
}

/* --- which replica --- */

TEST(the_first_that_will_do_and_then_that_one) {
    struct fake f;
    begin(&f, 100, false);
    placed_read_range(&f.r, 0, 100, PLACED_VERIFY);
    CHECK_EQ(choose(&f), 0);
    CHECK_EQ(f.asked, 1); /* asking may cost something */
    f.avoided[0] = true;
    CHECK_EQ(choose(&f), 1);
    f.avoided[0] = false;
    CHECK_EQ(choose(&f), 1); /* nothing speaks against it */
    CHECK(placed_read_has_other(&f.r, placed_in_order, REPLICAS, is_avoided, &f));
    f.avoided[0] = f.avoided[2] = true;
    CHECK(!placed_read_has_other(&f.r, placed_in_order, REPLICAS, is_avoided, &f));
    CHECK(placed_read_has_other(&f.r, placed_in_order, REPLICAS, NULL, NULL));
    placed_read_failed(&f.r, 1);
    CHECK_EQ(choose(&f), 0); /* better than none */
    placed_read_failed(&f.r, 0);
    CHECK_EQ(choose(&f), 2);
    CHECK(!placed_read_has_other(&f.r, placed_in_order, REPLICAS, NULL, NULL));
    placed_read_failed(&f.r, 2);
    CHECK_EQ(choose(&f), NONE);
    CHECK_EQ(placed_read_choose(&f.r, NULL, 0, NULL, NULL), 0);
}

TEST(orders_that_change) {
    struct fake f;
    const uint8_t first[] = {4, 1, 9}, second[] = {9, 4}, third[] = {7};
    begin(&f, 100, false);
    placed_read_range(&f.r, 0, 100, PLACED_VERIFY);
    f.r.at = 4;
    CHECK_EQ(placed_read_choose(&f.r, first, 3, NULL, NULL), 0);
    CHECK_EQ(placed_read_choose(&f.r, second, 2, NULL, NULL), 1); /* the same */
    placed_read_failed(&f.r, 4);
    CHECK_EQ(placed_read_choose(&f.r, second, 2, NULL, NULL), 0);
    CHECK_EQ(f.r.at, 9);
    CHECK_EQ(placed_read_choose(&f.r, third, 1, NULL, NULL), 0); /* 9 has gone */
    CHECK_EQ(f.r.at, 7);
    CHECK_EQ(placed_read_choose(&f.r, first, 3, NULL, NULL), 1); /* 4 stays given up */
    placed_read_only(&f.r, 9);
    CHECK_EQ(placed_read_choose(&f.r, first, 3, NULL, NULL), 2);
    placed_read_failed(&f.r, 9);
    CHECK_EQ(placed_read_choose(&f.r, first, 3, NULL, NULL), 3);
}

/* --- what comes, and what does not --- */

TEST(it_goes_on_where_it_stopped) {
    struct fake f;
    for (int blocks = 0; blocks < 2; blocks++) {
        begin(&f, 4 * MIB, blocks);
        placed_read_range(&f.r, 0, 4 * MIB,
                          blocks ? PLACED_VERIFY | PLACED_IN_PIECES : PLACED_VERIFY);
        CHECK_EQ(choose(&f), 0);
        CHECK_EQ(step(&f, MIB), PLACED_MORE);
        CHECK_EQ(step(&f, MIB), PLACED_MORE);
        f.dead[0] = true;
        CHECK(read_all(&f, MIB));
        CHECK_EQ(f.moved, 4 * MIB); /* nothing twice */
        CHECK_EQ(f.r.at, 1);
        CHECK_EQ(f.r.mismatches, 0);
    }
}

TEST(none_is_left) {
    struct fake f;
    begin(&f, 100, false);
    placed_read_range(&f.r, 0, 100, PLACED_VERIFY);
    f.dead[0] = f.dead[1] = f.dead[2] = true;
    CHECK(!read_all(&f, 100));
    CHECK_EQ(f.tries, 3);
}

TEST(a_bad_block_comes_from_another_and_nothing_else_does) {
    struct fake f;
    begin(&f, 4 * MIB, true);
    placed_read_range(&f.r, MIB + 1, 2 * MIB, PLACED_VERIFY);
    f.damaged[0] = 2 * MIB + 7;
    CHECK(read_all(&f, MIB));
    CHECK_EQ(f.r.mismatches, 1);
    CHECK_EQ(f.moved, 4 * MIB); /* three blocks, one of them twice */
    begin(&f, 4 * MIB, true);
    placed_read_range(&f.r, MIB + 1, 2 * MIB, PLACED_VERIFY);
    f.damaged[0] = f.damaged[1] = f.damaged[2] = 3 * MIB;
    CHECK(!read_all(&f, 8 * MIB)); /* in one piece */
    CHECK_EQ(f.r.mismatches, 3);
    CHECK_EQ(f.r.pos, MIB);
}

TEST(a_bad_value_is_read_anew_elsewhere) {
    struct fake f;
    begin(&f, 2 * MIB, false);
    placed_read_range(&f.r, 0, 2 * MIB, PLACED_VERIFY);
    f.damaged[0] = 5;
    CHECK_EQ(choose(&f), 0);
    CHECK_EQ(step(&f, MIB), PLACED_MORE);
    CHECK_EQ(step(&f, MIB), PLACED_WRONG);
    CHECK_EQ(f.r.pos, 0);
    CHECK_EQ(choose(&f), 1);
    CHECK(read_all(&f, MIB));
    CHECK_EQ(f.r.mismatches, 1);
}

TEST(of_several_that_contributed_any_may_be_the_bad_one) {
    struct fake f;
    begin(&f, 2 * MIB, false);
    placed_read_range(&f.r, 0, 2 * MIB, PLACED_VERIFY);
    f.damaged[0] = 5;
    CHECK_EQ(choose(&f), 0);
    CHECK_EQ(step(&f, MIB), PLACED_MORE); /* wrong, and nobody can tell */
    placed_read_failed(&f.r, 0);
    CHECK_EQ(choose(&f), 1);
    CHECK_EQ(step(&f, MIB), PLACED_WRONG);
    CHECK_EQ(choose(&f), 1); /* does it alone */
    CHECK_EQ(step(&f, MIB), PLACED_MORE);
    CHECK_EQ(step(&f, MIB), PLACED_DONE);
    begin(&f, 2 * MIB, false);
    placed_read_range(&f.r, 0, 2 * MIB, PLACED_VERIFY);
    f.damaged[1] = MIB + 5; /* the first one's bytes were right, the second's are not */
    CHECK_EQ(choose(&f), 0);
    CHECK_EQ(step(&f, MIB), PLACED_MORE);
    placed_read_failed(&f.r, 0);
    CHECK(read_all(&f, MIB));
    CHECK_EQ(f.r.at, 2);
    CHECK_EQ(f.r.mismatches, 2);
}

TEST(it_does_not_go_round_for_ever) {
    struct fake f;
    begin(&f, 2 * MIB, false);
    placed_read_range(&f.r, 0, 2 * MIB, PLACED_VERIFY);
    for (unsigned i = 0; i < REPLICAS; i++) f.damaged[i] = 5;
    unsigned rounds = 0;
    while (choose(&f) != NONE) { /* two at a time, however often they are told */
        f.r.sources |= 1u << 31;
        step(&f, 2 * MIB);
        CHECK(++rounds < 10);
    }
    CHECK_EQ(f.r.mismatches, REPLICAS + 2);
}

TEST(without_a_crc_bytes_are_what_they_are) {
    struct fake f;
    begin(&f, 2 * MIB, false);
    f.r.value.crc = -1;
    placed_read_range(&f.r, 0, 2 * MIB, PLACED_VERIFY);
    f.damaged[0] = 5;
    CHECK_EQ(choose(&f), 0);
    CHECK_EQ(placed_read_took(&f.r, 0, MIB, NULL), PLACED_MORE);
    CHECK_EQ(placed_read_took(&f.r, 0, MIB, NULL), PLACED_DONE);
}

/* --- twice: once to know, once to hand on --- */

TEST(crcs_of_blocks_are_learned_from_all_of_it) {
    struct fake f;
    uint32_t room[SIZE_MAX_BLOCKS] = {0};
    const uint64_t size = 3 * MIB + 9;
    begin(&f, size, false);
    placed_read_range(&f.r, MIB, 10, PLACED_VERIFY | PLACED_IN_PIECES);
    placed_read_learn(&f.r, room);
    f.damaged[0] = size - 1;
    CHECK_EQ(choose(&f), 0);
    while (choose(&f) == 0) step(&f, MIB); /* ends with what is wrong */
    CHECK(f.r.value.crcs == NULL);
    CHECK(read_all(&f, MIB));
    CHECK(memcmp(room, crcs, sizeof(room)) == 0);
    placed_read_range(&f.r, MIB, 10, PLACED_VERIFY | PLACED_IN_PIECES);
    CHECK_EQ(f.r.check, PLACED_BLOCKS);
    CHECK_EQ(f.r.from, MIB);
    CHECK_EQ(choose(&f), 1); /* the first one stays given up */
    f.damaged[1] = MIB;      /* since then */
    CHECK(read_all(&f, MIB));
    CHECK_EQ(f.r.at, 2);
}

TEST(crcs_may_begin_with_a_later_block) {
    struct fake f;
    begin(&f, 4 * MIB, true);
    f.r.value.crcs = &crcs[2];
    f.r.value.first_block = 2;
    placed_read_range(&f.r, 2 * MIB + 5, MIB, PLACED_VERIFY);
    CHECK(read_all(&f, MIB));
    CHECK_EQ(f.moved, 2 * MIB);
}

/* --- a new look-up --- */

TEST(a_new_look_up_goes_on_with_the_same_value_only) {
    struct fake f;
    begin(&f, 2 * MIB, false);
    placed_read_range(&f.r, 0, 2 * MIB, PLACED_VERIFY);
    CHECK_EQ(choose(&f), 0);
    CHECK_EQ(step(&f, MIB), PLACED_MORE);
    placed_read_failed(&f.r, 0);
    struct placed_value v = f.r.value;
    v.version++;
    CHECK(!placed_read_relocated(&f.r, &v, false));
    v = f.r.value;
    v.size--;
    CHECK(!placed_read_relocated(&f.r, &v, false));
    v = f.r.value;
    v.crc ^= 1;
    CHECK(!placed_read_relocated(&f.r, &v, false));
    v = f.r.value;
    CHECK(placed_read_relocated(&f.r, &v, true));
    CHECK_EQ(choose(&f), 0); /* as good as any */
    CHECK_EQ(f.r.pos, MIB);
    f.damaged[0] = 2 * MIB - 1;
    CHECK_EQ(step(&f, MIB), PLACED_WRONG);
    CHECK_EQ(choose(&f), 0); /* nobody knows who gave the first half */
    f.damaged[0] = UINT64_MAX;
    CHECK(read_all(&f, MIB));
}

TEST(a_new_look_up_may_ask_for_more_than_was_checked) {
    struct fake f;
    begin(&f, 2 * MIB, true);
    placed_read_range(&f.r, 0, 10, PLACED_VERIFY);
    struct placed_value v = f.r.value;
    v.crcs = NULL;
    CHECK(!placed_read_relocated(&f.r, &v, false));
    placed_read_range(&f.r, 0, 10, 0);
    CHECK(placed_read_relocated(&f.r, &f.r.value, false));
    CHECK(!placed_read_relocated(&f.r, &f.r.value, true));
}

/* --- pieces --- */

TEST(parts_of_a_piece) {
    const struct engine_part all[] = {{.extent = {1, 1, 0, 100}, .sub_length = 100},
                                      {.extent = {1, 1, 500, 50}, .sub_length = 50},
                                      {.extent = {1, 1, 900, 25}, .sub_length = 25}};
    struct engine_part out[3];
    CHECK_EQ(placed_parts(all, 3, 0, 175, out), 3);
    CHECK_EQ(placed_parts(all, 3, 90, 70, out), 3);
    CHECK_EQ(out[0].sub_offset, 90);
    CHECK_EQ(out[0].sub_length, 10);
    CHECK_EQ(out[1].sub_length, 50);
    CHECK_EQ(out[2].sub_offset, 0);
    CHECK_EQ(out[2].sub_length, 10);
    CHECK_EQ(placed_parts(all, 3, 150, 5, out), 1);
    CHECK_EQ(out[0].extent.offset, 900);
}

TEST(files) {
    char path[] = "/tmp/tarn-placed-XXXXXX", got[5000];
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    unlink(path);
    value_of(MIB, false);
    CHECK_EQ(write(fd, bytes, 6000), 6000);
    uint32_t blocks[3];
    struct iovec iov[] = {{got, 10}, {got + 10, 0}, {got + 10, 4990}};
    struct engine_op op = {
        .iov = iov, .n_iov = 3, .want_crc = true, .crcs = blocks, .crc_block = 2000};
    CHECK_EQ(placed_file_read(fd, 1000, &op), TARN_OK);
    CHECK(memcmp(got, bytes + 1000, sizeof(got)) == 0);
    CHECK_EQ(op.crc, crc32c(0, bytes + 1000, 5000));
    CHECK_EQ(blocks[0], crc32c(0, bytes + 1000, 2000));
    CHECK_EQ(blocks[2], crc32c(0, bytes + 5000, 1000));
    CHECK_EQ(placed_file_read(fd, 1001, &op), TARN_ECORRUPT);
    op.lease_end_boot_ms = clock_boot_ms();
    CHECK_EQ(placed_file_read(fd, 1000, &op), TARN_ELEASE);
    close(fd);
    CHECK_EQ(placed_file_read(fd, 1000, &op), TARN_EIO);
}

TEST_MAIN()
