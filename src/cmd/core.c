/* Time, and what happens between the callbacks of two turns of the loop. */
#include "cmd/core.h"

#include <string.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "cmd/acl_users.h"
#include "cmd/client.h"
#include "cmd/effects.h"
#include "cmd/expire_cycle.h"
#include "cmd/introspect.h"
#include "cmd/latency.h"
#include "cmd/local_copy.h"
#include "cmd/persistence.h"
#include "cmd/reload.h"
#include "cmd/remote.h"
#include "cmd/replica_check.h"
#include "cmd/replication.h"
#include "cmd/shutdown.h"
#include "cmd/stats.h"
#include "cmd/table.h"

#define SLEEP_MAX_MS      1000
#define STILL_MS          500 /* beyond the longest sleep */
#define HZ_MAX            500u
#define CLIENTS_PER_ROUND 200u

struct server server;
struct core_endpoints core_endpoints = {.shm_path = "", .executable = ""};
uint64_t core_now_ns;

static struct net_loop *loop;
static bool stopping, background_waits, cron_paused;
static uint64_t wall_offset_us; /* wall time less monotonic time */
static uint64_t cron_due_ms, background_ms, woke_ns;

uint64_t core_stamp(void) {
    uint64_t now = clock_mono_ns(), ms = now / 1000000;
    core_now_ns = now;
    if (ms != server.mono_ms) {
        server.mono_ms = ms;
        server.wall_us = now / 1000 + wall_offset_us;
        server.wall_ms = server.wall_us / 1000;
        if (LIKELY(server.store != NULL)) store_tick(server.store, server.mono_ms, server.wall_ms);
        cluster_tick(server.mono_ms);
    }
    return now;
}

static void stamp_wall(void) {
    core_now_ns = clock_mono_ns();
    server.wall_us = clock_wall_us();
    wall_offset_us = server.wall_us - core_now_ns / 1000;
    server.wall_ms = server.wall_us / 1000;
    server.mono_ms = core_now_ns / 1000000;
    if (server.store != NULL) store_tick(server.store, server.mono_ms, server.wall_ms);
    cluster_tick(server.mono_ms);
}

void core_init(struct net_loop *l) {
    loop = l;
    stamp_wall();
    stats.start_mono_ms = server.mono_ms;
    latency_apply_config();
    table_init();
    acl_users_init();
    jobs_init();
    client_read_init();
    client_write_init();
}

void core_begin(void) {
    client_away_init();
}

void core_deinit(void) {
    replication_close_link();
    client_close_all();
    replica_check_deinit();
    local_copy_deinit();
    remote_deinit();
    jobs_deinit();
    client_read_deinit();
    client_write_deinit();
    persistence_deinit();
    effects_deinit();
    replication_deinit();
    slowlog_reset();
    acl_users_deinit();
    table_free();
}

struct net_loop *core_loop(void) {
    return loop;
}

void core_shutdown(const char *why) {
    if (stopping) return;
    stopping = true;
    log_notice("%s", why);
}
bool core_stopping(void) {
    return stopping;
}

/* dynamic-hz: with many clients more often, so that no round of time-outs looks at too many of
 * them. */
unsigned core_hz(void) {
    unsigned hz = (unsigned)server.config->hz;
    while (server.config->dynamic_hz && hz < HZ_MAX && clients.n / hz > CLIENTS_PER_ROUND) hz *= 2;
    return hz < HZ_MAX ? hz : HZ_MAX;
}

static void cron(void) {
    unsigned hz = core_hz();
    cron_due_ms = server.mono_ms + 1000 / hz;
    if (cron_paused) return;
    clients_cron(hz);
    replication_cron();
    persistence_cron();
    shutdown_cron();
    if (server.awaits_nodes) server.awaits_nodes = cluster_awaits_nodes();
    expire_cycle_cron();
    stats_sample();
}

void core_pause_cron(bool paused) {
    cron_paused = paused;
}
bool core_cron_paused(void) {
    return cron_paused;
}

/* Of the books. true: more to do. */
static bool books_background(void) {
    unsigned budget = job_quota();
    uint64_t began = latency_begin(), evictions = store_evictions(server.store);
    bool more = store_background(server.store, &budget);
    more |= store_shrink(server.store, &budget);
    latency_end(store_evictions(server.store) != evictions ? LATENCY_EVICTION_CYCLE
                                                           : LATENCY_BOOKS_CYCLE,
                began);
    return expire_cycle_turn() || more;
}

static bool background(void) {
    if (background_ms == server.mono_ms && !background_waits) return false;
    background_ms = server.mono_ms;
    unsigned share = job_quota() / 2 + 1, walk = job_quota() / 2 + 1;
    bool more = books_background();
    more |= cluster_background(&share);
    more |= client_big_turn();
    uint64_t began = latency_begin();
    more |= persistence_turn(&walk);
    latency_end(LATENCY_SNAPSHOT_CYCLE, began);
    return more;
}

void core_woke(void *arg) {
    stamp_wall();
    woke_ns = core_now_ns;
}

/* Stopped by a signal, a machine that slept, a very long turn: what others have said meanwhile is
 * read before anybody is blamed for his silence. */
