/* Assertions that stay on in release, and object magic.
 *
 * TARN_ASSERT is for what tarn promised itself; never for bytes from a network or a disk. Objects
 * that live long start with `uint32_t magic`; MAGIC_CHECK catches use after destroy and wrong
 * casts. */
#ifndef TARN_BASE_ASSERT_H
#define TARN_BASE_ASSERT_H

#include <stddef.h>
#include <stdint.h>

/* Where src/base is on the include path, <assert.h> means this file. */
#ifndef static_assert
#define static_assert _Static_assert
#endif

_Noreturn void assert_failed(const char *expr, const char *file, int line, const char *func);

#define TARN_ASSERT(expr)                                                                          \
    do {                                                                                           \
        if (__builtin_expect(!(expr), 0)) assert_failed(#expr, __FILE__, __LINE__, __func__);      \
    } while (0)

#define MAGIC_CHECK(ptr, value) TARN_ASSERT((ptr) != NULL && (ptr)->magic == (value))

#define LIKELY(x)   __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

#define ARRAY_LEN(a)                    (sizeof(a) / sizeof((a)[0]))
#define CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}
static inline uint64_t max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

#endif
