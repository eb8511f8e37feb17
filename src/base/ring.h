/* Two rings of bytes in shared memory, one each way, between two processes of a machine that have a
 * socket, too: bytes go through the memory, the socket only wakes who sleeps, and ends.
 *
 *   write ─> ring_calls ─ true ─> a byte by the socket
 *   nothing is possible ─> ring_sleep ─ 0 ─> wait for the socket ─> ring_wake ─> look again
 *                             └ something is possible by now: do not sleep
 *
 * One thread on each side. Neither side trusts the other: what the other writes into the memory is
 * read once and checked, the own positions are kept apart from it, and the bytes are copied out
 * before anybody looks at them. A peer that writes nonsense is found (EPROTO), or gets what it
 * wrote itself. The memory cannot shrink under who has it mapped: it is sealed. */
#ifndef TARN_BASE_RING_H
#define TARN_BASE_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
#include "base/buf.h"

#define RING_BYTES (32u << 10) /* each way */

/* Positions count bytes since the beginning, modulo 2^32; atomics only. What one side writes often
 * has a cache line of its own. */
struct ring_way {
    _Alignas(64) uint32_t head; /* the writer's: so much was written */
    _Alignas(64) uint32_t tail; /* the reader's: so much was read */
    _Alignas(
        64) uint32_t sleeps; /* the reader waits for bytes; the writer takes it back and calls */
    uint32_t full;           /* the writer waits for room; the reader does */
    _Alignas(64) char bytes[RING_BYTES];
};

/* The memory. */
struct ring_memory {
    uint64_t magic;
    struct ring_way to_server, to_client;
};

size_t ring_size(void); /* of it, in whole pages */

/* One side of it. */
struct ring {
    struct ring_memory *memory; /* NULL: there is none */
    struct ring_way *in, *out;
    uint32_t in_at, out_at; /* own positions */
    uint32_t out_tail;      /* the peer's, as it was seen last */
};

/* The server's side, and the memory for the peer, which the caller sends and closes. Its client is
 * taken to be awake, the server to be asleep. false: errno. */
bool ring_create(struct ring *r, int *fd_p);
/* The client's side. false: that is no ring, or one that could shrink, or there is no memory. */
bool ring_open(struct ring *r, int fd);
void ring_close(struct ring *r);

/* As readv and writev of a non-blocking socket: -1 and EAGAIN, there is nothing, or no room.
 * EPROTO: the peer's positions make no sense. */
ssize_t ring_read(struct ring *r, const struct iovec *iov, size_t n);
ssize_t ring_write(struct ring *r, const struct iovec *iov, size_t n);
/* The next bytes that can be read, as far as they lie in a row; where the peer may still change
 * them. None, too, where its positions make no sense. */
struct span ring_peek(const struct ring *r);

enum { RING_READ = 1, RING_WRITE = 2 };
/* After one of these: is the peer to be woken? */
bool ring_calls(struct ring *r, unsigned did);
/* RING_WRITE: there is room for at least half a ring. */
unsigned ring_possible(const struct ring *r);
/* The peer is to call when one of events is possible; or, if one is already, it is not and that is
 * returned. */
unsigned ring_sleep(struct ring *r, unsigned events);
void ring_wake(struct ring *r);

#endif
