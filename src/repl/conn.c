#include "repl/conn.h"

#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

#define READ_SIZE (64u * 1024)

/* --- sending --- */

/* Ciphertext first; then as much of `out` becomes ciphertext as the stream takes. */
static void conn_flush_tls(struct repl_conn *c) {
    for (;;) {
        size_t len, taken;
        const void *data = tls_out(c->tls, &len);
        ssize_t n = len > 0 ? send(c->fd, data, len, MSG_NOSIGNAL) : 0;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return; /* what is wrong shows when reading */
        tls_out_sent(c->tls, (size_t)n);
        if ((size_t)n < len) continue;
        taken = tls_write(c->tls, c->out.data, c->out.len);
        buf_consume(&c->out, taken);
        if (taken == 0 && (tls_out(c->tls, &len), len == 0)) return;
    }
}

void repl_conn_flush(struct repl_conn *c) {
    if (c->tls != NULL) conn_flush_tls(c);
    while (c->tls == NULL && c->out.len > 0) {
        ssize_t n = send(c->fd, c->out.data, c->out.len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return; /* what is wrong shows when reading */
        buf_consume(&c->out, (size_t)n);
    }
}

void repl_conn_update(struct repl_conn *c) {
    size_t unsent = c->out.len;
    if (c->tls != NULL) tls_out(c->tls, &unsent);
    unsigned events = (c->more || c->ended ? 0u : NET_READ) | (unsent > 0 ? NET_WRITE : 0u);
    if (c->connecting) events = NET_WRITE;
    if (events != c->watch.events && net_watch_set(&c->watch, events) != TARN_OK)
        c->ops->failed(c->arg, "it cannot be watched");
}

/* --- receiving --- */

/* As read; through TLS more than READ_SIZE may be there at once, but for at most what the stream
 * has room for. */
static ssize_t conn_receive(struct repl_conn *c) {
    void *at;
    if (c->tls == NULL) {
        buf_reserve(&c->in, READ_SIZE);
        ssize_t n = read(c->fd, c->in.data + c->in.len, READ_SIZE);
        if (n > 0) c->in.len += (size_t)n;
        return n;
    }
    size_t space = tls_in_space(c->tls, &at), before = c->in.len;
    ssize_t n = read(c->fd, at, space);
    int error = errno;
    tls_in_added(c->tls, n > 0 ? (size_t)n : 0);
    if (n == 0) tls_in_end(c->tls);
    do {
        buf_reserve(&c->in, READ_SIZE);
        c->in.len += tls_read(c->tls, c->in.data + c->in.len, READ_SIZE);
    } while (tls_in_left(c->tls));
    repl_conn_flush(c);
    if (tls_state(c->tls) >= TLS_CLOSED) c->ended = true;
    errno = error;
    return n > 0 || c->in.len == before ? n : 1;
}

bool repl_conn_take(struct repl_conn *c) {
    ssize_t n = conn_receive(c);
    if (n > 0)
        c->last_io_ms = clock_mono_ms();
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        c->ended = true;
    return n > 0;
}

bool repl_conn_answer(struct repl_conn *c, size_t most, struct span *line_p, struct span *body_p) {
    uint64_t n;
    const char *at = c->in.data + c->in_pos;
    size_t have = c->in.len - c->in_pos;
    const char *lf = have > 0 ? memchr(at, '\n', have) : NULL;
    if (lf == NULL || lf == at) return false;
    *line_p = *body_p = span_of(at, (size_t)(lf - at) - 1);
    if (at[0] == '$' && span_to_u64(span_of(at + 1, line_p->len - 1), &n) && n <= most) {
        if (have < line_p->len + 2 + n + 2) return false;
        *body_p = span_of(lf + 1, (size_t)n);
        c->in_pos += (size_t)n + 2;
    }
    c->in_pos += line_p->len + 2;
    return true;
}

const char *repl_conn_torn(const struct repl_conn *c) {
    return c->tls != NULL && tls_state(c->tls) == TLS_FAILED ? tls_why(c->tls) : NULL;
}

/* --- connecting --- */

static void conn_made(struct repl_conn *c) {
    int error = 0;
    socklen_t len = sizeof(error);
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0 || error != 0) {
        c->ops->failed(c->arg, strerror(error));
        return;
    }
    if (c->tls_context != NULL && (c->tls = tls_stream_create(c->tls_context, c->host)) == NULL) {
        c->ops->failed(c->arg, "its name (or tls-server-name) cannot be the one in a certificate");
        return;
    }
    c->connecting = false;
    if (c->tls != NULL) tls_handshake(c->tls);
    c->ops->connected(c->arg);
    if (c->fd >= 0) repl_conn_update(c);
}

