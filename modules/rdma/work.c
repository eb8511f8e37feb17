/* Operations: taken, cut in slices as rails have room for them, ended. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "rdma/work.h"

#define SLICES_A_TASK                                                                              \
    16u /* a large operation is cut in so many at least, until slices are of slice_max */
#define CHECK_EVERY_MS 10u

struct rdma_work *rdma_work_of(struct transport_domain *d) {
    if (d->work != NULL) return d->work;
    struct rdma_work *w = xcalloc(1, sizeof(*w));
    w->magic = RDMA_WORK_MAGIC;
    w->domain = d;
    TAILQ_INIT(&w->active);
    TAILQ_INIT(&w->finished);
    TAILQ_INIT(&w->failing);
    w->max_rails = rdma_options.max_rails;
    w->rail = xcalloc(w->max_rails, sizeof(struct rdma_rail *));
    w->generation = xcalloc(w->max_rails, sizeof(*w->generation));
    d->work = w;
    return w;
}

void rdma_work_due(struct rdma_work *w, uint64_t boot_ms) {
    if (w->check_ms != 0 && w->check_ms <= boot_ms) return;
    w->check_ms = boot_ms;
    rdma_domain_wake_at(w->domain, boot_ms);
}

/* --- taking operations --- */

bool rdma_local_is_dmabuf(const struct transport_domain *d, const void *addr) {
    const struct transport_memory *m;
    if (d->dmabufs == 0) return false;
    LIST_FOREACH(m, &d->memories, link) {
        const char *start = m->config.addr, *at = addr;
        if (m->config.dmabuf && at >= start && (uint64_t)(at - start) < m->config.length)
            return true;
    }
    return false;
}

static tarn_status rdma_op_check(const struct transport_endpoint *e,
                                 const struct transport_op *op) {
    for (size_t i = 0; i < op->n_parts; i++) {
        const struct grant_extent *x = &op->parts[i].extent;
        const struct transport_key *k = op->parts[i].key;
        if (k == NULL) return TARN_EPERM;
        MAGIC_CHECK(k, RDMA_KEY_OPEN_MAGIC);
        TARN_ASSERT(k->domain == e->domain);
        if (op->kind == TRANSPORT_PUT && !k->writable) return TARN_EPERM;
        if (x->segment != k->h.segment || x->offset > k->h.size ||
            x->length > k->h.size - x->offset)
            return TARN_EINVAL;
    }
    for (size_t i = 0; op->crcs != NULL && i < op->n_iov; i++) /* the CPU cannot look at it */
        if (rdma_local_is_dmabuf(e->domain, op->iov[i].iov_base)) return TARN_ENOTSUP;
    return op_is_sound(op) ? TARN_OK : TARN_EINVAL;
}

/* Known before anything is sent? */
static tarn_status op_foregone(const struct transport_op *op) {
    for (size_t i = 0; i < op->n_parts; i++) {
        const struct transport_key *k = op->parts[i].key;
        if (op->parts[i].extent.segment_epoch != k->h.segment_epoch) return TARN_ESTALE;
        if (k->refused == TARN_ESTALE || (k->refused != TARN_OK && k->up == 0)) return k->refused;
    }
    return TARN_OK;
}

static uint64_t slice_size(uint64_t length) {
    uint64_t size = rdma_options.slice;
    while (size * 2 <= rdma_options.slice_max && size * SLICES_A_TASK < length) size *= 2;
    return size;
}

static void task_enqueue(struct rdma_task *t, struct transport_key *k) {
    t->key = k;
    t->queued = true;
    k->waiting += t->left;
    TAILQ_INSERT_TAIL(&k->queue, t, link);
    rdma_key_activate(k);
}

static void task_dequeue(struct rdma_task *t) {
    t->queued = false;
    t->key->waiting -= t->left;
    TAILQ_REMOVE(&t->key->queue, t, link);
}

