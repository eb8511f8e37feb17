/* Every option, one row each. An option is here only if something reads it. */
#include "cmd/config_table.h"

#include <stddef.h>
#include <stdio.h>
#include "base/assert.h"
#include "base/log.h"
#include "base/hex.h"
#include "base/near.h"
#include "cmd/acl_users.h"
#include "cmd/client.h"
#include "cmd/config_apply.h"
#include "cmd/config_tls.h"
#include "cmd/core.h"
#include "cmd/descriptors.h"
#include "cmd/introspect.h"
#include "cmd/kv_events.h"
#include "cmd/keys.h"
#include "cmd/latency.h"
#include "cmd/replication.h"
#include "cmd/notify.h"
#include "cmd/persistence.h"
#include "store/store.h"

/* --- what has to be told when an option changes --- */

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

static bool apply_cluster(const char **why_p) {
    core_apply_config();
    return true;
}

static bool apply_placement(const char **why_p) {
    if (store_set_placement(server.store, config_placement_name(server.config)) == TARN_OK)
        return true;
    *why_p = "this strategy could not be set up";
    return false;
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

static bool apply_latency(const char **why_p) {
    latency_apply_config();
    return true;
}

static bool apply_notify(const char **why_p) {
    notify_apply();
    return true;
}

static bool apply_kv_events(const char **why_p) {
    kv_events_apply();
    return true;
}

static bool rebind(const char **why_p) {
    return core_endpoints.rebind == NULL || core_endpoints.rebind(why_p);
}

/* A replica tells its master where it can be reached. */
static bool apply_listeners(const char **why_p) {
    return rebind(why_p) && replication_apply_config(why_p);
}

static bool apply_tls(const char **why_p) {
    static char why[TLS_WHY_MAX + 64];
    const char *reason;
    if (config_tls_load(server.config, &reason)) return replication_apply_config(why_p);
    snprintf(why, sizeof(why), "Unable to update TLS configuration: %s", reason);
    *why_p = why;
    return false;
}

static bool apply_tls_port(const char **why_p) {
    if (server.config->tls_port == 0)
        return rebind(why_p) && apply_tls(why_p); /* who waits there is let in */
    return apply_tls(why_p) && apply_listeners(why_p);
}

static bool apply_password(const char **why_p) {
    acl_users_requirepass(); /* who is in stays in */
    return true;
}

static bool apply_acl_log(const char **why_p) {
    acl_log_trim();
    return true;
}

static bool apply_acl_pubsub(const char **why_p) {
    acl_users_pubsub_default();
    return true;
}

static bool apply_appendonly(const char **why_p) {
    return persistence_switch(why_p);
}

static bool apply_maxclients(const char **why_p) {
    return descriptors_raise(server.config, why_p);
}

/* --- rows --- */

static const char *const loglevels[] = {"debug", "verbose", "notice", "warning", "nothing", NULL};
static const char *const policies[] = {"lru", "fifo", "lfu", "sieve", "s3fifo", "noeviction", NULL};
static const char *const redis_policies[] = {
    "allkeys-lru",    "allkeys-fifo", "allkeys-lfu", "allkeys-sieve",
    "allkeys-s3fifo", "noeviction",   NULL};
static const char *const allocators[] = {"offset", "slab", NULL};
static const char *const placements[] = {"random", "free-ratio-first", "local-first", NULL};
/* enum cluster_offload */
static const char *const offload_words[] = {"none", "second-hit", "all", NULL};
static const char *const fsync_words[] = {"always", "everysec", "no", NULL};
static const char *const verify_words[] = {"auto", "none", "sample", "all", NULL};
static const char *const huge_words[] = {"no", "try", NULL};
static const char *const welcome_words[] = {"auto", "no", "yes", NULL};
static const char *const pubsub_words[] = {"resetchannels", "allchannels", NULL};
static const char *const auth_words[] = {"no", "optional", "yes", NULL}; /* enum tls_auth */
static const char *const local_words[] = {"no", "yes", "local", NULL};
static const char *const supervised_words[] = {"no", "systemd", "auto", NULL};
static const char *const facility_words[] = {"user",   "local0", "local1", "local2", "local3",
                                             "local4", "local5", "local6", "local7", NULL};
static const char *const oom_words[] = {"no", "yes", "relative", "absolute", NULL};
static const char *const shutdown_words[] = {"default", "save", "nosave", "now", "force", NULL};
static const char *const propagation_words[] = {"ignore", "panic", "panic-on-replicas", NULL};

#define AT(field) offsetof(struct config, field)
#define BIG       INT64_MAX
#define M         CONFIG_MUTABLE

#define BOOL(name, field, initial, flags, apply)                                                   \
    { name, CONFIG_BOOL, AT(field), initial, 0, 0, 0, 0, NULL, flags, apply }
#define NUM(type, name, field, initial, min, max, flags, apply)                                    \
    { name, type, AT(field), initial, min, max, 0, 0, NULL, flags, apply }
#define RATIO(name, field, initial, min, max, flags, apply)                                        \
    { name, CONFIG_RATIO, AT(field), initial, 0, 0, min, max, NULL, flags, apply }
#define STR(name, field, initial, flags, apply)                                                    \
    { name, CONFIG_STRING, AT(field), initial, 0, 0, 0, 0, NULL, flags, apply }
#define ENUM(name, field, initial, words, flags, apply)                                            \
    { name, CONFIG_ENUM, AT(field), initial, 0, 0, 0, 0, words, flags, apply }

/* ... are values that a file may have as well. */
#define ONLY(name, value, ...)                                                                     \
    { name, CONFIG_ONLY, 0, value, 0, 0, 0, 0, (const char *const[]){__VA_ARGS__, NULL}, M, NULL }

const struct config_row config_rows[] = {
    /* network */
    {"bind", CONFIG_LIST, AT(bind), "* -::*", 0, 0, 0, 0, NULL, M, apply_listeners},
    NUM(CONFIG_PORT_OR_AUTO, "port", port, "6479", 0, 65535, M, apply_listeners),
    STR("port-file", port_file, "", 0, NULL),
    STR("unixsocket", unixsocket, "", 0, NULL),
    NUM(CONFIG_OCTAL, "unixsocketperm", unixsocketperm, "700", 0, 0777, 0, NULL),
    NUM(CONFIG_INT, "tcp-backlog", tcp_backlog, "511", 1, INT32_MAX, 0, NULL),
    NUM(CONFIG_INT, "tcp-keepalive", tcp_keepalive_s, "300", 0, 32767, M, NULL),
    NUM(CONFIG_INT, "timeout", timeout_s, "0", 0, INT32_MAX, M, NULL),
    NUM(CONFIG_INT, "maxclients", maxclients, "10000", 1, 1000000, M, apply_maxclients),
    BOOL("protected-mode", protected_mode, "yes", M, NULL),
    {"requirepass", CONFIG_BINARY, AT(requirepass), "", 0, 0, 0, 0, NULL, M | CONFIG_SECRET,
     apply_password},
    STR("aclfile", aclfile, "", 0, NULL),
    NUM(CONFIG_INT, "acllog-max-len", acllog_max_len, "128", 0, 100000, M, apply_acl_log),
    ENUM("acl-pubsub-default", acl_pubsub_default, "resetchannels", pubsub_words, M,
         apply_acl_pubsub),
    NUM(CONFIG_BYTES, "client-query-buffer-limit", client_query_buffer_limit, "1gb", 1 << 20, BIG,
        M, NULL),
    NUM(CONFIG_BYTES, "proto-max-bulk-len", proto_max_bulk_len, "512mb", 1 << 20, BIG, M, NULL),
    {"client-output-buffer-limit", CONFIG_OUTPUT, AT(output_limit),
     "normal 1gb 0 0 replica 256mb 64mb 60 pubsub 32mb 8mb 60", 0, 0, 0, 0, NULL, M, NULL},
    {"maxmemory-clients", CONFIG_SHARE, AT(maxmemory_clients), "0", 0, BIG, 0, 0, NULL, M,
     apply_maxmemory_clients},
    NUM(CONFIG_INT, "tracking-table-max-keys", tracking_table_max_keys, "1000000", 0, BIG, M, NULL),
    STR("bind-source-addr", bind_source_addr, "", M, apply_source),
    NUM(CONFIG_INT, "socket-mark-id", socket_mark_id, "0", 0, UINT32_MAX, 0, NULL),
    NUM(CONFIG_BYTES, "output-pause", output_pause, "8mb", 64 * 1024, BIG, M, NULL),
    /* TLS: the files before the port that needs them */
    STR("tls-cert-file", tls_cert_file, "", M, apply_tls),
    STR("tls-key-file", tls_key_file, "", M, apply_tls),
    STR("tls-key-file-pass", tls_key_file_pass, "", M | CONFIG_SECRET, apply_tls),
    STR("tls-client-cert-file", tls_client_cert_file, "", M, apply_tls),
    STR("tls-client-key-file", tls_client_key_file, "", M, apply_tls),
    STR("tls-client-key-file-pass", tls_client_key_file_pass, "", M | CONFIG_SECRET, apply_tls),
    STR("tls-ca-cert-file", tls_ca_cert_file, "", M, apply_tls),
    STR("tls-ca-cert-dir", tls_ca_cert_dir, "", M, apply_tls),
    BOOL("tls-verify-name", tls_verify_name, "yes", M, apply_tls),
    STR("tls-server-name", tls_server_name, "", M, apply_tls),
    STR("tls-dh-params-file", tls_dh_params_file, "", M, apply_tls),
    ENUM("tls-auth-clients", tls_auth_clients, "yes", auth_words, M, apply_tls),
    STR("tls-protocols", tls_protocols, "", M, apply_tls),
    STR("tls-ciphers", tls_ciphers, "", M, apply_tls),
    STR("tls-ciphersuites", tls_ciphersuites, "", M, apply_tls),
    BOOL("tls-prefer-server-ciphers", tls_prefer_server_ciphers, "no", M, apply_tls),
    BOOL("tls-session-caching", tls_session_caching, "yes", M, apply_tls),
    NUM(CONFIG_INT, "tls-session-cache-size", tls_session_cache_size, "20480", 0, INT32_MAX, M,
        apply_tls),
    NUM(CONFIG_INT, "tls-session-cache-timeout", tls_session_cache_timeout_s, "300", 0, INT32_MAX,
        M, apply_tls),
    NUM(CONFIG_MS, "tls-handshake-timeout", tls_handshake_timeout_ms, "10s", 10, 3600000, M, NULL),
    BOOL("tls-replication", tls_replication, "no", M, apply_tls),
    BOOL("tls-data", tls_data, "no", 0, NULL),
    NUM(CONFIG_PORT_OR_AUTO, "tls-port", tls_port, "0", 0, 65535, M, apply_tls_port),
    /* process */
    BOOL("daemonize", daemonize, "no", 0, NULL),
    STR("pidfile", pidfile, "", 0, NULL),
    ENUM("supervised", supervised, "no", supervised_words, 0, NULL),
    BOOL("set-proc-title", set_proc_title, "yes", 0, NULL),
    STR("proc-title-template", proc_title_template, "{title} {listen-addr} {server-mode}", M,
        apply_title),
    BOOL("syslog-enabled", syslog_enabled, "no", 0, NULL),
    STR("syslog-ident", syslog_ident, "tarn", 0, NULL),
    ENUM("syslog-facility", syslog_facility, "local0", facility_words, 0, NULL),
    ENUM("oom-score-adj", oom_score_adj, "no", oom_words, M, apply_oom_score),
    {"oom-score-adj-values", CONFIG_INTS, AT(oom_score_adj_values), "0 200 800", -2000, 2000, 0, 0,
     NULL, M, apply_oom_score},
    BOOL("disable-thp", disable_thp, "no", 0, NULL),
    BOOL("crash-log-enabled", crash_log_enabled, "yes", M, apply_crash_log),
    {"shutdown-on-sigint", CONFIG_FLAGS, AT(shutdown_on_sigint), "default", 0, 0, 0, 0,
     shutdown_words, M, NULL},
    {"shutdown-on-sigterm", CONFIG_FLAGS, AT(shutdown_on_sigterm), "default", 0, 0, 0, 0,
     shutdown_words, M, NULL},
    NUM(CONFIG_INT, "shutdown-timeout", shutdown_timeout_s, "10", 0, INT32_MAX, M, NULL),
    BOOL("jemalloc-bg-thread", jemalloc_bg_thread, "no", M, apply_bg_thread),
    ENUM("loglevel", loglevel, "notice", loglevels, M, apply_log_level),
    STR("logfile", logfile, "", M | CONFIG_GUARDED, apply_log_file),
    STR("dir", dir, ".", M | CONFIG_GUARDED, apply_dir),
    ENUM("welcome", welcome, "auto", welcome_words, 0, NULL),
    BOOL("always-show-logo", always_show_logo, "no", 0, NULL),
    NUM(CONFIG_INT, "databases", databases, "1", 1, INT32_MAX, 0, NULL),
    ENUM("enable-protected-configs", enable_protected_configs, "no", local_words, 0, NULL),
    NUM(CONFIG_INT, "hz", hz, "10", 1, 500, M, NULL),
    BOOL("lazyfree-lazy-user-flush", lazy_user_flush, "no", M, NULL),
    BOOL("dynamic-hz", dynamic_hz, "yes", M, NULL),
    NUM(CONFIG_INT, "active-expire-effort", active_expire_effort, "1", 1, 10, M, NULL),
    NUM(CONFIG_INT, "loop-work-quota", loop_work_quota, "1000", 16, 1000000, M, NULL),
    ENUM("enable-debug-command", enable_debug_command, "no", local_words, 0, NULL),
    ENUM("enable-module-command", enable_module_command, "no", local_words, 0, NULL),
    NUM(CONFIG_INT, "slowlog-log-slower-than", slowlog_slower_than_us, "10000", -1, BIG / 1000, M,
        NULL),
    NUM(CONFIG_INT, "slowlog-max-len", slowlog_max_len, "128", 0, 1000000, M, apply_slowlog),
    NUM(CONFIG_INT, "latency-monitor-threshold", latency_monitor_threshold_ms, "0", 0,
        BIG / 1000000, M, apply_latency),
    BOOL("latency-tracking", latency_tracking, "yes", M, NULL),
    {"notify-keyspace-events", CONFIG_NOTIFY, AT(notify_classes), "", 0, 0, 0, 0, NULL, M,
     apply_notify},
    NUM(CONFIG_BYTES, "kv-events-size", kv_events_size, "0", 0, INT64_C(1) << 40, M,
        apply_kv_events),
    {"latency-tracking-info-percentiles", CONFIG_PERCENTILES, AT(latency_percentiles), "50 99 99.9",
     0, 0, 0, 100, NULL, M, NULL},
    /* persistence */
    {"save", CONFIG_SAVE, AT(save), "", 0, 0, 0, 0, NULL, M, NULL},
    BOOL("appendonly", appendonly, "no", M, apply_appendonly),
    STR("dbfilename", dbfilename, "dump.tarn", M | CONFIG_GUARDED, NULL),
    BOOL("rdbcompression", rdbcompression, "yes", M, NULL),
    STR("appendfilename", appendfilename, "appendonly.tarn", 0, NULL),
    STR("appenddirname", appenddirname, "", 0, NULL),
    BOOL("stop-writes-on-bgsave-error", stop_writes_on_save_error, "yes", M, NULL),
    BOOL("aof-load-truncated", aof_load_truncated, "yes", M, NULL),
    BOOL("aof-rewrite-incremental-fsync", aof_incremental_fsync, "yes", M, NULL),
    BOOL("rdb-save-incremental-fsync", save_incremental_fsync, "yes", M, NULL),
    ENUM("appendfsync", appendfsync, "everysec", fsync_words, M, NULL),
    BOOL("no-appendfsync-on-rewrite", no_fsync_on_rewrite, "no", M, NULL),
    NUM(CONFIG_INT, "auto-aof-rewrite-percentage", aof_rewrite_percentage, "100", 0, INT32_MAX, M,
        NULL),
    NUM(CONFIG_BYTES, "auto-aof-rewrite-min-size", aof_rewrite_min_size, "64mb", 0, BIG, M, NULL),
    ENUM("pool-verify", pool_verify, "auto", verify_words, 0, NULL),
    /* pool and data port */
    NUM(CONFIG_BYTES, "pool-size", pool_size, "1gb", 0, INT64_C(1) << 46, 0, NULL),
    STR("pool-path", pool_path, "", 0, NULL),
    BOOL("pool-path-shrink", pool_path_shrink, "no", 0, NULL),
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
    NUM(CONFIG_BYTES, "inband-buffer", inband_buffer, "256mb", 16 << 20, BIG, M, NULL),
    NUM(CONFIG_MS, "inband-stall-timeout", inband_stall_timeout_ms, "10s", 100, 86400000, M, NULL),
    NUM(CONFIG_MS, "inband-hold-timeout", inband_hold_timeout_ms, "60s", 0, 86400000, M, NULL),
    NUM(CONFIG_MS, "inband-wait-timeout", inband_wait_timeout_ms, "15s", 0, 86400000, M, NULL),
    NUM(CONFIG_INT, "inband-threads", inband_threads, "4", 1, 64, 0, NULL),
    NUM(CONFIG_INT, "io-threads", io_threads, "1", 1, 128, 0, NULL),
    BOOL("io-threads-do-reads", io_threads_do_reads, "no", 0, NULL),
    ENUM("allocator", allocator, "offset", allocators, 0, NULL),
    /* books, leases, puts, eviction */
    NUM(CONFIG_COUNT, "max-objects", max_objects, "0", 0, BIG, M, apply_store),
    NUM(CONFIG_BYTES, "maxmemory", maxmemory, "0", 0, BIG, M, apply_store),
    ENUM("eviction-policy", eviction_policy, "lru", policies, M, apply_policy),
    RATIO("eviction-high-watermark", eviction_high_watermark, "0.9", 0.01, 1, M, apply_store),
    RATIO("hard-pin-ratio", hard_pin_ratio, "0.5", 0, 1, M, apply_store),
    RATIO("hard-pin-user-ratio", hard_pin_user_ratio, "0.25", 0, 1, M, apply_store),
    RATIO("eviction-ratio", eviction_ratio, "0.05", 0.0001, 1, M, apply_store),
    {"evict-together-suffixes", CONFIG_LIST, AT(evict_together), "kv_bytes metadata", 0, 0, 0, 0,
     NULL, M, apply_store},
    NUM(CONFIG_INT, "lfu-log-factor", lfu_log_factor, "10", 0, 10000, M, apply_store),
    NUM(CONFIG_INT, "lfu-decay-time", lfu_decay_minutes, "1", 0, 100000, M, apply_store),
    NUM(CONFIG_MS, "max-lease", max_lease_ms, "10s", 10, 3600000, M, apply_store),
    NUM(CONFIG_MS, "max-wait", max_wait_ms, "1h", 1, 86400000, M, NULL),
    NUM(CONFIG_MS, "put-timeout", put_timeout_ms, "30s", 10, 86400000, M, apply_store),
    NUM(CONFIG_BYTES, "put-timeout-rate", put_timeout_rate, "100000000", 1024, BIG, M, apply_store),
    NUM(CONFIG_MS, "put-release-timeout", put_release_timeout_ms, "10min", 10, INT64_C(604800000),
        M, apply_store),
    NUM(CONFIG_MS, "soft-pin-ttl", soft_pin_ms, "30min", 1, INT64_C(31536000000), M, apply_store),
    NUM(CONFIG_COUNT, "max-leases-per-client", max_leases_per_client, "1048576", 1, BIG, M,
        apply_store),
    NUM(CONFIG_COUNT, "max-puts-per-client", max_puts_per_client, "1048576", 1, BIG, M,
        apply_store),
    NUM(CONFIG_COUNT, "max-batch-keys", max_batch_keys, "1000000", 1, 1048576, M, NULL),
    /* replication */
    {"replicaof", CONFIG_LIST, AT(replicaof), "", 0, 0, 0, 0, NULL, 0, NULL},
    STR("masteruser", masteruser, "", M | CONFIG_SECRET, replication_apply_config),
    {"masterauth", CONFIG_BINARY, AT(masterauth), "", 0, 0, 0, 0, NULL, M | CONFIG_SECRET,
     replication_apply_config},
    STR("replica-announce-ip", replica_announce_ip, "", M, replication_apply_config),
    NUM(CONFIG_INT, "replica-announce-port", replica_announce_port, "0", 0, 65535, M,
        replication_apply_config),
    BOOL("replica-announced", replica_announced, "yes", M, NULL),
    NUM(CONFIG_INT, "replica-priority", replica_priority, "100", 0, INT32_MAX, M, NULL),
    BOOL("replica-serve-stale-data", replica_serve_stale_data, "yes", M, NULL),
    BOOL("repl-disable-tcp-nodelay", repl_disable_tcp_nodelay, "no", M, NULL),
    NUM(CONFIG_BYTES, "repl-backlog-size", repl_backlog_size, "64mb", 1024, INT64_C(1) << 40, M,
        replication_apply_config),
    NUM(CONFIG_INT, "repl-backlog-ttl", repl_backlog_ttl_s, "3600", 0, INT32_MAX, M, NULL),
    NUM(CONFIG_INT, "repl-ping-replica-period", repl_ping_period_s, "10", 1, INT32_MAX, M, NULL),
    NUM(CONFIG_INT, "repl-timeout", repl_timeout_s, "60", 1, INT32_MAX, M,
        replication_apply_config),
    NUM(CONFIG_INT, "min-replicas-to-write", min_replicas_to_write, "0", 0, INT32_MAX, M, NULL),
    NUM(CONFIG_INT, "min-replicas-max-lag", min_replicas_max_lag_s, "10", 0, INT32_MAX, M, NULL),
    ENUM("propagation-error-behavior", propagation_error, "ignore", propagation_words, M, NULL),
    /* Redis' ways of doing what is done in one way here */
    ONLY("repl-diskless-sync", "yes", "a snapshot for a replica goes to its socket", "no"),
    ONLY("repl-diskless-sync-delay", "0",
         "a snapshot for a replica begins at once: it is no child process that replicas "
         "should share",
         CONFIG_ONLY_NUMBER),
    ONLY("repl-diskless-sync-max-replicas", "0", "replicas do not wait for each other",
         CONFIG_ONLY_NUMBER),
    ONLY("repl-diskless-load", "disabled",
         "a snapshot of the master goes from the socket to the emptied books; there is no "
         "other way to choose",
         "on-empty-db"),
    ONLY("rdb-del-sync-files", "no", "synchronisation leaves no files", "yes"),
    ONLY("replica-lazy-flush", "no", "the books of before are freed before the new ones are read",
         "yes"),
    ONLY("replica-read-only", "yes", "a replica takes no writes"),
    ONLY("replica-ignore-maxmemory", "yes",
         "a replica evicts what its master says, and nothing else"),
    ONLY("replica-ignore-disk-write-errors", "yes",
         "a replica goes on, says so in the log and tries again"),
    ONLY("rdbchecksum", "yes", "every frame of every file has a CRC-32C", "no"),
    ONLY("aof-use-rdb-preamble", "yes", "an append-only file begins with a snapshot", "no"),
    ONLY("aof-timestamp-enabled", "no", "records have no time stamps"),
    ONLY("lazyfree-lazy-eviction", "no",
         "what is evicted is freed at once: that takes no time that grows with its size", "yes"),
    ONLY("lazyfree-lazy-expire", "no",
         "what expires is freed at once: that takes no time that grows with its size", "yes"),
    ONLY("lazyfree-lazy-server-del", "no",
         "what is replaced is freed at once: that takes no time that grows with its size", "yes"),
    ONLY("lazyfree-lazy-user-del", "no",
         "DEL frees at once, as UNLINK does: that takes no time that grows with the size", "yes"),
    ONLY("activerehashing", "yes", "tables grow and shrink one bucket at a time, all along", "no"),
    ONLY("activedefrag", "no", "records lie in slabs by size, and extents do not move", "yes"),
    ONLY("maxmemory-samples", "5", "the policies keep exact order and take no samples",
         CONFIG_ONLY_NUMBER),
    ONLY("crash-memcheck-enabled", "no", "a crash report does not test the memory of the machine",
         "yes"),
    ONLY("cluster-enabled", "no",
         "there are no slots here: one server leads, Sentinels look after it"),
    /* the pool of many machines */
    STR("cluster-id", cluster_id, "", 0, NULL),
    NUM(CONFIG_MS, "node-timeout", node_timeout_ms, "10s", 100, 3600000, M, apply_cluster),
    NUM(CONFIG_MS, "node-heartbeat", node_heartbeat_ms, "1s", 20, 60000, M, apply_cluster),
    NUM(CONFIG_MS, "node-forget-timeout", node_forget_timeout_ms, "1h", 1000, INT64_C(2592000000),
        M, apply_cluster),
    NUM(CONFIG_COUNT, "max-nodes", max_nodes, "1024", 0, 32768, M, apply_cluster),
    ENUM("placement-strategy", placement_strategy, "local-first", placements, M, apply_placement),
    NUM(CONFIG_COUNT, "tasks-per-node", tasks_per_node, "4", 1, 1024, M, apply_cluster),
    NUM(CONFIG_COUNT, "max-tasks", max_tasks, "10000", 16, 1000000, M, apply_cluster),
    NUM(CONFIG_COUNT, "task-retries", task_retries, "3", 0, 100, M, apply_cluster),
    NUM(CONFIG_MS, "task-timeout", task_timeout_ms, "30s", 100, 86400000, M, apply_cluster),
    NUM(CONFIG_BYTES, "task-timeout-rate", task_rate, "10000000", 1024, BIG, M, apply_cluster),
    NUM(CONFIG_COUNT, "hot-replicas", hot_replicas, "0", 0, STORE_REPLICAS_MAX, M, apply_cluster),
    NUM(CONFIG_MS, "hot-window", hot_window_ms, "10s", 100, 3600000, M, apply_cluster),
    NUM(CONFIG_COUNT, "hot-threshold", hot_threshold, "1000", 1, UINT32_MAX, M, apply_cluster),
    ENUM("ssd-offload", ssd_offload, "all", offload_words, M, apply_cluster),
    NUM(CONFIG_COUNT, "offload-queue", offload_queue, "65536", 1, 10000000, M, apply_cluster),
    NUM(CONFIG_MS, "offload-wait", offload_wait_ms, "5s", 0, 3600000, M, apply_cluster),
};
const size_t config_row_count = ARRAY_LEN(config_rows);

/* Redis' name for eviction-policy, with Redis' words. */
static const struct config_row redis_policy_row =
    ENUM("maxmemory-policy", eviction_policy, "allkeys-lru", redis_policies, M, apply_policy);

/* What Redis called them before, or calls them. */
static const struct {
    const char *old, *name;
} aliases[] = {
    {"slaveof", "replicaof"},
    {"slave-announce-ip", "replica-announce-ip"},
    {"slave-announce-port", "replica-announce-port"},
    {"slave-priority", "replica-priority"},
    {"slave-serve-stale-data", "replica-serve-stale-data"},
    {"slave-read-only", "replica-read-only"},
    {"slave-lazy-flush", "replica-lazy-flush"},
    {"slave-ignore-maxmemory", "replica-ignore-maxmemory"},
    {"repl-ping-slave-period", "repl-ping-replica-period"},
    {"min-slaves-to-write", "min-replicas-to-write"},
    {"min-slaves-max-lag", "min-replicas-max-lag"},
    {"maxmemory-policy", "eviction-policy"},
};

const struct config_row *config_row_find(struct span name) {
    if (span_case_eq(name, redis_policy_row.name)) return &redis_policy_row;
    for (size_t i = 0; i < ARRAY_LEN(aliases); i++)
        if (span_case_eq(name, aliases[i].old)) name = span_str(aliases[i].name);
    for (size_t i = 0; i < config_row_count; i++)
        if (span_case_eq(name, config_rows[i].name)) return &config_rows[i];
    return NULL;
}

const char *config_default(const char *name) {
    const struct config_row *row = config_row_find(span_str(name));
    TARN_ASSERT(row != NULL);
    return row->initial;
}

const char *config_near(struct span name) {
    static const char *const repeated[] = {"include", "loadmodule", "user", "rename-command"};
    struct near n;
    near_begin(&n, name);
    for (size_t i = 0; i < config_row_count; i++) near_offer(&n, config_rows[i].name);
    for (size_t i = 0; i < ARRAY_LEN(aliases); i++) near_offer(&n, aliases[i].old);
    for (size_t i = 0; i < ARRAY_LEN(repeated); i++) near_offer(&n, repeated[i]);
    return n.word;
}

size_t config_row_index(const struct config_row *row) {
    return (size_t)((row == &redis_policy_row ? config_row_find(SPAN("eviction-policy")) : row) -
                    config_rows);
}

const struct config_row *config_row_at(size_t i) {
    if (i < config_row_count) return &config_rows[i];
    return i < config_row_count + ARRAY_LEN(aliases)
               ? config_row_find(span_str(aliases[i - config_row_count].old))
               : NULL;
}
const char *config_name_at(size_t i) {
    return i < config_row_count ? config_rows[i].name : aliases[i - config_row_count].old;
}

const char *config_policy_name(const struct config *c) {
    return policies[c->eviction_policy];
}
const char *config_policy_redis_name(const struct config *c) {
    return redis_policies[c->eviction_policy];
}
const char *config_allocator_name(const struct config *c) {
    return allocators[c->allocator];
}
const char *config_placement_name(const struct config *c) {
    return placements[c->placement_strategy];
}

bool config_cluster_id(const struct config *c, uint8_t out[16]) {
    return hex_decode(span_str(c->cluster_id), out, 16);
}
