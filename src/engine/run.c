/* engine_run: from operations to slices, through transports, and back.
 *
 *   op --plan--> slices, each in one segment        (large ones are striped: a slice per stream)
 *   slice:  pending --stream, submit--> in flight --done--> over
 *              ^                            | the path failed
 *              +---- later, elsewhere ------+
 *
 * A slice's status is final when it says something about the bytes or the right to them; what says something about the path
 * only leads to another try, on another connection or by another transport, RETRIES_MAX times with growing pauses. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "engine/engine_internal.h"

#define SLICE_MAX       (64ull << 20)
#define SLICE_PARTS_MAX 1024u
#define STRIPE_ALIGN    (64u << 10)
#define RETRIES_MAX     3u
#define BACKOFF_MIN_MS  100u
#define BACKOFF_MAX_MS  5000u
#define PROGRESS_BUDGET (4u << 20)
#define WAIT_MAX_MS     100u
#define ARENA_BYTES     (64u << 10)

/* Memory of one run, freed as a whole. */
struct arena_chunk {
    struct arena_chunk *next;
    size_t used, size;
    _Alignas(16) char data[];
};

struct slice {
    struct transport_op top; /* parts and iov are the slice's own */
    struct op_run *run_op;
    struct engine_seg *seg;
    struct slice *next;     /* of the operation, in order */
    struct slice *next_due; /* pending */
    uint64_t at, length;    /* range of the value */
    unsigned kind;
    struct engine_stream *stream;
    bool spread; /* one of a stripe */
    unsigned tries;
    uint64_t not_before_ms;
};

struct op_run {
    struct run *run;
    struct engine_op *op;
    struct slice *first, **last;
    size_t slices_left;
    uint64_t length;
    bool over;
};

struct run {
    struct engine *e;
    struct op_run *ops;
    size_t n_ops, ops_left;
    struct slice *pending, **pending_tail;
    struct arena_chunk *arena;
    uint64_t deadline_ms; /* 0: none */
};

static void *arena_alloc(struct run *r, size_t size) {
    size = (size + 15) & ~(size_t)15;
    if (r->arena == NULL || r->arena->size - r->arena->used < size) {
        size_t room = size > ARENA_BYTES ? size : ARENA_BYTES;
        struct arena_chunk *c = xmalloc(sizeof(*c) + room);
        *c = (struct arena_chunk){.next = r->arena, .size = room};
        r->arena = c;
    }
    void *p = r->arena->data + r->arena->used;
    r->arena->used += size;
    return p;
}

static void arena_free(struct run *r) {
    while (r->arena != NULL) {
        struct arena_chunk *c = r->arena;
        r->arena = c->next;
        free(c);
    }
}

static void pending_push(struct run *r, struct slice *s) {
    s->next_due = NULL;
    *r->pending_tail = s;
    r->pending_tail = &s->next_due;
}

/* --- the end of an operation --- */

/* Puts the pieces' CRCs together: slices and blocks do not care for each other's borders. */
static void combine_crcs(struct op_run *o) {
    struct engine_op *op = o->op;
    uint64_t block = op->crcs != NULL ? op->crc_block : 0;
    uint32_t all = 0;
    for (const struct slice *s = o->first; s != NULL; s = s->next) {
        uint64_t at = s->at, left = s->length;
        uint64_t len = min_u64(left, s->top.crc_block != 0 ? s->top.crc_first : left);
        for (size_t i = 0; left > 0; i++, at += len, left -= len, len = min_u64(left, s->top.crc_block)) {
            if (i > 0 && len == 0) break;
            uint32_t crc = s->top.crcs[i];
            all = crc32c_combine(all, crc, len);
            if (block == 0) continue;
            uint32_t *out = &op->crcs[at / block];
            *out = at % block == 0 ? crc : crc32c_combine(*out, crc, len);
        }
    }
    if (op->want_crc) op->crc = all;
}

