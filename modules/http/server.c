/* What is asked for: paths, methods, the token, and answers of one piece. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/assert.h"
#include "http/site.h"

/* --- answers --- */

void http_response_dress(struct MHD_Response *r, const char *type, unsigned retry_after_s) {
    char seconds[24];
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE,
                            type != NULL ? type : "text/plain; charset=utf-8");
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (retry_after_s == 0) return;
    snprintf(seconds, sizeof(seconds), "%u", retry_after_s);
    MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, seconds);
}

enum MHD_Result http_response_send(struct MHD_Connection *connection, unsigned status,
                                   struct MHD_Response *r) {
    enum MHD_Result queued = MHD_queue_response(connection, status, r);
    MHD_destroy_response(r);
    return queued;
}

enum MHD_Result http_answer(struct MHD_Connection *connection, unsigned status, const char *type,
                            const char *text, size_t len) {
    struct MHD_Response *r =
        MHD_create_response_from_buffer(len, (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
    if (r == NULL) return MHD_NO;
    http_response_dress(r, type, 0);
    return http_response_send(connection, status, r);
}

enum MHD_Result http_refuse(struct MHD_Connection *connection, unsigned status, const char *text,
                            unsigned retry_after_s) {
    http_figures.refused++;
    struct MHD_Response *r = MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text,
                                                             MHD_RESPMEM_MUST_COPY);
    if (r == NULL) return MHD_NO;
    http_response_dress(r, NULL, retry_after_s);
    if (status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    return http_response_send(connection, status, r);
}

/* allowed: of enum tarn_http_method. */
static enum MHD_Result refuse_method(struct MHD_Connection *connection, unsigned allowed) {
    static const char *const names[] = {"GET, HEAD", "POST", "PUT", "DELETE"};
    char list[40] = "", text[80];
    for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
        if (!(allowed & 1u << i)) continue;
        if (list[0] != '\0') strcat(list, ", ");
        strcat(list, names[i]);
    }
    int len = snprintf(text, sizeof(text), "this path answers %s\n", list);
    http_figures.refused++;
    struct MHD_Response *r =
        MHD_create_response_from_buffer((size_t)len, text, MHD_RESPMEM_MUST_COPY);
    if (r == NULL) return MHD_NO;
    http_response_dress(r, NULL, 0);
    MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, list);
    return http_response_send(connection, MHD_HTTP_METHOD_NOT_ALLOWED, r);
}

enum MHD_Result http_answer_owned(struct MHD_Connection *connection, const char *type,
                                  struct buf text) {
    struct MHD_Response *r =
        MHD_create_response_from_buffer(text.len, text.data, MHD_RESPMEM_MUST_FREE);
    if (r == NULL) {
        buf_free(&text);
        return MHD_NO;
    }
    http_response_dress(r, type, 0);
    return http_response_send(connection, MHD_HTTP_OK, r);
}

enum MHD_Result http_answer_wrong(struct MHD_Connection *connection, const char *text) {
    char json[256];
    int len = snprintf(json, sizeof(json), "{\"error\":\"%s\"}\n", text);
    http_figures.refused++;
    return http_answer(connection, MHD_HTTP_BAD_REQUEST, "application/json", json, (size_t)len);
}

static enum MHD_Result answer_text(struct MHD_Connection *connection, unsigned status,
                                   const char *text) {
    return http_answer(connection, status, "text/plain; charset=utf-8", text, strlen(text));
}

static enum MHD_Result answer_health(struct MHD_Connection *connection, const char *url,
                                     void **own) {
    return answer_text(connection, MHD_HTTP_OK, "ok\n");
}

static enum MHD_Result answer_ready(struct MHD_Connection *connection, const char *url,
                                    void **own) {
    char why[256], text[300];
    bool serves = http_services->state(why, sizeof(why)) == TARN_STATE_SERVING;
    snprintf(text, sizeof(text), "%s%s\n", serves ? "ready" : "not ready: ", why);
    return answer_text(connection, serves ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, text);
}

static enum MHD_Result answer_version(struct MHD_Connection *connection, const char *url,
                                      void **own) {
    char text[128];
    bool node = http_services->program == TARN_PROGRAM_NODE;
    int len = snprintf(text, sizeof(text), "{\"program\":\"%s\",\"version\":\"%s\"}\n",
                       node ? "tarn-node" : "tarn-server", http_services->program_version);
    return http_answer(connection, MHD_HTTP_OK, "application/json", text, (size_t)len);
}

/* --- own paths --- */

static const struct path {
    const char *path;
    bool open; /* needs no token: probes have none */
    enum MHD_Result (*answer)(struct MHD_Connection *connection, const char *url, void **own);
} paths[] = {{"/", true, http_page},
             {"/health", true, answer_health},
             {"/ready", true, answer_ready},
             {"/version", false, answer_version},
             {"/metrics", false, http_metrics},
             {"/api/info", false, http_api_info},
             {"/api/history", false, http_history},
             {"/api/nodes", false, http_rows},
             {"/api/segments", false, http_rows},
             {"/api/tasks", false, http_rows},
             {"/api/clients", false, http_rows},
             {"/api/prefixes", false, http_rows},
             {"/api/alarms", false, http_rows},
             {"/api/doctor", false, http_rows},
             {"/api/events", false, http_rows},
             {"/api/MODULE/LIST", false, http_rows}}; /* the last one: see path_find */

