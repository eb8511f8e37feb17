/* modules/conductor.so as tarn sees it: src/module.h. */
#include <stdio.h>
#include "base/clock.h"
#include "base/log.h"
#include "conductor/asked.h"
#include "conductor/conductor.h"
#include "conductor/http.h"
#include "conductor/kept.h"
#include "conductor/metrics.h"
#include "conductor/streams.h"

#define TICK_MS 100u

const struct tarn_services *conductor_services;
struct route *conductor_route;
static struct tarn_timer *timer;
static uint64_t seed;

uint64_t conductor_now_us(void) {
    return clock_mono_us() + 1000000; /* 0 is never */
}

uint64_t conductor_seed(void) {
    return seed;
}

/* This module's copy of base's log has no file of its own. */
static void log_pass_on(void *arg, enum log_level level, const char *message) {
    static const enum tarn_log_level levels[] = {TARN_LOG_DEBUG, TARN_LOG_VERBOSE, TARN_LOG_NOTICE,
                                                 TARN_LOG_WARNING};
    if (level < LOG_LEVEL_NOTHING) conductor_services->log(levels[level], message);
}

static void on_tick(void *arg) {
    uint64_t us = route_tick(conductor_route, conductor_now_us());
    bool more = kept_follow_some();
    if (kept_write() || more) us = 0;
    kept_write_learnt();
    streams_tick();
    metrics_tick();
    conductor_services->timer_start(timer, us < 1000 * TICK_MS ? us / 1000 + 1 : TICK_MS);
}

static void on_role(bool leads) {
    kept_role(leads);
    metrics_role(leads);
}

static void conductor_end(void) {
    if (timer != NULL) conductor_services->timer_destroy(&timer);
    kept_close();
    if (conductor_route != NULL) streams_close();
    metrics_close();
    route_destroy(&conductor_route);
    conductor_prompt_free();
    http_query_free();
    asked_clear();
    log_set_sink(NULL, NULL);
}

static tarn_status conductor_load(const struct tarn_services *services, size_t argc,
                                  const char *const *argv, char *error, size_t error_cap) {
    struct conductor_options options;
    if (!TARN_HAS(services, write_refusal) || services->program != TARN_PROGRAM_SERVER) {
        snprintf(error, error_cap,
                 "conductor.so is for tarn-server, of this version or a later "
                 "one");
        return TARN_ENOTSUP;
    }
    conductor_services = services;
    if (!conductor_options_parse(argc, argv, &options, error, error_cap)) return TARN_EINVAL;
    seed = options.route.index_seed;
    conductor_route = route_create(&options.route);
    if (conductor_route == NULL) {
        snprintf(error, error_cap, "index-size is too small for so many ranks");
        return TARN_EINVAL;
    }
    log_set_level(LOG_LEVEL_DEBUG); /* the program knows its own */
    log_set_sink(log_pass_on, NULL);
    conductor_figures = (struct conductor_figures){0};
    streams_open(options.route.workers_max);
    metrics_open(options.route.workers_max, &options);
    tarn_status status = kept_open();
    if (status == TARN_OK) status = conductor_commands_declare();
    if (status != TARN_OK)
        snprintf(error, error_cap, "its commands: %s", tarn_status_text(status));
    else
        status = http_paths_register(&options, error, error_cap);
    if (status != TARN_OK) {
        conductor_end();
        return status;
    }
    kept_follow_all();
    on_role(services->leads());
    timer = services->timer_create(on_tick, NULL);
    services->timer_start(timer, TICK_MS);
    return TARN_OK;
}

static tarn_status conductor_unload(char *error, size_t error_cap) {
    conductor_end();
    return TARN_OK;
}

/* The one symbol. */
__attribute__((visibility("default"))) extern const struct tarn_module tarn_module_v1;
const struct tarn_module tarn_module_v1 = {
    .size = sizeof(struct tarn_module),
    .version = TARN_MODULE_VERSION,
    .name = "conductor",
    .module_version = TARN_VERSION,
    .summary = "which engine serves a request",
    .load = conductor_load,
    .unload = conductor_unload,
    .durable_changed = kept_changed,
    .role_changed = on_role,
    .figures = conductor_show_figures,
    .rows = conductor_rows,
};
