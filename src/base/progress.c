#include "base/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

#define FIRST_MS    2000u /* of a log: what is over before is not worth a line */
#define TERMINAL_MS 1000u
#define LOG_MS      10000u
#define BAR_MS      100u
#define COLUMNS     79

void progress_log(struct progress *p, const char *what_fmt, ...) {
    *p = (struct progress){.began_ms = clock_mono_ms()};
    p->next_ms = p->began_ms + FIRST_MS;
    va_list ap;
    va_start(ap, what_fmt);
    vsnprintf(p->what, sizeof(p->what), what_fmt, ap);
    va_end(ap);
}

void progress_bar(struct progress *p, bool silent) {
    *p = (struct progress){.bar = true, .began_ms = clock_mono_ms()};
    p->silent = silent || !isatty(STDERR_FILENO);
    p->next_ms = p->began_ms + BAR_MS;
}

/* Who comes first says it. */
static bool is_due(struct progress *p, uint64_t now) {
    uint64_t next = __atomic_load_n(&p->next_ms, __ATOMIC_RELAXED);
    if (now < next) return false;
    uint64_t pace = p->bar ? BAR_MS : log_is_terminal() ? TERMINAL_MS : LOG_MS;
    return __atomic_compare_exchange_n(&p->next_ms, &next, now + pace, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED);
}

/* Behind the text: for how long, as soon as one can tell; in a log the share as well, which a bar
 * shows. */
static void say_left(const struct progress *p, double share, uint64_t now, bool alone, char *out,
                     size_t cap) {
    double left_s = share > 0 ? (double)(now - p->began_ms) * (1 - share) / share / 1000 : 0;
    int n = p->bar ? 0 : snprintf(out, cap, " (%u %%)", (unsigned)(share * 100));
    if (p->bar ? left_s * 1000 >= FIRST_MS : share > 0)
        snprintf(out + n, cap - (size_t)n, "%sabout %.0f s left", alone ? "" : ", ", left_s + 0.5);
}

static void show_bar(double share, const char *text) {
    static const char full[] = "##############################",
                      empty[] = "..............................";
    enum { LENGTH = 30, BEFORE_TEXT = LENGTH + 10 };
    int done = (int)(share * LENGTH);
    fprintf(stderr, "\r[%.*s%.*s] %3.0f %%  %.*s\033[K", done, full, LENGTH - done, empty,
            share * 100, COLUMNS - BEFORE_TEXT, text);
    fflush(stderr);
}

void progress_say(struct progress *p, uint64_t done, uint64_t total, const char *fmt, ...) {
    uint64_t now = clock_mono_ms();
    if (p->silent || !is_due(p, now)) return;
    char text[128], left[64] = "";
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    double share = total == 0 ? 0 : done < total ? (double)done / (double)total : 1;
    if (total > 0) say_left(p, share, now, p->bar && n <= 0, left, sizeof(left));
    if (!p->bar) {
        log_notice("%s: %s%s", p->what, text, left);
        return;
    }
    char whole[sizeof(text) + sizeof(left)];
    snprintf(whole, sizeof(whole), "%s%s", text, left);
    show_bar(share, whole);
    p->shown = true;
}

void progress_end(struct progress *p) {
    if (p->shown) fputs("\r\033[K", stderr);
    p->shown = false;
}
