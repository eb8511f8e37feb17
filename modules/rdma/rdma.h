/* The rdma transport: what its files share.
 *
 *   process   devices (device.c): contexts of librdmacm, state of ports, a thread for what they
 *    |        report, threads that register
 *    +- domain  (domain.c): an event descriptor over the rdma_cm channel and completion channels;
 *        |      one thread at a time
 *        +- memory    (region.c): per device a protection domain of its own, keys per chunk; or
 *        |            local memory of operations
 *        +- listener  (listener.c): rdma_cm ids per address; peers: queue pairs that clients work
 *        |            through (passive)
 *        +- endpoint  (endpoint.c): one host, as its clients see it
 *            +- key   (key.c): a segment and a right there: epochs, packed keys, and
 *                +- rail  (rail.c): one queue pair, between one device here and one there; send
 *                         queue, completions
 *        staging.c: registered buffers for what is not; work.c: operations cut in slices
 *
 * Passive side: regions and listeners; its CPU moves nothing. Active side: endpoints, keys, rails,
 * operations.
 *
 * Locks: devices_lock (device.c) guards the list of domains and the addresses of devices, local.c's
 * the cache of local registrations, register.c's the queue of jobs; nothing else is taken under any
 * of them. Everything below a domain is its thread's. Registration threads see the configuration of
 * a memory and a struct rdma_registration, which is theirs until they are done. */
#ifndef TARN_RDMA_RDMA_H
#define TARN_RDMA_RDMA_H

#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/crew.h"
#include "base/queue.h"
#include "module.h"
#include "rdma/wire.h"
#include "transport/transport.h"

/* --- options (options.c): "bind ADDR", "device NAME", "option value" behind the module's file name
 * --- */

#define RDMA_BINDS_MAX 16u

struct rdma_options {
    /* addresses to listen on; none: all that belong to a device */
    const char *bind[RDMA_BINDS_MAX];
    size_t binds;
    const char *device[RDMA_DEVICES_MAX]; /* names to use; none: all */
    size_t devices;
    uint16_t port; /* 0 (default): any */
    /* 64 KiB: bytes per READ or WRITE; larger for larger operations, up to slice_max */
    uint64_t slice;
    uint64_t slice_max;       /* 1 MiB */
    unsigned qps;             /* 2: queue pairs per pair of devices, key and right */
    unsigned rails;           /* 8: queue pairs per key at most */
    unsigned send_queue;      /* 128: entries per queue pair */
    unsigned signal_every;    /* 16: entries between signalled ones */
    unsigned inline_bytes;    /* 220: writes that travel in the entry */
    uint64_t staging_bytes;   /* 16 MiB per domain: registered buffers for memory that is not */
    unsigned max_connections; /* 1024: queue pairs of clients per listener */
    unsigned max_rails;       /* 256: of all keys of a domain; the longest idle one goes first */
    uint64_t idle_ms;         /* 60000: a rail without work is closed */
    uint64_t connect_ms;      /* 1000: for one rail to come up */
    unsigned retries;         /* 3: of a slice, on other rails */
    unsigned qp_timeout;      /* 14: 4.096 us * 2^n until the device sends again */
    unsigned qp_retry;        /* 5 */
    /* 0: how long completions are polled for before the event is armed */
    unsigned poll_us;
    unsigned register_threads; /* 4 */
    bool relaxed_ordering;     /* yes: where the device has it */
};
extern struct rdma_options rdma_options;
/* error names the argument. */
tarn_status rdma_options_parse(size_t argc, const char *const *argv, char *error, size_t cap);
void rdma_options_free(void);

extern const struct tarn_services *rdma_services;
extern const struct transport_ops rdma_transport;

