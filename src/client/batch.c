#include "client/batch.h"

#include "base/assert.h"
#include "base/errors.h"

void batch_init(struct item_batch *b, struct lane *lane, tarn_item *items, size_t n,
                size_t item_size, uint64_t deadline) {
    *b = (struct item_batch){.lane = lane,
                             .items = items,
                             .n = n,
                             .of = arena_alloc(&lane->arena, n * item_size),
                             .item_size = item_size,
                             .deadline = deadline,
                             .began_ms = now_ms(),
                             .unfinished = n};
    memset(b->of, 0, n * item_size);
    for (size_t i = 0; i < n; i++) {
        items[i].got = items[i].value_size = items[i].version = 0;
        items[i].replicas = 0;
    }
}

bool batch_note_later(struct item_batch *b, size_t i, tarn_status status, const struct answer *a) {
    if (error_act(status) != ERROR_LATER) return false;
    batch_item(b, i)->later = status;
    b->later++;
    b->later_ms = max_u64(b->later_ms, answer_later_ms(a));
    return true;
}

/* Those that could not be had within the call's time. */
static void batch_give_up(struct item_batch *b, batch_finish_fn finish) {
    for (size_t i = 0; i < b->n; i++) {
        const struct batch_item *item = batch_item(b, i);
        if (item->state == ITEM_FINISHED || item->later == TARN_OK) continue;
        finish(b, i,
               fail(item->later, "the server could not do it within the call's time (%s): %s",
                    error_code(item->later), tarn_status_text(item->later)));
    }
}

void batch_fail(struct item_batch *b, tarn_status status, batch_finish_fn finish) {
    for (size_t i = 0; i < b->n; i++) {
        if (batch_item(b, i)->state != ITEM_FINISHED) finish(b, i, status);
    }
}

tarn_status batch_run(struct item_batch *b, tarn_status (*pass)(struct item_batch *b),
                      batch_finish_fn finish) {
    struct attempts attempts = {0};
    tarn_status status = TARN_OK;
    unsigned waited = 0;
    while (b->unfinished > 0 && status == TARN_OK) {
        status = pass(b);
        if (status != TARN_OK) {
            if (lane_retry(b->lane, &attempts, status, b->deadline)) status = TARN_OK;
        } else if (b->later > 0 && !lane_later(b->lane, waited++, b->later_ms, b->deadline)) {
            batch_give_up(b, finish);
        }
        b->later = b->later_ms = 0;
        if (status == TARN_OK && b->unfinished > 0 && now_ms() >= b->deadline) {
            status = fail(TARN_ETIMEOUT, "the deadline passed before all was done");
            COUNT(b->lane, timeouts, 1);
        }
    }
    if (status != TARN_OK) batch_fail(b, status, finish);
    return status;
}

struct chunk batch_rest(const struct item_batch *b) {
    size_t *order = arena_alloc(&b->lane->arena, b->n * sizeof(*order)), n = 0;
    for (size_t i = 0; i < b->n; i++) {
        if (batch_item(b, i)->state != ITEM_FINISHED) order[n++] = i;
    }
    return (struct chunk){.order = order, .n = n};
}

bool batch_chunk(const struct item_batch *b, const struct chunk *rest, size_t *at,
                 struct chunk *c) {
    *c = (struct chunk){.order = rest->order + *at,
                        .n = min_u64(rest->n - *at, lane_chunk_keys(b->lane, b->n))};
    *at += c->n;
    return c->n > 0;
}

tarn_status batch_receive(struct item_batch *b, size_t n, const char *what, struct answer **a_p) {
    tarn_status status = lane_receive(b->lane, a_p, b->deadline);
    return status == TARN_OK ? batch_check(b, *a_p, n, what) : status;
}

tarn_status batch_check(struct item_batch *b, const struct answer *a, size_t n, const char *what) {
    tarn_status status = lane_check(b->lane, a, what);
    if (status == TARN_OK && (a->type != ANSWER_ARRAY || a->len != n))
        status =
            fail(TARN_EPROTO, "%s: asked for %zu keys, got another number of answers", what, n);
    return status;
}

tarn_status batch_ensure_other(struct item_batch *b, const struct placed_replica *r, bool write) {
    const struct grant_extent *e = r->n_parts == 1 ? &r->parts[0].extent : NULL;
    tarn_status status = replica_ensure(b->lane, r, write, b->deadline);
    b->ensured = (struct batch_segment){.any = e != NULL && status == TARN_OK,
                                        .id = e != NULL ? e->segment : 0,
                                        .epoch = e != NULL ? e->segment_epoch : 0};
    return status;
}

struct group group_of(struct lane *lane, size_t ops) {
    struct arena *arena = &lane->arena;
    return (struct group){.ops = arena_alloc(arena, ops * sizeof(struct engine_op)),
                          .items = arena_alloc(arena, ops * sizeof(size_t)),
                          .replicas = arena_alloc(arena, ops * sizeof(unsigned))};
}

void batch_move(struct item_batch *b, const struct group *group) {
    uint64_t began_ns = trace_moment(b->lane);
    tarn_status status = engine_run(b->lane->engine, group->ops, group->n,
                                    b->deadline == DEADLINE_NONE ? 0 : b->deadline);
    TARN_ASSERT(status == TARN_OK);
    trace_moved(b->lane, began_ns, group->ops, group->n);
}
