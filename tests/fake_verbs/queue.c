/* Queue pairs: how they change their state, what may be posted to them, how they fail. */
#include "fake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct fake_qp *qp_of(struct ibv_qp *qp) {
    return CONTAINER_OF(qp, struct fake_qp, ibv);
}
static struct fake_device *device_of(const struct fake_qp *qp) {
    return fake_context_of(qp->ibv.context)->device;
}
static struct fake_cq *send_cq_of(const struct fake_qp *qp) {
    return CONTAINER_OF(qp->ibv.send_cq, struct fake_cq, ibv);
}

struct fake_qp *fake_qp_find(uint32_t num) {
    struct fake_qp *qp;
    LIST_FOREACH(qp, &fake.qps, link)
        if (qp->ibv.qp_num == num) return qp;
    return NULL;
}

struct fake_wqe *fake_qp_at(struct fake_qp *qp, uint64_t n) {
    return &qp->ring[n % qp->init.cap.max_send_wr];
}

/* --- making and ending --- */

static int refused(const struct ibv_pd *pd, const struct ibv_qp_init_attr *init) {
    const struct fake_limits *l = &fake.limits;
    const struct ibv_qp_cap *cap = &init->cap;
    if (fake_context_of(pd->context)->device->gone) return EIO;
    if (init->qp_type != IBV_QPT_RC) return EOPNOTSUPP;
    if (init->send_cq == NULL || init->recv_cq == NULL || init->srq != NULL) return EINVAL;
    if (init->send_cq->context != pd->context || init->recv_cq->context != pd->context)
        return EINVAL;
    if (cap->max_send_wr > l->max_qp_wr || cap->max_recv_wr > l->max_qp_wr) return EINVAL;
    if (cap->max_send_sge > l->max_sge || cap->max_recv_sge > l->max_sge) return EINVAL;
    if (cap->max_send_sge > FAKE_SGE_MAX || cap->max_inline_data > l->max_inline) return EINVAL;
    return fake.count[FAKE_QPS] >= l->max_qp ? ENOMEM : 0;
}

static struct fake_qp *make(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
    struct fake_qp *qp = calloc(1, sizeof(*qp));
    if (init->cap.max_send_sge == 0 && init->cap.max_send_wr > 0) init->cap.max_send_sge = 1;
    qp->init = *init;
    const struct ibv_qp_cap *cap = &qp->init.cap;
    qp->ring = calloc(cap->max_send_wr + 1, sizeof(*qp->ring));
    qp->sges = calloc((size_t)cap->max_send_wr * cap->max_send_sge + 1, sizeof(*qp->sges));
    qp->inlines = calloc((size_t)cap->max_send_wr * cap->max_inline_data + 1, 1);
    for (uint32_t i = 0; i < cap->max_send_wr; i++) {
        qp->ring[i].sge = qp->sges + (size_t)i * cap->max_send_sge;
        qp->ring[i].inlined = qp->inlines + (size_t)i * cap->max_inline_data;
    }
    if (fake.next_qp == 0) fake.next_qp = (uint32_t)getpid() * 977u;
    do fake.next_qp = (fake.next_qp + 1) & 0xffffff;
    while (fake.next_qp < 2 || fake_qp_find(fake.next_qp) != NULL);
    qp->ibv = (struct ibv_qp){
        .context = pd->context,
        .qp_context = init->qp_context,
        .pd = pd,
        .send_cq = init->send_cq,
        .recv_cq = init->recv_cq,
        .qp_num = fake.next_qp,
        .state = IBV_QPS_RESET,
        .qp_type = init->qp_type,
    };
    return qp;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
    fake_nic_start();
    fake_lock();
    struct fake_qp *qp = NULL;
    int error = refused(pd, init);
    if (fake_fails(FAKE_CREATE_QP)) error = errno;
    if (error == 0) {
        qp = make(pd, init);
        send_cq_of(qp)->users++;
        CONTAINER_OF(init->recv_cq, struct fake_cq, ibv)->users++;
        CONTAINER_OF(pd, struct fake_pd, ibv)->users++;
        LIST_INSERT_HEAD(&fake.qps, qp, link);
        fake.count[FAKE_QPS]++;
    }
    fake_unlock();
    if (qp != NULL) return &qp->ibv;
    fake_nic_rest();
    errno = error;
    return NULL;
}

