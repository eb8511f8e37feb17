#include "transport/tcp/places.h"

#include <netinet/in.h>
#include <string.h>

#include "base/assert.h"

#define LOOKS       64u /* newcomers that are looked at for one of the same machine */
#define LEAVING_MAX 64u

void tcp_places_init(struct tcp_places *p, unsigned max) {
    *p = (struct tcp_places){.max = max};
    pthread_mutex_init(&p->lock, NULL);
    TAILQ_INIT(&p->new_ones);
    TAILQ_INIT(&p->leaving);
}

void tcp_places_deinit(struct tcp_places *p) {
    pthread_mutex_destroy(&p->lock);
}

uint64_t tcp_place_peer(const struct sockaddr_storage *from) {
    uint64_t peer = 0;
    if (from->ss_family == AF_INET)
        memcpy(&peer, &((const struct sockaddr_in *)(const void *)from)->sin_addr,
               sizeof(struct in_addr));
    else if (from->ss_family == AF_INET6)
        memcpy(&peer, &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, sizeof(peer));
    return peer;
}

static void place_figure_add(uint64_t *figure, int64_t n) {
    __atomic_store_n(figure, *figure + (uint64_t)n, __ATOMIC_RELAXED);
}

static struct tcp_conn *place_find_victim(struct tcp_places *p, uint64_t peer) {
    struct tcp_conn *c = TAILQ_FIRST(&p->new_ones);
    for (unsigned i = 0; c != NULL && i < LOOKS; i++, c = TAILQ_NEXT(c, place.link))
        if (c->place.peer == peer) return c;
    return TAILQ_FIRST(&p->new_ones);
}

bool tcp_places_full(const struct tcp_places *p) {
    return __atomic_load_n(&p->used, __ATOMIC_RELAXED) >= p->max;
}

enum tcp_room tcp_places_room(struct tcp_places *p, uint64_t peer, unsigned *thread_p) {
    enum tcp_room room = TCP_ROOM_FREE;
    pthread_mutex_lock(&p->lock);
    if (p->used >= p->max) {
        struct tcp_conn *c = place_find_victim(p, peer);
        room = TCP_ROOM_NONE;
        if (c != NULL) {
            TAILQ_REMOVE(&p->new_ones, c, place.link);
            TAILQ_INSERT_TAIL(&p->leaving, c, place.link);
            c->place.state = TCP_PLACE_LEAVING;
            *thread_p = c->place.thread;
            __atomic_store_n(&p->n_leaving, p->n_leaving + 1, __ATOMIC_RELAXED);
            place_figure_add(&p->n_new, -1);
            place_figure_add(&p->used, -1);
            place_figure_add(&p->ousted, 1);
            room = TCP_ROOM_MADE;
        }
    }
    pthread_mutex_unlock(&p->lock);
    return room;
}

bool tcp_places_busy(const struct tcp_places *p) {
    return __atomic_load_n(&p->n_leaving, __ATOMIC_RELAXED) >= LEAVING_MAX;
}

void tcp_places_take(struct tcp_places *p, struct tcp_conn *c, unsigned thread, uint64_t peer) {
    c->place.thread = thread;
    c->place.peer = peer;
    pthread_mutex_lock(&p->lock);
    c->place.state = TCP_PLACE_NEW;
    TAILQ_INSERT_TAIL(&p->new_ones, c, place.link);
    place_figure_add(&p->n_new, 1);
    place_figure_add(&p->used, 1);
    pthread_mutex_unlock(&p->lock);
}

void tcp_places_keep(struct tcp_places *p, struct tcp_conn *c) {
    c->place.kept = true;
    pthread_mutex_lock(&p->lock);
    if (c->place.state == TCP_PLACE_NEW) { /* else it is too late: its place is another's */
        TAILQ_REMOVE(&p->new_ones, c, place.link);
        c->place.state = TCP_PLACE_KEPT;
        c->place.counted = program_add(&p->programs, c->program, 1);
        place_figure_add(&p->n_new, -1);
    }
    pthread_mutex_unlock(&p->lock);
}

void tcp_places_give(struct tcp_places *p, struct tcp_conn *c) {
    pthread_mutex_lock(&p->lock);
    if (c->place.state == TCP_PLACE_LEAVING) {
        TAILQ_REMOVE(&p->leaving, c, place.link);
        __atomic_store_n(&p->n_leaving, p->n_leaving - 1, __ATOMIC_RELAXED);
    } else {
        if (c->place.state == TCP_PLACE_NEW) {
            TAILQ_REMOVE(&p->new_ones, c, place.link);
            place_figure_add(&p->n_new, -1);
        } else {
            program_drop(&p->programs, c->place.counted);
        }
        place_figure_add(&p->used, -1);
    }
    pthread_mutex_unlock(&p->lock);
}

struct tcp_conn *tcp_places_leaving(struct tcp_places *p, unsigned thread) {
    struct tcp_conn *c;
    if (__atomic_load_n(&p->n_leaving, __ATOMIC_RELAXED) == 0) return NULL;
    pthread_mutex_lock(&p->lock);
    TAILQ_FOREACH(c, &p->leaving, place.link) {
        /* One that is in the mailbox yet is taken out of there first; its thread was woken for
         * it. */
        if (c->place.thread == thread && c->place.arrived) break;
    }
    pthread_mutex_unlock(&p->lock);
    return c;
}

void tcp_places_programs(struct tcp_places *p, struct program_counts *sum) {
    pthread_mutex_lock(&p->lock);
    program_add_all(sum, &p->programs);
    pthread_mutex_unlock(&p->lock);
}
