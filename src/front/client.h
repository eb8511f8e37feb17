/* A connection: its buffers, its request in the making, its unsent replies. For the core of this
 * room (client*.c, reply.c, dispatch.c, job.c) and the CLIENT family; other families need cmd.h
 * only.
 *
 *   accepted ─> reading ─┬─> request ─> runs ─────────────> replies ─> reading ...
 *                        │                 └─> job (blocked) ──┘
 *                        ├─> postponed (CLIENT PAUSE)
 *                        └─> large argument: socket to pool
 *   any of these ─> CLIENT_CLOSE_SOON (listed) ─> freed at the end of the turn, or when a thread
 *                                     that sends or receives for it is back (io->away)
 *
 * Memory follows need: a connection that is idle owns this struct and nothing else, but for the
 * memory that it shares with a peer on this machine (client_near.c). The bytes of a
 * read lie in a buffer that all connections share, replies are built in another; only what is left
 * over after the callback (half a request, bytes that the socket did not take) moves to memory of
 * the connection. */
#ifndef TARN_FRONT_CLIENT_H
#define TARN_FRONT_CLIENT_H

#include <netinet/in.h>
#include <sys/uio.h>
#include "base/log.h"
#include "base/queue.h"
#include "front/cmd.h"
#include "config/config.h"
#include "net/net.h"
#include "tls/tls.h"

#define CLIENT_MAGIC 0x436c6e74u

enum client_flag {
    CLIENT_CLOSE_AFTER_REPLY = 1u << 0,
    CLIENT_CLOSE_SOON = 1u << 1, /* on the closing list */
    CLIENT_MONITOR = 1u << 2,
    CLIENT_REPLY_OFF = 1u << 3,
    CLIENT_REPLY_SKIP_NEXT = 1u << 4,
    CLIENT_REPLY_SKIP = 1u << 5,
    CLIENT_NO_EVICT = 1u << 6,
    CLIENT_POSTPONED = 1u << 7, /* a whole request waits for the end of CLIENT PAUSE */
    CLIENT_READY = 1u << 8,     /* on the ready list: has input that may run in the next turn */
    CLIENT_UNIX = 1u << 9,
    CLIENT_RUNNING = 1u << 10,  /* inside a command */
    CLIENT_FAILED = 1u << 11,   /* the command answered an error */
    CLIENT_FLUSH = 1u << 12,    /* on the list of those with new output */
    CLIENT_READ_OFF = 1u << 13, /* not read from until its input was run, or for ever */
    CLIENT_NO_TOUCH = 1u << 14,
    CLIENT_ANSWERS = 1u << 15, /* the first slice of a command is under way: job_run */
    CLIENT_MULTI = 1u << 16,   /* its commands are queued: multi.h */
    CLIENT_EXEC = 1u << 17,    /* they are being executed */
    CLIENT_PUBSUB = 1u << 18,  /* listens to channels: pubsub.h */
    CLIENT_REPLICA = 1u << 19, /* follows this server: replication.h */
    /* a large argument was not taken: its user has no right to it */
    CLIENT_REFUSED = 1u << 20,
    CLIENT_HALF = 1u << 21, /* its peer sends no more, and still gets what it is owed */
    /* by protected mode; it is told so when its handshake is over */
    CLIENT_DENIED = 1u << 22,
    CLIENT_OOM = 1u << 23,     /* the command found no memory and did nothing */
    CLIENT_CHANGED = 1u << 24, /* the running request has changed the books */
    /* has replies whose records may not be in the append-only file */
    CLIENT_UNWRITTEN = 1u << 25,
    CLIENT_GRANTED = 1u << 26,       /* has grants: it is cut off when its user may do less */
    CLIENT_GRANTED_OTHER = 1u << 27, /* some of them as another user, who it was before */
    CLIENT_ASKING = 1u << 28,        /* for the next command: shard.h */
    CLIENT_READONLY = 1u << 29,      /* a replica may answer it */
};

