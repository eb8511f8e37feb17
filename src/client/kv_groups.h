/* What is asked of KV groups, and the keys of their parts. */
#ifndef TARN_CLIENT_KV_GROUPS_H
#define TARN_CLIENT_KV_GROUPS_H

#include "client/client.h"

static inline uint32_t kv_group_unit(const tarn_kv_group *g) {
    return g->unit != 0 ? g->unit : g->block;
}
/* Of an older program, too; checked. */
tarn_status kv_query_copy(const tarn_kv_query *in, tarn_kv_query *q);
/* Of the part that ends at that token, in the arena. */
tarn_key kv_key_make(struct arena *arena, const tarn_kv_query *q, const tarn_kv_group *g,
                     uint64_t end);
/* Of all parts, one group after the other. */
void kv_parts_name(struct arena *arena, const tarn_kv_query *q, const tarn_kv_parts *parts,
                   tarn_key *keys);

/* What becomes of the parts that are read; prefixes have none. */
struct kv_reading {
    tarn_kv_place_fn place;
    void *arg;
    bool extend_deadline;
    size_t failed;
};

/* Over several masters, none of which knows all parts: the boundary is worked out here, from
 * look-ups; then they are read (reading NULL: they are not). */
tarn_status shards_kv(struct tarn_client *front, const tarn_kv_query *q, const tarn_call *call,
                      struct kv_reading *reading, uint64_t deadline, uint64_t *tokens_p,
                      tarn_kv_parts *parts);

#endif
