/* Unsent replies: bytes, and between them values that go out straight from the pool.
 *
 *   bytes:   |+OK\r\n$4194304\r\n|\r\n:1\r\n*|1) ...
 *   inserts:                     ^ 8 pieces of the pool
 *                                                ^ header of an array whose length is not known
 *
 * While a client's commands run, `bytes` is a buffer that all clients lend from here; the usual
 * reply leaves it with one write() and it goes back empty. */
#include "front/client.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/log.h"
#include "front/above.h"
#include "front/effects.h"
#include "front/stats.h"
#include "net/transfer.h"
#include "config/config.h"

#define SHARED_CAP          (64u * 1024)
#define SHARED_KEEP_MAX     (1024u * 1024)
#define WRITE_PER_CALL      (4u * 1024 * 1024) /* then others have their turn */
#define TLS_PER_CALL        (512u * 1024)      /* the same where each byte costs */
#define IOV_MAX_USED        NET_TRANSFER_PIECES
#define STRANGER_OUTPUT_MAX (16u * 1024) /* of one that has not said who it is */
/* from here on the limit is looked at with every message */
#define PUSH_CHECK (1024u * 1024)
/* A replica that waits for so much is told within a turn, and so are the clients behind it: all of
 * them work while the turn goes on. */
#define REPLICA_WAITS_MAX (32u * 1024)

static_assert(IOV_MAX_USED <= 64, "a bit for each");

static struct buf shared;
static struct client_list flush_list = TAILQ_HEAD_INITIALIZER(flush_list);

void client_write_init(void) {
    buf_reserve(&shared, SHARED_CAP);
}
void client_write_deinit(void) {
    buf_free(&shared);
}

size_t client_unsent(const struct client *c) {
    const struct client_out *o = &c->io->out;
    return o->bytes.len - o->sent + o->insert_bytes + o->tls_bytes;
}

size_t client_output_memory(const struct client *c) {
    const struct client_out *o = &c->io->out;
    bool lent = c->io->flags & CLIENT_RUNNING && shared.cap == 0 && o->bytes.cap <= SHARED_KEEP_MAX;
    return (lent ? 0 : o->bytes.cap) + o->insert_cap * sizeof(struct out_insert) + c->io->late.cap;
}

void client_output_begin(struct client *c) {
    struct buf *b = &c->io->out.bytes;
    if (LIKELY(b->cap == 0)) {
        *b = shared;
        shared = (struct buf){NULL, 0, 0};
    }
}

/* All is sent: lends the buffer to the next one. */
static void output_give_back(struct client_out *o) {
    o->sent = 0;
    o->bytes.len = 0;
    if (shared.cap == 0 && o->bytes.cap >= SHARED_CAP && o->bytes.cap <= SHARED_KEEP_MAX) {
        shared = o->bytes;
        o->bytes = (struct buf){NULL, 0, 0};
    } else {
        buf_free(&o->bytes);
    }
    if (UNLIKELY(o->insert != NULL)) {
        o->dropped_inserts += o->inserts;
        free(o->insert);
        o->insert = NULL;
        o->inserts = o->first_insert = o->insert_cap = 0;
    }
}

/* What the socket did not take stays with the client, in memory of its size. */
static void output_settle(struct client_out *o) {
    if (shared.cap != 0) return;
    size_t left = o->bytes.len - o->sent;
    if (left <= SHARED_CAP / 2 && o->bytes.cap >= SHARED_CAP && o->bytes.cap <= SHARED_KEEP_MAX) {
        struct buf own = {NULL, 0, 0};
        buf_append(&own, o->bytes.data + o->sent, left);
        for (unsigned i = o->first_insert; i < o->inserts; i++) o->insert[i].at -= o->sent;
        shared = o->bytes;
        shared.len = 0;
        o->bytes = own;
        o->sent = 0;
    } else {
        buf_reserve(&shared, SHARED_CAP);
    }
}

