#include "transport/tcp/conn.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/tsan.h"
#include "transport/tcp/tcp.h"

#define CONN_MAGIC       0x54434f4eu /* "TCON" */
#define CALL_COST        512u        /* what a system call counts against the budget, in bytes */
#define RECEIVE_MAX      (1u << 20)
#define RECEIVE_JUNK     (16u << 10)
#define OUT_SOFT_MAX     1024u /* iovecs of a batch, one request more */
#define SEND_IOV_MAX     256u
#define RECEIVE_IOV_MAX  16u
#define TARGETS_KEEP_MAX 64u

enum conn_step { STEP_DONE, STEP_BLOCKED, STEP_CLOSE };

struct tcp_conn *tcp_conn_create(int fd, struct tls_stream *tls, uint64_t now_ms) {
    struct tcp_conn *c = xcalloc(1, sizeof(*c));
    c->magic = CONN_MAGIC;
    c->fd = fd;
    c->secure.tls = tls;
    c->readable = c->writable = true;
    c->last_ms = c->since_ms = now_ms;
    c->rx_cap = TCP_RX_FIRST;
    c->rx = xmalloc(c->rx_cap);
    STAILQ_INIT(&c->reads);
    TAILQ_INIT(&c->pieces);
    TAILQ_INIT(&c->sending);
    return c;
}

static void drop_receipts(struct tcp_conn *c) {
    struct tcp_receipts *r;
    while ((r = SLIST_TAKE(&c->receipts, link)) != NULL) free(r);
}

/* Of the WRITE that is being received: nothing more will be, by these grants. written: all of it
 * was. */
static void end_puts(struct tcp_conn *c, bool written) {
    for (uint32_t i = 0; i < c->in.n_targets; i++) {
        struct tcp_range *target = &c->in.targets[i];
        if (target->put == NULL) continue;
        c->in.gate->put_end(c->in.gate->arg, target->put, target->sub_offset,
                            written ? target->length : 0);
        target->put = NULL;
    }
}

void tcp_conn_destroy(struct tcp_conn **conn_p) {
    struct tcp_conn *c = *conn_p;
    if (c == NULL) return;
    MAGIC_CHECK(c, CONN_MAGIC);
    *conn_p = NULL;
    c->magic = 0;
    tcp_reads_drop(c);
    if (c->in.active) end_puts(c, false);
    drop_receipts(c);
    tls_stream_destroy(&c->secure.tls);
    free(c->rx);
    free(c->in.targets);
    free(c->out);
    free(c);
}

bool tcp_conn_midway(const struct tcp_conn *c) {
    if (!c->hello_done || c->in.active || c->out_at < c->out_n) return true;
    if (c->secure.tls != NULL && tcp_secure_kept(&c->secure)) return true;
    return STAILQ_EMPTY(&c->reads) && c->rx_len > c->rx_pos; /* else it is we who take our time */
}

bool tcp_conn_holds_pieces(const struct tcp_conn *c) {
    return c->out_at < c->out_n && c->n_pieces > 0;
}

/* --- the socket --- */

/* Takes bytes that nobody wants. */
static ssize_t conn_drain(struct tcp_conn *c, uint64_t max) {
    char junk[RECEIVE_JUNK];
    struct iovec iov = {junk, min_u64(max, sizeof(junk))};
    if (c->secure.tls != NULL) return tcp_secure_receive(&c->secure, c->fd, &iov, 1);
    return recv(c->fd, NULL, max, MSG_DONTWAIT | MSG_TRUNC); /* TCP drops them without a copy */
}

/* Why the socket took or gave nothing. */
static enum conn_step conn_failed(struct tcp_conn *c, struct tcp_turn_state *t, bool *ready) {
    switch (errno) {
    case EINTR: return STEP_DONE;
    case EAGAIN: *ready = false; return STEP_BLOCKED;
    case EINPROGRESS: return STEP_BLOCKED; /* the handshake */
    case EPROTO: break;
    default: return STEP_CLOSE;
    }
    if (c->secure.tls == NULL) return STEP_CLOSE;
    transport_count(&t->counters->bad_frames, 1);
    log_verbose("Data connection closed: TLS: %s", tls_why(c->secure.tls));
    if (tls_is_plain(c->secure.tls))
        tcp_turn_away(c->fd, TCP_WANTS_TLS, "this data port speaks TLS only (tcps://)");
    return STEP_CLOSE;
}

