/* libevent runs one turn at a time (EVLOOP_ONCE), because the server has work between turns: jobs,
 * closed clients, the books' background. */
#include "net/net.h"

#include <errno.h>
#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/queue.h"
#include "base/ring.h"
#include "base/spin.h"

/* Between two looks at descriptors, while rings have something: that costs a system call. */
#define RINGS_LOOKS 8u
#define RINGS_NS    100000u

struct net_ring {
    struct ring ring;
    struct net_watch *watch;
    bool ended; /* the socket has */
    bool awake; /* on the loop's list */
    TAILQ_ENTRY(net_ring) awake_link;
};
TAILQ_HEAD(ring_list, net_ring);

struct net_loop {
    struct event_base *base;
    struct net_hooks hooks;
    struct event sleep; /* ends the sleep in time */
    uint64_t sleep_due; /* of the pending one, in ms of libevent's clock; 0: none */
    bool stale, stopping;
    struct spin spin; /* before it sleeps */
    struct ring_list awake;
    struct net_ring *next_ring; /* of those that it is looking at */
    unsigned ring_looks;        /* since it looked at descriptors between them, */
    uint64_t looked_ns;         /* which was then */
    char backend[64];
};

static_assert(sizeof(struct event) <= sizeof(((struct net_watch *)0)->event),
              "room for libevent's event");

static struct event *event_of(char *place) {
    return (struct event *)(void *)place;
}

static inline void loop_woke(struct net_loop *loop) {
    if (!loop->stale) return;
    loop->stale = false;
    spin_end(&loop->spin);
    loop->hooks.woke(loop->hooks.arg);
}

static void on_sleep_over(evutil_socket_t fd, short what, void *arg) {
    struct net_loop *loop = arg;
    loop->sleep_due = 0;
    loop_woke(loop);
}

static void libevent_logs(int severity, const char *message) {
    if (severity >= EVENT_LOG_WARN) log_warning("libevent: %s", message);
}

struct net_loop *net_loop_create(const struct net_hooks *hooks) {
    event_set_log_callback(libevent_logs);
    struct event_config *config = event_config_new();
    if (config == NULL) return NULL;
    /* Not EPOLL_USE_CHANGELIST: what it does about a descriptor comes after that was closed, when
     * its number may be a data thread's. */
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_IGNORE_ENV);
    event_config_require_features(config, EV_FEATURE_O1);
    struct event_base *base = event_base_new_with_config(config);
    event_config_free(config);
    if (base == NULL) return NULL;
    struct net_loop *loop = xcalloc(1, sizeof(*loop));
    loop->base = base;
    loop->hooks = *hooks;
    TAILQ_INIT(&loop->awake);
    event_assign(&loop->sleep, base, -1, 0, on_sleep_over, loop);
    snprintf(loop->backend, sizeof(loop->backend), "libevent %s, %s", event_get_version(),
             event_base_get_method(base));
    return loop;
}

void net_loop_destroy(struct net_loop **loop_p) {
    struct net_loop *loop = *loop_p;
    if (loop == NULL) return;
    event_del(&loop->sleep);
    event_base_free(loop->base);
    free(loop);
    *loop_p = NULL;
}

const char *net_loop_backend(const struct net_loop *loop) {
    return loop->backend;
}

/* An earlier end of sleep than wanted costs one empty turn, so a pending timer is left alone unless
 * it comes too late. */
static void sleep_at_most(struct net_loop *loop, uint64_t ms) {
    struct timeval now;
    event_base_gettimeofday_cached(loop->base, &now);
    uint64_t due = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_usec / 1000 + ms;
    if (loop->sleep_due != 0 && loop->sleep_due <= due && due - loop->sleep_due < 2000) return;
    struct timeval tv = {(time_t)(ms / 1000), (suseconds_t)(ms % 1000 * 1000)};
    event_add(&loop->sleep, &tv);
    loop->sleep_due = due;
}