/* Something between the bytes of the replies: a value in the pool, or the header of an array still
 * being counted. */
struct out_insert {
    size_t at;                    /* position in out.bytes before which it goes */
    bool pending;                 /* a deferred header, not known yet */
    unsigned char header_len;     /* of header; then there are no pieces */
    unsigned char n, first;       /* pieces, and the first one with unsent bytes */
    struct store_hold *hold;      /* of a pool value */
    void (*release)(void *owner); /* of lent bytes, NULL: none */
    void *owner;
    size_t len; /* bytes left of all pieces */
    struct span piece[8];
    char header[24];
};

struct client_out {
    struct buf bytes;
    size_t sent;               /* of bytes */
    struct out_insert *insert; /* ordered by at */
    unsigned inserts, first_insert, insert_cap;
    unsigned dropped_inserts; /* number of the insert at index 0: cookies of deferred headers */
    size_t insert_bytes;      /* unsent, in pool memory */
    size_t tls_bytes;         /* ciphertext of what was sent, that the socket has not taken */
    uint64_t soft_since_ms;   /* over the soft limit since then, 0: it is not */
};

/* A large argument on its way in, or complete and waiting for the rest of its request. */
struct big_arg {
    struct big_arg *next;
    struct value_write *sink; /* NULL: heap */
    char *heap;
    size_t cap, len, got;
    unsigned crlf; /* of the two bytes after it, how many were seen */
    bool drop;     /* too large for its transaction: nothing of it is kept */
};

/* Bytes that arguments of the request in the making lie in. */
struct kept_bytes {
    SLIST_ENTRY(kept_bytes) older;
    char *data; /* behind this struct, or of its own */
    size_t len;
};

struct client_away;

struct client_io {
    struct net_watch watch;
    struct tls_stream *tls; /* NULL: plain text */
    /* client_near.c: an offer to move to a unix socket; where it had come to by tcp; what it goes
     * through, if watch.ring says so, too, or may. NULL: none, it did not move */
    struct client_near *near;
    struct sockaddr_storage *local;
    struct net_ring *ring;
    unsigned flags;
    TAILQ_ENTRY(client) all, ready, flush, closing, monitors; /* of lists of clients */
    /* input */
    struct resp_parser *parser; /* NULL: the shared one, between requests */
    struct buf in;
    size_t in_pos;
    struct big_arg *big; /* newest first; the first may be incomplete */
    bool big_reading;
    bool sends_big; /* its last requests had large arguments */
    uint8_t hints;  /* unknown commands for which another one was looked for */
    /* requests were left because it could not run more, not because they are incomplete */
    bool held;
    char *kept; /* bytes of the arguments of a job or postponed request */
    /* earlier ones of a request that is longer than one buffer, or has large arguments */
    SLIST_HEAD(, kept_bytes) pieces;
    size_t weighed;    /* client_weigh: what it held then */
    size_t heap_bytes; /* held by large arguments and kept ones */
    /* output */
    struct client_out out;
    size_t mark_bytes; /* where the reply of the running command begins */
    unsigned mark_inserts;
    /* the same of the first reply of CLIENT_UNWRITTEN, */
    size_t unwritten_bytes;
    unsigned unwritten_inserts, unwritten_replies; /* and how many there are from there on */
    /* a thread sends or receives for it: client_away.c */
    struct client_away *away;
    /* who and when */
    union {
        struct sockaddr sa;
        struct sockaddr_in in4;
        struct sockaddr_in6 in6;
    } peer;
    char *name, *lib_name, *lib_ver; /* NULL: none */
    char *traceparent;               /* what it works for: CLIENT SETINFO; NULL: nobody says */
    uint64_t created_ms, last_ms;    /* turn.mono_ms */
    uint64_t commands, bytes_in, bytes_out;
    uint64_t moved,
        /* bytes in and out when they were last seen to have grown, while it holds space of the
         * pool */
        moved_ms;
    uint64_t job_ns; /* what the slices of its job took so far */
    const struct cmd *last_cmd;
    struct multi *multi;           /* NULL: no transaction, no watched keys */
    struct subscriber *subscriber; /* NULL: no subscriptions */
    struct tracker *tracker;       /* NULL: CLIENT TRACKING is off */
    struct buf late;               /* messages that wait for the end of a reply */
    struct replica *replica;       /* NULL: it never said REPLCONF */
};

