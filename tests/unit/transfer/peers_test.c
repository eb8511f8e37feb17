/* Who may have a transfer: secrets, options, garbage on the control port, peers that lie. */
#include "pair.h"

#include <arpa/inet.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "client/answer.h"
#include "client/arena.h"
#include "client/client.h"
#include "client/error.h"

/* --- who may --- */

TEST(secrets) {
    tarn_transfer *owner = end_open("tcp", "a good secret"),
                  *same = end_open("tcp", "a good secret");
    tarn_transfer *other = end_open("tcp", "a bad secret!"), *none = end_open("tcp", NULL);
    tarn_transfer_peer *peer = NULL;
    CHECK_EQ(tarn_transfer_connect(same, tarn_transfer_endpoint(owner), 0, &peer), TARN_OK);
    CHECK_EQ(tarn_transfer_notify(peer, "x", 1, 0), TARN_OK);
    tarn_transfer_disconnect(&peer);
    CHECK_EQ(tarn_transfer_connect(other, tarn_transfer_endpoint(owner), 0, &peer), TARN_EPERM);
    CHECK_EQ(tarn_transfer_connect(none, tarn_transfer_endpoint(owner), 0, &peer), TARN_EPERM);
    CHECK_EQ(tarn_transfer_connect(same, tarn_transfer_endpoint(none), 0, &peer), TARN_EPERM);
    tarn_transfer_close(&owner);
    tarn_transfer_close(&same);
    tarn_transfer_close(&other);
    tarn_transfer_close(&none);
}

/* --- reflection: what a victim is asked is put to the victim itself --- */

static int dial(const tarn_transfer *t);

struct reflection {
    tarn_transfer *victim;
    int listen_fd;
    char endpoint[64];
    pthread_t thread;
    /* of what goes to the victim, if that many bytes come at once: this byte, 0: none */
    size_t change;
    size_t passed; /* bytes that the victim's control port answered */
};

/* Passes on whatever comes, both ways, until one side hangs up. */
static void *reflect(void *arg) {
    struct reflection *r = arg;
    int from = accept(r->listen_fd, NULL, NULL), to = dial(r->victim);
    struct pollfd p[] = {{.fd = from, .events = POLLIN}, {.fd = to, .events = POLLIN}};
    for (bool open = true; open && poll(p, 2, 10000) > 0;) {
        for (int i = 0; i < 2 && open; i++) {
            char bytes[4096];
            if (p[i].revents == 0) continue;
            ssize_t n = recv(p[i].fd, bytes, sizeof(bytes), 0);
            if (n > 0 && i == 0 && r->change != 0 && (size_t)n > r->change) bytes[r->change] ^= 1;
            open = n > 0 && send(p[!i].fd, bytes, (size_t)n, MSG_NOSIGNAL) == n;
            if (open && i == 1) r->passed += (size_t)n;
        }
    }
    close(from);
    close(to);
    return NULL;
}

static tarn_status reflected(tarn_transfer *victim, size_t change) {
    struct reflection r = {.victim = victim, .change = change};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    r.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(r.listen_fd, (struct sockaddr *)&a, len) == 0 && listen(r.listen_fd, 1) == 0);
    CHECK_EQ(getsockname(r.listen_fd, (struct sockaddr *)&a, &len), 0);
    snprintf(r.endpoint, sizeof(r.endpoint), "tarn-transfer://127.0.0.1:%u", ntohs(a.sin_port));
    pthread_create(&r.thread, NULL, reflect, &r);
    tarn_transfer_peer *peer = NULL;
    tarn_status status = tarn_transfer_connect(victim, r.endpoint, 0, &peer);
    if (status == TARN_OK) tarn_transfer_disconnect(&peer);
    pthread_join(r.thread, NULL);
    close(r.listen_fd);
    CHECK(r.passed > 0);
    return status;
}

/* Byte 70 of the greeting is one of the victim's identity: so it does not recognise itself. */
TEST(guarantee_6_a_reflected_secret_opens_nothing) {
    tarn_transfer *victim = end_open("tcp", "a good secret");
    CHECK_EQ(reflected(victim, 0), TARN_EPERM);
    CHECK_EQ(reflected(victim, 70), TARN_EPERM);
    tarn_transfer_stats s = {.size = sizeof(s)};
    CHECK_EQ(tarn_transfer_get_stats(victim, &s), TARN_OK);
    CHECK_EQ(s.peers_out, 0);
    tarn_transfer_close(&victim);
}

