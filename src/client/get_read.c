/* The bytes of gets: which ranges to read so that they can be verified, in groups that fit the
 * lease, and the checks before anything is handed on (guarantee 1). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/crc32c.h"
#include "base/log.h"
#include "client/get.h"

#define SCRATCH_MAX (UINT64_C(256) << 20) /* bytes per call read only to verify others */
#define WINDOW_MIN  CRC_BLOCK

/* --- preparing --- */

static void *scratch_alloc(struct getting *g, uint64_t size) {
    if (size <= 4096) return arena_alloc(&g->lane->arena, size);
    if (g->n_scratch > 0 && g->scratch_bytes + size > SCRATCH_MAX) return NULL;
    if (g->n_scratch == ARRAY_LEN(g->scratch)) return NULL;
    void *p = malloc(size);
    if (p == NULL) return NULL;
    g->scratch[g->n_scratch++] = p;
    g->scratch_bytes += size;
    return p;
}

static const struct iovec *item_iov(const tarn_item *item, struct iovec *one, size_t *n_p) {
    if (item->n_iov > 0) {
        *n_p = item->n_iov;
        return item->iov;
    }
    *one = (struct iovec){item->buffer, item->buffer_len};
    *n_p = item->buffer_len > 0 ? 1 : 0;
    return one;
}

static tarn_status find_memory(struct getting *g, tarn_item *item, struct want *w) {
    if (!g->options->allocate) {
        uint64_t cap = item->n_iov > 0 ? iov_total(item->iov, item->n_iov) : item->buffer_len;
        if (w->len <= cap) return TARN_OK;
        return fail(TARN_ELIMIT,
                    "the value has %" PRIu64 " bytes to deliver, the buffers have %" PRIu64, w->len,
                    cap);
    }
    if (w->own_memory) free(item->buffer);
    w->own_memory = false;
    item->buffer = NULL;
    if (posix_memalign(&item->buffer, 64, w->len + 1) != 0) {
        item->buffer = NULL;
        return fail(TARN_ENOMEM, "no memory for a value of %" PRIu64 " bytes", w->len);
    }
    w->own_memory = true;
    item->buffer_len = w->len;
    item->n_iov = 0;
    return TARN_OK;
}

/* Which bytes must be read to check those that are wanted. */
static void choose_range(const struct getting *g, const tarn_item *item, struct want *w) {
    const struct placement *p = &w->place;
    uint64_t end = item->offset + w->len;
    w->from = item->offset;
    w->to = end;
    w->check = CHECK_NONE;
    if (!g->lane->client->options.verify && !p->must_verify) return;
    if (w->proving) {
        w->from = 0;
        w->to = p->size;
        w->check = CHECK_WHOLE;
        return;
    }
    if (p->crc < 0 || w->device) {
        COUNT(g->lane, unverified, 1);
        return;
    }
    w->check = CHECK_WHOLE;
    w->from = 0;
    w->to = p->size;
    if (w->len == p->size || p->size <= CRC_BLOCK || p->crcs == NULL) return;
    w->check = CHECK_BLOCKS;
    w->from = item->offset / CRC_BLOCK * CRC_BLOCK;
    w->to = min_u64(p->size, (end + CRC_BLOCK - 1) / CRC_BLOCK * CRC_BLOCK);
}

