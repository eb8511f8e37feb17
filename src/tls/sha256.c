#include "tls/sha256.h"

#include <openssl/evp.h>
#include <stdlib.h>

struct sha256 {
    EVP_MD *md;
    EVP_MD_CTX *context;
};

struct sha256 *sha256_create(void) {
    struct sha256 *h = calloc(1, sizeof(*h));
    if (h == NULL) return NULL;
    h->md = EVP_MD_fetch(NULL, "SHA256", NULL);
    h->context = EVP_MD_CTX_new();
    if (h->md == NULL || h->context == NULL) sha256_destroy(&h);
    return h;
}

void sha256_destroy(struct sha256 **h_p) {
    struct sha256 *h = *h_p;
    *h_p = NULL;
    if (h == NULL) return;
    EVP_MD_CTX_free(h->context);
    EVP_MD_free(h->md);
    free(h);
}

/* Of a digest that is there these fail for nothing but memory that was overwritten. */
static void done(int result) {
    if (result != 1) abort();
}

void sha256_begin(struct sha256 *h) {
    done(EVP_DigestInit_ex(h->context, h->md, NULL));
}

void sha256_add(struct sha256 *h, const void *bytes, size_t len) {
    done(EVP_DigestUpdate(h->context, bytes, len));
}

void sha256_end(struct sha256 *h, uint8_t out[SHA256_BYTES]) {
    done(EVP_DigestFinal_ex(h->context, out, NULL));
}
