/* Opening and closing segment memory. Three kinds of file stand behind it: a memfd of ordinary pages, a memfd
 * of huge pages, a pool file whose contents outlive us. From the mapping on they are all the same. */
#include "pool/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 0x0004U
#endif

#define POOL_MAGIC      0x504f4f4cu /* "POOL" */
#define HUGE_PAGE_BYTES (2ull << 20)
#define NUMA_NODES_MAX  1024

struct pool {
    uint32_t magic;
    int fd, fd_read;
    char *map; /* the header; base is SEGMENT_HEADER_SIZE behind it */
    uint64_t map_size;
    bool fresh; /* every byte is zero */
    struct pool_info info;
};

static __thread char why_text[256];

static tarn_status fail(tarn_status status, const char **why_p, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static tarn_status fail(tarn_status status, const char **why_p, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why_text, sizeof(why_text), fmt, ap);
    va_end(ap);
    *why_p = why_text;
    return status;
}

static tarn_status check_config(const struct pool_config *c, const char **why_p) {
    if (c->size == 0 || c->size % 4096 != 0 || c->size > 1ull << 46) {
        return fail(TARN_EINVAL, why_p, "a segment's size must be a multiple of 4096 above zero");
    }
    if (c->name != NULL && strlen(c->name) > SEGMENT_NAME_MAX) {
        return fail(TARN_EINVAL, why_p, "a segment's name has at most %u bytes", SEGMENT_NAME_MAX);
    }
    if (c->numa_node < -1 || c->numa_node >= NUMA_NODES_MAX) {
        return fail(TARN_EINVAL, why_p, "NUMA node %d is out of range", c->numa_node);
    }
    return TARN_OK;
}

static tarn_status check_memory(const struct pool_config *c, const struct pool *p, const char **why_p) {
    /* hugetlb pages are reserved by mmap. A file that is there already may sit in the page cache, and can be
     * written back. */
    if (!c->populate || p->info.huge || !p->fresh) return TARN_OK;
    const char *limiter;
    uint64_t left = pool_memory_available("/proc", "/sys/fs/cgroup", &limiter);
    if (p->map_size <= left) return TARN_OK;
    return fail(TARN_ENOMEM, why_p, "a pool of %llu MiB does not fit: %s leaves %llu MiB",
                (unsigned long long)(p->map_size >> 20), limiter, (unsigned long long)(left >> 20));
}

/* --- the files --- */

