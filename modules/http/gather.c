/* /metrics and /api/info: all figures, gathered a part in a turn of the loop, then written in
 * pieces as the connection takes them, so that no turn is long however many nodes there are. Who
 * asks while the same is gathered shares it.
 *
 *   request ─> suspended ─> timer: a part of the figures each turn ─> page ─> resumed ─> sent
 *                              └── all who wait have gone: given up */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/prometheus.h"
#include "base/queue.h"
#include "http/http.h"
#include "http/info_json.h"

/* What was gathered once, for one or several who asked. */
struct page {
    struct buf text;
    unsigned users;
};

/* A request that waits for it. */
struct waiting {
    struct http_task task;
    struct gather *gather;
    struct MHD_Connection *connection;
    struct page *page; /* NULL: it is gathered yet */
    LIST_ENTRY(waiting) link;
};

/* One kind of page, and the one that is made now. */
struct gather {
    const char *type;
    void (*begin)(void);
    void (*end)(void);
    struct figure_walk *(*walk)(const char *section);
    bool (*write)(struct buf *out); /* some of it; false: that was all */
    LIST_HEAD(, waiting) all_waiting;
    enum { GATHER_IDLE, GATHER_FIGURES, GATHER_TEXT } state;
    struct tarn_figures_at at;
    struct buf text;
    struct tarn_timer *timer;
};

static struct prometheus prometheus;
static struct info_json info;

static void metrics_begin(void) {
    prometheus_init(&prometheus);
}
static void metrics_end(void) {
    prometheus_deinit(&prometheus);
}
static struct figure_walk *metrics_walk(const char *section) {
    return &prometheus.walk;
}
static bool metrics_write(struct buf *out) {
    return prometheus_write(&prometheus, out, 4 * HTTP_PIECE);
}
static void info_begin(void) {
    info_json_init(&info);
}
static void info_end(void) {
    info_json_deinit(&info);
}
static struct figure_walk *info_walk(const char *section) {
    return info_json_walk(&info, section);
}
static bool info_write(struct buf *out) {
    return info_json_write(&info, out);
}

static struct gather metrics = {.type = "text/plain; version=0.0.4; charset=utf-8",
                                .begin = metrics_begin,
                                .end = metrics_end,
                                .walk = metrics_walk,
                                .write = metrics_write};
static struct gather info_page = {.type = "application/json",
                                  .begin = info_begin,
                                  .end = info_end,
                                  .walk = info_walk,
                                  .write = info_write};

static void gather_end(struct gather *g) {
    g->end();
    buf_free(&g->text);
    g->state = GATHER_IDLE;
    http_services->timer_destroy(&g->timer);
}

static void page_share(struct gather *g) {
    struct page *page = xcalloc(1, sizeof(*page));
    page->text = g->text;
    g->text = (struct buf){NULL, 0, 0};
    struct waiting *w, *next;
    LIST_FOREACH_SAFE(w, &g->all_waiting, link, next) {
        LIST_REMOVE(w, link);
        w->page = page;
        page->users++;
        MHD_resume_connection(w->connection);
    }
    http_figures.scrapes += page->users;
    http_server_wake();
}

static void gather_turn(void *arg) {
    struct gather *g = arg;
    http_figures.scrape_turns++;
    if (LIST_EMPTY(&g->all_waiting)) {
        gather_end(g);
        return;
    }
    if (g->state == GATHER_FIGURES) {
        /* of the part that comes: walked into the place of the section before, it is moved */
        if (!http_services->figures_next(&g->at, g->walk(NULL))) g->state = GATHER_TEXT;
        (void)g->walk(g->at.section);
    } else if (!g->write(&g->text)) {
        page_share(g);
        gather_end(g);
        return;
    }
    http_services->timer_start(g->timer, 0);
}

static void gather_begin(struct gather *g) {
    if (g->state != GATHER_IDLE) return;
    g->begin();
    g->at = (struct tarn_figures_at){0};
    g->state = GATHER_FIGURES;
    g->timer = http_services->timer_create(gather_turn, g);
    http_services->timer_start(g->timer, 0);
}

static ssize_t page_read(void *arg, uint64_t at, char *out, size_t max) {
    const struct page *page = arg;
    if (at >= page->text.len) return MHD_CONTENT_READER_END_OF_STREAM;
    size_t n = min_u64(max, page->text.len - at);
    memcpy(out, page->text.data + at, n);
    return (ssize_t)n;
}

static void page_drop(void *arg) {
    struct page *page = arg;
    if (--page->users > 0) return;
    buf_free(&page->text);
    free(page);
}

static enum MHD_Result waiting_go_on(struct MHD_Connection *connection, void **own,
                                     const struct http_part *part) {
    struct waiting *w = *own;
    (void)part;
    if (w->page == NULL) return MHD_YES;
    w->page->users++; /* the answer's */
    struct MHD_Response *r = MHD_create_response_from_callback(w->page->text.len, HTTP_PIECE,
                                                               page_read, w->page, page_drop);
    if (r == NULL) {
        w->page->users--;
        return MHD_NO;
    }
    http_response_dress(r, w->gather->type, 0);
    return http_response_send(connection, MHD_HTTP_OK, r);
}

static void waiting_over(struct http_task *task) {
    struct waiting *w = (struct waiting *)(void *)task;
    if (w->page != NULL)
        page_drop(w->page);
    else
        LIST_REMOVE(w, link);
    free(w);
}

static enum MHD_Result gather_ask(struct gather *g, struct MHD_Connection *connection, void **own) {
    struct waiting *w = xcalloc(1, sizeof(*w));
    w->task = (struct http_task){waiting_go_on, waiting_over};
    w->gather = g;
    w->connection = connection;
    *own = w;
    LIST_INSERT_HEAD(&g->all_waiting, w, link);
    MHD_suspend_connection(connection);
    gather_begin(g);
    return MHD_YES;
}

enum MHD_Result http_metrics(struct MHD_Connection *connection, const char *url, void **own) {
    return gather_ask(&metrics, connection, own);
}

enum MHD_Result http_api_info(struct MHD_Connection *connection, const char *url, void **own) {
    return gather_ask(&info_page, connection, own);
}

void http_gather_stop(void) {
    struct gather *all[] = {&metrics, &info_page};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        struct waiting *w;
        LIST_FOREACH(w, &all[i]->all_waiting, link) MHD_resume_connection(w->connection);
        if (all[i]->state != GATHER_IDLE) gather_end(all[i]);
    }
}
