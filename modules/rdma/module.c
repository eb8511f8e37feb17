/* modules/rdma.so as tarn sees it: src/module.h. */
#include <stdio.h>

#include "base/log.h"
#include "rdma/rdma.h"

const struct tarn_services *rdma_services;

const struct transport_ops rdma_transport = {
    .abi = TRANSPORT_ABI,
    .flags = TRANSPORT_REMOTE | TRANSPORT_REGISTERS | TRANSPORT_ANNOUNCES,
    .cost = 20,
    .scheme = "rdma",
    .domain_open = rdma_domain_open,
    .domain_close = rdma_domain_close,
    .memory_register = rdma_memory_register,
    .key_pack = rdma_key_pack,
    .memory_version = rdma_memory_version,
    .key_unpack = rdma_key_unpack,
    .key_check = rdma_key_check,
    .key_close = rdma_key_close,
    .memory_deregister = rdma_memory_deregister,
    .listen = rdma_listener_open,
    .listener_port = rdma_listener_port,
    .listener_uri = rdma_listener_uri,
    .listener_stats = rdma_listener_stats,
    .listener_programs = rdma_listener_programs,
    .listener_fence = rdma_listener_fence,
    .listener_lent = rdma_listener_lent,
    .listener_close = rdma_listener_close,
    .connect = rdma_connect_to,
    .endpoint_status = rdma_endpoint_status,
    .endpoint_close = rdma_endpoint_close,
    .submit = rdma_submit,
    .progress = rdma_domain_progress,
    .arm = rdma_domain_arm,
    .describe = rdma_domain_describe,
};

/* This module's copy of base's log has no file of its own. */
static void to_program(void *arg, enum log_level level, const char *message) {
    (void)arg;
    static const enum tarn_log_level levels[] = {TARN_LOG_DEBUG, TARN_LOG_VERBOSE, TARN_LOG_NOTICE,
                                                 TARN_LOG_WARNING};
    if (level < LOG_LEVEL_NOTHING) rdma_services->log(levels[level], message);
}

static void rdma_forget(void) {
    rdma_options_free();
    log_set_sink(NULL, NULL);
}

static tarn_status rdma_load(const struct tarn_services *services, size_t argc,
                             const char *const *argv, char *error, size_t error_cap) {
    rdma_services = services;
    log_set_level(LOG_LEVEL_DEBUG); /* the program knows its own */
    log_set_sink(to_program, NULL);
    tarn_status s = rdma_options_parse(argc, argv, error, error_cap);
    if (s == TARN_OK) {
        rdma_devices_open();
        s = services->transport_register(&rdma_transport);
        if (s == TARN_OK) s = rdma_commands_register();
        if (s == TARN_OK) {
            struct buf line = {0};
            rdma_summary(&line);
            buf_append_char(&line, '\0');
            log_notice("RDMA: %s", line.data);
            buf_free(&line);
            return TARN_OK;
        }
        snprintf(error, error_cap, "the transport or a command was not taken: %s",
                 tarn_status_text(s));
        (void)rdma_devices_close();
    }
    rdma_forget();
    return s;
}

static tarn_status rdma_unload(char *error, size_t error_cap) {
    tarn_status s = rdma_devices_close();
    if (s != TARN_OK) {
        snprintf(error, error_cap, "hosts or clients of this process use rdma");
        return s;
    }
    rdma_forget();
    return TARN_OK;
}

static void info_number(void (*field)(void *, const char *, const char *), void *arg,
                        const char *name, uint64_t value) {
    char text[24];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    field(arg, name, text);
}

static void rdma_info(void (*field)(void *arg, const char *name, const char *value), void *arg) {
    struct buf text = {0};
    rdma_summary(&text);
    buf_append_char(&text, '\0');
    field(arg, "rdma_state", text.data);
    buf_free(&text);
    unsigned up = 0;
    for (unsigned i = 0; i < rdma_devices_count(); i++) up += rdma_device_usable(rdma_device_at(i));
    info_number(field, arg, "rdma_devices", rdma_devices_count());
    info_number(field, arg, "rdma_devices_up", up);
    info_number(field, arg, "rdma_domains", rdma_total(&rdma_totals.domains));
    info_number(field, arg, "rdma_connections", rdma_total(&rdma_totals.connections));
    info_number(field, arg, "rdma_regions", rdma_total(&rdma_totals.regions));
    info_number(field, arg, "rdma_registered_bytes", rdma_total(&rdma_totals.bytes));
}

/* The one symbol. */
__attribute__((visibility("default"))) extern const struct tarn_module tarn_module_v1;
const struct tarn_module tarn_module_v1 = {
    .size = sizeof(struct tarn_module),
    .version = TARN_MODULE_VERSION,
    .transport_abi = TRANSPORT_ABI,
    .name = "rdma",
    .module_version = TARN_VERSION,
    .summary = "one-sided reads and writes over InfiniBand and RoCE",
    .load = rdma_load,
    .unload = rdma_unload,
    .info = rdma_info,
};
