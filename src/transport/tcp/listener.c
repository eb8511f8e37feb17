/* The data port: listening sockets and N threads, each with its own epoll and its own connections.
 * The first thread accepts and hands connections out in turn. Nothing is shared between threads but
 * a mailbox each, so one bad peer costs its own thread a turn of TURN_BYTES, and others nothing.
 *
 * Locks: listener.lock (fences) before thread.lock (mailbox) or that of the places; none is held
 * over a system call that can block. */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/spin.h"
#include "base/thread.h"
#include "transport/tcp/conn.h"
#include "transport/tcp/direct.h"
#include "transport/tcp/places.h"
#include "transport/tcp/tcp.h"

#define LISTENER_MAGIC      0x544c5354u /* "TLST" */
#define TURN_BYTES          (1u << 20)
#define EVENTS_MAX          64
#define ACCEPTS_MAX         32
#define LISTEN_SOCKETS_MAX  16
#define THREADS_MAX         256u
#define CONNECTIONS_DEFAULT 10000u
#define IDLE_DEFAULT_MS     30000u
#define SCAN_MS             250u  /* how often silence is looked for */
#define HOLDING_MS          2000u /* how long one may be silent with buffers that others wait for */

TAILQ_HEAD(conn_list, tcp_conn);

struct data_thread {
    struct transport_listener *listener;
    pthread_t thread;
    bool started;
    int epoll_fd, wake_fd;
    unsigned number;
    struct conn_list conns, runnable;
    uint64_t scan_ms;         /* next look for silent connections */
    uint64_t accept_after_ms; /* the accepting thread: out of descriptors until then */
    uint64_t accept_trouble_ms;
    bool accept_paused;
    uint64_t fence_done; /* requests up to this one are carried out; under listener.lock */
    struct transport_listener_stats counters;
    struct transport_times times;
    struct tcp_stager stager;
    struct spin spin; /* before it sleeps */

    pthread_mutex_t lock;
    struct conn_list incoming; /* under lock */
};

struct fence_request {
    struct transport_fence what;
    uint64_t number;
};

struct direct_read { /* of this process, by a thread that is in the middle of it */
    LIST_ENTRY(direct_read) link;
    const struct transport_op *op;
};

struct transport_listener {
    uint32_t magic;
    struct transport_domain *domain;
    struct transport_gate gate;
    const struct transport_tls *tls; /* NULL: it is plain */
    uint64_t idle_ms, busy_poll_us;
    uint16_t port;
    int sockets[LISTEN_SOCKETS_MAX];
    unsigned n_sockets;
    struct tcp_stage_pool staging;
    struct data_thread *threads;
    unsigned n_threads, next_thread;
    bool stop; /* atomic */
    struct tcp_places places;

    pthread_mutex_t lock;
    struct fence_request *fences; /* under lock */
    size_t n_fences, cap_fences;
    uint64_t fence_number;
    LIST_HEAD(, direct_read) direct; /* under lock, like what they counted: */
    struct transport_listener_stats direct_counters;
};

/* --- a thread's connections --- */

static void conn_enqueue(struct data_thread *t, struct tcp_conn *c) {
    if (!TAILQ_LINKED(c, run_link)) TAILQ_INSERT_TAIL(&t->runnable, c, run_link);
}

static void conn_drop(struct data_thread *t, struct tcp_conn *c) {
    TAILQ_UNLINK(&t->runnable, c, run_link);
    TAILQ_REMOVE(&t->conns, c, link);
    int fd = c->fd;
    tcp_places_give(&t->listener->places, c);
    tcp_conn_destroy(&c);
    tcp_socket_close(t->epoll_fd, fd);
}

static void drop_leaving(struct data_thread *t) {
    struct tcp_conn *c;
    while ((c = tcp_places_leaving(&t->listener->places, t->number)) != NULL) conn_drop(t, c);
}

static void take_incoming(struct data_thread *t) {
    struct conn_list in = TAILQ_HEAD_INITIALIZER(in);
    pthread_mutex_lock(&t->lock);
    TAILQ_CONCAT(&in, &t->incoming, link);
    pthread_mutex_unlock(&t->lock);
    struct tcp_conn *c;
    while ((c = TAILQ_TAKE(&in, link)) != NULL) {
        TAILQ_INSERT_TAIL(&t->conns, c, link);
        c->place.arrived = true;
        struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                 .data.ptr = c};
        if (epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, c->fd, &ev) != 0) {
            log_warning("epoll_ctl for a data connection: %s", strerror(errno));
            conn_drop(t, c);
            continue;
        }
        conn_enqueue(t, c);
    }
}

