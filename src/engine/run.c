/* engine_run: from operations to slices, through transports, and back.
 *
 * A slice's status is final when it says something about the bytes or the right to them; what says
 * something about the path only leads to another try, on another connection or by another
 * transport, RETRIES_MAX times with growing pauses. A transport may be tired of a silent path long
 * before the operation's patience is over: with one way only it is asked again until then. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "engine/run_internal.h"

#define RETRIES_MAX     3u
#define RETRIES_HURRY   1u /* the first try may only find out that the host was restarted */
#define BACKOFF_MIN_MS  100u
#define BACKOFF_MAX_MS  5000u
#define DRAIN_MS        1000u
#define PROGRESS_BUDGET (4u << 20)
#define WAIT_MAX_MS     100u
#define ARENA_BYTES     (64u << 10)

void *run_alloc(struct engine_run *r, size_t size) {
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

static void arena_free(struct engine_run *r) {
    while (r->arena != NULL) {
        struct arena_chunk *c = r->arena;
        r->arena = c->next;
        free(c);
    }
}

static void pending_push(struct engine_run *r, struct slice *s) {
    STAILQ_INSERT_TAIL(&r->pending, s, due);
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
        for (size_t i = 0; left > 0;
             i++, at += len, left -= len, len = min_u64(left, s->top.crc_block)) {
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

/* now_ms: read behind the last byte. */
static void op_finish_at(struct op_run *o, tarn_status status, uint64_t now_ms) {
    if (o->over) return;
    struct engine_op *op = o->op;
    struct engine_stats *st = &o->run->e->stats;
    if (status == TARN_OK && op->lease_end_boot_ms != 0 && now_ms >= op->lease_end_boot_ms)
        status = TARN_ELEASE;
    if (status == TARN_ELEASE) st->lease_misses++;
    if (status == TARN_ESTALE) st->epoch_misses++;
    if (status == TARN_ETIMEOUT) st->timeouts++;
    if (status == TARN_OK) (op->write ? st->bytes_written : st->bytes_read)[op->used] += o->length;
    op->status = status;
    o->over = true;
    o->run->ops_left--;
}

static void op_finish(struct op_run *o, tarn_status status) {
    op_finish_at(o, status, clock_boot_ms());
}

/* --- slices --- */

/* Does this status say something about the path only? */
static bool is_path_failure(tarn_status s) {
    return s == TARN_ECLOSED || s == TARN_ETIMEOUT || s == TARN_EPROTO || s == TARN_EIO ||
           s == TARN_ELIMIT || s == TARN_ECANCELED || s == TARN_ENOTFOUND;
}

/* The only way has failed: again, after a pause? */
static bool slice_goes_on(struct slice *s, tarn_status status, uint64_t now_ms) {
    const struct engine_op *op = s->run_op->op;
    bool bounded = op->patience_ms != 0, hurry = bounded && !op->sole;
    s->not_before_ms = now_ms + (hurry ? 0 : BACKOFF_MIN_MS);
    if (bounded && status == TARN_ETIMEOUT) /* the silence of its only host counts as one */
        return !hurry && s->not_before_ms < s->since_ms + op->patience_ms;
    if (++s->tries > (hurry ? RETRIES_HURRY : RETRIES_MAX)) return false;
    if (!hurry)
        s->not_before_ms =
            now_ms + min_u64((uint64_t)BACKOFF_MIN_MS << (s->tries - 1), BACKOFF_MAX_MS);
    return true;
}

static void merged_failed(const struct slice *s, tarn_status status, bool final, uint64_t now_ms);

static void slice_failed(struct slice *s, tarn_status status, bool final, uint64_t now_ms) {
    struct op_run *o = s->run_op;
    if (s->n_members > 1) {
        merged_failed(s, status, final, now_ms);
        return;
    }
    struct engine_run *r = o->run;
    struct engine *e = r->e;
    if (o->over) return;
    if (final) {
        if (status == TARN_ESTALE) engine_route_failed(e, s->seg, s->kind, status, now_ms);
        op_finish(o, status);
        return;
    }
    /* Another way, at once? */
    struct engine_route *route = &s->seg->routes[s->kind->slot];
    uint64_t bad_until_ms = route->bad_until_ms;
    engine_route_failed(e, s->seg, s->kind, status, now_ms);
    const struct engine_kind *other =
        engine_route_choose(e, s->seg, o->op->write, o->device, now_ms);
    if (other != NULL && other != s->kind) {
        if (bad_until_ms <= now_ms) e->stats.fallbacks++;
        pending_push(r, s);
        return;
    }
    route->bad_until_ms = bad_until_ms; /* it is the only one */
    if (!slice_goes_on(s, status, now_ms)) {
        op_finish(o, status);
        return;
    }
    e->stats.retries++;
    pending_push(r, s);
}

/* Its operations go on by themselves: as if each had been tried once, or anew when one of them may
 * have been refused for the others' fault. */
static void merged_failed(const struct slice *s, tarn_status status, bool final, uint64_t now_ms) {
    struct engine_run *r = s->run_op->run;
    for (size_t i = 0; i < s->n_members; i++) {
        struct op_run *o = s->members[i];
        if (o->over) continue;
        tarn_status plan = run_plan(r, o, now_ms);
        if (plan != TARN_OK) {
            op_finish(o, plan);
            continue;
        }
        for (struct slice *one = o->first, *next; one != NULL; one = next) {
            next = one->next;
            one->kind = s->kind;
            one->since_ms = s->since_ms;
            if (final)
                pending_push(r, one);
            else
                slice_failed(one, status, false, now_ms);
        }
    }
}

static void finish_all(const struct slice *s, tarn_status status) {
    uint64_t now_ms = clock_boot_ms();
    for (size_t i = 0; i < s->n_members; i++) op_finish_at(s->members[i], status, now_ms);
}

/* A transport that attaches was refused, or fails: that says nothing about grants and the other
 * ways. With one way only it is the answer. */
static bool slice_is_final(const struct slice *s, tarn_status status) {
    const struct engine *e = s->run_op->run->e;
    const struct engine_route *r = &s->seg->routes[s->kind->slot];
    if (status == TARN_ESTALE && !engine_route_has_packed(r)) return true;
    if (is_path_failure(status)) return false;
    return (s->kind->flags & TRANSPORT_GRANTED) != 0 || engine_routes(e, s->seg) == 1;
}

/* Bytes of a write may still be on their way to a host that has not closed the connection itself.
 * Sent again by another one they could land twice, the second time in somebody else's space. */
static void note_loose(const struct slice *s) {
    for (size_t i = 0; i < s->n_members; i++) s->members[i]->op->settled = false;
}

static void slice_arrived(struct slice *s) {
    struct op_run *o = s->run_op;
    for (size_t i = 0; s->n_members > 1 && i < s->n_members; i++) {
        struct engine_op *op = s->members[i]->op;
        op->used = s->kind->slot;
        if (op->want_crc) op->crc = s->top.crcs[i];
        if (op->receipts != NULL)
            memcpy(op->receipts, s->top.receipts + i * GRANT_RECEIPT_SIZE, GRANT_RECEIPT_SIZE);
    }
    if (s->n_members == 1) {
        if (--o->slices_left > 0) return;
        if (o->op->want_crc || o->op->crcs != NULL) combine_crcs(o);
    }
    finish_all(s, TARN_OK);
}

/* From a transport's progress. */
void run_slice_done(struct transport_op *top) {
    struct slice *s = top->arg;
    struct op_run *o = s->run_op;
    s->stream->outstanding--;
    s->stream->outstanding_bytes -= s->length;
    s->kind->outstanding--;
    o->run->puts_in_flight -= o->op->write;
    o->op->used = s->kind->slot;
    if (top->status == TARN_OK) {
        slice_arrived(s);
        return;
    }
    uint64_t now_ms = clock_boot_ms();
    bool loose = o->op->write && !top->settled;
    if (loose) note_loose(s);
    /* the host's, of its disk */
    bool answer = top->status == TARN_EIO || top->status == TARN_ENOTFOUND;
    bool final = slice_is_final(s, top->status) || answer || loose;
    if (loose && s->n_members > 1) {
        if (top->status == TARN_ESTALE)
            engine_route_failed(o->run->e, s->seg, s->kind, top->status, now_ms);
        finish_all(s, top->status);
    } else {
        slice_failed(s, top->status, final, now_ms);
    }
}

static bool slice_lacks_grant(const struct slice *s) {
    for (size_t i = 0; i < s->top.n_parts; i++)
        if (s->top.parts[i].grant == NULL) return true;
    return false;
}

static void slice_submit(struct engine_run *r, struct slice *s, uint64_t now_ms) {
    struct engine *e = r->e;
    if (s->since_ms == 0) s->since_ms = now_ms;
    s->kind = engine_route_choose(e, s->seg, s->run_op->op->write, s->run_op->device, now_ms);
    if (s->kind == NULL) {
        finish_all(s, s->run_op->device != NULL ? TARN_ENOTSUP : TARN_ECLOSED);
        return;
    }
    struct engine_kind *k = s->kind;
    if ((k->flags & TRANSPORT_GRANTED) != 0 && slice_lacks_grant(s)) {
        finish_all(s, TARN_EGRANT_EXPIRED);
        return;
    }
    struct transport_key *key;
    uint64_t patience_ms = s->run_op->op->patience_ms, until_ms = r->deadline_ms;
    if (patience_ms != 0 && (until_ms == 0 || now_ms + patience_ms < until_ms))
        until_ms = now_ms + patience_ms;
    tarn_status status =
        engine_route_key(e, s->seg, k, s->run_op->op->write, false, until_ms, &key);
    if (status != TARN_OK) {
        slice_failed(s, status, slice_is_final(s, status), now_ms);
        return;
    }
    for (size_t i = 0; i < s->top.n_parts; i++)
        ((struct transport_part *)(uintptr_t)s->top.parts)[i].key = key;
    status = engine_route_stream(e, s->seg->routes[k->slot].target, s->spread, s->length,
                                 s->run_op->op->patience_ms, now_ms, &s->stream);
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
        r->puts_in_flight += s->run_op->op->write;
        s->stream->outstanding++;
        s->stream->outstanding_bytes += s->length;
        k->outstanding++;
    }
}

/* Submits what is due. Returns when the next one is, 0: nothing is pending. */
static uint64_t slices_dispatch(struct engine_run *r) {
    if (STAILQ_EMPTY(&r->pending)) return 0;
    uint64_t now_ms = clock_boot_ms(), next_ms = 0;
    STAILQ_HEAD(, slice) round = STAILQ_HEAD_INITIALIZER(round);
    STAILQ_CONCAT(&round, &r->pending);
    struct slice *s;
    while ((s = STAILQ_TAKE(&round, due)) != NULL) {
        if (s->run_op->over) continue; /* given up with a sibling */
        if (s->not_before_ms > now_ms)
            pending_push(r, s);
        else
            slice_submit(r, s, now_ms);
    }
    STAILQ_FOREACH(s, &r->pending, due) {
        uint64_t due = max_u64(s->not_before_ms, now_ms + 1);
        if (next_ms == 0 || due < next_ms) next_ms = due;
    }
    return next_ms;
}

/* --- the loop --- */

static size_t progress_all(struct engine *e) {
    size_t done = 0;
    for (unsigned i = 0; i < e->n_open; i++) {
        struct engine_kind *k = e->open[i];
        if (k->outstanding > 0) done += k->ops->progress(k->domain, PROGRESS_BUDGET);
    }
    return done;
}

/* Sleeps until a transport has news, next_ms, the deadline, or a little while. */
static void wait_for_news(struct engine_run *r, uint64_t next_ms) {
    struct pollfd fds[TRANSPORTS_MAX];
    nfds_t n = 0;
    for (unsigned i = 0; i < r->e->n_open; i++) {
        struct engine_kind *k = r->e->open[i];
        if (k->outstanding == 0) continue;
        int fd;
        if (k->ops->arm(k->domain, &fd) != TARN_OK) return;
        fds[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    /* connections time out in progress */
    uint64_t now_ms = clock_boot_ms(), until = now_ms + WAIT_MAX_MS;
    if (next_ms != 0) until = min_u64(until, next_ms);
    if (r->deadline_ms != 0) until = min_u64(until, r->deadline_ms);
    if (until <= now_ms) return;
    struct spin *spin = &r->e->spin;
    bool looks = spin_begin(spin);
    while (looks && poll(fds, n, 0) == 0) looks = spin_again(spin);
    if (!looks) (void)poll(fds, n, (int)(until - now_ms));
    spin_end(spin);
}

/* A write that failed in one slice may have others under way: they come to their end by themselves,
 * or with the host that just died. Cut off by us they would leave the space in doubt. */
static void puts_drain(struct engine_run *r) {
    uint64_t until_ms = clock_boot_ms() + DRAIN_MS;
    if (r->deadline_ms != 0) until_ms = min_u64(until_ms, r->deadline_ms);
    while (r->puts_in_flight > 0 && clock_boot_ms() < until_ms) {
        if (progress_all(r->e) == 0 && r->puts_in_flight > 0) wait_for_news(r, until_ms);
    }
}

static bool run_is_stopped(const struct engine_run *r) {
    const bool *stop = r->e->config.stop;
    return stop != NULL && __atomic_load_n(stop, __ATOMIC_RELAXED);
}

/* Takes back every operation: streams that have one are closed, which is the only way to be
 * sure. */
static void ops_cancel(struct engine_run *r) {
    tarn_status why = run_is_stopped(r) ? TARN_ECANCELED : TARN_ETIMEOUT;
    for (size_t i = 0; i < r->n_ops && r->ops_left > 0; i++) {
        const struct engine_op *op = r->ops[i].op;
        if (r->ops[i].over) continue;
        bool lease = op->lease_end_boot_ms != 0 && clock_boot_ms() >= op->lease_end_boot_ms;
        op_finish(&r->ops[i], lease ? TARN_ELEASE : why);
    }
    for (unsigned i = 0; i < r->e->n_open; i++) {
        struct engine_kind *k = r->e->open[i];
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

static void op_plan(struct engine_run *r, size_t i, uint64_t now_ms) {
    struct slice *s = run_plan_merged(r, i, now_ms);
    if (s != NULL) {
        pending_push(r, s);
        return;
    }
    struct op_run *o = &r->ops[i];
    tarn_status status = run_plan(r, o, now_ms);
    if (status != TARN_OK) op_finish(o, status);
    for (s = o->first; s != NULL && status == TARN_OK; s = s->next) pending_push(r, s);
}

tarn_status engine_run(struct engine *e, struct engine_op *ops, size_t n_ops,
                       uint64_t deadline_boot_ms) {
    MAGIC_CHECK(e, ENGINE_MAGIC);
    if (n_ops == 0) return TARN_OK;
    struct engine_run r = {
        .e = e,
        .n_ops = n_ops,
        .ops_left = n_ops,
        .deadline_ms = last_moment(ops, n_ops, deadline_boot_ms),
    };
    STAILQ_INIT(&r.pending);
    r.ops = run_alloc(&r, n_ops * sizeof(*r.ops));
    uint64_t now_ms = clock_boot_ms();
    engine_route_reap(e, now_ms, e->config.idle_close_ms);
    for (size_t i = 0; i < n_ops; i++) {
        r.ops[i] = (struct op_run){.run = &r, .op = &ops[i]};
        ops[i].used = TRANSPORT_NONE;
        ops[i].settled = true;
    }
    for (size_t i = 0; i < n_ops; i++) {
        if (!r.ops[i].planned) op_plan(&r, i, now_ms);
    }
    while (r.ops_left > 0) {
        uint64_t next_ms = slices_dispatch(&r);
        if (progress_all(e) == 0 && r.ops_left > 0) wait_for_news(&r, next_ms);
        if (r.deadline_ms != 0 && r.ops_left > 0 && clock_boot_ms() >= r.deadline_ms) break;
        if (run_is_stopped(&r)) break;
    }
    puts_drain(&r);
    /* Siblings of failed slices may still be on their way, and with them the caller's memory. */
    ops_cancel(&r);
    engine_route_free_doomed(e);
    engine_route_reap(e, now_ms, 0);
    arena_free(&r);
    return TARN_OK;
}
