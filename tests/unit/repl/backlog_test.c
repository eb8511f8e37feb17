/* The ring behind partial synchronisation, and which stream it belongs to. */
#include "../test.h"
#include "base/rng.h"
#include "repl/backlog.h"
#include "repl/history.h"

static struct span text(const char *s) {
    return span_of(s, strlen(s));
}

static void check_tail(const struct repl_backlog *b, const char *expected) {
    struct span piece[2];
    char got[64];
    repl_backlog_tail(b, strlen(expected), piece);
    CHECK_EQ(piece[0].len + piece[1].len, strlen(expected));
    if (piece[0].len > 0) memcpy(got, piece[0].data, piece[0].len);
    if (piece[1].len > 0) memcpy(got + piece[0].len, piece[1].data, piece[1].len);
    CHECK(memcmp(got, expected, strlen(expected)) == 0);
}

TEST(ring_keeps_the_newest) {
    struct repl_backlog b = {.ring = NULL};
    CHECK(!repl_backlog_holds(&b, 0, 1));
    repl_backlog_create(&b, 8);
    CHECK(repl_backlog_holds(&b, 100, 101));
    CHECK(!repl_backlog_holds(&b, 100, 100));
    CHECK(!repl_backlog_holds(&b, 100, 102)); /* from the future */
    repl_backlog_feed(&b, text("abc"));
    check_tail(&b, "abc");
    check_tail(&b, "c");
    check_tail(&b, "");
    repl_backlog_feed(&b, text("defgh"));
    check_tail(&b, "abcdefgh");
    repl_backlog_feed(&b, text("ij"));
    check_tail(&b, "cdefghij");
    CHECK(repl_backlog_holds(&b, 10, 3));
    CHECK(!repl_backlog_holds(&b, 10, 2));
    repl_backlog_feed(&b, text("0123456789"));
    check_tail(&b, "23456789");
    check_tail(&b, "789");
    repl_backlog_clear(&b);
    CHECK(!repl_backlog_holds(&b, 20, 20));
    repl_backlog_feed(&b, text("x"));
    check_tail(&b, "x");
    repl_backlog_free(&b);
}

TEST(ring_of_another_size) {
    struct repl_backlog b = {.ring = NULL};
    repl_backlog_resize(&b, 8); /* there is none */
    CHECK(b.ring == NULL);
    repl_backlog_create(&b, 8);
    repl_backlog_feed(&b, text("abcdefghijk"));
    repl_backlog_resize(&b, 20);
    check_tail(&b, "defghijk");
    repl_backlog_feed(&b, text("lmnopqrstuvwxyz"));
    check_tail(&b, "ghijklmnopqrstuvwxyz");
    repl_backlog_resize(&b, 4);
    check_tail(&b, "wxyz");
    CHECK_EQ(b.len, 4);
    repl_backlog_free(&b);
}

TEST(ring_against_a_long_string) {
    struct repl_backlog b = {.ring = NULL};
    struct rng rng;
    static char all[100000];
    size_t n = 0;
    rng_seed(&rng, 4);
    for (size_t i = 0; i < sizeof(all); i++) all[i] = (char)rng_next(&rng);
    repl_backlog_create(&b, 997);
    while (n < sizeof(all) - 2000) {
        size_t k = rng_next(&rng) % 1500;
        repl_backlog_feed(&b, span_of(all + n, k));
        n += k;
        size_t back = rng_next(&rng) % (b.len + 1);
        struct span piece[2];
        repl_backlog_tail(&b, back, piece);
        CHECK_EQ(piece[0].len + piece[1].len, back);
        CHECK(memcmp(piece[0].data, all + n - back, piece[0].len) == 0);
        CHECK(memcmp(piece[1].data, all + n - piece[1].len, piece[1].len) == 0);
        CHECK_EQ(b.len, n < 997 ? n : 997);
    }
    repl_backlog_free(&b);
}

TEST(a_stream_goes_on_under_its_id_and_the_one_before) {
    struct repl_history h = {.offset = 0};
    struct repl_backlog b = {.ring = NULL};
    char old[REPL_ID_LEN + 1], other[REPL_ID_LEN + 1];
    repl_history_renew(&h);
    CHECK(repl_id_valid(h.id, REPL_ID_LEN));
    CHECK_EQ(h.second, -1);
    repl_backlog_create(&b, 100);
    repl_backlog_feed(&b, text("0123456789"));
    h.offset = 10;
    memcpy(old, h.id, sizeof(old));
    CHECK(repl_history_continues(&h, &b, old, 1));
    CHECK(repl_history_continues(&h, &b, old, 11));
    CHECK(!repl_history_continues(&h, &b, old, 12));
    CHECK(!repl_history_continues(&h, &b, "0000000000000000000000000000000000000000", 11));
    repl_history_shift(&h, NULL);
    CHECK(strcmp(h.id2, old) == 0 && strcmp(h.id, old) != 0);
    CHECK_EQ(h.second, 11);
    repl_backlog_feed(&b, text("abc"));
    h.offset = 13;
    CHECK(repl_history_continues(&h, &b, old, 11)); /* had all that there was */
    CHECK(repl_history_continues(&h, &b, old, 5));
    CHECK(!repl_history_continues(&h, &b, old, 12)); /* heard of something else under that id */
    CHECK(repl_history_continues(&h, &b, h.id, 12));
    memset(other, 'a', REPL_ID_LEN);
    other[REPL_ID_LEN] = '\0';
    memcpy(old, h.id, sizeof(old));
    repl_history_shift(&h, other);
    CHECK(strcmp(h.id, other) == 0 && strcmp(h.id2, old) == 0);
    CHECK_EQ(h.second, 14);
    repl_history_adopt(&h, old, 7);
    CHECK(strcmp(h.id, old) == 0);
    CHECK_EQ(h.second, -1);
    CHECK_EQ(h.offset, 7);
    CHECK(!repl_history_continues(&h, &b, other, 14));
    repl_backlog_free(&b);
}

TEST(ids_are_forty_digits) {
    CHECK(repl_id_valid("0123456789abcdef0123456789abcdef01234567", 40));
    CHECK(!repl_id_valid("0123456789abcdef0123456789abcdef0123456", 39));
    CHECK(!repl_id_valid("0123456789abcdef0123456789abcdef0123456g", 40));
    CHECK(!repl_id_valid("0123456789ABCDEF0123456789abcdef01234567", 40));
}

TEST_MAIN()
