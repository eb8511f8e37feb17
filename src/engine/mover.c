/* One queue for all threads. A thread takes the first job that it may, and further ones to the same
 * host; runs them on its engine for their session; hands them back. Reads go to whoever is free;
 * the writes of a session go to one thread, so that there is one set of connections for it, unless
 * that thread is stuck.
 *
 *   job:  idle ─submit─> queued ─taken─> running ─> done ─poll─> idle (the owner's again)
 *                          └─────────cancel──────────^
 *
 * One lock for everything but the engines, which belong to their thread; it is never held while
 * bytes move. */
#include "engine/mover.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/iov.h"
#include "base/log.h"
#include "base/thread.h"
#include "engine/placed.h"

#define MOVER_MAGIC 0x4d6f7672u /* "Movr" */
#define BATCH_MAX   32u
#define BATCH_BYTES (UINT64_C(1) << 20) /* more than that is better spread over threads */
#define SCAN_MAX    256u                /* jobs that a thread looks at to find one it may take */
#define NEAR_MS                                                                                    \
    1000u /* jobs of a batch have one deadline: the earliest, so these must not differ more */
#define LANES_MAX 24u   /* engines of a thread; the one unused longest makes room */
#define STUCK_MS  200u  /* a thread that is busy for so long with one batch */
#define REST_MS   5000u /* between looks of an idle thread at its connections */

struct mover_lane { /* the engine of a session; its thread's */
    LIST_ENTRY(mover_lane) link;
    uint64_t session;
    struct engine *engine;
    uint64_t used_ms;
    bool over; /* the session is: by the lock */
};

struct mover_thread { /* all of it by the lock */
    struct mover *mover;
    pthread_t thread;
    pthread_cond_t wake;
    bool idle;                       /* waits for wake */
    bool ends;                       /* a lane is over */
    const struct mover_job *running; /* the first of its batch: where its thread is busy */
    uint64_t running_since_ms;
    LIST_HEAD(, mover_lane) lanes; /* changed by the thread only, which looks without the lock */
    size_t n_lanes;
};

TAILQ_HEAD(mover_jobs, mover_job);

struct mover {
    uint32_t magic;
    struct mover_config config;
    pthread_mutex_t lock;
    bool stopping;
    struct mover_jobs queue, finished;
    size_t accepted; /* queued, running, or not yet handed back */
    int event_fd;
    struct mover_stats stats;
    unsigned started; /* threads */
    struct mover_thread threads[MOVER_THREADS_MAX];
};

/* --- where jobs go --- */

/* The first part stands for all: a value lies in segments of one host. Files are one slow host,
 * too. */
static bool same_host(const struct mover_job *a, const struct mover_job *b) {
    if (a->file_path != NULL || b->file_path != NULL)
        return a->file_path != NULL && b->file_path != NULL;
    const struct engine_segment *x = a->segments[0], *y = b->segments[0];
    for (unsigned slot = 0; slot < TRANSPORTS_MAX; slot++) {
        const char *one = x->way[slot].uri, *other = y->way[slot].uri;
        if (one != NULL && other != NULL && strcmp(one, other) == 0) return true;
    }
    return false;
}

/* Would one more thread leave none for other hosts? */
static bool host_is_crowded(const struct mover *m, const struct mover_job *job) {
    unsigned there = 0;
    for (unsigned i = 0; i < m->started; i++) {
        const struct mover_job *other = m->threads[i].running;
        there += other != NULL && same_host(other, job);
    }
    return m->started > 1 && there + 1 >= m->started;
}

/* May b go into the batch that begins with a? */
static bool goes_along(const struct mover_job *a, const struct mover_job *b) {
    if (a->file_path != NULL || b->file_path != NULL) return false;
    uint64_t first = min_u64(a->deadline_boot_ms, b->deadline_boot_ms);
    uint64_t last = max_u64(a->deadline_boot_ms, b->deadline_boot_ms);
    return a->session == b->session && last - first <= NEAR_MS && same_host(a, b);
}

static struct mover_thread *writer_of(struct mover *m, uint64_t session) {
    return &m->threads[session % m->started];
}

static bool may_take(struct mover *m, const struct mover_thread *w, const struct mover_job *job,
                     uint64_t now_ms) {
    if (host_is_crowded(m, job)) return false;
    if (job->file_path != NULL || !job->op.write) return true;
    const struct mover_thread *owner = writer_of(m, job->session);
    return owner == w || (owner->running != NULL && now_ms - owner->running_since_ms > STUCK_MS);
}

/* --- the queue, under the lock --- */

static bool mover_wake(struct mover_thread *w) {
    if (!w->idle) return false;
    w->idle = false;
    pthread_cond_signal(&w->wake);
    return true;
}

