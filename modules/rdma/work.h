/* What the files of the active side share: tasks, slices, rails.
 *
 *   task   an operation: in its key's queue until it is cut to its end
 *
 *       queue --cut--> slices --all ended--> finished --> done()
 *
 *   slice  one READ or WRITE: contiguous over there, up to RDMA_PIECES pieces here
 *
 *       CUT ----post---+
 *                      v
 *       WAITING --> POSTED --completion--> ARRIVED --> freed
 *          ^           | the rail failed      its CRC's turn has not come
 *          +---- GET --+
 *          |           v
 *          +-settled- DOUBT    a WRITE that may still arrive: until the host has destroyed its
 *                              end (rail.c)
 *
 *   rail   one queue pair
 *
 *       RESOLVING_ADDRESS --> RESOLVING_ROUTE --> CONNECTING --> UP --fail--> (failing)
 *                                                                  bury |-----> DOUBT --> gone
 *                                                                       \---------------> gone
 *
 *   ride   a task on a rail: the READ of the segment header that has to follow the task's last
 *          slice there
 *
 * Nothing here calls back: what has ended is put on work->finished, and rdma_work_turn (or
 * rdma_endpoint_close) calls done(). A rail that fails is only marked; rdma_rails_bury destroys its
 * queue pair later in the same turn, and until then completions that came before the failure still
 * count. After it no device touches the buffers of what the rail carried. */
#ifndef TARN_RDMA_WORK_H
#define TARN_RDMA_WORK_H

#include "base/segment_header.h"
#include "rdma/rdma.h"
#include "transport/op.h"

#define RDMA_WORK_MAGIC     0x4b52574du /* "MWRK" */
#define RDMA_ENDPOINT_MAGIC 0x50454d52u /* "RMEP" */
#define RDMA_KEY_OPEN_MAGIC 0x594b4d52u /* "RMKY" */

#define RDMA_PIECES    8u    /* of local memory in a slice */
#define RDMA_BATCH     32u   /* posted with one call */
#define RDMA_SLICE_MIN 4096u /* a host that takes less is refused */
#define RDMA_NEAR_BYTES                                                                            \
    (1u                                                                                            \
     << 20) /* a rail one step farther away gets work when nearer ones have so much more to do  \
                */
#define RDMA_WINDOW_BYTES (8u << 20)   /* outstanding on one rail */
#define RDMA_BYTES_A_RAIL (512u << 10) /* that a key has to move for each further rail */
#define RDMA_STALL_MS     10000u       /* patience where the caller has no idea */
#define RDMA_CANCEL_MS                                                                             \
    20u /* for what is posted to come to its end before its queue pair is destroyed */
#define RDMA_NEXT_PAIR_MS                                                                          \
    200u /* another pair of devices is tried beside one that does not answer */
#define RDMA_HEADER_LENGTH 12u /* master_epoch, segment_epoch, instance */
#define RDMA_HEADER_STRIDE 16u

enum rdma_slice_state {
    RDMA_SLICE_CUT,
    RDMA_SLICE_WAITING,
    RDMA_SLICE_POSTED,
    RDMA_SLICE_DOUBT,
    RDMA_SLICE_ARRIVED
};

struct rdma_slice {
    TAILQ_ENTRY(rdma_slice) link;      /* WAITING: key->retry. DOUBT: rail->doubt */
    TAILQ_ENTRY(rdma_slice) task_link; /* in the order of the bytes */
    struct rdma_task *task;
    struct transport_key *key;
    struct rdma_rail *rail; /* POSTED, DOUBT */
    /* in the segment; length 0: nothing to move, but a header to be read */
    uint64_t offset, length;
    enum rdma_slice_state state;
    unsigned tries, n_pieces;
    struct iovec piece[RDMA_PIECES]; /* the caller's memory */
    uint32_t lkey[RDMA_PIECES];      /* of it on lkey_device; not with staged */
    const struct rdma_device *lkey_device;
    char *staged; /* NULL: in place, or inline */
};

struct rdma_ride {
    TAILQ_ENTRY(rdma_ride) link; /* rail->needed, rail->awaited */
    LIST_ENTRY(rdma_ride) task_link;
    struct rdma_task *task;
    struct rdma_rail *rail;
    bool awaited;
    uint32_t header_seq;
};

struct rdma_task {
    TAILQ_ENTRY(rdma_task) link;     /* key->queue, or work->finished */
    TAILQ_ENTRY(rdma_task) end_link; /* endpoint->tasks */
    struct transport_op *op;
    struct transport_endpoint *endpoint;
    struct transport_key *key; /* of the part that is cut next, or was cut last */
    bool queued, finished;
    bool loose;             /* bytes of a PUT may still be on their way */
    unsigned confirmations; /* headers that had to be read by another rail */
    tarn_status status;
    struct op_walk at;         /* what is cut next */
    uint64_t left, slice_size; /* left: bytes that are not cut yet */
    int numa_node;
    uint64_t since_ms;
    struct crc_track crc;
    TAILQ_HEAD(, rdma_slice) slices;
    unsigned posted;
    LIST_HEAD(, rdma_ride) rides;
};

