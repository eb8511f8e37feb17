/* The control connection: requests that are begun, and sent, while the socket takes no more. */
#include "../test.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/ring.h"
#include "client/client.h"
#include "client/ctl.h"

#define LARGE (1u << 20) /* more than a socket takes at once */

static struct ctl c;
static struct arena arena;
static int peer;
static struct buf expected, arrived;

static void begin(void) {
    int fds[2], small = 4096;
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    ctl_init(&c);
    c.fd = fds[0];
    c.reader = answer_reader_create();
    peer = fds[1];
    buf_clear(&expected);
    buf_clear(&arrived);
}

static void end(void) {
    ctl_close(&c);
    close(peer);
    arena_free(&arena);
    buf_free(&expected);
    buf_free(&arrived);
}

static void expect(size_t argc, const char **argv, const size_t *lens) {
    buf_printf(&expected, "*%zu\r\n", argc);
    for (size_t i = 0; i < argc; i++) {
        buf_printf(&expected, "$%zu\r\n", lens[i]);
        buf_append(&expected, argv[i], lens[i]);
        buf_append_str(&expected, "\r\n");
    }
}

/* At most so many bytes of what was sent. */
static size_t peer_takes(size_t max) {
    char bytes[4096];
    size_t total = 0;
    for (ssize_t n; total < max; total += (size_t)n) {
        n = recv(peer, bytes, max - total < sizeof(bytes) ? max - total : sizeof(bytes), 0);
        if (n <= 0) break;
        buf_append(&arrived, bytes, (size_t)n);
    }
    return total;
}

static void peer_takes_all(void) {
    struct answer *a;
    while (ctl_wants_to_send(&c) || peer_takes(SIZE_MAX) > 0) {
        CHECK_EQ(ctl_try_receive(&c, &arena, &a), TARN_EAGAIN);
        peer_takes(SIZE_MAX);
    }
    CHECK_EQ(arrived.len, expected.len);
    CHECK(memcmp(arrived.data, expected.data, expected.len) == 0);
}

/* One request; in the middle of its being built so many bytes are taken by the peer, and as many
 * are sent. */
static void request(size_t words, size_t len, size_t taken) {
    static char text[LARGE];
    const char *argv[200] = {"SET"};
    size_t lens[200] = {3};
    struct answer *a;
    for (size_t i = 0; i < len; i++) text[i] = (char)('a' + (i + len) % 26);
    ctl_begin(&c, "SET");
    ctl_arg_str(&c, "SET");
    for (size_t i = 1; i < words; i++) {
        argv[i] = text;
        lens[i] = len;
        ctl_arg(&c, text, len);
        if (i != words / 2 || taken == 0) continue;
        peer_takes(taken);
        CHECK_EQ(ctl_try_receive(&c, &arena, &a), TARN_EAGAIN);
    }
    expect(words, argv, lens);
    CHECK_EQ(ctl_commit(&c, false), TARN_OK);
}

TEST(one_behind_the_other) {
    begin();
    request(3, 10, 0);
    CHECK(!ctl_wants_to_send(&c));
    request(120, 3, 0);
    peer_takes_all();
    end();
}

TEST(begun_while_older_ones_wait) {
    begin();
    request(2, LARGE, 0);
    CHECK(ctl_wants_to_send(&c));
    request(3, 10, 0);
    request(150, 7, 0);
    CHECK(ctl_wants_to_send(&c));
    peer_takes_all();
    end();
}

TEST(older_ones_leave_in_part_meanwhile) {
    begin();
    request(2, LARGE, 0);
    for (int i = 0; i < 20; i++) request(20, 100, 3000);
    CHECK(ctl_wants_to_send(&c));
    size_t unsent = ctl_unsent(&c);
    struct answer *a;
    peer_takes(100000);
    CHECK_EQ(ctl_try_receive(&c, &arena, &a), TARN_EAGAIN);
    CHECK(ctl_unsent(&c) < unsent);
    peer_takes_all();
    CHECK_EQ(ctl_unsent(&c), 0);
    end();
}

TEST(older_ones_leave_wholly_meanwhile) {
    begin();
    for (int i = 0; i < 5; i++) {
        request(2, 3 * LARGE / 4, 0);
        CHECK(ctl_wants_to_send(&c));
        ctl_begin(&c, "GET");
        ctl_arg_str(&c, "GET");
        struct answer *a;
        while (ctl_wants_to_send(&c)) {
            peer_takes(SIZE_MAX);
            CHECK_EQ(ctl_try_receive(&c, &arena, &a), TARN_EAGAIN);
        }
        CHECK_EQ(ctl_commit(&c, false), TARN_OK);
        expect(1, (const char *[]){"GET"}, (size_t[]){3});
    }
    peer_takes_all();
    end();
}

