/* INFO: Redis' sections with Redis' names. Every figure is measured; where tarn has no such thing,
 * the figure says so (0, no, empty). The pool's own sections are in info_pool.c. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "base/assert.h"
#include "cmd/channels.h"
#include "cmd/client.h"
#include "cmd/core.h"
#include "cmd/expire_cycle.h"
#include "cmd/families.h"
#include "cmd/heap.h"
#include "cmd/info.h"
#include "cmd/persistence.h"
#include "cmd/introspect.h"
#include "cmd/process.h"
#include "cmd/replication.h"
#include "cmd/shutdown.h"
#include "cmd/reply.h"
#include "cmd/stats.h"
#include "cmd/table.h"
#include "cmd/tracking.h"
#include "cmd/waiters.h"
#include "cmd/watch.h"

typedef unsigned long long ull;

void info_line(struct buf *out, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(out, fmt, ap);
    va_end(ap);
    buf_append(out, "\r\n", 2);
}

const char *info_human(uint64_t bytes, char text[32]) {
    static const char units[] = "BKMGTP";
    double v = (double)bytes;
    unsigned u = 0;
    while (v >= 1024 && u + 2 < sizeof(units)) v /= 1024, u++;
    if (u == 0)
        snprintf(text, 32, "%lluB", (ull)bytes);
    else
        snprintf(text, 32, "%.2f%c", v, units[u]);
    return text;
}

static void write_server(struct buf *out) {
    static struct utsname name;
    if (name.sysname[0] == '\0' && uname(&name) != 0)
        snprintf(name.sysname, sizeof(name.sysname), "?");
    uint64_t up = (server.mono_ms - stats.start_mono_ms) / 1000;
    info_line(out, "redis_version:7.0.15");
    info_line(out, "tarn_version:" TARN_VERSION);
    info_line(out, "redis_mode:standalone");
    info_line(out, "os:%s %s %s", name.sysname, name.release, name.machine);
    info_line(out, "arch_bits:%zu", 8 * sizeof(void *));
    info_line(out, "monotonic_clock:POSIX clock_gettime");
    info_line(out, "multiplexing_api:epoll");
    info_line(out, "event_loop:%s", net_loop_backend(core_loop()));
    info_line(out, "compiler:" __VERSION__);
    info_line(out, "process_id:%ld", (long)getpid());
    info_line(out, "process_supervised:%s", process_supervised() ? "systemd" : "no");
    info_line(out, "run_id:%s", server.run_id);
    info_line(out, "tcp_port:%u", core_endpoints.port);
    info_line(out, "tls_port:%u", core_endpoints.tls_port);
    info_line(out, "data_port:%u", core_endpoints.data_port);
    info_line(out, "shm_socket:%s", core_endpoints.shm_path);
    info_line(out, "server_time_usec:%llu", (ull)server.wall_us);
    info_line(out, "uptime_in_seconds:%llu", (ull)up);
    info_line(out, "uptime_in_days:%llu", (ull)up / 86400);
    info_line(out, "hz:%u", core_hz());
    info_line(out, "configured_hz:%lld", (long long)server.config->hz);
    info_line(out, "lru_clock:%llu", (ull)(server.wall_ms / 1000 & 0xffffff));
    info_line(out, "executable:%s", core_endpoints.executable);
    info_line(out, "config_file:%s", config_file());
    if (shutdown_left_ms() > 0)
        info_line(out, "shutdown_in_milliseconds:%llu", (ull)shutdown_left_ms());
    info_line(out, "io_threads_active:%d", client_away_active());
    info_line(out, "master_epoch:%u", server.master_epoch);
    info_line(out, "loop_turns:%llu", (ull)stats.turns);
    info_line(out, "loop_active_usec:%llu", (ull)stats.active_ns / 1000);
    info_line(out, "loop_longest_turn_usec:%llu", (ull)stats.longest_turn_ns / 1000);
    info_line(out, "loop_work_quota:%u", job_quota());
}

static void write_clients(struct buf *out) {
    uint64_t until;
    static const char *const pauses[] = {"none", "write", "all"};
    size_t in = 0, unsent = 0, memory = 0, postponed = 0;
    for (const struct client *c = clients.head; c != NULL; c = c->io->all.next) {
        size_t i = c->io->in.len - c->io->in_pos + c->io->heap_bytes, o = client_unsent(c);
        if (i > in) in = i;
        postponed += (c->io->flags & CLIENT_POSTPONED) != 0;
        if (o > unsent) unsent = o;
        memory += client_memory(c);
    }
    enum pause_what pause = pause_get(&until);
    info_line(out, "connected_clients:%zu", clients.n);
    info_line(out, "cluster_connections:0");
    info_line(out, "maxclients:%lld", (long long)server.config->maxclients);
    info_line(out, "client_recent_max_input_buffer:%zu", in);
    info_line(out, "client_recent_max_output_buffer:%zu", unsent);
    info_line(out, "blocked_clients:%zu", jobs_count() + postponed);
    info_line(out, "waiting_clients:%zu", jobs_sleeping());
    info_line(out, "awaited_keys:%zu", waiters_count());
    info_line(out, "tracking_clients:%zu", tracking_count());
    info_line(out, "tracking_total_keys:%zu", tracking_keys());
    info_line(out, "clients_in_timeout_table:%zu", jobs_sleeping());
    info_line(out, "monitor_clients:%zu", monitor_count());
    info_line(out, "clients_memory:%zu", memory);
    info_line(out, "paused_actions:%s", pauses[pause]);
    info_line(out, "paused_timeout_milliseconds:%llu",
              pause != PAUSE_NONE && until > server.mono_ms ? (ull)(until - server.mono_ms) : 0ULL);
    info_line(out, "client_query_buffer_limit:%llu", (ull)server.config->client_query_buffer_limit);
    info_line(out, "client_output_buffer_limit_normal:%llu",
              (ull)server.config->output_limit[CONFIG_OUTPUT_NORMAL].hard);
    info_line(out, "client_output_buffer_limit_pubsub:%llu",
              (ull)server.config->output_limit[CONFIG_OUTPUT_PUBSUB].hard);
    info_line(out, "client_output_pause:%llu", (ull)server.config->output_pause);
    info_line(out, "max_batch_keys:%llu", (ull)server.config->max_batch_keys);
}

static double ratio(uint64_t a, uint64_t b) {
    return b > 0 ? (double)a / (double)b : 0;
}

static void human_line(struct buf *out, const char *name, uint64_t bytes) {
    char text[32];
    info_line(out, "%s:%llu", name, (ull)bytes);
    info_line(out, "%s_human:%s", name, info_human(bytes, text));
}

static void write_memory(struct buf *out) {
    struct store_stats s;
    store_get_stats(server.store, &s);
    uint64_t used = stats_used_memory(), rss = stats_resident_memory(), clients_memory = 0;
    uint64_t system = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    struct heap_figures a;
    heap_get_figures(&a);
    if (used > stats.peak_memory) stats.peak_memory = used;
    for (const struct client *c = clients.head; c != NULL; c = c->io->all.next)
        clients_memory += client_memory(c);
    uint64_t dataset = s.memory_records, overhead = used > dataset ? used - dataset : 0;
    uint64_t startup = core_endpoints.startup_memory, net = used > startup ? used - startup : 0;
    human_line(out, "used_memory", used);
    human_line(out, "used_memory_rss", rss);
    human_line(out, "used_memory_peak", stats.peak_memory);
    info_line(out, "used_memory_peak_perc:%.2f%%", 100 * ratio(used, stats.peak_memory));
    info_line(out, "used_memory_overhead:%llu", (ull)overhead);
    info_line(out, "used_memory_startup:%llu", (ull)startup);
    info_line(out, "used_memory_dataset:%llu", (ull)dataset);
    info_line(out, "used_memory_dataset_perc:%.2f%%", 100 * ratio(min_u64(dataset, net), net));
    info_line(out, "allocator_allocated:%zu", a.allocated);
    info_line(out, "allocator_active:%zu", a.active);
    info_line(out, "allocator_resident:%zu", a.resident);
    human_line(out, "total_system_memory", system);
    human_line(out, "used_memory_lua", 0);
    human_line(out, "used_memory_scripts", 0);
    info_line(out, "number_of_cached_scripts:0");
    human_line(out, "maxmemory", server.config->maxmemory);
    info_line(out, "maxmemory_policy:%s", config_policy_redis_name(server.config));
    info_line(out, "allocator_frag_ratio:%.2f", ratio(a.active, a.allocated));
    info_line(out, "allocator_frag_bytes:%zu", a.active > a.allocated ? a.active - a.allocated : 0);
    info_line(out, "allocator_rss_ratio:%.2f", ratio(a.resident, a.active));
    info_line(out, "allocator_rss_bytes:%zu", a.resident > a.active ? a.resident - a.active : 0);
    info_line(out, "mem_fragmentation_ratio:%.2f", ratio(rss, used));
    info_line(out, "mem_fragmentation_bytes:%lld", (long long)rss - (long long)used);
    info_line(out, "mem_not_counted_for_evict:%llu", (ull)(used > s.memory ? used - s.memory : 0));
    info_line(out, "mem_replication_backlog:%zu", replication_memory());
    info_line(out, "mem_clients_slaves:%zu", replication_client_memory());
    info_line(out, "mem_clients_normal:%llu", (ull)clients_memory - replication_client_memory());
    info_line(out, "mem_allocator:%s", heap_allocator());
    info_line(out, "active_defrag_running:0");
    info_line(out, "lazyfree_pending_objects:%llu", (ull)s.sweep_objects);
    info_line(out, "mem_books:%llu", (ull)s.memory);
    info_line(out, "mem_books_records:%llu", (ull)s.memory_records);
    info_line(out, "mem_books_blocks:%llu", (ull)s.memory_blocks);
    info_line(out, "mem_books_tables:%llu", (ull)s.memory_tables);
    info_line(out, "mem_books_leases:%llu", (ull)s.memory_leases);
    info_line(out, "mem_books_extras:%llu", (ull)s.memory_extras);
    info_line(out, "mem_books_spare:%llu", (ull)s.memory_spare);
    info_line(out, "mem_books_per_object:%.1f", ratio(s.memory, s.objects));
}

static void write_stats(struct buf *out) {
    struct store_stats s;
    store_get_stats(server.store, &s);
    info_line(out, "total_connections_received:%llu", (ull)stats.connections);
    info_line(out, "total_commands_processed:%llu", (ull)stats.commands);
    info_line(out, "instantaneous_ops_per_sec:%llu", (ull)stats_rate(&stats.ops));
    info_line(out, "total_net_input_bytes:%llu", (ull)stats.net_in);
    info_line(out, "total_net_output_bytes:%llu", (ull)stats.net_out);
    info_line(out, "instantaneous_input_kbps:%.2f", (double)stats_rate(&stats.in) / 1024);
    info_line(out, "instantaneous_output_kbps:%.2f", (double)stats_rate(&stats.out) / 1024);
    info_line(out, "rejected_connections:%llu", (ull)stats.rejected_connections);
    info_line(out, "denied_connections:%llu", (ull)stats.denied_connections);
    info_line(out, "tls_handshakes_failed:%llu", (ull)stats.tls_failures);
    info_line(out, "accept_failures:%llu", (ull)net_accept_failures());
    info_line(out, "idle_connections_closed:%llu", (ull)stats.idle_closed);
    info_line(out, "sync_full:%llu", (ull)replication.full);
    info_line(out, "sync_partial_ok:%llu", (ull)replication.partial_ok);
    info_line(out, "sync_partial_err:%llu", (ull)replication.partial_err);
    info_line(out, "expired_keys:%llu", (ull)s.expired);
    info_line(out, "expired_stale_perc:%.2f", expire_figures.stale_percent);
    info_line(out, "expired_time_cap_reached_count:%llu", (ull)expire_figures.cap_reached);
    info_line(out, "expire_cycle_cpu_milliseconds:%llu", (ull)(expire_figures.ns / 1000000));
    info_line(out, "evicted_keys:%llu", (ull)s.evicted_objects);
    info_line(out, "keyspace_hits:%llu", (ull)s.hits);
    info_line(out, "keyspace_misses:%llu", (ull)s.misses);
    info_line(out, "pubsub_channels:%zu", channel_count(CHANNEL_PLAIN));
    info_line(out, "pubsub_patterns:%zu", channel_count(CHANNEL_PATTERN));
    info_line(out, "pubsubshard_channels:%zu", channel_count(CHANNEL_SHARD));
    info_line(out, "watched_keys:%zu", watch_count);
    info_line(out, "latest_fork_usec:0");
    info_line(out, "total_forks:0");
    info_line(out, "total_error_replies:%llu", (ull)reply_errors());
    info_line(out, "total_auth_failures:%llu", (ull)stats.auth_failures);
    info_line(out, "total_protocol_errors:%llu", (ull)stats.protocol_errors);
    info_line(out, "total_reads_processed:%llu", (ull)(stats.reads + stats.reads_big));
    info_line(out, "io_threaded_reads_processed:%llu", (ull)stats.threaded_reads);
    info_line(out, "io_threaded_writes_processed:%llu", (ull)stats.threaded_writes);
    info_line(out, "total_writes_processed:%llu", (ull)stats.writes);
    info_line(out, "total_big_argument_bytes:%llu", (ull)stats.bytes_big);
    info_line(out, "client_query_buffer_limit_disconnections:%llu", (ull)stats.query_buffer_closed);
    info_line(out, "evicted_clients:%llu", (ull)stats.evicted_clients);
    info_line(out, "client_output_buffer_limit_disconnections:%llu",
              (ull)stats.output_buffer_closed);
    info_line(out, "unauthenticated_disconnections:%llu", (ull)stats.strangers_dropped);
    info_line(out, "inband_hold_timeouts:%llu", (ull)stats.hold_closed);
    info_line(out, "jobs_started:%llu", (ull)stats.jobs_started);
    info_line(out, "job_slices:%llu", (ull)stats.job_slices);
    info_line(out, "quota_yields:%llu", (ull)stats.quota_yields);
    info_line(out, "postponed_commands:%llu", (ull)stats.postponed);
    info_line(out, "slowlog_len:%zu", slowlog_len());
}

static void cpu_line(struct buf *out, const char *name, struct timeval tv) {
    info_line(out, "%s:%ld.%06ld", name, (long)tv.tv_sec, (long)tv.tv_usec);
}

static void write_cpu(struct buf *out) {
    struct rusage self, children, thread;
    getrusage(RUSAGE_SELF, &self);
    getrusage(RUSAGE_CHILDREN, &children);
    getrusage(RUSAGE_THREAD, &thread);
    cpu_line(out, "used_cpu_sys", self.ru_stime);
    cpu_line(out, "used_cpu_user", self.ru_utime);
    cpu_line(out, "used_cpu_sys_children", children.ru_stime);
    cpu_line(out, "used_cpu_user_children", children.ru_utime);
    cpu_line(out, "used_cpu_sys_main_thread", thread.ru_stime);
    cpu_line(out, "used_cpu_user_main_thread", thread.ru_utime);
}

static void write_commandstats(struct buf *out) {
    for (size_t i = 0; i < table_stat_count(); i++) {
        const struct cmd_stat *s = table_stat_at(i);
        if (s->calls == 0 && s->rejected == 0) continue;
        info_line(out,
                  "cmdstat_%s:calls=%llu,usec=%llu,usec_per_call=%.2f,rejected_calls=%llu,failed_"
                  "calls=%llu",
                  s->name, (ull)s->calls, (ull)s->ns / 1000, ratio(s->ns, s->calls) / 1000,
                  (ull)s->rejected, (ull)s->failed);
    }
}

static void one_errorstat(void *arg, const char *code, uint64_t count) {
    info_line(arg, "errorstat_%s:count=%llu", code, (ull)count);
}
static void write_errorstats(struct buf *out) {
    reply_errorstats(one_errorstat, out);
}

static void write_latencystats(struct buf *out) {
    const struct config_percentiles *p = &server.config->latency_percentiles;
    if (!server.config->latency_tracking) return;
    for (size_t i = 0; i < table_stat_count(); i++) {
        const struct cmd_stat *s = table_stat_at(i);
        if (s->latency == NULL || s->latency->count == 0) continue;
        buf_printf(out, "latency_percentiles_usec_%s:", s->name);
        for (size_t k = 0; k < p->n; k++)
            buf_printf(out, "%sp%.10g=%.3f", k > 0 ? "," : "", p->percent[k],
                       (double)hist_percentile(s->latency, p->percent[k] / 100) / 1000);
        buf_append(out, "\r\n", 2);
    }
}

static void write_cluster(struct buf *out) {
    info_line(out, "cluster_enabled:0");
}

/* The mean time to live of those that have one, from a sample. */
static uint64_t sample_ttl(void) {
    struct store_ttl_sample s;
    store_sample_ttl(server.store, 20, &s);
    return s.seen > s.stale ? s.left_ms / (s.seen - s.stale) : 0;
}

