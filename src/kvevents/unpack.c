#include "kvevents/unpack.h"

#include <endian.h>
#include <mpack.h>
#include <string.h>

bool unpack_next(struct unpack *u, struct unpack_value *v) {
    mpack_tokbuf_t buf = MPACK_TOKBUF_INITIAL_VALUE;
    mpack_token_t t;
    if (u->left == 0 || mpack_read(&buf, &u->at, &u->left, &t) != MPACK_OK) return false;
    *v = (struct unpack_value){.type = UNPACK_NIL};
    switch (t.type) {
    case MPACK_TOKEN_NIL: return true;
    case MPACK_TOKEN_BOOLEAN:
    case MPACK_TOKEN_FLOAT: v->type = UNPACK_OTHER; return true;
    case MPACK_TOKEN_UINT:
        v->type = UNPACK_UINT;
        v->number = mpack_unpack_uint(t);
        return true;
    case MPACK_TOKEN_SINT:
        v->type = UNPACK_SINT;
        v->number = (uint64_t)mpack_unpack_sint(t);
        return true;
    case MPACK_TOKEN_ARRAY:
        v->type = UNPACK_ARRAY;
        v->n = t.length;
        return t.length <= u->left;
    case MPACK_TOKEN_MAP:
        v->type = UNPACK_MAP;
        v->n = t.length;
        return t.length <= u->left / 2;
    case MPACK_TOKEN_STR: v->type = UNPACK_STR; break;
    case MPACK_TOKEN_BIN: v->type = UNPACK_BIN; break;
    case MPACK_TOKEN_EXT: v->type = UNPACK_OTHER; break;
    default: return false;
    }
    /* libmpack has read the length alone. */
    if (t.length > u->left) return false;
    v->bytes = span_of(u->at, t.length);
    u->at += t.length;
    u->left -= t.length;
    return true;
}

static uint64_t unpack_parts(const struct unpack_value *v) {
    return v->type == UNPACK_ARRAY ? v->n : v->type == UNPACK_MAP ? 2 * (uint64_t)v->n : 0;
}

bool unpack_pass(struct unpack *u, const struct unpack_value *v) {
    struct unpack_value part;
    for (uint64_t parts = unpack_parts(v); parts > 0; parts--) {
        /* Every part that is still owed takes a byte at least. */
        if (parts > u->left || !unpack_next(u, &part)) return false;
        parts += unpack_parts(&part);
    }
    return true;
}

/* Token ids are nine tenths of what engines send: their usual forms, without libmpack's ten
 * nanoseconds for each. 0: another form. */
static size_t u32_fast(const uint8_t *at, size_t left, uint32_t *out) {
    if (left < 5) return 0;
    if (at[0] < 0x80) {
        *out = at[0];
        return 1;
    }
    if (at[0] == 0xcd) {
        *out = (uint32_t)at[1] << 8 | at[2];
        return 3;
    }
    if (at[0] != 0xce) return 0;
    memcpy(out, at + 1, sizeof(*out));
    *out = be32toh(*out);
    return 5;
}

size_t unpack_u32s(struct unpack *u, uint32_t *out, size_t n) {
    mpack_tokbuf_t buf = MPACK_TOKBUF_INITIAL_VALUE;
    mpack_token_t t;
    for (size_t i = 0; i < n; i++) {
        size_t fast = u32_fast((const uint8_t *)u->at, u->left, &out[i]);
        u->at += fast;
        u->left -= fast;
        if (fast > 0) continue;
        struct unpack before = *u;
        if (u->left == 0 || mpack_read(&buf, &u->at, &u->left, &t) != MPACK_OK ||
            t.type != MPACK_TOKEN_UINT || t.data.value.hi != 0) {
            *u = before;
            return i;
        }
        out[i] = t.data.value.lo;
    }
    return n;
}
