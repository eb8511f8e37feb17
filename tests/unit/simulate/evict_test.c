/* Foresight and its limits: by hand, and against all that anybody could do. The books, asked by the
 * same rules. */
#include "simulate/evict.h"

#include "base/assert.h"
#include "base/rng.h"
#include "store/store.h"

#include "../test.h"

static struct trace t;
static struct sim_speed speed;
static uint64_t ids;

static void begin(void) {
    trace_free(&t);
    t = (struct trace){.block = 512};
    sim_speed_init(&speed);
}

static void ask(const uint64_t *id, uint32_t n) {
    struct trace_request q = {
        .timestamp_ms = t.n * 1000, .first = t.n_ids, .n = n, .input = n * 512, .output = 1};
    for (uint32_t i = 0; i < n; i++) {
        ARRAY_GROW(t.ids, t.n_ids, t.cap_ids);
        t.ids[t.n_ids++] = id[i];
    }
    ARRAY_GROW(t.requests, t.n, t.cap);
    t.requests[t.n++] = q;
    if (n > t.longest) t.longest = n;
}
#define ASK(...) ask((const uint64_t[]){__VA_ARGS__}, sizeof((uint64_t[]){__VA_ARGS__}) / 8)

static uint64_t belady(uint64_t blocks) {
    struct evict_score score;
    ids = trace_number(&t);
    evict_belady(&t, ids, blocks, &speed, &score);
    return score.hits;
}

TEST(the_block_that_is_needed_last_goes) {
    begin();
    ASK(1);
    ASK(2);
    ASK(3);
    ASK(1);
    ASK(2);
    ASK(3);
    CHECK_EQ(belady(1), 1);
    CHECK_EQ(belady(2), 2);
    CHECK_EQ(belady(3), 3);
}

TEST(of_one_request_the_tail_goes) {
    begin();
    ASK(1, 2, 3, 4);
    ASK(9);
    ASK(9);
    ASK(1, 2, 3, 4);
    CHECK_EQ(belady(1), 1);
    CHECK_EQ(belady(2), 2);
    CHECK_EQ(belady(3), 3);
    CHECK_EQ(belady(4), 4);
    CHECK_EQ(belady(5), 5);
}

TEST(what_is_never_used_takes_no_room) {
    begin();
    ASK(1, 2);
    ASK(3, 4, 5);
    ASK(1, 2);
    ASK(6, 7);
    ASK(1, 2, 8);
    CHECK_EQ(belady(2), 4);
    struct evict_score score;
    evict_belady(&t, ids, 2, &speed, &score);
    CHECK_EQ(score.evictions, 0);
}

/* 5 stands behind another block the second time: with that one new it cannot be found, so that
 * keeping it is in vain, and 7 is kept. */
TEST(a_block_behind_a_gap_is_worth_nothing) {
    begin();
    ASK(5);
    ASK(7);
    ASK(6, 5);
    ASK(7);
    CHECK_EQ(belady(1), 1);
}

/* The most hits of requests[r ...] when those of the bits are there: all that can be kept of what
 * was there and what came is tried. */
static uint32_t best_of(size_t r, uint32_t there, uint32_t blocks, int32_t (*known)[1 << 12]) {
    if (r == t.n) return 0;
    if (known[r][there] >= 0) return (uint32_t)known[r][there];
    const struct trace_request *q = &t.requests[r];
    uint32_t hits = 0, have = there, best = 0;
    while (hits < q->n && there >> t.ids[q->first + hits] & 1) hits++;
    for (uint32_t i = 0; i < q->n; i++) have |= 1u << t.ids[q->first + i];
    for (uint32_t keep = have;; keep = (keep - 1) & have) {
        if ((uint32_t)__builtin_popcount(keep) <= blocks) {
            uint32_t then = best_of(r + 1, keep, blocks, known);
            if (then > best) best = then;
        }
        if (keep == 0) break;
    }
    known[r][there] = (int32_t)(hits + best);
    return hits + best;
}