static void op_finish(struct op_run *o, tarn_status status) {
    if (o->over) return;
    struct engine_op *op = o->op;
    struct engine_stats *st = &o->run->e->stats;
    if (status == TARN_OK && op->lease_end_boot_ms != 0 && clock_boot_ms() >= op->lease_end_boot_ms) {
        status = TARN_ELEASE;
    }
    if (status == TARN_OK && (op->want_crc || op->crcs != NULL)) combine_crcs(o);
    if (status == TARN_ELEASE) st->lease_misses++;
    if (status == TARN_ESTALE) st->epoch_misses++;
    if (status == TARN_ETIMEOUT) st->timeouts++;
    if (status == TARN_OK && op->used == ENGINE_SHM) {
        op->write ? (st->shm_writes++, st->shm_bytes_written += o->length)
                  : (st->shm_reads++, st->shm_bytes_read += o->length);
    } else if (status == TARN_OK) {
        op->write ? (st->tcp_writes++, st->tcp_bytes_written += o->length)
                  : (st->tcp_reads++, st->tcp_bytes_read += o->length);
    }
    op->status = status;
    o->over = true;
    o->run->ops_left--;
}

/* --- planning --- */

struct cursor { /* over an operation's local memory */
    const struct iovec *iov;
    size_t n, i;
    uint64_t offset;
};

/* The next len bytes of local memory as iovecs. */
static void take_iov(struct run *r, struct cursor *c, uint64_t len, struct transport_op *top) {
    size_t n = 0;
    uint64_t left = len, offset = c->offset;
    for (size_t i = c->i; left > 0; i++, offset = 0, n++) left -= min_u64(left, c->iov[i].iov_len - offset);
    struct iovec *out = arena_alloc(r, (n + 1) * sizeof(*out));
    n = 0;
    while (len > 0) {
        uint64_t take = min_u64(len, c->iov[c->i].iov_len - c->offset);
        if (take > 0) out[n++] = (struct iovec){(char *)c->iov[c->i].iov_base + c->offset, take};
        c->offset += take;
        len -= take;
        if (c->offset == c->iov[c->i].iov_len) {
            c->i++;
            c->offset = 0;
        }
    }
    top->iov = out;
    top->n_iov = n;
}

static void plan_crcs(struct run *r, const struct engine_op *op, struct slice *s) {
    if (!op->want_crc && op->crcs == NULL) return;
    uint64_t block = op->crcs != NULL ? op->crc_block : 0, pieces = 1;
    if (block != 0) {
        s->top.crc_block = block;
        s->top.crc_first = block - s->at % block;
        if (s->length > s->top.crc_first) pieces += (s->length - s->top.crc_first + block - 1) / block;
    }
    s->top.crcs = arena_alloc(r, pieces * sizeof(uint32_t));
    memset(s->top.crcs, 0, pieces * sizeof(uint32_t));
}

static void slice_done(struct transport_op *top);

/* Slices of at most max bytes, each within one segment. */
static tarn_status plan_slices(struct run *r, struct op_run *o, uint64_t max, bool spread) {
    struct engine_op *op = o->op;
    struct cursor local = {.iov = op->iov, .n = op->n_iov};
    size_t i = 0;
    uint64_t offset = 0, at = 0;
    while (i < op->n_parts) {
        struct engine_seg *seg = engine_find(r->e, op->parts[i].extent.segment);
        if (seg == NULL) return TARN_ENOSEGMENT;
        size_t n_max = min_u64(op->n_parts - i, SLICE_PARTS_MAX);
        struct slice *s = arena_alloc(r, sizeof(*s));
        struct transport_part *parts = arena_alloc(r, n_max * sizeof(*parts));
        *s = (struct slice){.run_op = o, .seg = seg, .at = at, .spread = spread};
        size_t n = 0;
        while (i < op->n_parts && n < n_max && (s->length < max || n == 0)) {
            const struct engine_part *p = &op->parts[i];
            if (p->extent.segment != seg->id) break;
            if (p->extent.segment_epoch != seg->epoch) return TARN_ESTALE;
            uint64_t len = min_u64(p->sub_length - offset, max - s->length);
            parts[n++] = (struct transport_part){
                .extent = p->extent,
                .grant = p->grant,
                .sub_offset = p->sub_offset + offset,
                .sub_length = len,
            };
            s->length += len;
            offset += len;
            if (offset == p->sub_length) {
                i++;
                offset = 0;
            }
        }
        at += s->length;
        s->top.kind = op->write ? TRANSPORT_PUT : TRANSPORT_GET;
        s->top.parts = parts;
        s->top.n_parts = n;
        s->top.done = slice_done;
        s->top.arg = s;
        take_iov(r, &local, s->length, &s->top);
        plan_crcs(r, op, s);
        *o->last = s;
        o->last = &s->next;
        o->slices_left++;
    }
    return TARN_OK;
}