/* Of this process, from any thread: for INFO modules. */
struct rdma_totals {
    uint64_t domains, connections; /* of clients here */
    uint64_t regions, bytes;       /* that the device knows; a segment counts twice per device */
    uint64_t segment_bytes;        /* of segments, registered or not */
};
extern struct rdma_totals rdma_totals; /* atomics */
static inline uint64_t rdma_total(const uint64_t *member) {
    return __atomic_load_n(member, __ATOMIC_RELAXED);
}
#define RDMA_TOTAL(member, by)                                                                     \
    (void)__atomic_fetch_add(&rdma_totals.member, (uint64_t)(by), __ATOMIC_RELAXED)

/* --- devices (device.c) --- */

enum rdma_device_state {
    RDMA_DEVICE_DOWN,
    RDMA_DEVICE_UP,
    RDMA_DEVICE_GONE /* fatal, or removed: never comes back */
};

#define RDMA_ADDRESSES_MAX 8u

struct rdma_address {   /* address.c */
    struct in6_addr ip; /* or IPv4, mapped into it */
    char text[INET6_ADDRSTRLEN];
};
struct rdma_address rdma_address_of(const void *ip); /* 16 bytes */
struct rdma_address rdma_address_of_sockaddr(const struct sockaddr *sa);
bool rdma_address_parse(const char *text, struct rdma_address *a);
struct sockaddr_storage rdma_address_sockaddr(const struct rdma_address *a, uint16_t port);
static inline bool rdma_address_is_v4(const struct rdma_address *a) {
    return IN6_IS_ADDR_V4MAPPED(&a->ip);
}
static inline bool rdma_address_same(const struct rdma_address *a, const struct rdma_address *b) {
    return memcmp(&a->ip, &b->ip, sizeof(a->ip)) == 0;
}

struct rdma_device {
    unsigned index; /* in the table, which only grows */
    char name[32];
    struct ibv_context *verbs;
    struct ibv_device_attr attr;
    struct ibv_pd *pd;         /* of local memory and of all rails; segments have their own */
    int numa_node;             /* -1: unknown */
    char pci[32];              /* "0000:3b:00.0", "" */
    bool relaxed_ordering;     /* IBV_ACCESS_RELAXED_ORDERING is taken */
    unsigned state;            /* atomic, enum rdma_device_state */
    uint32_t speed_mbps, mtu;  /* of the port; atomic */
    uint32_t max_message;      /* bytes per READ or WRITE; atomic */
    uint64_t ups;              /* how often it came up; atomic */
    uint64_t events, errors;   /* asynchronous events, atomic */
    struct ibv_cq *passive_cq; /* of clients' queue pairs: nothing is ever posted there */
    /* network addresses of its port; under devices_lock, see below */
    struct rdma_address address[RDMA_ADDRESSES_MAX];
    size_t addresses;
};

/* Opens what there is, starts the thread. Idempotent. None is no failure (rdma_devices_count). */
void rdma_devices_open(void);
/* TARN_EBUSY: domains are open. */
tarn_status rdma_devices_close(void);
unsigned rdma_devices_count(void);
struct rdma_device *rdma_device_at(unsigned index);
/* NULL: not one that we may use */
struct rdma_device *rdma_device_of(const struct ibv_context *verbs);
/* A copy of its addresses as they are now; from any thread. Returns how many. */
size_t rdma_device_addresses(const struct rdma_device *d,
                             struct rdma_address out[RDMA_ADDRESSES_MAX]);
static inline enum rdma_device_state rdma_device_state(const struct rdma_device *d) {
    return (enum rdma_device_state)__atomic_load_n(&d->state, __ATOMIC_ACQUIRE);
}
static inline bool rdma_device_usable(const struct rdma_device *d) {
    return rdma_device_state(d) == RDMA_DEVICE_UP;
}
static inline bool rdma_device_gone(const struct rdma_device *d) {
    return rdma_device_state(d) == RDMA_DEVICE_GONE;
}
/* Nearness of a device to memory, from NUMA nodes: 0 same node, 1 unknown, 2 another node. */
unsigned rdma_device_distance(const struct rdma_device *d, int numa_node);
int rdma_numa_node_of(const void *addr); /* -1: unknown */
/* The first of a file, such as those of /sys. false: it cannot be read, and out is "". */
bool rdma_read_line(const char *path, char *out, size_t cap);
/* It was taken away, or is broken. From any thread. */
void rdma_device_lost(struct rdma_device *d);
/* Of a queue pair, with what librdmacm knows of the connection. access: what the peer may do.
 * reads: that it may have under way, 0: none. false: errno tells. */
