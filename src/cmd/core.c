/* Time, and what happens between the callbacks of two turns of the loop. */
#include "cmd/core.h"

#include <string.h>
#include <sys/resource.h>
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "cmd/client.h"
#include "cmd/introspect.h"
#include "cmd/stats.h"
#include "cmd/table.h"

#define SLEEP_MAX_MS 1000

struct server server;
struct core_endpoints core_endpoints = {.shm_path = "", .executable = ""};
uint64_t core_now_ns;

static struct net_loop *loop;
static bool stopping, background_waits;
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
}

void core_init(struct net_loop *l) {
    loop = l;
    stamp_wall();
    stats.start_mono_ms = server.mono_ms;
    table_init();
    jobs_init();
    client_read_init();
    client_write_init();
}

void core_deinit(void) {
    client_close_all();
    jobs_deinit();
    client_read_deinit();
    client_write_deinit();
    slowlog_reset();
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

static void cron(void) {
    unsigned hz = (unsigned)server.config->hz;
    cron_due_ms = server.mono_ms + 1000 / hz;
    clients_cron(hz);
    stats_sample();
}

static bool background(void) {
    if (background_ms == server.mono_ms && !background_waits) return false;
    background_ms = server.mono_ms;
    unsigned budget = job_quota();
    return store_background(server.store, &budget);
}

void core_woke(void *arg) {
    stamp_wall();
    woke_ns = core_now_ns;
}

uint64_t core_turn(void *arg) {
    core_stamp();
    stats.turns++;
    if (UNLIKELY(clients_any_ready())) clients_run_ready();
    jobs_run();
    background_waits = background();
    if (UNLIKELY(server.mono_ms >= cron_due_ms)) cron();
    pause_tick();
    clients_flush();
    client_free_closed();
    if (UNLIKELY(stopping)) net_loop_stop(loop);
    stats.active_ns += core_stamp() - woke_ns;
    if (stopping || background_waits || jobs_any_runnable() || clients_any_ready()) return 0;
    uint64_t ms = cron_due_ms > server.mono_ms ? cron_due_ms - server.mono_ms : 0;
    ms = jobs_next_ms(min_u64(ms, SLEEP_MAX_MS));
    if (ms > 0) ms = store_next_ms(server.store, ms);
    return ms > 0 ? ms : 1;
}

/* --- configuration ----------------------------------------------------------------------------------------------------------- */

void core_store_config(const struct config *c, struct store_config *out) {
    out->max_objects = c->max_objects;
    out->max_memory = c->maxmemory;
    out->max_leases_per_session = c->max_leases_per_client;
    out->max_puts_per_session = c->max_puts_per_client;
    out->max_lease_ms = c->max_lease_ms;
    out->soft_pin_ms = c->soft_pin_ms;
    out->put_timeout_ms = c->put_timeout_ms;
    out->put_timeout_rate = c->put_timeout_rate;
    out->put_release_timeout_ms = c->put_release_timeout_ms;
    out->high_watermark = c->eviction_high_watermark;
    out->eviction_ratio = c->eviction_ratio;
    out->lfu_log_factor = (unsigned)c->lfu_log_factor;
    out->lfu_decay_minutes = (unsigned)c->lfu_decay_minutes;
}

void core_apply_config(void) {
    core_store_config(server.config, store_config(server.store));
}

/* Beside the clients: listeners, files, the data port's connections and its threads' descriptors. */
static uint64_t other_descriptors(const struct config *c) {
    return 32 + (c->pool_size > 0 ? (uint64_t)c->data_maxclients + 4 * (uint64_t)c->data_threads : 0);
}

bool core_adjust_descriptors(struct config *c, const char **why_p) {
    struct rlimit limit;
    uint64_t other = other_descriptors(c), want = (uint64_t)c->maxclients + other;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
    if (limit.rlim_cur >= want) return true;
    struct rlimit more = {want, limit.rlim_max > want ? limit.rlim_max : want};
    if (setrlimit(RLIMIT_NOFILE, &more) == 0) return true;
    more = (struct rlimit){limit.rlim_max < want ? limit.rlim_max : want, limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &more) == 0) limit = more;
    if (limit.rlim_cur >= want) return true;
    if (why_p != NULL) {
        *why_p =
            "the operating system does not allow that many open files: raise the limit (ulimit -n) first";
        return false;
    }
    uint64_t share = limit.rlim_cur / 4; /* of a small limit, the data port yields too */
    if (other > share + 64) {
        c->data_maxclients = (int64_t)max_u64(share, 16);
        other = other_descriptors(c);
    }
    c->maxclients = limit.rlim_cur > other + 1 ? (int64_t)(limit.rlim_cur - other) : 1;
    log_warning("Only %llu files may be open: maxclients lowered to %lld. Raise 'ulimit -n' for more.",
                (unsigned long long)limit.rlim_cur, (long long)c->maxclients);
    return true;
}