/* One that is begun and not sent leaves nothing behind. */
TEST(begun_and_left) {
    begin();
    request(2, LARGE, 0);
    ctl_begin(&c, "LEFT");
    ctl_arg_str(&c, "LEFT");
    request(3, 10, 5000);
    ctl_begin(&c, "LEFT");
    CHECK(ctl_wants_to_send(&c));
    request(3, 10, 0);
    peer_takes_all();
    ctl_begin(&c, "LEFT");
    ctl_arg_str(&c, "LEFT");
    CHECK(!ctl_wants_to_send(&c));
    request(4, 9, 0);
    peer_takes_all();
    end();
}

/* --- what is left for the next one --- */

static void leave(const char *word) {
    ctl_words(&c, word, 1, &word, NULL);
    CHECK_EQ(ctl_leave(&c), TARN_OK);
    expect(1, &word, (size_t[]){strlen(word)});
}

TEST(left_ones_go_with_the_next) {
    begin();
    leave("A");
    leave("B");
    CHECK(!ctl_wants_to_send(&c));
    CHECK_EQ(peer_takes(SIZE_MAX), 0);
    request(3, 10, 0);
    leave("C");
    CHECK(!ctl_wants_to_send(&c));
    peer_takes(SIZE_MAX);
    CHECK_EQ(arrived.len, expected.len - strlen("*1\r\n$1\r\nC\r\n"));
    request(2, 10, 0);
    peer_takes_all();
    end();
}

TEST(left_behind_what_waits) {
    begin();
    request(2, LARGE, 0);
    leave("A");
    CHECK(ctl_wants_to_send(&c));
    peer_takes_all();
    CHECK_EQ(ctl_unsent(&c), 0);
    end();
}

/* As often as answers can be skipped, and no further. */
TEST(as_many_as_can_be_skipped) {
    begin();
    for (int i = 0; i < CTL_SKIP_MAX; i++) leave("A");
    size_t unsent = ctl_unsent(&c);
    ctl_words(&c, "B", 1, (const char *[]){"B"}, NULL);
    CHECK_EQ(ctl_leave(&c), TARN_EAGAIN);
    CHECK(!ctl_wants_to_send(&c));
    CHECK_EQ(ctl_unsent(&c), unsent);
    request(2, 10, 0);
    peer_takes_all();
    end();
}

/* --- a unix socket in place of tcp --- */

static int listen_abstract(const char *name) {
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    memcpy(sun.sun_path + 1, name, strlen(name));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK_EQ(bind(fd, (struct sockaddr *)&sun,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))),
             0);
    CHECK_EQ(listen(fd, 1), 0);
    return fd;
}