static tarn_status build_iov(struct getting *g, const tarn_item *item, struct want *w) {
    if (w->proving) {
        w->iov = arena_alloc(&g->lane->arena, sizeof(*w->iov));
        w->iov[0] = (struct iovec){scratch_alloc(g, w->to), w->to};
        w->n_iov = 1;
        return w->iov[0].iov_base != NULL
                   ? TARN_OK
                   : fail(TARN_ELIMIT,
                          "verifying these values takes too much memory: ask for fewer at a time");
    }
    struct iovec one;
    size_t n;
    const struct iovec *iov = item_iov(item, &one, &n);
    uint64_t before = item->offset - w->from, behind = w->to - item->offset - w->len;
    w->iov = arena_alloc(&g->lane->arena, (n + 2) * sizeof(*w->iov));
    w->n_iov = 0;
    if (before > 0) w->iov[w->n_iov++] = (struct iovec){scratch_alloc(g, before), before};
    w->n_iov += iov_slice(iov, n, 0, w->len, w->iov + w->n_iov);
    if (behind > 0) w->iov[w->n_iov++] = (struct iovec){scratch_alloc(g, behind), behind};
    for (size_t i = 0; i < w->n_iov; i++) {
        if (w->iov[i].iov_base == NULL) {
            return fail(TARN_ELIMIT,
                        "verifying these ranges takes too much memory: ask for fewer at a time");
        }
    }
    return TARN_OK;
}

static void deliver_inline(struct getting *g, size_t i) {
    tarn_item *item = &g->items[i];
    struct want *w = &g->wants[i];
    const struct placement *p = &w->place;
    if ((g->lane->client->options.verify || p->must_verify) && p->crc >= 0 &&
        crc32c(0, p->value, p->size) != (uint32_t)p->crc) {
        COUNT(g->lane, crc_mismatches, 1);
        get_finish(g, i, fail(TARN_ECORRUPT, "an inline value does not match its CRC"));
        return;
    }
    struct iovec one;
    size_t n;
    const struct iovec *iov = item_iov(item, &one, &n);
    iov_write(iov, n, p->value + item->offset, w->len);
    get_finish(g, i, TARN_OK);
}

void get_prepare(struct getting *g, size_t i) {
    tarn_item *item = &g->items[i];
    struct want *w = &g->wants[i];
    const struct placement *p = &w->place;
    w->state = PLACED;
    if (w->prepared) return; /* the same version again: go on where the lease ended */
    item->value_size = p->size;
    item->version = p->version;
    if (item->offset > p->size) {
        get_finish(g, i,
                   fail(TARN_EINVAL, "offset %" PRIu64 " lies behind the value's %" PRIu64 " bytes",
                        item->offset, p->size));
        return;
    }
    uint64_t rest = p->size - item->offset;
    w->len = item->want == 0 ? rest : min_u64(item->want, rest);
    tarn_status status = find_memory(g, item, w);
    struct iovec one;
    size_t n_iov;
    const struct iovec *iov = item_iov(item, &one, &n_iov);
    w->device = status == TARN_OK && client_is_device(g->lane->client, iov, n_iov);
    if (w->device && p->value != NULL)
        status = fail(TARN_ENOTSUP,
                      "a value of %" PRIu64 " bytes does not go to memory of a device", p->size);
    if (status == TARN_OK && p->value != NULL) {
        deliver_inline(g, i);
        return;
    }
    if (status == TARN_OK && w->len == 0) {
        get_finish(g, i, TARN_OK);
        return;
    }
    if (status == TARN_OK) {
        /* The CPU cannot sum what is in a device: it looks at the bytes elsewhere, first, under the
         * same lease. */
        w->proving = w->device && p->must_verify && p->crc >= 0;
        choose_range(g, item, w);
        status = build_iov(g, item, w);
    }
    if (status != TARN_OK) {
        get_finish(g, i, status);
        return;
    }
    w->pos = w->from;
    w->crc = 0;
    w->prepared = true;
}

/* --- reading --- */

/* One engine_run: at most one piece per item. */
struct group {
    struct engine_op *ops;
    size_t *items;
    size_t n;
    uint64_t bytes;
    size_t last; /* position in the order of the last item */
};

