/* Threads that move bytes between sockets and memory, so that the loop's thread does not have to.
 *
 *   loop: net_transfer_start ─> mailbox of a thread ─> the thread: recv or send, until all is moved
 *   loop: done() <───────────── list of finished ones, eventfd <──┘
 *
 * Only the functions named "in the thread" run there; all else is called from the loop's thread.
 * From net_transfer_start until done() the transfer, its memory and its direction of the descriptor
 * are the thread's: nobody else receives (sends) there, and the descriptor is not closed.
 * shutdown() of it ends a transfer early. A descriptor has one transfer at a time. */
#ifndef TARN_NET_TRANSFER_H
#define TARN_NET_TRANSFER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/uio.h>

#include "base/iov.h"

#define NET_TRANSFER_PIECES 64

struct net_loop;

struct net_transfer {
    /* The owner's. */
    int fd;       /* non-blocking */
    bool receive; /* else: send */
    struct iovec piece[NET_TRANSFER_PIECES];
    unsigned pieces;
    size_t left; /* bytes of all pieces; > 0 */
    void (*received)(struct net_transfer *t,
                     /* in the thread: the next n bytes are in place. NULL: nobody asks */
                     size_t n);
    void (*done)(struct net_transfer *t);
    /* What came of it. */
    int error;           /* errno; 0: all was moved, or */
    bool ended;          /* the peer sends no more */
    atomic_size_t moved; /* bytes so far: what they lay in is of no more interest here */
    /* This room's. */
    struct iov_cursor at;
    unsigned thread;
    bool watched, finished;
    TAILQ_ENTRY(net_transfer) link;
};

struct net_transfers;

/* NULL: no threads, or no descriptors. threads > 0. */
struct net_transfers *net_transfers_create(struct net_loop *loop, unsigned threads);
/* What is under way ends with ECANCELED; its done() is called from here. */
void net_transfers_destroy(struct net_transfers **transfers_p);
/* In the thread that has the fewest. */
void net_transfer_start(struct net_transfers *transfers, struct net_transfer *t);
/* Until it is through, which it had better be soon; its done() is called from here, and nobody
 * else's. */
void net_transfer_wait(struct net_transfers *transfers, struct net_transfer *t);

#endif
