/* Events of engines in any order, of any content, and look-ups between them: a byte says what
 * comes, the next ones of what. Nothing of it is wrong input to the index, which must stay within
 * its memory and its rules. Hashes are few, so that names and prompts meet again. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "route/hash.h"
#include "route/index.h"

#define BLOCKS  80u
#define HOLDERS 4u

struct reader {
    const uint8_t *at, *end;
};

static uint8_t take_byte(struct reader *r) {
    return r->at < r->end ? *r->at++ : 0;
}

/* A chain of blocks from two bytes; its numbers repeat. */
static uint32_t take_blocks(struct reader *r, uint64_t *hash) {
    uint32_t seed = take_byte(r), n = take_byte(r) % BLOCKS;
    for (uint32_t i = 0; i < n; i++) hash[i] = seed % 5 + i * (1 + seed % 3);
    return n;
}

static void one_event(struct route_index *ix, struct reader *r, uint8_t what) {
    uint64_t hash[BLOCKS], own[BLOCKS];
    uint8_t to = take_byte(r);
    uint32_t holder = to % (HOLDERS + 2), group = to >> 3 & 3;
    enum route_tier tier = (enum route_tier)(to >> 5);
    uint32_t n = take_blocks(r, hash);
    if (what & 1) {
        struct route_stored gone = {.holder = holder, .group = group, .tier = tier, .own = hash};
        struct route_event each[BLOCKS];
        for (uint32_t i = 0; i < n; i++) each[i] = (struct route_event){true, gone};
        for (uint32_t i = 0; i < n; i++) each[i].what.own += i;
        for (uint32_t i = 0; i < n; i++) each[i].what.n = 1;
        if (what & 16)
            route_index_apply(ix, each, n);
        else
            route_index_removed(ix, holder, group, tier, hash, n);
        return;
    }
    uint8_t form = take_byte(r);
    for (uint32_t i = 0; i < n; i++) own[i] = hash[i] + (form >> 6);
    struct route_stored e = {.holder = holder, .group = group, .tier = tier, .n = n};
    e.scope = form >> 5 & 1;
    e.has_parent = form & 1;
    e.parent = take_byte(r);
    e.own = form & 4 ? NULL : own;
    e.local = form & 2 ? NULL : hash;
    e.rolling = form & 2 ? hash : NULL;
    struct route_event both[2] = {{.what = e}, {.removed = true, .what = e}};
    both[1].what.own = hash;
    if (what & 16)
        route_index_apply(ix, both, 1 + (form >> 4 & 1));
    else
        TARN_ASSERT(route_index_stored(ix, &e) <= n);
}

static void one_look_up(struct route_index *ix, struct reader *r) {
    uint64_t hash[2][BLOCKS];
    struct route_hit hits[HOLDERS];
    struct route_group_hit groups[ROUTE_GROUPS_MAX];
    struct route_chain c[2] = {{.block = 16, .rolling = hash[0]},
                               {.block = 48, .rolling = hash[1]}};
    for (int i = 0; i < 2; i++) {
        c[i].n = take_blocks(r, hash[i]);
        if (take_byte(r) & 1) route_hash_chain(NULL, hash[i], c[i].n, 0, hash[i]);
    }
    size_t cap = take_byte(r) % (HOLDERS + 1), n = route_index_match(ix, c, 2, hits, cap);
    TARN_ASSERT(n <= HOLDERS);
    for (size_t i = 0; i < n && i < cap; i++) {
        const uint32_t *t = hits[i].tokens;
        TARN_ASSERT(t[0] <= t[1] && t[1] <= t[2] && t[2] > 0 && t[2] <= BLOCKS * 48);
        TARN_ASSERT(route_index_match_groups(ix, c, 2, hits[i].holder, groups) > 0);
    }
}

static void one_change(struct route_index *ix, struct reader *r) {
    uint8_t what = take_byte(r), how = take_byte(r);
    uint32_t holder = what % (HOLDERS + 2);
    struct route_group g = {(enum route_group_kind)(how % 4), how & 8 ? 48 : 16, how & 16 ? 33 : 0};
    struct route_hot hot[ROUTE_HOT_MAX];
    uint64_t rolling[4 * BLOCKS];
    size_t n;
    switch (what >> 4) {
    case 0: route_holder_add(ix, how & 1 ? 16 : 48, how); break;
    case 1: route_holder_remove(ix, holder); break;
    case 2: route_holder_clear(ix, holder); break;
    case 3: route_index_sweep(ix, how); break;
    case 4:
        n = route_index_hot(ix, hot, ROUTE_HOT_MAX);
        for (size_t i = 0; i < n; i++) route_index_hot_chain(ix, &hot[i], rolling, 4 * BLOCKS);
        break;
    default: route_holder_group(ix, holder, how >> 5, &g);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct reader r = {data, data + size};
    struct route_index_config config = {.max_bytes = ROUTE_INDEX_BYTES_MIN, .holders_max = HOLDERS};
    (void)route_extra_valid(data, size);
    struct route_index *ix = route_index_create(&config);
    TARN_ASSERT(ix != NULL);
    for (uint32_t i = 0; i < HOLDERS - 1; i++)
        TARN_ASSERT(route_holder_add(ix, 16, i == 0 ? 30 : 1000) != ROUTE_HOLDER_NONE);
    while (r.at < r.end) {
        uint8_t what = take_byte(&r);
        if (what % 8 < 4)
            one_event(ix, &r, what);
        else if (what % 8 < 6)
            one_look_up(ix, &r);
        else
            one_change(ix, &r);
        if (what % 32 == 7) route_index_check(ix);
    }
    route_index_check(ix);
    route_index_destroy(&ix);
    return 0;
}
