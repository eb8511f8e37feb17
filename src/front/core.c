/* Time, the end of the loop, and the configuration on its way to those who need it. */
#include "front/core.h"

#include <string.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "front/above.h"
#include "front/acl_users.h"
#include "front/client.h"
#include "front/introspect.h"
#include "front/latency.h"
#include "front/stats.h"
#include "front/table.h"
#include "config/config.h"
#include "front/embedded.h"

#define HZ_MAX            500u
#define CLIENTS_PER_ROUND 200u

struct server server;
struct store *books;
struct turn turn;
struct embedded embedded;
struct above above;
struct core_endpoints core_endpoints = {.shm_path = "", .executable = ""};
uint64_t core_now_ns;

static struct net_loop *loop;
static bool stopping, cron_paused;
static uint64_t wall_offset_us; /* wall time less monotonic time */

uint64_t core_stamp(void) {
    uint64_t now = clock_mono_ns(), ms = now / 1000000;
    core_now_ns = now;
    if (ms != turn.mono_ms) {
        turn.mono_ms = ms;
        turn.wall_us = now / 1000 + wall_offset_us;
        turn.wall_ms = turn.wall_us / 1000;
        if (LIKELY(books != NULL)) store_tick(books, turn.mono_ms, turn.wall_ms);
        cluster_tick(turn.mono_ms);
    }
    return now;
}

void core_stamp_wall(void) {
    core_now_ns = clock_mono_ns();
    turn.wall_us = clock_wall_us();
    wall_offset_us = turn.wall_us - core_now_ns / 1000;
    turn.wall_ms = turn.wall_us / 1000;
    turn.mono_ms = core_now_ns / 1000000;
    if (books != NULL) store_tick(books, turn.mono_ms, turn.wall_ms);
    cluster_tick(turn.mono_ms);
}

void core_init(struct net_loop *l) {
    loop = l;
    core_stamp_wall();
    stats.start_mono_ms = turn.mono_ms;
    latency_apply_config();
    table_init(above.functions);
    acl_users_init();
    jobs_init();
    client_read_init();
    client_write_init();
}

void core_begin(void) {
    client_away_init();
}

void core_deinit(void) {
    jobs_deinit();
    client_read_deinit();
    client_write_deinit();
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
    unsigned hz = (unsigned)config->hz;
    while (config->dynamic_hz && hz < HZ_MAX && clients.n / hz > CLIENTS_PER_ROUND) hz *= 2;
    return hz < HZ_MAX ? hz : HZ_MAX;
}

void core_pause_cron(bool paused) {
    cron_paused = paused;
}
bool core_cron_paused(void) {
    return cron_paused;
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
    out->prefill_rate = (double)c->prefill_rate;
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
    core_store_config(config, store_config(books));
    core_cluster_config(config, cluster_config());
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
