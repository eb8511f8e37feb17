/* Completions: taken in batches while there are any, by an event when there are none. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "rdma/work.h"

#define POLL_BATCH    32
#define ACK_BATCH     64u
#define EVENTS_A_POLL 16u

/* --- what has arrived --- */

/* From where the device put it to where the caller wants it, looking at it on the way where it
 * wants to know. */
static void slice_deliver(struct rdma_slice *s) {
    struct rdma_task *t = s->task;
    const char *from = s->staged;
    for (unsigned i = 0; i < s->n_pieces; i++) {
        char *to = s->piece[i].iov_base;
        uint64_t n = s->piece[i].iov_len;
        if (t->op->crcs != NULL)
            crc_track_feed(&t->crc, t->op, from != NULL ? to : NULL, from != NULL ? from : to, n);
        else if (from != NULL)
            memcpy(to, from, n);
        if (from != NULL) from += n;
    }
}

/* CRCs want the bytes in their order; slices end in any. */
void rdma_task_collect(struct rdma_task *t) {
    struct rdma_slice *s;
    while ((s = TAILQ_FIRST(&t->slices)) != NULL && s->state == RDMA_SLICE_ARRIVED) {
        slice_deliver(s);
        rdma_slice_free(s);
    }
}

static void rail_slice_arrived(struct rdma_rail *r, struct rdma_slice *s) {
    struct transport_key *k = r->key;
    struct rdma_task *t = s->task;
    struct rdma_counters *c = &k->domain->counters;
    bool put = t->op->kind == TRANSPORT_PUT;
    r->outstanding -= s->length;
    k->outstanding -= s->length;
    k->moved_ms = k->domain->now_ms;
    put ? (c->writes++, r->writes++, c->bytes_written += s->length)
        : (c->reads++, r->reads++, c->bytes_read += s->length);
    t->posted--;
    s->state = RDMA_SLICE_ARRIVED;
    s->rail = NULL;
    if (t->status != TARN_OK || put) {
        rdma_slice_free(s);
    } else if (t->op->crcs != NULL) {
        rdma_task_collect(t);
    } else {
        slice_deliver(s);
        rdma_slice_free(s);
    }
    rdma_task_settle(t);
}

/* Were the epochs, after the last byte, still what they were when the host accepted? */
static bool header_unchanged(const struct rdma_rail *r, uint32_t seq) {
    const struct transport_key *k = r->key;
    uint32_t got[3];
    static_assert(sizeof(got) == RDMA_HEADER_LENGTH, "epochs of the segment header");
    if (k->h.header_address == 0) return true; /* what was read are bytes of its memory */
    memcpy(got, r->headers + seq % r->depth * RDMA_HEADER_STRIDE, sizeof(got));
    return got[0] == k->master_epoch && got[1] == k->h.segment_epoch && got[2] == k->instance;
}

static void header_arrived(struct rdma_rail *r, uint32_t seq) {
    bool same = header_unchanged(r, seq);
    if (!same) rdma_key_refused(r->key, TARN_ESTALE);
    r->key->moved_ms = r->key->domain->now_ms;
    struct rdma_ride *ride;
    while ((ride = TAILQ_FIRST(&r->awaited)) != NULL && (int32_t)(ride->header_seq - seq) <= 0) {
        struct rdma_task *t = ride->task;
        rdma_ride_free(ride);
        if (!same)
            rdma_task_fail(t, TARN_ESTALE);
        else
            rdma_task_settle(t);
    }
}

/* --- the queue --- */

/* Never TARN_EIO: that is what a host says of its disk, and final. */
static tarn_status wc_status(enum ibv_wc_status status) {
    switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR: return TARN_ETIMEOUT;
    case IBV_WC_REM_ACCESS_ERR: return TARN_ESTALE; /* its keys are good for nothing over there */
    default: return TARN_ECLOSED;
    }
}

