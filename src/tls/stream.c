/* One connection. OpenSSL reads and writes through a BIO of our own: what it reads comes from `in`,
 * what it writes goes to `out`, both of the stream and bounded by when we call OpenSSL, so that the
 * BIO never has to refuse. */
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tls/internal.h"

#define RECORD_MAX    (16u * 1024) /* of plaintext */
#define OUT_FIRST     2048u
#define OPENSSL_BYTES 20480u /* of a connection, measured, without its record buffers */
#define HANDSHAKE     22     /* the first byte of a connection */
#define ALERT         21     /* or of its refusal */

struct bytes {
    char *data;
    size_t at, len, cap; /* [at, len) is there */
};

struct tls_stream {
    struct tls_context *ctx;
    SSL *ssl;
    struct bytes in, out;
    enum tls_state state;
    int alert;  /* that the peer sent; -1: none */
    bool begun; /* the first byte was seen */
    bool ended; /* of the socket */
    bool said_goodbye;
    bool more; /* tls_read stopped although it could go on */
    bool plain;
    char why[TLS_WHY_MAX];
};

static void bytes_release(struct bytes *b) {
    free(b->data);
    *b = (struct bytes){NULL, 0, 0, 0};
}

/* --- the BIO --- */

static int bio_read(BIO *bio, char *to, int size) {
    struct tls_stream *s = BIO_get_data(bio);
    struct bytes *b = &s->in;
    size_t have = b->len - b->at;
    BIO_clear_retry_flags(bio);
    if (size <= 0) return 0;
    if (have == 0) {
        if (s->ended) return 0;
        BIO_set_retry_read(bio);
        return -1;
    }
    size_t n = have < (size_t)size ? have : (size_t)size;
    memcpy(to, b->data + b->at, n);
    b->at += n;
    return (int)n;
}

static bool bytes_reserve(struct bytes *b, size_t extra) {
    if (b->at > 0 && b->cap - b->len < extra) {
        memmove(b->data, b->data + b->at, b->len - b->at);
        b->len -= b->at;
        b->at = 0;
    }
    if (b->cap - b->len >= extra) return true;
    size_t cap = b->cap > 0 ? b->cap : OUT_FIRST;
    while (cap - b->len < extra) cap *= 2;
    char *data = realloc(b->data, cap);
    if (data == NULL) return false;
    b->data = data;
    b->cap = cap;
    return true;
}

static int bio_write(BIO *bio, const char *data, int size) {
    struct tls_stream *s = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (size <= 0 || !bytes_reserve(&s->out, (size_t)size)) return -1;
    memcpy(s->out.data + s->out.len, data, (size_t)size);
    s->out.len += (size_t)size;
    return size;
}

static long bio_ctrl(BIO *bio, int what, long number, void *p) {
    const struct tls_stream *s = BIO_get_data(bio);
    switch (what) {
    case BIO_CTRL_FLUSH: return 1;
    case BIO_CTRL_EOF: return s->ended && s->in.at == s->in.len;
    default: return 0;
    }
}

static BIO_METHOD *bio_kind;
static pthread_once_t bio_once = PTHREAD_ONCE_INIT;

static void make_bio_kind(void) {
    bio_kind = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tarn");
    if (bio_kind == NULL) return;
    BIO_meth_set_read(bio_kind, bio_read);
    BIO_meth_set_write(bio_kind, bio_write);
    BIO_meth_set_ctrl(bio_kind, bio_ctrl);
}

static BIO *make_bio(struct tls_stream *s) {
    pthread_once(&bio_once, make_bio_kind);
    BIO *bio = bio_kind == NULL ? NULL : BIO_new(bio_kind);
    if (bio == NULL) return NULL;
    BIO_set_data(bio, s);
    BIO_set_init(bio, 1);
    return bio;
}

/* --- beginning and end --- */

/* An IP address, without the zone that only this machine knows. */
static bool ip_parse(const char *name, char out[INET6_ADDRSTRLEN]) {
    unsigned char binary[16];
    size_t len = strcspn(name, "%");
    if (len == 0 || len >= INET6_ADDRSTRLEN) return false;
    memcpy(out, name, len);
    out[len] = '\0';
    return inet_pton(AF_INET6, out, binary) == 1 ||
           (name[len] == '\0' && inet_pton(AF_INET, out, binary) == 1);
}

/* Names come from the alternative names only: a subject is text that an authority need not have
 * looked at. */
static bool stream_set_name(struct tls_stream *s, const char *host) {
    char address[INET6_ADDRSTRLEN];
    const char *name = tls_context_name(s->ctx, host), *sni = name != NULL ? name : host;
    if (sni == NULL || sni[0] == '\0') return s->ctx->any_name;
    if (ip_parse(sni, address))
        return name == NULL || X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(s->ssl), address) == 1;
    SSL_set_hostflags(s->ssl,
                      X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    return (name == NULL || SSL_set1_host(s->ssl, name) == 1) &&
           SSL_set_tlsext_host_name(s->ssl, sni) == 1;
}

