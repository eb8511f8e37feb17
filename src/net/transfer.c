/* A thread has an epoll set of its own and deals with its transfers in turns, so that a peer that
 * is slow, or very fast, does not keep the others waiting. */
#include "net/transfer.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/buf.h"
#include "base/thread.h"
#include "net/net.h"

#define SEND_PER_CALL    (1024u * 1024)
#define RECEIVE_PER_CALL (192u * 1024) /* still in the second cache when received() looks at it */
#define CALLS_PER_TURN   4u            /* then the next one */
#define EVENTS_MAX       64
#define COLLECT_PER_TURN 64u

TAILQ_HEAD(transfer_list, net_transfer);

struct transfer_thread {
    struct net_transfers *owner;
    pthread_t thread;
    int epoll_fd, wake_fd;
    size_t count; /* of what it has; the loop's */
    pthread_mutex_t lock;
    struct transfer_list inbox;         /* under lock */
    bool stop;                          /* under lock */
    struct transfer_list ready, asleep; /* may be able to go on; wait for their sockets */
};

struct net_transfers {
    struct net_watch watch; /* of finished_fd */
    int finished_fd;
    pthread_mutex_t lock;
    pthread_cond_t more;           /* there is more in */
    struct transfer_list finished; /* under lock */
    unsigned n_threads, started;
    struct transfer_thread threads[];
};

/* --- in the thread --- */

enum transfer_step { STEP_MORE, STEP_BLOCKED, STEP_OVER };

static enum transfer_step transfer_step(struct net_transfer *t) {
    for (unsigned calls = 0; calls < CALLS_PER_TURN; calls++) {
        struct iovec iov[NET_TRANSFER_PIECES];
        struct msghdr msg = {.msg_iov = iov};
        msg.msg_iovlen = iov_gather(t->at, t->receive ? RECEIVE_PER_CALL : SEND_PER_CALL, iov,
                                    NET_TRANSFER_PIECES);
        ssize_t n = t->receive ? recvmsg(t->fd, &msg, MSG_DONTWAIT)
                               : sendmsg(t->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return STEP_BLOCKED;
        if (n <= 0) {
            t->ended = n == 0;
            t->error = n < 0 ? errno : 0;
            return STEP_OVER;
        }
        iov_advance(&t->at, (size_t)n);
        t->left -= (size_t)n;
        if (t->received != NULL) t->received(t, (size_t)n);
        atomic_fetch_add_explicit(&t->moved, (size_t)n, memory_order_release);
        if (t->left == 0) return STEP_OVER;
    }
    return STEP_MORE;
}

static void transfer_finish(struct transfer_thread *th, struct net_transfer *t) {
    struct net_transfers *o = th->owner;
    if (t->watched) (void)epoll_ctl(th->epoll_fd, EPOLL_CTL_DEL, t->fd, NULL);
    pthread_mutex_lock(&o->lock);
    bool first = TAILQ_EMPTY(&o->finished);
    t->finished = true;
    TAILQ_INSERT_TAIL(&o->finished, t, link);
    pthread_cond_signal(&o->more);
    pthread_mutex_unlock(&o->lock);
    if (first) eventfd_write(o->finished_fd, 1);
}

static void fall_asleep(struct transfer_thread *th, struct net_transfer *t) {
    struct epoll_event ev = {.events = (t->receive ? (uint32_t)EPOLLIN : (uint32_t)EPOLLOUT) |
                                       EPOLLONESHOT,
                             .data.ptr = t};
    if (epoll_ctl(th->epoll_fd, t->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, t->fd, &ev) != 0) {
        t->error = errno;
        transfer_finish(th, t);
        return;
    }
    t->watched = true;
    TAILQ_INSERT_TAIL(&th->asleep, t, link);
}

/* Each that may go on does so once. */
static void go_round(struct transfer_thread *th) {
    struct transfer_list round = TAILQ_HEAD_INITIALIZER(round);
    struct net_transfer *t;
    TAILQ_CONCAT(&round, &th->ready, link);
    while ((t = TAILQ_FIRST(&round)) != NULL) {
        TAILQ_REMOVE(&round, t, link);
        switch (transfer_step(t)) {
        case STEP_MORE: TAILQ_INSERT_TAIL(&th->ready, t, link); break;
        case STEP_BLOCKED: fall_asleep(th, t); break;
        case STEP_OVER: transfer_finish(th, t); break;
        }
    }
}

static void transfers_cancel(struct transfer_thread *th, struct transfer_list *list) {
    struct net_transfer *t;
    while ((t = TAILQ_FIRST(list)) != NULL) {
        TAILQ_REMOVE(list, t, link);
        t->error = ECANCELED;
        transfer_finish(th, t);
    }
}

static void *thread_main(void *arg) {
    struct transfer_thread *th = arg;
    for (bool stop = false; !stop;) {
        struct epoll_event events[EVENTS_MAX];
        eventfd_t ignored;
        int n = epoll_wait(th->epoll_fd, events, EVENTS_MAX, TAILQ_EMPTY(&th->ready) ? -1 : 0);
        for (int i = 0; i < n; i++) {
            struct net_transfer *t = events[i].data.ptr;
            if (t == NULL) { /* wake_fd */
                eventfd_read(th->wake_fd, &ignored);
                pthread_mutex_lock(&th->lock);
                TAILQ_CONCAT(&th->ready, &th->inbox, link);
                stop = th->stop;
                pthread_mutex_unlock(&th->lock);
            } else {
                TAILQ_REMOVE(&th->asleep, t, link);
                TAILQ_INSERT_TAIL(&th->ready, t, link);
            }
        }
        if (!stop) go_round(th);
    }
    transfers_cancel(th, &th->ready);
    transfers_cancel(th, &th->asleep);
    return NULL;
}

/* --- the loop's side --- */

static void hand_back(struct net_transfers *o, struct net_transfer *t) {
    o->threads[t->thread].count--;
    t->done(t);
}

/* One by one: what done() does may wait for another. */
static void transfers_collect(struct net_transfers *o) {
    for (unsigned i = 0; i < COLLECT_PER_TURN; i++) {
        pthread_mutex_lock(&o->lock);
        struct net_transfer *t = TAILQ_FIRST(&o->finished);
        if (t != NULL) TAILQ_REMOVE(&o->finished, t, link);
        pthread_mutex_unlock(&o->lock);
        if (t == NULL) return;
        hand_back(o, t);
    }
    eventfd_write(o->finished_fd, 1);
}

void net_transfer_wait(struct net_transfers *o, struct net_transfer *t) {
    pthread_mutex_lock(&o->lock);
    while (!t->finished) pthread_cond_wait(&o->more, &o->lock);
    TAILQ_REMOVE(&o->finished, t, link);
    pthread_mutex_unlock(&o->lock);
    hand_back(o, t);
}

static void on_finished(void *arg, unsigned events) {
    struct net_transfers *o = arg;
    (void)events;
    eventfd_t ignored;
    eventfd_read(o->finished_fd, &ignored);
    transfers_collect(o);
}

static bool io_thread_start(struct net_transfers *o, struct transfer_thread *th) {
    th->owner = o;
    TAILQ_INIT(&th->inbox);
    TAILQ_INIT(&th->ready);
    TAILQ_INIT(&th->asleep);
    th->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    th->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = NULL};
    if (th->epoll_fd >= 0 && th->wake_fd >= 0 &&
        epoll_ctl(th->epoll_fd, EPOLL_CTL_ADD, th->wake_fd, &ev) == 0) {
        pthread_mutex_init(&th->lock, NULL);
        if (thread_start(&th->thread, "tarn-io", thread_main, th) == 0) return true;
        pthread_mutex_destroy(&th->lock);
    }
    if (th->wake_fd >= 0) close(th->wake_fd);
    if (th->epoll_fd >= 0) close(th->epoll_fd);
    return false;
}

