/* Numbers of batches: what follows, what was seen, what is missing, who started anew. */
#include "../test.h"

#include "kvevents/sequence.h"

TEST(from_the_first) {
    struct sequence s = {0};
    CHECK_EQ(sequence_place(&s, 0), SEQUENCE_NEXT);
    CHECK_EQ(sequence_place(&s, 1), SEQUENCE_GAP);
    sequence_apply(&s, 0, 10);
    CHECK(s.begun && s.whole);
    CHECK_EQ(sequence_place(&s, 0), SEQUENCE_KNOWN);
    CHECK_EQ(sequence_place(&s, 1), SEQUENCE_NEXT);
    CHECK_EQ(sequence_place(&s, 2), SEQUENCE_GAP);
    sequence_apply(&s, 1, 11);
    CHECK(s.whole);
    sequence_apply(&s, 5, 15);
    CHECK(!s.whole);
    CHECK_EQ(sequence_place(&s, 6), SEQUENCE_NEXT);
    sequence_apply(&s, 6, 16);
    CHECK(!s.whole);
    sequence_forget(&s);
    CHECK_EQ(sequence_place(&s, 0), SEQUENCE_NEXT);
    sequence_apply(&s, 3, 1);
    CHECK(s.begun && !s.whole);
}

TEST(nothing_published) {
    struct sequence s = {0};
    sequence_none(&s);
    CHECK(s.whole && !s.begun);
    CHECK_EQ(sequence_place(&s, 1), SEQUENCE_GAP);
    sequence_apply(&s, 1, 11);
    CHECK(!s.whole);
    sequence_forget(&s);
    sequence_none(&s);
    sequence_apply(&s, 0, 10);
    CHECK(s.whole && s.begun);
}

TEST(numbers_that_go_back) {
    struct sequence s = {0};
    CHECK(!sequence_wire(&s, 5, 1));
    sequence_apply(&s, 5, 1);
    CHECK(!sequence_wire(&s, 5, 1)); /* said twice */
    CHECK(sequence_wire(&s, 5, 2));
    CHECK(!sequence_wire(&s, 9, 1));
    CHECK(sequence_wire(&s, 3, 1));
    CHECK(!sequence_wire(&s, 4, 1));
}

TEST(proofs) {
    struct sequence s = {0};
    sequence_apply(&s, 7, 70);
    CHECK_EQ(sequence_prove(&s, 7, 70), SEQUENCE_SAME);
    CHECK_EQ(sequence_prove(&s, 7, 71), SEQUENCE_ANOTHER);
    CHECK_EQ(sequence_prove(&s, 8, 70), SEQUENCE_LATER);
    CHECK_EQ(sequence_prove(&s, 6, 70), SEQUENCE_EARLIER);
}

TEST_MAIN()
