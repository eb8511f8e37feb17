/* The event loop, timers and listening sockets: all of tarn that knows libevent.
 *
 * One thread. A turn of the loop is: sleep until something happens; `woke`; the callbacks of what
 * happened; `turn`, which does everything that is not an answer to one event and says how long the
 * next sleep may be. */
#ifndef TARN_NET_NET_H
#define TARN_NET_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include "base/buf.h"
#include "base/status.h"

struct net_loop;
struct net_ring;
struct spin;

struct net_hooks {
    void *arg;
    /* Once per turn, before its first callback: the time is stale. */
    void (*woke)(void *arg);
    /* After the callbacks. Returns for how many milliseconds the loop may sleep; 0: there is more
     * to do at once. */
    uint64_t (*turn)(void *arg);
    /* NULL, or: what some rings have, up to NET_AHEAD of them, before they are called. The peers
     * may still change these bytes, which are good for guesses only. */
    void (*ahead)(void *arg, const struct span *came, size_t n);
};
enum { NET_AHEAD = 16 };

/* NULL: no epoll, or no memory. */
struct net_loop *net_loop_create(const struct net_hooks *hooks);
/* All watches and timers must be gone. */
void net_loop_destroy(struct net_loop **loop_p);
/* Returns after net_loop_stop. */
void net_loop_run(struct net_loop *loop);
void net_loop_stop(struct net_loop *loop);
/* How long it looks before it sleeps (base/spin.h), not at all unless somebody sets it; and how
 * often it did. */
struct spin *net_loop_spin(struct net_loop *loop);
const char *net_loop_backend(const struct net_loop *loop); /* "libevent 2.1.12, epoll" */

/* --- watching a descriptor --- */

enum { NET_READ = 1, NET_WRITE = 2 };
typedef void (*net_watch_fn)(void *arg, unsigned events);

/* Embedded in the caller's struct: a connection costs no allocation of its own here. */
struct net_watch {
    struct net_loop *loop;
    net_watch_fn fn;
    void *arg;
    struct net_ring *ring; /* what is watched in place of fd; NULL: fd is */
    int fd;
    unsigned events;
    _Alignas(8) char event[128]; /* struct event */
};

void net_watch_init(struct net_watch *w, struct net_loop *loop, int fd, net_watch_fn fn, void *arg);
/* Which of NET_READ, NET_WRITE are awaited from now on; 0: none, which must be so before the
 * descriptor is closed. Level-triggered: fn is called in each turn in which they are possible. */
tarn_status net_watch_set(struct net_watch *w, unsigned events);

/* --- connections through memory that is shared with the peer (base/ring.h) ---
 *
 *   create ─> net_watch_ring ─> read, write ... ─> net_watch_set 0 ─> destroy
 *
 * The loop looks at those that are awake in each turn. Before it sleeps they are put to sleep: from
 * then on the peer calls by the socket. */

/* *fd_p: the memory for the peer, which the caller sends and closes. NULL: errno. */
struct net_ring *net_ring_create(int *fd_p);
/* It is watched no more. */
void net_ring_destroy(struct net_ring **ring_p);
size_t net_ring_memory(void);
/* From now on the events of w are those of the ring, which stays the caller's; what comes by the
 * descriptor only wakes us, and its end is the ring's. */
tarn_status net_watch_ring(struct net_watch *w, struct net_ring *ring);
/* As readv and writev of a non-blocking socket. EPROTO: what the peer wrote makes no sense. EPIPE:
 * the descriptor has ended, be it one way only, and there is no room: the peer cannot call. */
ssize_t net_ring_read(struct net_ring *ring, const struct iovec *iov, size_t n);
ssize_t net_ring_write(struct net_ring *ring, const struct iovec *iov, size_t n);
/* Is there something to be read, or has it ended? */
bool net_ring_readable(const struct net_ring *ring);

/* --- timers --- */

struct net_timer {
    struct net_loop *loop;
    void (*fn)(void *arg);
    void *arg;
    bool pending;
    _Alignas(8) char event[128];
};
void net_timer_init(struct net_timer *t, struct net_loop *loop, void (*fn)(void *arg), void *arg);
void net_timer_start(struct net_timer *t, uint64_t ms); /* once; also moves a pending one */
void net_timer_stop(struct net_timer *t);

/* --- sockets --- */

/* A listening, non-blocking, close-on-exec socket on addr ("127.0.0.1", "::", "*" is every IPv4
 * address) and port (0: any). TARN_EIO: *why_p is static text. TARN_ENOTFOUND: this machine has no
 * such address or address family. */
tarn_status net_listen_tcp(const char *addr, uint16_t port, int backlog, int *fd_p,
                           const char **why_p);
/* mode: permissions of the socket file. An old socket file at path is replaced. */
tarn_status net_listen_unix(const char *path, unsigned mode, int backlog, int *fd_p,
                            const char **why_p);
/* The same in the abstract namespace, which has no files and no permissions: everybody in this
 * network namespace may connect, as with the loopback interface. name: up to NET_ABSTRACT_MAX - 1
 * characters. */
#define NET_ABSTRACT_MAX 64u
tarn_status net_listen_abstract(const char *name, int *fd_p, const char **why_p);
/* Is that connected to a socket that was bound to that name, to the last byte? */
bool net_peer_is_abstract(int fd, const char *name);
uint16_t net_port(int fd);

/* The mark that packets of sockets made from now on have (SO_MARK), for the rules of a firewall; 0:
 * none. */
void net_set_mark(uint32_t mark);
/* The address that outgoing connections come from ("127.0.0.2", "::1"); "": any. false: it is no
 * address. */
bool net_set_source(const char *addr);
/* A new socket that is about to connect: mark and source. false: errno. */
bool net_prepare(int fd, int family);

struct net_listener;
/* fd is the connection's, non-blocking and close-on-exec, the callee's from now on. */
typedef void (*net_accept_fn)(void *arg, int fd, const struct sockaddr_storage *peer);
/* Takes fd. Accepts until net_listener_close. Where descriptors run out it says so once a second
 * and rests a moment. */
struct net_listener *net_listener_open(struct net_loop *loop, int fd, net_accept_fn fn, void *arg);
/* Accepts what waits there already. */
void net_listener_drain(struct net_listener *listener);
void net_listener_close(struct net_listener **listener_p);
/* Accepts that failed for want of descriptors or memory, since start. */
uint64_t net_accept_failures(void);

/* No delay, and keep-alive probes after that many seconds (0: none). Errors do not matter. */
void net_tune(int fd, int keepalive_s);
/* peer is who fd is connected to. Where that is a process of this machine, what was sent and not
 * yet read is memory that both sides go through: little enough of it to stay in the caches, however
 * much the kernel would buffer. */
void net_tune_local(int fd, const struct sockaddr_storage *peer);
/* Small pieces wait for each other, which saves packets. */
void net_delay(int fd);
/* "127.0.0.1:4711", "[::1]:4711", or "path:0" of a unix socket. Truncates. */
void net_format(const struct sockaddr_storage *addr, const char *unix_path, char *out, size_t size);
bool net_is_loopback(const struct sockaddr_storage *addr); /* also unix sockets */

#endif