/* Ten blocks in a tree, each behind one that has a lower number. */
static void ask_tree(struct rng *rng) {
    uint64_t parent[10], path[10];
    for (uint64_t i = 1; i < 10; i++) parent[i] = rng_next(rng) % (i + 3);
    for (unsigned r = 0; r < 9; r++) {
        uint32_t n = 0;
        for (uint64_t at = rng_next(rng) % 10;; at = parent[at]) {
            path[n++] = at;
            if (at == 0 || parent[at] >= at) break;
        }
        for (uint32_t i = 0; i < n / 2; i++) {
            uint64_t other = path[i];
            path[i] = path[n - 1 - i];
            path[n - 1 - i] = other;
        }
        ask(path, n);
    }
}

TEST(nobody_finds_more_than_belady) {
    static int32_t known[10][1 << 12];
    struct rng rng;
    rng_seed(&rng, 5);
    unsigned differ = 0;
    for (unsigned run = 0; run < 60; run++) {
        begin();
        ask_tree(&rng);
        uint32_t blocks = 1 + run % 5;
        uint64_t hits = belady(blocks);
        memset(known, 0xff, sizeof(known));
        CHECK_EQ(hits, best_of(0, 0, blocks, known));
        struct evict_score lru, all;
        evict_replay(&t, "lru", blocks, false, &speed, &lru);
        evict_unlimited(&t, ids, &speed, &all);
        CHECK(lru.hits <= hits && hits <= all.hits);
        differ += lru.hits < hits && hits < all.hits;
    }
    CHECK(differ > 5);
}

TEST(the_books_are_asked_as_a_replay_asks_them) {
    begin();
    ASK(1, 2, 3, 4);
    ASK(1, 2, 3, 4); /* 4 */
    ASK(5, 6);       /* the first two go: for lru they are as old as the others, or older */
    ASK(1, 2, 3, 4); /* 0 */
    ASK(5, 6);       /* 0 */
    ids = trace_number(&t);
    struct evict_score score;
    evict_replay(&t, "lru", 4, false, &speed, &score);
    CHECK_EQ(score.hits, 4);
    CHECK_EQ(score.evictions, 8);
    double saved = sim_chunk_s(&speed, 2048, 0);
    CHECK_WITHIN(score.saved_s, 0.999 * saved, 1.001 * saved);
    evict_unlimited(&t, ids, &speed, &score);
    CHECK_EQ(score.hits, 10);
}

/* libtarn makes several batches of so many keys. */
TEST(long_prompts_are_several_batches) {
    uint64_t id[1200];
    for (unsigned i = 0; i < 1200; i++) id[i] = i;
    const uint32_t lengths[] = {127, 128, 129, 300, 1200, 1200};
    const uint64_t rooms[] = {1200, 1199, 700};
    begin();
    for (unsigned i = 0; i < 6; i++) ask(id, lengths[i]);
    for (unsigned i = 0; i < 3; i++) {
        struct evict_score score;
        evict_replay(&t, "lru", rooms[i], false, &speed, &score);
        CHECK(rooms[i] == 1200 ? score.hits == 127 + 128 + 129 + 300 + 1200
                               : score.hits >= 127 + 128 + 129 + 300);
        CHECK_EQ(score.evictions > 0, rooms[i] < 1200);
    }
}

/* Room for all: each policy finds what was ever there. */
TEST(with_room_for_all_every_policy_is_unlimited) {
    const struct trace_recipe recipe = {
        .kind = TRACE_TENANTS, .requests = 400, .rate = 5, .seed = 3};
    const char *why;
    begin();
    CHECK_EQ(trace_generate(&t, &recipe, &why), TARN_OK);
    ids = trace_number(&t);
    struct evict_score all, one;
    evict_unlimited(&t, ids, &speed, &all);
    evict_belady(&t, ids, ids, &speed, &one);
    CHECK_EQ(one.hits, all.hits);
    for (size_t i = 0; i < eviction_count; i++) {
        evict_replay(&t, eviction_names[i], ids, false, &speed, &one);
        CHECK_EQ(one.hits, all.hits);
        CHECK_EQ(one.evictions, 0);
        evict_replay(&t, eviction_names[i], 500, false, &speed, &one);
        CHECK(one.hits < all.hits && one.evictions > 0);
    }
}

TEST_MAIN()
