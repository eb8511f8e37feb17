#include "base/figures.h"

#include "base/assert.h"

void figures_each(struct figure_walk *walk, const struct figure *table, const void *base,
                  size_t first, size_t last) {
    for (const struct figure *f = table; f->name != NULL; f++) {
        if (f->offset < first || f->offset > last) continue;
        const uint64_t *member = (const void *)((const char *)base + f->offset);
        walk->show(walk, f, figure_number(*member));
    }
}

void figures_group(struct figure_walk *walk, const char *group, const char *label,
                   const char *value) {
    TARN_ASSERT(walk->group == NULL);
    walk->group = group;
    walk->group_of = (struct figure_label){label, value};
    if (walk->edge != NULL) walk->edge(walk, true);
}

void figures_group_end(struct figure_walk *walk) {
    if (walk->edge != NULL) walk->edge(walk, false);
    walk->group = NULL;
    walk->group_of = (struct figure_label){NULL, NULL};
}

const struct figure_type_info figure_types[] = {
    [FIGURE_COUNTER] = {FIGURE_KIND_COUNTER, "", NULL},
    [FIGURE_COUNTER_BYTES] = {FIGURE_KIND_COUNTER, "bytes", NULL},
    [FIGURE_COUNTER_MS] = {FIGURE_KIND_COUNTER, "milliseconds", NULL},
    [FIGURE_COUNTER_US] = {FIGURE_KIND_COUNTER, "microseconds", NULL},
    [FIGURE_GAUGE] = {FIGURE_KIND_GAUGE, "", NULL},
    [FIGURE_BYTES] = {FIGURE_KIND_GAUGE, "bytes", NULL},
    [FIGURE_SIZE] = {FIGURE_KIND_GAUGE, "bytes", NULL},
    [FIGURE_SECONDS] = {FIGURE_KIND_GAUGE, "seconds", NULL},
    [FIGURE_MS] = {FIGURE_KIND_GAUGE, "milliseconds", NULL},
    [FIGURE_US] = {FIGURE_KIND_GAUGE, "microseconds", NULL},
    [FIGURE_COUNTER_CPU] = {FIGURE_KIND_COUNTER, "seconds", "%.6f"},
    [FIGURE_RATIO] = {FIGURE_KIND_GAUGE, "ratio", "%.2f"},
    [FIGURE_SHARE] = {FIGURE_KIND_GAUGE, "ratio", "%.4f"},
    [FIGURE_SETTING] = {FIGURE_KIND_GAUGE, "ratio", "%g"},
    [FIGURE_PERCENT] = {FIGURE_KIND_GAUGE, "percent", "%.2f%%"},
    [FIGURE_POINTS] = {FIGURE_KIND_GAUGE, "percent", "%.2f"},
    [FIGURE_KBPS] = {FIGURE_KIND_GAUGE, "kibibytes_per_second", "%.2f"},
    [FIGURE_MEAN] = {FIGURE_KIND_GAUGE, "", "%.1f"},
    [FIGURE_US_MEAN] = {FIGURE_KIND_GAUGE, "microseconds", "%.2f"},
    [FIGURE_QUANTILE] = {FIGURE_KIND_SUMMARY, "microseconds", "%.3f"},
    [FIGURE_TEXT] = {FIGURE_KIND_STATE, "", NULL},
    [FIGURE_HIST_NS] = {FIGURE_KIND_HISTOGRAM, "nanoseconds", NULL},
    [FIGURE_HIST_MS] = {FIGURE_KIND_HISTOGRAM, "milliseconds", NULL},
};

void figure_write(enum figure_type type, union figure_value value, struct buf *out) {
    const char *form = figure_types[type].form;
    if (type == FIGURE_TEXT)
        buf_append_str(out, value.text);
    else if (form != NULL)
        buf_printf(out, form, value.real);
    else
        buf_printf(out, "%lld", (long long)value.number);
}
