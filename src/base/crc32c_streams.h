/* CRC-32C by an instruction that takes eight bytes, in three streams: it takes two or three cycles
 * and starts one each cycle, so that one stream leaves it idle. A file that includes this has
 *
 *   STREAMS_TARGET               attributes of functions that use these instructions
 *   crc_u64(crc, word), crc_u8(crc, byte)
 *   clmul(a, b)                  the carry-less product of two words that fit 32 bits
 *   store_u64(dst, word, stores)
 *
 * Bits are reflected: the product of two words comes out one position low, so it stands for x times
 * the product, and constants carry one x less. The instruction on a zero state and a word v
 * computes v x^32 mod P. */
#ifndef TARN_BASE_CRC32C_STREAMS_H
#define TARN_BASE_CRC32C_STREAMS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/crc32c_impl.h"

/* A long stream amortises the joining of the three, a short one leaves less to the tail. */
#define LONG  ((size_t)1024)
#define SHORT ((size_t)128)

struct join {
    uint64_t by_one, by_two; /* x^(8 n - 33) for n = one and two streams */
};
static struct join join_long, join_short;

static void streams_prepare(void) {
    join_long = (struct join){crc32c_x_to_the(8 * LONG - 33), crc32c_x_to_the(16 * LONG - 33)};
    join_short = (struct join){crc32c_x_to_the(8 * SHORT - 33), crc32c_x_to_the(16 * SHORT - 33)};
}

INLINE uint64_t load_u64(const uint8_t *src) {
    uint64_t word;
    memcpy(&word, src, 8);
    return word;
}

STREAMS_TARGET INLINE uint32_t serial(uint32_t state, uint8_t *dst, const uint8_t *src, size_t len,
                                      enum stores stores) {
    uint64_t crc = state;
    for (; len >= 8; src += 8, len -= 8) {
        uint64_t word = load_u64(src);
        crc = crc_u64(crc, word);
        if (stores != STORE_NONE) {
            store_u64(dst, word, STORE_CACHED);
            dst += 8;
        }
    }
    for (; len > 0; src++, len--) {
        uint8_t byte = *src;
        crc = crc_u8(crc, byte);
        if (stores != STORE_NONE) *dst++ = byte;
    }
    return (uint32_t)crc;
}

/* The hardware's prefetchers lose track of three streams: fetch the next three in order while these
 * are worked on (twice the speed on Zen 5 when the bytes come from memory). Addresses past the end
 * do no harm. */
INLINE void prefetch_192(uintptr_t at, bool to_write) {
    for (int i = 0; i < 3; i++) {
        if (to_write)
            __builtin_prefetch((const void *)(at + 64 * (unsigned)i), 1);
        else
            __builtin_prefetch((const void *)(at + 64 * (unsigned)i), 0);
    }
}

/* ahead: what is fetched meanwhile. */
STREAMS_TARGET INLINE uint32_t three_streams(uint32_t state, uint8_t *dst, const uint8_t *src,
                                             size_t one, const struct join *join,
                                             enum stores stores, const uint8_t *ahead) {
    uint64_t a = state, b = 0, c = 0;
    for (size_t i = 0; i < one; i += 8) {
        if (i % 64 == 0) {
            prefetch_192((uintptr_t)ahead + 3 * i, false);
            if (stores == STORE_CACHED) prefetch_192((uintptr_t)dst + 3 * (one + i), true);
        }
        uint64_t wa = load_u64(src + i), wb = load_u64(src + one + i),
                 wc = load_u64(src + 2 * one + i);
        a = crc_u64(a, wa);
        b = crc_u64(b, wb);
        c = crc_u64(c, wc);
        if (stores != STORE_NONE) {
            store_u64(dst + i, wa, stores);
            store_u64(dst + one + i, wb, stores);
            store_u64(dst + 2 * one + i, wc, stores);
        }
    }
    uint64_t moved = clmul(a, join->by_two) ^ clmul(b, join->by_one);
    return (uint32_t)crc_u64(0, moved) ^ (uint32_t)c;
}

STREAMS_TARGET INLINE uint32_t streams_run(uint32_t state, uint8_t *dst, const uint8_t *src,
                                           size_t len, enum stores stores, const uint8_t *next) {
    size_t done = 0;
    for (; len - done >= 3 * LONG; done += 3 * LONG)
        state = three_streams(state, dst + done, src + done, LONG, &join_long, stores,
                              next != NULL ? next + done : src + done + 3 * LONG);
    for (; len - done >= 3 * SHORT; done += 3 * SHORT)
        state = three_streams(state, dst + done, src + done, SHORT, &join_short, stores,
                              next != NULL ? next + done : src + done + 3 * SHORT);
    return serial(state, dst + done, src + done, len - done, stores);
}

#endif
