/* New values made of old ones: APPEND SETRANGE INCR DECR INCRBY DECRBY INCRBYFLOAT. Values are
 * immutable, so each writes a new object, keeps the TTL, and commits only if the key is still at
 * the version it was made from. */
#include "front/families.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "config/config.h"
#include "inband/string_write.h"

static void answer_size(struct client *c, struct string_write *w) {
    reply_int(c, (int64_t)w->size);
}

/* --- APPEND, SETRANGE --- */

static bool append_plan(struct client *c, struct string_write *w) {
    struct object *o = string_write_edit(c, w);
    size_t len = c->argv[w->value_arg].len;
    if (!string_size_allowed(c, (o ? store_object_size(books, o) : 0) + len)) return false;
    if (!string_write_keep_old(w, o)) return true;
    string_write_take_old(w, 0, UINT64_MAX);
    string_write_part(w, (struct string_part){.from = PART_ARG, .index = w->value_arg, .len = len});
    return true;
}

void cmd_append(struct client *c) {
    if (!arg_key(c, 1)) return;
    struct string_write w = {.plan = append_plan,
                             .event = "append",
                             .answer = answer_size,
                             .key_arg = 1,
                             .value_arg = 2};
    string_write_run(c, &w);
}

static bool setrange_plan(struct client *c, struct string_write *w) {
    struct object *o = string_write_edit(c, w);
    uint64_t offset = (uint64_t)w->number, len = c->argv[w->value_arg].len;
    uint64_t old = o ? store_object_size(books, o) : 0;
    if (len == 0) {
        reply_int(c, (int64_t)old);
        return false;
    }
    if (!string_size_allowed(c, offset + len)) return false;
    if (!string_write_keep_old(w, o)) return true;
    string_write_take_old(w, 0, offset);
    if (offset > old)
        string_write_part(w, (struct string_part){.from = PART_ZERO, .len = offset - old});
    string_write_part(w, (struct string_part){.from = PART_ARG, .index = w->value_arg, .len = len});
    string_write_take_old(w, offset + len, UINT64_MAX);
    return true;
}

void cmd_setrange(struct client *c) {
    struct string_write w = {.plan = setrange_plan,
                             .event = "setrange",
                             .answer = answer_size,
                             .key_arg = 1,
                             .value_arg = 3};
    if (!arg_key(c, 1) || !arg_i64(c, 2, &w.number)) return;
    if (w.number < 0) {
        reply_error(c, "offset is out of range");
        return;
    }
    if (w.number > INT64_MAX / 2) w.number = INT64_MAX / 2; /* too long either way */
    string_write_run(c, &w);
}

/* --- numbers --- */

/* Not yet known: true, and *len_p is 0 with w->old.wanted. false: what is there is longer than any
 * number. */
static bool old_text(struct client *c, struct string_write *w, char text[STRING_TEXT_MAX],
                     size_t *len_p) {
    struct object *o = string_write_edit(c, w);
    *len_p = 0;
    if (o && store_object_size(books, o) >= STRING_TEXT_MAX) return false;
    return !string_write_keep_old(w, o) || string_write_old_text(w, text, len_p);
}

static bool incr_plan(struct client *c, struct string_write *w) {
    char text[STRING_TEXT_MAX];
    size_t len;
    int64_t old = 0, sum;
    bool short_enough = old_text(c, w, text, &len);
    if (w->old.wanted) return true;
    if (!short_enough || (w->old.there && !span_to_i64(span_of(text, len), &old))) {
        reply_error(c, "value is not an integer or out of range");
        return false;
    }
    if (__builtin_add_overflow(old, w->number, &sum)) {
        reply_error(c, "increment or decrement would overflow");
        return false;
    }
    len = i64_to_dec(sum, w->small);
    string_write_part(w, (struct string_part){.from = PART_SMALL, .len = len});
    return true;
}

static void incr_answer(struct client *c, struct string_write *w) {
    int64_t sum = 0;
    span_to_i64(span_of(w->small, w->size), &sum);
    reply_int(c, sum);
}

static void incr_run(struct client *c, int64_t by) {
    if (!arg_key(c, 1)) return;
    struct string_write w = {
        .plan = incr_plan, .event = "incrby", .answer = incr_answer, .key_arg = 1, .number = by};
    string_write_run(c, &w);
}

void cmd_incr(struct client *c) {
    incr_run(c, 1);
}
void cmd_decr(struct client *c) {
    incr_run(c, -1);
}

void cmd_incrby(struct client *c) {
    int64_t by;
    if (arg_i64(c, 2, &by)) incr_run(c, by);
}

void cmd_decrby(struct client *c) {
    int64_t by;
    if (!arg_i64(c, 2, &by)) return;
    if (by == INT64_MIN)
        reply_error(c, "decrement would overflow");
    else
        incr_run(c, -by);
}

/* --- INCRBYFLOAT --- */

static bool parse_float(const char *text, size_t len, long double *value_p) {
    char *end;
    if (len == 0 || len >= STRING_TEXT_MAX || text[0] == ' ' || memchr(text, 0, len)) return false;
    *value_p = strtold(text, &end);
    return end == text + len && !isnan(*value_p);
}

/* 17 digits behind the point, without the zeroes at the end: what Redis' clients know. Returns the
 * length. */
static size_t format_float(long double v, char out[STRING_TEXT_MAX * 24]) {
    size_t len = (size_t)snprintf(out, STRING_TEXT_MAX * 24, "%.17Lf", v);
    if (memchr(out, '.', len)) {
        while (out[len - 1] == '0') len--;
        if (out[len - 1] == '.') len--;
    }
    if (len == 2 && out[0] == '-' && out[1] == '0') {
        out[0] = '0';
        len = 1;
    }
    return len;
}

static bool incrbyfloat_plan(struct client *c, struct string_write *w) {
    char text[STRING_TEXT_MAX], by_text[STRING_TEXT_MAX], sum_text[STRING_TEXT_MAX * 24];
    size_t len, by_len = min_u64(c->argv[2].len, sizeof(by_text) - 1);
    long double old = 0, by;
    bool short_enough = old_text(c, w, text, &len);
    if (w->old.wanted) return true;
    memcpy(by_text, c->argv[2].data, by_len);
    by_text[by_len] = 0;
    if (!short_enough || (w->old.there && !parse_float(text, len, &old)) ||
        by_len != c->argv[2].len || !parse_float(by_text, by_len, &by)) {
        reply_error(c, "value is not a valid float");
        return false;
    }
    long double sum = old + by;
    if (isnan(sum) || isinf(sum)) {
        reply_error(c, "increment would produce NaN or Infinity");
        return false;
    }
    len = format_float(sum, sum_text);
    if (len > sizeof(w->small)) {
        reply_error(c, "increment would produce a number of more than %zu digits",
                    sizeof(w->small));
        return false;
    }
    memcpy(w->small, sum_text, len);
    string_write_part(w, (struct string_part){.from = PART_SMALL, .len = len});
    return true;
}

static void incrbyfloat_answer(struct client *c, struct string_write *w) {
    reply_bulk(c, span_of(w->small, w->size));
}

void cmd_incrbyfloat(struct client *c) {
    if (!arg_key(c, 1)) return;
    struct string_write w = {.plan = incrbyfloat_plan,
                             .event = "incrbyfloat",
                             .answer = incrbyfloat_answer,
                             .key_arg = 1};
    string_write_run(c, &w);
}
