/* Serving segments: a host owns segment memory, listens on the data port (tcp) and on a unix socket
 * (shm), checks grants and moves bytes. Data threads never touch the books: a grant tells them all
 * they need.
 *
 * Used by the server (embedded segment), the storage node, and libtarn. Functions are called from
 * one control thread unless they say otherwise; callbacks arrive there too, from host_poll. */
#ifndef TARN_HOST_HOST_H
#define TARN_HOST_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/figures.h"
#include "base/status.h"
#include "transport/grant.h"
#include "transport/transport.h"

struct host;
struct transport_tls;

struct pool;

struct host_config {
    const char *const *bind; /* addresses of the data port */
    size_t binds;
    uint16_t data_port; /* 0: any; host_data_port tells */
    unsigned threads;   /* data threads, >= 1 */
    unsigned max_connections;
    uint64_t idle_timeout_ms; /* a data connection that is silent in the middle of a frame */
    uint64_t busy_poll_us;    /* of data threads before they sleep, at most; 0: none */
    uint64_t staging_bytes;   /* bound of buffers for readers; 0: 64 MiB */
    const char *shm_path;     /* unix socket, NULL or "": no shm */
    unsigned shm_mode;        /* permissions of that socket */
    /* where it cannot be served at that path, go on without: host_shm_path says so */
    bool shm_optional;
    /* borrowed; NULL: the data port is plain, else it speaks TLS only */
    const struct transport_tls *tls;
    /* Tells that a session which host_fence was asked to cut off can no longer write to this host's
     * memory. */
    void *arg;
    void (*fenced)(void *arg, uint64_t session);
    /* The same for host_fence_before; NULL when that is not used. */
    void (*fenced_before)(void *arg, uint32_t master_epoch);
    /* From host_poll: what host_slot_key says of this slot has changed. NULL: nobody wants to
     * know. */
    void (*key_changed)(void *arg, unsigned slot);
};

struct host_segment_config {
    const char *name;
    uint64_t size;         /* advertised bytes, multiple of 4096; the header's 4 KiB come on top */
    const char *pool_path; /* NULL: memfd; else a file, created 0600, whose pool grows to size; */
    bool shrink;           /* and is cut to it, which is TARN_EEXISTS else */
    int numa_node;         /* -1: any */
    enum { HOST_HUGE_NO, HOST_HUGE_TRY } huge;
    bool populate; /* touch every page now; */
    bool later;    /* not before pool_populate_start */
};

tarn_status host_create(const struct host_config *config, struct host **host_p);
/* Stops threads, closes sockets, unmaps. Open shm peers keep their own mapping. */
void host_destroy(struct host **host_p);

/*   host_segment_open ─> mapped, not served ─ host_segment_serve ─> served under (id, epoch)
 *                              ^                                       │  serve again: a new id
 *                              └───── host_segment_retire ─────────────┘  or epoch
 *
 * All of these at any time, before and after host_start, from the control thread. slot is this
 * host's own number of it. Memory stays where it is mapped until host_destroy: who is slow does not
 * fault.
 *
 * Maps a segment, all zeroes unless it is a warm pool file (host_slot_get tells); progress lines go
 * to the log for large ones. TARN_EINVAL/TARN_ENOMEM/TARN_EBUSY/TARN_EEXISTS/TARN_EIO with *why
 * (static or thread-local text) set. */
tarn_status host_segment_open(struct host *h, const struct host_segment_config *config,
                              unsigned *slot_p, const char **why_p);
/* Its memory, to be populated; the host's. */
struct pool *host_segment_pool(struct host *h, unsigned slot);
/* Serves it, with the content it has, under that id and epoch (never 0) from now on, and from this
 * call on no more under another. The header is written. Nothing happens when it is served under
 * these already. TARN_EINVAL: another segment has the id. TARN_EAGAIN: under its former name
 * somebody may still be in the middle of a transfer, or has it mapped writable: try again after
 * host_poll, or host_segment_retire with discard first. TARN_ENOMEM, TARN_EIO: memory could not be
 * had again after a discard. */
tarn_status host_segment_serve(struct host *h, unsigned slot, uint32_t id, uint32_t segment_epoch);
/* Grants for it are refused from now on. With discard its content is gone: the memory goes back to
 * the system (huge pages only with host_destroy), it has another content id (host_slot_get), and
 * what peers still map leads nowhere once it is served again. */
void host_segment_retire(struct host *h, unsigned slot, bool discard);

/* A segment that is not memory: the tcp listener asks read for the bytes, piece by piece (at most 1
 * MiB) into a page-aligned buffer of a bounded pool (staging_bytes of host_config), and sends them
 * when done was called (from any thread, also from inside read). READ grants only, tcp only. Same
 * life as above; discard means nothing. arg lives until host_destroy has returned, which waits
 * until done was called for every read. */
