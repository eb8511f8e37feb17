/* From bytes to requests.
 *
 * A read lands in one buffer that all clients share and is parsed in place; the commands' arguments
 * point into it. What is left (half a request; whole ones that may not run yet) moves to the
 * client. A request that is longer than a buffer lies in several: its whole arguments stay where
 * they are, and only the one that is cut moves on. An argument of 32 KiB or more does not pass
 * through here at all: once its length is known, its bytes are read to where they stay, in the pool
 * or on the heap.
 *
 * Nobody but the sender pays for what he sends: half a request costs its own bytes, never what it
 * announces; who does not take the replies is not read from; and nothing that has come moves again
 * because more comes. */
#include "front/client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/iov.h"
#include "base/log.h"
#include "front/above.h"
#include "front/acl_users.h"
#include "front/multi.h"
#include "front/stats.h"
#include "front/table.h"
#include "transport/tcp/frame.h"
#include "config/config.h"

#define SCRATCH_SIZE   (256u * 1024)
#define LEFTOVER_SMALL (16u * 1024)  /* copied in front of the next read rather than kept apart */
#define PIECE_MAX      (256u * 1024) /* buffers of a long request */
#define BIG_MIN        (32u * 1024)
#define BIG_PER_READ   (192u * 1024) /* still in the second cache when its checksum is taken */
#define FIRST_READ_BIG                                                                             \
    (16u *                                                                                         \
     1024) /* where a large argument is likely, little of it should arrive in the shared buffer */
#define STRANGER_INPUT_MAX (64u * 1024) /* of one that has not said who it is */
#define AWAITS_AHEAD       (1u << 20)   /* of one that waits for others, like WAIT */
#define REQUESTS_PER_TURN  1024u

/* Requests of a pipeline are parsed this far ahead, so that the books' cache lines of all their
 * keys are on their way before the first one runs. */
#define AHEAD 16u

static char *scratch;
static struct resp_parser shared_parsers[AHEAD];
/* the one of the request being read or run */
static struct resp_parser *current = &shared_parsers[0];

void client_read_init(void) {
    scratch = xmalloc(SCRATCH_SIZE);
}

void client_read_deinit(void) {
    free(scratch);
    scratch = NULL;
    for (size_t i = 0; i < AHEAD; i++) resp_parser_free(&shared_parsers[i]);
    memset(shared_parsers, 0, sizeof(shared_parsers));
}

static struct resp_limits limits_of(const struct client *c) {
    if (LIKELY(c->authenticated))
        return (struct resp_limits){1024 * 1024, config->proto_max_bulk_len, 64 * 1024, BIG_MIN,
                                    false};
    return (struct resp_limits){10, 16384, 64 * 1024, SIZE_MAX, true};
}

/* --- the parser: the shared one, unless a request is in the making --- */

static struct resp_parser *own_parser(struct client *c) {
    if (c->io->parser == NULL) {
        c->io->parser = xmalloc(sizeof(struct resp_parser));
        *c->io->parser = *current; /* its memory moves along */
        memset(current, 0, sizeof(*current));
    }
    return c->io->parser;
}

static void drop_parser(struct client *c) {
    if (c->io->parser == NULL) return;
    resp_parser_free(c->io->parser);
    free(c->io->parser);
    c->io->parser = NULL;
}

/* --- arguments that must stay --- */

/* The input that the running request lies in. */
static const char *window, *window_end;

static bool in_window(struct span s) {
    return s.data != NULL && s.data >= window && s.data <= window_end;
}

/* Those of the first n arguments that lie in the input. */
static size_t window_bytes(const struct resp_parser *p, size_t n) {
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        if (in_window(p->argv[i])) bytes += p->argv[i].len;
    return bytes;
}

/* They move there. */
static void window_leave(struct resp_parser *p, size_t n, char *to) {
    for (size_t i = 0; i < n; i++) {
        struct span arg = p->argv[i];
        if (!in_window(arg)) continue;
        if (arg.len > 0) memcpy(to, arg.data, arg.len);
        p->argv[i].data = to;
        to += arg.len;
    }
}

