#include "module/events.h"

#include <stdio.h>
#include <string.h>
#include "base/assert.h"
#include "base/log.h"

enum { EVENTS_A_CALL = 64 };

/* What a line is about, by who said it; the first that fits. */
static const char *event_kind(const char *from) {
    static const struct {
        const char *begin, *kind;
    } kinds[] = {{"cluster/", "nodes"},
                 {"hosting/", "nodes"},
                 {"commands/alarms", "alarms"},
                 {"commands/config", "settings"},
                 {"config/", "settings"},
                 {"ha/persistence", "files"},
                 {"persist/", "files"},
                 {"ha/", "roles"},
                 {"repl/", "roles"},
                 {"module/", "modules"},
                 {"front/modules", "modules"},
                 {"front/", "clients"},
                 {"inband/", "values"},
                 {"engine/", "values"}};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (strncmp(from, kinds[i].begin, strlen(kinds[i].begin)) == 0) return kinds[i].kind;
    return "server";
}

enum tarn_rows module_events_next(uint64_t *from, struct figure_walk *f) {
    struct log_line lines[EVENTS_A_CALL];
    size_t n = log_kept(*from, lines, EVENTS_A_CALL);
    for (size_t i = 0; i < n; i++) {
        const struct log_line *l = &lines[i];
        char number[24];
        snprintf(number, sizeof(number), "%llu", (unsigned long long)l->number);
        figures_group(f, "event", "event", number);
        FIGURE(f, MS, time, "since 1970", l->wall_ms);
        FIGURE(f, TEXT, level, "notice, warning",
               l->level == LOG_LEVEL_WARNING ? "warning" : "notice");
        FIGURE(f, TEXT, kind, "what it is about", event_kind(l->from));
        FIGURE(f, GAUGE, times, "that it was said in a row", l->times);
        FIGURE(f, TEXT, text, "as the log has it", (const char *)l->text);
        figures_group_end(f);
        *from = l->number;
    }
    return n == EVENTS_A_CALL ? TARN_ROWS_MORE : TARN_ROWS_OVER;
}
