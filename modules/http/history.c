#include "http/history.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"

/* Of which figures a series is the sum, and what is made of it. A program that shows some of them
 * has the sum of these: a node has memory of its own where a server has its pool. */
enum series_kind {
    SERIES_RATE,   /* of counters: a second's worth */
    SERIES_GAUGE,  /* as it is; a minute's mean */
    SERIES_LOWEST, /* as it is; a minute's lowest: what was away for a second is seen */
    SERIES_SHARE,  /* of counters: the first of both */
    SERIES_P50,    /* milliseconds, of the histograms that latency_of names */
    SERIES_P99,
};

static const struct series {
    const char *name;
    enum series_kind kind;
    const char *of[3]; /* figures; with a label, "nodes_up" */
    unsigned latency;
} series_table[] = {
    {"hit_ratio", SERIES_SHARE, {"hits", "misses"}, 0},
    {"hits", SERIES_RATE, {"hits"}, 0},
    {"misses", SERIES_RATE, {"misses"}, 0},
    {"misses_never", SERIES_RATE, {"misses_never"}, 0},
    {"misses_evicted", SERIES_RATE, {"misses_evicted"}, 0},
    {"misses_expired", SERIES_RATE, {"misses_expired"}, 0},
    {"misses_removed", SERIES_RATE, {"misses_removed"}, 0},
    {"misses_away", SERIES_RATE, {"misses_away"}, 0},
    {"misses_gap", SERIES_RATE, {"misses_gap"}, 0},
    {"evictions", SERIES_RATE, {"evicted_objects"}, 0},
    {"evictions_put", SERIES_RATE, {"evictions_put"}, 0},
    {"evictions_watermark", SERIES_RATE, {"evictions_watermark"}, 0},
    {"evictions_quota", SERIES_RATE, {"evictions_quota"}, 0},
    {"evictions_command", SERIES_RATE, {"evictions_command"}, 0},
    {"evictions_maxmemory", SERIES_RATE, {"evictions_maxmemory"}, 0},
    {"puts", SERIES_RATE, {"put_ends"}, 0},
    {"failed_puts", SERIES_RATE, {"put_nospace", "put_timeouts"}, 0},
    {"ops", SERIES_RATE, {"total_commands_processed"}, 0},
    {"bytes_in", SERIES_RATE, {"total_net_input_bytes", "data_bytes_written"}, 0},
    {"bytes_out", SERIES_RATE, {"total_net_output_bytes", "data_bytes_read"}, 0},
    {"data_reads", SERIES_RATE, {"data_reads"}, 0},
    {"data_writes", SERIES_RATE, {"data_writes"}, 0},
    {"disk_size", SERIES_GAUGE, {"disk_size"}, 0},
    {"disk_used", SERIES_GAUGE, {"disk_used"}, 0},
    {"pool_size", SERIES_GAUGE, {"pool_size", "lent_memory"}, 0},
    {"pool_used", SERIES_GAUGE, {"pool_used", "lent_memory_used"}, 0},
    {"pool_free", SERIES_GAUGE, {"pool_free"}, 0},
    {"objects", SERIES_GAUGE, {"objects"}, 0},
    {"nodes_up", SERIES_LOWEST, {"nodes_up"}, 0},
    {"clients", SERIES_GAUGE, {"connected_clients"}, 0},
    {"route_decisions", SERIES_RATE, {"route_decisions"}, 0},
    {"route_refused", SERIES_RATE, {"route_overloaded", "route_over_share", "route_unserved"}, 0},
    {"route_prompt", SERIES_RATE, {"route_prompt_tokens"}, 0},
    {"route_device", SERIES_RATE, {"route_device_tokens"}, 0},
    {"route_host", SERIES_RATE, {"route_host_tokens"}, 0},
    {"route_disk", SERIES_RATE, {"route_disk_tokens"}, 0},
    {"route_ahead", SERIES_RATE, {"route_ahead_tokens"}, 0},
    {"route_session", SERIES_RATE, {"route_session_tokens"}, 0},
    {"route_load", SERIES_RATE, {"route_load_tokens"}, 0},
    {"route_fetch", SERIES_RATE, {"route_fetch_tokens"}, 0},
    {"get_p50_ms", SERIES_P50, {NULL}, 0},
    {"get_p99_ms", SERIES_P99, {NULL}, 0},
    {"put_p50_ms", SERIES_P50, {NULL}, 1},
    {"put_p99_ms", SERIES_P99, {NULL}, 1},
    {"data_read_p50_ms", SERIES_P50, {NULL}, 2},
    {"data_read_p99_ms", SERIES_P99, {NULL}, 2},
    {"data_write_p50_ms", SERIES_P50, {NULL}, 3},
    {"data_write_p99_ms", SERIES_P99, {NULL}, 3},
};
enum { SERIES = sizeof(series_table) / sizeof(series_table[0]), PARTS = 3, LATENCIES = 4 };

