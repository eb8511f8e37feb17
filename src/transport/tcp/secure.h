/* TLS between the frames of the tcp transport and its sockets. The frames know nothing of it: they
 * call these where a plain connection calls sendmsg and recvmsg, and get answers of the same kind.
 * Every byte is copied once more than on a plain connection, between memory and the records. */
#ifndef TARN_TRANSPORT_TCP_SECURE_H
#define TARN_TRANSPORT_TCP_SECURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include "tls/tls.h"

struct tcp_secure {
    /* NULL: the connection is plain; only the inline functions below may be called */
    struct tls_stream *tls;
    /* Ciphertext sent and received since the handshake was over: a peer in the middle of a record
     * is not silent, but one in the middle of a handshake has no more time than one that says
     * nothing. */
    uint64_t moved;
    bool ended;    /* the socket has */
    uint32_t mark; /* tcp_expect: the socket's, 0: never set */
};

/* As sendmsg: bytes of plaintext that were taken, about 256 KiB at most; ciphertext that the socket
 * does not take is kept, and goes first the next time. -1 and EAGAIN: it took nothing. EINPROGRESS:
 * nothing can be sent before the peer has said its part of the handshake. EPROTO: TLS failed,
 * tls_why says how. */
ssize_t tcp_secure_send(struct tcp_secure *s, int fd, const struct iovec *iov, size_t n);
/* As recvmsg: at most about 64 KiB. 0: the end. -1 and EAGAIN: there is nothing, neither here nor
 * in the socket. EINTR: again. EPROTO as above. Shakes hands, too. */
ssize_t tcp_secure_receive(struct tcp_secure *s, int fd, const struct iovec *iov, size_t n);
/* The same of a connection that may be plain. */
static inline ssize_t tcp_send(struct tcp_secure *s, int fd, struct iovec *iov, size_t n) {
    if (s->tls != NULL) return tcp_secure_send(s, fd, iov, n);
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n};
    return sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}
static inline ssize_t tcp_receive(struct tcp_secure *s, int fd, struct iovec *iov, size_t n) {
    if (s->tls != NULL) return tcp_secure_receive(s, fd, iov, n);
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n};
    return recvmsg(fd, &msg, MSG_DONTWAIT);
}
/* Before each receive: so many bytes of a payload are yet to come, 0: who knows. A plain socket is
 * not readable then before TCP_MARK_BYTES or all of them are there, or it has ended: it costs the
 * sender more to wake us than to send 64 KiB. Bytes below the mark can be received all the same. */
#define TCP_MARK_BYTES (256u << 10)
#define TCP_MARK_LEAST (32u << 10) /* less than this is not worth the system calls */
void tcp_set_mark(struct tcp_secure *s, int fd, uint32_t mark);
static inline void tcp_expect(struct tcp_secure *s, int fd, uint64_t left) {
    uint32_t mark = left < TCP_MARK_LEAST   ? 1
                    : left < TCP_MARK_BYTES ? (uint32_t)left
                                            : TCP_MARK_BYTES;
    if (mark != s->mark && s->tls == NULL) tcp_set_mark(s, fd, mark);
}
/* Sends what was kept. false, and errno: not all, or not any more. */
bool tcp_secure_flush(struct tcp_secure *s, int fd);
bool tcp_secure_kept(const struct tcp_secure *s);

#endif