struct host_reader {
    void *arg;
    /* From data threads, several at once; must not block. offset counts from the segment's start.
     * TARN_EAGAIN: try again a little later. TARN_ENOTFOUND: nothing there (any more). Any other:
     * broken. done is called after TARN_OK only. */
    tarn_status (*read)(void *arg, uint64_t offset, uint64_t length, void *buffer,
                        void (*done)(void *done_arg, tarn_status status), void *done_arg);
    /* As mark of transport_gate; NULL: nobody knows. */
    uint64_t (*mark)(void *arg, uint64_t offset, uint64_t length);
};
tarn_status host_reader_open(struct host *h, uint64_t size, const struct host_reader *reader,
                             unsigned *slot_p);
/* The bytes of such segments for this process itself: no connection, and no grant, so it is for who
 * has a lease and looks at it afterwards. op is a GET of parts of them, without keys; patience_ms
 * and the deadline are those of listener_read (transport.h), whose status this returns, or
 * TARN_EINVAL. Blocks. From any thread, between host_start and host_destroy. */
tarn_status host_read(struct host *h, struct transport_op *op, uint64_t deadline_boot_ms);
/* Is it inside one that is served, under that name? From any thread. */
bool host_reads(const struct host *h, const struct grant_extent *extent);
/* Of one that is retired: it is served with another size from now on. TARN_EAGAIN: somebody is in
 * the middle of reading it. */
tarn_status host_reader_resize(struct host *h, unsigned slot, uint64_t size);

/* Memory that somebody else made, mapped and keeps: by tcp, and by modules that can register it,
 * but not by shm, which needs a file to hand out. There is no segment header: what has become of it
 * peers learn from the transport alone. serve and retire as above; discard means nothing. Stays
 * mapped until host_slot_close has said TARN_OK, or host_destroy has returned. fd is -1, or a
 * dma-buf: memory of a device, length bytes from offset on, which addr only names. Then tcp does
 * not serve it either; the host keeps a descriptor of its own. TARN_EINVAL, TARN_ELIMIT. */
tarn_status host_memory_open(struct host *h, void *addr, uint64_t length, int fd, uint64_t offset,
                             unsigned *slot_p);
/* Retires it for good. TARN_OK: nobody moves bytes there any more, memory of the host's own is
 * unmapped, and the number may be given to another. TARN_EAGAIN: again after host_poll. Not for
 * readers. */
tarn_status host_slot_close(struct host *h, unsigned slot);

/* First advertised byte, for in-band values; writable in this process. NULL: no such id. */
void *host_segment_base(struct host *h, uint32_t id);
/* Epochs and key under which grants are valid from now on; also written to the segment headers.
 * Thread-safe. */
void host_set_authority(struct host *h, const uint8_t key[GRANT_KEY_SIZE], uint32_t master_epoch);
/* How far the master's clock may be ahead of this machine's monotonic clock (0 in the master's own
 * process). */
void host_set_clock_offset(struct host *h, int64_t offset_ms);

/* By one more transport than tcp and shm, which are there from the start: one that announces
 * itself (transport.h), of a module. At any time; its memory is registered as segments are served,
 * and one that cannot be is served without it. Every transport that is registered when the host is
 * created comes along by itself. TARN_ENOTFOUND: no such scheme. TARN_EEXISTS. Anything else: it
 * was logged. */
tarn_status host_transport_add(struct host *h, const char *scheme);
/* Its peers are cut off. Nothing happens when it is not there. Not for tcp and shm. */
void host_transport_remove(struct host *h, const char *scheme);
/* How peers reach a slot by that transport: where, and with which packed key. Appends.
 * TARN_ENOTFOUND: not at all, or not at the moment. */
tarn_status host_slot_key(struct host *h, unsigned slot, const char *scheme, struct buf *uri,
                          struct buf *read_key, struct buf *write_key);
/* What that transport has to report of this host (transport.h: describe). */
void host_describe(const struct host *h, const char *scheme, struct buf *out);

tarn_status host_start(struct host *h);
uint16_t host_data_port(const struct host *h);
/* "tcp", "tcps" */
const char *host_data_scheme(const struct host *h);
/* To another path than it was created with, before it starts. */
void host_move_shm(struct host *h, const char *path);
/* The socket at which shm is served; "", NULL: it is not. Borrowed from h. */
const char *host_shm_path(const struct host *h);
const char *host_shm_uri(const struct host *h);

/* Cuts session off: its data connections are closed, new ones refused, shm peers of it awaited.
 * fenced() follows from host_poll, at once when nothing of it is there. keep_ms: no grant of it is
 * good for longer, so that it may be forgotten then. A stopped shm process delays it for as long as
 * it lives. */
void host_fence(struct host *h, uint64_t session, uint64_t keep_ms);
#define HOST_FENCE_FOR_EVER UINT64_MAX
/* A put that was given this grant (WRITE_ONCE) is over. true: its bytes come no more. false:
 * somebody is receiving, or too many are remembered: until the grant expires. */
bool host_put_close(struct host *h, const struct grant *g, const struct grant_extent *extent);
/* After a failover: cuts off every session whose grants are older than master_epoch, which
 * host_set_authority must have been given before. fenced_before() follows from host_poll. */