void client_keep_args(struct client *c) {
    struct resp_parser *p = own_parser(c);
    size_t bytes = window_bytes(p, p->argc);
    c->io->kept = xmalloc(bytes + 1);
    c->io->heap_bytes += bytes;
    window_leave(p, p->argc, c->io->kept);
    if (UNLIKELY(c->io->flags & CLIENT_EXEC)) return; /* c->argv is of a command within it */
    c->argv = p->argv;
    c->argc = p->argc;
}

/* --- large arguments --- */

struct big_arg *client_big_take(struct client *c) {
    struct big_arg *big = c->io->big;
    c->io->big = NULL;
    return big;
}

void client_big_free(struct big_arg **big_p) {
    for (struct big_arg *b = *big_p; b != NULL;) {
        struct big_arg *next = b->next;
        if (b->sink != NULL) above.big_abort(b->sink);
        client_big_release(b);
        free(b);
        b = next;
    }
    *big_p = NULL;
}

static void big_input_free(struct client *c) {
    client_big_free(&c->io->big);
    c->io->big_reading = false;
    for (struct kept_bytes *k; (k = SLIST_TAKE(&c->io->pieces, older)) != NULL;) {
        if (k->data != (char *)(k + 1)) free(k->data);
        free(k);
    }
    if (UNLIKELY(c->io->flags & CLIENT_REFUSED)) acl_client_refuse(c, false);
}

void client_request_done(struct client *c) {
    struct client_io *io = c->io;
    if (UNLIKELY(c->big != NULL)) {
        above.big_abort(c->big);
        c->big = NULL;
    }
    if (UNLIKELY(io->big != NULL)) big_input_free(c);
    if (UNLIKELY(io->parser != NULL)) {
        free(io->kept);
        io->kept = NULL;
        io->heap_bytes = 0;
        if (UNLIKELY(!SLIST_EMPTY(&io->pieces))) big_input_free(c);
        drop_parser(c);
    }
    c->argv = NULL;
    c->argc = 0;
}

/* The arguments before a large one leave with the bytes around them, so they move to memory of the
 * client. */
static void keep_before_big(struct client *c, struct resp_parser *p) {
    size_t bytes = window_bytes(p, p->big_index);
    struct kept_bytes *k = xmalloc(sizeof(*k) + bytes);
    *k = (struct kept_bytes){.data = (char *)(k + 1), .len = bytes};
    SLIST_INSERT_HEAD(&c->io->pieces, k, older);
    c->io->heap_bytes += sizeof(*k) + bytes;
    window_leave(p, p->big_index, k->data);
    for (size_t i = 0; i < p->big_index; i++) resp_parser_set_arg(p, i, p->argv[i]);
}

static void input_big_begin(struct client *c) {
    struct client_io *io = c->io;
    struct resp_parser *p = own_parser(c);
    keep_before_big(c, p);
    io->sends_big = true;
    struct big_arg *b = xcalloc(1, sizeof(*b));
    b->len = p->big_len;
    if (UNLIKELY(io->flags & CLIENT_MULTI))
        b->drop = multi_over(c, b->len); /* its value comes to the pool with EXEC */
    else if (UNLIKELY(!c->unrestricted) && !acl_check_early(c->user, p->argv, p->big_index))
        acl_client_refuse(c, b->drop = true); /* who may not put it gets no room for it */
    else if (c->big == NULL)
        b->sink = above.big_begin(c, p->argv, p->big_index, b->len);
    b->next = io->big;
    io->big = b;
    io->big_reading = true;
}

/* false: more memory than one client may have, or than there is. */
static bool heap_room(struct client *c, struct big_arg *b) {
    if (b->cap > b->got) return true;
    size_t more = client_big_next(b) - b->cap;
    if (c->io->heap_bytes + more > config->client_query_buffer_limit || !client_big_grow(b))
        return false;
    c->io->heap_bytes += more;
    return true;
}

static void close_over_limit(struct client *c, size_t bytes) {
    client_close_because(c, LOG_LEVEL_WARNING,
                         "%zu bytes of requests wait for it (client-query-buffer-limit)", bytes);
    stats.client_query_buffer_limit_disconnections++;
}

