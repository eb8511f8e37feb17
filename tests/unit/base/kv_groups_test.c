/* KV groups against brute force over the definition: a boundary counts when every part that its
 * group needs is there. */
#include "../test.h"

#include "base/assert.h"
#include "base/rng.h"
#include "base/kv_groups.h"

enum { PLACES = 96, GROUPS = 4 };

/* What is there of each group, and how often the search has asked for it. */
static char part[GROUPS][PLACES + 1];
static unsigned asked[GROUPS][PLACES];

static void group_fill(struct kv_group *g, size_t i, const char *there) {
    g->places = (uint32_t)strlen(there);
    strcpy(part[i], there);
}

static struct kv_search search_run(struct kv_group *g, size_t n, uint32_t alignment,
                                   uint64_t limit) {
    struct kv_search s;
    struct kv_want w;
    memset(asked, 0, sizeof(asked));
    kv_search_begin(&s, g, n, alignment, limit);
    while (kv_search_next(&s, &w)) {
        CHECK(w.group < n && w.place < g[w.group].places && w.row > 0);
        CHECK_EQ(asked[w.group][w.place]++, 0u);
        kv_search_tell(&s, part[w.group][w.place] == '1');
    }
    return s;
}

static uint64_t boundary_of(struct kv_group g, uint32_t alignment, const char *there) {
    group_fill(&g, 0, there);
    const char *fault = kv_group_fault(&g, alignment);
    CHECK_STR(fault == NULL ? "" : fault, "");
    return search_run(&g, 1, alignment, UINT64_MAX).boundary;
}

static const struct kv_group full = {.kind = KV_GROUP_FULL, .block = 16, .unit = 16};
static const struct kv_group state = {.kind = KV_GROUP_STATE, .block = 16, .unit = 16};
static const struct kv_group window = {
    .kind = KV_GROUP_WINDOW, .block = 16, .unit = 16, .window = 33};

TEST(full_attention_needs_every_block_from_the_start) {
    CHECK_EQ(boundary_of(full, 16, "1101"), (uint64_t)32);
    CHECK_EQ(boundary_of(full, 16, "0111"), (uint64_t)0);
    CHECK_EQ(boundary_of(full, 32, "1110"), (uint64_t)32);
    CHECK_EQ(boundary_of(full, 16, ""), (uint64_t)0);
}

TEST(a_window_needs_the_last_blocks_or_all) {
    CHECK_EQ(boundary_of(window, 16, "0001101"), (uint64_t)80);
    CHECK_EQ(boundary_of(window, 16, "0001011"), (uint64_t)112);
    CHECK_EQ(boundary_of(window, 16, "1001010"), (uint64_t)16);
    CHECK_EQ(boundary_of(window, 32, "1011010"), (uint64_t)64);
    CHECK_EQ(boundary_of(window, 32, "0110100"), (uint64_t)0);
}

TEST(a_state_is_one_snapshot) {
    CHECK_EQ(boundary_of(state, 16, "0010"), (uint64_t)48);
    CHECK_EQ(boundary_of(state, 32, "1110"), (uint64_t)32);
    CHECK_EQ(boundary_of(state, 32, "1010"), (uint64_t)0);
}

TEST(speculative_decoding_computes_the_last_part_again) {
    struct kv_group g = full;
    g.drops_last = true;
    CHECK_EQ(boundary_of(g, 16, "1110"), (uint64_t)32);
    CHECK_EQ(boundary_of(g, 32, "1111"), (uint64_t)32);
    g = window;
    g.drops_last = true;
    CHECK_EQ(boundary_of(g, 16, "0011011101"), (uint64_t)112);
    CHECK_EQ(boundary_of(g, 16, "11"), (uint64_t)16);
}

TEST(unfinished_blocks_count_up_to_their_last_hash) {
    struct kv_group g = full;
    g.block = 64;
    CHECK_EQ(boundary_of(g, 16, "00010010"), (uint64_t)112);
    CHECK_EQ(boundary_of(g, 16, "00100010"), (uint64_t)48);
    g = state;
    g.block = 64;
    CHECK_EQ(boundary_of(g, 16, "0001001"), (uint64_t)112);
    struct kv_group two[2] = {full, state};
    two[0].block = two[1].block = 64;
    group_fill(&two[0], 0, "00010010");
    group_fill(&two[1], 1, "00011000"); /* at 80, inside the block whose tail ends at 112 */
    struct kv_search search = search_run(two, 2, 16, UINT64_MAX);
    CHECK_EQ(search.boundary, (uint64_t)80);
    struct kv_parts parts = kv_search_parts(&search, 0);
    CHECK(parts.first == 0 && parts.blocks == 1 && parts.tail == 112);
    CHECK_EQ(kv_parts_place(&two[0], &parts, 0), 3u);
    CHECK_EQ(kv_parts_place(&two[0], &parts, 1), 6u);
    parts = kv_search_parts(&search, 1);
    CHECK(parts.blocks == 0 && parts.tail == 80);
    CHECK_EQ(kv_parts_place(&two[1], &parts, 0), 4u);
}

