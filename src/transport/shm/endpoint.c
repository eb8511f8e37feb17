/* The client's side of shm: a unix socket to ask for memory, and loads and stores from then on. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/fd_pass.h"
#include "base/log.h"
#include "base/mapping.h"
#include "base/segment_header.h"
#include "transport/op.h"
#include "transport/shm/shm.h"

#define ENDPOINT_MAGIC    0x53455044u /* "SEPD" */
#define KEY_MAGIC         0x534b4559u /* "SKEY" */
#define ATTACH_DEFAULT_MS 5000u
#define REPLIES_LATE_MAX                                                                           \
    64 /* thrown away one by one at the end; closing the socket does it to the rest */
#define COPY_CHUNK     (1u << 20)
#define PREFETCH_BYTES 512u
#define PAST_TOTAL     (128u << 10) /* of an operation: from here on its parts go past the cache */
#define PAST_LENGTH    (4u << 10)   /* ... those that are as long as this */
#define ALONG_MAX      (64u << 10)  /* what the caches hold while as much is copied */
#define AROUND         (64u << 10)  /* what the kernel maps at once, if it is aligned */

struct transport_endpoint {
    uint32_t magic;
    struct transport_domain *domain;
    TAILQ_ENTRY(transport_endpoint) run_link;
    int fd;
    bool failed;
    unsigned refs; /* the owner, and keys */
    uint64_t next_id;
    struct op_queue ops;
};

struct transport_key {
    uint32_t magic;
    struct transport_endpoint *endpoint;
    struct segment_header *map;
    uint64_t map_size, size;
    uint32_t segment;
    bool writable;
    bool lent;                                      /* pointers into it are out */
    uint64_t attachment;                            /* the host's number for it */
    uint32_t master_epoch, segment_epoch, instance; /* when it was attached */
    struct shm_watch watch;                         /* of a writable one */
    uint8_t *touched;                               /* of a writable one: a bit per AROUND bytes */
};

struct shm_op {
    struct crc_track crc;
    struct op_walk at;
};

static struct shm_op *shm_op_of(struct transport_op *op) {
    return OP_STATE(struct shm_op, op);
}

/* --- endpoint --- */

tarn_status shm_connect(struct transport_domain *d, const char *uri, uint64_t deadline_boot_ms,
                        struct transport_endpoint **endpoint_p) {
    (void)deadline_boot_ms; /* a unix socket connects at once, or not */
    struct sockaddr_un addr;
    const char *path;
    if (!shm_address(uri, &addr, &path)) return TARN_EINVAL;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return TARN_EIO;
    if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0) {
        log_verbose("shm socket %s: %s", path, strerror(errno));
        tarn_status s = errno == EACCES || errno == EPERM ? TARN_EPERM : TARN_ECLOSED;
        close(fd);
        return s;
    }
    struct transport_endpoint *e = xcalloc(1, sizeof(*e));
    e->magic = ENDPOINT_MAGIC;
    e->domain = d;
    e->fd = fd;
    e->refs = 1;
    STAILQ_INIT(&e->ops);
    d->n_endpoints++;
    *endpoint_p = e;
    return TARN_OK;
}

tarn_status shm_endpoint_status(const struct transport_endpoint *e) {
    MAGIC_CHECK(e, ENDPOINT_MAGIC);
    return e->failed ? TARN_ECLOSED : TARN_OK;
}

/* Settled: they are our own stores, and over. */
static void complete_first(struct transport_endpoint *e, tarn_status status) {
    struct transport_op *op = STAILQ_TAKE(&e->ops, link);
    if (shm_op_of(op)->crc.past) crc32c_past_end(); /* once for all of its parts */
    e->domain->completed++;
    op_end(op, status, true);
}

static void throw_away_replies(struct transport_endpoint *e);

static void endpoint_unref(struct transport_endpoint *e) {
    if (--e->refs > 0) return;
    throw_away_replies(e);
    (void)shutdown(e->fd, SHUT_RDWR); /* a forked child may have it, too */
    close(e->fd);
    e->magic = 0;
    free(e);
}

