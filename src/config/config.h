/* The configuration: one table row per option says its name, type, default, bounds, whether CONFIG
 * SET may change it, and what has to be told when it does. Values are read typed, as
 * config->field.
 *
 * Sources, later ones win: defaults, the file (with its includes), the command line, CONFIG SET. */
#ifndef TARN_CONFIG_CONFIG_H
#define TARN_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

#define CONFIG_WORDS_MAX 16u

/* Up to CONFIG_WORDS_MAX words, for bind. */
/* Any bytes: passwords. Ends in a zero that is not counted. */
struct config_binary {
    char *data;
    size_t len;
};
struct config_list {
    size_t n;
    char *word[CONFIG_WORDS_MAX];
};

struct config_output_limit {
    uint64_t hard, soft;
    uint64_t soft_s;
};
enum config_output_class {
    CONFIG_OUTPUT_NORMAL,
    CONFIG_OUTPUT_REPLICA,
    CONFIG_OUTPUT_PUBSUB,
    CONFIG_OUTPUT_CLASSES
};

/* latency-tracking-info-percentiles: 0 .. 100 */
#define CONFIG_PERCENTILES_MAX 16u
struct config_percentiles {
    size_t n;
    double percent[CONFIG_PERCENTILES_MAX];
};

/* A snapshot when so many changes are that many seconds old. */
#define CONFIG_SAVE_MAX 16u
struct config_save {
    size_t n;
    struct {
        uint64_t seconds, changes;
    } rule[CONFIG_SAVE_MAX];
};

#define CONFIG_INTS_N 3u

/* Lines that may come several times, without their first word:
 *
 *   rename-command OLD NEW      NEW "": it is gone
 *   loadmodule FILE [word ...]
 *   user NAME [rule ...] */
struct config_lines {
    struct config_line {
        char **word;
        size_t n;
        unsigned source; /* where a user was said: a file, the command line */
    } * line;
    size_t n;
};

/* Who is told when options change. */
enum config_tell {
    CONFIG_TELL_NOBODY, /* the value is read where it is used */
    CONFIG_TELL_ACL_LOG,
    CONFIG_TELL_ACL_PUBSUB,
    CONFIG_TELL_APPENDONLY,
    CONFIG_TELL_BG_THREAD,
    CONFIG_TELL_CRASH_LOG,
    CONFIG_TELL_DIR,
    CONFIG_TELL_KV_EVENTS,
    CONFIG_TELL_LATENCY,
    CONFIG_TELL_LISTENERS,
    CONFIG_TELL_LOG_FILE,
    CONFIG_TELL_LOG_LEVEL,
    CONFIG_TELL_LOOP_PRIORITY,
    CONFIG_TELL_MAXCLIENTS,
    CONFIG_TELL_MAXMEMORY_CLIENTS,
    CONFIG_TELL_NOTIFY,
    CONFIG_TELL_OOM_SCORE,
    CONFIG_TELL_PASSWORD,
    CONFIG_TELL_PLACEMENT,
    CONFIG_TELL_POLICY,
    CONFIG_TELL_SLOWLOG,
    CONFIG_TELL_SOURCE,
    CONFIG_TELL_BOOKS,
    CONFIG_TELL_TITLE,
    CONFIG_TELL_TLS,
    CONFIG_TELL_TLS_PORT,
    CONFIG_TELL_REPLICATION,
    CONFIG_TELLS,
};
/* false: *why_p is static text, the old value returns. */
typedef bool (*config_tell_fn)(const char **why_p);
/* By enum config_tell; set when a server is put together. NULL: nobody is there to be told. */
extern const config_tell_fn *config_told;

