/* GNU libmicrohttpd without threads and without a listening socket of its own: its epoll descriptor
 * is watched in the loop, its time-outs are a timer there. Connections come from port.c. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "http/site.h"

enum { IDLE_S = 10, MEMORY = 32768, CONNECTIONS_MAX = 8192 /* ports have their own limits */ };

static struct MHD_Daemon *server;
static struct tarn_watch *server_watch;
static struct tarn_timer *server_timer;
static struct http_port *main_port;

/* --- turns --- */

static void server_turn(void) {
    MHD_UNSIGNED_LONG_LONG ms;
    (void)MHD_run(server);
    if (MHD_get_timeout(server, &ms) == MHD_YES)
        http_services->timer_start(server_timer, ms < 1000 ? ms : 1000);
}

static void on_server_timer(void *arg) {
    (void)arg;
    server_turn();
}

static void on_server_event(void *arg, unsigned events) {
    (void)arg, (void)events;
    server_turn();
}

void http_server_wake(void) {
    http_services->timer_start(server_timer, 0);
}

/* --- what libmicrohttpd calls --- */

static void on_server_log(void *arg, const char *format, va_list ap) {
    char text[512];
    (void)arg;
    vsnprintf(text, sizeof(text), format, ap);
    /* so it says with each answer over TLS, where its socket is none of TCP */
    if (strstr(text, "TCP_") != NULL || strstr(text, "push the data") != NULL) return;
    text[strcspn(text, "\n")] = '\0';
    log_debug("libmicrohttpd: %s", text);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *body,
                                  size_t *body_size, void **own) {
    (void)arg, (void)version;
    struct http_task *task = *own;
    if (task == NULL) return http_request_head(connection, url, method, own);
    return task->go_on(connection, own, &(struct http_part){url, method, body, body_size});
}

static void on_request_over(void *arg, struct MHD_Connection *connection, void **own,
                            enum MHD_RequestTerminationCode why) {
    (void)arg, (void)why;
    struct http_task *task = *own;
    if (task != NULL && task->over != NULL) task->over(task);
    *own = NULL;
    http_connection_rests(http_connection_of(connection));
}

static void on_connection(void *arg, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode what) {
    (void)arg;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        http_connection_over(*socket_context);
        *socket_context = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    *socket_context = http_connection_came(info->connect_fd);
}

struct http_connection *http_connection_of(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info != NULL ? info->socket_context : NULL;
}

/* --- coming and going --- */

bool http_server_take(int fd, const struct sockaddr *peer, socklen_t len) {
    return MHD_add_connection(server, fd, peer, len) == MHD_YES;
}

static tarn_status daemon_start(char *error, size_t cap) {
    server = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0,
        NULL, NULL, on_request, NULL, MHD_OPTION_EXTERNAL_LOGGER, on_server_log, NULL,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
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
    const struct http_port_plan plan = {.bind = http_options.bind,
                                        .n_bind = http_options.n_bind,
                                        .port = http_options.port,
                                        .connections = http_options.connections,
                                        .tls = http_options.tls};
    server_timer = http_services->timer_create(on_server_timer, NULL);
    http_exchanges_start();
    tarn_status status = http_ports_start();
    if (status != TARN_OK)
        snprintf(error, cap, "no epoll descriptor: %s", tarn_status_text(status));
    if (status == TARN_OK) status = daemon_start(error, cap);
    if (status == TARN_OK) status = http_port_open(&plan, &main_port, error, cap);
    if (status != TARN_OK) {
        http_server_stop();
        return status;
    }
    log_notice("HTTP: http%s://%s:%u/ and /metrics", plan.tls ? "s" : "", plan.bind[0],
               http_port_number(main_port));
    return TARN_OK;
}

void http_server_stop(void) {
    http_gather_stop();
    http_rows_stop();
    http_exchanges_stop();
    http_services->watch_destroy(&server_watch);
    if (server != NULL) MHD_stop_daemon(server);
    server = NULL;
    http_sites_stop();
    http_port_close(&main_port);
    http_ports_stop();
    http_services->timer_destroy(&server_timer);
}

const struct http_port *http_server_port(void) {
    return main_port;
}
