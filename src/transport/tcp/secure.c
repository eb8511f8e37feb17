#include "transport/tcp/secure.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define RECORD (16u << 10)
#define KEEP_MAX                                                                                   \
    (3u * RECORD) /* with its overhead less than TLS_OUT_MAX, lest reading waits for writing */
#define SEND_MAX   (256u << 10)
#define ROUNDS_MAX 4

static void moved(struct tcp_secure *s, size_t n) {
    if (tls_state(s->tls) == TLS_OPEN) s->moved += n;
}

bool tcp_secure_kept(const struct tcp_secure *s) {
    size_t len;
    (void)tls_out(s->tls, &len);
    return len > 0;
}

bool tcp_secure_flush(struct tcp_secure *s, int fd) {
    for (;;) {
        size_t len;
        const void *data = tls_out(s->tls, &len);
        if (len == 0) return true;
        ssize_t n = send(fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        tls_out_sent(s->tls, (size_t)n);
        moved(s, (size_t)n);
    }
}

/* --- sending --- */

/* Small pieces in a row (frames and small values) share a record. */
struct gather {
    const struct iovec *iov;
    size_t n, offset; /* of the first */
    char record[RECORD];
};

static size_t next_piece(struct gather *g, const char **data_p) {
    size_t len = 0;
    while (g->n > 0) {
        const char *at = (const char *)g->iov->iov_base + g->offset;
        size_t left = g->iov->iov_len - g->offset;
        if (len == 0 && left >= RECORD) {
            *data_p = at;
            return left < KEEP_MAX ? left : KEEP_MAX;
        }
        size_t take = left < RECORD - len ? left : RECORD - len;
        memcpy(g->record + len, at, take);
        len += take;
        g->offset += take;
        if (take < left) break;
        g->iov++;
        g->n--;
        g->offset = 0;
    }
    *data_p = g->record;
    return len;
}

/* next_piece does so itself with what it copies. */
static void went(struct gather *g, const char *data, size_t len) {
    if (data == g->record) return;
    g->offset += len;
    if (g->offset < g->iov->iov_len) return;
    g->iov++;
    g->n--;
    g->offset = 0;
}

static ssize_t nothing_taken(struct tcp_secure *s, int fd) {
    enum tls_state state = tls_state(s->tls);
    if (!tcp_secure_flush(s, fd) && errno != EAGAIN && errno != EWOULDBLOCK) return -1;
    errno = state == TLS_HANDSHAKE ? EINPROGRESS : state == TLS_FAILED ? EPROTO : EPIPE;
    return -1;
}

ssize_t tcp_secure_send(struct tcp_secure *s, int fd, const struct iovec *iov, size_t n) {
    struct gather g;
    g.iov = iov;
    g.n = n;
    g.offset = 0;
    ssize_t total = 0;
    if (!tcp_secure_flush(s, fd)) return -1;
    tls_handshake(s->tls);
    if (tls_state(s->tls) != TLS_OPEN) return nothing_taken(s, fd);
    while (total < (ssize_t)SEND_MAX) {
        const char *data;
        size_t len = next_piece(&g, &data);
        if (len == 0) break;
        size_t taken = tls_write(s->tls, data, len);
        total += (ssize_t)taken;
        if (taken < len) break; /* it has failed: the next call says so */
        went(&g, data, len);
        if (!tcp_secure_flush(s, fd)) break;
    }
    return total > 0 ? total : nothing_taken(s, fd);
}

/* --- receiving --- */

static ssize_t read_plaintext(struct tcp_secure *s, const struct iovec *iov, size_t n) {
    ssize_t total = 0;
    for (size_t i = 0; i < n; i++) {
        if (iov[i].iov_len == 0) continue;
        size_t got = tls_read(s->tls, iov[i].iov_base, iov[i].iov_len);
        total += (ssize_t)got;
        if (got < iov[i].iov_len) break;
    }
    return total;
}

/* Ciphertext from the socket. false, and errno: there is none. */
static bool take_ciphertext(struct tcp_secure *s, int fd) {
    void *at;
    size_t space = tls_in_space(s->tls, &at);
    ssize_t got = space > 0 ? recv(fd, at, space, MSG_DONTWAIT) : -1;
    int err = space > 0 ? errno : EAGAIN;
    tls_in_added(s->tls, got > 0 ? (size_t)got : 0);
    if (got > 0) moved(s, (size_t)got);
    if (got == 0) {
        s->ended = true;
        tls_in_end(s->tls);
    }
    errno = err;
    return got >= 0;
}

ssize_t tcp_secure_receive(struct tcp_secure *s, int fd, const struct iovec *iov, size_t n) {
    for (int round = 0; round < ROUNDS_MAX; round++) {
        ssize_t total = read_plaintext(s, iov, n);
        (void)tcp_secure_flush(s, fd); /* answers of the handshake; its failure shows here soon */
        if (total > 0) return total;
        enum tls_state state = tls_state(s->tls);
        if (state == TLS_CLOSED || (state == TLS_FAILED && s->ended)) return 0;
        if (state == TLS_FAILED) {
            errno = EPROTO;
            return -1;
        }
        if (!take_ciphertext(s, fd)) return -1;
    }
    errno = EINTR;
    return -1;
}
