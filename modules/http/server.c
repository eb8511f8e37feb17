/* What is asked for: paths, methods, the token, and answers of one piece. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/assert.h"
#include "http/http.h"

/* --- answers --- */

enum MHD_Result http_answer(struct MHD_Connection *connection, unsigned status, const char *type,
                            const char *text, size_t len) {
    struct MHD_Response *r =
        MHD_create_response_from_buffer(len, (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
    if (r == NULL) return MHD_NO;
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    enum MHD_Result queued = MHD_queue_response(connection, status, r);
    MHD_destroy_response(r);
    return queued;
}

enum MHD_Result http_answer_owned(struct MHD_Connection *connection, const char *type,
                                  struct buf text) {
    struct MHD_Response *r =
        MHD_create_response_from_buffer(text.len, text.data, MHD_RESPMEM_MUST_FREE);
    if (r == NULL) {
        buf_free(&text);
        return MHD_NO;
    }
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    enum MHD_Result queued = MHD_queue_response(connection, MHD_HTTP_OK, r);
    MHD_destroy_response(r);
    return queued;
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

static enum MHD_Result answer_health(struct MHD_Connection *connection, void **own) {
    return answer_text(connection, MHD_HTTP_OK, "ok\n");
}

static enum MHD_Result answer_ready(struct MHD_Connection *connection, void **own) {
    char why[256], text[300];
    bool serves = http_services->state(why, sizeof(why)) == TARN_STATE_SERVING;
    snprintf(text, sizeof(text), "%s%s\n", serves ? "ready" : "not ready: ", why);
    return answer_text(connection, serves ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, text);
}

static enum MHD_Result answer_version(struct MHD_Connection *connection, void **own) {
    char text[128];
    int len = snprintf(text, sizeof(text), "{\"program\":\"tarn-server\",\"version\":\"%s\"}\n",
                       http_services->program_version);
    return http_answer(connection, MHD_HTTP_OK, "application/json", text, (size_t)len);
}

/* --- requests --- */

static const struct path {
    const char *path;
    bool open; /* needs no token: probes have none */
    enum MHD_Result (*answer)(struct MHD_Connection *connection, void **own);
} paths[] = {{"/", true, http_page},
             {"/health", true, answer_health},
             {"/ready", true, answer_ready},
             {"/version", false, answer_version},
             {"/metrics", false, http_metrics},
             {"/api/info", false, http_api_info},
             {"/api/history", false, http_history},
#define ROWS_PATH(name) {"/api/" #name, false, http_api_##name},
             HTTP_ROWS(ROWS_PATH)};

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

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned status,
                              const char *text) {
    http_figures.refused++;
    return answer_text(connection, status, text);
}

enum MHD_Result http_answer_missing(struct MHD_Connection *connection) {
    struct buf text = {NULL, 0, 0};
    buf_append_str(&text, "no such path here:");
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) buf_printf(&text, " %s", paths[i].path);
    buf_append(&text, "\n", 2);
    enum MHD_Result queued = refuse(connection, MHD_HTTP_NOT_FOUND, text.data);
    buf_free(&text);
    return queued;
}

static enum MHD_Result request_answer(struct MHD_Connection *connection, const char *url,
                                      const char *method, void **own) {
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n");
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        if (strcmp(url, paths[i].path) != 0) continue;
        if (!paths[i].open && !token_fits(connection))
            return refuse(connection, MHD_HTTP_UNAUTHORIZED,
                          "this path wants the token of token-file: Authorization: Bearer TOKEN\n");
        return paths[i].answer(connection, own);
    }
    return http_answer_missing(connection);
}

/* It is whole, and none of its body matters. */
static enum MHD_Result begun_go_on(struct MHD_Connection *connection, void **own,
                                   const struct http_part *part) {
    *own = NULL;
    return request_answer(connection, part->url, part->method, own);
}

static bool body_follows(struct MHD_Connection *connection) {
    const char *len =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return (len != NULL && strcmp(len, "0") != 0) ||
           MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
                                       MHD_HTTP_HEADER_TRANSFER_ENCODING) != NULL;
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
