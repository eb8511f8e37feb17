/* FAILOVER: the master hands its role over to a replica.
 *
 *   no-failover ── FAILOVER ──> waiting-for-sync ── the replica has all ──> failover-in-progress
 *        ^                       │ ABORT, TIMEOUT                          │ it refuses, ABORT
 *        ├───────────────────────┴─────────────────────────────────────────┘ (a master again)
 *        └── it leads (and this server is its replica) <────────────────────┘
 *
 * Writes are held back all the while. While it is in progress, this server is a replica of one that
 * does not lead yet. */
#ifndef TARN_HA_FAILOVER_H
#define TARN_HA_FAILOVER_H

#include <stdbool.h>

struct replica;

bool failover_under_way(void);
/* For INFO. */
const char *failover_state_name(void);
/* A replica has acknowledged something. */
void failover_acked(const struct replica *r);
/* In a turn, before replies leave: asks replicas how far they are. */
void failover_turn(void);
/* Behind the last command of the turn: hands over, or hears how that went. */
void failover_settle(void);
/* The answer of the replica; why: why not. */
void failover_answered(bool agreed, const char *why);

#endif
