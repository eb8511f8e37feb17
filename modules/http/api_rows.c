/* /api/nodes, /api/segments, /api/tasks, ...: lists of the program, and of modules
 * (/api/NAME/TABLE), some rows in each turn of the loop. An answer is cut when it has enough rows
 * or bytes, and says where to go on.
 *
 *   request ─> suspended ─> timer: some rows each turn ─> resumed ─> sent */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/json_text.h"
#include "base/queue.h"
#include "http/http.h"
#include "http/info_json.h"

enum { ROWS_DEFAULT = 1000, ROWS_MAX = 10000, BYTES_MAX = 2 << 20, TABLE_MAX = 128 };

struct rows_ask {
    struct http_task task; /* first */
    struct MHD_Connection *connection;
    struct tarn_timer *timer; /* NULL: it is written, or given up */
    char table[TABLE_MAX];    /* "nodes", "conductor/engines" */
    uint64_t from, count;
    struct info_json json;
    struct buf text;
    size_t rows;
    bool unknown; /* there is no such list */
    LIST_ENTRY(rows_ask) link;
};

static LIST_HEAD(, rows_ask) asks = LIST_HEAD_INITIALIZER(asks);

/* The array is called as the list is: of "NAME/candidates/7", "candidates". */
static void rows_begin_text(struct rows_ask *a) {
    char name[TABLE_MAX];
    const char *slash = strchr(a->table, '/');
    snprintf(name, sizeof(name), "%s", slash != NULL ? slash + 1 : a->table);
    name[strcspn(name, "/")] = '\0';
    buf_append_char(&a->text, '{');
    json_text_put(&a->text, span_str(name));
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

enum MHD_Result http_rows(struct MHD_Connection *connection, const char *url, void **own) {
    const char *table = url + strlen("/api/");
    uint64_t from = 0, count = ROWS_DEFAULT;
    if (!TARN_HAS(http_services, rows_next) || http_services->rows_next == NULL ||
        strlen(table) >= TABLE_MAX)
        return http_answer_missing(connection);
    if (!argument_number(connection, "from", &from))
        return http_answer_wrong(connection, "from: the number that an answer had as next");
    if (!argument_number(connection, "count", &count) || count == 0 || count > ROWS_MAX)
        return http_answer_wrong(connection, "count: 1 to 10000 rows");
    struct rows_ask *a = xcalloc(1, sizeof(*a));
    a->task = (struct http_task){rows_go_on, rows_over};
    a->connection = connection;
    snprintf(a->table, sizeof(a->table), "%s", table);
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

void http_rows_stop(void) {
    struct rows_ask *a;
    LIST_FOREACH(a, &asks, link) {
        if (a->timer == NULL) continue;
        http_services->timer_destroy(&a->timer);
        buf_clear(&a->text);
        MHD_resume_connection(a->connection);
    }
}
