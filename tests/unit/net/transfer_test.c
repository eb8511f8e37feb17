/* Bytes arrive whole, in order and once, however slowly the other end goes; what is cut off comes
 * back and says so. */
#include "net/transfer.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../test.h"
#include "base/assert.h"
#include "base/buf.h"
#include "base/crc32c.h"
#include "net/net.h"

enum { MANY = 24, SIZE = 3000000 };

static struct net_loop *loop;
static struct net_transfers *threads;
static unsigned over;

struct move {
    struct net_transfer t;
    int peer;
    char *memory;
    size_t seen; /* by received() */
    uint32_t crc;
    pthread_t other;
    char *expected;
};

static void woke(void *arg) {
    (void)arg;
}
static uint64_t turn(void *arg) {
    if (over >= *(unsigned *)arg) net_loop_stop(loop);
    return 1000;
}

static void start(unsigned n_threads, unsigned *until) {
    struct net_hooks hooks = {.arg = until, .woke = woke, .turn = turn};
    over = 0;
    loop = net_loop_create(&hooks);
    CHECK(loop != NULL);
    threads = net_transfers_create(loop, n_threads);
    CHECK(threads != NULL);
}

static void stop(void) {
    net_transfers_destroy(&threads);
    CHECK(threads == NULL);
    net_loop_destroy(&loop);
}

static void done(struct net_transfer *t) {
    (void)t;
    over++;
}

/* In the order in which they come: the checksum says so. */
static void received(struct net_transfer *t, size_t n) {
    struct move *m = CONTAINER_OF(t, struct move, t);
    m->crc = crc32c(m->crc, m->memory + m->seen, n);
    m->seen += n;
}

/* Pieces of several lengths that lie apart. */
static void move_init(struct move *m, bool receive, size_t size, unsigned seed) {
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    memset(m, 0, sizeof(*m));
    m->t.fd = pair[0];
    m->t.receive = receive;
    m->t.done = done;
    m->t.received = receive ? received : NULL;
    m->peer = pair[1];
    m->memory = xmalloc(size);
    m->expected = xmalloc(size);
    for (size_t i = 0; i < size; i++) m->expected[i] = (char)(i * 31 + i / 251 + seed);
    memcpy(m->memory, m->expected, size);
    if (receive) memset(m->memory, 0, size);
    size_t at = 0;
    for (unsigned i = 0; at < size; i++) {
        size_t len = i + 1 == NET_TRANSFER_PIECES ? size - at : (size_t)(i * 7919 % 200000 + 1);
        if (len > size - at) len = size - at;
        m->t.piece[m->t.pieces++] = (struct iovec){m->memory + at, len};
        at += len;
    }
    m->t.left = size;
}

static void move_deinit(struct move *m) {
    close(m->t.fd);
    close(m->peer);
    free(m->memory);
    free(m->expected);
}

/* The other end, which takes its time. */
static void *other_end(void *arg) {
    struct move *m = arg;
    char *own = xmalloc(SIZE);
    size_t at = 0, step = 1;
    int flags = 0;
    if (m->t.receive) memcpy(own, m->expected, SIZE);
    while (at < SIZE) {
        size_t want = step < SIZE - at ? step : SIZE - at;
        ssize_t n = m->t.receive ? send(m->peer, own + at, want, flags | MSG_NOSIGNAL)
                                 : recv(m->peer, own + at, want, flags);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            usleep(200);
            continue;
        }
        if (n <= 0) break;
        at += (size_t)n;
        step = step * 3 % 100003 + 1;
    }
    if (!m->t.receive) m->crc = crc32c(0, own, at);
    free(own);
    return NULL;
}

static void run_many(unsigned n_threads) {
    unsigned until = MANY;
    struct move *m = xcalloc(MANY, sizeof(*m));
    start(n_threads, &until);
    for (unsigned i = 0; i < MANY; i++) {
        move_init(&m[i], i % 2 == 0, SIZE, i);
        CHECK(pthread_create(&m[i].other, NULL, other_end, &m[i]) == 0);
        net_transfer_start(threads, &m[i].t);
    }
    net_loop_run(loop);
    for (unsigned i = 0; i < MANY; i++) {
        pthread_join(m[i].other, NULL);
        CHECK(m[i].t.error == 0 && !m[i].t.ended && m[i].t.left == 0);
        CHECK_EQ(atomic_load(&m[i].t.moved), (size_t)SIZE);
        CHECK_EQ(m[i].crc, crc32c(0, m[i].expected, SIZE));
        CHECK(memcmp(m[i].memory, m[i].expected, SIZE) == 0);
        move_deinit(&m[i]);
    }
    stop();
    free(m);
}