/* The histograms of each kind of latency: the commands that a cache's clients send, and what hosts
 * serve themselves. */
static const struct {
    const char *figure, *label;
    const char *values[8];
} latency_of[LATENCIES] = {
    {"duration", "command", {"get", "mget", "getrange", "getreplicas", "mgetreplicas"}},
    {"duration", "command", {"set", "mset", "putstart", "putend", "mputstart", "mputend"}},
    {"read_duration", "transport", {"tcp"}},
    {"write_duration", "transport", {"tcp"}},
};

struct latencies {
    struct hist now, last, minute;
};

struct history {
    struct figure_walk walk;
    bool seen[SERIES][PARTS], known[SERIES][PARTS];
    double now[SERIES][PARTS], last[SERIES][PARTS];
    uint64_t last_ms; /* of the sample before */
    bool any;
    uint64_t slot[2]; /* the newest of each step, in steps since mono_ms was 0 */
    uint64_t end_ms[2];
    uint64_t filled[2]; /* slots since the first sample, at most those of the ring */
    /* of the minute that is under way */
    double sum[SERIES][PARTS];
    unsigned samples[SERIES];
    double seconds[SERIES];
    struct latencies latency[LATENCIES];
    float second[SERIES][HISTORY_SECONDS], minute[SERIES][HISTORY_MINUTES];
};

static const uint64_t step_ms[] = {[HISTORY_SECOND] = 1000, [HISTORY_MINUTE] = 60000};
static const uint64_t step_slots[] = {
    [HISTORY_SECOND] = HISTORY_SECONDS, [HISTORY_MINUTE] = HISTORY_MINUTES};

static float *history_point(struct history *h, enum history_step step, unsigned s, uint64_t slot) {
    return step == HISTORY_SECOND ? &h->second[s][slot % HISTORY_SECONDS]
                                  : &h->minute[s][slot % HISTORY_MINUTES];
}

static bool figure_has_fraction(enum figure_type type) {
    return figure_types[type].form != NULL;
}

/* Figures of a group are of one segment or command: only sums of all are kept here. */
static void history_show(struct figure_walk *walk, const struct figure *figure,
                         union figure_value value) {
    struct history *h = (struct history *)walk;
    if (walk->group != NULL || figure->type == FIGURE_TEXT) return;
    size_t len = strlen(figure->name);
    double number = figure_has_fraction(figure->type) ? value.real : (double)(int64_t)value.number;
    for (unsigned s = 0; s < SERIES; s++) {
        for (unsigned i = 0; i < PARTS && series_table[s].of[i] != NULL; i++) {
            const char *of = series_table[s].of[i];
            if (strncmp(of, figure->name, len) != 0) continue;
            if (strcmp(of + len, walk->of.value != NULL ? walk->of.value : "") != 0) continue;
            h->now[s][i] = number;
            h->seen[s][i] = true;
        }
    }
}

static void history_show_hist(struct figure_walk *walk, const struct figure *figure,
                              const struct hist *hist) {
    struct history *h = (struct history *)walk;
    const struct figure_label *of = &walk->group_of;
    if (figure->type != FIGURE_HIST_NS || of->name == NULL) return;
    for (unsigned i = 0; i < LATENCIES; i++) {
        if (strcmp(latency_of[i].figure, figure->name) != 0) continue;
        if (strcmp(latency_of[i].label, of->name) != 0) continue;
        for (unsigned v = 0; latency_of[i].values[v] != NULL; v++) {
            if (strcmp(latency_of[i].values[v], of->value) != 0) continue;
            hist_merge(&h->latency[i].now, hist);
        }
    }
}

struct history *history_create(void) {
    struct history *h = xcalloc(1, sizeof(*h));
    h->walk.show = history_show;
    h->walk.hist = history_show_hist;
    for (unsigned s = 0; s < SERIES; s++) {
        for (unsigned i = 0; i < HISTORY_SECONDS; i++) h->second[s][i] = NAN;
        for (unsigned i = 0; i < HISTORY_MINUTES; i++) h->minute[s][i] = NAN;
    }
    return h;
}

