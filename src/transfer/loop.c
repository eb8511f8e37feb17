/* The control thread of an end: answers peers, receives their answers, polls the host, and looks at
 * the clock. A turn never waits; poll does, for a socket, for a time, or for another thread that
 * has something to send. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "client/client.h"
#include "client/ctl.h"
#include "net/net.h"
#include "transfer/transfer.h"

#define TURN_MS     1000u /* at least a turn in so long */
#define REST_MS     5000u /* between looks at connections that rest */
#define READ_BYTES  (64u << 10)
#define READS_MAX   16 /* of one connection in a turn */
#define ACCEPTS_MAX 64

/* The end whose control thread this is: it looks at everything before it sleeps. */
static _Thread_local const struct tarn_transfer *own_end;

void transfer_wake(struct tarn_transfer *t) {
    if (own_end == t) return;
    eventfd_write(t->wake_fd, 1); /* full means awake already */
}

void transfer_timer_set(struct tarn_transfer *t, struct transfer_timer *timer, uint64_t due_ms,
                        void (*fire)(struct transfer_timer *timer)) {
    timer->fire = fire;
    wheel_set(t->wheel, &timer->node, due_ms);
    transfer_wake(t);
}

void transfer_timer_stop(struct tarn_transfer *t, struct transfer_timer *timer) {
    if (wheel_pending(&timer->node)) wheel_remove(t->wheel, &timer->node);
}

/* --- connections from peers --- */

static void handshake_over(struct transfer_timer *timer) {
    struct transfer_conn *c = CONTAINER_OF(timer, struct transfer_conn, handshake);
    c->end->stats.refused++;
    c->doomed = true;
}

static void conns_accept(struct tarn_transfer *t, int listen_fd) {
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        struct sockaddr_storage from;
        socklen_t len = sizeof(from);
        int fd = accept4(listen_fd, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
            if (log_is_news(&t->accept_trouble_ms, now_ms()))
                log_warning("A transfer end cannot accept its peers: %s", strerror(errno));
            t->accept_after_ms = now_ms() + TURN_MS / 2;
            return;
        }
        if (t->n_conns >= t->options.max_peers) {
            static const char why[] = "-ERR max number of clients reached\r\n";
            (void)!send(fd, why, sizeof(why) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
            close(fd);
            t->stats.refused++;
            continue;
        }
        char address[80];
        net_tune(fd, 30);
        net_format(&from, NULL, address, sizeof(address));
        struct transfer_conn *c = transfer_conn_create(t, fd, address);
        transfer_timer_set(t, &c->handshake, now_ms() + TRANSFER_HANDSHAKE_MS, handshake_over);
    }
}

static void conn_read(struct transfer_conn *c) {
    char bytes[READ_BYTES];
    for (int i = 0; i < READS_MAX && !c->doomed; i++) {
        ssize_t n = recv(c->fd, bytes, sizeof(bytes), 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0 || !transfer_serve_bytes(c, bytes, (size_t)n)) c->doomed = true;
    }
}

static void conn_write(struct transfer_conn *c) {
    size_t done = 0;
    while (done < c->out.len) {
        ssize_t n = send(c->fd, c->out.data + done, c->out.len - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN) c->doomed = true;
        if (n < 0) break;
        done += (size_t)n;
    }
    buf_consume(&c->out, done);
}

