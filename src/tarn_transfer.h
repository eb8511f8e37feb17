/* libtarn: moving blocks between two programs without storing them, for engines that prefill in one
 * place and decode in another. It follows the conventions of tarn.h: statuses, tarn_last_error,
 * sizes first in option structs.
 *
 *     #include <tarn_transfer.h>
 *
 *     // The side that is read: blocks stay as they are until an event says that "7" is DONE.
 *     tarn_status lend(tarn_transfer *prefill, size_t bytes, void (*compute)(void *blocks)) {
 *         void *blocks;
 *         tarn_status status =
 *             tarn_transfer_alloc(prefill, bytes, TARN_TRANSFER_READ, "kv", 0, &blocks, NULL);
 *         if (status != TARN_OK) return status;
 *         compute(blocks);
 *         return tarn_transfer_ready(prefill, "7", NULL);
 *     }
 *
 *     // The side that reads.
 *     tarn_status fetch(tarn_transfer *decode, void *blocks, size_t bytes) {
 *         tarn_transfer_peer *peer;
 *         tarn_transfer_region kv;
 *         size_t n;
 *         tarn_status status = tarn_transfer_connect(decode, "prefill-0", 0, &peer);
 *         if (status != TARN_OK) return status;
 *         status = tarn_transfer_wait_ready(peer, "7", 0, NULL, 0, NULL);
 *         if (status == TARN_OK) status = tarn_transfer_peer_regions(peer, &kv, 1, &n);
 *         if (status == TARN_OK) {
 *             tarn_transfer_task task = {.op = TARN_TRANSFER_READ, .region = kv.id,
 *                                        .local = blocks, .length = bytes};
 *             status = tarn_transfer_run(peer, &task, 1, NULL);
 *         }
 *         if (status == TARN_OK) status = tarn_transfer_done(peer, "7", NULL, 0, 0);
 *         tarn_transfer_disconnect(&peer);
 *         return status;
 *     }
 *
 * Bytes go by shared memory where both are on one machine and the memory is tarn_transfer_alloc's,
 * by RDMA where both have the module, else by TCP. There are no checksums beyond those of the
 * network.
 *
 * Threads: everything may be called from any number of threads at once, except that an object must
 * not be used while it is being closed. Nothing survives fork(): a child gets TARN_ECLOSED. Times
 * are in milliseconds, lengths in bytes. */
#ifndef TARN_TRANSFER_H
#define TARN_TRANSFER_H

#include "tarn.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TARN_TRANSFER_NAME_MAX    40      /* bytes of an end's name: [A-Za-z0-9._-] */
#define TARN_TRANSFER_LABEL_MAX   255     /* bytes of a label, without its terminator */
#define TARN_TRANSFER_MESSAGE_MAX 65536   /* bytes of a message, or of a label's info */
#define TARN_TRANSFER_TASKS_MAX   1000000 /* per batch */

typedef struct tarn_transfer tarn_transfer;             /* an end: this program's side */
typedef struct tarn_transfer_peer tarn_transfer_peer;   /* another end, as seen from ours */
typedef struct tarn_transfer_batch tarn_transfer_batch; /* tasks submitted together */

/* --- an end --- */

typedef struct tarn_transfer_options {
    size_t size;
    const char *name; /* others find this end by it; NULL: by its endpoint only */
    /* URL of a tarn-server, as for tarn_connect: names are kept there. NULL: no names */
    const char *master;
    const char *const *bind; /* addresses of both ports; NULL: 127.0.0.1 */
    size_t binds;            /* 8 at most */
    uint16_t port;           /* control port, 0: any */
    uint16_t data_port;      /* 0: any */
    /* host (or host:port) under which others reach the control port; NULL: the first of bind,
     * or, where that is every address, the one from which this machine reaches the master */
    const char *announce;
    /* both sides must have the same, or none; at least 8 bytes. It is never sent */
    const char *secret;
    /* 1: beyond loopback without a secret too: anyone who reaches the port has peers' rights */
    int unprotected;
    const char *transport; /* of what this end submits: "auto" (default), "shm", "tcp", "rdma" */
    /* where modules/rdma.so is searched for, as in tarn_options; "auto" does without it */
    const char *module_path;
    /* unix socket for peers on this machine; NULL: chosen; "": no shm */
    const char *shm_socket;
    unsigned shm_mode;           /* its permissions; 0: 0600, the same user only */
    unsigned threads;            /* 2: that serve peers by tcp */
    unsigned workers;            /* 4: batches of one peer that run at a time; 64 of all peers */
    unsigned streams;            /* 2: tcp connections per worker and peer, for large tasks */
    unsigned max_peers;          /* 256: that connect to this end */
    uint64_t connect_timeout_ms; /* 5000 */
    /* 10000: of calls without their own; of batches, plus the time their bytes take at 100 MB/s */
    uint64_t timeout_ms;
} tarn_transfer_options;
TARN_API void tarn_transfer_options_init(tarn_transfer_options *options);

