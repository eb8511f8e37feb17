#include "inband/pool_writer.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/crc32c.h"
#include "inband/remote.h"
#include "store/effect.h"
#include "front/embedded.h"

struct store_put_options pool_writer_options(uint64_t expire_wall_ms) {
    return (struct store_put_options){.replicas = 1,
                                      .host = 0,
                                      .expire_wall_ms = expire_wall_ms,
                                      .replace = true,
                                      .supersede = true,
                                      .local = true};
}

void pool_writer_prefer(struct store_put_options *options) {
    static const struct span local = {"local", 5};
    options->prefer = &local;
    options->prefers = embedded.host != NULL && store_segment_count(books) > 1;
}

bool pool_writer_open(struct pool_writer *w, const struct store_put *put, uint64_t size) {
    struct store_layout layout;
    store_put_layout(books, put, &layout);
    TARN_ASSERT(layout.replicas >= 1 && layout.replica[0].extents >= 1);
    if (!replica_is_local(&layout.replica[0])) return false;
    *w = (struct pool_writer){
        .token = store_put_token(put), .size = size, .extents = layout.replica[0].extents};
    memcpy(w->at, layout.replica[0].extent, w->extents * sizeof(w->at[0]));
    for (uint32_t i = 0; i < w->extents; i++) w->memory[i] = extent_memory(&w->at[i]);
    if (size > STORE_CRC_BLOCK)
        w->crcs = xmalloc((size + STORE_CRC_BLOCK - 1) / STORE_CRC_BLOCK * sizeof(uint32_t));
    return true;
}

/* The memory of the next bytes: up to max of them, not beyond an extent or a block of the CRCs. */
static size_t run_at(const struct pool_writer *w, size_t max, char **memory_p) {
    TARN_ASSERT(w->extent < w->extents);
    *memory_p = w->memory[w->extent] + w->extent_pos;
    uint64_t block_left = STORE_CRC_BLOCK - w->pos % STORE_CRC_BLOCK;
    return min_u64(max, min_u64(w->at[w->extent].length - w->extent_pos, block_left));
}

static void block_done(struct pool_writer *w) {
    uint64_t length = (w->pos - 1) % STORE_CRC_BLOCK + 1;
    if (w->crcs) w->crcs[(w->pos - 1) / STORE_CRC_BLOCK] = w->block_crc;
    w->crc =
        w->pos <= STORE_CRC_BLOCK ? w->block_crc : crc32c_combine(w->crc, w->block_crc, length);
    w->block_crc = 0;
}

static void advance(struct pool_writer *w, size_t len) {
    w->pos += len;
    w->extent_pos += len;
    if (w->extent_pos == w->at[w->extent].length) {
        w->extent++;
        w->extent_pos = 0;
    }
    if (w->pos == w->size || w->pos % STORE_CRC_BLOCK == 0) block_done(w);
}

void pool_writer_copy(struct pool_writer *w, const char *data, size_t len) {
    while (len > 0) {
        char *memory;
        size_t n = run_at(w, len, &memory);
        w->block_crc = crc32c_copy(w->block_crc, memory, data, n);
        advance(w, n);
        data += n;
        len -= n;
    }
}

void pool_writer_zero(struct pool_writer *w, size_t len) {
    while (len > 0) {
        char *memory;
        size_t n = run_at(w, len, &memory);
        memset(memory, 0, n);
        w->block_crc = crc32c(w->block_crc, memory, n);
        advance(w, n);
        len -= n;
    }
}

void pool_writer_filled(struct pool_writer *w, size_t len) {
    while (len > 0) {
        char *memory;
        size_t n = run_at(w, len, &memory);
        w->block_crc = crc32c(w->block_crc, memory, n);
        advance(w, n);
        len -= n;
    }
}

size_t pool_writer_next(const struct pool_writer *w, struct iovec iov[STORE_EXTENTS_MAX]) {
    size_t n = 0;
    uint64_t skip = w->extent_pos;
    for (uint32_t i = w->extent; i < w->extents; i++, skip = 0)
        iov[n++] = (struct iovec){w->memory[i] + skip, w->at[i].length - skip};
    return n;
}

tarn_status pool_writer_end(struct pool_writer *w, struct span key) {
    TARN_ASSERT(w->pos == w->size);
    size_t blocks = w->crcs ? (w->size + STORE_CRC_BLOCK - 1) / STORE_CRC_BLOCK : 0;
    tarn_status status = store_put_end(books, key, w->token, w->crc, 0, w->crcs, blocks, NULL);
    if (status == TARN_OK) {
        free(w->crcs);
        w->crcs = NULL;
        return TARN_OK;
    }
    pool_writer_abort(w, key); /* for want of a record the put may still be open */
    return status == TARN_EBUSY ? TARN_ETOKEN : status;
}

void pool_writer_abort(struct pool_writer *w, struct span key) {
    store_put_revoke(books, key, w->token);
    free(w->crcs);
    w->crcs = NULL;
}

/* Bytes that an earlier process left are not handed out unseen; its objects all have CRCs. */
static bool is_right(const struct object *o, const struct store_replica *r, const char *memory) {
    uint32_t want, crc = 0;
    if (!store_object_suspect(books, o) || !store_object_crc(o, &want)) return true;
    for (uint32_t i = 0; i < r->extents; i++)
        crc = crc32c(crc, memory + r->extent[i].offset, r->extent[i].length);
    return crc == want;
}

size_t pool_pieces(const struct object *o, uint64_t from, uint64_t len,
                   struct span pieces[STORE_EXTENTS_MAX]) {
    struct span value;
    if (store_object_inline(o, &value)) {
        pieces[0] = span_of(value.data + from, len);
        return 1;
    }
    struct store_layout layout;
    store_object_layout(books, o, &layout);
    const struct store_replica *r = layout.replica, *end = r + layout.replicas;
    const char *memory = NULL;
    while (r < end && (memory = replica_memory(r)) == NULL) r++;
    if (memory == NULL || !is_right(o, r, memory)) return 0;
    size_t n = 0;
    for (uint32_t i = 0; i < r->extents && len > 0; i++) {
        const struct store_extent *x = &r->extent[i];
        if (from >= x->length) {
            from -= x->length;
            continue;
        }
        uint64_t take = min_u64(len, x->length - from);
        pieces[n++] = span_of(memory + x->offset + from, take);
        len -= take;
        from = 0;
    }
    return n;
}
