/* The memory file behind a segment: a memfd of ordinary pages, a memfd of huge pages, or a pool
 * file whose contents outlive us. From the mapping on they are all the same.
 *
 * A pool file also outlives us in the mappings of peers we gave it to. Two things follow. Nothing
 * ever truncates it: a file that is not kept is unlinked and made anew, so that nobody's loads turn
 * into SIGBUS. And who still maps it writable must be known to whoever serves it next: the
 * descriptor that peers are given carries a lock on a byte that stands for this process (open file
 * description locks live as long as the last mapping made through that description), and our
 * successor asks the kernel whether any lock of an earlier process is left. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mapping.h"
#include "pool/pool_internal.h"
#include "pool/site.h"

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 0x0004U
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif
#ifndef HUGETLBFS_MAGIC
#define HUGETLBFS_MAGIC 0x958458f6
#endif

#define LOCK_BASE  (1ll << 60) /* behind every byte that a file can have */
#define OPEN_TRIES 10

/* The last step: the read-only descriptor, and the mapping. A mapping in the place of another is
 * tried elsewhere first: one that fails midway would leave a hole. (What it reserves is the file's,
 * and stays.) */
static tarn_status backing_map(struct pool_backing *b, char *at, const char **why_p) {
    char self[64];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", b->fd);
    b->fd_read = open(self, O_RDONLY | O_CLOEXEC);
    if (b->fd_read < 0)
        return status_fail(TARN_EIO, why_p, "reopening the pool memory: %s", strerror(errno));
    const int rights = PROT_READ | PROT_WRITE;
    void *map = mapping_shared(b->fd, b->map_size, rights);
    if (map != MAP_FAILED && at != NULL) {
        munmap(map, b->map_size);
        map = mmap(at, b->map_size, rights, MAP_SHARED | MAP_FIXED, b->fd, 0);
    }
    if (map == MAP_FAILED) {
        return status_fail(TARN_ENOMEM, why_p, "mapping %llu MiB: %s",
                           (unsigned long long)(b->map_size >> 20), strerror(errno));
    }
    b->map = map;
    return TARN_OK;
}

/* --- memfd --- */

