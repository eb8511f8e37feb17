/* Engines' batches of KV events in msgpack, as msgspec writes them (shortest forms): for tests, and
 * for stand-in engines. Arrays and maps are begun with their number of elements; the elements
 * follow. */
#ifndef TARN_TESTS_KVEVENTS_PACK_H
#define TARN_TESTS_KVEVENTS_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"

static inline void pack_be(struct buf *b, uint8_t head, uint64_t v, unsigned bytes) {
    buf_append_char(b, (char)head);
    while (bytes-- > 0) buf_append_char(b, (char)(v >> 8 * bytes));
}
static inline void pack_nil(struct buf *b) {
    buf_append_char(b, (char)0xc0);
}
static inline void pack_uint(struct buf *b, uint64_t v) {
    if (v < 128)
        buf_append_char(b, (char)v);
    else if (v <= UINT8_MAX)
        pack_be(b, 0xcc, v, 1);
    else if (v <= UINT16_MAX)
        pack_be(b, 0xcd, v, 2);
    else if (v <= UINT32_MAX)
        pack_be(b, 0xce, v, 4);
    else
        pack_be(b, 0xcf, v, 8);
}
static inline void pack_float(struct buf *b, double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof(bits));
    pack_be(b, 0xcb, bits, 8);
}
/* what begins with a length: its short form (0: none) up to `most`, forms with 1, 2, 4 bytes */
static inline void pack_head(struct buf *b, size_t n, uint8_t small, size_t most, uint8_t h8,
                             uint8_t h16, uint8_t h32) {
    if (small != 0 && n <= most)
        buf_append_char(b, (char)(small | n));
    else if (h8 != 0 && n <= UINT8_MAX)
        pack_be(b, h8, n, 1);
    else if (n <= UINT16_MAX)
        pack_be(b, h16, n, 2);
    else
        pack_be(b, h32, n, 4);
}
static inline void pack_array(struct buf *b, size_t n) {
    pack_head(b, n, 0x90, 15, 0, 0xdc, 0xdd);
}
static inline void pack_map(struct buf *b, size_t n) {
    pack_head(b, n, 0x80, 15, 0, 0xde, 0xdf);
}
static inline void pack_str(struct buf *b, const char *s) {
    pack_head(b, strlen(s), 0xa0, 31, 0xd9, 0xda, 0xdb);
    buf_append_str(b, s);
}
static inline void pack_bin(struct buf *b, const void *data, size_t n) {
    pack_head(b, n, 0, 0, 0xc4, 0xc5, 0xc6);
    buf_append(b, data, n);
}

/* [ts, [events]] and, with has_rank, the rank: the caller appends the events, then the rank. */
static inline void pack_batch(struct buf *b, double ts, size_t events, bool has_rank) {
    pack_array(b, has_rank ? 3 : 2);
    pack_float(b, ts);
    pack_array(b, events);
}

static inline void pack_hashes(struct buf *b, const uint64_t *hash, size_t n) {
    pack_array(b, n);
    for (size_t i = 0; i < n; i++) pack_uint(b, hash[i]);
}
static inline void pack_tokens(struct buf *b, const uint32_t *token, size_t n) {
    pack_array(b, n);
    for (size_t i = 0; i < n; i++) pack_uint(b, token[i]);
}

/* Events of vLLM 0.26 and later. parent: NULL for none. */
static inline void pack_stored(struct buf *b, const uint64_t *parent, const uint64_t *hash,
                               size_t n, const uint32_t *token, uint32_t block) {
    pack_map(b, 10);
    pack_str(b, "type"), pack_str(b, "BlockStored");
    pack_str(b, "block_hashes"), pack_hashes(b, hash, n);
    pack_str(b, "parent_block_hash");
    if (parent != NULL)
        pack_uint(b, *parent);
    else
        pack_nil(b);
    pack_str(b, "token_ids"), pack_tokens(b, token, n * block);
    pack_str(b, "block_size"), pack_uint(b, block);
    pack_str(b, "lora_id"), pack_nil(b);
    pack_str(b, "medium"), pack_str(b, "GPU");
    pack_str(b, "lora_name"), pack_nil(b);
    pack_str(b, "group_idx"), pack_uint(b, 0);
    pack_str(b, "kv_cache_spec_kind"), pack_str(b, "full_attention");
}
static inline void pack_removed(struct buf *b, const uint64_t *hash, size_t n) {
    pack_map(b, 4);
    pack_str(b, "type"), pack_str(b, "BlockRemoved");
    pack_str(b, "block_hashes"), pack_hashes(b, hash, n);
    pack_str(b, "medium"), pack_str(b, "GPU");
    pack_str(b, "group_idx"), pack_uint(b, 0);
}
static inline void pack_cleared(struct buf *b) {
    pack_map(b, 1);
    pack_str(b, "type"), pack_str(b, "AllBlocksCleared");
}

#endif
