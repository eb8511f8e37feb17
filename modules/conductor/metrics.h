/* The engines' /metrics as a source of their load: who is asked, and what became of it.
 * Registrations say where (kept.c brings them here); src/scrape asks, in a thread of its own; what
 * it read is taken on the server's loop, and counts as CONDUCTOR.LOAD does, sign of life included.
 * Only the server that leads asks: nobody else decides.
 *
 * Ranks that are registered with the same URL are asked together, once. */
#ifndef TARN_CONDUCTOR_METRICS_H
#define TARN_CONDUCTOR_METRICS_H

#include "conductor/conductor.h"
#include "conductor/engines.h"
#include "scrape/scraper.h"

/* From load() and unload(). options: borrowed for the call. */
void metrics_open(uint32_t workers_max, const struct conductor_options *options);
void metrics_close(void);
void metrics_role(bool leads);

/* The worker of that registration, if there is one, has what it says asked, and nothing else. */
void metrics_follow(const struct registration *x);
/* That worker is about to go, or to be another. ROUTE_NO_WORKER: nothing. */
void metrics_leave(uint32_t worker);
/* From the timer. */
void metrics_tick(void);

struct metrics_view {
    const char *url;      /* "": none; borrowed until it goes */
    const char *state;    /* "none", or as scraper_state_name */
    char why[SCRAPE_WHY]; /* it fails; "": it does not */
    struct scraper_info info;
};
void metrics_get(uint32_t worker, struct metrics_view *v);

/* All of them, and of counts those that went, too. */
#define METRICS_FIGURES(X)                                                                         \
    X(GAUGE, conductor_metrics, "URLs of engines' /metrics")                                       \
    X(GAUGE, conductor_metrics_failing, "... where there is no load to be had")
struct metrics_sum {
    METRICS_FIGURES(FIGURE_MEMBER)
    struct scraper_figures scrapes;
};
void metrics_sum(struct metrics_sum *sum);

#endif
