/* The turns of the loop: time-outs, background work, effects, replies. */
#ifndef TARN_SERVER_TURN_H
#define TARN_SERVER_TURN_H

#include "net/net.h"

/* What the rooms below ask of those above them (front/above.h) is known from here on. Needs
 * config; books may come later, but before the first client. */
void turn_init(struct net_loop *loop);
/* Hooks of the loop: a turn begins; it ends, and the next one is due after so many ms. */
void turn_woke(void *arg);
uint64_t turn_run(void *arg);
/* Closes all clients and frees everything but the server's own members. */
void turn_deinit(void);

#endif
