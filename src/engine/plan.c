/* From operations to slices. */
#include <string.h>

#include "base/assert.h"
#include "engine/run_internal.h"

#define SLICE_MAX       (64ull << 20)
#define SLICE_PARTS_MAX 1024u
#define STRIPE_ALIGN    (64u << 10)
#define MERGE_BYTES     (256u << 10) /* of a merged slice: what a connection moves at a time */
#define MERGE_OPS       64u
#define MERGE_LOOK                                                                                 \
    256u /* how many operations are looked at for them: those for several hosts come in turn */

/* --- planning --- */

static struct slice *slice_create(struct engine_run *r, struct op_run *o, struct engine_seg *seg,
                                  size_t max_parts) {
    struct slice *s = run_alloc(r, sizeof(*s));
    *s = (struct slice){.run_op = o,
                        .members = &s->run_op,
                        .n_members = 1,
                        .seg = seg,
                        .top = {.kind = o->op->write ? TRANSPORT_PUT : TRANSPORT_GET,
                                .parts = run_alloc(r, max_parts * sizeof(struct transport_part)),
                                .done = run_slice_done,
                                .arg = s,
                                .patience_ms = o->op->patience_ms}};
    return s;
}

/* len bytes of that part, from at on. */
static inline void part_add(struct slice *s, const struct engine_part *p, uint64_t at,
                            uint64_t len) {
    struct transport_part *parts = (struct transport_part *)(uintptr_t)s->top.parts;
    parts[s->top.n_parts++] = (struct transport_part){.extent = p->extent,
                                                      .grant = p->grant,
                                                      .sub_offset = p->sub_offset + at,
                                                      .sub_length = len};
    s->length += len;
}

/* The first has first bytes, the others block. */
static void crcs_want(struct engine_run *r, struct slice *s, uint64_t first, uint64_t block,
                      size_t n) {
    s->top.crc_first = first;
    s->top.crc_block = block;
    s->top.crcs = run_alloc(r, n * sizeof(uint32_t));
    memset(s->top.crcs, 0, n * sizeof(uint32_t));
}

static void plan_crcs(struct engine_run *r, const struct engine_op *op, struct slice *s) {
    if (!op->want_crc && op->crcs == NULL) return;
    uint64_t block = op->crcs != NULL ? op->crc_block : 0, first = 0, pieces = 1;
    if (block != 0) {
        first = block - s->at % block;
        if (s->length > first) pieces += (s->length - first + block - 1) / block;
    }
    crcs_want(r, s, first, block, pieces);
}

/* Slices of at most max bytes, each within one segment. */
static tarn_status plan_slices(struct engine_run *r, struct op_run *o, uint64_t max, bool spread) {
    struct engine_op *op = o->op;
    struct iov_cursor local = iov_cursor(op->iov, op->n_iov);
    size_t i = 0;
    uint64_t offset = 0, at = 0;
    while (i < op->n_parts) {
        struct engine_seg *seg = engine_find(r->e, op->parts[i].extent.segment);
        if (seg == NULL) return TARN_ENOSEGMENT;
        size_t n_max = min_u64(op->n_parts - i,
                               op->receipts != NULL ? TRANSPORT_SEAL_PARTS_MAX : SLICE_PARTS_MAX);
        struct slice *s = slice_create(r, o, seg, n_max);
        s->at = at;
        s->spread = spread;
        while (i < op->n_parts && s->top.n_parts < n_max &&
               (s->length < max || s->top.n_parts == 0)) {
            const struct engine_part *p = &op->parts[i];
            if (p->extent.segment != seg->id) break;
            if (p->extent.segment_epoch != seg->epoch) return TARN_ESTALE;
            uint64_t len = min_u64(p->sub_length - offset, max - s->length);
            part_add(s, p, offset, len);
            offset += len;
            if (offset == p->sub_length) {
                i++;
                offset = 0;
            }
        }
        at += s->length;
        size_t n_iov = iov_gather(local, s->length, NULL, local.n);
        struct iovec *iov = run_alloc(r, (n_iov + 1) * sizeof(*iov));
        s->top.n_iov = iov_gather(local, s->length, iov, n_iov);
        s->top.iov = iov;
        iov_advance(&local, s->length);
        plan_crcs(r, op, s);
        if (op->receipts != NULL)
            s->top.receipts = op->receipts + (i - s->top.n_parts) * GRANT_RECEIPT_SIZE;
        *o->last = s;
        o->last = &s->next;
        o->slices_left++;
    }
    return TARN_OK;
}

