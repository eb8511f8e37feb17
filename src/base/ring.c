#include "base/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"

#define MAGIC UINT64_C(0x31676e6972616e74) /* "tnaring1": changes with the layout */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

_Static_assert((RING_BYTES & (RING_BYTES - 1)) == 0, "positions wrap at 2^32");
_Static_assert(sizeof(struct ring_way) == 192 + RING_BYTES &&
                   sizeof(struct ring_memory) == 64 + 2 * sizeof(struct ring_way),
               "both sides have it so");

size_t ring_size(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (sizeof(struct ring_memory) + page - 1) / page * page;
}

static bool ring_map(struct ring *r, int fd) {
    void *at = mmap(NULL, ring_size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return false;
    *r = (struct ring){.memory = at};
    return true;
}

/* All of its pages are there from the beginning: a page that cannot be had later is SIGBUS. A peer
 * may punch holes, which are zeroes then: that too fails only where all memory is used up. */
bool ring_create(struct ring *r, int *fd_p) {
    int fd = memfd_create("tarn-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return false;
    int err = posix_fallocate(fd, 0, (off_t)ring_size());
    if (err != 0) errno = err;
    if (err != 0 || fcntl(fd, F_ADD_SEALS, SEALS) != 0 || !ring_map(r, fd)) {
        err = errno;
        close(fd);
        errno = err;
        return false;
    }
    r->memory->magic = MAGIC;
    r->in = &r->memory->to_server;
    r->out = &r->memory->to_client;
    r->in->sleeps = 1;
    *fd_p = fd;
    return true;
}

bool ring_open(struct ring *r, int fd) {
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) != 0 ||
        st.st_size != (off_t)ring_size() || !ring_map(r, fd))
        return false;
    if (__atomic_load_n(&r->memory->magic, __ATOMIC_RELAXED) != MAGIC) {
        ring_close(r);
        return false;
    }
    r->in = &r->memory->to_client;
    r->out = &r->memory->to_server;
    return true;
}

void ring_close(struct ring *r) {
    if (r->memory != NULL) munmap(r->memory, ring_size());
    *r = (struct ring){0};
}

/* --- bytes --- */

static ssize_t nonsense(void) {
    errno = EPROTO;
    return -1;
}

/* Between the ring's bytes, from at on, and iov, at most max: how many. */
static inline uint32_t ring_copy(char *ring, uint32_t at, uint32_t max, const struct iovec *iov,
                                 size_t n, bool into_ring) {
    uint32_t copied = 0;
    for (size_t i = 0; i < n && copied < max; i++) {
        for (size_t done = 0; done < iov[i].iov_len && copied < max;) {
            size_t from = (at + copied) % RING_BYTES,
                   left = min_u64(max - copied, iov[i].iov_len - done),
                   piece = min_u64(left, RING_BYTES - from);
            char *here = ring + from, *there = (char *)iov[i].iov_base + done;
            memcpy(into_ring ? here : there, into_ring ? there : here, piece);
            done += piece;
            copied += (uint32_t)piece;
        }
    }
    if (copied == 0) errno = EAGAIN;
    return copied;
}

ssize_t ring_read(struct ring *r, const struct iovec *iov, size_t n) {
    uint32_t have = __atomic_load_n(&r->in->head, __ATOMIC_ACQUIRE) - r->in_at;
    if (UNLIKELY(have > RING_BYTES)) return nonsense();
    uint32_t got = ring_copy(r->in->bytes, r->in_at, have, iov, n, false);
    if (got == 0) return -1;
    r->in_at += got;
    __atomic_store_n(&r->in->tail, r->in_at, __ATOMIC_RELEASE);
    return got;
}

struct span ring_peek(const struct ring *r) {
    uint32_t have = __atomic_load_n(&r->in->head, __ATOMIC_ACQUIRE) - r->in_at,
             from = r->in_at % RING_BYTES;
    if (have > RING_BYTES) have = 0;
    return span_of(r->in->bytes + from, min_u64(have, RING_BYTES - from));
}

ssize_t ring_write(struct ring *r, const struct iovec *iov, size_t n) {
    size_t want = 0;
    for (size_t i = 0; i < n; i++) want += iov[i].iov_len;
    if (RING_BYTES - (r->out_at - r->out_tail) < want) {
        uint32_t tail = __atomic_load_n(&r->out->tail, __ATOMIC_ACQUIRE);
        if (UNLIKELY(r->out_at - tail > RING_BYTES)) return nonsense();
        r->out_tail = tail;
    }
    uint32_t room = RING_BYTES - (r->out_at - r->out_tail);
    uint32_t put = ring_copy(r->out->bytes, r->out_at, room, iov, n, true);
    if (put == 0) return -1;
    r->out_at += put;
    __atomic_store_n(&r->out->head, r->out_at, __ATOMIC_RELEASE);
    return put;
}

/* --- sleep --- */

unsigned ring_possible(const struct ring *r) {
    uint32_t used = r->out_at - __atomic_load_n(&r->out->tail, __ATOMIC_ACQUIRE);
    bool readable = __atomic_load_n(&r->in->head, __ATOMIC_ACQUIRE) != r->in_at,
         room = used <= RING_BYTES / 2 || used > RING_BYTES; /* to be found by who writes */
    return (readable ? RING_READ : 0u) | (room ? RING_WRITE : 0u);
}

static bool take_back(uint32_t *flag) {
    return __atomic_load_n(flag, __ATOMIC_RELAXED) != 0 &&
           __atomic_exchange_n(flag, 0, __ATOMIC_RELAXED) != 0;
}

/* Either we see that the peer sleeps, or it sees, before it does, what we have done: each side has
 * a fence between its write and its read. */
bool ring_calls(struct ring *r, unsigned did) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (did == RING_WRITE) return take_back(&r->out->sleeps);
    uint32_t left = __atomic_load_n(&r->in->head, __ATOMIC_RELAXED) - r->in_at;
    return left <= RING_BYTES / 2 && take_back(&r->in->full);
}

unsigned ring_sleep(struct ring *r, unsigned events) {
    if (events & RING_READ) __atomic_store_n(&r->in->sleeps, 1, __ATOMIC_RELAXED);
    if (events & RING_WRITE) __atomic_store_n(&r->out->full, 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    unsigned possible = ring_possible(r) & events;
    if (possible != 0) ring_wake(r);
    return possible;
}

void ring_wake(struct ring *r) {
    if (__atomic_load_n(&r->in->sleeps, __ATOMIC_RELAXED) != 0)
        __atomic_store_n(&r->in->sleeps, 0, __ATOMIC_RELAXED);
    if (__atomic_load_n(&r->out->full, __ATOMIC_RELAXED) != 0)
        __atomic_store_n(&r->out->full, 0, __ATOMIC_RELAXED);
}
