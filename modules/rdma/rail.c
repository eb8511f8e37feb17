/* A rail: one queue pair, from resolving an address to the last doubt about what it carried.
 *
 * The queue pair is moved by hand (rdma.h says why): INIT before the request, RTR and RTS when the
 * host's answer is there, and rdma_establish then.
 *
 * When a rail fails its queue pair is destroyed: after that the device does not touch local buffers
 * any more. Over there bytes of WRITEs may still arrive. The host says that they cannot by ending
 * its side of the connection (which it does after destroying its queue pair, so that both its own
 * DISCONNECTED and its answer to ours mean it), by accepting a rail that replaces the old one, or
 * by not listening any more. Until then such a rail is RDMA_RAIL_DOUBT, and keeps its number and
 * its id. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "rdma/work.h"

#define REJECT_CONSUMER                                                                            \
    28 /* of InfiniBand's reasons: the application said no; its words are in the private data */
#define REJECT_NO_SERVICE 8 /* nobody listens */
#define READ_DEPTH_MAX    16u
#define PAIR_FAILED_MS    1000u
#define INLINE_LEAST      16u

/* --- opening --- */

/* Of the kind of the one over there. */
static bool source_address(const struct rdma_device *d, const struct rdma_address *there,
                           struct rdma_address *here) {
    struct rdma_address address[RDMA_ADDRESSES_MAX];
    size_t n = rdma_device_addresses(d, address);
    for (size_t i = 0; i < n; i++) {
        *here = address[i];
        if (rdma_address_is_v4(here) == rdma_address_is_v4(there) &&
            !IN6_IS_ADDR_LINKLOCAL(&here->ip) == !IN6_IS_ADDR_LINKLOCAL(&there->ip))
            return true;
    }
    return false;
}

/* The rail of another key that has had nothing to do for longest makes room. */
static bool rail_evict(struct rdma_work *w, const struct transport_key *k) {
    struct rdma_rail *oldest = NULL;
    for (unsigned i = 0; i < w->max_rails; i++) {
        struct rdma_rail *r = w->rail[i];
        if (r == NULL || r->key == k || r->state != RDMA_RAIL_UP || r->failing ||
            r->head != r->tail)
            continue;
        if (!TAILQ_EMPTY(&r->needed)) continue;
        if (oldest == NULL || r->used_ms < oldest->used_ms) oldest = r;
    }
    if (oldest == NULL) return false;
    w->domain->counters.reaped++;
    rdma_rail_close(oldest);
    return true;
}

static tarn_status take_slot(struct rdma_work *w, struct rdma_rail *r) {
    if (w->n_rails == w->max_rails && !rail_evict(w, r->key)) return TARN_ELIMIT;
    for (r->slot = 0; w->rail[r->slot] != NULL;) r->slot++;
    r->generation = ++w->generation[r->slot];
    w->rail[r->slot] = r;
    w->n_rails++;
    return TARN_OK;
}

static tarn_status take_entries(struct rdma_work *w, struct rdma_rail *r) {
    r->depth = (unsigned)min_u64(rdma_options.send_queue, (uint64_t)r->device->attr.max_qp_wr);
    if (r->depth < 2) return TARN_ELIMIT; /* a slice, and the header behind it */
    r->signal_every = (unsigned)max_u64(1, min_u64(rdma_options.signal_every, r->depth / 2));
    if (rdma_domain_cq(w->domain, r->device, &r->cq) != TARN_OK) {
        r->cq = NULL;
        return TARN_ELIMIT;
    }
    do {
        rdma_cq_drain(w->domain); /* what destroyed queue pairs have left there */
        if (r->cq->reserved + r->depth <= r->cq->entries) {
            r->cq->reserved += r->depth;
            return TARN_OK;
        }
    } while (rail_evict(w, r->key));
    r->cq = NULL;
    return TARN_ELIMIT;
}

/* How many rails of the key are in a state like this one. */
static unsigned *rails_like(struct transport_key *k, enum rdma_rail_state state) {
    return state == RDMA_RAIL_UP ? &k->up : state == RDMA_RAIL_DOUBT ? &k->doubtful : &k->coming;
}