/* --- replies --- */

void tcp_out_add(struct tcp_conn *c, const void *data, size_t len) {
    if (len == 0) return;
    ARRAY_GROW(c->out, c->out_n, c->out_cap);
    c->out[c->out_n++] = (struct iovec){(void *)(uintptr_t)data, len};
}

static void note_segment(struct tcp_conn *c, uint32_t segment) {
    for (uint32_t i = 0; i < c->out_n_segments && i < TCP_SEGMENTS_MAX; i++) {
        if (c->out_segments[i] == segment) return;
    }
    if (c->out_n_segments < TCP_SEGMENTS_MAX) c->out_segments[c->out_n_segments] = segment;
    if (c->out_n_segments <= TCP_SEGMENTS_MAX) c->out_n_segments++;
}

void tcp_out_note(struct tcp_conn *c, const struct grant *g, const struct grant_extent *extent) {
    note_segment(c, extent->segment);
    if (c->out_memory && c->out_grant.expiry_ms <= g->expiry_ms) return;
    c->out_memory = true;
    c->out_grant = *g;
    c->out_extent = *extent;
}

bool tcp_conn_sends(const struct tcp_conn *c, uint32_t segment) {
    if (c->out_n_segments > TCP_SEGMENTS_MAX || tcp_reads_have(c, segment)) return true;
    for (uint32_t i = 0; i < c->out_n_segments; i++) {
        if (c->out_segments[i] == segment) return true;
    }
    return false;
}

struct tcp_header *tcp_reply_add(struct tcp_conn *c, uint64_t request_id, uint32_t status) {
    TARN_ASSERT(c->n_replies < TCP_REPLIES_MAX);
    struct tcp_header *h = &c->replies[c->n_replies++];
    *h = (struct tcp_header){
        .magic = TCP_MAGIC,
        .version = TCP_VERSION,
        .type = TCP_REPLY,
        .request_id = request_id,
        .status = status,
    };
    tcp_out_add(c, h, sizeof(*h));
    return h;
}

bool tcp_out_has_room(const struct tcp_conn *c) {
    return c->n_replies < TCP_REPLIES_MAX && c->out_n < OUT_SOFT_MAX;
}

static enum conn_step conn_send_batch(struct tcp_conn *c, struct tcp_turn_state *t) {
    tcp_reads_ask(c, t); /* so that the next batch is here when this one is there */
    if (!c->writable) return STEP_BLOCKED;
    /* A slow peer's bytes may lie here for long: what is there when the grant is over is not what
     * it was for. */
    enum grant_verdict v =
        c->out_memory ? t->gate->recheck(t->gate->arg, &c->out_grant, &c->out_extent) : GRANT_OK;
    if (v != GRANT_OK) {
        transport_count(&t->counters->refused[v], 1);
        log_verbose("Data connection closed: a grant ended (%s) before its bytes were sent",
                    grant_verdict_name(v));
        return STEP_CLOSE;
    }
    /* No slicing to the budget: the socket buffer bounds what one call takes. */
    TSAN_POOL_BEGIN();
    ssize_t sent = tcp_send(&c->secure, c->fd, c->out + c->out_at,
                            min_u64(c->out_n - c->out_at, SEND_IOV_MAX));
    TSAN_POOL_END();
    if (sent < 0) return conn_failed(c, t, &c->writable);
    t->spent += (uint64_t)sent;
    for (size_t n = (size_t)sent; n > 0;) {
        struct iovec *v = &c->out[c->out_at];
        size_t take = n < v->iov_len ? n : v->iov_len;
        v->iov_base = (char *)v->iov_base + take;
        v->iov_len -= take;
        n -= take;
        if (v->iov_len > 0) continue;
        tcp_reads_sent(c, v->iov_base);
        c->out_at++;
    }
    if (c->out_at < c->out_n) return STEP_DONE;
    if (c->out_reads > 0) tcp_time_add(t, &t->times->read, c->out_ns, c->out_reads);
    c->out_at = c->out_n = c->n_replies = c->out_n_segments = c->out_reads = 0;
    c->out_memory = false;
    drop_receipts(c);
    return STEP_DONE;
}

/* --- requests --- */

static enum conn_step conn_malformed(struct tcp_turn_state *t, const char *why) {
    transport_count(&t->counters->bad_frames, 1);
    log_verbose("Data connection closed: %s", why);
    return STEP_CLOSE;
}