/* --- inserts --- */

struct out_insert *client_out_insert(struct client *c) {
    struct client_out *o = &c->io->out;
    if (o->inserts == o->insert_cap) {
        if (o->first_insert > o->inserts / 2) {
            o->inserts -= o->first_insert;
            memmove(o->insert, o->insert + o->first_insert, o->inserts * sizeof(*o->insert));
            o->dropped_inserts += o->first_insert;
            o->first_insert = 0;
        } else {
            o->insert_cap = o->insert_cap == 0 ? 4 : o->insert_cap * 2;
            o->insert = xrealloc(o->insert, o->insert_cap * sizeof(*o->insert));
        }
    }
    struct out_insert *in = &o->insert[o->inserts++];
    memset(in, 0, sizeof(*in));
    in->at = o->bytes.len;
    return in;
}

static void insert_drop(struct client_out *o, struct out_insert *in) {
    o->insert_bytes -= in->len;
    in->len = 0;
    if (in->hold != NULL) store_unhold(books, &in->hold);
    void (*release)(void *owner) = in->release;
    in->release = NULL;
    if (release != NULL) release(in->owner);
}

void client_output_mark(struct client *c) {
    c->io->mark_bytes = c->io->out.bytes.len - c->io->out.sent;
    c->io->mark_inserts = c->io->out.dropped_inserts + c->io->out.inserts;
}

static void rewind_to(struct client_out *o, size_t bytes, unsigned inserts) {
    while (o->inserts > o->first_insert && o->dropped_inserts + o->inserts > inserts)
        insert_drop(o, &o->insert[--o->inserts]);
    size_t len = o->sent + bytes;
    if (o->bytes.len > len) o->bytes.len = len;
}

void client_output_rewind(struct client *c) {
    rewind_to(&c->io->out, c->io->mark_bytes, c->io->mark_inserts);
}

/* --- replies whose records are not in the append-only file --- */

/* While something is noted nothing is sent, so all replies of a turn are still here when its
 * records were, or could not be, written. From the first one on that tells of a change they become
 * errors then: what happened in memory happened, and the file gets it when it can; but nobody was
 * told that it would last. */

void client_unwritten_count(struct client *c) {
    if (c->io->unwritten_replies < UINT_MAX) c->io->unwritten_replies++;
}

void client_unwritten_other(struct client *c) {
    c->io->unwritten_replies = UINT_MAX;
}

void client_unwritten_mark(struct client *c) {
    struct client_io *io = c->io;
    if (io->flags & CLIENT_UNWRITTEN) return;
    io->flags |= CLIENT_UNWRITTEN;
    io->unwritten_bytes = io->mark_bytes;
    io->unwritten_inserts = io->mark_inserts;
    io->unwritten_replies = 1;
}

/* Are there exactly unwritten_replies whole replies since the mark? */
static bool unwritten_countable(const struct client *c) {
    const unsigned other = CLIENT_REPLY_OFF | CLIENT_REPLY_SKIP | CLIENT_REPLY_SKIP_NEXT |
                           CLIENT_CLOSE_AFTER_REPLY | CLIENT_MONITOR | CLIENT_PUBSUB |
                           CLIENT_REPLICA;
    return c->job == NULL && !(c->io->flags & other) && c->io->unwritten_replies < UINT_MAX;
}

/* The records of this turn were handed over. */
static void settle_unwritten(struct client *c) {
    struct client_io *io = c->io;
    struct client_out *o = &io->out;
    const char *why = above.unwritten();
    io->flags &= ~CLIENT_UNWRITTEN;
    if (LIKELY(why == NULL) || (c->job != NULL && o->bytes.len - o->sent <= io->unwritten_bytes))
        return;
    stats.aof_unwritten_replies++;
    if (!unwritten_countable(c)) {
        client_close_soon(c);
        return;
    }
    rewind_to(o, io->unwritten_bytes, io->unwritten_inserts);
    for (unsigned i = 0; i < io->unwritten_replies; i++) reply_error(c, "-%s", why);
}

