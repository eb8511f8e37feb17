/* One connection of the data port, client side. Requests go out in one stream, replies come back in
 * the same order, so the operation a reply belongs to is always the first of `flight`.
 *
 *   CONNECTING --socket up--> GREETING --HELLO came--> UP
 *      any of these --closed, broken protocol, too late--> FAILED
 *
 *   operation:  waiting --framed--> flight --reply and payload here--> done()
 *
 * Sending: operations are framed in batches; a batch is a list of pieces, bytes of ours (frames)
 * and bytes of the caller's (payload of a PUT), which go to sendmsg as they are. Where a CRC is
 * wanted, it is computed on the piece that is about to be sent, or has just been received,
 * CRC_CHUNK bytes at a time, while they are in the cache anyway. */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/htab.h"
#include "base/log.h"
#include "transport/op.h"
#include "transport/tcp/secure.h"
#include "transport/tcp/tcp.h"

#define ENDPOINT_MAGIC     0x54455044u /* "TEPD" */
#define CONNECT_DEFAULT_MS 5000u
/* a host that owes us a reply and moves no byte for so long is gone */
#define STALL_MS         30000u
#define OUTSTANDING_MAX  65536u
#define CRC_CHUNK        (256u << 10)
#define MOVE_MAX         (1u << 20) /* bytes per system call */
#define BATCH_META_MAX   (64u << 10)
#define BATCH_PIECES_MAX 512u
#define CALL_IOV_MAX     64u
#define RX_BYTES         (16u << 10)
#define CALL_COST        512u
#define TOLD_MS                                                                                    \
    300000u /* settings that are missing are told of a target once in so long, not at each try */

/* In op->scratch. */
struct tcp_op {
    struct crc_track crc;
    uint64_t total;
    uint64_t at;         /* bytes of the reply's payload received */
    uint64_t stream_end; /* where in the stream its request ends */
    struct iov_cursor local;
};

struct transport_endpoint {
    struct tcp_tag tag;
    uint32_t magic;
    struct transport_domain *domain;
    TAILQ_ENTRY(transport_endpoint) link, run_link;
    int fd;
    struct tcp_secure secure;
    char *uri;
    enum { CONNECTING, GREETING, UP, FAILED } state;
    tarn_status status; /* why FAILED */
    bool readable, writable;
    uint64_t deadline_boot_ms; /* for getting UP; then, while a reply is owed, for the next byte */
    uint64_t moved;            /* bytes, since the deadline was last set */
    uint64_t next_id, reply_id;
    struct op_queue waiting, flight;
    size_t outstanding; /* in both */

    struct buf tx_meta; /* frames of the batch; it does not move while out leads there */
    struct iovec out[BATCH_PIECES_MAX];
    struct transport_op
        *crc_of[BATCH_PIECES_MAX]; /* whose CRCs are of that piece; NULL: nobody's */
    unsigned n_out;
    struct iov_cursor unsent, unseen; /* unseen by CRCs, which are this much ahead of sending: */
    uint64_t ahead;
    bool with_crcs;
    uint64_t framed, sent; /* positions in the stream of requests */

    bool in_payload;       /* of flight.head */
    uint64_t payload_left; /* of this frame */
    uint32_t rx_pos, rx_len;
    uint8_t rx[RX_BYTES];
};

static struct tcp_op *tcp_op_of(struct transport_op *op) {
    return OP_STATE(struct tcp_op, op);
}

static bool is_sealing(const struct transport_op *op) {
    return op->kind == TRANSPORT_PUT && op->receipts != NULL;
}

static void endpoint_enqueue(struct transport_endpoint *e) {
    if (!TAILQ_LINKED(e, run_link)) TAILQ_INSERT_TAIL(&e->domain->runnable, e, run_link);
}

/* It has left its queue. */
static void complete_op(struct transport_endpoint *e, struct transport_op *op, tarn_status status,
                        bool settled) {
    e->domain->completed++;
    e->outstanding--;
    op_end(op, status, settled);
}

