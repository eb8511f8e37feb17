/* From slices to send queues. A rail's entries are chained as they are made and posted with one
 * call; the last one of a chain is signalled, and one in signal_every before it. A queue pair's
 * entries end in order, so a signalled one speaks for those before it. One entry is always left for
 * the READ of the segment header: the rule that makes sure that every task comes to its end. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "rdma/work.h"

#define HEADER_OFFSET (offsetof(struct segment_header, master_epoch))

/* --- which rail --- */

struct rdma_rail *rdma_rail_choose(struct transport_key *k, int numa_node, uint64_t length) {
    struct rdma_rail *r, *best = NULL;
    uint64_t best_cost = UINT64_MAX;
    TAILQ_FOREACH(r, &k->rails, link) {
        if (!rdma_rail_ready(r) || r->retiring) continue;
        if (rdma_rail_room(r) < 2 || r->slice_max < length) continue;
        if (r->outstanding > 0 && r->outstanding + length > RDMA_WINDOW_BYTES) continue;
        uint64_t cost =
            r->outstanding + (uint64_t)rdma_device_distance(r->device, numa_node) * RDMA_NEAR_BYTES;
        if (cost >= best_cost) continue;
        best_cost = cost;
        best = r;
    }
    return best;
}

/* --- rides --- */

void rdma_ride_free(struct rdma_ride *ride) {
    struct rdma_rail *r = ride->rail;
    if (ride->awaited)
        TAILQ_REMOVE(&r->awaited, ride, link);
    else
        TAILQ_REMOVE(&r->needed, ride, link);
    LIST_REMOVE(ride, task_link);
    free(ride);
}

/* Something of t goes by r: a header is to follow it. */
static void ride_on(struct rdma_task *t, struct rdma_rail *r) {
    struct rdma_ride *ride;
    LIST_FOREACH(ride, &t->rides, task_link) {
        if (ride->rail == r) break;
    }
    if (ride == NULL) {
        ride = xcalloc(1, sizeof(*ride));
        ride->task = t;
        ride->rail = r;
        LIST_INSERT_HEAD(&t->rides, ride, task_link);
    } else if (ride->awaited) {
        TAILQ_REMOVE(&r->awaited, ride, link);
        ride->awaited = false;
    } else {
        return;
    }
    TAILQ_INSERT_TAIL(&r->needed, ride, link);
}

/* --- entries --- */

static void post_chain(struct rdma_rail *r) {
    struct rdma_work *w = r->key->domain->work;
    if (r->chained == 0) return;
    struct ibv_send_wr *last = &r->wr[r->chained - 1], *bad = NULL;
    last->send_flags |= IBV_SEND_SIGNALED;
    last->next = NULL;
    r->unsignalled = 0;
    for (unsigned i = 0; i < r->chained; i++) {
        w->domain->counters.signalled += (r->wr[i].send_flags & IBV_SEND_SIGNALED) != 0;
        if (i + 1 < r->chained) r->wr[i].next = &r->wr[i + 1];
    }
    unsigned posted = r->chained;
    int rc = ibv_post_send(r->qp, r->wr, &bad);
    if (rc != 0) {
        log_verbose("Posting on %s: %s", r->device->name, strerror(rc));
        posted = bad >= r->wr && bad < r->wr + r->chained ? (unsigned)(bad - r->wr) : r->chained;
        rdma_rail_fail(r, TARN_ECLOSED);
    }
    r->sent += posted;
    w->posted += posted;
    r->chained = 0;
}

/* The next entry's work request, for the caller to fill in. */
static struct ibv_send_wr *rail_chain(struct rdma_rail *r, struct rdma_slice *s) {
    if (r->chained == RDMA_BATCH) post_chain(r);
    uint32_t seq = r->tail++;
    r->entry[seq % r->depth] = s;
    unsigned i = r->chained++;
    struct ibv_send_wr *wr = &r->wr[i];
    *wr = (struct ibv_send_wr){
        .wr_id = (uint64_t)seq << 32 | (uint64_t)r->generation << 16 | r->slot,
        .sg_list = r->sge[i],
        .opcode = IBV_WR_RDMA_READ,
    };
    if (++r->unsignalled >= r->signal_every) {
        wr->send_flags = IBV_SEND_SIGNALED;
        r->unsignalled = 0;
    }
    return wr;
}

