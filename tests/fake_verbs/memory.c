/* Protection domains and memory regions. A key is a place in a table and a count of who had it
 * before, so that a key of a region that is gone is no other region's. */
#include "fake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

static struct key {
    struct fake_mr *mr;
    uint32_t generation;
} * keys;
static uint32_t n_keys, free_from;

#define GENERATION_BITS 12u

struct fake_mr *fake_mr_find(uint32_t key) {
    uint32_t at = (key >> GENERATION_BITS) - 1;
    if (at >= n_keys || keys[at].mr == NULL || keys[at].mr->ibv.rkey != key) return NULL;
    return keys[at].mr;
}

static void key_give(struct fake_mr *mr) {
    uint32_t at = free_from;
    while (at < n_keys && keys[at].mr != NULL) at++;
    if (at == n_keys) {
        uint32_t more = n_keys == 0 ? 64 : n_keys * 2;
        struct key *grown = realloc(keys, more * sizeof(*keys));
        TARN_ASSERT(grown != NULL);
        keys = grown;
        memset(keys + n_keys, 0, (more - n_keys) * sizeof(*keys));
        n_keys = more;
    }
    keys[at].mr = mr;
    keys[at].generation = (keys[at].generation + 1) & ((1u << GENERATION_BITS) - 1);
    mr->ibv.lkey = mr->ibv.rkey = ((at + 1) << GENERATION_BITS) | keys[at].generation;
    free_from = at + 1;
}

static void key_take(uint32_t key) {
    uint32_t at = (key >> GENERATION_BITS) - 1;
    keys[at].mr = NULL;
    if (at < free_from) free_from = at;
}

void fake_keys_free(void) {
    free(keys);
    keys = NULL;
    n_keys = free_from = 0;
}

/* Under AddressSanitizer: the device does not touch what was freed. */
void fake_memory_check(const void *p, size_t n) {
#ifdef __SANITIZE_ADDRESS__
    if (__asan_region_is_poisoned((void *)(uintptr_t)p, n) != NULL)
        fake_die("the device moves bytes from or to memory that the program has freed");
#else
    (void)p;
    (void)n;
#endif
}

uint8_t *fake_mr_reach(uint32_t key, const struct ibv_pd *pd, uint64_t addr, uint64_t length,
                       unsigned access) {
    const struct fake_mr *mr = fake_mr_find(key);
    if (mr == NULL || mr->ibv.pd != pd || (mr->access & access) != access) return NULL;
    if (addr < mr->iova || addr - mr->iova > mr->ibv.length) return NULL;
    if (length > mr->ibv.length - (addr - mr->iova)) return NULL;
    return mr->base + (addr - mr->iova);
}

/* --- protection domains --- */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    fake_lock();
    struct fake_context *c = fake_context_of(context);
    struct fake_pd *pd = NULL;
    if (fake_fails(FAKE_ALLOC_PD)) {
        ;
    } else if (c->device->gone) {
        errno = EIO;
    } else if (fake.count[FAKE_PDS] >= fake.limits.max_pd) {
        errno = ENOMEM;
    } else {
        pd = calloc(1, sizeof(*pd));
        pd->ibv.context = context;
        c->users++;
        fake.count[FAKE_PDS]++;
    }
    fake_unlock();
    return pd != NULL ? &pd->ibv : NULL;
}

int ibv_dealloc_pd(struct ibv_pd *ibv) {
    struct fake_pd *pd = CONTAINER_OF(ibv, struct fake_pd, ibv);
    fake_lock();
    int error = pd->users != 0 ? EBUSY : 0;
    if (error == 0) {
        fake_context_of(ibv->context)->users--;
        fake.count[FAKE_PDS]--;
        free(pd);
    }
    fake_unlock();
    return error;
}

/* --- regions --- */

