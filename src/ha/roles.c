/* REPLICAOF, ROLE, WAIT; what may be asked of whom; INFO replication. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "front/effects.h"
#include "ha/failover.h"
#include "front/families.h"
#include "front/multi.h"
#include "ha/replication.h"
#include "front/table.h"
#include "front/embedded.h"
#include "config/config.h"
#include "wire/options.h"

typedef unsigned long long ull;

/* --- who may ask what --- */

/* PREFIXLEN numkeys key [key ...] [LEASE ms] ...: with a lease it is the master's. */
static bool takes_lease(const struct client *c) {
    uint64_t n;
    if (c->argc < 3 || !span_to_u64(c->argv[1], &n) || n > c->argc - 2) return false;
    for (size_t i = 2 + (size_t)n; i < c->argc; i++)
        if (span_case_eq(c->argv[i], "lease")) return true;
    return false;
}

static const char *refuse_replica(const struct client *c, const struct cmd *cmd, unsigned flags) {
    static char text[400];
    if (cmd->id == WIRE_exec) flags &= multi_common(c) | ~(unsigned)(CMD_LOADING | CMD_STALE);
    if (replication_loading() && !(flags & CMD_LOADING))
        return "-LOADING tarn is loading the books from its master";
    if (!replication_link_up() && !config->replica_serve_stale_data && !(flags & CMD_STALE))
        return "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";
    if (!(flags & (CMD_WRITE | CMD_MASTER)) && !(cmd->id == WIRE_prefixlen && takes_lease(c)))
        return NULL;
    snprintf(text, sizeof(text),
             "-READONLY You can't write against a read only replica. The master is %s:%u.",
             replication.master_host, replication.master_port);
    return text;
}

struct away {
    const struct span *argv;
    bool found;
};
static void note_away(void *arg, struct cmd_key_ref key) {
    struct away *a = arg;
    a->found = a->found || store_is_away(books, a->argv[key.index]);
}

/* A miss would be forgotten work: the node is about to come. */
static bool asks_for_what_is_away(const struct client *c, const struct cmd *cmd) {
    struct away a = {.argv = c->argv};
    return cmd->keys[0].flags != 0 && cluster_awaits_nodes() &&
           table_keys(cmd, c->argv, c->argc, note_away, &a) > 0 && a.found;
}

/* Values for any Redis client. */
static bool in_band(const struct cmd *cmd) {
    return strcmp(cmd->group, "string") == 0;
}

/* The same, but for those that are written whatever was there. */
static bool reads_in_band(const struct client *c, const struct cmd *cmd) {
    if (!in_band(cmd)) return false;
    if (cmd->id == WIRE_mset || cmd->id == WIRE_setex || cmd->id == WIRE_psetex) return false;
    return cmd->id != WIRE_set || c->argc > 3;
}

bool replication_is_early(const struct client *c, const struct cmd *cmd) {
    if (replication.replica) return false;
    if (embedded.populating.on) return in_band(cmd);
    return server.awaits_nodes && reads_in_band(c, cmd) && asks_for_what_is_away(c, cmd);
}

/* With how far it is, for whoever looks on. */
static const char *refuse_populating(void) {
    static char text[160];
    snprintf(
        text, sizeof(text),
        "-LOADING tarn is populating its pool: %u %% of %llu MiB are done, about %llu s are left",
        (unsigned)(embedded.populating.total > 0
                       ? embedded.populating.done * 100 / embedded.populating.total
                       : 0),
        (ull)(embedded.populating.total >> 20), (ull)(embedded.populating.left_ms + 999) / 1000);
    return text;
}

bool replication_restricts(void) {
    return replication.replica || !LIST_EMPTY(&replication.replicas) ||
           config->min_replicas_to_write > 0 || server.awaits_nodes || embedded.populating.on;
}

static const char *lacks_replicas(void) {
    bool lacks = config->min_replicas_to_write > 0 && config->min_replicas_max_lag_s > 0 &&
                 replication.good < (uint64_t)config->min_replicas_to_write;
    return lacks ? "-NOREPLICAS Not enough good replicas to write." : NULL;
}

