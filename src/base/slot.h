/* Which of Redis Cluster's 16,384 slots a key belongs to: CRC16 (XMODEM: polynomial 0x1021, from 0,
 * no reflection) of its bytes, or of its hash tag: what stands between the first { and the next },
 * if that is at least a byte. Keys with one tag share a slot. */
#ifndef TARN_BASE_SLOT_H
#define TARN_BASE_SLOT_H

#include <stdint.h>
#include <string.h>
#include "base/buf.h"

#define SLOT_COUNT 16384u

/* The part of the key that counts. */
struct span slot_tag(struct span key);
uint32_t slot_of_key(struct span key);

/* Neighbours in a batch mostly have one tag: the last key's bytes up to the end of its tag, and its
 * slot. Zeroed: there was none. */
#define SLOT_HEAD_MAX 62u
struct slot_last {
    uint8_t len; /* 0: it had no tag, or more bytes before the end of it */
    char head[SLOT_HEAD_MAX];
    uint16_t slot;
};
uint32_t slot_of_other(struct slot_last *last, struct span key);
/* slot_of_key, and it is the last one from then on. */
static inline uint32_t slot_of_next(struct slot_last *last, struct span key) {
    if (last->len > 0 && key.len >= last->len && memcmp(key.data, last->head, last->len) == 0)
        return last->slot;
    return slot_of_other(last, key);
}

#endif
