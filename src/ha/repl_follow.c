/* This server as a replica, and its way there and back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/progress.h"
#include "config/tls.h"
#include "front/core.h"
#include "front/effects.h"
#include "ha/failover.h"
#include "inband/local_copy.h"
#include "ha/peers.h"
#include "ha/persistence.h"
#include "front/module_durable.h"
#include "front/process.h"
#include "inband/remote.h"
#include "inband/replica_check.h"
#include "ha/replication.h"
#include "config/config.h"

struct replication replication;
static char next_id[REPL_ID_LEN + 1]; /* of the snapshot under way */
static struct progress syncing;

/* --- forgetting --- */

/* Bytes of objects are on their way to or from it. */
static bool has_bytes(const struct client *c) {
    const struct client_io *io = c->io;
    return c->big != NULL || io->big != NULL || io->out.inserts > io->out.first_insert;
}

static bool client_depends(const struct client *c) {
    /* It may have leases, open puts, segments. */
    return c->job != NULL || has_bytes(c) || c->host_name[0] != '\0';
}

void replication_let_go(const struct client *except) {
    CLIENTS_EACH(c)
        if (c != except && client_depends(c)) client_close_soon(c);
}

void replication_drop_work(void) {
    replica_check_deinit();
    local_copy_deinit();
    remote_deinit();
    CLIENTS_EACH(c) {
        memset(&c->chain, 0, sizeof(c->chain));
        c->machines_version = 0;
    }
}

/* Nobody on the stack may hold anything of the books; clients that do are closed. */
static void let_go_all(const struct client *except) {
    if (except != NULL && has_bytes(except)) except = NULL;
    replication_let_go(except);
    client_free_closed_now();
}

/* The master's come, whole. Until then the files are those of the books that were. */
static void books_let_go(void) {
    replicas_drop_all("everything comes anew from the master");
    let_go_all(NULL);
    persistence_pause();
    replication.unwritten = true;
    replication_drop_work();
    books_forget();
}

/* This server decides nothing any more. What is in its books stays until there is something better:
 * the master may be slow, or never have been there. The files go on, for nothing changes. */
static void step_down(void) {
    replication_drop_work();
    books_step_down();
    log_notice("These books follow from now on; %llu objects stay until the master's are here",
               (unsigned long long)store_count(books));
}

/* The books are whole: files are of them from now on. */
static void write_again(void) {
    if (replication.unwritten) persistence_resume();
    replication.unwritten = false;
}

/* --- news from the link --- */

static bool on_wanted(void *arg, char id[REPL_ID_LEN + 1], uint64_t *next_p) {
    if (!replication.synced) return false;
    memcpy(id, replication.history.id, REPL_ID_LEN + 1);
    *next_p = replication.history.offset + 1;
    return true;
}

static void address_note(void) {
    char local[64];
    if (repl_link_local(replication.link, local, sizeof(local))) peers_note_address(local);
}

static void on_full(void *arg, const char *id, uint64_t offset) {
    address_note();
    replication.synced = false;
    replication.partial = true;
    memcpy(next_id, id, sizeof(next_id));
    progress_log(&syncing, "MASTER <-> REPLICA sync");
    books_let_go();
}

static tarn_status on_records(void *arg, struct span records, bool *end_p, const char **why_p) {
    tarn_status s = books_apply(records, end_p, why_p);
    if (s != TARN_OK && config->propagation_error != CONFIG_PROPAGATION_IGNORE) {
        log_warning("What the master said cannot be applied: %s. propagation-error-behavior asks "
                    "to end here",
                    *why_p);
        abort();
    }
    if (s != TARN_OK) return s;
    effects_pass(records);
    replication_feed_walks(records);
    if (replication.partial)
        progress_say(&syncing, 0, 0, "%llu objects so far", (unsigned long long)store_count(books));
    return TARN_OK;
}

