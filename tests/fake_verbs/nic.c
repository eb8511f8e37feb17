/* The device's own thread, one per process: it moves bytes between sockets and memory, and watches
 * the clock. It runs while there are queue pairs or ids, and no longer: whoever looks for open
 * descriptors afterwards finds none. */
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SCAN_NS UINT64_C(10000000)

/* --- what epoll's events stand for: they may be taken when what they are for is gone --- */

uint32_t fake_slot_take(int kind, void *ptr) {
    uint32_t i = 0;
    while (i < fake.slots && fake.slot[i].kind != FAKE_SLOT_FREE) i++;
    if (i == fake.slots) {
        uint32_t more = fake.slots == 0 ? 64 : fake.slots * 2;
        fake.slot = realloc(fake.slot, more * sizeof(*fake.slot));
        TARN_ASSERT(fake.slot != NULL);
        memset(fake.slot + fake.slots, 0, (more - fake.slots) * sizeof(*fake.slot));
        fake.slots = more;
    }
    fake.slot[i].kind = kind;
    fake.slot[i].ptr = ptr;
    fake.slot[i].generation++;
    return i;
}

void fake_slot_give(uint32_t slot) {
    fake.slot[slot].kind = FAKE_SLOT_FREE;
    fake.slot[slot].ptr = NULL;
}

void fake_watch(int fd, uint32_t slot, uint32_t *watched, uint32_t wanted) {
    if (*watched == wanted || fake.epoll_fd < 0) return;
    struct epoll_event e = {.events = wanted,
                            .data.u64 = (uint64_t)fake.slot[slot].generation << 32 | slot};
    int what = wanted == 0 ? EPOLL_CTL_DEL : *watched == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (epoll_ctl(fake.epoll_fd, what, fd, &e) != 0) fake_die("epoll_ctl");
    *watched = wanted;
}

/* --- the thread --- */

static void take_event(const struct epoll_event *e) {
    uint32_t at = (uint32_t)e->data.u64;
    if (e->data.u64 == UINT64_MAX) { /* kicked */
        uint64_t n;
        while (read(fake.kick_fd, &n, sizeof(n)) > 0) continue;
        fake.kicked = false;
        return;
    }
    if (at >= fake.slots || fake.slot[at].generation != (uint32_t)(e->data.u64 >> 32)) return;
    if (fake.slot[at].kind == FAKE_SLOT_LINK) fake_link_io(fake.slot[at].ptr, e->events);
    if (fake.slot[at].kind == FAKE_SLOT_LISTEN) fake_cm_accept(fake.slot[at].ptr);
}

static void flush_dirty(void) {
    struct fake_link *l, *last = TAILQ_LAST(&fake.dirty, fake_dirty);
    while ((l = TAILQ_FIRST(&fake.dirty)) != NULL) {
        TAILQ_REMOVE(&fake.dirty, l, dirty_link);
        l->dirty = false;
        fake_link_io(l, EPOLLOUT);
        if (l == last) break; /* those that came meanwhile have their turn */
    }
}

/* Until when to sleep, in ms. */
static int turn(void) {
    uint64_t now = fake_now();
    flush_dirty();
    fake_cq_ripen(now);
    if (now >= fake.scan_ns) {
        fake.scan_ns = now + SCAN_NS;
        fake_qp_timers(now);
        fake_cm_timers(now);
        fake_do_control();
    }
    if (!TAILQ_EMPTY(&fake.dirty)) return 0;
    uint64_t due = fake_cq_due();
    if (due <= now) return 0;
    return due - now < SCAN_NS ? 1 : (int)(SCAN_NS / 1000000);
}

/* Whoever waits for the lock gets it before this thread takes it again. */
static void give_way(void) {
    for (int i = 0; i < 100 && __atomic_load_n(&fake.waiters, __ATOMIC_RELAXED) > 0; i++)
        sched_yield();
}

static void *run(void *arg) {
    struct epoll_event events[64];
    (void)arg;
    pthread_mutex_lock(&fake.lock);
    while (!fake.stopping) {
        int wait_ms = turn();
        fake.sleeping = wait_ms != 0;
        pthread_mutex_unlock(&fake.lock);
        give_way();
        int n = epoll_wait(fake.epoll_fd, events, (int)ARRAY_LEN(events), wait_ms);
        pthread_mutex_lock(&fake.lock);
        fake.sleeping = false;
        for (int i = 0; i < n; i++) take_event(&events[i]);
    }
    pthread_mutex_unlock(&fake.lock);
    return NULL;
}

