#include "inband/own_memory.h"

#include "base/assert.h"
#include "base/crc32c.h"
#include "base/iov.h"
#include "front/embedded.h"
#include "host/host.h"
#include "store/effect.h"

static char *replica_base(const struct store_replica *r) {
    if (embedded.host == NULL || r->tier != STORE_TIER_MEMORY || r->extents == 0) return NULL;
    return host_segment_base(embedded.host, r->extent[0].segment);
}

bool replica_is_local(const struct store_replica *r) {
    return replica_base(r) != NULL;
}

size_t replica_pieces(const struct store_replica *r, uint64_t from, uint64_t len,
                      struct iovec out[STORE_EXTENTS_MAX]) {
    struct iovec all[STORE_EXTENTS_MAX];
    char *base = replica_base(r);
    TARN_ASSERT(base);
    for (uint32_t i = 0; i < r->extents; i++)
        all[i] = (struct iovec){base + r->extent[i].offset, r->extent[i].length};
    return iov_slice(all, r->extents, from, len, out);
}

/* Bytes that an earlier process left are not handed out unseen; its objects all have CRCs. */
static bool is_as_put(const struct object *o, const struct store_replica *r) {
    struct iovec piece[STORE_EXTENTS_MAX];
    uint32_t want, crc = 0;
    if (!store_object_suspect(books, o) || !store_object_crc(o, &want)) return true;
    size_t n = replica_pieces(r, 0, store_object_size(books, o), piece);
    for (size_t i = 0; i < n; i++) crc = crc32c(crc, piece[i].iov_base, piece[i].iov_len);
    return crc == want;
}

size_t pool_pieces(const struct object *o, uint64_t from, uint64_t len,
                   struct span pieces[STORE_EXTENTS_MAX]) {
    struct span value;
    struct iovec iov[STORE_EXTENTS_MAX];
    if (store_object_inline(o, &value)) {
        pieces[0] = span_of(value.data + from, len);
        return 1;
    }
    struct store_layout layout;
    store_object_layout(books, o, &layout);
    const struct store_replica *r = layout.replica, *end = r + layout.replicas;
    while (r < end && !replica_is_local(r)) r++;
    if (r == end || !is_as_put(o, r)) return 0;
    size_t n = replica_pieces(r, from, len, iov);
    for (size_t i = 0; i < n; i++) pieces[i] = span_of(iov[i].iov_base, iov[i].iov_len);
    return n;
}