struct tls_stream *tls_stream_create(struct tls_context *ctx, const char *host) {
    struct tls_stream *s = calloc(1, sizeof(*s));
    if (s == NULL) return NULL;
    ERR_clear_error();
    s->ctx = tls_context_get(ctx);
    s->alert = -1;
    s->ssl = SSL_new(ctx->ssl);
    BIO *bio = s->ssl == NULL ? NULL : make_bio(s);
    if (bio == NULL || (ctx->side == TLS_CLIENT && !stream_set_name(s, host))) {
        BIO_free(bio);
        tls_stream_destroy(&s);
        return NULL;
    }
    SSL_set_bio(s->ssl, bio, bio); /* takes it */
    SSL_set_app_data(s->ssl, (char *)s);
    if (ctx->side == TLS_SERVER)
        SSL_set_accept_state(s->ssl);
    else
        SSL_set_connect_state(s->ssl);
    return s;
}

void tls_stream_destroy(struct tls_stream **s_p) {
    struct tls_stream *s = *s_p;
    *s_p = NULL;
    if (s == NULL) return;
    SSL_free(s->ssl);
    bytes_release(&s->in);
    bytes_release(&s->out);
    tls_context_put(&s->ctx);
    free(s);
}

/* --- what went wrong --- */

void tls_on_info(const SSL *ssl, int where, int ret) {
    struct tls_stream *s = (struct tls_stream *)SSL_get_app_data(ssl);
    if (s != NULL && (where & SSL_CB_READ_ALERT) == SSL_CB_READ_ALERT && ret >> 8 == SSL3_AL_FATAL)
        s->alert = ret & 0xff;
}

static void stream_fail(struct tls_stream *s, const char *why) {
    s->state = TLS_FAILED;
    s->more = false;
    snprintf(s->why, sizeof(s->why), "%s", why);
    bytes_release(&s->in);
}

static void say_not_accepted(const struct tls_stream *s, char *out, size_t size) {
    X509_VERIFY_PARAM *wanted = SSL_get0_param(s->ssl);
    long result = SSL_get_verify_result(s->ssl);
    char *address =
        result == X509_V_ERR_IP_ADDRESS_MISMATCH ? X509_VERIFY_PARAM_get1_ip_asc(wanted) : NULL;
    const char *name =
        result == X509_V_ERR_HOSTNAME_MISMATCH ? X509_VERIFY_PARAM_get0_host(wanted, 0) : address;
    bool named = name != NULL;
    snprintf(out, size, "the peer's certificate is not accepted: %s%s%.100s%s",
             X509_verify_cert_error_string(result), named ? ", it is not for \"" : "",
             named ? name : "", named ? "\"" : "");
    OPENSSL_free(address);
}

static void fail_by_openssl(struct tls_stream *s) {
    char text[TLS_WHY_MAX];
    unsigned long e = ERR_peek_error();
    int reason = ERR_GET_LIB(e) == ERR_LIB_SSL ? ERR_GET_REASON(e) : 0;
    if (s->alert >= 0)
        snprintf(text, sizeof(text), "the peer refused: %s",
                 s->alert == SSL_AD_CERTIFICATE_REQUIRED ? "it wants a certificate"
                                                         : SSL_alert_desc_string_long(s->alert));
    else if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED)
        say_not_accepted(s, text, sizeof(text));
    else if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE)
        snprintf(text, sizeof(text), "the peer showed no certificate");
    else if (s->ended && s->in.at == s->in.len)
        snprintf(text, sizeof(text), "%s",
                 s->state == TLS_HANDSHAKE
                     ? "the peer ended the connection during the handshake"
                     : "the connection ended without a goodbye: it may have been cut short");
    else
        snprintf(text, sizeof(text), "%s", tls_openssl_reason());
    ERR_clear_error();
    stream_fail(s, text);
}

/* What a call of OpenSSL that did not succeed means. */
static void stream_settle(struct tls_stream *s, int rc) {
    switch (SSL_get_error(s->ssl, rc)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: break;
    case SSL_ERROR_ZERO_RETURN:
        s->state = TLS_CLOSED;
        bytes_release(&s->in);
        break;
    default: fail_by_openssl(s);
    }
}

/* --- ciphertext --- */

size_t tls_in_space(struct tls_stream *s, void **at_p) {
    struct bytes *b = &s->in;
    *at_p = NULL;
    if (s->state == TLS_FAILED || s->state == TLS_CLOSED || s->ended) return 0;
    if (b->data == NULL) {
        b->data = malloc(TLS_IN_MAX);
        if (b->data == NULL) {
            stream_fail(s, "there is no memory for what it sends");
            return 0;
        }
        b->cap = TLS_IN_MAX;
    }
    if (b->at > 0 && b->len == b->cap) {
        memmove(b->data, b->data + b->at, b->len - b->at);
        b->len -= b->at;
        b->at = 0;
    }
    *at_p = b->data + b->len;
    return b->cap - b->len;
}

