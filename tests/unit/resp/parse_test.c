#include <limits.h>

#include "../test.h"
#include "base/rng.h"
#include "resp/resp.h"

static const struct resp_limits redis = {1024 * 1024, 512 << 20, 65536, SIZE_MAX, false};

/* One request that is there as a whole, as "argc|arg|arg". */
static const char *parsed(const char *data, size_t len, size_t expected_used) {
    static char out[4096];
    struct resp_parser p = {0};
    size_t used = 999;
    enum resp_result r = resp_parse(&p, &redis, data, len, &used);
    if (r == RESP_ERROR) {
        snprintf(out, sizeof(out), "%s", p.error);
        CHECK_EQ(used, 0);
    } else if (r == RESP_MORE) {
        snprintf(out, sizeof(out), "more");
        CHECK_EQ(used, 0);
    } else {
        CHECK_EQ(r, RESP_REQUEST);
        CHECK_EQ(used, expected_used);
        int at = snprintf(out, sizeof(out), "%zu", p.argc);
        for (size_t i = 0; i < p.argc; i++)
            at += snprintf(out + at, sizeof(out) - (size_t)at, "|%.*s", (int)p.argv[i].len,
                           p.argv[i].data);
    }
    resp_parser_free(&p);
    return out;
}

#define PARSES(literal, expected)                                                                  \
    CHECK_STR(parsed(literal, sizeof(literal) - 1, sizeof(literal) - 1), expected)
#define FAILS(literal, expected)                                                                   \
    CHECK_STR(parsed(literal, sizeof(literal) - 1, 0), "Protocol error: " expected)
#define WANTS_MORE(literal) CHECK_STR(parsed(literal, sizeof(literal) - 1, 0), "more")

TEST(parse_arrays) {
    PARSES("*1\r\n$4\r\nPING\r\n", "1|PING");
    PARSES("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n", "3|SET|k|");
    PARSES("*2\r\n$4\r\nECHO\r\n$12\r\nhello\r\nworld\r\n", "2|ECHO|hello\r\nworld");
    PARSES("*0\r\n", "0");
    PARSES("*-1\r\n", "0");
    PARSES("*-10\r\n", "0");
}

TEST(parse_takes_one_request_and_no_more) {
    CHECK_STR(parsed("*1\r\n$1\r\na\r\n*1\r\n", 15, 11), "1|a");
    CHECK_STR(parsed("PING\r\nPING\r\n", 12, 6), "1|PING");
}

TEST(parse_inline) {
    PARSES("PING\r\n", "1|PING");
    PARSES("PING\n", "1|PING");
    PARSES("\r\n", "0");
    PARSES("\n", "0");
    PARSES(" \t \r\n", "0");
    PARSES("  set   key\tvalue  \r\n", "3|set|key|value");
    PARSES("set \"a b\" 'c\"d'\r\n", "3|set|a b|c\"d");
    PARSES("set \"\\x41\\n\\r\\t\\b\\a\\\\\\\"\\q\" ''\r\n", "3|set|A\n\r\t\b\a\\\"q|");
    PARSES("a\\b 'it\\'s' '\\n'\r\n", "3|a\\b|it's|\\n");
    PARSES("foo\"bar baz\"\r\n", "1|foobar baz");
    PARSES("\"\\xzz\"\r\n", "1|xzz");
}

TEST(parse_errors_are_those_of_redis) {
    FAILS("*1048577\r\n", "invalid multibulk length");
    FAILS("*2147483648\r\n", "invalid multibulk length");
    FAILS("*20000000000\r\n", "invalid multibulk length");
    FAILS("*99999999999999999999\r\n", "invalid multibulk length");
    FAILS("*abc\r\n", "invalid multibulk length");
    FAILS("*\r\n", "invalid multibulk length");
    FAILS("*01\r\n", "invalid multibulk length");
    FAILS("*+1\r\n", "invalid multibulk length");
    FAILS("*1 \r\n", "invalid multibulk length");
    FAILS("*1\rx", "invalid multibulk length");
    FAILS("*3\r\n$3\r\nSET\r\n$1\r\nx\r\nfooz\r\n", "expected '$', got 'f'");
    FAILS("*1\r\nfoo\r\n", "expected '$', got 'f'");
    FAILS("*1\r\n\r\n", "expected '$', got '\\x0d'");
    FAILS("*1\r\n$-10\r\n", "invalid bulk length");
    FAILS("*1\r\n$-1\r\n", "invalid bulk length");
    FAILS("*1\r\n$2000000000\r\n", "invalid bulk length");
    FAILS("*1\r\n$99999999999999999999\r\n", "invalid bulk length");
    FAILS("*1\r\n$blabla\r\n", "invalid bulk length");
    FAILS("*1\r\n$\r\n", "invalid bulk length");
    FAILS("*1\r\n$00\r\n", "invalid bulk length");
    FAILS("*1\r\n$3\r\nabcd\r\n", "invalid bulk length");
    FAILS("set \"a\r\n", "unbalanced quotes in request");
    FAILS("set 'a\r\n", "unbalanced quotes in request");
    FAILS("set \"a\"b\r\n", "unbalanced quotes in request");
    FAILS("set \"a\\\r\n", "unbalanced quotes in request");
    FAILS("a\0b", "NUL in inline request");
}

