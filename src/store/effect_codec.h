/* Bytes of effect records, for who writes and who reads them, here and in src/cluster.
 * Little-endian, like the machines we run on. */
#ifndef TARN_STORE_EFFECT_CODEC_H
#define TARN_STORE_EFFECT_CODEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "base/assert.h"
#include "base/buf.h"
#include "store/effect.h"

/* buf_append in line: a record has a dozen fields, and every change is one. */
static inline void put_bytes(struct buf *b, const void *data, size_t n) {
    if (UNLIKELY(b->cap - b->len < n)) buf_reserve(b, n);
    memcpy(b->data + b->len, data, n);
    b->len += n;
}
static inline void put_u8(struct buf *b, unsigned v) {
    char c = (char)v;
    put_bytes(b, &c, 1);
}
static inline void put_u32(struct buf *b, uint32_t v) {
    put_bytes(b, &v, sizeof(v));
}
static inline void put_u64(struct buf *b, uint64_t v) {
    put_bytes(b, &v, sizeof(v));
}
static inline void put_span(struct buf *b, struct span s) {
    put_u32(b, (uint32_t)s.len);
    if (s.len > 0) put_bytes(b, s.data, s.len);
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
/* 16 bytes that name something. */
static inline void put_id(struct buf *b, const uint8_t *id) {
    put_bytes(b, id, 16);
}
static inline const uint8_t *take_id(struct reader *r) {
    return (const uint8_t *)take_bytes(r, 16); /* NULL: bad */
}
static inline struct span take_span(struct reader *r) {
    uint32_t n = take_u32(r);
    const char *p = take_bytes(r, n);
    return span_of(p ? p : "", p ? n : 0);
}

/* --- records --- */

static inline struct reader record_reader(struct span record) {
    return (struct reader){record.data + 5, record.data + record.len, false};
}
static inline bool record_read(const struct reader *r) { /* all of it, and no more */
    return !r->bad && r->at == r->end;
}
static inline void record_begin(struct buf *b, unsigned kind) {
    buf_clear(b);
    put_u32(b, 0);
    put_u8(b, kind);
}
static inline void record_end(struct buf *b) {
    uint32_t len = (uint32_t)b->len - 4;
    memcpy(b->data, &len, 4);
}

/* A record that is a list of fields, X(type, name): a struct, and what writes and reads it. */
typedef unsigned codec_u8;
typedef uint32_t codec_u32;
typedef uint64_t codec_u64;
typedef struct span codec_span;
typedef const uint8_t *codec_id;
#define CODEC_MEMBER(type, name) codec_##type name;
#define CODEC_PUT(type, name)    put_##type(b, x->name);
#define CODEC_TAKE(type, name)   x->name = take_##type(r);
#define CODEC_RECORD(record, kind, FIELDS)                                                         \
    struct record {                                                                                \
        FIELDS(CODEC_MEMBER)                                                                       \
    };                                                                                             \
    static inline void put_##record(struct buf *b, const struct record *x) {                       \
        record_begin(b, kind);                                                                     \
        FIELDS(CODEC_PUT)                                                                          \
        record_end(b);                                                                             \
    }                                                                                              \
    static inline bool take_##record(struct reader *r, struct record *x) {                         \
        FIELDS(CODEC_TAKE)                                                                         \
        return record_read(r);                                                                     \
    }

/* --- of the books; EFFECT_OBJECT is in effect.c and follow.c --- */

/* Of an object. BOUNDARY: what stands for its group is one. */
enum { CODEC_INLINE = 1, CODEC_CRC = 2, CODEC_EXTRA = 4, CODEC_BOUNDARY = 8 };

#define GONE_FIELDS(X)  X(u64, version) X(span, key)
#define FLUSH_FIELDS(X) X(u64, version)
#define SEGMENT_FIELDS(X)                                                                          \
    X(u32, id) X(u32, epoch) X(u32, host) X(u8, tier) X(u8, state) X(u64, units) X(span, name)
#define SEGMENT_GONE_FIELDS(X) X(u32, id)
#define QUOTA_FIELDS(X)        X(u64, bytes) X(span, prefix)
#define SUPERSEDED_FIELDS(X)   X(u32, slot) X(u64, version)
#define LEASES_FIELDS(X)       X(u64, clock_id) X(u64, until_ms)
CODEC_RECORD(gone_record, EFFECT_GONE, GONE_FIELDS)
CODEC_RECORD(flush_record, EFFECT_FLUSH, FLUSH_FIELDS)
CODEC_RECORD(segment_record, EFFECT_SEGMENT, SEGMENT_FIELDS)
CODEC_RECORD(segment_gone_record, EFFECT_SEGMENT_GONE, SEGMENT_GONE_FIELDS)
CODEC_RECORD(quota_record, EFFECT_QUOTA, QUOTA_FIELDS)
CODEC_RECORD(superseded_record, EFFECT_SUPERSEDED, SUPERSEDED_FIELDS)
CODEC_RECORD(leases_record, EFFECT_LEASES, LEASES_FIELDS)

#endif