/* TARN_EINVAL; TARN_EPERM: an address that is not loopback, without a secret; TARN_EIO: an address
 * or port that is not available, or no master. If another end has the name, this one takes it over:
 * the last to open a name owns it. */
TARN_API tarn_status tarn_transfer_open(const tarn_transfer_options *options,
                                        tarn_transfer **transfer_p);
/* Release batches and disconnect peers first. Waits until no peer moves bytes in its memory any
 * more; memory of tarn_transfer_alloc is unmapped. Nulls. */
TARN_API void tarn_transfer_close(tarn_transfer **transfer_p);
/* "tarn-transfer://host:port", for tarn_transfer_connect elsewhere. Lives as long as the end. */
TARN_API const char *tarn_transfer_endpoint(const tarn_transfer *transfer);

/* --- memory --- */

/* The rights of peers to a region, and the direction of a task. */
enum { TARN_TRANSFER_READ = 1, TARN_TRANSFER_WRITE = 2 };

/* len bytes from address on, which must stay mapped until they are unregistered. rights: what peers
 * may do: READ, WRITE, both, or 0: the memory is only for this end's own tasks (RDMA needs it
 * registered; the other transports take any memory). name: for peers, at most 63 bytes, NULL: none.
 * *region_p (may be NULL): its number, not 0, never reused by this end; 0 if rights are 0. Peers
 * cannot reach it by shm, only memory of tarn_transfer_alloc. TARN_EINVAL; TARN_EEXISTS: part of it
 * is registered already; TARN_ELIMIT: 256 regions are. */
TARN_API tarn_status tarn_transfer_register(tarn_transfer *transfer, void *address, size_t len,
                                            int rights, const char *name, uint32_t *region_p);
/* Registers memory of a device such as a GPU, as a dma-buf: len bytes of it from offset on, which
 * tasks and peers name by address. No CPU touches it: its bytes move by RDMA, or the task fails
 * with TARN_ENOTSUP. fd may be closed afterwards. */
TARN_API tarn_status tarn_transfer_register_dmabuf(tarn_transfer *transfer, void *address,
                                                   size_t len, int fd, uint64_t offset, int rights,
                                                   const char *name, uint32_t *region_p);
/* Allocates zeroed memory and registers it: len is rounded up to 4096. A forked child does not have
 * it. huge_pages 1: try. Statuses as above, and TARN_ENOMEM. */
TARN_API tarn_status tarn_transfer_alloc(tarn_transfer *transfer, size_t len, int rights,
                                         const char *name, int huge_pages, void **address_p,
                                         uint32_t *region_p);
/* Returns when no peer moves bytes there any more; memory of tarn_transfer_alloc is unmapped. This
 * end's own batches that use it must be over. TARN_ENOTFOUND: nothing is registered from address
 * on. */
TARN_API tarn_status tarn_transfer_unregister(tarn_transfer *transfer, void *address);

/* --- labels: are the blocks ready? --- */

/* A label names a set of blocks for both sides: the id of a request, say. It belongs to the end
 * that says ready or abort.
 *
 *   (unknown) ─ready─> ready ─every peer said done, gave up, or went away─> (unknown)
 *                        └──abort, or keep_ms are over──> aborted ─a minute later─> (unknown)
 *
 * Events tell the owner when the blocks may be used for something else. */
typedef struct tarn_transfer_ready_options {
    size_t size;
    /* peers get it with the label: numbers of blocks, say; at most TARN_TRANSFER_MESSAGE_MAX */
    const void *info;
    size_t info_len;
    unsigned peers;   /* 1: this many must say done (or give up) before the label is over */
    uint64_t keep_ms; /* 0: for ever. Else it is aborted if they have not by then */
    /* 1: when it is aborted, the connections of peers that were told and are not done are cut
     * first. For labels whose blocks peers write: a write that is on its way cannot be called
     * back otherwise. This also ends anything else those peers do here */
    int cut;
} tarn_transfer_ready_options;
TARN_API void tarn_transfer_ready_options_init(tarn_transfer_ready_options *options);

/* options NULL: all defaults. TARN_EEXISTS: it is ready already. An aborted label becomes ready
 * again; TARN_EBUSY: its ABORTED event has not come yet. TARN_ELIMIT: 65536 labels. */
TARN_API tarn_status tarn_transfer_ready(tarn_transfer *transfer, const char *label,
                                         const tarn_transfer_ready_options *options);