/* What a window or a state needs is asked for, not all there is of it, and nothing behind the gap
 * of a full group. */
TEST(the_search_looks_at_little) {
    struct kv_group g[3] = {state, window, full};
    for (size_t i = 0; i < 3; i++) group_fill(&g[i], i, "1111111111111111");
    part[2][10] = '0';
    struct kv_search s = search_run(g, 3, 16, UINT64_MAX);
    CHECK_EQ(s.boundary, (uint64_t)160);
    unsigned n[3] = {0};
    for (size_t i = 0; i < 3; i++)
        for (size_t p = 0; p < PLACES; p++) n[i] += asked[i][p];
    CHECK(n[0] == 1 && n[1] == 2 && n[2] == 11);
    s = search_run(g, 3, 16, 100);
    CHECK_EQ(s.boundary, (uint64_t)96);
}

/* Where vLLM's coordinator (2026) answers otherwise (tools/vllm-boundaries.py): */

/* It trims such a prefix to the alignment, drops a block, and trims again: 64 tokens, not 128. */
TEST(a_window_over_all_of_a_prefix_is_trimmed_once) {
    struct kv_group g = window;
    g.window = 138;
    g.drops_last = true;
    CHECK_EQ(boundary_of(g, 64, "111111111111"), (uint64_t)128);
}

/* It looks for unfinished blocks of a second full group only up to the boundary of the first. */
TEST(an_unfinished_block_may_end_behind_the_boundary_in_every_group) {
    struct kv_group two[2] = {full, full};
    two[0].block = 32;
    two[1].block = 64;
    group_fill(&two[0], 0, "010");
    group_fill(&two[1], 1, "0010");
    struct kv_search s = search_run(two, 2, 16, UINT64_MAX);
    CHECK_EQ(s.boundary, (uint64_t)32);
    CHECK_EQ(kv_search_parts(&s, 0).tail, (uint64_t)0);
    CHECK_EQ(kv_search_parts(&s, 1).tail, (uint64_t)48);
}

/* It checks a dropped part once for each group, and not again when another such group has shortened
 * the boundary: 96 tokens. */
TEST(every_group_that_drops_has_the_part_behind_the_boundary) {
    struct kv_group two[2] = {window, window};
    two[0].window = two[1].window = 17;
    two[0].drops_last = two[1].drops_last = true;
    group_fill(&two[0], 0, "101111011");
    group_fill(&two[1], 1, "111101101");
    CHECK_EQ(search_run(two, 2, 16, UINT64_MAX).boundary, (uint64_t)48);
}

/* --- brute force --- */

static bool place_there(const struct kv_group *g, const char *there, uint64_t end) {
    return end % g->unit == 0 && end / g->unit <= g->places && there[end / g->unit - 1] == '1';
}

/* Whether some place says that the block has its bytes up to `end`. */
static bool block_there(const struct kv_group *g, const char *there, uint64_t end) {
    uint64_t last = (end + g->block - 1) / g->block * g->block;
    for (; end <= last; end += g->unit)
        if (place_there(g, there, end)) return true;
    return false;
}

static bool served(const struct kv_group *g, const char *there, uint32_t alignment,
                   uint64_t boundary) {
    uint64_t end = boundary;
    if (g->drops_last) end += min_u64(g->kind == KV_GROUP_FULL ? alignment : g->block, g->block);
    if (g->kind == KV_GROUP_STATE) return place_there(g, there, end);
    for (uint64_t block = 0; block * g->block < end; block++) {
        uint64_t upto = (block + 1) * g->block < end ? (block + 1) * g->block : end;
        /* the next token, at `boundary`, sees the window - 1 before it */
        if (g->kind == KV_GROUP_WINDOW && upto + g->window - 1 <= boundary) continue;
        if (upto < end ? !place_there(g, there, upto) : !block_there(g, there, upto)) return false;
    }
    return true;
}

static uint64_t brute_force(const struct kv_group *g, size_t n, uint32_t alignment,
                            uint64_t limit) {
    uint64_t longest = 0;
    for (uint64_t at = alignment; at <= min_u64(limit, 4096); at += alignment) {
        bool all = true;
        for (size_t i = 0; i < n; i++) all &= served(&g[i], part[i], alignment, at);
        if (all) longest = at;
    }
    return longest;
}

