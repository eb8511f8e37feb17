/* Memory that devices know: segments, which clients reach, and local memory of operations.
 *
 * A segment has a protection domain of its own per device, in which it is registered chunk by
 * chunk, twice: once to read and once to write; so a client's queue pair, which lives in that
 * domain, reaches this segment and nothing else, and a reader has no key that writes. Pinning takes
 * long, so it is a job of a thread; clients go by tcp until it is done.
 *
 *   registered --job--> generation g --new epoch: renew--> generation 0, old keys die
 *      --job--> generation g' ... deregistered
 *
 * What cannot be registered with one device is done without there, and tried again when it comes up
 * anew. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/segment_header.h"
#include "rdma/rdma.h"

#define MEMORY_MAGIC 0x524d454du /* "RMEM" */
#define CHUNK_MIN    (UINT64_C(1) << 21)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct rdma_registration {
    struct rdma_job job;
    struct transport_memory *memory;
    uint32_t devices;                         /* a bit for each one to register with */
    struct rdma_region old[RDMA_DEVICES_MAX]; /* deregistered first */
    struct rdma_region made[RDMA_DEVICES_MAX];
    int error[RDMA_DEVICES_MAX]; /* atomic; 0: it went well */
    bool stop;                   /* atomic: the memory goes away */
};

/* --- chunks: on any thread --- */

static uint64_t chunk_length(const struct transport_memory *m, size_t i) {
    return min_u64(m->chunk_size, m->config.length - i * m->chunk_size);
}

static struct ibv_mr *register_shared(const struct transport_memory *m, const struct rdma_device *d,
                                      struct ibv_pd *pd, size_t i, unsigned access) {
    uint64_t offset = i * m->chunk_size;
    if (d->relaxed_ordering) access |= IBV_ACCESS_RELAXED_ORDERING;
    if (m->config.dmabuf)
        return rdma_mr_make_dmabuf(pd, &m->config, offset, chunk_length(m, i), access);
    return rdma_mr_make(pd, (char *)m->config.addr + offset, chunk_length(m, i), access);
}