static tarn_status plan_op(struct run *r, struct op_run *o, uint64_t now_ms) {
    struct engine_op *op = o->op;
    uint64_t local = 0;
    for (size_t i = 0; i < op->n_parts; i++) {
        const struct engine_part *p = &op->parts[i];
        if (p->sub_offset > p->extent.length || p->sub_length > p->extent.length - p->sub_offset)
            return TARN_EINVAL;
        o->length += p->sub_length;
    }
    for (size_t i = 0; i < op->n_iov; i++) local += op->iov[i].iov_len;
    if (local != o->length || op->n_parts == 0 || (op->crcs != NULL && op->crc_block == 0))
        return TARN_EINVAL;
    if (op->lease_end_boot_ms != 0 && now_ms >= op->lease_end_boot_ms) return TARN_ELEASE;

    struct engine *e = r->e;
    uint64_t max = SLICE_MAX;
    bool spread = false;
    struct engine_seg *seg = engine_find(e, op->parts[0].extent.segment);
    unsigned kind = seg != NULL ? engine_route_choose(e, seg, op->write, now_ms) : e->n_kinds;
    if (kind < e->n_kinds && (e->kinds[kind].limits.flags & TRANSPORT_STREAMS) != 0 &&
        e->config.streams > 1 && e->config.stripe_min != 0 && o->length >= e->config.stripe_min) {
        uint64_t stripe = (o->length / e->config.streams + STRIPE_ALIGN) / STRIPE_ALIGN * STRIPE_ALIGN;
        max = min_u64(max, stripe);
        spread = true;
    }
    return plan_slices(r, o, max, spread);
}

/* --- slices --- */

/* Does this status say something about the path only? */
static bool is_path_failure(tarn_status s) {
    return s == TARN_ECLOSED || s == TARN_ETIMEOUT || s == TARN_EPROTO || s == TARN_EIO || s == TARN_ELIMIT ||
           s == TARN_ECANCELED || s == TARN_ENOTFOUND;
}

static void slice_failed(struct slice *s, tarn_status status, bool final, uint64_t now_ms) {
    struct op_run *o = s->run_op;
    struct run *r = o->run;
    struct engine *e = r->e;
    if (o->over) return;
    if (status == TARN_ESTALE) engine_route_failed(e, s->seg, s->kind, status, now_ms);
    if (final) {
        op_finish(o, status);
        return;
    }
    /* Another way, at once? */
    struct engine_route *route = &s->seg->routes[s->kind];
    uint64_t bad_until_ms = route->bad_until_ms;
    engine_route_failed(e, s->seg, s->kind, status, now_ms);
    unsigned other = engine_route_choose(e, s->seg, o->op->write, now_ms);
    if (other < e->n_kinds && other != s->kind) {
        if (bad_until_ms <= now_ms) e->stats.fallbacks++;
        pending_push(r, s);
        return;
    }
    route->bad_until_ms = bad_until_ms; /* it is the only one */
    if (++s->tries > RETRIES_MAX) {
        op_finish(o, status);
        return;
    }
    e->stats.retries++;
    s->not_before_ms = now_ms + min_u64((uint64_t)BACKOFF_MIN_MS << (s->tries - 1), BACKOFF_MAX_MS);
    pending_push(r, s);
}