void shm_endpoint_close(struct transport_endpoint **endpoint_p) {
    struct transport_endpoint *e = *endpoint_p;
    if (e == NULL) return;
    MAGIC_CHECK(e, ENDPOINT_MAGIC);
    *endpoint_p = NULL;
    while (!STAILQ_EMPTY(&e->ops)) complete_first(e, TARN_ECANCELED);
    TAILQ_UNLINK(&e->domain->runnable, e, run_link);
    e->domain->n_endpoints--;
    endpoint_unref(e); /* keys keep the socket, for their DETACH */
}

/* --- attaching --- */

static tarn_status reply_wait(int fd, uint64_t deadline_boot_ms) {
    for (;;) {
        uint64_t now = clock_boot_ms();
        if (now >= deadline_boot_ms) return TARN_ETIMEOUT;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int n = poll(&p, 1, (int)min_u64(deadline_boot_ms - now, 1000));
        if (n > 0) return TARN_OK;
        if (n < 0 && errno != EINTR) return TARN_EIO;
    }
}

/* The reply, and the descriptor that came with it (-1: none). */
static tarn_status receive_reply(struct transport_endpoint *e, struct shm_reply *reply_p,
                                 int *fd_p) {
    reply_p->program = 0; /* of a host that does not tell it */
    *fd_p = -1;
    ssize_t got = fd_pass_receive(e->fd, reply_p, sizeof(*reply_p), fd_p);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return TARN_EAGAIN;
    if (got <= 0) return TARN_ECLOSED;
    if ((got != (ssize_t)sizeof(*reply_p) && got != (ssize_t)SHM_REPLY_SHORT) ||
        reply_p->magic != SHM_MAGIC || reply_p->type != SHM_REPLY)
        return TARN_EPROTO;
    return TARN_OK;
}

/* If it does not arrive the host waits for our end: later, not wrong. */
static void send_detach(struct transport_endpoint *e, uint64_t attachment) {
    struct shm_request rq = {
        .magic = SHM_MAGIC,
        .version = SHM_VERSION,
        .type = SHM_DETACH,
        .request_id = ++e->next_id,
        .attachment = attachment,
    };
    ssize_t sent = send(e->fd, &rq, sizeof(rq), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) e->failed = true;
}

/* Memory that came too late, and that the host counts as ours. */
static void throw_away(struct transport_endpoint *e, const struct shm_reply *reply, int fd) {
    if (fd >= 0) close(fd);
    if (reply->status == SHM_OK) send_detach(e, reply->attachment);
}

static void throw_away_replies(struct transport_endpoint *e) {
    struct shm_reply reply = {0};
    int fd;
    tarn_status s;
    for (int n = 0;
         !e->failed && n < REPLIES_LATE_MAX && (s = receive_reply(e, &reply, &fd)) != TARN_EAGAIN;
         n++) {
        if (s == TARN_OK)
            throw_away(e, &reply, fd);
        else
            e->failed = true;
        if (s != TARN_OK && fd >= 0) close(fd);
    }
}

/* Sends the request and waits for its answer; answers to earlier ones that nobody waited for are
 * thrown away. */
static tarn_status attach_ask(struct transport_endpoint *e, struct shm_request *rq,
                              uint64_t deadline_boot_ms, struct shm_reply *reply_p, int *fd_p) {
    rq->request_id = ++e->next_id;
    if (send(e->fd, rq, sizeof(*rq), MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)sizeof(*rq)) {
        if (errno != EAGAIN) e->failed = true;
        return TARN_ECLOSED;
    }
    for (;;) {
        tarn_status s = reply_wait(e->fd, deadline_boot_ms);
        if (s != TARN_OK) return s;
        s = receive_reply(e, reply_p, fd_p);
        if (s == TARN_EAGAIN) continue;
        if (s == TARN_OK && reply_p->request_id == rq->request_id) return TARN_OK;
        if (s != TARN_OK) {
            if (*fd_p >= 0) close(*fd_p);
            e->failed = true;
            return s;
        }
        throw_away(e, reply_p, *fd_p);
    }
}

