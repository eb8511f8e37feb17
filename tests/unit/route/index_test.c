/* The index of the engines' blocks: events and look-ups, one thing at a time. */
#include "../test.h"

#include "base/rng.h"
#include "route/hash.h"
#include "route/index.h"

#define BLOCK 16u

static struct route_index *index_of(uint64_t max_bytes) {
    struct route_index_config config = {.max_bytes = max_bytes, .holders_max = 8};
    return route_index_create(&config);
}

/* A prompt whose blocks are told apart by one number each; own hashes are these times 1000. */
struct prompt {
    uint64_t local[64], own[64], rolling[64];
    size_t n;
};

static struct prompt prompt_of(const char *letters) {
    struct prompt p = {.n = strlen(letters)};
    for (size_t i = 0; i < p.n; i++) p.local[i] = (uint64_t)letters[i];
    route_hash_chain(NULL, p.local, p.n, 0, p.rolling);
    for (size_t i = 0; i < p.n; i++) p.own[i] = p.rolling[i] * 1000 + 7;
    return p;
}

static size_t store(struct route_index *ix, uint32_t holder, enum route_tier tier, uint32_t group,
                    const struct prompt *p, size_t from, size_t to) {
    return route_index_stored(ix, &(struct route_stored){.holder = holder,
                                                         .group = group,
                                                         .tier = tier,
                                                         .has_parent = from > 0,
                                                         .parent = from > 0 ? p->own[from - 1] : 0,
                                                         .n = to - from,
                                                         .own = p->own + from,
                                                         .local = p->local + from});
}

static size_t take(struct route_index *ix, uint32_t holder, enum route_tier tier, uint32_t group,
                   const struct prompt *p, size_t from, size_t to) {
    return route_index_removed(ix, holder, group, tier, p->own + from, to - from);
}

/* Blocks of the prompt that the holder has in front, up to that tier. */
static uint32_t leading(struct route_index *ix, uint32_t holder, enum route_tier tier,
                        const struct prompt *p) {
    struct route_hit hits[8];
    struct route_chain c = {.block = BLOCK, .n = (uint32_t)p->n, .rolling = p->rolling};
    size_t n = route_index_match(ix, &c, 1, hits, 8);
    CHECK(n <= 8);
    for (size_t i = 0; i < n; i++)
        if (hits[i].holder == holder) return hits[i].tokens[tier] / BLOCK;
    return 0;
}

TEST(configurations_out_of_bounds) {
    struct route_index_config c = {.max_bytes = ROUTE_INDEX_BYTES_MIN - 1, .holders_max = 1};
    CHECK(route_index_create(&c) == NULL);
    c.max_bytes = ROUTE_INDEX_BYTES_MIN;
    c.holders_max = 0;
    CHECK(route_index_create(&c) == NULL);
    c.holders_max = ROUTE_HOLDERS_MAX + 1;
    CHECK(route_index_create(&c) == NULL);
}

TEST(holders_come_and_go) {
    struct route_index *ix = index_of(1 << 20);
    uint32_t h[8];
    for (int i = 0; i < 8; i++) CHECK((h[i] = route_holder_add(ix, BLOCK, 100)) != 0);
    CHECK_EQ(route_holder_add(ix, BLOCK, 100), ROUTE_HOLDER_NONE);
    struct prompt p = prompt_of("abc");
    CHECK_EQ(store(ix, h[3], ROUTE_TIER_DEVICE, 0, &p, 0, 3), 3);
    route_holder_remove(ix, h[3]);
    CHECK_EQ(leading(ix, h[3], ROUTE_TIER_DEVICE, &p), 0);
    while (route_index_sweep(ix, 10)) continue;
    CHECK((h[3] = route_holder_add(ix, BLOCK, 100)) != 0);
    CHECK_EQ(leading(ix, h[3], ROUTE_TIER_DEVICE, &p), 0);
    route_holder_remove(ix, 77);
    CHECK_EQ(route_index_stats(ix).route_holders, 8);
    route_index_destroy(&ix);
    CHECK(ix == NULL);
}

TEST(leading_blocks_by_holder) {
    struct route_index *ix = index_of(1 << 20);
    uint32_t a = route_holder_add(ix, BLOCK, 100), b = route_holder_add(ix, BLOCK, 100);
    struct prompt p = prompt_of("abcdefgh"), q = prompt_of("abcxyz");
    CHECK_EQ(store(ix, a, ROUTE_TIER_DEVICE, 0, &p, 0, 8), 8);
    CHECK_EQ(store(ix, b, ROUTE_TIER_DEVICE, 0, &q, 0, 4), 4);
    CHECK_EQ(store(ix, b, ROUTE_TIER_DEVICE, 0, &q, 4, 6), 2);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &p), 8);
    CHECK_EQ(leading(ix, b, ROUTE_TIER_DEVICE, &p), 3);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &q), 3);
    CHECK_EQ(leading(ix, b, ROUTE_TIER_DEVICE, &q), 6);
    struct prompt other = prompt_of("xbc");
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &other), 0);
    route_index_destroy(&ix);
}

