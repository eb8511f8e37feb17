#include "front/process.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/log.h"
#include "acl/acl.h"
#include "front/client.h"
#include "config/table.h"
#include "front/core.h"
#include "front/stats.h"
#include "front/table.h"

extern char **environ;

/* --- title --- */

static char *title_at; /* NULL: there is no place for one */
static size_t title_room;
static char *program;
static char **variables_kept; /* unsetenv forgets strings: they are not its own */

/* ps shows the memory of the words of the command line. They lie in one piece with the environment,
 * which moves away; with it there is room for titles that are longer than the command line. */
void process_title_init(int argc, char **argv) {
    if (argc < 1 || program != NULL) return;
    program = xstrdup(argv[0]);
    char *end = argv[0];
    for (int i = 0; i < argc && argv[i] == end; i++) end += strlen(argv[i]) + 1;
    size_t n = 0;
    while (environ[n] != NULL) n++;
    char **moved = xcalloc(n + 1, sizeof(char *));
    variables_kept = xcalloc(n + 1, sizeof(char *));
    for (size_t i = 0; i < n; i++) {
        if (environ[i] == end) end += strlen(environ[i]) + 1;
        moved[i] = variables_kept[i] = xstrdup(environ[i]);
    }
    environ = moved;
    title_at = argv[0];
    title_room = (size_t)(end - title_at);
}

static void title_append_option(struct buf *out, const char *name) {
    const struct config_row *row = config_row_find(span_str(name));
    if (row != NULL)
        config_row_format(row, config, out);
    else
        buf_append_char(out, '0');
}

/* tarn is neither a cluster nor a Sentinel: {server-mode} is empty, as with a Redis on its own. */
static void title_append_variable(const struct config *c, const char *name, struct buf *out) {
    if (strcmp(name, "title") == 0)
        buf_append_str(out, program != NULL ? program : "tarn-server");
    else if (strcmp(name, "listen-addr") == 0)
        buf_printf(out, "%s:%u",
                   c->bind.n > 0 ? c->bind.word[0][0] == '-' ? c->bind.word[0] + 1 : c->bind.word[0]
                                 : "*",
                   core_endpoints.port);
    else if (strcmp(name, "port") == 0)
        buf_printf(out, "%lld", (long long)(c->port > 0 ? c->port : core_endpoints.port));
    else if (strcmp(name, "tls-port") == 0)
        title_append_option(out, name);
    else if (strcmp(name, "unixsocket") == 0)
        buf_append_str(out, c->unixsocket);
    else if (strcmp(name, "config-file") == 0)
        buf_append_str(out, config_file());
}

void process_title_update(void) {
    struct buf out = {NULL, 0, 0};
    if (title_at == NULL || !config->set_proc_title || config->proc_title_template[0] == '\0')
        return;
    if (config_title(config, title_append_variable, &out)) {
        size_t n = out.len < title_room - 1 ? out.len : title_room - 1;
        if (n > 0) memcpy(title_at, out.data, n);
        memset(title_at + n, 0, title_room - n);
    }
    buf_free(&out);
}

/* --- memory, processor --- */

static int oom_base; /* the score before it was changed here */
static bool oom_changed;

static bool write_score(int score) {
    char text[16];
    int n = snprintf(text, sizeof(text), "%d", score < -1000 ? -1000 : score > 1000 ? 1000 : score);
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, text, (size_t)n) == n;
    int saved = errno;
    if (fd >= 0) close(fd);
    errno = saved;
    return ok;
}

static int read_score(void) {
    int score = 0;
    FILE *f = fopen("/proc/self/oom_score_adj", "re");
    if (f == NULL) return 0;
    if (fscanf(f, "%d", &score) != 1) score = 0;
    fclose(f);
    return score;
}

static bool as_replica;

bool process_oom_score(const char **why_p) {
    bool wanted = config->oom_score_adj != CONFIG_OOM_NO;
    if (!wanted && !oom_changed) return true;
    if (!oom_changed) oom_base = read_score();
    int score = oom_base;
    if (wanted) {
        int own = (int)config->oom_score_adj_values[as_replica ? 1 : 0];
        score = config->oom_score_adj == CONFIG_OOM_ABSOLUTE ? own : oom_base + own;
    }
    bool ok = write_score(score);
    if (ok) {
        oom_changed = wanted;
        return true;
    }
    log_warning("Unable to write oom_score_adj: %s", strerror(errno));
    if (why_p != NULL)
        *why_p = "Failed to set oom_score_adj: see the log; a lower score than the process has "
                 "needs a privilege";
    return false;
}