TEST(many_at_once_in_one_thread) {
    run_many(1);
}

TEST(many_at_once_in_three_threads) {
    run_many(3);
}

/* One to come, one to go. */
static void start_both(unsigned n_threads, unsigned *until, struct move *in, struct move *out) {
    *until = 2;
    start(n_threads, until);
    move_init(in, true, SIZE, 1);
    move_init(out, false, SIZE, 2);
}

static void stop_both(struct move *in, struct move *out) {
    move_deinit(in);
    move_deinit(out);
    stop();
}

TEST(a_peer_that_ends_early_ends_the_transfer) {
    unsigned until;
    struct move in, out;
    start_both(1, &until, &in, &out);
    CHECK_EQ(send(in.peer, in.expected, 1000, 0), 1000);
    net_transfer_start(threads, &in.t);
    net_transfer_start(threads, &out.t);
    shutdown(in.peer, SHUT_WR);
    close(out.peer);
    net_loop_run(loop);
    CHECK(in.t.ended && in.t.error == 0 && in.t.left == SIZE - 1000u);
    CHECK(in.seen == 1000 && memcmp(in.memory, in.expected, 1000) == 0);
    CHECK(out.t.error == EPIPE || out.t.error == ECONNRESET);
    out.peer = dup(in.peer);
    stop_both(&in, &out);
}

/* How an owner that has to go gets its transfer back: asleep, or about to be. */
TEST(a_shutdown_from_this_side_does_so_too) {
    unsigned until;
    struct move in, out;
    start_both(2, &until, &in, &out);
    net_transfer_start(threads, &in.t);
    net_transfer_start(threads, &out.t);
    while (atomic_load(&out.t.moved) == 0) usleep(100);
    shutdown(in.t.fd, SHUT_RDWR);
    shutdown(out.t.fd, SHUT_RDWR);
    net_loop_run(loop);
    CHECK(in.t.ended && in.t.left == SIZE);
    CHECK(out.t.error == EPIPE && out.t.left > 0);
    stop_both(&in, &out);
}

/* What is waited for comes back, and nothing else. */
TEST(one_is_waited_for_while_others_are_through) {
    unsigned until = 2;
    struct move first, last, cut;
    start(1, &until);
    move_init(&first, true, 1000, 1);
    move_init(&cut, true, SIZE, 2);
    move_init(&last, true, 1000, 3);
    CHECK_EQ(send(first.peer, first.expected, 1000, 0), 1000);
    CHECK_EQ(send(last.peer, last.expected, 1000, 0), 1000);
    net_transfer_start(threads, &first.t);
    net_transfer_start(threads, &cut.t);
    net_transfer_start(threads, &last.t);
    shutdown(cut.t.fd, SHUT_RDWR);
    net_transfer_wait(threads, &cut.t);
    CHECK(over == 1 && cut.t.ended);
    net_transfer_wait(threads, &last.t);
    CHECK(over == 2 && last.t.left == 0);
    until = 3;
    net_loop_run(loop);
    CHECK(first.t.left == 0 && memcmp(first.memory, first.expected, 1000) == 0);
    move_deinit(&first);
    move_deinit(&last);
    move_deinit(&cut);
    stop();
}

TEST(what_is_under_way_at_the_end_is_canceled) {
    unsigned until = MANY;
    struct move m[4];
    start(2, &until);
    for (unsigned i = 0; i < 4; i++) {
        move_init(&m[i], i % 2 == 0, SIZE, i);
        net_transfer_start(threads, &m[i].t);
    }
    net_transfers_destroy(&threads);
    CHECK_EQ(over, 4u);
    for (unsigned i = 0; i < 4; i++) {
        CHECK_EQ(m[i].t.error, ECANCELED);
        move_deinit(&m[i]);
    }
    net_loop_destroy(&loop);
}

TEST_MAIN()
