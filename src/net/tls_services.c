/* A connection of a module over TLS: a socket to the peer, and a pair of sockets, of which the
 * module has one. What is read of the one is written to the other, through the stream:
 *
 *     peer ─> wire ─> stream ─> held ─> plain ─> the module
 *     peer <─ wire <─ stream <───────── plain <─ the module
 *
 *   handshake ─> open ─> goodbye  the module has closed: what is left is sent, for LINGER_MS
 *       └──────────┴────────┴───> gone  the peer, the stream or a socket failed, or time is up
 *
 * Nothing is read that there is no place for: held has a record at most, the stream and the sockets
 * have bounds of their own. */
#include "net/tls_services.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/queue.h"
#include "tls/tls.h"

enum {
    RECORD_BYTES = 16384,
    ROUNDS = 4, /* of a record each, until others have their turn */
    PAIR_BYTES = 65536,
    LINGER_MS = 2000,
    LOOK_MS = 1000,     /* whether a module is still there of which nothing can be read now */
    SHAKE_NS = 1000000, /* of a turn */
    DRAIN_CALLS = 8
};

struct tls_pipe {
    struct tarn_tls *owner;
    struct tls_stream *stream;
    struct net_watch wire, plain;
    struct net_timer again, due; /* due: the handshake must be over, or the rest sent */
    struct buf held;             /* decrypted, and the module has not taken it yet */
    size_t held_sent;
    bool goodbye;     /* the module has closed */
    bool leaving;     /* so it has, and what it wrote is not all read yet */
    bool plain_ended; /* it was told that the peer has */
    LIST_ENTRY(tls_pipe) link;
};

struct tarn_tls {
    LIST_HEAD(, tls_pipe) pipes;
    unsigned max, open;
    uint64_t failed;
    const char *plain_answer;
};

static struct net_loop *pipes_loop;
static const struct net_tls_source *pipes_source;

static void pipe_destroy(struct tls_pipe *p) {
    net_watch_set(&p->wire, 0);
    net_watch_set(&p->plain, 0);
    net_timer_stop(&p->again);
    net_timer_stop(&p->due);
    close(p->wire.fd);
    close(p->plain.fd);
    tls_stream_destroy(&p->stream);
    buf_free(&p->held);
    LIST_REMOVE(p, link);
    p->owner->open--;
    free(p);
}

/* --- handshakes cost a thousand times what a request does: so much of a turn is theirs --- */

static uint64_t shake_spent_ns;
static struct net_timer shake_turn; /* pending: in this turn some was spent */

static void on_shake_turn(void *arg) {
    (void)arg;
    shake_spent_ns = 0;
}

static bool pipes_may_shake(void) {
    return shake_spent_ns < SHAKE_NS;
}

static void pipes_shook(uint64_t ns) {
    shake_spent_ns += ns;
    if (!shake_turn.pending) net_timer_start(&shake_turn, 0);
}

/* --- between the sockets --- */

static bool is_fatal(int error) {
    return error != EAGAIN && error != EWOULDBLOCK && error != EINTR;
}

/* false: the socket is dead. */
static bool wire_send(struct tls_pipe *p) {
    size_t len;
    const void *data;
    while (data = tls_out(p->stream, &len), len > 0) {
        ssize_t n = send(p->wire.fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) return !is_fatal(errno);
        tls_out_sent(p->stream, (size_t)n);
    }
    return true;
}

static bool wire_receive(struct tls_pipe *p) {
    void *at;
    if (tls_state(p->stream) == TLS_CLOSED || tls_state(p->stream) == TLS_FAILED) return true;
    size_t space = tls_in_space(p->stream, &at);
    ssize_t n = space > 0 ? recv(p->wire.fd, at, space, MSG_DONTWAIT) : -1;
    int error = space > 0 ? errno : EAGAIN;
    tls_in_added(p->stream, n > 0 ? (size_t)n : 0);
    if (n == 0) tls_in_end(p->stream);
    return n >= 0 || !is_fatal(error);
}

/* What is held to the module; false: it has closed. */
static bool held_send(struct tls_pipe *p) {
    while (p->held_sent < p->held.len) {
        ssize_t n = send(p->plain.fd, p->held.data + p->held_sent, p->held.len - p->held_sent,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) return !is_fatal(errno);
        p->held_sent += (size_t)n;
    }
    buf_free(&p->held);
    p->held_sent = 0;
    return true;
}

/* From the stream to the module: a record of it. */
static size_t pipe_decrypt(struct tls_pipe *p) {
    static char record[RECORD_BYTES];
    if (p->held.len > 0) return 0;
    size_t n = tls_read(p->stream, record, sizeof(record));
    if (n == 0 || p->goodbye) return n; /* nobody reads what comes after it */
    buf_append(&p->held, record, n);
    (void)held_send(p);
    return n;
}

