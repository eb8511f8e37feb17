/* The control connection: a non-blocking socket, requests formatted and answers parsed by hiredis, every wait bounded by
 * a deadline. Sending never waits: what the socket does not take is sent while an answer is awaited, so that two sides
 * that both write much cannot block each other. */
#include <errno.h>
#include <hiredis/hiredis.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/internal.h"

#define READ_BYTES (64u << 10)

void ctl_init(struct ctl *c) {
    *c = (struct ctl){.fd = -1, .what = "request"};
}

void ctl_close(struct ctl *c) {
    if (c->fd >= 0) close(c->fd);
    if (c->reader != NULL) redisReaderFree(c->reader);
    buf_free(&c->out);
    const char *what = c->what;
    ctl_init(c);
    c->what = what;
}

static int wait_ms_until(uint64_t deadline) {
    if (deadline == DEADLINE_NONE) return -1;
    uint64_t now = now_ms();
    if (now >= deadline) return 0;
    return (int)min_u64(deadline - now, 3600000);
}

static bool is_loopback(int fd) {
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    if (getpeername(fd, (struct sockaddr *)&a, &len) != 0) return false;
    if (a.ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)&a;
        return (ntohl(in->sin_addr.s_addr) >> 24) == 127;
    }
    if (a.ss_family == AF_INET6) {
        const struct in6_addr *in6 = &((const struct sockaddr_in6 *)&a)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(in6) || (IN6_IS_ADDR_V4MAPPED(in6) && in6->s6_addr[12] == 127);
    }
    return false;
}

static tarn_status connect_one(const struct addrinfo *ai, uint64_t deadline, int *fd_p) {
    int fd = socket(ai->ai_family, ai->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, ai->ai_protocol);
    if (fd < 0) return TARN_EIO;
    int err = connect(fd, ai->ai_addr, ai->ai_addrlen) == 0 ? 0 : errno;
    if (err == EINPROGRESS) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        int n;
        do {
            n = poll(&p, 1, wait_ms_until(deadline));
        } while (n < 0 && errno == EINTR);
        socklen_t len = sizeof(err);
        if (n == 0) {
            err = ETIMEDOUT;
        } else if (n < 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0) {
            err = errno;
        }
    }
    if (err != 0) {
        close(fd);
        errno = err;
        return err == ETIMEDOUT ? TARN_ETIMEOUT : TARN_EIO;
    }
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    *fd_p = fd;
    return TARN_OK;
}

tarn_status ctl_open(struct ctl *c, const char *host, const char *port, uint64_t deadline) {
    ctl_close(c);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(host, port, &hints, &list);
    if (rc != 0) {
        return fail(TARN_EINVAL, "cannot resolve host \"%s\": %s (check the host in the URL)", host,
                    gai_strerror(rc));
    }
    tarn_status status = TARN_EIO;
    int fd = -1, err = 0;
    for (const struct addrinfo *ai = list; ai != NULL && fd < 0; ai = ai->ai_next) {
        status = connect_one(ai, deadline, &fd);
        if (status != TARN_OK) err = errno;
    }
    freeaddrinfo(list);
    if (status != TARN_OK) {
        return fail(status, "cannot connect to %s:%s: %s (is tarn-server running there?)", host, port,
                    strerror(err));
    }
    c->fd = fd;
    c->loopback = is_loopback(fd);
    c->reader = answer_reader_create();
    return TARN_OK;
}

static tarn_status lost(struct ctl *c, tarn_status status, const char *why) {
    ctl_close(c);
    return fail(status, "%s: the connection to the server %s", c->what, why);
}

/* Sends what the socket takes now. */
static tarn_status flush(struct ctl *c) {
    size_t done = 0;
    while (done < c->out.len) {
        ssize_t n = send(c->fd, c->out.data + done, c->out.len - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (n < 0) return lost(c, TARN_ECLOSED, strerror(errno));
        done += (size_t)n;
    }
    buf_consume(&c->out, done);
    return TARN_OK;
}

tarn_status ctl_send(struct ctl *c, size_t argc, const char **argv, const size_t *lens, bool skip) {
    if (c->fd < 0) return fail(TARN_ECLOSED, "not connected");
    if (skip && c->skip_count == CTL_SKIP_MAX)
        return TARN_EAGAIN; /* the ring is bounded: receive something first */
    if (!skip) c->what = argv[0];
    char *line = NULL;
    long long len = redisFormatCommandArgv(&line, (int)argc, argv, lens);
    if (len < 0) return fail(TARN_ENOMEM, "%s: no memory for the request", argv[0]);
    buf_append(&c->out, line, (size_t)len);
    redisFreeCommand(line);
    c->sent++;
    if (skip) c->skip[(c->skip_head + c->skip_count++) % CTL_SKIP_MAX] = c->sent;
    return flush(c);
}

void ctl_abandon(struct ctl *c) {
    c->skip_until = c->sent;
    c->skip_count = 0;
}

static bool is_skipped(struct ctl *c, uint64_t number) {
    if (c->skip_count > 0 && c->skip[c->skip_head] == number) {
        c->skip_head = (c->skip_head + 1) % CTL_SKIP_MAX;
        c->skip_count--;
        return true;
    }
    return number <= c->skip_until;
}

/* Waits until the socket is readable (and sends meanwhile), then feeds the reader. */
static tarn_status feed(struct ctl *c, uint64_t deadline) {
    for (;;) {
        struct pollfd p = {.fd = c->fd, .events = (short)(POLLIN | (c->out.len > 0 ? POLLOUT : 0))};
        int n = poll(&p, 1, wait_ms_until(deadline));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return lost(c, TARN_EIO, strerror(errno));
        if (n == 0) {
            if (now_ms() < deadline) continue;
            return lost(c, TARN_ETIMEOUT,
                        "was given up: no answer in time (raise timeout_ms, or see the server's log)");
        }
        if (p.revents & POLLOUT) {
            tarn_status status = flush(c);
            if (status != TARN_OK) return status;
        }
        if (p.revents & (POLLIN | POLLHUP | POLLERR)) break;
    }
    char bytes[READ_BYTES];
    ssize_t n = recv(c->fd, bytes, sizeof(bytes), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return TARN_OK;
    if (n < 0) return lost(c, TARN_ECLOSED, strerror(errno));
    if (n == 0) return lost(c, TARN_ECLOSED, "was closed by it");
    if (redisReaderFeed(c->reader, bytes, (size_t)n) != REDIS_OK)
        return lost(c, TARN_ENOMEM, "needs too much memory");
    return TARN_OK;
}

tarn_status ctl_receive(struct ctl *c, struct arena *arena, struct answer **answer_p, uint64_t deadline) {
    if (c->fd < 0) return fail(TARN_ECLOSED, "%s: not connected", c->what);
    answer_reader_set_arena(c->reader, arena);
    for (;;) {
        void *got = NULL;
        if (redisReaderGetReply(c->reader, &got) != REDIS_OK) {
            char why[160];
            snprintf(why, sizeof(why), "does not speak RESP: %s", c->reader->errstr);
            return lost(c, TARN_EPROTO, why);
        }
        if (got != NULL) {
            if (is_skipped(c, ++c->received)) continue;
            *answer_p = got;
            return TARN_OK;
        }
        tarn_status status = feed(c, deadline);
        if (status != TARN_OK) return status;
    }
}
