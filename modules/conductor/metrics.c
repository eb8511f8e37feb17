#include "conductor/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/queue.h>
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/queue.h"

#define TURN_US  500u  /* of the loop, for what was read */
#define RETRY_MS 1000u /* where nobody can be asked */

/* A URL. */
struct metrics_source {
    TAILQ_ENTRY(metrics_source) link;
    uint32_t users;            /* ranks */
    struct scraper_source *at; /* NULL: it cannot be asked now */
    char url[SCRAPER_URL];
};
struct rank_metrics {
    struct metrics_source *source; /* NULL: it has none */
    bool missing;                  /* the last answer has nothing of this rank */
};

static struct scraper *scraper; /* NULL: nobody was to be asked yet */
static struct scraper_config config;
static struct tarn_watch *watch;
static struct rank_metrics *of_worker;
static uint32_t workers;
static TAILQ_HEAD(, metrics_source) sources;
static bool leads;
static uint64_t retry_ms, trouble_ms;
static struct scraper_figures gone; /* counts of sources that went */

/* --- what was read --- */

static uint64_t in_blocks(uint64_t tokens, uint32_t block) {
    return tokens == SCRAPE_UNKNOWN ? ROUTE_UNKNOWN : (tokens + block - 1) / block;
}

static void rank_take(uint32_t worker, const struct scrape_load *answer) {
    struct route_engine_view v;
    struct rank_metrics *m = &of_worker[worker];
    uint64_t now_us = conductor_now_us();
    uint32_t at = worker;
    static_assert(SCRAPE_UNKNOWN == ROUTE_UNKNOWN, "one word for it");
    if (!route_engine_next(conductor_route, &at, now_us, &v) || v.worker != worker) return;
    const struct scrape_rank *its = scrape_load_find(answer, v.rank, m->source->users == 1);
    m->missing = its == NULL;
    if (its == NULL) return;
    struct route_load load = {.prefill_tokens = ROUTE_UNKNOWN,
                              .waiting = its->waiting,
                              .running = its->running,
                              .kv_blocks_used = in_blocks(its->used_tokens, v.block_tokens),
                              .kv_blocks = its->capacity_tokens == SCRAPE_UNKNOWN
                                               ? ROUTE_UNKNOWN
                                               : its->capacity_tokens / v.block_tokens};
    (void)route_engine_load(conductor_route, span_str(v.id), v.rank, &load, now_us);
}

/* Level-triggered: what is left over is for the next turn. */
static void on_ready(void *arg, unsigned events) {
    uint64_t end = clock_mono_us() + TURN_US;
    struct scrape_load answer;
    void *owner;
    while (scraper_take(scraper, &owner, &answer)) {
        for (uint32_t i = 0; i < workers; i++)
            if (of_worker[i].source == owner) rank_take(i, &answer);
        if (clock_mono_us() >= end) return;
    }
}

/* --- who asks --- */

static bool scraper_start(void) {
    if (scraper != NULL) return true;
    if (!TARN_HAS(conductor_services, watch_destroy) || conductor_services->watch_create == NULL ||
        scraper_create(&config, &scraper) != TARN_OK)
        return false;
    if (conductor_services->watch_create(scraper_fd(scraper), on_ready, NULL, &watch) == TARN_OK &&
        conductor_services->watch_set(watch, TARN_WATCH_READ) == TARN_OK) {
        scraper_pause(scraper, !leads);
        return true;
    }
    if (watch != NULL) conductor_services->watch_destroy(&watch);
    scraper_destroy(&scraper);
    return false;
}

static void source_try(struct metrics_source *s) {
    if (s->at == NULL && scraper_start()) (void)scraper_add(scraper, span_str(s->url), s, &s->at);
    if (s->at == NULL && log_is_news(&trouble_ms, clock_mono_ms()))
        log_warning("Conductor: /metrics of engines cannot be asked for");
}

void metrics_open(uint32_t workers_max, const struct conductor_options *options) {
    workers = workers_max;
    of_worker = xcalloc(workers, sizeof(*of_worker));
    TAILQ_INIT(&sources);
    gone = (struct scraper_figures){0};
    scraper_defaults(&config);
    config.every_ms = options->metrics_ms;
    uint32_t silent_ms = options->route.silent_ms;
    if (silent_ms > 0) config.every_ms = (uint32_t)min_u64(config.every_ms, silent_ms / 2 + 1);
    config.timeout_ms = (uint32_t)min_u64(max_u64(5ull * config.every_ms, 1000), config.timeout_ms);
    config.sources_max = workers;
    config.ca_file = xstrdup(options->metrics_ca);
    retry_ms = trouble_ms = 0;
    leads = false;
}

