/* CRC16/XMODEM (polynomial 0x1021, from 0, no reflection), chosen at run time: carry-less products
 * of x86-64 or arm64, else a table. Thread-safe. */
#ifndef TARN_BASE_CRC16_H
#define TARN_BASE_CRC16_H

#include <stdint.h>
#include "base/buf.h"

uint16_t crc16(struct span bytes);
/* Tests: use a given implementation, "clmul" or "table"; 0 when this CPU lacks it. */
int crc16_force(const char *impl);

#endif