static void rail_enter(struct rdma_rail *r, enum rdma_rail_state state) {
    --*rails_like(r->key, r->state);
    ++*rails_like(r->key, state);
    r->state = state;
}

static void rail_free(struct rdma_rail *r) {
    struct transport_key *k = r->key;
    struct rdma_work *w = k->domain->work;
    --*rails_like(k, r->state);
    TARN_ASSERT(r->qp == NULL && TAILQ_EMPTY(&r->doubt) && TAILQ_EMPTY(&r->needed) &&
                TAILQ_EMPTY(&r->awaited));
    if (r->mends != NULL) r->mends->mender = NULL;
    if (r->mender != NULL) r->mender->mends = NULL;
    if (r->cq != NULL) w->release[r->device->index] += r->depth;
    if (r->id != NULL) (void)rdma_destroy_id(r->id);
    if (r->slot < w->max_rails) {
        w->rail[r->slot] = NULL;
        w->n_rails--;
    }
    k->pair[r->device->index][r->remote].live--;
    TAILQ_REMOVE(&k->rails, r, link);
    free(r->entry);
    free(r);
}

static tarn_status rail_start(struct rdma_rail *r) {
    struct transport_domain *d = r->key->domain;
    struct rdma_work *w = d->work;
    tarn_status status = take_slot(w, r);
    if (status == TARN_OK) status = take_entries(w, r);
    uint32_t lkey;
    if (status == TARN_OK) status = rdma_staging_key(w, r->device, &lkey);
    if (status != TARN_OK) return status;
    r->headers = rdma_staging_headers(w->staging, r->slot);
    r->entry = xcalloc(r->depth, sizeof(*r->entry));
    const struct rdma_remote *remote = &r->key->remote[r->remote];
    struct rdma_address source;
    if (!source_address(r->device, &remote->address, &source)) return TARN_ECLOSED;
    struct sockaddr_storage here = rdma_address_sockaddr(&source, 0),
                            there = rdma_address_sockaddr(&remote->address, remote->port);
    if (rdma_create_id(d->channel, &r->id, &r->tag, RDMA_PS_TCP) != 0) {
        r->id = NULL;
        return TARN_ECLOSED;
    }
    if (rdma_resolve_addr(r->id, (struct sockaddr *)&here, (struct sockaddr *)&there,
                          (int)rdma_options.connect_ms) != 0) {
        log_verbose("%s to %s: resolving: %m", r->device->name, remote->address.text);
        return TARN_ECLOSED;
    }
    return TARN_OK;
}

tarn_status rdma_rail_open(struct transport_key *k, struct rdma_device *device, unsigned remote,
                           struct rdma_rail *mends) {
    struct transport_domain *d = k->domain;
    struct rdma_rail *r = xcalloc(1, sizeof(*r));
    r->tag.kind = RDMA_TAG_RAIL;
    r->key = k;
    r->device = device;
    r->remote = remote;
    r->slot = UINT32_MAX;
    r->started_ms = r->used_ms = d->now_ms;
    r->deadline_ms = d->now_ms + rdma_options.connect_ms;
    TAILQ_INIT(&r->needed);
    TAILQ_INIT(&r->awaited);
    TAILQ_INIT(&r->doubt);
    TAILQ_INSERT_TAIL(&k->rails, r, link);
    k->pair[device->index][remote].live++;
    k->coming++;
    d->counters.connects++;
    tarn_status status = rail_start(r);
    if (status != TARN_OK) {
        d->counters.connect_failures++;
        rail_free(r);
        return status;
    }
    if (mends != NULL) {
        r->mends = mends;
        mends->mender = r;
    }
    rdma_work_due(d->work, r->deadline_ms);
    return TARN_OK;
}

/* --- connecting --- */

/* Inline data costs room in the send queue, and devices differ in how much they take: less of it,
 * or none, where it is too much. */
