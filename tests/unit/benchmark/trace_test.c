/* Trace lines, sizes, patterns. */
#include "benchmark/trace.h"

#include "benchmark/bench.h"

#include "../test.h"

static const char *add(struct trace *t, const char *line) {
    return trace_add_line(t, line, strlen(line));
}

TEST(a_line_of_the_public_trace) {
    struct trace t = {0};
    CHECK(add(&t, "{\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52, "
                  "\"hash_ids\": [46, "
                  "47, 2353]}\n") == NULL);
    CHECK(add(&t, "{\"hash_ids\":[],\"timestamp\":1.5e3,\"x\":{\"a\":[1,{\"b\":null}],\"c\":"
                  "\"\\u0041\\\"\"}}") == NULL);
    CHECK_EQ(t.n, 2);
    CHECK_EQ(t.requests[0].timestamp_ms, 27482);
    CHECK_EQ(t.requests[0].n, 3);
    CHECK_EQ(t.ids[2], 2353);
    CHECK_EQ(t.requests[1].n, 0);
    CHECK_EQ(t.longest, 3);
    trace_free(&t);
}

TEST(bad_lines_are_refused_and_leave_no_trace) {
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"timestamp\":1}",
        "{\"hash_ids\":[1]}",
        "{\"timestamp\":1,\"hash_ids\":[1]",
        "{\"timestamp\":1,\"hash_ids\":[1]} x",
        "{\"timestamp\":-1,\"hash_ids\":[1]}",
        "{\"timestamp\":01,\"hash_ids\":[1]}",
        "{\"timestamp\":1,\"hash_ids\":[1,]}",
        "{\"timestamp\":1,\"hash_ids\":[\"1\"]}",
        "{\"timestamp\":1,\"hash_ids\":1}",
        "{\"timestamp\":1,\"hash_ids\":[18446744073709551616]}",
        "{\"timestamp\":1,\"hash_ids\":[1],}",
        "{\"timestamp\":1,\"hash_ids\":[1],\"x\":tru}",
        "{\"timestamp\":1,\"hash_ids\":[1],\"x\":\"\\q\"}",
        "{\"timestamp\":1,\"hash_ids\":[1],\"x\":\"a}",
        "{\"timestamp\":1,\"timestamp\":1,\"hash_ids\":[1]}",
        "{timestamp:1,\"hash_ids\":[1]}",
        "{\"timestamp\":1,\"hash_ids\":[1],\"x\":[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}",
    };
    struct trace t = {0};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        if (add(&t, bad[i]) == NULL) printf("# %s was taken\n", bad[i]);
        CHECK(add(&t, bad[i]) != NULL);
    }
    CHECK_EQ(t.n, 0);
    CHECK_EQ(t.n_ids, 0);
    trace_free(&t);
}

TEST(every_cut_of_a_line_is_an_error) {
    static const char line[] =
        "{\"timestamp\": 1, \"x\": [1.5e-3, \"a\\n\", {}], \"hash_ids\": [1, 2]}";
    struct trace t = {0};
    for (size_t n = 0; n + 1 < sizeof(line); n++) CHECK(trace_add_line(&t, line, n) != NULL);
    CHECK(trace_add_line(&t, line, sizeof(line) - 1) == NULL);
    trace_free(&t);
}

TEST(block_sizes) {
    uint64_t v;
    CHECK(parse_block_size("4k", 2, &v) && v == 4096);
    CHECK(parse_block_size("64MB", 4, &v) && v == 64 << 20);
    CHECK(parse_block_size("17", 2, &v) && v == 17);
    CHECK(!parse_block_size("", 0, &v));
    CHECK(!parse_block_size("k", 1, &v));
    CHECK(!parse_block_size("-1", 2, &v));
    CHECK(!parse_block_size("4x", 2, &v));
    char text[24];
    CHECK_STR(size_text(1536, text), "1536");
    CHECK_STR(size_text(4096, text), "4k");
    CHECK_STR(size_text(64 << 20, text), "64m");
}

TEST(patterns_differ_and_show_every_bit) {
    unsigned char data[1000];
    for (size_t len = 0; len < 40; len++) {
        pattern_fill(7, data, len);
        CHECK(pattern_check(7, data, len));
        CHECK(len == 0 || !pattern_check(8, data, len));
    }
    pattern_fill(9, data, sizeof(data));
    for (size_t i = 0; i < sizeof(data); i += 37) {
        data[i] ^= 1;
        CHECK(!pattern_check(9, data, sizeof(data)));
        data[i] ^= 1;
    }
}

TEST_MAIN()
