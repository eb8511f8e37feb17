/* What is on the disk of an ssd tier: inside src/pool only. All numbers are little-endian.
 *
 *   0        superblock, twice, 4 KiB each
 *   1 MiB    region 0 │ region 1 │ ...            of one size, a power of two
 *
 * A unit is one region, or a run of neighbours that were taken together for large values. It is
 * written once from its start to its end, in batches, and then read until all of it is given up:
 *
 *   unit     ├ header ┤├ values ...      ┤├ header ┤├ values ...   ┤├ header ┤ ...
 *            └──────── batch 0 ──────────┘└─────── batch 1 ────────┘
 *
 * A batch's values are written first, its header after them, and headers in the order of the log:
 * so a header that is whole proves its values and everything before it. Where no header of this
 * unit follows, the unit ends. A header names its unit by a random number (the nonce), so that what
 * is left of an older unit in the same place is never taken for a part of this one; and it carries
 * a keyed hash, so that a value which looks like a header is none either.
 *
 * The header lists the batch's records (struct tier_record): an entry for each value, and notes
 * about entries anywhere on the disk: dropped, or renamed to another version. A note is never in an
 * older unit than its entry. A unit that is given up gets its first header overwritten with zeroes,
 * after the notes in it that still mean something were written once more elsewhere. */
#ifndef TARN_POOL_SSD_FORMAT_H
#define TARN_POOL_SSD_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/assert.h"
#include "pool/tier_internal.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the structs below are what is on disk");

#define SSD_BLOCK       4096u /* everything is written in these */
#define SSD_DATA_START  (1ull << 20)
#define SSD_REGION_MIN  (256ull << 10)
#define SSD_REGION_MAX  (64ull << 20)
#define SSD_REGIONS_MIN 8u
#define SSD_REGIONS_MAX (1u << 20)
#define SSD_HEADER_MAX  (16ull << 20) /* a value of 1 TiB has 4 MiB of checksums */

#define SSD_SUPER_MAGIC   "TARNSSD1"
#define SSD_SUPER_VERSION 1u
#define SSD_BATCH_MAGIC   "TARNBAT1"
#define SSD_KEY_SIZE      16u
#define SSD_STAMP_SIZE    16u

struct ssd_superblock {
    char magic[8];
    uint32_t version;
    uint32_t features;   /* unknown bits in the lower half: refuse; in the upper half: ignore */
    uint64_t generation; /* of two good copies the one with the larger number counts */
    uint64_t region_size;
    uint64_t regions;
    uint64_t created_wall_ms;
    uint8_t content[TIER_CONTENT_SIZE];
    uint8_t key[SSD_KEY_SIZE]; /* of the stamps */
    uint32_t zero;
    uint32_t crc; /* CRC-32C of all before it */
};
static_assert(offsetof(struct ssd_superblock, content) == 48, "superblock layout");
static_assert(offsetof(struct ssd_superblock, crc) == 84, "superblock layout");
static_assert(sizeof(struct ssd_superblock) == 88, "superblock layout");

struct ssd_batch_header {
    char magic[8];
    uint64_t seq;       /* of the unit: its age */
    uint64_t nonce;     /* of the unit: its name */
    uint64_t position;  /* of this header in the file */
    uint64_t data_size; /* bytes of values behind the header, whole blocks */
    /* the unit that was written before this one, and how many batches it got */
    uint64_t before_nonce;
    uint32_t before_batches;
    uint32_t index;        /* of this batch in the unit */
    uint32_t regions;      /* of the unit */
    uint32_t header_size;  /* with records and padding, whole blocks */
    uint32_t records;      /* how many follow */
    uint32_t records_size; /* their bytes */
    uint64_t zero;
    uint8_t stamp[SSD_STAMP_SIZE]; /* keyed hash of header and records, this field being zero */
};
static_assert(offsetof(struct ssd_batch_header, before_batches) == 48, "batch layout");
static_assert(offsetof(struct ssd_batch_header, stamp) == 80, "batch layout");
static_assert(sizeof(struct ssd_batch_header) == 96, "batch layout");

#define SSD_NOTE_SIZE ((uint32_t)sizeof(struct tier_record))

static inline uint64_t ssd_align(uint64_t n, uint64_t to) {
    return (n + to - 1) & ~(to - 1);
}
/* Values lie where DESIGN wants extents: on 64 bytes, from 4 KiB on on 4 KiB. No two begin at the
 * same place. */
static inline uint64_t ssd_value_start(uint64_t at, uint64_t size) {
    return ssd_align(at, size < SSD_BLOCK ? 64 : SSD_BLOCK);
}
static inline uint64_t ssd_value_end(uint64_t start, uint64_t size) {
    return start + (size == 0 ? 64 : ssd_align(size, 64));
}
static inline uint64_t ssd_header_size(uint64_t records_size) {
    return ssd_align(sizeof(struct ssd_batch_header) + records_size, SSD_BLOCK);
}

void ssd_super_seal(struct ssd_superblock *b);
/* Whole, and of a version and geometry that this code knows. */
bool ssd_super_valid(const struct ssd_superblock *b);

/* header is followed by its records and zeroes: header_size bytes at all. */
void ssd_batch_seal(struct ssd_batch_header *header, const uint8_t key[SSD_KEY_SIZE]);
/* Is this block the beginning of the batch that the unit (seq, nonce; 0: any) continues with at
 * position? Looks at the first block only. */
bool ssd_batch_expected(const struct ssd_batch_header *header, uint64_t seq, uint64_t nonce,
                        uint32_t index, uint64_t position);
/* Is it whole, and does it make sense in all it says? header_size bytes are there. end: where the
 * unit's space ends. */
bool ssd_batch_valid(struct ssd_batch_header *header, const uint8_t key[SSD_KEY_SIZE],
                     uint64_t end);

#endif