/* A client that takes this for the port for commands has sent a request by now: RESP, or a line. */
static bool is_request(const struct tcp_conn *c) {
    const uint8_t *at = c->rx + c->rx_pos;
    uint32_t magic = TCP_MAGIC;
    return !c->hello_done && c->rx_len - c->rx_pos >= sizeof(magic) &&
           memcmp(at, &magic, sizeof(magic)) != 0 &&
           (*at == '*' || (*at >= 'A' && *at <= 'Z') || (*at >= 'a' && *at <= 'z'));
}

static void answer_request(struct tcp_conn *c, struct tcp_turn_state *t) {
    struct sockaddr_storage own = {0};
    socklen_t len = sizeof(own);
    unsigned port = 0;
    if (getsockname(c->fd, (struct sockaddr *)&own, &len) == 0)
        port = ntohs(own.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&own)->sin6_port
                                               : ((struct sockaddr_in *)(void *)&own)->sin_port);
    char hint[32] = "";
    if (port > 10000) snprintf(hint, sizeof(hint), ": %u", port - 10000);
    int n = snprintf(c->greeting.text, sizeof(c->greeting.text),
                     "-ERR this is " TCP_DATA_PORT
                     ", commands go to the port of tarn-server, by default the "
                     "data port - 10000%s; a tarn-node has none\r\n",
                     hint);
    tcp_out_add(c, c->greeting.text, (size_t)n);
    c->closing = c->lingers = true;
    c->rx_pos = c->rx_len;
    transport_count(&t->counters->bad_frames, 1);
    log_verbose("Data connection: what came looks like a request for the port for commands");
}

/* Closed with bytes unread, a socket takes the answer back from a peer that has not read it. */
static enum conn_step conn_linger(struct tcp_conn *c, struct tcp_turn_state *t) {
    (void)shutdown(c->fd, SHUT_WR);
    if (!c->readable) return STEP_BLOCKED;
    ssize_t got = conn_drain(c, RECEIVE_MAX);
    if (got == 0) return STEP_CLOSE;
    if (got < 0) return conn_failed(c, t, &c->readable);
    t->spent += (uint64_t)got;
    return STEP_DONE;
}

static enum conn_step handle_hello(struct tcp_conn *c, struct tcp_turn_state *t, const void *meta) {
    struct tcp_hello theirs;
    memcpy(&theirs, meta, sizeof(theirs));
    bool fits = theirs.version_min <= TCP_VERSION && theirs.version_max >= TCP_VERSION;
    struct tcp_header *h = tcp_reply_add(c, 0, fits ? TCP_OK : TCP_BAD_VERSION);
    h->version = 0;
    h->type = TCP_HELLO;
    c->greeting.hello = (struct tcp_hello){
        .version_min = TCP_VERSION,
        .version_max = TCP_VERSION,
        .features = theirs.features & TCP_FEATURE_PIECES,
        .parts_max = TCP_PARTS_MAX,
        .program = program_own(),
        .payload_max = TCP_PAYLOAD_MAX,
    };
    c->program = program_told(theirs.program);
    c->pieces_ok = (theirs.features & TCP_FEATURE_PIECES) != 0;
    size_t text = 0;
    if (!fits) {
        char program[PROGRAM_TEXT];
        program_write(c->program, program);
        text = (size_t)snprintf(c->greeting.text, sizeof(c->greeting.text),
                                "tarn " TARN_VERSION
                                " speaks version %u of the data protocol, you (tarn %s) %u to %u",
                                TCP_VERSION, program, theirs.version_min, theirs.version_max);
        c->closing = true;
        transport_count(&t->counters->bad_frames, 1);
    }
    h->meta_length = (uint32_t)(sizeof(c->greeting.hello) + text);
    tcp_out_add(c, &c->greeting, h->meta_length);
    c->hello_done = true;
    return STEP_DONE;
}

static uint32_t count_refusal(struct tcp_turn_state *t, enum grant_verdict v) {
    transport_count(&t->counters->refused[v], 1);
    return (uint32_t)v;
}

