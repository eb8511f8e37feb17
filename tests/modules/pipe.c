/* A whole transport in one file, as docs/TRANSPORTS.md says how to make one: requests over a unix
 * stream socket, which a thread for each connection serves. No file of src/ knows of it.
 *
 *   client: hello <-, then for each operation  request, parts, bytes of a PUT ->
 *                                              <- reply, receipts, bytes of a GET */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "plain.h"
#include "transport/crc_track.h"
#include "transport/transport.h"

#define PIPE_PARTS_MAX 1024u
#define PIPE_PIECE     (64u << 10)

struct request {
    uint32_t kind, n_parts;
    bool seals;
};
struct part {
    struct grant_extent extent;
    uint64_t sub_offset, sub_length;
    uint8_t grant[GRANT_SIZE];
};

struct transport_domain {
    int epoll_fd, event_fd;
    LIST_HEAD(, transport_endpoint) endpoints;
};
struct transport_memory {
    struct transport_domain *domain;
};
struct transport_endpoint {
    LIST_ENTRY(transport_endpoint) link;
    struct transport_domain *domain;
    int fd;
    tarn_status status; /* TARN_EAGAIN: no hello yet */
    uint64_t deadline_ms, moved_ms;
    STAILQ_HEAD(, transport_op) ops;
    /* Of the first one: what goes out, what comes in, and how far that is. */
    struct request request;
    struct part *parts; /* NULL: it has not begun */
    uint32_t reply;
    struct iovec *out, *in;
    size_t n_out, n_in;
    uint64_t sent, received;
};
struct peer { /* a connection as the host sees it, and its thread */
    LIST_ENTRY(peer) link;
    struct transport_listener *listener;
    int fd;
    uint64_t session; /* 0: it has shown no good grant yet */
    uint32_t epoch;
    struct part parts[PIPE_PARTS_MAX];
    struct grant grants[PIPE_PARTS_MAX];
    void *at[PIPE_PARTS_MAX];
    uint8_t receipts[TRANSPORT_SEAL_PARTS_MAX * GRANT_RECEIPT_SIZE];
    char piece[PIPE_PIECE];
};
struct transport_listener {
    struct transport_domain *domain;
    struct transport_gate gate;
    int fd;
    char uri[64];
    pthread_t thread;
    pthread_mutex_t lock; /* also held while a peer's thread touches the memory of a segment */
    pthread_cond_t gone;
    LIST_HEAD(, peer) peers;
    struct transport_listener_stats stats;
};

/* Moves what it can from *at on. 1: all is done; 0: later; -1: the connection is over. */
static int move_some(int fd, bool out, const struct iovec *iov, size_t n, uint64_t *at) {
    for (;;) {
        struct iovec now[64];
        struct msghdr message = {.msg_iov = now};
        uint64_t skip = *at;
        for (size_t i = 0; i < n && message.msg_iovlen < ARRAY_LEN(now); i++) {
            if (skip < iov[i].iov_len)
                now[message.msg_iovlen++] =
                    (struct iovec){(char *)iov[i].iov_base + skip, iov[i].iov_len - skip};
            skip -= min_u64(skip, iov[i].iov_len);
        }
        if (message.msg_iovlen == 0) return 1;
        ssize_t got = out ? sendmsg(fd, &message, MSG_NOSIGNAL) : recvmsg(fd, &message, 0);
        if (got > 0)
            *at += (uint64_t)got;
        else if (got == 0 || errno != EINTR)
            return got < 0 && errno == EAGAIN ? 0 : -1;
    }
}

static bool move_all(int fd, bool out, void *data, size_t len) {
    uint64_t at = 0;
    return move_some(fd, out, &(struct iovec){data, len}, 1, &at) == 1;
}

/* --- the host's side --- */