void host_fence_before(struct host *h, uint32_t master_epoch);
/* A descriptor that is readable when host_poll has something to do. */
int host_event_fd(const struct host *h);
void host_poll(struct host *h);

/* kind, unit, member and name in NODE INFO (with - for _), name in INFO, help. BOTH: a node tells
 * its master, and a server shows it itself. */
#define HOST_FIGURES(BOTH, INFO, NODE)                                                             \
    BOTH(GAUGE, connections, data_connections, "connections of the data port")                     \
    INFO(GAUGE, max_connections, data_maxclients, "bound of them (data-maxclients)")               \
    BOTH(COUNTER, connections_total, data_connections_received, "... since the start")             \
    BOTH(COUNTER, connections_refused, data_connections_refused, "... beyond the bound")           \
    INFO(GAUGE, connections_new, data_connections_without_grant, "... strangers so far")           \
    INFO(COUNTER, connections_ousted, data_connections_ousted, "strangers who made room")          \
    BOTH(GAUGE, shm_peers, shm_peers, "processes that have the memory mapped")                     \
    BOTH(COUNTER, shm_attaches, shm_attaches, "... since the start")                               \
    BOTH(COUNTER, reads, data_reads, "reads from the data port")                                   \
    BOTH(COUNTER, writes, data_writes, "writes to the data port")                                  \
    BOTH(COUNTER_BYTES, bytes_read, data_bytes_read, "sent by the data port")                      \
    BOTH(COUNTER_BYTES, bytes_written, data_bytes_written, "received by the data port")            \
    BOTH(COUNTER, bad_frames, data_bad_frames, "peers cut off for what they sent")                 \
    BOTH(COUNTER, timeouts, data_timeouts, "peers silent in the middle of a frame")                \
    BOTH(GAUGE, fences_pending, fences_pending, "sessions being cut off")                          \
    BOTH(GAUGE, fenced_sessions, fenced_sessions, "... that are, at most 262144")                  \
    BOTH(GAUGE, puts, data_puts, "one-time grants that are remembered")                            \
    NODE(COUNTER, staged_reads, , "reads of values on disk; a peer's are in reads, too")           \
    NODE(COUNTER, staged_failures, , "... that failed")                                            \
    NODE(BYTES, staging_used, , "buffers for them in use")                                         \
    NODE(COUNTER, staging_waits, , "waits for such a buffer")                                      \
    NODE(COUNTER, staging_shared, , "pieces of them that had just been read for somebody else")
#define HOST_FIGURE_MEMBER(type, name, info_name, help) uint64_t name;

struct host_stats {
    HOST_FIGURES(HOST_FIGURE_MEMBER, HOST_FIGURE_MEMBER, HOST_FIGURE_MEMBER)
    uint64_t module_peers;            /* by transports of modules */
    struct program_counts programs;   /* of peers of all transports that have shown a good grant */
    uint64_t refused[GRANT_VERDICTS]; /* by verdict */
    uint64_t staged_bytes;
};
extern const struct figure host_figures[], host_node_figures[]; /* as in INFO, as a node tells */
void host_get_stats(const struct host *h, struct host_stats *stats_p);
/* What is served by requests that pass through this process, by transport: tcp. Peers with shm or
 * rdma move bytes themselves. */
#define HOST_TIMED_MAX 2u
struct host_times {
    unsigned n;
    struct {
        const char *scheme; /* static */
        struct transport_times times;
    } of[HOST_TIMED_MAX];
};
void host_get_times(const struct host *h, struct host_times *times_p);
void host_show_times(struct figure_walk *f, const struct host_times *times);
/* grants_refused_ by verdict. */
void host_show_refused(struct figure_walk *f, const struct host_stats *stats);
/* data_peers_ by version. */
void host_show_programs(struct figure_walk *f, const struct host_stats *stats);

struct host_segment_info {
    uint32_t id, segment_epoch; /* served under; 0: not served */
    uint64_t size;
    const char *backing; /* "memfd", "file", "memory", "reader" */
    bool huge;
    int numa_node;
    /* A pool file that was whole: its contents were kept. */
    bool warm;
    bool same_boot; /* and the machine has been up since */
    /* What its content was last served under, by this process or, warm, an earlier one. 0:
     * nothing. */
    uint32_t old_id, old_segment_epoch, old_master_epoch;
    /* Somebody who was let in by a master before the present one (host_set_authority) can still
     * write to it: a peer that has not let go of its mapping, or a process that had the pool file
     * from an earlier host. host_fence_before waits for them, as long as they live; once the
     * content is discarded they lead nowhere, and nobody waits. */
    bool strangers;
    bool lent; /* ... by whatever master: fences of sessions wait for them */
    /* Random, made with the content: the same bytes are there as long as it is the same. Zeroes for
     * readers. */
    uint8_t content[16];
};
bool host_slot_get(const struct host *h, unsigned slot, struct host_segment_info *info_p);
bool host_segment_get(const struct host *h, uint32_t id,
                      struct host_segment_info *info_p); /* false: not served */

#endif
