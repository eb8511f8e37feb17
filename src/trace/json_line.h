/* A strict reader of lines that hold one JSON object each (RFC 8259), of whose members only some
 * matter: these are named in a table with the place where their value goes, all others are checked
 * and skipped. */
#ifndef TARN_TRACE_JSON_LINE_H
#define TARN_TRACE_JSON_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

enum json_kind {
    JSON_U64,     /* uint64_t: a whole number from 0 on; a fraction is cut off */
    JSON_I64,     /* int64_t, the same with a sign */
    JSON_SECONDS, /* uint64_t: from 0 on, with a fraction; kept as ms */
    JSON_U64S,    /* struct json_u64s: an array of JSON_U64 */
};
/* Numbers are appended; n is set back to what it was when the line is refused. */
struct json_u64s {
    uint64_t **v;
    size_t *n, *cap;
    size_t max; /* n never goes beyond */
};
struct json_field {
    const char *name;
    enum json_kind kind;
    void *to;
    uint64_t max; /* of a number, 0: none */
    bool optional;
    bool seen; /* written */
};

/* NULL, or what is wrong with the line: "hash_ids: no array". The text is static or lies in
 * error. */
#define JSON_ERROR_SIZE 120
const char *json_line_read(struct span line, struct json_field *fields, size_t n,
                           char error[JSON_ERROR_SIZE]);

#endif
