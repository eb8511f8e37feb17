/* All figures of a host at one moment: taken by its control thread, shown by whoever has it then
 * (view.h). */
#ifndef TARN_HOSTING_SNAPSHOT_H
#define TARN_HOSTING_SNAPSHOT_H

#include "hosting/chunks.h"
#include "hosting/hosting.h"

#define SNAPSHOT_SEGMENTS (CHUNKS_MAX + FARS_MAX * SLOT_SHARDS_MAX)

struct hosting_snapshot {
    bool any; /* one was taken */
    uint64_t taken_ms;
    char name[NODE_NAME_MAX + 1], machine[192], rack[64], shm[HOST_SOCKET_MAX];
    uint16_t data_port;
    bool up, has_standing, draining, maintenance; /* as in hosting_session */
    uint64_t used;                                /* of its memory, as the master counts */
    struct node_figures node;
    struct host_stats host;
    struct host_times times;
    struct hist copy_ns;
    unsigned n_segments, n_tiers;
    struct snapshot_segment {
        char name[SEGMENT_NAME_MAX + 1];
        enum hosted_kind kind;
        uint32_t id, epoch;
        uint64_t size;
        bool mounted, huge;
        int numa_node;
        const char *backing; /* static */
    } segments[SNAPSHOT_SEGMENTS];
    struct snapshot_tier {
        enum hosted_kind kind;
        struct tier_stats tier;
        struct far_figures far;
        uint64_t evictions;
        struct tier_times times;
    } tiers[FARS_MAX];
    unsigned n_shares; /* of a node that has several masters */
    struct snapshot_share {
        char shard[SLOT_NAME_MAX + 1];
        uint16_t data_port;
        bool up, has_standing;
        uint64_t lent, used;
    } shares[SLOT_SHARDS_MAX];
};

void snapshot_take(struct hosting_snapshot *s, struct tarn_host *h);
/* Of several hosts of one node. */
void snapshot_clear(struct hosting_snapshot *s);
void snapshot_add(struct hosting_snapshot *sum, const struct hosting_snapshot *one,
                  const char *shard);
/* As hosting_view_figures. */
const char *snapshot_show(const struct hosting_snapshot *s, unsigned part,
                          struct figure_walk *walk);

#endif
