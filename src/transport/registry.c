/* The list of transports. Short, filled at start, read ever after. */
#include "transport/transport.h"

#include <pthread.h>
#include <string.h>

#include "base/assert.h"

#define TRANSPORTS_MAX 8

static const struct transport_ops *transports[TRANSPORTS_MAX];
static size_t n_transports;

void transport_register(const struct transport_ops *t) {
    TARN_ASSERT(t != NULL && t->abi == TRANSPORT_ABI && t->scheme != NULL);
    TARN_ASSERT(t->domain_open && t->domain_query && t->domain_close);
    TARN_ASSERT(t->memory_register && t->memory_deregister);
    TARN_ASSERT(t->key_pack && t->key_unpack && t->key_map && t->key_check && t->key_close);
    TARN_ASSERT(t->listen && t->listener_port && t->listener_stats && t->listener_stats_reset);
    TARN_ASSERT(t->listener_fence && t->listener_close);
    TARN_ASSERT(t->connect && t->endpoint_status && t->endpoint_close);
    TARN_ASSERT(t->submit && t->progress && t->arm);
    TARN_ASSERT(n_transports < TRANSPORTS_MAX);
    for (size_t i = 0; i < n_transports; i++) TARN_ASSERT(strcmp(transports[i]->scheme, t->scheme) != 0);
    transports[n_transports++] = t;
}

const struct transport_ops *transport_find(const char *scheme_or_uri) {
    const char *end = strstr(scheme_or_uri, "://");
    size_t len = end != NULL ? (size_t)(end - scheme_or_uri) : strlen(scheme_or_uri);
    for (size_t i = 0; i < n_transports; i++) {
        const char *scheme = transports[i]->scheme;
        if (strlen(scheme) == len && memcmp(scheme, scheme_or_uri, len) == 0) return transports[i];
    }
    return NULL;
}

static void register_builtin(void) {
    transport_register(&transport_shm);
    transport_register(&transport_tcp);
}

void transport_register_builtin(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_builtin);
}
