/* Transfers of one file, many at a time: the line in front of the device, and the two ways behind
 * it. */
#include "pool/ssd_io_internal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"

static struct {
    ssd_io_fault_fn fault;
    void *arg;
    bool no_uring;
} test;

void ssd_io_set_fault(ssd_io_fault_fn fn, void *arg) {
    test.fault = fn;
    test.arg = arg;
}

void ssd_io_forbid_uring(bool forbidden) {
    test.no_uring = forbidden;
}

tarn_status ssd_io_open(int fd, unsigned depth, struct ssd_io **io_p) {
    int error = test.no_uring ? EPERM : 0;
    struct ssd_io *io = error == 0 ? ssd_uring_open(fd, depth, &error) : NULL;
    if (io == NULL) {
        /* Once for each disk, and it costs throughput: worth a line. */
        log_notice("No io_uring (%s): reading and writing with threads", strerror(error));
        io = ssd_threads_open(fd, &error);
    }
    if (io == NULL) {
        log_warning("Disk I/O cannot be set up: %s", strerror(error));
        return TARN_EIO;
    }
    TARN_ASSERT(io->ops->start != NULL && io->ops->wait != NULL && io->ops->wake != NULL);
    STAILQ_INIT(&io->line);
    STAILQ_INIT(&io->failed);
    io->magic = SSD_IO_MAGIC;
    io->fd = fd;
    io->depth = depth;
    *io_p = io;
    return TARN_OK;
}

void ssd_io_close(struct ssd_io **io_p) {
    struct ssd_io *io = *io_p;
    if (io == NULL) return;
    MAGIC_CHECK(io, SSD_IO_MAGIC);
    TARN_ASSERT(io->under_way == 0 && STAILQ_EMPTY(&io->line) && STAILQ_EMPTY(&io->failed));
    *io_p = NULL;
    io->magic = 0;
    io->ops->close(io);
}

const char *ssd_io_name(const struct ssd_io *io) {
    return io->ops->name;
}

void ssd_io_submit(struct ssd_io *io, struct ssd_op *op) {
    MAGIC_CHECK(io, SSD_IO_MAGIC);
    op->moved = 0;
    op->error = 0;
    STAILQ_INSERT_TAIL(&io->line, op, next);
}

void ssd_io_wake(struct ssd_io *io) {
    io->ops->wake(io);
}

/* Starts what the depth allows. */
static void start_line(struct ssd_io *io) {
    while (io->under_way < io->depth && !STAILQ_EMPTY(&io->line)) {
        struct ssd_op *op = STAILQ_FIRST(&io->line);
        op->asked = op->length - op->moved;
        int error = 0;
        if (test.fault != NULL && !op->sync)
            error = test.fault(test.arg, op->write, op->offset + op->moved, &op->asked);
        STAILQ_REMOVE_HEAD(&io->line, next);
        if (error == 0 && !io->ops->start(io, op)) {
            /* its own queue is full: when something is done */
            STAILQ_INSERT_HEAD(&io->line, op, next);
            return;
        }
        if (error != 0) {
            op->error = error;
            STAILQ_INSERT_TAIL(&io->failed, op, next);
        } else {
            io->under_way++;
        }
    }
}

void ssd_io_wait(struct ssd_io *io, int timeout_ms) {
    MAGIC_CHECK(io, SSD_IO_MAGIC);
    start_line(io);
    io->ops->wait(io, STAILQ_EMPTY(&io->failed) ? timeout_ms : 0);
    while (!STAILQ_EMPTY(&io->failed)) {
        struct ssd_op *op = STAILQ_FIRST(&io->failed);
        STAILQ_REMOVE_HEAD(&io->failed, next);
        op->done(op);
    }
}

void ssd_io_ended(struct ssd_io *io, struct ssd_op *op, int result) {
    TARN_ASSERT(io->under_way > 0);
    io->under_way--;
    if (result > 0) {
        TARN_ASSERT((size_t)result <= op->asked);
        op->moved += (size_t)result;
    } else if (result == 0 && op->length > 0) {
        op->error = op->write ? ENOSPC : EIO; /* a file that ends too early */
    } else if (result != -EINTR && result != -EAGAIN) {
        op->error = -result;
    }
    if (op->error == 0 && op->moved < op->length) {
        STAILQ_INSERT_HEAD(&io->line, op, next);
        return;
    }
    op->done(op);
}