/* The blocks will not come, or are gone: waiters get TARN_ECANCELED, with reason in
 * tarn_last_error(). If the label was ready, an ABORTED event follows: from then on no peer relies
 * on its blocks (or, with cut, can write to them). */
TARN_API tarn_status tarn_transfer_abort(tarn_transfer *transfer, const char *label,
                                         const char *reason);

/* --- events of an end --- */

enum {
    TARN_TRANSFER_MESSAGE = 1, /* from tarn_transfer_notify */
    TARN_TRANSFER_DONE,        /* a peer is done with a label; data: its message */
    /* a peer gave a label up, or went away (it can no longer write then); data: why */
    TARN_TRANSFER_GAVE_UP,
    TARN_TRANSFER_ABORTED, /* a label that was ready is aborted; data: why */
};
typedef struct tarn_transfer_event {
    size_t size;
    int kind;
    char peer[TARN_TRANSFER_NAME_MAX + 1];   /* its name; "" if it has none, and for ABORTED */
    char label[TARN_TRANSFER_LABEL_MAX + 1]; /* "" for MESSAGE */
    void *data; /* terminated by a 0 that len does not count: tarn_free. NULL: no bytes */
    size_t len;
} tarn_transfer_event;
/* The next one, waiting for it up to timeout_ms (0: not at all). event->size must be set.
 * TARN_EAGAIN: none. */
TARN_API tarn_status tarn_transfer_next_event(tarn_transfer *transfer, uint64_t timeout_ms,
                                              tarn_transfer_event *event);
/* An eventfd, readable while events are waiting: for poll or epoll. Never read it. */
TARN_API int tarn_transfer_fd(const tarn_transfer *transfer);

/* --- peers --- */

/* where: "tarn-transfer://host:port", or the name of an end of the same master, which may appear
 * within timeout_ms (0: the end's connect_timeout_ms). TARN_ENOTFOUND: no such name; TARN_EIO,
 * TARN_ETIMEOUT: no answer; TARN_EPERM: another secret; TARN_EPROTO: not such an end; TARN_ELIMIT:
 * it has too many peers. A peer whose connection has broken stays broken (TARN_ECLOSED, also for
 * its batches): disconnect and connect again. */
TARN_API tarn_status tarn_transfer_connect(tarn_transfer *transfer, const char *where,
                                           uint64_t timeout_ms, tarn_transfer_peer **peer_p);
/* Release its batches first. Nulls. */
TARN_API void tarn_transfer_disconnect(tarn_transfer_peer **peer_p);
/* The name that it claims, "" for none. Lives as long as the peer. */
TARN_API const char *tarn_transfer_peer_name(const tarn_transfer_peer *peer);

typedef struct tarn_transfer_region {
    uint32_t id;
    int32_t rights;
    uint64_t address, length; /* over there */
    char name[64];
} tarn_transfer_region;
/* Fetches all regions of the peer that we may use, up to max of them; *n_p: how many there are. */
TARN_API tarn_status tarn_transfer_peer_regions(tarn_transfer_peer *peer,
                                                tarn_transfer_region *regions, size_t max,
                                                size_t *n_p);

/* For all of these, timeout_ms 0: the end's timeout_ms. Waits until the label is ready, and copies
 * up to cap bytes of its info; *info_len_p is its full length (info and info_len_p may be NULL).
 * TARN_ETIMEOUT: not ready in time; TARN_ECANCELED: aborted. */
TARN_API tarn_status tarn_transfer_wait_ready(tarn_transfer_peer *peer, const char *label,
                                              uint64_t timeout_ms, void *info, size_t cap,
                                              size_t *info_len_p);
/* This end no longer needs the blocks, or has written them. TARN_OK: the label was not aborted
 * until now, so the bytes read since wait_ready are good. TARN_ECANCELED: it was aborted, or this
 * end has not waited for it: throw the bytes away. TARN_ENOTFOUND: there is no such label (any
 * more). After n waits, call this n times. */
TARN_API tarn_status tarn_transfer_done(tarn_transfer_peer *peer, const char *label,
                                        const void *message, size_t len, uint64_t timeout_ms);
/* This end does not want the blocks: their owner need not wait. Statuses as above. */
TARN_API tarn_status tarn_transfer_give_up(tarn_transfer_peer *peer, const char *label,
                                           const char *reason, uint64_t timeout_ms);
/* TARN_OK: it is among the peer's events. TARN_EAGAIN: there are too many events, which the peer
 * does not collect. */
TARN_API tarn_status tarn_transfer_notify(tarn_transfer_peer *peer, const void *message, size_t len,
                                          uint64_t timeout_ms);

/* --- moving bytes --- */

