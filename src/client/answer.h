/* Replies as trees in an arena. */
#ifndef TARN_CLIENT_ANSWER_H
#define TARN_CLIENT_ANSWER_H

#include <stdbool.h>
#include <stdint.h>
#include "base/buf.h"
#include "client/arena.h"
#include "tarn.h"

enum answer_type {
    ANSWER_NIL,
    ANSWER_INTEGER,
    ANSWER_STRING,
    ANSWER_SIMPLE,
    ANSWER_ERROR,
    ANSWER_ARRAY
};
struct answer {
    enum answer_type type;
    int64_t integer;
    size_t len;             /* of str, or number of elements */
    const char *str;        /* terminated */
    struct answer *element; /* contiguous */
    size_t room;            /* answer.c: elements there is memory for, while they arrive */
};
struct redisReader;
struct redisReader *answer_reader_create(void);
void answer_reader_set_arena(struct redisReader *reader, struct arena *arena);
/* What answer_scan.c has parsed of an answer that is not whole. */
struct answer_scan {
    struct answer *root; /* NULL: nothing */
    size_t elements, used;
    size_t same; /* the last string's length, if it has two digits, and how it began; 0: none */
    char head[5];
    bool left; /* to the reader */
};
/* redisReaderGetReply: the next answer that is whole, or NULL. Those of batches are parsed without
 * the reader, in its buffer. It may be another reader then, if nothing is left in it. */
int answer_reader_next(struct redisReader **reader_p, struct answer_scan *scan, void **answer_p);
/* One call's answers; a server that sends more is broken. */
#define ANSWER_BYTES_MAX (UINT64_C(2) << 30)
static inline bool answer_has_room(const struct arena *arena, size_t extra) {
    return arena != NULL && arena->total + extra <= ANSWER_BYTES_MAX;
}
/* TARN_OK unless the answer is an error: its status, noted with what ("PUTSTART") as last error. */
tarn_status answer_check(const struct answer *a, const char *what);
tarn_status answer_error_status(const char *text);
/* What a TRYAGAIN asks for, else 0. */
uint64_t answer_later_ms(const struct answer *a);
/* The index'th element or NULL. */
const struct answer *answer_at(const struct answer *a, size_t index);
bool answer_u64(const struct answer *a, uint64_t *value_p);
/* n bytes from 2 n digits, no more and no fewer. */
bool answer_hex(const struct answer *a, uint8_t *out, size_t n);
/* The value of a field in a flat map of name, value, name, value. */
const struct answer *answer_field(const struct answer *map, const char *name);

/* What a server has, by its INFO: numbers of the leases of an MGETREPLICAS, of the puts of an
 * MPUTSTART; places without grants; CLIENT NEAR. */
struct server_numbers {
    bool leases, puts, no_grant, near;
};
struct server_numbers server_numbers(const struct answer *info);

#endif
