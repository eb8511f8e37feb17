/* Engines' /metrics: the shapes of each version (the seeds of the fuzzer), and what is none. */
#include "../test.h"
#include "base/buf.h"
#include "scrape/read.h"

static struct scrape_reader reader;
static struct scrape_load load;
static char why[SCRAPE_WHY];

/* In pieces of so many bytes. */
static bool read_pieces(struct span text, size_t size) {
    scrape_reader_begin(&reader);
    for (size_t at = 0; at < text.len; at += size)
        scrape_reader_take(&reader,
                           span_of(text.data + at, at + size > text.len ? text.len - at : size));
    return scrape_reader_end(&reader, &load, why);
}
static bool read_text(const char *text) {
    return read_pieces(span_str(text), 1u << 20);
}

static struct buf seed_of(const char *name) {
    char path[256], block[4096];
    struct buf b = {NULL, 0, 0};
    snprintf(path, sizeof(path), "tests/fuzz/seeds/scrape_read/%s", name);
    FILE *f = fopen(path, "r");
    CHECK(f != NULL);
    for (size_t n; (n = fread(block, 1, sizeof(block), f)) > 0;) buf_append(&b, block, n);
    fclose(f);
    return b;
}
static void read_seed(const char *name, size_t size) {
    struct buf b = seed_of(name);
    CHECK(read_pieces(span_of(b.data, b.len), size));
    CHECK_EQ(reader.refused, 0);
    buf_free(&b);
}
#define CHECK_RANK(i, r, w, n, used, cap)                                                          \
    do {                                                                                           \
        CHECK_EQ(load.rank[i].rank, r);                                                            \
        CHECK_EQ(load.rank[i].waiting, w);                                                         \
        CHECK_EQ(load.rank[i].running, n);                                                         \
        CHECK_EQ(load.rank[i].used_tokens, used);                                                  \
        CHECK_EQ(load.rank[i].capacity_tokens, cap);                                               \
    } while (0)

TEST(each_shape_in_pieces_of_any_size) {
    for (size_t size = 1; size < 300; size += 13) {
        read_seed("vllm_v0", size);
        CHECK_EQ(load.count, 1);
        CHECK_RANK(0, SCRAPE_NO_RANK, 2, 7, 4000, 16000);
        read_seed("vllm_0_9", size);
        CHECK_EQ(load.count, 1);
        CHECK_RANK(0, 0, 1, 3, 1600, 3200);
        read_seed("vllm_ranks", size);
        CHECK_EQ(load.count, 2);
        CHECK_RANK(0, 0, 0, 3, 8000, 64000);
        CHECK_RANK(1, 1, 9, 4, 48000, 64000);
        read_seed("sglang", size);
        CHECK_EQ(load.count, 1);
        CHECK_RANK(0, SCRAPE_NO_RANK, 6, 5, 4096, 8192);
        read_seed("sglang_ranks", size);
        CHECK_EQ(load.count, 2);
        CHECK_RANK(0, 0, 1, 3, 1200, 60000);
        CHECK_RANK(1, 1, 2, 5, 30000, 60000);
        read_seed("renamed", size);
        CHECK_EQ(load.count, 2 - 1);
        CHECK_RANK(0, 0, SCRAPE_UNKNOWN, 11, SCRAPE_UNKNOWN, SCRAPE_UNKNOWN);
    }
}

TEST(what_is_no_figure_is_refused) {
    struct buf b = seed_of("odd");
    CHECK(!read_pieces(span_of(b.data, b.len), 7));
    buf_free(&b);
    CHECK_EQ(reader.refused, 10);
    CHECK_STR(why, "no figure that can be: vllm:num_requests_running{engine=\"0\"} NaN");
    /* One of them does not spoil the others. */
    CHECK(read_text("vllm:num_requests_running 1e400\nvllm:num_requests_waiting 2\n"));
    CHECK_RANK(0, SCRAPE_NO_RANK, 2, SCRAPE_UNKNOWN, SCRAPE_UNKNOWN, SCRAPE_UNKNOWN);
    CHECK_EQ(reader.refused, 1);
    /* Nor does a capacity that is none. */
    CHECK(read_text("vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.5\n"
                    "vllm:cache_config_info{block_size=\"18446744073709551615\","
                    "num_gpu_blocks=\"18446744073709551615\"} 1\n"
                    "vllm:cache_config_info{kv_cache_size_tokens=\"18446744073709551615\"} 1\n"
                    "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1\n"));
    CHECK_RANK(0, SCRAPE_NO_RANK, SCRAPE_UNKNOWN, 1, SCRAPE_UNKNOWN, SCRAPE_UNKNOWN);
}

