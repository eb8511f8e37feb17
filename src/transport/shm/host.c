/* The host's side of shm: it hands out descriptors of segment memory, and remembers to whom. Once a process has a writable
 * mapping nothing but its death, or its own word, takes it back; so every peer is watched by a pidfd.
 *
 *   peer:  socket open --closed, nothing writable out--> gone
 *            \--closed, writable mappings out--> only the pidfd is left --process ends--> gone
 *
 * Runs in progress, in the owner's thread. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "transport/shm/shm.h"

#define LISTENER_MAGIC    0x534c5354u /* "SLST" */
#define PEERS_DEFAULT     4096u
#define EVENTS_MAX        64
#define REQUESTS_PER_TURN 16
#define ATTACHMENTS_MAX   1024u /* per peer */

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

struct attachment {
    uint64_t session;
    uint32_t master_epoch;
    uint32_t segment;
    bool writable;
};

struct peer {
    struct shm_tag tag, pid_tag;
    struct transport_listener *listener;
    LIST_ENTRY(peer) link;
    int fd; /* -1: closed */
    int pidfd;
    pid_t pid;
    uid_t uid;
    struct attachment *attachments;
    unsigned n_attachments, cap_attachments;
};

struct transport_listener {
    struct shm_tag tag;
    uint32_t magic;
    struct transport_domain *domain;
    LIST_ENTRY(transport_listener) link;
    struct transport_gate gate;
    int fd;
    struct sockaddr_un addr;
    dev_t dev;
    ino_t ino;
    unsigned max_peers;
    LIST_HEAD(, peer) peers, dead; /* dead: freed at the end of the turn, events may still name them */
    struct transport_listener_stats stats;
};

/* --- peers --- */

static void close_socket(struct peer *p) {
    if (p->fd >= 0) close(p->fd); /* leaves the epoll set by itself */
    p->fd = -1;
}

static void bury(struct peer *p) {
    close_socket(p);
    if (p->pidfd >= 0) close(p->pidfd);
    p->pidfd = -1;
    p->n_attachments = 0;
    LIST_REMOVE(p, link);
    LIST_INSERT_HEAD(&p->listener->dead, p, link);
    p->listener->stats.connections--;
}

static void free_dead(struct transport_listener *l) {
    struct peer *p;
    while ((p = LIST_FIRST(&l->dead)) != NULL) {
        LIST_REMOVE(p, link);
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
static void hang_up(struct peer *p) {
    close_socket(p);
    if (!has_writable(p)) bury(p);
}

/* A descriptor for the process on the other side of fd, not for one that got its number later. */
static int watch_process(int fd, pid_t pid) {
    int pidfd;
    socklen_t len = sizeof(pidfd);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) == 0) return pidfd;
    return (int)syscall(SYS_pidfd_open, pid,
                        0); /* before Linux 6.5; the number may be reused only once it is dead */
}

static bool is_dead(int pidfd) {
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) != 0;
}

static void accept_peer(struct transport_listener *l, int fd) {
    struct ucred cred;
    socklen_t len = sizeof(cred);
    int one = 1;
    if (l->stats.connections >= l->max_peers) {
        l->stats.connections_refused++;
        close(fd);
        return;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0 || cred.pid <= 0 ||
        setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &one, sizeof(one)) != 0) {
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
                       .pidfd = watch_process(fd, cred.pid)};
    LIST_INSERT_HEAD(&l->peers, p, link);
    l->stats.connections++;
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &p->tag},
                       pid_ev = {.events = EPOLLIN, .data.ptr = &p->pid_tag};
    if (p->pidfd < 0 || is_dead(p->pidfd) || epoll_ctl(l->domain->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0 ||
        epoll_ctl(l->domain->epoll_fd, EPOLL_CTL_ADD, p->pidfd, &pid_ev) != 0) {
        log_warning("A shm peer (pid %d) cannot be watched: %s", (int)cred.pid, strerror(errno));
        l->stats.connections_refused++;
        bury(p);
        return;
    }
    l->stats.connections_total++;
}

/* --- requests --- */

static const struct transport_memory *find_memory(const struct transport_domain *d, uint32_t segment) {
    const struct transport_memory *m;
    LIST_FOREACH(m, &d->memories, link) {
        if (m->config.remote && m->config.segment == segment) return m;
    }
    return NULL;
}

