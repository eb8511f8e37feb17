/* INFO nodes, tasks: who is in the pool, and what is on its way. */
#include <sodium.h>

#include "cluster/cluster.h"
#include "cmd/config.h"
#include "cmd/info.h"
#include "cmd/keys.h"

typedef unsigned long long ull;

void info_nodes(struct buf *out) {
    struct cluster_figures f;
    struct store_stats s;
    struct store_room room;
    char id[33];
    cluster_get_figures(&f);
    store_get_stats(server.store, &s);
    store_get_room(server.store, &room);
    sodium_bin2hex(id, sizeof(id), cluster_id(), 16);
    info_line(out, "pool_id:tarn-%s",
              id); /* bare hex digits some parsers take as a number, as they do all of cluster_* */
    info_line(out, "nodes:%llu", (ull)f.nodes);
    for (int i = 0; i <= CLUSTER_NODE_LEFT; i++)
        info_line(out, "nodes_%s:%llu", cluster_node_state_name((enum cluster_node_state)i),
                  (ull)f.nodes_by_state[i]);
    info_line(out, "nodes_maintenance:%llu", (ull)f.nodes_maintenance);
    info_line(out, "nodes_draining:%llu", (ull)f.nodes_draining);
    info_line(out, "max_nodes:%llu", (ull)server.config->max_nodes);
    info_line(out, "machines:%llu", (ull)f.machines);
    info_line(out, "memory_segments_up:%llu", (ull)f.memory_segments);
    info_line(out, "memory_segments_writable:%u", room.up);
    info_line(out, "far_segments:%llu", (ull)f.far_segments);
    info_line(out, "placement_strategy:%s", store_placement_name(server.store));
    info_line(out, "put_short:%llu", (ull)s.put_short);
    info_line(out, "far_objects:%llu", (ull)s.far_objects);
    info_line(out, "far_replicas:%llu", (ull)s.far_replicas);
    info_line(out, "far_added:%llu", (ull)s.far_added);
    info_line(out, "far_dropped:%llu", (ull)s.far_dropped);
    info_line(out, "far_evicted:%llu", (ull)f.far_evicted);
    info_line(out, "far_offered:%llu", (ull)f.far_offered);
    info_line(out, "far_refused:%llu", (ull)f.far_refused);
    info_line(out, "evicted_to_far:%llu", (ull)s.evicted_to_far);
    info_line(out, "node_joins:%llu", (ull)f.joins);
    info_line(out, "node_downs:%llu", (ull)f.downs);
    info_line(out, "nodes_forgotten:%llu", (ull)f.forgotten);
    info_line(out, "node_heartbeats:%llu", (ull)f.heartbeats);
    info_line(out, "node_stale:%llu", (ull)f.stale);
    info_line(out, "node_fences:%llu", (ull)f.fences);
    info_line(out, "node_fences_pending:%llu", (ull)f.fences_pending);
    info_line(out, "segment_keys:%llu", (ull)f.keys);
    info_line(out, "segment_keys_dropped:%llu", (ull)f.keys_dropped);
    info_line(out, "node_reports:%llu", (ull)f.reports);
    info_line(out, "node_reports_dropped:%llu", (ull)f.reports_dropped);
    info_line(out, "keys_and_reports_bytes:%llu", (ull)f.told_bytes);
}

void info_tasks(struct buf *out) {
    struct cluster_figures f;
    struct store_stats s;
    cluster_get_figures(&f);
    store_get_stats(server.store, &s);
    info_line(out, "tasks:%llu", (ull)f.tasks);
    info_line(out, "max_tasks:%llu", (ull)server.config->max_tasks);
    for (int i = 0; i <= CLUSTER_TASK_SENT; i++)
        info_line(out, "tasks_%s:%llu", cluster_task_state_name((enum cluster_task_state)i),
                  (ull)f.tasks_by_state[i]);
    for (int i = 0; i < CLUSTER_REASONS; i++)
        info_line(out, "tasks_by_%s:created=%llu,done=%llu,failed=%llu,bytes=%llu",
                  cluster_task_reason_name((enum cluster_task_reason)i), (ull)f.tasks_created[i],
                  (ull)f.tasks_done[i], (ull)f.tasks_failed[i], (ull)f.bytes_done[i]);
    info_line(out, "tasks_canceled:%llu", (ull)f.tasks_canceled);
    info_line(out, "tasks_retried:%llu", (ull)f.tasks_retried);
    info_line(out, "tasks_timed_out:%llu", (ull)f.tasks_timed_out);
    info_line(out, "tasks_refused:%llu", (ull)f.tasks_refused);
    info_line(out, "copies_open:%llu", (ull)s.copies_open);
    info_line(out, "replicas_dropped:%llu", (ull)s.replicas_dropped);
    info_line(out, "drains:%llu", (ull)f.drains);
    info_line(out, "drained_objects:%llu", (ull)f.drained_objects);
    info_line(out, "drained_bytes:%llu", (ull)f.drained_bytes);
    info_line(out, "drain_dropped:%llu", (ull)f.drain_dropped);
    info_line(out, "hot_objects:%llu", (ull)f.hot_objects);
    info_line(out, "hot_replicas:%llu", (ull)server.config->hot_replicas);
    info_line(out, "offload_waiting:%llu", (ull)(f.offload_waiting + s.awaiting_objects));
    info_line(out, "offload_rests:%llu", (ull)f.offload_rests);
    info_line(out, "awaiting_objects:%llu", (ull)s.awaiting_objects);
    info_line(out, "awaiting_bytes:%llu", (ull)s.awaiting_bytes);
    info_line(out, "evicted_before_copy:%llu", (ull)s.evicted_before_copy);
    info_line(out, "offload_queue:%llu", (ull)server.config->offload_queue);
    info_line(out, "offload_overflow:%llu", (ull)f.offload_overflow);
    info_line(out, "promote_waiting:%llu", (ull)f.promote_waiting);
    info_line(out, "promote_overflow:%llu", (ull)f.promote_overflow);
    info_line(out, "drops_waiting:%llu", (ull)f.drops_waiting);
    info_line(out, "drops_sent:%llu", (ull)f.drops_sent);
    info_line(out, "drops_lost:%llu", (ull)f.drops_lost);
}
