#include "ha/failover.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/assert.h"
#include "base/log.h"
#include "front/client.h"
#include "front/effects.h"
#include "front/families.h"
#include "front/multi.h"
#include "ha/replication.h"
#include "front/embedded.h"
#include "wire/options.h"

#define FINISH_MS 1000u /* for writes that had begun before; then they are cut off */

enum state { NONE, WAITING, IN_PROGRESS };
enum failover_answer { UNKNOWN, AGREED, REFUSED };

static struct {
    enum state state;
    enum failover_answer answer;
    bool force, acked;
    uint64_t end_ms;    /* of waiting, 0: never */
    uint64_t synced_ms; /* a replica has all since then, 0: none has */
    char host[64];      /* of the one that is to lead; "": any */
    uint16_t port;
    char why[256];
} f;

bool failover_under_way(void) {
    return f.state != NONE;
}

const char *failover_state_name(void) {
    static const char *const names[] = {"no-failover", "waiting-for-sync", "failover-in-progress"};
    return names[f.state];
}

static void failover_clear(void) {
    memset(&f, 0, sizeof(f));
    pause_set(PAUSE_BY_FAILOVER, PAUSE_NONE, 0);
}

static void failover_give_up(const char *why) {
    if (f.host[0] != '\0')
        log_notice("FAILOVER to %s:%u aborted: %s", f.host, f.port, why);
    else
        log_notice("FAILOVER to any replica aborted: %s", why);
    if (f.state == IN_PROGRESS) replication_lead();
    failover_clear();
}

/* --- waiting --- */

static bool is_target(const struct replica *r) {
    char ip[64];
    uint16_t port;
    if (f.host[0] == '\0') return true;
    replica_address(r, ip, &port);
    return port == f.port && strcasecmp(ip, f.host) == 0;
}

/* One that may lead and has everything, or NULL. */
static const struct replica *target_synced(void) {
    struct replica *r;
    LIST_FOREACH(r, &replication.replicas, link)
        if (r->state == REPLICA_ONLINE && r->modern &&
            r->ack_offset == replication.history.offset && is_target(r))
            return r;
    return NULL;
}

static bool client_writes(const struct client *c) {
    if (c->job == NULL || c->cmd == NULL) return false;
    return ((c->cmd->flags | (c->cmd->id == WIRE_exec ? multi_flags(c) : 0)) & CMD_WRITE) != 0;
}

/* What began before the pause is over. */
static bool writers_quiet(void) {
    if (f.synced_ms == 0) f.synced_ms = turn.mono_ms;
    if (turn.mono_ms - f.synced_ms >= FINISH_MS) return true;
    CLIENTS_EACH(c)
        if (client_writes(c)) return false;
    return true;
}

void failover_acked(const struct replica *r) {
    if (is_target(r)) f.acked = true;
}

void failover_turn(void) {
    if (LIKELY(f.state != WAITING) || !f.acked || target_synced() != NULL) return;
    f.acked = false;
    replication.getack = true; /* more has happened meanwhile */
}

static void hand_over(void) {
    f.state = IN_PROGRESS;
    replication_hand_over(f.host, f.port);
}

static void hand_over_to(const struct replica *r) {
    replica_address(r, f.host, &f.port);
    log_notice("Failover target %s:%u is synced, failing over.", f.host, f.port);
    hand_over();
}

static void target_wait(void) {
    effects_turn();
    const struct replica *r = target_synced();
    bool late = f.end_ms != 0 && turn.mono_ms >= f.end_ms;
    if (r != NULL && (late || writers_quiet())) {
        hand_over_to(r);
    } else if (late && f.force) {
        log_notice("FAILOVER to %s:%u time out exceeded, failing over.", f.host, f.port);
        hand_over();
    } else if (late) {
        failover_give_up("Replica never caught up before timeout");
    }
}

/* --- handing over --- */

