/* /metrics. The figures are gathered a part in a turn of the loop, then written in pieces as the
 * connection takes them, so that no turn is long however many nodes there are. Scrapes that come
 * while one is gathered share it.
 *
 *   request ─> suspended ─> timer: a part of the figures each turn ─> page ─> resumed ─> sent
 *                              └── all who wait have gone: given up */
#include <stdlib.h>
#include <string.h>
#include "base/queue.h"

#include "base/assert.h"
#include "base/prometheus.h"
#include "http/http.h"

enum { PIECE = 16384 };

/* What was gathered once, for one or several who asked. */
struct page {
    struct buf text;
    unsigned users;
};

struct waiting {
    struct MHD_Connection *connection;
    struct page *page; /* NULL: it is gathered yet */
    LIST_ENTRY(waiting) link;
};

static LIST_HEAD(, waiting) waiting = LIST_HEAD_INITIALIZER(waiting);
static struct prometheus gathered;
static struct tarn_figures_at gather_at;
static enum { GATHER_IDLE, GATHER_FIGURES, GATHER_TEXT } gathering;
static struct buf gathered_text;
static struct tarn_timer *gather_timer;

static void gather_end(void) {
    prometheus_deinit(&gathered);
    buf_free(&gathered_text);
    gathering = GATHER_IDLE;
    http_services->timer_destroy(&gather_timer);
}

static void page_share(void) {
    struct page *page = xcalloc(1, sizeof(*page));
    page->text = gathered_text;
    gathered_text = (struct buf){NULL, 0, 0};
    struct waiting *w, *next;
    LIST_FOREACH_SAFE(w, &waiting, link, next) {
        LIST_REMOVE(w, link);
        w->page = page;
        page->users++;
        MHD_resume_connection(w->connection);
    }
    http_figures.scrapes += page->users;
    http_server_wake();
}

static void gather_turn(void *arg) {
    http_figures.scrape_turns++;
    if (LIST_EMPTY(&waiting)) {
        gather_end();
        return;
    }
    if (gathering == GATHER_FIGURES) {
        if (!http_services->figures_next(&gather_at, &gathered.walk)) gathering = GATHER_TEXT;
    } else if (!prometheus_write(&gathered, &gathered_text, 4 * PIECE)) {
        page_share();
        gather_end();
        return;
    }
    http_services->timer_start(gather_timer, 0);
}

static void gather_begin(void) {
    if (gathering != GATHER_IDLE) return;
    prometheus_init(&gathered);
    gather_at = (struct tarn_figures_at){0};
    gathering = GATHER_FIGURES;
    gather_timer = http_services->timer_create(gather_turn, NULL);
    http_services->timer_start(gather_timer, 0);
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

enum MHD_Result http_metrics(struct MHD_Connection *connection, void **own) {
    struct waiting *w = *own;
    if (w == NULL) {
        w = xcalloc(1, sizeof(*w));
        w->connection = connection;
        *own = w;
        LIST_INSERT_HEAD(&waiting, w, link);
        MHD_suspend_connection(connection);
        gather_begin();
        return MHD_YES;
    }
    if (w->page == NULL) return MHD_YES;
    w->page->users++; /* the answer's */
    struct MHD_Response *r =
        MHD_create_response_from_callback(w->page->text.len, PIECE, page_read, w->page, page_drop);
    if (r == NULL) {
        w->page->users--;
        return MHD_NO;
    }
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE,
                            "text/plain; version=0.0.4; charset=utf-8");
    enum MHD_Result queued = MHD_queue_response(connection, MHD_HTTP_OK, r);
    MHD_destroy_response(r);
    return queued;
}

void http_metrics_over(void *own) {
    struct waiting *w = own;
    if (w->page != NULL)
        page_drop(w->page);
    else
        LIST_REMOVE(w, link);
    free(w);
}

void http_metrics_stop(void) {
    struct waiting *w;
    LIST_FOREACH(w, &waiting, link) MHD_resume_connection(w->connection);
    if (gathering != GATHER_IDLE) gather_end();
}