static void fails_when_long(const char *start, const char *error) {
    struct buf b = {0};
    buf_append_str(&b, start);
    size_t line = b.len;
    /* where the last, unfinished line begins */
    while (line > 0 && b.data[line - 1] != '\n') line--;
    while (b.len - line < 65536) buf_append_char(&b, 'A');
    CHECK_STR(parsed(b.data, b.len, 0), "more");
    buf_append_char(&b, 'A');
    CHECK_STR(parsed(b.data, b.len, 0), error);
    buf_free(&b);
}

TEST(parse_lines_have_a_bound) {
    fails_when_long("", "Protocol error: too big inline request");
    fails_when_long("*", "Protocol error: too big mbulk count string");
    fails_when_long("*1\r\n$", "Protocol error: too big bulk count string");
}

TEST(parse_before_auth) {
    struct resp_limits l = {10, 16384, 65536, SIZE_MAX, true};
    struct resp_parser p = {0};
    size_t used;
    CHECK_EQ(resp_parse(&p, &l, "*11\r\n", 5, &used), RESP_ERROR);
    CHECK_STR(p.error, "Protocol error: unauthenticated multibulk length");
    CHECK_EQ(resp_parse(&p, &l, "*10\r\n$16384\r\n", 13, &used), RESP_MORE);
    resp_parser_reset(&p);
    CHECK_EQ(resp_parse(&p, &l, "*10\r\n$16385\r\n", 13, &used), RESP_ERROR);
    CHECK_STR(p.error, "Protocol error: unauthenticated bulk length");
    resp_parser_free(&p);
}

TEST(parse_wants_more) {
    static const char whole[] = "*2\r\n$3\r\nGET\r\n$10\r\n0123456789\r\n";
    WANTS_MORE("");
    WANTS_MORE("*1\r");
    WANTS_MORE("*1\r\n");
    WANTS_MORE("PIN");
    WANTS_MORE("*1\r\n$3\r\nabc\r");
    for (size_t i = 0; i < sizeof(whole) - 1; i++) CHECK_STR(parsed(whole, i, 0), "more");
    PARSES(whole, "2|GET|0123456789");
}

TEST(parse_costs_nothing_for_what_is_only_announced) {
    struct resp_parser p = {0};
    size_t used;
    CHECK_EQ(resp_parse(&p, &redis, "*1048576\r\n$1\r\na\r\n", 17, &used), RESP_MORE);
    CHECK(p.argv_cap <= 64);
    CHECK_EQ(p.argc, 1);
    resp_parser_free(&p);
}

TEST(parse_gives_memory_of_a_giant_back) {
    struct resp_parser p = {0};
    struct buf b = {0};
    size_t used;
    enum { N = 100000 };
    buf_printf(&b, "*%d\r\n", N);
    for (int i = 0; i < N; i++) buf_append_str(&b, "$1\r\nx\r\n");
    CHECK_EQ(resp_parse(&p, &redis, b.data, b.len - 1, &used), RESP_MORE);
    CHECK_EQ(resp_parse(&p, &redis, b.data, b.len, &used), RESP_REQUEST);
    CHECK_EQ(used, b.len);
    CHECK_EQ(p.argc, (size_t)N);
    CHECK(p.argv[N - 1].data == b.data + b.len - 3);
    CHECK(p.argv_cap >= N);
    CHECK_EQ(resp_parse(&p, &redis, "*1\r\n$4\r\nPING\r\n", 14, &used), RESP_REQUEST);
    CHECK(p.argv_cap <= 1024);
    resp_parser_free(&p);
    buf_free(&b);
}

/* If each call began anew, or turned all arguments into pointers and back, this would not end
 * within the time that a test has. */
