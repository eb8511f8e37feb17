/* The host's side of shm: it hands out descriptors of segment memory, and remembers to whom. Once a
 * process has a writable mapping nothing but its death, or its own word, takes it back; so every
 * peer is watched by a pidfd.
 *
 *   peer:  socket open --no good grant: too long, or another wants the place--> gone
 *            |--closed, nothing writable out--> gone
 *            \--closed, writable mappings out--> only the pidfd is left --process ends--> gone
 *
 * Runs in progress, in the owner's thread. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fd_pass.h"
#include "base/log.h"
#include "transport/shm/shm.h"

#define LISTENER_MAGIC    0x534c5354u /* "SLST" */
#define PEERS_DEFAULT     4096u
#define EVENTS_MAX        64
#define REQUESTS_PER_TURN 16
#define ATTACHMENTS_MAX   1024u /* per peer */
#define PAUSE_MS          100   /* of a listener that has no descriptors */
/* how often it looks for peers that have shown no good grant for too long */
#define LOOK_MS         500
#define IDLE_DEFAULT_MS 30000u
#define PROC_FD_MAX     40

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

struct attachment {
    uint64_t number;
    const struct transport_memory *memory;
    uint64_t session;
    uint32_t master_epoch;
    bool writable;
};

struct peer {
    struct shm_tag tag, pid_tag;
    struct transport_listener *listener;
    LIST_ENTRY(peer) link;
    TAILQ_ENTRY(peer) new_link; /* while it is new: it has shown no good grant */
    uint64_t since_ms;
    int fd; /* -1: closed */
    int pidfd;
    pid_t pid;
    uid_t uid;
    uint32_t counted; /* once it is not new: as program_drop wants it */
    struct attachment *attachments;
    unsigned n_attachments, cap_attachments;
};

struct transport_listener {
    struct shm_tag tag, timer_tag;
    uint32_t magic;
    struct transport_domain *domain;
    LIST_ENTRY(transport_listener) link;
    struct transport_gate gate;
    int fd;
    /* a descriptor to turn peers away with when there are no more; -1: it was needed */
    int spare;
    /* while there is not even that, nobody is accepted, and nothing else may ever wake us */
    int timer_fd;
    uint64_t trouble_ms;
    struct sockaddr_un addr;
    dev_t dev;
    ino_t ino;
    bool paused;
    unsigned max_peers;
    uint64_t idle_ms;
    uint64_t last_attachment;
    TAILQ_HEAD(, peer) new_ones; /* by age */
    /* dead: freed at the end of the turn, events may still name them */
    LIST_HEAD(, peer) peers, dead;
    struct transport_listener_stats stats;
    struct program_counts programs; /* of peers that are not new */
};

/* --- peers --- */

/* A child that the program has forked may hold it, too: then closing it alone would not take it out
 * of the epoll set. */
static void close_watched(struct transport_domain *d, int *fd_p) {
    if (*fd_p < 0) return;
    (void)epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, *fd_p, NULL);
    close(*fd_p);
    *fd_p = -1;
}

static void close_socket(struct peer *p) {
    if (p->fd >= 0) (void)shutdown(p->fd, SHUT_RDWR);
    close_watched(p->listener->domain, &p->fd);
}

/* It has shown a good grant, or goes. */
static void leave_new(struct peer *p) {
    if (!TAILQ_LINKED(p, new_link)) return;
    TAILQ_UNLINK(&p->listener->new_ones, p, new_link);
    p->listener->stats.connections_new--;
}

static void peer_bury(struct peer *p) {
    if (!TAILQ_LINKED(p, new_link)) program_drop(&p->listener->programs, p->counted);
    leave_new(p);
    close_socket(p);
    close_watched(p->listener->domain, &p->pidfd);
    p->n_attachments = 0;
    LIST_REMOVE(p, link);
    LIST_INSERT_HEAD(&p->listener->dead, p, link);
    p->listener->stats.connections--;
}

static void free_dead(struct transport_listener *l) {
    struct peer *p;
    while ((p = LIST_TAKE(&l->dead, link)) != NULL) {
        free(p->attachments);
        free(p);
    }
}

static bool has_writable(const struct peer *p) {
    for (unsigned i = 0; i < p->n_attachments; i++) {
        if (p->attachments[i].writable) return true;
    }
    return false;
}

/* The socket is closed, by either side. What was handed out stays handed out. */
static void peer_hang_up(struct peer *p) {
    close_socket(p);
    if (!has_writable(p)) peer_bury(p);
}

