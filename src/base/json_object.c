#include "base/json_object.h"

#include <ctype.h>
#include <endian.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

#define DEPTH_MAX 16

struct cursor {
    const char *at, *end;
    const char *error;
    const struct json_field *field; /* that was being read when the error was found */
};

static bool json_broken(struct cursor *c, const char *why) {
    if (c->error == NULL) c->error = why;
    return false;
}

static inline bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void skip_blanks(struct cursor *c) {
    while (c->at < c->end && is_blank(*c->at)) c->at++;
}

static bool json_take(struct cursor *c, char want) {
    skip_blanks(c);
    if (c->at == c->end || *c->at != want) return false;
    c->at++;
    return true;
}

/* What follows a backslash, up to its last character. */
static bool escape_skip(struct cursor *c) {
    if (c->at == c->end || *c->at == '\0' || strchr("\"\\/bfnrtu", *c->at) == NULL) return false;
    if (*c->at != 'u') return true;
    for (unsigned i = 0; i < 4; i++)
        if (++c->at == c->end || !isxdigit((unsigned char)*c->at)) return false;
    return true;
}

/* A string without its quotes; escapes are checked, not decoded. */
static bool take_string(struct cursor *c, struct span *s) {
    if (!json_take(c, '"')) return json_broken(c, "a string is missing");
    const char *start = c->at;
    for (; c->at < c->end && *c->at != '"'; c->at++) {
        if ((unsigned char)*c->at < 0x20) return json_broken(c, "a control character in a string");
        if (*c->at != '\\') continue;
        c->at++;
        if (!escape_skip(c)) return json_broken(c, "a bad escape");
    }
    if (c->at == c->end) return json_broken(c, "a string does not end");
    *s = span_of(start, (size_t)(c->at - start));
    c->at++;
    return true;
}

static size_t skip_digits(struct cursor *c) {
    const char *start = c->at;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') c->at++;
    return (size_t)(c->at - start);
}

static bool skip_number(struct cursor *c) {
    if (c->at < c->end && *c->at == '-') c->at++;
    const char *start = c->at;
    size_t n = skip_digits(c);
    if (n == 0 || (n > 1 && *start == '0')) return json_broken(c, "a bad number");
    if (c->at < c->end && *c->at == '.') {
        c->at++;
        if (skip_digits(c) == 0) return json_broken(c, "a bad number");
    }
    if (c->at < c->end && (*c->at == 'e' || *c->at == 'E')) {
        c->at++;
        if (c->at < c->end && (*c->at == '+' || *c->at == '-')) c->at++;
        if (skip_digits(c) == 0) return json_broken(c, "a bad number");
    }
    return true;
}

/* Its whole part; a fraction is checked and left. Of an exponent nothing is made: no trace has one
 * there. */
static bool take_digits(struct cursor *c, uint64_t max, uint64_t *v) {
    const char *start = c->at;
    size_t n = skip_digits(c);
    if (!span_to_u64(span_of(start, n), v)) return json_broken(c, "a number from 0 on is missing");
    if (max > 0 && *v > max) return json_broken(c, "the number is too large");
    if (c->at == c->end || (*c->at != '.' && *c->at != 'e' && *c->at != 'E')) return true;
    c->at = start;
    if (!skip_number(c)) return false;
    struct span text = span_of(start, (size_t)(c->at - start));
    if (memchr(text.data, 'e', text.len) != NULL || memchr(text.data, 'E', text.len) != NULL)
        return json_broken(c, "a number with an exponent");
    return true;
}

static bool take_u64(struct cursor *c, uint64_t max, uint64_t *v) {
    skip_blanks(c);
    return take_digits(c, max, v);
}

static bool take_i64(struct cursor *c, uint64_t max, int64_t *v) {
    skip_blanks(c);
    bool minus = c->at < c->end && *c->at == '-';
    if (minus) c->at++;
    uint64_t size;
    if (max == 0 || max > INT64_MAX) max = INT64_MAX;
    if (!take_digits(c, max, &size)) return false;
    *v = minus ? -(int64_t)size : (int64_t)size;
    return true;
}

/* 61.114 is 61114. */
static bool take_seconds(struct cursor *c, uint64_t max, uint64_t *ms_p) {
    uint64_t whole, ms = 0;
    skip_blanks(c);
    const char *start = c->at;
    if (!take_digits(c, max / 1000, &whole)) return false;
    const char *end = c->at, *dot = memchr(start, '.', (size_t)(end - start));
    for (unsigned i = 0, unit = 100; dot != NULL && i < 3; i++, unit /= 10)
        if (dot + 1 + i < end) ms += (uint64_t)(dot[1 + i] - '0') * unit;
    *ms_p = whole * 1000 + ms;
    return true;
}

static bool skip_value(struct cursor *c, unsigned depth);