TEST(parse_one_byte_at_a_time_is_linear) {
    struct resp_parser p = {0};
    struct buf b = {0};
    size_t used = 0;
    enum { N = 100000 };
    buf_printf(&b, "*%d\r\n", N);
    for (int i = 0; i < N; i++) buf_append_str(&b, "$1\r\nx\r\n");
    for (size_t i = 1; i < b.len; i++) {
        if (resp_parse(&p, &redis, b.data, i, &used) != RESP_MORE) CHECK(!"more");
    }
    CHECK_EQ(resp_parse(&p, &redis, b.data, b.len, &used), RESP_REQUEST);
    CHECK_EQ(p.argc, (size_t)N);
    for (size_t i = 0; i < N; i++)
        CHECK(p.argv[i].len == 1 && p.argv[i].data == b.data + strlen("*100000\r\n$1\r\n") + i * 7);
    buf_clear(&b);
    while (b.len < 65536) buf_append_char(&b, 'a');
    for (size_t i = 1; i <= b.len; i++)
        CHECK_EQ(resp_parse(&p, &redis, b.data, i, &used), RESP_MORE);
    resp_parser_free(&p);
    buf_free(&b);
}

/* Every cut of a request, each piece of it in memory of its own that stays. */
TEST(parse_settles_what_is_there_and_goes_on_elsewhere) {
    static const char text[] = "*4\r\n$3\r\nSET\r\n$0\r\n\r\n$12\r\nabcdefghijkl\r\n$2\r\nxy\r\n";
    size_t len = sizeof(text) - 1, used;
    for (size_t cut = 1; cut < len; cut++) {
        for (size_t next = 1; next <= len - cut; next++) {
            struct resp_parser p = {0};
            char *first = xmemdup(text, cut);
            CHECK_EQ(resp_parse(&p, &redis, first, cut, &used), RESP_MORE);
            size_t taken = resp_parser_settle(&p, first);
            CHECK(taken <= cut);
            size_t until = cut + next;
            char *second = xmemdup(text + taken, until - taken), *third = NULL;
            enum resp_result r = resp_parse(&p, &redis, second, until - taken, &used);
            if (r == RESP_MORE) {
                size_t more = resp_parser_settle(&p, second);
                taken += more;
                third = xmemdup(text + taken, len - taken);
                r = resp_parse(&p, &redis, third, len - taken, &used);
            }
            CHECK_EQ(r, RESP_REQUEST);
            CHECK_EQ(taken + used, len);
            CHECK_EQ(p.argc, 4);
            CHECK_BYTES(p.argv[0].data, p.argv[0].len, "SET");
            CHECK_EQ(p.argv[1].len, 0);
            CHECK_BYTES(p.argv[2].data, p.argv[2].len, "abcdefghijkl");
            CHECK_BYTES(p.argv[3].data, p.argv[3].len, "xy");
            CHECK_EQ(resp_parse(&p, &redis, "*1\r\n$4\r\nPING\r\n", 14, &used), RESP_REQUEST);
            CHECK_BYTES(p.argv[0].data, p.argv[0].len, "PING");
            resp_parser_free(&p);
            free(first);
            free(second);
            free(third);
        }
    }
}

/* --- RESP_BIG --- */

TEST(parse_big_hands_the_bytes_to_the_caller) {
    struct resp_limits l = redis;
    l.big_min = 10;
    struct resp_parser p = {0};
    size_t used;
    static const char head[] = "*4\r\n$3\r\nSET\r\n$3\r\nkey\r\n$10\r\n";
    CHECK_EQ(resp_parse(&p, &l, head, 10, &used), RESP_MORE);
    CHECK_EQ(resp_parse(&p, &l, head, sizeof(head) - 1, &used), RESP_BIG);
    CHECK_EQ(used, sizeof(head) - 1);
    CHECK_EQ(p.big_index, 2);
    CHECK_EQ(p.big_len, 10);
    CHECK_BYTES(p.argv[0].data, p.argv[0].len, "SET");
    CHECK_BYTES(p.argv[1].data, p.argv[1].len, "key");
    char kept[] = "key", value[] = "0123456789";
    resp_parser_set_arg(&p, 1, span_of(kept, 3)); /* 0 is not rescued */
    resp_parser_big_done(&p, span_of(value, 10));
    static const char tail[] = "$2\r\nEX\r\n";
    CHECK_EQ(resp_parse(&p, &l, tail, 0, &used), RESP_MORE);
    CHECK_EQ(resp_parse(&p, &l, tail, 5, &used), RESP_MORE);
    CHECK_EQ(resp_parse(&p, &l, tail, 8, &used), RESP_REQUEST);
    CHECK_EQ(used, 8);
    CHECK_EQ(p.argc, 4);
    CHECK(p.argv[0].data == NULL && p.argv[0].len == 0);
    CHECK(p.argv[1].data == kept && p.argv[2].data == value && p.argv[3].data == tail + 4);
    resp_parser_free(&p);
}