/* Where the next bytes of b go, at most want of them. 0: nowhere, the client is closed. */
static size_t big_place(struct client *c, struct big_arg *b, size_t want,
                        struct iovec iov[BIG_PIECES]) {
    if (b->drop) {
        iov[0] = (struct iovec){scratch, min_u64(want, SCRATCH_SIZE)};
        return 1;
    }
    if (b->sink == NULL) {
        if (!heap_room(c, b)) {
            close_over_limit(c, c->io->heap_bytes);
            return 0;
        }
        iov[0] = (struct iovec){b->heap + b->got, min_u64(want, b->cap - b->got)};
        return 1;
    }
    size_t pieces = above.big_next(b->sink, iov), n = 0;
    for (; n < pieces && want > 0; want -= iov[n++].iov_len)
        iov[n].iov_len = min_u64(iov[n].iov_len, want);
    return n;
}

/* Bytes that came with others before they could be read to their place. Returns how many belonged
 * there. */
static size_t big_take(struct client *c, const char *data, size_t len) {
    struct big_arg *b = c->io->big;
    size_t taken = 0;
    while (taken < len && b->got < b->len) {
        struct iovec iov[BIG_PIECES];
        size_t n = min_u64(len - taken, b->len - b->got);
        if (!b->drop) {
            size_t pieces = big_place(c, b, n, iov);
            if (pieces == 0) return len;
            n = 0;
            for (size_t i = 0; i < pieces; n += iov[i++].iov_len)
                memcpy(iov[i].iov_base, data + taken + n, iov[i].iov_len);
            if (b->sink != NULL) above.big_filled(b->sink, n);
        }
        b->got += n;
        taken += n;
    }
    return taken;
}

static void protocol_error(struct client *c, const char *text) {
    stats.total_protocol_errors++;
    log_verbose("Client id=%llu: %s", (unsigned long long)c->id, text);
    reply_error(c, "%s", text);
    client_close_after_reply(c);
}

/* The two bytes after a large argument; then the request goes on. Returns how many of len it
 * took. */
static size_t big_finish(struct client *c, const char *data, size_t len) {
    struct client_io *io = c->io;
    struct big_arg *b = io->big;
    size_t n = 0;
    while (b->crlf < 2 && n < len) {
        if (data[n] != "\r\n"[b->crlf]) {
            protocol_error(c, "Protocol error: invalid bulk length");
            return len;
        }
        b->crlf++, n++;
    }
    if (b->crlf < 2) return n;
    io->big_reading = false;
    if (b->sink != NULL) {
        c->big = b->sink; /* the command's from now on */
        b->sink = NULL;
    }
    resp_parser_big_done(io->parser, span_of(b->heap, b->len));
    return n;
}

/* --- requests --- */

static void run_one(struct client *c, const struct cmd *cmd, struct resp_parser *p,
                    bool clock_later) {
    c->argv = p->argv;
    c->argc = p->argc;
    dispatch(c, cmd, clock_later);
    if (UNLIKELY(c->job != NULL || c->io->flags & CLIENT_POSTPONED))
        client_keep_args(c);
    else
        client_request_done(c);
}

/* Are this request and the next one look-ups of one key? */
static bool both_brief(const struct cmd *const *cmd, size_t i) {
    return cmd[i] == cmd[i + 1] && cmd[i] != NULL && shared_parsers[i].argc == 2 &&
           shared_parsers[i + 1].argc == 2 && dispatch_is_brief(cmd[i]);
}

/* Runs the whole requests of a pipeline; leaves what needs more thought to run_requests. Returns
 * the bytes it used. */
