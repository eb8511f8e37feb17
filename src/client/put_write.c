/* The bytes of puts, in groups, and their CRCs. */
#include <stdio.h>

#include "base/assert.h"
#include "base/crc32c.h"
#include "client/put.h"

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

static uint64_t piece_length(const struct putting *p, const struct put *u) {
    return min_u64(u->size - u->pos, p->b.lane->window);
}

/* How long a silent host is waited for. One that was away a moment ago is only written to when
 * there is no other. */
static uint64_t put_patience(struct putting *p, const struct put *u) {
    const tarn_options *o = &p->b.lane->client->options;
    const struct placed_replica *all = u->place.replica;
    bool any = outages_any(&p->b.lane->client->outages);
    if (LIKELY(!any && o->retries > 0)) return 2 * o->failover_ms;
    uint32_t alive = put_alive(u);
    if (o->retries == 0 && (alive & (alive - 1)) == 0) return 0;
    for (unsigned r = 0; any && r < u->place.replicas; r++) {
        if ((alive & 1u << r) && outage_listed(p->b.lane, all[r].parts[0].extent.segment)) return 0;
    }
    return 2 * o->failover_ms;
}

static void add_piece(struct putting *p, struct group *group, size_t i) {
    struct put *u = &p->puts[i];
    struct arena *arena = &p->b.lane->arena;
    uint64_t len = piece_length(p, u), patience_ms = put_patience(p, u);
    struct iovec one, *iov;
    size_t n_iov;
    const struct iovec *whole = item_iov(&p->b.items[i], &one, &n_iov);
    iov = arena_alloc(arena, n_iov * sizeof(*iov));
    if (len == u->size && n_iov == 1)
        *iov = *whole;
    else if (len == u->size)
        memcpy(iov, whole, n_iov * sizeof(*iov));
    else
        n_iov = iov_slice(whole, n_iov, u->pos, len, iov);
    u->piece_crc = -1;
    for (unsigned r = 0; r < u->place.replicas; r++) {
        if (!(put_alive(u) & 1u << r)) continue;
        struct engine_op *op = &group->ops[group->n];
        const struct placed_replica *to = &u->place.replica[r];
        struct engine_part *parts = to->parts;
        size_t n_parts = to->n_parts;
        if (len != u->size) {
            parts = arena_alloc(arena, n_parts * sizeof(*parts));
            n_parts = placed_parts(to->parts, n_parts, u->pos, len, parts);
        }
        *op = (struct engine_op){
            .write = true,
            .parts = parts,
            .n_parts = n_parts,
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
    replica_worked(p->b.lane, &u->place.replica[replica]);
}

static void put_piece_done(struct putting *p, size_t i, uint64_t len) {
    struct put *u = &p->puts[i];
    if (u->needs_grant && !u->loose) {
        put_again(p, i, u->reason);
        return;
    }
    if (u->loose || put_alive(u) == 0) {
        uint32_t segment = u->place.replica[0].parts[0].extent.segment;
        put_again(p, i,
                  fail(u->reason, "writing to segment %s failed: %s%s",
                       segment_name(p->b.lane, segment), tarn_status_text(u->reason),
                       lane_hint(p->b.lane)));
        return;
    }
    TARN_ASSERT(u->piece_crc >= 0);
    uint32_t crc = (uint32_t)u->piece_crc;
    u->crc = u->pos == 0 ? crc : crc32c_combine(u->crc, crc, len);
    u->pos += len;
    if (u->pos == u->size) u->is.state = ITEM_WRITTEN;
}

static struct engine_op seal_op(struct arena *arena, const struct placement *place,
                                unsigned replica, uint8_t *receipts) {
    const struct placed_replica *to = &place->replica[replica];
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
    (void)engine_run(lane->engine, ops, place->replicas, deadline == DEADLINE_NONE ? 0 : deadline);
    for (unsigned r = 0; r < place->replicas; r++)
        if (ops[r].status != TARN_OK) return NULL;
    return receipts;
}

static bool needs_seal(const struct put *u) {
    return u->is.state == ITEM_WRITTEN && u->receipts != NULL && u->size > SEAL_ALONG;
}

/* Those of the group that are all there. */
static void seal_group(struct putting *p, struct group *group) {
    size_t n = 0;
    for (size_t k = 0; k < group->n; k++) {
        size_t i = group->items[k];
        unsigned r = group->replicas[k];
        struct put *u = &p->puts[i];
        if (!needs_seal(u) || !(put_alive(u) & 1u << r)) continue;
        group->ops[n] = seal_op(&p->b.lane->arena, &u->place, r, u->receipts);
        group->ops[n].patience_ms = put_patience(p, u);
        group->items[n] = i;
        group->replicas[n++] = r;
    }
    if (n == 0) return;
    struct group seals = *group;
    seals.n = n;
    batch_move(&p->b, &seals);
    for (size_t k = 0; k < n; k++) {
        struct put *u = &p->puts[group->items[k]];
        if (group->ops[k].status == TARN_OK) continue;
        u->loose |= !group->ops[k].settled;
        put_replica_failed(p, group->items[k], group->replicas[k], group->ops[k].status);
        if (put_alive(u) == 0 || u->loose) u->is.state = ITEM_PLACED;
    }
    for (size_t k = 0; k < n; k++) {
        if (p->puts[group->items[k]].is.state == ITEM_PLACED) put_piece_done(p, group->items[k], 0);
    }
}

static void put_group_run(struct putting *p, struct group *group) {
    batch_move(&p->b, group);
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
        if (last) put_piece_done(p, i, len);
    }
    seal_group(p, group);
}

void put_write(struct putting *p, const size_t *order, size_t n) {
    size_t ops = 0;
    for (size_t k = 0; k < n; k++) {
        struct put *u = &p->puts[order[k]];
        if (u->is.state != ITEM_PLACED) continue;
        ops += u->place.replicas;
        if (u->place.replicas > 0) continue;
        struct iovec one;
        size_t n_iov;
        const struct iovec *iov = item_iov(&p->b.items[order[k]], &one, &n_iov);
        u->crc = put_crc(iov, n_iov, u->size, NULL);
        u->is.state = ITEM_WRITTEN; /* travels with PUTEND */
    }
    if (ops == 0) return;
    struct group group = group_of(p->b.lane, ops);
    for (size_t k = 0; k < n;) {
        group.n = group.bytes = 0;
        for (; k < n && group.bytes < p->b.lane->window; k++) {
            if (p->puts[order[k]].is.state != ITEM_PLACED) continue;
            add_piece(p, &group, order[k]);
            group.last = k;
        }
        if (group.n == 0) break;
        put_group_run(p, &group);
        k = group_next(&p->b, &group, k);
    }
}
