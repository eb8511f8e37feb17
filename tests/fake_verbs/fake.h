/* What the files of the fake verbs library share.
 *
 *   config.c   options, injections, what tests ask      device.c   devices, contexts, their events
 *   memory.c   protection domains, memory regions       queue.c    queue pairs: states, posting
 *   cq.c       completion queues and channels           cm.c       rdma_cm: ids and their events
 *   nic.c      the thread, its timers, fork             link.c     one socket per connection
 *
 * One lock, fake.lock, guards everything, and the thread holds it while it copies: so whatever is
 * deregistered or destroyed under it is not touched afterwards. It gives way between turns (nic.c).
 * start_lock, taken before it, is for starting and stopping the thread.
 *
 * Memory of programs is touched by system calls alone. Unmapped memory is an error then, and the
 * sanitizers, which see device memory no better, do not count these accesses as the thread's. */
#ifndef TARN_TESTS_FAKE_H
#define TARN_TESTS_FAKE_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "base/assert.h"
#include "fake_verbs.h"

#define FAKE_DEVICES_MAX 32u
#define FAKE_SGE_MAX     32u
#define FAKE_PACKET      (64u << 10) /* bytes of a message that travel under one header */

/* --- devices --- */

struct fake_async {
    struct ibv_async_event event;
    TAILQ_ENTRY(fake_async) link;
};

struct fake_device {
    struct ibv_device ibv;
    struct sockaddr_storage address;
    bool up, gone, silent;
    struct fake_context *cm; /* librdmacm's, NULL: not opened yet */
    LIST_HEAD(, fake_context) contexts;
};

struct fake_context {
    struct fake_device *device;
    LIST_ENTRY(fake_context) link;
    TAILQ_HEAD(, fake_async) events;
    unsigned users; /* what was made of it */
    struct verbs_context verbs;
};
static inline struct fake_context *fake_context_of(struct ibv_context *c) {
    return CONTAINER_OF(c, struct fake_context, verbs.context);
}

/* --- verbs objects --- */

struct fake_pd {
    struct ibv_pd ibv;
    unsigned users;
};

struct fake_mr {
    struct ibv_mr ibv;
    unsigned access;
    uint64_t iova; /* what requests call its first byte */
    uint8_t *base; /* where that is */
    void *map;     /* of a dma-buf */
    size_t map_len;
};

struct fake_cqe {
    struct ibv_wc wc;
    struct fake_qp *qp;
    uint64_t freed_to; /* entries of its send queue that this one gives back when it is polled */
    uint64_t due_ns;
    bool solicited;
};

struct fake_cq {
    struct ibv_cq ibv;
    LIST_ENTRY(fake_cq) link;
    struct fake_cqe *ring;
    unsigned size, head, count, ready; /* ready: may be polled */
    bool armed, armed_solicited;
    unsigned got; /* events */
    unsigned users;
};

struct fake_cq_event {
    struct fake_cq *cq;
    TAILQ_ENTRY(fake_cq_event) link;
};

struct fake_comp {
    struct ibv_comp_channel ibv;
    TAILQ_HEAD(, fake_cq_event) events;
    LIST_ENTRY(fake_comp) link;
};

struct fake_wqe {
    uint64_t wr_id, remote_addr;
    enum ibv_wr_opcode opcode;
    unsigned flags;
    uint32_t rkey, length;
    uint32_t moved; /* bytes sent of a WRITE, received of a READ */
    int n_sge;
    struct ibv_sge *sge; /* of the queue pair, max_send_sge */
    uint8_t *inlined;    /* of the queue pair, max_inline_data */
};

struct fake_qp {
    struct ibv_qp ibv;
    LIST_ENTRY(fake_qp) link;
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    struct fake_wqe *ring;
    struct ibv_sge *sges;
    uint8_t *inlines;
    /* Counted up forever: freed <= done <= sent <= posted, ring[n % max_send_wr]. */
    uint64_t posted, sent, done, freed;
    unsigned reads; /* sent and not done */
    struct fake_link *conn;
    bool lost;            /* the other side has let requests fall */
    uint64_t progress_ns; /* when the oldest request was posted, or the one before it answered */
    unsigned got;         /* asynchronous events */
};