const char *replication_master_refusal(void) {
    return embedded.populating.on ? refuse_populating() : lacks_replicas();
}

const char *replication_refusal(const struct client *c, const struct cmd *cmd) {
    unsigned flags = cmd->flags;
    /* of EXEC: what all of its commands are */
    unsigned within = cmd->id == WIRE_exec ? multi_common(c) : ~0u;
    if (embedded.populating.on && !(flags & within & CMD_LOADING)) return refuse_populating();
    if (cmd->id == WIRE_exec) flags |= multi_flags(c) & (CMD_WRITE | CMD_MASTER);
    if (c->io->flags & CLIENT_REPLICA && flags & (CMD_WRITE | CMD_READONLY | CMD_MAY_REPLICATE))
        return "Replica can't interact with the keyspace";
    if (replication.replica) return refuse_replica(c, cmd, flags);
    const char *lacks = flags & CMD_WRITE ? lacks_replicas() : NULL;
    if (lacks != NULL) return lacks;
    if (server.awaits_nodes && (flags & CMD_READONLY || reads_in_band(c, cmd)) &&
        asks_for_what_is_away(c, cmd))
        return "-LOADING the node that has this key has not joined this master yet";
    return NULL;
}

const char *replication_master(uint16_t *port_p) {
    if (port_p != NULL) *port_p = replication.master_port;
    return replication.replica ? replication.master_host : NULL;
}

/* --- REPLICAOF --- */

void cmd_replicaof(struct client *c) {
    uint64_t port;
    char text[256];
    struct wire_master to = {0};
    if (!arg_bind(c, &to)) return;
    if (failover_under_way()) {
        reply_error(c, "REPLICAOF not allowed while failing over.");
        return;
    }
    if (to.host == 0) {
        if (replication.replica)
            log_notice("REPLICAOF NO ONE was asked for by client id=%llu", (ull)c->id);
        replication_lead();
        reply_ok(c);
        return;
    }
    if (c->io->flags & CLIENT_REPLICA) {
        reply_error(c, "Command is not valid when client is a replica.");
        return;
    }
    if (!span_to_u64(c->argv[to.port], &port) || port > UINT16_MAX) {
        reply_error(c, "Invalid master port");
        return;
    }
    struct span host = c->argv[to.host];
    if (host.data == NULL || host.len == 0 || host.len >= sizeof(text) ||
        memchr(host.data, '\0', host.len) != NULL || memchr(host.data, ' ', host.len) != NULL) {
        reply_error(c, "Invalid master host");
        return;
    }
    if (embedded.host != NULL) {
        reply_error(c, "a server with a pool of its own cannot be a replica: start it with "
                       "pool-size 0, and give the pool to tarn-node");
        return;
    }
    snprintf(text, sizeof(text), "%.*s", (int)host.len, host.data);
    if (replication.replica && strcasecmp(text, replication.master_host) == 0 &&
        port == replication.master_port) {
        reply_simple(c, "OK Already connected to specified master");
        return;
    }
    replication_follow(text, (uint16_t)port, c->id);
    replication_let_go(c);
    reply_ok(c);
}

/* --- ROLE --- */

static const char *link_word(void) {
    static const char *const words[] = {"connect", "connecting", "handshake", "sync", "connected"};
    return words[replication.link != NULL ? repl_link_state(replication.link) : REPL_LINK_WAITING];
}

static void role_master(struct client *c) {
    struct replica *r;
    char text[24], ip[64];
    uint16_t port;
    size_t n = 0;
    reply_array(c, 3);
    reply_bulk_str(c, "master");
    reply_int(c, (int64_t)replication.history.offset);
    void *cookie = reply_deferred(c);
    LIST_FOREACH(r, &replication.replicas, link) {
        if (r->state != REPLICA_ONLINE) continue;
        replica_address(r, ip, &port);
        reply_array(c, 3);
        reply_bulk_str(c, ip);
        reply_bulk(c, span_of(text, u64_to_dec(port, text)));
        reply_bulk(c, span_of(text, u64_to_dec(r->ack_offset, text)));
        n++;
    }
    reply_deferred_array(c, cookie, n);
}