/* Somebody who can do it, or at least watch who should: a busy thread looks at the queue anyway
 * when it is done. */
static void wake_for(struct mover *m, const struct mover_job *job) {
    bool write = job->file_path == NULL && job->op.write;
    if (write && mover_wake(writer_of(m, job->session))) return;
    for (unsigned i = 0; i < m->started; i++)
        if (mover_wake(&m->threads[i])) return;
}

static void mover_wake_all(struct mover *m) {
    for (unsigned i = 0; i < m->started; i++) mover_wake(&m->threads[i]);
}

static void job_unqueue(struct mover *m, struct mover_job *job) {
    TAILQ_REMOVE(&m->queue, job, link);
    m->stats.queued--;
}

static void job_finish(struct mover *m, struct mover_job *job) {
    bool was_empty = TAILQ_EMPTY(&m->finished);
    job->state = MOVER_DONE;
    TAILQ_INSERT_TAIL(&m->finished, job, link);
    m->stats.done++;
    if (job->op.status != TARN_OK)
        m->stats.failed++;
    else if (job->op.write)
        m->stats.bytes_written += job->bytes;
    else
        m->stats.bytes_read += job->bytes;
    if (was_empty) eventfd_write(m->event_fd, 1);
}

static void job_cancel(struct mover *m, struct mover_job *job) {
    job_unqueue(m, job);
    job->op.status = TARN_ECANCELED;
    job_finish(m, job);
}

/* What this thread does next; 0: nothing that it may. */
static size_t jobs_take(struct mover *m, struct mover_thread *w,
                        struct mover_job *batch[BATCH_MAX]) {
    struct mover_job *job, *next;
    unsigned looked = 0;
    uint64_t now_ms = clock_mono_ms(), bytes = 0;
    size_t n = 0;
    TAILQ_FOREACH_SAFE(job, &m->queue, link, next) {
        if (looked++ == SCAN_MAX || n == BATCH_MAX || bytes >= BATCH_BYTES) break;
        if (n == 0 ? !may_take(m, w, job, now_ms) : !goes_along(batch[0], job)) continue;
        job_unqueue(m, job);
        job->state = MOVER_RUNNING;
        bytes += job->bytes;
        batch[n++] = job;
    }
    if (n == 0) return 0;
    w->running = batch[0];
    w->running_since_ms = now_ms;
    m->stats.running += n;
    m->stats.batches++;
    return n;
}

/* --- engines of sessions; under the lock --- */

/* The lock is given up meanwhile. */
static void lane_close(struct mover_thread *w, struct mover_lane *l) {
    struct mover *m = w->mover;
    LIST_REMOVE(l, link);
    w->n_lanes--;
    m->stats.sessions--;
    pthread_mutex_unlock(&m->lock);
    engine_destroy(&l->engine);
    free(l);
    pthread_mutex_lock(&m->lock);
}

static tarn_status lane_get(struct mover_thread *w, uint64_t session, struct engine **engine_p) {
    struct mover_lane *l, *oldest = NULL;
    LIST_FOREACH(l, &w->lanes, link) {
        if (l->session == session) break;
        if (oldest == NULL || l->used_ms < oldest->used_ms) oldest = l;
    }
    if (l == NULL) {
        struct engine *e;
        tarn_status status = engine_create(&w->mover->config.engine, &e);
        if (status != TARN_OK) return status;
        if (w->n_lanes == LANES_MAX) lane_close(w, oldest);
        l = xcalloc(1, sizeof(*l));
        l->session = session;
        l->engine = e;
        LIST_INSERT_HEAD(&w->lanes, l, link);
        w->n_lanes++;
        w->mover->stats.sessions++;
    }
    l->used_ms = clock_mono_ms();
    *engine_p = l->engine;
    return TARN_OK;
}

/* Lets go of sessions that are over. */
static void lanes_end(struct mover_thread *w) {
    struct mover_lane *l, *next;
    w->ends = false;
    LIST_FOREACH_SAFE(l, &w->lanes, link, next) {
        if (l->over) lane_close(w, l);
    }
}

/* What nobody used for a while need not be kept open. */
static void lanes_rest(struct mover_thread *w) {
    struct mover_lane *l, *next;
    struct mover *m = w->mover;
    uint64_t now_ms = clock_mono_ms();
    LIST_FOREACH_SAFE(l, &w->lanes, link, next) {
        if (now_ms - l->used_ms >= m->config.engine.idle_close_ms) {
            lane_close(w, l);
            continue;
        }
        pthread_mutex_unlock(&m->lock);
        engine_rest(l->engine);
        pthread_mutex_lock(&m->lock);
    }
}

/* --- the work; without the lock --- */

