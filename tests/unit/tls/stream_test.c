#include <sys/stat.h>
#include <unistd.h>

#include <openssl/ssl.h>

#include "../certs.h"
#include "../../tls_feed.h"
#include "../test.h"
#include "base/rng.h"
#include "tls/tls.h"

/* --- files --- */

static void clean(void) {
    static const char *const names[] = {"ca",   "host", "named",  "user",    "old", "other",
                                        "late", "self", "locked", "otherca", "junk"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char file[64];
        snprintf(file, sizeof(file), "%s.crt", names[i]);
        unlink(cert_path(file));
        snprintf(file, sizeof(file), "%s.key", names[i]);
        unlink(cert_path(file));
    }
    rmdir(cert_dir);
}

/* ca: signs host, user, old (expired), late (not yet valid), locked (its key is encrypted).
 * otherca: signs other. */
static void setup(void) {
    if (cert_dir[0] != '\0') return;
    cert_dir_make();
    atexit(clean);
    struct cert ca, otherca, c;
    cert_make(&ca, &(struct cert_plan){.name = "test CA", .ca = true}, NULL);
    cert_make(&otherca, &(struct cert_plan){.name = "another CA", .ca = true}, NULL);
    cert_write(&ca, cert_dir, "ca", NULL);
    cert_write(&otherca, cert_dir, "otherca", NULL);
    const struct {
        const char *file, *pass;
        const struct cert *by;
        struct cert_plan plan;
    } plans[] = {
        {"host", NULL, &ca, {.name = "host", .alt = "DNS:localhost,DNS:*.pool.test,IP:127.0.0.1"}},
        {"user", NULL, &ca, {.name = "user seven"}},
        {"named", NULL, &ca, {.name = "user.test", .alt = "DNS:127.0.0.1,IP:::1"}},
        {"old", NULL, &ca, {.name = "old", .from_s = -7200, .until_s = -3600}},
        {"late", NULL, &ca, {.name = "late", .from_s = 3600, .until_s = 7200}},
        {"locked", "open sesame", &ca, {.name = "locked"}},
        {"other", NULL, &otherca, {.name = "other"}},
        {"self", NULL, NULL, {.name = "self"}},
    };
    for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
        cert_make(&c, &plans[i].plan, plans[i].by);
        cert_write(&c, cert_dir, plans[i].file, plans[i].pass);
        cert_free(&c);
    }
    cert_free(&ca);
    cert_free(&otherca);
    FILE *f = fopen(cert_path("junk.crt"), "we");
    fputs("no certificate\n", f);
    fclose(f);
}

/* --- a pair of streams --- */

static struct tls_options server_options(const char *cert) {
    char crt[64], key[64];
    setup();
    snprintf(crt, sizeof(crt), "%s.crt", cert);
    snprintf(key, sizeof(key), "%s.key", cert);
    return (struct tls_options){.cert_file = cert_path(crt), .key_file = cert_path(key)};
}

static struct tls_options client_options(void) {
    setup();
    return (struct tls_options){.ca_file = cert_path("ca.crt")};
}

static struct tls_context *context(enum tls_side side, const struct tls_options *o) {
    char why[TLS_WHY_MAX];
    struct tls_context *ctx = tls_context_create(side, o, why);
    CHECK_STR(why, "");
    CHECK(ctx != NULL);
    return ctx;
}

struct pair {
    struct tls_stream *server, *client;
};

static struct pair pair_of(const struct tls_options *server, const struct tls_options *client,
                           const char *name) {
    struct tls_options o = *client;
    o.any_name = name == NULL;
    struct tls_context *a = context(TLS_SERVER, server), *b = context(TLS_CLIENT, &o);
    struct pair p = {tls_stream_create(a, NULL), tls_stream_create(b, name)};
    CHECK(p.server != NULL && p.client != NULL);
    tls_context_put(&a); /* the streams have their shares */
    tls_context_put(&b);
    return p;
}

static void pair_free(struct pair *p) {
    tls_stream_destroy(&p->server);
    tls_stream_destroy(&p->client);
}

