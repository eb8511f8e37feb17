#include "ha/peers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/queue.h"
#include "config/config.h"
#include "config/tls.h"
#include "front/core.h"
#include "front/shard.h"
#include "ha/replication.h"
#include "repl/conn.h"
#include "resp/resp.h"

#define TIMEOUT_MS 5000u /* of a server that says nothing, unless repl-timeout is less */
#define PAUSE_MS   250u  /* after a round without an answer, twice as long each time */
#define LINE_MAX   1024u

/* Another shard, or, while a map is awaited, an address of cluster-shard. */
struct shard_peer {
    LIST_ENTRY(shard_peer) link;
    char shard[SLOT_NAME_MAX + 1]; /* "": the address */
    struct slot_server at;         /* who is asked, or was last */
    struct repl_conn conn;
    unsigned next;      /* which of its servers */
    unsigned awaits;    /* answers of this connection */
    unsigned failures;  /* rounds, since one answered */
    uint64_t due_ms;    /* while no connection is open */
    uint64_t begun_ms;  /* ... when it was opened */
    bool wanted, tried; /* tried: all of its servers once */
    /* who was asked lately */
    unsigned heard;
    struct {
        struct slot_server server;
        bool answers;
        uint64_t ms;
    } said[SLOT_SERVERS_MAX];
};
static LIST_HEAD(, shard_peer) peers;

static bool claims;         /* this server was promoted, and the map does not say so yet */
static uint64_t claimed_ms; /* when it last was, and the map says so; 0: not in this life */
static char noted[64];      /* the last address as a replica; "": none */
static bool answered;       /* one has told its map, since this server began to await one */
static uint64_t awaits_ms;  /* since when; 0: the log says that none has told it */

/* --- who leads this shard --- */

/* By which other servers and clients reach this one; local: the address of a connection to one. */
static struct slot_server own_server(const struct slot_shard *row, const char *local) {
    const struct config *c = config;
    uint16_t ports[] = {core_endpoints.port, core_endpoints.tls_port};
    struct slot_server me = {.port = ports[0]};
    const char *host = c->replica_announce_ip[0] != '\0' ? c->replica_announce_ip : local;
    span_to_text(span_str(host), me.host, sizeof(me.host));
    if (c->replica_announce_port > 0) {
        me.port = (uint16_t)c->replica_announce_port;
        return me;
    }
    if (c->tls_replication && ports[1] != 0) me.port = ports[1];
    for (unsigned i = 0; i < row->servers; i++)
        for (unsigned k = 0; k < ARRAY_LEN(ports); k++)
            if (strcmp(row->server[i].host, me.host) == 0 && row->server[i].port == ports[k])
                return row->server[i];
    return me;
}

/* Long names of servers may make it too long for those who read it. false: it stays as it was. */
static bool map_corrected(const struct slot_map *m) {
    struct buf text = {NULL, 0, 0};
    slot_map_write(m, &text);
    bool fits = text.len <= SLOT_MAP_TEXT_MAX;
    buf_free(&text);
    if (fits)
        shard_set(m, shard_self);
    else
        log_warning("With who leads each shard the map is longer than %u bytes", SLOT_MAP_TEXT_MAX);
    return fits;
}

/* It leads, above that master epoch. */
static void leadership_tell(const struct slot_server *leader, uint64_t master_epoch) {
    struct slot_map *m = xmemdup(shard_map, sizeof(*m));
    struct slot_shard *row = &m->shard[shard_self];
    struct shard_peer *p;
    slot_shard_lead(row, leader, master_epoch);
    log_notice("This server, %s:%u, leads shard %s, at master epoch %" PRIu64
               ": the other masters will be told",
               leader->host, leader->port, row->name, row->master_epoch);
    (void)map_corrected(m);
    slot_map_destroy(&m);
    LIST_FOREACH(p, &peers, link)
        if (!repl_conn_open(&p->conn)) p->due_ms = 0;
}