static void add_piece(struct getting *g, struct group *group, size_t i) {
    struct want *w = &g->wants[i];
    struct arena *arena = &g->lane->arena;
    uint64_t len = min_u64(w->to - w->pos, g->lane->window);
    struct engine_op *op = &group->ops[group->n];
    const struct replica *r = get_replica(w);
    struct engine_part *parts = arena_alloc(arena, r->n_parts * sizeof(*parts));
    struct iovec *iov = w->iov;
    size_t n_iov = w->n_iov;
    if (len != w->to - w->from) {
        iov = arena_alloc(arena, w->n_iov * sizeof(*iov));
        n_iov = iov_slice(w->iov, w->n_iov, w->pos - w->from, len, iov);
    }
    *op = (struct engine_op){
        .parts = parts,
        .n_parts = placement_slice(r->parts, r->n_parts, w->pos, len, parts),
        .iov = iov,
        .n_iov = n_iov,
        .lease_end_boot_ms = w->place.lease_end,
        .want_crc = w->check != CHECK_NONE,
        .alone = r->tier != REPLICA_MEMORY,
    };
    get_replica_bound(g, i, op);
    if (w->check == CHECK_BLOCKS) {
        op->crc_block = CRC_BLOCK;
        op->crcs = arena_alloc(arena, (len + CRC_BLOCK - 1) / CRC_BLOCK * sizeof(uint32_t));
    }
    group->items[group->n++] = i;
    group->bytes += len;
}

static bool blocks_match(const struct want *w, const struct engine_op *op, uint64_t len) {
    size_t first = w->pos / CRC_BLOCK, n = (len + CRC_BLOCK - 1) / CRC_BLOCK;
    for (size_t i = 0; i < n; i++) {
        const uint8_t *packed = w->place.crcs + 4 * (first + i);
        uint32_t want = (uint32_t)packed[0] | (uint32_t)packed[1] << 8 | (uint32_t)packed[2] << 16 |
                        (uint32_t)packed[3] << 24;
        if (op->crcs[i] != want) return false;
    }
    return true;
}

/* What lies there is right, as long as the lease lasts: now to where it was wanted, from the same
 * replica. */
static void proven(struct getting *g, size_t i) {
    struct want *w = &g->wants[i];
    w->proving = false;
    w->given_up = ~(UINT32_C(1) << w->place.at);
    choose_range(g, &g->items[i], w);
    tarn_status status = build_iov(g, &g->items[i], w);
    if (status != TARN_OK) {
        get_finish(g, i, status);
        return;
    }
    w->pos = w->from;
    g->turns++; /* once more through those that are placed */
}

void get_piece_done(struct getting *g, size_t i, const struct engine_op *op) {
    struct want *w = &g->wants[i];
    uint64_t len = iov_total(op->iov, op->n_iov);
    if (w->check == CHECK_BLOCKS && !blocks_match(w, op, len)) {
        get_replica_bad(g, i);
        return;
    }
    if (w->check == CHECK_WHOLE)
        w->crc = w->pos == w->from ? op->crc : crc32c_combine(w->crc, op->crc, len);
    if (w->pos == w->from) w->sources = 0;
    w->sources |= UINT32_C(1) << w->place.at;
    w->pos += len;
    w->tries = 0;
    get_replica_worked(g, i);
    if (w->pos < w->to) return;
    if (w->check == CHECK_WHOLE && w->crc != (uint32_t)w->place.crc) {
        get_replica_bad(g, i);
        return;
    }
    if (w->proving)
        proven(g, i);
    else
        get_finish(g, i, TARN_OK);
}

static void piece_failed(struct getting *g, size_t i, tarn_status status, uint64_t len) {
    if (status == TARN_ELEASE) {
        COUNT(g->lane, lease_misses, 1);
        fail(status, "the lease ended before the bytes were verified (raise lease_ms, or read less "
                     "at a time)");
        get_again(g, i, status, len > WINDOW_MIN ? 3 : 1); /* smaller pieces may fit */
        return;
    }
    if (status == TARN_ETIMEOUT) COUNT(g->lane, timeouts, 1);
    if (status == TARN_ETIMEOUT && now_ms() >= g->deadline) {
        get_finish(g, i, fail(status, "the deadline passed before all bytes were there"));
        return;
    }
    get_replica_failed(g, i, status);
}

