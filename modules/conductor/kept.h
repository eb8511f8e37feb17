/* What survives a restart and a failover, as the module keeps it (src/module.h, durable_*):
 *
 *     e/ID/RANK   a registration (engines.h)
 *     d/ID        that engine drains
 *
 * On the server that leads, commands change it, and the route with it. On replicas, and after a
 * restart, the route follows what is kept. */
#ifndef TARN_CONDUCTOR_KEPT_H
#define TARN_CONDUCTOR_KEPT_H

#include "conductor/engines.h"
#include "module.h"

/* From load(). TARN_ENOTSUP: this program keeps nothing. */
tarn_status kept_open(void);
/* The route as what is kept has it; what it has beyond that goes. */
void kept_follow_all(void);
/* struct tarn_module.durable_changed */
void kept_changed(const struct span *name, const struct span *value);

/* The registration of a rank. Borrowed until something is kept. */
bool kept_registration(struct span id, uint32_t rank, struct registration *x);
/* A new one: into the route, and kept. route_p: the route refused it, and has said why. */
tarn_status kept_register(const struct registration *x, bool *route_p);
/* With all that goes with it. rank CONDUCTOR_UNTOLD: all ranks. TARN_ENOTFOUND. */
tarn_status kept_unregister(struct span id, uint64_t rank);
tarn_status kept_drain(struct span id, bool drain);

#endif