/* --- rdma_cm --- */

/* What its messages carry. */
struct fake_greeting {
    uint32_t qp_num;
    uint8_t responder_resources, initiator_depth, retry_count, reason;
    struct sockaddr_storage src;
    uint8_t data[196];
};

struct fake_event {
    struct rdma_cm_event ibv; /* first */
    TAILQ_ENTRY(fake_event) link;
    struct fake_channel *channel;
    struct fake_id *counted; /* whose destruction waits for it */
    uint8_t data[256];
};

struct fake_channel {
    struct rdma_event_channel ibv;
    TAILQ_HEAD(, fake_event) events;
    LIST_ENTRY(fake_channel) link;
    unsigned ids;
};

enum fake_id_state {
    FAKE_IDLE,
    FAKE_BOUND,
    FAKE_RESOLVED, /* address */
    FAKE_ROUTED,
    FAKE_LISTENING,
    FAKE_REQ_SENT,
    FAKE_REP_RCVD,
    FAKE_REQ_RCVD,
    FAKE_REP_SENT,
    FAKE_ESTABLISHED,
    FAKE_DREQ_SENT,
    FAKE_DREQ_RCVD,
    FAKE_OVER /* disconnected, refused, failed */
};

struct fake_id {
    struct rdma_cm_id ibv;
    LIST_ENTRY(fake_id) link;
    enum fake_id_state state;
    struct fake_device *device;
    struct fake_link *conn;
    int listen_fd;          /* bound, or listening; -1 */
    uint32_t slot, watched; /* of listen_fd */
    int backlog, waiting;
    unsigned unacked;
    uint8_t responder_resources, initiator_depth, retry_count, ack_timeout;
    uint32_t remote_qpn;
    struct fake_greeting hello; /* of a request that is still to be sent */
    uint64_t deadline_ns;       /* 0: none */
};

/* --- connections --- */

enum fake_kind {
    FAKE_REQ = 1, /* rdma_cm, with struct fake_greeting */
    FAKE_REP,
    FAKE_REJ,
    FAKE_RTU,
    FAKE_DREQ,
    FAKE_DREP,
    FAKE_WRITE, /* a packet of one, with bytes */
    FAKE_READ,
    FAKE_ACK,       /* of a WRITE */
    FAKE_READ_RESP, /* a packet of one, with bytes */
    FAKE_NAK,       /* status: the requester's completion */
    FAKE_LOST,      /* there is no queue pair that would answer */
    FAKE_STALLED,   /* nothing gets through now ... */
    FAKE_RESUMED    /* ... and again */
};

struct fake_frame {
    uint32_t magic;
    uint8_t kind, status;
    uint16_t zero;
    uint32_t rkey, length;  /* length: bytes behind this frame */
    uint32_t total, offset; /* of the message */
    uint64_t addr, seq;
};
static_assert(sizeof(struct fake_frame) == 40, "frames of the fake");

struct fake_response {
    uint8_t kind, status;
    uint32_t rkey, total, moved;
    uint64_t addr, seq;
};
#define FAKE_RESPONSES 256u

#define FAKE_MAGIC 0x454b4146u

/* Bytes that follow the staged ones out: a packet of a message. */
struct fake_body {
    enum { FAKE_BODY_NONE, FAKE_BODY_LOCAL, FAKE_BODY_REMOTE, FAKE_BODY_SPILL } kind;
    struct fake_wqe *wqe; /* LOCAL: of its memory, from offset on */
    uint32_t rkey;        /* REMOTE */
    uint64_t addr;
    uint32_t offset, left;
    uint8_t *spill; /* what is left of it, copied when its memory went away */
};

