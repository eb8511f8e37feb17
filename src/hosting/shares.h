/* A node of a pool of many masters: for each of them a host of its own (hosting.h), which has a
 * share of the node's memory and disks, its own data port and its own session, and knows nothing of
 * the others. A master that is away costs its share and nothing else, and what is fenced, leased
 * and counted is as with one master.
 *
 *   tarn_host (front) ── shares ──┬── pool    a client, which knows the map of the masters
 *                                 ├── chunks  whose each is
 *                                 └── share ── tarn_host ── one master
 *
 * Locks: shares.mutex, then those of a host; view.h's come after both. */
#ifndef TARN_HOSTING_SHARES_H
#define TARN_HOSTING_SHARES_H

#include "client/shards.h"
#include "hosting/chunks.h"
#include "hosting/hosting.h"

struct node_share {
    struct slot_shard row; /* as it was when it was opened */
    char *url;
    struct tarn_host *host; /* NULL: a free place, or its master's address is not known */
    struct hosting_view *view;
};

struct shares {
    struct tarn_client *pool;
    tarn_options options; /* with user and password of the URL; strings owned */
    tarn_host_options o;  /* strings and arrays owned */
    struct hosting_view *view;
    pthread_mutex_t mutex; /* of what follows */
    struct shard_map *map; /* that shares and chunks go by */
    struct node_chunks chunks;
    struct node_share share[SLOT_SHARDS_MAX]; /* by its number in the map */
};

/* pool: connected, with a map; taken. */
tarn_status shares_open(struct tarn_client *pool, const struct hosting_plan *plan,
                        struct tarn_host **host_p);
void shares_close(struct tarn_host **front_p, bool keep, uint64_t timeout_ms);
void shares_get_info(struct shares *s, tarn_host_info *info);
bool shares_wait(struct shares *s, uint64_t timeout_ms);
void shares_drain(struct shares *s);
tarn_status shares_reload_tls(struct shares *s);

#endif
