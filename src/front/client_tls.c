/* Connections of the TLS port: between the socket and client_read.c, client_write.c.
 *
 * The stream (tls/tls.h) holds what was read from the socket and could not be used yet, and what
 * was said and the socket did not take; both are bounded. The socket announces neither, so a client
 * whose stream holds input goes on in the next turn. */
#include "front/client.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/clock.h"
#include "base/iov.h"
#include "base/log.h"
#include "config/tls.h"
#include "front/stats.h"
#include "config/config.h"

#define RECORD_BYTES     (16u * 1024) /* of plaintext: smaller pieces are put together */
#define DRAIN_CALLS      8u
#define LINES_PER_SECOND 10u
#define SHAKE_NS         1000000u

static const char plain_text[] = "-ERR this port speaks TLS, and what came is plain text: "
                                 "redis-cli --tls, tarns:// and the like\r\n";

bool client_tls_begin(struct client *c) {
    struct tls_context *ctx = config_tls_server();
    c->io->tls = ctx == NULL ? NULL : tls_stream_create(ctx, NULL);
    return c->io->tls != NULL;
}

bool client_tls_late(struct client *c) {
    uint64_t ms = turn.mono_ms - c->io->created_ms;
    if (LIKELY(tls_state(c->io->tls) != TLS_HANDSHAKE) || ms < config->tls_handshake_timeout_ms)
        return false;
    client_close_because(c, LOG_LEVEL_VERBOSE, "its TLS handshake was not over after %llu ms",
                         (unsigned long long)ms);
    stats.tls_handshakes_failed++;
    return true;
}

/* --- to the socket --- */