/* Carries at most max bytes from one to the other; how many. */
static size_t carry(struct tls_stream *from, struct tls_stream *to, size_t max) {
    size_t len;
    const void *data = tls_out(from, &len);
    if (len > max) len = max;
    len = tls_feed(to, data, len);
    tls_out_sent(from, len);
    return len;
}

static void shake(struct pair *p, size_t max) {
    char nothing[1];
    tls_handshake(p->client);
    for (unsigned i = 0; i < 100000; i++) {
        size_t moved = carry(p->client, p->server, max);
        CHECK_EQ(tls_read(p->server, nothing, 1), 0u);
        moved += carry(p->server, p->client, max);
        CHECK_EQ(tls_read(p->client, nothing, 1), 0u);
        if (moved == 0) return;
    }
    CHECK(false);
}

static struct pair open_pair(void) {
    struct tls_options so = server_options("host"), co = client_options();
    struct pair p = pair_of(&so, &co, NULL);
    shake(&p, SIZE_MAX);
    CHECK_EQ(tls_state(p.server), TLS_OPEN);
    CHECK_EQ(tls_state(p.client), TLS_OPEN);
    return p;
}

/* --- handshakes --- */

TEST(a_handshake_and_a_word_each_way) {
    struct pair p = open_pair();
    char got[16] = "";
    CHECK_STR(tls_version(p.client), "TLSv1.3");
    CHECK_EQ(tls_write(p.client, "hello", 5), 5u);
    carry(p.client, p.server, SIZE_MAX);
    CHECK_EQ(tls_read(p.server, got, sizeof(got)), 5u);
    CHECK_BYTES(got, 5, "hello");
    CHECK_EQ(tls_write(p.server, "you", 3), 3u);
    carry(p.server, p.client, SIZE_MAX);
    CHECK_EQ(tls_read(p.client, got, sizeof(got)), 3u);
    CHECK_BYTES(got, 3, "you");
    CHECK(tls_peer_name(p.client, got, sizeof(got)));
    CHECK_STR(got, "host");
    CHECK(!tls_peer_name(p.server, got, sizeof(got)));
    pair_free(&p);
}

TEST(a_handshake_of_single_bytes) {
    struct tls_options so = server_options("host"), co = client_options();
    struct pair p = pair_of(&so, &co, NULL);
    shake(&p, 1);
    CHECK_EQ(tls_state(p.server), TLS_OPEN);
    CHECK_EQ(tls_state(p.client), TLS_OPEN);
    pair_free(&p);
}

TEST(protocols_are_what_was_asked_for) {
    struct tls_options so = server_options("host"), co = client_options();
    so.protocols = "TLSv1.2";
    struct pair p = pair_of(&so, &co, NULL);
    shake(&p, SIZE_MAX);
    CHECK_STR(tls_version(p.client), "TLSv1.2");
    pair_free(&p);
    co.protocols = "TLSv1.3";
    p = pair_of(&so, &co, NULL);
    shake(&p, SIZE_MAX);
    CHECK_EQ(tls_state(p.client), TLS_FAILED);
    CHECK_EQ(tls_state(p.server), TLS_FAILED);
    pair_free(&p);
    so.protocols = NULL;
    so.ciphersuites = "TLS_CHACHA20_POLY1305_SHA256";
    p = pair_of(&so, &co, NULL);
    shake(&p, SIZE_MAX);
    CHECK_STR(tls_cipher(p.client), "TLS_CHACHA20_POLY1305_SHA256");
    pair_free(&p);
}

/* The client is shown the certificate of `cert`, trusts ca, and asks for name. */
static void shake_with(const char *cert, const char *name, const char *client_why,
                       const char *server_why) {
    struct tls_options so = server_options(cert), co = client_options();
    struct pair p = pair_of(&so, &co, name);
    shake(&p, SIZE_MAX);
    CHECK_STR(tls_why(p.client), client_why);
    CHECK_STR(tls_why(p.server), server_why);
    CHECK_EQ(tls_state(p.client), client_why[0] == '\0' ? TLS_OPEN : TLS_FAILED);
    pair_free(&p);
}

