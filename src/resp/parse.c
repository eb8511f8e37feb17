/* The request parser.
 *
 *                   '*' line            '$' line          bytes and CRLF
 *   between requests --> header awaited -------> bulk awaited --------> header awaited ... request
 *                                                   \
 *                                                    `--> RESP_BIG, in_big
 *                                                          --resp_parser_big_done--> header awaited
 *
 * The usual case is a request that is in the buffer from end to end: one pass, digits read by hand,
 * no state kept. Only when the bytes run out are the arguments so far turned into offsets, each
 * once, because the buffer may move before the next call. */
#include "resp/resp.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "resp/line.h"

/* What a connection keeps between requests. */
#define ARGV_KEEP   1024
#define INLINE_KEEP 4096

static enum resp_result parse_fail(struct resp_parser *p, const char *text) {
    resp_parser_reset(p);
    snprintf(p->error, sizeof(p->error), "Protocol error: %s", text);
    return RESP_ERROR;
}

static enum resp_result parse_fail_not_bulk(struct resp_parser *p, char got) {
    char text[40];
    unsigned char c = (unsigned char)got;
    snprintf(text, sizeof(text),
             c >= 0x20 && c < 0x7f ? "expected '$', got '%c'" : "expected '$', got '\\x%02x'", c);
    return parse_fail(p, text);
}

static void grow_argv(struct resp_parser *p) {
    p->argv_cap = p->argv_cap == 0 ? 16 : p->argv_cap * 2;
    p->argv = xrealloc(p->argv, p->argv_cap * sizeof(*p->argv));
    if (p->offsets != NULL) p->offsets = xrealloc(p->offsets, p->argv_cap * sizeof(*p->offsets));
}

static void drop_giant(struct resp_parser *p) {
    if (UNLIKELY(p->argv_cap > ARGV_KEEP)) {
        free(p->argv);
        free(p->offsets);
        p->argv = NULL;
        p->offsets = NULL;
        p->argv_cap = 0;
    }
    if (UNLIKELY(p->inline_copy.cap > INLINE_KEEP)) buf_free(&p->inline_copy);
}

/* Arguments [from, argc) point into data; remember where, for data may move. */
static void keep_offsets(struct resp_parser *p, const char *data, size_t from) {
    if (from == p->argc) return;
    if (p->offsets == NULL) p->offsets = xmalloc(p->argv_cap * sizeof(*p->offsets));
    for (size_t i = from; i < p->argc; i++) p->offsets[i] = (size_t)(p->argv[i].data - data);
}

/* The other way round, for those that earlier calls found. */
static void restore_pointers(struct resp_parser *p, const char *data, size_t upto) {
    for (size_t i = p->absolute; i < upto; i++) p->argv[i].data = data + p->offsets[i];
}

static inline bool is_crlf(const char *s) {
    return memcmp(s, "\r\n", 2) == 0;
}

/* Of up to nine digits. */
static const char *read_long_count(const char *s, const char *end, size_t *count_p) {
    if (end - s < 3) return NULL;
    unsigned v = (unsigned char)s[0] - '0';
    if (v > 9) return NULL;
    const char *first = s++;
    for (;;) {
        unsigned d = (unsigned char)*s - '0';
        if (d > 9) break;
        v = v * 10 + d;
        if (++s == end || s - first > 9 || *first == '0') return NULL;
    }
    if (end - s < 2 || !is_crlf(s)) return NULL;
    *count_p = v;
    return s + 2;
}

/* Of one or two, as nearly all counts and lengths are; there are four bytes at s. */
static inline const char *read_short_count(const char *s, size_t *count_p) {
    size_t a = (size_t)(unsigned char)s[0] - '0', b = (size_t)(unsigned char)s[1] - '0';
    if (LIKELY(a <= 9 && is_crlf(s + 1))) {
        *count_p = a;
        return s + 3;
    }
    if (a - 1 <= 8 && b <= 9 && is_crlf(s + 2)) {
        *count_p = a * 10 + b;
        return s + 4;
    }
    return NULL;
}

/* Reads "digits\r\n" at s. NULL: it is not whole, or not that plain. */
static inline const char *read_count(const char *s, const char *end, size_t *count_p) {
    const char *next = LIKELY(end - s >= 4) ? read_short_count(s, count_p) : NULL;
    return LIKELY(next != NULL) ? next : read_long_count(s, end, count_p);
}

#define ARG_MIN 6 /* "$0\r\n\r\n" */

