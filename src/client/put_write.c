/* The bytes of puts, in groups, and their CRCs. */
#include <stdio.h>

#include "base/crc32c.h"
#include "client/put.h"

uint32_t put_crc(const struct iovec *iov, size_t n_iov, uint64_t size, uint32_t *crcs) {
    uint32_t whole = 0, block = 0;
    uint64_t in_block = 0;
    size_t at = 0;
    for (size_t i = 0; i < n_iov; i++) {
        const char *data = iov[i].iov_base;
        for (uint64_t left = iov[i].iov_len; left > 0;) {
            uint64_t take = min_u64(left, CRC_BLOCK - in_block);
            block = crc32c(block, data, take);
            data += take;
            left -= take;
            in_block += take;
            if (in_block < CRC_BLOCK) continue;
            if (crcs != NULL) crcs[at++] = block;
            whole = crc32c_combine(whole, block, in_block);
            block = 0;
            in_block = 0;
        }
    }
    if (in_block > 0) {
        if (crcs != NULL) crcs[at++] = block;
        whole = crc32c_combine(whole, block, in_block);
    }
    TARN_ASSERT(crcs == NULL || at == (size + CRC_BLOCK - 1) / CRC_BLOCK);
    return whole;
}

/* One engine_run: at most one piece per item, each to all of its replicas. */
struct group {
    struct engine_op *ops;
    size_t *items;      /* by op */
    unsigned *replicas; /* by op */
    size_t n, cap;
    uint64_t bytes;
};

static uint64_t piece_length(const struct putting *p, const struct put *u) {
    return min_u64(u->size - u->pos, p->lane->window);
}

static void add_piece(struct putting *p, struct group *group, size_t i) {
    struct put *u = &p->puts[i];
    struct arena *arena = &p->lane->arena;
    uint64_t len = piece_length(p, u);
    struct iovec one, *iov;
    size_t n_iov;
    const struct iovec *whole = put_item_iov(&p->items[i], &one, &n_iov);
    iov = arena_alloc(arena, n_iov * sizeof(*iov));
    n_iov = iov_slice(whole, n_iov, u->pos, len, iov);
    for (unsigned r = 0; r < u->place.replicas; r++) {
        if (u->place.replicas > 1) placement_replica(arena, &u->place, r); /* checked before */
        struct engine_op *op = &group->ops[group->n];
        struct engine_part *parts = arena_alloc(arena, EXTENTS_MAX * sizeof(*parts));
        *op = (struct engine_op){
            .write = true,
            .parts = parts,
            .n_parts = placement_slice(u->place.parts, u->place.n_parts, u->pos, len, parts),
            .iov = iov,
            .n_iov = n_iov,
            .want_crc = true,
        };
        if (u->crcs != NULL) {
            op->crc_block = CRC_BLOCK;
            op->crcs = arena_alloc(arena, (len + CRC_BLOCK - 1) / CRC_BLOCK * sizeof(uint32_t));
        }
        group->replicas[group->n] = r;
        group->items[group->n++] = i;
    }
    group->bytes += len;
}

/* The host said no, so not a byte of the operation is on its way any more. After any other failure it may be. */
static bool was_refused(tarn_status status) {
    switch (status) {
    case TARN_EPERM:
    case TARN_ESTALE:
    case TARN_EGRANT_EXPIRED:
    case TARN_ENOSEGMENT:
    case TARN_EINVAL: return true;
    default: return false;
    }
}

static void replica_failed(struct putting *p, size_t i, unsigned replica, tarn_status status) {
    struct put *u = &p->puts[i];
    u->failed |= 1u << replica;
    if (status == TARN_ESTALE || status == TARN_ENOSEGMENT) {
        COUNT(p->lane, epoch_misses, 1);
        for (size_t k = 0; k < u->place.n_parts; k++)
            segment_forget(p->lane, u->place.parts[k].extent.segment);
    }
    if (status == TARN_ETIMEOUT) COUNT(p->lane, timeouts, 1);
    bool known = was_refused(u->reason);
    u->reason = u->reason == TARN_OK || known ? status : u->reason; /* one that may be in flight outweighs */
}

static void item_done(struct putting *p, size_t i, uint64_t len) {
    struct put *u = &p->puts[i];
    uint32_t all = u->place.replicas >= 32 ? UINT32_MAX : (1u << u->place.replicas) - 1;
    if (u->failed != 0 && (u->failed == all || !was_refused(u->reason))) {
        fail(u->reason, "writing the bytes failed: %s", tarn_status_text(u->reason));
        if (was_refused(u->reason)) {
            u->state = PUT_WANTED;
            u->revoke = true;
        } else {
            put_finish(p, i, u->reason);
        }
        return;
    }
    u->pos += len;
    if (u->pos == u->size) u->state = PUT_WRITTEN;
}

static void run_group(struct putting *p, struct group *group) {
    tarn_status status =
        engine_run(p->lane->engine, group->ops, group->n, p->deadline == DEADLINE_NONE ? 0 : p->deadline);
    for (size_t k = 0; k < group->n; k++) {
        const struct engine_op *op = &group->ops[k];
        size_t i = group->items[k];
        struct put *u = &p->puts[i];
        bool first = k == 0 || group->items[k - 1] != i;
        uint64_t len = piece_length(p, u);
        if (first) u->reason = TARN_OK;
        tarn_status op_status = status == TARN_OK ? op->status : status;
        if (op_status != TARN_OK) {
            replica_failed(p, i, group->replicas[k], op_status);
        } else {
            u->place.crc = op->crc; /* of this piece: the same for every replica */
            if (u->crcs != NULL)
                memcpy(u->crcs + u->pos / CRC_BLOCK, op->crcs, (len + CRC_BLOCK - 1) / CRC_BLOCK * 4);
        }
        bool last = k + 1 == group->n || group->items[k + 1] != i;
        if (!last) continue;
        if (u->place.crc >= 0)
            u->crc =
                u->pos == 0 ? (uint32_t)u->place.crc : crc32c_combine(u->crc, (uint32_t)u->place.crc, len);
        item_done(p, i, len);
    }
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
        const struct iovec *iov = put_item_iov(&p->items[order[k]], &one, &n_iov);
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
            if (p->puts[order[k]].state == PUT_OPEN) add_piece(p, &group, order[k]);
        }
        if (group.n == 0) break;
        run_group(p, &group);
        if (p->puts[group.items[group.n - 1]].state == PUT_OPEN) k--; /* more pieces of this one */
    }
}
