/* CRC-32C: the choice of an implementation, the one for any CPU, and the algebra of combining.
 *
 * The table is slicing-by-8 (Kounavis and Berry 2005). Combining multiplies by a power of x modulo
 * P, which square and multiply finds in O(log n). */
#include "base/crc32c.h"

#include <stdatomic.h>
#include <string.h>

#include "base/assert.h"
#include "base/crc32c_impl.h"

#define POLY 0x82F63B78u
#define ONE  0x80000000u /* x^0 */

static uint32_t slice[8][256];
static uint32_t x_squared[64]; /* x^(2^k) */

static const struct crc32c_impl *const impls[] = {
#if defined(__x86_64__)
    &crc32c_vpclmul_impl,
    &crc32c_sse42_impl,
#elif defined(__aarch64__)
    &crc32c_pmull_impl,
    &crc32c_crc32_impl,
#endif
    &crc32c_table_impl,
};
static bool usable[ARRAY_LEN(impls)];
static const struct crc32c_impl *_Atomic active;

/* --- algebra --- */

static uint32_t times_x(uint32_t a) {
    return (a >> 1) ^ (a & 1 ? POLY : 0);
}

static uint32_t poly_times(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (; a != 0; a <<= 1) {
        if (a & ONE) product ^= b;
        b = times_x(b);
    }
    return product;
}

uint32_t crc32c_x_to_the(uint64_t n) {
    uint32_t product = ONE;
    for (unsigned k = 0; n != 0; n >>= 1, k++) {
        if (n & 1) product = poly_times(product, x_squared[k]);
    }
    return product;
}

uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b) {
    if (crc_a == 0) return crc_b; /* what follows would come to the same: the first piece, mostly */
    /* crc(A B) = crc(A) x^(8 len(B)) + crc(B): the complements of both cancel out. In two factors,
     * 8 len might not fit. */
    uint32_t shift = crc32c_x_to_the(len_b);
    for (int i = 0; i < 3; i++) shift = poly_times(shift, shift);
    return poly_times(shift, crc_a) ^ crc_b;
}

/* --- slicing-by-8 --- */

static bool table_usable(void) {
    return true;
}

static uint32_t table_update(uint32_t state, const uint8_t *src, size_t len) {
    for (; len >= 8; src += 8, len -= 8) {
        uint64_t word;
        memcpy(&word, src, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap64(word);
#endif
        word ^= state;
        state = 0;
        for (int i = 0; i < 8; i++) state ^= slice[7 - i][(word >> (8 * i)) & 0xff];
    }
    for (; len > 0; src++, len--) state = (state >> 8) ^ slice[0][(state ^ *src) & 0xff];
    return state;
}

/* Piece by piece, so that the copy is still in the first-level cache when it is checked. */
static uint32_t table_copy(uint32_t state, uint8_t *dst, const uint8_t *src, size_t len,
                           bool past_cache, const uint8_t *next) {
    (void)past_cache;
    (void)next;
    while (len > 0) {
        size_t piece = min_u64(len, 4096);
        memcpy(dst, src, piece);
        state = table_update(state, dst, piece);
        dst += piece;
        src += piece;
        len -= piece;
    }
    return state;
}

const struct crc32c_impl crc32c_table_impl = {"table", table_usable, table_update, table_copy};

/* --- choice --- */

__attribute__((constructor)) static void crc32c_init(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++) state = times_x(state);
        slice[0][byte] = state;
    }
    for (int i = 1; i < 8; i++) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = slice[i - 1][byte];
            slice[i][byte] = (before >> 8) ^ slice[0][before & 0xff];
        }
    }
    x_squared[0] = ONE >> 1;
    for (unsigned k = 1; k < ARRAY_LEN(x_squared); k++)
        x_squared[k] = poly_times(x_squared[k - 1], x_squared[k - 1]);

    for (size_t i = ARRAY_LEN(impls); i-- > 0;) {
        usable[i] = impls[i]->usable();
        if (usable[i]) atomic_store(&active, impls[i]);
    }
}

static const struct crc32c_impl *chosen(void) {
    return atomic_load_explicit(&active, memory_order_relaxed);
}

uint32_t crc32c(uint32_t crc, const void *data, size_t len) {
    return ~chosen()->update(~crc, data, len);
}

uint32_t crc32c_copy(uint32_t crc, void *dst, const void *src, size_t len) {
    bool past_cache = len >= CRC32C_STREAM_MIN;
    crc = ~chosen()->copy(~crc, dst, src, len, past_cache, NULL);
    if (past_cache) crc32c_past_end();
    return crc;
}

uint32_t crc32c_copy_past(uint32_t crc, void *dst, const void *src, size_t len, const void *next) {
    return ~chosen()->copy(~crc, dst, src, len, len >= CRC32C_PAST_MIN, next);
}

void crc32c_past_end(void) {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

const char *crc32c_impl(void) {
    return chosen()->name;
}

int crc32c_force(const char *impl) {
    for (size_t i = 0; i < ARRAY_LEN(impls); i++) {
        if (!usable[i] || strcmp(impls[i]->name, impl) != 0) continue;
        atomic_store(&active, impls[i]);
        return 1;
    }
    return 0;
}
