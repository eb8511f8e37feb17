/* msgpack, value by value, over libmpack: it takes the bytes apart, here are the bounds. A value
 * that is passed over may be nested as deep as it likes: nothing recurses, and each step takes a
 * byte of the message, so that a message costs what it is long. A count is believed only when as
 * many bytes follow. */
#ifndef TARN_KVEVENTS_UNPACK_H
#define TARN_KVEVENTS_UNPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

enum unpack_type {
    UNPACK_NIL,
    UNPACK_UINT, /* not negative, however it was written */
    UNPACK_SINT, /* negative */
    UNPACK_STR,
    UNPACK_BIN,
    UNPACK_ARRAY, /* its elements follow */
    UNPACK_MAP,   /* its keys and values follow in turn */
    UNPACK_OTHER, /* what nobody asks for: booleans, fractions, extensions */
};

struct unpack_value {
    enum unpack_type type;
    uint64_t number;   /* UINT; SINT as two's complement */
    struct span bytes; /* STR, BIN; of the message */
    uint32_t n;        /* ARRAY: elements, MAP: pairs */
};

/* What is left of a message. To come back to a place, keep a copy. */
struct unpack {
    const char *at;
    size_t left;
};

/* The next value, for arrays and maps what they begin with. false: what follows is no msgpack, or
 * ends too early. */
bool unpack_next(struct unpack *u, struct unpack_value *v);
/* Passes over what belongs to v, the value that was read last. */
bool unpack_pass(struct unpack *u, const struct unpack_value *v);
/* Integers of an array, for as long as they are between 0 and UINT32_MAX: how many of n these
 * were. */
size_t unpack_u32s(struct unpack *u, uint32_t *out, size_t n);

#endif
