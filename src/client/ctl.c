/* The control connection: a non-blocking socket, answers parsed by hiredis, every wait bounded by
 * a deadline. Sending never waits: what the socket does not take is sent while an answer is
 * awaited, so that two sides that both write much cannot block each other. */
#include <errno.h>
#include <hiredis/hiredis.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/fd_pass.h"
#include "client/client.h"
#include "client/ctl.h"
#include "transport/tcp/frame.h"

#define WORD_MAX           64u
#define WORD_WAIT_MS       1000u
#define NEAR_PAUSE_MAX_MS  64u
#define READ_BYTES         (64u << 10)
#define TLS_HINT           " (if that is a TLS port, the URL begins with tarns://)"
#define REQUEST_HEADER_MAX 26u /* "$" and digits and CRLF, and the CRLF behind the bytes */

void ctl_init(struct ctl *c) {
    *c = (struct ctl){.fd = -1, .what = "request", .answer_max = ANSWER_MAX};
}

void ctl_close(struct ctl *c) {
    if (c->fd >= 0) close(c->fd);
    tls_stream_destroy(&c->secure.tls);
    ring_close(&c->ring);
    if (c->reader != NULL) redisReaderFree(c->reader);
    buf_free(&c->out);
    const char *what = c->what;
    const struct spin spin = c->spin;
    ctl_init(c);
    c->what = what;
    c->spin = spin;
}

static int wait_ms_until(uint64_t deadline) {
    if (deadline == DEADLINE_NONE) return -1;
    uint64_t now = now_ms();
    if (now >= deadline) return 0;
    return (int)min_u64(deadline - now, 3600000);
}