static tarn_status memfd_seal(struct pool_backing *b, const char **why_p) {
    if (fchmod(b->fd, 0600) != 0)
        return status_fail(TARN_EIO, why_p, "fchmod of the pool memory: %s", strerror(errno));
    if (ftruncate(b->fd, (off_t)b->map_size) != 0) {
        return status_fail(TARN_EIO, why_p, "sizing the pool memory: %s", strerror(errno));
    }
    if (fcntl(b->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return status_fail(TARN_EIO, why_p, "sealing the pool memory: %s", strerror(errno));
    }
    return TARN_OK;
}

/* One size of huge pages: 0, the system's default. */
static bool memfd_try_size(const struct pool_config *c, char *at, uint64_t map_size, unsigned size,
                           struct pool_backing *b) {
    const char *ignored;
    struct stat st;
    b->fd = memfd_create("tarn-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | size);
    if (b->fd < 0 || fstat(b->fd, &st) != 0) return false;
    uint64_t page = (uint64_t)st.st_blksize;
    b->map_size = at != NULL ? map_size : (SEGMENT_HEADER_SIZE + c->size + page - 1) / page * page;
    return b->map_size % page == 0 && (uintptr_t)at % page == 0 &&
           memfd_seal(b, &ignored) == TARN_OK && backing_map(b, at, &ignored) == TARN_OK;
}

/* false without a trace when the machine has no such pages left: the caller takes ordinary ones.
 * The default may be far larger than 2 MiB (512 MiB where pages have 64 KiB): less is rounded up,
 * and more machines have reserved some, with 2 MiB first. */
static bool memfd_try_huge(const struct pool_config *c, char *at, uint64_t map_size,
                           struct pool_backing *b) {
    static const unsigned sizes[] = {MFD_HUGE_2MB, 0};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        if (memfd_try_size(c, at, map_size, sizes[i], b)) {
            b->huge = true;
            return true;
        }
        int error = errno;
        pool_backing_close(b);
        errno = error;
    }
    log_notice("No huge pages are reserved for a pool of %llu MiB (%s): transparent ones, maybe",
               (unsigned long long)(c->size >> 20), strerror(errno));
    return false;
}

static tarn_status memfd_open(const struct pool_config *c, char *at, uint64_t map_size,
                              struct pool_backing *b, const char **why_p) {
    b->fresh = true;
    b->instance = 1;
    if (c->huge && memfd_try_huge(c, at, map_size, b)) return TARN_OK;
    b->map_size = at != NULL ? map_size : SEGMENT_HEADER_SIZE + c->size;
    b->fd = memfd_create("tarn-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (b->fd < 0) return status_fail(TARN_EIO, why_p, "memfd_create: %s", strerror(errno));
    tarn_status s = memfd_seal(b, why_p);
    return s == TARN_OK ? backing_map(b, at, why_p) : s;
}

/* --- pool file --- */

/* Opens and locks what the path names at this moment. */
static tarn_status pool_file_lock(const char *path, int flags, struct pool_backing *b,
                                  struct stat *st, const char **why_p) {
    for (int i = 0; i < OPEN_TRIES; i++) {
        struct stat now;
        b->lock_fd =
            open(path, O_RDONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | flags, 0600);
        if (b->lock_fd < 0)
            return status_fail(TARN_EIO, why_p, "pool file %s: %s", path, strerror(errno));
        if (fstat(b->lock_fd, st) != 0 || !S_ISREG(st->st_mode)) {
            return status_fail(TARN_EINVAL, why_p, "pool file %s is not a regular file", path);
        }
        tarn_status s = site_claim(b->lock_fd, "pool file ", path, 0, why_p);
        if (s != TARN_OK) return s;
        /* Whoever had it may have replaced it before we got the lock. */
        if (lstat(path, &now) == 0 && now.st_ino == st->st_ino && now.st_dev == st->st_dev)
            return TARN_OK;
        close(b->lock_fd);
        b->lock_fd = -1;
    }
    return status_fail(TARN_EBUSY, why_p, "pool file %s is being replaced by others", path);
}

static void pool_file_set_map(const struct pool_config *c, struct pool_backing *b) {
    struct statfs fs;
    b->map_size = SEGMENT_HEADER_SIZE + c->size;
    if (fstatfs(b->lock_fd, &fs) != 0 || fs.f_type != HUGETLBFS_MAGIC) return;
    uint64_t page = (uint64_t)fs.f_bsize;
    b->map_size = (b->map_size + page - 1) / page * page;
    b->huge = true;
}

static bool pool_header_read(int fd, const struct stat *st, struct segment_header *h) {
    return pread(fd, h, sizeof(*h), 0) == (ssize_t)sizeof(*h) && segment_header_valid(h) &&
           (uint64_t)st->st_size >= SEGMENT_HEADER_SIZE &&
           h->size <= (uint64_t)st->st_size - SEGMENT_HEADER_SIZE;
}

bool pool_file_look(const char *path, uint64_t *size_p, uint8_t content[SEGMENT_CONTENT_SIZE]) {
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    struct segment_header h;
    struct stat st;
    bool ok =
        fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && pool_header_read(fd, &st, &h);
    if (fd >= 0) close(fd);
    if (!ok || !pool_same_boot(&h)) return false;
    *size_p = h.size;
    memcpy(content, h.content, sizeof(h.content));
    return true;
}

/* --- another size --- */

/* Room first, then the length, and the header last of all (pool.c): until that says the new size
 * the file holds the old pool, whatever ends this process. */
static tarn_status pool_file_grow(const struct pool_config *c, struct pool_backing *b,
                                  const struct stat *st, const char **why_p) {
    struct statfs fs;
    uint64_t need = b->map_size - min_u64(b->map_size, (uint64_t)st->st_blocks * 512),
             room = UINT64_MAX;
    unsigned long long from = b->header.size >> 20, to = c->size >> 20;
    if (fstatfs(b->fd, &fs) == 0 && fs.f_blocks > 0)
        room = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
    if (need > room)
        return status_fail(TARN_EIO, why_p,
                           "pool file %s holds a pool of %llu MiB, and there is no room to make it "
                           "%llu MiB: %llu MiB are "
                           "missing. It is left as it is",
                           c->path, from, to, (unsigned long long)((need - room) >> 20) + 1);
    if (fallocate(b->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)b->map_size) != 0 && errno != EOPNOTSUPP) {
        int error = errno;
        (void)!ftruncate(b->fd, st->st_size); /* what is behind its end goes back */
        return status_fail(TARN_EIO, why_p,
                           "pool file %s holds a pool of %llu MiB and cannot be made %llu MiB: %s. "
                           "It is left as it is",
                           c->path, from, to, strerror(error));
    }
    if ((uint64_t)st->st_size < b->map_size && ftruncate(b->fd, (off_t)b->map_size) != 0)
        return status_fail(TARN_EIO, why_p, "sizing pool file %s: %s", c->path, strerror(errno));
    log_notice("Pool file %s grows from %llu to %llu MiB; what is in it stays", c->path, from, to);
    return TARN_OK;
}

static tarn_status pool_file_resize(const struct pool_config *c, struct pool_backing *b,
                                    const struct stat *st, const char **why_p) {
    if (c->size > b->header.size) return pool_file_grow(c, b, st, why_p);
    if (c->size == b->header.size) return TARN_OK;
    if (!c->shrink)
        return status_fail(
            TARN_EEXISTS, why_p,
            "pool file %s holds a pool of %llu bytes, which is more than the %llu bytes asked for",
            c->path, (unsigned long long)b->header.size, (unsigned long long)c->size);
    log_notice("Pool file %s shrinks from %llu to %llu MiB", c->path,
               (unsigned long long)(b->header.size >> 20), (unsigned long long)(c->size >> 20));
    return TARN_OK;
}

/* A hole, not a shorter file: peers of the process before us may have all of it mapped, and loads
 * behind its end would kill them. */
void pool_backing_trim(struct pool_backing *b) {
    if (b->lock_fd < 0 || b->file_size <= b->map_size) return;
    if (fallocate(b->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)b->map_size,
                  (off_t)(b->file_size - b->map_size)) != 0)
        log_warning("Giving back the end of a pool file: %s", strerror(errno));
}