static enum grant_verdict admit(struct peer *p, const struct request *r, size_t i) {
    const struct transport_gate *g = &p->listener->gate;
    const struct part *part = &p->parts[i];
    enum grant_verdict v = g->check(g->arg, part->grant, &part->extent,
                                    r->kind == TRANSPORT_PUT ? GRANT_WRITE : GRANT_READ,
                                    part->sub_offset, part->sub_length, &p->grants[i], &p->at[i]);
    if (v == GRANT_OK && p->at[i] == NULL) v = GRANT_BAD_OP; /* a segment that is no memory */
    pthread_mutex_lock(&p->listener->lock);                  /* fences look at whose it is */
    if (v == GRANT_OK && p->session != 0 && p->session != p->grants[i].session) v = GRANT_BAD_OP;
    if (v == GRANT_OK) {
        p->session = p->grants[i].session;
        p->epoch = p->grants[i].master_epoch;
    }
    pthread_mutex_unlock(&p->listener->lock);
    return v;
}

/* The bytes of one part. They go by a piece of our own: nobody waits for a peer with the lock
 * held, and after a fence, which takes it, recheck lets nothing more through. */
static bool move_part(struct peer *p, const struct request *r, size_t i, enum grant_verdict *v) {
    struct transport_listener *l = p->listener;
    const struct part *part = &p->parts[i];
    bool put = r->kind == TRANSPORT_PUT, ok = true;
    void *once = NULL;
    uint64_t done = 0;
    if (put && *v == GRANT_OK && p->grants[i].op == GRANT_WRITE_ONCE)
        *v = l->gate.put_begin(l->gate.arg, &p->grants[i], &part->extent, &once);
    for (uint64_t at = 0, n; ok && at < part->sub_length; at += n) {
        n = min_u64(part->sub_length - at, PIPE_PIECE);
        if (put) ok = move_all(p->fd, false, p->piece, n);
        pthread_mutex_lock(&l->lock);
        char *there = (char *)p->at[i] + at;
        if (ok && *v == GRANT_OK) *v = l->gate.recheck(l->gate.arg, &p->grants[i], &part->extent);
        if (ok && *v == GRANT_OK) {
            memcpy(put ? there : p->piece, put ? p->piece : there, n);
            done += n;
        }
        pthread_mutex_unlock(&l->lock);
        if (!put) ok = *v == GRANT_OK && move_all(p->fd, true, p->piece, n);
    }
    if (once != NULL) l->gate.put_end(l->gate.arg, once, part->sub_offset, done);
    return ok;
}

static bool serve_one(struct peer *p) {
    struct transport_listener *l = p->listener;
    struct request r;
    uint64_t bytes = 0;
    enum grant_verdict v = GRANT_OK;
    if (!move_all(p->fd, false, &r, sizeof(r)) || r.n_parts == 0 || r.n_parts > PIPE_PARTS_MAX ||
        (r.seals && r.n_parts > TRANSPORT_SEAL_PARTS_MAX) ||
        !move_all(p->fd, false, p->parts, r.n_parts * sizeof(p->parts[0])))
        return false;
    for (size_t i = 0; i < r.n_parts && v == GRANT_OK; i++) v = admit(p, &r, i);
    bool put = r.kind == TRANSPORT_PUT, ok = true;
    for (size_t i = 0; i < r.n_parts; i++) bytes += p->parts[i].sub_length;
    for (size_t i = 0; put && ok && i < r.n_parts; i++) ok = move_part(p, &r, i, &v);
    for (size_t i = 0; r.seals && ok && v == GRANT_OK && i < r.n_parts; i++)
        v = l->gate.put_seal(l->gate.arg, &p->grants[i], &p->parts[i].extent,
                             p->receipts + i * GRANT_RECEIPT_SIZE);
    pthread_mutex_lock(&l->lock);
    l->stats.refused[v] += v != GRANT_OK;
    *(put ? &l->stats.writes : &l->stats.reads) += v == GRANT_OK;
    *(put ? &l->stats.bytes_written : &l->stats.bytes_read) += v == GRANT_OK ? bytes : 0;
    pthread_mutex_unlock(&l->lock);
    uint32_t reply = v;
    ok = ok && move_all(p->fd, true, &reply, sizeof(reply));
    if (r.seals)
        ok = ok && move_all(p->fd, true, p->receipts, r.n_parts * (size_t)GRANT_RECEIPT_SIZE);
    for (size_t i = 0; !put && ok && reply == GRANT_OK && i < r.n_parts; i++)
        ok = move_part(p, &r, i, &v);
    return ok;
}

