/* The segments of a host, from open to the end. Data threads look at a slot's name only (gate.c);
 * all that leads there and away again is the control thread's.
 *
 * Memory that was served under one name is served under another only when nobody can still be
 * writing by the first: data threads have finished what they were at, and peers that mapped it have
 * let go. After a discard the latter need not be waited for: the slot gets other memory, at the
 * same addresses. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "host/host_internal.h"

static struct host_slot *slot_get(const struct host *h, unsigned slot) {
    MAGIC_CHECK(h, HOST_MAGIC);
    TARN_ASSERT(slot < h->gate.n_slots);
    return (struct host_slot *)(uintptr_t)&h->gate.slots[slot];
}

static unsigned slot_vacant(const struct host *h) {
    unsigned at = 0;
    while (at < h->gate.n_slots && !h->gate.slots[at].vacant) at++;
    return at;
}

static bool slot_is_free(const struct host *h) {
    MAGIC_CHECK(h, HOST_MAGIC);
    return slot_vacant(h) < HOST_SLOTS_MAX;
}

/* The slot is complete: data threads may look at it from here on. */
static unsigned slot_append(struct host *h, struct host_slot slot) {
    unsigned at = slot_vacant(h);
    slot.idle = true;
    struct host_slot *s = &h->gate.slots[at];
    static_assert(offsetof(struct host_slot, name) == 0, "the rest is behind the name");
    /* Its name is 0, and threads may look at that at any time. */
    memcpy((char *)s + sizeof(s->name), (char *)&slot + sizeof(slot.name),
           sizeof(slot) - sizeof(slot.name));
    if (at == h->gate.n_slots) __atomic_store_n(&h->gate.n_slots, at + 1, __ATOMIC_RELEASE);
    return at;
}

tarn_status host_segment_open(struct host *h, const struct host_segment_config *config,
                              unsigned *slot_p, const char **why_p) {
    if (!slot_is_free(h)) {
        *why_p = "too many segments on one host";
        return TARN_EINVAL;
    }
    struct pool_config pc = {
        .name = config->name,
        .size = config->size,
        .path = config->pool_path,
        .shrink = config->shrink,
        .numa_node = config->numa_node,
        .huge = config->huge == HOST_HUGE_TRY,
        .populate = config->populate,
        .later = config->later,
    };
    struct host_slot s = {.size = config->size};
    tarn_status status = pool_open(&pc, &s.pool, why_p);
    if (status != TARN_OK) return status;
    s.base = pool_base(s.pool);
    const struct pool_info *info = pool_get_info(s.pool);
    if (info->warm && info->same_boot && info->old_segment_epoch != 0)
        s.last_name = host_name(info->old_id, info->old_segment_epoch);
    *slot_p = slot_append(h, s);
    return TARN_OK;
}

struct pool *host_segment_pool(struct host *h, unsigned slot) {
    return slot_get(h, slot)->pool;
}

tarn_status host_reader_open(struct host *h, uint64_t size, const struct host_reader *reader,
                             unsigned *slot_p) {
    if (!slot_is_free(h) || size == 0 || reader->read == NULL) return TARN_EINVAL;
    *slot_p = slot_append(h, (struct host_slot){.reader = *reader, .size = size});
    return TARN_OK;
}

tarn_status host_reader_resize(struct host *h, unsigned slot, uint64_t size) {
    struct host_slot *s = slot_get(h, slot);
    TARN_ASSERT(s->base == NULL && size > 0 && __atomic_load_n(&s->name, __ATOMIC_RELAXED) == 0);
    if (!s->idle) return TARN_EAGAIN;
    s->size = size;
    s->last_name = 0;
    return TARN_OK;
}

