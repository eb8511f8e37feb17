/* The thread's last error, the texts of statuses, and where log lines of a library go. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "client/client.h"
#include "client/error.h"

static _Thread_local char last_error[1024];

tarn_status fail(tarn_status status, const char *fmt, ...) {
    char text[sizeof(last_error)]; /* fmt's arguments may quote the last error itself */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    memcpy(last_error, text, sizeof(text));
    return status;
}

tarn_status check_ranges(const struct option_range *ranges, size_t n, const char *init) {
    for (const struct option_range *r = ranges; r < ranges + n; r++) {
        char most[32] = "1 or more";
        if (r->value > 0 && r->value <= r->max) continue;
        if (r->max != UINT64_MAX) snprintf(most, sizeof(most), "1 to %" PRIu64, r->max);
        return fail(TARN_EINVAL, "option %s is %" PRIu64 ", and may be %s (%s sets the default)",
                    r->name, r->value, most, init);
    }
    return TARN_OK;
}

void init_sized(void *to, size_t size, const void *defaults, size_t known) {
    memset(to, 0, size);
    memcpy(to, defaults, size < known ? size : known);
    memcpy(to, &size, sizeof(size));
}

const char *tarn_last_error(void) {
    return last_error;
}

const char *tarn_strerror(int status) {
    return tarn_status_text((tarn_status)status);
}

const char *tarn_version(void) {
    return TARN_VERSION;
}

void tarn_free(void *memory) {
    free(memory);
}

static struct {
    void (*fn)(void *arg, int level, const char *text);
    void *arg;
} sink;
static pthread_mutex_t sink_mutex = PTHREAD_MUTEX_INITIALIZER;

static void stderr_line(const char *text) {
    char line[1024];
    int n = snprintf(line, sizeof(line), "libtarn: %s\n", text);
    if (n >= (int)sizeof(line)) n = sizeof(line) - 1;
    if (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0) return; /* nobody is left to tell */
}

static void forward(void *arg, enum log_level level, const char *text) {
    pthread_mutex_lock(&sink_mutex);
    void (*fn)(void *, int, const char *) = sink.fn;
    void *fn_arg = sink.arg;
    pthread_mutex_unlock(&sink_mutex);
    if (fn != NULL) {
        fn(fn_arg, (int)level, text);
        return;
    }
    if (level >= LOG_LEVEL_WARNING) stderr_line(text);
}

/* The library's own default shows warnings alone; what somebody has asked for is shown, too,
 * whatever the level of the log. */
void log_asked(const char *text) {
    pthread_mutex_lock(&sink_mutex);
    bool given = sink.fn != NULL;
    pthread_mutex_unlock(&sink_mutex);
    if (given)
        forward(NULL, LOG_LEVEL_NOTICE, text);
    else
        stderr_line(text);
}

static void install(void) {
    log_set_sink(forward, NULL);
}

void log_default_once(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}

void tarn_set_log(void (*fn)(void *arg, int level, const char *text), void *arg) {
    pthread_mutex_lock(&sink_mutex);
    sink.fn = fn;
    sink.arg = arg;
    pthread_mutex_unlock(&sink_mutex);
    log_default_once();
}
