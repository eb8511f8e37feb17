/* Writing and checking what is on the disk of an ssd tier. Nothing here trusts a byte of it. */
#include "pool/ssd_format.h"

#include <sodium.h>
#include <string.h>

#include "base/crc32c.h"

static_assert(SSD_STAMP_SIZE == crypto_shorthash_siphashx24_BYTES,
              "a stamp is a SipHash of 128 bits");
static_assert(SSD_KEY_SIZE == crypto_shorthash_siphashx24_KEYBYTES, "its key");

void ssd_super_seal(struct ssd_superblock *b) {
    b->crc = crc32c(0, b, offsetof(struct ssd_superblock, crc));
}

bool ssd_super_valid(const struct ssd_superblock *b) {
    return memcmp(b->magic, SSD_SUPER_MAGIC, sizeof(b->magic)) == 0 &&
           b->crc == crc32c(0, b, offsetof(struct ssd_superblock, crc)) &&
           b->version == SSD_SUPER_VERSION && (b->features & 0xffffu) == 0 &&
           b->region_size >= SSD_REGION_MIN && b->region_size <= SSD_REGION_MAX &&
           (b->region_size & (b->region_size - 1)) == 0 && b->regions >= SSD_REGIONS_MIN &&
           b->regions <= SSD_REGIONS_MAX;
}

static void stamp_of(struct ssd_batch_header *h, const uint8_t key[SSD_KEY_SIZE],
                     uint8_t stamp[SSD_STAMP_SIZE]) {
    uint8_t there[SSD_STAMP_SIZE];
    memcpy(there, h->stamp, sizeof(there));
    memset(h->stamp, 0, sizeof(h->stamp));
    crypto_shorthash_siphashx24(stamp, (const uint8_t *)h, sizeof(*h) + h->records_size, key);
    memcpy(h->stamp, there, sizeof(there));
}

void ssd_batch_seal(struct ssd_batch_header *header, const uint8_t key[SSD_KEY_SIZE]) {
    uint8_t stamp[SSD_STAMP_SIZE];
    stamp_of(header, key, stamp);
    memcpy(header->stamp, stamp, sizeof(stamp));
}

bool ssd_batch_expected(const struct ssd_batch_header *h, uint64_t seq, uint64_t nonce,
                        uint32_t index, uint64_t position) {
    return memcmp(h->magic, SSD_BATCH_MAGIC, sizeof(h->magic)) == 0 && h->position == position &&
           h->index == index && h->nonce != 0 && h->seq < 1ull << 62 &&
           (nonce == 0 || (h->nonce == nonce && h->seq == seq));
}

static bool note_valid(const struct tier_record *r) {
    return (r->kind == TIER_DROPPED || r->kind == TIER_RENAMED) && r->size == SSD_NOTE_SIZE &&
           r->key_size == 0 && r->n_crcs == 0;
}

/* The entry begins in [*from, to); *from becomes its end. */
static bool entry_valid(const struct tier_record *r, uint64_t *from, uint64_t to) {
    if (r->kind != TIER_ENTRY || r->key_size == 0 || r->key_size > TIER_KEY_MAX) return false;
    if (r->offset < *from || r->offset >= to || r->value > to - r->offset) return false;
    if (r->offset != ssd_value_start(r->offset, r->value)) return false;
    if (r->n_crcs != tier_pieces(r->value)) return false;
    *from = ssd_value_end(r->offset, r->value);
    return *from <= to;
}

static bool records_valid(const struct ssd_batch_header *h) {
    const char *at = (const char *)(h + 1), *end = at + h->records_size;
    uint64_t from = h->position + h->header_size, to = from + h->data_size;
    for (uint32_t i = 0; i < h->records; i++) {
        if ((size_t)(end - at) < sizeof(struct tier_record)) return false;
        const struct tier_record *r = (const struct tier_record *)(const void *)at;
        if (r->size > (size_t)(end - at) || r->n_crcs > SSD_HEADER_MAX / sizeof(uint32_t) ||
            r->size != tier_record_size(r->key_size, r->n_crcs)) {
            return false;
        }
        if (!note_valid(r) && !entry_valid(r, &from, to)) return false;
        at += r->size;
    }
    return at == end;
}

bool ssd_batch_valid(struct ssd_batch_header *h, const uint8_t key[SSD_KEY_SIZE], uint64_t end) {
    if (h->header_size % SSD_BLOCK != 0 || h->data_size % SSD_BLOCK != 0) return false;
    if (h->records_size > SSD_HEADER_MAX || h->header_size != ssd_header_size(h->records_size))
        return false;
    if (h->position > end || h->header_size > end - h->position ||
        h->data_size > end - h->position - h->header_size) {
        return false;
    }
    uint8_t stamp[SSD_STAMP_SIZE];
    stamp_of(h, key, stamp);
    return memcmp(stamp, h->stamp, sizeof(stamp)) == 0 && records_valid(h);
}
