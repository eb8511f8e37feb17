/* Bodies and answers, in JSON or msgpack. */
#include <endian.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/json_text.h"
#include "conductor/conductor.h"
#include "conductor/http.h"
#include "kvevents/unpack.h"

static bool is_msgpack(const struct tarn_http_request *r) {
    const char *type = r->header(r, "Content-Type");
    return type != NULL && strstr(type, "msgpack") != NULL;
}

/* --- msgpack bodies --- */

/* false: *why_p says what is wrong. */
static bool list_add(const struct json_field *f, uint64_t v, const char **why_p) {
    const struct json_u64s *to = f->to;
    *why_p = "too many numbers";
    if (*to->n >= to->max) return false;
    ARRAY_GROW(*to->v, *to->n, *to->cap);
    (*to->v)[(*to->n)++] = v;
    return true;
}

static bool list_take_bytes(const struct json_field *f, struct span bytes, const char **why_p) {
    *why_p = "bytes must be 4 of each number";
    if (bytes.len % 4 != 0) return false;
    for (size_t i = 0; i < bytes.len; i += 4) {
        uint32_t v;
        memcpy(&v, bytes.data + i, 4);
        if (!list_add(f, le32toh(v), why_p)) return false;
    }
    return true;
}

static bool list_take(struct unpack *u, const struct unpack_value *v, const struct json_field *f,
                      const char **why_p) {
    struct unpack_value e;
    if (v->type == UNPACK_BIN && f->max == UINT32_MAX) return list_take_bytes(f, v->bytes, why_p);
    *why_p = "no array";
    if (v->type != UNPACK_ARRAY) return false;
    for (uint32_t i = 0; i < v->n; i++) {
        *why_p = "a whole number is missing";
        if (!unpack_next(u, &e) || (e.type != UNPACK_UINT && e.type != UNPACK_SINT)) return false;
        *why_p = "a number from 0 on is missing";
        if (f->max > 0 && e.type == UNPACK_SINT) return false;
        *why_p = "the number is too large";
        if (f->max > 0 && e.number > f->max) return false;
        if (!list_add(f, e.number, why_p)) return false;
    }
    return true;
}

static bool text_take(const struct unpack_value *v, struct json_text *to, const char **why_p) {
    *why_p = "a string is missing";
    if (v->type != UNPACK_STR) return false;
    *why_p = "it is too long";
    if (v->bytes.len > to->cap) return false;
    *why_p = "no character";
    if (v->bytes.len > 0 && memchr(v->bytes.data, '\0', v->bytes.len) != NULL) return false;
    if (!span_is_utf8(v->bytes)) return false;
    to->len = v->bytes.len;
    if (to->len > 0) memcpy(to->to, v->bytes.data, to->len);
    return true;
}

static bool whole_take(const struct unpack_value *v, const struct json_field *f,
                       const char **why_p) {
    *why_p = "a number from 0 on is missing";
    if (v->type != UNPACK_UINT) return false;
    *why_p = "the number is too large";
    if (f->max > 0 && v->number > f->max) return false;
    *(uint64_t *)f->to = v->number;
    return true;
}

static bool value_take(struct unpack *u, struct json_field *f, const char **why_p) {
    struct unpack_value v;
    *why_p = "it is no msgpack";
    if (!unpack_next(u, &v)) return false;
    if (v.type == UNPACK_NIL && f->optional) return true;
    *why_p = "it is there twice";
    if (f->seen) return false;
    f->seen = true;
    switch (f->kind) {
    case JSON_WHOLES: return list_take(u, &v, f, why_p);
    case JSON_TEXT: return text_take(&v, f->to, why_p);
    default: TARN_ASSERT(f->kind == JSON_WHOLE); return whole_take(&v, f, why_p);
    }
}

static struct json_field *field_named(struct json_field *fields, size_t n, struct span name) {
    for (size_t i = 0; i < n; i++)
        if (span_eq(name, span_str(fields[i].name))) return &fields[i];
    return NULL;
}

static const char *field_error(const struct json_field *f, const char *why,
                               char error[JSON_ERROR_SIZE]) {
    snprintf(error, JSON_ERROR_SIZE, "%s: %s", f->name, why);
    return error;
}

