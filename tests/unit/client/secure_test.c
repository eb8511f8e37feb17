/* The control connection over TLS, against a server in a thread that says what it is told to. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../certs.h"
#include "../test.h"
#include "base/assert.h"
#include "base/log.h"
#include "client/answer.h"
#include "client/arena.h"
#include "client/client.h"
#include "client/ctl.h"
#include "client/error.h"
#include "client/master.h"
#include "client/secure.h"
#include "tls/tls.h"

#define LARGE (8u << 20)

/* --- certificates --- */

static void clean(void) {
    static const char *const names[] = {"ca.crt",    "ca.key",    "host.crt",   "host.key",
                                        "other.crt", "other.key", "client.crt", "client.key"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) unlink(cert_path(names[i]));
    rmdir(cert_dir);
}

/* ca signs host, and client that does not serve; other signs nobody. */
static void setup(void) {
    if (cert_dir[0] != '\0') return;
    cert_dir_make();
    atexit(clean);
    log_set_level(LOG_LEVEL_NOTHING);
    struct cert ca, host, other, client;
    cert_make(&ca, &(struct cert_plan){.name = "test CA", .ca = true}, NULL);
    cert_make(&other, &(struct cert_plan){.name = "another CA", .ca = true}, NULL);
    cert_make(&host, &(struct cert_plan){.name = "host", .alt = "DNS:pool.test,IP:127.0.0.1"}, &ca);
    cert_make(&client, &(struct cert_plan){.name = "127.0.0.1", .alt = "DNS:client.test"}, &ca);
    cert_write(&ca, cert_dir, "ca", NULL);
    cert_write(&client, cert_dir, "client", NULL);
    cert_free(&client);
    cert_write(&host, cert_dir, "host", NULL);
    cert_write(&other, cert_dir, "other", NULL);
    cert_free(&ca);
    cert_free(&host);
    cert_free(&other);
}

/* --- the server --- */

enum behaviour {
    ANSWERS, /* reads as many bytes as it shall, then writes as many, all in one string */
    WRITES_FIRST,
    IS_SILENT,
    IS_PLAIN,
    SAYS_GOODBYE, /* behind the handshake, and stays connected */
    IS_CUT,       /* behind the handshake */
};

struct peer {
    enum behaviour does;
    enum tls_auth auth;
    size_t reads, writes;
    const char *cert; /* that it shows; NULL: host */
    const char *says; /* instead of that string; NULL: nothing */
    int listener;
    char port[8];
    pthread_t thread;
    size_t got; /* bytes of plaintext */
};

static bool pump_out(struct tls_stream *s, int fd) {
    size_t len;
    const void *data = tls_out(s, &len);
    while (len > 0) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n <= 0) return false;
        tls_out_sent(s, (size_t)n);
        data = tls_out(s, &len);
    }
    return true;
}

/* false: the end. */
static bool pump_in(struct peer *p, struct tls_stream *s, int fd) {
    static char bytes[1u << 16];
    void *at;
    size_t space = tls_in_space(s, &at);
    ssize_t n = space > 0 ? recv(fd, at, space, 0) : 0;
    tls_in_added(s, n > 0 ? (size_t)n : 0);
    do {
        p->got += tls_read(s, bytes, sizeof(bytes));
    } while (tls_in_left(s));
    return pump_out(s, fd) && n > 0 && tls_state(s) < TLS_CLOSED;
}

static void write_string(const struct peer *p, struct tls_stream *s, int fd) {
    size_t len = p->writes;
    if (p->says != NULL) {
        tls_write(s, p->says, strlen(p->says));
        pump_out(s, fd);
        return;
    }
    char head[32], *text = xcalloc(len + 2, 1);
    int n = snprintf(head, sizeof(head), "$%zu\r\n", len);
    tls_write(s, head, (size_t)n);
    memset(text, 'x', len);
    memcpy(text + len, "\r\n", 2);
    for (size_t at = 0; at < len + 2;) {
        at += tls_write(s, text + at, len + 2 - at);
        if (!pump_out(s, fd)) break;
    }
    free(text);
}