struct config {
    /* network */
    struct config_list bind;
    /* -1: any; 0: none, or any where nothing else would listen; core_endpoints.port tells */
    int64_t port;
    char *port_file, *unixsocket;
    int64_t unixsocketperm; /* octal in the text */
    int64_t tcp_backlog, tcp_keepalive_s, timeout_s, maxclients;
    bool protected_mode;
    struct config_binary requirepass;
    char *aclfile;
    int64_t acllog_max_len;
    int acl_pubsub_default;
    uint64_t client_query_buffer_limit, proto_max_bulk_len;
    struct config_output_limit output_limit[CONFIG_OUTPUT_CLASSES];
    int64_t tracking_table_max_keys; /* of CLIENT TRACKING; 0: no limit */
    /* bytes of all connections; < 0: per cent of maxmemory; 0: no limit */
    int64_t maxmemory_clients;
    int64_t socket_mark_id;
    char *bind_source_addr;
    /* TLS: names and meaning are Redis' */
    int64_t tls_port; /* 0: none; -1: any */
    char *tls_cert_file, *tls_key_file, *tls_key_file_pass;
    char *tls_client_cert_file, *tls_client_key_file, *tls_client_key_file_pass;
    char *tls_ca_cert_file, *tls_ca_cert_dir, *tls_dh_params_file;
    char *tls_server_name;
    bool tls_verify_name;
    int tls_auth_clients; /* enum tls_auth */
    char *tls_protocols, *tls_ciphers, *tls_ciphersuites;
    bool tls_prefer_server_ciphers, tls_session_caching, tls_replication, tls_data;
    int64_t tls_session_cache_size, tls_session_cache_timeout_s;
    uint64_t tls_handshake_timeout_ms;
    uint64_t output_pause; /* unsent bytes from which on a client's commands wait */
    /* process */
    bool daemonize;
    char *pidfile, *logfile, *dir;
    int loglevel;
    int welcome;
    bool always_show_logo;
    int supervised;
    bool set_proc_title;
    char *proc_title_template;
    bool syslog_enabled;
    char *syslog_ident;
    int syslog_facility;
    int oom_score_adj;
    int64_t oom_score_adj_values[CONFIG_INTS_N]; /* of a master, a replica, a child */
    bool disable_thp, crash_log_enabled, dynamic_hz, lazy_user_flush, jemalloc_bg_thread;
    int shutdown_on_sigint, shutdown_on_sigterm; /* CONFIG_SHUTDOWN_* */
    int64_t shutdown_timeout_s;
    int64_t databases; /* numbers that SELECT takes; they all name the one keyspace */
    int enable_protected_configs;
    int propagation_error;
    bool rdbcompression;
    int64_t hz, loop_work_quota, active_expire_effort, busy_poll_us;
    int64_t loop_priority; /* 0: as any other thread */
    int enable_debug_command, enable_module_command;
    int64_t slowlog_slower_than_us, slowlog_max_len;
    int64_t latency_monitor_threshold_ms; /* 0: the monitor is off */
    bool latency_tracking;
    unsigned notify_classes; /* enum notify_class */
    uint64_t kv_events_size; /* bytes of the ring; 0: off */
    struct config_percentiles latency_percentiles;
    /* persistence */
    struct config_save save;
    bool appendonly, no_fsync_on_rewrite;
    char *dbfilename, *appendfilename, *appenddirname;
    bool stop_writes_on_save_error, aof_load_truncated, aof_incremental_fsync,
        save_incremental_fsync;
    int appendfsync;
    int64_t aof_rewrite_percentage;
    uint64_t aof_rewrite_min_size;
    int pool_verify;
    /* pool and data port */
    uint64_t pool_size;
    char *pool_path;
    bool pool_path_shrink;
    bool pool_populate;
    int huge_pages;
    int64_t numa_node;
    int64_t data_port; /* -1: port + 10000; 0: any */
    int64_t data_threads, data_maxclients;
    uint64_t data_timeout_ms;
    char *shm_socket; /* "auto", "" or a path */
    int64_t shm_socket_perm;
    char *announce_host;
    uint64_t inband_buffer, inband_stall_timeout_ms, inband_hold_timeout_ms, inband_wait_timeout_ms;
    int64_t inband_threads;
    int64_t io_threads;
    bool io_threads_do_reads;
    int allocator;
    /* books, leases, puts, eviction */
    uint64_t max_objects, maxmemory;
    int eviction_policy;
    uint64_t prefill_rate;
    double eviction_high_watermark, eviction_ratio, hard_pin_ratio, hard_pin_user_ratio;
    struct config_list evict_together;
    int64_t lfu_log_factor, lfu_decay_minutes;
    uint64_t max_lease_ms, max_wait_ms;
    uint64_t put_timeout_ms, put_timeout_rate, put_release_timeout_ms, soft_pin_ms;
    bool put_receipts;
    uint64_t max_leases_per_client, max_puts_per_client, max_batch_keys;
    uint64_t module_state_max; /* bytes that one module may keep */
    /* replication */
    struct config_list replicaof; /* host and port; none: a master */
    char *masteruser, *replica_announce_ip;
    struct config_binary masterauth;
    int64_t replica_announce_port, replica_priority;
    bool replica_announced, replica_serve_stale_data, repl_disable_tcp_nodelay;
    uint64_t repl_backlog_size;
    int64_t repl_backlog_ttl_s, repl_ping_period_s, repl_timeout_s;
    int64_t min_replicas_to_write, min_replicas_max_lag_s;
    /* the pool of many machines */
    struct config_list cluster_shard; /* its name and servers of others; none: nobody is asked */
    char *cluster_id;                 /* 32 hex digits; "": random */
    uint64_t node_timeout_ms, node_heartbeat_ms, node_forget_timeout_ms, max_nodes;
    int placement_strategy;
    uint64_t tasks_per_node, max_tasks, task_retries, task_timeout_ms, task_rate;
    uint64_t hot_replicas, hot_window_ms, hot_threshold;
    int ssd_offload;
    uint64_t offload_queue, offload_wait_ms;
    /* No option of the table: repeated, and not for CONFIG GET and SET. */
    struct config_lines modules, users, renames;
    struct buf ignored; /* options of Redis that mean nothing here: "a, b", each once */
    size_t n_ignored;
};
/* The values in force in this process; set when it serves. CONFIG SET changes them in place. */
extern struct config *config;

