/* What fn frees in its own callback stays until that is over. */
#include "net/services.h"

#include <stdlib.h>
#include "base/assert.h"
#include "base/buf.h"

static struct net_loop *modules_loop;

struct tarn_watch {
    struct net_watch net;
    void (*fn)(void *arg, unsigned events);
    void *arg;
    bool inside, gone;
};
static_assert((int)TARN_WATCH_READ == (int)NET_READ && (int)TARN_WATCH_WRITE == (int)NET_WRITE,
              "events");

static void services_watch_fired(void *arg, unsigned events) {
    struct tarn_watch *w = arg;
    w->inside = true;
    w->fn(w->arg, events);
    w->inside = false;
    if (w->gone) free(w);
}

static tarn_status services_watch_create(int fd, void (*fn)(void *arg, unsigned events), void *arg,
                                         struct tarn_watch **watch_p) {
    if (fd < 0 || fn == NULL) return TARN_EINVAL;
    struct tarn_watch *w = xcalloc(1, sizeof(*w));
    w->fn = fn;
    w->arg = arg;
    net_watch_init(&w->net, modules_loop, fd, services_watch_fired, w);
    *watch_p = w;
    return TARN_OK;
}

static tarn_status services_watch_set(struct tarn_watch *w, unsigned events) {
    return net_watch_set(&w->net, events & (NET_READ | NET_WRITE));
}

static void services_watch_destroy(struct tarn_watch **watch_p) {
    struct tarn_watch *w = *watch_p;
    *watch_p = NULL;
    if (w == NULL) return;
    (void)net_watch_set(&w->net, 0);
    if (w->inside)
        w->gone = true;
    else
        free(w);
}

struct tarn_timer {
    struct net_timer net;
    void (*fn)(void *arg);
    void *arg;
    bool inside, gone;
};

static void services_timer_fired(void *arg) {
    struct tarn_timer *t = arg;
    t->inside = true;
    t->fn(t->arg);
    t->inside = false;
    if (t->gone) free(t);
}

static struct tarn_timer *services_timer_create(void (*fn)(void *arg), void *arg) {
    struct tarn_timer *t = xcalloc(1, sizeof(*t));
    t->fn = fn;
    t->arg = arg;
    net_timer_init(&t->net, modules_loop, services_timer_fired, t);
    return t;
}

static void services_timer_start(struct tarn_timer *t, uint64_t ms) {
    net_timer_start(&t->net, ms);
}

static void services_timer_destroy(struct tarn_timer **timer_p) {
    struct tarn_timer *t = *timer_p;
    *timer_p = NULL;
    if (t == NULL) return;
    net_timer_stop(&t->net);
    if (t->inside)
        t->gone = true;
    else
        free(t);
}

static tarn_status services_listen(const char *address, uint16_t port, int *fd_p,
                                   const char **why_p) {
    return net_listen_tcp(address, port, 128, fd_p, why_p);
}

void net_services_fill(struct tarn_services *services, struct net_loop *loop) {
    modules_loop = loop;
    services->watch_create = services_watch_create;
    services->watch_set = services_watch_set;
    services->watch_destroy = services_watch_destroy;
    services->timer_create = services_timer_create;
    services->timer_start = services_timer_start;
    services->timer_destroy = services_timer_destroy;
    services->listen = services_listen;
}
