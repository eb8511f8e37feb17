/* Turns come whatever happens; watches and timers do what they say. */
#include "net/net.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../test.h"
#include "base/ring.h"

static struct net_loop *loop;
static unsigned turns, wakes, reads, fired, turn_limit;
static uint64_t sleep_ms;
static struct net_watch watch;

static void woke(void *arg) {
    wakes++;
}

static uint64_t turn(void *arg) {
    if (++turns >= turn_limit) net_loop_stop(loop);
    return sleep_ms;
}

static void on_read(void *arg, unsigned events) {
    reads++;
}
static void on_timer(void *arg) {
    fired++;
}

static const struct net_hooks plain_hooks = {.woke = woke, .turn = turn};
static const struct net_hooks *hooks = &plain_hooks;

static void start(unsigned limit, uint64_t ms) {
    turns = wakes = reads = fired = 0;
    turn_limit = limit;
    sleep_ms = ms;
    loop = net_loop_create(hooks);
    CHECK(loop != NULL);
}

TEST(one_wake_per_turn) {
    start(50, 0);
    net_loop_run(loop);
    CHECK_EQ(turns, 50u);
    CHECK_EQ(wakes, 50u);
    net_loop_destroy(&loop);
    CHECK(loop == NULL);
}

/* What is always readable must not keep the loop from its turns. */
TEST(a_busy_descriptor_leaves_the_turns) {
    for (uint64_t ms = 0; ms <= 1; ms++) {
        int p[2];
        CHECK(pipe(p) == 0 && write(p[1], "x", 1) == 1);
        start(20, ms);
        net_watch_init(&watch, loop, p[0], on_read, NULL);
        CHECK_EQ(net_watch_set(&watch, NET_READ), TARN_OK);
        net_loop_run(loop);
        CHECK_EQ(turns, 20u);
        CHECK_EQ(reads, 20u);
        net_watch_set(&watch, 0);
        net_loop_destroy(&loop);
        close(p[0]);
        close(p[1]);
    }
}

/* --- rings --- */

static struct ring peer;
static struct net_ring *ring;
static int fds[2];
static unsigned got_events;
static char got[2 * RING_BYTES];
static ssize_t got_n;
static int got_errno;

/* What the first event brings. */
static void on_ring(void *arg, unsigned events) {
    struct iovec iov = {got, sizeof(got)};
    if (reads++ > 0) return;
    got_events = events;
    if (events & NET_READ) {
        got_n = net_ring_read(ring, &iov, 1);
        got_errno = errno;
    }
    if (arg != NULL) net_watch_set(&watch, 0);
    net_loop_stop(loop);
}

/* arg not NULL: the first event ends the watch. */
static void ring_start(void *arg) {
    int memory;
    start(1000000, 5);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    ring = net_ring_create(&memory);
    CHECK(ring != NULL && ring_open(&peer, memory));
    close(memory);
    net_watch_init(&watch, loop, fds[0], on_ring, arg);
    CHECK_EQ(net_watch_set(&watch, NET_READ), TARN_OK);
    CHECK_EQ(net_watch_ring(&watch, ring), TARN_OK);
}

static void ring_stop(void) {
    net_watch_set(&watch, 0);
    net_ring_destroy(&ring);
    CHECK(ring == NULL);
    net_loop_destroy(&loop);
    ring_close(&peer);
    close(fds[0]);
    if (fds[1] >= 0) close(fds[1]);
}

static void peer_puts(const char *data, size_t len, bool calls) {
    struct iovec iov = {(void *)(uintptr_t)data, len};
    CHECK_EQ(ring_write(&peer, &iov, 1), (ssize_t)len);
    if (calls && ring_calls(&peer, RING_WRITE)) CHECK_EQ(send(fds[1], "", 1, 0), 1);
}

static unsigned aheads;

static void on_ahead(void *arg, const struct span *came, size_t n) {
    CHECK(n == 2 && reads == 0);
    for (size_t i = 0; i < n; i++) CHECK(span_eq(came[i], SPAN("hello")));
    aheads++;
}

static void on_other(void *arg, unsigned events) {
    net_loop_stop(loop);
}

/* Before any of them is called; what one ring has alone is not worth it. */
TEST(what_rings_have_is_told_ahead) {
    static const struct net_hooks with = {.woke = woke, .turn = turn, .ahead = on_ahead};
    struct ring others_peer;
    struct net_watch other;
    struct iovec iov = {(char[]){"hello"}, 5};
    int memory, pair[2];
    aheads = 0;
    for (int both = 0; both < 2; both++) {
        hooks = &with;
        ring_start(NULL);
        hooks = &plain_hooks;
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
        struct net_ring *r = net_ring_create(&memory);
        CHECK(r != NULL && ring_open(&others_peer, memory));
        close(memory);
        net_watch_init(&other, loop, pair[0], on_other, NULL);
        CHECK_EQ(net_watch_set(&other, NET_READ), TARN_OK);
        CHECK_EQ(net_watch_ring(&other, r), TARN_OK);
        peer_puts("hello", 5, false);
        if (both) CHECK_EQ(ring_write(&others_peer, &iov, 1), 5);
        net_loop_run(loop);
        CHECK_EQ(aheads, both ? 1u : 0u);
        net_watch_set(&other, 0);
        net_ring_destroy(&r);
        ring_close(&others_peer);
        close(pair[0]);
        close(pair[1]);
        ring_stop();
    }
}