bool rdma_qp_move(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state,
                  unsigned access, uint8_t reads);
/* Something happened to a device or a registration: wakes the loops of all domains. */
void rdma_domains_kick(void);
/* Domains that are kicked, and that keep devices open. */
void rdma_domains_add(struct transport_domain *d);
void rdma_domains_remove(struct transport_domain *d);

/* --- threads (register.c) --- */

/* Runs fn(arg, i) for i in 0..n on several threads, of which this is one; returns when all are
 * done. */
void rdma_parallel(void (*fn)(void *arg, size_t i), void *arg, size_t n);
/* Something that takes long, for a thread of its own; one after another. */
struct rdma_job {
    struct crew_job crew;
    int kick_fd; /* an eventfd that is written to when it is done */
};
void rdma_jobs_begin(void);  /* the thread */
void rdma_jobs_end(void);    /* there are none; the thread ends */
void rdma_jobs_forget(void); /* in a child, which has no such thread */
void rdma_job_start(struct rdma_job *t);
bool rdma_job_done(const struct rdma_job *t);
/* It does not run when this returns, and will not. Waits for one that is running. */
void rdma_job_stop(struct rdma_job *t);

/* --- summary (report.c) --- */
/* One line on why RDMA cannot be used here, or that it can: for the log, INFO modules,
 * RDMA.DOCTOR. */
void rdma_summary(struct buf *out);

/* --- domain (domain.c) --- */

/* First member of what an epoll event's or a cm id's context points to. */
struct rdma_tag {
    enum {
        RDMA_TAG_CHANNEL,
        RDMA_TAG_KICK,
        RDMA_TAG_TIMER,
        RDMA_TAG_CQ,
        RDMA_TAG_LISTEN,
        RDMA_TAG_PEER,
        RDMA_TAG_RAIL
    } kind;
};

struct rdma_cq { /* per domain and device, made when first needed; active side */
    struct rdma_tag tag;
    struct rdma_device *device;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    unsigned entries, reserved; /* reserved: by rails, at most entries */
    unsigned unacked;           /* events */
    bool armed;
};

/* Slices that ended well; how slices went, and waits for a buffer; completions; trouble; slices
 * that waited for room in a send queue. */
#define RDMA_COUNTERS(X)                                                                           \
    X(reads), X(writes), X(bytes_read), X(bytes_written), X(inlined), X(staged), X(staged_bytes),  \
        X(staging_waits), X(signalled), X(events), X(polls), X(empty_polls), X(slice_errors),      \
        X(slice_retries), X(rail_failures), X(connects), X(connect_failures), X(reaped), X(stale), \
        X(timeouts), X(cancelled), X(queue_full)

struct transport_domain {
    uint32_t magic;
    LIST_ENTRY(transport_domain) link; /* of all, under devices_lock */
    int epoll_fd, kick_fd, timer_fd;
    uint64_t wake_ms; /* the timer is set to; 0: it is not */
    /* counts changes of where it listens, and of its devices: packed keys say so */
    uint64_t reach;
    uint64_t kicks; /* by other threads, taken */
    struct rdma_tag channel_tag, kick_tag, timer_tag;
    struct rdma_event_channel *channel;
    LIST_HEAD(, transport_memory) memories;
    LIST_HEAD(, transport_listener) listeners;
    TAILQ_HEAD(, transport_endpoint) endpoints;
    LIST_HEAD(, transport_key) keys;
    struct rdma_cq cqs[RDMA_DEVICES_MAX];
    struct rdma_work *work; /* of the active side (work.h); made when first needed */
    size_t completed;       /* operations, in this progress */
    unsigned dmabufs;       /* of memories */
    uint64_t now_ms;        /* CLOCK_BOOTTIME, of this progress */
    struct rdma_counters {
#define RDMA_COUNTER(name) name
        uint64_t RDMA_COUNTERS(RDMA_COUNTER);
    } counters;
};
tarn_status rdma_domain_open(const struct transport_domain_config *config,
                             struct transport_domain **domain_p);
