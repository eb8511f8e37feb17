/* What a side of TLS has and demands, made from options and files. */
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "tls/internal.h"

const char *const tls_auth_words[] = {
    [TLS_AUTH_NO] = "no", [TLS_AUTH_OPTIONAL] = "optional", [TLS_AUTH_YES] = "yes", NULL};

bool tls_auth_parse(const char *word, enum tls_auth *auth_p) {
    if (word == NULL) word = tls_auth_words[TLS_AUTH_YES];
    for (unsigned i = 0; tls_auth_words[i] != NULL; i++) {
        if (strcmp(word, tls_auth_words[i]) != 0) continue;
        *auth_p = (enum tls_auth)i;
        return true;
    }
    return false;
}

static bool tls_given(const char *s) {
    return s != NULL && s[0] != '\0';
}

/* The first is the cause; those after it say who was calling. A missing file is the system's
 * error. */
const char *tls_openssl_reason(void) {
    unsigned long e = ERR_get_error();
    const char *text = e == 0                ? NULL
                       : ERR_SYSTEM_ERROR(e) ? strerror(ERR_GET_REASON(e))
                                             : ERR_reason_error_string(e);
    if (ERR_GET_LIB(e) == ERR_LIB_PEM && ERR_GET_REASON(e) == PEM_R_NO_START_LINE)
        text = "nothing of that kind is in it (PEM)";
    if (ERR_GET_LIB(e) == ERR_LIB_X509 && ERR_GET_REASON(e) == X509_R_KEY_VALUES_MISMATCH)
        text = "it is not the key of the certificate";
    ERR_clear_error();
    return text != NULL ? text : "an error that OpenSSL has no words for";
}

__attribute__((format(printf, 2, 3))) static bool wrong(char *why, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, TLS_WHY_MAX, fmt, ap);
    va_end(ap);
    return false;
}

struct passphrase {
    const char *text;
    bool missed; /* one was needed, and there is none */
};

/* Never asks a terminal. */
static int give_passphrase(char *out, int size, int writing, void *arg) {
    struct passphrase *p = arg;
    size_t len = tls_given(p->text) ? strlen(p->text) : 0;
    p->missed = len == 0;
    if (len == 0 || size < 0 || len > (size_t)size) return -1;
    memcpy(out, p->text, len);
    return (int)len;
}

static bool set_protocols(SSL_CTX *ssl, const char *words, char *why) {
    static const struct {
        const char *name;
        long off;
    } known[] = {{"TLSv1", SSL_OP_NO_TLSv1},
                 {"TLSv1.1", SSL_OP_NO_TLSv1_1},
                 {"TLSv1.2", SSL_OP_NO_TLSv1_2},
                 {"TLSv1.3", SSL_OP_NO_TLSv1_3}};
    unsigned long off = SSL_OP_NO_TLSv1 | SSL_OP_NO_TLSv1_1 | SSL_OP_NO_TLSv1_2 | SSL_OP_NO_TLSv1_3;
    unsigned long on = 0;
    if (!tls_given(words)) words = "TLSv1.2 TLSv1.3";
    for (const char *at = words; *at != '\0';) {
        size_t n = strcspn(at, " ,");
        size_t i = 0;
        while (i < 4 && !(strlen(known[i].name) == n && strncasecmp(known[i].name, at, n) == 0))
            i++;
        if (n > 0 && i < 2)
            return wrong(
                why, "protocol %s: it is broken, and not offered. Possible are TLSv1.2 and TLSv1.3",
                known[i].name);
        if (n > 0 && i == 4)
            return wrong(why, "protocol %.*s is not known. Possible are TLSv1.2 and TLSv1.3",
                         (int)(n < 32 ? n : 32), at);
        if (n > 0) on |= (unsigned long)known[i].off;
        at += n;
        if (*at != '\0') at++;
    }
    if (on == 0) return wrong(why, "protocols: none is given. Possible are TLSv1.2 and TLSv1.3");
    SSL_CTX_set_options(ssl, off & ~on);
    return true;
}

