/* INFO: Redis' sections with Redis' names. Every figure is measured; where tarn has no such thing,
 * the figure says so (0, no, empty). The pool's own sections are in info_pool.c. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/spin.h"
#include "base/usage.h"
#include "host/host.h"
#include "inband/remote.h"
#include "front/channels.h"
#include "front/client.h"
#include "front/core.h"
#include "front/embedded.h"
#include "ha/expire_cycle.h"
#include "front/families.h"
#include "base/heap.h"
#include "commands/info.h"
#include "ha/kv_events.h"
#include "ha/persistence.h"
#include "front/introspect.h"
#include "front/process.h"
#include "ha/replication.h"
#include "ha/shutdown.h"
#include "front/reply.h"
#include "front/stats.h"
#include "front/table.h"
#include "front/shard.h"
#include "front/tracking.h"
#include "front/waiters.h"
#include "front/watch.h"
#include "config/config.h"
#include "front/module_durable.h"
#include "module/loader.h"
#include "store/figures.h"

static void write_server(struct figure_walk *f) {
    static struct utsname name;
    char os[256];
    if (name.sysname[0] == '\0' && uname(&name) != 0)
        snprintf(name.sysname, sizeof(name.sysname), "?");
    snprintf(os, sizeof(os), "%s %s %s", name.sysname, name.release, name.machine);
    uint64_t up = (turn.mono_ms - stats.start_mono_ms) / 1000;
    FIGURE(f, TEXT, redis_version, "of Redis, whose commands are here", "7.0.15");
    FIGURE(f, TEXT, tarn_version, "of this server", TARN_VERSION);
    FIGURE(f, TEXT, redis_mode, "cluster: one of many masters; standalone",
           shard_map != NULL ? "cluster" : "standalone");
    FIGURE(f, TEXT, os, "the operating system", os);
    FIGURE(f, GAUGE, arch_bits, "bits of a pointer", 8 * sizeof(void *));
    FIGURE(f, TEXT, monotonic_clock, "where time comes from", "POSIX clock_gettime");
    FIGURE(f, TEXT, multiplexing_api, "always epoll", "epoll");
    FIGURE(f, TEXT, event_loop, "what runs the loop", net_loop_backend(core_loop()));
    FIGURE(f, TEXT, compiler, "that built this server", __VERSION__);
    FIGURE(f, GAUGE, process_id, "of this server", getpid());
    FIGURE(f, TEXT, process_supervised, "by whom: systemd, no",
           process_supervised() ? "systemd" : "no");
    FIGURE(f, TEXT, run_id, "new at each start", server.run_id);
    FIGURE(f, GAUGE, tcp_port, "for clients (port)", core_endpoints.port);
    FIGURE(f, GAUGE, tls_port, "for clients with TLS, 0: none", core_endpoints.tls_port);
    FIGURE(f, GAUGE, data_port, "for the bytes of objects", core_endpoints.data_port);
    FIGURE(f, TEXT, shm_socket, "for shared memory", core_endpoints.shm_path);
    FIGURE(f, US, server_time_usec, "the server's time of day", turn.wall_us);
    FIGURE(f, SECONDS, uptime_in_seconds, "since the start", up);
    FIGURE(f, GAUGE, uptime_in_days, "since the start", up / 86400);
    FIGURE(f, GAUGE, hz, "turns of background work a second", core_hz());
    FIGURE(f, GAUGE, configured_hz, "... as configured (hz)", config->hz);
    FIGURE(f, SECONDS, lru_clock, "the time of day, its low 24 bits",
           turn.wall_ms / 1000 & 0xffffff);
    FIGURE(f, TEXT, executable, "this server's program", core_endpoints.executable);
    FIGURE(f, TEXT, config_file, "that it was started with", config_file());
    if (shutdown_left_ms() > 0)
        FIGURE(f, MS, shutdown_in_milliseconds, "SHUTDOWN waits for replicas so long",
               shutdown_left_ms());
    FIGURE(f, GAUGE, lease_batches, "1: MGETREPLICAS takes BATCH, as clients look up here", 1);
    FIGURE(f, GAUGE, put_batches, "1: MPUTSTART and MPUTEND take BATCH, likewise", 1);
    FIGURE(f, GAUGE, places_without_grants, "1: look-ups and puts take NOGRANT, likewise", 1);
    FIGURE(f, GAUGE, near_sockets, "1: there is CLIENT NEAR", 1);
    FIGURE(f, GAUGE, io_threads_active, "1: threads move values", client_away_active());
    FIGURE(f, GAUGE, master_epoch, "grows when another master takes over", server.master_epoch);
    FIGURES(f, stats_figures, stats, loop_turns, loop_turns);
    FIGURE(f, COUNTER_US, loop_active_usec, "time the loop was not asleep", stats.active_ns / 1000);
    FIGURE(f, US, loop_longest_turn_usec, "its longest turn", stats.longest_turn_ns / 1000);
    const struct spin *spin = net_loop_spin(core_loop());
    FIGURE(f, COUNTER, loop_busy_polls, "times it looked for more before it slept", spin->spins);
    FIGURE(f, COUNTER, loop_busy_poll_hits, "... and found it", spin->hits);
    FIGURE(f, GAUGE, loop_work_quota, "units of work in a slice", job_quota());
}

static void write_clients(struct figure_walk *f) {
    uint64_t until;
    static const char *const pauses[] = {"none", "write", "all"};
    size_t in = 0, unsent = 0, memory = 0, postponed = 0;
    CLIENTS_EACH(c) {
        size_t i = c->io->in.len - c->io->in_pos + c->io->heap_bytes, o = client_unsent(c);
        if (i > in) in = i;
        postponed += (c->io->flags & CLIENT_POSTPONED) != 0;
        if (o > unsent) unsent = o;
        memory += client_memory(c);
    }
    enum pause_what pause = pause_get(&until);
    FIGURE(f, GAUGE, connected_clients, "connections, without those of the data port", clients.n);
    FIGURE(f, GAUGE, cluster_connections, "always 0", 0);
    FIGURE(f, GAUGE, maxclients, "bound of connected_clients", config->maxclients);
    FIGURE(f, BYTES, client_recent_max_input_buffer, "the largest of a client now", in);
    FIGURE(f, BYTES, client_recent_max_output_buffer, "the largest of a client now", unsent);
    FIGURE(f, GAUGE, blocked_clients, "whose command is not over", jobs_count() + postponed);
    FIGURE(f, GAUGE, waiting_clients, "... because it waits", jobs_sleeping());
    FIGURE(f, GAUGE, awaited_keys, "keys that somebody waits for", waiters_count());
    FIGURE(f, GAUGE, tracking_clients, "with CLIENT TRACKING", tracking_count());
    FIGURE(f, GAUGE, tracking_total_keys, "keys they are told of", tracking_keys());
    FIGURE(f, GAUGE, clients_in_timeout_table, "as waiting_clients", jobs_sleeping());
    FIGURE(f, GAUGE, monitor_clients, "that see all commands", monitor_n);
    FIGURE(f, BYTES, clients_memory, "of all clients", memory);
    FIGURE(f, TEXT, paused_actions, "by CLIENT PAUSE: none, write, all", pauses[pause]);
    FIGURE(f, MS, paused_timeout_milliseconds, "... for how long",
           pause != PAUSE_NONE && until > turn.mono_ms ? until - turn.mono_ms : 0);
    FIGURE(f, BYTES, client_query_buffer_limit, "bound of a client's input buffer",
           config->client_query_buffer_limit);
    FIGURE(f, BYTES, client_output_buffer_limit_normal, "bound of its output buffer",
           config->output_limit[CONFIG_OUTPUT_NORMAL].hard);
    FIGURE(f, BYTES, client_output_buffer_limit_pubsub, "... of one that subscribes",
           config->output_limit[CONFIG_OUTPUT_PUBSUB].hard);
    FIGURE(f, BYTES, client_output_pause, "unsent bytes from which on its input waits",
           config->output_pause);
    FIGURE(f, GAUGE, max_batch_keys, "bound of keys in a command", config->max_batch_keys);
}

static double ratio(uint64_t a, uint64_t b) {
    return b > 0 ? (double)a / (double)b : 0;
}

static void write_memory(struct figure_walk *f) {
    struct store_stats s;
    store_get_stats(books, &s);
    uint64_t used = stats_used_memory(), rss = usage_resident_memory(), clients_memory = 0;
    uint64_t system = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    struct heap_figures a;
    heap_get_figures(&a);
    if (used > stats.peak_memory) stats.peak_memory = used;
    CLIENTS_EACH(c) clients_memory += client_memory(c);
    uint64_t dataset = s.mem_books_records, overhead = used > dataset ? used - dataset : 0;
    uint64_t startup = core_endpoints.startup_memory, net = used > startup ? used - startup : 0;
    FIGURE(f, SIZE, used_memory, "in use by this process, without the pool", used);
    FIGURE(f, SIZE, used_memory_rss, "resident, without the pool and program files", rss);
    FIGURE(f, SIZE, used_memory_peak, "the most used_memory there was", stats.peak_memory);
    FIGURE(f, PERCENT, used_memory_peak_perc, "used_memory of that",
           100 * ratio(used, stats.peak_memory));
    FIGURE(f, BYTES, used_memory_overhead, "all but used_memory_dataset", overhead);
    FIGURE(f, BYTES, used_memory_startup, "as it was at the start", startup);
    FIGURE(f, BYTES, used_memory_dataset, "the objects' records", dataset);
    FIGURE(f, PERCENT, used_memory_dataset_perc, "... of what was added since the start",
           100 * ratio(min_u64(dataset, net), net));
    FIGURE(f, BYTES, allocator_allocated, "on the heap", a.allocated);
    FIGURE(f, BYTES, allocator_active, "pages with something allocated", a.active);
    FIGURE(f, BYTES, allocator_resident, "pages that the allocator holds", a.resident);
    FIGURE(f, SIZE, total_system_memory, "of this machine", system);
    FIGURE(f, SIZE, used_memory_lua, "always 0", 0);
    FIGURE(f, SIZE, used_memory_scripts, "always 0", 0);
    FIGURE(f, GAUGE, number_of_cached_scripts, "always 0", 0);
    FIGURE(f, SIZE, maxmemory, "bound of mem_books, 0: none", config->maxmemory);
    FIGURE(f, TEXT, maxmemory_policy, "eviction-policy in Redis' words",
           config_policy_redis_name(config));
    FIGURE(f, RATIO, allocator_frag_ratio, "active to allocated", ratio(a.active, a.allocated));
    FIGURE(f, BYTES, allocator_frag_bytes, "active but not allocated",
           a.active > a.allocated ? a.active - a.allocated : 0);
    FIGURE(f, RATIO, allocator_rss_ratio, "resident to active", ratio(a.resident, a.active));
    FIGURE(f, BYTES, allocator_rss_bytes, "resident but not active",
           a.resident > a.active ? a.resident - a.active : 0);
    FIGURE(f, RATIO, mem_fragmentation_ratio, "used_memory_rss to used_memory", ratio(rss, used));
    FIGURE(f, BYTES, mem_fragmentation_bytes, "... their difference", rss - used);
    FIGURE(f, BYTES, mem_not_counted_for_evict, "all but mem_books",
           used > s.mem_books ? used - s.mem_books : 0);
    FIGURE(f, BYTES, mem_replication_backlog, "changes kept for replicas", replication_memory());
    FIGURE(f, BYTES, mem_clients_slaves, "of replicas' connections", replication_client_memory());
    FIGURE(f, BYTES, mem_clients_normal, "of all other connections",
           clients_memory - replication_client_memory());
    FIGURE(f, TEXT, mem_allocator, "of the heap", heap_allocator());
    FIGURE(f, GAUGE, active_defrag_running, "always 0", 0);
    FIGURE(f, GAUGE, lazyfree_pending_objects, "as sweep_objects", s.sweep_objects);
    FIGURES(f, store_figures, s, mem_books, mem_books_spare);
    FIGURE(f, MEAN, mem_books_per_object, "mem_books by objects", ratio(s.mem_books, s.objects));
}

static void write_stats(struct figure_walk *f) {
    struct store_stats s;
    store_get_stats(books, &s);
    FIGURES(f, stats_figures, stats, total_connections_received, total_commands_processed);
    FIGURE(f, GAUGE, instantaneous_ops_per_sec, "commands, over 1.6 s", stats_rate(&stats.ops));
    FIGURES(f, stats_figures, stats, total_net_input_bytes, total_net_output_bytes);
    FIGURE(f, KBPS, instantaneous_input_kbps, "received, over 1.6 s",
           (double)stats_rate(&stats.in) / 1024);
    FIGURE(f, KBPS, instantaneous_output_kbps, "sent, over 1.6 s",
           (double)stats_rate(&stats.out) / 1024);
    FIGURES(f, stats_figures, stats, rejected_connections, tls_handshakes_failed);
    FIGURE(f, COUNTER, accept_failures, "connections that the system could not accept",
           net_accept_failures());
    FIGURES(f, stats_figures, stats, idle_connections_closed, sync_partial_err);
    FIGURE(f, COUNTER, expired_keys, "as expired", s.expired);
    FIGURE(f, POINTS, expired_stale_perc, "keys past their time, of those with one",
           stats.expired_stale_percent);
    FIGURES(f, stats_figures, stats, expired_time_cap_reached_count,
            expired_time_cap_reached_count);
    FIGURE(f, COUNTER_MS, expire_cycle_cpu_milliseconds, "time spent on expired keys",
           stats.expire_cycle_ns / 1000000);
    FIGURE(f, COUNTER, evicted_keys, "as evicted_objects", s.evicted_objects);
    FIGURE(f, COUNTER, keyspace_hits, "as hits", s.hits);
    FIGURE(f, COUNTER, keyspace_misses, "as misses", s.misses);
    FIGURE(f, GAUGE, pubsub_channels, "with subscribers", channel_count(CHANNEL_PLAIN));
    FIGURE(f, GAUGE, pubsub_patterns, "with subscribers", channel_count(CHANNEL_PATTERN));
    FIGURE(f, GAUGE, pubsubshard_channels, "with subscribers", channel_count(CHANNEL_SHARD));
    FIGURE(f, GAUGE, watched_keys, "by WATCH", watch_count);
    FIGURE(f, US, latest_fork_usec, "always 0: nothing forks", 0);
    FIGURE(f, COUNTER, total_forks, "always 0: nothing forks", 0);
    FIGURE(f, COUNTER, total_error_replies, "errors that clients were told", reply_errors());
    FIGURES(f, stats_figures, stats, total_auth_failures, grants_sealed);
    FIGURE(f, GAUGE, slowlog_len, "entries of SLOWLOG", slowlog_len());
}

static void write_commandstats(struct figure_walk *f) {
    for (size_t i = 0; i < table_stat_count(); i++) {
        const struct cmd_stat *s = table_stat_at(i);
        if (s->calls == 0 && s->rejected == 0) continue;
        figures_group(f, "cmdstat_", "command", s->name);
        FIGURE(f, COUNTER, calls, "how often it ran", s->calls);
        FIGURE(f, COUNTER_US, usec, "time it took", s->ns / 1000);
        FIGURE(f, US_MEAN, usec_per_call, "... each", ratio(s->ns, s->calls) / 1000);
        FIGURE(f, COUNTER, rejected_calls, "that did not run", s->rejected);
        FIGURE(f, COUNTER, failed_calls, "that ended in an error", s->failed);
        figures_group_end(f);
    }
}

static void one_errorstat(void *arg, const char *code, uint64_t count) {
    figures_group(arg, "errorstat_", "error", code);
    FIGURE((struct figure_walk *)arg, COUNTER, count, "replies with that code", count);
    figures_group_end(arg);
}
static void write_errorstats(struct figure_walk *f) {
    reply_errorstats(one_errorstat, f);
}

static void write_latencystats(struct figure_walk *f) {
    const struct config_percentiles *p = &config->latency_percentiles;
    if (!config->latency_tracking) return;
    for (size_t i = 0; i < table_stat_count(); i++) {
        const struct cmd_stat *s = table_stat_at(i);
        if (s->latency == NULL || s->latency->count == 0) continue;
        figures_group(f, "latency_percentiles_usec_", "command", s->name);
        for (size_t k = 0; k < p->n; k++) {
            char percent[32];
            snprintf(percent, sizeof(percent), "%.10g", p->percent[k]);
            FIGURE_OF(f, QUANTILE, p, "that many percent took no longer", "percent", percent,
                      (double)hist_percentile(s->latency, p->percent[k] / 100) / 1000);
        }
        figures_group_end(f);
    }
}

static void write_cluster(struct figure_walk *f) {
    FIGURE(f, GAUGE, cluster_enabled, "1: one of many masters (CLUSTER SETMAP)", shard_map != NULL);
}

/* The mean time to live of those that have one, from a sample. */
static uint64_t sample_ttl(void) {
    struct store_ttl_sample s;
    store_sample_ttl(books, 20, &s);
    return s.seen > s.stale ? s.left_ms / (s.seen - s.stale) : 0;
}

