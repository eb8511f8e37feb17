/* LATENCY: what the latency monitor has noted (latency.h), and the histograms per command. */
#include <stdio.h>
#include <string.h>
#include "base/assert.h"
#include "config/config.h"
#include "front/families.h"
#include "front/latency.h"
#include "front/table.h"

/* --- samples --- */

void cmd_latency_history(struct client *c) {
    const struct latency_series *s = latency_find(c->argv[2]);
    size_t n = s != NULL ? s->n : 0;
    reply_array(c, n);
    for (size_t i = 0; i < n; i++) {
        struct latency_sample sample = latency_sample(s, i);
        reply_array(c, 2);
        reply_int(c, (int64_t)sample.wall_s);
        reply_int(c, (int64_t)sample.ms);
    }
}

void cmd_latency_latest(struct client *c) {
    size_t n = 0;
    for (unsigned e = 0; e < LATENCY_EVENTS; e++) n += latency_series((enum latency_event)e)->n > 0;
    reply_array(c, n);
    for (unsigned e = 0; e < LATENCY_EVENTS; e++) {
        const struct latency_series *s = latency_series((enum latency_event)e);
        if (s->n == 0) continue;
        struct latency_sample last = latency_sample(s, s->n - 1);
        reply_array(c, 4);
        reply_bulk_str(c, s->name);
        reply_int(c, (int64_t)last.wall_s);
        reply_int(c, (int64_t)last.ms);
        reply_int(c, (int64_t)s->max_ms);
    }
}

void cmd_latency_reset(struct client *c) {
    int64_t n = 0;
    for (unsigned e = 0; c->argc == 2 && e < LATENCY_EVENTS; e++)
        n += latency_reset(latency_series((enum latency_event)e));
    for (size_t i = 2; i < c->argc; i++) {
        const struct latency_series *s = latency_find(c->argv[i]);
        if (s != NULL) n += latency_reset(s);
    }
    reply_int(c, n);
}

struct figures {
    uint64_t min_ms, max_ms, mean_ms, deviation_ms; /* the mean distance from the mean */
    uint64_t first_s;
};

static struct figures figures_of(const struct latency_series *s) {
    struct figures f = {.min_ms = UINT64_MAX, .first_s = latency_sample(s, 0).wall_s};
    uint64_t sum = 0, off = 0;
    for (size_t i = 0; i < s->n; i++) {
        uint64_t ms = latency_sample(s, i).ms;
        sum += ms;
        f.min_ms = min_u64(f.min_ms, ms);
        f.max_ms = max_u64(f.max_ms, ms);
    }
    f.mean_ms = sum / s->n;
    for (size_t i = 0; i < s->n; i++) {
        uint64_t ms = latency_sample(s, i).ms;
        off += ms > f.mean_ms ? ms - f.mean_ms : f.mean_ms - ms;
    }
    f.deviation_ms = off / s->n;
    return f;
}

/* --- GRAPH --- */

enum { GRAPH_COLUMNS = 80, GRAPH_ROWS = 4, AGE_CHARS = 4 };

/* "12s", "5m", "3h", "9d": how long ago that was. */
static void age_text(uint64_t wall_s, char text[AGE_CHARS + 1]) {
    static const struct {
        char unit;
        uint64_t s;
    } units[] = {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}};
    uint64_t now_s = turn.wall_ms / 1000, age = now_s > wall_s ? now_s - wall_s : 0;
    size_t u = 0;
    while (u + 1 < ARRAY_LEN(units) && age < units[u].s) u++;
    snprintf(text, AGE_CHARS + 1, "%u%c", (unsigned)min_u64(age / units[u].s, 999), units[u].unit);
}