static void *serve(void *arg) {
    struct peer *p = arg;
    struct transport_listener *l = p->listener;
    char hello = 'p';
    bool ok = move_all(p->fd, true, &hello, 1);
    while (ok) ok = serve_one(p);
    pthread_mutex_lock(&l->lock);
    LIST_REMOVE(p, link);
    l->stats.connections--;
    close(p->fd);
    (void)eventfd_write(l->domain->event_fd, 1);
    pthread_cond_signal(&l->gone);
    pthread_mutex_unlock(&l->lock);
    free(p);
    return NULL;
}

static void *accept_all(void *arg) {
    struct transport_listener *l = arg;
    for (int fd; (fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0 || errno != EINVAL;) {
        if (fd < 0) continue;
        struct peer *p = xcalloc(1, sizeof(*p));
        pthread_t thread;
        p->listener = l;
        p->fd = fd;
        pthread_mutex_lock(&l->lock);
        LIST_INSERT_HEAD(&l->peers, p, link);
        l->stats.connections++;
        l->stats.connections_total++;
        pthread_mutex_unlock(&l->lock);
        TARN_ASSERT(pthread_create(&thread, NULL, serve, p) == 0);
        pthread_detach(thread);
    }
    return NULL;
}

/* "pipe:///name": a name that is in no file system. */
static bool address_of(const char *uri, struct sockaddr_un *a, socklen_t *len_p) {
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strncmp(uri, "pipe:///", 8) != 0 || strlen(uri + 8) >= sizeof(a->sun_path)) return false;
    memcpy(a->sun_path + 1, uri + 8, strlen(uri + 8));
    *len_p = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(uri + 8));
    return true;
}

static tarn_status pipe_listen(struct transport_domain *d,
                               const struct transport_listen_config *config,
                               struct transport_listener **listener_p) {
    static unsigned number;
    struct sockaddr_un a;
    socklen_t len;
    struct transport_listener *l = xcalloc(1, sizeof(*l));
    l->domain = d;
    l->gate = config->gate;
    snprintf(l->uri, sizeof(l->uri), "pipe:///tarn-pipe-%d-%u", (int)getpid(),
             __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED));
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->gone, NULL);
    if (l->fd < 0 || !address_of(l->uri, &a, &len) ||
        bind(l->fd, (const struct sockaddr *)&a, len) != 0 || listen(l->fd, SOMAXCONN) != 0 ||
        pthread_create(&l->thread, NULL, accept_all, l) != 0) {
        if (l->fd >= 0) close(l->fd);
        free(l);
        return TARN_EIO;
    }
    *listener_p = l;
    return TARN_OK;
}

static void listener_close(struct transport_listener **listener_p) {
    struct transport_listener *l = *listener_p;
    struct peer *p;
    *listener_p = NULL;
    shutdown(l->fd, SHUT_RDWR);
    pthread_join(l->thread, NULL);
    pthread_mutex_lock(&l->lock);
    LIST_FOREACH(p, &l->peers, link) shutdown(p->fd, SHUT_RDWR);
    while (!LIST_EMPTY(&l->peers)) pthread_cond_wait(&l->gone, &l->lock);
    pthread_mutex_unlock(&l->lock);
    close(l->fd);
    free(l);
}

