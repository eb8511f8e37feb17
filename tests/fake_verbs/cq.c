/* Completion queues and the channels that wake who waits for them. */
#include "fake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct fake_cq *cq_of(struct ibv_cq *cq) {
    return CONTAINER_OF(cq, struct fake_cq, ibv);
}

/* --- channels --- */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
    fake_lock();
    struct fake_comp *channel = NULL;
    if (fake_fails(FAKE_CREATE_COMP_CHANNEL)) {
        ;
    } else if (fake_context_of(context)->device->gone) {
        errno = EIO;
    } else {
        channel = calloc(1, sizeof(*channel));
        channel->ibv.context = context;
        channel->ibv.fd = fake_new_fd();
        TAILQ_INIT(&channel->events);
        LIST_INSERT_HEAD(&fake.comps, channel, link);
        fake_context_of(context)->users++;
        fake.count[FAKE_COMP_CHANNELS]++;
    }
    fake_unlock();
    return channel != NULL ? &channel->ibv : NULL;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ibv) {
    struct fake_comp *channel = CONTAINER_OF(ibv, struct fake_comp, ibv);
    fake_lock();
    int error = ibv->refcnt != 0 ? EBUSY : 0;
    if (error == 0) {
        close(ibv->fd);
        LIST_REMOVE(channel, link);
        fake_context_of(ibv->context)->users--;
        fake.count[FAKE_COMP_CHANNELS]--;
        free(channel);
    }
    fake_unlock();
    return error;
}

static void event_raise(struct fake_cq *cq) {
    if (cq->ibv.channel == NULL) return;
    struct fake_comp *channel = CONTAINER_OF(cq->ibv.channel, struct fake_comp, ibv);
    struct fake_cq_event *e = calloc(1, sizeof(*e));
    e->cq = cq;
    TAILQ_INSERT_TAIL(&channel->events, e, link);
    fake_fd_raise(channel->ibv.fd);
}

int ibv_get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **cq, void **cq_context) {
    struct fake_comp *channel = CONTAINER_OF(ibv, struct fake_comp, ibv);
    for (;;) {
        if (fake_fd_take(ibv->fd) != 0) return -1;
        fake_lock();
        struct fake_cq_event *e = TAILQ_FIRST(&channel->events);
        if (e != NULL) {
            TAILQ_REMOVE(&channel->events, e, link);
            e->cq->got++;
            *cq = &e->cq->ibv;
            *cq_context = e->cq->ibv.cq_context;
            free(e);
        }
        fake_unlock();
        if (e != NULL) return 0;
    }
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents) {
    fake_lock();
    cq->comp_events_completed += nevents;
    if (cq->comp_events_completed > cq_of(cq)->got)
        fake_die("more completion events acknowledged than got");
    pthread_cond_broadcast(&fake.acked);
    fake_unlock();
}

/* --- queues --- */

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                             struct ibv_comp_channel *channel, int comp_vector) {
    fake_lock();
    struct fake_cq *cq = NULL;
    if (fake_fails(FAKE_CREATE_CQ)) {
        ;
    } else if (fake_context_of(context)->device->gone) {
        errno = EIO;
    } else if (cqe < 1 || (unsigned)cqe > fake.limits.max_cqe || comp_vector != 0 ||
               (channel != NULL && channel->context != context)) {
        errno = EINVAL;
    } else {
        cq = calloc(1, sizeof(*cq));
        cq->size = (unsigned)cqe;
        cq->ring = calloc(cq->size, sizeof(*cq->ring));
        cq->ibv.context = context;
        cq->ibv.channel = channel;
        cq->ibv.cq_context = cq_context;
        cq->ibv.cqe = cqe;
        if (channel != NULL) channel->refcnt++;
        LIST_INSERT_HEAD(&fake.cqs, cq, link);
        fake_context_of(context)->users++;
        fake.count[FAKE_CQS]++;
    }
    fake_unlock();
    return cq != NULL ? &cq->ibv : NULL;
}

int ibv_destroy_cq(struct ibv_cq *ibv) {
    struct fake_cq *cq = cq_of(ibv);
    fake_lock();
    if (cq->users != 0) {
        fake_unlock();
        return EBUSY;
    }
    FAKE_AWAIT(ibv->comp_events_completed == cq->got,
               "a completion queue is destroyed and its events were never acknowledged");
    if (ibv->channel != NULL) {
        struct fake_comp *channel = CONTAINER_OF(ibv->channel, struct fake_comp, ibv);
        struct fake_cq_event *e, *next;
        for (e = TAILQ_FIRST(&channel->events); e != NULL; e = next) {
            next = TAILQ_NEXT(e, link);
            if (e->cq != cq) continue;
            TAILQ_REMOVE(&channel->events, e, link);
            free(e);
            fake_fd_lower(channel->ibv.fd, 1);
        }
        ibv->channel->refcnt--;
    }
    fake.delayed -= cq->count - cq->ready;
    LIST_REMOVE(cq, link);
    fake_context_of(ibv->context)->users--;
    fake.count[FAKE_CQS]--;
    free(cq->ring);
    free(cq);
    fake_unlock();
    return 0;
}

