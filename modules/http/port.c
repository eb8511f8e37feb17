/* Listening ports: who comes, how many of them, and for how long.
 *
 * Nobody holds a connection for long: libmicrohttpd closes it when nothing moves for some seconds,
 * and it is cut off when a request, with its answer, is not through after `timeout` seconds,
 * however many bytes trickle. Both count from accept, so that a TLS handshake is part of it. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/queue.h"
#include "http/http.h"

enum { ACCEPTS = 16, GONE = 16 /* in a turn */, LOOK_MS = 1000 };

struct http_connection {
    int fd;
    struct http_port *port; /* NULL: it was closed */
    uint64_t since_ms;      /* it came, or its last request was over */
    bool cut;
    void (*gone)(void *arg); /* it waits for a module, which is no fault of the peer; else NULL */
    void *gone_arg;
    LIST_ENTRY(http_connection) link;
};

struct http_port {
    struct listening {
        int fd;
        struct tarn_watch *watch;
        struct http_port *port;
        bool rests; /* until the next look */
    } listening[HTTP_BINDS_MAX];
    unsigned n_listening, connections, connections_max;
    uint16_t number;
    struct tarn_tls *tls; /* NULL: it speaks plain HTTP */
    LIST_ENTRY(http_port) link;
};

static LIST_HEAD(, http_connection) connections = LIST_HEAD_INITIALIZER(connections);
static LIST_HEAD(, http_port) ports = LIST_HEAD_INITIALIZER(ports);
static struct http_connection *coming; /* libmicrohttpd is being given it; it is not its own yet */
static struct tarn_timer *slow_timer;
/* Those that wait: libmicrohttpd does not look at them, and what they have sent meanwhile is left
 * unread, so that only EPOLLRDHUP tells of a peer that has gone. */
static int waiting_fd = -1;
static struct tarn_watch *waiting_watch;

/* --- connections --- */

static struct http_connection *connection_create(struct http_port *port, int fd) {
    struct http_connection *k = xcalloc(1, sizeof(*k));
    k->fd = fd;
    k->port = port;
    k->since_ms = clock_mono_ms();
    port->connections++;
    LIST_INSERT_HEAD(&connections, k, link);
    return k;
}

struct http_connection *http_connection_came(int fd) {
    struct http_connection *k = coming;
    if (k == NULL || k->fd != fd) return NULL;
    coming = NULL;
    return k;
}

void http_connection_over(struct http_connection *k) {
    if (k == NULL) return;
    http_connection_waits(k, NULL, NULL);
    if (k->port != NULL) k->port->connections--;
    LIST_REMOVE(k, link);
    free(k);
}

/* libmicrohttpd closes what it finds at its end. */
static void connection_cut(struct http_connection *k) {
    k->cut = true;
    shutdown(k->fd, SHUT_RDWR);
}

void http_connection_waits(struct http_connection *k, void (*gone)(void *arg), void *arg) {
    if (k == NULL || (gone == NULL && k->gone == NULL)) return;
    struct epoll_event e = {.events = EPOLLRDHUP, .data.ptr = k};
    k->gone = gone;
    k->gone_arg = arg;
    k->since_ms = clock_mono_ms();
    /* Without room for it there, its place is free at the deadline. */
    (void)epoll_ctl(waiting_fd, gone != NULL ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, k->fd, &e);
}

static void on_waiting(void *arg, unsigned events) {
    struct epoll_event e[GONE];
    (void)arg, (void)events;
    int n = epoll_wait(waiting_fd, e, GONE, 0);
    for (int i = 0; i < n; i++) {
        struct http_connection *k = e[i].data.ptr;
        connection_cut(k);
        k->gone(k->gone_arg); /* which ends the waiting */
    }
}

const struct http_port *http_connection_port(const struct http_connection *k) {
    return k != NULL ? k->port : NULL;
}

void http_connection_rests(struct http_connection *k) {
    if (k != NULL) k->since_ms = clock_mono_ms();
}

static void port_wake(struct http_port *port) {
    for (unsigned i = 0; i < port->n_listening; i++) {
        struct listening *l = &port->listening[i];
        if (l->rests && http_services->watch_set(l->watch, TARN_WATCH_READ) == TARN_OK)
            l->rests = false;
    }
}

static void on_slow_timer(void *arg) {
    uint64_t now_ms = clock_mono_ms();
    struct http_connection *k;
    (void)arg;
    LIST_FOREACH(k, &connections, link) {
        if (k->cut || k->gone != NULL || now_ms - k->since_ms < http_options.timeout_s * 1000ull)
            continue;
        http_figures.slow++;
        connection_cut(k);
    }
    struct http_port *port;
    LIST_FOREACH(port, &ports, link) port_wake(port);
    http_services->timer_start(slow_timer, LOOK_MS);
}

/* --- who comes --- */

static void port_take(struct http_port *port, int fd, const struct sockaddr *peer, socklen_t len) {
    if (port->connections >= port->connections_max) {
        http_figures.refused++;
        close(fd);
        return;
    }
    if (port->tls != NULL) {
        int wire = fd;
        if (http_services->tls_accept(port->tls, wire, &fd) != TARN_OK) {
            http_figures.refused++;
            return;
        }
    }
    coming = connection_create(port, fd);
    /* Refused, libmicrohttpd has closed it. Once it was its own, it is freed with that. */
    if (!http_server_take(fd, peer, len)) http_figures.refused++;
    http_connection_over(coming);
    coming = NULL;
}

