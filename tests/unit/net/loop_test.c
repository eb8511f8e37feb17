/* Turns come whatever happens; watches and timers do what they say. */
#include "net/net.h"

#include <fcntl.h>
#include <unistd.h>
#include "../test.h"

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

static void start(unsigned limit, uint64_t ms) {
    struct net_hooks hooks = {NULL, woke, turn};
    turns = wakes = reads = fired = 0;
    turn_limit = limit;
    sleep_ms = ms;
    loop = net_loop_create(&hooks);
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
