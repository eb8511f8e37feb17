/* Parts of replies. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include "conductor/conductor.h"
#include "conductor/enroll.h"

struct conductor_figures conductor_figures;

/* What clients sent is shown, but an error is one line. */
static void fail_line(struct tarn_call_context *c, const char *code, const char *fmt, va_list ap) {
    struct buf line = {NULL, 0, 0};
    buf_printf(&line, "%s ", code);
    buf_vprintf(&line, fmt, ap);
    for (size_t i = 0; i < line.len; i++)
        if ((unsigned char)line.data[i] < ' ') line.data[i] = '?';
    buf_append_char(&line, '\0');
    conductor_figures.conductor_requests_bad++;
    conductor_services->reply_error(c, line.data);
    buf_free(&line);
}

void conductor_fail(struct tarn_call_context *c, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fail_line(c, "ERR", fmt, ap);
    va_end(ap);
}

static void fail_as(struct tarn_call_context *c, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void fail_as(struct tarn_call_context *c, const char *code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fail_line(c, code, fmt, ap);
    va_end(ap);
}

void conductor_fail_route(struct tarn_call_context *c, tarn_status status) {
    fail_as(c, status == TARN_ELIMIT ? "LIMIT" : "ERR", "%s", route_error(conductor_route));
}

void conductor_refuse(struct tarn_call_context *c, const struct refusal *why) {
    fail_as(c, why->code, "%s", why->text);
}

void conductor_fail_kept(struct tarn_call_context *c, tarn_status status) {
    struct refusal why;
    enroll_refuse_kept(&why, status);
    conductor_refuse(c, &why);
}

void field_int(struct tarn_call_context *c, const char *name, uint64_t value) {
    conductor_services->reply_text(c, span_str(name));
    conductor_services->reply_int(c, (int64_t)value);
}

void field_double(struct tarn_call_context *c, const char *name, double value) {
    conductor_services->reply_text(c, span_str(name));
    conductor_services->reply_double(c, value);
}

void field_text(struct tarn_call_context *c, const char *name, const char *value) {
    conductor_services->reply_text(c, span_str(name));
    conductor_services->reply_text(c, span_str(value));
}