static void serve(struct peer *p, struct tls_stream *s, int fd) {
    bool goes_on = true;
    while (goes_on && tls_state(s) == TLS_HANDSHAKE) goes_on = pump_in(p, s, fd);
    if (!goes_on || p->does == IS_CUT) return;
    if (p->does == SAYS_GOODBYE) {
        tls_close(s);
        pump_out(s, fd);
        while (recv(fd, &(char){0}, 1, 0) > 0) continue;
        return;
    }
    if (p->does == WRITES_FIRST) write_string(p, s, fd);
    while (goes_on && p->got < p->reads) goes_on = pump_in(p, s, fd);
    if (goes_on && p->does == ANSWERS) write_string(p, s, fd);
    while (goes_on) goes_on = pump_in(p, s, fd);
}

static void *peer_main(void *arg) {
    struct peer *p = arg;
    int fd = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
    if (p->does == IS_PLAIN) {
        static const char text[] = "-ERR unknown command\r\n";
        (void)!recv(fd, &(char){0}, 1, 0);
        send(fd, text, sizeof(text) - 1, MSG_NOSIGNAL);
    }
    if (p->does == IS_PLAIN || p->does == IS_SILENT) {
        while (recv(fd, &(char){0}, 1, 0) > 0) continue;
    } else {
        char why[TLS_WHY_MAX], cert[300], key[300], ca[300];
        const char *name = p->cert != NULL ? p->cert : "host";
        snprintf(cert, sizeof(cert), "%s/%s.crt", cert_dir, name);
        snprintf(key, sizeof(key), "%s/%s.key", cert_dir, name);
        snprintf(ca, sizeof(ca), "%s/ca.crt", cert_dir);
        struct tls_options o = {.cert_file = cert, .key_file = key, .ca_file = ca, .auth = p->auth};
        struct tls_context *context = tls_context_create(TLS_SERVER, &o, why);
        struct tls_stream *s = tls_stream_create(context, NULL);
        tls_context_put(&context);
        serve(p, s, fd);
        tls_stream_destroy(&s);
    }
    shutdown(fd, SHUT_RDWR);
    close(fd);
    return NULL;
}

static void peer_start(struct peer *p) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    setup();
    p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(p->listener, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(p->listener, 1) == 0);
    CHECK(getsockname(p->listener, (struct sockaddr *)&a, &len) == 0);
    snprintf(p->port, sizeof(p->port), "%u", ntohs(a.sin_port));
    CHECK(pthread_create(&p->thread, NULL, peer_main, p) == 0);
}

static void peer_end(struct peer *p) {
    pthread_join(p->thread, NULL);
    close(p->listener);
}

/* --- the client --- */

static tarn_status dial(struct ctl *c, const struct peer *p, const tarn_options *o, uint64_t ms) {
    struct secure s;
    tarn_status status = secure_open(o, &s);
    if (status != TARN_OK) return status;
    ctl_init(c);
    status = ctl_open(c, &s, "127.0.0.1", p->port, now_ms() + ms);
    secure_close(&s); /* the connection keeps what it needs */
    return status;
}

static tarn_options trusting(const char *ca) {
    setup();
    tarn_options o;
    tarn_options_init(&o);
    o.tls_ca_file = ca != NULL ? cert_path(ca) : NULL;
    return o;
}

static void ask(struct peer *p, size_t len) {
    tarn_options o = trusting("ca.crt");
    struct ctl c;
    struct arena arena = {0};
    struct answer *a;
    char *text = xcalloc(len, 1);
    const char *argv[] = {"ECHO", text};
    size_t lens[] = {4, len};
    peer_start(p);
    CHECK_EQ(dial(&c, p, &o, 5000), TARN_OK);
    CHECK(!ctl_wants_to_send(&c));
    CHECK_EQ(ctl_send(&c, 2, argv, lens, false), TARN_OK);
    CHECK_EQ(ctl_receive(&c, &arena, &a, now_ms() + 60000), TARN_OK);
    CHECK_EQ(a->type, ANSWER_STRING);
    CHECK_EQ(a->len, p->writes);
    CHECK(a->str[0] == 'x' && a->str[p->writes - 1] == 'x');
    while (ctl_wants_to_send(&c)) {
        CHECK_EQ(ctl_try_receive(&c, &arena, &a), TARN_EAGAIN);
        poll(&(struct pollfd){.fd = c.fd, .events = POLLOUT}, 1, 1000);
    }
    ctl_close(&c);
    arena_free(&arena);
    peer_end(p);
    CHECK(p->got > len);
    free(text);
}