TEST(certificates_of_servers) {
    shake_with("other", NULL,
               "the peer's certificate is not accepted: unable to get local issuer certificate",
               "the peer refused: unknown CA");
    shake_with("self", NULL, "the peer's certificate is not accepted: self-signed certificate",
               "the peer refused: unknown CA");
    shake_with("old", NULL, "the peer's certificate is not accepted: certificate has expired",
               "the peer refused: certificate expired");
    shake_with("late", NULL, "the peer's certificate is not accepted: certificate is not yet valid",
               "the peer refused: bad certificate");
    shake_with("host", "localhost", "", "");
    shake_with("host", "127.0.0.1", "", "");
    shake_with("host", "n1.pool.test", "", "");
    shake_with("host", "elsewhere.test",
               "the peer's certificate is not accepted: hostname mismatch, it is not for "
               "\"elsewhere.test\"",
               "the peer refused: bad certificate");
    shake_with(
        "host", "127.0.0.2",
        "the peer's certificate is not accepted: IP address mismatch, it is not for \"127.0.0.2\"",
        "the peer refused: bad certificate");
    shake_with("host", "::1%eth0",
               "the peer's certificate is not accepted: IP address mismatch, it is not for "
               "\"0:0:0:0:0:0:0:1\"",
               "the peer refused: bad certificate");
    shake_with("named", "::1", "", "");
    shake_with("named", "::1%eth0", "", "");
    /* An address is no name, and a subject is neither. */
    shake_with(
        "named", "127.0.0.1",
        "the peer's certificate is not accepted: IP address mismatch, it is not for \"127.0.0.1\"",
        "the peer refused: bad certificate");
    shake_with(
        "user", "user.test",
        "the peer's certificate is not accepted: hostname mismatch, it is not for \"user.test\"",
        "the peer refused: bad certificate");
}

TEST(whose_name_a_certificate_must_have) {
    setup();
    struct tls_options o = client_options();
    struct tls_context *by_host = context(TLS_CLIENT, &o);
    CHECK_STR(tls_context_name(by_host, "h"), "h");
    /* nothing to check it by is no reason not to check */
    CHECK(tls_stream_create(by_host, NULL) == NULL);
    CHECK(tls_stream_create(by_host, "") == NULL);
    o.any_name = true;
    struct tls_context *any = context(TLS_CLIENT, &o);
    CHECK(tls_context_name(any, "h") == NULL);
    o.server_name = "n";
    struct tls_context *named = context(TLS_CLIENT, &o);
    CHECK_STR(tls_context_name(named, "h"), "n");
    tls_context_put(&by_host);
    tls_context_put(&any);
    tls_context_put(&named);
}

TEST(who_verifies_nothing_takes_any_certificate) {
    struct tls_options so = server_options("self"), co = {.no_verify = true};
    struct pair p = pair_of(&so, &co, NULL);
    shake(&p, SIZE_MAX);
    CHECK_EQ(tls_state(p.client), TLS_OPEN);
    pair_free(&p);
}

/* A client with the certificate of `user` (NULL: none). */
static void client_certificate(enum tls_auth auth, const char *user, const char *server_why,
                               const char *client_why) {
    struct tls_options so = server_options("host"), co = client_options();
    struct tls_options uo = user != NULL ? server_options(user) : (struct tls_options){0};
    so.auth = auth;
    so.ca_file = cert_path("ca.crt");
    co.cert_file = uo.cert_file;
    co.key_file = uo.key_file;
    struct pair p = pair_of(&so, &co, NULL);
    char name[64];
    shake(&p, SIZE_MAX);
    CHECK_STR(tls_why(p.server), server_why);
    CHECK_STR(tls_why(p.client), client_why);
    bool named = tls_state(p.server) == TLS_OPEN && tls_peer_name(p.server, name, sizeof(name));
    CHECK_EQ(named, server_why[0] == '\0' && user != NULL && auth != TLS_AUTH_NO);
    if (named) CHECK_STR(name, "user seven");
    pair_free(&p);
}