/* What has been framed may lie in the peer's receive buffer, to be read when it runs again, unless
 * the peer is gone. */
static void complete_all(struct transport_endpoint *e, tarn_status status) {
    struct transport_op *op;
    while ((op = STAILQ_TAKE(&e->flight, link)) != NULL)
        complete_op(e, op, status, status == TARN_ECLOSED);
    while ((op = STAILQ_TAKE(&e->waiting, link)) != NULL) complete_op(e, op, status, true);
}

/* The peer has closed the connection, or its process has ended: nobody reads what we sent. Anything
 * else (a cable, a route) says nothing about the peer. */
static tarn_status status_of_errno(int err) {
    if (err == EPROTO) return TARN_EPROTO; /* TLS */
    return err == ECONNRESET || err == EPIPE || err == ECONNREFUSED ? TARN_ECLOSED : TARN_EIO;
}

/* Is it for want of TLS that it failed, or may be? */
static bool is_tls(const struct transport_endpoint *e, tarn_status status) {
    return e->state == GREETING ||
           (status == TARN_EPROTO && tls_state(e->secure.tls) == TLS_FAILED);
}

/* TARN_ECLOSED only if the peer closed it, or it was never up. */
static void endpoint_fail(struct transport_endpoint *e, tarn_status status, const char *why) {
    if (e->state == FAILED) return;
    log_verbose("Data connection failed: %s", why);
    if (e->secure.tls != NULL && e->domain->tls->failed != NULL && is_tls(e, status))
        e->domain->tls->failed(e->domain->tls->arg, e->uri, why);
    e->state = FAILED;
    e->status = status;
    tcp_socket_close(e->domain->epoll_fd, e->fd); /* before the buffers go back */
    e->fd = -1;
    complete_all(e, status);
}

/* --- opening and closing --- */

static void out_add(struct transport_endpoint *e, void *data, size_t len,
                    struct transport_op *crc_of) {
    e->out[e->n_out] = (struct iovec){data, len};
    e->crc_of[e->n_out++] = crc_of;
    e->with_crcs |= crc_of != NULL;
}

static void frame_hello(struct transport_endpoint *e) {
    struct {
        struct tcp_header h;
        struct tcp_hello hello;
    } frame = {
        .h = {.magic = TCP_MAGIC, .type = TCP_HELLO, .meta_length = sizeof(struct tcp_hello)},
        .hello = {.version_min = TCP_VERSION,
                  .version_max = TCP_VERSION,
                  .features = TCP_FEATURE_PIECES,
                  .parts_max = TCP_PARTS_MAX,
                  .program = program_own(),
                  .payload_max = TCP_PAYLOAD_MAX},
    };
    buf_reserve(&e->tx_meta, BATCH_META_MAX);
    buf_append(&e->tx_meta, &frame, sizeof(frame));
    e->framed = sizeof(frame);
    out_add(e, e->tx_meta.data, sizeof(frame), NULL);
    e->unsent = e->unseen = iov_cursor(e->out, e->n_out);
}

static int start_connect(const char *uri, tarn_status *status_p) {
    struct addrinfo *list;
    uint16_t port;
    *status_p = tcp_resolve(uri, false, &list, &port);
    if (*status_p != TARN_OK) return -1;
    int fd = -1;
    for (struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) continue;
        tcp_socket_options(fd);
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0 || errno == EINPROGRESS) break;
        close(fd);
        fd = -1;
    }
    if (fd < 0) {
        log_verbose("Connecting to %s: %s", uri, strerror(errno));
        *status_p = TARN_ECLOSED;
    }
    freeaddrinfo(list);
    return fd;
}

static void endpoint_free(struct transport_endpoint *e) {
    tls_stream_destroy(&e->secure.tls);
    buf_free(&e->tx_meta);
    free(e->uri);
    e->magic = 0;
    free(e);
}