static tarn_status make_queue_pair(struct rdma_rail *r) {
    uint32_t sges = (uint32_t)min_u64(RDMA_PIECES, (uint64_t)r->device->attr.max_sge);
    if (sges == 0) return TARN_ELIMIT;
    for (uint32_t bytes = rdma_options.inline_bytes;;
         bytes = bytes > INLINE_LEAST ? bytes / 2 : 0) {
        struct ibv_qp_init_attr init = {
            .send_cq = r->cq->cq,
            .recv_cq = r->cq->cq,
            .cap = {.max_send_wr = r->depth,
                    .max_recv_wr = 1,
                    .max_send_sge = sges,
                    .max_recv_sge = 1,
                    .max_inline_data = bytes},
            .qp_type = IBV_QPT_RC,
        };
        r->qp = ibv_create_qp(r->device->pd, &init);
        r->max_inline = (unsigned)min_u64(init.cap.max_inline_data, bytes);
        if (r->qp != NULL || bytes == 0) break;
    }
    if (r->qp == NULL) {
        log_verbose("A queue pair on %s: %m", r->device->name);
        return TARN_ECLOSED;
    }
    r->max_sge = sges;
    r->qp_num = r->qp->qp_num;
    return TARN_OK;
}

static tarn_status rail_request(struct rdma_rail *r) {
    struct transport_key *k = r->key;
    if (r->id->verbs != r->device->verbs)
        return TARN_ECLOSED; /* routed by another device: that one has pairs of its own */
    tarn_status status = make_queue_pair(r);
    if (status != TARN_OK) return status;
    if (!rdma_qp_move(r->id, r->qp, IBV_QPS_INIT, 0, 0)) return TARN_ECLOSED;
    struct rdma_request rq = {
        .magic = RDMA_WIRE_MAGIC,
        .version = RDMA_WIRE_VERSION,
        .right = k->writable ? RDMA_WRITE : RDMA_READ,
        .segment = k->h.segment,
        .segment_epoch = k->h.segment_epoch,
        .replaces = r->mends != NULL ? r->mends->remote_qp : RDMA_PROGRAM | program_own(),
    };
    memcpy(rq.grant, k->grant, GRANT_SIZE);
    uint64_t depth = min_u64(READ_DEPTH_MAX, (uint64_t)r->device->attr.max_qp_init_rd_atom);
    struct rdma_conn_param param = {
        .private_data = &rq,
        .private_data_len = sizeof(rq),
        .responder_resources = 1,
        .initiator_depth = (uint8_t)max_u64(depth, 1),
        .retry_count = (uint8_t)min_u64(rdma_options.qp_retry, 7),
        .rnr_retry_count = 7,
        .qp_num = r->qp->qp_num,
    };
    return rdma_connect(r->id, &param) == 0 ? TARN_OK : TARN_ECLOSED;
}

/* Is the host what the key is for? */
static tarn_status check_accept(struct rdma_rail *r, const void *data, size_t len) {
    struct transport_key *k = r->key;
    struct rdma_accept a = {0};
    if (len < RDMA_ACCEPT_SHORT) return TARN_EPROTO;
    memcpy(&a, data, min_u64(len, sizeof(a)));
    if (a.magic != RDMA_WIRE_MAGIC || a.version != RDMA_WIRE_VERSION ||
        a.slice_max < RDMA_SLICE_MIN)
        return TARN_EPROTO;
    bool same = a.segment_epoch == k->h.segment_epoch && a.generation == k->h.generation;
    if (k->accepted) same = same && a.master_epoch == k->master_epoch && a.instance == k->instance;
    if (!same) {
        rdma_key_refused(k, TARN_ESTALE);
        return TARN_ESTALE;
    }
    k->accepted = true;
    k->master_epoch = a.master_epoch;
    k->instance = a.instance;
    r->slice_max = a.slice_max;
    r->program = program_told(a.program);
    return TARN_OK;
}

static tarn_status rail_accepted(struct rdma_rail *r, const void *data, size_t len,
                                 uint32_t remote_qp) {
    struct transport_key *k = r->key;
    r->remote_qp = remote_qp;
    if (r->mends != NULL) rdma_rail_settle(r->mends);
    tarn_status status = check_accept(r, data, len);
    if (status != TARN_OK) return status;
    if (!rdma_qp_move(r->id, r->qp, IBV_QPS_RTR, 0, 0) ||
        !rdma_qp_move(r->id, r->qp, IBV_QPS_RTS, 0, 0))
        return TARN_ECLOSED;
    if (rdma_establish(r->id) != 0) return TARN_ECLOSED;
    rail_enter(r, RDMA_RAIL_UP);
    r->used_ms = k->domain->now_ms;
    for (unsigned i = 0; i < RDMA_DEVICES_MAX; i++) {
        for (unsigned j = 0; j < RDMA_DEVICES_MAX; j++) k->pair[i][j].tried = false;
    }
    rdma_work_due(k->domain->work, r->used_ms + rdma_options.idle_ms);
    rdma_key_make_way(k, r);
    rdma_key_activate(k);
    return TARN_OK;
}