/* A descriptor for the process on the other side of fd, not for one that got its number later. */
static int watch_process(int fd, pid_t pid) {
    int pidfd;
    socklen_t len = sizeof(pidfd);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) == 0) return pidfd;
    return (int)syscall(SYS_pidfd_open, pid,
                        0); /* before Linux 6.5; the number may be reused only once it is dead */
}

static bool process_ended(int pidfd) {
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) != 0;
}

/* While somebody has to be looked at, now and then. false: the kernel will not. */
static bool listener_set_timer(struct transport_listener *l) {
    long ms = l->paused ? PAUSE_MS : TAILQ_EMPTY(&l->new_ones) ? 0 : LOOK_MS;
    const struct timespec period = {.tv_nsec = ms * 1000000L};
    const struct itimerspec on = {period, period};
    return timerfd_settime(l->timer_fd, 0, &on, NULL) == 0;
}

/* All places are taken: the oldest one without a good grant goes. */
static bool oust_stranger(struct transport_listener *l) {
    struct peer *p = TAILQ_FIRST(&l->new_ones);
    if (p == NULL) return false;
    l->stats.connections_ousted++;
    peer_bury(p);
    return true;
}

static void drop_overdue(struct transport_listener *l) {
    struct peer *p;
    uint64_t now_ms = clock_mono_ms();
    while ((p = TAILQ_FIRST(&l->new_ones)) != NULL && now_ms - p->since_ms >= l->idle_ms) {
        log_verbose("A shm peer (pid %d) has shown no good grant for too long: closed",
                    (int)p->pid);
        l->stats.timeouts++;
        peer_bury(p);
    }
}

static void peer_accept(struct transport_listener *l, int fd) {
    struct ucred cred;
    socklen_t len = sizeof(cred);
    if (l->stats.connections >= l->max_peers && !oust_stranger(l)) {
        l->stats.connections_refused++;
        close(fd);
        return;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0 || cred.pid <= 0) {
        log_warning("A shm peer from another pid namespace, or without credentials: refused");
        l->stats.connections_refused++;
        close(fd);
        return;
    }
    struct peer *p = xcalloc(1, sizeof(*p));
    *p = (struct peer){.tag.kind = SHM_TAG_PEER,
                       .pid_tag.kind = SHM_TAG_PEER_PID,
                       .listener = l,
                       .fd = fd,
                       .pid = cred.pid,
                       .uid = cred.uid,
                       .since_ms = clock_mono_ms(),
                       .pidfd = watch_process(fd, cred.pid)};
    LIST_INSERT_HEAD(&l->peers, p, link);
    TAILQ_INSERT_TAIL(&l->new_ones, p, new_link);
    l->stats.connections++;
    if (l->stats.connections_new++ == 0) (void)listener_set_timer(l);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &p->tag},
                       pid_ev = {.events = EPOLLIN, .data.ptr = &p->pid_tag};
    if (p->pidfd < 0 || process_ended(p->pidfd) ||
        epoll_ctl(l->domain->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0 ||
        epoll_ctl(l->domain->epoll_fd, EPOLL_CTL_ADD, p->pidfd, &pid_ev) != 0) {
        if (log_is_news(&l->trouble_ms, clock_mono_ms()))
            log_warning("A shm peer (pid %d) cannot be watched: %s", (int)cred.pid,
                        strerror(errno));
        l->stats.connections_refused++;
        peer_bury(p);
        return;
    }
    l->stats.connections_total++;
}

/* --- requests --- */

/* By its address, as the gate says it: ids change hands. */
static const struct transport_memory *memory_at(const struct transport_domain *d,
                                                const void *addr) {
    const struct transport_memory *m;
    LIST_FOREACH(m, &d->memories, link) {
        if (m->config.remote && m->config.addr == addr) return m;
    }
    return NULL;
}

/* false: it did not leave, and the connection is closed. A peer that does not read its replies is
 * broken. */
static bool peer_answer(struct peer *p, const struct shm_request *rq, uint32_t status,
                        const struct transport_memory *m, uint64_t attachment) {
    struct shm_reply reply = {
        .magic = SHM_MAGIC,
        .version = SHM_VERSION,
        .type = SHM_REPLY,
        .request_id = rq->request_id,
        .status = status,
        .program = program_own(),
    };
    int memory = -1;
    if (status == SHM_OK) {
        reply.header_size = (uint32_t)m->config.header_size;
        reply.size = m->config.length;
        reply.attachment = attachment;
        memory = rq->writable ? m->config.fd : m->config.fd_read;
    }
    return fd_pass_send(p->fd, &reply, rq->program != 0 ? sizeof(reply) : SHM_REPLY_SHORT,
                        memory) >= 0;
}

