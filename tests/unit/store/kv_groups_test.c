/* KV groups against brute force over the definition: a boundary counts when every part that its
 * group needs is there. */
#include "../test.h"

#include "base/assert.h"
#include "base/rng.h"
#include "store/kv_groups.h"

#define PLACES 96

static uint32_t run[4][PLACES];

static void group_fill(struct kv_group *g, uint32_t *runs, const char *there) {
    g->places = (uint32_t)strlen(there);
    for (uint32_t i = 0; i < g->places; i++)
        runs[i] = there[i] != '1' ? 0 : i > 0 ? runs[i - 1] + 1 : 1;
    g->run = runs;
}

static uint64_t boundary_of(struct kv_group g, uint32_t alignment, const char *there) {
    group_fill(&g, run[0], there);
    const char *fault = kv_group_fault(&g, alignment);
    CHECK_STR(fault == NULL ? "" : fault, "");
    return kv_groups_boundary(&g, 1, alignment);
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
    group_fill(&two[0], run[0], "00010010");
    group_fill(&two[1], run[1], "00011000"); /* at 80, inside the block whose tail ends at 112 */
    CHECK_EQ(kv_groups_boundary(two, 2, 16), (uint64_t)80);
    struct kv_group_parts parts = kv_group_parts(&two[0], 80);
    CHECK_EQ(parts.n, 1u);
    CHECK_EQ(parts.first, 3u);
    CHECK_EQ(parts.tail, 6u);
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
    group_fill(&two[0], run[0], "010");
    group_fill(&two[1], run[1], "0010");
    CHECK_EQ(kv_groups_boundary(two, 2, 16), (uint64_t)32);
    CHECK_EQ(kv_group_parts(&two[0], 32).tail, KV_GROUP_NO_TAIL);
    CHECK_EQ(kv_group_parts(&two[1], 32).tail, 2u);
}

/* It checks a dropped part once for each group, and not again when another such group has shortened
 * the boundary: 96 tokens. */
TEST(every_group_that_drops_has_the_part_behind_the_boundary) {
    struct kv_group two[2] = {window, window};
    two[0].window = two[1].window = 17;
    two[0].drops_last = two[1].drops_last = true;
    group_fill(&two[0], run[0], "101111011");
    group_fill(&two[1], run[1], "111101101");
    CHECK_EQ(kv_groups_boundary(two, 2, 16), (uint64_t)48);
}

/* --- brute force --- */

static bool place_there(const struct kv_group *g, uint64_t end) {
    return end % g->unit == 0 && end / g->unit <= g->places && g->run[end / g->unit - 1] > 0;
}

/* Whether some place says that the block has its bytes up to `end`. */
static bool block_there(const struct kv_group *g, uint64_t end) {
    uint64_t last = (end + g->block - 1) / g->block * g->block;
    for (; end <= last; end += g->unit)
        if (place_there(g, end)) return true;
    return false;
}

static bool served(const struct kv_group *g, uint32_t alignment, uint64_t boundary) {
    uint64_t end = boundary;
    if (g->drops_last) end += min_u64(g->kind == KV_GROUP_FULL ? alignment : g->block, g->block);
    if (g->kind == KV_GROUP_STATE) return place_there(g, end);
    for (uint64_t block = 0; block * g->block < end; block++) {
        uint64_t upto = (block + 1) * g->block < end ? (block + 1) * g->block : end;
        /* the next token, at `boundary`, sees the window - 1 before it */
        if (g->kind == KV_GROUP_WINDOW && upto + g->window - 1 <= boundary) continue;
        if (upto < end ? !place_there(g, upto) : !block_there(g, upto)) return false;
    }
    return true;
}

static uint64_t brute_force(const struct kv_group *g, size_t n, uint32_t alignment) {
    uint64_t longest = 0;
    for (uint64_t at = alignment; at <= 4096; at += alignment) {
        bool all = true;
        for (size_t i = 0; i < n; i++) all &= served(&g[i], alignment, at);
        if (all) longest = at;
    }
    return longest;
}

static void group_draw(struct rng *r, struct kv_group *g, uint32_t *runs, bool tails) {
    char there[PLACES + 1];
    uint32_t full_chance = 50 + (uint32_t)rng_below(r, 51);
    *g = (struct kv_group){.kind = (enum kv_group_kind)rng_below(r, 3), .unit = 8};
    if (g->kind == KV_GROUP_WINDOW) g->window = 2 + rng_below(r, 120);
    if (!tails) g->unit <<= rng_below(r, 3);
    g->block = tails && g->kind != KV_GROUP_WINDOW ? g->unit << rng_below(r, 3) : g->unit;
    g->drops_last = g->kind != KV_GROUP_STATE && rng_below(r, 3) == 0;
    uint32_t n = rng_below(r, PLACES);
    for (uint32_t i = 0; i < n; i++) there[i] = rng_below(r, 100) < full_chance ? '1' : '0';
    there[n] = '\0';
    group_fill(g, runs, there);
}

TEST(the_longest_boundary_is_that_of_brute_force) {
    struct rng r;
    rng_seed(&r, 16);
    unsigned hits = 0;
    for (int round = 0; round < 30000; round++) {
        struct kv_group g[4];
        size_t n = 1 + rng_below(&r, 4);
        bool tails = rng_below(&r, 2) == 0;
        uint32_t alignment = tails ? 8u << rng_below(&r, 2) : 32;
        for (size_t i = 0; i < n; i++) {
            group_draw(&r, &g[i], run[i], tails);
            CHECK(kv_group_fault(&g[i], alignment) == NULL);
        }
        uint64_t boundary = kv_groups_boundary(g, n, alignment);
        CHECK_EQ(boundary, brute_force(g, n, alignment));
        hits += boundary > 0;
        for (size_t i = 0; i < n && boundary > 0; i++) {
            struct kv_group_parts p = kv_group_parts(&g[i], boundary);
            for (uint32_t k = 0; k < p.n; k++) CHECK(g[i].run[p.first + k * p.stride] > 0);
            if (p.tail != KV_GROUP_NO_TAIL) CHECK(g[i].run[p.tail] > 0);
        }
    }
    CHECK(hits > 3000);
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
    g = state;
    g.drops_last = true;
    CHECK(kv_group_fault(&g, 16) != NULL);
}

TEST_MAIN()
