#include "base/buf.h"

#include <stdlib.h>

#include "../test.h"
#include "base/assert.h"
#include "base/hex.h"
#include "base/rng.h"

TEST(buf_zero_is_empty_and_valid) {
    struct buf b = {0};
    buf_append(&b, NULL, 0);
    buf_consume(&b, 0);
    buf_clear(&b);
    CHECK_EQ(b.len, 0);
    buf_free(&b);
}

TEST(buf_append_grows_geometrically) {
    struct buf b = {0};
    unsigned moves = 0;
    for (int i = 0; i < 100000; i++) {
        size_t before = b.cap;
        buf_append_char(&b, (char)i);
        moves += b.cap != before;
    }
    CHECK(moves < 20);
    for (int i = 0; i < 100000; i++) CHECK_EQ(b.data[i], (char)i);
    buf_free(&b);
    CHECK(b.data == NULL && b.cap == 0);
}

TEST(buf_consume_moves_the_rest_down) {
    struct buf b = {0};
    buf_append_str(&b, "hello world");
    buf_consume(&b, 6);
    CHECK_BYTES(b.data, b.len, "world");
    buf_consume(&b, 5);
    CHECK_EQ(b.len, 0);
    buf_free(&b);
}

TEST(buf_printf_of_any_length) {
    for (int n = 0; n < 300; n++) {
        struct buf b = {0};
        buf_append_str(&b, "x");
        buf_printf(&b, "%0*d", n, 7);
        CHECK_EQ(b.len, (size_t)(n == 0 ? 2 : n + 1));
        CHECK_EQ(b.data[b.len - 1], '7');
        buf_free(&b);
    }
}

TEST(buf_quotes_as_redis_cli_does) {
    struct buf b = {0};
    buf_append_quoted(&b, SPAN("a\x00\n\r\t\a\b\"\\\xff~"));
    CHECK_BYTES(b.data, b.len, "\"a\\x00\\n\\r\\t\\a\\b\\\"\\\\\\xff~\"");
    buf_free(&b);
}

TEST(span_compares_without_case) {
    CHECK(span_case_eq(SPAN("GeT"), "get"));
    CHECK(span_case_eq(SPAN(""), ""));
    CHECK(!span_case_eq(SPAN("get"), "gets"));
    CHECK(!span_case_eq(SPAN("gets"), "get"));
    CHECK(!span_case_eq(SPAN("get\0"), "get"));
    CHECK(!span_case_eq(SPAN("@"), "`")); /* 0x20 apart, but no letters */
}

static bool i64_is(const char *text, int64_t expected) {
    int64_t v = 12345;
    return span_to_i64(span_str(text), &v) && v == expected;
}

static bool i64_fails(const char *text) {
    int64_t v = 12345;
    return !span_to_i64(span_str(text), &v) && v == 12345;
}

