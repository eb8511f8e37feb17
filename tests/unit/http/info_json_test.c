/* Figures as JSON: sections, rows, histograms, and whatever bytes a name has. */
#include "http/info_json.h"

#include <stdio.h>
#include "../test.h"
#include "base/hist.h"

static void show_rows(struct figure_walk *f, unsigned from, unsigned n) {
    for (unsigned i = from; i < from + n; i++) {
        char id[16];
        snprintf(id, sizeof(id), "%u", i);
        figures_group(f, "node", "node", id);
        FIGURE(f, BYTES, size, "of it", 10 * i);
        FIGURE(f, TEXT, name, "of it", "a\"b\\\x01\xff");
        figures_group_end(f);
    }
}

static const char *text_of(struct buf *b) {
    buf_append_char(b, '\0');
    return b->data;
}

TEST(rows_come_in_parts) {
    struct info_json j;
    struct buf out = {NULL, 0, 0};
    info_json_init(&j);
    show_rows(&j.walk, 0, 1);
    CHECK(info_json_rows(&j, &out, false) == 1);
    CHECK(info_json_rows(&j, &out, true) == 0); /* nothing new: no comma either */
    show_rows(&j.walk, 1, 2);
    CHECK(info_json_rows(&j, &out, true) == 2);
    CHECK_STR(text_of(&out), "{\"node\":\"0\",\"size\":0,\"name\":\"a\\\"b\\\\\\u0001\\ufffd\"},"
                             "{\"node\":\"1\",\"size\":10,\"name\":\"a\\\"b\\\\\\u0001\\ufffd\"},"
                             "{\"node\":\"2\",\"size\":20,\"name\":\"a\\\"b\\\\\\u0001\\ufffd\"}");
    buf_free(&out);
    info_json_deinit(&j);
}

TEST(sections_with_groups_and_histograms) {
    struct info_json j;
    struct buf out = {NULL, 0, 0};
    struct hist ages;
    hist_init(&ages);
    hist_add(&ages, 500);
    hist_add(&ages, 30000);
    info_json_init(&j);
    struct figure_walk *f = info_json_walk(&j, NULL);
    FIGURE(f, COUNTER, hits, "of all", UINT64_MAX); /* -1 */
    FIGURE(f, SHARE, ratio, "of all", 0.25);
    FIGURE_HIST(f, HIST_MS, ages, "of all", &ages);
    FIGURE_HIST(f, HIST_NS, durations, "left out", &ages);
    show_rows(f, 7, 1);
    f = info_json_walk(&j, "pool");
    FIGURE(f, GAUGE, more, "of all", 3);
    (void)info_json_walk(&j, "pool"); /* the same again */
    while (info_json_write(&j, &out)) {
    }
    CHECK_STR(
        text_of(&out),
        "{\"pool\":{\"hits\":-1,\"ratio\":0.25,\"ages\":{\"count\":2,\"p50\":503,\"p90\":30000,"
        "\"p99\":30000,\"upto\":[[1000,1],[10000,1],[60000,2],[600000,2],[3600000,2],"
        "[21600000,2],[86400000,2]]},\"more\":3,\"node\":[{\"node\":\"7\",\"size\":70,"
        "\"name\":\"a\\\"b\\\\\\u0001\\ufffd\"}]}}\n");
    buf_free(&out);
    info_json_deinit(&j);
}

TEST_MAIN()