/* --- sending --- */

/* Unsent bytes in order, up to the first header that is not known yet. *values_p: a bit for every
 * piece of a value. */
static int output_gather(const struct client_out *o, struct iovec *iov, uint64_t *values_p,
                         size_t *total_p) {
    int n = 0;
    uint64_t values = 0;
    size_t pos = o->sent, total = 0;
    for (unsigned i = o->first_insert; n < IOV_MAX_USED; i++) {
        bool last = i == o->inserts;
        size_t upto = last ? o->bytes.len : o->insert[i].at;
        if (upto > pos) {
            iov[n++] = (struct iovec){o->bytes.data + pos, upto - pos};
            total += upto - pos;
            pos = upto;
        }
        if (last || o->insert[i].pending) break;
        struct out_insert *in = &o->insert[i];
        if (in->header_len > 0 && in->len > 0 && n < IOV_MAX_USED) {
            iov[n++] = (struct iovec){in->header + in->header_len - in->len, in->len};
            total += in->len;
        }
        for (unsigned p = in->first; p < in->n && n < IOV_MAX_USED; p++) {
            if (in->piece[p].len == 0) continue;
            values |= UINT64_C(1) << n;
            iov[n++] = (struct iovec){(void *)(uintptr_t)in->piece[p].data, in->piece[p].len};
            total += in->piece[p].len;
        }
        if (n == IOV_MAX_USED) break;
    }
    *values_p = values;
    *total_p = total;
    return n;
}

void client_output_sent(struct client *c, size_t n) {
    struct client_out *o = &c->io->out;
    size_t sent_before = o->sent;
    for (;;) {
        struct out_insert *in = o->first_insert < o->inserts ? &o->insert[o->first_insert] : NULL;
        size_t upto = in != NULL ? in->at : o->bytes.len;
        size_t step = min_u64(upto - o->sent, n);
        o->sent += step;
        n -= step;
        if (in == NULL || o->sent < in->at || in->pending) break;
        if (in->header_len > 0) {
            size_t k = min_u64(in->len, n);
            in->len -= k;
            n -= k;
            o->insert_bytes -= k;
        }
        while (n > 0 && in->len > 0) {
            struct span *p = &in->piece[in->first];
            size_t k = min_u64(p->len, n);
            p->data += k;
            p->len -= k;
            n -= k;
            in->len -= k;
            o->insert_bytes -= k;
            if (p->len == 0 && in->first + 1u < in->n) in->first++;
        }
        if (in->len > 0) break;
        insert_drop(o, in);
        o->first_insert++;
    }
    TARN_ASSERT(n == 0);
    /* It counts from there; and a thread may send while something is noted. */
    if (UNLIKELY(c->io->flags & CLIENT_UNWRITTEN))
        c->io->unwritten_bytes -= min_u64(c->io->unwritten_bytes, o->sent - sent_before);
}

unsigned client_output_pieces(const struct client *c, size_t max, struct iovec *iov, char *room,
                              size_t room_size, size_t *total_p) {
    uint64_t values;
    size_t all, total = 0;
    unsigned n = (unsigned)output_gather(&c->io->out, iov, &values, &all), i;
    for (i = 0; i < n && total < max; i++) {
        size_t len = iov[i].iov_len;
        if (!(values >> i & 1)) { /* bytes and headers move when more is said */
            if (len > room_size) break;
            iov[i].iov_base = memcpy(room, iov[i].iov_base, len);
            room += len;
            room_size -= len;
        } else if (len > max - total) {
            iov[i].iov_len = len = max - total;
        }
        total += len;
    }
    *total_p = total;
    return i;
}

/* What TLS has taken has left; how much it takes is bounded there. false: the connection is
 * dead. */
