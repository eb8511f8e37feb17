/* The loop of the main thread, and what modules are given (module.h): sockets and timers on it,
 * figures, and where the node's life is. */
#ifndef TARN_NODE_SERVICES_H
#define TARN_NODE_SERVICES_H

#include "node/life.h"

/* Before modules are loaded. l is asked for its state from now on, also before it starts. false: no
 * epoll. */
bool services_open(struct node_life *l);
/* Runs the loop until l is over. */
void services_run(struct node_life *l);
/* After the modules are gone. */
void services_close(void);

#endif
