/* Connections to the server, plain or over TLS. Any failure ends the program. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "benchmark/bench.h"
#include "tls/tls.h"

bool bench_verifies_name(const struct bench *b) {
    return b->verify_name == NULL || strcmp(b->verify_name, "yes") == 0;
}

void bench_secure(struct bench *b) {
    char why[TLS_WHY_MAX];
    bool any = b->ca_file != NULL || b->ca_dir != NULL || b->cert != NULL || b->key != NULL ||
               b->sni != NULL || b->insecure || b->verify_name != NULL;
    if (any && !b->tls)
        die("--cacert, --cacertdir, --cert, --key, --sni, --insecure and --tls-verify-name need "
            "--tls");
    if (!bench_verifies_name(b) && strcmp(b->verify_name, "no") != 0)
        die("--tls-verify-name is yes or no, not \"%s\"", b->verify_name);
    if (!b->tls || b->context != NULL) return;
    struct tls_options o = {.cert_file = b->cert,
                            .key_file = b->key,
                            .ca_file = b->ca_file,
                            .ca_dir = b->ca_dir,
                            .no_verify = b->insecure,
                            .server_name = b->sni,
                            .any_name = !bench_verifies_name(b)};
    b->context = tls_context_create(TLS_CLIENT, &o, why);
    if (b->context == NULL) die("%s", why);
}

static int connect_to(const struct bench *b) {
    char port[8];
    snprintf(port, sizeof(port), "%u", b->port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list;
    int rc = getaddrinfo(b->host, port, &hints, &list), fd = -1;
    if (rc != 0) die("cannot resolve %s: %s", b->host, gai_strerror(rc));
    for (struct addrinfo *ai = list; ai != NULL && fd < 0; ai = ai->ai_next) {
        fd = socket(ai->ai_family, ai->ai_socktype | SOCK_CLOEXEC, ai->ai_protocol);
        if (fd >= 0 && connect(fd, ai->ai_addr, ai->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0)
        die("cannot connect to %s:%s: %s (is tarn-server running there?)", b->host, port,
            strerror(errno));
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

/* --- sockets --- */

static void send_all(int fd, const void *data, size_t len) {
    for (const char *at = data; len > 0;) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) die("sending to the server: %s", strerror(errno));
        at += n;
        len -= (size_t)n;
    }
}

/* 0: the end. -1: nothing now, and nobody waits. */
static ssize_t receive(int fd, void *to, size_t len, bool wait) {
    for (;;) {
        ssize_t n = recv(fd, to, len, wait ? 0 : MSG_DONTWAIT);
        if (n >= 0) return n;
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return 0;
        if (!wait) return -1;
    }
}

/* --- TLS --- */

static void send_ciphertext(struct pipe *p) {
    size_t len;
    const void *data = tls_out(p->tls, &len);
    send_all(p->fd, data, len);
    tls_out_sent(p->tls, len);
}

/* As receive. */
static ssize_t receive_ciphertext(struct pipe *p, bool wait) {
    void *at;
    size_t space = tls_in_space(p->tls, &at);
    ssize_t n = space > 0 ? receive(p->fd, at, space, wait) : 0;
    tls_in_added(p->tls, n > 0 ? (size_t)n : 0);
    if (n == 0) tls_in_end(p->tls);
    return n;
}

static void shake_hands(struct pipe *p, const struct bench *b) {
    p->tls = tls_stream_create(b->context, b->host);
    if (p->tls == NULL)
        die("\"%s\" cannot be the name in a certificate", b->sni != NULL ? b->sni : b->host);
    for (;;) {
        tls_handshake(p->tls);
        send_ciphertext(p);
        if (tls_state(p->tls) != TLS_HANDSHAKE) break;
        (void)receive_ciphertext(p, true);
    }
    if (tls_state(p->tls) != TLS_OPEN) die("TLS with %s:%u: %s", b->host, b->port, tls_why(p->tls));
}

static ssize_t read_plaintext(struct pipe *p, void *to, size_t len, bool wait) {
    for (;;) {
        size_t n = tls_read(p->tls, to, len);
        send_ciphertext(p);
        if (n > 0) return (ssize_t)n;
        if (tls_state(p->tls) == TLS_FAILED) die("TLS with the server: %s", tls_why(p->tls));
        if (tls_state(p->tls) != TLS_OPEN) return 0;
        if (receive_ciphertext(p, wait) < 0) return -1;
    }
}

/* --- both --- */

void pipe_open(struct pipe *p, const struct bench *b) {
    *p = (struct pipe){.fd = connect_to(b)};
    if (b->context != NULL) shake_hands(p, b);
}

void pipe_close(struct pipe *p) {
    tls_stream_destroy(&p->tls);
    close(p->fd);
    p->fd = -1;
}

void pipe_send(struct pipe *p, const void *data, size_t len) {
    if (p->tls == NULL) {
        send_all(p->fd, data, len);
        return;
    }
    for (const char *at = data; len > 0;) {
        size_t n = tls_write(p->tls, at, len);
        if (n == 0) die("TLS with the server: %s", tls_why(p->tls));
        send_ciphertext(p);
        at += n;
        len -= n;
    }
}

ssize_t pipe_receive(struct pipe *p, void *to, size_t len, bool wait) {
    return p->tls == NULL ? receive(p->fd, to, len, wait) : read_plaintext(p, to, len, wait);
}
