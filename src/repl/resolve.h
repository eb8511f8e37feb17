/* A host's addresses, found by a thread of its own: a name server that does not answer holds nobody
 * up. */
#ifndef TARN_REPL_RESOLVE_H
#define TARN_REPL_RESOLVE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "net/net.h"

#define REPL_ADDRESSES_MAX 8u

struct repl_addresses {
    size_t n;
    struct sockaddr_storage at[REPL_ADDRESSES_MAX];
};

struct repl_resolve;
/* done(arg, found): n 0: there are none, why is static text. Called from the loop, never from
 * inside. NULL: no thread. */
typedef void (*repl_resolve_fn)(void *arg, const struct repl_addresses *found, const char *why);
struct repl_resolve *repl_resolve_start(struct net_loop *loop, const char *host, uint16_t port,
                                        repl_resolve_fn done, void *arg);
/* Over, or not wanted any more; a thread that still waits ends by itself. NULL is fine. */
void repl_resolve_drop(struct repl_resolve **r_p);
/* Of an address in digits, at once. false: it is a name. */
bool repl_resolve_digits(const char *host, uint16_t port, struct repl_addresses *out);
size_t repl_address_size(const struct sockaddr_storage *a);

#endif