TEST(span_to_i64_is_strict) {
    CHECK(i64_is("0", 0));
    CHECK(i64_is("-1", -1));
    CHECK(i64_is("999999999999999999", INT64_C(999999999999999999)));
    CHECK(i64_is("1000000000000000000", INT64_C(1000000000000000000)));
    CHECK(i64_is("9223372036854775807", INT64_MAX));
    CHECK(i64_is("-9223372036854775808", INT64_MIN));
    const char *bad[] = {"",
                         "-",
                         "-0",
                         "00",
                         "01",
                         "+1",
                         " 1",
                         "1 ",
                         "1a",
                         "123456789/",
                         "000000000000000001",
                         "0x1",
                         "--1",
                         "9223372036854775808",
                         "-9223372036854775809",
                         "18446744073709551616",
                         "99999999999999999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) CHECK(i64_fails(bad[i]));
}

TEST(span_to_u64_is_strict) {
    uint64_t v = 5;
    CHECK(span_to_u64(SPAN("18446744073709551615"), &v) && v == UINT64_MAX);
    CHECK(span_to_u64(SPAN("0"), &v) && v == 0);
    v = 5;
    CHECK(!span_to_u64(SPAN("18446744073709551616"), &v) && !span_to_u64(SPAN("-1"), &v) &&
          !span_to_u64(SPAN("007"), &v) && !span_to_u64(SPAN(""), &v));
    CHECK_EQ(v, 5);
}

TEST(addresses_have_a_host_and_may_have_a_port) {
    static const struct {
        const char *text, *host;
        unsigned port;
    } good[] = {{"h", "h", 0},
                {"h:1", "h", 1},
                {"h.example:65535", "h.example", 65535},
                {"[::1]:6479", "::1", 6479},
                {"[::1]", "::1", 0},
                {"::1", "::1", 0},
                {"fe80::1:2", "fe80::1:2", 0},
                {"*", "*", 0},
                {"[::]:1", "::", 1},
                {"::", "::", 0}};
    static const char *const bad[] = {"", ":1", "h:", "h:0", "h:65536", "h:x", "[]", "[]:1"};
    struct span host;
    uint16_t port;
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        CHECK(span_to_address(span_str(good[i].text), &host, &port));
        CHECK(span_eq(host, span_str(good[i].host)) && port == good[i].port);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        CHECK(!span_to_address(span_str(bad[i]), &host, &port));
    CHECK(!span_to_address(span_of("h\0h", 3), &host, &port));
}

TEST(names_have_plain_letters) {
    CHECK(span_is_name(SPAN("a"), 1) && span_is_name(SPAN("A-z_0.9"), 7));
    CHECK(!span_is_name(SPAN(""), 9) && !span_is_name(SPAN("ab"), 1));
    CHECK(!span_is_name(SPAN("a b"), 9) && !span_is_name(SPAN("a/b"), 9));
    CHECK(!span_is_name(span_of("a\0b", 3), 9));
}

TEST(span_is_utf8_to_the_letter) {
    static const char *const good[] = {"", "a\x7f", "\xc2\x80 \xdf\xbf",
                                       "\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf",
                                       "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"};
    static const char *const bad[] = {"\x80",
                                      "a\xbf",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xed\xbf\xbf",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\xc2",
                                      "\xc2g",
                                      "\xe2\x82",
                                      "\xe2\x82g",
                                      "\xf0\x9f\x98",
                                      "\xf8\x88\x80\x80\x80"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) CHECK(span_is_utf8(span_str(good[i])));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct buf exact = {NULL, 0, 0}; /* what is read behind it shows */
        buf_append_str(&exact, bad[i]);
        CHECK(!span_is_utf8(span_of(exact.data, exact.len)));
        buf_free(&exact);
    }
    CHECK(!span_is_utf8(span_of("\xe2\x82\xac", 2)));
}

TEST(span_to_bytes_knows_the_units_of_redis_conf) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"512", 512},
        {"7b", 7},
        {"1k", 1000},
        {"1kb", 1024},
        {"3m", 3000000},
        {"3MB", 3u << 20},
        {"1g", 1000000000},
        {"1gb", 1u << 30},
        {"2Gb", 2ull << 30},
        {"1t", 1000000000000},
        {"1tb", 1ull << 40},
        {"010", 10},
        {"18446744073709551615", UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        uint64_t v = 1;
        CHECK(span_to_bytes(span_str(good[i].text), &v));
        CHECK_EQ(v, good[i].bytes);
    }
    const char *bad[] = {"",   "k",    "kb",    "-1",         "1 kb",
                         "1x", "1kbb", "1.5gb", "16777216tb", "18446744073709551616",
                         " 1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint64_t v = 1;
        CHECK(!span_to_bytes(span_str(bad[i]), &v));
        CHECK_EQ(v, 1);
    }
}

