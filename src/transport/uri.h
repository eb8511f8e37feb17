/* URIs that hosts are reached by: "scheme://host:port", or "scheme:///path". */
#ifndef TARN_TRANSPORT_URI_H
#define TARN_TRANSPORT_URI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

#define URI_MAX 255u /* bytes */

struct uri {
    struct span scheme, host; /* the host of "tcp://[::1]:5" is "[::1]" */
    uint16_t port;            /* 0: it has none, but a path */
};
/* What others say, too: printable ASCII without blanks, a scheme of a-z. */
bool uri_parse(struct span s, struct uri *u);
/* Every address of a host that listens on all of them. */
bool uri_is_wildcard(const struct uri *u);
/* "scheme://host:port", with brackets around a bare v6 address; a "-" in front of the host stays
 * there (transport_listen_config). For free(). */
char *uri_make(struct span scheme, const char *host, unsigned port);
/* "scheme:///path". For free(). */
char *uri_of_path(const char *scheme, const char *path);
/* The URI itself, or, where that is a wildcard, the same port of another host. For free(). */
char *uri_resolve(struct span s, const struct uri *u, const char *host);

#endif