static bool send_tls(struct client *c) {
    struct client_out *o = &c->io->out;
    size_t sent = 0;
    for (;;) {
        struct iovec iov[IOV_MAX_USED];
        uint64_t values;
        size_t want;
        int rc = client_tls_flush(c);
        if (rc <= 0 || sent >= TLS_PER_CALL) return rc >= 0;
        int pieces = output_gather(o, iov, &values, &want);
        size_t n = client_tls_write(c, iov, pieces);
        if (n == 0) return want == 0 || tls_state(c->io->tls) != TLS_FAILED;
        client_output_sent(c, n);
        sent += n;
        stats.total_net_output_bytes += n;
        c->io->bytes_out += n;
    }
}

static ssize_t send_bytes(struct client_io *io, char *bytes, size_t n) {
    if (io->watch.ring != NULL) return net_ring_write(io->watch.ring, &(struct iovec){bytes, n}, 1);
    /* send() is a cancellation point, which costs two atomic operations */
    return syscall(SYS_sendto, io->watch.fd, bytes, n, MSG_NOSIGNAL, NULL, 0);
}

/* false: the connection is dead. */
static bool send_some(struct client *c) {
    struct client_io *io = c->io;
    if (UNLIKELY(io->tls != NULL)) return send_tls(c);
    struct client_out *o = &io->out;
    if (UNLIKELY(o->insert_bytes > 0 || io->away != NULL) && client_send_away(c)) return true;
    size_t sent = 0;
    while (sent < WRITE_PER_CALL) {
        ssize_t n;
        size_t want;
        if (LIKELY(o->first_insert == o->inserts)) {
            want = o->bytes.len - o->sent;
            if (want == 0) break;
            n = send_bytes(io, o->bytes.data + o->sent, want);
            if (LIKELY(n > 0)) o->sent += (size_t)n;
        } else {
            struct iovec iov[IOV_MAX_USED];
            struct msghdr msg = {.msg_iov = iov};
            uint64_t values;
            msg.msg_iovlen = (size_t)output_gather(o, iov, &values, &want);
            if (want == 0) break; /* a header is awaited */
            n = io->watch.ring != NULL ? net_ring_write(io->watch.ring, iov, msg.msg_iovlen)
                                       : sendmsg(io->watch.fd, &msg, MSG_NOSIGNAL);
            if (n > 0) client_output_sent(c, (size_t)n);
        }
        stats.total_writes_processed++;
        if (UNLIKELY(n <= 0)) {
            if (n < 0 && errno == EINTR) continue;
            return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        }
        sent += (size_t)n;
        stats.total_net_output_bytes += (uint64_t)n;
        io->bytes_out += (uint64_t)n;
        if ((size_t)n < want) break;
    }
    return true;
}

static bool header_awaited(const struct client_out *o) {
    return o->first_insert < o->inserts && o->insert[o->first_insert].pending &&
           o->sent == o->insert[o->first_insert].at;
}

void client_update_interest(struct client *c) {
    struct client_io *io = c->io;
    bool want = client_unsent(c) > 0 && (!header_awaited(&io->out) || io->out.tls_bytes > 0);
    bool read = !(io->flags & CLIENT_READ_OFF) && !client_is_deaf(c),
         receives = client_away_receives(c);
    if (UNLIKELY(io->away != NULL)) want &= receives;
    unsigned events = (read && !receives ? NET_READ : 0u) | (want ? NET_WRITE : 0u);
    if (UNLIKELY(events != io->watch.events) && net_watch_set(&io->watch, events) != TARN_OK)
        client_close_soon(c);
}

