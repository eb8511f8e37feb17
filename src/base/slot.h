/* Which of Redis Cluster's 16,384 slots a key belongs to: CRC16 (XMODEM: polynomial 0x1021, from 0,
 * no reflection) of its bytes, or of its hash tag: what stands between the first { and the next },
 * if that is at least a byte. Keys with one tag share a slot. */
#ifndef TARN_BASE_SLOT_H
#define TARN_BASE_SLOT_H

#include <stdint.h>
#include "base/buf.h"

#define SLOT_COUNT 16384u

/* The part of the key that counts. */
struct span slot_tag(struct span key);
uint32_t slot_of_key(struct span key);

#endif