static bool peer_is_loopback(int fd) {
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

static tarn_status socket_connect(const struct addrinfo *ai, uint64_t deadline, int *fd_p) {
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

/* --- TLS --- */

bool ctl_wants_to_send(const struct ctl *c) {
    return ctl_unsent(c) > c->patient || (c->secure.tls != NULL && tcp_secure_kept(&c->secure));
}

static tarn_status tls_shake_hands(struct ctl *c, uint64_t deadline) {
    struct tls_stream *tls = c->secure.tls;
    for (;;) {
        tls_handshake(tls);
        if (!tcp_secure_flush(&c->secure, c->fd) && errno != EAGAIN && errno != EWOULDBLOCK)
            tls_in_end(tls);
        if (tls_state(tls) != TLS_HANDSHAKE) break;
        struct pollfd p = {.fd = c->fd,
                           .events = (short)(POLLIN | (ctl_wants_to_send(c) ? POLLOUT : 0))};
        int n = poll(&p, 1, wait_ms_until(deadline));
        if (n < 0 && errno != EINTR) return TARN_EIO;
        if (n == 0 && now_ms() >= deadline) return TARN_ETIMEOUT;
        if (n > 0 && (p.revents & ~POLLOUT) != 0 &&
            tcp_secure_receive(&c->secure, c->fd, NULL, 0) < 0 && errno != EAGAIN &&
            errno != EWOULDBLOCK && errno != EINTR)
            tls_in_end(tls);
    }
    return tls_state(tls) == TLS_OPEN ? TARN_OK : TARN_EPERM;
}

static tarn_status tls_start(struct ctl *c, const struct secure *s, const char *host,
                             const char *port, uint64_t deadline) {
    struct tls_context *context = secure_take(&s->context);
    c->secure = (struct tcp_secure){.tls = tls_stream_create(context, host)};
    tls_context_put(&context);
    if (c->secure.tls == NULL)
        return fail(
            TARN_EINVAL,
            "TLS with %s:%s: that (or the tls_server_name) cannot be the name in a certificate",
            host, port);
    tarn_status status = tls_shake_hands(c, deadline);
    if (status == TARN_OK) return TARN_OK;
    if (status == TARN_EPERM && tls_is_plain(c->secure.tls))
        return fail(
            TARN_EPROTO,
            "%s:%s does not speak TLS: connect to the server's tls-port, or without TLS by tarn://",
            host, port);
    if (status == TARN_EPERM)
        return fail(status, "TLS with %s:%s: %s", host, port, tls_why(c->secure.tls));
    return fail(status, "TLS with %s:%s: the handshake was not over in time (is that a TLS port?)",
                host, port);
}

/* --- opening --- */

tarn_status ctl_open(struct ctl *c, const struct secure *s, const char *host, const char *port,
                     uint64_t deadline) {
    ctl_close(c);
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(host, port, &hints, &list);
    if (rc != 0) {
        return fail(TARN_EINVAL, "cannot resolve host \"%s\": %s (check the host in the URL)", host,
                    gai_strerror(rc));
    }
    tarn_status status = TARN_EIO;
    int fd = -1, err = 0;
    for (const struct addrinfo *ai = list; ai != NULL && fd < 0; ai = ai->ai_next) {
        status = socket_connect(ai, deadline, &fd);
        if (status != TARN_OK) err = errno;
    }
    freeaddrinfo(list);
    if (status != TARN_OK) {
        return fail(status, "cannot connect to %s:%s: %s (is tarn-server running there?)", host,
                    port, strerror(err));
    }
    c->fd = fd;
    status = s != NULL && s->on ? tls_start(c, s, host, port, deadline) : TARN_OK;
    if (status != TARN_OK) {
        ctl_close(c);
        return status;
    }
    snprintf(c->host, sizeof(c->host), "%s", host);
    snprintf(c->port, sizeof(c->port), "%s", port);
    c->loopback = peer_is_loopback(fd);
    c->reader = answer_reader_create();
    return TARN_OK;
}

static tarn_status ctl_lost(struct ctl *c, tarn_status status, const char *why) {
    ctl_close(c);
    return fail(status, "%s: the connection to the server %s", c->what, why);
}

/* A server that wants another certificate says so in the first thing that it sends behind the
 * handshake. */
static tarn_status lost_secure(struct ctl *c) {
    char why[TLS_WHY_MAX + 8] = "was closed by it";
    bool failed = tls_state(c->secure.tls) == TLS_FAILED, never = c->received == 0;
    if (failed) snprintf(why, sizeof(why), "failed: %s", tls_why(c->secure.tls));
    return ctl_lost(c, failed && never ? TARN_EPERM : TARN_ECLOSED, why);
}

/* --- through shared memory --- */

static tarn_status lost_ring(struct ctl *c) {
    return ctl_lost(c, TARN_EPROTO, "has nonsense in the memory that is shared with it");
}

static void ring_call(struct ctl *c, unsigned did) {
    if (ring_calls(&c->ring, did)) /* where this does not fit the server has calls unread */
        (void)send(c->fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ssize_t ring_send(struct ctl *c, const struct iovec *iov) {
    ssize_t n = ring_write(&c->ring, iov, 1);
    if (n > 0) ring_call(c, RING_WRITE);
    return n;
}

/* Reads calls. false: the socket has ended. */
static bool calls_take(struct ctl *c) {
    char calls[64];
    ssize_t came = recv(c->fd, calls, sizeof(calls), MSG_DONTWAIT);
    return came > 0 || (came < 0 && errno == EAGAIN);
}

/* As recv, too: 0 behind the last byte, when the socket has ended. */
static ssize_t ring_receive(struct ctl *c, const struct iovec *iov) {
    ssize_t n = ring_read(&c->ring, iov, 1);
    if (n < 0 && errno == EAGAIN) {
        bool ended = !calls_take(c);
        n = ring_read(&c->ring, iov, 1); /* it was written before the call, and before the end */
        if (n < 0 && errno == EAGAIN && ended) return 0;
    }
    if (n > 0) ring_call(c, RING_READ);
    return n;
}

static unsigned ring_wanted(const struct ctl *c) {
    return RING_READ | (ctl_wants_to_send(c) ? RING_WRITE : 0u);
}

bool ctl_sleep(struct ctl *c) {
    return c->ring.memory == NULL || ring_sleep(&c->ring, ring_wanted(c)) == 0;
}

bool ctl_woke(struct ctl *c, short revents) {
    if (c->ring.memory == NULL) return revents != 0;
    ring_wake(&c->ring);
    bool ended = revents != 0 && !calls_take(c);
    unsigned possible = ring_possible(&c->ring) & ring_wanted(c);
    if (possible & RING_WRITE && ctl_flush(c) != TARN_OK) return true;
    /* else it may have been called for what was read already */
    return ended || possible & RING_READ;
}

/* --- sending --- */

/* The whole requests are sent up to there. */
static void out_sent(struct ctl *c, size_t end) {
    c->from = end;
    if (end == c->out.len) c->from = c->whole = c->out.len = 0;
}

/* A failure of TLS is left for the reader to find: what the server said before it went is worth
 * more. */
tarn_status ctl_flush(struct ctl *c) {
    size_t at = c->from;
    c->patient = 0;
    if (c->secure.tls != NULL) (void)tcp_secure_flush(&c->secure, c->fd);
    while (at < c->whole) {
        struct iovec iov = {c->out.data + at, c->whole - at};
        ssize_t n =
            c->ring.memory != NULL ? ring_send(c, &iov) : tcp_send(&c->secure, c->fd, &iov, 1);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (n < 0 && c->ring.memory != NULL) return lost_ring(c);
        if (n < 0 && c->secure.tls == NULL) return ctl_lost(c, TARN_ECLOSED, strerror(errno));
        at = n < 0 ? c->whole : at + (size_t)n;
    }
    out_sent(c, at);
    return TARN_OK;
}

static char *put_header(char *at, char kind, size_t n) {
    *at++ = kind;
    if (n >= 10 && n < 100) { /* keys, mostly */
        *at++ = (char)('0' + n / 10);
        *at++ = (char)('0' + n % 10);
    } else {
        at += u64_to_dec(n, at);
    }
    *at++ = '\r';
    *at++ = '\n';
    return at;
}

static void trace_queue(struct ctl *c);
static void asking_queue(struct ctl *c);

void ctl_begin(struct ctl *c, const char *what) {
    if (UNLIKELY(c->trace_due)) trace_queue(c);
    if (UNLIKELY(c->asking)) asking_queue(c);
    c->out.len = c->whole;
    buf_consume(&c->out, c->from);
    c->whole -= c->from;
    c->from = 0;
    buf_reserve(&c->out, REQUEST_HEADER_MAX);
    c->out.len += REQUEST_HEADER_MAX;
    c->argc = 0;
    c->begun = what;
}

/* memcpy without a call for what keys and numbers mostly have. */
static inline void copy_short(char *to, const char *from, size_t len) {
    if (len > 64 || len < 4) {
        if (len > 0) memcpy(to, from, len);
    } else if (len >= 16) {
        if (len > 32) {
            memcpy(to + 16, from + 16, 16);
            memcpy(to + len - 32, from + len - 32, 16);
        }
        memcpy(to, from, 16);
        memcpy(to + len - 16, from + len - 16, 16);
    } else if (len >= 8) {
        memcpy(to, from, 8);
        memcpy(to + len - 8, from + len - 8, 8);
    } else {
        memcpy(to, from, 4);
        memcpy(to + len - 4, from + len - 4, 4);
    }
}

/* By hand: a batch has thousands of arguments, and hiredis prints each header by snprintf. */
void ctl_arg(struct ctl *c, const void *data, size_t len) {
    if (c->out.cap - c->out.len < REQUEST_HEADER_MAX + len)
        buf_reserve(&c->out, REQUEST_HEADER_MAX + len);
    char *at = put_header(c->out.data + c->out.len, '$', len);
    copy_short(at, data, len);
    at += len;
    *at++ = '\r';
    *at++ = '\n';
    c->out.len = (size_t)(at - c->out.data);
    c->argc++;
}

void ctl_arg_i64(struct ctl *c, int64_t v) {
    char digits[24];
    size_t n = i64_to_dec(v, digits);
    ctl_arg(c, digits, n);
}

/* The first line goes right before the arguments, or they move up to it when something waits before
 * them. */
static void head_put(struct ctl *c) {
    char head[REQUEST_HEADER_MAX], *at = c->out.data + c->whole;
    size_t n = (size_t)(put_header(head, '*', c->argc) - head), gap = REQUEST_HEADER_MAX - n;
    if (c->whole == c->from) {
        c->from += gap;
        memcpy(at + gap, head, n);
    } else {
        memcpy(at, head, n);
        memmove(at + n, at + REQUEST_HEADER_MAX, c->out.len - c->whole - REQUEST_HEADER_MAX);
        c->out.len -= gap;
    }
    c->whole = c->out.len;
}

/* As ctl_commit, but sends nothing yet. */
static tarn_status ctl_queue(struct ctl *c, bool skip) {
    if (c->fd < 0) return fail(TARN_ECLOSED, "not connected");
    if (skip && c->skip_count == CTL_SKIP_MAX)
        return TARN_EAGAIN; /* the ring is bounded: receive something first */
    if (!skip) c->what = c->begun;
    head_put(c);
    c->names[++c->sent % CTL_NAMES] = c->begun;
    if (skip) c->skip[(c->skip_head + c->skip_count++) % CTL_SKIP_MAX] = c->sent;
    return TARN_OK;
}

tarn_status ctl_commit(struct ctl *c, bool skip) {
    tarn_status status = ctl_queue(c, skip);
    return status == TARN_OK ? ctl_flush(c) : status;
}

tarn_status ctl_leave(struct ctl *c) {
    size_t before = ctl_unsent(c);
    tarn_status status = ctl_queue(c, true);
    if (status == TARN_OK) c->patient += ctl_unsent(c) - before;
    return status;
}

void ctl_words(struct ctl *c, const char *what, size_t argc, const char *const *argv,
               const size_t *lens) {
    ctl_begin(c, what);
    for (size_t i = 0; i < argc; i++) ctl_arg(c, argv[i], lens != NULL ? lens[i] : strlen(argv[i]));
}

tarn_status ctl_send(struct ctl *c, size_t argc, const char **argv, const size_t *lens, bool skip) {
    ctl_words(c, argv[0], argc, argv, lens);
    return ctl_commit(c, skip);
}

void ctl_tell_trace(struct ctl *c, const char *traceparent) {
    if (strcmp(c->trace.text, traceparent) == 0) return;
    snprintf(c->trace.text, sizeof(c->trace.text), "%s", traceparent);
    c->trace_due = true;
}

/* It goes out with the request behind it. */
static void trace_queue(struct ctl *c) {
    const char *argv[] = {"CLIENT", "SETINFO", "tarn-traceparent", c->trace.text};
    c->trace_due = false;
    ctl_words(c, argv[0], 4, argv, NULL);
    if (ctl_queue(c, true) != TARN_OK) c->trace_due = true;
}

/* Without room to skip its answer it is left out, and what follows is told MOVED. */
static void asking_queue(struct ctl *c) {
    const char *argv[] = {"ASKING"};
    c->asking = false;
    ctl_words(c, argv[0], 1, argv, NULL);
    (void)ctl_queue(c, true);
    c->asking = true;
}

tarn_status ctl_login(struct ctl *c, const tarn_options *o, bool skip) {
    const char *argv[3] = {"AUTH"};
    size_t n = 1;
    if (!logs_in(o)) return TARN_OK;
    if (o->user != NULL) argv[n++] = o->user;
    argv[n++] = password_of(o);
    return ctl_send(c, n, argv, NULL, skip);
}

const char *ctl_name_of(const struct ctl *c, uint64_t number) {
    bool known = number <= c->sent && c->sent - number < CTL_NAMES;
    const char *name = known ? c->names[number % CTL_NAMES] : NULL;
    return name != NULL ? name : c->what;
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

static tarn_status feed_bytes(struct ctl *c, const char *bytes, size_t n) {
    if (c->reader->len - c->reader->pos + n > c->answer_max)
        return ctl_lost(c, TARN_EPROTO, "brings an answer that does not end");
    if (redisReaderFeed(c->reader, bytes, n) != REDIS_OK)
        return ctl_lost(c, TARN_ENOMEM, "needs too much memory");
    return TARN_OK;
}

/* What came is the last; err 0, or what the socket said. */
static tarn_status ctl_ended(struct ctl *c, int err) {
    if (c->secure.tls != NULL) return lost_secure(c);
    if (err == EPROTO) return lost_ring(c);
    return ctl_lost(c, TARN_ECLOSED,
                    err != 0          ? strerror(err)
                    : c->received > 0 ? "was closed by it"
                                      : "was closed by it at once" TLS_HINT);
}

/* Feeds the reader with what the socket has; TARN_EAGAIN: nothing now. What TLS has of it is read
 * at once: the socket's being readable says nothing of that. */
static tarn_status ctl_feed(struct ctl *c) {
    char bytes[READ_BYTES];
    for (bool any = false;; any = true) {
        struct iovec iov = {bytes, sizeof(bytes)};
        ssize_t n;
        do {
            n = c->ring.memory != NULL ? ring_receive(c, &iov)
                                       : tcp_receive(&c->secure, c->fd, &iov, 1);
        } while (n < 0 && errno == EINTR);
        int err = n < 0 ? errno : 0;
        if (n <= 0 && any) return TARN_OK; /* for the next time */
        if (err == EAGAIN || err == EWOULDBLOCK) return TARN_EAGAIN;
        if (n <= 0) return ctl_ended(c, err);
        tarn_status status = feed_bytes(c, bytes, (size_t)n);
        if (status != TARN_OK || c->secure.tls == NULL || !tls_in_left(c->secure.tls))
            return status;
    }
}

/* As below. */
static tarn_status ring_wait_readable(struct ctl *c, uint64_t deadline) {
    for (bool looks = spin_begin(&c->spin);; looks = looks && spin_again(&c->spin)) {
        unsigned wanted = ring_wanted(c);
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        int n = 0;
        unsigned possible = looks ? ring_possible(&c->ring) & wanted : ring_sleep(&c->ring, wanted);
        if (possible == 0 && !looks) {
            n = poll(&p, 1, wait_ms_until(deadline));
            ring_wake(&c->ring);
            if (n < 0 && errno != EINTR) return ctl_lost(c, TARN_EIO, strerror(errno));
            possible = ring_possible(&c->ring) & wanted;
        }
        if (possible & RING_WRITE) {
            tarn_status status = ctl_flush(c);
            if (status != TARN_OK) return status;
        }
        bool ended = n > 0 && !calls_take(c); /* else it may have been called for nothing, */
        if (ended || possible & RING_READ) {
            spin_end(&c->spin);
            return TARN_OK;
        }
        if (possible == 0 && !looks && now_ms() >= deadline) /* again and again */
            return TARN_ETIMEOUT;
    }
}

/* Waits until the socket is readable, and sends meanwhile. */
static tarn_status socket_wait_readable(struct ctl *c, uint64_t deadline) {
    if (c->ring.memory != NULL) return ring_wait_readable(c, deadline);
    for (bool looks = spin_begin(&c->spin);; looks = looks && spin_again(&c->spin)) {
        if (c->secure.tls != NULL && tls_state(c->secure.tls) != TLS_OPEN)
            return TARN_OK; /* its end is there */
        struct pollfd p = {.fd = c->fd,
                           .events = (short)(POLLIN | (ctl_wants_to_send(c) ? POLLOUT : 0))};
        int n = poll(&p, 1, looks ? 0 : wait_ms_until(deadline));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return ctl_lost(c, TARN_EIO, strerror(errno));
        if (n == 0) {
            if (looks || now_ms() < deadline) continue;
            return TARN_ETIMEOUT;
        }
        if (p.revents & POLLOUT) {
            tarn_status status = ctl_flush(c);
            if (status != TARN_OK) return status;
        }
        if (p.revents & (POLLIN | POLLHUP | POLLERR)) {
            spin_end(&c->spin);
            return TARN_OK;
        }
    }
}

/* What tarn-server answers to plain text on its tls-port, before it closes the connection. */
static bool says_tls(const struct answer *a) {
    return a->type == ANSWER_ERROR && strstr(a->str, " speaks TLS") != NULL;
}

static bool says_data_port(const struct answer *a) {
    return a->type == ANSWER_ERROR && strstr(a->str, TCP_DATA_PORT) != NULL;
}

static tarn_status lost_to_data_port(struct ctl *c) {
    unsigned port = (unsigned)strtoul(c->port, NULL, 10);
    char host[sizeof(c->host)], own[sizeof(c->port)], hint[32] = "";
    snprintf(host, sizeof(host), "%s", c->host);
    snprintf(own, sizeof(own), "%s", c->port);
    if (port > 10000) snprintf(hint, sizeof(hint), " (by default %u)", port - 10000);
    ctl_close(c);
    return fail(TARN_EPROTO,
                "%s:%s is " TCP_DATA_PORT
                ", which carries bytes of values only: the URL names the port of "
                "tarn-server%s; a tarn-node has none",
                host, own, hint);
}

/* An answer that is whole and not to be skipped; TARN_EAGAIN: none. */
static tarn_status answer_parse(struct ctl *c, struct answer **answer_p) {
    for (;;) {
        void *got = NULL;
        if (answer_reader_next(&c->reader, &c->scan, &got) != REDIS_OK) {
            char why[256];
            snprintf(why, sizeof(why), "does not speak RESP: %s%s", c->reader->errstr,
                     c->secure.tls == NULL && c->received == 0 ? TLS_HINT : "");
            return ctl_lost(c, TARN_EPROTO, why);
        }
        if (got == NULL) return TARN_EAGAIN;
        if (c->received == 0 && c->secure.tls == NULL && says_tls(got))
            return ctl_lost(c, TARN_EPROTO,
                            "is one to a TLS port: the URL begins with tarns:// there");
        if (c->received == 0 && says_data_port(got)) return lost_to_data_port(c);
        if (is_skipped(c, ++c->received)) continue;
        *answer_p = got;
        return TARN_OK;
    }
}

tarn_status ctl_await(struct ctl *c, struct arena *arena, struct answer **answer_p,
                      uint64_t until) {
    if (c->fd < 0) return fail(TARN_ECLOSED, "%s: not connected", c->what);
    answer_reader_set_arena(c->reader, arena);
    for (;;) {
        tarn_status status = answer_parse(c, answer_p);
        if (status != TARN_EAGAIN) return status;
        status = socket_wait_readable(c, until);
        if (status == TARN_OK) status = ctl_feed(c);
        if (status != TARN_OK && status != TARN_EAGAIN) return status;
    }
}

tarn_status ctl_receive(struct ctl *c, struct arena *arena, struct answer **answer_p,
                        uint64_t deadline) {
    tarn_status status = ctl_await(c, arena, answer_p, deadline);
    if (status != TARN_ETIMEOUT) return status;
    return ctl_lost(c, TARN_ETIMEOUT,
                    "was given up: no answer in time (raise timeout_ms, or see the server's log)");
}

tarn_status ctl_try_receive(struct ctl *c, struct arena *arena, struct answer **answer_p) {
    if (c->fd < 0) return fail(TARN_ECLOSED, "%s: not connected", c->what);
    answer_reader_set_arena(c->reader, arena);
    tarn_status status = ctl_wants_to_send(c) ? ctl_flush(c) : TARN_OK;
    while (status == TARN_OK) {
        status = answer_parse(c, answer_p);
        if (status != TARN_EAGAIN) return status;
        status = ctl_feed(c);
    }
    return status;
}

/* --- greeting --- */

tarn_status ctl_tell_map(struct ctl *c, uint64_t epoch) {
    char text[24];
    text[u64_to_dec(epoch, text)] = '\0';
    const char *argv[] = {"CLIENT", "SETINFO", "tarn-map", text};
    return ctl_send(c, 4, argv, NULL, false);
}

static unsigned send_greeting(struct ctl *c, const tarn_options *o, const struct greeting *g) {
    unsigned sent = logs_in(o) && ctl_login(c, o, false) == TARN_OK;
    for (size_t i = 0; i < g->n_info; i++) {
        const char *argv[] = {"CLIENT", "SETINFO", g->info[i][0], g->info[i][1]};
        if (argv[3] != NULL) sent += ctl_send(c, 4, argv, NULL, false) == TARN_OK;
    }
    if (g->map_epoch > 0) sent += ctl_tell_map(c, g->map_epoch) == TARN_OK;
    const char *name[] = {"CLIENT", "SETNAME", g->name}, *role[] = {"ROLE"};
    if (g->name != NULL) sent += ctl_send(c, 3, name, NULL, false) == TARN_OK;
    if (g->role) sent += ctl_send(c, 1, role, NULL, false) == TARN_OK;
    const char *last[] = {g->last[0], g->last[1]};
    return sent + (ctl_send(c, last[1] != NULL ? 2 : 1, last, NULL, false) == TARN_OK);
}

/* Refusals of CLIENT do no harm; the last answers tell whether we may talk to it, and whether it is
 * who leads. */
static bool is_let_in(const struct answer *a, tarn_status status, bool last, bool any) {
    if (status == TARN_ELOADING || status == TARN_ELIMIT) return false;
    if (last && (any || strncmp(a->str, "NOAUTH", 6) == 0)) return false;
    return strncmp(a->str, "DENIED", 6) != 0;
}

tarn_status ctl_greet(struct ctl *c, struct arena *arena, const tarn_options *o,
                      const struct greeting *g, uint64_t deadline, struct answer **last_p) {
    unsigned sent = send_greeting(c, o, g);
    struct answer *a = NULL;
    for (unsigned i = 0; i < sent; i++) {
        bool last = i + 1 == sent;
        tarn_status status = ctl_receive(c, arena, &a, deadline);
        if (status == TARN_OK && g->role && i + 2 == sent)
            status = master_check_role(a, c->host, c->port);
        if (status != TARN_OK) return status;
        if (a->type != ANSWER_ERROR) continue;
        if (i == 0 && logs_in(o))
            return fail(TARN_EPERM,
                        "the %s refused user and password: %s (tarn://user:password@host:port)",
                        g->whom, a->str);
        status = answer_check(a, "connecting");
        if (!is_let_in(a, status, last, g->strict)) return status;
    }
    if (a == NULL) return fail(TARN_ECLOSED, "the %s closed the connection at once", g->whom);
    *last_p = a;
    return TARN_OK;
}

/* --- a unix socket in place of tcp --- */

/* "127.0.0.1:4711", "[::1]:4711" */
static bool address_text(const struct sockaddr_storage *a, socklen_t len, char *out, size_t size) {
    char host[INET6_ADDRSTRLEN], port[8];
    if (getnameinfo((const struct sockaddr *)a, len, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return false;
    snprintf(out, size, a->ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    return true;
}

/* Both ends. A server that sees other ones has a proxy before it. */
struct ends {
    char own[INET6_ADDRSTRLEN + 16], peer[INET6_ADDRSTRLEN + 16];
};

static bool ends_get(int fd, struct ends *e) {
    struct sockaddr_storage own, peer;
    socklen_t own_len = sizeof(own), peer_len = sizeof(peer);
    return getsockname(fd, (struct sockaddr *)&own, &own_len) == 0 &&
           getpeername(fd, (struct sockaddr *)&peer, &peer_len) == 0 &&
           address_text(&own, own_len, e->own, sizeof(e->own)) &&
           address_text(&peer, peer_len, e->peer, sizeof(e->peer));
}

/* A name of tarn's in the abstract namespace. 0: it is none. */
static socklen_t abstract_address(const struct answer *name, struct sockaddr_un *sun) {
    static const char ours[] = "tarn-";
    *sun = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (name == NULL || name->type != ANSWER_STRING || name->len >= sizeof(sun->sun_path) - 1 ||
        strncmp(name->str, ours, sizeof(ours) - 1) != 0)
        return 0;
    memcpy(sun->sun_path + 1, name->str, name->len);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name->len);
}

/* The word that it told by tcp: somebody else may have the first name by now. */
static bool says_word(int fd, const struct answer *word, uint64_t deadline, int *memory_p) {
    char line[WORD_MAX + 4], said[WORD_MAX + 4];
    if (word == NULL || word->type != ANSWER_STRING || word->len == 0 || word->len >= WORD_MAX)
        return false;
    size_t n_line = (size_t)snprintf(line, sizeof(line), "+%s\r\n", word->str);
    for (size_t got = 0; got < n_line;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ready = poll(&p, 1, wait_ms_until(deadline));
        if (ready < 0 && errno == EINTR) continue;
        ssize_t n = ready > 0 ? fd_pass_receive(fd, said + got, n_line - got, memory_p) : 0;
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n <= 0 || memcmp(said + got, line + got, (size_t)n) != 0) return false;
        got += (size_t)n;
    }
    return true;
}

static tarn_status near_ask(struct ctl *c, struct arena *arena, const struct ends *e,
                            uint64_t deadline, struct answer **answer_p) {
    const char *argv[] = {"CLIENT", "NEAR", e->own, e->peer};
    tarn_status status = ctl_send(c, 4, argv, NULL, false);
    return status == TARN_OK ? ctl_receive(c, arena, answer_p, deadline) : status;
}

/* offer: where to connect, what to be bound to before, the word. */
static tarn_status near_take(struct ctl *c, struct arena *arena, const struct answer *offer,
                             uint64_t deadline) {
    const struct ends nobody = {"", ""};
    struct sockaddr_un to, own;
    struct answer *a;
    socklen_t to_len = abstract_address(answer_at(offer, 0), &to),
              own_len = abstract_address(answer_at(offer, 1), &own);
    if (to_len == 0 || own_len == 0) return TARN_OK;
    int memory = -1, fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&own, own_len) == 0 &&
        connect(fd, (struct sockaddr *)&to, to_len) == 0 &&
        says_word(fd, answer_at(offer, 2), min_u64(deadline, add_sat(now_ms(), WORD_WAIT_MS)),
                  &memory)) {
        close(c->fd);
        c->fd = fd;
        if (memory >= 0) {
            (void)ring_open(&c->ring, memory); /* where it cannot, it stays with the socket */
            close(memory);
        }
        return TARN_OK;
    }
    if (memory >= 0) close(memory);
    /* what it was bound to is given back when the server heeds it no more */
    tarn_status status = near_ask(c, arena, &nobody, deadline, &a);
    if (fd >= 0) close(fd);
    return status;
}

tarn_status ctl_go_near(struct ctl *c, struct arena *arena, uint64_t deadline) {
    struct ends e;
    struct answer *a;
    if (!c->loopback || c->secure.tls != NULL || !ends_get(c->fd, &e)) return TARN_OK;
    tarn_status status = near_ask(c, arena, &e, deadline, &a);
    for (unsigned ms = 1; ms <= NEAR_PAUSE_MAX_MS && status == TARN_OK && a->type == ANSWER_ERROR &&
                          answer_error_status(a->str) == TARN_ELIMIT;
         ms *= 2) {
        poll(NULL, 0, (int)ms); /* others are on their way */
        status = near_ask(c, arena, &e, deadline, &a);
    }
    return status == TARN_OK ? near_take(c, arena, a, deadline) : status;
}