struct net_transfers *net_transfers_create(struct net_loop *loop, unsigned threads) {
    struct net_transfers *o = xcalloc(1, sizeof(*o) + threads * sizeof(o->threads[0]));
    TAILQ_INIT(&o->finished);
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->more, NULL);
    o->n_threads = threads;
    o->finished_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    net_watch_init(&o->watch, loop, o->finished_fd, on_finished, o);
    bool ok = o->finished_fd >= 0 && net_watch_set(&o->watch, NET_READ) == TARN_OK;
    while (ok && o->started < threads && (ok = io_thread_start(o, &o->threads[o->started])))
        o->started++;
    if (!ok) net_transfers_destroy(&o);
    return o;
}

void net_transfers_destroy(struct net_transfers **transfers_p) {
    struct net_transfers *o = *transfers_p;
    if (o == NULL) return;
    for (unsigned i = 0; i < o->started; i++) {
        struct transfer_thread *th = &o->threads[i];
        pthread_mutex_lock(&th->lock);
        th->stop = true;
        pthread_mutex_unlock(&th->lock);
        eventfd_write(th->wake_fd, 1);
    }
    for (unsigned i = 0; i < o->started; i++) {
        struct transfer_thread *th = &o->threads[i];
        pthread_join(th->thread, NULL);
        pthread_mutex_destroy(&th->lock);
        close(th->wake_fd);
        close(th->epoll_fd);
    }
    while (!TAILQ_EMPTY(&o->finished)) transfers_collect(o);
    net_watch_set(&o->watch, 0);
    if (o->finished_fd >= 0) close(o->finished_fd);
    pthread_cond_destroy(&o->more);
    pthread_mutex_destroy(&o->lock);
    free(o);
    *transfers_p = NULL;
}

void net_transfer_start(struct net_transfers *o, struct net_transfer *t) {
    TARN_ASSERT(t->left > 0 && t->pieces <= NET_TRANSFER_PIECES);
    unsigned best = 0;
    for (unsigned i = 1; i < o->n_threads; i++)
        if (o->threads[i].count < o->threads[best].count) best = i;
    struct transfer_thread *th = &o->threads[best];
    t->at = iov_cursor(t->piece, t->pieces);
    t->error = 0;
    t->ended = t->watched = t->finished = false;
    t->thread = best;
    atomic_init(&t->moved, 0);
    th->count++;
    pthread_mutex_lock(&th->lock);
    bool first = TAILQ_EMPTY(&th->inbox);
    TAILQ_INSERT_TAIL(&th->inbox, t, link);
    pthread_mutex_unlock(&th->lock);
    if (first) eventfd_write(th->wake_fd, 1);
}