static void op_accept(struct transport_endpoint *e, struct transport_op *op) {
    struct rdma_work *w = e->domain->work;
    struct rdma_task *t = xcalloc(1, sizeof(*t));
    t->op = op;
    t->at.local = iov_cursor(op->iov, op->n_iov);
    t->left = op_bytes(op);
    t->endpoint = e;
    t->since_ms = clock_boot_ms();
    t->numa_node = -1;
    TAILQ_INIT(&t->slices);
    LIST_INIT(&t->rides);
    crc_track_init(&t->crc, op);
    for (size_t i = 0; i < op->n_parts; i++) op->parts[i].key->n_tasks++;
    t->slice_size = slice_size(t->left);
    TAILQ_INSERT_TAIL(&e->tasks, t, end_link);
    e->n_tasks++;
    tarn_status status = op_foregone(op);
    if (status == TARN_OK && t->left > 0) {
        /* To ask costs a system call, and small ones do not care. */
        if (rdma_devices_count() > 1 && t->left >= rdma_options.slice)
            t->numa_node = rdma_numa_node_of(iov_here(&t->at.local).iov_base);
        task_enqueue(t, op_part(op, &t->at)->key);
        rdma_work_due(w, t->since_ms + (op->patience_ms != 0 ? op->patience_ms : RDMA_STALL_MS));
    } else {
        t->left = 0;
        t->status = status;
        rdma_task_settle(t);
    }
}

tarn_status rdma_submit(struct transport_endpoint *e, struct transport_op *const *ops, size_t n,
                        size_t *accepted_p) {
    MAGIC_CHECK(e, RDMA_ENDPOINT_MAGIC);
    if (e->cancel_ms != 0) return TARN_ECLOSED; /* from a done() of what is cancelled */
    for (size_t i = 0; i < n; i++) {
        tarn_status status = rdma_op_check(e, ops[i]);
        if (status != TARN_OK) return status;
    }
    n = min_u64(n, RDMA_OUTSTANDING_MAX - e->n_tasks);
    for (size_t i = 0; i < n; i++) op_accept(e, ops[i]);
    *accepted_p = n;
    return TARN_OK;
}

/* --- cutting --- */

struct cut {
    struct rdma_slice *s;
    struct rdma_rail *r;
    bool put, in_place, inlined;
    uint64_t limit, registered; /* registered: bytes behind the last piece under its local key */
    uint64_t staged;            /* size of the buffer */
};

/* How is the memory at the cursor reached? false: not at the moment. */
static bool begin_cut(struct rdma_task *t, struct cut *c) {
    struct transport_domain *d = t->endpoint->domain;
    struct iovec v = iov_here(&t->at.local);
    c->put = t->op->kind == TRANSPORT_PUT;
    c->limit = min_u64(t->slice_size, min_u64(t->left, c->r->slice_max));
    c->limit = min_u64(c->limit, rdma_key_chunk_left(t->key, c->s->offset));
    bool device_memory = rdma_local_is_dmabuf(d, v.iov_base);
    c->inlined = c->put && c->limit <= c->r->max_inline && !device_memory;
    if (c->inlined) return true;
    uint64_t len = v.iov_len;
    c->in_place = rdma_memory_local(d, c->r->device, v.iov_base, &len) != NULL;
    if (c->in_place) return true;
    if (device_memory) {
        rdma_task_fail(t, TARN_ENOTSUP); /* no buffer of ours can stand in for it */
        return false;
    }
    c->staged = c->limit;
    c->s->staged = rdma_staging_get(d->work->staging, &c->staged);
    if (c->s->staged == NULL) {
        d->counters.staging_waits++;
        return false;
    }
    c->limit = c->staged;
    return true;
}

