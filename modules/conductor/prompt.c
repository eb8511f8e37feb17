#include "conductor/prompt.h"

#include <stdio.h>
#include "base/assert.h"
#include "route/hash.h"

#define FAULT(fault, ...) (snprintf(error, PROMPT_ERROR_SIZE, __VA_ARGS__), (fault))

/* Which tenant asks is no part of it: the same prompt is the same KV. Who serves whom is known of
 * the engines. */
static uint64_t scope_of(const struct prompt_said *said, uint32_t block) {
    return route_hash_scope(said->model, said->lora, SPAN(""), said->salt, block);
}

static uint64_t *rolling_take(struct prompt *p, size_t blocks) {
    buf_reserve(&p->rolling, blocks * sizeof(uint64_t));
    uint64_t *at = (uint64_t *)(void *)(p->rolling.data + p->rolling.len);
    p->rolling.len += blocks * sizeof(uint64_t);
    return at;
}

static void chain_add(struct prompt *p, const struct prompt_said *said, uint32_t block, uint32_t n,
                      const uint64_t *rolling) {
    p->chains[p->n++] = (struct route_chain){
        .scope = scope_of(said, block), .block = block, .n = n, .rolling = rolling};
}

/* --- TOKENS --- */

static enum prompt_fault tokens_check(const struct prompt_said *said,
                                      char error[PROMPT_ERROR_SIZE]) {
    size_t tokens = said->tokens.len / sizeof(uint32_t);
    if (said->tokens.len % sizeof(uint32_t) != 0)
        return FAULT(PROMPT_CUT,
                     "TOKENS has %zu bytes, and a token takes 4: it was cut short, or is none",
                     said->tokens.len);
    if (said->length != 0 && said->length != tokens)
        return FAULT(PROMPT_CUT, "TOKENS has %zu tokens, and LENGTH says %u", tokens, said->length);
    if (!route_extra_valid(said->extra.data, said->extra.len))
        return FAULT(PROMPT_CUT,
                     "EXTRA must be, for each block that has any, in ascending order: u32 block, "
                     "u32 length, so many bytes");
    return PROMPT_RIGHT;
}

static size_t blocks_of(uint32_t tokens, uint32_t block) {
    return min_u64(tokens / block, PROMPT_BLOCKS_MAX);
}

static void tokens_hash(struct prompt *p, const struct prompt_said *said, const uint32_t *sizes,
                        uint32_t n_sizes, uint64_t seed) {
    const char *bytes = said->tokens.data;
    size_t blocks = 0;
    if ((uintptr_t)bytes % _Alignof(uint32_t) != 0) {
        buf_clear(&p->aligned);
        buf_append(&p->aligned, bytes, said->tokens.len);
        bytes = p->aligned.data;
    }
    const uint32_t *tokens = (const uint32_t *)(const void *)bytes;
    for (uint32_t i = 0; i < n_sizes; i++) blocks += blocks_of(p->length, sizes[i]);
    uint64_t *rolling = rolling_take(p, blocks); /* at once: it may move */
    for (uint32_t i = 0; i < n_sizes; i++) {
        size_t n = route_hash_prompt(tokens, p->length, sizes[i], said->extra.data, said->extra.len,
                                     seed, rolling, blocks_of(p->length, sizes[i]));
        chain_add(p, said, sizes[i], (uint32_t)n, rolling);
        rolling += n;
    }
}

/* --- HASHES --- */

static void sizes_list(const uint32_t *sizes, uint32_t n_sizes, char *out, size_t cap) {
    size_t len = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < n_sizes && len < cap; i++)
        len += (size_t)snprintf(out + len, cap - len, "%s%u", i > 0 ? ", " : "", sizes[i]);
}

/* The size of block that hashes are of, where the request does not say: the only one there is, or
 * the only one by which the prompt has so many whole blocks. 0: it cannot be told. */
static uint32_t block_guess(const struct prompt_said *said, const uint32_t *sizes,
                            uint32_t n_sizes) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < n_sizes; i++) {
        if (n_sizes > 1 && said->length / sizes[i] != said->n_hashes) continue;
        if (found != 0) return 0;
        found = sizes[i];
    }
    return found;
}