static bool is_news(struct transport_domain *d, const char *uri) {
    uint64_t target = hash_bytes(uri, strlen(uri)), now_ms = clock_mono_ms();
    unsigned at = 0; /* its own place, or the one that was told of longest ago */
    for (unsigned i = 0; i < TCP_TOLD && d->told[at].target != target; i++)
        if (d->told[i].target == target || d->told[i].told_ms < d->told[at].told_ms) at = i;
    bool known = d->told[at].target == target && d->told[at].told_ms != 0;
    if (known && now_ms - d->told[at].told_ms < TOLD_MS) return false;
    d->told[at].target = target;
    d->told[at].told_ms = now_ms;
    return true;
}

/* The stream of a tcps:// URI. */
static tarn_status endpoint_stream(struct transport_domain *d, const char *uri,
                                   struct tls_stream **tls_p) {
    char host[NI_MAXHOST];
    const struct transport_tls *t = d->tls;
    struct tls_context *context = t != NULL ? t->context(t->arg) : NULL;
    if (context == NULL) {
        if (is_news(d, uri)) log_warning("Connecting to %s: there are no settings for TLS", uri);
        return TARN_ENOTSUP;
    }
    if (!tcp_uri_host(uri, host, sizeof(host))) host[0] = '\0';
    *tls_p = tls_stream_create(context, host);
    if (*tls_p == NULL && is_news(d, uri)) {
        const char *name = tls_context_name(context, host);
        log_warning("Connecting to %s: \"%s\" cannot be the name in a certificate", uri,
                    name != NULL ? name : "");
    }
    tls_context_put(&context);
    return *tls_p != NULL ? TARN_OK : TARN_EINVAL;
}

tarn_status tcp_connect(struct transport_domain *d, const char *uri, uint64_t deadline_boot_ms,
                        struct transport_endpoint **endpoint_p) {
    tarn_status s = TARN_OK;
    struct tls_stream *tls = NULL;
    if (tcp_is_secure(uri)) s = endpoint_stream(d, uri, &tls);
    int fd = s == TARN_OK ? start_connect(uri, &s) : -1;
    if (fd < 0) {
        tls_stream_destroy(&tls);
        return s;
    }
    struct transport_endpoint *e = xcalloc(1, sizeof(*e));
    e->secure.tls = tls;
    e->uri = xstrdup(uri);
    e->tag.kind = TCP_TAG_ENDPOINT;
    e->magic = ENDPOINT_MAGIC;
    e->domain = d;
    e->fd = fd;
    e->state = CONNECTING;
    e->deadline_boot_ms =
        deadline_boot_ms != 0 ? deadline_boot_ms : clock_boot_ms() + CONNECT_DEFAULT_MS;
    STAILQ_INIT(&e->waiting);
    STAILQ_INIT(&e->flight);
    frame_hello(e);
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = e};
    if (epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0) {
        log_warning("epoll_ctl for a data connection: %s", strerror(errno));
        close(fd);
        endpoint_free(e);
        return TARN_EIO;
    }
    TAILQ_INSERT_TAIL(&d->endpoints, e, link);
    *endpoint_p = e;
    return TARN_OK;
}

tarn_status tcp_endpoint_status(const struct transport_endpoint *e) {
    MAGIC_CHECK(e, ENDPOINT_MAGIC);
    return e->state == FAILED ? e->status : e->state == UP ? TARN_OK : TARN_EAGAIN;
}

void tcp_endpoint_close(struct transport_endpoint **endpoint_p) {
    struct transport_endpoint *e = *endpoint_p;
    if (e == NULL) return;
    MAGIC_CHECK(e, ENDPOINT_MAGIC);
    *endpoint_p = NULL;
    /* From here on nobody writes to a caller's buffer: we were the only ones. */
    if (e->fd >= 0) tcp_socket_close(e->domain->epoll_fd, e->fd);
    e->state = FAILED;
    e->fd = -1;
    complete_all(e, TARN_ECANCELED);
    TAILQ_UNLINK(&e->domain->runnable, e, run_link);
    TAILQ_REMOVE(&e->domain->endpoints, e, link);
    endpoint_free(e);
}