static tarn_status listener_fence(struct transport_listener *l, const struct transport_fence *f) {
    tarn_status status = TARN_OK;
    struct peer *p;
    pthread_mutex_lock(&l->lock); /* nobody is at the memory; who comes later is refused */
    LIST_FOREACH(p, &l->peers, link) {
        if (p->session == 0 ||
            (f->kind == TRANSPORT_FENCE_SESSION
                 ? p->session != f->session
                 : f->kind != TRANSPORT_FENCE_BEFORE || p->epoch >= f->master_epoch))
            continue;
        shutdown(p->fd, SHUT_RDWR);
        status = TARN_EAGAIN;
    }
    pthread_mutex_unlock(&l->lock);
    return status;
}

static tarn_status listener_uri(const struct transport_listener *l, struct buf *out) {
    buf_append_str(out, l->uri);
    return TARN_OK;
}
static void listener_stats(const struct transport_listener *l,
                           struct transport_listener_stats *stats_p) {
    struct transport_listener *mine = (struct transport_listener *)(uintptr_t)l;
    pthread_mutex_lock(&mine->lock);
    *stats_p = l->stats;
    pthread_mutex_unlock(&mine->lock);
}

/* --- the client's side --- */

static tarn_status pipe_connect(struct transport_domain *d, const char *uri,
                                uint64_t deadline_boot_ms, struct transport_endpoint **endpoint_p) {
    struct sockaddr_un a;
    socklen_t len;
    if (!address_of(uri, &a, &len)) return TARN_EINVAL;
    struct transport_endpoint *e = xcalloc(1, sizeof(*e));
    e->domain = d;
    e->status = TARN_EAGAIN;
    e->deadline_ms = deadline_boot_ms != 0 ? deadline_boot_ms : clock_boot_ms() + 5000;
    STAILQ_INIT(&e->ops);
    e->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct epoll_event ev = {.events = EPOLLIN};
    if (e->fd < 0 || connect(e->fd, (const struct sockaddr *)&a, len) != 0 ||
        epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, e->fd, &ev) != 0) {
        if (e->fd >= 0) close(e->fd);
        free(e);
        return TARN_ECLOSED;
    }
    LIST_INSERT_HEAD(&d->endpoints, e, link);
    *endpoint_p = e;
    return TARN_OK;
}

static tarn_status endpoint_status(const struct transport_endpoint *e) {
    return e->status;
}

/* The first operation is over. sent: some of it is, and nobody has said that it came to its end. */
static void complete(struct transport_endpoint *e, tarn_status status, bool settled) {
    struct transport_op *op = STAILQ_FIRST(&e->ops);
    STAILQ_REMOVE_HEAD(&e->ops, link);
    op->status = status;
    op->settled = settled || e->sent == 0;
    free(e->parts);
    free(e->out);
    e->parts = NULL;
    e->sent = e->received = 0;
    op->done(op);
}

/* settled: the peer has closed the connection, and writes nothing more. */
static size_t end_all(struct transport_endpoint *e, tarn_status status, bool settled) {
    size_t n = 0;
    e->status = status;
    for (; !STAILQ_EMPTY(&e->ops); n++) complete(e, status, settled);
    return n;
}

static void endpoint_close(struct transport_endpoint **endpoint_p) {
    struct transport_endpoint *e = *endpoint_p;
    (void)end_all(e, TARN_ECANCELED, false);
    LIST_REMOVE(e, link);
    shutdown(e->fd, SHUT_RDWR); /* a child of ours may have it, too */
    epoll_ctl(e->domain->epoll_fd, EPOLL_CTL_DEL, e->fd, NULL);
    close(e->fd);
    free(e);
    *endpoint_p = NULL;
}

