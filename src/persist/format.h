/* The bytes of a file, for who writes and who reads them. */
#ifndef TARN_PERSIST_FORMAT_H
#define TARN_PERSIST_FORMAT_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/crc32c.h"

#define PERSIST_MAGIC "TARNBOOK"

struct persist_disk_header {
    char magic[8];
    uint32_t version, header_size;
    uint8_t cluster_id[16];
    uint64_t offset, wall_ms;
    uint32_t master_epoch;
    char replid[41];
    uint8_t zero[31];
    uint32_t crc; /* of the bytes before */
};
static_assert(sizeof(struct persist_disk_header) == 128, "header");

struct persist_frame {
    uint32_t length, crc;
};
static_assert(sizeof(struct persist_frame) == 8, "frame");

#define PERSIST_PACKED                                                                             \
    (UINT32_C(1) << 31) /* of a frame's length: u32 bytes of the records, then an LZ4 block */

static inline uint32_t persist_frame_crc(uint64_t at, struct span records) {
    return crc32c(crc32c(0, &at, sizeof(at)), records.data, records.len);
}

#endif