/* Memory of a device: all of it, from one registration. */
static tarn_status find_device(const struct engine *e, struct op_run *o) {
    const struct engine_op *op = o->op;
    size_t inside = 0;
    for (size_t i = 0; i < op->n_iov; i++) {
        const struct engine_memory *m =
            engine_memory_at(e, op->iov[i].iov_base, op->iov[i].iov_len);
        if (m == NULL || !m->buffer.device || op->iov[i].iov_len == 0) continue;
        if (o->device != NULL && o->device != m) return TARN_EINVAL;
        o->device = m;
        inside++;
    }
    bool crcs = op->want_crc || op->crcs != NULL;
    return o->device != NULL && (crcs || inside != op->n_iov) ? TARN_EINVAL : TARN_OK;
}

tarn_status run_plan(struct engine_run *r, struct op_run *o, uint64_t now_ms) {
    struct engine_op *op = o->op;
    o->planned = true;
    o->length = 0;
    o->first = NULL;
    o->last = &o->first;
    for (size_t i = 0; i < op->n_parts; i++) {
        const struct engine_part *p = &op->parts[i];
        if (p->sub_offset > p->extent.length || p->sub_length > p->extent.length - p->sub_offset)
            return TARN_EINVAL;
        o->length += p->sub_length;
    }
    if (iov_total(op->iov, op->n_iov) != o->length || op->n_parts == 0 ||
        (op->crcs != NULL && op->crc_block == 0))
        return TARN_EINVAL;
    if (op->lease_end_boot_ms != 0 && now_ms >= op->lease_end_boot_ms) return TARN_ELEASE;

    struct engine *e = r->e;
    tarn_status status = e->devices > 0 ? find_device(e, o) : TARN_OK;
    if (status != TARN_OK) return status;
    uint64_t max = SLICE_MAX;
    bool spread = false;
    struct engine_seg *seg = engine_find(e, op->parts[0].extent.segment);
    const struct engine_kind *k =
        seg != NULL ? engine_route_choose(e, seg, op->write, o->device, now_ms) : NULL;
    if (k != NULL && (k->flags & TRANSPORT_STREAMS) != 0 && e->config.streams > 1 &&
        e->config.stripe_min != 0 && o->length >= e->config.stripe_min) {
        uint64_t stripe =
            (o->length / e->config.streams + STRIPE_ALIGN) / STRIPE_ALIGN * STRIPE_ALIGN;
        max = min_u64(max, stripe);
        spread = true;
    }
    if (op->receipts != NULL) max = UINT64_MAX; /* a seal is the last word on its part */
    return plan_slices(r, o, max, spread && op->receipts == NULL);
}

/* --- merged ones ---
 *
 * Thousands of small operations cost their transport as many turns, frames and replies, which is
 * most of their time. Those of one length that go to one segment are one slice: a part and a CRC
 * for each. */

/* Is it small, plain and whole? What is wrong with it, if anything, run_plan says. */
static inline bool is_plain(const struct engine_run *r, const struct engine_op *op,
                            uint64_t now_ms) {
    if (op->n_parts != 1 || op->crcs != NULL || op->alone) return false;
    const struct engine_part *p = &op->parts[0];
    if (p->sub_length == 0 || p->sub_length > MERGE_BYTES / 2 || p->sub_offset > p->extent.length ||
        p->sub_length > p->extent.length - p->sub_offset)
        return false;
    if (op->lease_end_boot_ms != 0 && now_ms >= op->lease_end_boot_ms) return false;
    return iov_total(op->iov, op->n_iov) == p->sub_length && r->e->devices == 0;
}

