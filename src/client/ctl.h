/* The control connection. */
#ifndef TARN_CLIENT_CTL_H
#define TARN_CLIENT_CTL_H

#include <stdbool.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/ring.h"
#include "base/spin.h"
#include "base/traceparent.h"
#include "client/answer.h"
#include "client/arena.h"
#include "tarn.h"
#include "transport/tcp/secure.h"

/* Requests are numbered as they are sent and answered in that order. An answer nobody waits for is
 * skipped: its number is in the skip ring, or not above skip_until (requests that a failed call
 * left behind). */
#define CTL_SKIP_MAX 256
#define CTL_NAMES    16
#define ANSWER_MAX   (UINT64_C(1) << 30) /* of a server: no value that it sends in-band is larger */
struct ctl {
    int fd; /* -1: closed */
    struct tcp_secure secure;
    struct ring ring; /* beside fd: what bytes go through; memory NULL: through fd */
    struct redisReader *reader;
    struct answer_scan scan;
    struct buf out; /* requests as RESP, the last one maybe not whole */
    size_t from,
        whole;         /* [from, whole) of it is to be sent; behind it room for a first line, and */
    size_t argc;       /* so many arguments of the request that is being built */
    size_t patient;    /* bytes at the end of what is to be sent: they go with what comes next */
    const char *begun; /* its name, for texts */
    uint64_t sent, received;
    uint64_t skip[CTL_SKIP_MAX]; /* ring, ascending */
    size_t skip_head, skip_count;
    uint64_t skip_until;
    uint64_t answer_max;      /* bytes of an unfinished answer; after ctl_open it is ANSWER_MAX */
    bool loopback;            /* the peer is this machine */
    char host[256], port[16]; /* of the peer, as it was opened */
    const char *what;         /* the last request's name, for texts */
    const char *names[CTL_NAMES]; /* of the last ones, by number */
    /* what the server knows it works for, or is told before the next request */
    struct traceparent trace;
    bool trace_due;
    bool asking;      /* each request has ASKING before it: its slot moves to this master */
    struct spin spin; /* before it sleeps for an answer; stays when it is closed */
};
struct secure;
void ctl_init(struct ctl *c);
/* Connects, and shakes hands where secure has a context (NULL: none). */
tarn_status ctl_open(struct ctl *c, const struct secure *secure, const char *host, const char *port,
                     uint64_t deadline);
void ctl_close(struct ctl *c);
/* Is there something that the socket did not take yet, and that waits for nothing else? How many
 * bytes of requests are unsent? */
bool ctl_wants_to_send(const struct ctl *c);
static inline size_t ctl_unsent(const struct ctl *c) {
    return c->whole - c->from;
}
/* Building a request: begin, its arguments (they are copied), commit. what is its name in texts,
 * and static. */
void ctl_begin(struct ctl *c, const char *what);
void ctl_arg(struct ctl *c, const void *data, size_t len);
void ctl_arg_i64(struct ctl *c, int64_t v);
static inline void ctl_arg_str(struct ctl *c, const char *s) {
    ctl_arg(c, s, strlen(s));
}
/* Queues it and sends what the socket takes. skip: nobody will ask for the answer; TARN_EAGAIN (and
 * not sent) when CTL_SKIP_MAX such answers are on their way. */
tarn_status ctl_commit(struct ctl *c, bool skip);
/* As with skip, but it is sent together with the next request that is not left, and never if none
 * comes: a message less. For a RELEASE of leases on so many bytes, which an idle connection then
 * keeps from being evicted until the leases end by themselves. */
#define LEASES_LEFT_MAX (UINT64_C(1) << 20)
tarn_status ctl_leave(struct ctl *c);
/* What waits, as far as the socket takes it now. */
tarn_status ctl_flush(struct ctl *c);
/* All of these before the commit at once. lens NULL: the arguments are terminated strings. */
void ctl_words(struct ctl *c, const char *what, size_t argc, const char *const *argv,
               const size_t *lens);
/* The same, and the commit. argv[0] must be static. */
tarn_status ctl_send(struct ctl *c, size_t argc, const char **argv, const size_t *lens, bool skip);
/* What the next requests are done for: "" or the text of a traceparent. The server is told with the
 * next one, if it is not yet; nobody asks whether it wanted to know. */
void ctl_tell_trace(struct ctl *c, const char *traceparent);
/* AUTH, if the options have a user or a password. */
tarn_status ctl_login(struct ctl *c, const tarn_options *o, bool skip);
/* The next answer that is not skipped. TARN_ETIMEOUT: not until then; it may still come. Any other
 * failure closes the connection. */
tarn_status ctl_await(struct ctl *c, struct arena *arena, struct answer **answer_p, uint64_t until);
/* The same, and a deadline that passes is a failure. Any failure closes the connection. Deadline on
 * CLOCK_BOOTTIME ms. */
tarn_status ctl_receive(struct ctl *c, struct arena *arena, struct answer **answer_p,
                        uint64_t deadline);
/* The same without waiting: TARN_EAGAIN while no answer is whole. Sends what the socket takes, too.
 * A half answer stays in the arena, so that one is to be reset right after an answer, and only
 * then. */
tarn_status ctl_try_receive(struct ctl *c, struct arena *arena, struct answer **answer_p);
/* The number of the request whose answer was received last, or (answered false) would come next. */
static inline uint64_t ctl_answered(const struct ctl *c, bool answered) {
    return c->received + !answered;
}
/* Its name; of the CTL_NAMES last ones. */
const char *ctl_name_of(const struct ctl *c, uint64_t number);
/* What is unanswered now will be skipped. */
void ctl_abandon(struct ctl *c);

/* Which map of slots is known. A server that does not know it answers with an error of
 * TARN_ELOADING. */
tarn_status ctl_tell_map(struct ctl *c, uint64_t epoch);

/* What is said first on a connection, in one round trip: AUTH, CLIENT SETINFO, CLIENT SETNAME, ROLE
 * and a last request. */
struct greeting {
    uint64_t map_epoch;     /* of the map of slots that we know; 0: none */
    const char *info[5][2]; /* name and value; NULL: not said */
    size_t n_info;
    const char *name;    /* NULL: not said */
    bool role;           /* it has to lead */
    const char *last[2]; /* what must be answered; [1] may be NULL */
    bool strict;         /* ... and without an error */
    const char *whom;    /* for texts */
};
tarn_status ctl_greet(struct ctl *c, struct arena *arena, const tarn_options *o,
                      const struct greeting *g, uint64_t deadline, struct answer **last_p);
/* Before somebody else polls fd for POLLIN. false: there is something already, or room for what is
 * to be sent. */
bool ctl_sleep(struct ctl *c);
/* Behind that, whatever it found: sends what there is room for. Is there something? */
bool ctl_woke(struct ctl *c, short revents);

/* To a server that has CLIENT NEAR, when nothing is unanswered: goes on over a unix socket where it
 * is on this machine, and through shared memory where the server has that; where it is not, or
 * that fails, the connection stays as it is. A failure closes it. */
tarn_status ctl_go_near(struct ctl *c, struct arena *arena, uint64_t deadline);

#endif
