#include "commands/nodes.h"

#include "base/assert.h"
#include "base/hex.h"
#include "config/config.h"
#include "front/cmd.h"

struct cluster_node *node_arg(struct client *c) {
    uint8_t instance[CLUSTER_INSTANCE_SIZE];
    struct cluster_node *n = hex_decode(c->argv[3], instance, CLUSTER_INSTANCE_SIZE)
                                 ? cluster_node_alive(c->argv[2], instance)
                                 : NULL;
    if (n == NULL) reply_error(c, "-STALE this node is not in the pool, or is down: NODE JOIN");
    return n;
}

struct cluster_node *node_still(const struct client *c) {
    uint8_t instance[CLUSTER_INSTANCE_SIZE];
    if (!hex_decode(c->argv[3], instance, CLUSTER_INSTANCE_SIZE)) return NULL;
    return cluster_node_check(c->argv[2], instance);
}

struct cluster_node *node_named(struct client *c) {
    struct cluster_node *n = cluster_node_find(c->argv[2]);
    if (n == NULL)
        reply_error(c, "no such node '%.*s': NODE LIST shows them",
                    (int)min_u64(c->argv[2].len, 64),
                    c->argv[2].data != NULL ? c->argv[2].data : "");
    return n;
}

bool segment_arg(struct client *c, size_t at, struct store_segment_info *info_p) {
    uint64_t id;
    if (store_segment_by_name(books, c->argv[at], info_p)) return true;
    if (span_to_u64(c->argv[at], &id) && id < store_segment_limit(books) &&
        store_segment_get(books, (uint32_t)id, info_p))
        return true;
    reply_error(c, "-NOSEGMENT no such segment: '%.*s' (SEGMENT LIST shows names and ids)",
                (int)min_u64(c->argv[at].len, 64),
                c->argv[at].data != NULL ? c->argv[at].data : "");
    return false;
}

void reply_why(struct client *c, tarn_status status, const char *why) {
    reply_error(c,
                status == TARN_EBUSY    ? "-BUSY %s"
                : status == TARN_ELIMIT ? "-LIMIT %s"
                                        : "-ERR %s",
                why);
}

void field_str(struct client *c, const char *name, const char *value) {
    reply_bulk_str(c, name);
    reply_bulk_str(c, value);
}

void field_int(struct client *c, const char *name, uint64_t value) {
    reply_bulk_str(c, name);
    reply_int(c, (int64_t)value);
}

void field_double(struct client *c, const char *name, double value) {
    reply_bulk_str(c, name);
    reply_double(c, value);
}