uint32_t tcp_admit(struct tcp_conn *c, struct tcp_turn_state *t, const uint8_t *part,
                   enum grant_op op, struct tcp_range *range_p) {
    struct tcp_part p;
    void *addr;
    memcpy(&p, part, sizeof(p));
    /* One by one, for every small read passes by here: zeroing what the gate fills in is not
     * free. */
    range_p->addr = NULL;
    range_p->put = NULL;
    range_p->extent = p.extent;
    range_p->sub_offset = p.sub_offset;
    range_p->length = p.sub_length;
    const struct grant *g = &range_p->grant;
    enum grant_verdict v = t->gate->check(t->gate->arg, p.grant, &p.extent, op, p.sub_offset,
                                          p.sub_length, &range_p->grant, &addr);
    if (v != GRANT_OK) return count_refusal(t, v);
    range_p->addr = addr;
    if (c->bound && c->session != g->session) {
        count_refusal(t, GRANT_BAD_OP);
        return TCP_OTHER_SESSION;
    }
    c->bound = true;
    c->session = g->session;
    c->epoch = g->master_epoch;
    return TCP_OK;
}

/* Forgets a reply that is still being made. */
static void take_back(struct tcp_conn *c, uint32_t first) {
    c->n_replies--;
    c->out_n = first;
}

static void handle_read(struct tcp_conn *c, struct tcp_turn_state *t, const struct tcp_header *h,
                        const uint8_t *meta, uint64_t bytes) {
    if (!STAILQ_EMPTY(&c->reads)) {
        tcp_reads_add(c, t, h, meta, bytes);
        return;
    }
    uint32_t first = c->out_n;
    struct tcp_header *reply = tcp_reply_add(c, h->request_id, TCP_OK);
    for (uint32_t at = 0; at < h->meta_length; at += (uint32_t)sizeof(struct tcp_part)) {
        struct tcp_range r;
        reply->status = tcp_admit(c, t, meta + at, GRANT_READ, &r);
        if (reply->status != TCP_OK) {
            c->out_n = first + 1; /* all or nothing */
            return;
        }
        if (r.addr == NULL && r.length > 0) { /* not memory: again, the other way */
            take_back(c, first);
            tcp_reads_add(c, t, h, meta, bytes);
            return;
        }
        tcp_out_add(c, r.addr, r.length);
        tcp_out_note(c, &r.grant, &r.extent);
    }
    reply->payload_length = bytes;
    if (c->out_reads++ == 0) c->out_ns = t->now_ns;
    transport_count(&t->counters->reads, 1);
    transport_count(&t->counters->bytes_read, bytes);
}

/* From now on nothing of the WRITE is received. */
static void refuse_write(struct tcp_conn *c, struct tcp_turn_state *t, enum grant_verdict v) {
    end_puts(c, false);
    c->in.status = (enum tcp_wire_status)count_refusal(t, v);
}

/* Seals the grants of the WRITE's parts. NULL: refused. */
static struct tcp_receipts *seal_parts(struct tcp_conn *c, struct tcp_turn_state *t) {
    struct tcp_receipts *r = xcalloc(1, sizeof(*r) + c->in.n_targets * GRANT_RECEIPT_SIZE);
    for (uint32_t i = 0; i < c->in.n_targets; i++) {
        const struct tcp_range *target = &c->in.targets[i];
        if (target->grant.op != GRANT_WRITE_ONCE) continue;
        enum grant_verdict v = t->gate->put_seal(t->gate->arg, &target->grant, &target->extent,
                                                 r->data + i * GRANT_RECEIPT_SIZE);
        if (v == GRANT_OK) continue;
        c->in.status = (enum tcp_wire_status)count_refusal(t, v);
        free(r);
        return NULL;
    }
    SLIST_INSERT_HEAD(&c->receipts, r, link);
    return r;
}

static void finish_write(struct tcp_conn *c, struct tcp_turn_state *t) {
    c->in.active = false;
    end_puts(c, c->in.status == TCP_OK);
    struct tcp_receipts *receipts = c->in.seal && c->in.status == TCP_OK ? seal_parts(c, t) : NULL;
    struct tcp_header *h = tcp_reply_add(c, c->in.request_id, c->in.status);
    if (receipts != NULL) {
        h->meta_length = c->in.n_targets * GRANT_RECEIPT_SIZE;
        tcp_out_add(c, receipts->data, h->meta_length);
    }
    if (c->in.status == TCP_OK) {
        tcp_time_add(t, &t->times->write, c->in.began_ns, 1);
        transport_count(&t->counters->writes, 1);
        transport_count(&t->counters->bytes_written, c->in.bytes);
    }
    if (c->in.cap_targets > TARGETS_KEEP_MAX) {
        free(c->in.targets);
        c->in.targets = NULL;
        c->in.cap_targets = 0;
    }
}