struct fake_link {
    int fd;
    uint32_t slot, watched; /* epoll events */
    LIST_ENTRY(fake_link) link;
    struct fake_device *device;
    struct fake_id *id;
    struct fake_qp *qp;
    uint32_t local_qpn, remote_qpn;
    bool dead;    /* the socket is closed */
    bool broken;  /* nobody reads what is sent */
    bool cut;     /* fake_cut */
    bool stalled; /* so the other side says */
    bool frozen;  /* the last that the other side was told */
    bool dirty;   /* on fake.dirty */
    TAILQ_ENTRY(fake_link) dirty_link;

    struct fake_frame frame, next;     /* the packet that is coming in, and the header behind it */
    uint32_t frame_have, payload_left; /* have: of next */
    bool in_payload, discard;
    union {
        struct fake_greeting greeting;
        uint8_t trash[16384];
    } in;
    struct fake_id *listener; /* until the request is there */

    struct fake_response response[FAKE_RESPONSES];
    unsigned response_head, responses, reads; /* reads: READ_RESPs among them */
    uint8_t ctl[2048];                        /* frames of no request */
    uint32_t ctl_len;
    uint8_t out[8192];
    uint32_t out_at, out_len;
    struct fake_body body;
};

/* --- the whole --- */

struct fake_limits {
    unsigned max_qp_wr, max_sge, max_inline, max_qp, max_cqe, max_mr, max_pd, max_rd_atom, max_msg;
    uint64_t max_mr_size;
    bool relaxed, dmabuf;
    unsigned speed, width, mtu;
    uint64_t delay_us, stall_ms, cm_ms;
    char sysfs[128], control[128];
};

struct fake_slot {
    uint32_t generation;
    enum { FAKE_SLOT_FREE, FAKE_SLOT_LISTEN, FAKE_SLOT_LINK } kind;
    void *ptr;
};

struct fake_library {
    pthread_mutex_t lock, start_lock;
    pthread_cond_t acked;
    bool configured;
    struct fake_limits limits;
    struct fake_device *device[FAKE_DEVICES_MAX];
    unsigned devices;
    struct {
        unsigned after, times;
        int error;
    } fail[FAKE_CALLS];
    unsigned count[FAKE_OBJECTS];
    struct fake_served served;
    bool hold;
    unsigned delayed; /* completions that are not due yet */
    LIST_HEAD(, fake_cq) cqs;
    LIST_HEAD(, fake_comp) comps;
    LIST_HEAD(, fake_qp) qps;
    LIST_HEAD(, fake_id) ids;
    LIST_HEAD(, fake_channel) channels;
    TAILQ_HEAD(, fake_event) orphans; /* requests that a listener takes with it; in one call */
    LIST_HEAD(, fake_link) links;
    TAILQ_HEAD(fake_dirty, fake_link) dirty;
    uint32_t next_qp;
    /* the thread */
    bool running, stopping, sleeping, kicked;
    unsigned starting; /* queue pairs and ids */
    pthread_t thread;
    int epoll_fd, kick_fd;
    struct fake_slot *slot;
    uint32_t slots;
    unsigned waiters; /* atomic */
    uint64_t scan_ns;
    uint64_t control_at; /* bytes of the control file that were read */
};
extern struct fake_library fake;

/* Configures from the environment when nobody has. */
void fake_lock(void);
void fake_unlock(void);
/* Waits for the condition under the lock, as the real ones do, but not forever: the message and an
 * abort. */
#define FAKE_AWAIT(cond, text)                                                                     \
    do {                                                                                           \
        for (int fake_i = 0; !(cond); fake_i++) {                                                  \
            if (fake_i == 50) fake_die(text);                                                      \
            fake_wait_100ms();                                                                     \
        }                                                                                          \
    } while (0)
void fake_wait_100ms(void);
_Noreturn void fake_die(const char *text);
/* Is this call to fail now? errno has the reason then. Under the lock. */
bool fake_fails(enum fake_call call);
void fake_do_control(void); /* the control file, under the lock */
bool fake_idle(void);       /* nothing is alive but what librdmacm keeps */
uint64_t fake_now(void);
int fake_new_fd(void);
void fake_fd_raise(int fd);
void fake_fd_lower(int fd, unsigned n);
ssize_t fake_fd_take(int fd); /* 0, or -1 with errno; not under the lock */