static tarn_status submit(struct transport_endpoint *e, struct transport_op *const *ops, size_t n,
                          size_t *accepted_p) {
    if (e->status != TARN_OK && e->status != TARN_EAGAIN) return e->status;
    if (STAILQ_EMPTY(&e->ops)) e->moved_ms = clock_boot_ms();
    for (size_t i = 0; i < n; i++) {
        STAILQ_INSERT_TAIL(&e->ops, ops[i], link);
    }
    (void)eventfd_write(e->domain->event_fd, 1);
    *accepted_p = n;
    return TARN_OK;
}

static void feed_crcs(const struct transport_op *op) {
    struct crc_track t;
    crc_track_init(&t, op);
    for (size_t i = 0; op->crcs != NULL && i < op->n_iov; i++)
        crc_track_feed(&t, op, NULL, op->iov[i].iov_base, op->iov[i].iov_len);
}

static void begin_first(struct transport_endpoint *e) {
    const struct transport_op *op = STAILQ_FIRST(&e->ops);
    bool put = op->kind == TRANSPORT_PUT;
    e->request = (struct request){op->kind, (uint32_t)op->n_parts, put && op->receipts != NULL};
    e->parts = xcalloc(op->n_parts, sizeof(*e->parts));
    for (size_t i = 0; i < op->n_parts; i++) {
        const struct transport_part *p = &op->parts[i];
        e->parts[i] = (struct part){p->extent, p->sub_offset, p->sub_length, {0}};
        memcpy(e->parts[i].grant, p->grant, GRANT_SIZE);
    }
    e->out = xcalloc(op->n_iov + 4, sizeof(*e->out));
    e->out[0] = (struct iovec){&e->request, sizeof(e->request)};
    e->out[1] = (struct iovec){e->parts, op->n_parts * sizeof(*e->parts)};
    e->n_out = put ? 2 + op->n_iov : 2;
    e->in = &e->out[e->n_out];
    e->in[0] = (struct iovec){&e->reply, sizeof(e->reply)};
    e->in[1] = (struct iovec){op->receipts, e->request.seals * op->n_parts * GRANT_RECEIPT_SIZE};
    e->n_in = put ? 2 : 1 + op->n_iov;
    if (op->n_iov > 0) memcpy(put ? &e->out[2] : &e->in[1], op->iov, op->n_iov * sizeof(*op->iov));
    if (put) feed_crcs(op);
}

static tarn_status status_of(uint32_t verdict) {
    return verdict == GRANT_OK                                 ? TARN_OK
           : verdict == GRANT_BAD_EPOCH                        ? TARN_ESTALE
           : verdict == GRANT_EXPIRED || verdict == GRANT_OVER ? TARN_EGRANT_EXPIRED
           : verdict == GRANT_LATER                            ? TARN_ELIMIT
                                                               : TARN_EPERM;
}

/* As far as the first operation goes now. true: it is over. */
static bool move_first(struct transport_endpoint *e) {
    struct transport_op *op = STAILQ_FIRST(&e->ops);
    if (e->parts == NULL) begin_first(e);
    uint64_t before = e->sent + e->received;
    int out = move_some(e->fd, true, e->out, e->n_out, &e->sent);
    /* The reply alone says whether bytes follow. A host that refuses reads all of a PUT first. */
    int in = move_some(e->fd, false, e->in, 1, &e->received);
    bool more = in == 1 && (e->reply == GRANT_OK || e->request.seals);
    if (more) in = move_some(e->fd, false, e->in, e->n_in, &e->received);
    if (e->sent + e->received > before) e->moved_ms = clock_boot_ms();
    if (in == 1) {
        if (op->kind == TRANSPORT_GET && e->reply == GRANT_OK) feed_crcs(op);
        complete(e, status_of(e->reply), true);
    } else if (in < 0 || out < 0) {
        (void)end_all(e, TARN_ECLOSED, in < 0);
    } else if (op->patience_ms != 0 && clock_boot_ms() - e->moved_ms > op->patience_ms) {
        (void)end_all(e, TARN_ETIMEOUT, false);
    } else {
        struct epoll_event ev = {.events = out == 0 ? EPOLLIN | EPOLLOUT : EPOLLIN};
        epoll_ctl(e->domain->epoll_fd, EPOLL_CTL_MOD, e->fd, &ev);
        return false;
    }
    return true;
}

