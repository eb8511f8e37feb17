#include "ha/shutdown.h"

#include <signal.h>
#include <stdlib.h>
#include "base/assert.h"
#include "base/log.h"
#include "base/progress.h"
#include "front/client.h"
#include "front/core.h"
#include "front/effects.h"
#include "front/families.h"
#include "ha/persistence.h"
#include "front/process.h"
#include "ha/replication.h"
#include "config/config.h"
#include "wire/options.h"

#define FAILED "Errors trying to SHUTDOWN. Check logs."

static struct {
    bool waits; /* for replicas */
    /* one that came while nothing is done at regular times (DEBUG PAUSE-CRON), 0: none */
    int signo;
    int flags; /* CONFIG_SHUTDOWN_* */
    uint64_t until_ms, offset;
    struct progress progress;
} s;

/* Who waits for the end of the process. */
struct shutdown_wait {
    struct job job;
    uint64_t round;
};
static uint64_t round; /* one that is over has failed, or the process were gone */

/* --- replicas --- */

static void say_replicas(void) {
    struct replica *r;
    size_t all = replication.online;
    LIST_FOREACH(r, &replication.replicas, link) {
        char ip[64];
        uint16_t port;
        if (r->state != REPLICA_ONLINE || r->ack_offset >= s.offset) continue;
        replica_address(r, ip, &port);
        log_warning("Lagging replica %s:%u: %llu bytes behind, last heard of %llu s ago", ip, port,
                    (unsigned long long)(s.offset - r->ack_offset),
                    (unsigned long long)replica_lag_s(r));
    }
    if (all > 0)
        log_notice("%zu of %zu replicas are in sync when shutting down.",
                   replicas_acknowledged(s.offset), all);
}

/* --- the way --- */

static void answer_waiters(void) {
    round++;
    CLIENTS_EACH(c)
        if (c->job != NULL && c->cmd != NULL && c->cmd->id == WIRE_shutdown) job_wake(c->job);
}

static void end_wait(void) {
    if (!s.waits) return;
    s.waits = false;
    pause_set(PAUSE_BY_SHUTDOWN, PAUSE_NONE, 0);
}

/* false: it cannot be, and was logged. */
static bool shutdown_finish(void) {
    enum persistence_last last = s.flags & CONFIG_SHUTDOWN_SAVE     ? PERSISTENCE_SAVE
                                 : s.flags & CONFIG_SHUTDOWN_NOSAVE ? PERSISTENCE_NOSAVE
                                                                    : PERSISTENCE_AS_CONFIGURED;
    say_replicas();
    if (persistence_end(last) || s.flags & CONFIG_SHUTDOWN_FORCE) {
        process_notify("STOPPING=1\nSTATUS=Stopping");
        core_shutdown("Exiting now.");
        return true;
    }
    log_warning("Error trying to save the DB, can't exit. Errors trying to shut down the server: "
                "it goes on. SHUTDOWN FORCE ends it in any case");
    end_wait();
    answer_waiters();
    return false;
}

static bool must_wait(void) {
    return !(s.flags & CONFIG_SHUTDOWN_NOW) && config->shutdown_timeout_s != 0 &&
           !replication.replica && replicas_acknowledged(s.offset) < replication.online;
}

/* true: it waits, or the process ends. */
static bool shutdown_begin(int flags) {
    s.flags = flags;
    effects_turn(); /* what this turn has done is waited for, too */
    s.offset = replication.history.offset;
    if (!must_wait()) return shutdown_finish();
    s.waits = true;
    s.until_ms = turn.mono_ms + (uint64_t)config->shutdown_timeout_s * 1000;
    pause_set(PAUSE_BY_SHUTDOWN, PAUSE_WRITE, s.until_ms);
    replication.getack = true;
    progress_log(&s.progress, "Waiting for replicas");
    log_notice("Waiting for replicas before shutting down, at most %lld s.",
               (long long)config->shutdown_timeout_s);
    return true;
}

static void begin_by(int signo) {
    s.signo = 0;
    shutdown_begin(signo == SIGTERM ? config->shutdown_on_sigterm : config->shutdown_on_sigint);
}

void shutdown_cron(void) {
    if (s.signo != 0 && !core_stopping()) begin_by(s.signo);
    if (!s.waits || core_stopping()) return;
    size_t n = replicas_acknowledged(s.offset), all = replication.online;
    if (turn.mono_ms >= s.until_ms || n == all) {
        shutdown_finish();
        return;
    }
    replication.getack = true;
    progress_say(&s.progress, 0, 0, "%zu of %zu are in sync, %llu s left", n, all,
                 (unsigned long long)(s.until_ms - turn.mono_ms) / 1000);
}

uint64_t shutdown_left_ms(void) {
    return s.waits && s.until_ms > turn.mono_ms ? s.until_ms - turn.mono_ms : 0;
}

static bool shutdown_give_up(void) {
    if (!s.waits && s.signo == 0) return false;
    s.signo = 0;
    log_notice("Shutdown manually aborted.");
    end_wait();
    answer_waiters();
    return true;
}

void shutdown_by_signal(int signo) {
    bool term = signo == SIGTERM;
    log_warning("%s", term ? "Received SIGTERM scheduling shutdown..."
                           : "Received SIGINT scheduling shutdown...");
    if (core_stopping()) return;
    if (s.waits) {
        s.flags |= CONFIG_SHUTDOWN_NOW;
        shutdown_finish();
        return;
    }
    if (core_cron_paused() && s.signo == 0)
        s.signo = signo;
    else
        begin_by(signo);
}

/* --- SHUTDOWN --- */

static bool shutdown_wait_step(struct client *c, struct job *job, unsigned *budget) {
    struct shutdown_wait *w = CONTAINER_OF(job, struct shutdown_wait, job);
    job->runnable = false;
    if (w->round == round) return false;
    reply_error(c, FAILED);
    return true;
}

static void shutdown_wait(struct client *c) {
    struct shutdown_wait w = {.job.step = shutdown_wait_step, .round = round};
    job_run(c, &w.job, sizeof(w));
}

void cmd_shutdown(struct client *c) {
    struct wire_shutdown args = {0};
    if (!arg_bind(c, &args)) return;
    int flags = (args.save == 1   ? CONFIG_SHUTDOWN_NOSAVE
                 : args.save == 2 ? CONFIG_SHUTDOWN_SAVE
                                  : 0) |
                (args.now ? CONFIG_SHUTDOWN_NOW : 0) | (args.force ? CONFIG_SHUTDOWN_FORCE : 0);
    if (args.abort && c->argc > 2) {
        reply_syntax(c);
    } else if (args.abort) {
        if (shutdown_give_up())
            reply_ok(c);
        else
            reply_error(c, "No shutdown in progress.");
    } else {
        log_notice("User requested shutdown...");
        if (s.waits && !(flags & CONFIG_SHUTDOWN_NOW)) {
            s.flags |= flags;
            shutdown_wait(c);
        } else if (!shutdown_begin(flags)) {
            reply_error(c, FAILED);
        } else if (s.waits) {
            shutdown_wait(c);
        }
    }
}
