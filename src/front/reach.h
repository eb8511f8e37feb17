/* How the hosts of the pool are reached: endpoints and packed keys of segments, for SEGMENT INFO
 * and for the commands of modules. */
#ifndef TARN_FRONT_REACH_H
#define TARN_FRONT_REACH_H

#include "cluster/cluster.h"
#include "front/cmd.h"
#include "module.h"

/* [uri, ...] as this client has to call them; not direct: only those where the host checks every
 * access. */
void reach_reply_endpoints(struct client *c, const struct cluster_segment *g, bool direct);
/* [[uri, read-key, write-key], ...]: a key is empty where the client may not use it; not direct: as
 * above. */
void reach_reply_keys(struct client *c, const struct cluster_segment *g, bool direct, bool may_read,
                      bool may_write);
/* [scheme, ...]: by which transports of modules the segment's host serves, be there keys at the
 * moment or not. */
void reach_reply_transports(struct client *c, const struct cluster_segment *g, bool direct);

/* As in struct tarn_services, the master's own host among the others. */
void reach_each_segment(const char *scheme,
                        bool (*each)(void *arg, const struct tarn_segment *segment), void *arg);
void reach_each_report(const char *scheme,
                       bool (*each)(void *arg, const char *node, const char *machine,
                                    uint64_t age_ms, struct span report),
                       void *arg);

#endif