/* --- threads --- */

#define THREADS 4u

struct threads {
    struct ssd_io io;
    pthread_t threads[THREADS];
    unsigned started;
    pthread_mutex_t lock;
    pthread_cond_t work, news;
    struct ssd_ops todo, ended; /* under lock, as all below */
    bool woken, closing;
};

static ssize_t transfer(int fd, const struct ssd_op *op) {
    if (op->sync) return fdatasync(fd);
    char *at = (char *)op->buffer + op->moved;
    off_t offset = (off_t)(op->offset + op->moved);
    return op->write ? pwrite(fd, at, op->asked, offset) : pread(fd, at, op->asked, offset);
}

static void *threads_run(void *arg) {
    struct threads *t = arg;
    pthread_mutex_lock(&t->lock);
    while (!t->closing) {
        struct ssd_op *op = STAILQ_FIRST(&t->todo);
        if (op == NULL) {
            pthread_cond_wait(&t->work, &t->lock);
            continue;
        }
        STAILQ_REMOVE_HEAD(&t->todo, next);
        pthread_mutex_unlock(&t->lock);
        ssize_t n = transfer(t->io.fd, op);
        int error = n < 0 ? errno : 0;
        pthread_mutex_lock(&t->lock);
        op->result = n < 0 ? -error : (int)n;
        STAILQ_INSERT_TAIL(&t->ended, op, next);
        pthread_cond_signal(&t->news);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static bool threads_start(struct ssd_io *io, struct ssd_op *op) {
    struct threads *t = (struct threads *)io;
    pthread_mutex_lock(&t->lock);
    STAILQ_INSERT_TAIL(&t->todo, op, next);
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->lock);
    return true;
}

static void threads_wait(struct ssd_io *io, int timeout_ms) {
    struct threads *t = (struct threads *)io;
    struct timespec until;
    if (timeout_ms > 0) {
        uint64_t ns = clock_mono_ns() + (uint64_t)timeout_ms * 1000000u;
        until = (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    }
    struct ssd_ops ended = STAILQ_HEAD_INITIALIZER(ended);
    pthread_mutex_lock(&t->lock);
    while (timeout_ms != 0 && !t->woken && STAILQ_EMPTY(&t->ended)) {
        if (timeout_ms < 0)
            pthread_cond_wait(&t->news, &t->lock);
        else if (pthread_cond_timedwait(&t->news, &t->lock, &until) != 0)
            break;
    }
    t->woken = false;
    STAILQ_CONCAT(&ended, &t->ended);
    pthread_mutex_unlock(&t->lock);
    while (!STAILQ_EMPTY(&ended)) {
        struct ssd_op *op = STAILQ_FIRST(&ended);
        STAILQ_REMOVE_HEAD(&ended, next);
        ssd_io_ended(io, op, op->result);
    }
}

static void threads_wake(struct ssd_io *io) {
    struct threads *t = (struct threads *)io;
    pthread_mutex_lock(&t->lock);
    t->woken = true;
    pthread_cond_signal(&t->news);
    pthread_mutex_unlock(&t->lock);
}

static void threads_close(struct ssd_io *io) {
    struct threads *t = (struct threads *)io;
    pthread_mutex_lock(&t->lock);
    t->closing = true;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    for (unsigned i = 0; i < t->started; i++) pthread_join(t->threads[i], NULL);
    pthread_cond_destroy(&t->work);
    pthread_cond_destroy(&t->news);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static const struct ssd_io_ops threads_ops = {
    .name = "threads",
    .start = threads_start,
    .wait = threads_wait,
    .wake = threads_wake,
    .close = threads_close,
};

struct ssd_io *ssd_threads_open(int fd, int *error_p) {
    struct threads *t = xcalloc(1, sizeof(*t));
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->news, &monotonic);
    pthread_condattr_destroy(&monotonic);
    STAILQ_INIT(&t->todo);
    STAILQ_INIT(&t->ended);
    t->io.ops = &threads_ops;
    t->io.fd = fd;
    sigset_t all, before; /* signals are for the program's own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    for (; t->started < THREADS; t->started++) {
        *error_p = pthread_create(&t->threads[t->started], NULL, threads_run, t);
        if (*error_p != 0) break;
        pthread_setname_np(t->threads[t->started], "tarn-ssd-io");
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (t->started == 0) {
        threads_close(&t->io);
        return NULL;
    }
    return &t->io;
}
