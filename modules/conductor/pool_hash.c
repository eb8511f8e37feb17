#include "conductor/pool_hash.h"

#include <endian.h>
#include <string.h>
#include "base/assert.h"
#include "base/stretch.h"

/* --- the seed of tarn's: a list of what all blocks depend on (tarn.chain, encode) --- */

#define FIELD_HEAD 5u /* a tag, and u32 how many bytes follow */

static void field_head(uint8_t out[FIELD_HEAD], char tag, size_t len) {
    uint32_t n = htole32((uint32_t)len);
    out[0] = (uint8_t)tag;
    memcpy(out + 1, &n, sizeof(n));
}

static void field_add(struct sha256 *d, char tag, struct span payload) {
    uint8_t head[FIELD_HEAD];
    field_head(head, tag, payload.len);
    sha256_add(d, head, sizeof(head));
    sha256_add(d, payload.data, payload.len);
}

static void text_add(struct sha256 *d, struct span text) {
    field_add(d, text.data != NULL ? 'S' : 'N', text);
}

static void seed_make(struct pool_hashes *h, const struct pool_prompt *p) {
    static const char magic[] = "tarn.chain/2"; /* with its NUL */
    struct sha256 *d = h->digest;
    uint8_t head[FIELD_HEAD];
    uint32_t unit = htole32(h->unit);
    sha256_begin(d);
    sha256_add(d, magic, sizeof(magic));
    sha256_add(d, &unit, sizeof(unit));
    field_head(head, 'L', 4 * FIELD_HEAD + p->lora.len + p->salt.len + p->revision.len);
    sha256_add(d, head, sizeof(head));
    text_add(d, p->lora);
    text_add(d, p->salt);
    text_add(d, p->revision);
    field_add(d, 'L', SPAN(""));
    sha256_end(d, h->last);
    h->last_len = POOL_HASH_BYTES;
}

/* --- blocks --- */

size_t pool_hashes_begin(struct pool_hashes *h, enum pool_hashing hashing, uint32_t unit,
                         const struct pool_prompt *prompt, size_t max) {
    TARN_ASSERT(unit > 0);
    if (h->digest == NULL) h->digest = sha256_create();
    TARN_ASSERT(h->digest != NULL);
    h->hashing = hashing;
    h->tokens = prompt->tokens;
    h->unit = unit;
    h->made = 0;
    h->last_len = 0;
    if (hashing == POOL_HASH_TARN) seed_make(h, prompt);
    size_t n = min_u64(prompt->tokens.len / sizeof(uint32_t) / unit, max);
    buf_clear(&h->storage);
    buf_reserve(&h->storage, n * (sizeof(struct span) + POOL_HASH_TEXT));
    h->text = (struct span *)(void *)h->storage.data;
    for (size_t i = 0; i < n; i++)
        h->text[i] = span_of((char *)(h->text + n) + i * POOL_HASH_TEXT, POOL_HASH_TEXT);
    return n;
}

static void text_of(const uint8_t hash[POOL_HASH_BYTES], char *out) {
    static const char digits[] = "0123456789abcdef";
    *out++ = '{';
    for (size_t i = 0; i < POOL_HASH_BYTES; i++) {
        if (i == POOL_HASH_TAG) *out++ = '}';
        *out++ = digits[hash[i] >> 4];
        *out++ = digits[hash[i] & 15];
    }
}

static void block_make(struct pool_hashes *h, size_t i) {
    struct sha256 *d = h->digest;
    size_t len = (size_t)h->unit * sizeof(uint32_t);
    uint32_t unit = htole32(h->unit);
    uint8_t tag[POOL_HASH_TAG];
    memcpy(tag, h->last, sizeof(tag));
    sha256_begin(d);
    sha256_add(d, h->last, h->last_len);
    if (h->hashing == POOL_HASH_TARN) sha256_add(d, &unit, sizeof(unit));
    sha256_add(d, h->tokens.data + i * len, len);
    if (h->hashing == POOL_HASH_TARN) field_add(d, 'L', SPAN(""));
    sha256_end(d, h->last);
    h->last_len = POOL_HASH_BYTES;
    if (h->hashing == POOL_HASH_TARN && stretch_first(i) != i) memcpy(h->last, tag, sizeof(tag));
    text_of(h->last, (char *)(uintptr_t)h->text[i].data);
}

void pool_hashes_make(void *arg, size_t n) {
    struct pool_hashes *h = arg;
    for (; h->made < n; h->made++) block_make(h, h->made);
}

void pool_hashes_free(struct pool_hashes *h) {
    sha256_destroy(&h->digest);
    buf_free(&h->storage);
    *h = (struct pool_hashes){0};
}