/* From the module to the stream. What the stream does not take is left in the socket. */
static size_t pipe_encrypt(struct tls_pipe *p) {
    static char record[RECORD_BYTES];
    size_t space = tls_write_space(p->stream);
    if (space == 0 || p->goodbye || tls_state(p->stream) == TLS_HANDSHAKE) return 0;
    ssize_t n = recv(p->plain.fd, record, space < sizeof(record) ? space : sizeof(record),
                     MSG_DONTWAIT | MSG_PEEK);
    if (n > 0) {
        size_t taken = tls_write(p->stream, record, (size_t)n);
        if (taken > 0) taken = (size_t)recv(p->plain.fd, record, taken, MSG_DONTWAIT);
        return taken;
    }
    if (n < 0 && !is_fatal(errno)) return 0;
    p->goodbye = true;
    tls_close(p->stream);
    net_timer_start(&p->due, LINGER_MS);
    return 0;
}

/* --- a turn of one --- */

/* All is said. What the peer had sent on is read, or the reset of the connection may overtake the
 * last that it is told. */
static void wire_finish(struct tls_pipe *p) {
    char waste[4096];
    if (shutdown(p->wire.fd, SHUT_WR) != 0) return;
    for (unsigned i = 0; i < DRAIN_CALLS; i++)
        if (recv(p->wire.fd, waste, sizeof(waste), MSG_DONTWAIT) <= 0) break;
}

