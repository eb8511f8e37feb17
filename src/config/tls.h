/* The TLS contexts that the options name: tls-cert-file and its kin. */
#ifndef TARN_CONFIG_TLS_H
#define TARN_CONFIG_TLS_H

#include "config/config.h"
#include "tls/tls.h"
#include "transport/transport.h"

/* Makes the contexts of *c that are needed (tls-port, tls-replication, tls-data). false: *why_p
 * (static) names the file or word; what there was stays. At start, and when an option changes:
 * connections keep what they began with. */
bool config_tls_load(const struct config *c, const char **why_p);
void config_tls_free(void);
/* A module begins (true) or ends to serve TLS: from then on there is a server's context, tls-port
 * or not. false: as of config_tls_load, with *why_p. */
bool config_tls_use(bool begins, const char **why_p);
/* Borrowed; NULL: not needed, so not there. */
struct tls_context *config_tls_server(void);
/* Of connections that this server makes: to its master. */
struct tls_context *config_tls_client(void);

/* Of the data port, NULL: it is plain. */
const struct transport_tls *config_tls_data_port(const struct config *c);
/* Of connections to data ports of nodes that speak TLS. */
const struct transport_tls *config_tls_data_reach(void);

#endif