static int region_refused(const struct ibv_pd *pd, size_t length, unsigned access) {
    unsigned known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                     IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
    if (fake_context_of(pd->context)->device->gone) return EIO;
    if (fake.limits.relaxed) known |= IBV_ACCESS_RELAXED_ORDERING;
    if ((access & ~known & ~IBV_ACCESS_OPTIONAL_RANGE) != 0) return EOPNOTSUPP;
    if ((access & ~known) != 0) return EINVAL;
    if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0 &&
        (access & IBV_ACCESS_LOCAL_WRITE) == 0)
        return EINVAL;
    if (length == 0 || length > fake.limits.max_mr_size) return EINVAL;
    return fake.count[FAKE_MRS] >= fake.limits.max_mr ? ENOMEM : 0;
}

/* Is there memory? A device looks at every page of it. */
static bool mapped(void *addr, size_t length) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)addr & ~(page - 1);
    size_t span = ((uintptr_t)addr + length - from + page - 1) & ~(page - 1);
    return msync((void *)from, span, MS_ASYNC) == 0;
}

static struct ibv_mr *region_create(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                    unsigned access, void *map, size_t map_len) {
    struct fake_mr *mr = calloc(1, sizeof(*mr));
    mr->ibv = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = length};
    mr->access = access;
    mr->iova = iova;
    mr->base = map != NULL ? (uint8_t *)map + ((uintptr_t)addr - (uintptr_t)map) : addr;
    mr->map = map;
    mr->map_len = map_len;
    key_give(mr);
    CONTAINER_OF(pd, struct fake_pd, ibv)->users++;
    fake.count[FAKE_MRS]++;
    return &mr->ibv;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                unsigned int access) {
    fake_lock();
    struct ibv_mr *mr = NULL;
    int error = region_refused(pd, length, access);
    if (fake_fails(FAKE_REG_MR)) error = errno;
    if (error == 0 && !mapped(addr, length)) error = EFAULT;
    if (error == 0) mr = region_create(pd, addr, length, iova, access, NULL, 0);
    fake_unlock();
    if (error != 0) errno = error;
    return mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
    return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned)access);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                               int access) {
    return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned)access);
}

/* Any descriptor that can be mapped will do for a dma-buf: a memfd stands for the memory of a
 * GPU. */
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                 int fd, int access) {
    fake_lock();
    struct ibv_mr *mr = NULL;
    int error = region_refused(pd, length, (unsigned)access);
    if (!fake.limits.dmabuf) error = EOPNOTSUPP;
    if (fake_fails(FAKE_REG_MR)) error = errno;
    uint64_t slack = offset % (uint64_t)sysconf(_SC_PAGESIZE);
    void *map = MAP_FAILED;
    off_t end = lseek(fd, 0, SEEK_END);
    if (error == 0 && (end < 0 || (uint64_t)end < offset || (uint64_t)end - offset < length))
        error = EINVAL;
    if (error == 0) {
        map = mmap(NULL, length + slack, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                   (off_t)(offset - slack));
        if (map == MAP_FAILED) error = errno;
    }
    if (error == 0) {
        mr = region_create(pd, (uint8_t *)map + slack, length, iova, (unsigned)access, map,
                           length + slack);
        mr->addr = NULL; /* it has no address here */
    }
    fake_unlock();
    if (error != 0) errno = error;
    return mr;
}

int ibv_dereg_mr(struct ibv_mr *ibv) {
    struct fake_mr *mr = CONTAINER_OF(ibv, struct fake_mr, ibv);
    fake_lock();
    if (fake_mr_find(ibv->rkey) != mr) fake_die("a memory region is deregistered twice");
    struct fake_link *l;
    LIST_FOREACH(l, &fake.links, link) fake_link_spill(l, ibv->rkey);
    key_take(ibv->rkey);
    CONTAINER_OF(ibv->pd, struct fake_pd, ibv)->users--;
    fake.count[FAKE_MRS]--;
    if (mr->map != NULL) munmap(mr->map, mr->map_len);
    free(mr);
    fake_unlock();
    return 0;
}
