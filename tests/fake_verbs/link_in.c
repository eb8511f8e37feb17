/* What arrives on a connection. The responder's program has no part in it: keys, rights and states
 * are checked here, and bytes go where they belong. Requests are done in their order, and a WRITE
 * behind a READ waits until that one's bytes are on their way. */
#include "fake.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define TURN_BYTES (1u << 20)

/* --- the responder --- */

static void respond(struct fake_link *l, struct fake_response r) {
    TARN_ASSERT(l->responses < FAKE_RESPONSES);
    if (r.kind == FAKE_ACK && l->responses > 0) { /* one for several */
        struct fake_response *last =
            &l->response[(l->response_head + l->responses - 1) % FAKE_RESPONSES];
        if (last->kind == FAKE_ACK) {
            last->seq = r.seq;
            return;
        }
    }
    if (r.kind == FAKE_READ_RESP) l->reads++;
    l->response[(l->response_head + l->responses++) % FAKE_RESPONSES] = r;
}

static bool responds(const struct fake_link *l) {
    return l->qp != NULL && (l->qp->ibv.state == IBV_QPS_RTR || l->qp->ibv.state == IBV_QPS_RTS);
}

/* What the other side asked for is not to be: both queue pairs end. */
static void refuse(struct fake_link *l, uint64_t seq) {
    struct fake_qp *qp = l->qp;
    struct ibv_async_event event = {.element.qp = &qp->ibv, .event_type = IBV_EVENT_QP_ACCESS_ERR};
    fake.served.refused++;
    fake_qp_fail(qp, IBV_WC_SUCCESS);
    respond(l,
            (struct fake_response){.kind = FAKE_NAK, .status = IBV_WC_REM_ACCESS_ERR, .seq = seq});
    fake_async_raise(fake_context_of(qp->ibv.context), &event);
}

static bool allowed(const struct fake_link *l, const struct fake_frame *f, unsigned access) {
    if ((l->qp->attr.qp_access_flags & access) == 0) return false;
    if (f->total == 0) return true; /* no key is looked at */
    return fake_mr_reach(f->rkey, l->qp->ibv.pd, f->addr, f->total, access) != NULL;
}

static void write_begins(struct fake_link *l) {
    const struct fake_frame *f = &l->frame;
    l->discard = true;
    if (!responds(l)) {
        fake_link_send(l, FAKE_LOST, NULL);
    } else if ((uint64_t)f->offset + f->length > f->total ||
               !allowed(l, f, IBV_ACCESS_REMOTE_WRITE)) {
        refuse(l, f->seq);
    } else {
        l->discard = false;
    }
}

static void write_ends(struct fake_link *l) {
    const struct fake_frame *f = &l->frame;
    if (l->discard || !responds(l) || f->offset + f->length < f->total) return;
    fake.served.writes++;
    respond(l, (struct fake_response){.kind = FAKE_ACK, .seq = f->seq});
}

static void read_wanted(struct fake_link *l) {
    const struct fake_frame *f = &l->frame;
    if (!responds(l)) {
        fake_link_send(l, FAKE_LOST, NULL);
    } else if (!allowed(l, f, IBV_ACCESS_REMOTE_READ) ||
               l->reads >= l->qp->attr.max_dest_rd_atomic) {
        refuse(l, f->seq);
    } else {
        fake.served.reads++;
        respond(l, (struct fake_response){.kind = FAKE_READ_RESP,
                                          .rkey = f->rkey,
                                          .total = f->total,
                                          .addr = f->addr,
                                          .seq = f->seq});
    }
}

/* --- the requester --- */

/* Is this an answer to the oldest request? Late ones to a queue pair that has failed are not. */
static bool answers(const struct fake_link *l, enum ibv_wr_opcode opcode) {
    struct fake_qp *qp = l->qp;
    if (qp == NULL || qp->ibv.state != IBV_QPS_RTS || qp->done == qp->sent) return false;
    return l->frame.seq == qp->done && fake_qp_at(qp, qp->done)->opcode == opcode;
}