tarn_status tcp_submit(struct transport_endpoint *e, struct transport_op *const *ops, size_t n,
                       size_t *accepted_p) {
    MAGIC_CHECK(e, ENDPOINT_MAGIC);
    if (e->state == FAILED) return e->status;
    for (size_t i = 0; i < n; i++) {
        uint64_t parts = op_bytes(ops[i]);
        if (parts != iov_total(ops[i]->iov, ops[i]->n_iov) || parts > TCP_PAYLOAD_MAX ||
            ops[i]->n_parts == 0 ||
            ops[i]->n_parts > (is_sealing(ops[i]) ? TCP_SEAL_PARTS_MAX : TCP_PARTS_MAX)) {
            return TARN_EINVAL;
        }
        *tcp_op_of(ops[i]) =
            (struct tcp_op){.total = parts, .local = iov_cursor(ops[i]->iov, ops[i]->n_iov)};
    }
    if (e->state == UP && e->outstanding == 0) e->moved = 1; /* the clock starts now */
    size_t i = 0;
    for (; i < n && e->outstanding < OUTSTANDING_MAX; i++, e->outstanding++) {
        crc_track_init(&tcp_op_of(ops[i])->crc, ops[i]);
        STAILQ_INSERT_TAIL(&e->waiting, ops[i], link);
    }
    endpoint_enqueue(e);
    *accepted_p = i;
    return TARN_OK;
}

/* --- sending --- */

static void frame_op(struct transport_endpoint *e, struct transport_op *op) {
    struct tcp_op *st = tcp_op_of(op);
    struct tcp_header h = {
        .magic = TCP_MAGIC,
        .version = TCP_VERSION,
        .type = op->kind == TRANSPORT_PUT ? TCP_WRITE : TCP_READ,
        .flags = is_sealing(op) ? TCP_FLAG_SEAL : 0,
        .request_id = e->next_id++,
        .meta_length = (uint32_t)(op->n_parts * sizeof(struct tcp_part)),
        .payload_length = op->kind == TRANSPORT_PUT ? st->total : 0,
    };
    size_t start = e->tx_meta.len;
    buf_append(&e->tx_meta, &h, sizeof(h));
    for (size_t i = 0; i < op->n_parts; i++) {
        const struct transport_part *p = &op->parts[i];
        struct tcp_part part = {
            .extent = p->extent,
            .sub_offset = p->sub_offset,
            .sub_length = p->sub_length,
        };
        TARN_ASSERT(p->grant != NULL);
        memcpy(part.grant, p->grant, GRANT_SIZE);
        buf_append(&e->tx_meta, &part, sizeof(part));
    }
    size_t len = e->tx_meta.len - start;
    e->framed += len + h.payload_length;
    st->stream_end = e->framed;
    char *frame = e->tx_meta.data + start;
    struct iovec *last = e->n_out > 0 ? &e->out[e->n_out - 1] : NULL;
    if (last != NULL && (char *)last->iov_base + last->iov_len == frame &&
        e->crc_of[e->n_out - 1] == NULL)
        last->iov_len += len; /* frames in a row are one piece */
    else
        out_add(e, frame, len, NULL);
}

/* The payload as pieces. A value in more runs of memory than a batch has pieces goes in several
 * batches: the cursor remembers. */
static bool frame_payload(struct transport_endpoint *e, struct transport_op *op) {
    struct tcp_op *st = tcp_op_of(op);
    for (struct iovec v; (v = iov_here(&st->local)).iov_len > 0;) {
        if (e->n_out == BATCH_PIECES_MAX) return false;
        out_add(e, v.iov_base, v.iov_len, op->crcs != NULL ? op : NULL);
        iov_advance(&st->local, v.iov_len);
    }
    return true;
}

