/* Memory of this process that operations read from and write to: registered once per device,
 * however many domains name it, where they can tell that it is the same
 * (transport_memory_config.identity).
 *
 *   get: none -> MAKING -> READY     put: the last one deregisters */
#include <errno.h>
#include <stdlib.h>

#include "rdma/rdma.h"

#define BUCKETS 256u

struct local {
    LIST_ENTRY(local) link;
    const struct rdma_device *device;
    uint64_t identity, len;
    void *addr;
    unsigned users;
    enum { MAKING, READY, FAILED } state;
    int error;
    struct ibv_mr *mr;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t made;
    LIST_HEAD(, local) bucket[BUCKETS];
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER, .made = PTHREAD_COND_INITIALIZER};

/* --- registrations, counted --- */

static struct ibv_mr *mr_count(struct ibv_mr *mr) {
    if (mr == NULL) return NULL;
    RDMA_TOTAL(regions, 1);
    RDMA_TOTAL(bytes, mr->length);
    return mr;
}

struct ibv_mr *rdma_mr_make(struct ibv_pd *pd, void *addr, uint64_t len, unsigned access) {
    return mr_count(ibv_reg_mr(pd, addr, len, access));
}

struct ibv_mr *rdma_mr_make_dmabuf(struct ibv_pd *pd, const struct transport_memory_config *config,
                                   uint64_t offset, uint64_t len, unsigned access) {
    return mr_count(ibv_reg_dmabuf_mr(pd, config->dmabuf_offset + offset, len,
                                      (uintptr_t)config->addr + offset, config->fd, (int)access));
}

void rdma_mr_drop(struct ibv_mr *mr) {
    if (mr == NULL) return;
    RDMA_TOTAL(regions, -1);
    RDMA_TOTAL(bytes, -mr->length);
    (void)ibv_dereg_mr(mr); /* it fails where the device is gone, and the registration with it */
}

/* --- the cache --- */

static unsigned local_bucket(const struct rdma_device *device, uint64_t identity,
                             const void *addr) {
    uint64_t x =
        (identity + ((uintptr_t)addr >> 12)) * UINT64_C(0x9e3779b97f4a7c15) + device->index;
    return (unsigned)(x >> 32) % BUCKETS;
}

static struct local *local_find(const struct rdma_device *device, uint64_t identity,
                                const void *addr, uint64_t len) {
    struct local *l;
    LIST_FOREACH(l, &cache.bucket[local_bucket(device, identity, addr)], link) {
        if (l->device == device && l->identity == identity && l->addr == addr && l->len == len &&
            l->state != FAILED) {
            return l;
        }
    }
    return NULL;
}

/* Memory that may only be read is good as a source. */
static struct ibv_mr *local_make(const struct rdma_device *device,
                                 const struct transport_memory_config *config, uint64_t offset,
                                 uint64_t len) {
    unsigned more = device->relaxed_ordering ? (unsigned)IBV_ACCESS_RELAXED_ORDERING : 0;
    unsigned access = IBV_ACCESS_LOCAL_WRITE | more;
    if (config->dmabuf) return rdma_mr_make_dmabuf(device->pd, config, offset, len, access);
    char *addr = (char *)config->addr + offset;
    struct ibv_mr *mr = rdma_mr_make(device->pd, addr, len, access);
    if (mr == NULL && (errno == EFAULT || errno == EACCES || errno == EPERM)) {
        int error = errno;
        mr = rdma_mr_make(device->pd, addr, len, more);
        if (mr == NULL) errno = error;
    }
    return mr;
}

static void local_unref(struct local *l) {
    if (--l->users > 0) return;
    LIST_REMOVE(l, link);
    pthread_mutex_unlock(&cache.lock);
    rdma_mr_drop(l->mr);
    pthread_mutex_lock(&cache.lock);
    free(l);
}

struct ibv_mr *rdma_local_get(const struct rdma_device *device,
                              const struct transport_memory_config *config, uint64_t offset,
                              uint64_t len) {
    if (config->identity == 0) return local_make(device, config, offset, len);
    void *addr = (char *)config->addr + offset;
    pthread_mutex_lock(&cache.lock);
    struct local *l = local_find(device, config->identity, addr, len);
    if (l != NULL) {
        l->users++;
        while (l->state == MAKING) pthread_cond_wait(&cache.made, &cache.lock);
    } else {
        l = xcalloc(1, sizeof(*l));
        *l = (struct local){.device = device,
                            .identity = config->identity,
                            .addr = addr,
                            .len = len,
                            .users = 1,
                            .state = MAKING};
        LIST_INSERT_HEAD(&cache.bucket[local_bucket(device, l->identity, addr)], l, link);
        pthread_mutex_unlock(&cache.lock);
        struct ibv_mr *mr = local_make(device, config, offset, len);
        int error = errno;
        pthread_mutex_lock(&cache.lock);
        l->mr = mr;
        l->error = error;
        l->state = mr != NULL ? READY : FAILED;
        pthread_cond_broadcast(&cache.made);
    }
    struct ibv_mr *mr = l->mr;
    int error = l->error;
    if (mr == NULL) local_unref(l);
    pthread_mutex_unlock(&cache.lock);
    if (mr == NULL) errno = error;
    return mr;
}

void rdma_local_put(const struct rdma_device *device, const struct transport_memory_config *config,
                    uint64_t offset, struct ibv_mr *mr) {
    if (config->identity == 0) {
        rdma_mr_drop(mr);
        return;
    }
    pthread_mutex_lock(&cache.lock);
    struct local *l =
        local_find(device, config->identity, (char *)config->addr + offset, mr->length);
    TARN_ASSERT(l != NULL && l->mr == mr);
    local_unref(l);
    pthread_mutex_unlock(&cache.lock);
}
