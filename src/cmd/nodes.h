/* What the commands about nodes, segments and replicas share. */
#ifndef TARN_CMD_NODES_H
#define TARN_CMD_NODES_H

#include "cluster/cluster.h"
#include "cmd/cmd.h"

/* argv[at] and argv[at + 1] as name and instance of a node that may speak: a sign of its life.
 * NULL: -STALE (it has to join), or an argument error, was answered. */
struct cluster_node *node_arg(struct client *c, size_t at);
/* The same in a later slice, without an answer and no sign of life. */
struct cluster_node *node_still(const struct client *c, size_t at);
/* argv[at] as the name of a node; NULL: answered. */
struct cluster_node *node_named(struct client *c, size_t at);
/* argv[at] as name or id of a segment; false: -NOSEGMENT was answered. */
bool segment_arg(struct client *c, size_t at, struct store_segment_info *info_p);
/* argv[at] as a number of groups of step arguments that follow it, and nothing more; false:
 * answered. */
bool groups_arg(struct client *c, size_t at, size_t step, size_t *n_p);
/* "-BUSY why", "-LIMIT why" or "-ERR why". */
void reply_why(struct client *c, tarn_status status, const char *why);

void field_str(struct client *c, const char *name, const char *value);
void field_int(struct client *c, const char *name, uint64_t value);

#endif
