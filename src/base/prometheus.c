#include "base/prometheus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/hist.h"

/* Which metric a figure is, found once: the same few come again for every segment and node. The
 * rest of it is what it was found by. */
enum { SEEN = 1024, SEEN_LEFT_OUT = -1 };
struct prometheus_seen {
    const struct figure *figure;
    char figure_name[48];
    const char *group, *of;
    int metric; /* or SEEN_LEFT_OUT */
    double scale;
};

struct prometheus_metric {
    char name[PROMETHEUS_NAME_MAX];
    size_t name_len;
    char *help;
    enum figure_kind kind;
    struct buf samples;
    bool plain; /* has a sample without labels */
};

/* --- names --- */

/* Units that names of INFO end in, and those that Prometheus wants; scale: from ours to theirs. */
static const struct unit {
    const char *ours, *theirs;
    double scale;
} units[] = {
    {"bytes", "bytes", 1},
    {"nanoseconds", "seconds", 1e-9},
    {"microseconds", "seconds", 1e-6},
    {"milliseconds", "seconds", 1e-3},
    {"seconds", "seconds", 1},
    {"ratio", "ratio", 1},
    {"percent", "ratio", 0.01},
    {"kibibytes_per_second", "bytes_per_second", 1024},
    {"", "", 1},
};

static const struct unit *unit_of(enum figure_type type) {
    const struct unit *u = units;
    while (strcmp(u->ours, figure_types[type].unit) != 0) {
        TARN_ASSERT(u->ours[0] != '\0');
        u++;
    }
    return u;
}

/* "as expired": another figure under Redis' name. */
static bool is_second_name(const char *help) {
    return strncmp(help, "as ", 3) == 0 && strpbrk(help + 3, " ,.") == NULL;
}

static bool is_left_out(const struct figure *f) {
    return strncmp(f->help, "always ", 7) == 0 || is_second_name(f->help) ||
           figure_types[f->type].kind == FIGURE_KIND_SUMMARY ||
           strncmp(f->name, "instantaneous_", 14) == 0 || /* rate() does it better */
           strcmp(f->name, "uptime_in_days") == 0 || strcmp(f->name, "arch_bits") == 0;
}

static size_t name_cut(const char *name, size_t len, const char *ending) {
    size_t n = strlen(ending);
    bool ends = len > n && strncmp(name + len - n, ending, n) == 0;
    return ends ? len - n : len;
}

/* Without the unit that it says itself. */
static size_t name_stem(const char *name) {
    static const char *const endings[] = {"_in_milliseconds",
                                          "_in_seconds",
                                          "_milliseconds",
                                          "_seconds",
                                          "_bytes",
                                          "_sec",
                                          "_usec",
                                          "_us",
                                          "_ms",
                                          "_perc",
                                          "_percent",
                                          "_ratio",
                                          "_kbps",
                                          "_",
                                          NULL};
    size_t len = strlen(name);
    for (size_t i = 0; endings[i] != NULL; i++) {
        size_t cut = name_cut(name, len, endings[i]);
        if (cut != len) return cut;
    }
    return len;
}

void prometheus_name(const struct figure *figure, const char *group, const char *of,
                     char out[PROMETHEUS_NAME_MAX]) {
    const char *name = figure->name, *unit = unit_of(figure->type)->theirs;
    enum figure_kind kind = figure_types[figure->type].kind;
    out[0] = '\0';
    if (is_left_out(figure)) return;
    if (kind == FIGURE_KIND_COUNTER && strncmp(name, "total_", 6) == 0) name += 6;
    int len = snprintf(out, PROMETHEUS_NAME_MAX, "tarn_%s%s%.*s%s%s%s%s%s", group ? group : "",
                       group ? "_" : "", (int)name_stem(name), name, of ? "_by_" : "", of ? of : "",
                       unit[0] != '\0' ? "_" : "", unit,
                       kind == FIGURE_KIND_COUNTER ? "_total"
                       : kind == FIGURE_KIND_STATE ? "_info"
                                                   : "");
    if (len < 0 || (size_t)len >= PROMETHEUS_NAME_MAX) out[0] = '\0';
}

/* --- collecting --- */

static struct prometheus_metric *metric_get(struct prometheus *p, const char *name,
                                            const char *help, enum figure_kind kind) {
    /* In a group the next one is most often the one behind. */
    for (size_t k = 1; k <= p->n; k++) {
        size_t i = (p->last + k) % p->n;
        if (strcmp(p->metrics[i].name, name) != 0) continue;
        p->last = i;
        return p->metrics[i].kind == kind ? &p->metrics[i] : NULL;
    }
    p->last = p->n;
    if (p->n == p->cap) {
        p->cap = p->cap > 0 ? 2 * p->cap : 256;
        p->metrics = xrealloc(p->metrics, p->cap * sizeof(*p->metrics));
    }
    struct prometheus_metric *m = &p->metrics[p->n++];
    *m = (struct prometheus_metric){.kind = kind};
    snprintf(m->name, sizeof(m->name), "%s", name);
    m->name_len = strlen(m->name);
    m->help = xstrdup(help);
    return m;
}

