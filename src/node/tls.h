/* TLS of ports that modules serve in a node (net/tls_services.h): by the node's --tls options. */
#ifndef TARN_NODE_TLS_H
#define TARN_NODE_TLS_H

#include "net/tls_services.h"
#include "node/options.h"

/* o stays borrowed. The rest is called from the loop's thread. */
const struct net_tls_source *node_tls_source(const struct node_options *o);
/* The files have changed: the next connection takes them as they are then. From any thread. */
void node_tls_renew(void);
void node_tls_close(void);

#endif