/* What a refusal means for the key; returns what it means for the rail. */
static tarn_status rail_refused(struct rdma_rail *r, const void *data, size_t len) {
    struct transport_key *k = r->key;
    struct rdma_reject reject;
    if (len < sizeof(reject)) return TARN_ECLOSED;
    memcpy(&reject, data, sizeof(reject));
    if (reject.magic != RDMA_WIRE_MAGIC)
        return TARN_ECLOSED; /* the kernel's, for one that died with our request in hand */
    tarn_status status;
    switch (reject.refusal) {
    case GRANT_BAD_EPOCH:
    case RDMA_REFUSED_SEGMENT: status = TARN_ESTALE; break;
    case GRANT_EXPIRED: status = TARN_EGRANT_EXPIRED; break;
    case RDMA_REFUSED_TOO_MANY: return TARN_ELIMIT;
    case RDMA_REFUSED_NOT_YET:
    case RDMA_REFUSED_DEVICE: return TARN_ECLOSED;
    case GRANT_OK: return TARN_EPROTO;
    default:
        if (reject.refusal >= GRANT_VERDICTS) return TARN_EPROTO;
        status = TARN_EPERM;
    }
    rdma_key_refused(k, status);
    return status;
}

/* Nobody listens where r led: whatever its device over there did for this key is over. */
static void nobody_there(struct rdma_rail *r) {
    struct rdma_rail *other, *next;
    TAILQ_FOREACH_SAFE(other, &r->key->rails, link, next) {
        if (other->state == RDMA_RAIL_DOUBT && other->remote == r->remote) rdma_rail_settle(other);
    }
}

/* --- events --- */

static tarn_status rail_rejected(struct rdma_rail *r, int why, const void *data, size_t len) {
    if (why == REJECT_CONSUMER) return rail_refused(r, data, len);
    if (why == REJECT_NO_SERVICE || why == -ECONNREFUSED) nobody_there(r);
    return TARN_ECLOSED;
}

static int time_left(const struct rdma_rail *r) {
    uint64_t now_ms = r->key->domain->now_ms;
    return r->deadline_ms > now_ms ? (int)(r->deadline_ms - now_ms) : 1;
}

static void rail_disconnected(struct rdma_rail *r, int status) {
    if (status == 0) r->gone = true; /* else its answer did not come */
    if (r->state == RDMA_RAIL_DOUBT) {
        if (status == 0) rdma_rail_settle(r);
        return;
    }
    rdma_rail_fail(r, TARN_ECLOSED);
}

static void rail_handle(struct rdma_rail *r, enum rdma_cm_event_type type, int why,
                        const void *data, size_t len, uint32_t remote_qp) {
    tarn_status status = TARN_OK;
    switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        if (r->state != RDMA_RAIL_ADDRESS || r->failing) return;
        r->state = RDMA_RAIL_ROUTE;
        if (rdma_resolve_route(r->id, time_left(r)) != 0) status = TARN_ECLOSED;
        break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        if (r->state != RDMA_RAIL_ROUTE || r->failing) return;
        r->state = RDMA_RAIL_CONNECTING;
        status = rail_request(r);
        break;
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
        if (r->state != RDMA_RAIL_CONNECTING || r->failing) return;
        status = rail_accepted(r, data, len, remote_qp);
        break;
    case RDMA_CM_EVENT_REJECTED:
        if (r->state == RDMA_RAIL_CONNECTING) status = rail_rejected(r, why, data, len);
        break;
    case RDMA_CM_EVENT_DISCONNECTED: rail_disconnected(r, why); return;
    case RDMA_CM_EVENT_UNREACHABLE:
        status = why == -ETIMEDOUT ? TARN_ETIMEOUT : TARN_ECLOSED;
        break;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_ADDR_CHANGE: status = TARN_ECLOSED; break;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        if (r->state == RDMA_RAIL_DOUBT) { /* its id must not stay */
            (void)rdma_destroy_id(r->id);
            r->id = NULL;
            return;
        }
        r->removed = true;
        status = TARN_ECLOSED;
        break;
    default: return;
    }
    if (status != TARN_OK && r->state != RDMA_RAIL_DOUBT) rdma_rail_fail(r, status);
}

