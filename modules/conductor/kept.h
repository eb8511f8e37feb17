/* What survives a restart and a failover, as the module keeps it (src/module.h, durable_*):
 *
 *     e/ID/RANK   a registration (engines.h)
 *     d/ID        that engine drains
 *     k/ID        how it calls its blocks in the pool (pool_names.h)
 *     l/ID        what its models have learnt (route_learnt_export), every second at most
 *     r/REQUEST   a reservation: u64 time of day (ms, little-endian), route_request_export
 *
 * Reservations take three quarters of the room at most: engines are worth more.
 *
 * On the server that leads, commands change it, and the route with it. On replicas, and after a
 * restart, the route follows what is kept. */
#ifndef TARN_CONDUCTOR_KEPT_H
#define TARN_CONDUCTOR_KEPT_H

#include "conductor/engines.h"
#include "module.h"

/* From load(). TARN_ENOTSUP: this program keeps nothing. */
tarn_status kept_open(void);
/* The route as what is kept has it; what it has beyond that goes. Where this server does not lead,
 * reservations are taken up by kept_follow_some, and at the latest when it does. */
void kept_follow_all(void);
/* Some hundred reservations of those. From the timer. true: there are more. */
bool kept_follow_some(void);
/* struct tarn_module.durable_changed */
void kept_changed(const struct span *name, const struct span *value);

/* The registration of a rank. Borrowed until something is kept. */
bool kept_registration(struct span id, uint32_t rank, struct registration *x);
/* Has the route any rank of that engine? */
bool kept_engine_there(struct span id);
/* A new one, or one that the route had no room for before: into the route, and kept. route_p: the
 * route refused it, and has said why. */
tarn_status kept_register(const struct registration *x, bool *route_p);
/* One that is there follows other events from now on. */
tarn_status kept_follow_other(const struct registration *x);
/* With all that goes with it. rank CONDUCTOR_UNTOLD: all ranks. TARN_ENOTFOUND. */
tarn_status kept_unregister(struct span id, uint64_t rank);
tarn_status kept_drain(struct span id, bool drain);
/* keys empty: it has none. TARN_ENOTFOUND: no such engine. */
tarn_status kept_keys(struct span id, struct span keys);

/* --- reservations, and what was learnt --- */

/* Something is new of that request, or it is over, and its caller is about to hear of it: written,
 * or by kept_write where that is held back. */
void kept_tell(struct span request);
/* Writes what else is new (leases that ended, engines that went), up to some hundred. true: there
 * is more, or it is held back: call again. From commands that write, and from the timer. */
bool kept_write(void);
/* From the timer: of one engine after the other. */
void kept_write_learnt(void);
/* struct tarn_module.role_changed */
void kept_role(bool leads);
void kept_close(void);

#endif