/* An empty file under the same name. Who has the old one mapped keeps that. */
static tarn_status pool_file_replace(const char *path, struct pool_backing *b, struct stat *st,
                                     const char **why_p) {
    int old = b->lock_fd;
    b->lock_fd = -1;
    tarn_status s = TARN_OK;
    if (unlink(path) != 0 && errno != ENOENT)
        s = status_fail(TARN_EIO, why_p, "replacing pool file %s: %s", path, strerror(errno));
    if (s == TARN_OK) s = pool_file_lock(path, O_EXCL, b, st, why_p);
    if (old >= 0) close(old);
    return s;
}

/* For as long as anybody maps it through this description. */
static tarn_status pool_file_mark(struct pool_backing *b, const char **why_p) {
    struct flock lock = {
        .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = LOCK_BASE + b->instance, .l_len = 1};
    if (fcntl(b->fd, F_OFD_SETLK, &lock) == 0) return TARN_OK;
    return status_fail(TARN_EIO, why_p, "locking the pool file: %s", strerror(errno));
}

bool pool_backing_strangers(const struct pool_backing *b) {
    if (b->lock_fd < 0 || b->instance <= 1) return false;
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_BASE, .l_len = (off_t)b->instance};
    /* who cannot tell must fear it */
    return fcntl(b->fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static bool pool_file_has_magic(int fd) {
    char magic[sizeof(SEGMENT_HEADER_MAGIC) - 1];
    return pread(fd, magic, sizeof(magic), 0) == (ssize_t)sizeof(magic) &&
           memcmp(magic, SEGMENT_HEADER_MAGIC, sizeof(magic)) == 0;
}

/* A file may be replaced that was a pool, whatever has become of it, or the beginning of one. */
static bool pool_file_is_ours(int fd) {
    return pool_file_has_magic(fd) || site_blank(fd);
}

tarn_status pool_file_remove(const char *path, uint64_t *bytes_p, const char **why_p) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    bool pool = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && pool_file_has_magic(fd);
    tarn_status s = pool ? site_claim(fd, "pool file ", path, 0, why_p) : TARN_OK;
    *bytes_p = 0;
    if (pool && s == TARN_OK) {
        if (unlink(path) == 0)
            *bytes_p = (uint64_t)st.st_size;
        else
            s = status_fail(TARN_EIO, why_p, "removing pool file %s: %s", path, strerror(errno));
    }
    if (fd >= 0) close(fd);
    return s;
}

/* Opens, locks and looks at the file. */
static tarn_status pool_file_take(const struct pool_config *c, struct pool_backing *b,
                                  struct stat *st, const char **why_p) {
    char missing[PATH_MAX];
    if (site_unmounted(c->path, missing, sizeof(missing)))
        return status_fail(
            TARN_EINVAL, why_p,
            "pool file %s would lie below %s, which /etc/fstab names and where nothing is mounted: "
            "mount it first",
            c->path, missing);
    tarn_status s = pool_file_lock(c->path, 0, b, st, why_p);
    if (s != TARN_OK || pool_file_is_ours(b->lock_fd)) return s;
    return status_fail(
        TARN_EINVAL, why_p,
        "%s is a file of something else, which is not overwritten: name another one, "
        "or move it away",
        c->path);
}