/* One turn each for those that are queued now; who wants more comes last in the next round. */
static void run_queue(struct data_thread *t, uint64_t now_ns) {
    struct conn_list now = TAILQ_HEAD_INITIALIZER(now);
    struct tcp_figures figures = {&t->counters, &t->times};
    TAILQ_CONCAT(&now, &t->runnable, run_link);
    struct tcp_conn *c;
    while ((c = TAILQ_FIRST(&now)) != NULL) {
        TAILQ_UNLINK(&now, c, run_link);
        switch (tcp_conn_turn(c, &t->listener->gate, &t->stager, &figures, &now_ns, TURN_BYTES)) {
        case TCP_TURN_WAIT: break;
        case TCP_TURN_MORE: conn_enqueue(t, c); break;
        case TCP_TURN_CLOSE: conn_drop(t, c); continue;
        }
        if (c->bound && !c->place.kept) tcp_places_keep(&t->listener->places, c);
    }
}

/* Turns, and the thread that accepts, may have read the clock since this round did. */
static uint64_t silence_ms(uint64_t since_ms, uint64_t now_ms) {
    return now_ms > since_ms ? now_ms - since_ms : 0;
}

static void drop_silent(struct data_thread *t, uint64_t now_ms) {
    if (now_ms < t->scan_ms) return;
    t->scan_ms = now_ms + SCAN_MS;
    struct tcp_conn *c, *next;
    TAILQ_FOREACH_SAFE(c, &t->conns, link, next) {
        if (c->secure.mark > 1) { /* below it, a slow peer's bytes make no event */
            c->readable = true;
            conn_enqueue(t, c);
        }
        uint64_t limit_ms = t->listener->idle_ms, silent_ms = silence_ms(c->last_ms, now_ms);
        if (tcp_conn_holds_pieces(c) && tcp_stage_pool_short(&t->listener->staging))
            limit_ms = min_u64(limit_ms, HOLDING_MS);
        bool stranger = !c->bound && silence_ms(c->since_ms, now_ms) >= t->listener->idle_ms;
        bool spare =
            c->bound && silent_ms >= t->listener->idle_ms && tcp_places_full(&t->listener->places);
        if (!stranger && !spare && (!tcp_conn_midway(c) || silent_ms < limit_ms)) continue;
        log_verbose("Data connection closed: %s", stranger ? "no good grant"
                                                  : spare  ? "idle, and all places are taken"
                                                           : "silent in the middle of a frame");
        transport_count(&t->counters.timeouts, 1);
        conn_drop(t, c);
    }
}

static bool fence_hits_conn(const struct transport_fence *f, const struct tcp_conn *c) {
    if (f->kind == TRANSPORT_FENCE_SEGMENT) return tcp_conn_sends(c, f->segment);
    return c->bound && transport_fence_hits(f, c->session, c->epoch);
}

/* The gate refuses the fenced already, so a connection that is not bound now will not be bound to
 * them later. */
static void carry_out_fences(struct data_thread *t) {
    struct transport_listener *l = t->listener;
    pthread_mutex_lock(&l->lock);
    bool news = t->fence_done != l->fence_number;
    for (size_t i = 0; news && i < l->n_fences; i++) {
        if (l->fences[i].number <= t->fence_done) continue;
        struct tcp_conn *c, *next;
        TAILQ_FOREACH_SAFE(c, &t->conns, link, next) {
            if (fence_hits_conn(&l->fences[i].what, c)) conn_drop(t, c);
        }
    }
    t->fence_done = l->fence_number;
    pthread_mutex_unlock(&l->lock);
    if (news) (void)eventfd_write(l->domain->notify_fd, 1);
}

/* --- accepting --- */

/* NULL and true: it is to be plain. */
static bool listener_stream(const struct transport_listener *l, struct tls_stream **tls_p) {
    *tls_p = NULL;
    if (l->tls == NULL) return true;
    struct tls_context *context = l->tls->context(l->tls->arg);
    if (context != NULL) *tls_p = tls_stream_create(context, NULL);
    tls_context_put(&context);
    return *tls_p != NULL;
}