static void ripe(struct fake_cq *cq, const struct fake_cqe *e) {
    cq->ready++;
    if (!cq->armed || (cq->armed_solicited && !e->solicited)) return;
    cq->armed = false;
    event_raise(cq);
}

void fake_cq_push(struct fake_qp *qp, const struct fake_wqe *wqe, enum ibv_wc_status status,
                  uint64_t freed_to) {
    struct fake_cq *cq = cq_of(qp->ibv.send_cq);
    if (cq->count == cq->size) fake_die("a completion queue overruns");
    struct fake_cqe *e = &cq->ring[(cq->head + cq->count++) % cq->size];
    memset(e, 0, sizeof(*e));
    e->wc.wr_id = wqe->wr_id;
    e->wc.status = status;
    e->wc.qp_num = qp->ibv.qp_num;
    /* Of one that failed nothing else means anything; of one that did not, only a READ has a
     * length. */
    e->wc.opcode = status != IBV_WC_SUCCESS          ? (enum ibv_wc_opcode)0x77
                   : wqe->opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ
                                                     : IBV_WC_RDMA_WRITE;
    e->wc.byte_len =
        status == IBV_WC_SUCCESS && wqe->opcode == IBV_WR_RDMA_READ ? wqe->length : 0xdeadbeef;
    e->wc.vendor_err = status != IBV_WC_SUCCESS ? 0xfa4e : 0;
    e->qp = qp;
    e->freed_to = freed_to;
    e->solicited = status != IBV_WC_SUCCESS || (wqe->flags & IBV_SEND_SOLICITED) != 0;
    if (!fake.hold && fake.limits.delay_us == 0 && cq->ready + 1 == cq->count) {
        ripe(cq, e);
        return;
    }
    e->due_ns = fake_now() + fake.limits.delay_us * 1000;
    fake.delayed++;
}

/* Completions of a queue pair that is no more are not seen. */
void fake_cq_purge(struct fake_cq *cq, const struct fake_qp *qp) {
    unsigned kept = 0, ready = 0;
    for (unsigned i = 0; i < cq->count; i++) {
        struct fake_cqe e = cq->ring[(cq->head + i) % cq->size];
        if (e.qp == qp) {
            if (i >= cq->ready) fake.delayed--;
            continue;
        }
        if (i < cq->ready) ready++;
        cq->ring[(cq->head + kept++) % cq->size] = e;
    }
    cq->count = kept;
    cq->ready = ready;
}

void fake_cq_ripen(uint64_t now) {
    struct fake_cq *cq;
    if (fake.delayed == 0 || fake.hold) return;
    LIST_FOREACH(cq, &fake.cqs, link)
        while (cq->ready < cq->count) {
            struct fake_cqe *e = &cq->ring[(cq->head + cq->ready) % cq->size];
            if (e->due_ns > now) break;
            fake.delayed--;
            ripe(cq, e);
        }
}

uint64_t fake_cq_due(void) {
    uint64_t due = UINT64_MAX;
    struct fake_cq *cq;
    if (fake.delayed == 0 || fake.hold) return due;
    LIST_FOREACH(cq, &fake.cqs, link)
        if (cq->ready < cq->count)
            due = min_u64(due, cq->ring[(cq->head + cq->ready) % cq->size].due_ns);
    return due;
}

int fake_poll_cq(struct ibv_cq *ibv, int n, struct ibv_wc *wc) {
    struct fake_cq *cq = cq_of(ibv);
    fake_lock();
    int got = 0;
    bool silent = fake_context_of(ibv->context)->device->silent;
    while (got < n && cq->ready > 0 && !silent) {
        struct fake_cqe *e = &cq->ring[cq->head];
        wc[got++] = e->wc;
        if (e->freed_to > e->qp->freed) e->qp->freed = e->freed_to;
        cq->head = (cq->head + 1) % cq->size;
        cq->count--;
        cq->ready--;
    }
    fake_unlock();
    return got;
}

int fake_completions(struct ibv_cq *ibv) {
    fake_lock();
    int n = (int)cq_of(ibv)->ready;
    fake_unlock();
    return n;
}

int fake_req_notify_cq(struct ibv_cq *ibv, int solicited_only) {
    struct fake_cq *cq = cq_of(ibv);
    fake_lock();
    /* For any completion overrules for solicited ones. */
    cq->armed_solicited = solicited_only != 0 && (!cq->armed || cq->armed_solicited);
    cq->armed = true;
    fake_unlock();
    return 0;
}

const char *ibv_wc_status_str(enum ibv_wc_status status) {
    switch (status) {
    case IBV_WC_SUCCESS: return "success";
    case IBV_WC_LOC_LEN_ERR: return "local length error";
    case IBV_WC_LOC_QP_OP_ERR: return "local QP operation error";
    case IBV_WC_LOC_PROT_ERR: return "local protection error";
    case IBV_WC_WR_FLUSH_ERR: return "Work Request Flushed Error";
    case IBV_WC_REM_INV_REQ_ERR: return "remote invalid request error";
    case IBV_WC_REM_ACCESS_ERR: return "remote access error";
    case IBV_WC_REM_OP_ERR: return "remote operation error";
    case IBV_WC_RETRY_EXC_ERR: return "transport retry counter exceeded";
    case IBV_WC_FATAL_ERR: return "fatal error";
    default: return "error";
    }
}