/* One more target of the WRITE, or its refusal. */
static void admit_target(struct tcp_conn *c, struct tcp_turn_state *t, const uint8_t *part) {
    struct tcp_range *target = &c->in.targets[c->in.n_targets];
    enum grant_verdict v = GRANT_OK;
    uint32_t status = tcp_admit(c, t, part, GRANT_WRITE, target);
    if (status != TCP_OK) {
        end_puts(c, false);
        c->in.status = (enum tcp_wire_status)status;
        return;
    }
    if (target->addr == NULL && target->length > 0) v = GRANT_BAD_OP;
    if (target->grant.op == GRANT_WRITE_ONCE && t->gate->put_begin == NULL) v = GRANT_BAD_OP;
    if (v == GRANT_OK && target->grant.op == GRANT_WRITE_ONCE && target->length > 0)
        v = t->gate->put_begin(t->gate->arg, &target->grant, &target->extent, &target->put);
    if (v != GRANT_OK) {
        refuse_write(c, t, v);
        return;
    }
    c->in.n_targets++;
}

static void handle_write(struct tcp_conn *c, struct tcp_turn_state *t, const struct tcp_header *h,
                         const uint8_t *meta, uint64_t bytes) {
    uint32_t n = h->meta_length / (uint32_t)sizeof(struct tcp_part);
    if (n > c->in.cap_targets) {
        c->in.targets = xrealloc(c->in.targets, n * sizeof(*c->in.targets));
        c->in.cap_targets = n;
    }
    c->in.active = true;
    c->in.seal = (h->flags & TCP_FLAG_SEAL) != 0;
    c->in.gate = t->gate;
    c->in.status = TCP_OK;
    c->in.request_id = h->request_id;
    c->in.bytes = c->in.left = bytes;
    c->in.began_ns = t->now_ns;
    c->in.n_targets = 0;
    c->in.at = 0;
    c->in.at_offset = 0;
    for (uint32_t i = 0; i < n && c->in.status == TCP_OK; i++)
        admit_target(c, t, meta + i * sizeof(struct tcp_part));
    if (bytes == 0) finish_write(c, t);
}

/* --- payload of a WRITE --- */

static void incoming_advance(struct tcp_conn *c, uint64_t n) {
    c->in.left -= n;
    if (c->in.status != TCP_OK) return; /* draining: nobody counts targets */
    while (n > 0) {
        struct tcp_range *target = &c->in.targets[c->in.at];
        uint64_t take = min_u64(n, target->length - c->in.at_offset);
        c->in.at_offset += take;
        n -= take;
        if (c->in.at_offset == target->length) {
            c->in.at++;
            c->in.at_offset = 0;
        }
    }
}

/* The next places in segment memory, each under a grant that is good at this moment. 0: refused
 * from now on, or none. */
static size_t next_places(struct tcp_conn *c, struct tcp_turn_state *t, struct iovec *iov,
                          uint64_t max) {
    size_t n = 0;
    uint64_t offset = c->in.at_offset;
    for (uint32_t i = c->in.at; i < c->in.n_targets && n < RECEIVE_IOV_MAX && max > 0;
         i++, offset = 0) {
        struct tcp_range *target = &c->in.targets[i];
        uint64_t len = min_u64(target->length - offset, max);
        if (len == 0) continue;
        enum grant_verdict v = t->gate->recheck(t->gate->arg, &target->grant, &target->extent);
        if (v != GRANT_OK) {
            refuse_write(c, t, v);
            return 0;
        }
        iov[n++] = (struct iovec){target->addr + offset, len};
        max -= len;
    }
    return n;
}

/* Bytes that came along with the frame. */
static void take_buffered(struct tcp_conn *c, struct tcp_turn_state *t) {
    struct iovec iov[RECEIVE_IOV_MAX];
    uint64_t have = min_u64(c->rx_len - c->rx_pos, c->in.left);
    size_t n = c->in.status == TCP_OK ? next_places(c, t, iov, have) : 0;
    struct iov_cursor to = iov_cursor(iov, n);
    TSAN_POOL_BEGIN();
    uint64_t taken = c->in.status == TCP_OK ? iov_copy_in(&to, c->rx + c->rx_pos, have) : have;
    TSAN_POOL_END();
    incoming_advance(c, taken);
    c->rx_pos += (uint32_t)taken;
    t->spent += taken;
}

