/* What every transport does with its operations and fences. For implementers of transports; all in
 * this header, for a module has nothing else of this room. */
#ifndef TARN_TRANSPORT_OP_H
#define TARN_TRANSPORT_OP_H

#include "transport/crc_track.h"
#include "transport/transport.h"

STAILQ_HEAD(op_queue, transport_op);

/* A transport's own state of an operation, which lies in its scratch. */
#define OP_STATE(type, op)                                                                         \
    ({                                                                                             \
        _Static_assert(sizeof(type) <= sizeof((op)->scratch), "op scratch");                       \
        (type *)(void *)(op)->scratch;                                                             \
    })

static inline uint64_t op_bytes(const struct transport_op *op) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < op->n_parts; i++) bytes += op->parts[i].sub_length;
    return bytes;
}

/* Are its parts ranges of their extents, and is there as much memory as there are bytes? */
static inline bool op_is_sound(const struct transport_op *op) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < op->n_parts; i++) {
        const struct transport_part *p = &op->parts[i];
        if (p->sub_offset > p->extent.length || p->sub_length > p->extent.length - p->sub_offset)
            return false;
        bytes += p->sub_length;
    }
    return bytes == iov_total(op->iov, op->n_iov);
}

/* What there is to do with an operation, part by part and piece by piece. */
struct op_walk {
    size_t part;
    uint64_t offset; /* in the part's sub-range */
    struct iov_cursor local;
};

/* The part that the walk is in. NULL: it is at the end. */
static inline const struct transport_part *op_part(const struct transport_op *op,
                                                   struct op_walk *w) {
    while (w->part < op->n_parts && w->offset == op->parts[w->part].sub_length) {
        w->part++;
        w->offset = 0;
    }
    return w->part < op->n_parts ? &op->parts[w->part] : NULL;
}

static inline void op_end(struct transport_op *op, tarn_status status, bool settled) {
    op->status = status;
    op->settled = settled;
    op->done(op);
}

#endif
