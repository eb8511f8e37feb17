/* INFO pool, cache, eviction, data: where the space is, what look-ups found, what had to go, what
 * moved. */
#include "cmd/stats.h"
#include "cluster/cluster.h"
#include "cmd/client.h"
#include "cmd/core.h"
#include "cmd/info.h"
#include "cmd/location.h"
#include "cmd/waiters.h"
#include "host/host.h"

typedef unsigned long long ull;

#define SEGMENTS_SHOWN 64u

static double share(uint64_t a, uint64_t b) {
    return b > 0 ? (double)a / (double)b : 0;
}

void info_pool(struct buf *out) {
    struct store_stats s;
    char text[32];
    store_get_stats(server.store, &s);
    info_line(out, "pool_size:%llu", (ull)s.pool_size);
    info_line(out, "pool_size_human:%s", info_human(s.pool_size, text));
    info_line(out, "pool_used:%llu", (ull)s.pool_used);
    info_line(out, "pool_used_human:%s", info_human(s.pool_used, text));
    info_line(out, "pool_used_perc:%.2f%%", 100 * share(s.pool_used, s.pool_size));
    info_line(out, "pool_free:%llu", (ull)s.pool_free);
    info_line(out, "pool_largest_free:%llu", (ull)s.largest_free);
    info_line(out, "pool_down:%llu", (ull)s.pool_down);
    info_line(out, "pool_quarantined:%llu", (ull)s.pool_quarantined);
    info_line(out, "pool_ghosts:%llu", (ull)s.pool_ghosts);
    info_line(out, "pool_zombie:%llu", (ull)s.pool_zombie);
    info_line(out, "pool_evictable:%llu", (ull)s.pool_evictable);
    info_line(out, "allocator:%s", config_allocator_name(server.config));
    info_line(out, "segments:%zu", store_segment_count(server.store));
    size_t shown = 0; /* SEGMENT LIST shows all */
    for (uint32_t id = 0; id < store_segment_limit(server.store) && shown < SEGMENTS_SHOWN; id++) {
        struct store_segment_info g;
        struct cluster_segment at;
        struct host_segment_info h = {.backing = "remote", .numa_node = -1};
        if (!store_segment_get(server.store, id, &g) || !cluster_segment_get(id, &at)) continue;
        if (at.embedded && server.host != NULL) host_segment_get(server.host, id, &h);
        if (!at.embedded) h.backing = at.backing, h.huge = at.huge, h.numa_node = at.numa_node;
        shown++;
        info_line(out,
                  "segment%u:name=%s,epoch=%u,size=%llu,used=%llu,quarantined=%llu,largest_free=%"
                  "llu,free_"
                  "runs=%llu,"
                  "backing=%s,huge=%d,numa_node=%d,node=%s,tier=%s",
                  id, g.name, g.epoch, (ull)g.size, (ull)g.used, (ull)g.quarantined,
                  (ull)g.largest_free, (ull)g.free_runs, h.backing, h.huge, h.numa_node, at.node,
                  location_tier_name(g.tier));
    }
}

void info_cache(struct buf *out) {
    struct store_stats s;
    store_get_stats(server.store, &s);
    info_line(out, "objects:%llu", (ull)s.objects);
    info_line(out, "max_objects:%llu", (ull)server.config->max_objects);
    info_line(out, "inline_objects:%llu", (ull)s.inline_objects);
    info_line(out, "expires:%llu", (ull)s.expires);
    info_line(out, "soft_pins:%llu", (ull)s.soft_pins);
    info_line(out, "hard_pins:%llu", (ull)s.hard_pins);
    info_line(out, "hard_pinned_bytes:%llu", (ull)s.hard_pinned_bytes);
    info_line(out, "hard_pinned_books:%llu", (ull)s.hard_pinned_books);
    info_line(out, "hard_pin_owners:%llu", (ull)s.hard_pin_owners);
    info_line(out, "hard_pins_refused:%llu", (ull)s.hard_pins_refused);
    info_line(out, "groups:%llu", (ull)s.groups);
    info_line(out, "hits:%llu", (ull)s.hits);
    info_line(out, "misses:%llu", (ull)s.misses);
    info_line(out, "hit_ratio:%.4f", share(s.hits, s.hits + s.misses));
    info_line(out, "requests:%llu", (ull)s.requests);
    info_line(out, "puts_open:%llu", (ull)s.puts_open);
    info_line(out, "puts_zombie:%llu", (ull)s.puts_zombie);
    info_line(out, "max_puts_per_client:%llu", (ull)server.config->max_puts_per_client);
    info_line(out, "put_starts:%llu", (ull)s.put_starts);
    info_line(out, "put_ends:%llu", (ull)s.put_ends);
    info_line(out, "put_revokes:%llu", (ull)s.put_revokes);
    info_line(out, "put_timeouts:%llu", (ull)s.put_timeouts);
    info_line(out, "put_exists:%llu", (ull)s.put_exists);
    info_line(out, "put_busy:%llu", (ull)s.put_busy);
    info_line(out, "put_later:%llu", (ull)s.put_later);
    info_line(out, "put_nospace:%llu", (ull)s.put_nospace);
    info_line(out, "put_delayed:%llu", (ull)s.put_delayed);
    info_line(out, "put_superseded:%llu", (ull)s.put_superseded);
    info_line(out, "bad_tokens:%llu", (ull)s.bad_tokens);
    info_line(out, "replica_reports:%llu", (ull)stats.replica_reports);
    info_line(out, "replicas_bad:%llu", (ull)stats.replicas_bad);
    info_line(out, "leases:%llu", (ull)s.leases);
    info_line(out, "holds:%llu", (ull)s.holds);
    info_line(out, "leased_objects:%llu", (ull)s.leased_objects);
    info_line(out, "guarded_objects:%llu", (ull)s.guarded_objects);
    info_line(out, "max_leases_per_client:%llu", (ull)server.config->max_leases_per_client);
    info_line(out, "leases_granted:%llu", (ull)s.leases_granted);
    info_line(out, "leases_extended:%llu", (ull)s.leases_extended);
    info_line(out, "leases_released:%llu", (ull)s.leases_released);
    info_line(out, "leases_expired:%llu", (ull)s.leases_expired);
    info_line(out, "removed:%llu", (ull)s.removed);
    info_line(out, "replaced:%llu", (ull)s.replaced);
    info_line(out, "expired:%llu", (ull)s.expired);
    info_line(out, "fences:%llu", (ull)s.fences);
}

