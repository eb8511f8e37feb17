/* Scattered memory: arrays of struct iovec, and a cursor over one. */
#ifndef TARN_BASE_IOV_H
#define TARN_BASE_IOV_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/assert.h"

struct iov_cursor {
    const struct iovec *iov; /* the piece that it is in */
    size_t n;                /* pieces from there on */
    size_t offset;           /* bytes of the first that are behind it */
};

static inline struct iov_cursor iov_cursor(const struct iovec *iov, size_t n) {
    return (struct iov_cursor){.iov = iov, .n = n};
}

/* What lies together from here on: of length 0 at the end only. */
static inline struct iovec iov_here(struct iov_cursor *c) {
    while (c->n > 0 && c->offset == c->iov->iov_len) {
        c->iov++;
        c->n--;
        c->offset = 0;
    }
    if (c->n == 0) return (struct iovec){NULL, 0};
    return (struct iovec){(char *)c->iov->iov_base + c->offset, c->iov->iov_len - c->offset};
}

/* By len bytes; there are so many. */
static inline void iov_advance(struct iov_cursor *c, uint64_t len) {
    while (len > 0) {
        size_t k = min_u64(len, iov_here(c).iov_len);
        TARN_ASSERT(k > 0);
        c->offset += k;
        len -= k;
    }
}

/* The pieces of the next len bytes, or of those there are, at most max; out NULL: only how many
 * that would be. The cursor stays. */
size_t iov_gather(struct iov_cursor c, uint64_t len, struct iovec *out, size_t max);

/* Copy len bytes, or those there are, and advance by them. Return how many. */
size_t iov_copy_in(struct iov_cursor *c, const void *from, size_t len);
size_t iov_copy_out(struct iov_cursor *c, void *to, size_t len);

/* The next bytes as one run, and past them: where they lie, at most max, if `size` of them lie
 * together or all that are left; else up to `size` of them, copied to room. Length 0: the end. */
struct iovec iov_take_together(struct iov_cursor *c, void *room, size_t size, size_t max);

/* UINT64_MAX where it is more than that. */
static inline uint64_t iov_total(const struct iovec *iov, size_t n) {
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        if (__builtin_add_overflow(total, iov[i].iov_len, &total)) return UINT64_MAX;
    return total;
}
/* The pieces of [from, from + len) go to out (room for n); returns how many. */
size_t iov_slice(const struct iovec *iov, size_t n, uint64_t from, uint64_t len, struct iovec *out);

#endif
