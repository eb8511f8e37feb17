/* From a request to its command: look-up, arity, password, pause; then the run, with its
 * figures. */
#include "front/client.h"

#include <stdio.h>
#include <string.h>
#include "base/assert.h"
#include "base/clock.h"
#include "front/acl_users.h"
#include "front/above.h"
#include "front/effects.h"
#include "front/introspect.h"
#include "front/latency.h"
#include "front/multi.h"
#include "front/pubsub.h"
#include "front/shard.h"
#include "front/stats.h"
#include "front/table.h"
#include "front/tracking.h"
#include "config/config.h"

#define HINTS_PER_CLIENT 100u
#define PAUSE_LOOK_MS    10u
#define BRIEF_MAX_NS     1000000 /* no brief command takes that long: dispatch_is_brief */

static struct {
    enum pause_what what;
    uint64_t until_ms;
} pauses[PAUSES];                  /* by enum pause_by */
static enum pause_what pause_what; /* the strongest of them */

/* --- errors before a command runs --- */

static void command_reject(const struct cmd *cmd) {
    table_stat(cmd)->rejected++;
}

/* A person mistypes a few commands; who sends thousands is no person, and each would cost some
 * microseconds. */
static bool may_hint(struct client *c) {
    if (c->io->hints == HINTS_PER_CLIENT) return false;
    c->io->hints++;
    return true;
}

static void append_upper(struct buf *out, const char *name) {
    for (; *name != '\0'; name++)
        buf_append_char(out, *name >= 'a' && *name <= 'z' ? (char)(*name - 0x20) : *name);
}

static void reply_unknown(struct client *c) {
    struct buf args = {NULL, 0, 0};
    for (size_t i = 1; i < c->argc && args.len < 128; i++)
        buf_printf(&args, "'%.*s' ", (int)min_u64(c->argv[i].len, 128 - args.len),
                   c->argv[i].data != NULL ? c->argv[i].data : "");
    const char *near = may_hint(c) ? table_near(c->argv[0]) : NULL;
    if (near != NULL) {
        buf_append_str(&args, "(did you mean ");
        append_upper(&args, near);
        buf_append_str(&args, "?)");
    }
    buf_append_char(&args, '\0');
    reply_error(c, "unknown command '%.*s', with args beginning with: %s",
                (int)min_u64(c->argv[0].len, 128), c->argv[0].data != NULL ? c->argv[0].data : "",
                args.data);
    buf_free(&args);
}

static void reply_unknown_sub(struct client *c, const struct cmd *container) {
    struct buf advice = {NULL, 0, 0};
    const char *near = may_hint(c) ? table_near_sub(container, c->argv[1]) : NULL;
    append_upper(&advice, container->name);
    buf_append_str(&advice, " HELP.");
    if (near != NULL) {
        buf_append_str(&advice, " Did you mean ");
        append_upper(&advice, near);
        buf_append_char(&advice, '?');
    }
    buf_append_char(&advice, '\0');
    reply_error(c, "unknown subcommand '%.*s'. Try %s", (int)min_u64(c->argv[1].len, 128),
                c->argv[1].data != NULL ? c->argv[1].data : "", advice.data);
    buf_free(&advice);
}

void reply_arity(struct client *c) {
    reply_error(c, "wrong number of arguments for '%s' command", table_stat(c->cmd)->name);
}

/* "-CODE text", or a text that gets the usual code. */
static void reply_refusal(struct client *c, const char *why) {
    if (why[0] == '-')
        reply_error(c, "-%s", why + 1);
    else
        reply_error(c, "%s", why);
}

/* What refuses EXEC ends the transaction. */
static void command_refuse(struct client *c, const struct cmd *cmd, const char *why) {
    if (cmd->id == WIRE_exec)
        multi_abort(c, why);
    else
        reply_error(c, "-%s", why);
    command_reject(cmd);
}

/* By who it is. false: answered. */
static bool user_permitted(struct client *c, const struct cmd *cmd) {
    char why[128];
    size_t at;
    if (!c->authenticated) {
        if (cmd->flags & CMD_NO_AUTH) return true;
        command_refuse(c, cmd, "NOAUTH Authentication required.");
        return false;
    }
    enum acl_verdict v = acl_check(c->user, cmd, c->argv, c->argc, &at);
    /* when its bytes came */
    if (v == ACL_GRANTED && c->io->flags & CLIENT_REFUSED) v = ACL_DENIED_COMMAND;
    if (v == ACL_GRANTED) return true;
    c->io->last_cmd = cmd;
    acl_log_note(c, v, cmd, at, SPAN(""));
    if (v == ACL_DENIED_COMMAND)
        snprintf(why, sizeof(why), "NOPERM this user has no permissions to run the '%s' command",
                 acl_denied_name(c->user, cmd, c->argv, c->argc));
    else
        snprintf(why, sizeof(why),
                 "NOPERM this user has no permissions to access one of the %s used as arguments",
                 v == ACL_DENIED_KEY ? "keys" : "channels");
    command_refuse(c, cmd, why);
    return false;
}

