#include "cmd/nodes.h"

#include "base/assert.h"
#include "base/hex.h"
#include "cmd/config.h"
#include "cmd/keys.h"

static bool instance_arg(struct client *c, size_t at, uint8_t out[CLUSTER_INSTANCE_SIZE]) {
    if (hex_decode(c->argv[at], out, CLUSTER_INSTANCE_SIZE)) return true;
    reply_error(c, "instance must be 32 hex digits, chosen at random when the node starts");
    return false;
}

struct cluster_node *node_arg(struct client *c, size_t at) {
    uint8_t instance[CLUSTER_INSTANCE_SIZE];
    if (!instance_arg(c, at + 1, instance)) return NULL;
    struct cluster_node *n = cluster_node_alive(c->argv[at], instance);
    if (n == NULL) reply_error(c, "-STALE this node is not in the pool, or is down: NODE JOIN");
    return n;
}

struct cluster_node *node_still(const struct client *c, size_t at) {
    uint8_t instance[CLUSTER_INSTANCE_SIZE];
    if (!hex_decode(c->argv[at + 1], instance, CLUSTER_INSTANCE_SIZE)) return NULL;
    return cluster_node_check(c->argv[at], instance);
}

struct cluster_node *node_named(struct client *c, size_t at) {
    struct cluster_node *n = cluster_node_find(c->argv[at]);
    if (n == NULL)
        reply_error(c, "no such node '%.*s': NODE LIST shows them",
                    (int)min_u64(c->argv[at].len, 64),
                    c->argv[at].data != NULL ? c->argv[at].data : "");
    return n;
}

bool segment_arg(struct client *c, size_t at, struct store_segment_info *info_p) {
    uint64_t id;
    if (store_segment_by_name(server.store, c->argv[at], info_p)) return true;
    if (span_to_u64(c->argv[at], &id) && id < store_segment_limit(server.store) &&
        store_segment_get(server.store, (uint32_t)id, info_p))
        return true;
    reply_error(c, "-NOSEGMENT no such segment: '%.*s' (SEGMENT LIST shows names and ids)",
                (int)min_u64(c->argv[at].len, 64),
                c->argv[at].data != NULL ? c->argv[at].data : "");
    return false;
}

bool groups_arg(struct client *c, size_t at, size_t step, size_t *n_p) {
    uint64_t n;
    if (!arg_range(c, at, "n", 1, server.config->max_batch_keys, &n)) return false;
    if (c->argc - at - 1 != n * step) {
        reply_error(c, "n is %llu: %llu arguments must follow, and %zu do", (unsigned long long)n,
                    (unsigned long long)(n * step), c->argc - at - 1);
        return false;
    }
    *n_p = n;
    return true;
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