enum rdma_rail_state {
    RDMA_RAIL_ADDRESS,
    RDMA_RAIL_ROUTE,
    RDMA_RAIL_CONNECTING,
    RDMA_RAIL_UP,
    RDMA_RAIL_DOUBT
};

struct rdma_rail {
    struct rdma_tag tag;
    TAILQ_ENTRY(rdma_rail) link; /* key->rails */
    TAILQ_ENTRY(rdma_rail) fail_link;
    struct transport_key *key;
    struct rdma_device *device;
    unsigned remote; /* device over there */
    unsigned slot;   /* in work->rail */
    uint16_t generation;
    enum rdma_rail_state state;
    bool failing;
    bool gone;     /* the host's end of it is no more */
    bool removed;  /* the device here is: no id may stay on it */
    bool retiring; /* it gets nothing more to do: another pair of devices takes its place */
    tarn_status why;
    struct rdma_cm_id *id;
    struct ibv_qp *qp;
    struct rdma_cq *cq;
    struct rdma_rail *mends; /* in doubt; this one is to take its place */
    struct rdma_rail *mender;
    uint64_t started_ms, deadline_ms, used_ms;
    uint32_t qp_num, remote_qp;
    uint32_t program; /* the host's */
    uint64_t slice_max;
    unsigned max_sge, max_inline;
    /* Send queue: [head, sent) is the device's, [sent, tail) is in the chain that is posted
     * next. */
    unsigned depth, signal_every, unsignalled;
    uint32_t head, sent, tail;
    struct rdma_slice **entry; /* what each is of; NULL: a header */
    uint64_t outstanding;      /* bytes */
    char *headers;             /* depth x RDMA_HEADER_STRIDE */
    TAILQ_HEAD(, rdma_ride) needed, awaited;
    TAILQ_HEAD(, rdma_slice) doubt;
    uint64_t reads, writes;
    unsigned chained;
    struct ibv_send_wr wr[RDMA_BATCH];
    struct ibv_sge sge[RDMA_BATCH][RDMA_PIECES];
};

struct rdma_remote { /* a device of the host */
    struct rdma_address address;
    uint16_t port;
    uint32_t header_rkey;
    uint32_t *rkey; /* n_chunks */
};

struct rdma_pair { /* a device here and one there */
    unsigned live; /* rails */
    bool tried;    /* since the key had a rail last */
    bool loop;     /* the host is this machine, and that device this one */
    uint64_t bad_until_ms;
};

struct transport_endpoint {
    uint32_t magic;
    TAILQ_ENTRY(transport_endpoint) link;
    struct transport_domain *domain;
    TAILQ_HEAD(, rdma_task) tasks;
    unsigned n_tasks;
    uint64_t cancel_ms; /* closing; what is posted has until then */
};

struct transport_key {
    uint32_t magic;
    LIST_ENTRY(transport_key) link;
    TAILQ_ENTRY(transport_key) active_link;
    bool active;
    struct transport_domain *domain;
    struct rdma_key_header h;
    bool writable;
    uint8_t grant[GRANT_SIZE];
    struct rdma_remote remote[RDMA_DEVICES_MAX];
    /* What the host said when it first accepted; READs of the segment header are compared with
     * it. */
    bool accepted;
    uint32_t master_epoch, instance;
    tarn_status refused; /* TARN_ESTALE: it leads nowhere any more. Others: no further rails */
    tarn_status last_failure;
    TAILQ_HEAD(, rdma_rail) rails;
    unsigned up, coming, doubtful;
    struct rdma_pair pair[RDMA_DEVICES_MAX][RDMA_DEVICES_MAX]; /* [here][there] */
    TAILQ_HEAD(, rdma_task) queue;
    TAILQ_HEAD(, rdma_slice) retry;
    uint64_t waiting, outstanding; /* bytes */
    uint64_t moved_ms;
    uint64_t look_ms; /* not before is it looked whether a device has no part in it */
    unsigned n_tasks;
};

struct rdma_work {
    uint32_t magic;
    struct transport_domain *domain;
    TAILQ_HEAD(rdma_active, transport_key) active;
    TAILQ_HEAD(, rdma_task) finished;
    TAILQ_HEAD(, rdma_rail) failing;
    unsigned max_rails, n_rails;
    struct rdma_rail **rail;
    uint16_t *generation;
    struct rdma_staging *staging;
    /* entries of completion queues that a destroyed queue pair may still have used */
    unsigned release[RDMA_DEVICES_MAX];
    unsigned posted;   /* entries of all send queues that are the devices' */
    uint64_t check_ms; /* when the next deadline may have passed */
    uint64_t last_wc_us;
    bool more; /* there is something to do at once */
};

