/* Many connections at one server, from one thread.
 *
 *     crowd PORT COUNT [CERT KEY]
 *
 * With a certificate they speak TLS.
 *
 * Opens them and says "open=N refused=N text=..." (text: what the first refused one was told).
 * Then, for each line of standard input: "PIPELINE" (a number): every connection sends so many
 * pairs of SET and GET of its own key and checks the replies, all connections at the same time; it
 * says "replies=N wrong=N ms=N". "say TEXT": every connection sends TEXT, where \r\n stands for the
 * end of a line, and waits for nothing; it says "said=N". At the end of the input all connections
 * end. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../tls_socket.h"
#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"

#define EVENTS_MAX  512
#define PER_ADDRESS 2000u /* connections from one of this machine's addresses */
#define PATIENCE_MS 60000

struct member {
    struct tls_socket socket; /* fd -1: refused, or ended by the server */
    struct buf out, want;
    size_t sent, got;
};

static struct member *members;
static size_t count, open_now, refused;
static char refusal[128];
static int epoll_fd;
static struct tls_context *tls; /* NULL: plain text */
static char bytes[2 * TLS_IN_MAX];

_Noreturn static void fail(const char *what, const char *detail) {
    fprintf(stderr, "crowd: %s: %s\n", what, detail);
    exit(1);
}

static int open_one(uint16_t port, size_t i) {
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(0x7f000001u + (uint32_t)(i / PER_ADDRESS))};
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0) fail("socket", strerror(errno));
    if (setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one)) != 0 ||
        bind(fd, (struct sockaddr *)&from, sizeof(from)) != 0 ||
        connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0)
        fail("connect", strerror(errno));
    if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0) fail("fcntl", strerror(errno));
    return fd;
}

static void watch(struct member *m, uint32_t events, int what) {
    struct epoll_event e = {.events = events, .data.ptr = m};
    if (epoll_ctl(epoll_fd, what, m->socket.fd, &e) != 0) fail("epoll_ctl", strerror(errno));
}

static void drop(struct member *m) {
    tls_socket_close(&m->socket);
    open_now--;
}

static void await(const struct member *m, short events) {
    struct pollfd p = {.fd = m->socket.fd, .events = events};
    if (poll(&p, 1, PATIENCE_MS) != 1) fail("no answer", "");
}

/* What comes next; 0 or less: nothing ever will. */
static ssize_t hear(struct member *m) {
    ssize_t n;
    do {
        await(m, POLLIN);
        n = tls_socket_recv(&m->socket, bytes, sizeof(bytes));
    } while (n < 0 && errno == EAGAIN && !tls_socket_shaking(&m->socket));
    return n;
}

/* The handshake, too. What cannot be said is not: the answer tells. */
static void say_ping(struct member *m) {
    while (tls_socket_send(&m->socket, "PING\r\n", 6) < 0 && errno == EAGAIN) {
        await(m,
              tls_socket_unsent(&m->socket) || !tls_socket_shaking(&m->socket) ? POLLOUT : POLLIN);
        if (tls_socket_shaking(&m->socket) &&
            tls_socket_recv(&m->socket, bytes, sizeof(bytes)) == 0)
            return;
    }
}

/* A greeting that nobody asked for is a refusal. Each is waited for with a request of its own. */
static void greet(struct member *m) {
    say_ping(m);
    ssize_t n = hear(m);
    if (n == 7 && memcmp(bytes, "+PONG\r\n", 7) == 0) {
        watch(m, EPOLLIN, EPOLL_CTL_ADD);
        return;
    }
    if (n > 0 && refusal[0] == '\0') {
        size_t len = strcspn(bytes, "\r\n");
        snprintf(refusal, sizeof(refusal), "%.*s", (int)(len < (size_t)n ? len : (size_t)n), bytes);
    }
    refused++;
    drop(m);
}

static void open_all(uint16_t port) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0) fail("setrlimit", strerror(errno));
    }
    members = xcalloc(count, sizeof(*members));
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0) fail("epoll_create1", strerror(errno));
    for (size_t i = 0; i < count; i++) {
        if (!tls_socket_init(&members[i].socket, open_one(port, i), tls))
            fail("no memory for TLS", "");
        open_now++;
        if (i % 64 == 63 || i + 1 == count) /* no more at a time than the kernel keeps waiting */
            for (size_t k = i - i % 64; k <= i; k++) greet(&members[k]);
    }
    printf("open=%zu refused=%zu text=%s\n", open_now, refused, refusal);
    fflush(stdout);
}

/* --- a round --- */