void rdma_domain_close(struct transport_domain **domain_p);
size_t rdma_domain_progress(struct transport_domain *d, uint64_t budget);
tarn_status rdma_domain_arm(struct transport_domain *d, int *fd_p);
void rdma_domain_describe(const struct transport_domain *d, struct buf *out); /* report.c */
/* The timer fires no later than this. */
void rdma_domain_wake_at(struct transport_domain *d, uint64_t boot_ms);
/* The completion queue for rails of a device. TARN_ENOMEM: the device has none. domain.c closes
 * it. */
tarn_status rdma_domain_cq(struct transport_domain *d, struct rdma_device *device,
                           struct rdma_cq **cq_p);

/* --- memory (region.c, local.c) --- */

struct rdma_chunk { /* of one memory on one device */
    struct ibv_mr *read,
        /* segments: a key for readers, one for writers; local memory: write only, for both */
        *write;
};

struct rdma_region {   /* a memory on one device */
    struct ibv_pd *pd; /* a segment's own; of local memory the device's */
    struct ibv_mr *header;
    struct rdma_chunk *chunk; /* n_chunks */
    bool whole;               /* everything is registered */
};

struct transport_memory {
    uint32_t magic;
    LIST_ENTRY(transport_memory) link;
    struct transport_domain *domain;
    struct transport_memory_config config;
    uint64_t chunk_size;
    size_t n_chunks;
    /* Random, of the keys that are good; 0: registration is under way, or failed on every
     * device. */
    uint64_t generation;
    int numa_node;
    struct rdma_region region[RDMA_DEVICES_MAX];
    /* 1 + how often the device had come up when it was tried last */
    uint64_t tried[RDMA_DEVICES_MAX];
    struct rdma_registration *job; /* under way, NULL: none */
    bool again;                    /* everything anew when the job is done */
    uint64_t registered_ms, registrations, failures;
};

/* Of transport_ops. Segments (remote) are registered by a thread, so that nobody waits:
 * memory_version is 0 until then. Local memory is registered when memory_register returns. */
tarn_status rdma_memory_register(struct transport_domain *d,
                                 const struct transport_memory_config *config,
                                 struct transport_memory **memory_p);
tarn_status rdma_key_pack(struct transport_memory *m, bool writable, struct buf *out);
uint64_t rdma_memory_version(const struct transport_memory *m);
void rdma_memory_deregister(struct transport_memory **memory_p);
/* New keys for a segment whose queue pairs are gone; what there was before is deregistered first.
 * At once: generation 0. */
void rdma_memory_renew(struct transport_memory *m);
/* Takes what registration threads have finished. From progress. */
void rdma_memory_poll(struct transport_domain *d);
/* The local key for [addr, addr + *len_p) on a device; *len_p is cut at the end of a registration.
 * NULL: not registered. */
struct ibv_mr *rdma_memory_local(struct transport_domain *d, const struct rdma_device *device,
                                 const void *addr, uint64_t *len_p);
/* The registration of a piece of local memory, shared by all domains that name it. NULL: errno
 * tells. From any thread. */
struct ibv_mr *rdma_local_get(const struct rdma_device *device,
                              const struct transport_memory_config *config, uint64_t offset,
                              uint64_t len);
void rdma_local_put(const struct rdma_device *device, const struct transport_memory_config *config,
                    uint64_t offset, struct ibv_mr *mr);
/* Registers and counts; dereg counts down. */
struct ibv_mr *rdma_mr_make(struct ibv_pd *pd, void *addr, uint64_t len, unsigned access);
struct ibv_mr *rdma_mr_make_dmabuf(struct ibv_pd *pd, const struct transport_memory_config *config,
                                   uint64_t offset, uint64_t len, unsigned access);
