/* Letting go of the memory of a host that is no more, without a call of the owner: a program that
 * put once and is idle since would keep the writable mapping of a pool file for ever, and whoever
 * serves that file next would wait for it (pool/backing.c).
 *
 * A thread looks at the sockets that writable mappings came through, and lives as long as there are
 * any. When one hangs up, private memory takes the place of the mapping, at the same addresses and
 * in one step: a copy under way, or somebody who holds pointers (a put in place), goes on into
 * nothing instead of ending the program, and finds epoch 0 in the header when it looks whether its
 * bytes counted. Read-only mappings hold nobody up, and stay for those who look at them.
 *
 * Locks: life, then list. The thread takes list only; so it can be waited for with life held. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "transport/shm/shm.h"

#define EVENTS_MAX 16

static struct {
    pthread_mutex_t life, list;
    LIST_HEAD(, shm_watch) watches; /* under list */
    unsigned forks;                 /* which process this is, counted from its first ancestor */
    int epoll_fd, end_fd;
    pthread_t thread; /* runs while there are watches */
    uint64_t trouble_ms;
} w = {.life = PTHREAD_MUTEX_INITIALIZER,
       .list = PTHREAD_MUTEX_INITIALIZER,
       .epoll_fd = -1,
       .end_fd = -1};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void close_fds(void) {
    if (w.epoll_fd >= 0) close(w.epoll_fd);
    if (w.end_fd >= 0) close(w.end_fd);
    w.epoll_fd = w.end_fd = -1;
}

/* --- fork: the child has neither the thread nor the mappings --- */

static void watch_before_fork(void) {
    pthread_mutex_lock(&w.life);
    pthread_mutex_lock(&w.list);
}

static void watch_after_fork(void) {
    pthread_mutex_unlock(&w.list);
    pthread_mutex_unlock(&w.life);
}

static void watch_in_child(void) {
    close_fds();
    LIST_INIT(&w.watches);
    w.forks++;
    watch_after_fork();
}

static void watch_set_up_fork(void) {
    (void)pthread_atfork(watch_before_fork, watch_after_fork, watch_in_child);
}

/* --- the thread --- */

static bool hung_up(int fd) {
    struct pollfd p = {.fd = fd};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

/* The bytes that were let go of; 0: errno says why not. */
static uint64_t mapping_let_go(struct shm_watch *x) {
    const int flags = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    x->gone = true;
    /* Not by mmap(), which ThreadSanitizer takes for a store to all of it: the kernel does this in
     * one step. */
    if (syscall(SYS_mmap, x->map, x->map_size, PROT_READ | PROT_WRITE, flags, -1, 0L) == -1)
        return 0;
    (void)madvise(x->map, x->map_size, MADV_DONTFORK);
    (void)madvise(x->map, x->map_size, MADV_DONTDUMP);
    return x->map_size;
}

/* Several mappings may have come through one socket. Nothing is said while the lock is held: who
 * hears it may call us. */
static void look_for_hang_ups(void) {
    struct shm_watch *x;
    uint64_t bytes = 0;
    int error = 0;
    pthread_mutex_lock(&w.list);
    LIST_FOREACH(x, &w.watches, link) {
        if (x->gone || !hung_up(x->fd)) continue;
        uint64_t n = mapping_let_go(x);
        if (n == 0) error = errno;
        bytes += n;
    }
    pthread_mutex_unlock(&w.list);
    if (bytes > 0)
        log_verbose("A host of shared memory hung up: let go of %llu MiB",
                    (unsigned long long)(bytes >> 20));
    if (error != 0)
        log_warning("Shared memory of a host that hung up cannot be let go of: %s",
                    strerror(error));
}

static void *watch_main(void *arg) {
    const int epoll_fd = w.epoll_fd, end_fd = w.end_fd; /* they are closed when this has ended */
    (void)arg;
    for (;;) {
        struct epoll_event events[EVENTS_MAX];
        int n = epoll_wait(epoll_fd, events, EVENTS_MAX, -1);
        if (n < 0 && errno != EINTR) return NULL;
        for (int i = 0; i < n; i++)
            if (events[i].data.fd == end_fd) return NULL;
        if (n > 0) look_for_hang_ups();
    }
}

/* life is held, as for the next. */
static bool watch_start(void) {
    w.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    w.end_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = w.end_fd};
    int error = errno;
    if (w.epoll_fd >= 0 && w.end_fd >= 0 &&
        epoll_ctl(w.epoll_fd, EPOLL_CTL_ADD, w.end_fd, &ev) == 0) {
        error = thread_start(&w.thread, "tarn-shm-watch", watch_main, NULL);
        if (error == 0) return true;
    }
    close_fds();
    if (log_is_news(&w.trouble_ms, clock_mono_ms()))
        log_warning(
            "Hosts of shared memory cannot be watched: %s. What they leave behind is let go of at "
            "the next call only",
            strerror(error));
    return false;
}

static void watch_end(void) {
    eventfd_write(w.end_fd, 1);
    pthread_join(w.thread, NULL);
    close_fds();
}

/* --- for endpoint.c --- */

static bool fd_watched(int fd) {
    const struct shm_watch *x;
    LIST_FOREACH(x, &w.watches, link) {
        if (x->fd == fd) return true;
    }
    return false;
}

void shm_watch_add(struct shm_watch *x, int fd, void *map, uint64_t map_size) {
    pthread_once(&once, watch_set_up_fork);
    pthread_mutex_lock(&w.life);
    *x = (struct shm_watch){.fd = fd, .map = map, .map_size = map_size};
    if (w.epoll_fd >= 0 || watch_start()) {
        /* Edge-triggered: a hang-up is told once. Nothing else is asked for. */
        struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLET, .data.fd = fd};
        pthread_mutex_lock(&w.list);
        bool known = fd_watched(fd);
        LIST_INSERT_HEAD(&w.watches, x, link);
        x->watched = true;
        x->forks = w.forks;
        if (known && hung_up(fd))
            (void)mapping_let_go(x); /* the others of this socket have gone already */
        pthread_mutex_unlock(&w.list);
        if (!known) (void)epoll_ctl(w.epoll_fd, EPOLL_CTL_ADD, fd, &ev);
    }
    pthread_mutex_unlock(&w.life);
}

void shm_watch_remove(struct shm_watch *x) {
    if (!x->watched) return;
    pthread_mutex_lock(&w.life);
    if (x->forks == w.forks) {
        pthread_mutex_lock(&w.list);
        LIST_REMOVE(x, link);
        bool last = LIST_EMPTY(&w.watches), known = fd_watched(x->fd);
        pthread_mutex_unlock(&w.list);
        if (!known) (void)epoll_ctl(w.epoll_fd, EPOLL_CTL_DEL, x->fd, NULL);
        if (last) watch_end();
    }
    x->watched = false;
    pthread_mutex_unlock(&w.life);
}
