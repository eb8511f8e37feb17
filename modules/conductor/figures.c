/* The figures of INFO conductor and /metrics: what was decided and what was wrong, and the ranks of
 * engines, each as a group. */
#include <stdio.h>
#include "conductor/conductor.h"
#include "conductor/metrics.h"
#include "conductor/streams.h"

/* More would take too long for one turn of the loop. */
#define RANKS_SHOWN 256u

#define ROW(...) FIGURE_ROW(struct conductor_figures, __VA_ARGS__)
static const struct figure figures_table[] = {CONDUCTOR_FIGURES(ROW){.name = NULL}};
#define STREAMS_ROW(...) FIGURE_ROW(struct streams_sum, __VA_ARGS__)
static const struct figure streams_table[] = {STREAMS_FIGURES(STREAMS_ROW){.name = NULL}};
#define METRICS_ROW(...) FIGURE_ROW(struct metrics_sum, __VA_ARGS__)
static const struct figure metrics_table[] = {METRICS_FIGURES(METRICS_ROW){.name = NULL}};
#define FEED_ROW(...) FIGURE_ROW(struct feed_figures, __VA_ARGS__)
static const struct figure feed_table[] = {FEED_FIGURES(FEED_ROW){.name = NULL}};

static void show_all(struct figure_walk *walk, const struct figure *table, const void *base) {
    figures_each(walk, table, base, 0, SIZE_MAX);
}

static void show_stream(struct figure_walk *walk, uint32_t worker) {
    struct streams_view v;
    streams_get(worker, &v);
    const struct kvevents_figures *f = &v.info.figures;
    FIGURE(walk, GAUGE, connected, "to its event stream", v.info.connected);
    FIGURE(walk, GAUGE, partial, "1: it may have blocks that its stream did not tell of",
           v.partial);
    FIGURE(walk, COUNTER, batches, "of its events", f->kvevents_batches);
    FIGURE(walk, COUNTER, gaps, "times that some of them were missing", f->kvevents_gaps);
    FIGURE(walk, COUNTER, replays, "times that it was asked for them", f->kvevents_replays);
    FIGURE(walk, COUNTER, lost, "times that all that was known of it was dropped",
           f->kvevents_lost);
    FIGURE(walk, COUNTER, decode_errors, "batches that could not be decoded",
           f->kvevents_decode_errors);
}

static void show_streams(struct figure_walk *walk) {
    struct streams_sum sum;
    streams_sum(&sum);
    show_all(walk, streams_table, &sum);
    show_all(walk, kvevents_figures, &sum.events);
    show_all(walk, feed_table, &sum.feeds);
    FIGURE(walk, TEXT, kvevents_why, "one of the last batches that could not be decoded",
           sum.why_decode);
}

static void show_rank_metrics(struct figure_walk *walk, uint32_t worker) {
    struct metrics_view v;
    metrics_get(worker, &v);
    FIGURE(walk, GAUGE, metrics_up, "1: its /metrics tell its load", v.info.state == SCRAPER_UP);
    FIGURE(walk, COUNTER, metrics_failures, "times that they did not",
           v.info.figures.scrape_failures);
}

static void show_metrics(struct figure_walk *walk) {
    struct metrics_sum sum;
    metrics_sum(&sum);
    show_all(walk, metrics_table, &sum);
    show_all(walk, scraper_figures, &sum.scrapes);
}

/* "e1", of several ranks "e1.2". */
static void show_rank(struct figure_walk *walk, const struct route_engine_view *v) {
    char name[ROUTE_NAME_MAX + 16];
    bool one = v->ranks == 1 && v->rank == 0;
    snprintf(name, sizeof(name), one ? "%s" : "%s.%u", v->id, v->rank);
    figures_group(walk, "engine_", "engine", name);
    FIGURE(walk, GAUGE, up, "1: it gets requests", v->state == ROUTE_UP);
    FIGURE(walk, GAUGE, prefills, "requests without a first token", v->prefills);
    FIGURE(walk, GAUGE, prefill_tokens, "... their tokens, and those that reports had beyond",
           v->prefill_tokens + v->foreign_prefill_tokens);
    FIGURE(walk, MS, wait, "until these are done", (uint64_t)(v->prefill_wait_us / 1000));
    FIGURE(walk, GAUGE, decodes, "sequences that it decodes", v->decodes);
    FIGURE(walk, COUNTER, routed, "requests sent there", v->routed);
    FIGURE(walk, COUNTER, failed, "requests that failed there, of all its ranks", v->failed);
    FIGURE(walk, GAUGE, blocks, "blocks of its cache that are known",
           route_holder_blocks(route_index(conductor_route),
                               route_worker_holder(conductor_route, v->worker)));
    show_stream(walk, v->worker);
    show_rank_metrics(walk, v->worker);
    figures_group_end(walk);
}

void conductor_show_figures(struct figure_walk *walk) {
    struct route_index_figures index = route_index_stats(route_index(conductor_route));
    show_all(walk, figures_table, &conductor_figures);
    show_all(walk, route_figures, route_figures_get(conductor_route));
    show_all(walk, route_index_figures, &index);
    show_streams(walk);
    show_metrics(walk);
    FIGURE(walk, BYTES, conductor_memory, "of all that it knows, that of the index included",
           route_memory(conductor_route));
    struct route_engine_view v;
    uint32_t at = 0;
    uint64_t now_us = conductor_now_us();
    for (unsigned n = 0; n < RANKS_SHOWN && route_engine_next(conductor_route, &at, now_us, &v);
         n++)
        show_rank(walk, &v);
}