static void hand_out(struct transport_listener *l, int fd, uint64_t peer, uint64_t now_ms) {
    struct data_thread *t = &l->threads[l->next_thread++ % l->n_threads];
    struct tls_stream *tls;
    if (!listener_stream(l, &tls)) {
        log_warning("Data connection closed: there is no TLS for it");
        close(fd);
        return;
    }
    struct tcp_conn *c = tcp_conn_create(fd, tls, now_ms);
    tcp_places_take(&l->places, c, t->number, peer);
    pthread_mutex_lock(&t->lock);
    TAILQ_INSERT_TAIL(&t->incoming, c, link);
    pthread_mutex_unlock(&t->lock);
    (void)eventfd_write(t->wake_fd, 1);
}

void tcp_turn_away(int fd, uint32_t status, const char *text) {
    struct {
        struct tcp_header h;
        struct tcp_hello hello;
        char text[TCP_TEXT_MAX];
    } answer = {
        .h = {.magic = TCP_MAGIC, .type = TCP_HELLO, .status = status},
        .hello = {.version_min = TCP_VERSION, .version_max = TCP_VERSION, .program = program_own()},
    };
    size_t len = strlen(text);
    TARN_ASSERT(len <= sizeof(answer.text));
    memcpy(answer.text, text, len);
    answer.h.meta_length = (uint32_t)(sizeof(answer.hello) + len);
    size_t whole = sizeof(answer.h) + answer.h.meta_length;
    ssize_t n = send(fd, &answer, whole, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)n; /* a courtesy */
}

static void watch_sockets(struct data_thread *t, bool on) {
    struct transport_listener *l = t->listener;
    for (unsigned i = 0; i < l->n_sockets; i++) {
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &l->sockets[i]};
        if (epoll_ctl(t->epoll_fd, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, l->sockets[i], &ev) != 0) {
            log_warning("epoll_ctl for the data port: %s", strerror(errno));
        }
    }
    t->accept_paused = !on;
}

static void accept_some(struct data_thread *t, int socket, uint64_t now_ms) {
    struct transport_listener *l = t->listener;
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        struct sockaddr_storage from = {0};
        socklen_t len = sizeof(from);
        if (tcp_places_busy(&l->places)) return; /* those who are to go first go first */
        int fd = accept4(socket, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                if (log_is_news(&t->accept_trouble_ms, now_ms))
                    log_warning("Accepting on the data port: %s; trying again every second",
                                strerror(errno));
                watch_sockets(t, false);
                t->accept_after_ms = now_ms + 1000;
            }
            return; /* EAGAIN, or the peer has gone again */
        }
        uint64_t peer = tcp_place_peer(&from);
        unsigned thread;
        switch (tcp_places_room(&l->places, peer, &thread)) {
        case TCP_ROOM_FREE: break;
        case TCP_ROOM_MADE: (void)eventfd_write(l->threads[thread].wake_fd, 1); break;
        case TCP_ROOM_NONE:
            transport_count(&t->counters.connections_refused, 1);
            if (l->tls == NULL) tcp_turn_away(fd, TCP_TOO_MANY, "");
            close(fd);
            continue;
        }
        transport_count(&t->counters.connections_total, 1);
        tcp_socket_options(fd);
        hand_out(l, fd, peer, now_ms);
    }
}

/* --- the thread --- */

static bool is_socket(const struct transport_listener *l, const void *ptr) {
    return (const int *)ptr >= l->sockets && (const int *)ptr < l->sockets + LISTEN_SOCKETS_MAX;
}

static void thread_take_events(struct data_thread *t, const struct epoll_event *events, int n,
                               uint64_t now_ms) {
    for (int i = 0; i < n; i++) {
        void *ptr = events[i].data.ptr;
        if (ptr == NULL) {
            eventfd_t ignored;
            (void)eventfd_read(t->wake_fd, &ignored);
        } else if (is_socket(t->listener, ptr)) {
            accept_some(t, *(int *)ptr, now_ms);
        } else {
            struct tcp_conn *c = ptr; /* alive: only later steps of the round drop connections */
            uint32_t e = events[i].events;
            if (e & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) c->readable = true;
            if (e & (EPOLLOUT | EPOLLHUP | EPOLLERR)) c->writable = true;
            conn_enqueue(t, c);
        }
    }
}

static void conn_go_on(void *arg, struct tcp_stage_wait *owner) {
    conn_enqueue(arg, CONTAINER_OF(owner, struct tcp_conn, wait));
}

static int how_long(struct data_thread *t, int staging_ms) {
    if (!TAILQ_EMPTY(&t->runnable)) return 0;
    if (TAILQ_EMPTY(&t->conns) && !t->accept_paused) return staging_ms;
    return staging_ms >= 0 && staging_ms < (int)SCAN_MS ? staging_ms : (int)SCAN_MS;
}

