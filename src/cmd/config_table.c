/* Every option, one row each. An option is here only if something reads it. */
#include "cmd/config_table.h"

#include <stddef.h>
#include "base/assert.h"
#include "base/log.h"
#include "cmd/client.h"
#include "cmd/core.h"
#include "cmd/introspect.h"
#include "store/store.h"

/* --- what has to be told when an option changes ------------------------------------------------------------------------------ */

static bool apply_store(const char **why_p) {
    core_apply_config();
    return true;
}

static bool apply_policy(const char **why_p) {
    const char *name = config_policy_name(server.config);
    if (strcmp(name, store_policy_name(server.store)) == 0) return true;
    switch (store_set_policy(server.store, name)) {
    case TARN_OK: return true;
    case TARN_EBUSY: *why_p = "the last change of the policy is still under way"; return false;
    default: *why_p = "this policy could not be set up"; return false;
    }
}

static bool apply_log_level(const char **why_p) {
    log_set_level((enum log_level)server.config->loglevel);
    return true;
}

static bool apply_log_file(const char **why_p) {
    if (log_open(server.config->logfile)) return true;
    *why_p = "the file cannot be opened";
    return false;
}

static bool apply_slowlog(const char **why_p) {
    slowlog_trim();
    return true;
}

static bool apply_listeners(const char **why_p) {
    return core_endpoints.rebind == NULL || core_endpoints.rebind(why_p);
}

static bool apply_password(const char **why_p) {
    if (server.config->requirepass[0] != '\0') return true; /* who is in stays in */
    for (struct client *c = clients.head; c != NULL; c = c->io->all.next) c->authenticated = true;
    return true;
}

static bool apply_maxclients(const char **why_p) {
    return core_adjust_descriptors(server.config, why_p);
}

/* --- rows --------------------------------------------------------------------------------------------------------------------- */

static const char *const loglevels[] = {"debug", "verbose", "notice", "warning", "nothing", NULL};
static const char *const policies[] = {"lru", "fifo", "lfu", "sieve", "s3fifo", NULL};
static const char *const allocators[] = {"offset", "slab", NULL};
static const char *const huge_words[] = {"no", "try", NULL};
static const char *const welcome_words[] = {"auto", "no", "yes", NULL};
static const char *const local_words[] = {"no", "yes", "local", NULL};

#define AT(field) offsetof(struct config, field)
#define BIG       INT64_MAX
#define M         CONFIG_MUTABLE

#define BOOL(name, field, initial, flags, apply)                                                             \
    { name, CONFIG_BOOL, AT(field), initial, 0, 0, 0, 0, NULL, flags, apply }
#define NUM(type, name, field, initial, min, max, flags, apply)                                              \
    { name, type, AT(field), initial, min, max, 0, 0, NULL, flags, apply }
#define RATIO(name, field, initial, min, max, flags, apply)                                                  \
    { name, CONFIG_RATIO, AT(field), initial, 0, 0, min, max, NULL, flags, apply }
#define STR(name, field, initial, flags, apply)                                                              \
    { name, CONFIG_STRING, AT(field), initial, 0, 0, 0, 0, NULL, flags, apply }
#define ENUM(name, field, initial, words, flags, apply)                                                      \
    { name, CONFIG_ENUM, AT(field), initial, 0, 0, 0, 0, words, flags, apply }

