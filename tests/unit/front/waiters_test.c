/* Who waits for a key is woken by it, and by nothing else; whoever stops waiting leaves nothing. */
#include "front.h"
#include "front/waiters.h"

struct wait {
    struct job job;
    struct waiter *waiter[2];
};

static unsigned closed;

static bool wake_up(struct client *c, struct job *job, unsigned *budget) {
    reply_simple(c, "awake");
    return true;
}

static void close_wait(struct client *c, struct job *job) {
    struct wait *w = CONTAINER_OF(job, struct wait, job);
    for (int i = 0; i < 2; i++) waiter_remove(&w->waiter[i]);
    waiter_remove(&w->waiter[0]); /* gone already */
    closed++;
}

/* MGET a b: for either of two keys. */
static void run_wait(struct client *c) {
    struct wait *w = xcalloc(1, sizeof(*w));
    w->job = (struct job){.step = wake_up, .close = close_wait, .deadline_ms = UINT64_MAX / 2};
    for (size_t i = 0; i < 2; i++) w->waiter[i] = waiter_add(&w->job, c->argv[1 + i]);
    job_start(c, &w->job);
}

static struct client *c[3];
static int fd[3];

static void begin(void) {
    front_functions[WIRE_mget] = run_wait;
    front_begin();
    closed = 0;
    for (int i = 0; i < 3; i++) fd[i] = call(&c[i]);
    CHECK_STR(say(fd[0], "MGET a b"), "");
    CHECK_STR(say(fd[1], "MGET b b"), "");
    CHECK_STR(say(fd[2], "MGET c d"), "");
    CHECK_EQ(waiters_count(), 6);
}

static void end(void) {
    for (int i = 0; i < 3; i++) close(fd[i]);
    front_end();
    CHECK_EQ(waiters_count(), 0);
    CHECK_EQ(closed, 3);
}

TEST(woken_by_their_keys) {
    begin();
    waiters_notify(NULL, SPAN("nobody's"));
    waiters_notify(NULL, SPAN(""));
    CHECK(!jobs_any_runnable());
    waiters_notify(NULL, SPAN("b"));
    waiters_notify(NULL, SPAN("a"));
    CHECK_STR(heard(fd[0]), "+awake");
    CHECK_STR(heard(fd[1]), "+awake");
    CHECK_STR(heard(fd[2]), "");
    CHECK_EQ(waiters_count(), 2);
    waiters_notify(NULL, SPAN("b")); /* nobody is left */
    waiters_wake_all();
    CHECK_STR(heard(fd[2]), "+awake");
    waiters_wake_all();
    end();
}

TEST(clients_that_go) {
    begin();
    client_close_soon(c[1]);
    turns(1);
    CHECK_EQ(waiters_count(), 4);
    waiters_notify(NULL, SPAN("b"));
    CHECK_STR(heard(fd[0]), "+awake");
    CHECK_EQ(waiters_count(), 2);
    end();
}

TEST_MAIN()