TEST(a_hole_ends_the_prefix) {
    struct route_index *ix = index_of(1 << 20);
    uint32_t a = route_holder_add(ix, BLOCK, 100);
    struct prompt p = prompt_of("abcdefgh");
    store(ix, a, ROUTE_TIER_DEVICE, 0, &p, 0, 8);
    CHECK_EQ(take(ix, a, ROUTE_TIER_DEVICE, 0, &p, 4, 5), 1);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &p), 4);
    CHECK_EQ(take(ix, a, ROUTE_TIER_DEVICE, 0, &p, 4, 5), 0); /* again */
    CHECK_EQ(store(ix, a, ROUTE_TIER_DEVICE, 0, &p, 4, 5), 1);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &p), 8);
    CHECK_EQ(take(ix, a, ROUTE_TIER_DEVICE, 0, &p, 0, 8), 8);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &p), 0);
    CHECK_EQ(route_holder_blocks(ix, a), 0);
    CHECK_EQ(route_index_stats(ix).route_unknown, 1);
    route_index_destroy(&ix);
}

TEST(tiers_add_up) {
    struct route_index *ix = index_of(1 << 20);
    uint32_t a = route_holder_add(ix, BLOCK, 100);
    struct prompt p = prompt_of("abcdefgh");
    store(ix, a, ROUTE_TIER_DEVICE, 0, &p, 0, 3);
    store(ix, a, ROUTE_TIER_HOST, 0, &p, 2, 5); /* block 2 is in both */
    store(ix, a, ROUTE_TIER_DISK, 0, &p, 5, 8);
    CHECK_EQ(route_holder_blocks(ix, a), 8);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &p), 3);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_HOST, &p), 5);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DISK, &p), 8);
    CHECK_EQ(take(ix, a, ROUTE_TIER_DEVICE, 0, &p, 2, 3), 1);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &p), 2);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_HOST, &p), 5);
    CHECK_EQ(take(ix, a, ROUTE_TIER_HOST, 0, &p, 2, 3), 1);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DISK, &p), 2);
    route_index_destroy(&ix);
}

static size_t store_names(struct route_index *ix, uint32_t holder, enum route_tier tier,
                          uint32_t group, const struct prompt *p, size_t from, size_t to) {
    struct route_stored e = {
        .holder = holder, .group = group, .tier = tier, .n = to - from, .own = p->own + from};
    return route_index_stored(ix, &e);
}

/* Engines that offload tell of blocks by their names alone. */
TEST(blocks_that_are_known_by_name) {
    struct route_index *ix = index_of(1 << 20);
    uint32_t a = route_holder_add(ix, BLOCK, 100), b = route_holder_add(ix, BLOCK, 100);
    struct prompt p = prompt_of("abcdefgh");
    CHECK_EQ(store_names(ix, a, ROUTE_TIER_HOST, 0, &p, 0, 8), 0); /* nothing is known yet */
    CHECK_EQ(route_index_stats(ix).route_orphans, 8);
    store(ix, a, ROUTE_TIER_DEVICE, 0, &p, 0, 6);
    CHECK_EQ(store_names(ix, b, ROUTE_TIER_HOST, 0, &p, 0, 4), 0); /* names are each holder's */
    CHECK_EQ(store_names(ix, a, ROUTE_TIER_HOST, 0, &p, 2, 8), 4);
    CHECK_EQ(store_names(ix, a, ROUTE_TIER_HOST, 0, &p, 2, 3), 1);
    CHECK_EQ(route_index_stats(ix).route_repeated, 1);
    CHECK_EQ(store_names(ix, a, ROUTE_TIER_HOST, 1, &p, 0, 1), 0); /* no such group */
    CHECK_EQ(take(ix, a, ROUTE_TIER_DEVICE, 0, &p, 1, 6), 5);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_HOST, &p), 1);
    store(ix, a, ROUTE_TIER_DEVICE, 0, &p, 1, 2);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &p), 2);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_HOST, &p), 6);
    CHECK_EQ(take(ix, a, ROUTE_TIER_HOST, 0, &p, 2, 6), 4);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_HOST, &p), 2);
    CHECK_EQ(route_holder_blocks(ix, a), 2);
    CHECK_EQ(store_names(ix, a, ROUTE_TIER_HOST, 0, &p, 2, 6), 0); /* gone altogether */
    CHECK(route_index_check(ix) <= 1 << 20);
    route_index_destroy(&ix);
}

