/* For mutations of input. */
#ifndef TARN_TESTS_BUF_SPLICE_H
#define TARN_TESTS_BUF_SPLICE_H

#include <string.h>

#include "base/buf.h"

/* Puts len bytes into the place of `gone` bytes at `at`. data is not in b. */
static inline void buf_splice(struct buf *b, size_t at, size_t gone, const void *data, size_t len) {
    size_t rest = b->len - at - gone;
    buf_reserve(b, len);
    memmove(b->data + at + len, b->data + at + gone, rest);
    memcpy(b->data + at, data, len);
    b->len = at + len + rest;
}

#endif
