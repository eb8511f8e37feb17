/* Reads and writes of one file that are under way together: io_uring where the kernel lets us, a
 * few threads with pread and pwrite where it does not (containers forbid it often). Inside src/pool
 * only.
 *
 *   ssd_io_submit ─> under way, at most `depth`, the rest waits in line ─> ssd_io_wait: done
 *
 * One thread submits and waits; ssd_io_wake is for any thread. Short transfers are continued,
 * interrupted ones repeated. */
#ifndef TARN_POOL_SSD_IO_H
#define TARN_POOL_SSD_IO_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/crew.h"
#include "base/status.h"

struct ssd_io;

struct ssd_op {
    bool write;
    bool sync; /* no transfer: what was written before gets through the disk's own cache, too */
    void *buffer;
    uint64_t offset;
    size_t length;
    int error; /* 0, or an errno */
    /* From ssd_io_wait. The op may be freed or submitted again in it. */
    void (*done)(struct ssd_op *op);
    void *arg;
    /* private */
    size_t moved, asked;
    int result;
    int fd;
    struct crew_job job;
    STAILQ_ENTRY(ssd_op) next;
};
STAILQ_HEAD(ssd_ops, ssd_op);

/* Never fails but for want of an eventfd or of threads: TARN_EIO. fd stays the caller's. */
tarn_status ssd_io_open(int fd, unsigned depth, struct ssd_io **io_p);
/* Nothing may be under way. */
void ssd_io_close(struct ssd_io **io_p);
const char *ssd_io_name(const struct ssd_io *io); /* "io_uring", "threads" */

void ssd_io_submit(struct ssd_io *io, struct ssd_op *op);
/* Until something is done or woken, or timeout_ms have passed (-1: no limit, 0: only looks). */
void ssd_io_wait(struct ssd_io *io, int timeout_ms);
void ssd_io_wake(struct ssd_io *io);

/* --- tests --- */

/* Looks at every transfer before it is made: an errno makes it fail, *length may be made smaller
 * (never 0) for a short one. NULL: no such thing. Not while a tier is open. */
typedef int (*ssd_io_fault_fn)(void *arg, bool write, uint64_t offset, size_t *length);
void ssd_io_set_fault(ssd_io_fault_fn fn, void *arg);
/* From the next ssd_io_open on, as if the kernel had no io_uring. */
void ssd_io_forbid_uring(bool forbidden);

#endif
