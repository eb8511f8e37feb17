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

struct lane { /* the engine of a session */
    uint64_t session;
    struct engine *engine;
    uint64_t used_ms;
};

struct worker {
    struct mover *mover;
    pthread_t thread;
    pthread_cond_t wake;
    bool idle;                       /* waits for wake; by the lock, as the next four */
    const struct mover_job *running; /* the first of its batch: where its thread is busy */
    uint64_t running_since_ms;
    uint64_t *ended; /* sessions to let go of */
    size_t n_ended, cap_ended;
    struct lane lanes[LANES_MAX]; /* the thread's own */
    size_t n_lanes, counted_lanes;
};

struct mover {
    uint32_t magic;
    struct mover_config config;
    pthread_mutex_t lock;
    bool stopping;
    struct mover_job *queue, **queue_tail;
    struct mover_job *finished, **finished_tail;
    size_t accepted; /* queued, running, or not yet handed back */
    int event_fd;
    struct mover_stats stats;
    unsigned started; /* threads */
    struct worker workers[MOVER_THREADS_MAX];
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
static bool crowded(const struct mover *m, const struct mover_job *job) {
    unsigned there = 0;
    for (unsigned i = 0; i < m->started; i++) {
        const struct mover_job *other = m->workers[i].running;
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

static struct worker *worker_of(struct mover *m, uint64_t session) {
    return &m->workers[session % m->started];
}

static bool may_take(struct mover *m, const struct worker *w, const struct mover_job *job,
                     uint64_t now_ms) {
    if (crowded(m, job)) return false;
    if (job->file_path != NULL || !job->op.write) return true;
    const struct worker *owner = worker_of(m, job->session);
    return owner == w || (owner->running != NULL && now_ms - owner->running_since_ms > STUCK_MS);
}

/* --- the queue, under the lock --- */

static bool wake_worker(struct worker *w) {
    if (!w->idle) return false;
    w->idle = false;
    pthread_cond_signal(&w->wake);
    return true;
}

/* Somebody who can do it, or at least watch who should: a busy thread looks at the queue anyway
 * when it is done. */
static void wake_for(struct mover *m, const struct mover_job *job) {
    bool write = job->file_path == NULL && job->op.write;
    if (write && wake_worker(worker_of(m, job->session))) return;
    for (unsigned i = 0; i < m->started; i++)
        if (wake_worker(&m->workers[i])) return;
}

static void wake_all(struct mover *m) {
    for (unsigned i = 0; i < m->started; i++) wake_worker(&m->workers[i]);
}

static void enqueue(struct mover_job ***tail_p, struct mover_job *job) {
    job->next = NULL;
    **tail_p = job;
    *tail_p = &job->next;
}

static struct mover_job *unlink_at(struct mover *m, struct mover_job **at) {
    struct mover_job *job = *at;
    *at = job->next;
    if (m->queue_tail == &job->next) m->queue_tail = at;
    job->next = NULL;
    m->stats.queued--;
    return job;
}

static void finish(struct mover *m, struct mover_job *job) {
    bool was_empty = m->finished == NULL;
    job->state = MOVER_DONE;
    enqueue(&m->finished_tail, job);
    m->stats.done++;
    if (job->op.status != TARN_OK)
        m->stats.failed++;
    else if (job->op.write)
        m->stats.bytes_written += job->bytes;
    else
        m->stats.bytes_read += job->bytes;
    if (was_empty) eventfd_write(m->event_fd, 1);
}

/* What this thread does next; 0: nothing that it may. */
static size_t take(struct mover *m, struct worker *w, struct mover_job *batch[BATCH_MAX]) {
    struct mover_job **at = &m->queue;
    unsigned looked = 0;
    uint64_t now_ms = clock_mono_ms(), bytes = 0;
    size_t n = 0;
    while (*at != NULL && looked++ < SCAN_MAX && !may_take(m, w, *at, now_ms)) at = &(*at)->next;
    if (*at == NULL || looked > SCAN_MAX) return 0;
    batch[n++] = unlink_at(m, at);
    bytes = batch[0]->bytes;
    while (*at != NULL && n < BATCH_MAX && looked++ < SCAN_MAX && bytes < BATCH_BYTES) {
        if (!goes_along(batch[0], *at)) {
            at = &(*at)->next;
            continue;
        }
        batch[n] = unlink_at(m, at);
        bytes += batch[n++]->bytes;
    }
    for (size_t i = 0; i < n; i++) batch[i]->state = MOVER_RUNNING;
    w->running = batch[0];
    w->running_since_ms = now_ms;
    m->stats.running += n;
    m->stats.batches++;
    return n;
}

/* --- engines of sessions; without the lock --- */

static void lane_close(struct worker *w, size_t i) {
    engine_destroy(&w->lanes[i].engine);
    w->lanes[i] = w->lanes[--w->n_lanes];
}

static tarn_status lane_get(struct worker *w, uint64_t session, struct engine **engine_p) {
    size_t oldest = 0;
    uint64_t now_ms = clock_mono_ms();
    for (size_t i = 0; i < w->n_lanes; i++) {
        struct lane *l = &w->lanes[i];
        if (l->session == session) {
            l->used_ms = now_ms;
            *engine_p = l->engine;
            return TARN_OK;
        }
        if (l->used_ms < w->lanes[oldest].used_ms) oldest = i;
    }
    if (w->n_lanes == LANES_MAX) lane_close(w, oldest);
    struct lane *l = &w->lanes[w->n_lanes];
    tarn_status status = engine_create(&w->mover->config.engine, &l->engine);
    if (status != TARN_OK) return status;
    l->session = session;
    l->used_ms = now_ms;
    w->n_lanes++;
    *engine_p = l->engine;
    return TARN_OK;
}

static void lanes_end(struct worker *w, const uint64_t *ended, size_t n) {
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < w->n_lanes; i++)
            if (w->lanes[i].session == ended[k]) {
                lane_close(w, i);
                break;
            }
}

/* --- the work; without the lock --- */

static tarn_status run_file(struct mover_job *job) {
    struct engine_op *op = &job->op;
    if (op->write) return TARN_EINVAL;
    if (job->deadline_boot_ms != 0 && clock_boot_ms() >= job->deadline_boot_ms)
        return TARN_ETIMEOUT;
    int fd = open(job->file_path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        bool gone =
            errno == ENOENT && (job->file_root == NULL || access(job->file_root, F_OK) == 0);
        log_verbose("%s: %s", job->file_path, strerror(errno));
        return gone ? TARN_ENOTFOUND : TARN_EIO;
    }
    tarn_status status = placed_file_read(fd, job->file_offset, op);
    close(fd);
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

static void run(struct worker *w, struct mover_job **batch, size_t n) {
    struct engine_op ops[BATCH_MAX];
    struct mover_job *taken[BATCH_MAX];
    struct engine *e = NULL;
    size_t k = 0;
    if (batch[0]->file_path != NULL) {
        batch[0]->op.status = run_file(batch[0]);
        return;
    }
    tarn_status status = lane_get(w, batch[0]->session, &e);
    uint64_t deadline = batch[0]->deadline_boot_ms;
    for (size_t i = 0; i < n; i++) {
        struct mover_job *job = batch[i];
        job->op.status = status != TARN_OK ? status : tell_segments(e, job);
        if (job->op.status != TARN_OK) continue;
        taken[k] = job;
        ops[k++] = job->op;
        deadline = min_u64(deadline, job->deadline_boot_ms);
    }
    if (k == 0) return;
    status = engine_run(e, ops, k, deadline);
    for (size_t i = 0; i < k; i++) {
        taken[i]->op = ops[i];
        if (status != TARN_OK) taken[i]->op.status = status;
    }
}

/* Under the lock. */
static void count_lanes(struct mover *m, struct worker *w) {
    m->stats.sessions += w->n_lanes - w->counted_lanes;
    w->counted_lanes = w->n_lanes;
}

/* What nobody used for a while need not be kept open. */
static void lanes_rest(struct worker *w) {
    uint64_t now_ms = clock_mono_ms();
    for (size_t i = w->n_lanes; i-- > 0;) {
        if (now_ms - w->lanes[i].used_ms >= w->mover->config.engine.idle_close_ms)
            lane_close(w, i);
        else
            engine_rest(w->lanes[i].engine);
    }
}

/* Under the lock, which is given up meanwhile. true: it is time for a look at the connections. */
static bool sleep_until_woken(struct mover *m, struct worker *w) {
    uint64_t rest_ms = min_u64(REST_MS, max_u64(m->config.engine.idle_close_ms, 10));
    uint64_t ms = m->queue != NULL ? STUCK_MS : rest_ms;
    w->idle = true;
    while (w->idle && thread_cond_wait(&w->wake, &m->lock, ms)) continue;
    bool woken = !w->idle;
    w->idle = false;
    return !woken && m->queue == NULL;
}

/* Lets go of the sessions that ended. Under the lock, which is given up meanwhile. */
static void end_sessions(struct mover *m, struct worker *w) {
    uint64_t *ended = w->ended;
    size_t n = w->n_ended;
    w->ended = NULL;
    w->n_ended = w->cap_ended = 0;
    pthread_mutex_unlock(&m->lock);
    lanes_end(w, ended, n);
    free(ended);
    pthread_mutex_lock(&m->lock);
    count_lanes(m, w);
}

static void *work(void *arg) {
    struct worker *w = arg;
    struct mover *m = w->mover;
    struct mover_job *batch[BATCH_MAX];
    pthread_mutex_lock(&m->lock);
    for (;;) {
        if (w->n_ended > 0) {
            end_sessions(m, w);
            continue;
        }
        if (m->stopping) break;
        size_t n = take(m, w, batch);
        if (n == 0) {
            bool rest = sleep_until_woken(m, w);
            if (!rest || w->n_lanes == 0) continue;
            pthread_mutex_unlock(&m->lock);
            lanes_rest(w);
            pthread_mutex_lock(&m->lock);
            count_lanes(m, w);
            continue;
        }
        pthread_mutex_unlock(&m->lock);
        run(w, batch, n);
        pthread_mutex_lock(&m->lock);
        count_lanes(m, w);
        w->running = NULL;
        m->stats.running -= n;
        for (size_t i = 0; i < n; i++) finish(m, batch[i]);
        /* others may have waited for this host to be less crowded */
        if (m->queue != NULL) wake_all(m);
    }
    pthread_mutex_unlock(&m->lock);
    while (w->n_lanes > 0) lane_close(w, w->n_lanes - 1);
    return NULL;
}

/* --- the owner's side --- */

tarn_status mover_create(const struct mover_config *config, struct mover **mover_p) {
    if (config->threads == 0 || config->threads > MOVER_THREADS_MAX || config->queue == 0)
        return TARN_EINVAL;
    struct mover *m = xcalloc(1, sizeof(*m));
    m->magic = MOVER_MAGIC;
    m->config = *config;
    m->queue_tail = &m->queue;
    m->finished_tail = &m->finished;
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
        struct worker *w = &m->workers[i];
        thread_cond_init(&w->wake);
        w->mover = m;
        int error = thread_start(&w->thread, "tarn-mover", work, w);
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
        enqueue(&m->queue_tail, job);
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
    if (job->state == MOVER_QUEUED) {
        struct mover_job **at = &m->queue;
        while (*at != job) at = &(*at)->next;
        unlink_at(m, at);
        job->op.status = TARN_ECANCELED;
        finish(m, job);
    }
    pthread_mutex_unlock(&m->lock);
}

void mover_session_end(struct mover *m, uint64_t session) {
    MAGIC_CHECK(m, MOVER_MAGIC);
    pthread_mutex_lock(&m->lock);
    for (unsigned i = 0; i < m->started; i++) {
        struct worker *w = &m->workers[i];
        ARRAY_GROW(w->ended, w->n_ended, w->cap_ended);
        w->ended[w->n_ended++] = session;
    }
    wake_all(m);
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
    struct mover_job *job = m->finished;
    m->finished = NULL;
    m->finished_tail = &m->finished;
    pthread_mutex_unlock(&m->lock);
    while (job != NULL) {
        struct mover_job *next = job->next;
        pthread_mutex_lock(&m->lock);
        m->accepted--;
        job->state = MOVER_IDLE;
        pthread_mutex_unlock(&m->lock);
        job->done(job);
        job = next;
    }
}

void mover_destroy(struct mover **mover_p) {
    struct mover *m = *mover_p;
    if (m == NULL) return;
    MAGIC_CHECK(m, MOVER_MAGIC);
    *mover_p = NULL;
    pthread_mutex_lock(&m->lock);
    m->stopping = true;
    while (m->queue != NULL) {
        struct mover_job *job = unlink_at(m, &m->queue);
        job->op.status = TARN_ECANCELED;
        finish(m, job);
    }
    wake_all(m);
    pthread_mutex_unlock(&m->lock);
    for (unsigned i = 0; i < m->started; i++) {
        pthread_join(m->workers[i].thread, NULL);
        free(m->workers[i].ended);
        pthread_cond_destroy(&m->workers[i].wake);
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
