#include "base/iov.h"

#include <string.h>

size_t iov_gather(struct iov_cursor c, uint64_t len, struct iovec *out, size_t max) {
    size_t n = 0;
    for (struct iovec v; n < max && len > 0 && (v = iov_here(&c)).iov_len > 0; n++) {
        v.iov_len = min_u64(v.iov_len, len);
        if (out != NULL) out[n] = v;
        c.offset += v.iov_len;
        len -= v.iov_len;
    }
    return n;
}

/* One of from and to is NULL. */
static size_t iov_copy(struct iov_cursor *c, const char *from, char *to, size_t len) {
    size_t done = 0;
    for (struct iovec v; done < len && (v = iov_here(c)).iov_len > 0;) {
        size_t k = min_u64(v.iov_len, len - done);
        if (to != NULL)
            memcpy(to + done, v.iov_base, k);
        else
            memcpy(v.iov_base, from + done, k);
        c->offset += k;
        done += k;
    }
    return done;
}

size_t iov_copy_in(struct iov_cursor *c, const void *from, size_t len) {
    return iov_copy(c, from, NULL, len);
}

size_t iov_copy_out(struct iov_cursor *c, void *to, size_t len) {
    return iov_copy(c, NULL, to, len);
}

struct iovec iov_take_together(struct iov_cursor *c, void *room, size_t size, size_t max) {
    struct iovec v = iov_here(c);
    if (v.iov_len < size && c->n > 1) return (struct iovec){room, iov_copy_out(c, room, size)};
    v.iov_len = min_u64(v.iov_len, max);
    c->offset += v.iov_len;
    return v;
}

size_t iov_slice(const struct iovec *iov, size_t n, uint64_t from, uint64_t len,
                 struct iovec *out) {
    struct iov_cursor c = iov_cursor(iov, n);
    iov_advance(&c, from);
    return iov_gather(c, len, out, n);
}
