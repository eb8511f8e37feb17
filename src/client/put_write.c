/* The bytes of puts, in groups, and their CRCs. */
#include <stdio.h>

#include "base/assert.h"
#include "base/crc32c.h"
#include "client/arena.h"
#include "client/client.h"
#include "client/error.h"
#include "client/lane.h"
#include "client/outage.h"
#include "client/placement.h"
#include "client/put.h"
#include "engine/engine.h"
#include "engine/placed.h"

uint32_t put_crc(const struct iovec *iov, size_t n_iov, uint64_t size, uint32_t *crcs) {
    uint32_t whole = 0, block = 0;
    uint64_t in_block = 0;
    size_t at = 0;
    struct iov_cursor c = iov_cursor(iov, n_iov);
    for (struct iovec v; (v = iov_here(&c)).iov_len > 0;) {
        uint64_t take = min_u64(v.iov_len, CRC_BLOCK - in_block);
        block = crc32c(block, v.iov_base, take);
        iov_advance(&c, take);
        in_block += take;
        if (in_block < CRC_BLOCK) continue;
        if (crcs != NULL) crcs[at++] = block;
        whole = crc32c_combine(whole, block, in_block);
        block = 0;
        in_block = 0;
    }
    if (in_block > 0) {
        if (crcs != NULL) crcs[at++] = block;
        whole = crc32c_combine(whole, block, in_block);
    }
    TARN_ASSERT(crcs == NULL || at == (size + CRC_BLOCK - 1) / CRC_BLOCK);
    return whole;
}

#define SEAL_ALONG                                                                                 \
    CRC_BLOCK /* larger values are sealed when all their pieces, which may travel side by side,    \
                 are there */

/* One engine_run: at most one piece per item, each to all of its replicas. */
struct group {
    struct engine_op *ops;
    size_t *items;      /* by op */
    unsigned *replicas; /* by op */
    size_t n;
    uint64_t bytes;
    size_t last; /* position in the order of the last item */
};

static uint64_t piece_length(const struct putting *p, const struct put *u) {
    return min_u64(u->size - u->pos, p->lane->window);
}

/* How long a silent host is waited for. One that was away a moment ago is only written to when
 * there is no other. */
static uint64_t patience(struct putting *p, const struct put *u) {
    const tarn_options *o = &p->lane->client->options;
    const struct replica *all = u->place.replica;
    uint32_t alive = put_alive(u);
    if (o->retries == 0 && (alive & (alive - 1)) == 0) return 0;
    for (unsigned r = 0; r < u->place.replicas; r++) {
        if ((alive & 1u << r) && outage_listed(p->lane, all[r].parts[0].extent.segment)) return 0;
    }
    return 2 * o->failover_ms;
}

static void add_piece(struct putting *p, struct group *group, size_t i) {
    struct put *u = &p->puts[i];
    struct arena *arena = &p->lane->arena;
    uint64_t len = piece_length(p, u), patience_ms = patience(p, u);
    struct iovec one, *iov;
    size_t n_iov;
    const struct iovec *whole = item_iov(&p->items[i], &one, &n_iov);
    iov = arena_alloc(arena, n_iov * sizeof(*iov));
    n_iov = iov_slice(whole, n_iov, u->pos, len, iov);
    u->piece_crc = -1;
    for (unsigned r = 0; r < u->place.replicas; r++) {
        if (!(put_alive(u) & 1u << r)) continue;
        struct engine_op *op = &group->ops[group->n];
        const struct replica *to = &u->place.replica[r];
        struct engine_part *parts = arena_alloc(arena, to->n_parts * sizeof(*parts));
        *op = (struct engine_op){
            .write = true,
            .parts = parts,
            .n_parts = placed_parts(to->parts, to->n_parts, u->pos, len, parts),
            .iov = iov,
            .n_iov = n_iov,
            .want_crc = !u->device,
            .patience_ms = patience_ms,
        };
        if (u->receipts != NULL && u->size <= SEAL_ALONG && len == u->size)
            op->receipts = placement_receipts_of(&u->place, u->receipts, r);
        if (u->crcs != NULL) {
            op->crc_block = CRC_BLOCK;
            op->crcs = arena_alloc(arena, (len + CRC_BLOCK - 1) / CRC_BLOCK * sizeof(uint32_t));
        }
        group->replicas[group->n] = r;
        group->items[group->n++] = i;
    }
    group->bytes += len;
}

static void replica_written(struct putting *p, size_t i, unsigned replica,
                            const struct engine_op *op, uint64_t len) {
    struct put *u = &p->puts[i];
    if (u->piece_crc >= 0 && u->piece_crc != op->crc && !u->device) {
        fail(TARN_ECORRUPT, "the bytes changed while they were being put");
        u->failed |= UINT32_C(1) << replica;
        u->reason = TARN_ECORRUPT;
        return;
    }
    u->piece_crc = u->device ? 0 : op->crc;
    if (u->crcs != NULL)
        memcpy(u->crcs + u->pos / CRC_BLOCK, op->crcs, (len + CRC_BLOCK - 1) / CRC_BLOCK * 4);
    replica_worked(p->lane, &u->place.replica[replica]);
}

static void piece_done(struct putting *p, size_t i, uint64_t len) {
    struct put *u = &p->puts[i];
    if (u->loose || put_alive(u) == 0) {
        uint32_t segment = u->place.replica[0].parts[0].extent.segment;
        put_again(p, i,
                  fail(u->reason, "writing to segment %s failed: %s%s",
                       segment_name(p->lane, segment), tarn_status_text(u->reason),
                       lane_hint(p->lane)));
        return;
    }
    TARN_ASSERT(u->piece_crc >= 0);
    uint32_t crc = (uint32_t)u->piece_crc;
    u->crc = u->pos == 0 ? crc : crc32c_combine(u->crc, crc, len);
    u->pos += len;
    if (u->pos == u->size) u->state = PUT_WRITTEN;
}