static bool set_certificate(SSL_CTX *ssl, const struct tls_options *o, char *why) {
    if (!tls_given(o->cert_file) && !tls_given(o->key_file)) return true;
    if (!tls_given(o->cert_file))
        return wrong(why, "key file %s: there is no certificate file for it", o->key_file);
    if (!tls_given(o->key_file))
        return wrong(why, "certificate file %s: there is no key file for it", o->cert_file);
    struct passphrase pass = {o->key_pass, false};
    SSL_CTX_set_default_passwd_cb(ssl, give_passphrase);
    SSL_CTX_set_default_passwd_cb_userdata(ssl, &pass);
    bool ok = SSL_CTX_use_certificate_chain_file(ssl, o->cert_file) == 1;
    if (!ok)
        wrong(why, "certificate file %s: %s", o->cert_file, tls_openssl_reason());
    else if (SSL_CTX_use_PrivateKey_file(ssl, o->key_file, SSL_FILETYPE_PEM) != 1)
        ok = wrong(why, "key file %s: %s", o->key_file,
                   pass.missed ? "it is encrypted, and no passphrase is given"
                               : tls_openssl_reason());
    ERR_clear_error();
    SSL_CTX_set_default_passwd_cb_userdata(ssl, NULL);
    return ok;
}

static bool set_trust(struct tls_context *ctx, const struct tls_options *o, char *why) {
    bool server = ctx->side == TLS_SERVER;
    const char *file = tls_given(o->ca_file) ? o->ca_file : NULL,
               *dir = tls_given(o->ca_dir) ? o->ca_dir : NULL;
    if (file != NULL && SSL_CTX_load_verify_file(ctx->ssl, file) != 1)
        return wrong(why, "CA file %s: %s", file, tls_openssl_reason());
    if (dir != NULL && SSL_CTX_load_verify_dir(ctx->ssl, dir) != 1)
        return wrong(why, "CA directory %s: %s", dir, tls_openssl_reason());
    if (server && o->auth != TLS_AUTH_NO && file == NULL && dir == NULL)
        return wrong(why, "clients are asked for certificates, but no CA file or directory is "
                          "given to check them");
    if (!server && file == NULL && dir == NULL && !o->no_verify)
        SSL_CTX_set_default_verify_paths(ctx->ssl);
    int mode = SSL_VERIFY_NONE;
    if (server ? o->auth != TLS_AUTH_NO : !o->no_verify) mode = SSL_VERIFY_PEER;
    if (server && o->auth == TLS_AUTH_YES) mode |= SSL_VERIFY_FAIL_IF_NO_PEER_CERT;
    SSL_CTX_set_verify(ctx->ssl, mode, NULL);
    if (server && o->auth != TLS_AUTH_NO &&
        file != NULL) { /* tells clients with several which one to show */
        STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(file);
        if (names != NULL) SSL_CTX_set_client_CA_list(ctx->ssl, names);
    }
    return true;
}

static bool set_ciphers(SSL_CTX *ssl, const struct tls_options *o, char *why) {
    if (tls_given(o->ciphers) && SSL_CTX_set_cipher_list(ssl, o->ciphers) != 1)
        return wrong(why, "ciphers: \"%.100s\" has none that is known here", o->ciphers);
    if (tls_given(o->ciphersuites) && SSL_CTX_set_ciphersuites(ssl, o->ciphersuites) != 1)
        return wrong(why, "ciphersuites: \"%.100s\" has one that is not known here",
                     o->ciphersuites);
    if (o->prefer_server_ciphers) SSL_CTX_set_options(ssl, SSL_OP_CIPHER_SERVER_PREFERENCE);
    if (!tls_given(o->dh_params_file)) {
        SSL_CTX_set_dh_auto(ssl, 1);
        return true;
    }
    BIO *file = BIO_new_file(o->dh_params_file, "r");
    EVP_PKEY *params = file == NULL ? NULL : PEM_read_bio_Parameters(file, NULL);
    BIO_free(file);
    bool ok = params != NULL && SSL_CTX_set0_tmp_dh_pkey(ssl, params) == 1;
    if (ok) return true;
    EVP_PKEY_free(params);
    return wrong(why, "DH parameters file %s: %s", o->dh_params_file, tls_openssl_reason());
}