/* A whole argument of a short length, and what follows it. NULL: it is not that plain. */
static inline const char *read_short_arg(const char *s, const char *end, struct span *arg_p) {
    if (UNLIKELY(end - s < ARG_MIN || *s != '$')) return NULL;
    size_t len;
    const char *body = read_short_count(s + 1, &len);
    if (UNLIKELY(body == NULL || (size_t)(end - body) < len + 2 || !is_crlf(body + len)))
        return NULL;
    *arg_p = span_of(body, len);
    return body + len + 2;
}

enum line_state { LINE_WHOLE, LINE_MORE, LINE_TOO_LONG, LINE_NO_LF };

/* The line at s of a buffer that ends at end, up to its CR. */
static enum line_state find_header_line(struct resp_parser *p, const char *s, const char *end,
                                        size_t max, struct span *line_p) {
    size_t avail = (size_t)(end - s);
    size_t from = p->searched < avail ? p->searched : avail;
    const char *cr = from == avail ? NULL : memchr(s + from, '\r', avail - from);
    size_t len = cr == NULL ? avail : (size_t)(cr - s);
    if (len > max) return LINE_TOO_LONG;
    p->searched = len;
    if (cr == NULL || cr + 1 == end) return LINE_MORE;
    p->searched = 0;
    if (cr[1] != '\n') return LINE_NO_LF;
    *line_p = span_of(s, len);
    return LINE_WHOLE;
}

/* "*n" in its rarer forms. */
static __attribute__((noinline)) enum resp_result
read_any_multibulk_header(struct resp_parser *p, const struct resp_limits *limits, const char *data,
                          const char *end) {
    size_t count;
    const char *next = read_count(data + 1, end, &count);
    if (LIKELY(next != NULL)) {
        p->searched = 0;
    } else {
        struct span line;
        int64_t n;
        switch (find_header_line(p, data, end, limits->max_inline, &line)) {
        case LINE_MORE: return RESP_MORE;
        case LINE_TOO_LONG: return parse_fail(p, "too big mbulk count string");
        case LINE_NO_LF: return parse_fail(p, "invalid multibulk length");
        case LINE_WHOLE: break;
        }
        if (!span_to_i64(span_of(line.data + 1, line.len - 1), &n) || n > INT_MAX)
            return parse_fail(p, "invalid multibulk length");
        count = n < 0 ? 0 : (size_t)n;
        next = line.data + line.len + 2;
    }
    if (UNLIKELY(count > limits->max_args))
        return parse_fail(p, limits->unauthenticated ? "unauthenticated multibulk length"
                                                     : "invalid multibulk length");
    p->remaining = (int64_t)count;
    p->pos = (size_t)(next - data);
    return RESP_REQUEST;
}

/* Sets remaining, and pos to what follows the line, and returns RESP_REQUEST. */
static inline enum resp_result read_multibulk_header(struct resp_parser *p,
                                                     const struct resp_limits *limits,
                                                     const char *data, const char *end) {
    size_t count;
    const char *next = LIKELY(end - data > 4) ? read_short_count(data + 1, &count) : NULL;
    if (UNLIKELY(next == NULL || count > limits->max_args))
        return read_any_multibulk_header(p, limits, data, end);
    p->searched = 0;
    p->remaining = (int64_t)count;
    p->pos = (size_t)(next - data);
    return RESP_REQUEST;
}

/* "$n" in its rarer forms: what follows it is *next_p. */
static enum resp_result read_bulk_header(struct resp_parser *p, const struct resp_limits *limits,
                                         const char *s, const char *end, size_t *len_p,
                                         const char **next_p) {
    struct span line;
    int64_t n;
    switch (find_header_line(p, s, end, limits->max_inline, &line)) {
    case LINE_MORE: return RESP_MORE;
    case LINE_TOO_LONG: return parse_fail(p, "too big bulk count string");
    case LINE_NO_LF: return parse_fail(p, "invalid bulk length");
    case LINE_WHOLE: break;
    }
    if (!span_to_i64(span_of(line.data + 1, line.len - 1), &n) || n < 0)
        return parse_fail(p, "invalid bulk length");
    *len_p = (size_t)n;
    *next_p = line.data + line.len + 2;
    return RESP_REQUEST;
}

static enum resp_result parse_finish(struct resp_parser *p, size_t used, size_t *used_p) {
    p->pos = p->searched = p->absolute = 0;
    p->remaining = 0;
    *used_p = used;
    return RESP_REQUEST;
}

/* s: what follows the last one. */
static inline enum resp_result parse_args_end(struct resp_parser *p, size_t argc, const char *data,
                                              const char *s, size_t found_before, size_t *used_p) {
    p->argc = argc;
    if (UNLIKELY(found_before > 0)) restore_pointers(p, data, found_before);
    return parse_finish(p, (size_t)(s - data), used_p);
}