static void run_ops(struct lane *lane, struct engine_op *ops, size_t n, uint64_t deadline) {
    tarn_status status = engine_run(lane->engine, ops, n, deadline == DEADLINE_NONE ? 0 : deadline);
    TARN_ASSERT(status == TARN_OK); /* each operation has its own */
}

static struct engine_op seal_op(struct arena *arena, const struct placement *place,
                                unsigned replica, uint8_t *receipts) {
    const struct replica *to = &place->replica[replica];
    struct engine_part *parts = arena_alloc(arena, to->n_parts * sizeof(*parts));
    for (size_t i = 0; i < to->n_parts; i++) {
        parts[i] = to->parts[i];
        parts[i].sub_length = 0;
    }
    return (struct engine_op){.write = true,
                              .parts = parts,
                              .n_parts = to->n_parts,
                              .receipts = placement_receipts_of(place, receipts, replica)};
}

uint8_t *put_seal_unwritten(struct lane *lane, const struct placement *place, uint64_t deadline,
                            size_t *n_p) {
    uint8_t *receipts = placement_receipts(&lane->arena, place, n_p);
    if (receipts == NULL) return NULL;
    struct engine_op ops[REPLICAS_MAX];
    for (unsigned r = 0; r < place->replicas; r++) {
        if (replica_ensure(lane, &place->replica[r], true, deadline) != TARN_OK) return NULL;
        ops[r] = seal_op(&lane->arena, place, r, receipts);
    }
    run_ops(lane, ops, place->replicas, deadline);
    for (unsigned r = 0; r < place->replicas; r++)
        if (ops[r].status != TARN_OK) return NULL;
    return receipts;
}

static bool needs_seal(const struct put *u) {
    return u->state == PUT_WRITTEN && u->receipts != NULL && u->size > SEAL_ALONG;
}

/* Those of the group that are all there. */
static void seal_group(struct putting *p, struct group *group) {
    size_t n = 0;
    for (size_t k = 0; k < group->n; k++) {
        size_t i = group->items[k];
        unsigned r = group->replicas[k];
        struct put *u = &p->puts[i];
        if (!needs_seal(u) || !(put_alive(u) & 1u << r)) continue;
        group->ops[n] = seal_op(&p->lane->arena, &u->place, r, u->receipts);
        group->ops[n].patience_ms = patience(p, u);
        group->items[n] = i;
        group->replicas[n++] = r;
    }
    if (n == 0) return;
    run_ops(p->lane, group->ops, n, p->deadline);
    for (size_t k = 0; k < n; k++) {
        struct put *u = &p->puts[group->items[k]];
        if (group->ops[k].status == TARN_OK) continue;
        u->loose |= !group->ops[k].settled;
        put_replica_failed(p, group->items[k], group->replicas[k], group->ops[k].status);
        if (put_alive(u) == 0 || u->loose) u->state = PUT_OPEN;
    }
    for (size_t k = 0; k < n; k++) {
        if (p->puts[group->items[k]].state == PUT_OPEN) piece_done(p, group->items[k], 0);
    }
}

static void run_group(struct putting *p, struct group *group) {
    run_ops(p->lane, group->ops, group->n, p->deadline);
    for (size_t k = 0; k < group->n; k++) {
        const struct engine_op *op = &group->ops[k];
        size_t i = group->items[k];
        struct put *u = &p->puts[i];
        uint64_t len = piece_length(p, u);
        if (op->status == TARN_OK) {
            replica_written(p, i, group->replicas[k], op, len);
        } else {
            if (!op->settled) u->loose = true;
            put_replica_failed(p, i, group->replicas[k], op->status);
        }
        bool last = k + 1 == group->n || group->items[k + 1] != i;
        if (last) piece_done(p, i, len);
    }
    seal_group(p, group);
}

void put_write(struct putting *p, const size_t *order, size_t n) {
    struct group group = {0};
    size_t ops = 0;
    for (size_t k = 0; k < n; k++) {
        struct put *u = &p->puts[order[k]];
        if (u->state != PUT_OPEN) continue;
        ops += u->place.replicas;
        if (u->place.replicas > 0) continue;
        struct iovec one;
        size_t n_iov;
        const struct iovec *iov = item_iov(&p->items[order[k]], &one, &n_iov);
        u->crc = put_crc(iov, n_iov, u->size, NULL);
        u->state = PUT_WRITTEN; /* travels with PUTEND */
    }
    if (ops == 0) return;
    group.ops = arena_alloc(&p->lane->arena, ops * sizeof(*group.ops));
    group.items = arena_alloc(&p->lane->arena, ops * sizeof(*group.items));
    group.replicas = arena_alloc(&p->lane->arena, ops * sizeof(*group.replicas));
    for (size_t k = 0; k < n;) {
        group.n = group.bytes = 0;
        for (; k < n && group.bytes < p->lane->window; k++) {
            if (p->puts[order[k]].state != PUT_OPEN) continue;
            add_piece(p, &group, order[k]);
            group.last = k;
        }
        if (group.n == 0) break;
        run_group(p, &group);
        /* more pieces of this one */
        if (p->puts[group.items[group.n - 1]].state == PUT_OPEN) k = group.last;
    }
}
