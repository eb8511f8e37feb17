/* A connection: its buffers, its request in the making, its unsent replies. For the core of this room (client*.c, reply.c,
 * dispatch.c, job.c) and the CLIENT family; other families need cmd.h only.
 *
 *   accepted ─> reading ─┬─> request ─> runs ─────────────> replies ─> reading ...
 *                        │                 └─> job (blocked) ──┘
 *                        ├─> postponed (CLIENT PAUSE)
 *                        └─> large argument: socket to pool
 *   any of these ─> CLIENT_CLOSE_SOON (listed) ─> freed at the end of the turn
 *
 * Memory follows need: a connection that is idle owns this struct and nothing else. The bytes of a read lie in a buffer
 * that all connections share, replies are built in another; only what is left over after the callback (half a request,
 * bytes that the socket did not take) moves to memory of the connection. */
#ifndef TARN_CMD_CLIENT_H
#define TARN_CMD_CLIENT_H

#include <netinet/in.h>
#include "cmd/cmd.h"
#include "cmd/config.h"
#include "net/net.h"

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
    CLIENT_READ_OFF = 1u << 13, /* not read from until its input was run */
    CLIENT_NO_TOUCH = 1u << 14,
    CLIENT_REDACTED = 1u << 15, /* arguments of the running command are secret: redact_from */
};

/* Something between the bytes of the replies: a value in the pool, or the header of an array still being counted. */
struct out_insert {
    size_t at;                /* position in out.bytes before which it goes */
    bool pending;             /* a deferred header, not known yet */
    unsigned char header_len; /* of header; then there are no pieces */
    unsigned char n, first;   /* pieces, and the first one with unsent bytes */
    struct store_hold *hold;  /* of a pool value */
    size_t len;               /* bytes left of all pieces */
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
    uint64_t soft_since_ms;   /* over the soft limit since then, 0: it is not */
};

/* A large argument on its way in, or complete and waiting for the rest of its request. */
struct big_arg {
    struct big_arg *next;
    struct big_sink *sink; /* NULL: heap */
    char *heap;
    size_t cap, len, got;
    unsigned crlf; /* of the two bytes after it, how many were seen */
};

struct client_link {
    struct client *prev, *next;
};

struct client_io {
    struct net_watch watch;
    unsigned flags;
    struct client_link all, ready, flush;
    /* input */
    struct resp_parser *parser; /* NULL: the shared one, between requests */
    struct buf in;
    size_t in_pos;
    struct big_arg *big; /* newest first; the first may be incomplete */
    bool big_reading;
    bool sends_big;    /* its last requests had large arguments */
    bool held;         /* requests were left because it could not run more, not because they are incomplete */
    char *kept;        /* bytes of the arguments of a job or postponed request */
    char *kept_big;    /* chain of blocks: arguments before a large one */
    size_t heap_bytes; /* held by large arguments and kept ones */
    unsigned redact_from; /* arguments from here on are not shown; with CLIENT_REDACTED */
    /* output */
    struct client_out out;
    size_t mark_bytes; /* where the reply of the running command begins */
    unsigned mark_inserts;
    /* who and when */
    union {
        struct sockaddr sa;
        struct sockaddr_in in4;
        struct sockaddr_in6 in6;
    } peer;
    char *name, *lib_name, *lib_ver; /* NULL: none */
    uint64_t created_ms, last_ms;    /* server.mono_ms */
    uint64_t commands, bytes_in, bytes_out;
    uint64_t job_ns; /* what the slices of its job took so far */
    const struct cmd *last_cmd;
};

struct client_list {
    struct client *head, *tail;
    size_t n;
};
extern struct client_list clients;

/* --- client.c ------------------------------------------------------------------------------------------------------------- */

/* For net_listener_open; arg is not NULL for the unix socket. */
void client_accept(void *arg, int fd, const struct sockaddr_storage *peer);
struct client *client_find(uint64_t id);
/* Closed at the end of the turn; nothing is sent any more. */
void client_close_soon(struct client *c);
/* Closed once its replies are out. */
void client_close_after_reply(struct client *c);
void client_close_all(void);
void client_free_closed(void);
/* Has input that may be run: in the next turn. */
void client_ready(struct client *c);
void clients_run_ready(void);
bool clients_any_ready(void);
/* May it run its next request? */
bool client_may_run(const struct client *c);
/* Back to the state of a new connection (RESET). */
void client_reset(struct client *c);
void client_set_monitor(struct client *c, bool on);
/* "ip:port" of the peer, and of this side. */
void client_peer(const struct client *c, char *out, size_t size);
void client_local(const struct client *c, char *out, size_t size);
size_t client_memory(const struct client *c);
/* Timeouts and limits, a share of the clients per call. */
void clients_cron(unsigned hz);

/* --- client_read.c -------------------------------------------------------------------------------------------------------- */

void client_read_init(void);
void client_read_deinit(void);
void client_on_event(void *arg, unsigned events);
/* Goes on with input that is there already. */
void client_run_input(struct client *c);
/* After the running command or its job is over. */
void client_request_done(struct client *c);
/* The arguments must outlive the read: their bytes move to memory of the client. */
void client_keep_args(struct client *c);
void client_free_input(struct client *c);

/* --- client_write.c ------------------------------------------------------------------------------------------------------- */

void client_write_init(void);
void client_write_deinit(void);
/* Between these, replies go to the shared buffer; end sends them. */
void client_output_begin(struct client *c);
void client_output_end(struct client *c);
/* Output outside of begin and end (MONITOR) is sent at the end of the turn. */
void client_flush_later(struct client *c);
void clients_flush(void);
/* The socket takes bytes again. */
void client_on_writable(struct client *c);
size_t client_unsent(const struct client *c);
struct out_insert *client_out_insert(struct client *c);
/* Takes back what was replied since the mark (CLIENT REPLY OFF). */
void client_output_mark(struct client *c);
void client_output_rewind(struct client *c);
void client_output_limit(struct client *c);
void client_free_output(struct client *c);

/* --- dispatch.c ----------------------------------------------------------------------------------------------------------- */

/* Runs the request in c->argv; cmd is what table_find says of its name. The caller calls client_request_done unless c->job or CLIENT_POSTPONED is set then. */
void dispatch(struct client *c, const struct cmd *cmd);
/* The end of a job: figures, slow log. */
void dispatch_job_done(struct client *c);
/* Arguments from index on are secret: MONITOR and SLOWLOG show "(redacted)". From a command function. */
void dispatch_redact(struct client *c, unsigned from);
bool dispatch_password_ok(struct span user, struct span password);

enum pause_what { PAUSE_NONE, PAUSE_WRITE, PAUSE_ALL };
void pause_set(enum pause_what what, uint64_t until_ms);
enum pause_what pause_get(uint64_t *until_ms_p);
void pause_tick(void);

/* --- job.c ---------------------------------------------------------------------------------------------------------------- */

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
/* Ends the wait of a sleeping job: as if its time were over, or with an error. false: it does not sleep. */
bool job_unblock(struct client *c, bool error);

/* --- core.c: time and turns ------------------------------------------------------------------------------------------------ */

/* A new time stamp in ns; server.mono_ms and the books follow it. */
uint64_t core_stamp(void);
extern uint64_t core_now_ns; /* the last one */

#define LINK_OF(c, field) (&(c)->io->field)

#endif