static void conn_event(void *arg, unsigned events) {
    struct repl_conn *c = arg;
    if (c->connecting) {
        conn_made(c);
        return;
    }
    if (events & NET_WRITE) repl_conn_flush(c);
    if (events & NET_READ) {
        repl_conn_take(c);
        c->ops->came(c->arg);
    } else {
        repl_conn_update(c);
    }
}

static void conn_next(struct repl_conn *c) {
    const struct sockaddr_storage *a = &c->addresses.at[c->next_address++];
    c->fd = socket(a->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || !net_prepare(c->fd, a->ss_family)) { /* bind-source-addr, socket-mark-id */
        c->ops->failed(c->arg, strerror(errno));
        return;
    }
    net_tune(c->fd, (int)(c->timeout_ms / 1000));
    net_watch_init(&c->watch, c->loop, c->fd, conn_event, c);
    if (connect(c->fd, (const struct sockaddr *)a, (socklen_t)repl_address_size(a)) != 0 &&
        errno != EINPROGRESS) {
        c->ops->failed(c->arg, strerror(errno));
        return;
    }
    c->connecting = true;
    repl_conn_update(c);
}

static void conn_found(void *arg, const struct repl_addresses *found, const char *why) {
    struct repl_conn *c = arg;
    c->addresses = *found;
    c->next_address = 0;
    repl_resolve_drop(&c->resolve);
    if (c->addresses.n > 0)
        conn_next(c);
    else
        c->ops->failed(c->arg, why);
}

void repl_conn_begin(struct repl_conn *c, const char *host, uint16_t port, struct tls_context *tls,
                     uint64_t timeout_ms, uint64_t now_ms) {
    c->host = host;
    c->tls_context = tls != NULL ? tls_context_get(tls) : NULL;
    c->timeout_ms = timeout_ms;
    c->last_io_ms = now_ms;
    if (c->next_address < c->addresses.n) { /* the one before did not answer */
        conn_next(c);
        return;
    }
    c->next_address = 0;
    if (repl_resolve_digits(host, port, &c->addresses)) {
        conn_next(c);
        return;
    }
    c->resolve = repl_resolve_start(c->loop, host, port, conn_found, c);
    if (c->resolve == NULL) c->ops->failed(c->arg, "there is no thread to resolve its name");
}

bool repl_conn_local(const struct repl_conn *c, char *host, size_t size) {
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    return getsockname(c->fd, (struct sockaddr *)&a, &len) == 0 &&
           getnameinfo((struct sockaddr *)&a, len, host, (socklen_t)size, NULL, 0,
                       NI_NUMERICHOST) == 0;
}

bool repl_conn_loops(const struct repl_conn *c) {
    char own[64], other[64];
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    return repl_conn_local(c, own, sizeof(own)) &&
           getpeername(c->fd, (struct sockaddr *)&a, &len) == 0 &&
           getnameinfo((struct sockaddr *)&a, len, other, sizeof(other), NULL, 0, NI_NUMERICHOST) ==
               0 &&
           strcmp(own, other) == 0;
}

/* --- beginning and end --- */

void repl_conn_init(struct repl_conn *c, struct net_loop *loop, const struct repl_conn_ops *ops,
                    void *arg) {
    memset(c, 0, sizeof(*c));
    c->loop = loop;
    c->ops = ops;
    c->arg = arg;
    c->fd = -1;
}

void repl_conn_end(struct repl_conn *c) {
    repl_resolve_drop(&c->resolve);
    tls_context_put(&c->tls_context);
    c->connecting = c->ended = c->more = false;
    c->in_pos = 0;
    buf_free(&c->in);
    buf_free(&c->out);
    if (c->tls != NULL) {
        tls_close(c->tls);
        conn_flush_tls(c);
        tls_stream_destroy(&c->tls);
    }
    if (c->fd < 0) return;
    net_watch_set(&c->watch, 0);
    close(c->fd);
    c->fd = -1;
}