static void acked(struct fake_link *l) {
    struct fake_qp *qp = l->qp;
    if (qp == NULL || qp->ibv.state != IBV_QPS_RTS) return;
    while (qp->done < qp->sent && qp->done <= l->frame.seq &&
           fake_qp_at(qp, qp->done)->opcode == IBV_WR_RDMA_WRITE)
        fake_qp_complete(qp);
}

static void read_begins(struct fake_link *l) {
    l->discard = !answers(l, IBV_WR_RDMA_READ);
    if (!l->discard) l->qp->progress_ns = fake_now();
}

static void read_ends(struct fake_link *l) {
    if (l->discard || !answers(l, IBV_WR_RDMA_READ)) return;
    const struct fake_wqe *wqe = fake_qp_at(l->qp, l->qp->done);
    if (wqe->moved == wqe->length && l->frame.offset + l->frame.length == l->frame.total)
        fake_qp_complete(l->qp);
}

/* Where the bytes of the READ go on. */
static uint8_t *read_target(struct fake_link *l, uint32_t *length_p) {
    if (!answers(l, IBV_WR_RDMA_READ)) return NULL;
    const struct fake_wqe *wqe = fake_qp_at(l->qp, l->qp->done);
    uint32_t from = wqe->moved;
    for (int i = 0; i < wqe->n_sge; i++) {
        const struct ibv_sge *s = &wqe->sge[i];
        if (from >= s->length) {
            from -= s->length;
            continue;
        }
        *length_p = (uint32_t)min_u64(l->payload_left, s->length - from);
        uint8_t *p = fake_mr_reach(s->lkey, l->qp->ibv.pd, s->addr + from, *length_p,
                                   IBV_ACCESS_LOCAL_WRITE);
        if (p == NULL) fake_qp_fail(l->qp, IBV_WC_LOC_PROT_ERR);
        return p;
    }
    return NULL;
}

static uint8_t *write_target(struct fake_link *l, uint32_t *length_p) {
    const struct fake_frame *f = &l->frame;
    if (!responds(l)) return NULL;
    *length_p = l->payload_left;
    uint64_t at = f->addr + f->offset + (f->length - l->payload_left);
    uint8_t *p =
        fake_mr_reach(f->rkey, l->qp->ibv.pd, at, l->payload_left, IBV_ACCESS_REMOTE_WRITE);
    if (p == NULL) refuse(l, f->seq); /* deregistered in the middle of it */
    return p;
}

/* --- packets --- */

static void packet_ends(struct fake_link *l) {
    l->in_payload = false;
    switch (l->frame.kind) {
    case FAKE_WRITE: write_ends(l); break;
    case FAKE_READ_RESP: read_ends(l); break;
    case FAKE_REQ:
    case FAKE_REP:
    case FAKE_REJ: fake_cm_frame(l, l->frame.kind, &l->in.greeting); break;
    default: break;
    }
}

/* false: nonsense. */
static bool packet_begins(struct fake_link *l) {
    l->frame = l->next;
    l->frame_have = 0;
    const struct fake_frame *f = &l->frame;
    bool greets = f->kind == FAKE_REQ || f->kind == FAKE_REP || f->kind == FAKE_REJ;
    bool carries = greets || f->kind == FAKE_WRITE || f->kind == FAKE_READ_RESP;
    if (f->magic != FAKE_MAGIC || (!carries && f->length > 0) || f->length > FAKE_PACKET)
        return false;
    if (greets && f->length != sizeof(l->in.greeting)) return false;
    l->payload_left = f->length;
    l->in_payload = carries;
    l->discard = false;
    switch (f->kind) {
    case FAKE_REQ:
    case FAKE_REP:
    case FAKE_REJ: break;
    case FAKE_RTU:
    case FAKE_DREQ:
    case FAKE_DREP: fake_cm_frame(l, f->kind, NULL); break;
    case FAKE_WRITE: write_begins(l); break;
    case FAKE_READ: read_wanted(l); break;
    case FAKE_READ_RESP: read_begins(l); break;
    case FAKE_ACK: acked(l); break;
    case FAKE_NAK:
        if (l->qp != NULL && l->qp->ibv.state == IBV_QPS_RTS && l->qp->done < l->qp->sent + 1)
            fake_qp_fail(l->qp, f->status);
        break;
    case FAKE_LOST:
        if (l->qp != NULL) l->qp->lost = true;
        break;
    case FAKE_STALLED: l->stalled = true; break;
    case FAKE_RESUMED: l->stalled = false; break;
    default: return false;
    }
    if (l->in_payload && l->payload_left == 0) packet_ends(l);
    return true;
}

