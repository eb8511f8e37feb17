/* TLS 1.2 and 1.3 on bytes that somebody else carries: no sockets, no waiting. OpenSSL is known
 * here only.
 *
 * A context holds what a side has and demands (certificates, protocols, ciphers). A stream is one
 * connection:
 *
 *     socket ─> tls_in_space, tls_in_added ─> tls_read  ─> plaintext
 *     socket <─ tls_out, tls_out_sent      <─ tls_write <─ plaintext
 *
 *   HANDSHAKE ──> OPEN ──> CLOSED  the peer said goodbye (close_notify); writing is still possible
 *        └───────────┴───> FAILED  tls_why says why; what tls_out holds (an alert) may still be
 *                                  sent
 *
 * After every call that moves a stream, whatever it returned, send what tls_out has: handshakes and
 * reading produce ciphertext, too.
 *
 * Bounds: a stream owns at most TLS_IN_MAX of ciphertext that was not read yet, TLS_OUT_MAX and one
 * record of ciphertext that was not sent yet (and as much again of what the peer made it answer;
 * then it fails), and what OpenSSL needs (about 20 KiB, and 33 KiB while a record or a flight of
 * the handshake is under way). An idle one owns no buffers. Renegotiation and compression are off.
 *
 * Threads: a context may be shared by any number; a stream belongs to one at a time. */
#ifndef TARN_TLS_TLS_H
#define TARN_TLS_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define TLS_IN_MAX  (64u * 1024)
#define TLS_OUT_MAX (64u * 1024)
#define TLS_WHY_MAX 256u

enum tls_side { TLS_SERVER, TLS_CLIENT };
enum tls_auth { TLS_AUTH_NO, TLS_AUTH_OPTIONAL, TLS_AUTH_YES };
extern const char *const tls_auth_words[]; /* of it, as options say it; NULL behind the last */
/* NULL: yes. false: it is none of the words. */
bool tls_auth_parse(const char *word, enum tls_auth *auth_p);

/* Strings may be NULL or "": not given. Files are PEM. Borrowed for the call. */
struct tls_options {
    /* own certificate (with its chain) and key; a server must have both */
    const char *cert_file, *key_file;
    const char *key_pass; /* of an encrypted key */
    /* whom to believe; neither: a client believes what the system does */
    const char *ca_file, *ca_dir;
    enum tls_auth auth; /* server: is the peer asked for a certificate? needs ca_file or ca_dir */
    bool no_verify;     /* client: any certificate will do */
    /* client: the name or IP address that certificates must have; not given: the one connected to
     */
    const char *server_name;
    /* client: whatever name the certificate has; server_name counts before it */
    bool any_name;
    const char *protocols;    /* "TLSv1.2 TLSv1.3"; not given: both */
    const char *ciphers;      /* TLS 1.2, as `openssl ciphers` writes them */
    const char *ciphersuites; /* TLS 1.3 */
    bool prefer_server_ciphers;
    const char *dh_params_file; /* TLS 1.2 with DHE; not given: OpenSSL's */
    /* server: no session is taken up again, no tickets */
    bool no_session_cache;
    uint32_t session_cache_size, session_timeout_s; /* 0: OpenSSL's 20480, 300 */
};

struct tls_context;

/* NULL: why (of TLS_WHY_MAX bytes) says which file or word is wrong and how; never a passphrase.
 * Reads files: it blocks as a file system does. A changed certificate takes a new context;
 * connections keep theirs. */
struct tls_context *tls_context_create(enum tls_side side, const struct tls_options *o, char *why);
struct tls_context *tls_context_get(struct tls_context *ctx); /* one more owner; returns ctx */
void tls_context_put(struct tls_context **ctx_p); /* one owner less; NULL in *ctx_p does nothing */
/* When its own certificate ends to be valid; 0: it has none. */
time_t tls_context_expires(const struct tls_context *ctx);
/* Since when it is valid; 0: there is none. */
time_t tls_context_begins(const struct tls_context *ctx);
/* Of a client: the name or address that the certificate of that host must have. NULL: it is not
 * looked at. */
const char *tls_context_name(const struct tls_context *ctx, const char *host);

enum tls_state { TLS_HANDSHAKE, TLS_OPEN, TLS_CLOSED, TLS_FAILED };

struct tls_stream;

/* The stream keeps an owner's share of ctx. host (client): the name or IP address that is connected
 * to. A certificate must have it, as a DNS name or an IP address among its alternative names, or
 * what the context says instead; names are also sent to the peer (SNI). A server gives NULL. NULL:
 * no memory, or the name cannot be one. */
struct tls_stream *tls_stream_create(struct tls_context *ctx, const char *host);
/* Sends no goodbye; tls_close before it, if the peer should know. */
void tls_stream_destroy(struct tls_stream **s_p);

enum tls_state tls_state(const struct tls_stream *s);
/* One line, of a FAILED stream; else "". */
const char *tls_why(const struct tls_stream *s);
/* A FAILED stream whose peer's first byte cannot be TLS: it speaks plain text. */
bool tls_is_plain(const struct tls_stream *s);
/* The common name in the peer's certificate; false: it showed none, or there is no such name.
 * Truncates. */
bool tls_peer_name(const struct tls_stream *s, char *out, size_t size);
const char *tls_version(const struct tls_stream *s); /* "TLSv1.3" */
const char *tls_cipher(const struct tls_stream *s);  /* "TLS_AES_256_GCM_SHA384" */
size_t tls_memory(const struct tls_stream *s);       /* bytes owned, OpenSSL's estimated */

/* --- ciphertext in --- */

/* Where ciphertext from the socket goes: *at_p, so many bytes. 0: full, tls_read first (or no
 * memory: the stream is FAILED). Every call is followed by tls_in_added, with 0 where nothing
 * came. */
size_t tls_in_space(struct tls_stream *s, void **at_p);
void tls_in_added(struct tls_stream *s, size_t n);
/* The socket has ended. Without a goodbye before it the stream fails once all is read: it may have
 * been cut short. */
void tls_in_end(struct tls_stream *s);
/* The last tls_read filled all it was given, and there may be more: do not wait for the socket. */
bool tls_in_left(const struct tls_stream *s);

/* --- plaintext out, plaintext in --- */

/* Goes on with the handshake and decrypts: how many bytes of out were filled. 0: more ciphertext is
 * needed, or the stream is CLOSED or FAILED. */
size_t tls_read(struct tls_stream *s, void *out, size_t size);
/* Encrypts: how many bytes were taken, less than len where the handshake is not over or tls_out is
 * full. */
size_t tls_write(struct tls_stream *s, const void *data, size_t len);
/* How many bytes tls_write takes now, about; 0: none. */
size_t tls_write_space(const struct tls_stream *s);
/* Begins (a client must be the first to speak) or goes on with the handshake, as tls_read does. */
void tls_handshake(struct tls_stream *s);
/* Says goodbye; nothing can be written after it. */
void tls_close(struct tls_stream *s);

/* --- ciphertext out --- */

/* What is to be sent: *len_p bytes, valid until the stream is called again. */
const void *tls_out(const struct tls_stream *s, size_t *len_p);
void tls_out_sent(struct tls_stream *s, size_t n);

#endif