/* Does the piece at the cursor belong to this slice? Returns how much of it. */
static uint64_t next_piece(struct rdma_task *t, struct cut *c) {
    struct rdma_slice *s = c->s;
    const struct transport_part *p = op_part(t->op, &t->at);
    if (s->length == c->limit || p == NULL) return 0;
    struct iovec v = iov_here(&t->at.local);
    if (p->key != t->key ||
        p->extent.offset + p->sub_offset + t->at.offset != s->offset + s->length)
        return 0;
    uint64_t n = min_u64(p->sub_length - t->at.offset, v.iov_len);
    n = min_u64(n, c->limit - s->length);
    struct iovec *last = s->n_pieces > 0 ? &s->piece[s->n_pieces - 1] : NULL;
    bool joins = last != NULL && (char *)last->iov_base + last->iov_len == v.iov_base;
    if (joins && (!c->in_place || c->registered > 0)) {
        n = c->in_place ? min_u64(n, c->registered) : n;
        c->registered -= c->in_place ? n : 0;
        last->iov_len += n;
        return n;
    }
    if (s->n_pieces == RDMA_PIECES || (s->staged == NULL && s->n_pieces == c->r->max_sge)) return 0;
    if (!c->inlined) {
        uint64_t len = v.iov_len;
        struct ibv_mr *mr = rdma_memory_local(t->endpoint->domain, c->r->device, v.iov_base, &len);
        if ((mr != NULL) != c->in_place) return 0;
        if (mr != NULL) {
            n = min_u64(n, len);
            c->registered = len - n;
            s->lkey[s->n_pieces] = mr->lkey;
        }
    }
    s->piece[s->n_pieces++] = (struct iovec){v.iov_base, n};
    return n;
}

/* A PUT's bytes pass by here in order: its CRCs are made on the way. */
static void cut_pass(struct rdma_task *t, struct cut *c, const char *from, uint64_t n) {
    char *to = c->s->staged != NULL ? c->s->staged + c->s->length : NULL;
    if (t->op->crcs != NULL)
        crc_track_feed(&t->crc, t->op, to, from, n);
    else if (to != NULL)
        memcpy(to, from, n);
}

struct rdma_slice *rdma_task_cut(struct rdma_task *t, struct rdma_rail *r) {
    struct transport_key *k = t->key;
    struct cut c = {.s = xcalloc(1, sizeof(struct rdma_slice)), .r = r};
    struct rdma_slice *s = c.s;
    const struct transport_part *p = op_part(t->op, &t->at);
    s->task = t;
    s->key = k;
    s->lkey_device = r->device;
    s->offset = p->extent.offset + p->sub_offset + t->at.offset;
    if (!begin_cut(t, &c)) {
        free(s);
        return NULL;
    }
    uint64_t n;
    while ((n = next_piece(t, &c)) > 0) {
        if (c.put) cut_pass(t, &c, iov_here(&t->at.local).iov_base, n);
        s->length += n;
        t->at.offset += n;
        iov_advance(&t->at.local, n);
    }
    TARN_ASSERT(s->length > 0);
    if (s->staged != NULL) {
        rdma_staging_trim(k->domain->work->staging, s->staged, c.staged, s->length);
        k->domain->counters.staged++;
        k->domain->counters.staged_bytes += s->length;
    }
    TAILQ_INSERT_TAIL(&t->slices, s, task_link);
    task_dequeue(t);
    t->left -= s->length;
    p = t->left > 0 ? op_part(t->op, &t->at) : NULL;
    if (p != NULL && p->key == k) { /* still its turn */
        t->queued = true;
        k->waiting += t->left;
        TAILQ_INSERT_HEAD(&k->queue, t, link);
    } else if (p != NULL) {
        task_enqueue(t, p->key);
    }
    return s;
}

/* --- the end --- */

/* One that is not posted. */
void rdma_slice_free(struct rdma_slice *s) {
    struct rdma_task *t = s->task;
    struct transport_key *k = s->key;
    if (s->state == RDMA_SLICE_WAITING) {
        k->waiting -= s->length;
        TAILQ_REMOVE(&k->retry, s, link);
    } else if (s->state == RDMA_SLICE_DOUBT) {
        t->loose = true;
        TAILQ_REMOVE(&s->rail->doubt, s, link);
    }
    TAILQ_REMOVE(&t->slices, s, task_link);
    if (s->staged != NULL) rdma_staging_put(k->domain->work->staging, s->staged, s->length);
    free(s);
}

void rdma_task_fail(struct rdma_task *t, tarn_status status) {
    if (t->finished || t->status != TARN_OK) return;
    t->status = status;
    if (t->queued) task_dequeue(t);
    t->left = 0;
    struct rdma_slice *s, *next;
    TAILQ_FOREACH_SAFE(s, &t->slices, task_link, next) {
        if (s->state != RDMA_SLICE_POSTED) rdma_slice_free(s);
    }
    rdma_task_settle(t);
}