static bool same_text(const char *a, const char *b) {
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* By the declaration, which may be one that a module makes up as it goes: so by its name, too. */
static struct prometheus_seen *seen_get(struct prometheus *p, const struct figure *figure) {
    const struct figure_walk *w = &p->walk;
    size_t at = ((uintptr_t)figure / sizeof(struct figure)) % SEEN;
    struct prometheus_seen *s = &p->seen[at];
    if (LIKELY(s->figure == figure && strcmp(s->figure_name, figure->name) == 0 &&
               same_text(s->group, w->group_of.name) && same_text(s->of, w->of.name)))
        return s;
    char name[PROMETHEUS_NAME_MAX];
    prometheus_name(figure, w->group_of.name, w->of.name, name);
    /* Labels' names are texts of the program's, as declarations are. */
    *s = (struct prometheus_seen){.figure = figure,
                                  .group = w->group_of.name,
                                  .of = w->of.name,
                                  .metric = SEEN_LEFT_OUT,
                                  .scale = unit_of(figure->type)->scale};
    snprintf(s->figure_name, sizeof(s->figure_name), "%s", figure->name);
    if (name[0] == '\0') return s;
    if (figure->type == FIGURE_TEXT && w->group != NULL) {
        s->metric = 0; /* of the group's */
        return s;
    }
    const struct prometheus_metric *m =
        metric_get(p, name, figure->help, figure_types[figure->type].kind);
    if (m != NULL) s->metric = (int)(m - p->metrics);
    return s;
}

/* A label's value, in which whatever a name or a text has stays inside its quotes. */
static void label_write(struct buf *out, const char *name, const char *value) {
    buf_append_str(out, name);
    buf_append(out, "=\"", 2);
    for (;;) {
        size_t plain = strcspn(value, "\\\"\n");
        buf_append(out, value, plain);
        value += plain;
        if (*value == '\0') break;
        buf_append_char(out, '\\');
        buf_append_char(out, *value == '\n' ? 'n' : *value);
        value++;
    }
    buf_append_char(out, '"');
}

/* {segment="3",state="up"}, with `more` as it is; nothing if there are none. */
static void labels_write(struct buf *out, const struct figure_walk *walk, const char *more) {
    const struct figure_label *all[] = {&walk->group_of, &walk->of};
    bool some = false;
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        if (all[i]->name == NULL) continue;
        buf_append_char(out, some ? ',' : '{');
        label_write(out, all[i]->name, all[i]->value);
        some = true;
    }
    if (more != NULL) buf_printf(out, "%c%s", some ? ',' : '{', more);
    if (some || more != NULL) buf_append_char(out, '}');
}

static void group_text(struct prometheus *p, const char *name, const char *text) {
    if (p->group.len > 0) buf_append_char(&p->group, ',');
    label_write(&p->group, name, text);
}

static void sample_int(struct buf *out, int64_t value) {
    char text[24] = " ";
    size_t len = 1 + i64_to_dec(value, text + 1);
    text[len++] = '\n';
    buf_append(out, text, len);
}

static void sample_number(struct buf *out, double scale, enum figure_type type,
                          union figure_value value) {
    if (figure_types[type].form != NULL)
        buf_printf(out, " %.15g\n", value.real * scale);
    else if (scale == 1)
        sample_int(out, (int64_t)value.number);
    else
        buf_printf(out, " %.15g\n", (double)(int64_t)value.number * scale);
}

static void metric_show(struct figure_walk *walk, const struct figure *figure,
                        union figure_value value) {
    struct prometheus *p = CONTAINER_OF(walk, struct prometheus, walk);
    bool text = figure->type == FIGURE_TEXT, labels = walk->group != NULL || walk->of.name != NULL;
    const struct prometheus_seen *s = seen_get(p, figure);
    if (s->metric == SEEN_LEFT_OUT) return;
    if (text && walk->group != NULL) {
        group_text(p, figure->name, value.text);
        return;
    }
    struct prometheus_metric *m = &p->metrics[s->metric];
    if (m->plain && !labels) return; /* told twice */
    m->plain |= !labels;
    buf_append(&m->samples, m->name, m->name_len);
    if (text) {
        buf_append_char(&m->samples, '{');
        label_write(&m->samples, figure->name, value.text);
        buf_append_str(&m->samples, "} 1\n");
        return;
    }
    labels_write(&m->samples, walk, NULL);
    sample_number(&m->samples, s->scale, figure->type, value);
}

