/* Memory that peers may reach, and memory that only our own tasks use. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/assert.h"
#include "client/client.h"
#include "client/error.h"
#include "transfer/transfer.h"

static struct transfer_region *region_overlapping(const struct tarn_transfer *t,
                                                  const void *address, size_t length) {
    struct transfer_region *r;
    LIST_FOREACH(r, &t->regions, link) {
        if (engine_buffer_meets(&r->memory, address, length)) return r;
    }
    return NULL;
}

static tarn_status region_check(const struct tarn_transfer *t, size_t len, int rights,
                                const char *name) {
    tarn_status status = transfer_usable(t);
    if (status != TARN_OK) return status;
    if (len == 0 || (rights & ~(TARN_TRANSFER_READ | TARN_TRANSFER_WRITE)) != 0)
        return fail(TARN_EINVAL, "memory needs a length, and rights of READ and WRITE or none");
    if (name != NULL && strlen(name) >= sizeof(((struct transfer_region *)0)->name))
        return fail(TARN_EINVAL, "a region's name has at most 63 bytes");
    return TARN_OK;
}

/* Under the mutex, like the rest. */
static void region_add(struct tarn_transfer *t, struct transfer_region *r, const char *name) {
    snprintf(r->name, sizeof(r->name), "%s", name != NULL ? name : "");
    LIST_INSERT_HEAD(&t->regions, r, link);
    t->n_regions++;
    t->registered_gen++;
    r->memory.identity = client_identity();
    if (r->id != 0) transfer_regions_changed(t);
}

static tarn_status region_serve(struct tarn_transfer *t, struct transfer_region *r) {
    uint32_t id = ++t->last_region;
    tarn_status status = host_segment_serve(t->host, r->slot, id, t->epoch);
    if (status == TARN_OK) r->id = id;
    /* nobody was ever there */
    else
        TARN_ASSERT(host_slot_close(t->host, r->slot) == TARN_OK);
    return status;
}

static tarn_status region_register(struct tarn_transfer *t, struct transfer_region *r) {
    const struct engine_buffer *m = &r->memory;
    if (region_overlapping(t, m->address, m->len) != NULL)
        return fail(TARN_EEXISTS, "part of %p, %llu bytes, is registered already", m->address,
                    (unsigned long long)m->len);
    if (t->n_regions == TRANSFER_REGIONS_MAX)
        return fail(TARN_ELIMIT, "%u regions are registered already: register larger ones",
                    TRANSFER_REGIONS_MAX);
    if (r->rights == 0) return TARN_OK;
    tarn_status status = host_memory_open(t->host, m->address, m->len, m->fd, m->offset, &r->slot);
    if (status == TARN_OK) status = region_serve(t, r);
    return status == TARN_OK
               ? status
               : fail(status, "the memory cannot be served: %s", tarn_status_text(status));
}

static void region_free(struct transfer_region *r) {
    if (r->memory.device) close(r->memory.fd);
    free(r);
}

/* Takes the descriptor of a device's. */
static tarn_status region_take(struct tarn_transfer *t, struct engine_buffer memory, int rights,
                               const char *name, uint32_t *region_p) {
    struct transfer_region *r = xcalloc(1, sizeof(*r));
    *r = (struct transfer_region){.memory = memory, .rights = rights};
    pthread_mutex_lock(&t->mutex);
    tarn_status status = region_register(t, r);
    if (status == TARN_OK) {
        region_add(t, r, name);
        if (region_p != NULL) *region_p = r->id;
    }
    pthread_mutex_unlock(&t->mutex);
    if (status != TARN_OK) region_free(r);
    return status;
}

tarn_status tarn_transfer_register(tarn_transfer *t, void *address, size_t len, int rights,
                                   const char *name, uint32_t *region_p) {
    tarn_status status = region_check(t, len, rights, name);
    if (status != TARN_OK) return status;
    if (address == NULL || (uintptr_t)address + len < (uintptr_t)address)
        return fail(TARN_EINVAL, "register an address and a length");
    struct engine_buffer memory = {.address = address, .len = len, .fd = -1};
    return region_take(t, memory, rights, name, region_p);
}

