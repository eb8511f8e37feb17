/* Replicas on a shared file system: read by ourselves, without a host. The file is what its name
 * promises only as far as the CRC says so; one that is missing, short, or no regular file counts as
 * a replica that is not there. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/log.h"
#include "client/get.h"

#define READ_IOV_MAX 64u
#define SUM_BYTES    (UINT64_C(256) << 10) /* read and summed while in the cache */

/* Not through a symbolic link in its last part, and never waiting for a FIFO or a device. */
static tarn_status file_open(const char *path, uint64_t size, int *fd_p) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        log_verbose("%s: %s", path, strerror(errno));
        return errno == ENOENT || errno == ENOTDIR ? TARN_ENOTFOUND : TARN_EIO;
    }
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size < size) {
        log_verbose("%s: not a file of %llu bytes", path, (unsigned long long)size);
        close(fd);
        return TARN_ENOTFOUND;
    }
    *fd_p = fd;
    return TARN_OK;
}

/* Up to len bytes of the iovecs behind the first skip. */
static size_t gather(const struct iovec *iov, size_t n_iov, uint64_t skip, uint64_t len,
                     struct iovec out[READ_IOV_MAX]) {
    size_t n = 0;
    for (size_t i = 0; i < n_iov && n < READ_IOV_MAX && len > 0; i++) {
        uint64_t here = min_u64(skip, iov[i].iov_len), take = min_u64(iov[i].iov_len - here, len);
        skip -= here;
        len -= take;
        if (take > 0) out[n++] = (struct iovec){(char *)iov[i].iov_base + here, take};
    }
    return n;
}

static uint32_t sum_up(uint32_t crc, const struct iovec *iov, uint64_t len) {
    for (; len > 0; iov++) {
        uint64_t take = min_u64(iov->iov_len, len);
        crc = crc32c(crc, iov->iov_base, take);
        len -= take;
    }
    return crc;
}

/* Fills all of iov with what is in the file from at on. */
static tarn_status read_at(int fd, const struct iovec *iov, size_t n_iov, uint64_t at,
                           uint32_t *crc_p) {
    uint64_t len = iov_total(iov, n_iov), done = 0;
    while (done < len) {
        struct iovec part[READ_IOV_MAX];
        size_t n = gather(iov, n_iov, done, SUM_BYTES, part);
        ssize_t got = preadv(fd, part, (int)n, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return TARN_EIO;
        if (got == 0) return TARN_ENOTFOUND; /* it has become shorter */
        *crc_p = sum_up(*crc_p, part, (uint64_t)got);
        done += (uint64_t)got;
    }
    return TARN_OK;
}

/* One CRC block at most. */
static tarn_status read_block(struct getting *g, const struct want *w, int fd,
                              struct engine_op *op) {
    uint64_t len = min_u64(w->to - w->pos, CRC_BLOCK);
    struct iovec *iov = arena_alloc(&g->lane->arena, w->n_iov * sizeof(*iov));
    *op = (struct engine_op){.iov = iov};
    op->n_iov = iov_slice(w->iov, w->n_iov, w->pos - w->from, len, iov);
    op->crcs = &op->crc;
    return read_at(fd, iov, op->n_iov, w->pos, &op->crc);
}

void get_file_read(struct getting *g, size_t i) {
    struct want *w = &g->wants[i];
    const struct replica *r = get_replica(w);
    int fd;
    tarn_status status = w->device ? TARN_ENOTSUP : file_open(r->path, w->place.size, &fd);
    if (status != TARN_OK) {
        get_replica_failed(g, i, status);
        return;
    }
    uint64_t turns = g->turns;
    while (w->state == PLACED && turns == g->turns) {
        if (w->pos > w->from && get_lease_is_short(&w->place)) break;
        struct engine_op op;
        status = read_block(g, w, fd, &op);
        uint64_t now = now_ms();
        if (status == TARN_OK && now >= g->deadline) {
            get_finish(g, i,
                       fail(TARN_ETIMEOUT, "the deadline passed before all bytes were there"));
        } else if (status == TARN_OK && now >= w->place.lease_end) {
            COUNT(g->lane, lease_misses, 1);
            get_again(g, i, fail(TARN_ELEASE, "the lease ended before the bytes were verified"), 1);
        } else if (status == TARN_OK) {
            get_piece_done(g, i, &op);
        } else {
            get_replica_failed(g, i, status);
        }
    }
    close(fd);
}