void rdma_task_tear(struct rdma_task *t) {
    struct rdma_slice *s;
    TAILQ_FOREACH(s, &t->slices, task_link) {
        if (s->state == RDMA_SLICE_POSTED) rdma_rail_fail(s->rail, TARN_ETIMEOUT);
    }
    struct rdma_ride *ride;
    LIST_FOREACH(ride, &t->rides, task_link) {
        if (ride->awaited) rdma_rail_fail(ride->rail, TARN_ETIMEOUT);
    }
}

void rdma_task_settle(struct rdma_task *t) {
    if (t->finished || t->left > 0 || t->posted > 0) return;
    if (t->status == TARN_OK && (!TAILQ_EMPTY(&t->slices) || !LIST_EMPTY(&t->rides))) return;
    TARN_ASSERT(TAILQ_EMPTY(&t->slices));
    while (!LIST_EMPTY(&t->rides)) rdma_ride_free(LIST_FIRST(&t->rides));
    struct rdma_work *w = t->endpoint->domain->work;
    t->finished = true;
    w->more = true;
    TAILQ_INSERT_TAIL(&w->finished, t, link);
}

void rdma_work_deliver(struct rdma_work *w, const struct transport_endpoint *only) {
    struct rdma_task *t, *next;
    /* Those that are done now; done() may bring new ones. */
    TAILQ_HEAD(, rdma_task) now = TAILQ_HEAD_INITIALIZER(now);
    TAILQ_FOREACH_SAFE(t, &w->finished, link, next) {
        if (only != NULL && t->endpoint != only) continue;
        TAILQ_REMOVE(&w->finished, t, link);
        TAILQ_INSERT_TAIL(&now, t, link);
    }
    while ((t = TAILQ_FIRST(&now)) != NULL) {
        struct transport_op *op = t->op;
        TAILQ_REMOVE(&now, t, link);
        TAILQ_REMOVE(&t->endpoint->tasks, t, end_link);
        t->endpoint->n_tasks--;
        for (size_t i = 0; i < op->n_parts; i++) op->parts[i].key->n_tasks--;
        tarn_status status = t->status;
        bool settled = !t->loose;
        w->domain->completed++;
        free(t);
        op_end(op, status, settled);
    }
}

/* --- time --- */

static void endpoint_check_tasks(struct rdma_work *w, struct transport_endpoint *e,
                                 uint64_t now_ms) {
    struct rdma_task *t, *next;
    TAILQ_FOREACH_SAFE(t, &e->tasks, end_link, next) {
        if (t->finished || t->key == NULL) continue;
        uint64_t patience_ms = t->op->patience_ms != 0 ? t->op->patience_ms : RDMA_STALL_MS;
        uint64_t until_ms = max_u64(t->since_ms, t->key->moved_ms) + patience_ms;
        if (now_ms < until_ms) {
            rdma_work_due(w, max_u64(until_ms, now_ms + CHECK_EVERY_MS));
            continue;
        }
        w->domain->counters.timeouts += t->status == TARN_OK;
        rdma_task_tear(t);
        rdma_task_fail(t, TARN_ETIMEOUT);
    }
}

static void check_rail(struct rdma_work *w, struct rdma_rail *r, uint64_t now_ms) {
    uint64_t until_ms = r->deadline_ms;
    if (r->failing) return;
    if (r->state == RDMA_RAIL_UP) {
        bool idle = r->head == r->tail && TAILQ_EMPTY(&r->needed);
        until_ms = (idle ? r->used_ms : now_ms) + rdma_options.idle_ms;
        if (r->retiring) until_ms = now_ms; /* as soon as it is idle */
        if (idle && now_ms >= until_ms) {
            w->domain->counters.reaped++;
            rdma_rail_close(r);
            return;
        }
    } else if (now_ms >= until_ms && r->state == RDMA_RAIL_DOUBT) {
        rdma_rail_give_up(r, TARN_ETIMEOUT);
        return;
    } else if (now_ms >= until_ms) {
        rdma_rail_fail(r, TARN_ETIMEOUT);
        return;
    }
    rdma_work_due(w, max_u64(until_ms, now_ms + CHECK_EVERY_MS));
}

