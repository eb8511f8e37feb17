#include "base/crew.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "../test.h"
#include "base/assert.h"
#include "base/thread.h"

#define JOBS 200

struct number {
    struct crew_job job;
    int value;
};

struct finished {
    struct crew_jobs jobs;
    unsigned n, cancelled;
    int event_fd;
};

static atomic_int sum;
static atomic_bool gate_open;

static bool add_up(struct crew_job *job) {
    atomic_fetch_add(&sum, CONTAINER_OF(job, struct number, job)->value);
    return true;
}

static bool wait_at_gate(struct crew_job *job) {
    while (!atomic_load(&gate_open)) usleep(100);
    return add_up(job);
}

static bool give_away(struct crew_job *job) {
    (void)add_up(job);
    free(CONTAINER_OF(job, struct number, job));
    return false;
}

static void take_in(void *arg, struct crew_job *job) {
    struct finished *f = arg;
    TAILQ_INSERT_TAIL(&f->jobs, job, link);
    f->n++;
    f->cancelled += job->cancelled;
    eventfd_write(f->event_fd, 1);
}

static void finished_init(struct finished *f) {
    *f = (struct finished){.event_fd = eventfd(0, EFD_CLOEXEC)};
    TAILQ_INIT(&f->jobs);
    atomic_store(&sum, 0);
    atomic_store(&gate_open, false);
}

static bool is_value(const struct crew_job *job, const void *arg) {
    return CONTAINER_OF(job, const struct number, job)->value == *(const int *)arg;
}

TEST(jobs_run_and_come_back) {
    struct finished f;
    struct number number[JOBS];
    struct crew c;
    finished_init(&f);
    CHECK_EQ(crew_start(&c, "crew-test", 3, take_in, &f), 0);
    for (int round = 0; round < 2; round++) {
        TAILQ_INIT(&f.jobs);
        for (int i = 0; i < JOBS; i++) {
            if (round == 0) number[i] = (struct number){.job.run = add_up, .value = i};
            crew_add(&c, &number[i].job);
        }
        for (int i = 0; i < JOBS; i++) crew_wait(&c, &number[i].job);
        CHECK_EQ(crew_job_state(&c, &number[0].job), CREW_DONE);
    }
    eventfd_t told = 0;
    CHECK_EQ(eventfd_read(f.event_fd, &told), 0);
    CHECK_EQ(told, 2 * JOBS);
    crew_stop(&c);
    CHECK_EQ(atomic_load(&sum), JOBS * (JOBS - 1));
    CHECK_EQ(f.cancelled, 0);
    close(f.event_fd);
}

TEST(what_is_queued_can_be_cancelled) {
    struct finished f;
    struct number number[4];
    struct crew c;
    finished_init(&f);
    CHECK_EQ(crew_start(&c, "crew-test", 1, take_in, &f), 0);
    for (int i = 0; i < 4; i++) {
        number[i] = (struct number){.job.run = i == 0 ? wait_at_gate : add_up, .value = 1 << i};
        crew_add(&c, &number[i].job);
    }
    while (crew_job_state(&c, &number[0].job) != CREW_RUNNING) usleep(100);
    int value = 4;
    CHECK_EQ(crew_cancel(&c, is_value, &value), 1);
    CHECK(number[2].job.cancelled);
    CHECK(TAILQ_FIRST(&f.jobs) == &number[2].job);
    value = 1;
    CHECK_EQ(crew_cancel(&c, is_value, &value), 0); /* it runs */
    atomic_store(&gate_open, true);
    crew_stop(&c);
    CHECK_EQ(atomic_load(&sum), 1 + 2 + 8);
    CHECK_EQ(f.n, 4);
    CHECK_EQ(f.cancelled, 1);
    close(f.event_fd);
}

TEST(threads_come_when_jobs_would_wait) {
    struct number number[4];
    struct crew c;
    atomic_store(&gate_open, false);
    CHECK_EQ(crew_start(&c, "crew-test", 3, NULL, NULL), 0);
    CHECK_EQ(c.n_threads, 1);
    for (int i = 0; i < 4; i++) {
        number[i] = (struct number){.job.run = wait_at_gate};
        crew_add(&c, &number[i].job);
    }
    for (int i = 0; i < 3; i++)
        while (crew_job_state(&c, &number[i].job) != CREW_RUNNING) usleep(100);
    CHECK_EQ(crew_job_state(&c, &number[3].job), CREW_QUEUED);
    CHECK_EQ(c.n_threads, 3);
    atomic_store(&gate_open, true);
    crew_stop(&c);
}

TEST(stop_waits_for_the_queue_even_when_paused) {
    struct finished f;
    struct crew c;
    finished_init(&f);
    CHECK_EQ(crew_start(&c, "crew-test", 2, NULL, NULL), 0);
    crew_pause(&c, true);
    for (int i = 0; i < JOBS; i++) {
        struct number *n = calloc(1, sizeof(*n));
        *n = (struct number){.job.run = give_away, .value = 1};
        crew_add(&c, &n->job);
    }
    CHECK_EQ(atomic_load(&sum), 0);
    crew_stop(&c);
    CHECK_EQ(atomic_load(&sum), JOBS);
    crew_stop(&c);
    CHECK_EQ(crew_cancel(&c, NULL, NULL), 0);
    close(f.event_fd);
}

static void *look_at_signals(void *arg) {
    sigset_t *blocked = arg;
    pthread_sigmask(SIG_SETMASK, NULL, blocked);
    return NULL;
}

TEST(threads_are_deaf_but_to_their_own_faults) {
    pthread_t thread;
    sigset_t blocked, mine;
    CHECK_EQ(thread_start(&thread, "crew-test", look_at_signals, &blocked), 0);
    pthread_join(thread, NULL);
    CHECK(sigismember(&blocked, SIGTERM) && sigismember(&blocked, SIGINT));
    CHECK(!sigismember(&blocked, SIGSEGV) && !sigismember(&blocked, SIGABRT));
    pthread_sigmask(SIG_SETMASK, NULL, &mine);
    CHECK(!sigismember(&mine, SIGTERM));
}

static void *count_me(void *arg) {
    atomic_fetch_add((atomic_int *)arg, 1);
    return NULL;
}

TEST(several_threads_do_one_thing_together) {
    for (unsigned n = 0; n < 5; n++) {
        atomic_int calls = 0;
        thread_run_together(n, "crew-test", count_me, &calls);
        CHECK_EQ(atomic_load(&calls), n < 1 ? 1 : (int)n);
    }
}

TEST(conditions_wait_for_a_time) {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    thread_cond_init(&cond);
    pthread_mutex_lock(&lock);
    while (thread_cond_wait(&cond, &lock, 2)) continue;
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&cond);
}

TEST_MAIN()