typedef struct tarn_transfer_task {
    int32_t op;      /* TARN_TRANSFER_READ: from the peer. TARN_TRANSFER_WRITE: to it */
    uint32_t region; /* of the peer; 0: remote is an address there, in any of its regions */
    void *local;
    uint64_t remote; /* bytes from the region's start */
    uint64_t length;
    /* results */
    uint64_t done;   /* bytes moved: all, or 0 */
    int32_t status;  /* tarn_status; TARN_EAGAIN: not over yet */
    int32_t settled; /* 0: a failed write whose bytes may still arrive there */
} tarn_transfer_task;

/* Blocks of block_bytes each, local_blocks[i] beside remote_blocks[i], counted from local and from
 * remote; neighbours become one task: remote blocks 5 6 7 12 13 to local blocks 2 3 4 8 9 are two.
 * Up to max tasks are written; returns how many it takes. If that is more than max, call again with
 * room for more. */
TARN_API size_t tarn_transfer_merge(int op, void *local, const uint64_t *local_blocks,
                                    uint32_t region, uint64_t remote, const uint64_t *remote_blocks,
                                    size_t n, uint64_t block_bytes, tarn_transfer_task *tasks,
                                    size_t max);

typedef struct tarn_transfer_call {
    size_t size;
    uint64_t timeout_ms; /* 0: the end's. Tasks not over by then get TARN_ETIMEOUT */
    /* label: when all tasks are TARN_OK, tarn_transfer_done for it; NULL: none. Copied, as is
     * message */
    const char *done;
    const void *message; /* for that */
    size_t message_len;
} tarn_transfer_call;
TARN_API void tarn_transfer_call_init(tarn_transfer_call *call);

/* Queues n tasks; call NULL: all defaults. Consecutive tasks that are neighbours on both sides move
 * as one operation, and succeed or fail together. There is no order among tasks. tasks and the
 * memory they name stay borrowed until the batch is over; the results are written into tasks then.
 * TARN_EAGAIN: 4096 batches are under way. */
TARN_API tarn_status tarn_transfer_submit(tarn_transfer_peer *peer, tarn_transfer_task *tasks,
                                          size_t n, const tarn_transfer_call *call,
                                          tarn_transfer_batch **batch_p);
/* Waits until the batch is over. TARN_OK: so is every task, and call->done; else the status of the
 * first that is not. TARN_EAGAIN: it is not over after timeout_ms (0: does not wait). */
TARN_API tarn_status tarn_transfer_wait(tarn_transfer_batch *batch, uint64_t timeout_ms);
/* Returns when the batch is over, which is soon: tasks that had not moved get TARN_ECANCELED, and
 * the memory is the caller's again. */
TARN_API void tarn_transfer_cancel(tarn_transfer_batch *batch);
/* Cancels it if it is not over. Nulls; NULL inside is fine. */
TARN_API void tarn_transfer_release(tarn_transfer_batch **batch_p);

enum { TARN_TRANSFER_QUEUED, TARN_TRANSFER_RUNNING, TARN_TRANSFER_OVER };
typedef struct tarn_transfer_batch_info {
    size_t size;
    int state;                  /* TARN_TRANSFER_QUEUED .. */
    int32_t status;             /* as tarn_transfer_wait says */
    uint64_t tasks, operations; /* operations: after merging */
    uint64_t failed;            /* tasks, when it is over */
    uint64_t bytes;             /* moved */
    char transport[8];          /* "shm", "tcp", "rdma"; "" before it has run, "mixed" */
} tarn_transfer_batch_info;
TARN_API tarn_status tarn_transfer_get_batch(const tarn_transfer_batch *batch,
                                             tarn_transfer_batch_info *info);
/* submit, wait and release in one. */
TARN_API tarn_status tarn_transfer_run(tarn_transfer_peer *peer, tarn_transfer_task *tasks,
                                       size_t n, const tarn_transfer_call *call);

/* --- figures --- */

typedef struct tarn_transfer_stats {
    size_t size;
    uint64_t regions, region_bytes, labels, events, batches; /* now; batches: queued and running */
    uint64_t peers_in, peers_out;                            /* connected to this end; from it */
    uint64_t refused; /* connections refused: wrong secrets, garbage, too many */
    uint64_t batches_total, tasks, operations, failed; /* failed: tasks */
    uint64_t bytes_read, bytes_written;                /* by own tasks */
    uint64_t shm_bytes, tcp_bytes, rdma_bytes;         /* the same, by transport */
    /* by peers, over tcp; the other transports do not tell */
    uint64_t served_bytes_read, served_bytes_written;
} tarn_transfer_stats;
/* Fills at most stats->size bytes. */
TARN_API tarn_status tarn_transfer_get_stats(tarn_transfer *transfer, tarn_transfer_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
