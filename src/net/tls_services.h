/* TLS as modules have it: tls_open to tls_close of struct tarn_services (module.h). */
#ifndef TARN_NET_TLS_SERVICES_H
#define TARN_NET_TLS_SERVICES_H

#include "module.h"
#include "net/net.h"

struct tls_context;

/* Where contexts come from. */
struct net_tls_source {
    /* A module begins (true) or ends to serve TLS. false: it cannot begin, and *why_p (static)
     * says why. */
    bool (*use)(bool begins, const char **why_p);
    /* For the next connection, while somebody uses it. Borrowed. */
    struct tls_context *(*context)(void);
    uint64_t (*handshake_ms)(void); /* how long one may take */
};

/* source stays borrowed. A process has one loop for its modules, which outlives them. */
void net_tls_services_fill(struct tarn_services *services, struct net_loop *loop,
                           const struct net_tls_source *source);

#endif
