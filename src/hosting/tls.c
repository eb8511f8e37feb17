/* TLS of the data port, and files that are read again: a certificate is renewed while the host
 * serves. */
#include <stdlib.h>
#include <time.h>

#include "base/assert.h"
#include "base/log.h"
#include "client/client.h"
#include "client/error.h"
#include "client/secure.h"
#include "hosting/hosting.h"
#include "tls/tls.h"

static struct tls_context *data_context(void *arg) {
    return secure_take(&((struct tarn_host *)arg)->data_tls);
}

static tarn_status data_tls_read(const struct tarn_host *h, struct tls_context **context_p) {
    char why[TLS_WHY_MAX];
    *context_p = tls_context_create(TLS_SERVER, &h->data_tls_files, why);
    return *context_p != NULL ? TARN_OK : fail(TARN_EINVAL, "TLS of the data port: %s", why);
}

/* What is not said is as for the connection to the master: a node has one certificate, usually. */
tarn_status hosting_tls_open(struct tarn_host *h, const tarn_host_options *o) {
    const tarn_options *url = &h->options;
    struct tls_options *t = &h->data_tls_files;
    bool own = o->tls_cert_file != NULL || o->tls_key_file != NULL;
    bool trusts = o->tls_ca_file != NULL || o->tls_ca_dir != NULL;
    bool any = own || trusts || o->tls_auth_clients != NULL;
    if (!o->tls_data && any) return fail(TARN_EINVAL, "the tls options of a host need tls_data");
    if (!o->tls_data) return TARN_OK;
    if (!h->master.tls)
        return fail(
            TARN_EINVAL,
            "tls_data needs a URL that begins with tarns://: grants would go in plain text");
    if (!tls_auth_parse(o->tls_auth_clients, &t->auth))
        return fail(TARN_EINVAL, "tls_auth_clients is yes, optional or no, not \"%s\"",
                    o->tls_auth_clients);
    t->cert_file = xstrdup(own ? o->tls_cert_file : url->tls_cert_file);
    t->key_file = xstrdup(own ? o->tls_key_file : url->tls_key_file);
    t->ca_file = xstrdup(trusts ? o->tls_ca_file : url->tls_ca_file);
    t->ca_dir = xstrdup(trusts ? o->tls_ca_dir : url->tls_ca_dir);
    tarn_status status = data_tls_read(h, &h->data_tls);
    if (status == TARN_OK)
        h->data_tls_of = (struct transport_tls){.arg = h, .context = data_context};
    return status;
}

void hosting_tls_close(struct tarn_host *h) {
    struct tls_options *t = &h->data_tls_files;
    tls_context_put(&h->data_tls);
    free((char *)t->cert_file);
    free((char *)t->key_file);
    free((char *)t->ca_file);
    free((char *)t->ca_dir);
    *t = (struct tls_options){0};
}

/* --- files that have changed --- */

/* Who wants a new certificate does not want one that nobody accepts. */
static tarn_status certificate_check_time(const struct tls_context *context, const char *file) {
    time_t until = tls_context_expires(context);
    if (tls_context_begins(context) > time(NULL))
        return fail(TARN_EINVAL, "certificate file %s: it is not valid yet", file);
    if (until == 0 || until > time(NULL)) return TARN_OK;
    return fail(TARN_EINVAL, "certificate file %s: it has expired", file);
}

/* Connections to the master, and those to other hosts. */
static void own_tls_swap(struct tarn_host *h, struct tls_context *fresh) {
    pthread_mutex_lock(&h->reader_mutex);
    if (h->reader != NULL) secure_swap(&h->reader->master.secure.context, tls_context_get(fresh));
    secure_swap(&h->master.secure.context, fresh);
    pthread_mutex_unlock(&h->reader_mutex);
}

tarn_status hosting_reload_tls(struct tarn_host *h) {
    struct tls_context *own = NULL, *data = NULL;
    if (!h->master.secure.on) return TARN_OK;
    tarn_status status = secure_read(&h->options, &own);
    if (status == TARN_OK) status = certificate_check_time(own, h->options.tls_cert_file);
    if (status == TARN_OK && h->data_tls_of.context != NULL) status = data_tls_read(h, &data);
    if (status == TARN_OK && data != NULL)
        status = certificate_check_time(data, h->data_tls_files.cert_file);
    if (status != TARN_OK) {
        log_warning("TLS: what there was is kept, for its files cannot be used as they are now: %s",
                    tarn_last_error());
        tls_context_put(&own);
        tls_context_put(&data);
        return status;
    }
    own_tls_swap(h, own);
    if (data != NULL) secure_swap(&h->data_tls, data);
    log_notice(
        "TLS: certificates, keys and authorities were read again, for connections from now on");
    return TARN_OK;
}