/* Indices of the enumerated options. */
/* welcome */
enum { CONFIG_AUTO, CONFIG_NO, CONFIG_YES };
/* appendfsync */
enum { CONFIG_FSYNC_ALWAYS, CONFIG_FSYNC_EVERYSEC, CONFIG_FSYNC_NO };
/* pool-verify */
enum { CONFIG_VERIFY_AUTO, CONFIG_VERIFY_NONE, CONFIG_VERIFY_SAMPLE, CONFIG_VERIFY_ALL };
enum { CONFIG_PROPAGATION_IGNORE, CONFIG_PROPAGATION_PANIC, CONFIG_PROPAGATION_PANIC_ON_REPLICAS };
/* enable-debug-command, enable-module-command, enable-protected-configs */
enum { CONFIG_PROTECTED_NO, CONFIG_PROTECTED_YES, CONFIG_PROTECTED_LOCAL };
enum { CONFIG_SUPERVISED_NO, CONFIG_SUPERVISED_SYSTEMD, CONFIG_SUPERVISED_AUTO };
enum { CONFIG_OOM_NO, CONFIG_OOM_YES, CONFIG_OOM_RELATIVE, CONFIG_OOM_ABSOLUTE };
/* Bits of shutdown-on-sigint and shutdown-on-sigterm. */
enum {
    CONFIG_SHUTDOWN_SAVE = 1,
    CONFIG_SHUTDOWN_NOSAVE = 2,
    CONFIG_SHUTDOWN_NOW = 4,
    CONFIG_SHUTDOWN_FORCE = 8
};
enum { CONFIG_NO_CHANNELS, CONFIG_ALL_CHANNELS };       /* acl-pubsub-default */
const char *config_policy_name(const struct config *c); /* of eviction-policy */
/* of maxmemory-policy: "allkeys-lru" ... */
const char *config_policy_redis_name(const struct config *c);
const char *config_allocator_name(const struct config *c); /* "offset", "slab" */
const char *config_placement_name(const struct config *c); /* of placement-strategy */
/* cluster-id as 16 bytes; false: there is none, or it is not 32 hex digits. */
bool config_cluster_id(const struct config *c, uint8_t out[16]);

/* All defaults. */
void config_binary_set(struct config_binary *b, struct span s);
void config_init(struct config *c);
void config_deinit(struct config *c);

/* Where an option came from, for messages. */
struct config_origin {
    const char *file; /* "redis.conf", "standard input", "command line" */
    unsigned line;
};

/* false: *why_p has a line for each fault, which names file (name), line, option and what is
 * allowed (the caller frees it). Nothing takes effect outside of *c. */
bool config_load_text(struct config *c, const char *name, const char *text, size_t len,
                      char **why_p);
/* argv after the program's name: [FILE | -] [--option value ...] [-]. The file's absolute path is
 * remembered for REWRITE. */
bool config_load_args(struct config *c, int argc, char **argv, char **why_p);
/* What single rows cannot say: values that contradict each other, a line each. */
bool config_validate(const struct config *c, char **why_p);

/* proc-title-template, with each of its variables as append says it. false: it names something that
 * there is not. */
bool config_title(const struct config *c,
                  void (*append)(const struct config *c, const char *name, struct buf *out),
                  struct buf *out);
bool config_title_valid(const struct config *c);

const char *config_file(void); /* "" without one */
/* As one would write it: "1gb", "* -::*". The option must be one. */
const char *config_default(const char *name);

/* --- while the server runs --- */

/* For each option whose name matches one of the n glob patterns. value is borrowed. */
void config_get(const struct config *c, const struct span *patterns, size_t n,
                void (*fn)(void *arg, const char *name, struct span value), void *arg);
/* Sets n name/value pairs and tells the server, all or none. false: *option_p is the name concerned
 * (borrowed from pairs or the table), *why_p says why. */
bool config_set(struct config *c, const struct span *pairs, size_t n, struct span *option_p,
                char **why_p);
/* Writes the options in force to the file: comments stay, changed lines change in place. */
/* all: also what is as it is without being said. */
bool config_rewrite(const struct config *c, bool all, char **why_p);
/* Only who enable-protected-configs lets may change it. */
bool config_is_guarded(struct span name);

/* "10", "10ms", "10s", "5min", "1h", "1d" in milliseconds. 0 on failure. */
int config_parse_ms(struct span s, uint64_t *ms_p);

/* --- what else keeps things in the file --- */

/* The users that there are now, for CONFIG REWRITE: a line of the file stays, is written anew or
 * goes; the others are appended, with before called in front of each. */
struct config_users_now;
struct config_users_ops {
    struct config_users_now *(*now)(void);
    void (*line)(struct config_users_now *now, const struct span *words, size_t n, struct span line,
                 struct buf *out);
    void (*rest)(struct config_users_now *now, struct buf *out, void (*before)(struct buf *out));
    void (*free)(struct config_users_now **now_p);
};
/* Set when a server is put together. NULL: there are no users. */
extern const struct config_users_ops *config_users;

/* Writes a file beside path and renames it over path; it keeps the mode of the old one, or is for
 * its owner only. false: errno. */
bool config_write_beside(const char *path, const struct buf *text);

/* A value as a word of the file. */
void config_append_word(struct buf *out, struct span v);
/* printf to a new string. */
char *config_text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