tarn_status host_memory_open(struct host *h, void *addr, uint64_t length, int fd, uint64_t offset,
                             unsigned *slot_p) {
    MAGIC_CHECK(h, HOST_MAGIC);
    if (addr == NULL || length == 0 || (uintptr_t)addr + length < (uintptr_t)addr)
        return TARN_EINVAL;
    if (!slot_is_free(h)) return TARN_ELIMIT;
    struct host_slot s = {.base = addr, .size = length};
    if (fd >= 0) {
        s.device = true;
        s.fd_offset = offset;
        s.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (s.fd < 0) {
            log_warning("Descriptor %d of memory to be served: %s", fd, strerror(errno));
            return TARN_EINVAL;
        }
    }
    *slot_p = slot_append(h, s);
    return TARN_OK;
}

/* --- serving --- */

/* From the transports. */
static void slot_deregister(struct host *h, unsigned slot) {
    h->gate.slots[slot].registered = false;
    for (unsigned i = 0; i < h->n_paths; i++) {
        struct host_path *p = &h->paths[i];
        if (p->memory[slot] != NULL) p->ops->memory_deregister(&p->memory[slot]);
    }
}

static tarn_status register_memory(struct host *h, unsigned slot, uint32_t id) {
    const struct host_slot *s = &h->gate.slots[slot];
    if (s->base == NULL) return TARN_OK;
    for (unsigned i = 0; i < h->n_paths; i++) {
        tarn_status status = host_path_register(h, &h->paths[i], slot, id);
        if (status == TARN_OK) continue;
        slot_deregister(h, slot);
        return status;
    }
    h->gate.slots[slot].registered = true;
    return TARN_OK;
}

/* Its memory stays registered: who has it mapped still counts. */
static void slot_hide(struct host *h, unsigned slot) {
    struct host_slot *s = &h->gate.slots[slot];
    uint64_t name = __atomic_load_n(&s->name, __ATOMIC_RELAXED);
    if (name == 0) return;
    host_gate_hide(&h->gate, s);
    host_fence_slot(h, slot, (uint32_t)(name >> 32));
}

bool host_slot_lent(const struct host *h, unsigned slot, uint32_t below_epoch) {
    const struct host_slot *s = &h->gate.slots[slot];
    if (s->base == NULL || s->discarded) return false;
    for (unsigned i = 0; i < h->n_paths; i++) {
        const struct host_path *p = &h->paths[i];
        if (p->listener != NULL && p->memory[slot] != NULL && p->ops->listener_lent != NULL &&
            p->ops->listener_lent(p->listener, p->memory[slot], below_epoch)) {
            return true;
        }
    }
    return s->pool != NULL && pool_get_info(s->pool)->old_peers_epoch < below_epoch &&
           pool_strangers(s->pool);
}

/* Is its memory ours alone, for another life? */
static tarn_status make_ready(struct host *h, unsigned slot) {
    struct host_slot *s = &h->gate.slots[slot];
    if (!s->idle || host_slot_lent(h, slot, UINT32_MAX)) return TARN_EAGAIN;
    if (!s->discarded) return TARN_OK;
    const char *why;
    tarn_status status = pool_revive(s->pool, s->orphans, &why);
    if (status == TARN_OK) s->discarded = s->orphans = false;
    return status;
}

tarn_status host_segment_serve(struct host *h, unsigned slot, uint32_t id, uint32_t segment_epoch) {
    struct host_slot *s = slot_get(h, slot);
    uint64_t name = host_name(id, segment_epoch);
    uint32_t other_epoch;
    struct host_slot *other = host_gate_find(&h->gate, id, &other_epoch);
    if (segment_epoch == 0 || (other != NULL && other != s)) return TARN_EINVAL;
    if (__atomic_load_n(&s->name, __ATOMIC_RELAXED) == name) return TARN_OK;
    slot_hide(h, slot);
    /* Under its old name it may go on with whoever knew it by that. */
    if (s->discarded || name != s->last_name) {
        tarn_status status = make_ready(h, slot);
        if (status != TARN_OK) return status;
        slot_deregister(h, slot);
    }
    if (!s->registered) {
        tarn_status status = register_memory(h, slot, id);
        if (status != TARN_OK) return status;
    }
    if (s->pool != NULL && !host_slot_lent(h, slot, UINT32_MAX))
        pool_set_peers_epoch(s->pool, host_gate_master_epoch(&h->gate));
    s->last_name = name;
    host_gate_publish(&h->gate, s, id, segment_epoch);
    return TARN_OK;
}