void info_eviction(struct buf *out) {
    struct store_stats s;
    store_get_stats(server.store, &s);
    info_line(out, "eviction_policy:%s", store_policy_name(server.store));
    info_line(out, "eviction_high_watermark:%g", server.config->eviction_high_watermark);
    info_line(out, "eviction_ratio:%g", server.config->eviction_ratio);
    info_line(out, "migrating_objects:%llu", (ull)s.migrating_objects);
    info_line(out, "sweep_objects:%llu", (ull)s.sweep_objects);
    info_line(out, "evicted_objects:%llu", (ull)s.evicted_objects);
    info_line(out, "evicted_bytes:%llu", (ull)s.evicted_bytes);
    info_line(out, "evicted_inline:%llu", (ull)s.evicted_inline);
    info_line(out, "evicted_soft_pinned:%llu", (ull)s.evicted_soft_pinned);
    info_line(out, "evicted_group:%llu", (ull)s.evicted_group);
    info_line(out, "evicted_together:%llu", (ull)s.together);
    info_line(out, "evicted_background:%llu", (ull)s.evicted_background);
    info_line(out, "evicted_quota:%llu", (ull)s.evicted_quota);
    info_line(out, "evicted_limits:%llu", (ull)s.evicted_limits);
    info_line(out, "evict_command:%llu", (ull)s.evict_command);
    info_line(out, "room_direct:%llu", (ull)s.room_direct);
    info_line(out, "room_policy:%llu", (ull)s.room_policy);
    info_line(out, "room_window:%llu", (ull)s.room_window);
    info_line(out, "room_slices:%llu", (ull)s.room_slices);
    info_line(out, "room_gave_up:%llu", (ull)s.room_gave_up);
}

void info_data(struct buf *out) {
    struct host_stats h;
    info_line(out, "data_host:%d", server.host != NULL);
    if (server.host == NULL) return;
    host_get_stats(server.host, &h);
    info_line(out, "data_port:%u", core_endpoints.data_port);
    info_line(out, "shm_socket:%s", core_endpoints.shm_path);
    info_line(out, "data_threads:%lld", (long long)server.config->data_threads);
    info_line(out, "data_connections:%llu", (ull)h.connections);
    info_line(out, "data_maxclients:%lld", (long long)server.config->data_maxclients);
    info_line(out, "data_connections_received:%llu", (ull)h.connections_total);
    info_line(out, "data_connections_refused:%llu", (ull)h.connections_refused);
    info_line(out, "data_connections_without_grant:%llu", (ull)h.connections_new);
    info_line(out, "data_connections_ousted:%llu", (ull)h.connections_ousted);
    info_line(out, "shm_peers:%llu", (ull)h.shm_peers);
    info_line(out, "shm_attaches:%llu", (ull)h.shm_attaches_total);
    info_line(out, "data_reads:%llu", (ull)h.reads);
    info_line(out, "data_writes:%llu", (ull)h.writes);
    info_line(out, "data_bytes_read:%llu", (ull)h.bytes_read);
    info_line(out, "data_bytes_written:%llu", (ull)h.bytes_written);
    for (int v = GRANT_OK + 1; v < GRANT_VERDICTS; v++) {
        char name[32];
        size_t n = 0;
        for (const char *p = grant_verdict_name((enum grant_verdict)v);
             *p != '\0' && n + 1 < sizeof(name); p++)
            name[n++] = (char)((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') ? *p : '_');
        name[n] = '\0';
        info_line(out, "grants_refused_%s:%llu", name, (ull)h.refused[v]);
    }
    info_line(out, "data_bad_frames:%llu", (ull)h.bad_frames);
    info_line(out, "data_timeouts:%llu", (ull)h.timeouts);
    info_line(out, "fences_pending:%llu", (ull)h.fences_pending);
    info_line(out, "fenced_sessions:%llu", (ull)h.fenced_sessions);
    info_line(out, "data_puts:%llu", (ull)h.puts);
}