static void conns_turn(struct tarn_transfer *t, const struct pollfd *set) {
    struct transfer_conn *c, *next;
    LIST_FOREACH(c, &t->conns, link) {
        if (c->polled != 0 && (set[c->polled].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
            conn_read(c);
    }
    LIST_FOREACH_SAFE(c, &t->conns, link, next) {
        if (c->out.len > 0) conn_write(c); /* also what a connection is told that is refused */
        if (c->doomed) transfer_conn_destroy(&c);
    }
}

/* --- a turn --- */

static void peers_turn(struct tarn_transfer *t, const struct pollfd *set) {
    struct tarn_transfer_peer *p, *next;
    LIST_FOREACH_SAFE(p, &t->peers, link, next) {
        if (p->broken == TARN_OK && p->polled != 0 && set[p->polled].revents != 0)
            transfer_peer_turn(p);
        if (!p->closing) continue;
        transfer_peer_break(p, TARN_ECLOSED, "it was disconnected");
        LIST_REMOVE(p, link);
        t->n_peers--;
        p->closed = true; /* its closer may free it from here on */
        pthread_cond_broadcast(&t->changed);
    }
}

static void timers_turn(struct tarn_transfer *t) {
    unsigned budget = 100000;
    bool more = false;
    struct wheel_node *node;
    uint64_t now = now_ms();
    while ((node = wheel_pop(t->wheel, now, &budget, &more)) != NULL) {
        struct transfer_timer *timer = CONTAINER_OF(node, struct transfer_timer, node);
        timer->fire(timer);
    }
}

static void transfer_turn(struct tarn_transfer *t, const struct pollfd *set) {
    eventfd_t ignored;
    eventfd_read(t->wake_fd, &ignored);
    for (size_t i = 0; i < t->n_listen; i++)
        if ((set[2 + i].revents & POLLIN) != 0) conns_accept(t, t->listen_fd[i]);
    peers_turn(t, set);
    timers_turn(t);
    conns_turn(t, set);
    host_poll(t->host);
    if (now_ms() - t->rested_ms >= REST_MS) {
        transfer_lanes_rest(t);
        t->rested_ms = now_ms();
    }
    if (t->n_closing > 0) pthread_cond_broadcast(&t->changed);
}

/* What to wait for. Entry 0 wakes us, 1 is the host, then the listeners; connections know their
 * own. */
static size_t pollset_fill(struct tarn_transfer *t, struct pollfd **set_p, size_t *cap_p) {
    size_t need = 2 + t->n_listen + t->n_conns + t->n_peers, n = 0;
    if (need > *cap_p) {
        *cap_p = need + 64;
        *set_p = xrealloc(*set_p, *cap_p * sizeof(**set_p));
    }
    struct pollfd *set = *set_p;
    set[n++] = (struct pollfd){.fd = t->wake_fd, .events = POLLIN};
    set[n++] = (struct pollfd){.fd = host_event_fd(t->host), .events = POLLIN};
    short accepts = now_ms() >= t->accept_after_ms ? POLLIN : 0; /* a turn comes every second */
    for (size_t i = 0; i < t->n_listen; i++)
        set[n++] = (struct pollfd){.fd = t->listen_fd[i], .events = accepts};
    struct transfer_conn *c;
    LIST_FOREACH(c, &t->conns, link) {
        c->polled = n;
        set[n++] = (struct pollfd){.fd = c->fd,
                                   .events = (short)(POLLIN | (c->out.len > 0 ? POLLOUT : 0))};
    }
    struct tarn_transfer_peer *p;
    LIST_FOREACH(p, &t->peers, link) {
        p->polled = 0;
        if (p->broken != TARN_OK) continue;
        p->polled = n;
        set[n++] =
            (struct pollfd){.fd = p->ctl.fd,
                            .events = (short)(POLLIN | (ctl_wants_to_send(&p->ctl) ? POLLOUT : 0))};
    }
    return n;
}

void *transfer_control(void *arg) {
    struct tarn_transfer *t = arg;
    struct pollfd *set = NULL;
    size_t cap = 0;
    own_end = t;
    pthread_mutex_lock(&t->mutex);
    while (!t->stopping) {
        size_t n = pollset_fill(t, &set, &cap);
        int ms = (int)wheel_next_ms(t->wheel, now_ms(), TURN_MS);
        pthread_mutex_unlock(&t->mutex);
        if (poll(set, n, ms) < 0) {
            for (size_t i = 0; i < n; i++) set[i].revents = 0;
            if (errno != EINTR) {
                log_warning("poll of a transfer end: %s", strerror(errno));
                usleep(10000); /* rather slow than hot */
            }
        }
        pthread_mutex_lock(&t->mutex);
        transfer_turn(t, set);
    }
    pthread_mutex_unlock(&t->mutex);
    free(set);
    return NULL;
}