static void group_draw(struct rng *r, struct kv_group *g, size_t i, bool tails) {
    char there[PLACES + 1];
    uint32_t chance = 50 + (uint32_t)rng_below(r, 51);
    *g = (struct kv_group){.kind = (enum kv_group_kind)rng_below(r, 3), .unit = 8};
    if (g->kind == KV_GROUP_WINDOW) g->window = 2 + (uint32_t)rng_below(r, 120);
    if (!tails) g->unit <<= rng_below(r, 3);
    g->block = tails && g->kind != KV_GROUP_WINDOW ? g->unit << rng_below(r, 3) : g->unit;
    g->drops_last = g->kind != KV_GROUP_STATE && rng_below(r, 3) == 0;
    uint32_t n = (uint32_t)rng_below(r, PLACES);
    for (uint32_t p = 0; p < n; p++) there[p] = rng_below(r, 100) < chance ? '1' : '0';
    there[n] = '\0';
    group_fill(g, i, there);
}

/* The parts that are named are there, and no more than what is needed. */
static void check_parts(struct kv_group *g, size_t n, uint32_t alignment,
                        const struct kv_search *s) {
    for (size_t i = 0; i < n; i++) {
        struct kv_parts p = kv_search_parts(s, i);
        CHECK(kv_parts_count(&p) > 0);
        for (uint32_t k = 0; k < kv_parts_count(&p); k++)
            CHECK(part[i][kv_parts_place(&g[i], &p, k)] == '1');
        struct kv_parts needs = kv_group_needs(&g[i], alignment, s->boundary);
        CHECK(needs.first + needs.blocks >= p.first + p.blocks && needs.first <= p.first);
    }
}

TEST(the_longest_boundary_is_that_of_brute_force) {
    struct rng r;
    rng_seed(&r, 16);
    unsigned hits = 0;
    for (int round = 0; round < 30000; round++) {
        struct kv_group g[GROUPS];
        size_t n = 1 + rng_below(&r, GROUPS);
        bool tails = rng_below(&r, 2) == 0;
        uint32_t alignment = tails ? 8u << rng_below(&r, 2) : 32;
        uint64_t limit = rng_below(&r, 4) == 0 ? rng_below(&r, 800) : UINT64_MAX;
        for (size_t i = 0; i < n; i++) {
            group_draw(&r, &g[i], i, tails);
            CHECK(kv_group_fault(&g[i], alignment) == NULL);
        }
        struct kv_search s = search_run(g, n, alignment, limit);
        CHECK_EQ(s.boundary, brute_force(g, n, alignment, limit));
        hits += s.boundary > 0;
        if (s.boundary > 0) check_parts(g, n, alignment, &s);
    }
    CHECK(hits > 3000);
}

/* With only what it says must be there, a boundary is served: the longest possible one, too. */
TEST(what_a_boundary_needs_is_enough) {
    struct rng r;
    rng_seed(&r, 17);
    for (int round = 0; round < 5000; round++) {
        struct kv_group g[GROUPS];
        size_t n = 1 + rng_below(&r, GROUPS);
        bool tails = rng_below(&r, 2) == 0;
        uint32_t alignment = tails ? 8u << rng_below(&r, 2) : 32;
        for (size_t i = 0; i < n; i++) {
            group_draw(&r, &g[i], i, tails);
            memset(part[i], '1', g[i].places);
        }
        uint64_t longest = kv_groups_longest(g, n, alignment);
        CHECK_EQ(longest, brute_force(g, n, alignment, UINT64_MAX));
        CHECK_EQ(longest, search_run(g, n, alignment, UINT64_MAX).boundary);
        if (longest == 0) continue;
        uint64_t at = (1 + rng_below(&r, longest / alignment)) * alignment;
        for (size_t i = 0; i < n; i++) {
            struct kv_parts p = kv_group_needs(&g[i], alignment, at);
            memset(part[i], '0', g[i].places);
            for (uint32_t k = 0; k < kv_parts_count(&p); k++)
                part[i][kv_parts_place(&g[i], &p, k)] = '1';
        }
        CHECK_EQ(search_run(g, n, alignment, UINT64_MAX).boundary, at);
    }
}

TEST(a_group_that_makes_no_sense_is_refused) {
    struct kv_group g = full;
    g.unit = 12;
    CHECK(kv_group_fault(&g, 16) != NULL);
    CHECK(kv_group_fault(&full, 24) != NULL);
    CHECK(kv_group_fault(&full, 0) != NULL);
    g = window;
    g.window = 1;
    CHECK(kv_group_fault(&g, 16) != NULL);
    g.window = 33;
    g.unit = 8;
    CHECK(kv_group_fault(&g, 16) != NULL);
    g = state;
    g.drops_last = true;
    CHECK(kv_group_fault(&g, 16) != NULL);
    g = full;
    g.window = 33;
    CHECK(kv_group_fault(&g, 16) != NULL);
}

TEST_MAIN()
