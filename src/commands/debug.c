/* DEBUG: for tests and for those who look for faults. One command, as in Redis, so that rules of
 * users name its subcommands as first arguments. */
#include "commands/debug.h"
#include "ha/reload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "base/assert.h"
#include "base/glob.h"
#include "base/log.h"
#include "front/client.h"
#include "config/config.h"
#include "front/core.h"
#include "ha/expire_cycle.h"
#include "front/families.h"
#include "ha/replication.h"

#define SLEEP_MAX_S 3600

/* --- time --- */

static bool seconds_argument(struct client *c, double *seconds_p) {
    char text[40], *end = NULL;
    struct span s = c->argv[2];
    if (s.len > 0 && s.len < sizeof(text) && s.data != NULL) {
        memcpy(text, s.data, s.len);
        text[s.len] = '\0';
        *seconds_p = strtod(text, &end);
    }
    if (end != NULL && *end == '\0' && *seconds_p >= 0 && *seconds_p <= SLEEP_MAX_S) return true;
    reply_error(c, "%.*s must be a number of seconds from 0 to %d",
                (int)min_u64(c->argv[1].len, 16), c->argv[1].data, SLEEP_MAX_S);
    return false;
}

/* Holds the whole server, which is what it is for. */
static void debug_sleep(struct client *c) {
    double seconds;
    if (!seconds_argument(c, &seconds)) return;
    struct timespec left = {.tv_sec = (time_t)seconds};
    left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
    nanosleep(&left, NULL);
    reply_ok(c);
}

static bool debug_wait_step(struct client *c, struct job *job, unsigned *budget) {
    if (turn.mono_ms < job->deadline_ms) {
        job->runnable = false;
        return false;
    }
    reply_ok(c);
    return true;
}

/* Holds its own client only. */
static void debug_wait(struct client *c) {
    double seconds;
    if (!seconds_argument(c, &seconds)) return;
    struct job job = {.step = debug_wait_step,
                      .deadline_ms = turn.mono_ms + (uint64_t)(seconds * 1000)};
    job_run(c, &job, sizeof(job));
}

/* 0 or 1 at argv[2]. */
static bool switch_argument(struct client *c, bool *on_p) {
    int64_t v;
    if (!arg_i64(c, 2, &v)) return false;
    if (v != 0 && v != 1) {
        reply_error(c, "%.*s must be 0 or 1", (int)min_u64(c->argv[1].len, 32), c->argv[1].data);
        return false;
    }
    *on_p = v == 1;
    return true;
}

static void debug_config_rewrite(struct client *c) {
    char *why = NULL;
    if (config_rewrite(config, true, &why))
        reply_ok(c);
    else
        reply_error(c, "%s", why);
    free(why);
}

static void debug_active_expire(struct client *c) {
    bool on;
    if (!switch_argument(c, &on)) return;
    expire_cycle_enable(on);
    reply_ok(c);
}

static void debug_pause_cron(struct client *c) {
    bool paused;
    if (!switch_argument(c, &paused)) return;
    core_pause_cron(paused);
    reply_ok(c);
}

/* --- the books --- */

static void debug_check(struct client *c) {
    store_check(books);
    reply_ok(c);
}

static void debug_object(struct client *c) {
    char text[200];
    struct object *o = store_find(books, c->argv[2]);
    if (o == NULL) {
        reply_error(c, "no such key");
        return;
    }
    uint64_t idle_s = store_object_idle_ms(books, o) / 1000;
    snprintf(text, sizeof(text),
             "Value at:%p refcount:%u encoding:%s serializedlength:%llu lru:%llu "
             "lru_seconds_idle:%llu version:%llu",
             (void *)o, 1 + store_object_refs(books, o), object_encoding(o),
             (unsigned long long)store_object_size(books, o),
             (unsigned long long)((turn.wall_ms / 1000 - idle_s) & 0xffffff),
             (unsigned long long)idle_s, (unsigned long long)store_object_version(o));
    reply_simple(c, text);
}

/* --- the process --- */

/* Where its memory lies goes to the log, line by line. */
static void debug_jmap(struct client *c) {
    enum { LINES_MAX = 2000 };
    char line[512];
    unsigned n = 0;
    FILE *f = fopen("/proc/self/maps", "re");
    if (f == NULL) {
        reply_error(c, "/proc/self/maps cannot be read: %s", strerror(errno));
        return;
    }
    for (; n < LINES_MAX && fgets(line, sizeof(line), f) != NULL; n++) {
        line[strcspn(line, "\n")] = '\0';
        log_notice("DEBUG JMAP: %s", line);
    }
    fclose(f);
    log_notice("DEBUG JMAP: %u mappings", n);
    reply_ok(c);
}

static void debug_log(struct client *c) {
    log_warning("DEBUG LOG: %.*s", (int)min_u64(c->argv[2].len, 1024),
                c->argv[2].data != NULL ? c->argv[2].data : "");
    reply_ok(c);
}