void rdma_rail_event(struct rdma_cm_event *event) {
    struct rdma_rail *r = event->id->context;
    enum rdma_cm_event_type type = event->event;
    int why = event->status;
    uint8_t data[256];
    size_t len = 0;
    uint32_t remote_qp = event->param.conn.qp_num;
    if (event->param.conn.private_data != NULL) {
        len = event->param.conn.private_data_len;
        memcpy(data, event->param.conn.private_data, len);
    }
    (void)rdma_ack_cm_event(event); /* before the id may be destroyed */
    rail_handle(r, type, why, data, len, remote_qp);
}

/* --- failing --- */

void rdma_rail_fail(struct rdma_rail *r, tarn_status why) {
    struct rdma_work *w = r->key->domain->work;
    if (r->failing) return;
    TARN_ASSERT(r->state != RDMA_RAIL_DOUBT);
    r->failing = true;
    r->why = why;
    w->more = true;
    TAILQ_INSERT_TAIL(&w->failing, r, fail_link);
}

/* By whichever rail comes next. */
static void slice_again(struct rdma_slice *s) {
    struct transport_key *k = s->key;
    k->domain->counters.slice_retries++;
    s->rail = NULL;
    s->state = RDMA_SLICE_WAITING;
    k->waiting += s->length;
    TAILQ_INSERT_TAIL(&k->retry, s, link);
}

/* A slice that the device has let go of without saying that it was done. */
static void drop_slice(struct rdma_rail *r, struct rdma_slice *s, bool sent) {
    struct transport_key *k = r->key;
    struct rdma_task *t = s->task;
    bool loose = sent && !r->gone && t->op->kind == TRANSPORT_PUT;
    s->rail = NULL;
    t->posted--;
    k->outstanding -= s->length;
    k->domain->counters.slice_errors++;
    if (t->status == TARN_OK && s->tries++ >= rdma_options.retries) {
        t->loose |= loose;
        s->state = RDMA_SLICE_ARRIVED;
        rdma_task_fail(t, r->why);
    } else if (t->status != TARN_OK) {
        t->loose |= loose;
        rdma_slice_free(s);
        rdma_task_settle(t);
    } else if (loose) {
        s->state = RDMA_SLICE_DOUBT;
        s->rail = r;
        TAILQ_INSERT_TAIL(&r->doubt, s, link);
    } else {
        slice_again(s);
    }
}

/* Bytes of t came by r, and nobody has read the header after them: any rail of the key will do. */
static void drop_ride(struct rdma_rail *r, struct rdma_ride *ride) {
    struct rdma_task *t = ride->task;
    rdma_ride_free(ride);
    if (t->status != TARN_OK) {
        rdma_task_settle(t);
        return;
    }
    struct rdma_slice *s;
    TAILQ_FOREACH(s, &t->slices, task_link) {
        if (s->length == 0 && s->key == r->key) return; /* one for all rails that fail together */
    }
    if (t->confirmations++ >= rdma_options.retries) {
        rdma_task_fail(t, r->why);
        return;
    }
    s = xcalloc(1, sizeof(*s));
    s->task = t;
    s->key = r->key;
    s->state = RDMA_SLICE_WAITING;
    TAILQ_INSERT_TAIL(&t->slices, s, task_link);
    TAILQ_INSERT_TAIL(&r->key->retry, s, link);
}

