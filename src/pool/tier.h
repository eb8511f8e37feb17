/* Slow tiers of a host: objects on a local disk (ssd: one big file or device, written in large
 * sequential batches) or as files of a shared file system (file). The host decides where an object
 * goes; the master only knows (segment, offset).
 *
 *   tier_open (recovers what is there) ─> tier_each (what was found, for the master)
 *     ─> put, read, drop, ... ─> tier_close
 *
 * What survives: everything done() was called for is there again after the process was killed, and
 * nothing half-written is. After a power failure the last moments may be missing, as far as the
 * disk's own cache lost them; removals of the last second, too. Readers verify values by their CRC;
 * this tier verifies its own books.
 *
 * Threads: put, drop, read and mark from any thread. The callbacks come from the tier's own thread:
 * note it down, wake your own. tier_poll_evict and the rest from one control thread. Nothing here
 * blocks but open and close. */
#ifndef TARN_POOL_TIER_H
#define TARN_POOL_TIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include "base/buf.h"
#include "base/figures.h"
#include "base/hist.h"
#include "base/status.h"

#define TIER_CONTENT_SIZE 16u

struct tier;

struct tier_config {
    /* ssd: a directory (a file "tarn.ssd" is made in it), a file, or a block device. file: a
     * directory */
    const char *path;
    uint64_t size;          /* bytes it may take on disk */
    uint64_t queue_bytes;   /* bound of what is accepted and not yet on disk; 0: 256 MiB */
    uint64_t read_bytes;    /* bound of reads under way; 0: 64 MiB */
    const uint8_t *cluster; /* file: cluster id, 16 bytes; part of every path */
    bool create;            /* what is not there is made: ssd: a file, file: the directory */
    /* file: permissions of the files, for who reads them as another user; 0: 0600 */
    unsigned mode;
    bool direct;   /* O_DIRECT where the file system has it */
    bool populate; /* ssd: the queue's memory is touched while there is nothing else to do, so that
                      the first puts need not wait for pages */
};

struct tier_info {
    /* Made with the tier, and anew when entries were found damaged or the tier was made smaller: as
     * long as it is the same, offsets hold what they held. */
    uint8_t content[TIER_CONTENT_SIZE];
    uint64_t size;      /* advertised: offsets are below it (ssd); file: bytes it may take */
    uint64_t copy_max;  /* see tier_put */
    uint64_t value_max; /* larger ones are TARN_ENOSPACE */
    bool recovered;     /* it was there before */
    /* file: where readers find their files, up to the cluster id included; NULL */
    const char *directory;
};

struct tier_item {
    struct span key;
    uint64_t version, size;
    uint32_t crc;         /* of the value */
    const uint32_t *crcs; /* one per MiB for values above it, NULL: none */
    size_t n_crcs;
    /* Values put one after the other with the same number are of one prompt, its head first: when
     * room is needed its tail goes first, as far as the tier gives up parts. 0: of none. Not kept
     * on disk. */
    uint32_t prompt;
    /* Where it is, never 0. file tier: an address in a log without end; [offset, offset + size) is
     * its own, and its bytes are at tier_file_path. */
    uint64_t offset;
};

/* TARN_EINVAL (also: nothing is there, or of something else, or not mounted: nothing is made or
 * overwritten that was not asked for), TARN_EIO, TARN_ENOSPACE (the disk), TARN_EBUSY (another
 * process has it), with *why_p. Torn and damaged entries are dropped, with a line in the log
 * that counts them. Long recoveries log progress. */
tarn_status tier_open(const char *kind, const struct tier_config *config, struct tier **tier_p,
                      const char **why_p);
/* Writes what is accepted, then closes. */
void tier_close(struct tier **tier_p);
const struct tier_info *tier_get_info(const struct tier *t);
/* Gives the content another name, on disk as well, and leaves it as it is: whoever knew it by the
 * old one must ask again. For the control thread; one small write. TARN_EIO: it has kept its
 * name. */
tarn_status tier_renew(struct tier *t);

/* Every entry that is there and not dropped. fn must not call back. */
void tier_each(struct tier *t, void (*fn)(void *arg, const struct tier_item *item), void *arg);
/* The master knows the entry under another version since an offer: so do tier_drop, tier_each and
 * tier_file_path from now on, also after a restart. TARN_ENOTFOUND: no entry begins at that
 * offset. */
tarn_status tier_rename(struct tier *t, uint64_t offset, uint64_t version);

