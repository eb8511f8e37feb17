/* Walks an operation's bytes and fills op->crcs as they pass, in whatever pieces they pass. Lives
 * in op->scratch while a transport has the operation. */
#ifndef TARN_TRANSPORT_CRC_TRACK_H
#define TARN_TRANSPORT_CRC_TRACK_H

#include <string.h>

#include "base/assert.h"
#include "base/crc32c.h"
#include "transport/transport.h"

struct crc_track {
    uint64_t left; /* bytes until the current CRC ends */
    uint64_t index;
    bool past;        /* copies go past the cache */
    const void *next; /* of such copies, as crc32c_copy_past has it */
};

static inline void crc_track_init(struct crc_track *t, const struct transport_op *op) {
    *t = (struct crc_track){.left = op->crc_block == 0  ? UINT64_MAX
                                    : op->crc_first > 0 ? op->crc_first
                                                        : op->crc_block};
    if (op->crcs != NULL) op->crcs[0] = 0;
}

/* dst NULL: only look at src. Else copy src there, too. */
static inline void crc_track_feed(struct crc_track *t, const struct transport_op *op, void *dst,
                                  const void *src, size_t len) {
    const char *from = src;
    char *to = dst;
    while (len > 0) {
        if (t->left ==
            0) { /* here, not at the end of a block: the last block may end with the operation */
            op->crcs[++t->index] = 0;
            t->left = op->crc_block;
        }
        size_t n = (size_t)min_u64(len, t->left);
        uint32_t *crc = &op->crcs[t->index];
        if (to != NULL) {
            *crc = t->past ? crc32c_copy_past(*crc, to, from, n, t->next)
                           : crc32c_copy(*crc, to, from, n);
            to += n;
        } else {
            *crc = crc32c(*crc, from, n);
        }
        from += n;
        len -= n;
        t->left -= n;
    }
}

#endif
