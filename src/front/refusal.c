#include "front/refusal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/assert.h"
#include "cluster/cluster.h"
#include "front/client.h"
#include "front/embedded.h"
#include "store/figures.h"

#define NAMES_MAX 3u /* of nodes in one text */

/* --- no segment takes anything --- */

/* Memory segments that are alike, and some of the nodes they are of. */
struct sort {
    const char *is; /* "down" ... */
    const char *remedy;
    uint32_t n;
    unsigned n_names;
    const char *name[NAMES_MAX];
    bool more;
};

enum { SORT_DOWN, SORT_MAINTENANCE, SORT_DRAINED, SORT_LEAVING, SORT_HELD, SORTS };

static void sort_add(struct sort *sort, const char *name) {
    sort->n++;
    for (unsigned i = 0; i < sort->n_names; i++)
        if (strcmp(sort->name[i], name) == 0) return;
    if (sort->n_names < NAMES_MAX)
        sort->name[sort->n_names++] = name;
    else
        sort->more = true;
}

static unsigned sort_of(const struct store_segment_info *s, const struct cluster_segment *g) {
    if (s->state == SEGMENT_LEAVING) return SORT_LEAVING;
    if (s->state == SEGMENT_DOWN) return SORT_DOWN;
    if (g->draining || g->drained) return SORT_DRAINED;
    return g->embedded ? SORT_HELD : SORT_MAINTENANCE;
}

static void sort_segments(struct sort sorts[SORTS]) {
    for (uint32_t id = 0; id < store_segment_limit(books); id++) {
        struct store_segment_info s;
        struct cluster_segment g;
        if (!store_segment_get(books, id, &s) || s.tier != STORE_TIER_MEMORY) continue;
        if (!cluster_segment_get(id, &g)) continue;
        sort_add(&sorts[sort_of(&s, &g)], g.embedded ? "this server" : g.node);
    }
}

/* "2 are down (n1, n2)" */
static void say_sort(struct buf *out, const struct sort *sort) {
    buf_printf(out, "%" PRIu32 " %s %s (", sort->n, sort->n == 1 ? "is" : "are", sort->is);
    for (unsigned i = 0; i < sort->n_names; i++)
        buf_printf(out, "%s%s", i > 0 ? ", " : "", sort->name[i]);
    buf_append_str(out, sort->more ? " and others)" : ")");
}

static void say_none_takes(struct buf *out, uint32_t n) {
    struct sort sorts[SORTS] = {
        [SORT_DOWN] = {.is = "down", .remedy = "start these nodes"},
        [SORT_MAINTENANCE] = {.is = "in maintenance", .remedy = "NODE MAINTENANCE name OFF"},
        [SORT_DRAINED] = {.is = "drained or being drained",
                          .remedy = "NODE or SEGMENT DRAIN name CANCEL"},
        [SORT_LEAVING] = {.is = "leaving", .remedy = NULL},
        [SORT_HELD] = {.is = "held until the writers of an earlier process are gone",
                       .remedy = NULL},
    };
    sort_segments(sorts);
    buf_printf(out, "no memory segment takes new values: of %" PRIu32 " segment%s", n,
               n == 1 ? "" : "s");
    const char *between = " ";
    for (unsigned i = 0; i < SORTS; i++) {
        if (sorts[i].n == 0) continue;
        buf_append_str(out, between);
        say_sort(out, &sorts[i]);
        between = ", ";
    }
    buf_append_str(out, ". Add a node");
    for (unsigned i = 0; i < SORTS; i++)
        if (sorts[i].n > 0 && sorts[i].remedy != NULL) buf_printf(out, ", or %s", sorts[i].remedy);
}

static void say_no_segment(struct buf *out) {
    struct cluster_figures f;
    cluster_get_figures(&f);
    uint64_t up = f.nodes_by_state[CLUSTER_NODE_UP],
             joining = f.nodes_by_state[CLUSTER_NODE_JOINING];
    if (up > 0) {
        buf_printf(out,
                   "no memory segment is up: %" PRIu64
                   " nodes are, and none has memory (tarn-node --segment)",
                   up);
        return;
    }
    buf_append_str(out, "no node is up yet");
    if (joining > 0) buf_printf(out, " (%" PRIu64 " joining)", joining);
    buf_append_str(
        out, ", and this server has no memory of its own (pool-size 0). Start a tarn-node, or wait "
             "until it is up (NODE LIST)");
}

/* --- what takes values has no room --- */

static void say_part(struct buf *out, uint64_t bytes, const char *what) {
    if (bytes > 0) buf_printf(out, ", %" PRIu64 " %s", bytes, what);
}