static size_t run_pipeline(struct client *c, const struct resp_limits *limits, const char *data,
                           size_t len, unsigned *left) {
    const struct cmd *cmd[AHEAD];
    struct span key[AHEAD];
    uint64_t hash[AHEAD];
    size_t end[AHEAD], n = 0, keys = 0, pos = 0;
    while (n < AHEAD && pos < len) {
        struct resp_parser *p = &shared_parsers[n];
        size_t used;
        enum resp_result result = resp_parse(p, limits, data + pos, len - pos, &used);
        if (result != RESP_REQUEST || p->argc == 0) {
            /* of the first one, the caller goes on where this ended */
            if (result != RESP_MORE || n > 0) resp_parser_reset(p);
            break;
        }
        cmd[n] = table_find(p->argv[0]);
        if (cmd[n] != NULL && p->argc > 1 && cmd[n]->keys[0].begin_index == 1 &&
            !cmd[n]->keys[0].keynum)
            key[keys++] = p->argv[1];
        end[n++] = pos += used;
    }
    if (UNLIKELY(n > 1)) c->io->sends_big = false;
    if (keys > 1) store_prefetch(books, key, keys, hash);
    size_t i = 0;
    unsigned changes = table_changes;
    for (pos = 0; i < n && client_may_run(c) && *left > 0; pos = end[i++]) {
        current = &shared_parsers[i];
        *left -= min_u64(*left, 1 + current->argc / 4);
        if (UNLIKELY(changes != table_changes)) cmd[i] = table_find(current->argv[0]);
        run_one(c, cmd[i], current, i + 1 < n && both_brief(cmd, i));
    }
    dispatch_read_clock(); /* not all may have run */
    current = &shared_parsers[0];
    return pos;
}

/* What came first is none of RESP's, but of a protocol that we know. NULL: nor that. */
static const char *other_protocol(const char *data, size_t len) {
    const uint32_t frame = TCP_MAGIC;
    if (len >= 3 && data[0] == 0x16 && data[1] == 3 && (unsigned char)data[2] <= 4)
        return "Protocol error: this port does not speak TLS, and what came looks like it";
    if (len >= sizeof(frame) && memcmp(data, &frame, sizeof(frame)) == 0)
        return "Protocol error: this is the port for commands, and what came is for a data port "
               "(data-port, "
               "by default 10000 more)";
    return NULL;
}

/* first, len: what a connection began with; len 0: it had said something right before. */
static void refuse_bytes(struct client *c, const char *why, const char *first, size_t len) {
    const char *other = other_protocol(first, len);
    protocol_error(c, other != NULL ? other : why);
}

/* Runs what may be run of len bytes, returns how many were used. */
static size_t run_requests(struct client *c, const char *data, size_t len) {
    struct client_io *io = c->io;
    unsigned left = REQUESTS_PER_TURN;
    size_t pos = 0;
    window = data;
    window_end = data + len;
    while (LIKELY(client_may_run(c))) {
        if (UNLIKELY(io->big_reading)) {
            pos += big_take(c, data + pos, len - pos);
            if (pos < len) pos += big_finish(c, data + pos, len - pos);
            if (io->big_reading || io->flags & CLIENT_CLOSE_SOON) return pos;
        }
        if (UNLIKELY(left == 0)) {
            stats.quota_yields++;
            client_ready(c);
            break;
        }
        if (pos == len && io->parser == NULL) return pos; /* all is done */
        struct resp_limits limits = limits_of(c);
        if (io->parser == NULL && pos < len && c->authenticated) {
            size_t used = run_pipeline(c, &limits, data + pos, len - pos, &left);
            pos += used;
            if (used > 0) continue;
        }
        struct resp_parser *p = io->parser != NULL ? io->parser : current;
        size_t used;
        switch (resp_parse(p, &limits, data + pos, len - pos, &used)) {
        case RESP_REQUEST:
            pos += used;
            if (UNLIKELY(p->argc == 0)) {
                client_request_done(c);
                break;
            }
            left -= min_u64(left, 1 + p->argc / 4);
            run_one(c, table_find(p->argv[0]), p, false);
            break;
        case RESP_MORE:
            if (len > pos || p->remaining > 0) own_parser(c);
            return pos;
        case RESP_BIG:
            pos += used;
            input_big_begin(c);
            break;
        case RESP_ERROR: refuse_bytes(c, p->error, data, pos == 0 ? len : 0); return len;
        }
    }
    io->held = pos < len && !client_may_run(c);
    return io->flags & (CLIENT_CLOSE_AFTER_REPLY | CLIENT_CLOSE_SOON) ? len : pos;
}

/* The replies go out. If it was they that held requests back, sending them may have been enough to
 * go on. */
