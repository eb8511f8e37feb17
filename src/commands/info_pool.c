/* INFO pool, cache, eviction, data: where the space is, what look-ups found, what had to go, what
 * moved. */
#include <stdio.h>
#include "base/hist.h"
#include "cluster/cluster.h"
#include "front/client.h"
#include "front/core.h"
#include "commands/info.h"
#include "commands/nodes.h"
#include "front/location.h"
#include "front/stats.h"
#include "front/waiters.h"
#include "host/host.h"
#include "front/embedded.h"
#include "store/curve.h"
#include "config/config.h"
#include "store/figures.h"

#define SEGMENTS_SHOWN 64u
#define TENANTS_SHOWN  64u

static double ratio_share(uint64_t a, uint64_t b) {
    return b > 0 ? (double)a / (double)b : 0;
}

void info_segment(struct figure_walk *f, const struct store_segment_info *g,
                  const struct cluster_segment *at, info_segment_fn more) {
    char id[16];
    struct host_segment_info h = {.backing = "remote", .numa_node = -1};
    if (at->embedded && embedded.host != NULL) host_segment_get(embedded.host, g->id, &h);
    if (!at->embedded) h.backing = at->backing, h.huge = at->huge, h.numa_node = at->numa_node;
    snprintf(id, sizeof(id), "%u", g->id);
    figures_group(f, "segment", "segment", id);
    FIGURE(f, TEXT, name, "of the segment", g->name);
    FIGURE(f, GAUGE, epoch, "grows when its content is lost or replaced", g->epoch);
    FIGURE(f, BYTES, size, "of the segment", g->size);
    FIGURE(f, BYTES, used, "in objects and open puts", g->used);
    FIGURE(f, BYTES, quarantined, "of objects that are gone, for their last readers",
           g->quarantined);
    FIGURE(f, BYTES, largest_free, "the largest free run", g->largest_free);
    FIGURE(f, GAUGE, free_runs, "runs of free space", g->free_runs);
    FIGURE(f, TEXT, backing, "memfd, file, memory, ssd", h.backing);
    FIGURE(f, GAUGE, huge, "1: in huge pages", h.huge);
    FIGURE(f, GAUGE, numa_node, "that it is bound to, -1: none", h.numa_node);
    FIGURE(f, TEXT, node, "that holds it, empty: this server", at->node);
    FIGURE(f, TEXT, tier, "memory, ssd, file", location_tier_name(g->tier));
    FIGURE(f, TEXT, state, "up, readonly, draining, drained, down, leaving",
           segment_state_name(g, at));
    if (more != NULL) more(f, g, at);
    figures_group_end(f);
}

void info_pool_sums(struct figure_walk *f) {
    struct store_stats s;
    store_get_stats(books, &s);
    FIGURES(f, store_figures, s, pool_size, pool_used);
    FIGURE(f, PERCENT, pool_used_perc, "pool_used of pool_size",
           100 * ratio_share(s.pool_used, s.pool_size));
    FIGURES(f, store_figures, s, pool_free, pool_evictable);
    FIGURE(f, TEXT, allocator, "of the pool's space: offset, slab", config_allocator_name(config));
    FIGURE(f, GAUGE, segments, "that the pool is made of", store_segment_count(books));
}

void info_pool(struct figure_walk *f) {
    info_pool_sums(f);
    (void)info_segments(f, 0, SEGMENTS_SHOWN); /* SEGMENT LIST shows all */
}

uint32_t info_segments(struct figure_walk *f, uint32_t from, size_t n) {
    uint32_t id = from, limit = store_segment_limit(books);
    for (size_t shown = 0; id < limit && shown < n; id++) {
        struct store_segment_info g;
        struct cluster_segment at;
        if (!store_segment_get(books, id, &g) || !cluster_segment_get(id, &at)) continue;
        shown++;
        info_segment(f, &g, &at, NULL);
    }
    return id;
}

/* The hit ratio that this policy, where that is known, and lru would have in other pools. */
static void show_curve(struct figure_walk *f) {
    static const char *const sizes[CURVE_SIZES] = {"quarter", "half", "this", "twice",
                                                   "four_times"};
    struct curve_figures c;
    if (!store_get_curve(books, &c)) return;
    FIGURE(f, GAUGE, curve_one_in, "the curve is made from one key in so many", c.sample);
    if (c.looks == 0) return;
    for (unsigned i = 0; c.policy_known && i < CURVE_SIZES; i++)
        FIGURE_OF(f, SHARE, curve_, "hit ratio, were the pool as large as that", "pool", sizes[i],
                  c.point[CURVE_POLICY][i].hit_ratio);
    for (unsigned i = 0; i < CURVE_SIZES; i++)
        FIGURE_OF(f, SHARE, curve_lru_, "... and were the eviction policy lru", "pool", sizes[i],
                  c.point[CURVE_LRU][i].hit_ratio);
}