tarn_status tarn_transfer_register_dmabuf(tarn_transfer *t, void *address, size_t len, int fd,
                                          uint64_t offset, int rights, const char *name,
                                          uint32_t *region_p) {
    tarn_status status = region_check(t, len, rights, name);
    if (status != TARN_OK) return status;
    if (address == NULL || (uintptr_t)address + len < (uintptr_t)address || fd < 0)
        return fail(TARN_EINVAL, "register an address, a length and the descriptor of a dma-buf");
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return fail(TARN_EINVAL, "descriptor %d: %s", fd, strerror(errno));
    struct engine_buffer memory = {
        .address = address, .len = len, .device = true, .fd = own, .offset = offset};
    return region_take(t, memory, rights, name, region_p);
}

static tarn_status make_memory(struct tarn_transfer *t, struct transfer_region *r, int huge_pages) {
    const char *why;
    struct host_segment_config config = {
        .name = "transfer",
        .size = r->memory.len,
        .numa_node = -1,
        .huge = huge_pages != 0 ? HOST_HUGE_TRY : HOST_HUGE_NO,
    };
    if (t->n_regions == TRANSFER_REGIONS_MAX)
        return fail(TARN_ELIMIT, "%u regions are registered already: make larger ones",
                    TRANSFER_REGIONS_MAX);
    tarn_status status = host_segment_open(t->host, &config, &r->slot, &why);
    if (status != TARN_OK) return fail(status, "no memory for a region: %s", why);
    status = region_serve(t, r);
    if (status != TARN_OK)
        return fail(status, "the memory cannot be served: %s", tarn_status_text(status));
    r->memory.address = host_segment_base(t->host, r->id);
    return TARN_OK;
}

tarn_status tarn_transfer_alloc(tarn_transfer *t, size_t len, int rights, const char *name,
                                int huge_pages, void **address_p, uint32_t *region_p) {
    tarn_status status = region_check(t, len, rights, name);
    if (status != TARN_OK) return status;
    if (address_p == NULL || len > SIZE_MAX / 2)
        return fail(TARN_EINVAL, "there is no place for the address, or no such length");
    struct transfer_region *r = xcalloc(1, sizeof(*r));
    *r = (struct transfer_region){
        .memory = {.len = (len + 4095) & ~(size_t)4095, .fd = -1}, .rights = rights, .ours = true};
    pthread_mutex_lock(&t->mutex);
    status = make_memory(t, r, huge_pages);
    if (status == TARN_OK) {
        region_add(t, r, name);
        *address_p = r->memory.address;
        if (region_p != NULL) *region_p = rights != 0 ? r->id : 0;
    }
    pthread_mutex_unlock(&t->mutex);
    if (status != TARN_OK) free(r);
    return status;
}

/* The mutex is given up while somebody may still be at it. */
static void region_close(struct tarn_transfer *t, struct transfer_region *r) {
    r->closing = true;
    t->registered_gen++;
    transfer_lanes_forget(t, r->memory.identity);
    if (r->id != 0) {
        transfer_regions_changed(t);
        t->n_closing++;
        while (host_slot_close(t->host, r->slot) == TARN_EAGAIN) {
            transfer_wake(t);
            transfer_cond_wait(t, &t->changed, now_ms() + 100);
        }
        t->n_closing--;
    }
    LIST_REMOVE(r, link);
    t->n_regions--;
    region_free(r);
}

tarn_status tarn_transfer_unregister(tarn_transfer *t, void *address) {
    tarn_status status = transfer_usable(t);
    if (status != TARN_OK) return status;
    pthread_mutex_lock(&t->mutex);
    struct transfer_region *r = address != NULL ? region_overlapping(t, address, 1) : NULL;
    if (r == NULL || r->memory.address != address || r->closing)
        status = fail(TARN_ENOTFOUND, "nothing is registered from %p on", address);
    else
        region_close(t, r);
    pthread_mutex_unlock(&t->mutex);
    return status;
}