TEST(small_and_large) {
    struct peer small = {.reads = 20, .writes = 5}, large = {.reads = LARGE, .writes = LARGE + 7};
    ask(&small, 10);
    ask(&large, LARGE);
}

/* A server that takes nothing before we have read what it writes. */
TEST(both_write_much_at_once) {
    struct peer p = {.does = WRITES_FIRST, .reads = LARGE, .writes = LARGE};
    ask(&p, LARGE);
}

static void refused(struct peer *p, const tarn_options *o, uint64_t ms, tarn_status status,
                    const char *text) {
    struct ctl c;
    peer_start(p);
    CHECK_EQ(dial(&c, p, o, ms), status);
    CHECK(c.fd < 0 && c.secure.tls == NULL);
    if (strstr(tarn_last_error(), text) == NULL) printf("%s\n", tarn_last_error());
    CHECK(strstr(tarn_last_error(), text) != NULL);
    CHECK(strstr(tarn_last_error(), p->port) != NULL);
    peer_end(p);
}

TEST(who_is_not_trusted) {
    struct peer p = {.does = ANSWERS};
    tarn_options o = trusting("other.crt");
    refused(&p, &o, 5000, TARN_EPERM, "certificate is not accepted");
    o = trusting(NULL); /* the system's authorities know nothing of ours */
    refused(&p, &o, 5000, TARN_EPERM, "certificate is not accepted");
    o = trusting("ca.crt");
    o.tls_server_name = "elsewhere.test";
    refused(&p, &o, 5000, TARN_EPERM,
            "the peer's certificate is not accepted: hostname mismatch, it is not for "
            "\"elsewhere.test\"");
}

TEST(names) {
    static const char *const good[] = {NULL, "pool.test", "127.0.0.1"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct peer p = {.does = ANSWERS, .reads = 1 << 30};
        tarn_options o = trusting("ca.crt");
        struct ctl c;
        o.tls_server_name = good[i];
        peer_start(&p);
        CHECK_EQ(dial(&c, &p, &o, 5000), TARN_OK);
        ctl_close(&c);
        peer_end(&p);
    }
    struct peer p = {.does = ANSWERS, .reads = 1 << 30, .cert = "client"};
    tarn_options o = trusting("ca.crt");
    struct ctl c;
    refused(&p, &o, 5000, TARN_EPERM, "IP address mismatch, it is not for \"127.0.0.1\"");
    o.tls_verify_name = 0;
    peer_start(&p);
    CHECK_EQ(dial(&c, &p, &o, 5000), TARN_OK);
    ctl_close(&c);
    peer_end(&p);
}

TEST(anybody_will_do) {
    struct peer p = {.does = ANSWERS, .reads = 1 << 30};
    tarn_options o = trusting("other.crt");
    struct ctl c;
    o.tls_verify = 0;
    peer_start(&p);
    CHECK_EQ(dial(&c, &p, &o, 5000), TARN_OK);
    ctl_close(&c);
    peer_end(&p);
}

TEST(who_speaks_no_tls) {
    struct peer plain = {.does = IS_PLAIN}, silent = {.does = IS_SILENT};
    tarn_options o = trusting("ca.crt");
    refused(&plain, &o, 5000, TARN_EPROTO, "does not speak TLS");
    refused(&silent, &o, 50, TARN_ETIMEOUT, "not over in time");
}

/* With TLS 1.3 our side of the handshake is over before the server has looked at our
 * certificate. */