/* A bar for each sample, the latest on the right, and below each how old it is, downwards. */
static void series_graph(const struct latency_series *s, struct buf *out) {
    size_t n = min_u64(s->n, GRAPH_COLUMNS);
    struct figures f = figures_of(s);
    buf_printf(out, "%s - high %llu ms, low %llu ms (all time high %llu ms)\n", s->name,
               (unsigned long long)f.max_ms, (unsigned long long)f.min_ms,
               (unsigned long long)s->max_ms);
    for (unsigned i = 0; i < GRAPH_COLUMNS; i++) buf_append_char(out, '-');
    buf_append_char(out, '\n');
    char ages[GRAPH_COLUMNS][AGE_CHARS + 1];
    unsigned height[GRAPH_COLUMNS];
    for (size_t i = 0; i < n; i++) {
        struct latency_sample sample = latency_sample(s, s->n - n + i);
        uint64_t range = f.max_ms - f.min_ms;
        height[i] =
            range == 0
                ? GRAPH_ROWS - 1
                : (unsigned)((double)(sample.ms - f.min_ms) / (double)range * (GRAPH_ROWS - 1));
        age_text(sample.wall_s, ages[i]);
    }
    for (unsigned row = GRAPH_ROWS; row-- > 0;) {
        for (size_t i = 0; i < n; i++)
            buf_append_char(out, height[i] > row   ? '#'
                                 : height[i] < row ? ' '
                                 : row == 0        ? '_'
                                                   : 'o');
        buf_append_char(out, '\n');
    }
    for (unsigned row = 0; row < AGE_CHARS; row++) {
        bool any = false;
        for (size_t i = 0; i < n; i++) any |= strlen(ages[i]) > row;
        if (!any) break;
        buf_append_char(out, '\n');
        for (size_t i = 0; i < n; i++)
            buf_append_char(out, strlen(ages[i]) > row ? ages[i][row] : ' ');
    }
    buf_append_char(out, '\n');
}

void cmd_latency_graph(struct client *c) {
    const struct latency_series *s = latency_find(c->argv[2]);
    if (s == NULL || s->n == 0) {
        reply_error(c, "No samples available for event '%.*s'", (int)min_u64(c->argv[2].len, 64),
                    c->argv[2].data != NULL ? c->argv[2].data : "");
        return;
    }
    struct buf out = {NULL, 0, 0};
    series_graph(s, &out);
    reply_verbatim(c, "txt", span_of(out.data, out.len));
    buf_free(&out);
}

/* --- DOCTOR --- */

/* What to do about it. */
static const char *const advice[LATENCY_EVENTS] = {
    [LATENCY_COMMAND] = "SLOWLOG GET tells which commands those were; KEYS, SAVE and DEBUG SLEEP "
                        "hold everybody up. If none of them is slow by itself, the machine has too "
                        "little CPU for this process, or it swaps.",
    [LATENCY_FAST_COMMAND] =
        "Commands that are always fast were slow: look for swapping, for a hypervisor that takes "
        "the CPU away, and for other processes on this machine.",
    [LATENCY_EXPIRE_CYCLE] = "Many keys expire at the same moment: spread their times, or lower "
                             "active-expire-effort or hz.",
    [LATENCY_EVICTION_CYCLE] =
        "A smaller eviction-ratio makes shorter passes, a lower loop-work-quota shorter slices.",
    [LATENCY_BOOKS_CYCLE] = "A lower loop-work-quota makes the slices of background work shorter.",
    [LATENCY_SNAPSHOT_CYCLE] = "Snapshots are written in slices: a lower loop-work-quota makes "
                               "them shorter, and dir may lie on a faster disk.",
    [LATENCY_AOF_WRITE] = "The disk of dir is slow to take what is appended.",
    [LATENCY_AOF_WRITE_PENDING_FSYNC] =
        "It was being synced meanwhile: appendfsync no, or a disk that syncs faster, helps.",
    [LATENCY_AOF_WRITE_ACTIVE_CHILD] = "A snapshot or a new append-only file was being written "
                                       "meanwhile: no-appendfsync-on-rewrite yes helps.",
    [LATENCY_AOF_WRITE_ALONE] =
        "Nothing else was writing there: the disk is shared with others, or too slow.",
    [LATENCY_AOF_FSYNC_ALWAYS] = "appendfsync always waits for the disk: everysec does not.",
    [LATENCY_AOF_RENAME] = "The file system of dir is slow.",
    [LATENCY_RDB_RENAME] = "The file system of dir is slow.",
};

