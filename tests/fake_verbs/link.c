/* One socket per connection, between two threads of this library. Out: messages of rdma_cm, answers
 * to requests of the other side, requests of ours, in this order, cut in packets. Small things are
 * staged; the bytes of a packet go straight from memory. link_in.c is the other direction. */
#include "fake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define TURN_BYTES (1u << 20)

struct fake_link *fake_link_create(int fd, struct fake_device *device) {
    struct fake_link *l = calloc(1, sizeof(*l));
    l->fd = fd;
    l->device = device;
    l->slot = fake_slot_take(FAKE_SLOT_LINK, l);
    LIST_INSERT_HEAD(&fake.links, l, link);
    l->frozen = !device->up || device->gone;
    return l;
}

static void close_socket(struct fake_link *l) {
    if (l->fd < 0) return;
    fake_watch(l->fd, l->slot, &l->watched, 0);
    fake_slot_give(l->slot);
    close(l->fd);
    l->fd = -1;
    l->dead = true;
}

/* Closed when nobody needs it. */
void fake_link_leave(struct fake_link *l) {
    if (l->id != NULL || l->qp != NULL) {
        fake_link_dirty(l);
        fake_nic_kick();
        return;
    }
    if (!l->dead) fake_link_flush(l);
    close_socket(l);
    if (l->dirty) TAILQ_REMOVE(&fake.dirty, l, dirty_link);
    LIST_REMOVE(l, link);
    free(l->body.spill);
    free(l);
}

/* The other side is not there any more. May free it. */
void fake_link_dead(struct fake_link *l) {
    bool told = !l->stalled && !l->frozen;
    close_socket(l);
    if (told) fake_cm_gone(l);
    if (l->id == NULL && l->qp == NULL) fake_link_leave(l);
}

void fake_link_dirty(struct fake_link *l) {
    if (l->dirty || l->dead) return;
    l->dirty = true;
    TAILQ_INSERT_TAIL(&fake.dirty, l, dirty_link);
}

void fake_link_recheck(struct fake_link *l) {
    bool frozen = l->cut || !l->device->up || l->device->gone;
    if (frozen == l->frozen || l->dead) return;
    l->frozen = frozen;
    fake_link_send(l, frozen ? FAKE_STALLED : FAKE_RESUMED, NULL);
}

/* --- control frames --- */

void fake_link_send(struct fake_link *l, uint8_t kind, const struct fake_greeting *greeting) {
    uint32_t length = greeting != NULL ? sizeof(*greeting) : 0;
    struct fake_frame f = {.magic = FAKE_MAGIC, .kind = kind, .length = length};
    if (l->dead || (l->frozen && kind != FAKE_STALLED)) return;
    if (l->ctl_len + sizeof(f) + length > sizeof(l->ctl))
        return; /* the other side has slept through all this */
    memcpy(l->ctl + l->ctl_len, &f, sizeof(f));
    if (length > 0) memcpy(l->ctl + l->ctl_len + sizeof(f), greeting, length);
    l->ctl_len += (uint32_t)sizeof(f) + length;
    fake_link_dirty(l);
    fake_nic_kick();
}

static void stage(struct fake_link *l, const void *p, uint32_t n) {
    memcpy(l->out + l->out_len, p, n);
    l->out_len += n;
}

/* --- bytes of a packet --- */

/* Bytes that a device moves are not the program's accesses: no sanitizer sees them. */
static void copy(void *to, const void *from, size_t n) {
#if defined(__x86_64__)
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
#else
    memcpy(to, from, n);
#endif
}

/* Where the packet goes on, and how far from there. NULL: it may not be read. */
static uint8_t *body_at(struct fake_link *l, uint32_t *length_p) {
    struct fake_body *b = &l->body;
    *length_p = b->left;
    if (b->kind == FAKE_BODY_SPILL) return b->spill + b->offset;
    if (b->kind == FAKE_BODY_REMOTE)
        return fake_mr_reach(b->rkey, l->qp->ibv.pd, b->addr, b->left, IBV_ACCESS_REMOTE_READ);
    if ((b->wqe->flags & IBV_SEND_INLINE) != 0) return b->wqe->inlined + b->offset;
    uint32_t from = b->offset;
    for (int i = 0; i < b->wqe->n_sge; i++) {
        const struct ibv_sge *s = &b->wqe->sge[i];
        if (from >= s->length) {
            from -= s->length;
            continue;
        }
        *length_p = (uint32_t)min_u64(b->left, s->length - from);
        return fake_mr_reach(s->lkey, l->qp->ibv.pd, s->addr + from, *length_p, 0);
    }
    return NULL;
}

