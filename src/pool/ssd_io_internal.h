/* Between ssd_io.c and the two ways of doing it. */
#ifndef TARN_POOL_SSD_IO_INTERNAL_H
#define TARN_POOL_SSD_IO_INTERNAL_H

#include <errno.h>
#include "pool/ssd_io.h"

#define SSD_IO_MAGIC 0x5353494fu /* "SSIO" */

struct ssd_io_ops {
    const char *name;
    /* Transfers op->asked bytes from op->moved on. false: not now, its own queue is full. */
    bool (*start)(struct ssd_io *io, struct ssd_op *op);
    /* Calls ssd_io_ended for what has ended. */
    void (*wait)(struct ssd_io *io, int timeout_ms);
    void (*close)(struct ssd_io *io);
};

struct ssd_io {
    uint32_t magic;
    const struct ssd_io_ops *ops;
    int fd, wake_fd; /* wake_fd: an eventfd that ends `wait` */
    unsigned depth, under_way;
    struct ssd_ops line, failed; /* failed: before they began */
};

/* Only ops is filled in. NULL with *error_p. */
struct ssd_io *ssd_uring_open(unsigned depth, int *error_p);
/* result: bytes moved, or a negative errno. */
void ssd_io_ended(struct ssd_io *io, struct ssd_op *op, int result);

#endif
