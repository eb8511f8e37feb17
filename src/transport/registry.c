/* The list of transports: those that are built in, and what modules bring. */
#include "transport/transport.h"

#include <pthread.h>
#include <string.h>

#include "base/assert.h"

#define TRANSPORTS_MAX 8

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry {
    const struct transport_ops *ops;
    uint64_t domains; /* open now: its module cannot go */
} transports[TRANSPORTS_MAX];
static size_t n_transports;

static struct entry *entry_of(const char *scheme, size_t len) {
    for (size_t i = 0; i < n_transports; i++) {
        const char *s = transports[i].ops->scheme;
        if (strlen(s) == len && memcmp(s, scheme, len) == 0) return &transports[i];
    }
    return NULL;
}

static const struct transport_ops *find(const char *scheme, size_t len) {
    const struct entry *e = entry_of(scheme, len);
    return e != NULL ? e->ops : NULL;
}

tarn_status transport_register(const struct transport_ops *t) {
    if (t->abi != TRANSPORT_ABI) return TARN_EPROTO;
    TARN_ASSERT(t->scheme != NULL);
    TARN_ASSERT(t->domain_open && t->domain_query && t->domain_close && t->describe);
    TARN_ASSERT(t->memory_register && t->memory_deregister && t->memory_version);
    TARN_ASSERT(t->key_pack && t->key_unpack && t->key_map && t->key_check && t->key_close);
    TARN_ASSERT(t->listen && t->listener_port && t->listener_uri && t->listener_stats);
    TARN_ASSERT(t->listener_stats_reset && t->listener_fence && t->listener_lent &&
                t->listener_close);
    TARN_ASSERT(t->connect && t->endpoint_status && t->endpoint_close);
    TARN_ASSERT(t->submit && t->progress && t->arm);
    pthread_mutex_lock(&lock);
    tarn_status status = TARN_OK;
    if (find(t->scheme, strlen(t->scheme)) != NULL)
        status = TARN_EEXISTS;
    else if (n_transports == TRANSPORTS_MAX)
        status = TARN_ELIMIT;
    else
        transports[n_transports++] = (struct entry){t, 0};
    pthread_mutex_unlock(&lock);
    return status;
}

tarn_status transport_unregister(const struct transport_ops *t) {
    tarn_status status = TARN_ENOTFOUND;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_transports && status == TARN_ENOTFOUND; i++) {
        if (transports[i].ops != t) continue;
        status = transports[i].domains > 0 ? TARN_EBUSY : TARN_OK;
        if (status != TARN_OK) break;
        memmove(&transports[i], &transports[i + 1], (n_transports - i - 1) * sizeof(transports[0]));
        n_transports--;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

const struct transport_ops *transport_at(size_t i) {
    pthread_mutex_lock(&lock);
    const struct transport_ops *t = i < n_transports ? transports[i].ops : NULL;
    pthread_mutex_unlock(&lock);
    return t;
}

const struct transport_ops *transport_find(const char *scheme_or_uri) {
    const char *end = strstr(scheme_or_uri, "://");
    pthread_mutex_lock(&lock);
    const struct transport_ops *t =
        find(scheme_or_uri, end != NULL ? (size_t)(end - scheme_or_uri) : strlen(scheme_or_uri));
    pthread_mutex_unlock(&lock);
    return t;
}

tarn_status transport_open(const char *scheme, const struct transport_domain_config *config,
                           const struct transport_ops **ops_p, struct transport_domain **domain_p) {
    pthread_mutex_lock(&lock);
    struct entry *e = entry_of(scheme, strlen(scheme));
    tarn_status status = e != NULL ? e->ops->domain_open(config, domain_p) : TARN_ENOTSUP;
    if (status == TARN_OK) {
        e->domains++;
        *ops_p = e->ops;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void transport_close(const struct transport_ops *ops, struct transport_domain **domain_p) {
    ops->domain_close(domain_p);
    pthread_mutex_lock(&lock);
    struct entry *e = entry_of(ops->scheme, strlen(ops->scheme));
    TARN_ASSERT(e != NULL && e->ops == ops && e->domains > 0);
    e->domains--;
    pthread_mutex_unlock(&lock);
}

static void register_builtin(void) {
    TARN_ASSERT(transport_register(&transport_shm) == TARN_OK);
    TARN_ASSERT(transport_register(&transport_tcp) == TARN_OK);
}

void transport_register_builtin(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_builtin);
}
