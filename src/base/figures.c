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

void figure_write(enum figure_unit unit, union figure_value value, struct buf *out) {
    switch (unit) {
    case FIGURE_NONE:
    case FIGURE_BYTES:
    case FIGURE_SIZE:
    case FIGURE_SECONDS:
    case FIGURE_MS:
    case FIGURE_US: buf_printf(out, "%lld", (long long)value.number); break;
    case FIGURE_RATIO:
    case FIGURE_POINTS:
    case FIGURE_KBPS:
    case FIGURE_US_MEAN: buf_printf(out, "%.2f", value.real); break;
    case FIGURE_SHARE: buf_printf(out, "%.4f", value.real); break;
    case FIGURE_SETTING: buf_printf(out, "%g", value.real); break;
    case FIGURE_PERCENT: buf_printf(out, "%.2f%%", value.real); break;
    case FIGURE_MEAN: buf_printf(out, "%.1f", value.real); break;
    case FIGURE_CPU: buf_printf(out, "%.6f", value.real); break;
    case FIGURE_US_LATENCY: buf_printf(out, "%.3f", value.real); break;
    case FIGURE_TEXT: buf_append_str(out, value.text); break;
    }
}