static void peer_refuse(struct peer *p, const struct shm_request *rq, uint32_t status) {
    if (!peer_answer(p, rq, status, NULL, 0)) peer_hang_up(p);
}

static void attachment_note(struct peer *p, const struct attachment *a) {
    ARRAY_GROW(p->attachments, p->n_attachments, p->cap_attachments);
    p->attachments[p->n_attachments++] = *a;
}

static void handle_attach(struct peer *p, const struct shm_request *rq) {
    struct transport_listener *l = p->listener;
    struct grant g;
    void *addr = NULL;
    enum grant_verdict v =
        l->gate.check(l->gate.arg, rq->grant, &rq->extent,
                      rq->writable ? GRANT_ATTACH_WRITE : GRANT_ATTACH_READ, 0, 0, &g, &addr);
    const struct transport_memory *m = v == GRANT_OK ? memory_at(l->domain, addr) : NULL;
    if (v == GRANT_OK && (m == NULL || rq->extent.offset != 0)) v = GRANT_BAD_RANGE;
    if (v != GRANT_OK) {
        l->stats.refused[v]++;
        log_verbose("A shm attach by pid %d was refused: %s", (int)p->pid, grant_verdict_name(v));
        peer_refuse(p, rq, (uint32_t)v);
        return;
    }
    if (p->n_attachments >= ATTACHMENTS_MAX) {
        peer_refuse(p, rq, SHM_TOO_MANY);
        return;
    }
    if (process_ended(p->pidfd)) {
        peer_bury(p);
        return;
    }
    /* Before it is sent: what is remembered too early only delays a fence. What was sent counts as
     * given. */
    uint64_t number = ++l->last_attachment;
    attachment_note(p,
                    &(struct attachment){number, m, g.session, g.master_epoch, rq->writable != 0});
    l->stats.attaches_total++;
    if (TAILQ_LINKED(p, new_link))
        p->counted = program_add(&l->programs, program_told(rq->program), 1);
    leave_new(p);
    if (peer_answer(p, rq, SHM_OK, m, number)) return;
    p->n_attachments--;
    peer_hang_up(p);
}

static void handle_detach(struct peer *p, const struct shm_request *rq) {
    for (unsigned i = 0; i < p->n_attachments; i++) {
        if (p->attachments[i].number != rq->attachment) continue;
        p->attachments[i] = p->attachments[--p->n_attachments];
        return;
    }
}

/* Looks for the sender's credentials, and closes descriptors nobody asked for. */
static pid_t message_sender(struct msghdr *msg) {
    pid_t pid = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET) continue;
        if (c->cmsg_type == SCM_CREDENTIALS) {
            struct ucred cred;
            memcpy(&cred, CMSG_DATA(c), sizeof(cred));
            pid = cred.pid;
        } else if (c->cmsg_type == SCM_RIGHTS) {
            size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            for (size_t i = 0; i < n; i++) {
                int fd;
                memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
                close(fd);
            }
        }
    }
    return pid;
}

/* false: nothing more to read for now, or the peer is gone. */
static bool handle_request(struct peer *p) {
    struct shm_request rq;
    struct iovec iov = {&rq, sizeof(rq)};
    union {
        char space[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(8 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.space,
                         .msg_controllen = sizeof(control.space)};
    ssize_t got = recvmsg(p->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) {
        peer_hang_up(p);
        return false;
    }
    /* A mapping in a process we do not watch would be one we cannot fence: a child that inherited
     * the socket is refused. */
    pid_t pid = message_sender(&msg);
    bool whole = got == (ssize_t)sizeof(rq) && (msg.msg_flags & MSG_TRUNC) == 0 &&
                 rq.magic == SHM_MAGIC && rq.writable <= 1;
    if (!whole || pid != p->pid || (rq.type != SHM_ATTACH && rq.type != SHM_DETACH)) {
        p->listener->stats.bad_frames++;
        peer_hang_up(p);
        return false;
    }
    if (rq.version != SHM_VERSION) {
        peer_refuse(p, &rq, SHM_BAD_VERSION);
    } else if (rq.type == SHM_ATTACH) {
        handle_attach(p, &rq);
    } else {
        handle_detach(p, &rq);
    }
    return p->fd >= 0;
}

/* Every PAUSE_MS until it is over. The timer is made with the listener: there would be no
 * descriptor for it now. */
static void pause_accept(struct transport_listener *l) {
    l->paused = true;
    if (listener_set_timer(l))
        (void)epoll_ctl(l->domain->epoll_fd, EPOLL_CTL_DEL, l->fd, NULL);
    else
        l->paused = false;
}

static void on_timer(struct transport_listener *l) {
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &l->tag};
    eventfd_t times;
    (void)eventfd_read(l->timer_fd, &times); /* not again before the next period */
    if (l->paused &&
        (epoll_ctl(l->domain->epoll_fd, EPOLL_CTL_ADD, l->fd, &ev) == 0 || errno == EEXIST))
        l->paused = false;
    drop_overdue(l);
    (void)listener_set_timer(l);
}

static bool open_timer(struct transport_listener *l) {
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &l->timer_tag};
    l->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    return l->timer_fd >= 0 && epoll_ctl(l->domain->epoll_fd, EPOLL_CTL_ADD, l->timer_fd, &ev) == 0;
}

