/* Serving segments: a host owns segment memory, listens on the data port (tcp) and on a unix socket (shm), checks grants
 * and moves bytes. Data threads never touch the books: a grant tells them all they need.
 *
 * Used by the server (embedded segment), the storage node, and libtarn. Functions are called from one control thread
 * unless they say otherwise; callbacks arrive there too, from host_poll. */
#ifndef TARN_HOST_HOST_H
#define TARN_HOST_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/status.h"
#include "transport/grant.h"

struct host;

struct host_config {
    const char *const *bind; /* addresses of the data port */
    size_t binds;
    uint16_t data_port; /* 0: any; host_data_port tells */
    unsigned threads;   /* data threads, >= 1 */
    unsigned max_connections;
    uint64_t idle_timeout_ms; /* a data connection that is silent in the middle of a frame */
    const char *shm_path;     /* unix socket, NULL or "": no shm */
    unsigned shm_mode;        /* permissions of that socket */
    /* Tells that a session which host_fence was asked to cut off can no longer write to this host's memory. */
    void *arg;
    void (*fenced)(void *arg, uint64_t session);
    /* The same for host_fence_before; NULL when that is not used. */
    void (*fenced_before)(void *arg, uint32_t master_epoch);
};

struct host_segment_config {
    const char *name;
    uint64_t size;         /* advertised bytes, multiple of 4096; the header's 4 KiB come on top */
    const char *pool_path; /* NULL: memfd; else a file, created 0600 */
    int numa_node;         /* -1: any */
    enum { HOST_HUGE_NO, HOST_HUGE_TRY } huge;
    bool populate; /* touch every page now */
};

tarn_status host_create(const struct host_config *config, struct host **host_p);
/* Stops threads, closes sockets, unmaps. Open shm peers keep their own mapping. */
void host_destroy(struct host **host_p);

/* Maps a segment, all zeroes unless it is a warm pool file (host_segment_get tells); progress lines go to the log for large ones. Before host_start. The segment epoch is the
 * caller's; the header is written. TARN_EINVAL/TARN_ENOMEM/TARN_EIO with *why (static or thread-local text) set. */
tarn_status host_segment_add(struct host *h, const struct host_segment_config *config, uint32_t id,
                             uint32_t segment_epoch, const char **why_p);
/* First advertised byte, for in-band values; writable in this process. NULL: no such id. */
void *host_segment_base(struct host *h, uint32_t id);
/* Epochs and key under which grants are valid from now on; also written to the segment headers. Thread-safe. */
void host_set_authority(struct host *h, const uint8_t key[GRANT_KEY_SIZE], uint32_t master_epoch);
/* How far the master's clock may be ahead of this machine's monotonic clock (0 in the master's own process). */
void host_set_clock_offset(struct host *h, int64_t offset_ms);

tarn_status host_start(struct host *h);
uint16_t host_data_port(const struct host *h);

/* Cuts session off: its data connections are closed, new ones refused, shm peers of it awaited. fenced() follows from
 * host_poll, at once when nothing of it is there. A stopped shm process delays it for as long as it lives. */
void host_fence(struct host *h, uint64_t session);
/* After a failover: cuts off every session whose grants are older than master_epoch, which host_set_authority must have
 * been given before. fenced_before() follows from host_poll. */
void host_fence_before(struct host *h, uint32_t master_epoch);
/* A descriptor that is readable when host_poll has something to do. */
int host_event_fd(const struct host *h);
void host_poll(struct host *h);

struct host_stats {
    uint64_t connections, connections_total, connections_refused;
    uint64_t shm_peers, shm_attaches_total;
    uint64_t reads, writes, bytes_read, bytes_written; /* by tcp */
    uint64_t refused[GRANT_VERDICTS];                  /* by verdict */
    uint64_t bad_frames, timeouts;
    uint64_t fences_pending;
};
void host_get_stats(const struct host *h, struct host_stats *stats_p);
void host_stats_reset(struct host *h);

struct host_segment_info {
    uint64_t size;
    const char *backing; /* "memfd", "file" */
    bool huge;
    int numa_node;
    /* A pool file that was whole: its contents were kept. */
    bool warm;
    bool same_boot; /* and the machine has been up since */
    uint32_t old_segment_epoch, old_master_epoch;
};
bool host_segment_get(const struct host *h, uint32_t id, struct host_segment_info *info_p);

#endif