void rdma_mr_drop(struct ibv_mr *mr); /* NULL: nothing */

/* --- passive side (listener.c, peer.c) --- */

tarn_status rdma_listener_open(struct transport_domain *d,
                               const struct transport_listen_config *config,
                               struct transport_listener **listener_p);
uint16_t rdma_listener_port(const struct transport_listener *l);
tarn_status rdma_listener_uri(const struct transport_listener *l, struct buf *out);
void rdma_listener_stats(const struct transport_listener *l,
                         struct transport_listener_stats *stats_p);
void rdma_listener_programs(const struct transport_listener *l, struct program_counts *sum);
tarn_status rdma_listener_fence(struct transport_listener *l, const struct transport_fence *fence);
bool rdma_listener_lent(const struct transport_listener *l, const struct transport_memory *m,
                        uint32_t below_epoch);
void rdma_listener_close(struct transport_listener **listener_p);
/* From progress: events whose tag is RDMA_TAG_LISTEN or RDMA_TAG_PEER. Acknowledges the event. */
void rdma_listener_event(struct rdma_cm_event *event);
/* From progress, whenever a device has changed its state: listens where it can by now. */
void rdma_listener_turn(struct transport_domain *d);
/* Cuts off all peers of a memory: their queue pairs are destroyed when it returns. */
void rdma_listener_drop_memory(struct transport_memory *m);
/* Where device can be connected to: NULL: nowhere. *port_p: at which port. */
const struct rdma_address *rdma_listener_address(const struct transport_domain *d,
                                                 const struct rdma_device *device,
                                                 uint16_t *port_p);
/* "peer ..." lines */
void rdma_listener_describe(const struct transport_domain *d, struct buf *out);

/* --- active side (endpoint.c, key.c, rail.c, work.c, post.c, completion.c, staging.c) --- */

#define RDMA_OUTSTANDING_MAX 4096u /* operations per endpoint */

tarn_status rdma_connect_to(struct transport_domain *d, const char *uri, uint64_t deadline_boot_ms,
                            struct transport_endpoint **endpoint_p);
tarn_status rdma_endpoint_status(const struct transport_endpoint *e);
void rdma_endpoint_close(struct transport_endpoint **endpoint_p);
/* Does not wait: the key's rails come up while operations are waiting in it. */
tarn_status rdma_key_unpack(struct transport_endpoint *e, const struct transport_key_config *config,
                            struct transport_key **key_p);
tarn_status rdma_key_check(struct transport_key *k);
/* Is it a packed key for that right, of a version that is known, and whole? Not what it says. */
bool rdma_packed_parse(struct span packed, enum rdma_right right, struct rdma_key_header *h);
/* One of its devices, whose keys are behind it: n_chunks of uint32_t, not aligned. */
const char *rdma_packed_device(struct span packed, const struct rdma_key_header *h, size_t i,
                               struct rdma_key_device *device_p);
void rdma_key_close(struct transport_key **key_p);
tarn_status rdma_submit(struct transport_endpoint *e, struct transport_op *const *ops, size_t n,
                        size_t *accepted_p);
/* From progress. */
void rdma_rail_event(struct rdma_cm_event *event); /* acknowledges it */
void rdma_cq_poll(struct transport_domain *d, uint64_t budget);
void rdma_work_turn(struct transport_domain *d, uint64_t budget); /* posts, times out, reaps */
/* progress has something to do at once */
bool rdma_work_waiting(const struct transport_domain *d);
/* TARN_EAGAIN: completions have come meanwhile */
tarn_status rdma_cq_arm(struct transport_domain *d);
void rdma_work_describe(const struct transport_domain *d, struct buf *out); /* "rail ..." lines */
void rdma_work_close(struct transport_domain *d); /* no endpoints and no keys are left */

/* --- RDMA.* commands (commands.c, doctor.c) --- */

tarn_status rdma_commands_register(void);
void rdma_doctor(struct tarn_call_context *c, const struct span *argv, size_t argc);

#endif
