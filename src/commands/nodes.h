/* What the commands about nodes, segments and replicas share. */
#ifndef TARN_COMMANDS_NODES_H
#define TARN_COMMANDS_NODES_H

#include "cluster/cluster.h"
#include "front/cmd.h"

/* Name and instance of a node that may speak, which every command of a node begins with and which
 * are bound before: a sign of its life. NULL: -STALE (it has to join) was answered. */
struct cluster_node *node_arg(struct client *c);
/* The same in a later slice, without an answer and no sign of life. */
struct cluster_node *node_still(const struct client *c);
/* The first argument as the name of a node; NULL: answered. */
struct cluster_node *node_named(struct client *c);
/* argv[at] as name or id of a segment; false: -NOSEGMENT was answered. */
bool segment_arg(struct client *c, size_t at, struct store_segment_info *info_p);
/* "-BUSY why", "-LIMIT why" or "-ERR why". */
void reply_why(struct client *c, tarn_status status, const char *why);

/* Why a task was not done. */
const char *task_error_text(tarn_status status);
/* up, readonly, draining, drained, down, leaving */
const char *segment_state_name(const struct store_segment_info *s, const struct cluster_segment *g);

void field_str(struct client *c, const char *name, const char *value);
void field_int(struct client *c, const char *name, uint64_t value);
void field_double(struct client *c, const char *name, double value);

#endif
