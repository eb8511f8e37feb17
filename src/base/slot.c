/* Slicing-by-8 (Kounavis and Berry 2005): eight bytes a step, by tables that are made before
 * main(). */
#include "base/slot.h"

#include <string.h>

#define POLY 0x1021u

/* slice[k][b]: what b leaves when k bytes follow it. */
static uint16_t slice[8][256];

__attribute__((constructor)) static void slice_init(void) {
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

uint16_t crc16(struct span bytes) {
    const unsigned char *p = (const unsigned char *)bytes.data;
    size_t n = bytes.len;
    unsigned crc = 0;
    for (; n >= 8; p += 8, n -= 8)
        crc = slice[7][p[0] ^ crc >> 8] ^ slice[6][p[1] ^ (crc & 0xff)] ^ slice[5][p[2]] ^
              slice[4][p[3]] ^ slice[3][p[4]] ^ slice[2][p[5]] ^ slice[1][p[6]] ^ slice[0][p[7]];
    for (; n > 0; p++, n--) crc = (crc << 8 & 0xffff) ^ slice[0][crc >> 8 ^ *p];
    return (uint16_t)crc;
}

struct span slot_tag(struct span key) {
    const char *open = key.len > 0 ? memchr(key.data, '{', key.len) : NULL;
    if (open == NULL) return key;
    size_t rest = key.len - (size_t)(open + 1 - key.data);
    const char *close = rest > 0 ? memchr(open + 1, '}', rest) : NULL;
    return close == NULL || close == open + 1 ? key : span_of(open + 1, (size_t)(close - open - 1));
}

uint32_t slot_of_key(struct span key) {
    return crc16(slot_tag(key)) & (SLOT_COUNT - 1);
}