/* The connection goes on without it: what arrives for it is nobody's. */
static void leave_link(struct fake_qp *qp) {
    struct fake_link *l = qp->conn;
    if (l == NULL) return;
    fake_link_spill(l, 0);
    l->responses = l->reads = 0;
    l->qp = NULL;
    qp->conn = NULL;
    fake_link_send(l, FAKE_LOST, NULL);
    fake_link_leave(l);
}

int ibv_destroy_qp(struct ibv_qp *ibv) {
    struct fake_qp *qp = qp_of(ibv);
    fake_lock();
    FAKE_AWAIT(ibv->events_completed == qp->got,
               "a queue pair is destroyed and its asynchronous events were never acknowledged");
    leave_link(qp);
    fake_async_forget(fake_context_of(ibv->context), ibv);
    fake_cq_purge(send_cq_of(qp), qp);
    send_cq_of(qp)->users--;
    CONTAINER_OF(ibv->recv_cq, struct fake_cq, ibv)->users--;
    CONTAINER_OF(ibv->pd, struct fake_pd, ibv)->users--;
    LIST_REMOVE(qp, link);
    fake.count[FAKE_QPS]--;
    free(qp->ring);
    free(qp->sges);
    free(qp->inlines);
    free(qp);
    fake_unlock();
    fake_nic_rest();
    return 0;
}

/* --- states --- */

struct step {
    enum ibv_qp_state from, to;
    int required, optional;
};
static const struct step steps[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER |
         IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE |
         IBV_QP_MIN_RNR_TIMER},
};

static int step_refused(const struct fake_qp *qp, const struct ibv_qp_attr *a, int mask) {
    enum ibv_qp_state from = qp->ibv.state, to = (mask & IBV_QP_STATE) != 0 ? a->qp_state : from;
    if (to == IBV_QPS_ERR || to == IBV_QPS_RESET) return (mask & ~IBV_QP_STATE) != 0 ? EINVAL : 0;
    const struct step *s = NULL;
    for (size_t i = 0; i < ARRAY_LEN(steps); i++)
        if (steps[i].from == from && steps[i].to == to) s = &steps[i];
    if (s == NULL || (mask & s->required) != s->required) return EINVAL;
    if ((mask & ~(s->required | s->optional | IBV_QP_STATE)) != 0) return EINVAL;
    if ((mask & IBV_QP_PORT) != 0 && a->port_num != 1) return EINVAL;
    if ((mask & IBV_QP_PKEY_INDEX) != 0 && a->pkey_index != 0) return EINVAL;
    if ((mask & IBV_QP_AV) != 0 && (a->ah_attr.is_global == 0 || a->ah_attr.port_num != 1))
        return EINVAL;
    if ((mask & IBV_QP_PATH_MTU) != 0 &&
        (a->path_mtu < IBV_MTU_256 || a->path_mtu > fake.limits.mtu))
        return EINVAL;
    if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 && a->max_dest_rd_atomic > fake.limits.max_rd_atom)
        return EINVAL;
    if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && a->max_rd_atomic > fake.limits.max_rd_atom)
        return EINVAL;
    if ((mask & IBV_QP_TIMEOUT) != 0 && a->timeout > 31) return EINVAL;
    if ((mask & IBV_QP_RETRY_CNT) != 0 && a->retry_cnt > 7) return EINVAL;
    return 0;
}

static void take_attributes(struct fake_qp *qp, const struct ibv_qp_attr *a, int mask) {
    struct ibv_qp_attr *q = &qp->attr;
    if (mask & IBV_QP_PKEY_INDEX) q->pkey_index = a->pkey_index;
    if (mask & IBV_QP_PORT) q->port_num = a->port_num;
    if (mask & IBV_QP_ACCESS_FLAGS) q->qp_access_flags = a->qp_access_flags;
    if (mask & IBV_QP_AV) q->ah_attr = a->ah_attr;
    if (mask & IBV_QP_PATH_MTU) q->path_mtu = a->path_mtu;
    if (mask & IBV_QP_DEST_QPN) q->dest_qp_num = a->dest_qp_num;
    if (mask & IBV_QP_RQ_PSN) q->rq_psn = a->rq_psn;
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) q->max_dest_rd_atomic = a->max_dest_rd_atomic;
    if (mask & IBV_QP_MIN_RNR_TIMER) q->min_rnr_timer = a->min_rnr_timer;
    if (mask & IBV_QP_TIMEOUT) q->timeout = a->timeout;
    if (mask & IBV_QP_RETRY_CNT) q->retry_cnt = a->retry_cnt;
    if (mask & IBV_QP_RNR_RETRY) q->rnr_retry = a->rnr_retry;
    if (mask & IBV_QP_SQ_PSN) q->sq_psn = a->sq_psn;
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC) q->max_rd_atomic = a->max_rd_atomic;
}

