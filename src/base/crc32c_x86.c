/* CRC-32C with the instructions of x86-64: the crc32 instruction in three streams, and carry-less
 * products of 512 bits.
 *
 * Carry-less products follow Gopal et al., "Fast CRC Computation for Generic Polynomials Using
 * PCLMULQDQ" (Intel 2009), in the reflected domain: a little-endian lane of 128 bits stands for a
 * polynomial whose bit k is the coefficient of x^(127 - k). Moving a lane L x^64 + H on by D bits
 * means adding L (x^(D+64) mod P) + H (x^D mod P) to what lies there. The product of two reflected
 * 64-bit words comes out one position low, so it stands for x times the product: constants carry
 * one x less.
 *
 * The crc32 instruction on a zero state and a 64-bit word v computes v x^32 mod P, which finishes
 * both. */
#if defined(__x86_64__)

#include "base/crc32c_impl.h"

#include <immintrin.h>
#include <string.h>

#define TARGET_SSE42   __attribute__((target("sse4.2,pclmul")))
#define TARGET_VPCLMUL __attribute__((target("avx512f,avx512vl,avx512bw,vpclmulqdq,pclmul,sse4.2")))
#define INLINE         static inline __attribute__((always_inline))

/* --- sse4.2 --- */

/* The crc32 instruction takes three cycles and starts one each cycle: three streams keep it busy. A
 * long stream amortises the joining of the three, a short one leaves less to the tail. */
#define LONG  ((size_t)1024)
#define SHORT ((size_t)128)

enum stores { STORE_NONE, STORE_CACHED, STORE_STREAM };

struct join {
    uint64_t by_one, by_two; /* x^(8 n - 33) for n = one and two streams */
};
static struct join join_long, join_short;

static bool sse42_usable(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul")) return false;
    join_long = (struct join){crc32c_x_to_the(8 * LONG - 33), crc32c_x_to_the(16 * LONG - 33)};
    join_short = (struct join){crc32c_x_to_the(8 * SHORT - 33), crc32c_x_to_the(16 * SHORT - 33)};
    return true;
}

INLINE uint64_t load_u64(const uint8_t *src) {
    uint64_t word;
    memcpy(&word, src, 8);
    return word;
}

INLINE void store_u64(uint8_t *dst, uint64_t word, enum stores stores) {
    if (stores == STORE_CACHED) memcpy(dst, &word, 8);
    /* By hand: clang 14 turns _mm_stream_si64 into a plain store here. */
    if (stores == STORE_STREAM)
        __asm__ volatile("movnti %1, %0" : "=m"(*(uint64_t *)(void *)dst) : "r"(word));
}

TARGET_SSE42 INLINE uint32_t serial(uint32_t state, uint8_t *dst, const uint8_t *src, size_t len,
                                    enum stores stores) {
    uint64_t crc = state;
    for (; len >= 8; src += 8, len -= 8) {
        uint64_t word = load_u64(src);
        crc = _mm_crc32_u64(crc, word);
        if (stores != STORE_NONE) {
            store_u64(dst, word, STORE_CACHED);
            dst += 8;
        }
    }
    for (; len > 0; src++, len--) {
        uint8_t byte = *src;
        crc = _mm_crc32_u8((uint32_t)crc, byte);
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

TARGET_SSE42 INLINE uint32_t three_streams(uint32_t state, uint8_t *dst, const uint8_t *src,
                                           size_t one, const struct join *join,
                                           enum stores stores) {
    uint64_t a = state, b = 0, c = 0;
    for (size_t i = 0; i < one; i += 8) {
        if (i % 64 == 0) {
            prefetch_192((uintptr_t)src + 3 * (one + i), false);
            if (stores == STORE_CACHED) prefetch_192((uintptr_t)dst + 3 * (one + i), true);
        }
        uint64_t wa = load_u64(src + i), wb = load_u64(src + one + i),
                 wc = load_u64(src + 2 * one + i);
        a = _mm_crc32_u64(a, wa);
        b = _mm_crc32_u64(b, wb);
        c = _mm_crc32_u64(c, wc);
        if (stores != STORE_NONE) {
            store_u64(dst + i, wa, stores);
            store_u64(dst + one + i, wb, stores);
            store_u64(dst + 2 * one + i, wc, stores);
        }
    }
    __m128i pa = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)a),
                                      _mm_cvtsi64_si128((long long)join->by_two), 0);
    __m128i pb = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)b),
                                      _mm_cvtsi64_si128((long long)join->by_one), 0);
    uint64_t moved = (uint64_t)_mm_cvtsi128_si64(_mm_xor_si128(pa, pb));
    return (uint32_t)_mm_crc32_u64(0, moved) ^ (uint32_t)c;
}

TARGET_SSE42 INLINE uint32_t sse42_run(uint32_t state, uint8_t *dst, const uint8_t *src, size_t len,
                                       enum stores stores) {
    size_t done = 0;
    for (; len - done >= 3 * LONG; done += 3 * LONG)
        state = three_streams(state, dst + done, src + done, LONG, &join_long, stores);
    for (; len - done >= 3 * SHORT; done += 3 * SHORT)
        state = three_streams(state, dst + done, src + done, SHORT, &join_short, stores);
    return serial(state, dst + done, src + done, len - done, stores);
}

TARGET_SSE42 static uint32_t sse42_update(uint32_t state, const uint8_t *src, size_t len) {
    return sse42_run(state, (uint8_t *)(uintptr_t)src, src, len, STORE_NONE);
}

