/* Replies: thin forms of the RESP writer that know the client. */
#include "front/reply.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/errors.h"
#include "front/client.h"
#include "config/config.h"

/* Values up to this length are copied: cheaper than a hold and a longer writev. */
#define COPY_MAX (16u * 1024)

static struct buf *out_of(struct client *c) {
    return &c->io->out.bytes;
}

void reply_raw(struct client *c, const void *data, size_t len) {
    buf_append(out_of(c), data, len);
}

char *reply_room(struct client *c, size_t len) {
    struct buf *out = out_of(c);
    buf_reserve(out, len);
    out->len += len;
    return out->data + out->len - len;
}

void reply_ok(struct client *c) {
    buf_append(out_of(c), "+OK\r\n", 5);
}
void reply_simple(struct client *c, const char *s) {
    resp_write_simple(out_of(c), s);
}
void reply_int(struct client *c, int64_t v) {
    resp_write_int(out_of(c), v);
}
void reply_bulk(struct client *c, struct span s) {
    resp_write_bulk(out_of(c), s.data, s.len);
}
void reply_bulk_str(struct client *c, const char *s) {
    resp_write_bulk(out_of(c), s, strlen(s));
}
void reply_null(struct client *c) {
    resp_write_null(out_of(c), c->proto);
}
void reply_null_array(struct client *c) {
    resp_write_null_array(out_of(c), c->proto);
}
void reply_array(struct client *c, size_t n) {
    resp_write_array(out_of(c), n);
}
void reply_map(struct client *c, size_t pairs) {
    resp_write_map(out_of(c), c->proto, pairs);
}
void reply_set(struct client *c, size_t n) {
    resp_write_set(out_of(c), c->proto, n);
}
void reply_bool(struct client *c, bool v) {
    resp_write_bool(out_of(c), c->proto, v);
}
void reply_double(struct client *c, double v) {
    resp_write_double(out_of(c), c->proto, v);
}
void reply_verbatim(struct client *c, const char *ext3, struct span s) {
    resp_write_verbatim(out_of(c), c->proto, ext3, s.data, s.len);
}

/* --- arrays of a length still unknown --- */

void *reply_deferred(struct client *c) {
    struct out_insert *in = client_out_insert(c);
    in->pending = true;
    struct client_out *o = &c->io->out;
    return (void *)(uintptr_t)(o->dropped_inserts + (unsigned)(in - o->insert) + 1u);
}

/* Takes header. */
static void deferred_header(struct client *c, void *cookie, struct buf header) {
    struct client_out *o = &c->io->out;
    unsigned index = (unsigned)(uintptr_t)cookie - 1u - o->dropped_inserts;
    TARN_ASSERT(index >= o->first_insert && index < o->inserts && o->insert[index].pending);
    struct out_insert *in = &o->insert[index];
    TARN_ASSERT(header.len <= sizeof(in->header));
    memcpy(in->header, header.data, header.len);
    in->header_len = (unsigned char)header.len;
    in->len = header.len;
    in->pending = false;
    o->insert_bytes += in->len;
    buf_free(&header);
}

void reply_deferred_array(struct client *c, void *cookie, size_t n) {
    struct buf b = {NULL, 0, 0};
    resp_write_array(&b, n);
    deferred_header(c, cookie, b);
}
void reply_deferred_map(struct client *c, void *cookie, size_t pairs) {
    struct buf b = {NULL, 0, 0};
    resp_write_map(&b, c->proto, pairs);
    deferred_header(c, cookie, b);
}
void reply_deferred_set(struct client *c, void *cookie, size_t n) {
    struct buf b = {NULL, 0, 0};
    resp_write_set(&b, c->proto, n);
    deferred_header(c, cookie, b);
}

/* --- values of the pool --- */

void reply_pool(struct client *c, const struct span *pieces, size_t n, struct store_hold *hold) {
    TARN_ASSERT(n <= 8);
    struct buf *b = out_of(c);
    size_t len = 0;
    for (size_t i = 0; i < n; i++) len += pieces[i].len;
    resp_write_bulk_header(b, len);
    if (len <= COPY_MAX) {
        for (size_t i = 0; i < n; i++) buf_append(b, pieces[i].data, pieces[i].len);
        if (hold != NULL) store_unhold(books, &hold);
    } else {
        struct out_insert *in = client_out_insert(c);
        memcpy(in->piece, pieces, n * sizeof(*pieces));
        in->n = (unsigned char)n;
        in->len = len;
        in->hold = hold;
        c->io->out.insert_bytes += len;
    }
    buf_append(b, "\r\n", 2);
}

void reply_bulk_header(struct client *c, size_t len) {
    resp_write_bulk_header(out_of(c), len);
}

void reply_lent(struct client *c, struct span bytes, void (*release)(void *owner), void *owner) {
    if (bytes.len <= COPY_MAX) {
        buf_append(out_of(c), bytes.data, bytes.len);
        release(owner);
        return;
    }
    struct out_insert *in = client_out_insert(c);
    in->piece[0] = bytes;
    in->n = 1;
    in->len = bytes.len;
    in->release = release;
    in->owner = owner;
    c->io->out.insert_bytes += bytes.len;
}

