/* What the files of this room share. */
#ifndef TARN_HOST_HOST_INTERNAL_H
#define TARN_HOST_HOST_INTERNAL_H

#include <pthread.h>

#include "base/htab.h"
#include "base/wheel.h"
#include "host/host.h"
#include "pool/pool.h"
#include "transport/transport.h"

#define HOST_MAGIC          0x484f5354u /* "HOST" */
#define HOST_SLOTS_MAX      256u
#define HOST_PUTS_MAX       (512u << 10) /* grants WRITE_ONCE that are remembered: some 60 MB */
#define HOST_PUT_RANGES_MAX (1u << 20)   /* written by them, that do not touch: 16 MB */

/* Key and epoch grants are valid under. Data threads read it without a lock: a change makes a new
 * one, and the old ones stay until the host goes (one per failover). */
struct host_authority {
    struct host_authority *older;
    uint8_t key[GRANT_KEY_SIZE];
    uint32_t master_epoch;
};

struct host_path { /* one transport's passive side */
    const struct transport_ops *ops;
    struct transport_domain *domain;
    struct transport_listener *listener;
    struct transport_memory *memory[HOST_SLOTS_MAX]; /* NULL: not registered, or it could not be */
    uint64_t version[HOST_SLOTS_MAX];                /* of its keys, as told */
    const char *const *uris; /* where to listen; of those that announce themselves: none */
    size_t n_uris;
};

/* A segment of this host. Its place and memory never change; data threads find it by its name, one
 * atomic word.
 *
 *   opened ─serve─> named ─retire, serve under another─> nameless, somebody may be slow
 *                     ^                                    └─> quiet ─serve─> named */
struct host_slot {
    uint64_t name;     /* atomic: host_name of what it is served under; 0: not served */
    char *base;        /* first byte; NULL: bytes come from reader */
    struct pool *pool; /* what base belongs to; NULL: to somebody else */
    struct host_reader reader;
    bool device; /* base only names it: no CPU may touch it. Then these are its dma-buf: */
    int fd;
    uint64_t fd_offset;
    uint64_t size;

    /* The control thread's. */
    uint64_t last_name; /* its content was served under, 0: nothing */
    bool vacant;        /* closed: the next one to be opened may have its number */
    bool registered;    /* with the transports, under last_name */
    bool discarded;
    bool orphans;    /* when it was, somebody had it mapped writable */
    uint64_t ticket; /* of the fence that looks for the slow */
    bool idle;       /* no data thread is in the middle of a transfer under last_name */
};

static inline uint64_t host_name(uint32_t id, uint32_t segment_epoch) {
    return (uint64_t)id << 32 | segment_epoch;
}

struct host_fence { /* asked for, not yet true */
    struct transport_fence what;
    unsigned slot;       /* TRANSPORT_FENCE_SEGMENT */
    uint32_t paths_done; /* bit per path */
    uint64_t keep_ms;    /* TRANSPORT_FENCE_SESSION */
    bool refused;        /* by the gate, which had room for it */
};

struct host_puts { /* puts.c */
    pthread_mutex_t lock;
    struct htab table;
    struct wheel *wheel; /* monotonic */
    uint64_t count;      /* atomic copy of table.count */
    unsigned ranges;     /* of all */
};

/* Everything a grant is checked against. The control thread writes, data threads read. */
struct host_gate {
    struct host_slot slots[HOST_SLOTS_MAX];
    unsigned n_slots;                 /* atomic, grows */
    struct host_authority *authority; /* atomic */
    int64_t clock_offset_ms;          /* atomic */
    pthread_mutex_t authority_lock;   /* between who writes authority and segment headers */

    /* Sessions that were cut off. An entry outlives one change of the master epoch, so that a data
     * thread which still works by the old authority finds it; grants of the epoch before that are
     * refused for their epoch. */
    pthread_rwlock_t fenced_lock;
    struct htab fenced;
    struct wheel *fenced_wheel; /* those that are forgotten one day */
    size_t n_fenced;            /* atomic copy of fenced.count */
    struct host_puts puts;
};