static void leadership_claim(const char *local) {
    struct slot_server me = own_server(&shard_map->shard[shard_self], local), read;
    struct buf text = {NULL, 0, 0};
    claims = false;
    slot_server_write(&me, &text);
    if (slot_server_read(span_of(text.data, text.len), &read)) {
        claimed_ms = turn.mono_ms;
        leadership_tell(&me, server.master_epoch);
    } else {
        log_warning("%.*s is no address that other masters could be told: set replica-announce-ip, "
                    "and run tarn-cluster fix",
                    (int)text.len, text.data);
    }
    buf_free(&text);
}

/* Another server leads this shard, somebody says. */
static bool is_another(const struct slot_shard *row) {
    const struct slot_shard *mine = &shard_map->shard[shard_self];
    return !replication.replica && !claims && row->servers > 0 &&
           (mine->servers == 0 || !slot_server_same(&row->server[0], &mine->server[0]));
}

static bool is_succeeded(const struct slot_shard *row) {
    return is_another(row) && row->master_epoch > shard_map->shard[shard_self].master_epoch;
}

/* Was this server promoted after that one, whose master epoch is not below its own? Two that never
 * heard of each other draw their epochs by their clocks. What was known when it was promoted is
 * older than that; equal ones are of no order, and one has to go on. */
static bool is_outbid(const struct slot_shard *row) {
    uint64_t mine = shard_map->shard[shard_self].master_epoch;
    return is_another(row) && claimed_ms != 0 && row->master_epoch < SLOT_MASTER_EPOCH_MAX &&
           (row->master_epoch == mine ||
            (row->master_epoch > mine && turn.mono_ms - claimed_ms < TIMEOUT_MS));
}

static void succession_note(const struct slot_shard *row) {
    const struct slot_server *leader = &row->server[0], *known = shard_successor();
    if (known == NULL || !slot_server_same(known, leader))
        log_warning("%s:%u leads shard %s since master epoch %" PRIu64
                    ": keys are referred there until this server follows it",
                    leader->host, leader->port, shard_map->shard[shard_self].name,
                    row->master_epoch);
    shard_succeed(leader);
}

bool peers_learn(unsigned shard, const struct slot_shard *row) {
    if (shard == shard_self && is_outbid(row)) {
        leadership_tell(&shard_map->shard[shard_self].server[0], row->master_epoch + 1);
        return true;
    }
    if (shard == shard_self && is_succeeded(row)) {
        succession_note(row);
        return false;
    }
    if (row->master_epoch <= shard_map->shard[shard].master_epoch) return false;
    struct slot_map *m = xmemdup(shard_map, sizeof(*m));
    (void)slot_map_learn(m, shard, row);
    if (row->servers > 0)
        log_notice("Shard %s is led by %s:%u, since master epoch %" PRIu64, m->shard[shard].name,
                   row->server[0].host, row->server[0].port, row->master_epoch);
    bool fits = map_corrected(m);
    slot_map_destroy(&m);
    return fits;
}

/* --- what they answer --- */

/* The name of this server's shard: the map's, else cluster-shard's. */
static const char *own_name(void) {
    if (shard_map != NULL) return shard_map->shard[shard_self].name;
    return config->cluster_shard.n > 0 ? config->cluster_shard.word[0] : "";
}

/* Of a server that awaits one: a later one than it has. */
static void map_adopt(struct slot_map *m) {
    unsigned self = slot_map_shard(m, span_str(own_name()));
    if (shard_map != NULL && m->epoch <= shard_map->epoch) return;
    if (self == SLOT_NOBODY) {
        log_warning("The map of slots of the other masters, epoch %" PRIu64
                    ", has no shard %s (cluster-shard)",
                    m->epoch, own_name());
        return;
    }
    log_notice("Map of slots, epoch %" PRIu64 ", of the other masters: this is shard %s", m->epoch,
               own_name());
    if (shard_map != NULL && is_succeeded(&m->shard[self])) { /* its own line stays what it was */
        succession_note(&m->shard[self]);
        m->shard[self] = shard_map->shard[shard_self];
    }
    if (shard_map != NULL) (void)slot_map_merge(m, shard_map);
    shard_set(m, self);
}