static void end_output(struct client *c) {
    client_output_end(c);
    if (UNLIKELY(c->io->held) && client_may_run(c)) {
        c->io->held = false;
        client_ready(c);
    }
}

/* Who waits for an event listens; who listens no more is gone. Other work is finished. */
static bool awaits_event(const struct client *c) {
    return c->io->flags & (CLIENT_MONITOR | CLIENT_PUBSUB | CLIENT_REPLICA) || job_awaits(c);
}

/* Is anything left to be run or said? */
static bool client_is_owed(const struct client *c) {
    const struct client_io *io = c->io;
    return c->job != NULL || io->flags & (CLIENT_POSTPONED | CLIENT_READY) || io->held ||
           client_unsent(c) > 0;
}

void client_input_ended(struct client *c) {
    struct client_io *io = c->io;
    io->flags |= CLIENT_HALF | CLIENT_READ_OFF;
    if (awaits_event(c) || !client_is_owed(c) ||
        net_watch_set(&io->watch, io->watch.events & ~(unsigned)NET_READ) != TARN_OK)
        client_close_soon(c);
}

/* Goes on with what is kept in io->in. */
void client_run_input(struct client *c) {
    struct client_io *io = c->io;
    if (io->flags & CLIENT_CLOSE_SOON || c->job != NULL) return;
    client_output_begin(c);
    if (UNLIKELY(io->flags & CLIENT_POSTPONED)) {
        io->flags &= ~CLIENT_POSTPONED;
        dispatch(c, table_find(c->argv[0]), false);
        if (c->job == NULL && !(io->flags & CLIENT_POSTPONED)) client_request_done(c);
    }
    size_t have = io->in.len - io->in_pos;
    if (have > 0) {
        size_t used = run_requests(c, io->in.data + io->in_pos, have);
        io->in_pos += used;
    }
    if (io->in_pos == io->in.len) {
        buf_free(&io->in);
        io->in_pos = 0;
    } else if (io->in_pos > io->in.len / 2 && io->in_pos > LEFTOVER_SMALL) {
        buf_consume(&io->in, io->in_pos);
        io->in_pos = 0;
    }
    if (UNLIKELY(io->flags & CLIENT_READ_OFF) && !(io->flags & CLIENT_HALF) &&
        (client_may_run(c) || io->in.len - io->in_pos < LEFTOVER_SMALL / 2)) {
        io->flags &= ~CLIENT_READ_OFF;
        client_update_interest(c);
    }
    end_output(c);
    if (UNLIKELY(io->flags & CLIENT_HALF) && (awaits_event(c) || !client_is_owed(c)))
        client_close_soon(c);
}

/* --- reading --- */

void client_close_dead(struct client *c) {
    if (errno == EPROTO && c->io->watch.ring != NULL)
        client_close_because(c, LOG_LEVEL_WARNING,
                             "what it wrote into the memory that it shares makes no sense");
    else
        client_close_soon(c);
}

/* false: nothing to run. Counts, and closes the connection at its end. */
static bool read_counted(struct client *c, ssize_t n) {
    if (UNLIKELY(n <= 0)) {
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
        if (n == 0)
            client_input_ended(c);
        else
            client_close_dead(c);
        return false;
    }
    core_stamp();
    c->io->bytes_in += (uint64_t)n;
    c->io->last_ms = turn.mono_ms;
    stats.total_net_input_bytes += (uint64_t)n;
    stats.total_reads_processed++;
    return true;
}

static ssize_t socket_readv(struct client *c, const struct iovec *iov, size_t n) {
    struct client_io *io = c->io;
    if (io->tls != NULL) return client_tls_read(c, iov, (int)n);
    if (io->watch.ring != NULL) return net_ring_read(io->watch.ring, iov, n);
    return readv(io->watch.fd, iov, (int)n);
}

static ssize_t socket_read(struct client *c, void *to, size_t size) {
    if (UNLIKELY(c->io->tls != NULL || c->io->watch.ring != NULL))
        return socket_readv(c, &(struct iovec){to, size}, 1);
    return syscall(SYS_read, c->io->watch.fd, to, size); /* read() is a cancellation point */
}

