#include "base/prometheus.h"

#include "../test.h"
#include "base/assert.h"
#include "base/hist.h"

static const char *name_of(const char *name, enum figure_type type, const char *help,
                           const char *group, const char *of) {
    static char out[PROMETHEUS_NAME_MAX];
    struct figure f = {name, help, type, 0};
    prometheus_name(&f, group, of, out);
    return out;
}

TEST(prometheus_names_have_base_units) {
    CHECK(strcmp(name_of("pool_free", FIGURE_BYTES, "h", NULL, NULL), "tarn_pool_free_bytes") == 0);
    CHECK(strcmp(name_of("bytes_read", FIGURE_COUNTER_BYTES, "h", NULL, NULL),
                 "tarn_bytes_read_bytes_total") == 0);
    CHECK(strcmp(name_of("loop_active_usec", FIGURE_COUNTER_US, "h", NULL, NULL),
                 "tarn_loop_active_seconds_total") == 0);
    CHECK(strcmp(name_of("pool_used_perc", FIGURE_PERCENT, "h", NULL, NULL),
                 "tarn_pool_used_ratio") == 0);
    CHECK(strcmp(name_of("hit_ratio", FIGURE_SHARE, "h", NULL, NULL), "tarn_hit_ratio") == 0);
    CHECK(strcmp(name_of("total_commands_processed", FIGURE_COUNTER, "h", NULL, NULL),
                 "tarn_commands_processed_total") == 0);
    CHECK(strcmp(name_of("nodes_", FIGURE_GAUGE, "h", NULL, "state"), "tarn_nodes_by_state") == 0);
    CHECK(strcmp(name_of("size", FIGURE_BYTES, "h", "segment", NULL), "tarn_segment_size_bytes") ==
          0);
}

TEST(prometheus_leaves_out_constants_and_second_names) {
    CHECK(strcmp(name_of("used_memory_lua", FIGURE_SIZE, "always 0", NULL, NULL), "") == 0);
    CHECK(strcmp(name_of("expired_keys", FIGURE_COUNTER, "as expired", NULL, NULL), "") == 0);
    CHECK(strcmp(name_of("used_memory_startup", FIGURE_BYTES, "as it was at the start", NULL, NULL),
                 "tarn_used_memory_startup_bytes") == 0);
    CHECK(strcmp(name_of("p", FIGURE_QUANTILE, "h", "command", "percent"), "") == 0);
}

static char *text_of(struct prometheus *p, size_t piece, unsigned *pieces_p) {
    struct buf out = {NULL, 0, 0};
    *pieces_p = 1;
    while (prometheus_write(p, &out, piece)) ++*pieces_p;
    buf_append_char(&out, '\0');
    prometheus_deinit(p);
    return out.data;
}

static void show_segment_figures(struct figure_walk *f, const char *id, const char *name) {
    figures_group(f, "segment", "segment", id);
    FIGURE(f, TEXT, name, "of the segment", name);
    FIGURE(f, BYTES, size, "of the segment", 4096);
    figures_group_end(f);
}

TEST(prometheus_keeps_samples_of_a_metric_together) {
    struct prometheus p;
    unsigned pieces;
    prometheus_init(&p);
    show_segment_figures(&p.walk, "0", "a");
    FIGURE(&p.walk, COUNTER, hits, "look-ups that found", 7);
    FIGURE(&p.walk, COUNTER, hits, "look-ups that found", 8); /* told twice: the first one */
    show_segment_figures(&p.walk, "1", "b\"\\\n");
    FIGURE_OF(&p.walk, GAUGE, nodes_, "in that state", "state", "up", 2);
    FIGURE_OF(&p.walk, GAUGE, nodes_, "in that state", "state", "down", (uint64_t)-1);
    FIGURE(&p.walk, TEXT, role, "of this server", "master");
    char *text = text_of(&p, 1, &pieces);
    const char *want = "# HELP tarn_segment_size_bytes of the segment\n"
                       "# TYPE tarn_segment_size_bytes gauge\n"
                       "tarn_segment_size_bytes{segment=\"0\"} 4096\n"
                       "tarn_segment_size_bytes{segment=\"1\"} 4096\n"
                       "# HELP tarn_segment_info what each segment is\n"
                       "# TYPE tarn_segment_info gauge\n"
                       "tarn_segment_info{segment=\"0\",name=\"a\"} 1\n"
                       "tarn_segment_info{segment=\"1\",name=\"b\\\"\\\\\\n\"} 1\n"
                       "# HELP tarn_hits_total look-ups that found\n"
                       "# TYPE tarn_hits_total counter\n"
                       "tarn_hits_total 7\n"
                       "# HELP tarn_nodes_by_state in that state\n"
                       "# TYPE tarn_nodes_by_state gauge\n"
                       "tarn_nodes_by_state{state=\"up\"} 2\n"
                       "tarn_nodes_by_state{state=\"down\"} -1\n"
                       "# HELP tarn_role_info of this server\n"
                       "# TYPE tarn_role_info gauge\n"
                       "tarn_role_info{role=\"master\"} 1\n";
    CHECK(strcmp(text, want) == 0);
    CHECK_EQ(pieces, 5);
    free(text);
}

TEST(prometheus_counts_by_the_bounds_of_the_peers) {
    struct prometheus p;
    struct hist h;
    unsigned pieces;
    hist_init(&h);
    hist_add(&h, 100000);     /* ns: below 125 us */
    hist_add(&h, 180000);     /* below 200 us */
    hist_add(&h, 2000000000); /* beyond all */
    prometheus_init(&p);
    figures_group(&p.walk, "command", "command", "get");
    FIGURE_HIST(&p.walk, HIST_NS, duration, "how long", &h);
    figures_group_end(&p.walk);
    char *text = text_of(&p, 1 << 20, &pieces);
    CHECK(strstr(text, "# TYPE tarn_command_duration_seconds histogram\n") != NULL);
    CHECK(strstr(text, "_bucket{command=\"get\",le=\"0.000125\"} 1\n") != NULL);
    CHECK(strstr(text, "_bucket{command=\"get\",le=\"0.0002\"} 2\n") != NULL);
    CHECK(strstr(text, "_bucket{command=\"get\",le=\"1\"} 2\n") != NULL);
    CHECK(strstr(text, "_bucket{command=\"get\",le=\"+Inf\"} 3\n") != NULL);
    CHECK(strstr(text, "_count{command=\"get\"} 3\n") != NULL);
    CHECK(strstr(text, "_sum{command=\"get\"} 2.00028\n") != NULL);
    free(text);
}

TEST_MAIN()