/* Descriptors have run out. It would be readable in each turn from now on. */
static void listening_rest(struct listening *l) {
    http_figures.refused++;
    l->rests = true;
    (void)http_services->watch_set(l->watch, 0);
}

static void on_listening(void *arg, unsigned events) {
    struct listening *l = arg;
    (void)events;
    for (unsigned i = 0; i < ACCEPTS; i++) {
        struct sockaddr_storage peer;
        socklen_t len = sizeof(peer);
        struct sockaddr *to = (struct sockaddr *)(void *)&peer;
        int fd = accept4(l->fd, to, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
            listening_rest(l);
        if (fd < 0) break;
        port_take(l->port, fd, to, len);
    }
    http_server_wake();
}

/* --- ports --- */

static uint16_t socket_port(int fd) {
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    if (getsockname(fd, (struct sockaddr *)(void *)&a, &len) != 0) return 0;
    const struct sockaddr_in *v4 = (const void *)&a;
    const struct sockaddr_in6 *v6 = (const void *)&a;
    return ntohs(a.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

static tarn_status port_listen(struct http_port *port, const char *address, uint16_t number,
                               char *error, size_t cap) {
    const char *why = "";
    int fd;
    tarn_status status = http_services->listen(address, number, &fd, &why);
    if (status != TARN_OK) {
        snprintf(error, cap, "cannot listen on %s port %u: %s", address, number,
                 status == TARN_ENOTFOUND ? "this machine has no such address" : why);
        return status;
    }
    if (port->number == 0) port->number = socket_port(fd);
    struct listening *l = &port->listening[port->n_listening++];
    l->fd = fd;
    l->port = port;
    status = http_services->watch_create(fd, on_listening, l, &l->watch);
    if (status == TARN_OK) status = http_services->watch_set(l->watch, TARN_WATCH_READ);
    if (status != TARN_OK)
        snprintf(error, cap, "cannot watch %s port %u: %s", address, number,
                 tarn_status_text(status));
    return status;
}

static tarn_status port_begin_tls(struct http_port *port, char *error, size_t cap) {
    static const char plain_answer[] =
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
        "this port speaks TLS: https://\n";
    const struct tarn_tls_options options = {.size = sizeof(options),
                                             .connections_max = port->connections_max,
                                             .plain_answer = plain_answer};
    const char *why;
    if (!TARN_HAS(http_services, tls_close) || http_services->tls_open == NULL) {
        snprintf(error, cap, "tls yes: this program has no certificate to show over HTTP");
        return TARN_ENOTSUP;
    }
    tarn_status status = http_services->tls_open(&options, &port->tls, &why);
    if (status != TARN_OK) snprintf(error, cap, "tls yes: %s (tls-cert-file, tls-key-file)", why);
    return status;
}

tarn_status http_port_open(const struct http_port_plan *plan, struct http_port **port_p,
                           char *error, size_t cap) {
    struct http_port *port = xcalloc(1, sizeof(*port));
    port->connections_max = plan->connections;
    LIST_INSERT_HEAD(&ports, port, link);
    tarn_status status = plan->tls ? port_begin_tls(port, error, cap) : TARN_OK;
    for (unsigned i = 0; status == TARN_OK && i < plan->n_bind; i++)
        status = port_listen(port, plan->bind[i], port->number != 0 ? port->number : plan->port,
                             error, cap);
    if (status == TARN_OK)
        *port_p = port;
    else
        http_port_close(&port);
    return status;
}

void http_port_close(struct http_port **port_p) {
    struct http_port *port = *port_p;
    struct http_connection *k;
    *port_p = NULL;
    if (port == NULL) return;
    for (unsigned i = 0; i < port->n_listening; i++) {
        http_services->watch_destroy(&port->listening[i].watch);
        close(port->listening[i].fd);
    }
    LIST_FOREACH(k, &connections, link) {
        if (k->port != port) continue;
        k->port = NULL;
        connection_cut(k);
    }
    if (port->tls != NULL) http_services->tls_close(&port->tls);
    LIST_REMOVE(port, link);
    free(port);
}

uint16_t http_port_number(const struct http_port *port) {
    return port->number;
}

unsigned http_port_connections(const struct http_port *port, struct tarn_tls_figures *tls_p) {
    *tls_p = (struct tarn_tls_figures){.size = sizeof(*tls_p)};
    if (port->tls != NULL) http_services->tls_figures(port->tls, tls_p);
    return port->connections > tls_p->open ? port->connections : tls_p->open;
}

tarn_status http_ports_start(void) {
    slow_timer = http_services->timer_create(on_slow_timer, NULL);
    http_services->timer_start(slow_timer, LOOK_MS);
    waiting_fd = epoll_create1(EPOLL_CLOEXEC);
    tarn_status status =
        waiting_fd >= 0 ? http_services->watch_create(waiting_fd, on_waiting, NULL, &waiting_watch)
                        : TARN_EIO;
    return status == TARN_OK ? http_services->watch_set(waiting_watch, TARN_WATCH_READ) : status;
}

void http_ports_stop(void) {
    http_services->timer_destroy(&slow_timer);
    http_services->watch_destroy(&waiting_watch);
    if (waiting_fd >= 0) close(waiting_fd);
    waiting_fd = -1;
}