void host_gate_init(struct host_gate *g);
void host_gate_deinit(struct host_gate *g);
/* The segment that is served under this id at this moment. */
struct host_slot *host_gate_find(const struct host_gate *g, uint32_t id, uint32_t *segment_epoch_p);
const struct host_authority *host_gate_authority(const struct host_gate *g); /* NULL: none yet */
/* the master's clock */
uint64_t host_gate_now_ms(const struct host_gate *g);
/* 0: no authority yet */
uint32_t host_gate_master_epoch(const struct host_gate *g);
void host_gate_set_authority(struct host_gate *g, const uint8_t key[GRANT_KEY_SIZE],
                             uint32_t master_epoch);
/* Lets data threads find it, with the epochs in its header; and no more. */
void host_gate_publish(struct host_gate *g, struct host_slot *s, uint32_t id,
                       uint32_t segment_epoch);
void host_gate_hide(struct host_gate *g, struct host_slot *s);
/* Its grants are refused from now on, for as long as they could be good for anything. false:
 * HOST_FENCED_MAX sessions are remembered, and none of them can be forgotten yet. */
bool host_gate_fence(struct host_gate *g, uint64_t session, uint64_t keep_ms);
#define HOST_FENCED_MAX (1u << 18)
/* For struct transport_gate; arg is the host_gate. */
enum grant_verdict host_gate_check(void *arg, const uint8_t grant[GRANT_SIZE],
                                   const struct grant_extent *extent, enum grant_op want,
                                   uint64_t sub_offset, uint64_t sub_length, struct grant *g_p,
                                   void **addr_p);
enum grant_verdict host_gate_recheck(void *arg, const struct grant *g,
                                     const struct grant_extent *extent);
uint64_t host_gate_mark(void *arg, const struct grant_extent *extent, uint64_t offset,
                        uint64_t length);
tarn_status host_gate_stage(void *arg, const struct grant_extent *extent, uint64_t offset,
                            uint64_t length, void *buffer,
                            void (*done)(void *done_arg, tarn_status status), void *done_arg);

/* Is it inside a segment that is a reader, and served under that name? */
bool host_gate_reads(const struct host_gate *g, const struct grant_extent *extent);

/* puts.c; the first three for struct transport_gate */
enum grant_verdict host_puts_begin(void *arg, const struct grant *g,
                                   const struct grant_extent *extent, void **put_p);
void host_puts_end(void *arg, void *put, uint64_t offset, uint64_t length);
enum grant_verdict host_puts_seal(void *arg, const struct grant *g,
                                  const struct grant_extent *extent,
                                  uint8_t receipt[GRANT_RECEIPT_SIZE]);
void host_puts_init(struct host_puts *t);
void host_puts_deinit(struct host_puts *t);

struct host {
    uint32_t magic;
    struct host_gate gate;
    struct host_path paths[TRANSPORTS_MAX];
    unsigned n_paths;
    int epoll_fd, kick_fd, timer_fd;
    bool started;

    struct host_config config; /* but for its addresses and paths: */
    char **uris;               /* of the data port */
    size_t n_uris;
    char *shm_uri; /* NULL: none */

    struct host_fence *fences;
    size_t n_fences, cap_fences;
    uint64_t last_ticket;
    bool ticking; /* timer_fd is armed */
};

/* paths.c */
bool host_watch(struct host *h, int fd);
/* Of the transport that the uris name. */
tarn_status host_path_open(struct host *h, const char *const *uris, size_t n_uris);
tarn_status host_path_listen(struct host *h, struct host_path *p);
/* Everything else that is registered. */
void host_paths_add_all(struct host *h);
/* Memory of a slot that is served, or about to be, under id. TARN_OK where it can do without,
 * too. */
tarn_status host_path_register(struct host *h, struct host_path *p, unsigned slot, uint32_t id);
/* Looks for keys that have changed. */
void host_paths_turn(struct host *h);
/* fences.c */
/* Waits for data threads that might still be at work in a slot that has just been hidden: sets its
 * idle in time. */
void host_fence_slot(struct host *h, unsigned slot, uint32_t id);
void host_report_fences(struct host *h);
uint64_t host_fences_pending(const struct host *h);
/* slots.c */
/* Can somebody write to the slot's memory who was let in under a master epoch below this one, and
 * need not ask again? UINT32_MAX: anybody at all. */
bool host_slot_lent(const struct host *h, unsigned slot, uint32_t below_epoch);
void host_close_slots(struct host *h);

#endif