/* Takes a copy of the value and sums it on the way: TARN_ECORRUPT when that is not the item's crc
 * (check_crc), so bytes that changed meanwhile never get to disk under its name. TARN_EAGAIN: the
 * queue is full, or the disk is and eviction has not made room yet (nothing here waits for it).
 * TARN_ENOSPACE: larger than value_max. TARN_EIO: the disk failed too often, this tier takes
 * nothing more. TARN_EINVAL: a key of 0 or more than 1024 bytes. done: the entry is on disk at
 * offset and will be found again, also after kill -9 (TARN_OK), or not (TARN_EIO, TARN_ENOSPACE;
 * TARN_ECORRUPT for large ones). item and iov are borrowed for this call only, but of a value above
 * copy_max the bytes that iov points to are read in the tier's thread until done: they may change
 * (then it is TARN_ECORRUPT), and must stay mapped. item->crc is filled in when !check_crc. The
 * checksums per MiB are the tier's own: item->crcs is not looked at. */
tarn_status tier_put(struct tier *t, struct tier_item *item, bool check_crc,
                     const struct iovec *iov, size_t n_iov,
                     void (*done)(void *arg, tarn_status status, uint64_t offset), void *arg);
/* It must not be found again after a restart. The space is reclaimed with what lies around it. */
void tier_drop(struct tier *t, uint64_t offset, uint64_t version);

/* Reads length bytes of the value space, any alignment; buffer stays borrowed until done.
 * TARN_EAGAIN: read_bytes are under way, try again after one is done. TARN_ENOTFOUND: not inside an
 * entry. Entries that were handed out by tier_poll_evict, and on an ssd those that were dropped,
 * can be read until their space is used again. Offset and buffer on 4 KiB: no copy on the way. */
tarn_status tier_read(struct tier *t, uint64_t offset, uint64_t length, void *buffer,
                      void (*done)(void *arg, tarn_status status), void *arg);

/* As long as this says the same of bytes, they are the same. 0: nobody knows, or they are not
 * there. */
uint64_t tier_mark(struct tier *t, uint64_t offset, uint64_t length);

/* Above the high watermark a part of the tier is chosen to go, by age and by how often it was read.
 * Its entries are handed out here once; the owner tells the master, waits until nobody may read
 * them any more, and calls tier_evicted with the ticket: only then is the space used again. A part
 * of which everything was dropped comes without entries: the same wait protects who still reads it.
 * 0: nothing to go now; ask until then. A descriptor tells when to ask (tier_event_fd). */
uint64_t tier_poll_evict(struct tier *t, void (*fn)(void *arg, const struct tier_item *item),
                         void *arg);
void tier_evicted(struct tier *t, uint64_t ticket);
/* Before that the owner may say what parts that could go are worth: some entries of one are handed
 * out, and tier_weighed is told with the ticket how much is lost with such an entry of it, in the
 * mean (< 0: nobody knows). Where it is known of all parts that could go, the one that loses least
 * goes, not the one that was read least. After some seconds they are to be weighed anew. 0: there
 * is none to weigh now. */
uint64_t tier_weigh(struct tier *t, void (*fn)(void *arg, const struct tier_item *item), void *arg);
void tier_weighed(struct tier *t, uint64_t ticket, double loss);
int tier_event_fd(const struct tier *t);

/* As a node tells its master, after "ssd-" or "file-", and with - for _. */
#define TIER_FIGURES(X)                                                                            \
    X(BYTES, size, "of the disk or directory")                                                     \
    X(BYTES, used, "in entries and what has not been reclaimed")                                   \
    X(GAUGE, entries, "objects there")                                                             \
    X(BYTES, queued_bytes, "on their way there")                                                   \
    X(COUNTER, queue_full, "objects not taken: too much was on its way")                           \
    X(COUNTER, reads, "reads of objects")                                                          \
    X(COUNTER_BYTES, read_bytes, "... their bytes")                                                \
    X(COUNTER_US, read_us, "in which reads were under way")                                        \
    X(COUNTER, read_failures, "... that failed")                                                   \
    X(COUNTER, evicted, "objects that made room")                                                  \
    X(COUNTER, dropped, "objects that the master let go of")                                       \
    X(COUNTER, damaged, "parts that were not whole, and are gone")                                 \
    X(GAUGE, read_only, "1: the disk failed too often")

struct tier_stats {
    TIER_FIGURES(FIGURE_MEMBER)
    uint64_t puts, put_failures, recovered;
};
void tier_get_stats(struct tier *t, struct tier_stats *stats_p);

/* Nanoseconds, of what ended well: reads from tier_read until the bytes were there, puts from
 * tier_put until they were on disk. */
struct tier_times {
    struct hist read, write;
};
void tier_get_times(struct tier *t, struct tier_times *times_p);

/* file tier: the path of an entry relative to info.directory; where a client reads the value: its
 * first `size` bytes. Two keys, or two versions, never share a path: BLAKE2b-256 of key, in two
 * levels of directories, then the version. */
void tier_file_path(struct span key, uint64_t version, char *out, size_t size);

#endif
