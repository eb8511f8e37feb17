/* Figures: for the master with every other heartbeat (NODE INFO shows them), and for
 * tarn_host_get_info. */
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "client/client.h"
#include "hosting/hosting.h"

#define TIER_ROW(...) FIGURE_ROW(struct tier_stats, __VA_ARGS__)
#define NODE_ROW(...) FIGURE_ROW(struct node_figures, __VA_ARGS__)
#define FAR_ROW(...)  FIGURE_ROW(struct far_figures, __VA_ARGS__)
const struct figure tier_figures[] = {TIER_FIGURES(TIER_ROW){.name = NULL}};
const struct figure node_figures[] = {NODE_FIGURES(NODE_ROW){.name = NULL}};
const struct figure far_figures[] = {FAR_FIGURES(FAR_ROW){.name = NULL}};

#define STATS_MAX_0_1 64u /* that a master of 0.1 takes */

struct figures_told {
    struct figure_walk walk;
    const char *prefix;
    struct hosting_link *link;
    uint32_t n, most; /* what there is no room for is left out: the last */
};

static void figure_put(struct figure_walk *walk, const struct figure *figure,
                       union figure_value value) {
    struct figures_told *t = CONTAINER_OF(walk, struct figures_told, walk);
    const char *of = walk->of.value != NULL ? walk->of.value : "";
    char name[64], *at = name;
    if (t->n == t->most) return;
    t->n++;
    int len = snprintf(name, sizeof(name), "%s%s%s", t->prefix, figure->name, of);
    while ((at = strpbrk(at, "_.")) != NULL) *at = '-';
    link_word(t->link, name, (size_t)len);
    request_number(&t->link->request, (int64_t)min_u64(value.number, INT64_MAX));
}

void stats_gather(struct tarn_host *h, struct host_stats *stats_p) {
    struct node_figures *n = &h->figures;
    double load = 0;
    host_get_stats(h->host, stats_p);
    if (getloadavg(&load, 1) == 1) n->load_percent = (uint64_t)(load * 100);
    n->memory_available = pool_memory_available("/proc", "/sys/fs/cgroup", &(const char *){NULL});
    n->refused_grants = 0;
    for (int v = GRANT_OK + 1; v < GRANT_VERDICTS; v++) n->refused_grants += stats_p->refused[v];
    n->refused_expired = stats_p->refused[GRANT_EXPIRED];
    n->refused_epoch = stats_p->refused[GRANT_BAD_EPOCH];
    n->segments_with_keys = keys_count(h);
    n->tasks = h->n_tasks;
    n->copies_running = h->copies_out;
}

static void tell_host(struct figures_told *t, const struct tarn_host *h,
                      const struct host_stats *s) {
    const struct node_figures *n = &h->figures;
    FIGURES(&t->walk, node_figures, *n, load_percent, memory_available);
    FIGURES(&t->walk, host_node_figures, *s, connections, bytes_written);
    FIGURES(&t->walk, node_figures, *n, refused_grants, refused_epoch);
    FIGURES(&t->walk, host_node_figures, *s, bad_frames, staging_shared);
    FIGURES(&t->walk, node_figures, *n, segments_with_keys, copy_bytes);
}

static void tell_far(struct figures_told *t, struct hosting_far *f) {
    char prefix[8];
    struct tier_stats s;
    if (far_tier(f) == NULL) return;
    tier_get_stats(f->tier, &s);
    snprintf(prefix, sizeof(prefix), "%s-", hosted_tiers[f->segment->kind]);
    t->prefix = prefix;
    f->figures.offering = f->offering.active;
    FIGURES(&t->walk, tier_figures, s, size, queued_bytes);
    FIGURES(&t->walk, far_figures, f->figures, stored, offering);
    FIGURES(&t->walk, tier_figures, s, queue_full, read_only);
}

struct wire_list stats_put(struct tarn_host *h, struct hosting_link *l) {
    struct figures_told t = {.walk = {.show = figure_put},
                             .prefix = "",
                             .link = l,
                             .most = h->session.has_standing ? WIRE_STATS_MAX : STATS_MAX_0_1};
    uint32_t at = request_next(&l->request);
    struct host_stats s;
    stats_gather(h, &s);
    tell_host(&t, h, &s);
    for (unsigned i = 0; i < h->n_fars; i++) tell_far(&t, &h->fars[i]);
    t.prefix = "";
    host_show_programs(&t.walk, &s);
    return (struct wire_list){at, t.n};
}

static int host_state(const struct tarn_host *h) {
    const struct hosting_session *s = &h->session;
    if (s->phase == PHASE_LEFT) return TARN_HOST_LEFT;
    if (s->drain_sent || s->closing == CLOSE_LEAVE) return TARN_HOST_LEAVING;
    return s->phase == PHASE_UP ? TARN_HOST_UP : TARN_HOST_JOINING;
}

static void info_fill(struct tarn_host *h, tarn_host_info *info) {
    struct host_stats s;
    host_get_stats(h->host, &s);
    *info = (tarn_host_info){
        .size = sizeof(*info),
        .state = host_state(h),
        .data_port = host_data_port(h->host),
        .joins = h->figures.joins,
        .heartbeats = h->figures.heartbeats,
        .heartbeat_failures = h->figures.heartbeat_failures,
        .copies_done = h->figures.copies_done,
        .copies_failed = h->figures.copies_failed,
        .copy_bytes = h->figures.copy_bytes,
        .reads = s.reads,
        .writes = s.writes,
        .bytes_read = s.bytes_read,
        .bytes_written = s.bytes_written,
    };
    for (unsigned i = 0; i < h->n_segments; i++) {
        if (h->segments[i].kind != HOSTED_MEMORY || h->segments[i].gone) continue;
        info->segments++;
        info->bytes += h->segments[i].size;
    }
    for (unsigned i = 0; i < h->n_fars; i++) {
        const struct hosting_far *f = &h->fars[i];
        struct tier_stats t = {0};
        if (far_tier(f) != NULL) tier_get_stats(f->tier, &t);
        info->stored += f->figures.stored;
        info->store_failures += f->figures.store_failures;
        info->store_bytes += f->figures.store_bytes;
        if (f->segment->kind == HOSTED_SSD) {
            info->ssd_used = t.used;
            info->ssd_entries = t.entries;
            info->ssd_reads = t.reads;
        } else {
            info->file_used = t.used;
            info->file_entries = t.entries;
        }
    }
    snprintf(info->last_error, sizeof(info->last_error), "%s", h->session.why);
}

void stats_publish(struct tarn_host *h) {
    pthread_mutex_lock(&h->mutex);
    uint64_t wanted = h->info_wanted;
    bool stale = wanted != h->info_made || h->info.state != host_state(h);
    pthread_mutex_unlock(&h->mutex);
    if (!stale) return;
    tarn_host_info info;
    info_fill(h, &info);
    pthread_mutex_lock(&h->mutex);
    h->info = info;
    h->info_made = wanted;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->mutex);
}
