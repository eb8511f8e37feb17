/* Bytes that are not in this process' own memory: what in-band commands, checks of replicas and
 * copies share to reach them without holding up the loop. A mover's threads do the waiting; here
 * are its jobs, with the grants they need, and the bounds.
 *
 * Three things are given out, each first come first served:
 *
 *   claim     a share of inband-buffer, before the first buffer is made
 *   session   the name under which one write reaches its host, so that it can be fenced alone;
 *             REMOTE_WRITES_MAX at a time
 *   transfer  a piece of one replica, from or to memory of the caller
 *
 * The loop's thread. Callbacks come from the loop, never from inside the call that asked, except
 * where it says so. */
#ifndef TARN_INBAND_REMOTE_H
#define TARN_INBAND_REMOTE_H

#include "base/figures.h"
#include "base/hist.h"
#include "base/queue.h"
#include "front/cmd.h"
#include "engine/mover.h"

#define REMOTE_PIECE  STORE_CRC_BLOCK /* bytes of a transfer, at most: what one CRC covers */
#define REMOTE_WINDOW 4u /* pieces of a value that are under way or wait for their reader */
#define REMOTE_CLAIM_MIN                                                                           \
    (UINT64_C(16) << 10) /* a claim is not smaller: what stands beside its bytes */
#define REMOTE_WRITES_MAX 16u

/* Once no client is left: ends what is under way. */
void remote_deinit(void);

/* --- claims --- */

struct remote_claim;
/* What a value of that size needs: a window of pieces. */
uint64_t remote_window(uint64_t size);
/* granted(arg) is called once when there is room, not before this returns: ask remote_claim_granted
 * first. client: who is to take the bytes, so that one who does not is found; 0: nobody outside.
 * One reference is the caller's. */
struct remote_claim *remote_claim_new(uint64_t bytes, uint64_t client, void (*granted)(void *arg),
                                      void *arg);
bool remote_claim_granted(const struct remote_claim *claim);
/* Of a granted claim. */
struct remote_claim *remote_claim_ref(struct remote_claim *claim);
/* The last one gives the bytes back. One that still waits waits no more. NULL is fine. */
void remote_claim_unref(struct remote_claim **claim_p);
/* All that was claimed waits for the client to read (on), or does not any more. */
void remote_claim_stalled(struct remote_claim *claim, bool on);

/* --- sessions of writes --- */

struct remote_session {
    uint64_t id; /* 0: none yet */
    void (*ready)(void *arg);
    void *arg;
    /* private */
    TAILQ_ENTRY(remote_session) link; /* linked: waits */
};
/* true: id is set. false: ready(arg) will be called, with id set, from inside another call of this
 * header. */
bool remote_session_take(struct remote_session *s);
/* clean: nothing it wrote can still be on its way. Else it is over: what it has open in the books
 * is left to their fencing. Also ends the wait for one. */
void remote_session_give(struct remote_session *s, bool clean);

/* --- transfers --- */

struct remote_op {
    /* the caller's */
    const struct store_replica *replica; /* of one segment; copied */
    struct span key;                     /* of its object: file replicas are named by it. Copied */
    uint64_t version;
    uint64_t from, len; /* of the value */
    /* len bytes, or n_iov pieces of together len bytes (iov is borrowed, too); borrowed until done
     */
    void *memory;
    const struct iovec *iov;
    size_t n_iov;
    bool write;
    uint64_t session;      /* writes: of the put; reads: left out */
    uint64_t grant_end_ms; /* writes: mono ms until which the put lives; reads: left out */
    /* the bytes are elsewhere, too: a host that does not answer is given up soon */
    bool hurry;
    bool sum; /* the result's crc is wanted */
    /* status TARN_OK, or why not: TARN_ECANCELED when it had not begun. The caller may free or
     * start it again. */
    void (*done)(struct remote_op *op, tarn_status status);
    void *arg;
    /* the result */
    uint32_t crc;
    bool settled; /* writes: nothing of it can still arrive */
    /* private */
    struct remote_route *route; /* NULL: not under way */
    uint64_t began_ns;
};
/* TARN_OK: done will come. Else it will not: TARN_ENOSEGMENT (no way leads there), TARN_EAGAIN. */
tarn_status remote_start(struct remote_op *op);
static inline bool remote_under_way(const struct remote_op *op) {
    return op->route != NULL;
}
/* done comes all the same, soon. No-op when it is not under way. */
void remote_cancel(struct remote_op *op);

/* Names of memory segments that lately did not answer, for store_put_options.avoid. Returns how
 * many; valid until the next call. */
enum { REMOTE_AVOID_MAX = 8 };
size_t remote_avoid(struct span names[REMOTE_AVOID_MAX]);
bool remote_is_silent(uint32_t segment); /* whatever it holds is better read elsewhere */
/* Best first: own memory, then as for any client of this machine. */
void remote_order(struct store_layout *layout);

/* --- figures --- */

/* since start; some are counted by those who use this */
#define REMOTE_FIGURES(X)                                                                          \
    X(COUNTER, inband_waits, "values that had to wait for buffers")                                \
    X(COUNTER, inband_stalled_clients, "clients closed: they did not read while others waited")    \
    X(COUNTER, inband_reads, "pieces read")                                                        \
    X(COUNTER_BYTES, inband_read_bytes, "... their bytes")                                         \
    X(COUNTER, inband_writes, "pieces written")                                                    \
    X(COUNTER_BYTES, inband_write_bytes, "... their bytes")                                        \
    X(COUNTER, inband_failures, "pieces that could not be moved")                                  \
    X(COUNTER, inband_failovers, "pieces that another replica had to give")                        \
    X(COUNTER, inband_misses, "values that no replica gave")                                       \
    X(COUNTER, inband_broken, "... after their reply had begun: connections closed")               \
    X(COUNTER, inband_corrupt, "pieces that were not what was put")                                \
    X(COUNTER, inband_write_retries, "values written anew elsewhere")                              \
    X(COUNTER, inband_write_fenced, "writes that failed, so that their session was cut off")

struct remote_stats {
    REMOTE_FIGURES(FIGURE_MEMBER)
    uint64_t bytes_by[TRANSPORTS_MAX]; /* by slot (transport.h) */
    /* ns, of pieces: from when they were asked for, with the wait for a thread */
    struct hist read, write;
};
extern const struct figure remote_stats_figures[];
extern struct remote_stats remote_stats;

struct remote_figures { /* now */
    uint64_t claimed, claims, claims_waiting, sessions;
    struct mover_stats mover;
};
void remote_get_figures(struct remote_figures *figures_p);

#endif