TEST(certificates_of_clients) {
    client_certificate(TLS_AUTH_NO, NULL, "", "");
    client_certificate(TLS_AUTH_NO, "other", "", "");
    client_certificate(TLS_AUTH_OPTIONAL, NULL, "", "");
    client_certificate(TLS_AUTH_OPTIONAL, "user", "", "");
    client_certificate(TLS_AUTH_YES, "user", "", "");
    client_certificate(TLS_AUTH_YES, NULL, "the peer showed no certificate",
                       "the peer refused: it wants a certificate");
    client_certificate(
        TLS_AUTH_OPTIONAL, "other",
        "the peer's certificate is not accepted: unable to get local issuer certificate",
        "the peer refused: unknown CA");
    client_certificate(TLS_AUTH_YES, "old",
                       "the peer's certificate is not accepted: certificate has expired",
                       "the peer refused: certificate expired");
}

/* --- bytes --- */

/* len bytes one way, in pieces of random sizes on both sides and on the wire. */
static void transfer(struct tls_stream *from, struct tls_stream *to, size_t len, uint64_t seed) {
    struct rng r;
    rng_seed(&r, seed);
    char *data = malloc(len), *got = malloc(len);
    CHECK(data != NULL && got != NULL);
    for (size_t i = 0; i < len; i++) data[i] = (char)(i * 31 + i / 251);
    size_t written = 0, read = 0;
    for (unsigned turn = 0; read < len && turn < 10000000; turn++) {
        size_t n = 1 + rng_below(&r, 100000);
        if (n > len - written) n = len - written;
        written += tls_write(from, data + written, n);
        size_t unsent;
        tls_out(from, &unsent);
        CHECK(unsent < TLS_OUT_MAX + 17000);
        carry(from, to, 1 + rng_below(&r, 70000));
        n = 1 + rng_below(&r, 60000);
        size_t left = len - read;
        read += tls_read(to, got + read, n < left ? n : left);
    }
    CHECK_EQ(read, len);
    CHECK(memcmp(data, got, len) == 0);
    CHECK_EQ(tls_state(to), TLS_OPEN);
    free(data);
    free(got);
}

TEST(many_bytes_arrive_in_order) {
    struct pair p = open_pair();
    transfer(p.client, p.server, 3000000, 1);
    transfer(p.server, p.client, 3000000, 2);
    pair_free(&p);
}

TEST(buffers_are_bounded_and_given_back) {
    struct pair p = open_pair();
    char data[8192];
    memset(data, 'x', sizeof(data));
    size_t idle = tls_memory(p.client), taken = 0, unsent;
    for (unsigned i = 0; i < 1000; i++) taken += tls_write(p.client, data, sizeof(data));
    CHECK(taken >= TLS_OUT_MAX && taken < TLS_OUT_MAX + 17000);
    CHECK_EQ(tls_write_space(p.client), 0u);
    tls_out(p.client, &unsent);
    CHECK(unsent < TLS_OUT_MAX + 17000);
    /* The server does not read: it takes so much and no more. */
    size_t carried = 0, n;
    while ((n = carry(p.client, p.server, SIZE_MAX)) > 0) carried += n;
    CHECK(carried <= TLS_IN_MAX);
    void *at;
    CHECK_EQ(tls_in_space(p.server, &at), 0u);
    tls_in_added(p.server, 0);
    size_t read = 0;
    for (unsigned i = 0; i < 1000 && read < taken; i++) {
        read += tls_read(p.server, data, sizeof(data));
        CHECK(read == taken || tls_in_left(p.server) || carry(p.client, p.server, SIZE_MAX) > 0);
    }
    CHECK_EQ(read, taken);
    CHECK(!tls_in_left(p.server));
    CHECK_EQ(tls_memory(p.client), idle);
    CHECK_EQ(tls_memory(p.server), idle);
    pair_free(&p);
}