void history_destroy(struct history **h_p) {
    free(*h_p);
    *h_p = NULL;
}

size_t history_size(void) {
    return sizeof(struct history);
}

void history_begin(struct history *h) {
    memset(h->seen, 0, sizeof(h->seen));
    for (unsigned i = 0; i < LATENCIES; i++) {
        hist_init(&h->latency[i].now);
    }
}

struct figure_walk *history_walk(struct history *h) {
    return &h->walk;
}

/* What `now` has beyond `last`. false: it is not a later one. */
static bool hist_subtract(const struct hist *now, const struct hist *last, struct hist *diff_p) {
    hist_init(diff_p);
    if (now->count < last->count || now->sum < last->sum) return false;
    for (unsigned b = 0; b < HIST_BUCKETS; b++) {
        if (now->bucket[b] < last->bucket[b]) return false;
        diff_p->bucket[b] = now->bucket[b] - last->bucket[b];
    }
    diff_p->count = now->count - last->count;
    diff_p->sum = now->sum - last->sum;
    diff_p->min = now->min;
    diff_p->max = now->max;
    return true;
}

static double hist_quantile_ms(const struct hist *h, enum series_kind kind) {
    if (h->count == 0) return NAN;
    return (double)hist_percentile(h, kind == SERIES_P50 ? 0.5 : 0.99) / 1e6;
}

static double share_of(const double part[PARTS]) {
    return part[0] + part[1] > 0 ? part[0] / (part[0] + part[1]) : NAN;
}

/* The latencies of this second, and into those of the minute. */
static void history_take_latency(struct history *h, unsigned i, uint64_t slot) {
    struct latencies *l = &h->latency[i];
    struct hist diff;
    /* A command that nobody has called has no histogram: that is an empty one. */
    bool later = h->any && hist_subtract(&l->now, &l->last, &diff);
    if (later) hist_merge(&l->minute, &diff);
    for (unsigned s = 0; s < SERIES; s++) {
        enum series_kind kind = series_table[s].kind;
        if ((kind != SERIES_P50 && kind != SERIES_P99) || series_table[s].latency != i) continue;
        *history_point(h, HISTORY_SECOND, s, slot) =
            later ? (float)hist_quantile_ms(&diff, kind) : NAN;
    }
    l->last = l->now;
}

/* A gauge of this second. */
static double history_take_gauge(struct history *h, unsigned s) {
    double sum = 0;
    bool any = false;
    for (unsigned i = 0; i < PARTS && series_table[s].of[i] != NULL; i++) {
        any |= h->seen[s][i];
        if (h->seen[s][i]) sum += h->now[s][i];
    }
    if (!any) return NAN;
    bool lowest = series_table[s].kind == SERIES_LOWEST;
    if (!lowest)
        h->sum[s][0] += sum;
    else if (h->samples[s] == 0 || sum < h->sum[s][0])
        h->sum[s][0] = sum;
    h->samples[s]++;
    return sum;
}

/* What counters have grown by: their rate, or their share. */
static double history_take_growth(struct history *h, unsigned s, double seconds) {
    double part[PARTS] = {0}, sum = 0;
    bool whole = true, any = false;
    for (unsigned i = 0; i < PARTS && series_table[s].of[i] != NULL; i++) {
        if (!h->seen[s][i] && !h->known[s][i]) continue;
        part[i] = h->now[s][i] - h->last[s][i];
        if (!h->seen[s][i] || !h->known[s][i] || part[i] < 0) whole = false;
        any = true;
        sum += part[i];
        h->known[s][i] = h->seen[s][i];
        h->last[s][i] = h->now[s][i];
    }
    if (!whole || !any || seconds <= 0) return NAN;
    for (unsigned i = 0; i < PARTS; i++) h->sum[s][i] += part[i];
    h->seconds[s] += seconds;
    h->samples[s]++;
    return series_table[s].kind == SERIES_SHARE ? share_of(part) : sum / seconds;
}

static double history_minute_of(const struct history *h, unsigned s) {
    const double *sum = h->sum[s];
    enum series_kind kind = series_table[s].kind;
    if (kind == SERIES_P50 || kind == SERIES_P99)
        return hist_quantile_ms(&h->latency[series_table[s].latency].minute, kind);
    if (h->samples[s] == 0) return NAN;
    if (kind == SERIES_SHARE) return share_of(sum);
    if (kind == SERIES_RATE) return (sum[0] + sum[1] + sum[2]) / h->seconds[s];
    return kind == SERIES_LOWEST ? sum[0] : sum[0] / h->samples[s];
}

