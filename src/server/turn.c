/* What happens between the callbacks of two turns of the loop: every room has its part, in an order
 * that matters. */
#include "server/turn.h"

#include "base/assert.h"
#include "base/log.h"
#include "cluster/cluster.h"
#include "inband/big_sink.h"
#include "ha/books.h"
#include "front/client.h"
#include "front/core.h"
#include "front/effects.h"
#include "ha/expire_cycle.h"
#include "commands/families.h"
#include "commands/alarms.h"
#include "commands/info.h"
#include "commands/rows.h"
#include "front/latency.h"
#include "front/module_durable.h"
#include "front/shard.h"
#include "inband/later.h"
#include "inband/local_copy.h"
#include "ha/persistence.h"
#include "ha/reload.h"
#include "inband/remote.h"
#include "inband/replica_check.h"
#include "ha/replication.h"
#include "ha/shutdown.h"
#include "front/stats.h"
#include "config/config.h"

#define SLEEP_MAX_MS 1000
#define STILL_MS     500 /* beyond the longest sleep */

static bool background_waits;
static uint64_t cron_due_ms, background_ms, woke_ns;

static void cron(void) {
    unsigned hz = core_hz();
    cron_due_ms = turn.mono_ms + 1000 / hz;
    if (core_cron_paused()) return;
    clients_cron(hz);
    replication_cron();
    persistence_cron();
    shutdown_cron();
    if (server.awaits_nodes) server.awaits_nodes = cluster_awaits_nodes();
    expire_cycle_cron();
    stats_sample();
    alarms_cron();
}

/* Work of a turn that no client has asked for. Whoever comes meanwhile waits for all of it, so it
 * is little, unless the clients of this turn took long themselves. Puts do not depend on it: they
 * evict what they need. */
static unsigned background_quota(void) {
    unsigned quota = job_quota();
    uint64_t spent_us = (core_stamp() - woke_ns) / 1000;
    return (unsigned)max_u64(quota / 8 + 1, min_u64(quota, quota * spent_us / 1000));
}

/* Of the books. true: more to do. */
static bool books_background(void) {
    unsigned budget = background_quota();
    uint64_t began = latency_begin(), evictions = store_evictions(books);
    bool more = store_background(books, &budget);
    more |= store_shrink(books, &budget);
    more |= shard_background(&budget);
    latency_end(store_evictions(books) != evictions ? LATENCY_EVICTION_CYCLE : LATENCY_BOOKS_CYCLE,
                began);
    return expire_cycle_turn() || more;
}

static bool background(void) {
    if (background_ms == turn.mono_ms && !background_waits) return false;
    background_ms = turn.mono_ms;
    unsigned share = job_quota() / 2 + 1, walk = job_quota() / 2 + 1;
    bool more = books_background();
    more |= cluster_background(&share);
    more |= client_big_turn();
    uint64_t began = latency_begin();
    more |= persistence_turn(&walk);
    latency_end(LATENCY_SNAPSHOT_CYCLE, began);
    return more;
}

void turn_woke(void *arg) {
    core_stamp_wall();
    woke_ns = core_now_ns;
}

/* Stopped by a signal, a machine that slept, a very long turn: what others have said meanwhile is
 * read before anybody is blamed for his silence. */
static void look_for_gap(void) {
    static uint64_t last_ms;
    uint64_t gap_ms = last_ms == 0 ? 0 : turn.mono_ms - last_ms;
    last_ms = turn.mono_ms;
    if (LIKELY(gap_ms < STILL_MS) || gap_ms < 1000 / core_hz() + STILL_MS) return;
    log_notice("This server did not look at its connections for %llu ms",
               (unsigned long long)gap_ms);
    cluster_stood_still(gap_ms);
    cron_due_ms = turn.mono_ms + 1000 / core_hz();
}

uint64_t turn_run(void *arg) {
    core_stamp();
    look_for_gap();
    stats.loop_turns++;
    if (UNLIKELY(clients_any_ready())) clients_run_ready();
    jobs_run();
    background_waits = background();
    if (UNLIKELY(turn.mono_ms >= cron_due_ms)) cron();
    pause_tick();
    effects_turn(); /* before anybody hears that it was done */
    bool link_waits = replication_turn();
    clients_flush();
    if (UNLIKELY(config->maxmemory_clients != 0)) clients_evict();
    client_free_closed();
    replication_settle();
    reload_settle();
    if (UNLIKELY(core_stopping())) net_loop_stop(core_loop());
    uint64_t took_ns = core_stamp() - woke_ns;
    stats.active_ns += took_ns;
    stats.longest_turn_ns = max_u64(stats.longest_turn_ns, took_ns);
    if (core_stopping() || background_waits || link_waits || jobs_any_runnable() ||
        clients_any_ready())
        return 0;
    uint64_t ms = cron_due_ms > turn.mono_ms ? cron_due_ms - turn.mono_ms : 0;
    ms = jobs_next_ms(min_u64(ms, SLEEP_MAX_MS));
    if (ms > 0) ms = store_next_ms(books, ms);
    if (ms > 0) ms = expire_cycle_next_ms(ms);
    if (ms > 0) ms = cluster_next_ms(ms);
    return ms > 0 ? ms : 1;
}

void turn_init(struct net_loop *loop) {
    above = (struct above){.functions = families,
                           .restricts = replication_restricts,
                           .refusal = replication_refusal,
                           .is_early = replication_is_early,
                           .wait = later_begin,
                           .write_refusal = persistence_refusal,
                           .master_refusal = replication_master_refusal,
                           .unwritten = persistence_unwritten,
                           .master = replication_master,
                           .replica_gone = replica_gone,
                           .replica_drained = replica_drained,
                           .figures_next = info_figures_next,
                           .state = info_state,
                           .rows_next = rows_next,
                           .relisten = books_relisten,
                           .big_begin = big_sink_begin,
                           .big_next = value_write_next,
                           .big_filled = big_sink_filled,
                           .big_abort = big_sink_abort};
    core_init(loop);
}

void turn_deinit(void) {
    replication_close_link();
    module_durable_end();
    client_close_all();
    replica_check_deinit();
    local_copy_deinit();
    remote_deinit();
    persistence_deinit();
    effects_deinit();
    replication_deinit();
    core_deinit();
}