/* A session that is taken up again skips certificates: its tickets are good for this context
 * only. */
static void set_sessions(struct tls_context *ctx, const struct tls_options *o) {
    if (ctx->side == TLS_CLIENT || o->no_session_cache) {
        SSL_CTX_set_session_cache_mode(ctx->ssl, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_options(ctx->ssl, SSL_OP_NO_TICKET);
        SSL_CTX_set_num_tickets(ctx->ssl, 0);
        return;
    }
    SSL_CTX_set_session_cache_mode(ctx->ssl, SSL_SESS_CACHE_SERVER);
    if (o->session_cache_size > 0)
        SSL_CTX_sess_set_cache_size(ctx->ssl, (long)o->session_cache_size);
    if (o->session_timeout_s > 0) SSL_CTX_set_timeout(ctx->ssl, (long)o->session_timeout_s);
    SSL_CTX_set_session_id_context(ctx->ssl, (const unsigned char *)"tarn", 4);
}

struct tls_context *tls_context_create(enum tls_side side, const struct tls_options *o, char *why) {
    why[0] = '\0';
    ERR_clear_error();
    if (side == TLS_SERVER && !tls_given(o->cert_file) && !tls_given(o->key_file)) {
        wrong(why, "no certificate file is given: a server must have one");
        return NULL;
    }
    struct tls_context *ctx = calloc(1, sizeof(*ctx));
    if (ctx != NULL)
        ctx->ssl = SSL_CTX_new(side == TLS_SERVER ? TLS_server_method() : TLS_client_method());
    if (ctx == NULL || ctx->ssl == NULL) {
        wrong(why, "no memory for a context: %s", tls_openssl_reason());
        free(ctx);
        return NULL;
    }
    ctx->side = side;
    ctx->owners = 1;
    ctx->any_name = o->any_name || o->no_verify;
    if (tls_given(o->server_name) && (ctx->name = strdup(o->server_name)) == NULL) {
        wrong(why, "no memory for a context");
        tls_context_put(&ctx);
        return NULL;
    }
    SSL_CTX_set_options(ctx->ssl, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_mode(ctx->ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                   SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_info_callback(ctx->ssl, tls_on_info);
    set_sessions(ctx, o);
    if (set_protocols(ctx->ssl, o->protocols, why) && set_certificate(ctx->ssl, o, why) &&
        set_trust(ctx, o, why) && set_ciphers(ctx->ssl, o, why))
        return ctx;
    tls_context_put(&ctx);
    return NULL;
}

struct tls_context *tls_context_get(struct tls_context *ctx) {
    __atomic_add_fetch(&ctx->owners, 1, __ATOMIC_RELAXED);
    return ctx;
}

void tls_context_put(struct tls_context **ctx_p) {
    struct tls_context *ctx = *ctx_p;
    *ctx_p = NULL;
    if (ctx == NULL || __atomic_sub_fetch(&ctx->owners, 1, __ATOMIC_ACQ_REL) > 0) return;
    SSL_CTX_free(ctx->ssl);
    free(ctx->name);
    free(ctx);
}

const char *tls_context_name(const struct tls_context *ctx, const char *host) {
    return ctx->name != NULL ? ctx->name : ctx->any_name ? NULL : host;
}

static time_t seconds_of(const ASN1_TIME *time) {
    struct tm tm;
    return time != NULL && ASN1_TIME_to_tm(time, &tm) == 1 ? timegm(&tm) : 0;
}

time_t tls_context_expires(const struct tls_context *ctx) {
    const X509 *own = SSL_CTX_get0_certificate(ctx->ssl);
    return own != NULL ? seconds_of(X509_get0_notAfter(own)) : 0;
}

time_t tls_context_begins(const struct tls_context *ctx) {
    const X509 *own = SSL_CTX_get0_certificate(ctx->ssl);
    return own != NULL ? seconds_of(X509_get0_notBefore(own)) : 0;
}