void transfer_regions_free(struct tarn_transfer *t) {
    struct transfer_region *r;
    while ((r = LIST_TAKE(&t->regions, link)) != NULL) region_free(r);
}

/* --- what peers are told --- */

/* How it may be reached, beside what its grants say. */
enum { FILE_OF_ITS_OWN = 1, MEMORY_OF_A_DEVICE = 2 };

static void write_grant(struct tarn_transfer *t, const struct transfer_region *r, uint64_t session,
                        enum grant_op op, bool given, struct buf *out) {
    struct grant_extent extent = {r->id, t->epoch, 0, r->memory.len};
    /* It ends with the session. */
    struct grant g = {op, TRANSFER_MASTER_EPOCH, session, UINT64_MAX, 0};
    uint8_t sealed[GRANT_SIZE];
    if (given) grant_seal(t->grant_key, &g, &extent, sealed);
    resp_write_bulk(out, given ? (const void *)sealed : "", given ? GRANT_SIZE : 0);
}

static void write_region(struct tarn_transfer *t, const struct transfer_region *r, uint64_t session,
                         struct buf *out) {
    bool reads = (r->rights & TARN_TRANSFER_READ) != 0,
         writes = (r->rights & TARN_TRANSFER_WRITE) != 0;
    struct buf uri = {0}, keys[2] = {{0}, {0}};
    const struct transport_ops *ops;
    for (size_t i = 0; uri.len == 0 && (ops = transport_at(i)) != NULL; i++)
        (void)host_slot_key(t->host, r->slot, ops->scheme, &uri, &keys[0], &keys[1]);
    resp_write_array(out, 14);
    resp_write_int(out, r->id);
    resp_write_int(out, t->epoch);
    /* As text: an address may be beyond what a RESP number holds. */
    char number[24];
    resp_write_bulk(out, number, u64_to_dec((uintptr_t)r->memory.address, number));
    resp_write_int(out, (int64_t)r->memory.len);
    resp_write_int(out, r->rights);
    resp_write_int(out, r->ours ? FILE_OF_ITS_OWN : r->memory.device ? MEMORY_OF_A_DEVICE : 0);
    resp_write_bulk(out, r->name, strlen(r->name));
    write_grant(t, r, session, GRANT_READ, reads, out);
    write_grant(t, r, session, GRANT_WRITE, writes, out);
    write_grant(t, r, session, GRANT_ATTACH_READ, reads, out);
    write_grant(t, r, session, GRANT_ATTACH_WRITE, writes, out);
    resp_write_bulk(out, uri.data, uri.len);
    resp_write_bulk(out, keys[0].data, reads && uri.len > 0 ? keys[0].len : 0);
    resp_write_bulk(out, keys[1].data, writes && uri.len > 0 ? keys[1].len : 0);
    buf_free(&uri);
    for (int i = 0; i < 2; i++) buf_free(&keys[i]);
}

void transfer_write_regions(struct tarn_transfer *t, uint64_t session, struct buf *out) {
    const char *shm = host_shm_path(t->host);
    struct transfer_region *r;
    size_t n = 0;
    LIST_FOREACH(r, &t->regions, link) n += r->id != 0 && r->rights != 0 && !r->closing;
    resp_write_array(out, 4);
    resp_write_int(out, host_data_port(t->host));
    resp_write_bulk(out, shm, strlen(shm));
    resp_write_bulk(out, t->host_id, strlen(t->host_id));
    resp_write_array(out, n);
    LIST_FOREACH(r, &t->regions, link) {
        if (r->id != 0 && r->rights != 0 && !r->closing) write_region(t, r, session, out);
    }
}