/* Of what is used, all that an eviction does not free. */
static void say_held(struct buf *out, const struct store_room *room) {
    struct store_stats s;
    store_get_stats(books, &s);
    uint64_t held = room->used - min_u64(room->used, room->evictable);
    uint64_t awaiting = min_u64(room->awaiting, held);
    held -= awaiting;
    uint64_t ghosts = min_u64(room->ghosts, held);
    held -= ghosts;
    uint64_t pinned = min_u64(s.hard_pinned_bytes, held);
    held -= pinned;
    say_part(out, pinned, "hard-pinned");
    say_part(out, awaiting, "not copied to their disk yet");
    say_part(out, ghosts, "still granted to readers of before a restart or failover");
    say_part(out, held, "leased, being sent or being put");
    say_part(out, room->quarantined, "of values that are gone and still being read");
    buf_printf(out, " (%" PRIu64 " objects leased, %" PRIu64 " puts open)", s.leased_objects,
               s.puts_open);
}

static void say_full(struct buf *out, uint64_t size, const struct store_room *room) {
    const char *more = embedded.host != NULL ? "raise pool-size" : "add a node";
    if (size > room->largest) {
        buf_printf(out,
                   "a value lies in one segment, and the largest of %" PRIu32 " has %" PRIu64
                   " bytes. Put it in pieces, or have a larger segment",
                   room->up, room->largest);
        return;
    }
    if (store_policy_keeps(books)) {
        buf_printf(out,
                   "%" PRIu64 " of %" PRIu64
                   " are free, and nothing leaves to make room: eviction-policy is noeviction",
                   room->free, room->size);
        return;
    }
    buf_printf(out,
               "of %" PRIu64 " bytes in %" PRIu32 " segment%s %" PRIu64 " are free, %" PRIu64
               " may be evicted",
               room->size, room->up, room->up == 1 ? "" : "s", room->free, room->evictable);
    say_held(out, room);
    if (room->best >= size)
        buf_append_str(out, ". What there is lies in more than 8 pieces");
    else if (room->up > 1)
        buf_printf(out, ". No segment can free more than %" PRIu64, room->best);
    buf_printf(out, ". Wait for leases to end, unpin keys, or %s", more);
}

void refusal_no_room(struct client *c, const char *code, uint64_t size) {
    struct store_room room;
    struct buf why = {NULL, 0, 0};
    store_get_room(books, &room);
    if (room.up > 0)
        say_full(&why, size, &room);
    else if (room.others > 0)
        say_none_takes(&why, room.others);
    else
        say_no_segment(&why);
    reply_error(c, "-%s no room for %" PRIu64 " bytes: %.*s", code, size, (int)why.len, why.data);
    buf_free(&why);
}

/* --- quotas --- */

static void say_share(struct client *c, const struct store_pin_share *share) {
    reply_error(c,
                "-QUOTA hard pins%s may hold %" PRIu64 " bytes of %s (%s), hold %" PRIu64
                ", and %" PRIu64 " more were asked for: unpin some, or pin SOFT",
                share->of_owner ? " of this user" : "", share->limit,
                share->of_books ? "maxmemory" : "the pool",
                share->of_owner ? "hard-pin-user-ratio" : "hard-pin-ratio", share->used,
                share->more);
}

void refusal_pin(struct client *c, struct span key, uint64_t owner) {
    struct store_pin_share share;
    if (store_pin_refused(books, key, STORE_PIN_OBJECT, owner, &share))
        say_share(c, &share);
    else
        reply_status(c, TARN_EQUOTA, NULL);
}

static const char *quota_reason(const struct store_quota *q, uint64_t more) {
    if (more > q->limit) return "that is more than all of it";
    if (store_policy_keeps(books)) return "nothing leaves, as eviction-policy is noeviction";
    return "what is there is leased, hard-pinned or not copied to its disk yet, and cannot be "
           "evicted";
}

void refusal_quota(struct client *c, const struct refusal_put *put) {
    struct store_quota q;
    struct store_pin_share share;
    uint64_t bytes = put->size <= STORE_INLINE_MAX ? 0 : put->size * put->replicas;
    if (put->pinned_hard && store_pin_refused(books, put->key, bytes, put->owner, &share)) {
        say_share(c, &share);
        return;
    }
    if (!store_quota_of(books, put->key, &q)) { /* gone since */
        reply_status(c, TARN_EQUOTA, NULL);
        return;
    }
    struct buf prefix = {NULL, 0, 0};
    buf_append_quoted(&prefix, span_of(q.prefix.data, min_u64(q.prefix.len, 64)));
    uint64_t more = max_u64(bytes, put->size);
    reply_error(c,
                "-QUOTA keys that begin with %.*s%s may hold %" PRIu64 " bytes, hold %" PRIu64
                ", and %" PRIu64 " more were asked for: %s (QUOTA SET changes it)",
                (int)prefix.len, prefix.data, q.prefix.len > 64 ? "..." : "", q.limit, q.used, more,
                quota_reason(&q, more));
    buf_free(&prefix);
}
