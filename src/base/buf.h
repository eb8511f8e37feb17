/* A growable byte buffer. Zero-initialised is empty and valid. */
#ifndef TARN_BASE_BUF_H
#define TARN_BASE_BUF_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct buf {
    char *data; /* NULL while cap is 0 */
    size_t len; /* bytes in use */
    size_t cap; /* bytes allocated */
};

/* A borrowed run of bytes; data may hold any byte and has no terminator. */
struct span {
    const char *data;
    size_t len;
};
#define SPAN(lit) ((struct span){(lit), sizeof(lit) - 1})
static inline struct span span_of(const void *data, size_t len) {
    return (struct span){(const char *)data, len};
}
static inline struct span span_str(const char *s) {
    return (struct span){s, strlen(s)};
}
static inline int span_eq(struct span a, struct span b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}
static inline int span_starts(struct span a, struct span prefix) {
    return a.len >= prefix.len && memcmp(a.data, prefix.data, prefix.len) == 0;
}
/* Nothing but zeroes? */
static inline int span_is_zero(struct span s) {
    return s.len == 0 || (s.data[0] == 0 && memcmp(s.data, s.data + 1, s.len - 1) == 0);
}
/* Of ASCII letters, whatever the locale. */
static inline char ascii_lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}
/* ASCII case-insensitive comparison with a literal; the C locale, always. */
int span_case_eq(struct span a, const char *literal);
/* Its bytes, terminated. For free(). */
char *span_dup(struct span s);
/* Likewise into out, as many as fit; cap is at least 1. */
static inline void span_to_text(struct span s, char *out, size_t cap) {
    size_t n = s.len < cap ? s.len : cap - 1;
    if (n > 0) memcpy(out, s.data, n);
    out[n] = '\0';
}
/* Strict decimal integers as Redis reads them: no blanks, no plus, no leading zeroes ("0" itself
 * aside). 0 on failure. */
int span_to_u64(struct span s, uint64_t *value_p);
int span_to_any_i64(struct span s, int64_t *value_p);
/* That, without a call for most: not so many digits that they could overflow, and no minus. */
static inline int span_to_i64(struct span s, int64_t *value_p) {
    int64_t v = 0;
    if (s.len - 1 >= 18 || s.data == NULL) return span_to_any_i64(s, value_p);
    for (size_t i = 0; i < s.len; i++) {
        uint64_t d = (uint64_t)(unsigned char)s.data[i] - '0';
        if (d > 9) return span_to_any_i64(s, value_p);
        v = v * 10 + (int64_t)d;
    }
    if (s.data[0] == '0' && s.len > 1) return 0;
    *value_p = v;
    return 1;
}
/* "1gb" 2^30, "1g" 10^9, "4k", "4kb", "512": sizes as redis.conf writes them, case-insensitive. 0
 * on failure. */
int span_to_bytes(struct span s, uint64_t *value_p);
/* "host", "host:port", "[v6]", "[v6]:port", "v6": the host without brackets, and the port, 0 where
 * there is none. 0: no host, or no number from 1 to 65535. */
int span_to_address(struct span s, struct span *host_p, uint16_t *port_p);
/* 1 to max of A-Z a-z 0-9 . _ - */
int span_is_name(struct span s, size_t max);
/* Of how many bytes the UTF-8 character that s begins with is; 0: it is none (RFC 3629: no overlong
 * forms, no surrogates), or s is empty. A zero byte is a character. */
size_t span_utf8_len(struct span s);
/* Nothing but these? */
int span_is_utf8(struct span s);

/* All of these abort the process when memory is gone, as jemalloc's callers in Redis do. Bound
 * lengths before. */
void buf_reserve(struct buf *b, size_t extra);
void buf_append(struct buf *b, const void *data, size_t len);
void buf_append_str(struct buf *b, const char *s);
void buf_append_char(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vprintf(struct buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
/* Drops the first n bytes and moves the rest down. */
void buf_consume(struct buf *b, size_t n);
void buf_clear(struct buf *b); /* len = 0, keeps memory */
void buf_free(struct buf *b);  /* back to zero-initialised */
/* Appends s quoted and escaped as redis-cli and MONITOR do: "a\x00\n\"". */
void buf_append_quoted(struct buf *b, struct span s);
/* Decimal digits of v into out (at least 21 bytes), returns the length; no terminator. */
size_t u64_to_dec(uint64_t v, char *out);
size_t i64_to_dec(int64_t v, char *out);
/* The lowest hex digits of v; no terminator. */
void u64_to_hex(uint64_t v, unsigned digits, char *out);

/* malloc and friends that never return NULL. */
void *xmalloc(size_t size);
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t size);
char *xstrdup(const char *s); /* NULL of NULL */
void *xmemdup(const void *p, size_t len);

/* Room for one element more in an array of cap elements that has n. */
#define ARRAY_GROW(array, n, cap)                                                                  \
    do {                                                                                           \
        if ((n) == (cap)) {                                                                        \
            (cap) = (cap) == 0 ? 4 : 2 * (cap);                                                    \
            (array) = xrealloc((array), (cap) * sizeof(*(array)));                                 \
        }                                                                                          \
    } while (0)

#endif
