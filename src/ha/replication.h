/* The role of this server, and what comes with it.
 *
 *   master ── REPLICAOF host port ──> replica: books_step_down at the end of the turn
 *      ^                                 │  then its link asks the master
 *      │                                 │  link: what was is forgotten ─> snapshot (loading)
 *      │                                 │        ─> stream
 *      ├───────── REPLICAOF NO ONE ──────┘  books_lead, under a new id of the stream
 *      └── FAILOVER: see failover.h
 *
 * Replicas of this server, be it master or replica itself, are clients that said PSYNC (struct
 * replica). A full synchronisation is a job of such a client: a walk over the books in slices, with
 * what happens meanwhile in between. */
#ifndef TARN_HA_REPLICATION_H
#define TARN_HA_REPLICATION_H

#include "base/figures.h"
#include "base/queue.h"
#include "ha/books.h"
#include "front/client.h"
#include "config/config.h"
#include "repl/history.h"
#include "repl/link.h"

enum replica_state {
    REPLICA_TALKING, /* it said something of REPLCONF */
    REPLICA_SYNCING,
    REPLICA_ONLINE,
};

/* A client that follows this server. */
struct replica {
    struct client *client;
    LIST_ENTRY(replica) link; /* of those that said PSYNC */
    enum replica_state state;
    bool capable; /* understands tarn's stream */
    bool modern;  /* all of it; else it is of tarn 0.1 (older.h) */
    char version[24];
    uint16_t port;
    char ip[64]; /* as it announces itself; "": as it connects */
    uint64_t ack_offset, ack_ms;
    /* of its synchronisation */
    struct books_snapshot walk;
    bool walked;
    char mark[REPL_MARK_LEN + 1];
    uint64_t began_ms;
    uint64_t moved_ms, moved_bytes; /* when it last took bytes, and how many by then */
};

struct replication {
    struct repl_history history;
    struct repl_backlog backlog;
    LIST_HEAD(, replica) replicas;
    size_t syncing, online, good; /* good: online, and heard of within min-replicas-max-lag */
    size_t older;                 /* of tarn 0.1 */
    uint64_t alone_since_ms;      /* without replicas */
    uint64_t ping_ms;
    bool getack; /* somebody waits for acknowledgements */
    /* as a replica */
    bool replica;
    bool synced;     /* the books are those of the history */
    bool partial;    /* a part of a snapshot is in the books */
    bool unwritten;  /* files are of other books */
    bool steps_down; /* at the end of this turn: the books lead until then */
    char *master_host;
    uint16_t master_port;
    struct repl_link *link; /* NULL: not yet */
    uint64_t asked_by;      /* the client that made this server a replica in this turn */
};
extern struct replication replication;

static inline bool replication_is_replica(void) {
    return replication.replica;
}

/* --- the whole --- */

/* The books are there, and follow if the configuration says replicaof. */
void replication_init(void);
/* Clients are accepted from now on. */
void replication_start(void);
/* Before the clients go, and after. */
void replication_close_link(void);
void replication_deinit(void);
void replication_cron(void);
/* At the end of a turn, before replies leave. true: there is more to do. */
bool replication_turn(void);
/* Behind the last command of the turn, when clients were closed. */
void replication_settle(void);
/* Options have changed. */
bool replication_apply_config(const char **why_p);

/* May c run cmd now? The answer why not is a static text of an error, NULL: yes. */
bool replication_restricts(void); /* else nothing is refused */
const char *replication_refusal(const struct client *c, const struct cmd *cmd);
const char *replication_master_refusal(void); /* of a write; refusal says it, too */
/* An in-band value that is refused because its node is awaited, or the pool populated: it waits
 * instead (later.h). */
bool replication_is_early(const struct client *c, const struct cmd *cmd);
/* INFO persistence: a snapshot of the master is under way. */
bool replication_loading(void);
/* The stream of the master comes. */
bool replication_link_up(void);
/* Whom it follows; NULL: it is a master. */
const char *replication_master(uint16_t *port_p);
/* What a replica has to wait for until it may be asked; NULL: nothing, or it is none. */
const char *replication_awaited(void);
size_t replication_memory(void), replication_client_memory(void);

/* --- as a master: repl_master.c --- */

/* Whole commands of the stream, to the backlog and to all that are online. */
void replication_feed(struct span commands);
/* Records, to those that get a snapshot. */
void replication_feed_walks(struct span records);
/* Changes are told to backlog and replicas, if there are any. */
void replication_listen(void);
void replication_create_backlog(void);
void replication_free_backlog(void);
/* They connect again, and hear what there is. */
void replicas_drop_all(const char *why);
void replica_gone(struct client *c);
/* Some of what it was told has left. */
void replica_drained(struct client *c);
void replicas_cron(void);
/* The offsets that replicas have acknowledged have changed. */
void waits_wake(void);
/* How many have all up to there. */
size_t replicas_acknowledged(uint64_t offset);
/* Address and port of a replica, as it announces them. */
void replica_address(const struct replica *r, char ip[64], uint16_t *port_p);
uint64_t replica_lag_s(const struct replica *r);

/* --- as a replica: repl_follow.c --- */

void replication_follow(const char *host, uint16_t port, uint64_t asked_by);
/* A master, at the end of a turn: follows that replica, which is asked to lead (failover_answered).
 * It goes on in the same stream. */
void replication_hand_over(const char *host, uint16_t port);
void replication_lead(void);
/* The same at the master's wish, which has stopped: nothing of its stream is missing here. */
void replication_take_over(uint64_t suspect_below);
/* Clients whose work depends on what is in the books are closed, but for that one. */
void replication_let_go(const struct client *except);
/* What else is under way with bytes that the books know, and what clients remember of them. */
void replication_drop_work(void);

/* INFO replication. */
void info_replication(struct figure_walk *f);

#endif
