/* Growable bytes, numbers and sizes in text, and the allocators that abort. */
#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/log.h"

/* --- memory --- */

static _Noreturn void out_of_memory(size_t size) {
    log_warning("out of memory allocating %zu bytes", size);
    abort();
}

void *xmalloc(size_t size) {
    void *p = malloc(size != 0 ? size : 1);
    if (UNLIKELY(p == NULL)) out_of_memory(size);
    return p;
}

void *xcalloc(size_t n, size_t size) {
    void *p = calloc(n != 0 ? n : 1, size != 0 ? size : 1);
    if (UNLIKELY(p == NULL)) out_of_memory(n * size);
    return p;
}

void *xrealloc(void *p, size_t size) {
    void *q = realloc(p, size != 0 ? size : 1);
    if (UNLIKELY(q == NULL)) out_of_memory(size);
    return q;
}

char *xstrdup(const char *s) {
    return s != NULL ? xmemdup(s, strlen(s) + 1) : NULL;
}

void *xmemdup(const void *p, size_t len) {
    void *q = xmalloc(len);
    if (len != 0) memcpy(q, p, len);
    return q;
}

/* --- spans and numbers --- */

/* A span without data is nothing that is known: an argument whose bytes were not taken. */

int span_case_eq(struct span a, const char *literal) {
    if (a.data == NULL && a.len > 0) return 0;
    for (size_t i = 0; i < a.len; i++) {
        /* A NUL in a meets the literal's end at the latest, where both would match. */
        char want = literal[i];
        if (want == '\0') return 0;
        if (a.data[i] != want && ascii_lower(a.data[i]) != ascii_lower(want)) return 0;
    }
    return literal[a.len] == '\0';
}

char *span_dup(struct span s) {
    char *text = xmalloc(s.len + 1);
    if (s.len > 0) memcpy(text, s.data, s.len);
    text[s.len] = '\0';
    return text;
}

/* All of s must be digits. Leading zeroes are the caller's matter. */
static int parse_digits(struct span s, uint64_t *value_p) {
    if (s.len == 0) return 0;
    uint64_t v = 0;
    size_t i = 0;
    for (; i < s.len && i < 19; i++) { /* so many cannot overflow */
        unsigned d = (unsigned char)s.data[i] - '0';
        if (d > 9) return 0;
        v = v * 10 + d;
    }
    for (; i < s.len; i++) {
        unsigned d = (unsigned char)s.data[i] - '0';
        if (d > 9) return 0;
        if (__builtin_mul_overflow(v, (uint64_t)10, &v) ||
            __builtin_add_overflow(v, (uint64_t)d, &v))
            return 0;
    }
    *value_p = v;
    return 1;
}

int span_to_u64(struct span s, uint64_t *value_p) {
    if (s.data == NULL) return 0;
    if (s.len > 1 && s.data[0] == '0') return 0;
    return parse_digits(s, value_p);
}

int span_to_any_i64(struct span s, int64_t *value_p) {
    uint64_t v;
    if (s.data == NULL) return 0;
    if (s.len > 0 && s.data[0] == '-') {
        if (s.len < 2 || s.data[1] == '0' || !span_to_u64(span_of(s.data + 1, s.len - 1), &v))
            return 0;
        if (v > (uint64_t)INT64_MAX + 1) return 0;
        *value_p = (int64_t)(0 - v);
        return 1;
    }
    if (!span_to_u64(s, &v) || v > INT64_MAX) return 0;
    *value_p = (int64_t)v;
    return 1;
}

int span_to_address(struct span s, struct span *host_p, uint16_t *port_p) {
    const char *colon = s.len > 0 ? memrchr(s.data, ':', s.len) : NULL;
    uint64_t port = 0;
    /* of several without brackets none begins a port */
    bool ends = colon != NULL && (memchr(s.data, ':', s.len) == colon || colon[-1] == ']');
    if (ends) {
        size_t len = (size_t)(colon - s.data);
        if (!span_to_u64(span_of(colon + 1, s.len - len - 1), &port) || port == 0 || port > 65535)
            return 0;
        s.len = len;
    }
    if (s.len > 1 && s.data[0] == '[' && s.data[s.len - 1] == ']')
        s = span_of(s.data + 1, s.len - 2);
    if (s.len == 0 || memchr(s.data, '\0', s.len) != NULL) return 0;
    *host_p = s;
    *port_p = (uint16_t)port;
    return 1;
}

