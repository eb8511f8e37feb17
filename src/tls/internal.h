/* What context.c and stream.c know of each other. */
#ifndef TARN_TLS_INTERNAL_H
#define TARN_TLS_INTERNAL_H

#include <openssl/ssl.h>
#include "tls/tls.h"

struct tls_context {
    SSL_CTX *ssl;
    enum tls_side side;
    unsigned owners;
    char *name; /* as in the options; NULL: not given */
    bool any_name;
};

/* Of OpenSSL's errors in this thread the first, as text; the queue is empty then. */
const char *tls_openssl_reason(void);
/* stream.c: of a context. Notes the peer's alerts. */
void tls_on_info(const SSL *ssl, int where, int ret);

#endif
