/* The life of segment memory. What kind of file stands behind it: backing.c. */
#include "pool/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "pool/pool_internal.h"

#define POOL_MAGIC     0x504f4f4cu /* "POOL" */
#define NUMA_NODES_MAX 1024

struct pool {
    uint32_t magic;
    struct pool_backing backing;
    bool discarded;            /* and not revived */
    struct pool_config config; /* its strings are our own */
    struct pool_info info;
    struct pool_populating *populating; /* NULL: it is not, or not any more */
    tarn_status populated;
};

static tarn_status pool_check_config(const struct pool_config *c, const char **why_p) {
    if (c->size == 0 || c->size % 4096 != 0 || c->size > 1ull << 46) {
        return status_fail(TARN_EINVAL, why_p,
                           "a segment's size must be a multiple of 4096 above zero");
    }
    if (c->name != NULL && strlen(c->name) > SEGMENT_NAME_MAX) {
        return status_fail(TARN_EINVAL, why_p, "a segment's name has at most %u bytes",
                           SEGMENT_NAME_MAX);
    }
    if (c->numa_node < -1 || c->numa_node >= NUMA_NODES_MAX) {
        return status_fail(TARN_EINVAL, why_p, "NUMA node %d is out of range", c->numa_node);
    }
    return TARN_OK;
}

static tarn_status pool_check_memory(const struct pool_config *c, const struct pool_backing *b,
                                     const char **why_p) {
    /* hugetlb pages are reserved by mmap. A file that is there already may sit in the page cache,
     * and can be written back. */
    if (!c->populate || b->huge || !b->fresh) return TARN_OK;
    const char *limiter;
    uint64_t left = pool_memory_available("/proc", "/sys/fs/cgroup", &limiter);
    if (b->map_size <= left) return TARN_OK;
    return status_fail(TARN_ENOMEM, why_p, "a pool of %llu MiB does not fit: %s leaves %llu MiB",
                       (unsigned long long)(b->map_size >> 20), limiter,
                       (unsigned long long)(left >> 20));
}

/* --- the mapping --- */

static tarn_status mapping_bind(const struct pool_config *c, const struct pool_backing *b,
                                const char **why_p) {
    if (c->numa_node < 0) return TARN_OK;
    unsigned long mask[NUMA_NODES_MAX / (8 * sizeof(unsigned long))] = {0};
    const size_t bits = 8 * sizeof(unsigned long);
    mask[(size_t)c->numa_node / bits] |= 1ul << ((size_t)c->numa_node % bits);
    const int mpol_bind = 2;
    if (syscall(SYS_mbind, b->map, b->map_size, mpol_bind, mask, (unsigned long)NUMA_NODES_MAX,
                0) != 0) {
        return status_fail(
            TARN_EINVAL, why_p, "NUMA node %d: %s", c->numa_node,
            errno == EINVAL ? "this machine has none of that number (numactl --hardware shows them)"
                            : strerror(errno));
    }
    return TARN_OK;
}

static struct pool_populating *populate_begin(const struct pool_config *c,
                                              const struct pool_backing *b) {
    return pool_populate_begin(b->map, b->map_size, !b->fresh, c->huge && !b->huge);
}

static tarn_status mapping_prepare(const struct pool_config *c, const struct pool_backing *b,
                                   const char **why_p) {
    if (madvise(b->map, b->map_size, MADV_DONTFORK) != 0 ||
        madvise(b->map, b->map_size, MADV_DONTDUMP) != 0) {
        return status_fail(TARN_EIO, why_p, "madvise of the pool: %s", strerror(errno));
    }
    tarn_status s = mapping_bind(c, b, why_p);
    if (s != TARN_OK) return s;
    /* A wish: the kernel may lack transparent huge pages for shared memory. */
    if (c->huge && !b->huge) (void)madvise(b->map, b->map_size, MADV_HUGEPAGE);
    if (!c->populate || c->later) return TARN_OK;
    struct pool_populating *p = populate_begin(c, b);
    s = pool_populate_end(&p, false);
    return s == TARN_OK ? s
                        : status_fail(s, why_p, "populating the pool failed: not enough memory");
}

/* --- the header --- */

static struct segment_header *pool_header_of(const struct pool *p) {
    return (struct segment_header *)(void *)p->backing.map;
}

bool pool_same_boot(const struct segment_header *h) {
    char now[40];
    file_boot_id(now);
    return now[0] != '\0' && memcmp(now, h->boot_id, sizeof(now)) == 0;
}