static void history_new_minute(struct history *h) {
    memset(h->sum, 0, sizeof(h->sum));
    memset(h->samples, 0, sizeof(h->samples));
    memset(h->seconds, 0, sizeof(h->seconds));
    for (unsigned i = 0; i < LATENCIES; i++) hist_init(&h->latency[i].minute);
}

/* Moves on to `slot`; those on the way there have no values. */
static void history_advance(struct history *h, enum history_step step, uint64_t slot) {
    uint64_t gone = h->any ? slot - h->slot[step] : 1;
    uint64_t clear = gone < step_slots[step] ? gone : step_slots[step];
    for (unsigned s = 0; s < SERIES; s++) {
        for (uint64_t i = 0; i < clear; i++) *history_point(h, step, s, slot - i) = NAN;
    }
    h->filled[step] += gone;
    if (h->filled[step] > step_slots[step]) h->filled[step] = step_slots[step];
    h->slot[step] = slot;
}

void history_end(struct history *h, uint64_t mono_ms, uint64_t wall_ms) {
    /* A slot's number must not go below 0 where slots before it are cleared. */
    uint64_t slot = mono_ms / step_ms[HISTORY_SECOND] + HISTORY_SECONDS;
    uint64_t minute = mono_ms / step_ms[HISTORY_MINUTE] + HISTORY_MINUTES;
    TARN_ASSERT(!h->any || mono_ms >= h->last_ms);
    if (h->any && slot == h->slot[HISTORY_SECOND]) return; /* this second has its sample */
    if (!h->any || minute != h->slot[HISTORY_MINUTE]) {
        history_new_minute(h);
        history_advance(h, HISTORY_MINUTE, minute);
    }
    history_advance(h, HISTORY_SECOND, slot);
    double seconds = h->any ? (double)(mono_ms - h->last_ms) / 1000 : 0;
    for (unsigned i = 0; i < LATENCIES; i++) history_take_latency(h, i, slot);
    for (unsigned s = 0; s < SERIES; s++) {
        enum series_kind kind = series_table[s].kind;
        if (kind == SERIES_RATE || kind == SERIES_SHARE)
            *history_point(h, HISTORY_SECOND, s, slot) = (float)history_take_growth(h, s, seconds);
        else if (kind == SERIES_GAUGE || kind == SERIES_LOWEST)
            *history_point(h, HISTORY_SECOND, s, slot) = (float)history_take_gauge(h, s);
        *history_point(h, HISTORY_MINUTE, s, minute) = (float)history_minute_of(h, s);
    }
    h->any = true;
    h->last_ms = mono_ms;
    h->end_ms[HISTORY_SECOND] = h->end_ms[HISTORY_MINUTE] = wall_ms;
}

void history_ask(const struct history *h, enum history_step step, uint64_t since_ms,
                 struct history_answer *answer_p) {
    uint64_t points = h->filled[step], end_ms = h->end_ms[step];
    if (since_ms >= end_ms) {
        points = 0;
    } else if (since_ms != 0) {
        uint64_t wanted = (end_ms - since_ms + step_ms[step] - 1) / step_ms[step];
        if (wanted < points) points = wanted;
    }
    *answer_p = (struct history_answer){
        .step = step,
        .first = h->slot[step] + 1 - points,
        .end = h->slot[step] + 1,
        .end_ms = end_ms,
    };
}

bool history_write(const struct history *h, struct history_answer *answer, struct buf *out) {
    enum history_step step = answer->step;
    unsigned s = answer->series++;
    TARN_ASSERT(s < SERIES);
    if (s == 0) {
        buf_printf(out, "{\"step_ms\":%llu,\"end_ms\":%llu,\"last\":%llu,\"series\":{",
                   (unsigned long long)step_ms[step], (unsigned long long)answer->end_ms,
                   (unsigned long long)answer->end - 1);
    }
    buf_printf(out, "%s\"%s\":[", s == 0 ? "" : ",", series_table[s].name);
    for (uint64_t slot = answer->first; slot < answer->end; slot++) {
        float v = *history_point((struct history *)h, step, s, slot);
        if (slot != answer->first) buf_append_char(out, ',');
        if (isnan(v) || slot + step_slots[step] <= h->slot[step])
            buf_append_str(out, "null");
        else
            buf_printf(out, "%.7g", (double)v);
    }
    buf_append_char(out, ']');
    if (answer->series < SERIES) return true;
    buf_append_str(out, "}}");
    return false;
}