int span_is_name(struct span s, size_t max) {
    if (s.len == 0 || s.len > max) return 0;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.data[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && c != '.' && c != '_' && c != '-') return 0;
    }
    return 1;
}

size_t span_utf8_len(struct span s) {
    static const struct {
        uint8_t first, last, low, high; /* of the first byte; of the second */
        size_t len;
    } forms[] = {{0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
                 {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3},
                 {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
                 {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
    const uint8_t *b = (const uint8_t *)s.data;
    if (s.len == 0) return 0;
    if (b[0] < 0x80) return 1;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        if (b[0] < forms[i].first || b[0] > forms[i].last) continue;
        if (s.len < forms[i].len || b[1] < forms[i].low || b[1] > forms[i].high) return 0;
        for (size_t k = 2; k < forms[i].len; k++)
            if (b[k] < 0x80 || b[k] > 0xbf) return 0;
        return forms[i].len;
    }
    return 0;
}

int span_is_utf8(struct span s) {
    for (size_t at = 0, len; at < s.len; at += len) {
        len = span_utf8_len(span_of(s.data + at, s.len - at));
        if (len == 0) return 0;
    }
    return 1;
}

int span_to_bytes(struct span s, uint64_t *value_p) {
    static const struct {
        const char *name;
        uint64_t factor;
    } units[] = {
        {"", 1},
        {"b", 1},
        {"k", 1000},
        {"kb", 1u << 10},
        {"m", 1000 * 1000},
        {"mb", 1u << 20},
        {"g", 1000u * 1000 * 1000},
        {"gb", 1u << 30},
        {"t", UINT64_C(1000) * 1000 * 1000 * 1000},
        {"tb", UINT64_C(1) << 40},
    };
    size_t digits = 0;
    if (s.data == NULL) return 0;
    while (digits < s.len && s.data[digits] >= '0' && s.data[digits] <= '9') digits++;
    uint64_t v;
    if (!parse_digits(span_of(s.data, digits), &v)) return 0;
    struct span unit = span_of(s.data + digits, s.len - digits);
    for (size_t i = 0; i < ARRAY_LEN(units); i++) {
        if (!span_case_eq(unit, units[i].name)) continue;
        if (__builtin_mul_overflow(v, units[i].factor, &v)) return 0;
        *value_p = v;
        return 1;
    }
    return 0;
}

/* By 1233 / 4096, which is close enough to log10(2) for 64 bits. */
static size_t dec_digits(uint64_t v) {
    static const uint64_t powers[] = {
        1,
        10,
        100,
        1000,
        10000,
        100000,
        1000000,
        10000000,
        100000000,
        1000000000,
        10000000000,
        100000000000,
        1000000000000,
        10000000000000,
        100000000000000,
        1000000000000000,
        10000000000000000,
        100000000000000000,
        1000000000000000000,
        10000000000000000000u,
    };
    unsigned bits = 64u - (unsigned)__builtin_clzll(v | 1), at_least = bits * 1233 >> 12;
    return at_least + (v >= powers[at_least]);
}

size_t u64_to_dec(uint64_t v, char *out) {
    static const char pairs[] =
        "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142"
        "43444546474849505152535455565758596061626364656667686970717273747576777879808182838485"
        "8687888990919293949596979899";
    if (v < 10) {
        out[0] = (char)('0' + v);
        return 1;
    }
    size_t len = dec_digits(v), at = len;
    for (; v >= 100; v /= 100) memcpy(out + (at -= 2), pairs + v % 100 * 2, 2);
    if (v >= 10)
        memcpy(out, pairs + v * 2, 2);
    else
        out[0] = (char)('0' + v);
    return len;
}

void u64_to_hex(uint64_t v, unsigned digits, char *out) {
    for (; digits >= 8; digits -= 8, v >>= 32) {
        /* a byte for each digit, the lowest first; those above 9 carry into their upper half */
        uint64_t x = v & 0xffffffff;
        x = (x << 16 | x) & 0x0000ffff0000ffff;
        x = (x << 8 | x) & 0x00ff00ff00ff00ff;
        x = (x << 4 | x) & 0x0f0f0f0f0f0f0f0f;
        uint64_t letters = (x + 0x0606060606060606) >> 4 & 0x0101010101010101;
        x = __builtin_bswap64(x + 0x3030303030303030 + letters * ('a' - '0' - 10));
        memcpy(out + digits - 8, &x, 8);
    }
    for (unsigned i = digits; i > 0; i--, v >>= 4) out[i - 1] = "0123456789abcdef"[v & 15];
}

size_t i64_to_dec(int64_t v, char *out) {
    if (v >= 0) return u64_to_dec((uint64_t)v, out);
    *out = '-';
    return 1 + u64_to_dec(0 - (uint64_t)v, out + 1);
}

/* --- buf --- */

void buf_reserve(struct buf *b, size_t extra) {
    if (LIKELY(b->cap - b->len >= extra)) return;
    size_t need;
    if (__builtin_add_overflow(b->len, extra, &need)) out_of_memory(SIZE_MAX);
    /* Doubling while small, half as much again later: a buffer of gigabytes should not ask for
     * twice of that.
     */
    size_t grown = b->cap < (64u << 20) ? b->cap * 2 : b->cap + b->cap / 2;
    size_t cap = grown > need ? grown : need;
    if (cap < 64) cap = 64;
    b->data = xrealloc(b->data, cap);
    b->cap = cap;
}

void buf_append(struct buf *b, const void *data, size_t len) {
    if (len == 0) return;
    buf_reserve(b, len);
    memcpy(b->data + b->len, data, len);
    b->len += len;
}

void buf_append_str(struct buf *b, const char *s) {
    buf_append(b, s, strlen(s));
}

void buf_append_char(struct buf *b, char c) {
    buf_reserve(b, 1);
    b->data[b->len++] = c;
}

void buf_printf(struct buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(b, fmt, ap);
    va_end(ap);
}

void buf_vprintf(struct buf *b, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    buf_reserve(b, 64);
    int n = vsnprintf(b->data + b->len, b->cap - b->len, fmt, ap);
    TARN_ASSERT(n >= 0);
    if ((size_t)n >= b->cap - b->len) {
        buf_reserve(b, (size_t)n + 1);
        vsnprintf(b->data + b->len, b->cap - b->len, fmt, again);
    }
    va_end(again);
    b->len += (size_t)n;
}

void buf_consume(struct buf *b, size_t n) {
    TARN_ASSERT(n <= b->len);
    b->len -= n;
    if (b->len != 0 && n != 0) memmove(b->data, b->data + n, b->len);
}

void buf_clear(struct buf *b) {
    b->len = 0;
}

void buf_free(struct buf *b) {
    free(b->data);
    *b = (struct buf){0};
}

void buf_append_quoted(struct buf *b, struct span s) {
    buf_reserve(b, s.len + 2);
    buf_append_char(b, '"');
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.data[i];
        switch (c) {
        case '\\':
        case '"':
            buf_append_char(b, '\\');
            buf_append_char(b, (char)c);
            break;
        case '\n': buf_append(b, "\\n", 2); break;
        case '\r': buf_append(b, "\\r", 2); break;
        case '\t': buf_append(b, "\\t", 2); break;
        case '\a': buf_append(b, "\\a", 2); break;
        case '\b': buf_append(b, "\\b", 2); break;
        default:
            if (c >= 0x20 && c < 0x7f) {
                buf_append_char(b, (char)c);
            } else {
                char esc[4] = "\\x";
                u64_to_hex(c, 2, esc + 2);
                buf_append(b, esc, sizeof(esc));
            }
        }
    }
    buf_append_char(b, '"');
}
