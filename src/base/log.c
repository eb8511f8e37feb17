/* The process log.
 *
 * Lines are written with one write(2) to one descriptor number that never changes once a file was
 * opened: log_open replaces what is behind it with dup3, which is atomic, so writers need no
 * lock. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"

#define LINE_MAX_BYTES 4096

static atomic_int log_fd = STDOUT_FILENO;
static atomic_int log_threshold = LOG_LEVEL_NOTICE;
static atomic_char log_role = 'M';
static atomic_bool to_syslog;
static _Atomic(log_sink_fn) sink_fn;
static _Atomic(void *) sink_arg;

bool log_open(const char *path) {
    bool to_stdout = path == NULL || path[0] == '\0';
    int target =
        to_stdout ? STDOUT_FILENO : open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (target < 0) return false;

    int fd = atomic_load(&log_fd);
    if (fd == STDOUT_FILENO) {
        if (!to_stdout) atomic_store(&log_fd, target);
        return true;
    }
    bool ok = dup3(target, fd, O_CLOEXEC) >= 0;
    int saved = errno;
    if (!to_stdout) close(target);
    errno = saved;
    return ok;
}

bool log_is_terminal(void) {
    return atomic_load(&sink_fn) == NULL && isatty(atomic_load(&log_fd));
}

void log_set_level(enum log_level level) {
    atomic_store(&log_threshold, (int)level);
}

enum log_level log_get_level(void) {
    return (enum log_level)atomic_load(&log_threshold);
}

void log_syslog(const char *ident, int facility) {
    openlog(ident, LOG_PID | LOG_NDELAY, facility);
    atomic_store(&to_syslog, true);
}

void log_set_role(char role) {
    atomic_store(&log_role, role);
}

void log_set_sink(log_sink_fn fn, void *arg) {
    atomic_store(&sink_fn, (log_sink_fn)NULL);
    atomic_store(&sink_arg, arg);
    atomic_store(&sink_fn, fn);
}

static size_t write_prefix(char *line, size_t cap, enum log_level level) {
    static const char marks[] = {'.', '-', '*', '#'};
    struct timespec now;
    struct tm tm;
    char date[64];
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &tm);
    strftime(date, sizeof(date), "%d %b %Y %H:%M:%S", &tm);
    int n = snprintf(line, cap, "%d:%c %s.%03d %c ", (int)getpid(), atomic_load(&log_role), date,
                     (int)(now.tv_nsec / 1000000), marks[level]);
    return (size_t)n;
}

/* Messages quote keys, paths and peers' texts: none of them may forge a line of its own. */
static void defuse_controls(char *s, size_t len) {
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f) s[i] = ' ';
    }
}

/* --- the last lines --- */

static struct {
    pthread_mutex_t mutex;
    struct log_line *line; /* a ring */
    size_t lines;
    uint64_t next; /* place, modulo lines; those before it are filled */
    uint64_t last; /* number */
} kept = {.mutex = PTHREAD_MUTEX_INITIALIZER};
static atomic_bool keeps;

void log_keep(size_t lines) {
    pthread_mutex_lock(&kept.mutex);
    free(kept.line);
    kept.line = lines > 0 ? xcalloc(lines, sizeof(*kept.line)) : NULL;
    kept.lines = lines;
    kept.next = kept.last = 0;
    atomic_store(&keeps, lines > 0);
    pthread_mutex_unlock(&kept.mutex);
}

/* "/a/src/cluster/node.c" is cluster/node. */
static void name_origin(char *out, size_t cap, const char *file) {
    const char *slash = strrchr(file, '/'), *begin = slash;
    while (begin != NULL && begin > file && begin[-1] != '/') begin--;
    snprintf(out, cap, "%s", begin != NULL ? begin : file);
    char *dot = strrchr(out, '.');
    if (dot != NULL) *dot = '\0';
}

/* A crash's last words come from a signal handler: they do not wait. */
static void line_keep(const char *file, enum log_level level, const char *text) {
    if (pthread_mutex_trylock(&kept.mutex) != 0) return;
    if (kept.lines > 0) {
        struct log_line *l = kept.next > 0 ? &kept.line[(kept.next - 1) % kept.lines] : NULL;
        bool same =
            l != NULL && l->level == level && strncmp(l->text, text, sizeof(l->text) - 1) == 0;
        if (!same) {
            l = &kept.line[kept.next++ % kept.lines];
            l->times = 0;
        }
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        l->times++;
        l->number = ++kept.last;
        l->wall_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
        l->level = level;
        name_origin(l->from, sizeof(l->from), file);
        snprintf(l->text, sizeof(l->text), "%.*s", (int)sizeof(l->text) - 1, text);
    }
    pthread_mutex_unlock(&kept.mutex);
}

size_t log_kept(uint64_t since, struct log_line *out, size_t max) {
    size_t n = 0;
    pthread_mutex_lock(&kept.mutex);
    if (since > kept.last) since = 0;
    for (uint64_t i = kept.next - min_u64(kept.next, kept.lines); i < kept.next && n < max; i++) {
        const struct log_line *l = &kept.line[i % kept.lines];
        if (l->number > since) out[n++] = *l;
    }
    pthread_mutex_unlock(&kept.mutex);
    return n;
}

/* --- lines --- */

void log_write_from(const char *file, enum log_level level, const char *fmt, ...) {
    bool shown = (int)level >= atomic_load_explicit(&log_threshold, memory_order_relaxed);
    bool stays = level >= LOG_LEVEL_NOTICE && atomic_load_explicit(&keeps, memory_order_relaxed);
    if (level >= LOG_LEVEL_NOTHING || !(shown || stays)) return;
    int saved = errno;
    char line[LINE_MAX_BYTES];
    log_sink_fn sink = atomic_load(&sink_fn);
    size_t start = sink != NULL ? 0 : write_prefix(line, sizeof(line), level);

    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line + start, sizeof(line) - start - 1, fmt, ap);
    va_end(ap);
    size_t len = start;
    if (n > 0) {
        size_t room = sizeof(line) - start - 2;
        len += (size_t)n < room ? (size_t)n : room;
    }
    defuse_controls(line + start, len - start);
    line[len] = '\0';
    if (stays) line_keep(file, level, line + start);

    if (!shown) {
        errno = saved;
        return;
    }
    if (sink != NULL) {
        sink(atomic_load(&sink_arg), level, line);
    } else {
        static const int priorities[] = {LOG_DEBUG, LOG_INFO, LOG_NOTICE, LOG_WARNING};
        if (atomic_load(&to_syslog))
            syslog(priorities[level], "%.*s", (int)(len - start), line + start);
        line[len++] = '\n';
        ssize_t rc;
        do rc = write(atomic_load_explicit(&log_fd, memory_order_relaxed), line, len);
        while (rc < 0 && errno == EINTR);
    }
    errno = saved;
}
