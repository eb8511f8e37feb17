/* What a command family sees: the client that asked, its arguments, the reply functions, the books.
 *
 * One thread. A command runs to its end at once, or becomes a job: it blocks its own client only
 * and goes on in slices of the loop's work quota, or sleeps until something happens. Commands are
 * declared in src/wire. */
#ifndef TARN_FRONT_CMD_H
#define TARN_FRONT_CMD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/queue.h"
#include "base/status.h"
#include "base/wheel.h"
#include "front/turn.h"
#include "resp/resp.h"
#include "store/store.h"
#include "wire/wire.h"

struct client;
struct cmd;

/* --- the server, as commands see it --- */

/* Where the keys and segments are; NULL until they are set up at the start. */
extern struct store *books;

/* Who this server is among those that follow each other. */
struct server {
    uint32_t master_epoch;
    bool awaits_nodes; /* while they join a new master, what they hold is no miss */
    char run_id[41];
};
extern struct server server;

/* --- a client --- */

struct job;
struct acl_user;
struct value_write; /* a large argument that went straight to the pool: above.h */

struct client {
    uint32_t magic;
    uint64_t id;       /* also its session towards hosts */
    int proto;         /* 2 or 3 */
    int db;            /* SELECT; a name only, the keyspace is one */
    struct span *argv; /* argv[0] is the name; valid until the command or its job ends */
    size_t argc;
    const struct cmd *cmd;
    struct job *job; /* NULL: not blocked */
    /* of the one argument whose span has no data; the command takes it (sets NULL) or the framework
     * aborts it after the command */
    struct value_write *big;
    struct store_chain chain;
    char host_name[64]; /* CLIENT SETINFO tarn-host */
    char rack[64];      /* CLIENT SETINFO tarn-rack */
    bool of_node;       /* CLIENT SETINFO tarn-node: reads for a storage node */
    uint32_t host;      /* the number of host_name, as of machines_version: location_host */
    uint32_t machines_version;
    uint64_t shard_changes; /* when EXEC's keys were looked at */
    bool asking;            /* the running command is behind ASKING, or a mover's: shard.h */
    bool authenticated;
    bool unrestricted;     /* authenticated, and its user may do everything: acl_users.h */
    struct acl_user *user; /* who it is; never NULL */
    /* the rest belongs to client.c; see client.h */
    struct client_io *io;
};

/* --- replies --- */

void reply_ok(struct client *c);
void reply_simple(struct client *c, const char *s);
void reply_int(struct client *c, int64_t v);
void reply_bulk(struct client *c, struct span s);
void reply_bulk_str(struct client *c, const char *s);
void reply_null(struct client *c);
void reply_null_array(struct client *c);
void reply_array(struct client *c, size_t n);
void reply_map(struct client *c, size_t pairs);
void reply_set(struct client *c, size_t n);
void reply_bool(struct client *c, bool v);
void reply_double(struct client *c, double v);
void reply_verbatim(struct client *c, const char *ext3, struct span s);
/* An array or map whose length is not known yet; the cookie goes to one of reply_deferred_* once.
 * Nothing of the reply leaves before that. */