void metrics_close(void) {
    for (uint32_t i = 0; i < workers; i++) metrics_leave(i);
    if (watch != NULL) conductor_services->watch_destroy(&watch);
    scraper_destroy(&scraper);
    free(of_worker);
    of_worker = NULL;
    free((char *)(uintptr_t)config.ca_file);
    config.ca_file = NULL;
    workers = 0;
}

/* Who was heard when this server led before is not silent for not having been asked since, nor
 * for having told another one. */
void metrics_role(bool now_leads) {
    struct route_engine_view v;
    bool promoted = now_leads && !leads;
    leads = now_leads;
    if (scraper != NULL) scraper_pause(scraper, !leads);
    for (uint32_t at = 0; promoted && route_engine_next(conductor_route, &at, 0, &v);)
        if (v.heard_us > 0)
            (void)route_engine_beat(conductor_route, span_str(v.id), conductor_now_us());
}

/* --- sources come and go --- */

static struct metrics_source *source_of(struct span url) {
    struct metrics_source *s;
    TAILQ_FOREACH(s, &sources, link) {
        if (span_eq(span_str(s->url), url)) return s;
    }
    s = xcalloc(1, sizeof(*s));
    span_to_text(url, s->url, sizeof(s->url));
    TAILQ_INSERT_TAIL(&sources, s, link);
    source_try(s);
    return s;
}

void metrics_follow(const struct registration *x) {
    struct span url = x->field[ENGINE_METRICS];
    uint32_t worker = route_worker_find(conductor_route, x->id, x->rank);
    if (worker == ROUTE_NO_WORKER) return;
    struct rank_metrics *m = &of_worker[worker];
    bool asked = m->source != NULL;
    if (asked && span_eq(url, span_str(m->source->url))) return;
    metrics_leave(worker);
    if (url.len == 0 && asked)
        (void)route_load_forget(conductor_route, x->id, x->rank, conductor_now_us());
    if (url.len == 0) return;
    m->source = source_of(url);
    m->source->users++;
}

#define ADD(type, name, help) sum->name += info.figures.name;
static void figures_add(struct scraper_figures *sum, const struct metrics_source *s) {
    struct scraper_info info;
    if (s->at == NULL) return;
    scraper_info(s->at, &info);
    SCRAPER_FIGURES(ADD)
}

void metrics_leave(uint32_t worker) {
    struct metrics_source *s = worker < workers ? of_worker[worker].source : NULL;
    if (s == NULL) return;
    of_worker[worker] = (struct rank_metrics){0};
    if (--s->users > 0) return;
    figures_add(&gone, s);
    scraper_remove(&s->at);
    TAILQ_REMOVE(&sources, s, link);
    free(s);
}

void metrics_tick(void) {
    struct metrics_source *s;
    uint64_t now_ms = clock_mono_ms();
    if (scraper != NULL || now_ms < retry_ms) return;
    retry_ms = now_ms + RETRY_MS;
    TAILQ_FOREACH(s, &sources, link) {
        source_try(s);
    }
}

/* --- as they are --- */

void metrics_get(uint32_t worker, struct metrics_view *v) {
    const struct rank_metrics *m = worker < workers ? &of_worker[worker] : NULL;
    *v = (struct metrics_view){.url = "", .state = "none"};
    if (m == NULL || m->source == NULL) return;
    v->url = m->source->url;
    if (m->source->at == NULL) {
        v->info.state = SCRAPER_FAILING;
        snprintf(v->why, sizeof(v->why), "nobody can be asked: no thread or descriptors");
    } else {
        scraper_info(m->source->at, &v->info);
        snprintf(v->why, sizeof(v->why), "%s", v->info.why);
    }
    if (v->info.state == SCRAPER_UP && m->missing) {
        v->info.state = SCRAPER_FAILING;
        snprintf(v->why, sizeof(v->why), "it says nothing of this rank");
    }
    v->state = scraper_state_name(v->info.state);
}

void metrics_sum(struct metrics_sum *sum) {
    const struct metrics_source *s;
    struct scraper_info info;
    *sum = (struct metrics_sum){.scrapes = gone};
    TAILQ_FOREACH(s, &sources, link) {
        sum->conductor_metrics++;
        figures_add(&sum->scrapes, s);
        if (s->at != NULL) scraper_info(s->at, &info);
        sum->conductor_metrics_failing += s->at == NULL || info.state == SCRAPER_FAILING;
    }
}
