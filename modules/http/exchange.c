/* A request to a path of another module, from its body to its answer.
 *
 *   BODY ─> run() ─> WAITING  suspended, until the module answers, its deadline, it unloads, or the
 *     │       │         │     client goes
 *     │       │         └──> ANSWERED ─> queued ─> over
 *     │       └── answered at once ──^
 *     └── too long, or no place for it: refused
 *
 * A module knows a request by a number that no other gets, so that an answer which comes too late
 * finds nothing. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "http/site.h"

enum {
    DEADLINE_MS = 10000,
    UNDER_WAY = 64,
    SURPLUS_MAX = 1 << 20, /* of a body that is too long: so much is thrown away, for its answer */
    BODIES_MAX = 64 << 20  /* of all requests of a site */
};

struct exchange {
    struct http_task task;
    uint64_t id;
    struct http_site *site; /* NULL: its module has gone */
    const struct tarn_http_path *path;
    struct MHD_Connection *connection;
    unsigned method;
    enum { EXCHANGE_BODY, EXCHANGE_RUNNING, EXCHANGE_WAITING, EXCHANGE_ANSWERED } state;
    struct buf body;
    size_t surplus;
    unsigned refused; /* a status; 0: it is not */
    struct MHD_Response *response;
    unsigned status;
    struct tarn_timer *deadline;
    LIST_ENTRY(exchange) link;
};

/* An answer in pieces. */
struct stream {
    struct http_site *site; /* NULL: it is over, and dropped */
    bool (*next)(void *arg, struct buf *out);
    void (*drop)(void *arg);
    void *arg;
    struct buf piece;
    size_t sent; /* of the piece */
    bool last;
    LIST_ENTRY(stream) link;
};

static LIST_HEAD(, exchange) exchanges = LIST_HEAD_INITIALIZER(exchanges);
static LIST_HEAD(, stream) streams = LIST_HEAD_INITIALIZER(streams);
static uint64_t next_id;

/* --- answers in pieces --- */

static void stream_end(struct stream *s) {
    if (s->site == NULL) return;
    s->site = NULL;
    LIST_REMOVE(s, link);
    if (s->drop != NULL) s->drop(s->arg);
}

static ssize_t stream_read(void *arg, uint64_t at, char *out, size_t max) {
    struct stream *s = arg;
    (void)at;
    if (s->sent == s->piece.len) {
        if (s->last) return MHD_CONTENT_READER_END_OF_STREAM;
        if (s->site == NULL) return MHD_CONTENT_READER_END_WITH_ERROR;
        buf_clear(&s->piece);
        s->sent = 0;
        s->last = !s->next(s->arg, &s->piece);
        if (s->piece.len == 0)
            return s->last ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
    }
    size_t n = min_u64(max, s->piece.len - s->sent);
    memcpy(out, s->piece.data + s->sent, n);
    s->sent += n;
    return (ssize_t)n;
}

static void stream_free(void *arg) {
    struct stream *s = arg;
    stream_end(s);
    buf_free(&s->piece);
    free(s);
}

/* --- the answer --- */

/* Takes what is to be taken, whatever it returns. */
static struct MHD_Response *response_make(struct http_site *site,
                                          const struct tarn_http_answer *a) {
    struct MHD_Response *r;
    if (a->next != NULL) {
        struct stream *s = xcalloc(1, sizeof(*s));
        *s = (struct stream){.site = site, .next = a->next, .drop = a->drop, .arg = a->arg};
        LIST_INSERT_HEAD(&streams, s, link);
        r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, HTTP_PIECE, stream_read, s,
                                              stream_free);
        if (r == NULL) stream_free(s);
        return r;
    }
    if (a->taken != NULL) {
        r = MHD_create_response_from_buffer(a->taken->len, a->taken->data, MHD_RESPMEM_MUST_FREE);
        if (r == NULL) buf_free(a->taken);
        *a->taken = (struct buf){NULL, 0, 0};
    } else {
        r = MHD_create_response_from_buffer(a->body.len, (void *)(uintptr_t)a->body.data,
                                            MHD_RESPMEM_MUST_COPY);
    }
    if (a->drop != NULL) a->drop(a->arg);
    return r;
}

