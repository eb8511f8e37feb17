/* SHUTDOWN, DEBUG, TIME, ROLE, and the small families that clients ask out of habit. */
#include <stdio.h>
#include <stdlib.h>
#include "base/assert.h"
#include "base/clock.h"
#include "cmd/client.h"
#include "cmd/core.h"
#include "cmd/families.h"

void cmd_shutdown(struct client *c) {
    bool abort = false;
    for (size_t i = 1; i < c->argc; i++) {
        abort |= arg_is(c, i, "ABORT");
        if (!arg_is(c, i, "NOSAVE") && !arg_is(c, i, "SAVE") && !arg_is(c, i, "NOW") &&
            !arg_is(c, i, "FORCE") && !arg_is(c, i, "ABORT")) {
            reply_syntax(c);
            return;
        }
    }
    if (abort && c->argc > 2)
        reply_syntax(c);
    else if (abort)
        reply_error(c, "No shutdown in progress."); /* one that was asked for is never waited with */
    else
        core_shutdown("User requested shutdown...");
}

/* --- DEBUG ---------------------------------------------------------------------------------------------------------------------- */

/* Sleeps without holding the loop. */
struct sleep_job {
    struct job job;
};
static bool sleep_step(struct client *c, struct job *job, unsigned *budget) {
    if (server.mono_ms < job->deadline_ms) {
        job->runnable = false;
        return false;
    }
    reply_ok(c);
    return true;
}
static void sleep_destroy(struct client *c, struct job *job) {
    free(job);
}

static void debug_sleep(struct client *c) {
    char text[40];
    struct span s = c->argv[2];
    if (s.len == 0 || s.len >= sizeof(text) || s.data == NULL) {
        reply_syntax(c);
        return;
    }
    memcpy(text, s.data, s.len);
    text[s.len] = '\0';
    double seconds = strtod(text, NULL);
    if (!(seconds >= 0 && seconds <= 3600)) {
        reply_error(c, "SLEEP must be a number of seconds from 0 to 3600");
        return;
    }
    struct sleep_job *j = xcalloc(1, sizeof(*j));
    j->job.step = sleep_step;
    j->job.destroy = sleep_destroy;
    j->job.runnable = false;
    j->job.deadline_ms = server.mono_ms + (uint64_t)(seconds * 1000);
    job_start(c, &j->job);
}

static bool debug_allowed(const struct client *c) {
    int mode = server.config->enable_debug_command;
    if (mode == CONFIG_DEBUG_YES) return true;
    struct sockaddr_storage ss;
    memset(&ss, 0, sizeof(ss));
    memcpy(&ss, &c->io->peer, sizeof(c->io->peer));
    if (c->io->flags & CLIENT_UNIX) ss.ss_family = AF_UNIX;
    return mode == CONFIG_DEBUG_LOCAL && net_is_loopback(&ss);
}

void cmd_debug(struct client *c) {
    if (!debug_allowed(c)) {
        reply_error(c, "DEBUG command not allowed. If the enable-debug-command option is set to \"local\", "
                       "you can run it from a "
                       "local connection, otherwise you need to set this option in the configuration file, "
                       "and then restart "
                       "the server.");
    } else if (c->argc == 3 && arg_is(c, 1, "SLEEP")) {
        debug_sleep(c);
    } else if (c->argc == 2 && arg_is(c, 1, "CHECK")) {
        store_check(server.store);
        reply_ok(c);
    } else if (c->argc == 2 && arg_is(c, 1, "JMAP")) {
        reply_ok(c);
    } else {
        reply_error(
            c, "unknown subcommand or wrong number of arguments for '%.*s'. Try DEBUG SLEEP, CHECK or JMAP.",
            (int)min_u64(c->argv[1].len, 64), c->argv[1].data != NULL ? c->argv[1].data : "");
    }
}

/* --- habits --------------------------------------------------------------------------------------------------------------------- */

void cmd_time(struct client *c) {
    char text[24];
    uint64_t us = clock_wall_us();
    reply_array(c, 2);
    reply_bulk(c, span_of(text, u64_to_dec(us / 1000000, text)));
    reply_bulk(c, span_of(text, u64_to_dec(us % 1000000, text)));
}

void cmd_role(struct client *c) {
    reply_array(c, 3);
    reply_bulk_str(c, "master");
    reply_int(c, 0);
    reply_array(c, 0);
}

void cmd_acl_whoami(struct client *c) {
    reply_bulk_str(c, "default");
}
void cmd_module_list(struct client *c) {
    reply_array(c, 0);
}

void cmd_function_flush(struct client *c) {
    if (c->argc > 3 || (c->argc == 3 && !arg_is(c, 2, "ASYNC") && !arg_is(c, 2, "SYNC")))
        reply_error(c, "FUNCTION FLUSH only supports SYNC|ASYNC option");
    else
        reply_ok(c);
}