static void on_synced(void *arg, uint64_t offset) {
    repl_history_adopt(&replication.history, next_id, offset);
    repl_backlog_clear(&replication.backlog);
    replication_create_backlog();
    replication.synced = true;
    replication.partial = false;
    write_again();
    module_durable_whole();
    log_notice("MASTER <-> REPLICA sync: Finished with success: %llu objects, offset %llu",
               (unsigned long long)store_count(books), (unsigned long long)offset);
}

static void on_resumed(void *arg, const char *id) {
    address_note();
    if (id == NULL || strcmp(id, replication.history.id) == 0) return;
    log_notice("Master replication ID changed to %s", id);
    repl_history_shift(&replication.history, id);
    replicas_drop_all("the stream has a new id");
}

static uint64_t on_offset(void *arg) {
    return replication.history.offset;
}

static void on_passed(void *arg, struct span bytes) {
    replication_feed(bytes);
}

static void on_damaged(void *arg) {
    replication.synced = false;
}

static void on_asked_to_lead(void *arg, bool agreed, const char *why) {
    failover_answered(agreed, why);
}

static const struct repl_link_ops link_ops = {.wanted = on_wanted,
                                              .full = on_full,
                                              .records = on_records,
                                              .synced = on_synced,
                                              .resumed = on_resumed,
                                              .passed = on_passed,
                                              .offset = on_offset,
                                              .damaged = on_damaged,
                                              .asked_to_lead = on_asked_to_lead};

static struct repl_link_config link_config(void) {
    const struct config *c = config;
    /* The port that this one's replicas and Sentinels should use. */
    uint16_t port = c->tls_replication && core_endpoints.tls_port != 0 ? core_endpoints.tls_port
                                                                       : core_endpoints.port;
    return (struct repl_link_config){
        .host = replication.master_host,
        .port = replication.master_port,
        .user = c->masteruser,
        .password = span_of(c->masterauth.data, c->masterauth.len),
        .announce_ip = c->replica_announce_ip,
        .announce_port = c->replica_announce_port > 0 ? (uint16_t)c->replica_announce_port : port,
        .timeout_ms = (uint64_t)c->repl_timeout_s * 1000,
        .tls = c->tls_replication ? config_tls_client() : NULL};
}

static void open_link(void) {
    struct repl_link_config to = link_config();
    to.lead = failover_under_way();
    to.suspect_below = store_suspect_below(books);
    replication.link = repl_link_open(core_loop(), &to, &link_ops, NULL, turn.mono_ms);
    repl_link_cron(replication.link, turn.mono_ms);
}

/* --- roles --- */

/* For CONFIG GET and REWRITE. host NULL: none. */
static void set_option(const char *host, uint16_t port) {
    struct config_list *l = &config->replicaof;
    char text[8];
    while (l->n > 0) free(l->word[--l->n]);
    if (host == NULL) return;
    snprintf(text, sizeof(text), "%u", port);
    l->word[l->n++] = xstrdup(host);
    l->word[l->n++] = xstrdup(text);
}

static void set_master(const char *host, uint16_t port) {
    char *copy = xstrdup(host); /* it may be the old one */
    free(replication.master_host);
    replication.master_host = copy;
    replication.master_port = port;
    set_option(copy, port);
}

void replication_follow(const char *host, uint16_t port, uint64_t asked_by) {
    bool was = replication.replica;
    repl_link_close(&replication.link);
    set_master(host, port);
    log_notice("REPLICAOF %s:%u enabled", replication.master_host, port);
    if (was && !replication.steps_down) {
        open_link();
        return;
    }
    replication.replica = true;
    replication.steps_down = true;
    replication.asked_by = asked_by;
    replication.synced = false;
    replication.getack = false;
    replicas_drop_all("this server is becoming a replica");
    replication_free_backlog();
    log_set_role('S');
    process_role(replication.replica);
    peers_demoted();
}

void replication_hand_over(const char *host, uint16_t port) {
    set_master(host, port);
    replicas_drop_all("this server hands over to a replica");
    let_go_all(NULL);
    step_down();
    replication.replica = replication.synced = true;
    replication.getack = false;
    replication_listen();
    log_set_role('S');
    process_role(replication.replica);
    peers_demoted();
    open_link();
}