/* --- work.c: operations --- */

struct rdma_work *rdma_work_of(struct transport_domain *d);
/* The next slice of t for a rail, with its local keys or its staging buffer. NULL: no buffer at the
 * moment, or t has failed. */
struct rdma_slice *rdma_task_cut(struct rdma_task *t, struct rdma_rail *r);
/* It ends with status when nothing of it is posted any more. */
void rdma_task_fail(struct rdma_task *t, tarn_status status);
/* Fails the rails that carry something of it, so that it ends. */
void rdma_task_tear(struct rdma_task *t);
void rdma_task_settle(struct rdma_task *t); /* has it ended? */
void rdma_slice_free(struct rdma_slice *s);
void rdma_work_deliver(struct rdma_work *w, const struct transport_endpoint *only);
/* A deadline that work.c has to look at. */
void rdma_work_due(struct rdma_work *w, uint64_t boot_ms);
bool rdma_local_is_dmabuf(const struct transport_domain *d, const void *addr);

/* --- key.c --- */

void rdma_key_activate(struct transport_key *k);
bool rdma_key_idle(const struct transport_key *k); /* nothing to post, to mend, or to wait for */
/* Opens rails where they are wanted; fails what waits where there cannot be one. */
void rdma_key_want_rails(struct transport_key *k);
/* newest has come up: where that is one more than there may be, one of a crowd retires. */
void rdma_key_make_way(struct transport_key *k, struct rdma_rail *newest);
void rdma_key_fail_waiting(struct transport_key *k, tarn_status status);
void rdma_key_refused(struct transport_key *k, tarn_status status);
static inline uint64_t rdma_key_chunk_left(const struct transport_key *k, uint64_t offset) {
    return k->h.chunk_size - offset % k->h.chunk_size;
}

/* --- rail.c --- */

tarn_status rdma_rail_open(struct transport_key *k, struct rdma_device *device, unsigned remote,
                           struct rdma_rail *mends);
void rdma_rail_fail(struct rdma_rail *r, tarn_status why);
/* Destroys the queue pairs of rails that have failed, and decides what becomes of what they
 * carried. */
void rdma_rails_bury(struct rdma_work *w);
/* Nothing that r carried can arrive any more: its slices may be sent again. r is gone. */
void rdma_rail_settle(struct rdma_rail *r);
/* Without waiting for anything; nothing is posted on it that anybody waits for. */
void rdma_rail_close(struct rdma_rail *r);
/* What of r is in doubt stays so: its operations fail. r is gone. */
void rdma_rail_give_up(struct rdma_rail *r, tarn_status status);
static inline bool rdma_rail_ready(const struct rdma_rail *r) {
    return r->state == RDMA_RAIL_UP && !r->failing && rdma_device_usable(r->device);
}
static inline unsigned rdma_rail_room(const struct rdma_rail *r) {
    return r->depth - (r->tail - r->head);
}

/* --- post.c --- */

/* Best rail for memory on numa_node that has room for a slice of length at least; NULL: none
 * now. */
struct rdma_rail *rdma_rail_choose(struct transport_key *k, int numa_node, uint64_t length);
/* false: there is no staging buffer for it at the moment. */
bool rdma_slice_post(struct rdma_slice *s, struct rdma_rail *r);
/* Posts what key has, as far as there is room. */
void rdma_key_pump(struct transport_key *k, uint64_t *budget_p);
void rdma_rail_flush(struct rdma_rail *r);
void rdma_ride_free(struct rdma_ride *ride);

/* --- completion.c --- */

void rdma_cq_drain(struct transport_domain *d); /* takes whatever completions are there */
/* Hands on what has arrived, as far as nothing before it is missing. */
void rdma_task_collect(struct rdma_task *t);

/* --- staging.c: registered memory for what is not --- */

tarn_status rdma_staging_open(struct rdma_work *w);
/* Local key on a device, registering there what is not yet. */
tarn_status rdma_staging_key(struct rdma_work *w, struct rdma_device *device, uint32_t *lkey_p);
/* *length_p is what is wanted, and then what it is, which may be less. NULL: nothing at the
 * moment. */
char *rdma_staging_get(struct rdma_staging *s, uint64_t *length_p);
/* The tail of a buffer is not needed. */
void rdma_staging_trim(struct rdma_staging *s, char *at, uint64_t length, uint64_t needed);
void rdma_staging_put(struct rdma_staging *s, char *at, uint64_t length);
char *rdma_staging_headers(struct rdma_staging *s, unsigned slot);
uint64_t rdma_staging_used(const struct rdma_staging *s);
void rdma_staging_close(struct rdma_staging **staging_p);

#endif