static enum conn_step receive_payload(struct tcp_conn *c, struct tcp_turn_state *t) {
    if (c->rx_pos < c->rx_len) {
        take_buffered(c, t);
        if (c->in.left == 0) finish_write(c, t);
        return STEP_DONE;
    }
    if (!c->readable) return STEP_BLOCKED;
    struct iovec iov[RECEIVE_IOV_MAX];
    uint64_t max = min_u64(c->in.left, RECEIVE_MAX);
    size_t n = c->in.status == TCP_OK ? next_places(c, t, iov, max) : 0;
    tcp_expect(&c->secure, c->fd, c->in.left);
    TSAN_POOL_BEGIN();
    ssize_t got =
        c->in.status == TCP_OK ? tcp_receive(&c->secure, c->fd, iov, n) : conn_drain(c, max);
    TSAN_POOL_END();
    if (got == 0) return STEP_CLOSE;
    if (got < 0) return conn_failed(c, t, &c->readable);
    incoming_advance(c, (uint64_t)got);
    t->spent += (uint64_t)got;
    if (c->in.left == 0) finish_write(c, t);
    return STEP_DONE;
}

/* --- frames --- */

/* Does a long frame of one who has shown no good grant begin with one? Its other parts are not
 * waited for before. false: more bytes are needed (rx_need), or it is told that it has no right,
 * and goes. */
static bool shows_right(struct tcp_conn *c, struct tcp_turn_state *t, const struct tcp_header *h) {
    struct tcp_range first;
    c->rx_need = (uint32_t)(sizeof(*h) + sizeof(struct tcp_part));
    if (c->rx_len - c->rx_pos < c->rx_need) return false;
    uint32_t status = tcp_admit(c, t, c->rx + c->rx_pos + sizeof(*h),
                                h->type == TCP_READ ? GRANT_READ : GRANT_WRITE, &first);
    if (status == TCP_OK) return true;
    tcp_reply_add(c, h->request_id, status);
    c->closing = true;
    return false;
}

/* Handles the frame at rx_pos if it is whole. false: more bytes are needed (rx_need), or *step_p
 * says CLOSE. */
static bool handle_frame(struct tcp_conn *c, struct tcp_turn_state *t, enum conn_step *step_p) {
    struct tcp_header h;
    uint32_t have = c->rx_len - c->rx_pos;
    c->rx_need = sizeof(h);
    if (UNLIKELY(is_request(c))) {
        answer_request(c, t);
        return false;
    }
    if (have < sizeof(h)) return false;
    memcpy(&h, c->rx + c->rx_pos, sizeof(h));
    const char *wrong = tcp_request_check(&h, c->hello_done);
    if (wrong != NULL) {
        *step_p = conn_malformed(t, wrong);
        return false;
    }
    if (!c->bound && h.meta_length > TCP_RX_BYTES && !shows_right(c, t, &h)) return false;
    c->rx_need = (uint32_t)sizeof(h) + h.meta_length;
    if (have < c->rx_need) return false;
    /* replies keep their order */
    if (h.type == TCP_WRITE && !STAILQ_EMPTY(&c->reads)) return false;
    const uint8_t *meta = c->rx + c->rx_pos + sizeof(h);
    c->rx_pos += c->rx_need;
    if (h.type == TCP_HELLO) {
        *step_p = handle_hello(c, t, meta);
        return true;
    }
    uint64_t bytes;
    wrong = tcp_parts_check(&h, meta, &bytes);
    if (wrong != NULL) {
        *step_p = conn_malformed(t, wrong);
        return false;
    }
    if (h.type == TCP_READ)
        handle_read(c, t, &h, meta, bytes);
    else
        handle_write(c, t, &h, meta, bytes);
    t->spent += CALL_COST;
    return true;
}

/* Moves what is left to the front, and fits the buffer to the frame that is expected. */
static void rx_make_room(struct tcp_conn *c) {
    uint32_t have = c->rx_len - c->rx_pos;
    if (c->rx_pos > 0) memmove(c->rx, c->rx + c->rx_pos, have);
    c->rx_pos = 0;
    c->rx_len = have;
    uint32_t least = c->rx_busy ? TCP_RX_BUSY_BYTES : TCP_RX_BYTES;
    uint32_t want = c->rx_need > least ? c->rx_need : least;
    if (!c->bound && want > 2 * have) want = 2 * have > TCP_RX_FIRST ? 2 * have : TCP_RX_FIRST;
    if (want > c->rx_cap || (want < c->rx_cap && have <= want && !c->rx_busy)) {
        c->rx = xrealloc(c->rx, want);
        c->rx_cap = want;
    }
}

