/* Lines split in words as Redis' sdssplitargs does, for inline requests, configuration files and
 * command lines. */
#include "resp/line.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/hex.h"
#include "resp/resp.h"

/* s points at a backslash between double quotes. Returns what follows the escape. */
static const char *decode_escape(const char *s, const char *end, char *out) {
    if (s + 1 == end) {
        *out = '\\';
        return s + 1;
    }
    if (s[1] == 'x' && end - s >= 4 && hex_decode(span_of(s + 2, 2), out, 1)) return s + 4;
    switch (s[1]) {
    case 'n': *out = '\n'; break;
    case 'r': *out = '\r'; break;
    case 't': *out = '\t'; break;
    case 'b': *out = '\b'; break;
    case 'a': *out = '\a'; break;
    default: *out = s[1];
    }
    return s + 2;
}

/* The text between quotes; s points behind the opening one. NULL: no closing quote, or text glued
 * to it. */
static const char *decode_quoted(const char *s, const char *end, char quote, char **out_p) {
    char *out = *out_p;
    while (s < end && *s != quote) {
        if (*s == '\\' && quote == '"') {
            s = decode_escape(s, end, out++);
        } else if (*s == '\\' && s + 1 < end && s[1] == '\'') {
            *out++ = '\'';
            s += 2;
        } else {
            *out++ = *s++;
        }
    }
    *out_p = out;
    if (s == end) return NULL;
    s++;
    return s == end || line_is_blank(*s) ? s : NULL;
}

int line_next_word(const char **cursor_p, const char *end, struct buf *store) {
    const char *s = *cursor_p;
    while (s < end && line_is_blank(*s)) s++;
    if (s == end) return 0;
    TARN_ASSERT(store->cap - store->len >= (size_t)(end - s));
    char *out = store->data + store->len;
    while (s < end && !line_is_blank(*s)) {
        if (*s == '"' || *s == '\'') {
            s = decode_quoted(s + 1, end, *s, &out);
            if (s == NULL) return -1;
            break;
        }
        *out++ = *s++;
    }
    store->len = (size_t)(out - store->data);
    *cursor_p = s;
    return 1;
}

int resp_split_line(const char *line, size_t len, struct buf *store, struct span **argv_p,
                    size_t *argc_p) {
    size_t start = store->len, argc = 0, cap = 0;
    buf_reserve(store, len); /* now store->data stays where it is */
    struct span *argv = NULL;
    const char *cursor = line, *end = line + len;
    size_t at;
    int rc;
    while (at = store->len, (rc = line_next_word(&cursor, end, store)) > 0) {
        ARRAY_GROW(argv, argc, cap);
        argv[argc++] = span_of(store->data + at, store->len - at);
    }
    if (rc < 0) {
        store->len = start;
        free(argv);
        return -1;
    }
    *argv_p = argv;
    *argc_p = argc;
    return 0;
}
