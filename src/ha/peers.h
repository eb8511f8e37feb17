/* The other masters of the pool, as far as this server speaks with them: who leads this shard now
 * is told to each (CLUSTER ANNOUNCE), and what they answer, their map, says who leads theirs.
 *
 *   promoted ─> claim: the row of this shard names this server first, at a higher master epoch
 *                 │
 *   each peer:    due ─> connecting ─> asked ─ answered ──> due again after
 *                  ^          └──────────┴──── failed: the next server of its row; after the last
 *                  └─────────── later ────────  one a pause ── repl-ping-replica-period
 *
 * Only who leads a shard speaks of its servers, and slots never change by this, but for a master
 * that starts (cluster-shard): it takes the latest map before it serves a key. A replica asks the
 * others too, if they are there (PING): what CLUSTER NODES tells is what was seen. */
#ifndef TARN_HA_PEERS_H
#define TARN_HA_PEERS_H

#include "slots/map.h"

enum peer_state { PEER_UNKNOWN, PEER_ANSWERS, PEER_SILENT };

/* A master starts, or becomes one without a map. */
void peers_begin(void);
/* This server was a replica of its shard, and leads it from now on. */
void peers_promoted(void);
/* A replica's address, as its master knows it: where there is no other shard, the leader's. */
void peers_note_address(const char *host);
/* It is a replica now. */
void peers_demoted(void);
/* It was given a map: nothing is awaited any more. */
void peers_told(void);
/* What another server said of a shard of the map. true: the map has changed. */
bool peers_learn(unsigned shard, const struct slot_shard *row);
/* About ten times a second. */
void peers_cron(void);
void peers_deinit(void);

/* Of a server of another shard, when it was last asked. */
enum peer_state peers_state(const struct slot_server *server);

#endif