static enum conn_step rx_fill(struct tcp_conn *c, struct tcp_turn_state *t) {
    if (!c->readable) return STEP_BLOCKED;
    rx_make_room(c);
    struct iovec iov = {c->rx + c->rx_len, c->rx_cap - c->rx_len};
    tcp_expect(&c->secure, c->fd, 0);
    ssize_t got = tcp_receive(&c->secure, c->fd, &iov, 1);
    if (got == 0) return STEP_CLOSE;
    if (got < 0) return conn_failed(c, t, &c->readable);
    c->rx_len += (uint32_t)got;
    c->rx_busy = c->rx_len == c->rx_cap || c->rx_len > TCP_RX_BYTES;
    t->spent += (uint64_t)got;
    return STEP_DONE;
}

/* Frames that are here become one batch of replies; then it is sent. */
static enum conn_step read_frames(struct tcp_conn *c, struct tcp_turn_state *t) {
    enum conn_step step = STEP_DONE;
    while (!c->in.active && !c->closing && STAILQ_EMPTY(&c->reads) && tcp_out_has_room(c) &&
           handle_frame(c, t, &step)) {
    }
    if (step == STEP_CLOSE || c->in.active || c->out_n > 0 || !STAILQ_EMPTY(&c->reads)) return step;
    return rx_fill(c, t);
}

/* Replies that wait for their bytes: sends those that are there, takes in more requests as far as
 * there is room, and is called again when a piece has come. */
static enum conn_step serve_reads(struct tcp_conn *c, struct tcp_turn_state *t) {
    enum conn_step step = STEP_DONE;
    while (tcp_reads_have_room(c) && handle_frame(c, t, &step)) {
    }
    if (step == STEP_CLOSE) return step;
    tcp_reads_ask(c, t);
    tcp_reads_put(c, t);
    if (c->out_n > 0) return STEP_DONE;
    bool may_fill = tcp_reads_have_room(c) && c->rx_len - c->rx_pos < c->rx_need;
    return may_fill ? rx_fill(c, t) : STEP_BLOCKED;
}

/* Ciphertext that an earlier turn could not send. false: there is some yet; what is wrong with the
 * socket shows elsewhere. */
static bool send_kept(struct tcp_conn *c) {
    if (!tcp_secure_kept(&c->secure)) return true;
    if (!c->writable) return false;
    if (tcp_secure_flush(&c->secure, c->fd)) return true;
    c->writable = false;
    return false;
}

enum tcp_turn tcp_conn_turn(struct tcp_conn *c, const struct transport_gate *gate,
                            struct tcp_stager *stager, const struct tcp_figures *figures,
                            uint64_t *now_ns, uint64_t budget) {
    MAGIC_CHECK(c, CONN_MAGIC);
    c->stager = stager;
    struct tcp_turn_state t = {.gate = gate,
                               .stager = stager,
                               .counters = figures->counters,
                               .times = figures->times,
                               .now_ms = *now_ns / 1000000,
                               .now_ns = *now_ns};
    enum conn_step step = STEP_DONE;
    uint64_t before = 0, moved = c->secure.moved;
    while (step == STEP_DONE && t.spent < budget) {
        bool kept = c->secure.tls != NULL && !send_kept(c);
        if (c->out_at < c->out_n)
            step = conn_send_batch(c, &t);
        else if (c->closing)
            step = kept ? STEP_BLOCKED : c->lingers ? conn_linger(c, &t) : STEP_CLOSE;
        else if (c->in.active)
            step = receive_payload(c, &t);
        else if (!STAILQ_EMPTY(&c->reads))
            step = serve_reads(c, &t);
        else
            step = read_frames(c, &t);
        if (t.spent > before || c->secure.moved != moved) c->last_ms = t.now_ms;
        before = t.spent += CALL_COST;
    }
    *now_ns = t.now_ns;
    if (step == STEP_CLOSE) return TCP_TURN_CLOSE;
    return step == STEP_BLOCKED ? TCP_TURN_WAIT : TCP_TURN_MORE;
}