static bool skip_members(struct cursor *c, char close, bool named, unsigned depth) {
    if (json_take(c, close)) return true;
    do {
        struct span name;
        if (named && !take_string(c, &name)) return false;
        if (named && !json_take(c, ':')) return json_broken(c, "a colon is missing");
        if (!skip_value(c, depth)) return false;
    } while (json_take(c, ','));
    return json_take(c, close) || json_broken(c, "a bracket or comma is missing");
}

static bool skip_value(struct cursor *c, unsigned depth) {
    static const char *const words[] = {"true", "false", "null"};
    if (depth == DEPTH_MAX) return json_broken(c, "nested too deeply");
    skip_blanks(c);
    struct span ignored;
    if (c->at == c->end) return json_broken(c, "a value is missing");
    if (*c->at == '"') return take_string(c, &ignored);
    if (*c->at == '{' || *c->at == '[') {
        bool named = *c->at++ == '{';
        return skip_members(c, named ? '}' : ']', named, depth + 1);
    }
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        size_t len = strlen(words[i]);
        if ((size_t)(c->end - c->at) < len || memcmp(c->at, words[i], len) != 0) continue;
        c->at += len;
        return true;
    }
    return skip_number(c);
}

/* Without a fraction. size: what it is without its sign. */
static bool take_whole(struct cursor *c, uint64_t max, uint64_t *size) {
    const char *start = c->at;
    if (!take_digits(c, max, size)) return false;
    if (memchr(start, '.', (size_t)(c->at - start)) != NULL)
        return json_broken(c, "a number with a fraction");
    return true;
}

static bool take_whole_signed(struct cursor *c, uint64_t max, uint64_t *v) {
    skip_blanks(c);
    bool minus = max == 0 && c->at < c->end && *c->at == '-';
    if (minus) c->at++;
    if (!take_whole(c, minus ? (uint64_t)INT64_MAX + 1 : max, v)) return false;
    if (minus) *v = 0 - *v;
    return true;
}

/* The number that text begins with, if it has 1 to 7 digits; *len_p: how many, else 0. All of them
 * at once: how many there are is nothing that a branch can foresee. */
static inline uint64_t digits_of(const char text[8], size_t *len_p) {
    uint64_t b;
    memcpy(&b, text, sizeof(b));
    b = le64toh(b) ^ 0x3030303030303030;
    uint64_t others = (b | (b + 0x7676767676767676)) & 0x8080808080808080; /* above 9 */
    *len_p = others == 0 ? 0 : (size_t)__builtin_ctzll(others) / 8;
    if (*len_p == 0) return 0;
    b <<= 64 - 8 * *len_p;
    b = (10 * b + (b >> 8)) & 0x00ff00ff00ff00ff;
    b = (100 * b + (b >> 16)) & 0x0000ffff0000ffff;
    return (10000 * b + (b >> 32)) & 0xffffffff;
}

/* Of a long list nearly all are a few digits and a comma: takes those that are, as far as there is
 * room. Who follows is no such one, or the last, and is not looked at. */
static void take_plain(struct cursor *c, const struct json_field *f) {
    const struct json_u64s *to = f->to;
    uint64_t *v = *to->v;
    size_t n = *to->n, end = min_u64(*to->cap, to->max), len;
    for (const char *p = c->at; n < end; c->at = p, n++) {
        while (p < c->end && is_blank(*p)) p++;
        if (c->end - p < 8) break;
        uint64_t id = digits_of(p, &len);
        if (len == 0 || p[len] != ',' || (*p == '0' && len > 1)) break;
        if (f->max > 0 && id > f->max) break;
        v[n] = id;
        p += len + 1;
    }
    *to->n = n;
}

static bool take_list(struct cursor *c, const struct json_field *f) {
    const struct json_u64s *to = f->to;
    if (!json_take(c, '[')) return json_broken(c, "no array");
    if (json_take(c, ']')) return true;
    do {
        uint64_t id;
        take_plain(c, f);
        bool ok =
            f->kind == JSON_WHOLES ? take_whole_signed(c, f->max, &id) : take_u64(c, f->max, &id);
        if (!ok) return false;
        if (*to->n >= to->max) return json_broken(c, "too many numbers");
        ARRAY_GROW(*to->v, *to->n, *to->cap);
        (*to->v)[(*to->n)++] = id;
    } while (json_take(c, ','));
    return json_take(c, ']') || json_broken(c, "the array does not end");
}

static unsigned hex4(const char *p) {
    unsigned v = 0;
    for (unsigned i = 0; i < 4; i++) {
        char d = ascii_lower(p[i]);
        v = 16 * v + (unsigned)(d <= '9' ? d - '0' : d - 'a' + 10);
    }
    return v;
}

