#include "base/program.h"

#include <string.h>

#include "../test.h"

static const char *text_of(uint32_t program) {
    static char text[PROGRAM_TEXT];
    program_write(program, text);
    return text;
}

TEST(versions_are_told_in_three_bytes) {
    CHECK_STR(text_of(0x000201), "0.2.1");
    CHECK_STR(text_of(PROGRAM_MAX), "255.255.255");
    CHECK_STR(text_of(0), "0.1");
    CHECK_STR(text_of(PROGRAM_OTHER), "other");
    CHECK_STR(text_of(program_own()), TARN_VERSION);
    CHECK_EQ(program_told(program_own()), program_own());
    CHECK_EQ(program_told(PROGRAM_MAX + 1), 0);
    CHECK_EQ(program_told(PROGRAM_OTHER), 0);
}

static uint32_t count_of(const struct program_counts *c, uint32_t program) {
    uint32_t peers = 0;
    for (unsigned i = 0; i <= PROGRAM_COUNTS; i++)
        if (c->of[i].program == program) peers += c->of[i].peers;
    return peers;
}

TEST(peers_are_counted_by_version) {
    struct program_counts c = {0}, sum = {0};
    CHECK_EQ(program_add(&c, 0x200, 1), 0x200);
    CHECK_EQ(program_add(&c, 0, 1), 0);
    CHECK_EQ(program_add(&c, 0x200, 2), 0x200);
    CHECK_EQ(count_of(&c, 0x200), 3);
    CHECK_EQ(count_of(&c, 0), 1);
    program_drop(&c, 0);
    CHECK_EQ(count_of(&c, 0), 0);
    CHECK_EQ(program_add(&c, 0x300, 1), 0x300); /* in its place */
    for (int i = 0; i < 2; i++) program_add_all(&sum, &c);
    CHECK_EQ(count_of(&sum, 0x200), 6);
    CHECK_EQ(count_of(&sum, 0x300), 2);
}

TEST(however_many_versions_somebody_invents) {
    struct program_counts c = {0}, sum = {0};
    uint32_t added[1000];
    for (uint32_t i = 0; i < 1000; i++) added[i] = program_add(&c, i, 1);
    CHECK_EQ(added[PROGRAM_COUNTS - 1], PROGRAM_COUNTS - 1);
    CHECK_EQ(added[PROGRAM_COUNTS], PROGRAM_OTHER);
    CHECK_EQ(count_of(&c, PROGRAM_OTHER), 1000 - PROGRAM_COUNTS);
    program_add_all(&sum, &c);
    CHECK_EQ(count_of(&sum, PROGRAM_OTHER), 1000 - PROGRAM_COUNTS);
    /* Who was one of many stays one of many, whoever goes. */
    program_drop(&c, added[3]);
    CHECK_EQ(program_add(&c, 999, 1), 999);
    program_drop(&c, 999);
    for (uint32_t i = 0; i < 1000; i++)
        if (i != 3) program_drop(&c, added[i]);
    for (unsigned i = 0; i <= PROGRAM_COUNTS; i++) CHECK_EQ(c.of[i].peers, 0);
}

TEST_MAIN()