static void body_advance(struct fake_link *l, uint32_t n) {
    struct fake_body *b = &l->body;
    b->left -= n;
    b->offset += n;
    b->addr += n;
    if (b->left > 0) return;
    free(b->spill);
    memset(b, 0, sizeof(*b));
}

void fake_link_spill(struct fake_link *l, uint32_t key) {
    struct fake_body *b = &l->body;
    if (b->kind != FAKE_BODY_LOCAL && b->kind != FAKE_BODY_REMOTE) return;
    if (key != 0 && b->kind == FAKE_BODY_REMOTE && b->rkey != key) return;
    struct fake_body spilt = {
        .kind = FAKE_BODY_SPILL, .left = b->left, .spill = calloc(1, b->left)};
    for (uint32_t at = 0, n; b->left > 0; at += n) {
        uint8_t *p = body_at(l, &n);
        if (p != NULL) copy(spilt.spill + at, p, n);
        body_advance(l, n);
    }
    *b = spilt;
}

/* The packet was announced, and its bytes are nowhere: zeros, and an error behind them. */
static void body_lost(struct fake_link *l) {
    bool local = l->body.kind == FAKE_BODY_LOCAL;
    uint32_t left = l->body.left;
    l->body = (struct fake_body){.kind = FAKE_BODY_SPILL, .left = left, .spill = calloc(1, left)};
    if (l->qp != NULL) fake_qp_fail(l->qp, local ? IBV_WC_LOC_PROT_ERR : IBV_WC_SUCCESS);
}

/* --- what goes out next --- */

static void stage_response(struct fake_link *l) {
    struct fake_response *r = &l->response[l->response_head];
    struct fake_frame f = {
        .magic = FAKE_MAGIC, .kind = r->kind, .status = r->status, .seq = r->seq};
    bool whole = true;
    if (r->kind == FAKE_READ_RESP) {
        f.total = r->total;
        f.offset = r->moved;
        f.length = (uint32_t)min_u64(r->total - r->moved, FAKE_PACKET);
        if (f.length > 0 && fake_mr_reach(r->rkey, l->qp->ibv.pd, r->addr + r->moved, f.length,
                                          IBV_ACCESS_REMOTE_READ) == NULL) {
            /* Deregistered while it was being read. */
            f = (struct fake_frame){.magic = FAKE_MAGIC,
                                    .kind = FAKE_NAK,
                                    .status = IBV_WC_REM_ACCESS_ERR,
                                    .seq = r->seq};
            stage(l, &f, sizeof(f));
            fake_qp_fail(l->qp, IBV_WC_SUCCESS);
            return;
        }
        r->moved += f.length;
        whole = r->moved == r->total;
        if (f.length > 0)
            l->body = (struct fake_body){.kind = FAKE_BODY_REMOTE,
                                         .rkey = r->rkey,
                                         .addr = r->addr + f.offset,
                                         .left = f.length};
    }
    stage(l, &f, sizeof(f));
    if (!whole) return;
    if (r->kind == FAKE_READ_RESP) l->reads--;
    l->response_head = (l->response_head + 1) % FAKE_RESPONSES;
    l->responses--;
}

/* false: it has to wait, or there is none. */
static bool stage_request(struct fake_link *l) {
    struct fake_qp *qp = l->qp;
    if (qp == NULL || qp->ibv.state != IBV_QPS_RTS || qp->sent == qp->posted || qp->lost)
        return false;
    struct fake_wqe *wqe = fake_qp_at(qp, qp->sent);
    if ((wqe->flags & IBV_SEND_FENCE) != 0 && qp->reads > 0 && wqe->moved == 0) return false;
    struct fake_frame f = {
        .magic = FAKE_MAGIC,
        .rkey = wqe->rkey,
        .total = wqe->length,
        .addr = wqe->remote_addr,
        .seq = qp->sent,
    };
    enum ibv_wc_status status = IBV_WC_SUCCESS;
    if (wqe->length > fake.limits.max_msg) status = IBV_WC_LOC_LEN_ERR;
    if (wqe->opcode == IBV_WR_RDMA_READ && qp->attr.max_rd_atomic == 0)
        status = IBV_WC_LOC_QP_OP_ERR;
    if (wqe->opcode == IBV_WR_RDMA_WRITE && status == IBV_WC_SUCCESS) {
        f.kind = FAKE_WRITE;
        f.offset = wqe->moved;
        f.length = (uint32_t)min_u64(wqe->length - wqe->moved, FAKE_PACKET);
        struct fake_body b = {
            .kind = FAKE_BODY_LOCAL, .wqe = wqe, .offset = wqe->moved, .left = f.length};
        for (uint32_t n; b.left > 0;
             b.left -= n, b.offset += n) { /* all of it, before a byte is announced */
            l->body = b;
            if (body_at(l, &n) == NULL) {
                status = IBV_WC_LOC_PROT_ERR;
                break;
            }
        }
        memset(&l->body, 0, sizeof(l->body));
        b = (struct fake_body){
            .kind = FAKE_BODY_LOCAL, .wqe = wqe, .offset = wqe->moved, .left = f.length};
        if (f.length > 0 && status == IBV_WC_SUCCESS) l->body = b;
    }
    if (status != IBV_WC_SUCCESS) {
        if (qp->done < qp->sent) return false; /* those before it end first */
        fake_qp_fail(qp, status);
        return false;
    }
    if (wqe->opcode == IBV_WR_RDMA_READ) {
        if (qp->reads >= qp->attr.max_rd_atomic) return false;
        f.kind = FAKE_READ;
        qp->reads++;
        qp->sent++;
    } else {
        wqe->moved += f.length;
        if (wqe->moved == wqe->length) qp->sent++;
    }
    stage(l, &f, sizeof(f));
    return true;
}