void process_role(bool replica) {
    as_replica = replica;
    (void)process_oom_score(NULL); /* a score that is refused is logged */
}

bool process_loop_priority(const char **why_p) {
    static bool changed; /* else it stays as it was started, perhaps with chrt */
    int priority = (int)config->loop_priority;
    if (priority == 0 && !changed) return true;
    int policy = (priority > 0 ? SCHED_FIFO : SCHED_OTHER) | SCHED_RESET_ON_FORK;
    if (sched_setscheduler(0, policy, &(struct sched_param){.sched_priority = priority}) == 0) {
        changed = true;
        return true;
    }
    log_warning("loop-priority %d: the kernel refused: %s", priority, strerror(errno));
    if (why_p != NULL)
        *why_p = "the kernel refused it, see the log; it needs CAP_SYS_NICE or a limit of "
                 "real-time priorities that is not lower";
    return false;
}

void process_disable_thp(void) {
    if (config->disable_thp && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0)
        log_warning("disable-thp: the kernel refused: %s", strerror(errno));
}

/* --- supervision --- */

static int notify_fd = -1; /* systemd's socket */
static struct sockaddr_un notify_address;
static socklen_t notify_len;

static bool find_systemd(void) {
    const char *path = getenv("NOTIFY_SOCKET");
    size_t len = path != NULL ? strlen(path) : 0;
    if (len < 2 || (path[0] != '/' && path[0] != '@')) return false;
    if (len >= sizeof(notify_address.sun_path)) {
        log_warning("NOTIFY_SOCKET is longer than a socket's path may be");
        return false;
    }
    notify_address.sun_family = AF_UNIX;
    memcpy(notify_address.sun_path, path, len + 1);
    if (path[0] == '@') notify_address.sun_path[0] = '\0'; /* a name that no file has */
    notify_len =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (path[0] == '@' ? 0 : 1));
    notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    unsetenv("NOTIFY_SOCKET"); /* not for children */
    return notify_fd >= 0;
}

void process_supervisor_find(void) {
    if (config->supervised == CONFIG_SUPERVISED_NO) return;
    if (find_systemd())
        log_notice("Supervised by systemd: it will be told when the server is ready");
    else if (config->supervised == CONFIG_SUPERVISED_SYSTEMD)
        log_warning("Systemd supervision requested, but NOTIFY_SOCKET is not set: use Type=notify "
                    "in the unit");
}

bool process_supervised(void) {
    return notify_fd >= 0;
}

void process_notify(const char *format, ...) {
    char text[512];
    if (notify_fd < 0) return;
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    size_t len = n < 0 ? 0 : min_u64((uint64_t)n, sizeof(text) - 1);
    if (sendto(notify_fd, text, len, MSG_NOSIGNAL, (struct sockaddr *)&notify_address, notify_len) <
        0)
        log_warning("systemd cannot be told: %s", strerror(errno));
}

/* --- crashes --- */

void process_crash_lines(void) {
    log_warning("Uptime: %llu s, role: %s, clients: %zu, heap: up to %llu bytes, commands: %llu, "
                "configuration: %s",
                (unsigned long long)((turn.mono_ms - stats.start_mono_ms) / 1000),
                as_replica ? "replica" : "master", clients.n, (unsigned long long)stats.peak_memory,
                (unsigned long long)stats.total_commands_processed, config_file());
    CLIENTS_EACH(c) {
        if (!(c->io->flags & CLIENT_RUNNING)) continue;
        log_warning("------ CURRENT CLIENT ------");
        log_warning("id=%llu cmd=%s arguments=%zu user=%s", (unsigned long long)c->id,
                    c->cmd != NULL ? c->cmd->name : "none", c->argc, acl_user_name(c->user));
        struct table_secrets secrets = table_secrets(c->argv, c->argc);
        for (size_t i = 0; i < c->argc && i < 8; i++) {
            if (table_is_secret(&secrets, i) || c->argv[i].data == NULL) continue;
            log_warning("argv[%zu]: '%.*s'%s", i, (int)min_u64(c->argv[i].len, 64), c->argv[i].data,
                        c->argv[i].len > 64 ? " ..." : "");
        }
    }
}