static tarn_status pool_file_open(const struct pool_config *c, char *at, uint64_t map_size,
                                  bool anew, struct pool_backing *b, const char **why_p) {
    struct stat st;
    /* anew: the lock of the one there is ours already. */
    tarn_status s =
        anew ? pool_file_replace(c->path, b, &st, why_p) : pool_file_take(c, b, &st, why_p);
    if (s != TARN_OK) return s;
    pool_file_set_map(c, b);
    if (at != NULL && b->map_size != map_size)
        return status_fail(TARN_EIO, why_p, "pool file %s has moved to another file system",
                           c->path);
    b->fresh = anew || !pool_header_read(b->lock_fd, &st, &b->header);
    b->file_size = b->fresh ? 0 : (uint64_t)st.st_size;
    b->instance = b->fresh ? 1 : segment_header_instance(&b->header) + 1;
    if (b->fresh && st.st_size > 0) s = pool_file_replace(c->path, b, &st, why_p);
    if (s != TARN_OK) return s;
    if (fchmod(b->lock_fd, 0600) != 0)
        return status_fail(TARN_EIO, why_p, "fchmod of %s: %s", c->path, strerror(errno));
    char self[64];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", b->lock_fd);
    b->fd = open(self, O_RDWR | O_CLOEXEC);
    if (b->fd < 0)
        return status_fail(TARN_EIO, why_p, "pool file %s: %s", c->path, strerror(errno));
    if (b->fresh && ftruncate(b->fd, (off_t)b->map_size) != 0) {
        return status_fail(TARN_EIO, why_p, "sizing pool file %s: %s", c->path, strerror(errno));
    }
    if (!b->fresh) s = pool_file_resize(c, b, &st, why_p);
    if (s == TARN_OK) s = pool_backing_refill(b, c->path, why_p);
    if (s == TARN_OK) s = pool_file_mark(b, why_p);
    return s == TARN_OK ? backing_map(b, at, why_p) : s;
}

/* --- all of them --- */

tarn_status pool_backing_open(const struct pool_config *c, char *at, uint64_t map_size, bool anew,
                              struct pool_backing *b_p, const char **why_p) {
    struct pool_backing b = {.fd = -1, .fd_read = -1, .lock_fd = -1};
    bool file = c->path != NULL && c->path[0] != '\0';
    tarn_status s = file ? pool_file_open(c, at, map_size, anew, &b, why_p)
                         : memfd_open(c, at, map_size, &b, why_p);
    if (s != TARN_OK) {
        if (file && b.fresh && b.lock_fd >= 0)
            (void)unlink(c->path); /* empty, or with holes: of no use to anybody */
        pool_backing_close(&b);
        return s;
    }
    *b_p = b;
    return TARN_OK;
}

void pool_backing_close(struct pool_backing *b) {
    if (b->fd_read >= 0) close(b->fd_read);
    if (b->fd >= 0) close(b->fd);
    if (b->lock_fd >= 0) close(b->lock_fd);
    b->fd = b->fd_read = b->lock_fd = -1;
}

void pool_backing_punch(struct pool_backing *b) {
    off_t from = SEGMENT_HEADER_SIZE, len = (off_t)(b->map_size - SEGMENT_HEADER_SIZE);
    if (b->huge || fallocate(b->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, len) == 0)
        return;
    log_warning("Giving back the memory of a segment: %s", strerror(errno));
}

tarn_status pool_backing_refill(struct pool_backing *b, const char *path, const char **why_p) {
    if (b->lock_fd < 0) return TARN_OK; /* memory is reserved by touching it */
    /* A hole that cannot be filled later is a SIGBUS later. A file without one is not walked:
     * seconds for a large pool. */
    struct stat st;
    if (fstat(b->fd, &st) == 0 && (uint64_t)st.st_blocks * 512 >= b->map_size) return TARN_OK;
    if (fallocate(b->fd, 0, 0, (off_t)b->map_size) == 0 || errno == EOPNOTSUPP) return TARN_OK;
    return status_fail(TARN_EIO, why_p, "no room for all %llu MiB of pool file %s: %s",
                       (unsigned long long)(b->map_size >> 20), path, strerror(errno));
}