/* Local keys on r's device, for what was cut for another one. false: some of it is not registered
 * there. */
static bool slice_find_keys(struct rdma_slice *s, const struct rdma_rail *r) {
    if (s->lkey_device == r->device) return s->n_pieces <= r->max_sge;
    if (s->n_pieces > r->max_sge) return false;
    for (unsigned i = 0; i < s->n_pieces; i++) {
        uint64_t len = s->piece[i].iov_len;
        struct ibv_mr *mr =
            rdma_memory_local(s->key->domain, r->device, s->piece[i].iov_base, &len);
        if (mr == NULL || len < s->piece[i].iov_len) return false;
        s->lkey[i] = mr->lkey;
    }
    s->lkey_device = r->device;
    return true;
}

static bool slice_stage(struct rdma_slice *s) {
    struct transport_domain *d = s->key->domain;
    uint64_t length = s->length;
    char *at = rdma_staging_get(d->work->staging, &length);
    if (at != NULL && length < s->length) { /* it is cut already */
        rdma_staging_put(d->work->staging, at, length);
        at = NULL;
    }
    if (at == NULL) {
        d->counters.staging_waits++;
        return false;
    }
    s->staged = at;
    d->counters.staged++;
    d->counters.staged_bytes += s->length;
    if (s->task->op->kind != TRANSPORT_PUT) return true;
    for (unsigned i = 0; i < s->n_pieces; at += s->piece[i].iov_len, i++)
        memcpy(at, s->piece[i].iov_base, s->piece[i].iov_len);
    return true;
}

static void fill_pieces(const struct rdma_slice *s, struct rdma_rail *r, struct ibv_send_wr *wr) {
    struct ibv_sge *sge = wr->sg_list;
    if (s->staged != NULL) {
        uint32_t lkey = 0;
        TARN_ASSERT(rdma_staging_key(r->key->domain->work, r->device, &lkey) == TARN_OK);
        sge[0] = (struct ibv_sge){(uintptr_t)s->staged, (uint32_t)s->length, lkey};
        wr->num_sge = 1;
        return;
    }
    for (unsigned i = 0; i < s->n_pieces; i++)
        sge[i] = (struct ibv_sge){(uintptr_t)s->piece[i].iov_base, (uint32_t)s->piece[i].iov_len,
                                  s->lkey[i]};
    wr->num_sge = (int)s->n_pieces;
}

bool rdma_slice_post(struct rdma_slice *s, struct rdma_rail *r) {
    struct transport_key *k = s->key;
    struct rdma_task *t = s->task;
    bool put = t->op->kind == TRANSPORT_PUT;
    bool inlined = put && s->length <= r->max_inline &&
                   (s->staged != NULL || s->n_pieces <= r->max_sge) &&
                   !rdma_local_is_dmabuf(k->domain, s->piece[0].iov_base);
    if (!inlined && s->staged == NULL && !slice_find_keys(s, r) && !slice_stage(s)) return false;
    struct ibv_send_wr *wr = rail_chain(r, s);
    fill_pieces(s, r, wr);
    if (put) wr->opcode = IBV_WR_RDMA_WRITE;
    if (inlined) wr->send_flags |= IBV_SEND_INLINE;
    k->domain->counters.inlined += inlined;
    wr->wr.rdma.remote_addr = k->h.address + s->offset;
    wr->wr.rdma.rkey = k->remote[r->remote].rkey[s->offset / k->h.chunk_size];
    if (s->state == RDMA_SLICE_WAITING) {
        k->waiting -= s->length;
        TAILQ_REMOVE(&k->retry, s, link);
    }
    s->state = RDMA_SLICE_POSTED;
    s->rail = r;
    t->posted++;
    r->outstanding += s->length;
    k->outstanding += s->length;
    r->used_ms = k->domain->now_ms;
    ride_on(t, r);
    return true;
}