static void check_time(struct rdma_work *w) {
    uint64_t now_ms = w->domain->now_ms;
    if (w->check_ms == 0 || now_ms < w->check_ms) return;
    w->check_ms = 0;
    struct transport_endpoint *e;
    TAILQ_FOREACH(e, &w->domain->endpoints, link) endpoint_check_tasks(w, e, now_ms);
    for (unsigned i = 0; i < w->max_rails; i++) {
        if (w->rail[i] != NULL) check_rail(w, w->rail[i], now_ms);
    }
}

/* Rails of a device that is gone, or whose port is down: others take over now, not when the
 * device's patience ends. */
static void check_devices(struct rdma_work *w) {
    for (unsigned i = 0; i < w->max_rails; i++) {
        struct rdma_rail *r = w->rail[i];
        if (r == NULL || r->failing || r->state == RDMA_RAIL_DOUBT || rdma_device_usable(r->device))
            continue;
        rdma_rail_fail(r, TARN_ECLOSED);
    }
}

/* --- progress --- */

void rdma_work_turn(struct transport_domain *d, uint64_t budget) {
    struct rdma_work *w = d->work;
    if (w == NULL) return;
    w->more = false;
    check_devices(w);
    check_time(w);
    rdma_rails_bury(w);
    uint64_t left = max_u64(budget, 1);
    struct transport_key *k, *last = TAILQ_LAST(&w->active, rdma_active);
    while (last != NULL && left > 0) {
        k = TAILQ_FIRST(&w->active);
        bool end = k == last;
        TAILQ_REMOVE(&w->active, k, active_link); /* the next turn begins with others */
        TAILQ_INSERT_TAIL(&w->active, k, active_link);
        rdma_key_pump(k, &left);
        if (rdma_key_idle(k)) {
            k->active = false;
            TAILQ_REMOVE(&w->active, k, active_link);
        }
        if (end) break;
    }
    if (left == 0) w->more = true;
    rdma_rails_bury(w);
    if (w->check_ms != 0) rdma_domain_wake_at(d, w->check_ms);
    rdma_work_deliver(w, NULL);
}

bool rdma_work_waiting(const struct transport_domain *d) {
    const struct rdma_work *w = d->work;
    return w != NULL && (w->more || !TAILQ_EMPTY(&w->finished) || !TAILQ_EMPTY(&w->failing));
}

static const char *rail_state_name(const struct rdma_rail *r) {
    static const char *const names[] = {"resolving", "resolving", "connecting", "up", "doubt"};
    return r->failing ? "failing" : names[r->state];
}

void rdma_work_describe(const struct transport_domain *d, struct buf *out) {
    const struct rdma_work *w = d->work;
    for (unsigned i = 0; w != NULL && i < w->max_rails; i++) {
        const struct rdma_rail *r = w->rail[i];
        if (r == NULL) continue;
        const struct transport_key *k = r->key;
        size_t before = out->len;
        char program[PROGRAM_TEXT];
        program_write(r->program, program);
        buf_printf(out,
                   "rail segment=%u right=%s device=%s address=%s state=%s outstanding=%llu "
                   "reads=%llu writes=%llu "
                   "qp=%u remote_qp=%u version=%s\n",
                   k->h.segment, k->writable ? "write" : "read", r->device->name,
                   k->remote[r->remote].address.text, rail_state_name(r),
                   (unsigned long long)r->outstanding, (unsigned long long)r->reads,
                   (unsigned long long)r->writes, r->qp_num, r->remote_qp, program);
        if (out->len <= TRANSPORT_REPORT_MAX) continue;
        out->len = before;
        return;
    }
}

void rdma_work_close(struct transport_domain *d) {
    struct rdma_work *w = d->work;
    if (w == NULL) return;
    MAGIC_CHECK(w, RDMA_WORK_MAGIC);
    TARN_ASSERT(w->n_rails == 0 && TAILQ_EMPTY(&w->finished) && TAILQ_EMPTY(&d->endpoints));
    rdma_cq_drain(d);
    for (unsigned i = 0; i < RDMA_DEVICES_MAX; i++) d->cqs[i].reserved -= w->release[i];
    rdma_staging_close(&w->staging);
    d->work = NULL;
    w->magic = 0;
    free(w->rail);
    free(w->generation);
    free(w);
}