TEST(numbers_to_decimal_and_back) {
    struct rng r;
    rng_seed(&r, 4);
    for (int i = 0; i < 200000; i++) {
        uint64_t v = rng_next(&r) >> rng_below(&r, 64);
        char got[24], expected[24];
        size_t n = u64_to_dec(v, got);
        CHECK_EQ(n, (size_t)snprintf(expected, sizeof(expected), "%llu", (unsigned long long)v));
        CHECK(memcmp(got, expected, n) == 0);
        n = i64_to_dec((int64_t)v, got);
        CHECK_EQ(n, (size_t)snprintf(expected, sizeof(expected), "%lld", (long long)v));
        CHECK(memcmp(got, expected, n) == 0);
        int64_t back;
        CHECK(span_to_i64(span_of(got, n), &back) && back == (int64_t)v);
    }
    char got[24];
    CHECK_BYTES(got, i64_to_dec(INT64_MIN, got), "-9223372036854775808");
    CHECK_BYTES(got, u64_to_dec(UINT64_MAX, got), "18446744073709551615");
}

TEST(hex_takes_exactly_so_many_digits) {
    uint8_t out[2];
    CHECK(hex_decode(SPAN("0aFf"), out, 2) && out[0] == 0x0a && out[1] == 0xff);
    CHECK(hex_decode((struct span){NULL, 0}, out, 0));
    CHECK(!hex_decode(SPAN("0aF"), out, 2));
    CHECK(!hex_decode(SPAN("0aFf0"), out, 2));
    CHECK(!hex_decode(SPAN("0aFg"), out, 2));
    CHECK(!hex_decode(SPAN("0a f"), out, 2));
    char digits[5] = {0};
    u64_to_hex(0x12ab, 4, digits);
    CHECK_STR(digits, "12ab");
    u64_to_hex(0xf12ab, 2, digits);
    CHECK_STR(digits, "abab");
    struct rng r;
    rng_seed(&r, 5);
    for (int i = 0; i < 20000; i++) {
        uint64_t v = rng_next(&r);
        unsigned n = 1 + (unsigned)rng_below(&r, 16);
        char got[17] = {0}, expected[17];
        u64_to_hex(v, n, got);
        snprintf(expected, sizeof(expected), "%016llx", (unsigned long long)v);
        CHECK_STR(got, expected + 16 - n);
    }
}

TEST(decimals_at_every_power_of_ten) {
    char got[24], expected[24];
    for (uint64_t power = 1;; power *= 10) {
        for (uint64_t v = power - 1; v != power + 2; v++) {
            size_t n = u64_to_dec(v, got);
            snprintf(expected, sizeof(expected), "%llu", (unsigned long long)v);
            got[n] = 0;
            CHECK_STR(got, expected);
        }
        if (power > UINT64_MAX / 10) break;
    }
}

TEST(allocators_take_zero) {
    void *a = xmalloc(0), *b = xcalloc(0, 8), *c = xmemdup("", 0);
    CHECK(a != NULL && b != NULL && c != NULL);
    free(a);
    free(b);
    free(c);
    char *s = xstrdup("tarn");
    CHECK_STR(s, "tarn");
    free(s);
}

TEST(spans_that_begin_with_another_and_spans_of_zeroes) {
    CHECK(span_starts(SPAN("prefix"), SPAN("pre")) && span_starts(SPAN("pre"), SPAN("pre")));
    CHECK(span_starts(SPAN("pre"), SPAN("")) && span_starts(SPAN(""), SPAN("")));
    CHECK(!span_starts(SPAN("pr"), SPAN("pre")) && !span_starts(SPAN("Pre"), SPAN("pre")));
    char zeroes[100] = {0};
    CHECK(span_is_zero(span_of(zeroes, 0)) && span_is_zero(span_of(zeroes, 1)) &&
          span_is_zero(span_of(zeroes, sizeof(zeroes))));
    for (size_t i = 0; i < sizeof(zeroes); i += 33) {
        zeroes[i] = 1;
        CHECK(!span_is_zero(span_of(zeroes, sizeof(zeroes))));
        zeroes[i] = 0;
    }
}

TEST_MAIN()
