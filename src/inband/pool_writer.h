/* Writes one value into the embedded segment on behalf of an in-band command: walks the extents,
 * sums the CRCs on the way.
 *
 * A put may be superseded between two slices by another SET of the key. Being local, its space
 * stays its own until pool_writer_end or pool_writer_abort say that nobody writes there any
 * more. */
#ifndef TARN_INBAND_POOL_WRITER_H
#define TARN_INBAND_POOL_WRITER_H

#include <sys/uio.h>
#include "front/cmd.h"

struct pool_writer {
    uint64_t token, size, pos;
    uint32_t extent; /* being written, of the only replica */
    uint64_t extent_pos;
    uint32_t crc, block_crc; /* of all before the block that pos is in; of that block so far */
    uint32_t *crcs;          /* finished blocks, only for values of more than one */
    uint32_t extents;
    struct store_extent at[STORE_EXTENTS_MAX];
    char *memory[STORE_EXTENTS_MAX]; /* of these */
};

/* Options of a put whose writer is this process. */
struct store_put_options pool_writer_options(uint64_t expire_wall_ms);
/* The embedded segment first, where there is one. Not for values in the books. */
void pool_writer_prefer(struct store_put_options *options);
/* put is open and not inline. false: its space is not in the embedded segment. */
bool pool_writer_open(struct pool_writer *w, const struct store_put *put, uint64_t size);
/* The next len bytes of the value: copied, zeroes, or already in place (where pool_writer_next
 * said). */
void pool_writer_copy(struct pool_writer *w, const char *data, size_t len);
void pool_writer_zero(struct pool_writer *w, size_t len);
void pool_writer_filled(struct pool_writer *w,
                        size_t len); /* touches nothing but w and that memory: in any thread */
/* Where the bytes from pos on belong; how many pieces. */
size_t pool_writer_next(const struct pool_writer *w, struct iovec iov[STORE_EXTENTS_MAX]);
/* All was written: the object becomes visible. TARN_ETOKEN: the put was superseded or flushed
 * meanwhile. The writer is over whatever the answer. */
tarn_status pool_writer_end(struct pool_writer *w, struct span key);
void pool_writer_abort(struct pool_writer *w, struct span key);

/* The bytes [from, from + len) of a value, whole or in part: at most STORE_EXTENTS_MAX pieces,
 * valid as long as the object is there or held. 0: it has no replica in this process' memory. */
size_t pool_pieces(const struct object *o, uint64_t from, uint64_t len,
                   struct span pieces[STORE_EXTENTS_MAX]);

#endif