/* Whoever speaks the version before is told why nothing comes of it. */
TEST(an_older_version_is_told_so) {
    static const char hello[] = "HELLO 1 1 0123456789abcdef name\r\n";
    tarn_transfer *end = end_open("tcp", NULL);
    char answer[200] = "";
    int fd = dial(end);
    CHECK(send(fd, hello, strlen(hello), MSG_NOSIGNAL) > 0);
    CHECK(recv(fd, answer, sizeof(answer) - 1, 0) > 0);
    CHECK(strncmp(answer, "-NOPROTO this end speaks version 2", 34) == 0);
    close(fd);
    tarn_transfer_close(&end);
}

TEST(options_are_checked) {
    static const char *const any[] = {"0.0.0.0"}, *const nobody[] = {"203.0.113.7"};
    tarn_transfer_options o;
    tarn_transfer *t = NULL;
    tarn_transfer_options_init(&o);
    o.bind = any;
    o.binds = 1;
    CHECK_EQ(tarn_transfer_open(&o, &t), TARN_EPERM); /* for everybody to reach, without a secret */
    o.unprotected = 1;
    CHECK_EQ(tarn_transfer_open(&o, &t), TARN_OK);
    tarn_transfer_close(&t);
    o.bind = nobody;
    CHECK_EQ(tarn_transfer_open(&o, &t), TARN_EIO);
    o.binds = 0;
    o.secret = "short";
    CHECK_EQ(tarn_transfer_open(&o, &t), TARN_EINVAL);
    o.secret = NULL;
    o.transport = "pigeon";
    CHECK_EQ(tarn_transfer_open(&o, &t), TARN_ENOTSUP);
    o.transport = "auto";
    o.name = "a b";
    CHECK_EQ(tarn_transfer_open(&o, &t), TARN_EINVAL);
    o.name = NULL;
    o.workers = 0;
    CHECK_EQ(tarn_transfer_open(&o, &t), TARN_EINVAL);
    o.workers = 1;
    CHECK_EQ(tarn_transfer_open(&o, &t), TARN_OK);
    tarn_transfer_peer *peer;
    CHECK_EQ(tarn_transfer_connect(t, "tarn-transfer://nowhere", 0, &peer), TARN_EINVAL);
    CHECK_EQ(tarn_transfer_connect(t, "tarn-transfer://127.0.0.1:1", 0, &peer), TARN_EIO);
    CHECK_EQ(tarn_transfer_connect(t, "a-name", 0, &peer), TARN_EINVAL); /* no master */
    tarn_transfer_close(&t);
    CHECK_EQ(tarn_transfer_open(NULL, NULL), TARN_EINVAL);
}

/* --- garbage on the control port --- */