static void exchange_settle(struct exchange *x, struct MHD_Response *r, unsigned status) {
    bool waits = x->state == EXCHANGE_WAITING;
    if (x->site != NULL) x->site->under_way--;
    x->state = EXCHANGE_ANSWERED;
    x->response = r;
    x->status = status;
    http_services->timer_destroy(&x->deadline);
    http_connection_waits(http_connection_of(x->connection), NULL, NULL);
    if (!waits) return;
    MHD_resume_connection(x->connection);
    http_server_wake();
}

static struct exchange *exchange_find(uint64_t id) {
    struct exchange *x;
    LIST_FOREACH(x, &exchanges, link)
        if (x->id == id && (x->state == EXCHANGE_RUNNING || x->state == EXCHANGE_WAITING)) return x;
    return NULL;
}

tarn_status http_exchange_answer(uint64_t id, const struct tarn_http_answer *a) {
    struct exchange *x = exchange_find(id);
    bool sound = a->status >= 200 && a->status < 600;
    if (x == NULL || x->site == NULL || !sound) {
        if (a->taken != NULL) buf_free(a->taken);
        if (a->drop != NULL) a->drop(a->arg);
        return sound ? TARN_ECLOSED : TARN_EINVAL;
    }
    struct MHD_Response *r = response_make(x->site, a);
    if (r != NULL) http_response_dress(r, a->type, a->retry_after_s);
    exchange_settle(x, r, a->status);
    return r != NULL ? TARN_OK : TARN_ENOMEM;
}

/* http.so's own words in place of the module's. */
static void exchange_give_up(struct exchange *x, unsigned status, const char *text) {
    struct MHD_Response *r = MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text,
                                                             MHD_RESPMEM_PERSISTENT);
    if (r != NULL) http_response_dress(r, NULL, 0);
    exchange_settle(x, r, status);
}

static void on_deadline(void *arg) {
    http_figures.late++;
    exchange_give_up(arg, MHD_HTTP_GATEWAY_TIMEOUT, "no answer was ready in time\n");
}

/* Without an answer libmicrohttpd closes the connection, and its place is free. */
static void on_client_gone(void *arg) {
    exchange_settle(arg, NULL, 0);
}

/* --- the request --- */

struct site_request {
    struct tarn_http_request its;
    struct MHD_Connection *connection;
};

static const char *request_argument(const struct tarn_http_request *r, const char *name) {
    const struct site_request *q = (const struct site_request *)(const void *)r;
    return MHD_lookup_connection_value(q->connection, MHD_GET_ARGUMENT_KIND, name);
}
static const char *request_header(const struct tarn_http_request *r, const char *name) {
    const struct site_request *q = (const struct site_request *)(const void *)r;
    return MHD_lookup_connection_value(q->connection, MHD_HEADER_KIND, name);
}

static enum MHD_Result exchange_queue(struct exchange *x) {
    if (x->response == NULL) return MHD_NO;
    return MHD_queue_response(x->connection, x->status, x->response);
}

static void exchange_wait(struct exchange *x) {
    uint32_t ms = x->site->its->deadline_ms != 0 ? x->site->its->deadline_ms : DEADLINE_MS;
    x->state = EXCHANGE_WAITING;
    x->deadline = http_services->timer_create(on_deadline, x);
    http_services->timer_start(x->deadline, ms);
    http_connection_waits(http_connection_of(x->connection), on_client_gone, x);
    MHD_suspend_connection(x->connection);
}

static void body_free(struct exchange *x) {
    if (x->site != NULL) x->site->bodies -= x->body.cap;
    buf_free(&x->body);
}

static enum MHD_Result exchange_run(struct exchange *x, const char *url) {
    unsigned max = x->site->its->under_way_max != 0 ? x->site->its->under_way_max : UNDER_WAY;
    if (x->site->under_way >= max)
        return http_refuse(x->connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                           "too many requests are under way there\n", 1);
    struct site_request r = {.its = {.size = sizeof(r.its),
                                     .method = (enum tarn_http_method)x->method,
                                     .id = x->id,
                                     .path = url,
                                     .body = span_of(x->body.data, x->body.len),
                                     .argument = request_argument,
                                     .header = request_header},
                             .connection = x->connection};
    x->state = EXCHANGE_RUNNING;
    x->site->under_way++;
    x->path->run(&r.its);
    body_free(x);
    if (x->state == EXCHANGE_ANSWERED) return exchange_queue(x);
    if (x->site == NULL) return MHD_NO;
    exchange_wait(x);
    return MHD_YES;
}