/* The same for one that was queued: what it may do has changed since then. */
static bool user_still_permitted(struct client *c, const struct cmd *cmd) {
    size_t at;
    if (!c->authenticated) return user_permitted(c, cmd); /* it deleted its own user */
    enum acl_verdict v = acl_check(c->user, cmd, c->argv, c->argc, &at);
    if (v == ACL_GRANTED) return true;
    acl_log_note(c, v, cmd, at, SPAN(""));
    reply_error(
        c,
        "-NOPERM ACLs rules changed between the moment the transaction was accumulated and the "
        "EXEC "
        "call. This "
        "command is no longer allowed for the following reason: %s",
        v == ACL_DENIED_COMMAND ? "no permission to execute the command or subcommand"
        : v == ACL_DENIED_KEY
            ? "no permission to touch the specified keys"
            : "no permission to access one of the channels used as arguments to the command");
    command_reject(cmd);
    return false;
}

/* The command itself, or its subcommand. NULL: answered. Once for every request. */
static inline __attribute__((always_inline)) const struct cmd *command_find(struct client *c,
                                                                            const struct cmd *cmd) {
    if (UNLIKELY(cmd == NULL)) {
        reply_unknown(c);
        return NULL;
    }
    if (UNLIKELY(cmd->sub != NULL) && c->argc >= 2) {
        const struct cmd *sub = table_find_sub(cmd, c->argv[1]);
        if (sub == NULL) {
            reply_unknown_sub(c, cmd);
            command_reject(cmd);
            return NULL;
        }
        cmd = sub;
    }
    c->cmd = cmd;
    if (UNLIKELY(cmd->arity > 0 ? c->argc != (size_t)cmd->arity : c->argc < (size_t)-cmd->arity)) {
        if (cmd->id == WIRE_exec)
            multi_abort(c, "wrong number of arguments for 'exec' command");
        else
            reply_arity(c);
        command_reject(cmd);
        return NULL;
    }
    if (UNLIKELY(!c->unrestricted) && !user_permitted(c, cmd)) return NULL;
    unsigned flags = cmd->flags | (UNLIKELY(cmd->id == WIRE_exec) ? multi_flags(c) : 0);
    const char *refusal = flags & CMD_WRITE ? above.write_refusal() : NULL;
    if (UNLIKELY(refusal != NULL)) {
        command_refuse(c, cmd, refusal);
        return NULL;
    }
    return cmd;
}

/* --- CLIENT PAUSE --- */

void pause_set(enum pause_by by, enum pause_what what, uint64_t until_ms) {
    enum pause_what before = pause_what;
    /* A pause in force is not weakened by another one. */
    if (what != PAUSE_NONE && pauses[by].what != PAUSE_NONE) {
        what = what > pauses[by].what ? what : pauses[by].what;
        until_ms = max_u64(until_ms, pauses[by].until_ms);
    }
    pauses[by].what = what;
    pauses[by].until_ms = until_ms;
    pause_what = PAUSE_NONE;
    for (unsigned i = 0; i < PAUSES; i++)
        if (pauses[i].what > pause_what) pause_what = pauses[i].what;
    store_keep_expired(books, pause_what != PAUSE_NONE);
    if (pause_what >= before) return;
    /* Those that are still not allowed are postponed again. */
    CLIENTS_EACH(c)
        if (c->io->flags & CLIENT_POSTPONED) client_ready(c);
}

enum pause_what pause_get(uint64_t *until_ms_p) {
    *until_ms_p = 0;
    for (unsigned i = 0; i < PAUSES; i++) *until_ms_p = max_u64(*until_ms_p, pauses[i].until_ms);
    return pause_what;
}

void pause_tick(void) {
    if (LIKELY(pause_what == PAUSE_NONE)) return;
    if (pauses[PAUSE_BY_CLIENT].what != PAUSE_NONE &&
        turn.mono_ms >= pauses[PAUSE_BY_CLIENT].until_ms)
        pause_set(PAUSE_BY_CLIENT, PAUSE_NONE, 0);
    /* the books may be others by now */
    else
        store_keep_expired(books, true);
}

