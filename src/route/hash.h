/* What a block of a prompt is called, whichever engine made it: the standard of the field (Mooncake
 * RFC 1403 and 1527), so that hashes of other routers and of clients mean the same here.
 *
 *     local[i]   = XXH3-64(ids of the block's tokens as little-endian u32, then EXTRA), seed
 *     rolling[0] = local[0]
 *     rolling[i] = XXH3-64(rolling[i - 1] as 8 little-endian bytes, then local[i] likewise), seed
 *
 * EXTRA is what the block's KV depends on beside its tokens: of an image, whose placeholder tokens
 * are all the same, its hash and where it begins. Its bytes mean nothing here; a block without any
 * has the standard's hash. They are part of the local hash, and so of every block that follows.
 *
 * The model, the LoRA and the salt are no part of the rolling hash: clients that hash for
 * themselves know of no such thing. They make the scope, one more number with which the index tells
 * equal prompts of different models apart.
 *
 * Nothing here has state, blocks or allocates: any thread may call it. */
#ifndef TARN_ROUTE_HASH_H
#define TARN_ROUTE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

/* Of one block. extra may be NULL when extra_len is 0. */
uint64_t route_hash_local(const uint32_t *tokens, size_t n, const void *extra, size_t extra_len,
                          uint64_t seed);

/* Of a block that follows the one whose rolling hash is `parent`. */
uint64_t route_hash_next(uint64_t parent, uint64_t local, uint64_t seed);

/* local[n] to rolling[n], which may be the same array. parent: rolling hash of the block before
 * them; NULL: they are the first. */
void route_hash_chain(const uint64_t *parent, const uint64_t *local, size_t n, uint64_t seed,
                      uint64_t *rolling);

/* EXTRA of a prompt: for each block that has any, in ascending order of the blocks,
 *
 *     u32 number of the block | u32 length | that many bytes         (little-endian)
 *
 * false: it is not of this form, or names a block twice, or has nothing for a block. */
bool route_extra_valid(const void *extra, size_t len);

/* The rolling hashes of the whole blocks of a prompt: n / block of them, at most `cap`; returns how
 * many. What EXTRA says of blocks that the prompt does not fill is of no matter. extra: as above,
 * and valid; NULL: none. block: tokens, above 0. */
size_t route_hash_prompt(const uint32_t *tokens, size_t n, uint32_t block, const void *extra,
                         size_t extra_len, uint64_t seed, uint64_t *rolling, size_t cap);

/* Model, LoRA, tenant and salt ("" where there is none) and the tokens of a block as one number.
 * Prompts of different scopes share nothing. */
uint64_t route_hash_scope(struct span model, struct span lora, struct span tenant, struct span salt,
                          uint32_t block);

/* An engine's own hash of a block when it is more than 8 bytes (SHA-256), as one number. */
uint64_t route_hash_name(const void *bytes, size_t len);

#endif
