/* Certificates for tests of TLS: made on the spot, so that no key lies in the repository and none
 * runs out.
 *
 *     struct cert ca, host;
 *     cert_make(&ca, &(struct cert_plan){.name = "test CA", .ca = true}, NULL);
 *     struct cert_plan plan = {.name = "host", .alt = "DNS:localhost,IP:127.0.0.1"};
 *     cert_make(&host, &plan, &ca);
 *     cert_write(&host, "/tmp/dir", "host", NULL);      host.crt, host.key */
#ifndef TARN_TESTS_CERTS_H
#define TARN_TESTS_CERTS_H

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct cert {
    X509 *x;
    EVP_PKEY *key;
};

struct cert_plan {
    const char *name;     /* the common name */
    const char *alt;      /* subjectAltName, NULL: none */
    long from_s, until_s; /* from now; both 0: an hour ago, in an hour */
    bool ca;
};

#define CERT_MUST(expr)                                                                            \
    do {                                                                                           \
        if (!(expr)) {                                                                             \
            fprintf(stderr, "certs.h:%d: %s\n", __LINE__, #expr);                                  \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static inline void cert_extend(X509 *x, int nid, const char *value) {
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, NULL, nid, value);
    CERT_MUST(e != NULL && X509_add_ext(x, e, -1) == 1);
    X509_EXTENSION_free(e);
}

/* issuer NULL: it signs itself. */
static inline void cert_make(struct cert *c, const struct cert_plan *plan,
                             const struct cert *issuer) {
    static long serial = 1;
    bool dated = plan->from_s != 0 || plan->until_s != 0;
    c->key = EVP_EC_gen("P-256");
    c->x = X509_new();
    CERT_MUST(c->key != NULL && c->x != NULL && X509_set_version(c->x, 2) == 1);
    ASN1_INTEGER_set(X509_get_serialNumber(c->x), serial++);
    X509_gmtime_adj(X509_getm_notBefore(c->x), dated ? plan->from_s : -3600);
    X509_gmtime_adj(X509_getm_notAfter(c->x), dated ? plan->until_s : 3600);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(c->x), "CN", MBSTRING_ASC,
                               (const unsigned char *)plan->name, -1, -1, 0);
    X509_set_issuer_name(c->x, X509_get_subject_name(issuer != NULL ? issuer->x : c->x));
    X509_set_pubkey(c->x, c->key);
    if (plan->ca) cert_extend(c->x, NID_basic_constraints, "critical,CA:TRUE");
    if (plan->alt != NULL) cert_extend(c->x, NID_subject_alt_name, plan->alt);
    CERT_MUST(X509_sign(c->x, issuer != NULL ? issuer->key : c->key, EVP_sha256()) > 0);
}

static inline void cert_free(struct cert *c) {
    X509_free(c->x);
    EVP_PKEY_free(c->key);
    *c = (struct cert){NULL, NULL};
}

/* DIR/NAME.crt and DIR/NAME.key; pass NULL: the key is not encrypted. */
static inline void cert_write(const struct cert *c, const char *dir, const char *name,
                              const char *pass) {
    char path[512];
    snprintf(path, sizeof(path), "%s/%s.crt", dir, name);
    FILE *f = fopen(path, "we");
    CERT_MUST(f != NULL && PEM_write_X509(f, c->x) == 1 && fclose(f) == 0);
    snprintf(path, sizeof(path), "%s/%s.key", dir, name);
    f = fopen(path, "we");
    CERT_MUST(f != NULL && PEM_write_PrivateKey(f, c->key, pass != NULL ? EVP_aes_128_cbc() : NULL,
                                                NULL, 0, NULL, (void *)(uintptr_t)pass) == 1);
    CERT_MUST(fclose(f) == 0);
}

static char cert_dir[256];

/* A folder for certificates; TMPDIR or /tmp. */
static inline void cert_dir_make(void) {
    const char *tmp = getenv("TMPDIR");
    snprintf(cert_dir, sizeof(cert_dir), "%s/tarn-certs-XXXXXX", tmp != NULL ? tmp : "/tmp");
    CERT_MUST(mkdtemp(cert_dir) != NULL);
}

/* A path in it; the last eight are valid. */
static inline const char *cert_path(const char *name) {
    static char paths[8][512];
    static unsigned turn;
    char *p = paths[turn++ & 7];
    snprintf(p, 512, "%s/%s", cert_dir, name);
    return p;
}

#endif