/* From a transport's progress. */
static void slice_done(struct transport_op *top) {
    struct slice *s = top->arg;
    struct op_run *o = s->run_op;
    struct engine_kind *k = &o->run->e->kinds[s->kind];
    s->stream->outstanding--;
    s->stream->outstanding_bytes -= s->length;
    k->outstanding--;
    o->op->used = k->name;
    if (top->status != TARN_OK) {
        /* Bytes of a write may still be on their way to a host that has not closed the connection itself. Sent again by
         * another one they could land twice, the second time in somebody else's space. */
        bool final = !is_path_failure(top->status) || (o->op->write && top->status != TARN_ECLOSED);
        slice_failed(s, top->status, final, clock_boot_ms());
    } else if (--o->slices_left == 0) {
        op_finish(o, TARN_OK);
    }
}

static void submit(struct run *r, struct slice *s, uint64_t now_ms) {
    struct engine *e = r->e;
    s->kind = engine_route_choose(e, s->seg, s->run_op->op->write, now_ms);
    if (s->kind == e->n_kinds) {
        op_finish(s->run_op, TARN_ECLOSED);
        return;
    }
    struct engine_kind *k = &e->kinds[s->kind];
    struct transport_key *key;
    tarn_status status = engine_route_key(e, s->seg, s->kind, s->run_op->op->write, r->deadline_ms, &key);
    if (status != TARN_OK) {
        /* Refused here says nothing about grants and tcp; with one transport only, it is the answer. */
        unsigned kinds = 0;
        for (unsigned i = 0; i < e->n_kinds; i++) kinds += s->seg->routes[i].target != NULL;
        bool only = e->config.transport != ENGINE_AUTO || kinds == 1;
        slice_failed(s, status, status == TARN_ESTALE || (only && !is_path_failure(status)), now_ms);
        return;
    }
    for (size_t i = 0; i < s->top.n_parts; i++)
        ((struct transport_part *)(uintptr_t)s->top.parts)[i].key = key;
    status = engine_route_stream(e, s->seg->routes[s->kind].target, s->spread, s->length, now_ms, &s->stream);
    if (status != TARN_OK) {
        slice_failed(s, status, !is_path_failure(status), now_ms);
        return;
    }
    struct transport_op *top = &s->top;
    size_t accepted = 0;
    status = k->ops->submit(s->stream->endpoint, &top, 1, &accepted);
    if (status != TARN_OK) {
        slice_failed(s, status, !is_path_failure(status), now_ms);
    } else if (accepted == 0) {
        pending_push(r, s); /* full: after the next progress */
    } else {
        s->stream->outstanding++;
        s->stream->outstanding_bytes += s->length;
        k->outstanding++;
    }
}

/* Submits what is due. Returns when the next one is, 0: nothing is pending. */
static uint64_t dispatch(struct run *r) {
    if (r->pending == NULL) return 0;
    uint64_t now_ms = clock_boot_ms(), next_ms = 0;
    struct slice *s = r->pending;
    r->pending = NULL;
    r->pending_tail = &r->pending;
    while (s != NULL) {
        struct slice *next = s->next_due;
        if (s->run_op->over) { /* given up with a sibling */
        } else if (s->not_before_ms > now_ms) {
            pending_push(r, s);
        } else {
            submit(r, s, now_ms);
        }
        s = next;
    }
    for (s = r->pending; s != NULL; s = s->next_due) {
        uint64_t due = max_u64(s->not_before_ms, now_ms + 1);
        if (next_ms == 0 || due < next_ms) next_ms = due;
    }
    return next_ms;
}

/* --- the loop --- */

static size_t progress_all(struct engine *e) {
    size_t done = 0;
    for (unsigned i = 0; i < e->n_kinds; i++) {
        struct engine_kind *k = &e->kinds[i];
        if (k->outstanding > 0) done += k->ops->progress(k->domain, PROGRESS_BUDGET);
    }
    return done;
}

