#include "base/iov.h"
#include "transport/tcp/secure.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define RECORD (16u << 10)
#define KEEP_MAX                                                                                   \
    (3u * RECORD) /* with its overhead less than TLS_OUT_MAX, lest reading waits for writing */
#define SEND_MAX   (256u << 10)
#define ROUNDS_MAX 4

void tcp_set_mark(struct tcp_secure *s, int fd, uint32_t mark) {
    int bytes = (int)mark;
    if (s->mark != 0 || mark > 1)
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes));
    s->mark = mark;
}

static void secure_moved(struct tcp_secure *s, size_t n) {
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
        secure_moved(s, (size_t)n);
    }
}

/* --- sending --- */

static ssize_t nothing_taken(struct tcp_secure *s, int fd) {
    enum tls_state state = tls_state(s->tls);
    if (!tcp_secure_flush(s, fd) && errno != EAGAIN && errno != EWOULDBLOCK) return -1;
    errno = state == TLS_HANDSHAKE ? EINPROGRESS : state == TLS_FAILED ? EPROTO : EPIPE;
    return -1;
}

ssize_t tcp_secure_send(struct tcp_secure *s, int fd, const struct iovec *iov, size_t n) {
    struct iov_cursor at = iov_cursor(iov, n);
    char record[RECORD]; /* small pieces in a row (frames and small values) share one */
    ssize_t total = 0;
    if (!tcp_secure_flush(s, fd)) return -1;
    tls_handshake(s->tls);
    if (tls_state(s->tls) != TLS_OPEN) return nothing_taken(s, fd);
    while (total < (ssize_t)SEND_MAX) {
        struct iovec v = iov_take_together(&at, record, RECORD, KEEP_MAX);
        if (v.iov_len == 0) break;
        size_t taken = tls_write(s->tls, v.iov_base, v.iov_len);
        total += (ssize_t)taken;
        if (taken < v.iov_len) break; /* it has failed: the next call says so */
        if (!tcp_secure_flush(s, fd)) break;
    }
    return total > 0 ? total : nothing_taken(s, fd);
}

/* --- receiving --- */

static ssize_t secure_read_plaintext(struct tcp_secure *s, const struct iovec *iov, size_t n) {
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
    if (got > 0) secure_moved(s, (size_t)got);
    if (got == 0) {
        s->ended = true;
        tls_in_end(s->tls);
    }
    errno = err;
    return got >= 0;
}

ssize_t tcp_secure_receive(struct tcp_secure *s, int fd, const struct iovec *iov, size_t n) {
    for (int round = 0; round < ROUNDS_MAX; round++) {
        ssize_t total = secure_read_plaintext(s, iov, n);
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