static void series_diagnose(const struct latency_series *s, const char *what_to_do,
                            struct buf *out) {
    typedef unsigned long long ull;
    struct figures f = figures_of(s);
    uint64_t now_s = turn.wall_ms / 1000, span_s = now_s > f.first_s ? now_s - f.first_s : 1;
    buf_printf(out,
               "* %s: %zu latency spikes (average %llums, mean deviation %llums, period %.2f sec). "
               "Worst all time event %llums.\n  %s\n",
               s->name, s->n, (ull)f.mean_ms, (ull)f.deviation_ms, (double)span_s / (double)s->n,
               (ull)s->max_ms, what_to_do);
}

void cmd_latency_doctor(struct client *c) {
    struct buf out = {NULL, 0, 0};
    bool off = config->latency_monitor_threshold_ms == 0, any = false;
    for (unsigned e = 0; e < LATENCY_EVENTS; e++) {
        const struct latency_series *s = latency_series((enum latency_event)e);
        if (s->n > 0) series_diagnose(s, advice[e], &out);
        any |= s->n > 0;
    }
    if (off)
        buf_append_str(
            &out, "The latency monitor is off. CONFIG SET latency-monitor-threshold <milliseconds> "
                  "turns it on: 100 is a good start, lower if your clients mind less than that.\n");
    else if (!any)
        buf_printf(&out,
                   "Nothing held the server up for %lld ms or more since the monitor was turned on "
                   "or reset.\n",
                   (long long)config->latency_monitor_threshold_ms);
    reply_verbatim(c, "txt", span_of(out.data, out.len));
    buf_free(&out);
}

/* --- HISTOGRAM --- */

/* How many calls took up to 1, 2, 4, ... us: those bounds below which there are more than below the
 * one before. */
static void reply_histogram(struct client *c, const struct cmd_stat *stat) {
    size_t n = 0;
    uint64_t before = 0;
    reply_bulk_str(c, stat->name);
    reply_map(c, 2);
    reply_bulk_str(c, "calls");
    reply_int(c, (int64_t)stat->latency->count);
    reply_bulk_str(c, "histogram_usec");
    void *cookie = reply_deferred(c);
    for (uint64_t us = 1; before < stat->latency->count && us < UINT64_C(1) << 40; us *= 2) {
        uint64_t count = hist_count_upto(stat->latency, us * 1000);
        if (count == before) continue;
        reply_int(c, (int64_t)us);
        reply_int(c, (int64_t)count);
        before = count;
        n++;
    }
    reply_deferred_map(c, cookie, n);
}

static bool has_histogram(const struct cmd_stat *stat) {
    return stat->latency != NULL && stat->latency->count > 0;
}

/* A command and its subcommands. */
static size_t histograms_of(struct client *c, const struct cmd *cmd) {
    size_t n = 0;
    for (size_t i = 0; i < table_stat_count(); i++) {
        const struct cmd_stat *stat = table_stat_at(i);
        if ((stat->cmd != cmd && stat->parent != cmd) || !has_histogram(stat)) continue;
        reply_histogram(c, stat);
        n++;
    }
    return n;
}

void cmd_latency_histogram(struct client *c) {
    size_t n = 0;
    void *cookie = reply_deferred(c);
    for (size_t i = 0; c->argc == 2 && i < table_stat_count(); i++) {
        const struct cmd_stat *stat = table_stat_at(i);
        if (!has_histogram(stat)) continue;
        reply_histogram(c, stat);
        n++;
    }
    for (size_t i = 2; i < c->argc; i++) {
        const struct cmd *cmd = c->argv[i].data != NULL ? table_find_full(c->argv[i]) : NULL;
        if (cmd != NULL) n += histograms_of(c, cmd);
    }
    reply_deferred_map(c, cookie, n);
}
