/* PREFETCH: what a client will read soon. It is a word for the cluster (cluster_prefetch), which
 * may do as it says; nobody waits for the bytes, and no object counts as used. */
#include "front/families.h"

#include "base/assert.h"
#include "cluster/cluster.h"
#include "commands/nodes.h"
#include "front/each.h"

struct prefetch {
    struct each each;
    uint32_t to, epoch; /* to: STORE_SEGMENT_ANY: memory, wherever */
    uint64_t count[CLUSTER_PREFETCHES];
};

static enum each_next prefetch_one(struct client *c, struct each *each, unsigned *budget) {
    struct prefetch *p = CONTAINER_OF(each, struct prefetch, each);
    struct span key = *each_args(c, each);
    struct object *o = store_find_hashed(books, key, each_hash(c, each, each->at));
    p->count[cluster_prefetch(o, p->to, p->epoch)]++;
    return EACH_ON;
}

static void prefetch_end(struct client *c, struct each *each) {
    const struct prefetch *p = CONTAINER_OF(each, struct prefetch, each);
    reply_array(c, CLUSTER_PREFETCHES);
    for (int i = 0; i < CLUSTER_PREFETCHES; i++) reply_int(c, (int64_t)p->count[i]);
}

/* SEGMENT, 0: not given. */
static bool prefetch_to(struct client *c, uint32_t at, struct prefetch *p) {
    struct store_segment_info s = {.id = STORE_SEGMENT_ANY};
    if (at != 0 && !segment_arg(c, at, &s)) return false;
    if (at != 0 && (s.tier != STORE_TIER_MEMORY || s.state != SEGMENT_UP)) {
        reply_error(c, "-NOSEGMENT SEGMENT must be a memory segment that takes new objects: "
                       "SEGMENT LIST shows tiers and states");
        return false;
    }
    p->to = s.id;
    p->epoch = s.epoch;
    return true;
}

void cmd_prefetch(struct client *c) {
    struct prefetch p = {.each = {.one = prefetch_one, .end = prefetch_end}};
    struct wire_prefetch args = {0};
    if (!arg_bind(c, &args) || !prefetch_to(c, args.segment, &p)) return;
    each_keys(&p.each, args.keys, 1);
    each_run(c, &p.each, sizeof(p));
}
