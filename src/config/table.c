/* Every option, one row each. An option is here only if something reads it. */
#include "config/table.h"

#include <stddef.h>
#include <stdio.h>
#include "base/assert.h"
#include "base/log.h"
#include "base/hex.h"
#include "base/near.h"
#include "store/store.h"
#include "tls/tls.h"

/* --- rows --- */

static const char *const loglevels[] = {"debug", "verbose", "notice", "warning", "nothing", NULL};
#define NAME(policy)       #policy,
#define REDIS_NAME(policy) "allkeys-" #policy,
static const char *const policies[] = {STORE_POLICIES(NAME) "noeviction", NULL};
static const char *const redis_policies[] = {STORE_POLICIES(REDIS_NAME) "noeviction", NULL};
#undef NAME
#undef REDIS_NAME
static const char *const allocators[] = {"offset", "slab", NULL};
static const char *const placements[] = {"random", "free-ratio-first", "local-first", NULL};
/* enum cluster_offload */
static const char *const offload_words[] = {"none", "second-hit", "all", NULL};
static const char *const fsync_words[] = {"always", "everysec", "no", NULL};
static const char *const verify_words[] = {"auto", "none", "sample", "all", NULL};
static const char *const huge_words[] = {"no", "try", NULL};
static const char *const welcome_words[] = {"auto", "no", "yes", NULL};
static const char *const pubsub_words[] = {"resetchannels", "allchannels", NULL};
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

#define BOOL(name, field, initial, flags, tell)                                                    \
    { name, CONFIG_BOOL, AT(field), initial, 0, 0, 0, 0, NULL, flags, tell }
#define NUM(type, name, field, initial, min, max, flags, tell)                                     \
    { name, type, AT(field), initial, min, max, 0, 0, NULL, flags, tell }
#define RATIO(name, field, initial, min, max, flags, tell)                                         \
    { name, CONFIG_RATIO, AT(field), initial, 0, 0, min, max, NULL, flags, tell }
#define STR(name, field, initial, flags, tell)                                                     \
    { name, CONFIG_STRING, AT(field), initial, 0, 0, 0, 0, NULL, flags, tell }
#define ENUM(name, field, initial, words, flags, tell)                                             \
    { name, CONFIG_ENUM, AT(field), initial, 0, 0, 0, 0, words, flags, tell }

/* ... are values that a file may have as well. */
#define ONLY(name, value, ...)                                                                     \
    { name, CONFIG_ONLY, 0, value, 0, 0, 0, 0, (const char *const[]){__VA_ARGS__, NULL}, M, 0 }