static void greet(struct transport_endpoint *e) {
    char hello;
    uint64_t at = 0;
    int got = move_some(e->fd, false, &(struct iovec){&hello, 1}, 1, &at);
    if (got == 1) e->status = TARN_OK;
    if (got < 0) (void)end_all(e, TARN_ECLOSED, true);
    if (got == 0 && clock_boot_ms() >= e->deadline_ms) (void)end_all(e, TARN_ETIMEOUT, true);
}

static size_t progress(struct transport_domain *d, uint64_t budget) {
    size_t done = 0;
    struct transport_endpoint *e;
    eventfd_t ignored;
    (void)eventfd_read(d->event_fd, &ignored);
    LIST_FOREACH(e, &d->endpoints, link) {
        size_t waited = !STAILQ_EMPTY(&e->ops);
        if (e->status == TARN_EAGAIN) greet(e);
        if (e->status == TARN_OK)
            while (!STAILQ_EMPTY(&e->ops) && move_first(e)) done++;
        else
            done += waited && STAILQ_EMPTY(&e->ops);
    }
    return done;
}

/* --- the rest of the table --- */

static tarn_status domain_open(const struct transport_domain_config *config,
                               struct transport_domain **domain_p) {
    struct transport_domain *d = xcalloc(1, sizeof(*d));
    d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    d->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN};
    TARN_ASSERT(epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, d->event_fd, &ev) == 0);
    *domain_p = d;
    return TARN_OK;
}
static void domain_close(struct transport_domain **domain_p) {
    close((*domain_p)->epoll_fd);
    close((*domain_p)->event_fd);
    free(*domain_p);
    *domain_p = NULL;
}
static tarn_status arm(struct transport_domain *d, int *fd_p) {
    *fd_p = d->epoll_fd;
    return TARN_OK;
}
static tarn_status memory_register(struct transport_domain *d,
                                   const struct transport_memory_config *config,
                                   struct transport_memory **memory_p) {
    if (config->dmabuf) return TARN_ENOTSUP;
    *memory_p = xcalloc(1, sizeof(**memory_p));
    (*memory_p)->domain = d;
    return TARN_OK;
}
static void memory_deregister(struct transport_memory **memory_p) {
    free(*memory_p);
    *memory_p = NULL;
}
static tarn_status key_pack(struct transport_memory *m, bool writable, struct buf *out) {
    return TARN_OK; /* the URI says all */
}
static uint64_t memory_version(const struct transport_memory *m) {
    return 1;
}

static const struct transport_ops pipe_transport = {
    .abi = TRANSPORT_ABI,
    .flags = TRANSPORT_GRANTED | TRANSPORT_ANNOUNCES,
    .cost = 40,
    .scheme = "pipe",
    .domain_open = domain_open,
    .domain_close = domain_close,
    .memory_register = memory_register,
    .key_pack = key_pack,
    .memory_version = memory_version,
    .memory_deregister = memory_deregister,
    .listen = pipe_listen,
    .listener_uri = listener_uri,
    .listener_stats = listener_stats,
    .listener_fence = listener_fence,
    .listener_close = listener_close,
    .connect = pipe_connect,
    .endpoint_status = endpoint_status,
    .endpoint_close = endpoint_close,
    .submit = submit,
    .progress = progress,
    .arm = arm,
};

static tarn_status load(const struct tarn_services *services, size_t argc, const char *const *argv,
                        char *error, size_t error_cap) {
    return services->transport_register(&pipe_transport);
}

SHOWN extern const struct tarn_module tarn_module_v1;
const struct tarn_module tarn_module_v1 = {.transport_abi = TRANSPORT_ABI,
                                           PLAIN_MODULE("pipe", load)};