static void answer(struct peer *p, const struct shm_request *rq, uint32_t status,
                   const struct transport_memory *m, uint64_t session) {
    struct shm_reply reply = {
        .magic = SHM_MAGIC,
        .version = SHM_VERSION,
        .type = SHM_REPLY,
        .request_id = rq->request_id,
        .status = status,
    };
    struct iovec iov = {&reply, sizeof(reply)};
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (status == SHM_OK) {
        reply.header_size = (uint32_t)m->config.header_size;
        reply.size = m->config.length;
        reply.session = session;
        msg.msg_control = control.space;
        msg.msg_controllen = sizeof(control.space);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), rq->writable ? &m->config.fd : &m->config.fd_read, sizeof(int));
    }
    /* A peer that does not read its replies is broken. Whether the descriptor arrived is then unknown: it counts as given. */
    if (sendmsg(p->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) hang_up(p);
}

static void remember(struct peer *p, const struct attachment *a) {
    for (unsigned i = 0; i < p->n_attachments; i++) {
        const struct attachment *b = &p->attachments[i];
        if (b->session == a->session && b->segment == a->segment && b->writable == a->writable &&
            b->master_epoch == a->master_epoch) {
            return;
        }
    }
    if (p->n_attachments == p->cap_attachments) {
        p->cap_attachments = p->cap_attachments == 0 ? 4 : 2 * p->cap_attachments;
        p->attachments = xrealloc(p->attachments, p->cap_attachments * sizeof(*p->attachments));
    }
    p->attachments[p->n_attachments++] = *a;
}

static void handle_attach(struct peer *p, const struct shm_request *rq) {
    struct transport_listener *l = p->listener;
    struct grant g;
    void *addr;
    enum grant_verdict v =
        l->gate.check(l->gate.arg, rq->grant, &rq->extent,
                      rq->writable ? GRANT_ATTACH_WRITE : GRANT_ATTACH_READ, 0, 0, &g, &addr);
    const struct transport_memory *m = find_memory(l->domain, rq->extent.segment);
    if (v == GRANT_OK && (m == NULL || rq->extent.offset != 0)) v = GRANT_BAD_RANGE;
    if (v != GRANT_OK) {
        l->stats.refused[v]++;
        log_verbose("A shm attach by pid %d was refused: %s", (int)p->pid, grant_verdict_name(v));
        answer(p, rq, (uint32_t)v, NULL, 0);
        return;
    }
    if (p->n_attachments >= ATTACHMENTS_MAX) {
        answer(p, rq, SHM_TOO_MANY, NULL, 0);
        return;
    }
    if (is_dead(p->pidfd)) {
        bury(p);
        return;
    }
    /* Before it is sent: what is remembered too early only delays a fence. */
    remember(p, &(struct attachment){g.session, g.master_epoch, rq->extent.segment, rq->writable != 0});
    l->stats.attaches_total++;
    answer(p, rq, SHM_OK, m, g.session);
}

static void handle_detach(struct peer *p, const struct shm_request *rq) {
    for (unsigned i = 0; i < p->n_attachments;) {
        const struct attachment *a = &p->attachments[i];
        if (a->session == rq->session && a->segment == rq->extent.segment &&
            a->writable == (rq->writable != 0)) {
            p->attachments[i] = p->attachments[--p->n_attachments];
        } else {
            i++;
        }
    }
}

/* Looks for the sender's credentials, and closes descriptors nobody asked for. */
static pid_t sender(struct msghdr *msg) {
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
        hang_up(p);
        return false;
    }
    /* A mapping in a process we do not watch would be one we cannot fence: a child that inherited the socket is refused. */
    pid_t pid = sender(&msg);
    bool whole = got == (ssize_t)sizeof(rq) && (msg.msg_flags & MSG_TRUNC) == 0 && rq.magic == SHM_MAGIC &&
                 rq.writable <= 1;
    if (!whole || pid != p->pid || (rq.type != SHM_ATTACH && rq.type != SHM_DETACH)) {
        p->listener->stats.bad_frames++;
        hang_up(p);
        return false;
    }
    if (rq.version != SHM_VERSION) {
        answer(p, &rq, SHM_BAD_VERSION, NULL, 0);
    } else if (rq.type == SHM_ATTACH) {
        handle_attach(p, &rq);
    } else {
        handle_detach(p, &rq);
    }
    return p->fd >= 0;
}