const struct config_row config_rows[] = {
    /* network */
    {"bind", CONFIG_LIST, AT(bind), "* -::*", 0, 0, 0, 0, NULL, M, apply_listeners},
    NUM(CONFIG_INT, "port", port, "6479", 0, 65535, M, apply_listeners),
    STR("port-file", port_file, "", 0, NULL),
    STR("unixsocket", unixsocket, "", 0, NULL),
    NUM(CONFIG_OCTAL, "unixsocketperm", unixsocketperm, "700", 0, 0777, 0, NULL),
    NUM(CONFIG_INT, "tcp-backlog", tcp_backlog, "511", 1, INT32_MAX, 0, NULL),
    NUM(CONFIG_INT, "tcp-keepalive", tcp_keepalive_s, "300", 0, 32767, M, NULL),
    NUM(CONFIG_INT, "timeout", timeout_s, "0", 0, INT32_MAX, M, NULL),
    NUM(CONFIG_INT, "maxclients", maxclients, "10000", 1, 1000000, M, apply_maxclients),
    BOOL("protected-mode", protected_mode, "yes", M, NULL),
    STR("requirepass", requirepass, "", M | CONFIG_SECRET, apply_password),
    NUM(CONFIG_BYTES, "client-query-buffer-limit", client_query_buffer_limit, "1gb", 1 << 20, BIG, M, NULL),
    NUM(CONFIG_BYTES, "proto-max-bulk-len", proto_max_bulk_len, "512mb", 1 << 20, BIG, M, NULL),
    {"client-output-buffer-limit", CONFIG_OUTPUT, AT(output_limit), "normal 1gb 0 0 pubsub 32mb 8mb 60", 0, 0,
     0, 0, NULL, M, NULL},
    NUM(CONFIG_BYTES, "output-pause", output_pause, "8mb", 64 * 1024, BIG, M, NULL),
    /* process */
    BOOL("daemonize", daemonize, "no", 0, NULL),
    STR("pidfile", pidfile, "", 0, NULL),
    ENUM("loglevel", loglevel, "notice", loglevels, M, apply_log_level),
    STR("logfile", logfile, "", M, apply_log_file),
    STR("dir", dir, ".", 0, NULL),
    ENUM("welcome", welcome, "auto", welcome_words, 0, NULL),
    NUM(CONFIG_INT, "hz", hz, "10", 1, 500, M, NULL),
    NUM(CONFIG_INT, "loop-work-quota", loop_work_quota, "1000", 16, 1000000, M, NULL),
    ENUM("enable-debug-command", enable_debug_command, "no", local_words, 0, NULL),
    NUM(CONFIG_INT, "slowlog-log-slower-than", slowlog_slower_than_us, "10000", -1, BIG / 1000, M, NULL),
    NUM(CONFIG_INT, "slowlog-max-len", slowlog_max_len, "128", 0, 1000000, M, apply_slowlog),
    BOOL("latency-tracking", latency_tracking, "yes", M, NULL),
    STR("save", save, "", CONFIG_FIXED, NULL),
    BOOL("appendonly", appendonly, "no", CONFIG_FIXED, NULL),
    /* pool and data port */
    NUM(CONFIG_BYTES, "pool-size", pool_size, "1gb", 0, INT64_C(1) << 46, 0, NULL),
    STR("pool-path", pool_path, "", 0, NULL),
    BOOL("pool-populate", pool_populate, "yes", 0, NULL),
    ENUM("huge-pages", huge_pages, "try", huge_words, 0, NULL),
    NUM(CONFIG_INT, "numa-node", numa_node, "-1", -1, 1023, 0, NULL),
    NUM(CONFIG_PORT_OR_AUTO, "data-port", data_port, "auto", 0, 65535, 0, NULL),
    NUM(CONFIG_INT, "data-threads", data_threads, "2", 1, 256, 0, NULL),
    NUM(CONFIG_INT, "data-maxclients", data_maxclients, "4096", 1, 1000000, 0, NULL),
    NUM(CONFIG_MS, "data-timeout", data_timeout_ms, "10s", 100, 86400000, 0, NULL),
    STR("shm-socket", shm_socket, "auto", 0, NULL),
    NUM(CONFIG_OCTAL, "shm-socket-perm", shm_socket_perm, "600", 0, 0777, 0, NULL),
    STR("announce-host", announce_host, "", M, NULL),
    ENUM("allocator", allocator, "offset", allocators, 0, NULL),
    /* books, leases, puts, eviction */
    NUM(CONFIG_COUNT, "max-objects", max_objects, "0", 0, BIG, M, apply_store),
    NUM(CONFIG_BYTES, "maxmemory", maxmemory, "0", 0, BIG, M, apply_store),
    ENUM("eviction-policy", eviction_policy, "lru", policies, M, apply_policy),
    RATIO("eviction-high-watermark", eviction_high_watermark, "0.9", 0.01, 1, M, apply_store),
    RATIO("eviction-ratio", eviction_ratio, "0.05", 0.0001, 1, M, apply_store),
    NUM(CONFIG_INT, "lfu-log-factor", lfu_log_factor, "10", 0, 10000, M, apply_store),
    NUM(CONFIG_INT, "lfu-decay-time", lfu_decay_minutes, "1", 0, 100000, M, apply_store),
    NUM(CONFIG_MS, "max-lease", max_lease_ms, "10s", 10, 3600000, M, apply_store),
    NUM(CONFIG_MS, "max-wait", max_wait_ms, "1h", 1, 86400000, M, NULL),
    NUM(CONFIG_MS, "put-timeout", put_timeout_ms, "30s", 10, 86400000, M, apply_store),
    NUM(CONFIG_BYTES, "put-timeout-rate", put_timeout_rate, "100000000", 1024, BIG, M, apply_store),
    NUM(CONFIG_MS, "put-release-timeout", put_release_timeout_ms, "10min", 10, INT64_C(604800000), M,
        apply_store),
    NUM(CONFIG_MS, "soft-pin-ttl", soft_pin_ms, "30min", 1, INT64_C(31536000000), M, apply_store),
    NUM(CONFIG_COUNT, "max-leases-per-client", max_leases_per_client, "1048576", 1, BIG, M, apply_store),
    NUM(CONFIG_COUNT, "max-puts-per-client", max_puts_per_client, "1048576", 1, BIG, M, apply_store),
    NUM(CONFIG_COUNT, "max-batch-keys", max_batch_keys, "1000000", 1, 1048576, M, NULL),
};
const size_t config_row_count = ARRAY_LEN(config_rows);

const struct config_row *config_row_find(struct span name) {
    for (size_t i = 0; i < config_row_count; i++)
        if (span_case_eq(name, config_rows[i].name)) return &config_rows[i];
    return NULL;
}

const char *config_policy_name(const struct config *c) {
    return policies[c->eviction_policy];
}
const char *config_allocator_name(const struct config *c) {
    return allocators[c->allocator];
}
