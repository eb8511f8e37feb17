/* Transfers of one file, many at a time: the line in front of the device, and the two ways behind
 * it. */
#include "pool/ssd_io_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
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

static struct ssd_io *threads_open(int *error_p);

tarn_status ssd_io_open(int fd, unsigned depth, struct ssd_io **io_p) {
    int error = test.no_uring ? EPERM : 0, wake_fd = eventfd(0, EFD_CLOEXEC);
    struct ssd_io *io = error == 0 ? ssd_uring_open(depth, &error) : NULL;
    if (io == NULL) {
        /* Once for each disk, and it costs throughput: worth a line. */
        log_notice("No io_uring (%s): reading and writing with threads", strerror(error));
        io = threads_open(&error);
    }
    if (io == NULL || wake_fd < 0) {
        log_warning("Disk I/O cannot be set up: %s", strerror(wake_fd < 0 ? errno : error));
        if (io != NULL) io->ops->close(io);
        if (wake_fd >= 0) close(wake_fd);
        return TARN_EIO;
    }
    STAILQ_INIT(&io->line);
    STAILQ_INIT(&io->failed);
    io->magic = SSD_IO_MAGIC;
    io->fd = fd;
    io->wake_fd = wake_fd;
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
    int wake_fd = io->wake_fd;
    io->ops->close(io);
    close(wake_fd);
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
    eventfd_write(io->wake_fd, 1);
}

/* Starts what the depth allows. */
static void io_start_line(struct ssd_io *io) {
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
    io_start_line(io);
    io->ops->wait(io, STAILQ_EMPTY(&io->failed) ? timeout_ms : 0);
    for (struct ssd_op *op; (op = STAILQ_TAKE(&io->failed, next)) != NULL;) op->done(op);
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
    struct crew crew;
    pthread_mutex_t lock;
    struct ssd_ops ended; /* under lock */
};

static bool threads_transfer(struct crew_job *job) {
    struct ssd_op *op = CONTAINER_OF(job, struct ssd_op, job);
    char *at = (char *)op->buffer + op->moved;
    off_t offset = (off_t)(op->offset + op->moved);
    ssize_t n = op->sync    ? fdatasync(op->fd)
                : op->write ? pwrite(op->fd, at, op->asked, offset)
                            : pread(op->fd, at, op->asked, offset);
    op->result = n < 0 ? -errno : (int)n;
    return true;
}

static void threads_transferred(void *arg, struct crew_job *job) {
    struct threads *t = arg;
    pthread_mutex_lock(&t->lock);
    STAILQ_INSERT_TAIL(&t->ended, CONTAINER_OF(job, struct ssd_op, job), next);
    pthread_mutex_unlock(&t->lock);
    ssd_io_wake(&t->io);
}

static bool threads_start(struct ssd_io *io, struct ssd_op *op) {
    struct threads *t = (struct threads *)io;
    op->fd = io->fd;
    op->job = (struct crew_job){.run = threads_transfer};
    crew_add(&t->crew, &op->job);
    return true;
}

static void threads_wait(struct ssd_io *io, int timeout_ms) {
    struct threads *t = (struct threads *)io;
    struct pollfd p = {.fd = io->wake_fd, .events = POLLIN};
    eventfd_t ignored;
    if (poll(&p, 1, timeout_ms) > 0) eventfd_read(io->wake_fd, &ignored);
    struct ssd_ops ended = STAILQ_HEAD_INITIALIZER(ended);
    pthread_mutex_lock(&t->lock);
    STAILQ_CONCAT(&ended, &t->ended);
    pthread_mutex_unlock(&t->lock);
    for (struct ssd_op *op; (op = STAILQ_TAKE(&ended, next)) != NULL;)
        ssd_io_ended(io, op, op->result);
}

static void threads_close(struct ssd_io *io) {
    struct threads *t = (struct threads *)io;
    crew_stop(&t->crew);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static const struct ssd_io_ops threads_ops = {
    .name = "threads",
    .start = threads_start,
    .wait = threads_wait,
    .close = threads_close,
};

static struct ssd_io *threads_open(int *error_p) {
    struct threads *t = xcalloc(1, sizeof(*t));
    pthread_mutex_init(&t->lock, NULL);
    STAILQ_INIT(&t->ended);
    t->io.ops = &threads_ops;
    *error_p = crew_start(&t->crew, "tarn-ssd-io", THREADS, threads_transferred, t);
    if (*error_p == 0) return &t->io;
    threads_close(&t->io);
    return NULL;
}