static void map_answered(struct span text) {
    char error[SLOT_MAP_ERROR_SIZE];
    struct slot_map *m = slot_map_read(text, error);
    if (m == NULL) {
        log_warning("The map of another master makes no sense: %s", error);
        return;
    }
    answered = true;
    if (shard_awaits()) map_adopt(m);
    for (unsigned i = 0; shard_map != NULL && i < m->shards; i++) {
        unsigned k = slot_map_shard(shard_map, span_str(m->shard[i].name));
        if (k != SLOT_NOBODY) (void)peers_learn(k, &m->shard[i]);
    }
    slot_map_destroy(&m);
}

/* --- one of them --- */

static void peer_heard(struct shard_peer *p, bool answers) {
    unsigned i = 0;
    while (i < p->heard && !slot_server_same(&p->said[i].server, &p->at)) i++;
    if (i == p->heard && p->heard < SLOT_SERVERS_MAX)
        p->heard++;
    else if (i == p->heard) /* the first goes */
        memmove(&p->said[0], &p->said[1], --i * sizeof(p->said[0]));
    p->said[i].server = p->at;
    p->said[i].answers = answers;
    p->said[i].ms = turn.mono_ms;
}

/* NULL: it is an address, or its shard is not in the map any more. */
static const struct slot_shard *peer_row(const struct shard_peer *p) {
    if (p->shard[0] == '\0' || shard_map == NULL) return NULL; /* taken away: the peer goes, too */
    unsigned k = slot_map_shard(shard_map, span_str(p->shard));
    return k != SLOT_NOBODY ? &shard_map->shard[k] : NULL;
}

/* Not this one (why, NULL: it is a replica): the next of its servers, or after a pause the
 * first. */
static void peer_turn(struct shard_peer *p, bool answers, const char *why) {
    const struct slot_shard *row = peer_row(p);
    bool more = !answers && p->conn.next_address < p->conn.addresses.n;
    if (why != NULL && p->failures == 0 && peers_state(&p->at) != PEER_SILENT)
        log_notice("Another master, %s:%u, was asked in vain: %s", p->at.host, p->at.port, why);
    repl_conn_end(&p->conn);
    p->due_ms = turn.mono_ms;
    if (more) return;
    peer_heard(p, answers);
    p->conn.addresses.n = 0;
    if (++p->next < (row != NULL ? row->servers : 1)) return;
    p->next = 0;
    p->tried = true;
    p->due_ms += min_u64((uint64_t)PAUSE_MS << min_u64(p->failures, 16),
                         (uint64_t)config->repl_ping_period_s * 1000);
    p->failures++;
}

static void peer_done(struct shard_peer *p) {
    repl_conn_end(&p->conn);
    p->conn.addresses.n = 0;
    peer_heard(p, true);
    p->failures = p->next = 0;
    p->tried = true;
    p->due_ms = turn.mono_ms + (uint64_t)config->repl_ping_period_s * 1000;
}

static void say(struct buf *out, unsigned n, const struct span *words) {
    resp_write_array(out, n);
    for (unsigned i = 0; i < n; i++) resp_write_bulk(out, words[i].data, words[i].len);
}

#define SAY(out, ...)                                                                              \
    do {                                                                                           \
        const struct span words_[] = {__VA_ARGS__};                                                \
        say((out), ARRAY_LEN(words_), words_);                                                     \
    } while (0)

static void announce_say(struct buf *out) {
    const struct slot_shard *row = &shard_map->shard[shard_self];
    struct buf servers = {NULL, 0, 0};
    char epoch[24];
    slot_servers_write(row, &servers);
    SAY(out, SPAN("CLUSTER"), SPAN("ANNOUNCE"), span_str(row->name),
        span_of(epoch, u64_to_dec(row->master_epoch, epoch)), span_of(servers.data, servers.len));
    buf_free(&servers);
}

