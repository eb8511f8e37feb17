/* Listening sockets and what is done to a new connection. */
#include "net/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"

#define ACCEPTS_PER_TURN 256
#define REST_MS          100
#define LOCAL_UNSENT     (128 * 1024) /* bytes of SO_SNDBUF, which the kernel takes twice */

static uint64_t accept_failures;

static tarn_status socket_fail(int fd, const char **why_p) {
    int saved = errno;
    *why_p = strerror(saved);
    if (fd >= 0) close(fd);
    return saved == EADDRNOTAVAIL || saved == EAFNOSUPPORT || saved == EPROTONOSUPPORT
               ? TARN_ENOTFOUND
               : TARN_EIO;
}

/* --- marks and sources --- */

static uint32_t mark;
static struct sockaddr_storage source; /* family 0: none */

void net_set_mark(uint32_t m) {
    mark = m;
}

bool net_set_source(const char *addr) {
    struct sockaddr_storage ss = {0};
    if (addr[0] == '\0')
        ss.ss_family = 0;
    else if (inet_pton(AF_INET, addr, &((struct sockaddr_in *)&ss)->sin_addr) == 1)
        ss.ss_family = AF_INET;
    else if (inet_pton(AF_INET6, addr, &((struct sockaddr_in6 *)&ss)->sin6_addr) == 1)
        ss.ss_family = AF_INET6;
    else
        return false;
    source = ss;
    return true;
}

static bool set_mark(int fd) {
    return mark == 0 || setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)) == 0;
}

bool net_prepare(int fd, int family) {
    if (!set_mark(fd)) return false;
    if (source.ss_family == 0) return true;
    if (source.ss_family != family) {
        errno = EAFNOSUPPORT;
        return false;
    }
    return bind(fd, (struct sockaddr *)&source,
                family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)) == 0;
}

/* --- listening --- */

tarn_status net_listen_tcp(const char *addr, uint16_t port, int backlog, int *fd_p,
                           const char **why_p) {
    char service[8];
    snprintf(service, sizeof(service), "%u", port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    if (strcmp(addr, "*") == 0) {
        hints.ai_family = AF_INET;
        addr = NULL;
    } else if (strcmp(addr, "::*") == 0 || strcmp(addr, "::") == 0) {
        hints.ai_family = AF_INET6;
        addr = "::";
    }
    int rc = getaddrinfo(addr, service, &hints, &found);
    if (rc != 0) {
        *why_p = gai_strerror(rc);
        return rc == EAI_FAMILY || rc == EAI_ADDRFAMILY ? TARN_ENOTFOUND : TARN_EIO;
    }
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int one = 1;
    if (fd < 0 || !set_mark(fd) ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        (found->ai_family == AF_INET6 &&
         setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one)) != 0) ||
        bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, backlog) != 0) {
        tarn_status status = socket_fail(fd, why_p);
        freeaddrinfo(found);
        return status;
    }
    freeaddrinfo(found);
    *fd_p = fd;
    return TARN_OK;
}

tarn_status net_listen_unix(const char *path, unsigned mode, int backlog, int *fd_p,
                            const char **why_p) {
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(sun.sun_path)) {
        *why_p = "the path of a unix socket may have 107 bytes";
        return TARN_EIO;
    }
    memcpy(sun.sun_path, path, strlen(path) + 1);
    struct stat st;
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode)) unlink(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    mode_t old = umask(0177); /* nobody else between bind and chmod */
    int rc = fd < 0 ? -1 : bind(fd, (struct sockaddr *)&sun, sizeof(sun));
    umask(old);
    if (rc != 0 || chmod(path, mode) != 0 || listen(fd, backlog) != 0)
        return socket_fail(fd, why_p);
    *fd_p = fd;
    return TARN_OK;
}

tarn_status net_listen_abstract(const char *name, int *fd_p, const char **why_p) {
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    size_t n = strlen(name);
    TARN_ASSERT(n < NET_ABSTRACT_MAX);
    memcpy(sun.sun_path + 1, name, n);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 ||
        bind(fd, (struct sockaddr *)&sun,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)) != 0 ||
        listen(fd, 1) != 0)
        return socket_fail(fd, why_p);
    *fd_p = fd;
    return TARN_OK;
}

bool net_peer_is_abstract(int fd, const char *name) {
    struct sockaddr_un sun;
    socklen_t len = sizeof(sun);
    size_t n = strlen(name);
    return getpeername(fd, (struct sockaddr *)&sun, &len) == 0 && sun.sun_family == AF_UNIX &&
           len == offsetof(struct sockaddr_un, sun_path) + 1 + n && sun.sun_path[0] == '\0' &&
           memcmp(sun.sun_path + 1, name, n) == 0;
}

