/* Which master has which keys: the map of a pool of many masters. Each of Redis Cluster's slots has
 * an owner, a shard (a master and its replicas), and while its keys move, the shard they move to.
 * No I/O, no clock, no threads.
 *
 * As text, of lines; maps that are equal have equal texts (shards in the order of their names):
 *
 *   tarn-slots 1
 *   epoch 7
 *   shard a 12 10.0.0.1:6479,10.0.0.2:6479 0-5460
 *   shard b 3 10.0.0.3:6479 5461-10922
 *   shard c 3 - 10923-16383                 no address is known; likewise: it has no slots
 *   moving a c 100-200,300
 *
 * The number of a shard is the master epoch at which its servers were learnt, the leader first. */
#ifndef TARN_SLOTS_MAP_H
#define TARN_SLOTS_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/slot.h"

#define SLOT_SHARDS_MAX       64u
#define SLOT_SERVERS_MAX      8u
#define SLOT_NAME_MAX         64u         /* of a shard: A-Z a-z 0-9 . _ - */
#define SLOT_HOST_MAX         253u        /* as of a name of DNS */
#define SLOT_MAP_TEXT_MAX     (63u << 10) /* bytes: some thousand ranges */
#define SLOT_NOBODY           0xffu
#define SLOT_MASTER_EPOCH_MAX ((uint64_t)INT64_MAX)
#define SLOT_MAP_ERROR_SIZE   160u

struct slot_server {
    char host[SLOT_HOST_MAX + 1]; /* of IPv6 without brackets */
    uint16_t port;
};

struct slot_shard {
    char name[SLOT_NAME_MAX + 1];
    uint64_t master_epoch; /* when the servers were learnt: a later one is right */
    unsigned servers;
    struct slot_server server[SLOT_SERVERS_MAX]; /* the leader first, as far as is known */
};

/* Large (about 160 KiB): on the heap. */
struct slot_map {
    uint64_t epoch;
    unsigned shards;
    struct slot_shard shard[SLOT_SHARDS_MAX]; /* by name */
    /* numbers of shards, or SLOT_NOBODY. target: where its keys move to */
    uint8_t owner[SLOT_COUNT], target[SLOT_COUNT];
};

/* A new map, for slot_map_destroy; NULL: error says what is wrong. */
struct slot_map *slot_map_read(struct span text, char error[SLOT_MAP_ERROR_SIZE]);
void slot_map_destroy(struct slot_map **map_p);
void slot_map_write(const struct slot_map *m, struct buf *out);
/* "10.0.0.1:6479", "[::1]:6479" */
void slot_server_write(const struct slot_server *s, struct buf *out);
/* false: it is none. */
bool slot_server_read(struct span text, struct slot_server *s);
bool slot_server_same(const struct slot_server *a, const struct slot_server *b);

/* Its number; SLOT_NOBODY: there is none of that name. */
unsigned slot_map_shard(const struct slot_map *m, struct span name);
/* Who owns the key's slot: SLOT_NOBODY, nobody. */
static inline unsigned slot_map_owner_of(const struct slot_map *m, struct span key) {
    return m->owner[slot_of_key(key)];
}
/* How many slots a shard owns. */
unsigned slot_map_owned(const struct slot_map *m, unsigned shard);
/* The next run of slots, from *from_p on, that are of shard in of[] (owner, target): *from_p is its
 * first and *to_p its last one. false: there is none. */
bool slot_map_run(const uint8_t of[SLOT_COUNT], unsigned shard, uint32_t *from_p, uint32_t *to_p);
/* The same shards own the same slots, and the same slots move. */
bool slot_map_same_slots(const struct slot_map *a, const struct slot_map *b);

/* What both know: shards and slots of the one with the higher epoch (of m, where it is the same),
 * and for each of its shards the servers that were learnt at the higher master epoch (of that map,
 * where it is the same). Changes m, and says whether. */
bool slot_map_merge(struct slot_map *m, const struct slot_map *other);
/* One shard's servers as they are told alone: the words of its line between name and slots. false:
 * they make no sense. row is set but for its name. */
bool slot_servers_read(struct span master_epoch, struct span servers, struct slot_shard *row);
void slot_servers_write(const struct slot_shard *row, struct buf *out);
/* Of that shard of m. false: they were not learnt at a higher master epoch. */
bool slot_map_learn(struct slot_map *m, unsigned shard, const struct slot_shard *row);
/* That server leads from now on: it comes first, at a master epoch above what was, and not below
 * the one given, as far as there are any. The last of SLOT_SERVERS_MAX falls off. */
void slot_shard_lead(struct slot_shard *shard, const struct slot_server *leader,
                     uint64_t master_epoch);
/* 40 hex digits, always the same: the id of a shard, which is the id of its leader in CLUSTER
 * commands; of another of its servers (NULL: of the shard). */
#define SLOT_ID_LEN 40u
void slot_id(const struct slot_shard *shard, const struct slot_server *s, char id[SLOT_ID_LEN + 1]);

#endif
