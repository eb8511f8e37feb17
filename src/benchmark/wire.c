/* A blocking RESP connection that costs this side little: requests are built by the caller in one
 * buffer, replies are skipped line by line. Any failure ends the program: a load generator has
 * nobody to hand it to. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "benchmark/bench.h"
#include "client/client.h"
#include "transport/tcp/secure.h"

#define IN_BYTES (256u << 10)
#define NEAR_MS  60000u

struct wire *wire_open(const struct bench *b) {
    struct wire *w = xcalloc(1, sizeof(*w));
    struct arena arena = {0};
    struct ctl c;
    w->numbers = bench_connect(b, &c, &arena);
    /* as lanes of libtarn; simulated nodes do not, as nodes do not */
    if (w->numbers.near && ctl_go_near(&c, &arena, now_ms() + NEAR_MS) != TARN_OK)
        die("%s", tarn_last_error());
    w->fd = c.fd;
    w->secure = c.secure;
    w->ring = c.ring;
    c.fd = -1;
    c.ring.memory = NULL;
    c.secure.tls = NULL;
    ctl_close(&c);
    arena_free(&arena);
    fcntl(w->fd, F_SETFL, fcntl(w->fd, F_GETFL) & ~O_NONBLOCK);
    w->cap = IN_BYTES;
    w->in = xmalloc(w->cap);
    return w;
}

void wire_close(struct wire **wire_p) {
    struct wire *w = *wire_p;
    *wire_p = NULL;
    tls_stream_destroy(&w->secure.tls);
    ring_close(&w->ring);
    close(w->fd);
    buf_free(&w->out);
    free(w->in);
    free(w);
}

/* --- bytes --- */

/* Waits until something of events is possible, or the server has called. */
static void ring_wait(struct wire *w, unsigned events) {
    struct pollfd p = {.fd = w->fd, .events = POLLIN};
    char calls[64];
    if (ring_sleep(&w->ring, events) != 0) return;
    (void)poll(&p, 1, -1);
    ring_wake(&w->ring);
    if (p.revents == 0 || recv(w->fd, calls, sizeof(calls), MSG_DONTWAIT) != 0) return;
    if (!(ring_possible(&w->ring) & RING_READ))
        die("the server closed the connection%s%s", w->error[0] ? ": " : "", w->error);
}

