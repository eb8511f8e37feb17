/* TLS of the connections that a client or a storage node makes: to the master, to Sentinels, to
 * hosts. */
#include "client/client.h"
#include "client/secure.h"

/* Of all contexts: they are taken once a connection. Nothing is locked inside it. */
static pthread_mutex_t swapping = PTHREAD_MUTEX_INITIALIZER;

tarn_status secure_read(const tarn_options *o, struct tls_context **context_p) {
    char why[TLS_WHY_MAX];
    struct tls_options options = {.cert_file = o->tls_cert_file,
                                  .key_file = o->tls_key_file,
                                  .ca_file = o->tls_ca_file,
                                  .ca_dir = o->tls_ca_dir,
                                  .no_verify = !o->tls_verify,
                                  .server_name = o->tls_server_name,
                                  .any_name = !o->tls_verify_name};
    *context_p = tls_context_create(TLS_CLIENT, &options, why);
    return *context_p != NULL ? TARN_OK : fail(TARN_EINVAL, "the URL's tls_ options: %s", why);
}

tarn_status secure_open(const tarn_options *o, struct secure *s) {
    struct tls_context *context;
    tarn_status status = secure_read(o, &context);
    if (status != TARN_OK) return status;
    *s = (struct secure){.on = true, .context = context};
    return TARN_OK;
}

struct tls_context *secure_take(struct tls_context *const *context_p) {
    pthread_mutex_lock(&swapping);
    struct tls_context *context = *context_p == NULL ? NULL : tls_context_get(*context_p);
    pthread_mutex_unlock(&swapping);
    return context;
}

void secure_swap(struct tls_context **context_p, struct tls_context *other) {
    pthread_mutex_lock(&swapping);
    struct tls_context *old = *context_p;
    *context_p = other;
    pthread_mutex_unlock(&swapping);
    tls_context_put(&old);
}

void secure_close(struct secure *s) {
    tls_context_put(&s->context);
    *s = (struct secure){.context = NULL};
}