static tarn_status size_and_seal(struct pool *p, const char **why_p) {
    if (fchmod(p->fd, 0600) != 0)
        return fail(TARN_EIO, why_p, "fchmod of the pool memory: %s", strerror(errno));
    if (ftruncate(p->fd, (off_t)p->map_size) != 0) {
        return fail(TARN_EIO, why_p, "sizing the pool memory: %s", strerror(errno));
    }
    if (fcntl(p->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return fail(TARN_EIO, why_p, "sealing the pool memory: %s", strerror(errno));
    }
    return TARN_OK;
}

static bool map_fd(struct pool *p) {
    void *map = mmap(NULL, p->map_size, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
    if (map == MAP_FAILED) return false;
    p->map = map;
    return true;
}

/* false without a trace when the machine has no such pages left: the caller takes ordinary ones. */
static bool try_hugetlb(const struct pool_config *c, struct pool *p) {
    const char *ignored;
    p->map_size = (SEGMENT_HEADER_SIZE + c->size + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    p->fd = memfd_create("tarn-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (p->fd >= 0 && size_and_seal(p, &ignored) == TARN_OK && map_fd(p)) {
        p->info.huge = true;
        return true;
    }
    log_notice("No huge pages for a pool of %llu MiB (%s): using ordinary ones",
               (unsigned long long)(c->size >> 20), strerror(errno));
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
    return false;
}

static tarn_status open_memfd(const struct pool_config *c, struct pool *p, const char **why_p) {
    p->info.backing = "memfd";
    p->fresh = true;
    if (c->huge && try_hugetlb(c, p)) return TARN_OK;
    p->map_size = SEGMENT_HEADER_SIZE + c->size;
    p->fd = memfd_create("tarn-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (p->fd < 0) return fail(TARN_EIO, why_p, "memfd_create: %s", strerror(errno));
    tarn_status s = size_and_seal(p, why_p);
    if (s != TARN_OK) return s;
    if (!map_fd(p)) {
        return fail(TARN_ENOMEM, why_p, "mapping %llu MiB: %s", (unsigned long long)(p->map_size >> 20),
                    strerror(errno));
    }
    return TARN_OK;
}

static void read_boot_id(char out[40]) {
    memset(out, 0, 40);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = read(fd, out, 36);
    if (n < 36) memset(out, 0, 40);
    close(fd);
}

/* Is what the file holds this very segment, whole? */
static bool file_is_warm(const struct pool_config *c, struct pool *p, const struct stat *st) {
    struct segment_header h;
    if ((uint64_t)st->st_size != p->map_size) return false;
    if (pread(p->fd, &h, sizeof(h), 0) != (ssize_t)sizeof(h)) return false;
    if (!segment_header_valid(&h) || h.segment_id != c->id || h.size != c->size) return false;
    char boot_id[40];
    read_boot_id(boot_id);
    p->info.warm = true;
    p->info.same_boot = boot_id[0] != '\0' && memcmp(boot_id, h.boot_id, sizeof(boot_id)) == 0;
    p->info.old_segment_epoch = segment_header_segment_epoch(&h);
    p->info.old_master_epoch = segment_header_master_epoch(&h);
    return true;
}

static tarn_status open_file(const struct pool_config *c, struct pool *p, const char **why_p) {
    struct stat st;
    p->info.backing = "file";
    p->map_size = SEGMENT_HEADER_SIZE + c->size;
    p->fd = open(c->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (p->fd < 0) return fail(TARN_EIO, why_p, "pool file %s: %s", c->path, strerror(errno));
    if (fstat(p->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return fail(TARN_EINVAL, why_p, "pool file %s is not a regular file", c->path);
    }
    if (flock(p->fd, LOCK_EX | LOCK_NB) != 0) {
        return fail(TARN_EBUSY, why_p, "pool file %s is in use by another process", c->path);
    }
    if (fchmod(p->fd, 0600) != 0) return fail(TARN_EIO, why_p, "fchmod of %s: %s", c->path, strerror(errno));
    p->fresh = !file_is_warm(c, p, &st);
    /* Through zero: what the file held before belongs to another segment and must not be read in this one. */
    if (p->fresh && (ftruncate(p->fd, 0) != 0 || ftruncate(p->fd, (off_t)p->map_size) != 0)) {
        return fail(TARN_EIO, why_p, "sizing pool file %s: %s", c->path, strerror(errno));
    }
    /* A hole that cannot be filled later is a SIGBUS later. */
    if (fallocate(p->fd, 0, 0, (off_t)p->map_size) != 0 && errno != EOPNOTSUPP) {
        return fail(TARN_EIO, why_p, "no room for pool file %s: %s", c->path, strerror(errno));
    }
    if (!map_fd(p)) return fail(TARN_ENOMEM, why_p, "mapping %s: %s", c->path, strerror(errno));
    return TARN_OK;
}

/* --- the mapping --- */

static tarn_status bind_node(const struct pool_config *c, struct pool *p, const char **why_p) {
    if (c->numa_node < 0) return TARN_OK;
    unsigned long mask[NUMA_NODES_MAX / (8 * sizeof(unsigned long))] = {0};
    const size_t bits = 8 * sizeof(unsigned long);
    mask[(size_t)c->numa_node / bits] |= 1ul << ((size_t)c->numa_node % bits);
    const int mpol_bind = 2;
    if (syscall(SYS_mbind, p->map, p->map_size, mpol_bind, mask, (unsigned long)NUMA_NODES_MAX, 0) != 0) {
        return fail(TARN_EINVAL, why_p, "NUMA node %d: %s", c->numa_node, strerror(errno));
    }
    return TARN_OK;
}

static tarn_status prepare_mapping(const struct pool_config *c, struct pool *p, const char **why_p) {
    if (madvise(p->map, p->map_size, MADV_DONTFORK) != 0 ||
        madvise(p->map, p->map_size, MADV_DONTDUMP) != 0) {
        return fail(TARN_EIO, why_p, "madvise of the pool: %s", strerror(errno));
    }
    tarn_status s = bind_node(c, p, why_p);
    if (s != TARN_OK) return s;
    /* A wish: the kernel may lack transparent huge pages for shared memory. */
    if (c->huge && !p->info.huge) (void)madvise(p->map, p->map_size, MADV_HUGEPAGE);
    if (!c->populate) return TARN_OK;
    s = pool_populate(p->map, p->map_size, !p->fresh);
    return s == TARN_OK ? s : fail(s, why_p, "populating the pool failed: not enough memory");
}

static void write_header(const struct pool_config *c, struct pool *p) {
    struct segment_header *h = (struct segment_header *)(void *)p->map;
    /* Readers that raced with us see epoch 0, which no grant carries, until everything else is right. */
    __atomic_store_n(&h->segment_epoch, 0, __ATOMIC_RELEASE);
    struct segment_header fixed = {
        .version = SEGMENT_HEADER_VERSION,
        .segment_id = c->id,
        .header_size = SEGMENT_HEADER_SIZE,
        .size = c->size,
        .created_wall_ms = clock_wall_ms(),
    };
    memcpy(fixed.magic, SEGMENT_HEADER_MAGIC, sizeof(fixed.magic));
    read_boot_id(fixed.boot_id);
    if (c->name != NULL) memcpy(fixed.name, c->name, strlen(c->name));
    fixed.crc = segment_header_crc(&fixed);
    memcpy(h, &fixed, offsetof(struct segment_header, pad));
    __atomic_store_n(&h->master_epoch, p->info.old_master_epoch, __ATOMIC_RELEASE);
    __atomic_store_n(&h->segment_epoch, c->segment_epoch, __ATOMIC_RELEASE);
}

static tarn_status open_read_only(struct pool *p, const char **why_p) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", p->fd);
    p->fd_read = open(path, O_RDONLY | O_CLOEXEC);
    if (p->fd_read < 0) return fail(TARN_EIO, why_p, "reopening the pool memory: %s", strerror(errno));
    return TARN_OK;
}

static void release(struct pool *p) {
    if (p->map != NULL) munmap(p->map, p->map_size);
    if (p->fd_read >= 0) close(p->fd_read);
    if (p->fd >= 0) close(p->fd); /* drops the file's lock */
    free(p);
}

tarn_status pool_open(const struct pool_config *config, struct pool **pool_p, const char **why_p) {
    tarn_status s = check_config(config, why_p);
    if (s != TARN_OK) return s;
    struct pool *p = xcalloc(1, sizeof(*p));
    p->magic = POOL_MAGIC;
    p->fd = p->fd_read = -1;
    p->info.size = config->size;
    p->info.numa_node = config->numa_node;
    bool file = config->path != NULL && config->path[0] != '\0';
    s = file ? open_file(config, p, why_p) : open_memfd(config, p, why_p);
    if (s == TARN_OK) s = check_memory(config, p, why_p);
    if (s == TARN_OK) s = prepare_mapping(config, p, why_p);
    if (s == TARN_OK) s = open_read_only(p, why_p);
    if (s != TARN_OK) {
        log_warning("Segment %u: %s", config->id, *why_p);
        release(p);
        return s;
    }
    write_header(config, p);
    *pool_p = p;
    return TARN_OK;
}

void pool_close(struct pool **pool_p) {
    struct pool *p = *pool_p;
    if (p == NULL) return;
    MAGIC_CHECK(p, POOL_MAGIC);
    *pool_p = NULL;
    /* Peers keep their mapping: tell them that nobody stands behind it. A file's epoch stays, for the next
     * start. */
    if (strcmp(p->info.backing, "memfd") == 0) pool_set_epochs(p, 0, 0);
    p->magic = 0;
    release(p);
}

void *pool_base(const struct pool *p) {
    return p->map + SEGMENT_HEADER_SIZE;
}
const struct pool_info *pool_get_info(const struct pool *p) {
    return &p->info;
}
const struct segment_header *pool_header(const struct pool *p) {
    return (const struct segment_header *)(const void *)p->map;
}
int pool_fd(const struct pool *p, bool writable) {
    return writable ? p->fd : p->fd_read;
}

void pool_set_epochs(struct pool *p, uint32_t master_epoch, uint32_t segment_epoch) {
    struct segment_header *h = (struct segment_header *)(void *)p->map;
    __atomic_store_n(&h->master_epoch, master_epoch, __ATOMIC_RELEASE);
    __atomic_store_n(&h->segment_epoch, segment_epoch, __ATOMIC_RELEASE);
}
