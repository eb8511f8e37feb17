/* The configuration: one table row per option says its name, type, default, bounds, whether CONFIG SET may change it, and
 * what has to be told when it does. Values are read typed, as server.config->field.
 *
 * Sources, later ones win: defaults, the file (with its includes), the command line, CONFIG SET. */
#ifndef TARN_CMD_CONFIG_H
#define TARN_CMD_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

#define CONFIG_WORDS_MAX 16u

/* Up to CONFIG_WORDS_MAX words, for bind. */
struct config_list {
    size_t n;
    char *word[CONFIG_WORDS_MAX];
};

struct config_output_limit {
    uint64_t hard, soft;
    uint64_t soft_s;
};
enum config_output_class { CONFIG_OUTPUT_NORMAL, CONFIG_OUTPUT_PUBSUB, CONFIG_OUTPUT_CLASSES };

struct config {
    /* network */
    struct config_list bind;
    int64_t port; /* 0: any; server_port() tells */
    char *port_file, *unixsocket;
    int64_t unixsocketperm; /* octal in the text */
    int64_t tcp_backlog, tcp_keepalive_s, timeout_s, maxclients;
    bool protected_mode;
    char *requirepass;
    uint64_t client_query_buffer_limit, proto_max_bulk_len;
    struct config_output_limit output_limit[CONFIG_OUTPUT_CLASSES];
    uint64_t output_pause; /* unsent bytes from which on a client's commands wait */
    /* process */
    bool daemonize;
    char *pidfile, *logfile, *dir;
    int loglevel;
    int welcome;
    int64_t hz, loop_work_quota;
    int enable_debug_command;
    int64_t slowlog_slower_than_us, slowlog_max_len;
    bool latency_tracking;
    char *save;
    bool appendonly;
    /* pool and data port */
    uint64_t pool_size;
    char *pool_path;
    bool pool_populate;
    int huge_pages;
    int64_t numa_node;
    int64_t data_port; /* -1: port + 10000; 0: any */
    int64_t data_threads, data_maxclients;
    uint64_t data_timeout_ms;
    char *shm_socket; /* "auto", "" or a path */
    int64_t shm_socket_perm;
    char *announce_host;
    int allocator;
    /* books, leases, puts, eviction */
    uint64_t max_objects, maxmemory;
    int eviction_policy;
    double eviction_high_watermark, eviction_ratio;
    int64_t lfu_log_factor, lfu_decay_minutes;
    uint64_t max_lease_ms, max_wait_ms;
    uint64_t put_timeout_ms, put_timeout_rate, put_release_timeout_ms, soft_pin_ms;
    uint64_t max_leases_per_client, max_puts_per_client, max_batch_keys;
};

/* Indices of the enumerated options. */
enum { CONFIG_AUTO, CONFIG_NO, CONFIG_YES };                    /* welcome */
enum { CONFIG_DEBUG_NO, CONFIG_DEBUG_YES, CONFIG_DEBUG_LOCAL }; /* enable-debug-command */
const char *config_policy_name(const struct config *c);         /* of eviction-policy */
const char *config_allocator_name(const struct config *c);      /* "offset", "slab" */

/* All defaults. */
void config_init(struct config *c);
void config_deinit(struct config *c);

/* Where an option came from, for messages. */
struct config_origin {
    const char *file; /* "redis.conf", "standard input", "command line" */
    unsigned line;
};

/* Reads a file; "-" is standard input. false: *why_p is a message that names file, line, option and what is allowed (the
 * caller frees it). Nothing takes effect outside of *c. */
bool config_load_file(struct config *c, const char *path, char **why_p);
/* The same from memory. */
bool config_load_text(struct config *c, const char *name, const char *text, size_t len, char **why_p);
/* argv after the program's name: [FILE | -] [--option value ...]. The file's absolute path is remembered for REWRITE. */
bool config_load_args(struct config *c, int argc, char **argv, char **why_p);
/* What single rows cannot say: values that contradict each other. */
bool config_validate(const struct config *c, char **why_p);

const char *config_file(void); /* "" without one */

/* --- while the server runs ------------------------------------------------------------------------------------------------ */

/* For each option whose name matches one of the n glob patterns. value is borrowed. */
void config_get(const struct config *c, const struct span *patterns, size_t n,
                void (*fn)(void *arg, const char *name, struct span value), void *arg);
/* Sets n name/value pairs and tells the server, all or none. false: *option_p is the name concerned (borrowed from pairs
 * or the table), *why_p says why. */
bool config_set(struct config *c, const struct span *pairs, size_t n, struct span *option_p, char **why_p);
/* Writes the options in force to the file: comments stay, changed lines change in place. */
bool config_rewrite(const struct config *c, char **why_p);
/* Passwords and the like. */
bool config_is_secret(struct span name);

/* "10", "10ms", "10s", "5min", "1h", "1d" in milliseconds. 0 on failure. */
int config_parse_ms(struct span s, uint64_t *ms_p);

#endif