/* The usual way: a small leftover and what came, side by side in the shared buffer. */
static void read_scratch(struct client *c) {
    struct client_io *io = c->io;
    size_t have = io->in.len - io->in_pos;
    bool little = io->sends_big || !c->authenticated;
    size_t room = UNLIKELY(little) ? FIRST_READ_BIG + LEFTOVER_SMALL : SCRATCH_SIZE;
    ssize_t n = socket_read(c, scratch + have, room - have);
    if (!read_counted(c, n)) return;
    if (UNLIKELY(have > 0)) {
        memcpy(scratch, io->in.data + io->in_pos, have);
        buf_free(&io->in);
        io->in_pos = 0;
    }
    size_t len = have + (size_t)n;
    client_output_begin(c);
    size_t used = run_requests(c, scratch, len);
    if (UNLIKELY(used < len)) buf_append(&io->in, scratch + used, len - used);
    end_output(c);
}

/* Room for more of a request that the buffer is full of. */
static void input_piece_begin(struct client *c) {
    struct client_io *io = c->io;
    const char *data = io->in.data + io->in_pos;
    size_t taken =
        io->parser != NULL && !io->big_reading ? resp_parser_settle(io->parser, data) : 0;
    size_t rest = io->in.len - io->in_pos - taken;
    if (taken == 0) { /* a line, which is short */
        buf_reserve(&io->in, LEFTOVER_SMALL);
        return;
    }
    struct kept_bytes *k = xmalloc(sizeof(*k));
    *k = (struct kept_bytes){.data = io->in.data, .len = io->in.cap};
    SLIST_INSERT_HEAD(&io->pieces, k, older);
    io->heap_bytes += sizeof(*k) + io->in.cap;
    io->in = (struct buf){NULL, 0, 0};
    io->in_pos = 0;
    buf_reserve(&io->in, min_u64(max_u64(2 * io->heap_bytes, 2 * (uint64_t)BIG_MIN), PIECE_MAX));
    buf_append(&io->in, data + taken, rest);
}

/* Its requests may not run now, or what is there is long already. */
static void read_own(struct client *c) {
    struct client_io *io = c->io;
    size_t have = io->in.len - io->in_pos;
    if (io->flags & CLIENT_READY) return; /* in the next turn it runs what there is */
    bool runs = client_may_run(c);
    /* Of one that waits for others a little more: that it has gone is seen behind what it has
     * sent. */
    size_t ahead = c->authenticated && job_awaits(c) ? AWAITS_AHEAD : LEFTOVER_SMALL;
    if (!runs &&
        have >= ahead) { /* it will be read when this server is through with what is there */
        io->flags |= CLIENT_READ_OFF;
        client_update_interest(c);
        return;
    }
    if (!runs)
        buf_reserve(&io->in, have < LEFTOVER_SMALL ? LEFTOVER_SMALL : ahead - have);
    else if (io->in.cap == io->in.len)
        input_piece_begin(c);
    ssize_t n = socket_read(c, io->in.data + io->in.len, io->in.cap - io->in.len);
    if (!read_counted(c, n)) return;
    io->in.len += (size_t)n;
    size_t held = io->in.len - io->in_pos + io->heap_bytes;
    if (UNLIKELY(!c->authenticated) && held > STRANGER_INPUT_MAX) {
        client_drop_stranger(c, "requests");
        return;
    }
    if (held > config->client_query_buffer_limit) {
        close_over_limit(c, held);
        return;
    }
    if (client_may_run(c)) client_run_input(c);
}

void client_big_read(struct client *c, size_t n) {
    c->io->big->got += n;
    stats.total_big_argument_bytes += n;
}

