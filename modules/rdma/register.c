/* Threads for what takes long: pinning gigabytes. One thread takes jobs in order; what a job does
 * to many chunks at a time is spread over some more, for as long as it takes.
 *
 *   IDLE --start--> QUEUED --> RUNNING --> DONE --start--> ...          stop: QUEUED -> IDLE, RUNNING -> wait for DONE */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "rdma/rdma.h"

enum { IDLE, QUEUED, RUNNING, DONE }; /* rdma_job.state, under the lock */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a job's state, or end */
    TAILQ_HEAD(, rdma_job) queue;
    pthread_t thread;
    bool started, end;
} worker = {.lock = PTHREAD_MUTEX_INITIALIZER,
            .changed = PTHREAD_COND_INITIALIZER,
            .queue = TAILQ_HEAD_INITIALIZER(worker.queue)};

/* --- many at once --- */

struct share {
    void (*fn)(void *arg, size_t i);
    void *arg;
    size_t n, next; /* atomic */
};

static void *work_share(void *arg) {
    struct share *s = arg;
    for (size_t i; (i = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) < s->n;)
        s->fn(s->arg, i);
    return NULL;
}

void rdma_parallel(void (*fn)(void *arg, size_t i), void *arg, size_t n) {
    enum { THREADS_MAX = 64 };
    pthread_t thread[THREADS_MAX];
    struct share s = {.fn = fn, .arg = arg, .n = n};
    size_t want = min_u64(min_u64(n, rdma_options.register_threads), THREADS_MAX), started = 0;
    while (started + 1 < want && pthread_create(&thread[started], NULL, work_share, &s) == 0)
        started++;
    work_share(&s);
    for (size_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
}

/* --- one after another --- */

/* Under the lock: who finds it done may free it, and close the descriptor. */
static void finish(struct rdma_job *t) {
    uint64_t one = 1;
    t->state = DONE;
    ssize_t n = write(t->kick_fd, &one, sizeof(one));
    (void)n; /* full means awake already */
    pthread_cond_broadcast(&worker.changed);
}

static void *work_jobs(void *arg) {
    (void)arg;
    pthread_mutex_lock(&worker.lock);
    for (;;) {
        struct rdma_job *t = TAILQ_FIRST(&worker.queue);
        if (t == NULL && worker.end) break;
        if (t == NULL) {
            pthread_cond_wait(&worker.changed, &worker.lock);
            continue;
        }
        TAILQ_REMOVE(&worker.queue, t, link);
        t->state = RUNNING;
        pthread_mutex_unlock(&worker.lock);
        t->run(t);
        pthread_mutex_lock(&worker.lock);
        finish(t);
    }
    pthread_mutex_unlock(&worker.lock);
    return NULL;
}

void rdma_job_start(struct rdma_job *t) {
    pthread_mutex_lock(&worker.lock);
    TARN_ASSERT(t->state == IDLE || t->state == DONE);
    if (!worker.started) {
        worker.end = false;
        worker.started = pthread_create(&worker.thread, NULL, work_jobs, NULL) == 0;
    }
    if (worker.started) {
        t->state = QUEUED;
        TAILQ_INSERT_TAIL(&worker.queue, t, link);
        pthread_cond_broadcast(&worker.changed);
    } else {
        log_warning("RDMA: no thread for registering memory: it is done at once, and waited for");
        t->run(t);
        finish(t);
    }
    pthread_mutex_unlock(&worker.lock);
}

bool rdma_job_done(const struct rdma_job *t) {
    pthread_mutex_lock(&worker.lock);
    bool done = t->state == DONE;
    pthread_mutex_unlock(&worker.lock);
    return done;
}

bool rdma_job_stop(struct rdma_job *t) {
    pthread_mutex_lock(&worker.lock);
    if (t->state == QUEUED) {
        TAILQ_REMOVE(&worker.queue, t, link);
        t->state = IDLE;
    }
    while (t->state == RUNNING) pthread_cond_wait(&worker.changed, &worker.lock);
    bool ran = t->state == DONE;
    pthread_mutex_unlock(&worker.lock);
    return ran;
}

void rdma_jobs_end(void) {
    pthread_mutex_lock(&worker.lock);
    TARN_ASSERT(TAILQ_EMPTY(&worker.queue));
    bool started = worker.started;
    worker.end = true;
    worker.started = false;
    pthread_cond_broadcast(&worker.changed);
    pthread_mutex_unlock(&worker.lock);
    if (started) pthread_join(worker.thread, NULL);
}