/* Takes as long whatever is wrong with it. */
static bool token_fits(struct MHD_Connection *connection) {
    static const char scheme[] = "Bearer ";
    const char *told =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    if (http_options.token[0] == '\0') return true;
    if (told == NULL || strncasecmp(told, scheme, sizeof(scheme) - 1) != 0) return false;
    const char *token = told + sizeof(scheme) - 1;
    size_t len = strlen(token);
    unsigned differs = len != strlen(http_options.token);
    for (size_t i = 0; http_options.token[i] != '\0'; i++)
        differs |= (unsigned)(http_options.token[i] ^ token[i < len ? i : 0]);
    return differs == 0;
}

static enum MHD_Result refuse_token(struct MHD_Connection *connection) {
    return http_refuse(connection, MHD_HTTP_UNAUTHORIZED,
                       "this path wants the token of token-file: Authorization: Bearer TOKEN\n", 0);
}

enum MHD_Result http_answer_missing(struct MHD_Connection *connection) {
    struct buf text = {NULL, 0, 0};
    buf_append_str(&text, "no such path here:");
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) buf_printf(&text, " %s", paths[i].path);
    buf_append(&text, "\n", 2);
    enum MHD_Result queued = http_refuse(connection, MHD_HTTP_NOT_FOUND, text.data, 0);
    buf_free(&text);
    return queued;
}

static const struct path *path_find(const char *url) {
    for (size_t i = 0; i < ARRAY_LEN(paths) - 1; i++)
        if (strcmp(url, paths[i].path) == 0) return &paths[i];
    bool of_module = strncmp(url, "/api/", 5) == 0 && strchr(url + 5, '/') != NULL;
    return of_module ? &paths[ARRAY_LEN(paths) - 1] : NULL;
}

static enum MHD_Result path_answer(struct MHD_Connection *connection, const struct path *p,
                                   const char *url, const char *method, void **own) {
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return refuse_method(connection, TARN_HTTP_GET);
    if (!p->open && !token_fits(connection)) return refuse_token(connection);
    return p->answer(connection, url, own);
}

static bool body_follows(struct MHD_Connection *connection) {
    const char *len =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return (len != NULL && strcmp(len, "0") != 0) ||
           MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
                                       MHD_HTTP_HEADER_TRANSFER_ENCODING) != NULL;
}

/* --- paths of other modules --- */

/* Where nobody is asked for a token, a page that somebody's browser has open must still not be able
 * to change anything: a browser says where such a request comes from. */
static bool is_of_a_page(struct MHD_Connection *connection) {
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ORIGIN) != NULL;
}

static enum MHD_Result route_go(struct MHD_Connection *connection, const struct http_route *r,
                                void **own) {
    bool reads = r->method == TARN_HTTP_GET || (r->path->flags & TARN_HTTP_READS) != 0;
    if (r->site->its->bind != NULL && r->site->its->open) {
        if (!reads && is_of_a_page(connection))
            return http_refuse(connection, MHD_HTTP_FORBIDDEN,
                               "pages of a browser may not change anything here\n", 0);
    } else if (!reads && http_options.token[0] == '\0') {
        return http_refuse(connection, MHD_HTTP_FORBIDDEN,
                           "this path changes something, and nobody may without a token: load "
                           "http.so with token-file FILE\n",
                           0);
    } else if ((!reads || !(r->path->flags & TARN_HTTP_OPEN)) && !token_fits(connection)) {
        return refuse_token(connection);
    }
    const char *len =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (len != NULL && strtoull(len, NULL, 10) > r->path->body_max)
        return http_refuse(connection, MHD_HTTP_CONTENT_TOO_LARGE, "the body is too long\n", 0);
    return http_exchange_begin(connection, own, r, !body_follows(connection));
}

/* --- requests --- */

static enum MHD_Result request_answer(struct MHD_Connection *connection, const char *url,
                                      const char *method, void **own) {
    const struct http_port *port = http_connection_port(http_connection_of(connection));
    if (port == NULL) return MHD_NO; /* it was closed */
    const struct path *p = port == http_server_port() ? path_find(url) : NULL;
    if (p != NULL) return path_answer(connection, p, url, method, own);
    struct http_route r;
    if (!http_route_find(&r, port, url, method))
        return port == http_server_port()
                   ? http_answer_missing(connection)
                   : http_refuse(connection, MHD_HTTP_NOT_FOUND, "no such path\n", 0);
    if (r.path == NULL) return refuse_method(connection, r.allowed);
    return route_go(connection, &r, own);
}

/* It is whole, and has no body. */
static enum MHD_Result begun_go_on(struct MHD_Connection *connection, void **own,
                                   const struct http_part *part) {
    *own = NULL;
    return request_answer(connection, part->url, part->method, own);
}

/* An answer to the head alone ends the connection, as it must when a body follows that nobody
 * wants. */
enum MHD_Result http_request_head(struct MHD_Connection *connection, const char *url,
                                  const char *method, void **own) {
    static struct http_task begun = {.go_on = begun_go_on};
    http_figures.requests++;
    if (body_follows(connection)) return request_answer(connection, url, method, own);
    *own = &begun;
    return MHD_YES;
}
