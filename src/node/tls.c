#include "node/tls.h"

#include "base/log.h"
#include "tls/tls.h"

enum { HANDSHAKE_MS = 10000 };

static const struct node_options *options;
static struct tls_context *context; /* NULL: no module serves TLS yet */
static bool renew;                  /* atomic: SIGHUP came, in another thread */

static bool context_read(const char **why_p) {
    static char why[TLS_WHY_MAX];
    struct tls_context *fresh = tls_context_create(TLS_SERVER, &options->tls, why);
    *why_p = why;
    if (fresh == NULL) return false;
    tls_context_put(&context);
    context = fresh;
    return true;
}

static bool node_tls_use(bool begins, const char **why_p) {
    return !begins || context != NULL || context_read(why_p);
}

static struct tls_context *node_tls_context(void) {
    const char *why;
    if (__atomic_exchange_n(&renew, false, __ATOMIC_ACQ_REL) && !context_read(&why))
        log_warning("TLS of modules: what there was is kept, for its files cannot be used as they "
                    "are now: %s",
                    why);
    return context;
}

static uint64_t node_tls_handshake_ms(void) {
    return HANDSHAKE_MS;
}

const struct net_tls_source *node_tls_source(const struct node_options *o) {
    static const struct net_tls_source source = {
        .use = node_tls_use, .context = node_tls_context, .handshake_ms = node_tls_handshake_ms};
    options = o;
    return &source;
}

void node_tls_renew(void) {
    __atomic_store_n(&renew, true, __ATOMIC_RELEASE);
}

void node_tls_close(void) {
    tls_context_put(&context);
}