TEST(a_certificate_is_wanted) {
    struct peer p = {.does = ANSWERS, .auth = TLS_AUTH_YES, .reads = 1, .writes = 3};
    tarn_options o = trusting("ca.crt");
    struct ctl c;
    struct arena arena = {0};
    struct answer *a;
    const char *argv[] = {"PING"};
    for (int shown = 0; shown < 2; shown++) {
        o.tls_cert_file = shown ? cert_path("host.crt") : NULL;
        o.tls_key_file = shown ? cert_path("host.key") : NULL;
        p.got = 0;
        peer_start(&p);
        tarn_status status = dial(&c, &p, &o, 5000);
        if (status == TARN_OK) status = ctl_send(&c, 1, argv, NULL, false);
        if (status == TARN_OK) status = ctl_receive(&c, &arena, &a, now_ms() + 60000);
        CHECK_EQ(status, shown ? TARN_OK : TARN_EPERM);
        CHECK(shown || strstr(tarn_last_error(), "it wants a certificate") != NULL);
        ctl_close(&c);
        peer_end(&p);
    }
    arena_free(&arena);
}

/* tarns+sentinel: those who are asked where the master is speak TLS, too. */
TEST(a_sentinel) {
    struct peer p = {
        .does = ANSWERS, .reads = 20, .says = "*2\r\n$8\r\n10.1.2.3\r\n$4\r\n7777\r\n"};
    tarn_options o;
    struct whereabouts m;
    char url[600];
    struct address at;
    peer_start(&p);
    snprintf(url, sizeof(url), "tarns+sentinel://127.0.0.1:%s/pool?tls_ca_file=%s", p.port,
             cert_path("ca.crt"));
    url_options_copy(&o, NULL);
    CHECK_EQ(url_parse(url, &o, &m), TARN_OK);
    CHECK_EQ(secure_open(&o, &m.secure), TARN_OK);
    CHECK_EQ(master_find(&m, now_ms() + 60000, &at), TARN_OK);
    CHECK_STR(at.host, "10.1.2.3");
    CHECK_STR(at.port, "7777");
    master_free(&m);
    url_options_free(&o);
    peer_end(&p);
}

TEST(ends) {
    static const enum behaviour ends[] = {SAYS_GOODBYE, IS_CUT};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        struct peer p = {.does = ends[i]};
        tarn_options o = trusting("ca.crt");
        struct ctl c;
        struct arena arena = {0};
        struct answer *a;
        const char *argv[] = {"PING"};
        peer_start(&p);
        CHECK_EQ(dial(&c, &p, &o, 5000), TARN_OK);
        c.received = 1; /* not the first thing that it hears */
        CHECK_EQ(ctl_send(&c, 1, argv, NULL, false), TARN_OK);
        CHECK_EQ(ctl_receive(&c, &arena, &a, now_ms() + 60000), TARN_ECLOSED);
        CHECK(c.fd < 0);
        arena_free(&arena);
        peer_end(&p);
    }
}

TEST(files_that_are_no_good) {
    setup();
    static const char *const bad[][2] = {
        {"tls_ca_file=/no/such/file", "/no/such/file"},
        {"tls_ca_file=%s/ca.crt&tls_cert_file=%s/host.crt&tls_key_file=%s/ca.key", "not the key"},
        {"tls_cert_file=/no/cert&tls_key_file=%s/host.key", "/no/cert"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        char url[1500] = "tarns://127.0.0.1:1/?";
        size_t len = strlen(url);
        for (const char *at = bad[i][0]; *at != '\0'; at++) {
            bool here = at[0] == '%' && at[1] == 's';
            len += (size_t)snprintf(url + len, sizeof(url) - len, here ? "%s" : "%.1s",
                                    here ? cert_dir : at);
            at += here;
        }
        tarn_client *client = NULL;
        CHECK_EQ(tarn_connect(url, NULL, &client), TARN_EINVAL);
        if (strstr(tarn_last_error(), bad[i][1]) == NULL) printf("%s\n", tarn_last_error());
        CHECK(client == NULL && strstr(tarn_last_error(), bad[i][1]) != NULL);
    }
}

TEST_MAIN()