static void debug_change_repl_id(struct client *c) {
    if (replication_is_replica()) {
        reply_error(c, "The replication id is the master's: this server is a replica");
        return;
    }
    repl_history_renew(&replication.history);
    replicas_drop_all("the stream has a new id");
    log_notice("The replication id was changed to %s by DEBUG", replication.history.id);
    reply_ok(c);
}

/* There are no scripts that anything could be denied to. */
static void debug_deny_scripts(struct client *c) {
    bool on;
    if (switch_argument(c, &on)) reply_ok(c);
}

static void debug_stringmatch(struct client *c) {
    enum { LEN_MAX = 1 << 20, STEPS_MAX = 1 << 30 };
    uint64_t n;
    if (!arg_range(c, 2, "len", 0, LEN_MAX, &n)) return;
    if (n * c->argv[3].len > STEPS_MAX) {
        reply_error(
            c, "len and pattern together would take too long: len * length of pattern may be %d",
            STEPS_MAX);
        return;
    }
    char *text = xmalloc(n + 1);
    memset(text, 'a', n);
    reply_int(c, glob_match_once(c->argv[3], span_of(text, n), false));
    free(text);
}

/* --- which is which --- */

static void debug_help(struct client *c);

static const struct debug_sub {
    const char *name;
    size_t min, max; /* arguments behind it */
    void (*run)(struct client *c);
    const char *syntax, *summary;
} subs[] = {
    {"CHANGE-REPL-ID", 0, 0, debug_change_repl_id, "",
     "Takes a new replication id; replicas synchronise anew."},
    {"CHECK", 0, 0, debug_check, "",
     "Walks the books and ends the process if they contradict themselves."},
    {"CONFIG-REWRITE-FORCE-ALL", 0, 0, debug_config_rewrite, "",
     "Writes all options to the configuration file, also those that nobody changed."},
    {"DIGEST", 0, 0, debug_digest, "", "Tells one number over everything in the books."},
    {"ERROR", 1, 1, debug_error, "message", "Answers the message as an error."},
    {"JMAP", 0, 0, debug_jmap, "", "Writes the memory map of the process to the log."},
    {"LOADAOF", 0, 0, debug_loadaof, "",
     "Forgets the books and loads them from the append-only file."},
    {"LOG", 1, 1, debug_log, "message", "Writes the message to the log."},
    {"OBJECT", 1, 1, debug_object, "key", "Tells how a value is kept."},
    {"PAUSE-CRON", 1, 1, debug_pause_cron, "<0 | 1>",
     "Stops what runs hz times a second, or lets it go on."},
    {"POPULATE", 1, 3, debug_populate, "count [prefix] [size]",
     "Makes the keys prefix:0, prefix:1 ... (key:) that are not there, with values of that many "
     "bytes."},
    {"PROTOCOL", 1, 1, debug_protocol,
     "<string | integer | double | null | array | set | map | attrib | push | verbatim | true | "
     "false | bignum>",
     "Answers a value of that type."},
    {"RELOAD", 0, 1, debug_reload, "[NOSAVE]",
     "Writes a snapshot, forgets the books and loads them from it."},
    {"SET-ACTIVE-EXPIRE", 1, 1, debug_active_expire, "<0 | 1>",
     "Says whether keys whose time is over are removed when nobody asks for them."},
    {"SET-DISABLE-DENY-SCRIPTS", 1, 1, debug_deny_scripts, "<0 | 1>",
     "Accepted: there are no scripts."},
    {"SLEEP", 1, 1, debug_sleep, "seconds", "Holds the whole server for that long."},
    {"STRINGMATCH-LEN", 2, 2, debug_stringmatch, "len pattern",
     "Tells whether a text of so many 'a' matches the pattern."},
    {"WAIT", 1, 1, debug_wait, "seconds", "Answers that much later, and holds nobody else."},
    {"HELP", 0, 0, debug_help, "", "Lists the subcommands."},
};

static void debug_help(struct client *c) {
    char line[256];
    reply_array(c, 1 + 2 * ARRAY_LEN(subs));
    reply_simple(c, "DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
    for (size_t i = 0; i < ARRAY_LEN(subs); i++) {
        snprintf(line, sizeof(line), "%s%s%s", subs[i].name, subs[i].syntax[0] != '\0' ? " " : "",
                 subs[i].syntax);
        reply_simple(c, line);
        snprintf(line, sizeof(line), "    %s", subs[i].summary);
        reply_simple(c, line);
    }
}

void cmd_debug(struct client *c) {
    if (!client_allowed(c, config->enable_debug_command)) {
        reply_error(c, "DEBUG command not allowed. If the enable-debug-command option is set to "
                       "\"local\", you can run it from a local connection, otherwise you need to "
                       "set this option in the configuration file, and then restart the server.");
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(subs); i++) {
        const struct debug_sub *s = &subs[i];
        if (!arg_is(c, 1, s->name) || c->argc - 2 < s->min || c->argc - 2 > s->max) continue;
        s->run(c);
        return;
    }
    reply_error(c, "unknown subcommand or wrong number of arguments for '%.*s'. Try DEBUG HELP.",
                (int)min_u64(c->argv[1].len, 128), c->argv[1].data != NULL ? c->argv[1].data : "");
}