static int dial(const tarn_transfer *t) {
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons(t->port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval timeout = {.tv_sec = 10};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    return connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0 ? fd : -1;
}

/* The end closes the connection, whatever it says before. */
static bool is_thrown_out(const tarn_transfer *t, const char *hello, const char *bytes,
                          size_t len) {
    char answer[4096];
    int fd = dial(t);
    if (fd < 0) return false;
    if (hello != NULL && (send(fd, hello, strlen(hello), MSG_NOSIGNAL) < 0 ||
                          recv(fd, answer, sizeof(answer), 0) <= 0))
        return false;
    (void)!send(fd, bytes, len, MSG_NOSIGNAL);
    ssize_t n;
    while ((n = recv(fd, answer, sizeof(answer), 0)) > 0) continue;
    bool closed = n == 0 || errno == ECONNRESET;
    close(fd);
    return closed;
}

TEST(garbage_costs_the_connection) {
    static const char hello[] =
        "*6\r\n$5\r\nHELLO\r\n$1\r\n1\r\n$1\r\n2\r\n$16\r\n0123456789abcdef\r\n$"
        "16\r\nfedcba9876543210\r\n$0\r\n\r\n";
    static const char *const bad[] = {
        "GET / HTTP/1.1\r\n\r\n",
        "*1\r\n$5\r\nHELLO\r\n",
        "HELLO 1 2 x fedcba9876543210 y\r\n",
        "HELLO 1 2 0123456789abcdef x y\r\n",
        "HELLO 1 1 0123456789abcdef y\r\n", /* of version 1 */
        "HELLO 1 3 0123456789abcdef fedcba9876543210 y\r\n",
        "HELLO 0 2 0123456789abcdef fedcba9876543210 y\r\n",
        "HELLO 1 2 0123456789abcdef fedcba9876543210 \"a b\"\r\n",
        "REGIONS 1\r\n",
        "AUTH 1 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n",
        "*9999999999\r\n",
        "*2\r\n$99999999\r\n",
        "*2\r\n$-1\r\n",
    };
    static const char *const bad_later[] = {
        "HELLO 2 2 0123456789abcdef fedcba9876543210 y\r\n",
        "AUTH 2 x\r\n",
        "WAIT 2 label\r\n",
        "WAIT 2 label -1\r\n",
        "WAIT 2 \"a\\x00b\" 5\r\n",
        "DONE 2\r\n",
        "NOTIFY x y\r\n",
        "FLUSHALL 2\r\n",
        "*3\r\n$6\r\nNOTIFY\r\n$1\r\n2\r\n$70000\r\n",
    };
    struct pair p = pair_open("tcp", true, TARN_TRANSFER_READ);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        CHECK(is_thrown_out(p.owner, NULL, bad[i], strlen(bad[i])));
    for (size_t i = 0; i < ARRAY_LEN(bad_later); i++)
        CHECK(is_thrown_out(p.owner, hello, bad_later[i], strlen(bad_later[i])));
    static char noise[200000];
    for (size_t i = 0; i < sizeof(noise); i++) noise[i] = (char)(i * i * 7 + i / 3);
    CHECK(is_thrown_out(p.owner, NULL, noise, sizeof(noise)));
    CHECK(is_thrown_out(p.owner, hello, noise, sizeof(noise)));
    tarn_transfer_stats s = {.size = sizeof(s)};
    CHECK_EQ(tarn_transfer_get_stats(p.owner, &s), TARN_OK);
    CHECK(s.refused >= ARRAY_LEN(bad) + ARRAY_LEN(bad_later));
    CHECK_EQ(tarn_transfer_notify(p.peer, "still here", 10, 0), TARN_OK);
    pair_close(&p, true);
}

TEST(too_many_peers) {
    tarn_transfer_options o;
    tarn_transfer_options_init(&o);
    o.max_peers = 2;
    tarn_transfer *owner, *user = end_open("tcp", NULL);
    CHECK_EQ(tarn_transfer_open(&o, &owner), TARN_OK);
    tarn_transfer_peer *peers[3];
    CHECK_EQ(tarn_transfer_connect(user, tarn_transfer_endpoint(owner), 0, &peers[0]), TARN_OK);
    CHECK_EQ(tarn_transfer_connect(user, tarn_transfer_endpoint(owner), 0, &peers[1]), TARN_OK);
    tarn_status status = tarn_transfer_connect(user, tarn_transfer_endpoint(owner), 0, &peers[2]);
    /* what it said may be lost with the connection */
    CHECK(status == TARN_ELIMIT || status == TARN_ECLOSED);
    tarn_transfer_disconnect(&peers[0]);
    for (int i = 0; i < 100 && (status = tarn_transfer_connect(user, tarn_transfer_endpoint(owner),
                                                               0, &peers[0])) != TARN_OK;
         i++)
        usleep(10000);
    CHECK_EQ(status, TARN_OK);
    tarn_transfer_disconnect(&peers[0]);
    tarn_transfer_disconnect(&peers[1]);
    tarn_transfer_close(&user);
    tarn_transfer_close(&owner);
}

#define LIE_HEAD "*4\r\n:1\r\n$0\r\n\r\n$0\r\n\r\n"
/* A grant of one byte. */
#define LIE_TAIL "$0\r\n\r\n$1\r\nx\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n"

#define LIE_REGION "*1\r\n*14\r\n:1\r\n:1\r\n$1\r\n0\r\n:10\r\n"

/* What a peer says of its memory is looked at before it is believed. */
TEST(peers_that_lie) {
    static const struct {
        const char *text, *about;
    } lies[] = {
        {":5\r\n", "port"},
        {"*4\r\n:0\r\n$0\r\n\r\n$0\r\n\r\n*0\r\n", "port"},
        {"*4\r\n:70000\r\n$0\r\n\r\n$0\r\n\r\n*0\r\n", "port"},
        {"*4\r\n:1\r\n$0\r\n\r\n$0\r\n\r\n:3\r\n", "regions"},
        {LIE_HEAD "*1\r\n*1\r\n:1\r\n", "bounds"},
        {LIE_HEAD LIE_REGION ":3\r\n:0\r\n" LIE_TAIL, "grant"},
        {LIE_HEAD LIE_REGION ":0\r\n:0\r\n" LIE_TAIL, "bounds"},
    };
    for (size_t i = 0; i < ARRAY_LEN(lies); i++) {
        struct arena arena = {0};
        struct redisReader *reader = answer_reader_create();
        answer_reader_set_arena(reader, &arena);
        void *got = NULL;
        CHECK_EQ(redisReaderFeed(reader, lies[i].text, strlen(lies[i].text)), REDIS_OK);
        CHECK_EQ(redisReaderGetReply(reader, &got), REDIS_OK);
        CHECK(got != NULL);
        struct transfer_map *map = NULL;
        CHECK_EQ(transfer_map_parse(got, "me", "127.0.0.1", &map), TARN_EPROTO);
        CHECK(map == NULL && strstr(tarn_last_error(), lies[i].about) != NULL);
        redisReaderFree(reader);
        arena_free(&arena);
    }
}

TEST_MAIN()