static void write_keyspace(struct buf *out) {
    struct store_stats s;
    uint64_t n = store_count(server.store);
    store_get_stats(server.store, &s);
    if (n > 0)
        info_line(out, "db0:keys=%llu,expires=%llu,avg_ttl=%llu", (ull)n, (ull)s.expires,
                  (ull)sample_ttl());
}

#define DEF INFO_DEFAULT
#define ALL INFO_ALL
const struct info_section info_sections[] = {
    {"server", "Server", DEF, false, write_server},
    {"clients", "Clients", DEF, false, write_clients},
    {"memory", "Memory", DEF, false, write_memory},
    {"persistence", "Persistence", DEF, false, info_write_persistence},
    {"stats", "Stats", DEF, false, write_stats},
    {"replication", "Replication", DEF, false, info_replication},
    {"cpu", "CPU", DEF, false, write_cpu},
    {"modules", "Modules", DEF, false, info_modules},
    {"commandstats", "Commandstats", ALL, false, write_commandstats},
    {"errorstats", "Errorstats", DEF, false, write_errorstats},
    {"latencystats", "Latencystats", ALL, false, write_latencystats},
    {"cluster", "Cluster", DEF, false, write_cluster},
    {"pool", "Pool", DEF, true, info_pool},
    {"cache", "Cache", DEF, true, info_cache},
    {"kvevents", "KV events", DEF, true, info_kv_events},
    {"eviction", "Eviction", DEF, true, info_eviction},
    {"data", "Data", DEF, true, info_data},
    {"nodes", "Nodes", DEF, true, info_nodes},
    {"tasks", "Tasks", DEF, true, info_tasks},
    {"inband", "Inband", DEF, true, info_inband},
    {"keyspace", "Keyspace", DEF, false, write_keyspace},
    {NULL, NULL, 0, false, NULL},
};

/* A name that is unknown asks for nothing: what clients of Redis ask for, and what is not here, is
 * an empty reply. */
static bool wanted(struct client *c, const struct info_section *s) {
    if (c->argc == 1) return s->in == INFO_DEFAULT;
    for (size_t i = 1; i < c->argc; i++) {
        if (arg_is(c, i, s->name) || arg_is(c, i, "all") || arg_is(c, i, "everything")) return true;
        if (arg_is(c, i, "default") && s->in == INFO_DEFAULT) return true;
        if (arg_is(c, i, "tarn") && s->of_tarn) return true;
    }
    return false;
}

void cmd_info(struct client *c) {
    struct buf out = {NULL, 0, 0};
    for (const struct info_section *s = info_sections; s->name != NULL; s++) {
        if (!wanted(c, s)) continue;
        buf_printf(&out, "%s# %s\r\n", out.len > 0 ? "\r\n" : "", s->title);
        s->write(&out);
    }
    reply_verbatim(c, "txt", span_of(out.data != NULL ? out.data : "", out.len));
    buf_free(&out);
}
