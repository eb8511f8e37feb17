/* Slots of memory that this program has from elsewhere, and the end of slots: both for hosts whose
 * memory comes and goes while they run, as an engine's buffers do (src/transfer/transfer.c). */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "host/host_internal.h"

tarn_status host_memory_open(struct host *h, void *addr, uint64_t length, int fd, uint64_t offset,
                             unsigned *slot_p) {
    MAGIC_CHECK(h, HOST_MAGIC);
    if (addr == NULL || length == 0 || (uintptr_t)addr + length < (uintptr_t)addr)
        return TARN_EINVAL;
    if (!host_slot_free(h)) return TARN_ELIMIT;
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
    *slot_p = host_slot_append(h, s);
    return TARN_OK;
}

tarn_status host_slot_close(struct host *h, unsigned slot) {
    MAGIC_CHECK(h, HOST_MAGIC);
    TARN_ASSERT(slot < h->gate.n_slots);
    struct host_slot *s = &h->gate.slots[slot];
    TARN_ASSERT(s->base != NULL && !s->vacant);
    host_segment_retire(h, slot,
                        /* and if peers have it mapped: what they map is nobody's from here on */
                        true);
    if (!s->idle) return TARN_EAGAIN;
    host_slot_deregister(h, slot);
    pool_close(&s->pool);
    if (s->device) close(s->fd);
    s->vacant = true;
    s->last_name = 0;
    return TARN_OK;
}
