/* SHA-256 of many short texts: OpenSSL's, by the processor's own instructions, looked up once, as
 * the look-up takes longer than a text. Not locked: one thread at a time. */
#ifndef TARN_TLS_SHA256_H
#define TARN_TLS_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define SHA256_BYTES 32u

struct sha256;

/* NULL: the OpenSSL of this machine has none, or there is no memory. */
struct sha256 *sha256_create(void);
void sha256_destroy(struct sha256 **h_p);
/* A text, in pieces; begin forgets what came before. */
void sha256_begin(struct sha256 *h);
void sha256_add(struct sha256 *h, const void *bytes, size_t len);
void sha256_end(struct sha256 *h, uint8_t out[SHA256_BYTES]);

#endif
