/* Buffers for segments that are not memory. Their bytes are asked of the gate, piece by piece, into
 * buffers of a pool that all data threads of a listener share; whoever gave them says from its own
 * thread when they are there. A piece that somebody else has asked for a moment ago, as who reads a
 * block from a disk and who copies it to memory do, is not asked for again: while a buffer is not
 * needed for other bytes, it keeps what it has.
 *
 *   piece:  tcp_stager_ask ─> under way ─done─> (stager's list) ─tcp_stager_collect─> ready
 *                      └────────(kept)──────────────────────────────────────────────────^
 *                                 │                                 ─tcp_piece_release─> gone
 *                                 └── tcp_piece_release ──> nobody's ─done─> gone
 *
 * A stager is a data thread's, or of a thread that reads for this process itself (direct.c): all
 * but done() happens there. It tells its thread by an eventfd that there is something to collect;
 * collecting names the connections that can go on. Memory is bounded by the pool. Who finds it
 * empty waits in the order of asking: threads in line for buffers, connections in line within their
 * thread.
 *
 * Nobody is given what was once read twice: who asks again may have found that it was not right,
 * and the next reading is.
 *
 * Locks: a stager's (its list of done pieces) and the pool's; never both, and under neither a call
 * that can block. */
#ifndef TARN_TRANSPORT_TCP_STAGE_H
#define TARN_TRANSPORT_TCP_STAGE_H

#include <pthread.h>
#include <sys/queue.h>

#include "transport/transport.h"

#define TCP_STAGE_DEFAULT_BYTES (UINT64_C(64) << 20)
#define TCP_STAGE_GIVEN_MAX     4u

struct tcp_stager;
struct tcp_piece;
TAILQ_HEAD(tcp_piece_list, tcp_piece);

struct tcp_stage_bytes {
    uint32_t segment, segment_epoch;
    uint64_t offset, length;
    uint64_t mark; /* the gate's */
};

/* Under its pool's lock, but for the bytes. */
struct tcp_stage_buffer {
    TAILQ_ENTRY(tcp_stage_buffer) link; /* free ones */
    struct tcp_stage_pool *pool;
    void *at;
    unsigned users; /* pieces */
    enum { TCP_BUFFER_READING, TCP_BUFFER_READ, TCP_BUFFER_FAILED } state;
    struct tcp_piece_list waiting;       /* those of its pieces that it has to be read for */
    struct tcp_stage_bytes has;          /* or will have; mark 0: it is not for others */
    uint64_t given[TCP_STAGE_GIVEN_MAX]; /* to these sessions */
    unsigned n_given;
};
TAILQ_HEAD(tcp_stage_buffers, tcp_stage_buffer);

struct tcp_stage_pool {
    pthread_mutex_t lock;
    size_t max, made; /* buffers */
    char *memory;     /* of all of them, reserved with the first; NULL: there was none yet */
    struct tcp_stage_buffer *buffers;
    struct tcp_stage_buffers free; /* those that keep something last, the oldest of them first */
    size_t n_free;
    pthread_cond_t back;              /* the last of them is, where deinit waits for it */
    TAILQ_HEAD(, tcp_stager) waiting; /* in line: only the first may take what there is */
    unsigned n_waiting;               /* of them; atomic */
};

struct tcp_piece {
    TAILQ_ENTRY(tcp_piece) link;      /* its owner's */
    TAILQ_ENTRY(tcp_piece) done_link; /* its buffer's, under pool.lock; then under stager.lock */
    struct tcp_stager *stager;
    struct tcp_stage_wait *owner; /* NULL: nobody wants it any more */
    void *request;                /* its owner's word */
    struct tcp_stage_buffer *held;
    void *buffer; /* its bytes */
    uint64_t length;
    bool ready;
    tarn_status status; /* when ready */
};

/* In whoever asks for pieces. */
struct tcp_stage_wait {
    TAILQ_ENTRY(tcp_stage_wait) link;
    enum {
        TCP_STAGE_IDLE,
        TCP_STAGE_STARVED, /* in line for a buffer */
        TCP_STAGE_FED,     /* it was its turn: there is one for it */
        TCP_STAGE_RETRY,   /* the gate was busy */
    } state;
};
TAILQ_HEAD(tcp_stage_waits, tcp_stage_wait);

struct tcp_stager {
    struct tcp_stage_pool *pool;
    const struct transport_gate *gate;
    int wake_fd;
    unsigned under_way;                    /* asked, not collected */
    struct tcp_stage_waits starved, retry; /* for a buffer; for a gate that said TARN_EAGAIN */
    uint64_t retry_ms;
    bool short_of;                             /* buffers: it may be in line */
    bool took;                                 /* one, since it was settled */
    struct transport_listener_stats *counters; /* the thread's */

    pthread_mutex_t lock;
    pthread_cond_t news;
    struct tcp_piece_list done; /* under lock, like: */
    bool left;                  /* tcp_stager_leave; then under_way, too */

    TAILQ_ENTRY(tcp_stager) link; /* under pool.lock */
};

void tcp_stage_pool_init(struct tcp_stage_pool *p, uint64_t bytes);
/* Nobody asks any more. Waits for the buffers of stagers that were left. */
void tcp_stage_pool_deinit(struct tcp_stage_pool *p);
uint64_t tcp_stage_pool_used(struct tcp_stage_pool *p);
/* Does somebody wait for a buffer? Any thread. */
bool tcp_stage_pool_short(const struct tcp_stage_pool *p);

/* Borrows all. counters: the calling thread's. */
void tcp_stager_init(struct tcp_stager *s, struct tcp_stage_pool *p,
                     const struct transport_gate *gate, int wake_fd,
                     struct transport_listener_stats *counters);
/* Nobody asks any more. Waits until done() has been called for all that is under way. */
void tcp_stager_deinit(struct tcp_stager *s);
/* The same for one on the heap, which frees itself when that is so: nobody waits. Its wake_fd and
 * counters are not used any more. Nulls. */
void tcp_stager_leave(struct tcp_stager **stager_p);

/* Asks for [offset, offset + length) of the extent, at most TRANSPORT_STAGE_PIECE, for a session.
 * TARN_EAGAIN: no buffer, or the gate is busy: a later collect will name owner. Other errors: the
 * gate's. */
tarn_status tcp_stager_ask(struct tcp_stager *s, struct tcp_stage_wait *owner, uint64_t session,
                           const struct grant_extent *extent, uint64_t offset, uint64_t length,
                           uint64_t now_ms, struct tcp_piece **piece_p);
void tcp_piece_release(struct tcp_piece **piece_p);
/* Owner goes: no collect will name it. Its pieces must have been released. */
void tcp_stager_forget(struct tcp_stager *s, struct tcp_stage_wait *owner);
/* Calls go_on for owners of pieces that have become ready, or who may ask again. */
void tcp_stager_collect(struct tcp_stager *s, uint64_t now_ms,
                        void (*go_on)(void *arg, struct tcp_stage_wait *owner), void *arg);
/* After the owners had their turns: what they did not take is for others. Returns in how many ms to
 * collect again, -1: when the eventfd says so. */
int tcp_stager_settle(struct tcp_stager *s, uint64_t now_ms);

#endif