static void output_flush(struct client *c) {
    struct client_io *io = c->io;
    if (UNLIKELY(io->flags & CLIENT_UNWRITTEN)) settle_unwritten(c);
    if (io->flags & CLIENT_CLOSE_SOON) return;
    if (!send_some(c)) {
        client_close_dead(c);
        return;
    }
    if (LIKELY(client_unsent(c) == 0)) {
        if (LIKELY(io->out.first_insert == io->out.inserts)) output_give_back(&io->out);
        if (UNLIKELY(io->flags & CLIENT_CLOSE_AFTER_REPLY))
            client_close_soon(c);
        else if (UNLIKELY(io->flags & CLIENT_HALF))
            client_ready(c); /* this may have been all */
    } else {
        output_settle(&io->out);
    }
    if (UNLIKELY(io->flags & CLIENT_REPLICA)) above.replica_drained(c);
    client_update_interest(c);
}

/* Is there something to be sent to a replica, at least so much? Those are in front. */
static bool replica_waits(size_t bytes) {
    const struct client *first = TAILQ_FIRST(&flush_list);
    return UNLIKELY(first != NULL) && first->io->flags & CLIENT_REPLICA &&
           client_unsent(first) >= bytes;
}

void client_output_end(struct client *c) {
    struct client_out *o = &c->io->out;
    if (o->bytes.len == o->sent && o->first_insert == o->inserts) { /* nothing was said */
        output_give_back(o);
        c->io->flags &= ~CLIENT_UNWRITTEN;
        if (UNLIKELY(c->io->flags & CLIENT_CLOSE_AFTER_REPLY) && o->tls_bytes == 0)
            client_close_soon(c);
        /* What was too much of it may have been taken back. */
        if (UNLIKELY(!(c->io->watch.events & NET_READ) && !(c->io->flags & CLIENT_CLOSE_SOON)))
            client_update_interest(c);
        return;
    }
    if (replica_waits(REPLICA_WAITS_MAX)) {
        effects_turn();
        clients_flush();
    }
    /* Nobody hears of what is not written down yet: those of this turn go together. */
    if (UNLIKELY(effects_pending()) || replica_waits(0)) {
        output_settle(o);
        client_flush_later(c);
        return;
    }
    output_flush(c);
    if (UNLIKELY(client_unsent(c) > 0)) client_output_limit(c);
}

/* What waited for the peer to take some goes on, if it has. */
static void output_drained(struct client *c) {
    if (client_is_deaf(c)) return;
    job_output_drained(c);
    client_ready(c);
}

void client_on_writable(struct client *c) {
    effects_turn();
    output_flush(c);
    output_drained(c);
}

void client_drop_stranger(struct client *c, const char *what) {
    client_close_because(c, LOG_LEVEL_VERBOSE, "too many bytes of %s before it has authenticated",
                         what);
    stats.unauthenticated_disconnections++;
}

/* Space that was sent is given back while a long queue is being worked off. */
void client_output_limit(struct client *c) {
    struct client_io *io = c->io;
    struct client_out *o = &io->out;
    if (o->sent > 64 * 1024 && o->sent > o->bytes.len / 2) {
        for (unsigned i = o->first_insert; i < o->inserts; i++) o->insert[i].at -= o->sent;
        buf_consume(&o->bytes, o->sent);
        o->sent = 0;
    }
    bool listens = (io->flags & (CLIENT_MONITOR | CLIENT_PUBSUB)) != 0,
         follows = io->flags & CLIENT_REPLICA;
    const struct config_output_limit *limit =
        &config->output_limit[follows   ? CONFIG_OUTPUT_REPLICA
                              : listens ? CONFIG_OUTPUT_PUBSUB
                                        : CONFIG_OUTPUT_NORMAL];
    size_t held = o->bytes.len - o->sent + io->late.len;
    /* A replica may be told all of the backlog at once. */
    uint64_t hard =
        follows && limit->hard != 0 ? max_u64(limit->hard, config->repl_backlog_size) : limit->hard;
    bool over = hard != 0 && held > hard,
         stranger = !c->authenticated && client_unsent(c) > STRANGER_OUTPUT_MAX;
    if (limit->soft != 0 && held > limit->soft) {
        if (o->soft_since_ms == 0) o->soft_since_ms = turn.mono_ms;
        over |= turn.mono_ms - o->soft_since_ms >= limit->soft_s * 1000;
    } else {
        o->soft_since_ms = 0;
    }
    if (!(over || stranger) || io->flags & CLIENT_CLOSE_SOON) return;
    if (stranger) {
        client_drop_stranger(c, "replies unread");
        return;
    }
    client_close_because(c, LOG_LEVEL_WARNING,
                         "it left %zu bytes of replies unread (client-output-buffer-limit)", held);
    stats.client_output_buffer_limit_disconnections++;
}