TEST(unknown_parents_make_no_prefix) {
    struct route_index *ix = index_of(1 << 20);
    uint32_t a = route_holder_add(ix, BLOCK, 100);
    struct prompt p = prompt_of("abcdefgh");
    CHECK_EQ(store(ix, a, ROUTE_TIER_DEVICE, 0, &p, 4, 8), 0);
    CHECK_EQ(route_index_stats(ix).route_orphans, 4);
    CHECK_EQ(store(ix, a, ROUTE_TIER_DEVICE, 0, &p, 0, 4), 4);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &p), 4);
    CHECK_EQ(store(ix, 5, ROUTE_TIER_DEVICE, 0, &p, 0, 8), 0); /* no such holder */
    CHECK_EQ(store(ix, a, ROUTE_TIER_DEVICE, 3, &p, 0, 8), 0); /* nor group */
    CHECK_EQ(route_index_stats(ix).route_strays, 16);
    route_index_destroy(&ix);
}

TEST(scopes_share_nothing) {
    struct route_index *ix = index_of(1 << 20);
    uint32_t a = route_holder_add(ix, BLOCK, 100);
    struct prompt p = prompt_of("abcd");
    struct route_stored e = {.holder = a, .scope = 99, .n = 4, .own = p.own, .local = p.local};
    CHECK_EQ(route_index_stored(ix, &e), 4);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &p), 0);
    struct route_chain c = {.scope = 99, .block = BLOCK, .n = 4, .rolling = p.rolling};
    struct route_hit hit;
    CHECK_EQ(route_index_match(ix, &c, 1, &hit, 1), 1);
    CHECK_EQ(hit.tokens[0], 4 * BLOCK);
    CHECK_EQ(hit.holder, a);
    CHECK_EQ(route_index_match(ix, &c, 1, NULL, 0), 1);
    route_index_destroy(&ix);
}

TEST(kv_groups_are_not_merged) {
    struct route_index *ix = index_of(1 << 20);
    uint32_t a = route_holder_add(ix, BLOCK, 100);
    struct route_group window = {ROUTE_GROUP_WINDOW, BLOCK, 2 * BLOCK + 1},
                       state = {ROUTE_GROUP_STATE, BLOCK, 0};
    CHECK(route_holder_group(ix, a, 1, &window));
    CHECK(route_holder_group(ix, a, 2, &state));
    struct prompt p = prompt_of("abcdefghij");
    store(ix, a, ROUTE_TIER_DEVICE, 0, &p, 0, 8);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &p), 0);
    store(ix, a, ROUTE_TIER_DEVICE, 1, &p, 3, 7); /* its parent is known from group 0 */
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &p), 0);
    store(ix, a, ROUTE_TIER_DEVICE, 2, &p, 5, 6);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &p), 6);
    struct route_group_hit g[ROUTE_GROUPS_MAX];
    struct route_chain c = {.block = BLOCK, .n = (uint32_t)p.n, .rolling = p.rolling};
    CHECK_EQ(route_index_match_groups(ix, &c, 1, a, g), 3);
    CHECK_EQ(g[0].tokens[0] / BLOCK, 8);
    CHECK_EQ(g[1].tokens[0] / BLOCK, 7);
    CHECK_EQ(g[2].tokens[0] / BLOCK, 6);
    take(ix, a, ROUTE_TIER_DEVICE, 1, &p, 5, 6); /* the window in front of it */
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &p), 0);
    CHECK_EQ(route_index_match_groups(ix, &c, 1, 7, g), 0);
    route_index_destroy(&ix);
}

TEST(groups_with_blocks_of_other_sizes) {
    struct route_index *ix = index_of(1 << 20);
    uint32_t a = route_holder_add(ix, BLOCK, 100);
    struct route_group state = {ROUTE_GROUP_STATE, 4 * BLOCK, 0};
    CHECK(route_holder_group(ix, a, 1, &state));
    struct prompt p = prompt_of("abcdefghij"), wide = prompt_of("AB");
    store(ix, a, ROUTE_TIER_DEVICE, 0, &p, 0, 10);
    wide.own[0] = p.own[3]; /* some engines name both alike */
    struct route_stored e = {.holder = a, .group = 1, .scope = 4, .n = 2, .own = wide.own};
    e.local = wide.local;
    CHECK_EQ(route_index_stored(ix, &e), 2);
    struct route_chain c[2] = {
        {.block = BLOCK, .n = (uint32_t)p.n, .rolling = p.rolling},
        {.scope = 4, .block = 4 * BLOCK, .n = 2, .rolling = wide.rolling},
    };
    struct route_hit hit;
    CHECK_EQ(route_index_match(ix, c, 2, &hit, 1), 1);
    CHECK_EQ(hit.tokens[0], 8 * BLOCK);
    CHECK_EQ(route_index_match(ix, c, 1, &hit, 1), 0); /* nobody said how its blocks are hashed */
    CHECK_EQ(route_index_removed(ix, a, 1, ROUTE_TIER_DEVICE, &wide.own[1], 1), 1);
    CHECK_EQ(route_index_match(ix, c, 2, &hit, 1), 1);
    CHECK_EQ(hit.tokens[0], 4 * BLOCK);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &p), 0);
    route_index_destroy(&ix);
}