void *reply_deferred(struct client *c);
void reply_deferred_array(struct client *c, void *cookie, size_t n);
void reply_deferred_map(struct client *c, void *cookie, size_t pairs);
void reply_deferred_set(struct client *c, void *cookie, size_t n);
/* "-ERR text" unless fmt starts with '-' ("-WRONGTYPE ..."). Counted in INFO errorstats. */
void reply_error(struct client *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The error code and text of a status, e.g. "-NOSPACE no room ..." ; what names the argument or key
 * concerned, or NULL. */
void reply_status(struct client *c, tarn_status status, const char *what);
/* "-TRYAGAIN <ms> text": not now, and to be asked again after ms. Clients obey it within their
 * call's time. */
void reply_later(struct client *c, uint64_t ms, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
#define REPLY_LATER_MS 100u          /* where nobody knows better */
void reply_arity(struct client *c);  /* wrong number of arguments for '...' command */
void reply_syntax(struct client *c); /* ERR syntax error */
/* A value straight from pool memory: pieces are sent without a copy, then hold is released (also
 * when the client dies). Takes hold. n pieces <= 8. */
void reply_pool(struct client *c, const struct span *pieces, size_t n, struct store_hold *hold);

/* --- jobs --- */

/* The first member of the command's own state.
 *
 *   job_start ─> step ─┬─ true ──────────────────────────────> close, free
 *                      ├─ false, runnable ──> next slice ─┐        ^ client closed or killed
 *                      └─ false, sleeping ──> job_wake or │        │
 *                              ^              the deadline│ ─> step ...
 *                              └──────────────────────────┘
 *
 * The arguments survive between slices, but the bytes move once, after the first slice: find them
 * through c->argv[i] each time, and keep no span of them in the state. */
struct job {
    /* Does up to *budget units of work (about one key each), counting them down. true: done, the
     * reply is complete. false: call again (runnable), or when woken. Also called once when
     * deadline_ms is over: compare with turn.mono_ms. */
    bool (*step)(struct client *c, struct job *job, unsigned *budget);
    /* Gives back what the state holds beside itself; NULL: nothing. Called exactly once for every
     * started job: after step said true, or when the client goes away in the middle (c is still
     * valid, what it replies is lost). */
    void (*close)(struct client *c, struct job *job);
    /* set by the command before job_start, and by step; false: sleeping until job_wake or the
     * deadline */
    bool runnable;
    /* turn.mono_ms, 0: none; step may change it. One that sleeps as long as its client wishes has
     * one, far away if need be: CLIENT UNBLOCK ends it, and so does a client that shuts its side of
     * the connection down */
    uint64_t deadline_ms;
    bool wraps; /* the job within it is its command, and accounted for with it */
    bool polls; /* its deadlines are its own: it only looks again then */
    /* private */
    struct client *client;
    struct job *outer;     /* the EXEC that it runs within, NULL: none */
    TAILQ_ENTRY(job) link; /* of those that run, in turns */
    struct wheel_node timer;
    bool queued, stalled; /* stalled: until its client has read some of its replies */
};
/* From a command function, as its last act. Runs the first slice at once if it is runnable. Takes
 * the state, from the heap; it may be gone when this returns. */
void job_start(struct client *c, struct job *job);
/* Runs the first slice of what is a job only if that was not all: most commands are over with it.
 * The state of size bytes lies on the caller's stack and is copied to the heap then, so nothing may
 * point into it before its second slice. */
void job_run(struct client *c, struct job *job, size_t size);
/* For a step to return: false, and it is called again after ms. */
bool job_look_again(struct job *job, uint64_t ms);
/* Its step is called soon, not from inside. No-op for a runnable job. */
void job_wake(struct job *job);

/* Work units that one command or slice may use before it must give way (configuration
 * loop-work-quota). */
unsigned job_quota(void);
/* Counts work down; a slice that is over budget by its last step is no error. */
static inline void spend(unsigned *budget, size_t units) {
    *budget = units < *budget ? *budget - (unsigned)units : 0;
}

/* --- the command table --- */

typedef void (*cmd_fn)(struct client *c);

struct cmd {
    const char *name; /* lower case; subcommands: "get" inside "config" */
    cmd_fn run;       /* NULL: a container, whose subcommands are tried */
    /* as in Redis: negative is a minimum; counts the name (and the container's) */
    int arity;
    unsigned flags;
    const char *categories; /* beyond those that follow from the flags: "@string", or NULL */
    const char *group;      /* "string", "generic", "server", "connection", "pool" */
    const char *since;
    const char *summary;
    const char *complexity;              /* "O(1)"; NULL: not told */
    enum wire_id id;                     /* WIRE_COMMANDS: of a module */
    const struct wire_command *declared; /* NULL: of a module, whose syntax is a text */
    const struct wire_arg *block;        /* its first block of arguments, NULL: none */
    struct wire_plan plan;               /* of what is declared */
    const char *syntax, *reply, *errors; /* of a module; NULL: not told, none */
    struct cmd_key_spec keys[WIRE_KEY_SPECS];
    const struct cmd *sub; /* subcommands, ended by a NULL name */
    unsigned stat_index;   /* private: set by the table at start */
};

/* The arguments into the struct of the command, which is all zero before (wire/options.h). false:
 * the error was answered. */
bool arg_bind(struct client *c, void *options);
/* One block of them, from argv[at] on. */
bool arg_bind_block(struct client *c, size_t at, void *element);

/* The word that an index of the struct stands for; no bytes at NULL when it was not given. */
static inline struct span arg_word(const struct client *c, uint32_t at) {
    return at != 0 ? c->argv[at] : span_of(NULL, 0);
}

/* Helpers for arguments. The error has been answered when they return false. */
bool arg_i64(struct client *c, size_t index,
             int64_t *value_p); /* "value is not an integer or out of range" */
/* The number after a keyword, named in the error: "ERR LEASE must be a number from 1 to 10000". */
bool arg_range(struct client *c, size_t index, const char *name, uint64_t min, uint64_t max,
               uint64_t *value_p);
bool arg_is(struct client *c, size_t index, const char *keyword); /* case-insensitive */
/* 1 .. STORE_KEY_MAX bytes: "ERR key must be 1 to 1024 bytes". Pure look-ups of other lengths are
 * plain misses in Redis' commands; tarn's own commands refuse them. */
bool arg_key(struct client *c, size_t index);
bool key_valid(struct client *c, struct span key);
/* The key at argv[2], without an access; nil is answered when it is not there. */
struct object *object_argument(struct client *c);

#endif