static tarn_status map_segment(struct transport_key *k, int fd, const struct shm_reply *reply,
                               const struct transport_key_config *config) {
    struct stat st;
    if (reply->header_size != SEGMENT_HEADER_SIZE || reply->size != config->size ||
        fstat(fd, &st) != 0 || (uint64_t)st.st_size < SEGMENT_HEADER_SIZE + reply->size) {
        return TARN_EPROTO;
    }
    k->size = reply->size;
    /* The file's size: hugetlb maps whole pages only. */
    k->map_size = (uint64_t)st.st_size;
    void *map = mapping_shared(fd, k->map_size, PROT_READ | (config->writable ? PROT_WRITE : 0));
    if (map == MAP_FAILED) {
        log_warning("Mapping segment %u: %s", config->segment, strerror(errno));
        return TARN_ENOMEM;
    }
    k->map = map;
    /* A child must not have it: the host watches this process only. */
    if (madvise(map, k->map_size, MADV_DONTFORK) != 0) return TARN_EIO;
    (void)madvise(map, k->map_size, MADV_DONTDUMP);
    struct segment_header h;
    memcpy(&h, map, offsetof(struct segment_header, master_epoch));
    if (!segment_header_valid(&h) || h.segment_id != config->segment || h.size != config->size)
        return TARN_EPROTO;
    if (config->content != NULL && memcmp(h.content, config->content, sizeof(h.content)) != 0)
        return TARN_ESTALE;
    k->master_epoch = segment_header_master_epoch(k->map);
    k->segment_epoch = segment_header_segment_epoch(k->map);
    k->instance = segment_header_instance(k->map);
    return k->segment_epoch == config->segment_epoch ? TARN_OK : TARN_ESTALE;
}

/* Takes the segment out of our address space. Where the caller holds pointers (a put in place while
 * its session was lost), private memory takes its place: late stores go nowhere instead of killing
 * the program. Those addresses are never given back. */
