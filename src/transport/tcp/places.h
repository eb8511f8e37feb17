/* Who has a place at the data port. Anybody may connect, so a connection that has shown no good
 * grant yet keeps its place only as long as nobody else wants it: when all are taken, the oldest of
 * those goes, first of all one of the newcomer's own machine, so that a crowd that has no rights
 * drives out itself. One with a good grant is not driven out; it goes when it was idle for long and
 * all places are taken (listener.c).
 *
 *   take ─> NEW ──good grant──> KEPT ──give──> gone
 *            └─room for another─> LEAVING ──its thread drops it: give──> gone */
#ifndef TARN_TRANSPORT_TCP_PLACES_H
#define TARN_TRANSPORT_TCP_PLACES_H

#include <pthread.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "transport/tcp/conn.h"

TAILQ_HEAD(tcp_place_list, tcp_conn);

struct tcp_places {
    pthread_mutex_t lock;
    unsigned max;
    struct tcp_place_list new_ones, leaving; /* by age */
    unsigned n_leaving;                      /* these also read without the lock */
    uint64_t used, n_new, ousted;
    struct program_counts programs; /* of those that are KEPT */
};

void tcp_places_init(struct tcp_places *p, unsigned max);
void tcp_places_deinit(struct tcp_places *p);

/* Alike for addresses of one machine; of IPv6, of one network. */
uint64_t tcp_place_peer(const struct sockaddr_storage *from);

bool tcp_places_full(const struct tcp_places *p); /* from any thread */

/* The accepting thread. */
enum tcp_room { TCP_ROOM_FREE, TCP_ROOM_MADE, TCP_ROOM_NONE };
/* MADE: one has to go, and *thread_p is to be woken, for it is one of its. */
enum tcp_room tcp_places_room(struct tcp_places *p, uint64_t peer, unsigned *thread_p);
/* Are there many yet that have to go? */
bool tcp_places_busy(const struct tcp_places *p);
void tcp_places_take(struct tcp_places *p, struct tcp_conn *c, unsigned thread, uint64_t peer);

/* The connection's thread. */
void tcp_places_keep(struct tcp_places *p, struct tcp_conn *c);
void tcp_places_give(struct tcp_places *p, struct tcp_conn *c);
/* One of its connections that has to go: to be given. NULL: none. */
struct tcp_conn *tcp_places_leaving(struct tcp_places *p, unsigned thread);

/* Adds to sum. From any thread. */
void tcp_places_programs(struct tcp_places *p, struct program_counts *sum);

#endif