TAILQ_HEAD(client_list, client);
extern struct clients {
    struct client_list list;
    size_t n;
} clients;
#define CLIENTS_EACH(c)                                                                            \
    for (struct client *c = TAILQ_FIRST(&clients.list); c != NULL; c = TAILQ_NEXT(c, io->all))

/* --- client.c --- */

/* For net_listener_open; arg: &client_port of the listener. */
extern const char client_denied_text[];
enum client_port { CLIENT_PORT_TCP, CLIENT_PORT_TLS, CLIENT_PORT_UNIX };
void client_accept(void *arg, int fd, const struct sockaddr_storage *peer);
struct client *client_find(uint64_t id);
/* An id that no client has or will have: for sessions of this process' own. */
uint64_t client_next_id(void);
/* Closed at the end of the turn, and freed then or when its thread lets go of it; nothing is sent
 * any more. */
void client_close_soon(struct client *c);
/* The same, with a line in the log: "Client id=7 addr=127.0.0.1:4711 closed: why". */
void client_close_because(struct client *c, enum log_level level, const char *why, ...)
    __attribute__((format(printf, 3, 4)));
/* The same, after a read or a write that failed with errno. */
void client_close_dead(struct client *c);
/* Closed once its replies are out. */
void client_close_after_reply(struct client *c);
void client_close_all(void);
void client_free_closed(void);
/* All of them, now: what they held may go away. */
void client_free_closed_now(void);
/* Has input that may be run: in the next turn. */
void client_ready(struct client *c);
void clients_run_ready(void);
bool clients_any_ready(void);
/* May it run its next request? */
bool client_may_run(const struct client *c);
/* Are there so many replies that it has not taken that nothing more is heard from it? */
bool client_is_deaf(const struct client *c);
/* Back to the state of a new connection (RESET). */
void client_reset(struct client *c);
void client_set_monitor(struct client *c, bool on);
struct sockaddr_storage client_peer_address(const struct client *c);
/* "ip:port" of the peer, and of this side. */
void client_peer(const struct client *c, char *out, size_t size);
/* Behind its arguments where others see its commands, for whatever reads what they see knows a list
 * of arguments: "(traceparent 00-...)". Only where it has one. */
void client_trace_put(const struct client *c, struct buf *out);
void client_local(const struct client *c, char *out, size_t size);
size_t client_memory(const struct client *c);
/* The line of CLIENT LIST. */
void client_describe(const struct client *c, struct buf *out);
/* May it run what enable-debug-command or enable-module-command guards? mode:
 * CONFIG_PROTECTED_*. */
bool client_allowed(const struct client *c, int mode);
/* Timeouts and limits, a share of the clients per call. */
void clients_cron(unsigned hz);

/* --- clients_memory.c: maxmemory-clients --- */

/* Where there is a limit: after something of the client may have grown or shrunk, and before it
 * goes. */
void client_weigh(struct client *c);
void client_unweigh(struct client *c);
/* The option has changed. */
void clients_weigh_all(void);
/* Closes clients until the limit is met. */
void clients_evict(void);
/* Would so much more be well below the limit? */
bool clients_have_room(size_t more);

/* --- client_read.c --- */