static void open_spare(struct transport_listener *l) {
    if (l->spare < 0) l->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* Out of descriptors: a peer that waits would wake us again and again. It is turned away, and goes
 * another way. */
static void turn_away(struct transport_listener *l, int error) {
    if (log_is_news(&l->trouble_ms, clock_mono_ms()))
        log_warning("A shm peer is turned away: %s", strerror(error));
    if (l->spare >= 0) close(l->spare);
    l->spare = -1;
    int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
        l->stats.connections_refused++;
        close(fd);
    }
    open_spare(l);
    if (fd < 0 && errno != EAGAIN) pause_accept(l);
}

static void accept_one(struct transport_listener *l) {
    int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0)
        peer_accept(l, fd);
    else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        turn_away(l, errno);
}

void shm_serve(struct transport_domain *d) {
    struct epoll_event events[EVENTS_MAX];
    int n = epoll_wait(d->epoll_fd, events, EVENTS_MAX, 0);
    for (int i = 0; i < n; i++) {
        struct shm_tag *tag = events[i].data.ptr;
        if (tag->kind == SHM_TAG_LISTEN) {
            accept_one(CONTAINER_OF(tag, struct transport_listener, tag));
        } else if (tag->kind == SHM_TAG_TIMER) {
            on_timer(CONTAINER_OF(tag, struct transport_listener, timer_tag));
        } else if (tag->kind == SHM_TAG_PEER_PID) {
            struct peer *p = CONTAINER_OF(tag, struct peer, pid_tag);
            if (p->pidfd >= 0) peer_bury(p); /* the process has ended, and its mappings with it */
        } else {
            struct peer *p = CONTAINER_OF(tag, struct peer, tag);
            for (int k = 0; k < REQUESTS_PER_TURN && p->fd >= 0 && handle_request(p); k++) {
            }
        }
    }
    struct transport_listener *l;
    LIST_FOREACH(l, &d->listeners, link) {
        free_dead(l);
        open_spare(l);
    }
}

/* --- the listener --- */

bool shm_listener_lent(const struct transport_listener *l, const struct transport_memory *m,
                       uint32_t below_epoch) {
    const struct peer *p;
    LIST_FOREACH(p, &l->peers, link) {
        for (unsigned i = 0; i < p->n_attachments; i++) {
            const struct attachment *a = &p->attachments[i];
            if (a->writable && a->memory == m && a->master_epoch < below_epoch) return true;
        }
    }
    return false;
}

void shm_forget_memory(const struct transport_memory *m) {
    struct transport_listener *l;
    LIST_FOREACH(l, &m->domain->listeners, link) {
        struct peer *p, *next;
        LIST_FOREACH_SAFE(p, &l->peers, link, next) {
            for (unsigned i = 0; i < p->n_attachments;) {
                if (p->attachments[i].memory == m)
                    p->attachments[i] = p->attachments[--p->n_attachments];
                else
                    i++;
            }
            if (p->fd < 0 && !has_writable(p)) peer_bury(p); /* it was only there for these */
        }
        free_dead(l);
    }
}

tarn_status shm_listener_fence(struct transport_listener *l, const struct transport_fence *fence) {
    MAGIC_CHECK(l, LISTENER_MAGIC);
    const struct peer *p;
    LIST_FOREACH(p, &l->peers, link) {
        for (unsigned i = 0; i < p->n_attachments; i++) {
            const struct attachment *a = &p->attachments[i];
            /* readers do no harm: they verify */
            if (a->writable && transport_fence_hits(fence, a->session, a->master_epoch))
                return TARN_EAGAIN;
        }
    }
    return TARN_OK;
}

