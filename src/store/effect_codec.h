/* Bytes of effect records, for who writes and who reads them, here and in src/cluster.
 * Little-endian, like the machines we run on. */
#ifndef TARN_STORE_EFFECT_CODEC_H
#define TARN_STORE_EFFECT_CODEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "base/buf.h"

enum { CODEC_INLINE = 1, CODEC_CRC = 2, CODEC_EXTRA = 4 }; /* of an object */

static inline void put_u8(struct buf *b, unsigned v) {
    buf_append_char(b, (char)v);
}
static inline void put_u32(struct buf *b, uint32_t v) {
    buf_append(b, &v, sizeof(v));
}
static inline void put_u64(struct buf *b, uint64_t v) {
    buf_append(b, &v, sizeof(v));
}
static inline void put_span(struct buf *b, struct span s) {
    put_u32(b, (uint32_t)s.len);
    if (s.len > 0) buf_append(b, s.data, s.len);
}

/* What is left to read. bad: something was asked for that is not there; everything that is read
 * from then on is 0 or empty. */
struct reader {
    const char *at, *end;
    bool bad;
};

static inline const char *take_bytes(struct reader *r, size_t n) {
    if (r->bad || (size_t)(r->end - r->at) < n) {
        r->bad = true;
        return NULL;
    }
    const char *p = r->at;
    r->at += n;
    return p;
}
static inline uint8_t take_u8(struct reader *r) {
    const char *p = take_bytes(r, 1);
    return p ? (uint8_t)*p : 0;
}
static inline uint32_t take_u32(struct reader *r) {
    uint32_t v = 0;
    const char *p = take_bytes(r, sizeof(v));
    if (p) memcpy(&v, p, sizeof(v));
    return v;
}
static inline uint64_t take_u64(struct reader *r) {
    uint64_t v = 0;
    const char *p = take_bytes(r, sizeof(v));
    if (p) memcpy(&v, p, sizeof(v));
    return v;
}
static inline struct span take_span(struct reader *r) {
    uint32_t n = take_u32(r);
    const char *p = take_bytes(r, n);
    return span_of(p ? p : "", p ? n : 0);
}

#endif