TEST(what_is_another_thing_is_none) {
    static const char *const others[] = {
        "",
        "\n\n\n",
        "<html><body>vllm:num_requests_running 1</body></html>",
        "# vllm:num_requests_running 1\n",
        " vllm:num_requests_running 1\n",
        "vllm:num_requests_running_total 1\nvllm:num_requests_runnin 1\n",
        "vllmnum_requests_running 1\nsglang:num_requests_running 1\n",
        "{\"vllm\": 1}"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        CHECK(!read_text(others[i]));
        CHECK_STR(why, "it has no load of vLLM or SGLang in it");
    }
    /* The last line need not have an end. */
    CHECK(read_text("vllm:num_requests_running 4"));
    CHECK_EQ(load.rank[0].running, 4);
}

TEST(lines_have_a_bound) {
    struct buf b = {NULL, 0, 0};
    buf_append_str(&b, "# ");
    for (int i = 0; i < 9000; i++) buf_append_char(&b, 'x');
    buf_append_str(&b, "\nvllm:num_requests_waiting{model_name=\"");
    size_t from = b.len - strlen("vllm:num_requests_waiting{model_name=\"");
    while (b.len - from < SCRAPE_LINE_MAX - 3) buf_append_char(&b, 'y');
    buf_append_str(&b, "\"} 1\nvllm:num_requests_running 3\n"); /* a byte too much */
    CHECK(read_pieces(span_of(b.data, b.len), 1000));
    CHECK_RANK(0, SCRAPE_NO_RANK, SCRAPE_UNKNOWN, 3, SCRAPE_UNKNOWN, SCRAPE_UNKNOWN);
    CHECK_EQ(reader.refused, 1);
    CHECK(strncmp(reader.why, "a line that is too long: vllm:num_requests_waiting", 50) == 0);
    buf_consume(&b, from);
    memmove(b.data + 40, b.data + 41, b.len - 41);
    b.len--;
    CHECK(read_pieces(span_of(b.data, b.len), 1000));
    CHECK_RANK(0, SCRAPE_NO_RANK, 1, 3, SCRAPE_UNKNOWN, SCRAPE_UNKNOWN);
    buf_free(&b);
}

TEST(ranks_have_a_bound) {
    struct buf b = {NULL, 0, 0};
    for (unsigned i = 0; i < 200; i++)
        buf_printf(&b, "vllm:num_requests_running{engine=\"%u\"} %u\n", i, i);
    CHECK(read_pieces(span_of(b.data, b.len), b.len));
    CHECK_EQ(load.count, SCRAPE_RANKS_MAX);
    CHECK_EQ(load.rank[63].running, 63);
    CHECK_EQ(reader.refused, 200 - SCRAPE_RANKS_MAX);
    buf_free(&b);
}

TEST(whose_figures_they_are) {
    CHECK(read_text("vllm:num_requests_running{engine=\"3\"} 1\n"));
    CHECK(scrape_load_find(&load, 3, false) == &load.rank[0]);
    CHECK(scrape_load_find(&load, 0, false) == NULL);
    CHECK(scrape_load_find(&load, 0, true) == &load.rank[0]); /* it is all that there is */
    CHECK(read_text("vllm:num_requests_running{engine=\"3\"} 1\n"
                    "vllm:num_requests_running{engine=\"1\"} 2\n"));
    CHECK(scrape_load_find(&load, 1, true) == &load.rank[1]);
    CHECK(scrape_load_find(&load, 0, true) == NULL);
}

TEST_MAIN()
