/* INFO nodes, tasks: who is in the pool, and what is on its way. */
#include <sodium.h>

#include "cluster/cluster.h"
#include "front/core.h"
#include "commands/info.h"
#include "config/config.h"

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
    FIGURES(f, cluster_figures, c, offload_overflow, drops_lost);
}