static void write_keyspace(struct figure_walk *f) {
    struct store_stats s;
    store_get_stats(books, &s);
    if (s.objects == 0) return;
    figures_group(f, "db", "db", "0");
    FIGURE(f, GAUGE, keys, "objects that can be read", s.objects);
    FIGURE(f, GAUGE, expires, "... with a time to live", s.expires);
    FIGURE(f, MS, avg_ttl, "their mean time to live, from a sample", sample_ttl());
    figures_group_end(f);
}

static void write_modules(struct figure_walk *f) {
    module_figures(f);
    info_module_state(f);
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
    {"cpu", "CPU", DEF, false, usage_cpu_figures},
    {"modules", "Modules", DEF, false, write_modules},
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

/* --- for modules --- */

static void one_command_hist(struct figure_walk *f, size_t i) {
    const struct cmd_stat *s = table_stat_at(i);
    if (s->latency == NULL || s->latency->count == 0) return;
    figures_group(f, "command", "command", s->name);
    FIGURE_HIST(f, HIST_NS, duration, "how long commands took", s->latency);
    figures_group_end(f);
}

/* How long bytes took on the ways that go through this process. */
static void show_paths(struct figure_walk *f) {
    static struct host_times times;
    FIGURE_HIST(f, HIST_NS, inband_read_duration, "pieces of values read from elsewhere",
                &remote_stats.read);
    FIGURE_HIST(f, HIST_NS, inband_write_duration, "pieces of values written elsewhere",
                &remote_stats.write);
    if (embedded.host == NULL) return;
    host_get_times(embedded.host, &times);
    host_show_times(f, &times);
}

enum { SEGMENTS_A_PART = 64, NODES_A_PART = 32, HISTS_A_PART = 32 };
enum { PART_SEGMENTS, PART_NODES, PART_TENANTS, PART_PATHS, PART_COMMANDS, PARTS };

/* One step of what INFO has no place for. false: this part is over. */
static bool walk_more(struct tarn_figures_at *at, unsigned part, struct figure_walk *f) {
    static const char *const names[PARTS] = {"pool", "nodes", "cache", "data", "latencystats"};
    at->section = names[part];
    if (part == PART_SEGMENTS) {
        at->item = info_segments(f, at->item, SEGMENTS_A_PART);
        return at->item < store_segment_limit(books);
    }
    if (part == PART_NODES) return info_each_node(f, &at->item, NODES_A_PART);
    if (part == PART_TENANTS) {
        info_tenants(f);
        return false;
    }
    if (part == PART_PATHS) {
        show_paths(f);
        return false;
    }
    for (unsigned n = 0; n < HISTS_A_PART && at->item < table_stat_count(); n++)
        one_command_hist(f, at->item++);
    return at->item < table_stat_count();
}

bool info_figures_next(struct tarn_figures_at *at, struct figure_walk *walk) {
    uint32_t sections = 0;
    while (info_sections[sections].name != NULL) sections++;
    if (at->part < sections) {
        const struct info_section *s = &info_sections[at->part++];
        at->section = s->name;
        (s->write == info_pool ? info_pool_sums : s->write)(walk);
        return true;
    }
    if (at->part >= sections + PARTS) return false;
    if (!walk_more(at, at->part - sections, walk)) {
        at->part++;
        at->item = 0;
    }
    return true;
}

enum tarn_state info_state(char *text, size_t cap) {
    const char *why = "", *awaited;
    enum tarn_state state = TARN_STATE_SERVING;
    if (shutdown_left_ms() > 0 || core_stopping())
        state = TARN_STATE_STOPPING, why = "it is stopping";
    else if ((awaited = replication_awaited()) != NULL)
        state = TARN_STATE_LOADING, why = awaited;
    else if (embedded.populating.on)
        state = TARN_STATE_POPULATING, why = "the pool is populated";
    else if (server.awaits_nodes)
        state = TARN_STATE_AWAITING, why = "nodes of before the restart are awaited";
    snprintf(text, cap, "%s", why);
    return state;
}

/* A name that is unknown asks for nothing: what clients of Redis ask for, and what is not here, is
 * an empty reply. */
static bool section_wanted(struct client *c, const struct info_section *s) {
    if (c->argc == 1) return s->in == INFO_DEFAULT;
    for (size_t i = 1; i < c->argc; i++) {
        if (arg_is(c, i, s->name) || arg_is(c, i, "all") || arg_is(c, i, "everything")) return true;
        if (arg_is(c, i, "default") && s->in == INFO_DEFAULT) return true;
        if (arg_is(c, i, "tarn") && s->of_tarn) return true;
    }
    return false;
}

/* --- the walk --- */

struct info {
    struct figure_walk walk;
    struct buf out;
    bool fields; /* of the group: there are some already */
};

static void write_name(struct info *info, const char *name) {
    const char *of = info->walk.of.value;
    buf_printf(&info->out, "%s%s", name, of != NULL ? of : "");
}

/* "1.50M" as Redis shows sizes. */
static void write_human(struct buf *out, uint64_t bytes) {
    static const char units[] = "BKMGTP";
    double v = (double)bytes;
    unsigned u = 0;
    while (v >= 1024 && u + 2 < sizeof(units)) v /= 1024, u++;
    buf_printf(out, u == 0 ? "%.0f%c" : "%.2f%c", v, units[u]);
}

static void info_show(struct figure_walk *walk, const struct figure *figure,
                      union figure_value value) {
    struct info *info = CONTAINER_OF(walk, struct info, walk);
    if (walk->group != NULL && info->fields) buf_append_char(&info->out, ',');
    info->fields = true;
    write_name(info, figure->name);
    buf_append_char(&info->out, walk->group != NULL ? '=' : ':');
    figure_write(figure->type, value, &info->out);
    if (walk->group != NULL) return;
    buf_append_str(&info->out, "\r\n");
    if (figure->type != FIGURE_SIZE) return;
    write_name(info, figure->name);
    buf_append_str(&info->out, "_human:");
    write_human(&info->out, value.number);
    buf_append_str(&info->out, "\r\n");
}

static void info_edge(struct figure_walk *walk, bool begins) {
    struct info *info = CONTAINER_OF(walk, struct info, walk);
    info->fields = false;
    if (!begins)
        buf_append_str(&info->out, "\r\n");
    else if (walk->group[strlen(walk->group) - 1] == ':')
        buf_append_str(&info->out, walk->group);
    else
        buf_printf(&info->out, "%s%s:", walk->group, walk->group_of.value);
}

static void write_title(struct buf *out, const char *title) {
    buf_printf(out, "%s# %s\r\n", out->len > 0 ? "\r\n" : "", title);
}

static bool module_wanted(struct client *c, const char *name) {
    for (const struct info_section *s = info_sections; s->name != NULL; s++)
        if (strcmp(s->name, name) == 0) return false;
    for (size_t i = 1; i < c->argc; i++)
        if (arg_is(c, i, name)) return true;
    return false;
}

struct named_modules {
    struct client *client;
    struct info *info;
};

/* A module that has figures is a section of its name. */
static bool write_named_module(void *arg, const struct module_info *m) {
    struct named_modules *named = arg;
    if (m->figures == NULL || !module_wanted(named->client, m->name)) return true;
    struct buf title = {NULL, 0, 0};
    buf_append(&title, m->name, strlen(m->name) + 1);
    if (title.data[0] >= 'a' && title.data[0] <= 'z') title.data[0] += 'A' - 'a';
    write_title(&named->info->out, title.data);
    buf_free(&title);
    m->figures(&named->info->walk);
    return true;
}

void cmd_info(struct client *c) {
    struct info info = {.walk = {.show = info_show, .edge = info_edge}};
    for (const struct info_section *s = info_sections; s->name != NULL; s++) {
        if (!section_wanted(c, s)) continue;
        write_title(&info.out, s->title);
        s->write(&info.walk);
    }
    module_each(write_named_module, &(struct named_modules){c, &info});
    reply_verbatim(c, "txt", span_of(info.out.data != NULL ? info.out.data : "", info.out.len));
    buf_free(&info.out);
}
