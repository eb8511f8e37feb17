/* A strict reader of trace lines: JSON as RFC 8259 has it, of which only two fields matter. */
#include "benchmark/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "benchmark/bench.h"

#define DEPTH_MAX 16

struct cursor {
    const char *at, *end;
    const char *error;
};

static bool json_broken(struct cursor *c, const char *why) {
    if (c->error == NULL) c->error = why;
    return false;
}

static void skip_blanks(struct cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\r' || *c->at == '\n'))
        c->at++;
}

static bool json_take(struct cursor *c, char want) {
    skip_blanks(c);
    if (c->at == c->end || *c->at != want) return false;
    c->at++;
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
        if (c->at == c->end || strchr("\"\\/bfnrtu", *c->at) == NULL || *c->at == '\0')
            return json_broken(c, "a bad escape");
    }
    if (c->at == c->end) return json_broken(c, "a string does not end");
    *s = span_of(start, (size_t)(c->at - start));
    c->at++;
    return true;
}

static size_t digits(struct cursor *c) {
    const char *start = c->at;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') c->at++;
    return (size_t)(c->at - start);
}

static bool skip_number(struct cursor *c) {
    if (c->at < c->end && *c->at == '-') c->at++;
    const char *start = c->at;
    size_t n = digits(c);
    if (n == 0 || (n > 1 && *start == '0')) return json_broken(c, "a bad number");
    if (c->at < c->end && *c->at == '.') {
        c->at++;
        if (digits(c) == 0) return json_broken(c, "a bad number");
    }
    if (c->at < c->end && (*c->at == 'e' || *c->at == 'E')) {
        c->at++;
        if (c->at < c->end && (*c->at == '+' || *c->at == '-')) c->at++;
        if (digits(c) == 0) return json_broken(c, "a bad number");
    }
    return true;
}

/* A whole number from 0 on; a fraction (time stamps have them in some traces) is cut off. */
static bool take_u64(struct cursor *c, uint64_t *v) {
    skip_blanks(c);
    const char *start = c->at;
    size_t n = digits(c);
    if (!span_to_u64(span_of(start, n), v)) return json_broken(c, "a number from 0 on is missing");
    c->at = start;
    return skip_number(c);
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

static bool take_ids(struct cursor *c, struct trace *t, struct trace_request *r) {
    r->first = t->n_ids;
    if (!json_take(c, '[')) return json_broken(c, "hash_ids is no array");
    if (json_take(c, ']')) return true;
    do {
        uint64_t id;
        if (!take_u64(c, &id)) return false;
        ARRAY_GROW(t->ids, t->n_ids, t->cap_ids);
        t->ids[t->n_ids++] = id;
    } while (json_take(c, ','));
    r->n = t->n_ids - r->first;
    return json_take(c, ']') || json_broken(c, "hash_ids does not end");
}

static bool take_request(struct cursor *c, struct trace *t, struct trace_request *r) {
    bool time = false, ids = false;
    if (!json_take(c, '{')) return json_broken(c, "a line must be an object");
    if (!json_take(c, '}')) {
        do {
            struct span name;
            if (!take_string(c, &name) ||
                !(json_take(c, ':') || json_broken(c, "a colon is missing")))
                return false;
            bool ok;
            if (span_eq(name, SPAN("timestamp"))) {
                ok = !time ? take_u64(c, &r->timestamp_ms)
                           : json_broken(c, "timestamp is there twice");
                time = true;
            } else if (span_eq(name, SPAN("hash_ids"))) {
                ok = !ids ? take_ids(c, t, r) : json_broken(c, "hash_ids is there twice");
                ids = true;
            } else {
                ok = skip_value(c, 0);
            }
            if (!ok) return false;
        } while (json_take(c, ','));
        if (!json_take(c, '}')) return json_broken(c, "the object does not end");
    }
    skip_blanks(c);
    if (c->at != c->end) return json_broken(c, "something follows the object");
    if (!time) return json_broken(c, "timestamp is missing");
    return ids || json_broken(c, "hash_ids is missing");
}

const char *trace_add_line(struct trace *t, const char *line, size_t len) {
    struct cursor c = {line, line + len, NULL};
    struct trace_request r = {0};
    size_t ids_before = t->n_ids;
    if (!take_request(&c, t, &r)) {
        t->n_ids = ids_before;
        return c.error;
    }
    ARRAY_GROW(t->requests, t->n, t->cap);
    t->requests[t->n++] = r;
    if (r.n > t->longest) t->longest = r.n;
    return NULL;
}

void trace_load(struct trace *t, const char *path, size_t limit) {
    FILE *f = fopen(path, "re");
    if (f == NULL) die("%s: %s", path, strerror(errno));
    char *line = NULL;
    size_t cap = 0, number = 0;
    ssize_t len;
    while ((limit == 0 || t->n < limit) && (errno = 0, len = getline(&line, &cap, f)) >= 0) {
        number++;
        if (strspn(line, " \t\r\n") == (size_t)len) continue;
        const char *error = trace_add_line(t, line, (size_t)len);
        if (error != NULL) die("%s:%zu: %s", path, number, error);
    }
    if (ferror(f)) die("%s: %s", path, strerror(errno));
    free(line);
    fclose(f);
    if (t->n == 0) die("%s: no requests", path);
}

void trace_free(struct trace *t) {
    free(t->requests);
    free(t->ids);
    *t = (struct trace){0};
}