static bool register_chunk(struct rdma_registration *r, const struct rdma_device *d, size_t i) {
    const struct transport_memory *m = r->memory;
    struct rdma_region *region = &r->made[d->index];
    struct rdma_chunk *c = &region->chunk[i];
    if (!m->config.remote) {
        c->write = rdma_local_get(d, &m->config, i * m->chunk_size, chunk_length(m, i));
        return c->write != NULL;
    }
    c->write =
        register_shared(m, d, region->pd, i,
                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    if (c->write != NULL) c->read = register_shared(m, d, region->pd, i, IBV_ACCESS_REMOTE_READ);
    return c->read != NULL;
}

static void register_one(void *arg, size_t i) {
    struct rdma_registration *r = arg;
    const struct transport_memory *m = r->memory;
    if (__atomic_load_n(&r->stop, __ATOMIC_RELAXED)) return;
    if (m->config.header_size > 0) {
        /* All pages at once is faster than one by one while the device's driver pins them. The
         * header is as long as the smallest page: larger ones begin before the chunk. */
        char *from = (char *)m->config.addr + i * m->chunk_size;
        size_t before = (uintptr_t)from % (uintptr_t)sysconf(_SC_PAGESIZE);
        (void)madvise(from - before, before + chunk_length(m, i), MADV_POPULATE_WRITE);
    }
    for (unsigned k = 0; k < rdma_devices_count(); k++) {
        if ((r->devices & 1u << k) == 0 || __atomic_load_n(&r->error[k], __ATOMIC_RELAXED) != 0)
            continue;
        if (!register_chunk(r, rdma_device_at(k), i))
            __atomic_store_n(&r->error[k], errno != 0 ? errno : EIO, __ATOMIC_RELAXED);
    }
}

struct region_release {
    const struct transport_memory *memory;
    struct rdma_region *region;
};

static void region_chunk_release(void *arg, size_t i) {
    const struct region_release *r = arg;
    for (unsigned k = 0; k < rdma_devices_count(); k++) {
        if (r->region[k].chunk == NULL) continue;
        struct rdma_chunk *c = &r->region[k].chunk[i];
        rdma_mr_drop(c->read);
        if (r->memory->config.remote) {
            rdma_mr_drop(c->write);
        } else if (c->write != NULL) {
            rdma_local_put(rdma_device_at(k), &r->memory->config, i * r->memory->chunk_size,
                           c->write);
        }
        *c = (struct rdma_chunk){0};
    }
}

/* Deregisters all of it; returns when it is done. */
static void regions_release(const struct transport_memory *m,
                            struct rdma_region region[RDMA_DEVICES_MAX]) {
    struct region_release r = {m, region};
    bool any = false;
    for (unsigned k = 0; k < RDMA_DEVICES_MAX; k++) any |= region[k].chunk != NULL;
    if (any) rdma_parallel(region_chunk_release, &r, m->n_chunks);
    for (unsigned k = 0; k < RDMA_DEVICES_MAX; k++) {
        rdma_mr_drop(region[k].header);
        if (region[k].pd != NULL && m->config.remote) (void)ibv_dealloc_pd(region[k].pd);
        free(region[k].chunk);
        region[k] = (struct rdma_region){0};
    }
}

/* --- a registration: on the job's thread, or at once --- */

static void begin_device(struct rdma_registration *r, struct rdma_device *d) {
    const struct transport_memory *m = r->memory;
    struct rdma_region *region = &r->made[d->index];
    region->chunk = xcalloc(m->n_chunks, sizeof(*region->chunk));
    region->pd = m->config.remote ? ibv_alloc_pd(d->verbs) : d->pd;
    if (region->pd != NULL && m->config.header_size > 0) {
        region->header = rdma_mr_make(region->pd, (char *)m->config.addr - m->config.header_size,
                                      m->config.header_size, IBV_ACCESS_REMOTE_READ);
    }
    if (region->pd == NULL || (m->config.header_size > 0 && region->header == NULL))
        r->error[d->index] = errno != 0 ? errno : EIO;
}

static void registration_drop_failed(struct rdma_registration *r) {
    struct rdma_region failed[RDMA_DEVICES_MAX] = {0};
    for (unsigned k = 0; k < RDMA_DEVICES_MAX; k++) {
        if ((r->devices & 1u << k) == 0) continue;
        r->made[k].whole = r->error[k] == 0 && !__atomic_load_n(&r->stop, __ATOMIC_RELAXED);
        if (r->made[k].whole) continue;
        failed[k] = r->made[k];
        r->made[k] = (struct rdma_region){0};
    }
    regions_release(r->memory, failed);
}

static bool registration_run(struct crew_job *job) {
    struct rdma_registration *r = CONTAINER_OF(job, struct rdma_registration, job.crew);
    regions_release(r->memory, r->old);
    for (unsigned k = 0; k < rdma_devices_count(); k++) {
        if ((r->devices & 1u << k) != 0) begin_device(r, rdma_device_at(k));
    }
    rdma_parallel(register_one, r, r->memory->n_chunks);
    registration_drop_failed(r);
    return true;
}

/* --- what comes of it: on the domain's thread --- */

/* Devices that this memory is not registered with, and that are worth a try. */
static uint32_t devices_lacking(const struct transport_memory *m) {
    uint32_t mask = 0;
    for (unsigned k = 0; k < rdma_devices_count(); k++) {
        const struct rdma_device *d = rdma_device_at(k);
        if (m->region[k].whole || rdma_device_gone(d)) continue;
        if (m->tried[k] != 1 + __atomic_load_n(&d->ups, __ATOMIC_ACQUIRE)) mask |= 1u << k;
    }
    return mask;
}

static struct rdma_registration *registration_new(struct transport_memory *m, uint32_t mask) {
    struct rdma_registration *r = xcalloc(1, sizeof(*r));
    r->job.crew.run = registration_run;
    r->job.kick_fd = m->domain->kick_fd;
    r->memory = m;
    r->devices = mask;
    for (unsigned k = 0; k < rdma_devices_count(); k++) {
        if ((mask & 1u << k) != 0)
            m->tried[k] = 1 + __atomic_load_n(&rdma_device_at(k)->ups, __ATOMIC_ACQUIRE);
    }
    return r;
}

static void registration_start(struct transport_memory *m, uint32_t mask) {
    TARN_ASSERT(m->job == NULL);
    m->job = registration_new(m, mask);
    rdma_job_start(&m->job->job);
}

static uint64_t random_generation(void) {
    uint64_t g = 0;
    while (g == 0) {
        if (getrandom(&g, sizeof(g), 0) != (ssize_t)sizeof(g)) g = clock_mono_ns() | 1;
    }
    return g;
}

static const char *register_hint(int error) {
    return error == ENOMEM ? " (is the limit of locked memory, ulimit -l, high enough?)" : "";
}

/* Takes what a registration has made. Returns how many devices it succeeded with. */
static unsigned registration_take(struct transport_memory *m, struct rdma_registration *r) {
    unsigned made = 0;
    for (unsigned k = 0; k < rdma_devices_count(); k++) {
        if ((r->devices & 1u << k) == 0) continue;
        m->region[k] = r->made[k];
        made += r->made[k].whole;
        if (r->error[k] == 0) continue;
        m->failures++;
        log_warning("RDMA device %s does without %s %u (%llu bytes): %s%s", rdma_device_at(k)->name,
                    m->config.remote ? "segment" : "local memory", m->config.segment,
                    (unsigned long long)m->config.length, strerror(r->error[k]),
                    register_hint(r->error[k]));
    }
    if (made > 0) {
        m->generation = random_generation();
        m->registered_ms = clock_boot_ms();
        m->registrations++;
        if (m->numa_node < 0 && !m->config.dmabuf) m->numa_node = rdma_numa_node_of(m->config.addr);
    }
    return made;
}

static void memory_renew(struct transport_memory *m) {
    m->again = false;
    for (unsigned k = 0; k < RDMA_DEVICES_MAX; k++) m->tried[k] = 0;
    struct rdma_region old[RDMA_DEVICES_MAX];
    memcpy(old, m->region, sizeof(old));
    memset(m->region, 0, sizeof(m->region));
    m->generation = 0;
    m->job = registration_new(m, devices_lacking(m));
    memcpy(m->job->old, old, sizeof(old));
    rdma_job_start(&m->job->job);
}

void rdma_memory_renew(struct transport_memory *m) {
    MAGIC_CHECK(m, MEMORY_MAGIC);
    if (!m->config.remote || (m->generation == 0 && m->job != NULL && !m->again))
        return; /* nobody has these keys */
    rdma_listener_drop_memory(m);
    m->generation = 0;
    if (m->job != NULL)
        m->again = true;
    else
        memory_renew(m);
}

void rdma_memory_poll(struct transport_domain *d) {
    struct transport_memory *m;
    LIST_FOREACH(m, &d->memories, link) {
        if (m->job != NULL) {
            struct rdma_registration *r = m->job;
            if (!rdma_job_done(&r->job)) continue;
            m->job = NULL;
            (void)registration_take(m, r);
            free(r);
            if (m->again) memory_renew(m);
        }
        uint32_t mask = m->job == NULL ? devices_lacking(m) : 0;
        if (mask != 0) registration_start(m, mask);
    }
}

/* --- memory_register --- */

static tarn_status register_status(int error) {
    switch (error) {
    case ENOMEM: return TARN_ENOMEM;
    case EOPNOTSUPP:
    case EPROTONOSUPPORT:
    case ENOSYS: return TARN_ENOTSUP;
    case EINVAL:
    case EFAULT: return TARN_EINVAL;
    default: return TARN_EIO;
    }
}

/* Chunks that every device takes, or nearly: one that wants smaller ones than can be counted is
 * done without. */
static void choose_chunks(struct transport_memory *m) {
    uint64_t size = RDMA_CHUNK_SIZE;
    for (unsigned k = 0; k < rdma_devices_count(); k++) {
        uint64_t most = rdma_device_at(k)->attr.max_mr_size;
        while (most != 0 && size > most && size > CHUNK_MIN) size /= 2;
    }
    while ((m->config.length - 1) / size + 1 > RDMA_CHUNKS_MAX) size *= 2;
    m->chunk_size = size;
    m->n_chunks = (size_t)((m->config.length - 1) / size + 1);
}

/* Local memory is there for operations when this returns; none of its devices may be there yet. */
static tarn_status register_now(struct transport_memory *m) {
    uint32_t mask = devices_lacking(m);
    if (mask == 0) return TARN_OK;
    struct rdma_registration *r = registration_new(m, mask);
    (void)registration_run(&r->job.crew);
    tarn_status s = TARN_EIO;
    for (unsigned k = 0; k < rdma_devices_count(); k++) {
        if (r->error[k] != 0) s = register_status(r->error[k]);
    }
    if (registration_take(m, r) > 0) s = TARN_OK;
    free(r);
    return s;
}

tarn_status rdma_memory_register(struct transport_domain *d,
                                 const struct transport_memory_config *config,
                                 struct transport_memory **memory_p) {
    if (config->addr == NULL || config->length == 0 || (config->dmabuf && config->fd < 0) ||
        (config->header_size != 0 &&
         (config->header_size < sizeof(struct segment_header) || config->dmabuf))) {
        return TARN_EINVAL;
    }
    struct transport_memory *m = xcalloc(1, sizeof(*m));
    m->magic = MEMORY_MAGIC;
    m->domain = d;
    m->config = *config;
    m->numa_node = -1;
    choose_chunks(m);
    if (!config->remote) {
        tarn_status s = register_now(m);
        if (s != TARN_OK) {
            free(m);
            return s;
        }
    } else {
        RDMA_TOTAL(segment_bytes, config->length);
        uint32_t mask = devices_lacking(m);
        if (mask != 0) registration_start(m, mask);
    }
    d->dmabufs += config->dmabuf;
    LIST_INSERT_HEAD(&d->memories, m, link);
    *memory_p = m;
    return TARN_OK;
}

void rdma_memory_deregister(struct transport_memory **memory_p) {
    struct transport_memory *m = *memory_p;
    if (m == NULL) return;
    MAGIC_CHECK(m, MEMORY_MAGIC);
    *memory_p = NULL;
    if (m->config.remote) {
        rdma_listener_drop_memory(m);
        RDMA_TOTAL(segment_bytes, -m->config.length);
    }
    if (m->job != NULL) {
        __atomic_store_n(&m->job->stop, true, __ATOMIC_RELAXED);
        rdma_job_stop(&m->job->job);
        regions_release(m, m->job->old);
        regions_release(m, m->job->made);
        free(m->job);
    }
    regions_release(m, m->region);
    m->domain->dmabufs -= m->config.dmabuf;
    LIST_REMOVE(m, link);
    m->magic = 0;
    free(m);
}

/* --- keys --- */

/* Where it is reached by this device. NULL: nowhere. */
static const struct rdma_address *offered_at(const struct transport_memory *m,
                                             const struct rdma_device *d, uint16_t *port_p) {
    if (!m->region[d->index].whole || rdma_device_gone(d)) return NULL;
    return rdma_listener_address(m->domain, d, port_p);
}

uint64_t rdma_memory_version(const struct transport_memory *m) {
    uint16_t port;
    if (!m->config.remote || m->generation == 0) return 0;
    for (unsigned k = 0; k < rdma_devices_count(); k++) {
        if (offered_at(m, rdma_device_at(k), &port) == NULL) continue;
        uint64_t version = m->generation + m->domain->reach * UINT64_C(0x9e3779b97f4a7c15);
        return version != 0 ? version : 1;
    }
    return 0;
}

static bool pack_device(const struct transport_memory *m, const struct rdma_device *d,
                        bool writable, struct buf *out) {
    struct rdma_key_device k = {.numa_node = (int16_t)d->numa_node,
                                .speed_mbps = __atomic_load_n(&d->speed_mbps, __ATOMIC_RELAXED),
                                .mtu = __atomic_load_n(&d->mtu, __ATOMIC_RELAXED)};
    const struct rdma_address *at = offered_at(m, d, &k.port);
    if (at == NULL) return false;
    memcpy(k.address, &at->ip, sizeof(k.address));
    const struct rdma_region *region = &m->region[d->index];
    memcpy(k.name, d->name, sizeof(k.name) - 1);
    if (region->header != NULL) k.header_rkey = region->header->rkey;
    buf_append(out, &k, sizeof(k));
    for (size_t i = 0; i < m->n_chunks; i++) {
        const struct ibv_mr *mr = writable ? region->chunk[i].write : region->chunk[i].read;
        buf_append(out, &mr->rkey, sizeof(mr->rkey));
    }
    return true;
}

tarn_status rdma_key_pack(struct transport_memory *m, bool writable, struct buf *out) {
    MAGIC_CHECK(m, MEMORY_MAGIC);
    if (!m->config.remote) return TARN_ENOTSUP;
    if (m->generation == 0) return TARN_EAGAIN;
    struct rdma_key_header h = {.magic = RDMA_KEY_MAGIC,
                                .version = RDMA_WIRE_VERSION,
                                .right = writable ? RDMA_WRITE : RDMA_READ,
                                .segment = m->config.segment,
                                .size = m->config.length,
                                .chunk_size = m->chunk_size,
                                .address = (uintptr_t)m->config.addr,
                                .generation = m->generation,
                                .n_chunks = (uint32_t)m->n_chunks};
    if (m->config.header_size > 0) {
        const struct segment_header *live =
            (void *)((char *)m->config.addr - m->config.header_size);
        h.header_address = (uintptr_t)live;
        h.segment_epoch = segment_header_segment_epoch(live);
    }
    size_t at = out->len;
    buf_append(out, &h, sizeof(h));
    for (unsigned k = 0; k < rdma_devices_count(); k++)
        h.n_devices += pack_device(m, rdma_device_at(k), writable, out);
    if (h.n_devices == 0) {
        out->len = at;
        return TARN_EAGAIN;
    }
    memcpy(out->data + at, &h, sizeof(h));
    return TARN_OK;
}

/* --- operations --- */

struct ibv_mr *rdma_memory_local(struct transport_domain *d, const struct rdma_device *device,
                                 const void *addr, uint64_t *len_p) {
    struct transport_memory *m;
    LIST_FOREACH(m, &d->memories, link) {
        uint64_t offset = (uintptr_t)addr - (uintptr_t)m->config.addr;
        if (m->config.remote || offset >= m->config.length || !m->region[device->index].whole)
            continue;
        size_t i = (size_t)(offset / m->chunk_size);
        *len_p = min_u64(*len_p, i * m->chunk_size + chunk_length(m, i) - offset);
        if (LIST_FIRST(&d->memories) != m) { /* the next one asked for is most likely there, too */
            LIST_REMOVE(m, link);
            LIST_INSERT_HEAD(&d->memories, m, link);
        }
        return m->region[device->index].chunk[i].write;
    }
    return NULL;
}
