/* A socket of a test tool, plain or with TLS in it, and with what a line can do to TLS: bytes that
 * change, or stop, on the way. */
#ifndef TARN_TESTS_TLS_SOCKET_H
#define TARN_TESTS_TLS_SOCKET_H

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include "tls/tls.h"

#define TLS_SOCKET_NEVER UINT64_MAX

struct tls_socket {
    int fd;                 /* -1: closed */
    struct tls_stream *tls; /* NULL: plain */
    uint64_t sent;          /* bytes of ciphertext */
    uint64_t flip_at;       /* this byte of them arrives as another; TLS_SOCKET_NEVER: none does */
    /* this byte and all behind it do not arrive; sending fails with EPIPE */
    uint64_t cut_at;
};

/* Takes fd. context NULL: plain. false: no memory. */
static inline bool tls_socket_init(struct tls_socket *s, int fd, struct tls_context *context) {
    *s = (struct tls_socket){.fd = fd, .flip_at = TLS_SOCKET_NEVER, .cut_at = TLS_SOCKET_NEVER};
    if (context != NULL) s->tls = tls_stream_create(context, NULL);
    return context == NULL || s->tls != NULL;
}

/* No goodbye. */
static inline void tls_socket_close(struct tls_socket *s) {
    tls_stream_destroy(&s->tls);
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
}

static inline bool tls_socket_shaking(const struct tls_socket *s) {
    return s->tls != NULL && tls_state(s->tls) == TLS_HANDSHAKE;
}

/* Has it ciphertext that the socket did not take yet? */
static inline bool tls_socket_unsent(const struct tls_socket *s) {
    size_t len = 0;
    if (s->tls != NULL) tls_out(s->tls, &len);
    return len > 0;
}

/* 0: all of it is sent. -1: errno says why not. */
static inline int tls_socket_flush(struct tls_socket *s) {
    size_t len;
    for (const char *data; data = tls_out(s->tls, &len), len > 0;) {
        char other;
        if (s->sent >= s->cut_at) {
            errno = EPIPE;
            return -1;
        }
        if (len > s->cut_at - s->sent) len = (size_t)(s->cut_at - s->sent);
        if (s->sent < s->flip_at && len > s->flip_at - s->sent)
            len = (size_t)(s->flip_at - s->sent);
        if (s->sent == s->flip_at) {
            other = (char)(*data ^ (1 << s->flip_at % 8));
            data = &other;
            len = 1;
        }
        ssize_t n = send(s->fd, data, len, MSG_NOSIGNAL);
        if (n < 0) return -1;
        s->sent += (uint64_t)n;
        tls_out_sent(s->tls, (size_t)n);
    }
    return 0;
}

/* As send() with MSG_NOSIGNAL. EAGAIN: also when the handshake waits for the other side; EPROTO:
 * TLS has failed. */
static inline ssize_t tls_socket_send(struct tls_socket *s, const void *data, size_t len) {
    if (s->tls == NULL) return send(s->fd, data, len, MSG_NOSIGNAL);
    if (tls_socket_flush(s) != 0) return -1;
    size_t n = tls_write(s->tls, data, len);
    if (tls_socket_flush(s) != 0 && (n == 0 || errno != EAGAIN)) return -1;
    if (n > 0) return (ssize_t)n;
    errno = tls_state(s->tls) == TLS_FAILED ? EPROTO : EAGAIN;
    return -1;
}

/* As recv() with flags 0. The buffer is larger than TLS_IN_MAX, so that nothing is left inside. */
static inline ssize_t tls_socket_recv(struct tls_socket *s, void *out, size_t size) {
    void *at;
    if (s->tls == NULL) return recv(s->fd, out, size, 0);
    size_t space = tls_in_space(s->tls, &at);
    ssize_t got = space > 0 ? recv(s->fd, at, space, 0) : 0;
    int error = errno;
    if (space > 0) tls_in_added(s->tls, got > 0 ? (size_t)got : 0);
    if (got == 0) tls_in_end(s->tls);
    size_t n = tls_read(s->tls, out, size);
    if (n > 0) {
        (void)tls_socket_flush(s); /* the next call fails, if this did */
        return (ssize_t)n;
    }
    if (got < 0) {
        errno = error;
        return -1;
    }
    if (tls_socket_flush(s) != 0 && errno != EAGAIN) return -1;
    if (tls_state(s->tls) == TLS_CLOSED) return 0;
    errno = tls_state(s->tls) == TLS_FAILED ? EPROTO : EAGAIN;
    return -1;
}

#endif
