/* What the implementations of CRC16 share: inside src/base only. */
#ifndef TARN_BASE_CRC16_IMPL_H
#define TARN_BASE_CRC16_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct crc16_impl {
    const char *name;
    bool (*usable)(void); /* on this CPU */
    uint16_t (*of)(const uint8_t *src, size_t len);
};

extern const struct crc16_impl crc16_table_impl;
#if defined(__x86_64__) || defined(__aarch64__)
extern const struct crc16_impl crc16_clmul_impl;
#endif

#endif