void cmd_role(struct client *c) {
    if (!replication.replica) {
        role_master(c);
        return;
    }
    reply_array(c, 5);
    reply_bulk_str(c, "slave");
    reply_bulk_str(c, replication.master_host);
    reply_int(c, replication.master_port);
    reply_bulk_str(c, link_word());
    reply_int(c, replication.synced ? (int64_t)replication.history.offset : -1);
}

/* --- WAIT --- */

struct wait {
    struct job job;
    LIST_ENTRY(wait) link;
    uint64_t offset, replicas;
};
static LIST_HEAD(, wait) waits;

size_t replicas_acknowledged(uint64_t offset) {
    struct replica *r;
    size_t n = 0;
    LIST_FOREACH(r, &replication.replicas, link)
        n += r->state == REPLICA_ONLINE && r->ack_offset >= offset;
    return n;
}

void waits_wake(void) {
    struct wait *w;
    LIST_FOREACH(w, &waits, link)
        if (replicas_acknowledged(w->offset) >= w->replicas) job_wake(&w->job);
}

static bool acks_step(struct client *c, struct job *job, unsigned *budget) {
    struct wait *w = CONTAINER_OF(job, struct wait, job);
    size_t n = replicas_acknowledged(w->offset);
    bool late = turn.mono_ms >= job->deadline_ms;
    job->runnable = false;
    if (n < w->replicas && !late) return false;
    reply_int(c, (int64_t)n);
    return true;
}

static void acks_close(struct client *c, struct job *job) {
    LIST_REMOVE(CONTAINER_OF(job, struct wait, job), link);
}

void cmd_wait(struct client *c) {
    int64_t replicas, timeout;
    if (replication.replica) {
        reply_error(c, "WAIT cannot be used with replica instances. Please also note that writes "
                       "to replicas are refused.");
        return;
    }
    if (!arg_i64(c, 1, &replicas)) return;
    if (!span_to_i64(c->argv[2], &timeout)) {
        reply_error(c, "timeout is not an integer or out of range");
        return;
    }
    if (timeout < 0) {
        reply_error(c, "timeout is negative");
        return;
    }
    effects_turn(); /* what this client has done so far has its offset now */
    uint64_t offset = replication.history.offset;
    size_t n = replicas_acknowledged(offset);
    if (replicas <= 0 || n >= (uint64_t)replicas || c->io->flags & CLIENT_EXEC) {
        reply_int(c, (int64_t)n);
        return;
    }
    struct wait *w = xcalloc(1, sizeof(*w));
    w->job = (struct job){.step = acks_step, .close = acks_close};
    uint64_t most_ms = UINT64_C(1) << 50; /* as good as no end */
    w->job.deadline_ms =
        turn.mono_ms + (timeout > 0 ? min_u64((uint64_t)timeout, most_ms) : most_ms);
    w->offset = offset;
    w->replicas = (uint64_t)replicas;
    LIST_INSERT_HEAD(&waits, w, link);
    replication.getack = true;
    job_start(c, &w->job);
}

/* --- INFO --- */

