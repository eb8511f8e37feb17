/* The suite over tcp inside TLS, and what there is to say of that alone. */
#define SUITE     "tcp"
#define WORLD_TLS 1
#include "raw.h"
#include "suite.h"

#define PATIENT 20000u
#define AT_EASE 120000u /* megabytes through TLS and somebody in between, under a sanitizer */

/* --- who is not let in --- */

/* An engine of its own that is told of the host at that port. */
static struct engine *stranger(const struct transport_tls *tls, bool told_tls, uint16_t port,
                               uint64_t patience_ms) {
    struct engine_config config;
    engine_config_init(&config);
    config.transport = "tcp";
    config.connect_timeout_ms = patience_ms;
    config.tls = tls;
    struct engine *e;
    CHECK_EQ(engine_create(&config, &e), TARN_OK);
    struct engine_segment s = {.id = WORLD_SEGMENT, .epoch = w.segment_epoch, .size = w.size};
    char uri[64];
    snprintf(uri, sizeof(uri), "%s://127.0.0.1:%u", told_tls ? "tcps" : "tcp", port);
    CHECK(engine_segment_way(&s, uri) != NULL);
    CHECK_EQ(engine_segment_set(e, &s), TARN_OK);
    world_tls.failures = 0;
    return e;
}

static void turned_away(struct engine *e, tarn_status status) {
    uint8_t data[4096] = {1};
    struct object o;
    object_init(&o, 0, sizeof(data), 1, 1);
    uint64_t start = clock_boot_ms();
    CHECK_EQ(move(e, &o, true, data, NULL), status);
    CHECK(clock_boot_ms() - start < 15000); /* nobody has waited for a deadline */
    engine_destroy(&e);
    CHECK_EQ(((const uint8_t *)host_segment_base(w.host, WORLD_SEGMENT))[0], 0);
}

TEST(who_speaks_plain_text_is_told_so) {
    begin(1u << 20, false);
    int fd = dial();
    struct tcp_header reply = hello(fd, TCP_VERSION, TCP_VERSION);
    CHECK_EQ(reply.status, TCP_WANTS_TLS);
    CHECK(reply.meta_length > sizeof(struct tcp_hello));
    CHECK(is_closed(fd));
    close(fd);
    turned_away(stranger(NULL, false, w.state->port, PATIENT), TARN_EPROTO);
    /* knows no way there */
    turned_away(stranger(NULL, true, w.state->port, PATIENT), TARN_ECLOSED);
    CHECK_EQ(world_tls.failures, 0);
    end();
}

/* The system's authorities know nothing of those of a test. */
static struct tls_context *trusts_others(void *arg) {
    return tls_context_get(arg);
}

TEST(whose_certificate_is_not_trusted) {
    begin(1u << 20, false);
    struct transport_tls wrong = world_tls_of_engine;
    char why[TLS_WHY_MAX];
    struct tls_context *others =
        tls_context_create(TLS_CLIENT, &(struct tls_options){.ca_file = NULL}, why);
    CHECK(others != NULL);
    wrong = (struct transport_tls){.arg = others, .context = trusts_others};
    turned_away(stranger(&wrong, true, w.state->port, PATIENT), TARN_EPROTO);
    CHECK_EQ(world_tls.failures, 0); /* that one does not ask to be told */
    tls_context_put(&others);
    wrong = world_tls_of_engine;
    wrong.context = world_tls_misled;
    turned_away(stranger(&wrong, true, w.state->port, PATIENT), TARN_EPROTO);
    CHECK(world_tls.failures > 0 &&
          strstr(world_tls.why, "it is not for \"elsewhere.test\"") != NULL);
    struct engine *e = stranger(&world_tls_of_engine, true, w.state->port, PATIENT);
    uint8_t data[4096] = {1};
    struct object o;
    object_init(&o, 0, sizeof(data), 1, 1);
    CHECK_EQ(move(e, &o, true, data, NULL), TARN_OK);
    engine_destroy(&e);
    end();
}

/* --- what the log has of it --- */

static unsigned lines;
static void count_line(void *arg, enum log_level level, const char *message) {
    (void)arg, (void)level;
    lines += strstr(message, "there are no settings for TLS") != NULL;
}

TEST(settings_that_are_missing_are_told_of_once_a_target) {
    const struct transport_ops *ops;
    struct transport_domain *d;
    struct transport_domain_config config = {.tls = NULL};
    char uri[64];
    CHECK_EQ(transport_open("tcp", &config, &ops, &d), TARN_OK);
    lines = 0;
    enum log_level level = log_get_level();
    log_set_level(LOG_LEVEL_WARNING);
    log_set_sink(count_line, NULL);
    for (unsigned i = 0; i < 40; i++) {
        struct transport_endpoint *e = NULL;
        snprintf(uri, sizeof(uri), "tcps://127.0.0.1:%u", 1 + i % 4);
        CHECK_EQ(ops->connect(d, uri, 0, &e), TARN_ENOTSUP);
    }
    CHECK_EQ(lines, 4);
    /* More of them than are remembered: nothing is lost, and nothing grows. */
    for (unsigned i = 0; i < 100; i++) {
        struct transport_endpoint *e = NULL;
        snprintf(uri, sizeof(uri), "tcps://127.0.0.1:%u", 100 + i);
        CHECK_EQ(ops->connect(d, uri, 0, &e), TARN_ENOTSUP);
    }
    CHECK_EQ(lines, 104);
    log_set_sink(NULL, NULL);
    log_set_level(level);
    transport_close(ops, &d);
}

