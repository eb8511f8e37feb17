/* CRC16: the choice of an implementation, and the one for any CPU, slicing-by-8 (Kounavis and Berry
 * 2005): eight bytes a step, by tables that are made before main(). */
#include "base/crc16.h"

#include <string.h>

#include "base/assert.h"
#include "base/crc16_impl.h"

#define POLY 0x1021u

static const struct crc16_impl *const impls[] = {
#if defined(__x86_64__) || defined(__aarch64__)
    &crc16_clmul_impl,
#endif
    &crc16_table_impl,
};
static const struct crc16_impl *active;

/* slice[k][b]: what b leaves when k bytes follow it. */
static uint16_t slice[8][256];

static void slice_init(void) {
    for (unsigned b = 0; b < 256; b++) {
        uint16_t crc = (uint16_t)(b << 8);
        for (int bit = 0; bit < 8; bit++) crc = (uint16_t)(crc << 1 ^ (crc & 0x8000 ? POLY : 0));
        slice[0][b] = crc;
    }
    for (unsigned k = 1; k < 8; k++)
        for (unsigned b = 0; b < 256; b++) {
            uint16_t before = slice[k - 1][b];
            slice[k][b] = (uint16_t)(before << 8 ^ slice[0][before >> 8]);
        }
}

static bool table_usable(void) {
    return true;
}

static uint16_t table_of(const uint8_t *p, size_t n) {
    unsigned crc = 0;
    for (; n >= 8; p += 8, n -= 8)
        crc = slice[7][p[0] ^ crc >> 8] ^ slice[6][p[1] ^ (crc & 0xff)] ^ slice[5][p[2]] ^
              slice[4][p[3]] ^ slice[3][p[4]] ^ slice[2][p[5]] ^ slice[1][p[6]] ^ slice[0][p[7]];
    for (; n > 0; p++, n--) crc = (crc << 8 & 0xffff) ^ slice[0][crc >> 8 ^ *p];
    return (uint16_t)crc;
}

const struct crc16_impl crc16_table_impl = {"table", table_usable, table_of};

__attribute__((constructor)) static void crc16_init(void) {
    slice_init();
    for (size_t i = ARRAY_LEN(impls); i-- > 0;)
        if (impls[i]->usable()) active = impls[i];
}

uint16_t crc16(struct span bytes) {
    return active->of((const uint8_t *)bytes.data, bytes.len);
}

int crc16_force(const char *impl) {
    for (size_t i = 0; i < ARRAY_LEN(impls); i++) {
        if (strcmp(impls[i]->name, impl) != 0 || !impls[i]->usable()) continue;
        active = impls[i];
        return 1;
    }
    return 0;
}