bool fake_link_may_read(const struct fake_link *l) {
    if (l->dead || l->frozen) return false;
    if (l->responses + 1 >= FAKE_RESPONSES) return false;
    bool waits = l->frame_have == sizeof(l->next) && !l->in_payload && l->next.kind == FAKE_WRITE;
    return !waits || (l->reads == 0 && l->body.kind != FAKE_BODY_REMOTE);
}

/* Where the packet's bytes are to go now; *length_p at most. */
static uint8_t *target(struct fake_link *l, uint32_t *length_p) {
    uint8_t *p = NULL;
    *length_p = l->payload_left;
    bool data = l->frame.kind == FAKE_WRITE || l->frame.kind == FAKE_READ_RESP;
    if (!data) return (uint8_t *)&l->in.greeting + (sizeof(l->in.greeting) - l->payload_left);
    if (!l->discard) {
        p = l->frame.kind == FAKE_WRITE ? write_target(l, length_p) : read_target(l, length_p);
        if (p == NULL)
            l->discard = true;
        else
            fake_memory_check(p, *length_p);
    }
    if (p == NULL) {
        p = l->in.trash;
        *length_p = (uint32_t)min_u64(l->payload_left, sizeof(l->in.trash));
    }
    return p;
}

/* One system call: the rest of the packet, and the header behind it. Not through the library's
 * recvmsg, as in link.c. Returns what that did; *paid_p of it were the packet's. */
static ssize_t receive(struct fake_link *l, uint32_t *paid_p) {
    struct iovec iov[2];
    size_t n = 0;
    uint32_t length = 0;
    if (l->in_payload) {
        uint8_t *p = target(l, &length);
        iov[n++] = (struct iovec){p, length};
    }
    if (!l->in_payload || length == l->payload_left)
        iov[n++] =
            (struct iovec){(uint8_t *)&l->next + l->frame_have, sizeof(l->next) - l->frame_have};
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
    ssize_t got = syscall(SYS_recvmsg, l->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    *paid_p = got > 0 ? (uint32_t)min_u64((uint64_t)got, length) : 0;
    return got;
}

static void paid(struct fake_link *l, uint32_t n) {
    if (l->frame.kind == FAKE_READ_RESP && !l->discard && answers(l, IBV_WR_RDMA_READ))
        fake_qp_at(l->qp, l->qp->done)->moved += n;
    l->payload_left -= n;
    if (l->payload_left == 0) packet_ends(l);
}

bool fake_link_input(struct fake_link *l) {
    size_t turn = 0;
    while (turn < TURN_BYTES && fake_link_may_read(l)) {
        if (!l->in_payload && l->frame_have == sizeof(l->next)) {
            if (packet_begins(l) && !l->dead) continue;
            if (l->dead) return true;
            fake_link_dead(l);
            return false;
        }
        uint32_t body;
        ssize_t got = receive(l, &body);
        if (got < 0 && errno == EFAULT) { /* the memory is not there any more */
            if (l->frame.kind == FAKE_WRITE && responds(l)) refuse(l, l->frame.seq);
            if (l->frame.kind == FAKE_READ_RESP && answers(l, IBV_WR_RDMA_READ))
                fake_qp_fail(l->qp, IBV_WC_LOC_PROT_ERR);
            l->discard = true;
            continue;
        }
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
        if (got <= 0) {
            fake_link_dead(l);
            return false;
        }
        turn += (size_t)got;
        l->frame_have += (uint32_t)got - body;
        if (body > 0) paid(l, body);
    }
    return true;
}
