#include "front/modules.h"

#include "base/log.h"
#include "config/config.h"
#include "config/tls.h"
#include "front/above.h"
#include "front/core.h"
#include "front/embedded.h"
#include "front/module_durable.h"
#include "front/module_parts.h"
#include "front/reach.h"
#include "host/host.h"
#include "module/loader.h"
#include "net/services.h"
#include "net/tls_services.h"

/* --- coming and going --- */

static void transport_added(const char *scheme) {
    /* it logs what is wrong */
    if (embedded.host != NULL) (void)host_transport_add(embedded.host, scheme);
}

static void transport_removing(const char *scheme) {
    if (embedded.host != NULL) host_transport_remove(embedded.host, scheme);
}

static uint64_t tls_handshake_ms(void) {
    return (uint64_t)config->tls_handshake_timeout_ms;
}

void modules_init(void) {
    static const struct net_tls_source tls = {
        .use = config_tls_use, .context = config_tls_server, .handshake_ms = tls_handshake_ms};
    struct tarn_services services = {
        .program = TARN_PROGRAM_SERVER,
        .each_segment = reach_each_segment,
        .each_report = reach_each_report,
        .figures_next = above.figures_next,
        .state = above.state,
        .rows_next = above.rows_next,
    };
    static const struct module_hooks hooks = {.command_add = module_command_add,
                                              .command_remove = module_command_remove,
                                              .durable_open = module_durable_open,
                                              .transport_added = transport_added,
                                              .transport_removing = transport_removing};
    module_commands_services(&services);
    module_durable_services(&services);
    module_pool_services(&services);
    net_services_fill(&services, core_loop());
    net_tls_services_fill(&services, core_loop(), &tls);
    (void)module_init(&services, &hooks); /* again: nothing new */
}

bool modules_load(void) {
    char error[MODULE_ERROR_SIZE];
    for (size_t i = 0; i < config->modules.n; i++) {
        const struct config_line *m = &config->modules.line[i];
        if (module_load(m->word[0], m->n - 1, (const char *const *)m->word + 1, error,
                        sizeof(error)) == TARN_OK)
            continue;
        log_warning("%s", error);
        log_warning("Can't load module from %s: server aborting", m->word[0]);
        return false;
    }
    return true;
}

void modules_deinit(void) {
    module_unload_all();
    module_commands_deinit();
}

void modules_free(void) {
    module_durable_deinit();
}
