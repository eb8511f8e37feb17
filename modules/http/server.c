/* Connections and requests: GNU libmicrohttpd without threads and without a listening socket of its
 * own. Its epoll descriptor is watched in the loop, its time-outs are a timer there.
 *
 * Nobody holds a connection for long: it closes when nothing moves for IDLE_S, and is cut off when
 * a request, with its answer, is not through after `timeout` seconds, however many bytes
 * trickle. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/queue.h"
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "http/http.h"

enum { IDLE_S = 10, ACCEPTS = 16, MEMORY = 32768 };

struct connection {
    int fd;
    uint64_t since_ms; /* it came, or its last request was over */
    bool cut;
    LIST_ENTRY(connection) link;
};

static struct MHD_Daemon *server;
static struct tarn_watch *server_watch;
static struct tarn_timer *server_timer, *slow_timer;
static struct listening {
    int fd;
    struct tarn_watch *watch;
} listening[HTTP_BINDS_MAX];
static unsigned n_listening;
static uint16_t bound_port;
static LIST_HEAD(, connection) connections = LIST_HEAD_INITIALIZER(connections);
static unsigned n_connections;

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
             {"/api/history", false, http_history}};

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

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *body,
                                  size_t *body_size, void **own) {
    (void)arg, (void)version, (void)body;
    if (*own != NULL) return http_gathered(connection, *own); /* it was suspended */
    http_figures.requests++;
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n");
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        if (strcmp(url, paths[i].path) != 0) continue;
        if (!paths[i].open && !token_fits(connection))
            return refuse(connection, MHD_HTTP_UNAUTHORIZED,
                          "this path wants the token of token-file: Authorization: Bearer TOKEN\n");
        return paths[i].answer(connection, own);
    }
    return refuse(connection, MHD_HTTP_NOT_FOUND,
                  "no such path: / (a page), /metrics, /health, /ready, /version, /api/info, "
                  "/api/history\n");
}

static void on_request_over(void *arg, struct MHD_Connection *connection, void **own,
                            enum MHD_RequestTerminationCode why) {
    (void)arg, (void)why;
    if (*own != NULL) http_gathered_over(*own);
    *own = NULL;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct connection *k = info != NULL ? info->socket_context : NULL;
    if (k != NULL) k->since_ms = clock_mono_ms();
}

/* --- connections --- */

static void on_connection(void *arg, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode what) {
    (void)arg;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct connection *k = xcalloc(1, sizeof(*k));
        k->fd = info->connect_fd;
        k->since_ms = clock_mono_ms();
        LIST_INSERT_HEAD(&connections, k, link);
        n_connections++;
        *socket_context = k;
        return;
    }
    struct connection *k = *socket_context;
    if (k == NULL) return;
    LIST_REMOVE(k, link);
    n_connections--;
    free(k);
    *socket_context = NULL;
}

/* libmicrohttpd closes what it finds at its end. */
static void on_slow_timer(void *arg) {
    uint64_t now_ms = clock_mono_ms();
    struct connection *k;
    LIST_FOREACH(k, &connections, link) {
        if (k->cut || now_ms - k->since_ms < http_options.timeout_s * 1000ull) continue;
        k->cut = true;
        http_figures.slow++;
        shutdown(k->fd, SHUT_RDWR);
    }
    http_services->timer_start(slow_timer, 1000);
}

static void server_turn(void) {
    MHD_UNSIGNED_LONG_LONG ms;
    (void)MHD_run(server);
    if (MHD_get_timeout(server, &ms) == MHD_YES)
        http_services->timer_start(server_timer, ms < 1000 ? ms : 1000);
}

static void on_server_timer(void *arg) {
    server_turn();
}

static void on_server_event(void *arg, unsigned events) {
    server_turn();
}

void http_server_wake(void) {
    http_services->timer_start(server_timer, 0);
}