void client_read_init(void);
void client_read_deinit(void);
void client_on_event(void *arg, unsigned events);
/* What some of them have sent, and is not read yet: what they will ask for comes near. */
void clients_ahead(void *arg, const struct span *came, size_t n);
/* n more bytes of the large argument that is being read are in their place. */
void client_big_read(struct client *c, size_t n);
/* Goes on with input that is there already. */
void client_run_input(struct client *c);
/* Its peer sends no more: closed, at once or when all that it asked for was answered. */
void client_input_ended(struct client *c);
/* After the running command or its job is over. */
void client_request_done(struct client *c);
/* The arguments must outlive the read: their bytes move to memory of the client. */
void client_keep_args(struct client *c);
void client_free_input(struct client *c);
/* Bytes of requests that are here: of the one that runs, and of those behind it. */
size_t client_input_held(const struct client *c);
/* Hands over the memory of the large arguments of this request; newest first. NULL: it has none. */
struct big_arg *client_big_take(struct client *c);
void client_big_free(struct big_arg **big_p);

/* --- client_big.c: large arguments on their way to no place of their own --- */

/* What heap grows to next. */
size_t client_big_next(const struct big_arg *b);
/* false: there is no memory. */
bool client_big_grow(struct big_arg *b);
/* Gives heap back. */
void client_big_release(struct big_arg *b);
/* Once a turn: gives back a share of what was released. true: there is more. */
bool client_big_turn(void);
/* Bytes that lie past the allocator. */
uint64_t client_big_mapped(void);

/* --- client_write.c --- */

void client_write_init(void);
void client_write_deinit(void);
/* Between these, replies go to the shared buffer; end sends them. */
void client_output_begin(struct client *c);
void client_output_end(struct client *c);
/* Output outside of begin and end (MONITOR) is sent at the end of the turn. */
void client_flush_later(struct client *c);
void clients_flush(void);
/* A message that is no reply: between the replies, whatever CLIENT REPLY says. Bounded by
 * client-output-buffer-limit. */
void client_push(struct client *c, const void *data, size_t len);
/* The same, behind the reply to the command that is about to run. */
void client_push_late(struct client *c, const void *data, size_t len);
/* What waited for the end of a reply goes behind it, if that is over. */
void client_push_due(struct client *c);
/* The socket takes bytes again, or has taken some. */
void client_on_writable(struct client *c);
size_t client_unsent(const struct client *c);
/* The events that its socket is watched for follow its state. */
void client_update_interest(struct client *c);
/* Of its own: what all clients lend while they run is nobody's. */
size_t client_output_memory(const struct client *c);
struct out_insert *client_out_insert(struct client *c);
/* Takes back what was replied since the mark (CLIENT REPLY OFF). */
void client_output_mark(struct client *c);
void client_output_rewind(struct client *c);
/* Something that counts as one reply begins; or something that is none was said. */
void client_unwritten_count(struct client *c);
void client_unwritten_other(struct client *c);
/* What was replied since the mark is about changes: where the append-only file does not take their
 * records, it is not sent. */
void client_unwritten_mark(struct client *c);
void client_output_limit(struct client *c);
/* Closes one that has not authenticated and has more of something than such a one may: what. */
void client_drop_stranger(struct client *c, const char *what);
void client_free_output(struct client *c);
/* What is to be sent next, about max bytes of it, for somebody who sends it while more is said:
 * pieces of values where they lie, and copies of the bytes between them as far as room has room.
 * iov is for NET_TRANSFER_PIECES; returns how many, *total_p: bytes. */
unsigned client_output_pieces(const struct client *c, size_t max, struct iovec *iov, char *room,
                              size_t room_size, size_t *total_p);
/* The first n unsent bytes have left. */
void client_output_sent(struct client *c, size_t n);

/* --- client_away.c: io-threads --- */

/* After the configuration was read. */
void client_away_init(void);
/* All clients are to be closed: their threads let go of them. */
void client_away_deinit(void);
bool client_away_active(void);
/* false: it is sent, or read, here. */
bool client_send_away(struct client *c);
bool client_receive_away(struct client *c, struct big_arg *b);
/* A thread reads from its socket. */
bool client_away_receives(const struct client *c);
/* What its thread has moved until now has left, or has come. */
void client_away_look(struct client *c);
/* It is to be closed: its thread lets go of it soon, and has done so after the latter. */
void client_away_cut(struct client *c);
void client_away_wait(struct client *c);