void fake_nic_kick(void) {
    if (!fake.running || !fake.sleeping || fake.kicked) return;
    uint64_t one = 1;
    fake.kicked = true;
    if (write(fake.kick_fd, &one, sizeof(one)) != sizeof(one)) fake_die("kick");
}

void fake_nic_start(void) {
    pthread_mutex_lock(&fake.start_lock);
    fake_lock();
    if (!fake.running) {
        fake.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        fake.kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        struct epoll_event e = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
        if (fake.epoll_fd < 0 || fake.kick_fd < 0 ||
            epoll_ctl(fake.epoll_fd, EPOLL_CTL_ADD, fake.kick_fd, &e) != 0)
            fake_die("no descriptors");
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        fake.stopping = fake.sleeping = fake.kicked = false;
        if (pthread_create(&fake.thread, NULL, run, NULL) != 0) fake_die("no thread");
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        fake.running = true;
    }
    fake.starting++;
    fake_unlock();
    pthread_mutex_unlock(&fake.start_lock);
}

static void stop(void) {
    fake.stopping = true;
    fake.sleeping = true; /* it may just be on its way to sleep */
    fake.kicked = false;
    fake_nic_kick();
    fake_unlock();
    pthread_join(fake.thread, NULL);
    fake_lock();
    fake.running = false;
    struct fake_link *l;
    while ((l = LIST_FIRST(&fake.links)) != NULL && l->id == NULL && l->qp == NULL)
        fake_link_leave(l); /* refused, and still to be read over there */
    close(fake.epoll_fd);
    close(fake.kick_fd);
    fake.epoll_fd = fake.kick_fd = -1;
}

/* Ends what a fake_nic_start began; the thread stays while there is something to do for it. */
void fake_nic_rest(void) {
    pthread_mutex_lock(&fake.start_lock);
    fake_lock();
    if (--fake.starting == 0 && fake.running) stop();
    fake_unlock();
    pthread_mutex_unlock(&fake.start_lock);
}

/* --- fork: the child has the objects, and none of the connections --- */

static void fork_before(void) {
    pthread_mutex_lock(&fake.start_lock);
    pthread_mutex_lock(&fake.lock);
}

static void fork_parent(void) {
    pthread_mutex_unlock(&fake.lock);
    pthread_mutex_unlock(&fake.start_lock);
}

/* The same number, another descriptor: the parent's events are the parent's. */
static void fd_renew(int fd) {
    int fresh = fake_new_fd();
    if (fresh < 0) return;
    if (dup3(fresh, fd, O_CLOEXEC) < 0) fake_die("dup3");
    close(fresh);
}

static void fork_child(void) {
    struct fake_channel *channel;
    struct fake_comp *comp;
    struct fake_context *c;
    struct fake_link *l;
    struct fake_id *id;
    pthread_cond_init(&fake.acked, NULL); /* the parent's threads wait at the old one */
    fake.waiters = 0;
    if (fake.running) {
        close(fake.epoll_fd);
        close(fake.kick_fd);
        fake.epoll_fd = fake.kick_fd = -1;
        fake.running = false;
    }
    fake.slots = 0; /* the table is the parent's */
    fake.slot = NULL;
    LIST_FOREACH(l, &fake.links, link) {
        if (l->fd >= 0) close(l->fd);
        l->fd = -1;
        l->dead = true;
    }
    LIST_FOREACH(id, &fake.ids, link) {
        if (id->listen_fd >= 0) close(id->listen_fd);
        id->listen_fd = -1;
    }
    LIST_FOREACH(channel, &fake.channels, link) fd_renew(channel->ibv.fd);
    LIST_FOREACH(comp, &fake.comps, link) fd_renew(comp->ibv.fd);
    for (unsigned i = 0; i < fake.devices; i++)
        LIST_FOREACH(c, &fake.device[i]->contexts, link) fd_renew(c->verbs.context.async_fd);
    fork_parent();
}

__attribute__((constructor)) static void ready(void) {
    pthread_atfork(fork_before, fork_parent, fork_child);
}

/* A module that is unloaded leaves nothing. */
__attribute__((destructor)) static void over(void) {
    pthread_mutex_lock(&fake.start_lock);
    fake_lock();
    if (fake.running) stop();
    if (fake_idle()) {
        fake_devices_free();
        fake_keys_free();
    }
    free(fake.slot);
    fake.slot = NULL;
    fake.slots = 0;
    fake_unlock();
    pthread_mutex_unlock(&fake.start_lock);
}
