/* The TLS contexts that the options name. A change of any of them makes both anew from the files as
 * they are now, which is how renewed certificates are taken up: CONFIG SET tls-cert-file with the
 * path it had will do. */
#include "config/tls.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "base/log.h"

#define REACH_SAYS_MS 10000u

static struct { struct tls_context *server, *client; } current;
static unsigned modules_use; /* modules that serve TLS, whether there is a tls-port or not */
/* over the two, for who is not the loop's thread */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct tls_context *config_tls_server(void) {
    return current.server;
}
struct tls_context *config_tls_client(void) {
    return current.client;
}

/* Takes both. */
static void set_current(struct tls_context *s, struct tls_context *c) {
    struct tls_context *old_server = current.server, *old_client = current.client;
    pthread_mutex_lock(&lock);
    current.server = s;
    current.client = c;
    pthread_mutex_unlock(&lock);
    tls_context_put(&old_server);
    tls_context_put(&old_client);
}

void config_tls_free(void) {
    set_current(NULL, NULL);
}

static bool path_given(const char *s) {
    return s[0] != '\0';
}

static struct tls_options options_of(const struct config *c) {
    return (struct tls_options){.cert_file = c->tls_cert_file,
                                .key_file = c->tls_key_file,
                                .key_pass = c->tls_key_file_pass,
                                .ca_file = c->tls_ca_cert_file,
                                .ca_dir = c->tls_ca_cert_dir,
                                .auth = (enum tls_auth)c->tls_auth_clients,
                                .protocols = c->tls_protocols,
                                .ciphers = c->tls_ciphers,
                                .ciphersuites = c->tls_ciphersuites,
                                .prefer_server_ciphers = c->tls_prefer_server_ciphers,
                                .dh_params_file = c->tls_dh_params_file,
                                .no_session_cache = !c->tls_session_caching,
                                .session_cache_size = (uint32_t)c->tls_session_cache_size,
                                .session_timeout_s = (uint32_t)c->tls_session_cache_timeout_s};
}

static struct tls_context *context_make(enum tls_side side, const struct tls_options *o,
                                        const char **why_p) {
    static char why[TLS_WHY_MAX];
    struct tls_context *ctx = tls_context_create(side, o, why);
    if (ctx == NULL) {
        *why_p = why;
        return NULL;
    }
    time_t expires = tls_context_expires(ctx);
    if (expires != 0 && expires < time(NULL))
        log_warning(
            "The certificate in %s has expired: peers that verify it will not talk to this server",
            o->cert_file);
    return ctx;
}

/* To a master this server shows its client certificate, or else the one it has. */
static struct tls_context *context_make_client(const struct config *c, const char **why_p) {
    struct tls_options o = options_of(c);
    if (!path_given(c->tls_ca_cert_file) && !path_given(c->tls_ca_cert_dir)) {
        *why_p = "tls-replication and tls-data need tls-ca-cert-file or tls-ca-cert-dir, to know "
                 "masters and "
                 "nodes by";
        return NULL;
    }
    o.server_name = c->tls_server_name;
    o.any_name = !c->tls_verify_name;
    if (path_given(c->tls_client_cert_file) || path_given(c->tls_client_key_file)) {
        o.cert_file = c->tls_client_cert_file;
        o.key_file = c->tls_client_key_file;
        o.key_pass = c->tls_client_key_file_pass;
    }
    return context_make(TLS_CLIENT, &o, why_p);
}

bool config_tls_load(const struct config *c, const char **why_p) {
    struct tls_context *server = NULL, *client = NULL;
    bool trusts = path_given(c->tls_ca_cert_file) || path_given(c->tls_ca_cert_dir);
    bool reaches =
        c->tls_replication || c->tls_data || (c->tls_port != 0 && trusts); /* nodes may speak TLS */
    if (c->tls_data && c->tls_port == 0) {
        *why_p = "tls-data needs a tls-port: clients would get their grants in plain text";
        return false;
    }
    if (c->tls_port != 0 || modules_use > 0) {
        struct tls_options o = options_of(c);
        if ((server = context_make(TLS_SERVER, &o, why_p)) == NULL) return false;
    }
    if (reaches && (client = context_make_client(c, why_p)) == NULL) {
        tls_context_put(&server);
        return false;
    }
    set_current(server, client);
    return true;
}

bool config_tls_use(bool begins, const char **why_p) {
    if (!begins) {
        modules_use--; /* the context is there till the options change */
        return true;
    }
    modules_use++;
    if (current.server != NULL || config_tls_load(config, why_p)) return true;
    modules_use--;
    return false;
}

/* --- for the data threads --- */

static struct tls_context *context_share(void *arg) {
    struct tls_context *const *which = arg;
    pthread_mutex_lock(&lock);
    struct tls_context *ctx = *which != NULL ? tls_context_get(*which) : NULL;
    pthread_mutex_unlock(&lock);
    return ctx;
}

/* Every value that lives on such a node comes by here: one line in a while says it. */
static void reach_failed(void *arg, const char *uri, const char *why) {
    static uint64_t said_ms; /* atomic */
    (void)arg;
    uint64_t now = clock_mono_ms(), last = __atomic_load_n(&said_ms, __ATOMIC_RELAXED);
    if (last != 0 && now - last < REACH_SAYS_MS) return;
    if (!__atomic_compare_exchange_n(&said_ms, &last, now, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        return;
    log_warning("TLS with the data port %s: %s", uri, why);
}

const struct transport_tls *config_tls_data_port(const struct config *c) {
    static const struct transport_tls port = {.arg = &current.server, .context = context_share};
    return c->tls_data ? &port : NULL;
}

const struct transport_tls *config_tls_data_reach(void) {
    static const struct transport_tls reach = {
        .arg = &current.client, .context = context_share, .failed = reach_failed};
    return &reach;
}
