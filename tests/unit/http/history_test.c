#include "http/history.h"

#include <stdlib.h>
#include <string.h>

#include "../test.h"

/* What a server shows in these tests. */
struct shown {
    uint64_t hits, misses, input, data_in, nodes_up, nodes_down;
};

static void sample_at(struct history *h, const struct shown *f, uint64_t ms) {
    struct figure_walk *walk = history_walk(h);
    history_begin(h);
    FIGURE(walk, COUNTER, hits, "", f->hits);
    FIGURE(walk, COUNTER, misses, "", f->misses);
    FIGURE(walk, COUNTER_BYTES, total_net_input_bytes, "", f->input);
    FIGURE(walk, COUNTER_BYTES, data_bytes_written, "", f->data_in);
    FIGURE_OF(walk, GAUGE, nodes_, "", "state", "up", f->nodes_up);
    FIGURE_OF(walk, GAUGE, nodes_, "", "state", "down", f->nodes_down);
    figures_group(walk, "segment3", "segment", "3");
    FIGURE(walk, COUNTER, hits, "of one segment, not of all", f->hits * 1000);
    figures_group_end(walk);
    history_end(h, ms, 1000000000 + ms);
}

/* The series of the answer, "1,null,3"; the caller's to free. */
static char *series_of(const struct history *h, enum history_step step, uint64_t since_ms,
                       const char *name) {
    struct history_answer answer;
    struct buf out = {0};
    history_ask(h, step, since_ms, &answer);
    while (history_write(h, &answer, &out)) {
    }
    buf_append(&out, "", 1);
    char key[64];
    snprintf(key, sizeof(key), "\"%s\":[", name);
    char *at = strstr(out.data, key);
    CHECK(at != NULL);
    at += strlen(key);
    char *end = strchr(at, ']');
    CHECK(end != NULL);
    *end = '\0';
    char *copy = xstrdup(at);
    buf_free(&out);
    return copy;
}

#define CHECK_SERIES(h, step, since, name, want)                                                   \
    do {                                                                                           \
        char *got_ = series_of(h, step, since, name);                                              \
        CHECK_STR(got_, want);                                                                     \
        free(got_);                                                                                \
    } while (0)

TEST(history_of_nothing_is_empty) {
    struct history *h = history_create();
    CHECK_SERIES(h, HISTORY_SECOND, 0, "hits", "");
    CHECK_SERIES(h, HISTORY_MINUTE, 0, "pool_used", "");
    history_destroy(&h);
    CHECK(h == NULL);
}

TEST(history_counters_become_rates) {
    struct history *h = history_create();
    struct shown f = {.hits = 500, .misses = 500, .input = 100, .data_in = 10, .nodes_up = 2};
    sample_at(h, &f, 0);
    f = (struct shown){.hits = 530, .misses = 510, .input = 200, .data_in = 20, .nodes_up = 2};
    sample_at(h, &f, 1000);
    f.hits += 100;
    sample_at(h, &f, 3000);
    CHECK_SERIES(h, HISTORY_SECOND, 0, "hits", "null,30,null,50");
    CHECK_SERIES(h, HISTORY_SECOND, 0, "hit_ratio", "null,0.75,null,1");
    CHECK_SERIES(h, HISTORY_SECOND, 0, "bytes_in", "null,110,null,0");
    CHECK_SERIES(h, HISTORY_SECOND, 0, "nodes_up", "2,2,null,2");
    CHECK_SERIES(h, HISTORY_SECOND, 0, "misses_never", "null,null,null,null");
    CHECK_SERIES(h, HISTORY_MINUTE, 0, "hits", "43.33333");
    history_destroy(&h);
}

TEST(history_a_counter_that_begins_anew_has_no_rate) {
    struct history *h = history_create();
    struct shown f = {.hits = 500};
    sample_at(h, &f, 0);
    f.hits = 3;
    sample_at(h, &f, 1000);
    f.hits = 7;
    sample_at(h, &f, 2000);
    CHECK_SERIES(h, HISTORY_SECOND, 0, "hits", "null,null,4");
    CHECK_SERIES(h, HISTORY_MINUTE, 0, "hits", "4");
    history_destroy(&h);
}

TEST(history_a_second_has_one_sample) {
    struct history *h = history_create();
    struct shown f = {.nodes_up = 1};
    sample_at(h, &f, 1000);
    f.nodes_up = 9;
    sample_at(h, &f, 1999);
    CHECK_SERIES(h, HISTORY_SECOND, 0, "nodes_up", "1");
    history_destroy(&h);
}

TEST(history_minutes_show_the_fewest_nodes) {
    struct history *h = history_create();
    struct shown f = {.nodes_up = 5};
    for (uint64_t s = 0; s < 120; s++) {
        f.nodes_up = s == 70 ? 4 : 5;
        f.hits += s < 60 ? 1 : 10;
        sample_at(h, &f, s * 1000);
    }
    CHECK_SERIES(h, HISTORY_MINUTE, 0, "nodes_up", "5,4");
    CHECK_SERIES(h, HISTORY_MINUTE, 0, "hits", "1,10");
    history_destroy(&h);
}