TEST(a_goodbye_ends_a_stream_and_silence_is_a_failure) {
    struct pair p = open_pair();
    char got[8];
    CHECK_EQ(tls_write(p.client, "last", 4), 4u);
    tls_close(p.client);
    CHECK_EQ(tls_write(p.client, "more", 4), 0u);
    carry(p.client, p.server, SIZE_MAX);
    tls_in_end(p.server);
    CHECK_EQ(tls_read(p.server, got, 2), 2u);
    CHECK_EQ(tls_read(p.server, got, 8), 2u);
    CHECK_EQ(tls_read(p.server, got, 8), 0u);
    CHECK_EQ(tls_state(p.server), TLS_CLOSED);
    CHECK_EQ(tls_write(p.server, "still", 5), 5u); /* half closed */
    carry(p.server, p.client, SIZE_MAX);
    CHECK_EQ(tls_read(p.client, got, 8), 5u);
    pair_free(&p);

    p = open_pair();
    CHECK_EQ(tls_write(p.client, "last", 4), 4u);
    carry(p.client, p.server, 10); /* cut within a record */
    tls_in_end(p.server);
    CHECK_EQ(tls_read(p.server, got, 8), 0u);
    CHECK_EQ(tls_state(p.server), TLS_FAILED);
    CHECK_STR(tls_why(p.server),
              "the connection ended without a goodbye: it may have been cut short");
    pair_free(&p);
}

TEST(a_changed_byte_ends_a_stream) {
    struct pair p = open_pair();
    char got[8], record[128];
    size_t len;
    CHECK_EQ(tls_write(p.client, "money", 5), 5u);
    const void *out = tls_out(p.client, &len);
    CHECK(len < sizeof(record));
    memcpy(record, out, len);
    record[len - 1] ^= 1;
    CHECK_EQ(tls_feed(p.server, record, len), len);
    CHECK_EQ(tls_read(p.server, got, sizeof(got)), 0u);
    CHECK_EQ(tls_state(p.server), TLS_FAILED);
    CHECK_EQ(tls_feed(p.server, record, len), 0u);
    CHECK_EQ(tls_write(p.server, "no", 2), 0u);
    pair_free(&p);
}

/* A client of OpenSSL's own: what tls.h does not do. */
static SSL *raw_client(struct tls_stream *server, BIO **in_p, BIO **out_p) {
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(ctx);
    SSL_CTX_free(ctx);
    *in_p = BIO_new(BIO_s_mem());
    *out_p = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl, *in_p, *out_p);
    SSL_set_connect_state(ssl);
    for (unsigned i = 0; i < 5 && SSL_do_handshake(ssl) != 1; i++) {
        char *data, nothing[1];
        size_t len = (size_t)BIO_get_mem_data(*out_p, &data);
        CHECK_EQ(tls_feed(server, data, len), len);
        (void)BIO_reset(*out_p);
        tls_read(server, nothing, 1);
        const void *out = tls_out(server, &len);
        BIO_write(*in_p, out, (int)len);
        tls_out_sent(server, len);
    }
    CHECK(SSL_is_init_finished(ssl));
    return ssl;
}

TEST(new_keys_without_end_are_too_much) {
    struct tls_options so = server_options("host");
    struct tls_context *ctx = context(TLS_SERVER, &so);
    struct tls_stream *server = tls_stream_create(ctx, NULL);
    BIO *in, *out;
    SSL *ssl = raw_client(server, &in, &out);
    char *data, nothing[16];
    size_t unsent = 0;
    for (unsigned i = 0; i < 100000 && tls_state(server) < TLS_CLOSED; i++) {
        CHECK(SSL_key_update(ssl, SSL_KEY_UPDATE_REQUESTED) == 1 && SSL_do_handshake(ssl) == 1);
        size_t len = (size_t)BIO_get_mem_data(out, &data);
        tls_feed(server, data, len);
        (void)BIO_reset(out);
        CHECK_EQ(tls_read(server, nothing, sizeof(nothing)), 0u);
        tls_out(server, &unsent); /* and nobody takes it */
        CHECK(unsent < 2 * TLS_OUT_MAX + 1024);
    }
    CHECK_STR(tls_why(server), "the peer makes this side answer, and does not read the answers");
    SSL_free(ssl);
    tls_stream_destroy(&server);
    tls_context_put(&ctx);
}