TEST(a_ring_is_looked_at_and_called) {
    ring_start(NULL);
    peer_puts("hello", 5, true);
    net_loop_run(loop);
    CHECK_EQ(got_n, 5);
    CHECK_EQ(got_events, (unsigned)NET_READ);
    CHECK_EQ(wakes, turns);
    CHECK(!net_ring_readable(ring));
    ring_stop();
    /* without a call, for it is awake in the beginning of the watch */
    ring_start(NULL);
    peer_puts("hello", 5, false);
    net_loop_run(loop);
    CHECK_EQ(got_n, 5);
    ring_stop();
}

TEST(a_ring_that_sleeps_is_called) {
    ring_start(NULL);
    turn_limit = 5;
    net_loop_run(loop); /* nothing is there: it is asleep */
    CHECK_EQ(reads, 0u);
    CHECK_EQ(peer.out->sleeps, 1u);
    ring_stop();
}

TEST(a_ring_waits_for_room) {
    static char full[RING_BYTES];
    struct iovec iov = {full, sizeof(full)};
    char call;
    ring_start(NULL);
    CHECK_EQ(net_ring_write(ring, &iov, 1), RING_BYTES);
    CHECK_EQ(net_ring_write(ring, &iov, 1), -1);
    CHECK_EQ(errno, EAGAIN);
    CHECK_EQ(net_watch_set(&watch, NET_READ | NET_WRITE), TARN_OK);
    turn_limit = 5;
    net_loop_run(loop);
    CHECK_EQ(reads, 0u);
    CHECK_EQ(peer.in->full, 1u);
    ring_stop();
    /* the peer sleeps, and is called for what is written */
    ring_start(NULL);
    CHECK_EQ(ring_sleep(&peer, RING_READ), 0u);
    CHECK_EQ(net_ring_write(ring, &iov, 1), RING_BYTES);
    CHECK_EQ(recv(fds[1], &call, 1, 0), 1);
    CHECK_EQ(call, 0);
    /* there is room again */
    CHECK_EQ(ring_read(&peer, &iov, 1), RING_BYTES);
    CHECK_EQ(net_watch_set(&watch, NET_READ | NET_WRITE), TARN_OK);
    net_loop_run(loop);
    CHECK_EQ(got_events, (unsigned)NET_WRITE);
    ring_stop();
}

TEST(the_end_of_a_ring_comes_last) {
    ring_start(NULL);
    peer_puts("last", 4, false);
    close(fds[1]);
    fds[1] = -1;
    net_loop_run(loop);
    CHECK_EQ(got_n, 4);
    ring_stop();
    ring_start(NULL);
    close(fds[1]);
    fds[1] = -1;
    net_loop_run(loop);
    CHECK_EQ(got_n, 0);
    CHECK(net_ring_readable(ring));
    ring_stop();
}

TEST(a_ring_with_nonsense_is_told_of) {
    ring_start(NULL);
    peer.out->head = RING_BYTES + 1;
    net_loop_run(loop);
    CHECK_EQ(got_n, -1);
    CHECK_EQ(got_errno, EPROTO);
    ring_stop();
}

/* What is always readable does not keep the loop from its turns, from descriptors, or from an
 * end of its own watch. */
static unsigned beside;
static void on_beside(void *arg, unsigned events) {
    beside++;
}
static void on_always(void *arg, unsigned events) {
    reads++;
}

TEST(a_busy_ring_leaves_the_turns) {
    struct net_watch other;
    int p[2];
    ring_start(NULL);
    watch.fn = on_always;
    peer_puts("x", 1, false);
    CHECK(pipe(p) == 0 && write(p[1], "x", 1) == 1);
    net_watch_init(&other, loop, p[0], on_beside, NULL);
    CHECK_EQ(net_watch_set(&other, NET_READ), TARN_OK);
    beside = 0;
    turn_limit = 160;
    net_loop_run(loop);
    CHECK_EQ(turns, 160u);
    CHECK_EQ(reads, 160u);
    CHECK(beside >= 20 && beside <= 160);
    net_watch_set(&other, 0);
    close(p[0]);
    close(p[1]);
    ring_stop();
    ring_start(&watch);
    peer_puts("x", 1, false);
    net_loop_run(loop);
    CHECK_EQ(reads, 1u);
    ring_stop();
}

TEST(timers_fire_once) {
    struct net_timer t;
    start(10, 5);
    net_timer_init(&t, loop, on_timer, NULL);
    net_timer_start(&t, 8);
    net_loop_run(loop);
    CHECK_EQ(fired, 1u);
    CHECK(!t.pending);
    net_loop_destroy(&loop);
}

TEST(listening) {
    const char *why = "";
    int fd, other;
    CHECK_EQ(net_listen_tcp("127.0.0.1", 0, 8, &fd, &why), TARN_OK);
    CHECK(net_port(fd) != 0);
    CHECK_EQ(net_listen_tcp("127.0.0.1", net_port(fd), 8, &other, &why), TARN_EIO);
    CHECK_EQ(net_listen_tcp("192.0.2.1", 0, 8, &other, &why), TARN_ENOTFOUND);
    close(fd);
}

TEST_MAIN()