static enum resp_result parse_begin_big(struct resp_parser *p, size_t len, size_t used,
                                        size_t *used_p) {
    p->in_big = true;
    p->big_index = p->argc;
    p->big_len = len;
    if (p->argc == p->argv_cap) grow_argv(p);
    if (p->offsets == NULL) p->offsets = xmalloc(p->argv_cap * sizeof(*p->offsets));
    /* SIZE_MAX will tell those that the caller rescued with resp_parser_set_arg. */
    for (size_t i = p->absolute; i < p->argc; i++) p->offsets[i] = 0;
    p->argv[p->big_index] = (struct span){NULL, 0}; /* not what an earlier request left there */
    *used_p = used;
    return RESP_BIG;
}

/* Arguments from data + pos on, of which earlier calls found so many. */
static __attribute__((noinline)) enum resp_result
parse_any_args(struct resp_parser *p, const struct resp_limits *limits, const char *data,
               const char *end, size_t found_before, size_t *used_p) {
    size_t argc = p->argc;
    int64_t remaining = p->remaining;
    const char *s = data + p->pos;
    while (remaining > 0) {
        size_t len = 0;
        if (LIKELY(p->bulk_len < 0)) {
            if (s == end) goto more;
            if (UNLIKELY(*s != '$')) return parse_fail_not_bulk(p, *s);
            const char *body = read_count(s + 1, end, &len);
            if (UNLIKELY(body == NULL)) {
                enum resp_result r = read_bulk_header(p, limits, s, end, &len, &body);
                if (r == RESP_MORE) goto more;
                if (r != RESP_REQUEST) return r;
            }
            s = body;
            p->searched = 0;
            if (UNLIKELY(len > limits->max_bulk))
                return parse_fail(p, limits->unauthenticated ? "unauthenticated bulk length"
                                                             : "invalid bulk length");
            if (UNLIKELY(len >= limits->big_min)) {
                p->argc = argc;
                p->remaining = remaining;
                restore_pointers(p, data, found_before);
                return parse_begin_big(p, len, (size_t)(s - data), used_p);
            }
        } else {
            len = (size_t)p->bulk_len;
        }
        if (UNLIKELY((size_t)(end - s) < len + 2)) {
            p->bulk_len = (int64_t)len;
            goto more;
        }
        p->bulk_len = -1;
        /* Redis skips two bytes here whatever they are; a length that is off would then pass for a
         * request.
         */
        if (UNLIKELY(!is_crlf(s + len))) return parse_fail(p, "invalid bulk length");
        if (UNLIKELY(argc == p->argv_cap)) grow_argv(p);
        p->argv[argc++] = span_of(s, len);
        s += len + 2;
        remaining--;
    }
    return parse_args_end(p, argc, data, s, found_before, used_p);
more:
    p->argc = argc;
    p->remaining = remaining;
    p->pos = (size_t)(s - data);
    keep_offsets(p, data, found_before);
    return RESP_MORE;
}

/* The same. Nearly all requests are whole and have short arguments. */
static inline enum resp_result parse_args(struct resp_parser *p, const struct resp_limits *limits,
                                          const char *data, const char *end, size_t *used_p) {
    size_t found_before = p->argc, argc = found_before;
    /* in the middle of one: none */
    size_t below = p->bulk_len < 0 ? min_u64(limits->max_bulk, limits->big_min) : 0;
    struct span *argv = p->argv;
    int64_t remaining = p->remaining;
    const char *s = data + p->pos;
    for (; remaining > 0; remaining--) {
        struct span arg;
        const char *next = read_short_arg(s, end, &arg);
        if (UNLIKELY(next == NULL || arg.len >= below)) break;
        if (UNLIKELY(argc == p->argv_cap)) {
            grow_argv(p);
            argv = p->argv;
        }
        argv[argc++] = arg;
        s = next;
    }
    if (LIKELY(remaining == 0)) return parse_args_end(p, argc, data, s, found_before, used_p);
    if (argc > found_before) p->searched = 0;
    p->argc = argc;
    p->remaining = remaining;
    p->pos = (size_t)(s - data);
    return parse_any_args(p, limits, data, end, found_before, used_p);
}

