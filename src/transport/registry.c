/* The list of transports: those that are built in, and what modules bring. */
#include "transport/transport.h"

#include <pthread.h>
#include <string.h>

#include "base/assert.h"

/* By slot. One stays its scheme's when the transport goes. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry {
    char scheme[TRANSPORT_SCHEME_MAX + 1];
    const struct transport_ops *ops; /* NULL: it is gone */
    uint64_t domains;                /* open now: its module cannot go */
} transports[TRANSPORTS_MAX];
static unsigned n_transports;

static struct entry *registry_entry(const char *scheme) {
    for (unsigned i = 0; i < n_transports; i++)
        if (strcmp(transports[i].scheme, scheme) == 0) return &transports[i];
    return NULL;
}

static bool scheme_is(const char *scheme, const char *uri, size_t len) {
    return scheme != NULL && strlen(scheme) == len && memcmp(scheme, uri, len) == 0;
}

static size_t scheme_len(const char *uri) {
    const char *end = strstr(uri, "://");
    return end != NULL ? (size_t)(end - uri) : strlen(uri);
}

/* Is a taken before b? */
static bool is_preferred(const struct entry *a, const struct entry *b) {
    return a->ops->cost != b->ops->cost ? a->ops->cost < b->ops->cost : a < b;
}

static tarn_status registry_add(const struct transport_ops *t) {
    struct entry *e = registry_entry(t->scheme);
    if (e != NULL && e->ops != NULL) return TARN_EEXISTS;
    if (e == NULL && n_transports == TRANSPORTS_MAX) return TARN_ELIMIT;
    if (e == NULL) {
        e = &transports[n_transports++];
        strcpy(e->scheme, t->scheme); /* transport_register has looked at its length */
    }
    e->ops = t;
    return TARN_OK;
}

static void add_builtin(void) {
    TARN_ASSERT(registry_add(&transport_shm) == TARN_OK && registry_add(&transport_tcp) == TARN_OK);
}

static void registry_lock(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, add_builtin);
    pthread_mutex_lock(&lock);
}

bool transport_is_whole(const struct transport_ops *t) {
    bool granted = (t->flags & TRANSPORT_GRANTED) != 0, map = (t->flags & TRANSPORT_MAP) != 0,
         announces = (t->flags & TRANSPORT_ANNOUNCES) != 0;
    return t->domain_open && t->domain_close && t->listen && t->listener_stats &&
           t->listener_fence && t->listener_close && t->connect && t->endpoint_status &&
           t->endpoint_close && t->submit && t->progress && t->arm &&
           ((granted && !announces) || (t->memory_register && t->memory_deregister)) &&
           (granted || (t->key_unpack && t->key_check && t->key_close && t->listener_lent)) &&
           (!map || t->key_map) &&
           (!announces || (t->key_pack && t->memory_version && t->listener_uri));
}

tarn_status transport_register(const struct transport_ops *t) {
    if (t->abi != TRANSPORT_ABI) return TARN_EPROTO;
    size_t len = strlen(t->scheme);
    TARN_ASSERT(len > 0 && len <= TRANSPORT_SCHEME_MAX && transport_is_whole(t));
    registry_lock();
    tarn_status status = registry_add(t);
    pthread_mutex_unlock(&lock);
    return status;
}

tarn_status transport_unregister(const struct transport_ops *t) {
    tarn_status status = TARN_ENOTFOUND;
    registry_lock();
    struct entry *e = registry_entry(t->scheme);
    if (e != NULL && e->ops == t) {
        status = e->domains > 0 ? TARN_EBUSY : TARN_OK;
        if (status == TARN_OK) e->ops = NULL;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

const struct transport_ops *transport_at(size_t i) {
    const struct transport_ops *found = NULL;
    registry_lock();
    for (unsigned k = 0; k < n_transports && found == NULL; k++) {
        size_t before = 0;
        if (transports[k].ops == NULL) continue;
        for (unsigned other = 0; other < n_transports; other++)
            before +=
                transports[other].ops != NULL && is_preferred(&transports[other], &transports[k]);
        if (before == i) found = transports[k].ops;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

const struct transport_ops *transport_find(const char *scheme_or_uri) {
    const struct transport_ops *found = NULL;
    size_t len = scheme_len(scheme_or_uri);
    registry_lock();
    for (unsigned i = 0; i < n_transports && found == NULL; i++) {
        const struct transport_ops *t = transports[i].ops;
        if (t != NULL && (scheme_is(t->scheme, scheme_or_uri, len) ||
                          scheme_is(t->secure_scheme, scheme_or_uri, len)))
            found = t;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool transport_is_secure(const char *uri) {
    const struct transport_ops *t = transport_find(uri);
    return t != NULL && scheme_is(t->secure_scheme, uri, scheme_len(uri));
}

unsigned transport_slot(const struct transport_ops *t) {
    registry_lock();
    const struct entry *e = registry_entry(t->scheme);
    pthread_mutex_unlock(&lock);
    TARN_ASSERT(e != NULL);
    return (unsigned)(e - transports);
}

const char *transport_name(unsigned slot) {
    registry_lock();
    const char *name = slot < n_transports ? transports[slot].scheme : NULL;
    pthread_mutex_unlock(&lock);
    return name;
}

tarn_status transport_open(const char *scheme, const struct transport_domain_config *config,
                           const struct transport_ops **ops_p, struct transport_domain **domain_p) {
    registry_lock();
    struct entry *e = registry_entry(scheme);
    bool there = e != NULL && e->ops != NULL;
    tarn_status status = there ? e->ops->domain_open(config, domain_p) : TARN_ENOTSUP;
    if (status == TARN_OK) {
        e->domains++;
        *ops_p = e->ops;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void transport_close(const struct transport_ops *ops, struct transport_domain **domain_p) {
    ops->domain_close(domain_p);
    registry_lock();
    struct entry *e = registry_entry(ops->scheme);
    TARN_ASSERT(e != NULL && e->ops == ops && e->domains > 0);
    e->domains--;
    pthread_mutex_unlock(&lock);
}