/* Refused once it is whole: libmicrohttpd answers no earlier. */
static enum MHD_Result exchange_receive(struct exchange *x, const char *data, size_t len) {
    if (x->refused == 0 && x->site == NULL) x->refused = MHD_HTTP_SERVICE_UNAVAILABLE;
    if (x->refused == 0 && x->body.len + len > x->path->body_max)
        x->refused = MHD_HTTP_CONTENT_TOO_LARGE;
    if (x->refused == 0 && x->site->bodies + len > BODIES_MAX)
        x->refused = MHD_HTTP_SERVICE_UNAVAILABLE;
    if (x->refused != 0) {
        body_free(x);
        x->surplus += len;
        return x->surplus > SURPLUS_MAX ? MHD_NO : MHD_YES;
    }
    size_t before = x->body.cap;
    buf_append(&x->body, data, len);
    x->site->bodies += x->body.cap - before;
    return MHD_YES;
}

static enum MHD_Result exchange_go_on(struct MHD_Connection *connection, void **own,
                                      const struct http_part *part) {
    struct exchange *x = *own;
    size_t len = *part->body_size;
    *part->body_size = 0;
    if (x->state == EXCHANGE_ANSWERED) return exchange_queue(x);
    if (x->state != EXCHANGE_BODY) return MHD_YES;
    if (len > 0) return exchange_receive(x, part->body, len);
    if (x->refused == MHD_HTTP_CONTENT_TOO_LARGE)
        return http_refuse(connection, x->refused, "the body is too long\n", 0);
    if (x->refused != 0 || x->site == NULL)
        return http_refuse(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                           x->site == NULL ? "its module was unloaded\n" : "no place for it\n", 1);
    return exchange_run(x, part->url);
}

static void exchange_over(struct http_task *task) {
    struct exchange *x = (struct exchange *)(void *)task;
    LIST_REMOVE(x, link);
    if (x->site != NULL && (x->state == EXCHANGE_RUNNING || x->state == EXCHANGE_WAITING))
        x->site->under_way--;
    body_free(x);
    http_services->timer_destroy(&x->deadline);
    http_connection_waits(http_connection_of(x->connection), NULL, NULL);
    if (x->response != NULL) MHD_destroy_response(x->response);
    free(x);
}

enum MHD_Result http_exchange_begin(struct MHD_Connection *connection, void **own,
                                    const struct http_route *r, bool whole) {
    struct exchange *x = xcalloc(1, sizeof(*x));
    x->task = (struct http_task){exchange_go_on, exchange_over};
    x->id = next_id++;
    x->site = r->site;
    x->path = r->path;
    x->method = r->method;
    x->connection = connection;
    LIST_INSERT_HEAD(&exchanges, x, link);
    *own = x;
    return whole ? exchange_run(x, r->url) : MHD_YES;
}

/* --- coming and going --- */

void http_exchanges_end(struct http_site *site) {
    struct exchange *x;
    struct stream *s, *next;
    LIST_FOREACH(x, &exchanges, link) {
        if (x->site != site) continue;
        if (x->state == EXCHANGE_WAITING)
            exchange_give_up(x, MHD_HTTP_SERVICE_UNAVAILABLE, "its module was unloaded\n");
        x->site = NULL;
        x->path = NULL;
    }
    LIST_FOREACH_SAFE(s, &streams, link, next)
        if (s->site == site) stream_end(s);
}

void http_exchanges_start(void) {
    /* Above all that this process ever gave: nobody answers a million requests in a millisecond. */
    next_id = clock_boot_ms() << 20;
}

void http_exchanges_stop(void) {
    struct exchange *x;
    LIST_FOREACH(x, &exchanges, link) {
        if (x->state == EXCHANGE_WAITING)
            exchange_give_up(x, MHD_HTTP_SERVICE_UNAVAILABLE, "http.so was unloaded\n");
    }
}