static void reset(struct fake_qp *qp) {
    leave_link(qp);
    fake_cq_purge(send_cq_of(qp), qp);
    qp->posted = qp->sent = qp->done = qp->freed = 0;
    qp->reads = 0;
    qp->lost = false;
    memset(&qp->attr, 0, sizeof(qp->attr));
    qp->ibv.state = IBV_QPS_RESET;
}

int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask) {
    struct fake_qp *qp = qp_of(ibv);
    fake_lock();
    enum ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attr->qp_state : ibv->state;
    bool ends = to == IBV_QPS_ERR || to == IBV_QPS_RESET;
    int error = step_refused(qp, attr, mask);
    if (device_of(qp)->gone) error = EIO;
    if (!ends && fake_fails(FAKE_MODIFY_QP)) error = errno;
    if (error == 0) {
        if (to == IBV_QPS_ERR)
            fake_qp_fail(qp, IBV_WC_SUCCESS);
        else if (to == IBV_QPS_RESET)
            reset(qp);
        else
            take_attributes(qp, attr, mask);
        ibv->state = to;
        struct fake_link *l;
        if (to == IBV_QPS_RTR)
            LIST_FOREACH(l, &fake.links, link) fake_qp_bind(l);
    }
    fake_unlock();
    if (error != 0) errno = error;
    return error;
}

int ibv_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask,
                 struct ibv_qp_init_attr *init) {
    struct fake_qp *qp = qp_of(ibv);
    fake_lock();
    int error = device_of(qp)->gone ? EIO : 0;
    if (error == 0) {
        *attr = qp->attr;
        attr->qp_state = attr->cur_qp_state = ibv->state;
        attr->cap = qp->init.cap;
        *init = qp->init;
    }
    fake_unlock();
    return error;
}

/* The queue pair that this connection is for, once both sides' numbers are known and it may
 * receive. */
void fake_qp_bind(struct fake_link *l) {
    if (l->qp != NULL || l->dead || l->remote_qpn == 0) return;
    struct fake_qp *qp = fake_qp_find(l->local_qpn);
    if (qp == NULL || qp->conn != NULL || device_of(qp) != l->device) return;
    if (qp->ibv.state != IBV_QPS_RTR && qp->ibv.state != IBV_QPS_RTS) return;
    if (qp->attr.dest_qp_num != l->remote_qpn) return;
    qp->conn = l;
    l->qp = qp;
}

/* --- ends of requests --- */

void fake_qp_complete(struct fake_qp *qp) {
    struct fake_wqe *wqe = fake_qp_at(qp, qp->done);
    qp->done++;
    qp->progress_ns = fake_now();
    if (wqe->opcode == IBV_WR_RDMA_READ) qp->reads--;
    if ((wqe->flags & IBV_SEND_SIGNALED) != 0 || qp->init.sq_sig_all != 0)
        fake_cq_push(qp, wqe, IBV_WC_SUCCESS, qp->done);
    if (qp->conn != NULL) fake_link_dirty(qp->conn); /* a READ may have waited for this one */
}

void fake_qp_fail(struct fake_qp *qp, enum ibv_wc_status status) {
    struct fake_link *l = qp->conn;
    bool was = qp->ibv.state == IBV_QPS_ERR;
    qp->ibv.state = IBV_QPS_ERR;
    if (l != NULL && !was) {
        fake_link_spill(l, 0);
        l->responses = l->reads = 0;
    }
    while (qp->done < qp->posted) {
        struct fake_wqe *wqe = fake_qp_at(qp, qp->done++);
        if (device_of(qp)->silent) continue;
        fake_cq_push(qp, wqe, status != IBV_WC_SUCCESS ? status : IBV_WC_WR_FLUSH_ERR, qp->done);
        status = IBV_WC_SUCCESS;
    }
    qp->sent = qp->posted;
    qp->reads = 0;
    if (l != NULL && !was) fake_link_send(l, FAKE_LOST, NULL);
}