static void show_tenant(struct figure_walk *f, const struct store_tenant *t, const char *prefix) {
    figures_group(f, "tenant", "tenant", prefix);
    FIGURE(f, BYTES, quota, "that its keys may hold, 0: no bound", t->quota.limit);
    FIGURE(f, BYTES, used, "that they hold", t->quota.used);
    FIGURE(f, GAUGE, objects, "that can be read", t->quota.objects);
    FIGURE(f, COUNTER, hits, "look-ups that found the object", t->hits);
    for (int i = 0; i < STORE_MISS_GAP; i++)
        FIGURE_OF(f, COUNTER, misses_, "look-ups that missed for that reason", "reason",
                  store_miss_name((enum store_miss)i), t->missed[i]);
    FIGURE(f, COUNTER, evicted, "objects evicted", t->evicted);
    figures_group_end(f);
}

/* With a quota, for each of the first TENANTS_SHOWN; a prefix may be of any bytes. */
void info_tenants(struct figure_walk *f) {
    struct store_tenant tenants[TENANTS_SHOWN];
    struct buf prefix = {NULL, 0, 0};
    size_t n = store_tenants(books, tenants, TENANTS_SHOWN);
    for (size_t i = 0; n > 1 && i < n && i < TENANTS_SHOWN; i++) {
        prefix.len = 0;
        buf_append_quoted(&prefix, tenants[i].quota.prefix);
        prefix.data[prefix.len - 1] = '\0'; /* in place of the last quote */
        show_tenant(f, &tenants[i], (const char *)prefix.data + 1);
    }
    buf_free(&prefix);
}

void info_cache(struct figure_walk *f) {
    struct store_stats s;
    store_get_stats(books, &s);
    FIGURES(f, store_figures, s, objects, misses);
    struct store_story story;
    store_get_story(books, &story);
    for (int i = 0; i < STORE_MISSES; i++)
        FIGURE_OF(f, COUNTER, misses_, "look-ups that missed for that reason", "reason",
                  store_miss_name((enum store_miss)i), s.missed[i]);
    FIGURE(f, GAUGE, misses_one_in, "the reasons are those of one key in so many", story.one_in);
    FIGURE(f, MS, asked_again_p50, "evicted keys are asked for again after, median",
           hist_percentile(story.asked_again, 0.5));
    FIGURE_HIST(f, HIST_MS, asked_again, "from the eviction of a key to its next look-up",
                story.asked_again);
    FIGURE(f, SHARE, hit_ratio, "hits of all look-ups", ratio_share(s.hits, s.hits + s.misses));
    show_curve(f);
    FIGURES(f, store_figures, s, requests, bad_tokens);
    FIGURES(f, stats_figures, stats, replica_reports, replicas_bad);
    FIGURES(f, store_figures, s, leases, fences);
}

void info_eviction(struct figure_walk *f) {
    struct store_stats s;
    store_get_stats(books, &s);
    FIGURE(f, TEXT, eviction_policy, "in use", store_policy_name(books));
    FIGURE(f, SETTING, eviction_high_watermark, "share of the pool that begins eviction",
           config->eviction_high_watermark);
    FIGURE(f, BYTES, prefill_rate, "of KV that an engine is said to compute in a second",
           config->prefill_rate);
    FIGURE(f, BYTES, disk_read_rate, "a second that reads from disks get; 0: unknown",
           (uint64_t)store_config(books)->disk_read_rate);
    FIGURE(f, SETTING, eviction_ratio, "share of the objects that goes then",
           config->eviction_ratio);
    FIGURES(f, store_figures, s, migrating_objects, room_gave_up);
    for (int i = 0; i < STORE_EVICTIONS; i++)
        FIGURE_OF(f, COUNTER, evictions_, "objects evicted for that", "cause",
                  store_eviction_name((enum store_eviction)i), s.evicted_for[i]);
    struct store_story story;
    store_get_story(books, &story);
    FIGURE(f, MS, evicted_idle_p50, "since their last use, of evicted objects, median",
           hist_percentile(story.idle, 0.5));
    FIGURE_HIST(f, HIST_MS, evicted_idle, "from the last use of an object to its eviction",
                story.idle);
    FIGURE_HIST(f, HIST_NS, put_eviction, "that puts spent on making room, those that had to evict",
                story.evicting);
}

void info_data(struct figure_walk *f) {
    struct host_stats h;
    FIGURE(f, GAUGE, data_host, "1: this process has a pool of its own", embedded.host != NULL);
    if (embedded.host == NULL) return;
    host_get_stats(embedded.host, &h);
    FIGURE(f, GAUGE, data_port, "for the bytes of objects", core_endpoints.data_port);
    FIGURE(f, TEXT, shm_socket, "for shared memory", core_endpoints.shm_path);
    FIGURE(f, GAUGE, data_threads, "that serve the data port", config->data_threads);
    FIGURES(f, host_figures, h, connections, bytes_written);
    host_show_programs(f, &h);
    host_show_refused(f, &h);
    FIGURES(f, host_figures, h, bad_frames, puts);
}