static void unmap_segment(struct transport_key *k) {
    if (k->map == NULL) return;
    shm_watch_remove(&k->watch);
    if (k->lent &&
        mmap(k->map, k->map_size, PROT_READ | PROT_WRITE,
             MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED) {
        return;
    }
    munmap(k->map, k->map_size);
}

tarn_status shm_key_unpack(struct transport_endpoint *e, const struct transport_key_config *config,
                           struct transport_key **key_p) {
    MAGIC_CHECK(e, ENDPOINT_MAGIC);
    if (e->failed) return TARN_ECLOSED;
    if (config->grant == NULL) return TARN_EINVAL;
    struct shm_request rq = {
        .magic = SHM_MAGIC,
        .version = SHM_VERSION,
        .type = SHM_ATTACH,
        .extent = {config->segment, config->segment_epoch, 0, config->size},
        .writable = config->writable,
        .program = program_own(),
    };
    memcpy(rq.grant, config->grant, GRANT_SIZE);
    struct shm_reply reply = {0};
    int fd;
    uint64_t deadline = config->deadline_boot_ms != 0 ? config->deadline_boot_ms
                                                      : clock_boot_ms() + ATTACH_DEFAULT_MS;
    tarn_status s = attach_ask(e, &rq, deadline, &reply, &fd);
    if (s != TARN_OK) return s;
    if (reply.status == SHM_OK && fd < 0) reply.status = UINT32_MAX;
    if (reply.status != SHM_OK) {
        if (fd >= 0) close(fd);
        return reply.status == SHM_TOO_MANY ? TARN_ELIMIT : grant_verdict_status(reply.status);
    }
    struct transport_key *k = xcalloc(1, sizeof(*k));
    k->magic = KEY_MAGIC;
    k->endpoint = e;
    e->refs++;
    k->segment = config->segment;
    k->writable = config->writable;
    k->attachment = reply.attachment;
    s = map_segment(k, fd, &reply, config);
    close(fd); /* the mapping is enough, and a child cannot inherit it */
    if (s != TARN_OK) {
        shm_key_close(&k);
        return s;
    }
    char program[PROGRAM_TEXT];
    program_write(program_told(reply.program), program);
    log_verbose("Segment %u is mapped: tarn %s", k->segment, program);
    if (k->writable) {
        shm_watch_add(&k->watch, e->fd, k->map, k->map_size);
        k->touched = xcalloc(k->map_size / AROUND / 8 + 2, 1);
    }
    *key_p = k;
    return TARN_OK;
}

void shm_key_close(struct transport_key **key_p) {
    struct transport_key *k = *key_p;
    if (k == NULL) return;
    MAGIC_CHECK(k, KEY_MAGIC);
    *key_p = NULL;
    unmap_segment(k);
    send_detach(k->endpoint, k->attachment);
    endpoint_unref(k->endpoint);
    k->magic = 0;
    free(k->touched);
    free(k);
}

static void *key_locate(struct transport_key *k, uint64_t offset, uint64_t length) {
    MAGIC_CHECK(k, KEY_MAGIC);
    if (offset > k->size || length > k->size - offset) return NULL;
    return (char *)k->map + SEGMENT_HEADER_SIZE + offset;
}

void *shm_key_map(struct transport_key *k, uint64_t offset, uint64_t length) {
    void *at = key_locate(k, offset, length);
    k->lent |= at != NULL;
    return at;
}

tarn_status shm_key_check(struct transport_key *k) {
    MAGIC_CHECK(k, KEY_MAGIC);
    bool same = segment_header_unchanged(k->map, k->master_epoch, k->segment_epoch) &&
                segment_header_instance(k->map) == k->instance;
    return same ? TARN_OK : TARN_ESTALE;
}

/* --- data --- */

static tarn_status shm_op_check(const struct transport_op *op) {
    for (size_t i = 0; i < op->n_parts; i++) {
        const struct grant_extent *x = &op->parts[i].extent;
        struct transport_key *k = op->parts[i].key;
        if (k == NULL || (op->kind == TRANSPORT_PUT && !k->writable)) return TARN_EPERM;
        if (x->segment != k->segment || key_locate(k, x->offset, x->length) == NULL)
            return TARN_EINVAL;
    }
    return op_is_sound(op) ? TARN_OK : TARN_EINVAL;
}

/* The loop that computes CRCs on its way stores past the cache and beats memcpy at these sizes,
 * even when nobody wants the CRC; only without the CPU's instructions it does not. */
static void copy_plain(const struct crc_track *t, void *to, const void *from, size_t len) {
    static _Thread_local int fast = -1;
    if (!t->past || len < PAST_LENGTH) {
        memcpy(to, from, len);
        return;
    }
    if (fast < 0) fast = strcmp(crc32c_impl(), "table") != 0;
    if (fast)
        (void)crc32c_copy_past(0, to, from, len, t->next);
    else
        memcpy(to, from, len);
}

tarn_status shm_submit(struct transport_endpoint *e, struct transport_op *const *ops, size_t n,
                       size_t *accepted_p) {
    MAGIC_CHECK(e, ENDPOINT_MAGIC);
    for (size_t i = 0; i < n; i++) {
        tarn_status s = shm_op_check(ops[i]);
        if (s != TARN_OK) return s;
    }
    for (size_t i = 0; i < n; i++) {
        struct shm_op *st = shm_op_of(ops[i]);
        *st = (struct shm_op){.at.local = iov_cursor(ops[i]->iov, ops[i]->n_iov)};
        crc_track_init(&st->crc, ops[i]);
        st->crc.past = iov_total(ops[i]->iov, ops[i]->n_iov) >= PAST_TOTAL;
        STAILQ_INSERT_TAIL(&e->ops, ops[i], link);
    }
    if (!TAILQ_LINKED(e, run_link) && !STAILQ_EMPTY(&e->ops))
        TAILQ_INSERT_TAIL(&e->domain->runnable, e, run_link);
    *accepted_p = n;
    return TARN_OK;
}

/* The processor's own prefetching ends at a page, and small parts lie anywhere: what is copied next
 * (goes_on, unless that is NULL, or what follows in op) is on its way while this is copied, all of
 * it (along: it is returned for that) or its start. */
static const char *fetch_next(const struct transport_op *op, const struct op_walk *at,
                              const char *goes_on, bool along) {
    const char *next = goes_on;
    if (next == NULL && op->kind == TRANSPORT_PUT) {
        if (at->local.n > 1) next = at->local.iov[1].iov_base;
    } else if (next == NULL && at->part + 1 < op->n_parts) {
        const struct transport_part *p = &op->parts[at->part + 1];
        next = (const char *)p->key->map + SEGMENT_HEADER_SIZE + p->extent.offset + p->sub_offset;
    }
    if (along) return next;
    for (size_t i = 0; next != NULL && i < PREFETCH_BYTES; i += 64) __builtin_prefetch(next + i);
    return NULL;
}

/* Pages that this process has not touched yet. A load brings in all that are populated of the
 * AROUND bytes that it lies in, ready to be written to; a store its own only, with which a client's
 * first puts would take several times as long as later ones. */
static void touch_pages(struct transport_key *k, const char *at, uint64_t len) {
    const char *base = (const char *)((uintptr_t)k->map / AROUND * AROUND), *end = at + len;
    while (at < end) {
        size_t i = (size_t)(at - base) / AROUND;
        uint8_t bit = (uint8_t)(1u << i % 8);
        if (!(k->touched[i / 8] & bit)) (void)*(volatile const char *)at;
        k->touched[i / 8] |= bit;
        at = base + (i + 1) * AROUND;
    }
}

/* Copies the next piece of op. 0: all is copied. */
static uint64_t copy_some(struct transport_op *op) {
    struct shm_op *st = shm_op_of(op);
    const struct transport_part *p = op_part(op, &st->at);
    if (p == NULL) return 0;
    struct iovec here = iov_here(&st->at.local);
    bool get = op->kind == TRANSPORT_GET;
    uint64_t of_part = p->sub_length - st->at.offset, source = get ? of_part : here.iov_len,
             len = min_u64(min_u64(of_part, here.iov_len), COPY_CHUNK);
    char *there = key_locate(p->key, p->extent.offset + p->sub_offset + st->at.offset, len);
    char *to = get ? here.iov_base : there, *from = get ? there : here.iov_base;
    st->crc.next = fetch_next(op, &st->at, source > len ? from + len : NULL,
                              st->crc.past && len >= PAST_LENGTH && len <= ALONG_MAX);
    if (!get) touch_pages(p->key, there, len);
    if (op->crcs != NULL)
        crc_track_feed(&st->crc, op, to, from, len);
    else
        copy_plain(&st->crc, to, from, len);
    st->at.offset += len;
    iov_advance(&st->at.local, len);
    return len;
}

/* Nobody hosts this any more when its epochs have changed: what was copied may be anything. */
static tarn_status check_epochs(const struct transport_op *op) {
    for (size_t i = 0; i < op->n_parts; i++) {
        struct transport_key *k = op->parts[i].key;
        uint32_t epoch = op->parts[i].extent.segment_epoch;
        if (i > 0 && op->parts[i - 1].key == k && op->parts[i - 1].extent.segment_epoch == epoch)
            continue;
        if (op->parts[i].extent.segment_epoch != k->segment_epoch || shm_key_check(k) != TARN_OK)
            return TARN_ESTALE;
    }
    return TARN_OK;
}

void shm_run(struct transport_domain *d, uint64_t budget) {
    uint64_t spent = 0;
    while (!TAILQ_EMPTY(&d->runnable) && spent <= budget) {
        struct transport_endpoint *e = TAILQ_FIRST(&d->runnable);
        struct transport_op *op = STAILQ_FIRST(&e->ops);
        uint64_t n = op != NULL ? copy_some(op) : 0;
        spent += n + 64;
        if (n > 0) continue;
        if (op != NULL) complete_first(e, check_epochs(op));
        if (STAILQ_EMPTY(&e->ops)) TAILQ_UNLINK(&d->runnable, e, run_link);
    }
}
