/* This server's own replicas: what they are told, and what they are asked. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "front/acl_users.h"
#include "front/effects.h"
#include "ha/failover.h"
#include "front/families.h"
#include "ha/older.h"
#include "ha/replication.h"
#include "front/stats.h"
#include "front/table.h"
#include "config/config.h"

#define PUSH_CHECK (1024u * 1024)
#define WALK_AHEAD (1024u * 1024) /* unsent bytes with which a snapshot waits for its reader */

/* --- telling --- */

/* The synchronisation is a job, and what it says is no reply: it must not wait for its end. */
static void push_walk(struct client *c, struct span bytes) {
    if (c->io->flags & CLIENT_CLOSE_SOON) return;
    buf_append(&c->io->out.bytes, bytes.data, bytes.len);
    client_flush_later(c);
    if (client_unsent(c) > PUSH_CHECK) client_output_limit(c);
}

/* The same for those of tarn 0.1; bytes itself while there are none. */
static struct span for_older(struct span bytes, bool (*rewrite)(char *, size_t)) {
    static struct buf copy; /* kept while they are there */
    if (LIKELY(replication.older == 0)) {
        if (copy.cap > 0) buf_free(&copy);
        return bytes;
    }
    buf_clear(&copy);
    buf_append(&copy, bytes.data, bytes.len);
    bool whole = rewrite(copy.data, copy.len);
    TARN_ASSERT(whole);
    return span_of(copy.data, copy.len);
}

void replication_feed_walks(struct span records) {
    struct replica *r;
    if (replication.syncing == 0) return;
    struct span older = for_older(records, older_records);
    LIST_FOREACH(r, &replication.replicas, link)
        if (r->state == REPLICA_SYNCING) push_walk(r->client, r->modern ? records : older);
}

/* older: what those of tarn 0.1 are told instead. */
static void stream_feed(struct span bytes, struct span older) {
    struct replica *r;
    repl_backlog_feed(&replication.backlog, bytes);
    replication.history.offset += bytes.len;
    if (replication.online == 0) return;
    LIST_FOREACH(r, &replication.replicas, link) {
        struct span x = r->modern ? bytes : older;
        if (r->state == REPLICA_ONLINE) client_push(r->client, x.data, x.len);
    }
}

void replication_feed(struct span commands) {
    if (replication.backlog.ring == NULL) return;
    stream_feed(commands, for_older(commands, older_commands));
}

/* A command, without making it in one place. */
static void on_stream_batch(void *arg, struct span batch) {
    static struct buf header; /* kept: this happens in every turn */
    const struct span end = SPAN("\r\n");
    if (replication.backlog.ring == NULL) return;
    buf_clear(&header);
    repl_write_effects_header(&header, batch.len);
    stream_feed(span_of(header.data, header.len), span_of(header.data, header.len));
    stream_feed(batch, for_older(batch, older_records));
    stream_feed(end, end);
    replication_feed_walks(batch);
}

/* Books that follow tell nothing: their replicas get what their master said, as it said it. */
void replication_listen(void) {
    bool on = replication.backlog.ring != NULL && !replication.replica;
    effects_want(EFFECTS_REPLICAS, on ? on_stream_batch : NULL, NULL);
}

void replication_create_backlog(void) {
    uint64_t size = config->repl_backlog_size;
    if (replication.backlog.ring == NULL) {
        repl_backlog_create(&replication.backlog, size);
        if (replication.backlog.size < size)
            log_warning("There is no memory for repl-backlog-size: it is %zu bytes",
                        replication.backlog.size);
    }
    replication_listen();
}

void replication_free_backlog(void) {
    repl_backlog_free(&replication.backlog);
    replication_listen();
}

/* --- coming and going --- */

static struct replica *replica_of(struct client *c) {
    if (c->io->replica == NULL) {
        c->io->replica = xcalloc(1, sizeof(struct replica));
        c->io->replica->client = c;
    }
    return c->io->replica;
}