static void fill(struct fake_link *l) {
    if (l->out_at == l->out_len) l->out_at = l->out_len = 0;
    while (l->body.kind == FAKE_BODY_NONE && l->out_len + sizeof(l->ctl) <= sizeof(l->out)) {
        if (l->ctl_len > 0) {
            stage(l, l->ctl, l->ctl_len);
            l->ctl_len = 0;
        } else if (l->frozen) {
            return;
        } else if (l->responses > 0) {
            stage_response(l);
        } else if (!stage_request(l)) {
            return;
        }
    }
}

/* --- the socket --- */

/* Not through the library's sendmsg: a sanitizer would take the bytes for accesses of this
 * thread. */
static ssize_t send_some(struct fake_link *l) {
    struct iovec iov[2];
    size_t n = 0;
    if (l->out_len > l->out_at)
        iov[n++] = (struct iovec){l->out + l->out_at, l->out_len - l->out_at};
    if (l->body.kind != FAKE_BODY_NONE) {
        uint32_t length;
        uint8_t *p = body_at(l, &length);
        if (p != NULL && l->body.kind != FAKE_BODY_SPILL) fake_memory_check(p, length);
        if (p == NULL) {
            body_lost(l);
            p = body_at(l, &length);
        }
        iov[n++] = (struct iovec){p, length};
    }
    if (n == 0) return 0;
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
    ssize_t sent = syscall(SYS_sendmsg, l->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EFAULT && n == 2) {
        m.msg_iovlen = 1;
        sent = syscall(SYS_sendmsg, l->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    } else if (sent < 0 && errno == EFAULT) {
        body_lost(l);
        errno = EINTR;
    }
    return sent;
}

void fake_link_flush(struct fake_link *l) {
    size_t turn = 0;
    while (!l->dead && turn < TURN_BYTES) {
        fill(l);
        if (l->broken) { /* nobody reads it; what they wrote before is still to be read */
            l->out_at = l->out_len = 0;
            if (l->body.kind != FAKE_BODY_NONE) fake_link_spill(l, 0);
            if (l->body.kind != FAKE_BODY_NONE) body_advance(l, l->body.left);
            return;
        }
        ssize_t sent = send_some(l);
        if (sent == 0) return;
        if (sent < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN) return;
            l->broken = true;
            continue;
        }
        turn += (size_t)sent;
        uint32_t staged = (uint32_t)min_u64((uint64_t)sent, l->out_len - l->out_at);
        l->out_at += staged;
        if ((uint32_t)sent > staged) body_advance(l, (uint32_t)sent - staged);
    }
    if (!l->dead) fake_link_dirty(l);
}

static void watch(struct fake_link *l) {
    if (l->dead) return;
    bool out = !l->broken && (l->out_len > l->out_at || l->body.kind != FAKE_BODY_NONE);
    fake_watch(l->fd, l->slot, &l->watched,
               (fake_link_may_read(l) ? EPOLLIN : 0u) | (out ? EPOLLOUT : 0u));
}

void fake_link_io(struct fake_link *l, uint32_t events) {
    if (l->dead) return;
    bool input = (events & ~(uint32_t)EPOLLOUT) != 0;
    for (int i = 0; i < 16; i++) {
        if (input && !fake_link_input(l)) return;
        fake_link_flush(l);
        /* A request that waited for bytes to leave may go on now. */
        input = l->frame_have == sizeof(l->next) && !l->in_payload && fake_link_may_read(l);
        if (!input) break;
    }
    if (input) fake_link_dirty(l);
    watch(l);
}
