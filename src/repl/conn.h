/* A connection that this server opens to another one: its name resolved, one address tried after
 * the other, TLS where there is a context; what is to be sent and what has come, in buffers.
 *
 *   shut ─ begin ─> resolving ─> connecting ─> open (connected, then came again and again)
 *     ^                 └────────────┴── failed: the owner says end ──┘ */
#ifndef TARN_REPL_CONN_H
#define TARN_REPL_CONN_H

#include "base/buf.h"
#include "net/net.h"
#include "repl/resolve.h"
#include "tls/tls.h"

/* From the loop, and from begin and update. Each may end it. */
struct repl_conn_ops {
    void (*connected)(void *arg);
    void (*came)(void *arg); /* there is more in `in`, or it ended; then update */
    void (*failed)(void *arg, const char *why);
};

struct repl_conn {
    struct net_loop *loop;
    const struct repl_conn_ops *ops;
    void *arg;
    const char *host;                /* borrowed, until end */
    struct tls_context *tls_context; /* NULL: plain text */
    struct repl_resolve *resolve;
    struct repl_addresses addresses;
    size_t next_address; /* the owner sets 0 when one was right */
    uint64_t timeout_ms;
    int fd; /* -1: none */
    bool connecting;
    bool ended; /* nothing more can be read */
    bool more;  /* the owner's: what is in `in` has not been looked at, or not all of it */
    struct net_watch watch;
    struct tls_stream *tls;
    struct buf in, out;
    size_t in_pos;
    uint64_t last_io_ms;
};

void repl_conn_init(struct repl_conn *c, struct net_loop *loop, const struct repl_conn_ops *ops,
                    void *arg);
/* Of one that is shut: to the next of its addresses. tls is shared. */
void repl_conn_begin(struct repl_conn *c, const char *host, uint16_t port, struct tls_context *tls,
                     uint64_t timeout_ms, uint64_t now_ms);
/* Shuts it, in whichever state. */
void repl_conn_end(struct repl_conn *c);
/* It is not shut. */
static inline bool repl_conn_open(const struct repl_conn *c) {
    return c->fd >= 0 || c->resolve != NULL;
}
/* What is in `out` leaves, as far as the socket takes it. */
void repl_conn_flush(struct repl_conn *c);
/* After out, ended or more have changed. */
void repl_conn_update(struct repl_conn *c);
/* true: something came. */
bool repl_conn_take(struct repl_conn *c);
/* Takes the next answer of RESP: *body_p is what a bulk of at most `most` bytes has, else the line.
 * false: it is not whole. */
bool repl_conn_answer(struct repl_conn *c, size_t most, struct span *line_p, struct span *body_p);
/* Why TLS failed; NULL: it did not. */
const char *repl_conn_torn(const struct repl_conn *c);
/* The address by which the other end knows this one. false: it has none. */
bool repl_conn_local(const struct repl_conn *c, char *host, size_t size);
/* Are both ends at one address? */
bool repl_conn_loops(const struct repl_conn *c);

#endif