static void loop_look(struct net_loop *loop) {
    event_base_loop(loop->base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
}

/* --- rings --- */

static unsigned ring_events(const struct net_ring *r) {
    return (ring_possible(&r->ring) | (r->ended ? NET_READ | NET_WRITE : 0u)) & r->watch->events;
}

static bool ring_run(struct net_ring *r) {
    struct net_watch *w = r->watch;
    unsigned events = ring_events(r);
    if (events == 0) return false;
    loop_woke(w->loop);
    w->fn(w->arg, events);
    return true;
}

static void rings_ahead(struct net_loop *loop) {
    struct span came[NET_AHEAD];
    size_t n = 0;
    const struct net_ring *r;
    TAILQ_FOREACH(r, &loop->awake, awake_link) {
        if (!(r->watch->events & NET_READ)) continue;
        if ((came[n] = ring_peek(&r->ring)).len > 0 && ++n == NET_AHEAD) break;
    }
    if (n > 1) loop->hooks.ahead(loop->hooks.arg, came, n);
}

/* What is called may put others to rest, and itself. */
static bool rings_run(struct net_loop *loop) {
    bool any = false;
    if (loop->hooks.ahead != NULL) rings_ahead(loop);
    for (struct net_ring *r = TAILQ_FIRST(&loop->awake); r != NULL; r = loop->next_ring) {
        loop->next_ring = TAILQ_NEXT(r, awake_link);
        any |= ring_run(r);
    }
    return any;
}

static void ring_awaken(struct net_ring *r) {
    if (r->awake) return;
    r->awake = true;
    ring_wake(&r->ring);
    TAILQ_INSERT_TAIL(&r->watch->loop->awake, r, awake_link);
}

/* Not looked at any more. */
static void ring_rest(struct net_ring *r) {
    struct net_loop *loop = r->watch->loop;
    if (!r->awake) return;
    r->awake = false;
    if (loop->next_ring == r) loop->next_ring = TAILQ_NEXT(r, awake_link);
    TAILQ_REMOVE(&loop->awake, r, awake_link);
}

/* true: all of them; else there is something to do. */
static bool rings_sleep(struct net_loop *loop) {
    bool all = true;
    struct net_ring *r, *next;
    TAILQ_FOREACH_SAFE(r, &loop->awake, awake_link, next) {
        if (ring_sleep(&r->ring, r->watch->events) != 0 || ring_events(r) != 0)
            all = false;
        else
            ring_rest(r);
    }
    return all;
}

/* The peer calls, or has gone. */
static void ring_called(evutil_socket_t fd, short what, void *arg) {
    struct net_watch *w = arg;
    char calls[256];
    ssize_t n = recv(w->fd, calls, sizeof(calls), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        w->ring->ended = true;
        event_del(event_of(w->event));
    }
    loop_woke(w->loop);
    ring_awaken(w->ring);
    (void)ring_run(w->ring);
}

/* Looks for a moment before it sleeps, where that has paid. */
static void loop_wait(struct net_loop *loop, uint64_t ms) {
    bool looks = spin_begin(&loop->spin);
    unsigned n = 0;
    for (; looks && loop->stale; looks = loop->stale && spin_again(&loop->spin))
        if (!rings_run(loop) && (TAILQ_EMPTY(&loop->awake) || n++ % RINGS_LOOKS == 0))
            loop_look(loop);
    if (loop->stale && rings_sleep(loop)) {
        sleep_at_most(loop, ms);
        event_base_loop(loop->base, EVLOOP_ONCE);
    }
}

/* Rings had something: is it time to look at descriptors? */
static bool rings_are_long(struct net_loop *loop) {
    uint64_t now_ns = clock_mono_ns();
    if (++loop->ring_looks < RINGS_LOOKS && now_ns - loop->looked_ns < RINGS_NS) return false;
    loop->ring_looks = 0;
    loop->looked_ns = now_ns;
    return true;
}

void net_loop_run(struct net_loop *loop) {
    uint64_t ms = 0;
    while (!loop->stopping) {
        loop->stale = true;
        bool ran = rings_run(loop);
        if (ran ? rings_are_long(loop) : ms == 0)
            loop_look(loop);
        else if (!ran)
            loop_wait(loop, ms);
        loop_woke(loop);
        ms = loop->hooks.turn(loop->hooks.arg);
    }
}

struct spin *net_loop_spin(struct net_loop *loop) {
    return &loop->spin;
}

void net_loop_stop(struct net_loop *loop) {
    loop->stopping = true;
}

/* --- watches --- */

static void watch_fired(evutil_socket_t fd, short what, void *arg) {
    struct net_watch *w = arg;
    loop_woke(w->loop);
    w->fn(w->arg, (what & EV_READ ? NET_READ : 0u) | (what & EV_WRITE ? NET_WRITE : 0u));
}

void net_watch_init(struct net_watch *w, struct net_loop *loop, int fd, net_watch_fn fn,
                    void *arg) {
    w->loop = loop;
    w->fn = fn;
    w->arg = arg;
    w->fd = fd;
    w->events = 0;
    w->ring = NULL;
}

/* Its descriptor is watched for calls while anything is awaited. */
static tarn_status watch_set_ring(struct net_watch *w, unsigned events) {
    struct net_ring *r = w->ring;
    struct event *e = event_of(w->event);
    bool listens = w->events != 0 && !r->ended;
    w->events = events;
    if (events == 0) {
        if (listens) event_del(e);
        ring_rest(r);
        return TARN_OK;
    }
    if (!listens && !r->ended && event_add(e, NULL) != 0) {
        w->events = 0;
        return TARN_EIO;
    }
    ring_awaken(r); /* it may be possible already */
    return TARN_OK;
}

tarn_status net_watch_set(struct net_watch *w, unsigned events) {
    if (events == w->events) return TARN_OK;
    if (w->ring != NULL) return watch_set_ring(w, events);
    struct event *e = event_of(w->event);
    if (w->events != 0) event_del(e);
    w->events = 0;
    if (events == 0) return TARN_OK;
    short what = (short)(EV_PERSIST | (events & NET_READ ? EV_READ : 0) |
                         (events & NET_WRITE ? EV_WRITE : 0));
    event_assign(e, w->loop->base, w->fd, what, watch_fired, w);
    if (event_add(e, NULL) != 0) return TARN_EIO;
    w->events = events;
    return TARN_OK;
}

tarn_status net_watch_ring(struct net_watch *w, struct net_ring *ring) {
    unsigned events = w->events;
    (void)net_watch_set(w, 0);
    event_assign(event_of(w->event), w->loop->base, w->fd, EV_PERSIST | EV_READ, ring_called, w);
    w->ring = ring;
    ring->watch = w;
    return net_watch_set(w, events);
}

struct net_ring *net_ring_create(int *fd_p) {
    struct net_ring *r = xcalloc(1, sizeof(*r));
    if (ring_create(&r->ring, fd_p)) return r;
    int err = errno;
    free(r);
    errno = err;
    return NULL;
}

void net_ring_destroy(struct net_ring **ring_p) {
    struct net_ring *r = *ring_p;
    if (r == NULL) return;
    TARN_ASSERT(!r->awake);
    ring_close(&r->ring);
    free(r);
    *ring_p = NULL;
}

size_t net_ring_memory(void) {
    return sizeof(struct net_ring) + ring_size();
}

static void ring_call(struct net_ring *r, unsigned did) {
    if (ring_calls(&r->ring, did)) /* where this does not fit the peer has calls unread */
        (void)send(r->watch->fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t net_ring_read(struct net_ring *r, const struct iovec *iov, size_t n) {
    ssize_t got = ring_read(&r->ring, iov, n);
    if (got > 0) ring_call(r, RING_READ);
    return got < 0 && errno == EAGAIN && r->ended ? 0 : got;
}

ssize_t net_ring_write(struct net_ring *r, const struct iovec *iov, size_t n) {
    ssize_t put = ring_write(&r->ring, iov, n);
    if (put > 0) ring_call(r, RING_WRITE);
    if (put < 0 && errno == EAGAIN && r->ended) errno = EPIPE; /* nobody calls when it has room */
    return put;
}

bool net_ring_readable(const struct net_ring *r) {
    return r->ended || ring_possible(&r->ring) & RING_READ;
}

/* --- timers --- */

static void timer_fired(evutil_socket_t fd, short what, void *arg) {
    struct net_timer *t = arg;
    t->pending = false;
    loop_woke(t->loop);
    t->fn(t->arg);
}

void net_timer_init(struct net_timer *t, struct net_loop *loop, void (*fn)(void *arg), void *arg) {
    t->loop = loop;
    t->fn = fn;
    t->arg = arg;
    t->pending = false;
    event_assign(event_of(t->event), loop->base, -1, 0, timer_fired, t);
}

void net_timer_start(struct net_timer *t, uint64_t ms) {
    struct timeval tv = {(time_t)(ms / 1000), (suseconds_t)(ms % 1000 * 1000)};
    event_add(event_of(t->event), &tv);
    t->pending = true;
}

void net_timer_stop(struct net_timer *t) {
    if (t->pending) event_del(event_of(t->event));
    t->pending = false;
}
