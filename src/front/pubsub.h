/* What the core knows of a client's subscriptions. The commands are in families.h, the tables in
 * channels.h. */
#ifndef TARN_FRONT_PUBSUB_H
#define TARN_FRONT_PUBSUB_H

#include "front/client.h"

/* To this server's subscribers, on behalf of another server. */
void pubsub_publish(struct span channel, struct span message);
/* It listens to nothing any more; says nothing. */
void pubsub_drop(struct client *c);
/* Channels, patterns and shard channels of c, and the memory they take. */
void pubsub_counts(const struct client *c, size_t *channels_p, size_t *patterns_p, size_t *shard_p);
size_t pubsub_memory(const struct client *c);
/* May a subscriber that speaks RESP2 run this? Everything else would be lost between the
 * messages. */
bool pubsub_allows(const struct cmd *cmd);

#endif