int client_tls_flush(struct client *c) {
    struct client_io *io = c->io;
    size_t len;
    const void *data;
    while (data = tls_out(io->tls, &len), len > 0) {
        ssize_t n = send(io->watch.fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        stats.total_writes_processed++;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return -1;
        if (n > 0) tls_out_sent(io->tls, (size_t)n);
        if (n < (ssize_t)len) break;
    }
    tls_out(io->tls, &io->out.tls_bytes);
    return io->out.tls_bytes == 0;
}

size_t client_tls_write(struct client *c, const struct iovec *iov, int n) {
    static char staged[RECORD_BYTES];
    struct tls_stream *tls = c->io->tls;
    struct iov_cursor at = iov_cursor(iov, (size_t)n);
    size_t total = 0;
    while (tls_write_space(tls) > 0) {
        /* A record of several pieces is taken as a whole, or not at all. */
        struct iovec v = iov_take_together(&at, staged, RECORD_BYTES, SIZE_MAX);
        if (v.iov_len == 0) break;
        size_t taken = tls_write(tls, v.iov_base, v.iov_len);
        total += taken;
        if (taken < v.iov_len) break;
    }
    tls_out(tls, &c->io->out.tls_bytes);
    return total;
}

/* --- from the socket --- */

/* So many lines a second are enough for who tries all ports. */
static void tls_refusal_log(const struct client *c, const char *why) {
    static uint64_t since_ms, told, kept;
    char peer[80];
    if (turn.mono_ms - since_ms >= 1000) {
        if (kept > 0)
            log_warning("%llu more client connections were not accepted", (unsigned long long)kept);
        since_ms = turn.mono_ms;
        told = kept = 0;
    }
    if (told == LINES_PER_SECOND) {
        kept++;
        return;
    }
    told++;
    client_peer(c, peer, sizeof(peer));
    log_warning("Error accepting a client connection: %s (addr=%s)", why, peer);
}

/* Its handshake failed. What it had sent on is read, or the reset of the connection may overtake
 * the alert that says why. */
static void tls_refuse(struct client *c) {
    char waste[4096];
    int fd = c->io->watch.fd;
    stats.tls_handshakes_failed++;
    tls_refusal_log(c, tls_why(c->io->tls));
    bool told = !tls_is_plain(c->io->tls) ||
                send(fd, plain_text, strlen(plain_text), MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
    if (told && shutdown(fd, SHUT_WR) == 0)
        for (unsigned i = 0; i < DRAIN_CALLS && recv(fd, waste, sizeof(waste), MSG_DONTWAIT) > 0;)
            i++;
}

/* The handshake is over. */
static void tls_opened(struct client *c) {
    char name[64] = "none";
    (void)tls_peer_name(c->io->tls, name, sizeof(name));
    log_debug("Client id=%llu: %s, %s, certificate: %s", (unsigned long long)c->id,
              tls_version(c->io->tls), tls_cipher(c->io->tls), name);
    if (!(c->io->flags & CLIENT_DENIED)) return;
    client_output_begin(c);
    buf_append_str(&c->io->out.bytes, client_denied_text);
    client_close_after_reply(c);
    client_output_end(c);
}

/* Fills what is not filled yet; how many bytes. */
static size_t tls_decrypt(struct client *c, const struct iovec *iov, int n, size_t done) {
    enum tls_state before = tls_state(c->io->tls);
    struct iov_cursor at = iov_cursor(iov, (size_t)n);
    size_t got = 0;
    iov_advance(&at, done);
    for (struct iovec v; (v = iov_here(&at)).iov_len > 0;) {
        size_t k = tls_read(c->io->tls, v.iov_base, v.iov_len);
        got += k;
        if (k < v.iov_len) break;
        iov_advance(&at, k);
    }
    if (UNLIKELY(before == TLS_HANDSHAKE) && tls_state(c->io->tls) == TLS_OPEN) tls_opened(c);
    return got;
}

/* Handshakes cost a thousand times what a request does. So much of a turn is theirs; who is left
 * over is still readable in the next. */
static struct { uint64_t turn, spent_ns; } shaking_time;

static bool may_shake(void) {
    if (shaking_time.turn != stats.loop_turns)
        shaking_time.turn = stats.loop_turns, shaking_time.spent_ns = 0;
    return shaking_time.spent_ns < SHAKE_NS;
}

/* What the socket has, as much as there is room for. -1: the connection is dead. */
static int tls_fill(struct client *c) {
    struct tls_stream *tls = c->io->tls;
    void *at;
    size_t space = tls_in_space(tls, &at);
    ssize_t n = space > 0 ? recv(c->io->watch.fd, at, space, MSG_DONTWAIT) : -1;
    int error = space > 0 ? errno : EAGAIN;
    if (space > 0) tls_in_added(tls, n > 0 ? (size_t)n : 0);
    if (n == 0) tls_in_end(tls);
    return n < 0 && error != EAGAIN && error != EWOULDBLOCK && error != EINTR ? -1 : 0;
}

ssize_t client_tls_read(struct client *c, const struct iovec *iov, int n) {
    struct client_io *io = c->io;
    size_t room = iov_total(iov, (size_t)n);
    bool shaking = tls_state(io->tls) == TLS_HANDSHAKE;
    if (UNLIKELY(shaking) && !may_shake()) {
        errno = EAGAIN;
        return -1;
    }
    uint64_t begin_ns = shaking ? clock_mono_ns() : 0;
    size_t got = tls_in_left(io->tls) ? tls_decrypt(c, iov, n, 0) : 0;
    if (got < room && !(io->flags & CLIENT_CLOSE_AFTER_REPLY)) {
        if (tls_fill(c) < 0) return -1;
        got += tls_decrypt(c, iov, n, got);
    }
    if (UNLIKELY(shaking)) shaking_time.spent_ns += clock_mono_ns() - begin_ns;
    if (io->flags & CLIENT_DENIED) got = 0;
    if (client_tls_flush(c) < 0 && got == 0)
        return -1; /* else what came runs first, and the next one fails */
    if (io->out.tls_bytes > 0) client_update_interest(c);
    if (got > 0) return (ssize_t)got;
    switch (tls_state(io->tls)) {
    case TLS_CLOSED: return 0;
    case TLS_FAILED:
        if (shaking)
            tls_refuse(c);
        else
            log_verbose("Client id=%llu: TLS ended: %s", (unsigned long long)c->id,
                        tls_why(io->tls));
        errno = ECONNRESET;
        return -1;
    default: errno = EAGAIN; return -1;
    }
}

void client_tls_go_on(struct client *c) {
    struct client_io *io = c->io;
    if (io->flags & (CLIENT_READ_OFF | CLIENT_CLOSE_SOON | CLIENT_CLOSE_AFTER_REPLY)) return;
    if (client_is_deaf(c)) return;
    enum tls_state state = tls_state(io->tls);
    bool over = state == TLS_CLOSED || state == TLS_FAILED; /* and that was not noticed yet */
    if (over || tls_in_left(io->tls)) client_ready(c);
}

void client_tls_free(struct client *c) {
    tls_close(c->io->tls);
    client_tls_flush(c);
    tls_stream_destroy(&c->io->tls);
}
