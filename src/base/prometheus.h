/* Figures as Prometheus' text format 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats):
 * a walk that collects, and the page of what was collected, each metric with its HELP and TYPE and
 * all its samples together.
 *
 * A metric is called tarn_, the group's label ("segment"), the figure's name, its base unit (bytes,
 * seconds, ratio), and _total if it counts: tarn_segment_size_bytes{segment="3"}. Figures that
 * differ in a label have NAME_by_LABEL. Texts of a group become labels of tarn_GROUP_info, other
 * texts tarn_NAME_info{NAME="text"}; both have the value 1. Left out: what Redis has and tarn says
 * is always so, or is another figure's second name ("as hits"), and quantiles, of which the
 * histograms tell more. */
#ifndef TARN_BASE_PROMETHEUS_H
#define TARN_BASE_PROMETHEUS_H

#include "base/buf.h"
#include "base/figures.h"

#define PROMETHEUS_NAME_MAX 128u

struct prometheus_metric;
struct prometheus_seen;

struct prometheus {
    struct figure_walk walk; /* give it to whoever has figures, as often as there are parts */
    struct prometheus_metric *metrics;
    size_t n, cap, last; /* last: the one that was asked for */
    struct prometheus_seen *seen;
    size_t info;      /* the metric of the last group's texts */
    struct buf group; /* labels of the group's texts */
    size_t written;   /* metrics */
};

void prometheus_init(struct prometheus *p);
void prometheus_deinit(struct prometheus *p);
/* Appends some metrics, at least one and about `bytes`. false: that was all. After the walks. */
bool prometheus_write(struct prometheus *p, struct buf *out, size_t bytes);
/* The name of the metric; "": it is left out. label: NULL or the group's. For docs, too. */
void prometheus_name(const struct figure *figure, const char *group, const char *of,
                     char out[PROMETHEUS_NAME_MAX]);

#endif