/* A socket file nobody listens on is what a crashed host left. */
static bool socket_remove_stale(const struct sockaddr_un *addr) {
    struct stat st;
    if (lstat(addr->sun_path, &st) != 0) return true;
    if (!S_ISSOCK(st.st_mode)) return false;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    bool dead =
        connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) != 0 && errno == ECONNREFUSED;
    close(fd);
    return dead && unlink(addr->sun_path) == 0;
}

/* What the umask took from a socket of ours comes back. No link is followed, whoever put it there
 * meanwhile. */
static bool socket_set_mode(const char *path, mode_t mode) {
    char self[PROC_FD_MAX];
    struct stat st;
    int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return false;
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    bool ours = fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) && st.st_uid == geteuid();
    bool done = ours && ((st.st_mode & 07777) == mode || chmod(self, mode) == 0);
    int error = ours ? errno : EADDRINUSE;
    close(fd);
    errno = error;
    return done;
}

/* With a name, and not listening yet. false: errno says why. */
static bool shm_socket_open(struct transport_listener *l, const char *path, mode_t mode) {
    int one = 1;
    if (!socket_remove_stale(&l->addr)) {
        errno = EADDRINUSE;
        return false;
    }
    l->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* What is accepted has SO_PASSCRED from here: a peer may have sent its request before there is
     * time to ask it of that. */
    if (l->fd < 0 || setsockopt(l->fd, SOL_SOCKET, SO_PASSCRED, &one, sizeof(one)) != 0)
        return false;
    /* The mode is in force from the first moment; what the umask took comes back. */
    return fchmod(l->fd, mode) == 0 &&
           bind(l->fd, (struct sockaddr *)&l->addr, sizeof(l->addr)) == 0 &&
           socket_set_mode(path, mode);
}

tarn_status shm_listen(struct transport_domain *d, const struct transport_listen_config *config,
                       struct transport_listener **listener_p) {
    struct transport_listener *l = xcalloc(1, sizeof(*l));
    const char *path;
    l->fd = l->spare = l->timer_fd = -1;
    if (config->n_uris != 1 || !shm_address(config->uris[0], &l->addr, &path)) {
        free(l);
        return TARN_EINVAL;
    }
    l->tag.kind = SHM_TAG_LISTEN;
    l->timer_tag.kind = SHM_TAG_TIMER;
    l->magic = LISTENER_MAGIC;
    l->domain = d;
    l->gate = config->gate;
    l->max_peers = config->max_connections != 0 ? config->max_connections : PEERS_DEFAULT;
    l->idle_ms = config->idle_timeout_ms != 0 ? config->idle_timeout_ms : IDLE_DEFAULT_MS;
    LIST_INIT(&l->peers);
    LIST_INIT(&l->dead);
    TAILQ_INIT(&l->new_ones);
    mode_t mode = config->mode != 0 ? (mode_t)config->mode & 0777 : 0600;
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &l->tag};
    struct stat st;
    if (shm_socket_open(l, path, mode) && lstat(path, &st) == 0 && listen(l->fd, 128) == 0 &&
        open_timer(l) && epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, l->fd, &ev) == 0) {
        l->dev = st.st_dev;
        l->ino = st.st_ino;
        LIST_INSERT_HEAD(&d->listeners, l, link);
        open_spare(l);
        *listener_p = l;
        return TARN_OK;
    }
    log_warning("shm socket %s: %s%s", path, strerror(errno),
                errno == EADDRINUSE ? ": somebody listens there, or it is no socket of ours" : "");
    if (l->fd >= 0) close(l->fd);
    close_watched(d, &l->timer_fd);
    free(l);
    return TARN_EIO;
}

void shm_listener_close(struct transport_listener **listener_p) {
    struct transport_listener *l = *listener_p;
    if (l == NULL) return;
    MAGIC_CHECK(l, LISTENER_MAGIC);
    *listener_p = NULL;
    struct peer *p;
    while ((p = LIST_FIRST(&l->peers)) != NULL) peer_bury(p);
    free_dead(l);
    struct stat st; /* another host may have taken the name over */
    if (lstat(l->addr.sun_path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
        unlink(l->addr.sun_path);
    close_watched(l->domain, &l->fd);
    close_watched(l->domain, &l->timer_fd);
    if (l->spare >= 0) close(l->spare);
    LIST_REMOVE(l, link);
    l->magic = 0;
    free(l);
}

void shm_listener_stats(const struct transport_listener *l,
                        struct transport_listener_stats *stats_p) {
    *stats_p = l->stats;
}

void shm_listener_programs(const struct transport_listener *l, struct program_counts *sum) {
    program_add_all(sum, &l->programs);
}
