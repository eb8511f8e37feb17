/* modules/http.so as tarn sees it: src/module.h. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "http/site.h"

const struct tarn_services *http_services;
struct http_figures http_figures;

/* This module's copy of base's log has no file of its own. */
static void log_pass_on(void *arg, enum log_level level, const char *message) {
    static const enum tarn_log_level levels[] = {TARN_LOG_DEBUG, TARN_LOG_VERBOSE, TARN_LOG_NOTICE,
                                                 TARN_LOG_WARNING};
    (void)arg;
    if (level < LOG_LEVEL_NOTHING) http_services->log(levels[level], message);
}

/* What paths of other modules are served by. */
static const struct tarn_http_server modules_server = {.size = sizeof(modules_server),
                                                       .site_add = http_site_add,
                                                       .site_remove = http_site_remove,
                                                       .answer = http_exchange_answer};

static tarn_status http_load(const struct tarn_services *services, size_t argc,
                             const char *const *argv, char *error, size_t error_cap) {
    if (!TARN_HAS(services, state) || services->figures_next == NULL) {
        snprintf(error, error_cap,
                 "http.so is for tarn-server and tarn-node, of this version or a later one");
        return TARN_ENOTSUP;
    }
    http_services = services;
    memset(&http_figures, 0, sizeof(http_figures));
    log_set_level(LOG_LEVEL_DEBUG); /* the program knows its own */
    log_set_sink(log_pass_on, NULL);
    tarn_status status = http_options_parse(argc, argv, error, error_cap);
    if (status == TARN_OK) status = http_server_start(error, error_cap);
    if (status == TARN_OK && TARN_HAS(services, http_serve)) {
        status = services->http_serve(&modules_server, error, error_cap);
        if (status != TARN_OK) http_server_stop();
    }
    if (status != TARN_OK)
        log_set_sink(NULL, NULL);
    else
        http_history_start();
    return status;
}

static tarn_status http_unload(char *error, size_t error_cap) {
    http_server_stop();
    http_history_stop();
    log_set_sink(NULL, NULL);
    return TARN_OK;
}

static void http_info(void (*field)(void *arg, const char *name, const char *value), void *arg) {
    struct tarn_tls_figures tls;
    unsigned connections = http_port_connections(http_server_port(), &tls);
    const struct {
        const char *name;
        uint64_t value;
    } all[] = {{"port", http_port_number(http_server_port())},
               {"tls", http_options.tls},
               {"tls_handshakes_failed", tls.failed},
               {"connections", connections},
               {"connections_max", http_options.connections},
               {"requests", http_figures.requests},
               {"refused", http_figures.refused},
               {"slow", http_figures.slow},
               {"late", http_figures.late},
               {"scrapes", http_figures.scrapes},
               {"scrape_turns", http_figures.scrape_turns}};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        char text[24];
        snprintf(text, sizeof(text), "%llu", (unsigned long long)all[i].value);
        field(arg, all[i].name, text);
    }
    http_sites_info(field, arg);
}

/* The one symbol. */
__attribute__((visibility("default"))) extern const struct tarn_module tarn_module_v1;
const struct tarn_module tarn_module_v1 = {
    .size = sizeof(struct tarn_module),
    .version = TARN_MODULE_VERSION,
    .name = "http",
    .module_version = TARN_VERSION,
    .summary = "metrics and probes over HTTP",
    .load = http_load,
    .unload = http_unload,
    .info = http_info,
};
