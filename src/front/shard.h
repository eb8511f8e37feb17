/* This server as one of many masters: the slot map in force (slots/map.h), and what of a request is
 * for it. The map is kept among what modules keep, under a name that no module has
 * (module_durable.h): so it is in files, goes to replicas, and older programs hand it on.
 *
 *   none ── CLUSTER SETMAP, the stream, a file ──> a map ── CLUSTER RESET ──> none
 *
 * Of the slots that this server's shard owns it has the keys. While one moves away, it has those
 * that have not moved yet: the others are at the target, where new ones go, too. So each key is at
 * one master at any time. */
#ifndef TARN_FRONT_SHARD_H
#define TARN_FRONT_SHARD_H

#include "base/assert.h"
#include "front/cmd.h"
#include "slots/map.h"

/* NULL: there is none, and this server has all keys. Whoever changes it says so (shard_set). */
extern const struct slot_map *shard_map;
/* Which of its shards this is. */
extern unsigned shard_self;
/* What keys a request has is asked: there is a map, or one is awaited. */
extern bool shard_asks;

/* --- what of a request is for this server --- */

/* All of the request; false: the answer was given (MOVED, ASK, TRYAGAIN, CROSSSLOT, CLUSTERDOWN).
 * Of tarn's batches that answer key by key: true, and shard_refuses is asked for each. */
bool shard_admits(struct client *c, const struct cmd *cmd);
/* Has it more keys than a slice has work for? Then these are looked at in slices, before anything
 * of it runs: by a job, which asks shard_look_step until it is true, and then shard_look_admits, as
 * shard_admits. */
bool shard_is_long(const struct client *c, const struct cmd *cmd);
/* How many keys a request has at most. */
size_t shard_keys_most(const struct cmd *cmd, const struct span *argv, size_t argc);
struct shard_look;
struct shard_look *shard_look_begin(struct client *c, const struct cmd *cmd);
bool shard_look_step(struct shard_look *l, unsigned *budget);
bool shard_look_admits(const struct shard_look *l);
void shard_look_end(struct shard_look **l_p);
/* A mover took a key away. */
void shard_key_left(void);
/* Is that key of a batch not for this server? Then the error in its place was answered. */
bool shard_key_refuse(struct client *c, struct span key);
static inline bool shard_refuses(struct client *c, struct span key) {
    return UNLIKELY(shard_asks) && shard_key_refuse(c, key);
}
/* May this key be put in these books now, by who was admitted a while ago? */
bool shard_lost(struct span key);
/* Is it wholly this server's, and is its slot not on its way anywhere? */
bool shard_owns(struct span key);
/* Is its slot on its way from here? */
bool shard_leaves(struct span key);

/* --- the map --- */

/* Takes another map, or none (NULL), for this server and all that follow it. self: the shard's
 * number in it. map stays the caller's. */
void shard_set(const struct slot_map *map, unsigned self);
/* Another server of this shard has become its master, and this one has not been told so yet: keys
 * are referred there. NULL: it has not, or this one knows. */
void shard_succeed(const struct slot_server *leader);
const struct slot_server *shard_successor(void);
/* A master that starts, and may know nothing of who has which keys, or old things: it has none of
 * them for now. */
void shard_await(bool awaits);
bool shard_awaits(void);
#define SHARD_AWAITS "-CLUSTERDOWN The servers of cluster-shard are asked who has which keys"
/* Has whoever knows a map of that epoch to ask another server? This one has no map, or an older one
 * with itself alone: it has nobody who could tell it that it was succeeded. */
bool shard_is_ignorant(uint64_t epoch);
#define SHARD_IGNORANT "-CLUSTERDOWN This server does not know the map of slots that you know"
/* From what modules keep: it was changed by the stream, or by a file. */
void shard_load(void);
/* Keys of slots that went to others are removed, in slices. true: there is more to do. */
bool shard_background(unsigned *budget);
void shard_deinit(void);

#endif
