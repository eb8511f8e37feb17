/* Segment memory: a memfd or a pool file, mapped, guarded by a 4 KiB header in front of the advertised bytes.
 *
 *   pool_open -> (memory in use, epochs change by pool_set_epochs) -> pool_close
 *
 * The mapping is shared, DONTFORK, DONTDUMP, bound to a NUMA node when asked, populated when asked. The memfd
 * is sealed against shrinking and growing, so that no peer can turn our loads into SIGBUS. One thread opens
 * and closes; the getters and pool_set_epochs are safe from any thread in between. */
#ifndef TARN_POOL_POOL_H
#define TARN_POOL_POOL_H

#include <stdbool.h>
#include <stdint.h>
#include "base/segment_header.h"
#include "base/status.h"

struct pool;

struct pool_config {
    const char *name; /* at most SEGMENT_NAME_MAX bytes */
    uint32_t id, segment_epoch;
    uint64_t size;    /* advertised bytes: > 0, multiple of 4096; the header comes on top */
    const char *path; /* NULL or "": memfd. A file is created 0600 and locked; a whole one of this id and size
                         is kept */
    int numa_node;    /* -1: any */
    bool huge;        /* try huge pages: hugetlb for a memfd, else transparent ones */
    bool populate;    /* touch every page now, after checking that memory is there */
};

struct pool_info {
    uint64_t size;
    const char *backing; /* "memfd" or "file" */
    bool huge;           /* hugetlb pages */
    int numa_node;
    bool warm;      /* the file was whole and its contents were kept; what follows is what its header said */
    bool same_boot; /* ... and the machine has not been restarted since it was created */
    uint32_t old_segment_epoch, old_master_epoch;
};

/* Maps a segment. A new one is all zeroes. Blocks for as long as populating takes; progress lines go to the
 * log above 4 GiB. Errors: TARN_EINVAL, TARN_ENOMEM (memory, cgroup limit), TARN_EBUSY (another process has
 * the file), TARN_EIO; *why_p, never NULL then, is thread-local text that stays until this thread's next
 * call. */
tarn_status pool_open(const struct pool_config *config, struct pool **pool_p, const char **why_p);
/* Marks a pool file as closed in good order, unmaps. NULL is fine. */
void pool_close(struct pool **pool_p);

void *pool_base(const struct pool *p); /* first advertised byte, 4 KiB-aligned */
const struct pool_info *pool_get_info(const struct pool *p);
const struct segment_header *pool_header(const struct pool *p);
/* Descriptors of the memory file, header included; the pool owns them. The read-only one cannot be mapped
 * writable. */
int pool_fd(const struct pool *p, bool writable);
void pool_set_epochs(struct pool *p, uint32_t master_epoch, uint32_t segment_epoch);

/* --- parts, for tests --- */

/* How many more bytes this process may allocate: the least of MemAvailable and what each memory cgroup (v1 or
 * v2) above it leaves. limiter_p gets a name for the message. proc and cgroup are "/proc" and
 * "/sys/fs/cgroup". */
uint64_t pool_memory_available(const char *proc, const char *cgroup, const char **limiter_p);
/* Touches [base, base + size) with several threads. keep: the bytes are not zero and must stay clean on disk.
 */
tarn_status pool_populate(void *base, uint64_t size, bool keep);

#endif