void replica_address(const struct replica *r, char ip[64], uint16_t *port_p) {
    char text[128];
    *port_p = r->port;
    if (r->ip[0] != '\0') {
        strcpy(ip, r->ip);
        return;
    }
    client_peer(r->client, text, sizeof(text));
    char *colon = strrchr(text, ':');
    if (colon != NULL) *colon = '\0';
    size_t len = strlen(text);
    bool bracket = text[0] == '[' && len >= 2;
    snprintf(ip, 64, "%.*s", (int)min_u64(bracket ? len - 2 : len, 63), bracket ? text + 1 : text);
}

static void replica_describe(const struct replica *r, char out[96]) {
    char ip[64];
    uint16_t port;
    replica_address(r, ip, &port);
    snprintf(out, 96, "%s:%u", ip, port);
}

uint64_t replica_lag_s(const struct replica *r) {
    return (turn.mono_ms - r->ack_ms) / 1000;
}

static void count_good(void) {
    struct replica *r;
    size_t good = 0;
    uint64_t max_s = (uint64_t)config->min_replicas_max_lag_s;
    LIST_FOREACH(r, &replication.replicas, link)
        good += r->state == REPLICA_ONLINE && (max_s == 0 || replica_lag_s(r) <= max_s);
    replication.good = good;
}

static void go_online(struct replica *r) {
    char name[96];
    replica_describe(r, name);
    r->state = REPLICA_ONLINE;
    r->ack_ms = turn.mono_ms;
    replication.online++;
    count_good();
    log_notice("Synchronization with replica %s succeeded", name);
}

static void replica_begin(struct replica *r) {
    if (config->repl_disable_tcp_nodelay) net_delay(r->client->io->watch.fd);
    r->client->io->flags |= CLIENT_REPLICA;
    r->moved_ms = r->ack_ms = turn.mono_ms;
    LIST_INSERT_HEAD(&replication.replicas, r, link);
    if (r->modern) return;
    char name[96];
    replica_describe(r, name);
    log_notice("Replica %s is of tarn 0.1: it hears nothing of what modules keep", name);
    replication.older++;
}

/* Records that were just written for a new replica, from there on. */
static void replica_wrote(const struct replica *r, size_t from) {
    struct buf *out = &r->client->io->out.bytes;
    if (r->modern) return;
    bool whole = older_records(out->data + from, out->len - from);
    TARN_ASSERT(whole);
}

/* Its client goes. */
void replica_gone(struct client *c) {
    struct replica *r = c->io->replica;
    if (r == NULL) return;
    if (r->state != REPLICA_TALKING) {
        char name[96];
        replica_describe(r, name);
        LIST_REMOVE(r, link);
        replication.older -= !r->modern;
        if (r->state == REPLICA_ONLINE) replication.online--;
        if (r->state == REPLICA_SYNCING) replication.syncing--;
        replication.alone_since_ms = turn.mono_ms;
        if (!(c->io->flags & CLIENT_CLOSE_AFTER_REPLY))
            log_notice("Connection with replica %s lost.", name);
        count_good();
    }
    c->io->replica = NULL;
    free(r);
}

void replicas_drop_all(const char *why) {
    struct replica *r;
    if (LIST_EMPTY(&replication.replicas)) return;
    log_notice("Replicas are disconnected: %s", why);
    LIST_FOREACH(r, &replication.replicas, link) client_close_soon(r->client);
}

/* --- PSYNC --- */

