/* From a request to its command: look-up, arity, password, pause; then the run, with its figures. */
#include "cmd/client.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include "base/assert.h"
#include "cmd/introspect.h"
#include "cmd/stats.h"
#include "cmd/table.h"

static enum pause_what pause_what;
static uint64_t pause_until_ms;

/* --- errors before a command runs ------------------------------------------------------------------------------------------- */

static void reject(const struct cmd *cmd) {
    table_stat(cmd)->rejected++;
}

static void reply_unknown(struct client *c) {
    struct buf args = {NULL, 0, 0};
    for (size_t i = 1; i < c->argc && args.len < 128; i++)
        buf_printf(&args, "'%.*s' ", (int)min_u64(c->argv[i].len, 128 - args.len),
                   c->argv[i].data != NULL ? c->argv[i].data : "");
    buf_append_char(&args, '\0');
    reply_error(c, "unknown command '%.*s', with args beginning with: %s", (int)min_u64(c->argv[0].len, 128),
                c->argv[0].data, args.data);
    buf_free(&args);
}

static void reply_unknown_sub(struct client *c, const struct cmd *container) {
    char upper[32];
    size_t n = 0;
    for (; container->name[n] != '\0' && n + 1 < sizeof(upper); n++)
        upper[n] = (char)(container->name[n] >= 'a' && container->name[n] <= 'z' ? container->name[n] - 32
                                                                                 : container->name[n]);
    upper[n] = '\0';
    reply_error(c, "unknown subcommand '%.*s'. Try %s HELP.", (int)min_u64(c->argv[1].len, 128),
                c->argv[1].data != NULL ? c->argv[1].data : "", upper);
}

void reply_arity(struct client *c) {
    reply_error(c, "wrong number of arguments for '%s' command", table_stat(c->cmd)->name);
}

/* The command itself, or its subcommand. NULL: answered. */
static const struct cmd *find(struct client *c, const struct cmd *cmd) {
    if (UNLIKELY(cmd == NULL)) {
        reply_unknown(c);
        return NULL;
    }
    if (UNLIKELY(cmd->sub != NULL) && c->argc >= 2) {
        const struct cmd *sub = table_find_sub(cmd, c->argv[1]);
        if (sub == NULL) {
            reply_unknown_sub(c, cmd);
            reject(cmd);
            return NULL;
        }
        cmd = sub;
    }
    c->cmd = cmd;
    if (UNLIKELY(cmd->arity > 0 ? c->argc != (size_t)cmd->arity : c->argc < (size_t)-cmd->arity)) {
        reply_arity(c);
        reject(cmd);
        return NULL;
    }
    if (UNLIKELY(!c->authenticated) && !(cmd->flags & CMD_NO_AUTH)) {
        reply_error(c, "-NOAUTH Authentication required.");
        reject(cmd);
        return NULL;
    }
    return cmd;
}

/* --- CLIENT PAUSE ------------------------------------------------------------------------------------------------------------- */

void pause_set(enum pause_what what, uint64_t until_ms) {
    /* A pause in force is not weakened by another one. */
    if (what != PAUSE_NONE && pause_what != PAUSE_NONE) {
        what = what > pause_what ? what : pause_what;
        until_ms = max_u64(until_ms, pause_until_ms);
    }
    pause_what = what;
    pause_until_ms = until_ms;
    if (what != PAUSE_NONE) return;
    for (struct client *c = clients.head; c != NULL; c = c->io->all.next)
        if (c->io->flags & CLIENT_POSTPONED) client_ready(c);
}

enum pause_what pause_get(uint64_t *until_ms_p) {
    *until_ms_p = pause_until_ms;
    return pause_what;
}

void pause_tick(void) {
    if (UNLIKELY(pause_what != PAUSE_NONE) && server.mono_ms >= pause_until_ms) pause_set(PAUSE_NONE, 0);
}

/* Ending the pause, or the server, must stay possible. */
static bool paused(const struct cmd *cmd) {
    if (pause_what == PAUSE_WRITE) return (cmd->flags & CMD_WRITE) != 0;
    const struct cmd *parent = table_stat(cmd)->parent;
    return !(cmd->flags & CMD_ALLOW_BUSY) && (parent == NULL || strcmp(parent->name, "client") != 0);
}

/* --- the run ------------------------------------------------------------------------------------------------------------------ */

static void account(struct client *c, const struct cmd *cmd, uint64_t ns) {
    struct cmd_stat *stat = table_stat(cmd);
    stat->ns += ns;
    if (server.config->latency_tracking) table_stat_latency(stat, ns / 1000);
    if (UNLIKELY(c->io->flags & CLIENT_FAILED)) stat->failed++;
    int64_t slow_us = server.config->slowlog_slower_than_us;
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

void dispatch(struct client *c, const struct cmd *cmd) {
    struct client_io *io = c->io;
    client_output_mark(c);
    io->flags &= ~(CLIENT_FAILED | CLIENT_REDACTED);
    stats.commands++;
    io->commands++;
    cmd = find(c, cmd);
    if (UNLIKELY(cmd == NULL)) goto out;
    if (UNLIKELY(pause_what != PAUSE_NONE) && paused(cmd)) {
        io->flags |= CLIENT_POSTPONED;
        stats.postponed++;
        stats.commands--;
        io->commands--;
        return;
    }
    io->last_cmd = cmd;
    table_stat(cmd)->calls++;
    io->flags |= CLIENT_RUNNING;
    uint64_t start = core_now_ns;
    cmd->run(c);
    uint64_t ns = core_stamp() - start;
    io->flags &= ~CLIENT_RUNNING;
    c->cmd = cmd;
    if (UNLIKELY(monitor_n > 0) && !(cmd->flags & (CMD_SKIP_MONITOR | CMD_ADMIN))) monitor_feed(c);
    if (UNLIKELY(c->job != NULL))
        io->job_ns = ns;
    else
        account(c, cmd, ns);
out:
    if (UNLIKELY(io->flags & (CLIENT_REPLY_OFF | CLIENT_REPLY_SKIP | CLIENT_REPLY_SKIP_NEXT))) {
        if (io->flags & (CLIENT_REPLY_OFF | CLIENT_REPLY_SKIP)) client_output_rewind(c);
        if (c->job == NULL) step_reply_mode(io);
    }
}

void dispatch_job_done(struct client *c) {
    account(c, c->cmd, c->io->job_ns);
    step_reply_mode(c->io);
}

void dispatch_redact(struct client *c, unsigned from) {
    c->io->flags |= CLIENT_REDACTED;
    c->io->redact_from = from;
}

/* --- passwords ---------------------------------------------------------------------------------------------------------------- */

/* Equal hashes rather than equal strings, so that the time tells nothing, not even the length. */
bool dispatch_password_ok(struct span user, struct span password) {
    unsigned char a[crypto_generichash_BYTES], b[crypto_generichash_BYTES];
    const char *right = server.config->requirepass;
    crypto_generichash(a, sizeof(a), (const unsigned char *)password.data, password.len, NULL, 0);
    crypto_generichash(b, sizeof(b), (const unsigned char *)right, strlen(right), NULL, 0);
    bool same = sodium_memcmp(a, b, sizeof(a)) == 0;
    return span_eq(user, SPAN("default")) && (same || right[0] == '\0');
}
