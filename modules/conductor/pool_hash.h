/* Hashes of a prompt's blocks as engines' connectors make them of its tokens: what their keys in
 * the pool end with. A SHA-256 for each block, which covers all blocks before it:
 *
 *     tarn     seed = SHA-256("tarn.chain/2\0", u32 tokens of a block, the chain's extras), then
 *              SHA-256(hash before, u32 number of tokens, u32 tokens, no extras), of which the
 *              first two bytes are those of the hash before but where a stretch begins
 *              (docs/engines/PREFIX.md; tests/python/chain_test.py has its known answers)
 *     sglang   SHA-256(hash before, u32 tokens), of the first block SHA-256(u32 tokens): what
 *              SGLang calls pages in its storage, whatever the salt
 *
 * Integers are little-endian. Hashes are made as they are needed, and kept as text as it stands in
 * keys: hexadecimal, the first two bytes in braces, by which a pool of several masters has a
 * stretch with one of them. Pure. */
#ifndef TARN_CONDUCTOR_POOL_HASH_H
#define TARN_CONDUCTOR_POOL_HASH_H

#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "tls/sha256.h"

enum pool_hashing { POOL_HASH_TARN = 1, POOL_HASH_SGLANG };
#define POOL_HASH_BYTES SHA256_BYTES
#define POOL_HASH_TAG   2u                        /* bytes that a stretch has in common */
#define POOL_HASH_TEXT  (2 * POOL_HASH_BYTES + 2) /* {258f}1d12... */

/* Borrowed. A text whose data is NULL is none, which is not the same as one without bytes. */
struct pool_prompt {
    struct span tokens; /* u32, little-endian */
    struct span lora, salt, revision;
};

struct pool_hashes {
    enum pool_hashing hashing;
    struct span tokens;
    uint32_t unit; /* tokens of a block */
    size_t made;
    uint8_t last[POOL_HASH_BYTES];
    size_t last_len;    /* 0: there is nothing before the first block */
    struct span *text;  /* of those that are made */
    struct buf storage; /* its own memory, used again, and that of text */
    struct sha256 *digest;
};

/* The whole blocks of a prompt, up to max; returns how many there are, none of them made. */
size_t pool_hashes_begin(struct pool_hashes *h, enum pool_hashing hashing, uint32_t unit,
                         const struct pool_prompt *prompt, size_t max);
/* h->text[0] to [n - 1] are there then. arg: the struct pool_hashes. */
void pool_hashes_make(void *arg, size_t n);
void pool_hashes_free(struct pool_hashes *h);

#endif
