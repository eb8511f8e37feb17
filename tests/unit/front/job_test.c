/* Jobs: they sleep and are woken, wait for readers of their replies, run within EXEC, and end with
 * their clients. */
#include "front.h"

/* --- a job that does as the test says --- */

struct steps {
    struct job job;
    unsigned left;  /* slices */
    bool past_time; /* answers whether its time was over */
};

static struct job *last;
static unsigned closed, slices, switches;
static struct client *stepped;

static bool one_step(struct client *c, struct job *job, unsigned *budget) {
    struct steps *s = CONTAINER_OF(job, struct steps, job);
    slices++;
    switches += stepped != NULL && stepped != c;
    stepped = c;
    *budget = 0;
    if (s->past_time) {
        reply_simple(c, turn.mono_ms >= job->deadline_ms ? "over" : "woken");
        return true;
    }
    if (s->left-- > 0) return false;
    reply_simple(c, "done");
    return true;
}

static void close_steps(struct client *c, struct job *job) {
    closed++;
}

static void start(struct client *c, unsigned left, uint64_t sleep_ms) {
    struct steps *s = xcalloc(1, sizeof(*s));
    s->job = (struct job){.step = one_step, .close = close_steps, .runnable = sleep_ms == 0};
    if (sleep_ms > 0) s->job.deadline_ms = turn.mono_ms + sleep_ms;
    s->left = left;
    s->past_time = sleep_ms > 0;
    last = &s->job;
    job_start(c, &s->job);
}
static void run_long(struct client *c) {
    start(c, 5, 0);
}
static void run_sleeps(struct client *c) {
    start(c, 0, 3600000);
}
static void run_naps(struct client *c) {
    start(c, 0, 20);
}
/* 100 replies of 1000 bytes, each in a slice of its own, then the last word. */
static bool talk(struct client *c, struct job *job, unsigned *budget) {
    static const char text[1000] = {'x'};
    struct steps *s = CONTAINER_OF(job, struct steps, job);
    slices++;
    *budget = 0;
    reply_bulk(c, span_of(text, sizeof(text)));
    return s->left-- == 0;
}
static void run_talks(struct client *c) {
    struct steps *s = xcalloc(1, sizeof(*s));
    *s = (struct steps){.job = {.step = talk, .close = close_steps, .runnable = true}, .left = 99};
    job_start(c, &s->job);
}

static struct client *c, *d;
static int fd, other;

static void begin(void) {
    front_functions[WIRE_get] = run_long;
    front_functions[WIRE_getdel] = run_sleeps;
    front_functions[WIRE_getex] = run_naps;
    front_functions[WIRE_strlen] = run_talks;
    front_begin();
    closed = slices = switches = 0;
    stepped = NULL;
    fd = call(&c);
    other = call(&d);
}

static void end(void) {
    close(fd);
    close(other);
    front_end();
    CHECK_EQ(jobs_count(), 0);
    CHECK_EQ(jobs_sleeping(), 0);
}

TEST(slices_of_two_take_turns) {
    begin();
    CHECK(write(fd, "GET k\r\n", 7) == 7 && write(other, "GET k\r\n", 7) == 7);
    turns(1);
    CHECK_EQ(jobs_count(), 2);
    CHECK(jobs_any_runnable());
    CHECK_EQ(jobs_next_ms(1000), 1000); /* none of them sleeps */
    turns(10);
    CHECK_STR(heard(fd), "+done");
    CHECK_STR(heard(other), "+done");
    CHECK_EQ(slices, 12);
    CHECK(switches >= 8 && closed == 2);
    end();
}

TEST(what_comes_behind_waits_for_its_end) {
    begin();
    CHECK(write(fd, "GET k\r\nPING\r\n", 13) == 13);
    turns(1);
    CHECK(c->job != NULL);
    turns(10);
    CHECK_STR(heard(fd), "+done +OK");
    end();
}

TEST(a_sleeping_one_is_woken_once) {
    begin();
    CHECK_STR(say(fd, "GETDEL k"), "");
    CHECK(jobs_sleeping() == 1 && !jobs_any_runnable());
    CHECK(job_awaits(c));
    CHECK(jobs_next_ms(1000) > 0);
    struct job *job = last;
    job_wake(job);
    CHECK(jobs_any_runnable() && jobs_sleeping() == 0);
    job_wake(job); /* nothing more */
    CHECK_STR(heard(fd), "+woken");
    CHECK_EQ(slices, 1);
    CHECK_EQ(closed, 1);
    end();
}