/* Is any task waiting for a header behind what it sent by r, and has nothing more to send? */
static bool header_due(const struct rdma_rail *r) {
    const struct rdma_ride *ride;
    TAILQ_FOREACH(ride, &r->needed, link) {
        if (ride->task->left == 0) return true;
    }
    return false;
}

/* One READ of the header is good for all of them. */
static void post_header(struct rdma_rail *r) {
    struct transport_key *k = r->key;
    uint32_t seq = r->tail, lkey = 0;
    struct ibv_send_wr *wr = rail_chain(r, NULL);
    TARN_ASSERT(rdma_staging_key(k->domain->work, r->device, &lkey) == TARN_OK);
    char *at = r->headers + seq % r->depth * RDMA_HEADER_STRIDE;
    wr->sg_list[0] = (struct ibv_sge){(uintptr_t)at, RDMA_HEADER_LENGTH, lkey};
    wr->num_sge = 1;
    wr->wr.rdma.remote_addr = k->h.header_address + HEADER_OFFSET;
    wr->wr.rdma.rkey = k->remote[r->remote].header_rkey;
    if (k->h.header_address == 0) { /* there is none, but what was written has arrived when
                                       something can be read after it */
        wr->sg_list[0].length = (uint32_t)min_u64(RDMA_HEADER_LENGTH, k->h.size);
        wr->wr.rdma.remote_addr = k->h.address;
        wr->wr.rdma.rkey = k->remote[r->remote].rkey[0];
    }
    struct rdma_ride *ride, *next;
    TAILQ_FOREACH_SAFE(ride, &r->needed, link, next) {
        if (ride->task->left > 0) continue;
        TAILQ_REMOVE(&r->needed, ride, link);
        TAILQ_INSERT_TAIL(&r->awaited, ride, link);
        ride->awaited = true;
        ride->header_seq = seq;
    }
}

void rdma_rail_flush(struct rdma_rail *r) {
    if (!rdma_rail_ready(r)) return;
    if (rdma_rail_room(r) > 0 && header_due(r)) post_header(r);
    post_chain(r);
}

/* --- a key's turn --- */

/* What has to be sent again, or confirmed. false: not now. */
static bool pump_again(struct transport_key *k, struct rdma_slice *s, uint64_t *budget_p) {
    struct rdma_rail *r = rdma_rail_choose(k, s->task->numa_node, s->length);
    if (r == NULL) return false;
    if (s->length == 0) {
        struct rdma_task *t = s->task;
        ride_on(t, r);
        rdma_slice_free(s);
        rdma_task_collect(t); /* it may have stood before others */
        r->used_ms = k->domain->now_ms;
        return true;
    }
    if (!rdma_slice_post(s, r)) return false;
    *budget_p -= min_u64(*budget_p, s->length);
    return true;
}

static bool pump_next(struct transport_key *k, struct rdma_task *t, uint64_t *budget_p) {
    struct rdma_rail *r = rdma_rail_choose(k, t->numa_node, 0);
    if (r == NULL) {
        k->domain->counters.queue_full += k->up > 0;
        return false;
    }
    struct rdma_slice *s = rdma_task_cut(t, r);
    if (s == NULL) return t->status != TARN_OK; /* it has failed; or there is no buffer */
    *budget_p -= min_u64(*budget_p, s->length);
    TARN_ASSERT(rdma_slice_post(s, r));
    if (t->left > 0) return true;
    struct rdma_ride *ride;
    LIST_FOREACH(ride, &t->rides, task_link) {
        /* now its headers are due there, too */
        if (ride->rail->key != k) rdma_key_activate(ride->rail->key);
    }
    return true;
}

void rdma_key_pump(struct transport_key *k, uint64_t *budget_p) {
    rdma_key_want_rails(k);
    bool going = k->up > 0;
    while (going && *budget_p > 0) {
        struct rdma_slice *s = TAILQ_FIRST(&k->retry);
        struct rdma_task *t = TAILQ_FIRST(&k->queue);
        if (s == NULL && t == NULL) break;
        going = s != NULL ? pump_again(k, s, budget_p) : pump_next(k, t, budget_p);
    }
    struct rdma_rail *r;
    TAILQ_FOREACH(r, &k->rails, link) rdma_rail_flush(r);
}