static void ring_did(struct wire *w, ssize_t n, unsigned did) {
    if (n < 0 && errno == EAGAIN)
        ring_wait(w, did);
    else if (n < 0)
        die("the memory that is shared with the server has nonsense in it");
    else if (ring_calls(&w->ring, did))
        (void)send(w->fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool wire_sleep(struct wire *w) {
    return w->ring.memory != NULL && ring_sleep(&w->ring, RING_READ) != 0;
}

bool wire_woke(struct wire *w, bool called) {
    char calls[64];
    if (w->ring.memory == NULL) return called;
    ring_wake(&w->ring);
    ssize_t came = called ? recv(w->fd, calls, sizeof(calls), MSG_DONTWAIT) : 1;
    /* its end is found by who reads */
    return came == 0 || (came < 0 && errno != EAGAIN) || ring_possible(&w->ring) & RING_READ;
}

/* Did a call fail that is to be tried again? Waits until it may be, or dies. */
static bool wire_again(const struct wire *w, ssize_t n, short events) {
    if (n >= 0) return false;
    struct pollfd p = {.fd = w->fd, .events = events};
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        (void)poll(&p, 1, -1);
    else if (errno == EPROTO)
        die("TLS with the server: %s", tls_why(w->secure.tls));
    else if (errno != EINTR)
        die("the connection to the server: %s", strerror(errno));
    return true;
}

void wire_send(struct wire *w, const void *data, size_t len) {
    bool plain = w->secure.tls == NULL;
    for (const char *at = data; len > 0;) {
        const struct iovec iov = {(void *)(uintptr_t)at, len};
        if (w->ring.memory != NULL) {
            ssize_t n = ring_write(&w->ring, &iov, 1);
            ring_did(w, n, RING_WRITE);
            at += n > 0 ? n : 0;
            len -= n > 0 ? (size_t)n : 0;
            continue;
        }
        ssize_t n = plain ? send(w->fd, at, len, MSG_NOSIGNAL)
                          : tcp_secure_send(&w->secure, w->fd, &iov, 1);
        if (wire_again(w, n, POLLOUT)) continue;
        at += n;
        len -= (size_t)n;
    }
    while (!plain && wire_again(w, tcp_secure_flush(&w->secure, w->fd) ? 0 : -1, POLLOUT)) {
    }
}

static size_t wire_receive(struct wire *w, void *to, size_t len) {
    const struct iovec iov = {to, len};
    ssize_t n;
    while (w->ring.memory != NULL) {
        n = ring_read(&w->ring, &iov, 1);
        ring_did(w, n, RING_READ);
        if (n > 0) return (size_t)n;
    }
    do {
        n = w->secure.tls == NULL ? recv(w->fd, to, len, 0)
                                  : tcp_secure_receive(&w->secure, w->fd, &iov, 1);
    } while (wire_again(w, n, POLLIN));
    if (n == 0) die("the server closed the connection%s%s", w->error[0] ? ": " : "", w->error);
    return (size_t)n;
}

void wire_flush(struct wire *w) {
    wire_send(w, w->out.data, w->out.len);
    buf_clear(&w->out);
}

static void wire_fill(struct wire *w) {
    if (w->start == w->end) w->start = w->end = 0;
    if (w->end == w->cap) {
        if (w->start == 0) {
            w->cap *= 2;
            w->in = xrealloc(w->in, w->cap);
        } else {
            memmove(w->in, w->in + w->start, w->end - w->start);
            w->end -= w->start;
            w->start = 0;
        }
    }
    w->end += wire_receive(w, w->in + w->end, w->cap - w->end);
}

bool wire_buffered(struct wire *w) {
    if (w->start == w->end && w->secure.tls != NULL) { /* records that have come, perhaps */
        const struct iovec iov = {w->in, w->cap};
        ssize_t n = tcp_secure_receive(&w->secure, w->fd, &iov, 1);
        w->start = 0;
        w->end = n > 0 ? (size_t)n : 0;
    }
    return w->start < w->end;
}

const char *wire_line(struct wire *w, size_t *len_p) {
    size_t seen = 0;
    for (;;) {
        const char *from = w->in + w->start + seen;
        const char *lf = memchr(from, '\n', w->end - w->start - seen);
        if (lf != NULL) {
            const char *line = w->in + w->start;
            *len_p = (size_t)(lf - line) - 1;
            w->start += (size_t)(lf - line) + 1;
            return line;
        }
        seen = w->end - w->start;
        wire_fill(w);
    }
}

bool wire_take(struct wire *w, struct span text) {
    for (;;) {
        size_t have = min_u64(w->end - w->start, text.len);
        if (memcmp(w->in + w->start, text.data, have) != 0) return false;
        if (LIKELY(have == text.len)) break;
        wire_fill(w);
    }
    w->start += text.len;
    return true;
}

const char *wire_bytes(struct wire *w, size_t len) {
    while (w->end - w->start < len) wire_fill(w);
    w->start += len;
    return w->in + w->start - len;
}

int64_t wire_int(struct wire *w, const char *line, size_t len) {
    int64_t v;
    if (len < 2 || !span_to_i64(span_of(line + 1, len - 1), &v))
        die("the server does not speak RESP: \"%.*s\"", (int)len, line);
    return v;
}

void wire_note_error(struct wire *w, const char *line, size_t len) {
    if (w->errors++ == 0) snprintf(w->error, sizeof(w->error), "%.*s", (int)len - 1, line + 1);
}

static void wire_skip_bytes(struct wire *w, size_t n) {
    while (n > w->end - w->start) {
        n -= w->end - w->start;
        w->start = w->end;
        wire_fill(w);
    }
    w->start += n;
}

/* How many replies still have to follow because of this line. */
static size_t wire_open_line(struct wire *w, const char *line, size_t len) {
    int64_t n;
    switch (line[0]) {
    case '$':
        n = wire_int(w, line, len);
        if (n >= 0) wire_skip_bytes(w, (size_t)n + 2);
        return 0;
    case '*': n = wire_int(w, line, len); return n > 0 ? (size_t)n : 0;
    case '-': wire_note_error(w, line, len); return 0;
    default: return 0;
    }
}

void wire_skip(struct wire *w, size_t n) {
    static const struct span ok = SPAN("+OK\r\n");
    while (n > 0) {
        size_t len;
        if (wire_take(w, ok)) {
            n--;
            continue;
        }
        const char *line = wire_line(w, &len);
        n += wire_open_line(w, line, len);
        n--;
    }
}

void wire_skip_rest(struct wire *w, const char *line) {
    size_t len = strcspn(line, "\r");
    wire_skip(w, wire_open_line(w, line, len));
}

void wire_bulk(struct wire *w, void *to, size_t len) {
    size_t have = w->end - w->start, take = have < len ? have : len;
    memcpy(to, w->in + w->start, take);
    w->start += take;
    char *at = (char *)to + take;
    for (len -= take; len > 0;) {
        size_t n = wire_receive(w, at, len);
        at += n;
        len -= n;
    }
    wire_skip_bytes(w, 2);
}