/* Sleeps until a transport has news, next_ms, the deadline, or a little while. */
static void wait_for_news(struct run *r, uint64_t next_ms) {
    struct pollfd fds[ENGINE_KINDS_MAX];
    nfds_t n = 0;
    for (unsigned i = 0; i < r->e->n_kinds; i++) {
        struct engine_kind *k = &r->e->kinds[i];
        if (k->outstanding == 0) continue;
        int fd;
        if (k->ops->arm(k->domain, &fd) != TARN_OK) return;
        fds[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    uint64_t now_ms = clock_boot_ms(), until = now_ms + WAIT_MAX_MS; /* connections time out in progress */
    if (next_ms != 0) until = min_u64(until, next_ms);
    if (r->deadline_ms != 0) until = min_u64(until, r->deadline_ms);
    if (until > now_ms) (void)poll(fds, n, (int)(until - now_ms));
}

/* Takes back every operation: streams that have one are closed, which is the only way to be sure. */
static void cancel_all(struct run *r) {
    for (size_t i = 0; i < r->n_ops; i++) {
        const struct engine_op *op = r->ops[i].op;
        bool lease = op->lease_end_boot_ms != 0 && clock_boot_ms() >= op->lease_end_boot_ms;
        if (!r->ops[i].over) op_finish(&r->ops[i], lease ? TARN_ELEASE : TARN_ETIMEOUT);
    }
    for (unsigned i = 0; i < r->e->n_kinds; i++) {
        struct engine_kind *k = &r->e->kinds[i];
        struct engine_target *t;
        LIST_FOREACH(t, &k->targets, link) {
            for (unsigned s = 0; s < ENGINE_STREAMS_MAX; s++) {
                if (t->streams[s].outstanding > 0) engine_stream_close(k, &t->streams[s]);
            }
        }
        TARN_ASSERT(k->outstanding == 0);
    }
}

/* The caller's deadline; or, earlier, the moment from which on no operation can be of use. */
static uint64_t last_moment(const struct engine_op *ops, size_t n_ops, uint64_t deadline_ms) {
    uint64_t last_lease_ms = 0;
    for (size_t i = 0; i < n_ops; i++) {
        if (ops[i].lease_end_boot_ms == 0) return deadline_ms;
        last_lease_ms = max_u64(last_lease_ms, ops[i].lease_end_boot_ms);
    }
    return deadline_ms != 0 ? min_u64(deadline_ms, last_lease_ms) : last_lease_ms;
}

tarn_status engine_run(struct engine *e, struct engine_op *ops, size_t n_ops, uint64_t deadline_boot_ms) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    if (n_ops == 0) return TARN_OK;
    struct run r = {
        .e = e,
        .n_ops = n_ops,
        .ops_left = n_ops,
        .deadline_ms = last_moment(ops, n_ops, deadline_boot_ms),
    };
    r.pending_tail = &r.pending;
    r.ops = arena_alloc(&r, n_ops * sizeof(*r.ops));
    uint64_t now_ms = clock_boot_ms();
    engine_route_reap(e, now_ms, e->config.idle_close_ms);
    for (size_t i = 0; i < n_ops; i++) {
        struct op_run *o = &r.ops[i];
        *o = (struct op_run){.run = &r, .op = &ops[i]};
        o->last = &o->first;
        ops[i].used = ENGINE_AUTO;
        tarn_status status = plan_op(&r, o, now_ms);
        if (status != TARN_OK) op_finish(o, status);
        for (struct slice *s = o->first; s != NULL && status == TARN_OK; s = s->next) pending_push(&r, s);
    }
    while (r.ops_left > 0) {
        uint64_t next_ms = dispatch(&r);
        if (progress_all(e) == 0 && r.ops_left > 0) wait_for_news(&r, next_ms);
        if (r.deadline_ms != 0 && r.ops_left > 0 && clock_boot_ms() >= r.deadline_ms) break;
    }
    /* Siblings of failed slices may still be on their way, and with them the caller's memory. */
    cancel_all(&r);
    engine_route_reap(e, now_ms, 0);
    arena_free(&r);
    return TARN_OK;
}
