/* Globs as Redis reads them, and in bounded time. */
#include "base/glob.h"

#include "../test.h"

static bool match(const char *pattern, const char *s) {
    return glob_match_once(span_str(pattern), span_str(s), false);
}

TEST(literals_and_stars) {
    CHECK(match("hello", "hello"));
    CHECK(!match("hello", "hell"));
    CHECK(!match("hell", "hello"));
    CHECK(match("", ""));
    CHECK(!match("", "a"));
    CHECK(match("*", ""));
    CHECK(match("*", "anything"));
    CHECK(match("***", "anything"));
    CHECK(match("h*o", "hello"));
    CHECK(match("h*o", "ho"));
    CHECK(!match("h*o", "hellos"));
    CHECK(match("*a*b*", "xxaxxbxx"));
    CHECK(!match("*a*b*", "xxbxxaxx"));
    CHECK(match("*ab", "aab"));
    CHECK(match("h?llo", "hallo"));
    CHECK(!match("h?llo", "hllo"));
}

TEST(classes) {
    CHECK(match("h[ae]llo", "hallo"));
    CHECK(!match("h[ae]llo", "hillo"));
    CHECK(match("h[^e]llo", "hallo"));
    CHECK(!match("h[^e]llo", "hello"));
    CHECK(match("h[a-b]llo", "hbllo"));
    CHECK(match("h[b-a]llo", "hallo"));
    CHECK(!match("h[a-b]llo", "hcllo"));
    CHECK(match("[\\]]", "]"));
    CHECK(match("[a-c-]", "-"));
    CHECK(match("a[bc", "ac")); /* open: it ends with the pattern */
    CHECK(match("[^]", "x"));
    CHECK(!match("[]", "x"));
    CHECK(match("[x-\xff]", "\x80"));
    CHECK(match("[\x01-\xff]*", "\x7f\xc3\xbf"));
}

TEST(escapes_and_bytes) {
    CHECK(match("a\\*b", "a*b"));
    CHECK(!match("a\\*b", "axb"));
    CHECK(match("a\\", "a\\"));
    CHECK(glob_match_once(span_of("a?c", 3), span_of("a\0c", 3), false));
    CHECK(glob_match_once(span_of("a\0*", 3), span_of("a\0c", 3), false));
}

TEST(case_folding) {
    CHECK(glob_match_once(SPAN("MaxMemory*"), SPAN("maxmemory-policy"), true));
    CHECK(!glob_match_once(SPAN("MaxMemory*"), SPAN("maxmemory-policy"), false));
    CHECK(glob_match_once(SPAN("[A-C]x"), SPAN("bX"), true));
}

TEST(open_ends) {
    static const char *const open[] = {"*", "a*", "[a]*", "\\\\*"},
                             *const closed[] = {
                                 "",   "a",   "a*b", "a\\*",
                                 "a?", "*[a", "[*" /* a class that is not closed ends with it */};
    for (size_t i = 0; i < sizeof(open) / sizeof(open[0]); i++) {
        struct glob *g = glob_create(span_str(open[i]), false);
        CHECK(glob_is_open(g));
        glob_destroy(&g);
    }
    for (size_t i = 0; i < sizeof(closed) / sizeof(closed[0]); i++) {
        struct glob *g = glob_create(span_str(closed[i]), false);
        CHECK(!glob_is_open(g));
        glob_destroy(&g);
    }
}

TEST(hard_patterns_take_bounded_steps) {
    char pattern[2001], s[1025];
    for (int i = 0; i < 1000; i++) memcpy(pattern + 2 * i, "*a", 2);
    pattern[2000] = 0;
    memset(s, 'a', 1024);
    s[1024] = 0;
    struct glob *g = glob_create(span_str(pattern), false);
    size_t work = 0;
    CHECK(glob_match(g, span_str(s), &work));
    s[1023] = 'b';
    CHECK(!glob_match(g, span_str(s), &work));
    CHECK(work < 1024 * 2000);
    glob_destroy(&g);
    CHECK(g == NULL);
}

TEST(long_patterns) {
    char pattern[4096];
    memset(pattern, '?', sizeof(pattern));
    CHECK(!glob_match_once(span_of(pattern, sizeof(pattern)), SPAN("abc"), false));
    memset(pattern, '*', sizeof(pattern));
    CHECK(glob_match_once(span_of(pattern, sizeof(pattern)), SPAN("abc"), false));
    memset(pattern, '[', sizeof(pattern));
    CHECK(!glob_match_once(span_of(pattern, sizeof(pattern)), SPAN("abc"), false));
    CHECK(glob_match_once(span_of(pattern, sizeof(pattern)), SPAN("["), false));
}

TEST_MAIN()