static void content_new(uint8_t content[SEGMENT_CONTENT_SIZE]) {
    TARN_ASSERT(getrandom(content, SEGMENT_CONTENT_SIZE, 0) == SEGMENT_CONTENT_SIZE);
}

/* Whatever changes after this changes for everybody after it. The fence: on arm64 a store passes
 * those before it, whatever their order is called. */
static void header_end_epoch(struct pool *p) {
    __atomic_store_n(&pool_header_of(p)->segment_epoch, 0, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Everything in front of the epochs. Readers that race with us see segment epoch 0, which no grant
 * carries. */
static void header_write_fixed(struct pool *p, struct segment_header *fixed) {
    struct segment_header *h = pool_header_of(p);
    header_end_epoch(p);
    fixed->crc = segment_header_crc(fixed);
    memcpy(h, fixed, offsetof(struct segment_header, pad));
}

static void header_write_new(struct pool *p) {
    struct segment_header fixed = {
        .version = SEGMENT_HEADER_VERSION,
        .header_size = SEGMENT_HEADER_SIZE,
        .size = p->info.size,
        .created_wall_ms = clock_wall_ms(),
    };
    memcpy(fixed.magic, SEGMENT_HEADER_MAGIC, sizeof(fixed.magic));
    file_boot_id(fixed.boot_id);
    if (p->config.name != NULL) memcpy(fixed.name, p->config.name, strlen(p->config.name));
    content_new(fixed.content);
    memcpy(p->info.content, fixed.content, sizeof(fixed.content));
    header_write_fixed(p, &fixed);
}

/* The bytes are there. That they are the same after a start of the machine nobody can promise: its
 * content gets another name then. */
static void header_adopt(struct pool *p) {
    struct segment_header fixed = p->backing.header;
    p->info.warm = true;
    p->info.same_boot = pool_same_boot(&fixed);
    p->info.old_id = fixed.segment_id;
    p->info.old_segment_epoch = fixed.epoch;
    p->info.old_master_epoch = segment_header_master_epoch(&fixed);
    p->info.old_peers_epoch = fixed.peers_epoch;
    if (!p->info.same_boot) {
        header_write_new(p);
        return;
    }
    memcpy(p->info.content, fixed.content, sizeof(fixed.content));
    fixed.size = p->info.size;
    memset(fixed.name, 0, sizeof(fixed.name));
    if (p->config.name != NULL) memcpy(fixed.name, p->config.name, strlen(p->config.name));
    header_write_fixed(p, &fixed);
}

static void header_sign_on(struct pool *p) {
    if (p->backing.fresh)
        header_write_new(p);
    else
        header_adopt(p);
    __atomic_store_n(&pool_header_of(p)->instance, p->backing.instance, __ATOMIC_RELEASE);
}

/* --- opening and closing --- */

static void pool_free(struct pool *p) {
    (void)pool_populate_end(&p->populating, true);
    if (p->backing.map != NULL) munmap(p->backing.map, p->backing.map_size);
    pool_backing_close(&p->backing);
    free((char *)(uintptr_t)p->config.name);
    free((char *)(uintptr_t)p->config.path);
    p->magic = 0;
    free(p);
}

tarn_status pool_open(const struct pool_config *config, struct pool **pool_p, const char **why_p) {
    tarn_status s = pool_check_config(config, why_p);
    if (s != TARN_OK) return s;
    struct pool *p = xcalloc(1, sizeof(*p));
    p->magic = POOL_MAGIC;
    p->config = *config;
    p->config.name = xstrdup(config->name);
    p->config.path = config->path != NULL && config->path[0] != '\0' ? xstrdup(config->path) : NULL;
    p->backing = (struct pool_backing){.fd = -1, .fd_read = -1, .lock_fd = -1};
    s = pool_backing_open(&p->config, NULL, 0, false, &p->backing, why_p);
    if (s == TARN_OK) s = pool_check_memory(config, &p->backing, why_p);
    if (s == TARN_OK) s = mapping_prepare(config, &p->backing, why_p);
    if (s != TARN_OK) {
        log_warning("Segment %s: %s", config->name != NULL ? config->name : "", *why_p);
        pool_free(p);
        return s;
    }
    p->info.size = config->size;
    p->info.numa_node = config->numa_node;
    p->info.huge = p->backing.huge;
    p->info.backing = p->config.path != NULL ? "file" : "memfd";
    header_sign_on(p);
    pool_backing_trim(&p->backing);
    *pool_p = p;
    return TARN_OK;
}

void pool_close(struct pool **pool_p) {
    struct pool *p = *pool_p;
    if (p == NULL) return;
    MAGIC_CHECK(p, POOL_MAGIC);
    *pool_p = NULL;
    /* Peers keep their mapping: tell them that nobody stands behind it. A file's epochs stay: its
     * bytes do, too. */
    if (p->config.path == NULL) pool_set_epochs(p, 0, 0);
    pool_free(p);
}

void pool_populate_start(struct pool *p) {
    MAGIC_CHECK(p, POOL_MAGIC);
    TARN_ASSERT(p->config.later && p->populating == NULL);
    p->config.later = false; /* what is revived from here on is populated at once */
    if (p->config.populate) p->populating = populate_begin(&p->config, &p->backing);
}

bool pool_populate_look(struct pool *p, struct pool_progress *progress_p, tarn_status *status_p) {
    MAGIC_CHECK(p, POOL_MAGIC);
    if (p->populating != NULL) {
        if (!pool_populate_over(p->populating, progress_p)) return false;
        p->populated = pool_populate_end(&p->populating, false);
    }
    *status_p = p->populated;
    return true;
}

void *pool_base(const struct pool *p) {
    return p->backing.map + SEGMENT_HEADER_SIZE;
}
const struct pool_info *pool_get_info(const struct pool *p) {
    return &p->info;
}
const struct segment_header *pool_header(const struct pool *p) {
    return pool_header_of(p);
}
int pool_fd(const struct pool *p, bool writable) {
    return writable ? p->backing.fd : p->backing.fd_read;
}

/* --- lives --- */

void pool_set_epochs(struct pool *p, uint32_t master_epoch, uint32_t segment_epoch) {
    struct segment_header *h = pool_header_of(p);
    __atomic_store_n(&h->master_epoch, master_epoch, __ATOMIC_RELEASE);
    __atomic_store_n(&h->segment_epoch, segment_epoch, __ATOMIC_RELEASE);
}

void pool_serve(struct pool *p, uint32_t id, uint32_t segment_epoch, uint32_t master_epoch) {
    MAGIC_CHECK(p, POOL_MAGIC);
    TARN_ASSERT(!p->discarded && segment_epoch != 0);
    struct segment_header fixed;
    memcpy(&fixed, pool_header_of(p), offsetof(struct segment_header, pad));
    fixed.segment_id = id;
    fixed.epoch = segment_epoch;
    header_write_fixed(p, &fixed);
    pool_set_epochs(p, master_epoch, segment_epoch);
}

void pool_retire(struct pool *p) {
    MAGIC_CHECK(p, POOL_MAGIC);
    header_end_epoch(p);
}

void pool_discard(struct pool *p) {
    MAGIC_CHECK(p, POOL_MAGIC);
    (void)pool_populate_end(&p->populating, true);
    header_write_new(p);
    pool_backing_punch(&p->backing);
    p->discarded = true;
}

tarn_status pool_revive(struct pool *p, bool other_memory, const char **why_p) {
    MAGIC_CHECK(p, POOL_MAGIC);
    TARN_ASSERT(p->discarded);
    struct pool_backing *old = &p->backing, next = *old;
    struct segment_header fixed;
    memcpy(&fixed, pool_header_of(p), offsetof(struct segment_header, pad));
    tarn_status s = TARN_OK;
    if (other_memory) {
        s = pool_backing_open(&p->config, old->map, old->map_size, true, &next, why_p);
    } else if (old->huge) {
        memset(pool_base(p), 0, p->info.size); /* they were never given back */
    } else {
        s = pool_backing_refill(old, p->config.path, why_p);
    }
    next.fresh = true;
    if (s == TARN_OK && other_memory) {
        pool_backing_close(old);
        *old = next;
        p->info.huge = next.huge;
        header_write_fixed(p, &fixed);
        __atomic_store_n(&pool_header_of(p)->instance, next.instance, __ATOMIC_RELEASE);
    }
    if (s == TARN_OK) s = pool_check_memory(&p->config, &next, why_p);
    if (s == TARN_OK) s = mapping_prepare(&p->config, &next, why_p);
    if (s != TARN_OK) {
        log_warning("Segment %s: %s", p->config.name != NULL ? p->config.name : "", *why_p);
        return s;
    }
    p->discarded = false;
    return TARN_OK;
}

void pool_set_peers_epoch(struct pool *p, uint32_t master_epoch) {
    MAGIC_CHECK(p, POOL_MAGIC);
    __atomic_store_n(&pool_header_of(p)->peers_epoch, master_epoch, __ATOMIC_RELEASE);
}

bool pool_strangers(const struct pool *p) {
    MAGIC_CHECK(p, POOL_MAGIC);
    return pool_backing_strangers(&p->backing);
}
