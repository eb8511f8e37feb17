/* What the implementations of CRC-32C share: inside src/base only.
 *
 * Polynomials over GF(2) modulo P are kept reflected: bit 31 of a word is x^0, bit 0 is x^31. */
#ifndef TARN_BASE_CRC32C_IMPL_H
#define TARN_BASE_CRC32C_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* From here on stores go around the cache: such a block is not read again soon by the core that
 * copies it, and a plain store would first fetch the line that it overwrites. */
#define CRC32C_STREAM_MIN ((size_t)256 << 10)
#define CRC32C_PAST_MIN   ((size_t)4 << 10)

/* state is the CRC without its final complement. copy must load every byte of src once: another
 * process may be changing it, and the result has to be that of the bytes in dst. past_cache: its
 * stores may be seen later than others that follow, until crc32c_past_end. next: as
 * crc32c_copy_past has it. */
struct crc32c_impl {
    const char *name;
    bool (*usable)(void); /* on this CPU; called once, prepares constants */
    uint32_t (*update)(uint32_t state, const uint8_t *src, size_t len);
    uint32_t (*copy)(uint32_t state, uint8_t *dst, const uint8_t *src, size_t len, bool past_cache,
                     const uint8_t *next);
};

/* Where a form that also copies puts what it has read. */
enum stores { STORE_NONE, STORE_CACHED, STORE_STREAM };
#define INLINE static inline __attribute__((always_inline))

/* x^n mod P. */
uint32_t crc32c_x_to_the(uint64_t n);

extern const struct crc32c_impl crc32c_table_impl;
#if defined(__x86_64__)
extern const struct crc32c_impl crc32c_sse42_impl;
extern const struct crc32c_impl crc32c_vpclmul_impl;
#elif defined(__aarch64__)
extern const struct crc32c_impl crc32c_crc32_impl;
extern const struct crc32c_impl crc32c_pmull_impl;
#endif

#endif
