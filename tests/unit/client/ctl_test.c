/* The control connection: requests that are begun, and sent, while the socket takes no more. */
#include "../test.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
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

TEST(does_not_ask_from_another_machine) {
    begin();
    CHECK_EQ(ctl_go_near(&c, &arena, now_ms() + 60000), TARN_OK);
    CHECK_EQ(peer_takes(SIZE_MAX), 0);
    end();
}

TEST_MAIN()