static void prepare(struct member *m, size_t i, size_t pairs) {
    buf_clear(&m->out);
    buf_clear(&m->want);
    m->sent = m->got = 0;
    for (size_t k = 0; k < pairs; k++) {
        buf_printf(&m->out, "SET crowd:%zu %zu\r\nGET crowd:%zu\r\n", i, i * 1000003 + k, i);
        char value[24];
        int len = snprintf(value, sizeof(value), "%zu", i * 1000003 + k);
        buf_printf(&m->want, "+OK\r\n$%d\r\n%s\r\n", len, value);
    }
    watch(m, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
}

/* true: it is through. */
static bool advance(struct member *m, uint32_t events, size_t *wrong_p) {
    if (events & EPOLLOUT && (m->sent < m->out.len || tls_socket_unsent(&m->socket))) {
        ssize_t n = tls_socket_send(&m->socket, m->out.data + m->sent, m->out.len - m->sent);
        if (n > 0) m->sent += (size_t)n;
        if (m->sent == m->out.len && !tls_socket_unsent(&m->socket))
            watch(m, EPOLLIN, EPOLL_CTL_MOD);
    }
    if (!(events & (EPOLLIN | EPOLLERR | EPOLLHUP))) return false;
    ssize_t n = tls_socket_recv(&m->socket, bytes, sizeof(bytes));
    if (n < 0 && errno == EAGAIN) return false;
    bool right = n > 0 && (size_t)n <= m->want.len - m->got &&
                 memcmp(bytes, m->want.data + m->got, (size_t)n) == 0;
    if (!right) {
        ++*wrong_p;
        drop(m);
        return true;
    }
    m->got += (size_t)n;
    return m->got == m->want.len;
}

static void run_round(size_t pairs) {
    uint64_t begin_ms = clock_mono_ms();
    size_t waiting = open_now, through = 0, wrong = 0;
    for (size_t i = 0; i < count; i++)
        if (members[i].socket.fd >= 0) prepare(&members[i], i, pairs);
    while (through < waiting) {
        struct epoll_event events[EVENTS_MAX];
        int n = epoll_wait(epoll_fd, events, EVENTS_MAX, PATIENCE_MS);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail("nothing comes back", "");
        for (int i = 0; i < n; i++)
            through += advance(events[i].data.ptr, events[i].events, &wrong);
    }
    for (size_t i = 0; i < count; i++) {
        buf_free(&members[i].out);
        buf_free(&members[i].want);
    }
    printf("replies=%zu wrong=%zu ms=%llu\n", 2 * pairs * (waiting - wrong), wrong,
           (unsigned long long)(clock_mono_ms() - begin_ms));
    fflush(stdout);
}

static void say(const char *text) {
    struct buf b = {0};
    size_t said = 0;
    for (const char *s = text; *s != '\0'; s++) {
        bool escaped = s[0] == '\\' && s[1] != '\0';
        if (escaped) s++;
        buf_append_char(&b, !escaped ? *s : *s == 'r' ? '\r' : *s == 'n' ? '\n' : *s);
    }
    for (size_t i = 0; i < count; i++)
        said += members[i].socket.fd >= 0 &&
                tls_socket_send(&members[i].socket, b.data, b.len) == (ssize_t)b.len;
    buf_free(&b);
    printf("said=%zu\n", said);
    fflush(stdout);
}

int main(int argc, char **argv) {
    uint64_t port = 0, n = 0, pairs;
    if ((argc != 3 && argc != 5) || !span_to_u64(span_str(argv[1]), &port) || port == 0 ||
        port > 65535 || !span_to_u64(span_str(argv[2]), &n) || n == 0 || n > 1000000)
        fail("usage", "crowd PORT COUNT [CERT KEY]");
    if (argc == 5) {
        struct tls_options o = {.cert_file = argv[3], .key_file = argv[4], .no_verify = true};
        char why[TLS_WHY_MAX];
        tls = tls_context_create(TLS_CLIENT, &o, why);
        if (tls == NULL) fail("TLS", why);
    }
    count = n;
    open_all((uint16_t)port);
    char line[256];
    while (fgets(line, sizeof(line), stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "say ", 4) == 0) {
            say(line + 4);
            continue;
        }
        if (!span_to_u64(span_str(line), &pairs) || pairs == 0 || pairs > 100000)
            fail("no number of pairs", line);
        run_round(pairs);
    }
    for (size_t i = 0; i < count; i++) tls_socket_close(&members[i].socket);
    free(members);
    tls_context_put(&tls);
    return 0;
}