/* The operation whose payload did not fit is the last of flight, and a PUT: its cursor says so. */
static struct transport_op *unfinished_put(struct transport_endpoint *e) {
    if (STAILQ_EMPTY(&e->flight)) return NULL;
    struct transport_op *last =
        CONTAINER_OF(e->flight.stqh_last, struct transport_op, link.stqe_next);
    bool rest = last->kind == TRANSPORT_PUT && iov_here(&tcp_op_of(last)->local).iov_len > 0;
    return rest ? last : NULL;
}

static bool has_room_for(const struct transport_endpoint *e, const struct transport_op *op) {
    size_t len = sizeof(struct tcp_header) + op->n_parts * sizeof(struct tcp_part);
    bool fits = e->tx_meta.len == 0 || len <= e->tx_meta.cap - e->tx_meta.len;
    return fits && e->n_out < BATCH_PIECES_MAX;
}

static void fill_batch(struct transport_endpoint *e) {
    struct transport_op *op = unfinished_put(e);
    if (op != NULL && !frame_payload(e, op)) return;
    while ((op = STAILQ_FIRST(&e->waiting)) != NULL && has_room_for(e, op)) {
        STAILQ_REMOVE_HEAD(&e->waiting, link);
        frame_op(e, op);
        STAILQ_INSERT_TAIL(&e->flight, op, link);
        if (op->kind == TRANSPORT_PUT && !frame_payload(e, op)) return;
    }
}

/* The next batch, from the waiting operations. false: there is nothing to send. */
static bool build_batch(struct transport_endpoint *e) {
    e->n_out = 0;
    e->with_crcs = false;
    buf_clear(&e->tx_meta);
    fill_batch(e);
    e->unsent = e->unseen = iov_cursor(e->out, e->n_out);
    return e->n_out > 0;
}

/* CRCs of the next bytes that are about to be sent, as far as they are not known yet. */
static void crc_look_ahead(struct transport_endpoint *e, uint64_t bytes) {
    while (e->ahead < bytes) {
        struct iovec v = iov_here(&e->unseen);
        struct transport_op *op = e->crc_of[e->unseen.iov - e->out];
        size_t n = min_u64(v.iov_len, bytes - e->ahead);
        if (op != NULL) crc_track_feed(&tcp_op_of(op)->crc, op, NULL, v.iov_base, n);
        iov_advance(&e->unseen, n);
        e->ahead += n;
    }
}

static const char *error_text(const struct transport_endpoint *e, int err) {
    return err == EPROTO && e->secure.tls != NULL ? tls_why(e->secure.tls) : strerror(err);
}

/* Returns bytes sent, 0 when it cannot go on. */
static size_t endpoint_send(struct transport_endpoint *e) {
    if (!e->writable || e->state == FAILED) return 0;
    if (e->secure.tls != NULL && !tcp_secure_flush(&e->secure, e->fd)) {
        e->writable = false; /* full, or reading finds the end */
        e->readable = true;
        return 0;
    }
    if (iov_here(&e->unsent).iov_len == 0 && (e->state != UP || !build_batch(e))) return 0;
    struct iovec iov[CALL_IOV_MAX];
    size_t n = iov_gather(e->unsent, e->with_crcs ? CRC_CHUNK : MOVE_MAX, iov, CALL_IOV_MAX);
    crc_look_ahead(e, iov_total(iov, n));
    ssize_t sent = tcp_send(&e->secure, e->fd, iov, n);
    if (sent < 0) {
        if (errno == EINTR) return 1;
        if (errno == EINPROGRESS) return 0; /* the handshake: reading goes on with it */
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            e->writable = false;
        } else if (errno == EPIPE || errno == ECONNRESET) {
            e->writable = false; /* replies may still be there to read; reading finds the end */
            e->readable = true;
            return 1;
        } else {
            endpoint_fail(e, status_of_errno(errno), error_text(e, errno));
        }
        return 0;
    }
    e->sent += (uint64_t)sent;
    iov_advance(&e->unsent, (uint64_t)sent);
    e->ahead -= (uint64_t)sent;
    return (size_t)sent;
}

/* --- receiving --- */