uint16_t net_port(int fd) {
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);
    if (getsockname(fd, (struct sockaddr *)&ss, &len) != 0) return 0;
    if (ss.ss_family == AF_INET) return ntohs(((struct sockaddr_in *)&ss)->sin_port);
    if (ss.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)&ss)->sin6_port);
    return 0;
}

/* --- accepting --- */

struct net_listener {
    struct net_watch watch;
    struct net_timer rest;
    net_accept_fn fn;
    void *arg;
    uint64_t trouble_ms;
};

static void on_rested(void *arg) {
    struct net_listener *l = arg;
    net_watch_set(&l->watch, NET_READ);
}

/* Without a descriptor to accept with, the waiting connection would wake the loop again and
 * again. */
static void listener_rest(struct net_listener *l, int error) {
    accept_failures++;
    if (log_is_news(&l->trouble_ms, clock_mono_ms()))
        log_warning(
            "Accepting client connection: %s. New connections wait until there is room again.",
            strerror(error));
    net_watch_set(&l->watch, 0);
    net_timer_start(&l->rest, REST_MS);
}

static void on_acceptable(void *arg, unsigned events) {
    struct net_listener *l = arg;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        struct sockaddr_storage peer;
        socklen_t len = sizeof(peer);
        memset(&peer, 0, sizeof(sa_family_t));
        int fd = accept4(l->watch.fd, (struct sockaddr *)&peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            l->fn(l->arg, fd, &peer);
            continue;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) return;
        if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
        listener_rest(l, errno);
        return;
    }
}

struct net_listener *net_listener_open(struct net_loop *loop, int fd, net_accept_fn fn, void *arg) {
    struct net_listener *l = xcalloc(1, sizeof(*l));
    l->fn = fn;
    l->arg = arg;
    net_watch_init(&l->watch, loop, fd, on_acceptable, l);
    net_timer_init(&l->rest, loop, on_rested, l);
    net_watch_set(&l->watch, NET_READ);
    return l;
}

void net_listener_drain(struct net_listener *l) {
    for (int i = 0; i < 16; i++)
        on_acceptable(l, NET_READ); /* a backlog may be longer than what one turn takes */
}

void net_listener_close(struct net_listener **listener_p) {
    struct net_listener *l = *listener_p;
    if (l == NULL) return;
    net_timer_stop(&l->rest);
    net_watch_set(&l->watch, 0);
    close(l->watch.fd);
    free(l);
    *listener_p = NULL;
}

uint64_t net_accept_failures(void) {
    return accept_failures;
}

/* --- connections --- */

void net_tune(int fd, int keepalive_s) {
    int one = 1, probes = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (keepalive_s <= 0) return;
    int interval = keepalive_s / 3 > 0 ? keepalive_s / 3 : 1;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &keepalive_s, sizeof(keepalive_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

/* The other end is on this machine. */
static bool peer_is_local(int fd, const struct sockaddr_storage *peer) {
    struct sockaddr_storage own;
    socklen_t len = sizeof(own);
    if (net_is_loopback(peer)) return true;
    if (getsockname(fd, (struct sockaddr *)&own, &len) != 0 || own.ss_family != peer->ss_family)
        return false;
    if (peer->ss_family == AF_INET)
        return ((const struct sockaddr_in *)peer)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)&own)->sin_addr.s_addr;
    return memcmp(&((const struct sockaddr_in6 *)peer)->sin6_addr,
                  &((const struct sockaddr_in6 *)&own)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

void net_tune_local(int fd, const struct sockaddr_storage *peer) {
    int unsent = LOCAL_UNSENT;
    if (peer_is_local(fd, peer)) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &unsent, sizeof(unsent));
}

void net_delay(int fd) {
    int zero = 0;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &zero, sizeof(zero));
}

void net_format(const struct sockaddr_storage *addr, const char *unix_path, char *out,
                size_t size) {
    char ip[INET6_ADDRSTRLEN] = "?";
    if (addr->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)addr;
        inet_ntop(AF_INET, &in->sin_addr, ip, sizeof(ip));
        snprintf(out, size, "%s:%u", ip, ntohs(in->sin_port));
    } else if (addr->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)addr;
        inet_ntop(AF_INET6, &in6->sin6_addr, ip, sizeof(ip));
        snprintf(out, size, "[%s]:%u", ip, ntohs(in6->sin6_port));
    } else {
        snprintf(out, size, "%s:0", unix_path);
    }
}

bool net_is_loopback(const struct sockaddr_storage *addr) {
    if (addr->ss_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)addr)->sin_addr.s_addr) >> 24) == 127;
    if (addr->ss_family == AF_INET6) {
        const struct in6_addr *a = &((const struct sockaddr_in6 *)addr)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
    }
    return true;
}
