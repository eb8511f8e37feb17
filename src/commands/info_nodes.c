/* INFO nodes, tasks: who is in the pool, and what is on its way. */
#include <sodium.h>

#include "cluster/cluster.h"
#include "front/core.h"
#include "commands/info.h"
#include "config/config.h"
#include "store/figures.h"

static void show_node(struct figure_walk *f, const struct cluster_node_info *n) {
    uint64_t size = 0, used = 0, left = 0, moved = 0;
    for (size_t i = 0; i < n->n_segments; i++) {
        struct store_segment_info s;
        struct cluster_segment g;
        if (!store_segment_get(books, n->segments[i], &s)) continue;
        if (cluster_segment_get(s.id, &g) && g.draining) {
            left += s.used;
            moved += g.moved_bytes;
        }
        if (s.tier != STORE_TIER_MEMORY) continue;
        size += s.size;
        used += s.used;
    }
    figures_group(f, "node", "node", n->name);
    FIGURE(f, TEXT, state, "joining, up, down, left", cluster_node_state_name(n->state));
    FIGURE(f, TEXT, machine, "it runs on", n->machine);
    FIGURE(f, TEXT, rack, "of the machine", n->rack);
    FIGURE(f, GAUGE, up, "1: the node is up", n->state == CLUSTER_NODE_UP);
    FIGURE(f, TEXT, address, "it connects from", n->address);
    FIGURE(f, TEXT, version, "of its program", n->version);
    FIGURE(f, GAUGE, draining, "1: what only it has is moved away", n->draining);
    FIGURE(f, BYTES, drain_left, "in segments that are being emptied", left);
    FIGURE(f, BYTES, drain_moved, "... moved away since", moved);
    FIGURE(f, GAUGE, maintenance, "1: nothing new goes there", n->maintenance);
    FIGURE(f, GAUGE, segments, "that the node lends", n->n_segments);
    FIGURE(f, BYTES, size, "of its memory in the pool", size);
    FIGURE(f, BYTES, used, "... in objects and open puts", used);
    FIGURE(f, GAUGE, tasks, "that it has, or waits for", n->tasks_sent + n->tasks_waiting);
    FIGURE(f, COUNTER, joins, "how often it has joined", n->joins);
    FIGURE(f, MS, silent, "since it was heard last", turn.mono_ms - n->seen_ms);
    figures_group_end(f);
}

bool info_each_node(struct figure_walk *f, uint32_t *cursor, size_t n) {
    for (size_t shown = 0; shown < n; shown++) {
        struct cluster_node_info info;
        struct cluster_node *node = cluster_node_next(cursor);
        if (node == NULL) return false;
        cluster_node_get(node, &info);
        show_node(f, &info);
    }
    return true;
}

void info_nodes(struct figure_walk *f) {
    struct cluster_figures c;
    struct store_stats s;
    struct store_room room;
    /* bare hex digits some parsers take as a number, as they do all of cluster_* */
    char id[5 + 33] = "tarn-";
    cluster_get_figures(&c);
    store_get_stats(books, &s);
    store_get_room(books, &room);
    sodium_bin2hex(id + 5, sizeof(id) - 5, cluster_id(), 16);
    FIGURE(f, TEXT, pool_id, "of this pool, kept across restarts", id);
    FIGURES(f, cluster_figures, c, nodes, nodes);
    for (int i = 0; i <= CLUSTER_NODE_LEFT; i++)
        FIGURE_OF(f, GAUGE, nodes_, "... in that state", "state",
                  cluster_node_state_name((enum cluster_node_state)i), c.nodes_by_state[i]);
    FIGURES(f, cluster_figures, c, nodes_maintenance, memory_segments_up);
    FIGURE(f, GAUGE, memory_segments_writable, "... that new objects may go to", room.up);
    FIGURES(f, cluster_figures, c, far_segments, far_segments);
    FIGURE(f, TEXT, placement_strategy, "where replicas go first", store_placement_name(books));
    FIGURES(f, store_figures, s, put_short, far_dropped);
    FIGURES(f, cluster_figures, c, far_evicted, far_refused);
    FIGURES(f, store_figures, s, evicted_to_far, evicted_to_far);
    FIGURES(f, cluster_figures, c, node_joins, keys_and_reports_bytes);
}

static void show_tasks_by(struct figure_walk *f, const struct cluster_figures *c,
                          enum cluster_task_reason reason) {
    figures_group(f, "tasks_by_", "reason", cluster_task_reason_name(reason));
    FIGURE(f, COUNTER, created, "tasks begun for that reason", c->tasks_created[reason]);
    FIGURE(f, COUNTER, done, "... done", c->tasks_done[reason]);
    FIGURE(f, COUNTER, failed, "... failed", c->tasks_failed[reason]);
    FIGURE(f, COUNTER_BYTES, bytes, "... moved", c->bytes_done[reason]);
    figures_group_end(f);
}

void info_tasks(struct figure_walk *f) {
    struct cluster_figures c;
    struct store_stats s;
    cluster_get_figures(&c);
    store_get_stats(books, &s);
    FIGURES(f, cluster_figures, c, tasks, max_tasks);
    for (int i = 0; i <= CLUSTER_TASK_SENT; i++)
        FIGURE_OF(f, GAUGE, tasks_, "tasks in that state", "state",
                  cluster_task_state_name((enum cluster_task_state)i), c.tasks_by_state[i]);
    for (int i = 0; i < CLUSTER_REASONS; i++) show_tasks_by(f, &c, (enum cluster_task_reason)i);
    FIGURES(f, cluster_figures, c, tasks_canceled, tasks_refused);
    FIGURES(f, store_figures, s, copies_open, replicas_dropped);
    FIGURES(f, cluster_figures, c, drains, hot_objects);
    FIGURE(f, GAUGE, hot_replicas, "replicas that a hot object gets (hot-replicas)",
           config->hot_replicas);
    FIGURE(f, GAUGE, offload_waiting, "objects that wait to be copied to a disk",
           c.offload_waiting + s.awaiting_objects);
    FIGURES(f, cluster_figures, c, offload_rests, offload_rests);
    FIGURES(f, store_figures, s, awaiting_objects, evicted_before_copy);
    FIGURE(f, GAUGE, offload_queue, "bound of what waits, each disk (offload-queue)",
           config->offload_queue);
    FIGURES(f, cluster_figures, c, offload_overflow, prefetch_refused);
    FIGURES(f, store_figures, s, prefetch_brought, prefetch_unread);
    FIGURES(f, cluster_figures, c, drops_waiting, drops_lost);
}
