/* CRC-32C with the instructions of arm64: crc32c in three streams that pmull joins, or in one where
 * the CPU has no pmull. A wider form of carry-less products is left out: three streams take eight
 * bytes a cycle where one crc32c starts in each (Neoverse V2, as its maker says; not measured). */
#if defined(__aarch64__)

#include <arm_neon.h>
#include <string.h>
#include <sys/auxv.h>

#include "base/crc32c_impl.h"

#define STREAMS_TARGET

#ifndef HWCAP_PMULL
#define HWCAP_PMULL (1u << 4)
#define HWCAP_CRC32 (1u << 7)
#endif

/* By hand: gcc and clang differ in what makes the intrinsics of an extension visible. */
INLINE uint64_t crc_u64(uint64_t crc, uint64_t word) {
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}

INLINE uint64_t crc_u8(uint64_t crc, uint8_t byte) {
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)byte));
    return crc;
}

INLINE uint64_t clmul(uint64_t a, uint64_t b) {
    uint64x2_t product;
    __asm__(".arch_extension aes\n\tpmull %0.1q, %1.1d, %2.1d"
            : "=w"(product)
            : "w"(vcreate_u64(a)), "w"(vcreate_u64(b)));
    return vgetq_lane_u64(product, 0);
}

/* These CPUs notice by themselves when whole lines are written, and fetch them no more. */
INLINE void store_u64(uint8_t *dst, uint64_t word, enum stores stores) {
    if (stores != STORE_NONE) memcpy(dst, &word, 8);
}

#include "base/crc32c_streams.h"

static bool crc32_usable(void) {
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}

static uint32_t crc32_update(uint32_t state, const uint8_t *src, size_t len) {
    return serial(state, NULL, src, len, STORE_NONE);
}

static uint32_t crc32_copy(uint32_t state, uint8_t *dst, const uint8_t *src, size_t len,
                           bool past_cache, const uint8_t *next) {
    (void)past_cache;
    (void)next;
    return serial(state, dst, src, len, STORE_CACHED);
}

const struct crc32c_impl crc32c_crc32_impl = {"crc32", crc32_usable, crc32_update, crc32_copy};

static bool pmull_usable(void) {
    if (!crc32_usable() || (getauxval(AT_HWCAP) & HWCAP_PMULL) == 0) return false;
    streams_prepare();
    return true;
}

static uint32_t pmull_update(uint32_t state, const uint8_t *src, size_t len) {
    return streams_run(state, (uint8_t *)(uintptr_t)src, src, len, STORE_NONE, NULL);
}

static uint32_t pmull_copy(uint32_t state, uint8_t *dst, const uint8_t *src, size_t len,
                           bool past_cache, const uint8_t *next) {
    (void)past_cache;
    return streams_run(state, dst, src, len, STORE_CACHED, next);
}

const struct crc32c_impl crc32c_pmull_impl = {"pmull", pmull_usable, pmull_update, pmull_copy};

#endif