/* --- client_near.c --- */

#define CLIENT_NEAR_MAX 16u /* on their way at once */
size_t client_near_memory(const struct client *c);
void client_near_free(struct client *c);

/* --- client_tls.c --- */

/* A new connection of the TLS port. false: no memory. */
bool client_tls_begin(struct client *c);
/* As readv and send: bytes, 0 at the end, -1 and errno. What was written and the socket does not
 * take is in out.tls_bytes. */
ssize_t client_tls_read(struct client *c, const struct iovec *iov, int n);
size_t client_tls_write(struct client *c, const struct iovec *iov, int n);
/* Sends ciphertext. 1: all of it, 0: the socket takes no more, -1: the connection is dead. */
int client_tls_flush(struct client *c);
/* Its stream holds input that its socket will not announce. */
void client_tls_go_on(struct client *c);
/* It has not finished its handshake in time: closed. */
bool client_tls_late(struct client *c);
void client_tls_free(struct client *c);

/* --- dispatch.c --- */

/* Runs the request in c->argv; cmd is what table_find says of its name. The caller calls
 * client_request_done unless c->job or CLIENT_POSTPONED is set then. clock_later: the same command
 * follows, and both are brief; or else dispatch_read_clock. */
void dispatch(struct client *c, const struct cmd *cmd, bool clock_later);
/* Reading the clock takes as long as looking a key up, so look-ups of one key that follow each
 * other share one reading, and count with equal shares of the time between two. Is cmd, of one key,
 * such a command? */
bool dispatch_is_brief(const struct cmd *cmd);
/* Now, for those whose time is not known yet. */
void dispatch_read_clock(void);
/* Runs the request in c->argv within EXEC. cmd NULL: it may be another one, or none, by now. */
void dispatch_queued(struct client *c, const struct cmd *cmd);
/* The end of a job: figures, slow log. */
void dispatch_job_done(struct client *c);
/* Of one within EXEC. */
void dispatch_queued_done(struct client *c);
/* The running command was refused for want of memory before it did anything: it counts as rejected,
 * not as called. */
void dispatch_turned_away(struct client *c);

enum pause_what { PAUSE_NONE, PAUSE_WRITE, PAUSE_ALL };
enum pause_by { PAUSE_BY_CLIENT, PAUSE_BY_SHUTDOWN, PAUSE_BY_FAILOVER, PAUSES };
/* Each purpose has its own; the stronger of those in force counts. One of a client ends at
 * until_ms, the others when the shutdown or the failover says so. */
void pause_set(enum pause_by by, enum pause_what what, uint64_t until_ms);
/* What is in force, and when the last purpose of it ends, as far as one knows. */
enum pause_what pause_get(uint64_t *until_ms_p);
void pause_tick(void);

/* --- job.c --- */

void jobs_init(void);
void jobs_deinit(void);
void jobs_run(void);
bool jobs_any_runnable(void);
uint64_t jobs_next_ms(uint64_t limit_ms);
size_t jobs_count(void), jobs_sleeping(void);
/* The client goes away. */
void job_cancel(struct client *c);
/* Its unsent replies are below output-pause again. */
void job_output_drained(struct client *c);
/* Does it sleep as long as its client wished? */
bool job_awaits(const struct client *c);
/* Ends the wait of a sleeping job: as if its time were over, or with an error. false: it does not
 * sleep. */
bool job_unblock(struct client *c, bool error);

/* --- core.c: time and turns --- */

/* A new time stamp in ns; turn.mono_ms and the books follow it. */
uint64_t core_stamp(void);
extern uint64_t core_now_ns; /* the last one */

#endif