/* The rest of a large argument, and what follows it to the shared buffer. */
static void read_big(struct client *c) {
    struct client_io *io = c->io;
    struct big_arg *b = io->big;
    if (client_receive_away(c, b)) return;
    struct iovec iov[BIG_PIECES + 1];
    size_t left = min_u64(b->len - b->got, BIG_PER_READ), n_iov = 0;
    if (left > 0 && (n_iov = big_place(c, b, left, iov)) == 0) return;
    size_t want = iov_total(iov, n_iov);
    bool to_end = b->got + want == b->len && !(b->drop && want > 0);
    if (to_end) iov[n_iov++] = (struct iovec){scratch, SCRATCH_SIZE};
    TARN_ASSERT(!client_away_receives(c));
    ssize_t n = socket_readv(c, iov, n_iov);
    if (!read_counted(c, n)) return;
    size_t mine = min_u64((size_t)n, want);
    if (b->sink != NULL && mine > 0) above.big_filled(b->sink, mine);
    client_big_read(c, mine);
    stats.total_reads_processed++;
    size_t rest = (size_t)n - mine;
    if (rest == 0) return;
    client_output_begin(c);
    size_t used = run_requests(c, scratch, rest);
    if (used < rest) buf_append(&io->in, scratch + used, rest - used);
    end_output(c);
}

void client_on_event(void *arg, unsigned events) {
    struct client *c = arg;
    MAGIC_CHECK(c, CLIENT_MAGIC);
    struct client_io *io = c->io;
    if (UNLIKELY(io->flags & CLIENT_CLOSE_SOON)) return;
    if (events & NET_READ) {
        if (UNLIKELY(client_is_deaf(c))) {
            client_update_interest(c); /* no more of it until it has taken what there is */
        } else if (UNLIKELY(io->flags & CLIENT_CLOSE_AFTER_REPLY)) {
            ssize_t n = io->watch.ring != NULL ? socket_read(c, scratch, SCRATCH_SIZE)
                                               : read(io->watch.fd, scratch, SCRATCH_SIZE);
            if (n == 0) /* it is no longer listened to */
                client_input_ended(c);
            else if (n < 0 && errno != EAGAIN)
                client_close_dead(c);
        } else if (UNLIKELY(io->big_reading && io->in.len == io->in_pos)) {
            read_big(c);
        } else if (LIKELY(io->in.len - io->in_pos <= LEFTOVER_SMALL &&
                          !(io->flags & CLIENT_READY) && client_may_run(c))) {
            read_scratch(c);
        } else {
            read_own(c);
        }
    }
    if (UNLIKELY(events & NET_WRITE) && !(io->flags & CLIENT_CLOSE_SOON)) client_on_writable(c);
    if (UNLIKELY(config->maxmemory_clients != 0)) client_weigh(c);
    if (UNLIKELY(io->tls != NULL)) client_tls_go_on(c);
}

#define KEY_LIKELY_MIN 16u /* longer than any command's name: nearly always a key */

void clients_ahead(void *arg, const struct span *came, size_t n) {
    struct span key[NET_AHEAD];
    uint64_t hash[NET_AHEAD];
    size_t keys = 0;
    for (size_t i = 0; i < n; i++) {
        key[keys] = resp_first_of_size(came[i], KEY_LIKELY_MIN, WIRE_KEY_MAX);
        keys += key[keys].len > 0;
    }
    if (keys > 1 && books != NULL) store_prefetch_single(books, key, keys, hash);
}

/* Is its request in the input that is run? The words of an inline one are copied from there. */
static bool is_of_window(const struct client *c) {
    const struct buf *copy = &current->inline_copy;
    const char *name = c->argv[0].data;
    return in_window(c->argv[0]) || (c->io->parser == NULL && name != NULL && copy->data != NULL &&
                                     name >= copy->data && name < copy->data + copy->len);
}

size_t client_input_held(const struct client *c) {
    if (c->io->flags & CLIENT_RUNNING && c->argc > 0 && is_of_window(c))
        return (size_t)(window_end - window);
    const struct big_arg *b = c->io->big_reading ? c->io->big : NULL;
    size_t held = c->io->in.len - c->io->in_pos;
    const struct kept_bytes *k;
    SLIST_FOREACH(k, &c->io->pieces, older) /* else what a large argument came after */
        if (k->data != (const char *)(k + 1)) held += k->len;
    return held + (b != NULL && b->sink == NULL && !b->drop ? b->got : 0);
}

void client_free_input(struct client *c) {
    struct client_io *io = c->io;
    client_request_done(c);
    drop_parser(c);
    if (io->big != NULL || !SLIST_EMPTY(&io->pieces)) big_input_free(c);
    free(io->kept);
    io->kept = NULL;
    buf_free(&io->in);
}