/* Nothing has come back for too long. */
void fake_qp_timers(uint64_t now) {
    struct fake_qp *qp;
    LIST_FOREACH(qp, &fake.qps, link) {
        if (qp->done == qp->posted || qp->ibv.state != IBV_QPS_RTS || qp->attr.timeout == 0)
            continue;
        if (device_of(qp)->silent) continue;
        const struct fake_link *l = qp->conn;
        bool gone = l == NULL || l->dead || l->stalled || l->frozen || qp->lost;
        uint64_t limit = (UINT64_C(4096) << qp->attr.timeout) * (qp->attr.retry_cnt + 1u);
        if (!gone) limit = max_u64(limit, fake.limits.stall_ms * 1000000);
        if (now > qp->progress_ns && now - qp->progress_ns > limit)
            fake_qp_fail(qp, IBV_WC_RETRY_EXC_ERR);
    }
}

/* --- posting --- */

static int wr_refused(const struct fake_qp *qp, const struct ibv_send_wr *wr) {
    const struct ibv_qp_cap *cap = &qp->init.cap;
    if (device_of(qp)->gone) return EIO;
    if (qp->ibv.state != IBV_QPS_RTS && qp->ibv.state != IBV_QPS_ERR) return EINVAL;
    if (wr->opcode != IBV_WR_RDMA_WRITE && wr->opcode != IBV_WR_RDMA_READ) return EINVAL;
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > cap->max_send_sge) return EINVAL;
    if ((wr->send_flags & IBV_SEND_INLINE) != 0) {
        if (wr->opcode != IBV_WR_RDMA_WRITE) return EINVAL;
        uint64_t length = 0;
        for (int i = 0; i < wr->num_sge; i++) length += wr->sg_list[i].length;
        if (length > cap->max_inline_data) return EINVAL;
    }
    return qp->posted - qp->freed >= cap->max_send_wr ? ENOMEM : 0;
}

static void wr_take(struct fake_qp *qp, const struct ibv_send_wr *wr) {
    struct fake_wqe *wqe = fake_qp_at(qp, qp->posted);
    wqe->wr_id = wr->wr_id;
    wqe->opcode = wr->opcode;
    wqe->flags = wr->send_flags;
    wqe->remote_addr = wr->wr.rdma.remote_addr;
    wqe->rkey = wr->wr.rdma.rkey;
    wqe->n_sge = wr->num_sge;
    wqe->length = wqe->moved = 0;
    for (int i = 0; i < wr->num_sge; i++) {
        wqe->sge[i] = wr->sg_list[i];
        if ((wr->send_flags & IBV_SEND_INLINE) != 0)
            memcpy(wqe->inlined + wqe->length, (void *)(uintptr_t)wr->sg_list[i].addr,
                   wr->sg_list[i].length);
        wqe->length += wr->sg_list[i].length;
    }
    if (qp->done == qp->posted) qp->progress_ns = fake_now();
    qp->posted++;
}

int fake_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr) {
    struct fake_qp *qp = qp_of(ibv);
    fake_lock();
    int error = 0;
    for (; wr != NULL; wr = wr->next) {
        error = wr_refused(qp, wr);
        if (fake_fails(FAKE_POST_SEND)) error = errno;
        if (error != 0) break;
        wr_take(qp, wr);
    }
    if (ibv->state == IBV_QPS_ERR) fake_qp_fail(qp, IBV_WC_SUCCESS);
    if (qp->conn != NULL && qp->sent < qp->posted) {
        fake_link_dirty(qp->conn);
        fake_nic_kick();
    }
    fake_unlock();
    if (error != 0) *bad_wr = wr;
    return error;
}

int fake_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr) {
    (void)ibv;
    *bad_wr = wr;
    return EOPNOTSUPP; /* nobody sends */
}