/* --- output that is not the answer to a command --- */

void client_flush_later(struct client *c) {
    if (c->io->flags & (CLIENT_FLUSH | CLIENT_CLOSE_SOON)) return;
    c->io->flags |= CLIENT_FLUSH;
    /* Replicas first: what others have heard of when this process is killed is not lost. */
    if (UNLIKELY(c->io->flags & CLIENT_REPLICA))
        TAILQ_INSERT_HEAD(&flush_list, c, io->flush);
    else
        TAILQ_INSERT_TAIL(&flush_list, c, io->flush);
}

void clients_flush(void) {
    for (struct client *c; (c = TAILQ_TAKE(&flush_list, io->flush)) != NULL;) {
        bool was_deaf = client_is_deaf(c);
        c->io->flags &= ~CLIENT_FLUSH;
        if (UNLIKELY(c->io->flags & CLIENT_UNWRITTEN)) settle_unwritten(c);
        client_push_due(c);
        /* else it goes when the socket takes it */
        if (!(c->io->watch.events & NET_WRITE)) output_flush(c);
        if (UNLIKELY(was_deaf)) output_drained(c);
        if (client_unsent(c) > 0) client_output_limit(c);
        if (UNLIKELY(config->maxmemory_clients != 0)) client_weigh(c);
    }
}

void client_push_due(struct client *c) {
    if (LIKELY(c->io->late.len == 0) || c->job != NULL) return;
    buf_append(&c->io->out.bytes, c->io->late.data, c->io->late.len);
    buf_free(&c->io->late);
}

/* A reply of several slices is not cut, nor one in the making by what its own command tells; and
 * what CLIENT REPLY takes back is not this. */
static void output_push(struct client *c, const void *data, size_t len, bool late) {
    struct client_io *io = c->io;
    if (io->flags & CLIENT_CLOSE_SOON) return;
    bool silent = (io->flags & (CLIENT_REPLY_OFF | CLIENT_REPLY_SKIP)) != 0;
    if (UNLIKELY(io->flags & CLIENT_UNWRITTEN)) client_unwritten_other(c);
    bool runs = io->flags & CLIENT_RUNNING && (silent || io->tracker != NULL);
    bool answers = c->job != NULL || io->flags & CLIENT_ANSWERS;
    late |= answers || io->late.len > 0 || runs;
    buf_append(late ? &io->late : &io->out.bytes, data, len);
    client_flush_later(c);
    if (UNLIKELY(client_unsent(c) + io->late.len > PUSH_CHECK)) client_output_limit(c);
}

void client_push(struct client *c, const void *data, size_t len) {
    output_push(c, data, len, false);
}

void client_push_late(struct client *c, const void *data, size_t len) {
    output_push(c, data, len, true);
}

void client_free_output(struct client *c) {
    struct client_out *o = &c->io->out;
    if (c->io->flags & CLIENT_FLUSH) TAILQ_REMOVE(&flush_list, c, io->flush);
    buf_free(&c->io->late);
    for (unsigned i = o->first_insert; i < o->inserts; i++) insert_drop(o, &o->insert[i]);
    free(o->insert);
    o->insert = NULL;
    o->inserts = o->first_insert = o->insert_cap = 0;
    buf_free(&o->bytes);
    if (shared.cap == 0) buf_reserve(&shared, SHARED_CAP);
}
