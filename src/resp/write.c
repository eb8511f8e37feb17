/* The reply writer. Each form reserves once for the most it can need and writes in place. */
#include "resp/resp.h"

#include <math.h>
#include <stdio.h>

#include "base/assert.h"

/* Type byte, 20 digits with a sign, CRLF, and some. */
#define HEAD_MAX 32

static inline char *room_for(struct buf *out, size_t extra) {
    if (UNLIKELY(out->cap - out->len < extra)) buf_reserve(out, extra);
    return out->data + out->len;
}

static inline void wrote_upto(struct buf *out, const char *end) {
    out->len = (size_t)(end - out->data);
}

static inline char *put_crlf(char *s) {
    s[0] = '\r';
    s[1] = '\n';
    return s + 2;
}

static inline char *put_count(char *s, char type, uint64_t n) {
    *s++ = type;
    if (LIKELY(n < 10)) {
        *s++ = (char)('0' + n);
    } else {
        s += u64_to_dec(n, s);
    }
    return put_crlf(s);
}

static void write_count(struct buf *out, char type, uint64_t n) {
    wrote_upto(out, put_count(room_for(out, HEAD_MAX), type, n));
}

static void write_literal(struct buf *out, const char *s, size_t len) {
    memcpy(room_for(out, len), s, len);
    out->len += len;
}

/* A simple string or error ends at the first CR or LF: blanks take their place. */
static void write_line(struct buf *out, char type, const char *text) {
    size_t len = strlen(text);
    char *s = room_for(out, len + 3);
    *s++ = type;
    for (size_t i = 0; i < len; i++) *s++ = text[i] == '\r' || text[i] == '\n' ? ' ' : text[i];
    wrote_upto(out, put_crlf(s));
}

void resp_write_simple(struct buf *out, const char *s) {
    write_line(out, '+', s);
}

void resp_write_error(struct buf *out, const char *s) {
    write_line(out, '-', s);
}

void resp_write_int(struct buf *out, int64_t v) {
    char *s = room_for(out, HEAD_MAX);
    *s++ = ':';
    s += i64_to_dec(v, s);
    wrote_upto(out, put_crlf(s));
}

void resp_write_bulk(struct buf *out, const void *data, size_t len) {
    char *s = put_count(room_for(out, len + HEAD_MAX), '$', len);
    if (len != 0) memcpy(s, data, len);
    wrote_upto(out, put_crlf(s + len));
}

void resp_write_bulk_header(struct buf *out, size_t len) {
    write_count(out, '$', len);
}

void resp_write_null(struct buf *out, int proto) {
    if (proto >= 3)
        write_literal(out, "_\r\n", 3);
    else
        write_literal(out, "$-1\r\n", 5);
}

void resp_write_null_array(struct buf *out, int proto) {
    if (proto >= 3)
        write_literal(out, "_\r\n", 3);
    else
        write_literal(out, "*-1\r\n", 5);
}

void resp_write_array(struct buf *out, size_t n) {
    write_count(out, '*', n);
}

void resp_write_map(struct buf *out, int proto, size_t pairs) {
    write_count(out, proto >= 3 ? '%' : '*', proto >= 3 ? pairs : pairs * 2);
}

void resp_write_set(struct buf *out, int proto, size_t n) {
    write_count(out, proto >= 3 ? '~' : '*', n);
}

void resp_write_bool(struct buf *out, int proto, bool v) {
    if (proto >= 3)
        write_literal(out, v ? "#t\r\n" : "#f\r\n", 4);
    else
        write_literal(out, v ? ":1\r\n" : ":0\r\n", 4);
}

void resp_write_double(struct buf *out, int proto, double v) {
    char text[40];
    int len;
    if (isnan(v))
        len = snprintf(text, sizeof(text), "nan"); /* printf may add a sign */
    else
        len = snprintf(text, sizeof(text), "%.17g", v);
    if (proto < 3) {
        resp_write_bulk(out, text, (size_t)len);
        return;
    }
    char *s = room_for(out, (size_t)len + 3);
    *s++ = ',';
    memcpy(s, text, (size_t)len);
    wrote_upto(out, put_crlf(s + len));
}

void resp_write_verbatim(struct buf *out, int proto, const char *ext3, const void *data,
                         size_t len) {
    if (proto < 3) {
        resp_write_bulk(out, data, len);
        return;
    }
    TARN_ASSERT(strlen(ext3) == 3);
    char *s = put_count(room_for(out, len + 4 + HEAD_MAX), '=', len + 4);
    memcpy(s, ext3, 3);
    s[3] = ':';
    if (len != 0) memcpy(s + 4, data, len);
    wrote_upto(out, put_crlf(s + 4 + len));
}

void resp_write_push(struct buf *out, int proto, size_t n) {
    write_count(out, proto >= 3 ? '>' : '*', n);
}