/* Looks for a moment before it sleeps, where that has paid. */
static int thread_wait(struct data_thread *t, struct epoll_event *events, int timeout) {
    if (timeout == 0) return epoll_wait(t->epoll_fd, events, EVENTS_MAX, 0);
    int n = 0;
    bool looks = spin_begin(&t->spin);
    while (looks && (n = epoll_wait(t->epoll_fd, events, EVENTS_MAX, 0)) == 0)
        looks = spin_again(&t->spin);
    if (!looks) n = epoll_wait(t->epoll_fd, events, EVENTS_MAX, timeout);
    spin_end(&t->spin);
    return n;
}

static void *data_thread_main(void *arg) {
    struct data_thread *t = arg;
    struct epoll_event events[EVENTS_MAX];
    int timeout = 0;
    while (!__atomic_load_n(&t->listener->stop, __ATOMIC_ACQUIRE)) {
        int n = thread_wait(t, events, timeout);
        uint64_t now_ns = clock_mono_ns(), now_ms = now_ns / 1000000;
        thread_take_events(t, events, n, now_ms); /* n < 0: interrupted */
        take_incoming(t);
        drop_leaving(t);
        carry_out_fences(t);
        tcp_stager_collect(&t->stager, now_ms, conn_go_on, t);
        run_queue(t, now_ns);
        drop_silent(t, now_ms);
        if (t->accept_paused && now_ms >= t->accept_after_ms) watch_sockets(t, true);
        timeout = how_long(t, tcp_stager_settle(&t->stager, now_ms));
    }
    return NULL;
}

static tarn_status data_thread_start(struct transport_listener *l, unsigned i) {
    struct data_thread *t = &l->threads[i];
    t->listener = l;
    t->number = i;
    TAILQ_INIT(&t->conns);
    TAILQ_INIT(&t->runnable);
    TAILQ_INIT(&t->incoming);
    pthread_mutex_init(&t->lock, NULL);
    t->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    tcp_stager_init(&t->stager, &l->staging, &l->gate, t->wake_fd, &t->counters);
    struct epoll_event ev = {.events = EPOLLIN};
    if (t->epoll_fd < 0 || t->wake_fd < 0 ||
        epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, t->wake_fd, &ev) != 0) {
        log_warning("A data thread cannot start: %s", strerror(errno));
        return TARN_EIO;
    }
    if (i == 0) watch_sockets(t, true);
    spin_set(&t->spin, l->busy_poll_us);
    char name[16];
    snprintf(name, sizeof(name), "tarn-data-%u", i % 1000);
    int rc = thread_start(&t->thread, name, data_thread_main, t);
    if (rc != 0) {
        log_warning("A data thread cannot start: %s", strerror(rc));
        return TARN_EIO;
    }
    t->started = true;
    return TARN_OK;
}

static void thread_stop(struct data_thread *t) {
    if (t->listener == NULL) return; /* never begun */
    if (t->started) {
        (void)eventfd_write(t->wake_fd, 1);
        pthread_join(t->thread, NULL);
    }
    TAILQ_CONCAT(&t->conns, &t->incoming, link);
    struct tcp_conn *c;
    while ((c = TAILQ_FIRST(&t->conns)) != NULL) conn_drop(t, c);
    tcp_stager_deinit(&t->stager);
    if (t->epoll_fd >= 0) close(t->epoll_fd);
    if (t->wake_fd >= 0) close(t->wake_fd);
    pthread_mutex_destroy(&t->lock);
}

/* --- listening --- */