static void peer_connected(void *arg) {
    struct shard_peer *p = arg;
    struct buf *out = &p->conn.out;
    struct span user = span_str(config->masteruser),
                password = span_of(config->masterauth.data, config->masterauth.len);
    char local[64];
    if (repl_conn_loops(&p->conn) &&
        (p->at.port == core_endpoints.port || p->at.port == core_endpoints.tls_port)) {
        peer_turn(p, false, NULL); /* this server itself, in cluster-shard */
        return;
    }
    p->awaits = 1 + (password.len > 0);
    if (claims && repl_conn_local(&p->conn, local, sizeof(local))) leadership_claim(local);
    if (password.len > 0 && user.len > 0)
        SAY(out, SPAN("AUTH"), user, password);
    else if (password.len > 0)
        SAY(out, SPAN("AUTH"), password);
    if (replication.replica)
        SAY(out, SPAN("PING"));
    else if (shard_map == NULL)
        SAY(out, SPAN("CLUSTER"), SPAN("MAP"));
    else
        announce_say(out);
    repl_conn_flush(&p->conn);
}

static void peer_answer(struct shard_peer *p, struct span line, struct span body) {
    char why[256];
    bool bad = line.data[0] == '-' || span_eq(line, SPAN("$-1"));
    bool unwelcome = span_starts(line, SPAN("-NOPERM")) || span_starts(line, SPAN("-NOAUTH")) ||
                     span_starts(line, SPAN("-WRONGPASS"));
    p->awaits--;
    if (span_starts(line, SPAN("-READONLY"))) {
        peer_turn(p, true, NULL);
    } else if (bad) {
        if (line.data[0] != '-') line = SPAN("it has no map of slots");
        snprintf(why, sizeof(why), "%.*s%s", (int)min_u64(line.len, 150), line.data,
                 unwelcome ? " (masteruser and masterauth here, its rights there: ACL.md)" : "");
        peer_turn(p, true, why);
    } else if (p->awaits == 0) {
        if (line.data[0] == '$') map_answered(body);
        peer_done(p);
    }
}

static void peer_came(void *arg) {
    struct shard_peer *p = arg;
    struct span line, body;
    while (repl_conn_open(&p->conn) && repl_conn_answer(&p->conn, SLOT_MAP_TEXT_MAX, &line, &body))
        peer_answer(p, line, body);
    if (!repl_conn_open(&p->conn)) return;
    const char *torn = repl_conn_torn(&p->conn);
    if (p->conn.ended)
        peer_turn(p, false, torn != NULL ? torn : "it has closed the connection");
    else if (p->conn.in.len - p->conn.in_pos > SLOT_MAP_TEXT_MAX + LINE_MAX)
        peer_turn(p, true, "it does not speak as a master does");
    else
        repl_conn_update(&p->conn);
}

static void peer_failed(void *arg, const char *why) {
    peer_turn(arg, false, why);
}

static const struct repl_conn_ops conn_ops = {
    .connected = peer_connected, .came = peer_came, .failed = peer_failed};

static void peer_begin(struct shard_peer *p) {
    const struct slot_shard *row = peer_row(p);
    if (row != NULL) {
        p->tried |= row->servers == 0; /* nobody can be asked */
        if (row->servers == 0) return;
        if (p->next >= row->servers) p->next = 0;
        if (!slot_server_same(&p->at, &row->server[p->next])) p->conn.addresses.n = 0;
        p->at = row->server[p->next];
    }
    p->begun_ms = turn.mono_ms;
    repl_conn_begin(&p->conn, p->at.host, p->at.port,
                    config->tls_replication ? config_tls_client() : NULL, TIMEOUT_MS, turn.mono_ms);
}

static void peer_cron(struct shard_peer *p) {
    uint64_t timeout = min_u64(TIMEOUT_MS, (uint64_t)config->repl_timeout_s * 1000);
    if (!repl_conn_open(&p->conn)) {
        if (turn.mono_ms >= p->due_ms) peer_begin(p);
    } else if (turn.mono_ms - p->begun_ms > timeout) { /* also of one that speaks endlessly */
        peer_turn(p, false, "its answer does not come");
    }
}

/* --- all of them --- */

static void peer_want(const char *shard, const struct slot_server *at) {
    struct shard_peer *p;
    LIST_FOREACH(p, &peers, link) {
        bool same = at != NULL ? p->shard[0] == '\0' && slot_server_same(&p->at, at)
                               : strcmp(p->shard, shard) == 0;
        if (!same) continue;
        p->wanted = true;
        return;
    }
    p = xcalloc(1, sizeof(*p));
    span_to_text(span_str(shard), p->shard, sizeof(p->shard));
    if (at != NULL) p->at = *at;
    p->wanted = true;
    repl_conn_init(&p->conn, core_loop(), &conn_ops, p);
    LIST_INSERT_HEAD(&peers, p, link);
}