void shm_serve(struct transport_domain *d) {
    struct epoll_event events[EVENTS_MAX];
    int n = epoll_wait(d->epoll_fd, events, EVENTS_MAX, 0);
    for (int i = 0; i < n; i++) {
        struct shm_tag *tag = events[i].data.ptr;
        if (tag->kind == SHM_TAG_LISTEN) {
            struct transport_listener *l = CONTAINER_OF(tag, struct transport_listener, tag);
            int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (fd >= 0) accept_peer(l, fd);
        } else if (tag->kind == SHM_TAG_PEER_PID) {
            struct peer *p = CONTAINER_OF(tag, struct peer, pid_tag);
            if (p->pidfd >= 0) bury(p); /* the process has ended, and its mappings with it */
        } else {
            struct peer *p = CONTAINER_OF(tag, struct peer, tag);
            for (int k = 0; k < REQUESTS_PER_TURN && p->fd >= 0 && handle_request(p); k++) {
            }
        }
    }
    struct transport_listener *l;
    LIST_FOREACH(l, &d->listeners, link) free_dead(l);
}

/* --- the listener --- */

tarn_status shm_listener_fence(struct transport_listener *l, uint64_t session, uint32_t below_epoch) {
    MAGIC_CHECK(l, LISTENER_MAGIC);
    const struct peer *p;
    LIST_FOREACH(p, &l->peers, link) {
        for (unsigned i = 0; i < p->n_attachments; i++) {
            const struct attachment *a = &p->attachments[i];
            if (!a->writable) continue; /* readers do no harm: they verify */
            if (session != 0 ? a->session == session : a->master_epoch < below_epoch) return TARN_EAGAIN;
        }
    }
    return TARN_OK;
}

/* A socket file nobody listens on is what a crashed host left. */
static bool remove_stale(const struct sockaddr_un *addr) {
    struct stat st;
    if (lstat(addr->sun_path, &st) != 0) return true;
    if (!S_ISSOCK(st.st_mode)) return false;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    bool alive = connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0 || errno == EAGAIN;
    close(fd);
    return !alive && unlink(addr->sun_path) == 0;
}

tarn_status shm_listen(struct transport_domain *d, const struct transport_listen_config *config,
                       struct transport_listener **listener_p) {
    struct transport_listener *l = xcalloc(1, sizeof(*l));
    const char *path;
    l->fd = -1;
    if (config->n_uris != 1 || !shm_address(config->uris[0], &l->addr, &path)) {
        free(l);
        return TARN_EINVAL;
    }
    l->tag.kind = SHM_TAG_LISTEN;
    l->magic = LISTENER_MAGIC;
    l->domain = d;
    l->gate = config->gate;
    l->max_peers = config->max_connections != 0 ? config->max_connections : PEERS_DEFAULT;
    LIST_INIT(&l->peers);
    LIST_INIT(&l->dead);
    mode_t mode = config->mode != 0 ? (mode_t)config->mode & 0777 : 0600;
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &l->tag};
    struct stat st;
    if (!remove_stale(&l->addr))
        errno = EADDRINUSE;
    else if ((l->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) >= 0 &&
             fchmod(l->fd, mode) ==
                 0 && /* in force from the first moment; what the umask took comes back below */
             bind(l->fd, (struct sockaddr *)&l->addr, sizeof(l->addr)) == 0 &&
             chmod(path, mode) == 0 && lstat(path, &st) == 0 && listen(l->fd, 128) == 0 &&
             epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, l->fd, &ev) == 0) {
        l->dev = st.st_dev;
        l->ino = st.st_ino;
        LIST_INSERT_HEAD(&d->listeners, l, link);
        *listener_p = l;
        return TARN_OK;
    }
    log_warning("shm socket %s: %s", path, strerror(errno));
    if (l->fd >= 0) close(l->fd);
    free(l);
    return TARN_EIO;
}

void shm_listener_close(struct transport_listener **listener_p) {
    struct transport_listener *l = *listener_p;
    if (l == NULL) return;
    MAGIC_CHECK(l, LISTENER_MAGIC);
    *listener_p = NULL;
    struct peer *p;
    while ((p = LIST_FIRST(&l->peers)) != NULL) bury(p);
    free_dead(l);
    struct stat st; /* another host may have taken the name over */
    if (lstat(l->addr.sun_path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
        unlink(l->addr.sun_path);
    close(l->fd);
    LIST_REMOVE(l, link);
    l->magic = 0;
    free(l);
}

void shm_listener_stats(const struct transport_listener *l, struct transport_listener_stats *stats_p) {
    *stats_p = l->stats;
}

void shm_listener_stats_reset(struct transport_listener *l) {
    l->stats = (struct transport_listener_stats){.connections = l->stats.connections};
}
