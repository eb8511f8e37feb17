/* A strict reader of texts that hold one JSON object each (RFC 8259), of whose members only some
 * matter: these are named in a table with the place where their value goes, all others are checked
 * and skipped. There is no tree, so that a text costs no more memory than its table says. */
#ifndef TARN_BASE_JSON_OBJECT_H
#define TARN_BASE_JSON_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

enum json_kind {
    JSON_U64,     /* uint64_t: a whole number from 0 on; a fraction is cut off */
    JSON_I64,     /* int64_t, the same with a sign */
    JSON_SECONDS, /* uint64_t: from 0 on, with a fraction; kept as ms */
    JSON_U64S,    /* struct json_u64s: an array of JSON_U64 */
    JSON_WHOLE,   /* uint64_t: a number from 0 on that has no fraction */
    JSON_WHOLES,  /* struct json_u64s: an array of JSON_WHOLE; where max is 0, with a sign, too:
                   * the negative ones as two's complement */
    JSON_TEXT,    /* struct json_text: a string */
};
/* Numbers are appended; n is set back to what it was when the line is refused. */
struct json_u64s {
    uint64_t **v;
    size_t *n, *cap;
    size_t max; /* n never goes beyond */
};
/* UTF-8. Escapes are decoded; a zero byte is none that may be in it. */
struct json_text {
    char *to;
    size_t cap, len; /* more than cap bytes are refused */
};
struct json_field {
    const char *name;
    enum json_kind kind;
    void *to;
    uint64_t max;  /* of a number, 0: none */
    bool optional; /* may be missing, or null */
    bool seen;     /* written */
};

/* NULL, or what is wrong with it: "hash_ids: no array". The text is static, or lies in error where
 * it is about a field. */
#define JSON_ERROR_SIZE 120
const char *json_object_read(struct span text, struct json_field *fields, size_t n,
                             char error[JSON_ERROR_SIZE]);

#endif