static void role_lead(bool handed_over, uint64_t suspect_below) {
    if (!replication.replica) return;
    repl_link_close(&replication.link);
    set_master(NULL, 0);
    if (replication.partial) {
        log_warning("The synchronisation was not over: what has arrived is dropped");
        CLIENTS_EACH(c)
            if (client_depends(c)) client_close_soon(c);
        books_forget();
        replication.partial = false;
    }
    if (replication.synced)
        repl_history_shift(&replication.history, NULL);
    else
        repl_history_renew(&replication.history);
    replicas_drop_all("the stream has a new id");
    replication.replica = replication.synced = false;
    replication.alone_since_ms = turn.mono_ms;
    replication_listen();
    log_set_role('M');
    process_role(replication.replica);
    if (handed_over)
        books_take_over(suspect_below);
    else if (!replication.steps_down)
        books_lead(STORE_SEGMENT_ANY, true);
    replication.steps_down = false;
    write_again();
    peers_promoted();
    log_notice("MASTER MODE enabled, replication id %s, second id %s up to %lld",
               replication.history.id, replication.history.id2,
               (long long)replication.history.second);
}

void replication_lead(void) {
    role_lead(false, 0);
}

void replication_take_over(uint64_t suspect_below) {
    role_lead(true, suspect_below);
}

/* --- the whole --- */

void replication_init(void) {
    const struct config_list *l = &config->replicaof;
    uint64_t port = 0;
    repl_history_renew(&replication.history);
    replication.alone_since_ms = turn.mono_ms;
    if (l->n != 2 || !span_to_u64(span_str(l->word[1]), &port)) return;
    char *host = xstrdup(l->word[0]);
    replication.replica = true;
    process_role(true);
    set_master(host, (uint16_t)port);
    free(host);
    log_set_role('S');
}

void replication_start(void) {
    if (replication.replica && replication.link == NULL) open_link();
    peers_begin();
}

void replication_close_link(void) {
    repl_link_close(&replication.link);
    peers_deinit();
}

void replication_deinit(void) {
    repl_backlog_free(&replication.backlog);
    free(replication.master_host);
    replication.master_host = NULL;
}

void replication_cron(void) {
    if (replication.link != NULL) repl_link_cron(replication.link, turn.mono_ms);
    replicas_cron();
    peers_cron();
}

bool replication_turn(void) {
    failover_turn();
    if (replication.getack && !replication.replica) {
        replication.getack = false;
        replication_feed(REPL_GETACK);
    }
    return replication.link != NULL && repl_link_turn(replication.link);
}

void replication_settle(void) {
    failover_settle();
    if (!replication.steps_down) return;
    let_go_all(client_find(replication.asked_by));
    step_down();
    replication.steps_down = false;
    if (replication.replica) open_link();
}

bool replication_apply_config(const char **why_p) {
    if (replication.link != NULL) {
        struct repl_link_config to = link_config();
        repl_link_reconfigure(replication.link, &to);
    }
    if (repl_backlog_resize(&replication.backlog, config->repl_backlog_size)) return true;
    *why_p = "there is not so much memory";
    return false;
}

bool replication_loading(void) {
    return replication.link != NULL && repl_link_state(replication.link) == REPL_LINK_SNAPSHOT;
}

bool replication_link_up(void) {
    return replication.link != NULL && repl_link_state(replication.link) == REPL_LINK_STREAMING;
}

const char *replication_awaited(void) {
    if (!replication.replica) return NULL;
    if (replication_loading()) return "the books are loaded from the master";
    if (!replication.synced) return "the master's books are awaited";
    if (!replication_link_up() && !config->replica_serve_stale_data)
        return "the master is away, and replica-serve-stale-data is no";
    return NULL;
}

size_t replication_memory(void) {
    return replication.backlog.size;
}

size_t replication_client_memory(void) {
    struct replica *r;
    size_t n = 0;
    LIST_FOREACH(r, &replication.replicas, link) n += client_memory(r->client);
    return n;
}