TEST(history_keeps_no_more_than_it_says) {
    struct history *h = history_create();
    struct shown f = {0};
    for (uint64_t s = 0; s < 1000; s++) {
        f.nodes_up = s;
        sample_at(h, &f, s * 1000);
    }
    char *all = series_of(h, HISTORY_SECOND, 0, "nodes_up");
    unsigned points = 1;
    for (const char *c = all; *c != '\0'; c++) points += *c == ',';
    CHECK_EQ(points, HISTORY_SECONDS);
    CHECK(strncmp(all, "700,701,", 8) == 0);
    free(all);
    CHECK_SERIES(h, HISTORY_SECOND, 1000000000 + 997 * 1000, "nodes_up", "998,999");
    CHECK_SERIES(h, HISTORY_SECOND, 1000000000 + 999 * 1000, "nodes_up", "");
    CHECK_SERIES(h, HISTORY_SECOND, UINT64_MAX, "nodes_up", "");
    CHECK(history_size() < 450 * 1024);
    /* A pause longer than the ring leaves nothing of what was before. */
    sample_at(h, &f, 1000 * 100000);
    all = series_of(h, HISTORY_SECOND, 0, "nodes_up");
    CHECK(strncmp(all, "null,null,", 10) == 0);
    CHECK_STR(all + strlen(all) - 9, ",null,999");
    free(all);
    history_destroy(&h);
}

TEST(history_samples_between_the_pieces_of_an_answer_are_not_in_it) {
    struct history *h = history_create();
    struct shown f = {.nodes_up = 1};
    struct history_answer answer;
    struct buf out = {0};
    sample_at(h, &f, 0);
    history_ask(h, HISTORY_SECOND, 0, &answer);
    CHECK(history_write(h, &answer, &out));
    for (uint64_t s = 1; s <= HISTORY_SECONDS; s++) sample_at(h, &f, s * 1000);
    while (history_write(h, &answer, &out)) {
    }
    buf_append(&out, "", 1);
    CHECK(strstr(out.data, "\"nodes_up\":[null]") != NULL); /* pushed out */
    CHECK(strstr(out.data, "\"end_ms\":1000000000,") != NULL);
    buf_free(&out);
    history_destroy(&h);
}

static void latency_at(struct history *h, const struct hist *get, uint64_t ms) {
    struct figure_walk *walk = history_walk(h);
    history_begin(h);
    figures_group(walk, "command", "command", "get");
    if (get != NULL) FIGURE_HIST(walk, HIST_NS, duration, "", get);
    figures_group_end(walk);
    figures_group(walk, "command", "command", "info");
    if (get != NULL) FIGURE_HIST(walk, HIST_NS, duration, "", get);
    figures_group_end(walk);
    history_end(h, ms, ms);
}

TEST(history_latencies_are_of_their_second) {
    struct history *h = history_create();
    struct hist *get = xcalloc(1, sizeof(*get));
    for (int i = 0; i < 1000; i++) hist_add(get, 1000);
    latency_at(h, get, 0);
    for (int i = 0; i < 10; i++) hist_add(get, 1 << 24);
    latency_at(h, get, 1000);
    latency_at(h, get, 2000); /* nobody asked: no latency */
    hist_init(get);           /* begins anew */
    latency_at(h, get, 3000);
    CHECK_SERIES(h, HISTORY_SECOND, 0, "get_p50_ms", "null,16.77722,null,null");
    CHECK_SERIES(h, HISTORY_MINUTE, 0, "get_p99_ms", "16.77722");
    CHECK_SERIES(h, HISTORY_SECOND, 0, "put_p50_ms", "null,null,null,null");
    free(get);
    history_destroy(&h);
}

TEST(history_the_first_calls_of_a_command_count) {
    struct history *h = history_create();
    struct hist *get = xcalloc(1, sizeof(*get));
    latency_at(h, NULL, 0); /* nobody has called it: it has no histogram */
    for (int i = 0; i < 10; i++) hist_add(get, 1 << 20);
    latency_at(h, get, 1000);
    CHECK_SERIES(h, HISTORY_SECOND, 0, "get_p50_ms", "null,1.048576");
    free(get);
    history_destroy(&h);
}

/* Of a node: no server's figures. */
static void node_at(struct history *h, uint64_t data_in, const struct hist *reads, uint64_t ms) {
    struct figure_walk *walk = history_walk(h);
    history_begin(h);
    FIGURE(walk, COUNTER_BYTES, data_bytes_written, "", data_in);
    FIGURE(walk, BYTES, lent_memory, "", 4096);
    figures_group(walk, "transport", "transport", "tcp");
    FIGURE_HIST(walk, HIST_NS, read_duration, "", reads);
    figures_group_end(walk);
    figures_group(walk, "tier", "tier", "ssd");
    FIGURE_HIST(walk, HIST_NS, write_duration, "of a disk, not of the data port", reads);
    figures_group_end(walk);
    history_end(h, ms, ms);
}

TEST(history_of_a_node_has_the_figures_that_it_has) {
    struct history *h = history_create();
    struct hist *reads = xcalloc(1, sizeof(*reads));
    node_at(h, 100, reads, 0);
    hist_add_many(reads, 1 << 20, 3);
    node_at(h, 300, reads, 1000);
    CHECK_SERIES(h, HISTORY_SECOND, 0, "bytes_in", "null,200");
    CHECK_SERIES(h, HISTORY_SECOND, 0, "bytes_out", "null,null");
    CHECK_SERIES(h, HISTORY_SECOND, 0, "pool_size", "4096,4096");
    CHECK_SERIES(h, HISTORY_SECOND, 0, "data_read_p99_ms", "null,1.048576");
    CHECK_SERIES(h, HISTORY_SECOND, 0, "data_write_p99_ms", "null,null");
    free(reads);
    history_destroy(&h);
}

TEST_MAIN()