const struct config_row config_rows[] = {
    /* network */
    {"bind", CONFIG_LIST, AT(bind), "* -::*", 0, 0, 0, 0, NULL, M, CONFIG_TELL_LISTENERS},
    NUM(CONFIG_PORT_OR_AUTO, "port", port, "6479", 0, 65535, M, CONFIG_TELL_LISTENERS),
    STR("port-file", port_file, "", 0, 0),
    STR("unixsocket", unixsocket, "", 0, 0),
    NUM(CONFIG_OCTAL, "unixsocketperm", unixsocketperm, "700", 0, 0777, 0, 0),
    NUM(CONFIG_INT, "tcp-backlog", tcp_backlog, "511", 1, INT32_MAX, 0, 0),
    NUM(CONFIG_INT, "tcp-keepalive", tcp_keepalive_s, "300", 0, 32767, M, 0),
    NUM(CONFIG_INT, "timeout", timeout_s, "0", 0, INT32_MAX, M, 0),
    NUM(CONFIG_INT, "maxclients", maxclients, "10000", 1, 1000000, M, CONFIG_TELL_MAXCLIENTS),
    BOOL("protected-mode", protected_mode, "yes", M, 0),
    {"requirepass", CONFIG_BINARY, AT(requirepass), "", 0, 0, 0, 0, NULL, M | CONFIG_SECRET,
     CONFIG_TELL_PASSWORD},
    STR("aclfile", aclfile, "", 0, 0),
    NUM(CONFIG_INT, "acllog-max-len", acllog_max_len, "128", 0, 100000, M, CONFIG_TELL_ACL_LOG),
    ENUM("acl-pubsub-default", acl_pubsub_default, "resetchannels", pubsub_words, M,
         CONFIG_TELL_ACL_PUBSUB),
    NUM(CONFIG_BYTES, "client-query-buffer-limit", client_query_buffer_limit, "1gb", 1 << 20, BIG,
        M, 0),
    NUM(CONFIG_BYTES, "proto-max-bulk-len", proto_max_bulk_len, "512mb", 1 << 20, BIG, M, 0),
    {"client-output-buffer-limit", CONFIG_OUTPUT, AT(output_limit),
     "normal 1gb 0 0 replica 256mb 64mb 60 pubsub 32mb 8mb 60", 0, 0, 0, 0, NULL, M, 0},
    {"maxmemory-clients", CONFIG_SHARE, AT(maxmemory_clients), "0", 0, BIG, 0, 0, NULL, M,
     CONFIG_TELL_MAXMEMORY_CLIENTS},
    NUM(CONFIG_INT, "tracking-table-max-keys", tracking_table_max_keys, "1000000", 0, BIG, M, 0),
    STR("bind-source-addr", bind_source_addr, "", M, CONFIG_TELL_SOURCE),
    NUM(CONFIG_INT, "socket-mark-id", socket_mark_id, "0", 0, UINT32_MAX, 0, 0),
    NUM(CONFIG_BYTES, "output-pause", output_pause, "8mb", 64 * 1024, BIG, M, 0),
    /* TLS: the files before the port that needs them */
    STR("tls-cert-file", tls_cert_file, "", M, CONFIG_TELL_TLS),
    STR("tls-key-file", tls_key_file, "", M, CONFIG_TELL_TLS),
    STR("tls-key-file-pass", tls_key_file_pass, "", M | CONFIG_SECRET, CONFIG_TELL_TLS),
    STR("tls-client-cert-file", tls_client_cert_file, "", M, CONFIG_TELL_TLS),
    STR("tls-client-key-file", tls_client_key_file, "", M, CONFIG_TELL_TLS),
    STR("tls-client-key-file-pass", tls_client_key_file_pass, "", M | CONFIG_SECRET,
        CONFIG_TELL_TLS),
    STR("tls-ca-cert-file", tls_ca_cert_file, "", M, CONFIG_TELL_TLS),
    STR("tls-ca-cert-dir", tls_ca_cert_dir, "", M, CONFIG_TELL_TLS),
    BOOL("tls-verify-name", tls_verify_name, "yes", M, CONFIG_TELL_TLS),
    STR("tls-server-name", tls_server_name, "", M, CONFIG_TELL_TLS),
    STR("tls-dh-params-file", tls_dh_params_file, "", M, CONFIG_TELL_TLS),
    ENUM("tls-auth-clients", tls_auth_clients, "yes", tls_auth_words, M, CONFIG_TELL_TLS),
    STR("tls-protocols", tls_protocols, "", M, CONFIG_TELL_TLS),
    STR("tls-ciphers", tls_ciphers, "", M, CONFIG_TELL_TLS),
    STR("tls-ciphersuites", tls_ciphersuites, "", M, CONFIG_TELL_TLS),
    BOOL("tls-prefer-server-ciphers", tls_prefer_server_ciphers, "no", M, CONFIG_TELL_TLS),
    BOOL("tls-session-caching", tls_session_caching, "yes", M, CONFIG_TELL_TLS),
    NUM(CONFIG_INT, "tls-session-cache-size", tls_session_cache_size, "20480", 0, INT32_MAX, M,
        CONFIG_TELL_TLS),
    NUM(CONFIG_INT, "tls-session-cache-timeout", tls_session_cache_timeout_s, "300", 0, INT32_MAX,
        M, CONFIG_TELL_TLS),
    NUM(CONFIG_MS, "tls-handshake-timeout", tls_handshake_timeout_ms, "10s", 10, 3600000, M, 0),
    BOOL("tls-replication", tls_replication, "no", M, CONFIG_TELL_TLS),
    BOOL("tls-data", tls_data, "no", 0, 0),
    NUM(CONFIG_PORT_OR_AUTO, "tls-port", tls_port, "0", 0, 65535, M, CONFIG_TELL_TLS_PORT),
    /* process */
    BOOL("daemonize", daemonize, "no", 0, 0),
    STR("pidfile", pidfile, "", 0, 0),
    ENUM("supervised", supervised, "no", supervised_words, 0, 0),
    BOOL("set-proc-title", set_proc_title, "yes", 0, 0),
    STR("proc-title-template", proc_title_template, "{title} {listen-addr} {server-mode}", M,
        CONFIG_TELL_TITLE),
    BOOL("syslog-enabled", syslog_enabled, "no", 0, 0),
    STR("syslog-ident", syslog_ident, "tarn", 0, 0),
    ENUM("syslog-facility", syslog_facility, "local0", facility_words, 0, 0),
    ENUM("oom-score-adj", oom_score_adj, "no", oom_words, M, CONFIG_TELL_OOM_SCORE),
    {"oom-score-adj-values", CONFIG_INTS, AT(oom_score_adj_values), "0 200 800", -2000, 2000, 0, 0,
     NULL, M, CONFIG_TELL_OOM_SCORE},
    BOOL("disable-thp", disable_thp, "no", 0, 0),
    BOOL("crash-log-enabled", crash_log_enabled, "yes", M, CONFIG_TELL_CRASH_LOG),
    {"shutdown-on-sigint", CONFIG_FLAGS, AT(shutdown_on_sigint), "default", 0, 0, 0, 0,
     shutdown_words, M, 0},
    {"shutdown-on-sigterm", CONFIG_FLAGS, AT(shutdown_on_sigterm), "default", 0, 0, 0, 0,
     shutdown_words, M, 0},
    NUM(CONFIG_INT, "shutdown-timeout", shutdown_timeout_s, "10", 0, INT32_MAX, M, 0),
    BOOL("jemalloc-bg-thread", jemalloc_bg_thread, "no", M, CONFIG_TELL_BG_THREAD),
    ENUM("loglevel", loglevel, "notice", loglevels, M, CONFIG_TELL_LOG_LEVEL),
    STR("logfile", logfile, "", M | CONFIG_GUARDED, CONFIG_TELL_LOG_FILE),
    STR("dir", dir, ".", M | CONFIG_GUARDED, CONFIG_TELL_DIR),
    ENUM("welcome", welcome, "auto", welcome_words, 0, 0),
    BOOL("always-show-logo", always_show_logo, "no", 0, 0),
    NUM(CONFIG_INT, "databases", databases, "1", 1, INT32_MAX, 0, 0),
    ENUM("enable-protected-configs", enable_protected_configs, "no", local_words, 0, 0),
    NUM(CONFIG_INT, "hz", hz, "10", 1, 500, M, 0),
    BOOL("lazyfree-lazy-user-flush", lazy_user_flush, "no", M, 0),
    BOOL("dynamic-hz", dynamic_hz, "yes", M, 0),
    NUM(CONFIG_INT, "active-expire-effort", active_expire_effort, "1", 1, 10, M, 0),
    NUM(CONFIG_INT, "busy-poll", busy_poll_us, "100", 0, 10000, 0, 0),
    NUM(CONFIG_INT, "loop-priority", loop_priority, "0", 0, 99, M, CONFIG_TELL_LOOP_PRIORITY),
    NUM(CONFIG_INT, "loop-work-quota", loop_work_quota, "1000", 16, 1000000, M, 0),
    ENUM("enable-debug-command", enable_debug_command, "no", local_words, 0, 0),
    ENUM("enable-module-command", enable_module_command, "no", local_words, 0, 0),
    NUM(CONFIG_INT, "slowlog-log-slower-than", slowlog_slower_than_us, "10000", -1, BIG / 1000, M,
        0),
    NUM(CONFIG_INT, "slowlog-max-len", slowlog_max_len, "128", 0, 1000000, M, CONFIG_TELL_SLOWLOG),
    NUM(CONFIG_INT, "latency-monitor-threshold", latency_monitor_threshold_ms, "0", 0,
        BIG / 1000000, M, CONFIG_TELL_LATENCY),
    BOOL("latency-tracking", latency_tracking, "yes", M, 0),
    {"notify-keyspace-events", CONFIG_NOTIFY, AT(notify_classes), "", 0, 0, 0, 0, NULL, M,
     CONFIG_TELL_NOTIFY},
    NUM(CONFIG_BYTES, "kv-events-size", kv_events_size, "0", 0, INT64_C(1) << 40, M,
        CONFIG_TELL_KV_EVENTS),
    {"latency-tracking-info-percentiles", CONFIG_PERCENTILES, AT(latency_percentiles), "50 99 99.9",
     0, 0, 0, 100, NULL, M, 0},
    /* persistence */
    {"save", CONFIG_SAVE, AT(save), "", 0, 0, 0, 0, NULL, M, 0},
    BOOL("appendonly", appendonly, "no", M, CONFIG_TELL_APPENDONLY),
    STR("dbfilename", dbfilename, "dump.tarn", M | CONFIG_GUARDED, 0),
    BOOL("rdbcompression", rdbcompression, "yes", M, 0),
    STR("appendfilename", appendfilename, "appendonly.tarn", 0, 0),
    STR("appenddirname", appenddirname, "", 0, 0),
    BOOL("stop-writes-on-bgsave-error", stop_writes_on_save_error, "yes", M, 0),
    BOOL("aof-load-truncated", aof_load_truncated, "yes", M, 0),
    BOOL("aof-rewrite-incremental-fsync", aof_incremental_fsync, "yes", M, 0),
    BOOL("rdb-save-incremental-fsync", save_incremental_fsync, "yes", M, 0),
    ENUM("appendfsync", appendfsync, "everysec", fsync_words, M, 0),
    BOOL("no-appendfsync-on-rewrite", no_fsync_on_rewrite, "no", M, 0),
    NUM(CONFIG_INT, "auto-aof-rewrite-percentage", aof_rewrite_percentage, "100", 0, INT32_MAX, M,
        0),
    NUM(CONFIG_BYTES, "auto-aof-rewrite-min-size", aof_rewrite_min_size, "64mb", 0, BIG, M, 0),
    ENUM("pool-verify", pool_verify, "auto", verify_words, 0, 0),
    /* pool and data port */
    NUM(CONFIG_BYTES, "pool-size", pool_size, "1gb", 0, INT64_C(1) << 46, 0, 0),
    STR("pool-path", pool_path, "", 0, 0),
    BOOL("pool-path-shrink", pool_path_shrink, "no", 0, 0),
    BOOL("pool-populate", pool_populate, "yes", 0, 0),
    ENUM("huge-pages", huge_pages, "try", huge_words, 0, 0),
    NUM(CONFIG_INT, "numa-node", numa_node, "-1", -1, 1023, 0, 0),
    NUM(CONFIG_PORT_OR_AUTO, "data-port", data_port, "auto", 0, 65535, 0, 0),
    NUM(CONFIG_INT, "data-threads", data_threads, "2", 1, 256, 0, 0),
    NUM(CONFIG_INT, "data-maxclients", data_maxclients, "4096", 1, 1000000, 0, 0),
    NUM(CONFIG_MS, "data-timeout", data_timeout_ms, "10s", 100, 86400000, 0, 0),
    STR("shm-socket", shm_socket, "auto", 0, 0),
    NUM(CONFIG_OCTAL, "shm-socket-perm", shm_socket_perm, "600", 0, 0777, 0, 0),
    STR("announce-host", announce_host, "", M, 0),
    NUM(CONFIG_BYTES, "inband-buffer", inband_buffer, "256mb", 16 << 20, BIG, M, 0),
    NUM(CONFIG_MS, "inband-stall-timeout", inband_stall_timeout_ms, "10s", 100, 86400000, M, 0),
    NUM(CONFIG_MS, "inband-hold-timeout", inband_hold_timeout_ms, "60s", 0, 86400000, M, 0),
    NUM(CONFIG_MS, "inband-wait-timeout", inband_wait_timeout_ms, "15s", 0, 86400000, M, 0),
    NUM(CONFIG_INT, "inband-threads", inband_threads, "4", 1, 64, 0, 0),
    NUM(CONFIG_INT, "io-threads", io_threads, "1", 1, 128, 0, 0),
    BOOL("io-threads-do-reads", io_threads_do_reads, "no", 0, 0),
    ENUM("allocator", allocator, "offset", allocators, 0, 0),
    /* books, leases, puts, eviction */
    NUM(CONFIG_COUNT, "max-objects", max_objects, "0", 0, BIG, M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_BYTES, "maxmemory", maxmemory, "0", 0, BIG, M, CONFIG_TELL_BOOKS),
    ENUM("eviction-policy", eviction_policy, "chain", policies, M, CONFIG_TELL_POLICY),
    RATIO("eviction-high-watermark", eviction_high_watermark, "0.9", 0.01, 1, M, CONFIG_TELL_BOOKS),
    RATIO("hard-pin-ratio", hard_pin_ratio, "0.5", 0, 1, M, CONFIG_TELL_BOOKS),
    RATIO("hard-pin-user-ratio", hard_pin_user_ratio, "0.25", 0, 1, M, CONFIG_TELL_BOOKS),
    RATIO("eviction-ratio", eviction_ratio, "0.05", 0.0001, 1, M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_BYTES, "prefill-rate", prefill_rate, "512mb", 1024, BIG, M, CONFIG_TELL_BOOKS),
    {"evict-together-suffixes", CONFIG_LIST, AT(evict_together), "kv_bytes metadata", 0, 0, 0, 0,
     NULL, M, CONFIG_TELL_BOOKS},
    NUM(CONFIG_INT, "lfu-log-factor", lfu_log_factor, "10", 0, 10000, M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_INT, "lfu-decay-time", lfu_decay_minutes, "1", 0, 100000, M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_MS, "max-lease", max_lease_ms, "10s", 10, 3600000, M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_MS, "max-wait", max_wait_ms, "1h", 1, 86400000, M, 0),
    NUM(CONFIG_MS, "put-timeout", put_timeout_ms, "30s", 10, 86400000, M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_BYTES, "put-timeout-rate", put_timeout_rate, "100000000", 1024, BIG, M,
        CONFIG_TELL_BOOKS),
    BOOL("put-receipts", put_receipts, "yes", M, 0),
    NUM(CONFIG_MS, "put-release-timeout", put_release_timeout_ms, "10min", 10, INT64_C(604800000),
        M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_MS, "soft-pin-ttl", soft_pin_ms, "30min", 1, INT64_C(31536000000), M,
        CONFIG_TELL_BOOKS),
    NUM(CONFIG_COUNT, "max-leases-per-client", max_leases_per_client, "1048576", 1, BIG, M,
        CONFIG_TELL_BOOKS),
    NUM(CONFIG_COUNT, "max-puts-per-client", max_puts_per_client, "1048576", 1, BIG, M,
        CONFIG_TELL_BOOKS),
    NUM(CONFIG_COUNT, "max-batch-keys", max_batch_keys, "1000000", 1, 1048576, M, 0),
    NUM(CONFIG_BYTES, "module-state-max", module_state_max, "16mb", 0, INT64_C(1) << 30, M, 0),
    /* replication */
    {"replicaof", CONFIG_LIST, AT(replicaof), "", 0, 0, 0, 0, NULL, 0, 0},
    STR("masteruser", masteruser, "", M | CONFIG_SECRET, CONFIG_TELL_REPLICATION),
    {"masterauth", CONFIG_BINARY, AT(masterauth), "", 0, 0, 0, 0, NULL, M | CONFIG_SECRET,
     CONFIG_TELL_REPLICATION},
    STR("replica-announce-ip", replica_announce_ip, "", M, CONFIG_TELL_REPLICATION),
    NUM(CONFIG_INT, "replica-announce-port", replica_announce_port, "0", 0, 65535, M,
        CONFIG_TELL_REPLICATION),
    BOOL("replica-announced", replica_announced, "yes", M, 0),
    NUM(CONFIG_INT, "replica-priority", replica_priority, "100", 0, INT32_MAX, M, 0),
    BOOL("replica-serve-stale-data", replica_serve_stale_data, "yes", M, 0),
    BOOL("repl-disable-tcp-nodelay", repl_disable_tcp_nodelay, "no", M, 0),
    NUM(CONFIG_BYTES, "repl-backlog-size", repl_backlog_size, "64mb", 1024, INT64_C(1) << 40, M,
        CONFIG_TELL_REPLICATION),
    NUM(CONFIG_INT, "repl-backlog-ttl", repl_backlog_ttl_s, "3600", 0, INT32_MAX, M, 0),
    NUM(CONFIG_INT, "repl-ping-replica-period", repl_ping_period_s, "10", 1, INT32_MAX, M, 0),
    NUM(CONFIG_INT, "repl-timeout", repl_timeout_s, "60", 1, INT32_MAX, M, CONFIG_TELL_REPLICATION),
    NUM(CONFIG_INT, "min-replicas-to-write", min_replicas_to_write, "0", 0, INT32_MAX, M, 0),
    NUM(CONFIG_INT, "min-replicas-max-lag", min_replicas_max_lag_s, "10", 0, INT32_MAX, M, 0),
    ENUM("propagation-error-behavior", propagation_error, "ignore", propagation_words, M, 0),
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
    ONLY("cluster-enabled", "no", "CLUSTER SETMAP makes a server one of several masters"),
    /* the pool of many machines */
    {"cluster-shard", CONFIG_LIST, AT(cluster_shard), "", 0, 0, 0, 0, NULL, M, 0},
    STR("cluster-id", cluster_id, "", 0, 0),
    NUM(CONFIG_MS, "node-timeout", node_timeout_ms, "10s", 100, 3600000, M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_MS, "node-heartbeat", node_heartbeat_ms, "1s", 20, 60000, M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_MS, "node-forget-timeout", node_forget_timeout_ms, "1h", 1000, INT64_C(2592000000),
        M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_COUNT, "max-nodes", max_nodes, "1024", 0, 32768, M, CONFIG_TELL_BOOKS),
    ENUM("placement-strategy", placement_strategy, "local-first", placements, M,
         CONFIG_TELL_PLACEMENT),
    NUM(CONFIG_COUNT, "tasks-per-node", tasks_per_node, "4", 1, 1024, M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_COUNT, "max-tasks", max_tasks, "10000", 16, 1000000, M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_COUNT, "task-retries", task_retries, "3", 0, 100, M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_MS, "task-timeout", task_timeout_ms, "30s", 100, 86400000, M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_BYTES, "task-timeout-rate", task_rate, "10000000", 1024, BIG, M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_COUNT, "hot-replicas", hot_replicas, "0", 0, STORE_REPLICAS_MAX, M,
        CONFIG_TELL_BOOKS),
    NUM(CONFIG_MS, "hot-window", hot_window_ms, "10s", 100, 3600000, M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_COUNT, "hot-threshold", hot_threshold, "1000", 1, UINT32_MAX, M, CONFIG_TELL_BOOKS),
    ENUM("ssd-offload", ssd_offload, "all", offload_words, M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_COUNT, "offload-queue", offload_queue, "65536", 1, 10000000, M, CONFIG_TELL_BOOKS),
    NUM(CONFIG_MS, "offload-wait", offload_wait_ms, "5s", 0, 3600000, M, CONFIG_TELL_BOOKS),
};
const size_t config_row_count = ARRAY_LEN(config_rows);

/* Redis' name for eviction-policy, with Redis' words. */
static const struct config_row redis_policy_row = ENUM(
    "maxmemory-policy", eviction_policy, "allkeys-chain", redis_policies, M, CONFIG_TELL_POLICY);

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
