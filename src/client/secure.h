/* TLS of all connections of a client or host. */
#ifndef TARN_CLIENT_SECURE_H
#define TARN_CLIENT_SECURE_H

#include <stdbool.h>
#include <stdint.h>
#include "tarn.h"
#include "tls/tls.h"

/* A user without a password is one who needs none, not the default user. */
static inline bool logs_in(const tarn_options *o) {
    return o->password != NULL || (o->user != NULL && o->user[0] != '\0');
}
static inline const char *password_of(const tarn_options *o) {
    return o->password != NULL ? o->password : "";
}

/* What all connections of a client or host share. */
struct secure {
    bool on;                     /* else they are plain */
    struct tls_context *context; /* by secure_take only: another may take its place at any time */
};
/* From the options of a tarns:// URL, which must outlive it. Reads the files. */
tarn_status secure_open(const tarn_options *o, struct secure *s);
/* A context from the same files, as they are now. */
tarn_status secure_read(const tarn_options *o, struct tls_context **context_p);
/* What the next connection is made with, the caller puts it; and takes another in its place, from
 * now on. NULL: none. Any thread. */
struct tls_context *secure_take(struct tls_context *const *context_p);
void secure_swap(struct tls_context **context_p, struct tls_context *other);
void secure_close(struct secure *s);

#endif