void tls_in_added(struct tls_stream *s, size_t n) {
    struct bytes *b = &s->in;
    b->len += n;
    if (n > 0 && !s->begun) {
        s->begun = true;
        if (b->data[0] != HANDSHAKE && (s->ctx->side == TLS_SERVER || b->data[0] != ALERT)) {
            s->plain = true;
            stream_fail(s, "the peer does not speak TLS");
        }
    }
    if (b->at == b->len) bytes_release(b);
}

void tls_in_end(struct tls_stream *s) {
    s->ended = true;
}

bool tls_in_left(const struct tls_stream *s) {
    return s->more && (s->state == TLS_HANDSHAKE || s->state == TLS_OPEN);
}

const void *tls_out(const struct tls_stream *s, size_t *len_p) {
    *len_p = s->out.len - s->out.at;
    return s->out.data == NULL ? "" : s->out.data + s->out.at;
}

void tls_out_sent(struct tls_stream *s, size_t n) {
    s->out.at += n;
    if (s->out.at == s->out.len) bytes_release(&s->out);
}

/* --- plaintext --- */

static size_t stream_unsent(const struct tls_stream *s) {
    return s->out.len - s->out.at;
}

/* Reading makes answers, too (new keys, alerts). Who asks for them and never reads them means no
 * good. */
static bool stream_flooded(struct tls_stream *s) {
    if (stream_unsent(s) < 2 * TLS_OUT_MAX) return false;
    stream_fail(s, "the peer makes this side answer, and does not read the answers");
    return true;
}

void tls_handshake(struct tls_stream *s) {
    if (s->state != TLS_HANDSHAKE) return;
    ERR_clear_error();
    int rc = SSL_do_handshake(s->ssl);
    if (rc == 1)
        s->state = TLS_OPEN;
    else
        stream_settle(s, rc);
}

size_t tls_read(struct tls_stream *s, void *out, size_t size) {
    size_t done = 0;
    s->more = false;
    tls_handshake(s);
    while (s->state == TLS_OPEN && done < size && !stream_flooded(s)) {
        size_t n = 0;
        ERR_clear_error();
        int rc = SSL_read_ex(s->ssl, (char *)out + done, size - done, &n);
        if (rc != 1) {
            stream_settle(s, rc);
            break;
        }
        done += n;
    }
    if (s->state == TLS_HANDSHAKE || s->state == TLS_OPEN)
        s->more = done == size && (s->in.at < s->in.len || SSL_pending(s->ssl) > 0);
    if (s->in.at == s->in.len) bytes_release(&s->in);
    return done;
}

size_t tls_write_space(const struct tls_stream *s) {
    bool may = (s->state == TLS_OPEN || s->state == TLS_CLOSED) && !s->said_goodbye;
    return may && stream_unsent(s) < TLS_OUT_MAX ? TLS_OUT_MAX - stream_unsent(s) : 0;
}

size_t tls_write(struct tls_stream *s, const void *data, size_t len) {
    size_t done = 0;
    tls_handshake(s);
    while (done < len && tls_write_space(s) > 0) {
        size_t n = 0, piece = len - done < RECORD_MAX ? len - done : RECORD_MAX;
        ERR_clear_error();
        int rc = SSL_write_ex(s->ssl, (const char *)data + done, piece, &n);
        if (rc != 1) {
            stream_settle(s, rc);
            break;
        }
        done += n;
    }
    return done;
}

void tls_close(struct tls_stream *s) {
    if (s->said_goodbye || s->state == TLS_FAILED || s->state == TLS_HANDSHAKE) return;
    s->said_goodbye = true;
    ERR_clear_error();
    SSL_shutdown(s->ssl); /* sends ours; the peer's is not waited for */
    ERR_clear_error();
}

/* --- facts --- */

enum tls_state tls_state(const struct tls_stream *s) {
    return s->state;
}
const char *tls_why(const struct tls_stream *s) {
    return s->why;
}
bool tls_is_plain(const struct tls_stream *s) {
    return s->plain;
}
const char *tls_version(const struct tls_stream *s) {
    return SSL_get_version(s->ssl);
}
const char *tls_cipher(const struct tls_stream *s) {
    return SSL_get_cipher_name(s->ssl);
}

bool tls_peer_name(const struct tls_stream *s, char *out, size_t size) {
    X509 *peer = SSL_get0_peer_certificate(s->ssl);
    return peer != NULL && X509_NAME_get_text_by_NID(X509_get_subject_name(peer), NID_commonName,
                                                     out, (int)size) >= 0;
}

size_t tls_memory(const struct tls_stream *s) {
    return sizeof(*s) + OPENSSL_BYTES + s->in.cap + s->out.cap;
}