void failover_answered(bool agreed, const char *why) {
    f.answer = agreed ? AGREED : REFUSED;
    snprintf(f.why, sizeof(f.why), "Failover target rejected psync request: %s", agreed ? "" : why);
}

void failover_settle(void) {
    if (LIKELY(f.state == NONE)) return;
    if (f.state == WAITING) {
        target_wait();
    } else if (f.answer == REFUSED) {
        failover_give_up(f.why);
    } else if (f.answer == AGREED) {
        log_notice("FAILOVER to %s:%u is done", f.host, f.port);
        failover_clear();
    }
}

/* --- FAILOVER --- */

static const struct replica *find_target(const struct client *c, const struct wire_failover *o) {
    struct replica *r;
    char ip[64];
    uint16_t port;
    LIST_FOREACH(r, &replication.replicas, link) {
        replica_address(r, ip, &port);
        if (port == o->port && span_case_eq(c->argv[o->host], ip)) return r;
    }
    return NULL;
}

#define OLDER                                                                                      \
    "FAILOVER target replica is of tarn 0.1, which cannot be handed to: utils/rolling-upgrade.sh " \
    "--servers promotes it"

static bool any_modern(void) {
    struct replica *r;
    LIST_FOREACH(r, &replication.replicas, link)
        if (r->modern) return true;
    return false;
}

/* Why not; NULL: it may begin. */
static const char *failover_refusal(const struct client *c, const struct wire_failover *o) {
    const struct replica *r;
    if (f.state != NONE) return "FAILOVER already in progress.";
    if (replication.replica) return "FAILOVER is not valid when server is a replica.";
    if (embedded.host != NULL)
        return "FAILOVER is not valid when server has a pool of its own, which would stay behind: "
               "start it with pool-size 0, and give the pool to tarn-node";
    if (LIST_EMPTY(&replication.replicas)) return "FAILOVER requires connected replicas.";
    if (o->force && (o->timeout_ms == INT64_MAX || o->host == 0))
        return "FAILOVER with force option requires both a timeout and target HOST and IP.";
    if (o->host == 0) return any_modern() ? NULL : OLDER;
    if ((r = find_target(c, o)) == NULL) return "FAILOVER target HOST and PORT is not a replica.";
    if (!r->modern) return OLDER;
    return r->state == REPLICA_ONLINE ? NULL : "FAILOVER target replica is not online.";
}

static void failover_begin(const struct client *c, const struct wire_failover *o) {
    if (o->host != 0) {
        struct span host = c->argv[o->host]; /* a replica's */
        snprintf(f.host, sizeof(f.host), "%.*s", (int)host.len, host.data);
        f.port = (uint16_t)o->port;
        log_notice("FAILOVER requested to %s:%u.", f.host, f.port);
    } else {
        log_notice("FAILOVER requested to any replica.");
    }
    f.state = WAITING;
    f.force = o->force;
    f.acked = true;
    if (o->timeout_ms < INT64_MAX) f.end_ms = turn.mono_ms + (uint64_t)o->timeout_ms;
    pause_set(PAUSE_BY_FAILOVER, PAUSE_WRITE, INT64_MAX);
}

void cmd_failover(struct client *c) {
    struct wire_failover o = {0};
    if (!arg_bind(c, &o)) return;
    if (o.abort && c->argc > 2) {
        reply_syntax(c);
        return;
    }
    if (o.abort) {
        if (f.answer != UNKNOWN) failover_settle(); /* it came in this turn */
        if (f.state == NONE) {
            reply_error(c, "No failover in progress.");
            return;
        }
        failover_give_up("Failover manually aborted");
        reply_ok(c);
        return;
    }
    const char *why =
        o.timeout_ms > 0 ? failover_refusal(c, &o) : "FAILOVER timeout must be greater than 0";
    if (why != NULL) {
        reply_error(c, "%s", why);
        return;
    }
    failover_begin(c, &o);
    reply_ok(c);
}
