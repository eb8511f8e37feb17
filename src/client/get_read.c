/* The bytes of gets: where they go, pieces of them, and the checks before anything is handed on
 * (guarantee 1). */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "client/get.h"

#define SCRATCH_MAX (UINT64_C(256) << 20) /* bytes per call read only to verify others */

/* --- preparing --- */

static void *scratch_alloc(struct getting *g, uint64_t size) {
    if (size <= 4096) return arena_alloc(&g->b.lane->arena, size);
    if (g->n_scratch > 0 && g->scratch_bytes + size > SCRATCH_MAX) return NULL;
    if (g->n_scratch == ARRAY_LEN(g->scratch)) return NULL;
    void *p = malloc(size);
    if (p == NULL) return NULL;
    g->scratch[g->n_scratch++] = p;
    g->scratch_bytes += size;
    return p;
}

static tarn_status item_memory_find(struct getting *g, tarn_item *item, struct want *w) {
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

/* What is read, and where it goes: exactly what was asked for, or more of it if that is needed to
 * verify it. The CPU cannot sum what is in a device: it looks at the bytes elsewhere, first, under
 * the same lease. */
static tarn_status want_set_range(struct getting *g, const tarn_item *item, struct want *w) {
    const struct placement *p = &w->place;
    struct placed_read *r = &w->read;
    bool verify = g->b.lane->client->options.verify || p->must_verify, touched = !w->device;
    if (w->proving)
        placed_read_range(r, 0, p->size, PLACED_VERIFY);
    else
        placed_read_range(r, item->offset, w->len, verify && touched ? PLACED_VERIFY : 0);
    if (verify && r->check == PLACED_UNCHECKED) COUNT(g->b.lane, unverified, 1);

    struct iovec one;
    size_t n;
    const struct iovec *iov = item_iov(item, &one, &n);
    uint64_t before = item->offset - r->from, behind = r->to - item->offset - w->len;
    if (w->proving) {
        before = p->size;
        n = behind = 0;
    }
    w->n_iov = 0;
    if (n == 1 && before == 0 && behind == 0) { /* most of them */
        w->one = (struct iovec){iov->iov_base, w->len};
        w->iov = &w->one;
        w->n_iov = 1;
        return TARN_OK;
    }
    w->iov = arena_alloc(&g->b.lane->arena, (n + 2) * sizeof(*w->iov));
    if (before > 0) w->iov[w->n_iov++] = (struct iovec){scratch_alloc(g, before), before};
    w->n_iov += iov_slice(iov, n, 0, w->len, w->iov + w->n_iov);
    if (behind > 0) w->iov[w->n_iov++] = (struct iovec){scratch_alloc(g, behind), behind};
    for (size_t i = 0; i < w->n_iov; i++) {
        if (w->iov[i].iov_base == NULL) {
            return fail(TARN_ELIMIT,
                        "verifying these values takes too much memory: ask for fewer at a time");
        }
    }
    return TARN_OK;
}

static tarn_status deliver_inline(struct getting *g, const tarn_item *item, const struct want *w) {
    const struct placement *p = &w->place;
    if ((g->b.lane->client->options.verify || p->must_verify) && p->crc >= 0 &&
        crc32c(0, p->value, p->size) != (uint32_t)p->crc) {
        COUNT(g->b.lane, crc_mismatches, 1);
        return fail(TARN_ECORRUPT, "an inline value does not match its CRC");
    }
    struct iovec one;
    size_t n;
    const struct iovec *iov = item_iov(item, &one, &n);
    struct iov_cursor to = iov_cursor(iov, n);
    (void)iov_copy_in(&to, p->value + item->offset, w->len);
    return TARN_OK;
}

/* All of a value into one buffer, where one CRC verifies it: most of them. false: there is more to
 * it. */
static bool prepare_whole(struct getting *g, const tarn_item *item, struct want *w) {
    const struct placement *p = &w->place;
    struct tarn_client *client = g->b.lane->client;
    w->iov = &w->one;
    w->one = (struct iovec){item->buffer, p->size};
    if (p->value != NULL || p->size == 0 || p->size > PLACED_BLOCK || p->crc < 0 ||
        p->size > item->buffer_len || item->n_iov > 0 || item->offset != 0 ||
        (item->want != 0 && item->want < p->size) || g->options->allocate ||
        client_is_device(client, &w->one, 1))
        return false;
    w->device = w->proving = false;
    w->prepared = true;
    w->len = p->size;
    w->n_iov = 1;
    placed_read_whole(&w->read, &(struct placed_value){p->version, p->size, p->crc, p->crcs, 0},
                      client->options.verify || p->must_verify);
    return true;
}

struct get_result get_prepare(struct getting *g, size_t i) {
    tarn_item *item = &g->b.items[i];
    struct want *w = &g->wants[i];
    const struct placement *p = &w->place;
    item->value_size = p->size;
    item->version = p->version;
    if (LIKELY(prepare_whole(g, item, w))) return (struct get_result){.next = GET_ON};
    if (item->offset > p->size) {
        return get_over(fail(TARN_EINVAL,
                             "offset %" PRIu64 " lies behind the value's %" PRIu64 " bytes",
                             item->offset, p->size));
    }
    uint64_t rest = p->size - item->offset;
    w->len = item->want == 0 ? rest : min_u64(item->want, rest);
    tarn_status status = item_memory_find(g, item, w);
    if (status != TARN_OK) return get_over(status);
    struct iovec one;
    size_t n_iov;
    const struct iovec *iov = item_iov(item, &one, &n_iov);
    w->device = client_is_device(g->b.lane->client, iov, n_iov);
    if (w->device && p->value != NULL) {
        return get_over(fail(TARN_ENOTSUP,
                             "a value of %" PRIu64 " bytes does not go to memory of a device",
                             p->size));
    }
    if (p->value != NULL) return get_over(deliver_inline(g, item, w));
    if (w->len == 0) return get_over(TARN_OK);
    w->proving = w->device && p->must_verify && p->crc >= 0;
    placed_read_init(&w->read, &(struct placed_value){p->version, p->size, p->crc, p->crcs, 0});
    status = want_set_range(g, item, w);
    if (status != TARN_OK) return get_over(status);
    w->prepared = true;
    return (struct get_result){.next = GET_ON};
}

/* --- pieces --- */

void get_piece(struct getting *g, size_t i, uint64_t len, struct engine_op *op) {
    struct want *w = &g->wants[i];
    struct arena *arena = &g->b.lane->arena;
    const struct placed_read *r = &w->read;
    const struct placed_replica *replica = get_replica(w);
    struct engine_part *parts = replica->parts;
    struct iovec *iov = w->iov;
    size_t n_iov = w->n_iov, n_parts = replica->n_parts;
    len = min_u64(len, r->to - r->pos);
    if (len != w->place.size) {
        parts = arena_alloc(arena, n_parts * sizeof(*parts));
        n_parts = placed_parts(replica->parts, n_parts, r->pos, len, parts);
    }
    if (len != r->to - r->from) {
        iov = arena_alloc(arena, w->n_iov * sizeof(*iov));
        n_iov = iov_slice(w->iov, w->n_iov, r->pos - r->from, len, iov);
    }
    *op = (struct engine_op){
        .parts = parts,
        .n_parts = n_parts,
        .iov = iov,
        .n_iov = n_iov,
        .lease_end_boot_ms = w->place.lease_end,
        .want_crc = r->check == PLACED_WHOLE,
        .alone = replica->tier != REPLICA_MEMORY,
    };
    if (LIKELY(w->place.replicas == 1 && !outages_any(&g->b.lane->client->outages)))
        get_replica_bound_last(g, op);
    else
        get_replica_bound(g, i, op);
    if (r->check == PLACED_BLOCKS) {
        op->crc_block = PLACED_BLOCK;
        op->crcs = arena_alloc(arena, (len + PLACED_BLOCK - 1) / PLACED_BLOCK * sizeof(uint32_t));
    }
}

/* All of it is there and right, and as long as the lease lasts so is what lies in the pool: now to
 * where it was wanted, from the same replica. */
static struct get_result proven(struct getting *g, size_t i) {
    struct want *w = &g->wants[i];
    w->proving = false;
    placed_read_only(&w->read, w->read.at);
    tarn_status status = want_set_range(g, &g->b.items[i], w);
    if (status != TARN_OK) return get_over(status);
    return (struct get_result){.next = GET_TURNED};
}

static struct get_result piece_failed(struct getting *g, size_t i, tarn_status status,
                                      uint64_t len) {
    if (status == TARN_EGRANT_EXPIRED && replica_lacks_grant(get_replica(&g->wants[i]))) {
        lane_needs_grants(g->b.lane);
        return (struct get_result){.next = GET_GRANTS};
    }
    if (status == TARN_ELEASE) {
        COUNT(g->b.lane, lease_misses, 1);
        fail(status, "the lease ended before the bytes were verified (raise lease_ms, or read less "
                     "at a time)");
        return get_again(status, len > PLACED_BLOCK ? 3 : 1); /* smaller pieces may fit */
    }
    if (status == TARN_ETIMEOUT) COUNT(g->b.lane, timeouts, 1);
    if (status == TARN_ETIMEOUT && now_ms() >= g->b.deadline)
        return get_over(fail(status, "the deadline passed before all bytes were there"));
    return get_replica_failed(g, i, status);
}

struct get_result get_piece_result(struct getting *g, size_t i, const struct engine_op *op) {
    struct want *w = &g->wants[i];
    uint64_t len = iov_total(op->iov, op->n_iov);
    if (op->status != TARN_OK) return piece_failed(g, i, op->status, len);
    const uint32_t *crcs = op->crcs != NULL ? op->crcs : &op->crc;
    w->tries = 0;
    replica_worked(g->b.lane, get_replica(w));
    enum placed_next next = placed_read_took(&w->read, w->read.at, len, crcs);
    if (next == PLACED_WRONG) return get_replica_bad(g, i);
    if (next == PLACED_MORE) return (struct get_result){.next = GET_ON};
    return w->proving ? proven(g, i) : get_over(TARN_OK);
}

bool get_lease_is_short(const struct placement *p) {
    return now_ms() + p->lease_ms / 3 >= p->lease_end;
}

/* --- replicas on a shared file system: read by ourselves, without a host ---
 *
 * The file is what its name promises only as far as the CRC says so; one that is missing, short, or
 * no regular file counts as a replica that is not there. */

struct get_result get_file(struct getting *g, size_t i) {
    struct want *w = &g->wants[i];
    struct get_result result;
    int fd;
    uint64_t began_ns = trace_moment(g->b.lane), from = w->read.pos;
    tarn_status status =
        w->device ? TARN_ENOTSUP : placed_file_open(get_replica(w)->path, w->place.size, &fd);
    if (status != TARN_OK) return get_replica_failed(g, i, status);
    do {
        struct engine_op op;
        get_piece(g, i, PLACED_BLOCK, &op);
        op.status = placed_file_read(fd, w->read.pos, &op);
        if (op.status == TARN_ECORRUPT) op.status = TARN_ENOTFOUND; /* it has become shorter */
        if (op.status == TARN_OK && now_ms() >= g->b.deadline) op.status = TARN_ETIMEOUT;
        result = get_piece_result(g, i, &op);
    } while (result.next == GET_ON && !get_lease_is_short(&w->place));
    close(fd);
    trace_file_read(g->b.lane, began_ns, result.next == GET_ON ? TARN_OK : result.status,
                    w->read.pos > from ? w->read.pos - from : 0);
    return result;
}

/* --- replicas on a disk of this process: read by ourselves, too ---
 *
 * By no grant: that they are still the same the lease promises, as with memory that is mapped. */

bool get_is_home(const struct getting *g, size_t i) {
    const struct client_home *home = &g->b.lane->client->home;
    const struct want *w = &g->wants[i];
    const struct placed_replica *r = get_replica(w);
    if (home->read == NULL || r->tier != REPLICA_SSD || w->device) return false;
    for (size_t k = 0; k < r->n_parts; k++)
        if (!home->has(home->arg, &r->parts[k].extent)) return false;
    return r->n_parts > 0;
}

static tarn_status home_move(struct getting *g, struct engine_op *op) {
    const struct client_home *home = &g->b.lane->client->home;
    struct transport_part parts[EXTENTS_MAX];
    struct transport_op top = {.kind = TRANSPORT_GET,
                               .parts = parts,
                               .n_parts = op->n_parts,
                               .iov = op->iov,
                               .n_iov = op->n_iov,
                               .crcs = op->crcs != NULL ? op->crcs : &op->crc,
                               .crc_first = op->crc_block,
                               .crc_block = op->crc_block,
                               .patience_ms = op->patience_ms};
    if (op->crcs == NULL && !op->want_crc) top.crcs = NULL;
    TARN_ASSERT(op->n_parts <= EXTENTS_MAX);
    for (size_t i = 0; i < op->n_parts; i++)
        parts[i] = (struct transport_part){.extent = op->parts[i].extent,
                                           .sub_offset = op->parts[i].sub_offset,
                                           .sub_length = op->parts[i].sub_length};
    tarn_status status =
        home->read(home->arg, &top, g->b.deadline == DEADLINE_NONE ? 0 : g->b.deadline);
    return status == TARN_OK && now_ms() >= op->lease_end_boot_ms ? TARN_ELEASE : status;
}

struct get_result get_home(struct getting *g, size_t i) {
    struct want *w = &g->wants[i];
    struct get_result result;
    do {
        struct engine_op op;
        get_piece(g, i, g->b.lane->window, &op);
        op.status = home_move(g, &op);
        result = get_piece_result(g, i, &op);
    } while (result.next == GET_ON && !get_lease_is_short(&w->place));
    return result;
}
