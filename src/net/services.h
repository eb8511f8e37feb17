/* The program's loop as modules have it: sockets and timers of struct tarn_services (module.h). */
#ifndef TARN_NET_SERVICES_H
#define TARN_NET_SERVICES_H

#include "module.h"
#include "net/net.h"

/* Fills in what there is of the loop: watch_create to listen. A process has one loop for its
 * modules, which outlives them; from then on all of these are called from its thread. */
void net_services_fill(struct tarn_services *services, struct net_loop *loop);

#endif