static __attribute__((noinline)) enum resp_result parse_inline(struct resp_parser *p,
                                                               const struct resp_limits *limits,
                                                               const char *data, size_t len,
                                                               size_t *used_p) {
    size_t from = p->searched < len ? p->searched : len;
    const char *lf = from == len ? NULL : memchr(data + from, '\n', len - from);
    size_t line_len = lf == NULL ? len : (size_t)(lf - data);
    /* Redis looks for the line's end with strchr, so a NUL stalls it until the line is too long.
     * Say so at once. */
    size_t scan = line_len > limits->max_inline ? limits->max_inline + 1 : line_len;
    if (from < scan && memchr(data + from, '\0', scan - from) != NULL)
        return parse_fail(p, "NUL in inline request");
    if (line_len > limits->max_inline) return parse_fail(p, "too big inline request");
    if (lf == NULL) {
        p->searched = len;
        return RESP_MORE;
    }
    const char *s = data, *end = lf;
    if (end > s && end[-1] == '\r') end--;
    struct buf *copy = &p->inline_copy;
    buf_clear(copy);
    buf_reserve(copy, line_len); /* copy->data stays where it is from now on */
    int rc;
    size_t at;
    while (at = copy->len, (rc = line_next_word(&s, end, copy)) > 0) {
        if (p->argc == p->argv_cap) grow_argv(p);
        p->argv[p->argc++] = span_of(copy->data + at, copy->len - at);
    }
    if (rc < 0) return parse_fail(p, "unbalanced quotes in request");
    return parse_finish(p, line_len + 1, used_p);
}

enum resp_result resp_parse(struct resp_parser *p, const struct resp_limits *limits,
                            const char *data, size_t len, size_t *used_p) {
    TARN_ASSERT(!p->in_big);
    *used_p = 0;
    if (p->remaining == 0 && p->absolute > 0)
        return parse_finish(p, 0, used_p); /* the last argument was a big one */
    if (UNLIKELY(len == 0)) return RESP_MORE;
    const char *end = data + len;
    if (p->remaining == 0) {
        if (p->searched == 0) {
            drop_giant(p);
            p->argc = 0;
        }
        if (UNLIKELY(*data != '*')) return parse_inline(p, limits, data, len, used_p);
        enum resp_result r = read_multibulk_header(p, limits, data, end);
        if (r != RESP_REQUEST) return r;
        p->bulk_len = -1;
    }
    TARN_ASSERT(p->pos <= len);
    return parse_args(p, limits, data, end, used_p);
}

#define GUESS_ARGS 16u

struct span resp_first_of_size(struct span in, size_t min, size_t max) {
    const char *s = in.data, *end = in.data + in.len;
    size_t least = ARG_MIN + min;
    for (unsigned i = 0; i < GUESS_ARGS && (size_t)(end - s) >= least; i++) {
        char kind = *s;
        size_t n;
        if ((kind != '*' && kind != '$') || (s = read_count(s + 1, end, &n)) == NULL) break;
        if (kind == '*') continue;
        if ((size_t)(end - s) < n + 2) break;
        if (n >= min && n <= max) return span_of(s, n);
        s += n + 2;
    }
    return span_of(NULL, 0);
}

void resp_parser_set_arg(struct resp_parser *p, size_t index, struct span value) {
    size_t known = p->in_big ? p->big_index : p->absolute;
    TARN_ASSERT(index < known);
    p->argv[index] = value;
    if (index >= p->absolute) p->offsets[index] = SIZE_MAX;
}

void resp_parser_big_done(struct resp_parser *p, struct span value) {
    TARN_ASSERT(p->in_big);
    for (size_t i = p->absolute; i < p->big_index; i++) {
        if (p->offsets[i] != SIZE_MAX) p->argv[i] = (struct span){NULL, 0};
    }
    p->argv[p->big_index] = value;
    p->argc = p->absolute = p->big_index + 1;
    p->in_big = false;
    p->bulk_len = -1;
    p->pos = p->searched = 0;
    p->remaining--;
}

size_t resp_parser_settle(struct resp_parser *p, const char *data) {
    TARN_ASSERT(!p->in_big);
    /* an inline request, or the line that says how many there are */
    if (p->remaining == 0) return 0;
    restore_pointers(p, data, p->argc);
    for (; p->absolute < p->argc; p->absolute++) p->offsets[p->absolute] = SIZE_MAX;
    size_t taken = p->pos;
    p->pos = 0;
    return taken;
}

void resp_parser_reset(struct resp_parser *p) {
    p->argc = 0;
    p->remaining = 0;
    p->bulk_len = -1;
    p->pos = p->searched = p->absolute = 0;
    p->in_big = false;
    drop_giant(p);
}

void resp_parser_free(struct resp_parser *p) {
    free(p->argv);
    free(p->offsets);
    buf_free(&p->inline_copy);
    *p = (struct resp_parser){0};
}