TARGET_SSE42 static uint32_t sse42_copy(uint32_t state, uint8_t *dst, const uint8_t *src,
                                        size_t len, bool past_cache) {
    if (!past_cache) return sse42_run(state, dst, src, len, STORE_CACHED);
    size_t head = -(uintptr_t)dst & 63;
    state = serial(state, dst, src, head, STORE_CACHED);
    state = sse42_run(state, dst + head, src + head, len - head, STORE_STREAM);
    _mm_sfence();
    return state;
}

const struct crc32c_impl crc32c_sse42_impl = {"sse4.2", sse42_usable, sse42_update, sse42_copy};

/* --- vpclmulqdq --- */

#define STEP ((size_t)256) /* four registers */

struct fold {
    uint64_t low, high; /* for the first and the second eight bytes of a lane */
};
static struct fold fold_2048, fold_512, fold_128;

static struct fold fold_by(uint64_t bits) {
    return (struct fold){(uint64_t)crc32c_x_to_the(bits + 63) << 32,
                         (uint64_t)crc32c_x_to_the(bits - 1) << 32};
}

static bool vpclmul_usable(void) {
    __builtin_cpu_init();
    if (!sse42_usable() || !__builtin_cpu_supports("avx512f") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("vpclmulqdq"))
        return false;
    fold_2048 = fold_by(2048);
    fold_512 = fold_by(512);
    fold_128 = fold_by(128);
    return true;
}

TARGET_VPCLMUL INLINE __m128i fold_lane(const struct fold *f) {
    return _mm_set_epi64x((long long)f->high, (long long)f->low);
}

TARGET_VPCLMUL INLINE __m512i fold512(__m512i acc, __m512i by, __m512i next) {
    __m512i low = _mm512_clmulepi64_epi128(acc, by, 0x00),
            high = _mm512_clmulepi64_epi128(acc, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96);
}

TARGET_VPCLMUL INLINE __m128i fold128(__m128i acc, __m128i by, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(acc, by, 0x00), high = _mm_clmulepi64_si128(acc, by, 0x11);
    return _mm_ternarylogic_epi64(low, high, next, 0x96);
}

TARGET_VPCLMUL INLINE __m512i move_64(uint8_t *dst, const uint8_t *src, enum stores stores) {
    __m512i v = _mm512_loadu_si512(src);
    if (stores == STORE_CACHED) _mm512_storeu_si512(dst, v);
    if (stores == STORE_STREAM) _mm512_stream_si512((__m512i *)(void *)dst, v);
    return v;
}

TARGET_VPCLMUL INLINE uint32_t vpclmul_run(uint32_t state, uint8_t *dst, const uint8_t *src,
                                           size_t len, enum stores stores) {
    if (len < STEP) return serial(state, dst, src, len, stores);

    __m512i by = _mm512_broadcast_i32x4(fold_lane(&fold_2048));
    __m512i z0 = move_64(dst, src, stores), z1 = move_64(dst + 64, src + 64, stores);
    __m512i z2 = move_64(dst + 128, src + 128, stores), z3 = move_64(dst + 192, src + 192, stores);
    z0 = _mm512_xor_si512(z0, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    size_t at = STEP;
    for (; len - at >= STEP; at += STEP) {
        z0 = fold512(z0, by, move_64(dst + at, src + at, stores));
        z1 = fold512(z1, by, move_64(dst + at + 64, src + at + 64, stores));
        z2 = fold512(z2, by, move_64(dst + at + 128, src + at + 128, stores));
        z3 = fold512(z3, by, move_64(dst + at + 192, src + at + 192, stores));
    }

    by = _mm512_broadcast_i32x4(fold_lane(&fold_512));
    z1 = fold512(z0, by, z1);
    z2 = fold512(z1, by, z2);
    z3 = fold512(z2, by, z3);
    for (; len - at >= 64; at += 64) z3 = fold512(z3, by, move_64(dst + at, src + at, stores));

    __m128i lane_by = fold_lane(&fold_128);
    __m128i lane =
        fold128(_mm512_extracti32x4_epi32(z3, 0), lane_by, _mm512_extracti32x4_epi32(z3, 1));
    lane = fold128(lane, lane_by, _mm512_extracti32x4_epi32(z3, 2));
    lane = fold128(lane, lane_by, _mm512_extracti32x4_epi32(z3, 3));
    uint64_t crc = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(lane));
    crc = _mm_crc32_u64(crc, (uint64_t)_mm_extract_epi64(lane, 1));
    return serial((uint32_t)crc, dst + at, src + at, len - at, stores);
}

TARGET_VPCLMUL static uint32_t vpclmul_update(uint32_t state, const uint8_t *src, size_t len) {
    return vpclmul_run(state, (uint8_t *)(uintptr_t)src, src, len, STORE_NONE);
}

TARGET_VPCLMUL static uint32_t vpclmul_copy(uint32_t state, uint8_t *dst, const uint8_t *src,
                                            size_t len, bool past_cache) {
    if (!past_cache) return vpclmul_run(state, dst, src, len, STORE_CACHED);
    size_t head = -(uintptr_t)dst & 63;
    state = serial(state, dst, src, head, STORE_CACHED);
    state = vpclmul_run(state, dst + head, src + head, len - head, STORE_STREAM);
    _mm_sfence();
    return state;
}

const struct crc32c_impl crc32c_vpclmul_impl = {"vpclmulqdq", vpclmul_usable, vpclmul_update,
                                                vpclmul_copy};

#endif