/* Ending the pause, or the server, must stay possible. */
static bool command_paused(const struct client *c, const struct cmd *cmd) {
    if (pause_what == PAUSE_WRITE) {
        unsigned flags = cmd->flags | (cmd->id == WIRE_exec ? multi_flags(c) : 0);
        return (flags & (CMD_WRITE | CMD_MAY_REPLICATE)) != 0;
    }
    const struct cmd *parent = table_stat(cmd)->parent;
    return !(cmd->flags & CMD_ALLOW_BUSY) &&
           (parent == NULL || strcmp(parent->name, "client") != 0);
}

/* No command sees half of what goes together. */
static void books_settle(void) {
    if (LIKELY(books != NULL)) store_settle(books);
}

/* --- the run --- */

/* Commands that ran since the clock was read. */
static struct {
    const struct cmd *cmd;
    unsigned n;
} unread;

static void time_account(const struct cmd *cmd, uint64_t ns, unsigned times) {
    struct cmd_stat *stat = table_stat(cmd);
    stat->ns += ns * times;
    if (config->latency_tracking) table_stat_latency(stat, ns, times);
}

bool dispatch_is_brief(const struct cmd *cmd) {
    const unsigned brief = CMD_READONLY | CMD_FAST;
    int64_t slow_us = config->slowlog_slower_than_us;
    return (cmd->flags & (brief | CMD_MODULE)) == brief &&
           (slow_us < 0 || slow_us >= BRIEF_MAX_NS / 1000);
}

/* ns is the time of those before it as well that share this reading of the clock; returns what is
 * left of it. Where it is more than any of them takes, this process stood still, and the last one
 * stands for all. */
static uint64_t unread_account(uint64_t ns) {
    uint64_t each = ns < BRIEF_MAX_NS ? ns / (unread.n + 1) : 0;
    time_account(unread.cmd, each, unread.n);
    ns -= each * unread.n;
    unread.n = 0;
    return ns;
}

void dispatch_read_clock(void) {
    if (LIKELY(unread.n == 0)) return;
    uint64_t start = core_now_ns, ns = core_stamp() - start;
    unread.n--;
    time_account(unread.cmd, unread_account(ns), 1);
}

static void outcome_account(struct client *c, const struct cmd *cmd) {
    struct cmd_stat *stat = table_stat(cmd);
    if (UNLIKELY(c->io->flags & CLIENT_OOM)) {
        stat->calls--; /* as Redis counts, which looks before */
        stat->rejected++;
    } else if (UNLIKELY(c->io->flags & CLIENT_FAILED)) {
        stat->failed++;
    }
}

static void command_account(struct client *c, const struct cmd *cmd, uint64_t ns) {
    time_account(cmd, ns, 1);
    outcome_account(c, cmd);
    int64_t slow_us = config->slowlog_slower_than_us;
    if (UNLIKELY(slow_us >= 0 && ns >= (uint64_t)slow_us * 1000)) slowlog_note(c, ns / 1000);
}

/* CLIENT REPLY SKIP concerns the command after it. */
static void step_reply_mode(struct client_io *io) {
    io->flags &= ~CLIENT_REPLY_SKIP;
    if (io->flags & CLIENT_REPLY_SKIP_NEXT) {
        io->flags &= ~CLIENT_REPLY_SKIP_NEXT;
        io->flags |= CLIENT_REPLY_SKIP;
    }
}

/* In a transaction, or listening to channels: not everything may be said. false: answered. */
static bool command_admit(struct client *c, const struct cmd *cmd) {
    unsigned flags = c->io->flags;
    if (flags & CLIENT_MULTI && cmd->flags & CMD_NO_MULTI)
        reply_error(c, "Command not allowed inside a transaction");
    else if (flags & CLIENT_PUBSUB && c->proto == 2 && !pubsub_allows(cmd))
        reply_error(
            c,
            "Can't execute '%s': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are "
            "allowed in this context",
            table_stat(cmd)->name);
    else
        return true;
    command_reject(cmd);
    if (flags & CLIENT_MULTI) multi_fail(c);
    return false;
}