static void peer_drop(struct shard_peer *p) {
    LIST_REMOVE(p, link);
    repl_conn_end(&p->conn);
    free(p);
}

static void peers_want(void) {
    const struct config_list *option = &config->cluster_shard;
    struct slot_server at;
    for (unsigned k = 0; shard_map != NULL && k < shard_map->shards; k++)
        if (k != shard_self) peer_want(shard_map->shard[k].name, NULL);
    for (size_t i = 1; shard_awaits() && i < option->n; i++)
        if (slot_server_read(span_str(option->word[i]), &at)) peer_want("", &at);
}

/* Each was asked, and one at least has told its map: what it says is all that can be known. */
static void awaiting_end(void) {
    const struct shard_peer *p;
    bool all = true;
    LIST_FOREACH(p, &peers, link) all = all && p->tried;
    if (!shard_awaits() || !all) return;
    if (!answered && awaits_ms != 0 && turn.mono_ms - awaits_ms > TIMEOUT_MS) {
        awaits_ms = 0;
        log_warning("No other master has told who has which keys: CLUSTERDOWN until one does, or "
                    "until this server is given a map. If all have lost it: tarn-cluster create; "
                    "if the others do not come back: CLUSTER SETMAP");
    }
    if (shard_map == NULL) return;
    if (!answered && !LIST_EMPTY(&peers)) return;
    log_notice("The other masters were asked who has which keys: shard %s serves", own_name());
    shard_await(false);
}

void peers_cron(void) {
    struct shard_peer *p, *next;
    if (LIKELY(!shard_asks)) {
        if (UNLIKELY(!LIST_EMPTY(&peers))) peers_deinit();
        return;
    }
    if (claims && (replication.replica || shard_map == NULL)) claims = false;
    bool alone = shard_map != NULL && shard_map->shards == 1 && noted[0] != '\0';
    if (claims && (alone || config->replica_announce_ip[0] != '\0')) leadership_claim(noted);
    LIST_FOREACH(p, &peers, link) p->wanted = false;
    peers_want();
    LIST_FOREACH_SAFE(p, &peers, link, next) {
        if (p->wanted)
            peer_cron(p);
        else
            peer_drop(p);
    }
    awaiting_end();
}

enum peer_state peers_state(const struct slot_server *server) {
    const struct shard_peer *p;
    /* it is asked no more, as it does not lead any more */
    uint64_t old = TIMEOUT_MS + 3000 * (uint64_t)config->repl_ping_period_s;
    LIST_FOREACH(p, &peers, link)
        for (unsigned i = 0; i < p->heard; i++)
            if (slot_server_same(&p->said[i].server, server) && turn.mono_ms - p->said[i].ms < old)
                return p->said[i].answers ? PEER_ANSWERS : PEER_SILENT;
    return PEER_UNKNOWN;
}

/* --- roles --- */

void peers_begin(void) {
    if (replication.replica || config->cluster_shard.n == 0) return;
    answered = false;
    awaits_ms = turn.mono_ms;
    shard_await(true);
    log_notice("Other masters are asked who has which keys (cluster-shard): CLUSTERDOWN until one "
               "has told it");
}

void peers_promoted(void) {
    claims = shard_map != NULL;
    claimed_ms = 0;
    shard_succeed(NULL);
    if (!claims) peers_begin();
}

void peers_demoted(void) {
    claims = false;
    claimed_ms = 0;
    shard_succeed(NULL);
    shard_await(false);
}

void peers_note_address(const char *host) {
    span_to_text(span_str(host), noted, sizeof(noted));
}

void peers_told(void) {
    shard_succeed(NULL);
    shard_await(false);
}

void peers_deinit(void) {
    struct shard_peer *p, *next;
    LIST_FOREACH_SAFE(p, &peers, link, next) peer_drop(p);
}