static const char *msgpack_read(struct span body, struct json_field *fields, size_t n,
                                char error[JSON_ERROR_SIZE]) {
    struct unpack u = {body.data, body.len};
    struct unpack_value top, v;
    for (size_t i = 0; i < n; i++) fields[i].seen = false;
    if (!unpack_next(&u, &top) || top.type != UNPACK_MAP) return "it is no map of msgpack";
    for (uint32_t i = 0; i < top.n; i++) {
        const char *why;
        if (!unpack_next(&u, &v)) return "it is no msgpack, or cut short";
        struct json_field *f = v.type == UNPACK_STR ? field_named(fields, n, v.bytes) : NULL;
        if (f != NULL && !value_take(&u, f, &why)) return field_error(f, why, error);
        if (f != NULL) continue;
        if (!unpack_pass(&u, &v) || !unpack_next(&u, &v) || !unpack_pass(&u, &v))
            return "it is no msgpack, or cut short";
    }
    if (u.left > 0) return "something follows the map";
    for (size_t i = 0; i < n; i++)
        if (!fields[i].seen && !fields[i].optional)
            return field_error(&fields[i], "it is missing", error);
    return NULL;
}

const char *http_body_read(const struct tarn_http_request *r, struct json_field *fields, size_t n,
                           char error[JSON_ERROR_SIZE]) {
    return is_msgpack(r) ? msgpack_read(r->body, fields, n, error)
                         : json_object_read(r->body, fields, n, error);
}

/* --- answers --- */

void http_answer_begin(struct http_answer *a, const struct tarn_http_request *r) {
    *a = (struct http_answer){.request = r->id, .msgpack = is_msgpack(r), .first = true};
}

/* A byte that says what follows, and a number of so many bytes, big-endian. */
static void pack(struct http_answer *a, uint8_t tag, uint64_t n, unsigned bytes) {
    uint64_t big = htobe64(n);
    buf_append_char(&a->out, (char)tag);
    buf_append(&a->out, (const char *)&big + 8 - bytes, bytes);
}

void http_map(struct http_answer *a, size_t members) {
    if (a->msgpack)
        pack(a, 0xdf, members, 4);
    else
        buf_append_char(&a->out, '{');
    a->first = true;
}

void http_map_end(struct http_answer *a) {
    if (!a->msgpack) buf_append_char(&a->out, '}');
    a->first = false;
}

void http_text(struct http_answer *a, struct span text) {
    if (a->msgpack) {
        pack(a, span_is_utf8(text) ? 0xdb : 0xc6, text.len, 4); /* bytes, where it is no text */
        buf_append(&a->out, text.data, text.len);
    } else {
        json_text_put(&a->out, text);
    }
}

void http_name(struct http_answer *a, struct span name) {
    if (!a->msgpack && !a->first) buf_append_char(&a->out, ',');
    a->first = false;
    http_text(a, name);
    if (!a->msgpack) buf_append_char(&a->out, ':');
}

void http_number(struct http_answer *a, uint64_t n) {
    if (a->msgpack)
        pack(a, 0xcf, n, 8);
    else
        buf_printf(&a->out, "%" PRIu64, n);
}

void http_text_list(struct http_answer *a, struct span text) {
    if (a->msgpack)
        pack(a, 0xdd, 1, 4);
    else
        buf_append_char(&a->out, '[');
    http_text(a, text);
    if (!a->msgpack) buf_append_char(&a->out, ']');
}

void http_answer_send(struct http_answer *a, unsigned status) {
    if (!a->msgpack) buf_append_char(&a->out, '\n');
    const struct tarn_http_answer answer = {.size = sizeof(answer),
                                            .status = status,
                                            .retry_after_s = status == 503,
                                            .type = a->msgpack ? "application/msgpack"
                                                               : "application/json",
                                            .taken = &a->out};
    (void)conductor_services->http_answer(a->request, &answer);
}

void http_refuse(const struct tarn_http_request *r, unsigned status, const char *fmt, ...) {
    struct http_answer a;
    struct buf text = {NULL, 0, 0};
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(&text, fmt, ap);
    va_end(ap);
    conductor_figures.conductor_requests_bad++;
    http_answer_begin(&a, r);
    http_map(&a, 1);
    http_name(&a, SPAN("error"));
    http_text(&a, span_of(text.data, text.len));
    http_map_end(&a);
    http_answer_send(&a, status);
    buf_free(&text);
}