/* One that comes when there are enough is closed by libmicrohttpd. */
static void on_listening(void *arg, unsigned events) {
    const struct listening *l = arg;
    for (unsigned i = 0; i < ACCEPTS; i++) {
        struct sockaddr_storage peer;
        socklen_t len = sizeof(peer);
        int fd =
            accept4(l->fd, (struct sockaddr *)(void *)&peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) break;
        if (n_connections >= http_options.connections) {
            http_figures.refused++;
            close(fd);
        } else if (MHD_add_connection(server, fd, (struct sockaddr *)(void *)&peer, len) !=
                   MHD_YES) {
            http_figures.refused++;
        }
    }
    http_server_wake();
}

/* --- coming and going --- */

static void on_server_log(void *arg, const char *format, va_list ap) {
    char text[512];
    (void)arg;
    vsnprintf(text, sizeof(text), format, ap);
    text[strcspn(text, "\n")] = '\0';
    log_debug("libmicrohttpd: %s", text);
}

static uint16_t socket_port(int fd) {
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    if (getsockname(fd, (struct sockaddr *)(void *)&a, &len) != 0) return 0;
    const struct sockaddr_in *v4 = (const void *)&a;
    const struct sockaddr_in6 *v6 = (const void *)&a;
    return ntohs(a.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

static tarn_status listen_all(char *error, size_t cap) {
    for (unsigned i = 0; i < http_options.n_bind; i++) {
        const char *address = http_options.bind[i], *why = "";
        uint16_t port = bound_port != 0 ? bound_port : http_options.port;
        int fd;
        tarn_status status = http_services->listen(address, port, &fd, &why);
        if (status != TARN_OK) {
            snprintf(error, cap, "cannot listen on %s port %u: %s (bind, port)", address, port,
                     status == TARN_ENOTFOUND ? "this machine has no such address" : why);
            return status;
        }
        if (bound_port == 0) bound_port = socket_port(fd);
        struct listening *l = &listening[n_listening++];
        l->fd = fd;
        status = http_services->watch_create(fd, on_listening, l, &l->watch);
        if (status == TARN_OK) status = http_services->watch_set(l->watch, TARN_WATCH_READ);
        if (status != TARN_OK) {
            snprintf(error, cap, "cannot watch %s port %u: %s", address, port,
                     tarn_status_text(status));
            return status;
        }
    }
    return TARN_OK;
}

static tarn_status daemon_start(char *error, size_t cap) {
    server = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0,
        NULL, NULL, on_request, NULL, MHD_OPTION_EXTERNAL_LOGGER, on_server_log, NULL,
        MHD_OPTION_CONNECTION_LIMIT, http_options.connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)MEMORY, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S,
        MHD_OPTION_NOTIFY_COMPLETED, on_request_over, NULL, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, NULL, MHD_OPTION_END);
    const union MHD_DaemonInfo *info =
        server != NULL ? MHD_get_daemon_info(server, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    tarn_status status = TARN_EIO;
    if (info != NULL)
        status = http_services->watch_create(info->epoll_fd, on_server_event, NULL, &server_watch);
    if (status == TARN_OK) status = http_services->watch_set(server_watch, TARN_WATCH_READ);
    if (status != TARN_OK)
        snprintf(error, cap, "libmicrohttpd does not start: %s", strerror(errno));
    return status;
}

tarn_status http_server_start(char *error, size_t cap) {
    server_timer = http_services->timer_create(on_server_timer, NULL);
    slow_timer = http_services->timer_create(on_slow_timer, NULL);
    tarn_status status = daemon_start(error, cap);
    if (status == TARN_OK) status = listen_all(error, cap);
    if (status != TARN_OK) {
        http_server_stop();
        return status;
    }
    http_services->timer_start(slow_timer, 1000);
    log_notice("HTTP: http://%s:%u/ and /metrics", http_options.bind[0], bound_port);
    return TARN_OK;
}

void http_server_stop(void) {
    for (unsigned i = 0; i < n_listening; i++) {
        http_services->watch_destroy(&listening[i].watch);
        close(listening[i].fd);
    }
    n_listening = 0;
    bound_port = 0;
    http_gather_stop();
    http_services->watch_destroy(&server_watch);
    if (server != NULL) MHD_stop_daemon(server);
    server = NULL;
    http_services->timer_destroy(&server_timer);
    http_services->timer_destroy(&slow_timer);
}

uint16_t http_server_port(void) {
    return bound_port;
}

unsigned http_server_connections(void) {
    return n_connections;
}