static inline bool is_alike(const struct engine_op *a, const struct engine_op *b) {
    return a->write == b->write && a->want_crc == b->want_crc && a->patience_ms == b->patience_ms &&
           a->sole == b->sole && (a->receipts == NULL) == (b->receipts == NULL) &&
           (a->parts[0].grant == NULL) == (b->parts[0].grant == NULL) &&
           a->parts[0].sub_length == b->parts[0].sub_length &&
           a->parts[0].extent.segment == b->parts[0].extent.segment &&
           a->parts[0].extent.segment_epoch == b->parts[0].extent.segment_epoch;
}

/* NULL: not known, or not by a way for merged slices. Transports that want registered memory post
 * each part by itself anyway. */
static struct engine_seg *merging_segment(struct engine *e, const struct engine_op *op,
                                          uint64_t now_ms) {
    const struct grant_extent *x = &op->parts[0].extent;
    struct engine_seg *seg = engine_find(e, x->segment);
    if (seg == NULL || seg->epoch != x->segment_epoch) return NULL;
    const struct engine_kind *k = engine_route_choose(e, seg, op->write, NULL, now_ms);
    return k != NULL && (k->flags & TRANSPORT_REGISTERS) == 0 ? seg : NULL;
}

/* The i'th and those like it, in their order. */
static size_t find_alike(struct engine_run *r, size_t i, struct op_run *found[MERGE_OPS],
                         uint64_t now_ms) {
    const struct engine_op *op = r->ops[i].op;
    size_t n = 0, end = min_u64(r->n_ops, i + MERGE_LOOK);
    uint64_t max = min_u64(MERGE_OPS, MERGE_BYTES / op->parts[0].sub_length);
    for (; i < end && n < max; i++) {
        struct op_run *o = &r->ops[i];
        if (o->planned || o->op->n_parts != 1 || !is_alike(op, o->op) ||
            !is_plain(r, o->op, now_ms))
            continue;
        found[n++] = o;
    }
    return n;
}

static struct slice *slice_merge(struct engine_run *r, struct engine_seg *seg,
                                 struct op_run *const *found, size_t n) {
    const struct engine_op *first = found[0]->op;
    uint64_t length = first->parts[0].sub_length;
    struct slice *s = slice_create(r, found[0], seg, n);
    s->n_members = n;
    s->members = run_alloc(r, n * sizeof(struct op_run *));
    size_t n_iov = 0;
    for (size_t i = 0; i < n; i++) n_iov += found[i]->op->n_iov;
    struct iovec *iov = run_alloc(r, n_iov * sizeof(*iov));
    s->top.iov = iov;
    s->top.n_iov = n_iov;
    for (size_t i = 0; i < n; i++) {
        const struct engine_op *op = found[i]->op;
        part_add(s, &op->parts[0], 0, length);
        for (size_t k = 0; k < op->n_iov; k++) *iov++ = op->iov[k];
        found[i]->planned = true;
        found[i]->length = length;
        s->members[i] = found[i];
    }
    if (first->receipts != NULL) s->top.receipts = run_alloc(r, n * GRANT_RECEIPT_SIZE);
    if (first->want_crc) crcs_want(r, s, length, length, n);
    return s;
}

struct slice *run_plan_merged(struct engine_run *r, size_t i, uint64_t now_ms) {
    struct op_run *found[MERGE_OPS];
    const struct engine_op *op = r->ops[i].op;
    if (r->n_ops - i < 2 || !is_plain(r, op, now_ms)) return NULL;
    struct engine_seg *seg = merging_segment(r->e, op, now_ms);
    size_t n = seg != NULL ? find_alike(r, i, found, now_ms) : 0;
    return n > 1 ? slice_merge(r, seg, found, n) : NULL;
}