static bool size_there(uint32_t block, const uint32_t *sizes, uint32_t n_sizes) {
    for (uint32_t i = 0; i < n_sizes; i++)
        if (sizes[i] == block) return true;
    return false;
}

static enum prompt_fault hashes_check(const struct prompt_said *said, const uint32_t *sizes,
                                      uint32_t n_sizes, uint32_t *block_p,
                                      char error[PROMPT_ERROR_SIZE]) {
    char list[64];
    sizes_list(sizes, n_sizes, list, sizeof(list));
    if (said->length == 0) return FAULT(PROMPT_WRONG, "HASHES needs LENGTH, of the prompt");
    if (said->extra.len > 0)
        return FAULT(PROMPT_WRONG, "EXTRA goes with TOKENS: HASHES have it in them");
    uint32_t block = said->block != 0 ? said->block : block_guess(said, sizes, n_sizes);
    if (n_sizes > 0 && block == 0)
        return FAULT(PROMPT_MISFIT,
                     "engines of this model have blocks of %s tokens: say with BLOCK of which the "
                     "%u HASHES are",
                     list, said->n_hashes);
    if (n_sizes > 0 && !size_there(block, sizes, n_sizes))
        return FAULT(PROMPT_MISFIT,
                     "BLOCK is %u, and the engines of this model have blocks of %s tokens", block,
                     list);
    if ((uint64_t)block * said->n_hashes > said->length)
        return FAULT(PROMPT_MISFIT, "a prompt of %u tokens (LENGTH) has no %u blocks of %u",
                     said->length, said->n_hashes, block);
    *block_p = block;
    return PROMPT_RIGHT;
}

static enum prompt_fault hashes_take(struct prompt *p, const struct prompt_said *said,
                                     uint32_t block, char error[PROMPT_ERROR_SIZE]) {
    uint64_t *rolling = rolling_take(p, said->n_hashes);
    for (uint32_t i = 0; i < said->n_hashes; i++)
        if (!span_to_u64(said->hashes[i], &rolling[i]))
            return FAULT(PROMPT_WRONG, "hash %u of HASHES must be a number of 64 bits, unsigned",
                         i + 1);
    if (block != 0) chain_add(p, said, block, said->n_hashes, rolling);
    return PROMPT_RIGHT;
}

/* --- either --- */

enum prompt_fault prompt_make(struct prompt *p, const struct prompt_said *said,
                              const uint32_t *sizes, uint32_t n_sizes, uint64_t seed,
                              char error[PROMPT_ERROR_SIZE]) {
    enum prompt_fault fault;
    uint32_t block = 0;
    TARN_ASSERT(n_sizes <= ROUTE_CHAINS_MAX && said->n_hashes <= PROMPT_BLOCKS_MAX);
    p->n = 0;
    p->length = said->length;
    buf_clear(&p->rolling);
    if (said->n_hashes > 0) {
        fault = hashes_check(said, sizes, n_sizes, &block, error);
        return fault == PROMPT_RIGHT ? hashes_take(p, said, block, error) : fault;
    }
    if (said->tokens.len == 0 && said->extra.len > 0)
        return FAULT(PROMPT_WRONG, "EXTRA goes with TOKENS");
    if (said->tokens.len == 0 && said->length == 0)
        return FAULT(PROMPT_WRONG, "TOKENS, or HASHES and LENGTH, or LENGTH alone, must say what "
                                   "the prompt is");
    if (said->tokens.len == 0) return PROMPT_RIGHT;
    fault = tokens_check(said, error);
    if (fault != PROMPT_RIGHT) return fault;
    p->length = (uint32_t)(said->tokens.len / sizeof(uint32_t));
    tokens_hash(p, said, sizes, n_sizes, seed);
    return PROMPT_RIGHT;
}

void prompt_free(struct prompt *p) {
    buf_free(&p->rolling);
    buf_free(&p->aligned);
    p->n = 0;
}