static void write_master_link(struct figure_walk *f) {
    struct repl_link_figures link = {0};
    enum repl_link_state state = REPL_LINK_WAITING;
    if (replication.link != NULL) {
        state = repl_link_state(replication.link);
        repl_link_get_figures(replication.link, &link);
    }
    bool up = state == REPL_LINK_STREAMING, sync = state == REPL_LINK_SNAPSHOT;
    uint64_t offset = replication.synced ? replication.history.offset : 0;
    uint64_t silent_s = (turn.mono_ms - min_u64(link.last_io_ms, turn.mono_ms)) / 1000;
    uint64_t down_s = (turn.mono_ms - link.down_since_ms) / 1000;
    FIGURE(f, TEXT, master_host, "the master", replication.master_host);
    FIGURE(f, GAUGE, master_port, "its port", replication.master_port);
    FIGURE(f, TEXT, master_link_status, "up, down", up ? "up" : "down");
    FIGURE(f, SECONDS, master_last_io_seconds_ago, "it said something, -1: the link is down",
           up ? silent_s : UINT64_MAX);
    FIGURE(f, GAUGE, master_sync_in_progress, "1: it is sending a snapshot", sync);
    FIGURE(f, BYTES, slave_read_repl_offset, "as slave_repl_offset", offset);
    FIGURE(f, BYTES, slave_repl_offset, "where in the stream of changes this replica is", offset);
    if (sync) {
        FIGURE(f, BYTES, master_sync_read_bytes, "of the snapshot, so far", link.snapshot_bytes);
        FIGURE(f, SECONDS, master_sync_last_io_seconds_ago, "the master said something", silent_s);
    }
    if (!up)
        FIGURE(f, SECONDS, master_link_down_since_seconds, "-1: it never was up",
               link.down_since_ms != 0 ? down_s : UINT64_MAX);
    FIGURE(f, GAUGE, slave_priority, "lower ones take over first (replica-priority)",
           config->replica_priority);
    FIGURE(f, GAUGE, slave_read_only, "always 1", 1);
    FIGURE(f, GAUGE, replica_announced, "1: Sentinels may know of it", config->replica_announced);
}

static void write_replica(struct figure_walk *f, const struct replica *r, const char *number) {
    static const char *const states[] = {"wait_bgsave", "send_bulk", "online"};
    char ip[64];
    uint16_t port;
    replica_address(r, ip, &port);
    figures_group(f, "slave", "replica", number);
    FIGURE(f, TEXT, ip, "of the replica", ip);
    FIGURE(f, GAUGE, port, "of the replica", port);
    FIGURE(f, TEXT, state, "wait_bgsave, send_bulk, online", states[r->state]);
    FIGURE(f, BYTES, offset, "of the changes it has", r->ack_offset);
    FIGURE(f, SECONDS, lag, "since it last said so",
           r->state == REPLICA_ONLINE ? replica_lag_s(r) : 0);
    FIGURE(f, TEXT, version, "of the replica",
           !r->modern      ? "0.1"
           : r->version[0] ? r->version
                           : "unknown");
    figures_group_end(f);
}

static void write_replicas(struct figure_walk *f) {
    struct replica *r;
    size_t i = 0;
    FIGURE(f, GAUGE, connected_slaves, "replicas of this server",
           replication.syncing + replication.online);
    if (config->min_replicas_to_write > 0 && config->min_replicas_max_lag_s > 0)
        FIGURE(f, GAUGE, min_slaves_good_slaves, "... that min-replicas-to-write counts",
               replication.good);
    LIST_FOREACH(r, &replication.replicas, link) {
        char number[24];
        snprintf(number, sizeof(number), "%zu", i++);
        write_replica(f, r, number);
    }
}

void info_replication(struct figure_walk *f) {
    const struct repl_history *h = &replication.history;
    const struct repl_backlog *b = &replication.backlog;
    FIGURE(f, TEXT, role, "master, slave", replication.replica ? "slave" : "master");
    if (replication.replica) write_master_link(f);
    write_replicas(f);
    FIGURE(f, TEXT, master_failover_state, "of FAILOVER", failover_state_name());
    FIGURE(f, TEXT, master_replid, "the history of changes that this server goes on", h->id);
    FIGURE(f, TEXT, master_replid2, "... that of its former master", h->id2);
    FIGURE(f, BYTES, master_repl_offset, "changes there were", h->offset);
    FIGURE(f, BYTES, second_repl_offset, "... up to here of master_replid2, -1: none", h->second);
    FIGURE(f, GAUGE, repl_backlog_active, "1: changes are kept for replicas", b->ring != NULL);
    FIGURE(f, BYTES, repl_backlog_size, "bound of them", config->repl_backlog_size);
    FIGURE(f, BYTES, repl_backlog_first_byte_offset, "where they begin",
           b->ring != NULL ? h->offset - b->len + 1 : 0);
    FIGURE(f, BYTES, repl_backlog_histlen, "how much it is", b->len);
}