static tarn_status run_file(struct mover_job *job) {
    struct engine_op *op = &job->op;
    if (op->write) return TARN_EINVAL;
    if (job->deadline_boot_ms != 0 && clock_boot_ms() >= job->deadline_boot_ms)
        return TARN_ETIMEOUT;
    int fd;
    tarn_status status = placed_file_open(job->file_path, 0, &fd);
    if (status == TARN_OK) {
        status = placed_file_read(fd, job->file_offset, op);
        close(fd);
    } else if (job->file_root != NULL && access(job->file_root, F_OK) != 0) {
        status = TARN_EIO; /* not the file, but all that lies there is away */
    }
    return status;
}

static tarn_status tell_segments(struct engine *e, const struct mover_job *job) {
    for (size_t i = 0; i < job->op.n_parts; i++) {
        const struct engine_segment *s = job->segments[i];
        if (i > 0 && s == job->segments[i - 1]) continue;
        if (engine_segment_same(e, s)) continue;
        tarn_status status = engine_segment_set(e, s);
        if (status != TARN_OK) return status;
    }
    return TARN_OK;
}

static void jobs_run(struct engine *e, struct mover_job **batch, size_t n) {
    struct engine_op ops[BATCH_MAX];
    struct mover_job *taken[BATCH_MAX];
    size_t k = 0;
    uint64_t deadline = batch[0]->deadline_boot_ms;
    for (size_t i = 0; i < n; i++) {
        struct mover_job *job = batch[i];
        job->op.status = tell_segments(e, job);
        if (job->op.status != TARN_OK) continue;
        taken[k] = job;
        ops[k++] = job->op;
        deadline = min_u64(deadline, job->deadline_boot_ms);
    }
    if (k == 0) return;
    tarn_status status = engine_run(e, ops, k, deadline);
    for (size_t i = 0; i < k; i++) {
        taken[i]->op = ops[i];
        if (status != TARN_OK) taken[i]->op.status = status;
    }
}

/* Under the lock, which is given up meanwhile. */
static void jobs_do(struct mover *m, struct mover_thread *w, struct mover_job **batch, size_t n) {
    struct engine *e = NULL;
    bool file = batch[0]->file_path != NULL;
    tarn_status status = file ? TARN_OK : lane_get(w, batch[0]->session, &e);
    pthread_mutex_unlock(&m->lock);
    if (file)
        batch[0]->op.status = run_file(batch[0]);
    else if (status == TARN_OK)
        jobs_run(e, batch, n);
    pthread_mutex_lock(&m->lock);
    w->running = NULL;
    m->stats.running -= n;
    for (size_t i = 0; i < n; i++) {
        if (status != TARN_OK) batch[i]->op.status = status;
        job_finish(m, batch[i]);
    }
    /* others may have waited for this host to be less crowded */
    if (!TAILQ_EMPTY(&m->queue)) mover_wake_all(m);
}

/* Under the lock, which is given up meanwhile. true: it is time for a look at the connections. */
static bool sleep_until_woken(struct mover *m, struct mover_thread *w) {
    uint64_t rest_ms = min_u64(REST_MS, max_u64(m->config.engine.idle_close_ms, 10));
    uint64_t ms = TAILQ_EMPTY(&m->queue) ? rest_ms : STUCK_MS;
    w->idle = true;
    while (w->idle && thread_cond_wait(&w->wake, &m->lock, ms)) continue;
    bool woken = !w->idle;
    w->idle = false;
    return !woken && TAILQ_EMPTY(&m->queue);
}