/* --- errors --- */

/* By code, as INFO errorstats shows them. Codes come from this program, so there are few; a client
 * cannot add any. */
#define CODES_MAX 64u
static struct {
    char code[24];
    uint64_t count;
} codes[CODES_MAX];
static size_t code_count;
static uint64_t error_count;

static void count_error(const char *line) {
    size_t n = strcspn(line, " \r\n");
    if (n >= sizeof(codes[0].code)) n = sizeof(codes[0].code) - 1;
    error_count++;
    for (size_t i = 0; i < code_count; i++)
        if (strncmp(codes[i].code, line, n) == 0 && codes[i].code[n] == '\0') {
            codes[i].count++;
            return;
        }
    if (code_count == CODES_MAX) return;
    memcpy(codes[code_count].code, line, n);
    codes[code_count].code[n] = '\0';
    codes[code_count++].count = 1;
}

void reply_errorstats(void (*fn)(void *arg, const char *code, uint64_t count), void *arg) {
    for (size_t i = 0; i < code_count; i++)
        if (codes[i].count > 0) fn(arg, codes[i].code, codes[i].count);
}
void reply_errorstats_reset(void) {
    memset(codes, 0, sizeof(codes));
    code_count = 0;
    error_count = 0;
}
uint64_t reply_errors(void) {
    return error_count;
}

static void error_line(struct client *c, const char *line) {
    count_error(line);
    c->io->flags |= CLIENT_FAILED;
    resp_write_error(out_of(c), line);
}

/* What is in b, and the rest of the line. */
static void error_vline(struct client *c, struct buf *b, const char *fmt, va_list ap) {
    buf_vprintf(b, fmt, ap);
    buf_append_char(b, '\0');
    error_line(c, b->data);
    buf_free(b);
}

void reply_error(struct client *c, const char *fmt, ...) {
    struct buf b = {NULL, 0, 0};
    va_list ap;
    if (fmt[0] == '-')
        fmt++;
    else
        buf_append(&b, "ERR ", 4);
    va_start(ap, fmt);
    error_vline(c, &b, fmt, ap);
    va_end(ap);
}

void reply_status(struct client *c, tarn_status status, const char *what) {
    const char *code = error_code(status), *sentence = tarn_status_text(status);
    if (status == TARN_ELATER)
        reply_later(c, REPLY_LATER_MS, "%s%s%s", sentence, what != NULL ? ": " : "",
                    what != NULL ? what : "");
    else
        reply_error(c, "-%s %s%s%s", code[0] != '\0' ? code : "ERR", sentence,
                    what != NULL ? ": " : "", what != NULL ? what : "");
}

void reply_later(struct client *c, uint64_t ms, const char *fmt, ...) {
    struct buf b = {NULL, 0, 0};
    va_list ap;
    buf_printf(&b, "%s %llu ", error_code(TARN_ELATER),
               (unsigned long long)min_u64(max_u64(ms, 1), ERROR_LATER_MAX_MS));
    va_start(ap, fmt);
    error_vline(c, &b, fmt, ap);
    va_end(ap);
}

void reply_syntax(struct client *c) {
    reply_error(c, "syntax error");
}

/* --- arguments --- */

bool arg_bind(struct client *c, void *options) {
    char error[WIRE_ERROR_SIZE];
    struct wire_limits limits = {config->max_batch_keys, config->max_wait_ms};
    const struct cmd *cmd = c->cmd;
    if (LIKELY(wire_bind(cmd->declared, &cmd->plan, c->argv, c->argc, &limits, options, error)))
        return true;
    reply_error(c, "%s", error);
    return false;
}

bool arg_bind_block(struct client *c, size_t at, void *element) {
    char error[WIRE_ERROR_SIZE];
    if (LIKELY(wire_bind_block(c->cmd->block, c->argv, at, element, error))) return true;
    reply_error(c, "%s", error);
    return false;
}

bool arg_i64(struct client *c, size_t index, int64_t *value_p) {
    if (span_to_i64(c->argv[index], value_p)) return true;
    reply_error(c, "value is not an integer or out of range");
    return false;
}

bool arg_range(struct client *c, size_t index, const char *name, uint64_t min, uint64_t max,
               uint64_t *value_p) {
    uint64_t v;
    if (span_to_u64(c->argv[index], &v) && v >= min && v <= max) {
        *value_p = v;
        return true;
    }
    reply_error(c, "%s must be a number from %llu to %llu", name, (unsigned long long)min,
                (unsigned long long)max);
    return false;
}

bool arg_is(struct client *c, size_t index, const char *keyword) {
    return span_case_eq(c->argv[index], keyword);
}

bool key_valid(struct client *c, struct span key) {
    if (LIKELY(key.len - 1 < STORE_KEY_MAX)) return true;
    reply_error(c, "key must be 1 to %u bytes", STORE_KEY_MAX);
    return false;
}

bool arg_key(struct client *c, size_t index) {
    return key_valid(c, c->argv[index]);
}
