/* Transfers by io_uring (Axboe, "Efficient IO with io_uring", 2019), through liburing. */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "pool/ssd_io_internal.h"

struct uring {
    struct ssd_io io;
    struct io_uring ring;
    uint64_t wake_count; /* where the read of wake_fd that is always under way puts its number */
    bool wake_armed;
};

/* One transfer of more than this would be cut by the kernel anyway. */
#define TRANSFER_MAX (1u << 30)

static bool uring_start(struct ssd_io *io, struct ssd_op *op) {
    struct uring *u = (struct uring *)io;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (sqe == NULL) return false;
    if (op->sync) {
        io_uring_prep_fsync(sqe, io->fd, IORING_FSYNC_DATASYNC);
        io_uring_sqe_set_data(sqe, op);
        return true;
    }
    char *at = (char *)op->buffer + op->moved;
    unsigned n = (unsigned)min_u64(op->asked, TRANSFER_MAX);
    if (op->write)
        io_uring_prep_write(sqe, io->fd, at, n, op->offset + op->moved);
    else
        io_uring_prep_read(sqe, io->fd, at, n, op->offset + op->moved);
    io_uring_sqe_set_data(sqe, op);
    return true;
}

static void arm_wake(struct uring *u) {
    if (u->wake_armed) return;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (sqe == NULL) return; /* after the next submit */
    io_uring_prep_read(sqe, u->io.wake_fd, &u->wake_count, sizeof(u->wake_count), 0);
    io_uring_sqe_set_data(sqe, u);
    u->wake_armed = true;
}

static void uring_wait(struct ssd_io *io, int timeout_ms) {
    struct uring *u = (struct uring *)io;
    struct io_uring_cqe *cqe = NULL;
    arm_wake(u);
    int r;
    if (timeout_ms == 0) {
        r = io_uring_submit(&u->ring);
    } else {
        struct __kernel_timespec ts = {timeout_ms / 1000, timeout_ms % 1000 * 1000000ll};
        r = io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, timeout_ms < 0 ? NULL : &ts, NULL);
    }
    /* EAGAIN, EBUSY: the kernel is short of something; what could not go out goes out the next
     * time. */
    TARN_ASSERT(r >= 0 || r == -ETIME || r == -EINTR || r == -EAGAIN || r == -EBUSY ||
                r == -ENOMEM);
    while (io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        void *data = io_uring_cqe_get_data(cqe);
        int result = cqe->res;
        io_uring_cqe_seen(&u->ring, cqe);
        if (data == u)
            u->wake_armed = false;
        else
            ssd_io_ended(io, data, result);
    }
}

static void uring_close(struct ssd_io *io) {
    struct uring *u = (struct uring *)io;
    /* The read of wake_fd writes into *u: it must have ended first. */
    while (u->wake_armed) {
        ssd_io_wake(io);
        uring_wait(io, 100);
    }
    io_uring_queue_exit(&u->ring);
    free(u);
}

static const struct ssd_io_ops uring_ops = {
    .name = "io_uring",
    .start = uring_start,
    .wait = uring_wait,
    .close = uring_close,
};

struct ssd_io *ssd_uring_open(unsigned depth, int *error_p) {
    struct uring *u = xcalloc(1, sizeof(*u));
    u->io.ops = &uring_ops;
    int r = io_uring_queue_init(depth + 8, &u->ring, 0);
    if (r == 0) {
        /* READ and WRITE without vectors came with 5.6; before, these would all fail. */
        struct io_uring_probe *probe = io_uring_get_probe_ring(&u->ring);
        if (probe == NULL || !io_uring_opcode_supported(probe, IORING_OP_READ)) r = -ENOSYS;
        if (probe != NULL) io_uring_free_probe(probe);
        if (r < 0) io_uring_queue_exit(&u->ring);
    }
    if (r == 0) return &u->io;
    *error_p = -r;
    free(u);
    return NULL;
}