TEST(plain_text_is_seen_at_its_first_byte) {
    struct tls_options so = server_options("host"), co = client_options();
    struct pair p = pair_of(&so, &co, NULL);
    tls_feed(p.server, "*1\r\n$4\r\nPING\r\n", 14);
    CHECK(tls_is_plain(p.server));
    CHECK_STR(tls_why(p.server), "the peer does not speak TLS");
    tls_handshake(p.client);
    tls_feed(p.client, "-ERR what?\r\n", 12);
    CHECK(tls_is_plain(p.client));
    pair_free(&p);
}

/* --- contexts --- */

static void refused(enum tls_side side, const struct tls_options *o, const char *part) {
    char why[TLS_WHY_MAX] = "";
    struct tls_context *ctx = tls_context_create(side, o, why);
    if (strstr(why, part) == NULL) CHECK_STR(why, part);
    CHECK(strstr(why, "sesame") == NULL);
    CHECK(ctx == NULL);
}

TEST(contexts_that_cannot_be) {
    struct tls_options o = {0}, good = server_options("host");
    refused(TLS_SERVER, &o, "no certificate file is given");
    o = good;
    o.key_file = NULL;
    refused(TLS_SERVER, &o, "there is no key file for it");
    o = good;
    o.cert_file = cert_path("nowhere.crt");
    refused(TLS_SERVER, &o, "nowhere.crt: No such file or directory");
    o.cert_file = cert_path("junk.crt");
    refused(TLS_SERVER, &o, "junk.crt: nothing of that kind is in it (PEM)");
    o = good;
    o.key_file = cert_path("user.key");
    refused(TLS_SERVER, &o, "user.key: it is not the key of the certificate");
    o = server_options("locked");
    refused(TLS_SERVER, &o, "locked.key: it is encrypted, and no passphrase is given");
    o.key_pass = "wrong sesame";
    refused(TLS_SERVER, &o, "locked.key: ");
    o = good;
    o.auth = TLS_AUTH_OPTIONAL;
    refused(TLS_SERVER, &o, "no CA file or directory is given");
    o.ca_file = cert_path("junk.crt");
    refused(TLS_SERVER, &o, "CA file");
    o = good;
    o.protocols = "TLSv1.1";
    refused(TLS_SERVER, &o, "protocol TLSv1.1: it is broken");
    o.protocols = "SSL";
    refused(TLS_SERVER, &o, "protocol SSL is not known");
    o.protocols = " ";
    refused(TLS_SERVER, &o, "none is given");
    o = good;
    o.ciphers = "NOTHING";
    refused(TLS_SERVER, &o, "ciphers: \"NOTHING\"");
    o = good;
    o.ciphersuites = "NOTHING";
    refused(TLS_SERVER, &o, "ciphersuites: \"NOTHING\"");
    o = good;
    o.dh_params_file = cert_path("host.crt");
    refused(TLS_CLIENT, &o, "DH parameters file");
}

TEST(a_key_with_a_passphrase) {
    struct tls_options so = server_options("locked"), co = client_options();
    so.key_pass = "open sesame";
    struct pair p = pair_of(&so, &co, NULL);
    shake(&p, SIZE_MAX);
    CHECK_EQ(tls_state(p.client), TLS_OPEN);
    pair_free(&p);
}

TEST(a_context_knows_when_its_certificate_ends) {
    struct tls_options so = server_options("old"), co = client_options();
    struct tls_context *a = context(TLS_SERVER, &so), *b = context(TLS_CLIENT, &co);
    time_t now = time(NULL), until = tls_context_expires(a);
    CHECK(until > now - 3700 && until < now - 3500);
    CHECK_EQ(tls_context_expires(b), 0);
    tls_context_put(&a);
    tls_context_put(&b);
    tls_context_put(&b);
}

TEST_MAIN()