/* How long keys live, in microseconds: a second to a week. */
static const uint64_t age_bounds_us[] = {
    1000000,        10000000,    60000000,    300000000,       900000000, 3600000000,
    4 * 3600000000, 43200000000, 86400000000, 7 * 86400000000, 0};

/* Durations with the bounds that users of the peers know. */
static void metric_hist(struct figure_walk *walk, const struct figure *figure,
                        const struct hist *hist) {
    struct prometheus *p = CONTAINER_OF(walk, struct prometheus, walk);
    double scale = unit_of(figure->type)->scale;
    char name[PROMETHEUS_NAME_MAX], le[32];
    prometheus_name(figure, walk->group_of.name, walk->of.name, name);
    struct prometheus_metric *m =
        name[0] != '\0' ? metric_get(p, name, figure->help, FIGURE_KIND_HISTOGRAM) : NULL;
    if (m == NULL) return;
    const uint64_t *us = figure->type == FIGURE_HIST_MS ? age_bounds_us : hist_latency_bounds_us;
    for (; *us != 0; us++) {
        uint64_t bound = (uint64_t)((double)*us * 1e-6 / scale);
        snprintf(le, sizeof(le), "le=\"%g\"", (double)*us * 1e-6);
        buf_printf(&m->samples, "%s_bucket", name);
        labels_write(&m->samples, walk, le);
        buf_printf(&m->samples, " %llu\n", (unsigned long long)hist_count_upto(hist, bound));
    }
    buf_printf(&m->samples, "%s_bucket", name);
    labels_write(&m->samples, walk, "le=\"+Inf\"");
    buf_printf(&m->samples, " %llu\n%s_sum", (unsigned long long)hist->count, name);
    labels_write(&m->samples, walk, NULL);
    buf_printf(&m->samples, " %.15g\n%s_count", (double)hist->sum * scale, name);
    labels_write(&m->samples, walk, NULL);
    buf_printf(&m->samples, " %llu\n", (unsigned long long)hist->count);
}

/* That of a group's texts; most often the one of the group before. */
static struct prometheus_metric *info_get(struct prometheus *p, const char *group) {
    char name[PROMETHEUS_NAME_MAX], help[64];
    snprintf(name, sizeof(name), "tarn_%s_info", group);
    snprintf(help, sizeof(help), "what each %s is", group);
    if (p->info >= p->n || strcmp(p->metrics[p->info].name, name) != 0) {
        const struct prometheus_metric *m = metric_get(p, name, help, FIGURE_KIND_STATE);
        if (m == NULL) return NULL;
        p->info = (size_t)(m - p->metrics);
    }
    return &p->metrics[p->info];
}

/* The texts of a group become one sample, in which they are labels. */
static void metric_edge(struct figure_walk *walk, bool begins) {
    struct prometheus *p = CONTAINER_OF(walk, struct prometheus, walk);
    const struct figure_label *of = &walk->group_of;
    if (begins || p->group.len == 0) {
        p->group.len = 0;
        return;
    }
    struct prometheus_metric *m = info_get(p, of->name);
    if (m != NULL) {
        buf_append(&m->samples, m->name, m->name_len);
        buf_append_char(&m->samples, '{');
        if (of->value[0] != '\0') { /* "": the group has no name of its own */
            label_write(&m->samples, of->name, of->value);
            buf_append_char(&m->samples, ',');
        }
        buf_append(&m->samples, p->group.data, p->group.len);
        buf_append_str(&m->samples, "} 1\n");
    }
    p->group.len = 0;
}

void prometheus_init(struct prometheus *p) {
    *p =
        (struct prometheus){.walk = {.show = metric_show, .edge = metric_edge, .hist = metric_hist},
                            .seen = xcalloc(SEEN, sizeof(struct prometheus_seen))};
}

void prometheus_deinit(struct prometheus *p) {
    for (size_t i = 0; i < p->n; i++) {
        free(p->metrics[i].help);
        buf_free(&p->metrics[i].samples);
    }
    free(p->metrics);
    free(p->seen);
    buf_free(&p->group);
    *p = (struct prometheus){0};
}

bool prometheus_write(struct prometheus *p, struct buf *out, size_t bytes) {
    static const char *const types[] = {[FIGURE_KIND_COUNTER] = "counter",
                                        [FIGURE_KIND_GAUGE] = "gauge",
                                        [FIGURE_KIND_STATE] = "gauge",
                                        [FIGURE_KIND_HISTOGRAM] = "histogram"};
    size_t began = out->len;
    while (p->written < p->n && out->len - began < bytes) {
        const struct prometheus_metric *m = &p->metrics[p->written++];
        buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", m->name, m->help, m->name, types[m->kind]);
        buf_append(out, m->samples.data, m->samples.len);
    }
    return p->written < p->n;
}