/* device.c */
struct fake_device *fake_device_named(const char *name);
struct fake_device *fake_device_at(const struct sockaddr *address); /* NULL: none that is there */
struct fake_context *fake_context_open(struct fake_device *d);
void fake_context_close(struct fake_context *c);
struct fake_context *fake_cm_context(struct fake_device *d);
void fake_async_raise(struct fake_context *c, const struct ibv_async_event *event);
void fake_async_forget(struct fake_context *c, const void *element);
struct fake_device *fake_device_create(const char *name, const char *address);
void fake_devices_free(void);
bool fake_same_host(const struct sockaddr *a, const struct sockaddr *b);

/* memory.c */
struct fake_mr *fake_mr_find(uint32_t key);
void fake_keys_free(void); /* there are none */
/* Bytes [addr, addr + length) of the region of that key, if the domain and the right fit. NULL:
 * no. */
uint8_t *fake_mr_reach(uint32_t key, const struct ibv_pd *pd, uint64_t addr, uint64_t length,
                       unsigned access);
void fake_memory_check(const void *p, size_t n);

/* cq.c */
void fake_cq_push(struct fake_qp *qp, const struct fake_wqe *wqe, enum ibv_wc_status status,
                  uint64_t freed_to);
void fake_cq_purge(struct fake_cq *cq, const struct fake_qp *qp);
void fake_cq_ripen(uint64_t now);
uint64_t fake_cq_due(void); /* of the next one; UINT64_MAX: none */
int fake_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int fake_req_notify_cq(struct ibv_cq *cq, int solicited_only);

/* queue.c */
struct fake_qp *fake_qp_find(uint32_t num);
struct fake_wqe *fake_qp_at(struct fake_qp *qp, uint64_t n);
/* The oldest request fails with status, the others are flushed. SUCCESS: all are flushed. */
void fake_qp_fail(struct fake_qp *qp, enum ibv_wc_status status);
void fake_qp_complete(struct fake_qp *qp); /* the oldest one ended well */
void fake_qp_bind(struct fake_link *l);
void fake_qp_timers(uint64_t now);
int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);

/* link.c */
struct fake_link *fake_link_create(int fd, struct fake_device *device);
void fake_link_leave(struct fake_link *l); /* neither id nor queue pair: closed */
void fake_link_send(struct fake_link *l, uint8_t kind, const struct fake_greeting *greeting);
void fake_link_io(struct fake_link *l, uint32_t events);
void fake_link_dirty(struct fake_link *l);
void fake_link_flush(struct fake_link *l);
/* Memory goes away, or a queue pair: the packet on its way out is completed from a copy. key 0:
 * any. */
void fake_link_spill(struct fake_link *l, uint32_t key);
void fake_link_recheck(struct fake_link *l); /* freezes and thaws */
void fake_link_dead(struct fake_link *l);

/* link_in.c */
bool fake_link_input(struct fake_link *l); /* false: it was freed */
bool fake_link_may_read(const struct fake_link *l);

/* cm.c */
void fake_cm_frame(struct fake_link *l, uint8_t kind, const struct fake_greeting *g);
void fake_cm_gone(struct fake_link *l); /* the socket is closed over there */
void fake_cm_accept(struct fake_id *listener);
void fake_cm_timers(uint64_t now);
void fake_cm_device_gone(struct fake_device *d);
void fake_cm_disconnected(struct fake_id *id);

/* nic.c */
void fake_nic_start(void); /* not under the lock */
void fake_nic_rest(void);  /* stops it when nobody needs it; not under the lock */
void fake_nic_kick(void);
uint32_t fake_slot_take(int kind, void *ptr);
void fake_slot_give(uint32_t slot);
void fake_watch(int fd, uint32_t slot, uint32_t *watched, uint32_t wanted);

#endif