static void look_for_gap(void) {
    static uint64_t last_ms;
    uint64_t gap_ms = last_ms == 0 ? 0 : server.mono_ms - last_ms;
    last_ms = server.mono_ms;
    if (LIKELY(gap_ms < STILL_MS) || gap_ms < 1000 / core_hz() + STILL_MS) return;
    log_notice("This server did not look at its connections for %llu ms",
               (unsigned long long)gap_ms);
    cluster_stood_still(gap_ms);
    cron_due_ms = server.mono_ms + 1000 / core_hz();
}

uint64_t core_turn(void *arg) {
    core_stamp();
    look_for_gap();
    stats.turns++;
    if (UNLIKELY(clients_any_ready())) clients_run_ready();
    jobs_run();
    background_waits = background();
    if (UNLIKELY(server.mono_ms >= cron_due_ms)) cron();
    pause_tick();
    effects_turn(); /* before anybody hears that it was done */
    bool link_waits = replication_turn();
    clients_flush();
    if (UNLIKELY(server.config->maxmemory_clients != 0)) clients_evict();
    client_free_closed();
    replication_settle();
    reload_settle();
    if (UNLIKELY(stopping)) net_loop_stop(loop);
    uint64_t took_ns = core_stamp() - woke_ns;
    stats.active_ns += took_ns;
    stats.longest_turn_ns = max_u64(stats.longest_turn_ns, took_ns);
    if (stopping || background_waits || link_waits || jobs_any_runnable() || clients_any_ready())
        return 0;
    uint64_t ms = cron_due_ms > server.mono_ms ? cron_due_ms - server.mono_ms : 0;
    ms = jobs_next_ms(min_u64(ms, SLEEP_MAX_MS));
    if (ms > 0) ms = store_next_ms(server.store, ms);
    if (ms > 0) ms = expire_cycle_next_ms(ms);
    if (ms > 0) ms = cluster_next_ms(ms);
    return ms > 0 ? ms : 1;
}

/* --- configuration --- */

_Static_assert(CONFIG_WORDS_MAX <= STORE_SUFFIXES_MAX,
               "evict-together-suffixes: each word has its place");

/* Every word once. */
static void together_config(const struct config_list *l, struct store_config *out) {
    out->n_together = 0;
    for (size_t i = 0; i < l->n; i++) {
        bool known = l->word[i][0] == '\0';
        for (size_t k = 0; k < i; k++) known = known || strcmp(l->word[k], l->word[i]) == 0;
        if (known) continue;
        struct store_suffix *x = &out->together[out->n_together++];
        x->len = (unsigned)strlen(l->word[i]);
        memcpy(x->text, l->word[i], x->len);
    }
}

void core_store_config(const struct config *c, struct store_config *out) {
    out->max_objects = c->max_objects;
    out->max_memory = c->maxmemory;
    out->max_leases_per_session = c->max_leases_per_client;
    out->max_puts_per_session = c->max_puts_per_client;
    out->max_lease_ms = c->max_lease_ms;
    out->soft_pin_ms = c->soft_pin_ms;
    out->hard_pin_ratio = c->hard_pin_ratio;
    out->hard_pin_user_ratio = c->hard_pin_user_ratio;
    out->put_timeout_ms = c->put_timeout_ms;
    out->put_timeout_rate = c->put_timeout_rate;
    out->put_release_timeout_ms = c->put_release_timeout_ms;
    out->high_watermark = c->eviction_high_watermark;
    out->eviction_ratio = c->eviction_ratio;
    out->lfu_log_factor = (unsigned)c->lfu_log_factor;
    out->lfu_decay_minutes = (unsigned)c->lfu_decay_minutes;
    out->expire_apart = true;
    together_config(&c->evict_together, out);
}

void core_cluster_config(const struct config *c, struct cluster_config *out) {
    out->node_timeout_ms = c->node_timeout_ms;
    out->heartbeat_ms = c->node_heartbeat_ms;
    out->forget_timeout_ms = c->node_forget_timeout_ms;
    out->max_nodes = c->max_nodes;
    out->max_tasks = c->max_tasks;
    out->tasks_per_node = c->tasks_per_node;
    out->task_retries = c->task_retries;
    out->task_timeout_ms = c->task_timeout_ms;
    out->task_rate = c->task_rate;
    out->hot_replicas = c->hot_replicas;
    out->hot_window_ms = c->hot_window_ms;
    out->hot_threshold = c->hot_threshold;
    out->offload_queue = c->offload_queue;
    out->offload_wait_ms = c->offload_wait_ms;
    out->offload = (enum cluster_offload)c->ssd_offload;
}

void core_apply_config(void) {
    core_store_config(server.config, store_config(server.store));
    core_cluster_config(server.config, cluster_config());
    cluster_config_changed();
}

const char *core_machine(void) {
    static char name[CLUSTER_LABEL_MAX + 1];
    if (name[0] == '\0') {
        gethostname(name, sizeof(name) - 1);
        if (name[0] == '\0') strcpy(name, "localhost");
    }
    return name;
}