/* By the role of this server, its replicas, and what is there of the books. false: answered. */
static bool command_allowed_here(struct client *c, const struct cmd *cmd) {
    const char *why = above.refusal(c, cmd);
    if (LIKELY(why == NULL)) return true;
    if (above.wait(c, cmd)) return false;
    command_reject(cmd);
    if (cmd->id == WIRE_exec && c->io->multi != NULL && c->io->flags & CLIENT_MULTI)
        multi_abort(c, why[0] == '-' ? why + 1 : why);
    else
        reply_refusal(c, why);
    if (c->io->flags & CLIENT_MULTI) multi_fail(c);
    return false;
}

/* EXEC ends the transaction, as in Redis. */
static void keys_refused(struct client *c, const struct cmd *cmd) {
    command_reject(cmd);
    if (c->io->flags & CLIENT_MULTI && cmd->id == WIRE_exec)
        multi_reset(c);
    else if (c->io->flags & CLIENT_MULTI)
        multi_fail(c);
}

/* A command that did not run now: it is queued, or waits for the end of a pause. */
static void command_uncount(struct client *c) {
    stats.total_commands_processed--;
    c->io->commands--;
}

/* The command that has so many keys that they are looked at first, and then runs within this. */
struct keys_look {
    struct job job;
    struct shard_look *look;
    bool begun, paused, within;
};

static bool keys_look_step(struct client *c, struct job *job, unsigned *budget) {
    struct keys_look *k = CONTAINER_OF(job, struct keys_look, job);
    const struct cmd *cmd = c->cmd;
    if (k->within || c->io->flags & CLIENT_CLOSE_SOON) return k->within;
    bool looked = shard_look_step(k->look, budget);
    if (!looked || !k->begun) { /* the command runs in a slice of the job */
        k->begun = true;
        return false;
    }
    if (!shard_look_admits(k->look)) {
        keys_refused(c, cmd);
        c->io->flags &= ~CLIENT_FAILED; /* it was rejected */
        return true;
    }
    if (UNLIKELY(pause_what != PAUSE_NONE) && command_paused(c, cmd)) {
        stats.postponed_commands += !k->paused;
        k->paused = true;
        return job_look_again(job, PAUSE_LOOK_MS);
    }
    job->deadline_ms = 0; /* it ends with the one within */
    tracking_note(c, cmd);
    if (UNLIKELY(above.restricts()) && !command_allowed_here(c, cmd)) {
        k->within = c->job != job; /* it waits */
    } else if (c->io->flags & CLIENT_MULTI && multi_take(c, cmd)) {
        command_uncount(c);
    } else {
        table_stat(cmd)->calls++;
        books_settle();
        cmd->run(c);
        k->within = c->job != job;
        if (!(c->io->flags & CLIENT_EXEC) && UNLIKELY(monitor_n > 0) &&
            !(cmd->flags & (CMD_SKIP_MONITOR | CMD_ADMIN)))
            monitor_feed(c);
    }
    job->runnable = !k->within; /* the end of the one within wakes it */
    return !k->within;
}

static void keys_look_close(struct client *c, struct job *job) {
    shard_look_end(&CONTAINER_OF(job, struct keys_look, job)->look);
}

static void keys_look_start(struct client *c, const struct cmd *cmd) {
    struct keys_look *k = xcalloc(1, sizeof(*k));
    k->job = (struct job){
        .step = keys_look_step, .close = keys_look_close, .runnable = true, .wraps = true};
    k->look = shard_look_begin(c, cmd);
    c->io->last_cmd = c->cmd = cmd;
    c->io->job_ns = 0;
    job_start(c, &k->job);
}

/* By where its keys are. false: answered, or a job looks at them. */
static bool keys_allowed_here(struct client *c, const struct cmd *cmd) {
    if (UNLIKELY(shard_is_long(c, cmd))) {
        keys_look_start(c, cmd);
        return false;
    }
    if (shard_admits(c, cmd)) return true;
    keys_refused(c, cmd);
    return false;
}

