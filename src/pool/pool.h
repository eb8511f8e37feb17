/* Segment memory: a memfd or a pool file, mapped, guarded by a 4 KiB header in front of the
 * advertised bytes.
 *
 *   pool_open ─> mapped ─pool_serve─> in use, under (id, epoch) ─pool_retire─> mapped ─> ...
 *      ─> pool_discard ─> without content ─pool_revive─> mapped ─> ... ─> pool_close
 *
 * The content has a name of its own, 16 random bytes: as long as that is the same, what was written
 * is there. A pool file keeps it when a process ends in whatever way, but not when the machine
 * does: what had not reached the disk is lost then.
 *
 * The mapping is shared, DONTFORK, DONTDUMP, bound to a NUMA node when asked, populated when asked,
 * and stays where it is until pool_close. The memfd is sealed against shrinking and growing, so
 * that no peer can turn our loads into SIGBUS. One thread opens, closes and changes lives; the
 * getters and pool_set_epochs are safe from any thread in between. */
#ifndef TARN_POOL_POOL_H
#define TARN_POOL_POOL_H

#include <stdbool.h>
#include <stdint.h>
#include "base/segment_header.h"
#include "base/status.h"

struct pool;

struct pool_config {
    const char *name; /* at most SEGMENT_NAME_MAX bytes */
    uint64_t size;    /* advertised bytes: > 0, multiple of 4096; the header comes on top */
    /* NULL or "": memfd. A file is created 0600 and locked; the pool that a whole one holds is
     * kept, and grows in place to this size. Whatever else is there is replaced by a new file */
    const char *path;
    /* a file that holds a larger pool is cut to this size; else it is TARN_EEXISTS */
    bool shrink;
    int numa_node; /* -1: any */
    bool huge;     /* try huge pages: hugetlb for a memfd; else transparent ones, which populating
                      makes where the kernel does not by itself */
    bool populate; /* touch every page now, after checking that memory is there */
    bool later;    /* not now: when pool_populate_start says so */
};

struct pool_info {
    uint64_t size;
    const char *backing; /* "memfd" or "file" */
    bool huge;           /* hugetlb pages */
    int numa_node;
    /* the file was whole and its bytes were kept; what follows is what its header said */
    bool warm;
    /* ... and the machine has not been restarted since it was created: its content has kept its
     * name */
    bool same_boot;
    uint32_t old_id, old_segment_epoch, old_master_epoch;
    /* no stranger (pool_strangers) is of an older master epoch than this */
    uint32_t old_peers_epoch;
    uint8_t content[SEGMENT_CONTENT_SIZE];
};

/* The pool that a file holds, without opening it for use: its size, and the name of its content as
 * pool_open would tell it. false: none, or none of this start of the machine. */
bool pool_file_look(const char *path, uint64_t *size_p, uint8_t content[SEGMENT_CONTENT_SIZE]);

/* Removes a pool file, for which there is no use any more; *bytes_p: what it had, 0 where there is
 * none, or a file of something else, which stays. TARN_EBUSY (another process has it), TARN_EINVAL
 * (another user's), TARN_EIO, with *why_p as below. */
tarn_status pool_file_remove(const char *path, uint64_t *bytes_p, const char **why_p);

/* Maps a segment. A new one is all zeroes. Blocks for as long as populating takes; how far it is
 * goes to the log (base/progress.h). Errors: TARN_EINVAL, TARN_ENOMEM (memory, cgroup limit),
 * TARN_EBUSY (another process has the file), TARN_EEXISTS (it holds a larger pool), TARN_EIO;
 * *why_p, never NULL then, is thread-local text that stays until this thread's next call. */
tarn_status pool_open(const struct pool_config *config, struct pool **pool_p, const char **why_p);
/* Unmaps. A pool file keeps its epochs, for the next start. NULL is fine. */
void pool_close(struct pool **pool_p);

/* Populates a pool that was opened with later, while it is used. */
void pool_populate_start(struct pool *p);
struct pool_progress {
    uint64_t done, total; /* bytes */
    uint64_t left_ms;     /* an estimate; 0 at first */
};
/* true: that is over (or there is nothing to do); *status_p says how it went, TARN_ENOMEM or
 * TARN_EIO were logged. */
bool pool_populate_look(struct pool *p, struct pool_progress *progress_p, tarn_status *status_p);

void *pool_base(const struct pool *p); /* first advertised byte, 4 KiB-aligned */
const struct pool_info *pool_get_info(const struct pool *p);
const struct segment_header *pool_header(const struct pool *p);
/* Descriptors of the memory file, header included; the pool owns them. The read-only one cannot be
 * mapped writable. */
int pool_fd(const struct pool *p, bool writable);

/* --- lives --- */

/* Writes (id, segment_epoch) into the header; whoever holds a mapping from before sees that it is
 * another life. */
void pool_serve(struct pool *p, uint32_t id, uint32_t segment_epoch, uint32_t master_epoch);
/* Epoch 0: nobody stands behind it. The header still says what it was. */
void pool_retire(struct pool *p);
void pool_set_epochs(struct pool *p, uint32_t master_epoch, uint32_t segment_epoch);
/* Retires it and gives the memory back; huge pages stay until pool_close, lest a slow peer finds
 * none. Another content from here on, which is nobody's before pool_revive. */
void pool_discard(struct pool *p);
/* Makes discarded memory all zeroes, populated where it was asked for. other_memory: in another
 * file, at the same addresses: stores of peers that still map the one before lead nowhere. Errors
 * as in pool_open; it is still without content then. */
tarn_status pool_revive(struct pool *p, bool other_memory, const char **why_p);
/* Everybody who may write to it by a mapping was let in under this master epoch or a later one.
 * Kept in the header for who opens a pool file after us. */
void pool_set_peers_epoch(struct pool *p, uint32_t master_epoch);
/* Does a process that had this pool file from an earlier host process still hold it writable? */
bool pool_strangers(const struct pool *p);

/* How many more bytes this process may allocate: the least of MemAvailable and what each memory
 * cgroup (v1 or v2) above it leaves. limiter_p gets a name for the message. proc and cgroup are
 * "/proc" and
 * "/sys/fs/cgroup". */
uint64_t pool_memory_available(const char *proc, const char *cgroup, const char **limiter_p);
#endif