static void wc_completed(struct rdma_work *w, const struct ibv_wc *wc) {
    unsigned slot = wc->wr_id & UINT16_MAX;
    struct rdma_rail *r = slot < w->max_rails ? w->rail[slot] : NULL;
    uint32_t seq = (uint32_t)(wc->wr_id >> 32);
    if (r == NULL || r->generation != (uint16_t)(wc->wr_id >> 16) || r->qp == NULL)
        return; /* of one that is gone */
    if ((int32_t)(seq - r->head) < 0 || (int32_t)(r->sent - seq) <= 0) return;
    if (wc->status != IBV_WC_SUCCESS) {
        if (r->failing) return;
        tarn_status status = wc_status(wc->status);
        log_verbose("Segment %u by %s: %s (%u)", r->key->h.segment, r->device->name,
                    ibv_wc_status_str(wc->status), wc->vendor_err);
        if (status == TARN_ESTALE) rdma_key_refused(r->key, status);
        rdma_rail_fail(r, status);
        return;
    }
    while ((int32_t)(seq - r->head) >= 0) {
        uint32_t at = r->head++;
        struct rdma_slice *s = r->entry[at % r->depth];
        w->posted--;
        if (s != NULL)
            rail_slice_arrived(r, s);
        else
            header_arrived(r, at);
    }
    if (!rdma_key_idle(r->key)) rdma_key_activate(r->key); /* there is room again */
}

static size_t poll_once(struct rdma_work *w, struct rdma_cq *cq) {
    struct ibv_wc wc[POLL_BATCH];
    struct rdma_counters *c = &w->domain->counters;
    int n = ibv_poll_cq(cq->cq, POLL_BATCH, wc);
    c->polls++;
    if (n <= 0) {
        c->empty_polls++;
        /* Destroyed queue pairs have nothing in there any more. */
        cq->reserved -= w->release[cq->device->index];
        w->release[cq->device->index] = 0;
        return 0;
    }
    for (int i = 0; i < n; i++) wc_completed(w, &wc[i]);
    if (rdma_options.poll_us > 0) w->last_wc_us = clock_mono_us();
    return (size_t)n;
}

static void cq_take_events(struct rdma_work *w, struct rdma_cq *cq) {
    struct ibv_cq *of;
    void *context;
    for (unsigned i = 0; i < EVENTS_A_POLL && ibv_get_cq_event(cq->channel, &of, &context) == 0;
         i++) {
        cq->armed = false;
        w->domain->counters.events++;
        if (++cq->unacked < ACK_BATCH) continue;
        ibv_ack_cq_events(cq->cq, cq->unacked);
        cq->unacked = 0;
    }
}

static void poll_all(struct rdma_work *w, uint64_t budget) {
    for (unsigned i = 0; i < RDMA_DEVICES_MAX; i++) {
        struct rdma_cq *cq = &w->domain->cqs[i];
        if (cq->cq == NULL) continue;
        if (cq->armed) cq_take_events(w, cq);
        uint64_t before = w->domain->counters.bytes_read + w->domain->counters.bytes_written,
                 moved = 0;
        for (unsigned n = 0; n <= cq->entries && moved < budget && poll_once(w, cq) > 0; n++)
            moved = w->domain->counters.bytes_read + w->domain->counters.bytes_written - before;
        if (moved >= budget) w->more = true;
    }
}

void rdma_cq_poll(struct transport_domain *d, uint64_t budget) {
    if (d->work != NULL) poll_all(d->work, max_u64(budget, 1));
}

void rdma_cq_drain(struct transport_domain *d) {
    if (d->work != NULL) poll_all(d->work, UINT64_MAX);
}

/* Completions that came before the queue was armed have no event: it is polled once more. */
tarn_status rdma_cq_arm(struct transport_domain *d) {
    struct rdma_work *w = d->work;
    if (w == NULL) return TARN_OK;
    if (rdma_options.poll_us > 0 && w->posted > 0 &&
        clock_mono_us() - w->last_wc_us < rdma_options.poll_us)
        return TARN_EAGAIN;
    size_t got = 0;
    for (unsigned i = 0; i < RDMA_DEVICES_MAX; i++) {
        struct rdma_cq *cq = &d->cqs[i];
        if (cq->cq == NULL || cq->armed || cq->reserved == 0) continue;
        if (ibv_req_notify_cq(cq->cq, 0) != 0) continue;
        cq->armed = true;
        got += poll_once(w, cq);
    }
    return got > 0 || rdma_work_waiting(d) ? TARN_EAGAIN : TARN_OK;
}