static bool sync_step(struct client *c, struct job *job, unsigned *budget) {
    struct replica *r = c->io->replica;
    struct buf *out = &c->io->out.bytes;
    effects_turn(); /* what was so far comes before what is now */
    job->runnable = client_unsent(c) < WALK_AHEAD;
    if (!job->runnable) return false;
    size_t from = out->len;
    if (!r->walked) r->walked = books_snapshot_step(&r->walk, out, budget);
    replica_wrote(r, from);
    if (!r->walked) return false;
    /* Between two commands of the master: an offset in the middle of one there is not. */
    if (replication.link != NULL && repl_link_within(replication.link)) return false;
    repl_write_offset(out, replication.history.offset);
    buf_append(out, r->mark, REPL_MARK_LEN);
    replication.syncing--;
    log_notice("A snapshot of %llu objects has been written for a replica in %llu ms",
               (unsigned long long)r->walk.store.objects,
               (unsigned long long)(turn.mono_ms - r->began_ms));
    go_online(r);
    return true;
}

void replica_drained(struct client *c) {
    if (c->job != NULL && c->job->step == sync_step && client_unsent(c) < WALK_AHEAD / 2)
        job_wake(c->job);
}

static void sync_full(struct client *c, struct replica *r) {
    char text[128];
    if (replication.backlog.ring == NULL) {
        repl_history_renew(&replication.history); /* nobody has counted since it had one */
        replication_create_backlog();
    }
    effects_turn();
    stats.sync_full++;
    replication.syncing++;
    replica_begin(r);
    r->state = REPLICA_SYNCING;
    r->began_ms = turn.mono_ms;
    repl_new_id(r->mark);
    snprintf(text, sizeof(text), "+FULLRESYNC %s %llu\r\n$EOF:%s\r\n", replication.history.id,
             (unsigned long long)replication.history.offset, r->mark);
    buf_append_str(&c->io->out.bytes, text);
    repl_write_head(&c->io->out.bytes);
    size_t from = c->io->out.bytes.len;
    books_snapshot_begin(&r->walk, &c->io->out.bytes);
    replica_wrote(r, from);
    struct job job = {.step = sync_step, .runnable = true}; /* its state is the replica's */
    job_run(c, &job, sizeof(job));
}

/* false: the offset is none that a replica of tarn 0.1 can have come to. */
static bool sync_partial(struct client *c, struct replica *r, uint64_t next) {
    struct span piece[2];
    struct buf *out = &c->io->out.bytes;
    size_t n = (size_t)(replication.history.offset + 1 - next), before = out->len;
    buf_printf(out, "+CONTINUE %s\r\n", replication.history.id);
    size_t from = out->len;
    repl_backlog_tail(&replication.backlog, n, piece);
    for (unsigned i = 0; i < 2; i++)
        if (piece[i].len > 0) buf_append(out, piece[i].data, piece[i].len);
    if (!r->modern && !older_commands(out->data + from, out->len - from)) {
        out->len = before;
        return false;
    }
    stats.sync_partial_ok++;
    replica_begin(r);
    client_flush_later(c);
    log_notice("Partial resynchronization: sending %zu bytes of backlog starting from offset %llu.",
               n, (unsigned long long)next);
    go_online(r);
    return true;
}

/* Who may have the stream may not, for that alone, say who leads. */
static bool may_fail_over(const struct client *c) {
    const struct span name = SPAN("failover");
    size_t at;
    return c->unrestricted || acl_check(c->user, table_find(name), &name, 1, &at) == ACL_GRANTED;
}