/* The window follows the speed of the path: a group should take a small share of the lease. */
static void adapt_window(struct lane *lane, uint64_t took_ms, uint64_t lease_ms, bool lease_lost) {
    if (lease_lost) {
        lane->window = max_u64(lane->window / 4 / CRC_BLOCK * CRC_BLOCK, WINDOW_MIN);
    } else if (took_ms > lease_ms / 4) {
        lane->window = max_u64(lane->window / 2 / CRC_BLOCK * CRC_BLOCK, WINDOW_MIN);
    } else if (took_ms < lease_ms / 16) {
        lane->window = min_u64(lane->window * 2, lane->client->options.piece_bytes);
    }
}

static void run_group(struct getting *g, struct group *group) {
    struct lane *lane = g->lane;
    uint64_t started = now_ms(), lease_ms = g->wants[group->items[0]].place.lease_ms;
    bool lease_lost = false;
    tarn_status status = engine_run(lane->engine, group->ops, group->n,
                                    g->deadline == DEADLINE_NONE ? 0 : g->deadline);
    for (size_t k = 0; k < group->n; k++) {
        const struct engine_op *op = &group->ops[k];
        tarn_status op_status = status == TARN_OK ? op->status : status;
        lease_lost = lease_lost || op_status == TARN_ELEASE;
        if (op_status == TARN_OK) {
            get_piece_done(g, group->items[k], op);
        } else {
            piece_failed(g, group->items[k], op_status, iov_total(op->iov, op->n_iov));
        }
    }
    adapt_window(lane, now_ms() - started, lease_ms, lease_lost);
}

bool get_lease_is_short(const struct placement *p) {
    return now_ms() + p->lease_ms / 3 >= p->lease_end;
}

/* One window of items from order[*k_p] on. */
static void fill_group(struct getting *g, const size_t *order, size_t n, size_t *k_p,
                       struct group *group) {
    group->n = group->bytes = 0;
    for (; *k_p < n && group->bytes < g->lane->window; ++*k_p) {
        size_t i = order[*k_p];
        if (g->wants[i].state != PLACED) continue;
        get_replica_refresh(g, i);
        if (get_replica(&g->wants[i])->tier == REPLICA_FILE) {
            get_file_read(g, i);
        } else {
            add_piece(g, group, i);
            group->last = *k_p;
        }
    }
}

/* Goes through all once. true: some turned to another replica and may go on under the leases they
 * have. */
static bool sweep(struct getting *g, const size_t *order, size_t n, struct group *group,
                  bool *ran_p) {
    uint64_t before = g->turns;
    for (size_t k = 0; k < n;) {
        fill_group(g, order, n, &k, group);
        if (group->n == 0) break;
        if (*ran_p && get_lease_is_short(&g->wants[group->items[0]].place)) return false;
        run_group(g, group);
        *ran_p = true;
        /* An item of several pieces stays PLACED: it is the last of its group, so begin there
         * again. */
        if (g->wants[group->items[group->n - 1]].state == PLACED) k = group->last;
    }
    return g->turns != before;
}

void get_read(struct getting *g, const size_t *order, size_t n) {
    struct group group = {0};
    group.ops = arena_alloc(&g->lane->arena, n * sizeof(*group.ops));
    group.items = arena_alloc(&g->lane->arena, n * sizeof(*group.items));
    bool ran = false;
    while (sweep(g, order, n, &group, &ran)) {
    }
    for (size_t k = 0; k < n; k++) {
        struct want *w = &g->wants[order[k]];
        if (w->state != PLACED) continue;
        w->state = WANTED; /* with a new lease, in the next pass */
        COUNT(g->lane, lease_renewals, 1);
    }
}
