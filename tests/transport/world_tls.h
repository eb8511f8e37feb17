/* TLS for both sides of a world: certificates that were made for this run, and are nowhere
 * afterwards. */
#ifndef TARN_TESTS_TRANSPORT_WORLD_TLS_H
#define TARN_TESTS_TRANSPORT_WORLD_TLS_H

#include "../unit/certs.h"
#include "tls/tls.h"

static struct world_tls {
    struct tls_context *host, *engine;
    struct tls_context *misled; /* wants to talk to somebody else */
    pthread_mutex_t lock;       /* engines of several threads may tell of failures */
    unsigned failures;          /* that engines were told of */
    char why[TLS_WHY_MAX];
} world_tls = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline void world_tls_make(void) {
    char dir[] = "/tmp/tarn-certs-XXXXXX", crt[64], key[64], trusted[64], why[TLS_WHY_MAX];
    static const char *const files[] = {"ca.crt", "ca.key", "host.crt", "host.key"};
    struct cert ca, host;
    TARN_ASSERT(mkdtemp(dir) != NULL);
    cert_make(&ca, &(struct cert_plan){.name = "world CA", .ca = true}, NULL);
    cert_make(&host, &(struct cert_plan){.name = "world host", .alt = "IP:127.0.0.1"}, &ca);
    cert_write(&ca, dir, "ca", NULL);
    cert_write(&host, dir, "host", NULL);
    snprintf(crt, sizeof(crt), "%s/host.crt", dir);
    snprintf(key, sizeof(key), "%s/host.key", dir);
    snprintf(trusted, sizeof(trusted), "%s/ca.crt", dir);
    struct tls_options o = {.cert_file = crt, .key_file = key}, client = {.ca_file = trusted};
    struct tls_options other = {.ca_file = trusted, .server_name = "elsewhere.test"};
    world_tls.host = tls_context_create(TLS_SERVER, &o, why);
    world_tls.engine = tls_context_create(TLS_CLIENT, &client, why);
    world_tls.misled = tls_context_create(TLS_CLIENT, &other, why);
    TARN_ASSERT(world_tls.host != NULL && world_tls.engine != NULL && world_tls.misled != NULL);
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        snprintf(crt, sizeof(crt), "%s/%s", dir, files[i]);
        unlink(crt);
    }
    rmdir(dir);
    cert_free(&ca);
    cert_free(&host);
}

static inline struct tls_context *world_tls_host(void *arg) {
    return tls_context_get(((struct world_tls *)arg)->host);
}
static inline struct tls_context *world_tls_engine(void *arg) {
    return tls_context_get(((struct world_tls *)arg)->engine);
}
static inline struct tls_context *world_tls_misled(void *arg) {
    return tls_context_get(((struct world_tls *)arg)->misled);
}
static inline void world_tls_failed(void *arg, const char *uri, const char *why) {
    struct world_tls *t = arg;
    TARN_ASSERT(strncmp(uri, "tcps://", 7) == 0);
    pthread_mutex_lock(&t->lock);
    t->failures++;
    snprintf(t->why, sizeof(t->why), "%s", why);
    pthread_mutex_unlock(&t->lock);
}

static const struct transport_tls world_tls_of_host = {.arg = &world_tls,
                                                       .context = world_tls_host};
static const struct transport_tls world_tls_of_engine = {
    .arg = &world_tls, .context = world_tls_engine, .failed = world_tls_failed};

static inline const struct transport_tls *world_tls_side(const struct transport_tls *side) {
    if (world_tls.host == NULL) world_tls_make();
    return side;
}
#define WORLD_TLS_HOST   world_tls_side(&world_tls_of_host)
#define WORLD_TLS_ENGINE world_tls_side(&world_tls_of_engine)

#endif
