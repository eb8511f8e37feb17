/* libevent runs one turn at a time (EVLOOP_ONCE), because the server has work between turns: jobs,
 * closed clients, the books' background. */
#include "net/net.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/buf.h"
#include "base/log.h"
#include "base/spin.h"

struct net_loop {
    struct event_base *base;
    struct net_hooks hooks;
    struct event sleep; /* ends the sleep in time */
    uint64_t sleep_due; /* of the pending one, in ms of libevent's clock; 0: none */
    bool stale, stopping;
    struct spin spin; /* before it sleeps */
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

/* Looks for a moment before it sleeps, where that has paid. */
static void loop_wait(struct net_loop *loop, uint64_t ms) {
    bool looks = spin_begin(&loop->spin);
    for (; looks && loop->stale; looks = loop->stale && spin_again(&loop->spin)) loop_look(loop);
    if (loop->stale) {
        sleep_at_most(loop, ms);
        event_base_loop(loop->base, EVLOOP_ONCE);
    }
}

void net_loop_run(struct net_loop *loop) {
    uint64_t ms = 0;
    while (!loop->stopping) {
        loop->stale = true;
        if (ms > 0)
            loop_wait(loop, ms);
        else
            loop_look(loop);
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
}

tarn_status net_watch_set(struct net_watch *w, unsigned events) {
    if (events == w->events) return TARN_OK;
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
