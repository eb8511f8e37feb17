/* CRC16 by carry-less products, 16 bytes a step, after Gopal et al., "Fast CRC Computation for
 * Generic Polynomials Using PCLMULQDQ" (Intel 2009).
 *
 * A block of 16 bytes is a polynomial, its first byte the highest. Moving H x^64 + L on by 128 bits
 * means H (x^192 mod P) + L (x^128 mod P). As the CRC begins with 0, and zeros in front change
 * nothing, it is the first block that is short, and there is no tail. */
#if defined(__x86_64__) || defined(__aarch64__)

#include "base/crc16_impl.h"

#include <string.h>

#define X_64  0xb861u /* x^64 mod P */
#define X_128 0xaefcu
#define X_192 0x650bu
#define MU    0x11303471a041b343u /* x^80 / P, without its x^64 */

/* From 16 - n on: moves n bytes to the low end of a block, the last one first, and zeros above. */
static const uint8_t turn[32] = {15,   14,   13,   12,   11,   10,   9,    8,    7,    6,    5,
                                 4,    3,    2,    1,    0,    0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET __attribute__((target("pclmul,ssse3")))
#define INLINE TARGET static inline __attribute__((always_inline))
typedef __m128i block;

INLINE block block_load(const uint8_t *src, size_t n) {
    return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)src),
                            _mm_loadu_si128((const __m128i *)(const void *)(turn + 16 - n)));
}

INLINE block block_of(uint64_t high, uint64_t low) {
    return _mm_set_epi64x((long long)high, (long long)low);
}

INLINE uint64_t block_low(block a) {
    return (uint64_t)_mm_cvtsi128_si64(a);
}

INLINE uint64_t block_high(block a) {
    return block_low(_mm_unpackhi_epi64(a, a));
}

INLINE block block_xor(block a, block b) {
    return _mm_xor_si128(a, b);
}

INLINE block times_low(block a, block b) {
    return _mm_clmulepi64_si128(a, b, 0x00);
}

INLINE block times_high(block a, block b) {
    return _mm_clmulepi64_si128(a, b, 0x11);
}

static bool clmul_usable(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("ssse3");
}

#else

#include <arm_neon.h>
#include <sys/auxv.h>

#define TARGET
#define INLINE static inline __attribute__((always_inline))
typedef uint64x2_t block;

#ifndef HWCAP_PMULL
#define HWCAP_PMULL (1u << 4)
#endif

INLINE block block_load(const uint8_t *src, size_t n) {
    return vreinterpretq_u64_u8(vqtbl1q_u8(vld1q_u8(src), vld1q_u8(turn + 16 - n)));
}

INLINE block block_of(uint64_t high, uint64_t low) {
    return vcombine_u64(vcreate_u64(low), vcreate_u64(high));
}

INLINE uint64_t block_low(block a) {
    return vgetq_lane_u64(a, 0);
}

INLINE uint64_t block_high(block a) {
    return vgetq_lane_u64(a, 1);
}

INLINE block block_xor(block a, block b) {
    return veorq_u64(a, b);
}

/* By hand: gcc and clang differ in what makes the intrinsics of an extension visible. */
INLINE block times_low(block a, block b) {
    block product;
    __asm__(".arch_extension aes\n\tpmull %0.1q, %1.1d, %2.1d" : "=w"(product) : "w"(a), "w"(b));
    return product;
}

INLINE block times_high(block a, block b) {
    block product;
    __asm__(".arch_extension aes\n\tpmull2 %0.1q, %1.2d, %2.2d" : "=w"(product) : "w"(a), "w"(b));
    return product;
}

static bool clmul_usable(void) {
    return (getauxval(AT_HWCAP) & HWCAP_PMULL) != 0;
}

#endif

/* block times x^16 mod P, by Barrett's reduction once it fits 64 bits. */
INLINE uint16_t block_reduce(block a) {
    const block by = block_of(X_64, MU);
    a = block_xor(times_high(a, by), block_of(0, block_low(a)));
    a = block_xor(times_high(a, by), a); /* its high half is of no interest any more */
    uint64_t quotient = block_high(times_low(a, by)) ^ block_low(a);
    return (uint16_t)(quotient ^ quotient << 5 ^ quotient << 12);
}

TARGET static uint16_t clmul_of(const uint8_t *src, size_t len) {
    const block by = block_of(X_192, X_128);
    uint8_t few[16] = {0};
    if (len < sizeof(few)) {
        if (len > 0) memcpy(few, src, len);
        return block_reduce(block_load(few, len));
    }
    size_t at = (len - 1) % 16 + 1;
    block sum = block_load(src, at);
    for (; at < len; at += 16)
        sum =
            block_xor(block_xor(times_low(sum, by), times_high(sum, by)), block_load(src + at, 16));
    return block_reduce(sum);
}

const struct crc16_impl crc16_clmul_impl = {"clmul", clmul_usable, clmul_of};

#endif