/* The connection that it begins with. */
static void begin_tcp(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    begin();
    close(c.fd);
    close(peer);
    c.fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(bind(listener, (struct sockaddr *)&at, len), 0);
    CHECK_EQ(listen(listener, 1), 0);
    CHECK_EQ(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    CHECK_EQ(connect(c.fd, (struct sockaddr *)&at, len), 0);
    peer = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    CHECK_EQ(fcntl(c.fd, F_SETFL, O_NONBLOCK), 0);
    close(listener);
}

struct door {
    int fd;
    const char *says; /* NULL: it closes the connection */
};

static void *open_door(void *arg) {
    const struct door *door = arg;
    struct sockaddr_un own = {0};
    int fd = accept(door->fd, (struct sockaddr *)&own, &(socklen_t){sizeof(own)});
    CHECK_EQ(own.sun_path[strlen(own.sun_path + 1)], '+');
    if (door->says == NULL) {
        close(fd);
        return NULL;
    }
    CHECK_EQ(send(fd, door->says, strlen(door->says), 0), (ssize_t)strlen(door->says));
    char byte;
    CHECK(recv(fd, &byte, 1, 0) <= 0 || byte == '*'); /* until the client is done with it */
    close(fd);
    return NULL;
}

static void peer_answers(const char *text) {
    CHECK_EQ(send(peer, text, strlen(text), 0), (ssize_t)strlen(text));
}

/* What the server says to CLIENT NEAR, and what waits behind the name. true: the connection goes on
 * there. */
static bool goes_near(const char *answer, const char *name, const char *says, bool in_time) {
    struct door door = {.fd = name != NULL ? listen_abstract(name) : -1, .says = says};
    pthread_t thread;
    begin_tcp();
    int fd = c.fd;
    c.loopback = true;
    peer_answers(answer);
    peer_answers("-ERR stay\r\n"); /* when it asks again */
    if (name != NULL) CHECK_EQ(pthread_create(&thread, NULL, open_door, &door), 0);
    CHECK_EQ(ctl_go_near(&c, &arena, now_ms() + (in_time ? 60000 : 100)), TARN_OK);
    bool moved = c.fd != fd;
    CHECK(c.fd >= 0);
    CHECK_EQ(poll(&(struct pollfd){.fd = peer, .events = POLLIN}, 1, -1), 1);
    CHECK(peer_takes(SIZE_MAX) > 0);
    buf_append_char(&arrived, '\0');
    CHECK(strstr(arrived.data, "\r\nCLIENT\r\n$4\r\nNEAR\r\n") != NULL);
    CHECK(strstr(arrived.data, "\r\n127.0.0.1:") != NULL);
    if (moved) { /* the old one is closed */
        CHECK_EQ(poll(&(struct pollfd){.fd = peer, .events = POLLIN}, 1, -1), 1);
        CHECK_EQ(recv(peer, &(char){0}, 1, 0), 0);
    }
    end();
    if (name == NULL) return moved;
    CHECK_EQ(pthread_join(thread, NULL), 0);
    close(door.fd);
    return moved;
}

TEST(goes_on_at_a_unix_socket) {
    char name[40], answer[120], longer[240];
    snprintf(name, sizeof(name), "tarn-test-%ld", (long)getpid());
    snprintf(answer, sizeof(answer), "*3\r\n$%zu\r\n%s\r\n$%zu\r\n%s+\r\n$4\r\nword\r\n",
             strlen(name), name, strlen(name) + 1, name);
    CHECK(goes_near(answer, name, "+word\r\n", true));
    /* it stays where it is: */
    CHECK(!goes_near(answer, name, "+OK\r\n", true)); /* who does not know the word */
    CHECK(!goes_near(answer, name, "-ERR not now\r\n", true));
    CHECK(!goes_near(answer, name, "+w", false));
    CHECK(!goes_near(answer, name, NULL, true));
    CHECK(!goes_near(answer, NULL, NULL, true)); /* nobody is there */
    CHECK(!goes_near("-LIMIT too many\r\n", NULL, NULL, true));
    snprintf(longer, sizeof(longer), "-LIMIT too many\r\n%s", answer);
    CHECK(goes_near(longer, name, "+word\r\n", true));
    /* a name that is not of tarn */
    CHECK(!goes_near("*3\r\n$4\r\ndbus\r\n$6\r\ntarn-a\r\n$1\r\nw\r\n", NULL, NULL, true));
    CHECK(!goes_near("*2\r\n$0\r\n\r\n$6\r\ntarn-a\r\n", NULL, NULL, true));
    CHECK(!goes_near("*1\r\n$6\r\ntarn-a\r\n", NULL, NULL, true));
    CHECK(!goes_near(":7\r\n", NULL, NULL, true));
    snprintf(longer, sizeof(longer), "*3\r\n$6\r\ntarn-a\r\n$120\r\ntarn-%0115d\r\n$1\r\nw\r\n", 0);
    CHECK(!goes_near(longer, NULL, NULL, true));
    /* the name that it is to have is somebody else's */
    int other = listen_abstract(strcat(name, "+"));
    CHECK(!goes_near(answer, NULL, NULL, true));
    close(other);
}

/* --- through shared memory --- */

#define MEMORIES_MAX 3

/* Who waits behind a name, and what comes with the word. */
struct host {
    int listener, fd, n, memory[MEMORIES_MAX];
};

static void *host_comes(void *arg) {
    struct host *h = arg;
    union {
        char bytes[CMSG_SPACE(sizeof(h->memory))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec iov = {"+word\r\n", 7};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = CMSG_SPACE((size_t)h->n * sizeof(int))};
    struct cmsghdr *head = CMSG_FIRSTHDR(&msg);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN((size_t)h->n * sizeof(int));
    memcpy(CMSG_DATA(head), h->memory, (size_t)h->n * sizeof(int));
    h->fd = accept4(h->listener, NULL, NULL, SOCK_NONBLOCK);
    CHECK_EQ(sendmsg(h->fd, &msg, 0), 7);
    return NULL;
}

/* Closes the memories here. true: it took one. */
static bool goes_through(struct host *h) {
    char name[40], answer[120];
    pthread_t thread;
    snprintf(name, sizeof(name), "tarn-test-%ld", (long)getpid());
    snprintf(answer, sizeof(answer), "*3\r\n$%zu\r\n%s\r\n$%zu\r\n%s+\r\n$4\r\nword\r\n",
             strlen(name), name, strlen(name) + 1, name);
    h->listener = listen_abstract(name);
    begin_tcp();
    c.loopback = true;
    peer_answers(answer);
    CHECK_EQ(pthread_create(&thread, NULL, host_comes, h), 0);
    CHECK_EQ(ctl_go_near(&c, &arena, now_ms() + 60000), TARN_OK);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    close(h->listener);
    for (int i = 0; i < h->n; i++) close(h->memory[i]);
    return c.ring.memory != NULL;
}

static void host_begins(struct host *h, struct ring *r) {
    *h = (struct host){.n = 1};
    CHECK(ring_create(r, &h->memory[0]));
    CHECK(goes_through(h));
}

static void host_ends(struct host *h, struct ring *r) {
    end();
    close(h->fd);
    ring_close(r);
}

static int first_free(void) {
    int fd = dup(0);
    close(fd);
    return fd;
}

/* The server's side of a request and its answer. */
static void host_answers(struct ring *r, const char *text) {
    char bytes[200];
    struct iovec in = {bytes, sizeof(bytes)}, out = {(void *)(uintptr_t)text, strlen(text)};
    CHECK_EQ(ring_read(r, &in, 1), 14);
    CHECK(memcmp(bytes, "*1\r\n$4\r\nPING\r\n", 14) == 0);
    CHECK_EQ(ring_write(r, &out, 1), (ssize_t)strlen(text));
}

static void ping(void) {
    const char *argv[] = {"PING"};
    CHECK_EQ(ctl_send(&c, 1, argv, NULL, false), TARN_OK);
}

TEST(goes_through_shared_memory) {
    struct host h;
    struct ring r;
    struct answer *a;
    char calls[10];
    host_begins(&h, &r);
    ping(); /* the server sleeps at first */
    CHECK_EQ(recv(h.fd, calls, sizeof(calls), 0), 1);
    CHECK_EQ(calls[0], 0);
    CHECK_EQ(ctl_try_receive(&c, &arena, &a), TARN_EAGAIN);
    host_answers(&r, "+PONG\r\n");
    CHECK(!ring_calls(&r, RING_WRITE)); /* nobody sleeps there */
    CHECK_EQ(ctl_receive(&c, &arena, &a, now_ms() + 60000), TARN_OK);
    CHECK_STR(a->str, "PONG");
    /* nobody answers: it sleeps until then, and may be called for nothing */
    ping();
    CHECK_EQ(recv(h.fd, calls, sizeof(calls), 0), -1);
    CHECK_EQ(send(h.fd, "x", 1, 0), 1);
    CHECK_EQ(ctl_await(&c, &arena, &a, now_ms() + 20), TARN_ETIMEOUT);
    /* somebody else waits for it, with others */
    CHECK(ctl_sleep(&c));
    CHECK(!ctl_woke(&c, 0));
    CHECK_EQ(send(h.fd, "x", 1, 0), 1);
    CHECK(ctl_sleep(&c));
    CHECK(!ctl_woke(&c, POLLIN));
    CHECK(ctl_sleep(&c));
    host_answers(&r, "+PONG\r\n");
    CHECK(ring_calls(&r, RING_WRITE));
    CHECK(ctl_woke(&c, POLLIN));
    CHECK(!ctl_sleep(&c));
    CHECK_EQ(ctl_receive(&c, &arena, &a, now_ms() + 60000), TARN_OK);
    host_ends(&h, &r);
}

TEST(more_than_the_memory_holds_waits) {
    static char value[3 * RING_BYTES], got[4 * RING_BYTES];
    struct host h;
    struct ring r;
    struct answer *a;
    const char *argv[] = {"SET", "k", value};
    size_t lens[] = {3, 1, sizeof(value)}, n = 0;
    memset(value, 'v', sizeof(value));
    host_begins(&h, &r);
    CHECK_EQ(ctl_send(&c, 3, argv, lens, false), TARN_OK);
    CHECK(ctl_wants_to_send(&c));
    CHECK_EQ(ctl_await(&c, &arena, &a, now_ms() + 1), TARN_ETIMEOUT);
    while (n < sizeof(value) + 30) {
        struct iovec iov = {got + n, sizeof(got) - n};
        ssize_t came = ring_read(&r, &iov, 1);
        CHECK(came > 0);
        n += (size_t)came;
        if (n / RING_BYTES % 2 == 0) { /* or somebody else waits for it, with others */
            CHECK(!ctl_sleep(&c) || !ctl_wants_to_send(&c));
            CHECK(!ctl_woke(&c, 0));
        } else {
            CHECK_EQ(ctl_await(&c, &arena, &a, now_ms() + 1), TARN_ETIMEOUT);
        }
    }
    CHECK_EQ(n, sizeof(value) + 30);
    CHECK(memcmp(got, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$98304\r\n", 28) == 0);
    CHECK(memcmp(got + 28, value, sizeof(value)) == 0);
    host_ends(&h, &r);
}

TEST(its_end_comes_behind_what_was_said) {
    for (unsigned unread = 0; unread < 2; unread++) {
        struct host h;
        struct ring r;
        struct answer *a;
        char call;
        host_begins(&h, &r);
        ping();
        if (!unread) CHECK_EQ(recv(h.fd, &call, 1, 0), 1); /* else the end is a reset */
        host_answers(&r, "+PONG\r\n");
        close(h.fd);
        CHECK_EQ(ctl_receive(&c, &arena, &a, now_ms() + 60000), TARN_OK);
        CHECK(!ctl_sleep(&c) || ctl_woke(&c, POLLIN | POLLHUP));
        CHECK_EQ(ctl_receive(&c, &arena, &a, now_ms() + 60000), TARN_ECLOSED);
        CHECK_EQ(c.fd, -1);
        h.fd = -1;
        host_ends(&h, &r);
    }
}

TEST(a_server_that_lies_is_left) {
    static char big[RING_BYTES];
    for (unsigned lie = 0; lie < 2; lie++) {
        struct host h;
        struct ring r;
        struct answer *a;
        const char *argv[] = {"SET", "k", big};
        size_t lens[] = {3, 1, sizeof(big)};
        host_begins(&h, &r);
        ping();
        if (lie == 0) {
            r.out->head = RING_BYTES + 1;
            CHECK_EQ(ctl_receive(&c, &arena, &a, now_ms() + 60000), TARN_EPROTO);
        } else {
            r.in->tail = 1000;
            CHECK_EQ(ctl_send(&c, 3, argv, lens, false), TARN_EPROTO);
        }
        CHECK(strstr(tarn_last_error(), "nonsense") != NULL);
        CHECK_EQ(c.fd, -1);
        CHECK(c.ring.memory == NULL);
        host_ends(&h, &r);
    }
}

TEST(calls_for_nothing_end_no_deadline) {
    static const char calls[10000];
    struct host h;
    struct ring r;
    struct answer *a;
    char call;
    host_begins(&h, &r);
    ping();
    CHECK_EQ(send(h.fd, calls, sizeof(calls), 0), (ssize_t)sizeof(calls));
    CHECK_EQ(ctl_await(&c, &arena, &a, now_ms()), TARN_ETIMEOUT);
    CHECK_EQ(recv(c.fd, &call, 1, 0), 1); /* it did not wait for the last of them */
    host_answers(&r, "+PONG\r\n");
    CHECK_EQ(ctl_receive(&c, &arena, &a, now_ms() + 60000), TARN_OK);
    host_ends(&h, &r);
}

TEST(memory_that_it_cannot_trust_is_left_alone) {
    struct ring r = {0};
    struct answer *a;
    int before = first_free();
    for (unsigned what = 0; what < 3; what++) {
        struct host h = {.n = what == 2 ? MEMORIES_MAX : 1};
        char bytes[20];
        for (int i = 0; i < h.n; i++) {
            h.memory[i] = memfd_create("test", MFD_ALLOW_SEALING);
            CHECK_EQ(ftruncate(h.memory[i], what == 0 ? 100 : ring_size()), 0);
        }
        if (what == 1) CHECK_EQ(fcntl(h.memory[0], F_ADD_SEALS, F_SEAL_SHRINK), 0);
        CHECK(!goes_through(&h));
        ping(); /* by the socket */
        CHECK_EQ(recv(h.fd, bytes, sizeof(bytes), 0), 14);
        CHECK_EQ(send(h.fd, "+PONG\r\n", 7, 0), 7);
        CHECK_EQ(ctl_receive(&c, &arena, &a, now_ms() + 60000), TARN_OK);
        host_ends(&h, &r);
        CHECK_EQ(first_free(), before); /* none is left open */
    }
}

TEST(does_not_ask_from_another_machine) {
    begin();
    CHECK_EQ(ctl_go_near(&c, &arena, now_ms() + 60000), TARN_OK);
    CHECK_EQ(peer_takes(SIZE_MAX), 0);
    end();
}

TEST_MAIN()