TEST(parse_big_as_last_argument_needs_no_more_bytes) {
    struct resp_limits l = redis;
    l.big_min = 0;
    struct resp_parser p = {0};
    size_t used = 7;
    char value[] = "abc";
    /* even if it is there */
    CHECK_EQ(resp_parse(&p, &l, "*1\r\n$3\r\nabc\r\n", 13, &used), RESP_BIG);
    CHECK_EQ(used, 8);
    resp_parser_big_done(&p, span_of(value, 3));
    CHECK_EQ(resp_parse(&p, &l, NULL, 0, &used), RESP_REQUEST);
    CHECK_EQ(used, 0);
    CHECK(p.argc == 1 && p.argv[0].data == value);
    CHECK_EQ(resp_parse(&p, &redis, "*1\r\n$1\r\nx\r\n", 11, &used), RESP_REQUEST);
    CHECK_BYTES(p.argv[0].data, p.argv[0].len, "x");
    resp_parser_free(&p);
}

/* The name of the command is as likely to be large as any other argument. */
TEST(parse_big_shows_nothing_of_earlier_requests) {
    struct resp_limits l = redis;
    l.big_min = 5;
    struct resp_parser p = {0};
    size_t used;
    CHECK_EQ(resp_parse(&p, &l, "FLUSHALL now\r\n", 14, &used), RESP_REQUEST);
    CHECK_EQ(p.argc, 2);
    CHECK_EQ(resp_parse(&p, &l, "*2\r\n$8\r\n", 8, &used), RESP_BIG);
    CHECK_EQ(p.big_index, 0);
    CHECK(p.argv[0].data == NULL && p.argv[0].len == 0);
    resp_parser_free(&p);
}

TEST(parse_several_big_in_one_request) {
    struct resp_limits l = redis;
    l.big_min = 4;
    struct resp_parser p = {0};
    size_t used;
    char big[3][8] = {"first", "second", "third"}, small[] = "s";
    CHECK_EQ(resp_parse(&p, &l, "*5\r\n$5\r\n", 8, &used), RESP_BIG);
    resp_parser_big_done(&p, span_str(big[0]));
    CHECK_EQ(resp_parse(&p, &l, "$1\r\ns\r\n$6\r\n", 11, &used), RESP_BIG);
    CHECK_EQ(p.big_index, 2);
    CHECK(p.argv[0].data == big[0]);
    CHECK_BYTES(p.argv[1].data, p.argv[1].len, "s");
    resp_parser_set_arg(&p, 1, span_str(small));
    resp_parser_big_done(&p, span_str(big[1]));
    CHECK_EQ(resp_parse(&p, &l, "$5\r\n", 4, &used), RESP_BIG);
    resp_parser_big_done(&p, span_str(big[2]));
    CHECK_EQ(resp_parse(&p, &l, "$1\r\nx\r\n", 7, &used), RESP_REQUEST);
    CHECK_EQ(p.argc, 5);
    CHECK(p.argv[0].data == big[0] && p.argv[1].data == small && p.argv[2].data == big[1] &&
          p.argv[3].data == big[2]);
    CHECK_BYTES(p.argv[4].data, p.argv[4].len, "x");
    resp_parser_free(&p);
}

TEST(parse_reset_forgets) {
    struct resp_limits l = redis;
    l.big_min = 4;
    struct resp_parser p = {0};
    size_t used;
    CHECK_EQ(resp_parse(&p, &l, "*2\r\n$1\r\na\r\n$9\r\n", 15, &used), RESP_BIG);
    resp_parser_reset(&p);
    CHECK_EQ(resp_parse(&p, &l, "*1\r\n$1\r\nb\r\n", 11, &used), RESP_REQUEST);
    CHECK_EQ(p.argc, 1);
    resp_parser_free(&p);
}

/* --- random requests in random pieces at random places --- */