static void *mover_main(void *arg) {
    struct mover_thread *w = arg;
    struct mover *m = w->mover;
    struct mover_job *batch[BATCH_MAX];
    pthread_mutex_lock(&m->lock);
    for (;;) {
        while (w->ends) lanes_end(w);
        if (m->stopping) break;
        size_t n = jobs_take(m, w, batch);
        if (n > 0)
            jobs_do(m, w, batch, n);
        else if (sleep_until_woken(m, w))
            lanes_rest(w);
    }
    while (!LIST_EMPTY(&w->lanes)) lane_close(w, LIST_FIRST(&w->lanes));
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* --- the owner's side --- */

tarn_status mover_create(const struct mover_config *config, struct mover **mover_p) {
    if (config->threads == 0 || config->threads > MOVER_THREADS_MAX || config->queue == 0)
        return TARN_EINVAL;
    struct mover *m = xcalloc(1, sizeof(*m));
    m->magic = MOVER_MAGIC;
    m->config = *config;
    TAILQ_INIT(&m->queue);
    TAILQ_INIT(&m->finished);
    m->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (m->event_fd < 0) {
        log_warning("A mover cannot start: %s", strerror(errno));
        free(m);
        return TARN_EIO;
    }
    pthread_mutex_init(&m->lock, NULL);
    *mover_p = m;
    return TARN_OK;
}

/* All of them with the first job; fewer than asked for is no failure. */
static tarn_status start_threads(struct mover *m) {
    for (unsigned i = 0; i < m->config.threads; i++) {
        struct mover_thread *w = &m->threads[i];
        thread_cond_init(&w->wake);
        w->mover = m;
        int error = thread_start(&w->thread, "tarn-mover", mover_main, w);
        if (error != 0) {
            log_warning("A mover's thread cannot start: %s", strerror(error));
            pthread_cond_destroy(&w->wake);
            break;
        }
        m->started++;
    }
    return m->started > 0 ? TARN_OK : TARN_ENOMEM;
}

tarn_status mover_submit(struct mover *m, struct mover_job *job) {
    MAGIC_CHECK(m, MOVER_MAGIC);
    TARN_ASSERT(job->state == MOVER_IDLE || job->state == MOVER_DONE);
    TARN_ASSERT(job->done != NULL);
    TARN_ASSERT(job->file_path != NULL ||
                (job->session != 0 && job->segments != NULL && job->op.n_parts > 0));
    tarn_status status = TARN_OK;
    pthread_mutex_lock(&m->lock);
    if (m->stopping) {
        status = TARN_ECLOSED;
    } else if (m->accepted >= m->config.queue) {
        status = TARN_EAGAIN;
        m->stats.refused++;
    } else if (m->started == 0) {
        status = start_threads(m);
    }
    if (status == TARN_OK) {
        job->state = MOVER_QUEUED;
        job->bytes = iov_total(job->op.iov, job->op.n_iov);
        TAILQ_INSERT_TAIL(&m->queue, job, link);
        m->accepted++;
        m->stats.queued++;
        wake_for(m, job);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

void mover_cancel(struct mover *m, struct mover_job *job) {
    MAGIC_CHECK(m, MOVER_MAGIC);
    pthread_mutex_lock(&m->lock);
    if (job->state == MOVER_QUEUED) job_cancel(m, job);
    pthread_mutex_unlock(&m->lock);
}

void mover_session_end(struct mover *m, uint64_t session) {
    MAGIC_CHECK(m, MOVER_MAGIC);
    pthread_mutex_lock(&m->lock);
    for (unsigned i = 0; i < m->started; i++) {
        struct mover_lane *l;
        LIST_FOREACH(l, &m->threads[i].lanes, link) {
            if (l->session == session) l->over = m->threads[i].ends = true;
        }
    }
    mover_wake_all(m);
    pthread_mutex_unlock(&m->lock);
}

int mover_event_fd(const struct mover *m) {
    MAGIC_CHECK(m, MOVER_MAGIC);
    return m->event_fd;
}

void mover_poll(struct mover *m) {
    MAGIC_CHECK(m, MOVER_MAGIC);
    eventfd_t ignored;
    eventfd_read(m->event_fd, &ignored);
    pthread_mutex_lock(&m->lock);
    struct mover_jobs finished = TAILQ_HEAD_INITIALIZER(finished);
    struct mover_job *job;
    TAILQ_CONCAT(&finished, &m->finished, link);
    pthread_mutex_unlock(&m->lock);
    while ((job = TAILQ_TAKE(&finished, link)) != NULL) {
        pthread_mutex_lock(&m->lock);
        m->accepted--;
        job->state = MOVER_IDLE;
        pthread_mutex_unlock(&m->lock);
        job->done(job);
    }
}

void mover_destroy(struct mover **mover_p) {
    struct mover *m = *mover_p;
    if (m == NULL) return;
    MAGIC_CHECK(m, MOVER_MAGIC);
    *mover_p = NULL;
    pthread_mutex_lock(&m->lock);
    m->stopping = true;
    while (!TAILQ_EMPTY(&m->queue)) job_cancel(m, TAILQ_FIRST(&m->queue));
    mover_wake_all(m);
    pthread_mutex_unlock(&m->lock);
    for (unsigned i = 0; i < m->started; i++) {
        pthread_join(m->threads[i].thread, NULL);
        pthread_cond_destroy(&m->threads[i].wake);
    }
    mover_poll(m);
    TARN_ASSERT(m->accepted == 0);
    close(m->event_fd);
    pthread_mutex_destroy(&m->lock);
    m->magic = 0;
    free(m);
}

void mover_get_stats(struct mover *m, struct mover_stats *stats_p) {
    MAGIC_CHECK(m, MOVER_MAGIC);
    pthread_mutex_lock(&m->lock);
    *stats_p = m->stats;
    pthread_mutex_unlock(&m->lock);
}
