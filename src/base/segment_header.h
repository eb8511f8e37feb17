/* The 4 KiB in front of every segment's advertised bytes. Written by the host that owns the segment
 * (src/pool), read by everyone who maps it or reaches it by RDMA (src/transport): that is why it
 * lives down here.
 *
 * Two parts. The fixed one says what this memory is and carries a CRC. The live one, on a cache
 * line of its own, holds the epochs and the instance, which change while others look; they are read
 * and written with atomics, and read again after every copy. docs/DATA-PROTOCOL.md has the byte
 * table. */
#ifndef TARN_BASE_SEGMENT_HEADER_H
#define TARN_BASE_SEGMENT_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "base/crc32c.h"

#define SEGMENT_HEADER_SIZE    4096u
#define SEGMENT_HEADER_MAGIC   "TARNSEG1"
#define SEGMENT_HEADER_VERSION 2u
#define SEGMENT_NAME_MAX       63u
#define SEGMENT_CONTENT_SIZE   16u

struct segment_header {
    char magic[8];
    uint32_t version;
    /* bits an older reader may ignore are in the upper half; unknown lower bits: refuse */
    uint32_t features;
    uint32_t segment_id; /* and epoch: what it was last served under; 0: never */
    uint32_t header_size;
    uint64_t size; /* advertised bytes */
    uint64_t created_wall_ms;
    char boot_id[40]; /* /proc/sys/kernel/random/boot_id at creation, zero-padded */
    char name[SEGMENT_NAME_MAX + 1];
    /* random, made with the content; the same as long as that is */
    uint8_t content[SEGMENT_CONTENT_SIZE];
    uint32_t epoch;
    uint32_t crc; /* CRC-32C of all before it */
    uint8_t pad[88];
    uint32_t master_epoch;  /* offset 256; atomics only */
    uint32_t segment_epoch; /* offset 260; atomics only; 0 while the segment is not served */
    /* offset 264; atomics only; grows whenever another process opens a pool file */
    uint32_t instance;
    /* offset 268; the host's: whoever maps it writable did so under this master epoch or a later
     * one */
    uint32_t peers_epoch;
};
_Static_assert(offsetof(struct segment_header, crc) == 164, "segment header layout");
_Static_assert(offsetof(struct segment_header, master_epoch) == 256, "segment header layout");
_Static_assert(sizeof(struct segment_header) <= SEGMENT_HEADER_SIZE, "segment header layout");

static inline uint32_t segment_header_crc(const struct segment_header *h) {
    return crc32c(0, h, offsetof(struct segment_header, crc));
}
/* A header of this version whose fixed part is whole. h may be memory that others write: pass a
 * copy if that matters. */
static inline bool segment_header_valid(const struct segment_header *h) {
    return memcmp(h->magic, SEGMENT_HEADER_MAGIC, sizeof(h->magic)) == 0 &&
           h->version == SEGMENT_HEADER_VERSION && (h->features & 0xffffu) == 0 &&
           h->header_size == SEGMENT_HEADER_SIZE && h->crc == segment_header_crc(h);
}
static inline uint32_t segment_header_master_epoch(const struct segment_header *h) {
    return __atomic_load_n(&h->master_epoch, __ATOMIC_ACQUIRE);
}
static inline uint32_t segment_header_segment_epoch(const struct segment_header *h) {
    return __atomic_load_n(&h->segment_epoch, __ATOMIC_ACQUIRE);
}
/* Who finds it changed holds on to a mapping that the process behind the segment does not know
 * of. */
static inline uint32_t segment_header_instance(const struct segment_header *h) {
    return __atomic_load_n(&h->instance, __ATOMIC_ACQUIRE);
}
/* To be called after a copy out of the segment: are both epochs still what they were? The fence
 * keeps the copy's loads from sinking below the epoch loads. */
static inline bool segment_header_unchanged(const struct segment_header *h, uint32_t master_epoch,
                                            uint32_t segment_epoch) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return segment_header_master_epoch(h) == master_epoch &&
           segment_header_segment_epoch(h) == segment_epoch;
}

#endif