void host_segment_retire(struct host *h, unsigned slot, bool discard) {
    struct host_slot *s = slot_get(h, slot);
    slot_hide(h, slot);
    if (!discard || s->pool == NULL || s->discarded) return;
    s->orphans = host_slot_lent(h, slot, UINT32_MAX);
    slot_deregister(h, slot); /* from here on what they have is nobody's */
    pool_discard(s->pool);
    s->discarded = true;
    s->last_name = 0;
}

tarn_status host_slot_close(struct host *h, unsigned slot) {
    struct host_slot *s = slot_get(h, slot);
    TARN_ASSERT(s->base != NULL && !s->vacant);
    host_segment_retire(h, slot,
                        /* and if peers have it mapped: what they map is nobody's from here on */
                        true);
    if (!s->idle) return TARN_EAGAIN;
    slot_deregister(h, slot);
    pool_close(&s->pool);
    if (s->device) close(s->fd);
    s->vacant = true;
    s->last_name = 0;
    return TARN_OK;
}

void host_close_slots(struct host *h) {
    for (unsigned i = 0; i < h->gate.n_slots; i++) {
        slot_deregister(h, i);
        pool_close(&h->gate.slots[i].pool);
        if (h->gate.slots[i].device && !h->gate.slots[i].vacant) close(h->gate.slots[i].fd);
    }
}

/* --- questions --- */

void *host_segment_base(struct host *h, uint32_t id) {
    uint32_t epoch;
    struct host_slot *s = host_gate_find(&h->gate, id, &epoch);
    return s != NULL ? s->base : NULL;
}

static void fill_info(const struct host *h, unsigned slot, struct host_segment_info *info_p) {
    const struct host_slot *s = &h->gate.slots[slot];
    uint64_t name = __atomic_load_n(&s->name, __ATOMIC_RELAXED);
    *info_p = (struct host_segment_info){
        .id = (uint32_t)(name >> 32),
        .segment_epoch = (uint32_t)name,
        .size = s->size,
        .backing = s->base != NULL ? "memory" : "reader",
        .numa_node = -1,
        .old_id = (uint32_t)(s->last_name >> 32),
        .old_segment_epoch = (uint32_t)s->last_name,
    };
    if (s->pool == NULL) return;
    const struct pool_info *p = pool_get_info(s->pool);
    info_p->backing = p->backing;
    info_p->huge = p->huge;
    info_p->numa_node = p->numa_node;
    info_p->warm = p->warm;
    info_p->same_boot = p->same_boot;
    info_p->old_master_epoch = p->old_master_epoch;
    info_p->strangers = host_slot_lent(h, slot, host_gate_master_epoch(&h->gate));
    info_p->lent = host_slot_lent(h, slot, UINT32_MAX);
    memcpy(info_p->content, p->content, sizeof(info_p->content));
}
_Static_assert(sizeof(((struct host_segment_info *)0)->content) == SEGMENT_CONTENT_SIZE,
               "content id");

bool host_slot_get(const struct host *h, unsigned slot, struct host_segment_info *info_p) {
    MAGIC_CHECK(h, HOST_MAGIC);
    if (slot >= h->gate.n_slots) return false;
    fill_info(h, slot, info_p);
    return true;
}

bool host_segment_get(const struct host *h, uint32_t id, struct host_segment_info *info_p) {
    uint32_t epoch;
    const struct host_slot *s = host_gate_find(&h->gate, id, &epoch);
    if (s == NULL) return false;
    fill_info(h, (unsigned)(s - h->gate.slots), info_p);
    return true;
}
