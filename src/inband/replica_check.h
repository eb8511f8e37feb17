/* Are the replicas of an object what was put? Reads all of them, wherever they lie, and takes away
 * the bad ones; the object goes with the last. For REPLICA REPORT, and for what in-band reads
 * stumble upon. */
#ifndef TARN_INBAND_REPLICA_CHECK_H
#define TARN_INBAND_REPLICA_CHECK_H

#include "front/cmd.h"

struct replica_check;
/* done(arg, dropped) comes later, from the loop; then the check is over. o has a CRC and is not in
 * the books. */
struct replica_check *replica_check_start(struct object *o,
                                          void (*done)(void *arg, unsigned dropped), void *arg);
/* Nobody waits for it any more: done will not be called. */
void replica_check_forget(struct replica_check **check_p);
/* Somebody read bytes of that version that were not right: checks it in the background, unless that
 * is being done. */
void replica_suspect(struct span key, uint64_t version);
/* Ends all of them. Once no client is left. */
void replica_check_deinit(void);

#endif
