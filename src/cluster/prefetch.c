/* Objects that come to memory before anybody reads them, because somebody said that he will soon
 * (PREFETCH): a request of an engine's queue has them in its prompt.
 *
 *   PREFETCH ─> COPY task, in a list of its own ─(no other copy waits)─> free space, or that of who
 *                   │                                                    was next to go
 *                   └──(a look-up promotes it meanwhile)─> among the other copies
 *
 * Nobody waits for these tasks, and whoever asked may never read: so at most PREFETCH_MAX wait,
 * they take their turn behind all other copies and no more than half of the room that is held for
 * these, and what they bring drives out nothing that was used since (store_copy_options). */
#include "cluster/internal.h"

#define PREFETCH_MAX 1024u /* tasks */

/* A copy that is as near to readers there as one in that segment. */
static bool lies_near(const struct object *o, const struct node_segment *to) {
    struct store_layout layout;
    store_object_layout(cluster.store, o, &layout);
    for (uint32_t i = 0; i < layout.replicas; i++) {
        const struct store_replica *r = &layout.replica[i];
        if (r->tier != STORE_TIER_MEMORY || r->extents == 0) continue;
        const struct node_segment *g = segment_at(r->extent[0].segment);
        if (g != NULL && g->machine == to->machine) return true;
    }
    return false;
}

static bool is_coming(const struct object *o, uint32_t to) {
    struct span key = store_object_key(o);
    uint64_t version = store_object_version(o);
    return task_for(key, version, CLUSTER_BY_PREFETCH, to) != NULL ||
           (to == STORE_SEGMENT_ANY && task_for(key, version, CLUSTER_BY_USE, to) != NULL);
}

static bool is_there(const struct object *o, uint32_t to, const struct node_segment *g) {
    struct span value;
    if (store_object_inline(o, &value)) return true;
    bool there = g != NULL ? lies_near(o, g) : store_object_in_memory(cluster.store, o);
    return there || is_coming(o, to);
}

enum cluster_prefetch cluster_prefetch(const struct object *o, uint32_t to, uint32_t epoch) {
    struct cluster_task *t;
    const struct node_segment *g = to != STORE_SEGMENT_ANY ? segment_at(to) : NULL;
    cluster.figures.prefetch_asked++;
    if (o == NULL) {
        cluster.figures.prefetch_unknown++;
        return CLUSTER_PREFETCH_UNKNOWN;
    }
    bool possible = !cluster.following &&
                    (to == STORE_SEGMENT_ANY ||
                     (g != NULL && g->epoch == epoch && !segment_is_far(g) && !g->leaving));
    if (possible && is_there(o, to, g)) {
        cluster.figures.prefetch_there++;
        return CLUSTER_PREFETCH_THERE;
    }
    if (possible && cluster.by_reason[CLUSTER_BY_PREFETCH] < PREFETCH_MAX &&
        task_create(CLUSTER_TASK_COPY, CLUSTER_BY_PREFETCH, o, STORE_SEGMENT_ANY, to, &t) ==
            TARN_OK)
        return CLUSTER_PREFETCH_TAKEN;
    cluster.figures.prefetch_refused++;
    return CLUSTER_PREFETCH_REFUSED;
}
