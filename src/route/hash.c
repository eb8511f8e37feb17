#include "route/hash.h"

#include <endian.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/assert.h"

/* Tokens are hashed as they lie in memory. */
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tarn runs on little-endian machines");

uint64_t route_hash_local(const uint32_t *tokens, size_t n, const void *extra, size_t extra_len,
                          uint64_t seed) {
    if (extra_len == 0) return XXH3_64bits_withSeed(tokens, n * sizeof(*tokens), seed);
    XXH3_state_t state = {.seed = 0};
    XXH3_64bits_reset_withSeed(&state, seed);
    XXH3_64bits_update(&state, tokens, n * sizeof(*tokens));
    XXH3_64bits_update(&state, extra, extra_len);
    return XXH3_64bits_digest(&state);
}

uint64_t route_hash_next(uint64_t parent, uint64_t local, uint64_t seed) {
    uint64_t both[2] = {parent, local};
    return XXH3_64bits_withSeed(both, sizeof(both), seed);
}

void route_hash_chain(const uint64_t *parent, const uint64_t *local, size_t n, uint64_t seed,
                      uint64_t *rolling) {
    if (n == 0) return;
    uint64_t last = parent != NULL ? route_hash_next(*parent, local[0], seed) : local[0];
    rolling[0] = last;
    for (size_t i = 1; i < n; i++) rolling[i] = last = route_hash_next(last, local[i], seed);
}

/* --- EXTRA --- */

struct extra_reader {
    const char *at, *end;
    uint32_t block;
    struct span bytes;
};

static uint32_t extra_number(const char *at) {
    uint32_t v;
    memcpy(&v, at, sizeof(v));
    return le32toh(v);
}

/* false: there is no further record, or what follows is none (`at` is not `end` then). */
static bool extra_next(struct extra_reader *r) {
    size_t left = (size_t)(r->end - r->at);
    if (left < 8 || extra_number(r->at + 4) > left - 8) return false;
    r->block = extra_number(r->at);
    r->bytes = span_of(r->at + 8, extra_number(r->at + 4));
    r->at += 8 + r->bytes.len;
    return true;
}

bool route_extra_valid(const void *extra, size_t len) {
    struct extra_reader r = {.at = extra, .end = (const char *)extra + len};
    if (len == 0) return true;
    for (int64_t last = -1; extra_next(&r); last = r.block)
        if (r.block <= last || r.bytes.len == 0) return false;
    return r.at == r.end;
}

size_t route_hash_prompt(const uint32_t *tokens, size_t n, uint32_t block, const void *extra,
                         size_t extra_len, uint64_t seed, uint64_t *rolling, size_t cap) {
    TARN_ASSERT(block > 0);
    struct extra_reader r = {.at = extra, .end = (const char *)extra + extra_len};
    bool more = extra_len > 0 && extra_next(&r);
    size_t blocks = min_u64(n / block, cap);
    for (size_t i = 0; i < blocks; i++) {
        bool has = more && r.block == i;
        uint64_t local = route_hash_local(tokens + i * block, block, has ? r.bytes.data : NULL,
                                          has ? r.bytes.len : 0, seed);
        if (has) more = extra_next(&r);
        rolling[i] = i > 0 ? route_hash_next(rolling[i - 1], local, seed) : local;
    }
    return blocks;
}

/* --- names --- */

static void scope_add(XXH3_state_t *state, struct span part) {
    uint64_t len = part.len;
    XXH3_64bits_update(state, &len, sizeof(len));
    if (len > 0) XXH3_64bits_update(state, part.data, part.len);
}

uint64_t route_hash_scope(struct span model, struct span lora, struct span tenant, struct span salt,
                          uint32_t block) {
    XXH3_state_t state = {.seed = 0};
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, &block, sizeof(block));
    scope_add(&state, model);
    scope_add(&state, lora);
    scope_add(&state, tenant);
    scope_add(&state, salt);
    return XXH3_64bits_digest(&state);
}

uint64_t route_hash_name(const void *bytes, size_t len) {
    return XXH3_64bits(bytes, len);
}
