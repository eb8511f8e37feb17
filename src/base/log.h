/* The process log. Lines look like Redis' ("PID:role date time level message") so that its tools
 * read them. Thread-safe: a line is one write(2). Never pass secrets. */
#ifndef TARN_BASE_LOG_H
#define TARN_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level {
    LOG_LEVEL_DEBUG,
    LOG_LEVEL_VERBOSE,
    LOG_LEVEL_NOTICE,
    LOG_LEVEL_WARNING,
    LOG_LEVEL_NOTHING
};

/* Where lines go: path NULL or "" is standard output. Reopened at each call (log rotation). false:
 * could not be opened, the old target stays, errno tells. */
bool log_open(const char *path);
/* Do lines go where somebody is looking? Not where a sink has them. */
bool log_is_terminal(void);
void log_set_level(enum log_level level);
enum log_level log_get_level(void);
/* Lines go to syslog(3), too: ident (kept, borrowed) names the program, facility is LOG_LOCAL0 and
 * the like. */
void log_syslog(const char *ident, int facility);
/* The role letter of the line: 'M' master, 'S' replica, 'C' client, 'N' node. */
void log_set_role(char role);
/* Libraries send lines to their host program instead: fn gets level and the message without
 * decoration. NULL resets. */
typedef void (*log_sink_fn)(void *arg, enum log_level level, const char *message);
void log_set_sink(log_sink_fn fn, void *arg);

/* The last lines of level notice and above, whatever the level of the log is: for who comes and
 * asks what has happened. As many as log_keep has said last, which forgets those before; none at
 * first. Any thread. */
struct log_line {
    uint64_t number; /* from 1 on; what is said again right away is one line, with a new number */
    uint64_t wall_ms;
    uint32_t times; /* that it was said in a row */
    enum log_level level;
    char from[24]; /* who said it: "cluster/node" is src/cluster/node.c */
    char text[240];
};
void log_keep(size_t lines);
/* Those above a number, the oldest first, at most max of them; a number that was not given yet is
 * of a process before: all. Returns how many. */
size_t log_kept(uint64_t since, struct log_line *out, size_t max);

void log_write_from(const char *file, enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
#define log_write(...) log_write_from(__FILE__, __VA_ARGS__)

#define log_debug(...)   log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define log_verbose(...) log_write(LOG_LEVEL_VERBOSE, __VA_ARGS__)
#define log_notice(...)  log_write(LOG_LEVEL_NOTICE, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)

/* A trouble that comes again and again is told of once. true: it is news, for it was quiet for a
 * while; *last_ms (0 at first) remembers. */
static inline bool log_is_news(uint64_t *last_ms, uint64_t now_ms) {
    bool news = *last_ms == 0 || now_ms - *last_ms >= 10000;
    *last_ms = now_ms;
    return news;
}

#endif
