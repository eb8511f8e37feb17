/* What nodes say about their far tiers by themselves: what they let go, and what they found on
 * their disks after a start. */
#include "cluster/internal.h"

bool cluster_far_of(const struct cluster_node *n, uint32_t segment) {
    const struct node_segment *g = segment_at(segment);
    return g != NULL && g->node == n && segment_is_far(g) && !g->leaving;
}

bool cluster_far_evicted(struct cluster_node *c, uint32_t segment, struct span key,
                         uint64_t version) {
    if (!cluster_far_of(c, segment) || !store_far_drop(cluster.store, key, version, segment))
        return false;
    cluster.figures.far_evicted++;
    segment_at(segment)->pace.evicted_ms = cluster.now_ms;
    return true;
}

int64_t cluster_far_worth(const struct cluster_node *c, uint32_t segment, struct span key,
                          uint64_t version) {
    struct object *o = store_find_version(cluster.store, key, version);
    if (!cluster_far_of(c, segment) || o == NULL) return 0;
    float loss = store_object_far_loss(cluster.store, o);
    return loss < 0 ? -1 : loss < 1e18f ? (int64_t)loss : INT64_MAX;
}

uint64_t cluster_far_offered(struct cluster_node *c, uint32_t segment,
                             const struct cluster_offer *o) {
    uint64_t version;
    if (!cluster_far_of(c, segment)) return 0;
    tarn_status status = store_far_offer(cluster.store, o->key, o->size, o->crc, o->crcs, o->n_crcs,
                                         o->version, segment, o->offset, &version);
    if (status != TARN_OK) {
        cluster.figures.far_refused++;
        return 0;
    }
    cluster.figures.far_offered++;
    return version;
}