static void drop_all(struct rdma_rail *r) {
    struct rdma_work *w = r->key->domain->work;
    w->posted -= r->sent - r->head;
    for (; r->head != r->tail; r->head++) {
        bool sent = (int32_t)(r->sent - r->head) > 0;
        struct rdma_slice *s = r->entry[r->head % r->depth];
        if (s != NULL) drop_slice(r, s, sent);
    }
    r->chained = 0;
    r->sent = r->tail;
    r->outstanding = 0;
    struct rdma_ride *ride;
    while ((ride = TAILQ_FIRST(&r->needed)) != NULL) drop_ride(r, ride);
    while ((ride = TAILQ_FIRST(&r->awaited)) != NULL) drop_ride(r, ride);
}

static void leave_state(struct rdma_rail *r) {
    struct transport_key *k = r->key;
    struct rdma_counters *c = &k->domain->counters;
    if (r->state == RDMA_RAIL_UP) {
        c->rail_failures++;
    } else {
        c->connect_failures++;
        k->last_failure = r->why;
    }
    k->pair[r->device->index][r->remote].bad_until_ms = k->domain->now_ms + PAIR_FAILED_MS;
    log_verbose("Segment %u: %s to %s: %s", k->h.segment, r->device->name,
                k->remote[r->remote].address.text, tarn_status_text(r->why));
}

static void rail_bury(struct rdma_rail *r) {
    struct transport_key *k = r->key;
    bool connected = r->state == RDMA_RAIL_UP;
    leave_state(r);
    if (r->qp != NULL) {
        /* of a device that is gone it is gone, whatever the answer */
        int rc = ibv_destroy_qp(r->qp);
        if (rc != 0 && rdma_device_usable(r->device))
            log_warning("Destroying a queue pair of %s: %s", r->device->name, strerror(rc));
        r->qp = NULL;
    }
    drop_all(r);
    rdma_key_activate(k);
    if (TAILQ_EMPTY(&r->doubt)) {
        rail_free(r);
        return;
    }
    TARN_ASSERT(connected);
    rail_enter(r, RDMA_RAIL_DOUBT);
    r->failing = false;
    /* Our answer to "is it over?" comes with DISCONNECTED, or by a rail that takes its place. */
    if (!r->removed) (void)rdma_disconnect(r->id);
    if (r->removed) (void)rdma_destroy_id(r->id);
    if (r->removed) r->id = NULL;
    r->deadline_ms = k->domain->now_ms + rdma_options.connect_ms * (1 + rdma_options.retries);
    rdma_work_due(k->domain->work, r->deadline_ms);
}

void rdma_rails_bury(struct rdma_work *w) {
    if (w == NULL) return;
    struct rdma_rail *r;
    while (!TAILQ_EMPTY(&w->failing)) {
        TAILQ_FOREACH(r, &w->failing, fail_link) {
            struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
            if (r->qp != NULL) (void)ibv_modify_qp(r->qp, &attr, IBV_QP_STATE);
        }
        rdma_cq_drain(w->domain); /* what came before counts */
        while ((r = TAILQ_TAKE(&w->failing, fail_link)) != NULL) {
            rail_bury(r);
        }
    }
}

static void rail_undoubt(struct rdma_rail *r) {
    TARN_ASSERT(r->state == RDMA_RAIL_DOUBT && TAILQ_EMPTY(&r->doubt));
    rdma_key_activate(r->key);
    rail_free(r);
}

void rdma_rail_settle(struct rdma_rail *r) {
    struct rdma_slice *s;
    while ((s = TAILQ_TAKE(&r->doubt, link)) != NULL) slice_again(s);
    rail_undoubt(r);
}

void rdma_rail_give_up(struct rdma_rail *r, tarn_status status) {
    struct rdma_slice *s;
    while ((s = TAILQ_FIRST(&r->doubt)) != NULL) rdma_task_fail(s->task, status);
    rail_undoubt(r);
}

void rdma_rail_close(struct rdma_rail *r) {
    struct rdma_work *w = r->key->domain->work;
    TARN_ASSERT(!r->failing && TAILQ_EMPTY(&r->needed) && TAILQ_EMPTY(&r->doubt));
    if (r->qp != NULL) (void)ibv_destroy_qp(r->qp);
    r->qp = NULL;
    w->posted -= r->sent - r->head;
    for (; r->head != r->tail; r->head++) TARN_ASSERT(r->entry[r->head % r->depth] == NULL);
    r->sent = r->tail;
    rail_free(r);
}