static void pipe_refuse(struct tls_pipe *p) {
    const char *answer = p->owner->plain_answer;
    p->owner->failed++;
    log_verbose("TLS of a module: %s", tls_why(p->stream));
    if (tls_is_plain(p->stream) && answer != NULL)
        (void)!send(p->wire.fd, answer, strlen(answer), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* The peer takes nothing, so nothing is read of the module: has it closed? */
static void module_look(struct tls_pipe *p) {
    struct pollfd look = {p->plain.fd, POLLRDHUP, 0};
    if (!p->again.pending) net_timer_start(&p->again, LOOK_MS);
    if (p->leaving || poll(&look, 1, 0) != 1) return;
    p->leaving = true;
    net_timer_start(&p->due, tls_state(p->stream) == TLS_HANDSHAKE ? 0 : LINGER_MS);
}

static void pipe_watch(struct tls_pipe *p) {
    size_t unsent;
    (void)tls_out(p->stream, &unsent);
    bool shakes = tls_state(p->stream) == TLS_HANDSHAKE, open = tls_state(p->stream) == TLS_OPEN;
    bool reads = shakes || (open && p->held.len == 0);
    bool speaks = !p->goodbye && !shakes && tls_write_space(p->stream) > 0;
    if (!speaks && !p->goodbye) module_look(p);
    if (net_watch_set(&p->wire, (reads ? NET_READ : 0u) | (unsent > 0 ? NET_WRITE : 0u)) !=
            TARN_OK ||
        net_watch_set(&p->plain, (speaks ? NET_READ : 0u) | (p->held.len > 0 ? NET_WRITE : 0u)) !=
            TARN_OK)
        pipe_destroy(p);
}

/* Bytes both ways, as long as there are some. false: a socket is dead. */
static bool pipe_carry(struct tls_pipe *p, bool *more_p) {
    size_t moved = 1;
    for (unsigned i = 0; moved > 0 && i < ROUNDS; i++) {
        if (p->held.len > 0 && !held_send(p)) buf_free(&p->held), p->held_sent = 0;
        if (p->held.len == 0 && !wire_receive(p)) return false;
        moved = pipe_decrypt(p);
        moved += pipe_encrypt(p);
        if (!wire_send(p)) return false;
    }
    *more_p = moved > 0 || (p->held.len == 0 && tls_in_left(p->stream));
    return true;
}

/* Of a failed stream what came before still counts. */
static bool pipe_is_over(const struct tls_pipe *p) {
    size_t unsent;
    (void)tls_out(p->stream, &unsent);
    return (tls_state(p->stream) == TLS_FAILED && p->held.len == 0) || (p->goodbye && unsent == 0);
}

static void pipe_turn(struct tls_pipe *p) {
    bool more = false, shook = tls_state(p->stream) == TLS_HANDSHAKE;
    if (shook && !pipes_may_shake()) { /* in the next turn */
        (void)net_watch_set(&p->wire, 0);
        net_timer_start(&p->again, 0);
        return;
    }
    uint64_t begin_ns = shook ? clock_mono_ns() : 0;
    bool alive = pipe_carry(p, &more);
    enum tls_state state = tls_state(p->stream);
    if (shook) pipes_shook(clock_mono_ns() - begin_ns);
    if (shook && state == TLS_OPEN) net_timer_stop(&p->due);
    if (shook && state == TLS_FAILED) pipe_refuse(p);
    if (!alive || pipe_is_over(p)) {
        if (alive) wire_finish(p);
        pipe_destroy(p);
        return;
    }
    if (state == TLS_CLOSED && p->held.len == 0 && !p->plain_ended) {
        p->plain_ended = true;
        shutdown(p->plain.fd, SHUT_WR);
    }
    if (more) net_timer_start(&p->again, 0);
    pipe_watch(p);
}

static void on_pipe_event(void *arg, unsigned events) {
    (void)events;
    pipe_turn(arg);
}
static void on_pipe_timer(void *arg) {
    pipe_turn(arg);
}
static void on_pipe_due(void *arg) {
    struct tls_pipe *p = arg;
    if (tls_state(p->stream) == TLS_HANDSHAKE) p->owner->failed++;
    pipe_destroy(p);
}

/* --- what modules call --- */

static tarn_status services_tls_open(const struct tarn_tls_options *options,
                                     struct tarn_tls **tls_p, const char **why_p) {
    *why_p = "";
    if (!TARN_HAS(options, connections_max) || options->connections_max == 0) {
        *why_p = "no connection is wanted";
        return TARN_EINVAL;
    }
    if (!pipes_source->use(true, why_p)) return TARN_EINVAL;
    struct tarn_tls *tls = xcalloc(1, sizeof(*tls));
    LIST_INIT(&tls->pipes);
    tls->max = options->connections_max;
    if (TARN_HAS(options, plain_answer)) tls->plain_answer = options->plain_answer;
    *tls_p = tls;
    return TARN_OK;
}

static tarn_status pair_make(int pair[2]) {
    static const int bytes = PAIR_BYTES / 2; /* the kernel takes it twice */
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0)
        return TARN_EIO;
    for (unsigned i = 0; i < 2; i++)
        setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    return TARN_OK;
}

static tarn_status services_tls_accept(struct tarn_tls *tls, int fd, int *plain_p) {
    int pair[2];
    tarn_status status = tls->open < tls->max ? pair_make(pair) : TARN_ELIMIT;
    if (status != TARN_OK) {
        close(fd);
        return status;
    }
    struct tls_context *ctx = pipes_source->context();
    struct tls_stream *stream = ctx != NULL ? tls_stream_create(ctx, NULL) : NULL;
    if (stream == NULL) {
        close(fd);
        close(pair[0]);
        close(pair[1]);
        return TARN_ENOMEM;
    }
    struct tls_pipe *p = xcalloc(1, sizeof(*p));
    p->owner = tls;
    p->stream = stream;
    net_tune(fd, 0);
    net_watch_init(&p->wire, pipes_loop, fd, on_pipe_event, p);
    net_watch_init(&p->plain, pipes_loop, pair[0], on_pipe_event, p);
    net_timer_init(&p->again, pipes_loop, on_pipe_timer, p);
    net_timer_init(&p->due, pipes_loop, on_pipe_due, p);
    LIST_INSERT_HEAD(&tls->pipes, p, link);
    tls->open++;
    net_timer_start(&p->due, pipes_source->handshake_ms());
    net_timer_start(&p->again, 0); /* whatever goes wrong does so when the caller has his socket */
    *plain_p = pair[1];
    return TARN_OK;
}

static void services_tls_figures(const struct tarn_tls *tls, struct tarn_tls_figures *figures_p) {
    if (TARN_HAS(figures_p, open)) figures_p->open = tls->open;
    if (TARN_HAS(figures_p, failed)) figures_p->failed = tls->failed;
}

static void services_tls_close(struct tarn_tls **tls_p) {
    struct tarn_tls *tls = *tls_p;
    const char *why;
    *tls_p = NULL;
    if (tls == NULL) return;
    while (!LIST_EMPTY(&tls->pipes)) pipe_destroy(LIST_FIRST(&tls->pipes));
    free(tls);
    net_timer_stop(&shake_turn);
    shake_spent_ns = 0;
    (void)pipes_source->use(false, &why);
}

void net_tls_services_fill(struct tarn_services *services, struct net_loop *loop,
                           const struct net_tls_source *source) {
    pipes_loop = loop;
    pipes_source = source;
    net_timer_init(&shake_turn, loop, on_shake_turn, NULL);
    services->tls_open = services_tls_open;
    services->tls_accept = services_tls_accept;
    services->tls_figures = services_tls_figures;
    services->tls_close = services_tls_close;
}
