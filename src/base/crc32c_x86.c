/* CRC-32C with the instructions of x86-64: the crc32 instruction in three streams, and carry-less
 * products of 512 bits.
 *
 * Carry-less products follow Gopal et al., "Fast CRC Computation for Generic Polynomials Using
 * PCLMULQDQ" (Intel 2009), in the reflected domain: a little-endian lane of 128 bits stands for a
 * polynomial whose bit k is the coefficient of x^(127 - k). Moving a lane L x^64 + H on by D bits
 * means adding L (x^(D+64) mod P) + H (x^D mod P) to what lies there. What crc32c_streams.h says of
 * products and of the instruction that finishes them holds here, too. */
#if defined(__x86_64__)

#include "base/crc32c_impl.h"

#include <immintrin.h>
#include <string.h>

#define TARGET_SSE42   __attribute__((target("sse4.2,pclmul")))
#define TARGET_VPCLMUL __attribute__((target("avx512f,avx512vl,avx512bw,vpclmulqdq,pclmul,sse4.2")))

/* --- sse4.2 --- */

#define STREAMS_TARGET TARGET_SSE42

TARGET_SSE42 INLINE uint64_t crc_u64(uint64_t crc, uint64_t word) {
    return _mm_crc32_u64(crc, word);
}

TARGET_SSE42 INLINE uint64_t crc_u8(uint64_t crc, uint8_t byte) {
    return _mm_crc32_u8((uint32_t)crc, byte);
}

TARGET_SSE42 INLINE uint64_t clmul(uint64_t a, uint64_t b) {
    return (uint64_t)_mm_cvtsi128_si64(
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)a), _mm_cvtsi64_si128((long long)b), 0));
}

INLINE void store_u64(uint8_t *dst, uint64_t word, enum stores stores) {
    if (stores == STORE_CACHED) memcpy(dst, &word, 8);
    /* By hand: clang 14 turns _mm_stream_si64 into a plain store here. */
    if (stores == STORE_STREAM)
        __asm__ volatile("movnti %1, %0" : "=m"(*(uint64_t *)(void *)dst) : "r"(word));
}

#include "base/crc32c_streams.h"

static bool sse42_usable(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul")) return false;
    streams_prepare();
    return true;
}

TARGET_SSE42 static uint32_t sse42_update(uint32_t state, const uint8_t *src, size_t len) {
    return streams_run(state, (uint8_t *)(uintptr_t)src, src, len, STORE_NONE, NULL);
}

TARGET_SSE42 static uint32_t sse42_copy(uint32_t state, uint8_t *dst, const uint8_t *src,
                                        size_t len, bool past_cache, const uint8_t *next) {
    if (!past_cache) return streams_run(state, dst, src, len, STORE_CACHED, next);
    size_t head = -(uintptr_t)dst & 63;
    state = serial(state, dst, src, head, STORE_CACHED);
    return streams_run(state, dst + head, src + head, len - head, STORE_STREAM, next);
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

INLINE void prefetch_step(const uint8_t *at) {
    for (size_t i = 0; i < STEP; i += 64) __builtin_prefetch(at + i);
}

TARGET_VPCLMUL INLINE uint32_t vpclmul_run(uint32_t state, uint8_t *dst, const uint8_t *src,
                                           size_t len, enum stores stores, const uint8_t *next) {
    if (len < STEP) return serial(state, dst, src, len, stores);

    __m512i by = _mm512_broadcast_i32x4(fold_lane(&fold_2048));
    __m512i z0 = move_64(dst, src, stores), z1 = move_64(dst + 64, src + 64, stores);
    __m512i z2 = move_64(dst + 128, src + 128, stores), z3 = move_64(dst + 192, src + 192, stores);
    z0 = _mm512_xor_si512(z0, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    size_t at = STEP;
    if (next != NULL) prefetch_step(next);
    for (; len - at >= STEP; at += STEP) {
        if (next != NULL) prefetch_step(next + at);
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
    return vpclmul_run(state, (uint8_t *)(uintptr_t)src, src, len, STORE_NONE, NULL);
}

TARGET_VPCLMUL static uint32_t vpclmul_copy(uint32_t state, uint8_t *dst, const uint8_t *src,
                                            size_t len, bool past_cache, const uint8_t *next) {
    if (!past_cache) return vpclmul_run(state, dst, src, len, STORE_CACHED, next);
    size_t head = -(uintptr_t)dst & 63;
    state = serial(state, dst, src, head, STORE_CACHED);
    return vpclmul_run(state, dst + head, src + head, len - head, STORE_STREAM, next);
}

const struct crc32c_impl crc32c_vpclmul_impl = {"vpclmulqdq", vpclmul_usable, vpclmul_update,
                                                vpclmul_copy};

#endif