void dispatch(struct client *c, const struct cmd *cmd, bool clock_later) {
    struct client_io *io = c->io;
    client_output_mark(c);
    if (UNLIKELY(io->flags & CLIENT_UNWRITTEN)) client_unwritten_count(c);
    io->flags &= ~(CLIENT_FAILED | CLIENT_OOM | CLIENT_CHANGED);
    stats.total_commands_processed++;
    io->commands++;
    cmd = command_find(c, cmd);
    if (UNLIKELY(cmd == NULL)) {
        if (io->flags & CLIENT_MULTI) multi_fail(c);
        goto out;
    }
    if (UNLIKELY(io->flags & (CLIENT_MULTI | CLIENT_PUBSUB)) && !command_admit(c, cmd)) goto out;
    bool paused = UNLIKELY(pause_what != PAUSE_NONE) && command_paused(c, cmd);
    if (UNLIKELY(shard_asks) && !paused && !keys_allowed_here(c, cmd)) goto out;
    tracking_note(c, cmd);
    if (UNLIKELY(above.restricts()) && !command_allowed_here(c, cmd)) goto out;
    if (UNLIKELY(paused)) {
        io->flags |= CLIENT_POSTPONED;
        stats.postponed_commands++;
        command_uncount(c);
        if (UNLIKELY(io->flags & CLIENT_UNWRITTEN)) client_unwritten_other(c);
        return;
    }
    if (UNLIKELY(io->flags & CLIENT_MULTI) && multi_take(c, cmd)) {
        command_uncount(c);
        goto out;
    }
    io->last_cmd = cmd;
    table_stat(cmd)->calls++;
    if (UNLIKELY(unread.n > 0 && unread.cmd != cmd)) dispatch_read_clock();
    io->flags |= CLIENT_RUNNING;
    books_settle();
    uint64_t start = core_now_ns, noted = effects_noted;
    cmd->run(c);
    io->flags &= ~CLIENT_RUNNING;
    bool later = clock_later && LIKELY(c->job == NULL);
    uint64_t ns = later ? 0 : core_stamp() - start;
    if (unread.n > 0 && !later) ns = unread_account(ns);
    if (effects_noted != noted &&
        !(cmd->flags & CMD_READONLY)) { /* what is read may have expired */
        io->flags |= CLIENT_CHANGED;
        client_unwritten_mark(c);
    }
    latency_note(cmd->flags & CMD_FAST ? LATENCY_FAST_COMMAND : LATENCY_COMMAND, ns);
    /* it goes on in other slices: see multi.c */
    if (UNLIKELY(io->flags & CLIENT_EXEC)) goto out;
    c->cmd = cmd;
    if (UNLIKELY(monitor_n > 0) && !(cmd->flags & (CMD_SKIP_MONITOR | CMD_ADMIN))) monitor_feed(c);
    if (UNLIKELY(c->job != NULL)) {
        io->job_ns = ns;
    } else if (later) {
        unread.cmd = cmd;
        unread.n++;
        outcome_account(c, cmd);
    } else {
        command_account(c, cmd, ns);
    }
out:
    if (UNLIKELY(io->flags & (CLIENT_REPLY_OFF | CLIENT_REPLY_SKIP | CLIENT_REPLY_SKIP_NEXT))) {
        if (io->flags & (CLIENT_REPLY_OFF | CLIENT_REPLY_SKIP)) client_output_rewind(c);
        if (c->job == NULL) step_reply_mode(io);
    }
}

void dispatch_queued(struct client *c, const struct cmd *cmd) {
    struct client_io *io = c->io;
    const struct job *outer = c->job;
    const char *why;
    io->flags &= ~(CLIENT_FAILED | CLIENT_OOM);
    stats.total_commands_processed++;
    io->commands++;
    if (cmd == NULL && (cmd = command_find(c, table_find(c->argv[0]))) == NULL) return;
    if (UNLIKELY(above.restricts()) && (why = above.refusal(c, cmd)) != NULL) {
        reply_refusal(c, why); /* the role may have changed since it was queued */
        command_reject(cmd);
        return;
    }
    c->cmd = io->last_cmd = cmd;
    if (UNLIKELY(!c->unrestricted) && !user_still_permitted(c, cmd)) return;
    if (UNLIKELY(shard_asks) && !shard_admits(c, cmd)) { /* the map may have changed */
        command_reject(cmd);
        return;
    }
    table_stat(cmd)->calls++;
    tracking_note(c, cmd);
    /* no core_stamp: for the books time stands still within EXEC */
    uint64_t start = clock_mono_ns();
    books_settle();
    cmd->run(c);
    uint64_t ns = clock_mono_ns() - start;
    c->cmd = cmd;
    if (UNLIKELY(monitor_n > 0) && !(cmd->flags & (CMD_SKIP_MONITOR | CMD_ADMIN))) monitor_feed(c);
    if (c->job != outer)
        io->job_ns = ns;
    else
        command_account(c, cmd, ns);
}

void dispatch_queued_done(struct client *c) {
    command_account(c, c->cmd, c->io->job_ns);
}

void dispatch_job_done(struct client *c) {
    command_account(c, c->cmd, c->io->job_ns);
    step_reply_mode(c->io);
}

void dispatch_turned_away(struct client *c) {
    c->io->flags |= CLIENT_OOM;
}