/* --- who says nothing --- */

/* A socket that lets connect, and may say something. */
static int mute(uint16_t *port_p) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 16) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    *port_p = ntohs(a.sin_port);
    return fd;
}

TEST(a_handshake_meets_its_deadline) {
    begin(1u << 20, false);
    uint16_t port;
    int fd = mute(&port);
    turned_away(stranger(WORLD_TLS_ENGINE, true, port, 200), TARN_ETIMEOUT);
    CHECK(world_tls.failures > 0);
    close(fd);
    end();
}

/* A client that goes on with its handshake byte by byte has no more time than one that is
 * silent. */
TEST(a_handshake_in_drops) {
    static const uint8_t start[] = {22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}; /* of a ClientHello */
    begin_idle_ms = 500;
    begin(1u << 20, false);
    begin_idle_ms = 0;
    int fd = dial();
    uint64_t from = clock_boot_ms();
    bool open = true;
    for (size_t i = 0; open; i++) {
        open = send(fd, i < sizeof(start) ? (const void *)&start[i] : "", 1, MSG_NOSIGNAL) == 1;
        usleep(20000);
    }
    CHECK(clock_boot_ms() - from < 30000); /* 500 ms, and however long this machine takes */
    CHECK(is_closed(fd));
    CHECK_EQ(world_stats(&w).timeouts, 1);
    close(fd);
    end();
}

/* --- who breaks off --- */

/* Somebody in the middle, who looks for bytes of the value and may change one on its way. */
struct relay {
    int listener;
    uint16_t to;
    unsigned spoil; /* this connection, from 1 on */
    unsigned spoiled;
    size_t passed; /* bytes from its client */
    bool seen;     /* a run of the value's bytes in what went by */
    uint8_t needle[32];
    pthread_t thread;
    int connections[64];
    unsigned n;
};

static void forward(struct relay *r, int from, int to, bool spoil) {
    uint8_t bytes[65536];
    ssize_t n = recv(from, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        shutdown(to, SHUT_WR);
        return;
    }
    r->seen |= memmem(bytes, (size_t)n, r->needle, sizeof(r->needle)) != NULL;
    if (spoil && (r->passed += (size_t)n) > 100000) { /* behind the handshake */
        bytes[n / 2] ^= 1;
        r->spoiled++;
    }
    for (ssize_t at = 0; at < n;) {
        ssize_t sent = send(to, bytes + at, (size_t)(n - at), MSG_NOSIGNAL);
        if (sent <= 0) return;
        at += sent;
    }
}

static void *relay_main(void *arg) {
    struct relay *r = arg;
    for (;;) {
        struct pollfd p[65] = {{.fd = r->listener, .events = POLLIN}};
        for (unsigned i = 0; i < r->n; i++)
            p[i + 1] = (struct pollfd){.fd = r->connections[i], .events = POLLIN};
        poll(p, r->n + 1, -1);
        for (unsigned i = 0; i < r->n; i++) {
            if (p[i + 1].revents == 0) continue;
            bool spoil = r->spoil != 0 && i == 2 * (r->spoil - 1) && r->spoiled == 0;
            forward(r, r->connections[i], r->connections[i ^ 1], spoil);
            if ((p[i + 1].revents & POLLHUP) != 0) r->connections[i] = -1 - r->connections[i];
        }
        if (p[0].revents == 0) continue;
        int fd = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) break;
        struct sockaddr_in a = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                .sin_port = htons(r->to)};
        r->connections[r->n++] = fd;
        r->connections[r->n++] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(r->connections[r->n - 1], (struct sockaddr *)&a, sizeof(a)) != 0 || r->n == 64)
            break;
    }
    for (unsigned i = 0; i < r->n; i++)
        close(r->connections[i] < 0 ? -1 - r->connections[i] : r->connections[i]);
    return NULL;
}

static void relayed(unsigned spoil) {
    begin(16u << 20, false);
    const uint64_t size = 8u << 20;
    uint8_t *out = malloc(size), *in = malloc(size);
    struct relay r = {.to = w.state->port, .spoil = spoil};
    struct object o;
    uint16_t port;
    fill(out, size, 9);
    memcpy(r.needle, out + size / 2, sizeof(r.needle));
    r.listener = mute(&port);
    CHECK(pthread_create(&r.thread, NULL, relay_main, &r) == 0);
    struct engine *e = stranger(WORLD_TLS_ENGINE, true, port, AT_EASE);
    object_init(&o, 0, size, 1, 1);
    tarn_status written = move(e, &o, true, out, NULL);
    CHECK(written == TARN_OK || spoil != 0);
    if (written == TARN_OK) {
        CHECK_EQ(move(e, &o, false, in, NULL), TARN_OK);
        CHECK(memcmp(in, out, size) == 0);
    }
    engine_destroy(&e);
    shutdown(r.listener, SHUT_RDWR);
    pthread_join(r.thread, NULL);
    close(r.listener);
    CHECK(!r.seen && r.n >= 2);
    CHECK_EQ(r.spoiled, spoil != 0);
    CHECK_EQ(world_stats(&w).bad_frames, spoil != 0);
    free(out);
    free(in);
    end();
}

TEST(nobody_in_between_sees_the_bytes) {
    relayed(0);
}

/* The host hangs up. Whether its last words come through, or only the end of the connection, after
 * which the write is tried again by another, is a matter of luck. */
TEST(nobody_in_between_changes_them) {
    relayed(1);
}

TEST_MAIN()