/* Events of any kind, also of holders and groups that there are not. */
static struct route_event event_any(struct rng *rng, const uint64_t *own, const uint64_t *local) {
    uint32_t prompt = (uint32_t)rng_below(rng, 8) * 64,
             from = (uint32_t)(rng_below(rng, 2) * rng_below(rng, 60));
    uint32_t n = from > 0 && rng_below(rng, 4) > 0 ? 1 : (uint32_t)rng_below(rng, 64 - from);
    bool rolling = rng_below(rng, 8) == 0;
    struct route_event event = {.removed = rng_below(rng, 3) == 0,
                                .what = {.holder = (uint32_t)rng_below(rng, 6),
                                         .group = rng_below(rng, 30) == 0,
                                         .tier = (enum route_tier)rng_below(rng, ROUTE_TIERS),
                                         .has_parent = from > 0,
                                         .n = n,
                                         .own = own + prompt + from,
                                         .local = local + prompt + from}};
    if (from > 0) event.what.parent = own[prompt + from - 1];
    if (rolling && !event.removed) event.what.own = NULL;
    return event;
}

TEST(events_together_are_as_one_by_one) {
    static struct route_event event[200];
    uint64_t own[8 * 64], local[8 * 64];
    struct route_index *one = index_of(2 << 20), *together = index_of(2 << 20);
    struct rng rng;
    rng_seed(&rng, 1);
    for (size_t i = 0; i < 8 * 64; i++) own[i] = (local[i] = 1 + i) * 1000003;
    for (int i = 0; i < 4; i++) CHECK_EQ(route_holder_add(one, 16, 100), i + 1);
    for (int i = 0; i < 4; i++) CHECK_EQ(route_holder_add(together, 16, 100), i + 1);
    for (int round = 0; round < 100; round++) {
        size_t n = rng_below(&rng, 200);
        for (size_t i = 0; i < n; i++) event[i] = event_any(&rng, own, local);
        for (size_t i = 0; i < n; i++) route_index_apply(one, &event[i], 1);
        route_index_apply(together, event, n);
        struct route_index_figures a = route_index_stats(one), b = route_index_stats(together);
        CHECK(memcmp(&a, &b, sizeof(a)) == 0);
    }
    struct route_index_figures f = route_index_stats(together);
    CHECK(f.route_stored > 1000 && f.route_removed > 1000 && f.route_forgotten > 100 &&
          f.route_orphans > 100 && f.route_strays > 100 && f.route_repeated > 100);
    route_index_check(together);
    route_index_destroy(&one);
    route_index_destroy(&together);
}

TEST(cleared_holders_begin_anew) {
    struct route_index *ix = index_of(1 << 20);
    uint32_t a = route_holder_add(ix, BLOCK, 100), b = route_holder_add(ix, BLOCK, 100);
    struct prompt p = prompt_of("abcd");
    store(ix, a, ROUTE_TIER_DEVICE, 0, &p, 0, 4);
    store(ix, b, ROUTE_TIER_DEVICE, 0, &p, 0, 2);
    route_holder_clear(ix, a);
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &p), 0);
    CHECK_EQ(leading(ix, b, ROUTE_TIER_DEVICE, &p), 2);
    CHECK_EQ(store(ix, a, ROUTE_TIER_DEVICE, 0, &p, 2, 4), 0); /* the parent was forgotten */
    CHECK_EQ(store(ix, a, ROUTE_TIER_DEVICE, 0, &p, 0, 1), 1);
    while (route_index_sweep(ix, 1)) continue;
    CHECK_EQ(leading(ix, a, ROUTE_TIER_DEVICE, &p), 1);
    CHECK_EQ(route_index_stats(ix).route_pairs, 3);
    CHECK_EQ(route_index_stats(ix).route_cleared, 1);
    struct route_group full = {ROUTE_GROUP_FULL, 2 * BLOCK, 0};
    CHECK(route_holder_group(ix, b, 0, &full)); /* other blocks: what was known means nothing now */
    CHECK_EQ(route_holder_blocks(ix, b), 0);
    full.window = 3;
    CHECK(!route_holder_group(ix, b, 0, &full));
    CHECK(!route_holder_group(ix, b, ROUTE_GROUPS_MAX, &(struct route_group){.block = 1}));
    route_index_destroy(&ix);
}

TEST_MAIN()
