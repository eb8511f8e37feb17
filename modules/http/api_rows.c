/* /api/nodes, /api/segments, /api/tasks, ...: lists of the program, some rows in each turn of the
 * loop. An answer is cut when it has enough rows or bytes, and says where to go on.
 *
 *   request ─> suspended ─> timer: some rows each turn ─> resumed ─> sent */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/queue.h"
#include "http/http.h"
#include "http/info_json.h"

enum { ROWS_DEFAULT = 1000, ROWS_MAX = 10000, BYTES_MAX = 2 << 20 };

struct rows_ask {
    struct http_task task; /* first */
    struct MHD_Connection *connection;
    struct tarn_timer *timer; /* NULL: it is written, or given up */
    const char *table;
    uint64_t from, count;
    struct info_json json;
    struct buf text;
    size_t rows;
    bool unknown; /* the program has no such list */
    LIST_ENTRY(rows_ask) link;
};

static LIST_HEAD(, rows_ask) asks = LIST_HEAD_INITIALIZER(asks);

static void rows_begin_text(struct rows_ask *a) {
    buf_append_char(&a->text, '{');
    info_json_text(&a->text, a->table);
    buf_append_str(&a->text, ":[");
}

static void rows_end_text(struct rows_ask *a, bool more) {
    buf_printf(&a->text, "],\"next\":%llu,\"more\":%s}\n", (unsigned long long)a->from,
               more ? "true" : "false");
}

static void rows_turn(void *arg) {
    struct rows_ask *a = arg;
    enum tarn_rows got = http_services->rows_next(a->table, &a->from, &a->json.walk);
    a->rows += info_json_rows(&a->json, &a->text, a->rows > 0);
    if (got == TARN_ROWS_MORE && a->rows < a->count && a->text.len < BYTES_MAX) {
        http_services->timer_start(a->timer, 0);
        return;
    }
    a->unknown = got == TARN_ROWS_NO_TABLE;
    rows_end_text(a, got == TARN_ROWS_MORE);
    http_services->timer_destroy(&a->timer);
    MHD_resume_connection(a->connection);
    http_server_wake();
}

static enum MHD_Result rows_go_on(struct MHD_Connection *connection, void **own,
                                  const struct http_part *part) {
    struct rows_ask *a = *own;
    (void)part;
    if (a->timer != NULL || a->text.len == 0) return MHD_YES;
    if (a->unknown) return http_answer_missing(connection);
    struct buf text = a->text;
    a->text = (struct buf){NULL, 0, 0};
    return http_answer_owned(connection, "application/json", text);
}

static void rows_over(struct http_task *task) {
    struct rows_ask *a = (struct rows_ask *)(void *)task;
    LIST_REMOVE(a, link);
    if (a->timer != NULL) http_services->timer_destroy(&a->timer);
    info_json_deinit(&a->json);
    buf_free(&a->text);
    free(a);
}

/* A number of the query; absent: as it was. */
static bool argument_number(struct MHD_Connection *connection, const char *name,
                            uint64_t *value_p) {
    const char *text = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, name);
    return text == NULL || span_to_u64(span_str(text), value_p);
}

static enum MHD_Result rows_ask_for(struct MHD_Connection *connection, void **own,
                                    const char *table) {
    uint64_t from = 0, count = ROWS_DEFAULT;
    if (!TARN_HAS(http_services, rows_next) || http_services->rows_next == NULL)
        return http_answer_missing(connection);
    if (!argument_number(connection, "from", &from))
        return http_answer_wrong(connection, "from: the number that an answer had as next");
    if (!argument_number(connection, "count", &count) || count == 0 || count > ROWS_MAX)
        return http_answer_wrong(connection, "count: 1 to 10000 rows");
    struct rows_ask *a = xcalloc(1, sizeof(*a));
    a->task = (struct http_task){rows_go_on, rows_over};
    a->connection = connection;
    a->table = table;
    a->from = from;
    a->count = count;
    info_json_init(&a->json);
    rows_begin_text(a);
    LIST_INSERT_HEAD(&asks, a, link);
    *own = a;
    MHD_suspend_connection(connection);
    a->timer = http_services->timer_create(rows_turn, a);
    http_services->timer_start(a->timer, 0);
    return MHD_YES;
}

/* One for each path. */
#define ROWS_OF(name)                                                                              \
    enum MHD_Result http_api_##name(struct MHD_Connection *connection, void **own) {               \
        return rows_ask_for(connection, own, #name);                                               \
    }
HTTP_ROWS(ROWS_OF)

void http_rows_stop(void) {
    struct rows_ask *a;
    LIST_FOREACH(a, &asks, link) {
        if (a->timer == NULL) continue;
        http_services->timer_destroy(&a->timer);
        buf_clear(&a->text);
        MHD_resume_connection(a->connection);
    }
}