static int listener_socket_open(const struct addrinfo *a, uint16_t port, uint16_t *port_p) {
    struct sockaddr_storage addr;
    memcpy(&addr, a->ai_addr, a->ai_addrlen);
    in_port_t *addr_port = a->ai_family == AF_INET
                               ? &((struct sockaddr_in *)(void *)&addr)->sin_port
                               : &((struct sockaddr_in6 *)(void *)&addr)->sin6_port;
    if (*addr_port == 0) *addr_port = htons(port);
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0) return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (a->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    socklen_t len = sizeof(addr);
    if (bind(fd, (struct sockaddr *)&addr, a->ai_addrlen) != 0 || listen(fd, 1024) != 0 ||
        getsockname(fd, (struct sockaddr *)&addr, &len) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    *port_p = ntohs(*addr_port);
    return fd;
}

/* One that others have may be anybody's connection to somewhere. */
static void log_port(const char *uri, int error) {
    const char *colon = strrchr(uri, ':');
    unsigned long port = colon != NULL ? strtoul(colon + 1, NULL, 10) : 0;
    unsigned first = 0, last = 0;
    FILE *f = error == EADDRINUSE ? fopen("/proc/sys/net/ipv4/ip_local_port_range", "re") : NULL;
    bool lent =
        f != NULL && fscanf(f, "%u %u", &first, &last) == 2 && port >= first && port <= last;
    if (f != NULL) fclose(f);
    if (lent)
        log_warning("Data port %s: %s; ports from %u to %u are given to outgoing connections, too: "
                    "choose another "
                    "one (--data-port)",
                    uri, strerror(error), first, last);
    else
        log_warning("Data port %s: %s", uri, strerror(error));
}

static tarn_status listen_on(struct transport_listener *l, const char *uri) {
    char plain[NI_MAXHOST + 32];
    bool secure = tcp_is_secure(uri), known = secure || strncmp(uri, "tcp://", 6) == 0;
    if (secure != (l->tls != NULL)) return TARN_EINVAL;
    const char *address = known ? strchr(uri, '/') + 2 : uri;
    bool may_fail = known && *address == '-';
    snprintf(plain, sizeof(plain), "%s://%s", secure ? "tcps" : "tcp", address + may_fail);
    struct addrinfo *list;
    uint16_t port;
    tarn_status s = tcp_resolve(plain, true, &list, &port);
    if (s != TARN_OK) return may_fail ? TARN_OK : s;
    for (struct addrinfo *a = list; a != NULL && s == TARN_OK; a = a->ai_next) {
        if (l->n_sockets == LISTEN_SOCKETS_MAX) break;
        int fd = listener_socket_open(a, l->port, &port);
        if (fd >= 0) {
            l->sockets[l->n_sockets++] = fd;
            if (l->port == 0) l->port = port;
        } else if (!may_fail) {
            log_port(plain, errno);
            s = TARN_EIO;
        }
    }
    freeaddrinfo(list);
    return s;
}

tarn_status tcp_listen(struct transport_domain *d, const struct transport_listen_config *config,
                       struct transport_listener **listener_p) {
    if (config->n_uris == 0 || config->gate.check == NULL || config->gate.recheck == NULL)
        return TARN_EINVAL;
    struct transport_listener *l = xcalloc(1, sizeof(*l));
    l->magic = LISTENER_MAGIC;
    l->domain = d;
    l->gate = config->gate;
    l->tls = config->tls;
    l->idle_ms = config->idle_timeout_ms != 0 ? config->idle_timeout_ms : IDLE_DEFAULT_MS;
    l->busy_poll_us = config->busy_poll_us;
    l->n_threads = (unsigned)min_u64(config->threads > 0 ? config->threads : 1, THREADS_MAX);
    l->threads = xcalloc(l->n_threads, sizeof(*l->threads));
    pthread_mutex_init(&l->lock, NULL);
    tcp_places_init(&l->places,
                    config->max_connections != 0 ? config->max_connections : CONNECTIONS_DEFAULT);
    tcp_stage_pool_init(&l->staging, config->staging_bytes);
    d->listeners++;

    tarn_status s = TARN_OK;
    for (size_t i = 0; i < config->n_uris && s == TARN_OK; i++) s = listen_on(l, config->uris[i]);
    if (s == TARN_OK && l->n_sockets == 0) s = TARN_EIO;
    /* The first one accepts and uses the others' mailboxes: it starts last. */
    for (unsigned i = l->n_threads; i-- > 0 && s == TARN_OK;) s = data_thread_start(l, i);
    if (s != TARN_OK) {
        tcp_listener_close(&l);
        return s;
    }
    *listener_p = l;
    return TARN_OK;
}

void tcp_listener_close(struct transport_listener **listener_p) {
    struct transport_listener *l = *listener_p;
    if (l == NULL) return;
    MAGIC_CHECK(l, LISTENER_MAGIC);
    *listener_p = NULL;
    __atomic_store_n(&l->stop, true, __ATOMIC_RELEASE);
    for (unsigned i = 0; i < l->n_threads; i++) thread_stop(&l->threads[i]);
    tcp_stage_pool_deinit(&l->staging);
    for (unsigned i = 0; i < l->n_sockets; i++) close(l->sockets[i]);
    l->domain->listeners--;
    tcp_places_deinit(&l->places);
    pthread_mutex_destroy(&l->lock);
    l->magic = 0;
    free(l->threads);
    free(l->fences);
    free(l);
}

uint16_t tcp_listener_port(const struct transport_listener *l) {
    return l->port;
}

/* --- fences --- */

static void fence_request(struct transport_listener *l, const struct transport_fence *what) {
    ARRAY_GROW(l->fences, l->n_fences, l->cap_fences);
    l->fences[l->n_fences++] = (struct fence_request){*what, ++l->fence_number};
    for (unsigned i = 0; i < l->n_threads; i++) (void)eventfd_write(l->threads[i].wake_fd, 1);
}

/* The next three under the lock. */
static bool direct_reads(const struct transport_listener *l, uint32_t segment) {
    const struct direct_read *r;
    LIST_FOREACH(r, &l->direct, link) {
        for (size_t i = 0; i < r->op->n_parts; i++)
            if (r->op->parts[i].extent.segment == segment) return true;
    }
    return false;
}

static bool fence_awaits_direct(const struct transport_listener *l,
                                const struct transport_fence *fence) {
    return fence->kind == TRANSPORT_FENCE_SEGMENT && direct_reads(l, fence->segment);
}

static void direct_over(struct transport_listener *l, struct direct_read *r,
                        const struct transport_listener_stats *counters) {
    LIST_REMOVE(r, link);
    transport_stats_add(&l->direct_counters, counters);
    if (l->n_fences > 0) (void)eventfd_write(l->domain->notify_fd, 1);
}

tarn_status tcp_listener_read(struct transport_listener *l, struct transport_op *op,
                              uint64_t deadline_boot_ms) {
    MAGIC_CHECK(l, LISTENER_MAGIC);
    struct direct_read r = {.op = op};
    struct transport_listener_stats counters = {0};
    pthread_mutex_lock(&l->lock); /* from here on fences know: the gate is asked behind that */
    LIST_INSERT_HEAD(&l->direct, &r, link);
    pthread_mutex_unlock(&l->lock);
    tarn_status status = tcp_direct_read(&l->staging, &l->gate, &counters, op, deadline_boot_ms);
    counters.staged_reads = status == TARN_OK;
    counters.staged_bytes = status == TARN_OK ? iov_total(op->iov, op->n_iov) : 0;
    counters.staged_failures = status != TARN_OK;
    pthread_mutex_lock(&l->lock);
    direct_over(l, &r, &counters);
    pthread_mutex_unlock(&l->lock);
    return status;
}

tarn_status tcp_listener_fence(struct transport_listener *l, const struct transport_fence *fence) {
    MAGIC_CHECK(l, LISTENER_MAGIC);
    pthread_mutex_lock(&l->lock);
    size_t at = 0;
    while (at < l->n_fences && !transport_fence_same(&l->fences[at].what, fence)) at++;
    bool done = at < l->n_fences;
    if (!done) fence_request(l, fence);
    for (unsigned i = 0; done && i < l->n_threads; i++) {
        done = l->threads[i].fence_done >= l->fences[at].number;
    }
    done = done && !fence_awaits_direct(l, fence);
    if (done) l->fences[at] = l->fences[--l->n_fences];
    pthread_mutex_unlock(&l->lock);
    return done ? TARN_OK : TARN_EAGAIN;
}

/* --- statistics --- */

void tcp_listener_times(const struct transport_listener *l, struct transport_times *sum) {
    for (unsigned i = 0; i < l->n_threads; i++) transport_times_add(sum, &l->threads[i].times);
}

void tcp_listener_programs(const struct transport_listener *l, struct program_counts *sum) {
    tcp_places_programs((struct tcp_places *)(uintptr_t)&l->places, sum);
}

void tcp_listener_stats(const struct transport_listener *l,
                        struct transport_listener_stats *stats_p) {
    struct transport_listener_stats s = {
        .staging_used = tcp_stage_pool_used((struct tcp_stage_pool *)(uintptr_t)&l->staging),
        .connections = __atomic_load_n(&l->places.used, __ATOMIC_RELAXED),
        .connections_new = __atomic_load_n(&l->places.n_new, __ATOMIC_RELAXED),
        .connections_ousted = __atomic_load_n(&l->places.ousted, __ATOMIC_RELAXED),
    };
    for (unsigned i = 0; i < l->n_threads; i++) transport_stats_add(&s, &l->threads[i].counters);
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&l->lock;
    pthread_mutex_lock(lock);
    transport_stats_add(&s, &l->direct_counters);
    pthread_mutex_unlock(lock);
    *stats_p = s;
}