/* The master that asked may have been told to lead again since, while this server stood still. */
static bool has_hung_up(const struct client *c) {
    struct pollfd p = {.fd = c->io->watch.fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/* PSYNC id next FAILOVER suspect-below: the master asks this replica to lead. Asked once more,
 * because the answer was lost, it leads already. NULL: it leads; else why not. */
static const char *take_over(const struct client *c, int64_t next) {
    const struct repl_history *h = &replication.history;
    uint64_t suspect_below;
    struct span id = c->argv[1];
    log_notice("Failover request received for replid %.*s.", (int)min_u64(id.len, REPL_ID_LEN),
               id.data);
    if (!may_fail_over(c))
        return "-NOPERM PSYNC FAILOVER needs the permission to run the 'failover' command: ACL "
               "SETUSER <masteruser> +failover";
    if (!replication.replica && span_case_eq(id, h->id2) && h->second >= 0) return NULL;
    if (!replication.replica) return "PSYNC FAILOVER can't be sent to a master.";
    if (has_hung_up(c)) return "PSYNC FAILOVER was taken back.";
    if (replication.link != NULL)
        repl_link_drain(replication.link); /* what the master sent before it stopped */
    if (!replication.synced || replication.partial || !span_case_eq(id, h->id))
        return "PSYNC FAILOVER replid must match my replid.";
    log_notice("A failover was requested by client id=%llu", (unsigned long long)c->id);
    bool all =
        next == (int64_t)h->offset + 1 && c->argc > 4 && span_to_u64(c->argv[4], &suspect_below);
    if (all)
        replication_take_over(suspect_below);
    else
        replication_lead();
    return NULL;
}

/* Nothing may refuse behind take_over: a master that hears no leads again. */
static const char *psync_refusal(struct client *c, int64_t next) {
    if (failover_under_way() && replication.replica)
        return "-NOMASTERLINK Can't SYNC while failing over";
    if (client_unsent(c) > 0) return "SYNC and PSYNC are invalid with pending output";
    if (!replica_of(c)->capable)
        return "this is tarn: its stream is for replicas that know it (REPLCONF capa " REPL_CAPA
               ")";
    if (c->argc > 3 && arg_is(c, 3, "failover")) return take_over(c, next);
    if (replication.steps_down || replication.partial ||
        (replication.replica && (!replication.synced || replication.link == NULL ||
                                 repl_link_state(replication.link) != REPL_LINK_STREAMING)))
        return "-NOMASTERLINK Can't SYNC while not connected with my master";
    return NULL;
}

void cmd_psync(struct client *c) {
    char id[REPL_ID_LEN + 1];
    int64_t next;
    if (c->io->flags & CLIENT_REPLICA) return;
    if (!span_to_i64(c->argv[2], &next)) {
        reply_error(c, "value is not an integer or out of range");
        return;
    }
    const char *why = psync_refusal(c, next);
    if (why != NULL) {
        reply_error(c, why[0] == '-' ? "-%s" : "%s", why + (why[0] == '-'));
        return;
    }
    struct replica *r = c->io->replica;
    bool asks =
        c->argv[1].len == REPL_ID_LEN && repl_id_valid(c->argv[1].data, REPL_ID_LEN) && next > 0;
    if (asks) {
        memcpy(id, c->argv[1].data, REPL_ID_LEN);
        id[REPL_ID_LEN] = '\0';
        effects_turn();
    }
    if (asks &&
        repl_history_continues(&replication.history, &replication.backlog, id, (uint64_t)next) &&
        sync_partial(c, r, (uint64_t)next))
        return;
    if (!span_eq(c->argv[1], SPAN("?"))) {
        stats.sync_partial_err++;
        log_notice(
            "Partial resynchronization not possible: its offset %lld of %.*s is not in the backlog",
            (long long)next, (int)min_u64(c->argv[1].len, 48), c->argv[1].data);
    }
    sync_full(c, r);
}

/* --- REPLCONF --- */

static void on_ack(struct client *c, struct span value) {
    uint64_t offset;
    struct replica *r = c->io->replica;
    if (!(c->io->flags & CLIENT_REPLICA) || r->state != REPLICA_ONLINE ||
        !span_to_u64(value, &offset))
        return;
    r->ack_ms = turn.mono_ms;
    if (offset <= r->ack_offset || offset > replication.history.offset) return;
    r->ack_offset = offset;
    waits_wake();
    failover_acked(r);
}

/* A word that goes into a line of INFO. false: it is too long, or none. */
static bool word_take(char *to, size_t size, struct span word) {
    if (word.data == NULL || word.len >= size) return false;
    for (size_t i = 0; i < word.len; i++)
        if (word.data[i] <= ' ' || word.data[i] > '~' || word.data[i] == ',') return false;
    memcpy(to, word.data, word.len);
    to[word.len] = '\0';
    return true;
}

/* Versions that do not know a word pass over it, which no other word of REPLCONF is. */
static void replica_can(struct replica *r, struct span word) {
    const struct span version = SPAN(REPL_CAPA_VERSION);
    if (span_case_eq(word, REPL_CAPA)) r->capable = true;
    if (span_case_eq(word, REPL_CAPA_MODERN)) r->modern = true;
    if (span_starts(word, version))
        (void)word_take(r->version, sizeof(r->version),
                        span_of(word.data + version.len, word.len - version.len));
}

void cmd_replconf(struct client *c) {
    if (c->argc % 2 == 0) {
        reply_syntax(c);
        return;
    }
    for (size_t i = 1; i + 1 < c->argc; i += 2) {
        uint64_t port;
        if (arg_is(c, i, "ack")) {
            on_ack(c, c->argv[i + 1]);
            return; /* is not answered */
        }
        if (arg_is(c, i, "listening-port")) {
            if (!span_to_u64(c->argv[i + 1], &port) || port > UINT16_MAX) {
                reply_error(c, "value is not an integer or out of range");
                return;
            }
            replica_of(c)->port = (uint16_t)port;
        } else if (arg_is(c, i, "ip-address")) {
            struct replica *r = replica_of(c);
            if (!word_take(r->ip, sizeof(r->ip), c->argv[i + 1])) {
                reply_error(
                    c,
                    "REPLCONF ip-address provided by replica instance is too long or no address");
                return;
            }
        } else if (arg_is(c, i, "capa")) {
            replica_can(replica_of(c), c->argv[i + 1]);
        } else if (arg_is(c, i, "getack")) {
            return; /* of the stream, to replicas: there is nothing to say to a client */
        } else {
            reply_error(c, "Unrecognized REPLCONF option: %.*s", (int)min_u64(c->argv[i].len, 64),
                        c->argv[i].data != NULL ? c->argv[i].data : "");
            return;
        }
    }
    reply_ok(c);
}

/* --- time --- */

static void replica_check_timeout(struct replica *r) {
    struct client *c = r->client;
    uint64_t limit_ms = (uint64_t)config->repl_timeout_s * 1000;
    if (c->io->bytes_out != r->moved_bytes || client_unsent(c) == 0) {
        r->moved_bytes = c->io->bytes_out;
        r->moved_ms = turn.mono_ms;
    }
    uint64_t since_ms = r->state == REPLICA_ONLINE ? r->ack_ms : r->moved_ms;
    if (turn.mono_ms - since_ms <= limit_ms || c->io->flags & CLIENT_CLOSE_SOON) return;
    char name[96];
    replica_describe(r, name);
    log_warning("Disconnecting timedout replica %s (repl-timeout)", name);
    client_close_soon(c);
}

void replicas_cron(void) {
    struct replica *r;
    LIST_FOREACH(r, &replication.replicas, link) replica_check_timeout(r);
    count_good();
    if (replication.backlog.ring == NULL || replication.replica) return;
    if (replication.online > 0 && turn.mono_ms >= replication.ping_ms) {
        effects_turn();
        replication_feed(REPL_PING);
        replication.ping_ms = turn.mono_ms + (uint64_t)config->repl_ping_period_s * 1000;
    }
    uint64_t ttl_ms = (uint64_t)config->repl_backlog_ttl_s * 1000;
    if (!LIST_EMPTY(&replication.replicas) || ttl_ms == 0 ||
        turn.mono_ms - replication.alone_since_ms < ttl_ms)
        return;
    log_notice("Replication backlog freed after %llu seconds without connected replicas.",
               (unsigned long long)ttl_ms / 1000);
    replication_free_backlog();
    repl_history_renew(&replication.history); /* offsets are not counted any more */
}