static tarn_status tcp_wire_status(uint32_t s) {
    switch (s) {
    case TCP_TOO_MANY: return TARN_ELIMIT;
    case TCP_GONE: return TARN_ENOTFOUND;
    case TCP_FAILED: return TARN_EIO;
    case TCP_OTHER_SESSION: return TARN_EPERM;
    default: return grant_verdict_status(s);
    }
}

static void finish_head(struct transport_endpoint *e, tarn_status status) {
    e->in_payload = false;
    e->reply_id++;
    complete_op(e, STAILQ_TAKE(&e->flight, link), status,
                true); /* a host that answered reads no more of it */
}

static void handle_greeting(struct transport_endpoint *e, const struct tcp_header *h,
                            const uint8_t *meta) {
    if (h->status != TCP_OK) {
        int text = (int)(h->meta_length - sizeof(struct tcp_hello));
        if (text > 0)
            log_warning("%s refused us: %.*s", e->uri, text,
                        (const char *)meta + sizeof(struct tcp_hello));
        endpoint_fail(e, tcp_wire_status(h->status), "refused");
        return;
    }
    struct tcp_hello hello;
    memcpy(&hello, meta, sizeof(hello));
    if (hello.version_min != TCP_VERSION || hello.version_max != TCP_VERSION) {
        endpoint_fail(e, TARN_EPROTO, "the host chose a version we do not speak");
        return;
    }
    char program[PROGRAM_TEXT];
    program_write(program_told(hello.program), program);
    log_verbose("Data connection to %s is up: tarn %s", e->uri, program);
    e->state = UP;
    e->moved = 1;
}

static void handle_reply(struct transport_endpoint *e, const struct tcp_header *h,
                         const uint8_t *meta) {
    struct transport_op *op = STAILQ_FIRST(&e->flight);
    if (op == NULL || h->request_id != e->reply_id) {
        endpoint_fail(e, TARN_EPROTO, "a reply to nothing");
        return;
    }
    const struct tcp_op *st = tcp_op_of(op);
    uint64_t expected = h->status == TCP_OK && op->kind == TRANSPORT_GET ? st->total - st->at : 0;
    bool more = (h->flags & TCP_FLAG_MORE) != 0;
    bool fits = more ? h->payload_length < expected : h->payload_length == expected;
    bool sealed = is_sealing(op) && h->status == TCP_OK;
    if (h->meta_length != (sealed ? op->n_parts * GRANT_RECEIPT_SIZE : 0)) fits = false;
    if (!fits || st->stream_end > e->sent) {
        endpoint_fail(e, TARN_EPROTO, "a reply that does not fit its request");
        return;
    }
    if (sealed) memcpy(op->receipts, meta, h->meta_length);
    if (expected == 0) {
        finish_head(e, tcp_wire_status(h->status));
        return;
    }
    e->in_payload = true;
    e->payload_left = h->payload_length;
}

/* One frame out of the buffer. false: it is not whole yet. */
static bool take_frame(struct transport_endpoint *e) {
    struct tcp_header h;
    uint32_t have = e->rx_len - e->rx_pos;
    if (have < sizeof(h)) return false;
    memcpy(&h, e->rx + e->rx_pos, sizeof(h));
    const char *wrong = tcp_reply_check(&h, e->state == UP);
    if (wrong != NULL && e->state != UP && e->rx[e->rx_pos] == '-') {
        wrong = "that is the port for commands";
        if (is_news(e->domain, e->uri))
            log_warning("%s is no data port: it speaks RESP. Its host should name its data port "
                        "(data-port; tarn-node --data-port, --announce)",
                        e->uri);
    }
    if (wrong != NULL) {
        endpoint_fail(e, TARN_EPROTO, wrong);
        return false;
    }
    if (have < sizeof(h) + h.meta_length) return false;
    const uint8_t *meta = e->rx + e->rx_pos + sizeof(h);
    e->rx_pos += (uint32_t)sizeof(h) + h.meta_length;
    if (e->state == UP)
        handle_reply(e, &h, meta);
    else
        handle_greeting(e, &h, meta);
    return e->state != FAILED;
}