static size_t utf8_put(uint32_t code, char out[4]) {
    if (code < 0x80) return out[0] = (char)code, 1;
    unsigned more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    out[0] = (char)(0xff00 >> (more + 1) | code >> 6 * more);
    for (unsigned i = 1; i <= more; i++) out[i] = (char)(0x80 | (code >> 6 * (more - i) & 0x3f));
    return 1 + more;
}

/* The character that \uXXXX, or two of these, stand for; *p_p is behind the u, and goes behind the
 * last digit. 0: it is none, or zero. */
static uint32_t take_unicode(const char **p_p, const char *end) {
    const char *p = *p_p;
    uint32_t code = hex4(p);
    *p_p = p + 4;
    if (code < 0xd800 || code > 0xdfff) return code;
    if (code > 0xdbff || end - p < 10 || p[4] != '\\' || p[5] != 'u') return 0;
    uint32_t low = hex4(p + 6);
    if (low < 0xdc00 || low > 0xdfff) return 0;
    *p_p = p + 10;
    return 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
}

static bool take_text(struct cursor *c, struct json_text *t) {
    static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    struct span s;
    skip_blanks(c);
    if (!take_string(c, &s)) return false;
    if (!span_is_utf8(s)) return json_broken(c, "no character");
    t->len = 0;
    for (const char *p = s.data, *end = s.data + s.len; p < end;) {
        char bytes[4] = {*p++};
        size_t n = 1;
        if (bytes[0] == '\\' && *p == 'u') {
            p++;
            uint32_t code = take_unicode(&p, end);
            if (code == 0) return json_broken(c, "no character");
            n = utf8_put(code, bytes);
        } else if (bytes[0] == '\\') {
            bytes[0] = meant[strchr(escapes, *p++) - escapes];
        }
        if (t->cap - t->len < n) return json_broken(c, "it is too long");
        memcpy(t->to + t->len, bytes, n);
        t->len += n;
    }
    return true;
}

static bool take_null(struct cursor *c) {
    static const char null[] = "null";
    skip_blanks(c);
    size_t len = sizeof(null) - 1;
    if ((size_t)(c->end - c->at) < len || memcmp(c->at, null, len) != 0) return false;
    c->at += len;
    return true;
}

static bool take_field(struct cursor *c, struct json_field *f) {
    c->field = f;
    if (f->seen) return json_broken(c, "it is there twice");
    if (f->optional && take_null(c)) {
        c->field = NULL;
        return true;
    }
    f->seen = true;
    bool ok = false;
    switch (f->kind) {
    case JSON_U64: ok = take_u64(c, f->max, f->to); break;
    case JSON_I64: ok = take_i64(c, f->max, f->to); break;
    case JSON_SECONDS: ok = take_seconds(c, f->max > 0 ? f->max : UINT64_MAX, f->to); break;
    case JSON_U64S:
    case JSON_WHOLES: ok = take_list(c, f); break;
    case JSON_WHOLE:
        skip_blanks(c);
        ok = take_whole(c, f->max, f->to);
        break;
    case JSON_TEXT: ok = take_text(c, f->to); break;
    }
    if (ok) c->field = NULL;
    return ok;
}

static bool take_member(struct cursor *c, struct json_field *fields, size_t n) {
    struct span name;
    if (!take_string(c, &name)) return false;
    if (!json_take(c, ':')) return json_broken(c, "a colon is missing");
    for (size_t i = 0; i < n; i++)
        if (span_eq(name, span_str(fields[i].name))) return take_field(c, &fields[i]);
    return skip_value(c, 0);
}

static bool take_object(struct cursor *c, struct json_field *fields, size_t n) {
    if (!json_take(c, '{')) return json_broken(c, "it is no object");
    if (!json_take(c, '}')) {
        do {
            if (!take_member(c, fields, n)) return false;
        } while (json_take(c, ','));
        if (!json_take(c, '}')) return json_broken(c, "the object does not end");
    }
    skip_blanks(c);
    if (c->at != c->end) return json_broken(c, "something follows the object");
    for (size_t i = 0; i < n; i++) {
        if (fields[i].seen || fields[i].optional) continue;
        c->field = &fields[i];
        return json_broken(c, "it is missing");
    }
    return true;
}

const char *json_object_read(struct span text, struct json_field *fields, size_t n,
                             char error[JSON_ERROR_SIZE]) {
    struct cursor c = {text.data, text.data + text.len, NULL, NULL};
    size_t before = 0;
    const struct json_u64s *list = NULL;
    for (size_t i = 0; i < n; i++) {
        fields[i].seen = false;
        if (fields[i].kind == JSON_U64S || fields[i].kind == JSON_WHOLES) list = fields[i].to;
    }
    if (list != NULL) before = *list->n;
    if (take_object(&c, fields, n)) return NULL;
    if (list != NULL) *list->n = before;
    if (c.field == NULL) return c.error;
    snprintf(error, JSON_ERROR_SIZE, "%s: %s", c.field->name, c.error);
    return error;
}
