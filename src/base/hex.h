/* Bytes from hex digits. The other way is libsodium's own sodium_bin2hex. */
#ifndef TARN_BASE_HEX_H
#define TARN_BASE_HEX_H

#include <sodium.h>
#include <stdbool.h>

#include "base/buf.h"

/* Exactly n bytes from 2 * n digits of either case; false: text is anything else, and out is
 * undefined. */
static inline bool hex_decode(struct span text, void *out, size_t n) {
    return text.len == 2 * n &&
           sodium_hex2bin((unsigned char *)out, n, text.data, text.len, NULL, NULL, NULL) == 0;
}

#endif