/* got bytes have arrived at the cursor: CRC while they are in the cache, then on. */
static void payload_arrived(struct transport_endpoint *e, uint64_t got) {
    struct transport_op *op = STAILQ_FIRST(&e->flight);
    struct tcp_op *st = tcp_op_of(op);
    st->at += got;
    e->payload_left -= got;
    while (got > 0) {
        struct iovec v = iov_here(&st->local);
        size_t len = (size_t)min_u64(v.iov_len, got);
        if (op->crcs != NULL) crc_track_feed(&st->crc, op, NULL, v.iov_base, len);
        iov_advance(&st->local, len);
        got -= len;
    }
    if (e->payload_left > 0) return;
    if (st->at == st->total) finish_head(e, TARN_OK);
    /* its next frame follows */
    else
        e->in_payload = false;
}

static void payload_from_buffer(struct transport_endpoint *e) {
    struct iov_cursor to = tcp_op_of(STAILQ_FIRST(&e->flight))->local;
    uint64_t max = min_u64(e->rx_len - e->rx_pos, e->payload_left);
    size_t taken = iov_copy_in(&to, e->rx + e->rx_pos, max);
    e->rx_pos += (uint32_t)taken;
    payload_arrived(e, taken);
}

/* Large payloads must not pass through rx, so before one only the reply's header is asked for. */
static size_t wanted_into_rx(const struct transport_endpoint *e) {
    struct transport_op *head = STAILQ_FIRST(&e->flight);
    size_t room = RX_BYTES - e->rx_len;
    if (head == NULL || head->kind == TRANSPORT_PUT) return room;
    const struct tcp_op *st = tcp_op_of(head);
    uint32_t have = e->rx_len - e->rx_pos;
    if (st->total - st->at < RX_BYTES || have >= sizeof(struct tcp_header)) return room;
    return sizeof(struct tcp_header) - have;
}

/* A host that hangs up in the middle of the handshake may know nothing of TLS. */
static const char *end_text(const struct transport_endpoint *e) {
    bool early = e->secure.tls != NULL && e->state != UP;
    return early ? "the host closed the connection during the handshake (does it speak TLS there?)"
                 : "the host closed it";
}

static size_t endpoint_receive(struct transport_endpoint *e) {
    if (!e->readable || e->state == FAILED || e->state == CONNECTING) return 0;
    struct iovec iov[CALL_IOV_MAX];
    size_t n = 1;
    bool direct = e->in_payload;
    if (direct) {
        struct transport_op *op = STAILQ_FIRST(&e->flight);
        uint64_t max = op->crcs != NULL ? CRC_CHUNK : MOVE_MAX;
        n = iov_gather(tcp_op_of(op)->local, min_u64(e->payload_left, max), iov, CALL_IOV_MAX);
    } else {
        memmove(e->rx, e->rx + e->rx_pos, e->rx_len - e->rx_pos);
        e->rx_len -= e->rx_pos;
        e->rx_pos = 0;
        iov[0] = (struct iovec){e->rx + e->rx_len, wanted_into_rx(e)};
    }
    tcp_expect(&e->secure, e->fd, direct ? e->payload_left : 0);
    ssize_t got = tcp_receive(&e->secure, e->fd, iov, n);
    if (got <= 0) {
        if (got < 0 && errno == EINTR) return 1;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            e->readable = false;
        else
            endpoint_fail(e, got == 0 ? TARN_ECLOSED : status_of_errno(errno),
                          got == 0 ? end_text(e) : error_text(e, errno));
        return 0;
    }
    if (direct) {
        payload_arrived(e, (uint64_t)got);
    } else {
        e->rx_len += (uint32_t)got;
    }
    while (e->state != FAILED && e->rx_pos < e->rx_len) {
        if (e->in_payload)
            payload_from_buffer(e);
        else if (!take_frame(e))
            break;
    }
    return (size_t)got;
}