TEST(its_time_is_over) {
    begin();
    CHECK(write(fd, "GETEX k\r\n", 9) == 9);
    for (int i = 0; i < 10000 && closed == 0; i++) {
        turns(1);
        usleep(1000);
    }
    CHECK_STR(heard(fd), "+over");
    end();
}

TEST(unblocked_by_another) {
    begin();
    CHECK(!job_unblock(c, false)); /* it does nothing */
    CHECK_STR(say(fd, "GETDEL k"), "");
    CHECK(job_unblock(c, false));
    CHECK(!job_awaits(c)); /* it is on its way */
    CHECK(!job_unblock(c, true));
    CHECK_STR(heard(fd), "+over");
    CHECK_STR(say(fd, "GETDEL k"), "");
    CHECK(write(fd, "PING\r\n", 6) == 6);
    CHECK(job_unblock(c, true));
    CHECK_STR(heard(fd), "-UNBLOCKED client unblocked via CLIENT UNBLOCK +OK");
    CHECK_EQ(closed, 2);
    CHECK_STR(say(other, "GET k"), ""); /* a runnable one is not unblocked */
    turns(1);
    CHECK(d->job == NULL || !job_unblock(d, true));
    CHECK_STR(heard(other), "+done");
    end();
}

TEST(a_client_that_goes_ends_it_wherever_it_is) {
    begin();
    CHECK_STR(say(fd, "GETDEL k"), "");
    CHECK(write(other, "GET k\r\n", 7) == 7);
    turns(1);
    CHECK_EQ(jobs_count(), 2);
    client_close_soon(c);
    client_close_soon(d);
    turns(1);
    CHECK(jobs_count() == 0 && jobs_sleeping() == 0 && !jobs_any_runnable());
    CHECK_EQ(closed, 2);
    end();
}

TEST(replies_that_are_not_read_hold_it_up) {
    begin();
    front_values.output_pause = 5000;
    int small = 4096;
    CHECK_EQ(setsockopt(c->io->watch.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    CHECK(write(fd, "STRLEN k\r\n", 10) == 10);
    turns(300);
    CHECK(c->job != NULL && !jobs_any_runnable());
    CHECK(slices < 100);
    CHECK(client_unsent(c) > front_values.output_pause);
    CHECK(!job_awaits(c)); /* it does not wait for anything that others know of */
    CHECK(!job_unblock(c, false));
    unsigned before = slices;
    for (int i = 0; i < 1000 && closed == 0; i++) (void)heard(fd);
    while (heard(fd)[0] != '\0') continue;
    CHECK(slices > before && closed == 1);
    CHECK_EQ(slices, 100);
    end();
}

TEST(within_exec_the_outer_one_waits_for_it) {
    begin();
    CHECK_STR(say(fd, "MULTI"), "+OK");
    CHECK_STR(say(fd, "GET k"), "+QUEUED");
    CHECK_STR(say(fd, "PING"), "+QUEUED");
    CHECK_STR(say(fd, "GETEX k"), "+QUEUED");
    CHECK(write(fd, "EXEC\r\n", 6) == 6);
    turns(1);
    CHECK_EQ(jobs_count(), 1); /* for whoever looks it is one */
    CHECK(c->job != NULL && c->job->outer != NULL);
    CHECK(!job_awaits(c) && !job_unblock(c, false)); /* a wait within EXEC is not the client's */
    for (int i = 0; i < 10000 && closed < 2; i++) {
        turns(1);
        usleep(1000);
    }
    CHECK_STR(heard(fd), "*3 +done +OK +over");
    CHECK_STR(say(fd, "MULTI"), "+OK");
    CHECK_STR(say(fd, "GETDEL k"), "+QUEUED");
    CHECK_STR(say(fd, "EXEC"), "*1");
    client_close_soon(c); /* both */
    turns(1);
    CHECK(jobs_count() == 0 && jobs_sleeping() == 0);
    CHECK_EQ(closed, 3);
    end();
}

TEST_MAIN()