TEST(parse_random_requests_in_pieces) {
    struct rng r;
    rng_seed(&r, 11);
    struct resp_parser p = {0};
    for (int round = 0; round < 300; round++) {
        struct buf in = {0}, args = {0};
        size_t lens[600], counts[40], nargs = 0, requests = 1 + rng_below(&r, 40);
        for (size_t q = 0; q < requests; q++) {
            counts[q] = rng_below(&r, 15);
            resp_write_array(&in, counts[q]);
            for (size_t i = 0; i < counts[q]; i++) {
                char bytes[300];
                size_t n = rng_below(&r, rng_below(&r, 5) ? 20 : 300);
                for (size_t k = 0; k < n; k++) bytes[k] = "\r\n$*1a\0"[rng_below(&r, 7)];
                resp_write_bulk(&in, bytes, n);
                buf_append(&args, bytes, n);
                lens[nargs++] = n;
            }
        }
        size_t taken = 0, fed = 0, request = 0, arg = 0, arg_at = 0;
        while (request < requests) {
            char *window = xmemdup(in.data + taken, fed - taken);
            size_t used;
            enum resp_result got = resp_parse(&p, &redis, window, fed - taken, &used);
            if (got == RESP_REQUEST) {
                CHECK_EQ(p.argc, counts[request]);
                for (size_t i = 0; i < p.argc; i++, arg++) {
                    CHECK_EQ(p.argv[i].len, lens[arg]);
                    CHECK(memcmp(p.argv[i].data, args.data + arg_at, lens[arg]) == 0);
                    arg_at += lens[arg];
                }
                request++;
                taken += used;
            } else {
                CHECK_EQ(got, RESP_MORE);
                CHECK(fed < in.len);
                fed += 1 + rng_below(&r, rng_below(&r, 2) ? 3 : in.len - fed);
            }
            free(window);
        }
        CHECK_EQ(taken, in.len);
        buf_free(&in);
        buf_free(&args);
    }
    resp_parser_free(&p);
}

TEST(first_argument_of_a_size) {
    static const struct {
        const char *in, *found;
    } rows[] = {
        {"*2\r\n$3\r\nGET\r\n$5\r\nhello\r\n", "hello"},
        {"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$5\r\nhello\r\n", "hello"},
        {"*2\r\n$3\r\nGET\r\n$7\r\ntoolong\r\n$6\r\nhello!\r\n", "hello!"},
        {"*2\r\n$3\r\nGET\r\n$5\r\nhello\r", ""},
        {"*2\r\n$3\r\nGET\r\n$5\r\nhel", ""},
        {"*2\r\n$3\r\nGET\r\n$99999999999999999999\r\nhello\r\n", ""},
        {"*2\r\n$3\r\nGET\r\n$-5\r\nhello\r\n", ""},
        {"GET hello\r\n", ""},
        {"*", ""},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        size_t len = strlen(rows[i].in);
        char *copy = malloc(len > 0 ? len : 1); /* a sanitizer knows its end */
        memcpy(copy, rows[i].in, len);
        struct span found = resp_first_of_size(span_of(copy, len), 5, 6);
        CHECK(span_eq(found, span_str(rows[i].found)));
        free(copy);
    }
}

TEST(split_line_for_configuration_files) {
    struct buf store = {0};
    struct span *argv;
    size_t argc;
    static const char line[] = "save 3600 \"a b\" 'c' \"\"";
    buf_append_str(&store, "kept");
    CHECK_EQ(resp_split_line(line, sizeof(line) - 1, &store, &argv, &argc), 0);
    CHECK_EQ(argc, 5);
    CHECK_BYTES(argv[0].data, argv[0].len, "save");
    CHECK_BYTES(argv[2].data, argv[2].len, "a b");
    CHECK_BYTES(argv[3].data, argv[3].len, "c");
    CHECK_EQ(argv[4].len, 0);
    CHECK_BYTES(store.data, (size_t)8, "keptsave");
    free(argv);
    size_t before = store.len;
    CHECK_EQ(resp_split_line("a \"b", 4, &store, &argv, &argc), -1);
    CHECK_EQ(store.len, before);
    CHECK_EQ(resp_split_line("", 0, &store, &argv, &argc), 0);
    CHECK_EQ(argc, 0);
    free(argv);
    char many[400];
    for (int i = 0; i < 200; i++) memcpy(many + 2 * i, "x ", 2);
    CHECK_EQ(resp_split_line(many, sizeof(many), &store, &argv, &argc), 0);
    CHECK_EQ(argc, 200);
    CHECK_BYTES(argv[199].data, argv[199].len, "x");
    free(argv);
    buf_free(&store);
}

TEST_MAIN()