/* --- turns --- */

static void check_connected(struct transport_endpoint *e) {
    int error = 0;
    socklen_t len = sizeof(error);
    if (getsockopt(e->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0) error = errno;
    if (error != 0)
        endpoint_fail(e, TARN_ECLOSED, strerror(error));
    else
        e->state = GREETING;
}

static uint64_t run_endpoint(struct transport_endpoint *e, uint64_t budget) {
    uint64_t spent = CALL_COST, moved = e->secure.moved;
    if (e->state == CONNECTING && e->writable) check_connected(e);
    if (e->state == CONNECTING) return spent;
    while (e->state != FAILED && spent < budget) {
        size_t received = endpoint_receive(e);
        size_t sent = endpoint_send(e);
        e->moved += e->secure.moved - moved;
        moved = e->secure.moved;
        if (received == 0 && sent == 0) return spent;
        spent += received + sent + CALL_COST;
        e->moved += received + sent;
    }
    if (e->state != FAILED) endpoint_enqueue(e);
    return spent;
}

/* How long the peer may keep the operation waiting that it owes a reply to. */
static uint64_t stall_ms(const struct transport_endpoint *e) {
    const struct transport_op *op =
        STAILQ_FIRST(STAILQ_EMPTY(&e->flight) ? &e->waiting : &e->flight);
    return op != NULL && op->patience_ms != 0 ? min_u64(op->patience_ms, STALL_MS) : STALL_MS;
}

/* It is late, but for what came while this process did not run. */
static bool is_late(struct transport_endpoint *e) {
    bool up = e->state == UP;
    e->readable = e->writable = true;
    run_endpoint(e, CALL_COST + 1);
    return e->state != FAILED && (up ? e->moved == 0 : e->state != UP);
}

static void look_at_deadlines(struct transport_domain *d) {
    uint64_t now = clock_boot_ms();
    struct transport_endpoint *e;
    TAILQ_FOREACH(e, &d->endpoints, link) {
        if (e->state == FAILED) continue;
        if (e->state == UP && (e->moved > 0 || e->outstanding == 0)) {
            e->deadline_boot_ms = now + stall_ms(e);
            e->moved = 0;
        }
        if (now >= e->deadline_boot_ms && is_late(e))
            endpoint_fail(e, TARN_ETIMEOUT,
                          e->state == UP ? "the host stalled" : "connecting took too long");
    }
}

static void endpoints_take_events(struct transport_domain *d) {
    struct epoll_event events[64];
    int n = epoll_wait(d->epoll_fd, events, 64, 0);
    for (int i = 0; i < n; i++) {
        struct tcp_tag *tag = events[i].data.ptr;
        if (tag->kind == TCP_TAG_NOTIFY) {
            eventfd_t ignored;
            (void)eventfd_read(d->notify_fd, &ignored);
            continue;
        }
        struct transport_endpoint *e = CONTAINER_OF(tag, struct transport_endpoint, tag);
        if (e->state == FAILED) continue;
        if (events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) e->readable = true;
        if (events[i].events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) e->writable = true;
        endpoint_enqueue(e);
    }
}

size_t tcp_progress(struct transport_domain *d, uint64_t budget) {
    d->completed = 0;
    endpoints_take_events(d);
    look_at_deadlines(d);
    struct transport_endpoint *e, *last = TAILQ_LAST(&d->runnable, run_queue);
    uint64_t spent = 0;
    while ((spent < budget || spent == 0) && (e = TAILQ_FIRST(&d->runnable)) != NULL) {
        TAILQ_UNLINK(&d->runnable, e, run_link);
        spent += run_endpoint(e, max_u64(budget / 4, 1));
        if (e == last) break;
    }
    return d->completed;
}

tarn_status tcp_arm(struct transport_domain *d, int *fd_p) {
    if (!TAILQ_EMPTY(&d->runnable)) return TARN_EAGAIN;
    *fd_p = d->epoll_fd;
    return TARN_OK;
}
